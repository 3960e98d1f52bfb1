//! A Redis that does not answer: stopped, killed, stalled, black-holed, or not there yet.

use crate::support::answers::{
    acquired, assert_store_unavailable, claimed, completed, held, in_flight, released, replay,
};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::redis::{Dump, RedisOptions, RedisServer};
use crate::support::requests::{acquire, claim, complete, release, response};
use crate::support::service::{Coordination, Service, health, http_status, store_timeout};
use claimlock::rpc::proto::{GetClaimRequest, GetLockRequest};
use futures_util::future::join_all;
use std::time::{Duration, Instant};
use tonic::{Code, Request, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_types::StatusExt;

const CALLS: usize = 50;
const TIMEOUT: Duration = Duration::from_secs(1);
/// What a loaded machine may add to the store's timeout; a quiet one adds a few milliseconds.
const SLACK: Duration = Duration::from_secs(2);

/// A service and what a test asks of it.
struct Asked {
    service: Service,
    clients: Vec<Coordination>,
}

impl Asked {
    async fn at(redis_url: &str, timeout: Duration) -> Self {
        let service = Service::at(redis_url, store_timeout(timeout)).await;
        service.is_ready().await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(service.coordination().await);
        }
        Self { service, clients }
    }

    /// Half of the calls of a wave claim, half acquire, each a name of its own.
    async fn call(&self, wave: &str, number: usize) -> Result<(), Status> {
        let mut client = self.clients[number % self.clients.len()].clone();
        let name = format!("{wave}-{number}");
        if number.is_multiple_of(2) {
            client.claim(claim(&name, "early")).await.map(drop)
        } else {
            client.acquire_lock(acquire(&name, "early")).await.map(drop)
        }
    }

    /// A wave of calls at once, of which each is to fail in time.
    async fn fails(&self, wave: &str, timeout: Duration) {
        let calls = (0..CALLS).map(async |number| {
            let started = Instant::now();
            let status = self
                .call(wave, number)
                .await
                .expect_err("the store does not answer");
            assert_store_unavailable(&status);
            started.elapsed()
        });
        let longest = join_all(calls).await.into_iter().max().expect("some calls");
        eprintln!("{wave}: the last of {CALLS} calls failed after {longest:?} of {timeout:?}");
        assert!(longest < timeout + SLACK);
    }

    /// None of a wave's calls holds anything, or has left a trace.
    async fn holds_nothing(&self, wave: &str) {
        let mut admin = self.service.admin().await;
        for number in 0..CALLS {
            let name = format!("{wave}-{number}");
            let claim = admin
                .get_claim(GetClaimRequest {
                    key: name.clone(),
                    ..Default::default()
                })
                .await;
            assert_eq!(claim.expect("an answer").into_inner().claim, None);
            let lock = admin
                .get_lock(GetLockRequest {
                    resource: name,
                    ..Default::default()
                })
                .await;
            assert_eq!(lock.expect("an answer").into_inner().lock, None);
        }
    }

    /// Calls succeed again without a restart of the service.
    async fn recovers(&self, since: Instant, what: &str) {
        let mut client = self.clients[0].clone();
        let mut tries = 0;
        let mut lock_client = client.clone();
        eventually("a call to succeed again", async || {
            tries += 1;
            let answer = client
                .claim(claim(&format!("{what}-again-{tries}"), "a"))
                .await;
            Some(claimed(Ok(answer.ok()?)))
        })
        .await;
        let lock = format!("{what}-again");
        acquired(lock_client.acquire_lock(acquire(&lock, "a")).await);
        let recovered = since.elapsed();
        eprintln!("{what}: calls succeed again after {recovered:?}, {tries} tries");
        assert!(recovered < Duration::from_secs(10));
    }
}

async fn redis_with_tcp() -> RedisServer {
    RedisServer::with(RedisOptions {
        tcp: true,
        ..RedisOptions::default()
    })
    .await
}

/// Waits until Redis has run so many scripts more, whatever they came to.
async fn has_run(redis: &RedisServer, before: u64, more: usize) {
    let all = before + u64::try_from(more).expect("few");
    eventually("redis to read what was sent to it", async || {
        (redis.calls("evalsha").await >= all).then_some(())
    })
    .await;
}

