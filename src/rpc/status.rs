//! The one place where a failure becomes a gRPC status.

use super::proto::CallError;
use crate::domain::failure::{Failure, FieldViolation, Refused};
use crate::trace::{self, REFUSALS};
use http::HeaderMap;
use http_body::Frame;
use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use uuid::Uuid;

const DOMAIN: &str = "claimlock";

/// What a caller is told of a failure; what is for the log goes there.
pub(super) fn from_failure(failure: Failure) -> Status {
    match failure {
        Failure::Invalid(violations) => invalid(&violations),
        Failure::StoreUnavailable { retry_after, cause } => {
            tracing::warn!(
                target: REFUSALS,
                cause = cause.for_log(),
                subject = trace::current_subject(),
                trace_id = trace::current_id(),
                "the store could not be asked"
            );
            trace::note_logged();
            status(
                Code::Unavailable,
                "the store could not be asked in time",
                "STORE_UNAVAILABLE",
                Some(retry_after),
            )
        }
        Failure::DeadlineExceeded => deadline_exceeded(),
        Failure::Draining => draining(),
        Failure::Cancelled => status(Code::Cancelled, "the call was cancelled", "CANCELLED", None),
        Failure::ResponseLost => {
            tracing::error!(
                subject = trace::current_subject(),
                trace_id = trace::current_id(),
                "a stored response was lost before its time"
            );
            trace::note_logged();
            status(
                Code::Unavailable,
                "the claim is completed, but its stored response was lost before its time",
                "RESPONSE_LOST",
                None,
            )
        }
        Failure::Defect(cause) => {
            let id = Uuid::new_v4();
            tracing::error!(
                %id,
                cause = cause.for_log(),
                subject = trace::current_subject(),
                trace_id = trace::current_id(),
                "a defect"
            );
            trace::note_logged();
            status(
                Code::Internal,
                &format!("a defect of the service; its log has more under {id}"),
                "INTERNAL",
                None,
            )
        }
    }
}

fn invalid(violations: &[FieldViolation]) -> Status {
    let too_large = violations
        .iter()
        .any(|violation| violation.refused.too_large);
    let reason = if too_large {
        "TOO_LARGE"
    } else {
        "INVALID_FIELD"
    };
    trace::note_refused(reason, || {
        let fields: Vec<&str> = violations.iter().map(|v| v.field.as_ref()).collect();
        fields.join(" ")
    });
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    for violation in violations {
        details.add_bad_request_violation(violation.field.as_ref(), &violation.refused.why);
    }
    let all: Vec<&str> = violations.iter().map(|v| v.refused.why.as_str()).collect();
    Status::with_error_details(Code::InvalidArgument, all.join("; "), details)
}

fn status(
    code: Code,
    message: &str,
    reason: &'static str,
    retry_after: Option<Duration>,
) -> Status {
    trace::note_refused(reason, String::new);
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    if let Some(retry_after) = retry_after {
        details.set_retry_info(Some(retry_after));
    }
    Status::with_error_details(code, message, details)
}

/// The caller's deadline passed.
pub(super) fn deadline_exceeded() -> Status {
    status(
        Code::DeadlineExceeded,
        "the deadline of the call passed; repeat it with the same token to learn what came of it",
        "DEADLINE_EXCEEDED",
        None,
    )
}

/// The call's connection ends, and the service perhaps with it.
pub(super) fn draining() -> Status {
    status(
        Code::Unavailable,
        "the service ends this connection: call again over another",
        "DRAINING",
        Some(Duration::from_millis(100)),
    )
}

/// The same at the end of a stream that was open.
pub(super) fn draining_trailers<T>() -> Frame<T> {
    let mut trailers = HeaderMap::new();
    match draining().add_header(&mut trailers) {
        Ok(()) => Frame::trailers(trailers),
        // The text is ours, and plain ASCII.
        Err(status) => unreachable!("{status}"),
    }
}

/// What the codec said of bytes that it could not read or would not take, in our words; nothing where it was not the codec.
pub(super) fn of_codec(status: &Status) -> Option<Status> {
    match status.code() {
        Code::OutOfRange => Some(too_large_message()),
        Code::Internal => {
            tracing::debug!(?status, "a message could not be read");
            Some(malformed_message(status.message()))
        }
        _ => None,
    }
}

/// A status as it is told of one message on a stream.
pub(super) fn call_error(status: &Status) -> CallError {
    let details = status.get_error_details();
    let retry_after = details.retry_info().and_then(|retry| retry.retry_delay);
    CallError {
        code: status.code().into(),
        message: status.message().to_owned(),
        reason: details
            .error_info()
            .map(|info| info.reason.clone())
            .unwrap_or_default(),
        retry_after: retry_after.and_then(|after| after.try_into().ok()),
    }
}

