//! AdminService: each handler parses, calls, maps and returns.

use super::convert;
use super::deadline::TimeLimit;
use super::proto::admin_service_server::AdminService;
use super::proto::{
    ForceReleaseLockRequest, ForceReleaseLockResponse, GetClaimRequest, GetClaimResponse,
    GetLockRequest, GetLockResponse, ListClaimsRequest, ListClaimsResponse, ListLocksRequest,
    ListLocksResponse, ResolveClaimRequest, ResolveClaimResponse,
};
use super::serve::Peer;
use crate::coordinator::{Coordinator, Operator};
use tonic::{Request, Response, Status};

/// The handlers.
#[derive(Clone, Debug)]
pub(super) struct Admin(pub(super) Coordinator);

impl Admin {
    fn time_limit<T>(&self, request: &Request<T>) -> TimeLimit {
        TimeLimit::of(request, self.0.call_timeout())
    }
}

/// What an audit line has room for.
const LONGEST_AGENT: usize = 200;

/// Without credentials the address is all that is known of who asks, and the program that it says it is.
fn operator<T>(request: &Request<T>) -> Operator {
    let peer = request
        .extensions()
        .get::<Peer>()
        .map_or_else(|| "unknown address".to_owned(), |peer| peer.0.to_string());
    match request
        .metadata()
        .get("user-agent")
        .and_then(|agent| agent.to_str().ok())
    {
        Some(agent) => {
            let agent: String = agent.chars().take(LONGEST_AGENT).collect();
            Operator(format!("{peer} ({agent})"))
        }
        None => Operator(peer),
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn get_claim(
        &self,
        request: Request<GetClaimRequest>,
    ) -> Result<Response<GetClaimResponse>, Status> {
        let limit = self.time_limit(&request);
        let id = convert::admin::claim_id(request.into_inner());
        let result = async { self.0.get_claim(id?, limit.at).await };
        limit.answer(result.await.map(convert::admin::get_claim_response))
    }

    async fn list_claims(
        &self,
        request: Request<ListClaimsRequest>,
    ) -> Result<Response<ListClaimsResponse>, Status> {
        let limit = self.time_limit(&request);
        let list = convert::admin::list_claims(request.into_inner());
        let result = async { self.0.list_claims(list?, limit.at).await };
        limit.answer(result.await.map(convert::admin::list_claims_response))
    }

    async fn resolve_claim(
        &self,
        request: Request<ResolveClaimRequest>,
    ) -> Result<Response<ResolveClaimResponse>, Status> {
        let limit = self.time_limit(&request);
        let operator = operator(&request);
        let resolution = convert::admin::resolve_claim(request.into_inner(), self.0.limits());
        let result = async { self.0.resolve_claim(operator, resolution?, limit.at).await };
        limit.answer(result.await.map(convert::admin::resolve_claim_response))
    }

    async fn get_lock(
        &self,
        request: Request<GetLockRequest>,
    ) -> Result<Response<GetLockResponse>, Status> {
        let limit = self.time_limit(&request);
        let id = convert::admin::lock_id(request.into_inner());
        let result = async { self.0.get_lock(id?, limit.at).await };
        limit.answer(result.await.map(convert::admin::get_lock_response))
    }

    async fn list_locks(
        &self,
        request: Request<ListLocksRequest>,
    ) -> Result<Response<ListLocksResponse>, Status> {
        let limit = self.time_limit(&request);
        let list = convert::admin::list_locks(request.into_inner());
        let result = async { self.0.list_locks(list?, limit.at).await };
        limit.answer(result.await.map(convert::admin::list_locks_response))
    }

    async fn force_release_lock(
        &self,
        request: Request<ForceReleaseLockRequest>,
    ) -> Result<Response<ForceReleaseLockResponse>, Status> {
        let limit = self.time_limit(&request);
        let operator = operator(&request);
        let release = convert::admin::force_release_lock(request.into_inner());
        let result = async {
            self.0
                .force_release_lock(operator, release?, limit.at)
                .await
        };
        limit.answer(result.await.map(convert::admin::force_release_response))
    }
}
