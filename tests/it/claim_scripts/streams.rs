//! The lease on a claim belongs to the stream that asked for it last.

use super::*;
use crate::support::stream::Heard;
use std::time::Duration;

async fn renewed_by(scripts: &mut Scripts, stream: &str, stamp: i64, token: &str) {
    let renewal = renewal_by(stream, stamp, token);
    let reply = scripts.run("renew_claim", "k", &renewal).await;
    assert_eq!(reply.kind, "renewed", "{reply:?}");
}

async fn detached(scripts: &mut Scripts, stream: &str, stamp: i64, token: &str) -> Reply {
    let arguments = arguments([token, stream, &stamp.to_string()]);
    scripts.run("detach_claim", "k", &arguments).await
}

fn ending(stream: &str, token: &str) -> Vec<String> {
    arguments([token, stream, &LARGEST_RETENTION.to_string()])
}

async fn ended(scripts: &mut Scripts, stream: &str, token: &str) -> String {
    let reply = scripts.run("end_claim", "k", &ending(stream, token)).await;
    reply.kind
}

/// Kind, and the reason of a loss.
async fn looked_at(scripts: &mut Scripts, stream: &str, token: &str) -> Vec<String> {
    let before = scripts.redis.server.dump().await;
    let arguments = arguments([token, stream]);
    let reply = scripts.run("look_at_claim", "k", &arguments).await;
    assert_eq!(
        scripts.redis.server.dump().await,
        before,
        "it is only looked at"
    );
    reply.row().into_iter().map(str::to_owned).collect()
}

#[tokio::test]
async fn look_at_claim_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    let not_found = looked_at(&mut scripts, "s.1", "a").await;
    assert_eq!(not_found, ["lost", "NOT_FOUND"]);
    granted(&mut scripts, "k", Claim::by("a")).await;
    assert_eq!(looked_at(&mut scripts, "s.1", "a").await, ["elsewhere"]);
    renewed_by(&mut scripts, "s.1", 1, "a").await;
    assert_eq!(looked_at(&mut scripts, "s.2", "a").await, ["elsewhere"]);
    // A renewal beside the stream leaves it there, also of a lease that was over for long.
    scripts.redis.pass(Duration::from_secs(600));
    assert_eq!(looked_at(&mut scripts, "s.1", "a").await[0], "kept");
    let beside = scripts.run("renew_claim", "k", &renewal("a")).await;
    let lease_end = number(&beside, 0).to_string();
    let kept = looked_at(&mut scripts, "s.1", "a").await;
    assert_eq!(kept, ["kept", &lease_end]);
    let late = arguments(["a", "s.1"]);
    let late = scripts.run_late("look_at_claim", "k", &late).await;
    assert_eq!(late.row(), ["late"]);

    scripts.redis.pass(Duration::from_secs(61));
    let fence = granted(&mut scripts, "k", Claim::by("b")).await;
    renewed_by(&mut scripts, "s.1", 1, "b").await;
    scripts.redis.pass(Duration::from_secs(61));
    scripts
        .run("resolve_claim", "k", &resolution(fence, "complete"))
        .await;
    // Whoever completed it, these two did not.
    for (token, reason) in [("a", "TAKEN_OVER"), ("b", "FORCED")] {
        let lost = looked_at(&mut scripts, "s.1", token).await;
        assert_eq!(lost, ["lost", reason], "{token}");
    }
    scripts
        .run("resolve_claim", "k", &resolution(fence, "forget"))
        .await;
    for (token, gives_up) in [("c", true), ("d", false)] {
        granted(&mut scripts, "k", Claim::by(token)).await;
        renewed_by(&mut scripts, "s.1", 1, token).await;
        if gives_up {
            let nothing_done = abandonment(token, "NONE");
            scripts.run("abandon", "k", &nothing_done).await;
        } else {
            scripts
                .run("complete", "k", &completion(token, "done"))
                .await;
        }
        let lost = looked_at(&mut scripts, "s.1", token).await;
        let reason = if gives_up { "RELEASED" } else { "COMPLETED" };
        assert_eq!(lost, ["lost", reason]);
    }
    scripts.assert_header_was_seen("look_at_claim");
}

