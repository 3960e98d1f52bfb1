//! A lease that is kept alive in the background, and the news of its loss.

use crate::failure::Failure;
use crate::proto;
use crate::time::later;
use std::fmt;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

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
    /// The lease ended on the clock of this process, since no renewal got through. The service was not heard.
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

/// Renews a lease until it is dropped; tells when it is lost.
pub(crate) struct KeptAlive {
    loss: watch::Receiver<Option<Loss>>,
    _stop: DropGuard,
}

impl fmt::Debug for KeptAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptAlive")
            .field("loss", &*self.loss.borrow())
            .finish()
    }
}

/// The shortest pause between two renewals, where the lease itself is short.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

impl KeptAlive {
    /// Renews at a third of `lease`, which stood until `until` at least when it was granted. `renew` is given until when
    /// its answer is of use.
    pub(crate) fn start<R>(
        lease: Duration,
        until: Instant,
        after_its_time: AfterItsTime,
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
                () = keep_alive(lease, until, after_its_time, renew, tell) => {}
                () = stopped.cancelled() => {}
            }
        });
        Self {
            loss,
            _stop: stop.drop_guard(),
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

async fn keep_alive<R>(
    lease: Duration,
    mut until: Instant,
    after_its_time: AfterItsTime,
    renew: impl Fn(Instant) -> R,
    tell: watch::Sender<Option<Loss>>,
) where
    R: Future<Output = Result<Renewal, Failure>>,
{
    let pause = (lease / 3).max(SHORTEST_PAUSE);
    let mut next = later(Instant::now(), pause);
    loop {
        let is_over = tell.borrow().is_some();
        if is_over {
            tokio::time::sleep_until(next.into()).await;
        } else {
            tokio::time::sleep_until(next.min(until).into()).await;
            if Instant::now() >= until {
                tell.send_replace(Some(not_renewed()));
                if after_its_time == AfterItsTime::Stop {
                    return;
                }
            }
        }
        let sent = Instant::now();
        // What is heard after the lease's end comes too late for a lock, and is as good as before for a claim.
        let limit = if until > sent {
            until
        } else {
            later(sent, lease)
        };
        match renew(limit).await {
            Ok(Renewal::Renewed { lease_left }) => {
                until = until.max(later(sent, lease_left));
                if Instant::now() < until && after_its_time == AfterItsTime::GoOn {
                    tell.send_if_modified(|loss| loss.take().is_some());
                }
            }
            Ok(Renewal::Lost(loss)) => {
                tell.send_replace(Some(loss));
                return;
            }
            Err(failure) => tracing::debug!(%failure, "a lease could not be renewed"),
        }
        next = later(sent, pause);
    }
}

fn not_renewed() -> Loss {
    Loss {
        reason: LossReason::NotRenewed,
        detail: "its lease ran out, as no renewal got through".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use tonic::Status;

    const LEASE: Duration = Duration::from_millis(90);

    fn kept(
        after_its_time: AfterItsTime,
        renew: impl Fn(usize) -> Result<Renewal, Failure> + Send + Sync + 'static,
    ) -> (KeptAlive, Arc<AtomicUsize>) {
        let renewals = Arc::new(AtomicUsize::new(0));
        let counted = renewals.clone();
        let kept = KeptAlive::start(LEASE, Instant::now() + LEASE, after_its_time, move |_| {
            let answer = renew(counted.fetch_add(1, Ordering::Relaxed));
            async move { answer }
        });
        (kept, renewals)
    }

    fn renewed() -> Result<Renewal, Failure> {
        Ok(Renewal::Renewed { lease_left: LEASE })
    }

    fn unavailable() -> Result<Renewal, Failure> {
        Err(Status::unavailable("away").into())
    }

    #[tokio::test]
    async fn a_lease_that_is_renewed_is_not_lost() {
        let (kept, renewals) = kept(AfterItsTime::Stop, |_| renewed());
        assert!(tokio::time::timeout(LEASE * 10, kept.lost()).await.is_err());
        assert!(renewals.load(Ordering::Relaxed) >= 3);
    }

    #[tokio::test]
    async fn a_lock_is_lost_when_its_time_has_passed_unheard_and_not_before() {
        let granted = Instant::now();
        let (kept, _) = kept(AfterItsTime::Stop, |_| unavailable());
        assert_eq!(kept.lost().await.reason, LossReason::NotRenewed);
        assert!(granted.elapsed() >= LEASE);
    }

    #[tokio::test]
    async fn a_lock_that_was_lost_is_not_renewed_any_more() {
        let (kept, renewals) = kept(AfterItsTime::Stop, |_| unavailable());
        kept.lost().await;
        let at_the_loss = renewals.load(Ordering::Relaxed);
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(renewals.load(Ordering::Relaxed), at_the_loss);
    }

    #[tokio::test]
    async fn a_claim_whose_time_passed_unheard_goes_on_once_it_is_renewed() {
        let (kept, _) = kept(AfterItsTime::GoOn, |renewal| match renewal {
            0..6 => unavailable(),
            _ => renewed(),
        });
        assert_eq!(kept.lost().await.reason, LossReason::NotRenewed);
        let deadline = Instant::now() + Duration::from_secs(20);
        while kept.loss().is_some() {
            assert!(Instant::now() < deadline, "it does not go on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_loss_that_the_service_tells_is_told_at_once_and_for_good() {
        let (kept, renewals) = kept(AfterItsTime::GoOn, |_| {
            Ok(Renewal::Lost(Loss {
                reason: LossReason::TakenOver,
                detail: "taken over".to_owned(),
            }))
        });
        assert_eq!(kept.lost().await.reason, LossReason::TakenOver);
        tokio::time::sleep(LEASE).await;
        assert_eq!(renewals.load(Ordering::Relaxed), 1);
        assert_eq!(
            kept.loss().map(|loss| loss.reason),
            Some(LossReason::TakenOver)
        );
    }

    #[tokio::test]
    async fn nothing_is_renewed_once_nobody_wants_it() {
        let (kept, renewals) = kept(AfterItsTime::GoOn, |_| renewed());
        drop(kept);
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(renewals.load(Ordering::Relaxed), 0);
    }
    /// Until when each renewal's answer was of use, and when it was sent or a little later.
    type Asked = Arc<Mutex<Vec<(Instant, Instant)>>>;

    #[tokio::test]
    async fn a_renewal_is_waited_for_no_longer_than_the_lease_stands() {
        let until = Instant::now() + LEASE;
        let asked = Asked::default();
        let seen = asked.clone();
        let kept = KeptAlive::start(LEASE, until, AfterItsTime::Stop, move |limit| {
            seen.lock().unwrap().push((limit, Instant::now()));
            async move {
                tokio::time::sleep_until(limit.into()).await;
                unavailable()
            }
        });
        assert_eq!(kept.lost().await.reason, LossReason::NotRenewed);
        let limits = asked.lock().unwrap();
        assert!(limits.iter().all(|(limit, _)| *limit == until));
    }

    #[tokio::test]
    async fn a_lease_stands_from_when_its_renewal_was_sent_and_not_from_its_answer() {
        let asked = Asked::default();
        let seen = asked.clone();
        let until = Instant::now() + LEASE;
        let kept = KeptAlive::start(LEASE, until, AfterItsTime::Stop, move |limit| {
            let number = {
                let mut asked = seen.lock().unwrap();
                asked.push((limit, Instant::now()));
                asked.len()
            };
            async move {
                tokio::time::sleep(LEASE / 3).await;
                match number {
                    1 => renewed(),
                    _ => unavailable(),
                }
            }
        });
        kept.lost().await;
        let asked = asked.lock().unwrap();
        if let [(_, sent), (limit, _), ..] = asked[..] {
            assert!(limit <= (sent + LEASE).max(until));
        }
    }

    #[test]
    fn a_lock_that_nothing_renews_any_more_is_lost() {
        let runtime = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_time().build().expect("it needs no more")
        };
        let first = runtime();
        let kept = {
            let _inside = first.enter();
            let until = Instant::now() + LEASE;
            KeptAlive::start(LEASE, until, AfterItsTime::Stop, |_| async { renewed() })
        };
        drop(first);
        let loss = runtime().block_on(kept.lost());
        assert_eq!(loss.reason, LossReason::NotRenewed);
    }
}
