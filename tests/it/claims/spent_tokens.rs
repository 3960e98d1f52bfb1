//! Tokens that are spent: what each call with one is told, whatever became of the key, and how many are remembered.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::{AbandonEffect, ClaimRequest, CompleteRequest, Forget, LossReason};

const SPENT: [(&str, LossReason); 4] = [
    ("abandoned", LossReason::Released),
    ("taken-over", LossReason::TakenOver),
    ("given-up", LossReason::Released),
    ("forced", LossReason::Forced),
];

/// A key that nobody holds, with the four tokens of [`SPENT`].
async fn spend_tokens(world: &mut World, key: &str) {
    world.ask(claim(key, "abandoned")).await.expect_grant(FIRST);
    assert_eq!(
        world
            .ask(abandon(key, "abandoned", AbandonEffect::None))
            .await,
        Answer::Abandoned
    );
    world
        .ask(claim(key, "taken-over"))
        .await
        .expect_grant(Grant {
            attempt: 2,
            ..FIRST
        });
    world.pass(LEASE);
    let taken_over = Grant {
        taken_over: true,
        ..FIRST
    };
    world.ask(claim(key, "given-up")).await.expect_grant(Grant {
        attempt: 3,
        ..taken_over
    });
    assert_eq!(
        world
            .ask(abandon(key, "given-up", AbandonEffect::Unknown))
            .await,
        Answer::Abandoned
    );
    let last = world.ask(claim(key, "forced")).await.expect_grant(Grant {
        attempt: 4,
        ..taken_over
    });
    world.pass(LEASE);
    let resolved = world
        .resolve(key, last.fencing_token, Resolution::Forget(Forget {}))
        .await;
    assert!(resolved.resolved, "{resolved:?}");
}

/// Every spent token is told why it is spent, by every call, and changes nothing.
async fn assert_spent(world: &World, key: &str, state: &str) {
    let before = world.redis.server.dump().await;
    for (name, reason) in SPENT {
        let lost = Answer::Lost(reason);
        assert_eq!(
            world.ask(claim(key, name)).await,
            lost,
            "Claim, {name}, {state}"
        );
        assert_eq!(
            world.ask(renew_claim(key, name)).await,
            lost,
            "RenewClaim, {name}, {state}"
        );
        assert_eq!(
            world.ask(complete(key, name, b"late")).await,
            lost,
            "Complete, {name}, {state}"
        );
        let abandoned = match reason {
            LossReason::Released => Answer::Abandoned,
            _ => lost,
        };
        for effect in [AbandonEffect::None, AbandonEffect::Unknown] {
            assert_eq!(
                world.ask(abandon(key, name, effect)).await,
                abandoned,
                "Abandon, {name}, {state}"
            );
        }
    }
    assert_eq!(world.redis.server.dump().await, before, "{state}");
}

#[tokio::test]
async fn a_spent_token_is_told_why_in_every_state_and_changes_nothing() {
    let mut world = World::start().await;
    for key in ["plain", "strict"] {
        spend_tokens(&mut world, key).await;
        assert_spent(&world, key, "absent").await;
        let claim = |name: &str| match key {
            "plain" => claim(key, name),
            _ => strict_claim(key, name),
        };

        world.ask(claim("a")).await.expect_grant(FIRST);
        assert_spent(&world, key, "in flight").await;
        world.pass(LEASE);
        assert_spent(&world, key, "lease over").await;
        assert_eq!(
            world.ask(abandon(key, "a", AbandonEffect::Unknown)).await,
            Answer::Abandoned
        );
        assert_spent(&world, key, "given up").await;
        if key == "strict" {
            continue;
        }
        let grant = Grant {
            attempt: 2,
            taken_over: true,
            ..FIRST
        };
        world.ask(claim("b")).await.expect_grant(grant);
        assert_eq!(
            world.ask(abandon(key, "b", AbandonEffect::None)).await,
            Answer::Abandoned
        );
        assert_spent(&world, key, "abandoned").await;
    }
    world.end().await;
}

#[tokio::test]
async fn a_spent_token_gets_the_replay_once_the_key_is_completed() {
    let mut world = World::start().await;
    spend_tokens(&mut world, "k").await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    let before = world.redis.server.dump().await;
    for (name, reason) in SPENT {
        world
            .ask(claim("k", name))
            .await
            .expect_replay(Some(&response(b"done")), 1, RETENTION);
        let lost = Answer::Lost(LossReason::Completed);
        assert_eq!(world.ask(renew_claim("k", name)).await, lost, "{name}");
        // Not even with the same response: it was not this token that completed the key.
        assert_eq!(
            world.ask(complete("k", name, b"done")).await,
            lost,
            "{name}"
        );
        let abandoned = match reason {
            LossReason::Released => Answer::Abandoned,
            _ => lost,
        };
        assert_eq!(
            world.ask(abandon("k", name, AbandonEffect::None)).await,
            abandoned,
            "{name}"
        );
    }
    assert_eq!(world.redis.server.dump().await, before);
    world.end().await;
}

