//! A key used for another request is told so before anything else is looked at, wherever the first request is known.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::{
    AbandonEffect, AbandonRequest, ClaimRequest, CompleteRequest, LeaseOverPolicy, LossReason,
    claim_request,
};

const OPERATION: &str = "POST /v1/charges";

/// The same key for another body, by a holder, by a spent token and by a new one. It is stricter, too, which must not
/// count.
async fn assert_mismatch(world: &World, key: &str, names: &[&str]) {
    let before = world.redis.server.dump().await;
    for name in names {
        let request = ClaimRequest {
            on_lease_over: LeaseOverPolicy::MarkUncertain.into(),
            ..claim_with_body(key, name, b"another")
        };
        world.ask(request).await.expect_mismatch(OPERATION);
        let request = ClaimRequest {
            operation: "POST /v1/refunds".to_owned(),
            ..claim_with_body(key, name, b"body")
        };
        world.ask(request).await.expect_mismatch(OPERATION);
    }
    assert_eq!(
        world.redis.server.dump().await,
        before,
        "a mismatch changes nothing"
    );
}

fn first(key: &str, name: &str) -> ClaimRequest {
    claim_with_body(key, name, b"body")
}

#[tokio::test]
async fn another_request_is_a_mismatch_while_the_claim_is_in_flight_and_after_its_lease() {
    let mut world = World::start().await;
    for key in ["plain", "strict"] {
        let policy = match key {
            "plain" => LeaseOverPolicy::TakeOver,
            _ => LeaseOverPolicy::MarkUncertain,
        };
        let request = ClaimRequest {
            on_lease_over: policy.into(),
            ..first(key, "a")
        };
        // A spent token is told of the mismatch too, and not that it is spent.
        assert_eq!(
            world.ask(abandon(key, "spent", AbandonEffect::None)).await,
            Answer::Abandoned
        );
        world.ask(request).await.expect_grant(FIRST);
        assert_mismatch(&world, key, &["a", "spent", "new"]).await;
        world.pass(LEASE);
        assert_mismatch(&world, key, &["a", "spent", "new"]).await;
        assert_eq!(
            world.ask(first(key, "spent")).await,
            Answer::Lost(LossReason::Released)
        );
        assert_eq!(
            world.ask(abandon(key, "a", AbandonEffect::Unknown)).await,
            Answer::Abandoned
        );
        assert_mismatch(&world, key, &["a", "spent", "new"]).await;
    }
    world.end().await;
}

#[tokio::test]
async fn another_request_is_a_mismatch_once_completed() {
    let world = World::start().await;
    assert_eq!(
        world.ask(abandon("k", "spent", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    world.ask(first("k", "a")).await.expect_grant(FIRST);
    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    assert_mismatch(&world, "k", &["a", "spent", "new"]).await;
    world
        .ask(first("k", "new"))
        .await
        .expect_replay(Some(&response(b"done")), 1, RETENTION);
    world.end().await;
}

#[tokio::test]
async fn an_abandoned_key_is_held_to_its_request_only_with_its_checkpoint_or_after_a_takeover() {
    let mut world = World::start().await;
    for key in ["plain", "kept", "taken-over"] {
        world.ask(first(key, "a")).await.expect_grant(FIRST);
    }
    let kept = AbandonRequest {
        keep_checkpoint: true,
        ..abandon("kept", "a", AbandonEffect::None)
    };
    assert_eq!(world.ask(kept).await, Answer::Abandoned);
    assert_eq!(
        world.ask(abandon("plain", "a", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    world.pass(LEASE);
    world
        .ask(first("taken-over", "b"))
        .await
        .expect_grant(Grant {
            attempt: 2,
            taken_over: true,
            ..FIRST
        });
    assert_eq!(
        world
            .ask(abandon("taken-over", "b", AbandonEffect::None))
            .await,
        Answer::Abandoned
    );

    assert_mismatch(&world, "kept", &["a", "new"]).await;
    assert_mismatch(&world, "taken-over", &["a", "b", "new"]).await;
    assert_eq!(
        world.ask(first("kept", "a")).await,
        Answer::Lost(LossReason::Released)
    );
    let another = claim_with_body("plain", "new", b"another");
    world.ask(another).await.expect_grant(Grant {
        attempt: 2,
        ..FIRST
    });
    world
        .ask(first("plain", "later"))
        .await
        .expect_mismatch(OPERATION);
    world.end().await;
}

#[tokio::test]
async fn a_key_whose_record_expired_is_held_to_no_request() {
    let mut world = World::start().await;
    for key in ["completed", "in flight", "given up"] {
        let request = ClaimRequest {
            retention: lasting(SECOND),
            ..first(key, "a")
        };
        world.ask(request).await.expect_grant(FIRST);
    }
    let completion = CompleteRequest {
        retention: lasting(SECOND),
        ..complete("completed", "a", b"done")
    };
    world.ask(completion).await.expect_completed(SECOND);
    assert_eq!(
        world
            .ask(abandon("given up", "a", AbandonEffect::Unknown))
            .await,
        Answer::Abandoned
    );
    world.pass(LEASE + SECOND);
    for key in ["completed", "in flight", "given up"] {
        world
            .ask(claim_with_body(key, "b", b"another"))
            .await
            .expect_grant(FIRST);
    }
    world.end().await;
}

#[tokio::test]
async fn each_way_to_say_what_was_asked_for_is_another_request() {
    use claim_request::Request;
    let world = World::start().await;
    let bytes = br#"{"a":1,"b":2}"#;
    let with = |name: &str, request: Option<Request>| ClaimRequest {
        request,
        ..claim("k", name)
    };
    world
        .ask(with("a", Some(Request::JsonBody(bytes[..].into()))))
        .await
        .expect_grant(FIRST);
    let reordered = with(
        "b",
        Some(Request::JsonBody(b"{ \"b\": 2.0, \"a\": 1 }"[..].into())),
    );
    world
        .ask(reordered)
        .await
        .expect_in_flight(1, "holder a", LEASE);
    for other in [
        Some(Request::JsonBody(br#"{"a":1,"b":3}"#[..].into())),
        Some(Request::Body(bytes[..].into())),
        Some(Request::Fingerprint(bytes[..].into())),
        None,
    ] {
        world.ask(with("b", other)).await.expect_mismatch(OPERATION);
    }
    world.end().await;
}
