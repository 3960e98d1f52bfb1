//! A lease that is kept alive in the background, and the news of its loss.

#[cfg(test)]
mod tests;

use crate::failure::Failure;
use crate::keep_alive::OnStream;
use crate::proto;
use crate::time::later;
use std::fmt;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Why a claim or lock is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// Nothing is known of it: its lease ended some time ago, or it never was.
    NotFound,
    /// Somebody else holds it, or held it since.
    TakenOver,
    /// It was released or abandoned with this token.
    Released,
    /// An operator took it away.
    Forced,
    /// The claim is completed.
    Completed,
    /// The lease ended, by the service's word.
    LeaseOver,
    /// The lease ended on the clock of this process, since no renewal got through; or the connection broke with which it
    /// was to end. The service was not heard.
    NotRenewed,
    /// A reason that this client does not know.
    Unknown,
}

/// That a claim or lock is no longer held, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Loss {
    /// Why.
    pub reason: LossReason,
    /// For people to read.
    pub detail: String,
}

impl From<proto::Lost> for Loss {
    fn from(lost: proto::Lost) -> Self {
        use proto::LossReason as Wire;
        Self {
            reason: match lost.reason() {
                Wire::Unspecified => LossReason::Unknown,
                Wire::NotFound => LossReason::NotFound,
                Wire::TakenOver => LossReason::TakenOver,
                Wire::Released => LossReason::Released,
                Wire::Forced => LossReason::Forced,
                Wire::Completed => LossReason::Completed,
                Wire::LeaseOver => LossReason::LeaseOver,
            },
            detail: lost.detail,
        }
    }
}

/// What a renewal came to.
pub(crate) enum Renewal {
    Renewed { lease_left: Duration },
    Lost(Loss),
}

impl Renewal {
    /// An outcome that is not known extends nothing.
    pub(crate) fn of(renewed: Option<proto::Renewed>, lost: Option<proto::Lost>) -> Option<Self> {
        match (renewed, lost) {
            (Some(renewed), _) => Some(Self::Renewed {
                lease_left: crate::time::from_wire(renewed.lease_left),
            }),
            (_, Some(lost)) => Some(Self::Lost(lost.into())),
            (None, None) => None,
        }
    }
}

/// What happens when the lease's time has passed here and no renewal got through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterItsTime {
    /// A lock whose lease ended is never renewed.
    Stop,
    /// A claim that nobody took goes on by its next renewal.
    GoOn,
}

/// A lease as it was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// Until when it stands at least.
    pub(crate) until: Instant,
    pub(crate) after_its_time: AfterItsTime,
    /// Whether its end depends on being known to the service's stream, so that it is renewed there at once.
    pub(crate) at_once: bool,
}

/// What a lease hears beside the answers to its renewals.
#[derive(Debug, Default)]
pub(crate) struct News {
    told: Mutex<Told>,
    is_new: Notify,
}

/// All that is new.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// It is lost, by the service's word.
    pub(crate) lost: Option<Loss>,
    /// It may have ended with its stream.
    pub(crate) severed: Option<Severed>,
    /// It is to be renewed now.
    pub(crate) renew: bool,
}

/// That the stream broke with which a lease was to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Severed {
    pub(crate) at: Instant,
    /// Nobody else can have what it stands for before that.
    pub(crate) stands_until: Instant,
}

impl News {
    pub(crate) fn tell(&self, tell: impl FnOnce(&mut Told)) {
        tell(&mut self.lock());
        self.is_new.notify_one();
    }

    /// Waits for something new. Safe to drop and to ask again.
    async fn next(&self) -> Told {
        self.is_new.notified().await;
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("nothing panics while it tells")
    }
}

/// Renews a lease until it is dropped; tells when it is lost.
pub(crate) struct KeptAlive {
    loss: watch::Receiver<Option<Loss>>,
    stop: CancellationToken,
    on_stream: Option<Arc<OnStream>>,
}

impl fmt::Debug for KeptAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptAlive")
            .field("loss", &*self.loss.borrow())
            .finish()
    }
}

impl Drop for KeptAlive {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(on_stream) = &self.on_stream {
            on_stream.give_up();
        }
    }
}

/// The shortest pause between two renewals, where the lease itself is short.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// When a lease is renewed first at the latest. What is held for longer is then on the stream, over which its loss is told
/// at once.
const FIRST_RENEWAL: Duration = Duration::from_secs(1);

impl KeptAlive {
    /// Renews at a third of the lease: over the stream, and where that cannot be, `by_call`, which is given until when its
    /// answer is of use.
    pub(crate) fn start<R>(
        terms: Terms,
        on_stream: OnStream,
        by_call: impl Fn(Instant) -> R + Send + Sync + 'static,
    ) -> Self
    where
        R: Future<Output = Result<Renewal, Failure>> + Send,
    {
        let on_stream = Arc::new(on_stream);
        let renewing = on_stream.clone();
        let by_call = Arc::new(by_call);
        let mut kept = Self::start_with(terms, on_stream.news().clone(), move |limit| {
            let (renewing, by_call) = (renewing.clone(), by_call.clone());
            async move { renewing.renew(limit, &*by_call).await }
        });
        kept.on_stream = Some(on_stream);
        kept
    }

