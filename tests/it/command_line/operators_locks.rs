//! `claimlock locks`: what an operator sees, and what becomes of it.

use crate::support::answers::acquired;
use crate::support::filling::acquire_all;
use crate::support::requests::{acquire, millis, release, share};
use crate::support::shell::Desk;
use claimlock::rpc::proto::AcquireLockRequest;
use serde_json::Value;

async fn hold(desk: &Desk, request: AcquireLockRequest) -> i64 {
    let mut client = desk.service.coordination().await;
    acquired(client.acquire_lock(request).await).fencing_token
}

fn resource_of(line: &str) -> String {
    let lock: Value = serde_json::from_str(line).expect("each line is a lock");
    lock["resource"].as_str().expect("it has a name").to_owned()
}

#[tokio::test]
async fn locks_that_are_taken_are_listed_with_their_holders() {
    let desk = Desk::start().await;
    let none = desk.shell.run("locks ls", &[]).await;
    assert_eq!((none.code, none.stdout.as_str()), (0, ""), "{none:?}");
    assert_eq!(none.stderr, "claimlock: no locks\n");

    let lease = millis(3_600_000);
    hold(
        &desk,
        AcquireLockRequest {
            lease,
            ..acquire("alone", "a")
        },
    )
    .await;
    for name in ["b", "c", "d"] {
        hold(
            &desk,
            AcquireLockRequest {
                lease,
                ..share("shared", name, 0)
            },
        )
        .await;
    }
    let lingers = AcquireLockRequest {
        hold_at_least: lease,
        ..acquire("lingers", "e")
    };
    hold(&desk, lingers).await;
    let mut client = desk.service.coordination().await;
    client
        .release_lock(release("lingers", "e"))
        .await
        .expect("it is held");

    let ran = desk.shell.run("locks ls", &[]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    let line = |start: &str| {
        let line = ran.stdout.lines().find(|line| line.starts_with(start));
        let line = line.unwrap_or_else(|| panic!("no {start}: {ran:?}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        line("RESOURCE"),
        "RESOURCE TENANT MODE WAITING LEASE HELD FOR FREE IN HOLDER"
    );
    assert!(
        line("alone").starts_with("alone default exclusive 0 59m "),
        "{ran:?}"
    );
    assert!(line("alone").ends_with("holder a"), "{ran:?}");
    assert!(
        line("shared").starts_with("shared default shared 0 "),
        "{ran:?}"
    );
    assert!(line("shared").ends_with("and 2 more"), "{ran:?}");
    assert_eq!(line("lingers"), "lingers default - 0 - - 59m -");

    for (flags, expected) in [
        ("--prefix s", &["shared"][..]),
        ("--tenant other", &[]),
        (
            "--all-tenants --tenant other",
            &["alone", "lingers", "shared"],
        ),
    ] {
        let ran = desk
            .shell
            .run(&format!("locks ls -o json {flags}"), &[])
            .await;
        let mut names: Vec<_> = ran.stdout.lines().map(resource_of).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{flags}: {ran:?}");
    }
}

#[tokio::test]
async fn a_listing_of_locks_goes_on_over_all_its_pages() {
    let desk = Desk::start().await;
    let client = desk.service.coordination().await;
    let names: Vec<_> = (0..612).map(|n| format!("lock-{n:04}")).collect();
    acquire_all(&client, names.iter().cloned()).await;
    let ran = desk.shell.run("locks ls -o json", &[]).await;
    let mut listed: Vec<_> = ran.stdout.lines().map(resource_of).collect();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed, names);
}

#[tokio::test]
async fn one_lock_is_shown_with_all_its_holders() {
    let desk = Desk::start().await;
    let first = hold(&desk, share("shared", "a", 0)).await;
    let request = AcquireLockRequest {
        holder: "\u{1b}[31mb".to_owned(),
        ..share("shared", "b", 0)
    };
    let second = hold(&desk, request).await;
    let ran = desk.shell.run("locks get shared", &[]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    for text in [
        format!("fencing token  {second}\n"),
        "holders        2\n".to_owned(),
        format!("\n{first}  shared  "),
        "\\u{1b}[31mb\n".to_owned(),
    ] {
        assert!(ran.stdout.contains(&text), "{text:?}: {ran:?}");
    }
    let json = desk.shell.run("locks get shared -o json", &[]).await.json();
    assert_eq!(json["holders"].as_array().map(Vec::len), Some(2), "{json}");
    let free = desk.shell.run("locks get free", &[]).await;
    assert_eq!((free.code, free.stdout.as_str()), (66, ""), "{free:?}");
    assert!(free.stderr.contains("is free"), "{free:?}");
}

#[tokio::test]
async fn a_lock_is_taken_away_from_one_holder_or_from_all() {
    let desk = Desk::start().await;
    let first = hold(&desk, share("shared", "a", 0)).await;
    for name in ["b", "c"] {
        hold(&desk, share("shared", name, 0)).await;
    }
    let one = format!("locks release shared --reason test --fencing-token {first}");
    let ran = desk.shell.run(&one, &[]).await;
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (0, "released 1 holder\n"),
        "{ran:?}"
    );
    let again = desk.shell.run(&one, &[]).await;
    assert_eq!(again.code, 82, "{again:?}");
    assert!(again.stderr.contains("nobody holds it"), "{again:?}");

    let before = desk.redis.dump().await;
    for (line, said) in [("--reason test", "--yes"), ("--yes", "--reason")] {
        let ran = desk
            .shell
            .run(&format!("locks release shared {line}"), &[])
            .await;
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
        assert!(ran.stderr.contains(said), "{ran:?}");
    }
    assert_eq!(desk.redis.dump().await, before);

    let all = desk
        .shell
        .run("locks release shared --reason test --yes -o json", &[])
        .await;
    assert_eq!(
        (all.code, &all.json()["releasedHolders"]),
        (0, &Value::from(2)),
        "{all:?}"
    );
    assert_eq!(
        all.json()["before"]["holders"].as_array().map(Vec::len),
        Some(2)
    );
    let free = desk
        .shell
        .run("locks release shared --reason test --yes", &[])
        .await;
    assert_eq!(free.code, 66, "{free:?}");
}
