//! Who may hold a lock together: exclusive, shared and limited holders, and those that only count.

use crate::support::eventually;
use crate::support::failures::invalid;
use crate::support::locks::{Answer, Locks, assert_left};
use crate::support::requests::{acquire, millis, release, renew_lock, share, told_millis};
use claimlock::rpc::proto::{AcquireLockRequest, LockMode, LossReason, RenewLockRequest};
use futures_util::future::join_all;
use std::time::Duration;

#[tokio::test]
async fn shared_holders_keep_an_exclusive_one_out_until_the_last_has_left() {
    let locks = Locks::start().await;
    for name in ["a", "b", "c"] {
        locks.acquire(share("r", name, 0)).await.acquired();
    }
    for left in ["a", "b", "c"] {
        locks.acquire(acquire("r", "x")).await.held();
        locks.release(release("r", left)).await.released();
    }
    locks.acquire(acquire("r", "x")).await.acquired();
    locks.acquire(share("r", "d", 0)).await.held();
    locks.finish().await;
}

#[tokio::test]
async fn the_smallest_limit_that_a_present_holder_or_the_caller_names_counts() {
    // Limits of those present, then of the caller, 0 for none; and whether there is room.
    let cases: [(&[i32], i32, bool); 9] = [
        (&[], 1, true),
        (&[0], 1, false),
        (&[1], 0, false),
        (&[0, 0], 2, false),
        (&[0, 0], 3, true),
        (&[3, 0], 0, true),
        (&[2, 0], 5, false),
        (&[5, 3], 4, true),
        (&[0, 3, 5], 0, false),
    ];
    let locks = Locks::start().await;
    for (case, (present, caller, has_room)) in cases.into_iter().enumerate() {
        let resource = format!("case {case}");
        for (i, limit) in present.iter().enumerate() {
            let request = share(&resource, &format!("{i}"), *limit);
            locks.acquire(request).await.acquired();
        }
        let told = locks.acquire(share(&resource, "caller", caller)).await;
        if has_room {
            assert!(!told.acquired().already_held, "{case}");
        } else {
            assert_eq!(told.held().holders.len(), present.len(), "{case}");
        }
    }
    locks.finish().await;
}

#[tokio::test]
async fn a_limit_goes_with_the_holder_that_named_it() {
    let locks = Locks::start().await;
    locks.acquire(share("r", "a", 3)).await.acquired();
    locks.acquire(share("r", "b", 2)).await.acquired();
    locks.acquire(share("r", "c", 0)).await.held();

    locks.release(release("r", "b")).await.released();
    locks.acquire(share("r", "c", 0)).await.acquired();
    locks.acquire(share("r", "d", 0)).await.acquired();
    locks.acquire(share("r", "e", 0)).await.held();

    locks.release(release("r", "a")).await.released();
    locks.acquire(share("r", "e", 0)).await.acquired();
    locks.finish().await;
}

#[tokio::test]
async fn those_that_only_count_keep_their_mode_and_limit_and_are_not_listed() {
    let locks = Locks::start().await;
    let delayed = AcquireLockRequest {
        lease: millis(40),
        lock_delay: millis(60_000),
        ..share("delayed", "ghost", 2)
    };
    let held_on = AcquireLockRequest {
        hold_at_least: millis(100_000),
        ..share("held on", "ghost", 2)
    };
    locks.acquire(delayed).await.acquired();
    locks.leases_over("delayed").await;
    locks.acquire(held_on).await.acquired();
    locks.release(release("held on", "ghost")).await.released();

    for (resource, free_in) in [("delayed", 60_000), ("held on", 100_000)] {
        let lock = locks.get(resource).await.expect("a lock that stays taken");
        assert_eq!(lock.holders, [], "{resource}");
        assert_left(lock.free_in, free_in);

        let exclusive = locks.acquire(acquire(resource, "x")).await.held();
        assert_eq!(exclusive.holders, [], "{resource}");
        locks.acquire(share(resource, "limited", 1)).await.held();

        locks.acquire(share(resource, "a", 0)).await.acquired();
        let full = locks.acquire(share(resource, "b", 5)).await.held();
        let names: Vec<&str> = full.holders.iter().map(|h| h.holder.as_str()).collect();
        assert_eq!(names, ["holder a"], "{resource}");
        // While somebody holds it, nobody can tell when it is free.
        let lock = locks.get(resource).await.expect("a lock that is held");
        assert_eq!(lock.free_in, millis(0), "{resource}");
    }

    // Once the ghost no longer counts, neither does its limit.
    locks.release(release("delayed", "ghost")).await.released();
    locks.acquire(share("delayed", "b", 0)).await.acquired();
    locks.acquire(share("delayed", "c", 0)).await.acquired();
    locks.finish().await;
}

