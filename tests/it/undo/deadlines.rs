//! Calls whose deadline passes while they are asked.

use super::{MOMENTS, World, long_acquire, long_claim};
use crate::support::answers::{acquired, claimed, held, released};
use crate::support::raw::{Raw, Sent, framed_message};
use crate::support::requests::{acquire, claim, proto_duration, release};
use crate::support::service::Service;
use claimlock::rpc::proto::AcquireLockRequest;
use prost::Message;
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::Code;

/// A call whose deadline passes half a second from now, with no timer in its client.
async fn times_out(
    service: &Service,
    method: &'static str,
    request: &impl Message,
) -> JoinHandle<()> {
    let raw = Raw::to(service).await;
    let sent = Sent::all(framed_message(request));
    tokio::spawn(async move {
        let status = raw.call(method, &[("grpc-timeout", "500m")], sent).await;
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    })
}

#[tokio::test]
async fn a_claim_whose_deadline_passed_is_taken_back() {
    let mut world = World::start().await;
    for moment in MOMENTS {
        let key = format!("{moment:?}");
        world.holds(moment).await;
        let call = times_out(&world.service, "Claim", &long_claim(&key, "late")).await;
        world.is_held(moment, &key).await;
        call.await.expect("it is answered");
        world.lets_go(moment, 1, 1).await;
        claimed(world.elsewhere.claim(claim(&key, "next")).await);
        world.scripts += 1;
    }
    world.ends().await;
}

#[tokio::test]
async fn a_lock_whose_deadline_passed_is_taken_back() {
    let mut world = World::start().await;
    for moment in MOMENTS {
        let name = format!("{moment:?}");
        world.holds(moment).await;
        let request = long_acquire(&name, "late");
        let call = times_out(&world.service, "AcquireLock", &request).await;
        world.is_held(moment, &name).await;
        call.await.expect("it is answered");
        world.lets_go(moment, 1, 1).await;
        acquired(world.elsewhere.acquire_lock(acquire(&name, "next")).await);
        world.scripts += 1;
    }
    world.ends().await;
}

#[tokio::test]
async fn a_waiter_whose_deadline_passed_leaves_the_queue() {
    let mut world = World::start().await;
    for moment in MOMENTS {
        let name = format!("{moment:?}");
        acquired(world.elsewhere.acquire_lock(acquire(&name, "holder")).await);
        world.scripts += 1;
        world.holds(moment).await;
        let request = AcquireLockRequest {
            wait: proto_duration(Duration::from_secs(60)),
            ..long_acquire(&name, "late")
        };
        let call = times_out(&world.service, "AcquireLock", &request).await;
        world.is_held(moment, &name).await;
        call.await.expect("it is answered");
        world.lets_go(moment, 1, 1).await;
        let still = held(world.elsewhere.acquire_lock(acquire(&name, "other")).await);
        assert_eq!(still.queue_length, 0, "{moment:?}");
        released(world.elsewhere.release_lock(release(&name, "holder")).await);
        acquired(world.elsewhere.acquire_lock(acquire(&name, "next")).await);
        world.scripts += 3;
    }
    world.ends().await;
}
