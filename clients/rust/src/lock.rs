//! Locks: acquiring one, and holding it while the work is done.

use crate::asking::{DEFAULT_LEASE, GiveUp, Waiting};
use crate::failure::Failure;
use crate::keep_alive::{EndOnClose, OnStream};
use crate::lease::{AfterItsTime, KeptAlive, Loss, Renewal, Terms};
use crate::proto::acquire_lock_response::Outcome;
use crate::proto::lease_ref::Kind;
use crate::proto::{self, LockMode};
use crate::{Client, time};
use std::fmt;
use std::time::{Duration, Instant};

/// How a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One holder, and no shared ones.
    #[default]
    Exclusive,
    /// Many shared holders, and no exclusive one.
    Shared,
}

/// A lock that is to be acquired.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Lock {
    message: proto::AcquireLockRequest,
    wait: Duration,
    end_on_close: bool,
}

impl Lock {
    /// On a resource.
    pub fn new(resource: impl Into<String>) -> Self {
        Self {
            message: proto::AcquireLockRequest {
                resource: resource.into(),
                ..Default::default()
            },
            wait: Duration::ZERO,
            end_on_close: false,
        }
    }

    /// The token of this acquisition; a random one unless it is given. Whoever asks with the same one has the same lock: it
    /// is for one execution alone. A lock that was granted to it unheard is not given back, and is there to be asked for
    /// again.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.message.lock_token = token.into();
        self
    }

    /// Who is asking, for people to read.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.message.holder = holder.into();
        self
    }

    /// How long the lock stands if this process falls silent; renewed at each third of it. 30 s unless set.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.message.lease = Some(time::to_wire(lease));
        self
    }

    /// How long to wait in turn for it. Up to an hour is one wait; where it is longer, a new place is taken each hour.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How it is held.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.message.set_mode(match mode {
            Mode::Exclusive => LockMode::Exclusive,
            Mode::Shared => LockMode::Shared,
        });
        self
    }

    /// With [`Mode::Shared`], how many may hold it at once, which makes it a semaphore; 0 for no limit.
    pub fn max_holders(mut self, max_holders: i32) -> Self {
        self.message.max_holders = max_holders;
        self
    }

    /// How long the lock stays taken at least, even if released sooner.
    pub fn hold_at_least(mut self, hold_at_least: Duration) -> Self {
        self.message.hold_at_least = Some(time::to_wire(hold_at_least));
        self
    }

    /// How much longer nobody gets the lock if the lease ends without a release.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.message.lock_delay = Some(time::to_wire(lock_delay));
        self
    }

    /// Whether the lock ends with the connection to the service, and its `lock_delay` begins, where that breaks before it
    /// is released: so it passes on soon when this process is killed, and not when its lease ends. Off unless set.
    ///
    /// A connection may also break under a process that goes on. Then the lock is renewed over another if that is sooner
    /// than the service notices; else it is lost. Where the service cannot be heard that is told two seconds after the
    /// break was noticed here, which may be three seconds later than the service did: so have a `lock_delay` of five
    /// seconds, and as long as it takes to end the work. With less than five it is told sooner, with three or less at once.
    pub fn end_on_close(mut self, end_on_close: bool) -> Self {
        self.end_on_close = end_on_close;
        self
    }
}

/// What asking for a lock came to.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, and what is granted is the case to be quick in"
)]
pub enum Acquisition {
    /// It is held by this caller.
    Acquired(HeldLock),
    /// Others hold it.
    Held(proto::LockHeld),
    /// The token that was given is spent.
    Lost(Loss),
}

/// Why work under a lock came to no result.
#[derive(Debug)]
pub enum LockError {
    /// Others hold the lock: the work was not started.
    Held(proto::LockHeld),
    /// The lock was lost, or its token was spent. Work that had been started was dropped where it stood, or was done when
    /// the loss was heard of.
    Lost(Loss),
    /// The lock could not be asked for: the work was not started.
    NotStarted(Failure),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(held) => match held.holders.first() {
                Some(holder) if !holder.holder.is_empty() => {
                    write!(f, "the lock is held by {}", holder.holder)
                }
                _ => f.write_str("the lock is held"),
            },
            Self::Lost(loss) => write!(f, "the lock was lost: {loss}"),
            Self::NotStarted(failure) => write!(f, "the lock could not be asked for: {failure}"),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Held(_) => None,
            Self::Lost(loss) => Some(loss),
            Self::NotStarted(failure) => Some(failure),
        }
    }
}

