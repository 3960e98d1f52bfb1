//! The fields of the calls on locks.

use super::table::{Table, Texts};
use super::{HELD, HOLDER, Seeds};
use crate::support::requests;
use claimlock::rpc::proto::*;
use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Tenant and resource, wherever a request has them.
macro_rules! names_a_lock {
    ($table:expr) => {
        $table
            .text("tenant", |r| &mut r.tenant, Texts::tenants())
            .text("resource", |r| &mut r.resource, Texts::printable(1))
    };
}
pub(super) use names_a_lock;

pub(super) fn acquire_lock(_: &Seeds) -> Table<AcquireLockRequest> {
    let mut table = Table::of(requests::acquire("fresh", "a"));
    table.vary = |r, n| r.resource = format!("fresh-{n}");
    let shared = |most: i32| {
        move |r: &mut AcquireLockRequest| {
            r.mode = LockMode::Shared.into();
            r.max_holders = most;
        }
    };
    let mut table = names_a_lock!(table)
        .text("lock_token", |r| &mut r.lock_token, Texts::tokens(true))
        .text("holder", |r| &mut r.holder, Texts::short(255))
        .duration("lease", |r| &mut r.lease, MILLISECOND, DAY)
        .duration("wait", |r| &mut r.wait, Duration::ZERO, HOUR)
        .duration(
            "hold_at_least",
            |r| &mut r.hold_at_least,
            Duration::ZERO,
            DAY,
        )
        .duration("lock_delay", |r| &mut r.lock_delay, Duration::ZERO, MINUTE)
        .known("mode", |r| &mut r.mode, 2)
        .number(
            "max_holders",
            |r| &mut r.max_holders,
            &[-1, 10_001, i32::MIN, i32::MAX],
            &[0],
        )
        .refuses("max_holders", "1 with no mode", |r| r.max_holders = 1)
        .refuses("max_holders", "1 with EXCLUSIVE", |r| {
            r.mode = LockMode::Exclusive.into();
            r.max_holders = 1;
        });
    for most in [-1, 10_001, i32::MIN, i32::MAX] {
        table = table.refuses("max_holders", &format!("{most} with SHARED"), shared(most));
    }
    for most in [0, 1, 10_000] {
        table = table.takes("max_holders", &format!("{most} with SHARED"), shared(most));
    }
    table
}

pub(super) fn renew_lock(_: &Seeds) -> Table<RenewLockRequest> {
    let table = Table::of(RenewLockRequest {
        lease: requests::proto_duration(MINUTE),
        ..requests::renew_lock(HELD, HOLDER)
    });
    names_a_lock!(table)
        .text("lock_token", |r| &mut r.lock_token, Texts::tokens(false))
        .duration("lease", |r| &mut r.lease, MILLISECOND, DAY)
}

pub(super) fn release_lock(_: &Seeds) -> Table<ReleaseLockRequest> {
    names_a_lock!(Table::of(requests::release(HELD, HOLDER))).text(
        "lock_token",
        |r| &mut r.lock_token,
        Texts::tokens(false),
    )
}
