//! Those that wait in turn for locks, as far as they asked this service. The queues themselves are in the store; here is whom
//! a wake-up is for, and whom the service speaks for.

use crate::domain::lock::{AcquireLock, LockMode};
use crate::domain::name::LockId;
use crate::domain::token::{LockToken, Nonce};
use crate::metrics::{Counted, Metrics};
use crate::store::{Store, Turns, Waiter};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio_util::task::AbortOnDropHandle;

/// How often the service speaks for its waiters, and looks whose turn it is: a wake-up that is lost costs no more than this.
const SPEAK_EVERY: Duration = Duration::from_millis(700);
/// Services that were started at once shall not speak at once for ever.
const JITTER_MILLIS: u64 = 100;
/// How long an answer is waited for, however long other calls may take: before the places are dropped there has to be time
/// for another try, over another connection.
const SPEAK_FOR_AT_MOST: Duration = Duration::from_millis(700);
/// For how many waiters by one script, so that none takes long.
const WAITERS_AT_ONCE: usize = 500;

/// All waiters of this service's. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Queue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    metrics: Metrics,
    resources: Mutex<HashMap<LockId, Resource>>,
    speak_now: Notify,
}

#[derive(Debug, Default)]
struct Resource {
    places: HashMap<LockToken, Vec<Arc<Place>>>,
    speaking: Speaking,
}

/// Held while the service speaks for those that wait for one lock: whoever leaves has to wait until it is no longer spoken
/// for, or it would be put back.
#[derive(Clone, Debug, Default)]
pub(super) struct Speaking(Arc<tokio::sync::Mutex<()>>);

impl Speaking {
    /// Waits until nothing is on its way for those that have left before.
    pub(super) async fn is_over(&self) {
        drop(self.0.lock().await);
    }
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    /// To try for the lock.
    Turn,
    /// That a later call of its token has its place.
    PlaceTaken,
}

#[derive(Debug)]
struct Place {
    nonce: Nonce,
    mode: LockMode,
    max_holders: u32,
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct State {
    ticket: Option<i64>,
    try_at: Option<Instant>,
    is_taken: bool,
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("nothing panics while it holds a place")
    }

    /// What is told may have been overtaken by what was told before: the earliest counts.
    fn try_at(&self, at: Instant) {
        let mut state = self.state();
        state.try_at = Some(state.try_at.map_or(at, |before| before.min(at)));
        drop(state);
        self.bell.notify_one();
    }

    fn taken(&self) {
        self.state().is_taken = true;
        self.bell.notify_one();
    }
}

impl Queue {
    /// Empty; speaks for those that enter until the answer's second part is dropped.
    pub(super) fn new(store: Store, metrics: Metrics) -> (Self, AbortOnDropHandle<()>) {
        let queue = Self(Arc::new(Inner {
            store,
            metrics,
            resources: Mutex::default(),
            speak_now: Notify::new(),
        }));
        let speaker = queue.clone();
        let speaking = AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let jitter = Duration::from_millis(rand::random_range(0..=JITTER_MILLIS));
                let pause = tokio::time::sleep(SPEAK_EVERY + jitter);
                tokio::select! {
                    () = pause => {}
                    () = speaker.0.speak_now.notified() => {}
                }
                speaker.speak();
            }
        }));
        (queue, speaking)
    }

    /// Has a wake-up find the call from now on.
    pub(super) fn enter(&self, request: &AcquireLock, nonce: &Nonce) -> Waiting {
        let place = Arc::new(Place {
            nonce: nonce.clone(),
            mode: request.mode,
            max_holders: request.max_holders,
            state: Mutex::default(),
            bell: Notify::new(),
        });
        let mut resources = self.resources();
        let resource = resources.entry(request.id.clone()).or_default();
        let places = resource.places.entry(request.token.clone()).or_default();
        places.push(place.clone());
        Waiting {
            queue: self.clone(),
            id: request.id.clone(),
            token: request.token.clone(),
            place,
            speaking: resource.speaking.clone(),
            _counted: self.0.metrics.waiter(),
        }
    }

    /// A script says whose turn it is.
    pub(super) fn turn(&self, id: &LockId, token: &LockToken, after: Duration) {
        let at = Instant::now() + after;
        self.each(id, token, |place| place.try_at(at));
    }

    /// A script says whose place another call has.
    pub(super) fn place_taken(&self, id: &LockId, token: &LockToken, nonce: &[u8]) {
        self.each(id, token, |place| {
            if place.nonce.as_bytes() == nonce {
                place.taken();
            }
        });
    }

    /// Wake-ups may have been lost.
    pub(super) fn speak_now(&self) {
        self.0.speak_now.notify_one();
    }

    fn each(&self, id: &LockId, token: &LockToken, tell: impl Fn(&Place)) {
        let resources = self.resources();
        let places = resources
            .get(id)
            .and_then(|resource| resource.places.get(token));
        for place in places.into_iter().flatten() {
            tell(place);
        }
    }

    fn resources(&self) -> MutexGuard<'_, HashMap<LockId, Resource>> {
        self.0
            .resources
            .lock()
            .expect("nothing panics while it holds the waiters")
    }

    /// Each resource by itself, so that one whose answer does not come keeps no other from being spoken for.
    fn speak(&self) {
        let resources = self.resources();
        for (id, resource) in resources.iter() {
            // Otherwise what was said before is on its way yet.
            if let Ok(speaking) = resource.speaking.0.clone().try_lock_owned() {
                let (queue, id) = (self.clone(), id.clone());
                tokio::spawn(async move { queue.speak_for(&id, speaking).await });
            }
        }
    }

    async fn speak_for(&self, id: &LockId, mut held: OwnedMutexGuard<()>) {
        let speaking = Speaking(OwnedMutexGuard::mutex(&held).clone());
        let mut spoken_for = 0;
        loop {
            // Whoever left meanwhile is among them no more.
            let waiters = self.waiters(id, &speaking, spoken_for);
            if waiters.is_empty() {
                return;
            }
            let limit = Instant::now() + self.0.store.timeout().min(SPEAK_FOR_AT_MOST);
            match self.0.store.keep_waiting(id, &waiters, limit).await {
                Ok(turns) => self.tell(id, &waiters, &turns),
                Err(failure) => {
                    tracing::debug!(?failure, "could not speak for those that wait");
                    return;
                }
            }
            spoken_for = waiters.last().map_or(spoken_for, |last| last.ticket);
            // Those that leave do not wait for all the others.
            drop(held);
            held = speaking.0.clone().lock_owned().await;
        }
    }

    /// The next of those whose speaking this is, after that ticket, the first in the queue first: where it was lost they are
    /// put back in bunches.
    fn waiters(&self, id: &LockId, speaking: &Speaking, after: i64) -> Vec<Waiter> {
        let resources = self.resources();
        let resource = resources
            .get(id)
            .filter(|resource| Arc::ptr_eq(&resource.speaking.0, &speaking.0));
        let places = resource.into_iter().flat_map(|r| &r.places);
        let each = places.flat_map(|(token, places)| places.iter().map(move |p| (token, p)));
        let stand = each.filter_map(|(token, place)| {
            let ticket = place.state().ticket.filter(|ticket| *ticket > after)?;
            Some((ticket, token, place))
        });
        let mut stand: Vec<_> = stand.collect();
        stand.sort_unstable_by_key(|(ticket, ..)| *ticket);
        let next = stand.into_iter().take(WAITERS_AT_ONCE);
        next.map(|(ticket, token, place)| Waiter {
            token: token.clone(),
            nonce: place.nonce.clone(),
            ticket,
            mode: place.mode,
            max_holders: place.max_holders,
        })
        .collect()
    }

    fn tell(&self, id: &LockId, spoken_for: &[Waiter], turns: &Turns) {
        if let Some((token, after)) = &turns.first {
            self.turn(id, token, *after);
        }
        for token in &turns.over {
            self.turn(id, token, Duration::ZERO);
        }
        for waiter in turns
            .taken
            .iter()
            .filter_map(|number| spoken_for.get(*number))
        {
            self.place_taken(id, &waiter.token, waiter.nonce.as_bytes());
        }
    }
}

