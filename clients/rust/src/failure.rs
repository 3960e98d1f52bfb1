//! Why a call failed, in the service's own terms.

use crate::proto;
use crate::time::from_wire;
use std::error::Error as _;
use std::time::Duration;
use tonic::transport::Uri;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

const DOMAIN: &str = "claimlock";
const TOO_LARGE: &str = "TOO_LARGE";

/// What kind of failure it was, which says what may be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Nothing happened: the request is malformed, or too large ([`Failure::reason`] `TOO_LARGE`).
    Invalid,
    /// Nothing happened: no valid credential.
    Unauthenticated,
    /// Nothing happened: the credential is not for this tenant or call.
    Forbidden,
    /// Nothing happened: a quota is used up.
    Quota,
    /// The service, or what it stores things in, could not be asked for as long as the call had time. What became of the
    /// call is unknown.
    Unavailable,
    /// The claim is completed, but its response was lost before its time. Trying again does not help; an operator decides.
    ResponseLost,
    /// No answer came in time. What became of the call is unknown.
    DeadlineExceeded,
    /// The service does not know the call: it is older than this client.
    Unimplemented,
    /// What answers is no gRPC service: the HTTP port, or a proxy that does not know it.
    NotGrpc,
    /// A defect in the service or here. What became of the call is unknown.
    Defect,
}

/// A call that failed. An outcome that is to be expected is no failure.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}{message}", .endpoint.as_ref().map(|endpoint| format!("{endpoint}: ")).unwrap_or_default())]
pub struct Failure {
    /// What kind it is.
    pub kind: FailureKind,
    /// For people to read.
    pub message: String,
    /// `google.rpc.ErrorInfo.reason`, such as `STORE_UNAVAILABLE`; empty where the service did not say.
    pub reason: String,
    /// When it may be worth trying again.
    pub retry_after: Option<Duration>,
    /// Where the service was looked for, where nothing was heard of it.
    pub endpoint: Option<String>,
    /// The status as it came.
    #[source]
    pub status: Status,
    /// What became of an earlier try is unknown, whatever this one was told.
    pub(crate) is_of_a_repeat: bool,
}

impl Failure {
    /// Whether nothing can have happened because of the call.
    #[must_use]
    pub fn nothing_happened(&self) -> bool {
        !self.is_of_a_repeat
            && matches!(
                self.kind,
                FailureKind::Invalid
                    | FailureKind::Unauthenticated
                    | FailureKind::Forbidden
                    | FailureKind::Quota
                    | FailureKind::Unimplemented
            )
    }

    /// An answer that this client does not understand, which is never a grant.
    pub(crate) fn unknown_outcome(call: &str) -> Self {
        Self::from(Status::internal(format!(
            "the service answered {call} with an outcome that this client does not know"
        )))
    }

    /// What no channel carries, and so no service can take.
    pub(crate) fn too_large(size: usize) -> Self {
        let details = ErrorDetails::with_error_info(TOO_LARGE, DOMAIN, []);
        let message = format!("a message of {size} bytes is too large for a call");
        Self::from(Status::with_error_details(
            Code::InvalidArgument,
            message,
            details,
        ))
    }

    /// There is no stream to keep a lease alive on that is to end with its stream.
    pub(crate) fn stream_is_down() -> Self {
        Self::from(Status::unavailable(
            "the stream that keeps leases alive is down",
        ))
    }

    /// Of a call to this endpoint that was not answered in time.
    pub(crate) fn deadline_exceeded(endpoint: &Uri) -> Self {
        let status = Status::deadline_exceeded("no answer came in time");
        Self {
            endpoint: Some(without_user(endpoint)),
            ..Self::from(status)
        }
    }

    /// Of a call to this endpoint.
    pub(crate) fn at(endpoint: &Uri, status: Status) -> Self {
        let is_unheard = is_of_transport(&status) || is_no_grpc(&status);
        Self {
            endpoint: is_unheard.then(|| without_user(endpoint)),
            ..Self::from(status)
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let reason = details
            .error_info()
            .map_or_else(String::new, |info| info.reason.clone());
        let retry_after = details.retry_info().and_then(|retry| retry.retry_delay);
        let kind = kind(&status, &reason);
        let message = if is_of_transport(&status) {
            with_causes(&status)
        } else if is_no_grpc(&status) {
            format!("what answers is no gRPC service: {}", status.message())
        } else {
            status.message().to_owned()
        };
        Self {
            kind,
            message,
            reason,
            retry_after,
            endpoint: None,
            status,
            is_of_a_repeat: false,
        }
    }
}

impl From<proto::Unavailable> for Failure {
    fn from(unavailable: proto::Unavailable) -> Self {
        Self {
            retry_after: Some(from_wire(unavailable.retry_after)),
            ..Self::from(Status::unavailable("the store could not be asked"))
        }
    }
}

impl From<proto::CallError> for Failure {
    fn from(error: proto::CallError) -> Self {
        let mut details = ErrorDetails::with_error_info(error.reason, DOMAIN, []);
        if error.retry_after.is_some() {
            details.set_retry_info(Some(from_wire(error.retry_after)));
        }
        let code = Code::from_i32(error.code);
        Self::from(Status::with_error_details(code, error.message, details))
    }
}

fn kind(status: &Status, reason: &str) -> FailureKind {
    match status.code() {
        Code::InvalidArgument => FailureKind::Invalid,
        Code::Unauthenticated => FailureKind::Unauthenticated,
        Code::PermissionDenied => FailureKind::Forbidden,
        Code::ResourceExhausted => FailureKind::Quota,
        Code::Unavailable if reason == "RESPONSE_LOST" => FailureKind::ResponseLost,
        Code::Unavailable => FailureKind::Unavailable,
        Code::DeadlineExceeded => FailureKind::DeadlineExceeded,
        _ if is_no_grpc(status) => FailureKind::NotGrpc,
        Code::Unimplemented => FailureKind::Unimplemented,
        _ if timed_out_here(status) => FailureKind::DeadlineExceeded,
        // The channel's own words for a connection that broke under a call.
        Code::Unknown | Code::Internal | Code::Cancelled if is_of_transport(status) => {
            FailureKind::Unavailable
        }
        _ => FailureKind::Defect,
    }
}

/// A name or a password before the host is nobody's business.
fn without_user(endpoint: &Uri) -> String {
    let scheme = endpoint.scheme_str().unwrap_or_default();
    let host = endpoint.host().unwrap_or_default();
    let port = endpoint.port().map(|port| format!(":{port}"));
    format!("{scheme}://{host}{}", port.unwrap_or_default())
}

/// Whether the channel made it, and not the service: only then it has a source.
fn is_of_transport(status: &Status) -> bool {
    status.source().is_some()
}

/// What the channel makes of an HTTP answer without a status of gRPC.
fn is_no_grpc(status: &Status) -> bool {
    status.message().starts_with("grpc-status header missing")
}

fn timed_out_here(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::TimeoutExpired>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// "transport error" alone helps nobody: "connection refused" is at the end of the chain.
fn with_causes(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}
