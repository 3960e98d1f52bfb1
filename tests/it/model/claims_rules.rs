//! The rules around the table of claims, save those for receipts and operators.

use super::Reason;
use super::claims::{ClaimAnswer, ClaimCall, CompleteOp, Effect, Policy, Request, ViewState};
use super::claims_desk::*;

const ABANDONED: ClaimAnswer = ClaimAnswer::Abandoned;

fn mismatch() -> ClaimAnswer {
    ClaimAnswer::Mismatch { operation: Some(0) }
}

// Fingerprints.

#[test]
fn another_request_is_a_mismatch_in_every_state_that_has_a_fingerprint() {
    let mut kept = Desk::claimed_by_a(Policy::TakeOver);
    kept.abandon_keeping(A);
    let mut taken_over = Desk::taken_over_by_b();
    taken_over.abandon(B, Effect::None);
    for mut desk in [
        Desk::claimed_by_a(Policy::TakeOver),
        Desk::over(Policy::TakeOver),
        Desk::over(Policy::MarkUncertain),
        Desk::completed_by_a(),
        Desk::given_up_by_a(Policy::TakeOver),
        kept,
        taken_over,
    ] {
        assert_eq!(desk.claim_for(C, OTHER), mismatch());
        assert_eq!(desk.claim_for(A, OTHER), mismatch(), "holder or spent");
    }
}

#[test]
fn the_same_request_under_another_operation_is_a_mismatch() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    let request = Request {
        operation: 1,
        ..SAME
    };
    assert_eq!(desk.claim_for(B, request), mismatch());
}

#[test]
fn a_key_that_was_abandoned_without_keeping_anything_may_serve_another_request() {
    let mut desk = Desk::abandoned_by_a();
    assert_eq!(desk.claim_for(B, OTHER), granted(2, 10 + LEASE));
}

#[test]
fn a_key_past_its_retention_may_serve_another_request() {
    let mut desk = Desk::completed_by_a();
    let now = 10 + RETENTION;
    assert_eq!(desk.at(now).claim_for(B, OTHER), granted(1, now + LEASE));
}

// Leases, retentions, policies.

#[test]
fn a_repeat_never_shortens_a_lease() {
    let mut desk = Desk::new();
    desk.claim_long(A, 500, RETENTION);
    assert_eq!(desk.claim_long(A, 100, RETENTION), already_held(10, 500));
    assert_eq!(desk.renew_for(A, 100), renewed(10, 500));
}

#[test]
fn a_renewal_lasts_as_long_as_the_claim_that_made_the_grant() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.claim_long(A, 500, RETENTION);
    assert_eq!(desk.at(450).renew(A), renewed(10, 450 + LEASE));
}

#[test]
fn a_repeat_never_extends_a_retention() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.claim_long(A, LEASE, 5 * RETENTION);
    assert_eq!(desk.complete(A, 1), completed(RETENTION));
}

#[test]
fn the_retention_after_a_takeover_is_the_longer_of_the_two() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.at(LEASE).claim_long(B, LEASE, 1_000);
    assert_eq!(desk.complete(B, 1), completed(LEASE + RETENTION));
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.at(LEASE).claim_long(B, LEASE, 20_000);
    assert_eq!(desk.complete(B, 1), completed(LEASE + 20_000));
}

#[test]
fn a_stricter_claim_tightens_the_policy_even_where_it_is_told_in_flight() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    assert_eq!(desk.claim_with(B, Policy::MarkUncertain), in_flight(LEASE));
    assert_eq!(desk.at(LEASE).claim(C), uncertain(LEASE));
}

#[test]
fn a_laxer_claim_does_not_loosen_the_policy() {
    let mut desk = Desk::over(Policy::MarkUncertain);
    assert_eq!(desk.claim_with(B, Policy::TakeOver), uncertain(LEASE));
}

#[test]
fn a_claim_that_asks_for_certainty_does_not_take_over() {
    let mut desk = Desk::over(Policy::TakeOver);
    assert_eq!(desk.claim_with(B, Policy::MarkUncertain), uncertain(LEASE));
    assert_eq!(desk.claim(C), uncertain(LEASE), "and that stays so");
}

#[test]
fn a_mismatch_or_a_spent_token_does_not_tighten_the_policy() {
    let mut desk = Desk::taken_over_by_b();
    desk.claim_with(A, Policy::MarkUncertain);
    let mut op = claim_op(C);
    op.request = OTHER;
    op.policy = Policy::MarkUncertain;
    desk.call(&ClaimCall::Claim(op));
    assert_eq!(desk.at(300).claim(C), took_over(3, 300 + LEASE, 1));
}

