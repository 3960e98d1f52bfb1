//! The transitions of a lock: what each script is given, and what its reply means.

use super::leases::{ASK_AGAIN_WITHIN, Asked, loss, optional, renewed};
use super::reply::{Fields, Reply, defect};
use super::{Store, keys, scripts};
use crate::domain::failure::{Failure, Refused};
use crate::domain::lease::RenewOutcome;
use crate::domain::lock::{
    AcquireLock, AcquireOutcome, Acquired, ForceReleaseLock, ForceReleased, Held, HolderInfo,
    LockInfo, LockMode, ReleaseLock, ReleaseOutcome, RenewLock,
};
use crate::domain::name::LockId;
use crate::domain::token::{LockToken, Nonce};
use std::time::{Duration, Instant};

/// How many holders an operator is shown at most.
const HOLDERS_SHOWN: usize = 1000;

/// What an attempt does that cannot have the lock at once.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// It is answered; a place that another call of its token has in the queue stays.
    None,
    /// It waits in turn, with the ticket that it had, if it had one.
    Join(Option<i64>),
    /// It is answered, and its place in the queue is given up.
    Last,
}

impl Patience {
    fn name(self) -> &'static str {
        match self {
            Self::None => "no",
            Self::Join(_) => "join",
            Self::Last => "last",
        }
    }

    fn ticket(self) -> i64 {
        match self {
            Self::Join(Some(ticket)) => ticket,
            _ => 0,
        }
    }
}

/// What comes of one attempt.
#[derive(Clone, Debug)]
pub enum Attempt {
    /// The call has its answer.
    Ended(AcquireOutcome),
    /// It waits in turn.
    Waits(InQueue),
}

/// A place in the queue.
#[derive(Clone, Debug)]
pub struct InQueue {
    /// What places are ordered by.
    pub ticket: i64,
    /// What stood in the way.
    pub held: Held,
    /// When to try again: of the first in the queue alone. All others are woken.
    pub try_after: Option<Duration>,
}

/// One that waits in turn, as its service speaks for it.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Which acquisition.
    pub token: LockToken,
    /// Which call.
    pub nonce: Nonce,
    /// Its place.
    pub ticket: i64,
    /// How it wants to share the lock.
    pub mode: LockMode,
    /// With how many; 0 for no limit.
    pub max_holders: u32,
}

/// Which waiters of a service's have something to do.
#[derive(Clone, Debug)]
pub struct Turns {
    /// The first in the queue, if it is this service's, and when it may try.
    pub first: Option<(LockToken, Duration)>,
    /// Which of those spoken for lost their place to a later call of their token, the first being 0.
    pub taken: Vec<usize>,
    /// Those that wait in vain, since their token is spent.
    pub over: Vec<LockToken>,
}

impl Store {
    /// Tries to acquire a lock; `nonce` names the call, for [`Store::undo_lock`].
    pub async fn acquire_lock(
        &self,
        request: &AcquireLock,
        nonce: &Nonce,
        patience: Patience,
        limit: Instant,
    ) -> Result<Attempt, Failure> {
        let mut reply = self
            .run(
                &scripts::ACQUIRE_LOCK,
                &keys::lock(&request.id),
                limit,
                |call| {
                    call.arg(request.token.as_str())
                        .arg(nonce.as_bytes())
                        .arg(request.holder.as_str())
                        .arg(request.lease.millis().get())
                        .arg(request.mode.name())
                        .arg(request.max_holders)
                        .arg(request.hold_at_least.millis().get())
                        .arg(request.lock_delay.millis().get())
                        .arg(patience.name())
                        .arg(self.service.as_str())
                        .arg(patience.ticket())
                        .arg(u8::from(self.clock.was_away()));
                },
            )
            .await?;
        match reply.kind.as_str() {
            "acquired" => {
                let already_held = reply.fields().flag()?;
                let fencing_token = reply.fields().integer()?;
                let lease_end = reply.fields().integer()?;
                self.clock.saw_fence(fencing_token);
                self.count_held(reply.fields().nested()?)?;
                Ok(Attempt::Ended(AcquireOutcome::Acquired(Acquired {
                    token: request.token.clone(),
                    fencing_token,
                    lease_left: reply.left(lease_end),
                    waited: Duration::ZERO,
                    already_held,
                })))
            }
            "held" | "queued" => {
                let queue_length = u32::try_from(reply.fields().integer()?).map_err(defect)?;
                let changes_at = reply.fields().integer()?;
                let at_least = Duration::from_millis(1);
                let holders = holders(&mut reply)?;
                self.count_held(reply.fields().nested()?)?;
                let held = Held {
                    queue_length,
                    retry_after: reply.wait(changes_at).clamp(at_least, ASK_AGAIN_WITHIN),
                    holders,
                };
                if reply.kind == "held" {
                    return Ok(Attempt::Ended(AcquireOutcome::Held(held)));
                }
                let ticket = reply.fields().integer()?;
                self.clock.saw_fence(ticket);
                let is_first = reply.fields().flag()?;
                Ok(Attempt::Waits(InQueue {
                    ticket,
                    held,
                    try_after: is_first.then(|| reply.wait(changes_at)),
                }))
            }
            "lost" => Ok(Attempt::Ended(AcquireOutcome::Lost(loss(&mut reply)?))),
            "other_mode" => Err(Failure::field(
                "mode",
                Refused::invalid(
                    "mode must be the one that this token holds the lock in, or waits for it in",
                ),
            )),
            _ => Err(reply.unknown()),
        }
    }

