//! Tokens that are spent: why, for how long, and that no late call with one does any harm.

use crate::support::eventually;
use crate::support::locks::{Answer, Locks};
use crate::support::requests::{acquire, millis, release, renew_lock, share, token, told_millis};
use claimlock::rpc::proto::{AcquireLockRequest, LossReason, RenewLockRequest};
use std::time::{Duration, Instant};

const SHORT_MEMORY: u64 = 400;

fn leased(millis_of_lease: u64, request: AcquireLockRequest) -> AcquireLockRequest {
    AcquireLockRequest {
        lease: millis(millis_of_lease),
        ..request
    }
}

/// What each call with a token is told, the harmless ones first.
async fn told(locks: &Locks, resource: &str, name: &str) -> [Answer; 3] {
    [
        locks.acquire(acquire(resource, name)).await,
        locks.renew(renew_lock(resource, name)).await,
        locks.release(release(resource, name)).await,
    ]
}

fn lost(reason: LossReason) -> Answer {
    Answer::Lost(reason)
}

#[tokio::test]
async fn a_delayed_duplicate_of_every_call_after_a_release_does_nothing() {
    let locks = Locks::start().await;
    locks.acquire(acquire("r", "a")).await.acquired();
    locks.renew(renew_lock("r", "a")).await.renewed();
    locks.release(release("r", "a")).await.released();
    let expected = |free_in: &Answer| {
        assert_eq!(told_millis(free_in.clone().released().free_in), 0);
    };

    let [again, renewal, repeat] = told(&locks, "r", "a").await;
    assert_eq!(again, lost(LossReason::Released));
    assert_eq!(renewal, lost(LossReason::Released));
    expected(&repeat);
    assert_eq!(locks.get("r").await, None);

    locks.acquire(acquire("r", "b")).await.acquired();
    let [again, renewal, repeat] = told(&locks, "r", "a").await;
    assert_eq!(again, lost(LossReason::Released));
    assert_eq!(renewal, lost(LossReason::Released));
    expected(&repeat);
    assert_eq!(locks.holders("r").await, ["holder b"]);
    assert!(
        locks
            .acquire(acquire("r", "b"))
            .await
            .acquired()
            .already_held
    );
    locks.finish().await;
}

#[tokio::test]
async fn a_late_holder_changes_nothing_whoever_holds_the_lock_since() {
    let locks = Locks::start().await;
    locks
        .acquire(leased(40, acquire("r", "late")))
        .await
        .acquired();
    locks.leases_over("r").await;
    let over = lost(LossReason::LeaseOver);
    assert_eq!(
        told(&locks, "r", "late").await,
        [(); 3].map(|()| over.clone())
    );

    locks.acquire(acquire("r", "next")).await.acquired();
    let taken = lost(LossReason::TakenOver);
    let before = locks.redis.dump().await;
    assert_eq!(
        told(&locks, "r", "late").await,
        [(); 3].map(|()| taken.clone())
    );
    assert_eq!(locks.redis.dump().await, before);
    assert_eq!(locks.holders("r").await, ["holder next"]);

    locks.release(release("r", "next")).await.released();
    assert_eq!(
        told(&locks, "r", "late").await,
        [(); 3].map(|()| taken.clone())
    );
    assert_eq!(locks.get("r").await, None);
    locks.finish().await;
}

/// Also where the lease of the one that acquired it since has ended as well, and where both shared it.
#[tokio::test]
async fn whose_lease_ended_before_another_acquisition_was_taken_over() {
    let locks = Locks::start().await;
    locks
        .acquire(leased(40, share("r", "a", 0)))
        .await
        .acquired();
    let long = leased(100_000, share("r", "present", 0));
    locks.acquire(long).await.acquired();
    eventually("one lease to end", async || {
        (locks.holders("r").await == ["holder present"]).then_some(())
    })
    .await;
    // Whoever was there before took nothing over.
    assert_eq!(
        locks.renew(renew_lock("r", "a")).await,
        lost(LossReason::LeaseOver)
    );

    locks
        .acquire(leased(40, share("r", "b", 0)))
        .await
        .acquired();
    assert_eq!(
        locks.renew(renew_lock("r", "a")).await,
        lost(LossReason::TakenOver)
    );
    eventually("one lease to end", async || {
        (locks.holders("r").await == ["holder present"]).then_some(())
    })
    .await;
    assert_eq!(
        locks.renew(renew_lock("r", "b")).await,
        lost(LossReason::LeaseOver)
    );
    assert_eq!(
        locks.renew(renew_lock("r", "a")).await,
        lost(LossReason::TakenOver)
    );
    locks.finish().await;
}

