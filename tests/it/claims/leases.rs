//! Leases, which never get shorter, and the checkpoints that a renewal saves.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::{AbandonEffect, ClaimRequest, LossReason, RenewClaimRequest};
use std::time::Duration;

fn claim_for(lease: Duration, key: &str, name: &str) -> ClaimRequest {
    ClaimRequest {
        lease: lasting(lease),
        ..claim(key, name)
    }
}

fn renew_for(lease: Duration, key: &str, name: &str) -> RenewClaimRequest {
    RenewClaimRequest {
        lease: lasting(lease),
        ..renew_claim(key, name)
    }
}

#[tokio::test]
async fn a_repeat_or_a_renewal_with_a_shorter_lease_leaves_the_longer_one_standing() {
    let mut world = World::start().await;
    let long = Grant {
        lease: HOUR,
        ..FIRST
    };
    let held = Grant {
        already_held: true,
        ..long
    };
    let fence = world
        .ask(claim_for(HOUR, "k", "a"))
        .await
        .expect_grant(long)
        .fencing_token;
    world
        .ask(claim_for(SECOND, "k", "a"))
        .await
        .expect_grant(held);
    world
        .ask(renew_for(SECOND, "k", "a"))
        .await
        .expect_renewed(fence, HOUR);
    world
        .ask(claim("k", "b"))
        .await
        .expect_in_flight(1, "holder a", HOUR);
    world.pass(HOUR - MINUTE);
    world
        .ask(renew_for(SECOND, "k", "a"))
        .await
        .expect_renewed(fence, MINUTE);
    world
        .ask(claim("k", "b"))
        .await
        .expect_in_flight(1, "holder a", MINUTE);
    world.end().await;
}

#[tokio::test]
async fn a_repeat_or_a_renewal_extends_the_lease_from_now() {
    let mut world = World::start().await;
    let fence = world
        .ask(claim("k", "a"))
        .await
        .expect_grant(FIRST)
        .fencing_token;
    let held = Grant {
        already_held: true,
        ..FIRST
    };
    let most = LEASE - 11 * SECOND;
    world.pass(most);
    world.ask(claim("k", "a")).await.expect_grant(held);
    world.pass(most);
    world
        .ask(renew_claim("k", "a"))
        .await
        .expect_renewed(fence, LEASE);
    world.pass(most);
    world
        .ask(renew_for(HOUR, "k", "a"))
        .await
        .expect_renewed(fence, HOUR);
    world
        .ask(claim("k", "b"))
        .await
        .expect_in_flight(1, "holder a", HOUR);
    world.end().await;
}

#[tokio::test]
async fn a_renewal_that_names_no_lease_takes_that_of_the_claim_which_created_the_grant() {
    let mut world = World::start().await;
    let lease = 2 * MINUTE;
    let fence = world
        .ask(claim_for(lease, "k", "a"))
        .await
        .expect_grant(Grant { lease, ..FIRST })
        .fencing_token;
    // Neither a repeat nor a renewal changes it.
    let held = Grant {
        already_held: true,
        lease: HOUR,
        ..FIRST
    };
    world
        .ask(claim_for(HOUR, "k", "a"))
        .await
        .expect_grant(held);
    world
        .ask(renew_for(HOUR, "k", "a"))
        .await
        .expect_renewed(fence, HOUR);
    world.pass(HOUR);
    world
        .ask(renew_claim("k", "a"))
        .await
        .expect_renewed(fence, lease);

    // A takeover brings its own.
    world.pass(lease);
    let taken = Grant {
        attempt: 2,
        taken_over: true,
        lease: 5 * MINUTE,
        ..FIRST
    };
    let fence = world
        .ask(claim_for(5 * MINUTE, "k", "b"))
        .await
        .expect_grant(taken)
        .fencing_token;
    world.pass(4 * MINUTE);
    world
        .ask(renew_claim("k", "b"))
        .await
        .expect_renewed(fence, 5 * MINUTE);
    world.end().await;
}

#[tokio::test]
async fn a_lease_of_a_millisecond_is_over_at_once_and_told_as_what_is_left() {
    let mut world = World::start().await;
    let grant = Grant {
        lease: Duration::from_millis(1),
        ..FIRST
    };
    world
        .ask(claim_for(grant.lease, "k", "a"))
        .await
        .expect_grant(grant);
    world.pass(grant.lease);
    world.ask(claim("k", "b")).await.expect_grant(Grant {
        attempt: 2,
        taken_over: true,
        ..FIRST
    });
    world.end().await;
}

#[tokio::test]
async fn in_flight_tells_when_to_ask_again() {
    let mut world = World::start().await;
    world
        .ask(claim_for(HOUR, "k", "a"))
        .await
        .expect_grant(Grant {
            lease: HOUR,
            ..FIRST
        });
    let in_flight = world
        .ask(claim("k", "b"))
        .await
        .expect_in_flight(1, "holder a", HOUR);
    assert_eq!(told_millis(in_flight.retry_after), 1000);
    // Not past the end of the lease: up to a millisecond later, for it is rounded up where the lease is rounded down.
    world.pass(HOUR - SECOND / 2);
    let answer = world.ask(claim("k", "b")).await;
    if let Answer::InFlight(in_flight) = &answer {
        let (retry_after, lease_left) = (
            told_millis(in_flight.retry_after),
            told_millis(in_flight.lease_left),
        );
        assert!(
            (lease_left..=lease_left + 1).contains(&retry_after),
            "{in_flight:?}"
        );
        assert!(lease_left <= 500, "{in_flight:?}");
    } else {
        // The machine was slower than what was left of the lease.
        answer.expect_grant(Grant {
            attempt: 2,
            taken_over: true,
            ..FIRST
        });
    }
    world.end().await;
}

