//! Those that wait in turn: who is the next, and what a token keeps.

use super::{Ask, FORCE, GET, RELEASE, RENEW, UNDO, ask, keys, lock_scripts, shared};
use crate::support::scripts::{Reply, Scripts};

pub const KEEP: &str = "keep_waiting";

/// Waits in turn for an exclusive lock.
pub(super) fn waiting(token: &str) -> Ask {
    Ask {
        how: "join",
        ..ask(token)
    }
}

/// The same for a shared one.
pub(super) fn sharing(token: &str) -> Ask {
    Ask {
        how: "join",
        ..shared(token)
    }
}

impl Ask {
    pub fn at(self, service: &'static str) -> Self {
        Self { service, ..self }
    }

    /// Its last attempt, at the end of its wait.
    pub fn at_last(&self) -> Self {
        Self {
            how: "last",
            ticket: 0,
            ..self.clone()
        }
    }

    /// The same without waiting.
    pub fn at_once(&self) -> Self {
        Self {
            how: "no",
            ticket: 0,
            ..self.clone()
        }
    }

    /// As one that comes back with its token, and knows nothing of its place.
    pub fn comes_back(&self) -> Self {
        Self {
            ticket: 0,
            ..self.repeated()
        }
    }

    pub fn kept(&self) -> [String; 5] {
        [
            self.token.clone(),
            self.nonce.clone(),
            self.ticket.to_string(),
            self.mode.to_owned(),
            self.max_holders.to_string(),
        ]
    }
}

impl Scripts {
    /// Has one stand in the queue; returns it with its ticket.
    pub(super) async fn queued(&mut self, ask: &Ask) -> Ask {
        let reply = self.acquire(ask).await;
        assert_eq!(reply.answer(), "queued", "{ask:?}");
        Ask {
            ticket: reply.number(4),
            ..ask.clone()
        }
    }

    /// A service speaks for some of its waiters.
    pub(super) async fn keep(&mut self, service: &str, waiters: &[&Ask]) -> Reply {
        let away = u8::from(self.redis_was_away);
        let mut own = vec![service.to_owned(), away.to_string()];
        own.extend(waiters.iter().flat_map(|waiter| waiter.kept()));
        let reply = self.run(KEEP, "r", &own).await;
        assert_eq!(reply.answer(), "waiting");
        reply
    }

    pub(super) async fn answer(&mut self, ask: &Ask) -> String {
        self.acquire(ask).await.answer()
    }

    pub async fn release(&mut self, token: &str) -> String {
        self.call(RELEASE, &[token]).await.answer()
    }

    /// The tokens in the queue, in turn.
    pub async fn in_queue(&mut self) -> Vec<String> {
        redis::cmd("ZRANGE")
            .arg(&keys("r")[5])
            .arg(0)
            .arg(-1)
            .query_async(&mut self.redis.connection())
            .await
            .expect("the tokens by their tickets")
    }

    /// Nothing is left of the queue.
    pub async fn assert_no_queue(&mut self) {
        let left: Vec<String> = self.keys_of_the_queue().await;
        assert_eq!(left, [""; 0]);
        assert_eq!(self.redis.server.keys_without_expiry().await, [""; 0]);
    }

    pub async fn keys_of_the_queue(&mut self) -> Vec<String> {
        let all: Vec<String> = redis::cmd("KEYS")
            .arg("cl:l:*")
            .query_async(&mut self.redis.connection())
            .await
            .expect("the keys");
        let of_the_queue = |key: &String| keys("r")[5..].contains(key);
        all.into_iter().filter(of_the_queue).collect()
    }
}

#[tokio::test]
async fn keep_waiting_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    let nobody = scripts.keep("here", &[]).await;
    assert_eq!(nobody.row(), ["waiting", "", "0", "[]", "[]"]);
    scripts.assert_no_queue().await;

    let grant = scripts.granted(&ask("holder")).await;
    let first = scripts.queued(&waiting("a")).await;
    let second = scripts.queued(&waiting("b")).await;
    let there = scripts.queued(&waiting("c").at("there")).await;
    let kept = scripts.keep("here", &[&second, &first]).await;
    let wait = (grant.number(2) - kept.now).to_string();
    assert_eq!(kept.row(), ["waiting", "a", &wait, "[]", "[]"]);
    let kept = scripts.keep("there", &[&there]).await;
    assert_eq!(kept.row(), ["waiting", "", "0", "[]", "[]"]);

    // The same token waits in a later call, and the one of another was released before.
    scripts.queued(&first.comes_back()).await;
    assert_eq!(scripts.release("b").await, "lost NOT_FOUND");
    let own = first.comes_back();
    let own = Ask {
        ticket: first.ticket,
        ..own
    };
    let kept = scripts.keep("here", &[&second, &first, &own]).await;
    let wait = (grant.number(2) - kept.now).to_string();
    assert_eq!(kept.row(), ["waiting", "a", &wait, "[2]", "[b]"]);

    assert_eq!(scripts.release("holder").await, "released");
    let kept = scripts.keep("here", &[&own]).await;
    assert_eq!(kept.row(), ["waiting", "a", "0", "[]", "[]"]);
    let late = own.kept();
    let late: Vec<&str> = ["here"]
        .into_iter()
        .chain(late.iter().map(String::as_str))
        .collect();
    scripts.assert_late(KEEP, &late).await;
    scripts.finish(KEEP).await;
}

