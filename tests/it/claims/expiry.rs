//! How long a record is known, by the times that it holds, and what is remembered of it afterwards.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::config::Settings;
use claimlock::rpc::proto::{AbandonEffect, ClaimRequest, ClaimState, CompleteRequest, LossReason};
use std::time::Duration;

/// Long enough that neither the memory of tokens nor a slow machine blurs it.
const KEPT: Duration = Duration::from_secs(2 * 3600);

fn kept(request: ClaimRequest) -> ClaimRequest {
    ClaimRequest {
        retention: lasting(KEPT),
        ..request
    }
}

/// Less than what is remembered of a record.
const SHORT: Duration = MINUTE;

fn short(request: ClaimRequest) -> ClaimRequest {
    ClaimRequest {
        retention: lasting(SHORT),
        ..request
    }
}

/// The key is known for `left` more and no longer.
async fn assert_known_for(world: &mut World, key: &str, left: Duration) {
    let known = world.look(key).await.expect("a claim");
    is_about(told_millis(known.retention_left), left);
    world.pass(left - MINUTE);
    assert!(world.look(key).await.is_some(), "{key} is known");
    world.pass(MINUTE);
    assert_eq!(world.look(key).await, None, "{key}");
    world
        .ask(claim_with_body(key, "later", b"another"))
        .await
        .expect_grant(FIRST);
}

#[tokio::test]
async fn a_claim_in_flight_is_known_for_its_retention_after_the_lease() {
    let mut world = World::start().await;
    world.ask(kept(claim("k", "a"))).await.expect_grant(FIRST);
    assert_known_for(&mut world, "k", LEASE + KEPT).await;
    world.end().await;
}

#[tokio::test]
async fn each_renewal_and_each_repeat_moves_the_expiry_on() {
    let mut world = World::start().await;
    let fence = world
        .ask(kept(claim("k", "a")))
        .await
        .expect_grant(FIRST)
        .fencing_token;
    for _ in 0..3 {
        world.pass(KEPT - MINUTE);
        world
            .ask(renew_claim("k", "a"))
            .await
            .expect_renewed(fence, LEASE);
        world.pass(KEPT - MINUTE);
        world.ask(claim("k", "a")).await.expect_grant(Grant {
            already_held: true,
            ..FIRST
        });
    }
    assert_known_for(&mut world, "k", LEASE + KEPT).await;
    world.end().await;
}

#[tokio::test]
async fn a_completed_claim_is_known_for_its_retention_from_then() {
    let mut world = World::start().await;
    world.ask(kept(claim("k", "a"))).await.expect_grant(FIRST);
    world.pass(HOUR);
    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(KEPT);
    assert_known_for(&mut world, "k", KEPT).await;

    for (key, retention) in [("longer", 2 * KEPT), ("shorter", KEPT / 2)] {
        world.ask(kept(claim(key, "a"))).await.expect_grant(FIRST);
        let completion = CompleteRequest {
            retention: lasting(retention),
            ..complete(key, "a", b"done")
        };
        world.ask(completion).await.expect_completed(retention);
        assert_known_for(&mut world, key, retention).await;
    }
    world.end().await;
}

#[tokio::test]
async fn a_claim_given_up_is_known_for_its_retention_from_then() {
    let mut world = World::start().await;
    for effect in [AbandonEffect::None, AbandonEffect::Unknown] {
        let key = effect.as_str_name();
        let request = ClaimRequest {
            lease: lasting(HOUR),
            ..kept(claim(key, "a"))
        };
        world.ask(request).await.expect_grant(Grant {
            lease: HOUR,
            ..FIRST
        });
        assert_eq!(
            world.ask(abandon(key, "a", effect)).await,
            Answer::Abandoned
        );
        assert_known_for(&mut world, key, KEPT).await;
    }
    world.end().await;
}

