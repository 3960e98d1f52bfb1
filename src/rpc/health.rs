//! gRPC health: `""` and both services follow the store, `liveness` the process alone.

use super::proto::admin_service_server::AdminServiceServer;
use super::proto::coordination_service_server::CoordinationServiceServer;
use super::{admin::Admin, coordination::Coordination};
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// What health checks are told.
#[derive(Clone)]
pub struct Health {
    pub(super) reporter: HealthReporter,
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
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Health")
    }
}
