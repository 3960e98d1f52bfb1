//! What an operator sees of locks, and takes away.

use crate::support::locks::{Answer, Locks, assert_left};
use crate::support::requests::{acquire, millis, release, renew_lock, share, told_millis};
use claimlock::rpc::proto::{AcquireLockRequest, ListLocksRequest, LockInfo, LockMode, LossReason};

/// Every call with a token that an operator took the lock from.
async fn assert_forced(locks: &Locks, resource: &str, name: &str, mode: LockMode) {
    let forced = Answer::Lost(LossReason::Forced);
    let again = AcquireLockRequest {
        mode: mode.into(),
        ..acquire(resource, name)
    };
    assert_eq!(locks.acquire(again).await, forced, "{name}");
    let told = locks.renew(renew_lock(resource, name)).await;
    assert_eq!(told, forced, "{name}");
    for _ in 0..2 {
        let told = locks.release(release(resource, name)).await;
        assert_eq!(told, forced, "{name}");
    }
}

#[tokio::test]
async fn a_lock_taken_from_its_holder_is_free_and_its_next_fencing_token_is_higher() {
    let locks = Locks::start().await;
    let granted = locks.acquire(acquire("r", "a")).await.acquired();
    assert_eq!(locks.force_release("r", granted.fencing_token).await, 1);
    assert_eq!(locks.get("r").await, None);
    assert_forced(&locks, "r", "a", LockMode::Exclusive).await;

    let next = locks.acquire(acquire("r", "b")).await.acquired();
    assert!(next.fencing_token > granted.fencing_token);
    assert_forced(&locks, "r", "a", LockMode::Exclusive).await;
    assert_eq!(locks.holders("r").await, ["holder b"]);
    locks.finish().await;
}

#[tokio::test]
async fn of_many_holders_one_is_taken_away_or_all() {
    let locks = Locks::start().await;
    let mut fences = Vec::new();
    for name in ["a", "b", "c"] {
        let granted = locks.acquire(share("r", name, 0)).await.acquired();
        fences.push(granted.fencing_token);
    }
    assert_eq!(locks.force_release("r", fences[1]).await, 1);
    assert_eq!(locks.holders("r").await, ["holder a", "holder c"]);
    assert_forced(&locks, "r", "b", LockMode::Shared).await;
    locks.renew(renew_lock("r", "a")).await.renewed();

    assert_eq!(locks.force_release("r", 0).await, 2);
    for name in ["a", "b", "c"] {
        assert_forced(&locks, "r", name, LockMode::Shared).await;
    }
    locks.acquire(acquire("r", "d")).await.acquired();
    locks.finish().await;
}

#[tokio::test]
async fn an_operator_takes_nothing_from_whoever_was_not_looked_at() {
    let locks = Locks::start().await;
    let first = locks.acquire(acquire("r", "a")).await.acquired();
    locks.release(release("r", "a")).await.released();
    let second = locks.acquire(acquire("r", "b")).await.acquired();
    let before = locks.redis.dump().await;
    for fence in [first.fencing_token, second.fencing_token + 1] {
        assert_eq!(locks.force_release("r", fence).await, 0);
    }
    assert_eq!(locks.redis.dump().await, before);

    assert_eq!(locks.force_release("never held", 0).await, 0);
    assert_eq!(locks.redis.dump().await, before);
    locks.finish().await;
}

#[tokio::test]
async fn what_only_keeps_a_lock_taken_is_ended_too_and_not_counted() {
    let locks = Locks::start().await;
    let delayed = AcquireLockRequest {
        lease: millis(40),
        lock_delay: millis(60_000),
        ..acquire("delayed", "a")
    };
    let held_on = AcquireLockRequest {
        hold_at_least: millis(1_000_000),
        ..acquire("held on", "a")
    };
    let delayed = locks.acquire(delayed).await.acquired();
    locks.leases_over("delayed").await;
    let held_on = locks.acquire(held_on).await.acquired();
    locks.release(release("held on", "a")).await.released();

    for (resource, fence) in [("delayed", delayed.fencing_token), ("held on", 0)] {
        let lock = locks.get(resource).await.expect("a lock that stays taken");
        assert_eq!(lock.holders, []);
        assert_eq!(locks.force_release(resource, fence).await, 0);
        assert_eq!(locks.get(resource).await, None);
    }
    let next = locks.acquire(acquire("held on", "b")).await.acquired();
    assert!(next.fencing_token > held_on.fencing_token);
    assert_forced(&locks, "delayed", "a", LockMode::Exclusive).await;
    // Whoever released it in time is told so again, and that nothing keeps it taken now.
    let repeated = locks.release(release("held on", "a")).await.released();
    assert_eq!(told_millis(repeated.free_in), 0);
    let told = locks.renew(renew_lock("held on", "a")).await;
    assert_eq!(told, Answer::Lost(LossReason::Released));
    locks.finish().await;
}

#[tokio::test]
async fn taking_a_lock_away_ends_hold_at_least_and_lock_delay_of_a_live_holder() {
    let locks = Locks::start().await;
    let request = AcquireLockRequest {
        hold_at_least: millis(1_000_000),
        lock_delay: millis(60_000),
        ..share("r", "a", 1)
    };
    locks.acquire(request).await.acquired();
    locks.acquire(share("r", "b", 0)).await.held();
    assert_eq!(locks.force_release("r", 0).await, 1);
    assert_eq!(locks.get("r").await, None);
    locks.acquire(share("r", "b", 0)).await.acquired();
    locks.acquire(share("r", "c", 0)).await.acquired();
    locks.finish().await;
}

