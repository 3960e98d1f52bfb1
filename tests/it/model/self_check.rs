//! Tries the comparison on the fake service: what is faithful passes however slow it is, every
//! fault is noticed, and the random sequences reach the whole of both tables.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::check::{Disagreement, World, run};
use super::coverage::Coverage;
use super::fake::{Fake, Fault};
use super::ops::{self, Op};
use super::{Settings, us};

/// Sequences from which a fault must be noticed, and within which every cell must be reached.
const CASES: usize = 2000;

fn world(memory_ms: i64) -> World {
    World {
        tenant: "default".into(),
        prefix: "fake".into(),
        settings: Settings {
            memory_us: us(memory_ms),
            max_retention_us: us(2000),
        },
        tolerance_us: 0,
    }
}

fn play(
    world: &World,
    ops: &[Op],
    seed: u64,
    slowness_us: i64,
    fault: Fault,
) -> Result<Coverage, Box<Disagreement>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let fake = Fake::new(world, seed, slowness_us, fault);
    let runtime = runtime.expect("a runtime without a driver");
    runtime.block_on(run(&fake, world, ops))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_faithful_service_passes_with_claims(
        ops in ops::claims(20..=60),
        seed: u64,
        slowness_us in 0..4000i64,
        memory_ms in 700..2200i64,
    ) {
        if let Err(why) = play(&world(memory_ms), &ops, seed, slowness_us, Fault::None) {
            return Err(TestCaseError::fail(why.to_string()));
        }
    }

    #[test]
    fn a_faithful_service_passes_with_locks(
        ops in ops::locks(20..=60),
        seed: u64,
        slowness_us in 0..4000i64,
        memory_ms in 300..2200i64,
    ) {
        if let Err(why) = play(&world(memory_ms), &ops, seed, slowness_us, Fault::None) {
            return Err(TestCaseError::fail(why.to_string()));
        }
    }
}

/// The same sequences on every run, so that what is found once is found again.
fn sequences(strategy: impl Strategy<Value = Vec<Op>>) -> impl Iterator<Item = Vec<Op>> {
    let mut runner = TestRunner::deterministic();
    std::iter::repeat_with(move || {
        let tree = strategy.new_tree(&mut runner);
        tree.expect("the strategies filter nothing").current()
    })
    .take(CASES)
}

fn noticed(strategy: impl Strategy<Value = Vec<Op>>, fault: Fault) -> bool {
    let world = world(1500);
    sequences(strategy)
        .zip(1..)
        .any(|(ops, seed)| play(&world, &ops, seed, 300, fault).is_err())
}

#[test]
fn every_fault_in_claims_is_noticed() {
    for fault in [
        Fault::ShortMemory,
        Fault::UncertainRunsOut,
        Fault::LateClock,
        Fault::LeaseTold,
        Fault::FencingRepeats,
        Fault::RepeatLooksNew,
        Fault::TakeoverHidden,
        Fault::CheckpointLost,
        Fault::ResponseAltered,
        Fault::LossReasonWrong,
        Fault::RefusalUnnamed,
        Fault::PolicyIgnored,
        Fault::SequenceIgnored,
        Fault::KeepIgnored,
        Fault::ResponseRetentionIgnored,
        Fault::ReceiptIgnored,
    ] {
        assert!(noticed(ops::claims(20..=60), fault), "{fault:?}");
    }
}

#[test]
fn every_fault_in_locks_is_noticed() {
    for fault in [
        Fault::ShortMemory,
        Fault::LateClock,
        Fault::LeaseTold,
        Fault::FencingRepeats,
        Fault::RepeatLooksNew,
        Fault::LossReasonWrong,
        Fault::HoldersHidden,
        Fault::RefusalUnnamed,
        Fault::LimitIgnored,
        Fault::DelayIgnored,
        Fault::HoldIgnored,
    ] {
        assert!(noticed(ops::locks(20..=60), fault), "{fault:?}");
    }
}

fn coverage(strategy: impl Strategy<Value = Vec<Op>>) -> Coverage {
    let world = world(1900);
    let mut coverage = Coverage::default();
    for (ops, seed) in sequences(strategy).zip(1..) {
        let run = play(&world, &ops, seed, 300, Fault::None);
        coverage.add(&run.unwrap_or_else(|why| panic!("{why}")));
    }
    coverage
}

fn assert_reached(coverage: &Coverage, rows: &[&str], calls: &[&str], who: &[&str]) {
    for row in rows {
        for call in calls {
            for who in who {
                let hits = coverage.hits(row, call, who);
                assert!(
                    hits > 0,
                    "{row} / {call} / {who} was not reached:\n{coverage}"
                );
            }
        }
    }
}

