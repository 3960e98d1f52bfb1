//! Every change that an operator makes leaves one line: who, what, why, before and after.

use super::World;
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::calls::{Clients, force_release, resolve_claim};
use crate::support::eventually;
use crate::support::logs::Logs;
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::requests::{abandon, acquire, claim, complete};
use crate::support::service::{Admin, Service, channel};
use claimlock::config::Settings;
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::*;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};

const AUDIT: &str = "claimlock::audit";
const WHY: &str = "ticket 42:\n\"stuck\" since noon";

/// The one line that was written since the last look.
fn new_line(logs: &Logs, seen: &mut usize) -> Value {
    let lines = logs.of(AUDIT);
    assert_eq!(lines.len(), *seen + 1, "{lines:#?}");
    *seen += 1;
    let line = lines[lines.len() - 1].clone();
    assert_eq!(line["level"], "INFO");
    let who = line["who"].as_str().expect("it says who");
    assert!(
        who.starts_with("127.0.0.1:") && who.contains("tonic"),
        "{who}"
    );
    assert_eq!(line["why"], WHY);
    line
}

fn says(line: &Value, field: &str, parts: &[&str]) {
    let text = line[field]
        .as_str()
        .unwrap_or_else(|| panic!("no {field}: {line}"));
    for part in parts {
        assert!(text.contains(part), "{part} in {text}");
    }
}

fn request(key: &str, fencing_token: i64, resolution: Resolution) -> ResolveClaimRequest {
    ResolveClaimRequest {
        tenant: "acme".to_owned(),
        scope: "merchant 7".to_owned(),
        reason: WHY.to_owned(),
        resolution: Some(resolution),
        ..resolve_claim(key, fencing_token)
    }
}

#[tokio::test]
async fn every_resolution_leaves_one_line() {
    let mut world = World::start().await;
    let fence = world
        .claim(ClaimRequest {
            tenant: "acme".to_owned(),
            scope: "merchant 7".to_owned(),
            ..claim("k", "a")
        })
        .await
        .fencing_token;
    let logs = Logs::capture();
    let mut seen = 0;
    let mended = || Resolution::Complete(crate::support::requests::response(b"mended"));

    // Refused: the lease is live.
    assert!(!world.resolve(request("k", fence, mended())).await.resolved);
    let line = new_line(&logs, &mut seen);
    assert_eq!(
        (&line["what"], &line["done"]),
        (&"resolve_claim".into(), &"no".into())
    );
    let as_it_is = format!(
        "state=in_flight attempt=1 fencing_token={fence} holder='holder a' \
         operation='POST /v1/charges' response=none taken_over=no"
    );
    assert_eq!(line["before"], as_it_is);
    assert_eq!(line["after"], as_it_is);
    assert_eq!(
        line["message"],
        "an operator tried to settle a claim, which was left as it is"
    );

    let completion = CompleteRequest {
        tenant: "acme".to_owned(),
        scope: "merchant 7".to_owned(),
        ..complete("k", "a", b"first")
    };
    world
        .clients
        .coordination
        .complete(completion)
        .await
        .expect("completed");
    let steps = [
        (
            mended(),
            "complete",
            "response_status=201 response_bytes=5",
            "response_status=201 response_bytes=6",
        ),
        (
            Resolution::EraseResponse(EraseResponse {}),
            "erase_response",
            "response_status=201 response_bytes=6",
            "response=none",
        ),
        (
            Resolution::Forget(Forget {}),
            "forget",
            "response=none",
            "state=absent",
        ),
    ];
    for (resolution, name, before, after) in steps {
        assert!(
            world
                .resolve(request("k", fence, resolution))
                .await
                .resolved
        );
        let line = new_line(&logs, &mut seen);
        assert_eq!(
            (&line["what"], &line["done"]),
            (&"resolve_claim".into(), &"yes".into())
        );
        assert_eq!(line["message"], "an operator settled a claim");
        assert_eq!(line["resolution"], name);
        let id = (
            &line["tenant"],
            &line["scope"],
            &line["key"],
            &line["fencing_token"],
        );
        assert_eq!(
            id,
            (
                &"acme".into(),
                &"merchant 7".into(),
                &"k".into(),
                &fence.into()
            )
        );
        let id = format!("fencing_token={fence}");
        let parts = [before, "state=completed", "operation='POST", &id];
        says(&line, "before", &parts);
        says(&line, "after", &[after]);
    }

    // There is nothing left to resolve.
    assert!(!world.resolve(request("k", fence, mended())).await.resolved);
    let line = new_line(&logs, &mut seen);
    assert_eq!(
        (&line["done"], &line["before"]),
        (&"no".into(), &"state=absent".into())
    );

    // Nothing happened, so there is nothing to write down.
    let bad = request("k", 0, mended());
    world
        .clients
        .admin
        .resolve_claim(bad)
        .await
        .expect_err("it is bad");
    assert_eq!(logs.of(AUDIT).len(), seen);
    world.ends_well().await;
}

