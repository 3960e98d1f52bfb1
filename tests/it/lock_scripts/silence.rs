//! Waiters whose services speak for them no more.

use super::queue::{sharing, waiting};
use super::{GET, ask, lock_scripts, still_lock_scripts};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

#[tokio::test]
async fn a_waiter_that_nobody_speaks_for_is_dropped_after_three_seconds() {
    let mut scripts = still_lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let dead = scripts.queued(&waiting("dead").at("there")).await;
    let alive = scripts.queued(&waiting("alive")).await;
    scripts.release("holder").await;
    scripts.redis.pass(seconds(2.0));
    let kept = scripts.keep("here", &[&alive]).await;
    assert_eq!(kept.row()[1], "", "the other one is the first");
    assert_eq!(scripts.answer(&alive).await, "queued");

    scripts.redis.pass(seconds(1.1));
    let told = scripts.call(GET, &["10"]).await;
    assert_eq!(told.number(1), 1, "one of them is spoken for");
    let kept = scripts.keep("here", &[&alive]).await;
    assert_eq!(kept.row(), ["waiting", "alive", "0", "[]", "[]"]);
    assert_eq!(scripts.in_queue().await, ["alive"]);
    scripts.granted(&alive).await;
    scripts.assert_no_queue().await;
    // Back at last, it has its ticket, and those who came since do not wait for that reason.
    scripts.release("alive").await;
    scripts.granted(&dead).await;
}

#[tokio::test]
async fn a_service_speaks_for_its_waiters_for_as_long_as_it_wants_to() {
    let mut scripts = still_lock_scripts().await;
    let long = super::Ask {
        lease: 1_000_000_000,
        ..ask("holder")
    };
    scripts.granted(&long).await;
    let a = scripts.queued(&waiting("a")).await;
    let b = scripts.queued(&sharing("b")).await;
    let c = scripts.queued(&waiting("c").at("there")).await;
    // Longer than any token is remembered.
    for _ in 0..400 {
        scripts.redis.pass(seconds(2.0));
        scripts.keep("here", &[&a, &b]).await;
        scripts.keep("there", &[&c]).await;
    }
    assert_eq!(scripts.in_queue().await, ["a", "b", "c"]);
    scripts.release("holder").await;
    for (waiter, token) in [(&a, "a"), (&b, "b"), (&c, "c")] {
        scripts.granted(waiter).await;
        scripts.release(token).await;
    }
    scripts.assert_no_queue().await;
}

/// What asks first after Redis was away.
const FIRST: [&str; 4] = [
    "a call that waits",
    "one that does not",
    "the other service",
    "nobody",
];

#[tokio::test]
async fn after_redis_was_away_all_have_time_to_be_heard_again_in_their_order() {
    for first in FIRST {
        let mut scripts = still_lock_scripts().await;
        scripts.granted(&ask("holder")).await;
        let a = scripts.queued(&waiting("a").at("there")).await;
        let b = scripts.queued(&waiting("b")).await;
        let c = scripts.queued(&waiting("c").at("there")).await;
        scripts.release("holder").await;
        scripts.redis.pass(seconds(8.0));
        scripts.redis_was_away = true;
        match first {
            "a call that waits" => {
                assert_eq!(scripts.answer(&waiting("x")).await, "queued", "{first}");
            }
            "one that does not" => assert_eq!(scripts.answer(&ask("x")).await, "held", "{first}"),
            "the other service" => {
                let kept = scripts.keep("here", &[&b]).await;
                assert_eq!(kept.row()[1], "", "{first}");
            }
            _ => {}
        }
        assert_eq!(scripts.answer(&b).await, "queued", "{first}");
        scripts.redis.pass(SECOND);
        let kept = scripts.keep("there", &[&a, &c]).await;
        assert_eq!(kept.row()[1..3], ["a", "0"], "{first}");
        let told = scripts.call(GET, &["10"]).await;
        let all = if first == "a call that waits" { 4 } else { 3 };
        assert_eq!(
            told.number(1),
            all,
            "{first}: those that wait, and nothing else"
        );
        // Long after it nothing reminds of it.
        scripts.redis.pass(SECOND);
        scripts.redis_was_away = false;
        scripts.keep("here", &[&b]).await;
        assert_eq!(scripts.call(GET, &["10"]).await.number(1), all, "{first}");
        for (waiter, token) in [(&a, "a"), (&b, "b"), (&c, "c")] {
            scripts.granted(waiter).await;
            scripts.release(token).await;
        }
        if first == "a call that waits" {
            scripts.granted(&waiting("x")).await;
        }
        scripts.assert_no_queue().await;
    }
}

