//! `claimlock claims`: what an operator sees, and what becomes of it.

use crate::support::answers::{claimed, completed, replay};
use crate::support::eventually;
use crate::support::filling::claim_all;
use crate::support::requests::{claim, complete, millis, response};
use crate::support::shell::{Desk, Ran};
use claimlock::rpc::proto::{ClaimRequest, LeaseOverPolicy};
use serde_json::Value;

/// A claim whose holder fell silent, and its fencing token.
async fn left_uncertain(desk: &Desk, key: &str) -> String {
    let mut client = desk.service.coordination().await;
    let request = ClaimRequest {
        lease: millis(1),
        on_lease_over: LeaseOverPolicy::MarkUncertain.into(),
        ..claim(key, "a")
    };
    let fencing_token = claimed(client.claim(request).await).fencing_token;
    eventually("the lease to end", async || {
        let shown = desk.shell.run("claims get -o json", &[key]).await.json();
        (shown["state"] == "CLAIM_STATE_UNCERTAIN").then_some(())
    })
    .await;
    fencing_token.to_string()
}

/// The rows of a table, split at its gaps.
fn rows(ran: &Ran) -> Vec<Vec<&str>> {
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    ran.stdout
        .lines()
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect()
}

#[tokio::test]
async fn claims_are_listed_for_people_with_columns_that_line_up() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    let of_shop = ClaimRequest {
        scope: "shop".to_owned(),
        ..claim("a-rather-long-key", "a")
    };
    claimed(client.claim(of_shop).await);
    claimed(client.claim(claim("k", "b")).await);
    completed(client.complete(complete("k", "b", b"done")).await);

    let ran = desk.shell.run("claims ls", &[]).await;
    let mut rows = rows(&ran);
    let header = [
        "KEY", "SCOPE", "TENANT", "STATE", "ATTEMPT", "LEASE", "AGE", "HOLDER",
    ];
    assert_eq!(rows.remove(0), header);
    rows.sort_unstable();
    assert_eq!(rows.len(), 2, "{ran:?}");
    assert_eq!(
        rows[0][..5],
        ["a-rather-long-key", "shop", "default", "in-flight", "1"]
    );
    assert!(
        rows[0][5].ends_with('s') && rows[0][7] == "holder a",
        "{ran:?}"
    );
    assert_eq!(rows[1][..6], ["k", "-", "default", "completed", "1", "-"]);
    let starts: Vec<_> = ran
        .stdout
        .lines()
        .map(|line| line.find("default").or(line.find("TENANT")))
        .collect();
    assert!(starts.iter().all(|start| *start == starts[0]), "{ran:?}");
}

#[tokio::test]
async fn the_claims_of_every_state_tenant_and_prefix_are_found_by_it() {
    let desk = Desk::start().await;
    left_uncertain(&desk, "a-silent").await;
    let mut client = desk.service.coordination().await;
    claimed(client.claim(claim("a-live", "a")).await);
    claimed(client.claim(claim("b-live", "a")).await);
    let elsewhere = ClaimRequest {
        tenant: "other".to_owned(),
        ..claim("a-theirs", "a")
    };
    claimed(client.claim(elsewhere).await);

    for (flags, expected) in [
        ("", &["a-live", "a-silent", "b-live"][..]),
        ("--state uncertain", &["a-silent"]),
        ("--state in-flight", &["a-live", "b-live"]),
        ("--prefix a-", &["a-live", "a-silent"]),
        ("--tenant other", &["a-theirs"]),
        (
            "--all-tenants",
            &["a-live", "a-silent", "a-theirs", "b-live"],
        ),
        // Whatever a variable or a file says.
        ("--all-tenants --tenant other --prefix a-l", &["a-live"]),
    ] {
        let ran = desk
            .shell
            .run(&format!("claims ls -o json {flags}"), &[])
            .await;
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
        let mut keys: Vec<_> = ran.stdout.lines().map(key_of).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected, "{flags}");
    }
    let none = desk.shell.run("claims ls --state abandoned", &[]).await;
    assert_eq!((none.code, none.stdout.as_str()), (0, ""), "{none:?}");
    assert_eq!(none.stderr, "claimlock: no claims\n");
    let limited = desk.shell.run("claims ls --limit 2 -o json", &[]).await;
    assert_eq!(limited.stdout.lines().count(), 2, "{limited:?}");
    let wrong = desk.shell.run("claims ls --state lost", &[]).await;
    assert_eq!(wrong.code, 2, "{wrong:?}");
}

