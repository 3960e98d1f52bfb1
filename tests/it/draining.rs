//! How a connection ends, at its age or with its service, and what its callers see of it.

use crate::support::answers::{acquired, claimed, completed, released, replay};
use crate::support::failures::told;
use crate::support::metrics::Scrape;
use crate::support::raw::{Raw, Sent, half_a_request};
use crate::support::redis::RedisServer;
use crate::support::requests::{acquire, claim, complete, proto_duration, release};
use crate::support::service::{Coordination, Service, health, patient};
use crate::support::{BOUND, eventually};
use claimlock::config::Settings;
use claimlock::rpc::proto::keep_alive_response::Outcome;
use claimlock::rpc::proto::{AcquireLockRequest, Draining};
use claimlock_client::{Attempt, Client, Request};
use futures_util::future::join_all;
use hyper_util::rt::TokioIo;
use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Error};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// Far below what the program takes for an age, so that much happens in a short test.
fn aged(age: Duration) -> Settings {
    Settings {
        max_connection_age: Some(age),
        ..Settings::default()
    }
}

async fn watch(channel: &Channel) -> Streaming<HealthCheckResponse> {
    let mut health = HealthClient::new(channel.clone());
    let watched = health.watch(HealthCheckRequest::default()).await;
    watched.expect("health is served").into_inner()
}

/// What a stream that says nothing of interest says in the end.
async fn end_of(mut stream: Streaming<HealthCheckResponse>) -> Status {
    let end = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a stream of health has no end of its own"),
                Err(status) => return status,
            }
        }
    };
    tokio::time::timeout(BOUND, end).await.expect("it ends")
}

/// That the service said so, and that a caller may be back soon.
fn is_draining(status: &Status) {
    let told = told(status);
    assert_eq!(
        (told.code, told.reason.as_str()),
        (Code::Unavailable, "DRAINING")
    );
    let pause = told.retry_after.expect("a caller is told when to be back");
    assert!(
        (Duration::from_millis(100)..=Duration::from_millis(250)).contains(&pause),
        "{pause:?}"
    );
}

#[tokio::test]
async fn a_connection_that_reaches_its_age_is_left_for_the_next_and_its_streams_are_told() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, aged(Duration::from_millis(300))).await;
    let channel = service.channel().await;
    // The second one on a connection of its own, to which the channel has moved.
    for _ in 0..2 {
        let watched = eventually("a stream over the next connection", async || {
            let mut health = HealthClient::new(channel.clone());
            let watched = health.watch(HealthCheckRequest::default()).await;
            Some(watched.ok()?.into_inner())
        });
        is_draining(&end_of(watched.await).await);
    }
    service.stop().await.expect("it ends well");
}

#[tokio::test]
async fn a_stream_that_keeps_leases_alive_has_its_last_word_when_its_connection_reaches_its_age() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, aged(Duration::from_millis(500))).await;
    let mut client = service.coordination().await;
    let open = client.keep_alive(tokio_stream::pending()).await;
    let mut told = open.expect("it is served").into_inner();
    let heard = async {
        let word = told.message().await.expect("it is told before it ends");
        (word.expect("a word").outcome, told.message().await)
    };
    let (word, end) = tokio::time::timeout(BOUND, heard).await.expect("it ends");
    assert_eq!(word, Some(Outcome::Draining(Draining {})));
    is_draining(&end.expect_err("nothing comes after it"));
}

#[tokio::test]
async fn without_an_age_a_connection_stays() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let stream = watch(&service.channel().await).await;
    let ended = tokio::time::timeout(Duration::from_millis(500), end_of(stream)).await;
    assert!(ended.is_err(), "{ended:?}");
}

#[tokio::test]
async fn calls_in_flight_finish_on_a_connection_that_has_reached_its_age() {
    let redis = RedisServer::start().await;
    let settings = Settings {
        store_timeout: BOUND,
        drain_grace: 10 * BOUND,
        ..aged(Duration::from_secs(1))
    };
    let service = Service::with(&redis, settings).await;
    let channel = service.channel().await;
    let stream = watch(&channel).await;
    redis.stop_process();
    let call = async { Coordination::new(channel).claim(claim("k", "a")).await };
    let over = async {
        is_draining(&end_of(stream).await);
        redis.resume_process();
    };
    let (answer, ()) = tokio::join!(call, over);
    claimed(answer);
}