#[tokio::test]
async fn whoever_waits_is_served_in_the_order_of_asking_whatever_service_was_asked() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let mut waiters = Vec::new();
    for number in 0..20 {
        let service = ["here", "there", "elsewhere"][number % 3];
        let waiter = waiting(&format!("t{number}")).at(service);
        let reply = scripts.acquire(&waiter).await;
        assert_eq!(reply.number(0), i64::try_from(number).expect("few") + 1);
        assert_eq!(reply.number(5), i64::from(number == 0), "who is the first");
        let ticket = reply.number(4);
        waiters.push(Ask { ticket, ..waiter });
    }
    let mut before = "holder".to_owned();
    for turn in 0..20 {
        for other in &waiters[turn..] {
            assert_eq!(scripts.answer(other).await, "queued", "{before} holds it");
        }
        assert_eq!(scripts.release(&before).await, "released");
        for other in &waiters[turn + 1..] {
            assert_eq!(scripts.answer(other).await, "queued", "turn {turn}");
        }
        let grant = scripts.granted(&waiters[turn]).await;
        assert_eq!(grant.number(0), 0, "a new grant");
        before.clone_from(&waiters[turn].token);
    }
    scripts.assert_no_queue().await;
}

#[tokio::test]
async fn a_call_that_does_not_wait_goes_past_nobody_who_does() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let first = scripts.queued(&waiting("a")).await;
    scripts.queued(&sharing("b")).await;
    scripts.release("holder").await;

    for barging in [ask("x"), shared("x")] {
        let before = scripts.redis.server.dump().await;
        let held = scripts.acquire(&barging).await;
        assert_eq!(held.answer(), "held");
        assert_eq!(held.number(0), 2, "so many wait");
        assert_eq!(held.number(1), held.now + 1_000_000, "nobody knows when");
        assert_eq!(held.holders(2), []);
        assert_eq!(scripts.redis.server.dump().await, before);
    }
    let told = scripts.call(GET, &["10"]).await;
    assert_eq!(told.answer(), "lock", "it is not to be had");
    assert_eq!((told.number(1), told.number(2)), (2, 0));
    // Whoever is to wait comes last, though the lock is free.
    assert_eq!(scripts.answer(&sharing("x")).await, "queued");
    assert_eq!(scripts.in_queue().await, ["a", "b", "x"]);

    scripts.granted(&first).await;
    let held = scripts.acquire(&ask("y")).await;
    assert_eq!((held.answer().as_str(), held.number(0)), ("held", 2));
}

#[tokio::test]
async fn a_holder_renews_and_asks_again_whoever_waits() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    scripts.queued(&waiting("a")).await;
    let again = scripts.granted(&ask("holder").repeated()).await;
    assert_eq!(again.number(0), 1, "already held");
    let again = scripts.granted(&waiting("holder").repeated()).await;
    assert_eq!(again.number(0), 1, "already held");
    assert_eq!(
        scripts.call(RENEW, &["holder", "", "", "0"]).await.answer(),
        "renewed"
    );
    assert_eq!(scripts.in_queue().await, ["a"]);
}

