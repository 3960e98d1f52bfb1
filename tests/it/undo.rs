//! Callers that go away before they hear of their grant: it is taken back, unless somebody else heard of it.

mod cancellations;
mod deadlines;

use crate::support::answers::{
    abandoned, acquired, claim_renewed, claimed, completed, held, in_flight, lock_renewed,
    mismatch, released, replay,
};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::redis::RedisServer;
use crate::support::requests::{
    abandon, acquire, claim, complete, millis, proto_duration, release, renew_claim, renew_lock,
    response, told_millis,
};
use crate::support::service::{
    Coordination, Service, channel, coordination, health, store_timeout,
};
use crate::support::{BOUND, eventually};
use claimlock::config::Settings;
use claimlock::rpc::proto::{
    AbandonEffect, AcquireLockRequest, ClaimInfo, ClaimRequest, ClaimState, GetClaimRequest,
    LeaseOverPolicy, LockMode, claim_response::Outcome,
};
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

/// Longer than any test waits: whatever ends before was taken back.
const LEASE: Duration = Duration::from_secs(60);

/// How a caller goes away.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// It cancels the call.
    Cancels,
    /// Its connection breaks.
    IsCutOff,
}

/// When it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The call lies in the socket of a Redis that is stopped.
    BeforeTheScript,
    /// The script has run, and its reply is on its way.
    AfterTheScript,
}

/// A service that reaches Redis over one connection which can be hurt, and whose callers can be; and another that
/// has none of this trouble.
struct World {
    redis: RedisServer,
    to_redis: Proxy,
    to_service: Proxy,
    service: Service,
    other: Service,
    elsewhere: Coordination,
    /// How many scripts have been run.
    scripts: u64,
    /// How many bytes had been sent to Redis when calls were held last.
    held_since: usize,
}

impl World {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let to_redis = Proxy::start(Upstream::Unix(redis.socket_path()));
        let settings = Settings {
            redis_connections: 1,
            ..store_timeout(BOUND)
        };
        let service = Service::at(&to_redis.redis_url(), settings).await;
        service.is_ready().await;
        let to_service = Proxy::start(Upstream::Tcp(service.grpc));
        let other = Service::start(&redis).await;
        let elsewhere = other.coordination().await;
        let scripts = redis.calls("evalsha").await;
        Self {
            redis,
            to_redis,
            to_service,
            service,
            other,
            elsewhere,
            scripts,
            held_since: 0,
        }
    }

    /// A connection to the service that can be cut.
    async fn client(&self) -> Coordination {
        coordination(self.to_service.addr()).await
    }

    /// Waits until Redis has run exactly so many scripts more.
    async fn runs(&mut self, more: u64, what: &str) {
        self.scripts += more;
        eventually(what, async || {
            let scripts = self.redis.calls("evalsha").await;
            assert!(scripts <= self.scripts, "more scripts than {what}");
            (scripts == self.scripts).then_some(())
        })
        .await;
    }

    /// What is called from here on is held until [`World::lets_go`].
    async fn holds(&mut self, moment: Moment) {
        self.held_since = self.to_redis.passed();
        match moment {
            Moment::BeforeTheScript => self.redis.stop_process(),
            Moment::AfterTheScript => self.to_redis.set(Mode::HoldReplies).await,
        }
    }

    /// Waits until a call for this key or resource has come to where it is held.
    async fn is_held(&mut self, moment: Moment, name: &str) {
        let in_redis_keys = format!("/{name}}}");
        match moment {
            Moment::BeforeTheScript => {
                eventually("the call to be in the socket", async || {
                    self.to_redis
                        .has_passed(in_redis_keys.as_bytes(), self.held_since)
                        .then_some(())
                })
                .await;
            }
            Moment::AfterTheScript => self.runs(1, "the call").await,
        }
    }

    /// Returns when the calls that were held have been run, and so many undos.
    async fn lets_go(&mut self, moment: Moment, calls: u64, undos: u64) {
        match moment {
            Moment::BeforeTheScript => {
                self.redis.resume_process();
                self.runs(calls + undos, "the calls and their undo").await;
            }
            Moment::AfterTheScript => {
                self.to_redis.set(Mode::Pass).await;
                self.runs(undos, "the undo").await;
            }
        }
    }

    /// Ends the call, and returns when the service knows.
    async fn goes_away<T>(&self, way: Way, call: JoinHandle<T>) {
        match way {
            Way::Cancels => call.abort(),
            Way::IsCutOff => self.to_service.set(Mode::Cut).await,
        }
        let _ = call.await;
        self.to_service.set(Mode::Pass).await;
        has_noticed(&channel(self.to_service.addr()).await).await;
    }

    async fn claim_info(&mut self, key: &str) -> Option<ClaimInfo> {
        let request = GetClaimRequest {
            key: key.to_owned(),
            ..Default::default()
        };
        let mut admin = self.other.admin().await;
        let answer = admin.get_claim(request).await.expect("an answer");
        self.scripts += 1;
        answer.into_inner().claim
    }

    /// A claim whose caller goes away once it was granted; returns when it was taken back.
    async fn claim_is_undone(&mut self, request: ClaimRequest) {
        let mut client = self.client().await;
        let key = request.key.clone();
        self.holds(Moment::AfterTheScript).await;
        let call = tokio::spawn(async move { client.claim(request).await });
        self.is_held(Moment::AfterTheScript, &key).await;
        self.goes_away(Way::Cancels, call).await;
        self.lets_go(Moment::AfterTheScript, 1, 1).await;
    }

    async fn ends(self) {
        assert_eq!(self.redis.keys_without_expiry().await, [""; 0]);
    }
}

