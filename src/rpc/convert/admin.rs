//! What operators ask for and see.

use super::locks::{to_holder, to_i32};
use super::{claims, known, locks, proto, stored_response, to_duration, to_timestamp};
use crate::domain::claim::{
    ClaimInfo, ClaimState, LeaseOverPolicy, ListClaims, Resolution, ResolveClaim, Resolved,
};
use crate::domain::failure::{Failure, Refused, Violations};
use crate::domain::limits::Limits;
use crate::domain::lock::{ForceReleaseLock, ForceReleased, ListLocks, LockInfo};
use crate::domain::name::{ClaimId, LockId, OperatorReason, Prefix, Tenant};
use crate::domain::page::{Page, Position};

const DEFAULT_PAGE: usize = 50;
const LARGEST_PAGE: i32 = 1000;

pub(in crate::rpc) fn claim_id(request: proto::GetClaimRequest) -> Result<ClaimId, Failure> {
    let mut bad = Violations::default();
    let id = claims::claim_id(&mut bad, request.tenant, request.scope, request.key);
    bad.finish(id)
}

pub(in crate::rpc) fn get_claim_response(claim: Option<ClaimInfo>) -> proto::GetClaimResponse {
    proto::GetClaimResponse {
        claim: claim.map(to_claim_info),
    }
}

/// One tenant, or none for all of them.
fn listed_tenant(tenant: String, all_tenants: bool) -> Result<Option<Tenant>, Refused> {
    match (all_tenants, tenant.is_empty()) {
        (true, true) => Ok(None),
        (true, false) => Err(Refused::invalid("tenant must be empty with all_tenants")),
        (false, _) => Tenant::or_default(tenant).map(Some),
    }
}

fn page_size(number: i32) -> Result<usize, Refused> {
    match number {
        0 => Ok(DEFAULT_PAGE),
        1..=LARGEST_PAGE => Ok(usize::try_from(number).unwrap_or(DEFAULT_PAGE)),
        _ => Err(Refused::invalid(format!(
            "page_size must be 0 to {LARGEST_PAGE}"
        ))),
    }
}

pub(in crate::rpc) fn list_claims(
    request: proto::ListClaimsRequest,
) -> Result<ListClaims, Failure> {
    let mut bad = Violations::default();
    let tenant = bad.check("tenant", listed_tenant(request.tenant, request.all_tenants));
    let prefix = bad.check("key_prefix", Prefix::parse(request.key_prefix));
    let state = bad.check("state", listed_state(request.state));
    let page_size = bad.check("page_size", page_size(request.page_size));
    let start = bad.check("page_token", Position::parse(&request.page_token));
    let parts = || {
        Some(ListClaims {
            tenant: tenant?,
            prefix: prefix?,
            state: state?,
            page_size: page_size?,
            start: start?,
        })
    };
    bad.finish(parts())
}

fn listed_state(number: i32) -> Result<Option<ClaimState>, Refused> {
    use proto::ClaimState as State;
    Ok(match known(number, "state")? {
        State::Unspecified => None,
        State::InFlight => Some(ClaimState::InFlight),
        State::LeaseOver => Some(ClaimState::LeaseOver),
        State::Uncertain => Some(ClaimState::Uncertain),
        State::Completed => Some(ClaimState::Completed),
        State::Abandoned => Some(ClaimState::Abandoned),
    })
}

pub(in crate::rpc) fn list_claims_response(page: Page<ClaimInfo>) -> proto::ListClaimsResponse {
    proto::ListClaimsResponse {
        claims: page.items.into_iter().map(to_claim_info).collect(),
        next_page_token: page.next_page_token,
    }
}

fn to_claim_info(claim: ClaimInfo) -> proto::ClaimInfo {
    let state = match claim.state {
        ClaimState::InFlight => proto::ClaimState::InFlight,
        ClaimState::LeaseOver => proto::ClaimState::LeaseOver,
        ClaimState::Uncertain => proto::ClaimState::Uncertain,
        ClaimState::Completed => proto::ClaimState::Completed,
        ClaimState::Abandoned => proto::ClaimState::Abandoned,
    };
    let policy = match claim.on_lease_over {
        LeaseOverPolicy::TakeOver => proto::LeaseOverPolicy::TakeOver,
        LeaseOverPolicy::MarkUncertain => proto::LeaseOverPolicy::MarkUncertain,
    };
    proto::ClaimInfo {
        tenant: claim.id.tenant.as_str().to_owned(),
        scope: claim.id.scope.as_str().to_owned(),
        key: claim.id.key.as_str().to_owned(),
        operation: claim.operation,
        state: state.into(),
        attempt: claim.attempt,
        fencing_token: claim.fencing_token,
        holder: claim.holder,
        on_lease_over: policy.into(),
        claimed_at: claim.claimed_at.map(to_timestamp),
        renewed_at: claim.renewed_at.map(to_timestamp),
        completed_at: claim.completed_at.map(to_timestamp),
        lease_left: claim.lease_left.and_then(to_duration),
        retention_left: to_duration(claim.retention_left),
        response_status: claim.response_status,
        response_bytes: claim.response_bytes,
        checkpoint_bytes: claim.checkpoint_bytes,
        taken_over: claim.taken_over,
        abandon_reason: claim.abandon_reason,
        trace_id: claim.trace_id,
    }
}

