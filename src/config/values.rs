//! What the text of a setting has to look like, and what it becomes.
//!
//! Each parser's error completes the sentence that begins with the setting's name.

use std::net::SocketAddr;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// How often the embedded server writes its append-only file to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Once a second: a crash of the machine loses up to a second of changes.
    EverySecond,
    /// Before every answer: nothing is lost, and every change waits for the disk.
    Always,
}

impl Fsync {
    /// The word that the server's own `appendfsync` setting uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EverySecond => "everysec",
            Self::Always => "always",
        }
    }
}

/// What a log line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: one JSON object per line.
    Json,
}

/// Which events are logged: a level, or directives such as `info,claimlock=debug`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevel(String);

impl LogLevel {
    /// Checks a level or a list of directives.
    ///
    /// # Errors
    ///
    /// When it is neither. A single word that is no level is refused too: it would be taken for a
    /// target, and a misspelt level would silence nearly everything.
    pub fn parse(text: &str) -> Result<Self, String> {
        let misspelt = text.split(',').map(str::trim).find(|part| {
            !part.contains(['=', '[', ']', '{', '}'])
                && (part.is_empty() || part.parse::<LevelFilter>().is_err())
        });
        if let Some(word) = misspelt {
            return Err(format!(
                "{word:?} is not a level; write off, error, warn, info, debug or trace, \
                 and TARGET=LEVEL for a single target, such as info,claimlock=debug"
            ));
        }
        match EnvFilter::builder().parse(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(format!(
                "{text:?} is not understood ({error}); write it like info,claimlock=debug"
            )),
        }
    }

    /// The filter that it stands for.
    #[must_use]
    pub fn filter(&self) -> EnvFilter {
        EnvFilter::builder()
            .parse(&self.0)
            .expect("it parsed when it was made")
    }
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is not IP:PORT; write it like 127.0.0.1:7420, 0.0.0.0:7420 or [::]:7420")
    })
}

pub(super) fn fsync(text: &str) -> Result<Fsync, String> {
    one_of(
        text,
        &[("everysec", Fsync::EverySecond), ("always", Fsync::Always)],
    )
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    one_of(
        text,
        &[("text", LogFormat::Text), ("json", LogFormat::Json)],
    )
}

fn one_of<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    match choices.iter().find(|(word, _)| *word == text) {
        Some((_, value)) => Ok(*value),
        None => {
            let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
            Err(format!("{text:?} is not one of {}", words.join(", ")))
        }
    }
}

/// A duration with its unit, within the limits that are written the same way.
pub(super) fn duration(low: &str, high: &str) -> impl Fn(&str) -> Result<Duration, String> {
    move |text| within(text, low, high, any_duration)
}

/// The same, or 0s for none.
pub(super) fn duration_or_none(
    low: &str,
    high: &str,
) -> impl Fn(&str) -> Result<Option<Duration>, String> {
    move |text| match any_duration(text)? {
        Duration::ZERO => Ok(None),
        _ => duration(low, high)(text)
            .map(Some)
            .map_err(|problem| format!("{problem}, or 0s")),
    }
}

/// A duration with its unit.
///
/// # Errors
///
/// Where it is none, with how to write one.
pub fn any_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| {
        format!("{text:?} is not a duration; write it with a unit, like 500ms, 10s, 5m, 24h or 30d")
    })
}

/// A number of bytes, with or without a unit.
///
/// # Errors
///
/// Where it is none, with how to write one.
pub fn any_size(text: &str) -> Result<usize, String> {
    let size = text.parse::<bytesize::ByteSize>().ok();
    let bytes = size.and_then(|size| usize::try_from(size.as_u64()).ok());
    bytes.ok_or_else(|| format!("{text:?} is not a size; write it like 1048576, 512KiB or 1MiB"))
}

/// A number of bytes, with or without a unit, within limits.
pub(super) fn size(low: &str, high: &str) -> impl Fn(&str) -> Result<usize, String> {
    move |text| within(text, low, high, any_size)
}

pub(super) fn count(low: &str, high: &str) -> impl Fn(&str) -> Result<u32, String> {
    move |text| {
        within(text, low, high, |text| {
            text.parse::<u32>()
                .map_err(|_| format!("{text:?} is not a whole number"))
        })
    }
}

