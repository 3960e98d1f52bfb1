//! Who is told what by the scripts: nobody but the first in the queue, and whose place was taken.

use super::queue::{sharing, waiting};
use super::{Ask, FORCE, RELEASE, RENEW, UNDO, ask, keys, shared, still_lock_scripts};
use crate::support::channel::Channel;
use crate::support::scripts::Scripts;
use std::time::Duration;

/// The scripts, and what they tell.
pub struct Heard {
    pub scripts: Scripts,
    channel: Channel,
}

impl Heard {
    pub async fn start() -> Self {
        let scripts = still_lock_scripts().await;
        let channel = Channel::listen(&scripts.redis.server).await;
        Self { scripts, channel }
    }

    /// What was told since it was asked for last, without the name of the lock, which is the same in each.
    pub async fn told(&mut self) -> Vec<String> {
        let told = self.channel.told(self.scripts.redis.connection()).await;
        let in_words = told.into_iter().map(|told| {
            let message = String::from_utf8(told.message).expect("this test's nonces are text");
            let lock = format!(" {} ", keys("r")[1]);
            assert_eq!(message.matches(&lock).count(), 1, "{message}");
            format!("{}: {}", told.service, message.replace(&lock, " "))
        });
        in_words.collect()
    }

    #[track_caller]
    fn is(told: &[String], expected: &[&str]) {
        assert_eq!(told, expected);
    }

    async fn tells(&mut self, expected: &[&str]) {
        let told = self.told().await;
        Self::is(&told, expected);
    }
}

#[tokio::test]
async fn a_release_wakes_the_first_alone() {
    let mut heard = Heard::start().await;
    heard.scripts.granted(&ask("holder")).await;
    for (name, service) in [("a", "there"), ("b", "here"), ("c", "there")] {
        heard.scripts.queued(&waiting(name).at(service)).await;
    }
    heard.tells(&[]).await;
    heard.scripts.call(RENEW, &["holder", "", "", "0"]).await;
    heard.tells(&[]).await;
    heard.scripts.release("holder").await;
    heard.tells(&["there: turn a 0"]).await;
    // A repeat changes nothing.
    heard.scripts.release("holder").await;
    heard.tells(&[]).await;
}

#[tokio::test]
async fn a_release_under_hold_at_least_says_when_the_lock_is_free() {
    let mut heard = Heard::start().await;
    let held = Ask {
        hold_at_least: 50_000,
        ..ask("holder")
    };
    let grant = heard.scripts.granted(&held).await;
    heard.scripts.queued(&waiting("a")).await;
    let released = heard.scripts.call(RELEASE, &["holder"]).await;
    let wait = grant.now + 50_000_000 - released.now;
    heard.tells(&[&format!("here: turn a {wait}")]).await;
}

#[tokio::test]
async fn one_of_several_readers_that_releases_has_the_writer_wait_for_the_others() {
    let mut heard = Heard::start().await;
    let long = Ask {
        lease: 200_000,
        ..shared("long")
    };
    heard.scripts.granted(&shared("short")).await;
    let grant = heard.scripts.granted(&long).await;
    heard.scripts.queued(&waiting("writer")).await;
    let released = heard.scripts.call(RELEASE, &["short"]).await;
    let wait = grant.number(2) - released.now;
    heard.tells(&[&format!("here: turn writer {wait}")]).await;
    heard.scripts.release("long").await;
    heard.tells(&["here: turn writer 0"]).await;
}

#[tokio::test]
async fn a_late_release_that_ends_the_lock_delay_wakes_the_first() {
    let mut heard = Heard::start().await;
    let delayed = Ask {
        lock_delay: 50_000,
        ..ask("holder")
    };
    heard.scripts.left_behind(&delayed).await;
    heard.scripts.queued(&waiting("a")).await;
    heard.scripts.release("holder").await;
    heard.tells(&["here: turn a 0"]).await;
}

