//! The traces that the program exports, looked at where they arrive.

use crate::support::calls::{Clients, get_claim};
use crate::support::certificates::{TlsDoor, certificates};
use crate::support::collector::{Collector, PROTOCOLS, Seen};
use crate::support::program::Program;
use crate::support::raw::{Raw, Sent};
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::requests::{acquire, claim, complete};
use crate::support::service::Service;
use crate::support::unmistakable::{self, calls_of_each_kind};
use crate::support::{BOUND, eventually};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic::Request;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const CLAIM: &str = "claimlock.v1.CoordinationService/Claim";

/// In the trace of its caller, which keeps it or does not.
fn traced<T>(message: T, flags: &str) -> Request<T> {
    let mut request = Request::new(message);
    let traceparent = format!("00-{TRACE}-{SPAN}-{flags}");
    let metadata = request.metadata_mut();
    metadata.insert("traceparent", traceparent.parse().expect("it is ASCII"));
    metadata.insert(
        "tracestate",
        "vendor=of-a-test".parse().expect("it is ASCII"),
    );
    request
}

async fn world(protocol: &'static str) -> (RedisServer, Collector, Program) {
    let redis = RedisServer::with(RedisOptions {
        tcp: true,
        ..RedisOptions::default()
    })
    .await;
    let collector = Collector::start(protocol).await;
    let program = Program::serve_with(&collector.variables(), &redis.tcp_url(), &[]).await;
    program.is_ready().await;
    (redis, collector, program)
}

/// The call's span and those of its scripts.
fn apart(trace: Vec<Seen>) -> (Seen, Vec<Seen>) {
    let (mut calls, scripts): (Vec<Seen>, Vec<Seen>) =
        trace.into_iter().partition(|seen| seen.span.kind == 2);
    assert_eq!(calls.len(), 1, "{calls:?}");
    (calls.remove(0), scripts)
}

fn attributes(expected: &[(&str, &str)]) -> BTreeMap<String, String> {
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    expected.iter().map(text).collect()
}

#[tokio::test]
async fn a_call_is_a_span_in_its_callers_trace_with_its_script_as_a_child() {
    for protocol in PROTOCOLS {
        let (redis, collector, program) = world(protocol).await;
        let mut client = program.coordination().await;
        client
            .claim(traced(claim("k", "a"), "01"))
            .await
            .expect("a claim");
        let trace = collector
            .trace("the claim", |call| call.span.name == CLAIM)
            .await;
        let (call, scripts) = apart(trace);

        assert_eq!(
            (call.trace_id().as_str(), call.parent_id().as_str()),
            (TRACE, SPAN)
        );
        assert_eq!(call.span.trace_state, "vendor=of-a-test");
        assert_eq!(call.status(), 0);
        let mut found = call.attributes.clone();
        let peer_port = found
            .remove("network.peer.port")
            .expect("the caller's port");
        assert_ne!(
            peer_port.parse::<u16>().expect("a port"),
            program.grpc.port()
        );
        let port = program.grpc.port().to_string();
        assert_eq!(
            found,
            attributes(&[
                ("rpc.system.name", "grpc"),
                ("rpc.method", CLAIM),
                ("rpc.response.status_code", "OK"),
                ("rpc.status_code", "OK"),
                ("server.address", "127.0.0.1"),
                ("server.port", &port),
                ("network.peer.address", "127.0.0.1"),
                ("claimlock.outcome", "claimed"),
            ])
        );
        assert_eq!(call.resource["service.name"], "claimlock");
        assert_eq!(call.resource["service.version"], env!("CARGO_PKG_VERSION"));

        let [script] = &scripts[..] else {
            panic!("not one script: {scripts:?}");
        };
        assert_eq!(
            (script.span.kind, script.span.name.as_str()),
            (3, "EVALSHA claim")
        );
        assert_eq!(script.parent_id(), call.span_id());
        let port = redis.tcp_addr().port().to_string();
        assert_eq!(
            script.attributes,
            attributes(&[
                ("db.system.name", "redis"),
                ("db.operation.name", "EVALSHA"),
                ("db.stored_procedure.name", "claim"),
                ("db.namespace", "0"),
                ("server.address", "127.0.0.1"),
                ("server.port", &port),
            ])
        );
        assert!(script.span.start_time_unix_nano >= call.span.start_time_unix_nano);
        assert!(script.span.end_time_unix_nano <= call.span.end_time_unix_nano);
        assert!(collector.headers().iter().all(|header| header == "here"));
    }
}