/// A message that the codec would not take.
fn too_large_message() -> Status {
    status(
        Code::InvalidArgument,
        "the message is larger than the service takes",
        "TOO_LARGE",
        None,
    )
}

/// Bytes that are no message of the contract's, for the reason that the codec gave.
fn malformed_message(why: &str) -> Status {
    if let Some(field) = unread_field(why) {
        let what = if why.contains("UTF-8") {
            "must be UTF-8"
        } else {
            "could not be read: it is not what the contract says"
        };
        let refused = Refused::invalid(format!("{field} {what}"));
        let field = field.into();
        return invalid(&[FieldViolation { field, refused }]);
    }
    status(
        Code::InvalidArgument,
        "the message could not be read: it is not what the contract says",
        "INVALID_FIELD",
        None,
    )
}

/// The field that the codec could not read, where it says so. It names the messages and fields on the way, the innermost
/// first, and nothing of what is in them.
fn unread_field(why: &str) -> Option<String> {
    let mut rest = why.strip_prefix("failed to decode Protobuf message: ")?;
    let mut fields = Vec::new();
    while let Some((step, after)) = rest.split_once(": ")
        && let Some((message, field)) = step.split_once('.')
        && is_name(message)
        && is_name(field)
    {
        fields.push(field);
        rest = after;
    }
    fields.reverse();
    (!fields.is_empty()).then(|| fields.join("."))
}

fn is_name(text: &str) -> bool {
    let of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !text.is_empty() && text.bytes().all(of_a_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::failure::Cause;

    const SECRET: &str = "redis://user:secret@db.internal:6379 SELECT 1";

    #[test]
    fn every_failure_has_the_code_and_reason_of_the_table() {
        let violation = |too_large| {
            let why = "lease must be 1 ms to 1 h".to_owned();
            Failure::field("lease", Refused { why, too_large })
        };
        let cases = [
            (
                violation(false),
                Code::InvalidArgument,
                "INVALID_FIELD",
                false,
            ),
            (violation(true), Code::InvalidArgument, "TOO_LARGE", false),
            (
                Failure::StoreUnavailable {
                    retry_after: Duration::from_millis(500),
                    cause: Cause::new(SECRET),
                },
                Code::Unavailable,
                "STORE_UNAVAILABLE",
                true,
            ),
            (
                Failure::DeadlineExceeded,
                Code::DeadlineExceeded,
                "DEADLINE_EXCEEDED",
                false,
            ),
            (
                Failure::ResponseLost,
                Code::Unavailable,
                "RESPONSE_LOST",
                false,
            ),
            (
                Failure::Defect(Cause::new(SECRET)),
                Code::Internal,
                "INTERNAL",
                false,
            ),
        ];
        for (failure, code, reason, retries) in cases {
            let status = from_failure(failure);
            assert_eq!(status.code(), code, "{reason}");
            let details = status.get_error_details();
            let info = details
                .error_info()
                .expect("every failure has an ErrorInfo");
            assert_eq!(
                (info.reason.as_str(), info.domain.as_str()),
                (reason, "claimlock")
            );
            assert_eq!(details.retry_info().is_some(), retries, "{reason}");
            for text in [status.message().to_owned(), format!("{details:?}")] {
                assert!(
                    !text.contains("secret") && !text.contains("SELECT"),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_call_that_is_cut_short_by_the_drain_is_told_when_to_try_again() {
        let status = draining();
        let details = status.get_error_details();
        let reason = details.error_info().map(|info| info.reason.as_str());
        assert_eq!(
            (status.code(), reason),
            (Code::Unavailable, Some("DRAINING"))
        );
        // Long enough for a load balancer to notice, short enough for who waits for a turn and comes back for it.
        let pause = details.retry_info().and_then(|retry| retry.retry_delay);
        assert_eq!(pause, Some(Duration::from_millis(100)));
    }

    #[test]
    fn every_bad_field_is_named() {
        let violation = |field: &'static str| FieldViolation {
            field: field.into(),
            refused: Refused::invalid(format!("{field} is wrong")),
        };
        let status = from_failure(Failure::Invalid(vec![violation("key"), violation("lease")]));
        let details = status.get_error_details();
        let fields: Vec<&str> = details
            .bad_request()
            .expect("a BadRequest")
            .field_violations
            .iter()
            .map(|v| v.field.as_str())
            .collect();
        assert_eq!(fields, ["key", "lease"]);
    }
}
