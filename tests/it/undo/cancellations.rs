//! Cancellations at any moment, of calls that grant and of calls that do not.

use super::{LEASE, MOMENTS, Moment, WAYS, Way, World, has_noticed, long_acquire, long_claim};
use crate::support::answers::{
    abandoned, acquired, claim_renewed, claimed, completed, held, in_flight, lock_renewed,
    released, replay,
};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::redis::RedisServer;
use crate::support::requests::{
    abandon, acquire, claim, complete, proto_duration, release, renew_claim, renew_lock, response,
};
use crate::support::service::{Coordination, Fleet, Service, store_timeout};
use claimlock::config::Settings;
use claimlock::rpc::proto::acquire_lock_response::Outcome as LockOutcome;
use claimlock::rpc::proto::claim_response::Outcome as ClaimOutcome;
use claimlock::rpc::proto::{AbandonEffect, ClaimState, ListClaimsRequest, ListLocksRequest};
use futures_util::future::join_all;
use std::time::{Duration, Instant};
use tonic::transport::Endpoint;

const CALLS: usize = 200;

/// Drops a call that takes longer; whether it came to an end.
async fn cancelled_after<T>(patience: Duration, call: impl Future<Output = T>) -> bool {
    tokio::time::timeout(patience, call).await.is_err()
}

fn some_time(at_most_micros: u64) -> Duration {
    Duration::from_micros(rand::random_range(0..at_most_micros))
}

#[tokio::test]
async fn of_two_hundred_calls_cancelled_before_their_reply_none_holds_anything() {
    let mut world = World::start().await;
    let mut channels = Vec::new();
    for _ in 0..4 {
        channels.push(world.service.channel().await);
    }
    world.holds(Moment::AfterTheScript).await;
    let calls = (0..CALLS).map(async |number| {
        let mut client = Coordination::new(channels[number % channels.len()].clone());
        let name = number.to_string();
        tokio::time::sleep(some_time(20_000)).await;
        let patience = some_time(60_000);
        let cancelled = if number.is_multiple_of(2) {
            cancelled_after(patience, client.claim(long_claim(&name, "gone"))).await
        } else {
            cancelled_after(patience, client.acquire_lock(long_acquire(&name, "gone"))).await
        };
        assert!(cancelled, "no reply comes through");
    });
    join_all(calls).await;
    // An answer that is on its way is heard, so each cancellation has to be there before the first.
    for channel in &channels {
        has_noticed(channel).await;
    }
    let granted = world.redis.calls("evalsha").await - world.scripts;
    eprintln!("{granted} of {CALLS} calls had come to redis when they were cancelled");
    world.to_redis.set(Mode::Pass).await;

    let since = Instant::now();
    let mut admin = world.other.admin().await;
    eventually("every grant to be taken back", async || {
        let claims = admin.list_claims(ListClaimsRequest {
            state: ClaimState::InFlight.into(),
            page_size: 1000,
            ..Default::default()
        });
        let claims = claims.await.expect("an answer").into_inner().claims;
        let locks = admin.list_locks(ListLocksRequest {
            page_size: 1000,
            ..Default::default()
        });
        let locks = locks.await.expect("an answer").into_inner().locks;
        (claims.is_empty() && locks.is_empty()).then_some(())
    })
    .await;
    eprintln!("all taken back after {:?}", since.elapsed());
    for number in 0..CALLS {
        let name = number.to_string();
        if number.is_multiple_of(2) {
            let grant = claimed(world.elsewhere.claim(claim(&name, "next")).await);
            assert_eq!((grant.attempt, grant.taken_over), (1, false));
        } else {
            acquired(world.elsewhere.acquire_lock(acquire(&name, "next")).await);
        }
    }
    world.ends().await;
}

