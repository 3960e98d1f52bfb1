//! GetClaim shows every field of a claim in each of its states.

use super::World;
use crate::support::eventually;
use crate::support::requests::{abandon, claim, complete, millis, renew_claim, token, told_millis};
use claimlock::rpc::proto::*;
use prost_types::{Duration, Timestamp};

const LEASE: u64 = 600_000;
const RETENTION: u64 = 3_600_000;
const DAY: u64 = 24 * 3_600_000;
const LARGEST_RETENTION: u64 = 30 * DAY;
/// What a slow machine may take between two calls.
const SLACK: u64 = 20_000;

fn long_claim(key: &str, name: &str) -> ClaimRequest {
    ClaimRequest {
        tenant: "acme".to_owned(),
        scope: "merchant 7".to_owned(),
        lease: millis(LEASE),
        retention: millis(RETENTION),
        ..claim(key, name)
    }
}

fn short_claim(key: &str, name: &str) -> ClaimRequest {
    ClaimRequest {
        lease: millis(50),
        ..long_claim(key, name)
    }
}

/// The named key of a request of any kind.
macro_rules! of_acme {
    ($request:expr) => {{
        let mut request = $request;
        request.tenant = "acme".to_owned();
        request.scope = "merchant 7".to_owned();
        request
    }};
}

impl World {
    async fn see(&mut self, key: &str) -> Option<ClaimInfo> {
        let request = of_acme!(crate::support::calls::get_claim(key));
        let answer = self.clients.admin.get_claim(request).await;
        answer.expect("an answer").into_inner().claim
    }

    async fn see_in(&mut self, key: &str, state: ClaimState) -> ClaimInfo {
        eventually("the claim to be in its state", async || {
            self.see(key).await.filter(|claim| claim.state() == state)
        })
        .await
    }

    /// Microseconds on Redis's clock.
    async fn now(&self) -> i64 {
        let (seconds, micros): (i64, i64) = redis::cmd("TIME")
            .query_async(&mut self.redis.connect().await)
            .await
            .expect("an answer");
        seconds * 1_000_000 + micros
    }
}

fn micros(timestamp: Option<Timestamp>) -> i64 {
    let timestamp = timestamp.expect("a time");
    timestamp.seconds * 1_000_000 + i64::from(timestamp.nanos / 1000)
}

fn is_just_below(told: Option<Duration>, most: u64) {
    let told = told_millis(told);
    assert!((most - SLACK..=most).contains(&told), "{told} ms of {most}");
}

/// Takes out what depends on the moment, once that has been looked at.
fn timeless(claim: ClaimInfo) -> ClaimInfo {
    ClaimInfo {
        claimed_at: None,
        renewed_at: None,
        completed_at: None,
        lease_left: None,
        retention_left: None,
        ..claim
    }
}

/// What every claim here has in common.
fn expected(key: &str, state: ClaimState, fencing_token: i64) -> ClaimInfo {
    ClaimInfo {
        tenant: "acme".to_owned(),
        scope: "merchant 7".to_owned(),
        key: key.to_owned(),
        operation: "POST /v1/charges".to_owned(),
        state: state.into(),
        attempt: 1,
        fencing_token,
        holder: "holder a".to_owned(),
        on_lease_over: LeaseOverPolicy::TakeOver.into(),
        ..ClaimInfo::default()
    }
}

#[tokio::test]
async fn a_key_that_is_not_known_has_no_claim() {
    let mut world = World::start().await;
    assert_eq!(world.see("k").await, None);
    world.claim(long_claim("k", "a")).await;
    let request = crate::support::calls::get_claim("k");
    let answer = world
        .clients
        .admin
        .get_claim(request)
        .await
        .expect("an answer");
    assert_eq!(
        answer.into_inner().claim,
        None,
        "of another tenant and scope"
    );
    world.ends_well().await;
}

