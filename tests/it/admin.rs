//! What operators see and do.

mod audit;
mod listing;
mod looking;
mod resolving;

use crate::support::calls::{Clients, get_claim};
use crate::support::redis::RedisServer;
use crate::support::service::Service;
use claimlock::rpc::proto::*;

/// A service on a Redis, and clients of both its services.
struct World {
    redis: RedisServer,
    service: Service,
    clients: Clients,
}

impl World {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let service = Service::start(&redis).await;
        let clients = Clients::of(&service).await;
        Self {
            redis,
            service,
            clients,
        }
    }

    async fn claim(&mut self, request: ClaimRequest) -> Claimed {
        let answer = self.clients.coordination.claim(request).await;
        match answer.expect("an answer").into_inner().outcome {
            Some(claim_response::Outcome::Claimed(claimed)) => claimed,
            other => panic!("not claimed but {other:?}"),
        }
    }

    async fn look(&mut self, key: &str) -> Option<ClaimInfo> {
        let answer = self.clients.admin.get_claim(get_claim(key)).await;
        answer.expect("an answer").into_inner().claim
    }

    async fn resolve(&mut self, request: ResolveClaimRequest) -> ResolveClaimResponse {
        let answer = self.clients.admin.resolve_claim(request).await;
        answer.expect("an answer").into_inner()
    }

    async fn ends_well(self) {
        assert!(self.redis.keys_without_expiry().await.is_empty());
        self.service.stop().await.expect("a service that ends well");
    }
}
