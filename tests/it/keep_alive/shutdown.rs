//! The program is told to end while clients of all kinds are at it: none of those that listen is left without a word, nothing
//! that they hold is lost, and those that wait keep their places.

use super::*;
use crate::support::answers::held;
use crate::support::calls::get_lock;
use crate::support::failures::told;
use crate::support::metrics::Scrape;
use crate::support::program::Program;
use crate::support::raw::greeting;
use crate::support::requests::{proto_duration, release};
use crate::support::stream::never_reads;
use futures_util::future::join_all;
use nix::sys::signal::Signal;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::Code;

const EACH: usize = 100;
const GRACE: Duration = Duration::from_secs(5);
const WAITED_FOR: &str = "waited-for";

fn waiter(number: usize) -> String {
    format!("waiter-{number}")
}

/// Waits for the lock with the program until that is about to end, and with the other service from then on. Once it has the
/// lock, notes down its number and releases it.
fn waits(
    number: usize,
    mut program: Coordination,
    mut other: Coordination,
    turns: Arc<Mutex<Vec<usize>>>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let waits = AcquireLockRequest {
            wait: proto_duration(Duration::from_secs(60)),
            ..acquire(WAITED_FOR, &waiter(number))
        };
        let status = program.acquire_lock(waits.clone()).await;
        let told = told(&status.expect_err("nobody releases the lock"));
        assert_eq!(
            (told.code, told.reason.as_str()),
            (Code::Unavailable, "DRAINING"),
            "{number}"
        );
        acquired(other.acquire_lock(waits).await);
        turns.lock().expect("nobody panicked").push(number);
        let released = other.release_lock(release(WAITED_FOR, &waiter(number)));
        released.await.expect("an answer");
    })
}

#[tokio::test]
async fn a_program_that_is_told_to_end_tells_everybody_and_takes_nothing_away() {
    let redis = RedisServer::start().await;
    let flags = [format!("--drain-grace={}s", GRACE.as_secs())];
    let mut program = Program::serve(&redis.url(), &flags.each_ref().map(String::as_str)).await;
    program.is_ready().await;
    let other = Service::start(&redis).await;
    let elsewhere = other.coordination().await;
    let acquire_for_long = async |resource: &str, name: &str| {
        let request = AcquireLockRequest {
            lease: proto_duration(LONG),
            ..acquire(resource, name)
        };
        acquired(elsewhere.clone().acquire_lock(request).await);
        lock_ref(resource, name)
    };
    let clients = join_all((0..5).map(async |_| program.coordination().await)).await;

    let kept: Vec<String> = (0..EACH).map(|number| format!("kept-{number}")).collect();
    let mut streams = Vec::new();
    for (number, resource) in kept.iter().enumerate() {
        let lease = acquire_for_long(resource, "a").await;
        let mut stream = Stream::open(&clients[number % clients.len()]).await;
        kept_until_close(&mut stream, &lease).await;
        streams.push(stream);
    }
    acquire_for_long(WAITED_FOR, "holder").await;
    let turns = Arc::new(Mutex::new(Vec::new()));
    let mut admin = other.admin().await;
    let mut waiting = Vec::new();
    for number in 0..EACH {
        let client = clients[number % clients.len()].clone();
        waiting.push(waits(number, client, elsewhere.clone(), turns.clone()));
        eventually("it to be the last in the queue", async || {
            let lock = admin.get_lock(get_lock(WAITED_FOR)).await;
            let lock = lock.expect("an answer").into_inner().lock?;
            (usize::try_from(lock.queue_length) == Ok(number + 1)).then_some(())
        })
        .await;
    }
    let unread = acquire_for_long("unread", "a").await;
    let unread = never_reads(&program.coordination().await, &unread, 50_000).await;
    let mut open = TcpStream::connect(program.grpc).await.expect("it listens");
    open.write_all(&greeting()).await.expect("it reads");
    open.peek(&mut [0]).await.expect("it greets back");

    let signalled = Instant::now();
    program.signal(Signal::SIGTERM);
    let drained = join_all(streams.into_iter().map(Stream::drained));
    let (heard, end) = tokio::join!(drained, program.ends());
    let ended = signalled.elapsed();
    eprintln!("ended after {ended:?}");
    assert_eq!(end.code(), Some(0), "{}", program.log());
    assert!(ended < GRACE + SOON, "{ended:?}");
    for heard in heard {
        assert_eq!(heard, vec![]);
    }
    drop((unread, open));

    for resource in kept.iter().map(String::as_str).chain(["unread"]) {
        let intruder = acquire(resource, "intruder");
        held(elsewhere.clone().acquire_lock(intruder).await);
    }
    eventually("all to wait here", async || {
        let waiting = Scrape::of(&other).await.value("claimlock_waiters");
        (waiting == EACH as f64).then_some(())
    })
    .await;
    let mut holder = elsewhere.clone();
    let released = holder.release_lock(release(WAITED_FOR, "holder")).await;
    released.expect("an answer");
    for waiter in waiting {
        let had_its_turn = tokio::time::timeout(crate::support::BOUND, waiter).await;
        had_its_turn.expect("its turn comes").expect("no panic");
    }
    let turns = turns.lock().expect("nobody panicked").clone();
    assert!(turns.iter().copied().eq(0..EACH), "{turns:?}");
    other.stop().await.expect("the service drains");
}