#[tokio::test]
async fn a_token_is_forgotten_ten_minutes_after_its_grant_ended() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    world.pass(MEMORY - MINUTE);
    assert_eq!(
        world.ask(claim("k", "a")).await,
        Answer::Lost(LossReason::Released)
    );
    world.pass(MINUTE);
    assert_eq!(
        world.ask(renew_claim("k", "a")).await,
        Answer::Lost(LossReason::NotFound)
    );
    assert_eq!(
        world.ask(complete("k", "a", b"done")).await,
        Answer::Lost(LossReason::NotFound)
    );
    world.ask(claim("k", "a")).await.expect_grant(Grant {
        attempt: 2,
        ..FIRST
    });

    // Taken over: it counts from the takeover, however long before that the lease ended.
    world.pass(HOUR);
    let grant = Grant {
        attempt: 3,
        taken_over: true,
        ..FIRST
    };
    let lease = HOUR;
    let next = ClaimRequest {
        lease: lasting(lease),
        ..claim("k", "b")
    };
    world.ask(next).await.expect_grant(Grant { lease, ..grant });
    world.pass(MEMORY - MINUTE);
    assert_eq!(
        world.ask(claim("k", "a")).await,
        Answer::Lost(LossReason::TakenOver)
    );
    world.pass(MINUTE);
    world
        .ask(claim("k", "a"))
        .await
        .expect_in_flight(3, "holder b", lease - MEMORY);
    world.end().await;
}

#[tokio::test]
async fn the_last_sixteen_tokens_that_held_a_key_are_remembered_and_no_give_up_pushes_one_out() {
    let world = World::start().await;
    let name = |i: usize| format!("holder-{i}");
    for i in 0..17 {
        let attempt = i64::try_from(i).expect("a small number") + 1;
        world
            .ask(claim("k", &name(i)))
            .await
            .expect_grant(Grant { attempt, ..FIRST });
        assert_eq!(
            world.ask(abandon("k", &name(i), AbandonEffect::None)).await,
            Answer::Abandoned
        );
    }
    for i in 0..40 {
        let unseen = format!("unseen-{i}");
        assert_eq!(
            world.ask(abandon("k", &unseen, AbandonEffect::None)).await,
            Answer::Abandoned
        );
    }
    for i in 1..17 {
        assert_eq!(
            world.ask(claim("k", &name(i))).await,
            Answer::Lost(LossReason::Released),
            "{i}"
        );
    }
    // Of those that never held it, the newest sixteen are remembered too.
    for i in 24..40 {
        let unseen = format!("unseen-{i}");
        assert_eq!(
            world.ask(claim("k", &unseen)).await,
            Answer::Lost(LossReason::Released),
            "{i}"
        );
    }
    world.ask(claim("k", &name(0))).await.expect_grant(Grant {
        attempt: 18,
        ..FIRST
    });
    world
        .ask(claim("k", "unseen-23"))
        .await
        .expect_in_flight(18, "holder holder-0", LEASE);
    world.end().await;
}

#[tokio::test]
async fn no_give_up_pushes_out_the_last_holder_of_an_earlier_record() {
    let mut world = World::start().await;
    let forced = world.ask(claim("forced", "a")).await.expect_grant(FIRST);
    let keys = [
        ("forced", LossReason::Forced),
        ("in flight", LossReason::TakenOver),
        ("completed", LossReason::Completed),
        ("given up", LossReason::Released),
    ];
    for (key, _) in &keys[1..] {
        let request = ClaimRequest {
            retention: lasting(SECOND),
            ..claim(key, "a")
        };
        world.ask(request).await.expect_grant(FIRST);
    }
    world
        .ask(complete("completed", "a", b"done"))
        .await
        .expect_completed(SECOND);
    assert_eq!(
        world
            .ask(abandon("given up", "a", AbandonEffect::Unknown))
            .await,
        Answer::Abandoned
    );
    world.pass(LEASE + SECOND);
    let forget = Resolution::Forget(Forget {});
    let resolved = world.resolve("forced", forced.fencing_token, forget).await;
    assert!(resolved.resolved, "{resolved:?}");
    for (key, reason) in keys {
        world.ask(claim(key, "b")).await.expect_grant(FIRST);
        for i in 0..16 {
            let unseen = format!("unseen-{i}");
            let lost = Answer::Lost(LossReason::TakenOver);
            assert_eq!(
                world.ask(abandon(key, &unseen, AbandonEffect::None)).await,
                lost
            );
        }
        assert_eq!(world.ask(claim(key, "a")).await, Answer::Lost(reason));
    }
    world.end().await;
}

#[tokio::test]
async fn a_record_does_not_grow_with_its_takeovers() {
    let mut world = World::start().await;
    let mut sizes = vec![];
    for i in 10..70 {
        world.ask(claim("k", &format!("holder-{i}"))).await;
        sizes.extend(world.redis.strings().await.values().map(Vec::len));
        world.pass(LEASE);
    }
    // It is full with the tokens that are remembered; after that numbers alone may take another byte.
    assert!(sizes[59] <= sizes[20] + 16, "{sizes:?}");
    world.end().await;
}

#[tokio::test]
async fn a_token_that_completed_an_earlier_record_is_told_so_after_the_key_was_claimed_anew() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    let completion = CompleteRequest {
        retention: lasting(SECOND),
        ..complete("k", "a", b"done")
    };
    world.ask(completion.clone()).await.expect_completed(SECOND);
    world.pass(SECOND);
    world.ask(claim("k", "b")).await.expect_grant(FIRST);

    let lost = Answer::Lost(LossReason::Completed);
    assert_eq!(world.ask(claim("k", "a")).await, lost);
    assert_eq!(world.ask(renew_claim("k", "a")).await, lost);
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::Unknown)).await,
        lost
    );
    assert_eq!(world.ask(complete("k", "a", b"other")).await, lost);
    assert_eq!(world.ask(completion.clone()).await, Answer::Completed(0));

    world
        .ask(complete("k", "b", b"again"))
        .await
        .expect_completed(RETENTION);
    world
        .ask(claim("k", "a"))
        .await
        .expect_replay(Some(&response(b"again")), 1, RETENTION);
    assert_eq!(world.ask(completion).await, Answer::Completed(0));
    assert_eq!(world.ask(complete("k", "a", b"again")).await, lost);
    world.end().await;
}
