//! Takes back what was granted to a call whose caller went away before it heard of it, and ends what was to end with its
//! stream.

use super::queue::Speaking;
use crate::domain::failure::{Cause, Failure};
use crate::domain::lease::LeaseName;
use crate::domain::name::{ClaimId, LockId};
use crate::domain::token::{ClaimToken, LockToken, Nonce};
use crate::store::Store;
use crate::trace;
use futures_util::StreamExt as _;
use std::time::{Duration, Instant};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Leases of one stream that are ended at once.
const ENDED_AT_ONCE: usize = 256;

/// A grant, or a call that may have got one, which is taken back when this is dropped: unless its caller heard of it.
#[derive(Debug)]
#[must_use = "a grant that is dropped unheard is taken back"]
pub struct Grant {
    undo: Option<Undo>,
    cleanups: Cleanups,
    /// Has the end of the service wait for this as for a task, until it is heard or its undo is a task of its own.
    _unsettled: TaskTrackerToken,
}

impl Grant {
    /// The answer is on its way, or the caller knows that it has to ask again: the grant stands.
    pub fn heard(mut self) {
        self.undo = None;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            self.cleanups.start(undo);
        }
    }
}

#[derive(Debug)]
pub(super) struct Undo {
    pub(super) what: What,
    /// Names the call whose grant it is.
    pub(super) nonce: Nonce,
    /// When its caller stops listening, if it said so.
    pub(super) given_up_at: Option<Instant>,
    /// By then the lease has ended, and there is nothing left to undo.
    pub(super) until: Instant,
}

#[derive(Debug)]
pub(super) enum What {
    Claim(ClaimId, ClaimToken),
    /// With what may put the token's place back while it is on its way.
    Lock(LockId, LockToken, Option<Speaking>),
}

/// The clean-ups under way.
#[derive(Clone, Debug)]
pub(super) struct Cleanups {
    store: Store,
    tasks: TaskTracker,
}

impl Cleanups {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            tasks: TaskTracker::new(),
        }
    }

    /// Runs a call to its end even where its caller goes away meanwhile: only when Redis has answered, or can no longer
    /// act on the call, is it known what there is to undo. Returns the grant with a new one alone.
    pub(super) async fn outlive_caller<T: Send + 'static>(
        &self,
        undo: Undo,
        call: impl Future<Output = Result<T, Failure>> + Send + 'static,
        is_new_grant: fn(&T) -> bool,
    ) -> Result<(T, Option<Grant>), Failure> {
        let given_up_at = undo.given_up_at;
        let is_given_up = || given_up_at.is_some_and(|at| at <= Instant::now());
        let grant = Grant {
            undo: Some(undo),
            cleanups: self.clone(),
            _unsettled: self.unsettled(),
        };
        let task = self.tasks.spawn(trace::carried(async move {
            let result = call.await;
            let may_be_granted = match &result {
                Ok(outcome) => is_new_grant(outcome),
                Err(failure) => matches!(
                    failure,
                    Failure::StoreUnavailable { .. } | Failure::Cancelled
                ),
            };
            if may_be_granted {
                return (result, Some(grant));
            }
            grant.heard();
            (result, None)
        }));
        match task.await {
            Ok((Ok(outcome), grant)) => Ok((outcome, grant)),
            Ok((Err(failure), grant)) => {
                // The caller is told that nobody knows, and asks again with its token: unless it has no more time to.
                let asks_again = !matches!(failure, Failure::Cancelled) && !is_given_up();
                if let Some(grant) = grant.filter(|_| asks_again) {
                    grant.heard();
                }
                Err(failure)
            }
            Err(error) => Err(Failure::Defect(Cause::new(error))),
        }
    }

    /// Runs a call to its end even where its caller goes away meanwhile.
    pub(super) async fn run_to_end<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        match self.tasks.spawn(trace::carried(call)).await {
            Ok(result) => result,
            Err(error) => Err(Failure::Defect(Cause::new(error))),
        }
    }

    fn start(&self, undo: Undo) {
        // Dropped at the very end of the process, there is no runtime left to clean up with; the lease bounds it.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let store = self.store.clone();
        self.tasks.spawn(async move {
            let (store, undo) = (&store, &undo);
            let done = until_done(store, undo.until, |limit| undo.run(store, limit)).await;
            if let Err(failure) = done {
                tracing::error!(?failure, "could not take back a grant that nobody heard of");
            }
        });
    }

    /// Ends leases with their stream, each until it would have ended by itself.
    pub(super) fn end_leases(&self, stream: u64, leases: Vec<(LeaseName, Instant)>) {
        let store = self.store.clone();
        self.tasks.spawn(async move {
            let store = &store;
            let end = async |(lease, until): (LeaseName, Instant)| {
                let lease = &lease;
                let end_it = |limit| store.end_lease(stream, lease, limit);
                if let Err(failure) = until_done(store, until, end_it).await {
                    tracing::error!(?failure, "could not end a lease with its stream");
                }
            };
            futures_util::stream::iter(leases)
                .for_each_concurrent(ENDED_AT_ONCE, end)
                .await;
        });
    }

    /// Has the end of the service wait, as for a task, until the answer is dropped.
    pub(super) fn unsettled(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    pub(super) async fn finish(&self, limit: Instant) {
        self.tasks.close();
        // Whatever is not taken back by then ends with its lease.
        let _ = tokio::time::timeout_at(limit.into(), self.tasks.wait()).await;
    }
}

/// Tries, and tries again while the store cannot be asked, until there is nothing left to do.
async fn until_done<F>(
    store: &Store,
    until: Instant,
    attempt: impl Fn(Instant) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let mut pause = FIRST_PAUSE;
    while Instant::now() < until {
        match attempt((Instant::now() + store.timeout()).min(until)).await {
            Err(Failure::StoreUnavailable { .. }) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            done => return done,
        }
    }
    Ok(())
}

impl Undo {
    async fn run(&self, store: &Store, limit: Instant) -> Result<(), Failure> {
        match &self.what {
            What::Claim(id, token) => store.undo_claim(id, token, &self.nonce, limit).await,
            What::Lock(id, token, speaking) => {
                if let Some(speaking) = speaking {
                    speaking.is_over().await;
                }
                store.undo_lock(id, token, &self.nonce, limit).await
            }
        }
    }
}
