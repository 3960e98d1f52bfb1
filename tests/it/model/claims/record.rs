//! The record of a key, and how the calls of its holder and of an operator change it.

use super::{
    ClaimAnswer, ClaimOp, ClaimView, CompleteOp, Policy, RenewClaimOp, Request, Row, ViewState,
};
use crate::model::clock::{Clock, Moment};
use crate::model::{Settings, Token, us};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    InFlight,
    /// Abandoned with effect UNKNOWN.
    GivenUp {
        at: Moment,
    },
    /// Abandoned with effect NONE.
    Abandoned {
        at: Moment,
    },
    Completed {
        at: Moment,
        response: Option<u8>,
        response_until: Moment,
        erased: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub state: State,
    /// The token that may still act: none once the claim is abandoned, or completed by an operator.
    pub holder: Option<Token>,
    pub holder_name: Option<u8>,
    /// None once it was abandoned without keeping it.
    pub request: Option<Request>,
    pub operation: Option<u8>,
    pub policy: Policy,
    /// What RenewClaim defaults to: the lease of the claim that made the grant.
    pub lease_us: i64,
    pub lease_end: Moment,
    pub retention_us: i64,
    pub claimed_at: Option<Moment>,
    pub fencing: i64,
    pub attempt: i64,
    pub taken_over: bool,
    pub checkpoint: u8,
    pub last_sequence: i64,
    pub abandoned_by: Option<Token>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct IssuedReceipt {
    pub token: Token,
    pub request: Option<Request>,
    pub attempt: i64,
    pub retention_us: i64,
    pub fencing: i64,
    pub expires_at: Moment,
}

impl Record {
    /// A new grant that owes nothing to earlier ones. Its fencing token is fed back later.
    pub fn begun(op: &ClaimOp, now: Moment, attempt: i64) -> Self {
        Self {
            state: State::InFlight,
            holder: Some(op.token),
            holder_name: Some(op.holder),
            request: Some(op.request),
            operation: Some(op.request.operation),
            policy: op.policy,
            lease_us: us(op.lease_ms),
            lease_end: now.plus(us(op.lease_ms)),
            retention_us: us(op.retention_ms),
            claimed_at: Some(now),
            fencing: 0,
            attempt,
            taken_over: false,
            checkpoint: 0,
            last_sequence: 0,
            abandoned_by: None,
        }
    }

    /// What a receipt still knows of a record that is gone.
    pub fn restored(receipt: &IssuedReceipt, now: Moment) -> Self {
        Self {
            state: State::InFlight,
            holder: Some(receipt.token),
            holder_name: None,
            request: receipt.request,
            operation: None,
            policy: Policy::TakeOver,
            lease_us: 0,
            lease_end: now,
            retention_us: receipt.retention_us,
            claimed_at: None,
            fencing: receipt.fencing,
            attempt: receipt.attempt,
            taken_over: false,
            checkpoint: 0,
            last_sequence: 0,
            abandoned_by: None,
        }
    }

    pub fn receipt(&self, settings: Settings) -> IssuedReceipt {
        IssuedReceipt {
            token: self.holder.expect("only a holder gets a receipt"),
            request: self.request,
            attempt: self.attempt,
            retention_us: self.retention_us,
            fencing: self.fencing,
            expires_at: self.expires_at(settings),
        }
    }

    /// When the record is gone for other tokens. One that is uncertain stays as long as the server
    /// keeps anything, so that nobody repeats the work because everybody looked away.
    pub fn expires_at(&self, settings: Settings) -> Moment {
        let uncertain = self.policy == Policy::MarkUncertain;
        let longest = self.retention_us.max(settings.max_retention_us);
        match self.state {
            State::Completed { at, .. } => at.plus(self.retention_us),
            State::Abandoned { at } if uncertain && self.taken_over => at.plus(longest),
            State::Abandoned { at } => at.plus(self.retention_us),
            State::InFlight | State::GivenUp { .. } if uncertain => self.lease_end.plus(longest),
            State::InFlight | State::GivenUp { .. } => self.lease_end.plus(self.retention_us),
        }
    }

    /// From when on the holder is only remembered.
    pub fn grant_end(&self) -> Moment {
        match self.state {
            State::InFlight => self.lease_end,
            State::GivenUp { at } | State::Abandoned { at } | State::Completed { at, .. } => at,
        }
    }

    pub fn renew(&mut self, op: &RenewClaimOp, now: Moment) -> ClaimAnswer {
        let lease_us = op.lease_ms.map_or(self.lease_us, us);
        self.lease_end = self.lease_end.later_of(now.plus(lease_us));
        if let Some(checkpoint) = op.checkpoint {
            self.save(checkpoint, op.sequence);
        }
        ClaimAnswer::Renewed {
            lease_end: self.lease_end,
            fencing: self.fencing,
        }
    }

    fn save(&mut self, checkpoint: u8, sequence: i64) {
        if sequence == 0 {
            self.checkpoint = checkpoint;
        } else if sequence > self.last_sequence {
            self.checkpoint = checkpoint;
            self.last_sequence = sequence;
        }
    }

    pub fn complete(&mut self, op: &CompleteOp, now: Moment) {
        if let Some(retention_ms) = op.retention_ms {
            self.retention_us = us(retention_ms);
        }
        let kept_us = op.response_retention_ms.map_or(self.retention_us, us);
        self.become_completed(op.response, kept_us.min(self.retention_us), now);
    }

    /// An operator's word: nobody holds the claim from then on.
    pub fn resolve_completed(&mut self, response: u8, now: Moment) {
        self.holder = None;
        self.holder_name = None;
        self.become_completed(Some(response), self.retention_us, now);
    }

    fn become_completed(&mut self, response: Option<u8>, kept_us: i64, now: Moment) {
        self.checkpoint = 0;
        self.state = State::Completed {
            at: now,
            response,
            response_until: now.plus(kept_us),
            erased: false,
        };
    }

    /// False where there is no completed claim to erase anything of.
    pub fn erase_response(&mut self) -> bool {
        match &mut self.state {
            State::Completed { erased, .. } => {
                *erased = true;
                true
            }
            _ => false,
        }
    }

    pub fn completed_with(&self, other: Option<u8>) -> bool {
        matches!(self.state, State::Completed { response, .. } if response == other)
    }

    pub fn response_kept(&self, clock: &mut Clock) -> Option<u8> {
        match self.state {
            State::Completed {
                response: Some(response),
                response_until,
                erased: false,
                ..
            } if !clock.reached(response_until) => Some(response),
            _ => None,
        }
    }

    /// Where an earlier holder may have had an effect, fingerprint and checkpoint stay whatever
    /// the last one says.
    pub fn abandon(&mut self, now: Moment, keep_checkpoint: bool) {
        self.state = State::Abandoned { at: now };
        self.holder = None;
        self.lease_end = now;
        if !keep_checkpoint && !self.taken_over {
            self.request = None;
            self.operation = None;
            self.checkpoint = 0;
        }
    }

    pub fn view(&self, row: Row, settings: Settings, clock: &mut Clock) -> ClaimView {
        let state = match row {
            Row::Live => ViewState::InFlight,
            Row::OverTakeOver | Row::GivenUpTakeOver => ViewState::LeaseOver,
            Row::OverUncertain | Row::GivenUpUncertain => ViewState::Uncertain,
            Row::Completed => ViewState::Completed,
            _ => ViewState::Abandoned,
        };
        let pending = !matches!(state, ViewState::Completed | ViewState::Abandoned);
        let completed = state == ViewState::Completed;
        ClaimView {
            state,
            operation: self.operation,
            attempt: self.attempt,
            fencing: self.fencing,
            holder: self.holder_name.filter(|_| pending),
            policy: pending.then_some(self.policy),
            claimed_at: self.claimed_at.filter(|_| pending),
            completed_at: completed.then(|| self.grant_end()),
            lease_end: (state == ViewState::InFlight).then_some(self.lease_end),
            retention_end: self.expires_at(settings),
            response: self.response_kept(clock),
            checkpoint: self.checkpoint,
            taken_over: (!completed).then_some(self.taken_over),
            abandoned_by: self.abandoned_by.filter(|_| !completed),
        }
    }
}
