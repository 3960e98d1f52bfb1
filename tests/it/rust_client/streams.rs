//! Leases on the stream that keeps them alive.

use super::{Desk, client};
use crate::support::BOUND;
use crate::support::blackhole::Mode;
use crate::support::eventually;
use crate::support::metrics::{Scrape, on_streams};
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::service::Service;
use claimlock::config::Settings;
use claimlock_client::proto::ForceReleaseLockRequest;
use claimlock_client::{Acquisition, Attempt, Claim, Client, HeldLock, Lock, LossReason, Request};
use futures_util::future::join_all;
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

pub async fn held(client: &Client, lock: &Lock) -> HeldLock {
    match client.acquire(lock).await {
        Ok(Acquisition::Acquired(held)) => held,
        other => panic!("{other:?}"),
    }
}

async fn begun(client: &Client, request: &Request) -> Claim {
    match client.begin(request).await {
        Ok(Attempt::Claimed(claim)) => claim,
        other => panic!("{other:?}"),
    }
}

/// So many locks and claims; each on a clone of the client, as in a program.
async fn many(client: &Client, lease: Duration, count: usize) -> (Vec<HeldLock>, Vec<Claim>) {
    let locks = (0..count).map(|number| {
        let (client, lock) = (client.clone(), Lock::new(format!("disk-{number}")));
        async move { held(&client, &lock.lease(lease)).await }
    });
    let claims = (0..count).map(|number| {
        let (client, request) = (client.clone(), Request::new(format!("order-{number}")));
        async move { begun(&client, &request.lease(lease)).await }
    });
    (join_all(locks).await, join_all(claims).await)
}

/// How many calls of these methods have ended, whatever they came to.
async fn ended_calls(service: &Service, methods: &[&str]) -> f64 {
    let scrape = Scrape::of(service).await;
    let calls = scrape.names().into_iter().filter(|name| {
        name.starts_with("grpc_server_handled_total{")
            && methods
                .iter()
                .any(|method| name.contains(&format!("grpc_method=\"{method}\"")))
    });
    calls.map(|name| scrape.value(name)).sum()
}

#[tokio::test]
async fn many_leases_are_kept_alive_over_one_stream_and_by_no_call_of_their_own() {
    let desk = Desk::start().await;
    let client = client(desk.service.grpc);
    let lease = Duration::from_secs(5);
    let (locks, claims) = many(&client, lease, 100).await;
    on_streams(&desk.service, 100, 100).await;
    tokio::time::sleep(lease * 2).await;
    assert!(locks.iter().all(|held| held.loss().is_none()));
    on_streams(&desk.service, 100, 100).await;
    let calls = ["RenewLock", "RenewClaim", "KeepAlive"];
    assert_eq!(ended_calls(&desk.service, &calls).await, 0.0);

    for held in locks {
        let released = held.release().await.expect("the service answers");
        assert!(released.is_ok(), "{released:?}");
    }
    for claim in claims {
        claim.leave();
    }
    on_streams(&desk.service, 0, 0).await;
    client.finish(BOUND).await;
    drop(client);
    eventually("the one stream to end", async || {
        let streams = ended_calls(&desk.service, &["KeepAlive"]).await;
        (streams == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_an_operator_takes_away_is_told_at_once_however_long_its_lease() {
    let desk = Desk::start().await;
    let held = held(&desk.client, &Lock::new("disk").lease(HOUR)).await;
    on_streams(&desk.service, 1, 0).await;
    let request = ForceReleaseLockRequest {
        resource: "disk".to_owned(),
        reason: "a test".to_owned(),
        ..Default::default()
    };
    let taken = Instant::now();
    let answer = desk.direct.force_release_lock(request).await;
    answer.expect("the service answers");
    let loss = tokio::time::timeout(BOUND, held.lost()).await;
    assert_eq!(loss.expect("it is told").reason, LossReason::Forced);
    assert!(taken.elapsed() < BOUND / 4, "{:?}", taken.elapsed());
}

#[tokio::test]
async fn all_leases_move_to_the_next_service_at_once_when_theirs_is_restarted() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let client = client(service.grpc);
    // None is due for a long time.
    let (locks, claims) = many(&client, HOUR / 2, 50).await;
    on_streams(&service, 50, 50).await;
    let address = service.grpc;
    service.stop().await.expect("it drains");
    let service = Service::on(address, &redis, Settings::default()).await;
    on_streams(&service, 50, 50).await;
    assert!(locks.iter().all(|held| held.loss().is_none()));
    drop(claims);
}

#[tokio::test]
async fn all_leases_move_to_another_connection_when_theirs_breaks() {
    let desk = Desk::start().await;
    let (locks, claims) = many(&desk.client, HOUR / 2, 50).await;
    on_streams(&desk.service, 50, 50).await;
    for mode in [Mode::Cut, Mode::Strand] {
        desk.proxy.set(mode).await;
        if mode == Mode::Cut {
            on_streams(&desk.service, 0, 0).await;
        }
        desk.proxy.set(Mode::Pass).await;
        eventually("the stream to be another", async || {
            let streams = ended_calls(&desk.service, &["KeepAlive"]).await;
            let expected = if mode == Mode::Cut { 1.0 } else { 2.0 };
            (streams == expected).then_some(())
        })
        .await;
        on_streams(&desk.service, 50, 50).await;
    }
    assert!(locks.iter().all(|held| held.loss().is_none()));
    drop(claims);
}

#[tokio::test]
async fn a_lease_outlives_its_time_while_the_connection_is_a_hole_for_half_of_it() {
    let desk = Desk::start().await;
    let lease = Duration::from_secs(14);
    let held = held(&desk.client, &Lock::new("disk").lease(lease)).await;
    on_streams(&desk.service, 1, 0).await;
    desk.proxy.set(Mode::BlackHole).await;
    tokio::time::sleep(lease / 2).await;
    desk.proxy.set(Mode::Pass).await;
    tokio::time::sleep(lease).await;
    assert_eq!(held.loss(), None);
    on_streams(&desk.service, 1, 0).await;
}

#[tokio::test]
async fn redis_away_for_a_part_of_the_lease_does_not_cost_it() {
    let options = RedisOptions {
        appendonly: true,
        ..RedisOptions::default()
    };
    let mut redis = RedisServer::with(options).await;
    let service = Service::start(&redis).await;
    let client = client(service.grpc);
    let lease = Duration::from_secs(12);
    let held = held(&client, &Lock::new("disk").lease(lease)).await;
    on_streams(&service, 1, 0).await;
    redis.kill();
    tokio::time::sleep(lease / 2).await;
    redis.restart().await;
    tokio::time::sleep(lease).await;
    assert_eq!(held.loss(), None);
}
