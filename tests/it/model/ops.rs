//! Random sequences of calls: few tokens on few names, so that they meet, and pauses that end close
//! to the instants at which something changes of itself.

use std::ops::RangeInclusive;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::Token;
use super::claims::{
    AbandonOp, ClaimOp, CompleteOp, Effect, Policy, Receipt, RenewClaimOp, Request, Resolution,
};
use super::locks::{AcquireOp, Mode};

const TOKENS: u8 = 4;
/// Stands for the token that was granted the name last: left to chance, too few calls would be
/// those of a holder.
pub const LATEST: Token = Token::MAX;

const LEASE_MS: RangeInclusive<i64> = 30..=400;
/// The shortest retention that a client may ask for is a second.
const RETENTION_MS: RangeInclusive<i64> = 1000..=1600;
const RESPONSE_RETENTION_MS: RangeInclusive<i64> = 30..=600;

/// Responses, checkpoints, requests and operations are told by number; [`super::check`] knows what
/// they look like on the wire.
pub const RESPONSES: u8 = 4;
pub const CHECKPOINTS: u8 = 4;
pub const FINGERPRINTS: u8 = 4;
pub const OPERATIONS: u8 = 2;

#[derive(Clone, Debug)]
pub enum Op {
    Key {
        key: usize,
        op: KeyOp,
    },
    Resource {
        resource: usize,
        op: ResourceOp,
    },
    /// Everything about a key is lost, where the service under test can be made to lose it.
    LoseKey {
        key: usize,
    },
    Pause {
        ms: u64,
    },
    /// Pauses until shortly around one of the next instants at which a name changes of itself.
    PauseUntil {
        nth: usize,
        offset_us: i64,
    },
}

/// A call on a claim. What depends on earlier answers is chosen when its turn comes.
#[derive(Clone, Debug)]
pub enum KeyOp {
    Claim(ClaimOp),
    Renew(RenewClaimOp),
    Complete(CompleteOp, ReceiptChoice),
    Abandon(AbandonOp),
    Get,
    Resolve(FencingChoice, Resolution),
}

#[derive(Clone, Debug)]
pub enum ResourceOp {
    Acquire(AcquireOp),
    Renew { token: Token, lease_ms: Option<i64> },
    Release(Token),
    Get,
    ForceRelease(FencingChoice),
}

#[derive(Clone, Copy, Debug)]
pub enum ReceiptChoice {
    None,
    /// The first or the last that this token was given for this key.
    First,
    Last,
    /// One that was given to another token, or for another key.
    OfSomebodyElse,
    Garbage,
}

#[derive(Clone, Copy, Debug)]
pub enum FencingChoice {
    All,
    Current,
    Stale,
}

/// A sequence of calls on claims alone.
pub fn claims(length: RangeInclusive<usize>) -> impl Strategy<Value = Vec<Op>> {
    let loss = name().prop_map(|key| Op::LoseKey { key });
    vec(prop_oneof![28 => on_key(), 8 => pause(), 1 => loss], length)
}

/// A sequence of calls on locks alone.
pub fn locks(length: RangeInclusive<usize>) -> impl Strategy<Value = Vec<Op>> {
    vec(prop_oneof![7 => on_resource(), 2 => pause()], length)
}

/// One of two, mostly the first: the other shows that names do not meet.
fn name() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0), 1 => Just(1)]
}

fn on_key() -> impl Strategy<Value = Op> {
    (name(), key_op()).prop_map(|(key, op)| Op::Key { key, op })
}

fn on_resource() -> impl Strategy<Value = Op> {
    (name(), resource_op()).prop_map(|(resource, op)| Op::Resource { resource, op })
}

fn pause() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1..60u64).prop_map(|ms| Op::Pause { ms }),
        5 => (nth(), offset()).prop_map(|(nth, offset_us)| Op::PauseUntil { nth, offset_us }),
    ]
}

/// Mostly the next: each of them can be a second away.
fn nth() -> impl Strategy<Value = usize> {
    prop_oneof![6 => Just(0), 1 => Just(1), 1 => Just(2)]
}

fn offset() -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(1_500), 1 => -3_000..3_000i64]
}

fn key_op() -> impl Strategy<Value = KeyOp> {
    prop_oneof![
        10 => claim().prop_map(KeyOp::Claim),
        4 => renew_claim().prop_map(KeyOp::Renew),
        5 => (complete(), receipt()).prop_map(|(op, receipt)| KeyOp::Complete(op, receipt)),
        5 => abandon().prop_map(KeyOp::Abandon),
        2 => Just(KeyOp::Get),
        1 => (fencing(), resolution()).prop_map(|(which, what)| KeyOp::Resolve(which, what)),
    ]
}

