//! The leases that a stream keeps alive.

use super::Lease;
use crate::lease::{Loss, Severed};
use crate::proto::lease_ref::Kind;
use crate::time::later;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// By what they are of and by their tokens. Of one there may be several, where a token was asked for twice.
#[derive(Default)]
pub(super) struct Leases {
    by_kind: HashMap<Kind, Vec<Member>>,
}

struct Member {
    lease: Arc<Lease>,
    /// The number of the stream that it was sent on last.
    on: Option<u64>,
}

impl Leases {
    pub(super) fn is_empty(&self) -> bool {
        self.by_kind.is_empty()
    }

    /// Takes note of a lease that is renewed, and on which stream if on one.
    pub(super) fn put(&mut self, lease: &Arc<Lease>, on: Option<u64>) {
        let members = self.by_kind.entry(lease.kind.clone()).or_default();
        match members
            .iter_mut()
            .find(|member| Arc::ptr_eq(&member.lease, lease))
        {
            Some(member) => member.on = on.or(member.on),
            None => members.push(Member {
                lease: lease.clone(),
                on,
            }),
        }
    }

    /// Takes a lease out. Says whether that leaves nobody who wants it on this stream.
    pub(super) fn take(&mut self, lease: &Arc<Lease>, stream: u64) -> bool {
        let Some(members) = self.by_kind.get_mut(&lease.kind) else {
            return false;
        };
        let was_on = members.iter().any(|member| member.on == Some(stream));
        members.retain(|member| !Arc::ptr_eq(&member.lease, lease));
        let is_last = members.is_empty();
        if is_last {
            self.by_kind.remove(&lease.kind);
        }
        was_on && is_last
    }

    /// A lease is lost.
    pub(super) fn lost(&mut self, kind: &Kind, loss: &Loss) {
        for member in self.by_kind.remove(kind).unwrap_or_default() {
            member
                .lease
                .news
                .tell(|told| told.lost = Some(loss.clone()));
        }
    }

    /// Has those renewed that are not on this stream.
    pub(super) fn move_to(&self, stream: u64) {
        for member in self.by_kind.values().flatten() {
            if member.on != Some(stream) {
                member.lease.news.tell(|told| told.renew = true);
            }
        }
    }

    /// Tells those that were to end with a stream that it broke.
    pub(super) fn sever(&self, stream: u64) {
        let now = Instant::now();
        for Member { lease, on } in self.by_kind.values().flatten() {
            let Some(end_on_close) = lease.end_on_close.filter(|_| *on == Some(stream)) else {
                continue;
            };
            lease.is_severed.store(true, Ordering::Relaxed);
            lease.news.tell(|told| {
                told.severed = Some(Severed {
                    at: now,
                    stands_until: later(now, end_on_close.stands_for()),
                });
            });
        }
    }
}
