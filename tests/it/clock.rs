//! A Redis whose clock jumps, or that loses its data: fencing tokens grow, and nothing is granted late.

use crate::support::answers::{abandoned, acquired, assert_store_unavailable, claimed, released};
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::requests::{abandon, acquire, claim, release};
use crate::support::service::{Coordination, Service, store_timeout};
use crate::support::{BOUND, eventually};
use claimlock::rpc::proto::{AbandonEffect, GetClaimRequest, GetLockRequest};
use futures_util::future::join_all;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const HOUR: f64 = 3600.0;

async fn redis_with_a_movable_clock() -> RedisServer {
    RedisServer::with(RedisOptions {
        movable_clock: true,
        ..RedisOptions::default()
    })
    .await
}

async fn flush_all(redis: &RedisServer) {
    redis::cmd("FLUSHALL")
        .exec_async(&mut redis.connect().await)
        .await
        .expect("FLUSHALL is answered");
}

/// Waits until the service has looked at Redis's clock as it is now.
async fn has_looked(redis: &RedisServer) {
    // The first of them was answered before the second was sent.
    let looks = redis.calls("time").await + 2;
    eventually("the service to look at the clock", async || {
        (redis.calls("time").await >= looks).then_some(())
    })
    .await;
}

/// The newest grants of one key and one lock.
struct Fences {
    client: Coordination,
    grants: u32,
    of_key: i64,
    of_lock: i64,
}

impl Fences {
    fn new(client: Coordination) -> Self {
        Self {
            client,
            grants: 0,
            of_key: 0,
            of_lock: 0,
        }
    }

    /// Grants both once more and gives both up; returns the two fencing tokens, which are the highest so far.
    async fn grow(&mut self, when: &str) -> (i64, i64) {
        self.grants += 1;
        let name = self.grants.to_string();
        let of_key = claimed(self.client.claim(claim("key", &name)).await).fencing_token;
        let of_lock =
            acquired(self.client.acquire_lock(acquire("lock", &name)).await).fencing_token;
        abandoned(
            self.client
                .abandon(abandon("key", &name, AbandonEffect::None))
                .await,
        );
        released(self.client.release_lock(release("lock", &name)).await);
        assert!(
            of_key > self.of_key,
            "of the key {when}: {of_key} after {}",
            self.of_key
        );
        assert!(
            of_lock > self.of_lock,
            "of the lock {when}: {of_lock} after {}",
            self.of_lock
        );
        (self.of_key, self.of_lock) = (of_key, of_lock);
        (of_key, of_lock)
    }
}

