//! Tokens that callers bring, messages that nothing carries, and locks that were gone when the work was done.

use super::Desk;
use crate::support::blackhole::Mode;
use claimlock_client::proto::{
    AcquireLockRequest, ClaimRequest, ClaimState, CompleteRequest, ForceReleaseLockRequest,
};
use claimlock_client::{
    Attempt, FailureKind, Idempotency, IdempotentError, Lock, LockError, LossReason, Request,
    WorkError,
};
use std::time::Duration;

const TOKEN: &str = "worker-1-attempt-1";

#[tokio::test]
async fn asking_again_with_a_token_of_ones_own_does_not_cost_what_it_holds() {
    let desk = Desk::start().await;
    let claim = ClaimRequest {
        key: "order-1".to_owned(),
        claim_token: TOKEN.to_owned(),
        ..Default::default()
    };
    let lock = AcquireLockRequest {
        resource: "disk".to_owned(),
        lock_token: TOKEN.to_owned(),
        ..Default::default()
    };
    desk.direct.claim(claim).await.expect("it is granted");
    desk.direct.acquire_lock(lock).await.expect("it is granted");

    desk.proxy.set(Mode::SwallowReplies).await;
    let hasty = desk.client.with_call_timeout(Duration::from_millis(300));
    let again = hasty.begin(&Request::new("order-1").token(TOKEN)).await;
    assert!(again.is_err(), "{again:?}");
    let again = hasty.acquire(&Lock::new("disk").token(TOKEN)).await;
    assert!(again.is_err(), "{again:?}");
    desk.proxy.set(Mode::Pass).await;
    hasty.finish(Duration::from_secs(20)).await;

    let claim = desk.claim_info("order-1").await.expect("it is held");
    assert_eq!(claim.state(), ClaimState::InFlight);
    let lock = desk.lock_info("disk").await.expect("it is held");
    assert_eq!(lock.holders.len(), 1);
}

#[tokio::test]
async fn work_that_was_done_when_its_lock_was_gone_has_no_result() {
    let desk = Desk::start().await;
    let lock = Lock::new("disk");
    let done = desk.direct.with_lock(&lock, async |_| {
        let request = ForceReleaseLockRequest {
            resource: "disk".to_owned(),
            reason: "a test".to_owned(),
            ..Default::default()
        };
        desk.direct.force_release_lock(request).await
    });
    match done.await {
        Err(LockError::Lost(loss)) => assert_eq!(loss.reason, LossReason::Forced),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_message_that_is_too_large_for_any_call_is_told_at_once_and_as_such() {
    let desk = Desk::start().await;
    let body = vec![0; 90 * 1024 * 1024];
    let response = claimlock_client::Response::new(200, body);
    let complete = desk.direct.complete(CompleteRequest {
        key: "order-1".to_owned(),
        claim_token: TOKEN.to_owned(),
        response: Some(response.into()),
        ..Default::default()
    });
    let failure = complete.await.expect_err("it cannot be sent");
    assert_eq!(
        (failure.kind, failure.reason.as_str()),
        (FailureKind::Invalid, "TOO_LARGE")
    );
    assert!(failure.nothing_happened());
    let attempt = desk.direct.begin(&Request::new("order-1")).await;
    assert!(matches!(attempt, Ok(Attempt::Claimed(_))), "{attempt:?}");
}

#[tokio::test]
async fn a_token_that_is_spent_is_told_as_such_and_not_as_work_that_goes_on() {
    let desk = Desk::start().await;
    let request = Request::new("order-1").token(TOKEN);
    let failed = desk
        .client
        .idempotent(&request, async |_| Err(WorkError::no_effect("declined")))
        .await;
    assert!(
        matches!(failed, Err(IdempotentError::Work(_))),
        "{failed:?}"
    );
    let again = desk
        .client
        .idempotent(&request, async |_| Err(WorkError::no_effect("declined")))
        .await;
    match again {
        Ok(Idempotency::Lost(loss)) => assert_eq!(loss.reason, LossReason::Released),
        other => panic!("{other:?}"),
    }
}