impl Client {
    /// Works under a lock, which is renewed meanwhile and released afterwards. Work whose lock is lost is dropped where
    /// it stands: whatever it changes should also check [`HeldLock::fencing_token`].
    ///
    /// # Errors
    ///
    /// Where the lock is held by others, could not be asked for, or was lost before the work was done.
    pub async fn with_lock<T>(
        &self,
        lock: &Lock,
        work: impl AsyncFnOnce(&HeldLock) -> T,
    ) -> Result<T, LockError> {
        let held = match self.acquire(lock).await.map_err(LockError::NotStarted)? {
            Acquisition::Acquired(held) => held,
            Acquisition::Held(by) => return Err(LockError::Held(by)),
            Acquisition::Lost(loss) => return Err(LockError::Lost(loss)),
        };
        let done = tokio::select! {
            biased;
            loss = held.lost() => return Err(LockError::Lost(loss)),
            done = work(&held) => done,
        };
        match held.release().await {
            Ok(Ok(_)) => Ok(done),
            // Work that does not await cannot be dropped, nor can work that ends before the loss is heard of.
            Ok(Err(loss)) => Err(LockError::Lost(loss)),
            Err(failure) => {
                // As far as anybody knows it was held; the lease bounds it.
                tracing::debug!(%failure, "a lock could not be released");
                Ok(done)
            }
        }
    }

    /// Asks for a lock. One that is acquired is renewed in the background for as long as the value lives.
    ///
    /// # Errors
    ///
    /// Where it could not be answered in time, or is refused. Whatever may have been granted is given back in the
    /// background.
    pub async fn acquire(&self, lock: &Lock) -> Result<Acquisition, Failure> {
        self.acquire_with(lock, |_| {}).await
    }

    /// The same, telling what it waits for: before it waits, and each time that it is answered.
    ///
    /// # Errors
    ///
    /// As [`Client::acquire`].
    pub async fn acquire_with(
        &self,
        lock: &Lock,
        mut waiting: impl FnMut(&proto::LockHeld) + Send,
    ) -> Result<Acquisition, Failure> {
        let mut message = lock.message.clone();
        let is_token_ours = message.lock_token.is_empty();
        if is_token_ours {
            message.lock_token = crate::new_token();
        }
        let releasing = release(self.clone(), release_of(&message));
        let give_up = GiveUp::armed(self, is_token_ours, releasing);
        let mut wait = Waiting::in_turn(lock.wait);
        loop {
            message.wait = wait.of_a_call();
            let sent = Instant::now();
            let answer = match self.acquire_lock(message.clone()).await {
                Ok(answer) => answer,
                Err(failure) => return Err(give_up.after(failure)),
            };
            match answer.outcome {
                Some(Outcome::Acquired(acquired)) => {
                    give_up.disarm();
                    let held = HeldLock::new(self, message, lock.end_on_close, acquired, sent);
                    return Ok(Acquisition::Acquired(held));
                }
                Some(Outcome::Held(held)) if !wait.is_over() => {
                    waiting(&held);
                    wait.pause(held.retry_after).await;
                }
                Some(Outcome::Held(held)) => {
                    give_up.disarm();
                    return Ok(Acquisition::Held(held));
                }
                Some(Outcome::Lost(lost)) => {
                    give_up.disarm();
                    return Ok(Acquisition::Lost(lost.into()));
                }
                None => return Err(Failure::unknown_outcome("AcquireLock")),
            }
        }
    }
}

async fn release(client: Client, message: proto::ReleaseLockRequest) {
    if let Err(failure) = client.release_lock(message).await {
        tracing::debug!(%failure, "a lock could not be released");
    }
}

