//! A stored response is replayed to the byte.

use crate::support::failures::{invalid, told};
use crate::support::redis::RedisServer;
use crate::support::requests::{claim, complete, millis, token};
use crate::support::service::{Coordination, Service, patient};
use claimlock::config::Settings;
use claimlock::rpc::proto::claim_request::Request;
use claimlock::rpc::proto::*;

const KIB: usize = 1024;
const MIB: usize = 1024 * 1024;

fn stored(status: i32, headers: &[(&str, &[u8])], body: &[u8]) -> StoredResponse {
    StoredResponse {
        status,
        headers: headers
            .iter()
            .map(|(name, value)| Header {
                name: (*name).to_owned(),
                value: value.to_vec().into(),
            })
            .collect(),
        body: body.to_vec().into(),
    }
}

/// Bytes in which no stretch is like another.
fn bytes(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

fn every_byte() -> Vec<u8> {
    (0..=255).collect()
}

async fn claimed(client: &mut Coordination, key: &str) -> Claimed {
    let answer = client.claim(claim(key, "a")).await.expect("an answer");
    match answer.into_inner().outcome {
        Some(claim_response::Outcome::Claimed(claimed)) => claimed,
        other => panic!("a fresh key is claimed, not {other:?}"),
    }
}

async fn completed(
    client: &mut Coordination,
    request: CompleteRequest,
) -> complete_response::Outcome {
    let answer = client.complete(request).await.expect("an answer");
    answer.into_inner().outcome.expect("an outcome")
}

async fn replayed(client: &mut Coordination, key: &str, name: &str) -> Option<StoredResponse> {
    let answer = client.claim(claim(key, name)).await.expect("an answer");
    match answer.into_inner().outcome {
        Some(claim_response::Outcome::Replay(replay)) => replay.response,
        other => panic!("a completed key is replayed, not {other:?}"),
    }
}

/// Completes a fresh key with the response, and has it replayed to its holder, to another caller and by another
/// service: kept with the record, and apart from it.
async fn is_replayed_to_the_byte(
    services: &mut [Coordination; 2],
    what: &str,
    response: Option<StoredResponse>,
) {
    for (kept, response_retention) in [("with the record", None), ("apart", millis(60_000))] {
        let key = format!("{what} kept {kept}");
        let [client, other] = services;
        claimed(client, &key).await;
        let request = CompleteRequest {
            response: response.clone(),
            response_retention,
            ..complete(&key, "a", b"")
        };
        let outcome = completed(client, request.clone()).await;
        assert!(
            matches!(outcome, complete_response::Outcome::Completed(_)),
            "{key}: {outcome:?}"
        );
        let mut same = client.clone();
        for (client, name) in [(client, "a"), (&mut same, "b"), (other, "c")] {
            let replayed = replayed(client, &key, name).await;
            assert!(replayed == response, "{key}, to {name}: {replayed:.200?}");
        }
    }
}

struct World {
    redis: RedisServer,
    services: [Service; 2],
}

impl World {
    async fn start(settings: Settings) -> Self {
        let redis = RedisServer::start().await;
        let services = [
            Service::with(&redis, settings.clone()).await,
            Service::with(&redis, settings).await,
        ];
        Self { redis, services }
    }

    async fn clients(&self) -> [Coordination; 2] {
        let [one, other] = &self.services;
        [one.coordination().await, other.coordination().await]
    }
}

#[tokio::test]
async fn every_byte_is_replayed_in_bodies_and_header_values() {
    let world = World::start(patient()).await;
    let clients = &mut world.clients().await;
    let all = every_byte();
    let response = stored(
        200,
        &[("x-all", &all), ("x-nul", b"\0"), ("x-none", b"")],
        &all,
    );
    is_replayed_to_the_byte(clients, "all bytes", Some(response)).await;
    for byte in [0, b'\n', b'\r', 0x7f, 0x80, 0xc0, 0xff] {
        let response = stored(200, &[("x", &[byte])], &[byte]);
        is_replayed_to_the_byte(clients, &format!("byte {byte}"), Some(response)).await;
    }
    assert!(world.redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn repeated_headers_are_replayed_in_their_order() {
    let world = World::start(patient()).await;
    let clients = &mut world.clients().await;
    let response = stored(
        302,
        &[
            ("set-cookie", b"b=2"),
            ("Location", b"/elsewhere"),
            ("set-cookie", b"a=1"),
            ("Set-Cookie", b"c=3"),
            ("set-cookie", b"b=2"),
            ("h\u{e9}ader: not HTTP's\r\n", b"x"),
        ],
        b"",
    );
    is_replayed_to_the_byte(clients, "repeated", Some(response)).await;
    let many: Vec<(String, Vec<u8>)> = (0..1000)
        .map(|n| (format!("h{}", n % 7), bytes(n % 20)))
        .collect();
    let many: Vec<(&str, &[u8])> = many
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_slice()))
        .collect();
    is_replayed_to_the_byte(clients, "many", Some(stored(200, &many, b"body"))).await;
    assert!(world.redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn nothing_is_told_from_an_empty_response() {
    let world = World::start(patient()).await;
    let clients = &mut world.clients().await;
    is_replayed_to_the_byte(clients, "none", None).await;
    is_replayed_to_the_byte(clients, "empty", Some(StoredResponse::default())).await;
    is_replayed_to_the_byte(clients, "empty body", Some(stored(204, &[], b""))).await;
    is_replayed_to_the_byte(clients, "status 0", Some(stored(0, &[], b"any bytes"))).await;
    is_replayed_to_the_byte(clients, "status 999", Some(stored(999, &[("a", b"")], b""))).await;
    assert!(world.redis.keys_without_expiry().await.is_empty());
}

/// Every length around which an encoding of lengths changes.
#[tokio::test]
async fn bodies_of_every_length_are_replayed() {
    let world = World::start(patient()).await;
    let clients = &mut world.clients().await;
    for around in [1, 32, 64, 128, 256, 16 * KIB, 64 * KIB, 128 * KIB] {
        for length in around - 1..=around + 1 {
            let response = stored(200, &[], &bytes(length));
            is_replayed_to_the_byte(clients, &format!("{length} bytes"), Some(response)).await;
        }
    }
    assert!(world.redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn the_largest_response_is_replayed_and_a_byte_more_is_too_large() {
    let world = World::start(patient()).await;
    let clients = &mut world.clients().await;
    let half = bytes(16 * KIB);
    let headers: [(&str, &[u8]); 2] = [("a", &half[..16 * KIB - 1]), ("b", &half[..16 * KIB - 1])];
    for (what, body) in [("1 MiB - 1", bytes(MIB - 1)), ("1 MiB", bytes(MIB))] {
        is_replayed_to_the_byte(clients, what, Some(stored(200, &headers, &body))).await;
    }

    let [client, _] = clients;
    claimed(client, "k").await;
    let before = world.redis.dump().await;
    let cases: [(&str, StoredResponse); 2] = [
        ("response.body", stored(200, &headers, &bytes(MIB + 1))),
        (
            "response.headers",
            stored(200, &[headers[0], headers[1], ("c", b"")], b""),
        ),
    ];
    for (field, response) in cases {
        let request = CompleteRequest {
            response: Some(response),
            ..complete("k", "a", b"")
        };
        let status = client.complete(request).await.expect_err("too large");
        assert_eq!(told(&status), invalid("TOO_LARGE", &[field]));
    }
    assert_eq!(world.redis.dump().await, before);
    // The claim is still its holder's to complete.
    let outcome = completed(client, complete("k", "a", b"smaller")).await;
    assert!(
        matches!(outcome, complete_response::Outcome::Completed(_)),
        "{outcome:?}"
    );
    assert!(world.redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn the_limits_of_a_response_can_be_set() {
    let settings = Settings {
        max_response_body: 10,
        max_response_headers: 4,
        ..patient()
    };
    let world = World::start(settings).await;
    let clients = &mut world.clients().await;
    let largest = stored(200, &[("a", b"1"), ("b", b"2")], b"0123456789");
    is_replayed_to_the_byte(clients, "largest", Some(largest.clone())).await;

    let [client, _] = clients;
    let fencing_token = claimed(client, "k").await.fencing_token;
    let too_large = StoredResponse {
        headers: [
            largest.headers.clone(),
            stored(0, &[("c", b"")], b"").headers,
        ]
        .concat(),
        body: b"0123456789a".as_slice().into(),
        ..largest
    };
    let request = CompleteRequest {
        response: Some(too_large.clone()),
        ..complete("k", "a", b"")
    };
    let status = client.complete(request).await.expect_err("too large");
    assert_eq!(
        told(&status),
        invalid("TOO_LARGE", &["response.headers", "response.body"])
    );

    let mut admin = world.services[0].admin().await;
    let request = ResolveClaimRequest {
        resolution: Some(resolve_claim_request::Resolution::Complete(too_large)),
        ..crate::support::calls::resolve_claim("k", fencing_token)
    };
    let status = admin.resolve_claim(request).await.expect_err("too large");
    assert_eq!(
        told(&status),
        invalid("TOO_LARGE", &["complete.headers", "complete.body"])
    );
}

/// A repeat with an equal response changes nothing; any other is told that the claim is completed already.
#[tokio::test]
async fn a_second_completion_with_another_response_is_lost_and_changes_nothing() {
    let world = World::start(patient()).await;
    let [mut client, _] = world.clients().await;
    let first = stored(200, &[("a", b"1"), ("b", b"2")], b"body");
    claimed(&mut client, "k").await;
    let request = |response: Option<StoredResponse>| CompleteRequest {
        response,
        ..complete("k", "a", b"")
    };
    completed(&mut client, request(Some(first.clone()))).await;
    let before = world.redis.dump().await;
    let outcome = completed(&mut client, request(Some(first.clone()))).await;
    assert!(
        matches!(outcome, complete_response::Outcome::Completed(_)),
        "{outcome:?}"
    );

    let others = [
        None,
        Some(StoredResponse::default()),
        Some(stored(201, &[("a", b"1"), ("b", b"2")], b"body")),
        Some(stored(200, &[("b", b"2"), ("a", b"1")], b"body")),
        Some(stored(
            200,
            &[("a", b"1"), ("b", b"2"), ("b", b"2")],
            b"body",
        )),
        Some(stored(200, &[("a", b"1b2")], b"body")),
        Some(stored(200, &[("a1", b""), ("b", b"2")], b"body")),
        Some(stored(200, &[("a", b"1"), ("b", b"2")], b"bodz")),
        Some(stored(200, &[("a", b"1"), ("b", b"2")], b"body\0")),
    ];
    for other in others {
        let outcome = completed(&mut client, request(other.clone())).await;
        let complete_response::Outcome::Lost(lost) = outcome else {
            panic!("{other:?} is taken");
        };
        assert_eq!(lost.reason(), LossReason::Completed);
    }
    assert_eq!(world.redis.dump().await, before);
    assert_eq!(replayed(&mut client, "k", "b").await, Some(first));
}

#[tokio::test]
async fn a_receipt_is_at_most_256_bytes_whatever_it_is_for() {
    let world = World::start(patient()).await;
    let [mut client, _] = world.clients().await;
    let longest = ClaimRequest {
        tenant: "t".repeat(64),
        scope: "~".repeat(255),
        key: "%".repeat(255),
        operation: "\u{1f600}".repeat(63),
        holder: "h".repeat(255),
        claim_token: "_".repeat(64),
        request: Some(Request::Fingerprint(vec![0xff; 64].into())),
        retention: millis(30 * 24 * 3600 * 1000),
        lease: millis(3_600_000),
        on_lease_over: LeaseOverPolicy::MarkUncertain.into(),
        ..ClaimRequest::default()
    };
    let shortest = ClaimRequest {
        key: "k".to_owned(),
        ..ClaimRequest::default()
    };
    for request in [longest, shortest, claim("usual", "a")] {
        let answer = client.claim(request.clone()).await.expect("an answer");
        let Some(claim_response::Outcome::Claimed(claimed)) = answer.into_inner().outcome else {
            panic!("a fresh key is claimed");
        };
        assert!(
            (1..=256).contains(&claimed.receipt.len()),
            "{} bytes",
            claimed.receipt.len()
        );
        // It is taken back as it is.
        let outcome = completed(
            &mut client,
            CompleteRequest {
                tenant: request.tenant,
                scope: request.scope,
                key: request.key,
                claim_token: claimed.claim_token,
                receipt: claimed.receipt,
                ..CompleteRequest::default()
            },
        )
        .await;
        assert!(
            matches!(outcome, complete_response::Outcome::Completed(_)),
            "{outcome:?}"
        );
    }
    assert!(world.redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_receipt_brings_the_result_into_a_store_that_lost_the_record() {
    let world = World::start(patient()).await;
    let [mut client, _] = world.clients().await;
    let claimed = claimed(&mut client, "k").await;
    redis::cmd("FLUSHALL")
        .exec_async(&mut world.redis.connect().await)
        .await
        .expect("all is lost");
    let response = stored(200, &[("a", &every_byte())], &every_byte());
    let request = CompleteRequest {
        response: Some(response.clone()),
        receipt: claimed.receipt,
        ..complete("k", "a", b"")
    };
    let outcome = completed(&mut client, request).await;
    assert!(
        matches!(outcome, complete_response::Outcome::Completed(_)),
        "{outcome:?}"
    );
    assert_eq!(replayed(&mut client, "k", "b").await, Some(response));
    assert_eq!(claimed.claim_token, token("a"));
    assert!(world.redis.keys_without_expiry().await.is_empty());
}
