//! What a stream leaves when it ends.

use super::*;
use crate::support::answers::in_flight;
use crate::support::blackhole::Mode;
use crate::support::claims::strict_claim;
use crate::support::raw::{Raw, Sent, framed, framed_message};
use crate::support::requests::{millis, proto_duration};
use crate::support::stream::{detach, keep};
use claimlock::rpc::proto::{KeepAliveRequest, LossReason};
use futures_util::future::join_all;
use std::io::Write as _;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

/// How a client's stream comes to its end.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Its process is killed: the kernel closes its connections.
    Killed,
    Cancelled,
    /// It ends its requests, and waits for the end of the answers.
    Ended,
}

impl World {
    async fn close(&self, stream: Stream, way: Way) {
        match way {
            Way::Killed => {
                self.to_service.set(Mode::Cut).await;
                self.to_service.set(Mode::Pass).await;
                drop(stream);
            }
            Way::Cancelled => drop(stream),
            Way::Ended => stream.finish().await.1.expect("it ends well"),
        }
    }
}

#[tokio::test]
async fn a_lock_whose_client_is_killed_is_free_at_once() {
    let world = World::start().await;
    for way in [Way::Killed, Way::Cancelled, Way::Ended] {
        is_at_once(&format!("{way:?}"), async |round| {
            let resource = format!("{way:?}-{round}");
            let lease = world.hold_lock(&resource, "a").await;
            let mut stream = world.stream().await;
            kept_until_close(&mut stream, &lease).await;
            // Once asked for, it holds for the stream.
            stream.ask(keep(&lease)).await.renewed();
            let started = Instant::now();
            world.close(stream, way).await;
            world.time_until_free(&resource, "b").await;
            let free_after = started.elapsed();
            let mut client = world.elsewhere.clone();
            let late = client
                .renew_lock(crate::support::requests::renew_lock(&resource, "a"))
                .await;
            use claimlock::rpc::proto::renew_lock_response::Outcome;
            let Some(Outcome::Lost(lost)) = late.expect("an answer").into_inner().outcome else {
                panic!("renewed");
            };
            assert_eq!(lost.reason(), LossReason::TakenOver);
            free_after
        })
        .await;
    }
    world.finish().await;
}

/// A client in a process of its own: keeps a lock as it is told on its input, says so, and stays.
#[tokio::test]
#[ignore = "is the process that another test starts and kills"]
async fn is_a_client_that_keeps_a_lock() {
    let mut told = String::new();
    std::io::stdin().read_line(&mut told).expect("a line");
    let Some((address, resource)) = told.trim_end().split_once(' ') else {
        return;
    };
    let client = coordination(address.parse().expect("an address")).await;
    let mut stream = Stream::open(&client).await;
    kept_until_close(&mut stream, &lock_ref(resource, "a")).await;
    writeln!(std::io::stdout(), "{KEPT}").expect("somebody reads");
    std::future::pending::<()>().await;
}

const KEPT: &str = "keeps the lock";

#[tokio::test]
async fn a_lock_is_free_at_once_when_the_process_that_kept_it_is_killed() {
    let world = World::start().await;
    is_at_once("SIGKILL", async |round| {
        let resource = format!("r-{round}");
        world.hold_lock(&resource, "a").await;
        let mut process = a_process_that_keeps(&world, &resource).await;
        world.stays_held(&resource).await;
        process.kill().await.expect("our own child can be killed");
        world.time_until_free(&resource, "b").await
    })
    .await;
    world.finish().await;
}

