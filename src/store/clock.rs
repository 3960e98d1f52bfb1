//! What this service knows of Redis's clock.
//!
//! A reply that carries `TIME` bounds the difference between Redis's clock and ours from both sides: the clock was
//! read after the call was sent and before its reply came. The lower bound is what deadlines are made from, so
//! that a command never outlives the call that sent it. Replies narrow the bounds; one that contradicts them
//! means that Redis's clock jumped.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Clocks drift apart by a millisecond at most in this time (at 500 ppm, the most that NTP corrects).
const TRUSTED_FOR: Duration = Duration::from_secs(2);

/// It is asked every half second, so whoever does not hear of it for so long may take it to have been away.
const AWAY_AFTER: Duration = Duration::from_millis(1500);
/// Within this all services have heard of it again, and said what they have to say.
const AWAY_A_MOMENT_AGO: Duration = Duration::from_millis(2500);

/// Redis's clock as seen from here, and the highest fencing token seen.
#[derive(Debug)]
pub(super) struct Clock {
    /// Our monotonic clock counts from here.
    origin: Instant,
    bounds: Mutex<Option<Bounds>>,
    highest_fence: AtomicI64,
    silence: Silence,
}

/// Whether Redis was away: microseconds on our clock, 0 for never.
#[derive(Debug, Default)]
struct Silence {
    heard: AtomicI64,
    /// When it was heard again after it had not been for long.
    ended: AtomicI64,
}

/// Redis's clock less ours, in microseconds, is between the two.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    lower: i64,
    upper: i64,
    since: Instant,
    /// When the newest of the replies they were made from came.
    heard: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            origin: Instant::now(),
            bounds: Mutex::new(None),
            highest_fence: AtomicI64::new(0),
            silence: Silence::default(),
        }
    }

    /// Takes note of a reply that said what time it was.
    pub(super) fn observe(&self, sent: Instant, received: Instant, redis_micros: i64) {
        self.silence.heard(self.micros(received));
        let seen = Bounds {
            lower: redis_micros - self.micros(received),
            upper: redis_micros - self.micros(sent),
            since: received,
            heard: received,
        };
        let mut bounds = self
            .bounds
            .lock()
            .expect("nothing panics while it holds the clock");
        *bounds = Some(match *bounds {
            Some(known) if known.agrees_with(&seen) => Bounds {
                lower: known.lower.max(seen.lower),
                upper: known.upper.min(seen.upper),
                since: known.since,
                heard: known.heard.max(received),
            },
            // It was on its way when the clock was seen to be behind that: it may have been read before a jump back.
            Some(known) if sent < known.heard && seen.lower > known.upper => known,
            _ => seen,
        });
    }

    /// The moment on Redis's clock that is at or before `limit` on ours; 0, which has always passed, while nothing is known.
    pub(super) fn not_after(&self, limit: Instant) -> i64 {
        let bounds = self
            .bounds
            .lock()
            .expect("nothing panics while it holds the clock");
        bounds.map_or(0, |bounds| bounds.lower + self.micros(limit))
    }

    /// Whether Redis was away a moment ago, or is away, so that what is sent now is read once it is back: those that could
    /// not be heard then are yet to be heard again.
    pub(super) fn was_away(&self) -> bool {
        self.silence
            .lasts_or_ended_lately(self.micros(Instant::now()))
    }

    /// The highest fencing token that a grant of this service's carried.
    pub(super) fn highest_fence(&self) -> i64 {
        self.highest_fence.load(Ordering::Relaxed)
    }

    pub(super) fn saw_fence(&self, fence: i64) {
        self.highest_fence.fetch_max(fence, Ordering::Relaxed);
    }

    fn micros(&self, at: Instant) -> i64 {
        match at.checked_duration_since(self.origin) {
            Some(since) => micros(since),
            None => -micros(self.origin.duration_since(at)),
        }
    }
}

impl Silence {
    fn heard(&self, now: i64) {
        let before = self.heard.fetch_max(now, Ordering::Relaxed);
        if before > 0 && now - before > micros(AWAY_AFTER) {
            self.ended.fetch_max(now, Ordering::Relaxed);
        }
    }

    fn lasts_or_ended_lately(&self, now: i64) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        let ended = self.ended.load(Ordering::Relaxed);
        (heard > 0 && now - heard > micros(AWAY_AFTER))
            || (ended > 0 && now - ended < micros(AWAY_A_MOMENT_AGO))
    }
}