/// Gives the service time to notice what its callers did before: all of them share one thread with the network between
/// them, which comes round to each many times during these calls.
async fn has_noticed(channel: &Channel) {
    for _ in 0..10 {
        health(channel, "liveness").await;
    }
}

fn long_claim(key: &str, name: &str) -> ClaimRequest {
    ClaimRequest {
        lease: proto_duration(LEASE),
        ..claim(key, name)
    }
}

fn long_acquire(lock: &str, name: &str) -> AcquireLockRequest {
    AcquireLockRequest {
        lease: proto_duration(LEASE),
        ..acquire(lock, name)
    }
}

const MOMENTS: [Moment; 2] = [Moment::BeforeTheScript, Moment::AfterTheScript];
const WAYS: [Way; 2] = [Way::Cancels, Way::IsCutOff];

#[tokio::test]
async fn a_claim_whose_caller_goes_away_unheard_is_taken_back() {
    let mut world = World::start().await;
    for moment in MOMENTS {
        for way in WAYS {
            let key = format!("{moment:?}-{way:?}");
            let name = format!("gone-{key}");
            let mut client = world.client().await;
            let request = long_claim(&key, &name);
            world.holds(moment).await;
            let call = tokio::spawn(async move { client.claim(request).await });
            world.is_held(moment, &key).await;
            let mut undone_fence = 0;
            if moment == Moment::AfterTheScript {
                let granted = world.claim_info(&key).await.expect("it is granted");
                assert_eq!(granted.holder, format!("holder {name}"));
                undone_fence = granted.fencing_token;
            }
            world.goes_away(way, call).await;
            world.lets_go(moment, 1, 1).await;

            assert_eq!(world.claim_info(&key).await, None);
            let grant = claimed(world.elsewhere.claim(claim(&key, "next")).await);
            assert!(!grant.taken_over && grant.checkpoint.is_empty());
            assert_eq!(grant.attempt, 1, "{key}");
            assert!(grant.fencing_token > undone_fence);
            abandoned(
                world
                    .elsewhere
                    .abandon(abandon(&key, "next", AbandonEffect::None))
                    .await,
            );
            // The token is as good as new.
            let again = claimed(world.elsewhere.claim(claim(&key, &name)).await);
            assert!(!again.already_held && !again.taken_over);
            assert!(again.fencing_token > grant.fencing_token);
            completed(
                world
                    .elsewhere
                    .complete(complete(&key, &name, b"done"))
                    .await,
            );
            world.scripts += 4;
        }
    }
    world.ends().await;
}

#[tokio::test]
async fn a_lock_whose_caller_goes_away_unheard_is_taken_back() {
    let mut world = World::start().await;
    for moment in MOMENTS {
        for way in WAYS {
            let lock = format!("{moment:?}-{way:?}");
            let name = format!("gone-{lock}");
            let mut client = world.client().await;
            let request = AcquireLockRequest {
                hold_at_least: proto_duration(LEASE),
                lock_delay: proto_duration(LEASE),
                ..long_acquire(&lock, &name)
            };
            world.holds(moment).await;
            let call = tokio::spawn(async move { client.acquire_lock(request).await });
            world.is_held(moment, &lock).await;
            if moment == Moment::AfterTheScript {
                let told = held(world.elsewhere.acquire_lock(acquire(&lock, "next")).await);
                assert_eq!(told.holders[0].holder, format!("holder {name}"));
                world.scripts += 1;
            }
            world.goes_away(way, call).await;
            world.lets_go(moment, 1, 1).await;

            let grant = acquired(world.elsewhere.acquire_lock(acquire(&lock, "next")).await);
            released(world.elsewhere.release_lock(release(&lock, "next")).await);
            let again = acquired(world.elsewhere.acquire_lock(acquire(&lock, &name)).await);
            assert!(!again.already_held);
            assert!(again.fencing_token > grant.fencing_token);
            released(world.elsewhere.release_lock(release(&lock, &name)).await);
            world.scripts += 4;
        }
    }
    world.ends().await;
}

