//! How soon a waiter has the lock, and how soon one is answered that does not get it.

use super::{AT_ONCE, LOCK, SOON, World, leased, median, waits};
use crate::support::answers::{acquired, held, lock_renewed, released};
use crate::support::requests::{acquire, millis, proto_duration, release, renew_lock, told_millis};
use claimlock::rpc::proto::AcquireLockRequest;
use std::time::{Duration, Instant};
use tonic::{Code, Request};

const LEASE: Duration = Duration::from_millis(700);

/// Some milliseconds, so far apart that a service which only looks now and then is late for most of them.
const LASTS: [u64; 5] = [400, 550, 700, 850, 1_000];

/// How long after the end of what holders left behind their waiters have the locks; never before it.
async fn late_by(what: &str, releases: bool, holds: impl Fn(u64) -> AcquireLockRequest) {
    let world = World::start().await;
    let late = LASTS.map(|lasts| {
        let (mut holder, mut waiter) = (world.client(0), world.client(1));
        let lock = format!("lock-{lasts}");
        let holds = AcquireLockRequest {
            resource: lock.clone(),
            ..holds(lasts)
        };
        async move {
            let lasts = Duration::from_millis(lasts);
            // Redis grants it between the two.
            let asked_at = Instant::now();
            acquired(holder.acquire_lock(holds).await);
            let granted_by = Instant::now();
            if releases {
                released(holder.release_lock(release(&lock, "holder")).await);
            }
            let grant = acquired(waiter.acquire_lock(waits(&lock, "a")).await);
            let at = Instant::now();
            assert!(at >= asked_at + lasts, "too early");
            let waited = Duration::from_millis(told_millis(grant.waited));
            assert!(
                waited <= at - asked_at && waited + SOON > lasts,
                "{waited:?}"
            );
            at.saturating_duration_since(granted_by + lasts)
        }
    });
    let late = futures_util::future::join_all(late).await;
    eprintln!("{what}: had by the next {late:?} after its end");
    assert!(median(&late) < AT_ONCE, "{what}: {late:?}");
}

#[tokio::test]
async fn the_next_has_the_lock_when_the_lease_of_a_holder_that_died_ends() {
    late_by("lease", false, |lasts| AcquireLockRequest {
        lease: millis(lasts),
        ..acquire(LOCK, "holder")
    })
    .await;
}

#[tokio::test]
async fn the_next_has_the_lock_when_hold_at_least_is_over() {
    late_by("hold_at_least", true, |lasts| AcquireLockRequest {
        hold_at_least: millis(lasts),
        ..waits(LOCK, "holder")
    })
    .await;
}

#[tokio::test]
async fn the_next_has_the_lock_when_lock_delay_is_over() {
    late_by("lock_delay", false, |lasts| AcquireLockRequest {
        lease: millis(100),
        lock_delay: millis(lasts - 100),
        ..acquire(LOCK, "holder")
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_is_renewed_while_somebody_waits_is_waited_for_to_its_new_end() {
    let mut world = World::start().await;
    let holder = leased(LEASE, acquire(LOCK, "holder"));
    acquired(world.client(0).acquire_lock(holder).await);
    let line = world.line_up([1]).await;
    let mut renewed_at = Instant::now();
    for _ in 0..4 {
        renewed_at = Instant::now();
        lock_renewed(world.client(0).renew_lock(renew_lock(LOCK, "holder")).await);
        tokio::time::sleep(LEASE / 3).await;
    }
    let turn = super::served(line).await[0];
    assert!(turn.acquired_at >= renewed_at + LEASE);
    let late = turn.acquired_at - (renewed_at + LEASE);
    assert!(late < SOON, "{late:?}");
}

#[tokio::test]
async fn a_wait_that_ends_is_answered_with_who_holds_the_lock_and_how_many_wait() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let line = world.line_up([1, 2]).await;
    let wait = Duration::from_millis(500);
    let asked_at = Instant::now();
    let request = AcquireLockRequest {
        wait: proto_duration(wait),
        ..waits(LOCK, "short")
    };
    let told = held(world.client(0).acquire_lock(request).await);
    let took = asked_at.elapsed();
    assert!(took >= wait && took < wait + SOON, "{took:?}");
    assert_eq!(told.queue_length, 2, "it waits no longer itself");
    assert_eq!(told.holders[0].holder, "holder holder");
    assert!(told_millis(told.retry_after) > 0);
    assert_eq!(world.queue_length().await, 2);
    // Its token is as good as new.
    world.release("holder").await;
    super::served(line).await;
    let grant = acquired(world.client(0).acquire_lock(acquire(LOCK, "short")).await);
    assert_eq!(told_millis(grant.waited), 0);
    released(world.client(0).release_lock(release(LOCK, "short")).await);
    world.queue_is_gone().await;
}

#[tokio::test]
async fn a_call_whose_deadline_is_before_the_end_of_its_wait_is_answered_in_time() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    for deadline in [150, 400, 1_200] {
        let deadline = Duration::from_millis(deadline);
        let mut request = Request::new(waits(LOCK, &format!("{deadline:?}").replace('.', "_")));
        request.set_timeout(deadline);
        let asked_at = Instant::now();
        let answer = world.client(1).acquire_lock(request).await;
        let took = asked_at.elapsed();
        // On a machine that is busy it may come too late, but then for that reason.
        if let Err(status) = &answer {
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
            continue;
        }
        assert_eq!(held(answer).queue_length, 0);
        assert!(took <= deadline, "{took:?} of {deadline:?}");
        assert!(took * 10 >= deadline * 6, "it gave up after {took:?}");
    }
    // One that could not leave in time is dropped.
    world.waits(0).await;
}

#[tokio::test]
async fn a_wait_that_finds_the_lock_free_is_no_wait() {
    let world = World::start().await;
    let grant = acquired(world.client(0).acquire_lock(waits(LOCK, "a")).await);
    assert_eq!(told_millis(grant.waited), 0);
    assert!(!grant.already_held);
    let again = acquired(world.client(1).acquire_lock(waits(LOCK, "a")).await);
    assert!(again.already_held);
    assert_eq!(again.fencing_token, grant.fencing_token);
    world.queue_is_gone().await;
}
