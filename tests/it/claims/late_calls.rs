//! Calls that come late: a holder that woke up after a takeover, and duplicates that the network held up until the claim
//! was settled. They change nothing and are told so.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::{
    AbandonEffect, AbandonRequest, ClaimRequest, CompleteRequest, LossReason,
};

/// Every call that the holder of a claim can make, but Complete.
async fn duplicates(world: &World, name: &str) -> [Answer; 5] {
    let kept = AbandonRequest {
        keep_checkpoint: true,
        ..abandon("k", name, AbandonEffect::None)
    };
    [
        world.ask(claim("k", name)).await,
        world.ask(renew_claim("k", name)).await,
        world.ask(save("k", name, b"late", 0)).await,
        world.ask(kept).await,
        world.ask(abandon("k", name, AbandonEffect::Unknown)).await,
    ]
}

#[tokio::test]
async fn a_late_holder_changes_nothing_after_a_takeover() {
    let mut world = World::start().await;
    let first = world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.pass(LEASE);
    let taken = Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    };
    let second = world.ask(claim("k", "b")).await.expect_grant(taken);
    world
        .ask(save("k", "b", b"half", 1))
        .await
        .expect_renewed(second.fencing_token, LEASE);
    let with_receipt = CompleteRequest {
        receipt: first.receipt,
        ..complete("k", "a", b"late")
    };

    let before = world.redis.server.dump().await;
    let lost = Answer::Lost(LossReason::TakenOver);
    for answer in duplicates(&world, "a").await {
        assert_eq!(answer, lost);
    }
    assert_eq!(world.ask(complete("k", "a", b"late")).await, lost);
    assert_eq!(world.ask(with_receipt.clone()).await, lost);
    assert_eq!(world.redis.server.dump().await, before);

    // Whoever took over goes on undisturbed.
    let again = Grant {
        already_held: true,
        checkpoint: b"half",
        ..taken
    };
    let again = world.ask(claim("k", "b")).await.expect_grant(again);
    assert_eq!(again.fencing_token, second.fencing_token);
    world
        .ask(complete("k", "b", b"done"))
        .await
        .expect_completed(RETENTION);

    let before = world.redis.server.dump().await;
    let lost = Answer::Lost(LossReason::Completed);
    let [claimed, rest @ ..] = duplicates(&world, "a").await;
    claimed.expect_replay(Some(&response(b"done")), 2, RETENTION);
    for answer in rest {
        assert_eq!(answer, lost);
    }
    assert_eq!(world.ask(complete("k", "a", b"late")).await, lost);
    assert_eq!(world.ask(with_receipt).await, lost);
    assert_eq!(world.redis.server.dump().await, before);
    world.end().await;
}

#[tokio::test]
async fn duplicates_after_an_abandon_change_nothing() {
    let world = World::start().await;
    let first = world.ask(claim("k", "a")).await.expect_grant(FIRST);
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    let with_receipt = CompleteRequest {
        receipt: first.receipt,
        ..complete("k", "a", b"late")
    };
    for (holder, answer) in [
        (
            None,
            Grant {
                attempt: 2,
                ..FIRST
            },
        ),
        (
            Some("b"),
            Grant {
                attempt: 3,
                ..FIRST
            },
        ),
    ] {
        if let Some(holder) = holder {
            assert_eq!(
                world.ask(abandon("k", holder, AbandonEffect::None)).await,
                Answer::Abandoned
            );
        }
        // While nobody holds it, and while somebody else does.
        for held in [false, true] {
            let before = world.redis.server.dump().await;
            let released = Answer::Lost(LossReason::Released);
            let [claimed, renewed, saved, kept, unknown] = duplicates(&world, "a").await;
            assert_eq!(
                [claimed, renewed, saved],
                [const { Answer::Lost(LossReason::Released) }; 3]
            );
            assert_eq!([kept, unknown], [Answer::Abandoned, Answer::Abandoned]);
            assert_eq!(world.ask(complete("k", "a", b"late")).await, released);
            assert_eq!(world.ask(with_receipt.clone()).await, released);
            assert_eq!(world.redis.server.dump().await, before);
            if !held {
                let next = if holder.is_none() { "b" } else { "c" };
                world.ask(claim("k", next)).await.expect_grant(answer);
            }
        }
    }
    world.end().await;
}

#[tokio::test]
async fn duplicates_after_giving_up_with_effect_unknown_change_nothing() {
    let world = World::start().await;
    for key_is_taken_over in [false, true] {
        if key_is_taken_over {
            world.ask(claim("k", "b")).await.expect_grant(Grant {
                attempt: 2,
                taken_over: true,
                ..FIRST
            });
        } else {
            world.ask(claim("k", "a")).await.expect_grant(FIRST);
            assert_eq!(
                world.ask(abandon("k", "a", AbandonEffect::Unknown)).await,
                Answer::Abandoned
            );
        }
        let before = world.redis.server.dump().await;
        let [claimed, renewed, saved, kept, unknown] = duplicates(&world, "a").await;
        assert_eq!(
            [claimed, renewed, saved],
            [const { Answer::Lost(LossReason::Released) }; 3]
        );
        assert_eq!([kept, unknown], [Answer::Abandoned, Answer::Abandoned]);
        assert_eq!(world.redis.server.dump().await, before);
    }
    // Only a Complete would still have been its holder's to make, before somebody took over.
    assert_eq!(
        world.ask(complete("k", "a", b"late")).await,
        Answer::Lost(LossReason::Released)
    );
    world.end().await;
}

#[tokio::test]
async fn duplicates_after_completion_change_nothing() {
    let world = World::start().await;
    let first = world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    let with_receipt = CompleteRequest {
        receipt: first.receipt,
        ..complete("k", "a", b"done")
    };

    let before = world.redis.server.dump().await;
    let [claimed, rest @ ..] = duplicates(&world, "a").await;
    claimed.expect_replay(Some(&response(b"done")), 1, RETENTION);
    for answer in rest {
        assert_eq!(answer, Answer::Lost(LossReason::Completed));
    }
    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    world.ask(with_receipt).await.expect_completed(RETENTION);
    assert_eq!(world.redis.server.dump().await, before);
    world.end().await;
}

#[tokio::test]
async fn a_late_renewal_or_claim_with_a_longer_lease_cannot_prolong_what_has_ended() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.pass(LEASE);
    let taken = Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    };
    world.ask(claim("k", "b")).await.expect_grant(taken);
    let mut renewal = renew_claim("k", "a");
    renewal.lease = lasting(HOUR);
    assert_eq!(
        world.ask(renewal).await,
        Answer::Lost(LossReason::TakenOver)
    );
    let request = ClaimRequest {
        lease: lasting(HOUR),
        ..claim("k", "a")
    };
    assert_eq!(
        world.ask(request).await,
        Answer::Lost(LossReason::TakenOver)
    );
    world
        .ask(claim("k", "c"))
        .await
        .expect_in_flight(2, "holder b", LEASE);
    world.pass(LEASE);
    world.ask(claim("k", "c")).await.expect_grant(Grant {
        attempt: 3,
        ..taken
    });
    world.end().await;
}