/// What the claim has saved, as its holder's repeat is told.
async fn assert_checkpoint(world: &World, expected: &[u8]) {
    let held = Grant {
        already_held: true,
        checkpoint: expected,
        ..FIRST
    };
    world.ask(claim("k", "a")).await.expect_grant(held);
}

#[tokio::test]
async fn a_checkpoint_is_replaced_only_by_one_of_a_greater_sequence_or_of_none() {
    let world = World::start().await;
    let fence = world
        .ask(claim("k", "a"))
        .await
        .expect_grant(FIRST)
        .fencing_token;
    for (checkpoint, sequence, expected) in [
        (&b"one"[..], 1, &b"one"[..]),
        (b"again", 1, b"one"),
        (b"five", 5, b"five"),
        (b"late", 4, b"five"),
        (b"again", 5, b"five"),
        (b"six", 6, b"six"),
        // 0 replaces, and leaves the sequence where it was.
        (b"none", 0, b"none"),
        (b"late", 6, b"none"),
        (b"seven", 7, b"seven"),
        (b"", 8, b""),
        (b"none again", 0, b"none again"),
        (b"", 0, b""),
        (&[0, 255, 128, 10], 9, &[0, 255, 128, 10]),
    ] {
        world
            .ask(save("k", "a", checkpoint, sequence))
            .await
            .expect_renewed(fence, LEASE);
        assert_checkpoint(&world, expected).await;
    }
    // A renewal without a checkpoint leaves it, whatever sequence it names.
    let mut renewal = renew_claim("k", "a");
    renewal.checkpoint_sequence = 100;
    world.ask(renewal).await.expect_renewed(fence, LEASE);
    assert_checkpoint(&world, &[0, 255, 128, 10]).await;
    world
        .ask(save("k", "a", b"ten", 10))
        .await
        .expect_renewed(fence, LEASE);
    assert_checkpoint(&world, b"ten").await;
    world.end().await;
}

#[tokio::test]
async fn a_renewal_counts_although_its_checkpoint_is_ignored() {
    let mut world = World::start().await;
    let fence = world
        .ask(claim("k", "a"))
        .await
        .expect_grant(FIRST)
        .fencing_token;
    world
        .ask(save("k", "a", b"two", 2))
        .await
        .expect_renewed(fence, LEASE);
    world.pass(LEASE - SECOND);
    world
        .ask(save("k", "a", b"one", 1))
        .await
        .expect_renewed(fence, LEASE);
    world.pass(LEASE - 11 * SECOND);
    world
        .ask(claim("k", "b"))
        .await
        .expect_in_flight(1, "holder a", 11 * SECOND);
    assert_checkpoint(&world, b"two").await;
    world.end().await;
}

#[tokio::test]
async fn sequences_begin_anew_with_each_grant() {
    let mut world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.ask(save("k", "a", b"by a", 9)).await;
    world.pass(LEASE);
    let taken = Grant {
        attempt: 2,
        taken_over: true,
        checkpoint: b"by a",
        ..FIRST
    };
    let fence = world
        .ask(claim("k", "b"))
        .await
        .expect_grant(taken)
        .fencing_token;
    world
        .ask(save("k", "b", b"by b", 1))
        .await
        .expect_renewed(fence, LEASE);
    assert_eq!(
        world.ask(save("k", "a", b"late", 10)).await,
        Answer::Lost(LossReason::TakenOver)
    );
    assert_eq!(
        world.ask(abandon("k", "b", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    let grant = Grant {
        attempt: 3,
        checkpoint: b"by b",
        ..taken
    };
    let fence = world
        .ask(claim("k", "c"))
        .await
        .expect_grant(grant)
        .fencing_token;
    world
        .ask(save("k", "c", b"by c", 1))
        .await
        .expect_renewed(fence, LEASE);
    let held = Grant {
        already_held: true,
        checkpoint: b"by c",
        ..grant
    };
    world.ask(claim("k", "c")).await.expect_grant(held);
    world.end().await;
}

#[tokio::test]
async fn a_checkpoint_is_gone_once_the_claim_is_completed() {
    let world = World::start().await;
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.ask(save("k", "a", b"half way there", 1)).await;
    assert_eq!(world.redis.keys_with(b"half way there").await.len(), 1);
    let seen = world.look("k").await.expect("a claim");
    assert_eq!(seen.checkpoint_bytes, 14);
    world
        .ask(complete("k", "a", b"done"))
        .await
        .expect_completed(RETENTION);
    assert_eq!(world.redis.keys_with(b"half way there").await.len(), 0);
    world.end().await;
}
