//! Pages of a listing.

use super::failure::Refused;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next one starts; empty on the last.
    pub next_page_token: String,
}

/// Where a page starts, in the store's own terms. Callers see it as an opaque token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Where to look on; none where everything has been looked at.
    pub cursor: Option<u64>,
    /// Names that were found and had no room on the page before.
    pub found: Vec<String>,
}

impl Position {
    /// Where the first page starts.
    pub fn first() -> Self {
        Self {
            cursor: Some(0),
            found: Vec::new(),
        }
    }

    /// Whether no page follows.
    pub fn is_end(&self) -> bool {
        self.cursor.is_none() && self.found.is_empty()
    }

    /// The position that a token stands for; the first page's for an empty one.
    pub fn parse(token: &str) -> Result<Self, Refused> {
        if token.is_empty() {
            return Ok(Self::first());
        }
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
            let (&VERSION, bytes) = bytes.split_first()? else {
                return None;
            };
            let (position, rest): (Self, _) = postcard::take_from_bytes(bytes).ok()?;
            (rest.is_empty() && !position.is_end()).then_some(position)
        };
        read().ok_or_else(|| Refused::invalid("page_token must be one that a listing returned"))
    }

    /// The token that stands for it; empty for the end.
    pub fn token(&self) -> String {
        if self.is_end() {
            return String::new();
        }
        let fields = postcard::to_stdvec(self).expect("plain fields always serialize");
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&fields);
        URL_SAFE_NO_PAD.encode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back() {
        for cursor in [None, Some(0), Some(u64::MAX)] {
            let position = Position {
                cursor,
                found: vec!["one".to_owned(), "another".to_owned()],
            };
            assert_eq!(Position::parse(&position.token()), Ok(position));
        }
        assert_eq!(Position::parse(""), Ok(Position::first()));
    }

    #[test]
    fn what_no_listing_returned_is_refused() {
        let good = Position::first().token();
        let mut bad = vec!["x".to_owned(), "%%%".to_owned(), "A".repeat(100_000)];
        bad.extend((1..good.len()).map(|length| good[..length].to_owned()));
        bad.extend([2, 3, 4].map(|zeros| "A".repeat(zeros)));
        bad.push(format!("{good}AAAA"));
        bad.push(format!("{good}=="));
        for bad in bad {
            assert!(Position::parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_end_has_no_token() {
        let end = Position {
            cursor: None,
            found: Vec::new(),
        };
        assert_eq!(end.token(), "");
    }
}
