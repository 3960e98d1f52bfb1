//! Streams that keep leases alive: which leases are on each, so that it is told of their loss, and those end with it that
//! shall. What a lease is, and which stream it belongs to, the store knows; a stream asks for it anew with every renewal.

mod looks;

use super::Coordinator;
use super::cleanup::Cleanups;
use super::report::{Report, Subject};
use crate::domain::failure::Failure;
use crate::domain::lease::{KeepAlive, LeaseName, LossReason, RenewOutcome};
use crate::metrics::{Counted, Metrics};
use crate::store::{Asked, Store};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// How long a lease is tried to end with its stream at least: renewals beside the stream may have made it longer than it heard.
const WORTH_TRYING: Duration = Duration::from_secs(60);

/// While a stream has more leases than this, it does not take up others of which nobody knows whether they are on it: while
/// the store is away, none of those can be looked at.
const UNSURE_UP_TO: usize = 50_000;

/// The streams that are open. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams(Arc<Open>);

#[derive(Debug, Default)]
struct Open {
    opened: AtomicU64,
    streams: Mutex<HashMap<u64, Arc<Stream>>>,
    /// Rings when leases are to be looked at now.
    bell: Notify,
}

impl Streams {
    fn open(&self, store: Store, metrics: Metrics) -> Arc<Stream> {
        let stream = Arc::new(Stream {
            number: self.0.opened.fetch_add(1, Ordering::Relaxed),
            store,
            metrics,
            table: Mutex::new(Table {
                leases: HashMap::new(),
                last_stamp: 0,
                to_tell: VecDeque::new(),
            }),
            bell: Notify::new(),
        });
        self.streams().insert(stream.number, stream.clone());
        stream
    }

    /// A script says that a lease is lost that a stream kept alive.
    pub(super) fn lost(&self, number: u64, lease: &LeaseName, reason: LossReason) {
        let stream = self.streams().get(&number).cloned();
        if let Some(stream) = stream {
            stream.is_lost(lease, reason);
        }
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<u64, Arc<Stream>>> {
        self.0
            .streams
            .lock()
            .expect("nothing panics while it holds the streams")
    }
}

#[derive(Debug)]
struct Stream {
    number: u64,
    store: Store,
    metrics: Metrics,
    table: Mutex<Table>,
    /// Rings when there is something to tell.
    bell: Notify,
}

#[derive(Debug)]
struct Table {
    leases: HashMap<LeaseName, Entry>,
    last_stamp: i64,
    /// Losses that the client has not been told of. No more than leases on the stream.
    to_tell: VecDeque<(LeaseName, LossReason)>,
}

/// A lease on a stream.
#[derive(Debug)]
struct Entry {
    /// Of the first message about it, and of the last.
    first_stamp: i64,
    stamp: i64,
    /// Messages about it that are under way.
    unanswered: usize,
    /// When the store is asked how it stands, if no message has come by then.
    look_at: Instant,
    /// It ends with the stream.
    end_on_close: bool,
    /// When it ends, as far as was heard; nothing before a renewal succeeded.
    ends_at: Option<Instant>,
    /// It is lost, whatever is answered yet to messages up to this stamp.
    lost: Option<(LossReason, i64)>,
    counted: Option<Counted>,
}

impl Entry {
    fn new(stamp: i64, now: Instant) -> Self {
        Self {
            first_stamp: stamp,
            stamp,
            unanswered: 0,
            look_at: now + looks::AFTER,
            end_on_close: false,
            ends_at: None,
            lost: None,
            counted: None,
        }
    }
}

impl Stream {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table
            .lock()
            .expect("nothing panics while it holds a stream's leases")
    }

