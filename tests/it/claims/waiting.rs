//! Claims that wait for the one in flight to end, on a clock that nobody moves: what they come to, and how soon.

mod faults;
mod many;

use crate::support::answers::{
    Answer, abandoned, claim_renewed, claimed, completed, in_flight, mismatch, replay,
};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::failures::told;
use crate::support::metrics::Scrape;
use crate::support::redis::RedisServer;
use crate::support::requests::{
    abandon, claim, complete, millis, proto_duration, renew_claim, response, told_millis,
};
use crate::support::service::{Coordination, Service, coordination, store_timeout};
use claimlock::config::Settings;
use claimlock::rpc::proto::claim_response::Outcome;
use claimlock::rpc::proto::{AbandonEffect, ClaimRequest, ClaimResponse, LeaseOverPolicy};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tonic::{Code, Request};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
/// A call that waits is answered within this, even where a wake-up is lost and the machine is busy.
const SOON: Duration = Duration::from_secs(3);
/// And mostly within this when it is woken: far more than it takes, and less than the time between two looks of its service's.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Two services on one Redis, with a connection to each.
struct Desk {
    redis: RedisServer,
    services: [Service; 2],
    one: Coordination,
    other: Coordination,
}

type Waiting = JoinHandle<(Answer<ClaimResponse>, Instant)>;

impl Desk {
    async fn start() -> Self {
        Self::on(RedisServer::start().await).await
    }

    async fn on(redis: RedisServer) -> Self {
        let services = [Service::start(&redis).await, Service::start(&redis).await];
        Self {
            one: services[0].coordination().await,
            other: services[1].coordination().await,
            redis,
            services,
        }
    }

    /// Returns when so many calls wait at both services together.
    async fn waits(&self, number: usize) {
        eventually("all to wait", async || {
            let mut waiting = 0.0;
            for service in &self.services {
                waiting += Scrape::of(service).await.value("claimlock_waiters");
            }
            (waiting == number as f64).then_some(())
        })
        .await;
    }

    /// How often a script was called by both services together.
    async fn calls(&self, script: &str) -> usize {
        let series = format!("claimlock_store_duration_seconds_count{{script=\"{script}\"}}");
        let mut calls = 0.0;
        for service in &self.services {
            calls += Scrape::of(service).await.value(&series);
        }
        calls as usize
    }

    /// One that waits at the other service, and does so already.
    async fn one_waits(&self, request: ClaimRequest) -> Waiting {
        let waiting = start(&self.other, request);
        self.waits(1).await;
        waiting
    }

    async fn ends(self) {
        self.waits(0).await;
        assert_eq!(self.redis.keys_without_expiry().await, [""; 0]);
    }
}

fn waiting_claim(key: &str, name: &str) -> ClaimRequest {
    ClaimRequest {
        wait: proto_duration(LONG),
        ..claim(key, name)
    }
}

/// Makes the call, and says when it was answered.
fn start(client: &Coordination, request: ClaimRequest) -> Waiting {
    let mut client = client.clone();
    tokio::spawn(async move {
        let answer = client.claim(request).await;
        (answer, Instant::now())
    })
}

async fn ended(waiting: Waiting) -> (Answer<ClaimResponse>, Instant) {
    waiting.await.expect("no panic")
}

/// What it came to, and how long that took from `since`.
async fn timed(waiting: Waiting, since: Instant) -> (Answer<ClaimResponse>, Duration) {
    let (answer, at) = ended(waiting).await;
    let took = at.saturating_duration_since(since);
    assert!(took < SOON, "answered after {took:?}: {answer:?}");
    (answer, took)
}

async fn soon(waiting: Waiting, since: Instant) -> Answer<ClaimResponse> {
    timed(waiting, since).await.0
}

#[tokio::test]
async fn a_call_that_waits_gets_the_result_as_soon_as_there_is_one() {
    let mut desk = Desk::start().await;
    let mut times = Vec::new();
    for number in 0..8 {
        let key = number.to_string();
        claimed(desk.one.claim(claim(&key, "a")).await);
        let there = desk.one_waits(waiting_claim(&key, "b")).await;
        let here = start(&desk.one, waiting_claim(&key, "c"));
        desk.waits(2).await;
        completed(desk.one.complete(complete(&key, "a", key.as_bytes())).await);
        let since = Instant::now();
        for waiting in [there, here] {
            let (answer, took) = timed(waiting, since).await;
            assert_eq!(replay(answer).response, Some(response(key.as_bytes())));
            times.push(took);
        }
    }
    // Were they woken by looks alone, about half of them would take longer.
    times.sort_unstable();
    eprintln!("answered after {times:?}");
    assert!(times[12] < AT_ONCE, "{times:?}");
    desk.ends().await;
}

