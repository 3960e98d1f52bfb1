//! Leases that end with the connection of whoever holds them.

use super::streams::held;
use super::{Desk, client};
use crate::support::blackhole::Mode;
use crate::support::metrics::on_streams;
use crate::support::redis::RedisServer;
use crate::support::service::Service;
use crate::support::{BOUND, eventually};
use claimlock::config::Settings;
use claimlock_client::proto::ClaimState;
use claimlock_client::{Acquisition, Attempt, Lock, LossReason, Request};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);
const DELAY: Duration = Duration::from_secs(5);

fn lock() -> Lock {
    Lock::new("disk")
        .lease(HOUR)
        .lock_delay(DELAY)
        .end_on_close(true)
}

#[tokio::test]
async fn a_lock_passes_on_when_its_connection_breaks_and_its_holder_knows_that_before() {
    for mode in [Mode::Cut, Mode::BlackHole] {
        let desk = Desk::start().await;
        let held = held(&desk.client, &lock()).await;
        on_streams(&desk.service, 1, 0).await;
        let broke = Instant::now();
        desk.proxy.set(mode).await;
        let next = Lock::new("disk").wait(HOUR);
        let next = desk.direct.acquire(&next);
        let next = tokio::time::timeout(BOUND, next).await;
        let next = next.expect("it is not waited for the lease");
        assert!(matches!(next, Ok(Acquisition::Acquired(_))), "{next:?}");
        assert!(broke.elapsed() >= DELAY, "{mode:?}");
        let loss = held.loss().expect("two have the lock");
        assert_eq!(loss.reason, LossReason::NotRenewed, "{mode:?}");
    }
}

#[tokio::test]
async fn a_lock_whose_connection_broke_and_is_back_is_lost_by_the_services_word() {
    let desk = Desk::start().await;
    let held = held(&desk.client, &lock().lock_delay(Duration::from_secs(30))).await;
    on_streams(&desk.service, 1, 0).await;
    desk.proxy.set(Mode::Cut).await;
    on_streams(&desk.service, 0, 0).await;
    desk.proxy.set(Mode::Pass).await;
    let loss = tokio::time::timeout(BOUND, held.lost()).await;
    assert_eq!(loss.expect("it is told").reason, LossReason::LeaseOver);
}

#[tokio::test]
async fn a_lock_does_not_end_with_a_service_that_is_restarted() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let client = client(service.grpc);
    let held = held(&client, &lock()).await;
    on_streams(&service, 1, 0).await;
    let address = service.grpc;
    service.stop().await.expect("it drains");
    let service = Service::on(address, &redis, Settings::default()).await;
    on_streams(&service, 1, 0).await;
    assert_eq!(held.loss(), None);
    let released = held.release().await.expect("the service answers");
    assert!(released.is_ok(), "{released:?}");
}

#[tokio::test]
async fn a_lock_that_was_left_outlives_the_connection() {
    let desk = Desk::start().await;
    let client = client(desk.service.grpc);
    let held = held(&client, &lock()).await;
    on_streams(&desk.service, 1, 0).await;
    held.leave();
    client.finish(BOUND).await;
    on_streams(&desk.service, 0, 0).await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let info = desk.lock_info("disk").await.expect("it is held");
    assert_eq!(info.holders.len(), 1, "{info:?}");
}

#[tokio::test]
async fn a_claim_ends_with_the_connection_and_goes_on_where_nobody_took_it() {
    let desk = Desk::start().await;
    let request = Request::new("order-1").lease(HOUR).end_on_close(true);
    let Ok(Attempt::Claimed(mut claim)) = desk.client.begin(&request).await else {
        panic!("the key is new");
    };
    on_streams(&desk.service, 0, 1).await;
    desk.proxy.set(Mode::Cut).await;
    eventually("its lease to be over", async || {
        let info = desk.claim_info("order-1").await?;
        (info.state() == ClaimState::LeaseOver).then_some(())
    })
    .await;
    let loss = tokio::time::timeout(BOUND, claim.lost()).await;
    assert_eq!(loss.expect("it is told").reason, LossReason::NotRenewed);
    desk.proxy.set(Mode::Pass).await;
    on_streams(&desk.service, 0, 1).await;
    let completed = claim.complete(None, None).await;
    assert_eq!(completed.expect("the service answers"), Ok(()));
}