#[tokio::test]
async fn a_release_that_overtakes_its_own_acquisition_wins() {
    let locks = Locks::start().await;
    let unknown = lost(LossReason::NotFound);
    assert_eq!(locks.release(release("r", "a")).await, unknown);
    let [again, renewal, repeat] = told(&locks, "r", "a").await;
    assert_eq!(again, lost(LossReason::Released));
    assert_eq!(renewal, lost(LossReason::Released));
    assert_eq!(repeat, unknown);
    assert_eq!(locks.get("r").await, None);

    // Also behind somebody who holds the lock, and keeps it.
    locks.acquire(acquire("r", "b")).await.acquired();
    assert_eq!(locks.release(release("r", "c")).await, unknown);
    assert_eq!(
        locks.acquire(share("r", "c", 0)).await,
        lost(LossReason::Released)
    );
    assert_eq!(locks.holders("r").await, ["holder b"]);
    locks.finish().await;
}

#[tokio::test]
async fn a_renewal_with_an_unknown_token_does_not_spend_it() {
    let locks = Locks::start().await;
    let told = locks.renew(renew_lock("r", "a")).await;
    assert_eq!(told, lost(LossReason::NotFound));
    assert_eq!(locks.redis.dump().await.len(), 0);
    locks.acquire(acquire("r", "a")).await.acquired();
    locks.finish().await;
}

/// How a token comes to be spent, and how long after that it must be remembered, over `memory` alone.
#[derive(Clone, Copy, Debug)]
enum Spent {
    Released,
    LeaseOver,
    TakenOver,
    Forced,
    Unseen,
}

#[tokio::test]
async fn a_token_is_good_again_once_memory_has_passed_and_not_before() {
    let locks = Locks::remembering(SHORT_MEMORY).await;
    for spent in [
        Spent::Released,
        Spent::LeaseOver,
        Spent::TakenOver,
        Spent::Forced,
        Spent::Unseen,
    ] {
        let resource = format!("{spent:?}");
        let since = spend(&locks, spent, &resource).await;
        let (granted, heard) = locks.acquire_at_last(share(&resource, "a", 0)).await;
        assert!(!granted.already_held, "{spent:?}");
        let remembered = heard - since;
        assert!(
            remembered >= Duration::from_millis(SHORT_MEMORY),
            "{spent:?}: {remembered:?}"
        );
    }
    locks.finish().await;
}

#[tokio::test]
async fn of_a_token_that_is_forgotten_nothing_is_known() {
    let locks = Locks::remembering(50).await;
    for spent in [
        Spent::Released,
        Spent::LeaseOver,
        Spent::TakenOver,
        Spent::Forced,
        Spent::Unseen,
    ] {
        let resource = format!("{spent:?}");
        spend(&locks, spent, &resource).await;
        eventually("the token to be forgotten", async || {
            let told = locks.renew(renew_lock(&resource, "a")).await;
            (told == lost(LossReason::NotFound)).then_some(())
        })
        .await;
        let told = locks.release(release(&resource, "a")).await;
        assert_eq!(told, lost(LossReason::NotFound), "{spent:?}");
    }
    locks.finish().await;
}

/// Spends the token "a"; returns a moment before its grant ended.
async fn spend(locks: &Locks, spent: Spent, resource: &str) -> Instant {
    let long = share(resource, "a", 0);
    match spent {
        Spent::Released => {
            locks.acquire(long).await.acquired();
            let since = Instant::now();
            locks.release(release(resource, "a")).await.released();
            since
        }
        Spent::LeaseOver | Spent::TakenOver => {
            let since = Instant::now() + Duration::from_millis(40);
            locks.acquire(leased(40, long)).await.acquired();
            locks.leases_over(resource).await;
            if matches!(spent, Spent::TakenOver) {
                locks.acquire(share(resource, "b", 0)).await.acquired();
            }
            since
        }
        Spent::Forced => {
            locks.acquire(long).await.acquired();
            let since = Instant::now();
            assert_eq!(locks.force_release(resource, 0).await, 1);
            since
        }
        Spent::Unseen => {
            let since = Instant::now();
            let told = locks.release(release(resource, "a")).await;
            assert_eq!(told, lost(LossReason::NotFound));
            since
        }
    }
}

