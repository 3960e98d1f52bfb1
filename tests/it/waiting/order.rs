//! Who asked first is served first, whichever service was asked and whatever becomes of the others.

use super::{
    AT_ONCE, LOCK, SOON, Turn, World, got, order, queue_length, served, stand, take_turn,
    tell_hand_overs, waits,
};
use crate::support::answers::{acquired, held, released};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::calls::get_lock;
use crate::support::failures::told;
use crate::support::metrics::Scrape;
use crate::support::program::Program;
use crate::support::redis::RedisServer;
use crate::support::requests::{acquire, release, told_millis};
use crate::support::service::{Coordination, Service, coordination};
use claimlock::config::Settings;
use claimlock::rpc::proto::{ListLocksRequest, LockHeld};
use nix::sys::signal::Signal;
use std::error::Error as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_types::StatusExt as _;

const WAITERS: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_waiters_over_two_services_are_served_in_the_order_of_asking() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let line = world.line_up(0..WAITERS).await;

    let length = i32::try_from(WAITERS).expect("few");
    let told: LockHeld = held(world.client(1).acquire_lock(acquire(LOCK, "x")).await);
    assert_eq!(told.queue_length, length);
    assert_eq!(told.holders[0].holder, "holder holder");
    let info = world.lock().await.expect("it is held");
    assert_eq!((info.queue_length, info.holders.len()), (length, 1));
    let all = world.admin.list_locks(ListLocksRequest::default()).await;
    let all = all.expect("ListLocks answers").into_inner().locks;
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].queue_length, length);
    for service in &world.fleet.services {
        let waiting = Scrape::of(service).await.value("claimlock_waiters");
        assert_eq!(waiting as usize, WAITERS / 2);
    }

    let freed_at = world.release("holder").await;
    let turns = served(line).await;
    assert_eq!(order(&turns), (0..WAITERS).collect::<Vec<_>>());
    let took = tell_hand_overs("fifty in a row", &turns, freed_at);
    assert!(took.p50 < AT_ONCE && took.longest < SOON, "{took:?}");
    world.queue_is_gone().await;
    assert_eq!(world.lock().await, None);
}

#[tokio::test]
async fn with_ten_of_fifty_killed_in_between_the_rest_keep_their_order() {
    let mut world = World::start().await;
    let cut_off = Proxy::start(Upstream::Tcp(world.fleet.services[1].grpc));
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let mut line = Vec::new();
    for number in 0..WAITERS {
        // Each tenth drops its call, each other tenth loses its connection.
        let client = match number % 10 {
            6 => coordination(cut_off.addr()).await,
            _ => world.client(number),
        };
        let request = waits(LOCK, &number.to_string());
        line.push(tokio::spawn(take_turn(client, request, number)));
        world.waits(number + 1).await;
    }
    for number in (3..WAITERS).step_by(10) {
        line[number].abort();
    }
    cut_off.set(Mode::Cut).await;
    world.waits(WAITERS - 10).await;
    let gone = |number: &usize| matches!(number % 10, 3 | 6);
    let freed_at = world.release("holder").await;
    let mut turns = Vec::new();
    for (number, call) in line.into_iter().enumerate() {
        let turn = call.await;
        match turn {
            Ok(Ok(turn)) => turns.push(turn),
            other => assert!(gone(&number), "{number} got {other:?}"),
        }
    }
    let rest: Vec<usize> = (0..WAITERS).filter(|number| !gone(number)).collect();
    assert_eq!(order(&turns), rest);
    let took = tell_hand_overs("forty in a row", &turns, freed_at);
    assert!(took.p50 < AT_ONCE, "{took:?}");
    world.queue_is_gone().await;
}

