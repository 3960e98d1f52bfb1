//! Each row and column of the table of a lock's states: what each call is told in each state, and what it leaves.

use crate::support::failures::invalid;
use crate::support::locks::{Answer, Locks, assert_left};
use crate::support::requests::{acquire, millis, release, renew_lock, share};
use claimlock::rpc::proto::{AcquireLockRequest, LockInfo, LossReason, RenewLockRequest};
use futures_util::future::join_all;

/// The states that a token "h" can leave a lock in.
#[derive(Clone, Copy, Debug)]
enum State {
    NeverHeld,
    Held,
    Shared,
    Released,
    UnseenButReleased,
    Forced,
    LeaseOver,
    TakenSince,
    TakenByOther,
    DelayRunning,
    SharedDelayRunning,
    ReleasedInDelay,
    HoldRunning,
    SharedHoldRunning,
    HoldRunningAfterLease,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    AcquireAgain,
    AcquireInOtherMode,
    OtherAcquires,
    OtherShares,
    Renew,
    Release,
    OtherRenews,
    OtherReleases,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    Acquired,
    AlreadyHeld,
    /// With the names of those who hold it.
    Held(&'static [&'static str]),
    Renewed,
    /// With about so many milliseconds for which it stays taken.
    Released(u64),
    Lost(LossReason),
    BadMode,
}

const LEASE: u64 = 100_000;
const HOLD: u64 = 1_000_000;
const DELAY: u64 = 60_000;

use Call::{
    AcquireAgain, AcquireInOtherMode, OtherAcquires, OtherReleases, OtherRenews, OtherShares,
    Release, Renew,
};
use Cell::{Acquired, AlreadyHeld, BadMode, Held, Lost, Renewed};
use LossReason::{Forced, LeaseOver, NotFound, Released, TakenOver};

const COLUMNS: [Call; 8] = [
    AcquireAgain,
    AcquireInOtherMode,
    OtherAcquires,
    OtherShares,
    Renew,
    Release,
    OtherRenews,
    OtherReleases,
];

const NONE: Cell = Held(&[]);
const HOLDER: Cell = Held(&["holder h"]);
const OTHER: Cell = Held(&["holder other"]);
const FREE: Cell = Cell::Released(0);
const HOLDING: Cell = Cell::Released(HOLD);
const UNKNOWN: Cell = Lost(NotFound);

#[rustfmt::skip]
const TABLE: [(State, [Cell; 8]); 15] = [
    // The holder's token acquires, and in the other mode;  another acquires, shares;  the holder renews, releases;
    // another renews, releases.
    (State::NeverHeld, [Acquired, Acquired, Acquired, Acquired, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]),
    (State::Held, [AlreadyHeld, BadMode, HOLDER, HOLDER, Renewed, FREE, UNKNOWN, UNKNOWN]),
    (State::Shared, [AlreadyHeld, BadMode, HOLDER, Acquired, Renewed, FREE, UNKNOWN, UNKNOWN]),
    (State::Released, [Lost(Released), Lost(Released), Acquired, Acquired, Lost(Released), FREE, UNKNOWN, UNKNOWN]),
    (State::UnseenButReleased, [Lost(Released), Lost(Released), Acquired, Acquired, Lost(Released), UNKNOWN, UNKNOWN, UNKNOWN]),
    (State::Forced, [Lost(Forced), Lost(Forced), Acquired, Acquired, Lost(Forced), Lost(Forced), UNKNOWN, UNKNOWN]),
    (State::LeaseOver, [Lost(LeaseOver), Lost(LeaseOver), Acquired, Acquired, Lost(LeaseOver), Lost(LeaseOver), UNKNOWN, UNKNOWN]),
    (State::TakenSince, [Lost(TakenOver), Lost(TakenOver), Acquired, Acquired, Lost(TakenOver), Lost(TakenOver), UNKNOWN, UNKNOWN]),
    (State::TakenByOther, [Lost(TakenOver), Lost(TakenOver), OTHER, OTHER, Lost(TakenOver), Lost(TakenOver), UNKNOWN, UNKNOWN]),
    (State::DelayRunning, [Lost(LeaseOver), Lost(LeaseOver), NONE, NONE, Lost(LeaseOver), FREE, UNKNOWN, UNKNOWN]),
    (State::SharedDelayRunning, [Lost(LeaseOver), Lost(LeaseOver), NONE, Acquired, Lost(LeaseOver), FREE, UNKNOWN, UNKNOWN]),
    (State::ReleasedInDelay, [Lost(Released), Lost(Released), Acquired, Acquired, Lost(Released), FREE, UNKNOWN, UNKNOWN]),
    (State::HoldRunning, [Lost(Released), Lost(Released), NONE, NONE, Lost(Released), HOLDING, UNKNOWN, UNKNOWN]),
    (State::SharedHoldRunning, [Lost(Released), Lost(Released), NONE, Acquired, Lost(Released), HOLDING, UNKNOWN, UNKNOWN]),
    (State::HoldRunningAfterLease, [Lost(LeaseOver), Lost(LeaseOver), NONE, NONE, Lost(LeaseOver), Lost(LeaseOver), UNKNOWN, UNKNOWN]),
];

