//! Waiting for a lock in turn, by the service's own queue.

use super::{Desk, client};
use crate::support::blackhole::Mode;
use crate::support::service::Service;
use crate::support::{BOUND, eventually};
use claimlock::config::Settings;
use claimlock_client::{Acquisition, Client, FailureKind, HeldLock, Lock};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const HOUR: Duration = Duration::from_secs(3600);
/// For how long a place in the queue stands that nobody speaks for.
const PLACE_IS_KEPT: Duration = Duration::from_secs(3);

fn got(acquisition: Result<Acquisition, claimlock_client::Failure>) -> HeldLock {
    match acquisition {
        Ok(Acquisition::Acquired(held)) => held,
        other => panic!("{other:?}"),
    }
}

async fn held(client: &Client, resource: &str) -> HeldLock {
    got(client.acquire(&Lock::new(resource)).await)
}

/// Who got the lock, in order; each gives it to the next.
type Served = Arc<Mutex<Vec<usize>>>;

fn waits(client: &Client, resource: &str, number: usize, served: &Served) -> JoinHandle<()> {
    let (client, served) = (client.clone(), served.clone());
    let lock = Lock::new(resource).wait(HOUR);
    tokio::spawn(async move {
        let held = got(client.acquire(&lock).await);
        served.lock().unwrap().push(number);
        let released = held.release().await.expect("the service answers");
        assert!(released.is_ok(), "{released:?}");
    })
}

impl Desk {
    async fn queue_is(&self, resource: &str, length: i32) {
        eventually("the queue to be as long", async || {
            let info = self.lock_info(resource).await;
            let is = info.map_or(0, |info| info.queue_length);
            (is == length).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn clients_are_served_in_the_order_in_which_they_asked() {
    let desk = Desk::start().await;
    let other = Service::start(&desk.redis).await;
    let first = held(&desk.direct, "disk").await;
    let clients = [client(desk.service.grpc), client(other.grpc)];
    let served = Served::default();
    let mut waiting = Vec::new();
    for number in 0..10 {
        waiting.push(waits(&clients[number % 2], "disk", number, &served));
        desk.queue_is("disk", number as i32 + 1).await;
    }
    let released = first.release().await.expect("the service answers");
    assert!(released.is_ok());
    for waiter in waiting {
        waiter.await.expect("it gets the lock");
    }
    assert_eq!(*served.lock().unwrap(), (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_client_that_gives_up_leaves_the_queue_and_holds_nobody_up() {
    let desk = Desk::start().await;
    let first = held(&desk.direct, "disk").await;
    let served = Served::default();
    let gives_up = waits(&desk.client, "disk", 0, &served);
    desk.queue_is("disk", 1).await;
    let next = waits(&desk.client, "disk", 1, &served);
    desk.queue_is("disk", 2).await;
    gives_up.abort();
    desk.queue_is("disk", 1).await;
    let released = first.release().await.expect("the service answers");
    assert!(released.is_ok());
    next.await.expect("it gets the lock");
    assert_eq!(*served.lock().unwrap(), [1]);
}

#[tokio::test]
async fn a_client_whose_service_is_restarted_keeps_its_place() {
    let desk = Desk::start().await;
    // On a busy machine it may take longer than a place is kept.
    for attempt in 0..10 {
        let resource = format!("disk-{attempt}");
        let restarts = Service::start(&desk.redis).await;
        let address = restarts.grpc;
        let first = held(&desk.direct, &resource).await;
        let served = Served::default();
        let moves = waits(&client(address), &resource, 0, &served);
        desk.queue_is(&resource, 1).await;
        let stays = waits(&desk.direct, &resource, 1, &served);
        desk.queue_is(&resource, 2).await;

        let began = Instant::now();
        restarts.stop().await.expect("it drains");
        let restarted = Service::on(address, &desk.redis, Settings::default()).await;
        if began.elapsed() > PLACE_IS_KEPT / 3 {
            moves.abort();
            stays.abort();
            continue;
        }
        // Whoever did not come back has no place any more.
        tokio::time::sleep(PLACE_IS_KEPT * 4 / 3).await;
        let released = first.release().await.expect("the service answers");
        assert!(released.is_ok());
        for waiter in [moves, stays] {
            waiter.await.expect("it gets the lock");
        }
        assert_eq!(*served.lock().unwrap(), [0, 1]);
        drop(restarted);
        return;
    }
    panic!("the machine is too busy to restart a service within {PLACE_IS_KEPT:?}");
}

#[tokio::test]
async fn a_client_whose_connection_breaks_waits_again() {
    let desk = Desk::start().await;
    let first = held(&desk.direct, "disk").await;
    let served = Served::default();
    let moves = waits(&desk.client, "disk", 0, &served);
    desk.queue_is("disk", 1).await;
    for _ in 0..3 {
        desk.proxy.set(Mode::Cut).await;
        desk.proxy.set(Mode::Pass).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    desk.queue_is("disk", 1).await;
    let released = first.release().await.expect("the service answers");
    assert!(released.is_ok());
    moves.await.expect("it gets the lock");
}

#[tokio::test]
async fn a_service_that_goes_away_while_it_is_waited_for_is_told_long_before_the_wait_is_over() {
    for mode in [Mode::Cut, Mode::BlackHole] {
        let desk = Desk::start().await;
        let _first = held(&desk.direct, "disk").await;
        let call_timeout = Duration::from_millis(800);
        let client = desk.client.with_call_timeout(call_timeout);
        let lock = Lock::new("disk").wait(HOUR);
        let waited = tokio::time::timeout(BOUND, client.acquire(&lock));
        let (waited, gone) = tokio::join!(waited, async {
            desk.queue_is("disk", 1).await;
            desk.proxy.set(mode).await;
            Instant::now()
        });
        let failure = waited.expect("it is told").expect_err("nobody answers");
        assert_eq!(failure.kind, FailureKind::Unavailable, "{mode:?}");
        let told_after = gone.elapsed();
        assert!(told_after > call_timeout / 2, "{mode:?}: {told_after:?}");
    }
}

#[tokio::test]
async fn who_holds_the_lock_is_told_before_it_is_waited_for() {
    let desk = Desk::start().await;
    let first = desk.direct.acquire(&Lock::new("disk").holder("a")).await;
    let first = got(first);
    let told = Mutex::new(Vec::new());
    let lock = Lock::new("disk").wait(HOUR);
    let waiting = desk.client.acquire_with(&lock, |held| {
        let holder = &held.holders[0];
        told.lock().unwrap().push(holder.holder.clone());
    });
    let (got_it, ()) = tokio::join!(waiting, async {
        eventually("it to be told", async || {
            (*told.lock().unwrap() == ["a"]).then_some(())
        })
        .await;
        desk.queue_is("disk", 1).await;
        let released = first.release().await.expect("the service answers");
        assert!(released.is_ok());
    });
    got(got_it);
    assert_eq!(*told.lock().unwrap(), ["a"]);
}
