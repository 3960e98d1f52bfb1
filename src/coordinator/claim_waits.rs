//! Calls that wait for claims in flight to end, as far as they asked this service.
//!
//! However many wait for one key, one watcher looks at it, and when the claim ended one of them asks for all, the scout: the
//! one that has waited longest. Where it gets the claim there is a new one to wait for. Any other answer is the others' too.

use crate::domain::claim::ClaimOutcome;
use crate::domain::failure::Failure;
use crate::domain::name::ClaimId;
use crate::domain::token::ClaimToken;
use crate::metrics::{Counted, Metrics};
use crate::store::Store;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::AbortOnDropHandle;

/// How often the service looks at a key: a wake-up that is lost costs no more than this.
const LOOK_EVERY: Duration = Duration::from_millis(800);
/// Keys that were claimed at once shall not be looked at at once for ever.
const JITTER_MILLIS: u64 = 150;
/// At how many keys at once.
const LOOKS_AT_ONCE: usize = 256;
/// A lease is over after what is told to be left of it, which is rounded down to this.
const ROUNDED_TO: Duration = Duration::from_millis(1);
/// Pause before a scout asks where the store could not be asked.
const AWAY_PAUSE: Duration = Duration::from_millis(100);

/// All that wait for claims. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ClaimWaits(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    metrics: Metrics,
    keys: Mutex<HashMap<ClaimId, Key>>,
    looks: Semaphore,
}

impl ClaimWaits {
    pub(super) fn new(store: Store, metrics: Metrics) -> Self {
        Self(Arc::new(Inner {
            store,
            metrics,
            keys: Mutex::default(),
            looks: Semaphore::new(LOOKS_AT_ONCE),
        }))
    }

    /// Has a wake-up find the call from now on.
    pub(super) fn enter(&self, id: &ClaimId, token: &ClaimToken) -> Waiting {
        let caller = Arc::new(Caller {
            token: token.clone(),
            is_called: AtomicBool::new(false),
            bell: Notify::new(),
        });
        let mut keys = self.keys();
        let number = keys
            .entry(id.clone())
            .or_insert_with(Key::new)
            .enter(caller.clone());
        Waiting {
            waits: self.clone(),
            id: id.clone(),
            number,
            caller,
            counted: None,
            end: End::WithoutAnswer,
        }
    }

    /// A script says that a claim in flight ended.
    pub(super) fn ended(&self, id: &ClaimId) {
        self.with(id, Key::ended);
    }

    /// A script says that a token was given up that may wait here.
    pub(super) fn token_spent(&self, id: &ClaimId, token: &ClaimToken) {
        self.with(id, |key| {
            let callers = key.callers.values();
            let spent = callers.filter(|caller| caller.token == *token);
            spent.for_each(|caller| caller.call());
        });
    }

    /// Wake-ups may have been lost.
    pub(super) fn look_now(&self) {
        self.keys().values_mut().for_each(Key::look_now);
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<ClaimId, Key>> {
        self.0
            .keys
            .lock()
            .expect("nothing panics while it holds those that wait")
    }

    fn with<T>(&self, id: &ClaimId, work: impl FnOnce(&mut Key) -> T) -> Option<T> {
        self.keys().get_mut(id).map(work)
    }

    /// Looks at a key, and sends scouts when its lease is over, for as long as somebody waits for it.
    async fn watch(self, id: ClaimId) {
        while let Some((due, planned)) = self.with(&id, |key| (key.due(), key.planned.clone())) {
            match due {
                Due::Look => self.look(&id).await,
                Due::Scout => drop(self.with(&id, Key::send_due_scout)),
                Due::At(at) => {
                    let _ = tokio::time::timeout_at(at.into(), planned.notified()).await;
                }
            }
        }
    }

    async fn look(&self, id: &ClaimId) {
        let _permit = self.0.looks.acquire().await.expect("it is never closed");
        let limit = Instant::now() + self.0.store.timeout();
        match self.0.store.watch_claim(id, limit).await {
            Ok(Some(lease_left)) => drop(self.with(id, |key| key.found_in_flight(lease_left))),
            Ok(None) => drop(self.with(id, Key::found_ended)),
            Err(failure) => {
                tracing::debug!(?failure, "could not look at what is waited for");
                let is_away = matches!(failure, Failure::StoreUnavailable { .. });
                // What is wrong with the key is told to whoever claims it.
                self.with(
                    id,
                    if is_away {
                        Key::look_later
                    } else {
                        Key::found_ended
                    },
                );
            }
        }
    }
}

/// Those that wait for one key, and what is known of it.
#[derive(Debug)]
struct Key {
    /// In the order in which they came.
    callers: BTreeMap<u64, Arc<Caller>>,
    entered: u64,
    scout: Option<u64>,
    /// When the next one is sent, if no wake-up comes before: when the lease is over, say.
    scout_at: Option<Instant>,
    look_at: Instant,
    /// Notified when the watcher has to look at those times again.
    planned: Arc<Notify>,
    watcher: Option<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Caller {
    token: ClaimToken,
    is_called: AtomicBool,
    bell: Notify,
}

impl Caller {
    fn call(&self) {
        self.is_called.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }
}

/// What the watcher has to do next.
#[derive(Debug)]
enum Due {
    Look,
    Scout,
    At(Instant),
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It got the claim.
    Granted,
    /// With what the others will be told as well.
    LikeTheOthers,
    /// With what says nothing of the key.
    WithoutAnswer,
}

impl Key {
    fn new() -> Self {
        Self {
            callers: BTreeMap::new(),
            entered: 0,
            scout: None,
            scout_at: None,
            look_at: next_look(),
            planned: Arc::default(),
            watcher: None,
        }
    }