#[tokio::test]
async fn ten_of_fifteen_holders_are_listed_with_what_is_known_of_them() {
    let locks = Locks::start().await;
    let mut fences = Vec::new();
    for i in 0..15 {
        let request = AcquireLockRequest {
            lease: millis(100_000),
            ..share("r", &i.to_string(), 0)
        };
        let granted = locks.acquire(request).await.acquired();
        fences.push((granted.fencing_token, format!("holder {i}")));
    }
    let held = locks.acquire(acquire("r", "x")).await.held();
    assert_eq!(held.queue_length, 0);
    assert_eq!(told_millis(held.retry_after), 1000);
    let mut listed: Vec<(i64, String)> = Vec::new();
    for holder in held.holders {
        assert_eq!(holder.mode(), LockMode::Shared);
        assert_left(holder.lease_left, 100_000);
        assert!(told_millis(holder.held_for) < 100_000);
        listed.push((holder.fencing_token, holder.holder));
    }
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), 10, "each once");
    assert!(listed.iter().all(|one| fences.contains(one)));
    assert_eq!(locks.holders("r").await.len(), 15);
    locks.finish().await;
}

/// As many as a semaphore has on which jobs end long before hold_at_least does.
#[tokio::test]
async fn a_holder_is_listed_however_many_only_count() {
    let locks = Locks::start().await;
    let names: Vec<String> = (0..60).map(|i| i.to_string()).collect();
    join_all(names.iter().map(async |name| {
        let request = AcquireLockRequest {
            hold_at_least: millis(100_000),
            ..share("r", name, 0)
        };
        locks.acquire(request).await.acquired();
        locks.release(release("r", name)).await.released();
    }))
    .await;
    let last = AcquireLockRequest {
        hold_at_least: millis(100_000),
        ..share("r", "last", 61)
    };
    let granted = locks.acquire(last).await.acquired();

    for refused in [acquire("r", "x"), share("r", "x", 0)] {
        let held = locks.acquire(refused).await.held();
        let fences: Vec<i64> = held.holders.iter().map(|h| h.fencing_token).collect();
        assert_eq!(fences, [granted.fencing_token]);
    }
    assert_eq!(locks.holders("r").await, ["holder last"]);
    locks.finish().await;
}

/// An exclusive request waits for the last of those present, a shared one for the first.
#[tokio::test]
async fn whoever_asks_again_after_retry_after_gets_what_has_ended_by_then() {
    let locks = Locks::start().await;
    for (case, request, leases) in [
        ("exclusive", acquire("r", "x"), [100, 500]),
        ("shared", share("r", "x", 2), [500, 100_000]),
    ] {
        let mut tries = 0;
        // Once more where the machine was so slow that a lease ended before its time came to be asked for.
        let (held, request) = eventually("a refusal", async || {
            tries += 1;
            let resource = format!("{case} {tries}");
            for (name, lease) in ["first", "last"].into_iter().zip(leases) {
                let holder = AcquireLockRequest {
                    lease: millis(lease),
                    ..share(&resource, name, 0)
                };
                locks.acquire(holder).await.acquired();
            }
            let request = AcquireLockRequest {
                resource,
                ..request.clone()
            };
            match locks.acquire(request.clone()).await {
                Answer::Held(held) => Some((held, request)),
                _ => None,
            }
        })
        .await;
        let retry_after = told_millis(held.retry_after);
        assert!((1..=500).contains(&retry_after), "{retry_after}");
        tokio::time::sleep(Duration::from_millis(retry_after)).await;
        locks.acquire(request).await.acquired();
    }
    locks.finish().await;
}

#[tokio::test]
async fn a_repeat_is_told_what_the_first_call_was_and_changes_nothing_else() {
    let locks = Locks::start().await;
    let first = AcquireLockRequest {
        lease: millis(100_000),
        ..share("r", "a", 2)
    };
    let granted = locks.acquire(first.clone()).await.acquired();
    assert!(!granted.already_held);
    assert_eq!(told_millis(granted.lease_left), 100_000);
    assert_eq!(told_millis(granted.waited), 0);
    assert_eq!(granted.lock_token, first.lock_token);

    let other = AcquireLockRequest {
        holder: "somebody else".to_owned(),
        max_holders: 1,
        hold_at_least: millis(1_000_000),
        lock_delay: millis(60_000),
        lease: millis(1),
        ..first.clone()
    };
    for _ in 0..2 {
        let repeated = locks.acquire(other.clone()).await.acquired();
        assert!(repeated.already_held);
        assert_eq!(repeated.fencing_token, granted.fencing_token);
        assert_left(repeated.lease_left, 100_000);
        assert!(told_millis(repeated.lease_left) > 1);
    }
    assert_eq!(locks.holders("r").await, ["holder a"]);
    // Neither does it limit, nor hold on for longer.
    locks.acquire(share("r", "b", 0)).await.acquired();
    locks.release(release("r", "b")).await.released();
    let released = locks.release(release("r", "a")).await.released();
    assert_eq!(told_millis(released.free_in), 0);
    assert_eq!(locks.get("r").await, None);
    locks.finish().await;
}

