//! Grants: how they are counted, and that their fencing tokens grow whatever happens to the key.

use crate::support::claims::*;
use crate::support::requests::*;
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::{AbandonEffect, ClaimRequest, Forget};

#[tokio::test]
async fn an_attempt_is_counted_for_as_long_as_the_record_lives() {
    let mut world = World::start().await;
    let taken_over = Grant {
        taken_over: true,
        ..FIRST
    };
    world.ask(claim("k", "a")).await.expect_grant(FIRST);
    world.ask(claim("k", "a")).await.expect_grant(Grant {
        already_held: true,
        ..FIRST
    });
    assert_eq!(
        world.ask(abandon("k", "a", AbandonEffect::None)).await,
        Answer::Abandoned
    );
    world.ask(claim("k", "b")).await.expect_grant(Grant {
        attempt: 2,
        ..FIRST
    });
    assert_eq!(
        world.ask(abandon("k", "b", AbandonEffect::Unknown)).await,
        Answer::Abandoned
    );
    world.ask(claim("k", "c")).await.expect_grant(Grant {
        attempt: 3,
        ..taken_over
    });
    world.pass(LEASE);
    world.ask(claim("k", "d")).await.expect_grant(Grant {
        attempt: 4,
        ..taken_over
    });
    world
        .ask(claim("k", "e"))
        .await
        .expect_in_flight(4, "holder d", LEASE);
    world
        .ask(complete("k", "d", b"done"))
        .await
        .expect_completed(RETENTION);
    world
        .ask(claim("k", "e"))
        .await
        .expect_replay(Some(&response(b"done")), 4, RETENTION);

    // The next record begins anew: neither attempts nor an earlier effect are told of.
    world.pass(RETENTION);
    world.ask(claim("k", "f")).await.expect_grant(FIRST);
    world.end().await;
}

#[tokio::test]
async fn fencing_tokens_grow_over_every_kind_of_grant_and_through_the_loss_of_everything() {
    let mut world = World::start().await;
    let short = |name: &str| ClaimRequest {
        retention: lasting(SECOND),
        ..claim("k", name)
    };
    let mut fences = vec![];
    let mut grant = async |world: &World, request: ClaimRequest| {
        let Answer::Claimed(claimed) = world.ask(request).await else {
            panic!("the key is free");
        };
        fences.push(claimed.fencing_token);
        claimed.fencing_token
    };
    grant(&world, claim("k", "first")).await;
    world.ask(abandon("k", "first", AbandonEffect::None)).await;
    grant(&world, claim("k", "after-an-abandon")).await;
    world
        .ask(abandon("k", "after-an-abandon", AbandonEffect::Unknown))
        .await;
    grant(&world, claim("k", "after-a-give-up")).await;
    world.pass(LEASE);
    let last = grant(&world, claim("k", "after-a-takeover")).await;
    world.pass(LEASE);
    world
        .resolve("k", last, Resolution::Forget(Forget {}))
        .await;
    grant(&world, short("forgotten")).await;
    world.pass(LEASE + SECOND);
    grant(&world, short("expired")).await;
    world.ask(complete("k", "expired", b"done")).await;
    world.pass(RETENTION + MEMORY);
    grant(&world, claim("k", "long-gone")).await;
    world.redis.lose_everything().await;
    grant(&world, claim("k", "after-the-loss")).await;
    world.redis.lose_everything().await;
    grant(&world, claim("k", "after-another-loss")).await;

    assert_eq!(fences.len(), 9);
    assert!(
        fences.windows(2).all(|pair| pair[0] < pair[1]),
        "{fences:?}"
    );
    world.end().await;
}

#[tokio::test]
async fn keys_of_other_tenants_and_scopes_are_other_keys() {
    let world = World::start().await;
    let ids = [
        ("", "", "k"),
        ("other", "", "k"),
        ("", "other", "k"),
        ("", "", "other"),
    ];
    for (tenant, scope, key) in ids {
        let request = ClaimRequest {
            tenant: tenant.to_owned(),
            scope: scope.to_owned(),
            ..claim(key, "a")
        };
        world.ask(request).await.expect_grant(FIRST);
    }
    // And the default tenant has a name.
    let named = ClaimRequest {
        tenant: "default".to_owned(),
        ..claim("k", "b")
    };
    world
        .ask(named)
        .await
        .expect_in_flight(1, "holder a", LEASE);
    world.end().await;
}
