//! The caller's deadline: whatever Redis does, the service answers before it.

use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::calls::{Clients, each_call};
use crate::support::failures::{Told, told};
use crate::support::raw::{Raw, Sent, framed_message};
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::requests::claim;
use crate::support::service::Service;
use claimlock::config::Settings;
use std::collections::BTreeSet;
use std::time::Duration;
use tonic::Code;

fn deadline_exceeded() -> Told {
    Told {
        code: Code::DeadlineExceeded,
        reason: "DEADLINE_EXCEEDED".to_owned(),
        fields: vec![],
        retry_after: None,
    }
}

/// Makes each call with a deadline that the store will not meet, and has the service's answer win against the client's
/// own timer, whose failure has no details. On a loaded machine the timer may win now and then.
async fn each_call_is_answered_in_time(clients: &Clients) {
    let mut late = BTreeSet::new();
    for _ in 0..10 {
        late.clear();
        for (method, answer) in each_call(clients, Some(Duration::from_millis(400))).await {
            let status = answer.expect_err("the store does not answer");
            if status.code() == Code::Cancelled && status.details().is_empty() {
                late.insert(method);
            } else {
                assert_eq!(told(&status), deadline_exceeded(), "{method}");
            }
        }
        if late.is_empty() {
            return;
        }
    }
    panic!("answered after the deadline, time and again: {late:?}");
}

#[tokio::test]
async fn a_call_is_answered_before_its_deadline_while_redis_is_stopped() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let clients = Clients::of(&service).await;
    let before = redis.dump().await;
    redis.stop_process();
    each_call_is_answered_in_time(&clients).await;
    redis.resume_process();
    service.is_ready().await;
    assert_eq!(redis.dump().await, before);
}

#[tokio::test]
async fn a_call_is_answered_before_its_deadline_while_redis_is_down() {
    let mut redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let clients = Clients::of(&service).await;
    redis.kill();
    each_call_is_answered_in_time(&clients).await;
}

#[tokio::test]
async fn a_call_is_answered_before_its_deadline_while_the_network_swallows_all() {
    let redis = RedisServer::with(RedisOptions {
        tcp: true,
        ..RedisOptions::default()
    })
    .await;
    let proxy = Proxy::start(Upstream::Tcp(redis.tcp_addr()));
    let service = Service::at(&proxy.redis_url(), Settings::default()).await;
    service.is_ready().await;
    let clients = Clients::of(&service).await;
    proxy.set(Mode::BlackHole).await;
    each_call_is_answered_in_time(&clients).await;
}

#[tokio::test]
async fn a_deadline_that_has_passed_on_arrival_is_answered_and_changes_nothing() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    let before = redis.dump().await;
    for timeout in ["0n", "0u", "0m", "0S", "0M", "0H", "00000000m"] {
        let sent = Sent::all(framed_message(&claim("k", "a")));
        let status = raw.call("Claim", &[("grpc-timeout", timeout)], sent).await;
        assert_eq!(told(&status), deadline_exceeded(), "{timeout}");
    }
    assert_eq!(redis.dump().await, before);
}

#[tokio::test]
async fn the_shortest_deadlines_are_answered_while_redis_is_stopped() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    redis.stop_process();
    for timeout in ["1n", "1u", "1m", "2m", "5m", "20m"] {
        let sent = Sent::all(framed_message(&claim("k", "a")));
        let status = raw.call("Claim", &[("grpc-timeout", timeout)], sent).await;
        assert_eq!(told(&status), deadline_exceeded(), "{timeout}");
    }
}

#[tokio::test]
async fn the_shortest_deadlines_are_met_or_told() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    for n in 0..100 {
        let sent = Sent::all(framed_message(&claim(&format!("k{n}"), "a")));
        let status = raw.call("Claim", &[("grpc-timeout", "1m")], sent).await;
        if status.code() != Code::Ok {
            assert_eq!(told(&status), deadline_exceeded());
        }
    }
    assert!(redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_deadline_that_cannot_be_read_counts_as_none() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    for timeout in ["", "0", "S", "0x", "-1S", "000000000m", "0 m", "99999999H"] {
        let sent = Sent::all(framed_message(&claim("k", "a")));
        let status = raw.call("Claim", &[("grpc-timeout", timeout)], sent).await;
        assert_eq!(status.code(), Code::Ok, "{timeout:?}: {status:?}");
    }
}

/// Whoever waits longer than the store may take is told of the store.
#[tokio::test]
async fn a_deadline_beyond_the_stores_time_does_not_hide_that_the_store_is_away() {
    let redis = RedisServer::start().await;
    let settings = Settings {
        store_timeout: Duration::from_millis(200),
        ..Settings::default()
    };
    let service = Service::with(&redis, settings).await;
    let clients = Clients::of(&service).await;
    redis.stop_process();
    for (method, answer) in each_call(&clients, Some(Duration::from_secs(60))).await {
        let told = told(&answer.expect_err("the store does not answer"));
        let expected = (Code::Unavailable, "STORE_UNAVAILABLE");
        assert_eq!((told.code, told.reason.as_str()), expected, "{method}");
    }
}

#[tokio::test]
async fn a_message_that_does_not_come_to_an_end_is_given_up_at_the_deadline() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let raw = Raw::to(&service).await;
    let before = redis.dump().await;
    let whole = framed_message(&claim("k", "a"));
    let half = whole[..whole.len() - 1].to_vec();
    for sent in [Sent::without_end(half), Sent::without_end(vec![])] {
        let status = raw.call("Claim", &[("grpc-timeout", "100m")], sent).await;
        assert_eq!(told(&status), deadline_exceeded());
    }
    assert_eq!(redis.dump().await, before);
}