fn key_of(line: &str) -> String {
    let claim: Value = serde_json::from_str(line).expect("each line is a claim");
    claim["key"].as_str().expect("it has a key").to_owned()
}

#[tokio::test]
async fn a_listing_goes_on_over_all_its_pages() {
    let desk = Desk::start().await;
    let client = desk.service.coordination().await;
    let keys: Vec<_> = (0..1234).map(|n| format!("key-{n:04}")).collect();
    claim_all(&client, keys.iter().cloned()).await;
    let ran = desk.shell.run("claims ls -o json", &[]).await;
    let mut listed: Vec<_> = ran.stdout.lines().map(key_of).collect();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed, keys);
    let table = desk.shell.run("claims ls", &[]).await;
    assert_eq!(table.stdout.matches("KEY").count(), 1);
    assert!(table.stdout.lines().count() > keys.len());
    let limited = desk.shell.run("claims ls --limit 700", &[]).await;
    assert_eq!(limited.stdout.lines().count(), 701);
}

#[tokio::test]
async fn what_a_caller_named_itself_cannot_write_on_an_operators_terminal() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    let request = ClaimRequest {
        holder: "\u{1b}[2Jme\nk2  -  default  completed".to_owned(),
        operation: "\u{7}".to_owned(),
        ..claim("k", "a")
    };
    claimed(client.claim(request).await);
    for line in ["claims ls", "claims get k"] {
        let ran = desk.shell.run(line, &[]).await;
        assert!(ran.stdout.contains("\\u{1b}[2Jme\\nk2"), "{ran:?}");
        assert!(!ran.stdout.contains(['\u{1b}', '\u{7}']), "{ran:?}");
    }
}

#[tokio::test]
async fn one_claim_is_shown_with_every_field() {
    let desk = Desk::start().await;
    let fencing_token = left_uncertain(&desk, "k").await;
    let ran = desk.shell.run("claims get k", &[]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    for (name, value) in [
        ("tenant", "default"),
        ("scope", "-"),
        ("key", "k"),
        ("operation", "POST /v1/charges"),
        ("state", "uncertain"),
        ("attempt", "1"),
        ("fencing token", &fencing_token),
        ("holder", "holder a"),
        ("on lease over", "mark uncertain"),
        ("completed at", "-"),
        ("taken over", "no"),
        ("abandon reason", "-"),
        ("trace id", "-"),
    ] {
        let has = |line: &str| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with("  ") && rest.trim() == value)
        };
        assert!(ran.stdout.lines().any(has), "{name}: {ran:?}");
    }
    assert_eq!(ran.stdout.lines().count(), 20, "{ran:?}");
    let json = desk.shell.run("claims get k -o json", &[]).await.json();
    assert_eq!(json["fencingToken"], fencing_token);

    let unknown = desk.shell.run("claims get k --scope other", &[]).await;
    assert_eq!(
        (unknown.code, unknown.stdout.as_str()),
        (66, ""),
        "{unknown:?}"
    );
    assert!(
        unknown.stderr.contains("nothing is known of the key"),
        "{unknown:?}"
    );
}

