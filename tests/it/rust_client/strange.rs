//! The Rust client on a service that answers what ours does not: the next version's, or one that is broken.

use super::fake::{self, Counts, Ways};
use crate::support::eventually;
use claimlock::rpc::proto::{self, claim_response};
use claimlock_client::{Attempt, Client, FailureKind, Request};
use prost_types::Duration as Wire;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

async fn start(
    to_claims: fn(usize) -> Result<Option<claim_response::Outcome>, Status>,
) -> (Client, Arc<Counts>) {
    let ways = Ways {
        to_claims,
        ..Ways::default()
    };
    fake::start(ways).await
}

async fn is_given_back(counts: &Counts) {
    eventually("the claim to be given back", async || {
        (counts.abandoned() > 0).then_some(())
    })
    .await;
}

fn granted(lease_left: Wire) -> Option<claim_response::Outcome> {
    Some(claim_response::Outcome::Claimed(proto::Claimed {
        lease_left: Some(lease_left),
        ..Default::default()
    }))
}

#[tokio::test]
async fn an_outcome_that_is_not_known_is_no_grant_and_is_given_back() {
    let (client, counts) = start(|_| Ok(None)).await;
    let failure = client.begin(&Request::new("order-1")).await;
    let failure = failure.expect_err("it is no grant");
    assert_eq!(failure.kind, FailureKind::Defect);
    assert!(!failure.nothing_happened());
    is_given_back(&counts).await;
}

#[tokio::test]
async fn a_refusal_of_a_repeat_says_nothing_of_what_became_of_the_first_try() {
    let (client, counts) = start(|number| match number {
        0 => Err(Status::unavailable("the connection broke")),
        _ => Err(Status::resource_exhausted("too many calls")),
    })
    .await;
    let failure = client.begin(&Request::new("order-1")).await;
    let failure = failure.expect_err("it is refused");
    assert_eq!(failure.kind, FailureKind::Quota);
    assert!(!failure.nothing_happened());
    is_given_back(&counts).await;
}

#[tokio::test]
async fn a_response_that_was_lost_is_told_as_such_and_not_asked_for_again() {
    let (client, _) = start(|number| {
        assert_eq!(number, 0, "it is asked for again");
        Err(Status::with_error_details(
            Code::Unavailable,
            "the response is lost",
            ErrorDetails::with_error_info("RESPONSE_LOST", "claimlock", []),
        ))
    })
    .await;
    let failure = client.begin(&Request::new("order-1")).await;
    let failure = failure.expect_err("there is nothing to replay");
    assert_eq!(failure.kind, FailureKind::ResponseLost);
}

#[tokio::test]
async fn a_time_that_no_clock_can_tell_is_taken_for_a_long_one() {
    let longest = Wire {
        seconds: i64::MAX,
        nanos: 999_999_999,
    };
    let (client, _) = start(|number| match number {
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
    let failure = client.begin(&Request::new("order-1")).await;
    let failure = failure.expect_err("it is not worth waiting for");
    assert_eq!(failure.kind, FailureKind::Unavailable);

    let patient = client.with_call_timeout(Duration::MAX);
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