/// Not as the code calls them, so that one word finds them in the contract, in the documents and here.
#[tokio::test]
async fn the_states_of_a_claim_are_written_in_the_contracts_words() {
    use AbandonEffect::{None, Unknown};
    use LeaseOverPolicy::{MarkUncertain, TakeOver};
    let mut world = World::start().await;
    let logs = Logs::capture();
    let mut seen = 0;
    for (state, policy, effect) in [
        ("uncertain", MarkUncertain, Unknown),
        ("lease_over", TakeOver, Unknown),
        ("abandoned", TakeOver, None),
    ] {
        let granted = world
            .claim(ClaimRequest {
                on_lease_over: policy.into(),
                ..claim(state, "a")
            })
            .await;
        let giving_up = abandon(state, "a", effect);
        let answer = world.clients.coordination.abandon(giving_up).await;
        answer.expect("given up");
        let forget = ResolveClaimRequest {
            reason: WHY.to_owned(),
            resolution: Some(Resolution::Forget(Forget {})),
            ..resolve_claim(state, granted.fencing_token)
        };
        assert!(world.resolve(forget).await.resolved);
        let line = new_line(&logs, &mut seen);
        says(&line, "before", &[&format!("state={state} ")]);
    }
    world.ends_well().await;
}

#[tokio::test]
async fn every_forced_release_leaves_one_line() {
    let mut world = World::start().await;
    let logs = Logs::capture();
    let mut seen = 0;
    let mut fences = vec![];
    for name in ["a", "b"] {
        let request = AcquireLockRequest {
            mode: LockMode::Shared.into(),
            ..acquire("r", name)
        };
        let answer = world
            .clients
            .coordination
            .acquire_lock(request)
            .await
            .expect("an answer");
        let Some(acquire_lock_response::Outcome::Acquired(acquired)) = answer.into_inner().outcome
        else {
            panic!("a free lock is acquired");
        };
        fences.push(acquired.fencing_token);
    }
    let (took, tried) = (
        "an operator took a lock away",
        "an operator tried to take a lock away, and there was no such holder",
    );
    for (fencing_token, released, holder, done, message) in [
        (fences[0], 1, "holder='holder a'", "yes", took),
        (fences[0], 0, "holders=none", "no", tried),
        (0, 1, "holder='holder b'", "yes", took),
        (0, 0, "holders=none", "no", tried),
    ] {
        let request = ForceReleaseLockRequest {
            fencing_token,
            reason: WHY.to_owned(),
            ..force_release("r")
        };
        let answer = world
            .clients
            .admin
            .force_release_lock(request)
            .await
            .expect("an answer");
        assert_eq!(answer.into_inner().released_holders, released);
        let line = new_line(&logs, &mut seen);
        assert_eq!(
            (&line["what"], &line["done"], &line["message"]),
            (&"force_release_lock".into(), &done.into(), &message.into())
        );
        let id = (&line["tenant"], &line["resource"], &line["fencing_token"]);
        assert_eq!(id, (&"default".into(), &"r".into(), &fencing_token.into()));
        says(&line, "before", &[holder]);
        if done == "yes" {
            says(&line, "before", &[" mode=shared held_for="]);
        }
        assert_eq!(line["after"], format!("released_holders={released}"));
    }
    let bad = ForceReleaseLockRequest {
        reason: String::new(),
        ..force_release("r")
    };
    world
        .clients
        .admin
        .force_release_lock(bad)
        .await
        .expect_err("it is bad");
    assert_eq!(logs.of(AUDIT).len(), seen);
    world.ends_well().await;
}

