//! The table of claims, row by row. The rules around it are in `claims_rules`.

use super::Reason;
use super::claims::{ClaimAnswer, Effect, Policy};
use super::claims_desk::*;

const ABANDONED: ClaimAnswer = ClaimAnswer::Abandoned;
const POLICIES: [Policy; 2] = [Policy::TakeOver, Policy::MarkUncertain];

// Absent.

#[test]
fn an_absent_key_is_claimed_by_whoever_asks() {
    assert_eq!(Desk::new().claim(A), granted(1, LEASE));
}

#[test]
fn renewing_or_completing_an_absent_claim_is_lost_as_not_found() {
    assert_eq!(Desk::new().renew(A), lost(Reason::NotFound));
    assert_eq!(Desk::new().complete(A, 1), lost(Reason::NotFound));
}

#[test]
fn abandoning_an_absent_claim_is_abandoned() {
    assert_eq!(Desk::new().abandon(A, Effect::None), ABANDONED);
    assert_eq!(Desk::new().abandon(A, Effect::Unknown), ABANDONED);
}

#[test]
fn completing_an_absent_claim_with_a_receipt_is_completed() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.at(50).key.lose();
    assert_eq!(desk.complete_by_receipt(A, 0), completed(50 + RETENTION));
}

// In flight, lease live.

#[test]
fn the_holder_of_a_live_claim_is_told_that_it_holds_it_already() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    assert_eq!(desk.at(50).claim(A), already_held(10, 50 + LEASE));
}

#[test]
fn a_repeated_claim_is_told_the_same_checkpoint_and_taken_over() {
    let mut desk = Desk::taken_over_by_b();
    let ClaimAnswer::Claimed {
        taken_over: true,
        checkpoint: 1,
        already_held: true,
        ..
    } = desk.claim(B)
    else {
        panic!("not as it was");
    };
}

#[test]
fn a_claim_that_meets_a_live_one_finds_it_in_flight() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    assert_eq!(desk.at(50).claim(B), in_flight(LEASE));
    assert_eq!(desk.at(LEASE - 1).claim(B), in_flight(LEASE));
}

#[test]
fn the_holder_renews_a_live_claim() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    assert_eq!(desk.at(50).renew(A), renewed(10, 50 + LEASE));
}

#[test]
fn the_holder_completes_a_live_claim() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    assert_eq!(desk.at(50).complete(A, 1), completed(50 + RETENTION));
}

#[test]
fn the_holder_abandons_a_live_claim() {
    for effect in [Effect::None, Effect::Unknown] {
        let mut desk = Desk::claimed_by_a(Policy::TakeOver);
        assert_eq!(desk.at(50).abandon(A, effect), ABANDONED);
    }
}

#[test]
fn another_token_changes_nothing_about_a_claim_in_flight() {
    for policy in POLICIES {
        for ms in [50, LEASE + 1] {
            let mut desk = Desk::claimed_by_a(policy);
            let before = desk.at(ms).look();
            assert_eq!(desk.renew(B), lost(Reason::TakenOver));
            assert_eq!(desk.complete(B, 1), lost(Reason::TakenOver));
            assert_eq!(desk.abandon(B, Effect::None), lost(Reason::TakenOver));
            assert_eq!(desk.look(), before);
        }
    }
}

// In flight, lease over.

#[test]
fn the_holder_takes_its_claim_up_again_after_its_lease_ended() {
    for policy in POLICIES {
        let mut desk = Desk::over(policy);
        assert_eq!(desk.at(150).claim(A), already_held(10, 150 + LEASE));
        assert_eq!(desk.at(151).claim(B), in_flight(150 + LEASE));
    }
}

#[test]
fn the_next_claim_takes_over_at_the_very_end_of_the_lease() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.save(A, 1, 0);
    assert_eq!(desk.at(LEASE).claim(B), took_over(2, 2 * LEASE, 1));
}

#[test]
fn the_next_claim_finds_it_uncertain_where_it_must_not_be_repeated() {
    let mut desk = Desk::over(Policy::MarkUncertain);
    assert_eq!(desk.claim(B), uncertain(LEASE));
}

#[test]
fn the_holder_is_done_after_its_lease_ended_if_nobody_took_it() {
    for policy in POLICIES {
        let mut desk = Desk::over(policy);
        assert_eq!(desk.renew(A), renewed(10, desk.now + LEASE));
        let mut desk = Desk::over(policy);
        assert_eq!(desk.complete(A, 1), completed(desk.now + RETENTION));
        let mut desk = Desk::over(policy);
        assert_eq!(desk.abandon(A, Effect::None), ABANDONED);
    }
}

#[test]
fn a_late_holder_cannot_act_after_a_takeover() {
    let mut desk = Desk::taken_over_by_b();
    assert_eq!(desk.claim(A), lost(Reason::TakenOver));
    assert_eq!(desk.renew(A), lost(Reason::TakenOver));
    assert_eq!(desk.complete(A, 1), lost(Reason::TakenOver));
    assert_eq!(desk.abandon(A, Effect::None), lost(Reason::TakenOver));
    assert_eq!(
        desk.complete(B, 1),
        completed(desk.now + RETENTION),
        "B holds it still"
    );
}

// Completed.

#[test]
fn a_completed_claim_is_replayed_to_everybody() {
    let mut desk = Desk::completed_by_a();
    let expected = replay(10, 10 + RETENTION);
    assert_eq!(desk.at(500).claim(A), expected);
    assert_eq!(desk.at(10 + RETENTION - 1).claim(B), expected);
}

