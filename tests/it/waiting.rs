//! Locks that are waited for in turn, on real services: in which order they are had, how soon, and what is left of those that
//! went away.

mod cancelled;
mod earlier_calls;
mod hurt;
mod load;
mod order;
mod outages;
mod sharing;
mod timing;
mod walk;

use crate::support::answers::{Answer, released};
use crate::support::calls::get_lock;
use crate::support::eventually;
use crate::support::metrics::Scrape;
use crate::support::redis::RedisServer;
use crate::support::requests::{acquire, proto_duration, release};
use crate::support::service::{Admin, Coordination, Fleet};
use claimlock::config::Settings;
use claimlock::rpc::proto::acquire_lock_response::Outcome;
use claimlock::rpc::proto::{AcquireLockRequest, AcquireLockResponse, LockAcquired, LockInfo};
use redis::aio::MultiplexedConnection;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
/// A busy machine takes far longer than the service: what is measured is printed, and this is what is asserted.
const SOON: Duration = Duration::from_secs(1);
/// Of several, that in the middle is below this, which is less than the time between two looks of a service's.
const AT_ONCE: Duration = Duration::from_millis(250);
const LOCK: &str = "lock";

/// An acquisition that waits for as long as it takes.
fn waits(lock: &str, name: &str) -> AcquireLockRequest {
    AcquireLockRequest {
        wait: proto_duration(LONG),
        lease: proto_duration(LONG),
        ..acquire(lock, name)
    }
}

/// One that holds the lock for so long, if nobody ends it.
fn leased(lease: Duration, request: AcquireLockRequest) -> AcquireLockRequest {
    AcquireLockRequest {
        lease: proto_duration(lease),
        ..request
    }
}

/// One that had the lock and released it.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Its place in the order of asking.
    number: usize,
    fence: i64,
    acquired_at: Instant,
    releases_at: Instant,
}

/// A call under way, which returns its turn; or what else came of it.
type Waiting = JoinHandle<Result<Turn, Answer<AcquireLockResponse>>>;

/// Acquires, and releases at once.
async fn take_turn(
    mut client: Coordination,
    request: AcquireLockRequest,
    number: usize,
) -> Result<Turn, Answer<AcquireLockResponse>> {
    let (lock, token) = (request.resource.clone(), request.lock_token.clone());
    let acquired = got(client.acquire_lock(request).await)?;
    let acquired_at = Instant::now();
    let mut free = release(&lock, "");
    free.lock_token = token;
    let releases_at = Instant::now();
    // The answer is of no interest: an operator or an end of the lease may have been first.
    let _ = client.release_lock(free).await;
    Ok(Turn {
        number,
        fence: acquired.fencing_token,
        acquired_at,
        releases_at,
    })
}

#[expect(clippy::result_large_err, reason = "a test's own")]
fn got(answer: Answer<AcquireLockResponse>) -> Result<LockAcquired, Answer<AcquireLockResponse>> {
    match answer {
        Ok(response) => match response.get_ref().outcome.clone() {
            Some(Outcome::Acquired(acquired)) => Ok(acquired),
            _ => Err(Ok(response)),
        },
        Err(status) => Err(Err(status)),
    }
}

/// The numbers in the order in which they had the lock.
fn order(turns: &[Turn]) -> Vec<usize> {
    let mut turns = turns.to_vec();
    turns.sort_unstable_by_key(|turn| turn.fence);
    turns.into_iter().map(|turn| turn.number).collect()
}

/// How long the lock was on its way from each to the next, beginning with who freed it at `freed_at`; the longest last.
fn hand_overs(turns: &[Turn], freed_at: Instant) -> Vec<Duration> {
    let mut turns = turns.to_vec();
    turns.sort_unstable_by_key(|turn| turn.fence);
    let mut freed_at = freed_at;
    let mut took = Vec::new();
    for turn in turns {
        took.push(turn.acquired_at.saturating_duration_since(freed_at));
        freed_at = turn.releases_at;
    }
    took.sort_unstable();
    took
}

/// What hand-overs took.
#[derive(Clone, Copy, Debug)]
struct HandOver {
    p50: Duration,
    longest: Duration,
}

/// Prints what hand-overs took.
fn tell_hand_overs(what: &str, turns: &[Turn], freed_at: Instant) -> HandOver {
    let took = hand_overs(turns, freed_at);
    let longest = *took.last().expect("somebody had the lock");
    let (p50, p99) = (median(&took), took[took.len() * 99 / 100]);
    eprintln!("{what}: hand-over p50 {p50:?}, p99 {p99:?}, longest {longest:?}");
    HandOver { p50, longest }
}