#[tokio::test]
async fn a_release_is_remembered_for_as_long_as_hold_at_least_runs() {
    let locks = Locks::remembering(50).await;
    let hold = 700;
    let asked = Instant::now();
    let request = AcquireLockRequest {
        hold_at_least: millis(hold),
        ..acquire("r", "a")
    };
    locks.acquire(request).await.acquired();
    let mut free_in = hold;
    let heard = eventually("the release to be forgotten", async || {
        match locks.release(release("r", "a")).await {
            Answer::Released(released) => {
                let told = told_millis(released.free_in);
                assert!(told <= free_in, "it counts down: {told} after {free_in}");
                free_in = told;
                None
            }
            told => {
                assert_eq!(told, lost(LossReason::NotFound));
                Some(Instant::now())
            }
        }
    })
    .await;
    assert!(heard - asked >= Duration::from_millis(hold));
    locks.finish().await;
}

#[tokio::test]
async fn a_lease_that_ended_is_remembered_for_as_long_as_the_lock_stays_taken() {
    let locks = Locks::remembering(50).await;
    for (resource, hold_at_least, lock_delay) in [("delay", 0, 600), ("hold", 640, 0)] {
        let request = AcquireLockRequest {
            lease: millis(40),
            hold_at_least: millis(hold_at_least),
            lock_delay: millis(lock_delay),
            ..acquire(resource, "a")
        };
        let asked = Instant::now();
        locks.acquire(request).await.acquired();
        locks.leases_over(resource).await;
        let heard = eventually("the token to be forgotten", async || {
            match locks.acquire(acquire(resource, "a")).await {
                Answer::Acquired(granted) => {
                    assert!(!granted.already_held);
                    Some(Instant::now())
                }
                told => {
                    assert_eq!(told, lost(LossReason::LeaseOver));
                    None
                }
            }
        })
        .await;
        assert!(heard - asked >= Duration::from_millis(640), "{resource}");
    }
    locks.finish().await;
}

#[tokio::test]
async fn the_last_hundred_grants_are_remembered_whatever_is_released_unseen() {
    let locks = Locks::start().await;
    let names: Vec<String> = (0..130).map(|i| format!("granted-{i}")).collect();
    for name in &names {
        locks.acquire(acquire("r", name)).await.acquired();
        locks.release(release("r", name)).await.released();
    }
    let unseen: Vec<String> = (0..100).map(|i| format!("unseen-{i}")).collect();
    for name in &unseen {
        let told = locks.release(release("r", name)).await;
        assert_eq!(told, lost(LossReason::NotFound));
    }

    let released = lost(LossReason::Released);
    for name in &names[30..] {
        assert_eq!(locks.acquire(acquire("r", name)).await, released, "{name}");
    }
    for name in &unseen[84..] {
        assert_eq!(locks.acquire(acquire("r", name)).await, released, "{name}");
    }
    // What is remembered does not grow with what was asked.
    let mut connection = locks.redis.connect().await;
    let fields: usize = redis::cmd("HLEN")
        .arg("cl:l:{default/r}:s")
        .query_async(&mut connection)
        .await
        .expect("the record of spent tokens");
    assert!((118..=126).contains(&fields), "{fields}");
    locks.acquire(acquire("r", &names[0])).await.acquired();
    locks.finish().await;
}

#[tokio::test]
async fn of_a_free_lock_one_small_record_stays_until_memory_has_passed() {
    let locks = Locks::start().await;
    let request = share("r", "a", 3);
    locks.acquire(request.clone()).await.acquired();
    let releasing = now_on_redis(&locks).await;
    locks.release(release("r", "a")).await.released();
    let dump = locks.redis.dump().await;
    let keys: Vec<&[u8]> = dump.keys().map(Vec::as_slice).collect();
    assert_eq!(keys, [b"cl:l:{default/r}:s"]);
    assert_expiry(&locks, releasing, 0).await;
    // A refusal for a spent token is no use of the resource, and prolongs nothing.
    let told = locks.acquire(request).await;
    assert_eq!(told, lost(LossReason::Released));
    assert_eq!(locks.redis.dump().await, dump);
    locks.finish().await;
}

