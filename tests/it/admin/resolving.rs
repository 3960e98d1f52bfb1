//! ResolveClaim settles what its operator looked at, and nothing else.

use super::World;
use crate::support::calls::resolve_claim;
use crate::support::eventually;
use crate::support::requests::{abandon, claim, complete, millis, renew_claim, response, token};
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::*;

fn forget(key: &str, fencing_token: i64) -> ResolveClaimRequest {
    ResolveClaimRequest {
        resolution: Some(Resolution::Forget(Forget {})),
        ..resolve_claim(key, fencing_token)
    }
}

fn erase(key: &str, fencing_token: i64) -> ResolveClaimRequest {
    ResolveClaimRequest {
        resolution: Some(Resolution::EraseResponse(EraseResponse {})),
        ..resolve_claim(key, fencing_token)
    }
}

/// Every state in which a claim has no live lease.
const WITHOUT_LEASE: [ClaimState; 4] = [
    ClaimState::LeaseOver,
    ClaimState::Uncertain,
    ClaimState::Completed,
    ClaimState::Abandoned,
];

impl World {
    /// A claim of token `a` in a state, and its grant.
    async fn claim_in(&mut self, key: &str, state: ClaimState) -> Claimed {
        let is_short = matches!(state, ClaimState::LeaseOver | ClaimState::Uncertain);
        let policy = match state {
            ClaimState::Uncertain => LeaseOverPolicy::MarkUncertain,
            _ => LeaseOverPolicy::TakeOver,
        };
        let request = ClaimRequest {
            lease: millis(if is_short { 30 } else { 600_000 }),
            on_lease_over: policy.into(),
            ..claim(key, "a")
        };
        let claimed = self.claim(request).await;
        let client = &mut self.clients.coordination;
        if state == ClaimState::Completed {
            client
                .complete(complete(key, "a", b"first"))
                .await
                .expect("completed");
        }
        if state == ClaimState::Abandoned {
            let request = abandon(key, "a", AbandonEffect::None);
            client.abandon(request).await.expect("abandoned");
        }
        eventually("the claim to be in its state", async || {
            let seen = self.look(key).await.expect("it is known");
            (seen.state() == state).then_some(())
        })
        .await;
        claimed
    }

    async fn claim_again(&mut self, request: ClaimRequest) -> claim_response::Outcome {
        let answer = self.clients.coordination.claim(request).await;
        answer
            .expect("an answer")
            .into_inner()
            .outcome
            .expect("an outcome")
    }

    async fn replayed(&mut self, key: &str, name: &str) -> Option<StoredResponse> {
        match self.claim_again(claim(key, name)).await {
            claim_response::Outcome::Replay(replay) => replay.response,
            other => panic!("not a replay but {other:?}"),
        }
    }

    async fn complete_again(&mut self, request: CompleteRequest) -> complete_response::Outcome {
        let answer = self.clients.coordination.complete(request).await;
        answer
            .expect("an answer")
            .into_inner()
            .outcome
            .expect("an outcome")
    }
}

fn lost(reason: LossReason) -> impl Fn(&complete_response::Outcome) -> bool {
    move |outcome| matches!(outcome, complete_response::Outcome::Lost(lost) if lost.reason() == reason)
}

#[tokio::test]
async fn a_claim_is_completed_in_any_state_without_a_lease_and_replayed_from_then_on() {
    let mut world = World::start().await;
    for state in WITHOUT_LEASE {
        let key = state.as_str_name();
        let claimed = world.claim_in(key, state).await;
        let resolved = world
            .resolve(resolve_claim(key, claimed.fencing_token))
            .await;
        assert!(resolved.resolved, "{key}");
        let seen = resolved.claim.expect("it is known");
        assert_eq!(
            world.look(key).await.map(|c| c.completed_at),
            Some(seen.completed_at)
        );
        let is = (
            seen.state(),
            seen.attempt,
            seen.fencing_token,
            seen.response_bytes,
        );
        assert_eq!(
            is,
            (ClaimState::Completed, 1, claimed.fencing_token, 6),
            "{key}"
        );
        assert!(
            seen.completed_at.is_some() && seen.lease_left.is_none(),
            "{key}"
        );

        for name in ["b", "a"] {
            assert_eq!(
                world.replayed(key, name).await,
                Some(response(b"mended")),
                "{key}"
            );
        }
        let late = CompleteRequest {
            receipt: claimed.receipt,
            ..complete(key, "a", b"first")
        };
        let outcome = world.complete_again(late).await;
        assert!(lost(LossReason::Completed)(&outcome), "{key}: {outcome:?}");
    }
    world.ends_well().await;
}

#[tokio::test]
async fn a_forgotten_claim_is_the_next_ones_with_any_request() {
    let mut world = World::start().await;
    for state in WITHOUT_LEASE {
        let key = state.as_str_name();
        let claimed = world.claim_in(key, state).await;
        let resolved = world.resolve(forget(key, claimed.fencing_token)).await;
        assert!(resolved.resolved, "{key}");
        assert_eq!(
            (resolved.claim, world.look(key).await),
            (None, None),
            "{key}"
        );

        // Not even a receipt brings the former holder's result in.
        let late = CompleteRequest {
            receipt: claimed.receipt,
            ..complete(key, "a", b"first")
        };
        let outcome = world.complete_again(late).await;
        let reason = match state {
            ClaimState::Abandoned => LossReason::Released,
            _ => LossReason::Forced,
        };
        assert!(lost(reason)(&outcome), "{key}: {outcome:?}");

        let another_request = ClaimRequest {
            operation: "POST /v2/other".to_owned(),
            ..claim(key, "b")
        };
        let next = world.claim(another_request).await;
        let is = (next.attempt, next.taken_over, next.already_held);
        assert_eq!(is, (1, false, false), "{key}");
        assert!(next.fencing_token > claimed.fencing_token, "{key}");
    }
    world.ends_well().await;
}

