//! What streams are told when the service shuts down, and what becomes of their leases.

use super::*;
use crate::support::BOUND;
use crate::support::failures::told;
use crate::support::stream::keep;
use claimlock::rpc::proto::KeepAliveResponse;
use claimlock::rpc::proto::keep_alive_response::Outcome;
use futures_util::future::join_all;
use tokio_stream::StreamExt as _;
use tonic::Code;

/// A stream that heard `draining` last, and then why it ended.
#[track_caller]
fn was_drained(heard: &[KeepAliveResponse], end: Result<(), tonic::Status>) {
    let last = heard.last().expect("something was told");
    assert_eq!((last.request_id, &last.lease_ref), (0, &None));
    assert!(
        matches!(last.outcome, Some(Outcome::Draining(_))),
        "{last:?}"
    );
    let status = end.expect_err("it does not end well");
    let told = told(&status);
    assert_eq!(
        (told.code, told.reason.as_str()),
        (Code::Unavailable, "DRAINING")
    );
    assert!(told.retry_after.is_some(), "{told:?}");
}

#[tokio::test]
async fn a_hundred_streams_are_told_that_the_service_drains_and_lose_nothing() {
    const STREAMS: usize = 100;
    let world = World::start().await;
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let lease = world.hold_lock(&format!("r-{number}"), "a").await;
        let mut stream = world.stream().await;
        kept_until_close(&mut stream, &lease).await;
        streams.push(stream);
    }
    let World {
        service,
        other,
        elsewhere,
        redis,
        ..
    } = world;
    let started = Instant::now();
    let hearing = streams.into_iter().map(async |mut stream| {
        let mut heard = Vec::new();
        let end = loop {
            match stream.hear().await {
                Ok(Some(told)) => heard.push(told),
                Ok(None) => break Ok(()),
                Err(status) => break Err(status),
            }
        };
        (heard, end)
    });
    let (ended, drained) = tokio::join!(join_all(hearing), service.stop());
    drained.expect("the service drains");
    eprintln!(
        "{STREAMS} streams were drained within {:?}",
        started.elapsed()
    );
    for (heard, end) in ended {
        assert_eq!(heard.len(), 1, "{heard:?}");
        was_drained(&heard, end);
    }
    for number in 0..STREAMS {
        let mut client = elsewhere.clone();
        let request = acquire(&format!("r-{number}"), "b");
        crate::support::answers::held(client.acquire_lock(request).await);
    }
    // Whoever comes back elsewhere goes on with what it had.
    let mut stream = Stream::open(&elsewhere).await;
    stream.ask(keep(&lock_ref("r-0", "a"))).await.renewed();
    drop((stream, redis));
    other.stop().await.expect("the service drains");
}

#[tokio::test]
async fn what_is_under_way_when_the_service_drains_is_answered_before() {
    let world = World::with(crate::support::service::store_timeout(BOUND)).await;
    let lease = world.hold_lock("r", "a").await;
    let mut stream = world.stream().await;
    kept_until_close(&mut stream, &lease).await;
    world.redis.stop_process();
    for _ in 0..10 {
        stream.send(keep(&lease)).await;
    }
    let World {
        service,
        other,
        redis,
        ..
    } = world;
    // They have come in once Redis has them; nothing says so but time.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let stopping = tokio::spawn(service.stop());
    tokio::time::sleep(Duration::from_millis(300)).await;
    redis.resume_process();
    let mut heard = Vec::new();
    let end = loop {
        match stream.hear().await {
            Ok(Some(told)) => heard.push(told),
            Ok(None) => break Ok(()),
            Err(status) => break Err(status),
        }
    };
    was_drained(&heard, end);
    assert_eq!(heard.len(), 11, "{heard:?}");
    for answer in heard.drain(..10) {
        answer.outcome.expect("an outcome").renewed();
    }
    stopping
        .await
        .expect("no panic")
        .expect("the service drains");
    drop((other, redis));
}

#[tokio::test]
async fn streams_whose_clients_do_not_read_or_hang_up_at_the_news_lose_nothing_at_a_drain() {
    let settings = Settings {
        drain_grace: Duration::from_secs(4),
        ..Settings::default()
    };
    let world = World::with(settings).await;
    let hangs_up = world.hold_lock("hangs-up", "a").await;
    let mut stream = world.stream().await;
    kept_until_close(&mut stream, &hangs_up).await;
    let never_reads = world.hold_lock("never-reads", "a").await;
    let messages = tokio_stream::iter(1..=50_000).map({
        let lease = never_reads.clone();
        move |request_id| claimlock::rpc::proto::KeepAliveRequest {
            request_id,
            ..keep_until_close(&lease)
        }
    });
    let unread = world.client().await.keep_alive(messages).await;
    let unread = unread.expect("a stream");
    // It is on the stream once its renewals make the lease another's no more.
    eventually("the lease to be on the stream", async || {
        let scrape = crate::support::metrics::Scrape::of(&world.service).await;
        (scrape.value("claimlock_leases{kind=\"lock\"}") == 2.0).then_some(())
    })
    .await;
    let World {
        service,
        other,
        elsewhere,
        redis,
        ..
    } = world;
    let started = Instant::now();
    let stopping = tokio::spawn(service.stop());
    let told = stream.next().await;
    assert!(
        matches!(told.outcome, Some(Outcome::Draining(_))),
        "{told:?}"
    );
    drop(stream);
    stopping
        .await
        .expect("no panic")
        .expect("the service drains");
    assert!(started.elapsed() < Duration::from_secs(4) + SOON);
    drop(unread);
    for resource in ["hangs-up", "never-reads"] {
        for _ in 0..10 {
            let mut client = elsewhere.clone();
            crate::support::answers::held(client.acquire_lock(acquire(resource, "b")).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    drop(redis);
    other.stop().await.expect("the service drains");
}
