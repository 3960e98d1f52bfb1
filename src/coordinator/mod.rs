//! What a call does, whatever it came in by: claims, locks, what operators do, and cleaning up after callers
//! that went away.

mod admin;
mod claim_waits;
mod claims;
mod cleanup;
mod leases;
mod locks;
mod queue;
mod report;

pub use admin::Operator;
pub use cleanup::Grant;
pub use leases::LeaseStream;

use crate::domain::limits::Limits;
use crate::metrics::Metrics;
use crate::store::{Store, WakeUp};
use claim_waits::ClaimWaits;
use cleanup::Cleanups;
use leases::Streams;
use queue::Queue;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The time that a call has.
#[derive(Clone, Debug)]
pub struct CallTime {
    /// When it has to be answered.
    pub limit: Instant,
    /// That is when its caller stops listening, and not when the store had its time.
    pub is_callers: bool,
    /// Cancelled where it is to wait no longer, since the service or its connection is about to end.
    pub drain: CancellationToken,
}

/// What a call needs of its time to try a last time after it waited: a tenth, at most this.
const LONGEST_LAST_TRY: Duration = Duration::from_millis(100);

impl CallTime {
    /// Until when a call may wait that began at `started`, so that its answer still comes in time.
    fn wait_until(&self, started: Instant, wait: Duration) -> Instant {
        let all = self.limit.saturating_duration_since(started);
        let last_try = (all / 10).min(LONGEST_LAST_TRY);
        (started + wait).min(self.limit - last_try)
    }

    /// When its caller gives it up, if ever.
    fn given_up_at(&self) -> Option<Instant> {
        self.is_callers.then_some(self.limit)
    }
}

/// Decides every call. Cheap to clone; the state is all in the store.
#[derive(Clone, Debug)]
pub struct Coordinator {
    store: Store,
    limits: Limits,
    metrics: Metrics,
    cleanups: Cleanups,
    queue: Queue,
    streams: Streams,
    claim_waits: ClaimWaits,
    /// What runs beside the calls, for as long as there is a coordinator.
    _background: Arc<[AbortOnDropHandle<()>; 3]>,
}

impl Coordinator {
    /// Over a store, within limits.
    pub fn new(store: Store, limits: Limits, metrics: Metrics) -> Self {
        let (queue, speaking) = Queue::new(store.clone(), metrics.clone());
        let streams = Streams::default();
        let looking = streams.look();
        let claim_waits = ClaimWaits::new(store.clone(), metrics.clone());
        let listening = store.listen({
            let (queue, streams) = (queue.clone(), streams.clone());
            let claim_waits = claim_waits.clone();
            move |wake_up| match wake_up {
                WakeUp::Listening => {
                    queue.speak_now();
                    claim_waits.look_now();
                    streams.look_now();
                }
                WakeUp::Turn { lock, token, after } => queue.turn(&lock, &token, after),
                WakeUp::PlaceTaken { lock, token, nonce } => {
                    queue.place_taken(&lock, &token, &nonce);
                }
                WakeUp::LeaseLost {
                    stream,
                    lease,
                    reason,
                } => streams.lost(stream, &lease, reason),
                WakeUp::ClaimEnded(id) => claim_waits.ended(&id),
                WakeUp::ClaimTokenSpent(id, token) => claim_waits.token_spent(&id, &token),
            }
        });
        Self {
            queue,
            streams,
            claim_waits,
            _background: Arc::new([speaking, looking, listening]),
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
