//! What a stream asks for.

use super::*;
use crate::support::blackhole::Mode;
use crate::support::claims::is_about;
use crate::support::metrics::Scrape;
use crate::support::requests::{millis, release, renew_lock, told_millis};
use crate::support::service::store_timeout;
use crate::support::stream::{detach, keep};
use claimlock::rpc::proto::keep_alive_response::Outcome;
use claimlock::rpc::proto::{KeepAliveRequest, LossReason};
use tonic_types::StatusExt as _;

#[tokio::test]
async fn a_stream_renews_locks_and_claims_for_as_long_as_it_asks() {
    let world = World::start().await;
    let grant = world.acquire(acquire("r", "a")).await;
    let lock = lock_ref("r", "a");
    let claim = world.hold_claim(claim("k", "a"), "a").await;
    let mut stream = world.stream().await;
    for (lease, default) in [(&lock, 30), (&claim, 30)] {
        let renewed = stream.ask(keep(lease)).await.renewed();
        is_about(
            told_millis(renewed.lease_left),
            Duration::from_secs(default),
        );
        let longer = KeepAliveRequest {
            lease: millis(60_000),
            ..keep(lease)
        };
        let renewed = stream.ask(longer).await.renewed();
        is_about(told_millis(renewed.lease_left), Duration::from_secs(60));
        // A lease never gets shorter.
        let renewed = stream.ask(keep(lease)).await.renewed();
        is_about(told_millis(renewed.lease_left), Duration::from_secs(60));
        if std::ptr::eq(lease, &raw const lock) {
            assert_eq!(renewed.fencing_token, grant.fencing_token);
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn a_client_that_ends_its_requests_gets_all_answers_and_then_ok() {
    const MESSAGES: i64 = 2500;
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let client = world.client().await;
    let requests = (1..=MESSAGES).map({
        let lease = lease.clone();
        move |request_id| KeepAliveRequest {
            request_id,
            ..keep(&lease)
        }
    });
    let answers = client
        .clone()
        .keep_alive(tokio_stream::iter(requests))
        .await;
    let mut answers = answers.expect("a stream").into_inner();
    let mut ids = Vec::new();
    while let Some(answer) = answers.message().await.expect("the stream ends well") {
        assert_eq!(answer.lease_ref.as_ref(), Some(&lease));
        answer.outcome.expect("an outcome").renewed();
        ids.push(answer.request_id);
    }
    ids.sort_unstable();
    assert_eq!(ids, (1..=MESSAGES).collect::<Vec<_>>());
    world.finish().await;
}

#[tokio::test]
async fn a_lock_is_kept_although_its_stream_breaks_and_is_opened_again() {
    let world = World::start().await;
    let brief = AcquireLockRequest {
        lease: millis(4000),
        ..acquire("r", "a")
    };
    let grant = world.acquire(brief).await;
    let lease = lock_ref("r", "a");
    let until = Instant::now() + Duration::from_secs(9);
    let mut breaks = 0;
    while Instant::now() < until {
        let mut stream = world.stream().await;
        let renewed = stream.ask(keep(&lease)).await.renewed();
        assert_eq!(renewed.fencing_token, grant.fencing_token);
        assert!(!world.try_acquire(acquire("r", "b")).await);
        if breaks % 2 == 0 {
            world.to_service.set(Mode::Cut).await;
            assert!(stream.hear().await.is_err());
            world.to_service.set(Mode::Pass).await;
        }
        drop(stream);
        breaks += 1;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(breaks > 3, "{breaks}");
    world.finish().await;
}

#[tokio::test]
async fn a_lease_whose_key_somebody_deleted_is_lost_at_the_next_renewal() {
    let world = World::start().await;
    let lock = world.hold_lock("r", "a").await;
    let claim = world.hold_claim(claim_for_long("k", "a"), "a").await;
    let mut stream = world.stream().await;
    for lease in [&lock, &claim] {
        stream.ask(keep(lease)).await.renewed();
    }
    redis::cmd("FLUSHALL")
        .exec_async(&mut world.redis.connect().await)
        .await
        .expect("FLUSHALL is answered");
    for lease in [&lock, &claim] {
        let lost = stream.ask(keep(lease)).await.lost();
        assert_eq!(lost, LossReason::NotFound);
    }
    world.finish().await;
}

#[tokio::test]
async fn while_redis_is_away_each_renewal_says_so_and_nothing_is_lost() {
    let world = World::with(store_timeout(Duration::from_millis(300))).await;
    let lease = Duration::from_secs(16);
    let grant = world
        .acquire(AcquireLockRequest {
            lease: crate::support::requests::proto_duration(lease),
            ..acquire("r", "a")
        })
        .await;
    let lock = lock_ref("r", "a");
    let claim = world.hold_claim(claim_for_long("k", "a"), "a").await;
    let mut stream = world.stream().await;
    for lease in [&lock, &claim] {
        stream.ask(keep(lease)).await.renewed();
    }
    let away_until = Instant::now() + lease / 2;
    world.redis.stop_process();
    while Instant::now() < away_until {
        for lease in [&lock, &claim] {
            let Outcome::Unavailable(away) = stream.ask(keep_until_close(lease)).await else {
                panic!("Redis does not answer");
            };
            assert!(told_millis(away.retry_after) > 0);
        }
    }
    world.redis.resume_process();
    for lease in [&lock, &claim] {
        let renewed = eventually("the lease to be renewed", async || {
            match stream.ask(keep(lease)).await {
                Outcome::Renewed(renewed) => Some(renewed),
                Outcome::Unavailable(_) => None,
                other => panic!("{other:?}"),
            }
        });
        let renewed = renewed.await;
        if lease == &lock {
            assert_eq!(renewed.fencing_token, grant.fencing_token);
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn a_lease_that_is_lost_is_so_for_each_renewal_with_its_reason() {
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let mut client = world.elsewhere.clone();
    client
        .release_lock(release("r", "a"))
        .await
        .expect("released");
    let mut stream = world.stream().await;
    for _ in 0..2 {
        let lost = stream.ask(keep(&lease)).await.lost();
        assert_eq!(lost, LossReason::Released);
    }
    let lost = stream.ask(detach(&lease)).await.lost();
    assert_eq!(lost, LossReason::Released);
    world.finish().await;
}

#[tokio::test]
async fn a_lease_that_is_detached_stands_as_it_was() {
    let world = World::start().await;
    let lock = world.hold_lock("r", "a").await;
    let claim = world.hold_claim(claim_for_long("k", "a"), "a").await;
    let mut stream = world.stream().await;
    for lease in [&lock, &claim] {
        kept_until_close(&mut stream, lease).await;
        // The answer tells what is left, also of a lease that is not on the stream.
        for _ in 0..2 {
            let left = stream
                .ask(KeepAliveRequest {
                    lease: millis(3_000_000),
                    ..detach(lease)
                })
                .await;
            is_about(told_millis(left.renewed().lease_left), LONG);
        }
    }
    drop(stream);
    world.stays_held("r").await;
    let mut client = world.elsewhere.clone();
    let held = client.claim(claim_for_long("k", "b")).await;
    crate::support::answers::in_flight(held);
    world.finish().await;
}

#[tokio::test]
async fn the_leases_on_streams_are_counted_by_kind() {
    let world = World::start().await;
    let lock = world.hold_lock("r", "a").await;
    let claim = world.hold_claim(claim_for_long("k", "a"), "a").await;
    let counted = async || {
        let scrape = Scrape::of(&world.service).await;
        let of = |kind: &str| scrape.value(&format!("claimlock_leases{{kind=\"{kind}\"}}"));
        (of("lock"), of("claim"))
    };
    assert_eq!(counted().await, (0.0, 0.0));
    let mut first = world.stream().await;
    for lease in [&lock, &claim, &lock] {
        first.ask(keep(lease)).await.renewed();
    }
    // One that is not held is none.
    let unknown = lock_ref("r", "unknown");
    first.ask(keep(&unknown)).await.lost();
    assert_eq!(counted().await, (1.0, 1.0));
    let mut second = world.stream().await;
    second.ask(keep(&claim)).await.renewed();
    assert_eq!(counted().await, (1.0, 2.0));
    first.ask(detach(&lock)).await.renewed();
    assert_eq!(counted().await, (0.0, 2.0));
    drop(second);
    eventually("the second stream to end", async || {
        (counted().await == (0.0, 1.0)).then_some(())
    })
    .await;
    first.finish().await.1.expect("it ends well");
    eventually("the first stream to end", async || {
        (counted().await == (0.0, 0.0)).then_some(())
    })
    .await;
    world.finish().await;
}

#[tokio::test]
async fn a_renewal_that_is_no_streams_leaves_the_lease_on_its_stream() {
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let mut stream = world.stream().await;
    kept_until_close(&mut stream, &lease).await;
    let mut client = world.elsewhere.clone();
    let renewed = client.renew_lock(renew_lock("r", "a")).await;
    crate::support::answers::lock_renewed(renewed);
    drop(stream);
    let free_after = world.time_until_free("r", "b").await;
    assert!(free_after < SOON, "{free_after:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_stream_that_a_broken_frame_ends_says_so_in_words_of_the_contract() {
    let world = World::start().await;
    let raw = crate::support::raw::Raw::to(&world.service).await;
    let sent = crate::support::raw::Sent::all(crate::support::raw::framed(b"\xff\xff"));
    let status = raw.call("KeepAlive", &[], sent).await;
    let told = crate::support::failures::told(&status);
    assert_eq!(
        told,
        crate::support::failures::invalid("INVALID_FIELD", &[])
    );
    assert!(status.get_error_details().retry_info().is_none());
    world.finish().await;
}