#[tokio::test]
async fn an_undone_semaphore_slot_takes_its_limit_with_it_and_leaves_the_others() {
    let mut world = World::start().await;
    let shared = |name: &str, limit| AcquireLockRequest {
        mode: LockMode::Shared.into(),
        max_holders: limit,
        ..long_acquire("lock", name)
    };
    let first = acquired(world.elsewhere.acquire_lock(shared("first", 5)).await);
    world.scripts += 1;
    let mut client = world.client().await;
    world.holds(Moment::AfterTheScript).await;
    let request = shared("gone", 2);
    let call = tokio::spawn(async move { client.acquire_lock(request).await });
    world.is_held(Moment::AfterTheScript, "lock").await;
    held(world.elsewhere.acquire_lock(shared("second", 5)).await);
    world.scripts += 1;
    world.goes_away(Way::Cancels, call).await;
    world.lets_go(Moment::AfterTheScript, 1, 1).await;

    for name in ["second", "third", "fourth", "fifth"] {
        acquired(world.elsewhere.acquire_lock(shared(name, 5)).await);
    }
    held(world.elsewhere.acquire_lock(shared("sixth", 5)).await);
    let again = acquired(world.elsewhere.acquire_lock(shared("first", 5)).await);
    assert!(again.already_held);
    assert_eq!(again.fencing_token, first.fencing_token);
    world.ends().await;
}

/// What of a claim an undo has to restore: all but the times left, which run on.
#[derive(Debug)]
struct Before(ClaimInfo);

impl Before {
    async fn of(world: &mut World, key: &str) -> Self {
        Self(world.claim_info(key).await.expect("the key is known"))
    }

    async fn is_restored(&self, world: &mut World) {
        let now = world.claim_info(&self.0.key).await.expect("it is known");
        let retention = |info: &ClaimInfo| told_millis(info.retention_left);
        assert!(retention(&now) <= retention(&self.0));
        let lasting = |info: &ClaimInfo| ClaimInfo {
            lease_left: None,
            retention_left: None,
            ..info.clone()
        };
        assert_eq!(lasting(&now), lasting(&self.0));
    }
}

/// A claim by "first" whose lease is over, with a checkpoint.
async fn lapsed_claim(world: &mut World, key: &str) {
    let short = ClaimRequest {
        lease: millis(50),
        ..claim(key, "first")
    };
    claimed(world.elsewhere.claim(short).await);
    let mut renewal = renew_claim(key, "first");
    renewal.checkpoint = Some(b"half done".to_vec().into());
    claim_renewed(world.elsewhere.renew_claim(renewal).await);
    world.scripts += 2;
    eventually("the lease to end", async || {
        let info = world.claim_info(key).await.expect("the key is known");
        (info.state() == ClaimState::LeaseOver).then_some(())
    })
    .await;
}

/// A claim by one that goes away, with another policy and retention than the record's where it is granted at all:
/// one that was given up, or whose lease is over, is uncertain at once to whoever asks for MARK_UNCERTAIN.
fn claim_of_the_gone(key: &str, policy: LeaseOverPolicy) -> ClaimRequest {
    ClaimRequest {
        retention: proto_duration(Duration::from_secs(29 * 24 * 3600)),
        on_lease_over: policy.into(),
        ..long_claim(key, "gone")
    }
}

#[tokio::test]
async fn an_undone_takeover_leaves_the_lapsed_claim_as_it_was() {
    let mut world = World::start().await;
    lapsed_claim(&mut world, "key").await;
    let before = Before::of(&mut world, "key").await;
    let request = claim_of_the_gone("key", LeaseOverPolicy::TakeOver);
    world.claim_is_undone(request).await;
    before.is_restored(&mut world).await;

    let mut other_request = claim("key", "next");
    other_request.operation = "DELETE /v1/charges".to_owned();
    let told = mismatch(world.elsewhere.claim(other_request).await);
    assert_eq!(told.operation, before.0.operation);
    // Nobody took it over from its holder, as far as its holder can tell.
    claim_renewed(
        world
            .elsewhere
            .renew_claim(renew_claim("key", "first"))
            .await,
    );
    completed(
        world
            .elsewhere
            .complete(complete("key", "first", b"done"))
            .await,
    );
    world.ends().await;
}

