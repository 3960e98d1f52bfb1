//! The time that a call has: its own deadline, or that of the store.

use super::status::from_failure;
use crate::coordinator::CallTime;
use crate::domain::failure::Failure;
use http::HeaderMap;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

/// When the caller stops listening, in a request's extensions; absent where it sent no `grpc-timeout`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerDeadline(pub(super) Instant);

impl CallerDeadline {
    /// The deadline that a request's headers state. The format is at most eight digits and a unit
    /// (gRPC over HTTP/2, "Requests"); what has another one is no deadline.
    pub(super) fn read(headers: &HeaderMap, now: Instant) -> Option<Self> {
        let text = headers.get("grpc-timeout")?.to_str().ok()?;
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let count: u64 = digits.parse().ok()?;
        let timeout = match unit {
            "H" => Duration::from_secs(count * 3600),
            "M" => Duration::from_secs(count * 60),
            "S" => Duration::from_secs(count),
            "m" => Duration::from_millis(count),
            "u" => Duration::from_micros(count),
            "n" => Duration::from_nanos(count),
            _ => return None,
        };
        now.checked_add(timeout).map(Self)
    }
}

/// How long a call may work: until the store's time is over, or shortly before the caller stops listening.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit {
    /// When to stop.
    pub(super) at: Instant,
    caller_is_first: bool,
}

/// What it takes to get an answer to a caller: a tenth of the time it has, at most this.
const LONGEST_MARGIN: Duration = Duration::from_millis(20);

impl TimeLimit {
    pub(super) fn of<T>(request: &tonic::Request<T>, store_timeout: Duration) -> Self {
        let now = Instant::now();
        let store_limit = now + store_timeout;
        let caller_limit = request
            .extensions()
            .get::<CallerDeadline>()
            .map(|deadline| {
                let left = deadline.0.saturating_duration_since(now);
                now + left - (left / 10).min(LONGEST_MARGIN)
            });
        match caller_limit {
            Some(at) if at < store_limit => Self {
                at,
                caller_is_first: true,
            },
            _ => Self {
                at: store_limit,
                caller_is_first: false,
            },
        }
    }

    /// The same for a call that may wait until it is told to stop.
    pub(super) fn with(self, drain: CancellationToken) -> CallTime {
        CallTime {
            limit: self.at,
            is_callers: self.caller_is_first,
            drain,
        }
    }

    /// The answer to a call that worked within this limit.
    pub(super) fn answer<T>(self, result: Result<T, Failure>) -> Result<Response<T>, Status> {
        result
            .map(Response::new)
            .map_err(|failure| from_failure(self.explain(failure)))
    }

    /// Whose time was over when the store did not answer.
    fn explain(self, failure: Failure) -> Failure {
        match failure {
            Failure::StoreUnavailable { .. }
                if self.caller_is_first && Instant::now() >= self.at =>
            {
                Failure::DeadlineExceeded
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().expect("a header value"));
        let now = Instant::now();
        CallerDeadline::read(&headers, now).map(|deadline| deadline.0 - now)
    }

    #[test]
    fn a_deadline_has_up_to_eight_digits_and_a_unit() {
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("3S"), Some(Duration::from_secs(3)));
        assert_eq!(read("99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!(read("5u"), Some(Duration::from_micros(5)));
        assert_eq!(read("0n"), Some(Duration::ZERO));
        for bad in ["", "S", "5", "5s", "-5S", "123456789S", "5 S", "+5S"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
