//! Durations as they are stored: whole milliseconds, rounded up. Two that could be mistaken for one another
//! are two types. And moments, which are Redis's alone to name.

use super::failure::Refused;
use std::time::Duration;

/// Microseconds since 1970 on Redis's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

/// Whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(u64);

impl Millis {
    /// A duration rounded up to a millisecond, so that nobody gets less than was asked for.
    pub fn rounded_up(duration: Duration) -> Self {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        Self(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// A number of milliseconds.
    pub const fn new(millis: u64) -> Self {
        Self(millis)
    }

    /// As a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

macro_rules! bounded {
    ($(#[$doc:meta])* $type:ident, $what:literal, $least:expr, $most:expr, $range:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $type(Millis);

        impl $type {
            /// Takes a duration within the bounds.
            pub fn parse(duration: Duration) -> Result<Self, Refused> {
                let (least, most): (Duration, Duration) = ($least, $most);
                if (least..=most).contains(&duration) {
                    return Ok(Self(Millis::rounded_up(duration)));
                }
                Err(Refused::invalid(concat!($what, " must be ", $range)))
            }

            /// As stored.
            pub fn millis(self) -> Millis {
                self.0
            }
        }
    };
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
const NONE: Duration = Duration::ZERO;
const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = secs(3600);
const DAY: Duration = secs(24 * 3600);

bounded!(
    /// How long a claim stands without being renewed.
    ClaimLease, "lease", MILLISECOND, HOUR, "1 ms to 1 h"
);
bounded!(
    /// How long a lock stands without being renewed.
    LockLease, "lease", MILLISECOND, DAY, "1 ms to 24 h"
);
bounded!(
    /// How long a claim may wait for the one in flight.
    ClaimWait, "wait", NONE, secs(60), "at most 60 s"
);
bounded!(
    /// How long an acquisition may wait in turn.
    LockWait, "wait", NONE, HOUR, "at most 1 h"
);
bounded!(
    /// How long a lock stays taken after it was acquired, even if released sooner.
    HoldAtLeast, "hold_at_least", NONE, DAY, "at most 24 h"
);
bounded!(
    /// How long nobody gets a lock after its lease ended without a release.
    LockDelay, "lock_delay", NONE, secs(60), "at most 60 s"
);

impl Default for ClaimLease {
    fn default() -> Self {
        Self(Millis::new(30_000))
    }
}

impl Default for LockLease {
    fn default() -> Self {
        Self(Millis::new(30_000))
    }
}

/// How long a key, or a response, is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention(Millis);

impl Retention {
    /// What a claim gets that names none: 24 h, or the server's largest where that is less.
    pub fn default_within(largest: Retention) -> Self {
        Self(Millis::rounded_up(DAY).min(largest.0))
    }

    /// A retention of a key: 1 s to the server's largest.
    pub fn parse(duration: Duration, largest: Retention) -> Result<Self, Refused> {
        let millis = Millis::rounded_up(duration);
        if duration >= secs(1) && millis <= largest.0 {
            return Ok(Self(millis));
        }
        Err(Refused::invalid(format!(
            "retention must be 1 s to {} s",
            largest.0.get() / 1000
        )))
    }

    /// A retention of a response, which may be as short as a millisecond.
    pub fn parse_of_response(duration: Duration, largest: Retention) -> Result<Self, Refused> {
        let millis = Millis::rounded_up(duration);
        if duration > NONE && millis <= largest.0 {
            return Ok(Self(millis));
        }
        Err(Refused::invalid(format!(
            "response_retention must be more than zero, and at most {} s",
            largest.0.get() / 1000
        )))
    }

    /// The server's largest.
    pub const fn largest(millis: Millis) -> Self {
        Self(millis)
    }

    /// One that a grant was stored with, or the server's largest where that is less.
    pub fn stored_within(millis: Millis, largest: Retention) -> Self {
        Self(millis.min(largest.0))
    }

    /// As stored.
    pub const fn millis(self) -> Millis {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_duration_is_rounded_up_to_a_millisecond() {
        assert_eq!(Millis::rounded_up(Duration::from_nanos(1)).get(), 1);
        assert_eq!(Millis::rounded_up(Duration::from_micros(1_001)).get(), 2);
        assert_eq!(Millis::rounded_up(Duration::from_millis(7)).get(), 7);
    }

    #[test]
    fn a_lease_keeps_within_its_bounds() {
        assert!(ClaimLease::parse(Duration::from_micros(999)).is_err());
        assert!(ClaimLease::parse(MILLISECOND).is_ok());
        assert!(ClaimLease::parse(HOUR).is_ok());
        assert!(ClaimLease::parse(HOUR + Duration::from_nanos(1)).is_err());
        assert!(LockLease::parse(DAY).is_ok());
    }

    #[test]
    fn the_default_retention_is_never_over_the_largest() {
        let largest = Retention::largest(Millis::new(5_000));
        assert_eq!(Retention::default_within(largest), largest);
    }
}