fn waits(name: &str) -> AcquireLockRequest {
    AcquireLockRequest {
        wait: proto_duration(BOUND),
        ..acquire("lock", name)
    }
}

#[tokio::test]
async fn a_call_that_waits_is_told_at_the_age_and_its_token_gets_the_lock_over_the_next_connection()
{
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, aged(Duration::from_secs(1))).await;
    let held = acquire("lock", "holder");
    acquired(service.coordination().await.acquire_lock(held).await);
    let mut client = service.coordination().await;
    let ended = client.acquire_lock(waits("waiter")).await;
    is_draining(&ended.expect_err("the wait is longer than the connection's age"));

    let next = Service::start(&redis).await;
    let mut client = next.coordination().await;
    let waiter = tokio::spawn(async move { client.acquire_lock(waits("waiter")).await });
    let mut holder = next.coordination().await;
    released(holder.release_lock(release("lock", "holder")).await);
    acquired(waiter.await.expect("no panic"));
}

#[tokio::test]
async fn a_connection_that_never_closes_is_cut_when_the_grace_period_is_over() {
    let grace = Duration::from_secs(6);
    let age = Duration::from_millis(200);
    let redis = RedisServer::start().await;
    let settings = Settings {
        drain_grace: grace,
        ..aged(age)
    };
    let service = Service::with(&redis, settings).await;
    let began = Instant::now();
    let mut half = TcpStream::connect(service.grpc).await.expect("it listens");
    half.write_all(&half_a_request()).await.expect("it reads");
    // One that would end its request if it could, and hears of it.
    let raw = Raw::to(&service).await;
    let asked = async {
        let asked = raw.call("Claim", &[], Sent::without_end(vec![0]));
        tokio::time::timeout(BOUND, asked)
            .await
            .expect("it hears of it")
    };
    let cut = async {
        let mut said = Vec::new();
        let ended = tokio::time::timeout(BOUND, half.read_to_end(&mut said)).await;
        // Closed or reset, which is all the same to a client that does not listen.
        let _ = ended.expect("it is cut");
        began.elapsed()
    };
    let (status, cut) = tokio::join!(asked, cut);
    is_draining(&status);
    eprintln!("cut after {cut:?} of {grace:?}");
    assert!(cut > grace / 2, "it had no grace: {cut:?}");
    // All others go on.
    assert_eq!(
        health(&service.channel().await, "liveness").await,
        ServingStatus::Serving
    );
}

