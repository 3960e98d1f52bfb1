//! Logs: one line per event on standard error; standard output is for the addresses.

use std::io::{self, IsTerminal, Write};

use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, LogSettings};
use crate::domain::audit;

/// Why logging did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process logs to one place only.
    #[error("logging has been started before in this process")]
    StartedBefore(#[source] tracing_subscriber::util::TryInitError),
}

/// Starts logging for the whole process.
///
/// # Errors
///
/// When it was started before.
pub fn start(settings: &LogSettings) -> Result<(), Error> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let ansi = io::stderr().is_terminal() && !no_color;
    subscriber(settings, ansi, io::stderr)
        .try_init()
        .map_err(Error::StartedBefore)
}

fn subscriber<W>(settings: &LogSettings, ansi: bool, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let audit = Targets::new().with_target(audit::TARGET, Level::INFO);
    let filter = settings.level.filter().or(audit);
    let lines = tracing_subscriber::fmt::layer()
        // Its report of a failed write goes to standard error, which panics when that is closed.
        .log_internal_errors(false)
        .with_ansi(ansi)
        .with_writer(OneLine(writer));
    let lines = match settings.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter))
}

/// Keeps an event on one line: a line break in a value that a caller chose could forge another.
struct OneLine<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for OneLine<W> {
    type Writer = OneLineWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLineWriter(self.0.make_writer())
    }
}

struct OneLineWriter<W>(W);

impl<W: Write> Write for OneLineWriter<W> {
    /// The layer above writes each event at once.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        if text.contains(&b'\n') || text.contains(&b'\r') {
            let mut line = Vec::with_capacity(event.len() + 8);
            for byte in text {
                match byte {
                    b'\n' => line.extend_from_slice(b"\\n"),
                    b'\r' => line.extend_from_slice(b"\\r"),
                    _ => line.push(*byte),
                }
            }
            line.push(b'\n');
            self.0.write_all(&line)?;
        } else {
            self.0.write_all(event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::config::LogLevel;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .expect("no test panics while it writes")
                .write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged meanwhile, line by line.
    fn logged(format: LogFormat, level: &str, events: impl FnOnce()) -> Vec<String> {
        let level = LogLevel::parse(level).expect("tests give valid levels");
        let written = Written::default();
        let writer = written.clone();
        let subscriber = subscriber(&LogSettings { format, level }, false, move || {
            writer.clone()
        });
        tracing::subscriber::with_default(subscriber, events);
        let bytes = written.0.lock().expect("no test panics while it writes");
        let text = String::from_utf8(bytes.clone()).expect("logs are UTF-8");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_level_decides_what_is_logged() {
        let lines = logged(LogFormat::Text, "warn,claimlock::store=debug", || {
            tracing::info!("quiet");
            tracing::warn!(attempt = 3, "loud");
            tracing::debug!(target: "claimlock::store", "close");
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].contains("WARN") && lines[0].ends_with("loud attempt=3"),
            "{lines:?}"
        );
        assert!(lines[1].ends_with("claimlock::store: close"), "{lines:?}");
    }

    #[test]
    fn no_level_silences_the_audit() {
        for level in ["off", "error", "claimlock=error", "claimlock::audit=off"] {
            let lines = logged(LogFormat::Text, level, || {
                tracing::info!(target: audit::TARGET, reason = "stuck", "lock forced open");
                tracing::debug!(target: audit::TARGET, "details");
            });
            assert_eq!(lines.len(), 1, "{level}: {lines:?}");
            assert!(
                lines[0].contains("lock forced open reason=\"stuck\""),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn a_more_verbose_level_holds_for_the_audit_too() {
        let lines = logged(LogFormat::Text, "debug", || {
            tracing::debug!(target: audit::TARGET, "details");
        });
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn json_is_one_object_per_line_with_the_fields_beside_the_message() {
        let lines = logged(LogFormat::Json, "info", || {
            let call = tracing::info_span!("call", method = "Claim");
            call.in_scope(|| tracing::info!(outcome = "claimed", attempt = 2, "answered\nwell"));
        });
        assert_eq!(lines.len(), 1);
        let event: serde_json::Value = serde_json::from_str(&lines[0]).expect("it is JSON");
        assert_eq!(event["level"], "INFO");
        assert_eq!(event["message"], "answered\nwell");
        assert_eq!(
            (&event["outcome"], &event["attempt"]),
            (&"claimed".into(), &2.into())
        );
        assert_eq!(event["span"]["method"], "Claim");
    }

    #[test]
    fn a_value_cannot_forge_a_line() {
        let lines = logged(LogFormat::Text, "info", || {
            tracing::info!(reason = %"stuck\r\nINFO forged", "lock forced open");
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("stuck\\r\\nINFO forged"), "{lines:?}");
    }
}
