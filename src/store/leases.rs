//! What the scripts of claims and those of locks are given and answer alike, and the leases that streams keep alive.

use super::reply::{Reply, defect};
use super::{Store, keys, scripts};
use crate::domain::duration::Millis;
use crate::domain::failure::Failure;
use crate::domain::lease::{LeaseName, LossReason, RenewOutcome, Renewal};
use std::time::{Duration, Instant};

/// A caller that is told to ask again is told to do so within this time, since work may end before its lease.
pub(super) const ASK_AGAIN_WITHIN: Duration = Duration::from_secs(1);

/// An argument that is empty where the script is to use what it knows.
pub(super) fn optional(millis: Option<Millis>) -> String {
    millis.map_or_else(String::new, |millis| millis.get().to_string())
}

/// What a renewal came to.
pub(super) fn renewed(reply: &mut Reply) -> Result<RenewOutcome, Failure> {
    match reply.kind.as_str() {
        "renewed" => {
            let lease_end = reply.fields().integer()?;
            Ok(RenewOutcome::Renewed {
                lease_left: reply.left(lease_end),
                fencing_token: reply.fields().integer()?,
            })
        }
        "lost" => Ok(RenewOutcome::Lost(loss(reply)?)),
        _ => Err(reply.unknown()),
    }
}

/// Why the token does not hold what it names.
pub(super) fn loss(reply: &mut Reply) -> Result<LossReason, Failure> {
    let word = reply.fields().text()?;
    LossReason::parse(&word).ok_or_else(|| defect(format!("a script lost for the reason {word}")))
}

/// A message on a stream of this service's that keeps leases alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Which stream.
    pub stream: u64,
    /// When it came: microseconds on Redis's clock as estimated here, greater than of all earlier ones on the stream.
    pub stamp: i64,
}

/// How a lease stands that a stream kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is on the stream.
    Kept {
        /// Time left on it.
        lease_left: Duration,
    },
    /// It is on another stream by now, or on none.
    Elsewhere,
    /// Its token does not hold what it names.
    Lost(LossReason),
}

impl Store {
    /// Waits until something is known of Redis's clock, no longer than until `limit`.
    pub async fn knows_the_time(&self, limit: Instant) {
        // Where nothing is, whatever is asked next fails for the same reason.
        let _ = self.pool.link(limit).await;
    }

    /// A moment on Redis's clock, as far as it is known: not after it, and little before.
    pub fn stamp(&self, at: Instant) -> i64 {
        self.clock.not_after(at)
    }

    /// What scripts know a stream of this service's by; nothing where none asked.
    pub(super) fn owner(&self, asked: Option<Asked>) -> (String, i64) {
        match asked {
            Some(asked) => (self.stream(asked.stream), asked.stamp),
            None => (String::new(), 0),
        }
    }

    fn stream(&self, number: u64) -> String {
        format!("{}.{number}", self.service.as_str())
    }

    /// Renews a lease for a stream, which it belongs to from then on.
    pub async fn renew_for(
        &self,
        asked: Asked,
        renewal: &Renewal,
        limit: Instant,
    ) -> Result<RenewOutcome, Failure> {
        match renewal {
            Renewal::Lock(renewal) => self.renew_lock(renewal, Some(asked), limit).await,
            Renewal::Claim(renewal) => self.renew_claim(renewal, Some(asked), limit).await,
        }
    }

    /// Takes a lease off a stream, if it is on it, and leaves it standing; says how much of it is left.
    pub async fn detach(
        &self,
        asked: Asked,
        lease: &LeaseName,
        limit: Instant,
    ) -> Result<RenewOutcome, Failure> {
        let (script, keys, token) = match lease {
            LeaseName::Lock(id, token) => (&scripts::DETACH_LOCK, keys::lock(id), token.as_str()),
            LeaseName::Claim(id, token) => {
                (&scripts::DETACH_CLAIM, keys::claim(id), token.as_str())
            }
        };
        let stream = self.stream(asked.stream);
        let mut reply = self
            .run(script, &keys, limit, |call| {
                call.arg(token).arg(&stream).arg(asked.stamp);
            })
            .await?;
        renewed(&mut reply)
    }

    /// Looks how a lease stands, and leaves it as it is.
    pub async fn look_at_lease(
        &self,
        stream: u64,
        lease: &LeaseName,
        limit: Instant,
    ) -> Result<Standing, Failure> {
        let (script, keys, token) = match lease {
            LeaseName::Lock(id, token) => (&scripts::LOOK_AT_LOCK, keys::lock(id), token.as_str()),
            LeaseName::Claim(id, token) => {
                (&scripts::LOOK_AT_CLAIM, keys::claim(id), token.as_str())
            }
        };
        let stream = self.stream(stream);
        let mut reply = self
            .run(script, &keys, limit, |call| {
                call.arg(token).arg(&stream);
            })
            .await?;
        match reply.kind.as_str() {
            "kept" => {
                let lease_end = reply.fields().integer()?;
                Ok(Standing::Kept {
                    lease_left: reply.left(lease_end),
                })
            }
            "elsewhere" => Ok(Standing::Elsewhere),
            "lost" => Ok(Standing::Lost(loss(&mut reply)?)),
            _ => Err(reply.unknown()),
        }
    }

    /// Ends a lease that a stream kept alive that is no more, unless another stream has it by now.
    pub async fn end_lease(
        &self,
        stream: u64,
        lease: &LeaseName,
        limit: Instant,
    ) -> Result<(), Failure> {
        let (script, keys, token) = match lease {
            LeaseName::Lock(id, token) => (&scripts::END_LOCK, keys::lock(id), token.as_str()),
            LeaseName::Claim(id, token) => (&scripts::END_CLAIM, keys::claim(id), token.as_str()),
        };
        let stream = self.stream(stream);
        let reply = self
            .run(script, &keys, limit, |call| {
                call.arg(token).arg(&stream);
                if let LeaseName::Claim(..) = lease {
                    call.arg(self.settings.max_retention.millis().get());
                }
            })
            .await?;
        match reply.kind.as_str() {
            "ended" | "kept" => Ok(()),
            _ => Err(reply.unknown()),
        }
    }
}
