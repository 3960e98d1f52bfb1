//! Any sequence of calls on a lock, each made while others wait: every call gets what the oracle says, and at the moment at
//! which it says so. No lease ends meanwhile.

use super::{World, queue_is_gone, queue_length, waits};
use crate::model::Token;
use crate::model::locks::{AcquireOp, LockAnswer, LockCall, Mode};
use crate::model::queue::{Queue, Step};
use crate::model::{Fencing, Reason};
use crate::support::BOUND;
use crate::support::answers::Answer;
use crate::support::calls::{force_release, get_lock};
use crate::support::requests::{millis, release, renew_lock};
use crate::support::service::Coordination;
use claimlock::rpc::proto::acquire_lock_response::Outcome;
use claimlock::rpc::proto::{
    AcquireLockRequest, AcquireLockResponse, LockMode, LossReason, Lost, release_lock_response,
    renew_lock_response,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use tokio::task::JoinHandle;
use tonic::Code;

const WALKS: usize = 12;
const STEPS: usize = 80;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_to_those_who_wait_is_the_one_that_the_oracle_gives() {
    let world = World::start().await;
    let walks = (0..WALKS).map(async |number| {
        let mut walk = Walk::new(&world, number);
        for _ in 0..STEPS {
            walk.step().await;
        }
        walk.ends().await
    });
    let counts = futures_util::future::join_all(walks).await;
    let mut all: BTreeMap<&str, usize> = BTreeMap::new();
    for (what, count) in counts.into_iter().flatten() {
        *all.entry(what).or_default() += count;
    }
    eprintln!("what the walks came to: {all:?}");
    for what in [
        "waits",
        "let in",
        "place taken",
        "left",
        "released while it waits",
    ] {
        assert!(all.contains_key(what), "no walk tried {what}");
    }
    queue_is_gone(&world.redis).await;
    assert_eq!(world.redis.keys_without_expiry().await, [""; 0]);
}

type Call = JoinHandle<Answer<AcquireLockResponse>>;

struct Walk<'a> {
    world: &'a World,
    lock: String,
    seed: u64,
    random: SmallRng,
    oracle: Queue,
    /// The calls that wait.
    calls: BTreeMap<Token, Call>,
    /// The fencing token of each grant, by the oracle's.
    highest_fence: i64,
    newest: Token,
    log: Vec<String>,
    counts: BTreeMap<&'static str, usize>,
}