#[tokio::test]
async fn those_who_are_silent_after_redis_was_away_hold_nobody_up_for_longer() {
    let mut scripts = still_lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let dead = scripts.queued(&waiting("dead").at("there")).await;
    let alive = scripts.queued(&waiting("alive")).await;
    scripts.release("holder").await;
    scripts.redis.pass(seconds(8.0));
    scripts.redis_was_away = true;
    for _ in 0..2 {
        scripts.keep("here", &[&alive]).await;
        assert_eq!(scripts.answer(&alive).await, "queued");
        scripts.redis.pass(seconds(0.7));
    }
    scripts.redis.pass(seconds(0.2));
    let kept = scripts.keep("here", &[&alive]).await;
    assert_eq!(kept.row()[1..3], ["alive", "0"]);
    scripts.granted(&alive).await;
    scripts.assert_no_queue().await;
    scripts.release("alive").await;
    scripts.granted(&dead).await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_has_those_whose_service_is_gone_hold_nobody_up_for_longer() {
    const HOUR: u32 = 3600;
    let mut scripts = lock_scripts().await;
    scripts.redis.stop_at(2 * HOUR);
    let long = super::Ask {
        lease: 1_000_000_000,
        ..ask("holder")
    };
    scripts.granted(&long).await;
    scripts.queued(&waiting("dead").at("there")).await;
    let alive = scripts.queued(&waiting("alive")).await;
    // Nobody was heard for a while, so that all have time to be, also until later than it is then.
    scripts.redis.pass(seconds(8.0));
    scripts.redis_was_away = true;
    scripts.keep("here", &[&alive]).await;
    scripts.redis_was_away = false;
    scripts.redis.stop_at(HOUR);
    scripts.release("holder").await;
    for _ in 0..4 {
        scripts.keep("here", &[&alive]).await;
        assert_eq!(scripts.answer(&alive).await, "queued");
        scripts.redis.pass(seconds(0.7));
    }
    scripts.redis.pass(seconds(0.3));
    let kept = scripts.keep("here", &[&alive]).await;
    assert_eq!(kept.row()[1..3], ["alive", "0"]);
    scripts.granted(&alive).await;
    scripts.assert_no_queue().await;
}

/// A job that skips its turn where the lock is held would skip it for nobody.
#[tokio::test]
async fn a_call_that_does_not_wait_gets_the_lock_as_soon_as_all_that_waited_are_gone() {
    for long in [0.0, 20.0, 300.0] {
        let mut scripts = still_lock_scripts().await;
        scripts.granted(&ask("holder")).await;
        for name in ["a", "b", "c"] {
            scripts.queued(&waiting(name)).await;
        }
        scripts.release("holder").await;
        scripts.redis.pass(seconds(2.5));
        let held = scripts.acquire(&ask("x")).await;
        assert_eq!((held.answer().as_str(), held.number(0)), ("held", 3));
        scripts.redis.pass(seconds(0.6 + long));
        scripts.granted(&ask("x")).await;
        scripts.assert_no_queue().await;
    }
}

#[tokio::test]
async fn three_thousand_silent_waiters_hold_nobody_up_either() {
    let mut scripts = still_lock_scripts().await;
    let grant = scripts.granted(&ask("holder")).await;
    scripts.crowd("there", 3_000).await;
    let alive = scripts.queued(&waiting("alive")).await;
    let again = scripts.acquire(&alive).await;
    assert_eq!((again.number(0), again.number(1)), (3_001, grant.number(2)));
    scripts.release("holder").await;
    for _ in 0..4 {
        scripts.redis.pass(seconds(0.8));
        scripts.keep("here", &[&alive]).await;
    }
    assert_eq!(scripts.in_queue().await, ["alive"]);
    let kept = scripts.keep("here", &[&alive]).await;
    assert_eq!(kept.row()[1..3], ["alive", "0"]);
    scripts.granted(&alive).await;
    scripts.assert_no_queue().await;
}

#[tokio::test]
async fn waiters_outlast_a_memory_that_is_shorter_than_the_silence_of_their_service() {
    let mut scripts = still_lock_scripts().await;
    scripts.memory = SECOND;
    let short = super::Ask {
        lease: 500,
        ..ask("holder")
    };
    scripts.granted(&short).await;
    let a = scripts.queued(&waiting("a")).await;
    let b = scripts.queued(&waiting("b").at("there")).await;
    scripts.redis.pass(seconds(8.0));
    scripts.redis_was_away = true;
    let kept = scripts.keep("there", &[&b]).await;
    assert_eq!(kept.row()[1], "", "the other one is the first");
    let kept = scripts.keep("here", &[&a]).await;
    assert_eq!(kept.row()[1..3], ["a", "0"]);
}