#[tokio::test]
async fn a_collector_behind_tls_is_trusted_by_its_authority_alone() {
    let redis = RedisServer::start().await;
    let (certificates, others) = (certificates(), certificates());
    let authority_in = |folder: &TempDir| folder.path().join("ca.pem").display().to_string();
    let (authorities, strangers) = (authority_in(&certificates), authority_in(&others));
    for protocol in PROTOCOLS {
        let collector = Collector::start(protocol).await;
        let door = TlsDoor::open(certificates.path(), collector.address, false).await;
        let mut variables = collector.variables();
        variables.push((
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            format!("https://{}", door.address),
        ));
        // Somebody else's authority, and that of the collector.
        for (authorities, is_trusted) in [(&strangers, false), (&authorities, true)] {
            variables.retain(|(name, _)| *name != "SSL_CERT_FILE");
            variables.push(("SSL_CERT_FILE", authorities.clone()));
            let program = Program::serve_with(&variables, &redis.url(), &[]).await;
            program.is_ready().await;
            let mut client = program.coordination().await;
            client.claim(claim("k", "a")).await.expect("an answer");
            if is_trusted {
                collector
                    .trace("the claim", |call| call.span.name == CLAIM)
                    .await;
                continue;
            }
            eventually("the export to fail", async || {
                program
                    .log()
                    .contains("spans cannot be exported")
                    .then_some(())
            })
            .await;
            assert_eq!(collector.spans().len(), 0);
        }
    }
}

#[tokio::test]
async fn a_call_whose_caller_has_no_trace_begins_one() {
    let (_redis, collector, program) = world("grpc").await;
    let mut client = program.coordination().await;
    client
        .acquire_lock(acquire("r", "a"))
        .await
        .expect("a lock");
    let name = "claimlock.v1.CoordinationService/AcquireLock";
    let trace = collector
        .trace("the lock", |call| call.span.name == name)
        .await;
    let (call, _) = apart(trace);
    assert_eq!(call.parent_id(), "");
    assert_eq!(call.attribute("claimlock.outcome"), Some("acquired"));
}

#[tokio::test]
async fn a_replay_links_to_the_claim_that_did_the_work() {
    let (_redis, collector, program) = world("http/protobuf").await;
    let mut client = program.coordination().await;
    client
        .claim(traced(claim("k", "a"), "01"))
        .await
        .expect("a claim");
    // A repeat by its holder is not what did it.
    client.claim(claim("k", "a")).await.expect("already held");
    client
        .complete(complete("k", "a", b"done"))
        .await
        .expect("completed");
    client.claim(claim("k", "b")).await.expect("a replay");
    let outcome = |wanted: &'static str| {
        move |call: &Seen| call.attribute("claimlock.outcome") == Some(wanted)
    };
    let (replay, _) = apart(collector.trace("the replay", outcome("replay")).await);
    let (first, _) = apart(
        collector
            .trace("the claim", |call| call.trace_id() == TRACE)
            .await,
    );
    let [link] = &replay.span.links[..] else {
        panic!("not one link: {replay:?}");
    };
    assert_eq!(link.trace_id, first.span.trace_id);
    assert_eq!(link.span_id, first.span.span_id);
    assert_ne!(replay.trace_id(), first.trace_id());
    let (completed, _) = apart(collector.trace("the end", outcome("completed")).await);
    assert_eq!(completed.span.links, []);
}

#[tokio::test]
async fn an_operator_is_told_the_trace_of_a_claim_whether_or_not_it_is_exported() {
    let (redis, collector, program) = world("grpc").await;
    let mut client = program.coordination().await;
    client.claim(claim("exported", "a")).await.expect("a claim");
    client
        .claim(traced(claim("unsampled", "a"), "00"))
        .await
        .expect("a claim");
    let (call, _) = apart(
        collector
            .trace("the claim", |call| call.span.name == CLAIM)
            .await,
    );

    let without = Service::at(&redis.tcp_url(), claimlock::config::Settings::default()).await;
    without.is_ready().await;
    let mut clients = Clients::of(&without).await;
    let client = &mut clients.coordination;
    client
        .claim(traced(claim("elsewhere", "a"), "01"))
        .await
        .expect("a claim");
    client.claim(claim("untraced", "a")).await.expect("a claim");
    for (key, expected) in [
        ("exported", call.trace_id().as_str()),
        ("unsampled", TRACE),
        ("elsewhere", TRACE),
        ("untraced", ""),
    ] {
        let answer = clients.admin.get_claim(get_claim(key)).await;
        let claim = answer.expect("an answer").into_inner().claim;
        assert_eq!(claim.expect("it is known").trace_id, expected, "{key}");
    }
}