#[tokio::test]
async fn readers_behind_a_waiting_writer_wait_and_readers_in_a_row_come_in_together() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&shared("holder")).await;
    let writer = scripts.queued(&waiting("writer")).await;
    let mut readers = Vec::new();
    for name in ["r1", "r2", "r3"] {
        readers.push(scripts.queued(&sharing(name)).await);
    }
    let last_writer = scripts.queued(&waiting("last writer")).await;
    let late_reader = scripts.queued(&sharing("late")).await;
    let everybody = [
        &writer,
        &readers[0],
        &readers[1],
        &readers[2],
        &last_writer,
        &late_reader,
    ];
    for each in everybody {
        assert_eq!(scripts.answer(each).await, "queued");
    }

    scripts.release("holder").await;
    scripts.granted(&writer).await;
    for reader in &readers {
        assert_eq!(scripts.answer(reader).await, "queued");
    }
    scripts.release("writer").await;
    assert_eq!(scripts.answer(&readers[1]).await, "queued", "not its turn");
    for reader in &readers {
        scripts.granted(reader).await;
    }
    assert_eq!(scripts.answer(&late_reader).await, "queued");
    for reader in ["r1", "r2", "r3"] {
        assert_eq!(scripts.answer(&last_writer).await, "queued");
        scripts.release(reader).await;
    }
    scripts.granted(&last_writer).await;
    scripts.release("last writer").await;
    scripts.granted(&late_reader).await;
    scripts.assert_no_queue().await;
}

#[tokio::test]
async fn a_semaphore_is_waited_for_in_turn_and_the_first_may_want_the_fewest() {
    let mut scripts = lock_scripts().await;
    let among = |token, max_holders| Ask {
        max_holders,
        ..sharing(token)
    };
    for token in ["h1", "h2", "h3"] {
        scripts.granted(&among(token, 3)).await;
    }
    let narrow = scripts.queued(&among("narrow", 2)).await;
    let wide = scripts.queued(&among("wide", 3)).await;
    scripts.release("h1").await;
    // One place is free, which the second could have; the first wants to be one of two.
    assert_eq!(scripts.answer(&narrow).await, "queued");
    assert_eq!(scripts.answer(&wide).await, "queued");
    scripts.release("h2").await;
    scripts.granted(&narrow).await;
    assert_eq!(scripts.answer(&wide).await, "queued", "among two at most");
    scripts.release("narrow").await;
    scripts.granted(&wide).await;
    scripts.assert_no_queue().await;
}

#[tokio::test]
async fn a_token_that_asks_again_keeps_its_place_and_its_mode() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let first = scripts.queued(&waiting("a")).await;
    let second = scripts.queued(&waiting("b")).await;
    let elsewhere = scripts.queued(&first.comes_back().at("there")).await;
    assert_eq!(elsewhere.ticket, first.ticket);
    assert_eq!(scripts.in_queue().await, ["a", "b"]);
    let told = scripts.call(GET, &["10"]).await;
    assert_eq!(told.number(1), 2, "each once");

    for how in ["no", "join", "last"] {
        let before = scripts.redis.server.dump().await;
        let other_mode = Ask {
            how,
            ..shared("b").repeated()
        };
        assert_eq!(scripts.answer(&other_mode).await, "other_mode");
        assert_eq!(scripts.redis.server.dump().await, before);
    }
    scripts.release("holder").await;
    scripts.granted(&elsewhere).await;
    scripts.release("a").await;
    scripts.granted(&second).await;
}

#[tokio::test]
async fn a_call_whose_token_waits_in_a_later_one_gets_nothing_and_disturbs_nobody() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let earlier = scripts.queued(&waiting("a")).await;
    let later = scripts.queued(&earlier.comes_back().at("there")).await;
    for lock_is_free in [false, true] {
        if lock_is_free {
            scripts.release("holder").await;
        }
        let before = scripts.redis.server.dump().await;
        for attempt in [earlier.clone(), earlier.at_last()] {
            let held = scripts.acquire(&attempt).await;
            assert_eq!(held.answer(), "held", "{attempt:?}");
            assert_eq!(held.number(0), 1);
        }
        let undone = scripts.call(UNDO, &["a", &earlier.nonce]).await;
        assert_eq!(undone.answer(), "kept");
        assert_eq!(scripts.redis.server.dump().await, before);
    }
    let grant = scripts.granted(&later).await;
    assert_eq!(grant.number(0), 0, "a new one, that its call can take back");
    let kept = scripts.keep("here", &[&earlier]).await;
    assert_eq!(kept.row(), ["waiting", "", "0", "[1]", "[]"]);
    let undone = scripts.call(UNDO, &["a", &later.nonce]).await;
    assert_eq!(undone.answer(), "undone");
}

#[tokio::test]
async fn a_call_that_does_not_wait_leaves_the_place_of_its_token_alone() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let first = scripts.queued(&waiting("a")).await;
    let second = scripts.queued(&waiting("b")).await;
    for token in [&first, &second] {
        let before = scripts.redis.server.dump().await;
        assert_eq!(
            scripts.answer(&token.at_once().repeated()).await,
            "held",
            "held by another"
        );
        assert_eq!(scripts.redis.server.dump().await, before);
    }
    scripts.release("holder").await;
    assert_eq!(
        scripts.answer(&second.at_once()).await,
        "held",
        "not in turn"
    );
    // Where it is in turn it has the lock, and the place is used up.
    scripts.granted(&first.at_once().repeated()).await;
    assert_eq!(scripts.in_queue().await, ["b"]);
    let kept = scripts.keep("here", &[&first, &second]).await;
    assert_eq!((kept.row()[1], kept.row()[3]), ("b", "[1]"));
}