#[tokio::test]
async fn every_call_is_told_what_the_table_says_in_every_state() {
    let locks = Locks::start().await;
    for (state, answers) in TABLE {
        let cells = COLUMNS.into_iter().zip(answers);
        join_all(cells.map(|(call, answer)| check(&locks, state, call, answer))).await;
    }
    locks.finish().await;
}

async fn check(locks: &Locks, state: State, call: Call, expected: Cell) {
    let cell = format!("{state:?}/{call:?}");
    let fence = bring_about(locks, state, &cell).await;
    let before = locks.get(&cell).await;

    let told = make(locks, state, call, &cell).await;
    assert_eq!(cell_of(&cell, &told), expected, "{cell}: {told:?}");

    let after = locks.get(&cell).await;
    match told {
        Answer::Acquired(grant) if grant.already_held => {
            assert_eq!(grant.fencing_token, fence, "{cell}");
            assert_eq!(grant.lock_token, "token-of-a-test-h", "{cell}");
            assert_left(grant.lease_left, LEASE);
            assert_eq!(standing(after), standing(before), "{cell}");
        }
        Answer::Acquired(grant) => {
            assert!(grant.fencing_token > fence, "{cell}");
            assert_left(grant.lease_left, LEASE);
            let lock = after.unwrap_or_else(|| panic!("{cell}: a lock that is held is not free"));
            let mut fences = lock.holders.iter().map(|holder| holder.fencing_token);
            assert!(fences.any(|f| f == grant.fencing_token), "{cell}: {lock:?}");
            assert_eq!(lock.fencing_token, grant.fencing_token, "{cell}");
        }
        Answer::Renewed(renewed) => {
            assert_eq!(renewed.fencing_token, fence, "{cell}");
            assert_left(renewed.lease_left, LEASE);
            assert_eq!(standing(after), standing(before), "{cell}");
        }
        Answer::Released(_) => {
            assert_eq!(locks.holders(&cell).await, [""; 0], "{cell}");
            assert_eq!(after.is_none(), expected == FREE, "{cell}: {after:?}");
        }
        Answer::Held(_) | Answer::Lost(_) | Answer::Failed(_) => {
            assert_eq!(standing(after), standing(before), "{cell}");
        }
    }
}

/// Brings the lock into a state, and returns the fencing token of the grant that did it; 0 for none.
async fn bring_about(locks: &Locks, state: State, resource: &str) -> i64 {
    let long = held_by("h", state, resource);
    let short = AcquireLockRequest {
        lease: millis(40),
        ..long.clone()
    };
    let holding = |request: AcquireLockRequest| AcquireLockRequest {
        hold_at_least: millis(HOLD),
        ..request
    };
    let delayed = |request: AcquireLockRequest| AcquireLockRequest {
        lock_delay: millis(DELAY),
        ..request
    };
    let request = match state {
        State::NeverHeld | State::UnseenButReleased => None,
        State::Held | State::Shared | State::Released | State::Forced => Some(long),
        State::LeaseOver | State::TakenSince | State::TakenByOther => Some(short),
        State::DelayRunning | State::SharedDelayRunning | State::ReleasedInDelay => {
            Some(delayed(short))
        }
        State::HoldRunning | State::SharedHoldRunning => Some(holding(long)),
        State::HoldRunningAfterLease => Some(holding(short)),
    };
    let is_short = request.as_ref().is_some_and(|r| r.lease == millis(40));
    let fence = match request {
        Some(request) => locks.acquire(request).await.acquired().fencing_token,
        None => 0,
    };
    if is_short {
        locks.leases_over(resource).await;
    }

    match state {
        State::NeverHeld
        | State::Held
        | State::Shared
        | State::LeaseOver
        | State::DelayRunning
        | State::SharedDelayRunning
        | State::HoldRunningAfterLease => {}
        State::Released
        | State::ReleasedInDelay
        | State::HoldRunning
        | State::SharedHoldRunning => {
            locks.release(release(resource, "h")).await.released();
        }
        State::UnseenButReleased => {
            let told = locks.release(release(resource, "h")).await;
            assert_eq!(told, Answer::Lost(NotFound));
        }
        State::Forced => assert_eq!(locks.force_release(resource, 0).await, 1),
        State::TakenByOther | State::TakenSince => {
            let other = acquire(resource, "other");
            locks.acquire(other).await.acquired();
        }
    }
    if matches!(state, State::TakenSince) {
        locks.release(release(resource, "other")).await.released();
    }
    fence
}

