//! What is logged of calls: one line for each that did not get what it asked for, and nothing that its caller named.

use crate::support::calls::{Clients, force_release, resolve_claim};
use crate::support::eventually;
use crate::support::logs::Logs;
use crate::support::metrics::Scrape;
use crate::support::program::Program;
use crate::support::raw::{Raw, Sent, framed};
use crate::support::redis::RedisServer;
use crate::support::requests::{
    abandon, acquire, claim, complete, millis, release, renew_claim, renew_lock, token,
};
use crate::support::service::{Service, store_timeout};
use crate::support::unmistakable::{self, calls_of_each_kind};
use claimlock::rpc::proto::*;
use serde_json::{Value, json};
use std::time::Duration;
use tonic::Request;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const REFUSALS: &str = "claimlock::refusals";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
/// printf '%s\0%s\0%s' default '' k | sha256sum | cut -c 1-16
const HASH_OF_K: &str = "88c743657f18ecc6";
/// printf '%s\0%s' default r | sha256sum | cut -c 1-16
const HASH_OF_R: &str = "f888de8844ee5274";

async fn world() -> (RedisServer, Service, Clients) {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let clients = Clients::of(&service).await;
    (redis, service, clients)
}

/// With the trace that its caller is in.
fn traced<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let value = traceparent.parse().expect("it is ASCII");
    request.metadata_mut().insert("traceparent", value);
    request
}

/// The events without what differs from run to run.
fn told(events: Vec<Value>) -> Vec<Value> {
    let strip = |mut event: Value| {
        let fields = event.as_object_mut().expect("an event is an object");
        fields.remove("timestamp");
        fields.remove("target");
        event
    };
    events.into_iter().map(strip).collect()
}

fn refusal(call: &str, outcome: &str, subject: &str) -> Value {
    json!({
        "level": "INFO", "message": "not granted", "call": call, "outcome": outcome,
        "tenant": "default", "subject": subject, "trace_id": TRACE,
    })
}

fn loss(call: &str, reason: &str, subject: &str) -> Value {
    let mut line = refusal(call, "lost", subject);
    line["reason"] = reason.into();
    line
}

#[tokio::test]
async fn each_refusal_and_each_loss_is_one_line_and_a_success_is_none() {
    let (_redis, _service, mut clients) = world().await;
    let client = &mut clients.coordination;
    let logs = Logs::capture();
    client
        .claim(traced(claim("k", "a")))
        .await
        .expect("a claim");
    client
        .acquire_lock(traced(acquire("r", "a")))
        .await
        .expect("a lock");
    client
        .renew_claim(traced(renew_claim("k", "a")))
        .await
        .expect("renewed");
    assert_eq!(logs.of(REFUSALS), [] as [Value; 0]);

    client
        .claim(traced(claim("k", "b")))
        .await
        .expect("in flight");
    let other = ClaimRequest {
        operation: "another".to_owned(),
        ..claim("k", "b")
    };
    client.claim(traced(other)).await.expect("a mismatch");
    client
        .renew_claim(traced(renew_claim("k", "b")))
        .await
        .expect("lost");
    client
        .complete(traced(complete("k", "b", b"x")))
        .await
        .expect("lost");
    let abandonment = abandon("k", "b", AbandonEffect::None);
    client.abandon(traced(abandonment)).await.expect("lost");
    client
        .acquire_lock(traced(acquire("r", "b")))
        .await
        .expect("held");
    client
        .renew_lock(traced(renew_lock("r", "b")))
        .await
        .expect("lost");
    client
        .release_lock(traced(release("r", "b")))
        .await
        .expect("lost");
    client
        .acquire_lock(traced(acquire("r", "b")))
        .await
        .expect("lost");
    assert_eq!(
        told(logs.of(REFUSALS)),
        [
            refusal("claim", "in_flight", HASH_OF_K),
            refusal("claim", "mismatch", HASH_OF_K),
            loss("renew_claim", "taken_over", HASH_OF_K),
            loss("complete", "taken_over", HASH_OF_K),
            loss("abandon", "taken_over", HASH_OF_K),
            refusal("acquire_lock", "held", HASH_OF_R),
            loss("renew_lock", "not_found", HASH_OF_R),
            loss("release_lock", "not_found", HASH_OF_R),
            loss("acquire_lock", "released", HASH_OF_R),
        ]
    );
    client
        .complete(complete("k", "a", b"x"))
        .await
        .expect("done");
    client.claim(claim("k", "c")).await.expect("a replay");
    client
        .release_lock(release("r", "a"))
        .await
        .expect("released");
    assert_eq!(logs.of(REFUSALS).len(), 9);
}

