//! The lease on a lock belongs to the stream that asked for it last.

use super::*;
use crate::support::stream::Heard;

const DETACH: &str = "detach_lock";
const END: &str = "end_lock";
const LOOK: &str = "look_at_lock";
/// Where each script tells of a loss.
const KEY: &str = "cl:l:{default/r}:e";

/// Calls of streams on the lock "r".
impl Scripts {
    async fn renew_by(&mut self, stream: &str, stamp: i64, token: &str) -> Reply {
        let stamp = stamp.to_string();
        let renewed = self.call(RENEW, &[token, "", stream, &stamp]).await;
        assert_eq!(renewed.answer(), "renewed", "{token} by {stream}");
        renewed
    }

    async fn detach(&mut self, stream: &str, stamp: i64, token: &str) -> Reply {
        let stamp = stamp.to_string();
        self.call(DETACH, &[token, stream, &stamp]).await
    }

    async fn end(&mut self, stream: &str, token: &str) -> String {
        self.call(END, &[token, stream]).await.answer()
    }

    async fn look_by(&mut self, stream: &str, token: &str) -> Reply {
        let before = self.redis.server.dump().await;
        let looked = self.call(LOOK, &[token, stream]).await;
        assert_eq!(self.redis.server.dump().await, before, "it only looks");
        looked
    }
}

fn lost(stream: u32, token: &str, reason: &str) -> String {
    format!("lost {stream} {KEY} {token} {reason}")
}

#[tokio::test]
async fn detach_lock_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    let unknown = scripts.detach("s.1", 1, "a").await;
    assert_eq!(unknown.answer(), "lost NOT_FOUND");
    let grant = scripts.granted(&ask("a")).await;
    // Whatever stream it is on, or none, and it is not renewed.
    for stream in ["s.1", "s.2"] {
        let left = scripts.detach(stream, 1, "a").await;
        assert_eq!(left.answer(), "renewed");
        let told = (left.number(0), left.number(1));
        assert_eq!(told, (grant.number(2), grant.number(1)), "{stream}");
        scripts.renew_by("s.1", 2, "a").await;
        scripts.call(RELEASE, &["a"]).await;
        let released = scripts.detach(stream, 3, "a").await;
        assert_eq!(released.answer(), "lost RELEASED");
        if stream == "s.1" {
            scripts.redis.pass(Duration::from_secs(700));
            let again = scripts.granted(&ask("a")).await;
            assert!(again.number(1) > grant.number(1));
            break;
        }
    }
    scripts.assert_late(DETACH, &["a", "s.1", "9"]).await;
    scripts.call(RELEASE, &["a"]).await;
    scripts.left_behind(&ask("b")).await;
    let over = scripts.detach("s.1", 1, "b").await;
    assert_eq!(over.answer(), "lost LEASE_OVER");
    scripts.granted(&ask("c")).await;
    let taken = scripts.detach("s.1", 1, "b").await;
    assert_eq!(taken.answer(), "lost TAKEN_OVER");
    scripts.call(FORCE, &["0", "0", "0"]).await;
    let forced = scripts.detach("s.1", 1, "c").await;
    assert_eq!(forced.answer(), "lost FORCED");
    scripts.finish(DETACH).await;
}

