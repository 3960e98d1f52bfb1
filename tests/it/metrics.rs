//! What Prometheus is told.

use crate::support::calls::Clients;
use crate::support::locks::Locks;
use crate::support::metrics::{Scrape, handled};
use crate::support::raw::{Raw, Sent, framed};
use crate::support::redis::RedisServer;
use crate::support::requests::{
    abandon, acquire, claim, complete, millis, release, renew_claim, renew_lock, response, token,
};
use crate::support::service::{Service, store_timeout};
use crate::support::{BOUND, eventually};
use claimlock::config::Settings;
use claimlock::rpc::proto::*;
use std::process::{Command, Stdio};
use std::time::Duration;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

async fn world() -> (RedisServer, Service, Clients) {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let clients = Clients::of(&service).await;
    (redis, service, clients)
}

fn claims(outcome: &str) -> String {
    format!("claimlock_claims_total{{outcome=\"{outcome}\"}}")
}

fn lost(reason: &str) -> String {
    format!("claimlock_lease_lost_total{{reason=\"{reason}\"}}")
}

#[tokio::test]
async fn each_outcome_of_a_claim_is_counted() {
    let (_redis, service, mut clients) = world().await;
    let client = &mut clients.coordination;
    let before = Scrape::of(&service).await;
    let short = ClaimRequest {
        lease: millis(1),
        on_lease_over: LeaseOverPolicy::MarkUncertain.into(),
        ..claim("unsure", "a")
    };
    for request in [
        claim("k", "a"),
        claim("k", "b"),
        ClaimRequest {
            operation: "another".to_owned(),
            ..claim("k", "c")
        },
        short.clone(),
    ] {
        client.claim(request).await.expect("an outcome");
    }
    let done = client.complete(complete("k", "a", b"done")).await;
    done.expect("it is completed");
    client.claim(claim("k", "b")).await.expect("a replay");
    let given_up = client.abandon(abandon("gone", "a", AbandonEffect::None));
    given_up.await.expect("it is spent");
    client.claim(claim("gone", "a")).await.expect("a loss");
    eventually("the lease to end", async || {
        let request = ClaimRequest {
            claim_token: token("b"),
            ..short.clone()
        };
        let answer = client.claim(request).await.expect("an outcome");
        let outcome = answer.into_inner().outcome.expect("an outcome");
        matches!(outcome, claim_response::Outcome::Uncertain(_)).then_some(())
    })
    .await;

    let after = Scrape::of(&service).await;
    let growth = after.growth_since(&before);
    for (outcome, times) in [
        ("claimed", 2.0),
        ("mismatch", 1.0),
        ("replay", 1.0),
        ("uncertain", 1.0),
        ("lost", 1.0),
    ] {
        assert_eq!(growth[claims(outcome).as_str()], times, "{outcome}");
    }
    // One, and those while the lease was live.
    assert!(growth[claims("in_flight").as_str()] >= 1.0);
    assert_eq!(growth[lost("released").as_str()], 1.0);
}

#[tokio::test]
async fn a_loss_is_counted_whichever_call_is_told_of_it() {
    let (_redis, service, mut clients) = world().await;
    let client = &mut clients.coordination;
    client.claim(claim("k", "a")).await.expect("a claim");
    client
        .acquire_lock(acquire("r", "a"))
        .await
        .expect("a lock");
    let before = Scrape::of(&service).await;
    client
        .renew_claim(renew_claim("k", "b"))
        .await
        .expect("lost");
    client
        .complete(complete("k", "b", b"x"))
        .await
        .expect("lost");
    let given_up = client.abandon(abandon("k", "b", AbandonEffect::None));
    given_up.await.expect("lost");
    client.renew_lock(renew_lock("r", "b")).await.expect("lost");
    client.release_lock(release("r", "b")).await.expect("lost");
    client.acquire_lock(acquire("r", "b")).await.expect("lost");
    let after = Scrape::of(&service).await;
    let growth = after.growth_since(&before);
    assert_eq!(growth[lost("taken_over").as_str()], 3.0);
    assert_eq!(growth[lost("not_found").as_str()], 2.0);
    assert_eq!(growth[lost("released").as_str()], 1.0);
    let acquisitions = "claimlock_lock_acquire_total{outcome=\"lost\"}";
    assert_eq!(growth[acquisitions], 1.0);
}

