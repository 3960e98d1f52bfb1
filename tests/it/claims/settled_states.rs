//! The rows of the table in which a holder settled the claim: completed, given up with effect UNKNOWN, abandoned with
//! effect NONE. Each cell has a key of its own, named after it.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::{AbandonEffect, AbandonRequest, LossReason};

const EFFECTS: [AbandonEffect; 2] = [AbandonEffect::None, AbandonEffect::Unknown];

#[tokio::test]
async fn a_completed_key_is_replayed_to_every_token_and_changed_by_none() {
    let world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    let before = world.redis.now().await;
    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    let after = world.redis.now().await;
    let stored = response(b"done");

    let mut completed_at = vec![];
    for name in ["a", "b", "b"] {
        let replay = world
            .ask(claim("k", name))
            .await
            .expect_replay(Some(&stored), 1, RETENTION);
        completed_at.push(micros(replay.completed_at));
    }
    assert!(
        (before..=after).contains(&completed_at[0]),
        "{completed_at:?}"
    );
    assert!(
        completed_at.iter().all(|at| *at == completed_at[0]),
        "{completed_at:?}"
    );

    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    let lost = Answer::Lost(LossReason::Completed);
    assert_eq!(world.ask(complete("k", "a", b"other")).await, lost);
    assert_eq!(world.ask(complete("k", "c", b"done")).await, lost);
    for name in ["a", "c"] {
        assert_eq!(world.ask(renew_claim("k", name)).await, lost);
        for effect in EFFECTS {
            assert_eq!(world.ask(abandon("k", name, effect)).await, lost);
        }
    }
    world
        .ask(claim("k", "d"))
        .await
        .expect_replay(Some(&stored), 1, RETENTION);
    world.end().await;
}

#[tokio::test]
async fn a_claim_given_up_with_effect_unknown_can_still_be_completed_by_its_holder() {
    let world = World::start().await;
    for key in ["claim", "renew", "complete", "NONE", "UNKNOWN"] {
        world.ask(claim(key, "a")).await.expect_grant(FIRST);
        assert_eq!(
            world.ask(abandon(key, "a", AbandonEffect::Unknown)).await,
            Answer::Abandoned
        );

        let lost = Answer::Lost(LossReason::TakenOver);
        assert_eq!(world.ask(renew_claim(key, "c")).await, lost);
        assert_eq!(world.ask(complete(key, "c", b"done")).await, lost);
        for effect in EFFECTS {
            assert_eq!(world.ask(abandon(key, "c", effect)).await, lost);
        }
    }
    let released = Answer::Lost(LossReason::Released);
    assert_eq!(world.ask(claim("claim", "a")).await, released);
    assert_eq!(world.ask(renew_claim("renew", "a")).await, released);
    world
        .ask(complete("complete", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    world
        .ask(claim("complete", "b"))
        .await
        .expect_replay(Some(&response(b"done")), 1, RETENTION);
    for effect in EFFECTS {
        let key = effect.as_str_name().trim_start_matches("ABANDON_EFFECT_");
        assert_eq!(
            world.ask(abandon(key, "a", effect)).await,
            Answer::Abandoned
        );
        // The first effect stands: somebody may have had one.
        world.ask(claim(key, "b")).await.expect_grant(Grant {
            attempt: 2,
            taken_over: true,
            ..FIRST
        });
    }
    world.end().await;
}

#[tokio::test]
async fn a_claim_given_up_with_effect_unknown_under_take_over_goes_to_the_next_claim_at_once() {
    let world = World::start().await;
    let first = world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(save("k", "a", b"half", 1))
        .await
        .expect_renewed(first.fencing_token, LEASE);
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::Unknown)).await,
        Answer::Abandoned
    );
    let second = world.ask(claim("k", "b")).await.expect_grant(Grant {
        attempt: 2,
        taken_over: true,
        checkpoint: b"half",
        ..FIRST
    });
    assert!(second.fencing_token > first.fencing_token);
    world.end().await;
}

#[tokio::test]
async fn a_claim_given_up_with_effect_unknown_under_mark_uncertain_is_uncertain_from_that_moment() {
    let world = World::start().await;
    let first = world.ask(strict_claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(save("k", "a", b"half", 1))
        .await
        .expect_renewed(first.fencing_token, LEASE);
    let before = world.redis.now().await;
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::Unknown)).await,
        Answer::Abandoned
    );
    let after = world.redis.now().await;
    let uncertain = world
        .ask(claim("k", "b"))
        .await
        .expect_uncertain(1, "holder a", b"half");
    assert!(
        (before..=after).contains(&micros(uncertain.since)),
        "{uncertain:?}"
    );
    // Its holder may find out what came of it.
    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(Some(&response(b"done")), 1, RETENTION);
    world.end().await;
}