#[tokio::test]
async fn a_lock_that_is_forced_free_wakes_the_first() {
    let mut heard = Heard::start().await;
    let held = Ask {
        hold_at_least: 900_000,
        lock_delay: 50_000,
        ..shared("x")
    };
    let first = heard.scripts.granted(&held).await;
    let second = heard.scripts.granted(&shared("y")).await;
    heard.scripts.queued(&waiting("a").at("there")).await;
    let fence = first.number(1).to_string();
    let forced = heard.scripts.call(FORCE, &[&fence, "0", "0"]).await;
    let wait = second.number(2) - forced.now;
    heard.tells(&[&format!("there: turn a {wait}")]).await;
    // Nobody has this one any more.
    heard.scripts.call(FORCE, &[&fence, "0", "0"]).await;
    heard.tells(&[]).await;
    heard.scripts.call(FORCE, &["0", "0", "0"]).await;
    heard.tells(&["there: turn a 0"]).await;
}

#[tokio::test]
async fn a_grant_that_is_taken_back_wakes_the_next() {
    let mut heard = Heard::start().await;
    heard.scripts.granted(&ask("holder")).await;
    let first = heard.scripts.queued(&waiting("a")).await;
    heard.scripts.queued(&waiting("b").at("there")).await;
    heard.scripts.release("holder").await;
    heard.tells(&["here: turn a 0"]).await;
    let grant = heard.scripts.granted(&first).await;
    let wait = grant.number(2) - grant.now;
    heard.tells(&[&format!("there: turn b {wait}")]).await;
    heard.scripts.call(UNDO, &["a", &first.nonce]).await;
    heard.tells(&["there: turn b 0"]).await;
}

#[tokio::test]
async fn a_waiter_that_leaves_wakes_the_next_only_where_it_was_the_first() {
    let mut heard = Heard::start().await;
    let grant = heard.scripts.granted(&shared("holder")).await;
    let writer = heard.scripts.queued(&waiting("writer")).await;
    let mut readers = Vec::new();
    for name in ["r0", "r1", "r2", "r3", "r4"] {
        readers.push(heard.scripts.queued(&sharing(name).at("there")).await);
    }
    for (left, way) in [(4, "undone"), (3, "gave up")] {
        leaves(&mut heard.scripts, &readers[left], way).await;
        heard.tells(&[]).await;
    }
    leaves(&mut heard.scripts, &readers[2], "released").await;
    heard.tells(&["there: turn r2 0"]).await;
    leaves(&mut heard.scripts, &writer, "undone").await;
    heard.tells(&["there: turn r0 0"]).await;

    // Whoever is next for a writer is told when to try.
    let writer = heard.scripts.queued(&waiting("writer 2")).await;
    let next = heard.scripts.queued(&waiting("writer 3")).await;
    leaves(&mut heard.scripts, &readers[0], "undone").await;
    heard.tells(&["there: turn r1 0"]).await;
    leaves(&mut heard.scripts, &readers[1], "released").await;
    let told = heard.told().await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(
        told[0], "there: turn r1 0",
        "its call is told that it is spent"
    );
    let wait = wait_told(&told[1], "here: turn writer 2 ");
    assert!(wait <= grant.number(2) - grant.now);
    leaves(&mut heard.scripts, &writer, "gave up").await;
    let told = heard.told().await;
    assert_eq!(told.len(), 1, "{told:?}");
    wait_told(&told[0], "here: turn writer 3 ");
    leaves(&mut heard.scripts, &next, "undone").await;
    heard.tells(&[]).await;
    heard.scripts.assert_no_queue().await;
}

async fn leaves(scripts: &mut Scripts, waiter: &Ask, way: &str) {
    match way {
        "undone" => {
            let own = [waiter.token.as_str(), &waiter.nonce];
            scripts.call(UNDO, &own).await.answer()
        }
        "gave up" => scripts.answer(&waiter.at_last()).await,
        _ => scripts.release(&waiter.token).await,
    };
}

#[track_caller]
fn wait_told(told: &str, start: &str) -> i64 {
    let wait = told.strip_prefix(start).map(|wait| wait.parse().ok());
    wait.flatten()
        .filter(|wait| *wait > 0)
        .unwrap_or_else(|| panic!("{told:?}"))
}

