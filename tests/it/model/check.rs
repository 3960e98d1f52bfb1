//! Sends a sequence of calls to a service, one after the other, and compares every answer with the
//! oracle's.
//!
//! For each name a few states are kept in which the service can be, given all answers so far. A
//! call moves each on in every way that its window allows; those that foretold the answer remain.
//! Where none does, the service and the tables disagree.

mod compare;
mod told;
pub mod wire;

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use claimlock::rpc::proto;
use prost::bytes::Bytes;
use tonic::Status;

use super::claims::{ClaimCall, ClaimKey, Receipt};
use super::clock::{Branch, Clock, Moment, explore};
use super::coverage::Coverage;
use super::locks::{LockCall, LockResource};
use super::ops::{FencingChoice, KeyOp, LATEST, Op, ReceiptChoice, ResourceOp};
use super::{Settings, Token};
use compare::{ClaimSeen, LockSeen};
use told::Ledger;
use wire::Spelling;

/// A pause never gets longer than this: what changes later is left alone.
const LONGEST_PAUSE_US: i64 = 3_000_000;

/// Far more states than calls close to a boundary leave open. On a machine that stalls for longer
/// than the leases last there could be more, and nothing to be learned from them.
const MOST_CANDIDATES: usize = 256;

type Answer<T> = Result<T, Status>;

/// The service under test.
pub trait Subject {
    /// The time in microseconds on the clock that the service judges by.
    async fn now_us(&self) -> i64;

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Makes the store lose everything about a key, as a crash would. False where that cannot be
    /// done.
    async fn lose_key(&self, _tenant: &str, _key: &str) -> bool {
        false
    }

    async fn claim(&self, request: proto::ClaimRequest) -> Answer<proto::ClaimResponse>;
    async fn renew_claim(
        &self,
        request: proto::RenewClaimRequest,
    ) -> Answer<proto::RenewClaimResponse>;
    async fn complete(&self, request: proto::CompleteRequest) -> Answer<proto::CompleteResponse>;
    async fn abandon(&self, request: proto::AbandonRequest) -> Answer<proto::AbandonResponse>;
    async fn get_claim(&self, request: proto::GetClaimRequest) -> Answer<proto::GetClaimResponse>;
    async fn resolve_claim(
        &self,
        request: proto::ResolveClaimRequest,
    ) -> Answer<proto::ResolveClaimResponse>;
    async fn acquire_lock(
        &self,
        request: proto::AcquireLockRequest,
    ) -> Answer<proto::AcquireLockResponse>;
    async fn renew_lock(
        &self,
        request: proto::RenewLockRequest,
    ) -> Answer<proto::RenewLockResponse>;
    async fn release_lock(
        &self,
        request: proto::ReleaseLockRequest,
    ) -> Answer<proto::ReleaseLockResponse>;
    async fn get_lock(&self, request: proto::GetLockRequest) -> Answer<proto::GetLockResponse>;
    async fn force_release_lock(
        &self,
        request: proto::ForceReleaseLockRequest,
    ) -> Answer<proto::ForceReleaseLockResponse>;
}

/// What a sequence runs against besides the service itself.
#[derive(Clone, Debug)]
pub struct World {
    pub tenant: String,
    /// At most 40 of `[A-Za-z0-9_-]`, and never used before: every sequence starts on fresh names.
    pub prefix: String,
    pub settings: Settings,
    /// By how much times may be off beyond rounding: 0 where the service tells what the store says.
    pub tolerance_us: i64,
}

/// An answer that the tables do not allow.
#[derive(Debug)]
pub struct Disagreement {
    trace: Vec<Line>,
    objections: Vec<String>,
}

