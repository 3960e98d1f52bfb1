//! Asks the store how leases stand that nothing was heard of for a while: such a lease may be over, or on another stream, and
//! is forgotten then; or it was renewed beside its stream, which still has to tell of its loss and to end it; or it was lost
//! unheard. So no stream knows more leases than the store knows to be its own, and those of the last moments.

use super::{Entry, Stream, Streams};
use crate::domain::failure::Failure;
use crate::domain::lease::{LeaseName, LossReason};
use crate::store::Standing;
use futures_util::{StreamExt as _, stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

/// How long after the last message about it a lease is looked at, and then again and again.
pub(super) const AFTER: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_secs(10);
/// When what the store could not be asked is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Leases of all streams that are looked at at once.
const AT_ONCE: usize = 64;

impl Streams {
    /// Looks at leases for as long as the answer is kept.
    pub fn look(&self) -> AbortOnDropHandle<()> {
        let streams = self.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let pause = match streams.look_at_what_is_due().await {
                    Ok(()) => EVERY,
                    Err(StoreIsAway) => AGAIN_AFTER,
                };
                let _ = tokio::time::timeout(pause, streams.0.bell.notified()).await;
            }
        }))
    }

    /// Looks at all there are: what was told of some may have gone unheard.
    pub fn look_now(&self) {
        let now = Instant::now();
        for stream in self.streams().values() {
            for entry in stream.table().leases.values_mut() {
                entry.look_at = now;
            }
        }
        self.0.bell.notify_one();
    }

    async fn look_at_what_is_due(&self) -> Result<(), StoreIsAway> {
        let now = Instant::now();
        let streams: Vec<_> = self.streams().values().cloned().collect();
        let is_away = AtomicBool::new(false);
        stream::iter(streams)
            .flat_map(|on| stream::iter(on.due(now).into_iter().map(move |due| (on.clone(), due))))
            .for_each_concurrent(AT_ONCE, async |(on, due): (Arc<Stream>, Due)| {
                if is_away.load(Ordering::Relaxed) {
                    return;
                }
                let limit = Instant::now() + on.store.timeout();
                match on.store.look_at_lease(on.number, &due.name, limit).await {
                    Ok(standing) => on.stands(&due, standing, Instant::now()),
                    Err(Failure::StoreUnavailable { .. }) => is_away.store(true, Ordering::Relaxed),
                    Err(failure) => {
                        tracing::error!(?failure, "could not look how a lease stands");
                        on.look_later(&due, Instant::now());
                    }
                }
            })
            .await;
        if is_away.into_inner() {
            return Err(StoreIsAway);
        }
        Ok(())
    }
}

struct StoreIsAway;

/// A lease that is to be looked at.
struct Due {
    name: LeaseName,
    /// Of the last message about it: where another comes, that one asks how the lease stands.
    stamp: i64,
}

impl Stream {
    /// What is to be looked at. The answer to a message that is under way says as much as a look, and may come later.
    fn due(&self, now: Instant) -> Vec<Due> {
        let table = self.table();
        let is_due =
            |(_, entry): &(&LeaseName, &Entry)| entry.unanswered == 0 && entry.look_at <= now;
        let due = table.leases.iter().filter(is_due);
        due.map(|(name, entry)| Due {
            name: name.clone(),
            stamp: entry.stamp,
        })
        .collect()
    }

    fn look_later(&self, due: &Due, now: Instant) {
        if let Some(entry) = self.table().leases.get_mut(&due.name) {
            entry.look_at = entry.look_at.max(now + AFTER);
        }
    }

    fn stands(&self, due: &Due, standing: Standing, now: Instant) {
        let mut table = self.table();
        let entry = table.leases.get_mut(&due.name);
        let Some(entry) = entry.filter(|entry| entry.stamp == due.stamp) else {
            return;
        };
        match standing {
            Standing::Kept { lease_left } => {
                entry.look_at = now + AFTER;
                entry.ends_at = Some(now + lease_left);
                // A claim's can be over, and be renewed yet.
                if lease_left.is_zero() {
                    entry.counted = None;
                } else if entry.lost.is_none() {
                    let counted = || self.metrics.lease(&due.name);
                    entry.counted.get_or_insert_with(counted);
                }
            }
            Standing::Lost(reason) => {
                let is_news = entry.lost.is_none();
                table.leases.remove(&due.name);
                if is_news && !is_own_doing(reason) {
                    table.to_tell.push_back((due.name.clone(), reason));
                    self.bell.notify_one();
                }
            }
            Standing::Elsewhere => {
                table.leases.remove(&due.name);
            }
        }
    }
}

