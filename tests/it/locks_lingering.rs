//! What keeps a lock taken with no holder: hold_at_least after a release, lock_delay after a lease.
//!
//! How long that is is measured from below alone: a grant that came too early is a fault, a late one a slow machine.

use crate::support::locks::{Answer, Locks, assert_left};
use crate::support::redis::RedisOptions;
use crate::support::requests::{acquire, millis, release, renew_lock, told_millis};
use claimlock::config::Settings;
use claimlock::rpc::proto::{AcquireLockRequest, LossReason};
use std::time::{Duration, Instant};

/// Held by "a", in milliseconds.
fn held(lease: u64, hold_at_least: u64, lock_delay: u64) -> AcquireLockRequest {
    AcquireLockRequest {
        lease: millis(lease),
        hold_at_least: millis(hold_at_least),
        lock_delay: millis(lock_delay),
        ..acquire("r", "a")
    }
}

#[tokio::test]
async fn a_lock_released_sooner_than_hold_at_least_stays_taken_that_long() {
    let locks = Locks::start().await;
    let asked = Instant::now();
    let first = locks.acquire(held(100_000, 400, 0)).await.acquired();

    let mut free_in = 400;
    for _ in 0..3 {
        // A repeat is told what is left by then.
        let released = locks.release(release("r", "a")).await.released();
        assert!(told_millis(released.free_in) <= free_in);
        free_in = told_millis(released.free_in);
    }
    let (next, heard) = locks.acquire_at_last(acquire("r", "b")).await;
    assert!(heard - asked >= Duration::from_millis(400));
    assert!(next.fencing_token > first.fencing_token && !next.already_held);

    let repeated = locks.release(release("r", "a")).await.released();
    assert_eq!(told_millis(repeated.free_in), 0);
    assert_eq!(locks.holders("r").await, ["holder b"]);
    locks.finish().await;
}

#[tokio::test]
async fn while_hold_at_least_runs_the_rest_of_it_is_told() {
    let locks = Locks::start().await;
    locks.acquire(held(100_000, 1_000_000, 0)).await.acquired();
    for _ in 0..2 {
        let released = locks.release(release("r", "a")).await.released();
        assert_left(released.free_in, 1_000_000);
    }
    let refused = locks.acquire(acquire("r", "b")).await.held();
    assert_eq!(refused.holders, []);
    assert_eq!(told_millis(refused.retry_after), 1000);
    let lock = locks.get("r").await.expect("a lock that stays taken");
    assert_eq!((lock.holders.len(), lock.queue_length), (0, 0));
    assert_left(lock.free_in, 1_000_000);
    locks.finish().await;
}

#[tokio::test]
async fn a_lock_held_longer_than_hold_at_least_is_free_at_its_release() {
    let locks = Locks::start().await;
    locks.acquire(held(100_000, 30, 0)).await.acquired();
    tokio::time::sleep(Duration::from_millis(30)).await;
    let released = locks.release(release("r", "a")).await.released();
    assert_eq!(told_millis(released.free_in), 0);
    assert_eq!(locks.get("r").await, None);
    locks.acquire(acquire("r", "b")).await.acquired();
    locks.finish().await;
}

#[tokio::test]
async fn a_released_lock_is_free_though_the_clock_of_redis_was_set_back() {
    let options = RedisOptions {
        movable_clock: true,
        ..RedisOptions::default()
    };
    let locks = Locks::with(options, Settings::default()).await;
    locks.acquire(held(100_000, 0, 60_000)).await.acquired();
    locks.redis.set_clock_offset(-3600.0);
    let released = locks.release(release("r", "a")).await.released();
    assert_eq!(told_millis(released.free_in), 0);
    assert_eq!(locks.get("r").await, None);
    locks.acquire(acquire("r", "b")).await.acquired();
    locks.finish().await;
}

