//! Tells the oracle's answers the way a service does, with its roundings.

use std::collections::HashMap;

use claimlock::rpc::proto;
use prost::bytes::Bytes;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::model::Reason;
use crate::model::check::wire;
use crate::model::claims::{ClaimAnswer, ClaimView, ViewState};
use crate::model::clock::Moment;
use crate::model::locks::{HolderView, LockAnswer, LockView};

/// What an answer to Claim tells besides the outcome.
pub struct Told {
    pub now: i64,
    pub token: String,
    pub fencing: i64,
    pub receipt: Bytes,
}

pub fn refusal(field: &str) -> Status {
    let mut details = ErrorDetails::with_bad_request_violation(field, "is wrong");
    details.set_error_info("INVALID_FIELD", "claimlock", HashMap::new());
    Status::with_error_details(Code::InvalidArgument, "a field is wrong", details)
}

fn left(end: Moment, now: i64) -> Option<prost_types::Duration> {
    Some(wire::duration((end.earliest - now).max(0) / 1000))
}

fn retry_after(end: Moment, now: i64) -> Option<prost_types::Duration> {
    let us = (end.earliest - now).clamp(1_000, 1_000_000);
    Some(wire::duration((us + 999) / 1000))
}

fn timestamp(moment: Moment) -> Option<prost_types::Timestamp> {
    let us = moment.earliest;
    Some(prost_types::Timestamp {
        seconds: us / 1_000_000,
        nanos: i32::try_from(us % 1_000_000 / 1000 * 1_000_000).expect("less than a second"),
    })
}

fn lost(reason: Reason) -> proto::Lost {
    let reason = match reason {
        Reason::NotFound => proto::LossReason::NotFound,
        Reason::TakenOver => proto::LossReason::TakenOver,
        Reason::Released => proto::LossReason::Released,
        Reason::Forced => proto::LossReason::Forced,
        Reason::Completed => proto::LossReason::Completed,
        Reason::LeaseOver => proto::LossReason::LeaseOver,
    };
    proto::Lost {
        reason: reason.into(),
        detail: String::new(),
    }
}

pub fn claim(answer: ClaimAnswer, told: Told) -> proto::ClaimResponse {
    use proto::claim_response::Outcome;
    let now = told.now;
    let outcome = match answer {
        ClaimAnswer::Claimed {
            attempt,
            lease_end,
            already_held,
            taken_over,
            checkpoint,
            ..
        } => Outcome::Claimed(proto::Claimed {
            claim_token: told.token,
            fencing_token: told.fencing,
            attempt,
            lease_left: left(lease_end, now),
            already_held,
            taken_over,
            checkpoint: wire::checkpoint(checkpoint),
            receipt: told.receipt,
        }),
        ClaimAnswer::InFlight {
            lease_end,
            attempt,
            claimed_at,
            holder,
        } => Outcome::InFlight(proto::InFlight {
            retry_after: retry_after(lease_end, now),
            lease_left: left(lease_end, now),
            attempt,
            claimed_at: timestamp(claimed_at),
            holder: wire::holder(holder),
        }),
        ClaimAnswer::Replay {
            response,
            completed_at,
            retention_end,
            attempt,
        } => Outcome::Replay(proto::Replay {
            response: response.map(wire::response),
            completed_at: timestamp(completed_at),
            retention_left: retention_end.and_then(|end| left(end, now)),
            attempt,
        }),
        ClaimAnswer::Mismatch { operation } => Outcome::Mismatch(proto::Mismatch {
            operation: wire::operation(operation).to_owned(),
        }),
        ClaimAnswer::Uncertain {
            since,
            attempt,
            checkpoint,
            holder,
        } => Outcome::Uncertain(proto::Uncertain {
            since: timestamp(since),
            attempt,
            checkpoint: wire::checkpoint(checkpoint),
            holder: wire::holder(holder),
        }),
        ClaimAnswer::Lost(reason) => Outcome::Lost(lost(reason)),
        other => unreachable!("{other:?} to a claim"),
    };
    proto::ClaimResponse {
        outcome: Some(outcome),
    }
}

pub fn renew_claim(answer: ClaimAnswer, now: i64) -> proto::RenewClaimResponse {
    use proto::renew_claim_response::Outcome;
    let outcome = match answer {
        ClaimAnswer::Renewed { lease_end, fencing } => Outcome::Renewed(proto::Renewed {
            lease_left: left(lease_end, now),
            fencing_token: fencing,
        }),
        ClaimAnswer::Lost(reason) => Outcome::Lost(lost(reason)),
        other => unreachable!("{other:?} to a renewal"),
    };
    proto::RenewClaimResponse {
        outcome: Some(outcome),
    }
}

pub fn complete(answer: ClaimAnswer, now: i64) -> Result<proto::CompleteResponse, &'static str> {
    use proto::complete_response::Outcome;
    let outcome = match answer {
        ClaimAnswer::Completed { retention_end } => Outcome::Completed(proto::Completed {
            retention_left: retention_end.and_then(|end| left(end, now)),
        }),
        ClaimAnswer::Lost(reason) => Outcome::Lost(lost(reason)),
        ClaimAnswer::Invalid(field) => return Err(field),
        other => unreachable!("{other:?} to a completion"),
    };
    Ok(proto::CompleteResponse {
        outcome: Some(outcome),
    })
}

pub fn abandon(answer: ClaimAnswer) -> proto::AbandonResponse {
    use proto::abandon_response::Outcome;
    let outcome = match answer {
        ClaimAnswer::Abandoned => Outcome::Abandoned(proto::Abandoned {}),
        ClaimAnswer::Lost(reason) => Outcome::Lost(lost(reason)),
        other => unreachable!("{other:?} to an abandon"),
    };
    proto::AbandonResponse {
        outcome: Some(outcome),
    }
}