/// What stands in the middle says more than the longest of a busy machine's.
fn median(all: &[Duration]) -> Duration {
    let mut all = all.to_vec();
    all.sort_unstable();
    all[all.len() / 2]
}

/// Two services on one Redis, and an operator who looks at the lock.
struct World {
    redis: RedisServer,
    fleet: Fleet,
    admin: Admin,
}

impl World {
    async fn start() -> Self {
        Self::on(RedisServer::start().await).await
    }

    async fn on(redis: RedisServer) -> Self {
        let fleet = Fleet::start(&redis, Settings::default()).await;
        Self {
            admin: fleet.services[0].admin().await,
            fleet,
            redis,
        }
    }

    /// A connection to each service in turn.
    fn client(&self, number: usize) -> Coordination {
        // A fleet has four connections to each.
        self.fleet.client(number % 2 * 4 + number / 2 % 4)
    }

    async fn lock(&mut self) -> Option<LockInfo> {
        looks_at(&mut self.admin, LOCK).await
    }

    async fn queue_length(&mut self) -> usize {
        queue_length(&mut self.admin, LOCK).await
    }

    async fn waits(&mut self, number: usize) {
        stand(&mut self.admin, LOCK, number).await;
    }

    /// Has these wait one after the other, at one service after the other.
    async fn line_up(&mut self, numbers: impl IntoIterator<Item = usize>) -> Vec<Waiting> {
        let mut line = Vec::new();
        let already = self.queue_length().await;
        for number in numbers {
            let request = waits(LOCK, &number.to_string());
            line.push(tokio::spawn(take_turn(
                self.client(number),
                request,
                number,
            )));
            self.waits(already + line.len()).await;
        }
        line
    }

    /// Releases the lock of the one with this name; returns when it was asked for.
    async fn release(&self, name: &str) -> Instant {
        let asked_at = Instant::now();
        let answer = self.client(0).release_lock(release(LOCK, name)).await;
        released(answer);
        asked_at
    }

    /// From now on neither a script may tell anything nor a service hear it.
    async fn forbid_wake_ups(&self) {
        redis::cmd("ACL")
            .arg(&["SETUSER", "default", "resetchannels"])
            .exec_async(&mut self.redis.connect().await)
            .await
            .expect("an operator may");
    }

    /// Nothing of the queue is in Redis, and nobody is counted as waiting.
    async fn queue_is_gone(&self) {
        queue_is_gone(&self.redis).await;
        eventually("nobody to be counted as waiting", async || {
            let mut waiting = 0.0;
            for service in &self.fleet.services {
                let scrape = Scrape::of(service).await;
                waiting += scrape.value("claimlock_waiters");
            }
            (waiting == 0.0).then_some(())
        })
        .await;
        assert_eq!(self.redis.keys_without_expiry().await, [""; 0]);
    }
}

async fn looks_at(admin: &mut Admin, lock: &str) -> Option<LockInfo> {
    let answer = admin.get_lock(get_lock(lock)).await;
    answer.expect("GetLock answers").into_inner().lock
}

async fn queue_length(admin: &mut Admin, lock: &str) -> usize {
    let length = looks_at(admin, lock).await.map_or(0, |l| l.queue_length);
    usize::try_from(length).expect("no length is negative")
}

/// Returns when so many wait.
async fn stand(admin: &mut Admin, lock: &str, number: usize) {
    eventually("them to wait", async || {
        (queue_length(admin, lock).await == number).then_some(())
    })
    .await;
}

/// All turns; panics where a call came to anything else.
async fn served(line: Vec<Waiting>) -> Vec<Turn> {
    let mut turns = Vec::new();
    for call in line {
        let turn = call.await.expect("no panic");
        turns.push(turn.unwrap_or_else(|other| panic!("it got {other:?}")));
    }
    turns
}

/// Within the time in which nothing but a clean-up can have done it.
async fn queue_is_gone(redis: &RedisServer) {
    let mut connection = redis.connect().await;
    let since = Instant::now();
    eventually("the queue to be gone", async || {
        let left = keys_of_queues(&mut connection).await;
        assert!(
            since.elapsed() < Duration::from_secs(15),
            "{left:?} is left of a queue"
        );
        left.is_empty().then_some(())
    })
    .await;
}

async fn keys_of_queues(connection: &mut MultiplexedConnection) -> Vec<String> {
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("cl:l:*:[qwd]")
        .query_async(connection)
        .await
        .expect("KEYS is answered");
    keys
}
