//! What a lock script costs, counted in the Redis commands that it calls.

use super::queue::{KEEP, sharing, waiting};
use super::{
    ACQUIRE, Ask, FORCE, GET, RELEASE, RENEW, UNDO, ask, keys, lock_scripts, shared,
    still_lock_scripts, texts,
};
use crate::support::scripts::{Common, Reply, Scripts, assemble};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a script may call: each at most logarithmic in what is stored, for a bounded number of members. The
/// exception is HGETALL, of the spent tokens alone, of which there are never more than 127.
const ALLOWED: [&str; 19] = [
    "time",
    "hget",
    "hset",
    "hdel",
    "hlen",
    "hgetall",
    "zadd",
    "zrem",
    "zcount",
    "zscore",
    "zmscore",
    "zrange",
    "zrevrange",
    "zrangebyscore",
    "zrevrangebyscore",
    "pexpireat",
    "unlink",
    "publish",
    "eval",
];

/// How often each command was called.
type Commands = BTreeMap<String, u64>;

impl Scripts {
    /// Has so many others share a lock, under tokens from `{name}-0` on.
    async fn share_with(&mut self, name: &str, holders: usize, like: &Ask) {
        self.all_asked(name, holders, like, "acquired").await;
    }

    /// Has so many wait for a lock that is held, as waiters of one service's under tokens from `{service}-0` on.
    pub(super) async fn crowd(&mut self, service: &'static str, waiters: usize) -> Vec<Ask> {
        let like = waiting("").at(service);
        self.all_asked(service, waiters, &like, "queued").await
    }

    async fn all_asked(&mut self, name: &str, count: usize, like: &Ask, answer: &str) -> Vec<Ask> {
        let mut connection = self.redis.connection();
        let sha: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(assemble("lock", ACQUIRE))
            .query_async(&mut connection)
            .await
            .expect("the script loads");
        let common = Common::default();
        let tokens = (0..count).map(|i| format!("{name}-{i}"));
        let mut asks: Vec<Ask> = tokens
            .map(|token| Ask {
                nonce: format!("first call of {token}"),
                token,
                ..like.clone()
            })
            .collect();
        for chunk in asks.chunks_mut(500) {
            let mut pipeline = redis::pipe();
            for ask in chunk.iter() {
                pipeline
                    .cmd("EVALSHA")
                    .arg(&sha)
                    .arg(keys("r").len())
                    .arg(keys("r"))
                    .arg(common.not_after)
                    .arg(common.highest_seen)
                    .arg(common.memory.as_secs() * 1000)
                    .arg(ask.arguments());
            }
            let replies: Vec<Vec<redis::Value>> = pipeline
                .query_async(&mut connection)
                .await
                .expect("no error");
            let expected = redis::Value::BulkString(answer.as_bytes().to_vec());
            for (ask, reply) in chunk.iter_mut().zip(replies) {
                assert_eq!(reply[1], expected);
                if let Some(redis::Value::Int(ticket)) = reply.get(6) {
                    ask.ticket = *ticket;
                }
            }
        }
        asks
    }

    async fn forget_commands(&mut self) {
        redis::cmd("CONFIG")
            .arg("RESETSTAT")
            .exec_async(&mut self.redis.connection())
            .await
            .expect("the counts can be reset");
    }

    /// The commands since they were forgotten.
    async fn commands(&mut self) -> Commands {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.redis.connection())
            .await
            .expect("the counts can be read");
        info.lines()
            .filter_map(|line| {
                let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let (calls, _) = counts.split_once(',')?;
                Some((name.to_owned(), calls.parse().expect("a number")))
            })
            .filter(|(name, _)| name != "config|resetstat")
            .collect()
    }

    async fn count(&mut self, command: &str, key: &str) -> usize {
        redis::cmd(command)
            .arg(key)
            .query_async(&mut self.redis.connection())
            .await
            .expect("a count")
    }
}

