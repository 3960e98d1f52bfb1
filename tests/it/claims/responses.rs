//! Stored responses: replayed to the letter for as long as they are kept, and no longer lying about after that.

use crate::support::claims::*;
use crate::support::failures::Told;
use crate::support::requests::*;
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::{
    AbandonEffect, CompleteRequest, EraseResponse, Forget, Header, LossReason, StoredResponse,
};
use std::time::Duration;
use tonic::Code;

const BODY: &[u8] = b"personal data of somebody";

fn complete_keeping(
    retention: Duration,
    response_retention: Duration,
    key: &str,
) -> CompleteRequest {
    CompleteRequest {
        retention: lasting(retention),
        response_retention: lasting(response_retention),
        ..complete(key, "a", BODY)
    }
}

fn header(name: &str, value: &'static [u8]) -> Header {
    Header {
        name: name.to_owned(),
        value: value.into(),
    }
}

#[tokio::test]
async fn a_response_is_gone_after_its_own_retention_while_the_key_is_known() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    let completion = complete_keeping(2 * HOUR, HOUR, "k");
    world
        .ask(completion.clone())
        .await
        .expect_completed(2 * HOUR);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(Some(&response(BODY)), 1, 2 * HOUR);
    // It is a key of its own, beside the record and in its slot.
    let keys: Vec<String> = world.redis.strings().await.into_keys().collect();
    let [record, apart] = &keys[..] else {
        panic!("not a record and a response: {keys:?}");
    };
    assert_eq!(*apart, format!("{record}:r"));
    assert_eq!(world.redis.keys_with(BODY).await, [apart.as_str()]);

    world.pass(HOUR);
    assert!(world.redis.keys_with(BODY).await.is_empty());
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(None, 1, HOUR);
    let seen = world.look("k").await.expect("a completed claim");
    assert_eq!(seen.response_bytes, 0);
    // Equal responses are told apart from others all the same.
    world.ask(completion).await.expect_completed(HOUR);
    assert_eq!(
        world.ask(complete("k", "a", b"other")).await,
        Answer::Lost(LossReason::Completed)
    );
    world.end().await;
}

#[tokio::test]
async fn a_response_that_is_kept_as_long_as_its_key_lies_in_the_record() {
    let world = World::start().await;
    for response_retention in [None, lasting(RETENTION), lasting(2 * RETENTION)] {
        world.redis.lose_everything().await;
        world.ask(claim("k", "a")).await.expect_grant(FIRST);
        let completion = CompleteRequest {
            response_retention,
            ..complete("k", "a", BODY)
        };
        world.ask(completion).await.expect_completed(RETENTION);
        assert_eq!(world.redis.strings().await.len(), 1);
        let stored = response(BODY);
        let replay = world.ask(claim("k", "b")).await;
        replay.expect_replay(Some(&stored), 1, RETENTION);
    }
    world.end().await;
}

#[tokio::test]
async fn a_forgotten_claim_leaves_no_response_behind() {
    let world = World::start().await;
    let fence = world
        .ask(claim("k", "a"))
        .await
        .expect_grant(FIRST)
        .fencing_token;
    let completion = complete_keeping(2 * HOUR, HOUR, "k");
    world.ask(completion).await.expect_completed(2 * HOUR);
    assert_eq!(world.redis.keys_with(BODY).await.len(), 1);
    let forget = Resolution::Forget(Forget {});
    assert!(world.resolve("k", fence, forget).await.resolved);
    assert!(world.redis.keys_with(BODY).await.is_empty());
    world.end().await;
}

#[tokio::test]
async fn a_response_is_kept_no_longer_than_its_key_whatever_is_remembered_of_that() {
    let mut world = World::start().await;
    // Tokens are remembered for longer than these keys, so the records stay.
    for (key, response_retention) in [
        ("none", None),
        ("longer", lasting(HOUR)),
        ("equal", lasting(MINUTE)),
    ] {
        world.ask(claim(key, "a")).await.expect_grant(FIRST);
        let completion = CompleteRequest {
            retention: lasting(MINUTE),
            response_retention,
            ..complete(key, "a", BODY)
        };
        world.ask(completion).await.expect_completed(MINUTE);
        world
            .ask(claim(key, "b"))
            .await
            .expect_replay(Some(&response(BODY)), 1, MINUTE);
    }
    assert_eq!(world.redis.keys_with(BODY).await.len(), 3);
    world.pass(MINUTE);
    assert!(world.redis.keys_with(BODY).await.is_empty());
    assert_eq!(world.redis.strings().await.len(), 3);
    world.end().await;
}

#[tokio::test]
async fn a_response_does_not_stay_because_a_token_was_spent_after_completion() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    let retention = 2 * MEMORY;
    let completion = CompleteRequest {
        retention: lasting(retention),
        ..complete("k", "a", BODY)
    };
    world.ask(completion).await.expect_completed(retention);
    world.pass(retention - MINUTE);
    let lost = Answer::Lost(LossReason::Completed);
    assert_eq!(
        world.ask(abandon("k", "b", AbandonEffect::None)).await,
        lost
    );
    world
        .ask(claim("k", "c"))
        .await
        .expect_replay(Some(&response(BODY)), 1, MINUTE);
    world.pass(MINUTE);
    assert_eq!(world.ask(claim("k", "b")).await, lost);
    assert!(world.redis.keys_with(BODY).await.is_empty());
    world.end().await;
}

