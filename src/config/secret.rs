//! The Redis URL, which may carry a password, and the rule that keeps passwords out of every text.

use std::fmt;

const SCHEMES: [&str; 4] = ["redis", "rediss", "valkey", "valkeys"];
const HIDDEN: &str = "***";

/// Where Redis is: `redis://`, `rediss://` (TLS) or `unix:` with the path of a socket.
///
/// `Debug` and `Display` hide the password; only [`RedisUrl::expose`] shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// Checks a URL.
    ///
    /// # Errors
    ///
    /// Says what is wrong without repeating the URL: one that does not parse cannot be told apart
    /// from its password.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("contains a space or a line break; write it as %20 or %0A".into());
        }
        let url = url::Url::parse(text).map_err(|error| {
            format!(
                "is not a URL ({error}); write it like redis://user:password@host:6379, \
                 with / ? # @ % in the password written as %2F %3F %23 %40 %25"
            )
        })?;
        if url.fragment().is_some() {
            return Err(
                "contains a #, which means nothing here; in a password write it as %23".into(),
            );
        }
        match url.scheme() {
            "unix" => check_socket(&url)?,
            scheme if SCHEMES.contains(&scheme) => check_server(&url)?,
            scheme => {
                return Err(format!(
                    "starts with {scheme}:, but only redis://, rediss://, valkey://, valkeys:// and unix: are known"
                ));
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The URL as it was given, password included: for the client that connects, and nothing else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether the password is the `***` that `claimlock config` prints in place of one.
    #[must_use]
    pub fn is_redacted(&self) -> bool {
        url::Url::parse(&self.0).is_ok_and(|url| {
            url.password() == Some(HIDDEN)
                || (url.username() == HIDDEN && url.password().is_none())
                || url
                    .query_pairs()
                    .any(|(name, value)| name == "pass" && value == HIDDEN)
        })
    }
}

/// The client ignores a parameter that it does not know, a misspelt password among them.
fn check_parameters(url: &url::Url, known: &[&str]) -> Result<(), String> {
    let mut pairs = url.query().unwrap_or_default().split('&');
    if pairs.all(|pair| pair.is_empty() || known.contains(&pair.split('=').next().unwrap_or(pair)))
    {
        return Ok(());
    }
    let known = known.join(", ");
    Err(format!(
        "has a parameter after the ? that is not known; these are: {known}"
    ))
}

fn check_socket(url: &url::Url) -> Result<(), String> {
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    if has_host || url.path().len() < 2 || !url.path().starts_with('/') {
        return Err("has no absolute path; write it like unix:///run/redis/redis.sock".into());
    }
    check_parameters(url, &["db", "user", "pass", "protocol"])
}

fn check_server(url: &url::Url) -> Result<(), String> {
    if url.host_str().is_none_or(str::is_empty) {
        return Err("has no host; write it like redis://host:6379".into());
    }
    let database = url.path().trim_matches('/');
    if !database.is_empty() && database.parse::<u32>().is_err() {
        return Err(
            "has a path that is not the number of a database; write it like redis://host:6379/0, \
             and a / in a password as %2F"
                .into(),
        );
    }
    check_parameters(url, &["protocol"])
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hide_passwords(&self.0))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// Puts `***` in place of every password of a URL in a text.
///
/// A password that was not percent-encoded can contain anything, so what counts is the last `@` of
/// the line: rather hide too much than show a part of one.
#[must_use]
pub fn hide_passwords(text: &str) -> String {
    text.split_inclusive('\n')
        .map(|line| hide_user_info(&hide_query(line)))
        .collect()
}

fn hide_user_info(line: &str) -> String {
    let mut parts = line.split("://");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("://");
        match part.rfind('@') {
            None => out.push_str(part),
            Some(at) => {
                // Without a colon it may be a password whose colon was forgotten.
                if let Some(colon) = part[..at].find(':') {
                    out.push_str(&part[..=colon]);
                }
                out.push_str(HIDDEN);
                out.push_str(&part[at..]);
            }
        }
    }
    out
}