async fn a_process_that_keeps(world: &World, resource: &str) -> Child {
    let test = "keep_alive::closing::is_a_client_that_keeps_a_lock";
    let mut process = Command::new(std::env::current_exe().expect("the test's own file"))
        .args(["--ignored", "--exact", test, "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut stdin = process.stdin.take().expect("it is piped");
    let told = format!("{} {resource}\n", world.service.grpc);
    stdin.write_all(told.as_bytes()).await.expect("it reads");
    let stdout = process.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(stdout).lines();
    let keeps = async {
        while let Some(line) = lines.next_line().await.expect("it prints UTF-8") {
            if line.contains(KEPT) {
                return;
            }
        }
        panic!("the client ended");
    };
    let keeps = tokio::time::timeout(crate::support::BOUND, keeps).await;
    keeps.expect("the client keeps the lock");
    process
}

#[tokio::test]
async fn whoever_waits_for_a_lock_has_it_as_soon_as_its_holder_is_killed() {
    let world = World::start().await;
    is_at_once("the next holds it", async |round| {
        let resource = format!("r-{round}");
        let lease = world.hold_lock(&resource, "a").await;
        let mut stream = world.stream().await;
        kept_until_close(&mut stream, &lease).await;
        let waits = AcquireLockRequest {
            wait: proto_duration(LONG),
            ..acquire(&resource, "b")
        };
        let waiting = tokio::spawn({
            let mut client = world.elsewhere.clone();
            async move { acquired(client.acquire_lock(waits).await) }
        });
        let mut admin = world.admin.clone();
        eventually("the other to wait", async || {
            let lock = admin.get_lock(crate::support::calls::get_lock(&resource));
            let lock = lock.await.expect("an answer").into_inner().lock?;
            (lock.queue_length == 1).then_some(())
        })
        .await;
        let started = Instant::now();
        world.close(stream, Way::Killed).await;
        waiting.await.expect("it is acquired");
        started.elapsed()
    })
    .await;
    world.finish().await;
}

#[tokio::test]
async fn a_lock_delay_runs_from_the_moment_at_which_the_client_is_killed() {
    const DELAY: Duration = Duration::from_secs(3);
    let world = World::start().await;
    world
        .acquire(AcquireLockRequest {
            lease: proto_duration(LONG),
            lock_delay: proto_duration(DELAY),
            ..acquire("r", "a")
        })
        .await;
    let lease = lock_ref("r", "a");
    let mut stream = world.stream().await;
    kept_until_close(&mut stream, &lease).await;
    let started = Instant::now();
    world.close(stream, Way::Killed).await;
    world.time_until_free("r", "b").await;
    let free_after = started.elapsed();
    assert!(free_after >= DELAY, "{free_after:?}");
    assert!(free_after < DELAY + SOON, "{free_after:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_claim_whose_client_is_killed_goes_on_as_its_policy_says() {
    let world = World::start().await;
    let to_take = world.hold_claim(claim_for_long("to-take", "a"), "a").await;
    let strict = ClaimRequest {
        lease: proto_duration(LONG),
        ..strict_claim("to-ask", "a")
    };
    let to_ask = world.hold_claim(strict, "a").await;
    let mut stream = world.stream().await;
    for lease in [&to_take, &to_ask] {
        kept_until_close(&mut stream, lease).await;
    }
    let mut client = world.elsewhere.clone();
    in_flight(client.claim(claim("to-take", "b")).await);
    let started = Instant::now();
    world.close(stream, Way::Killed).await;
    for key in ["to-take", "to-ask"] {
        let outcome = eventually("the claim's lease to end", async || {
            let answer = client.claim(claim(key, "b")).await;
            let outcome = answer.expect("an answer").into_inner().outcome;
            (!matches!(outcome, Some(ClaimOutcome::InFlight(_)))).then_some(outcome)
        });
        match outcome.await {
            Some(ClaimOutcome::Claimed(claimed)) if key == "to-take" => {
                assert!(claimed.taken_over);
            }
            Some(ClaimOutcome::Uncertain(_)) if key == "to-ask" => {}
            other => panic!("{key}: {other:?}"),
        }
    }
    let after = started.elapsed();
    assert!(after < SOON, "{after:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_lease_ends_with_its_stream_only_where_that_was_asked_for() {
    let world = World::start().await;
    let mut stream = world.stream().await;
    let ends = world.hold_lock("ends", "a").await;
    kept_until_close(&mut stream, &ends).await;
    let stands = world.hold_lock("stands", "a").await;
    stream.ask(keep(&stands)).await.renewed();
    let detached = world.hold_lock("detached", "a").await;
    kept_until_close(&mut stream, &detached).await;
    stream.ask(detach(&detached)).await.renewed();
    // Asked for anew after it was taken off, without that.
    stream.ask(keep(&detached)).await.renewed();
    world.close(stream, Way::Killed).await;
    world.time_until_free("ends", "b").await;
    world.stays_held("stands").await;
    world.stays_held("detached").await;
    world.finish().await;
}

#[tokio::test]
async fn leases_end_with_a_stream_that_rubbish_ends() {
    let world = World::start().await;
    is_at_once("rubbish", async |round| {
        let resource = format!("r-{round}");
        let lease = world.hold_lock(&resource, "a").await;
        let raw = Raw::to(&world.service).await;
        let good = framed_message(&KeepAliveRequest {
            request_id: 1,
            ..keep_until_close(&lease)
        });
        let sent = Sent::all([good, framed(b"\xff")].concat());
        raw.call("KeepAlive", &[], sent).await;
        world.time_until_free(&resource, "b").await
    })
    .await;
    world.finish().await;
}

/// The connection of a stream with one service is stranded: that service notices only when its pings are not answered.
/// Meanwhile the client has opened a stream with another, which keeps the leases from then on.
#[tokio::test]
async fn the_clean_up_of_an_old_stream_leaves_alone_what_a_later_one_keeps() {
    let world = World::start().await;
    let kept_lock = world.hold_lock("kept", "a").await;
    let kept_claim = world.hold_claim(claim_for_long("kept", "a"), "a").await;
    let left = world.hold_lock("left", "a").await;
    let mut old = world.stream().await;
    for lease in [&kept_lock, &kept_claim, &left] {
        kept_until_close(&mut old, lease).await;
    }
    world.to_service.set(Mode::Strand).await;
    let mut new = world.stream_elsewhere().await;
    for lease in [&kept_lock, &kept_claim] {
        kept_until_close(&mut new, lease).await;
    }
    // That one was not taken along shows when the old stream is cleaned up.
    world.time_until_free("left", "b").await;
    world.stays_held("kept").await;
    let mut client = world.elsewhere.clone();
    in_flight(client.claim(claim("kept", "b")).await);
    for lease in [&kept_lock, &kept_claim] {
        new.ask(keep(lease)).await.renewed();
    }
    drop(new);
    let free_after = world.time_until_free("kept", "b").await;
    assert!(free_after < SOON, "{free_after:?}");
    drop(old);
    world.finish().await;
}

#[tokio::test]
async fn leases_that_were_to_end_while_redis_was_away_end_when_it_is_back() {
    let world = World::with(crate::support::service::store_timeout(
        Duration::from_millis(300),
    ))
    .await;
    let leases = [
        world.hold_lock("r", "a").await,
        world.hold_claim(claim_for_long("k", "a"), "a").await,
    ];
    let mut stream = world.stream().await;
    for lease in &leases {
        kept_until_close(&mut stream, lease).await;
    }
    world.redis.stop_process();
    // One that is under way meanwhile does not bring the lease back.
    stream.send(keep_until_close(&leases[0])).await;
    world.close(stream, Way::Killed).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.redis.resume_process();
    let free_after = world.time_until_free("r", "b").await;
    assert!(free_after < SOON, "{free_after:?}");
    let mut client = world.elsewhere.clone();
    eventually("the claim to be taken over", async || {
        let answer = client.claim(claim("k", "b")).await.ok()?.into_inner();
        matches!(answer.outcome, Some(ClaimOutcome::Claimed(_))).then_some(())
    })
    .await;
    world.finish().await;
}

/// Redis runs what it was sent, and its answer does not come.
#[tokio::test]
async fn a_lease_ends_with_its_stream_though_nobody_heard_that_it_was_on_it() {
    let redis = RedisServer::start().await;
    let to_redis = Proxy::start(Upstream::Unix(redis.socket_path()));
    let settings = crate::support::service::store_timeout(Duration::from_millis(500));
    let service = Service::at(&to_redis.redis_url(), settings).await;
    service.is_ready().await;
    let other = Service::start(&redis).await;
    let mut elsewhere = other.coordination().await;
    let held = AcquireLockRequest {
        lease: proto_duration(LONG),
        ..acquire("r", "a")
    };
    acquired(elsewhere.acquire_lock(held).await);
    let client = service.coordination().await;
    let mut stream = Stream::open(&client).await;
    to_redis.set(Mode::SwallowReplies).await;
    let answer = stream.ask(keep_until_close(&lock_ref("r", "a"))).await;
    use claimlock::rpc::proto::keep_alive_response::Outcome;
    assert!(matches!(answer, Outcome::Unavailable(_)), "{answer:?}");
    to_redis.set(Mode::Pass).await;
    drop(stream);
    eventually("the lock to be free", async || {
        let answer = elsewhere.acquire_lock(acquire("r", "b")).await;
        let outcome = answer.expect("an answer").into_inner().outcome;
        matches!(outcome, Some(LockOutcome::Acquired(_))).then_some(())
    })
    .await;
    service.stop().await.expect("the service drains");
    other.stop().await.expect("the service drains");
}

#[tokio::test]
async fn thousands_of_leases_end_with_their_stream() {
    const LEASES: usize = 5_000;
    const TOGETHER: usize = 100;
    let world = World::with(patient()).await;
    let names: Vec<String> = (0..LEASES).map(|number| format!("r-{number}")).collect();
    let mut stream = world.stream().await;
    for chunk in names.chunks(TOGETHER) {
        let held = chunk.iter().map(|name| world.hold_lock(name, "a"));
        for lease in join_all(held).await {
            stream.send(keep_until_close(&lease)).await;
        }
        for _ in chunk {
            stream.next().await.outcome.expect("an outcome").renewed();
        }
    }
    world.close(stream, Way::Killed).await;
    let started = Instant::now();
    for chunk in names.chunks(TOGETHER) {
        join_all(chunk.iter().map(|name| world.time_until_free(name, "b"))).await;
    }
    let ended = started.elapsed();
    eprintln!("{LEASES} leases ended, and were acquired by others, within {ended:?}");
    assert!(ended < LONG / 2, "{ended:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_lease_that_is_renewed_with_a_longer_one_ends_with_its_stream_as_well() {
    let world = World::start().await;
    world
        .acquire(AcquireLockRequest {
            lease: millis(500),
            ..acquire("r", "a")
        })
        .await;
    let lease = lock_ref("r", "a");
    let mut stream = world.stream().await;
    let longer = KeepAliveRequest {
        lease: proto_duration(LONG),
        ..keep_until_close(&lease)
    };
    stream.ask(longer).await.renewed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.close(stream, Way::Cancelled).await;
    let free_after = world.time_until_free("r", "b").await;
    assert!(free_after < SOON, "{free_after:?}");
    world.finish().await;
}
