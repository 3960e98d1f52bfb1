//! The lock calls on a service of the test's own, with answers that can be compared.

use super::calls::{Clients, force_release, get_lock};
use super::claims::{is_about, reason};
use super::eventually;
use super::failures::{self, told};
use super::redis::{RedisOptions, RedisServer};
use super::requests::told_millis;
use super::service::Service;
use claimlock::config::Settings;
use claimlock::rpc::proto::{
    AcquireLockRequest, AcquireLockResponse, ForceReleaseLockRequest, ListLocksRequest,
    ListLocksResponse, LockAcquired, LockHeld, LockInfo, LossReason, ReleaseLockRequest,
    ReleaseLockResponse, Released, RenewLockRequest, RenewLockResponse, Renewed,
    acquire_lock_response, release_lock_response, renew_lock_response,
};
use std::time::{Duration, Instant};
use tonic::{Response, Status};

/// What any of the three calls on a lock came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Acquired(LockAcquired),
    Held(LockHeld),
    Renewed(Renewed),
    Released(Released),
    Lost(LossReason),
    Failed(failures::Told),
}

impl Answer {
    #[track_caller]
    pub fn acquired(self) -> LockAcquired {
        match self {
            Self::Acquired(acquired) => acquired,
            other => panic!("not acquired: {other:?}"),
        }
    }

    #[track_caller]
    pub fn held(self) -> LockHeld {
        match self {
            Self::Held(held) => held,
            other => panic!("not held: {other:?}"),
        }
    }

    #[track_caller]
    pub fn renewed(self) -> Renewed {
        match self {
            Self::Renewed(renewed) => renewed,
            other => panic!("not renewed: {other:?}"),
        }
    }

    #[track_caller]
    pub fn released(self) -> Released {
        match self {
            Self::Released(released) => released,
            other => panic!("not released: {other:?}"),
        }
    }

    fn of<T: Into<Self>>(answer: Result<Response<T>, Status>) -> Self {
        match answer {
            Ok(response) => response.into_inner().into(),
            Err(status) => Self::Failed(told(&status)),
        }
    }
}

impl From<AcquireLockResponse> for Answer {
    fn from(response: AcquireLockResponse) -> Self {
        use acquire_lock_response::Outcome;
        match response.outcome.expect("an outcome") {
            Outcome::Acquired(acquired) => Self::Acquired(acquired),
            Outcome::Held(held) => Self::Held(held),
            Outcome::Lost(lost) => Self::Lost(reason(&lost)),
        }
    }
}

impl From<RenewLockResponse> for Answer {
    fn from(response: RenewLockResponse) -> Self {
        use renew_lock_response::Outcome;
        match response.outcome.expect("an outcome") {
            Outcome::Renewed(renewed) => Self::Renewed(renewed),
            Outcome::Lost(lost) => Self::Lost(reason(&lost)),
        }
    }
}

impl From<ReleaseLockResponse> for Answer {
    fn from(response: ReleaseLockResponse) -> Self {
        use release_lock_response::Outcome;
        match response.outcome.expect("an outcome") {
            Outcome::Released(released) => Self::Released(released),
            Outcome::Lost(lost) => Self::Lost(reason(&lost)),
        }
    }
}

/// Asserts that a time left is what began a moment ago as so many milliseconds: never more.
#[track_caller]
pub fn assert_left(told: Option<prost_types::Duration>, millis: u64) {
    is_about(told_millis(told), Duration::from_millis(millis));
}

/// A service on a Redis of its own.
pub struct Locks {
    pub redis: RedisServer,
    pub service: Service,
    clients: Clients,
}

impl Locks {
    pub async fn start() -> Self {
        Self::with(RedisOptions::default(), Settings::default()).await
    }

    /// One that remembers for so many milliseconds only.
    pub async fn remembering(memory: u64) -> Self {
        let settings = Settings {
            memory: Duration::from_millis(memory),
            ..Settings::default()
        };
        Self::with(RedisOptions::default(), settings).await
    }

    pub async fn with(options: RedisOptions, settings: Settings) -> Self {
        let redis = RedisServer::with(options).await;
        let service = Service::with(&redis, settings).await;
        let clients = Clients::of(&service).await;
        Self {
            redis,
            service,
            clients,
        }
    }

    pub async fn acquire(&self, request: AcquireLockRequest) -> Answer {
        Answer::of(
            self.clients
                .coordination
                .clone()
                .acquire_lock(request)
                .await,
        )
    }

    pub async fn renew(&self, request: RenewLockRequest) -> Answer {
        Answer::of(self.clients.coordination.clone().renew_lock(request).await)
    }

    pub async fn release(&self, request: ReleaseLockRequest) -> Answer {
        Answer::of(
            self.clients
                .coordination
                .clone()
                .release_lock(request)
                .await,
        )
    }

    /// What an operator sees; `None` where the lock is free.
    pub async fn get(&self, resource: &str) -> Option<LockInfo> {
        let response = self
            .clients
            .admin
            .clone()
            .get_lock(get_lock(resource))
            .await;
        response.expect("GetLock answers").into_inner().lock
    }

    /// Those that hold the lock, as an operator sees them, in alphabetical order.
    pub async fn holders(&self, resource: &str) -> Vec<String> {
        let holders = self.get(resource).await.map_or(vec![], |lock| lock.holders);
        let mut names: Vec<String> = holders.into_iter().map(|holder| holder.holder).collect();
        names.sort_unstable();
        names
    }

    pub async fn list(&self, request: ListLocksRequest) -> ListLocksResponse {
        let response = self.clients.admin.clone().list_locks(request).await;
        response.expect("ListLocks answers").into_inner()
    }

    /// Takes the lock from the holder with this fencing token, or from all for 0; how many held it.
    pub async fn force_release(&self, resource: &str, fencing_token: i64) -> i32 {
        let request = ForceReleaseLockRequest {
            fencing_token,
            ..force_release(resource)
        };
        let response = self.clients.admin.clone().force_release_lock(request).await;
        response
            .expect("ForceReleaseLock answers")
            .into_inner()
            .released_holders
    }

    /// Waits until every lease on the lock has ended.
    pub async fn leases_over(&self, resource: &str) {
        eventually("the leases to end", async || {
            self.holders(resource).await.is_empty().then_some(())
        })
        .await;
    }

    /// Asks until the lock is acquired. Returns the grant, and when it was heard of.
    pub async fn acquire_at_last(&self, request: AcquireLockRequest) -> (LockAcquired, Instant) {
        eventually("the lock to be acquired", async || {
            match self.acquire(request.clone()).await {
                Answer::Acquired(acquired) => Some((acquired, Instant::now())),
                Answer::Held(_) | Answer::Lost(_) => None,
                other => panic!("neither acquired nor refused: {other:?}"),
            }
        })
        .await
    }

    /// What holds after every scenario.
    pub async fn finish(self) {
        assert_eq!(self.redis.keys_without_expiry().await, [""; 0]);
        self.service.stop().await.expect("the service drains");
    }
}
