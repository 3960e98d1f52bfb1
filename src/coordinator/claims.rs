//! Claims.

use super::Coordinator;
use super::cleanup::{Grant, Undo, What};
use super::report::{Report, Subject};
use crate::domain::claim::{
    Abandon, AbandonOutcome, Claim, ClaimOutcome, Complete, CompleteOutcome, RenewClaim,
};
use crate::domain::failure::Failure;
use crate::domain::lease::RenewOutcome;
use crate::domain::token::Nonce;
use crate::trace::{self, Origin};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Coordinator {
    /// Claims a key before the work it stands for is done. A new grant comes with a [`Grant`], to be kept until its
    /// caller has heard of it.
    pub async fn claim(
        &self,
        claim: Claim,
        limit: Instant,
    ) -> Result<(ClaimOutcome, Option<Grant>), Failure> {
        let nonce = Nonce::new();
        let lease = Duration::from_millis(claim.lease.millis().get());
        let undo = Undo {
            what: What::Claim(claim.id.clone(), claim.token.clone()),
            nonce: nonce.clone(),
            until: limit + lease,
        };
        let (store, claim) = (self.store.clone(), Arc::new(claim));
        let report = Report::begin(&self.metrics, "claim", Subject::Claim(&claim.id));
        let asked = claim.clone();
        let call = async move { store.claim(&asked, &nonce, limit).await };
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
