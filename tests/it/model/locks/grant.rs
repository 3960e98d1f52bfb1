//! One acquisition of a resource.

use super::{AcquireOp, HolderView, Mode};
use crate::model::clock::{Clock, Moment};
use crate::model::{Reason, Settings, Token, us};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ended {
    /// Live, or its lease ran out: the clock says which.
    No,
    Released {
        at: Moment,
    },
    Forced {
        at: Moment,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grant {
    pub token: Token,
    pub holder: u8,
    pub mode: Mode,
    pub max_holders: usize,
    pub acquired: Moment,
    pub lease_us: i64,
    pub lease_end: Moment,
    pub hold_us: i64,
    pub delay_us: i64,
    pub fencing: i64,
    pub ended: Ended,
    /// Somebody acquired the resource at or after the end of the lease.
    pub overtaken: bool,
}

impl Grant {
    pub fn begun(op: &AcquireOp, now: Moment) -> Self {
        Self {
            token: op.token,
            holder: op.holder,
            mode: op.mode,
            max_holders: op.max_holders,
            acquired: now,
            lease_us: us(op.lease_ms),
            lease_end: now.plus(us(op.lease_ms)),
            hold_us: us(op.hold_at_least_ms),
            delay_us: us(op.lock_delay_ms),
            fencing: 0,
            ended: Ended::No,
            overtaken: false,
        }
    }

    pub fn live(&self, clock: &mut Clock) -> bool {
        self.ended == Ended::No && !clock.reached(self.lease_end)
    }

    /// Whether it keeps others out, listed or not.
    pub fn counts(&self, clock: &mut Clock) -> bool {
        !clock.reached(self.taken_until())
    }

    pub fn taken_until(&self) -> Moment {
        let held = self.acquired.plus(self.hold_us);
        match self.ended {
            Ended::No => held.later_of(self.lease_end.plus(self.delay_us)),
            Ended::Released { .. } => held,
            Ended::Forced { at } => at,
        }
    }

    pub fn remembered_until(&self, settings: Settings) -> Moment {
        let end = match self.ended {
            Ended::No => self.lease_end,
            Ended::Released { at } | Ended::Forced { at } => at,
        };
        end.plus(settings.memory_us).later_of(self.taken_until())
    }

    /// A lease never gets shorter.
    pub fn prolong(&mut self, lease_end: Moment) {
        self.lease_end = self.lease_end.later_of(lease_end);
    }

    /// What the token of a lease that ran out is told.
    pub fn lapse(&self) -> Reason {
        if self.overtaken {
            Reason::TakenOver
        } else {
            Reason::LeaseOver
        }
    }

    /// An operator ends it with all that follows from it. One that was released stays so: a repeat
    /// of that release must be answered as the first one was.
    pub fn force(&mut self, now: Moment) {
        if let Ended::Released { .. } = self.ended {
            self.hold_us = 0;
        } else {
            self.ended = Ended::Forced { at: now };
        }
    }

    pub fn view(&self) -> HolderView {
        HolderView {
            holder: self.holder,
            fencing: self.fencing,
            mode: self.mode,
            acquired: self.acquired,
            lease_end: self.lease_end,
        }
    }
}