#[tokio::test]
async fn after_a_lease_that_ended_nobody_gets_the_lock_for_lock_delay() {
    let locks = Locks::start().await;
    let asked = Instant::now();
    locks.acquire(held(50, 0, 400)).await.acquired();
    let (_, heard) = locks.acquire_at_last(acquire("r", "b")).await;
    assert!(heard - asked >= Duration::from_millis(450));
    locks.finish().await;
}

#[tokio::test]
async fn a_release_within_the_lease_leaves_no_lock_delay() {
    let locks = Locks::start().await;
    locks.acquire(held(100_000, 0, 60_000)).await.acquired();
    let released = locks.release(release("r", "a")).await.released();
    assert_eq!(told_millis(released.free_in), 0);
    locks.acquire(acquire("r", "b")).await.acquired();
    locks.finish().await;
}

#[tokio::test]
async fn a_late_release_ends_the_lock_delay_and_nothing_else_revives_the_lease() {
    let locks = Locks::start().await;
    locks.acquire(held(50, 0, 60_000)).await.acquired();
    locks.leases_over("r").await;

    let over = Answer::Lost(LossReason::LeaseOver);
    assert_eq!(locks.acquire(held(50, 0, 60_000)).await, over);
    assert_eq!(locks.renew(renew_lock("r", "a")).await, over);
    let refused = locks.acquire(acquire("r", "b")).await.held();
    assert_eq!(refused.holders, []);
    let lock = locks.get("r").await.expect("a lock that stays taken");
    assert_left(lock.free_in, 60_000);

    let released = locks.release(release("r", "a")).await.released();
    assert_eq!(told_millis(released.free_in), 0);
    let spent = Answer::Lost(LossReason::Released);
    assert_eq!(locks.acquire(held(50, 0, 60_000)).await, spent);
    assert_eq!(locks.renew(renew_lock("r", "a")).await, spent);
    locks.acquire(acquire("r", "b")).await.acquired();
    let released = locks.release(release("r", "a")).await.released();
    assert_eq!(told_millis(released.free_in), 0);
    assert_eq!(locks.holders("r").await, ["holder b"]);
    locks.finish().await;
}

#[tokio::test]
async fn a_late_release_leaves_what_hold_at_least_has_left() {
    let locks = Locks::start().await;
    let asked = Instant::now();
    locks.acquire(held(50, 600, 60_000)).await.acquired();
    locks.leases_over("r").await;
    let released = locks.release(release("r", "a")).await.released();
    assert!(told_millis(released.free_in) <= 550);
    let (_, heard) = locks.acquire_at_last(acquire("r", "b")).await;
    assert!(heard - asked >= Duration::from_millis(600));
    locks.finish().await;
}

#[tokio::test]
async fn a_lock_whose_lease_ended_stays_taken_until_the_later_of_both() {
    for (hold_at_least, lock_delay, free_after) in [(600, 100, 600), (200, 500, 550)] {
        let locks = Locks::start().await;
        let asked = Instant::now();
        let request = held(50, hold_at_least, lock_delay);
        locks.acquire(request).await.acquired();
        let (_, heard) = locks.acquire_at_last(acquire("r", "b")).await;
        assert!(heard - asked >= Duration::from_millis(free_after));
        locks.finish().await;
    }
}

#[tokio::test]
async fn a_release_after_lease_and_lock_delay_ended_does_not_end_hold_at_least() {
    let locks = Locks::start().await;
    locks.acquire(held(50, 1_000_000, 50)).await.acquired();
    locks.leases_over("r").await;
    tokio::time::sleep(Duration::from_millis(50)).await;

    let over = Answer::Lost(LossReason::LeaseOver);
    assert_eq!(locks.release(release("r", "a")).await, over);
    assert_eq!(locks.acquire(held(50, 1_000_000, 50)).await, over);
    let refused = locks.acquire(acquire("r", "b")).await.held();
    assert_eq!(refused.holders, []);
    let lock = locks.get("r").await.expect("a lock that stays taken");
    assert_left(lock.free_in, 1_000_000);
    locks.finish().await;
}
