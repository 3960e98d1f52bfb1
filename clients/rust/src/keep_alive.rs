//! Renewals over the one stream that a client and its clones have for all their leases.
//!
//! Whoever keeps a lease alive decides when it is renewed, and asks here. A task of its own ([`stream`]) holds the stream:
//! it sends what is asked, hands each answer to whoever asked, and tells leases what the service says of its own accord.
//! Where the stream is down or silent, a renewal is a call of its own.

mod leases;
mod stream;

use crate::Client;
use crate::call::{LONGEST_PAUSE, Pauses};
use crate::failure::{Failure, FailureKind};
use crate::lease::{News, Renewal};
use crate::proto::LeaseRef;
use crate::proto::lease_ref::Kind;
use crate::time::later;
use prost_types::Duration as Wire;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stream::Keeper;
use tokio::sync::{mpsc, oneshot};

/// A service and its client may find out seconds apart that the path between them is gone, as each does by pings.
const FOUND_OUT_APART: Duration = Duration::from_secs(3);
/// A lease that could not be moved to another stream in that time hardly will be.
const MOVED_WITHIN: Duration = Duration::from_secs(2);

/// What a renewal is answered. Where there is no answer the stream is down.
type Answer = Result<Renewal, Failure>;

/// What is asked of the task that holds the stream.
enum Order {
    Renew(Arc<Lease>, oneshot::Sender<Answer>),
    /// Takes a lease off the stream. What comes with it is dropped when that is done, or nothing more is to be done.
    Detach(Arc<Lease>, Option<oneshot::Sender<()>>),
}

/// The way to the task that holds a client's stream, which is started by the first renewal.
#[derive(Default)]
pub(crate) struct KeepAlive {
    orders: Mutex<Option<mpsc::Sender<Order>>>,
}

impl KeepAlive {
    /// The task ended where the runtime did that it was started on.
    fn running(&self) -> Option<mpsc::Sender<Order>> {
        let orders = self
            .orders
            .lock()
            .expect("nothing panics while it holds it");
        orders.clone().filter(|orders| !orders.is_closed())
    }

    fn running_or(&self, start: impl FnOnce() -> mpsc::Sender<Order>) -> mpsc::Sender<Order> {
        let mut orders = self
            .orders
            .lock()
            .expect("nothing panics while it holds it");
        match &*orders {
            Some(running) if !running.is_closed() => running.clone(),
            _ => orders.insert(start()).clone(),
        }
    }
}

/// A lease as the stream has it.
pub(crate) struct Lease {
    kind: Kind,
    tenant: String,
    /// The new lease of each renewal.
    lease: Option<Wire>,
    end_on_close: Option<EndOnClose>,
    news: Arc<News>,
    was_asked_for: AtomicBool,
    is_given_up: AtomicBool,
    /// Its stream broke, it was to end with that, and no stream has renewed it since.
    is_severed: AtomicBool,
}

impl Lease {
    fn reference(&self) -> LeaseRef {
        LeaseRef {
            tenant: self.tenant.clone(),
            kind: Some(self.kind.clone()),
        }
    }
}

/// A lease that is renewed over its client's stream.
pub(crate) struct OnStream {
    client: Client,
    lease: Arc<Lease>,
}

/// A lease that is to end with the stream that renewed it last, unless it is given up before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndOnClose {
    /// For how long nobody else gets what it stands for after that.
    pub(crate) delay: Duration,
}

impl EndOnClose {
    /// How long it counts as held after its stream broke here: no longer than it is certain that nobody else has it, nor
    /// than it takes to move it to another stream. What is left of the delay is for ending the work.
    fn stands_for(self) -> Duration {
        let is_safe = self.delay.saturating_sub(FOUND_OUT_APART);
        is_safe.min(MOVED_WITHIN)
    }
}

impl OnStream {
    pub(crate) fn new(
        client: &Client,
        tenant: &str,
        kind: Kind,
        lease: Option<Wire>,
        end_on_close: Option<EndOnClose>,
    ) -> Self {
        let tenant = match tenant {
            "" => &client.shared.tenant,
            named => named,
        };
        Self {
            client: client.clone(),
            lease: Arc::new(Lease {
                kind,
                tenant: tenant.to_owned(),
                lease,
                end_on_close,
                news: Arc::default(),
                was_asked_for: AtomicBool::new(false),
                is_given_up: AtomicBool::new(false),
                is_severed: AtomicBool::new(false),
            }),
        }
    }

    pub(crate) fn news(&self) -> &Arc<News> {
        &self.lease.news
    }

    /// Renews it, over the stream or `by_call`; the answer is of use until `limit`. Where the stream says nothing, half of
    /// that time is left to the call.
    pub(crate) async fn renew<R>(&self, limit: Instant, by_call: impl Fn(Instant) -> R) -> Answer
    where
        R: Future<Output = Answer>,
    {
        let mut pauses = Pauses::default();
        loop {
            let half = limit.saturating_duration_since(Instant::now()) / 2;
            let patience = half.min(self.client.call_timeout);
            let answer = tokio::time::timeout(patience, self.ask()).await;
            match answer {
                Ok(Some(Err(failure))) if failure.kind == FailureKind::Unavailable => {
                    let left = limit.saturating_duration_since(Instant::now());
                    let Some(pause) = pauses.next(failure.retry_after, left, LONGEST_PAUSE) else {
                        return Err(failure);
                    };
                    tokio::time::sleep(pause).await;
                }
                Ok(Some(answer)) => return answer,
                // It would not keep the service from ending the lease with the stream that broke.
                _ if self.lease.is_severed.load(Ordering::Relaxed) => {
                    return Err(Failure::stream_is_down());
                }
                Ok(None) | Err(_) => return by_call(limit).await,
            }
        }
    }

    async fn ask(&self) -> Option<Answer> {
        let shared = &self.client.shared;
        self.lease.was_asked_for.store(true, Ordering::Relaxed);
        let orders = shared.keep_alive.running_or(|| Keeper::start(shared));
        let (answer, answered) = oneshot::channel();
        let order = Order::Renew(self.lease.clone(), answer);
        orders.send(order).await.ok()?;
        answered.await.ok()
    }

    /// Takes it off the stream, on which it is renewed no more.
    pub(crate) fn give_up(&self) {
        let was_given_up = self.lease.is_given_up.swap(true, Ordering::Relaxed);
        if was_given_up || !self.lease.was_asked_for.load(Ordering::Relaxed) {
            return;
        }
        let Some(orders) = self.client.shared.keep_alive.running() else {
            return;
        };
        let (done, is_done) = oneshot::channel();
        // One that was to end with the stream may do so still, unless its end is waited for.
        let waits = self.lease.end_on_close.is_some();
        let order = Order::Detach(self.lease.clone(), waits.then_some(done));
        let order = match orders.try_send(order) {
            Ok(()) if !waits => return,
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(order)) => Some(order),
            Err(mpsc::error::TrySendError::Closed(_)) => return,
        };
        let client = self.client.clone();
        let limit = later(Instant::now(), client.call_timeout);
        self.client.in_background(async move {
            let detached = async {
                if let Some(order) = order {
                    let _ = orders.send(order).await;
                }
                let _ = is_done.await;
            };
            // What does not get through in time is bounded by its lease.
            let _ = tokio::time::timeout_at(limit.into(), detached).await;
            drop(client);
        });
    }
}