#[tokio::test]
async fn detach_claim_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    let unknown = detached(&mut scripts, "s.1", 1, "a").await;
    assert_eq!(unknown.row(), ["lost", "NOT_FOUND"]);
    let grant = scripts.run("claim", "k", &Claim::by("a").arguments()).await;
    let (fence, lease_end) = (number(&grant, 1).to_string(), number(&grant, 3).to_string());
    let left = detached(&mut scripts, "s.1", 1, "a").await;
    assert_eq!(left.row(), ["renewed", &lease_end, &fence]);
    let before = scripts.redis.server.dump().await;
    let late = arguments(["a", "s.1", "9"]);
    let late = scripts.run_late("detach_claim", "k", &late).await;
    assert_eq!(late.row(), ["late"]);
    assert_eq!(scripts.redis.server.dump().await, before);

    scripts.redis.pass(Duration::from_secs(61));
    let over = detached(&mut scripts, "s.1", 2, "a").await;
    assert_eq!(
        over.row(),
        ["renewed", &lease_end, &fence],
        "nobody took it"
    );
    let fence = granted(&mut scripts, "k", Claim::by("b")).await;
    let taken = detached(&mut scripts, "s.1", 3, "a").await;
    assert_eq!(taken.row(), ["lost", "TAKEN_OVER"]);
    let unknown_effect = abandonment("b", "UNKNOWN");
    scripts.run("abandon", "k", &unknown_effect).await;
    let given_up = detached(&mut scripts, "s.1", 3, "b").await;
    assert_eq!(given_up.row(), ["lost", "RELEASED"]);
    let forget = resolution(fence, "forget");
    scripts.run("resolve_claim", "k", &forget).await;
    let forced = detached(&mut scripts, "s.1", 3, "b").await;
    assert_eq!(forced.row(), ["lost", "FORCED"]);
    granted(&mut scripts, "k", Claim::by("c")).await;
    scripts.run("complete", "k", &completion("c", "done")).await;
    let completed = detached(&mut scripts, "s.1", 3, "c").await;
    assert_eq!(completed.row(), ["lost", "COMPLETED"]);
    scripts.assert_header_was_seen("detach_claim");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn end_claim_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    assert_eq!(ended(&mut scripts, "s.1", "a").await, "kept");
    granted(&mut scripts, "k", Claim::by("a")).await;
    assert_eq!(ended(&mut scripts, "s.1", "a").await, "kept");
    renewed_by(&mut scripts, "s.1", 1, "a").await;
    for (stream, token) in [("s.2", "a"), ("s.1", "b")] {
        assert_eq!(ended(&mut scripts, stream, token).await, "kept");
    }
    let before = scripts.redis.server.dump().await;
    let late = ending("s.1", "a");
    let late = scripts.run_late("end_claim", "k", &late).await;
    assert_eq!(late.row(), ["late"]);
    assert_eq!(scripts.redis.server.dump().await, before);
    assert_eq!(ended(&mut scripts, "s.1", "a").await, "ended");
    assert_eq!(ended(&mut scripts, "s.1", "a").await, "kept", "a repeat");

    // As after any lease that is over: who asks first has it.
    renewed_by(&mut scripts, "s.1", 2, "a").await;
    assert_eq!(ended(&mut scripts, "s.1", "a").await, "ended");
    granted(&mut scripts, "k", Claim::by("b")).await;
    renewed_by(&mut scripts, "s.1", 1, "b").await;
    scripts.redis.pass(Duration::from_secs(61));
    assert_eq!(ended(&mut scripts, "s.1", "b").await, "ended", "or over");
    renewed_by(&mut scripts, "s.1", 2, "b").await;
    scripts.run("complete", "k", &completion("b", "done")).await;
    assert_eq!(ended(&mut scripts, "s.1", "b").await, "kept");
    scripts.assert_header_was_seen("end_claim");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn what_becomes_of_an_ended_lease_its_policy_says() {
    for (policy, outcome) in [(1, "claimed"), (2, "uncertain")] {
        let mut scripts = claim_scripts().await;
        let claim = Claim {
            policy,
            ..Claim::by("a")
        };
        granted(&mut scripts, "k", claim).await;
        renewed_by(&mut scripts, "s.1", 1, "a").await;
        let end = scripts.run("end_claim", "k", &ending("s.1", "a")).await;
        let seen = scripts.run("get_claim", "k", &[]).await;
        let told: Vec<&str> = seen.fields[0]
            .trim_matches(['[', ']'])
            .split(", ")
            .collect();
        let retention = if policy == 1 { HOUR } else { LARGEST_RETENTION };
        assert_eq!(told[9], end.now.to_string(), "the lease ends now");
        assert_eq!(told[10], (end.now + retention * 1000).to_string());
        let next = scripts.run("claim", "k", &Claim::by("b").arguments()).await;
        assert_eq!(next.kind, outcome);
    }
}

