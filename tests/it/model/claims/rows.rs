//! The rows of the table of claims, and its columns.

use crate::model::Reason;
use crate::model::spent::Spent;

/// The state of a key, as the table divides it. A record past its retention is absent, but the
/// token that it belonged to can still be told what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    Absent,
    Live,
    OverTakeOver,
    OverUncertain,
    Completed,
    GivenUpTakeOver,
    GivenUpUncertain,
    AbandonedBare,
    AbandonedKept,
    AbandonedTakenOver,
    ExpiredInFlight,
    ExpiredCompleted,
    ExpiredGivenUp,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq)]
pub enum Who {
    Holder,
    Spent(Spent),
    Another,
}

impl Row {
    pub fn is_absent(self) -> bool {
        matches!(
            self,
            Self::Absent | Self::ExpiredInFlight | Self::ExpiredCompleted | Self::ExpiredGivenUp
        )
    }

    /// What a token that cannot act on this row is told.
    pub fn loss(self, who: &Who) -> Reason {
        match (self, who) {
            (
                Self::GivenUpTakeOver | Self::GivenUpUncertain | Self::ExpiredGivenUp,
                Who::Holder,
            ) => Reason::Released,
            (Self::ExpiredCompleted, Who::Holder) | (Self::Completed, _) => Reason::Completed,
            (
                Self::Live
                | Self::OverTakeOver
                | Self::OverUncertain
                | Self::GivenUpTakeOver
                | Self::GivenUpUncertain,
                _,
            ) => Reason::TakenOver,
            _ => Reason::NotFound,
        }
    }
}