#[tokio::test]
async fn a_repeat_in_another_mode_is_refused_and_leaves_redis_as_it_was() {
    let locks = Locks::start().await;
    locks.acquire(acquire("x", "a")).await.acquired();
    locks.acquire(share("s", "a", 0)).await.acquired();
    let before = locks.redis.dump().await;
    for request in [share("x", "a", 0), acquire("s", "a")] {
        let told = locks.acquire(request).await;
        assert_eq!(told, Answer::Failed(invalid("INVALID_FIELD", &["mode"])));
    }
    // Unset is exclusive.
    let exclusive = AcquireLockRequest {
        mode: LockMode::Exclusive.into(),
        ..share("s", "a", 0)
    };
    let told = locks.acquire(exclusive).await;
    assert_eq!(told, Answer::Failed(invalid("INVALID_FIELD", &["mode"])));
    assert_eq!(locks.redis.dump().await, before);
    locks.finish().await;
}

#[tokio::test]
async fn a_lease_gets_longer_and_never_shorter() {
    let locks = Locks::start().await;
    let lease = |lease| AcquireLockRequest {
        lease: millis(lease),
        ..acquire("r", "a")
    };
    let renewal = |lease| RenewLockRequest {
        lease,
        ..renew_lock("r", "a")
    };
    let fence = locks.acquire(lease(100_000)).await.acquired().fencing_token;

    let shorter = locks.renew(renewal(millis(1))).await.renewed();
    assert_left(shorter.lease_left, 100_000);
    assert!(told_millis(shorter.lease_left) > 1);
    assert_eq!(shorter.fencing_token, fence);

    let longer = locks.acquire(lease(200_000)).await.acquired();
    assert_eq!(told_millis(longer.lease_left), 200_000);
    let longer = locks.renew(renewal(millis(300_000))).await.renewed();
    assert_eq!(told_millis(longer.lease_left), 300_000);
    assert_eq!(longer.fencing_token, fence);

    // The lease that a renewal defaults to is that of the acquisition, which is shorter by now.
    let unset = locks.renew(renewal(None)).await.renewed();
    assert_left(unset.lease_left, 300_000);
    let repeat = locks.acquire(lease(100_000)).await.acquired();
    assert_left(repeat.lease_left, 300_000);
    locks.finish().await;
}

#[tokio::test]
async fn a_renewal_that_names_no_lease_takes_that_of_the_acquisition() {
    let locks = Locks::start().await;
    let request = AcquireLockRequest {
        lease: millis(100_000),
        ..acquire("r", "a")
    };
    locks.acquire(request).await.acquired();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let renewed = locks.renew(renew_lock("r", "a")).await.renewed();
    assert_eq!(told_millis(renewed.lease_left), 100_000);
    locks.finish().await;
}

#[tokio::test]
async fn a_token_holds_one_resource_of_one_tenant_and_no_other() {
    let locks = Locks::start().await;
    let of_another = AcquireLockRequest {
        tenant: "another".to_owned(),
        ..acquire("r", "b")
    };
    locks.acquire(acquire("r", "a")).await.acquired();
    locks.acquire(acquire("s", "a")).await.acquired();
    locks.acquire(of_another).await.acquired();
    locks.release(release("s", "a")).await.released();
    assert_eq!(locks.holders("r").await, ["holder a"]);
    let told = locks.renew(renew_lock("s", "a")).await;
    assert_eq!(told, Answer::Lost(LossReason::Released));
    locks.finish().await;
}

#[tokio::test]
async fn a_caller_without_a_token_gets_one_that_works() {
    let locks = Locks::start().await;
    let without = AcquireLockRequest {
        lock_token: String::new(),
        ..acquire("r", "a")
    };
    let granted = locks.acquire(without.clone()).await.acquired();
    locks.acquire(without).await.held();
    let mut renewal = renew_lock("r", "a");
    renewal.lock_token = granted.lock_token;
    let renewed = locks.renew(renewal).await.renewed();
    assert_eq!(renewed.fencing_token, granted.fencing_token);
    locks.finish().await;
}