#[tokio::test]
async fn a_response_that_was_evicted_is_lost_until_its_time_and_not_taken_for_one_that_ran_out() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    let completion = complete_keeping(2 * HOUR, HOUR, "k");
    world
        .ask(completion.clone())
        .await
        .expect_completed(2 * HOUR);
    let keys = world.redis.keys_with(BODY).await;
    assert!(world.redis.evict(&keys[0]).await);

    for name in ["a", "b"] {
        // No retry_after: asking again would not bring it back.
        let lost = Told {
            code: Code::Unavailable,
            reason: "RESPONSE_LOST".to_owned(),
            fields: vec![],
            retry_after: None,
        };
        assert_eq!(world.failure(claim("k", name)).await, lost);
    }
    // All that needs no response goes on.
    world.ask(completion).await.expect_completed(2 * HOUR);
    assert_eq!(
        world.ask(renew_claim("k", "a")).await,
        Answer::Lost(LossReason::Completed)
    );
    world
        .ask(claim_with_body("k", "b", b"another"))
        .await
        .expect_mismatch("POST /v1/charges");

    world.pass(HOUR);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(None, 1, HOUR);
    world.end().await;
}

#[tokio::test]
async fn a_response_that_was_lost_can_be_given_up_on_by_an_operator() {
    let world = World::start().await;
    let claimed = world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(complete_keeping(2 * HOUR, HOUR, "k"))
        .await
        .expect_completed(2 * HOUR);
    let keys = world.redis.keys_with(BODY).await;
    assert!(world.redis.evict(&keys[0]).await);
    let erase = Resolution::EraseResponse(EraseResponse {});
    assert!(
        world
            .resolve("k", claimed.fencing_token, erase)
            .await
            .resolved
    );
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(None, 1, 2 * HOUR);
    world.end().await;
}

#[tokio::test]
async fn a_completion_without_a_response_is_replayed_without_one() {
    let world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    let completion = CompleteRequest {
        response: None,
        ..complete("k", "a", b"")
    };
    world
        .ask(completion.clone())
        .await
        .expect_completed(RETENTION);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(None, 1, RETENTION);
    world.ask(completion).await.expect_completed(RETENTION);
    // None is not the same as an empty one.
    let empty = CompleteRequest {
        response: Some(StoredResponse::default()),
        ..complete("k", "a", b"")
    };
    assert_eq!(
        world.ask(empty.clone()).await,
        Answer::Lost(LossReason::Completed)
    );

    world.ask(claim("empty", "a")).await.expect_grant(FIRST);
    let empty = CompleteRequest {
        key: "empty".to_owned(),
        ..empty
    };
    world.ask(empty).await.expect_completed(RETENTION);
    world.ask(claim("empty", "b")).await.expect_replay(
        Some(&StoredResponse::default()),
        1,
        RETENTION,
    );
    world.end().await;
}

#[tokio::test]
async fn only_an_equal_response_is_a_repeat() {
    let world = World::start().await;
    let stored = StoredResponse {
        status: 201,
        headers: vec![header("set-cookie", b"a=1"), header("set-cookie", b"b=2")],
        body: BODY.into(),
    };
    let with = |response: StoredResponse| CompleteRequest {
        response: Some(response),
        ..complete("k", "a", b"")
    };
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(with(stored.clone()))
        .await
        .expect_completed(RETENTION);
    let before = world.redis.server.dump().await;
    world
        .ask(with(stored.clone()))
        .await
        .expect_completed(RETENTION);
    let mut others = vec![stored.clone(); 5];
    others[0].status = 200;
    others[1].headers.swap(0, 1);
    others[2].headers.pop();
    others[3].body = BODY[1..].into();
    others[4].headers[0].name = "Set-Cookie".to_owned();
    for other in others {
        assert_eq!(
            world.ask(with(other.clone())).await,
            Answer::Lost(LossReason::Completed),
            "{other:?}"
        );
    }
    assert_eq!(world.redis.server.dump().await, before);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(Some(&stored), 1, RETENTION);
    world.end().await;
}

#[tokio::test]
async fn a_repeat_of_complete_never_extends_a_retention() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(complete_keeping(4 * HOUR, 2 * HOUR, "k"))
        .await
        .expect_completed(4 * HOUR);
    world.pass(HOUR);
    let before = world.redis.server.dump().await;
    world
        .ask(complete_keeping(8 * HOUR, 8 * HOUR, "k"))
        .await
        .expect_completed(3 * HOUR);
    world
        .ask(complete_keeping(MINUTE, MINUTE, "k"))
        .await
        .expect_completed(3 * HOUR);
    assert_eq!(world.redis.server.dump().await, before);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(Some(&response(BODY)), 1, 3 * HOUR);
    world.pass(HOUR);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(None, 1, 2 * HOUR);
    world.end().await;
}