#[tokio::test]
async fn a_wait_that_ends_leaves_the_queue() {
    let mut scripts = lock_scripts().await;
    let grant = scripts.granted(&ask("holder")).await;
    let first = scripts.queued(&waiting("a")).await;
    let second = scripts.queued(&waiting("b")).await;
    let held = scripts.acquire(&first.at_last()).await;
    assert_eq!(held.answer(), "held");
    assert_eq!((held.number(0), held.number(1)), (1, grant.number(2)));
    assert_eq!(scripts.in_queue().await, ["b"]);
    scripts.queued(&first.comes_back()).await;
    assert_eq!(scripts.in_queue().await, ["b", "a"], "it comes last now");

    scripts.release("holder").await;
    assert_eq!(
        scripts.answer(&first.comes_back().at_last()).await,
        "held",
        "it is not in turn"
    );
    scripts.granted(&second.at_last()).await;
    scripts.assert_no_queue().await;
}

#[tokio::test]
async fn a_release_of_a_token_that_waits_ends_its_wait() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let mut waiters = Vec::new();
    for name in ["a", "b", "c"] {
        waiters.push(scripts.queued(&waiting(name)).await);
    }
    assert_eq!(scripts.release("b").await, "lost NOT_FOUND");
    assert_eq!(scripts.in_queue().await, ["a", "c"]);
    assert_eq!(scripts.answer(&waiters[1]).await, "lost RELEASED");
    let comes_back = waiters[1].comes_back();
    assert_eq!(scripts.answer(&comes_back).await, "lost RELEASED");
    assert_eq!(scripts.release("a").await, "lost NOT_FOUND");
    scripts.release("holder").await;
    scripts.granted(&waiters[2]).await;
    scripts.assert_no_queue().await;
}

#[tokio::test]
async fn whoever_waits_is_not_forced_out_with_the_holders() {
    let mut scripts = lock_scripts().await;
    let held = Ask {
        hold_at_least: 50_000,
        lock_delay: 50_000,
        ..ask("holder")
    };
    scripts.granted(&held).await;
    let waiter = scripts.queued(&waiting("a")).await;
    scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(scripts.answer(&ask("x")).await, "held");
    scripts.granted(&waiter).await;
    scripts.assert_no_queue().await;
}

#[tokio::test]
async fn every_way_out_of_the_queue_leaves_nothing_behind() {
    let mut scripts = lock_scripts().await;
    for way in ["undone", "given up", "released", "acquired", "had at once"] {
        scripts.granted(&ask("holder").named(way, "holder")).await;
        let waiter = scripts.queued(&waiting("a").named(way, "a")).await;
        if way == "acquired" || way == "had at once" {
            scripts.release(&format!("holder {way}")).await;
        }
        let ended = match way {
            "undone" => {
                let own = [waiter.token.as_str(), &waiter.nonce];
                scripts.call(UNDO, &own).await.answer()
            }
            "given up" => scripts.answer(&waiter.at_last()).await,
            "released" => scripts.release(&waiter.token).await,
            "acquired" => scripts.answer(&waiter).await,
            _ => scripts.answer(&waiter.at_once()).await,
        };
        assert_ne!(ended, "kept");
        scripts.assert_no_queue().await;
        scripts.call(FORCE, &["0", "0", "0"]).await;
    }
}

impl Ask {
    /// Under a token of its own.
    fn named(self, way: &str, name: &str) -> Self {
        let token = format!("{name} {way}");
        Self {
            nonce: format!("first call of {token}"),
            token,
            ..self
        }
    }
}

#[tokio::test]
async fn a_service_that_lost_the_reply_to_a_grant_gets_it_again_as_new() {
    let mut scripts = lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let waiter = scripts.queued(&waiting("a")).await;
    scripts.release("holder").await;
    let grant = scripts.granted(&waiter).await;
    // Its service speaks for it still, and tries for it again.
    let kept = scripts.keep("here", &[&waiter]).await;
    assert_eq!(kept.row(), ["waiting", "", "0", "[]", "[]"]);
    scripts.assert_no_queue().await;
    let again = scripts.granted(&waiter).await;
    assert_eq!((again.number(0), again.number(1)), (0, grant.number(1)));
}
