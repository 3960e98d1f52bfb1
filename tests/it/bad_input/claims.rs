//! The fields of the calls on claims.

use super::table::{Table, Texts};
use super::{HOLDER, IN_FLIGHT, Seeds};
use crate::support::requests::{self, token};
use claimlock::rpc::proto::claim_request::Request;
use claimlock::rpc::proto::*;
use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);
const NANOSECOND: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const LARGEST_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

const KIB: usize = 1024;
const MIB: usize = 1024 * 1024;

/// Tenant, scope and key, wherever a request has them.
macro_rules! names_a_key {
    ($table:expr) => {
        $table
            .text("tenant", |r| &mut r.tenant, Texts::tenants())
            .text("scope", |r| &mut r.scope, Texts::printable(0))
            .text("key", |r| &mut r.key, Texts::printable(1))
    };
}
pub(super) use names_a_key;

/// A StoredResponse under `field`; `values` is the path of its headers' values.
pub(super) fn response<R: Clone + 'static>(
    table: Table<R>,
    field: &str,
    values: &'static str,
    at: fn(&mut R) -> &mut StoredResponse,
) -> Table<R> {
    let header = |name: String, value: usize| Header {
        name,
        value: vec![b'v'; value].into(),
    };
    let status = format!("{field}.status");
    let name = format!("{field}.headers[1].name");
    let headers = format!("{field}.headers");
    let body = format!("{field}.body");
    let mut table = table;
    for value in [-1, 1000, i32::MAX, i32::MIN] {
        table = table.refuses(&status, &value.to_string(), move |r| at(r).status = value);
    }
    for value in [0, 100, 999] {
        table = table.takes(&status, &value.to_string(), move |r| at(r).status = value);
    }
    table
        .takes_anything(
            values,
            "any bytes; their size is bound with that of the names",
        )
        .refuses_alone(&name, "empty", move |r| {
            at(r).headers = vec![
                header("a".into(), 1),
                header(String::new(), 1),
                header(String::new(), 1),
            ];
        })
        .refuses_as_too_large(&headers, "of 32 KiB + 1, in values", move |r| {
            at(r).headers = vec![
                header("a".into(), 16 * KIB - 1),
                header("a".into(), 16 * KIB),
            ];
        })
        .refuses_as_too_large(&headers, "of 32 KiB + 1, in names", move |r| {
            at(r).headers = vec![header("n".repeat(32 * KIB + 1), 0)];
        })
        .takes(&headers, "of 32 KiB", move |r| {
            at(r).headers = vec![
                header("a".into(), 16 * KIB - 1),
                header("n".repeat(16 * KIB), 0),
            ];
        })
        .takes(&headers, "of 32 KiB, each a byte", move |r| {
            at(r).headers = vec![header("n".into(), 0); 32 * KIB];
        })
        .refuses_as_too_large(&body, "of 1 MiB + 1", move |r| {
            at(r).body = vec![0; MIB + 1].into();
        })
        .takes(&body, "of 1 MiB", move |r| {
            at(r).body = vec![0xff; MIB].into()
        })
        .takes(&body, "empty", move |r| at(r).body = vec![].into())
}

pub(super) fn claim(_: &Seeds) -> Table<ClaimRequest> {
    fn fingerprint(length: usize) -> impl Fn(&mut ClaimRequest) {
        move |r| r.request = Some(Request::Fingerprint(vec![0; length].into()))
    }
    let mut table = Table::of(requests::claim("fresh", "a"));
    table.vary = |r, n| r.key = format!("fresh-{n}");
    names_a_key!(table)
        .text("operation", |r| &mut r.operation, Texts::short(255))
        .refuses("fingerprint", "empty", fingerprint(0))
        .refuses("fingerprint", "of 65 bytes", fingerprint(65))
        .takes("fingerprint", "of a byte", fingerprint(1))
        .takes("fingerprint", "of 64 bytes", fingerprint(64))
        .takes_anything(
            "body",
            "any bytes are a request; a message's size is its bound",
        )
        .takes("body", "empty", |r| {
            r.request = Some(Request::Body(vec![].into()));
        })
        .takes_anything("json_body", "what is not JSON is hashed raw")
        .takes("json_body", "that is not JSON", |r| {
            r.request = Some(Request::JsonBody(vec![0xff, b'{'].into()));
        })
        .text("claim_token", |r| &mut r.claim_token, Texts::tokens(true))
        .text("holder", |r| &mut r.holder, Texts::short(255))
        .duration("lease", |r| &mut r.lease, MILLISECOND, HOUR)
        .duration("retention", |r| &mut r.retention, SECOND, LARGEST_RETENTION)
        .duration("wait", |r| &mut r.wait, Duration::ZERO, MINUTE)
        .known("on_lease_over", |r| &mut r.on_lease_over, 2)
}

