//! Locks.

use super::{known, optional, proto, renewed_or_lost, to_duration, to_lost, zero_if_unset};
use crate::domain::duration::{HoldAtLeast, LockDelay, LockLease, LockWait};
use crate::domain::failure::{Failure, Refused, Violations};
use crate::domain::lease::RenewOutcome;
use crate::domain::lock::{
    AcquireLock, AcquireOutcome, HolderInfo, LockMode, ReleaseLock, ReleaseOutcome, RenewLock,
};
use crate::domain::name::{Holder, LockId, Resource, Tenant};
use crate::domain::token::LockToken;

/// How many may hold a semaphore at most.
const MOST_HOLDERS: i32 = 10_000;

pub(super) fn lock_id(bad: &mut Violations, tenant: String, resource: String) -> Option<LockId> {
    let tenant = bad.check("tenant", Tenant::or_default(tenant));
    let resource = bad.check("resource", Resource::parse(resource));
    Some(LockId {
        tenant: tenant?,
        resource: resource?,
    })
}

pub(in crate::rpc) fn acquire(request: proto::AcquireLockRequest) -> Result<AcquireLock, Failure> {
    let mut bad = Violations::default();
    let id = lock_id(&mut bad, request.tenant, request.resource);
    let token = bad.check("lock_token", LockToken::or_new(request.lock_token));
    let holder = bad.check("holder", Holder::parse(request.holder));
    let lease = bad.check("lease", optional(request.lease, LockLease::parse));
    let wait = bad.check("wait", zero_if_unset(request.wait, LockWait::parse));
    let mode = bad.check("mode", mode(request.mode));
    let max_holders = bad.check("max_holders", max_holders(request.max_holders, mode));
    let hold_at_least = bad.check(
        "hold_at_least",
        zero_if_unset(request.hold_at_least, HoldAtLeast::parse),
    );
    let lock_delay = bad.check(
        "lock_delay",
        zero_if_unset(request.lock_delay, LockDelay::parse),
    );
    let parts = || {
        Some(AcquireLock {
            id: id?,
            token: token?,
            holder: holder?,
            lease: lease?.unwrap_or_default(),
            mode: mode?,
            max_holders: max_holders?,
            hold_at_least: hold_at_least?,
            lock_delay: lock_delay?,
            wait: wait?,
        })
    };
    bad.finish(parts())
}

fn mode(number: i32) -> Result<LockMode, Refused> {
    use proto::LockMode as Mode;
    Ok(match known(number, "mode")? {
        Mode::Unspecified | Mode::Exclusive => LockMode::Exclusive,
        Mode::Shared => LockMode::Shared,
    })
}

fn max_holders(number: i32, mode: Option<LockMode>) -> Result<u32, Refused> {
    match u32::try_from(number) {
        Ok(1..) if mode == Some(LockMode::Exclusive) => {
            Err(Refused::invalid("max_holders must be 0 with EXCLUSIVE"))
        }
        Ok(most) if number <= MOST_HOLDERS => Ok(most),
        _ => Err(Refused::invalid(format!(
            "max_holders must be 0 to {MOST_HOLDERS}"
        ))),
    }
}

pub(in crate::rpc) fn acquire_response(outcome: AcquireOutcome) -> proto::AcquireLockResponse {
    use proto::acquire_lock_response::Outcome;
    let outcome = match outcome {
        AcquireOutcome::Acquired(acquired) => Outcome::Acquired(proto::LockAcquired {
            lock_token: acquired.token.as_str().to_owned(),
            fencing_token: acquired.fencing_token,
            lease_left: to_duration(acquired.lease_left),
            waited: to_duration(acquired.waited),
            already_held: acquired.already_held,
        }),
        AcquireOutcome::Held(held) => Outcome::Held(proto::LockHeld {
            holders: held.holders.into_iter().map(to_holder).collect(),
            queue_length: to_i32(held.queue_length),
            retry_after: to_duration(held.retry_after),
        }),
        AcquireOutcome::Lost(reason) => Outcome::Lost(to_lost(reason)),
    };
    proto::AcquireLockResponse {
        outcome: Some(outcome),
    }
}

pub(super) fn to_i32(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub(super) fn to_holder(holder: HolderInfo) -> proto::LockHolder {
    let mode = match holder.mode {
        LockMode::Exclusive => proto::LockMode::Exclusive,
        LockMode::Shared => proto::LockMode::Shared,
    };
    proto::LockHolder {
        holder: holder.holder,
        fencing_token: holder.fencing_token,
        mode: mode.into(),
        held_for: to_duration(holder.held_for),
        lease_left: to_duration(holder.lease_left),
    }
}

pub(in crate::rpc) fn renew(request: proto::RenewLockRequest) -> Result<RenewLock, Failure> {
    let mut bad = Violations::default();
    let id = lock_id(&mut bad, request.tenant, request.resource);
    let token = bad.check("lock_token", LockToken::parse(request.lock_token));
    let lease = bad.check("lease", optional(request.lease, LockLease::parse));
    let parts = || {
        Some(RenewLock {
            id: id?,
            token: token?,
            lease: lease?,
        })
    };
    bad.finish(parts())
}

pub(in crate::rpc) fn renew_response(outcome: RenewOutcome) -> proto::RenewLockResponse {
    use proto::renew_lock_response::Outcome;
    proto::RenewLockResponse {
        outcome: renewed_or_lost(outcome, Outcome::Renewed, Outcome::Lost),
    }
}

pub(in crate::rpc) fn release(request: proto::ReleaseLockRequest) -> Result<ReleaseLock, Failure> {
    let mut bad = Violations::default();
    let id = lock_id(&mut bad, request.tenant, request.resource);
    let token = bad.check("lock_token", LockToken::parse(request.lock_token));
    let parts = || {
        Some(ReleaseLock {
            id: id?,
            token: token?,
        })
    };
    bad.finish(parts())
}

pub(in crate::rpc) fn release_response(outcome: ReleaseOutcome) -> proto::ReleaseLockResponse {
    use proto::release_lock_response::Outcome;
    proto::ReleaseLockResponse {
        outcome: Some(match outcome {
            ReleaseOutcome::Released { free_in } => Outcome::Released(proto::Released {
                free_in: to_duration(free_in),
            }),
            ReleaseOutcome::Lost(reason) => Outcome::Lost(to_lost(reason)),
        }),
    }
}