fn claim() -> impl Strategy<Value = ClaimOp> {
    let policy = prop_oneof![3 => Just(Policy::TakeOver), 1 => Just(Policy::MarkUncertain)];
    (token(), request(), LEASE_MS, RETENTION_MS, policy).prop_map(
        |(token, request, lease_ms, retention_ms, policy)| ClaimOp {
            token,
            request,
            holder: token,
            lease_ms,
            retention_ms,
            policy,
        },
    )
}

fn token() -> impl Strategy<Value = Token> {
    0..TOKENS
}

fn token_of_holder() -> impl Strategy<Value = Token> {
    prop_oneof![Just(LATEST), token()]
}

/// Mostly the same one, so that not everything ends in a mismatch.
fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        9 => Just((0, 0)),
        1 => (0..FINGERPRINTS, 0..OPERATIONS),
    ]
    .prop_map(|(fingerprint, operation)| Request {
        fingerprint,
        operation,
    })
}

fn renew_claim() -> impl Strategy<Value = RenewClaimOp> {
    (
        token_of_holder(),
        option::of(LEASE_MS),
        option::of(0..CHECKPOINTS),
        0..4i64,
    )
        .prop_map(|(token, lease_ms, checkpoint, sequence)| RenewClaimOp {
            token,
            lease_ms,
            checkpoint,
            sequence,
        })
}

fn complete() -> impl Strategy<Value = CompleteOp> {
    (
        token_of_holder(),
        response(),
        option::of(RETENTION_MS),
        option::weighted(0.3, RESPONSE_RETENTION_MS),
    )
        .prop_map(
            |(token, response, retention_ms, response_retention_ms)| CompleteOp {
                token,
                response,
                retention_ms,
                response_retention_ms,
                receipt: Receipt::None,
            },
        )
}

/// Mostly the same one, so that repeats are equal.
fn response() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![3 => Just(Some(1)), 2 => (0..RESPONSES).prop_map(Some), 1 => Just(None)]
}

fn receipt() -> impl Strategy<Value = ReceiptChoice> {
    prop_oneof![
        10 => Just(ReceiptChoice::None),
        3 => Just(ReceiptChoice::Last),
        1 => Just(ReceiptChoice::First),
        1 => Just(ReceiptChoice::OfSomebodyElse),
        1 => Just(ReceiptChoice::Garbage),
    ]
}

fn abandon() -> impl Strategy<Value = AbandonOp> {
    (token_of_holder(), any::<bool>(), any::<bool>()).prop_map(
        |(token, unknown, keep_checkpoint)| AbandonOp {
            token,
            effect: if unknown {
                Effect::Unknown
            } else {
                Effect::None
            },
            keep_checkpoint,
        },
    )
}

fn fencing() -> impl Strategy<Value = FencingChoice> {
    prop_oneof![
        5 => Just(FencingChoice::Current),
        1 => Just(FencingChoice::Stale),
        2 => Just(FencingChoice::All),
    ]
}

fn resolution() -> impl Strategy<Value = Resolution> {
    prop_oneof![
        (0..RESPONSES).prop_map(Resolution::Complete),
        Just(Resolution::Forget),
        Just(Resolution::EraseResponse),
    ]
}

fn resource_op() -> impl Strategy<Value = ResourceOp> {
    prop_oneof![
        10 => acquire().prop_map(ResourceOp::Acquire),
        4 => (token_of_holder(), option::of(LEASE_MS))
            .prop_map(|(token, lease_ms)| ResourceOp::Renew { token, lease_ms }),
        6 => token_of_holder().prop_map(ResourceOp::Release),
        2 => Just(ResourceOp::Get),
        1 => fencing().prop_map(ResourceOp::ForceRelease),
    ]
}

fn acquire() -> impl Strategy<Value = AcquireOp> {
    let limit = prop_oneof![2 => Just(0usize), 2 => 1..4usize];
    let shared = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)];
    // A limit on an exclusive lock is refused: once in a while that is tried, too.
    let misplaced = prop::bool::weighted(0.02);
    (
        token(),
        shared,
        limit,
        misplaced,
        LEASE_MS,
        sometimes(50..=600),
        sometimes(50..=400),
    )
        .prop_map(
            |(token, mode, limit, misplaced, lease_ms, hold_at_least_ms, lock_delay_ms)| {
                AcquireOp {
                    token,
                    holder: token,
                    mode,
                    max_holders: if mode == Mode::Shared || misplaced {
                        limit
                    } else {
                        0
                    },
                    lease_ms,
                    hold_at_least_ms,
                    lock_delay_ms,
                }
            },
        )
}

fn sometimes(range: RangeInclusive<i64>) -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(0), 2 => range]
}
