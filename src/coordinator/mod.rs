//! What a call does, whatever it came in by: claims, locks, what operators do, and cleaning up after callers
//! that went away.

mod admin;
mod claims;
mod cleanup;
mod locks;
mod report;

pub use admin::Operator;
pub use cleanup::Grant;

use crate::domain::limits::Limits;
use crate::metrics::Metrics;
use crate::store::Store;
use cleanup::Cleanups;
use std::time::{Duration, Instant};

/// Decides every call. Cheap to clone; the state is all in the store.
#[derive(Clone, Debug)]
pub struct Coordinator {
    store: Store,
    limits: Limits,
    metrics: Metrics,
    cleanups: Cleanups,
}

impl Coordinator {
    /// Over a store, within limits.
    pub fn new(store: Store, limits: Limits, metrics: Metrics) -> Self {
        Self {
            cleanups: Cleanups::new(store.clone()),
            store,
            limits,
            metrics,
        }
    }

    /// What is taken at most.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How long a call may take that brings no deadline of its own.
    pub fn call_timeout(&self) -> Duration {
        self.store.timeout()
    }

    /// Waits for the clean-ups under way, no longer than until `limit`.
    pub async fn finish_cleanups(&self, limit: Instant) {
        self.cleanups.finish(limit).await;
    }
}