#[tokio::test]
async fn a_claim_belongs_to_the_stream_that_asked_last_until_that_takes_it_off() {
    let mut scripts = claim_scripts().await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    renewed_by(&mut scripts, "s.1", 10, "a").await;
    renewed_by(&mut scripts, "t.1", 20, "a").await;
    renewed_by(&mut scripts, "s.1", 15, "a").await;
    renewed_by(&mut scripts, "", 0, "a").await;
    // What is not this stream's cannot be taken off it.
    detached(&mut scripts, "s.1", 21, "a").await;
    assert_eq!(ended(&mut scripts, "s.1", "a").await, "kept");
    renewed_by(&mut scripts, "t.1", 19, "a").await;
    detached(&mut scripts, "t.1", 30, "a").await;
    // Asked before, heard after.
    renewed_by(&mut scripts, "t.1", 29, "a").await;
    assert_eq!(ended(&mut scripts, "t.1", "a").await, "kept");
    renewed_by(&mut scripts, "t.1", 31, "a").await;
    assert_eq!(ended(&mut scripts, "t.1", "a").await, "ended");
}

#[tokio::test]
async fn the_stream_of_a_claim_is_told_when_it_is_taken_over_or_resolved() {
    let mut scripts = claim_scripts().await;
    let mut heard = Heard::by("s", &scripts).await;
    let lost =
        |stream: u32, token: &str, reason: &str| [format!("lost {stream} {{k}} {token} {reason}")];
    let brief = |token| Claim {
        retention: 5000,
        ..Claim::by(token)
    };
    granted(&mut scripts, "k", brief("a")).await;
    renewed_by(&mut scripts, "s.7", 1, "a").await;
    scripts.redis.pass(Duration::from_secs(60));
    granted(&mut scripts, "k", brief("b")).await;
    assert_eq!(heard.so_far().await, lost(7, "a", "TAKEN_OVER"));

    renewed_by(&mut scripts, "s.8", 1, "b").await;
    // Past its retention the key is absent, but its holder is to be told.
    scripts.redis.pass(Duration::from_secs(66));
    let fence = granted(&mut scripts, "k", Claim::by("c")).await;
    assert_eq!(heard.so_far().await, lost(8, "b", "TAKEN_OVER"));

    renewed_by(&mut scripts, "s.9", 1, "c").await;
    scripts.redis.pass(Duration::from_secs(61));
    let resolution = resolution(fence, "complete");
    scripts.run("resolve_claim", "k", &resolution).await;
    assert_eq!(heard.so_far().await, lost(9, "c", "FORCED"));
}

#[tokio::test]
async fn nobody_is_told_of_what_the_holder_of_a_claim_does_itself() {
    let mut scripts = claim_scripts().await;
    let mut heard = Heard::by("s", &scripts).await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    renewed_by(&mut scripts, "s.1", 1, "a").await;
    let nothing_done = abandonment("a", "NONE");
    scripts.run("abandon", "k", &nothing_done).await;
    granted(&mut scripts, "k", Claim::by("b")).await;
    renewed_by(&mut scripts, "s.1", 1, "b").await;
    let unknown = abandonment("b", "UNKNOWN");
    scripts.run("abandon", "k", &unknown).await;
    let fence = granted(&mut scripts, "k", Claim::by("c")).await;
    renewed_by(&mut scripts, "s.1", 1, "c").await;
    scripts.run("complete", "k", &completion("c", "done")).await;
    // An operator who takes back what was completed takes no lease away.
    let forget = resolution(fence, "forget");
    scripts.run("resolve_claim", "k", &forget).await;
    granted(&mut scripts, "k", Claim::by("d")).await;
    renewed_by(&mut scripts, "s.1", 1, "d").await;
    detached(&mut scripts, "s.1", 2, "d").await;
    scripts.redis.pass(Duration::from_secs(61));
    granted(&mut scripts, "k", Claim::by("e")).await;
    assert_eq!(heard.so_far().await, [""; 0]);
}

#[tokio::test]
async fn a_record_that_an_older_service_wrote_down_is_renewed_by_a_stream() {
    let mut scripts = claim_scripts().await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    let forget_owner = "local r = cmsgpack.unpack(redis.call('GET', KEYS[1])) \
         for i = 32, #r do r[i] = nil end \
         redis.call('SET', KEYS[1], cmsgpack.pack(r), 'KEEPTTL')";
    redis::cmd("EVAL")
        .arg(forget_owner)
        .arg(1)
        .arg("{k}")
        .exec_async(&mut scripts.redis.connection())
        .await
        .expect("the record is rewritten");
    detached(&mut scripts, "s.1", 1, "a").await;
    renewed_by(&mut scripts, "", 0, "a").await;
    renewed_by(&mut scripts, "s.1", 2, "a").await;
    assert_eq!(ended(&mut scripts, "s.1", "a").await, "ended");
}
