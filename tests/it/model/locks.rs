//! One resource: who holds it or still counts as a holder, and what is remembered of those who did.
//!
//! Every call looks at the spent tokens first, then at the table. A grant is kept after its end for
//! as long as its token is remembered, so one list serves both.

mod calls;
mod grant;

pub use calls::*;
use grant::{Ended, Grant};

use super::clock::{Clock, Moment};
use super::coverage::Cell;
use super::spent::{Spent, SpentTokens};
use super::{Fencing, Reason, Settings, Token, us};

/// How many tokens a resource remembers, of those that held it and of those that never did each.
pub const REMEMBERED: usize = 100;

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    /// The index of its live grant.
    Holder(usize),
    /// The index of the grant whose lease ended without a release.
    Lapsed(usize),
    Released(usize),
    Forced,
    /// Released before it was ever granted.
    NeverGranted,
    Another,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LockResource {
    settings: Settings,
    /// In the order in which they were granted.
    grants: Vec<Grant>,
    never_granted: SpentTokens,
    highest_fencing: i64,
}

impl LockResource {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            grants: Vec::new(),
            never_granted: SpentTokens::new(REMEMBERED),
            highest_fencing: 0,
        }
    }

    pub fn apply(&mut self, call: &LockCall, clock: &mut Clock) -> LockAnswer {
        match call {
            LockCall::Acquire(op) => self.acquire(op, clock),
            LockCall::Renew { token, lease_ms } => self.renew(*token, *lease_ms, clock),
            LockCall::Release(token) => self.release(*token, clock),
            LockCall::Get => LockAnswer::Info(self.view(clock)),
            LockCall::ForceRelease { fencing } => {
                LockAnswer::Forced(self.force_release(*fencing, clock))
            }
        }
    }

    /// Which cell of the table a call falls into.
    pub fn cell(&self, call: &LockCall, clock: &mut Clock) -> Cell {
        let who = call
            .token()
            .map_or("operator".into(), |token| match self.who(token, clock) {
                Who::Holder(_) => "Holder".into(),
                Who::Lapsed(index) => format!("spent {:?}", self.grants[index].lapse()),
                Who::Released(_) | Who::NeverGranted => "spent Released".into(),
                Who::Forced => "spent Forced".into(),
                Who::Another => "Another".to_owned(),
            });
        Cell::new(self.row(clock), call.name(), who)
    }

    fn row(&self, clock: &mut Clock) -> &'static str {
        let counting = self.counting(clock);
        let live: Vec<_> = self.live(clock);
        if let Some(grant) = live.first() {
            return match grant.mode {
                Mode::Exclusive => "HeldExclusive",
                Mode::Shared if counting.len() > live.len() => "HeldSharedAndMore",
                Mode::Shared => "HeldShared",
            };
        }
        let draining = |grant: &&Grant| {
            grant.ended == Ended::No && !clock.reached(grant.lease_end.plus(grant.delay_us))
        };
        match counting.first() {
            None => "Free",
            _ if counting.iter().any(draining) => "LockDelay",
            Some(grant) if grant.ended == Ended::No => "HoldAtLeastAfterLease",
            Some(_) => "HoldAtLeastAfterRelease",
        }
    }

    /// Feeds back the fencing token of an answer that said [`Fencing::New`].
    pub fn note_fencing(&mut self, fencing: i64) {
        let grant = self.grants.last_mut().expect("a grant was just made");
        grant.fencing = fencing;
        self.highest_fencing = fencing;
    }

    pub fn highest_fencing(&self) -> i64 {
        self.highest_fencing
    }

    /// That of the latest grant, whatever became of it.
    pub fn current_fencing(&self) -> Option<i64> {
        self.grants.last().map(|grant| grant.fencing)
    }

    /// When something about the resource changes of itself.
    pub fn boundaries(&self) -> Vec<Moment> {
        let grants = self.grants.iter().flat_map(|grant| {
            [
                grant.lease_end,
                grant.lease_end.plus(grant.delay_us),
                grant.taken_until(),
                grant.remembered_until(self.settings),
            ]
        });
        grants.chain(self.never_granted.ends()).collect()
    }

    fn who(&self, token: Token, clock: &mut Clock) -> Who {
        let index = self.grants.iter().position(|grant| grant.token == token);
        if let Some(index) = index {
            let grant = &self.grants[index];
            if grant.live(clock) {
                return Who::Holder(index);
            }
            if !clock.reached(grant.remembered_until(self.settings)) {
                return match grant.ended {
                    Ended::No => Who::Lapsed(index),
                    Ended::Released { .. } => Who::Released(index),
                    Ended::Forced { .. } => Who::Forced,
                };
            }
        }
        match self.never_granted.find(token, clock) {
            Some(_) => Who::NeverGranted,
            None => Who::Another,
        }
    }

    fn counting(&self, clock: &mut Clock) -> Vec<&Grant> {
        let grants = self.grants.iter();
        grants.filter(|grant| grant.counts(clock)).collect()
    }

    fn live(&self, clock: &mut Clock) -> Vec<&Grant> {
        let grants = self.grants.iter();
        grants.filter(|grant| grant.live(clock)).collect()
    }

    fn acquire(&mut self, op: &AcquireOp, clock: &mut Clock) -> LockAnswer {
        if op.mode == Mode::Exclusive && op.max_holders > 0 {
            return LockAnswer::Invalid("max_holders");
        }
        match self.who(op.token, clock) {
            Who::Holder(index) if self.grants[index].mode != op.mode => LockAnswer::Invalid("mode"),
            Who::Holder(index) => {
                let grant = &mut self.grants[index];
                grant.prolong(clock.now().plus(us(op.lease_ms)));
                LockAnswer::Acquired {
                    fencing: Fencing::Same(grant.fencing),
                    lease_end: grant.lease_end,
                    already_held: true,
                }
            }
            Who::Lapsed(index) => LockAnswer::Lost(self.grants[index].lapse()),
            Who::Released(_) | Who::NeverGranted => LockAnswer::Lost(Reason::Released),
            Who::Forced => LockAnswer::Lost(Reason::Forced),
            Who::Another => match self.in_the_way(op, clock) {
                Some(free_at) => LockAnswer::Held {
                    holders: self.holders(clock),
                    free_at,
                },
                None => self.grant(op, clock),
            },
        }
    }

    /// Until when something keeps the caller out, if anything does.
    fn in_the_way(&self, op: &AcquireOp, clock: &mut Clock) -> Option<Moment> {
        let counting = self.counting(clock);
        let free_at = last_of(counting.iter().map(|grant| grant.taken_until()))?;
        let limits = counting.iter().map(|grant| grant.max_holders);
        let limit = limits
            .chain([op.max_holders])
            .filter(|limit| *limit > 0)
            .min();
        let room = op.mode == Mode::Shared
            && counting.iter().all(|grant| grant.mode == Mode::Shared)
            && limit.is_none_or(|limit| counting.len() < limit);
        (!room).then_some(free_at)
    }

    fn grant(&mut self, op: &AcquireOp, clock: &mut Clock) -> LockAnswer {
        // Whoever let its lease end is overtaken by this, also where it still counts.
        for grant in &mut self.grants {
            grant.overtaken |= grant.ended == Ended::No && clock.reached(grant.lease_end);
        }
        self.grants.retain(|grant| grant.token != op.token);
        self.never_granted.forget(op.token);
        let grant = Grant::begun(op, clock.now());
        let lease_end = grant.lease_end;
        self.grants.push(grant);
        self.drop_forgotten(clock);
        LockAnswer::Acquired {
            fencing: Fencing::New,
            lease_end,
            already_held: false,
        }
    }

    /// Drops what nobody can ask for any more, and of the rest that ended all but the newest.
    fn drop_forgotten(&mut self, clock: &mut Clock) {
        let settings = self.settings;
        self.grants
            .retain(|grant| !clock.surely_reached(grant.remembered_until(settings)));
        let ended = |grant: &Grant| clock.surely_reached(grant.taken_until());
        let count = self.grants.iter().filter(|grant| ended(grant)).count();
        let mut surplus = count.saturating_sub(REMEMBERED);
        self.grants.retain(|grant| {
            let drop = surplus > 0 && ended(grant);
            surplus -= usize::from(drop);
            !drop
        });
    }

    fn renew(&mut self, token: Token, lease_ms: Option<i64>, clock: &mut Clock) -> LockAnswer {
        match self.who(token, clock) {
            Who::Holder(index) => {
                let grant = &mut self.grants[index];
                let lease_us = lease_ms.map_or(grant.lease_us, us);
                grant.prolong(clock.now().plus(lease_us));
                LockAnswer::Renewed {
                    lease_end: grant.lease_end,
                    fencing: grant.fencing,
                }
            }
            Who::Lapsed(index) => LockAnswer::Lost(self.grants[index].lapse()),
            Who::Released(_) | Who::NeverGranted => LockAnswer::Lost(Reason::Released),
            Who::Forced => LockAnswer::Lost(Reason::Forced),
            Who::Another => LockAnswer::Lost(Reason::NotFound),
        }
    }

    fn release(&mut self, token: Token, clock: &mut Clock) -> LockAnswer {
        match self.who(token, clock) {
            Who::Holder(index) => self.end(index, clock),
            Who::Lapsed(index) => {
                let grant = &self.grants[index];
                // A late release ends its own lock_delay and no more. Where only hold_at_least
                // keeps the lock taken, there is nothing left for it to end.
                if clock.reached(grant.lease_end.plus(grant.delay_us)) {
                    LockAnswer::Lost(grant.lapse())
                } else {
                    self.end(index, clock)
                }
            }
            Who::Released(index) => LockAnswer::Released {
                free_at: self.grants[index].taken_until(),
            },
            Who::Forced => LockAnswer::Lost(Reason::Forced),
            Who::NeverGranted => LockAnswer::Lost(Reason::NotFound),
            Who::Another => {
                // A release that overtakes its own late acquire wins over it.
                let until = clock.now().plus(self.settings.memory_us);
                self.never_granted
                    .spend(Spent::new(token, Reason::Released, until));
                LockAnswer::Lost(Reason::NotFound)
            }
        }
    }

    fn end(&mut self, index: usize, clock: &mut Clock) -> LockAnswer {
        let grant = &mut self.grants[index];
        grant.ended = Ended::Released { at: clock.now() };
        LockAnswer::Released {
            free_at: grant.taken_until(),
        }
    }

    fn holders(&self, clock: &mut Clock) -> Vec<HolderView> {
        self.live(clock).into_iter().map(Grant::view).collect()
    }

    fn view(&self, clock: &mut Clock) -> Option<LockView> {
        let counting = self.counting(clock);
        let free_at = last_of(counting.iter().map(|grant| grant.taken_until()))?;
        let holders = self.holders(clock);
        Some(LockView {
            free_at: holders.is_empty().then_some(free_at),
            holders,
            fencing: self.highest_fencing,
        })
    }

    fn force_release(&mut self, fencing: i64, clock: &mut Clock) -> usize {
        let mut forced = 0;
        for grant in &mut self.grants {
            if (fencing != 0 && fencing != grant.fencing) || !grant.counts(clock) {
                continue;
            }
            forced += usize::from(grant.live(clock));
            grant.force(clock.now());
        }
        forced
    }
}

fn last_of(ends: impl Iterator<Item = Moment>) -> Option<Moment> {
    ends.reduce(Moment::later_of)
}