/// The form that URLs of sockets take: `unix:///run/redis.sock?user=name&pass=secret`.
fn hide_query(line: &str) -> String {
    ["pass=", "password="]
        .iter()
        .fold(line.to_owned(), |line, name| {
            let mut parts = line.split(name);
            let mut out = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let end = part.find(['&', '\'', '"', '\n']).unwrap_or(part.len());
                out.push_str(name);
                out.push_str(HIDDEN);
                out.push_str(&part[end..]);
            }
            out
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_url_is_taken() {
        for text in [
            "redis://localhost",
            "redis://localhost:6379/3",
            "redis://[::1]:6379",
            "redis://:secret@localhost/",
            "rediss://user:secret@redis.example.com:6380/?protocol=resp3",
            "valkey://localhost",
            "unix:/run/redis.sock",
            "unix:///run/redis.sock?db=1&user=u&pass=secret",
        ] {
            let url = RedisUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(url.expose(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_url() {
        for (text, said) in [
            ("localhost:6379", "starts with localhost:"),
            ("user:secret@localhost", "starts with user:"),
            ("secret", "is not a URL"),
            ("redis://", "no host"),
            ("redis:secret@localhost", "no host"),
            ("redis://:sec/ret@localhost", "is not a URL"),
            ("redis://user:12/secret@localhost", "%2F"),
            ("redis://user:12#secret@localhost", "%23"),
            ("redis://user:sec ret@localhost", "%20"),
            ("redis://localhost:6379/secret", "number of a database"),
            ("http://user:secret@localhost", "starts with http:"),
            ("unix:secret.sock", "no absolute path"),
            ("unix://secret/redis.sock", "no absolute path"),
            ("unix:", "no absolute path"),
            ("unix:/s?password=secret", "user, pass"),
            ("unix:/s?p%61ss=secret", "user, pass"),
            ("redis://localhost?secret", "parameter"),
        ] {
            let error = RedisUrl::parse(text).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
            assert!(!error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn passwords_are_hidden_however_badly_they_are_written() {
        for (text, shown) in [
            ("redis://host:6379/0", "redis://host:6379/0"),
            (
                "redis://user:secret@host:6379/0",
                "redis://user:***@host:6379/0",
            ),
            ("redis://:secret@host", "redis://:***@host"),
            ("redis://secret@host", "redis://***@host"),
            ("redis://u:se@cret@host", "redis://u:***@host"),
            ("redis://u:12/se?c#r@et@host", "redis://u:***@host"),
            (
                "unix:///s?user=u&pass=se@cret&db=1",
                "unix:///s?user=u&pass=***&db=1",
            ),
            ("unix:/s?pass=secret", "unix:/s?pass=***"),
            ("unix:/s?password=secret", "unix:/s?password=***"),
            (
                "invalid value 'redis://u:secret@h' for '--memory'\nsee a@b",
                "invalid value 'redis://u:***@h' for '--memory'\nsee a@b",
            ),
            (
                "redis://u:one@h rediss://u:two@h",
                "redis://u:***@h rediss://u:***@h",
            ),
        ] {
            assert_eq!(hide_passwords(text), shown);
        }
    }

    #[test]
    fn debug_and_display_hide_the_password() {
        let url = RedisUrl::parse("redis://user:secret@host").expect("it is a valid URL");
        assert_eq!(
            format!("{url} {url:?}"),
            "redis://user:***@host RedisUrl(redis://user:***@host)"
        );
    }

    #[test]
    fn a_password_that_was_hidden_before_is_recognized() {
        for text in [
            "redis://u:secret@host",
            "redis://secret@host",
            "unix:/s?pass=secret",
        ] {
            let url = RedisUrl::parse(text).expect("it is a valid URL");
            assert!(!url.is_redacted(), "{text}");
            let printed = RedisUrl::parse(&url.to_string()).expect("what is printed is a URL");
            assert!(printed.is_redacted(), "{printed}");
        }
    }
}