#[tokio::test]
async fn what_fails_is_an_error_where_it_is_the_services_and_not_its_callers() {
    let (redis, collector, program) = world("grpc").await;
    let mut client = program.coordination().await;
    client.claim(claim("", "a")).await.expect_err("no key");
    let raw = Raw::at(program.grpc).await;
    raw.call("Unclaim", &[], Sent::nothing()).await;
    redis.stop_process();
    client.claim(claim("k", "a")).await.expect_err("no answer");
    redis.resume_process();

    let code = |wanted: &'static str| {
        move |call: &Seen| call.attribute("rpc.response.status_code") == Some(wanted)
    };
    let (bad, scripts) = apart(
        collector
            .trace("the bad call", code("INVALID_ARGUMENT"))
            .await,
    );
    assert_eq!((bad.status(), bad.attribute("error.type")), (0, None));
    assert_eq!(scripts.len(), 0);
    let (unknown, _) = apart(
        collector
            .trace("the unknown call", code("UNIMPLEMENTED"))
            .await,
    );
    assert_eq!(
        (unknown.span.name.as_str(), unknown.status()),
        ("_OTHER", 2)
    );
    assert_eq!(unknown.attribute("rpc.method"), Some("_OTHER"));
    let (failed, scripts) = apart(
        collector
            .trace("the failed call", code("UNAVAILABLE"))
            .await,
    );
    assert_eq!(
        (failed.status(), failed.attribute("error.type")),
        (2, Some("UNAVAILABLE"))
    );
    let last = scripts.last().expect("it was sent");
    assert_eq!(
        (last.status(), last.attribute("error.type")),
        (2, Some("timeout"))
    );
}

#[tokio::test]
async fn each_attempt_on_the_wire_is_a_span_of_its_own() {
    let (redis, collector, program) = world("grpc").await;
    let mut client = program.coordination().await;
    let mut connection = redis.connect().await;
    let scripts = eventually("a call whose connection broke under it", async || {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes");
        kill.exec_async(&mut connection)
            .await
            .expect("they are killed");
        client.claim(claim("k", "a")).await.expect("a claim");
        let spans = collector.spans();
        let broken = spans.iter().find(|seen| {
            seen.span.kind == 3 && seen.attribute("error.type") == Some("connection_broken")
        })?;
        let parent = broken.parent_id();
        let siblings = spans.iter().filter(|seen| seen.parent_id() == parent);
        let siblings: Vec<Seen> = siblings.cloned().collect();
        (siblings.len() > 1).then_some(siblings)
    })
    .await;
    let last = scripts
        .iter()
        .max_by_key(|seen| seen.span.start_time_unix_nano);
    assert_eq!(last.expect("there are some").status(), 0);
}

#[tokio::test]
async fn what_the_caller_does_not_keep_is_not_exported() {
    let (_redis, collector, program) = world("grpc").await;
    let mut client = program.coordination().await;
    client
        .claim(traced(claim("k", "a"), "00"))
        .await
        .expect("a claim");
    client.claim(claim("k", "b")).await.expect("in flight");
    collector
        .trace("the later call", |call| call.span.name == CLAIM)
        .await;
    assert!(
        collector
            .spans()
            .iter()
            .all(|seen| seen.trace_id() != TRACE)
    );
    // Its line has the trace all the same.
    client
        .claim(traced(claim("k", "c"), "00"))
        .await
        .expect("in flight");
    assert!(program.log().contains(TRACE), "{}", program.log());
}

#[tokio::test]
async fn what_the_caller_keeps_is_exported_whatever_share_of_the_other_traces_is() {
    let redis = RedisServer::start().await;
    let collector = Collector::start("grpc").await;
    let mut variables = collector.variables();
    variables.push(("OTEL_TRACES_SAMPLER", "parentbased_always_off".to_owned()));
    let program = Program::serve_with(&variables, &redis.url(), &[]).await;
    program.is_ready().await;
    let mut client = program.coordination().await;
    client.claim(claim("k", "a")).await.expect("a claim");
    let kept = client.claim(traced(claim("k", "a"), "01")).await;
    kept.expect("the same claim");
    collector
        .trace("the call", |call| call.span.name == CLAIM)
        .await;
    let spans = collector.spans();
    assert!(spans.iter().all(|seen| seen.trace_id() == TRACE));
}

