//! Sees each call to its end, and records how it was answered.

use crate::metrics::{CallMetrics, Code, MethodMetrics, MethodName, Metrics};
use http::HeaderMap;
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

    /// A call to a path begins.
    pub(super) fn begin(&self, path: &str) -> Observed {
        Observed {
            method: Some(self.0.at(path).clone()),
            started: Instant::now(),
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
    /// Until it is answered.
    method: Option<Arc<MethodMetrics>>,
    started: Instant,
}

impl Observed {
    /// It was answered, if these headers or trailers have a status: the first one counts.
    pub(super) fn saw(&mut self, headers: &HeaderMap) {
        if let Some(code) = code(headers) {
            self.answered(code);
        }
    }

    /// It was answered with this code.
    pub(super) fn answered(&mut self, code: GrpcCode) {
        if let Some(method) = self.method.take() {
            method.handled(Code(code.into()), self.started.elapsed());
        }
    }
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
