//! What a failure tells its caller, as a client library reads it.

use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// What a client's text can only have from within.
const INNER: [&str; 11] = [
    "of-a-test",
    "redis",
    "127.0.0.1",
    "sock",
    "lua",
    "Lua",
    "script",
    "user_",
    "cl:",
    "ERR",
    "panicked",
];

/// Code and details of a failed call; its message is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub code: Code,
    /// Of its ErrorInfo.
    pub reason: String,
    /// Of its BadRequest.
    pub fields: Vec<String>,
    /// Of its RetryInfo.
    pub retry_after: Option<Duration>,
}

/// Reads a failure that must have an ErrorInfo, and must not tell what only the log may know.
pub fn told(status: &Status) -> Told {
    let details = status.get_error_details();
    let info = details
        .error_info()
        .unwrap_or_else(|| panic!("no ErrorInfo: {status:?}"));
    assert_eq!(info.domain, "claimlock", "{status:?}");
    assert!(info.metadata.is_empty(), "{status:?}");
    let violations: Vec<_> = details
        .bad_request()
        .into_iter()
        .flat_map(|bad| bad.field_violations.clone())
        .collect();
    let mut texts = vec![status.message()];
    texts.extend(violations.iter().map(|v| v.description.as_str()));
    for text in texts {
        for inner in INNER {
            assert!(!text.contains(inner), "{inner:?} is told: {text}");
        }
    }
    Told {
        code: status.code(),
        reason: info.reason.clone(),
        fields: violations.into_iter().map(|v| v.field).collect(),
        retry_after: details.retry_info().and_then(|info| info.retry_delay),
    }
}

/// What a call is told that has these bad fields.
pub fn invalid(reason: &str, fields: &[&str]) -> Told {
    Told {
        code: Code::InvalidArgument,
        reason: reason.to_owned(),
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
        retry_after: None,
    }
}