#[tokio::test]
async fn a_connection_survives_that_many_of_its_calls_are_cancelled_at_once() {
    let mut world = World::start().await;
    let mut client = world.service.coordination().await;
    let canceller = client.clone();
    world.holds(Moment::AfterTheScript).await;
    let waiting = tokio::spawn(async move { client.claim(long_claim("key", "a")).await });
    world.is_held(Moment::AfterTheScript, "key").await;

    let calls = (0..CALLS).map(async |number| {
        let mut client = canceller.clone();
        let call = client.acquire_lock(acquire(&number.to_string(), "gone"));
        // A request that has been sent is followed by its own end at once.
        assert!(cancelled_after(Duration::from_micros(100), call).await);
    });
    join_all(calls).await;
    world.to_redis.set(Mode::Pass).await;

    let grant = claimed(waiting.await.expect("no panic"));
    assert!(!grant.already_held);
    in_flight(canceller.clone().claim(claim("key", "b")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_cancellations_raced_against_the_grant_leave_lock_and_key_to_the_next() {
    let redis = RedisServer::start().await;
    let fleet = Fleet::start(&redis, Settings::default()).await;
    // A caller that does not know what came of its call gives up with the same token: the answer may have been on its
    // way already.
    let ended = fleet
        .at_once(CALLS, async |mut client, number| {
            let name = number.to_string();
            tokio::time::sleep(some_time(100_000)).await;
            let patience = some_time(40_000);
            if number.is_multiple_of(2) {
                let cancelled =
                    cancelled_after(patience, client.claim(long_claim("key", &name))).await;
                let give_up = abandon("key", &name, AbandonEffect::None);
                client.abandon(give_up).await.expect("an outcome");
                cancelled
            } else {
                let call = client.acquire_lock(long_acquire("lock", &name));
                let cancelled = cancelled_after(patience, call).await;
                client
                    .release_lock(release("lock", &name))
                    .await
                    .expect("an outcome");
                cancelled
            }
        })
        .await;
    let cancelled = ended.into_iter().filter(|cancelled| *cancelled).count();
    eprintln!("{cancelled} of {CALLS} calls were cancelled");
    assert!(cancelled > 0);

    let since = Instant::now();
    let mut client = fleet.client(0);
    eventually("the key to be free", async || {
        let answer = client.claim(claim("key", "next")).await;
        match answer.expect("an answer").into_inner().outcome {
            Some(ClaimOutcome::Claimed(grant)) => {
                assert!(!grant.taken_over);
                Some(())
            }
            _ => None,
        }
    })
    .await;
    eventually("the lock to be free", async || {
        let answer = client.acquire_lock(acquire("lock", "next")).await;
        let outcome = answer.expect("an answer").into_inner().outcome;
        matches!(outcome, Some(LockOutcome::Acquired(_))).then_some(())
    })
    .await;
    eprintln!("both were the next one's after {:?}", since.elapsed());
    in_flight(fleet.client(1).claim(claim("key", "last")).await);
    held(fleet.client(1).acquire_lock(acquire("lock", "last")).await);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn an_answer_that_its_caller_takes_no_byte_of_is_not_heard() {
    let mut world = World::start().await;
    let channel = Endpoint::from_shared(format!("http://{}", world.service.grpc))
        .expect("an address")
        .initial_stream_window_size(0)
        .connect()
        .await
        .expect("the service takes connections");
    let mut client = Coordination::new(channel.clone());
    let mut lock_client = client.clone();
    let claiming = tokio::spawn(async move { client.claim(long_claim("key", "gone")).await });
    let acquiring =
        tokio::spawn(async move { lock_client.acquire_lock(long_acquire("lock", "gone")).await });
    world.runs(2, "the calls").await;
    // Its answer to both is ready by then, all but the sending.
    has_noticed(&world.service.channel().await).await;
    claiming.abort();
    acquiring.abort();
    let _ = tokio::join!(claiming, acquiring);
    world.runs(2, "the undo of both").await;

    let grant = claimed(world.elsewhere.claim(claim("key", "next")).await);
    assert_eq!((grant.attempt, grant.taken_over), (1, false));
    acquired(world.elsewhere.acquire_lock(acquire("lock", "next")).await);
    world.ends().await;
}

#[tokio::test]
async fn an_undo_that_redis_does_not_answer_is_tried_again_until_it_does() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(Upstream::Unix(redis.socket_path()));
    let service = Service::at(
        &proxy.redis_url(),
        store_timeout(Duration::from_millis(500)),
    )
    .await;
    service.is_ready().await;
    let mut client = service.coordination().await;
    let mut lock_client = client.clone();

    proxy.set(Mode::HoldReplies).await;
    let ran = redis.calls("evalsha").await + 2;
    let claiming = tokio::spawn(async move { client.claim(long_claim("key", "gone")).await });
    let acquiring =
        tokio::spawn(async move { lock_client.acquire_lock(long_acquire("lock", "gone")).await });
    eventually("both calls to be run", async || {
        (redis.calls("evalsha").await >= ran).then_some(())
    })
    .await;
    redis.stop_process();
    claiming.abort();
    acquiring.abort();
    let _ = tokio::join!(claiming, acquiring);
    proxy.set(Mode::Pass).await;
    // Longer than an undo waits for its answer.
    tokio::time::sleep(Duration::from_secs(2)).await;
    redis.resume_process();

    let since = Instant::now();
    let mut client = service.coordination().await;
    eventually("the key to be free", async || {
        let answer = client.claim(claim("key", "next")).await.ok()?;
        matches!(answer.into_inner().outcome, Some(ClaimOutcome::Claimed(_))).then_some(())
    })
    .await;
    eventually("the lock to be free", async || {
        let answer = client.acquire_lock(acquire("lock", "next")).await.ok()?;
        matches!(answer.into_inner().outcome, Some(LockOutcome::Acquired(_))).then_some(())
    })
    .await;
    eprintln!("taken back {:?} after redis went on", since.elapsed());
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn calls_that_grant_nothing_do_no_harm_when_they_are_cut() {
    let mut world = World::start().await;
    for moment in MOMENTS {
        for way in WAYS {
            let name = format!("{moment:?}-{way:?}");
            cut_calls_do_no_harm(&mut world, moment, way, &name).await;
        }
    }
    world.ends().await;
}

async fn cut_calls_do_no_harm(world: &mut World, moment: Moment, way: Way, name: &str) {
    let keys = ["completed", "abandoned", "renewed"].map(|what| format!("{what}-{name}"));
    let [done, given_up, going_on] = &keys;
    let locks = ["released", "prolonged"].map(|what| format!("{what}-{name}"));
    let [free, taken] = &locks;
    for key in &keys {
        claimed(world.elsewhere.claim(claim(key, "a")).await);
    }
    for lock in &locks {
        acquired(world.elsewhere.acquire_lock(acquire(lock, "a")).await);
    }
    world.scripts += 5;

    let client = world.client().await;
    world.holds(moment).await;
    let request = complete(done, "a", b"result");
    let mut caller = client.clone();
    let completing = tokio::spawn(async move { caller.complete(request).await.map(drop) });
    world.is_held(moment, done).await;
    let request = abandon(given_up, "a", AbandonEffect::None);
    let mut caller = client.clone();
    let abandoning = tokio::spawn(async move { caller.abandon(request).await.map(drop) });
    world.is_held(moment, given_up).await;
    let mut request = renew_claim(going_on, "a");
    request.lease = proto_duration(LEASE);
    let mut caller = client.clone();
    let renewing = tokio::spawn(async move { caller.renew_claim(request).await.map(drop) });
    world.is_held(moment, going_on).await;
    let request = release(free, "a");
    let mut caller = client.clone();
    let releasing = tokio::spawn(async move { caller.release_lock(request).await.map(drop) });
    world.is_held(moment, free).await;
    let request = renew_lock(taken, "a");
    let mut caller = client.clone();
    let prolonging = tokio::spawn(async move { caller.renew_lock(request).await.map(drop) });
    world.is_held(moment, taken).await;
    for call in [completing, abandoning, renewing, releasing, prolonging] {
        world.goes_away(way, call).await;
    }
    world.lets_go(moment, 5, 0).await;

    // Redis had them, so they were done; asked again, they are answered as such.
    completed(
        world
            .elsewhere
            .complete(complete(done, "a", b"result"))
            .await,
    );
    let told = replay(world.elsewhere.claim(claim(done, "b")).await);
    assert_eq!(told.response, Some(response(b"result")));
    let grant = claimed(world.elsewhere.claim(claim(given_up, "b")).await);
    assert_eq!((grant.attempt, grant.taken_over), (2, false));
    abandoned(
        world
            .elsewhere
            .abandon(abandon(given_up, "a", AbandonEffect::None))
            .await,
    );
    in_flight(world.elsewhere.claim(claim(given_up, "c")).await);
    in_flight(world.elsewhere.claim(claim(going_on, "b")).await);
    claim_renewed(
        world
            .elsewhere
            .renew_claim(renew_claim(going_on, "a"))
            .await,
    );
    acquired(world.elsewhere.acquire_lock(acquire(free, "b")).await);
    released(world.elsewhere.release_lock(release(free, "a")).await);
    held(world.elsewhere.acquire_lock(acquire(free, "c")).await);
    held(world.elsewhere.acquire_lock(acquire(taken, "b")).await);
    lock_renewed(world.elsewhere.renew_lock(renew_lock(taken, "a")).await);
    world.scripts += 12;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_and_releases_cancelled_at_random_moments_can_be_asked_for_again() {
    let redis = RedisServer::start().await;
    let fleet = Fleet::start(&redis, Settings::default()).await;
    let cancelled = fleet
        .at_once(CALLS, async |mut client, number| {
            let name = number.to_string();
            tokio::time::sleep(some_time(100_000)).await;
            if number.is_multiple_of(2) {
                claimed(client.claim(claim(&name, "a")).await);
                let done = complete(&name, "a", name.as_bytes());
                let cancelled =
                    cancelled_after(some_time(40_000), client.complete(done.clone())).await;
                completed(client.complete(done).await);
                let told = replay(client.claim(claim(&name, "b")).await);
                assert_eq!(told.response, Some(response(name.as_bytes())));
                cancelled
            } else {
                acquired(client.acquire_lock(acquire(&name, "a")).await);
                let call = client.release_lock(release(&name, "a"));
                let cancelled = cancelled_after(some_time(40_000), call).await;
                released(client.release_lock(release(&name, "a")).await);
                acquired(client.acquire_lock(acquire(&name, "b")).await);
                cancelled
            }
        })
        .await;
    let cancelled = cancelled.into_iter().filter(|cancelled| *cancelled).count();
    eprintln!("{cancelled} of {CALLS} calls were cancelled");
    assert!(cancelled > 0);
    for number in 0..CALLS {
        let name = number.to_string();
        let mut client = fleet.client(number);
        if number.is_multiple_of(2) {
            replay(client.claim(claim(&name, "c")).await);
        } else {
            let again = acquired(client.acquire_lock(acquire(&name, "b")).await);
            assert!(again.already_held, "a late release ended another's grant");
        }
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}