#[tokio::test]
async fn a_call_that_waits_gets_the_claim_as_soon_as_it_is_abandoned() {
    let mut desk = Desk::start().await;
    let policies = [LeaseOverPolicy::TakeOver, LeaseOverPolicy::MarkUncertain];
    for (effect, policy) in [AbandonEffect::None, AbandonEffect::Unknown]
        .into_iter()
        .flat_map(|effect| policies.map(|policy| (effect, policy)))
    {
        let key = format!("{effect:?}-{policy:?}");
        let first = ClaimRequest {
            on_lease_over: policy.into(),
            ..claim(&key, "a")
        };
        claimed(desk.one.claim(first).await);
        let waiting = desk.one_waits(waiting_claim(&key, "b")).await;
        abandoned(desk.one.abandon(abandon(&key, "a", effect)).await);
        let answer = soon(waiting, Instant::now()).await;
        let may_be_done = effect == AbandonEffect::Unknown;
        if may_be_done && policy == LeaseOverPolicy::MarkUncertain {
            let outcome = answer.expect("an answer").into_inner().outcome;
            assert!(
                matches!(outcome, Some(Outcome::Uncertain(_))),
                "{outcome:?}"
            );
        } else {
            let grant = claimed(answer);
            assert_eq!((grant.attempt, grant.taken_over), (2, may_be_done), "{key}");
        }
    }
    desk.ends().await;
}

#[tokio::test]
async fn a_call_that_waits_is_answered_when_the_lease_is_over() {
    let mut desk = Desk::start().await;
    // Its service looks a moment before that, and would be far too late the next time.
    let lease = Duration::from_millis(1050);
    let mut quickest = SOON;
    let policies = [LeaseOverPolicy::TakeOver, LeaseOverPolicy::MarkUncertain];
    for (number, policy) in policies.into_iter().cycle().take(4).enumerate() {
        let key = number.to_string();
        let sent = Instant::now();
        let first = ClaimRequest {
            lease: proto_duration(lease),
            on_lease_over: policy.into(),
            ..claim(&key, "a")
        };
        claimed(desk.one.claim(first).await);
        let granted = Instant::now();
        let waiting = start(&desk.other, waiting_claim(&key, "b"));
        let (answer, at) = ended(waiting).await;
        assert!(at >= sent + lease, "before the lease was over: {answer:?}");
        let late = at.saturating_duration_since(granted + lease);
        assert!(late < SOON, "{late:?} after the end of the lease");
        quickest = quickest.min(late);
        match answer.expect("an answer").into_inner().outcome {
            Some(Outcome::Claimed(grant)) if policy == LeaseOverPolicy::TakeOver => {
                assert_eq!((grant.attempt, grant.taken_over), (2, true));
            }
            Some(Outcome::Uncertain(_)) if policy == LeaseOverPolicy::MarkUncertain => {}
            other => panic!("{policy:?}: {other:?}"),
        }
    }
    eprintln!("at best {quickest:?} after the end of the lease");
    assert!(quickest < AT_ONCE, "{quickest:?}");
    desk.ends().await;
}

#[tokio::test]
async fn a_lease_that_is_renewed_is_waited_for_to_its_new_end() {
    let mut desk = Desk::start().await;
    let first = ClaimRequest {
        lease: millis(900),
        ..claim("key", "a")
    };
    claimed(desk.one.claim(first).await);
    let waiting = desk.one_waits(waiting_claim("key", "b")).await;
    let mut last = Instant::now();
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        last = Instant::now();
        claim_renewed(desk.one.renew_claim(renew_claim("key", "a")).await);
    }
    let (answer, at) = ended(waiting).await;
    assert!(at >= last + Duration::from_millis(900));
    assert!(claimed(answer).taken_over);
    desk.ends().await;
}

#[tokio::test]
async fn a_call_that_waits_gets_a_grant_that_its_caller_did_not_live_to_hear_of() {
    let redis = RedisServer::start().await;
    let to_redis = Proxy::start(Upstream::Unix(redis.socket_path()));
    let hurt = Service::at(&to_redis.redis_url(), store_timeout(LONG)).await;
    hurt.is_ready().await;
    let desk = Desk::on(redis).await;
    to_redis.set(Mode::HoldReplies).await;
    let calls = desk.redis.calls("evalsha").await;
    let gone = start(&hurt.coordination().await, claim("key", "gone"));
    eventually("the key to be granted", async || {
        (desk.redis.calls("evalsha").await > calls).then_some(())
    })
    .await;
    let waiting = desk.one_waits(waiting_claim("key", "b")).await;
    gone.abort();
    to_redis.set(Mode::Pass).await;
    let grant = claimed(soon(waiting, Instant::now()).await);
    assert_eq!((grant.attempt, grant.taken_over), (1, false));
    desk.ends().await;
}

