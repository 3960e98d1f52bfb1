//! Locks.

use super::cleanup::{Grant, Undo, What};
use super::queue::{Called, Waiting};
use super::report::{Report, Subject};
use super::{CallTime, Coordinator};
use crate::domain::failure::Failure;
use crate::domain::lease::RenewOutcome;
use crate::domain::lock::{AcquireLock, AcquireOutcome, ReleaseLock, ReleaseOutcome, RenewLock};
use crate::domain::token::Nonce;
use crate::store::{Attempt, InQueue, Patience, Store};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

impl Coordinator {
    /// Acquires a lock, at once or after waiting in turn. A new grant comes with a [`Grant`], to be kept until its caller has
    /// heard of it. A call that is dropped leaves the queue.
    pub async fn acquire_lock(
        &self,
        request: AcquireLock,
        time: CallTime,
    ) -> Result<(AcquireOutcome, Option<Grant>), Failure> {
        let nonce = Nonce::new();
        let lasting = [
            request.lease.millis(),
            request.lock_delay.millis(),
            request.hold_at_least.millis(),
        ];
        let lasting: Duration = lasting.iter().map(|m| Duration::from_millis(m.get())).sum();
        // A wake-up may overtake the answer that says that there is something to wait for.
        let waits = request.wait.millis().get() > 0;
        let waiting = waits.then(|| self.queue.enter(&request, &nonce));
        let speaking = waiting.as_ref().map(Waiting::speaking);
        let undo = Undo {
            what: What::Lock(request.id.clone(), request.token.clone(), speaking),
            nonce: nonce.clone(),
            given_up_at: time.given_up_at(),
            until: time.limit + lasting,
        };
        let id = request.id.clone();
        let report = Report::begin(&self.metrics, "acquire_lock", Subject::Lock(&id));
        let gone = CancellationToken::new();
        let _gone = gone.clone().drop_guard();
        let acquisition = Acquisition {
            store: self.store.clone(),
            request,
            nonce,
            time,
            gone,
        };
        let call = acquisition.run(waiting);
        let result = self
            .cleanups
            .outlive_caller(undo, call, |outcome| {
                matches!(outcome, AcquireOutcome::Acquired(acquired) if !acquired.already_held)
            })
            .await;
        report.end(result.as_ref().map(|(outcome, _)| outcome));
        result
    }

    /// Extends the lease on a lock.
    pub async fn renew_lock(
        &self,
        renewal: RenewLock,
        limit: Instant,
    ) -> Result<RenewOutcome, Failure> {
        let report = Report::begin(&self.metrics, "renew_lock", Subject::Lock(&renewal.id));
        let result = self.store.renew_lock(&renewal, None, limit).await;
        report.end(result.as_ref());
        result
    }

    /// Releases a lock.
    pub async fn release_lock(
        &self,
        release: ReleaseLock,
        limit: Instant,
    ) -> Result<ReleaseOutcome, Failure> {
        let report = Report::begin(&self.metrics, "release_lock", Subject::Lock(&release.id));
        let result = self.store.release_lock(&release, limit).await;
        report.end(result.as_ref());
        result
    }
}

/// One call, which runs to its end even where its caller goes away: what it got is taken back then.
struct Acquisition {
    store: Store,
    request: AcquireLock,
    nonce: Nonce,
    time: CallTime,
    /// Cancelled when the caller went away.
    gone: CancellationToken,
}

/// Pause before a waiter tries again where the store could not be asked.
const AWAY_PAUSE: Duration = Duration::from_millis(100);

impl Acquisition {
    async fn run(self, waiting: Option<Waiting>) -> Result<AcquireOutcome, Failure> {
        if let Some(waiting) = waiting {
            return self.wait_in_turn(waiting).await;
        }
        match self.attempt(Patience::None, self.time.limit).await? {
            Attempt::Ended(outcome) => Ok(outcome),
            Attempt::Waits(place) => Ok(AcquireOutcome::Held(place.held)),
        }
    }

    async fn attempt(&self, patience: Patience, limit: Instant) -> Result<Attempt, Failure> {
        self.store
            .acquire_lock(&self.request, &self.nonce, patience, limit)
            .await
    }

    /// Until when one script of a call that may have long yet is waited for.
    fn soon(&self) -> Instant {
        (Instant::now() + self.store.timeout()).min(self.time.limit)
    }

    async fn wait_in_turn(&self, waiting: Waiting) -> Result<AcquireOutcome, Failure> {
        let started = Instant::now();
        let wait = Duration::from_millis(self.request.wait.millis().get());
        let wait_until = self.time.wait_until(started, wait);
        let mut place: Option<InQueue> = None;
        loop {
            let join = Patience::Join(waiting.ticket());
            match self.attempt(join, self.soon()).await {
                Ok(Attempt::Ended(outcome)) => return Ok(after_waiting(outcome, started, place)),
                Ok(Attempt::Waits(new)) => {
                    waiting.stands(new.ticket, new.try_after);
                    place = Some(new);
                }
                // Whoever stands in the queue already stays for as long as it wants to.
                Err(Failure::StoreUnavailable { .. }) if place.is_some() => {
                    waiting.try_after(AWAY_PAUSE);
                }
                Err(failure) => return Err(failure),
            }
            let held = || place.as_ref().map(|place| place.held.clone());
            tokio::select! {
                biased;
                () = self.gone.cancelled() => return Err(Failure::Cancelled),
                // The place stays until its deadline, for the same token to come back to.
                () = self.time.drain.cancelled() => return Err(Failure::Draining),
                called = waiting.called() => if let (Called::PlaceTaken, Some(held)) = (called, held()) {
                    waiting.depart(self.time.limit).await;
                    // What was on its way may have put it back, where the later call left meanwhile.
                    let (id, token) = (&self.request.id, &self.request.token);
                    let _ = self.store.undo_lock(id, token, &self.nonce, self.soon()).await;
                    return Ok(AcquireOutcome::Held(held));
                },
                () = tokio::time::sleep_until(wait_until.into()) => break,
            }
        }
        let left = self.time.limit.saturating_duration_since(Instant::now());
        waiting.depart(Instant::now() + left / 2).await;
        match self.attempt(Patience::Last, self.time.limit).await? {
            Attempt::Ended(outcome) => Ok(after_waiting(outcome, started, place)),
            Attempt::Waits(place) => Ok(AcquireOutcome::Held(place.held)),
        }
    }
}

/// Says how long the call waited, if it did.
fn after_waiting(
    outcome: AcquireOutcome,
    started: Instant,
    place: Option<InQueue>,
) -> AcquireOutcome {
    match outcome {
        AcquireOutcome::Acquired(mut acquired) if place.is_some() => {
            acquired.waited = started.elapsed();
            AcquireOutcome::Acquired(acquired)
        }
        other => other,
    }
}
