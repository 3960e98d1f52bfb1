//! Holds an answer from the wire against the one that was foretold.

use claimlock::rpc::proto;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::World;
use super::told::{Ledger, Verdict, lost, same};
use super::wire;
use crate::model::claims::{ClaimAnswer, ClaimView, ViewState};
use crate::model::locks::{HolderView, LockAnswer, LockView};

/// What came back from a call on a claim.
#[derive(Debug)]
pub enum ClaimSeen {
    Claim(proto::ClaimResponse),
    Renew(proto::RenewClaimResponse),
    Complete(proto::CompleteResponse),
    Abandon(proto::AbandonResponse),
    Get(proto::GetClaimResponse),
    Resolve(proto::ResolveClaimResponse),
    Failed(Status),
}

/// What came back from a call on a lock.
#[derive(Debug)]
pub enum LockSeen {
    Acquire(proto::AcquireLockResponse),
    Renew(proto::RenewLockResponse),
    Release(proto::ReleaseLockResponse),
    Get(proto::GetLockResponse),
    Force(proto::ForceReleaseLockResponse),
    Failed(Status),
}

impl ClaimSeen {
    /// The token and receipt of a grant.
    pub fn granted(&self) -> Option<&proto::Claimed> {
        match self {
            Self::Claim(proto::ClaimResponse {
                outcome: Some(proto::claim_response::Outcome::Claimed(claimed)),
            }) => Some(claimed),
            _ => None,
        }
    }
}

impl LockSeen {
    pub fn granted(&self) -> Option<&proto::LockAcquired> {
        match self {
            Self::Acquire(proto::AcquireLockResponse {
                outcome: Some(proto::acquire_lock_response::Outcome::Acquired(acquired)),
            }) => Some(acquired),
            _ => None,
        }
    }
}

/// The failure is told in full in the trace, and the answer that was foretold beside this.
fn another() -> Verdict {
    Err("the outcome is another one".to_owned())
}

fn refused(status: &Status, field: &str) -> Verdict {
    same("the code", status.code(), Code::InvalidArgument)?;
    let reason = status.get_details_error_info().map(|info| info.reason);
    same("the reason", reason.as_deref(), Some("INVALID_FIELD"))?;
    let request = status.get_details_bad_request();
    let violations = request.map_or(Vec::new(), |request| request.field_violations);
    let named: Vec<_> = violations.iter().map(|it| it.field.as_str()).collect();
    same("the fields named", named, vec![field])
}

/// `token` is that of the request.
pub fn claim(
    seen: &ClaimSeen,
    expected: &ClaimAnswer,
    token: &str,
    ledger: &Ledger,
    world: &World,
) -> Verdict {
    use proto::abandon_response::Outcome as AbandonOutcome;
    use proto::complete_response::Outcome as CompleteOutcome;
    use proto::renew_claim_response::Outcome as RenewOutcome;
    match (seen, expected) {
        (ClaimSeen::Failed(status), ClaimAnswer::Invalid(field)) => refused(status, field),
        (ClaimSeen::Claim(response), _) => {
            let Some(outcome) = &response.outcome else {
                return another();
            };
            claim_outcome(outcome, expected, token, ledger)
        }
        (ClaimSeen::Renew(response), _) => match (&response.outcome, expected) {
            (Some(RenewOutcome::Renewed(renewed)), ClaimAnswer::Renewed { lease_end, fencing }) => {
                same("the fencing token", renewed.fencing_token, *fencing)?;
                ledger.left("lease_left", renewed.lease_left, *lease_end)
            }
            (Some(RenewOutcome::Lost(seen)), ClaimAnswer::Lost(reason)) => lost(seen, *reason),
            _ => another(),
        },
        (ClaimSeen::Complete(response), _) => match (&response.outcome, expected) {
            (
                Some(CompleteOutcome::Completed(completed)),
                ClaimAnswer::Completed { retention_end },
            ) => retention(completed.retention_left, *retention_end, ledger),
            (Some(CompleteOutcome::Lost(seen)), ClaimAnswer::Lost(reason)) => lost(seen, *reason),
            _ => another(),
        },
        (ClaimSeen::Abandon(response), _) => match (&response.outcome, expected) {
            (Some(AbandonOutcome::Abandoned(_)), ClaimAnswer::Abandoned) => Ok(()),
            (Some(AbandonOutcome::Lost(seen)), ClaimAnswer::Lost(reason)) => lost(seen, *reason),
            _ => another(),
        },
        (ClaimSeen::Get(response), ClaimAnswer::Info(view)) => match (&response.claim, view) {
            (None, None) => Ok(()),
            (Some(info), Some(view)) => claim_info(info, view, ledger, world),
            _ => another(),
        },
        (ClaimSeen::Resolve(response), ClaimAnswer::Resolved(resolved)) => {
            same("resolved", response.resolved, *resolved)
        }
        _ => another(),
    }
}