#[tokio::test]
async fn what_is_answered_otherwise_than_in_flight_does_not_wait() {
    let mut desk = Desk::start().await;
    claimed(desk.one.claim(claim("key", "a")).await);
    let since = Instant::now();
    let another_request = ClaimRequest {
        operation: "DELETE /v1/charges".to_owned(),
        ..waiting_claim("key", "b")
    };
    let told = mismatch(desk.other.claim(another_request).await);
    assert_eq!(told.operation, "POST /v1/charges");
    let again = claimed(desk.other.claim(waiting_claim("key", "a")).await);
    assert!(again.already_held);
    claimed(desk.other.claim(waiting_claim("free", "a")).await);
    desk.one
        .abandon(abandon("key", "spent", AbandonEffect::None))
        .await
        .expect("an outcome");
    let lost = desk.other.claim(waiting_claim("key", "spent")).await;
    let lost = lost.expect("an answer").into_inner().outcome;
    assert!(matches!(lost, Some(Outcome::Lost(_))), "{lost:?}");
    assert!(since.elapsed() < LONG / 4, "it waited for something");
    desk.ends().await;
}

#[tokio::test]
async fn a_token_that_is_given_up_while_it_waits_is_lost_at_once() {
    let mut desk = Desk::start().await;
    claimed(desk.one.claim(claim("key", "a")).await);
    let waiting = desk.one_waits(waiting_claim("key", "b")).await;
    let others = start(&desk.other, waiting_claim("key", "c"));
    desk.waits(2).await;
    desk.one
        .abandon(abandon("key", "b", AbandonEffect::None))
        .await
        .expect("an outcome");
    let lost = soon(waiting, Instant::now()).await;
    let lost = lost.expect("an answer").into_inner().outcome;
    assert!(matches!(lost, Some(Outcome::Lost(_))), "{lost:?}");
    desk.waits(1).await;
    completed(desk.one.complete(complete("key", "a", b"done")).await);
    replay(soon(others, Instant::now()).await);
    desk.ends().await;
}

#[tokio::test]
async fn a_wait_that_is_over_is_answered_in_flight_with_what_is_so_then() {
    let mut desk = Desk::start().await;
    let first = ClaimRequest {
        lease: millis(20_000),
        ..claim("key", "a")
    };
    claimed(desk.one.claim(first).await);
    let since = Instant::now();
    let patient = ClaimRequest {
        wait: millis(1500),
        ..claim("key", "b")
    };
    let told = in_flight(desk.other.claim(patient).await);
    let took = since.elapsed();
    assert!(took >= Duration::from_millis(1500), "{took:?}");
    assert_eq!((told.attempt, told.holder.as_str()), (1, "holder a"));
    assert!(
        (1..=1000).contains(&told_millis(told.retry_after)),
        "{told:?}"
    );
    let left = told_millis(told.lease_left);
    assert!(
        left <= 20_000 - 1500,
        "{left} ms: as it was when the call came"
    );
    desk.ends().await;
}

#[tokio::test]
async fn a_deadline_that_is_shorter_than_the_wait_gets_its_answer_in_time() {
    let mut desk = Desk::start().await;
    claimed(desk.one.claim(claim("key", "a")).await);
    for timeout in [1500, 300] {
        let mut request = Request::new(waiting_claim("key", "b"));
        request.set_timeout(Duration::from_millis(timeout));
        let since = Instant::now();
        in_flight(desk.other.claim(request).await);
        let took = since.elapsed();
        assert!(
            took >= Duration::from_millis(timeout / 2),
            "{took:?}: it hardly waited"
        );
    }
    desk.ends().await;
}

#[tokio::test]
async fn a_draining_service_sends_those_that_wait_elsewhere_and_they_go_on_there() {
    let desk = Desk::start().await;
    let mut one = desk.one.clone();
    claimed(one.claim(claim("key", "a")).await);
    let waiting = desk.one_waits(waiting_claim("key", "b")).await;
    let Desk {
        redis,
        services: [_staying, leaving],
        ..
    } = desk;
    let since = Instant::now();
    leaving.stop().await.expect("it ends well");
    assert!(since.elapsed() < Duration::from_secs(5));
    let (answer, _) = ended(waiting).await;
    let told = told(&answer.expect_err("it drains"));
    assert_eq!(
        (told.code, told.reason.as_str()),
        (Code::Unavailable, "DRAINING")
    );
    assert!(told.retry_after.is_some());

    let again = start(&one, waiting_claim("key", "b"));
    completed(one.complete(complete("key", "a", b"done")).await);
    replay(ended(again).await.0);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}
