//! Hands finished spans to a collector, by OTLP.
//!
//! The libraries read the standard variables `OTEL_…` for themselves: endpoint, headers, timeout, batches, resource; of the
//! samplers those that do not follow the caller.

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
use opentelemetry_sdk::trace::{BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter};
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
#[derive(Clone, Debug, PartialEq)]
pub struct Collector {
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Whether by TLS.
    pub tls: bool,
    /// How long one batch may take, if that was set.
    pub timeout: Duration,
    /// Which share of the traces that no caller began is kept, and no trace that its caller does not keep. With none, the
    /// library's sampler decides, which sees every call.
    pub kept: Option<f64>,
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
pub struct Exporting {
    provider: SdkTracerProvider,
    seen: Seen,
}

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
        let mut provider = SdkTracerProvider::builder()
            .with_resource(resource(version))
            .with_span_processor(BatchSpanProcessor::builder(on_runtime).build());
        if collector.kept.is_some() {
            // What is not kept is not even seen.
            provider = provider.with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)));
        }
        Ok(Self {
            provider: provider.build(),
            seen: Seen {
                kept: collector.kept,
            },
        })
    }

    /// Exports to nobody.
    #[cfg(test)]
    pub(crate) fn nowhere(kept: Option<f64>) -> Self {
        Self {
            provider: SdkTracerProvider::builder().build(),
            seen: Seen { kept },
        }
    }

    /// Sees the spans of calls, and nothing else.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("claimlock"))
            .with_context_activation(false)
            .with_level(false)
            .with_location(false)
            .with_target(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(self.seen)
    }

    /// Hands over what is left, no longer than until `limit`, and ends.
    pub async fn finish(self, limit: Instant) {
        let left = limit.saturating_duration_since(Instant::now());
        let ending = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(left));
        match tokio::time::timeout_at(limit.into(), ending).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the last spans were not exported"),
            Ok(Err(_)) | Err(_) => tracing::warn!("the last spans were not exported in time"),
        }
    }
}

/// Which spans are built: none but those of calls and scripts, and of these none of a trace that is not kept. The sampler
/// would say so too late, as a span costs most before it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    kept: Option<f64>,
}

impl Seen {
    /// Whether the span of a call is to be built, whose caller keeps its trace or does not, or began none.
    pub(super) fn keeps(by_caller: Option<bool>) -> bool {
        let kept = tracing::dispatcher::get_default(|all| all.downcast_ref::<Self>()?.kept);
        match (kept, by_caller) {
            (None, _) => true,
            (Some(_), Some(kept)) => kept,
            (Some(share), None) => share >= 1.0 || rand::random::<f64>() < share,
        }
    }
}

impl<S> Filter<S> for Seen {
    fn enabled(&self, about: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        about.target() == SPANS
    }

    fn callsite_enabled(&self, about: &'static Metadata<'static>) -> Interest {
        if about.target() == SPANS {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Arrival, Call};
    use tracing_subscriber::layer::SubscriberExt as _;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const NOT_SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    #[test]
    fn no_span_is_built_of_a_trace_that_is_not_kept() {
        const CALLS: usize = 2000;
        let _alone = crate::trace::alone();
        for (kept, traceparent, expected) in [
            (Some(1.0), None, CALLS..=CALLS),
            (Some(0.0), None, 0..=0),
            (Some(0.5), None, CALLS / 4..=CALLS * 3 / 4),
            (Some(0.5), Some(SAMPLED), CALLS..=CALLS),
            (Some(0.5), Some(NOT_SAMPLED), 0..=0),
            // Then the sampler is asked, which has to see them.
            (None, None, CALLS..=CALLS),
            (None, Some(NOT_SAMPLED), CALLS..=CALLS),
        ] {
            let exporting = Exporting::nowhere(kept);
            // As the program has it.
            let subscriber: Box<dyn Subscriber + Send + Sync> =
                Box::new(tracing_subscriber::registry().with(exporting.layer()));
            let built = tracing::subscriber::with_default(subscriber, || {
                let calls = (0..CALLS).map(|_| {
                    Call::begin(Arrival {
                        method: "Claim",
                        traceparent,
                        ..Arrival::default()
                    })
                });
                calls.filter(Call::has_span).count()
            });
            assert!(
                expected.contains(&built),
                "{kept:?} {traceparent:?}: {built}"
            );
        }
    }
}