fn claim_outcome(
    seen: &proto::claim_response::Outcome,
    expected: &ClaimAnswer,
    token: &str,
    ledger: &Ledger,
) -> Verdict {
    use proto::claim_response::Outcome;
    match (seen, expected) {
        (
            Outcome::Claimed(claimed),
            ClaimAnswer::Claimed {
                fencing,
                attempt,
                lease_end,
                already_held,
                taken_over,
                checkpoint,
            },
        ) => {
            same("already_held", claimed.already_held, *already_held)?;
            same("the token", claimed.claim_token.as_str(), token)?;
            ledger.fencing(claimed.fencing_token, *fencing)?;
            same("the attempt", claimed.attempt, *attempt)?;
            ledger.left("lease_left", claimed.lease_left, *lease_end)?;
            same("taken_over", claimed.taken_over, *taken_over)?;
            let checkpoint = wire::checkpoint(*checkpoint);
            same("the checkpoint", &claimed.checkpoint, &checkpoint)?;
            let receipt = (1..=256).contains(&claimed.receipt.len());
            same("a receipt of at most 256 bytes", receipt, true)
        }
        (
            Outcome::InFlight(in_flight),
            ClaimAnswer::InFlight {
                lease_end,
                attempt,
                claimed_at,
                holder,
            },
        ) => {
            ledger.retry_at(in_flight.retry_after, *lease_end)?;
            ledger.left("lease_left", in_flight.lease_left, *lease_end)?;
            same("the attempt", in_flight.attempt, *attempt)?;
            ledger.timestamp("claimed_at", in_flight.claimed_at, *claimed_at)?;
            same("the holder", &in_flight.holder, &wire::holder(*holder))
        }
        (
            Outcome::Replay(replay),
            ClaimAnswer::Replay {
                response,
                completed_at,
                retention_end,
                attempt,
            },
        ) => {
            let response = response.map(wire::response);
            same("the response", &replay.response, &response)?;
            ledger.timestamp("completed_at", replay.completed_at, *completed_at)?;
            retention(replay.retention_left, *retention_end, ledger)?;
            same("the attempt", replay.attempt, *attempt)
        }
        (Outcome::Mismatch(mismatch), ClaimAnswer::Mismatch { operation }) => same(
            "the operation",
            mismatch.operation.as_str(),
            wire::operation(*operation),
        ),
        (
            Outcome::Uncertain(uncertain),
            ClaimAnswer::Uncertain {
                since,
                attempt,
                checkpoint,
                holder,
            },
        ) => {
            ledger.timestamp("since", uncertain.since, *since)?;
            same("the attempt", uncertain.attempt, *attempt)?;
            let checkpoint = wire::checkpoint(*checkpoint);
            same("the checkpoint", &uncertain.checkpoint, &checkpoint)?;
            same("the holder", &uncertain.holder, &wire::holder(*holder))
        }
        (Outcome::Lost(seen), ClaimAnswer::Lost(reason)) => lost(seen, *reason),
        _ => another(),
    }
}

fn retention(
    seen: Option<prost_types::Duration>,
    end: Option<crate::model::clock::Moment>,
    ledger: &Ledger,
) -> Verdict {
    match end {
        Some(end) => ledger.left("retention_left", seen, end),
        None => ledger.nothing_left("retention_left", seen),
    }
}

fn claim_info(
    info: &proto::ClaimInfo,
    view: &ClaimView,
    ledger: &Ledger,
    world: &World,
) -> Verdict {
    let state = match view.state {
        ViewState::InFlight => proto::ClaimState::InFlight,
        ViewState::LeaseOver => proto::ClaimState::LeaseOver,
        ViewState::Uncertain => proto::ClaimState::Uncertain,
        ViewState::Completed => proto::ClaimState::Completed,
        ViewState::Abandoned => proto::ClaimState::Abandoned,
    };
    same("the state", info.state(), state)?;
    same("the tenant", &info.tenant, &world.tenant)?;
    let operation = wire::operation(view.operation);
    same("the operation", info.operation.as_str(), operation)?;
    same("the attempt", info.attempt, view.attempt)?;
    same("the fencing token", info.fencing_token, view.fencing)?;
    if let Some(holder) = view.holder {
        same("the holder", &info.holder, &wire::holder(holder))?;
    }
    if let Some(policy) = view.policy {
        same("on_lease_over", info.on_lease_over, wire::policy(policy))?;
    }
    if let Some(claimed_at) = view.claimed_at {
        ledger.timestamp("claimed_at", info.claimed_at, claimed_at)?;
    }
    if let Some(completed_at) = view.completed_at {
        ledger.timestamp("completed_at", info.completed_at, completed_at)?;
    }
    match view.lease_end {
        Some(lease_end) => ledger.left("lease_left", info.lease_left, lease_end)?,
        None => ledger.nothing_left("lease_left", info.lease_left)?,
    }
    ledger.left("retention_left", info.retention_left, view.retention_end)?;
    match view.response.map(wire::response) {
        Some(response) => same("the status", info.response_status, response.status)?,
        None => same("response_bytes", info.response_bytes, 0)?,
    }
    let checkpoint = wire::checkpoint(view.checkpoint).len();
    let bytes = i64::try_from(checkpoint).expect("a small checkpoint");
    same("checkpoint_bytes", info.checkpoint_bytes, bytes)?;
    if let Some(taken_over) = view.taken_over {
        same("taken_over", info.taken_over, taken_over)?;
    }
    if let Some(token) = view.abandoned_by {
        let reason = wire::abandon_reason(token);
        same("abandon_reason", &info.abandon_reason, &reason)?;
    }
    Ok(())
}

