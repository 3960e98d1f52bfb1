//! Claims: what is asked, and what comes of it.

use super::duration::{ClaimLease, ClaimWait, Retention, Timestamp};
use super::fingerprint::Fingerprint;
use super::lease::LossReason;
use super::name::{AbandonReason, ClaimId, Holder, Operation, OperatorReason, Prefix, Tenant};
use super::page::Position;
use super::receipt::Receipt;
use super::response::StoredResponse;
use super::token::ClaimToken;
use std::time::Duration;

/// What becomes of a claim whose lease ends before it is completed. The greater one is the stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseOverPolicy {
    /// The next claim gets the work.
    TakeOver,
    /// The next claim gets the outcome uncertain until someone resolves it.
    MarkUncertain,
}

/// Claims a key.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Which key.
    pub id: ClaimId,
    /// Whose execution.
    pub token: ClaimToken,
    /// What the key is used for.
    pub operation: Operation,
    /// What was asked for.
    pub fingerprint: Fingerprint,
    /// Who asks, for people to read.
    pub holder: Holder,
    /// How long it stands without being renewed.
    pub lease: ClaimLease,
    /// How long the key is remembered.
    pub retention: Retention,
    /// What becomes of it if its holder falls silent.
    pub on_lease_over: LeaseOverPolicy,
    /// How long it may wait for a claim in flight to end.
    pub wait: ClaimWait,
}

/// Renews a claim.
#[derive(Clone, Debug)]
pub struct RenewClaim {
    /// Which key.
    pub id: ClaimId,
    /// Whose execution.
    pub token: ClaimToken,
    /// The new lease from now; none for that of the claim.
    pub lease: Option<ClaimLease>,
    /// Replaces the checkpoint, with its sequence.
    pub checkpoint: Option<Checkpoint>,
}

/// What an attempt saved for the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Grows within one grant; 0 always replaces.
    pub sequence: u64,
}

/// Completes a claim.
#[derive(Clone, Debug)]
pub struct Complete {
    /// Which key.
    pub id: ClaimId,
    /// Whose execution.
    pub token: ClaimToken,
    /// The result, if it is to be replayed.
    pub response: Option<StoredResponse>,
    /// How long the key is remembered from now; none for the claim's.
    pub retention: Option<Retention>,
    /// How long the response is kept; none for as long as the key.
    pub response_retention: Option<Retention>,
    /// The receipt of the claim, if the caller handed it back.
    pub receipt: Option<Receipt>,
}

/// Whether the work of a claim that is given up may have changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonEffect {
    /// It changed nothing.
    None,
    /// Nobody knows.
    Unknown,
}

/// Gives a claim up.
#[derive(Clone, Debug)]
pub struct Abandon {
    /// Which key.
    pub id: ClaimId,
    /// Whose execution.
    pub token: ClaimToken,
    /// Whether it may have changed anything.
    pub effect: AbandonEffect,
    /// Keeps fingerprint and checkpoint for the next claim.
    pub keep_checkpoint: bool,
    /// For the logs and the operator.
    pub reason: AbandonReason,
}

/// What comes of a Claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The token holds the key.
    Claimed(Claimed),
    /// Another token does.
    InFlight(InFlight),
    /// The work is done.
    Replay(Replay),
    /// The key was used for another request.
    Mismatch {
        /// What it was first used for.
        operation: String,
    },
    /// A holder fell silent, and the claim waits for someone to resolve it.
    Uncertain(Uncertain),
    /// The token is spent.
    Lost(LossReason),
}

impl ClaimOutcome {
    /// The words for them in metrics, log lines and traces, each at its own number.
    pub const NAMES: [&str; 6] = [
        "claimed",
        "in_flight",
        "replay",
        "mismatch",
        "uncertain",
        "lost",
    ];

    /// Where its word stands.
    pub fn number(&self) -> usize {
        match self {
            Self::Claimed(_) => 0,
            Self::InFlight(_) => 1,
            Self::Replay(_) => 2,
            Self::Mismatch { .. } => 3,
            Self::Uncertain(_) => 4,
            Self::Lost(_) => 5,
        }
    }

    /// The word for it.
    pub fn name(&self) -> &'static str {
        Self::NAMES[self.number()]
    }
}

/// A grant of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The token that holds it.
    pub token: ClaimToken,
    /// Higher than that of every earlier grant of this key.
    pub fencing_token: i64,
    /// 1 for the first grant.
    pub attempt: i64,
    /// Time left on the lease.
    pub lease_left: Duration,
    /// True for a repeat.
    pub already_held: bool,
    /// True where an earlier holder may have had an effect.
    pub taken_over: bool,
    /// What an earlier attempt saved.
    pub checkpoint: Vec<u8>,
    /// Opaque bytes for Complete.
    pub receipt: Vec<u8>,
}