#[tokio::test]
async fn acquired_and_held_locks_are_counted_and_only_the_first_are_waits() {
    let (_redis, service, mut clients) = world().await;
    let client = &mut clients.coordination;
    let before = Scrape::of(&service).await;
    for name in ["a", "a", "b"] {
        client
            .acquire_lock(acquire("r", name))
            .await
            .expect("an outcome");
    }
    let after = Scrape::of(&service).await;
    let growth = after.growth_since(&before);
    let acquire = |outcome| format!("claimlock_lock_acquire_total{{outcome=\"{outcome}\"}}");
    assert_eq!(growth[acquire("acquired").as_str()], 2.0);
    assert_eq!(growth[acquire("held").as_str()], 1.0);
    assert_eq!(growth["claimlock_lock_wait_seconds_count"], 1.0);
    let waited = growth["claimlock_lock_wait_seconds_sum"];
    assert!(waited > 0.0 && waited < BOUND.as_secs_f64(), "{waited}");
}

const HELD: &str = "claimlock_lock_held_seconds_count";
const HELD_SUM: &str = "claimlock_lock_held_seconds_sum";

#[tokio::test]
async fn how_long_a_lock_was_held_is_known_once_it_is_released_and_once_only() {
    let locks = Locks::start().await;
    let lasting = AcquireLockRequest {
        hold_at_least: millis(100_000),
        ..acquire("r", "a")
    };
    locks.acquire(lasting).await.acquired();
    for _ in 0..2 {
        locks.release(release("r", "a")).await.released();
    }
    // It was released before, and only kept the lock taken.
    assert_eq!(locks.force_release("r", 0).await, 0);
    let scrape = Scrape::of(&locks.service).await;
    assert_eq!(scrape.value(HELD), 1.0);
    assert!(scrape.value(HELD_SUM) < BOUND.as_secs_f64());
    locks.finish().await;
}

#[tokio::test]
async fn how_long_a_lock_was_held_is_known_once_it_is_taken_away() {
    let locks = Locks::start().await;
    for name in ["a", "b"] {
        let shared = crate::support::requests::share("r", name, 0);
        locks.acquire(shared).await.acquired();
    }
    assert_eq!(locks.force_release("r", 0).await, 2);
    assert_eq!(Scrape::of(&locks.service).await.value(HELD), 2.0);
    locks.finish().await;
}

#[tokio::test]
async fn a_lease_that_was_found_to_be_over_counts_as_long_as_it_lasted() {
    let locks = Locks::start().await;
    let short = AcquireLockRequest {
        lease: millis(50),
        ..acquire("r", "a")
    };
    locks.acquire(short).await.acquired();
    locks.leases_over("r").await;
    locks.acquire(acquire("r", "b")).await.acquired();
    // Nobody is left to be found.
    locks.acquire(acquire("r", "c")).await.held();
    let scrape = Scrape::of(&locks.service).await;
    assert_eq!((scrape.value(HELD), scrape.value(HELD_SUM)), (1.0, 0.05));
    locks.finish().await;
}