    /// Speaks for all waiters of this service's for a lock, for a while from now on.
    pub async fn keep_waiting(
        &self,
        id: &LockId,
        waiters: &[Waiter],
        limit: Instant,
    ) -> Result<Turns, Failure> {
        let mut reply = self
            .run(&scripts::KEEP_WAITING, &keys::lock(id), limit, |call| {
                call.arg(self.service.as_str())
                    .arg(u8::from(self.clock.was_away()));
                for waiter in waiters {
                    call.arg(waiter.token.as_str())
                        .arg(waiter.nonce.as_bytes())
                        .arg(waiter.ticket)
                        .arg(waiter.mode.name())
                        .arg(waiter.max_holders);
                }
            })
            .await?;
        if reply.kind != "waiting" {
            return Err(reply.unknown());
        }
        let first = reply.fields().text()?;
        let wait = u64::try_from(reply.fields().integer()?).unwrap_or(0);
        Ok(Turns {
            first: LockToken::parse(first)
                .ok()
                .map(|token| (token, Duration::from_micros(wait))),
            taken: numbers(reply.fields().nested()?)?,
            over: tokens(reply.fields().nested()?)?,
        })
    }

    /// Takes back the grant that the call named `nonce` created, unless somebody has heard of it, or its place in the queue.
    pub async fn undo_lock(
        &self,
        id: &LockId,
        token: &LockToken,
        nonce: &Nonce,
        limit: Instant,
    ) -> Result<(), Failure> {
        let reply = self
            .run(&scripts::UNDO_LOCK, &keys::lock(id), limit, |call| {
                call.arg(token.as_str()).arg(nonce.as_bytes());
            })
            .await?;
        match reply.kind.as_str() {
            "undone" | "kept" => Ok(()),
            _ => Err(reply.unknown()),
        }
    }

    /// Extends the lease on a lock that is held, for a stream if one asked.
    pub async fn renew_lock(
        &self,
        renewal: &RenewLock,
        asked: Option<Asked>,
        limit: Instant,
    ) -> Result<RenewOutcome, Failure> {
        let (owner, stamp) = self.owner(asked);
        let mut reply = self
            .run(
                &scripts::RENEW_LOCK,
                &keys::lock(&renewal.id),
                limit,
                |call| {
                    call.arg(renewal.token.as_str())
                        .arg(optional(renewal.lease.map(|lease| lease.millis())))
                        .arg(&owner)
                        .arg(stamp);
                },
            )
            .await?;
        renewed(&mut reply)
    }

    /// Releases a lock that is held with this token.
    pub async fn release_lock(
        &self,
        release: &ReleaseLock,
        limit: Instant,
    ) -> Result<ReleaseOutcome, Failure> {
        let mut reply = self
            .run(
                &scripts::RELEASE_LOCK,
                &keys::lock(&release.id),
                limit,
                |call| {
                    call.arg(release.token.as_str());
                },
            )
            .await?;
        match reply.kind.as_str() {
            "released" => {
                let free_at = reply.fields().integer()?;
                if let Some(held) = reply.lasted()? {
                    self.metrics.lock_held(held);
                }
                Ok(ReleaseOutcome::Released {
                    free_in: reply.left(free_at),
                })
            }
            "lost" => Ok(ReleaseOutcome::Lost(loss(&mut reply)?)),
            _ => Err(reply.unknown()),
        }
    }

