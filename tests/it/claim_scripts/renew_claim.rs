//! `renew_claim.lua`.

use super::*;
use std::time::Duration;

#[tokio::test]
async fn renew_claim_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    assert_eq!(
        scripts.run("renew_claim", "k", &renewal("a")).await.row(),
        ["lost", "NOT_FOUND"]
    );
    let fence = granted(&mut scripts, "k", Claim::by("a")).await.to_string();

    let before = scripts.redis.server.dump().await;
    let reply = scripts
        .run_late("renew_claim", "k", &checkpoint("a", "late"))
        .await;
    assert_eq!(reply.row(), ["late"]);
    assert_eq!(scripts.redis.server.dump().await, before);

    let renewed = scripts.run("renew_claim", "k", &renewal("a")).await;
    let lease_end = (renewed.now + 60_000_000).to_string();
    assert_eq!(renewed.row(), ["renewed", &lease_end, &fence]);
    // Also after the end of the lease.
    scripts.redis.pass(Duration::from_secs(60));
    let renewed = scripts.run("renew_claim", "k", &renewal("a")).await;
    let lease_end = (renewed.now + 60_000_000).to_string();
    assert_eq!(renewed.row(), ["renewed", &lease_end, &fence]);

    scripts.redis.pass(Duration::from_secs(60));
    let fence = granted(&mut scripts, "k", Claim::by("b")).await;
    assert_eq!(
        scripts.run("renew_claim", "k", &renewal("a")).await.row(),
        ["lost", "TAKEN_OVER"]
    );
    assert_eq!(
        scripts
            .run("abandon", "k", &abandonment("b", "UNKNOWN"))
            .await
            .row(),
        ["abandoned"]
    );
    assert_eq!(
        scripts.run("renew_claim", "k", &renewal("b")).await.row(),
        ["lost", "RELEASED"]
    );
    assert_eq!(
        scripts
            .run("resolve_claim", "k", &resolution(fence, "forget"))
            .await
            .kind,
        "resolved"
    );
    assert_eq!(
        scripts.run("renew_claim", "k", &renewal("b")).await.row(),
        ["lost", "FORCED"]
    );
    granted(&mut scripts, "k", Claim::by("c")).await;
    assert_eq!(
        scripts
            .run("complete", "k", &completion("c", "done"))
            .await
            .kind,
        "completed"
    );
    assert_eq!(
        scripts.run("renew_claim", "k", &renewal("c")).await.row(),
        ["lost", "COMPLETED"]
    );

    scripts.assert_header_was_seen("renew_claim");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}