#[tokio::test]
async fn each_reader_that_comes_in_wakes_the_next_until_a_writer_has_to_wait() {
    let mut heard = Heard::start().await;
    heard.scripts.granted(&ask("holder")).await;
    let first = heard.scripts.queued(&sharing("r1")).await;
    let second = heard.scripts.queued(&sharing("r2").at("there")).await;
    heard.scripts.queued(&waiting("writer")).await;
    heard.scripts.release("holder").await;
    heard.tells(&["here: turn r1 0"]).await;
    heard.scripts.granted(&first).await;
    heard.tells(&["there: turn r2 0"]).await;
    let grant = heard.scripts.granted(&second).await;
    let wait = grant.number(2) - grant.now;
    heard.tells(&[&format!("here: turn writer {wait}")]).await;
}

#[tokio::test]
async fn the_earlier_call_is_told_that_a_later_one_of_its_token_has_its_place() {
    let mut heard = Heard::start().await;
    heard.scripts.granted(&ask("holder")).await;
    let first = heard.scripts.queued(&waiting("a").at("there")).await;
    heard.scripts.queued(&first).await;
    heard.tells(&[]).await;
    let later = heard.scripts.queued(&first.comes_back().at("here")).await;
    heard.tells(&["there: taken a first call of a"]).await;
    // One that does not wait and is in turn has the lock, and with it the place.
    heard.scripts.release("holder").await;
    heard.tells(&["here: turn a 0"]).await;
    let at_once = Ask {
        nonce: "last call of a".to_owned(),
        ..later.at_once()
    };
    heard.scripts.granted(&at_once).await;
    heard.tells(&["here: taken a later call of a"]).await;
}

#[tokio::test]
async fn a_call_whose_token_is_released_while_it_waits_is_told_to_ask() {
    let mut heard = Heard::start().await;
    let grant = heard.scripts.granted(&ask("holder")).await;
    for (name, service) in [("a", "there"), ("b", "here"), ("c", "there")] {
        heard.scripts.queued(&waiting(name).at(service)).await;
    }
    heard.scripts.release("b").await;
    heard.tells(&["here: turn b 0"]).await;
    let released = heard.scripts.call(RELEASE, &["a"]).await;
    let wait = grant.number(2) - released.now;
    let next = format!("there: turn c {wait}");
    heard.tells(&["there: turn a 0", &next]).await;
}

#[tokio::test]
async fn whoever_drops_a_silent_first_wakes_the_next() {
    for dropped_by in ["its own service", "another service", "one that asks"] {
        let mut heard = Heard::start().await;
        heard.scripts.granted(&ask("holder")).await;
        heard.scripts.queued(&waiting("dead").at("dead")).await;
        let next = heard.scripts.queued(&waiting("a").at("there")).await;
        let third = heard.scripts.queued(&waiting("b")).await;
        heard.scripts.release("holder").await;
        heard.tells(&["dead: turn dead 0"]).await;
        heard.scripts.redis.pass(Duration::from_secs(2));
        heard.scripts.keep("there", &[&next]).await;
        heard.scripts.keep("here", &[&third]).await;
        heard.scripts.redis.pass(Duration::from_millis(1200));
        heard.tells(&[]).await;
        match dropped_by {
            "its own service" => {
                let kept = heard.scripts.keep("there", &[&next]).await;
                assert_eq!(kept.row()[1..3], ["a", "0"]);
            }
            "another service" => {
                heard.scripts.keep("here", &[&third]).await;
            }
            _ => assert_eq!(heard.scripts.answer(&ask("x")).await, "held"),
        }
        heard.tells(&["there: turn a 0"]).await;
    }
}

#[tokio::test]
async fn nobody_is_told_anything_where_nobody_waits() {
    let mut heard = Heard::start().await;
    heard.scripts.granted(&ask("a")).await;
    heard.scripts.release("a").await;
    heard.scripts.granted(&ask("b")).await;
    heard.scripts.call(UNDO, &["b", "first call of b"]).await;
    heard.scripts.granted(&ask("c")).await;
    heard.scripts.call(FORCE, &["0", "0", "0"]).await;
    heard.scripts.release("unseen").await;
    heard.scripts.keep("here", &[]).await;
    heard.tells(&[]).await;
}
