//! Each answer that the header of a lock script documents, from the script itself.

mod cost;
mod lost_queue;
mod queue;
mod silence;
mod streams;
mod told;
mod undo;
mod walk;

use crate::support::scripts::{Common, Reply, Scripts};
use std::time::Duration;

const ACQUIRE: &str = "acquire_lock";
const RENEW: &str = "renew_lock";
const RELEASE: &str = "release_lock";
const UNDO: &str = "undo_lock";
const GET: &str = "get_lock";
const FORCE: &str = "force_release_lock";

const MILLISECOND: i64 = 1000;

/// What an acquisition asks for; durations in milliseconds.
#[derive(Clone, Debug)]
struct Ask {
    token: String,
    nonce: String,
    mode: &'static str,
    lease: i64,
    max_holders: i64,
    hold_at_least: i64,
    lock_delay: i64,
    /// What it does where it cannot have the lock at once.
    how: &'static str,
    /// The service that it asked.
    service: &'static str,
    /// The place that it had; 0 for none.
    ticket: i64,
}

/// An exclusive lock for 100 s.
fn ask(token: &str) -> Ask {
    Ask {
        token: token.to_owned(),
        nonce: format!("first call of {token}"),
        mode: "EXCLUSIVE",
        lease: 100_000,
        max_holders: 0,
        hold_at_least: 0,
        lock_delay: 0,
        how: "no",
        service: "here",
        ticket: 0,
    }
}

fn shared(token: &str) -> Ask {
    Ask {
        mode: "SHARED",
        ..ask(token)
    }
}

impl Ask {
    fn arguments(&self) -> Vec<String> {
        let number = |number: i64| number.to_string();
        vec![
            self.token.clone(),
            self.nonce.clone(),
            format!("holder {}", self.token),
            number(self.lease),
            self.mode.to_owned(),
            number(self.max_holders),
            number(self.hold_at_least),
            number(self.lock_delay),
            self.how.to_owned(),
            self.service.to_owned(),
            number(self.ticket),
        ]
    }

    /// The same call made again by its caller, under a nonce of its own.
    fn repeated(&self) -> Self {
        Self {
            nonce: format!("later call of {}", self.token),
            ..self.clone()
        }
    }
}

fn keys(resource: &str) -> Vec<String> {
    let parts = ["h", "e", "m", "s", "l", "q", "w", "d"];
    parts
        .map(|part| format!("cl:l:{{default/{resource}}}:{part}"))
        .to_vec()
}

async fn lock_scripts() -> Scripts {
    Scripts::start("lock", keys).await
}

/// On a clock that only the test moves.
async fn still_lock_scripts() -> Scripts {
    let mut scripts = lock_scripts().await;
    scripts.redis.stand_still();
    scripts
}

fn texts(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|text| (*text).to_owned()).collect()
}

/// Calls on the lock "r".
impl Scripts {
    async fn call(&mut self, script: &str, own: &[&str]) -> Reply {
        self.run(script, "r", &texts(own)).await
    }

    fn acquisition(&self, ask: &Ask) -> Vec<String> {
        let mut own = ask.arguments();
        own.push(u8::from(self.redis_was_away).to_string());
        own
    }

    async fn acquire(&mut self, ask: &Ask) -> Reply {
        let own = self.acquisition(ask);
        self.run(ACQUIRE, "r", &own).await
    }

    /// From a service that has seen this fencing token.
    async fn acquire_having_seen(&mut self, fence: i64, ask: &Ask) -> Reply {
        let common = Common {
            highest_seen: fence,
            ..Common::default()
        };
        let own = self.acquisition(ask);
        self.run_with(common, ACQUIRE, "r", &own).await
    }

    async fn granted(&mut self, ask: &Ask) -> Reply {
        let reply = self.acquire(ask).await;
        assert_eq!(reply.answer(), "acquired", "{ask:?}");
        reply
    }

    /// Grants a lease, and lets it end.
    async fn left_behind(&mut self, ask: &Ask) -> Reply {
        let short = Ask {
            lease: 1000,
            ..ask.clone()
        };
        let reply = self.granted(&short).await;
        self.redis.pass(Duration::from_secs(1));
        reply
    }

    /// Asserts that a script does nothing once its time has passed.
    async fn assert_late(&mut self, script: &str, own: &[&str]) {
        let before = self.redis.server.dump().await;
        let reply = self.run_late(script, "r", &texts(own)).await;
        assert_eq!(reply.answer(), "late", "{script}");
        assert_eq!(self.redis.server.dump().await, before, "{script}");
    }

