//! Locks: what is asked, and what comes of it.

use super::duration::{HoldAtLeast, LockDelay, LockLease, LockWait};
use super::lease::LossReason;
use super::name::{Holder, LockId, OperatorReason, Prefix, Tenant};
use super::page::Position;
use super::token::LockToken;
use std::time::Duration;

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// One holder, and no shared ones.
    Exclusive,
    /// Many shared holders, and no exclusive one.
    Shared,
}

impl LockMode {
    /// The word for it in scripts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "EXCLUSIVE",
            Self::Shared => "SHARED",
        }
    }
}

/// Acquires a lock.
#[derive(Clone, Debug)]
pub struct AcquireLock {
    /// Which lock.
    pub id: LockId,
    /// Which acquisition.
    pub token: LockToken,
    /// Who asks, for people to read.
    pub holder: Holder,
    /// How long it stands without being renewed.
    pub lease: LockLease,
    /// How it is shared.
    pub mode: LockMode,
    /// How many may hold it at once; 0 for no limit.
    pub max_holders: u32,
    /// How long it stays taken after it was acquired.
    pub hold_at_least: HoldAtLeast,
    /// How much longer nobody gets it after its lease ended.
    pub lock_delay: LockDelay,
    /// How long to wait for it in turn.
    pub wait: LockWait,
}

/// Renews a lock.
#[derive(Clone, Debug)]
pub struct RenewLock {
    /// Which lock.
    pub id: LockId,
    /// Which acquisition.
    pub token: LockToken,
    /// The new lease from now; none for that of the acquisition.
    pub lease: Option<LockLease>,
}

/// Releases a lock.
#[derive(Clone, Debug)]
pub struct ReleaseLock {
    /// Which lock.
    pub id: LockId,
    /// Which acquisition.
    pub token: LockToken,
}

/// What comes of an acquisition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The token holds the lock.
    Acquired(Acquired),
    /// Others hold it.
    Held(Held),
    /// The token is spent.
    Lost(LossReason),
}

impl AcquireOutcome {
    /// The words for them in metrics, log lines and traces, each at its own number.
    pub const NAMES: [&str; 3] = ["acquired", "held", "lost"];

    /// Where its word stands.
    pub fn number(&self) -> usize {
        match self {
            Self::Acquired(_) => 0,
            Self::Held(_) => 1,
            Self::Lost(_) => 2,
        }
    }

    /// The word for it.
    pub fn name(&self) -> &'static str {
        Self::NAMES[self.number()]
    }
}

/// A grant of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The token that holds it.
    pub token: LockToken,
    /// Higher than that of every earlier acquisition of this resource.
    pub fencing_token: i64,
    /// Time left on the lease.
    pub lease_left: Duration,
    /// How long it was waited for in turn.
    pub waited: Duration,
    /// True for a repeat.
    pub already_held: bool,
}

/// Others hold the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Up to ten of them; empty while it stays taken with no holder.
    pub holders: Vec<HolderInfo>,
    /// How many wait in turn.
    pub queue_length: u32,
    /// When to ask again.
    pub retry_after: Duration,
}

/// What is told of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderInfo {
    /// Who it is.
    pub holder: String,
    /// Its fencing token.
    pub fencing_token: i64,
    /// How it shares the lock.
    pub mode: LockMode,
    /// How long it has held it.
    pub held_for: Duration,
    /// Time left on its lease.
    pub lease_left: Duration,
}

/// What comes of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// It is released.
    Released {
        /// Time during which the lock stays taken because of hold_at_least.
        free_in: Duration,
    },
    /// The token did not hold it.
    Lost(LossReason),
}

/// What an operator sees of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// Which lock.
    pub id: LockId,
    /// Those that hold it.
    pub holders: Vec<HolderInfo>,
    /// How many wait in turn.
    pub queue_length: u32,
    /// The highest fencing token given out so far.
    pub fencing_token: i64,
    /// Time during which it stays taken with no holder.
    pub free_in: Duration,
}

/// Lists locks, a page at a time.
#[derive(Clone, Debug)]
pub struct ListLocks {
    /// Of one tenant, or of all.
    pub tenant: Option<Tenant>,
    /// Only resources that start with this.
    pub prefix: Prefix,
    /// How many a page holds at most.
    pub page_size: usize,
    /// Where the page starts.
    pub start: Position,
}

impl ListLocks {
    /// Whether a lock is one of those to be listed.
    pub fn covers(&self, id: &LockId) -> bool {
        let is_of_tenant = self
            .tenant
            .as_ref()
            .is_none_or(|tenant| *tenant == id.tenant);
        is_of_tenant && id.resource.as_str().starts_with(self.prefix.as_str())
    }
}

/// Takes a lock away from its holders.
#[derive(Clone, Debug)]
pub struct ForceReleaseLock {
    /// Which lock.
    pub id: LockId,
    /// Only this holder's; 0 for all.
    pub fencing_token: i64,
    /// Why, for the audit log.
    pub reason: OperatorReason,
}

/// What came of taking a lock away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForceReleased {
    /// How many held it.
    pub released_holders: u32,
    /// Those whose hold ended, also those that only kept it taken.
    pub ended: Vec<HolderInfo>,
}
