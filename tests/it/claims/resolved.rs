//! What becomes of a claim that an operator settles, as its callers see it.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::{
    AbandonEffect, ClaimRequest, ClaimState, CompleteRequest, EraseResponse, Forget, LossReason,
};

const FORGET: Resolution = Resolution::Forget(Forget {});
const ERASE: Resolution = Resolution::EraseResponse(EraseResponse {});

fn done_by_hand() -> Resolution {
    Resolution::Complete(response(b"by hand"))
}

/// A key in each state that can be settled, all of them once granted to "a" alone, with the fencing token.
async fn unsettled(world: &mut World) -> Vec<(&'static str, i64)> {
    let mut keys = vec![];
    for key in ["lease over", "given up", "abandoned"] {
        keys.push((
            key,
            world
                .ask(claim(key, "a"))
                .await
                .expect_grant(FIRST)
                .fencing_token,
        ));
    }
    for key in ["uncertain", "uncertain at once"] {
        keys.push((
            key,
            world
                .ask(strict_claim(key, "a"))
                .await
                .expect_grant(FIRST)
                .fencing_token,
        ));
    }
    world.pass(LEASE);
    assert_eq!(
        world
            .ask(abandon("abandoned", "a", AbandonEffect::None))
            .await,
        Answer::Abandoned
    );
    for key in ["given up", "uncertain at once"] {
        assert_eq!(
            world.ask(abandon(key, "a", AbandonEffect::Unknown)).await,
            Answer::Abandoned
        );
    }
    keys
}

#[tokio::test]
async fn work_that_an_operator_knows_to_be_done_is_replayed_to_everybody() {
    let mut world = World::start().await;
    let stored = response(b"by hand");
    for (key, fence) in unsettled(&mut world).await {
        let resolved = world.resolve(key, fence, done_by_hand()).await;
        assert!(resolved.resolved, "{key}");
        let seen = resolved.claim.expect("a completed claim");
        assert_eq!(
            (seen.state(), seen.attempt, seen.fencing_token),
            (ClaimState::Completed, 1, fence)
        );
        assert_eq!((seen.response_status, seen.response_bytes), (201, 7));
        is_about(told_millis(seen.retention_left), RETENTION);

        for name in ["a", "b"] {
            world
                .ask(claim(key, name))
                .await
                .expect_replay(Some(&stored), 1, RETENTION);
        }
        let lost = Answer::Lost(LossReason::Completed);
        assert_eq!(world.ask(renew_claim(key, "a")).await, lost, "{key}");
        // Even an equal response was not this token's to store.
        assert_eq!(
            world.ask(complete(key, "a", b"by hand")).await,
            lost,
            "{key}"
        );
        let abandoned = match key {
            "abandoned" => Answer::Abandoned,
            _ => lost,
        };
        assert_eq!(
            world.ask(abandon(key, "a", AbandonEffect::None)).await,
            abandoned,
            "{key}"
        );
    }
    world.end().await;
}

#[tokio::test]
async fn a_wrong_response_is_replaced_by_an_operators() {
    let world = World::start().await;
    // In the record, and apart from it.
    for (key, response_retention) in [("inside", None), ("apart", lasting(HOUR))] {
        let fence = world
            .ask(claim(key, "a"))
            .await
            .expect_grant(FIRST)
            .fencing_token;
        let completion = CompleteRequest {
            response_retention,
            ..complete(key, "a", b"wrong")
        };
        world.ask(completion).await.expect_completed(RETENTION);
        assert_eq!(world.redis.keys_with(b"wrong").await.len(), 1);
        assert!(world.resolve(key, fence, done_by_hand()).await.resolved);
        for name in ["a", "b"] {
            let replay = world.ask(claim(key, name)).await;
            replay.expect_replay(Some(&response(b"by hand")), 1, RETENTION);
        }
        let lost = Answer::Lost(LossReason::Completed);
        for body in [&b"wrong"[..], b"by hand"] {
            assert_eq!(world.ask(complete(key, "a", body)).await, lost);
        }
        assert!(world.redis.keys_with(b"wrong").await.is_empty());
    }
    world.end().await;
}

#[tokio::test]
async fn work_that_an_operator_knows_not_to_be_done_is_anybodys_but_its_former_holders() {
    let mut world = World::start().await;
    let mut keys = unsettled(&mut world).await;
    keys.push((
        "completed",
        world
            .ask(claim("completed", "a"))
            .await
            .expect_grant(FIRST)
            .fencing_token,
    ));
    world
        .ask(complete("completed", "a", b"wrong"))
        .await
        .expect_completed(RETENTION);
    for (key, fence) in keys {
        let resolved = world.resolve(key, fence, FORGET).await;
        assert!(resolved.resolved, "{key}");
        assert_eq!(resolved.claim, None, "{key}");
        assert_eq!(world.look(key).await, None, "{key}");

        let (lost, abandoned) = match key {
            "abandoned" => (Answer::Lost(LossReason::Released), Answer::Abandoned),
            _ => (
                Answer::Lost(LossReason::Forced),
                Answer::Lost(LossReason::Forced),
            ),
        };
        for round in ["absent", "claimed anew"] {
            assert_eq!(world.ask(claim(key, "a")).await, lost, "{key}, {round}");
            assert_eq!(
                world.ask(renew_claim(key, "a")).await,
                lost,
                "{key}, {round}"
            );
            assert_eq!(
                world.ask(complete(key, "a", b"wrong")).await,
                lost,
                "{key}, {round}"
            );
            assert_eq!(
                world.ask(abandon(key, "a", AbandonEffect::Unknown)).await,
                abandoned,
                "{key}, {round}"
            );
            if round == "absent" {
                // With any request, and no sign of what was before.
                let claimed = world
                    .ask(claim_with_body(key, "b", b"another"))
                    .await
                    .expect_grant(FIRST);
                assert!(claimed.fencing_token > fence, "{key}");
                world
                    .ask(claim(key, "a"))
                    .await
                    .expect_mismatch("POST /v1/charges");
                world.ask(abandon(key, "b", AbandonEffect::None)).await;
            }
        }
    }
    world.end().await;
}