/// The moment on Redis's clock that is at or before `limit` on ours, by one reply alone.
pub(super) fn after(redis_micros: i64, received: Instant, limit: Instant) -> i64 {
    redis_micros + micros(limit.saturating_duration_since(received))
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("no process runs for 292,000 years")
}

impl Bounds {
    fn agrees_with(&self, seen: &Bounds) -> bool {
        seen.lower <= self.upper
            && seen.upper >= self.lower
            && seen.since.saturating_duration_since(self.since) < TRUSTED_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(clock: &Clock, millis: u32) -> Instant {
        clock.origin + MS * millis
    }

    #[test]
    fn nothing_is_allowed_while_nothing_is_known() {
        let clock = Clock::new();
        assert_eq!(clock.not_after(at(&clock, 1000)), 0);
    }

    #[test]
    fn a_deadline_is_never_later_on_redis_than_here() {
        let clock = Clock::new();
        // Sent at 10 ms, read at some moment up to 30 ms as 5,000,000 µs.
        clock.observe(at(&clock, 10), at(&clock, 30), 5_000_000);
        assert_eq!(clock.not_after(at(&clock, 30)), 5_000_000);
        // A quicker reply narrows it: read at 40 ms to 42 ms.
        clock.observe(at(&clock, 40), at(&clock, 42), 5_029_000);
        assert_eq!(clock.not_after(at(&clock, 42)), 5_029_000);
        // A slower one changes nothing.
        clock.observe(at(&clock, 50), at(&clock, 90), 5_040_000);
        assert_eq!(clock.not_after(at(&clock, 42)), 5_029_000);
    }

    #[test]
    fn a_jump_of_redis_clock_is_noticed_in_either_direction() {
        let clock = Clock::new();
        clock.observe(at(&clock, 10), at(&clock, 11), 5_000_000);
        clock.observe(at(&clock, 20), at(&clock, 21), 1_000_000);
        assert_eq!(clock.not_after(at(&clock, 21)), 1_000_000);
        clock.observe(at(&clock, 30), at(&clock, 31), 9_000_000);
        assert_eq!(clock.not_after(at(&clock, 31)), 9_000_000);
    }

    #[test]
    fn a_reply_from_before_a_jump_back_that_is_read_after_it_changes_nothing() {
        let clock = Clock::new();
        clock.observe(at(&clock, 10), at(&clock, 11), 5_000_000);
        clock.observe(at(&clock, 20), at(&clock, 21), 1_000_000);
        clock.observe(at(&clock, 19), at(&clock, 22), 5_009_500);
        assert_eq!(clock.not_after(at(&clock, 22)), 1_001_000);
        // One that was sent since is newer for certain.
        clock.observe(at(&clock, 23), at(&clock, 24), 5_013_500);
        assert_eq!(clock.not_after(at(&clock, 24)), 5_013_500);
    }

    #[test]
    fn bounds_are_renewed_before_clocks_drift_apart() {
        let clock = Clock::new();
        clock.observe(at(&clock, 10), at(&clock, 11), 5_000_000);
        clock.observe(at(&clock, 20_000), at(&clock, 20_100), 24_990_500);
        assert_eq!(clock.not_after(at(&clock, 20_100)), 24_990_500);
    }

    #[test]
    fn redis_was_away_for_a_while_after_it_was_not_heard_for_long() {
        let silence = Silence::default();
        let ms = |millis: i64| millis * 1000;
        let away = |millis| silence.lasts_or_ended_lately(ms(millis));
        silence.heard(ms(5_000));
        assert!(!away(5_000), "it may have been there");
        silence.heard(ms(6_000));
        assert!(!away(6_000) && !away(7_500));
        // What is sent now is read when it is back.
        assert!(away(7_600));
        silence.heard(ms(8_000));
        // One that was on its way says nothing.
        silence.heard(ms(7_900));
        assert!(away(8_000));
        silence.heard(ms(9_000));
        silence.heard(ms(10_000));
        assert!(away(10_400));
        assert!(!away(10_500));
    }

    #[test]
    fn the_highest_fencing_token_only_grows() {
        let clock = Clock::new();
        clock.saw_fence(7);
        clock.saw_fence(3);
        assert_eq!(clock.highest_fence(), 7);
    }
}