fn looked_at(fencing_token: i64) -> Result<i64, Refused> {
    if fencing_token > 0 {
        return Ok(fencing_token);
    }
    Err(Refused::invalid(
        "fencing_token must be that of the grant that was looked at",
    ))
}

pub(in crate::rpc) fn resolve_claim(
    request: proto::ResolveClaimRequest,
    limits: &Limits,
) -> Result<ResolveClaim, Failure> {
    use proto::resolve_claim_request::Resolution as Asked;
    let mut bad = Violations::default();
    let id = claims::claim_id(&mut bad, request.tenant, request.scope, request.key);
    let fencing_token = bad.check("fencing_token", looked_at(request.fencing_token));
    let reason = bad.check("reason", OperatorReason::parse(request.reason));
    let resolution = match request.resolution {
        None => bad.check(
            "resolution",
            Err(Refused::invalid(
                "one of complete, forget and erase_response must be set",
            )),
        ),
        Some(Asked::Complete(response)) => {
            stored_response(&mut bad, "complete", response, limits).map(Resolution::Complete)
        }
        Some(Asked::Forget(_)) => Some(Resolution::Forget),
        Some(Asked::EraseResponse(_)) => Some(Resolution::EraseResponse),
    };
    let parts = || {
        Some(ResolveClaim {
            id: id?,
            fencing_token: fencing_token?,
            reason: reason?,
            resolution: resolution?,
        })
    };
    bad.finish(parts())
}

pub(in crate::rpc) fn resolve_claim_response(resolved: Resolved) -> proto::ResolveClaimResponse {
    proto::ResolveClaimResponse {
        resolved: resolved.resolved,
        claim: resolved.after.map(to_claim_info),
    }
}

pub(in crate::rpc) fn lock_id(request: proto::GetLockRequest) -> Result<LockId, Failure> {
    let mut bad = Violations::default();
    let id = locks::lock_id(&mut bad, request.tenant, request.resource);
    bad.finish(id)
}

pub(in crate::rpc) fn get_lock_response(lock: Option<LockInfo>) -> proto::GetLockResponse {
    proto::GetLockResponse {
        lock: lock.map(to_lock_info),
    }
}

pub(in crate::rpc) fn list_locks(request: proto::ListLocksRequest) -> Result<ListLocks, Failure> {
    let mut bad = Violations::default();
    let tenant = bad.check("tenant", listed_tenant(request.tenant, request.all_tenants));
    let prefix = bad.check("resource_prefix", Prefix::parse(request.resource_prefix));
    let page_size = bad.check("page_size", page_size(request.page_size));
    let start = bad.check("page_token", Position::parse(&request.page_token));
    let parts = || {
        Some(ListLocks {
            tenant: tenant?,
            prefix: prefix?,
            page_size: page_size?,
            start: start?,
        })
    };
    bad.finish(parts())
}

pub(in crate::rpc) fn list_locks_response(page: Page<LockInfo>) -> proto::ListLocksResponse {
    proto::ListLocksResponse {
        locks: page.items.into_iter().map(to_lock_info).collect(),
        next_page_token: page.next_page_token,
    }
}

fn to_lock_info(lock: LockInfo) -> proto::LockInfo {
    proto::LockInfo {
        tenant: lock.id.tenant.as_str().to_owned(),
        resource: lock.id.resource.as_str().to_owned(),
        holders: lock.holders.into_iter().map(to_holder).collect(),
        queue_length: to_i32(lock.queue_length),
        fencing_token: lock.fencing_token,
        free_in: to_duration(lock.free_in),
    }
}

pub(in crate::rpc) fn force_release_lock(
    request: proto::ForceReleaseLockRequest,
) -> Result<ForceReleaseLock, Failure> {
    let mut bad = Violations::default();
    let id = locks::lock_id(&mut bad, request.tenant, request.resource);
    let fencing_token = bad.check(
        "fencing_token",
        match request.fencing_token {
            0.. => Ok(request.fencing_token),
            _ => Err(Refused::invalid(
                "fencing_token must be that of a holder, or 0 for all",
            )),
        },
    );
    let reason = bad.check("reason", OperatorReason::parse(request.reason));
    let parts = || {
        Some(ForceReleaseLock {
            id: id?,
            fencing_token: fencing_token?,
            reason: reason?,
        })
    };
    bad.finish(parts())
}

pub(in crate::rpc) fn force_release_response(
    released: ForceReleased,
) -> proto::ForceReleaseLockResponse {
    proto::ForceReleaseLockResponse {
        released_holders: to_i32(released.released_holders),
    }
}
