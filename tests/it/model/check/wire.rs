//! What the oracle's small numbers look like on the wire.

use claimlock::rpc::proto;
use prost::bytes::Bytes;

use super::World;
use crate::model::Token;
use crate::model::claims::{
    AbandonOp, ClaimOp, CompleteOp, Effect, Policy, RenewClaimOp, Resolution,
};
use crate::model::locks::{AcquireOp, Mode};

/// Alternates between ways of saying the same, so that each is tried.
#[derive(Clone, Copy, Debug)]
pub enum Spelling {
    Plain,
    Explicit,
}

impl Spelling {
    pub fn of(step: usize) -> Self {
        if step.is_multiple_of(2) {
            Self::Plain
        } else {
            Self::Explicit
        }
    }

    /// The value 0 of an enum means the same as one that is spelled out.
    fn or_default(self, value: i32) -> i32 {
        match self {
            Self::Plain => 0,
            Self::Explicit => value,
        }
    }
}

pub fn duration(ms: i64) -> prost_types::Duration {
    prost_types::Duration {
        seconds: ms / 1000,
        nanos: i32::try_from(ms % 1000 * 1_000_000).expect("less than a second"),
    }
}

fn some_duration(ms: i64) -> Option<prost_types::Duration> {
    Some(duration(ms))
}

/// Two of them differ in nothing but the order of their headers, and one is empty but set.
pub fn response(number: u8) -> proto::StoredResponse {
    let header = |name: &str, value: &'static [u8]| proto::Header {
        name: name.to_owned(),
        value: Bytes::from_static(value),
    };
    let first = header("content-type", b"application/json");
    let second = header("x-charge", b"\xff\x00 17");
    let (status, headers, body) = match number {
        0 => (0, vec![], Bytes::new()),
        1 => (201, vec![first, second], Bytes::from_static(b"{\"id\":17}")),
        2 => (201, vec![second, first], Bytes::from_static(b"{\"id\":17}")),
        _ => (200, vec![first], Bytes::from(vec![number; 700])),
    };
    proto::StoredResponse {
        status,
        headers,
        body,
    }
}

/// Number 0 is empty. The others are short and long.
pub fn checkpoint(number: u8) -> Bytes {
    Bytes::from(vec![number; usize::from(number) * 150])
}

pub fn operation(number: Option<u8>) -> &'static str {
    match number {
        None => "",
        Some(0) => "POST /v1/charges",
        Some(_) => "POST /v1/refunds",
    }
}

fn request(number: u8, spelling: Spelling) -> Option<proto::claim_request::Request> {
    use proto::claim_request::Request;
    match (number, spelling) {
        (0, Spelling::Plain) => Some(Request::JsonBody(Bytes::from_static(
            b"{\"amount\":1e2,\"currency\":\"eur\"}",
        ))),
        (0, Spelling::Explicit) => Some(Request::JsonBody(Bytes::from_static(
            b" { \"currency\" : \"eur\", \"amount\" : 100 } ",
        ))),
        (1, _) => Some(Request::Body(Bytes::from_static(b"amount=100"))),
        (2, _) => Some(Request::Fingerprint(Bytes::from_static(&[7; 32]))),
        _ => None,
    }
}

pub fn policy(policy: Policy) -> i32 {
    match policy {
        Policy::TakeOver => proto::LeaseOverPolicy::TakeOver.into(),
        Policy::MarkUncertain => proto::LeaseOverPolicy::MarkUncertain.into(),
    }
}

pub fn mode(mode: Mode) -> i32 {
    match mode {
        Mode::Exclusive => proto::LockMode::Exclusive.into(),
        Mode::Shared => proto::LockMode::Shared.into(),
    }
}

impl World {
    pub fn key(&self, index: usize) -> String {
        format!("{}-key-{index}", self.prefix)
    }

    pub fn resource(&self, index: usize) -> String {
        format!("{}-resource-{index}", self.prefix)
    }

    pub fn token(&self, token: Token) -> String {
        format!("{}-token-0000000{token}", self.prefix)
    }

    pub fn claim(&self, key: usize, op: &ClaimOp, spelling: Spelling) -> proto::ClaimRequest {
        let on_lease_over = match op.policy {
            Policy::TakeOver => spelling.or_default(policy(op.policy)),
            Policy::MarkUncertain => policy(op.policy),
        };
        proto::ClaimRequest {
            tenant: self.tenant.clone(),
            key: self.key(key),
            operation: operation(Some(op.request.operation)).to_owned(),
            request: request(op.request.fingerprint, spelling),
            claim_token: self.token(op.token),
            holder: holder(op.holder),
            lease: some_duration(op.lease_ms),
            retention: some_duration(op.retention_ms),
            on_lease_over,
            ..Default::default()
        }
    }

