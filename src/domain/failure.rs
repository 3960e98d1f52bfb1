//! What can go wrong with a call. An expected result is an outcome, never a failure.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// Why a value was refused: what is wrong with it, for the client, without repeating the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What the field must be, in a few words.
    pub why: String,
    /// True where it is just too long or too large.
    pub too_large: bool,
}

impl Refused {
    /// A value that is missing, malformed or out of range.
    pub fn invalid(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            too_large: false,
        }
    }

    /// A value that is over a limit of the server's.
    pub fn too_large(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            too_large: true,
        }
    }
}

/// A field of a request and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldViolation {
    /// The field's name as in the contract, dotted where it is nested.
    pub field: Cow<'static, str>,
    /// What is wrong with it.
    pub refused: Refused,
}

/// What is told to nobody but the log: an error of a driver, with hosts and inner texts.
///
/// It has no `Display`, so that it cannot slip into a text for a client.
pub struct Cause(String);

impl Cause {
    /// Keeps an error's text for the log.
    pub fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }

    /// The text, for a log line.
    pub fn for_log(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cause({})", self.0)
    }
}

/// Why a call ended without an outcome.
#[derive(Debug)]
pub enum Failure {
    /// Fields of the request are missing, malformed or out of range. Nothing happened.
    Invalid(Vec<FieldViolation>),
    /// The store could not be asked in time, or would not answer. What came of it is unknown.
    StoreUnavailable {
        /// When it may be worth asking again.
        retry_after: Duration,
        /// What the driver said.
        cause: Cause,
    },
    /// The caller's deadline passed.
    DeadlineExceeded,
    /// The service, or the connection that the call came by, is about to end. Nothing was granted; a place in a queue stays for
    /// a while.
    Draining,
    /// The caller went away, or took its call back.
    Cancelled,
    /// The response of a completed claim was lost before its time.
    ResponseLost,
    /// A defect of the service.
    Defect(Cause),
}

impl Failure {
    /// One bad field.
    pub fn field(field: impl Into<Cow<'static, str>>, refused: Refused) -> Self {
        let field = field.into();
        Self::Invalid(vec![FieldViolation { field, refused }])
    }
}

/// Collects what is wrong with a request, so that every bad field is named at once.
#[derive(Debug, Default)]
pub struct Violations(Vec<FieldViolation>);

impl Violations {
    /// The value, or `None` after noting what is wrong with it.
    pub fn check<T>(
        &mut self,
        field: impl Into<Cow<'static, str>>,
        value: Result<T, Refused>,
    ) -> Option<T> {
        let field = field.into();
        match value {
            Ok(value) => Some(value),
            Err(refused) => {
                self.0.push(FieldViolation { field, refused });
                None
            }
        }
    }

    /// The parts once all of them are there, else the failure that names each bad field.
    pub fn finish<T>(self, parts: Option<T>) -> Result<T, Failure> {
        match parts {
            Some(parts) if self.0.is_empty() => Ok(parts),
            _ => Err(Failure::Invalid(self.0)),
        }
    }
}
