//! What goes wrong in the store.

use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::calls::{Clients, KEY, RESOURCE, each_call, force_release, get_claim};
use crate::support::eventually;
use crate::support::failures::{Told, told};
use crate::support::logs::Logs;
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::requests::{abandon, acquire, claim, complete, millis, release, response};
use crate::support::service::Service;
use claimlock::config::Settings;
use claimlock::rpc::proto::*;
use std::time::Duration;
use tonic::{Code, Status};

fn impatient() -> Settings {
    Settings {
        store_timeout: Duration::from_millis(200),
        ..Settings::default()
    }
}

fn assert_unavailable(what: &str, status: &Status) {
    let told = told(status);
    let is = (told.code, told.reason.as_str(), told.fields.len());
    assert_eq!(is, (Code::Unavailable, "STORE_UNAVAILABLE", 0), "{what}");
    let retry_after = told.retry_after.expect("a RetryInfo");
    assert!(retry_after > Duration::ZERO, "{what}: {retry_after:?}");
}

async fn each_call_is_unavailable(service: &Service) {
    let clients = Clients::of(service).await;
    for (method, answer) in each_call(&clients, None).await {
        assert_unavailable(method, &answer.expect_err("the store does not answer"));
    }
}

#[tokio::test]
async fn a_stopped_redis_makes_every_call_unavailable() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, impatient()).await;
    redis.stop_process();
    each_call_is_unavailable(&service).await;
}

#[tokio::test]
async fn a_redis_that_is_down_makes_every_call_unavailable() {
    let mut redis = RedisServer::start().await;
    let service = Service::with(&redis, impatient()).await;
    redis.kill();
    each_call_is_unavailable(&service).await;
}

#[tokio::test]
async fn a_redis_that_was_never_there_makes_every_call_unavailable() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let url = format!("unix://{}", folder.path().join("none.sock").display());
    let service = Service::at(&url, impatient()).await;
    each_call_is_unavailable(&service).await;
}

#[tokio::test]
async fn a_network_that_swallows_all_makes_every_call_unavailable() {
    let redis = RedisServer::with(RedisOptions {
        tcp: true,
        ..RedisOptions::default()
    })
    .await;
    let proxy = Proxy::start(Upstream::Tcp(redis.tcp_addr()));
    let service = Service::at(&proxy.redis_url(), impatient()).await;
    service.is_ready().await;
    for mode in [Mode::BlackHole, Mode::SwallowReplies, Mode::Cut] {
        proxy.set(mode).await;
        each_call_is_unavailable(&service).await;
        proxy.set(Mode::Pass).await;
        service.is_ready().await;
    }
}

/// A caller must not take it for its own mistake, and throw its result away.
#[tokio::test]
async fn a_receipt_is_not_refused_by_a_service_that_never_reached_redis() {
    let mut redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let answer = service.coordination().await.claim(claim(KEY, "a")).await;
    let Some(claim_response::Outcome::Claimed(claimed)) = answer.expect("one").into_inner().outcome
    else {
        panic!("a fresh key is claimed");
    };
    let request = CompleteRequest {
        receipt: claimed.receipt,
        ..complete(KEY, "a", b"done")
    };
    redis.kill();
    let other = Service::at(&redis.url(), impatient()).await;
    let mut client = other.coordination().await;
    let status = client
        .complete(request.clone())
        .await
        .expect_err("no store");
    assert_unavailable("Complete", &status);

    redis.restart().await;
    other.is_ready().await;
    let answer = client
        .complete(request)
        .await
        .expect("an answer")
        .into_inner();
    let outcome = answer.outcome.expect("an outcome");
    assert!(
        matches!(outcome, complete_response::Outcome::Completed(_)),
        "{outcome:?}"
    );
    assert!(redis.keys_without_expiry().await.is_empty());
}

async fn configure(redis: &RedisServer, name: &str, value: &str) {
    redis::cmd("CONFIG")
        .arg("SET")
        .arg(name)
        .arg(value)
        .exec_async(&mut redis.connect().await)
        .await
        .expect("the setting is taken");
}

#[tokio::test]
async fn a_redis_without_memory_grants_nothing_and_still_takes_what_frees_some() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let mut clients = Clients::of(&service).await;
    let client = &mut clients.coordination;
    for name in ["one", "two"] {
        client
            .claim(claim(name, "a"))
            .await
            .expect("memory is left");
        client
            .acquire_lock(acquire(name, "a"))
            .await
            .expect("memory is left");
    }
    configure(&redis, "maxmemory", "1").await;
    let before = redis.dump().await;
    let refused = [
        client
            .claim(claim("three", "a"))
            .await
            .expect_err("no memory"),
        client
            .acquire_lock(acquire("three", "a"))
            .await
            .expect_err("no memory"),
        client
            .complete(complete("one", "a", b"x"))
            .await
            .expect_err("no memory"),
    ];
    for status in refused {
        assert_unavailable("without memory", &status);
    }
    assert_eq!(redis.dump().await, before);

    let found = clients
        .admin
        .get_claim(get_claim("one"))
        .await
        .expect("a look costs nothing");
    assert!(found.into_inner().claim.is_some());
    let answer = client
        .abandon(abandon("one", "a", AbandonEffect::None))
        .await;
    let outcome = answer.expect("it frees some").into_inner().outcome;
    assert_eq!(
        outcome,
        Some(abandon_response::Outcome::Abandoned(Abandoned {}))
    );
    let answer = client.release_lock(release("one", "a")).await;
    let outcome = answer.expect("it frees some").into_inner().outcome;
    assert!(
        matches!(outcome, Some(release_lock_response::Outcome::Released(_))),
        "{outcome:?}"
    );
    let answer = clients.admin.force_release_lock(force_release("two")).await;
    assert_eq!(
        answer.expect("it frees some").into_inner().released_holders,
        1
    );
    assert!(redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_redis_that_may_not_write_makes_writing_calls_unavailable() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, impatient()).await;
    let mut clients = Clients::of(&service).await;
    configure(&redis, "min-replicas-to-write", "1").await;
    let status = clients
        .coordination
        .claim(claim(KEY, "a"))
        .await
        .expect_err("no replica");
    assert_unavailable("Claim", &status);
    configure(&redis, "min-replicas-to-write", "0").await;
    clients
        .coordination
        .claim(claim(KEY, "a"))
        .await
        .expect("it may write again");
}

