//! The Rust client on a service that answers what ours does not: the next version's, or one that is broken.

use crate::support::eventually;
use claimlock::rpc::proto::coordination_service_server::{
    CoordinationService, CoordinationServiceServer,
};
use claimlock::rpc::proto::{self, claim_response};
use claimlock_client::{Attempt, Client, FailureKind, Request};
use futures_util::stream::Empty;
use prost_types::Duration as Wire;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt};

type Answer<T> = Result<Response<T>, Status>;

/// What it answers to a claim, by its number.
type ToClaims = fn(usize) -> Result<Option<claim_response::Outcome>, Status>;

struct Strange {
    to_claims: ToClaims,
    claims: AtomicUsize,
    abandoned: Arc<AtomicUsize>,
}

/// A running service; ends with the test's runtime.
struct Desk {
    client: Client,
    abandoned: Arc<AtomicUsize>,
}

impl Desk {
    async fn start(to_claims: ToClaims) -> Self {
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = listener.await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let abandoned = Arc::new(AtomicUsize::new(0));
        let strange = Strange {
            to_claims,
            claims: AtomicUsize::new(0),
            abandoned: abandoned.clone(),
        };
        let server = tonic::transport::Server::builder()
            .add_service(CoordinationServiceServer::new(strange))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        Self {
            client: Client::connect_lazily(format!("http://{address}")).expect("an endpoint"),
            abandoned,
        }
    }

    async fn is_given_back(&self) {
        eventually("the claim to be given back", async || {
            (self.abandoned.load(Ordering::Relaxed) > 0).then_some(())
        })
        .await;
    }
}

fn granted(lease_left: Wire) -> Option<claim_response::Outcome> {
    Some(claim_response::Outcome::Claimed(proto::Claimed {
        lease_left: Some(lease_left),
        ..Default::default()
    }))
}

#[tokio::test]
async fn an_outcome_that_is_not_known_is_no_grant_and_is_given_back() {
    let desk = Desk::start(|_| Ok(None)).await;
    let failure = desk.client.begin(&Request::new("order-1")).await;
    let failure = failure.expect_err("it is no grant");
    assert_eq!(failure.kind, FailureKind::Defect);
    assert!(!failure.nothing_happened());
    desk.is_given_back().await;
}

#[tokio::test]
async fn a_refusal_of_a_repeat_says_nothing_of_what_became_of_the_first_try() {
    let desk = Desk::start(|number| match number {
        0 => Err(Status::unavailable("the connection broke")),
        _ => Err(Status::resource_exhausted("too many calls")),
    })
    .await;
    let failure = desk.client.begin(&Request::new("order-1")).await;
    let failure = failure.expect_err("it is refused");
    assert_eq!(failure.kind, FailureKind::Quota);
    assert!(!failure.nothing_happened());
    desk.is_given_back().await;
}

#[tokio::test]
async fn a_response_that_was_lost_is_told_as_such_and_not_asked_for_again() {
    let desk = Desk::start(|number| {
        assert_eq!(number, 0, "it is asked for again");
        Err(Status::with_error_details(
            Code::Unavailable,
            "the response is lost",
            ErrorDetails::with_error_info("RESPONSE_LOST", "claimlock", []),
        ))
    })
    .await;
    let failure = desk.client.begin(&Request::new("order-1")).await;
    let failure = failure.expect_err("there is nothing to replay");
    assert_eq!(failure.kind, FailureKind::ResponseLost);
}

#[tokio::test]
async fn a_time_that_no_clock_can_tell_is_taken_for_a_long_one() {
    let longest = Wire {
        seconds: i64::MAX,
        nanos: 999_999_999,
    };
    let desk = Desk::start(|number| match number {
        0 => Err(Status::with_error_details(
            Code::Unavailable,
            "come back never",
            ErrorDetails::with_retry_info(Some(Duration::MAX)),
        )),
        1 => Ok(Some(claim_response::Outcome::InFlight(proto::InFlight {
            retry_after: Some(Wire {
                seconds: -1,
                nanos: -1,
            }),
            ..Default::default()
        }))),
        _ => Ok(granted(Wire {
            seconds: i64::MAX,
            nanos: 999_999_999,
        })),
    })
    .await;
    let failure = desk.client.begin(&Request::new("order-1")).await;
    let failure = failure.expect_err("it is not worth waiting for");
    assert_eq!(failure.kind, FailureKind::Unavailable);

    let patient = desk.client.with_call_timeout(Duration::MAX);
    let request = Request::new("order-1")
        .wait(Duration::MAX)
        .lease(Duration::MAX);
    let attempt = patient.begin(&request).await;
    assert!(matches!(attempt, Ok(Attempt::Claimed(_))), "{attempt:?}");
    let renewed = patient.acquire_lock(claimlock_client::proto::AcquireLockRequest {
        wait: Some(longest),
        ..Default::default()
    });
    let failure = renewed.await.expect_err("it has no locks");
    assert_eq!(failure.kind, FailureKind::Unimplemented);
}

fn none<T>() -> Answer<T> {
    Err(Status::unimplemented("it has none"))
}

#[tonic::async_trait]
impl CoordinationService for Strange {
    async fn claim(&self, _: tonic::Request<proto::ClaimRequest>) -> Answer<proto::ClaimResponse> {
        let number = self.claims.fetch_add(1, Ordering::Relaxed);
        let outcome = (self.to_claims)(number)?;
        Ok(Response::new(proto::ClaimResponse { outcome }))
    }

    async fn renew_claim(
        &self,
        _: tonic::Request<proto::RenewClaimRequest>,
    ) -> Answer<proto::RenewClaimResponse> {
        none()
    }

    async fn complete(
        &self,
        _: tonic::Request<proto::CompleteRequest>,
    ) -> Answer<proto::CompleteResponse> {
        none()
    }

    async fn abandon(
        &self,
        _: tonic::Request<proto::AbandonRequest>,
    ) -> Answer<proto::AbandonResponse> {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
        none()
    }

    async fn acquire_lock(
        &self,
        _: tonic::Request<proto::AcquireLockRequest>,
    ) -> Answer<proto::AcquireLockResponse> {
        none()
    }

    async fn renew_lock(
        &self,
        _: tonic::Request<proto::RenewLockRequest>,
    ) -> Answer<proto::RenewLockResponse> {
        none()
    }

    async fn release_lock(
        &self,
        _: tonic::Request<proto::ReleaseLockRequest>,
    ) -> Answer<proto::ReleaseLockResponse> {
        none()
    }

    type KeepAliveStream = Empty<Result<proto::KeepAliveResponse, Status>>;

    async fn keep_alive(
        &self,
        _: tonic::Request<Streaming<proto::KeepAliveRequest>>,
    ) -> Answer<Self::KeepAliveStream> {
        none()
    }

    type PipelineStream = Empty<Result<proto::PipelineResponse, Status>>;

    async fn pipeline(
        &self,
        _: tonic::Request<Streaming<proto::PipelineRequest>>,
    ) -> Answer<Self::PipelineStream> {
        none()
    }
}
