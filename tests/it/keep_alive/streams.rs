//! A stream renews leases, and hears of their loss.

use crate::support::calls::Clients;
use crate::support::locks::Locks;
use crate::support::requests::{acquire, millis, renew_lock, token};
use crate::support::stream::{Expect as _, Stream, keep, keep_until_close, lock_ref};
use claimlock::rpc::proto::{AcquireLockRequest, KeepAliveRequest, LossReason};
use std::time::Duration;

#[tokio::test]
async fn a_lease_is_renewed_and_told_to_be_lost_once_it_is_taken_away() {
    let world = Locks::start().await;
    let grant = world.acquire(acquire("r", "a")).await.acquired();
    let client = world.service.coordination().await;
    let mut stream = Stream::open(&client).await;
    let lease = lock_ref("r", "a");
    let renewed = stream.ask(keep(&lease)).await.renewed();
    assert_eq!(renewed.fencing_token, grant.fencing_token);
    assert_eq!(world.force_release("r", 0).await, 1);
    assert_eq!(
        stream.next_lost().await,
        (lease.clone(), LossReason::Forced)
    );
    assert_eq!(stream.ask(keep(&lease)).await.lost(), LossReason::Forced);
    let (heard, end) = stream.finish().await;
    assert_eq!((heard, end.is_ok()), (vec![], true));
    world.finish().await;
}
