//! The calls on a claim and their answers, as the oracle speaks of them.

use crate::model::clock::Moment;
use crate::model::{Fencing, Reason, Token};

/// What a claim is for: one of several requests, under one of several operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub fingerprint: u8,
    pub operation: u8,
}

/// In order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    TakeOver,
    MarkUncertain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    Unknown,
}

#[derive(Clone, Debug)]
pub struct ClaimOp {
    pub token: Token,
    pub request: Request,
    pub holder: u8,
    pub lease_ms: i64,
    pub retention_ms: i64,
    pub policy: Policy,
}

#[derive(Clone, Debug)]
pub struct RenewClaimOp {
    pub token: Token,
    pub lease_ms: Option<i64>,
    /// 0 is the empty checkpoint, which is set and clears what was saved.
    pub checkpoint: Option<u8>,
    pub sequence: i64,
}

#[derive(Clone, Debug)]
pub struct CompleteOp {
    pub token: Token,
    pub response: Option<u8>,
    pub retention_ms: Option<i64>,
    pub response_retention_ms: Option<i64>,
    pub receipt: Receipt,
}

#[derive(Clone, Debug)]
pub enum Receipt {
    None,
    /// The one that came with this `claimed` answer of the key, counted from 0.
    Issued(usize),
    /// Of another key, or no receipt at all.
    Foreign,
}

#[derive(Clone, Debug)]
pub struct AbandonOp {
    pub token: Token,
    pub effect: Effect,
    pub keep_checkpoint: bool,
}

#[derive(Clone, Debug)]
pub enum Resolution {
    Complete(u8),
    Forget,
    EraseResponse,
}

#[derive(Clone, Debug)]
pub enum ClaimCall {
    Claim(ClaimOp),
    Renew(RenewClaimOp),
    Complete(CompleteOp),
    Abandon(AbandonOp),
    Get,
    Resolve {
        fencing: i64,
        resolution: Resolution,
    },
}

impl ClaimCall {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Claim(_) => "Claim",
            Self::Renew(_) => "RenewClaim",
            Self::Complete(op) if matches!(op.receipt, Receipt::None) => "Complete",
            Self::Complete(_) => "Complete with receipt",
            Self::Abandon(_) => "Abandon",
            Self::Get => "GetClaim",
            Self::Resolve { resolution, .. } => match resolution {
                Resolution::Complete(_) => "ResolveClaim complete",
                Resolution::Forget => "ResolveClaim forget",
                Resolution::EraseResponse => "ResolveClaim erase",
            },
        }
    }

    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Claim(op) => Some(op.token),
            Self::Renew(op) => Some(op.token),
            Self::Complete(op) => Some(op.token),
            Self::Abandon(op) => Some(op.token),
            Self::Get | Self::Resolve { .. } => None,
        }
    }
}

/// What can be foretold of an answer. Times are absolute; the caller compares what is left.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAnswer {
    Claimed {
        fencing: Fencing,
        attempt: i64,
        lease_end: Moment,
        already_held: bool,
        taken_over: bool,
        checkpoint: u8,
    },
    InFlight {
        lease_end: Moment,
        attempt: i64,
        claimed_at: Moment,
        holder: u8,
    },
    Replay {
        response: Option<u8>,
        completed_at: Moment,
        /// None: nothing is left of it.
        retention_end: Option<Moment>,
        attempt: i64,
    },
    Mismatch {
        /// None: empty, where the record came from a receipt.
        operation: Option<u8>,
    },
    Uncertain {
        since: Moment,
        attempt: i64,
        checkpoint: u8,
        holder: u8,
    },
    Lost(Reason),
    Renewed {
        lease_end: Moment,
        fencing: i64,
    },
    Completed {
        retention_end: Option<Moment>,
    },
    Abandoned,
    Resolved(bool),
    Info(Option<ClaimView>),
    Invalid(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewState {
    InFlight,
    LeaseOver,
    Uncertain,
    Completed,
    Abandoned,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ClaimView {
    pub state: ViewState,
    pub operation: Option<u8>,
    pub attempt: i64,
    pub fencing: i64,
    /// Foretold only while somebody holds the claim or may still complete it.
    pub holder: Option<u8>,
    /// Foretold only while it matters.
    pub policy: Option<Policy>,
    pub claimed_at: Option<Moment>,
    pub completed_at: Option<Moment>,
    pub lease_end: Option<Moment>,
    pub retention_end: Moment,
    pub response: Option<u8>,
    pub checkpoint: u8,
    /// Foretold until the key is completed.
    pub taken_over: Option<bool>,
    /// The token that gave up; its reason names it.
    pub abandoned_by: Option<Token>,
}