    fn start_with<R>(
        terms: Terms,
        news: Arc<News>,
        renew: impl Fn(Instant) -> R + Send + Sync + 'static,
    ) -> Self
    where
        R: Future<Output = Result<Renewal, Failure>> + Send,
    {
        let (tell, loss) = watch::channel(None);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = Keeping::new(terms, tell).run(&news, renew) => {}
                () = stopped.cancelled() => {}
            }
        });
        Self {
            loss,
            stop,
            on_stream: None,
        }
    }

    /// Waits until the lease is lost. Safe to drop and to ask again.
    pub(crate) async fn lost(&self) -> Loss {
        let mut loss = self.loss.clone();
        let told = loss.wait_for(Option::is_some).await;
        let told = told.ok().and_then(|loss| loss.clone());
        // What renews it ends with the loss told, with this value, or with the runtime that it was started on.
        told.unwrap_or_else(not_renewed)
    }

    /// Waits until the service says that the lease is lost: that no renewal gets through is no reason yet.
    pub(crate) async fn lost_for_good(&self) -> Loss {
        let mut loss = self.loss.clone();
        let is_told = |loss: &Option<Loss>| matches!(loss, Some(loss) if loss.reason != LossReason::NotRenewed);
        let told = loss.wait_for(is_told).await;
        let told = told.ok().and_then(|loss| loss.clone());
        match told {
            Some(loss) => loss,
            None => std::future::pending().await,
        }
    }

    /// The loss, if it has been lost.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.borrow().clone()
    }
}

/// A lease while it is kept alive.
struct Keeping {
    terms: Terms,
    until: Instant,
    /// When it is to be renewed.
    next: Instant,
    /// When its stream broke, until it is renewed after that.
    severed: Option<Instant>,
    tell: watch::Sender<Option<Loss>>,
}

impl Keeping {
    fn new(terms: Terms, tell: watch::Sender<Option<Loss>>) -> Self {
        let mut keeping = Self {
            terms,
            until: terms.until,
            next: Instant::now(),
            severed: None,
            tell,
        };
        if !terms.at_once {
            keeping.next += keeping.pause().min(FIRST_RENEWAL);
        }
        keeping
    }

    fn pause(&self) -> Duration {
        (self.terms.lease / 3).max(SHORTEST_PAUSE)
    }

    async fn run<R>(mut self, news: &News, renew: impl Fn(Instant) -> R)
    where
        R: Future<Output = Result<Renewal, Failure>>,
    {
        while self.is_due(news).await.is_continue()
            && self.is_renewed(news, &renew).await.is_continue()
        {}
    }

    /// Waits until it is to be renewed.
    async fn is_due(&mut self, news: &News) -> ControlFlow<()> {
        loop {
            self.look_at_the_time()?;
            if Instant::now() >= self.next {
                return ControlFlow::Continue(());
            }
            let wake = if self.is_over() {
                self.next
            } else {
                self.next.min(self.until)
            };
            tokio::select! {
                told = news.next() => self.hear(told)?,
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    async fn is_renewed<R>(&mut self, news: &News, renew: impl Fn(Instant) -> R) -> ControlFlow<()>
    where
        R: Future<Output = Result<Renewal, Failure>>,
    {
        let sent = Instant::now();
        // What is heard after the lease's end comes too late for a lock, and is as good as before for a claim.
        let limit = if self.until > sent {
            self.until
        } else {
            later(sent, self.terms.lease)
        };
        self.next = later(sent, self.pause());
        let mut renewing = pin!(renew(limit));
        loop {
            tokio::select! {
                biased;
                answer = &mut renewing => return self.answered(sent, answer),
                told = news.next() => self.hear(told)?,
                () = tokio::time::sleep_until(self.until.into()), if !self.is_over() => {
                    self.look_at_the_time()?;
                }
            }
        }
    }

    fn answered(&mut self, sent: Instant, answer: Result<Renewal, Failure>) -> ControlFlow<()> {
        match answer {
            // What was sent before its stream broke says nothing of what that did to it.
            Ok(Renewal::Renewed { .. }) if self.severed.is_some_and(|at| sent <= at) => {}
            Ok(Renewal::Renewed { lease_left }) => {
                self.severed = None;
                self.until = self.until.max(later(sent, lease_left));
                if Instant::now() < self.until && self.terms.after_its_time == AfterItsTime::GoOn {
                    self.tell.send_if_modified(|loss| loss.take().is_some());
                }
            }
            Ok(Renewal::Lost(loss)) => return self.lost(loss),
            Err(failure) => tracing::debug!(%failure, "a lease could not be renewed"),
        }
        ControlFlow::Continue(())
    }

    fn hear(&mut self, told: Told) -> ControlFlow<()> {
        if let Some(loss) = told.lost {
            return self.lost(loss);
        }
        if let Some(severed) = told.severed {
            self.severed = Some(severed.at);
            self.until = self.until.min(severed.stands_until);
        }
        if told.renew {
            self.next = Instant::now();
        }
        ControlFlow::Continue(())
    }

    fn is_over(&self) -> bool {
        self.tell.borrow().is_some()
    }

    /// Tells of the loss where its time has passed.
    fn look_at_the_time(&mut self) -> ControlFlow<()> {
        let now = Instant::now();
        if now < self.until || self.is_over() {
            return ControlFlow::Continue(());
        }
        let loss = match self.severed {
            Some(_) => severed(),
            None => not_renewed(),
        };
        self.tell.send_replace(Some(loss));
        match self.terms.after_its_time {
            AfterItsTime::Stop => ControlFlow::Break(()),
            AfterItsTime::GoOn => {
                self.next = now;
                ControlFlow::Continue(())
            }
        }
    }

    fn lost(&self, loss: Loss) -> ControlFlow<()> {
        self.tell.send_replace(Some(loss));
        ControlFlow::Break(())
    }
}

fn not_renewed() -> Loss {
    Loss {
        reason: LossReason::NotRenewed,
        detail: "its lease ran out, as no renewal got through".to_owned(),
    }
}

fn severed() -> Loss {
    Loss {
        reason: LossReason::NotRenewed,
        detail: "the connection that it was to end with broke".to_owned(),
    }
}
