//! The table of locks, row by row, and the rules around it, at exact times in milliseconds.

use super::clock::{Clock, Moment};
use super::locks::{AcquireOp, LockAnswer, LockCall, LockResource, LockView, Mode};
use super::{Fencing, Reason, Settings, Token, us};

const A: Token = 0;
const B: Token = 1;
const C: Token = 2;

const LEASE: i64 = 100;
const MEMORY: i64 = 10_000;
const DELAY: i64 = 50;
const HOLD: i64 = 1_000;

struct Desk {
    resource: LockResource,
    now: i64,
    /// The fencing token of the last grant. They are made up, in steps of ten.
    fencing: i64,
}

impl Desk {
    fn new() -> Self {
        Self::with_memory(MEMORY)
    }

    fn with_memory(memory_ms: i64) -> Self {
        Self {
            resource: LockResource::new(Settings {
                memory_us: us(memory_ms),
                max_retention_us: us(1_000_000),
            }),
            now: 0,
            fencing: 0,
        }
    }

    /// A acquired at 0.
    fn held_by_a(op: AcquireOp) -> Self {
        let mut desk = Self::new();
        assert_eq!(desk.acquire_as(op), acquired(LEASE));
        desk
    }

    /// A holds for at least HOLD and released at 10.
    fn released_early() -> Self {
        let mut desk = Self::held_by_a(holding(A));
        desk.at(10).release(A);
        desk
    }

    fn at(&mut self, ms: i64) -> &mut Self {
        assert!(ms >= self.now, "time does not go back");
        self.now = ms;
        self
    }

    fn call(&mut self, call: &LockCall) -> LockAnswer {
        let answer = self.resource.apply(call, &mut Clock::exact(us(self.now)));
        if let LockAnswer::Acquired {
            fencing: Fencing::New,
            ..
        } = answer
        {
            self.fencing += 10;
            self.resource.note_fencing(self.fencing);
        }
        answer
    }

    fn acquire(&mut self, token: Token) -> LockAnswer {
        self.acquire_as(exclusive(token))
    }

    fn acquire_as(&mut self, op: AcquireOp) -> LockAnswer {
        self.call(&LockCall::Acquire(op))
    }

    fn renew(&mut self, token: Token) -> LockAnswer {
        self.call(&LockCall::Renew {
            token,
            lease_ms: None,
        })
    }

    fn release(&mut self, token: Token) -> LockAnswer {
        self.call(&LockCall::Release(token))
    }

    fn force(&mut self, fencing: i64) -> LockAnswer {
        self.call(&LockCall::ForceRelease { fencing })
    }

    fn look(&mut self) -> Option<LockView> {
        match self.call(&LockCall::Get) {
            LockAnswer::Info(view) => view,
            other => panic!("{other:?}"),
        }
    }

    /// Whether a refusal names no holder, and until when it stands.
    fn assert_taken_without_holder(&mut self, token: Token, free_at_ms: i64) {
        let expected = LockAnswer::Held {
            holders: Vec::new(),
            free_at: at(free_at_ms),
        };
        assert_eq!(self.acquire(token), expected);
    }
}

fn exclusive(token: Token) -> AcquireOp {
    AcquireOp {
        token,
        holder: token,
        mode: Mode::Exclusive,
        max_holders: 0,
        lease_ms: LEASE,
        hold_at_least_ms: 0,
        lock_delay_ms: 0,
    }
}

fn shared(token: Token, max_holders: usize) -> AcquireOp {
    AcquireOp {
        mode: Mode::Shared,
        max_holders,
        ..exclusive(token)
    }
}

fn holding(token: Token) -> AcquireOp {
    AcquireOp {
        hold_at_least_ms: HOLD,
        ..exclusive(token)
    }
}

fn delayed(token: Token) -> AcquireOp {
    AcquireOp {
        lock_delay_ms: DELAY,
        ..exclusive(token)
    }
}

fn at(ms: i64) -> Moment {
    Moment::exact(us(ms))
}

fn acquired(lease_end_ms: i64) -> LockAnswer {
    LockAnswer::Acquired {
        fencing: Fencing::New,
        lease_end: at(lease_end_ms),
        already_held: false,
    }
}

fn already_held(lease_end_ms: i64) -> LockAnswer {
    LockAnswer::Acquired {
        fencing: Fencing::Same(10),
        lease_end: at(lease_end_ms),
        already_held: true,
    }
}

fn lost(reason: Reason) -> LockAnswer {
    LockAnswer::Lost(reason)
}

fn renewed(lease_end_ms: i64) -> LockAnswer {
    LockAnswer::Renewed {
        lease_end: at(lease_end_ms),
        fencing: 10,
    }
}

