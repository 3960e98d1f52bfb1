//! What a stream is told unasked.

use super::*;
use crate::support::calls::{force_release, resolve_claim};
use crate::support::metrics::Scrape;
use crate::support::requests::{complete, millis, release};
use crate::support::stream::{detach, keep};
use claimlock::rpc::proto::{LossReason, Lost, resolve_claim_request::Resolution};

/// Waits for the loss of a lease, and says how long that takes from now.
async fn time_until_told(stream: &mut Stream, lease: LeaseRef, reason: LossReason) -> Duration {
    let since = Instant::now();
    assert_eq!(stream.next_lost().await, (lease, reason));
    since.elapsed()
}

#[tokio::test]
async fn a_lock_that_is_taken_away_or_taken_over_is_told_to_be_lost_at_once() {
    let world = World::start().await;
    let mut stream = world.stream().await;
    is_at_once("a lock taken away", async |round| {
        let resource = format!("forced-{round}");
        let forced = world.hold_lock(&resource, "a").await;
        stream.ask(keep(&forced)).await.renewed();
        let mut admin = world.admin.clone();
        let released = admin.force_release_lock(force_release(&resource)).await;
        let released = released.expect("an answer").into_inner();
        assert_eq!(released.released_holders, 1);
        time_until_told(&mut stream, forced, LossReason::Forced).await
    })
    .await;

    is_at_once("a lock taken over", async |round| {
        let resource = format!("over-{round}");
        let brief = AcquireLockRequest {
            lease: millis(300),
            ..acquire(&resource, "a")
        };
        world.acquire(brief).await;
        let over = lock_ref(&resource, "a");
        stream.ask(keep(&over)).await.renewed();
        // Whoever waits has it as soon as the lease ends.
        let waits = AcquireLockRequest {
            wait: millis(20_000),
            ..acquire(&resource, "b")
        };
        world.acquire(waits).await;
        time_until_told(&mut stream, over, LossReason::TakenOver).await
    })
    .await;
    world.finish().await;
}

#[tokio::test]
async fn a_claim_that_is_taken_over_or_resolved_is_told_to_be_lost_at_once() {
    let world = World::start().await;
    let mut stream = world.stream().await;
    let mut client = world.elsewhere.clone();
    let brief = |key: &str, name: &str| ClaimRequest {
        lease: millis(100),
        ..claim(key, name)
    };
    is_at_once("a claim taken over", async |round| {
        let key = format!("taken-{round}");
        let taken = world.hold_claim(brief(&key, "a"), "a").await;
        stream.ask(keep(&taken)).await.renewed();
        world.take_over(&key).await;
        time_until_told(&mut stream, taken, LossReason::TakenOver).await
    })
    .await;

    for (what, how) in [
        ("completed", None),
        ("forgotten", Some(Resolution::Forget(Default::default()))),
    ] {
        is_at_once(what, async |round| {
            let key = format!("{what}-{round}");
            let grant = claimed(client.claim(brief(&key, "a")).await);
            let resolved = claim_ref(&key, "a");
            stream.ask(keep(&resolved)).await.renewed();
            let mut admin = world.admin.clone();
            let mut resolution = resolve_claim(&key, grant.fencing_token);
            if let Some(how) = how.clone() {
                resolution.resolution = Some(how);
            }
            eventually("the claim to be resolved", async || {
                let answer = admin.resolve_claim(resolution.clone()).await;
                answer
                    .expect("an answer")
                    .into_inner()
                    .resolved
                    .then_some(())
            })
            .await;
            time_until_told(&mut stream, resolved, LossReason::Forced).await
        })
        .await;
    }
    world.finish().await;
}

#[tokio::test]
async fn what_a_holder_does_itself_it_is_not_told_of() {
    let world = World::start().await;
    let mut stream = world.stream().await;
    let mut client = world.elsewhere.clone();
    let lock = world.hold_lock("r", "a").await;
    let claim = world.hold_claim(claim_for_long("k", "a"), "a").await;
    let detached = world.hold_lock("detached", "a").await;
    for lease in [&lock, &claim, &detached] {
        stream.ask(keep(lease)).await.renewed();
    }
    stream.ask(detach(&detached)).await.renewed();
    client
        .release_lock(release("r", "a"))
        .await
        .expect("released");
    client
        .complete(complete("k", "a", b"done"))
        .await
        .expect("completed");
    world.acquire(acquire("r", "b")).await;
    let mut admin = world.admin.clone();
    admin
        .force_release_lock(force_release("detached"))
        .await
        .expect("an answer");
    // What is told next is the answer, so nothing was told before.
    let lost = stream.ask(keep(&lock)).await.lost();
    assert_eq!(lost, LossReason::Released);
    let (heard, end) = stream.finish().await;
    assert_eq!((heard, end.is_ok()), (vec![], true));
    world.finish().await;
}

#[tokio::test]
async fn the_stream_that_renewed_a_lease_last_is_told_of_its_loss_and_no_other() {
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let mut first = world.stream().await;
    let mut second = world.stream_elsewhere().await;
    let mut third = world.stream().await;
    for stream in [&mut first, &mut second, &mut third] {
        stream.ask(keep(&lease)).await.renewed();
    }
    second.ask(keep(&lease)).await.renewed();
    let mut admin = world.admin.clone();
    admin
        .force_release_lock(force_release("r"))
        .await
        .expect("an answer");
    assert_eq!(
        second.next_lost().await,
        (lease.clone(), LossReason::Forced)
    );
    for mut stream in [first, third] {
        let lost = stream.ask(keep(&lease)).await.lost();
        assert_eq!(lost, LossReason::Forced);
        let (heard, _) = stream.finish().await;
        assert_eq!(heard, vec![]);
    }
    world.finish().await;
}

