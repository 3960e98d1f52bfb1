//! Reads requests back into the oracle's small numbers: the inverse of what the driver writes.

use claimlock::rpc::proto;
use prost::bytes::Bytes;

use crate::model::Token;
use crate::model::check::wire;
use crate::model::claims::{
    AbandonOp, ClaimCall, ClaimOp, CompleteOp, Effect, Policy, Receipt, RenewClaimOp, Request,
    Resolution,
};
use crate::model::locks::{AcquireOp, LockCall, Mode};
use crate::model::ops::{CHECKPOINTS, OPERATIONS, RESPONSES};

pub fn token(text: &str) -> Token {
    last_number(text)
}

/// Tokens and the names of holders end in their number.
fn last_number(text: &str) -> u8 {
    let digit = text.chars().next_back().and_then(|last| last.to_digit(10));
    u8::try_from(digit.expect("ends in its number")).expect("one digit")
}

fn ms(duration: prost_types::Duration) -> i64 {
    duration.seconds * 1000 + i64::from(duration.nanos) / 1_000_000
}

fn number_of<T: PartialEq>(seen: &T, numbers: u8, spelled: impl Fn(u8) -> T) -> u8 {
    (0..numbers)
        .find(|number| spelled(*number) == *seen)
        .expect("one of those that the driver writes")
}

fn response(response: &proto::StoredResponse) -> u8 {
    number_of(response, RESPONSES, wire::response)
}

/// The receipt of the `count`-th grant or repeat of a key.
pub fn receipt_of(key: &str, count: usize) -> Bytes {
    Bytes::from(format!("receipt {count} of {key}"))
}

fn receipt(key: &str, receipt: &[u8]) -> Receipt {
    if receipt.is_empty() {
        return Receipt::None;
    }
    let text = std::str::from_utf8(receipt).unwrap_or_default();
    let number = text
        .strip_prefix("receipt ")
        .and_then(|rest| rest.strip_suffix(key)?.strip_suffix(" of "));
    number.map_or(Receipt::Foreign, |count| {
        let count: usize = count.parse().expect("a number of receipts");
        Receipt::Issued(count - 1)
    })
}

pub fn claim(request: &proto::ClaimRequest) -> ClaimCall {
    use proto::claim_request::Request as Wire;
    let fingerprint = match request.request {
        Some(Wire::JsonBody(_)) => 0,
        Some(Wire::Body(_)) => 1,
        Some(Wire::Fingerprint(_)) => 2,
        None => 3,
    };
    let operation = number_of(&request.operation.as_str(), OPERATIONS, |number| {
        wire::operation(Some(number))
    });
    let policy = match request.on_lease_over() {
        proto::LeaseOverPolicy::MarkUncertain => Policy::MarkUncertain,
        _ => Policy::TakeOver,
    };
    ClaimCall::Claim(ClaimOp {
        token: token(&request.claim_token),
        request: Request {
            fingerprint,
            operation,
        },
        holder: last_number(&request.holder),
        lease_ms: ms(request.lease.expect("always set")),
        retention_ms: ms(request.retention.expect("always set")),
        policy,
    })
}

pub fn renew_claim(request: &proto::RenewClaimRequest) -> ClaimCall {
    let checkpoint = request.checkpoint.as_ref();
    ClaimCall::Renew(RenewClaimOp {
        token: token(&request.claim_token),
        lease_ms: request.lease.map(ms),
        checkpoint: checkpoint.map(|bytes| number_of(bytes, CHECKPOINTS, wire::checkpoint)),
        sequence: request.checkpoint_sequence,
    })
}

pub fn complete(request: &proto::CompleteRequest) -> ClaimCall {
    ClaimCall::Complete(CompleteOp {
        token: token(&request.claim_token),
        response: request.response.as_ref().map(response),
        retention_ms: request.retention.map(ms),
        response_retention_ms: request.response_retention.map(ms),
        receipt: receipt(&request.key, &request.receipt),
    })
}

pub fn abandon(request: &proto::AbandonRequest) -> ClaimCall {
    let effect = match request.effect() {
        proto::AbandonEffect::Unknown => Effect::Unknown,
        _ => Effect::None,
    };
    ClaimCall::Abandon(AbandonOp {
        token: token(&request.claim_token),
        effect,
        keep_checkpoint: request.keep_checkpoint,
    })
}

pub fn resolve(request: &proto::ResolveClaimRequest) -> ClaimCall {
    use proto::resolve_claim_request::Resolution as Wire;
    let resolution = match request.resolution.as_ref().expect("always set") {
        Wire::Complete(stored) => Resolution::Complete(response(stored)),
        Wire::Forget(_) => Resolution::Forget,
        Wire::EraseResponse(_) => Resolution::EraseResponse,
    };
    ClaimCall::Resolve {
        fencing: request.fencing_token,
        resolution,
    }
}

pub fn acquire(request: &proto::AcquireLockRequest) -> LockCall {
    let mode = match request.mode() {
        proto::LockMode::Shared => Mode::Shared,
        _ => Mode::Exclusive,
    };
    LockCall::Acquire(AcquireOp {
        token: token(&request.lock_token),
        holder: last_number(&request.holder),
        mode,
        max_holders: usize::try_from(request.max_holders).expect("not negative"),
        lease_ms: ms(request.lease.expect("always set")),
        hold_at_least_ms: request.hold_at_least.map_or(0, ms),
        lock_delay_ms: request.lock_delay.map_or(0, ms),
    })
}

pub fn renew_lock(request: &proto::RenewLockRequest) -> LockCall {
    LockCall::Renew {
        token: token(&request.lock_token),
        lease_ms: request.lease.map(ms),
    }
}
