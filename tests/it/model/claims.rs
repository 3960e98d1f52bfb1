//! One idempotency key: its record, what is remembered of it, and the table of calls on it.
//!
//! Every call looks at the fingerprint first, then at the spent tokens, then at the table, whose
//! rows and columns are [`rows::Row`] and [`rows::Who`].

mod calls;
mod record;
mod rows;

pub use calls::*;
use record::{IssuedReceipt, Record, State};
use rows::{Row, Who};

use super::clock::{Clock, Moment};
use super::coverage::Cell;
use super::spent::{Spent, SpentTokens};
use super::{Fencing, Reason, Settings, Token, us};

/// How many tokens a key remembers, of those that held a claim and of those that never did each.
pub const REMEMBERED: usize = 16;

#[derive(Clone, Debug, PartialEq)]
pub struct ClaimKey {
    settings: Settings,
    record: Option<Record>,
    spent: SpentTokens,
    never_granted: SpentTokens,
    receipts: Vec<IssuedReceipt>,
    highest_fencing: i64,
    /// Receipts given out before this number of them count no more: an operator forgot the key.
    receipts_void_below: usize,
    /// Until when it is known that the key was forgotten.
    forgotten_until: Option<Moment>,
}

impl ClaimKey {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            record: None,
            spent: SpentTokens::new(REMEMBERED),
            never_granted: SpentTokens::new(REMEMBERED),
            receipts: Vec::new(),
            highest_fencing: 0,
            receipts_void_below: 0,
            forgotten_until: None,
        }
    }

    pub fn apply(&mut self, call: &ClaimCall, clock: &mut Clock) -> ClaimAnswer {
        match call {
            ClaimCall::Claim(op) => self.claim(op, clock),
            ClaimCall::Renew(op) => self.renew(op, clock),
            ClaimCall::Complete(op) => self.complete(op, clock),
            ClaimCall::Abandon(op) => self.abandon(op, clock),
            ClaimCall::Get => ClaimAnswer::Info(self.view(clock)),
            ClaimCall::Resolve {
                fencing,
                resolution,
            } => ClaimAnswer::Resolved(self.resolve(*fencing, resolution, clock)),
        }
    }

    /// Which cell of the table a call falls into.
    pub fn cell(&self, call: &ClaimCall, clock: &mut Clock) -> Cell {
        let policy = match call {
            ClaimCall::Claim(op) => op.policy,
            _ => Policy::TakeOver,
        };
        let row = self.row(policy, clock);
        let who = call.token().map_or("operator".into(), |token| {
            match self.who(token, row, clock) {
                Who::Spent(spent) => format!("spent {:?}", spent.reason),
                who => format!("{who:?}"),
            }
        });
        Cell::new(format!("{row:?}"), call.name(), who)
    }

    /// Feeds back the fencing token of an answer that said [`Fencing::New`].
    pub fn note_fencing(&mut self, fencing: i64) {
        let record = self.record.as_mut().expect("a grant leaves a record");
        record.fencing = fencing;
        self.highest_fencing = fencing;
        let receipt = self.receipts.last_mut().expect("a grant gives a receipt");
        receipt.fencing = fencing;
    }

    /// The store loses all that it knows of the key. Receipts are in the clients' hands, and fencing
    /// tokens follow the clock.
    pub fn lose(&mut self) {
        *self = Self {
            receipts: std::mem::take(&mut self.receipts),
            highest_fencing: self.highest_fencing,
            ..Self::new(self.settings)
        };
    }

    pub fn highest_fencing(&self) -> i64 {
        self.highest_fencing
    }

    /// That of the grant that an operator would see.
    pub fn current_fencing(&self) -> Option<i64> {
        self.record.as_ref().map(|record| record.fencing)
    }

    pub fn receipts_given(&self) -> usize {
        self.receipts.len()
    }

    /// When something about the key changes of itself.
    pub fn boundaries(&self) -> Vec<Moment> {
        let mut ends: Vec<_> = self.spent.ends().chain(self.never_granted.ends()).collect();
        if let Some(record) = &self.record {
            ends.extend([record.lease_end, record.expires_at(self.settings)]);
            ends.push(record.grant_end().plus(self.settings.memory_us));
            if let State::Completed { response_until, .. } = record.state {
                ends.push(response_until);
            }
        }
        ends
    }

    /// `asked` is the policy of a claim, which counts where it is the stricter one.
    fn row(&self, asked: Policy, clock: &mut Clock) -> Row {
        let Some(record) = &self.record else {
            return Row::Absent;
        };
        if clock.reached(record.expires_at(self.settings)) {
            return self.expired_row(record, clock);
        }
        let stricter = record.policy.max(asked);
        match record.state {
            State::InFlight if !clock.reached(record.lease_end) => Row::Live,
            State::InFlight if stricter == Policy::TakeOver => Row::OverTakeOver,
            State::InFlight => Row::OverUncertain,
            State::GivenUp { .. } if stricter == Policy::TakeOver => Row::GivenUpTakeOver,
            State::GivenUp { .. } => Row::GivenUpUncertain,
            State::Completed { .. } => Row::Completed,
            State::Abandoned { .. } if record.taken_over => Row::AbandonedTakenOver,
            State::Abandoned { .. } if record.request.is_some() => Row::AbandonedKept,
            State::Abandoned { .. } => Row::AbandonedBare,
        }
    }

    fn expired_row(&self, record: &Record, clock: &mut Clock) -> Row {
        let row = match record.state {
            State::InFlight => return Row::ExpiredInFlight,
            State::Completed { .. } => Row::ExpiredCompleted,
            State::GivenUp { .. } => Row::ExpiredGivenUp,
            State::Abandoned { .. } => return Row::Absent,
        };
        let remembered =
            record.holder.is_some() && !clock.reached(self.memory_from(record.grant_end()));
        if remembered { row } else { Row::Absent }
    }

    fn who(&self, token: Token, row: Row, clock: &mut Clock) -> Who {
        if let Some(spent) = self.find_spent(token, clock) {
            return Who::Spent(spent);
        }
        let holder = self.record.as_ref().and_then(|record| record.holder);
        if row != Row::Absent && holder == Some(token) {
            Who::Holder
        } else {
            Who::Another
        }
    }

    fn find_spent(&self, token: Token, clock: &mut Clock) -> Option<Spent> {
        self.spent
            .find(token, clock)
            .or_else(|| self.never_granted.find(token, clock))
    }

    fn memory_from(&self, end: Moment) -> Moment {
        end.plus(self.settings.memory_us)
    }

    fn expires_at(&self) -> Moment {
        let record = self.record.as_ref().expect("this row has a record");
        record.expires_at(self.settings)
    }

    fn known(&mut self) -> &mut Record {
        self.record.as_mut().expect("this row has a record")
    }

    fn claim(&mut self, op: &ClaimOp, clock: &mut Clock) -> ClaimAnswer {
        let row = self.row(op.policy, clock);
        if let Some(operation) = self.mismatch(row, op.request) {
            return ClaimAnswer::Mismatch { operation };
        }
        let who = self.who(op.token, row, clock);
        match (row, who) {
            (Row::Completed, _) => self.replay(clock),
            (_, Who::Spent(spent)) => ClaimAnswer::Lost(spent.reason),
            (Row::ExpiredCompleted, Who::Holder) => self.replay_from_memory(),
            (Row::ExpiredGivenUp, Who::Holder) => ClaimAnswer::Lost(Reason::Released),
            (
                Row::Absent | Row::ExpiredInFlight | Row::ExpiredCompleted | Row::ExpiredGivenUp,
                _,
            ) => self.start(op, clock),
            (Row::Live | Row::OverTakeOver | Row::OverUncertain, Who::Holder) => {
                self.claim_again(op, clock)
            }
            (Row::Live, Who::Another) => {
                self.tighten(op.policy);
                self.in_flight()
            }
            (Row::OverTakeOver | Row::GivenUpTakeOver, Who::Another) => self.take_over(op, clock),
            (Row::OverUncertain | Row::GivenUpUncertain, Who::Another) => {
                self.tighten(op.policy);
                self.uncertain()
            }
            (Row::GivenUpTakeOver | Row::GivenUpUncertain, Who::Holder) => {
                self.tighten(op.policy);
                ClaimAnswer::Lost(Reason::Released)
            }
            (Row::AbandonedBare | Row::AbandonedKept | Row::AbandonedTakenOver, _) => {
                self.next_attempt(op, clock)
            }
        }
    }

    /// The operation to tell where the stored fingerprint differs. A record past its retention has
    /// none, nor has one that was abandoned without keeping it.
    fn mismatch(&self, row: Row, request: Request) -> Option<Option<u8>> {
        if row.is_absent() {
            return None;
        }
        let record = self.record.as_ref()?;
        (record.request? != request).then_some(record.operation)
    }

    fn start(&mut self, op: &ClaimOp, clock: &mut Clock) -> ClaimAnswer {
        self.spend_last_of_expired(op.token, clock);
        let record = Record::begun(op, clock.now(), 1);
        self.grant(record)
    }

    fn take_over(&mut self, op: &ClaimOp, clock: &mut Clock) -> ClaimAnswer {
        let now = clock.now();
        let old = self.known().clone();
        let (reason, since) = match old.state {
            State::GivenUp { at } => (Reason::Released, at),
            _ => (Reason::TakenOver, now),
        };
        if let Some(token) = old.holder {
            self.spent
                .spend(Spent::new(token, reason, self.memory_from(since)));
        }
        let mut record = Record::begun(op, now, old.attempt + 1);
        record.taken_over = true;
        record.checkpoint = old.checkpoint;
        record.retention_us = record.retention_us.max(old.retention_us);
        record.policy = record.policy.max(old.policy);
        self.grant(record)
    }

    fn next_attempt(&mut self, op: &ClaimOp, clock: &mut Clock) -> ClaimAnswer {
        let old = self.known().clone();
        let mut record = Record::begun(op, clock.now(), old.attempt + 1);
        record.checkpoint = old.checkpoint;
        if old.taken_over {
            record.taken_over = true;
            record.retention_us = record.retention_us.max(old.retention_us);
            record.policy = record.policy.max(old.policy);
        }
        self.grant(record)
    }

    fn grant(&mut self, record: Record) -> ClaimAnswer {
        let token = record.holder.expect("a grant has a holder");
        self.spent.forget(token);
        self.never_granted.forget(token);
        self.record = Some(record);
        self.claimed(Fencing::New)
    }

    fn claim_again(&mut self, op: &ClaimOp, clock: &mut Clock) -> ClaimAnswer {
        self.tighten(op.policy);
        let lease_end = clock.now().plus(us(op.lease_ms));
        let record = self.known();
        record.lease_end = record.lease_end.later_of(lease_end);
        let fencing = Fencing::Same(record.fencing);
        self.claimed(fencing)
    }

    fn claimed(&mut self, fencing: Fencing) -> ClaimAnswer {
        let settings = self.settings;
        let record = self.known();
        let receipt = record.receipt(settings);
        let answer = ClaimAnswer::Claimed {
            fencing,
            attempt: record.attempt,
            lease_end: record.lease_end,
            already_held: fencing != Fencing::New,
            taken_over: record.taken_over,
            checkpoint: record.checkpoint,
        };
        self.receipts.push(receipt);
        answer
    }

    /// Whatever a claim is answered, the policy that it asks for counts from then on.
    fn tighten(&mut self, asked: Policy) {
        let record = self.known();
        record.policy = record.policy.max(asked);
    }

    fn in_flight(&mut self) -> ClaimAnswer {
        let record = self.known();
        ClaimAnswer::InFlight {
            lease_end: record.lease_end,
            attempt: record.attempt,
            claimed_at: record.claimed_at.expect("in flight since some time"),
            holder: record.holder_name.expect("in flight with a holder"),
        }
    }

    fn uncertain(&mut self) -> ClaimAnswer {
        let record = self.known();
        ClaimAnswer::Uncertain {
            since: record.lease_end,
            attempt: record.attempt,
            checkpoint: record.checkpoint,
            holder: record.holder_name.expect("uncertain because of a holder"),
        }
    }

    fn replay(&mut self, clock: &mut Clock) -> ClaimAnswer {
        let retention_end = self.expires_at();
        let record = self.known();
        ClaimAnswer::Replay {
            response: record.response_kept(clock),
            completed_at: record.grant_end(),
            retention_end: Some(retention_end),
            attempt: record.attempt,
        }
    }

    fn replay_from_memory(&mut self) -> ClaimAnswer {
        let record = self.known();
        ClaimAnswer::Replay {
            response: None,
            completed_at: record.grant_end(),
            retention_end: None,
            attempt: record.attempt,
        }
    }

    /// A key that is claimed anew remembers the last token of the record that ran out.
    fn spend_last_of_expired(&mut self, claimant: Token, clock: &mut Clock) {
        let Some(record) = self.record.take() else {
            return;
        };
        let Some(token) = record.holder else {
            return;
        };
        // One that gave up after the record had run out keeps the answer that it got then.
        if token == claimant || self.find_spent(token, clock).is_some() {
            return;
        }
        let mut spent = Spent::new(
            token,
            Reason::TakenOver,
            self.memory_from(record.grant_end()),
        );
        match record.state {
            State::InFlight => {}
            State::GivenUp { .. } => spent.reason = Reason::Released,
            State::Completed { response, .. } => {
                spent.reason = Reason::Completed;
                spent.completion = Some(response);
            }
            State::Abandoned { .. } => return,
        }
        self.spent.spend(spent);
    }

    fn renew(&mut self, op: &RenewClaimOp, clock: &mut Clock) -> ClaimAnswer {
        let row = self.row(Policy::TakeOver, clock);
        let who = self.who(op.token, row, clock);
        match (row, who) {
            (Row::Completed, _) => ClaimAnswer::Lost(Reason::Completed),
            (_, Who::Spent(spent)) => ClaimAnswer::Lost(spent.reason),
            (Row::Live | Row::OverTakeOver | Row::OverUncertain, Who::Holder) => {
                let now = clock.now();
                self.known().renew(op, now)
            }
            (row, who) => ClaimAnswer::Lost(row.loss(&who)),
        }
    }

    fn complete(&mut self, op: &CompleteOp, clock: &mut Clock) -> ClaimAnswer {
        let receipt = match op.receipt {
            Receipt::None => None,
            Receipt::Issued(index) if self.receipts[index].token == op.token => Some(index),
            Receipt::Issued(_) | Receipt::Foreign => return ClaimAnswer::Invalid("receipt"),
        };
        let row = self.row(Policy::TakeOver, clock);
        let who = self.who(op.token, row, clock);
        match (row, who) {
            (_, Who::Spent(spent)) if spent.completion == Some(op.response) => {
                ClaimAnswer::Completed {
                    retention_end: None,
                }
            }
            (Row::Completed, Who::Spent(_)) => ClaimAnswer::Lost(Reason::Completed),
            (_, Who::Spent(spent)) => ClaimAnswer::Lost(spent.reason),
            (
                Row::Live
                | Row::OverTakeOver
                | Row::OverUncertain
                | Row::GivenUpTakeOver
                | Row::GivenUpUncertain,
                Who::Holder,
            ) => {
                let now = clock.now();
                self.known().complete(op, now);
                self.completed()
            }
            (Row::Completed, Who::Holder) if self.known().completed_with(op.response) => {
                self.completed()
            }
            (Row::ExpiredCompleted, Who::Holder) if self.known().completed_with(op.response) => {
                ClaimAnswer::Completed {
                    retention_end: None,
                }
            }
            (row, who) => {
                if let Some(index) = receipt
                    && self.receipt_counts(index, row, clock)
                {
                    self.complete_with_receipt(index, op, clock.now());
                    return self.completed();
                }
                ClaimAnswer::Lost(row.loss(&who))
            }
        }
    }

    fn completed(&mut self) -> ClaimAnswer {
        let retention_end = self.expires_at();
        ClaimAnswer::Completed {
            retention_end: Some(retention_end),
        }
    }

    fn receipt_counts(&self, index: usize, row: Row, clock: &mut Clock) -> bool {
        index >= self.receipts_void_below
            && row.is_absent()
            && !clock.reached(self.receipts[index].expires_at)
            && !self.anything_known(clock)
    }

    /// Of a key whose record ran out. The last fencing token is known as long as a spent token
    /// would be.
    fn anything_known(&self, clock: &mut Clock) -> bool {
        let record = self.record.as_ref().map(Record::grant_end);
        record.is_some_and(|end| !clock.reached(self.memory_from(end)))
            || self.forgotten_until.is_some_and(|end| !clock.reached(end))
            || self.spent.any(clock)
            || self.never_granted.any(clock)
    }

    fn complete_with_receipt(&mut self, index: usize, op: &CompleteOp, now: Moment) {
        let receipt = &self.receipts[index];
        self.highest_fencing = self.highest_fencing.max(receipt.fencing);
        let mut record = Record::restored(receipt, now);
        record.complete(op, now);
        self.record = Some(record);
    }

    fn abandon(&mut self, op: &AbandonOp, clock: &mut Clock) -> ClaimAnswer {
        let row = self.row(Policy::TakeOver, clock);
        let who = self.who(op.token, row, clock);
        match (row, who) {
            (_, Who::Spent(spent)) if spent.reason == Reason::Released => ClaimAnswer::Abandoned,
            (Row::Completed, Who::Spent(_)) => ClaimAnswer::Lost(Reason::Completed),
            (_, Who::Spent(spent)) => ClaimAnswer::Lost(spent.reason),
            (Row::Live | Row::OverTakeOver | Row::OverUncertain, Who::Holder) => {
                let now = clock.now();
                self.give_up(op, now);
                ClaimAnswer::Abandoned
            }
            (Row::GivenUpTakeOver | Row::GivenUpUncertain | Row::ExpiredGivenUp, Who::Holder) => {
                ClaimAnswer::Abandoned
            }
            (Row::Completed | Row::ExpiredCompleted, Who::Holder) => {
                ClaimAnswer::Lost(Reason::Completed)
            }
            (row, _) => self.abandon_unseen(op.token, row, clock.now()),
        }
    }

    fn give_up(&mut self, op: &AbandonOp, now: Moment) {
        let until = self.memory_from(now);
        let record = self.known();
        record.abandoned_by = Some(op.token);
        match op.effect {
            Effect::Unknown => {
                record.state = State::GivenUp { at: now };
                record.lease_end = record.lease_end.sooner_of(now);
            }
            Effect::None => {
                record.abandon(now, op.keep_checkpoint);
                self.spent
                    .spend(Spent::new(op.token, Reason::Released, until));
            }
        }
    }

    /// A give-up that overtakes its own late claim wins over it.
    fn abandon_unseen(&mut self, token: Token, row: Row, now: Moment) -> ClaimAnswer {
        let loss = match row.loss(&Who::Another) {
            Reason::NotFound => None,
            reason => Some(reason),
        };
        let reason = loss.unwrap_or(Reason::Released);
        self.never_granted
            .spend(Spent::new(token, reason, self.memory_from(now)));
        loss.map_or(ClaimAnswer::Abandoned, ClaimAnswer::Lost)
    }

    fn view(&self, clock: &mut Clock) -> Option<ClaimView> {
        let row = self.row(Policy::TakeOver, clock);
        if row.is_absent() {
            return None;
        }
        let record = self.record.as_ref()?;
        Some(record.view(row, self.settings, clock))
    }

    fn resolve(&mut self, fencing: i64, resolution: &Resolution, clock: &mut Clock) -> bool {
        let row = self.row(Policy::TakeOver, clock);
        if row.is_absent() || row == Row::Live || self.current_fencing() != Some(fencing) {
            return false;
        }
        let now = clock.now();
        let remembered = self.memory_from(now);
        let expires_at = self.expires_at();
        match resolution {
            Resolution::Complete(response) => {
                self.spend_forced(remembered);
                self.known().resolve_completed(*response, now);
                true
            }
            Resolution::Forget => {
                let until = remembered.later_of(expires_at);
                self.spend_forced(until);
                self.record = None;
                self.receipts_void_below = self.receipts.len();
                self.forgotten_until = Some(until);
                true
            }
            Resolution::EraseResponse => self.known().erase_response(),
        }
    }

    fn spend_forced(&mut self, until: Moment) {
        if let Some(token) = self.known().holder {
            self.spent.spend(Spent::new(token, Reason::Forced, until));
        }
    }
}
