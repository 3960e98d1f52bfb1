//! What is seen of a stream from outside: its lines in the log. Metrics stand with what they count.

use super::*;
use crate::support::answers::released;
use crate::support::calls::force_release;
use crate::support::logs::Logs;
use crate::support::metrics::Scrape;
use crate::support::requests::release;
use crate::support::service::store_timeout;
use crate::support::stream::{detach, keep};
use claimlock::rpc::proto::keep_alive_response::Outcome;
use claimlock::rpc::proto::{KeepAliveRequest, LossReason};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

const REFUSALS: &str = "claimlock::refusals";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
/// printf '%s\0%s' default r | sha256sum | cut -c 1-16
const HASH_OF_R: &str = "f888de8844ee5274";
const METHOD: &str = "claimlock.v1.CoordinationService/KeepAlive";

fn lines(logs: &Logs) -> Vec<Value> {
    let strip = |mut event: Value| {
        let fields = event.as_object_mut().expect("an event is an object");
        fields.remove("timestamp");
        fields.remove("target");
        fields.remove("cause");
        event
    };
    logs.of(REFUSALS).into_iter().map(strip).collect()
}

fn lost(reason: &str) -> Value {
    json!({
        "level": "INFO", "message": "not granted", "call": "keep_alive", "outcome": "lost", "reason": reason,
        "tenant": "default", "subject": HASH_OF_R, "trace_id": TRACE,
    })
}

fn failed(code: &str, reason: &str, fields: &str) -> Value {
    json!({
        "level": "INFO", "message": "call failed", "method": METHOD, "code": code, "reason": reason, "fields": fields,
        "trace_id": TRACE,
    })
}

#[tokio::test]
async fn each_loss_and_each_error_is_a_line_of_its_own_and_a_renewal_is_none() {
    let world = World::with(store_timeout(Duration::from_millis(300))).await;
    let lease = world.hold_lock("r", "a").await;
    let client = coordination(world.service.grpc).await;
    let (requests, sent) = mpsc::channel(1);
    let mut request = Request::new(ReceiverStream::new(sent));
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let value = traceparent.parse().expect("it is ASCII");
    request.metadata_mut().insert("traceparent", value);
    let answers = client.clone().keep_alive(request).await;
    let mut answers = answers.expect("a stream").into_inner();
    let mut ask = async |request: KeepAliveRequest| {
        requests.send(request).await.expect("the service reads");
        let answer = answers.message().await.expect("the stream goes on");
        answer.expect("an answer").outcome.expect("an outcome")
    };
    let good = KeepAliveRequest {
        request_id: 1,
        ..keep(&lease)
    };

    let logs = Logs::capture();
    ask(good.clone()).await.renewed();
    assert_eq!(lines(&logs), [] as [Value; 0]);

    // Each with notes of its own, however many there are.
    let bad = KeepAliveRequest::default();
    ask(bad.clone()).await.error();
    let worse = KeepAliveRequest {
        request_id: 1,
        ..bad
    };
    ask(worse).await.error();
    world.redis.stop_process();
    let away = ask(good.clone()).await;
    assert!(matches!(away, Outcome::Unavailable(_)), "{away:?}");
    world.redis.resume_process();
    eventually("the lease to be renewed", async || {
        matches!(ask(good.clone()).await, Outcome::Renewed(_)).then_some(())
    })
    .await;
    let mut admin = world.admin.clone();
    admin
        .force_release_lock(force_release("r"))
        .await
        .expect("an answer");
    let told = answers.message().await.expect("the stream goes on");
    told.expect("a loss").outcome.expect("an outcome").lost();
    drop(requests);
    assert_eq!(answers.message().await.expect("it ends well"), None);

    let mut lines = lines(&logs);
    let is_away = |line: &Value| line["message"] == "the store could not be asked";
    let away: Vec<Value> = lines.extract_if(.., |line| is_away(line)).collect();
    assert!(!away.is_empty(), "{lines:?}");
    for line in away {
        let expected = json!({
            "level": "WARN", "message": "the store could not be asked", "subject": HASH_OF_R, "trace_id": TRACE,
        });
        assert_eq!(line, expected);
    }
    let expected = [
        failed("INVALID_ARGUMENT", "INVALID_FIELD", "request_id lease_ref"),
        failed("INVALID_ARGUMENT", "INVALID_FIELD", "lease_ref"),
        lost("forced"),
    ];
    assert_eq!(lines, expected);
    world.finish().await;
}

/// Clients release and then take off the stream: each lock that was held without any trouble would be a loss.
#[tokio::test]
async fn a_lease_that_is_taken_off_after_its_release_is_no_loss_in_log_and_metrics() {
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let mut stream = world.stream().await;
    let logs = Logs::capture();
    stream.ask(keep(&lease)).await.renewed();
    let mut client = coordination(world.service.grpc).await;
    released(client.release_lock(release("r", "a")).await);
    let told = stream.ask(detach(&lease)).await.lost();
    assert_eq!(told, LossReason::Released);
    assert_eq!(lines(&logs), [] as [Value; 0]);
    let scrape = Scrape::of(&world.service).await;
    let lost = scrape.value("claimlock_lease_lost_total{reason=\"released\"}");
    assert_eq!(lost, 0.0);
}
