//! `watch_claim.lua`, and what the other scripts tell the services where somebody waits for a claim in flight to end.

use super::*;
use crate::support::channel::Channel;
use std::time::Duration;

const SERVICE: &str = "service1";
const ANOTHER: &str = "service2";

/// For how long a service is told.
const TOLD_FOR: Duration = Duration::from_secs(8);

/// What services were told since this was asked last, as `service: words`.
async fn told(channel: &mut Channel, scripts: &Scripts) -> Vec<String> {
    let told = channel.told(scripts.redis.connection()).await;
    let words = told.into_iter().map(|told| {
        let words = String::from_utf8(told.message).expect("text");
        format!("{}: {words}", told.service)
    });
    words.collect()
}

async fn waits(scripts: &mut Scripts, name: &str, token: &'static str, service: &'static str) {
    let claim = Claim {
        service,
        ..Claim::by(token)
    };
    let reply = scripts.run("claim", name, &claim.arguments()).await;
    assert_eq!(reply.kind, "in_flight");
}

async fn is_watched(scripts: &mut Scripts, name: &str, service: &str) {
    let reply = scripts
        .run("watch_claim", name, &arguments([service]))
        .await;
    assert_eq!(reply.kind, "in_flight");
}

#[tokio::test]
async fn watch_claim_returns_all_that_its_header_documents() {
    let mut scripts = claim_scripts().await;
    let service = arguments([SERVICE]);
    let never = scripts.run("watch_claim", "k", &service).await;
    assert_eq!(never.row(), ["ended"]);
    assert!(scripts.redis.strings().await.is_empty());

    let granted = scripts.run("claim", "k", &Claim::by("a").arguments()).await;
    let before = scripts.redis.server.dump().await;
    let late = scripts.run_late("watch_claim", "k", &service).await;
    assert_eq!(late.row(), ["late"]);
    assert_eq!(scripts.redis.server.dump().await, before);
    let watched = scripts.run("watch_claim", "k", &service).await;
    assert_eq!(watched.row(), ["in_flight", granted.row()[4]]);

    scripts.redis.pass(Duration::from_secs(60));
    let over = scripts.run("watch_claim", "k", &service).await;
    assert_eq!(over.row(), ["ended"]);
    scripts.run("complete", "k", &completion("a", "done")).await;
    let completed = scripts.run("watch_claim", "k", &service).await;
    assert_eq!(completed.row(), ["ended"]);

    scripts.assert_header_was_seen("watch_claim");
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn whatever_ends_a_claim_in_flight_tells_each_service_where_somebody_waits_and_does_so_once()
{
    let mut scripts = claim_scripts().await;
    let mut channel = Channel::listen(&scripts.redis.server).await;
    let undo = arguments(["a", "nonce"]);
    let with_its_stream = arguments(["a", "s.1", &LARGEST_RETENTION.to_string()]);
    let ends: [(&str, &str, Vec<String>); 5] = [
        ("completed", "complete", completion("a", "done")),
        ("abandoned", "abandon", abandonment("a", "NONE")),
        ("given-up", "abandon", abandonment("a", "UNKNOWN")),
        ("undone", "undo_claim", undo),
        ("ended-with-its-stream", "end_claim", with_its_stream),
    ];
    for (name, script, arguments) in &ends {
        granted(&mut scripts, name, Claim::by("a")).await;
        if *script == "end_claim" {
            let renewal = renewal_by("s.1", 1, "a");
            scripts.run("renew_claim", name, &renewal).await;
        }
        waits(&mut scripts, name, "b", SERVICE).await;
        waits(&mut scripts, name, "c", SERVICE).await;
        is_watched(&mut scripts, name, ANOTHER).await;
        assert_eq!(
            told(&mut channel, &scripts).await,
            [""; 0],
            "{name}: nothing yet"
        );
        for _ in 0..2 {
            scripts.run(script, name, arguments).await;
        }
        let of_both = [SERVICE, ANOTHER].map(|service| format!("{service}: ended {{{name}}}"));
        assert_eq!(told(&mut channel, &scripts).await, of_both, "{name}");
    }
    for how in ["complete", "forget"] {
        let fence = granted(&mut scripts, how, Claim::by("a")).await;
        scripts.redis.pass(Duration::from_secs(59));
        waits(&mut scripts, how, "b", SERVICE).await;
        scripts.redis.pass(Duration::from_secs(1));
        for _ in 0..2 {
            let resolution = resolution(fence, how);
            scripts.run("resolve_claim", how, &resolution).await;
        }
        let of_its_end = format!("{SERVICE}: ended {{{how}}}");
        assert_eq!(told(&mut channel, &scripts).await, [of_its_end]);
    }
    assert!(scripts.redis.server.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn who_waits_is_known_through_takeovers_and_their_undo() {
    let mut scripts = claim_scripts().await;
    let mut channel = Channel::listen(&scripts.redis.server).await;
    let of_its_end = [format!("{SERVICE}: ended {{k}}")];
    granted(&mut scripts, "k", Claim::by("a")).await;
    scripts.redis.pass(Duration::from_secs(59));
    waits(&mut scripts, "k", "b", SERVICE).await;
    scripts.redis.pass(Duration::from_secs(1));
    granted(&mut scripts, "k", Claim::by("c")).await;
    scripts.run("abandon", "k", &abandonment("c", "NONE")).await;
    assert_eq!(told(&mut channel, &scripts).await, of_its_end);

    let taken_over = Claim {
        nonce: "undone",
        ..Claim::by("d")
    };
    granted(&mut scripts, "k", taken_over).await;
    waits(&mut scripts, "k", "b", SERVICE).await;
    let undo = arguments(["d", "undone"]);
    assert_eq!(
        scripts.run("undo_claim", "k", &undo).await.row(),
        ["undone"]
    );
    assert_eq!(told(&mut channel, &scripts).await, of_its_end);
    // It is told, not brought back with the record.
    granted(&mut scripts, "k", Claim::by("e")).await;
    scripts.run("abandon", "k", &abandonment("e", "NONE")).await;
    assert_eq!(told(&mut channel, &scripts).await, [""; 0]);
}

#[tokio::test]
async fn a_token_that_is_given_up_while_it_waits_is_told_to_where_it_may_wait() {
    let mut scripts = claim_scripts().await;
    let mut channel = Channel::listen(&scripts.redis.server).await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    waits(&mut scripts, "k", "b", SERVICE).await;
    scripts.run("abandon", "k", &abandonment("b", "NONE")).await;
    assert_eq!(
        told(&mut channel, &scripts).await,
        [format!("{SERVICE}: spent {{k}} b")]
    );
    // Somebody else may wait there.
    scripts.run("complete", "k", &completion("a", "done")).await;
    assert_eq!(
        told(&mut channel, &scripts).await,
        [format!("{SERVICE}: ended {{k}}")]
    );
}

#[tokio::test]
async fn those_that_wait_write_the_record_only_now_and_then() {
    let mut scripts = claim_scripts().await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    waits(&mut scripts, "k", "b", SERVICE).await;
    let before = scripts.redis.server.dump().await;
    for _ in 0..10 {
        waits(&mut scripts, "k", "b", SERVICE).await;
        is_watched(&mut scripts, "k", SERVICE).await;
    }
    assert_eq!(scripts.redis.server.dump().await, before);
    scripts.redis.pass(TOLD_FOR / 2);
    is_watched(&mut scripts, "k", SERVICE).await;
    assert_ne!(scripts.redis.server.dump().await, before);
}

#[tokio::test]
async fn a_service_that_says_no_more_that_somebody_waits_is_forgotten() {
    let mut scripts = claim_scripts().await;
    let mut channel = Channel::listen(&scripts.redis.server).await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    waits(&mut scripts, "k", "b", SERVICE).await;
    scripts.redis.pass(TOLD_FOR);
    waits(&mut scripts, "k", "c", ANOTHER).await;
    scripts.run("complete", "k", &completion("a", "done")).await;
    assert_eq!(
        told(&mut channel, &scripts).await,
        [format!("{ANOTHER}: ended {{k}}")]
    );
}

#[tokio::test]
async fn a_completed_claim_that_somebody_waited_for_takes_no_more_room() {
    let mut scripts = claim_scripts().await;
    for name in ["k", "waited-for"] {
        granted(&mut scripts, name, Claim::by("a")).await;
    }
    waits(&mut scripts, "waited-for", "b", SERVICE).await;
    for name in ["k", "waited-for"] {
        scripts
            .run("complete", name, &completion("a", "done"))
            .await;
    }
    let strings = scripts.redis.strings().await;
    assert_eq!(strings["{k}"].len(), strings["{waited-for}"].len());
}

/// As many fields as records had before there were services in them.
const FIELDS_BEFORE: usize = 31;

#[tokio::test]
async fn a_record_from_before_anybody_could_wait_is_waited_for_and_completed() {
    let mut scripts = claim_scripts().await;
    let mut channel = Channel::listen(&scripts.redis.server).await;
    granted(&mut scripts, "k", Claim::by("a")).await;
    let cut = format!(
        "local r = cmsgpack.unpack(redis.call('GET', KEYS[1])) \
         local cut = {{}} \
         for i = 1, {FIELDS_BEFORE} do cut[i] = r[i] end \
         redis.call('SET', KEYS[1], cmsgpack.pack(cut), 'KEEPTTL')"
    );
    let mut eval = redis::cmd("EVAL");
    eval.arg(cut).arg(1).arg("{k}");
    let done = eval.exec_async(&mut scripts.redis.connection()).await;
    done.expect("it is cut");

    waits(&mut scripts, "k", "b", SERVICE).await;
    let renewed = scripts.run("renew_claim", "k", &renewal("a")).await;
    assert_eq!(renewed.kind, "renewed");
    scripts.run("complete", "k", &completion("a", "done")).await;
    assert_eq!(
        told(&mut channel, &scripts).await,
        [format!("{SERVICE}: ended {{k}}")]
    );
    let replay = scripts.run("claim", "k", &Claim::by("b").arguments()).await;
    assert_eq!(replay.row()[..3], ["replay", "1", "done"]);
}
