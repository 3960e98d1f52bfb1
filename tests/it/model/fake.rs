//! A service that answers from the oracle, at an instant that it does not tell, on a clock that
//! moves only with its calls and pauses. Faults can be built into it.

mod answers;
mod requests;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use claimlock::rpc::proto;
use tonic::Status;

use super::check::{Subject, World};
use super::claims::{ClaimAnswer, ClaimCall, ClaimKey, Policy, Receipt};
use super::clock::Clock;
use super::locks::{LockAnswer, LockCall, LockResource};
use super::{Fencing, Settings};

/// What a fake gets wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// It remembers spent tokens for half as long.
    ShortMemory,
    /// Uncertain claims are kept no longer than others.
    UncertainRunsOut,
    /// It judges every end by a clock that is late.
    LateClock,
    /// It tells a longer lease than it keeps.
    LeaseTold,
    /// A grant gets the fencing token of the one before it.
    FencingRepeats,
    /// A repeat looks like a new grant.
    RepeatLooksNew,
    /// A takeover is not told.
    TakeoverHidden,
    CheckpointLost,
    /// The response is replayed with its headers in another order.
    ResponseAltered,
    /// Whatever is lost was released.
    LossReasonWrong,
    /// Nobody learns that the lock has a holder.
    HoldersHidden,
    /// A refusal does not name the field.
    RefusalUnnamed,
    /// From here on: what a call asks for is ignored, which shows only in later answers.
    PolicyIgnored,
    SequenceIgnored,
    KeepIgnored,
    ResponseRetentionIgnored,
    ReceiptIgnored,
    LimitIgnored,
    DelayIgnored,
    HoldIgnored,
}

pub struct Fake<'a> {
    world: &'a World,
    fault: Fault,
    settings: Settings,
    now: Cell<i64>,
    random: Cell<u64>,
    /// Calls take up to this long, one in eight of them ten times as long.
    slowness_us: i64,
    keys: RefCell<HashMap<String, ClaimKey>>,
    resources: RefCell<HashMap<String, LockResource>>,
    last_fencing: Cell<i64>,
}

impl<'a> Fake<'a> {
    pub fn new(world: &'a World, seed: u64, slowness_us: i64, fault: Fault) -> Self {
        let mut settings = world.settings;
        match fault {
            Fault::ShortMemory => settings.memory_us /= 2,
            Fault::UncertainRunsOut => settings.max_retention_us = 0,
            _ => {}
        }
        Self {
            world,
            fault,
            settings,
            now: Cell::new(1_700_000_000_000_000),
            random: Cell::new(seed | 1),
            slowness_us,
            keys: RefCell::default(),
            resources: RefCell::default(),
            last_fencing: Cell::new(0),
        }
    }

    /// Some time passes: half of a round trip.
    fn travel(&self) {
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        let stretch = if random.is_multiple_of(8) { 10 } else { 1 };
        let range = u64::try_from(self.slowness_us).expect("not negative") * stretch + 1;
        let took = i64::try_from((random >> 8) % range).expect("a short time");
        self.now.set(self.now.get() + took);
    }

    fn clock(&self) -> Clock {
        let late = i64::from(self.fault == Fault::LateClock) * 15_000;
        Clock::exact(self.now.get() - late)
    }

    fn mint(&self, highest: i64) -> i64 {
        let fencing = match self.fault {
            Fault::FencingRepeats if highest > 0 => highest,
            _ => self.now.get().max(self.last_fencing.get() + 1),
        };
        self.last_fencing.set(fencing);
        fencing
    }

    /// The answer, its fencing token, and how many receipts the key has given.
    fn on_key(&self, name: &str, call: &ClaimCall) -> (ClaimAnswer, i64, usize) {
        self.travel();
        let mut keys = self.keys.borrow_mut();
        let key = keys
            .entry(name.to_owned())
            .or_insert_with(|| ClaimKey::new(self.settings));
        let call = self.ignore_in_claim(call);
        let mut answer = key.apply(&call, &mut self.clock());
        let mut told = 0;
        if let ClaimAnswer::Claimed { fencing, .. } = answer {
            told = match fencing {
                Fencing::Same(fencing) => fencing,
                Fencing::New => {
                    let minted = self.mint(key.highest_fencing());
                    key.note_fencing(minted);
                    minted
                }
            };
        }
        let receipts = key.receipts_given();
        drop(keys);
        self.spoil_claim(&mut answer);
        (answer, told, receipts)
    }

