//! Any sequence of calls, deaths and pauses: what holds of a queue after each step, whatever came before.

use super::queue::{sharing, waiting};
use super::told::Heard;
use super::{ACQUIRE, Ask, FORCE, RELEASE, RENEW, UNDO, texts};
use crate::support::scripts::Reply;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;

const WALKS: usize = 6;
const STEPS: usize = 250;
const SERVICES: [&str; 3] = ["here", "there", "elsewhere"];

#[tokio::test]
async fn whatever_happens_the_queue_stays_in_order_and_its_first_knows_when_to_try() {
    for _ in 0..WALKS {
        let seed = rand::random();
        let mut walk = Walk::start(seed).await;
        for _ in 0..STEPS {
            walk.step().await;
        }
    }
}

/// Looks at everything at once, with the scripts' own words.
const LOOK: &str = "
    local live, live_exclusive, spent_waiters, forever = {}, 0, {}, {}
    for _, t in ipairs(redis.call('HKEYS', HOLDERS)) do
      local h = holder_of(t)
      if is_live(h) then
        live[#live + 1] = t
        if h[MODE] == EXCLUSIVE then live_exclusive = live_exclusive + 1 end
      end
    end
    local order = redis.call('ZRANGE', QUEUE, 0, -1)
    for _, t in ipairs(order) do
      if spent(t, holder_of(t)) then spent_waiters[#spent_waiters + 1] = t end
    end
    for _, key in ipairs(KEYS) do
      if redis.call('PTTL', key) == -1 then forever[#forever + 1] = key end
    end
    local first = order[1] and waiter_of(order[1])
    local wait = -1
    if first then
      wait = is_free_for(first[WANTED_MODE], first[WANTED_LIMIT]) and 0 or changes_at(first[WANTED_MODE]) - now
    end
    local waiters, deadlines = redis.call('HKEYS', WAITERS), redis.call('ZRANGE', DEADLINES, 0, -1)
    for i, t in ipairs(deadlines) do
      if t == GRACE_MARK then table.remove(deadlines, i) break end
    end
    table.sort(waiters)
    table.sort(deadlines)
    return {now, 'seen', live, live_exclusive, order, waiters, deadlines, spent_waiters, forever, first and first[SERVICE] or '', wait}
";

/// What a look finds.
#[derive(Clone, Debug, Default)]
struct Seen {
    now: i64,
    live: Vec<String>,
    order: Vec<String>,
    service: String,
    wait: i64,
}

struct Walk {
    heard: Heard,
    seed: u64,
    random: SmallRng,
    calls: u32,
    /// Whom each service speaks for, by token.
    spoken_for: BTreeMap<&'static str, BTreeMap<String, Ask>>,
    /// When each was told to try last, on Redis's clock.
    try_at: BTreeMap<String, i64>,
    highest_fence: i64,
    before: Seen,
    log: Vec<String>,
}

impl Walk {
    async fn start(seed: u64) -> Self {
        Self {
            heard: Heard::start().await,
            seed,
            random: SmallRng::seed_from_u64(seed),
            calls: 0,
            spoken_for: BTreeMap::new(),
            try_at: BTreeMap::new(),
            highest_fence: 0,
            before: Seen::default(),
            log: Vec::new(),
        }
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.random.random_range(0..all.len())].clone()
    }

    /// One that waits, as its service knows it.
    fn some_waiter(&mut self) -> Option<Ask> {
        let all: Vec<Ask> = self
            .spoken_for
            .values()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect();
        (!all.is_empty()).then(|| self.one_of(&all))
    }

    fn some_token(&mut self) -> String {
        let number = self.random.random_range(0..40) / 4 + self.calls / 20;
        format!("t{number}")
    }

    fn some_ask(&mut self) -> Ask {
        self.calls += 1;
        let token = self.some_token();
        let mode = self.one_of(&[waiting("").mode, sharing("").mode]);
        let limits = if mode == "SHARED" { [0, 1, 2] } else { [0; 3] };
        Ask {
            nonce: format!("call-{}", self.calls),
            mode,
            lease: self.one_of(&[300, 2_000, 5_000, 60_000]),
            max_holders: self.one_of(&limits),
            hold_at_least: self.one_of(&[0, 0, 0, 1_500]),
            lock_delay: self.one_of(&[0, 0, 0, 700]),
            how: self.one_of(&["no", "join", "join", "join"]),
            service: self.one_of(&SERVICES),
            ..waiting(&token)
        }
    }

    async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..30 => {
                let ask = self.some_ask();
                self.acquire(ask).await;
            }
            30..55 => {
                if let Some(ask) = self.some_waiter() {
                    self.acquire(ask).await;
                }
            }
            55..60 => {
                if let Some(ask) = self.some_waiter() {
                    self.acquire(ask.at_last()).await;
                }
            }
            60..65 => {
                if let Some(ask) = self.some_waiter() {
                    self.forget(&ask);
                    self.run(UNDO, &[&ask.token, &ask.nonce]).await;
                }
            }
            65..72 => {
                let holders = self.before.live.clone();
                if !holders.is_empty() {
                    let token = self.one_of(&holders);
                    self.run(RELEASE, &[&token]).await;
                }
            }
            72..75 => {
                let token = self.some_token();
                self.run(RELEASE, &[&token]).await;
            }
            75..77 => {
                self.run(FORCE, &["0", "0", "0"]).await;
            }
            77..80 => {
                let token = self.some_token();
                self.run(RENEW, &[&token, "", "", "0"]).await;
            }
            80..82 => {
                let service = self.one_of(&SERVICES);
                self.log.push(format!("{service} dies"));
                self.spoken_for.remove(service);
            }
            82..94 => {
                self.time_passes(self.before.now % 700 + 1).await;
                for service in SERVICES {
                    self.speaks(service).await;
                }
            }
            94..98 => {
                self.heard.scripts.redis_was_away = false;
                self.time_passes(1_000).await;
            }
            _ => {
                self.heard.scripts.redis_was_away = true;
                self.time_passes(8_000).await;
            }
        }
    }

    async fn time_passes(&mut self, millis: i64) {
        self.log.push(format!("{millis} ms pass"));
        let millis = u64::try_from(millis).expect("time passes");
        self.heard.scripts.redis.pass(Duration::from_millis(millis));
        self.look(None, None).await;
    }

    fn forget(&mut self, ask: &Ask) {
        if let Some(waiters) = self.spoken_for.get_mut(ask.service)
            && waiters
                .get(&ask.token)
                .is_some_and(|w| w.nonce == ask.nonce)
        {
            waiters.remove(&ask.token);
        }
    }

    async fn run(&mut self, script: &str, own: &[&str]) -> Reply {
        let reply = self.heard.scripts.run(script, "r", &texts(own)).await;
        self.log.push(format!("{script} {own:?}: {reply:?}"));
        self.look(None, None).await;
        reply
    }

    async fn acquire(&mut self, ask: Ask) {
        let own = self.heard.scripts.acquisition(&ask);
        let reply = self.heard.scripts.run(ACQUIRE, "r", &own).await;
        self.log.push(format!("{ask:?}: {reply:?}"));
        let had_it = self.before.live.contains(&ask.token);
        let (mut granted, mut new_place) = (None, None);
        match reply.answer().as_str() {
            "queued" => {
                let own = Ask {
                    ticket: reply.number(4),
                    how: "join",
                    ..ask.clone()
                };
                let waiters = self.spoken_for.entry(ask.service).or_default();
                waiters.insert(ask.token.clone(), own);
                // One that was silent for too long stands at the end again.
                if ask.ticket == 0 && reply.number(4) >= reply.now {
                    new_place = Some(ask.token.clone());
                }
                if reply.number(5) == 1 {
                    self.try_at.insert(ask.token.clone(), reply.number(1));
                }
            }
            "acquired" if !had_it => {
                let fence = reply.number(1);
                assert!(fence > self.highest_fence, "{self}");
                self.highest_fence = fence;
                self.forget(&ask);
                granted = Some(ask.token);
            }
            "other_mode" => {}
            _ if ask.how == "no" => {}
            _ => self.forget(&ask),
        }
        self.look(granted, new_place).await;
    }

    async fn speaks(&mut self, service: &'static str) {
        let waiters = self.spoken_for.get(service).cloned().unwrap_or_default();
        if waiters.is_empty() {
            return;
        }
        let waiters: Vec<&Ask> = waiters.values().collect();
        let reply = self.heard.scripts.keep(service, &waiters).await;
        let names: Vec<&str> = waiters.iter().map(|w| w.token.as_str()).collect();
        self.log
            .push(format!("{service} speaks for {names:?}: {reply:?}"));
        let list = |place: usize| {
            let list = reply.fields[place].trim_matches(['[', ']']).to_owned();
            let list = list.split(", ").map(str::to_owned);
            list.filter(|item| !item.is_empty()).collect::<Vec<_>>()
        };
        let (taken, over) = (list(2), list(3));
        for (number, waiter) in waiters.iter().enumerate() {
            if taken.contains(&(number + 1).to_string()) || over.contains(&waiter.token) {
                self.forget(waiter);
            }
        }
        let first = reply.fields[0].clone();
        if !first.is_empty() {
            self.try_at.insert(first, reply.now + reply.number(1));
        }
        self.look(None, None).await;
    }

    /// Everything that has to hold after any step.
    async fn look(&mut self, granted: Option<String>, new_place: Option<String>) {
        let (now, values) = self.heard.scripts.look("r", LOOK).await;
        for told in self.heard.told().await {
            let words: Vec<&str> = told.split(' ').collect();
            if let [_, "turn", token, wait] = words[..] {
                let wait: i64 = wait.parse().expect("a number");
                self.try_at.insert(token.to_owned(), now + wait);
            }
            self.log.push(told);
        }
        let [
            live,
            exclusive,
            order,
            waiters,
            deadlines,
            spent,
            forever,
            service,
            wait,
        ] = <[Vec<String>; 9]>::try_from(values).expect("nine values");
        assert_eq!(forever, [""; 0], "for ever\n{self}");
        assert_eq!(spent, [""; 0], "they wait in vain\n{self}");
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, waiters, "those that wait\n{self}");
        assert_eq!(sorted, deadlines, "those that are spoken for\n{self}");
        let both = live.iter().find(|token| order.contains(token));
        assert_eq!(both, None, "it holds what it waits for\n{self}");
        assert!(
            exclusive == ["0"] || (exclusive == ["1"] && live.len() == 1),
            "{live:?}\n{self}"
        );
        let stayed = |one: &[String], other: &[String]| {
            let stay = one
                .iter()
                .filter(|token| other.contains(token) && new_place.as_ref() != Some(*token));
            stay.cloned().collect::<Vec<_>>()
        };
        assert_eq!(
            stayed(&order, &self.before.order),
            stayed(&self.before.order, &order),
            "they changed places\n{self}"
        );
        if let Some(token) = granted {
            let ahead = self.before.order.iter().take_while(|t| **t != token);
            let passed: Vec<&String> = ahead.filter(|t| order.contains(t)).collect();
            assert_eq!(passed, [""; 0], "{token} went past them\n{self}");
        }
        let seen = Seen {
            now,
            live,
            order,
            service: service.concat(),
            wait: wait.concat().parse().expect("a number"),
        };
        if let Some(first) = seen.order.first() {
            let knows = self.try_at.get(first);
            assert!(
                knows.is_some_and(|at| *at <= now + seen.wait),
                "{first} of {} has to wait {} and tries at {knows:?}\n{self}",
                seen.service,
                seen.wait
            );
        }
        self.before = seen;
    }
}

/// How it came to this.
impl std::fmt::Display for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let last = self.log.len().saturating_sub(30);
        write!(
            f,
            "seed {}, now {}, {}",
            self.seed,
            self.before.now,
            self.log[last..].join("\n")
        )
    }
}
