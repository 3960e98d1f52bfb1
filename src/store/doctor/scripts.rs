//! Runs a claim and a lock through their lives, on names that nobody else has.

use super::super::{Attempt, Patience, Store, StoreSettings, client, keys};
use crate::domain::claim::{
    Abandon, AbandonEffect, AbandonOutcome, Claim, ClaimOutcome, Complete, CompleteOutcome,
    LeaseOverPolicy, RenewClaim,
};
use crate::domain::duration::{
    ClaimLease, ClaimWait, HoldAtLeast, LockDelay, LockLease, LockWait, Millis, Retention,
};
use crate::domain::failure::Failure;
use crate::domain::fingerprint::{Content, Fingerprint};
use crate::domain::lease::RenewOutcome;
use crate::domain::lock::{
    AcquireLock, AcquireOutcome, LockMode, ReleaseLock, ReleaseOutcome, RenewLock,
};
use crate::domain::name::{
    AbandonReason, ClaimId, Holder, IdempotencyKey, LockId, Operation, Resource, Scope, Tenant,
};
use crate::domain::token::{ClaimToken, LockToken, Nonce};
use crate::metrics::{Metrics, TenantLimit};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Whose names they are: no credential is for this tenant.
const TENANT: &str = "claimlock-doctor";
const SECOND: Duration = Duration::from_secs(1);

/// What came of running the scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scripts {
    /// All loaded, and those that were run did what they should, in this time.
    Work(Duration),
    /// They were not run: what was found before says why they would fail.
    NotRun,
    /// A step failed.
    Fail {
        /// Which step.
        step: &'static str,
        /// Why, in Redis's words.
        cause: String,
    },
}

pub(super) fn scratch_claim() -> ClaimId {
    ClaimId {
        tenant: tenant(),
        scope: Scope::parse(String::new()).expect("it may be empty"),
        key: IdempotencyKey::parse(unique()).expect("it is printable"),
    }
}

pub(super) fn scratch_lock() -> LockId {
    LockId {
        tenant: tenant(),
        resource: Resource::parse(unique()).expect("it is printable"),
    }
}

fn tenant() -> Tenant {
    Tenant::parse(TENANT.to_owned()).expect("it is one")
}

fn unique() -> String {
    Uuid::new_v4().to_string()
}

/// Runs them; what is left is removed, and goes by itself within seconds where it cannot be.
pub(super) async fn run(url: &str, timeout: Duration) -> Scripts {
    let settings = StoreSettings {
        connections: 1,
        timeout,
        memory: Millis::rounded_up(SECOND),
        max_retention: Retention::largest(Millis::rounded_up(SECOND)),
    };
    // Nobody reads them.
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"), TenantLimit::none());
    let store = match Store::open(url, settings, metrics) {
        Ok(store) => store,
        Err(bad) => {
            return Scripts::Fail {
                step: "open",
                cause: bad.to_string(),
            };
        }
    };
    let start = Instant::now();
    let (claims, lock) = ([scratch_claim(), scratch_claim()], scratch_lock());
    let ran = async {
        live_claims(&store, &claims, timeout).await?;
        live_lock(&store, &lock, timeout).await
    };
    let outcome = match ran.await {
        Ok(()) => Scripts::Work(start.elapsed()),
        Err(Failed { step, cause }) => Scripts::Fail { step, cause },
    };
    let mut left = keys::lock(&lock);
    left.extend(claims.iter().flat_map(keys::claim));
    // Where this fails, what is left goes by itself.
    let _ = tokio::time::timeout(timeout, remove(url, &left)).await;
    outcome
}

async fn remove(url: &str, keys: &[String]) -> Result<(), redis::RedisError> {
    let Ok(client) = client(url) else {
        return Ok(());
    };
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut unlink = redis::cmd("UNLINK");
    unlink.arg(keys).exec_async(&mut connection).await
}

struct Failed {
    step: &'static str,
    cause: String,
}

/// The outcome of a step, if it is the one to be expected.
fn expected<T: std::fmt::Debug, R>(
    step: &'static str,
    outcome: Result<T, Failure>,
    is: impl FnOnce(&T) -> Option<R>,
) -> Result<R, Failed> {
    let cause = match outcome {
        Ok(outcome) => match is(&outcome) {
            Some(value) => return Ok(value),
            None => format!("unexpected outcome {outcome:?}"),
        },
        Err(Failure::StoreUnavailable { cause, .. } | Failure::Defect(cause)) => {
            cause.for_log().to_owned()
        }
        Err(failure) => format!("{failure:?}"),
    };
    Err(Failed { step, cause })
}

