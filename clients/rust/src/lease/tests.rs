//! What keeping a lease alive comes to, with renewals that are answered here.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use tonic::Status;

const LEASE: Duration = Duration::from_millis(90);

fn terms(after_its_time: AfterItsTime) -> Terms {
    Terms {
        lease: LEASE,
        until: Instant::now() + LEASE,
        after_its_time,
        at_once: false,
    }
}

fn started<R>(terms: Terms, renew: impl Fn(Instant) -> R + Send + Sync + 'static) -> KeptAlive
where
    R: Future<Output = Result<Renewal, Failure>> + Send,
{
    KeptAlive::start_with(terms, Arc::default(), renew)
}

fn kept(
    after_its_time: AfterItsTime,
    renew: impl Fn(usize) -> Result<Renewal, Failure> + Send + Sync + 'static,
) -> (KeptAlive, Arc<AtomicUsize>) {
    let renewals = Arc::new(AtomicUsize::new(0));
    let counted = renewals.clone();
    let kept = started(terms(after_its_time), move |_| {
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
    let terms = terms(AfterItsTime::Stop);
    let until = terms.until;
    let asked = Asked::default();
    let seen = asked.clone();
    let kept = started(terms, move |limit| {
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
    let terms = terms(AfterItsTime::Stop);
    let until = terms.until;
    let kept = started(terms, move |limit| {
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

const LONG: Duration = Duration::from_secs(3600);

/// A lock with a long lease, whose renewals are answered in turn; and where it hears of what is new.
fn long<R>(renew: impl Fn(Instant) -> R + Send + Sync + 'static) -> (KeptAlive, Arc<News>)
where
    R: Future<Output = Result<Renewal, Failure>> + Send,
{
    let terms = Terms {
        lease: LONG,
        until: Instant::now() + LONG,
        ..terms(AfterItsTime::Stop)
    };
    let news = Arc::new(News::default());
    let kept = KeptAlive::start_with(terms, news.clone(), renew);
    (kept, news)
}

fn sever(news: &News, stands_for: Duration) {
    let at = Instant::now();
    let stands_until = at + stands_for;
    news.tell(|told| told.severed = Some(Severed { at, stands_until }));
}

#[tokio::test]
async fn a_loss_that_is_told_unasked_ends_a_long_lease_at_once() {
    let (kept, news) = long(|_| std::future::pending());
    let loss = not_renewed();
    for reason in [LossReason::Forced, LossReason::TakenOver] {
        let loss = Loss {
            reason,
            ..loss.clone()
        };
        news.tell(|told| told.lost = Some(loss));
    }
    assert_eq!(kept.lost().await.reason, LossReason::TakenOver);
}

#[tokio::test]
async fn a_lease_that_is_to_be_renewed_now_is() {
    let (asked, mut renewed) = tokio::sync::mpsc::channel(10);
    let (_kept, news) = long(move |_| {
        let asked = asked.clone();
        async move {
            let _ = asked.send(()).await;
            Ok(Renewal::Renewed { lease_left: LONG })
        }
    });
    for _ in 0..3 {
        news.tell(|told| told.renew = true);
        assert_eq!(renewed.recv().await, Some(()));
    }
}

#[tokio::test]
async fn a_lease_whose_stream_broke_is_lost_when_another_may_have_it_and_not_before() {
    let (kept, news) = long(|_| async { unavailable() });
    let severed = Instant::now();
    sever(&news, LEASE);
    assert_eq!(kept.lost().await.reason, LossReason::NotRenewed);
    assert!(severed.elapsed() >= LEASE);
}

#[tokio::test]
async fn only_a_renewal_that_was_sent_after_its_stream_broke_keeps_a_lease() {
    for again in [false, true] {
        let (answer, answered) = watch::channel(false);
        let number = AtomicUsize::new(0);
        let (kept, news) = long(move |_| {
            let mut answered = answered.clone();
            let number = number.fetch_add(1, Ordering::Relaxed);
            async move {
                let _ = answered.wait_for(|answered| *answered).await;
                match number {
                    0 => Ok(Renewal::Renewed { lease_left: LONG }),
                    _ if again => Ok(Renewal::Renewed { lease_left: LONG }),
                    _ => unavailable(),
                }
            }
        });
        news.tell(|told| told.renew = true);
        tokio::time::sleep(LEASE / 3).await;
        sever(&news, LEASE * 3);
        news.tell(|told| told.renew = true);
        tokio::time::sleep(LEASE / 3).await;
        answer.send_replace(true);
        let lost = tokio::time::timeout(LEASE * 6, kept.lost()).await;
        assert_eq!(lost.is_err(), again, "{lost:?}");
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
        started(terms(AfterItsTime::Stop), |_| async { renewed() })
    };
    drop(first);
    let loss = runtime().block_on(kept.lost());
    assert_eq!(loss.reason, LossReason::NotRenewed);
}