#[tokio::test]
async fn fencing_tokens_grow_through_whatever_happens_to_redis() {
    let mut redis = redis_with_a_movable_clock().await;
    let service = Service::with(&redis, store_timeout(BOUND)).await;
    let mut fences = Fences::new(service.coordination().await);
    let (before, _) = fences.grow("at first").await;

    flush_all(&redis).await;
    fences.grow("after a flush").await;

    redis.restart().await;
    fences.grow("after a restart without data").await;

    redis.set_clock_offset(-HOUR);
    fences.grow("with the clock set back").await;
    fences.grow("with the clock still set back").await;

    flush_all(&redis).await;
    fences.grow("after a flush with the clock set back").await;

    redis.restart().await;
    fences
        .grow("after a restart without data, and back at the right time")
        .await;

    redis.set_clock_offset(HOUR);
    let (ahead, _) = fences.grow("with the clock set forward").await;
    assert!(
        ahead - before > 3_500_000_000,
        "microseconds on Redis's clock"
    );

    redis.set_clock_offset(0.0);
    flush_all(&redis).await;
    let (of_key, of_lock) = fences
        .grow("after a flush, with the clock back from the future")
        .await;
    assert!(of_key > ahead && of_lock > ahead);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_name_that_was_never_granted_gets_a_fencing_token_that_no_other_name_had() {
    let redis = redis_with_a_movable_clock().await;
    let service = Service::with(&redis, store_timeout(BOUND)).await;
    let mut client = service.coordination().await;
    let first = claimed(client.claim(claim("key-0", "a")).await).fencing_token;
    redis.set_clock_offset(-HOUR);
    // Higher than any that this service has seen, whatever the clock says.
    let mut last = first;
    for number in 1..4 {
        let of_key =
            claimed(client.claim(claim(&format!("key-{number}"), "a")).await).fencing_token;
        let lock = format!("lock-{number}");
        let of_lock = acquired(client.acquire_lock(acquire(&lock, "a")).await).fencing_token;
        assert!(
            last < of_key && of_key < of_lock,
            "{last}, {of_key}, {of_lock}"
        );
        last = of_lock;
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_call_that_finds_the_clock_set_forward_is_repeated_once_and_succeeds() {
    let redis = redis_with_a_movable_clock().await;
    let service = Service::with(&redis, store_timeout(BOUND)).await;
    let mut client = service.coordination().await;
    let mut repeated = 0;
    for jump in 1..=8_i32 {
        let before = redis.calls("evalsha").await;
        redis.set_clock_offset(f64::from(jump) * HOUR);
        claimed(client.claim(claim(&format!("key-{jump}"), "a")).await);
        let calls = redis.calls("evalsha").await - before;
        // One where the service happened to look at the clock just before.
        assert!((1..=2).contains(&calls), "{calls}");
        repeated += calls - 1;
    }
    assert!(repeated > 0);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_while_the_clock_jumps_forward_again_and_again() {
    let redis = redis_with_a_movable_clock().await;
    let service = Service::with(&redis, store_timeout(BOUND)).await;
    let done = AtomicBool::new(false);
    let jumping = async {
        for jump in 1..=25_i32 {
            redis.set_clock_offset(f64::from(jump) * HOUR);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    let mut clients = Vec::new();
    for _ in 0..30 {
        clients.push(service.coordination().await);
    }
    let calling = join_all(
        clients
            .into_iter()
            .enumerate()
            .map(async |(number, mut client)| {
                let mut calls = 0;
                while !done.load(Ordering::Relaxed) {
                    calls += 1;
                    claimed(
                        client
                            .claim(claim(&format!("key-{number}-{calls}"), "a"))
                            .await,
                    );
                }
                calls
            }),
    );
    let ((), calls) = tokio::join!(jumping, calling);
    eprintln!("{} calls went on", calls.into_iter().sum::<i32>());
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_stopped_redis_grants_nothing_late_after_its_clock_was_set_back() {
    const CALLS: usize = 20;
    let redis = redis_with_a_movable_clock().await;
    let service = Service::with(&redis, store_timeout(Duration::from_millis(500))).await;
    let client = service.coordination().await;
    let mut admin = service.admin().await;

    for (round, offset) in [-HOUR, -24.0 * HOUR, -24.1 * HOUR].into_iter().enumerate() {
        redis.set_clock_offset(offset);
        has_looked(&redis).await;
        let sent = redis.calls("evalsha").await + u64::try_from(CALLS).expect("few");
        redis.stop_process();
        join_all((0..CALLS).map(async |number| {
            let mut client = client.clone();
            let name = format!("{round}-{number}");
            let status = if number.is_multiple_of(2) {
                client.claim(claim(&name, "a")).await.map(drop)
            } else {
                client.acquire_lock(acquire(&name, "a")).await.map(drop)
            };
            assert_store_unavailable(&status.expect_err("nobody answers"));
        }))
        .await;
        redis.resume_process();
        eventually("redis to read what was sent to it", async || {
            (redis.calls("evalsha").await >= sent).then_some(())
        })
        .await;

        service.is_ready().await;
        for number in 0..CALLS {
            let name = format!("{round}-{number}");
            let key = GetClaimRequest {
                key: name.clone(),
                ..Default::default()
            };
            let found = admin.get_claim(key).await.expect("an answer");
            assert_eq!(found.into_inner().claim, None);
            let lock = GetLockRequest {
                resource: name,
                ..Default::default()
            };
            let found = admin.get_lock(lock).await.expect("an answer");
            assert_eq!(found.into_inner().lock, None);
        }
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}