    fn on_resource(&self, name: &str, call: &LockCall) -> (LockAnswer, i64) {
        self.travel();
        let mut resources = self.resources.borrow_mut();
        let resource = resources
            .entry(name.to_owned())
            .or_insert_with(|| LockResource::new(self.settings));
        let call = self.ignore_in_lock(call);
        let mut answer = resource.apply(&call, &mut self.clock());
        let mut told = 0;
        if let LockAnswer::Acquired { fencing, .. } = answer {
            told = match fencing {
                Fencing::Same(fencing) => fencing,
                Fencing::New => {
                    let minted = self.mint(resource.highest_fencing());
                    resource.note_fencing(minted);
                    minted
                }
            };
        }
        drop(resources);
        self.spoil_lock(&mut answer);
        (answer, told)
    }

    fn ignore_in_claim(&self, call: &ClaimCall) -> ClaimCall {
        let mut call = call.clone();
        match (self.fault, &mut call) {
            (Fault::PolicyIgnored, ClaimCall::Claim(op)) => op.policy = Policy::TakeOver,
            (Fault::SequenceIgnored, ClaimCall::Renew(op)) => op.sequence = 0,
            (Fault::KeepIgnored, ClaimCall::Abandon(op)) => op.keep_checkpoint = false,
            (Fault::ResponseRetentionIgnored, ClaimCall::Complete(op)) => {
                op.response_retention_ms = None;
            }
            (Fault::ReceiptIgnored, ClaimCall::Complete(op)) => op.receipt = Receipt::None,
            _ => {}
        }
        call
    }

    fn ignore_in_lock(&self, call: &LockCall) -> LockCall {
        let mut call = call.clone();
        if let LockCall::Acquire(op) = &mut call {
            match self.fault {
                Fault::LimitIgnored => op.max_holders = 0,
                Fault::DelayIgnored => op.lock_delay_ms = 0,
                Fault::HoldIgnored => op.hold_at_least_ms = 0,
                _ => {}
            }
        }
        call
    }

    fn spoil_claim(&self, answer: &mut ClaimAnswer) {
        match (self.fault, answer) {
            (Fault::LeaseTold, ClaimAnswer::Claimed { lease_end, .. }) => {
                *lease_end = lease_end.plus(60_000);
            }
            (Fault::RepeatLooksNew, ClaimAnswer::Claimed { already_held, .. }) => {
                *already_held = false;
            }
            (Fault::TakeoverHidden, ClaimAnswer::Claimed { taken_over, .. }) => *taken_over = false,
            (Fault::CheckpointLost, ClaimAnswer::Claimed { checkpoint, .. }) => *checkpoint = 0,
            (Fault::ResponseAltered, ClaimAnswer::Replay { response, .. }) => {
                *response = response.map(|number| if number == 1 { 2 } else { number });
            }
            (Fault::LossReasonWrong, ClaimAnswer::Lost(reason)) => {
                *reason = super::Reason::Released;
            }
            _ => {}
        }
    }

    fn spoil_lock(&self, answer: &mut LockAnswer) {
        match (self.fault, answer) {
            (Fault::LeaseTold, LockAnswer::Acquired { lease_end, .. }) => {
                *lease_end = lease_end.plus(60_000);
            }
            (Fault::RepeatLooksNew, LockAnswer::Acquired { already_held, .. }) => {
                *already_held = false;
            }
            (Fault::LossReasonWrong, LockAnswer::Lost(reason)) => *reason = super::Reason::Released,
            (Fault::HoldersHidden, LockAnswer::Held { holders, .. }) => holders.clear(),
            _ => {}
        }
    }

    /// Ends a call: its reply travels back.
    fn reply<T>(&self, answer: Result<T, &'static str>) -> Result<T, Status> {
        self.travel();
        answer.map_err(|field| match self.fault {
            Fault::RefusalUnnamed => Status::invalid_argument("something is wrong"),
            _ => answers::refusal(field),
        })
    }
}