#[tokio::test]
async fn each_call_is_counted_by_its_method_and_the_code_of_its_answer() {
    let (redis, service, mut clients) = world().await;
    let before = Scrape::of(&service).await;
    let raw = Raw::to(&service).await;
    let answer = clients.coordination.claim(claim("k", "a")).await;
    answer.expect("a claim");
    let bad = ClaimRequest {
        key: String::new(),
        ..claim("", "a")
    };
    clients.coordination.claim(bad).await.expect_err("no key");
    clients
        .admin
        .get_lock(GetLockRequest::default())
        .await
        .expect_err("no resource");
    raw.call("Claim", &[], Sent::all(framed(b"\xff"))).await;
    let late = Sent::without_end(vec![]);
    raw.call("Claim", &[("grpc-timeout", "1m")], late).await;
    raw.call("KeepAlive", &[], Sent::nothing()).await;
    raw.call("KeepAlive", &[], Sent::all(framed(b"\xff"))).await;
    raw.call("Unclaim", &[], Sent::nothing()).await;
    let after = Scrape::of(&service).await;
    let growth = after.growth_since(&before);
    let of = |method, code| growth[handled("CoordinationService", method, code).as_str()];
    assert_eq!(of("Claim", "OK"), 1.0);
    assert_eq!(of("Claim", "InvalidArgument"), 2.0);
    assert_eq!(of("Claim", "DeadlineExceeded"), 1.0);
    assert_eq!(
        growth[handled("AdminService", "GetLock", "InvalidArgument").as_str()],
        1.0
    );
    let stream = |code| {
        growth[format!(
            "grpc_server_handled_total{{grpc_type=\"bidi_stream\",\
             grpc_service=\"claimlock.v1.CoordinationService\",grpc_method=\"KeepAlive\",grpc_code=\"{code}\"}}"
        )
        .as_str()]
    };
    assert_eq!(stream("OK"), 1.0);
    assert_eq!(stream("InvalidArgument"), 1.0);
    let unknown = "grpc_server_handled_total{grpc_type=\"unknown\",grpc_service=\"unknown\",\
         grpc_method=\"unknown\",grpc_code=\"Unimplemented\"}";
    assert_eq!(growth[unknown], 1.0);
    let timed = "grpc_server_handling_seconds_count{grpc_type=\"unary\",\
         grpc_service=\"claimlock.v1.CoordinationService\",grpc_method=\"Claim\"}";
    assert_eq!(growth[timed], 4.0);
    drop(redis);
}

#[tokio::test]
async fn a_call_whose_caller_went_away_is_counted_as_canceled() {
    let (redis, service, clients) = world().await;
    redis.stop_process();
    eventually("a call that was on its way to be counted", async || {
        let mut client = clients.coordination.clone();
        let call = client.claim(claim("k", "a"));
        let given_up = tokio::time::timeout(Duration::from_millis(20), call).await;
        assert!(given_up.is_err(), "redis answers");
        let scrape = Scrape::of(&service).await;
        let canceled = handled("CoordinationService", "Claim", "Canceled");
        (scrape.value(&canceled) >= 1.0).then_some(())
    })
    .await;
    redis.resume_process();
}

#[tokio::test]
async fn a_stream_that_the_drain_ends_is_counted_as_unavailable() {
    let redis = RedisServer::start().await;
    let settings = Settings {
        drain_grace: 10 * BOUND,
        ..Settings::default()
    };
    let service = Service::with(&redis, settings).await;
    let http = service.http;
    // Keeps the drain from its end.
    let raw = Raw::to(&service).await;
    let open = tokio::spawn(async move { raw.call("Claim", &[], Sent::without_end(vec![])).await });
    let channel = service.channel().await;
    let mut health = HealthClient::new(channel);
    let watched = health.watch(HealthCheckRequest::default());
    let mut watched = watched.await.expect("health is served").into_inner();
    let stopping = tokio::spawn(service.stop());
    while watched.message().await.is_ok() {}

    let scrape = Scrape::at(http).await;
    let ended = "grpc_server_handled_total{grpc_type=\"server_stream\",grpc_service=\"grpc.health.v1.Health\",\
         grpc_method=\"Watch\",grpc_code=\"Unavailable\"}";
    assert_eq!(scrape.value(ended), 1.0);
    open.abort();
    stopping.await.expect("no panic").expect("it ends well");
}

