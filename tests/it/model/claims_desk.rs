//! A key to try the rows and rules of the table of claims on, at exact times in milliseconds.

use super::claims::{
    AbandonOp, ClaimAnswer, ClaimCall, ClaimKey, ClaimOp, CompleteOp, Effect, Policy, Receipt,
    RenewClaimOp, Request, Resolution,
};
use super::clock::{Clock, Moment};
use super::{Fencing, Reason, Settings, Token, us};

pub const A: Token = 0;
pub const B: Token = 1;
pub const C: Token = 2;

pub const SAME: Request = Request {
    fingerprint: 0,
    operation: 0,
};
pub const OTHER: Request = Request {
    fingerprint: 1,
    operation: 1,
};

pub const LEASE: i64 = 100;
pub const RETENTION: i64 = 10_000;
pub const MEMORY: i64 = 60_000;
pub const LONGEST: i64 = 1_000_000;

pub struct Desk {
    pub key: ClaimKey,
    pub now: i64,
    /// The fencing token of the last grant. They are made up, in steps of ten.
    pub fencing: i64,
}

impl Desk {
    pub fn new() -> Self {
        Self::with_memory(MEMORY)
    }

    pub fn with_memory(memory_ms: i64) -> Self {
        Self {
            key: ClaimKey::new(Settings {
                memory_us: us(memory_ms),
                max_retention_us: us(LONGEST),
            }),
            now: 0,
            fencing: 0,
        }
    }

    /// At time 0, A has claimed with effect on `policy`.
    pub fn claimed_by_a(policy: Policy) -> Self {
        let mut desk = Self::new();
        assert_eq!(desk.claim_with(A, policy), granted(1, LEASE));
        desk
    }

    /// As `claimed_by_a`, and the lease is over since one millisecond.
    pub fn over(policy: Policy) -> Self {
        let mut desk = Self::claimed_by_a(policy);
        desk.at(LEASE + 1);
        desk
    }

    /// A took the claim, saved checkpoint 1, and fell silent; B took over at 101.
    pub fn taken_over_by_b() -> Self {
        let mut desk = Self::claimed_by_a(Policy::TakeOver);
        desk.save(A, 1, 0);
        desk.at(LEASE + 1).claim(B);
        desk
    }

    /// A completed with response 1 at 10.
    pub fn completed_by_a() -> Self {
        let mut desk = Self::claimed_by_a(Policy::TakeOver);
        desk.at(10).complete(A, 1);
        desk
    }

    /// A gave up with effect UNKNOWN at 10.
    pub fn given_up_by_a(policy: Policy) -> Self {
        let mut desk = Self::claimed_by_a(policy);
        desk.at(10).abandon(A, Effect::Unknown);
        desk
    }

    /// A gave up with effect NONE at 10.
    pub fn abandoned_by_a() -> Self {
        let mut desk = Self::claimed_by_a(Policy::TakeOver);
        desk.at(10).abandon(A, Effect::None);
        desk
    }

    pub fn at(&mut self, ms: i64) -> &mut Self {
        assert!(ms >= self.now, "time does not go back");
        self.now = ms;
        self
    }

    pub fn call(&mut self, call: &ClaimCall) -> ClaimAnswer {
        let answer = self.key.apply(call, &mut Clock::exact(us(self.now)));
        if let ClaimAnswer::Claimed {
            fencing: Fencing::New,
            ..
        } = answer
        {
            self.fencing += 10;
            self.key.note_fencing(self.fencing);
        }
        answer
    }

    pub fn claim(&mut self, token: Token) -> ClaimAnswer {
        self.claim_with(token, Policy::TakeOver)
    }

    pub fn claim_with(&mut self, token: Token, policy: Policy) -> ClaimAnswer {
        self.call(&ClaimCall::Claim(ClaimOp {
            policy,
            ..claim_op(token)
        }))
    }

    pub fn claim_for(&mut self, token: Token, request: Request) -> ClaimAnswer {
        self.call(&ClaimCall::Claim(ClaimOp {
            request,
            ..claim_op(token)
        }))
    }

    pub fn claim_long(&mut self, token: Token, lease_ms: i64, retention_ms: i64) -> ClaimAnswer {
        self.call(&ClaimCall::Claim(ClaimOp {
            lease_ms,
            retention_ms,
            ..claim_op(token)
        }))
    }

    pub fn renew(&mut self, token: Token) -> ClaimAnswer {
        self.call(&ClaimCall::Renew(RenewClaimOp {
            token,
            lease_ms: None,
            checkpoint: None,
            sequence: 0,
        }))
    }

    pub fn renew_for(&mut self, token: Token, lease_ms: i64) -> ClaimAnswer {
        self.call(&ClaimCall::Renew(RenewClaimOp {
            token,
            lease_ms: Some(lease_ms),
            checkpoint: None,
            sequence: 0,
        }))
    }

