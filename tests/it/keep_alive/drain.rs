//! What streams are told when the service shuts down, and what becomes of their leases.

use super::*;
use crate::support::answers::held;
use crate::support::stream::{keep, never_reads};
use crate::support::{BOUND, requests::token};
use futures_util::future::join_all;

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
    let hearing = streams.into_iter().map(Stream::drained);
    let (ended, drained) = tokio::join!(join_all(hearing), service.stop());
    drained.expect("the service drains");
    eprintln!(
        "{STREAMS} streams were drained within {:?}",
        started.elapsed()
    );
    for heard in ended {
        assert_eq!(heard, vec![]);
    }
    for number in 0..STREAMS {
        let mut client = elsewhere.clone();
        let request = acquire(&format!("r-{number}"), "b");
        held(client.acquire_lock(request).await);
    }
    // Whoever comes back elsewhere goes on with what it had.
    let mut stream = Stream::open(&elsewhere).await;
    stream.ask(keep(&lock_ref("r-0", "a"))).await.renewed();
    drop((stream, redis));
    other.stop().await.expect("the service drains");
}

#[tokio::test]
async fn what_is_under_way_when_the_service_drains_is_answered_before() {
    const UNDER_WAY: usize = 10;
    let redis = RedisServer::start().await;
    let to_redis = Proxy::start(Upstream::Unix(redis.socket_path()));
    let settings = crate::support::service::store_timeout(BOUND);
    let service = Service::at(&to_redis.redis_url(), settings).await;
    service.is_ready().await;
    let mut client = service.coordination().await;
    let mut stream = Stream::open(&client).await;
    // Says nothing, and so hears when the drain begins.
    let mut idle = Stream::open(&client).await;
    let names: Vec<String> = (0..UNDER_WAY).map(|number| format!("a{number}")).collect();
    for name in &names {
        acquired(client.acquire_lock(acquire(name, name)).await);
    }
    redis.stop_process();
    let since = to_redis.passed();
    for name in &names {
        stream.send(keep(&lock_ref(name, name))).await;
    }
    eventually("the renewals to be sent to Redis", async || {
        let is_sent = |name: &String| to_redis.has_passed(token(name).as_bytes(), since);
        names.iter().all(is_sent).then_some(())
    })
    .await;
    let stopping = tokio::spawn(service.stop());
    idle.next().await.outcome.expect("an outcome").draining();
    redis.resume_process();
    let heard = stream.drained().await;
    assert_eq!(heard.len(), UNDER_WAY, "{heard:?}");
    for answer in heard {
        answer.outcome.expect("an outcome").renewed();
    }
    let stopped = stopping.await.expect("no panic");
    stopped.expect("the service drains");
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
    let lease = world.hold_lock("never-reads", "a").await;
    let unread = never_reads(&world.client().await, &lease, 50_000).await;
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
    stream.next().await.outcome.expect("an outcome").draining();
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
            held(client.acquire_lock(acquire(resource, "b")).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    drop(redis);
    other.stop().await.expect("the service drains");
}
