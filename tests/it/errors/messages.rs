//! Messages that no handler gets to see.

use crate::support::failures::{invalid, told};
use crate::support::raw::{Raw, Sent, framed, framed_message};
use crate::support::redis::RedisServer;
use crate::support::requests::{claim, complete, token};
use crate::support::service::{Service, patient};
use claimlock::config::Settings;
use claimlock::rpc::proto::claim_request::Request;
use claimlock::rpc::proto::*;
use prost::Message as _;
use tonic::Code;

const MIB: usize = 1024 * 1024;
/// The largest response, and 4 MiB for all else.
const LARGEST_MESSAGE: usize = MIB + 32 * 1024 + 4 * MIB;

/// A claim that takes exactly so many bytes.
fn claim_of(bytes: usize) -> ClaimRequest {
    let with_body = |length| ClaimRequest {
        request: Some(Request::Body(vec![b'x'; length].into())),
        ..claim("large", "a")
    };
    let framing = with_body(MIB).encoded_len() - MIB;
    let request = with_body(bytes - framing);
    // A length takes more bytes from 2 MiB on.
    let over = request.encoded_len() - bytes;
    let request = with_body(bytes - framing - over);
    assert_eq!(request.encoded_len(), bytes);
    request
}

#[tokio::test]
async fn a_message_is_taken_up_to_its_limit_and_too_large_beyond() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, patient()).await;
    let mut client = service.coordination().await;
    let before = redis.dump().await;
    for bytes in [LARGEST_MESSAGE + 1, 2 * LARGEST_MESSAGE] {
        let status = client.claim(claim_of(bytes)).await.expect_err("too large");
        assert_eq!(told(&status), invalid("TOO_LARGE", &[]));
    }
    let mut admin = service.admin().await;
    let status = admin
        .get_claim(GetClaimRequest {
            key: "k".repeat(LARGEST_MESSAGE),
            ..GetClaimRequest::default()
        })
        .await
        .expect_err("too large");
    assert_eq!(told(&status), invalid("TOO_LARGE", &[]));
    assert_eq!(redis.dump().await, before);

    let answer = client
        .claim(claim_of(LARGEST_MESSAGE))
        .await
        .expect("it fits");
    let outcome = answer.into_inner().outcome;
    assert!(
        matches!(outcome, Some(claim_response::Outcome::Claimed(_))),
        "{outcome:?}"
    );
    assert!(redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn the_limit_of_messages_follows_the_largest_response() {
    let redis = RedisServer::start().await;
    let settings = Settings {
        max_response_body: 8 * MIB,
        ..patient()
    };
    let service = Service::with(&redis, settings).await;
    let mut client = service.coordination().await;
    client.claim(claim("k", "a")).await.expect("claimed");
    let answer = client
        .complete(complete("k", "a", &vec![7; 8 * MIB]))
        .await
        .expect("it fits");
    let outcome = answer.into_inner().outcome;
    assert!(
        matches!(outcome, Some(complete_response::Outcome::Completed(_))),
        "{outcome:?}"
    );
    let status = client
        .complete(complete("k", "a", &vec![7; 8 * MIB + 1]))
        .await
        .expect_err("too large");
    assert_eq!(told(&status), invalid("TOO_LARGE", &["response.body"]));
    let status = client
        .complete(complete("k", "a", &vec![7; 12 * MIB + 32 * 1024]))
        .await
        .expect_err("too large");
    assert_eq!(told(&status), invalid("TOO_LARGE", &[]));
}

#[tokio::test]
async fn bytes_that_are_no_message_are_the_callers_mistake() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    let before = redis.dump().await;
    let malformed: [(&str, &[u8], &[&str]); 9] = [
        ("a length past the end", b"\x1a\x7fk", &["key"]),
        (
            "an endless number",
            b"\x68\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            &["on_lease_over"],
        ),
        ("a number for a text", b"\x18\x01", &["key"]),
        ("a text for a number", b"\x6a\x01a", &["on_lease_over"]),
        ("a text that is no UTF-8", b"\x1a\x01\xff", &["key"]),
        ("a surrogate in UTF-8", b"\x1a\x03\xed\xa0\x80", &["key"]),
        ("a group that was never begun", b"\x1c", &["key"]),
        ("the tag zero", b"\x00", &[]),
        ("half a duration", b"\x52\x02\x08", &["lease"]),
    ];
    for (what, bytes, fields) in malformed {
        let status = raw.call("Claim", &[], Sent::all(framed(bytes))).await;
        assert_eq!(told(&status), invalid("INVALID_FIELD", fields), "{what}");
    }
    assert_eq!(redis.dump().await, before);
}