#[tokio::test]
async fn a_takeover_after_an_undone_one_is_the_second_attempt_and_has_the_checkpoint() {
    let mut world = World::start().await;
    lapsed_claim(&mut world, "key").await;
    let request = claim_of_the_gone("key", LeaseOverPolicy::TakeOver);
    world.claim_is_undone(request).await;

    let short = ClaimRequest {
        lease: millis(50),
        ..claim("key", "next")
    };
    let grant = claimed(world.elsewhere.claim(short).await);
    assert!(grant.taken_over && !grant.already_held);
    assert_eq!(
        (grant.attempt, &grant.checkpoint[..]),
        (2, &b"half done"[..])
    );
    // The token of the one that went away is not spent.
    let third = eventually("the lease to end", async || {
        let answer = world.elsewhere.claim(claim("key", "gone")).await;
        let outcome = answer.expect("an answer").into_inner().outcome;
        match outcome.expect("an outcome") {
            Outcome::InFlight(_) => None,
            other => Some(other),
        }
    })
    .await;
    let Outcome::Claimed(third) = third else {
        panic!("not taken over but {third:?}")
    };
    assert!(!third.already_held);
    assert_eq!(third.attempt, 3);
    world.ends().await;
}

#[tokio::test]
async fn an_undone_claim_leaves_what_was_given_up_or_abandoned_as_it_was() {
    let mut world = World::start().await;

    // Given up with effect UNKNOWN: the first holder may still complete it.
    claimed(world.elsewhere.claim(claim("given-up", "first")).await);
    let give_up = abandon("given-up", "first", AbandonEffect::Unknown);
    abandoned(world.elsewhere.abandon(give_up).await);
    world.scripts += 2;
    let before = Before::of(&mut world, "given-up").await;
    let request = claim_of_the_gone("given-up", LeaseOverPolicy::TakeOver);
    world.claim_is_undone(request).await;
    before.is_restored(&mut world).await;
    completed(
        world
            .elsewhere
            .complete(complete("given-up", "first", b"done"))
            .await,
    );
    world.scripts += 1;

    // Abandoned after a takeover: that there may have been an effect is not forgotten.
    lapsed_claim(&mut world, "taken-over").await;
    claimed(world.elsewhere.claim(claim("taken-over", "second")).await);
    let give_up = abandon("taken-over", "second", AbandonEffect::None);
    abandoned(world.elsewhere.abandon(give_up).await);
    world.scripts += 2;
    let before = Before::of(&mut world, "taken-over").await;
    assert!(before.0.taken_over);
    let request = claim_of_the_gone("taken-over", LeaseOverPolicy::MarkUncertain);
    world.claim_is_undone(request).await;
    before.is_restored(&mut world).await;
    let grant = claimed(world.elsewhere.claim(claim("taken-over", "third")).await);
    assert!(grant.taken_over);
    assert_eq!(
        (grant.attempt, &grant.checkpoint[..]),
        (3, &b"half done"[..])
    );
    world.scripts += 1;

    // Abandoned for good: the next one may bring any request, though the one that went away brought its own.
    claimed(world.elsewhere.claim(claim("abandoned", "first")).await);
    let give_up = abandon("abandoned", "first", AbandonEffect::None);
    abandoned(world.elsewhere.abandon(give_up).await);
    world.scripts += 2;
    let mut request = claim_of_the_gone("abandoned", LeaseOverPolicy::MarkUncertain);
    request.operation = "PUT /v1/charges".to_owned();
    world.claim_is_undone(request).await;
    let mut request = claim("abandoned", "next");
    request.operation = "DELETE /v1/charges".to_owned();
    let grant = claimed(world.elsewhere.claim(request).await);
    assert!(!grant.taken_over && grant.checkpoint.is_empty());
    assert_eq!(grant.attempt, 2);
    world.ends().await;
}