    fn enter(&mut self, caller: Arc<Caller>) -> u64 {
        self.entered += 1;
        self.callers.insert(self.entered, caller);
        self.entered
    }

    fn due(&self) -> Due {
        let now = Instant::now();
        match self.scout_at {
            Some(at) if at <= now => Due::Scout,
            _ if self.look_at <= now => Due::Look,
            Some(at) => Due::At(at.min(self.look_at)),
            None => Due::At(self.look_at),
        }
    }

    /// What a scout that is out already asks may be older than this, so it asks again.
    fn ended(&mut self) {
        match self.scout.and_then(|scout| self.callers.get(&scout)) {
            Some(scout) => scout.call(),
            None => self.send_scout(),
        }
    }

    fn send_scout(&mut self) {
        let first = self.callers.first_key_value();
        self.scout = first.map(|(number, caller)| {
            caller.call();
            *number
        });
    }

    fn send_due_scout(&mut self) {
        self.scout_at = None;
        if self.scout.is_none() {
            self.send_scout();
        }
    }

    fn found_in_flight(&mut self, lease_left: Duration) {
        self.look_later();
        self.scout_at = Some(Instant::now() + lease_left);
    }

    fn found_ended(&mut self) {
        self.look_later();
        self.send_due_scout();
    }

    fn look_now(&mut self) {
        self.look_at = Instant::now();
        self.planned.notify_one();
    }

    fn look_later(&mut self) {
        self.look_at = next_look();
    }

    fn plan_scout(&mut self, at: Instant) {
        self.scout_at = Some(at);
        self.planned.notify_one();
    }

    /// A claim in flight was the answer, which had the service told of its end, as a look does.
    fn refused(&mut self, number: u64, lease_left: Duration) {
        self.no_longer_scouts(number);
        self.look_later();
        self.plan_scout(Instant::now() + lease_left + ROUNDED_TO);
    }

    fn unheard(&mut self, number: u64) {
        self.no_longer_scouts(number);
        self.plan_scout(Instant::now() + AWAY_PAUSE);
    }

    /// One that was called since it asked has to ask again.
    fn no_longer_scouts(&mut self, number: u64) {
        let is_called = self
            .callers
            .get(&number)
            .is_some_and(|caller| caller.is_called.load(Ordering::Relaxed));
        if self.scout == Some(number) && !is_called {
            self.scout = None;
        }
    }

    fn leave(&mut self, number: u64, end: End) {
        self.callers.remove(&number);
        let was_scout = self.scout == Some(number);
        if was_scout {
            self.scout = None;
        }
        match end {
            // Nobody is told yet when this one ends.
            End::Granted => {
                self.scout_at = None;
                self.look_now();
            }
            End::LikeTheOthers if was_scout => self.callers.values().for_each(|c| c.call()),
            End::WithoutAnswer if was_scout => self.send_scout(),
            End::LikeTheOthers | End::WithoutAnswer => {}
        }
    }
}

fn next_look() -> Instant {
    Instant::now() + LOOK_EVERY + Duration::from_millis(rand::random_range(0..=JITTER_MILLIS))
}

/// A call that waits, or tries a first time whether it has to. Dropped, it is woken no more; if it was to ask for all, the next
/// one is.
#[derive(Debug)]
pub(super) struct Waiting {
    waits: ClaimWaits,
    id: ClaimId,
    number: u64,
    caller: Arc<Caller>,
    /// From its first refusal on.
    counted: Option<Counted>,
    end: End,
}

impl Waiting {
    pub(super) fn was_refused(&self) -> bool {
        self.counted.is_some()
    }

    /// A claim is in flight, with so much left of its lease.
    pub(super) fn refused(&mut self, lease_left: Duration) {
        if self.counted.is_none() {
            self.counted = Some(self.waits.0.metrics.waiter());
        }
        self.waits.with(&self.id, |key| {
            key.refused(self.number, lease_left);
            key.watcher.get_or_insert_with(|| {
                let watch = self.waits.clone().watch(self.id.clone());
                AbortOnDropHandle::new(tokio::spawn(watch))
            });
        });
    }

