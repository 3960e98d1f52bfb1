//! `get_claim.lua` and `resolve_claim.lua`.

use super::*;
use std::time::Duration;

const UNKNOWN: &str = "[]";

#[tokio::test]
async fn get_claim_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    assert_eq!(
        scripts.run("get_claim", "k", &[]).await.row(),
        ["claim", UNKNOWN]
    );
    assert_eq!(
        scripts.run_late("get_claim", "k", &[]).await.row(),
        ["late"]
    );

    let claimed = scripts
        .run(
            "claim",
            "k",
            &Claim {
                policy: 2,
                ..Claim::by("a")
            }
            .arguments(),
        )
        .await;
    let renewed = scripts
        .run("renew_claim", "k", &checkpoint("a", "half"))
        .await;
    let seen = scripts.run("get_claim", "k", &[]).await;
    let (claimed_at, renewed_at) = (claimed.now, renewed.now);
    let lease_end = renewed_at + 60_000_000;
    let expires_at = lease_end + LARGEST_RETENTION * 1000;
    let expected = format!(
        "[IN_FLIGHT, operation, 1, {claimed_at}, holder, 2, {claimed_at}, {renewed_at}, 0, {lease_end}, {expires_at}, \
         0, 0, 4, 0, , trace]"
    );
    assert_eq!(seen.row(), ["claim", &expected]);

    scripts.redis.pass(Duration::from_secs(60));
    let seen = scripts.run("get_claim", "k", &[]).await;
    assert_eq!(
        seen.row(),
        ["claim", &expected.replace("IN_FLIGHT", "UNCERTAIN")]
    );
    let abandoned = scripts
        .run("abandon", "k", &abandonment("a", "UNKNOWN"))
        .await;
    assert_eq!(abandoned.kind, "abandoned");
    let seen = scripts.run("get_claim", "k", &[]).await;
    let given_up = expected
        .replace("IN_FLIGHT", "UNCERTAIN")
        .replace(&format!("0, {lease_end}, "), "0, 0, ")
        .replace(", , trace", ", reason, trace");
    assert_eq!(seen.row(), ["claim", &given_up]);

    let completed = scripts.run("complete", "k", &completion("a", "done")).await;
    let seen = scripts.run("get_claim", "k", &[]).await;
    let (completed_at, expires_at) = (completed.now, completed.now + HOUR * 1000);
    let expected = format!(
        "[COMPLETED, operation, 1, {claimed_at}, holder, 2, {claimed_at}, {renewed_at}, {completed_at}, 0, {expires_at}, \
         201, 4, 0, 0, reason, trace]"
    );
    assert_eq!(seen.row(), ["claim", &expected]);
    scripts.redis.pass(Duration::from_secs(3600));
    assert_eq!(
        scripts.run("get_claim", "k", &[]).await.row(),
        ["claim", UNKNOWN]
    );

    scripts.assert_header_was_seen("get_claim");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn resolve_claim_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    let never = scripts
        .run("resolve_claim", "k", &resolution(1, "forget"))
        .await;
    assert_eq!(never.row(), ["left", UNKNOWN]);
    let fence = granted(&mut scripts, "k", Claim::by("a")).await;
    let as_it_is = scripts.run("get_claim", "k", &[]).await.fields[0].clone();
    for how in ["complete", "forget", "erase_response"] {
        let live = scripts
            .run("resolve_claim", "k", &resolution(fence, how))
            .await;
        assert_eq!(live.row(), ["left", &as_it_is], "{how}");
    }
    scripts.redis.pass(Duration::from_secs(60));
    let as_it_is = as_it_is.replace("IN_FLIGHT", "LEASE_OVER");
    let moved_on = scripts
        .run("resolve_claim", "k", &resolution(fence - 1, "complete"))
        .await;
    assert_eq!(moved_on.row(), ["left", &as_it_is]);
    let nothing_stored = scripts
        .run("resolve_claim", "k", &resolution(fence, "erase_response"))
        .await;
    assert_eq!(nothing_stored.row(), ["left", &as_it_is]);

    let before = scripts.redis.server.dump().await;
    let late = scripts
        .run_late("resolve_claim", "k", &resolution(fence, "complete"))
        .await;
    assert_eq!(late.row(), ["late"]);
    assert_eq!(scripts.redis.server.dump().await, before);

    let mut was = as_it_is;
    for (how, starts) in [
        ("complete", "[COMPLETED, "),
        ("erase_response", "[COMPLETED, "),
        ("forget", UNKNOWN),
    ] {
        let resolved = scripts
            .run("resolve_claim", "k", &resolution(fence, how))
            .await;
        let is = scripts.run("get_claim", "k", &[]).await.fields[0].clone();
        assert_eq!(resolved.row(), ["resolved", &was, &is], "{how}");
        assert!(is.starts_with(starts), "{how}: {is}");
        assert_eq!(is.contains(", 500, 6, "), how == "complete", "{how}: {is}");
        was = is;
    }

    scripts.assert_header_was_seen("resolve_claim");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}