#[tokio::test]
async fn an_uncertain_claim_is_known_for_the_servers_largest_retention_after_the_lease() {
    let mut world = World::start().await;
    world
        .ask(kept(strict_claim("in flight", "a")))
        .await
        .expect_grant(FIRST);
    assert_known_for(&mut world, "in flight", LEASE + LARGEST_RETENTION).await;

    world
        .ask(kept(strict_claim("given up", "a")))
        .await
        .expect_grant(FIRST);
    assert_eq!(
        world
            .ask(abandon("given up", "a", AbandonEffect::Unknown))
            .await,
        Answer::Abandoned
    );
    world.pass(LARGEST_RETENTION - HOUR);
    world
        .ask(claim("given up", "b"))
        .await
        .expect_uncertain(1, "holder a", b"");
    assert_known_for(&mut world, "given up", HOUR).await;
    world.end().await;
}

#[tokio::test]
async fn a_claim_made_strict_later_is_known_for_as_long_as_one_that_was_strict_at_once() {
    let mut world = World::start().await;
    world.ask(kept(claim("k", "a"))).await.expect_grant(FIRST);
    world
        .ask(kept(strict_claim("k", "b")))
        .await
        .expect_in_flight(1, "holder a", LEASE);
    assert_known_for(&mut world, "k", LEASE + LARGEST_RETENTION).await;
    world.end().await;
}

#[tokio::test]
async fn a_strict_claim_that_was_settled_is_known_for_its_own_retention() {
    let mut world = World::start().await;
    world
        .ask(kept(strict_claim("completed", "a")))
        .await
        .expect_grant(FIRST);
    world
        .ask(complete("completed", "a", b"done"))
        .await
        .expect_completed(KEPT);
    assert_known_for(&mut world, "completed", KEPT).await;

    world
        .ask(kept(strict_claim("abandoned", "a")))
        .await
        .expect_grant(FIRST);
    assert_eq!(
        world
            .ask(abandon("abandoned", "a", AbandonEffect::None))
            .await,
        Answer::Abandoned
    );
    assert_known_for(&mut world, "abandoned", KEPT).await;
    world.end().await;
}