pub(super) fn renew_claim(_: &Seeds) -> Table<RenewClaimRequest> {
    fn checkpoint(length: usize) -> impl Fn(&mut RenewClaimRequest) {
        move |r| r.checkpoint = Some(vec![0; length].into())
    }
    let table = Table::of(RenewClaimRequest {
        checkpoint: Some(b"half".as_slice().into()),
        ..requests::renew_claim(IN_FLIGHT, HOLDER)
    });
    names_a_key!(table)
        .text("claim_token", |r| &mut r.claim_token, Texts::tokens(false))
        .duration("lease", |r| &mut r.lease, MILLISECOND, HOUR)
        .refuses_as_too_large("checkpoint", "of 64 KiB + 1", checkpoint(64 * KIB + 1))
        .takes("checkpoint", "of 64 KiB", checkpoint(64 * KIB))
        .takes("checkpoint", "empty", checkpoint(0))
        .takes("checkpoint", "unset", |r| r.checkpoint = None)
        .number(
            "checkpoint_sequence",
            |r| &mut r.checkpoint_sequence,
            &[-1, i64::MIN, 1 << 53, i64::MAX],
            &[0, 1, (1 << 53) - 1],
        )
}

pub(super) fn complete(seeds: &Seeds) -> Table<CompleteRequest> {
    let table = Table::of(requests::complete(IN_FLIGHT, HOLDER, b"done"));
    let table = names_a_key!(table)
        .text("claim_token", |r| &mut r.claim_token, Texts::tokens(false))
        .takes("response", "unset", |r| r.response = None)
        .duration("retention", |r| &mut r.retention, SECOND, LARGEST_RETENTION)
        .duration(
            "response_retention",
            |r| &mut r.response_retention,
            NANOSECOND,
            LARGEST_RETENTION,
        );
    let table = response(table, "response", "response.headers.value", |r| {
        r.response.get_or_insert_with(Default::default)
    });
    let receipt = seeds.receipt.clone();
    let set = move |r: &mut CompleteRequest, bytes: &[u8]| r.receipt = bytes.to_vec().into();
    let touched = receipt.clone();
    let longer = receipt.clone();
    let shorter = receipt.clone();
    let foreign_key = receipt.clone();
    let foreign_token = receipt.clone();
    let foreign_scope = receipt.clone();
    let foreign_tenant = receipt.clone();
    table
        .refuses_alone("receipt", "of other bytes", move |r| set(r, b"\x01"))
        .refuses_alone("receipt", "of 100,000 bytes", move |r| {
            set(r, &vec![1; 100_000]);
        })
        .refuses_alone("receipt", "with another last byte", move |r| {
            let mut bytes = touched.clone();
            *bytes.last_mut().expect("a receipt has bytes") ^= 1;
            set(r, &bytes);
        })
        .refuses_alone("receipt", "with a byte more", move |r| {
            set(r, &[longer.as_slice(), b"\0"].concat());
        })
        .refuses_alone("receipt", "with a byte less", move |r| {
            set(r, &shorter[..shorter.len() - 1]);
        })
        .refuses_alone("receipt", "of another key", move |r| {
            set(r, &foreign_key);
            r.key = "another".to_owned();
        })
        .refuses_alone("receipt", "of another token", move |r| {
            set(r, &foreign_token);
            r.claim_token = token("another");
        })
        .refuses_alone("receipt", "of another scope", move |r| {
            set(r, &foreign_scope);
            r.scope = "another".to_owned();
        })
        .refuses_alone("receipt", "of another tenant", move |r| {
            set(r, &foreign_tenant);
            r.tenant = "another".to_owned();
        })
        .takes("receipt", "of its own", move |r| set(r, &receipt))
}

pub(super) fn abandon(_: &Seeds) -> Table<AbandonRequest> {
    let table = Table::of(requests::abandon(IN_FLIGHT, HOLDER, AbandonEffect::None));
    names_a_key!(table)
        .text("claim_token", |r| &mut r.claim_token, Texts::tokens(false))
        .known("effect", |r| &mut r.effect, 2)
        .takes_anything("keep_checkpoint", "either is right")
        .text("reason", |r| &mut r.reason, Texts::short(1024))
}