#[test]
fn the_policy_is_the_next_claims_after_an_abandon_that_leaves_nothing_in_doubt() {
    let mut desk = Desk::claimed_by_a(Policy::MarkUncertain);
    desk.abandon_keeping(A);
    desk.claim(B);
    assert_eq!(desk.at(LEASE).claim(C), took_over(3, 2 * LEASE, 0));
}

#[test]
fn the_policy_stays_strict_after_an_abandon_that_leaves_something_in_doubt() {
    let mut desk = Desk::taken_over_by_b();
    desk.claim_with(B, Policy::MarkUncertain);
    desk.abandon(B, Effect::None);
    desk.claim_with(C, Policy::TakeOver);
    let ClaimAnswer::Uncertain { attempt: 3, .. } = desk.at(900).claim(3) else {
        panic!("the policy was loosened");
    };
}

// Checkpoints.

fn handed_on(saved: &[(u8, i64)]) -> u8 {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    for (checkpoint, sequence) in saved {
        desk.save(A, *checkpoint, *sequence);
    }
    match desk.at(LEASE).claim(B) {
        ClaimAnswer::Claimed { checkpoint, .. } => checkpoint,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_late_checkpoint_does_not_bring_an_older_one_back() {
    assert_eq!(handed_on(&[(1, 1), (2, 2), (3, 1)]), 2);
    assert_eq!(handed_on(&[(1, 1), (2, 1)]), 1);
}

#[test]
fn sequence_zero_always_replaces_and_leaves_the_count_as_it_was() {
    assert_eq!(handed_on(&[(1, 5), (2, 0)]), 2);
    assert_eq!(handed_on(&[(1, 5), (2, 0), (3, 5)]), 2);
    assert_eq!(handed_on(&[(1, 5), (2, 0), (3, 6)]), 3);
}

#[test]
fn an_empty_checkpoint_clears_what_was_saved() {
    assert_eq!(handed_on(&[(1, 1), (0, 2)]), 0);
}

#[test]
fn a_renewal_counts_even_where_its_checkpoint_is_ignored() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.save(A, 1, 5);
    assert_eq!(desk.at(50).save(A, 2, 4), renewed(10, 50 + LEASE));
}

#[test]
fn the_next_grant_counts_its_checkpoints_anew() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.save(A, 1, 9);
    desk.at(LEASE).claim(B);
    desk.save(B, 2, 1);
    assert_eq!(desk.at(300).claim(C), took_over(3, 300 + LEASE, 2));
}

// How long things last.

#[test]
fn a_record_lasts_for_its_retention_after_the_lease_and_is_absent_from_then_on() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.at(LEASE + RETENTION - 1);
    assert_eq!(
        desk.look().map(|view| view.state),
        Some(ViewState::LeaseOver)
    );
    desk.at(LEASE + RETENTION);
    assert_eq!(desk.look(), None);
    assert_eq!(desk.renew(A), lost(Reason::NotFound));
    assert_eq!(desk.complete(A, 1), lost(Reason::NotFound));
    assert_eq!(desk.claim(A), granted(1, desk.now + LEASE));
}

#[test]
fn a_renewal_moves_the_end_of_the_record_on() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.at(LEASE + RETENTION - 1).renew(A);
    desk.at(desk.now + LEASE + RETENTION - 1);
    assert_eq!(desk.renew(A), renewed(10, desk.now + LEASE));
}

#[test]
fn an_uncertain_claim_stays_for_the_longest_retention() {
    let mut desk = Desk::claimed_by_a(Policy::MarkUncertain);
    assert_eq!(desk.at(LEASE + LONGEST - 1).claim(B), uncertain(LEASE));
    assert_eq!(
        desk.at(LEASE + LONGEST).claim(B),
        granted(1, desk.now + LEASE)
    );
}

#[test]
fn abandoning_ends_the_long_stay_unless_an_effect_is_in_doubt() {
    let mut desk = Desk::claimed_by_a(Policy::MarkUncertain);
    desk.abandon_keeping(A);
    assert_eq!(desk.at(RETENTION).look(), None);

    let mut desk = Desk::taken_over_by_b();
    desk.claim_with(B, Policy::MarkUncertain);
    desk.abandon(B, Effect::None);
    let state = desk.at(LEASE + LONGEST).look().map(|view| view.state);
    assert_eq!(state, Some(ViewState::Abandoned));
}

