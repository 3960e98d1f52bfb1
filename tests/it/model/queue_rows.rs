//! What section by section is said of those who wait, held to the oracle.

use super::locks::{AcquireOp, LockAnswer, LockCall, Mode};
use super::queue::{Queue, Step};
use super::{Reason, Token};

fn op(token: Token, mode: Mode) -> AcquireOp {
    AcquireOp {
        token,
        holder: token,
        mode,
        max_holders: 0,
        lease_ms: 60_000,
        hold_at_least_ms: 0,
        lock_delay_ms: 0,
    }
}

fn writes(token: Token) -> AcquireOp {
    op(token, Mode::Exclusive)
}

fn reads(token: Token) -> AcquireOp {
    op(token, Mode::Shared)
}

fn tokens(step: &Step) -> Vec<Token> {
    step.ended.iter().map(|(token, _)| *token).collect()
}

/// The first acquires, the others wait for it.
fn line(ops: &[AcquireOp]) -> Queue {
    let mut queue = Queue::new();
    queue.call(&LockCall::Acquire(ops[0].clone()));
    for op in &ops[1..] {
        assert_eq!(queue.wait(op).answer, None);
    }
    queue
}

#[test]
fn readers_behind_a_waiting_writer_wait_and_come_in_together() {
    let mut queue = line(&[reads(0), writes(1), reads(2), reads(3), writes(4)]);
    let at_once = queue.call(&LockCall::Acquire(reads(5)));
    assert!(matches!(at_once.answer, Some(LockAnswer::Held { .. })));
    assert_eq!(tokens(&queue.call(&LockCall::Release(0))), [1]);
    assert_eq!(tokens(&queue.call(&LockCall::Release(1))), [2, 3]);
    assert_eq!(queue.waiting(), [4]);
    assert_eq!(
        tokens(&queue.call(&LockCall::ForceRelease { fencing: 0 })),
        [4]
    );
}

#[test]
fn a_place_goes_to_the_later_call_of_its_token_in_the_same_mode() {
    let mut queue = line(&[writes(0), writes(1), writes(2)]);
    let again = queue.wait(&writes(1));
    assert_eq!((again.answer.clone(), tokens(&again)), (None, vec![1]));
    assert!(matches!(again.ended[0].1, LockAnswer::Held { .. }));
    assert_eq!(queue.waiting(), [1, 2]);
    let other_mode = queue.wait(&reads(1));
    assert_eq!(other_mode.answer, Some(LockAnswer::Invalid("mode")));
    let at_once = queue.call(&LockCall::Acquire(writes(2)));
    assert!(matches!(at_once.answer, Some(LockAnswer::Held { .. })));
    assert_eq!(queue.waiting(), [1, 2]);
}

#[test]
fn a_release_of_a_token_that_waits_spends_it() {
    let mut queue = line(&[writes(0), writes(1), writes(2)]);
    let released = queue.call(&LockCall::Release(1));
    assert_eq!(released.answer, Some(LockAnswer::Lost(Reason::NotFound)));
    assert_eq!(released.ended, [(1, LockAnswer::Lost(Reason::Released))]);
    let again = queue.wait(&writes(1));
    assert_eq!(again.answer, Some(LockAnswer::Lost(Reason::Released)));
    assert_eq!(tokens(&queue.call(&LockCall::Release(0))), [2]);
}

#[test]
fn a_writer_that_leaves_lets_the_readers_behind_it_in() {
    let mut queue = line(&[reads(0), writes(1), reads(2), reads(3)]);
    let let_in: Vec<Token> = queue.leave(1).into_iter().map(|(token, _)| token).collect();
    assert_eq!(let_in, [2, 3]);
    assert_eq!(queue.length(), 0);
}
