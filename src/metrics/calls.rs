//! Calls over gRPC, by the names that the gRPC middleware for Go made common.

use super::{Counters, Histograms, Labels};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The codes of gRPC, in the order of their numbers.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
/// Stands for a method that is not served: a caller can make up any number of them.
const UNKNOWN: &str = "unknown";

/// The number of a gRPC code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

/// A method as the contract has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodName {
    /// Its service, with the package.
    pub service: String,
    /// Its own name.
    pub method: String,
    /// Whether the caller sends a stream.
    pub client_streams: bool,
    /// Whether the server does.
    pub server_streams: bool,
}

impl MethodName {
    fn kind(&self) -> &'static str {
        match (self.client_streams, self.server_streams) {
            (false, false) => "unary",
            (true, false) => "client_stream",
            (false, true) => "server_stream",
            (true, true) => "bidi_stream",
        }
    }
}

/// The series of every method that is served, and of all others together.
#[derive(Clone, Debug)]
pub struct CallMetrics {
    /// By path, `/service/method`.
    known: Arc<HashMap<String, Arc<MethodMetrics>>>,
    unknown: Arc<MethodMetrics>,
}

impl CallMetrics {
    pub(super) fn new(
        handled: &Counters,
        handling: &Histograms,
        methods: impl IntoIterator<Item = MethodName>,
    ) -> Self {
        let of = |name: String, kind: &str, service: &str, method: &str| {
            let labels = || -> Labels {
                vec![
                    ("grpc_type", kind.to_owned()),
                    ("grpc_service", service.to_owned()),
                    ("grpc_method", method.to_owned()),
                ]
            };
            let of_code = |code: &str| {
                let labels = [labels(), vec![("grpc_code", code.to_owned())]].concat();
                handled.get_or_create_owned(&labels)
            };
            Arc::new(MethodMetrics {
                name,
                handled: CODES.map(of_code),
                handling: handling.get_or_create_owned(&labels()),
            })
        };
        let known = methods.into_iter().map(|name| {
            let full = format!("{}/{}", name.service, name.method);
            let metrics = of(full.clone(), name.kind(), &name.service, &name.method);
            (format!("/{full}"), metrics)
        });
        Self {
            known: Arc::new(known.collect()),
            unknown: of("_OTHER".to_owned(), UNKNOWN, UNKNOWN, UNKNOWN),
        }
    }

    /// Those of the method at a path.
    pub fn at(&self, path: &str) -> &Arc<MethodMetrics> {
        self.known.get(path).unwrap_or(&self.unknown)
    }
}

/// The series of one method.
#[derive(Debug)]
pub struct MethodMetrics {
    name: String,
    handled: [Counter; CODES.len()],
    handling: Histogram,
}

impl MethodMetrics {
    /// `service/method`, or `_OTHER` for all that are not served.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Records a call that was answered.
    pub fn handled(&self, code: Code, took: Duration) {
        // A code that gRPC does not know counts as UNKNOWN, as it says.
        let number = usize::try_from(code.0).unwrap_or(2);
        self.handled.get(number).unwrap_or(&self.handled[2]).inc();
        self.handling.observe(took.as_secs_f64());
    }
}
