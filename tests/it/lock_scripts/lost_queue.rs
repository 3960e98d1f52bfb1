//! A queue that Redis lost, as a whole or in part.

use super::queue::{sharing, waiting};
use super::{Ask, GET, RENEW, ask, keys, still_lock_scripts};
use std::time::Duration;

#[tokio::test]
async fn a_queue_that_redis_lost_is_put_back_with_its_old_tickets() {
    let mut scripts = still_lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let mut waiters = Vec::new();
    for (number, service) in ["here", "there", "here", "there"].into_iter().enumerate() {
        let waiter = waiting(&format!("t{number}")).at(service);
        waiters.push(scripts.queued(&waiter).await);
    }
    scripts.redis.lose_everything().await;
    // It came when nothing of the queue was known.
    scripts.granted(&ask("x")).await;
    let kept = scripts.keep("there", &[&waiters[3], &waiters[1]]).await;
    assert_eq!(kept.row()[1], "t1");
    let kept = scripts.keep("here", &[&waiters[0], &waiters[2]]).await;
    assert_eq!(kept.row()[1], "t0");
    assert_eq!(scripts.in_queue().await, ["t0", "t1", "t2", "t3"]);
    for waiter in &waiters {
        assert_eq!(scripts.answer(&waiter.comes_back()).await, "queued");
    }
    assert_eq!(scripts.in_queue().await, ["t0", "t1", "t2", "t3"]);
    scripts.release("x").await;
    for waiter in &waiters {
        scripts.granted(&waiter.comes_back()).await;
        scripts.release(&waiter.token).await;
    }
    scripts.assert_no_queue().await;
}

#[tokio::test]
async fn a_newcomer_after_a_loss_stands_behind_those_who_are_put_back() {
    let mut scripts = still_lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let a = scripts.queued(&waiting("a")).await;
    // Its clock was ahead of what Redis's is now.
    let ahead = Ask {
        ticket: a.ticket + 1_000_000_000,
        ..waiting("ahead")
    };
    scripts.redis.lose_everything().await;
    scripts.granted(&ask("other holder")).await;
    scripts.keep("here", &[&ahead]).await;
    let newcomer = scripts.queued(&waiting("new")).await;
    assert!(newcomer.ticket > ahead.ticket);
    scripts.keep("here", &[&a]).await;
    assert_eq!(scripts.in_queue().await, ["a", "ahead", "new"]);
}

#[tokio::test]
async fn nobody_is_put_back_who_holds_the_lock_or_is_spent() {
    let mut scripts = still_lock_scripts().await;
    scripts.granted(&ask("before")).await;
    let names = ["acquired", "renewed", "ended", "released", "waits"];
    let mut waiters = Vec::new();
    for name in names {
        let short = Ask {
            lease: if name == "ended" { 1000 } else { 100_000 },
            ..sharing(name)
        };
        waiters.push(scripts.queued(&short).await);
    }
    scripts.release("before").await;
    for waiter in &waiters[..4] {
        scripts.granted(waiter).await;
    }
    scripts.call(RENEW, &["renewed", "", "", "0"]).await;
    scripts.release("released").await;
    scripts.redis.pass(Duration::from_millis(1100));

    let everybody: Vec<&Ask> = waiters.iter().collect();
    let kept = scripts.keep("here", &everybody).await;
    // Whoever renewed has heard of its grant by another call.
    assert_eq!(
        kept.row(),
        ["waiting", "waits", "0", "[2]", "[ended, released]"]
    );
    assert_eq!(scripts.in_queue().await, ["waits"]);
}

#[tokio::test]
async fn whichever_key_is_deleted_everybody_gets_the_lock_in_turn() {
    for (place, key) in keys("r").into_iter().enumerate() {
        for mode in ["EXCLUSIVE", "SHARED"] {
            for is_held in [true, false] {
                key_is_deleted(place, &key, mode, is_held).await;
            }
        }
    }
}