    /// What holds after the test of a script.
    async fn finish(self, script: &str) {
        self.assert_header_was_seen(script);
        assert_eq!(self.redis.server.keys_without_expiry().await, [""; 0]);
    }
}

impl Reply {
    /// The kind, with the reason of a loss.
    fn answer(&self) -> String {
        match self.kind.as_str() {
            "lost" => self.row().join(" "),
            kind => kind.to_owned(),
        }
    }

    #[track_caller]
    fn number(&self, place: usize) -> i64 {
        self.fields[place].parse().expect("a number")
    }

    /// The holders in the list at a place: name, fencing token, mode, since when and until when. In order of their
    /// fencing tokens.
    #[track_caller]
    fn holders(&self, place: usize) -> Vec<Holder> {
        let list = self.fields[place]
            .strip_prefix('[')
            .and_then(|list| list.strip_suffix(']'))
            .expect("a list");
        let values: Vec<&str> = list.split(", ").filter(|value| !value.is_empty()).collect();
        let (each, rest) = values.as_chunks::<5>();
        assert_eq!(rest, [""; 0], "five values for each");
        let number = |text: &str| text.parse().expect("a number");
        let mut holders: Vec<Holder> = each
            .iter()
            .map(|[name, fence, mode, since, until]| {
                let (name, mode) = ((*name).to_owned(), (*mode).to_owned());
                (name, number(fence), mode, number(since), number(until))
            })
            .collect();
        holders.sort_by_key(|(_, fence, ..)| *fence);
        holders
    }
}

type Holder = (String, i64, String, i64, i64);

/// A holder as it is told of after its grant.
fn holder(ask: &Ask, grant: &Reply) -> Holder {
    let name = format!("holder {}", ask.token);
    let (fence, lease_end) = (grant.number(1), grant.number(2));
    (name, fence, ask.mode.to_owned(), grant.now, lease_end)
}

#[tokio::test]
async fn acquire_lock_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    let first = Ask {
        lock_delay: 7,
        ..ask("a")
    };
    let grant = scripts.granted(&first).await;
    assert_eq!(grant.number(0), 0);
    assert_eq!(
        grant.number(1),
        grant.now,
        "the time, where that is highest"
    );
    assert_eq!(grant.number(2), grant.now + 100_000 * MILLISECOND);

    // The same nonce is the same call, which its own service sent again.
    let same = scripts.granted(&first).await;
    assert_eq!((same.number(0), same.number(1)), (0, grant.number(1)));
    assert_eq!(same.number(2), same.now + 100_000 * MILLISECOND);
    // Once another call was told, the first is a repeat too.
    for call in [first.repeated(), first.clone()] {
        let repeat = scripts.granted(&call).await;
        assert_eq!((repeat.number(0), repeat.number(1)), (1, grant.number(1)));
        assert_eq!(repeat.number(2), repeat.now + 100_000 * MILLISECOND);
    }
    let other_mode = Ask {
        mode: "SHARED",
        ..first.repeated()
    };
    assert_eq!(scripts.acquire(&other_mode).await.answer(), "other_mode");

    let last = scripts.granted(&first.repeated()).await;
    for refused in [ask("b"), shared("b")] {
        let held = scripts.acquire(&refused).await;
        assert_eq!(held.answer(), "held");
        assert_eq!(held.number(0), 0, "nobody waits");
        assert_eq!(held.number(1), last.number(2) + 7 * MILLISECOND);
        let [(name, fence, mode, since, until)] = &held.holders(2)[..] else {
            panic!("one holder: {held:?}");
        };
        assert_eq!((name.as_str(), mode.as_str()), ("holder a", "EXCLUSIVE"));
        assert_eq!(
            (*fence, *since, *until),
            (grant.number(1), grant.now, last.number(2))
        );
    }

    assert_eq!(scripts.call(RELEASE, &["a"]).await.answer(), "released");
    assert_eq!(scripts.acquire(&first).await.answer(), "lost RELEASED");
    scripts.left_behind(&ask("b")).await;
    assert_eq!(scripts.acquire(&ask("b")).await.answer(), "lost LEASE_OVER");
    scripts.granted(&ask("c")).await;
    assert_eq!(scripts.acquire(&ask("b")).await.answer(), "lost TAKEN_OVER");
    scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(scripts.acquire(&ask("c")).await.answer(), "lost FORCED");

    let grant = scripts.granted(&ask("e")).await;
    for (token, is_first) in [("f", 1), ("g", 0), ("f", 1)] {
        let queued = scripts.acquire(&queue::waiting(token)).await;
        assert_eq!(queued.answer(), "queued");
        assert_eq!(queued.number(1), grant.number(2));
        assert_eq!(queued.holders(2), [holder(&ask("e"), &grant)]);
        assert_eq!(queued.number(5), is_first, "{token}");
    }

    let late = ask("d").arguments();
    let late: Vec<&str> = late.iter().map(String::as_str).collect();
    scripts.assert_late(ACQUIRE, &late).await;
    scripts.finish(ACQUIRE).await;
}