#[tokio::test]
async fn giving_up_after_the_lease_does_not_move_the_moment_since_which_it_is_uncertain() {
    let mut world = World::start().await;
    let before = world.redis.now().await;
    world.ask(strict_claim("k", "a")).await.expect_grant(FIRST);
    let after = world.redis.now().await;
    world.pass(HOUR);
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::Unknown)).await,
        Answer::Abandoned
    );
    let uncertain = world
        .ask(claim("k", "b"))
        .await
        .expect_uncertain(1, "holder a", b"");
    let lease = i64::try_from(LEASE.as_micros()).expect("half a minute");
    assert!(
        (before + lease..=after + lease).contains(&micros(uncertain.since)),
        "{uncertain:?}"
    );
    world.end().await;
}

#[tokio::test]
async fn a_claim_abandoned_without_effect_is_free_for_any_other_token() {
    let world = World::start().await;
    for key in ["holder", "another", "claim"] {
        let first = world.ask(claim(key, "a")).await.expect_grant(FIRST);
        world
            .ask(save(key, "a", b"half", 1))
            .await
            .expect_renewed(first.fencing_token, LEASE);
        assert_eq!(
            world.ask(abandon(key, "a", AbandonEffect::None)).await,
            Answer::Abandoned
        );
    }
    let released = Answer::Lost(LossReason::Released);
    assert_eq!(world.ask(claim("holder", "a")).await, released);
    assert_eq!(world.ask(renew_claim("holder", "a")).await, released);
    assert_eq!(world.ask(complete("holder", "a", b"done")).await, released);
    let not_found = Answer::Lost(LossReason::NotFound);
    assert_eq!(world.ask(renew_claim("another", "b")).await, not_found);
    assert_eq!(
        world.ask(complete("another", "b", b"done")).await,
        not_found
    );
    for effect in EFFECTS {
        assert_eq!(
            world.ask(abandon("holder", "a", effect)).await,
            Answer::Abandoned
        );
        assert_eq!(
            world.ask(abandon("another", "b", effect)).await,
            Answer::Abandoned
        );
    }

    // No effect, so nothing to tell, and the next claim may bring another request.
    let seen = world.look("claim").await.expect("an abandoned claim");
    assert_eq!((seen.operation.as_str(), seen.checkpoint_bytes), ("", 0));
    let other_request = claim_with_body("claim", "b", b"another");
    world.ask(other_request).await.expect_grant(Grant {
        attempt: 2,
        ..FIRST
    });
    world.end().await;
}

#[tokio::test]
async fn a_claim_abandoned_without_effect_keeps_its_checkpoint_where_asked_to() {
    let world = World::start().await;
    let first = world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(save("k", "a", b"half", 1))
        .await
        .expect_renewed(first.fencing_token, LEASE);
    let abandonment = AbandonRequest {
        keep_checkpoint: true,
        ..abandon("k", "a", AbandonEffect::None)
    };
    assert_eq!(world.ask(abandonment).await, Answer::Abandoned);
    world
        .ask(claim_with_body("k", "b", b"another"))
        .await
        .expect_mismatch("POST /v1/charges");
    world.ask(claim("k", "b")).await.expect_grant(Grant {
        attempt: 2,
        checkpoint: b"half",
        ..FIRST
    });
    world.end().await;
}

#[tokio::test]
async fn an_abandon_after_a_takeover_does_not_hide_that_the_first_holder_may_have_had_an_effect() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.pass(LEASE);
    let mut grant = Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    };
    let second = world.ask(claim("k", "b")).await.expect_grant(grant);
    world
        .ask(save("k", "b", b"half", 1))
        .await
        .expect_renewed(second.fencing_token, LEASE);
    grant.checkpoint = b"half";
    for (holder, next) in [("b", "c"), ("c", "d"), ("d", "e")] {
        // Fingerprint and checkpoint stay although it does not ask for that.
        assert_eq!(
            world.ask(abandon("k", holder, AbandonEffect::None)).await,
            Answer::Abandoned
        );
        world
            .ask(claim_with_body("k", next, b"another"))
            .await
            .expect_mismatch("POST /v1/charges");
        grant.attempt += 1;
        world.ask(claim("k", next)).await.expect_grant(grant);
    }
    world
        .ask(complete("k", "e", b"done"))
        .await
        .expect_completed(RETENTION);
    assert!(!world.look("k").await.expect("a completed claim").taken_over);
    world.end().await;
}