    /// Takes note of a message that came in, before it is asked: what comes of it may be told sooner than it is answered.
    fn comes_in(&self, message: &KeepAlive) -> (LeaseName, Asked) {
        let now = Instant::now();
        let mut table = self.table();
        let stamp = self.store.stamp(now).max(table.last_stamp + 1);
        table.last_stamp = stamp;
        let name = match message {
            KeepAlive::Renew {
                renewal,
                end_on_close,
            } => {
                let name = renewal.name();
                let entry = table.leases.entry(name.clone());
                let entry = entry.or_insert_with(|| Entry::new(stamp, now));
                entry.stamp = stamp;
                entry.unanswered += 1;
                entry.look_at = now + looks::AFTER;
                entry.end_on_close |= end_on_close;
                name
            }
            KeepAlive::Detach(name) => {
                table.leases.remove(name);
                name.clone()
            }
        };
        let asked = Asked {
            stream: self.number,
            stamp,
        };
        (name, asked)
    }

    /// Takes note of what came of a message. Returns what its sender is to be told.
    fn is_answered(
        &self,
        name: &LeaseName,
        stamp: i64,
        result: Result<RenewOutcome, Failure>,
    ) -> Result<RenewOutcome, Failure> {
        let mut table = self.table();
        let Some(entry) = table.leases.get_mut(name) else {
            return result;
        };
        // Any older one was about an entry that is no more.
        if entry.first_stamp <= stamp {
            entry.unanswered = entry.unanswered.saturating_sub(1);
        }
        let is_latest = entry.stamp <= stamp;
        match result {
            Ok(RenewOutcome::Renewed { lease_left, .. }) => {
                if let Some((reason, up_to)) = entry.lost
                    && stamp <= up_to
                {
                    return Ok(RenewOutcome::Lost(reason));
                }
                entry.lost = None;
                entry.ends_at = entry.ends_at.max(Some(Instant::now() + lease_left));
                let counted = || self.metrics.lease(name);
                entry.counted.get_or_insert_with(counted);
            }
            Ok(RenewOutcome::Lost(_)) if is_latest => {
                table.leases.remove(name);
            }
            // Nobody knows whether the lease is on the stream. Its client knows that it has to ask again; but if it goes away
            // instead, what was to end with the stream is to do so.
            Err(_) if is_latest && entry.ends_at.is_none() => {
                if !entry.end_on_close || table.leases.len() > UNSURE_UP_TO {
                    table.leases.remove(name);
                }
            }
            Ok(RenewOutcome::Lost(_)) | Err(_) => {}
        }
        result
    }

    fn is_lost(&self, name: &LeaseName, reason: LossReason) {
        let mut table = self.table();
        let up_to = table.last_stamp;
        let Some(entry) = table.leases.get_mut(name) else {
            return;
        };
        if entry.lost.is_some() {
            return;
        }
        entry.lost = Some((reason, up_to));
        entry.ends_at = Some(Instant::now());
        entry.counted = None;
        table.to_tell.push_back((name.clone(), reason));
        self.bell.notify_one();
    }
}

impl Coordinator {
    /// A new stream.
    pub fn open_stream(&self) -> LeaseStream {
        LeaseStream {
            stream: self.streams.open(self.store.clone(), self.metrics.clone()),
            streams: self.streams.clone(),
            cleanups: self.cleanups.clone(),
            _unsettled: self.cleanups.unsettled(),
        }
    }
}

/// A stream that keeps leases alive. Dropped, it leaves them all standing.
#[derive(Debug)]
pub struct LeaseStream {
    stream: Arc<Stream>,
    streams: Streams,
    cleanups: Cleanups,
    /// Has the end of the service wait for what the stream leaves to be done.
    _unsettled: TaskTrackerToken,
}

impl LeaseStream {
    /// Gets ready to take messages, no longer than until `limit`: they are put in order by the store's clock.
    pub async fn ready(&self, limit: Instant) {
        self.stream.store.knows_the_time(limit).await;
    }

