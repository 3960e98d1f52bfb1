//! Receipts: a result can be stored although the record of its claim was lost, for as long as that record would have
//! been known, and unless something else became of the key.

use crate::support::claims::*;
use crate::support::failures::invalid;
use crate::support::requests::*;
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::{
    AbandonEffect, ClaimInfo, ClaimRequest, ClaimState, CompleteRequest, Forget, LeaseOverPolicy,
    LossReason,
};
use prost::bytes::Bytes;

fn complete_with(receipt: &Bytes, key: &str, name: &str, body: &[u8]) -> CompleteRequest {
    CompleteRequest {
        receipt: receipt.clone(),
        ..complete(key, name, body)
    }
}

#[tokio::test]
async fn a_receipt_completes_a_claim_whose_record_was_lost() {
    let mut world = World::start().await;
    world
        .ask(claim_with_body("k", "a", b"body"))
        .await
        .expect_grant(FIRST);
    world.pass(LEASE);
    let request = ClaimRequest {
        retention: lasting(2 * RETENTION),
        ..claim_with_body("k", "b", b"body")
    };
    let claimed = world.ask(request).await.expect_grant(Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    });
    world.redis.lose_everything().await;

    assert_eq!(
        world.ask(complete("k", "b", b"done")).await,
        Answer::Lost(LossReason::NotFound)
    );
    let completion = complete_with(&claimed.receipt, "k", "b", b"done");
    world
        .ask(completion.clone())
        .await
        .expect_completed(2 * RETENTION);

    // It is the record of that grant, and the rules of a completed one hold for it.
    let seen = world.look("k").await.expect("a completed claim");
    assert!(seen.completed_at.is_some(), "{seen:?}");
    is_about(told_millis(seen.retention_left), 2 * RETENTION);
    // A receipt says nothing of operation and holder, and nobody knows when it was claimed.
    let expected = ClaimInfo {
        tenant: "default".to_owned(),
        key: "k".to_owned(),
        state: ClaimState::Completed.into(),
        attempt: 2,
        fencing_token: claimed.fencing_token,
        on_lease_over: LeaseOverPolicy::TakeOver.into(),
        completed_at: seen.completed_at,
        retention_left: seen.retention_left,
        response_status: 201,
        response_bytes: 4,
        ..ClaimInfo::default()
    };
    assert_eq!(seen, expected);
    let request = claim_with_body("k", "c", b"body");
    world
        .ask(request)
        .await
        .expect_replay(Some(&response(b"done")), 2, 2 * RETENTION);
    world
        .ask(claim_with_body("k", "c", b"another"))
        .await
        .expect_mismatch("");
    world.ask(completion).await.expect_completed(2 * RETENTION);
    let other = complete_with(&claimed.receipt, "k", "b", b"other");
    assert_eq!(world.ask(other).await, Answer::Lost(LossReason::Completed));
    world.end().await;
}

#[tokio::test]
async fn a_completion_by_receipt_takes_its_own_retentions() {
    let mut world = World::start().await;
    let claimed = world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.redis.lose_everything().await;
    let completion = CompleteRequest {
        retention: lasting(2 * HOUR),
        response_retention: lasting(HOUR),
        ..complete_with(&claimed.receipt, "k", "a", b"done")
    };
    world.ask(completion).await.expect_completed(2 * HOUR);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(Some(&response(b"done")), 1, 2 * HOUR);
    world.pass(HOUR);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(None, 1, HOUR);
    world.end().await;
}

