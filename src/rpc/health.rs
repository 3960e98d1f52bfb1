//! gRPC health: `""` and both services follow the store, `liveness` the process alone.

use super::proto::admin_service_server::AdminServiceServer;
use super::proto::coordination_service_server::CoordinationServiceServer;
use super::{admin::Admin, coordination::Coordination};
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::{HealthReporter, HealthService};

/// What health checks are told.
#[derive(Clone)]
pub struct Health {
    reporter: HealthReporter,
}

const FOLLOW_THE_STORE: [&str; 3] = [
    "",
    <CoordinationServiceServer<Coordination> as NamedService>::NAME,
    <AdminServiceServer<Admin> as NamedService>::NAME,
];
const LIVENESS: &str = "liveness";

impl Health {
    /// Alive, and not serving yet.
    pub async fn new() -> Self {
        let health = Self {
            reporter: HealthReporter::new(),
        };
        health.set_ready(false).await;
        health
            .reporter
            .set_service_status(LIVENESS, ServingStatus::Serving)
            .await;
        health
    }

    /// Whether calls can be answered.
    pub async fn set_ready(&self, ready: bool) {
        let status = if ready {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for service in FOLLOW_THE_STORE {
            self.reporter.set_service_status(service, status).await;
        }
    }

    /// The service that health checks ask.
    pub(super) fn service(&self) -> HealthServer<WithVersion> {
        HealthServer::new(WithVersion(HealthService::from_health_reporter(
            self.reporter.clone(),
        )))
    }
}

/// Which version answers, in the metadata of each answer: the standard message has no room for it.
const VERSION_KEY: &str = "claimlock-version";

/// gRPC health that tells the version.
#[derive(Debug)]
pub(super) struct WithVersion(HealthService);

fn with_version<T>(mut response: Response<T>) -> Response<T> {
    let version = MetadataValue::from_static(env!("CARGO_PKG_VERSION"));
    response.metadata_mut().insert(VERSION_KEY, version);
    response
}

#[tonic::async_trait]
impl health_server::Health for WithVersion {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.0.check(request).await.map(with_version)
    }

    type WatchStream = <HealthService as health_server::Health>::WatchStream;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.0.watch(request).await.map(with_version)
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Health")
    }
}