/// A call and its answer, printed only when something is wrong.
#[derive(Debug)]
struct Line {
    window: Moment,
    name: String,
    call: Arc<dyn Debug + Send + Sync>,
    seen: Arc<dyn Debug + Send + Sync>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment { earliest, latest } = self.window;
        let took = latest - earliest;
        let Self {
            name, call, seen, ..
        } = self;
        write!(f, "{earliest} +{took} {name}: {call:?} -> {seen:?}")
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "after these calls:")?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "the last answer is not one of those foretold:")?;
        for objection in &self.objections {
            writeln!(f, "  {objection}")?;
        }
        Ok(())
    }
}

enum Stop {
    Disagreement(Vec<String>),
    TooSlow,
}

/// Runs one sequence, and tells which cells of the tables it went through.
pub async fn run<S: Subject>(
    subject: &S,
    world: &World,
    ops: &[Op],
) -> Result<Coverage, Box<Disagreement>> {
    let mut driver = Driver {
        subject,
        world,
        keys: Vec::new(),
        resources: Vec::new(),
        coverage: Coverage::default(),
        trace: Vec::new(),
    };
    for (step, op) in ops.iter().enumerate() {
        let outcome = match op {
            Op::Key { key, op } => driver.on_key(*key, op, Spelling::of(step)).await,
            Op::LoseKey { key } => {
                driver.lose_key(*key).await;
                Ok(())
            }
            Op::Resource { resource, op } => {
                driver.on_resource(*resource, op, Spelling::of(step)).await
            }
            Op::Pause { ms } => {
                subject.pause(Duration::from_millis(*ms)).await;
                Ok(())
            }
            Op::PauseUntil { nth, offset_us } => {
                driver.pause_until(*nth, *offset_us).await;
                Ok(())
            }
        };
        match outcome {
            Ok(()) => {}
            Err(Stop::TooSlow) => {
                driver.coverage.cut_short();
                break;
            }
            Err(Stop::Disagreement(objections)) => {
                return Err(Box::new(Disagreement {
                    trace: driver.trace,
                    objections,
                }));
            }
        }
    }
    Ok(driver.coverage)
}

struct Driver<'a, S> {
    subject: &'a S,
    world: &'a World,
    keys: Vec<Key>,
    resources: Vec<Resource>,
    coverage: Coverage,
    trace: Vec<Line>,
}

struct Key {
    candidates: Vec<ClaimKey>,
    /// With the token that each was given to, in the order in which they were given.
    receipts: Vec<(Token, Bytes)>,
    grants: Vec<(Token, i64)>,
}

struct Resource {
    candidates: Vec<LockResource>,
    granted_last: Token,
}