#[tokio::test]
async fn an_erased_response_leaves_the_key_completed() {
    let mut world = World::start().await;
    let claimed = world.claim_in("k", ClaimState::Completed).await;
    let before = world.look("k").await.expect("it is known");
    let resolved = world.resolve(erase("k", claimed.fencing_token)).await;
    assert!(resolved.resolved);
    let after = resolved.claim.expect("it is known");
    let erased = ClaimInfo {
        response_status: 0,
        response_bytes: 0,
        retention_left: after.retention_left,
        ..before
    };
    assert_eq!(after, erased);
    for name in ["b", "a"] {
        assert_eq!(world.replayed("k", name).await, None);
    }
    let outcome = world.complete_again(complete("k", "a", b"first")).await;
    assert!(
        matches!(outcome, complete_response::Outcome::Completed(_)),
        "{outcome:?}"
    );
    assert_eq!(
        world.replayed("k", "c").await,
        None,
        "a repeat brings nothing back"
    );
    // Erasing what is not there any more is no refusal.
    assert!(
        world
            .resolve(erase("k", claimed.fencing_token))
            .await
            .resolved
    );
    world.ends_well().await;
}

/// Every refusal tells the claim as it is, and leaves it.
#[tokio::test]
async fn what_is_not_as_the_operator_saw_it_is_left_alone() {
    let mut world = World::start().await;
    for request in [
        resolve_claim("none", 1),
        forget("none", 1),
        erase("none", 1),
    ] {
        let refused = world.resolve(request).await;
        assert_eq!((refused.resolved, refused.claim), (false, None));
    }

    let live = world
        .claim_in("live", ClaimState::InFlight)
        .await
        .fencing_token;
    let mut refusals = vec![
        resolve_claim("live", live),
        forget("live", live),
        erase("live", live),
    ];
    for state in WITHOUT_LEASE {
        let key = state.as_str_name();
        let fence = world.claim_in(key, state).await.fencing_token;
        for other in [fence - 1, fence + 1, 1, i64::MAX] {
            refusals.extend([
                resolve_claim(key, other),
                forget(key, other),
                erase(key, other),
            ]);
        }
        if state != ClaimState::Completed {
            refusals.push(erase(key, fence));
        }
    }
    let before = world.redis.dump().await;
    for request in refusals {
        let refused = world.resolve(request.clone()).await;
        let seen = world.look(&request.key).await.expect("it is known");
        let told = refused.claim.expect("it is told as it is");
        assert!(!refused.resolved, "{request:?}");
        let same_moment = ClaimInfo {
            lease_left: seen.lease_left,
            retention_left: seen.retention_left,
            ..told
        };
        assert_eq!(same_moment, seen, "{request:?}");
    }
    assert_eq!(world.redis.dump().await, before);
    world.ends_well().await;
}

#[tokio::test]
async fn a_claim_that_went_on_since_it_was_looked_at_is_left_alone() {
    let mut world = World::start().await;
    let looked_at = world
        .claim_in("k", ClaimState::LeaseOver)
        .await
        .fencing_token;
    let taken_over = world.claim(claim("k", "b")).await;
    assert!(taken_over.taken_over);
    assert!(!world.resolve(forget("k", looked_at)).await.resolved);
    assert!(
        !world
            .resolve(forget("k", taken_over.fencing_token))
            .await
            .resolved,
        "it is live"
    );
    let renewal = renew_claim("k", "b");
    let answer = world
        .clients
        .coordination
        .renew_claim(renewal)
        .await
        .expect("an answer");
    let outcome = answer.into_inner().outcome;
    assert!(
        matches!(outcome, Some(renew_claim_response::Outcome::Renewed(_))),
        "{outcome:?}"
    );
    assert_eq!(taken_over.claim_token, token("b"));
    world.ends_well().await;
}

#[tokio::test]
async fn a_completed_claim_is_kept_for_its_own_retention_from_the_resolution_on() {
    let mut world = World::start().await;
    let request = ClaimRequest {
        lease: millis(30),
        retention: millis(7_200_000),
        on_lease_over: LeaseOverPolicy::MarkUncertain.into(),
        ..claim("k", "a")
    };
    let fence = world.claim(request).await.fencing_token;
    eventually("the lease to end", async || {
        let seen = world.look("k").await.expect("it is known");
        (seen.state() == ClaimState::Uncertain).then_some(())
    })
    .await;
    let resolved = world
        .resolve(resolve_claim("k", fence))
        .await
        .claim
        .expect("it is known");
    let left = crate::support::requests::told_millis(resolved.retention_left);
    assert_eq!(left, 7_200_000, "told in the same moment");
    world.ends_well().await;
}
