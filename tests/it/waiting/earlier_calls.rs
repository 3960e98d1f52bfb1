//! A token whose caller lost its first service and asks another: what the first notices late takes nothing away.

use super::hurt::{Hurt, Moment, Way, has_noticed};
use super::{LOCK, LONG, SOON, World, leased, queue_is_gone, queue_length, served, waits};
use crate::support::answers::{acquired, held, lock_renewed, released};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::metrics::Scrape;
use crate::support::requests::{acquire, release, renew_lock};
use crate::support::service::{Coordination, Service, coordination};
use std::time::{Duration, Instant};

/// The grant of a token stands: nobody else gets the lock, and it renews it.
async fn stands(mut client: Coordination, name: &str) {
    held(client.acquire_lock(acquire(LOCK, "x")).await);
    lock_renewed(client.renew_lock(renew_lock(LOCK, name)).await);
}

#[tokio::test]
async fn the_place_of_a_waiter_goes_to_the_later_call_of_its_token_and_the_earlier_is_told() {
    let mut world = World::start().await;
    acquired(world.client(0).acquire_lock(waits(LOCK, "holder")).await);
    let start = |mut client: Coordination| {
        tokio::spawn(async move { client.acquire_lock(waits(LOCK, "a")).await })
    };
    let mut call = start(world.client(0));
    world.waits(1).await;
    let line = world.line_up([7]).await;
    // At the other service, at the same one twice, and back again; in the end without being told by any script.
    for (service, are_told) in [(1, true), (1, true), (0, true), (0, false), (1, false)] {
        if !are_told {
            world.forbid_wake_ups().await;
        }
        let later = start(world.client(service));
        let asked_at = Instant::now();
        let told = held(call.await.expect("no panic"));
        assert!(asked_at.elapsed() < 3 * SOON, "{:?}", asked_at.elapsed());
        assert_eq!(told.holders[0].holder, "holder holder");
        assert_eq!(world.queue_length().await, 2);
        call = later;
    }
    assert!(!call.is_finished());
    world.release("holder").await;
    let grant = acquired(call.await.expect("no panic"));
    assert!(!grant.already_held);
    stands(world.client(1), "a").await;
    world.release("a").await;
    let turns = served(line).await;
    assert!(turns[0].fence > grant.fencing_token);
    world.queue_is_gone().await;
}

#[tokio::test]
async fn what_a_service_notices_late_of_a_dead_connection_takes_nothing_from_the_token() {
    for notices_while_it_waits in [true, false] {
        let mut world = World::start().await;
        let network = Proxy::start(Upstream::Tcp(world.fleet.services[0].grpc));
        acquired(world.client(1).acquire_lock(waits(LOCK, "holder")).await);
        let mut lost = coordination(network.addr()).await;
        let earlier = tokio::spawn(async move { lost.acquire_lock(waits(LOCK, "a")).await });
        world.waits(1).await;
        let line = world.line_up([7]).await;
        network.set(Mode::BlackHole).await;
        let mut second = world.client(1);
        let later = tokio::spawn(async move { second.acquire_lock(waits(LOCK, "a")).await });
        eventually("the later call to have the place", async || {
            let scrape = Scrape::of(&world.fleet.services[0]).await;
            (scrape.value("claimlock_waiters") == 0.0).then_some(())
        })
        .await;
        if notices_while_it_waits {
            notices(&network, &world.fleet.services[0]).await;
        }
        assert_eq!(world.queue_length().await, 2);
        world.release("holder").await;
        acquired(later.await.expect("no panic"));
        notices(&network, &world.fleet.services[0]).await;
        assert!(earlier.await.expect("no panic").is_err());
        stands(world.client(1), "a").await;
        world.release("a").await;
        served(line).await;
        world.queue_is_gone().await;
    }
}

async fn notices(network: &Proxy, service: &Service) {
    network.set(Mode::Cut).await;
    has_noticed(&service.channel().await).await;
}

#[tokio::test]
async fn an_undo_of_an_earlier_call_leaves_what_the_token_got_at_another_service() {
    for moment in [Moment::InQueue, Moment::Granted] {
        for way in [Way::Cancels, Way::IsCutOff] {
            let mut world = Hurt::start().await;
            let lease = match moment {
                Moment::Granted => Duration::from_millis(1_500),
                _ => LONG,
            };
            let holder = leased(lease, acquire(LOCK, "holder"));
            acquired(world.elsewhere.acquire_lock(holder).await);
            world.goes_away(moment, way).await;
            let mut again = world.elsewhere.clone();
            let later = tokio::spawn(async move { again.acquire_lock(waits(LOCK, "gone")).await });
            if moment == Moment::InQueue {
                eventually("the later call to wait", async || {
                    let scrape = Scrape::of(&world.other).await;
                    (scrape.value("claimlock_waiters") == 1.0).then_some(())
                })
                .await;
                has_noticed(&world.other.channel().await).await;
            }
            let grant = if moment == Moment::Granted {
                let grant = acquired(later.await.expect("no panic"));
                assert!(grant.already_held, "{way:?}");
                world.lets_go(moment).await;
                grant
            } else {
                world.lets_go(moment).await;
                assert_eq!(queue_length(&mut world.admin, LOCK).await, 1);
                assert!(!later.is_finished());
                let free = release(LOCK, "holder");
                released(world.elsewhere.release_lock(free).await);
                acquired(later.await.expect("no panic"))
            };
            stands(world.elsewhere.clone(), "gone").await;
            let again = acquired(world.elsewhere.acquire_lock(acquire(LOCK, "gone")).await);
            assert_eq!(again.fencing_token, grant.fencing_token);
            queue_is_gone(&world.redis).await;
        }
    }
}