/// The commands of each call on a lock with so many holders.
async fn commands_with(holders: usize) -> Vec<(&'static str, Commands)> {
    let mut scripts = lock_scripts().await;
    let limited = |token| Ask {
        max_holders: 20_000,
        ..shared(token)
    };
    scripts.share_with("other", holders, &limited("")).await;

    let mut counted = Vec::new();
    scripts.forget_commands().await;
    scripts.granted(&limited("a")).await;
    counted.push(("granted", scripts.commands().await));
    for (what, script, own) in [
        ("renewed", RENEW, &["a", "200000", "", "0"][..]),
        ("told", GET, &["10"]),
        ("released", RELEASE, &["a"]),
        ("released unseen", RELEASE, &["unseen"]),
        ("undone", UNDO, &["other-3", "first call of other-3"]),
    ] {
        scripts.forget_commands().await;
        scripts.call(script, own).await;
        counted.push((what, scripts.commands().await));
    }
    for (what, refused) in [
        ("refused", ask("x")),
        (
            "no room",
            Ask {
                max_holders: 3,
                ..shared("x")
            },
        ),
    ] {
        scripts.forget_commands().await;
        assert_eq!(scripts.acquire(&refused).await.answer(), "held");
        counted.push((what, scripts.commands().await));
    }
    counted
}

#[tokio::test]
async fn a_call_takes_as_many_commands_with_ten_thousand_holders_as_with_twenty() {
    let few = commands_with(20).await;
    let many = commands_with(10_000).await;
    for ((what, few), (_, many)) in few.into_iter().zip(many) {
        if what == "dropped silent ones" {
            // A thousand at a time, so that whoever died holds nobody up for longer.
            let (few, many) = (few.values().sum::<u64>(), many.values().sum::<u64>());
            assert!((few + 1..few + 8 * 5).contains(&many), "{few}, then {many}");
        } else {
            assert_eq!(many, few, "{what}");
        }
        let total: u64 = few.values().sum();
        assert!((2..=60).contains(&total), "{what}: {few:?}");
        for command in few.keys() {
            assert!(ALLOWED.contains(&command.as_str()), "{what}: {command}");
        }
    }
}

/// The commands of each call on a lock that so many wait for, most of them at another service.
async fn commands_with_waiters(others: usize) -> Vec<(&'static str, Commands)> {
    let mut scripts = still_lock_scripts().await;
    let mut counted = Vec::new();
    scripts.granted(&ask("holder")).await;
    let mut own = vec![scripts.queued(&waiting("a")).await];
    own.push(scripts.queued(&sharing("b")).await);
    let crowd = scripts.crowd("there", others).await;
    for name in ["c", "d", "e", "f"] {
        own.push(scripts.queued(&sharing(name)).await);
    }
    let acquire = |ask: &Ask| (ACQUIRE, ask.arguments());
    let call = |script, own: &[&str]| (script, texts(own));
    let newcomer = waiting("x");
    let taken_over = own[2].comes_back();
    let calls = [
        ("refused", acquire(&ask("x")), "held"),
        ("queued", acquire(&newcomer), "queued"),
        ("queued again", acquire(&newcomer), "queued"),
        ("gave up", acquire(&newcomer.at_last()), "held"),
        ("taken over", acquire(&taken_over), "queued"),
        ("renewed", call(RENEW, &["holder", "", "", "0"]), "renewed"),
        ("told", call(GET, &["10"]), "lock"),
        ("left", call(UNDO, &["d", "first call of d"]), "undone"),
        ("released waiter", call(RELEASE, &["e"]), "lost NOT_FOUND"),
        ("kept", (KEEP, kept("here", &own[..2])), "waiting"),
        ("freed", call(RELEASE, &["holder"]), "released"),
        ("in turn", acquire(&own[0]), "acquired"),
        ("undone", call(UNDO, &["a", "first call of a"]), "undone"),
        ("the next", acquire(&own[1]), "acquired"),
        ("released", call(RELEASE, &["b"]), "released"),
    ];
    for (what, (script, own), answer) in calls {
        scripts.forget_commands().await;
        let reply = scripts.run(script, "r", &own).await;
        counted.push((what, scripts.commands().await));
        assert_eq!(reply.answer(), answer, "{what}");
    }

    // Half of those of the other service fall silent.
    let alive: Vec<Ask> = crowd.into_iter().step_by(2).collect();
    scripts.redis.pass(Duration::from_secs(2));
    for some in alive.chunks(500) {
        scripts.run(KEEP, "r", &kept("there", some)).await;
    }
    scripts.redis.pass(Duration::from_secs(1));
    scripts.forget_commands().await;
    scripts.queued(&newcomer).await;
    counted.push(("dropped silent ones", scripts.commands().await));
    counted
}