    /// What an operator sees of a lock; `None` where it is free.
    pub async fn get_lock(&self, id: &LockId, limit: Instant) -> Result<Option<LockInfo>, Failure> {
        self.look_at_lock(id, HOLDERS_SHOWN, limit).await
    }

    /// The same with no more than so many holders.
    pub(super) async fn look_at_lock(
        &self,
        id: &LockId,
        holders_shown: usize,
        limit: Instant,
    ) -> Result<Option<LockInfo>, Failure> {
        let mut reply = self
            .run(&scripts::GET_LOCK, &keys::lock(id), limit, |call| {
                call.arg(holders_shown);
            })
            .await?;
        match reply.kind.as_str() {
            "free" => Ok(None),
            "lock" => {
                let fencing_token = reply.fields().integer()?;
                let queue_length = u32::try_from(reply.fields().integer()?).map_err(defect)?;
                let free_at = reply.fields().integer()?;
                Ok(Some(LockInfo {
                    id: id.clone(),
                    fencing_token,
                    queue_length,
                    free_in: reply.left(free_at),
                    holders: holders(&mut reply)?,
                }))
            }
            _ => Err(reply.unknown()),
        }
    }

    /// Takes a lock away from its holders, some hundreds at a time.
    pub async fn force_release_lock(
        &self,
        request: &ForceReleaseLock,
        limit: Instant,
    ) -> Result<ForceReleased, Failure> {
        let keys = keys::lock(&request.id);
        let mut released = ForceReleased::default();
        let (mut cursor, mut newest) = ("0".to_owned(), 0);
        loop {
            let mut reply = self
                .run(&scripts::FORCE_RELEASE_LOCK, &keys, limit, |call| {
                    call.arg(request.fencing_token).arg(&cursor).arg(newest);
                })
                .await?;
            if reply.kind != "released" {
                return Err(reply.unknown());
            }
            cursor = reply.fields().text()?;
            newest = reply.fields().integer()?;
            released.released_holders +=
                u32::try_from(reply.fields().integer()?).map_err(defect)?;
            released.ended.extend(holders(&mut reply)?);
            self.count_held(reply.fields().nested()?)?;
            if cursor == "0" {
                return Ok(released);
            }
        }
    }

    /// Counts the holds that a script found to be over, each with how long it lasted.
    fn count_held(&self, mut held: Fields) -> Result<(), Failure> {
        while !held.is_empty() {
            let micros = u64::try_from(held.integer()?).unwrap_or(0);
            self.metrics.lock_held(Duration::from_micros(micros));
        }
        Ok(())
    }
}

/// Counted from 0, where scripts count from 1.
fn numbers(mut fields: Fields) -> Result<Vec<usize>, Failure> {
    let mut numbers = Vec::new();
    while !fields.is_empty() {
        numbers.push(usize::try_from(fields.integer()? - 1).map_err(defect)?);
    }
    Ok(numbers)
}

fn tokens(mut fields: Fields) -> Result<Vec<LockToken>, Failure> {
    let mut tokens = Vec::new();
    while !fields.is_empty() {
        tokens.push(LockToken::parse(fields.text()?).map_err(|refused| defect(refused.why))?);
    }
    Ok(tokens)
}

fn holders(reply: &mut Reply) -> Result<Vec<HolderInfo>, Failure> {
    let mut fields = reply.fields().nested()?;
    let mut holders = Vec::new();
    while !fields.is_empty() {
        let holder = fields.text()?;
        let fencing_token = fields.integer()?;
        let mode = match fields.text()?.as_str() {
            "EXCLUSIVE" => LockMode::Exclusive,
            "SHARED" => LockMode::Shared,
            other => return Err(defect(format!("a script named the mode {other}"))),
        };
        let acquired_at = fields.integer()?;
        let lease_end = fields.integer()?;
        holders.push(HolderInfo {
            holder,
            fencing_token,
            mode,
            held_for: reply.since(acquired_at),
            lease_left: reply.left(lease_end),
        });
    }
    Ok(holders)
}