#[tokio::test]
async fn a_loss_that_is_told_unasked_is_counted_as_one_that_was_told() {
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let mut stream = world.stream().await;
    stream.ask(keep(&lease)).await.renewed();
    let before = Scrape::of(&world.service).await;
    let mut admin = world.admin.clone();
    admin
        .force_release_lock(force_release("r"))
        .await
        .expect("an answer");
    let told = stream.next().await;
    let after = Scrape::of(&world.service).await;
    let growth = after.growth_since(&before);
    assert_eq!(growth["claimlock_lease_lost_total{reason=\"forced\"}"], 1.0);
    assert_eq!(growth["claimlock_leases{kind=\"lock\"}"], -1.0);
    let Some(claimlock::rpc::proto::keep_alive_response::Outcome::Lost(Lost { detail, .. })) =
        told.outcome
    else {
        panic!("not lost");
    };
    assert!(!detail.is_empty());
    world.finish().await;
}

#[tokio::test]
async fn losses_are_told_again_once_a_broken_subscription_is_back() {
    let world = World::start().await;
    let mut redis = world.redis.connect().await;
    let mut stream = world.stream().await;
    let lease = world.hold_lock("unheard", "a").await;
    stream.ask(keep(&lease)).await.renewed();
    redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "pubsub"])
        .exec_async(&mut redis)
        .await
        .expect("CLIENT KILL is answered");
    // Whether or not this one is heard, the next renewal tells.
    let mut admin = world.admin.clone();
    admin
        .force_release_lock(force_release("unheard"))
        .await
        .expect("an answer");
    let request_id = stream.send(keep(&lease)).await;
    let mut answer = stream.next().await;
    if answer.request_id == 0 {
        answer = stream.next().await;
    }
    assert_eq!(answer.request_id, request_id);
    let lost = answer.outcome.expect("an outcome").lost();
    assert_eq!(lost, LossReason::Forced);

    eventually("both services to listen again", async || {
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg(&["CHANNELS", "cl:w:*"])
            .query_async(&mut redis)
            .await
            .expect("PUBSUB is answered");
        (channels.len() == 2).then_some(())
    })
    .await;
    let lease = world.hold_lock("heard", "a").await;
    stream.ask(keep(&lease)).await.renewed();
    admin
        .force_release_lock(force_release("heard"))
        .await
        .expect("an answer");
    assert_eq!(stream.next_lost().await, (lease, LossReason::Forced));
    world.finish().await;
}

#[tokio::test]
async fn what_was_lost_while_a_service_could_not_listen_is_told_when_it_can_again() {
    let world = World::start().await;
    let mut redis = world.redis.connect().await;
    let may_subscribe = async |redis: &mut _, rule: &str| {
        redis::cmd("ACL")
            .arg(&["SETUSER", "default", rule])
            .exec_async(redis)
            .await
            .expect("ACL is answered");
    };
    let mut stream = world.stream().await;
    let mut other = world.stream_elsewhere().await;
    let lock = world.hold_lock("forced", "a").await;
    let moved = world.hold_lock("moved", "a").await;
    let stands = world.hold_lock("stands", "a").await;
    let brief = ClaimRequest {
        lease: millis(100),
        ..claim("taken", "a")
    };
    let claimed = world.hold_claim(brief, "a").await;
    for lease in [&lock, &moved, &stands, &claimed] {
        stream.ask(keep(lease)).await.renewed();
    }
    other.ask(keep(&moved)).await.renewed();

    may_subscribe(&mut redis, "-subscribe").await;
    redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "pubsub"])
        .exec_async(&mut redis)
        .await
        .expect("CLIENT KILL is answered");
    let mut admin = world.admin.clone();
    admin
        .force_release_lock(force_release("forced"))
        .await
        .expect("an answer");
    world.take_over("taken").await;
    let channels: Vec<String> = redis::cmd("PUBSUB")
        .arg(&["CHANNELS", "cl:w:*"])
        .query_async(&mut redis)
        .await
        .expect("PUBSUB is answered");
    assert_eq!(channels, [""; 0], "nobody heard of it");
    may_subscribe(&mut redis, "+subscribe").await;

    let mut told = vec![stream.next_lost().await, stream.next_lost().await];
    let expected = [(claimed, LossReason::TakenOver), (lock, LossReason::Forced)];
    told.sort_by_key(|(_, reason)| *reason != LossReason::TakenOver);
    assert_eq!(told, expected);
    // Nothing more comes, not of what stands either, and not of what is on another stream by now.
    tokio::time::sleep(Duration::from_millis(500)).await;
    stream.ask(keep(&stands)).await.renewed();
    admin
        .force_release_lock(force_release("moved"))
        .await
        .expect("an answer");
    assert_eq!(other.next_lost().await, (moved, LossReason::Forced));
    stream.ask(keep(&stands)).await.renewed();
    world.finish().await;
}

#[tokio::test]
async fn a_tenant_that_was_left_to_the_service_is_named_where_it_speaks_unasked() {
    let world = World::start().await;
    let named = world.hold_lock("r", "a").await;
    let unnamed = LeaseRef {
        tenant: String::new(),
        ..named.clone()
    };
    let mut stream = world.stream().await;
    // The answer has it as it was sent.
    stream.ask(keep(&unnamed)).await.renewed();
    let mut admin = world.admin.clone();
    admin
        .force_release_lock(force_release("r"))
        .await
        .expect("an answer");
    assert_eq!(stream.next_lost().await, (named, LossReason::Forced));
    world.finish().await;
}
