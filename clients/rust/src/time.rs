//! Durations on the wire.

use std::time::{Duration, Instant};

/// A duration as the messages have it.
#[must_use]
pub fn to_wire(duration: Duration) -> prost_types::Duration {
    // Nothing that the service takes is anywhere near the limit.
    duration.try_into().unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// What is told as time left; nothing told, or less than nothing, is none.
pub(crate) fn from_wire(duration: Option<prost_types::Duration>) -> Duration {
    duration
        .and_then(|duration| duration.try_into().ok())
        .unwrap_or_default()
}

/// Longer than anything is waited for, and short enough for every clock and header.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The moment that is so much later than another. What a caller or a service takes for endless is not too long for it.
pub(crate) fn later(moment: Instant, by: Duration) -> Instant {
    moment + by.min(FOR_EVER)
}
