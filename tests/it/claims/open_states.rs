//! The rows of the table in which nothing is settled: absent, in flight with a live lease, and lease over under either
//! policy. Each cell has a key of its own, named after it.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::{AbandonEffect, ClaimRequest, LossReason};

const EFFECTS: [AbandonEffect; 2] = [AbandonEffect::None, AbandonEffect::Unknown];

#[tokio::test]
async fn an_absent_key_is_granted_and_known_to_no_other_call() {
    let world = World::start().await;

    let claimed = world.ask(claim("claim", "a")).await.expect_grant(FIRST);
    assert_eq!(claimed.claim_token, token("a"));

    let lost = Answer::Lost(LossReason::NotFound);
    assert_eq!(world.ask(renew_claim("renew", "a")).await, lost);
    assert_eq!(world.ask(complete("complete", "a", b"done")).await, lost);
    for effect in EFFECTS {
        assert_eq!(
            world.ask(abandon("abandon", "a", effect)).await,
            Answer::Abandoned
        );
    }
    for key in ["renew", "complete", "abandon"] {
        assert_eq!(world.look(key).await, None, "{key}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_claim_without_a_token_is_given_one_to_go_on_with() {
    let world = World::start().await;
    let request = ClaimRequest {
        claim_token: String::new(),
        ..claim("k", "a")
    };
    let claimed = world.ask(request).await.expect_grant(FIRST);
    assert!(
        (16..=64).contains(&claimed.claim_token.len()),
        "{claimed:?}"
    );
    let mut completion = complete("k", "a", b"done");
    assert_eq!(
        world.ask(completion.clone()).await,
        Answer::Lost(LossReason::TakenOver)
    );
    completion.claim_token = claimed.claim_token;
    world.ask(completion).await.expect_completed(RETENTION);
    world.end().await;
}

#[tokio::test]
async fn while_the_lease_is_live_only_the_holder_gets_anything_done() {
    let world = World::start().await;
    for key in ["claim", "renew", "complete", "NONE", "UNKNOWN"] {
        let before = world.redis.now().await;
        let first = world.ask(claim(key, "a")).await.expect_grant(FIRST);
        let after = world.redis.now().await;

        let in_flight = world
            .ask(claim(key, "b"))
            .await
            .expect_in_flight(1, "holder a", LEASE);
        assert!(
            (before..=after).contains(&micros(in_flight.claimed_at)),
            "{in_flight:?}"
        );
        let lost = Answer::Lost(LossReason::TakenOver);
        assert_eq!(world.ask(renew_claim(key, "c")).await, lost);
        assert_eq!(world.ask(complete(key, "c", b"done")).await, lost);
        for effect in EFFECTS {
            assert_eq!(world.ask(abandon(key, "c", effect)).await, lost);
        }

        match key {
            "claim" => {
                let again = world.ask(claim(key, "a")).await;
                let again = again.expect_grant(Grant {
                    already_held: true,
                    ..FIRST
                });
                assert_eq!(again.fencing_token, first.fencing_token);
            }
            "renew" => world
                .ask(renew_claim(key, "a"))
                .await
                .expect_renewed(first.fencing_token, LEASE),
            "complete" => world
                .ask(complete(key, "a", b"done"))
                .await
                .expect_completed(RETENTION),
            "NONE" => assert_eq!(
                world.ask(abandon(key, "a", AbandonEffect::None)).await,
                Answer::Abandoned
            ),
            _ => assert_eq!(
                world.ask(abandon(key, "a", AbandonEffect::Unknown)).await,
                Answer::Abandoned
            ),
        }
    }
    world.end().await;
}

#[tokio::test]
async fn the_holders_repeat_is_told_what_its_grant_was_told() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.ask(save("k", "a", b"half", 1)).await;
    world.pass(LEASE);
    let grant = Grant {
        attempt: 2,
        taken_over: true,
        checkpoint: b"half",
        ..FIRST
    };
    let first = world.ask(claim("k", "b")).await.expect_grant(grant);
    let again = world.ask(claim("k", "b")).await.expect_grant(Grant {
        already_held: true,
        ..grant
    });
    assert_eq!(again.fencing_token, first.fencing_token);
    world.end().await;
}

#[tokio::test]
async fn nobody_took_it_so_the_holder_goes_on_after_its_lease() {
    let mut world = World::start().await;
    for policy in ["TAKE_OVER", "MARK_UNCERTAIN"] {
        let claim = |key: &str, name: &str| match policy {
            "TAKE_OVER" => claim(key, name),
            _ => strict_claim(key, name),
        };
        let key = |cell: &str| format!("{policy} {cell}");
        let mut fences = vec![];
        for cell in ["claim", "renew", "complete", "NONE", "UNKNOWN"] {
            fences.push(
                world
                    .ask(claim(&key(cell), "a"))
                    .await
                    .expect_grant(FIRST)
                    .fencing_token,
            );
        }
        world.pass(LEASE);

        let again = world.ask(claim(&key("claim"), "a")).await;
        let again = again.expect_grant(Grant {
            already_held: true,
            ..FIRST
        });
        assert_eq!(again.fencing_token, fences[0]);
        world
            .ask(renew_claim(&key("renew"), "a"))
            .await
            .expect_renewed(fences[1], LEASE);
        world
            .ask(complete(&key("complete"), "a", b"done"))
            .await
            .expect_completed(RETENTION);
        for effect in EFFECTS {
            let key = key(if effect == AbandonEffect::None {
                "NONE"
            } else {
                "UNKNOWN"
            });
            assert_eq!(
                world.ask(abandon(&key, "a", effect)).await,
                Answer::Abandoned
            );
        }

        // It began a new lease where it claimed or renewed.
        for cell in ["claim", "renew"] {
            world
                .ask(claim(&key(cell), "b"))
                .await
                .expect_in_flight(1, "holder a", LEASE);
        }
    }
    world.end().await;
}

#[tokio::test]
async fn after_the_lease_every_other_token_still_loses_what_only_a_holder_may_do() {
    let mut world = World::start().await;
    world.ask(claim("TAKE_OVER", "a")).await.expect_grant(FIRST);
    world
        .ask(strict_claim("MARK_UNCERTAIN", "a"))
        .await
        .expect_grant(FIRST);
    world.pass(LEASE);
    for key in ["TAKE_OVER", "MARK_UNCERTAIN"] {
        let lost = Answer::Lost(LossReason::TakenOver);
        assert_eq!(world.ask(renew_claim(key, "b")).await, lost, "{key}");
        assert_eq!(world.ask(complete(key, "b", b"done")).await, lost, "{key}");
        for effect in EFFECTS {
            assert_eq!(world.ask(abandon(key, "b", effect)).await, lost, "{key}");
        }
        // And the claim is the holder's as before.
        world
            .ask(complete(key, "a", b"done"))
            .await
            .expect_completed(RETENTION);
    }
    world.end().await;
}

#[tokio::test]
async fn under_take_over_the_next_claim_after_the_lease_gets_the_work_and_the_checkpoint() {
    let mut world = World::start().await;
    let first = world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(save("k", "a", b"half", 1))
        .await
        .expect_renewed(first.fencing_token, LEASE);
    world.pass(LEASE);
    let second = world.ask(claim("k", "b")).await.expect_grant(Grant {
        attempt: 2,
        taken_over: true,
        checkpoint: b"half",
        ..FIRST
    });
    assert!(second.fencing_token > first.fencing_token);
    world
        .ask(claim("k", "c"))
        .await
        .expect_in_flight(2, "holder b", LEASE);
    world.end().await;
}

#[tokio::test]
async fn under_mark_uncertain_the_next_claim_after_the_lease_is_told_since_when_nobody_knows() {
    let mut world = World::start().await;
    let before = world.redis.now().await;
    let first = world.ask(strict_claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(save("k", "a", b"half", 1))
        .await
        .expect_renewed(first.fencing_token, LEASE);
    let after = world.redis.now().await;
    world.pass(LEASE);
    for name in ["b", "b", "c"] {
        let uncertain = world
            .ask(strict_claim("k", name))
            .await
            .expect_uncertain(1, "holder a", b"half");
        let lease = i64::try_from(LEASE.as_micros()).expect("half a minute");
        assert!(
            (before + lease..=after + lease).contains(&micros(uncertain.since)),
            "{uncertain:?}"
        );
    }
    world.end().await;
}
