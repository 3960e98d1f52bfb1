//! CoordinationService: each handler parses, calls, maps and returns.

use super::convert;
use super::deadline::TimeLimit;
use super::keep_alive;
use super::layer::{EndsItself, Unheard};
use super::proto::coordination_service_server::CoordinationService;
use super::proto::{
    AbandonRequest, AbandonResponse, AcquireLockRequest, AcquireLockResponse, ClaimRequest,
    ClaimResponse, CompleteRequest, CompleteResponse, KeepAliveRequest, PipelineRequest,
    PipelineResponse, ReleaseLockRequest, ReleaseLockResponse, RenewClaimRequest,
    RenewClaimResponse, RenewLockRequest, RenewLockResponse,
};
use super::serve::Draining;
use crate::coordinator::{Coordinator, Grant};
use crate::domain::failure::Failure;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// The handlers.
#[derive(Clone, Debug)]
pub(super) struct Coordination(pub(super) Coordinator);

impl Coordination {
    fn time_limit<T>(&self, request: &Request<T>) -> TimeLimit {
        TimeLimit::of(request, self.0.call_timeout())
    }

    /// That of a call that may wait; one that asks for nonsense is refused soon anyway.
    fn time_limit_with_wait<T>(
        &self,
        request: &Request<T>,
        wait: Option<prost_types::Duration>,
    ) -> TimeLimit {
        let wait = wait.and_then(|wait| convert::duration(wait).ok());
        let wait = wait.unwrap_or_default().min(LONGEST_WAIT);
        TimeLimit::of(request, self.0.call_timeout() + wait)
    }
}

/// An answer that may carry a grant, which stands once the answer is on its way.
fn granted<T>(
    result: Result<(T, Option<Grant>), Failure>,
    limit: TimeLimit,
) -> Result<Response<T>, Status> {
    let mut response = limit.answer(result)?;
    let (_, grant) = response.get_mut();
    if let Some(unheard) = grant.take().map(Unheard::new) {
        response.extensions_mut().insert(unheard);
    }
    Ok(response.map(|(message, _)| message))
}

/// No call waits for longer.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// When a call has to stop waiting because the service, or its connection, is about to end.
fn drain<T>(request: &Request<T>) -> CancellationToken {
    let draining = request.extensions().get::<Draining>();
    draining.map_or_else(CancellationToken::new, |draining| draining.0.clone())
}

type NoStream<T> = tokio_stream::Empty<Result<T, Status>>;

#[tonic::async_trait]
impl CoordinationService for Coordination {
    async fn claim(
        &self,
        request: Request<ClaimRequest>,
    ) -> Result<Response<ClaimResponse>, Status> {
        let (wait, drain) = (request.get_ref().wait, drain(&request));
        let limit = self.time_limit_with_wait(&request, wait);
        let claim = convert::claims::claim(request.into_inner(), self.0.limits());
        let result = async { self.0.claim(claim?, limit.with(drain)).await };
        let result = result
            .await
            .map(|(outcome, grant)| (convert::claims::claim_response(outcome), grant));
        granted(result, limit)
    }

    async fn renew_claim(
        &self,
        request: Request<RenewClaimRequest>,
    ) -> Result<Response<RenewClaimResponse>, Status> {
        let limit = self.time_limit(&request);
        let renewal = convert::claims::renew_claim(request.into_inner());
        let result = async { self.0.renew_claim(renewal?, limit.at).await };
        limit.answer(result.await.map(convert::claims::renew_response))
    }

    async fn complete(
        &self,
        request: Request<CompleteRequest>,
    ) -> Result<Response<CompleteResponse>, Status> {
        let limit = self.time_limit(&request);
        let completion = convert::claims::complete(request.into_inner(), self.0.limits());
        let result = async { self.0.complete(completion?, limit.at).await };
        limit.answer(result.await.map(convert::claims::complete_response))
    }

    async fn abandon(
        &self,
        request: Request<AbandonRequest>,
    ) -> Result<Response<AbandonResponse>, Status> {
        let limit = self.time_limit(&request);
        let abandonment = convert::claims::abandon(request.into_inner());
        let result = async { self.0.abandon(abandonment?, limit.at).await };
        limit.answer(result.await.map(convert::claims::abandon_response))
    }

    async fn acquire_lock(
        &self,
        request: Request<AcquireLockRequest>,
    ) -> Result<Response<AcquireLockResponse>, Status> {
        let (wait, drain) = (request.get_ref().wait, drain(&request));
        let limit = self.time_limit_with_wait(&request, wait);
        let acquisition = convert::locks::acquire(request.into_inner());
        let result = async { self.0.acquire_lock(acquisition?, limit.with(drain)).await };
        let result = result
            .await
            .map(|(outcome, grant)| (convert::locks::acquire_response(outcome), grant));
        granted(result, limit)
    }

    async fn renew_lock(
        &self,
        request: Request<RenewLockRequest>,
    ) -> Result<Response<RenewLockResponse>, Status> {
        let limit = self.time_limit(&request);
        let renewal = convert::locks::renew(request.into_inner());
        let result = async { self.0.renew_lock(renewal?, limit.at).await };
        limit.answer(result.await.map(convert::locks::renew_response))
    }

    async fn release_lock(
        &self,
        request: Request<ReleaseLockRequest>,
    ) -> Result<Response<ReleaseLockResponse>, Status> {
        let limit = self.time_limit(&request);
        let release = convert::locks::release(request.into_inner());
        let result = async { self.0.release_lock(release?, limit.at).await };
        limit.answer(result.await.map(convert::locks::release_response))
    }

    type KeepAliveStream = keep_alive::Told;

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let drain = drain(&request);
        let told = keep_alive::serve(&self.0, request.into_inner(), drain);
        let mut response = Response::new(told);
        response.extensions_mut().insert(EndsItself);
        Ok(response)
    }

    type PipelineStream = NoStream<PipelineResponse>;

    async fn pipeline(
        &self,
        _: Request<Streaming<PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        Err(Status::unimplemented(
            "Pipeline is not served yet: use the unary calls",
        ))
    }
}
