//! `abandon.lua`.

use super::*;

#[tokio::test]
async fn abandon_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    let reply = scripts
        .run_late("abandon", "k", &abandonment("a", "NONE"))
        .await;
    assert_eq!(reply.row(), ["late"]);
    assert!(scripts.redis.strings().await.is_empty());

    // Where the key is not known, by the holder, and again.
    assert_eq!(
        scripts
            .run("abandon", "k", &abandonment("early", "NONE"))
            .await
            .row(),
        ["abandoned"]
    );
    let fence = granted(&mut scripts, "k", Claim::by("a")).await;
    let other = scripts.run("abandon", "k", &abandonment("b", "NONE")).await;
    assert_eq!(other.row(), ["lost", "TAKEN_OVER"]);
    for effect in ["UNKNOWN", "NONE"] {
        assert_eq!(
            scripts
                .run("abandon", "k", &abandonment("a", effect))
                .await
                .row(),
            ["abandoned"]
        );
    }
    let seen = scripts.run("get_claim", "k", &[]).await;
    assert!(
        seen.fields[0].starts_with("[LEASE_OVER, "),
        "the first effect stands: {seen:?}"
    );

    assert_eq!(
        scripts
            .run("resolve_claim", "k", &resolution(fence, "forget"))
            .await
            .kind,
        "resolved"
    );
    let forced = scripts.run("abandon", "k", &abandonment("a", "NONE")).await;
    assert_eq!(forced.row(), ["lost", "FORCED"]);
    granted(&mut scripts, "k", Claim::by("c")).await;
    assert_eq!(
        scripts
            .run("complete", "k", &completion("c", "done"))
            .await
            .kind,
        "completed"
    );
    let completed = scripts.run("abandon", "k", &abandonment("c", "NONE")).await;
    assert_eq!(completed.row(), ["lost", "COMPLETED"]);

    scripts.assert_header_was_seen("abandon");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}