#[tokio::test]
async fn a_refusal_says_when_the_lock_can_next_change_for_that_request() {
    let mut scripts = lock_scripts().await;
    let early = Ask {
        lease: 50_000,
        max_holders: 2,
        ..shared("early")
    };
    let late = Ask {
        lease: 80_000,
        hold_at_least: 200_000,
        ..shared("late")
    };
    let early_grant = scripts.granted(&early).await;
    let late_grant = scripts.granted(&late).await;
    let late_end = late_grant.now + 200_000 * MILLISECOND;

    let share = scripts.acquire(&shared("x")).await;
    assert_eq!(
        (share.answer().as_str(), share.number(1)),
        ("held", early_grant.number(2))
    );
    assert_eq!(
        share.holders(2),
        [holder(&early, &early_grant), holder(&late, &late_grant)]
    );

    let exclusive = scripts.acquire(&ask("x")).await;
    assert_eq!(
        (exclusive.answer().as_str(), exclusive.number(1)),
        ("held", late_end)
    );

    // A renewal moves the end of the lease, and hold_at_least stays behind the acquisition.
    let renewed = scripts.call(RENEW, &["early", "300000", "", "0"]).await;
    let exclusive = scripts.acquire(&ask("x")).await;
    assert_eq!(exclusive.number(1), renewed.number(0));
    let share = scripts.acquire(&shared("x")).await;
    assert_eq!(share.number(1), late_end);
}

#[tokio::test]
async fn a_new_fencing_token_is_above_the_last_the_time_and_what_the_service_has_seen() {
    let mut scripts = lock_scripts().await;
    let seen = 1 << 52;
    let grant = scripts.acquire_having_seen(seen, &ask("a")).await;
    assert_eq!(grant.number(1), seen + 1);

    // The next call comes from a service that has seen nothing.
    scripts.call(RELEASE, &["a"]).await;
    assert_eq!(scripts.granted(&ask("b")).await.number(1), seen + 2);
    let repeat = scripts.granted(&ask("b").repeated()).await;
    assert_eq!(repeat.number(1), seen + 2);
}

#[tokio::test]
async fn renew_lock_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    assert_eq!(
        scripts.call(RENEW, &["a", "", "", "0"]).await.answer(),
        "lost NOT_FOUND"
    );

    let grant = scripts.granted(&ask("a")).await;
    let fence = grant.number(1);
    let own = scripts.call(RENEW, &["a", "", "", "0"]).await;
    assert_eq!(own.answer(), "renewed");
    assert_eq!(own.number(0), own.now + 100_000 * MILLISECOND);
    let longer = scripts.call(RENEW, &["a", "200000", "", "0"]).await;
    assert_eq!(longer.number(0), longer.now + 200_000 * MILLISECOND);
    let shorter = scripts.call(RENEW, &["a", "1", "", "0"]).await;
    assert_eq!(shorter.number(0), longer.number(0));
    for renewed in [own, longer, shorter] {
        assert_eq!(renewed.number(1), fence);
    }
    scripts.assert_late(RENEW, &["a", "900000", "", "0"]).await;

    scripts.call(RELEASE, &["a"]).await;
    assert_eq!(
        scripts.call(RENEW, &["a", "", "", "0"]).await.answer(),
        "lost RELEASED"
    );
    scripts.left_behind(&ask("b")).await;
    assert_eq!(
        scripts.call(RENEW, &["b", "", "", "0"]).await.answer(),
        "lost LEASE_OVER"
    );
    scripts.granted(&ask("c")).await;
    assert_eq!(
        scripts.call(RENEW, &["b", "", "", "0"]).await.answer(),
        "lost TAKEN_OVER"
    );
    scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(
        scripts.call(RENEW, &["c", "", "", "0"]).await.answer(),
        "lost FORCED"
    );
    scripts.finish(RENEW).await;
}