    /// The store could not be asked.
    pub(super) fn unheard(&self) {
        self.waits.with(&self.id, |key| key.unheard(self.number));
    }

    /// Waits until it is to try again.
    pub(super) async fn called(&self) {
        loop {
            let rings = self.caller.bell.notified();
            if self.caller.is_called.swap(false, Ordering::Relaxed) {
                return;
            }
            rings.await;
        }
    }

    /// It waits no longer.
    pub(super) fn answered(mut self, result: &Result<ClaimOutcome, Failure>) {
        self.end = match result {
            Ok(ClaimOutcome::Claimed(_)) => End::Granted,
            // To be refused at its first try can be for what it asks, not for what the key has become.
            _ if !self.was_refused() => End::WithoutAnswer,
            Ok(
                ClaimOutcome::Replay(_)
                | ClaimOutcome::Mismatch { .. }
                | ClaimOutcome::Uncertain(_),
            )
            | Err(Failure::ResponseLost | Failure::Defect(_)) => End::LikeTheOthers,
            // A token is spent for itself.
            Ok(ClaimOutcome::InFlight(_) | ClaimOutcome::Lost(_)) | Err(_) => End::WithoutAnswer,
        };
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut keys = self.waits.keys();
        if let Some(key) = keys.get_mut(&self.id) {
            key.leave(self.number, self.end);
            if key.callers.is_empty() {
                keys.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    /// Three calls that wait, each refused once.
    fn three_wait() -> (Key, [Arc<Caller>; 3]) {
        let mut key = Key::new();
        let callers = ["a", "b", "c"].map(|name| {
            let token = format!("token-of-a-test-{name}");
            Arc::new(Caller {
                token: ClaimToken::parse(token).expect("a token"),
                is_called: AtomicBool::new(false),
                bell: Notify::new(),
            })
        });
        for caller in &callers {
            let number = key.enter(caller.clone());
            key.refused(number, LEASE);
        }
        (key, callers)
    }

    /// Who has been called since this was asked last, as [`Waiting::called`] finds out.
    fn called(callers: &[Arc<Caller>; 3]) -> [bool; 3] {
        callers
            .each_ref()
            .map(|caller| caller.is_called.swap(false, Ordering::Relaxed))
    }

    #[test]
    fn the_one_that_waits_longest_asks_for_all_and_any_end_has_one_asked() {
        let (mut key, callers) = three_wait();
        assert_eq!(called(&callers), [false; 3]);
        for _ in 0..2 {
            key.ended();
            assert_eq!(called(&callers), [true, false, false]);
            key.refused(1, LEASE);
        }
        key.leave(1, End::Granted);
        assert!(matches!(key.due(), Due::Look), "to be told of its end");
        assert_eq!(called(&callers), [false; 3]);
        key.found_ended();
        assert_eq!(called(&callers), [false, true, false]);
    }

    #[test]
    fn an_end_while_the_scout_asks_has_it_ask_again() {
        let (mut key, callers) = three_wait();
        key.ended();
        assert_eq!(called(&callers), [true, false, false]);
        key.ended();
        key.refused(1, LEASE);
        assert_eq!(key.scout, Some(1));
        assert_eq!(called(&callers), [true, false, false]);
        key.refused(1, LEASE);
        assert_eq!(key.scout, None);
    }

    #[test]
    fn a_scout_that_goes_away_without_an_answer_has_the_next_one_ask() {
        let (mut key, callers) = three_wait();
        key.ended();
        called(&callers);
        key.leave(1, End::WithoutAnswer);
        assert_eq!(called(&callers), [false, true, false]);
        // One that was not to ask leaves that alone.
        key.leave(3, End::WithoutAnswer);
        assert_eq!(called(&callers), [false; 3]);
        assert_eq!(key.scout, Some(2));
    }

    #[test]
    fn what_the_scout_is_told_the_others_ask_for_as_well() {
        let (mut key, callers) = three_wait();
        key.ended();
        called(&callers);
        key.leave(1, End::LikeTheOthers);
        assert_eq!(called(&callers), [false, true, true]);
        // They are answered in any order, and wake nobody else.
        key.leave(3, End::LikeTheOthers);
        assert_eq!(called(&callers), [false; 3]);
    }

    #[test]
    fn a_scout_that_could_not_ask_is_followed_by_another_soon() {
        let (mut key, callers) = three_wait();
        key.ended();
        called(&callers);
        key.unheard(1);
        assert_eq!(key.scout, None);
        assert!(matches!(key.due(), Due::At(at) if at <= Instant::now() + AWAY_PAUSE));
        key.send_due_scout();
        assert_eq!(called(&callers), [true, false, false]);
    }
}
