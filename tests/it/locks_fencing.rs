//! Fencing tokens grow over all acquisitions of a resource, whatever becomes of Redis.

use crate::support::answers::{acquired, released};
use crate::support::eventually;
use crate::support::locks::{Answer, Locks};
use crate::support::redis::RedisOptions;
use crate::support::requests::{acquire, millis, release, renew_lock, share};
use crate::support::service::Service;
use claimlock::config::Settings;
use claimlock::rpc::proto::{AcquireLockRequest, LossReason};

/// The last token seen; asserts that the next is higher, and one that fits a double.
struct Fences(i64);

impl Fences {
    #[track_caller]
    fn next(&mut self, fence: i64) {
        assert!(fence > self.0, "{fence} after {}", self.0);
        assert!(fence < 1 << 53, "{fence}");
        self.0 = fence;
    }
}

async fn granted(locks: &Locks, request: AcquireLockRequest) -> i64 {
    locks.acquire(request).await.acquired().fencing_token
}

#[tokio::test]
async fn fencing_tokens_grow_whichever_way_the_last_grant_ended() {
    let locks = Locks::start().await;
    let mut fences = Fences(0);
    for round in 0..3 {
        let name = |of: &str| format!("{of}-{round}");
        fences.next(granted(&locks, acquire("r", &name("released"))).await);
        locks
            .release(release("r", &name("released")))
            .await
            .released();

        let short = AcquireLockRequest {
            lease: millis(30),
            ..acquire("r", &name("left"))
        };
        fences.next(granted(&locks, short).await);
        locks.leases_over("r").await;

        fences.next(granted(&locks, acquire("r", &name("forced"))).await);
        assert_eq!(locks.force_release("r", 0).await, 1);

        for reader in ["one", "two", "three"] {
            fences.next(granted(&locks, share("r", &name(reader), 0)).await);
        }
        assert_eq!(locks.force_release("r", 0).await, 3);
    }
    locks.finish().await;
}

#[tokio::test]
async fn fencing_tokens_grow_after_the_lock_was_forgotten() {
    let locks = Locks::remembering(30).await;
    let mut fences = Fences(0);
    for name in ["a", "b"] {
        fences.next(granted(&locks, acquire("r", name)).await);
        locks.release(release("r", name)).await.released();
        eventually("the record to go", async || {
            locks.redis.dump().await.is_empty().then_some(())
        })
        .await;
    }
    locks.finish().await;
}

#[tokio::test]
async fn whoever_gets_a_lock_that_redis_lost_has_a_higher_fencing_token_than_who_still_works() {
    let locks = Locks::start().await;
    let mut fences = Fences(0);
    fences.next(granted(&locks, acquire("r", "a")).await);
    let mut connection = locks.redis.connect().await;
    let flushed = redis::cmd("FLUSHALL").exec_async(&mut connection).await;
    flushed.expect("FLUSHALL is answered");
    fences.next(granted(&locks, acquire("r", "b")).await);
    let told = locks.renew(renew_lock("r", "a")).await;
    assert_eq!(told, Answer::Lost(LossReason::NotFound));
    locks.finish().await;
}

#[tokio::test]
async fn fencing_tokens_grow_after_the_clock_of_redis_was_set_back() {
    let options = RedisOptions {
        movable_clock: true,
        ..RedisOptions::default()
    };
    let locks = Locks::with(options, Settings::default()).await;
    let mut fences = Fences(0);
    fences.next(granted(&locks, acquire("r", "a")).await);
    locks.redis.set_clock_offset(-3600.0);
    // A new service has seen nothing; here it is the record that counts.
    let other = Service::start(&locks.redis).await;
    let mut calls = other.coordination().await;
    released(calls.release_lock(release("r", "a")).await);
    let next = acquired(calls.acquire_lock(acquire("r", "b")).await);
    fences.next(next.fencing_token);
    other.stop().await.expect("the service drains");
    locks.finish().await;
}
