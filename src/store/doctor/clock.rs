//! What time a Redis has, and whether its clock jumps.

use super::{Asked, Seen};
use std::time::{Duration, Instant, SystemTime};

const LOOKS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);
/// What two looks may differ by without a jump: scheduling aside, clocks that NTP corrects drift far less.
const SLACK: i64 = 20_000;

/// What was seen of a clock, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSeen {
    /// How far it is ahead of this machine's at least; less than zero where it may be behind.
    pub ahead: i64,
    /// How far it is behind this machine's at least; less than zero where it may be ahead.
    pub behind: i64,
    /// How far it jumped while it was looked at; forward where that is more than zero.
    pub jumped: Option<i64>,
}

pub(super) async fn look(asked: &mut Asked) -> Seen<ClockSeen> {
    let start = Instant::now();
    let mut wall: Option<Bounds> = None;
    let mut steady: Option<Bounds> = None;
    let mut jumped = None;
    for n in 0..LOOKS {
        if n > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let (wall_before, sent) = (wall_clock(), start.elapsed());
        let (seconds, part): (i64, i64) = asked.ask(&redis::cmd("TIME")).await?;
        let (received, wall_after) = (start.elapsed(), wall_clock());
        let told = seconds * 1_000_000 + part;

        let seen = Bounds::new(told, micros(sent), micros(received));
        jumped = jumped.or_else(|| steady.and_then(|known| known.jump_to(seen)));
        steady = Some(match steady {
            Some(known) if jumped.is_none() => known.and(seen),
            _ => seen,
        });
        let seen = Bounds::new(told, wall_before, wall_after);
        wall = Some(wall.map_or(seen, |known| known.narrower(seen)));
    }
    let wall = wall.expect("it was looked at");
    Ok(ClockSeen {
        ahead: wall.lower,
        behind: -wall.upper,
        jumped,
    })
}

/// Redis's clock less another is between the two.
#[derive(Clone, Copy)]
struct Bounds {
    lower: i64,
    upper: i64,
}

impl Bounds {
    fn new(told: i64, before: i64, after: i64) -> Self {
        Self {
            lower: told - after,
            upper: told - before,
        }
    }

    fn jump_to(self, later: Self) -> Option<i64> {
        let forward = later.lower - self.upper;
        let back = self.lower - later.upper;
        match (forward > SLACK, back > SLACK) {
            (true, _) => Some(forward),
            (_, true) => Some(-back),
            (false, false) => None,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            lower: self.lower.max(other.lower),
            upper: self.upper.min(other.upper),
        }
    }

    fn narrower(self, other: Self) -> Self {
        if other.upper - other.lower < self.upper - self.lower {
            other
        } else {
            self
        }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Microseconds since 1970 by this machine.
#[expect(
    clippy::disallowed_methods,
    reason = "Redis's clock is held against this one; nothing is decided by it"
)]
fn wall_clock() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_told_apart_from_a_slow_answer() {
        let quick = Bounds::new(5_000_000, 0, 1_000);
        // Half a second passed, and the answer took a third.
        let slow = Bounds::new(5_400_000, 300_000, 600_000);
        assert_eq!(quick.jump_to(slow), None);
        let forward = Bounds::new(8_500_000, 500_000, 501_000);
        assert_eq!(quick.jump_to(forward), Some(2_999_000));
        let back = Bounds::new(4_000_000, 500_000, 501_000);
        assert_eq!(quick.jump_to(back), Some(-1_499_000));
    }
}
