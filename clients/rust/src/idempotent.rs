//! Work that is done once, and its result replayed.

use crate::claim::{Attempt, Claim};
use crate::failure::Failure;
use crate::lease::Loss;
use crate::proto;
use crate::request::{Request, Response};
use crate::{Client, time};
use std::fmt;
use std::time::Duration;

/// What asking for the work came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Idempotency {
    /// It is done: now, or by an earlier call.
    Done {
        /// Its result. `None` where none was stored, or where it was kept for less time than the key.
        response: Option<Response>,
        /// Whether an earlier call did it. HTTP: `Idempotency-Replayed: true`.
        replayed: bool,
    },
    /// Somebody else does it. HTTP: 409 with Retry-After.
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The key was used for another request. HTTP: 422.
    Mismatch,
    /// Somebody fell silent who may have done it; an operator decides. HTTP: 409.
    Uncertain,
    /// The token that the request brought is spent: asking again with it does not help. Never with one that is made here.
    Lost(Loss),
}

/// Whether work that failed may have changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It changed nothing: the next call may do it.
    None,
    /// Nobody knows: what happens next is up to the claim's policy.
    Unknown,
}

/// Why work failed, and whether it may have changed anything.
#[derive(Debug)]
pub struct WorkError<E> {
    error: E,
    effect: Effect,
}

impl<E> WorkError<E> {
    /// It changed nothing for certain.
    pub fn no_effect(error: E) -> Self {
        Self {
            error,
            effect: Effect::None,
        }
    }

    /// It may have changed something.
    pub fn unknown_effect(error: E) -> Self {
        Self {
            error,
            effect: Effect::Unknown,
        }
    }
}

/// Why there is no result to give.
#[derive(Debug)]
pub enum IdempotentError<E> {
    /// The work itself failed; its claim was abandoned.
    Work(E),
    /// The claim could not be asked for: the work was not started.
    NotStarted(Failure),
    /// The work was done, but somebody else took it over meanwhile: it may have been done twice. Not stored.
    Lost {
        /// Why the claim was lost.
        loss: Loss,
        /// The result of the work that was done here.
        response: Response,
    },
    /// The work was done, but its result could not be stored. It must not simply be done again: the claim stands until
    /// its lease ends, and its policy decides then.
    NotStored {
        /// Why it could not be stored.
        failure: Failure,
        /// The result of the work.
        response: Response,
    },
}

impl<E: fmt::Display> fmt::Display for IdempotentError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => write!(f, "the work failed: {error}"),
            Self::NotStarted(failure) => write!(f, "the work was not started: {failure}"),
            Self::Lost { loss, .. } => {
                write!(f, "the work is done, but its claim was lost: {loss}")
            }
            Self::NotStored { failure, .. } => {
                write!(
                    f,
                    "the work is done, but its result is not stored: {failure}"
                )
            }
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for IdempotentError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Work(error) => Some(error),
            Self::NotStarted(failure) | Self::NotStored { failure, .. } => Some(failure),
            Self::Lost { loss, .. } => Some(loss),
        }
    }
}

impl Client {
    /// Does the work unless it has been done, and remembers its result.
    ///
    /// Dropping the future gives the claim up in the background: with no effect where the work had not been started, else
    /// with an unknown one.
    ///
    /// # Errors
    ///
    /// Where the work failed, or the claim could not be asked for, or the result not be stored.
    pub async fn idempotent<E>(
        &self,
        request: &Request,
        work: impl AsyncFnOnce(&Claim) -> Result<Response, WorkError<E>>,
    ) -> Result<Idempotency, IdempotentError<E>> {
        let mut claim = match self
            .begin(request)
            .await
            .map_err(IdempotentError::NotStarted)?
        {
            Attempt::Claimed(claim) => claim,
            Attempt::Replay(proto::Replay { response, .. }) => {
                return Ok(Idempotency::Done {
                    response: response.map(Into::into),
                    replayed: true,
                });
            }
            Attempt::InFlight(in_flight) => {
                return Ok(Idempotency::InFlight {
                    retry_after: time::from_wire(in_flight.retry_after),
                });
            }
            Attempt::Mismatch(_) => return Ok(Idempotency::Mismatch),
            Attempt::Uncertain(_) => return Ok(Idempotency::Uncertain),
            Attempt::Lost(loss) => return Ok(Idempotency::Lost(loss)),
        };
        let response = match work(&claim).await {
            Ok(response) => response,
            Err(WorkError { error, effect }) => {
                if let Err(failure) = claim.abandon(effect, "the work failed").await {
                    tracing::debug!(%failure, "a claim could not be abandoned");
                }
                return Err(IdempotentError::Work(error));
            }
        };
        match claim.complete(Some(response.clone()), None).await {
            Ok(Ok(())) => Ok(Idempotency::Done {
                response: Some(response),
                replayed: false,
            }),
            Ok(Err(loss)) => Err(IdempotentError::Lost { loss, response }),
            Err(failure) => {
                claim.leave();
                Err(IdempotentError::NotStored { failure, response })
            }
        }
    }
}