    /// Takes a message. Its answer has to be waited for even where nobody hears it any more: only then may the stream end.
    pub fn take(
        &self,
        message: KeepAlive,
        limit: Instant,
    ) -> impl Future<Output = Result<RenewOutcome, Failure>> + Send + use<> {
        let stream = self.stream.clone();
        let (name, asked) = stream.comes_in(&message);
        async move {
            let report = Report::begin(&stream.metrics, CALL, Subject::of(&name));
            let result = match &message {
                KeepAlive::Renew { renewal, .. } => {
                    stream.store.renew_for(asked, renewal, limit).await
                }
                KeepAlive::Detach(name) => stream.store.detach(asked, name, limit).await,
            };
            let result = stream.is_answered(&name, asked.stamp, result);
            // Whoever takes a lease off has done with it, and most have released it before: that is no loss.
            if matches!(message, KeepAlive::Renew { .. }) {
                report.end(result.as_ref());
            }
            result
        }
    }

    /// Waits for the loss of a lease on the stream that is to be told.
    pub async fn lost(&self) -> (LeaseName, LossReason) {
        loop {
            let rings = self.stream.bell.notified();
            let next = self.stream.table().to_tell.pop_front();
            if let Some((name, reason)) = next {
                let report = Report::begin(&self.stream.metrics, CALL, Subject::of(&name));
                report.end(Ok(&RenewOutcome::Lost(reason)));
                return (name, reason);
            }
            rings.await;
        }
    }

    /// The stream ended, and not because the service or its connection did: so do the leases that shall.
    pub fn end(self) {
        let at_least = Instant::now() + WORTH_TRYING;
        let leases = std::mem::take(&mut self.stream.table().leases);
        let ending = leases.into_iter().filter_map(|(name, entry)| {
            let ends = entry.end_on_close && entry.lost.is_none();
            ends.then(|| (name, entry.ends_at.unwrap_or(at_least).max(at_least)))
        });
        let ending: Vec<_> = ending.collect();
        if !ending.is_empty() {
            self.cleanups.end_leases(self.stream.number, ending);
        }
    }
}

impl Drop for LeaseStream {
    fn drop(&mut self) {
        self.streams.streams().remove(&self.stream.number);
    }
}

