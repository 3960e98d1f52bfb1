//! `undo_claim.lua`: a grant that nobody heard of is taken back, as if it had not been made.

use super::*;
use crate::support::scripts::Common;
use std::time::Duration;

fn undo(token: &str, nonce: &str) -> Vec<String> {
    arguments([token, nonce])
}

async fn assert_undone(scripts: &mut Scripts, name: &str, token: &str, nonce: &str) {
    assert_eq!(
        scripts
            .run("undo_claim", name, &undo(token, nonce))
            .await
            .row(),
        ["undone"]
    );
}

async fn assert_kept(scripts: &mut Scripts, name: &str, token: &str, nonce: &str) {
    let before = scripts.redis.server.dump().await;
    assert_eq!(
        scripts
            .run("undo_claim", name, &undo(token, nonce))
            .await
            .row(),
        ["kept"]
    );
    assert_eq!(scripts.redis.server.dump().await, before);
}

/// What can be seen of a key, but for the fencing token of its last grant.
async fn seen(scripts: &mut Scripts, name: &str) -> Vec<String> {
    let reply = scripts.run("get_claim", name, &[]).await;
    let mut fields: Vec<String> = reply.fields[0].split(", ").map(str::to_owned).collect();
    if fields.len() > 3 {
        fields.remove(3);
    }
    fields
}

/// Where [`seen`] has them.
const STATE: usize = 0;
const POLICY: usize = 4;
const EXPIRES_AT: usize = 9;

#[track_caller]
fn number_of(seen: &[String], place: usize) -> i64 {
    seen[place].parse().expect("a number")
}

