//! `claim.lua`.

use super::*;
use crate::support::scripts::Common;
use std::time::Duration;

#[tokio::test]
async fn claim_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    let reply = scripts
        .run_late("claim", "k", &Claim::by("a").arguments())
        .await;
    assert_eq!(reply.row(), ["late"]);
    assert!(
        scripts.redis.strings().await.is_empty(),
        "a late call does nothing"
    );

    // Granted, and the token's own again.
    let first = scripts.run("claim", "k", &Claim::by("a").arguments()).await;
    let (fence, lease_end) = (first.now.to_string(), (first.now + 60_000_000).to_string());
    let expires_at = (first.now + 60_000_000 + HOUR * 1000).to_string();
    let hour = (HOUR * 1000).to_string();
    assert_eq!(
        first.row(),
        [
            "claimed",
            "0",
            &fence,
            "1",
            &lease_end,
            "0",
            "",
            &expires_at,
            &hour
        ]
    );
    scripts
        .run("renew_claim", "k", &checkpoint("a", "half"))
        .await;
    let again = scripts
        .run(
            "claim",
            "k",
            &Claim {
                lease: 1,
                ..Claim::by("a")
            }
            .arguments(),
        )
        .await;
    assert_eq!(again.row()[..4], ["claimed", "1", &fence, "1"]);
    assert_eq!(again.row()[5..7], ["0", "half"]);

    let other = scripts.run("claim", "k", &Claim::by("b").arguments()).await;
    let lease_end = number(&again, 3).to_string();
    assert_eq!(
        other.row(),
        ["in_flight", &lease_end, "1", &fence, "holder"]
    );

    let another_request = Claim {
        fingerprint: "other",
        ..Claim::by("b")
    };
    let mismatch = scripts
        .run("claim", "k", &another_request.arguments())
        .await;
    assert_eq!(mismatch.row(), ["mismatch", "operation"]);

    // Taken over; then uncertain, since the stricter policy counts.
    scripts.redis.pass(Duration::from_secs(60));
    let taken = scripts.run("claim", "k", &Claim::by("b").arguments()).await;
    assert_eq!(taken.row()[..2], ["claimed", "0"]);
    assert!(number(&taken, 1) > number(&first, 1));
    assert_eq!(
        (&taken.row()[3], &taken.row()[5..7]),
        (&"2", &["1", "half"][..])
    );
    assert_eq!(
        scripts
            .run("claim", "k", &Claim::by("a").arguments())
            .await
            .row(),
        ["lost", "TAKEN_OVER"]
    );
    scripts.redis.pass(Duration::from_secs(60));
    let strict = Claim {
        policy: 2,
        ..Claim::by("c")
    };
    let uncertain = scripts.run("claim", "k", &strict.arguments()).await;
    assert_eq!(
        uncertain.row(),
        ["uncertain", taken.row()[4], "2", "half", "holder"]
    );

    // Settled by an operator.
    let resolved = scripts
        .run(
            "resolve_claim",
            "k",
            &resolution(number(&taken, 1), "forget"),
        )
        .await;
    assert_eq!(resolved.kind, "resolved");
    assert_eq!(
        scripts
            .run("claim", "k", &Claim::by("b").arguments())
            .await
            .row(),
        ["lost", "FORCED"]
    );

    scripts
        .run("abandon", "k", &abandonment("early", "NONE"))
        .await;
    assert_eq!(
        scripts
            .run("claim", "k", &Claim::by("early").arguments())
            .await
            .row(),
        ["lost", "RELEASED"]
    );

    // Completed: replayed, lost before its time, gone, and the token's that did it.
    granted(&mut scripts, "k", Claim::by("d")).await;
    let mut short = completion("d", "done");
    (short[6], short[7]) = ("60000".to_owned(), "30000".to_owned());
    let completed = scripts.run("complete", "k", &short).await;
    let (completed_at, expires_at) = (
        completed.now.to_string(),
        (completed.now + 60_000_000).to_string(),
    );
    let replay = scripts.run("claim", "k", &Claim::by("e").arguments()).await;
    assert_eq!(
        replay.row(),
        [
            "replay",
            "1",
            "done",
            &completed_at,
            &expires_at,
            "1",
            "trace"
        ]
    );
    assert!(scripts.redis.evict("{k}:r").await);
    let lost = scripts.run("claim", "k", &Claim::by("e").arguments()).await;
    assert_eq!(lost.row(), ["response_lost"]);
    scripts.redis.pass(Duration::from_secs(30));
    let replay = scripts.run("claim", "k", &Claim::by("e").arguments()).await;
    assert_eq!(
        replay.row(),
        ["replay", "0", "", &completed_at, &expires_at, "1", "trace"]
    );
    scripts.redis.pass(Duration::from_secs(30));
    granted(&mut scripts, "k", Claim::by("f")).await;
    assert_eq!(
        scripts
            .run("claim", "k", &Claim::by("d").arguments())
            .await
            .row(),
        ["lost", "COMPLETED"]
    );

    scripts.assert_header_was_seen("claim");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_call_that_the_service_sent_again_is_answered_as_the_first() {
    let mut scripts = claim_scripts().await;
    let first = scripts.run("claim", "k", &Claim::by("a").arguments()).await;
    let again = scripts.run("claim", "k", &Claim::by("a").arguments()).await;
    assert_eq!(again.row()[..4], first.row()[..4]);
    assert_eq!(
        again.row()[1],
        "0",
        "not already held: the caller has heard of no grant"
    );

    // Once another call was answered, the first one's repeat is a repeat like any other.
    let caller = Claim {
        nonce: "another call",
        ..Claim::by("a")
    };
    assert_eq!(
        scripts.run("claim", "k", &caller.arguments()).await.row()[1],
        "1"
    );
    assert_eq!(
        scripts.run("claim", "k", &caller.arguments()).await.row()[1],
        "1"
    );
    assert_eq!(
        scripts
            .run("claim", "k", &Claim::by("a").arguments())
            .await
            .row()[1],
        "1"
    );
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_fencing_token_is_greater_than_the_last_the_clock_and_what_the_service_has_seen() {
    let mut scripts = claim_scripts().await;
    let first = scripts.run("claim", "k", &Claim::by("a").arguments()).await;
    assert_eq!(number(&first, 1), first.now);

    let highest_seen = first.now + 3_600_000_000;
    let seen = Common {
        highest_seen,
        ..Common::default()
    };
    scripts.run("abandon", "k", &abandonment("a", "NONE")).await;
    let second = scripts
        .run_with(seen, "claim", "k", &Claim::by("b").arguments())
        .await;
    assert_eq!(number(&second, 1), highest_seen + 1);

    // Another service has seen nothing yet, but the record has.
    scripts.run("abandon", "k", &abandonment("b", "NONE")).await;
    let third = scripts.run("claim", "k", &Claim::by("c").arguments()).await;
    assert_eq!(number(&third, 1), highest_seen + 2);

    // The largest that may ever be minted is printed to the last digit.
    let highest_seen = (1 << 53) - 3;
    let seen = Common {
        highest_seen,
        ..Common::default()
    };
    let last = scripts
        .run_with(seen, "claim", "other", &Claim::by("a").arguments())
        .await;
    assert_eq!(number(&last, 1), (1 << 53) - 2);
    let again = scripts.run("renew_claim", "other", &renewal("a")).await;
    assert_eq!(number(&again, 1), (1 << 53) - 2);
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}
