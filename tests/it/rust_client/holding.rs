//! What a claim or lock that is held saves, stores and hears.

use super::{Desk, work};
use crate::support::blackhole::Mode;
use crate::support::eventually;
use claimlock_client::proto::ClaimState;
use claimlock_client::{
    Acquisition, Attempt, Claim, Client, IdempotentError, Lock, Request, Response,
};
use std::convert::Infallible;
use std::time::Duration;

async fn begun(client: &Client, request: &Request) -> Claim {
    match client.begin(request).await.expect("the service answers") {
        Attempt::Claimed(claim) => claim,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_next_attempt_finds_the_last_checkpoint_that_was_saved() {
    let desk = Desk::start().await;
    let request = Request::new("order-1");
    let claim = begun(&desk.direct, &request).await;
    for page in ["page 1", "page 2", "page 3"] {
        let saved = claim.save_checkpoint(page.into()).await;
        assert_eq!(saved.expect("the service answers"), Ok(()));
    }
    drop(claim);
    desk.direct.finish(Duration::from_secs(20)).await;
    let next = begun(&desk.direct, &request).await;
    assert_eq!(next.checkpoint(), b"page 3");
    assert!(next.taken_over());
}

#[tokio::test]
async fn a_result_is_stored_although_redis_forgot_the_claim() {
    let desk = Desk::start().await;
    let mut claim = begun(&desk.direct, &Request::new("order-1")).await;
    let mut connection = desk.redis.connect().await;
    let emptied = redis::cmd("FLUSHALL").exec_async(&mut connection).await;
    emptied.expect("Redis answers");
    let stored = claim.complete(Some(Response::new(200, "done")), None).await;
    assert_eq!(stored.expect("the service answers"), Ok(()));
    let answer = desk
        .direct
        .idempotent(&Request::new("order-1"), work)
        .await
        .expect("it is done");
    let replayed = claimlock_client::Idempotency::Done {
        response: Some(Response::new(200, "done")),
        replayed: true,
    };
    assert_eq!(answer, replayed);
}

#[tokio::test]
async fn a_result_that_the_service_refuses_leaves_the_claim_standing() {
    let desk = Desk::start().await;
    let request = Request::new("order-1");
    let answer = desk.direct.idempotent(&request, async |_| {
        let no_status = 1_000_000;
        Ok::<_, claimlock_client::WorkError<Infallible>>(Response::new(no_status, "done"))
    });
    match answer.await {
        Err(IdempotentError::NotStored { response, .. }) => assert_eq!(response.body, b"done"),
        other => panic!("{other:?}"),
    }
    desk.direct.finish(Duration::from_secs(20)).await;
    let info = desk.claim_info("order-1").await.expect("it is held");
    assert_eq!(info.state(), ClaimState::InFlight);
}

#[tokio::test]
async fn a_lock_whose_grant_was_heard_late_is_known_to_be_lost_when_another_can_have_it() {
    let desk = Desk::start().await;
    desk.proxy.set(Mode::HoldReplies).await;
    // Asked again when it is due, what it gets to hear is late again.
    let lease = Duration::from_secs(2);
    let lock = Lock::new("disk")
        .lease(lease)
        .lock_delay(Duration::from_millis(300));
    let (held, ()) = tokio::join!(desk.client.acquire(&lock), async {
        eventually("the lock to be granted", async || {
            desk.lock_info("disk").await.map(|_| ())
        })
        .await;
        tokio::time::sleep(lease * 3 / 4).await;
        desk.proxy.set(Mode::Pass).await;
    });
    let Ok(Acquisition::Acquired(held)) = held else {
        panic!("{held:?}");
    };
    desk.proxy.set(Mode::BlackHole).await;
    eventually("another to have the lock", async || {
        let other = desk.direct.acquire(&Lock::new("disk")).await;
        matches!(other, Ok(Acquisition::Acquired(_))).then_some(())
    })
    .await;
    assert!(held.loss().is_some(), "two have the lock");
}
