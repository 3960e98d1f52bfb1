//! Waits that are given up, at whatever moment: nothing is left of them, and the next has the lock.

use super::hurt::{Hurt, Moment, Way};
use super::sharing::shares;
use super::{
    AT_ONCE, LOCK, LONG, SOON, World, leased, median, queue_is_gone, queue_length, stand, waits,
};
use crate::support::answers::{acquired, released};
use crate::support::metrics::Scrape;
use crate::support::requests::{acquire, proto_duration, release};
use claimlock::rpc::proto::AcquireLockRequest;
use futures_util::StreamExt as _;
use std::time::{Duration, Instant};

fn some_time(at_most: Duration) -> Duration {
    at_most.mul_f64(rand::random())
}

#[tokio::test]
async fn a_writer_that_gives_up_lets_the_readers_behind_it_in_at_once() {
    let mut world = World::start().await;
    let mut took = Vec::new();
    for round in 0..5 {
        let name = |who: &str| format!("{who}-{round}");
        acquired(
            world
                .client(0)
                .acquire_lock(shares(&name("holder"), 0))
                .await,
        );
        let (mut writer, request) = (world.client(round), waits(LOCK, &name("writer")));
        let writing = tokio::spawn(async move { writer.acquire_lock(request).await });
        world.waits(1).await;
        let mut reading = Vec::new();
        for (number, who) in ["a", "b", "c"].into_iter().enumerate() {
            let (mut reader, request) = (world.client(number), shares(&name(who), 0));
            reading.push(tokio::spawn(
                async move { reader.acquire_lock(request).await },
            ));
            world.waits(number + 2).await;
        }
        writing.abort();
        let gave_up_at = Instant::now();
        for call in reading {
            acquired(call.await.expect("no panic"));
        }
        took.push(gave_up_at.elapsed());
        for who in ["holder", "a", "b", "c"] {
            world.release(&name(who)).await;
        }
    }
    eprintln!("three readers were let in {took:?} after a writer before them gave up");
    assert!(median(&took) < AT_ONCE, "{took:?}");
    world.queue_is_gone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_waits_cancelled_at_random_moments_nothing_is_left() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let longest = Duration::from_millis(100);
    let calls = futures_util::stream::iter(0..1000).map(|number| {
        let mut client = world.client(number);
        async move {
            let request = waits(LOCK, &number.to_string());
            let call = client.acquire_lock(request);
            let ended = tokio::time::timeout(some_time(longest), call).await;
            assert!(ended.is_err(), "{ended:?}");
        }
    });
    calls.buffer_unordered(40).collect::<Vec<()>>().await;
    world.queue_is_gone().await;
    let (mut joined, mut undone) = (0.0, 0.0);
    for service in &world.fleet.services {
        let scrape = Scrape::of(service).await;
        let calls = |script| {
            let series = format!("claimlock_store_duration_seconds_count{{script=\"{script}\"}}");
            scrape.value(&series)
        };
        joined += calls("acquire_lock");
        undone += calls("undo_lock");
    }
    eprintln!("of 1000 waits {joined} had come to redis, and {undone} were undone");
    assert!(joined > 50.0 && undone > 50.0);
    assert_eq!(world.queue_length().await, 0);
    world.release("holder").await;
    acquired(world.client(0).acquire_lock(acquire(LOCK, "next")).await);
}

/// Has a waiter give up at about the moment in which it is granted the lock; how long the next waited then.
async fn raced(world: &World, lock: &str, round: usize, lease: Duration) -> Duration {
    let [holder, gone, next] = ["holder", "gone", "next"].map(|who| format!("{who}-{round}"));
    let mut admin = world.admin.clone();
    let (mut here, mut there) = (world.client(round), world.client(round + 1));
    acquired(here.acquire_lock(waits(lock, &holder)).await);
    let mut caller = there.clone();
    let request = leased(lease, waits(lock, &gone));
    let call = tokio::spawn(async move { caller.acquire_lock(request).await });
    stand(&mut admin, lock, 1).await;
    let request = waits(lock, &next);
    let behind = tokio::spawn(async move {
        let answer = there.acquire_lock(request).await;
        (answer, Instant::now(), there)
    });
    stand(&mut admin, lock, 2).await;

    let freed_at = Instant::now();
    let free = here.release_lock(release(lock, &holder));
    let gives_up = async {
        tokio::time::sleep(some_time(Duration::from_millis(6))).await;
        call.abort();
    };
    let (freed, ()) = tokio::join!(free, gives_up);
    released(freed);
    let (answer, at, mut there) = behind.await.expect("no panic");
    acquired(answer);
    released(there.release_lock(release(lock, &next)).await);
    at - freed_at
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_waits_cancelled_as_they_are_granted_leave_the_lock_to_the_next() {
    const LEASE: Duration = Duration::from_millis(600);
    let world = World::start().await;
    let races = (0..10).map(async |lock| {
        let mut took = Vec::new();
        for round in 0..20 {
            took.push(raced(&world, &format!("lock-{lock}"), round, LEASE).await);
        }
        took
    });
    let took = futures_util::future::join_all(races).await.concat();
    assert_eq!(took.len(), 200);
    // One whose answer was on its way already holds the lock until its lease ends.
    let at_once = took.iter().filter(|took| **took < LEASE / 2).count();
    let longest = took.iter().max().expect("two hundred");
    eprintln!("{at_once} of 200 had the lock at once, the others after {longest:?} at most");
    assert!(at_once > 0);
    assert!(*longest < LEASE + SOON, "{longest:?}");
    world.queue_is_gone().await;
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_neither_a_place_nor_a_grant_whatever_its_service_knew() {
    for moment in [Moment::NotInQueue, Moment::InQueue, Moment::Granted] {
        for way in [Way::Cancels, Way::IsCutOff] {
            let mut world = Hurt::start().await;
            let lease = match moment {
                Moment::Granted => Duration::from_millis(1_500),
                _ => LONG,
            };
            let holder = leased(lease, acquire(LOCK, "holder"));
            acquired(world.elsewhere.acquire_lock(holder).await);
            world.goes_away(moment, way).await;
            world.lets_go(moment).await;
            if moment != Moment::Granted {
                queue_is_gone(&world.redis).await;
                assert_eq!(queue_length(&mut world.admin, LOCK).await, 0);
                released(world.elsewhere.release_lock(release(LOCK, "holder")).await);
            }
            let since = Instant::now();
            let next = AcquireLockRequest {
                wait: proto_duration(LONG),
                ..acquire(LOCK, "next")
            };
            acquired(world.elsewhere.acquire_lock(next).await);
            let took = since.elapsed();
            assert!(took < SOON, "{moment:?}, {way:?}: {took:?}");
            released(world.elsewhere.release_lock(release(LOCK, "next")).await);
            // The token is as good as new.
            let again = acquired(world.elsewhere.acquire_lock(acquire(LOCK, "gone")).await);
            assert!(!again.already_held, "{moment:?}, {way:?}");
            queue_is_gone(&world.redis).await;
            assert_eq!(world.redis.keys_without_expiry().await, [""; 0]);
        }
    }
}