#[tokio::test]
async fn the_waiters_of_a_service_that_is_killed_hold_nobody_up_for_five_seconds() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let program = Program::serve(&redis.url(), &[]).await;
    program.is_ready().await;
    let mut admin = service.admin().await;
    let clients = [service.coordination().await, program.coordination().await];
    acquired(clients[0].clone().acquire_lock(waits(LOCK, "holder")).await);
    let mut line = Vec::new();
    // The first of them and every other is the killed one's.
    for number in 1..=20 {
        let request = waits(LOCK, &number.to_string());
        let client = clients[number % 2].clone();
        line.push(tokio::spawn(take_turn(client, request, number)));
        stand(&mut admin, LOCK, number).await;
    }
    program.signal(Signal::SIGKILL);
    let killed_at = Instant::now();
    let mut client = clients[0].clone();
    released(client.release_lock(release(LOCK, "holder")).await);

    let mut turns: Vec<Turn> = Vec::new();
    for call in line {
        match call.await.expect("no panic") {
            Ok(turn) => turns.push(turn),
            Err(other) => assert!(other.is_err(), "{other:?}"),
        }
    }
    assert_eq!(order(&turns), (2..=20).step_by(2).collect::<Vec<_>>());
    let last = turns.iter().map(|turn| turn.acquired_at).max();
    let held_up = last.expect("ten of them") - killed_at;
    eprintln!("the waiters of a killed service held the others up for {held_up:?}");
    assert!(held_up < Duration::from_secs(5), "{held_up:?}");
    super::queue_is_gone(&redis).await;
}

/// A client that goes on with its token at the next service when its own shuts down.
async fn turn_at_any(services: [SocketAddr; 2], number: usize) -> (Result<Turn, String>, usize) {
    let mut moves = 0;
    loop {
        let address = services[(number + moves) % 2];
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let Ok(channel) = endpoint.connect().await else {
            moves += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let client = Coordination::new(channel);
        match take_turn(client, waits(LOCK, &number.to_string()), number).await {
            Ok(turn) => return (Ok(turn), moves),
            Err(Err(status)) if status.get_error_details().error_info().is_some() => {
                let told = told(&status);
                let draining = (Code::Unavailable, "DRAINING");
                if (told.code, told.reason.as_str()) != draining {
                    return (Err(format!("{status:?}")), moves);
                }
                tokio::time::sleep(told.retry_after.expect("when to be back")).await;
            }
            // Its connection ended before the call was sent: the client says so itself.
            Err(Err(status)) if status.source().is_some() => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(other) => return (Err(format!("{other:?}")), moves),
        }
        moves += 1;
    }
}

#[tokio::test]
async fn a_rolling_restart_of_both_services_keeps_the_order_of_those_who_come_back() {
    let redis = RedisServer::start().await;
    let mut services = [Service::start(&redis).await, Service::start(&redis).await];
    let addresses = [services[0].grpc, services[1].grpc];
    let outside = Service::start(&redis).await;
    let mut admin = outside.admin().await;
    let mut client = outside.coordination().await;
    acquired(client.acquire_lock(waits(LOCK, "holder")).await);
    let mut line = Vec::new();
    for number in 0..WAITERS {
        line.push(tokio::spawn(turn_at_any(addresses, number)));
        stand(&mut admin, LOCK, number + 1).await;
    }
    for (service, address) in services.iter_mut().zip(addresses) {
        // Nobody is left at it, and its place is free for the next.
        let next = Service::start(&redis).await;
        let old = std::mem::replace(service, next);
        old.stop().await.expect("it drains");
        *service = Service::on(address, &redis, Settings::default()).await;
    }
    assert_eq!(queue_length(&mut admin, LOCK).await, WAITERS);
    let freed_at = Instant::now();
    released(client.release_lock(release(LOCK, "holder")).await);
    let mut turns = Vec::new();
    let mut moved = 0;
    for call in line {
        let (turn, moves) = call.await.expect("no panic");
        turns.push(turn.expect("its turn"));
        moved += usize::from(moves > 0);
    }
    assert_eq!(moved, WAITERS, "each service was stopped");
    assert_eq!(order(&turns), (0..WAITERS).collect::<Vec<_>>());
    tell_hand_overs("after a rolling restart", &turns, freed_at);
    super::queue_is_gone(&redis).await;
}

#[tokio::test]
async fn waiters_whose_connections_end_at_their_age_keep_their_places() {
    let redis = RedisServer::start().await;
    let aged = Settings {
        max_connection_age: Some(Duration::from_millis(300)),
        ..Settings::default()
    };
    let service = Service::with(&redis, aged).await;
    let outside = Service::start(&redis).await;
    let mut admin = outside.admin().await;
    let mut client = outside.coordination().await;
    acquired(client.acquire_lock(waits(LOCK, "holder")).await);
    let mut line = Vec::new();
    for number in 0..10 {
        line.push(tokio::spawn(turn_at_any([service.grpc; 2], number)));
        stand(&mut admin, LOCK, number + 1).await;
    }
    // Several ages later.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    released(client.release_lock(release(LOCK, "holder")).await);
    let mut turns = Vec::new();
    for call in line {
        let (turn, moves) = call.await.expect("no panic");
        turns.push(turn.expect("its turn"));
        assert!(moves > 1, "{moves}");
    }
    assert_eq!(order(&turns), (0..10).collect::<Vec<_>>());
    super::queue_is_gone(&redis).await;
}

#[tokio::test]
async fn a_service_that_was_suspended_comes_back_to_the_places_of_its_waiters() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let program = Program::serve(&redis.url(), &[]).await;
    program.is_ready().await;
    let mut admin = service.admin().await;
    let clients = [service.coordination().await, program.coordination().await];
    let mut client = clients[0].clone();
    acquired(client.acquire_lock(waits(LOCK, "holder")).await);
    let mut line = Vec::new();
    for number in 1..=10 {
        let request = waits(LOCK, &number.to_string());
        let client = clients[number % 2].clone();
        line.push(tokio::spawn(take_turn(client, request, number)));
        stand(&mut admin, LOCK, number).await;
    }
    program.signal(Signal::SIGSTOP);
    stand(&mut admin, LOCK, 5).await;
    // One more comes, and only then those who were silent.
    let last = take_turn(client.clone(), waits(LOCK, "11"), 11);
    line.push(tokio::spawn(last));
    stand(&mut admin, LOCK, 6).await;
    program.signal(Signal::SIGCONT);
    stand(&mut admin, LOCK, 11).await;
    released(client.release_lock(release(LOCK, "holder")).await);
    assert_eq!(order(&served(line).await), (1..=11).collect::<Vec<_>>());
    super::queue_is_gone(&redis).await;
}