#[tokio::test]
async fn end_lock_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    assert_eq!(scripts.end("s.1", "a").await, "kept");
    scripts.granted(&ask("a")).await;
    assert_eq!(scripts.end("s.1", "a").await, "kept", "it is on no stream");
    scripts.renew_by("s.1", 1, "a").await;
    assert_eq!(scripts.end("s.2", "a").await, "kept");
    assert_eq!(scripts.end("s.11", "a").await, "kept");
    scripts.assert_late(END, &["a", "s.1"]).await;
    assert_eq!(scripts.end("s.1", "a").await, "ended");
    assert_eq!(scripts.end("s.1", "a").await, "kept", "a repeat");
    let over = scripts.call(RENEW, &["a", "", "s.1", "2"]).await;
    assert_eq!(over.answer(), "lost LEASE_OVER");
    scripts.granted(&ask("b")).await;
    let taken = scripts.call(RENEW, &["a", "", "s.1", "3"]).await;
    assert_eq!(taken.answer(), "lost TAKEN_OVER");

    // One that ended by itself has nothing left to end.
    scripts.call(RELEASE, &["b"]).await;
    scripts.granted(&ask("c")).await;
    scripts.renew_by("s.1", 1, "c").await;
    scripts.redis.pass(Duration::from_secs(101));
    assert_eq!(scripts.end("s.1", "c").await, "kept");
    scripts.finish(END).await;
}

#[tokio::test]
async fn look_at_lock_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    assert_eq!(scripts.look_by("s.1", "a").await.answer(), "lost NOT_FOUND");
    scripts.granted(&ask("a")).await;
    assert_eq!(scripts.look_by("s.1", "a").await.answer(), "elsewhere");
    scripts.renew_by("s.1", 1, "a").await;
    assert_eq!(scripts.look_by("s.2", "a").await.answer(), "elsewhere");
    // A renewal beside the stream leaves it there, for longer.
    scripts.redis.pass(Duration::from_secs(60));
    let renewed = scripts.call(RENEW, &["a", "500000", "", "0"]).await;
    scripts.redis.pass(Duration::from_secs(400));
    let kept = scripts.look_by("s.1", "a").await;
    assert_eq!(kept.answer(), "kept");
    assert_eq!(kept.number(0), renewed.number(0));
    scripts.assert_late(LOOK, &["a", "s.1"]).await;
    scripts.call(RELEASE, &["a"]).await;
    assert_eq!(scripts.look_by("s.1", "a").await.answer(), "lost RELEASED");

    scripts.granted(&ask("b")).await;
    scripts.renew_by("s.1", 1, "b").await;
    scripts.redis.pass(Duration::from_secs(101));
    let over = scripts.look_by("s.1", "b").await;
    assert_eq!(over.answer(), "lost LEASE_OVER");
    scripts.granted(&ask("c")).await;
    let taken = scripts.look_by("s.1", "b").await;
    assert_eq!(taken.answer(), "lost TAKEN_OVER");
    scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(scripts.look_by("s.1", "c").await.answer(), "lost FORCED");
    scripts.finish(LOOK).await;
}

#[tokio::test]
async fn a_lease_belongs_to_the_stream_that_asked_last_not_to_the_one_that_was_heard_last() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("a")).await;
    scripts.renew_by("s.1", 10, "a").await;
    scripts.renew_by("t.1", 20, "a").await;
    // A renewal that lay about, and one at the same moment: both extend the lease, neither takes it away.
    let late = scripts.renew_by("s.1", 15, "a").await;
    assert_eq!(late.number(0), late.now + 100_000 * MILLISECOND);
    scripts.renew_by("s.1", 20, "a").await;
    // A call that is no stream's leaves it where it is.
    scripts.renew_by("", 0, "a").await;
    assert_eq!(scripts.end("s.1", "a").await, "kept");
    scripts.renew_by("s.1", 21, "a").await;
    assert_eq!(scripts.end("t.1", "a").await, "kept");
    assert_eq!(scripts.end("s.1", "a").await, "ended");
}

