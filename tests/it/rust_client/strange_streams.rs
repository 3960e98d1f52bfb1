//! Leases on streams that are not as they should be: whatever becomes of a stream, no lease is lost by it.

use super::fake::{self, Counts, Streams, Ways};
use crate::support::eventually;
use claimlock_client::{Acquisition, HeldLock, Lock, LossReason};
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(2);

/// A lock that a service with such streams has granted.
async fn held(streams: Streams) -> (HeldLock, Arc<Counts>) {
    held_as(streams, &Lock::new("disk").lease(LEASE)).await
}

async fn held_as(streams: Streams, lock: &Lock) -> (HeldLock, Arc<Counts>) {
    let ways = Ways {
        has_locks: true,
        streams,
        ..Ways::default()
    };
    let (client, counts) = fake::start(ways).await;
    match client.acquire(lock).await {
        Ok(Acquisition::Acquired(held)) => (held, counts),
        other => panic!("{other:?}"),
    }
}

async fn outlives_its_lease(held: &HeldLock) {
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(held.loss(), None);
}

#[tokio::test]
async fn a_service_without_streams_is_asked_by_calls_and_for_a_stream_once() {
    let (held, counts) = held(Streams::Unknown).await;
    outlives_its_lease(&held).await;
    assert!(counts.lock_renewals() >= 2, "{counts:?}");
    assert_eq!(counts.streams(), 1);
}

#[tokio::test]
async fn a_lock_that_is_to_end_with_its_stream_stands_where_there_is_none() {
    let lock = Lock::new("disk").lease(LEASE).end_on_close(true);
    let (held, counts) = held_as(Streams::Unknown, &lock).await;
    outlives_its_lease(&held).await;
    assert!(counts.lock_renewals() >= 2, "{counts:?}");
}

#[tokio::test]
async fn a_lock_that_is_to_end_with_its_stream_is_lost_where_none_lasts() {
    let lock = Lock::new("disk").lease(LEASE * 100).end_on_close(true);
    let (held, counts) = held_as(Streams::Ended, &lock).await;
    let loss = tokio::time::timeout(crate::support::BOUND, held.lost()).await;
    assert_eq!(loss.expect("it is told").reason, LossReason::NotRenewed);
    assert_eq!(counts.lock_renewals(), 0);
}

#[tokio::test]
async fn a_lease_on_a_stream_that_says_nothing_is_renewed_by_calls() {
    let (held, counts) = held(Streams::Silent).await;
    outlives_its_lease(&held).await;
    assert!(counts.lock_renewals() >= 2, "{counts:?}");
}

#[tokio::test]
async fn a_stream_that_always_ends_is_asked_for_less_and_less() {
    let (held, counts) = held(Streams::Ended).await;
    outlives_its_lease(&held).await;
    assert!(counts.lock_renewals() >= 2, "{counts:?}");
    assert!((2..20).contains(&counts.streams()), "{counts:?}");
}

#[tokio::test]
async fn a_stream_that_is_taken_when_something_is_sent_is_used_as_any_other() {
    let (held, counts) = held(Streams::TakenLate).await;
    outlives_its_lease(&held).await;
    assert_eq!((counts.streams(), counts.lock_renewals()), (1, 0));
}

#[tokio::test]
async fn a_lease_moves_on_from_each_stream_that_is_about_to_end() {
    let (held, counts) = held(Streams::Draining).await;
    outlives_its_lease(&held).await;
    eventually("it to have moved", async || {
        (counts.streams() >= 4).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_may_not_be_renewed_is_lost_when_its_time_has_passed() {
    let (held, counts) = held(Streams::Refusing).await;
    let loss = tokio::time::timeout(crate::support::BOUND, held.lost()).await;
    assert_eq!(loss.expect("it is told").reason, LossReason::NotRenewed);
    assert_eq!(counts.lock_renewals(), 0);
}
