//! An oracle for claims and locks: what the service must answer, written from the tables that
//! describe it and from nothing that implements it.
//!
//! * [`claims`] and [`locks`] hold one key and one resource in memory, and answer plain calls.
//! * [`queue`] puts those who wait in turn in front of a resource, where time stands still.
//! * [`clock`] lets them do so without knowing the exact time.
//! * [`ops`] makes random sequences of calls, [`coverage`] counts which cells of the tables they hit.
//! * [`check`] sends a sequence to a service and compares.
//! * [`fake`] is a service that answers from the oracle itself, to try the comparison on: it must
//!   accept the faithful one however slow it is, and notice every fault that is built into it.

pub mod check;
pub mod claims;
mod claims_desk;
mod claims_remedies;
mod claims_rows;
mod claims_rules;
pub mod clock;
pub mod coverage;
mod fake;
pub mod locks;
mod locks_rows;
pub mod ops;
pub mod queue;
mod queue_rows;
mod self_check;
mod spent;

/// Which of a handful of tokens. A holder's name and an abandon's reason follow from it.
pub type Token = u8;

/// What the service under test was started with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How long a spent token and the last fencing token are remembered.
    pub memory_us: i64,
    /// The longest retention that a client may ask for.
    pub max_retention_us: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    NotFound,
    TakenOver,
    Released,
    Forced,
    Completed,
    LeaseOver,
}

/// The number itself cannot be foretold, only how it relates to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// Higher than all before it, and than the clock was when the call was sent.
    New,
    Same(i64),
}

pub fn us(ms: i64) -> i64 {
    ms * 1000
}
