//! A collector of traces, which a test looks into.

use super::eventually;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Both of OTLP's transports that the service speaks.
pub const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];

/// A running collector; ends with the value.
#[derive(Debug)]
pub struct Collector {
    protocol: &'static str,
    pub address: SocketAddr,
    received: Received,
    running: JoinHandle<()>,
}

#[derive(Debug, Clone, Default)]
struct Received(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    spans: Vec<Seen>,
    /// The value of the header `x-of-a-test`, of each request.
    headers: Vec<String>,
}

/// A span with its attributes as text.
#[derive(Debug, Clone)]
pub struct Seen {
    pub span: Span,
    pub attributes: BTreeMap<String, String>,
    pub resource: BTreeMap<String, String>,
}

impl Seen {
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }

    pub fn trace_id(&self) -> String {
        hex(&self.span.trace_id)
    }

    pub fn span_id(&self) -> String {
        hex(&self.span.span_id)
    }

    pub fn parent_id(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    /// 0 unset, 2 error.
    pub fn status(&self) -> i32 {
        self.span.status.as_ref().map_or(0, |status| status.code)
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn as_text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn by_name(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |one: &KeyValue| (one.key.clone(), as_text(one.value.clone()));
    attributes.iter().map(text).collect()
}

impl Received {
    fn take(&self, header: Option<&str>, request: ExportTraceServiceRequest) {
        let mut kept = self.0.lock().expect("nothing panics while it holds spans");
        kept.headers.push(header.unwrap_or("").to_owned());
        for resource_spans in request.resource_spans {
            let resource = resource_spans.resource.unwrap_or_default();
            let resource = by_name(&resource.attributes);
            let spans = resource_spans.scope_spans.into_iter();
            kept.spans
                .extend(spans.flat_map(|of| of.spans).map(|span| Seen {
                    attributes: by_name(&span.attributes),
                    resource: resource.clone(),
                    span,
                }));
        }
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let header = request.metadata().get("x-of-a-test").cloned();
        let header = header.as_ref().and_then(|value| value.to_str().ok());
        self.take(header, request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn over_http(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> Vec<u8> {
    let request = ExportTraceServiceRequest::decode(body).expect("it is protobuf");
    let header = headers.get("x-of-a-test");
    received.take(header.and_then(|value| value.to_str().ok()), request);
    ExportTraceServiceResponse::default().encode_to_vec()
}

impl Collector {
    pub async fn start(protocol: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let received = Received::default();
        let kept = received.clone();
        let running = tokio::spawn(async move {
            if protocol == "grpc" {
                let served = tonic::transport::Server::builder()
                    .add_service(TraceServiceServer::new(kept))
                    .serve_with_incoming(TcpIncoming::from(listener));
                served.await.expect("the collector serves");
            } else {
                let router = axum::Router::new()
                    .route("/v1/traces", post(over_http))
                    .with_state(kept);
                axum::serve(listener, router)
                    .await
                    .expect("the collector serves");
            }
        });
        Self {
            protocol,
            address,
            received,
            running,
        }
    }

    /// The variables that have a program export to it, at once.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                format!("http://{}", self.address),
            ),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", self.protocol.to_owned()),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-of-a-test=here".to_owned()),
            ("OTEL_BSP_SCHEDULE_DELAY", "20".to_owned()),
        ]
    }

    pub fn spans(&self) -> Vec<Seen> {
        let kept = self.received.0.lock();
        kept.expect("nothing panics while it holds spans")
            .spans
            .clone()
    }

    pub fn headers(&self) -> Vec<String> {
        let kept = self.received.0.lock();
        kept.expect("nothing panics while it holds spans")
            .headers
            .clone()
    }

    /// The spans of the first trace whose call's span is like that, once its call has ended.
    pub async fn trace(&self, what: &str, is_it: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        eventually(what, async || {
            let spans = self.spans();
            let found = spans
                .iter()
                .find(|seen| seen.span.kind == 2 && is_it(seen))?;
            let trace_id = found.trace_id();
            let same = |seen: &Seen| seen.trace_id() == trace_id;
            Some(spans.into_iter().filter(same).collect())
        })
        .await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.running.abort();
    }
}