#[tokio::test]
async fn a_text_that_is_no_utf_8_is_named_by_its_field_and_not_repeated() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    // A header's name within the response, and a token beside a good key.
    let cases: [(&str, &[u8], &str); 2] = [
        (
            "Complete",
            b"\x2a\x0c\x12\x0a\x0a\x08secret\xff\xff",
            "response.headers.name",
        ),
        ("Claim", b"\x1a\x01k\x42\x08secret\xff\xff", "claim_token"),
    ];
    for (method, bytes, field) in cases {
        let status = raw.call(method, &[], Sent::all(framed(bytes))).await;
        assert_eq!(
            told(&status),
            invalid("INVALID_FIELD", &[field]),
            "{method}"
        );
        assert_eq!(status.message(), format!("{field} must be UTF-8"));
        assert!(!format!("{status:?}").contains("secret"), "{status:?}");
    }
}

#[tokio::test]
async fn framing_that_is_none_is_the_callers_mistake() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    let before = redis.dump().await;
    let good = framed_message(&claim("k", "a"));
    let mut compressed = good.clone();
    compressed[0] = 1;
    let mut unknown_flag = good.clone();
    unknown_flag[0] = 9;
    let mut huge = good.clone();
    huge[1..5].copy_from_slice(&u32::MAX.to_be_bytes());
    let cases = [
        ("no message", Sent::nothing(), "INVALID_FIELD"),
        (
            "half a header",
            Sent::all(good[..3].to_vec()),
            "INVALID_FIELD",
        ),
        (
            "half a message",
            Sent::all(good[..good.len() - 1].to_vec()),
            "INVALID_FIELD",
        ),
        ("a compressed one", Sent::all(compressed), "INVALID_FIELD"),
        ("an unknown flag", Sent::all(unknown_flag), "INVALID_FIELD"),
        ("4 GiB announced", Sent::without_end(huge), "TOO_LARGE"),
    ];
    for (what, sent, reason) in cases {
        let status = raw.call("Claim", &[], sent).await;
        assert_eq!(told(&status), invalid(reason, &[]), "{what}");
    }
    assert_eq!(redis.dump().await, before);
}

#[tokio::test]
async fn a_message_without_fields_lacks_what_is_required() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    let required: [(&str, &[&str]); 7] = [
        ("Claim", &["key"]),
        ("RenewClaim", &["key", "claim_token"]),
        ("Complete", &["key", "claim_token"]),
        ("Abandon", &["key", "claim_token"]),
        ("AcquireLock", &["resource"]),
        ("RenewLock", &["resource", "lock_token"]),
        ("ReleaseLock", &["resource", "lock_token"]),
    ];
    for (method, fields) in required {
        let status = raw.call(method, &[], Sent::all(framed(b""))).await;
        assert_eq!(told(&status), invalid("INVALID_FIELD", fields), "{method}");
    }
    let required: [(&str, &[&str]); 6] = [
        ("GetClaim", &["key"]),
        (
            "ResolveClaim",
            &["key", "fencing_token", "reason", "resolution"],
        ),
        ("GetLock", &["resource"]),
        ("ForceReleaseLock", &["resource", "reason"]),
        ("ListClaims", &[]),
        ("ListLocks", &[]),
    ];
    for (method, fields) in required {
        let path = format!("/claimlock.v1.AdminService/{method}");
        let status = raw.call_path(&path, &[], Sent::all(framed(b""))).await;
        if fields.is_empty() {
            assert_eq!(status.code(), Code::Ok, "{method}: {status:?}");
        } else {
            assert_eq!(told(&status), invalid("INVALID_FIELD", fields), "{method}");
        }
    }
}

/// Newer clients may know more fields than the service does.
#[tokio::test]
async fn a_field_that_the_contract_does_not_know_is_passed_over() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    let mut message = claim("k", "a").encode_to_vec();
    // Field 1000, a text.
    message.extend_from_slice(b"\xc2\x3e\x03new");
    let status = raw.call("Claim", &[], Sent::all(framed(&message))).await;
    assert_eq!(status.code(), Code::Ok, "{status:?}");
    let answer = service.coordination().await.claim(claim("k", "a")).await;
    let outcome = answer.expect("an answer").into_inner().outcome;
    let Some(claim_response::Outcome::Claimed(claimed)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        (claimed.claim_token, claimed.already_held),
        (token("a"), true)
    );
}
