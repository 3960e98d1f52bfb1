//! What asking for a claim and asking for a lock share: how long is waited, and what is given back where nobody heard the
//! answer.

use crate::failure::Failure;
use crate::{Client, time};
use std::pin::Pin;
use std::time::{Duration, Instant};

/// The service's own default.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// The longest that one call waits, by the service's rules; a longer wait is made of several. Between two that wait for a
/// lock its place is lost.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const LONGEST_WAIT_IN_TURN: Duration = Duration::from_secs(3600);
/// The pause between two questions, at least; with less time than this left nothing is asked again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// How long is still waited.
pub(crate) struct Waiting {
    deadline: Instant,
    longest_of_a_call: Duration,
    /// When the last call was made, and how long it was to wait.
    last: Option<(Instant, Duration)>,
}

impl Waiting {
    /// For a claim in flight to end.
    pub(crate) fn for_at_most(wait: Duration) -> Self {
        Self {
            deadline: time::later(Instant::now(), wait),
            longest_of_a_call: LONGEST_WAIT,
            last: None,
        }
    }

    /// For a lock.
    pub(crate) fn in_turn(wait: Duration) -> Self {
        Self {
            longest_of_a_call: LONGEST_WAIT_IN_TURN,
            ..Self::for_at_most(wait)
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left() < SHORTEST_PAUSE
    }

    /// What the next call, which is made now, is to wait. The first does not, so that what is waited for is known at once.
    pub(crate) fn of_a_call(&mut self) -> Option<prost_types::Duration> {
        let wait = match self.last {
            None => Duration::ZERO,
            Some(_) => self.left().min(self.longest_of_a_call),
        };
        self.last = Some((Instant::now(), wait));
        (!wait.is_zero()).then(|| time::to_wire(wait))
    }

    /// The pause before the next call, as the answer to the last one asks for it: none after a call that waited, or after one
    /// that was not to.
    pub(crate) async fn pause(&self, retry_after: Option<prost_types::Duration>) {
        let waited = self
            .last
            .is_some_and(|(sent, wait)| sent.elapsed() >= wait / 2);
        if !waited {
            let pause = time::from_wire(retry_after).max(SHORTEST_PAUSE);
            tokio::time::sleep(pause.min(self.left())).await;
        }
    }
}

/// Gives back in the background, where it is dropped, what may have been granted to a call whose answer nobody got.
pub(crate) struct GiveUp {
    client: Client,
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl GiveUp {
    /// Not armed where the token is the caller's own: it may be that of work which is going on, and was only asked for
    /// again.
    pub(crate) fn armed(
        client: &Client,
        is_token_ours: bool,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self {
            client: client.clone(),
            work: is_token_ours.then(|| Box::pin(work) as _),
        }
    }

    pub(crate) fn disarm(mut self) {
        self.work = None;
    }

    /// After a call that failed: there is nothing to give back where nothing can have happened.
    pub(crate) fn after(self, failure: Failure) -> Failure {
        if failure.nothing_happened() {
            self.disarm();
        }
        failure
    }
}

impl Drop for GiveUp {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.client.in_background(work);
        }
    }
}

impl Client {
    /// Where no runtime is left to do it, the lease bounds what is held.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.shared.background.spawn_on(work, &runtime);
        }
    }

    /// A client whose calls end by then.
    pub(crate) fn until(&self, limit: Instant) -> Self {
        self.with_call_timeout(limit.saturating_duration_since(Instant::now()))
    }
}