#[tokio::test]
async fn calls_fail_in_time_while_redis_is_stopped_and_are_granted_nothing_when_it_goes_on() {
    let redis = RedisServer::start().await;
    let asked = Asked::at(&redis.url(), TIMEOUT).await;
    let before = redis.calls("evalsha").await;

    redis.stop_process();
    asked.fails("stopped", TIMEOUT).await;
    redis.resume_process();
    let since = Instant::now();

    // All fifty lay in its sockets, and it has read them now.
    has_run(&redis, before, CALLS).await;
    asked.recovers(since, "stopped").await;
    asked.holds_nothing("stopped").await;
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_redis_that_was_stopped_through_many_tries_to_reconnect_grants_nothing_of_all_that_was_sent()
 {
    let redis = redis_with_tcp().await;
    let timeout = Duration::from_millis(400);
    let asked = Asked::at(&redis.tcp_url(), timeout).await;
    let before = redis.calls("evalsha").await;

    redis.stop_process();
    let started = Instant::now();
    let mut waves = Vec::new();
    // A try to connect takes half a second at most.
    while started.elapsed() < Duration::from_secs(4) {
        let wave = format!("wave-{}", waves.len());
        asked.fails(&wave, timeout).await;
        waves.push(wave);
    }
    redis.resume_process();
    let since = Instant::now();

    has_run(&redis, before, CALLS).await;
    asked.recovers(since, "stopped-for-long").await;
    for wave in &waves {
        asked.holds_nothing(wave).await;
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_call_that_was_cut_off_by_its_own_deadline_is_granted_nothing_later() {
    let redis = RedisServer::start().await;
    let asked = Asked::at(&redis.url(), Duration::from_secs(10)).await;
    let before = redis.calls("evalsha").await;
    let mut client = asked.clients[0].clone();

    redis.stop_process();
    let mut request = Request::new(claim("deadline-0", "early"));
    request.set_timeout(Duration::from_millis(300));
    let status = client.claim(request).await.expect_err("nobody answers");
    // The service answers shortly before, unless the machine is so loaded that its client gives up first.
    let details = status.get_error_details();
    match status.code() {
        Code::DeadlineExceeded => assert_eq!(
            details.error_info().map(|info| info.reason.as_str()),
            Some("DEADLINE_EXCEEDED")
        ),
        code => assert_eq!(code, Code::Cancelled, "{status:?}"),
    }
    redis.resume_process();

    has_run(&redis, before, 1).await;
    assert_eq!(redis.dump().await, Dump::default());
    claimed(client.claim(claim("deadline-0", "other")).await);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn calls_fail_in_time_while_redis_is_down_and_succeed_when_it_is_back() {
    let mut redis = RedisServer::start().await;
    let asked = Asked::at(&redis.url(), TIMEOUT).await;

    // With calls in flight: stopped, they cannot have been answered when it dies.
    redis.stop_process();
    let dies = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        redis.kill();
    };
    tokio::join!(asked.fails("dying", TIMEOUT), dies);
    asked.fails("down", TIMEOUT).await;
    redis.restart().await;
    asked.recovers(Instant::now(), "down").await;

    asked.holds_nothing("dying").await;
    asked.holds_nothing("down").await;
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn calls_fail_in_time_while_redis_is_black_holed_and_succeed_when_the_hole_is_gone() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(Upstream::Unix(redis.socket_path()));
    let asked = Asked::at(&proxy.redis_url(), TIMEOUT).await;

    proxy.set(Mode::BlackHole).await;
    // The first wave on connections that were there, the second on none.
    asked.fails("hole", TIMEOUT).await;
    asked.fails("deep-hole", TIMEOUT).await;
    proxy.set(Mode::Pass).await;
    asked.recovers(Instant::now(), "hole").await;

    asked.holds_nothing("hole").await;
    asked.holds_nothing("deep-hole").await;
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn connections_that_died_unnoticed_are_replaced_by_the_calls_that_find_out() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(Upstream::Unix(redis.socket_path()));
    let asked = Asked::at(&proxy.redis_url(), TIMEOUT).await;

    proxy.set(Mode::Strand).await;
    asked.fails("stranded", TIMEOUT).await;
    let calls = (0..CALLS).map(|number| asked.call("after", number));
    for answer in join_all(calls).await {
        answer.expect("a call on a new connection");
    }
    asked.holds_nothing("stranded").await;
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn calls_that_a_stalled_network_delivers_late_are_granted_nothing() {
    let redis = redis_with_tcp().await;
    let proxy = Proxy::start(Upstream::Tcp(redis.tcp_addr()));
    let asked = Asked::at(&proxy.redis_url(), TIMEOUT).await;
    let before = redis.calls("evalsha").await;

    proxy.set(Mode::Hold).await;
    asked.fails("stalled", TIMEOUT).await;
    proxy.set(Mode::Pass).await;
    let since = Instant::now();

    has_run(&redis, before, CALLS).await;
    asked.recovers(since, "stalled").await;
    asked.holds_nothing("stalled").await;
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_caller_whose_reply_was_lost_asks_again_with_its_token_and_gets_the_same() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(Upstream::Unix(redis.socket_path()));
    let asked = Asked::at(&proxy.redis_url(), TIMEOUT).await;
    let mut client = asked.clients[0].clone();
    claimed(client.claim(claim("done", "a")).await);
    acquired(client.acquire_lock(acquire("free", "a")).await);

    proxy.set(Mode::SwallowReplies).await;
    let mut clients = asked.clients.clone();
    let [one, two, three, four] = &mut clients[..] else {
        panic!("four clients")
    };
    let (claiming, acquiring, completing, releasing) = tokio::join!(
        one.claim(claim("key", "a")),
        two.acquire_lock(acquire("lock", "a")),
        three.complete(complete("done", "a", b"result")),
        four.release_lock(release("free", "a"))
    );
    assert_store_unavailable(&claiming.expect_err("the reply is lost"));
    assert_store_unavailable(&acquiring.expect_err("the reply is lost"));
    assert_store_unavailable(&completing.expect_err("the reply is lost"));
    assert_store_unavailable(&releasing.expect_err("the reply is lost"));

    // All four were done nevertheless, as a service finds that reaches Redis.
    let direct = Service::start(&redis).await;
    let mut other = direct.coordination().await;
    let mut admin = direct.admin().await;
    let found = admin.get_claim(GetClaimRequest {
        key: "key".to_owned(),
        ..Default::default()
    });
    let claim_fence = found
        .await
        .expect("an answer")
        .into_inner()
        .claim
        .expect("it stands")
        .fencing_token;
    let found = admin.get_lock(GetLockRequest {
        resource: "lock".to_owned(),
        ..Default::default()
    });
    let lock_fence = found
        .await
        .expect("an answer")
        .into_inner()
        .lock
        .expect("it stands")
        .fencing_token;
    let told = replay(other.claim(claim("done", "b")).await);
    assert_eq!(told.response, Some(response(b"result")));
    acquired(other.acquire_lock(acquire("free", "b")).await);

    proxy.set(Mode::Pass).await;
    asked.recovers(Instant::now(), "swallowed").await;
    let again = claimed(client.claim(claim("key", "a")).await);
    assert!(again.already_held);
    assert_eq!((again.fencing_token, again.attempt), (claim_fence, 1));
    let again = acquired(client.acquire_lock(acquire("lock", "a")).await);
    assert!(again.already_held);
    assert_eq!(again.fencing_token, lock_fence);
    completed(client.complete(complete("done", "a", b"result")).await);
    released(client.release_lock(release("free", "a")).await);

    in_flight(other.claim(claim("key", "b")).await);
    held(other.acquire_lock(acquire("lock", "b")).await);
    // The repeated release was not that of the next holder.
    let again = acquired(other.acquire_lock(acquire("free", "b")).await);
    assert!(again.already_held);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

const FOLLOW_THE_STORE: [&str; 3] = [
    "",
    "claimlock.v1.CoordinationService",
    "claimlock.v1.AdminService",
];

#[tokio::test]
async fn a_service_that_starts_before_redis_waits_for_it_and_says_so() {
    let mut redis = RedisServer::with(RedisOptions {
        appendonly: true,
        ..RedisOptions::default()
    })
    .await;
    let first = Service::start(&redis).await;
    let granted = claimed(first.coordination().await.claim(claim("key", "a")).await);
    first.stop().await.expect("it ends in order");
    redis.kill();

    let service = Service::at(&redis.url(), store_timeout(Duration::from_millis(300))).await;
    let channel = service.channel().await;
    let mut client = service.coordination().await;
    for _ in 0..2 {
        for name in FOLLOW_THE_STORE {
            assert_eq!(
                health(&channel, name).await,
                ServingStatus::NotServing,
                "{name:?}"
            );
        }
        assert_eq!(health(&channel, "liveness").await, ServingStatus::Serving);
        assert_eq!(http_status(service.http, "/readyz").await, Some(503));
        assert_eq!(http_status(service.http, "/healthz").await, Some(200));
        let status = client.claim(claim("key", "b")).await.expect_err("no redis");
        assert_store_unavailable(&status);
    }

    redis.restart().await;
    let since = Instant::now();
    service.is_ready().await;
    eprintln!("ready {:?} after redis", since.elapsed());
    for name in FOLLOW_THE_STORE {
        assert_eq!(
            health(&channel, name).await,
            ServingStatus::Serving,
            "{name:?}"
        );
    }
    in_flight(client.claim(claim("key", "b")).await);
    let again = claimed(client.claim(claim("key", "a")).await);
    assert!(again.already_held);
    assert_eq!(again.fencing_token, granted.fencing_token);

    // And when Redis goes away later, the same way back.
    redis.stop_process();
    eventually("health to follow", async || {
        let status = health(&channel, "").await;
        (status == ServingStatus::NotServing).then_some(())
    })
    .await;
    assert_eq!(http_status(service.http, "/readyz").await, Some(503));
    assert_eq!(health(&channel, "liveness").await, ServingStatus::Serving);
    redis.resume_process();
    service.is_ready().await;
    completed(client.complete(complete("key", "a", b"done")).await);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}