#[test]
fn every_row_of_claims_is_reached() {
    let coverage = coverage(ops::claims(20..=60));
    let calls = ["Claim", "RenewClaim", "Complete", "Abandon"];
    let held = [
        "Live",
        "OverTakeOver",
        "OverUncertain",
        "Completed",
        "GivenUpTakeOver",
        "GivenUpUncertain",
        "ExpiredInFlight",
        "ExpiredCompleted",
        "ExpiredGivenUp",
    ];
    let not_held = [
        "Absent",
        "AbandonedBare",
        "AbandonedKept",
        "AbandonedTakenOver",
    ];
    assert_reached(&coverage, &held, &calls, &["Holder", "Another", "spent"]);
    assert_reached(&coverage, &not_held, &calls, &["Another", "spent"]);
    let reasons = [
        "spent Released",
        "spent TakenOver",
        "spent Forced",
        "spent Completed",
    ];
    assert_reached(&coverage, &["Live", "Completed"], &calls, &reasons);
    let with_receipt = ["Complete with receipt"];
    assert_reached(&coverage, &held, &with_receipt, &["Holder", "Another"]);
    assert_reached(&coverage, &not_held, &with_receipt, &["Another", "spent"]);
    let by_operator = [
        "GetClaim",
        "ResolveClaim complete",
        "ResolveClaim forget",
        "ResolveClaim erase",
    ];
    assert_reached(&coverage, &held, &by_operator, &["operator"]);
    assert_reached(&coverage, &not_held, &by_operator, &["operator"]);
    for (row, call, who, outcome) in [
        ("Absent", "Complete with receipt", "Another", "Completed"),
        (
            "Absent",
            "Complete with receipt",
            "Another",
            "Lost(NotFound)",
        ),
        (
            "Live",
            "Complete with receipt",
            "Another",
            "Invalid(\"receipt\")",
        ),
        ("Live", "Claim", "Another", "Mismatch"),
        ("Completed", "Claim", "Another", "Mismatch"),
        ("AbandonedKept", "Claim", "Another", "Mismatch"),
        ("AbandonedTakenOver", "Claim", "Another", "Mismatch"),
        ("Completed", "Complete", "Holder", "Completed"),
        ("Completed", "Complete", "Holder", "Lost(Completed)"),
        ("ExpiredCompleted", "Complete", "Holder", "Completed"),
        ("", "Complete", "spent Completed", "Completed"),
        (
            "Completed",
            "ResolveClaim complete",
            "operator",
            "Resolved(true)",
        ),
        (
            "GivenUpUncertain",
            "ResolveClaim forget",
            "operator",
            "Resolved(true)",
        ),
    ] {
        let hits = coverage.outcomes(row, call, who, outcome);
        assert!(hits > 0, "{row} / {call} / {who} -> {outcome}:\n{coverage}");
    }
    assert_eq!(coverage.sequences_cut_short(), 0);
}

#[test]
fn every_row_of_locks_is_reached() {
    let coverage = coverage(ops::locks(20..=60));
    let calls = [
        "AcquireLock exclusive",
        "AcquireLock shared",
        "RenewLock",
        "ReleaseLock",
    ];
    let held = ["HeldExclusive", "HeldShared", "HeldSharedAndMore"];
    let running = [
        "LockDelay",
        "HoldAtLeastAfterLease",
        "HoldAtLeastAfterRelease",
    ];
    assert_reached(&coverage, &held, &calls, &["Holder"]);
    for rows in [&["Free"][..], &held, &running] {
        assert_reached(&coverage, rows, &calls, &["Another", "spent Released"]);
        let by_operator = ["GetLock", "ForceReleaseLock all", "ForceReleaseLock one"];
        assert_reached(&coverage, rows, &by_operator, &["operator"]);
    }
    let lapsed = [
        "Free",
        "LockDelay",
        "HoldAtLeastAfterLease",
        "HeldSharedAndMore",
    ];
    assert_reached(&coverage, &lapsed, &calls, &["spent LeaseOver"]);
    assert_reached(
        &coverage,
        &["Free", "HeldExclusive", "HeldShared"],
        &calls,
        &["spent TakenOver"],
    );
    assert_reached(
        &coverage,
        &["Free", "HeldExclusive", "HeldShared"],
        &calls,
        &["spent Forced"],
    );
    assert_eq!(coverage.sequences_cut_short(), 0);
}
