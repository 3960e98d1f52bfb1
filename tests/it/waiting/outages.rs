//! Wake-ups that are lost, a Redis that restarts, stands still or forgets: everybody gets the turn all the same, and soon.

use super::{LOCK, Turn, World, leased, order, served, stand, take_turn, tell_hand_overs, waits};
use crate::support::answers::{acquired, held};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::redis::RedisServer;
use crate::support::requests::{acquire, release};
use crate::support::service::{Service, patient};
use claimlock::config::Settings;
use redis::aio::MultiplexedConnection;
use std::time::{Duration, Instant};

const WAITERS: usize = 50;
/// A service looks by itself within less than a second, and Redis has to be reached again; the machine may be busy.
const AT_LAST: Duration = Duration::from_secs(3);

/// Those of one service among the numbers.
fn of_service(service: usize, numbers: &[usize]) -> Vec<usize> {
    let own = numbers.iter().filter(|number| **number % 2 == service);
    own.copied().collect()
}

/// Where Redis lost the queue, each service keeps the order of its own.
#[track_caller]
fn in_order_per_service(turns: &[Turn]) {
    let order = order(turns);
    for service in [0, 1] {
        let own = of_service(service, &order);
        assert!(own.is_sorted(), "service {service}: {order:?}");
    }
}

/// Releases the lock as soon as Redis can be asked; returns when that was.
async fn released_at_last(world: &World, name: &str) -> Instant {
    eventually("the lock to be released", async || {
        let asked_at = Instant::now();
        let answer = world.client(0).release_lock(release(LOCK, name)).await;
        answer.is_ok().then_some(asked_at)
    })
    .await
}

async fn command(connection: &mut MultiplexedConnection, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
        .exec_async(connection)
        .await
        .expect("an operator may");
}

#[tokio::test]
async fn subscriptions_that_are_killed_again_and_again_cost_no_turn() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let line = world.line_up(0..WAITERS).await;
    let mut connection = world.redis.connect().await;
    let freed_at = world.release("holder").await;
    let kills = async {
        loop {
            command(&mut connection, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    let turns = tokio::select! {
        () = kills => unreachable!("it does not end"),
        turns = served(line) => turns,
    };
    assert_eq!(order(&turns), (0..WAITERS).collect::<Vec<_>>());
    let took = tell_hand_overs("subscriptions killed", &turns, freed_at);
    assert!(took.longest < AT_LAST, "{took:?}");
    world.queue_is_gone().await;
}

#[tokio::test]
async fn without_any_wake_up_each_turn_comes_within_a_second() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let line = world.line_up(0..6).await;
    world.forbid_wake_ups().await;
    let freed_at = world.release("holder").await;
    let turns = served(line).await;
    assert_eq!(order(&turns), (0..6).collect::<Vec<_>>());
    let took = tell_hand_overs("no wake-ups at all", &turns, freed_at);
    assert!(took.longest < AT_LAST, "{took:?}");
    world.queue_is_gone().await;
}

#[tokio::test]
async fn a_redis_that_restarts_while_fifty_wait_keeps_their_order() {
    let mut world = World::on(RedisServer::durable().await).await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let line = world.line_up(0..WAITERS).await;
    world.redis.restart().await;
    let freed_at = released_at_last(&world, "holder").await;
    let turns = served(line).await;
    assert_eq!(order(&turns), (0..WAITERS).collect::<Vec<_>>());
    let took = tell_hand_overs("redis restarted", &turns, freed_at);
    assert!(took.longest < AT_LAST, "{took:?}");
    world.queue_is_gone().await;
}

#[tokio::test]
async fn a_redis_that_lost_the_queue_gets_it_back_in_the_order_of_each_service() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let line = world.line_up(0..WAITERS).await;
    world.redis.restart().await;
    // It lost the holder too.
    let freed_at = Instant::now();
    let turns = served(line).await;
    assert_eq!(turns.len(), WAITERS);
    in_order_per_service(&turns);
    let took = tell_hand_overs("redis lost everything", &turns, freed_at);
    assert!(took.longest < AT_LAST, "{took:?}");
    world.queue_is_gone().await;
}