#[tokio::test]
async fn release_lock_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    for _ in 0..2 {
        let told = scripts.call(RELEASE, &["unseen"]).await;
        assert_eq!(told.answer(), "lost NOT_FOUND");
    }
    scripts.granted(&ask("a")).await;
    scripts.assert_late(RELEASE, &["a"]).await;
    for is_first in [true, false] {
        let released = scripts.call(RELEASE, &["a"]).await;
        assert_eq!(
            (released.answer().as_str(), released.number(0)),
            ("released", released.now)
        );
        assert_eq!(
            released.number(1) >= 0,
            is_first,
            "told once how long it was held"
        );
    }
    let holding = Ask {
        hold_at_least: 50_000,
        ..ask("b")
    };
    let grant = scripts.granted(&holding).await;
    for _ in 0..2 {
        let released = scripts.call(RELEASE, &["b"]).await;
        let free_at = grant.now + 50_000 * MILLISECOND;
        assert_eq!(
            (released.answer().as_str(), released.number(0)),
            ("released", free_at)
        );
    }
    scripts.call(FORCE, &["0", "0", "0"]).await;
    let released = scripts.call(RELEASE, &["b"]).await;
    assert_eq!(
        released.number(0),
        released.now,
        "nothing keeps it taken any more"
    );

    let delayed = Ask {
        lock_delay: 50_000,
        ..ask("c")
    };
    scripts.left_behind(&delayed).await;
    let released = scripts.call(RELEASE, &["c"]).await;
    assert_eq!(
        (released.answer().as_str(), released.number(0)),
        ("released", released.now)
    );

    scripts.left_behind(&ask("d")).await;
    assert_eq!(
        scripts.call(RELEASE, &["d"]).await.answer(),
        "lost LEASE_OVER"
    );
    scripts.granted(&ask("e")).await;
    assert_eq!(
        scripts.call(RELEASE, &["d"]).await.answer(),
        "lost TAKEN_OVER"
    );
    scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(scripts.call(RELEASE, &["e"]).await.answer(), "lost FORCED");
    scripts.finish(RELEASE).await;
}

#[tokio::test]
async fn get_lock_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    assert_eq!(scripts.call(GET, &["10"]).await.answer(), "free");
    let held = Ask {
        hold_at_least: 500_000,
        ..shared("a")
    };
    let grant = scripts.granted(&held).await;
    let other = scripts.granted(&shared("b")).await;
    scripts.assert_late(GET, &["10"]).await;

    let lock = scripts.call(GET, &["10"]).await;
    assert_eq!(lock.answer(), "lock");
    assert_eq!(lock.number(0), other.number(1), "the highest so far");
    assert_eq!((lock.number(1), lock.number(2)), (0, 0));
    assert_eq!(
        lock.holders(3),
        [holder(&held, &grant), holder(&shared("b"), &other)]
    );
    assert_eq!(scripts.call(GET, &["1"]).await.holders(3).len(), 1);

    for token in ["a", "b"] {
        scripts.call(RELEASE, &[token]).await;
    }
    let lock = scripts.call(GET, &["10"]).await;
    assert_eq!(lock.number(2), grant.now + 500_000 * MILLISECOND);
    assert_eq!(lock.holders(3), []);
    scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(scripts.call(GET, &["10"]).await.answer(), "free");
    scripts.finish(GET).await;
}

#[tokio::test]
async fn force_release_lock_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    let nothing = scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(
        (nothing.answer().as_str(), nothing.number(2)),
        ("released", 0)
    );
    assert_eq!(nothing.holders(3), []);

    let delayed = Ask {
        lock_delay: 50_000,
        ..shared("ghost")
    };
    let ghost = scripts.left_behind(&delayed).await;
    let first = scripts.granted(&shared("a")).await;
    let second = scripts.granted(&shared("b")).await;
    scripts.assert_late(FORCE, &["0", "0", "0"]).await;

    let fence = first.number(1).to_string();
    let one = scripts.call(FORCE, &[&fence, "0", "0"]).await;
    assert_eq!(one.number(2), 1);
    assert_eq!(one.holders(3), [holder(&shared("a"), &first)]);

    let rest = scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(rest.number(2), 1, "only one of both was live");
    // The lease that ended held no longer than that.
    let (over, live) = (1000 * MILLISECOND, rest.now - second.now);
    let either = [format!("[{over}, {live}]"), format!("[{live}, {over}]")];
    assert!(either.contains(&rest.fields[4]), "{rest:?}");
    assert_eq!(
        rest.holders(3),
        [
            holder(&shared("ghost"), &ghost),
            holder(&shared("b"), &second)
        ]
    );
    scripts.finish(FORCE).await;
}
