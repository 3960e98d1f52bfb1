//! Requests as tests write them: what matters to the test, and defaults for the rest.

use claimlock::rpc::proto::{
    AbandonEffect, AbandonRequest, AcquireLockRequest, ClaimRequest, CompleteRequest, LockMode,
    ReleaseLockRequest, RenewClaimRequest, RenewLockRequest, StoredResponse,
};
use std::time::Duration;

/// A token that is told apart by its name: `token("a")` is sixteen letters and more.
pub fn token(name: &str) -> String {
    format!("token-of-a-test-{name}")
}

pub fn proto_duration(duration: Duration) -> Option<prost_types::Duration> {
    Some(prost_types::Duration::try_from(duration).expect("a test's duration fits"))
}

pub fn millis(millis: u64) -> Option<prost_types::Duration> {
    proto_duration(Duration::from_millis(millis))
}

/// A duration that an answer carries, in milliseconds.
pub fn told_millis(duration: Option<prost_types::Duration>) -> u64 {
    let duration = duration.expect("the answer tells a duration");
    let duration = Duration::try_from(duration).expect("no told duration is negative");
    u64::try_from(duration.as_millis()).expect("no told duration is that long")
}

pub fn claim(key: &str, name: &str) -> ClaimRequest {
    ClaimRequest {
        key: key.to_owned(),
        claim_token: token(name),
        holder: format!("holder {name}"),
        operation: "POST /v1/charges".to_owned(),
        ..ClaimRequest::default()
    }
}

pub fn renew_claim(key: &str, name: &str) -> RenewClaimRequest {
    RenewClaimRequest {
        key: key.to_owned(),
        claim_token: token(name),
        ..RenewClaimRequest::default()
    }
}

pub fn complete(key: &str, name: &str, body: &[u8]) -> CompleteRequest {
    CompleteRequest {
        key: key.to_owned(),
        claim_token: token(name),
        response: Some(response(body)),
        ..CompleteRequest::default()
    }
}

pub fn response(body: &[u8]) -> StoredResponse {
    StoredResponse {
        status: 201,
        headers: vec![],
        body: body.to_vec().into(),
    }
}

pub fn abandon(key: &str, name: &str, effect: AbandonEffect) -> AbandonRequest {
    AbandonRequest {
        key: key.to_owned(),
        claim_token: token(name),
        effect: effect.into(),
        ..AbandonRequest::default()
    }
}

pub fn acquire(resource: &str, name: &str) -> AcquireLockRequest {
    AcquireLockRequest {
        resource: resource.to_owned(),
        lock_token: token(name),
        holder: format!("holder {name}"),
        ..AcquireLockRequest::default()
    }
}

/// A shared acquisition; `max_holders` 0 for no limit.
pub fn share(resource: &str, name: &str, max_holders: i32) -> AcquireLockRequest {
    AcquireLockRequest {
        mode: LockMode::Shared.into(),
        max_holders,
        ..acquire(resource, name)
    }
}

pub fn renew_lock(resource: &str, name: &str) -> RenewLockRequest {
    RenewLockRequest {
        resource: resource.to_owned(),
        lock_token: token(name),
        ..RenewLockRequest::default()
    }
}

pub fn release(resource: &str, name: &str) -> ReleaseLockRequest {
    ReleaseLockRequest {
        resource: resource.to_owned(),
        lock_token: token(name),
        ..ReleaseLockRequest::default()
    }
}