impl<S: Subject> Driver<'_, S> {
    async fn on_key(&mut self, index: usize, op: &KeyOp, spelling: Spelling) -> Result<(), Stop> {
        self.meet_keys(index);
        let (call, receipt) = self.claim_call(index, op);
        let token = call.token().map(|token| self.world.token(token));
        let token = token.unwrap_or_default();
        let sent = self.subject.now_us().await;
        let seen = self.send_claim(index, &call, receipt, spelling).await;
        let window = Moment::between(sent, self.subject.now_us().await);
        let (call, seen) = (Arc::new(call), Arc::new(seen));
        self.note(window, self.world.key(index), call.clone(), seen.clone());

        let candidates = &self.keys[index].candidates;
        let middle = &mut middle_of(window);
        let cell = candidates[0].cell(&call, middle);
        let granted = seen
            .granted()
            .filter(|claimed| !claimed.already_held)
            .map(|claimed| claimed.fencing_token);
        let (remaining, outcome) = advance(
            candidates,
            window,
            |state, clock| state.apply(&call, clock),
            |state, branch| {
                let ledger = ledger(self.world, branch.now, state.highest_fencing());
                compare::claim(&seen, &branch.answer, &token, &ledger, self.world)
            },
            |state| {
                if let Some(fencing) = granted {
                    state.note_fencing(fencing);
                }
            },
        )?;
        self.coverage.hit(cell, &outcome);
        let key = &mut self.keys[index];
        key.candidates = remaining;
        if let (Some(claimed), Some(token)) = (seen.granted(), call.token()) {
            key.receipts.push((token, claimed.receipt.clone()));
            key.grants.extend(granted.map(|fencing| (token, fencing)));
        }
        Ok(())
    }

    fn note(
        &mut self,
        window: Moment,
        name: String,
        call: Arc<dyn Debug + Send + Sync>,
        seen: Arc<dyn Debug + Send + Sync>,
    ) {
        self.trace.push(Line {
            window,
            name,
            call,
            seen,
        });
    }

    fn meet_keys(&mut self, index: usize) {
        while self.keys.len() <= index {
            self.keys.push(Key {
                candidates: vec![ClaimKey::new(self.world.settings)],
                receipts: Vec::new(),
                grants: Vec::new(),
            });
        }
    }

    async fn lose_key(&mut self, index: usize) {
        self.meet_keys(index);
        let name = self.world.key(index);
        if self.subject.lose_key(&self.world.tenant, &name).await {
            let at = Moment::exact(self.subject.now_us().await);
            self.note(at, name, Arc::new("lost"), Arc::new(()));
            for state in &mut self.keys[index].candidates {
                state.lose();
            }
        }
    }

    async fn on_resource(
        &mut self,
        index: usize,
        op: &ResourceOp,
        spelling: Spelling,
    ) -> Result<(), Stop> {
        let settings = self.world.settings;
        while self.resources.len() <= index {
            self.resources.push(Resource {
                candidates: vec![LockResource::new(settings)],
                granted_last: 0,
            });
        }
        let call = self.resources[index].call(op);
        let token = call.token().map(|token| self.world.token(token));
        let token = token.unwrap_or_default();
        let sent = self.subject.now_us().await;
        let seen = self.send_lock(index, &call, spelling).await;
        let window = Moment::between(sent, self.subject.now_us().await);
        let (call, seen) = (Arc::new(call), Arc::new(seen));
        let name = self.world.resource(index);
        self.note(window, name, call.clone(), seen.clone());

        let candidates = &self.resources[index].candidates;
        let middle = &mut middle_of(window);
        let cell = candidates[0].cell(&call, middle);
        let granted = seen
            .granted()
            .filter(|acquired| !acquired.already_held)
            .map(|acquired| acquired.fencing_token);
        let (remaining, outcome) = advance(
            candidates,
            window,
            |state, clock| state.apply(&call, clock),
            |state, branch| {
                let ledger = ledger(self.world, branch.now, state.highest_fencing());
                compare::lock(&seen, &branch.answer, &token, &ledger)
            },
            |state| {
                if let Some(fencing) = granted {
                    state.note_fencing(fencing);
                }
            },
        )?;
        self.coverage.hit(cell, &outcome);
        let resource = &mut self.resources[index];
        resource.candidates = remaining;
        if let (Some(_), Some(token)) = (granted, call.token()) {
            resource.granted_last = token;
        }
        Ok(())
    }

    /// Pauses until the `nth` of the instants ahead at which some name changes of itself.
    async fn pause_until(&self, nth: usize, offset_us: i64) {
        let now = self.subject.now_us().await;
        let keys = self.keys.iter().flat_map(|key| &key.candidates[..1]);
        let resources = self.resources.iter().flat_map(|it| &it.candidates[..1]);
        let mut ahead: Vec<_> = keys
            .flat_map(ClaimKey::boundaries)
            .chain(resources.flat_map(LockResource::boundaries))
            .map(|end| end.latest + offset_us - now)
            .filter(|left| (1..LONGEST_PAUSE_US).contains(left))
            .collect();
        ahead.sort_unstable();
        ahead.dedup();
        if let Some(left) = ahead.get(nth).or(ahead.last()) {
            let left = u64::try_from(*left).expect("ahead of now");
            self.subject.pause(Duration::from_micros(left)).await;
        }
    }

    /// The call and, as it goes over the wire, its receipt.
    fn claim_call(&self, index: usize, op: &KeyOp) -> (ClaimCall, Bytes) {
        let key = &self.keys[index];
        let latest = key.grants.last().map_or(0, |(token, _)| *token);
        let call = match op.clone() {
            KeyOp::Claim(op) => ClaimCall::Claim(op),
            KeyOp::Renew(mut op) => {
                settle(&mut op.token, latest);
                ClaimCall::Renew(op)
            }
            KeyOp::Complete(mut op, choice) => {
                settle(&mut op.token, latest);
                let (receipt, bytes) = self.receipt(index, op.token, choice);
                op.receipt = receipt;
                return (ClaimCall::Complete(op), bytes);
            }
            KeyOp::Abandon(mut op) => {
                settle(&mut op.token, latest);
                ClaimCall::Abandon(op)
            }
            KeyOp::Get => ClaimCall::Get,
            KeyOp::Resolve(choice, resolution) => {
                let current = key.candidates[0].current_fencing();
                let fencing = match choice {
                    FencingChoice::Current | FencingChoice::All => current,
                    FencingChoice::Stale => key.grants.iter().rev().nth(1).map(|grant| grant.1),
                };
                ClaimCall::Resolve {
                    fencing: fencing.unwrap_or(1),
                    resolution,
                }
            }
        };
        (call, Bytes::new())
    }

    fn receipt(&self, index: usize, token: Token, choice: ReceiptChoice) -> (Receipt, Bytes) {
        let receipts = &self.keys[index].receipts;
        let own = |(_, (owner, _)): &(usize, &(Token, Bytes))| *owner == token;
        let found = match choice {
            ReceiptChoice::First => receipts.iter().enumerate().find(own),
            ReceiptChoice::Last => receipts.iter().enumerate().rfind(own),
            ReceiptChoice::OfSomebodyElse => {
                let others = self.keys.iter().enumerate();
                let foreign = others
                    .flat_map(|(other, key)| key.receipts.iter().map(move |given| (other, given)))
                    .find(|(other, (owner, _))| *other != index || *owner != token);
                let garbage = Bytes::from_static(b"\x01a receipt of no key");
                let bytes = foreign.map_or(garbage, |(_, (_, bytes))| bytes.clone());
                return (Receipt::Foreign, bytes);
            }
            ReceiptChoice::Garbage => {
                return (Receipt::Foreign, Bytes::from_static(b"not a receipt"));
            }
            ReceiptChoice::None => None,
        };
        found.map_or((Receipt::None, Bytes::new()), |(at, (_, bytes))| {
            (Receipt::Issued(at), bytes.clone())
        })
    }

    async fn send_claim(
        &self,
        key: usize,
        call: &ClaimCall,
        receipt: Bytes,
        spelling: Spelling,
    ) -> ClaimSeen {
        let (subject, world) = (self.subject, self.world);
        let seen = match call {
            ClaimCall::Claim(op) => {
                let answer = subject.claim(world.claim(key, op, spelling)).await;
                answer.map(ClaimSeen::Claim)
            }
            ClaimCall::Renew(op) => {
                let answer = subject.renew_claim(world.renew_claim(key, op)).await;
                answer.map(ClaimSeen::Renew)
            }
            ClaimCall::Complete(op) => {
                let answer = subject.complete(world.complete(key, op, receipt)).await;
                answer.map(ClaimSeen::Complete)
            }
            ClaimCall::Abandon(op) => {
                let answer = subject.abandon(world.abandon(key, op, spelling)).await;
                answer.map(ClaimSeen::Abandon)
            }
            ClaimCall::Get => {
                let answer = subject.get_claim(world.get_claim(key)).await;
                answer.map(ClaimSeen::Get)
            }
            ClaimCall::Resolve {
                fencing,
                resolution,
            } => {
                let request = world.resolve(key, *fencing, resolution);
                subject.resolve_claim(request).await.map(ClaimSeen::Resolve)
            }
        };
        seen.unwrap_or_else(ClaimSeen::Failed)
    }

    async fn send_lock(&self, resource: usize, call: &LockCall, spelling: Spelling) -> LockSeen {
        let (subject, world) = (self.subject, self.world);
        let seen = match call {
            LockCall::Acquire(op) => {
                let request = world.acquire(resource, op, spelling);
                subject.acquire_lock(request).await.map(LockSeen::Acquire)
            }
            LockCall::Renew { token, lease_ms } => {
                let request = world.renew_lock(resource, *token, *lease_ms);
                subject.renew_lock(request).await.map(LockSeen::Renew)
            }
            LockCall::Release(token) => {
                let request = world.release(resource, *token);
                subject.release_lock(request).await.map(LockSeen::Release)
            }
            LockCall::Get => {
                let answer = subject.get_lock(world.get_lock(resource)).await;
                answer.map(LockSeen::Get)
            }
            LockCall::ForceRelease { fencing } => {
                let request = world.force_release(resource, *fencing);
                let answer = subject.force_release_lock(request).await;
                answer.map(LockSeen::Force)
            }
        };
        seen.unwrap_or_else(LockSeen::Failed)
    }
}

