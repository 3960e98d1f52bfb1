//! Many clients on one lock, some of which fall silent while they hold it, and a counter that only the lock protects, and
//! the fencing tokens.

use super::{LOCK, leased, waits};
use crate::support::program::Program;
use crate::support::redis::RedisServer;
use crate::support::requests::{millis, release};
use crate::support::service::Coordination;
use claimlock::rpc::proto::AcquireLockRequest;
use claimlock::rpc::proto::acquire_lock_response::Outcome;
use nix::sys::signal::Signal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const CLIENTS: usize = 32;
const LASTS: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_millis(500);

/// What the lock is for: read, add one, write. Whatever comes with an old fencing token is refused.
#[derive(Debug, Default)]
struct Counter {
    value: u64,
    fence: i64,
    added: u64,
    refused: u64,
}

impl Counter {
    fn check(&mut self, fence: i64) -> bool {
        let is_new_enough = fence >= self.fence;
        self.fence = self.fence.max(fence);
        self.refused += u64::from(!is_new_enough);
        is_new_enough
    }

    fn read(&mut self, fence: i64) -> Option<u64> {
        self.check(fence).then_some(self.value)
    }

    fn write(&mut self, fence: i64, value: u64) {
        if self.check(fence) {
            self.value = value;
            self.added += 1;
        }
    }
}

type Shared = Arc<Mutex<Counter>>;

/// Adds to the counter under the lock until the time is over; what came of its calls.
async fn adds(mut client: Coordination, counter: Shared, number: usize, until: Instant) -> Told {
    let mut told = Told::default();
    let on_counter = "nothing panics while it counts";
    for round in 0.. {
        let name = format!("{number}-{round}");
        let request = AcquireLockRequest {
            wait: millis(3_000),
            ..leased(LEASE, waits(LOCK, &name))
        };
        let grant = loop {
            if Instant::now() >= until {
                return told;
            }
            let answer = client.acquire_lock(request.clone()).await;
            match answer.map(|answer| answer.into_inner().outcome) {
                Ok(Some(Outcome::Acquired(grant))) => break Some(grant),
                Ok(Some(Outcome::Held(_))) => told.held += 1,
                Ok(Some(Outcome::Lost(_)) | None) => break None,
                // It asks again with its token, as a client does.
                Err(_) => {
                    told.failed += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        let Some(grant) = grant else {
            told.lost += 1;
            continue;
        };
        told.acquired += 1;
        let fence = grant.fencing_token;
        let read = counter.lock().expect(on_counter).read(fence);
        if let Some(value) = read {
            let falls_silent = rand::random_range(0..60) == 0;
            let pause = if falls_silent {
                LEASE.mul_f64(rand::random_range(1.1..1.8))
            } else {
                Duration::from_micros(rand::random_range(500..6_000))
            };
            tokio::time::sleep(pause).await;
            counter.lock().expect(on_counter).write(fence, value + 1);
        }
        let _ = client.release_lock(release(LOCK, &name)).await;
    }
    told
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    acquired: u64,
    held: u64,
    lost: u64,
    failed: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_under_the_lock_is_lost_though_clients_a_service_and_redis_fall_silent() {
    let mut redis = RedisServer::durable().await;
    let programs = [
        Program::serve(&redis.url(), &[]).await,
        Program::serve(&redis.url(), &[]).await,
    ];
    let mut clients = Vec::new();
    for program in &programs {
        program.is_ready().await;
        for _ in 0..4 {
            clients.push(program.coordination().await);
        }
    }
    let counter = Shared::default();
    let until = Instant::now() + LASTS;
    let adding: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = clients[number % clients.len()].clone();
            tokio::spawn(adds(client, counter.clone(), number, until))
        })
        .collect();
    for part in 1..=4 {
        tokio::time::sleep(LASTS / 6).await;
        if part % 2 == 0 {
            redis.restart().await;
            continue;
        }
        let program = &programs[part / 2];
        program.signal(Signal::SIGSTOP);
        tokio::time::sleep(LEASE * 2).await;
        program.signal(Signal::SIGCONT);
    }
    let mut all = Told::default();
    for client in adding {
        let told = client.await.expect("no panic");
        all.acquired += told.acquired;
        all.held += told.held;
        all.lost += told.lost;
        all.failed += told.failed;
    }
    let counter = counter.lock().expect("nobody counts any more");
    eprintln!(
        "{CLIENTS} clients in {LASTS:?}: {all:?}; {} added, {} refused for an old fencing token",
        counter.added, counter.refused
    );
    assert_eq!(counter.value, counter.added, "an update was lost");
    assert!(counter.added > 100, "{}", counter.added);
    assert!(counter.refused > 0, "nobody was late");
    drop(counter);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}