fn release_of(acquisition: &proto::AcquireLockRequest) -> proto::ReleaseLockRequest {
    proto::ReleaseLockRequest {
        tenant: acquisition.tenant.clone(),
        resource: acquisition.resource.clone(),
        lock_token: acquisition.lock_token.clone(),
    }
}

/// A lock that is held; released in the background when it is dropped.
#[derive(Debug)]
pub struct HeldLock {
    client: Client,
    message: proto::AcquireLockRequest,
    granted: proto::LockAcquired,
    kept: Option<KeptAlive>,
}

impl HeldLock {
    fn new(
        client: &Client,
        message: proto::AcquireLockRequest,
        end_on_close: bool,
        granted: proto::LockAcquired,
        sent: Instant,
    ) -> Self {
        let terms = Terms {
            lease: message
                .lease
                .map_or(DEFAULT_LEASE, |lease| time::from_wire(Some(lease))),
            until: time::later(sent, time::from_wire(granted.lease_left)),
            after_its_time: AfterItsTime::Stop,
            at_once: end_on_close,
        };
        let kind = Kind::Lock(proto::LockRef {
            resource: message.resource.clone(),
            lock_token: message.lock_token.clone(),
        });
        let end_on_close = end_on_close.then(|| EndOnClose {
            delay: time::from_wire(message.lock_delay),
        });
        let on_stream = OnStream::new(client, &message.tenant, kind, message.lease, end_on_close);
        let renewal = proto::RenewLockRequest {
            tenant: message.tenant.clone(),
            resource: message.resource.clone(),
            lock_token: message.lock_token.clone(),
            lease: message.lease,
        };
        let renewing = client.clone();
        let kept = KeptAlive::start(terms, on_stream, move |limit| {
            let client = renewing.until(limit);
            let renewal = renewal.clone();
            async move { renewal_of(client.renew_lock(renewal).await?) }
        });
        Self {
            client: client.clone(),
            message,
            granted,
            kept: Some(kept),
        }
    }

    /// The token that holds it.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.granted.lock_token
    }

    /// Higher than that of every earlier acquisition of the resource. Hand it to whatever the lock protects, and have that
    /// refuse a smaller one.
    #[must_use]
    pub fn fencing_token(&self) -> i64 {
        self.granted.fencing_token
    }

    /// Waits until the lock is lost: by the service's word, or when its lease has ended on this process's monotonic clock.
    pub async fn lost(&self) -> Loss {
        match &self.kept {
            Some(kept) => kept.lost().await,
            None => std::future::pending().await,
        }
    }

    /// The loss, if the lock has been lost.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.kept.as_ref().and_then(KeptAlive::loss)
    }

    /// Lets go of the lock without a word: it stands until its lease and its lock delay end. For work that may not have come
    /// to its end everywhere.
    pub fn leave(mut self) {
        self.kept = None;
    }

    /// Releases it. Says for how long it stays taken because of `hold_at_least`, or that it was not held any more.
    ///
    /// # Errors
    ///
    /// Where it could not be answered in time: the lease bounds the lock then.
    pub async fn release(mut self) -> Result<Result<Duration, Loss>, Failure> {
        use proto::release_lock_response::Outcome;
        let message = release_of(&self.message);
        let answer = self.client.release_lock(message).await;
        self.kept = None;
        match answer?.outcome {
            Some(Outcome::Released(released)) => Ok(Ok(time::from_wire(released.free_in))),
            Some(Outcome::Lost(lost)) => Ok(Err(lost.into())),
            None => Err(Failure::unknown_outcome("ReleaseLock")),
        }
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if self.kept.take().is_some() {
            let releasing = release(self.client.clone(), release_of(&self.message));
            self.client.in_background(releasing);
        }
    }
}

fn renewal_of(response: proto::RenewLockResponse) -> Result<Renewal, Failure> {
    use proto::renew_lock_response::Outcome;
    let (renewed, lost) = match response.outcome {
        Some(Outcome::Renewed(renewed)) => (Some(renewed), None),
        Some(Outcome::Lost(lost)) => (None, Some(lost)),
        None => (None, None),
    };
    Renewal::of(renewed, lost).ok_or_else(|| Failure::unknown_outcome("RenewLock"))
}