#[tokio::test]
async fn an_uncertain_claim_is_a_refusal_and_without_a_trace_none_is_named() {
    let (_redis, _service, mut clients) = world().await;
    let client = &mut clients.coordination;
    let unsure = ClaimRequest {
        lease: millis(1),
        on_lease_over: LeaseOverPolicy::MarkUncertain.into(),
        ..claim("k", "a")
    };
    client.claim(unsure).await.expect("a claim");
    let logs = Logs::capture();
    let line = eventually("the lease to end", async || {
        client.claim(claim("k", "b")).await.expect("an outcome");
        let line = logs.of(REFUSALS).pop()?;
        (line["outcome"] == "uncertain").then_some(line)
    })
    .await;
    let mut expected = refusal("claim", "uncertain", HASH_OF_K);
    expected
        .as_object_mut()
        .expect("an object")
        .remove("trace_id");
    assert_eq!(told(vec![line]), [expected]);
}

fn failure(method: &str, code: &str, more: Value) -> Value {
    let mut line = json!({
        "level": "INFO", "message": "call failed", "code": code, "trace_id": TRACE,
        "method": if method.starts_with('_') { method.to_owned() } else { format!("claimlock.v1.{method}") },
    });
    for (name, value) in more.as_object().expect("an object") {
        line[name] = value.clone();
    }
    line
}

#[tokio::test]
async fn each_call_that_fails_is_one_line_whoever_answered_it() {
    let (_redis, service, mut clients) = world().await;
    let raw = Raw::to(&service).await;
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let headers = [("traceparent", traceparent.as_str())];
    let logs = Logs::capture();
    let bad = ClaimRequest {
        claim_token: "short".to_owned(),
        ..claim("", "a")
    };
    clients
        .coordination
        .claim(traced(bad))
        .await
        .expect_err("no key");
    let nothing = GetLockRequest::default();
    clients
        .admin
        .get_lock(traced(nothing))
        .await
        .expect_err("no resource");
    raw.call("Claim", &headers, Sent::all(framed(b"\xff")))
        .await;
    let late = [headers[0], ("grpc-timeout", "1m")];
    raw.call("Claim", &late, Sent::without_end(vec![])).await;
    raw.call("Pipeline", &headers, Sent::nothing()).await;
    raw.call("Unclaim", &headers, Sent::nothing()).await;
    assert_eq!(
        told(logs.of(REFUSALS)),
        [
            failure(
                "CoordinationService/Claim",
                "INVALID_ARGUMENT",
                json!({"reason": "INVALID_FIELD", "fields": "key claim_token"}),
            ),
            failure(
                "AdminService/GetLock",
                "INVALID_ARGUMENT",
                json!({"reason": "INVALID_FIELD", "fields": "resource"}),
            ),
            failure(
                "CoordinationService/Claim",
                "INVALID_ARGUMENT",
                json!({"reason": "INVALID_FIELD"}),
            ),
            failure(
                "CoordinationService/Claim",
                "DEADLINE_EXCEEDED",
                json!({"reason": "DEADLINE_EXCEEDED"}),
            ),
            failure("CoordinationService/Pipeline", "UNIMPLEMENTED", json!({})),
            failure("_OTHER", "UNIMPLEMENTED", json!({})),
        ]
    );
}

#[tokio::test]
async fn a_call_that_the_store_did_not_answer_is_one_line_with_the_cause() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, store_timeout(Duration::from_millis(200))).await;
    let mut client = service.coordination().await;
    redis.stop_process();
    let logs = Logs::capture();
    client
        .claim(traced(claim("k", "a")))
        .await
        .expect_err("no answer");
    redis.resume_process();
    let expected = json!({
        "level": "WARN", "message": "the store could not be asked", "cause": "no answer in time",
        "subject": HASH_OF_K, "trace_id": TRACE,
    });
    assert_eq!(told(logs.of(REFUSALS)), [expected]);
    assert_eq!(logs.of("claimlock::rpc::status"), [] as [Value; 0]);
}

