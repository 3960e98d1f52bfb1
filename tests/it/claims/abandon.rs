//! Giving up with a token that was never granted the key: it must win over its own late claim.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::{AbandonEffect, AbandonRequest, CompleteRequest, LossReason};

const EFFECTS: [AbandonEffect; 2] = [AbandonEffect::None, AbandonEffect::Unknown];

#[tokio::test]
async fn a_give_up_that_overtakes_its_own_claim_wins() {
    let world = World::start().await;
    for effect in EFFECTS {
        let key = effect.as_str_name();
        assert_eq!(
            world.ask(abandon(key, "a", effect)).await,
            Answer::Abandoned
        );
        let released = Answer::Lost(LossReason::Released);
        assert_eq!(world.ask(claim(key, "a")).await, released);
        assert_eq!(world.ask(renew_claim(key, "a")).await, released);
        assert_eq!(world.ask(complete(key, "a", b"done")).await, released);
        assert_eq!(
            world.ask(abandon(key, "a", effect)).await,
            Answer::Abandoned
        );
        // It is that token alone: the key is as absent as before.
        world.ask(claim(key, "b")).await.expect_grant(FIRST);
        assert_eq!(world.ask(claim(key, "a")).await, released);
    }
    world.end().await;
}

#[tokio::test]
async fn a_give_up_beside_a_holder_is_spent_for_the_reason_it_was_told() {
    let world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    let taken_over = Answer::Lost(LossReason::TakenOver);
    for effect in EFFECTS {
        assert_eq!(world.ask(abandon("k", "live", effect)).await, taken_over);
    }
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::Unknown)).await,
        Answer::Abandoned
    );
    for effect in EFFECTS {
        assert_eq!(
            world.ask(abandon("k", "given-up", effect)).await,
            taken_over
        );
    }

    let taken = Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    };
    world.ask(claim("k", "b")).await.expect_grant(taken);
    assert_eq!(
        world.ask(abandon("k", "b", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    for name in ["live", "given-up"] {
        assert_eq!(world.ask(claim("k", name)).await, taken_over, "{name}");
        assert_eq!(
            world.ask(renew_claim("k", name)).await,
            taken_over,
            "{name}"
        );
        assert_eq!(
            world.ask(complete("k", name, b"done")).await,
            taken_over,
            "{name}"
        );
        assert_eq!(
            world.ask(abandon("k", name, AbandonEffect::None)).await,
            taken_over,
            "{name}"
        );
    }
    world.end().await;
}

#[tokio::test]
async fn a_give_up_of_an_abandoned_key_is_spent_like_the_holders() {
    let world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    for effect in EFFECTS {
        assert_eq!(
            world.ask(abandon("k", "b", effect)).await,
            Answer::Abandoned
        );
    }
    assert_eq!(
        world.ask(claim("k", "b")).await,
        Answer::Lost(LossReason::Released)
    );
    world.ask(claim("k", "c")).await.expect_grant(Grant {
        attempt: 2,
        ..FIRST
    });
    world.end().await;
}

#[tokio::test]
async fn a_give_up_of_a_completed_key_is_spent_but_gets_the_replay() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    let completion = CompleteRequest {
        retention: lasting(MINUTE),
        ..complete("k", "a", b"done")
    };
    world.ask(completion).await.expect_completed(MINUTE);
    let completed = Answer::Lost(LossReason::Completed);
    for effect in EFFECTS {
        assert_eq!(world.ask(abandon("k", "b", effect)).await, completed);
    }
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(Some(&response(b"done")), 1, MINUTE);
    world.pass(MINUTE);
    for call in [
        world.ask(claim("k", "b")).await,
        world.ask(renew_claim("k", "b")).await,
    ] {
        assert_eq!(call, completed);
    }
    assert_eq!(world.ask(complete("k", "b", b"done")).await, completed);
    assert_eq!(
        world.ask(abandon("k", "b", AbandonEffect::None)).await,
        completed
    );
    world.ask(claim("k", "c")).await.expect_grant(FIRST);
    world.end().await;
}

#[tokio::test]
async fn no_other_call_spends_a_token_that_was_not_seen_yet() {
    let world = World::start().await;
    for _ in 0..2 {
        assert_eq!(
            world.ask(renew_claim("k", "a")).await,
            Answer::Lost(LossReason::NotFound)
        );
        assert_eq!(
            world.ask(complete("k", "a", b"done")).await,
            Answer::Lost(LossReason::NotFound)
        );
    }
    assert!(world.redis.strings().await.is_empty());
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.end().await;
}

#[tokio::test]
async fn an_operator_reads_why_a_claim_was_given_up() {
    let world = World::start().await;
    for effect in EFFECTS {
        let key = effect.as_str_name();
        world.ask(claim(key, "a")).await.expect_grant(FIRST);
        let abandonment = AbandonRequest {
            reason: "the bank is closed".to_owned(),
            ..abandon(key, "a", effect)
        };
        assert_eq!(world.ask(abandonment).await, Answer::Abandoned);
        let repeat = AbandonRequest {
            reason: "another".to_owned(),
            ..abandon(key, "a", effect)
        };
        assert_eq!(world.ask(repeat).await, Answer::Abandoned);
        let seen = world.look(key).await.expect("a claim");
        assert_eq!(seen.abandon_reason, "the bank is closed");
    }
    world.end().await;
}
