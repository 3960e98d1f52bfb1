//! Spans as OpenTelemetry's semantic conventions have them: of calls that are served (RPC), and of what is asked of Redis on
//! their behalf (database client calls).
//!
//! They are built by `tracing` under a target of their own, which nothing but the exporter enables: without it none is
//! built. No span is entered, so that no log line carries one about; who is whose child is said outright.

use super::export::Seen;
use super::parent::{SpanIds, TraceId};
use opentelemetry::trace::{
    SpanContext, SpanId, Status, TraceContextExt as _, TraceFlags, TraceState,
};
use opentelemetry::{Context, Value};
use std::net::SocketAddr;
use std::str::FromStr as _;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The target of all spans.
pub const SPANS: &str = "claimlock::spans";

/// A call as it arrives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival<'a> {
    /// `service/method`, or `_OTHER`: a name that the caller made up says nothing, and could say anything.
    pub method: &'a str,
    /// The header of this name.
    pub traceparent: Option<&'a str>,
    /// The header of this name.
    pub tracestate: Option<&'a str>,
    /// Where the caller means to be, by name and port.
    pub server: Option<(&'a str, Option<u16>)>,
    /// Where it is itself.
    pub peer: Option<SocketAddr>,
}

/// The span of a call, disabled where nobody exports it, and its ids where somebody does.
pub(super) fn of_call(arrival: Arrival<'_>, caller: Option<SpanIds>) -> (Span, Option<SpanIds>) {
    if !Seen::keeps(caller.map(|caller| caller.sampled)) {
        return (Span::none(), None);
    }
    let span = tracing::info_span!(
        target: SPANS,
        parent: None,
        "call",
        otel.name = arrival.method,
        otel.kind = "server",
        rpc.system.name = "grpc",
        rpc.method = arrival.method,
        server.address = arrival.server.map(|(host, _)| host),
        server.port = arrival.server.and_then(|(_, port)| port),
        network.peer.address = arrival.peer.map(|peer| tracing::field::display(peer.ip())),
        network.peer.port = arrival.peer.map(|peer| peer.port()),
    );
    if span.is_disabled() {
        return (span, None);
    }
    if let Some(caller) = caller {
        // It fails where something else than the exporter enabled the span.
        let _ = span.set_parent(remote(caller, arrival.tracestate));
    }
    let context = span.context();
    let own = context.span().span_context().clone();
    let ids = own.is_valid().then(|| SpanIds {
        trace: TraceId(own.trace_id().to_bytes()),
        span: own.span_id().to_bytes(),
        sampled: own.is_sampled(),
    });
    (span, ids)
}

fn span_context(ids: SpanIds, state: TraceState) -> SpanContext {
    let flags = if ids.sampled {
        TraceFlags::SAMPLED
    } else {
        TraceFlags::default()
    };
    let trace = opentelemetry::trace::TraceId::from_bytes(ids.trace.0);
    SpanContext::new(trace, SpanId::from_bytes(ids.span), flags, true, state)
}

fn remote(caller: SpanIds, tracestate: Option<&str>) -> Context {
    let state = tracestate.and_then(|state| TraceState::from_str(state).ok());
    Context::new().with_remote_span_context(span_context(caller, state.unwrap_or_default()))
}

/// The span of a call leads to another one.
pub(super) fn link(span: &Span, to: SpanIds) {
    span.add_link(span_context(to, TraceState::default()));
}

/// The outcome of a call.
pub(super) fn outcome(span: &Span, outcome: &'static str) {
    span.set_attribute("claimlock.outcome", outcome);
}

/// The code that a call was answered with; whether it counts as the server's failure.
pub(super) fn answered(span: &Span, code: &'static str, failed: bool) {
    // The second is what version 1.45 of the conventions made of the first.
    span.set_attribute("rpc.response.status_code", code);
    span.set_attribute("rpc.status_code", code);
    if failed {
        fail(span, code);
    }
}

fn fail(span: &Span, error: impl Into<Value>) {
    span.set_attribute("error.type", error);
    span.set_status(Status::error(""));
}

/// The Redis that is asked.
#[derive(Clone, Debug)]
pub struct Database {
    /// Its host, or the path of its socket.
    pub address: String,
    /// None for a socket.
    pub port: Option<u16>,
    /// The number of the database.
    pub namespace: String,
}

/// The span of one script that is sent; closed with the value.
#[derive(Debug)]
pub struct Sent(Option<Span>);

impl Sent {
    pub(super) fn child_of(parent: &Span, database: &Database, script: &'static str) -> Self {
        Self(Some(tracing::info_span!(
            target: SPANS,
            parent: parent,
            "script",
            otel.name = format!("EVALSHA {script}"),
            otel.kind = "client",
            db.system.name = "redis",
            db.operation.name = "EVALSHA",
            db.stored_procedure.name = script,
            db.namespace = database.namespace,
            server.address = database.address,
            server.port = database.port,
        )))
    }

    pub(super) fn unseen() -> Self {
        Self(None)
    }

    /// It failed: by a code that Redis gave, or by something that has a name of its own.
    pub fn failed(&self, code: Option<&str>, error: &str) {
        let Some(span) = &self.0 else { return };
        if let Some(code) = code {
            span.set_attribute("db.response.status_code", code.to_owned());
        }
        fail(span, code.unwrap_or(error).to_owned());
    }
}
