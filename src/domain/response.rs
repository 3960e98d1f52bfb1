//! The result of the work, worth replaying to the letter.

use super::failure::{Refused, Violations};
use super::limits::Limits;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Names and values in order; a name may come more than once.
pub type Headers = Vec<(String, Vec<u8>)>;

/// An HTTP response, or any bytes with status 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResponse {
    status: i32,
    headers: Headers,
    body: Vec<u8>,
}

impl StoredResponse {
    /// Takes a response that is within the limits, or notes what is wrong with it in the parts of `field`.
    pub fn parse(
        bad: &mut Violations,
        field: &str,
        status: i32,
        headers: Headers,
        body: Vec<u8>,
        limits: &Limits,
    ) -> Option<Self> {
        let status = bad.check(
            format!("{field}.status"),
            (0..=999)
                .contains(&status)
                .then_some(status)
                .ok_or_else(|| Refused::invalid("status must be 0 to 999")),
        );
        // One is enough to say what is wrong, and there may be thousands.
        let named = match headers.iter().position(|(name, _)| name.is_empty()) {
            Some(nameless) => bad.check(
                format!("{field}.headers[{nameless}].name"),
                Err(Refused::invalid("a header must have a name")),
            ),
            None => Some(()),
        };
        let header_bytes = headers.iter().map(|(n, v)| n.len() + v.len()).sum();
        let headers = bad.check(
            format!("{field}.headers"),
            within(header_bytes, limits.max_response_headers, "headers").map(|()| headers),
        );
        let body = bad.check(
            format!("{field}.body"),
            within(body.len(), limits.max_response_body, "body").map(|()| body),
        );
        named?;
        Some(Self {
            status: status?,
            headers: headers?,
            body: body?,
        })
    }

    /// The HTTP status; 0 where there is none.
    pub fn status(&self) -> i32 {
        self.status
    }

    /// Names and values in order; a name may come more than once.
    pub fn headers(&self) -> &[(String, Vec<u8>)] {
        &self.headers
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Status, headers and body, to be handed on.
    pub fn into_parts(self) -> (i32, Headers, Vec<u8>) {
        (self.status, self.headers, self.body)
    }
}

fn within(bytes: usize, most: usize, what: &str) -> Result<(), Refused> {
    if bytes <= most {
        return Ok(());
    }
    Err(Refused::too_large(format!(
        "{what} must be at most {most} bytes"
    )))
}

/// Tells equal responses, and none, without keeping them: SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseDigest([u8; 32]);

impl ResponseDigest {
    /// The digest of a response, or of there being none.
    pub fn of(response: Option<&StoredResponse>) -> Self {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        if let Some(response) = response {
            part(&response.status.to_be_bytes());
            part(&response.body);
            for (name, value) in &response.headers {
                part(name.as_bytes());
                part(value);
            }
        }
        Self(hash.finalize().into())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: i32, headers: &[(&str, &str)], body: &[u8]) -> StoredResponse {
        StoredResponse {
            status,
            headers: headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), v.as_bytes().to_vec()))
                .collect(),
            body: body.to_vec(),
        }
    }

    #[test]
    fn responses_that_differ_anywhere_have_other_digests() {
        let all = [
            ResponseDigest::of(None),
            ResponseDigest::of(Some(&response(0, &[], b""))),
            ResponseDigest::of(Some(&response(200, &[], b""))),
            ResponseDigest::of(Some(&response(200, &[], b"a"))),
            ResponseDigest::of(Some(&response(200, &[("a", "b")], b""))),
            ResponseDigest::of(Some(&response(200, &[("ab", "")], b""))),
            ResponseDigest::of(Some(&response(200, &[("a", "b"), ("a", "b")], b""))),
            ResponseDigest::of(Some(&response(200, &[("a", "1"), ("a", "2")], b""))),
            ResponseDigest::of(Some(&response(200, &[("a", "2"), ("a", "1")], b""))),
        ];
        for (i, one) in all.iter().enumerate() {
            for other in &all[i + 1..] {
                assert_ne!(one, other);
            }
        }
    }
}