#[tokio::test]
async fn undo_claim_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    assert_kept(&mut scripts, "k", "a", "nonce").await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    let before = scripts.redis.server.dump().await;
    assert_eq!(
        scripts
            .run_late("undo_claim", "k", &undo("a", "nonce"))
            .await
            .row(),
        ["late"]
    );
    assert_eq!(scripts.redis.server.dump().await, before);
    assert_undone(&mut scripts, "k", "a", "nonce").await;
    assert_eq!(seen(&mut scripts, "k").await, ["[]"]);

    scripts.assert_header_was_seen("undo_claim");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn only_the_call_that_created_a_grant_can_undo_it() {
    let mut scripts = claim_scripts().await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    assert_kept(&mut scripts, "k", "a", "another call").await;
    assert_kept(&mut scripts, "k", "a", "").await;
    assert_kept(&mut scripts, "k", "b", "nonce").await;
    assert_undone(&mut scripts, "k", "a", "nonce").await;
    // An undo that was sent twice finds nothing more to undo.
    assert_kept(&mut scripts, "k", "a", "nonce").await;

    // The same token got the key again by another call, whose grant it is.
    granted(
        &mut scripts,
        "k",
        Claim {
            nonce: "later",
            ..Claim::by("a")
        },
    )
    .await;
    assert_kept(&mut scripts, "k", "a", "nonce").await;
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_grant_that_somebody_has_heard_of_stands() {
    let mut scripts = claim_scripts().await;
    for (name, script, arguments) in [
        (
            "repeated",
            "claim",
            Claim {
                nonce: "another call",
                ..Claim::by("a")
            }
            .arguments(),
        ),
        ("renewed", "renew_claim", renewal("a")),
        ("given up", "abandon", abandonment("a", "UNKNOWN")),
        ("abandoned", "abandon", abandonment("a", "NONE")),
        ("completed", "complete", completion("a", "done")),
    ] {
        granted(&mut scripts, name, Claim::by("a")).await;
        scripts.run(script, name, &arguments).await;
        assert_kept(&mut scripts, name, "a", "nonce").await;
    }
    // What others were answered in between is no reason to keep it.
    granted(&mut scripts, "looked at", Claim::by("a")).await;
    assert_eq!(
        scripts
            .run("claim", "looked at", &Claim::by("b").arguments())
            .await
            .kind,
        "in_flight"
    );
    assert_eq!(
        scripts
            .run("renew_claim", "looked at", &renewal("b"))
            .await
            .row(),
        ["lost", "TAKEN_OVER"]
    );
    // Nor is the same call sent again by the service.
    granted(&mut scripts, "looked at", Claim::by("a")).await;
    assert_undone(&mut scripts, "looked at", "a", "nonce").await;
    granted(&mut scripts, "looked at", Claim::by("b")).await;
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn undoing_the_first_grant_leaves_the_key_absent_and_the_token_unspent() {
    let mut scripts = claim_scripts().await;
    let first = granted(&mut scripts, "k", Claim::by("a")).await;
    assert_undone(&mut scripts, "k", "a", "nonce").await;
    assert_eq!(
        scripts.run("renew_claim", "k", &renewal("a")).await.row(),
        ["lost", "NOT_FOUND"]
    );
    let another_request = Claim {
        fingerprint: "other",
        ..Claim::by("a")
    };
    let again = scripts
        .run("claim", "k", &another_request.arguments())
        .await;
    assert_eq!((again.row()[1], again.row()[3]), ("0", "1"));
    assert!(number(&again, 1) > first, "its fencing token stays used");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn undoing_a_takeover_gives_the_claim_back_to_its_holder_as_it_was() {
    let mut scripts = claim_scripts().await;
    for name in ["lease over", "given up"] {
        granted(&mut scripts, name, Claim::by("a")).await;
        scripts
            .run("renew_claim", name, &checkpoint("a", "half"))
            .await;
    }
    scripts.redis.pass(Duration::from_secs(60));
    scripts
        .run("abandon", "given up", &abandonment("a", "UNKNOWN"))
        .await;
    for name in ["lease over", "given up"] {
        let before = seen(&mut scripts, name).await;
        let takeover = Claim {
            holder: "another holder",
            lease: HOUR,
            retention: 2 * HOUR,
            ..Claim::by("b")
        };
        granted(&mut scripts, name, takeover).await;
        assert_eq!(
            scripts.run("renew_claim", name, &renewal("a")).await.kind,
            "lost"
        );
        assert_undone(&mut scripts, name, "b", "nonce").await;
        assert_eq!(seen(&mut scripts, name).await, before, "{name}");

        // Whoever it was can go on, and keeps its retention.
        let expected = if name == "given up" {
            ["lost", "RELEASED"]
        } else {
            ["claimed", "1"]
        };
        let holder = scripts
            .run(
                "claim",
                name,
                &Claim {
                    nonce: "again",
                    ..Claim::by("a")
                }
                .arguments(),
            )
            .await;
        assert_eq!(holder.row()[..2], expected, "{name}");
        let completed = scripts
            .run("complete", name, &completion("a", "done"))
            .await;
        assert_eq!(
            completed.row(),
            ["completed", &(completed.now + HOUR * 1000).to_string()],
            "{name}"
        );
    }
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn after_an_undone_takeover_the_next_one_finds_what_the_first_would_have_found() {
    let mut scripts = claim_scripts().await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    scripts
        .run("renew_claim", "k", &checkpoint("a", "half"))
        .await;
    scripts.redis.pass(Duration::from_secs(60));
    let undone = granted(&mut scripts, "k", Claim::by("b")).await;
    assert_undone(&mut scripts, "k", "b", "nonce").await;
    let another_request = Claim {
        fingerprint: "other",
        ..Claim::by("c")
    };
    assert_eq!(
        scripts
            .run("claim", "k", &another_request.arguments())
            .await
            .row(),
        ["mismatch", "operation"]
    );

    // The undone token may take over as well as any other.
    let taken = scripts.run("claim", "k", &Claim::by("b").arguments()).await;
    let row = taken.row();
    assert_eq!(
        (&row[..2], row[3], &row[5..7]),
        (&["claimed", "0"][..], "2", &["1", "half"][..])
    );
    assert!(number(&taken, 1) > undone);
    assert_eq!(
        scripts
            .run("claim", "k", &Claim::by("a").arguments())
            .await
            .row(),
        ["lost", "TAKEN_OVER"]
    );
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn undoing_a_grant_of_an_abandoned_key_leaves_it_abandoned_as_it_was() {
    let mut scripts = claim_scripts().await;
    for name in ["plain", "kept"] {
        granted(
            &mut scripts,
            name,
            Claim {
                policy: 2,
                ..Claim::by("a")
            },
        )
        .await;
        scripts
            .run("renew_claim", name, &checkpoint("a", "half"))
            .await;
    }
    scripts
        .run("abandon", "plain", &abandonment("a", "NONE"))
        .await;
    let mut keep = abandonment("a", "NONE");
    keep[2] = "1".to_owned();
    scripts.run("abandon", "kept", &keep).await;

    granted(&mut scripts, "taken over", Claim::by("a")).await;
    scripts
        .run("renew_claim", "taken over", &checkpoint("a", "half"))
        .await;
    scripts.redis.pass(Duration::from_secs(60));
    granted(&mut scripts, "taken over", Claim::by("b")).await;
    scripts
        .run("abandon", "taken over", &abandonment("b", "NONE"))
        .await;

    let keys = [
        ("plain", "", "0"),
        ("kept", "half", "0"),
        ("taken over", "half", "1"),
    ];
    for (name, checkpoint, taken_over) in keys {
        let before = seen(&mut scripts, name).await;
        let next = Claim {
            holder: "another holder",
            policy: 3 - before[4].parse::<i64>().expect("a policy"),
            ..Claim::by("c")
        };
        granted(&mut scripts, name, next).await;
        assert_undone(&mut scripts, name, "c", "nonce").await;
        assert_eq!(seen(&mut scripts, name).await, before, "{name}");
        assert_eq!(
            scripts
                .run("claim", name, &Claim::by("a").arguments())
                .await
                .kind,
            "lost",
            "{name}"
        );

        let again = scripts.run("claim", name, &next.arguments()).await;
        let row = again.row();
        assert_eq!(
            (row[1], row[5], row[6]),
            ("0", taken_over, checkpoint),
            "{name}"
        );
    }
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn undoing_a_claim_anew_leaves_what_was_remembered_of_the_expired_record() {
    let mut scripts = claim_scripts().await;
    let short = Claim {
        retention: 60_000,
        ..Claim::by("a")
    };
    granted(&mut scripts, "k", short).await;
    let completed = scripts.run("complete", "k", &completion("a", "done")).await;
    scripts.redis.pass(Duration::from_secs(60));
    granted(&mut scripts, "k", Claim::by("b")).await;
    assert_eq!(
        scripts
            .run("claim", "k", &Claim::by("a").arguments())
            .await
            .row(),
        ["lost", "COMPLETED"]
    );
    assert_undone(&mut scripts, "k", "b", "nonce").await;

    assert_eq!(seen(&mut scripts, "k").await, ["[]"]);
    let replay = scripts.run("claim", "k", &Claim::by("a").arguments()).await;
    let (completed_at, expires_at) = (completed.now.to_string(), completed.row()[1]);
    assert_eq!(
        replay.row(),
        ["replay", "0", "", &completed_at, expires_at, "1", "trace"]
    );
    assert_eq!(
        scripts
            .run("complete", "k", &completion("a", "done"))
            .await
            .kind,
        "completed"
    );
    assert_eq!(
        scripts.run("renew_claim", "k", &renewal("b")).await.row(),
        ["lost", "NOT_FOUND"]
    );
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn the_fencing_token_of_an_undone_grant_stays_used_even_ahead_of_the_clock() {
    let mut scripts = claim_scripts().await;
    let highest_seen = scripts.redis.now().await + 3_600_000_000;
    let seen = Common {
        highest_seen,
        ..Common::default()
    };
    let arguments = Claim::by("a").arguments();
    let undone = scripts.run_with(seen, "claim", "k", &arguments).await;
    assert_eq!(number(&undone, 1), highest_seen + 1);
    assert_undone(&mut scripts, "k", "a", "nonce").await;
    assert_eq!(
        granted(&mut scripts, "k", Claim::by("b")).await,
        highest_seen + 2
    );
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn undoing_a_claim_anew_does_not_spend_the_last_holder_of_the_expired_record() {
    let mut scripts = claim_scripts().await;
    let short = Claim {
        retention: 1000,
        ..Claim::by("a")
    };
    granted(&mut scripts, "k", short).await;
    scripts.redis.pass(Duration::from_secs(61));
    granted(&mut scripts, "k", Claim::by("b")).await;
    assert_undone(&mut scripts, "k", "b", "nonce").await;
    for token in ["a", "b"] {
        let reply = scripts.run("renew_claim", "k", &renewal(token)).await;
        assert_eq!(reply.row(), ["lost", "NOT_FOUND"]);
    }
    granted(&mut scripts, "k", Claim::by("a")).await;
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn tokens_spent_while_a_grant_stood_stay_spent_after_its_undo() {
    let mut scripts = claim_scripts().await;
    scripts
        .run("abandon", "k", &abandonment("before", "NONE"))
        .await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    let other = scripts
        .run("abandon", "k", &abandonment("meanwhile", "NONE"))
        .await;
    assert_eq!(other.row(), ["lost", "TAKEN_OVER"]);
    assert_undone(&mut scripts, "k", "a", "nonce").await;
    for (token, reason) in [("before", "RELEASED"), ("meanwhile", "TAKEN_OVER")] {
        assert_eq!(
            scripts
                .run("claim", "k", &Claim::by(token).arguments())
                .await
                .row(),
            ["lost", reason]
        );
    }
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_give_up_after_the_record_expired_stays_spent_through_an_undone_claim_of_another() {
    let mut scripts = claim_scripts().await;
    let short = Claim {
        retention: 1000,
        ..Claim::by("a")
    };
    granted(&mut scripts, "k", short).await;
    scripts.redis.pass(Duration::from_secs(61));
    assert_eq!(
        scripts
            .run("abandon", "k", &abandonment("a", "NONE"))
            .await
            .row(),
        ["abandoned"]
    );
    granted(&mut scripts, "k", Claim::by("b")).await;
    assert_undone(&mut scripts, "k", "b", "nonce").await;
    assert_eq!(
        scripts
            .run("claim", "k", &Claim::by("a").arguments())
            .await
            .row(),
        ["lost", "RELEASED"]
    );
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_stricter_policy_that_another_asked_for_survives_the_undo_of_a_takeover() {
    const STRICT: i64 = 2;
    let mut scripts = claim_scripts().await;
    let of = |token, policy| Claim {
        policy,
        ..Claim::by(token)
    };
    // What a key was, what the undone grant itself asked for, and what the next one gets.
    let cases = [
        ("lease over", 1, "uncertain"),
        ("given up", 1, "uncertain"),
        ("abandoned", STRICT, "claimed"),
    ];
    for (name, ..) in cases {
        granted(&mut scripts, name, Claim::by("a")).await;
    }
    scripts.redis.pass(Duration::from_secs(60));
    let unknown = abandonment("a", "UNKNOWN");
    scripts.run("abandon", "given up", &unknown).await;
    granted(&mut scripts, "abandoned", Claim::by("a2")).await;
    let none = abandonment("a2", "NONE");
    scripts.run("abandon", "abandoned", &none).await;

    for (name, own, expected) in cases {
        let before = seen(&mut scripts, name).await;
        granted(&mut scripts, name, of("b", own)).await;
        for _ in 0..2 {
            let other = of("c", STRICT).arguments();
            let told = scripts.run("claim", name, &other).await;
            assert_eq!(told.kind, "in_flight", "{name}");
        }
        assert_undone(&mut scripts, name, "b", "nonce").await;

        let mut after = seen(&mut scripts, name).await;
        let kept_longer = number_of(&after, EXPIRES_AT) > number_of(&before, EXPIRES_AT);
        assert!(kept_longer, "{name}: as the stricter policy has it");
        assert_eq!(after[POLICY], STRICT.to_string(), "{name}");
        for place in [STATE, POLICY, EXPIRES_AT] {
            after[place].clone_from(&before[place]);
        }
        assert_eq!(after, before, "{name}: and nothing else");

        let next = scripts.run("claim", name, &of("d", 1).arguments()).await;
        assert_eq!(next.kind, expected, "{name}");
        assert_eq!(seen(&mut scripts, name).await[POLICY], STRICT.to_string());
    }
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_stricter_policy_does_not_bring_back_a_record_that_had_expired() {
    let mut scripts = claim_scripts().await;
    let short = Claim {
        retention: 1000,
        ..Claim::by("a")
    };
    granted(&mut scripts, "k", short).await;
    scripts.redis.pass(Duration::from_secs(61));
    granted(&mut scripts, "k", Claim::by("b")).await;
    let strict = Claim {
        policy: 2,
        ..Claim::by("c")
    };
    let told = scripts.run("claim", "k", &strict.arguments()).await;
    assert_eq!(told.kind, "in_flight");
    assert_undone(&mut scripts, "k", "b", "nonce").await;
    assert_eq!(seen(&mut scripts, "k").await, ["[]"]);
}