#[tokio::test]
async fn every_use_of_a_lock_keeps_its_keys_for_as_long_as_it_is_taken_and_remembered() {
    let locks = Locks::start().await;
    let now = async || now_on_redis(&locks).await;

    let since = now().await;
    let first = leased(100_000, share("r", "a", 3));
    locks.acquire(first).await.acquired();
    assert_expiry(&locks, since, 100_000).await;

    let since = now().await;
    let renewal = RenewLockRequest {
        lease: millis(200_000),
        ..renew_lock("r", "a")
    };
    locks.renew(renewal).await.renewed();
    assert_expiry(&locks, since, 200_000).await;

    let since = now().await;
    let repeat = leased(300_000, share("r", "a", 0));
    locks.acquire(repeat).await.acquired();
    assert_expiry(&locks, since, 300_000).await;

    let since = now().await;
    let lingering = AcquireLockRequest {
        hold_at_least: millis(400_000),
        ..share("r", "b", 0)
    };
    locks.acquire(lingering).await.acquired();
    locks.release(release("r", "b")).await.released();
    locks.release(release("r", "a")).await.released();
    assert_expiry(&locks, since, 400_000).await;

    let since = now().await;
    let delayed = AcquireLockRequest {
        lock_delay: millis(60_000),
        ..leased(400_000, share("r", "c", 0))
    };
    locks.acquire(delayed).await.acquired();
    assert_expiry(&locks, since, 460_000).await;

    let since = now().await;
    assert_eq!(locks.force_release("r", 0).await, 1);
    assert_expiry(&locks, since, 0).await;
    locks.finish().await;
}

/// The clock of Redis, in milliseconds.
async fn now_on_redis(locks: &Locks) -> i64 {
    let mut connection = locks.redis.connect().await;
    let time = redis::cmd("TIME").query_async(&mut connection).await;
    let (seconds, micros): (i64, i64) = time.expect("TIME is answered");
    seconds * 1000 + micros / 1000
}

/// Asserts that every key goes ten minutes after the end of what was last asked for: so many milliseconds after
/// `since` at the earliest, and after now at the latest.
async fn assert_expiry(locks: &Locks, since: i64, lasting: i64) {
    let now = now_on_redis(locks).await;
    let dump = locks.redis.dump().await;
    assert!(!dump.is_empty());
    for (key, (_, expiry)) in dump {
        let asked_at = expiry - 600_000 - lasting;
        let key = String::from_utf8_lossy(&key).into_owned();
        assert!(
            (since..=now + 1).contains(&asked_at),
            "{key}: {asked_at} is not in {since} to {now}"
        );
    }
}

#[tokio::test]
async fn nothing_of_a_lock_is_left_once_memory_has_passed() {
    let locks = Locks::remembering(50).await;
    locks.acquire(acquire("released", "a")).await.acquired();
    locks.release(release("released", "a")).await.released();
    let limited = leased(40, share("left behind", &token("a"), 3));
    locks.acquire(limited).await.acquired();
    locks.release(release("never held", "a")).await;
    locks.acquire(acquire("forced", "a")).await.acquired();
    assert_eq!(locks.force_release("forced", 0).await, 1);
    eventually("every key to go", async || {
        locks.redis.dump().await.is_empty().then_some(())
    })
    .await;
    locks.finish().await;
}

#[tokio::test]
async fn a_repeated_release_is_released_however_many_were_released_while_its_hold_runs() {
    const MANY: usize = 150;
    let locks = Locks::start().await;
    let held_on = |name: &str| AcquireLockRequest {
        hold_at_least: millis(600_000),
        ..share("r", name, 0)
    };
    for number in 0..MANY {
        let name = format!("holder-{number}");
        locks.acquire(held_on(&name)).await.acquired();
        locks.release(release("r", &name)).await.released();
    }
    for number in 0..MANY {
        let name = format!("holder-{number}");
        let again = locks.release(release("r", &name)).await.released();
        assert!(told_millis(again.free_in) > 0);
        let acquired = locks.acquire(held_on(&name)).await;
        assert_eq!(acquired, lost(LossReason::Released), "{name}");
    }
    locks.finish().await;
}