/// Released, with nothing left of hold_at_least.
fn free_from(ms: i64) -> LockAnswer {
    LockAnswer::Released { free_at: at(ms) }
}

fn held(answer: LockAnswer) -> usize {
    match answer {
        LockAnswer::Held { holders, .. } => holders.len(),
        other => panic!("{other:?}"),
    }
}

// Free.

#[test]
fn a_free_lock_is_acquired_by_whoever_asks() {
    assert_eq!(Desk::new().acquire(A), acquired(LEASE));
}

#[test]
fn renewing_or_releasing_what_was_never_held_is_lost_as_not_found() {
    assert_eq!(Desk::new().renew(A), lost(Reason::NotFound));
    assert_eq!(Desk::new().release(A), lost(Reason::NotFound));
}

#[test]
fn a_token_that_released_is_spent() {
    let mut desk = Desk::held_by_a(exclusive(A));
    desk.at(10).release(A);
    assert_eq!(desk.acquire(A), lost(Reason::Released));
    assert_eq!(desk.renew(A), lost(Reason::Released));
    assert_eq!(desk.release(A), free_from(0), "a repeat");
    assert_eq!(desk.acquire(B), acquired(10 + LEASE));
}

#[test]
fn a_token_whose_lease_ended_is_spent_even_if_nobody_came() {
    let mut desk = Desk::held_by_a(exclusive(A));
    desk.at(LEASE);
    assert_eq!(desk.acquire(A), lost(Reason::LeaseOver));
    assert_eq!(desk.renew(A), lost(Reason::LeaseOver));
    assert_eq!(desk.release(A), lost(Reason::LeaseOver));
}

#[test]
fn a_token_that_was_overtaken_is_told_so() {
    let mut desk = Desk::held_by_a(exclusive(A));
    desk.at(LEASE).acquire(B);
    desk.release(B);
    assert_eq!(desk.acquire(A), lost(Reason::TakenOver));
    assert_eq!(desk.renew(A), lost(Reason::TakenOver));
    assert_eq!(desk.release(A), lost(Reason::TakenOver));
}

#[test]
fn a_token_is_forgotten_after_its_time() {
    let mut desk = Desk::held_by_a(exclusive(A));
    desk.at(LEASE + MEMORY - 1);
    assert_eq!(desk.renew(A), lost(Reason::LeaseOver));
    desk.at(LEASE + MEMORY);
    assert_eq!(desk.renew(A), lost(Reason::NotFound));
    assert_eq!(desk.acquire(A), acquired(desk.now + LEASE));
}

// Held, lease live.

#[test]
fn the_holder_of_a_live_lease_is_told_that_it_holds_the_lock_already() {
    let mut desk = Desk::held_by_a(exclusive(A));
    assert_eq!(desk.at(50).acquire(A), already_held(50 + LEASE));
}

#[test]
fn a_holder_cannot_change_its_mode() {
    let mut desk = Desk::held_by_a(exclusive(A));
    assert_eq!(desk.acquire_as(shared(A, 0)), LockAnswer::Invalid("mode"));
}

#[test]
fn an_exclusive_lock_keeps_everybody_else_out() {
    let mut desk = Desk::held_by_a(exclusive(A));
    assert_eq!(held(desk.at(LEASE - 1).acquire(B)), 1);
    assert_eq!(held(desk.acquire_as(shared(B, 0))), 1);
    assert_eq!(desk.at(LEASE).acquire(B), acquired(2 * LEASE));
}

#[test]
fn shared_holders_let_each_other_in_and_keep_an_exclusive_one_out() {
    let mut desk = Desk::held_by_a(shared(A, 0));
    assert_eq!(desk.acquire_as(shared(B, 0)), acquired(LEASE));
    assert_eq!(held(desk.acquire(C)), 2);
}

#[test]
fn the_smallest_limit_that_is_named_counts() {
    let mut desk = Desk::held_by_a(shared(A, 2));
    assert_eq!(held(desk.acquire_as(shared(B, 1))), 1);
    assert_eq!(desk.acquire_as(shared(B, 0)), acquired(LEASE));
    assert_eq!(held(desk.acquire_as(shared(C, 9))), 2);
}

#[test]
fn a_limit_is_no_use_with_an_exclusive_lock() {
    let op = AcquireOp {
        max_holders: 1,
        ..exclusive(A)
    };
    assert_eq!(
        Desk::new().acquire_as(op),
        LockAnswer::Invalid("max_holders")
    );
}

#[test]
fn a_renewal_never_shortens_a_lease() {
    let mut desk = Desk::held_by_a(exclusive(A));
    assert_eq!(desk.at(50).renew(A), renewed(50 + LEASE));
    let short = LockCall::Renew {
        token: A,
        lease_ms: Some(10),
    };
    assert_eq!(desk.call(&short), renewed(50 + LEASE));
}