/// `token` is that of the request.
pub fn lock(seen: &LockSeen, expected: &LockAnswer, token: &str, ledger: &Ledger) -> Verdict {
    use proto::acquire_lock_response::Outcome as AcquireOutcome;
    use proto::release_lock_response::Outcome as ReleaseOutcome;
    use proto::renew_lock_response::Outcome as RenewOutcome;
    match (seen, expected) {
        (LockSeen::Failed(status), LockAnswer::Invalid(field)) => refused(status, field),
        (LockSeen::Acquire(response), _) => match (&response.outcome, expected) {
            (
                Some(AcquireOutcome::Acquired(acquired)),
                LockAnswer::Acquired {
                    fencing,
                    lease_end,
                    already_held,
                },
            ) => {
                same("already_held", acquired.already_held, *already_held)?;
                same("the token", acquired.lock_token.as_str(), token)?;
                ledger.fencing(acquired.fencing_token, *fencing)?;
                ledger.nothing_left("waited", acquired.waited)?;
                ledger.left("lease_left", acquired.lease_left, *lease_end)
            }
            (Some(AcquireOutcome::Held(held)), LockAnswer::Held { holders, free_at }) => {
                lock_holders(&held.holders, holders, ledger)?;
                same("queue_length", held.queue_length, 0)?;
                ledger.retry_by(held.retry_after, *free_at)
            }
            (Some(AcquireOutcome::Lost(seen)), LockAnswer::Lost(reason)) => lost(seen, *reason),
            _ => another(),
        },
        (LockSeen::Renew(response), _) => match (&response.outcome, expected) {
            (Some(RenewOutcome::Renewed(renewed)), LockAnswer::Renewed { lease_end, fencing }) => {
                same("the fencing token", renewed.fencing_token, *fencing)?;
                ledger.left("lease_left", renewed.lease_left, *lease_end)
            }
            (Some(RenewOutcome::Lost(seen)), LockAnswer::Lost(reason)) => lost(seen, *reason),
            _ => another(),
        },
        (LockSeen::Release(response), _) => match (&response.outcome, expected) {
            (Some(ReleaseOutcome::Released(released)), LockAnswer::Released { free_at }) => {
                ledger.left("free_in", released.free_in, *free_at)
            }
            (Some(ReleaseOutcome::Lost(seen)), LockAnswer::Lost(reason)) => lost(seen, *reason),
            _ => another(),
        },
        (LockSeen::Get(response), LockAnswer::Info(view)) => match (&response.lock, view) {
            (None, None) => Ok(()),
            (Some(info), Some(view)) => lock_info(info, view, ledger),
            _ => another(),
        },
        (LockSeen::Force(response), LockAnswer::Forced(count)) => {
            let count = i32::try_from(*count).expect("a handful of holders");
            same("released_holders", response.released_holders, count)
        }
        _ => another(),
    }
}

fn lock_info(info: &proto::LockInfo, view: &LockView, ledger: &Ledger) -> Verdict {
    lock_holders(&info.holders, &view.holders, ledger)?;
    same("queue_length", info.queue_length, 0)?;
    same("the fencing token", info.fencing_token, view.fencing)?;
    match view.free_at {
        Some(free_at) => ledger.left("free_in", info.free_in, free_at),
        None => ledger.nothing_left("free_in", info.free_in),
    }
}

/// In any order. A sequence has fewer holders than are named at most.
fn lock_holders(seen: &[proto::LockHolder], expected: &[HolderView], ledger: &Ledger) -> Verdict {
    same("the number of holders", seen.len(), expected.len())?;
    for view in expected {
        let Some(seen) = seen.iter().find(|seen| seen.fencing_token == view.fencing) else {
            return Err(format!("no holder has fencing token {}", view.fencing));
        };
        same("the holder", &seen.holder, &wire::holder(view.holder))?;
        same("the mode", seen.mode, wire::mode(view.mode))?;
        ledger.since("held_for", seen.held_for, view.acquired)?;
        ledger.left("lease_left", seen.lease_left, view.lease_end)?;
    }
    Ok(())
}
