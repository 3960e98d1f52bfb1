//! The program as a process: told where to listen, drained, interrupted, killed, and started again.

use crate::support::answers::{
    acquired, claim_renewed, claimed, completed, held, in_flight, lock_renewed, released, replay,
};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::program::{Program, claimlock};
use crate::support::raw::{answer_pings, greeting, half_a_request};
use crate::support::redis::RedisServer;
use crate::support::requests::{
    acquire, claim, complete, release, renew_claim, renew_lock, response,
};
use crate::support::service::{Coordination, Service, coordination, health, http_status};
use futures_util::future::join_all;
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;
use tonic_health::pb::health_check_response::ServingStatus;

/// What a loaded machine may add to a time that the program keeps.
const SLACK: Duration = Duration::from_secs(5);

async fn is_not_ready(http: SocketAddr) {
    eventually("readiness to end", async || {
        (http_status(http, "/readyz").await == Some(503)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn calls_in_flight_finish_after_sigterm_and_the_program_ends_with_code_0() {
    const EACH: usize = 5;
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(Upstream::Unix(redis.socket_path()));
    let flags = ["--store-timeout=15s", "--drain-grace=18s"];
    let mut program = Program::serve(&proxy.redis_url(), &flags).await;
    program.is_ready().await;
    let client = program.coordination().await;
    let mut caller = client.clone();
    for number in 0..EACH {
        claimed(
            caller
                .claim(claim(&format!("to-complete-{number}"), "a"))
                .await,
        );
        acquired(
            caller
                .acquire_lock(acquire(&format!("to-release-{number}"), "a"))
                .await,
        );
    }

    redis.stop_process();
    let since = proxy.passed();
    let calls = (0..EACH).map(async |number| {
        let key = format!("claimed-{number}");
        let lock = format!("acquired-{number}");
        let done = complete(&format!("to-complete-{number}"), "a", b"done");
        let free = release(&format!("to-release-{number}"), "a");
        let (mut one, mut two, mut three, mut four) = (
            client.clone(),
            client.clone(),
            client.clone(),
            client.clone(),
        );
        tokio::join!(
            one.claim(claim(&key, "a")),
            two.acquire_lock(acquire(&lock, "a")),
            three.complete(done),
            four.release_lock(free)
        )
    });
    let drain = async {
        for what in ["claimed", "acquired", "to-complete", "to-release"] {
            for number in 0..EACH {
                let in_redis_keys = format!("/{what}-{number}}}");
                eventually("all calls to be in flight", async || {
                    proxy
                        .has_passed(in_redis_keys.as_bytes(), since)
                        .then_some(())
                })
                .await;
            }
        }
        program.signal(Signal::SIGTERM);
        is_not_ready(program.http).await;
        eventually("the port to be closed", async || {
            TcpStream::connect(program.grpc)
                .await
                .is_err()
                .then_some(())
        })
        .await;
        redis.resume_process();
    };
    let (answers, ()) = tokio::join!(join_all(calls), drain);
    for (claiming, acquiring, completing, releasing) in answers {
        assert!(!claimed(claiming).already_held);
        assert!(!acquired(acquiring).already_held);
        completed(completing);
        released(releasing);
    }
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.log());

    // Nothing of it was undone at the end.
    let next = Program::serve(&redis.url(), &[]).await;
    next.is_ready().await;
    let mut client = next.coordination().await;
    for number in 0..EACH {
        in_flight(client.claim(claim(&format!("claimed-{number}"), "b")).await);
        held(
            client
                .acquire_lock(acquire(&format!("acquired-{number}"), "b"))
                .await,
        );
        replay(
            client
                .claim(claim(&format!("to-complete-{number}"), "b"))
                .await,
        );
        acquired(
            client
                .acquire_lock(acquire(&format!("to-release-{number}"), "b"))
                .await,
        );
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn health_turns_at_once_and_calls_are_served_until_the_drain_delay_is_over() {
    let delay = Duration::from_secs(4);
    let redis = RedisServer::start().await;
    let mut program =
        Program::serve(&redis.url(), &["--drain-delay=4s", "--drain-grace=20s"]).await;
    program.is_ready().await;
    let channel = program.channel().await;
    let mut client = program.coordination().await;
    assert_eq!(health(&channel, "").await, ServingStatus::Serving);
    assert_eq!(http_status(program.http, "/readyz").await, Some(200));

    let signalled = Instant::now();
    program.signal(Signal::SIGTERM);
    eventually("health to turn", async || {
        let status = health(&channel, "").await;
        (status == ServingStatus::NotServing).then_some(())
    })
    .await;
    let turned = signalled.elapsed();
    eprintln!("health turned after {turned:?} of {delay:?}");
    assert!(turned < delay);
    for name in [
        "claimlock.v1.CoordinationService",
        "claimlock.v1.AdminService",
    ] {
        assert_eq!(
            health(&channel, name).await,
            ServingStatus::NotServing,
            "{name}"
        );
    }
    assert_eq!(health(&channel, "liveness").await, ServingStatus::Serving);
    assert_eq!(http_status(program.http, "/readyz").await, Some(503));
    assert_eq!(http_status(program.http, "/healthz").await, Some(200));
    claimed(client.claim(claim("key", "a")).await);
    // Also for who has not heard yet.
    in_flight(program.coordination().await.claim(claim("key", "b")).await);

    assert_eq!(program.ends().await.code(), Some(0), "{}", program.log());
    let ended = signalled.elapsed();
    eprintln!("ended after {ended:?}");
    assert!(ended >= delay);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_the_end() {
    let redis = RedisServer::start().await;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut program = Program::serve(&redis.url(), &["--drain-grace=15s"]).await;
        program.is_ready().await;
        // One after a call, one that only shook hands, one that never said anything.
        let mut client = program.coordination().await;
        client.claim(claim("key", "a")).await.expect("an outcome");
        let _shaken = program.channel().await;
        let _silent = TcpStream::connect(program.grpc).await.expect("it listens");
        // By then the last of them has been accepted, as they are in turn.
        assert_eq!(
            health(&program.channel().await, "").await,
            ServingStatus::Serving
        );

        let signalled = Instant::now();
        program.signal(signal);
        assert_eq!(program.ends().await.code(), Some(0), "{}", program.log());
        let ended = signalled.elapsed();
        eprintln!("{signal}: ended after {ended:?}");
        assert!(
            ended < Duration::from_secs(10),
            "it waited for the grace period to pass"
        );
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

const GRACE: Duration = Duration::from_secs(3);

/// A program on a Redis of its own, and one client that holds it up from when `hold_up` returns; how long it took to end.
async fn ends_though<T>(
    signal: Signal,
    what: &str,
    hold_up: impl AsyncFnOnce(&Program, &RedisServer) -> T,
) -> Duration {
    let ended = ends_with(&["--drain-grace=3s"], signal, what, hold_up).await;
    assert!(ended < GRACE + SLACK);
    ended
}

/// The same with flags of its own, and no bound.
async fn ends_with<T>(
    flags: &[&str],
    signal: Signal,
    what: &str,
    hold_up: impl AsyncFnOnce(&Program, &RedisServer) -> T,
) -> Duration {
    let redis = RedisServer::start().await;
    let flags = [&["--store-timeout=60s"], flags].concat();
    let mut program = Program::serve(&redis.url(), &flags).await;
    program.is_ready().await;
    let _held = hold_up(&program, &redis).await;

    let signalled = Instant::now();
    program.signal(signal);
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.log());
    let ended = signalled.elapsed();
    eprintln!("{signal}, {what}: ended after {ended:?}");
    ended
}

/// Asks for a large response over a connection that takes in little of it.
async fn reads_little(program: &Program, _: &RedisServer) -> (Proxy, JoinHandle<()>) {
    const WINDOW: u32 = 65_535;
    let large = vec![b'x'; 1 << 20];
    let mut client = program.coordination().await;
    claimed(client.claim(claim("large", "a")).await);
    completed(client.complete(complete("large", "a", &large)).await);

    let proxy = Proxy::start(Upstream::Tcp(program.grpc));
    let channel = Endpoint::from_shared(format!("http://{}", proxy.addr()))
        .expect("an address")
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .connect()
        .await
        .expect("the program takes connections");
    assert_eq!(health(&channel, "").await, ServingStatus::Serving);
    proxy.set(Mode::HoldReplies).await;
    let since = proxy.passed();
    let reading = tokio::spawn(async move {
        let _ = Coordination::new(channel).claim(claim("large", "b")).await;
    });
    eventually("the claim to be sent", async || {
        proxy.has_passed(b"large", since).then_some(())
    })
    .await;
    (proxy, reading)
}

/// Begins a request and does not come to its end.
async fn sends_half_a_request(program: &Program, _: &RedisServer) -> TcpStream {
    let mut half = TcpStream::connect(program.grpc).await.expect("it listens");
    half.write_all(&half_a_request()).await.expect("it reads");
    // The answer to the greeting comes before the request is looked at, so wait for the next round as well.
    half.read_u64().await.expect("it greets back");
    assert_eq!(
        health(&program.channel().await, "").await,
        ServingStatus::Serving
    );
    half
}

/// Does not even come to the end of its greeting.
async fn sends_half_a_greeting(program: &Program, _: &RedisServer) -> TcpStream {
    let mut half = TcpStream::connect(program.grpc).await.expect("it listens");
    half.write_all(b"PRI * HTTP/2.0").await.expect("it reads");
    assert_eq!(
        health(&program.channel().await, "").await,
        ServingStatus::Serving
    );
    half
}

/// Greets, and neither answers nor closes after that.
async fn never_closes(program: &Program, _: &RedisServer) -> TcpStream {
    let mut open = TcpStream::connect(program.grpc).await.expect("it listens");
    open.write_all(&greeting()).await.expect("it reads");
    open.peek(&mut [0]).await.expect("it greets back");
    open
}

/// Has a call in flight to a Redis that has stopped.
async fn waits_for_redis(program: &Program, redis: &RedisServer) -> JoinHandle<()> {
    let channel = program.channel().await;
    let mut client = Coordination::new(channel.clone());
    redis.stop_process();
    let waiting = tokio::spawn(async move {
        let _ = client.claim(claim("key", "a")).await;
    });
    // On the same connection, so the claim has come before the last of these.
    for _ in 0..10 {
        assert_eq!(health(&channel, "liveness").await, ServingStatus::Serving);
    }
    waiting
}

#[tokio::test]
async fn whatever_clients_do_the_program_ends_within_the_grace_period() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let ended = tokio::join!(
            ends_though(signal, "a client that reads little", reads_little),
            ends_though(signal, "half a request", sends_half_a_request),
            ends_though(signal, "a call that waits for redis", waits_for_redis),
            ends_though(signal, "half a greeting", sends_half_a_greeting),
            ends_though(signal, "a client that never closes", never_closes),
        );
        // Without them it ends at once.
        for ended in <[Duration; 5]>::from(ended) {
            assert!(ended > GRACE / 2, "nothing held it up");
        }
    }
}

#[tokio::test]
async fn the_drain_delay_is_part_of_the_grace_period() {
    let (delay, grace) = (Duration::from_secs(5), Duration::from_secs(6));
    let flags = ["--drain-delay=5s", "--drain-grace=6s"];
    let what = "half a request and a delay";
    let ended = ends_with(&flags, Signal::SIGTERM, what, sends_half_a_request).await;
    assert!(ended >= delay);
    // If the delay came on top of it, it would be ten seconds at least.
    assert!(ended < grace + Duration::from_secs(4), "{ended:?}");
}

#[tokio::test]
async fn a_client_that_answers_and_does_not_close_does_not_hold_up_the_end() {
    let redis = RedisServer::start().await;
    let mut program = Program::serve(&redis.url(), &["--drain-grace=15s"]).await;
    program.is_ready().await;
    let mut open = never_closes(&program, &redis).await;
    let signalled = Instant::now();
    program.signal(Signal::SIGTERM);
    let (code, answered) = tokio::join!(program.ends(), answer_pings(&mut open));
    answered.expect("the program closes its side, and resets nothing");
    assert_eq!(code.code(), Some(0), "{}", program.log());
    let ended = signalled.elapsed();
    eprintln!("ended after {ended:?}");
    assert!(ended < Duration::from_secs(10));
}

#[tokio::test]
async fn a_grant_that_nobody_heard_of_is_taken_back_before_the_program_ends() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(Upstream::Unix(redis.socket_path()));
    let flags = ["--store-timeout=15s", "--drain-grace=18s"];
    let mut program = Program::serve(&proxy.redis_url(), &flags).await;
    program.is_ready().await;
    let channel = program.channel().await;
    let mut client = Coordination::new(channel.clone());

    let ran = redis.calls("evalsha").await + 1;
    proxy.set(Mode::HoldReplies).await;
    let call = tokio::spawn(async move { client.claim(claim("key", "gone")).await });
    eventually("the claim to be granted", async || {
        (redis.calls("evalsha").await == ran).then_some(())
    })
    .await;
    call.abort();
    let _ = call.await;
    // On the same connection, so the cancellation has come before the last of these.
    for _ in 0..10 {
        assert_eq!(health(&channel, "liveness").await, ServingStatus::Serving);
    }
    program.signal(Signal::SIGTERM);
    is_not_ready(program.http).await;
    proxy.set(Mode::Pass).await;

    assert_eq!(program.ends().await.code(), Some(0), "{}", program.log());
    let service = Service::start(&redis).await;
    let grant = claimed(
        service
            .coordination()
            .await
            .claim(claim("key", "next"))
            .await,
    );
    assert_eq!((grant.attempt, grant.taken_over), (1, false));
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_program_that_still_waits_for_redis_ends_when_it_is_told_to() {
    let folder = TempDir::new().expect("a temporary folder");
    let nowhere = format!("unix://{}", folder.path().join("redis.sock").display());
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut program = Program::serve(&nowhere, &["--drain-grace=15s"]).await;
        assert_eq!(http_status(program.http, "/readyz").await, Some(503));
        assert_eq!(http_status(program.http, "/healthz").await, Some(200));
        let signalled = Instant::now();
        program.signal(signal);
        assert_eq!(program.ends().await.code(), Some(0), "{}", program.log());
        assert!(signalled.elapsed() < Duration::from_secs(10));
    }
}

#[tokio::test]
async fn what_was_granted_by_a_program_that_was_killed_goes_on_with_the_next() {
    let redis = RedisServer::start().await;
    let mut program = Program::serve(&redis.url(), &[]).await;
    program.is_ready().await;
    let mut client = program.coordination().await;
    let grant = claimed(client.claim(claim("key", "a")).await);
    let lock = acquired(client.acquire_lock(acquire("lock", "a")).await);
    claimed(client.claim(claim("done", "a")).await);
    completed(client.complete(complete("done", "a", b"result")).await);

    program.signal(Signal::SIGKILL);
    assert_eq!(program.ends().await.code(), None);
    let program = Program::serve(&redis.url(), &[]).await;
    program.is_ready().await;
    let mut client = program.coordination().await;

    in_flight(client.claim(claim("key", "b")).await);
    held(client.acquire_lock(acquire("lock", "b")).await);
    let told = replay(client.claim(claim("done", "b")).await);
    assert_eq!(told.response, Some(response(b"result")));
    let again = claimed(client.claim(claim("key", "a")).await);
    assert!(again.already_held);
    assert_eq!(
        (again.fencing_token, again.attempt),
        (grant.fencing_token, 1)
    );
    let renewed = claim_renewed(client.renew_claim(renew_claim("key", "a")).await);
    assert_eq!(renewed.fencing_token, grant.fencing_token);
    let renewed = lock_renewed(client.renew_lock(renew_lock("lock", "a")).await);
    assert_eq!(renewed.fencing_token, lock.fencing_token);
    completed(
        client
            .complete(complete("key", "a", b"late but fine"))
            .await,
    );
    released(client.release_lock(release("lock", "a")).await);
    let next = acquired(client.acquire_lock(acquire("lock", "b")).await);
    assert!(next.fencing_token > lock.fencing_token);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn two_programs_on_one_redis_are_one_service() {
    let redis = RedisServer::start().await;
    let first = Program::serve(&redis.url(), &[]).await;
    let second = Program::serve(&redis.url(), &[]).await;
    first.is_ready().await;
    second.is_ready().await;
    let (mut one, mut two) = (first.coordination().await, second.coordination().await);

    let grant = claimed(one.claim(claim("key", "a")).await);
    let told = in_flight(two.claim(claim("key", "b")).await);
    assert_eq!((told.holder.as_str(), told.attempt), ("holder a", 1));
    let again = claimed(two.claim(claim("key", "a")).await);
    assert!(again.already_held);
    assert_eq!(again.fencing_token, grant.fencing_token);
    completed(two.complete(complete("key", "a", b"done")).await);
    assert_eq!(
        replay(one.claim(claim("key", "b")).await).response,
        Some(response(b"done"))
    );

    let lock = acquired(two.acquire_lock(acquire("lock", "a")).await);
    let told = held(one.acquire_lock(acquire("lock", "b")).await);
    assert_eq!(told.holders[0].fencing_token, lock.fencing_token);
    released(one.release_lock(release("lock", "a")).await);
    let next = acquired(one.acquire_lock(acquire("lock", "b")).await);
    assert!(next.fencing_token > lock.fencing_token);
    held(two.acquire_lock(acquire("lock", "c")).await);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_with_its_flag_in_one_line_and_the_code_is_1() {
    let home = TempDir::new().expect("a temporary folder");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let taken = listener.local_addr().expect("a bound address").to_string();
    for (grpc, http, flag) in [
        (taken.as_str(), "127.0.0.1:0", "--grpc-addr"),
        ("127.0.0.1:0", &taken, "--http-addr"),
    ] {
        let output = claimlock(&home)
            .args(["serve", "--redis-url=redis://127.0.0.1:1"])
            .args(["--grpc-addr", grpc, "--http-addr", http])
            .output()
            .await
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        let stderr = String::from_utf8(output.stderr).expect("it prints UTF-8");
        let start = format!("claimlock: cannot listen on {taken}: Address already in use");
        assert!(stderr.starts_with(&start), "{stderr}");
        assert!(stderr.contains(flag), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[tokio::test]
async fn grpc_is_served_on_the_port_that_was_asked_for() {
    let redis = RedisServer::start().await;
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let asked_for = free.local_addr().expect("a bound address");
    drop(free);
    let program = Program::serve_on(&asked_for.to_string(), &redis.url(), &[]).await;
    assert_eq!(program.grpc, asked_for);
    program.is_ready().await;
    claimed(coordination(asked_for).await.claim(claim("key", "a")).await);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}