#[tokio::test]
async fn a_claim_in_flight_is_shown_with_its_lease_and_checkpoint() {
    let mut world = World::start().await;
    let before = world.now().await;
    let fence = world.claim(long_claim("k", "a")).await.fencing_token;
    let after = world.now().await;
    let seen = world.see("k").await.expect("it is known");
    assert!((before..=after).contains(&micros(seen.claimed_at)));
    assert_eq!(seen.renewed_at, seen.claimed_at);
    assert_eq!(seen.completed_at, None);
    is_just_below(seen.lease_left, LEASE);
    is_just_below(seen.retention_left, LEASE + RETENTION);
    assert_eq!(
        timeless(seen.clone()),
        expected("k", ClaimState::InFlight, fence)
    );

    let renewal = of_acme!(RenewClaimRequest {
        lease: millis(2 * LEASE),
        checkpoint: Some(b"half".as_slice().into()),
        ..renew_claim("k", "a")
    });
    world
        .clients
        .coordination
        .renew_claim(renewal)
        .await
        .expect("renewed");
    let renewed = world.see("k").await.expect("it is known");
    assert_eq!(renewed.claimed_at, seen.claimed_at);
    assert!(micros(renewed.renewed_at) > micros(seen.renewed_at));
    is_just_below(renewed.lease_left, 2 * LEASE);
    is_just_below(renewed.retention_left, 2 * LEASE + RETENTION);
    let with_checkpoint = ClaimInfo {
        checkpoint_bytes: 4,
        ..expected("k", ClaimState::InFlight, fence)
    };
    assert_eq!(timeless(renewed), with_checkpoint);
    world.ends_well().await;
}

#[tokio::test]
async fn a_claim_whose_lease_ended_is_shown_by_its_policy() {
    let mut world = World::start().await;
    let fence = world.claim(short_claim("over", "a")).await.fencing_token;
    let seen = world.see_in("over", ClaimState::LeaseOver).await;
    assert_eq!(told_millis(seen.lease_left), 0);
    is_just_below(seen.retention_left, RETENTION);
    assert_eq!(
        timeless(seen),
        expected("over", ClaimState::LeaseOver, fence)
    );

    let request = ClaimRequest {
        on_lease_over: LeaseOverPolicy::MarkUncertain.into(),
        ..short_claim("uncertain", "a")
    };
    let fence = world.claim(request).await.fencing_token;
    let seen = world.see_in("uncertain", ClaimState::Uncertain).await;
    assert_eq!(told_millis(seen.lease_left), 0);
    is_just_below(seen.retention_left, LARGEST_RETENTION);
    let strict = ClaimInfo {
        on_lease_over: LeaseOverPolicy::MarkUncertain.into(),
        ..expected("uncertain", ClaimState::Uncertain, fence)
    };
    assert_eq!(timeless(seen), strict);
    world.ends_well().await;
}

#[tokio::test]
async fn a_claim_that_was_taken_over_is_shown_as_its_last_attempt() {
    let mut world = World::start().await;
    let first = world.claim(short_claim("k", "a")).await.fencing_token;
    world.see_in("k", ClaimState::LeaseOver).await;
    let second = world.claim(long_claim("k", "b")).await.fencing_token;
    assert!(second > first);
    let seen = world.see("k").await.expect("it is known");
    let taken_over = ClaimInfo {
        attempt: 2,
        holder: "holder b".to_owned(),
        taken_over: true,
        ..expected("k", ClaimState::InFlight, second)
    };
    assert_eq!(timeless(seen), taken_over);
    world.ends_well().await;
}

#[tokio::test]
async fn a_completed_claim_is_shown_with_what_is_stored() {
    let mut world = World::start().await;
    let fence = world.claim(long_claim("k", "a")).await.fencing_token;
    let before = world.now().await;
    let completion = of_acme!(CompleteRequest {
        retention: millis(DAY),
        ..complete("k", "a", b"done")
    });
    world
        .clients
        .coordination
        .complete(completion)
        .await
        .expect("completed");
    let after = world.now().await;
    let seen = world.see("k").await.expect("it is known");
    assert!((before..=after).contains(&micros(seen.completed_at)));
    assert!(micros(seen.claimed_at) < micros(seen.completed_at));
    assert_eq!(seen.lease_left, None);
    is_just_below(seen.retention_left, DAY);
    let completed = ClaimInfo {
        response_status: 201,
        response_bytes: 4,
        ..expected("k", ClaimState::Completed, fence)
    };
    assert_eq!(timeless(seen), completed);

    let fence = world
        .claim(long_claim("no response", "a"))
        .await
        .fencing_token;
    let completion = of_acme!(CompleteRequest {
        response: None,
        ..complete("no response", "a", b"")
    });
    world
        .clients
        .coordination
        .complete(completion)
        .await
        .expect("completed");
    let seen = world.see("no response").await.expect("it is known");
    is_just_below(seen.retention_left, RETENTION);
    assert_eq!(
        timeless(seen),
        expected("no response", ClaimState::Completed, fence)
    );
    world.ends_well().await;
}