#[tokio::test]
async fn looking_and_listing_leave_no_line() {
    let mut world = World::start().await;
    world.claim(claim("k", "a")).await;
    let logs = Logs::capture();
    world.look("k").await.expect("it is known");
    let admin = &mut world.clients.admin;
    admin
        .list_claims(ListClaimsRequest::default())
        .await
        .expect("a page");
    admin
        .list_locks(ListLocksRequest::default())
        .await
        .expect("a page");
    admin
        .get_lock(crate::support::calls::get_lock("r"))
        .await
        .expect("an answer");
    assert!(logs.of(AUDIT).is_empty());
}

/// Replies of Redis are lost, so nobody but Redis knows that the change was made.
async fn is_written_down_when_its_caller_goes_away(goes_by_deadline: bool) {
    let redis = RedisServer::with(RedisOptions {
        tcp: true,
        ..RedisOptions::default()
    })
    .await;
    let proxy = Proxy::start(Upstream::Tcp(redis.tcp_addr()));
    let service = Service::at(&proxy.redis_url(), Settings::default()).await;
    service.is_ready().await;
    let mut clients = Clients::of(&service).await;
    let answer = clients.coordination.acquire_lock(acquire("r", "a")).await;
    answer.expect("acquired");
    let before = redis.dump().await;
    let logs = Logs::capture();
    proxy.set(Mode::SwallowReplies).await;

    let mut request = tonic::Request::new(ForceReleaseLockRequest {
        reason: WHY.to_owned(),
        ..force_release("r")
    });
    if goes_by_deadline {
        request.set_timeout(Duration::from_millis(300));
    }
    let call = tokio::spawn(async move { clients.admin.force_release_lock(request).await });
    eventually("the change to be made", async || {
        (redis.dump().await != before).then_some(())
    })
    .await;
    if goes_by_deadline {
        call.await.expect("no panic").expect_err("it does not know");
    } else {
        assert!(!call.is_finished(), "it waits for the reply");
        call.abort();
    }
    eventually("the line about it", async || {
        (!logs.of(AUDIT).is_empty()).then_some(())
    })
    .await;
    let line = new_line(&logs, &mut 0);
    assert_eq!(
        (&line["done"], &line["message"]),
        (
            &"unknown".into(),
            &"an operator tried to take a lock away, and nobody knows what came of it".into()
        )
    );
    assert_eq!(
        (&line["before"], &line["after"]),
        (&Value::Null, &Value::Null)
    );
}

#[tokio::test]
async fn a_change_whose_caller_went_away_is_written_down() {
    is_written_down_when_its_caller_goes_away(false).await;
}

#[tokio::test]
async fn a_change_whose_callers_deadline_passed_is_written_down() {
    is_written_down_when_its_caller_goes_away(true).await;
}

/// The program itself, told to log nothing.
#[tokio::test]
async fn no_level_silences_the_audit_of_the_program() {
    let redis = RedisServer::start().await;
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_claimlock"))
        .env_clear()
        .env("HOME", home.path())
        .args(["serve", "--redis-url", &redis.url()])
        .args(["--grpc-addr=127.0.0.1:0", "--http-addr=127.0.0.1:0"])
        .args(["--log-level=off", "--log-format=json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts");
    let mut first = String::new();
    let mut stdout = BufReader::new(program.stdout.take().expect("it is piped"));
    stdout
        .read_line(&mut first)
        .await
        .expect("it says where it listens");
    let address = first.split(' ').nth(4).expect("an address");
    let channel = channel(address.parse().expect("an address")).await;
    let mut admin = Admin::new(channel);
    let request = ForceReleaseLockRequest {
        reason: WHY.to_owned(),
        ..force_release("r")
    };
    admin.force_release_lock(request).await.expect("an answer");
    program.start_kill().expect("it can be killed");
    let output = program.wait_with_output().await.expect("its output");
    let text = String::from_utf8(output.stderr).expect("logs are UTF-8");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect();
    let [line] = lines.as_slice() else {
        panic!("one line, and nothing else: {text}");
    };
    assert_eq!(
        (&line["target"], &line["why"]),
        (&AUDIT.into(), &WHY.into())
    );
}
