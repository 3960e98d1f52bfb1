//! Claims.

use super::claim_waits::ClaimWaits;
use super::cleanup::{Grant, Undo, What};
use super::report::{Report, Subject};
use super::{CallTime, Coordinator};
use crate::domain::claim::{
    Abandon, AbandonOutcome, Claim, ClaimOutcome, Complete, CompleteOutcome, RenewClaim,
};
use crate::domain::failure::Failure;
use crate::domain::lease::RenewOutcome;
use crate::domain::token::Nonce;
use crate::store::Store;
use crate::trace::{self, Origin};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

impl Coordinator {
    /// Claims a key before the work it stands for is done, at once or after waiting for a claim in flight to end. A new
    /// grant comes with a [`Grant`], to be kept until its caller has heard of it.
    pub async fn claim(
        &self,
        claim: Claim,
        time: CallTime,
    ) -> Result<(ClaimOutcome, Option<Grant>), Failure> {
        let nonce = Nonce::new();
        let lease = Duration::from_millis(claim.lease.millis().get());
        let undo = Undo {
            what: What::Claim(claim.id.clone(), claim.token.clone()),
            nonce: nonce.clone(),
            given_up_at: time.given_up_at(),
            until: time.limit + lease,
        };
        let claim = Arc::new(claim);
        let report = Report::begin(&self.metrics, "claim", Subject::Claim(&claim.id));
        let gone = CancellationToken::new();
        let _gone = gone.clone().drop_guard();
        let claiming = Claiming {
            store: self.store.clone(),
            waits: self.claim_waits.clone(),
            claim: claim.clone(),
            nonce,
            time,
            gone,
        };
        let call = claiming.run();
        let result = self
            .cleanups
            .outlive_caller(undo, call, |outcome| {
                matches!(outcome, ClaimOutcome::Claimed(claimed) if !claimed.already_held)
            })
            .await;
        report.end(result.as_ref().map(|(outcome, _)| outcome));
        if let Ok((ClaimOutcome::Replay(replay), _)) = &result {
            trace::link(&Origin::of_bytes(replay.origin.clone()));
        }
        result
    }

    /// Extends the lease on a claim.
    pub async fn renew_claim(
        &self,
        renewal: RenewClaim,
        limit: Instant,
    ) -> Result<RenewOutcome, Failure> {
        let report = Report::begin(&self.metrics, "renew_claim", Subject::Claim(&renewal.id));
        let result = self.store.renew_claim(&renewal, None, limit).await;
        report.end(result.as_ref());
        result
    }

    /// Stores the result of the work.
    pub async fn complete(
        &self,
        completion: Complete,
        limit: Instant,
    ) -> Result<CompleteOutcome, Failure> {
        let report = Report::begin(&self.metrics, "complete", Subject::Claim(&completion.id));
        let result = self.check_and_complete(&completion, limit).await;
        report.end(result.as_ref());
        result
    }

    async fn check_and_complete(
        &self,
        completion: &Complete,
        limit: Instant,
    ) -> Result<CompleteOutcome, Failure> {
        if let Some(receipt) = &completion.receipt {
            let highest = self.store.highest_fencing_token(limit).await?;
            receipt
                .check_against(highest)
                .map_err(|refused| Failure::field("receipt", refused))?;
        }
        self.store.complete(completion, limit).await
    }

    /// Gives a claim up.
    pub async fn abandon(
        &self,
        abandonment: Abandon,
        limit: Instant,
    ) -> Result<AbandonOutcome, Failure> {
        let report = Report::begin(&self.metrics, "abandon", Subject::Claim(&abandonment.id));
        let result = self.store.abandon(&abandonment, limit).await;
        report.end(result.as_ref());
        result
    }
}

/// One call, which runs to its end even where its caller goes away: what it got is taken back then.
struct Claiming {
    store: Store,
    waits: ClaimWaits,
    claim: Arc<Claim>,
    nonce: Nonce,
    time: CallTime,
    /// Cancelled when the caller went away.
    gone: CancellationToken,
}

impl Claiming {
    async fn run(self) -> Result<ClaimOutcome, Failure> {
        if self.claim.wait.millis().get() > 0
            && let Some(result) = self.wait().await
        {
            return result;
        }
        self.attempt(false, self.time.limit).await
    }

    async fn attempt(&self, told_of_end: bool, limit: Instant) -> Result<ClaimOutcome, Failure> {
        self.store
            .claim(&self.claim, &self.nonce, told_of_end, limit)
            .await
    }

    /// Tries until something else than a claim in flight is the answer; none where the wait is over before.
    async fn wait(&self) -> Option<Result<ClaimOutcome, Failure>> {
        let wait = Duration::from_millis(self.claim.wait.millis().get());
        let wait_until = self.time.wait_until(Instant::now(), wait);
        // A wake-up may overtake the answer that says that there is something to wait for.
        let mut waiting = self.waits.enter(&self.claim.id, &self.claim.token);
        loop {
            let limit = (Instant::now() + self.store.timeout()).min(self.time.limit);
            match self.attempt(true, limit).await {
                Ok(ClaimOutcome::InFlight(in_flight)) => waiting.refused(in_flight.lease_left),
                // Whoever waits already goes on for as long as it wants to.
                Err(Failure::StoreUnavailable { .. }) if waiting.was_refused() => waiting.unheard(),
                result => {
                    waiting.answered(&result);
                    return Some(result);
                }
            }
            tokio::select! {
                biased;
                () = self.gone.cancelled() => return Some(Err(Failure::Cancelled)),
                () = self.time.drain.cancelled() => return Some(Err(Failure::Draining)),
                () = waiting.called() => {}
                () = tokio::time::sleep_until(wait_until.into()) => return None,
            }
        }
    }
}