/// Nobody is told of what he did himself.
fn is_own_doing(reason: LossReason) -> bool {
    matches!(reason, LossReason::Released | LossReason::Completed)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{LEASE, lost, message, open_stream, renewed, stream};
    use super::*;

    const KEPT: Standing = Standing::Kept { lease_left: LEASE };

    impl Stream {
        fn keeps(&self, key: &str) -> LeaseName {
            let (name, asked) = self.comes_in(&message(key, true));
            let _ = self.is_answered(&name, asked.stamp, renewed());
            name
        }

        fn only_due(&self, now: Instant) -> Due {
            let due = self.due(now);
            let [due] = <[Due; 1]>::try_from(due).unwrap_or_else(|due| panic!("{}", due.len()));
            due
        }

        fn told(&self) -> Vec<LossReason> {
            let told = self.table().to_tell.drain(..).collect::<Vec<_>>();
            told.into_iter().map(|(_, reason)| reason).collect()
        }
    }

    #[tokio::test]
    async fn a_lease_is_on_its_stream_for_as_long_as_the_store_says_so() {
        let stream = stream();
        let name = stream.keeps("k");
        let mut now = Instant::now();
        assert!(stream.due(now).is_empty());
        // Far longer than the stream has heard that it lasts.
        for _ in 0..100 {
            now += AFTER;
            stream.stands(&stream.only_due(now), KEPT, now);
            assert!(stream.due(now + AFTER / 2).is_empty());
        }
        let entry_ends = stream.table().leases[&name].ends_at;
        assert_eq!(entry_ends, Some(now + LEASE));
        assert!(stream.table().leases[&name].end_on_close);
        stream.is_lost(&name, LossReason::TakenOver);
        assert_eq!(stream.told(), [LossReason::TakenOver]);
        // Once told, it need not be known any more.
        let taken_over = Standing::Lost(LossReason::TakenOver);
        stream.stands(&stream.only_due(now + AFTER), taken_over, now);
        assert_eq!((stream.on_it(), stream.told()), (0, vec![]));
    }

    #[tokio::test]
    async fn what_is_lost_unheard_is_told_and_what_is_over_or_elsewhere_is_forgotten() {
        let now = Instant::now() + AFTER * 2;
        let told = |reason: LossReason| (Standing::Lost(reason), vec![reason]);
        for (standing, expected) in [
            told(LossReason::TakenOver),
            told(LossReason::Forced),
            told(LossReason::LeaseOver),
            told(LossReason::NotFound),
            (Standing::Lost(LossReason::Released), vec![]),
            (Standing::Lost(LossReason::Completed), vec![]),
            (Standing::Elsewhere, vec![]),
        ] {
            let stream = stream();
            stream.keeps("k");
            stream.stands(&stream.only_due(now), standing, now);
            assert_eq!((stream.on_it(), stream.told()), (0, expected));
        }
    }

    #[tokio::test]
    async fn all_leases_are_looked_at_when_something_may_have_gone_unheard() {
        let (streams, stream) = open_stream();
        let name = stream.keeps("k");
        let (_, under_way) = stream.comes_in(&message("k", false));
        streams.look_now();
        // What is under way may have been renewed before it was lost, so its answer is no look.
        assert!(stream.due(Instant::now()).is_empty());
        let _ = stream.is_answered(&name, under_way.stamp, renewed());
        assert_eq!(stream.only_due(Instant::now()).stamp, under_way.stamp);
        let (_, since) = stream.comes_in(&message("k", false));
        let _ = stream.is_answered(&name, since.stamp, renewed());
        assert!(stream.due(Instant::now()).is_empty());
    }

    #[tokio::test]
    async fn a_message_says_more_than_a_look_that_began_before_it() {
        let stream = stream();
        stream.keeps("k");
        let now = Instant::now() + AFTER * 2;
        let due = stream.only_due(now);
        let (name, asked) = stream.comes_in(&message("k", false));
        stream.stands(&due, Standing::Elsewhere, now);
        assert_eq!(stream.on_it(), 1);
        assert!(stream.due(now).is_empty(), "one is under way");
        let _ = stream.is_answered(&name, asked.stamp, renewed());
        assert_eq!(stream.only_due(now).stamp, asked.stamp);
        let (_, asked) = stream.comes_in(&message("k", false));
        let _ = stream.is_answered(&name, asked.stamp, lost(LossReason::NotFound));
        assert!(stream.due(now).is_empty());
    }
}