/// A call that waits in turn. Dropped, it is woken and spoken for no more.
#[derive(Debug)]
pub(super) struct Waiting {
    queue: Queue,
    id: LockId,
    token: LockToken,
    place: Arc<Place>,
    speaking: Speaking,
    _counted: Counted,
}

impl Waiting {
    /// What of it may be on its way after it left.
    pub(super) fn speaking(&self) -> Speaking {
        self.speaking.clone()
    }

    /// The ticket that it has, if it has one yet.
    pub(super) fn ticket(&self) -> Option<i64> {
        self.place.state().ticket
    }

    /// It stands in the queue.
    pub(super) fn stands(&self, ticket: i64, try_after: Option<Duration>) {
        self.place.state().ticket = Some(ticket);
        if let Some(after) = try_after {
            self.try_after(after);
        }
    }

    /// It is to try again after this.
    pub(super) fn try_after(&self, after: Duration) {
        self.place.try_at(Instant::now() + after);
    }

    /// Waits until it is told something.
    pub(super) async fn called(&self) -> Called {
        loop {
            let rings = self.place.bell.notified();
            let try_at = {
                let mut state = self.place.state();
                if state.is_taken {
                    return Called::PlaceTaken;
                }
                if state.try_at.is_some_and(|at| at <= Instant::now()) {
                    state.try_at = None;
                    return Called::Turn;
                }
                state.try_at
            };
            match try_at {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at.into(), rings).await;
                }
                None => rings.await,
            }
        }
    }

    /// Is spoken for no more, also by what is on its way, which is waited for until `limit`: only then can it leave the queue for
    /// good.
    pub(super) async fn depart(self, limit: Instant) {
        let speaking = self.speaking();
        drop(self);
        // What is on its way for longer puts it back for a moment.
        let _ = tokio::time::timeout_at(limit.into(), speaking.is_over()).await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut resources = self.queue.resources();
        let Some(resource) = resources.get_mut(&self.id) else {
            return;
        };
        if let Some(places) = resource.places.get_mut(&self.token) {
            places.retain(|place| !Arc::ptr_eq(place, &self.place));
            if places.is_empty() {
                resource.places.remove(&self.token);
            }
        }
        if resource.places.is_empty() {
            resources.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_is_not_lost_to_an_answer_that_it_overtook() {
        let place = Place {
            nonce: Nonce::new(),
            mode: LockMode::Exclusive,
            max_holders: 0,
            state: Mutex::default(),
            bell: Notify::new(),
        };
        let now = Instant::now();
        place.try_at(now);
        place.try_at(now + Duration::from_secs(30));
        assert_eq!(place.state().try_at, Some(now));
    }
}
