//! KeepAlive: leases that live as long as a stream asks for them, are told to be lost, and end with it where they shall.

mod closing;
mod drain;
mod messages;
mod pushes;
mod renewals;
mod seen;
mod shutdown;
mod strange;

use crate::support::answers::{acquired, claimed};
use crate::support::blackhole::{Proxy, Upstream};
use crate::support::eventually;
use crate::support::redis::RedisServer;
use crate::support::requests::{acquire, claim};
use crate::support::service::{Admin, Coordination, Service, coordination, patient};
use crate::support::stream::{Expect as _, Stream, claim_ref, keep_until_close, lock_ref};
use claimlock::config::Settings;
use claimlock::rpc::proto::acquire_lock_response::Outcome as LockOutcome;
use claimlock::rpc::proto::claim_response::Outcome as ClaimOutcome;
use claimlock::rpc::proto::{AcquireLockRequest, ClaimRequest, LeaseRef, LockAcquired};
use std::time::{Duration, Instant};

/// Longer than any test waits: whatever ends before was ended.
const LONG: Duration = Duration::from_secs(120);
/// What a loaded machine may take for what a quiet one does in some milliseconds.
const SOON: Duration = Duration::from_secs(5);
/// Far below what pings take to find that a client is dead.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What takes a moment does so in the best of a few rounds at least, each of which is given its number and says how long it
/// took; what waits for pings, or for a clean-up now and then, does not.
async fn is_at_once(what: &str, mut round: impl AsyncFnMut(usize) -> Duration) {
    let mut best = Duration::MAX;
    for number in 0..5 {
        let took = round(number).await;
        eprintln!("{what}: after {took:?}");
        assert!(took < SOON, "{what}: after {took:?}");
        best = best.min(took);
        if best < AT_ONCE {
            return;
        }
    }
    panic!("{what}: after {best:?} at best");
}

/// A service whose clients can be cut off, and another whose cannot.
struct World {
    redis: RedisServer,
    to_service: Proxy,
    service: Service,
    other: Service,
    elsewhere: Coordination,
    admin: Admin,
}

impl World {
    async fn start() -> Self {
        Self::with(Settings::default()).await
    }

    async fn with(settings: Settings) -> Self {
        let redis = RedisServer::start().await;
        let service = Service::with(&redis, settings).await;
        let other = Service::with(&redis, patient()).await;
        Self {
            to_service: Proxy::start(Upstream::Tcp(service.grpc)),
            elsewhere: other.coordination().await,
            admin: other.admin().await,
            redis,
            service,
            other,
        }
    }

    /// A connection to the service that can be cut.
    async fn client(&self) -> Coordination {
        coordination(self.to_service.addr()).await
    }

    /// A stream over such a connection.
    async fn stream(&self) -> Stream {
        Stream::open(&self.client().await).await
    }

    /// The same with the other service, which nobody cuts.
    async fn stream_elsewhere(&self) -> Stream {
        Stream::open(&self.elsewhere).await
    }

    async fn acquire(&self, request: AcquireLockRequest) -> LockAcquired {
        acquired(self.elsewhere.clone().acquire_lock(request).await)
    }

    async fn hold_lock(&self, resource: &str, name: &str) -> LeaseRef {
        self.acquire(AcquireLockRequest {
            lease: crate::support::requests::proto_duration(LONG),
            ..acquire(resource, name)
        })
        .await;
        lock_ref(resource, name)
    }

    async fn hold_claim(&self, request: ClaimRequest, name: &str) -> LeaseRef {
        let lease = claim_ref(&request.key, name);
        claimed(self.elsewhere.clone().claim(request).await);
        lease
    }

    /// Whether the lock is acquired, which is asked by the other service.
    async fn try_acquire(&self, request: AcquireLockRequest) -> bool {
        let answer = self.elsewhere.clone().acquire_lock(request).await;
        let outcome = answer.expect("an answer").into_inner().outcome;
        matches!(outcome, Some(LockOutcome::Acquired(_)))
    }

    /// Another claims the key as soon as the lease is over.
    async fn take_over(&self, key: &str) {
        let mut client = self.elsewhere.clone();
        eventually("the claim to be taken over", async || {
            let answer = client.claim(claim(key, "b")).await;
            let outcome = answer.expect("an answer").into_inner().outcome;
            matches!(outcome, Some(ClaimOutcome::Claimed(_))).then_some(())
        })
        .await;
    }

    /// How long it takes from now until somebody else can have the lock.
    async fn time_until_free(&self, resource: &str, name: &str) -> Duration {
        let started = Instant::now();
        eventually("the lock to be free", async || {
            let free = self.try_acquire(acquire(resource, name)).await;
            free.then(|| started.elapsed())
        })
        .await
    }

    /// Nobody else can have it, also after what was to be cleaned up has been.
    async fn stays_held(&self, resource: &str) {
        for _ in 0..20 {
            assert!(!self.try_acquire(acquire(resource, "intruder")).await);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    async fn finish(self) {
        assert_eq!(self.redis.keys_without_expiry().await, [""; 0]);
        self.service.stop().await.expect("the service drains");
        self.other.stop().await.expect("the service drains");
    }
}

/// A lease on a stream that ends with it.
async fn kept_until_close(stream: &mut Stream, lease: &LeaseRef) {
    stream.ask(keep_until_close(lease)).await.renewed();
}

fn claim_for_long(key: &str, name: &str) -> ClaimRequest {
    ClaimRequest {
        lease: crate::support::requests::proto_duration(LONG),
        ..claim(key, name)
    }
}