#[tokio::test]
async fn the_standard_variables_decide_on_sampling_and_on_the_name() {
    let redis = RedisServer::start().await;
    let collector = Collector::start("grpc").await;
    let variables = |more: &[(&'static str, &str)]| {
        let more = more
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        [collector.variables(), more.collect()].concat()
    };
    let silent = [
        variables(&[("OTEL_SDK_DISABLED", "true")]),
        variables(&[("OTEL_TRACES_EXPORTER", "none")]),
        variables(&[("OTEL_TRACES_SAMPLER", "always_off")]),
        variables(&[
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0"),
        ]),
        variables(&[
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0"),
        ]),
    ];
    for variables in silent {
        let mut program = Program::serve_with(&variables, &redis.url(), &[]).await;
        program.is_ready().await;
        let mut client = program.coordination().await;
        client.claim(claim("k", "a")).await.expect("an answer");
        program.signal(Signal::SIGTERM);
        assert!(program.ends().await.success());
    }
    assert_eq!(collector.spans().len(), 0);

    let named = variables(&[
        ("OTEL_SERVICE_NAME", "payments-claims"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment.name=of-a-test",
        ),
    ]);
    let program = Program::serve_with(&named, &redis.url(), &[]).await;
    program.is_ready().await;
    let mut client = program.coordination().await;
    client.claim(claim("k", "a")).await.expect("an answer");
    let trace = collector
        .trace("the claim", |call| call.span.name == CLAIM)
        .await;
    assert_eq!(trace[0].resource["service.name"], "payments-claims");
    assert_eq!(
        trace[0].resource["deployment.environment.name"],
        "of-a-test"
    );
    let script = trace
        .iter()
        .find(|seen| seen.span.kind == 3)
        .expect("a script");
    let socket = redis.socket_path().display().to_string();
    assert_eq!(script.attribute("server.address"), Some(socket.as_str()));
}

#[tokio::test]
async fn the_last_spans_are_exported_at_the_end() {
    for protocol in PROTOCOLS {
        let redis = RedisServer::start().await;
        let collector = Collector::start(protocol).await;
        let mut variables = collector.variables();
        // Nothing but the end has it export.
        variables.retain(|(name, _)| *name != "OTEL_BSP_SCHEDULE_DELAY");
        variables.push(("OTEL_BSP_SCHEDULE_DELAY", "3600000".to_owned()));
        let mut program = Program::serve_with(&variables, &redis.url(), &[]).await;
        program.is_ready().await;
        let mut client = program.coordination().await;
        client.claim(claim("k", "a")).await.expect("a claim");
        assert_eq!(collector.spans().len(), 0);
        program.signal(Signal::SIGTERM);
        assert!(program.ends().await.success());
        let names: Vec<String> = collector.spans().into_iter().map(|s| s.span.name).collect();
        assert!(names.contains(&CLAIM.to_owned()), "{protocol}: {names:?}");
    }
}

/// One that refuses connections, and one that takes them and never says anything.
#[tokio::test]
async fn a_collector_that_is_away_holds_up_neither_calls_nor_the_end_and_is_one_line() {
    let redis = RedisServer::start().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let [silent_at, closed_at] =
        [&silent, &closed].map(|listener| listener.local_addr().expect("a bound address"));
    drop(closed);
    for protocol in PROTOCOLS {
        for address in [silent_at, closed_at] {
            let variables = [
                ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}")),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol.to_owned()),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "300".to_owned()),
                ("OTEL_BSP_SCHEDULE_DELAY", "10".to_owned()),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "64".to_owned()),
                ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16".to_owned()),
            ];
            let grace = ["--drain-grace", "3s"];
            let mut program = Program::serve_with(&variables, &redis.url(), &grace).await;
            program.is_ready().await;
            let mut client = program.coordination().await;
            let started = Instant::now();
            let mut calls = 0;
            let lost = "spans cannot be exported";
            while calls < 200 || !program.log().contains(lost) {
                client.claim(claim("k", "a")).await.expect("a claim");
                calls += 1;
                assert!(
                    started.elapsed() < BOUND,
                    "{calls} calls: {}",
                    program.log()
                );
            }
            let per_call = started.elapsed() / calls;
            assert!(per_call < Duration::from_millis(100), "{per_call:?}");
            let asked = Instant::now();
            program.signal(Signal::SIGTERM);
            assert!(program.ends().await.success());
            assert!(
                asked.elapsed() < Duration::from_secs(3),
                "{:?}",
                asked.elapsed()
            );
            let log = program.log();
            assert_eq!(log.matches(lost).count(), 1, "{log}");
            let about_spans = log.lines().filter(|line| line.contains("span")).count();
            assert!(about_spans <= 2, "{log}");
        }
    }
}

#[tokio::test]
async fn nothing_that_a_caller_named_is_in_a_span() {
    let (_redis, collector, program) = world("grpc").await;
    let mut clients = Clients::at(program.grpc).await;
    calls_of_each_kind(&mut clients).await;
    let raw = Raw::at(program.grpc).await;
    raw.call(unmistakable::KEY, &[], Sent::nothing()).await;
    let spans = eventually("the last call", async || {
        let spans = collector.spans();
        let is_last = |seen: &Seen| seen.span.name == "_OTHER";
        spans.iter().any(is_last).then_some(spans)
    })
    .await;
    assert!(spans.len() > 20, "{}", spans.len());
    for seen in spans {
        let text = format!("{seen:?}");
        assert!(!text.contains(unmistakable::MARK), "{text}");
    }
}