impl Resource {
    fn call(&self, op: &ResourceOp) -> LockCall {
        let latest = self.granted_last;
        match op.clone() {
            ResourceOp::Acquire(op) => LockCall::Acquire(op),
            ResourceOp::Renew {
                mut token,
                lease_ms,
            } => {
                settle(&mut token, latest);
                LockCall::Renew { token, lease_ms }
            }
            ResourceOp::Release(mut token) => {
                settle(&mut token, latest);
                LockCall::Release(token)
            }
            ResourceOp::Get => LockCall::Get,
            ResourceOp::ForceRelease(choice) => LockCall::ForceRelease {
                fencing: match choice {
                    FencingChoice::All => 0,
                    FencingChoice::Current => self.candidates[0].current_fencing().unwrap_or(1),
                    FencingChoice::Stale => 1,
                },
            },
        }
    }
}

/// Moves every candidate on and keeps those that foretold what was seen. Also tells one of
/// those answers.
fn advance<M: Clone + PartialEq, A: Debug>(
    candidates: &[M],
    window: Moment,
    step: impl Fn(&mut M, &mut Clock) -> A,
    agrees: impl Fn(&M, &Branch<M, A>) -> Result<(), String>,
    feed: impl Fn(&mut M),
) -> Result<(Vec<M>, A), Stop> {
    let mut remaining = Vec::new();
    let mut outcome = None;
    let mut objections = Vec::new();
    for candidate in candidates {
        for branch in explore(candidate, window, &step) {
            match agrees(candidate, &branch) {
                Ok(()) => {
                    let mut state = branch.state;
                    feed(&mut state);
                    if !remaining.contains(&state) {
                        remaining.push(state);
                    }
                    outcome.get_or_insert(branch.answer);
                }
                Err(why) => objections.push(format!("{why}; foretold {:?}", branch.answer)),
            }
        }
    }
    match outcome {
        None => Err(Stop::Disagreement(objections)),
        Some(_) if remaining.len() > MOST_CANDIDATES => Err(Stop::TooSlow),
        Some(outcome) => Ok((remaining, outcome)),
    }
}

fn settle(token: &mut Token, latest: Token) {
    if *token == LATEST {
        *token = latest;
    }
}

fn ledger(world: &World, now: Moment, highest_fencing: i64) -> Ledger {
    Ledger {
        now,
        highest_fencing,
        tolerance_us: world.tolerance_us,
    }
}

fn middle_of(window: Moment) -> Clock {
    Clock::exact(window.earliest.midpoint(window.latest))
}
