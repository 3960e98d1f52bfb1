//! Compares what an answer tells with what was foretold, one value at a time.
//!
//! A duration counts from an instant within the call's window to a moment that may itself be known
//! only to lie between two others, and is rounded down to a millisecond (the time to ask again: up).

use std::fmt::Debug;

use crate::model::clock::Moment;
use crate::model::{Fencing, Reason};
use claimlock::rpc::proto;

pub type Verdict = Result<(), String>;

const SECOND: i64 = 1_000_000;
const MS: i64 = 1_000;

/// What the values of one answer are held against.
#[derive(Clone, Copy, Debug)]
pub struct Ledger {
    pub now: Moment,
    /// The highest fencing token that this name has seen.
    pub highest_fencing: i64,
    /// By how much a service may be off beyond rounding, such as time that it takes off an answer
    /// for its own share of the round trip.
    pub tolerance_us: i64,
}

pub fn same<T: PartialEq + Debug>(what: &str, seen: T, expected: T) -> Verdict {
    if seen == expected {
        Ok(())
    } else {
        Err(format!("{what} is {seen:?}, not {expected:?}"))
    }
}

pub fn lost(seen: &proto::Lost, expected: Reason) -> Verdict {
    let reason = match expected {
        Reason::NotFound => proto::LossReason::NotFound,
        Reason::TakenOver => proto::LossReason::TakenOver,
        Reason::Released => proto::LossReason::Released,
        Reason::Forced => proto::LossReason::Forced,
        Reason::Completed => proto::LossReason::Completed,
        Reason::LeaseOver => proto::LossReason::LeaseOver,
    };
    same("the reason of a loss", seen.reason(), reason)
}

impl Ledger {
    pub fn fencing(&self, seen: i64, expected: Fencing) -> Verdict {
        match expected {
            Fencing::Same(fencing) => same("the fencing token", seen, fencing),
            Fencing::New if seen <= self.highest_fencing => Err(format!(
                "the fencing token {seen} is not higher than {}",
                self.highest_fencing
            )),
            Fencing::New if seen < self.now.earliest => Err(format!(
                "the fencing token {seen} is below the clock, {}",
                self.now.earliest
            )),
            Fencing::New if seen >= 1 << 53 => Err(format!("the fencing token {seen} is too high")),
            Fencing::New => Ok(()),
        }
    }

    /// Time left until `end`; none is left of what is past.
    pub fn left(&self, what: &str, seen: Option<prost_types::Duration>, end: Moment) -> Verdict {
        let least = (end.earliest - self.now.latest - (MS - 1)).max(0);
        let most = (end.latest - self.now.earliest).max(0);
        self.within(what, seen, least, most)
    }

    pub fn nothing_left(&self, what: &str, seen: Option<prost_types::Duration>) -> Verdict {
        same(what, micros(what, seen)?, 0)
    }

    /// Time that has passed since `start`.
    pub fn since(&self, what: &str, seen: Option<prost_types::Duration>, start: Moment) -> Verdict {
        let least = (self.now.earliest - start.latest - (MS - 1)).max(0);
        let most = (self.now.latest - start.earliest).max(0);
        self.within(what, seen, least, most)
    }

    /// The time to ask again is that until `end`, a second at most and a millisecond at least.
    pub fn retry_at(&self, seen: Option<prost_types::Duration>, end: Moment) -> Verdict {
        let least = (end.earliest - self.now.latest).clamp(MS, SECOND);
        let most = (end.latest - self.now.earliest + (MS - 1)).clamp(MS, SECOND);
        self.within("retry_after", seen, least, most)
    }

    /// The time to ask again is no later than `end`, where all that is known is that by then
    /// nothing is in the way any more.
    pub fn retry_by(&self, seen: Option<prost_types::Duration>, end: Moment) -> Verdict {
        let most = (end.latest - self.now.earliest + (MS - 1)).clamp(MS, SECOND);
        self.within("retry_after", seen, MS, most)
    }

    pub fn timestamp(
        &self,
        what: &str,
        seen: Option<prost_types::Timestamp>,
        expected: Moment,
    ) -> Verdict {
        let Some(seen) = seen else {
            return Err(format!("{what} is unset"));
        };
        let us = seen.seconds * SECOND + i64::from(seen.nanos) / 1000;
        let least = expected.earliest - (MS - 1) - self.tolerance_us;
        let most = expected.latest + self.tolerance_us;
        if (least..=most).contains(&us) {
            Ok(())
        } else {
            Err(format!("{what} is {us}, not within {expected:?}"))
        }
    }

    fn within(
        &self,
        what: &str,
        seen: Option<prost_types::Duration>,
        least: i64,
        most: i64,
    ) -> Verdict {
        let us = micros(what, seen)?;
        if (least - self.tolerance_us..=most + self.tolerance_us).contains(&us) {
            Ok(())
        } else {
            Err(format!("{what} is {us} µs, not {least} to {most} µs"))
        }
    }
}

/// An unset duration is none. One that is told is a whole number of milliseconds, not below zero.
fn micros(what: &str, seen: Option<prost_types::Duration>) -> Result<i64, String> {
    let seen = seen.unwrap_or_default();
    let nanos = i128::from(seen.seconds) * 1_000_000_000 + i128::from(seen.nanos);
    if nanos < 0 || nanos % 1_000_000 != 0 {
        return Err(format!("{what} is {nanos} ns, which is not rounded"));
    }
    i64::try_from(nanos / 1000).map_err(|_| format!("{what} is {nanos} ns, which is absurd"))
}
