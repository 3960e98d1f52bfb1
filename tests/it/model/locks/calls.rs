//! The calls on a lock and their answers, as the oracle speaks of them.

use crate::model::clock::Moment;
use crate::model::{Fencing, Reason, Token};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
}

#[derive(Clone, Debug)]
pub struct AcquireOp {
    pub token: Token,
    pub holder: u8,
    pub mode: Mode,
    /// 0: no limit.
    pub max_holders: usize,
    pub lease_ms: i64,
    pub hold_at_least_ms: i64,
    pub lock_delay_ms: i64,
}

#[derive(Clone, Debug)]
pub enum LockCall {
    Acquire(AcquireOp),
    Renew {
        token: Token,
        lease_ms: Option<i64>,
    },
    Release(Token),
    Get,
    /// 0: all holders.
    ForceRelease {
        fencing: i64,
    },
}

impl LockCall {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Acquire(op) if op.mode == Mode::Exclusive => "AcquireLock exclusive",
            Self::Acquire(_) => "AcquireLock shared",
            Self::Renew { .. } => "RenewLock",
            Self::Release(_) => "ReleaseLock",
            Self::Get => "GetLock",
            Self::ForceRelease { fencing: 0 } => "ForceReleaseLock all",
            Self::ForceRelease { .. } => "ForceReleaseLock one",
        }
    }

    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Acquire(op) => Some(op.token),
            Self::Renew { token, .. } | Self::Release(token) => Some(*token),
            Self::Get | Self::ForceRelease { .. } => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum LockAnswer {
    Acquired {
        fencing: Fencing,
        lease_end: Moment,
        already_held: bool,
    },
    Held {
        /// All that are live; the service names up to ten of them.
        holders: Vec<HolderView>,
        /// When nothing that is there now can stand in the way any more.
        free_at: Moment,
    },
    Lost(Reason),
    Renewed {
        lease_end: Moment,
        fencing: i64,
    },
    Released {
        free_at: Moment,
    },
    Info(Option<LockView>),
    Forced(usize),
    Invalid(&'static str),
}

#[derive(Clone, Debug, PartialEq)]
pub struct HolderView {
    pub holder: u8,
    pub fencing: i64,
    pub mode: Mode,
    pub acquired: Moment,
    pub lease_end: Moment,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LockView {
    pub holders: Vec<HolderView>,
    pub fencing: i64,
    /// None while it has a holder.
    pub free_at: Option<Moment>,
}