/// Connects to a service, and counts how often.
async fn counted(grpc: SocketAddr, connected: &Arc<AtomicUsize>) -> Result<Coordination, Error> {
    let connected = connected.clone();
    let connector = tower::service_fn(move |_| {
        connected.fetch_add(1, Ordering::Relaxed);
        async move { TcpStream::connect(grpc).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_shared(format!("http://{grpc}")).expect("an address");
    let channel = endpoint.connect_with_connector(connector).await?;
    Ok(Coordination::new(channel))
}

/// A key that is completed with a response of this many bytes.
async fn replayed(redis: &RedisServer, key: &str, bytes: usize) {
    let service = Service::with(redis, patient()).await;
    let mut client = service.coordination().await;
    claimed(client.claim(claim(key, "a")).await);
    let done = complete(key, "a", &vec![b'x'; bytes]);
    completed(client.complete(done).await);
}

/// A failed call on a connection that ends is one that its channel did not send: a library may send it over the next.
/// tonic's does not, and says so with these codes, where the answer to a call that was sent and lost is UNKNOWN.
#[track_caller]
fn was_not_sent(status: &Status) {
    assert!(status.source().is_some(), "the service failed: {status:?}");
    let codes = [Code::Cancelled, Code::Internal, Code::Unavailable];
    assert!(codes.contains(&status.code()), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_lost_on_connections_that_reach_their_age_and_the_client_fails_no_call() {
    const CALLERS: usize = 8;
    let redis = RedisServer::start().await;
    let settings = Settings {
        store_timeout: BOUND,
        ..aged(Duration::from_millis(20))
    };
    let service = Service::with(&redis, settings).await;
    // Large enough to be on its way for a while.
    replayed(&redis, "k", 50_000).await;
    let connected = Arc::default();
    let channel = counted(service.grpc, &connected).await.expect("it listens");
    let client = Client::connect_lazily(format!("http://{}", service.grpc)).expect("an endpoint");
    let end = Instant::now() + Duration::from_secs(3);
    let callers = (0..CALLERS).map(|number| {
        let (mut raw, client) = (channel.clone(), client.clone());
        tokio::spawn(async move {
            let asked = claim("k", &format!("b{number}"));
            while Instant::now() < end {
                match raw.claim(asked.clone()).await {
                    Ok(answer) => drop(replay(Ok(answer))),
                    Err(status) => was_not_sent(&status),
                }
                let answer = client
                    .begin(&Request::new("k").operation("POST /v1/charges"))
                    .await;
                assert!(matches!(answer, Ok(Attempt::Replay(_))), "{answer:?}");
            }
        })
    });
    for caller in join_all(callers).await {
        caller.expect("no call was unknown to its caller");
    }
    let connected = connected.load(Ordering::Relaxed);
    eprintln!("{connected} connections");
    assert!(connected >= 5, "{connected} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_lost_when_a_service_ends() {
    const CALLERS: usize = 8;
    let redis = RedisServer::start().await;
    for round in 0..12 {
        let settings = Settings {
            store_timeout: BOUND,
            drain_grace: 10 * BOUND,
            ..Settings::default()
        };
        let service = Service::with(&redis, settings).await;
        let key = format!("k{round}");
        replayed(&redis, &key, [10, 300_000, 900_000][round % 3]).await;
        let grpc = service.grpc;
        let connected = Arc::default();
        let channel = counted(grpc, &connected).await.expect("it listens");
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (mut client, connected, key) =
                    (channel.clone(), connected.clone(), key.clone());
                tokio::spawn(async move {
                    let asked = claim(&key, &format!("b{number}"));
                    loop {
                        // Half of them are new each time, so that some come in just as it ends.
                        if number % 2 == 0 {
                            match counted(grpc, &connected).await {
                                Ok(next) => client = next,
                                Err(_) => break,
                            }
                        }
                        match client.claim(asked.clone()).await {
                            Ok(answer) => drop(replay(Ok(answer))),
                            Err(status) => {
                                was_not_sent(&status);
                                if status.code() == Code::Unavailable {
                                    break;
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        service.stop().await.expect("it ends well");
        for caller in join_all(callers).await {
            caller.expect("no call was unknown to its caller");
        }
    }
}

#[tokio::test]
async fn a_hundred_streams_and_calls_that_wait_are_told_at_the_end_of_their_service() {
    const EACH: usize = 100;
    let redis = RedisServer::start().await;
    let settings = Settings {
        drain_grace: 10 * BOUND,
        ..Settings::default()
    };
    let service = Service::with(&redis, settings).await;
    let mut client = service.coordination().await;
    acquired(client.acquire_lock(acquire("lock", "holder")).await);
    let channels = join_all((0..10).map(async |_| service.channel().await)).await;
    let mut streams = Vec::new();
    let mut waiting = Vec::new();
    for number in 0..EACH {
        let channel = &channels[number % channels.len()];
        streams.push(watch(channel).await);
        let mut client = Coordination::new(channel.clone());
        let request = waits(&format!("waiter-{number}"));
        waiting.push(tokio::spawn(
            async move { client.acquire_lock(request).await },
        ));
    }
    eventually("all of them to wait", async || {
        let waiting = Scrape::of(&service).await.value("claimlock_waiters");
        (waiting == EACH as f64).then_some(())
    })
    .await;

    let stopping = tokio::spawn(service.stop());
    for stream in streams {
        is_draining(&end_of(stream).await);
    }
    for call in waiting {
        let answer = call.await.expect("no panic");
        is_draining(&answer.expect_err("nobody released the lock"));
    }
    let stopped = tokio::time::timeout(BOUND, stopping).await;
    let stopped = stopped.expect("nothing holds it up").expect("no panic");
    stopped.expect("it ends well");
}