#[test]
fn giving_up_after_the_lease_ended_does_not_move_its_end() {
    let mut desk = Desk::over(Policy::MarkUncertain);
    desk.abandon(A, Effect::Unknown);
    assert_eq!(desk.claim(B), uncertain(LEASE));
}

#[test]
fn completing_sets_a_retention_of_its_own() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    let op = CompleteOp {
        retention_ms: Some(2_000),
        ..complete_op(A)
    };
    assert_eq!(desk.complete_with(op), completed(2_000));
}

#[test]
fn a_response_can_be_gone_before_its_key() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.complete_with(CompleteOp {
        response: Some(1),
        response_retention_ms: Some(500),
        ..complete_op(A)
    });
    assert_eq!(desk.at(499).claim(B), replay(0, RETENTION));
    let ClaimAnswer::Replay { response: None, .. } = desk.at(500).claim(B) else {
        panic!("the response is still there");
    };
    assert_eq!(desk.complete(A, 1), completed(RETENTION), "but known");
}

#[test]
fn a_response_is_never_kept_for_longer_than_its_key() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.complete_with(CompleteOp {
        response: Some(1),
        response_retention_ms: Some(5 * RETENTION),
        ..complete_op(A)
    });
    assert_eq!(desk.at(RETENTION).claim(B), granted(1, RETENTION + LEASE));
}

// Spent tokens.

#[test]
fn a_spent_token_gets_the_replay_of_whatever_completed_the_key() {
    let mut desk = Desk::taken_over_by_b();
    desk.complete(B, 1);
    let ClaimAnswer::Replay { attempt: 2, .. } = desk.claim(A) else {
        panic!("no replay");
    };
    assert_eq!(desk.renew(A), lost(Reason::Completed));
    assert_eq!(desk.complete(A, 1), lost(Reason::Completed));
    assert_eq!(desk.abandon(A, Effect::None), lost(Reason::Completed));
}

#[test]
fn a_repeated_abandon_is_abandoned_whatever_became_of_the_key() {
    let mut desk = Desk::abandoned_by_a();
    desk.claim(B);
    assert_eq!(desk.abandon(A, Effect::None), ABANDONED);
    desk.complete(B, 1);
    assert_eq!(desk.abandon(A, Effect::None), ABANDONED);
}

#[test]
fn a_token_that_gave_up_is_spent_as_released_once_another_took_over() {
    let mut desk = Desk::given_up_by_a(Policy::TakeOver);
    desk.claim(B);
    assert_eq!(desk.claim(A), lost(Reason::Released));
    assert_eq!(desk.complete(A, 1), lost(Reason::Released));
    assert_eq!(desk.abandon(A, Effect::None), ABANDONED);
}

#[test]
fn an_abandon_that_overtakes_its_own_claim_wins() {
    let mut desk = Desk::new();
    desk.abandon(A, Effect::None);
    assert_eq!(desk.at(20).claim(A), lost(Reason::Released));
    assert_eq!(desk.renew(A), lost(Reason::Released));
    assert_eq!(desk.abandon(A, Effect::None), ABANDONED);
}

#[test]
fn an_abandon_that_was_lost_spends_its_token_all_the_same() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.abandon(B, Effect::None);
    assert_eq!(desk.at(LEASE).claim(B), lost(Reason::TakenOver));
    assert_eq!(desk.abandon(B, Effect::None), lost(Reason::TakenOver));
    desk.complete(A, 1);
    assert_eq!(desk.claim(B), replay(LEASE, LEASE + RETENTION));
}

#[test]
fn a_spent_token_is_forgotten_after_its_time() {
    let mut desk = Desk::with_memory(500);
    desk.claim(A);
    desk.abandon(A, Effect::None);
    assert_eq!(desk.at(499).claim(A), lost(Reason::Released));
    assert_eq!(desk.at(500).claim(A), granted(2, 500 + LEASE));
}

#[test]
fn who_holds_a_record_is_known_for_as_long_as_the_record_lasts() {
    let mut desk = Desk::with_memory(500);
    desk.claim(A);
    desk.abandon(A, Effect::Unknown);
    assert_eq!(desk.at(600).complete(A, 1), completed(600 + RETENTION));
    assert_eq!(desk.at(9_000).complete(A, 1), completed(600 + RETENTION));
}