#[test]
fn a_repeat_changes_nothing_but_the_lease() {
    let mut desk = Desk::held_by_a(exclusive(A));
    desk.acquire_as(AcquireOp {
        hold_at_least_ms: HOLD,
        lock_delay_ms: DELAY,
        ..exclusive(A)
    });
    assert_eq!(desk.release(A), free_from(0));
    assert_eq!(desk.acquire(B), acquired(LEASE));
}

#[test]
fn the_holder_releases_a_live_lock_and_its_delay_does_not_run() {
    let mut desk = Desk::held_by_a(delayed(A));
    assert_eq!(desk.release(A), free_from(0));
    assert_eq!(desk.acquire(B), acquired(LEASE));
}

#[test]
fn another_token_cannot_renew_or_release_a_held_lock() {
    let mut desk = Desk::held_by_a(exclusive(A));
    assert_eq!(desk.renew(B), lost(Reason::NotFound));
    assert_eq!(desk.release(B), lost(Reason::NotFound));
    assert_eq!(desk.renew(A), renewed(LEASE));
}

// Lease over, lock_delay running.

#[test]
fn while_the_delay_runs_the_lock_is_taken_and_has_no_holder() {
    let mut desk = Desk::held_by_a(delayed(A));
    desk.at(LEASE).assert_taken_without_holder(B, LEASE + DELAY);
    assert_eq!(desk.acquire(A), lost(Reason::LeaseOver));
    assert_eq!(desk.renew(A), lost(Reason::LeaseOver));
    assert_eq!(desk.renew(B), lost(Reason::NotFound));
    assert_eq!(desk.release(C), lost(Reason::NotFound));
    desk.at(LEASE + DELAY);
    assert_eq!(desk.acquire(B), acquired(desk.now + LEASE));
}

#[test]
fn a_late_release_ends_its_own_delay() {
    let mut desk = Desk::held_by_a(delayed(A));
    assert_eq!(desk.at(LEASE + 10).release(A), free_from(0));
    assert_eq!(desk.acquire(A), lost(Reason::Released));
    assert_eq!(desk.release(A), free_from(0), "a repeat");
    assert_eq!(desk.acquire(B), acquired(desk.now + LEASE));
}

#[test]
fn a_late_release_ends_no_more_than_its_own_delay() {
    let mut desk = Desk::held_by_a(AcquireOp {
        lock_delay_ms: DELAY,
        ..holding(A)
    });
    assert_eq!(desk.at(LEASE + 10).release(A), free_from(HOLD));
    desk.assert_taken_without_holder(B, HOLD);
}

#[test]
fn a_shared_holder_whose_delay_runs_still_counts_against_the_limit() {
    let mut desk = Desk::held_by_a(AcquireOp {
        lock_delay_ms: DELAY,
        ..shared(A, 1)
    });
    desk.at(LEASE);
    assert_eq!(held(desk.acquire_as(shared(B, 0))), 0);
    assert_eq!(held(desk.acquire(B)), 0);
}

#[test]
fn a_shared_holder_whose_delay_runs_is_overtaken_by_the_next_one() {
    let mut desk = Desk::held_by_a(AcquireOp {
        lock_delay_ms: DELAY,
        ..shared(A, 0)
    });
    desk.at(LEASE);
    assert_eq!(desk.acquire_as(shared(B, 0)), acquired(2 * LEASE));
    assert_eq!(desk.renew(A), lost(Reason::TakenOver));
    assert_eq!(desk.release(A), free_from(0), "its delay still ran");
}

// Released, hold_at_least running.

#[test]
fn a_lock_released_early_stays_taken_without_a_holder() {
    let mut desk = Desk::held_by_a(holding(A));
    assert_eq!(desk.at(10).release(A), free_from(HOLD));
    desk.assert_taken_without_holder(B, HOLD);
    assert_eq!(desk.at(HOLD).acquire(B), acquired(HOLD + LEASE));
}

#[test]
fn who_released_early_is_told_the_same_again() {
    let mut desk = Desk::released_early();
    assert_eq!(desk.acquire(A), lost(Reason::Released));
    assert_eq!(desk.renew(A), lost(Reason::Released));
    assert_eq!(desk.at(500).release(A), free_from(HOLD));
    assert_eq!(desk.renew(B), lost(Reason::NotFound));
    assert_eq!(desk.release(C), lost(Reason::NotFound));
}

#[test]
fn who_released_early_is_known_for_as_long_as_its_hold_runs() {
    let mut desk = Desk::with_memory(100);
    desk.acquire_as(holding(A));
    desk.at(10).release(A);
    assert_eq!(desk.at(HOLD - 1).release(A), free_from(HOLD));
    assert_eq!(desk.at(HOLD).release(A), lost(Reason::NotFound));
}