fn kept(service: &str, waiters: &[Ask]) -> Vec<String> {
    let each = waiters.iter().flat_map(Ask::kept);
    [service, "0"]
        .map(str::to_owned)
        .into_iter()
        .chain(each)
        .collect()
}

#[tokio::test]
async fn a_call_takes_as_many_commands_with_ten_thousand_waiters_as_with_twenty() {
    let few = commands_with_waiters(20).await;
    let many = commands_with_waiters(10_000).await;
    for ((what, few), (_, many)) in few.into_iter().zip(many) {
        if what == "dropped silent ones" {
            // A thousand at a time, so that whoever died holds nobody up for longer.
            let (few, many) = (few.values().sum::<u64>(), many.values().sum::<u64>());
            assert!((few + 1..few + 8 * 5).contains(&many), "{few}, then {many}");
        } else {
            assert_eq!(many, few, "{what}");
        }
        let total: u64 = few.values().sum();
        assert!((2..=60).contains(&total), "{what}: {few:?}");
        for command in few.keys() {
            assert!(ALLOWED.contains(&command.as_str()), "{what}: {command}");
        }
    }
}

#[tokio::test]
async fn speaking_for_waiters_costs_by_their_own_number_and_little_more_where_all_were_lost() {
    let mut scripts = still_lock_scripts().await;
    scripts.granted(&ask("holder")).await;
    let own = scripts.crowd("here", 500).await;
    scripts.crowd("there", 5_000).await;
    let mut totals = Vec::new();
    for count in [1, 100, 500] {
        scripts.forget_commands().await;
        scripts.run(KEEP, "r", &kept("here", &own[..count])).await;
        let total: u64 = scripts.commands().await.values().sum();
        let count = u64::try_from(count).expect("few");
        assert!((count..=count + 30).contains(&total), "{count}: {total}");
        totals.push(total);
    }
    for key in &keys("r")[5..] {
        scripts.redis.evict(key).await;
    }
    scripts.forget_commands().await;
    let reply = scripts.run(KEEP, "r", &kept("here", &own)).await;
    assert_eq!(reply.row()[1], "here-0");
    let total: u64 = scripts.commands().await.values().sum();
    assert!(total <= 6 * 500 + 30, "{total}");
    assert_eq!(scripts.in_queue().await.len(), 500);
}

/// How many commands one call may take while there is much to clear away.
const STEP: u64 = 1200;