#[tokio::test]
async fn a_grant_stands_that_is_undone_late_after_a_repeat_was_answered() {
    let mut world = World::start().await;
    let mut client = world.client().await;
    let mut lock_client = world.client().await;
    world.holds(Moment::AfterTheScript).await;
    let claiming = tokio::spawn(async move { client.claim(long_claim("key", "a")).await });
    world.is_held(Moment::AfterTheScript, "key").await;
    let acquiring =
        tokio::spawn(async move { lock_client.acquire_lock(long_acquire("lock", "a")).await });
    world.is_held(Moment::AfterTheScript, "lock").await;

    let grant = claimed(world.elsewhere.claim(claim("key", "a")).await);
    assert!(grant.already_held);
    let lock = acquired(world.elsewhere.acquire_lock(acquire("lock", "a")).await);
    assert!(lock.already_held);
    world.scripts += 2;
    world.goes_away(Way::Cancels, claiming).await;
    world.goes_away(Way::IsCutOff, acquiring).await;
    world.lets_go(Moment::AfterTheScript, 2, 2).await;

    in_flight(world.elsewhere.claim(claim("key", "b")).await);
    held(world.elsewhere.acquire_lock(acquire("lock", "b")).await);
    let renewed = claim_renewed(world.elsewhere.renew_claim(renew_claim("key", "a")).await);
    assert_eq!(renewed.fencing_token, grant.fencing_token);
    let renewed = lock_renewed(world.elsewhere.renew_lock(renew_lock("lock", "a")).await);
    assert_eq!(renewed.fencing_token, lock.fencing_token);
    world.ends().await;
}

#[tokio::test]
async fn an_undo_that_comes_after_the_end_of_its_grant_changes_nothing() {
    let mut world = World::start().await;
    let mut client = world.client().await;
    let mut lock_client = world.client().await;
    world.holds(Moment::AfterTheScript).await;
    let claiming = tokio::spawn(async move { client.claim(long_claim("key", "a")).await });
    world.is_held(Moment::AfterTheScript, "key").await;
    let acquiring =
        tokio::spawn(async move { lock_client.acquire_lock(long_acquire("lock", "a")).await });
    world.is_held(Moment::AfterTheScript, "lock").await;

    // Whoever has the token may end the grant without having heard of it.
    completed(
        world
            .elsewhere
            .complete(complete("key", "a", b"done"))
            .await,
    );
    released(world.elsewhere.release_lock(release("lock", "a")).await);
    let next = acquired(
        world
            .elsewhere
            .acquire_lock(long_acquire("lock", "b"))
            .await,
    );
    world.scripts += 3;
    world.goes_away(Way::Cancels, claiming).await;
    world.goes_away(Way::Cancels, acquiring).await;
    world.lets_go(Moment::AfterTheScript, 2, 2).await;

    let told = replay(world.elsewhere.claim(claim("key", "b")).await);
    assert_eq!(told.response, Some(response(b"done")));
    let renewed = lock_renewed(world.elsewhere.renew_lock(renew_lock("lock", "b")).await);
    assert_eq!(renewed.fencing_token, next.fencing_token);
    released(world.elsewhere.release_lock(release("lock", "a")).await);
    world.ends().await;
}

#[tokio::test]
async fn a_duplicate_call_that_is_cut_undoes_nothing() {
    let mut world = World::start().await;
    let mut client = world.client().await;
    let grant = claimed(client.claim(long_claim("key", "a")).await);
    let lock = acquired(client.acquire_lock(long_acquire("lock", "a")).await);
    world.scripts += 2;

    for moment in MOMENTS {
        let mut client = world.client().await;
        let mut lock_client = world.client().await;
        world.holds(moment).await;
        let claiming = tokio::spawn(async move { client.claim(claim("key", "a")).await });
        world.is_held(moment, "key").await;
        let acquiring =
            tokio::spawn(async move { lock_client.acquire_lock(acquire("lock", "a")).await });
        world.is_held(moment, "lock").await;
        world.goes_away(Way::Cancels, claiming).await;
        world.goes_away(Way::IsCutOff, acquiring).await;
        world.lets_go(moment, 2, 0).await;
        // Answered on the same connection, so after both of them; `runs` fails at any script besides.
        let mut client = world.service.coordination().await;
        for _ in 0..5 {
            in_flight(client.claim(claim("key", "b")).await);
            held(client.acquire_lock(acquire("lock", "b")).await);
        }
        world.runs(10, "the calls since").await;
    }

    let renewed = claim_renewed(world.elsewhere.renew_claim(renew_claim("key", "a")).await);
    assert_eq!(renewed.fencing_token, grant.fencing_token);
    let renewed = lock_renewed(world.elsewhere.renew_lock(renew_lock("lock", "a")).await);
    assert_eq!(renewed.fencing_token, lock.fencing_token);
    world.ends().await;
}
