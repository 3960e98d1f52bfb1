//! Makes what came of each call seen.

use crate::domain::claim::{AbandonOutcome, ClaimOutcome, CompleteOutcome};
use crate::domain::failure::Failure;
use crate::domain::lease::RenewOutcome;
use crate::domain::lock::{AcquireOutcome, ReleaseOutcome};
use crate::domain::name::{ClaimId, LockId, Tenant};
use crate::metrics::Metrics;
use std::time::Instant;

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject<'a> {
    Claim(&'a ClaimId),
    Lock(&'a LockId),
}

impl Subject<'_> {
    fn tenant(&self) -> &Tenant {
        match self {
            Self::Claim(id) => &id.tenant,
            Self::Lock(id) => &id.tenant,
        }
    }
}

/// An outcome as it is counted and told.
pub(super) trait Outcome {
    /// Counts it; the call began at `started`.
    fn count(&self, metrics: &Metrics, tenant: &Tenant, started: Instant);
}

impl Outcome for ClaimOutcome {
    fn count(&self, metrics: &Metrics, tenant: &Tenant, _: Instant) {
        metrics.claim(tenant, self);
    }
}

impl Outcome for AcquireOutcome {
    fn count(&self, metrics: &Metrics, tenant: &Tenant, started: Instant) {
        metrics.acquire_lock(tenant, self, started.elapsed());
    }
}

/// Of all other calls a loss is what there is to count.
macro_rules! counts_losses {
    ($($outcome:ident),*) => {
        $(impl Outcome for $outcome {
            fn count(&self, metrics: &Metrics, _: &Tenant, _: Instant) {
                if let Self::Lost(reason) = self {
                    metrics.lost(*reason);
                }
            }
        })*
    };
}

counts_losses!(
    RenewOutcome,
    CompleteOutcome,
    AbandonOutcome,
    ReleaseOutcome
);

/// Reports what comes of one call.
#[derive(Debug)]
pub(super) struct Report<'a> {
    metrics: &'a Metrics,
    subject: Subject<'a>,
    started: Instant,
}

impl<'a> Report<'a> {
    pub(super) fn begin(metrics: &'a Metrics, subject: Subject<'a>) -> Self {
        Self {
            metrics,
            subject,
            started: Instant::now(),
        }
    }

    /// The call came to its end.
    pub(super) fn end<O: Outcome>(self, result: Result<&O, &Failure>) {
        if let Ok(outcome) = result {
            outcome.count(self.metrics, self.subject.tenant(), self.started);
        }
    }
}