#[test]
fn the_last_sixteen_grants_of_a_key_are_remembered() {
    let mut desk = Desk::new();
    for token in 0..18 {
        desk.claim(token);
        desk.abandon(token, Effect::None);
    }
    assert_eq!(desk.renew(1), lost(Reason::NotFound));
    assert_eq!(desk.renew(2), lost(Reason::Released));
}

#[test]
fn tokens_that_were_never_granted_push_out_none_that_were() {
    let mut desk = Desk::abandoned_by_a();
    for token in 100..117 {
        desk.abandon(token, Effect::None);
    }
    assert_eq!(desk.claim(A), lost(Reason::Released));
    assert_eq!(desk.renew(100), lost(Reason::NotFound));
    assert_eq!(desk.renew(101), lost(Reason::Released));
}

// What is known after a record ran out.

/// A completed with response 1 at 0, and the record ran out at 1000. Memory: 2000.
fn run_out() -> Desk {
    let mut desk = Desk::with_memory(2_000);
    desk.claim_long(A, LEASE, 1_000);
    desk.complete(A, 1);
    desk.at(1_000);
    desk
}

#[test]
fn who_completed_is_still_told_so_after_the_record_ran_out() {
    let mut desk = run_out();
    let expected = ClaimAnswer::Replay {
        response: None,
        completed_at: at(0),
        retention_end: None,
        attempt: 1,
    };
    assert_eq!(desk.claim(A), expected);
    assert_eq!(desk.complete(A, 1), completed_before());
    assert_eq!(desk.complete(A, 2), lost(Reason::Completed));
    assert_eq!(desk.renew(A), lost(Reason::Completed));
    assert_eq!(desk.abandon(A, Effect::None), lost(Reason::Completed));
    assert_eq!(desk.at(2_000).claim(A), granted(1, 2_000 + LEASE));
}

#[test]
fn who_completed_is_told_so_also_after_the_key_was_claimed_anew() {
    let mut desk = run_out();
    assert_eq!(desk.claim(B), granted(1, 1_000 + LEASE));
    assert_eq!(desk.claim(A), lost(Reason::Completed));
    assert_eq!(desk.complete(A, 1), completed_before());
    assert_eq!(desk.complete(A, 2), lost(Reason::Completed));
    desk.complete(B, 2);
    assert_eq!(desk.complete(A, 1), completed_before());
    let ClaimAnswer::Replay {
        response: Some(2), ..
    } = desk.claim(A)
    else {
        panic!("not the replay of what completed the key since");
    };
}

#[test]
fn others_find_the_key_absent_after_the_record_ran_out() {
    assert_eq!(run_out().renew(B), lost(Reason::NotFound));
    assert_eq!(run_out().complete(B, 1), lost(Reason::NotFound));
    assert_eq!(run_out().abandon(B, Effect::None), ABANDONED);
}

#[test]
fn who_gave_up_is_still_told_so_after_the_record_ran_out() {
    let mut desk = Desk::with_memory(2_000);
    desk.claim_long(A, LEASE, 1_000);
    desk.abandon(A, Effect::Unknown);
    desk.at(1_000);
    assert_eq!(desk.claim(A), lost(Reason::Released));
    assert_eq!(desk.complete(A, 1), lost(Reason::Released));
    assert_eq!(desk.abandon(A, Effect::None), ABANDONED);
    desk.claim(B);
    assert_eq!(desk.claim(A), lost(Reason::Released));
}

#[test]
fn a_holder_whose_record_ran_out_is_told_of_the_takeover_once_there_is_one() {
    let mut desk = Desk::with_memory(2_000);
    desk.claim_long(A, LEASE, 1_000);
    desk.at(LEASE + 1_000).claim(B);
    assert_eq!(desk.complete(A, 1), lost(Reason::TakenOver));
    desk.at(LEASE + 2_000);
    let anew = took_over(2, desk.now + LEASE, 0);
    assert_eq!(desk.claim(A), anew, "forgotten by then");
}

#[test]
fn giving_up_a_record_that_ran_out_is_answered_alike_after_another_claim() {
    let mut desk = Desk::with_memory(2_000);
    desk.claim_long(A, LEASE, 1_000);
    desk.at(LEASE + 1_000);
    assert_eq!(desk.abandon(A, Effect::Unknown), ABANDONED);
    desk.claim(B);
    assert_eq!(desk.abandon(A, Effect::Unknown), ABANDONED);
}
