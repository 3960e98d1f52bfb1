//! What claims and locks have in common: each is a lease that a token holds, can renew and can lose.

use super::claim::RenewClaim;
use super::lock::RenewLock;
use super::name::{ClaimId, LockId};
use super::token::{ClaimToken, LockToken};
use std::time::Duration;

/// Names a lease: what is held, and the token that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseName {
    /// Of a lock.
    Lock(LockId, LockToken),
    /// Of a claim.
    Claim(ClaimId, ClaimToken),
}

/// A renewal of either.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// Of a lock.
    Lock(RenewLock),
    /// Of a claim.
    Claim(RenewClaim),
}

impl Renewal {
    /// Which lease.
    pub fn name(&self) -> LeaseName {
        match self {
            Self::Lock(renewal) => LeaseName::Lock(renewal.id.clone(), renewal.token.clone()),
            Self::Claim(renewal) => LeaseName::Claim(renewal.id.clone(), renewal.token.clone()),
        }
    }
}

/// What a stream asks for one of its leases.
#[derive(Clone, Debug)]
pub enum KeepAlive {
    /// To renew it, and from now on to tell of its loss.
    Renew {
        /// Which, and by how much.
        renewal: Renewal,
        /// To end it when the stream ends, too.
        end_on_close: bool,
    },
    /// To take it off the stream, and leave it standing.
    Detach(LeaseName),
}

/// Why a token no longer holds what it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// Nothing is known under this name and token.
    NotFound,
    /// Somebody else holds it, or held it since.
    TakenOver,
    /// It was released or abandoned with this token.
    Released,
    /// An operator took it away.
    Forced,
    /// The claim is completed.
    Completed,
    /// The lease on the lock ended.
    LeaseOver,
}

impl LossReason {
    /// All of them, each at its own number.
    pub const ALL: [Self; 6] = [
        Self::NotFound,
        Self::TakenOver,
        Self::Released,
        Self::Forced,
        Self::Completed,
        Self::LeaseOver,
    ];

    /// The one that a word of the scripts' stands for.
    pub fn parse(word: &str) -> Option<Self> {
        let is_it = |reason: &Self| reason.name().eq_ignore_ascii_case(word);
        Self::ALL.into_iter().find(is_it)
    }

    /// The word for it in metrics and log lines; the scripts write it in capitals.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::TakenOver => "taken_over",
            Self::Released => "released",
            Self::Forced => "forced",
            Self::Completed => "completed",
            Self::LeaseOver => "lease_over",
        }
    }
}

/// What comes of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The lease was extended.
    Renewed {
        /// Time left on it.
        lease_left: Duration,
        /// The grant's fencing token.
        fencing_token: i64,
    },
    /// The token does not hold it.
    Lost(LossReason),
}