#[tokio::test]
async fn a_receipt_of_something_else_is_refused_with_or_without_a_record() {
    let world = World::start().await;
    let ids = [
        ("", "", "k"),
        ("other", "", "k"),
        ("", "other", "k"),
        ("", "", "other"),
    ];
    let mut receipts = vec![];
    for (tenant, scope, key) in ids {
        let request = ClaimRequest {
            tenant: tenant.to_owned(),
            scope: scope.to_owned(),
            ..claim(key, "a")
        };
        receipts.push(world.ask(request).await.expect_grant(FIRST).receipt);
    }
    let own = receipts.remove(0);
    let mut foreign: Vec<(&str, Bytes)> =
        receipts.into_iter().map(|receipt| ("a", receipt)).collect();
    foreign.push(("another-token", own.clone()));
    for i in [0, 1, own.len() / 2, own.len() - 1] {
        let mut changed = own.to_vec();
        changed[i] ^= 1;
        foreign.push(("a", changed.into()));
    }
    foreign.push(("a", own.slice(..own.len() - 1)));
    foreign.push(("a", Bytes::from_static(b"not a receipt")));

    for lost in [false, true] {
        if lost {
            world.redis.lose_everything().await;
        }
        let before = world.redis.server.dump().await;
        for (name, receipt) in &foreign {
            let completion = complete_with(receipt, "k", name, b"done");
            assert_eq!(
                world.failure(completion).await,
                invalid("INVALID_FIELD", &["receipt"])
            );
        }
        assert_eq!(world.redis.server.dump().await, before);
    }
    world
        .ask(complete_with(&own, "k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    world.end().await;
}

#[tokio::test]
async fn a_receipt_is_good_until_its_record_would_have_expired() {
    let mut world = World::start().await;
    let mut receipts = vec![];
    for key in ["in time", "too late"] {
        let request = ClaimRequest {
            retention: lasting(HOUR),
            ..claim(key, "a")
        };
        receipts.push(world.ask(request).await.expect_grant(FIRST).receipt);
    }
    world.redis.lose_everything().await;
    world.pass(LEASE + HOUR - MINUTE);
    world
        .ask(complete_with(&receipts[0], "in time", "a", b"done"))
        .await
        .expect_completed(HOUR);
    world.pass(MINUTE);
    let late = complete_with(&receipts[1], "too late", "a", b"done");
    assert_eq!(world.ask(late).await, Answer::Lost(LossReason::NotFound));
    assert_eq!(world.look("too late").await, None);
    world.end().await;
}

#[tokio::test]
async fn the_receipt_of_a_repeat_is_good_for_the_longer_lease() {
    let mut world = World::start().await;
    let request = ClaimRequest {
        retention: lasting(MINUTE),
        ..claim("k", "a")
    };
    let first = world.ask(request.clone()).await.expect_grant(FIRST).receipt;
    let longer = ClaimRequest {
        lease: lasting(HOUR),
        ..request
    };
    let held = Grant {
        already_held: true,
        lease: HOUR,
        ..FIRST
    };
    let second = world.ask(longer).await.expect_grant(held).receipt;
    world.redis.lose_everything().await;
    world.pass(HOUR);
    let outdated = complete_with(&first, "k", "a", b"done");
    assert_eq!(
        world.ask(outdated).await,
        Answer::Lost(LossReason::NotFound)
    );
    world
        .ask(complete_with(&second, "k", "a", b"done"))
        .await
        .expect_completed(MINUTE);
    world.end().await;
}

#[tokio::test]
async fn a_receipt_counts_only_while_nothing_is_known_of_the_key() {
    let world = World::start().await;
    for key in ["claimed", "completed", "given up first"] {
        let receipt = world.ask(claim(key, "a")).await.expect_grant(FIRST).receipt;
        world.redis.lose_everything().await;
        let reason = match key {
            "claimed" => {
                world.ask(claim(key, "b")).await.expect_grant(FIRST);
                LossReason::TakenOver
            }
            "completed" => {
                world.ask(claim(key, "b")).await.expect_grant(FIRST);
                world
                    .ask(complete(key, "b", b"done"))
                    .await
                    .expect_completed(RETENTION);
                LossReason::Completed
            }
            _ => {
                // With a token not seen yet, as far as the store knows now.
                assert_eq!(
                    world.ask(abandon(key, "a", AbandonEffect::None)).await,
                    Answer::Abandoned
                );
                LossReason::Released
            }
        };
        let before = world.redis.server.dump().await;
        assert_eq!(
            world.ask(complete_with(&receipt, key, "a", b"done")).await,
            Answer::Lost(reason),
            "{key}"
        );
        assert_eq!(world.redis.server.dump().await, before);
    }
    world.end().await;
}

#[tokio::test]
async fn with_its_record_there_a_receipt_makes_no_difference() {
    let mut world = World::start().await;
    let receipt = world.ask(claim("k", "a")).await.expect_grant(FIRST).receipt;
    world
        .ask(complete_with(&receipt, "k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    world
        .ask(claim("k", "b"))
        .await
        .expect_replay(Some(&response(b"done")), 1, RETENTION);

    let receipt = world
        .ask(claim("given up", "a"))
        .await
        .expect_grant(FIRST)
        .receipt;
    assert_eq!(
        world
            .ask(abandon("given up", "a", AbandonEffect::None))
            .await,
        Answer::Abandoned
    );
    let completion = complete_with(&receipt, "given up", "a", b"done");
    assert_eq!(
        world.ask(completion.clone()).await,
        Answer::Lost(LossReason::Released)
    );
    // Once the token is forgotten the record still says that somebody gave it up.
    world.pass(MEMORY);
    assert_eq!(
        world.ask(completion).await,
        Answer::Lost(LossReason::NotFound)
    );
    world.end().await;
}

#[tokio::test]
async fn an_operators_forget_beats_a_receipt_for_as_long_as_it_is_good() {
    let mut world = World::start().await;
    let request = ClaimRequest {
        retention: lasting(2 * HOUR),
        ..claim("k", "a")
    };
    let claimed = world.ask(request).await.expect_grant(FIRST);
    world.pass(LEASE);
    let resolved = world
        .resolve("k", claimed.fencing_token, Resolution::Forget(Forget {}))
        .await;
    assert!(resolved.resolved);
    let completion = complete_with(&claimed.receipt, "k", "a", b"done");
    assert_eq!(
        world.ask(completion.clone()).await,
        Answer::Lost(LossReason::Forced)
    );
    // Longer than tokens are remembered otherwise.
    world.pass(2 * HOUR - MINUTE);
    assert_eq!(
        world.ask(completion.clone()).await,
        Answer::Lost(LossReason::Forced)
    );
    world.pass(MINUTE);
    assert_eq!(
        world.ask(completion).await,
        Answer::Lost(LossReason::NotFound)
    );
    world.end().await;
}

#[tokio::test]
async fn an_operators_forget_beats_the_receipt_of_a_claim_that_was_completed_for_less_time() {
    let mut world = World::start().await;
    let request = ClaimRequest {
        retention: lasting(2 * HOUR),
        ..claim("k", "a")
    };
    let first = world.ask(request.clone()).await.expect_grant(FIRST);
    // A takeover's receipts are good until later, but the first holder's count as well.
    world.pass(LEASE);
    let taken = Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    };
    let second = ClaimRequest {
        claim_token: token("b"),
        ..request
    };
    let second = world.ask(second).await.expect_grant(taken);
    let completion = CompleteRequest {
        retention: lasting(MINUTE),
        ..complete("k", "b", b"wrong")
    };
    world.ask(completion).await.expect_completed(MINUTE);
    let forget = Resolution::Forget(Forget {});
    let resolved = world.resolve("k", second.fencing_token, forget).await;
    assert!(resolved.resolved);

    world.pass(2 * HOUR - MINUTE);
    for (name, receipt) in [("a", &first.receipt), ("b", &second.receipt)] {
        let completion = complete_with(receipt, "k", name, b"late");
        let lost = Answer::Lost(LossReason::NotFound);
        assert_eq!(world.ask(completion).await, lost, "{name}");
    }
    assert_eq!(world.look("k").await, None);
    world.end().await;
}
