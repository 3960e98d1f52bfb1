//! Locks.

use super::Coordinator;
use super::cleanup::{Grant, Undo, What};
use crate::domain::failure::Failure;
use crate::domain::lease::RenewOutcome;
use crate::domain::lock::{AcquireLock, AcquireOutcome, ReleaseLock, ReleaseOutcome, RenewLock};
use crate::domain::token::Nonce;
use std::time::{Duration, Instant};

impl Coordinator {
    /// Acquires a lock. A new grant comes with a [`Grant`], to be kept until its caller has heard of it.
    pub async fn acquire_lock(
        &self,
        request: AcquireLock,
        limit: Instant,
    ) -> Result<(AcquireOutcome, Option<Grant>), Failure> {
        let nonce = Nonce::new();
        let lasting = [
            request.lease.millis(),
            request.lock_delay.millis(),
            request.hold_at_least.millis(),
        ];
        let lasting: Duration = lasting.iter().map(|m| Duration::from_millis(m.get())).sum();
        let undo = Undo {
            what: What::Lock(request.id.clone(), request.token.clone()),
            nonce: nonce.clone(),
            until: limit + lasting,
        };
        let store = self.store.clone();
        let call = async move { store.acquire_lock(&request, &nonce, limit).await };
        self.cleanups
            .outlive_caller(undo, call, |outcome| {
                matches!(outcome, AcquireOutcome::Acquired(acquired) if !acquired.already_held)
            })
            .await
    }

    /// Extends the lease on a lock.
    pub async fn renew_lock(
        &self,
        renewal: RenewLock,
        limit: Instant,
    ) -> Result<RenewOutcome, Failure> {
        self.store.renew_lock(&renewal, limit).await
    }

    /// Releases a lock.
    pub async fn release_lock(
        &self,
        release: ReleaseLock,
        limit: Instant,
    ) -> Result<ReleaseOutcome, Failure> {
        self.store.release_lock(&release, limit).await
    }
}
