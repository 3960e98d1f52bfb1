//! Sees each call to its end, and records how it was answered.

use super::serve::Peer;
use crate::metrics::{CallMetrics, Code, MethodMetrics, MethodName, Metrics};
use crate::trace::{Arrival, Call, REFUSALS};
use http::{HeaderMap, Request};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use std::sync::Arc;
use std::time::Instant;
use tonic::Code as GrpcCode;

/// Knows every method that is served.
#[derive(Clone, Debug)]
pub(super) struct Observer(CallMetrics);

impl Observer {
    /// Of the services that these descriptors describe.
    pub(super) fn new(metrics: &Metrics, descriptors: &[&[u8]]) -> Self {
        Self(metrics.calls(descriptors.iter().flat_map(|set| methods(set))))
    }

    /// A call begins.
    pub(super) fn begin<B>(&self, request: &Request<B>) -> Observed {
        let method = self.0.at(request.uri().path()).clone();
        let header = |name: &str| request.headers().get(name)?.to_str().ok();
        let authority = request.uri().authority();
        let call = Call::begin(Arrival {
            method: method.name(),
            traceparent: header("traceparent"),
            tracestate: header("tracestate"),
            server: authority.map(|server| (server.host(), server.port_u16())),
            peer: request.extensions().get::<Peer>().map(|peer| peer.0),
        });
        Observed {
            method,
            started: Instant::now(),
            call,
            is_answered: false,
        }
    }
}

fn methods(descriptor_set: &[u8]) -> Vec<MethodName> {
    let set = FileDescriptorSet::decode(descriptor_set)
        .expect("the build script made it, or that of a library did");
    let mut methods = Vec::new();
    for file in &set.file {
        for service in &file.service {
            methods.extend(service.method.iter().map(|method| MethodName {
                service: format!("{}.{}", file.package(), service.name()),
                method: method.name().to_owned(),
                client_streams: method.client_streaming(),
                server_streams: method.server_streaming(),
            }));
        }
    }
    methods
}

/// A call on its way. Dropped without an answer, its caller went away.
#[derive(Debug)]
pub(super) struct Observed {
    method: Arc<MethodMetrics>,
    started: Instant,
    call: Call,
    is_answered: bool,
}

impl Observed {
    pub(super) fn call(&self) -> &Call {
        &self.call
    }

    /// It was answered, if these headers or trailers have a status: the first one counts.
    pub(super) fn saw(&mut self, headers: &HeaderMap) {
        if let Some(code) = code(headers) {
            self.answered(code);
        }
    }

    /// It was answered with this code.
    pub(super) fn answered(&mut self, code: GrpcCode) {
        if std::mem::replace(&mut self.is_answered, true) {
            return;
        }
        self.method
            .handled(Code(code.into()), self.started.elapsed());
        self.call.answered(word(code), is_failure(code));
        match code {
            GrpcCode::Ok => {}
            // Nobody was refused anything.
            GrpcCode::Cancelled => {
                tracing::debug!(
                    target: REFUSALS,
                    method = self.method.name(),
                    trace_id = self.call.trace_id().map(tracing::field::display),
                    "the caller went away"
                );
            }
            _ => log_failure(self.method.name(), &self.call, code),
        }
    }
}

/// The one line of a call that failed, or of a message on a stream that did.
pub(super) fn log_failure(method: &str, call: &Call, code: GrpcCode) {
    let notes = call.notes();
    if notes.is_logged() {
        return;
    }
    tracing::info!(
        target: REFUSALS,
        method,
        code = word(code),
        reason = notes.reason(),
        fields = notes.bad_fields(),
        subject = notes.subject(),
        trace_id = call.trace_id().map(tracing::field::display),
        "call failed"
    );
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.answered(GrpcCode::Cancelled);
    }
}

/// The status that ends a call, where headers or trailers have one.
pub(super) fn code(headers: &HeaderMap) -> Option<GrpcCode> {
    Some(GrpcCode::from_bytes(headers.get("grpc-status")?.as_bytes()))
}

/// Those that OpenTelemetry counts as failures of a server: all others are its caller's doing.
fn is_failure(code: GrpcCode) -> bool {
    use GrpcCode::{DataLoss, DeadlineExceeded, Internal, Unavailable, Unimplemented, Unknown};
    let failures = [
        Unknown,
        DeadlineExceeded,
        Unimplemented,
        Internal,
        Unavailable,
        DataLoss,
    ];
    failures.contains(&code)
}

/// The name of a code in gRPC's own documents.
fn word(code: GrpcCode) -> &'static str {
    match code {
        GrpcCode::Ok => "OK",
        GrpcCode::Cancelled => "CANCELLED",
        GrpcCode::Unknown => "UNKNOWN",
        GrpcCode::InvalidArgument => "INVALID_ARGUMENT",
        GrpcCode::DeadlineExceeded => "DEADLINE_EXCEEDED",
        GrpcCode::NotFound => "NOT_FOUND",
        GrpcCode::AlreadyExists => "ALREADY_EXISTS",
        GrpcCode::PermissionDenied => "PERMISSION_DENIED",
        GrpcCode::ResourceExhausted => "RESOURCE_EXHAUSTED",
        GrpcCode::FailedPrecondition => "FAILED_PRECONDITION",
        GrpcCode::Aborted => "ABORTED",
        GrpcCode::OutOfRange => "OUT_OF_RANGE",
        GrpcCode::Unimplemented => "UNIMPLEMENTED",
        GrpcCode::Internal => "INTERNAL",
        GrpcCode::Unavailable => "UNAVAILABLE",
        GrpcCode::DataLoss => "DATA_LOSS",
        GrpcCode::Unauthenticated => "UNAUTHENTICATED",
    }
}