#[tokio::test]
async fn a_defect_is_one_line_with_its_id_and_the_trace() {
    let (redis, _service, mut clients) = world().await;
    let mut connection = redis.connect().await;
    let record = ["cl:c:{default//k}", "no record"];
    let set = redis::cmd("SET")
        .arg(&record)
        .exec_async(&mut connection)
        .await;
    set.expect("it is written");
    let logs = Logs::capture();
    let call = clients.coordination.claim(traced(claim("k", "a"))).await;
    let status = call.expect_err("it is damaged");
    let [line] = &logs.of("claimlock::rpc::status")[..] else {
        panic!("not one line");
    };
    let id = status.message().split(' ').next_back().expect("an id");
    assert_eq!((&line["id"], &line["level"]), (&id.into(), &"ERROR".into()));
    assert_eq!(
        (&line["trace_id"], &line["subject"]),
        (&TRACE.into(), &HASH_OF_K.into())
    );
    assert_eq!(logs.of(REFUSALS), [] as [Value; 0]);
}

#[tokio::test]
async fn a_stream_that_the_drain_ends_is_a_line_with_the_reason() {
    let (_redis, service, _clients) = world().await;
    let mut health = HealthClient::new(service.channel().await);
    let watched = health.watch(HealthCheckRequest::default()).await;
    let mut watched = watched.expect("health is served").into_inner();
    let logs = Logs::capture();
    let stopping = tokio::spawn(service.stop());
    while watched.message().await.is_ok() {}
    stopping.await.expect("no panic").expect("it ends well");
    let [line] = &told(logs.of(REFUSALS))[..] else {
        panic!("not one line");
    };
    assert_eq!(
        *line,
        json!({
            "level": "INFO", "message": "call failed", "method": "grpc.health.v1.Health/Watch",
            "code": "UNAVAILABLE", "reason": "DRAINING",
        })
    );
}

#[tokio::test]
async fn an_operators_act_names_the_trace() {
    let (_redis, _service, mut clients) = world().await;
    let logs = Logs::capture();
    let request = traced(resolve_claim("k", 1));
    clients
        .admin
        .resolve_claim(request)
        .await
        .expect("left alone");
    let request = traced(force_release("r"));
    clients
        .admin
        .force_release_lock(request)
        .await
        .expect("nobody held it");
    let audit = logs.of("claimlock::audit");
    assert_eq!(audit.len(), 2);
    for line in audit {
        assert_eq!(line["trace_id"], TRACE, "{line}");
    }
}

#[tokio::test]
async fn nothing_that_a_caller_named_is_in_a_log_line_or_a_metric() {
    let (redis, service, mut clients) = world().await;
    let logs = Logs::capture();
    calls_of_each_kind(&mut clients).await;
    redis.stop_process();
    let request = ClaimRequest {
        scope: unmistakable::SCOPE.to_owned(),
        claim_token: token(unmistakable::TOKEN),
        ..claim(unmistakable::KEY, "")
    };
    clients
        .coordination
        .claim(request)
        .await
        .expect_err("no answer");
    redis.resume_process();

    // What libraries trace at their own most verbose levels is not ours, and not on by default.
    let all = logs.all();
    let ours = all.iter().filter(|line| {
        let target = line["target"].as_str().expect("a target");
        let is_verbose = ["DEBUG", "TRACE"].contains(&line["level"].as_str().expect("a level"));
        target != "claimlock::audit" && (target.starts_with("claimlock") || !is_verbose)
    });
    let ours: Vec<String> = ours.map(Value::to_string).collect();
    assert!(ours.len() >= 10, "{ours:?}");
    let scrape = Scrape::of(&service).await;
    for text in ours.iter().chain([&scrape.text]) {
        assert!(!text.contains(unmistakable::MARK), "{text}");
    }
    let audit = logs.of("claimlock::audit");
    assert!(audit.iter().any(|line| line["key"] == unmistakable::KEY));
}

#[tokio::test]
async fn a_flood_of_refusals_can_be_silenced_alone() {
    let redis = RedisServer::start().await;
    let flags = [
        "--log-level",
        "info,claimlock::refusals=off",
        "--log-format",
        "json",
    ];
    let silent = Program::serve(&redis.url(), &flags).await;
    let loud = Program::serve(&redis.url(), &flags[2..]).await;
    for (program, is_loud) in [(&silent, false), (&loud, true)] {
        program.is_ready().await;
        let mut client = program.coordination().await;
        client
            .acquire_lock(acquire("r", "a"))
            .await
            .expect("a lock");
        client.acquire_lock(acquire("r", "b")).await.expect("held");
        client.claim(claim("", "a")).await.expect_err("no key");
        let log = program.log();
        assert!(log.contains("redis answers"), "{log}");
        for line in ["not granted", "call failed"] {
            assert_eq!(log.contains(line), is_loud, "{line}: {log}");
        }
    }
}
