//! Messages that are malformed get an error each, and the stream goes on.

use super::*;
use crate::support::requests::{millis, proto_duration};
use crate::support::stream::{detach, keep};
use claimlock::rpc::proto::lease_ref::Kind;
use claimlock::rpc::proto::{ClaimRef, KeepAliveRequest, LockRef};
use tonic::Code;

/// What is wrong with each, in the order in which a person would read it.
fn malformed(lock: &LeaseRef, claim: &LeaseRef) -> Vec<(&'static str, KeepAliveRequest)> {
    let of_lock = |change: fn(&mut LockRef)| {
        let mut changed = lock.clone();
        match &mut changed.kind {
            Some(Kind::Lock(lock)) => change(lock),
            other => panic!("{other:?}"),
        }
        keep(&changed)
    };
    let of_claim = |change: fn(&mut ClaimRef)| {
        let mut changed = claim.clone();
        match &mut changed.kind {
            Some(Kind::Claim(claim)) => change(claim),
            other => panic!("{other:?}"),
        }
        keep(&changed)
    };
    let lasting = |lease: &LeaseRef, duration| KeepAliveRequest {
        lease: duration,
        ..keep(lease)
    };
    vec![
        ("lease_ref must name a lease", KeepAliveRequest::default()),
        (
            "lease_ref must name a lock or a claim",
            keep(&LeaseRef::default()),
        ),
        (
            "tenant must be",
            keep(&LeaseRef {
                tenant: "no tenant".to_owned(),
                ..lock.clone()
            }),
        ),
        ("resource must", of_lock(|lock| lock.resource.clear())),
        (
            "resource must",
            of_lock(|lock| lock.resource = "r".repeat(256)),
        ),
        (
            "resource must",
            of_lock(|lock| lock.resource = "r\n".to_owned()),
        ),
        (
            "lock_token must be",
            of_lock(|lock| lock.lock_token.clear()),
        ),
        (
            "lock_token must be",
            of_lock(|lock| lock.lock_token = "brief".to_owned()),
        ),
        ("scope must", of_claim(|claim| claim.scope = "é".to_owned())),
        ("key must", of_claim(|claim| claim.key.clear())),
        (
            "claim_token must be",
            of_claim(|claim| claim.claim_token.clear()),
        ),
        ("lease must be 1 ms to 24 h", lasting(lock, millis(0))),
        (
            "lease must be 1 ms to 24 h",
            lasting(lock, millis(24 * 3_600_000 + 1)),
        ),
        (
            "lease must be 1 ms to 1 h",
            lasting(claim, millis(3_600_001)),
        ),
        (
            "a duration must not be negative",
            lasting(
                lock,
                Some(prost_types::Duration {
                    seconds: -1,
                    nanos: 0,
                }),
            ),
        ),
        (
            "detach must not come with end_on_close",
            KeepAliveRequest {
                end_on_close: true,
                ..detach(lock)
            },
        ),
    ]
}

#[tokio::test]
async fn each_malformed_message_is_told_what_is_wrong_with_it_and_changes_nothing() {
    let world = World::start().await;
    let lock = world.hold_lock("r", "a").await;
    let claim = world.hold_claim(claim_for_long("k", "a"), "a").await;
    let mut stream = world.stream().await;
    let before = world.redis.dump().await;
    for (wrong, request) in malformed(&lock, &claim) {
        let named_again = request
            .lease_ref
            .clone()
            .filter(|lease| *lease == lock || *lease == claim);
        let request_id = stream.send(request).await;
        let answer = stream.next().await;
        assert_eq!(answer.request_id, request_id, "{wrong}");
        assert_eq!(answer.lease_ref, named_again, "{wrong}");
        let error = answer.outcome.expect("an outcome").error();
        assert_eq!(error.code, i32::from(Code::InvalidArgument), "{wrong}");
        assert_eq!(error.reason, "INVALID_FIELD", "{wrong}");
        assert_eq!(error.retry_after, None, "{wrong}");
        assert!(error.message.contains(wrong), "{wrong}: {error:?}");
        assert!(!error.message.contains("no tenant"), "{error:?}");
    }
    for request_id in [0, -1, i64::MIN] {
        let request = KeepAliveRequest {
            request_id,
            ..keep(&lock)
        };
        stream.send_as_it_is(request).await;
        let answer = stream.next().await;
        assert_eq!(answer.request_id, request_id);
        assert_eq!(answer.lease_ref.as_ref(), Some(&lock));
        let error = answer.outcome.expect("an outcome").error();
        assert!(error.message.contains("request_id must be"), "{error:?}");
    }
    assert_eq!(world.redis.dump().await, before);
    stream.ask(keep(&lock)).await.renewed();
    world.finish().await;
}

#[tokio::test]
async fn all_that_is_wrong_with_a_message_is_told_at_once() {
    let world = World::start().await;
    let stream = &mut world.stream().await;
    let request = KeepAliveRequest {
        request_id: -7,
        lease_ref: Some(LeaseRef {
            tenant: "no tenant".to_owned(),
            kind: Some(Kind::Lock(LockRef::default())),
        }),
        ..KeepAliveRequest::default()
    };
    stream.send_as_it_is(request).await;
    let error = stream.next().await.outcome.expect("an outcome").error();
    for wrong in ["request_id", "tenant", "resource", "lock_token"] {
        assert!(error.message.contains(wrong), "{wrong}: {error:?}");
    }
    world.finish().await;
}

#[tokio::test]
async fn the_bounds_of_a_lease_are_those_of_the_calls_that_made_it() {
    let world = World::start().await;
    let lock = world.hold_lock("r", "a").await;
    let claim = world.hold_claim(claim_for_long("k", "a"), "a").await;
    let mut stream = world.stream().await;
    for (lease, most) in [(&lock, 24), (&claim, 1)] {
        for duration in [Duration::from_millis(1), Duration::from_secs(3600 * most)] {
            let request = KeepAliveRequest {
                lease: proto_duration(duration),
                ..keep(lease)
            };
            stream.ask(request).await.renewed();
        }
    }
    world.finish().await;
}