async fn key_is_deleted(place: usize, key: &str, mode: &'static str, is_held: bool) {
    let mut scripts = still_lock_scripts().await;
    let what = format!("{key} was deleted, waiters {mode}, held {is_held}");
    scripts.granted(&ask("holder")).await;
    let among = |token: &str| Ask {
        mode,
        max_holders: i64::from(mode == "SHARED"),
        ..waiting(token)
    };
    let mut waiters = Vec::new();
    for (name, service) in [("a", "there"), ("b", "here"), ("c", "there"), ("d", "here")] {
        waiters.push(scripts.queued(&among(name).at(service)).await);
    }
    if !is_held {
        scripts.release("holder").await;
    }
    scripts.redis.evict(key).await;
    let newcomer = among("x");
    let came_in_between = place != 5 && scripts.answer(&newcomer).await == "queued";
    let of = |service| waiters.iter().filter(move |w| w.service == service);
    let here: Vec<&Ask> = of("here").collect();
    let there: Vec<&Ask> = of("there").collect();
    scripts.keep("here", &here).await;
    let kept = scripts.keep("there", &there).await;
    assert_eq!(kept.row()[1], "a", "{what}");
    assert_eq!(scripts.redis.server.keys_without_expiry().await, [""; 0]);
    if is_held && scripts.release("holder").await != "released" {
        // Nobody knows the holder any more, and its lease has to end.
        scripts.redis.pass(Duration::from_secs(100));
        scripts.keep("here", &here).await;
        scripts.keep("there", &there).await;
    }
    for (number, waiter) in waiters.iter().enumerate() {
        for later in &waiters[number + 1..] {
            assert_eq!(scripts.answer(later).await, "queued", "{what}");
        }
        let answer = scripts.answer(waiter).await;
        assert_eq!(answer, "acquired", "{what}, turn {number}");
        assert_eq!(scripts.release(&waiter.token).await, "released", "{what}");
    }
    if came_in_between {
        let answer = scripts.answer(&newcomer).await;
        assert_eq!(answer, "acquired", "{what}");
    }
    scripts.assert_no_queue().await;
    assert_eq!(scripts.redis.server.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn whichever_key_is_deleted_dead_waiters_hold_nobody_up() {
    for key in &keys("r")[5..] {
        let mut scripts = still_lock_scripts().await;
        scripts.granted(&ask("holder")).await;
        for name in ["a", "b", "c"] {
            scripts.queued(&waiting(name)).await;
        }
        scripts.release("holder").await;
        scripts.redis.evict(key).await;
        let mut asked = 0;
        while scripts.answer(&ask("x")).await != "acquired" {
            assert_eq!(
                scripts.redis.server.keys_without_expiry().await,
                [""; 0],
                "{key}"
            );
            asked += 1;
            assert!(asked < 10, "{key}: held up for five seconds");
            scripts.redis.pass(Duration::from_millis(500));
        }
        for _ in 0..3 {
            scripts.redis.pass(Duration::from_secs(2));
            assert_eq!(scripts.answer(&ask("y")).await, "held", "{key}");
        }
        let told = scripts.call(GET, &["10"]).await;
        assert_eq!(told.number(1), 0, "{key}");
        scripts.assert_no_queue().await;
    }
}

#[tokio::test]
async fn a_refusal_after_the_record_of_spent_tokens_was_deleted_leaves_no_key_for_ever() {
    let mut scripts = still_lock_scripts().await;
    let short = Ask {
        lease: 1000,
        ..ask("holder")
    };
    scripts.granted(&short).await;
    let waiter = scripts.queued(&waiting("a")).await;
    scripts.redis.pass(Duration::from_millis(1100));
    scripts.redis.evict(&keys("r")[3]).await;
    let other_mode = Ask {
        mode: "SHARED",
        ..waiter.comes_back()
    };
    assert_eq!(scripts.answer(&other_mode).await, "other_mode");
    assert_eq!(scripts.redis.server.keys_without_expiry().await, [""; 0]);
}
