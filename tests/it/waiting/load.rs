//! Many clients on one lock, some of which fall silent while they hold it, and a counter that only the lock protects, and
//! the fencing tokens.

use super::{LOCK, leased, waits};
use crate::support::program::Program;
use crate::support::redis::{self, RedisServer};
use crate::support::requests::{millis, release};
use crate::support::service::{Coordination, coordination};
use ::redis::Script;
use ::redis::aio::MultiplexedConnection;
use claimlock::rpc::proto::AcquireLockRequest;
use claimlock::rpc::proto::acquire_lock_response::Outcome;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

/// In this process, and in processes of their own, which are stopped with all that they do.
const CLIENTS: usize = 24;
const PROCESSES: usize = 2;
const CLIENTS_OF_A_PROCESS: usize = 4;
const LASTS: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_millis(500);

/// What the lock is for, in a Redis of its own: read, add one, write. Whatever comes with an old fencing token is refused.
/// The same Redis keeps book of who holds the lock for certain: it was granted after its call was sent, and stands for a lease.
/// Whoever comes with a newer token before that is over, and before the other has written, was let in beside it.
#[derive(Clone)]
struct Counter(MultiplexedConnection);

const ENTER: &str = "
local at = redis.call('TIME')
local now = at[1] * 1000000 + at[2]
local function get(field) return tonumber(redis.call('HGET', KEYS[1], field) or 0) end
local fence = tonumber(ARGV[1])
if fence < get('fence') then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return -1
end
if get('holder') < fence and now < get('holds_until') then redis.call('HINCRBY', KEYS[1], 'overlaps', 1) end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'holder', ARGV[1], 'holds_until', ARGV[2])
return get('value')";

const WRITE: &str = "
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence')) then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return
end
redis.call('HSET', KEYS[1], 'value', ARGV[2], 'holds_until', 0)
redis.call('HINCRBY', KEYS[1], 'added', 1)";

const KEY: &str = "counter";

impl Counter {
    async fn now(&mut self) -> u64 {
        let time = ::redis::cmd("TIME").query_async(&mut self.0).await;
        let (seconds, micros): (u64, u64) = time.expect("the time");
        seconds * 1_000_000 + micros
    }

    /// The value; none for a token that is not new enough.
    async fn enter(&mut self, fence: i64, holds_until: u64) -> Option<u64> {
        let script = Script::new(ENTER);
        let mut call = script.key(KEY);
        call.arg(fence).arg(holds_until);
        let value: i64 = call.invoke_async(&mut self.0).await.expect("an answer");
        u64::try_from(value).ok()
    }

    async fn write(&mut self, fence: i64, value: u64) {
        let script = Script::new(WRITE);
        let mut call = script.key(KEY);
        call.arg(fence).arg(value);
        let () = call.invoke_async(&mut self.0).await.expect("an answer");
    }

    async fn of(&mut self, field: &str) -> u64 {
        let mut get = ::redis::cmd("HGET");
        let value: Option<u64> = get
            .arg(KEY)
            .arg(field)
            .query_async(&mut self.0)
            .await
            .expect("an answer");
        value.unwrap_or(0)
    }
}

/// Adds to the counter under the lock until the time is over; what came of its calls.
async fn adds(
    mut client: Coordination,
    mut counter: Counter,
    name: String,
    until: Instant,
) -> Told {
    let mut told = Told::default();
    for round in 0.. {
        let name = format!("{name}-{round}");
        let request = AcquireLockRequest {
            wait: millis(3_000),
            ..leased(LEASE, waits(LOCK, &name))
        };
        let holds_until = counter.now().await + LEASE.as_micros() as u64;
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
        if let Some(value) = counter.enter(fence, holds_until).await {
            let falls_silent = rand::random_range(0..60) == 0;
            let pause = if falls_silent {
                LEASE.mul_f64(rand::random_range(1.1..1.8))
            } else {
                Duration::from_micros(rand::random_range(500..6_000))
            };
            tokio::time::sleep(pause).await;
            counter.write(fence, value + 1).await;
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

/// Some of the clients, in a process of their own, as it is told on its input.
#[tokio::test]
#[ignore = "is the process that another test starts and stops"]
async fn is_a_process_of_clients_that_add() {
    let mut told = String::new();
    std::io::stdin().read_line(&mut told).expect("a line");
    let words: Vec<&str> = told.split_whitespace().collect();
    let &[name, address, counter] = &words[..] else {
        return;
    };
    let until = Instant::now() + LASTS;
    let counter = Counter(redis::connect(counter).await.expect("it is there"));
    let adding = (0..CLIENTS_OF_A_PROCESS).map(async |number| {
        let client = coordination(address.parse().expect("an address")).await;
        adds(client, counter.clone(), format!("{name}-{number}"), until).await
    });
    futures_util::future::join_all(adding).await;
}

async fn process_of_clients(name: &str, address: &str, counter: &RedisServer) -> Child {
    let test = "waiting::load::is_a_process_of_clients_that_add";
    let mut process = Command::new(std::env::current_exe().expect("the test's own file"))
        .args(["--ignored", "--exact", test])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let told = format!("{name} {address} {}\n", counter.url());
    let mut stdin = process.stdin.take().expect("it is piped");
    stdin.write_all(told.as_bytes()).await.expect("it reads");
    process
}

fn signal(process: &Child, signal: Signal) {
    let id = process.id().expect("it runs");
    let id = Pid::from_raw(id.try_into().expect("an id"));
    kill(id, signal).expect("our own child takes signals");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_under_the_lock_is_lost_though_clients_a_service_and_redis_fall_silent() {
    let mut redis = RedisServer::durable().await;
    let resource = RedisServer::start().await;
    let mut counter = Counter(resource.connect().await);
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
    let until = Instant::now() + LASTS;
    let adding: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = clients[number % clients.len()].clone();
            tokio::spawn(adds(client, counter.clone(), number.to_string(), until))
        })
        .collect();
    let mut processes = Vec::new();
    for number in 0..PROCESSES {
        let address = programs[number % 2].grpc.to_string();
        let name = format!("process-{number}");
        processes.push(process_of_clients(&name, &address, &resource).await);
    }
    for part in 1..=4 {
        tokio::time::sleep(LASTS / 8).await;
        let stopped = &processes[part % PROCESSES];
        signal(stopped, Signal::SIGSTOP);
        tokio::time::sleep(LEASE * 2).await;
        signal(stopped, Signal::SIGCONT);
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
    for mut process in processes {
        let ended = process.wait().await.expect("it ends");
        assert!(ended.success(), "{ended}");
    }
    let (added, refused) = (counter.of("added").await, counter.of("refused").await);
    eprintln!(
        "{CLIENTS} clients here and {PROCESSES} processes of {CLIENTS_OF_A_PROCESS} in {LASTS:?}: \
         {added} added, {refused} refused for an old fencing token; here {all:?}"
    );
    assert_eq!(counter.of("value").await, added, "an update was lost");
    assert_eq!(counter.of("overlaps").await, 0, "two held the lock at once");
    assert!(added > 100, "{added}");
    assert!(refused > 0, "nobody was late");
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}
