//! Reads what a script returned: `{now, kind, ...}`.

use crate::domain::failure::{Cause, Failure};
use redis::Value;
use std::time::Duration;

/// The rest of a script's reply, read from front to back.
#[derive(Debug)]
pub(super) struct Reply {
    /// Microseconds on Redis's clock.
    pub(super) now: i64,
    /// The word that says what came of the call.
    pub(super) kind: String,
    rest: Fields,
}

impl Reply {
    pub(super) fn parse(value: Value) -> Result<Self, Failure> {
        let mut rest = Fields::of(value)?;
        Ok(Self {
            now: rest.integer()?,
            kind: rest.text()?,
            rest,
        })
    }

    /// The fields after the kind.
    pub(super) fn fields(&mut self) -> &mut Fields {
        &mut self.rest
    }

    /// Time from now until a moment on Redis's clock, rounded down to a millisecond; zero if it has passed.
    pub(super) fn left(&self, until: i64) -> Duration {
        Duration::from_millis(micros_left(self.now, until) / 1000)
    }

    /// Time to wait until a moment on Redis's clock, rounded up to a millisecond: for asking again, not before it.
    pub(super) fn wait(&self, until: i64) -> Duration {
        Duration::from_millis(micros_left(self.now, until).div_ceil(1000))
    }

    /// Time from a moment on Redis's clock until now, rounded down to a millisecond.
    pub(super) fn since(&self, earlier: i64) -> Duration {
        Duration::from_millis(micros_left(earlier, self.now) / 1000)
    }

    /// A span of time on Redis's clock; none where it is negative, which says that there was none.
    pub(super) fn lasted(&mut self) -> Result<Option<Duration>, Failure> {
        let micros = self.fields().integer()?;
        Ok(u64::try_from(micros).ok().map(Duration::from_micros))
    }

    /// A kind that the script's header does not name.
    pub(super) fn unknown(&self) -> Failure {
        defect(format!("a script answered {}", self.kind))
    }
}

fn micros_left(now: i64, until: i64) -> u64 {
    u64::try_from(until.saturating_sub(now)).unwrap_or(0)
}

/// Values in a row.
#[derive(Debug)]
pub(super) struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn of(value: Value) -> Result<Self, Failure> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            other => Err(unexpected("an array", &other)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    fn next(&mut self) -> Result<Value, Failure> {
        self.0
            .next()
            .ok_or_else(|| defect("a script's reply is too short"))
    }

    pub(super) fn integer(&mut self) -> Result<i64, Failure> {
        match self.next()? {
            Value::Int(integer) => Ok(integer),
            other => Err(unexpected("an integer", &other)),
        }
    }

    pub(super) fn flag(&mut self) -> Result<bool, Failure> {
        Ok(self.integer()? == 1)
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, Failure> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(unexpected("bytes", &other)),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, Failure> {
        String::from_utf8(self.bytes()?).map_err(|_| defect("a script's reply is not UTF-8"))
    }

    pub(super) fn nested(&mut self) -> Result<Fields, Failure> {
        Fields::of(self.next()?)
    }
}

fn unexpected(wanted: &str, got: &Value) -> Failure {
    let got = match got {
        Value::Nil => "nil",
        Value::Int(_) => "an integer",
        Value::BulkString(_) => "bytes",
        Value::Array(_) => "an array",
        _ => "something else",
    };
    defect(format!("a script's reply has {got} for {wanted}"))
}

/// A reply that no script of ours gives.
pub(super) fn defect(what: impl std::fmt::Display) -> Failure {
    Failure::Defect(Cause::new(what))
}