#[tokio::test]
async fn a_holder_whose_claim_was_settled_is_told_so_for_ten_minutes_whatever_the_retention() {
    let mut world = World::start().await;
    let mut fences = vec![];
    for key in ["complete", "forget"] {
        let request = ClaimRequest {
            retention: lasting(MINUTE),
            ..claim(key, "a")
        };
        fences.push(world.ask(request).await.expect_grant(FIRST).fencing_token);
    }
    world.pass(LEASE);
    assert!(
        world
            .resolve("complete", fences[0], done_by_hand())
            .await
            .resolved
    );
    assert!(world.resolve("forget", fences[1], FORGET).await.resolved);
    world.pass(MEMORY - MINUTE);
    for key in ["complete", "forget"] {
        assert_eq!(world.look(key).await, None, "{key}");
        let forced = Answer::Lost(LossReason::Forced);
        assert_eq!(world.ask(claim(key, "a")).await, forced, "{key}");
        assert_eq!(
            world.ask(complete(key, "a", b"late")).await,
            forced,
            "{key}"
        );
    }
    world.pass(MINUTE);
    for key in ["complete", "forget"] {
        world.ask(claim(key, "a")).await.expect_grant(FIRST);
    }
    world.end().await;
}

#[tokio::test]
async fn an_erased_response_leaves_the_key_completed() {
    let world = World::start().await;
    let fence = world
        .ask(claim("k", "a"))
        .await
        .expect_grant(FIRST)
        .fencing_token;
    world
        .ask(complete("k", "a", b"personal data"))
        .await
        .expect_completed(RETENTION);
    let resolved = world.resolve("k", fence, ERASE).await;
    assert!(resolved.resolved);
    let seen = resolved.claim.expect("a completed claim");
    assert_eq!(
        (seen.state(), seen.response_status, seen.response_bytes),
        (ClaimState::Completed, 0, 0)
    );
    assert!(world.redis.keys_with(b"personal data").await.is_empty());
    for name in ["a", "b"] {
        world
            .ask(claim("k", name))
            .await
            .expect_replay(None, 1, RETENTION);
    }
    world
        .ask(complete("k", "a", b"personal data"))
        .await
        .expect_completed(RETENTION);
    assert_eq!(
        world.ask(complete("k", "a", b"other")).await,
        Answer::Lost(LossReason::Completed)
    );
    world.end().await;
}

#[tokio::test]
async fn a_claim_with_a_live_lease_is_left_alone() {
    let world = World::start().await;
    let fence = world
        .ask(strict_claim("k", "a"))
        .await
        .expect_grant(FIRST)
        .fencing_token;
    let before = world.redis.server.dump().await;
    for resolution in [done_by_hand(), FORGET, ERASE] {
        let left = world.resolve("k", fence, resolution).await;
        assert!(!left.resolved);
        let seen = left.claim.expect("a claim");
        assert_eq!(
            (seen.state(), seen.fencing_token),
            (ClaimState::InFlight, fence)
        );
        assert_eq!(seen.holder, "holder a");
        is_about(told_millis(seen.lease_left), LEASE);
    }
    assert_eq!(world.redis.server.dump().await, before);
    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    world.end().await;
}

#[tokio::test]
async fn a_claim_that_has_moved_on_is_left_alone() {
    let mut world = World::start().await;
    let first = world
        .ask(claim("k", "a"))
        .await
        .expect_grant(FIRST)
        .fencing_token;
    world.pass(LEASE);
    let taken = Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    };
    let second = world
        .ask(claim("k", "b"))
        .await
        .expect_grant(taken)
        .fencing_token;
    world.pass(LEASE);
    let before = world.redis.server.dump().await;
    for resolution in [done_by_hand(), FORGET] {
        for fence in [first, second + 1] {
            let left = world.resolve("k", fence, resolution.clone()).await;
            assert!(!left.resolved);
            let seen = left.claim.expect("a claim");
            assert_eq!(
                (seen.state(), seen.fencing_token),
                (ClaimState::LeaseOver, second)
            );
        }
    }
    // There is no response to erase.
    assert!(!world.resolve("k", second, ERASE).await.resolved);
    assert_eq!(world.redis.server.dump().await, before);
    assert!(world.resolve("k", second, FORGET).await.resolved);

    // Forgotten, never known, or expired: nothing to settle.
    let again = world.resolve("k", second, FORGET).await;
    assert_eq!((again.resolved, again.claim), (false, None));
    let never = world.resolve("never", second, done_by_hand()).await;
    assert_eq!((never.resolved, never.claim), (false, None));
    let third = world
        .ask(claim("k", "c"))
        .await
        .expect_grant(FIRST)
        .fencing_token;
    world.pass(LEASE + RETENTION);
    let expired = world.resolve("k", third, done_by_hand()).await;
    assert_eq!((expired.resolved, expired.claim), (false, None));
    world.end().await;
}
