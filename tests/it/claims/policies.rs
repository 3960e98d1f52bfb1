//! Where claims of a key differ: the stricter policy counts, and after a takeover the longer retention.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::{
    AbandonEffect, AbandonRequest, ClaimRequest, LeaseOverPolicy, LossReason,
};
use std::time::Duration;

const TAKEN: Grant<'_> = Grant {
    attempt: 2,
    taken_over: true,
    ..FIRST
};

fn keep_for(retention: Duration, request: ClaimRequest) -> ClaimRequest {
    ClaimRequest {
        retention: lasting(retention),
        ..request
    }
}

async fn policy(world: &World, key: &str) -> LeaseOverPolicy {
    world.look(key).await.expect("a claim").on_lease_over()
}

#[tokio::test]
async fn a_stricter_claim_makes_the_one_in_flight_strict() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    assert_eq!(policy(&world, "k").await, LeaseOverPolicy::TakeOver);
    world
        .ask(strict_claim("k", "b"))
        .await
        .expect_in_flight(1, "holder a", LEASE);
    assert_eq!(policy(&world, "k").await, LeaseOverPolicy::MarkUncertain);
    world.pass(LEASE);
    world
        .ask(claim("k", "c"))
        .await
        .expect_uncertain(1, "holder a", b"");
    world.end().await;
}

#[tokio::test]
async fn the_holders_own_repeat_makes_it_strict_and_no_repeat_makes_it_lax() {
    let mut world = World::start().await;
    let held = Grant {
        already_held: true,
        ..FIRST
    };
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.ask(strict_claim("k", "a")).await.expect_grant(held);
    world.ask(claim("k", "a")).await.expect_grant(held);
    world
        .ask(claim("k", "b"))
        .await
        .expect_in_flight(1, "holder a", LEASE);
    world.pass(LEASE);
    world
        .ask(claim("k", "b"))
        .await
        .expect_uncertain(1, "holder a", b"");
    world.end().await;
}

#[tokio::test]
async fn a_stricter_claim_that_finds_the_lease_over_does_not_take_over() {
    let mut world = World::start().await;
    for key in ["lease over", "given up"] {
        world.ask(claim(key, "a")).await.expect_grant(FIRST);
    }
    world.pass(LEASE);
    assert_eq!(
        world
            .ask(abandon("given up", "a", AbandonEffect::Unknown))
            .await,
        Answer::Abandoned
    );
    for key in ["lease over", "given up"] {
        world
            .ask(strict_claim(key, "b"))
            .await
            .expect_uncertain(1, "holder a", b"");
        world
            .ask(claim(key, "c"))
            .await
            .expect_uncertain(1, "holder a", b"");
    }
    world.end().await;
}

#[tokio::test]
async fn a_stricter_claim_counts_although_its_token_gave_the_claim_up() {
    let world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::Unknown)).await,
        Answer::Abandoned
    );
    assert_eq!(
        world.ask(strict_claim("k", "a")).await,
        Answer::Lost(LossReason::Released)
    );
    let uncertain = world.ask(claim("k", "b")).await;
    uncertain.expect_uncertain(1, "holder a", b"");
    world.end().await;
}

#[tokio::test]
async fn a_takeover_keeps_what_was_stricter() {
    let mut world = World::start().await;
    // Taken over while lax, and strict from then on.
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.pass(LEASE);
    world.ask(claim("k", "b")).await.expect_grant(TAKEN);
    world
        .ask(strict_claim("k", "c"))
        .await
        .expect_in_flight(2, "holder b", LEASE);
    // Abandoned, but an earlier effect is unknown: strict all the same.
    assert_eq!(
        world.ask(abandon("k", "b", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    world.ask(claim("k", "c")).await.expect_grant(Grant {
        attempt: 3,
        ..TAKEN
    });
    assert_eq!(policy(&world, "k").await, LeaseOverPolicy::MarkUncertain);
    world.pass(LEASE);
    world
        .ask(claim("k", "d"))
        .await
        .expect_uncertain(3, "holder c", b"");
    world.end().await;
}

#[tokio::test]
async fn a_strict_claim_of_an_abandoned_key_makes_it_strict_after_a_takeover() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.pass(LEASE);
    world.ask(claim("k", "b")).await.expect_grant(TAKEN);
    assert_eq!(
        world.ask(abandon("k", "b", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    world.ask(strict_claim("k", "c")).await.expect_grant(Grant {
        attempt: 3,
        ..TAKEN
    });
    world.pass(LEASE);
    world
        .ask(claim("k", "d"))
        .await
        .expect_uncertain(3, "holder c", b"");
    world.end().await;
}

#[tokio::test]
async fn a_key_abandoned_without_any_effect_takes_policy_and_retention_of_the_next_claim() {
    let mut world = World::start().await;
    for (key, keep_checkpoint) in [("plain", false), ("kept", true)] {
        world.ask(strict_claim(key, "a")).await.expect_grant(FIRST);
        let abandonment = AbandonRequest {
            keep_checkpoint,
            ..abandon(key, "a", AbandonEffect::None)
        };
        assert_eq!(world.ask(abandonment).await, Answer::Abandoned);
        let next = keep_for(2 * HOUR, claim(key, "b"));
        world.ask(next).await.expect_grant(Grant {
            attempt: 2,
            ..FIRST
        });
        assert_eq!(policy(&world, key).await, LeaseOverPolicy::TakeOver);
    }
    world.pass(LEASE);
    world.ask(claim("plain", "c")).await.expect_grant(Grant {
        attempt: 3,
        ..TAKEN
    });
    world
        .ask(complete("kept", "b", b"done"))
        .await
        .expect_completed(2 * HOUR);
    world.end().await;
}

#[tokio::test]
async fn after_a_takeover_the_longer_retention_counts() {
    let mut world = World::start().await;
    let cases = [("longer", HOUR, 2 * HOUR), ("shorter", 2 * HOUR, HOUR)];
    for (key, first, _) in cases {
        world
            .ask(keep_for(first, claim(key, "a")))
            .await
            .expect_grant(FIRST);
    }
    world.pass(LEASE);
    for (key, _, second) in cases {
        world
            .ask(keep_for(second, claim(key, "b")))
            .await
            .expect_grant(TAKEN);
        assert_eq!(
            world.ask(abandon(key, "b", AbandonEffect::None)).await,
            Answer::Abandoned
        );
        let third = keep_for(MINUTE, claim(key, "c"));
        world.ask(third).await.expect_grant(Grant {
            attempt: 3,
            ..TAKEN
        });
        world
            .ask(complete(key, "c", b"done"))
            .await
            .expect_completed(2 * HOUR);
        world
            .ask(claim(key, "d"))
            .await
            .expect_replay(Some(&response(b"done")), 3, 2 * HOUR);
    }
    world.end().await;
}

#[tokio::test]
async fn a_repeat_of_a_claim_never_changes_the_retention() {
    let world = World::start().await;
    let held = Grant {
        already_held: true,
        ..FIRST
    };
    for (key, other) in [("longer", 2 * HOUR), ("shorter", MINUTE)] {
        world
            .ask(keep_for(HOUR, claim(key, "a")))
            .await
            .expect_grant(FIRST);
        world
            .ask(keep_for(other, claim(key, "a")))
            .await
            .expect_grant(held);
        world
            .ask(keep_for(other, claim(key, "b")))
            .await
            .expect_in_flight(1, "holder a", LEASE);
        world
            .ask(complete(key, "a", b"done"))
            .await
            .expect_completed(HOUR);
    }
    world.end().await;
}
