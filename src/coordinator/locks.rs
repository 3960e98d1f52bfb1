//! Locks.

use super::Coordinator;
use super::cleanup::{Grant, Undo, What};
use super::report::{Report, Subject};
use crate::domain::failure::Failure;
use crate::domain::lease::RenewOutcome;
use crate::domain::lock::{AcquireLock, AcquireOutcome, ReleaseLock, ReleaseOutcome, RenewLock};
use crate::domain::token::Nonce;
use std::sync::Arc;
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
        let (store, request) = (self.store.clone(), Arc::new(request));
        let report = Report::begin(&self.metrics, "acquire_lock", Subject::Lock(&request.id));
        let asked = request.clone();
        let call = async move { store.acquire_lock(&asked, &nonce, limit).await };
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
        let result = self.store.renew_lock(&renewal, limit).await;
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