/// Limits are text, so that the error and the help name them as a user would write them.
fn within<T: PartialOrd>(
    text: &str,
    low: &str,
    high: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, String> {
    let value = parse(text)?;
    if parse(low)? <= value && value <= parse(high)? {
        Ok(value)
    } else {
        Err(format!(
            "{text:?} is out of range; it has to be from {low} to {high}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_stay_within_their_limits() {
        let parse = duration("10ms", "60s");
        assert_eq!(parse("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(parse("1m"), Ok(Duration::from_secs(60)));
        assert!(parse("5").unwrap_err().contains("like 500ms"));
        assert!(parse("-5s").unwrap_err().contains("is not a duration"));
        let error = parse("61s").unwrap_err();
        assert_eq!(
            error,
            "\"61s\" is out of range; it has to be from 10ms to 60s"
        );
        assert!(parse("9ms").unwrap_err().contains("out of range"));
        assert!(
            parse("99999999999999999999y")
                .unwrap_err()
                .contains("is not a duration")
        );
    }

    #[test]
    fn a_duration_that_may_be_none_is_none_at_zero_and_within_its_limits_otherwise() {
        let parse = duration_or_none("1s", "30d");
        for zero in ["0s", "0ms", "0"] {
            assert_eq!(parse(zero), Ok(None), "{zero}");
        }
        assert_eq!(parse("1s"), Ok(Some(Duration::from_secs(1))));
        let error = parse("999ms").unwrap_err();
        assert_eq!(
            error,
            "\"999ms\" is out of range; it has to be from 1s to 30d, or 0s"
        );
        assert!(parse("31d").unwrap_err().contains("out of range"));
        assert!(parse("5").unwrap_err().contains("is not a duration"));
    }

    #[test]
    fn sizes_are_bytes_with_or_without_a_unit() {
        let parse = size("0", "64MiB");
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("1048577"), Ok((1 << 20) + 1));
        assert_eq!(parse("1MiB"), Ok(1 << 20));
        assert_eq!(parse("32KiB"), Ok(32 << 10));
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert!(parse("65MiB").unwrap_err().contains("from 0 to 64MiB"));
        assert!(parse("-1").unwrap_err().contains("is not a size"));
        assert!(parse("big").unwrap_err().contains("is not a size"));
    }

    #[test]
    fn counts_are_whole_numbers_within_their_limits() {
        let parse = count("1", "64");
        assert_eq!((parse("1"), parse("64")), (Ok(1), Ok(64)));
        for text in ["0", "65"] {
            assert!(parse(text).unwrap_err().contains("from 1 to 64"));
        }
        for text in ["", "4.5", "four", "-1"] {
            assert!(parse(text).unwrap_err().contains("is not a whole number"));
        }
    }

    #[test]
    fn an_address_is_an_ip_address_and_a_port() {
        assert!(address("[::]:0").is_ok());
        for text in [
            "localhost:7420",
            "7420",
            ":7420",
            "127.0.0.1",
            "::1:7420:",
            "1.2.3.4:70000",
        ] {
            assert!(
                address(text).unwrap_err().contains("is not IP:PORT"),
                "{text}"
            );
        }
    }

    #[test]
    fn words_are_taken_from_their_list_only() {
        assert_eq!(fsync("always"), Ok(Fsync::Always));
        assert_eq!(
            fsync("no"),
            Err("\"no\" is not one of everysec, always".into())
        );
        assert_eq!(log_format("json"), Ok(LogFormat::Json));
        assert!(log_format("JSON").is_err());
    }

    #[test]
    fn a_misspelt_level_is_not_taken_for_a_target() {
        for text in [
            "info",
            "WARN",
            "off",
            "info,claimlock=debug",
            "warn,claimlock::store[call{id=7}]=trace",
        ] {
            assert!(LogLevel::parse(text).is_ok(), "{text}");
        }
        for text in [
            "inf0",
            "info,claimlock",
            "claimlock=verbose",
            "",
            "info,,warn",
        ] {
            assert!(LogLevel::parse(text).is_err(), "{text}");
        }
    }
}
