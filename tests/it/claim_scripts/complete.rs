//! `complete.lua`.

use super::*;
use std::time::Duration;

#[tokio::test]
async fn complete_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    let not_found = scripts.run("complete", "k", &completion("a", "done")).await;
    assert_eq!(not_found.row(), ["lost", "NOT_FOUND"]);
    granted(&mut scripts, "k", Claim::by("a")).await;

    let before = scripts.redis.server.dump().await;
    let reply = scripts
        .run_late("complete", "k", &completion("a", "late"))
        .await;
    assert_eq!(reply.row(), ["late"]);
    assert_eq!(scripts.redis.server.dump().await, before);

    scripts.redis.pass(Duration::from_secs(60));
    let fence = granted(&mut scripts, "k", Claim::by("b")).await;
    let late = scripts.run("complete", "k", &completion("a", "done")).await;
    assert_eq!(late.row(), ["lost", "TAKEN_OVER"]);
    scripts
        .run("abandon", "k", &abandonment("early", "NONE"))
        .await;
    scripts.redis.pass(Duration::from_secs(60));
    assert_eq!(
        scripts
            .run("resolve_claim", "k", &resolution(fence, "forget"))
            .await
            .kind,
        "resolved"
    );
    let forced = scripts.run("complete", "k", &completion("b", "done")).await;
    assert_eq!(forced.row(), ["lost", "FORCED"]);
    scripts
        .run("abandon", "k", &abandonment("given up", "NONE"))
        .await;
    let released = scripts
        .run("complete", "k", &completion("given up", "done"))
        .await;
    assert_eq!(released.row(), ["lost", "RELEASED"]);

    granted(&mut scripts, "k", Claim::by("c")).await;
    let completed = scripts.run("complete", "k", &completion("c", "done")).await;
    let expires_at = (completed.now + HOUR * 1000).to_string();
    assert_eq!(completed.row(), ["completed", &expires_at]);
    let again = scripts.run("complete", "k", &completion("c", "done")).await;
    assert_eq!(again.row(), ["completed", &expires_at]);
    let other = scripts
        .run("complete", "k", &completion("c", "other"))
        .await;
    assert_eq!(other.row(), ["lost", "COMPLETED"]);

    scripts.assert_header_was_seen("complete");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn complete_rebuilds_a_lost_record_from_a_receipt() {
    let mut scripts = claim_scripts().await;
    let expiry = scripts.redis.now().await + 60_000_000;
    let with_receipt = |expiry: i64| {
        let mut all = completion("a", "done");
        all[8] = "1".to_owned();
        all.extend(arguments([
            &expiry.to_string(),
            "1234",
            "7",
            &HOUR.to_string(),
            "print",
        ]));
        all
    };
    let outdated = scripts
        .run(
            "complete",
            "k",
            &with_receipt(scripts.redis.now().await - 1),
        )
        .await;
    assert_eq!(outdated.row(), ["lost", "NOT_FOUND"]);
    let completed = scripts.run("complete", "k", &with_receipt(expiry)).await;
    let expires_at = (completed.now + HOUR * 1000).to_string();
    assert_eq!(completed.row(), ["completed", &expires_at]);

    let completed_at = completed.now.to_string();
    let replay = scripts.run("claim", "k", &Claim::by("b").arguments()).await;
    assert_eq!(
        replay.row(),
        ["replay", "1", "done", &completed_at, &expires_at, "7", ""]
    );
    let another_request = Claim {
        fingerprint: "other",
        ..Claim::by("b")
    };
    let mismatch = scripts
        .run("claim", "k", &another_request.arguments())
        .await;
    assert_eq!(mismatch.row(), ["mismatch", ""]);
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}