/// Somebody else holds the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// When to ask again.
    pub retry_after: Duration,
    /// Time left on the holder's lease.
    pub lease_left: Duration,
    /// The holder's attempt.
    pub attempt: i64,
    /// When it was granted.
    pub claimed_at: Timestamp,
    /// Who holds it.
    pub holder: String,
}

/// The work is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The result, unless none was stored or its own retention is over.
    pub response: Option<StoredResponse>,
    /// When it was completed.
    pub completed_at: Timestamp,
    /// How long the key is still remembered.
    pub retention_left: Duration,
    /// The attempt that completed it.
    pub attempt: i64,
    /// The call that made that attempt's grant, in the bytes that were given to the claim.
    pub origin: Vec<u8>,
}

/// A holder fell silent, and nobody may guess what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncertain {
    /// When its lease ended.
    pub since: Timestamp,
    /// Its attempt.
    pub attempt: i64,
    /// What it saved.
    pub checkpoint: Vec<u8>,
    /// Who it was.
    pub holder: String,
}

/// What comes of a Complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteOutcome {
    /// The result is stored.
    Completed {
        /// How long the key is still remembered.
        retention_left: Duration,
    },
    /// The token does not hold the claim.
    Lost(LossReason),
}

/// What comes of an Abandon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonOutcome {
    /// It is given up.
    Abandoned,
    /// The token does not hold the claim.
    Lost(LossReason),
}

/// The state of a claim as an operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// A lease is live.
    InFlight,
    /// The next claim takes over.
    LeaseOver,
    /// It waits for someone to resolve it.
    Uncertain,
    /// The work is done.
    Completed,
    /// It was given up without an effect.
    Abandoned,
}

/// What an operator sees of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimInfo {
    /// Which key.
    pub id: ClaimId,
    /// What it is used for.
    pub operation: String,
    /// Its state now.
    pub state: ClaimState,
    /// The last attempt.
    pub attempt: i64,
    /// The last fencing token.
    pub fencing_token: i64,
    /// Who held it last.
    pub holder: String,
    /// What becomes of it if its holder falls silent.
    pub on_lease_over: LeaseOverPolicy,
    /// When the last grant was made.
    pub claimed_at: Option<Timestamp>,
    /// When it was last renewed.
    pub renewed_at: Option<Timestamp>,
    /// When it was completed.
    pub completed_at: Option<Timestamp>,
    /// Time left on a live lease.
    pub lease_left: Option<Duration>,
    /// How long it is still remembered.
    pub retention_left: Duration,
    /// The status of the stored response.
    pub response_status: i32,
    /// Bytes of the stored response's body.
    pub response_bytes: i64,
    /// Bytes of the checkpoint.
    pub checkpoint_bytes: i64,
    /// True where an earlier holder may have had an effect.
    pub taken_over: bool,
    /// Why it was given up.
    pub abandon_reason: String,
    /// The trace of the call that made it.
    pub trace_id: String,
}

/// Lists claims, a page at a time.
#[derive(Clone, Debug)]
pub struct ListClaims {
    /// Of one tenant, or of all.
    pub tenant: Option<Tenant>,
    /// Only keys that start with this.
    pub prefix: Prefix,
    /// Only those in this state.
    pub state: Option<ClaimState>,
    /// How many a page holds at most.
    pub page_size: usize,
    /// Where the page starts.
    pub start: Position,
}

impl ListClaims {
    /// Whether a claim is one of those to be listed, in whatever state.
    pub fn covers(&self, id: &ClaimId) -> bool {
        let is_of_tenant = self
            .tenant
            .as_ref()
            .is_none_or(|tenant| *tenant == id.tenant);
        is_of_tenant && id.key.as_str().starts_with(self.prefix.as_str())
    }
}

/// What an operator makes of a claim whose holder no longer settles it.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// The work was done: every later claim replays this.
    Complete(StoredResponse),
    /// The work was not done: the next claim may do it, with any request.
    Forget,
    /// Keeps the key completed and removes its response.
    EraseResponse,
}

impl Resolution {
    /// The word for it in scripts and audit lines.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Complete(_) => "complete",
            Self::Forget => "forget",
            Self::EraseResponse => "erase_response",
        }
    }
}

/// Settles a claim.
#[derive(Clone, Debug)]
pub struct ResolveClaim {
    /// Which key.
    pub id: ClaimId,
    /// The grant that was looked at.
    pub fencing_token: i64,
    /// Why, for the audit log.
    pub reason: OperatorReason,
    /// How.
    pub resolution: Resolution,
}

/// What came of settling a claim.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// False where it had moved on or its lease is live.
    pub resolved: bool,
    /// What it was before.
    pub before: Option<ClaimInfo>,
    /// What it is now.
    pub after: Option<ClaimInfo>,
}
