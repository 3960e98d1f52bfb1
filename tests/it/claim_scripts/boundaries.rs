//! The very moment at which something ends: it is over then, and not a microsecond later.

use super::*;
use crate::support::scripts::Common;
use std::time::Duration;

const LEASE: i64 = 1000;
const RETENTION: i64 = 3000;
const MEMORY: Duration = Duration::from_secs(7);

/// At second 0: granted to "a" for a second and kept for three more; tokens are remembered for seven.
async fn stopped() -> Scripts {
    let mut scripts = claim_scripts().await;
    scripts.redis.stop_at(0);
    let claim = Claim {
        lease: LEASE,
        retention: RETENTION,
        ..Claim::by("a")
    };
    run(&mut scripts, "claim", &claim.arguments()).await;
    scripts
}

async fn run(scripts: &mut Scripts, script: &str, arguments: &[String]) -> Reply {
    let common = Common {
        memory: MEMORY,
        ..Common::default()
    };
    scripts.run_with(common, script, "k", arguments).await
}

async fn state(scripts: &mut Scripts) -> String {
    let reply = run(scripts, "get_claim", &[]).await;
    let state = reply.fields[0].trim_matches(['[', ']']).split(", ").next();
    state.expect("a split text has a first part").to_owned()
}

#[tokio::test]
async fn a_call_is_late_only_after_its_last_moment() {
    let mut scripts = claim_scripts().await;
    scripts.redis.stop_at(0);
    let not_after = scripts.redis.now().await;
    for (not_after, kind) in [(not_after - 1, "late"), (not_after, "claimed")] {
        let common = Common {
            not_after,
            ..Common::default()
        };
        let reply = scripts
            .run_with(common, "claim", "k", &Claim::by("a").arguments())
            .await;
        assert_eq!(reply.kind, kind);
    }
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_lease_is_over_at_its_end() {
    let mut scripts = stopped().await;
    let other = run(&mut scripts, "claim", &Claim::by("b").arguments()).await;
    assert_eq!(other.kind, "in_flight");
    assert_eq!(state(&mut scripts).await, "IN_FLIGHT");
    let fence = scripts.redis.now().await;

    scripts.redis.stop_at(1);
    assert_eq!(state(&mut scripts).await, "LEASE_OVER");
    let strict = Claim {
        policy: 2,
        ..Claim::by("b")
    };
    let since = (fence + LEASE * 1000).to_string();
    let uncertain = run(&mut scripts, "claim", &strict.arguments()).await;
    assert_eq!(uncertain.row(), ["uncertain", &since, "1", "", "holder"]);
    let resolved = run(
        &mut scripts,
        "resolve_claim",
        &resolution(fence, "complete"),
    )
    .await;
    assert_eq!(resolved.kind, "resolved");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_record_is_gone_at_its_expiry_and_what_is_remembered_of_it_at_the_end_of_the_memory() {
    let mut scripts = stopped().await;
    let completed = run(&mut scripts, "complete", &completion("a", "done")).await;
    let expires_at = completed.now + RETENTION * 1000;
    assert_eq!(completed.row(), ["completed", &expires_at.to_string()]);
    scripts.redis.stop_at(3);
    assert_eq!(state(&mut scripts).await, "");
    let replay = run(&mut scripts, "claim", &Claim::by("a").arguments()).await;
    assert_eq!(replay.row()[..3], ["replay", "0", ""]);
    let own = run(&mut scripts, "complete", &completion("a", "done")).await;
    assert_eq!(own.row(), ["completed", &own.now.to_string()]);
    assert_eq!(
        run(&mut scripts, "abandon", &abandonment("b", "NONE"))
            .await
            .row(),
        ["abandoned"]
    );

    // "b" was spent at second 3, so the record is there; but "a" is forgotten.
    scripts.redis.stop_at(7);
    let late = run(&mut scripts, "complete", &completion("a", "done")).await;
    assert_eq!(late.row(), ["lost", "NOT_FOUND"]);
    assert_eq!(
        run(&mut scripts, "claim", &Claim::by("b").arguments())
            .await
            .row(),
        ["lost", "RELEASED"]
    );
    scripts.redis.stop_at(10);
    let late = run(&mut scripts, "renew_claim", &renewal("b")).await;
    assert_eq!(late.row(), ["lost", "NOT_FOUND"]);
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_claim_in_flight_is_gone_at_the_end_of_lease_and_retention() {
    let mut scripts = stopped().await;
    scripts.redis.stop_at(3);
    assert_eq!(state(&mut scripts).await, "LEASE_OVER");
    scripts.redis.stop_at(4);
    assert_eq!(state(&mut scripts).await, "");
    let anew = run(&mut scripts, "claim", &Claim::by("b").arguments()).await;
    assert_eq!((anew.row()[3], anew.row()[5]), ("1", "0"));
    // The last holder is remembered until seven seconds after its lease.
    scripts.redis.stop_at(7);
    assert_eq!(
        run(&mut scripts, "claim", &Claim::by("a").arguments())
            .await
            .row(),
        ["lost", "TAKEN_OVER"]
    );
    scripts.redis.stop_at(8);
    assert_eq!(
        run(&mut scripts, "claim", &Claim::by("a").arguments())
            .await
            .kind,
        "in_flight"
    );
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_response_has_run_out_at_its_time_and_is_not_lost() {
    let mut scripts = stopped().await;
    let mut completion = completion("a", "done");
    completion[7] = "2000".to_owned();
    run(&mut scripts, "complete", &completion).await;
    scripts.redis.stop_at(1);
    assert_eq!(
        run(&mut scripts, "claim", &Claim::by("b").arguments())
            .await
            .row()[..3],
        ["replay", "1", "done"]
    );
    assert!(scripts.redis.evict("{k}:r").await);
    assert_eq!(
        run(&mut scripts, "claim", &Claim::by("b").arguments())
            .await
            .row(),
        ["response_lost"]
    );
    let seen = run(&mut scripts, "get_claim", &[]).await;
    assert!(seen.fields[0].contains(", 201, 4, "), "{seen:?}");
    scripts.redis.stop_at(2);
    let seen = run(&mut scripts, "get_claim", &[]).await;
    assert!(seen.fields[0].contains(", 201, 0, "), "{seen:?}");
    assert_eq!(
        run(&mut scripts, "claim", &Claim::by("b").arguments())
            .await
            .row()[..3],
        ["replay", "0", ""]
    );
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

fn with_receipt(expiry: i64) -> Vec<String> {
    let mut all = completion("a", "done");
    all[8] = "1".to_owned();
    all.extend(arguments([
        &expiry.to_string(),
        "1234",
        "1",
        "3000",
        "print",
    ]));
    all
}

#[tokio::test]
async fn nothing_is_known_of_a_key_at_the_end_of_its_memory_and_a_receipt_counts_again() {
    let mut scripts = claim_scripts().await;
    scripts.redis.stop_at(0);
    run(&mut scripts, "abandon", &abandonment("b", "NONE")).await;
    let completion = with_receipt(scripts.redis.now().await + 3_600_000_000);
    scripts.redis.stop_at(6);
    let early = run(&mut scripts, "complete", &completion).await;
    assert_eq!(early.row(), ["lost", "NOT_FOUND"]);
    // Redis itself removes a key a moment after its time.
    scripts.redis.stop_at(7);
    assert_eq!(scripts.redis.strings().await.len(), 1);
    assert_eq!(
        run(&mut scripts, "complete", &completion).await.kind,
        "completed"
    );
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_receipt_is_good_before_its_expiry_and_not_at_it() {
    let mut scripts = claim_scripts().await;
    scripts.redis.stop_at(0);
    let now = scripts.redis.now().await;
    for (expiry, kind) in [(now, "lost"), (now + 1, "completed")] {
        let completion = with_receipt(expiry);
        assert_eq!(run(&mut scripts, "complete", &completion).await.kind, kind);
    }
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}