pub fn get_claim(answer: ClaimAnswer, now: i64, tenant: &str) -> proto::GetClaimResponse {
    let ClaimAnswer::Info(view) = answer else {
        unreachable!("{answer:?} to a look");
    };
    proto::GetClaimResponse {
        claim: view.map(|view| info(&view, now, tenant)),
    }
}

fn info(view: &ClaimView, now: i64, tenant: &str) -> proto::ClaimInfo {
    let state = match view.state {
        ViewState::InFlight => proto::ClaimState::InFlight,
        ViewState::LeaseOver => proto::ClaimState::LeaseOver,
        ViewState::Uncertain => proto::ClaimState::Uncertain,
        ViewState::Completed => proto::ClaimState::Completed,
        ViewState::Abandoned => proto::ClaimState::Abandoned,
    };
    let checkpoint = wire::checkpoint(view.checkpoint).len();
    let response = view.response.map(wire::response);
    proto::ClaimInfo {
        tenant: tenant.to_owned(),
        operation: wire::operation(view.operation).to_owned(),
        state: state.into(),
        attempt: view.attempt,
        fencing_token: view.fencing,
        holder: view.holder.map(wire::holder).unwrap_or_default(),
        on_lease_over: view.policy.map(wire::policy).unwrap_or_default(),
        claimed_at: view.claimed_at.and_then(timestamp),
        completed_at: view.completed_at.and_then(timestamp),
        lease_left: view.lease_end.and_then(|end| left(end, now)),
        retention_left: left(view.retention_end, now),
        response_status: response.map(|response| response.status).unwrap_or_default(),
        checkpoint_bytes: i64::try_from(checkpoint).expect("a small checkpoint"),
        taken_over: view.taken_over.unwrap_or_default(),
        abandon_reason: view
            .abandoned_by
            .map(wire::abandon_reason)
            .unwrap_or_default(),
        ..Default::default()
    }
}

pub fn resolve(answer: &ClaimAnswer) -> proto::ResolveClaimResponse {
    proto::ResolveClaimResponse {
        resolved: *answer == ClaimAnswer::Resolved(true),
        claim: None,
    }
}

pub fn acquire(
    answer: LockAnswer,
    now: i64,
    lock_token: String,
    fencing_token: i64,
) -> Result<proto::AcquireLockResponse, &'static str> {
    use proto::acquire_lock_response::Outcome;
    let outcome = match answer {
        LockAnswer::Acquired {
            lease_end,
            already_held,
            ..
        } => Outcome::Acquired(proto::LockAcquired {
            lock_token,
            fencing_token,
            lease_left: left(lease_end, now),
            waited: None,
            already_held,
        }),
        LockAnswer::Held { holders, free_at } => Outcome::Held(proto::LockHeld {
            holders: lock_holders(&holders, now),
            queue_length: 0,
            retry_after: retry_after(free_at, now),
        }),
        LockAnswer::Lost(reason) => Outcome::Lost(lost(reason)),
        LockAnswer::Invalid(field) => return Err(field),
        other => unreachable!("{other:?} to an acquisition"),
    };
    Ok(proto::AcquireLockResponse {
        outcome: Some(outcome),
    })
}

fn lock_holders(holders: &[HolderView], now: i64) -> Vec<proto::LockHolder> {
    let told = holders.iter().map(|view| proto::LockHolder {
        holder: wire::holder(view.holder),
        fencing_token: view.fencing,
        mode: wire::mode(view.mode),
        held_for: Some(wire::duration((now - view.acquired.earliest) / 1000)),
        lease_left: left(view.lease_end, now),
    });
    told.collect()
}

pub fn renew_lock(answer: LockAnswer, now: i64) -> proto::RenewLockResponse {
    use proto::renew_lock_response::Outcome;
    let outcome = match answer {
        LockAnswer::Renewed { lease_end, fencing } => Outcome::Renewed(proto::Renewed {
            lease_left: left(lease_end, now),
            fencing_token: fencing,
        }),
        LockAnswer::Lost(reason) => Outcome::Lost(lost(reason)),
        other => unreachable!("{other:?} to a renewal"),
    };
    proto::RenewLockResponse {
        outcome: Some(outcome),
    }
}

pub fn release(answer: LockAnswer, now: i64) -> proto::ReleaseLockResponse {
    use proto::release_lock_response::Outcome;
    let outcome = match answer {
        LockAnswer::Released { free_at } => Outcome::Released(proto::Released {
            free_in: left(free_at, now),
        }),
        LockAnswer::Lost(reason) => Outcome::Lost(lost(reason)),
        other => unreachable!("{other:?} to a release"),
    };
    proto::ReleaseLockResponse {
        outcome: Some(outcome),
    }
}

pub fn get_lock(answer: LockAnswer, now: i64) -> proto::GetLockResponse {
    let LockAnswer::Info(view) = answer else {
        unreachable!("{answer:?} to a look");
    };
    let info = |view: LockView| proto::LockInfo {
        holders: lock_holders(&view.holders, now),
        fencing_token: view.fencing,
        free_in: view.free_at.and_then(|end| left(end, now)),
        ..Default::default()
    };
    proto::GetLockResponse {
        lock: view.map(info),
    }
}

pub fn force_release(answer: &LockAnswer) -> proto::ForceReleaseLockResponse {
    let LockAnswer::Forced(count) = answer else {
        unreachable!("{answer:?} to a forced release");
    };
    proto::ForceReleaseLockResponse {
        released_holders: i32::try_from(*count).expect("a handful of holders"),
    }
}