#[tokio::test]
async fn a_call_that_does_not_wait_goes_past_nobody_and_a_token_that_waits_is_released() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let mut first = world.client(1);
    let waiting = tokio::spawn(async move { first.acquire_lock(waits(LOCK, "a")).await });
    world.waits(1).await;
    let line = world.line_up([1]).await;
    // Somebody gives up for the first, as with a call whose answer it does not know.
    let answer = world.client(0).release_lock(release(LOCK, "a")).await;
    let answer = answer.expect("an outcome").into_inner();
    assert!(
        format!("{answer:?}").contains("Lost"),
        "it holds nothing: {answer:?}"
    );
    let told = got(waiting.await.expect("no panic")).expect_err("its token is spent");
    assert!(format!("{told:?}").contains("Released"), "{told:?}");
    held(world.client(0).acquire_lock(acquire(LOCK, "x")).await);
    world.release("holder").await;
    served(line).await;
    let grant = acquired(world.client(0).acquire_lock(acquire(LOCK, "x")).await);
    assert_eq!(told_millis(grant.waited), 0);
    let looked = world.admin.get_lock(get_lock(LOCK)).await;
    assert_eq!(
        looked
            .expect("an answer")
            .into_inner()
            .lock
            .map(|l| l.queue_length),
        Some(0)
    );
    world.queue_is_gone().await;
}