async fn make(locks: &Locks, state: State, call: Call, resource: &str) -> Answer {
    let again = held_by("h", state, resource);
    let in_other_mode = match again.mode {
        0 => share(resource, "h", 0),
        _ => acquire(resource, "h"),
    };
    match call {
        AcquireAgain => locks.acquire(again).await,
        AcquireInOtherMode => locks.acquire(lasting(in_other_mode)).await,
        OtherAcquires => locks.acquire(lasting(acquire(resource, "new"))).await,
        OtherShares => locks.acquire(lasting(share(resource, "new", 0))).await,
        Renew => locks.renew(renew_lock_lasting(resource, "h")).await,
        Release => locks.release(release(resource, "h")).await,
        OtherRenews => locks.renew(renew_lock_lasting(resource, "new")).await,
        OtherReleases => locks.release(release(resource, "new")).await,
    }
}

fn held_by(name: &str, state: State, resource: &str) -> AcquireLockRequest {
    lasting(match state {
        State::Shared | State::SharedDelayRunning | State::SharedHoldRunning => {
            share(resource, name, 0)
        }
        _ => acquire(resource, name),
    })
}

fn lasting(request: AcquireLockRequest) -> AcquireLockRequest {
    AcquireLockRequest {
        lease: millis(LEASE),
        ..request
    }
}

fn renew_lock_lasting(resource: &str, name: &str) -> RenewLockRequest {
    RenewLockRequest {
        lease: millis(LEASE),
        ..renew_lock(resource, name)
    }
}

fn cell_of(cell: &str, told: &Answer) -> Cell {
    match told {
        Answer::Acquired(grant) if grant.already_held => AlreadyHeld,
        Answer::Acquired(_) => Acquired,
        Answer::Held(held) => {
            assert_eq!(held.queue_length, 0, "{cell}");
            // Nothing ends within a second here.
            assert_eq!(held.retry_after, millis(1000), "{cell}");
            let names: Vec<&str> = held.holders.iter().map(|h| h.holder.as_str()).collect();
            [NONE, HOLDER, OTHER]
                .into_iter()
                .find(|answer| matches!(answer, Held(expected) if **expected == names[..]))
                .unwrap_or_else(|| panic!("{cell}: held by {names:?}"))
        }
        Answer::Renewed(_) => Renewed,
        Answer::Released(released) if released.free_in == millis(0) => FREE,
        Answer::Released(released) => {
            assert_left(released.free_in, HOLD);
            HOLDING
        }
        Answer::Lost(reason) => Lost(*reason),
        Answer::Failed(failure) => {
            assert_eq!(*failure, invalid("INVALID_FIELD", &["mode"]), "{cell}");
            BadMode
        }
    }
}

/// Who holds a lock, without the times that go on.
#[derive(Debug, PartialEq)]
struct Standing {
    /// Names and fencing tokens.
    holders: Vec<(String, i64)>,
    last_fencing_token: i64,
}

fn standing(lock: Option<LockInfo>) -> Option<Standing> {
    let lock = lock?;
    let holders = lock.holders.into_iter();
    Some(Standing {
        holders: holders.map(|h| (h.holder, h.fencing_token)).collect(),
        last_fencing_token: lock.fencing_token,
    })
}
