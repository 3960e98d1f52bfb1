//! Readers, writers and semaphores in one queue.

use super::{LOCK, SOON, Turn, World, order, served, take_turn, waits};
use crate::support::answers::{acquired, held, released};
use crate::support::requests::{acquire, release, share};
use crate::support::service::Coordination;
use claimlock::rpc::proto::{AcquireLockRequest, LockMode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A shared acquisition that waits; `max_holders` 0 for no limit.
pub fn shares(name: &str, max_holders: i32) -> AcquireLockRequest {
    AcquireLockRequest {
        mode: LockMode::Shared.into(),
        max_holders,
        ..waits(LOCK, name)
    }
}

#[tokio::test]
async fn readers_behind_a_waiting_writer_wait_and_readers_in_a_row_come_in_together() {
    const READERS: [&str; 5] = ["a", "b", "c", "d", "e"];
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(shares("holder", 0)).await);
    let mut writer = world.client(1);
    let writing = tokio::spawn(async move { writer.acquire_lock(waits(LOCK, "writer")).await });
    world.waits(1).await;
    let mut reading = Vec::new();
    for (number, name) in READERS.into_iter().enumerate() {
        let mut reader = world.client(number);
        reading.push(tokio::spawn(async move {
            let answer = reader.acquire_lock(shares(name, 0)).await;
            (answer, Instant::now())
        }));
        world.waits(number + 2).await;
    }
    let told = held(world.client(0).acquire_lock(share(LOCK, "x", 0)).await);
    assert_eq!(told.holders.len(), 1);

    world.release("holder").await;
    acquired(writing.await.expect("no panic"));
    let told = held(world.client(0).acquire_lock(acquire(LOCK, "x")).await);
    assert_eq!((told.queue_length, told.holders.len()), (5, 1));
    assert_eq!(told.holders[0].holder, "holder writer");

    let freed_at = world.release("writer").await;
    // None of them releases it for the next.
    for call in reading {
        let (answer, at) = call.await.expect("no panic");
        acquired(answer);
        assert!(at - freed_at < SOON, "{:?}", at - freed_at);
    }
    assert_eq!(world.lock().await.expect("it is held").holders.len(), 5);
    for name in READERS {
        released(world.client(0).release_lock(release(LOCK, name)).await);
    }
    world.queue_is_gone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_wait_in_turn_for_a_semaphore_of_three() {
    const HOLDERS: usize = 3;
    let mut world = World::start().await;
    for name in ["x", "y", "z"] {
        acquired(world.client(0).acquire_lock(shares(name, 3)).await);
    }
    let inside = Arc::new(AtomicUsize::new(HOLDERS));
    let mut line = Vec::new();
    for number in 0..12 {
        let (inside, client) = (inside.clone(), world.client(number));
        line.push(tokio::spawn(async move {
            let mut holder = client.clone();
            let name = number.to_string();
            let grant = acquired(holder.acquire_lock(shares(&name, 3)).await);
            let acquired_at = Instant::now();
            let others = inside.fetch_add(1, Ordering::SeqCst);
            assert!(others < HOLDERS, "{others} others had it");
            tokio::time::sleep(Duration::from_millis(20)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            let releases_at = Instant::now();
            released(holder.release_lock(release(LOCK, &name)).await);
            Turn {
                number,
                fence: grant.fencing_token,
                acquired_at,
                releases_at,
            }
        }));
        world.waits(number + 1).await;
    }
    for name in ["x", "y", "z"] {
        inside.fetch_sub(1, Ordering::SeqCst);
        world.release(name).await;
    }
    let mut turns = Vec::new();
    for call in line {
        turns.push(call.await.expect("its turn"));
    }
    assert_eq!(order(&turns), (0..12).collect::<Vec<_>>());
    world.queue_is_gone().await;
}

/// Acquires and releases until the time is over; how often, and how long it waited at most.
async fn in_and_out(
    client: Coordination,
    request: AcquireLockRequest,
    until: Instant,
) -> (usize, Duration) {
    let (mut turns, mut longest) = (0, Duration::ZERO);
    while Instant::now() < until {
        let request = AcquireLockRequest {
            lock_token: format!("{}-{turns}", request.lock_token),
            ..request.clone()
        };
        let asked_at = Instant::now();
        let turn = take_turn(client.clone(), request, turns).await;
        let turn = turn.expect("its turn");
        longest = longest.max(turn.acquired_at - asked_at);
        turns += 1;
    }
    (turns, longest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_readers_nor_writers_starve() {
    let world = World::start().await;
    let until = Instant::now() + Duration::from_secs(2);
    let callers = (0..8).map(|number| {
        let name = number.to_string();
        // Six who read, so that at every moment some do, and two who write.
        let request = if number < 6 {
            shares(&name, 0)
        } else {
            waits(LOCK, &name)
        };
        tokio::spawn(in_and_out(world.client(number), request, until))
    });
    let mut turns = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        let (count, longest) = caller.await.expect("no panic");
        turns.push(count);
        assert!(longest < SOON, "one waited {longest:?}");
    }
    eprintln!("turns of six readers and two writers: {turns:?}");
    // Each comes round before anybody else does twice.
    let (least, most) = (turns.iter().min(), turns.iter().max());
    let (least, most) = (*least.expect("eight"), *most.expect("eight"));
    assert!(least > 5 && least * 3 > most, "{turns:?}");
    world.queue_is_gone().await;
}

#[tokio::test]
async fn writers_wait_for_each_other_although_readers_share() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(shares("holder", 0)).await);
    let line = world.line_up(0..6).await;
    world.release("holder").await;
    let turns = served(line).await;
    assert_eq!(order(&turns), (0..6).collect::<Vec<_>>());
    for pair in turns.windows(2) {
        assert!(pair[0].releases_at <= pair[1].acquired_at);
    }
}
