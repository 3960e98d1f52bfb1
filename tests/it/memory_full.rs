//! A Redis that is out of memory: what was refused meanwhile was not done, and what was given up meanwhile is.

use crate::support::answers::{abandoned, assert_store_unavailable, claimed, completed, in_flight};
use crate::support::eventually;
use crate::support::locks::{Answer, Locks};
use crate::support::metrics::Scrape;
use crate::support::requests::{abandon, acquire, claim, complete, millis, release, renew_lock};
use claimlock::rpc::proto::{AbandonEffect, ClaimRequest, LossReason};
use tonic::Code;

async fn set_memory_limit(locks: &Locks, bytes: u32) {
    let mut connection = locks.redis.connect().await;
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg(bytes)
        .exec_async(&mut connection)
        .await
        .expect("the limit can be set");
}

fn is_unavailable(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(told) if told.code == Code::Unavailable && told.reason == "STORE_UNAVAILABLE")
}

#[tokio::test]
async fn a_lock_released_while_memory_is_full_is_free_and_none_is_granted_until_there_is_some() {
    let locks = Locks::start().await;
    for resource in ["released", "forced", "kept"] {
        locks.acquire(acquire(resource, "a")).await.acquired();
    }
    set_memory_limit(&locks, 1).await;

    let before = locks.redis.dump().await;
    let acquisition = locks.acquire(acquire("new", "b")).await;
    assert!(is_unavailable(&acquisition), "{acquisition:?}");
    let renewal = locks.renew(renew_lock("kept", "a")).await;
    assert!(is_unavailable(&renewal), "{renewal:?}");
    // What writes nothing is answered.
    locks.acquire(acquire("kept", "b")).await.held();
    assert_eq!(locks.holders("kept").await, ["holder a"]);
    assert_eq!(locks.redis.dump().await, before);

    for _ in 0..2 {
        locks.release(release("released", "a")).await.released();
    }
    assert_eq!(locks.get("released").await, None);
    let unseen = locks.release(release("released", "b")).await;
    assert_eq!(unseen, Answer::Lost(LossReason::NotFound));
    assert_eq!(locks.force_release("forced", 0).await, 1);
    assert_eq!(locks.get("forced").await, None);

    set_memory_limit(&locks, 0).await;
    locks.acquire(acquire("new", "b")).await.acquired();
    locks.renew(renew_lock("kept", "a")).await.renewed();
    let spent = locks.acquire(acquire("released", "b")).await;
    assert_eq!(spent, Answer::Lost(LossReason::Released));
    locks.finish().await;
}

#[tokio::test]
async fn a_claim_abandoned_while_memory_is_full_is_the_next_ones_and_none_is_granted_meanwhile() {
    let locks = Locks::start().await;
    let mut calls = locks.service.coordination().await;
    for key in ["abandoned", "kept"] {
        claimed(calls.claim(claim(key, "a")).await);
    }
    set_memory_limit(&locks, 1).await;

    let before = locks.redis.dump().await;
    let refused = calls.claim(claim("new", "a")).await;
    assert_store_unavailable(&refused.expect_err("no memory"));
    let refused = calls.complete(complete("kept", "a", b"paid")).await;
    assert_store_unavailable(&refused.expect_err("no memory"));
    assert_eq!(locks.redis.dump().await, before);
    for _ in 0..2 {
        abandoned(
            calls
                .abandon(abandon("abandoned", "a", AbandonEffect::None))
                .await,
        );
    }

    set_memory_limit(&locks, 0).await;
    completed(calls.complete(complete("kept", "a", b"paid")).await);
    let next = claimed(calls.claim(claim("abandoned", "b")).await);
    assert_eq!((next.attempt, next.already_held), (2, false));
    locks.finish().await;
}

#[tokio::test]
async fn a_claim_in_flight_is_waited_for_while_memory_is_full() {
    let locks = Locks::start().await;
    let mut calls = locks.service.coordination().await;
    claimed(calls.claim(claim("key", "a")).await);
    set_memory_limit(&locks, 1).await;
    let waiting = |name, wait| ClaimRequest {
        wait: millis(wait),
        ..claim("key", name)
    };
    in_flight(calls.claim(waiting("b", 100)).await);
    let mut client = calls.clone();
    let patient = waiting("c", 60_000);
    let answer = tokio::spawn(async move { client.claim(patient).await });
    eventually("it to wait", async || {
        let waiting = Scrape::of(&locks.service).await.value("claimlock_waiters");
        (waiting == 1.0).then_some(())
    })
    .await;
    set_memory_limit(&locks, 0).await;
    abandoned(
        calls
            .abandon(abandon("key", "a", AbandonEffect::None))
            .await,
    );
    claimed(answer.await.expect("no panic"));
    locks.finish().await;
}
