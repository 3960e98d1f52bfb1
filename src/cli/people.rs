//! Values as people read them.

use std::time::{Duration, SystemTime};

use super::output;

/// What stands where there is no value.
pub(super) const NONE: &str = "-";

/// A text that somebody chose.
pub(super) fn text(text: &str) -> String {
    match text {
        "" => NONE.to_owned(),
        text => output::printable(text),
    }
}

/// A duration to its largest unit, rounded down: `12s`, `3h`.
pub(super) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.is_zero() => "0s".to_owned(),
        0 => "<1s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A duration that the service told.
pub(super) fn told(duration: Option<impl TryInto<Duration>>) -> String {
    duration
        .and_then(|duration| duration.try_into().ok())
        .map_or_else(|| NONE.to_owned(), short)
}

/// How long ago it was by this machine's clock. The service tells points in time on Redis's, which may be another: then
/// the age is off by as much, and nothing is older than it can be.
#[expect(
    clippy::disallowed_methods,
    reason = "for people to read: nothing is decided by it, and the wire tells no age"
)]
pub(super) fn age(time: Option<impl TryInto<SystemTime>>) -> String {
    let Some(time) = time.and_then(|time| time.try_into().ok()) else {
        return NONE.to_owned();
    };
    short(SystemTime::now().duration_since(time).unwrap_or_default())
}

/// A point in time, and how long ago it was.
pub(super) fn moment(time: Option<impl TryInto<SystemTime> + ToString + Copy>) -> String {
    match time {
        Some(time) => format!("{} ({} ago)", time.to_string(), age(Some(time))),
        None => NONE.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_told_by_its_largest_unit() {
        for (millis, text) in [
            (0, "0s"),
            (1, "<1s"),
            (999, "<1s"),
            (12_999, "12s"),
            (119_000, "119s"),
            (120_000, "2m"),
            (7_199_000, "119m"),
            (7_200_000, "2h"),
            (172_799_000, "47h"),
            (172_800_000, "2d"),
        ] {
            assert_eq!(short(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_time_to_come_is_no_age() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(age(Some(time)), "0s");
    }
}