#[tokio::test]
async fn each_script_is_timed_and_the_store_is_up_or_not() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, store_timeout(Duration::from_millis(200))).await;
    let mut client = service.coordination().await;
    let duration =
        |script| format!("claimlock_store_duration_seconds_count{{script=\"{script}\"}}");
    client.claim(claim("k", "a")).await.expect("a claim");
    let scrape = Scrape::of(&service).await;
    assert_eq!(scrape.value("claimlock_store_up"), 1.0);
    assert_eq!(scrape.value(&duration("claim")), 1.0);
    assert_eq!(scrape.value(&duration("release_lock")), 0.0);

    redis.stop_process();
    client.claim(claim("k", "b")).await.expect_err("no answer");
    let scrape = eventually("the store to be down", async || {
        let scrape = Scrape::of(&service).await;
        (scrape.value("claimlock_store_up") == 0.0).then_some(scrape)
    })
    .await;
    // What was waited for in vain counts as well.
    assert!(scrape.value(&duration("claim")) >= 2.0);
    redis.resume_process();
    eventually("the store to be up", async || {
        let up = Scrape::of(&service).await.value("claimlock_store_up");
        (up == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_thousand_methods_that_nobody_serves_add_no_series() {
    let (_redis, service, _clients) = world().await;
    let before = Scrape::of(&service).await;
    let raw = Raw::to(&service).await;
    for number in 0..500 {
        for path in [
            format!("/claimlock.v1.CoordinationService/Nonsense{number}"),
            format!("/nonsense.v{number}.Service/Claim"),
        ] {
            let status = raw.call_path(&path, &[], Sent::nothing()).await;
            assert_eq!(status.code(), Code::Unimplemented);
        }
    }
    let after = Scrape::of(&service).await;
    assert_eq!(after.names(), before.names());
    assert!(!after.text.contains("onsense"));
}

#[tokio::test]
async fn tenants_are_told_apart_up_to_the_bound_that_was_set() {
    let redis = RedisServer::start().await;
    let settings = Settings {
        metrics_tenants: 2,
        ..Settings::default()
    };
    let service = Service::with(&redis, settings).await;
    let mut client = service.coordination().await;
    for tenant in ["one", "two", "three", "four", "one"] {
        let request = ClaimRequest {
            tenant: tenant.to_owned(),
            ..claim("k", "a")
        };
        client.claim(request).await.expect("a claim");
        let request = AcquireLockRequest {
            tenant: tenant.to_owned(),
            ..acquire("r", "a")
        };
        client.acquire_lock(request).await.expect("a lock");
    }
    let scrape = Scrape::of(&service).await;
    for (tenant, times) in [("one", 2.0), ("two", 1.0), ("other", 2.0)] {
        for series in [
            format!("claimlock_claims_total{{outcome=\"claimed\",tenant=\"{tenant}\"}}"),
            format!("claimlock_lock_acquire_total{{outcome=\"acquired\",tenant=\"{tenant}\"}}"),
        ] {
            assert_eq!(scrape.value(&series), times, "{series}");
        }
    }
    assert!(!scrape.text.contains("three") && !scrape.text.contains("four"));
}

#[tokio::test]
async fn every_series_that_is_known_beforehand_is_there_at_zero() {
    let (_redis, service, mut clients) = world().await;
    let before = Scrape::of(&service).await;
    for series in [
        claims("uncertain"),
        lost("forced"),
        handled("CoordinationService", "Claim", "Internal"),
        handled("AdminService", "ResolveClaim", "Unavailable"),
        "claimlock_lock_held_seconds_count".to_owned(),
    ] {
        assert_eq!(before.value(&series), 0.0, "{series}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let build = format!("claimlock_build_info{{version=\"{version}\"}}");
    assert_eq!(before.value(&build), 1.0);

    let client = &mut clients.coordination;
    client.claim(claim("k", "a")).await.expect("a claim");
    client
        .complete(complete("k", "a", b"x"))
        .await
        .expect("done");
    client
        .acquire_lock(acquire("r", "a"))
        .await
        .expect("a lock");
    client
        .release_lock(release("r", "a"))
        .await
        .expect("released");
    let request = ResolveClaimRequest {
        key: "k".to_owned(),
        fencing_token: 1,
        reason: "a test".to_owned(),
        resolution: Some(resolve_claim_request::Resolution::Complete(response(b"y"))),
        ..ResolveClaimRequest::default()
    };
    clients
        .admin
        .resolve_claim(request)
        .await
        .expect("left alone");
    assert_eq!(Scrape::of(&service).await.names(), before.names());
}

/// `make unit` installs promtool where it is missing.
#[tokio::test]
async fn promtool_finds_nothing_wrong_with_the_metrics() {
    use std::io::Write as _;
    let (_redis, service, mut clients) = world().await;
    clients
        .coordination
        .claim(claim("k", "a"))
        .await
        .expect("a claim");
    let scrape = Scrape::of(&service).await;
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Ok(promtool) => promtool,
        Err(error) => panic!(
            "promtool does not start, scripts/install-needs.sh promtool installs it: {error}"
        ),
    };
    let mut stdin = promtool.stdin.take().expect("it is piped");
    stdin.write_all(scrape.text.as_bytes()).expect("it reads");
    drop(stdin);
    let checked = promtool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");
}