#[tokio::test]
async fn ten_thousand_leases_that_end_at_once_are_cleared_away_in_bounded_steps() {
    let mut scripts = lock_scripts().await;
    let limited = Ask {
        max_holders: 10_000,
        lease: 1_000_000,
        ..shared("")
    };
    scripts.share_with("gone", 10_000, &limited).await;
    let full = Ask {
        token: "full".to_owned(),
        ..limited.clone()
    };
    assert_eq!(scripts.acquire(&full).await.answer(), "held");
    scripts.redis.pass(Duration::from_secs(1100));
    assert_eq!(scripts.call(GET, &["10"]).await.answer(), "free");
    let told = scripts.call(RENEW, &["gone-9999", "", "", "0"]).await;
    assert_eq!(told.answer(), "lost LEASE_OVER");

    let [holders, ends, limits, _, live, ..] =
        <[String; 8]>::try_from(keys("r")).expect("all keys");
    let mut granted = 0;
    let mut left = scripts.count("HLEN", &holders).await;
    assert_eq!(left, 10_000);
    while left > granted {
        // Three fit, whatever is left over of those before.
        let newcomer = Ask {
            max_holders: 3,
            ..shared(&format!("new-{granted}"))
        };
        scripts.forget_commands().await;
        let reply = scripts.acquire(&newcomer).await;
        let total: u64 = scripts.commands().await.values().sum();
        assert!(total <= STEP, "{total} commands with {left} left over");
        if granted < 3 {
            assert_eq!(reply.answer(), "acquired");
            granted += 1;
        } else {
            assert_eq!(reply.answer(), "held");
            assert_eq!(reply.holders(2).len(), 3, "those three are listed");
        }

        scripts.forget_commands().await;
        assert_eq!(scripts.acquire(&ask("x")).await.answer(), "held");
        let total: u64 = scripts.commands().await.values().sum();
        assert!(total <= STEP, "{total} commands with {left} left over");

        let told = scripts.call(GET, &["10"]).await;
        assert_eq!(told.holders(3).len(), granted);
        let before = left;
        left = scripts.count("HLEN", &holders).await;
        assert!(left < before, "a call clears some away");
        // Whoever is left over is as late as one that was cleared away.
        if left > granted {
            let late = next_to_clear(&mut scripts, &ends).await;
            let told = scripts.call(RELEASE, &[&late]).await;
            assert_eq!(told.answer(), "lost TAKEN_OVER");
        }
    }
    assert_eq!(scripts.count("ZCARD", &ends).await, granted);
    assert_eq!(scripts.count("ZCARD", &limits).await, granted);
    assert_eq!(scripts.count("ZCARD", &live).await, granted);
    let taken_away = scripts.call(FORCE, &["0", "0", "0"]).await;
    assert_eq!(taken_away.number(2), 3);
    assert_eq!(scripts.redis.server.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_live_holder_is_listed_although_hundreds_that_were_released_count_for_longer() {
    let mut scripts = lock_scripts().await;
    let held_long = Ask {
        hold_at_least: 1_000_000,
        ..shared("")
    };
    scripts.share_with("gone", 300, &held_long).await;
    for number in 0..300 {
        let released = scripts.call(RELEASE, &[&format!("gone-{number}")]).await;
        assert_eq!(released.answer(), "released");
    }
    scripts.granted(&shared("live")).await;

    let names = |reply: &Reply, place| {
        let holders = reply.holders(place).into_iter();
        holders.map(|(name, ..)| name).collect::<Vec<_>>()
    };
    let held = scripts.acquire(&ask("x")).await;
    assert_eq!(names(&held, 2), ["holder live"]);
    let told = scripts.call(GET, &["10"]).await;
    assert_eq!(names(&told, 3), ["holder live"]);
    assert_eq!(told.number(2), 0, "free_at while there is a live holder");
}

#[tokio::test]
async fn ten_thousand_holders_are_taken_away_in_bounded_steps() {
    let mut scripts = lock_scripts().await;
    scripts.share_with("a", 10_000, &shared("")).await;
    let (mut cursor, mut newest) = ("0".to_owned(), "0".to_owned());
    let mut taken_away = 0;
    loop {
        scripts.forget_commands().await;
        let step = scripts.call(FORCE, &["0", &cursor, &newest]).await;
        let total: u64 = scripts.commands().await.values().sum();
        // HSCAN looks at 500 buckets, and a bucket may hold several.
        assert!(total <= 4 * 1_500 + STEP, "{total}");
        taken_away += step.number(2);
        (cursor, newest) = (step.row()[1].to_owned(), step.row()[2].to_owned());
        if cursor == "0" {
            break;
        }
        // One that came since the start stays.
        let late = scripts.acquire(&shared(&format!("late-{cursor}"))).await;
        assert_eq!(late.answer(), "acquired");
    }
    assert_eq!(taken_away, 10_000);
    assert!(!scripts.call(GET, &["10"]).await.holders(3).is_empty());

    let mut told_why = 0;
    for number in 0..10_000 {
        let renewed = scripts
            .call(RENEW, &[&format!("a-{number}"), "", "", "0"])
            .await;
        told_why += usize::from(renewed.answer() == "lost FORCED");
    }
    assert!((100..=126).contains(&told_why), "{told_why}");
    assert_eq!(scripts.redis.server.keys_without_expiry().await, [""; 0]);
}

/// The token that is cleared away next.
async fn next_to_clear(scripts: &mut Scripts, ends: &str) -> String {
    let first: Vec<String> = redis::cmd("ZRANGE")
        .arg(ends)
        .arg(0)
        .arg(0)
        .query_async(&mut scripts.redis.connection())
        .await
        .expect("the holders by their end");
    first.into_iter().next().expect("a holder is left over")
}
