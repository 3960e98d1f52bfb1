//! The fields of what operators ask.

use super::claims::{names_a_key, response};
use super::locks::names_a_lock;
use super::table::{Table, Texts};
use super::{COMPLETED, HELD, Seeds};
use crate::support::calls::{self, force_release};
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::*;

pub(super) fn get_claim(_: &Seeds) -> Table<GetClaimRequest> {
    names_a_key!(Table::of(calls::get_claim(COMPLETED)))
}

/// What both listings have.
macro_rules! is_a_listing {
    ($table:expr) => {
        $table
            .text("tenant", |r| &mut r.tenant, Texts::tenants())
            .takes_anything(
                "all_tenants",
                "either is right; a tenant beside it is the bad field",
            )
            .takes("all_tenants", "alone", |r| r.all_tenants = true)
            .refuses_alone("tenant", "beside all_tenants", |r| {
                r.all_tenants = true;
                r.tenant = "acme".to_owned();
            })
            .number(
                "page_size",
                |r| &mut r.page_size,
                &[-1, 1001, i32::MIN, i32::MAX],
                &[0, 1, 1000],
            )
            .text("page_token", |r| &mut r.page_token, Texts::page_tokens())
    };
}

pub(super) fn list_claims(_: &Seeds) -> Table<ListClaimsRequest> {
    is_a_listing!(Table::of(ListClaimsRequest::default()))
        .text("key_prefix", |r| &mut r.key_prefix, Texts::printable(0))
        .known("state", |r| &mut r.state, 5)
}

pub(super) fn list_locks(_: &Seeds) -> Table<ListLocksRequest> {
    is_a_listing!(Table::of(ListLocksRequest::default())).text(
        "resource_prefix",
        |r| &mut r.resource_prefix,
        Texts::printable(0),
    )
}

pub(super) fn resolve_claim(seeds: &Seeds) -> Table<ResolveClaimRequest> {
    let table = Table::of(calls::resolve_claim(COMPLETED, seeds.fencing_token));
    let table = names_a_key!(table)
        .number(
            "fencing_token",
            |r| &mut r.fencing_token,
            &[0, -1, i64::MIN],
            &[1, i64::MAX],
        )
        .text("reason", |r| &mut r.reason, Texts::operators_reasons())
        .refuses_alone("resolution", "unset", |r| r.resolution = None)
        .takes_anything("forget", "it has no fields")
        .takes("forget", "set", |r| {
            r.resolution = Some(Resolution::Forget(Forget {}));
        })
        .takes_anything("erase_response", "it has no fields")
        .takes("erase_response", "set", |r| {
            r.resolution = Some(Resolution::EraseResponse(EraseResponse {}));
        });
    response(table, "complete", "complete.headers.value", |r| {
        if !matches!(r.resolution, Some(Resolution::Complete(_))) {
            r.resolution = Some(Resolution::Complete(StoredResponse::default()));
        }
        match &mut r.resolution {
            Some(Resolution::Complete(response)) => response,
            _ => unreachable!("it was just set"),
        }
    })
}

pub(super) fn get_lock(_: &Seeds) -> Table<GetLockRequest> {
    names_a_lock!(Table::of(calls::get_lock(HELD)))
}

pub(super) fn force_release_lock(_: &Seeds) -> Table<ForceReleaseLockRequest> {
    let table = Table::of(force_release(HELD));
    names_a_lock!(table)
        .number(
            "fencing_token",
            |r| &mut r.fencing_token,
            &[-1, i64::MIN],
            &[0, 1, i64::MAX],
        )
        .text("reason", |r| &mut r.reason, Texts::operators_reasons())
}
