//! Hands finished spans to a collector, by OTLP.
//!
//! The libraries read the standard variables `OTEL_…` for themselves: endpoint, headers, timeout, sampler, batches, resource.

use super::span::SPANS;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Key, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider, SpanData};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// How the collector is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP over HTTP, as protobuf.
    Http,
}

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Whether by TLS.
    pub tls: bool,
    /// How long one batch may take, if that was set.
    pub timeout: Duration,
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A variable of OpenTelemetry's is wrong.
    #[error("traces cannot be exported: {0}")]
    Build(#[from] ExporterBuildError),
    /// TLS was asked for, and there is nothing to check certificates with.
    #[error("traces cannot be exported: no certificate authorities: {0}")]
    Authorities(std::io::Error),
}

/// Exports what its layer sees. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Exporting(SdkTracerProvider);

impl Exporting {
    /// Starts; has to be called on the runtime.
    pub fn start(collector: &Collector, version: &'static str) -> Result<Self, ExportError> {
        let builder = SpanExporter::builder();
        let exporter = match collector.protocol {
            Protocol::Grpc => {
                let builder = builder.with_tonic();
                if collector.tls {
                    let tls = ClientTlsConfig::new().with_enabled_roots();
                    builder.with_tls_config(tls).build()?
                } else {
                    builder.build()?
                }
            }
            Protocol::Http => {
                let builder = builder.with_http();
                if collector.tls {
                    let provider = rustls::crypto::ring::default_provider();
                    let connector = hyper_rustls::HttpsConnectorBuilder::new()
                        .with_provider_and_native_roots(provider)
                        .map_err(ExportError::Authorities)?
                        .https_only()
                        .enable_http1()
                        .build();
                    let client = HyperClient::new(connector, collector.timeout, None);
                    builder.with_http_client(client).build()?
                } else {
                    let client = HyperClient::with_default_connector(collector.timeout, None);
                    builder.with_http_client(client).build()?
                }
            }
        };
        let on_runtime = OnRuntime {
            exporter: Arc::new(exporter),
            runtime: Handle::current(),
            works: AtomicBool::new(true),
        };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource(version))
            .with_span_processor(BatchSpanProcessor::builder(on_runtime).build())
            .build();
        Ok(Self(provider))
    }

    /// Exports to nobody.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self(SdkTracerProvider::builder().build())
    }

    /// Sees the spans of calls, and nothing else.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("claimlock"))
            .with_context_activation(false)
            .with_level(false)
            .with_location(false)
            .with_target(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(SPANS, Level::INFO))
    }

    /// Hands over what is left, no longer than until `limit`, and ends.
    pub async fn finish(self, limit: Instant) {
        let left = limit.saturating_duration_since(Instant::now());
        let ending = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(left));
        match tokio::time::timeout_at(limit.into(), ending).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the last spans were not exported"),
            Ok(Err(_)) | Err(_) => tracing::warn!("the last spans were not exported in time"),
        }
    }
}

/// What the spans are said to come from: what the variables say, and else the name of the program.
fn resource(version: &'static str) -> Resource {
    let given = Resource::builder().build();
    let name = given.get(&Key::from_static_str("service.name"));
    let is_named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let mut resource = Resource::builder();
    if given
        .get(&Key::from_static_str("service.version"))
        .is_none()
    {
        resource = resource.with_attribute(KeyValue::new("service.version", version));
    }
    if !is_named {
        resource = resource.with_service_name("claimlock");
    }
    resource.build()
}

/// Exports on the service's own runtime: the thread that gathers the batches has none, which the clients need. Says when
/// the collector goes away and when it is back, not each time that it is not there.
#[derive(Debug)]
struct OnRuntime {
    exporter: Arc<SpanExporter>,
    runtime: Handle,
    works: AtomicBool,
}

impl opentelemetry_sdk::trace::SpanExporter for OnRuntime {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exporter = self.exporter.clone();
        let exporting = self
            .runtime
            .spawn(async move { exporter.export(batch).await });
        let result = match exporting.await {
            Ok(result) => result,
            Err(error) => Err(OTelSdkError::InternalFailure(error.to_string())),
        };
        let worked = self.works.swap(result.is_ok(), Ordering::Relaxed);
        match &result {
            Err(error) if worked => {
                tracing::warn!(%error, "spans cannot be exported, and are lost meanwhile");
            }
            Ok(()) if !worked => tracing::info!("spans are exported again"),
            Ok(()) | Err(_) => {}
        }
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        // It is set before anything is exported.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}