#[tokio::test]
async fn an_operator_sees_each_holder_of_a_lock_and_its_last_fencing_token() {
    let locks = Locks::start().await;
    assert_eq!(locks.get("r").await, None);
    let request = AcquireLockRequest {
        lease: millis(100_000),
        ..share("r", "a", 0)
    };
    let first = locks.acquire(request).await.acquired();
    let second = locks.acquire(share("r", "b", 0)).await.acquired();
    locks.release(release("r", "b")).await.released();

    let lock = locks.get("r").await.expect("a lock that is held");
    assert_eq!(
        (lock.tenant.as_str(), lock.resource.as_str()),
        ("default", "r")
    );
    assert_eq!(lock.queue_length, 0);
    assert_eq!(lock.fencing_token, second.fencing_token);
    assert_eq!(told_millis(lock.free_in), 0);
    let [holder] = <[_; 1]>::try_from(lock.holders).expect("one holder");
    assert_eq!(holder.holder, "holder a");
    assert_eq!(holder.fencing_token, first.fencing_token);
    assert_eq!(holder.mode(), LockMode::Shared);
    assert_left(holder.lease_left, 100_000);
    assert!(told_millis(holder.held_for) < 100_000);
    locks.finish().await;
}

#[tokio::test]
async fn looking_at_a_lock_changes_nothing() {
    let locks = Locks::start().await;
    let request = AcquireLockRequest {
        lease: millis(40),
        ..share("r", "a", 3)
    };
    locks.acquire(request).await.acquired();
    locks.acquire(share("r", "b", 0)).await.acquired();
    let before = locks.redis.dump().await;
    locks.get("r").await.expect("a lock that is held");
    locks.list(ListLocksRequest::default()).await;
    locks.get("another").await;
    assert_eq!(locks.redis.dump().await, before);
    locks.finish().await;
}

/// Every lock that a listing shows, in alphabetical order.
async fn list(locks: &Locks, request: ListLocksRequest) -> Vec<LockInfo> {
    let page = locks.list(request).await;
    assert_eq!(page.next_page_token, "");
    let mut found = page.locks;
    found.sort_by(|a, b| (&a.tenant, &a.resource).cmp(&(&b.tenant, &b.resource)));
    found
}

fn names(locks: &[LockInfo]) -> Vec<&str> {
    locks.iter().map(|lock| lock.resource.as_str()).collect()
}

#[tokio::test]
async fn a_listing_shows_what_is_taken_and_nothing_that_is_free() {
    let locks = Locks::start().await;
    locks.acquire(acquire("held", "a")).await.acquired();
    locks.acquire(acquire("released", "a")).await.acquired();
    locks.release(release("released", "a")).await.released();
    locks.acquire(acquire("forced", "a")).await.acquired();
    locks.force_release("forced", 0).await;
    locks.release(release("unseen", "a")).await;
    let held_on = AcquireLockRequest {
        hold_at_least: millis(1_000_000),
        ..acquire("held on", "a")
    };
    locks.acquire(held_on).await.acquired();
    locks.release(release("held on", "a")).await.released();
    for (resource, lock_delay) in [("delayed", 60_000), ("lease over", 0)] {
        let request = AcquireLockRequest {
            lease: millis(40),
            lock_delay: millis(lock_delay),
            ..acquire(resource, "a")
        };
        locks.acquire(request).await.acquired();
        locks.leases_over(resource).await;
    }

    let listed = list(&locks, ListLocksRequest::default()).await;
    assert_eq!(names(&listed), ["delayed", "held", "held on"]);
    let [delayed, held, held_on] = <[LockInfo; 3]>::try_from(listed).expect("three locks");
    assert_eq!((delayed.holders.len(), held_on.holders.len()), (0, 0));
    assert_left(delayed.free_in, 60_000);
    assert_left(held_on.free_in, 1_000_000);
    assert_eq!(held.holders[0].holder, "holder a");
    assert_eq!(held.holders[0].fencing_token, held.fencing_token);
    assert_left(held.holders[0].lease_left, 30_000);
    assert_eq!(told_millis(held.free_in), 0);
    locks.finish().await;
}

#[tokio::test]
async fn a_listing_keeps_to_its_tenant_unless_all_are_asked_for() {
    let locks = Locks::start().await;
    for tenant in ["", "default-2", "other"] {
        let request = AcquireLockRequest {
            tenant: tenant.to_owned(),
            ..acquire("r", "a")
        };
        locks.acquire(request).await.acquired();
    }
    let tenants = |listed: Vec<LockInfo>| -> Vec<String> {
        listed.into_iter().map(|lock| lock.tenant).collect()
    };
    let of = |tenant: &str, all_tenants| ListLocksRequest {
        tenant: tenant.to_owned(),
        all_tenants,
        ..ListLocksRequest::default()
    };
    assert_eq!(tenants(list(&locks, of("", false)).await), ["default"]);
    assert_eq!(tenants(list(&locks, of("other", false)).await), ["other"]);
    assert_eq!(
        tenants(list(&locks, of("", true)).await),
        ["default", "default-2", "other"]
    );
    locks.finish().await;
}