    pub fn save(&mut self, token: Token, checkpoint: u8, sequence: i64) -> ClaimAnswer {
        self.call(&ClaimCall::Renew(RenewClaimOp {
            token,
            lease_ms: None,
            checkpoint: Some(checkpoint),
            sequence,
        }))
    }

    pub fn complete(&mut self, token: Token, response: u8) -> ClaimAnswer {
        self.call(&ClaimCall::Complete(CompleteOp {
            response: Some(response),
            ..complete_op(token)
        }))
    }

    pub fn complete_with(&mut self, op: CompleteOp) -> ClaimAnswer {
        self.call(&ClaimCall::Complete(op))
    }

    pub fn complete_by_receipt(&mut self, token: Token, receipt: usize) -> ClaimAnswer {
        self.call(&ClaimCall::Complete(CompleteOp {
            receipt: Receipt::Issued(receipt),
            ..complete_op(token)
        }))
    }

    pub fn abandon(&mut self, token: Token, effect: Effect) -> ClaimAnswer {
        self.call(&ClaimCall::Abandon(AbandonOp {
            token,
            effect,
            keep_checkpoint: false,
        }))
    }

    pub fn abandon_keeping(&mut self, token: Token) -> ClaimAnswer {
        self.call(&ClaimCall::Abandon(AbandonOp {
            token,
            effect: Effect::None,
            keep_checkpoint: true,
        }))
    }

    pub fn resolve(&mut self, resolution: Resolution) -> ClaimAnswer {
        let fencing = self.key.current_fencing().unwrap_or(0);
        self.call(&ClaimCall::Resolve {
            fencing,
            resolution,
        })
    }

    pub fn look(&mut self) -> Option<super::claims::ClaimView> {
        match self.call(&ClaimCall::Get) {
            ClaimAnswer::Info(view) => view,
            other => panic!("{other:?}"),
        }
    }
}

pub fn claim_op(token: Token) -> ClaimOp {
    ClaimOp {
        token,
        request: SAME,
        holder: token,
        lease_ms: LEASE,
        retention_ms: RETENTION,
        policy: Policy::TakeOver,
    }
}

/// Without a response.
pub fn complete_op(token: Token) -> CompleteOp {
    CompleteOp {
        token,
        response: None,
        retention_ms: None,
        response_retention_ms: None,
        receipt: Receipt::None,
    }
}

pub fn at(ms: i64) -> Moment {
    Moment::exact(us(ms))
}

pub fn lost(reason: Reason) -> ClaimAnswer {
    ClaimAnswer::Lost(reason)
}

/// A new grant that owes nothing to an earlier one.
pub fn granted(attempt: i64, lease_end_ms: i64) -> ClaimAnswer {
    ClaimAnswer::Claimed {
        fencing: Fencing::New,
        attempt,
        lease_end: at(lease_end_ms),
        already_held: false,
        taken_over: false,
        checkpoint: 0,
    }
}

/// A new grant after one that may have had an effect.
pub fn took_over(attempt: i64, lease_end_ms: i64, checkpoint: u8) -> ClaimAnswer {
    ClaimAnswer::Claimed {
        fencing: Fencing::New,
        attempt,
        lease_end: at(lease_end_ms),
        already_held: false,
        taken_over: true,
        checkpoint,
    }
}

/// A repeat by the holder of the first grant.
pub fn already_held(fencing: i64, lease_end_ms: i64) -> ClaimAnswer {
    ClaimAnswer::Claimed {
        fencing: Fencing::Same(fencing),
        attempt: 1,
        lease_end: at(lease_end_ms),
        already_held: true,
        taken_over: false,
        checkpoint: 0,
    }
}

pub fn renewed(fencing: i64, lease_end_ms: i64) -> ClaimAnswer {
    ClaimAnswer::Renewed {
        lease_end: at(lease_end_ms),
        fencing,
    }
}

pub fn completed(retention_end_ms: i64) -> ClaimAnswer {
    ClaimAnswer::Completed {
        retention_end: Some(at(retention_end_ms)),
    }
}

/// Of a completion whose record ran out.
pub fn completed_before() -> ClaimAnswer {
    ClaimAnswer::Completed {
        retention_end: None,
    }
}

/// Of response 1, of the first attempt.
pub fn replay(completed_at_ms: i64, retention_end_ms: i64) -> ClaimAnswer {
    ClaimAnswer::Replay {
        response: Some(1),
        completed_at: at(completed_at_ms),
        retention_end: Some(at(retention_end_ms)),
        attempt: 1,
    }
}

pub fn in_flight(lease_end_ms: i64) -> ClaimAnswer {
    ClaimAnswer::InFlight {
        lease_end: at(lease_end_ms),
        attempt: 1,
        claimed_at: at(0),
        holder: A,
    }
}

pub fn uncertain(since_ms: i64) -> ClaimAnswer {
    ClaimAnswer::Uncertain {
        since: at(since_ms),
        attempt: 1,
        checkpoint: 0,
        holder: A,
    }
}