#[test]
fn repeating_a_completion_with_an_equal_response_changes_nothing() {
    let mut desk = Desk::completed_by_a();
    assert_eq!(desk.at(500).complete(A, 1), completed(10 + RETENTION));
}

#[test]
fn completing_again_with_another_response_is_lost() {
    let mut desk = Desk::completed_by_a();
    assert_eq!(desk.complete(A, 2), lost(Reason::Completed));
    assert_eq!(
        desk.complete_with(complete_op(A)),
        lost(Reason::Completed),
        "none is another response"
    );
}

#[test]
fn all_else_about_a_completed_claim_is_lost() {
    let mut desk = Desk::completed_by_a();
    assert_eq!(desk.renew(A), lost(Reason::Completed));
    assert_eq!(desk.abandon(A, Effect::None), lost(Reason::Completed));
    assert_eq!(desk.renew(B), lost(Reason::Completed));
    assert_eq!(desk.complete(B, 1), lost(Reason::Completed));
    assert_eq!(desk.abandon(B, Effect::None), lost(Reason::Completed));
}

// Given up with effect UNKNOWN.

#[test]
fn claiming_again_after_giving_up_is_lost_as_released() {
    for policy in POLICIES {
        let mut desk = Desk::given_up_by_a(policy);
        assert_eq!(desk.claim(A), lost(Reason::Released));
    }
}

#[test]
fn the_next_claim_after_giving_up_takes_over_at_once() {
    let mut desk = Desk::given_up_by_a(Policy::TakeOver);
    assert_eq!(desk.at(11).claim(B), took_over(2, 11 + LEASE, 0));
}

#[test]
fn the_next_claim_after_giving_up_is_uncertain_where_it_must_not_be_repeated() {
    let mut desk = Desk::given_up_by_a(Policy::MarkUncertain);
    assert_eq!(desk.at(11).claim(B), uncertain(10));
}

#[test]
fn who_gave_up_can_still_complete() {
    for policy in POLICIES {
        let mut desk = Desk::given_up_by_a(policy);
        assert_eq!(desk.at(11).complete(A, 1), completed(11 + RETENTION));
        assert_eq!(desk.claim(B), replay(11, 11 + RETENTION));
    }
}

#[test]
fn abandoning_again_leaves_the_first_effect_standing() {
    let mut desk = Desk::given_up_by_a(Policy::MarkUncertain);
    assert_eq!(desk.abandon(A, Effect::None), ABANDONED);
    assert_eq!(desk.claim(B), uncertain(10));
}

#[test]
fn who_gave_up_cannot_renew() {
    let mut desk = Desk::given_up_by_a(Policy::TakeOver);
    assert_eq!(desk.renew(A), lost(Reason::Released));
}

#[test]
fn another_token_changes_nothing_about_a_claim_that_was_given_up() {
    for policy in POLICIES {
        let mut desk = Desk::given_up_by_a(policy);
        assert_eq!(desk.renew(B), lost(Reason::TakenOver));
        assert_eq!(desk.complete(B, 1), lost(Reason::TakenOver));
        assert_eq!(desk.abandon(B, Effect::None), lost(Reason::TakenOver));
        assert_eq!(desk.complete(A, 1), completed(desk.now + RETENTION));
    }
}

// Abandoned with effect NONE.

#[test]
fn claiming_again_after_abandoning_is_lost_as_released() {
    assert_eq!(Desk::abandoned_by_a().claim(A), lost(Reason::Released));
}

#[test]
fn the_next_claim_after_an_abandon_is_the_next_attempt() {
    let mut desk = Desk::abandoned_by_a();
    assert_eq!(desk.at(11).claim(B), granted(2, 11 + LEASE));
}

#[test]
fn a_checkpoint_is_handed_on_by_an_abandon_that_keeps_it() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.save(A, 1, 0);
    desk.abandon_keeping(A);
    let ClaimAnswer::Claimed {
        checkpoint: 1,
        taken_over: false,
        ..
    } = desk.claim(B)
    else {
        panic!("the checkpoint is gone");
    };
}

#[test]
fn a_checkpoint_is_dropped_by_an_abandon_that_does_not_keep_it() {
    let mut desk = Desk::claimed_by_a(Policy::TakeOver);
    desk.save(A, 1, 0);
    desk.abandon(A, Effect::None);
    assert_eq!(desk.claim(B), granted(2, LEASE));
}

#[test]
fn an_abandon_does_not_hide_that_an_earlier_holder_may_have_had_an_effect() {
    let mut desk = Desk::taken_over_by_b();
    desk.abandon(B, Effect::None);
    assert_eq!(desk.claim(C), took_over(3, desk.now + LEASE, 1));
}

#[test]
fn abandoning_again_is_abandoned_and_all_else_is_lost_as_released() {
    let mut desk = Desk::abandoned_by_a();
    assert_eq!(desk.abandon(A, Effect::None), ABANDONED);
    assert_eq!(desk.abandon(A, Effect::Unknown), ABANDONED);
    assert_eq!(desk.renew(A), lost(Reason::Released));
    assert_eq!(desk.complete(A, 1), lost(Reason::Released));
}

#[test]
fn another_token_finds_nothing_to_renew_or_complete_after_an_abandon() {
    let mut desk = Desk::abandoned_by_a();
    assert_eq!(desk.renew(B), lost(Reason::NotFound));
    assert_eq!(desk.complete(B, 1), lost(Reason::NotFound));
    assert_eq!(desk.abandon(B, Effect::None), ABANDONED);
}
