//! The messages of streams that keep leases alive.

use super::{optional, proto, renewed_or_lost, to_duration, to_lost};
use crate::domain::claim::RenewClaim;
use crate::domain::duration::{ClaimLease, LockLease};
use crate::domain::failure::{Failure, Refused, Violations};
use crate::domain::lease::{KeepAlive, LeaseName, LossReason, RenewOutcome, Renewal};
use crate::domain::lock::RenewLock;
use crate::domain::name::{ClaimId, IdempotencyKey, LockId, Resource, Scope, Tenant};
use crate::domain::token::{ClaimToken, LockToken};
use proto::keep_alive_response::Outcome;
use proto::lease_ref::Kind;
use std::time::Duration;

/// A message, with its lease if it is one that can be named again in the answer: of what was malformed nobody knows how long
/// it is.
pub(in crate::rpc) fn keep_alive(
    request: proto::KeepAliveRequest,
) -> (Option<proto::LeaseRef>, Result<KeepAlive, Failure>) {
    let mut bad = Violations::default();
    let is_positive = match request.request_id {
        1.. => Ok(()),
        _ => Err(Refused::invalid("request_id must be greater than zero")),
    };
    bad.check("request_id", is_positive);
    let name = match &request.lease_ref {
        Some(lease_ref) => lease_name(&mut bad, lease_ref.clone()),
        None => bad.check(
            "lease_ref",
            Err(Refused::invalid("lease_ref must name a lease")),
        ),
    };
    let lease_ref = request.lease_ref.filter(|_| name.is_some());
    if request.detach && request.end_on_close {
        let refused = Refused::invalid("detach must not come with end_on_close");
        bad.check::<()>("detach", Err(refused));
    }
    let (detach, end_on_close) = (request.detach, request.end_on_close);
    let message = name.and_then(|name| {
        if detach {
            return Some(KeepAlive::Detach(name));
        }
        let renewal = renewal(&mut bad, name, request.lease)?;
        Some(KeepAlive::Renew {
            renewal,
            end_on_close,
        })
    });
    (lease_ref, bad.finish(message))
}

fn lease_name(bad: &mut Violations, lease_ref: proto::LeaseRef) -> Option<LeaseName> {
    let tenant = bad.check("lease_ref.tenant", Tenant::or_default(lease_ref.tenant));
    match lease_ref.kind {
        Some(Kind::Lock(lock)) => {
            let resource = bad.check("lease_ref.lock.resource", Resource::parse(lock.resource));
            let token = LockToken::parse(lock.lock_token);
            let token = bad.check("lease_ref.lock.lock_token", token);
            let id = LockId {
                tenant: tenant?,
                resource: resource?,
            };
            Some(LeaseName::Lock(id, token?))
        }
        Some(Kind::Claim(claim)) => {
            let scope = bad.check("lease_ref.claim.scope", Scope::parse(claim.scope));
            let key = bad.check("lease_ref.claim.key", IdempotencyKey::parse(claim.key));
            let token = ClaimToken::parse(claim.claim_token);
            let token = bad.check("lease_ref.claim.claim_token", token);
            let id = ClaimId {
                tenant: tenant?,
                scope: scope?,
                key: key?,
            };
            Some(LeaseName::Claim(id, token?))
        }
        None => bad.check(
            "lease_ref.kind",
            Err(Refused::invalid("lease_ref must name a lock or a claim")),
        ),
    }
}

fn renewal(
    bad: &mut Violations,
    name: LeaseName,
    lease: Option<prost_types::Duration>,
) -> Option<Renewal> {
    match name {
        LeaseName::Lock(id, token) => {
            let lease = bad.check("lease", optional(lease, LockLease::parse))?;
            Some(Renewal::Lock(RenewLock { id, token, lease }))
        }
        LeaseName::Claim(id, token) => {
            let lease = bad.check("lease", optional(lease, ClaimLease::parse))?;
            Some(Renewal::Claim(RenewClaim {
                id,
                token,
                lease,
                checkpoint: None,
            }))
        }
    }
}

/// What a message is answered with.
pub(in crate::rpc) fn kept_alive(
    request_id: i64,
    lease_ref: Option<proto::LeaseRef>,
    outcome: RenewOutcome,
) -> proto::KeepAliveResponse {
    proto::KeepAliveResponse {
        request_id,
        lease_ref,
        outcome: renewed_or_lost(outcome, Outcome::Renewed, Outcome::Lost),
    }
}

/// The store could not be asked.
pub(in crate::rpc) fn unavailable(retry_after: Duration) -> Outcome {
    Outcome::Unavailable(proto::Unavailable {
        retry_after: to_duration(retry_after),
    })
}

/// What is told unasked: a lease is lost.
pub(in crate::rpc) fn lost(name: LeaseName, reason: LossReason) -> proto::KeepAliveResponse {
    let (tenant, kind) = match name {
        LeaseName::Lock(id, token) => {
            let lock = proto::LockRef {
                resource: id.resource.as_str().to_owned(),
                lock_token: token.as_str().to_owned(),
            };
            (id.tenant, Kind::Lock(lock))
        }
        LeaseName::Claim(id, token) => {
            let claim = proto::ClaimRef {
                scope: id.scope.as_str().to_owned(),
                key: id.key.as_str().to_owned(),
                claim_token: token.as_str().to_owned(),
            };
            (id.tenant, Kind::Claim(claim))
        }
    };
    proto::KeepAliveResponse {
        request_id: 0,
        lease_ref: Some(proto::LeaseRef {
            tenant: tenant.as_str().to_owned(),
            kind: Some(kind),
        }),
        outcome: Some(Outcome::Lost(to_lost(reason))),
    }
}

/// What is told unasked: the service, or the connection, is about to end.
pub(in crate::rpc) fn draining() -> proto::KeepAliveResponse {
    proto::KeepAliveResponse {
        request_id: 0,
        lease_ref: None,
        outcome: Some(Outcome::Draining(proto::Draining {})),
    }
}