#[tokio::test]
async fn a_lease_belongs_to_the_stream_that_asked_since_the_clock_was_set_back() {
    let mut scripts = lock_scripts().await;
    scripts.redis.stop_at(7200);
    let then = scripts.granted(&ask("a")).await.now;
    scripts.renew_by("s.1", then, "a").await;
    scripts.redis.stop_at(3600);
    let now = then - 3600 * 1000 * MILLISECOND;
    // A call that is no stream's still leaves it where it is.
    scripts.renew_by("", 0, "a").await;
    scripts.renew_by("t.1", now, "a").await;
    assert_eq!(scripts.end("s.1", "a").await, "kept");
    scripts.renew_by("s.1", now - 1, "a").await;
    assert_eq!(scripts.end("s.1", "a").await, "kept", "it asked before");
    assert_eq!(scripts.end("t.1", "a").await, "ended");

    scripts.redis.stop_at(7200);
    scripts.granted(&ask("b")).await;
    scripts.renew_by("s.1", then, "b").await;
    scripts.redis.stop_at(3600);
    scripts.detach("s.1", now, "b").await;
    assert_eq!(scripts.end("s.1", "b").await, "kept", "it was taken off");
}

#[tokio::test]
async fn a_detached_lock_leaves_no_key_without_an_expiry_where_a_hand_deleted_some() {
    for key in ["e", "l"] {
        let mut scripts = lock_scripts().await;
        scripts.granted(&ask("a")).await;
        scripts.renew_by("s.1", 1, "a").await;
        scripts
            .redis
            .evict(&format!("cl:l:{{default/r}}:{key}"))
            .await;
        let left = scripts.detach("s.1", 2, "a").await;
        assert_eq!(left.answer(), "renewed");
        assert_eq!(scripts.redis.server.keys_without_expiry().await, [""; 0]);
    }
}

#[tokio::test]
async fn a_lease_that_was_detached_is_on_its_stream_no_more_whichever_is_heard_first() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("a")).await;
    scripts.renew_by("s.1", 1, "a").await;
    scripts.detach("s.1", 2, "a").await;
    assert_eq!(scripts.end("s.1", "a").await, "kept");

    // A renewal that was asked before the detachment, and comes after it.
    scripts.detach("s.1", 12, "a").await;
    scripts.renew_by("s.1", 11, "a").await;
    assert_eq!(scripts.end("s.1", "a").await, "kept");
    // A detachment that comes after the renewal that was asked later.
    scripts.renew_by("s.1", 14, "a").await;
    scripts.detach("s.1", 13, "a").await;
    // Another's lease is not to be taken off.
    scripts.detach("t.1", 15, "a").await;
    assert_eq!(scripts.end("s.1", "a").await, "ended");
}

#[tokio::test]
async fn an_ended_lease_leaves_its_lock_delay_and_hold_at_least_behind() {
    let mut scripts = lock_scripts().await;
    let slow = Ask {
        lock_delay: 30_000,
        ..ask("a")
    };
    scripts.granted(&slow).await;
    scripts.renew_by("s.1", 1, "a").await;
    let ended = scripts.call(END, &["a", "s.1"]).await;
    let held = scripts.acquire(&ask("b")).await;
    assert_eq!(held.answer(), "held");
    assert_eq!(held.number(1), ended.now + 30_000 * MILLISECOND);
    assert_eq!(held.holders(2), []);
    scripts.redis.pass(Duration::from_secs(30));
    scripts.granted(&ask("b")).await;
    scripts.call(RELEASE, &["b"]).await;

    let long = Ask {
        hold_at_least: 60_000,
        ..ask("c")
    };
    let grant = scripts.granted(&long).await;
    scripts.renew_by("s.1", 1, "c").await;
    assert_eq!(scripts.end("s.1", "c").await, "ended");
    let held = scripts.acquire(&ask("d")).await;
    assert_eq!(held.answer(), "held");
    assert_eq!(held.number(1), grant.now + 60_000 * MILLISECOND);
    scripts.redis.pass(Duration::from_secs(60));
    scripts.granted(&ask("d")).await;
}