    pub fn renew_claim(&self, key: usize, op: &RenewClaimOp) -> proto::RenewClaimRequest {
        proto::RenewClaimRequest {
            tenant: self.tenant.clone(),
            key: self.key(key),
            claim_token: self.token(op.token),
            lease: op.lease_ms.map(duration),
            checkpoint: op.checkpoint.map(checkpoint),
            checkpoint_sequence: op.sequence,
            ..Default::default()
        }
    }

    pub fn complete(&self, key: usize, op: &CompleteOp, receipt: Bytes) -> proto::CompleteRequest {
        proto::CompleteRequest {
            tenant: self.tenant.clone(),
            key: self.key(key),
            claim_token: self.token(op.token),
            response: op.response.map(response),
            retention: op.retention_ms.map(duration),
            response_retention: op.response_retention_ms.map(duration),
            receipt,
            ..Default::default()
        }
    }

    pub fn abandon(&self, key: usize, op: &AbandonOp, spelling: Spelling) -> proto::AbandonRequest {
        let effect = match op.effect {
            Effect::None => spelling.or_default(proto::AbandonEffect::None.into()),
            Effect::Unknown => proto::AbandonEffect::Unknown.into(),
        };
        proto::AbandonRequest {
            tenant: self.tenant.clone(),
            key: self.key(key),
            claim_token: self.token(op.token),
            effect,
            keep_checkpoint: op.keep_checkpoint,
            reason: abandon_reason(op.token),
            ..Default::default()
        }
    }

    pub fn get_claim(&self, key: usize) -> proto::GetClaimRequest {
        proto::GetClaimRequest {
            tenant: self.tenant.clone(),
            key: self.key(key),
            ..Default::default()
        }
    }

    pub fn resolve(
        &self,
        key: usize,
        fencing_token: i64,
        resolution: &Resolution,
    ) -> proto::ResolveClaimRequest {
        use proto::resolve_claim_request::Resolution as Wire;
        let resolution = match resolution {
            Resolution::Complete(number) => Wire::Complete(response(*number)),
            Resolution::Forget => Wire::Forget(proto::Forget {}),
            Resolution::EraseResponse => Wire::EraseResponse(proto::EraseResponse {}),
        };
        proto::ResolveClaimRequest {
            tenant: self.tenant.clone(),
            key: self.key(key),
            fencing_token,
            reason: "settled by hand".to_owned(),
            resolution: Some(resolution),
            ..Default::default()
        }
    }

    pub fn acquire(
        &self,
        resource: usize,
        op: &AcquireOp,
        spelling: Spelling,
    ) -> proto::AcquireLockRequest {
        let lock_mode = match op.mode {
            Mode::Exclusive => spelling.or_default(mode(op.mode)),
            Mode::Shared => mode(op.mode),
        };
        // Zero has a meaning for these two: none.
        let unless_zero = |ms: i64| (ms > 0).then(|| duration(ms));
        proto::AcquireLockRequest {
            tenant: self.tenant.clone(),
            resource: self.resource(resource),
            lock_token: self.token(op.token),
            holder: holder(op.holder),
            lease: some_duration(op.lease_ms),
            mode: lock_mode,
            max_holders: i32::try_from(op.max_holders).expect("a small limit"),
            hold_at_least: unless_zero(op.hold_at_least_ms),
            lock_delay: unless_zero(op.lock_delay_ms),
            ..Default::default()
        }
    }

    pub fn renew_lock(
        &self,
        resource: usize,
        token: Token,
        lease_ms: Option<i64>,
    ) -> proto::RenewLockRequest {
        proto::RenewLockRequest {
            tenant: self.tenant.clone(),
            resource: self.resource(resource),
            lock_token: self.token(token),
            lease: lease_ms.map(duration),
        }
    }

    pub fn release(&self, resource: usize, token: Token) -> proto::ReleaseLockRequest {
        proto::ReleaseLockRequest {
            tenant: self.tenant.clone(),
            resource: self.resource(resource),
            lock_token: self.token(token),
        }
    }

    pub fn get_lock(&self, resource: usize) -> proto::GetLockRequest {
        proto::GetLockRequest {
            tenant: self.tenant.clone(),
            resource: self.resource(resource),
        }
    }

    pub fn force_release(
        &self,
        resource: usize,
        fencing_token: i64,
    ) -> proto::ForceReleaseLockRequest {
        proto::ForceReleaseLockRequest {
            tenant: self.tenant.clone(),
            resource: self.resource(resource),
            fencing_token,
            reason: "stuck".to_owned(),
        }
    }
}

pub fn holder(number: u8) -> String {
    format!("worker-{number}")
}

pub fn abandon_reason(token: Token) -> String {
    format!("token {token} gave up")
}
