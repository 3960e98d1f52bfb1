//! What mends a claim that went wrong: receipts, where the record was lost, and an operator.

use super::Reason;
use super::claims::{
    ClaimAnswer, ClaimCall, CompleteOp, Effect, Policy, Receipt, Resolution, ViewState,
};
use super::claims_desk::*;

const RESOLVED: ClaimAnswer = ClaimAnswer::Resolved(true);
const LEFT_ALONE: ClaimAnswer = ClaimAnswer::Resolved(false);

// Receipts.

#[test]
fn a_receipt_of_another_token_or_key_is_refused() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    assert_eq!(
        desk.complete_by_receipt(B, 0),
        ClaimAnswer::Invalid("receipt")
    );
    let foreign = CompleteOp {
        receipt: Receipt::Foreign,
        ..complete_op(A)
    };
    assert_eq!(desk.complete_with(foreign), ClaimAnswer::Invalid("receipt"));
}

#[test]
fn a_receipt_brings_back_what_it_knows() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.key.lose();
    desk.complete_by_receipt(A, 0);
    let view = desk.look().expect("completed");
    assert_eq!((view.attempt, view.fencing, view.operation), (1, 10, None));
    let mismatch = ClaimAnswer::Mismatch { operation: None };
    assert_eq!(desk.claim_for(B, OTHER), mismatch);
}

#[test]
fn a_receipt_counts_until_its_record_would_have_expired() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.key.lose();
    desk.at(LEASE + RETENTION);
    assert_eq!(desk.complete_by_receipt(A, 0), lost(Reason::NotFound));
}

#[test]
fn a_receipt_counts_only_while_nothing_is_known_of_the_key() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.key.lose();
    desk.abandon(C, Effect::None);
    assert_eq!(desk.complete_by_receipt(A, 0), lost(Reason::NotFound));
    desk.claim(B);
    assert_eq!(desk.complete_by_receipt(A, 0), lost(Reason::TakenOver));
}

#[test]
fn an_operator_who_forgets_the_key_beats_a_receipt() {
    let mut desk = Desk::with_memory(500);
    desk.claim(A);
    desk.abandon(A, Effect::None);
    assert_eq!(desk.at(400).resolve(Resolution::Forget), RESOLVED);
    assert_eq!(
        desk.at(9_000).complete_by_receipt(A, 0),
        lost(Reason::NotFound)
    );
}

// An operator.

#[test]
fn an_operator_leaves_a_live_claim_alone() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    assert_eq!(desk.resolve(Resolution::Forget), LEFT_ALONE);
    assert_eq!(desk.resolve(Resolution::Complete(1)), LEFT_ALONE);
}

#[test]
fn an_operator_leaves_a_claim_alone_that_moved_on() {
    let mut desk = Desk::over(Policy::MarkUncertain);
    let call = ClaimCall::Resolve {
        fencing: 9,
        resolution: Resolution::Forget,
    };
    assert_eq!(desk.call(&call), LEFT_ALONE);
}

#[test]
fn an_operator_completes_an_uncertain_claim() {
    let mut desk = Desk::over(Policy::MarkUncertain);
    let now = desk.now;
    assert_eq!(desk.resolve(Resolution::Complete(1)), RESOLVED);
    assert_eq!(desk.claim(B), replay(now, now + RETENTION));
    assert_eq!(desk.claim(A), replay(now, now + RETENTION));
    assert_eq!(desk.complete(A, 1), lost(Reason::Completed));
    assert_eq!(desk.renew(A), lost(Reason::Completed));
    desk.at(now + RETENTION);
    assert_eq!(desk.claim(A), lost(Reason::Forced));
}

#[test]
fn an_operator_replaces_a_wrong_response() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.complete(A, 2);
    assert_eq!(desk.at(50).resolve(Resolution::Complete(1)), RESOLVED);
    assert_eq!(desk.claim(B), replay(50, 50 + RETENTION));
    assert_eq!(desk.complete(A, 2), lost(Reason::Completed));
}

#[test]
fn an_operator_forgets_a_key_so_that_it_may_serve_any_request() {
    let mut desk = Desk::over(Policy::MarkUncertain);
    assert_eq!(desk.resolve(Resolution::Forget), RESOLVED);
    assert_eq!(desk.look(), None);
    assert_eq!(desk.claim(A), lost(Reason::Forced));
    assert_eq!(desk.claim_for(B, OTHER), granted(1, desk.now + LEASE));
}

#[test]
fn a_forgotten_holder_is_known_until_its_record_would_have_expired() {
    let mut desk = Desk::with_memory(500);
    desk.claim(A);
    desk.at(LEASE).resolve(Resolution::Forget);
    assert_eq!(
        desk.at(LEASE + RETENTION - 1).claim(A),
        lost(Reason::Forced)
    );
    desk.at(LEASE + RETENTION);
    assert_eq!(desk.claim(A), granted(1, desk.now + LEASE));
}

#[test]
fn an_operator_erases_a_response_and_repeats_are_still_recognised() {
    let mut desk = Desk::completed_by_a();
    assert_eq!(desk.resolve(Resolution::EraseResponse), RESOLVED);
    let ClaimAnswer::Replay { response: None, .. } = desk.claim(B) else {
        panic!("the response is still there");
    };
    assert_eq!(desk.complete(A, 1), completed(10 + RETENTION));
    let mut desk = Desk::over(Policy::TakeOver);
    assert_eq!(desk.resolve(Resolution::EraseResponse), LEFT_ALONE);
}

#[test]
fn an_operator_sees_each_state_by_its_name() {
    for (mut desk, state) in [
        (
            Desk::claimed_by_a(Policy::MarkUncertain),
            ViewState::InFlight,
        ),
        (Desk::over(Policy::TakeOver), ViewState::LeaseOver),
        (Desk::over(Policy::MarkUncertain), ViewState::Uncertain),
        (Desk::given_up_by_a(Policy::TakeOver), ViewState::LeaseOver),
        (
            Desk::given_up_by_a(Policy::MarkUncertain),
            ViewState::Uncertain,
        ),
        (Desk::completed_by_a(), ViewState::Completed),
        (Desk::abandoned_by_a(), ViewState::Abandoned),
    ] {
        assert_eq!(desk.look().map(|view| view.state), Some(state));
    }
    assert_eq!(Desk::new().look(), None);
}