// Lease over, only hold_at_least running.

#[test]
fn a_lock_whose_lease_ended_early_stays_taken_and_cannot_be_released() {
    let mut desk = Desk::held_by_a(holding(A));
    desk.at(LEASE).assert_taken_without_holder(B, HOLD);
    assert_eq!(desk.release(A), lost(Reason::LeaseOver));
    desk.at(HOLD - 1).assert_taken_without_holder(B, HOLD);
    assert_eq!(desk.at(HOLD).acquire(B), acquired(HOLD + LEASE));
}

#[test]
fn a_lock_stays_taken_until_the_later_of_hold_and_delay() {
    let mut desk = Desk::held_by_a(AcquireOp {
        hold_at_least_ms: LEASE + 10,
        ..delayed(A)
    });
    desk.at(LEASE).assert_taken_without_holder(B, LEASE + DELAY);
}

// Tokens.

#[test]
fn a_release_that_overtakes_its_own_acquire_wins() {
    let mut desk = Desk::new();
    assert_eq!(desk.release(A), lost(Reason::NotFound));
    assert_eq!(desk.at(20).acquire(A), lost(Reason::Released));
    assert_eq!(desk.renew(A), lost(Reason::Released));
    assert_eq!(desk.release(A), lost(Reason::NotFound), "as the first time");
    assert_eq!(desk.at(MEMORY).acquire(A), acquired(MEMORY + LEASE));
}

#[test]
fn the_last_hundred_grants_of_a_resource_are_remembered() {
    let mut desk = Desk::new();
    for token in 0..102 {
        desk.acquire(token);
        desk.release(token);
    }
    desk.acquire(200);
    assert_eq!(desk.renew(1), lost(Reason::NotFound));
    assert_eq!(desk.renew(2), lost(Reason::Released));
}

#[test]
fn tokens_that_never_held_the_lock_push_out_none_that_did() {
    let mut desk = Desk::held_by_a(exclusive(A));
    desk.release(A);
    for token in 100..=200 {
        desk.release(token);
    }
    assert_eq!(desk.renew(A), lost(Reason::Released));
    assert_eq!(desk.renew(100), lost(Reason::NotFound));
    assert_eq!(desk.renew(101), lost(Reason::Released));
}

// An operator.

#[test]
fn an_operator_takes_a_lock_from_all_its_holders() {
    let mut desk = Desk::held_by_a(shared(A, 0));
    desk.acquire_as(shared(B, 0));
    assert_eq!(desk.force(0), LockAnswer::Forced(2));
    for token in [A, B] {
        assert_eq!(desk.acquire(token), lost(Reason::Forced));
        assert_eq!(desk.renew(token), lost(Reason::Forced));
        assert_eq!(desk.release(token), lost(Reason::Forced));
    }
    assert_eq!(desk.acquire(C), acquired(LEASE));
}

#[test]
fn an_operator_takes_a_lock_from_one_of_its_holders() {
    let mut desk = Desk::held_by_a(shared(A, 0));
    desk.acquire_as(shared(B, 0));
    assert_eq!(desk.force(20), LockAnswer::Forced(1));
    assert_eq!(desk.renew(A), renewed(LEASE));
    assert_eq!(desk.renew(B), lost(Reason::Forced));
    assert_eq!(desk.force(21), LockAnswer::Forced(0));
}

#[test]
fn an_operator_ends_hold_and_delay_at_once() {
    let op = AcquireOp {
        lock_delay_ms: DELAY,
        ..holding(A)
    };
    for since in [10, LEASE] {
        let mut desk = Desk::held_by_a(op.clone());
        let live = usize::from(since < LEASE);
        assert_eq!(desk.at(since).force(0), LockAnswer::Forced(live));
        assert_eq!(desk.acquire(B), acquired(since + LEASE));
        assert_eq!(desk.renew(A), lost(Reason::Forced));
    }
}

#[test]
fn who_released_before_an_operator_came_is_still_told_so() {
    let mut desk = Desk::released_early();
    assert_eq!(desk.force(0), LockAnswer::Forced(0));
    assert_eq!(desk.look(), None);
    assert_eq!(desk.release(A), free_from(0));
}

#[test]
fn an_operator_sees_holders_and_how_long_it_stays_taken_without_any() {
    let mut desk = Desk::held_by_a(holding(A));
    let view = desk.look().expect("held");
    assert_eq!((view.holders.len(), view.fencing), (1, 10));
    assert_eq!(view.free_at, None);
    let view = desk.at(LEASE).look().expect("taken");
    assert_eq!((view.holders.len(), view.fencing), (0, 10));
    assert_eq!(view.free_at, Some(at(HOLD)));
    assert_eq!(desk.at(HOLD).look(), None);
}