#[tokio::test]
async fn a_response_that_was_lost_before_its_time_is_not_taken_for_one_that_ran_out() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let mut clients = Clients::of(&service).await;
    let client = &mut clients.coordination;
    client.claim(claim(KEY, "a")).await.expect("claimed");
    let request = CompleteRequest {
        response_retention: millis(60_000),
        ..complete(KEY, "a", b"personal")
    };
    client.complete(request.clone()).await.expect("completed");

    let response_key = format!("cl:c:{{default//{KEY}}}:r");
    let gone: u64 = redis::cmd("UNLINK")
        .arg(&response_key)
        .query_async(&mut redis.connect().await)
        .await
        .expect("an answer");
    assert_eq!(gone, 1, "the response lies under a key of its own");

    let lost = Told {
        code: Code::Unavailable,
        reason: "RESPONSE_LOST".to_owned(),
        fields: vec![],
        retry_after: None,
    };
    let before = redis.dump().await;
    for name in ["a", "b"] {
        let status = client
            .claim(claim(KEY, name))
            .await
            .expect_err("it is lost");
        assert_eq!(told(&status), lost, "{name}");
    }
    assert_eq!(redis.dump().await, before);
    // The claim is completed all the same.
    let answer = client
        .complete(request)
        .await
        .expect("an answer")
        .into_inner();
    assert!(
        matches!(
            answer.outcome,
            Some(complete_response::Outcome::Completed(_))
        ),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_response_that_ran_out_is_replayed_as_none() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let mut client = service.coordination().await;
    client.claim(claim(KEY, "a")).await.expect("claimed");
    let request = CompleteRequest {
        response_retention: millis(100),
        ..complete(KEY, "a", b"personal")
    };
    client.complete(request).await.expect("completed");
    let replayed = async |client: &mut crate::support::service::Coordination| {
        let answer = client
            .claim(claim(KEY, "b"))
            .await
            .expect("never a failure");
        match answer.into_inner().outcome {
            Some(claim_response::Outcome::Replay(replay)) => replay,
            other => panic!("it is completed, not {other:?}"),
        }
    };
    let gone = eventually("the response to run out", async || {
        let replay = replayed(&mut client).await;
        match replay.response {
            Some(stored) => {
                assert_eq!(stored, response(b"personal"));
                None
            }
            None => Some(replay),
        }
    })
    .await;
    assert_eq!(gone.attempt, 1);
    assert!(redis.keys_without_expiry().await.is_empty());
}

/// Makes each call on keys that hold `damage`, one for the record and one for what a lock consists of.
async fn each_call_is_a_defect(damage: &[(&str, &[&str])]) {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let clients = Clients::of(&service).await;
    let mut connection = redis.connect().await;
    for (command, arguments) in damage {
        redis::cmd(command)
            .arg(*arguments)
            .exec_async(&mut connection)
            .await
            .expect("it is written");
    }
    let before = redis.dump().await;
    let logs = Logs::capture();
    let answers = each_call(&clients, None).await;
    let logged = logs.of("claimlock::rpc::status");
    for (method, answer) in answers {
        let status = answer.expect_err("what is there is none of ours");
        let expected = Told {
            code: Code::Internal,
            reason: "INTERNAL".to_owned(),
            fields: vec![],
            retry_after: None,
        };
        assert_eq!(told(&status), expected, "{method}");
        let id = status.message().split(' ').next_back().expect("an id");
        uuid::Uuid::parse_str(id).expect("the message ends with an id");
        let line = logged.iter().find(|line| line["id"] == id);
        let line = line.unwrap_or_else(|| panic!("{method}: {id} is not in {logged:?}"));
        assert_eq!(line["level"], "ERROR");
        assert_ne!(line["cause"].as_str().unwrap_or(""), "", "{method}: {line}");
    }
    assert_eq!(redis.dump().await, before);
}

#[tokio::test]
async fn a_foreign_type_under_a_key_of_ours_is_a_defect_without_inner_text() {
    let record = format!("cl:c:{{default//{KEY}}}");
    let lock = |part: &str| format!("cl:l:{{default/{RESOURCE}}}:{part}");
    let (holders, ends, limits, spent) = (lock("h"), lock("e"), lock("m"), lock("s"));
    each_call_is_a_defect(&[
        ("HSET", &[&record, "state", "mine"]),
        ("SET", &[&holders, "x"]),
        ("SET", &[&ends, "x"]),
        ("SET", &[&limits, "x"]),
        ("SET", &[&spent, "x"]),
    ])
    .await;
}

#[tokio::test]
async fn a_damaged_record_is_a_defect_without_inner_text() {
    let record = format!("cl:c:{{default//{KEY}}}");
    let lock = |part: &str| format!("cl:l:{{default/{RESOURCE}}}:{part}");
    let (holders, ends) = (lock("h"), lock("e"));
    let token = crate::support::requests::token("a");
    each_call_is_a_defect(&[
        ("SET", &[&record, "no record"]),
        ("HSET", &[&holders, &token, "no holder"]),
        ("ZADD", &[&ends, "9e15", &token]),
    ])
    .await;
}