impl Subject for Fake<'_> {
    async fn now_us(&self) -> i64 {
        self.now.get()
    }

    async fn pause(&self, time: Duration) {
        let us = i64::try_from(time.as_micros()).expect("a short pause");
        self.now.set(self.now.get() + us);
    }

    async fn lose_key(&self, _tenant: &str, key: &str) -> bool {
        if let Some(state) = self.keys.borrow_mut().get_mut(key) {
            state.lose();
        }
        true
    }

    async fn claim(&self, request: proto::ClaimRequest) -> Result<proto::ClaimResponse, Status> {
        let call = requests::claim(&request);
        let (answer, fencing, receipts) = self.on_key(&request.key, &call);
        let receipt = requests::receipt_of(&request.key, receipts);
        let told = answers::Told {
            now: self.now.get(),
            token: request.claim_token,
            fencing,
            receipt,
        };
        self.reply(Ok(answers::claim(answer, told)))
    }

    async fn renew_claim(
        &self,
        request: proto::RenewClaimRequest,
    ) -> Result<proto::RenewClaimResponse, Status> {
        let (answer, ..) = self.on_key(&request.key, &requests::renew_claim(&request));
        self.reply(Ok(answers::renew_claim(answer, self.now.get())))
    }

    async fn complete(
        &self,
        request: proto::CompleteRequest,
    ) -> Result<proto::CompleteResponse, Status> {
        let (answer, ..) = self.on_key(&request.key, &requests::complete(&request));
        self.reply(answers::complete(answer, self.now.get()))
    }

    async fn abandon(
        &self,
        request: proto::AbandonRequest,
    ) -> Result<proto::AbandonResponse, Status> {
        let (answer, ..) = self.on_key(&request.key, &requests::abandon(&request));
        self.reply(Ok(answers::abandon(answer)))
    }

    async fn get_claim(
        &self,
        request: proto::GetClaimRequest,
    ) -> Result<proto::GetClaimResponse, Status> {
        let (answer, ..) = self.on_key(&request.key, &ClaimCall::Get);
        self.reply(Ok(answers::get_claim(
            answer,
            self.now.get(),
            &self.world.tenant,
        )))
    }

    async fn resolve_claim(
        &self,
        request: proto::ResolveClaimRequest,
    ) -> Result<proto::ResolveClaimResponse, Status> {
        let (answer, ..) = self.on_key(&request.key, &requests::resolve(&request));
        self.reply(Ok(answers::resolve(&answer)))
    }

    async fn acquire_lock(
        &self,
        request: proto::AcquireLockRequest,
    ) -> Result<proto::AcquireLockResponse, Status> {
        let (answer, fencing) = self.on_resource(&request.resource, &requests::acquire(&request));
        let answer = answers::acquire(answer, self.now.get(), request.lock_token, fencing);
        self.reply(answer)
    }

    async fn renew_lock(
        &self,
        request: proto::RenewLockRequest,
    ) -> Result<proto::RenewLockResponse, Status> {
        let (answer, _) = self.on_resource(&request.resource, &requests::renew_lock(&request));
        self.reply(Ok(answers::renew_lock(answer, self.now.get())))
    }

    async fn release_lock(
        &self,
        request: proto::ReleaseLockRequest,
    ) -> Result<proto::ReleaseLockResponse, Status> {
        let call = LockCall::Release(requests::token(&request.lock_token));
        let (answer, _) = self.on_resource(&request.resource, &call);
        self.reply(Ok(answers::release(answer, self.now.get())))
    }

    async fn get_lock(
        &self,
        request: proto::GetLockRequest,
    ) -> Result<proto::GetLockResponse, Status> {
        let (answer, _) = self.on_resource(&request.resource, &LockCall::Get);
        self.reply(Ok(answers::get_lock(answer, self.now.get())))
    }

    async fn force_release_lock(
        &self,
        request: proto::ForceReleaseLockRequest,
    ) -> Result<proto::ForceReleaseLockResponse, Status> {
        let call = LockCall::ForceRelease {
            fencing: request.fencing_token,
        };
        let (answer, _) = self.on_resource(&request.resource, &call);
        self.reply(Ok(answers::force_release(&answer)))
    }
}