impl<'a> Walk<'a> {
    fn new(world: &'a World, number: usize) -> Self {
        let seed = rand::random();
        Self {
            world,
            lock: format!("lock-{number}"),
            seed,
            random: SmallRng::seed_from_u64(seed),
            oracle: Queue::new(),
            calls: BTreeMap::new(),
            highest_fence: 0,
            newest: 0,
            log: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    fn client(&mut self) -> Coordination {
        self.world.client(self.random.random_range(0..8))
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// One of the newest, so that calls meet.
    fn token(&mut self) -> Token {
        self.random
            .random_range(self.newest.saturating_sub(8)..=self.newest)
    }

    /// Mostly a new one, since most of the others are spent.
    fn token_to_acquire(&mut self) -> Token {
        if self.random.random_range(0..3) == 0 {
            return self.token();
        }
        self.newest += 1;
        self.newest
    }

    fn op(&mut self) -> AcquireOp {
        let token = self.token_to_acquire();
        let mode = if self.random.random_range(0..2) == 0 {
            Mode::Exclusive
        } else {
            Mode::Shared
        };
        let limit = [0, 0, 2, 3][self.random.random_range(0..4)];
        AcquireOp {
            token,
            holder: token,
            mode,
            max_holders: if mode == Mode::Shared { limit } else { 0 },
            lease_ms: 60_000,
            hold_at_least_ms: 0,
            lock_delay_ms: 0,
        }
    }

    async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..45 => {
                let op = self.op();
                self.waits(op).await;
            }
            45..52 => {
                let op = self.op();
                self.at_once(op).await;
            }
            52..72 => {
                let holders = self.oracle.view().map_or(vec![], |view| view.holders);
                if !holders.is_empty() {
                    let which = self.random.random_range(0..holders.len());
                    self.releases(holders[which].holder).await;
                }
            }
            72..80 => {
                let token = self.token();
                self.releases(token).await;
            }
            80..90 => {
                let waiting = self.oracle.waiting();
                if !waiting.is_empty() {
                    let which = self.random.random_range(0..waiting.len());
                    self.leaves(waiting[which]).await;
                }
            }
            90..95 => {
                let token = self.token();
                self.renews(token).await;
            }
            95..98 => self.looks().await,
            _ => self.forces().await,
        }
    }

    async fn waits(&mut self, op: AcquireOp) {
        self.log.push(format!("waits: {op:?}"));
        let (mut client, request) = (self.client(), self.request(&op, true));
        let call = tokio::spawn(async move { client.acquire_lock(request).await });
        let step = self.oracle.wait(&op);
        if step.answer.is_some() {
            let answer = self.answer(call).await;
            self.compare(&step, &answer);
            self.ended(step.ended).await;
            return;
        }
        self.count("waits");
        // The earlier call of the token has to be heard of before this one takes its entry here.
        let earlier = self.calls.remove(&op.token);
        if let Some(earlier) = earlier {
            self.count("place taken");
            let answer = self.answer(earlier).await;
            let (token, expected) = &step.ended[0];
            assert_eq!(*token, op.token, "{self}");
            self.compare_one(expected, &answer);
        }
        let before = usize::from(step.ended.first().is_some_and(|(t, _)| *t == op.token));
        self.calls.insert(op.token, call);
        self.ended(step.ended[before..].to_vec()).await;
    }

    async fn at_once(&mut self, op: AcquireOp) {
        self.log.push(format!("at once: {op:?}"));
        let (mut client, request) = (self.client(), self.request(&op, false));
        let answer = client.acquire_lock(request).await;
        let step = self.oracle.call(&LockCall::Acquire(op));
        self.compare(&step, &answer);
        if let Ok(Some(Outcome::Held(held))) = answer.map(|answer| answer.into_inner().outcome) {
            let length = usize::try_from(held.queue_length).expect("none is negative");
            assert_eq!(length, self.oracle.length(), "{self}");
        }
        self.ended(step.ended).await;
    }

    async fn releases(&mut self, token: Token) {
        self.log.push(format!("releases: {token}"));
        let waited = self.calls.contains_key(&token);
        let request = release(&self.lock, &name(token));
        let answer = self.client().release_lock(request).await;
        let step = self.oracle.call(&LockCall::Release(token));
        let outcome = answer.expect("an outcome").into_inner().outcome;
        match (&step.answer, outcome) {
            (
                Some(LockAnswer::Released { .. }),
                Some(release_lock_response::Outcome::Released(_)),
            ) => {}
            (Some(LockAnswer::Lost(reason)), Some(release_lock_response::Outcome::Lost(lost))) => {
                assert_eq!(lost.reason(), proto_reason(*reason), "{self}");
            }
            (expected, other) => panic!("not {expected:?} but {other:?}\n{self}"),
        }
        if waited {
            self.count("released while it waits");
        }
        self.ended(step.ended).await;
    }

    async fn renews(&mut self, token: Token) {
        self.log.push(format!("renews: {token}"));
        let request = renew_lock(&self.lock, &name(token));
        let answer = self.client().renew_lock(request).await;
        let step = self.oracle.call(&LockCall::Renew {
            token,
            lease_ms: None,
        });
        let outcome = answer.expect("an outcome").into_inner().outcome;
        match (&step.answer, outcome) {
            (Some(LockAnswer::Renewed { .. }), Some(renew_lock_response::Outcome::Renewed(_))) => {}
            (Some(LockAnswer::Lost(reason)), Some(renew_lock_response::Outcome::Lost(lost))) => {
                assert_eq!(lost.reason(), proto_reason(*reason), "{self}");
            }
            (expected, other) => panic!("not {expected:?} but {other:?}\n{self}"),
        }
        self.ended(step.ended).await;
    }

    async fn leaves(&mut self, token: Token) {
        self.log.push(format!("leaves: {token}"));
        self.count("left");
        let call = self.calls.remove(&token).expect("it waits");
        call.abort();
        assert!(call.await.is_err(), "it was answered\n{self}");
        let ended = self.oracle.leave(token);
        self.ended(ended).await;
    }

    async fn looks(&mut self) {
        let mut admin = self.world.admin.clone();
        let lock = admin.get_lock(get_lock(&self.lock)).await;
        let lock = lock.expect("an answer").into_inner().lock;
        let view = self.oracle.view();
        let mut expected: Vec<String> = view
            .map_or(vec![], |view| view.holders)
            .iter()
            .map(|holder| holder_name(holder.holder))
            .collect();
        expected.sort_unstable();
        let length = self.oracle.length();
        assert_eq!(lock.is_some(), length > 0 || !expected.is_empty(), "{self}");
        let holders = lock.map_or(vec![], |lock| lock.holders);
        let mut told: Vec<String> = holders.into_iter().map(|h| h.holder).collect();
        told.sort_unstable();
        assert_eq!(told, expected, "{self}");
    }

    async fn forces(&mut self) {
        self.log.push("forces".to_owned());
        let mut admin = self.world.admin.clone();
        let answer = admin.force_release_lock(force_release(&self.lock)).await;
        let step = self.oracle.call(&LockCall::ForceRelease { fencing: 0 });
        let released = answer.expect("an answer").into_inner().released_holders;
        let released = usize::try_from(released).expect("none is negative");
        assert_eq!(step.answer, Some(LockAnswer::Forced(released)), "{self}");
        self.ended(step.ended).await;
    }

    /// Those whose waits are over by the oracle are answered, and all others wait on.
    async fn ended(&mut self, ended: Vec<(Token, LockAnswer)>) {
        for (token, expected) in ended {
            if matches!(expected, LockAnswer::Acquired { .. }) {
                self.count("let in");
            }
            let Some(call) = self.calls.remove(&token) else {
                panic!("{token} does not wait\n{self}");
            };
            let answer = self.answer(call).await;
            self.compare_one(&expected, &answer);
        }
        let mut admin = self.world.admin.clone();
        let length = self.oracle.length();
        let stand = async {
            while queue_length(&mut admin, &self.lock).await != length {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        let stood = tokio::time::timeout(BOUND, stand).await;
        assert!(stood.is_ok(), "not {length} wait\n{self}");
        let waiting: Vec<Token> = self.calls.keys().copied().collect();
        let mut expected = self.oracle.waiting();
        expected.sort_unstable();
        assert_eq!(waiting, expected, "{self}");
        let answered = self.calls.iter().find(|(_, call)| call.is_finished());
        assert!(answered.is_none(), "{answered:?} is not to be\n{self}");
    }

    async fn answer(&self, call: Call) -> Answer<AcquireLockResponse> {
        let answer = tokio::time::timeout(BOUND, call).await;
        answer
            .unwrap_or_else(|_| panic!("it waits in vain\n{self}"))
            .expect("no panic")
    }

    fn compare(&mut self, step: &Step, answer: &Answer<AcquireLockResponse>) {
        let expected = step.answer.as_ref().expect("it does not wait");
        self.compare_one(expected, answer);
    }

    fn compare_one(&mut self, expected: &LockAnswer, answer: &Answer<AcquireLockResponse>) {
        let outcome = answer
            .as_ref()
            .map(|answer| answer.get_ref().outcome.as_ref());
        match (expected, outcome) {
            (
                LockAnswer::Acquired {
                    fencing,
                    already_held,
                    ..
                },
                Ok(Some(Outcome::Acquired(acquired))),
            ) => {
                assert_eq!(acquired.already_held, *already_held, "{self}");
                if *fencing == Fencing::New {
                    assert!(acquired.fencing_token > self.highest_fence, "{self}");
                    self.highest_fence = acquired.fencing_token;
                } else {
                    assert!(acquired.fencing_token <= self.highest_fence, "{self}");
                }
            }
            (LockAnswer::Held { .. }, Ok(Some(Outcome::Held(_)))) => {}
            (LockAnswer::Lost(reason), Ok(Some(Outcome::Lost(lost)))) => {
                let lost: &Lost = lost;
                assert_eq!(lost.reason(), proto_reason(*reason), "{self}");
            }
            (LockAnswer::Invalid(_), Err(status)) => {
                assert_eq!(status.code(), Code::InvalidArgument, "{status:?}\n{self}");
            }
            (expected, other) => panic!("not {expected:?} but {other:?}\n{self}"),
        }
    }

    fn request(&self, op: &AcquireOp, waits_in_turn: bool) -> AcquireLockRequest {
        let mode = match op.mode {
            Mode::Exclusive => LockMode::Exclusive,
            Mode::Shared => LockMode::Shared,
        };
        let mut request = AcquireLockRequest {
            mode: mode.into(),
            max_holders: i32::try_from(op.max_holders).expect("few"),
            ..waits(&self.lock, &name(op.token))
        };
        if !waits_in_turn {
            request.wait = millis(0);
        }
        request
    }

    /// Everybody who waits still gives up; how often what was tried.
    async fn ends(mut self) -> BTreeMap<&'static str, usize> {
        for token in self.oracle.waiting().into_iter().rev() {
            self.leaves(token).await;
        }
        self.counts
    }
}

fn name(token: Token) -> String {
    token.to_string()
}

fn holder_name(token: Token) -> String {
    format!("holder {token}")
}

fn proto_reason(reason: Reason) -> LossReason {
    match reason {
        Reason::NotFound => LossReason::NotFound,
        Reason::TakenOver => LossReason::TakenOver,
        Reason::Released => LossReason::Released,
        Reason::Forced => LossReason::Forced,
        Reason::Completed => LossReason::Completed,
        Reason::LeaseOver => LossReason::LeaseOver,
    }
}

/// How it came to this.
impl fmt::Display for Walk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.log.len().saturating_sub(40);
        let log = self.log[last..].join("\n");
        write!(
            f,
            "{}, seed {}\n{log}\nthe queue: {:?}",
            self.lock,
            self.seed,
            self.oracle.waiting()
        )
    }
}