#[tokio::test]
async fn an_abandoned_strict_claim_stays_known_where_an_earlier_effect_is_unknown() {
    let mut world = World::start().await;
    world.ask(kept(claim("k", "a"))).await.expect_grant(FIRST);
    world.pass(LEASE);
    let taken = Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    };
    world.ask(kept(claim("k", "b"))).await.expect_grant(taken);
    world
        .ask(strict_claim("k", "c"))
        .await
        .expect_in_flight(2, "holder b", LEASE);
    assert_eq!(
        world.ask(abandon("k", "b", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    assert_known_for(&mut world, "k", LARGEST_RETENTION).await;
    world.end().await;
}

#[tokio::test]
async fn the_last_holder_of_an_expired_claim_in_flight_is_as_unknown_as_anybody() {
    let mut world = World::start().await;
    let keys = ["claim", "renew", "complete", "abandon"];
    let mut fences = vec![];
    for key in keys {
        fences.push(
            world
                .ask(short(claim(key, "a")))
                .await
                .expect_grant(FIRST)
                .fencing_token,
        );
    }
    world.pass(LEASE + SHORT);
    // It is judged by its times: Redis has not removed it.
    assert_eq!(world.redis.strings().await.len(), keys.len());
    let again = world.ask(claim("claim", "a")).await.expect_grant(FIRST);
    assert!(again.fencing_token > fences[0]);
    let lost = Answer::Lost(LossReason::NotFound);
    assert_eq!(world.ask(renew_claim("renew", "a")).await, lost);
    assert_eq!(world.ask(complete("complete", "a", b"done")).await, lost);
    assert_eq!(
        world
            .ask(abandon("abandon", "a", AbandonEffect::Unknown))
            .await,
        Answer::Abandoned
    );
    assert_eq!(
        world.ask(claim("abandon", "a")).await,
        Answer::Lost(LossReason::Released)
    );

    // Once somebody else was granted the key, it is told so.
    world.ask(claim("renew", "b")).await.expect_grant(FIRST);
    let lost = Answer::Lost(LossReason::TakenOver);
    assert_eq!(world.ask(claim("renew", "a")).await, lost);
    assert_eq!(world.ask(renew_claim("renew", "a")).await, lost);
    assert_eq!(world.ask(complete("renew", "a", b"done")).await, lost);
    assert_eq!(
        world.ask(abandon("renew", "a", AbandonEffect::None)).await,
        lost
    );
    world.end().await;
}

#[tokio::test]
async fn an_expired_record_leaves_nothing_to_the_next_claim() {
    let mut world = World::start().await;
    world.ask(short(strict_claim("k", "a"))).await;
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    world.ask(short(claim("k", "b"))).await.expect_grant(Grant {
        attempt: 2,
        ..FIRST
    });
    world.ask(save("k", "b", b"half", 5)).await;
    world.pass(LEASE);
    let taken = Grant {
        attempt: 3,
        taken_over: true,
        checkpoint: b"half",
        ..FIRST
    };
    world.ask(short(claim("k", "c"))).await.expect_grant(taken);
    world.pass(LEASE + SHORT);

    let next = ClaimRequest {
        retention: lasting(SECOND),
        ..claim("k", "d")
    };
    let fence = world.ask(next).await.expect_grant(FIRST).fencing_token;
    world
        .ask(save("k", "d", b"by d", 1))
        .await
        .expect_renewed(fence, LEASE);
    let held = Grant {
        already_held: true,
        checkpoint: b"by d",
        ..FIRST
    };
    world.ask(claim("k", "d")).await.expect_grant(held);
    world
        .ask(complete("k", "d", b"done"))
        .await
        .expect_completed(SECOND);
    world.end().await;
}

#[tokio::test]
async fn whoever_completed_an_expired_record_is_still_told_so_and_others_find_nothing() {
    let mut world = World::start().await;
    world.ask(short(claim("k", "a"))).await.expect_grant(FIRST);
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::Unknown)).await,
        Answer::Abandoned
    );
    let grant = Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    };
    world.ask(short(claim("k", "b"))).await.expect_grant(grant);
    world
        .ask(complete("k", "b", b"done"))
        .await
        .expect_completed(SHORT);
    let stored = response(b"done");
    let replay = world
        .ask(claim("k", "b"))
        .await
        .expect_replay(Some(&stored), 2, SHORT);
    world.pass(SHORT);

    let after = world
        .ask(claim("k", "b"))
        .await
        .expect_replay(None, 2, Duration::ZERO);
    assert_eq!(after.completed_at, replay.completed_at);
    assert_eq!(
        world.ask(complete("k", "b", b"done")).await,
        Answer::Completed(0)
    );
    let lost = Answer::Lost(LossReason::Completed);
    assert_eq!(world.ask(complete("k", "b", b"other")).await, lost);
    assert_eq!(world.ask(renew_claim("k", "b")).await, lost);
    assert_eq!(
        world.ask(abandon("k", "b", AbandonEffect::None)).await,
        lost
    );

    assert_eq!(world.look("k").await, None);
    assert_eq!(
        world.ask(renew_claim("k", "c")).await,
        Answer::Lost(LossReason::NotFound)
    );
    assert_eq!(
        world.ask(complete("k", "c", b"done")).await,
        Answer::Lost(LossReason::NotFound)
    );
    assert_eq!(
        world.ask(abandon("k", "d", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    world
        .ask(claim_with_body("k", "c", b"another"))
        .await
        .expect_grant(FIRST);
    world.end().await;
}

#[tokio::test]
async fn whoever_gave_up_an_expired_record_is_still_told_so() {
    let mut world = World::start().await;
    for effect in [AbandonEffect::None, AbandonEffect::Unknown] {
        let key = effect.as_str_name();
        world.ask(short(claim(key, "a"))).await.expect_grant(FIRST);
        assert_eq!(
            world.ask(abandon(key, "a", effect)).await,
            Answer::Abandoned
        );
        world.pass(SHORT);
        assert_eq!(world.look(key).await, None);
        let lost = Answer::Lost(LossReason::Released);
        // Before and after somebody claimed it anew.
        for attempt in [None, Some("b")] {
            if let Some(name) = attempt {
                world.ask(claim(key, name)).await.expect_grant(FIRST);
            }
            assert_eq!(world.ask(claim(key, "a")).await, lost);
            assert_eq!(world.ask(renew_claim(key, "a")).await, lost);
            assert_eq!(world.ask(complete(key, "a", b"done")).await, lost);
            assert_eq!(
                world.ask(abandon(key, "a", effect)).await,
                Answer::Abandoned
            );
        }
    }
    world.end().await;
}

#[tokio::test]
async fn ten_minutes_after_the_end_of_an_expired_record_nothing_of_it_is_left() {
    let mut world = World::start().await;
    for key in ["in flight", "completed", "given up", "abandoned"] {
        world.ask(short(claim(key, "a"))).await.expect_grant(FIRST);
    }
    world
        .ask(complete("completed", "a", b"done"))
        .await
        .expect_completed(SHORT);
    assert_eq!(
        world
            .ask(abandon("given up", "a", AbandonEffect::Unknown))
            .await,
        Answer::Abandoned
    );
    assert_eq!(
        world
            .ask(abandon("abandoned", "a", AbandonEffect::None))
            .await,
        Answer::Abandoned
    );
    world.pass(LEASE + MEMORY - MINUTE);
    assert_eq!(world.redis.strings().await.len(), 4);
    assert_eq!(
        world.ask(complete("completed", "a", b"done")).await,
        Answer::Completed(0)
    );
    world.pass(MINUTE);
    assert!(world.redis.strings().await.is_empty());
    for key in ["in flight", "completed", "given up", "abandoned"] {
        world.ask(claim(key, "a")).await.expect_grant(FIRST);
    }
    world.end().await;
}

#[tokio::test]
async fn memory_and_largest_retention_are_settings() {
    let mut world = World::with(Settings {
        memory: MINUTE,
        max_retention: HOUR,
        ..Settings::default()
    })
    .await;
    // A retention that is not named is cut to the largest.
    let strict = ClaimRequest {
        retention: lasting(MINUTE),
        ..strict_claim("k", "a")
    };
    world.ask(strict).await.expect_grant(FIRST);
    world.ask(claim("plain", "a")).await.expect_grant(FIRST);
    for key in ["k", "plain"] {
        let seen = world.look(key).await.expect("a claim");
        is_about(told_millis(seen.retention_left), LEASE + HOUR);
    }
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    assert_eq!(
        world.ask(claim("k", "a")).await,
        Answer::Lost(LossReason::Released)
    );
    world.pass(MINUTE);
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.end().await;
}

#[tokio::test]
async fn an_operator_sees_the_state_that_the_times_say() {
    let mut world = World::start().await;
    world
        .ask(kept(claim("plain", "a")))
        .await
        .expect_grant(FIRST);
    world
        .ask(kept(strict_claim("strict", "a")))
        .await
        .expect_grant(FIRST);
    let state = async |world: &World, key: &str| world.look(key).await.expect("a claim").state();
    for key in ["plain", "strict"] {
        assert_eq!(state(&world, key).await, ClaimState::InFlight);
    }
    world.pass(LEASE);
    assert_eq!(state(&world, "plain").await, ClaimState::LeaseOver);
    assert_eq!(state(&world, "strict").await, ClaimState::Uncertain);
    for key in ["plain", "strict"] {
        assert_eq!(
            world.ask(abandon(key, "a", AbandonEffect::Unknown)).await,
            Answer::Abandoned
        );
    }
    assert_eq!(state(&world, "plain").await, ClaimState::LeaseOver);
    assert_eq!(state(&world, "strict").await, ClaimState::Uncertain);
    world
        .ask(complete("strict", "a", b"done"))
        .await
        .expect_completed(KEPT);
    assert_eq!(state(&world, "strict").await, ClaimState::Completed);
    let taken = Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    };
    world
        .ask(kept(claim("plain", "b")))
        .await
        .expect_grant(taken);
    assert_eq!(state(&world, "plain").await, ClaimState::InFlight);
    assert_eq!(
        world.ask(abandon("plain", "b", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    assert_eq!(state(&world, "plain").await, ClaimState::Abandoned);
    world.pass(KEPT);
    assert_eq!(world.look("plain").await, None);
    assert_eq!(world.look("strict").await, None);
    world.end().await;
}
