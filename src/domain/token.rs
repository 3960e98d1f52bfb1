//! Tokens: what callers prove that they hold a claim or a lock with.

use super::failure::Refused;
use uuid::Uuid;

macro_rules! token {
    ($(#[$doc:meta])* $type:ident, $name:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $type(String);

        impl $type {
            /// Takes the text if it is a token: 16 to 64 of `[A-Za-z0-9_-]`.
            pub fn parse(text: String) -> Result<Self, Refused> {
                let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
                if (16..=64).contains(&text.len()) && text.bytes().all(allowed) {
                    return Ok(Self(text));
                }
                Err(Refused::invalid(concat!($name, " must be 16 to 64 of [A-Za-z0-9_-]")))
            }

            /// The token given, or a new one where none was.
            pub fn or_new(text: String) -> Result<Self, Refused> {
                if text.is_empty() {
                    return Ok(Self(Uuid::new_v4().to_string()));
                }
                Self::parse(text)
            }

            /// The text as it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

token!(
    /// Names one execution of the work that a key stands for.
    ClaimToken,
    "claim_token"
);
token!(
    /// Names one acquisition of a lock.
    LockToken,
    "lock_token"
);

/// Names one call, so that its grant can be told from a later one of the same token. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// A new one.
    pub fn new() -> Self {
        Self(*Uuid::new_v4().as_bytes())
    }

    /// Its sixteen bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Default for Nonce {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_sixteen_to_sixty_four_plain_characters() {
        assert!(ClaimToken::parse("a".repeat(16)).is_ok());
        assert!(ClaimToken::parse("Az09_-".repeat(10)).is_ok());
        for bad in [
            "a".repeat(15),
            "a".repeat(65),
            format!("{}!", "a".repeat(16)),
            format!("{} ", "a".repeat(16)),
        ] {
            assert!(ClaimToken::parse(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_that_the_server_makes_is_one_that_it_takes() {
        let made = LockToken::or_new(String::new()).expect("a new token");
        assert_eq!(LockToken::parse(made.as_str().to_owned()), Ok(made));
    }
}