/// As what the log knows messages.
const CALL: &str = "keep_alive";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::claim::RenewClaim;
    use crate::domain::duration::{Millis, Retention};
    use crate::domain::failure::Cause;
    use crate::domain::lease::Renewal;
    use crate::domain::name::{ClaimId, IdempotencyKey, Scope, Tenant};
    use crate::domain::token::ClaimToken;
    use crate::metrics::TenantLimit;
    use crate::store::StoreSettings;

    pub(super) const LEASE: Duration = Duration::from_secs(30);

    /// A stream, on a store that nothing is asked of.
    pub(super) fn stream() -> Arc<Stream> {
        open_stream().1
    }

    pub(super) fn open_stream() -> (Streams, Arc<Stream>) {
        let metrics = Metrics::new("1.2.3", TenantLimit::none());
        let settings = StoreSettings {
            connections: 1,
            timeout: Duration::from_secs(1),
            memory: Millis::new(600_000),
            max_retention: Retention::largest(Millis::new(600_000)),
        };
        let store = Store::open("unix:///nowhere", settings, metrics.clone()).expect("a URL");
        let streams = Streams::default();
        let stream = streams.open(store, metrics);
        (streams, stream)
    }

    pub(super) fn message(key: &str, end_on_close: bool) -> KeepAlive {
        let renewal = Renewal::Claim(RenewClaim {
            id: ClaimId {
                tenant: Tenant::parse("default".to_owned()).expect("a tenant"),
                scope: Scope::parse(String::new()).expect("a scope"),
                key: IdempotencyKey::parse(key.to_owned()).expect("a key"),
            },
            token: ClaimToken::parse("0123456789abcdef".to_owned()).expect("a token"),
            lease: None,
            checkpoint: None,
        });
        KeepAlive::Renew {
            renewal,
            end_on_close,
        }
    }

    pub(super) fn renewed() -> Result<RenewOutcome, Failure> {
        Ok(RenewOutcome::Renewed {
            lease_left: LEASE,
            fencing_token: 7,
        })
    }

    fn away() -> Result<RenewOutcome, Failure> {
        Err(Failure::StoreUnavailable {
            retry_after: LEASE,
            cause: Cause::new("away"),
        })
    }

    pub(super) fn lost(reason: LossReason) -> Result<RenewOutcome, Failure> {
        Ok(RenewOutcome::Lost(reason))
    }

    impl Stream {
        pub(super) fn on_it(&self) -> usize {
            self.table().leases.len()
        }
    }

    #[tokio::test]
    async fn each_message_is_stamped_later_than_the_one_before() {
        let stream = stream();
        let stamps = [(); 100].map(|()| stream.comes_in(&message("k", false)).1.stamp);
        assert!(stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
    }

    #[tokio::test]
    async fn a_renewal_that_is_answered_after_its_loss_was_told_is_told_to_be_lost() {
        let stream = stream();
        let (name, before) = stream.comes_in(&message("k", true));
        stream.is_lost(&name, LossReason::Forced);
        // Told once, however often it is heard.
        stream.is_lost(&name, LossReason::TakenOver);
        assert_eq!(stream.table().to_tell.len(), 1);
        let told = stream.is_answered(&name, before.stamp, renewed());
        assert_eq!(
            told.expect("it is answered"),
            RenewOutcome::Lost(LossReason::Forced)
        );
        // What is asked since, the store knows better: a takeover may have been undone.
        let (_, after) = stream.comes_in(&message("k", false));
        let told = stream.is_answered(&name, after.stamp, renewed());
        assert!(matches!(told, Ok(RenewOutcome::Renewed { .. })), "{told:?}");
        assert!(stream.table().leases[&name].lost.is_none());
    }

    #[tokio::test]
    async fn what_was_lost_or_never_was_is_on_the_stream_no_more() {
        let stream = stream();
        let (name, first) = stream.comes_in(&message("k", false));
        let (_, second) = stream.comes_in(&message("k", false));
        // The first says nothing of what was asked since.
        let _ = stream.is_answered(&name, first.stamp, lost(LossReason::NotFound));
        assert_eq!(stream.on_it(), 1);
        let _ = stream.is_answered(&name, second.stamp, lost(LossReason::NotFound));
        assert_eq!(stream.on_it(), 0);

        let (name, unheard) = stream.comes_in(&message("k", false));
        let _ = stream.is_answered(&name, unheard.stamp, away());
        assert_eq!(stream.on_it(), 0, "nobody knows whether it is on it");
        let (name, unheard) = stream.comes_in(&message("to end", true));
        let _ = stream.is_answered(&name, unheard.stamp, away());
        assert_eq!(stream.on_it(), 1, "if it is, it ends with it");
        stream.comes_in(&KeepAlive::Detach(name));
        let (name, heard) = stream.comes_in(&message("k", false));
        let _ = stream.is_answered(&name, heard.stamp, renewed());
        let (_, unheard) = stream.comes_in(&message("k", false));
        let _ = stream.is_answered(&name, unheard.stamp, away());
        assert_eq!(stream.on_it(), 1, "it was");
    }

    #[tokio::test]
    async fn a_detached_lease_is_not_put_back_by_an_answer_to_what_was_asked_before() {
        let stream = stream();
        let (name, renewal) = stream.comes_in(&message("k", true));
        stream.comes_in(&KeepAlive::Detach(name.clone()));
        let _ = stream.is_answered(&name, renewal.stamp, renewed());
        assert_eq!(stream.on_it(), 0);
        // And it is to end with the stream no more.
        let (_, again) = stream.comes_in(&message("k", false));
        let _ = stream.is_answered(&name, again.stamp, renewed());
        assert!(!stream.table().leases[&name].end_on_close);
    }
}