/// One claim is renewed and completed, the other given up.
async fn live_claims(
    store: &Store,
    [completed, abandoned]: &[ClaimId; 2],
    timeout: Duration,
) -> Result<(), Failed> {
    let limit = || Instant::now() + timeout;
    let token = ClaimToken::or_new(String::new()).expect("a new one is one");
    let nothing = Fingerprint::of(&Operation::unnamed(), Content::None);
    let nothing = nothing.expect("there is nothing to refuse");
    for id in [completed, abandoned] {
        let claim = Claim {
            id: id.clone(),
            token: token.clone(),
            operation: Operation::unnamed(),
            fingerprint: nothing.clone(),
            holder: Holder::parse(TENANT.to_owned()).expect("it is short"),
            lease: ClaimLease::parse(SECOND).expect("it is within the limits"),
            retention: Retention::largest(Millis::rounded_up(SECOND)),
            on_lease_over: LeaseOverPolicy::TakeOver,
            wait: ClaimWait::parse(Duration::ZERO).expect("it is within the limits"),
        };
        let claimed = store.claim(&claim, &Nonce::new(), false, limit()).await;
        expected("claim", claimed, |outcome| {
            matches!(outcome, ClaimOutcome::Claimed(_)).then_some(())
        })?;
    }
    let renewal = RenewClaim {
        id: completed.clone(),
        token: token.clone(),
        lease: None,
        checkpoint: None,
    };
    expected(
        "renew claim",
        store.renew_claim(&renewal, None, limit()).await,
        |outcome| matches!(outcome, RenewOutcome::Renewed { .. }).then_some(()),
    )?;
    let completion = Complete {
        id: completed.clone(),
        token: token.clone(),
        response: None,
        retention: None,
        response_retention: None,
        receipt: None,
    };
    expected(
        "complete",
        store.complete(&completion, limit()).await,
        |outcome| matches!(outcome, CompleteOutcome::Completed { .. }).then_some(()),
    )?;
    expected(
        "look at a claim",
        store.get_claim(completed, limit()).await,
        |_| Some(()),
    )?;
    let abandonment = Abandon {
        id: abandoned.clone(),
        token,
        effect: AbandonEffect::None,
        keep_checkpoint: false,
        reason: AbandonReason::parse(String::new()).expect("it may be empty"),
    };
    expected(
        "abandon",
        store.abandon(&abandonment, limit()).await,
        |outcome| matches!(outcome, AbandonOutcome::Abandoned).then_some(()),
    )
}

async fn live_lock(store: &Store, id: &LockId, timeout: Duration) -> Result<(), Failed> {
    let limit = || Instant::now() + timeout;
    let token = LockToken::or_new(String::new()).expect("a new one is one");
    let none = Duration::ZERO;
    let acquisition = AcquireLock {
        id: id.clone(),
        token: token.clone(),
        holder: Holder::parse(TENANT.to_owned()).expect("it is short"),
        lease: LockLease::parse(SECOND).expect("it is within the limits"),
        mode: LockMode::Exclusive,
        max_holders: 0,
        hold_at_least: HoldAtLeast::parse(none).expect("it is within the limits"),
        lock_delay: LockDelay::parse(none).expect("it is within the limits"),
        wait: LockWait::parse(none).expect("it is within the limits"),
    };
    expected(
        "acquire",
        store
            .acquire_lock(&acquisition, &Nonce::new(), Patience::None, limit())
            .await,
        |outcome| matches!(outcome, Attempt::Ended(AcquireOutcome::Acquired(_))).then_some(()),
    )?;
    let renewal = RenewLock {
        id: id.clone(),
        token: token.clone(),
        lease: None,
    };
    expected(
        "renew lock",
        store.renew_lock(&renewal, None, limit()).await,
        |outcome| matches!(outcome, RenewOutcome::Renewed { .. }).then_some(()),
    )?;
    let release = ReleaseLock {
        id: id.clone(),
        token,
    };
    expected(
        "release",
        store.release_lock(&release, limit()).await,
        |outcome| matches!(outcome, ReleaseOutcome::Released { .. }).then_some(()),
    )?;
    expected("look at a lock", store.get_lock(id, limit()).await, |_| {
        Some(())
    })
}