#[tokio::test]
async fn whoever_waits_is_woken_when_a_lease_ends_with_its_stream() {
    let mut scripts = lock_scripts().await;
    let mut heard = Heard::by("waiting", &scripts).await;
    scripts.granted(&ask("a")).await;
    scripts.renew_by("s.1", 1, "a").await;
    let waiter = Ask {
        how: "join",
        service: "waiting",
        ..ask("b")
    };
    assert_eq!(scripts.acquire(&waiter).await.answer(), "queued");
    assert_eq!(heard.so_far().await, [""; 0]);
    assert_eq!(scripts.end("s.1", "a").await, "ended");
    assert_eq!(heard.so_far().await, [format!("turn {KEY} b 0")]);
    scripts.granted(&waiter).await;
}

#[tokio::test]
async fn the_stream_of_a_lease_is_told_once_when_it_is_taken_over_or_taken_away() {
    let mut scripts = lock_scripts().await;
    let mut heard = Heard::by("s", &scripts).await;
    scripts.left_behind(&ask("on-no-stream")).await;
    scripts.granted(&ask("a")).await;
    assert_eq!(heard.so_far().await, [""; 0]);

    scripts.renew_by("s.7", 1, "a").await;
    scripts.redis.pass(Duration::from_secs(101));
    assert_eq!(heard.so_far().await, [""; 0], "nobody took it yet");
    scripts.granted(&ask("b")).await;
    assert_eq!(heard.so_far().await, [lost(7, "a", "TAKEN_OVER")]);

    scripts.renew_by("s.8", 1, "b").await;
    scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(heard.so_far().await, [lost(8, "b", "FORCED")]);

    // What the holder itself does, and what becomes of a lease that is on the stream no more.
    scripts.granted(&ask("c")).await;
    scripts.renew_by("s.7", 1, "c").await;
    scripts.call(RELEASE, &["c"]).await;
    scripts.granted(&ask("d")).await;
    scripts.renew_by("s.7", 1, "d").await;
    scripts.detach("s.7", 2, "d").await;
    scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(heard.so_far().await, [""; 0]);
}

#[tokio::test]
async fn a_stream_is_told_of_a_lease_that_ended_while_others_share_the_lock() {
    let mut scripts = lock_scripts().await;
    let mut heard = Heard::by("s", &scripts).await;
    let long = Ask {
        lease: 900_000,
        ..shared("long")
    };
    let slow = |token: &str| Ask {
        lock_delay: 50_000,
        ..shared(token)
    };
    scripts.granted(&long).await;
    scripts.granted(&shared("a")).await;
    scripts.granted(&slow("b")).await;
    for token in ["long", "a", "b"] {
        scripts.renew_by("s.1", 1, token).await;
    }
    scripts.redis.pass(Duration::from_secs(101));
    // The lease of the one is over for good, that of the other counts on; nobody was granted the lock.
    assert_eq!(scripts.acquire(&ask("x")).await.answer(), "held");
    assert_eq!(heard.so_far().await, [lost(1, "a", "LEASE_OVER")]);
    scripts.granted(&shared("y")).await;
    assert_eq!(heard.so_far().await, [lost(1, "b", "TAKEN_OVER")]);
    scripts.redis.pass(Duration::from_secs(51));
    scripts.granted(&shared("z")).await;
    assert_eq!(heard.so_far().await, [""; 0], "each is told once");
}

#[tokio::test]
async fn a_holder_that_an_older_service_wrote_down_is_renewed_by_a_stream() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("a")).await;
    let forget_owner = "local h = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'a')) \
         h[13], h[14] = nil, nil \
         redis.call('HSET', KEYS[1], 'a', cmsgpack.pack(h))";
    redis::cmd("EVAL")
        .arg(forget_owner)
        .arg(1)
        .arg(&keys("r")[0])
        .exec_async(&mut scripts.redis.connection())
        .await
        .expect("the record is rewritten");
    scripts.detach("s.1", 1, "a").await;
    scripts.renew_by("", 0, "a").await;
    scripts.renew_by("s.1", 2, "a").await;
    assert_eq!(scripts.end("s.1", "a").await, "ended");
}