#[tokio::test]
async fn a_response_that_ran_out_is_shown_as_gone() {
    let mut world = World::start().await;
    world.claim(long_claim("k", "a")).await;
    let completion = of_acme!(CompleteRequest {
        response_retention: millis(50),
        ..complete("k", "a", b"personal")
    });
    world
        .clients
        .coordination
        .complete(completion)
        .await
        .expect("completed");
    let seen = eventually("the response to run out", async || {
        let seen = world.see("k").await.expect("the key stays known");
        (seen.response_bytes == 0).then_some(seen)
    })
    .await;
    assert_eq!(seen.state(), ClaimState::Completed);
    is_just_below(seen.retention_left, RETENTION);
    world.ends_well().await;
}

#[tokio::test]
async fn a_claim_that_was_given_up_is_shown_with_its_reason() {
    let mut world = World::start().await;
    let cases = [
        (
            "none",
            AbandonEffect::None,
            LeaseOverPolicy::TakeOver,
            ClaimState::Abandoned,
        ),
        (
            "none, strict",
            AbandonEffect::None,
            LeaseOverPolicy::MarkUncertain,
            ClaimState::Abandoned,
        ),
        (
            "unknown",
            AbandonEffect::Unknown,
            LeaseOverPolicy::TakeOver,
            ClaimState::LeaseOver,
        ),
        (
            "unknown, strict",
            AbandonEffect::Unknown,
            LeaseOverPolicy::MarkUncertain,
            ClaimState::Uncertain,
        ),
    ];
    for (key, effect, policy, state) in cases {
        let request = ClaimRequest {
            on_lease_over: policy.into(),
            ..long_claim(key, "a")
        };
        let fence = world.claim(request).await.fencing_token;
        let abandonment = of_acme!(AbandonRequest {
            keep_checkpoint: true,
            reason: "upstream said 503 \u{2014} \"later\"".to_owned(),
            ..abandon(key, "a", effect)
        });
        world
            .clients
            .coordination
            .abandon(abandonment)
            .await
            .expect("abandoned");
        let seen = world.see(key).await.expect("it is known");
        assert_eq!((seen.lease_left, seen.completed_at), (None, None), "{key}");
        let given_up = ClaimInfo {
            on_lease_over: policy.into(),
            abandon_reason: "upstream said 503 \u{2014} \"later\"".to_owned(),
            ..expected(key, state, fence)
        };
        assert_eq!(timeless(seen), given_up, "{key}");
    }
    world.ends_well().await;
}

#[tokio::test]
async fn a_record_that_ran_out_is_shown_no_more() {
    let mut world = World::start().await;
    let request = ClaimRequest {
        lease: millis(10),
        retention: millis(1000),
        ..long_claim("k", "a")
    };
    world.claim(request).await;
    eventually("the record to run out", async || {
        world.see("k").await.is_none().then_some(())
    })
    .await;
    // What is still remembered of it is nobody's to see.
    assert_eq!(world.see("k").await, None);
    world.ends_well().await;
}

#[tokio::test]
async fn looking_at_a_claim_neither_changes_it_nor_tells_its_token() {
    let mut world = World::start().await;
    world.claim(long_claim("k", "a")).await;
    let before = world.redis.dump().await;
    let seen = world.see("k").await.expect("it is known");
    assert!(!format!("{seen:?}").contains(&token("a")));
    assert_eq!(world.redis.dump().await, before);
}