#[tokio::test]
async fn a_claim_that_is_completed_by_an_operator_replays_the_response() {
    let desk = Desk::start().await;
    left_uncertain(&desk, "k").await;
    std::fs::write(desk.shell.path("answer"), b"mended").expect("it can be written");
    let line = "claims resolve k --complete --status 201 --body answer --reason paid --yes";
    let ran = desk.shell.run(line, &[]).await;
    let rows = rows(&ran);
    assert_eq!(rows[0], ["RESOLVED", "BEFORE", "AFTER"]);
    assert!(
        rows.contains(&vec!["state", "uncertain", "completed"]),
        "{ran:?}"
    );
    assert!(rows.contains(&vec!["response bytes", "0", "6"]), "{ran:?}");
    let mut client = desk.service.coordination().await;
    let replayed = replay(client.claim(claim("k", "b")).await);
    assert_eq!(replayed.response, Some(response(b"mended")));

    let line = "claims resolve k --erase-response --reason gdpr --yes -o json";
    let erased = desk.shell.run(line, &[]).await;
    assert_eq!(erased.code, 0, "{erased:?}");
    let erased = erased.json();
    assert_eq!(erased["resolved"], true);
    assert_eq!(erased["before"]["responseBytes"], "6");
    assert_eq!(erased["after"]["responseBytes"], Value::Null);
    assert_eq!(replay(client.claim(claim("k", "b")).await).response, None);
}

#[tokio::test]
async fn a_claim_that_is_forgotten_can_be_claimed_anew() {
    let desk = Desk::start().await;
    let fencing_token = left_uncertain(&desk, "k").await;
    let mut client = desk.service.coordination().await;
    let line = format!("claims resolve k --forget --reason none --fencing-token {fencing_token}");
    let ran = desk.shell.run(&line, &[]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.stdout.contains("before: uncertain, attempt 1"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("after: nothing is known"), "{ran:?}");
    claimed(client.claim(claim("k", "b")).await);
    let again = desk.shell.run(&line, &[]).await;
    assert_eq!((again.code, again.stdout.as_str()), (82, ""), "{again:?}");
    assert!(again.stderr.contains("it has moved on"), "{again:?}");
}

#[tokio::test]
async fn what_is_left_alone_says_why_by_an_exit_code_of_its_own() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    let live = claimed(client.claim(claim("live", "a")).await);
    left_uncertain(&desk, "silent").await;
    let by_token = format!("--fencing-token {}", live.fencing_token);
    for (line, why) in [
        (
            "resolve live --forget --yes",
            "its lease is live for another",
        ),
        (
            &format!("resolve live --forget {by_token}"),
            "its lease is live for another",
        ),
        (
            "resolve silent --erase-response --yes",
            "it is uncertain, so there is no response",
        ),
        (
            "resolve silent --forget --fencing-token 1",
            "it has moved on",
        ),
    ] {
        let before = desk.redis.dump().await;
        let ran = desk
            .shell
            .run(&format!("claims {line} --reason test"), &[])
            .await;
        assert_eq!((ran.code, ran.stdout.as_str()), (82, ""), "{line}: {ran:?}");
        assert!(ran.stderr.contains(why), "{line}: {ran:?}");
        assert_eq!(desk.redis.dump().await, before, "{line}");
    }
    let line = format!("claims resolve live --forget {by_token} --reason test -o json");
    let ran = desk.shell.run(&line, &[]).await;
    assert_eq!(
        (ran.code, &ran.json()["resolved"]),
        (82, &Value::Bool(false)),
        "{ran:?}"
    );
    let unknown = desk
        .shell
        .run("claims resolve none --forget --yes --reason test", &[])
        .await;
    assert_eq!(unknown.code, 66, "{unknown:?}");
}

#[tokio::test]
async fn nothing_is_changed_without_a_reason_a_resolution_and_somebodys_word() {
    let desk = Desk::start().await;
    left_uncertain(&desk, "k").await;
    let before = desk.redis.dump().await;
    for (line, said) in [
        ("--forget --reason test", "--yes"),
        ("--forget --yes", "--reason"),
        ("--yes --reason test", "--complete"),
        (
            "--forget --complete --yes --reason test",
            "cannot be used with",
        ),
        (
            "--forget --status 201 --yes --reason test",
            "cannot be used with",
        ),
    ] {
        let ran = desk
            .shell
            .run(&format!("claims resolve k {line}"), &[])
            .await;
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{line}: {ran:?}");
        assert!(ran.stderr.contains(said), "{line}: {ran:?}");
    }
    let empty = desk
        .shell
        .run("claims resolve k --forget --yes --reason", &[" "])
        .await;
    assert_eq!(empty.code, 2, "{empty:?}");
    assert_eq!(desk.redis.dump().await, before);
}