#[tokio::test]
async fn a_redis_that_stands_still_for_eight_seconds_keeps_the_order_of_those_who_wait() {
    /// Locks whose leases end meanwhile: whoever is heard first goes past nobody.
    const ENDED: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    const EACH: usize = 6;
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let mut line = world.line_up(0..WAITERS).await;
    let mut lines_of_ended = Vec::new();
    for (place, lock) in ENDED.into_iter().enumerate() {
        let short = leased(Duration::from_secs(6), acquire(lock, "holder"));
        acquired(world.client(0).acquire_lock(short).await);
        let mut line = Vec::new();
        for number in 0..EACH {
            // The first is now one service's, now the other's.
            let client = world.client(number + place);
            let request = waits(lock, &number.to_string());
            line.push(tokio::spawn(take_turn(client, request, number)));
            stand(&mut world.admin, lock, number + 1).await;
        }
        lines_of_ended.push(line);
    }

    world.redis.stop_process();
    tokio::time::sleep(Duration::from_secs(8)).await;
    world.redis.resume_process();
    let resumed_at = Instant::now();
    // One that gives up just then is not waited for.
    line.remove(3).abort();
    let freed_at = released_at_last(&world, "holder").await;
    let turns = served(line).await;
    let rest: Vec<usize> = (0..WAITERS).filter(|number| *number != 3).collect();
    assert_eq!(order(&turns), rest);
    let took = tell_hand_overs("redis stood still for 8 s", &turns, freed_at);
    assert!(took.longest < AT_LAST, "{took:?}");

    for (lock, line) in ENDED.into_iter().zip(lines_of_ended) {
        let turns = served(line).await;
        assert_eq!(order(&turns), (0..EACH).collect::<Vec<_>>(), "lock {lock}");
        let took = tell_hand_overs("a lease that ended meanwhile", &turns, resumed_at);
        assert!(took.longest < AT_LAST, "{took:?}");
    }
    world.queue_is_gone().await;
}

#[tokio::test]
async fn a_service_that_reaches_redis_a_little_later_than_others_keeps_its_places() {
    let redis = RedisServer::start().await;
    let to_redis = Proxy::start(Upstream::Unix(redis.socket_path()));
    let late = Service::at(&to_redis.redis_url(), Settings::default()).await;
    late.is_ready().await;
    // So patient that what it asks meanwhile is still of use when Redis goes on.
    let early = Service::with(&redis, patient()).await;
    let clients = [late.coordination().await, early.coordination().await];
    let mut admin = early.admin().await;
    let mut client = clients[1].clone();
    let short = leased(Duration::from_secs(3), acquire(LOCK, "holder"));
    acquired(client.acquire_lock(short).await);
    let mut line = Vec::new();
    for number in 0..10 {
        let request = waits(LOCK, &number.to_string());
        let client = clients[number % 2].clone();
        line.push(tokio::spawn(take_turn(client, request, number)));
        stand(&mut admin, LOCK, number + 1).await;
    }
    redis.stop_process();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let barging = tokio::spawn(async move { client.acquire_lock(acquire(LOCK, "x")).await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    to_redis.set(Mode::Cut).await;
    redis.resume_process();
    let resumed_at = Instant::now();
    tokio::time::sleep(Duration::from_millis(500)).await;
    to_redis.set(Mode::Pass).await;
    held(barging.await.expect("no panic"));
    let turns = served(line).await;
    assert_eq!(order(&turns), (0..10).collect::<Vec<_>>());
    let took = tell_hand_overs("one service came back late", &turns, resumed_at);
    assert!(took.longest < AT_LAST, "{took:?}");
    super::queue_is_gone(&redis).await;
}

#[tokio::test]
async fn a_redis_that_is_out_of_memory_keeps_the_places_until_it_has_some() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let line = world.line_up(0..6).await;
    let mut connection = world.redis.connect().await;
    command(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]).await;
    world.release("holder").await;
    // Longer than a place lasts that nobody speaks for.
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert_eq!(world.queue_length().await, 6);
    let freed_at = Instant::now();
    command(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]).await;
    let turns = served(line).await;
    assert_eq!(order(&turns), (0..6).collect::<Vec<_>>());
    let took = tell_hand_overs("redis was out of memory", &turns, freed_at);
    assert!(took.longest < AT_LAST, "{took:?}");
    world.queue_is_gone().await;
}

#[tokio::test]
async fn a_lock_whose_keys_are_deleted_by_hand_goes_to_those_who_wait() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let line = world.line_up(0..20).await;
    let mut connection = world.redis.connect().await;
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("cl:l:*")
        .query_async(&mut connection)
        .await
        .expect("KEYS is answered");
    let words: Vec<&str> = ["DEL"]
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .collect();
    let freed_at = Instant::now();
    command(&mut connection, &words).await;
    let turns = served(line).await;
    assert_eq!(turns.len(), 20);
    in_order_per_service(&turns);
    let took = tell_hand_overs("keys deleted by hand", &turns, freed_at);
    assert!(took.longest < AT_LAST, "{took:?}");
    world.queue_is_gone().await;
}

#[tokio::test]
async fn each_key_of_a_queue_may_be_deleted_by_hand_and_the_order_stays() {
    for key in ["q", "w", "d"] {
        let mut world = World::start().await;
        acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
        let line = world.line_up(0..10).await;
        let mut connection = world.redis.connect().await;
        let key = format!("cl:l:{{default/{LOCK}}}:{key}");
        let count = if key.ends_with('w') { "HLEN" } else { "ZCARD" };
        command(&mut connection, &["DEL", &key]).await;
        eventually("all to be put back", async || {
            let query = redis::cmd(count).arg(&key).to_owned();
            let left: usize = query.query_async(&mut connection).await.ok()?;
            (left == 10).then_some(())
        })
        .await;
        world.release("holder").await;
        let turns = served(line).await;
        assert_eq!(order(&turns), (0..10).collect::<Vec<_>>(), "{key}");
        world.queue_is_gone().await;
    }
}
