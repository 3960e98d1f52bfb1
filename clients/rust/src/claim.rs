//! Claims: asking for one, and holding it while the work is done.

use crate::asking::{DEFAULT_LEASE, GiveUp, Waiting};
use crate::failure::Failure;
use crate::keep_alive::{EndOnClose, OnStream};
use crate::lease::{AfterItsTime, KeptAlive, Loss, Renewal, Terms};
use crate::proto::claim_response::Outcome;
use crate::proto::lease_ref::Kind;
use crate::proto::{self, AbandonEffect};
use crate::request::{Request, Response};
use crate::{Client, Effect, time};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// What asking for a claim came to.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, and what is granted is the case to be quick in"
)]
pub enum Attempt {
    /// It is this caller's to do: do it, then complete or abandon the claim.
    Claimed(Claim),
    /// Somebody else does it.
    InFlight(proto::InFlight),
    /// It is done.
    Replay(proto::Replay),
    /// The key was used for another request.
    Mismatch(proto::Mismatch),
    /// Somebody fell silent who may have done it: an operator decides.
    Uncertain(proto::Uncertain),
    /// The token that was given is spent.
    Lost(Loss),
}

impl Client {
    /// Asks for a claim. One that is granted is renewed in the background for as long as the value lives.
    ///
    /// # Errors
    ///
    /// Where it could not be answered in time, or is refused. Whatever may have been granted is given back in the
    /// background.
    pub async fn begin(&self, request: &Request) -> Result<Attempt, Failure> {
        self.begin_with(request, |_| {}).await
    }

    /// The same, telling what it waits for, each time that it is answered.
    ///
    /// # Errors
    ///
    /// As [`Client::begin`].
    pub async fn begin_with(
        &self,
        request: &Request,
        mut waiting: impl FnMut(&proto::InFlight) + Send,
    ) -> Result<Attempt, Failure> {
        let mut message = request.message.clone();
        let is_token_ours = message.claim_token.is_empty();
        if is_token_ours {
            message.claim_token = crate::new_token();
        }
        let abandoning = abandon(self.clone(), unheard(&message));
        let give_up = GiveUp::armed(self, is_token_ours, abandoning);
        let mut wait = Waiting::for_at_most(request.wait);
        loop {
            message.wait = wait.of_a_call();
            let sent = Instant::now();
            let answer = match self.claim(message.clone()).await {
                Ok(answer) => answer,
                Err(failure) => return Err(give_up.after(failure)),
            };
            let attempt = match answer.outcome {
                Some(Outcome::Claimed(claimed)) => {
                    give_up.disarm();
                    return Ok(Attempt::Claimed(Claim::new(
                        self,
                        message,
                        request.end_on_close,
                        claimed,
                        sent,
                    )));
                }
                Some(Outcome::InFlight(in_flight)) if !wait.is_over() => {
                    waiting(&in_flight);
                    wait.pause(in_flight.retry_after).await;
                    continue;
                }
                Some(Outcome::InFlight(in_flight)) => Attempt::InFlight(in_flight),
                Some(Outcome::Replay(replay)) => Attempt::Replay(replay),
                Some(Outcome::Mismatch(mismatch)) => Attempt::Mismatch(mismatch),
                Some(Outcome::Uncertain(uncertain)) => Attempt::Uncertain(uncertain),
                Some(Outcome::Lost(lost)) => Attempt::Lost(lost.into()),
                None => return Err(Failure::unknown_outcome("Claim")),
            };
            give_up.disarm();
            return Ok(attempt);
        }
    }
}

/// Gives up what may have been granted by this claim; its work was not started.
fn unheard(claim: &proto::ClaimRequest) -> proto::AbandonRequest {
    let mut message = proto::AbandonRequest {
        tenant: claim.tenant.clone(),
        scope: claim.scope.clone(),
        key: claim.key.clone(),
        claim_token: claim.claim_token.clone(),
        keep_checkpoint: true,
        reason: "its caller gave up before it heard of the claim".to_owned(),
        ..Default::default()
    };
    message.set_effect(AbandonEffect::None);
    message
}

async fn abandon(client: Client, message: proto::AbandonRequest) {
    if let Err(failure) = client.abandon(message).await {
        tracing::debug!(%failure, "a claim could not be abandoned");
    }
}

/// A claim that is held. Dropped before it is completed or abandoned, it is abandoned in the background with an unknown
/// effect.
#[derive(Debug)]
pub struct Claim {
    client: Client,
    message: proto::ClaimRequest,
    granted: proto::Claimed,
    kept: Option<KeptAlive>,
    checkpoints: Arc<AtomicI64>,
    is_settled: bool,
}

impl Claim {
    fn new(
        client: &Client,
        message: proto::ClaimRequest,
        end_on_close: bool,
        granted: proto::Claimed,
        sent: Instant,
    ) -> Self {
        let terms = Terms {
            lease: message
                .lease
                .map_or(DEFAULT_LEASE, |lease| time::from_wire(Some(lease))),
            until: time::later(sent, time::from_wire(granted.lease_left)),
            after_its_time: AfterItsTime::GoOn,
            at_once: end_on_close,
        };
        let kind = Kind::Claim(proto::ClaimRef {
            scope: message.scope.clone(),
            key: message.key.clone(),
            claim_token: granted.claim_token.clone(),
        });
        let end_on_close = end_on_close.then_some(EndOnClose {
            delay: Duration::ZERO,
        });
        let on_stream = OnStream::new(client, &message.tenant, kind, message.lease, end_on_close);
        let renewal = proto::RenewClaimRequest {
            tenant: message.tenant.clone(),
            scope: message.scope.clone(),
            key: message.key.clone(),
            claim_token: granted.claim_token.clone(),
            lease: message.lease,
            ..Default::default()
        };
        let renewing = client.clone();
        let kept = KeptAlive::start(terms, on_stream, move |limit| {
            let client = renewing.until(limit);
            let renewal = renewal.clone();
            async move { renewal_of(client.renew_claim(renewal).await?) }
        });
        Self {
            client: client.clone(),
            message,
            granted,
            kept: Some(kept),
            checkpoints: Arc::default(),
            is_settled: false,
        }
    }

    /// The token that holds it.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.granted.claim_token
    }

    /// Higher than that of every earlier grant of the key.
    #[must_use]
    pub fn fencing_token(&self) -> i64 {
        self.granted.fencing_token
    }

    /// 1 for the first grant of the key.
    #[must_use]
    pub fn attempt(&self) -> i64 {
        self.granted.attempt
    }

    /// Whether its token held it already: a call was repeated, or somebody else uses the same token and may do the work too.
    #[must_use]
    pub fn already_held(&self) -> bool {
        self.granted.already_held
    }

    /// Whether an earlier holder may have had an effect.
    #[must_use]
    pub fn taken_over(&self) -> bool {
        self.granted.taken_over
    }

    /// What an earlier attempt saved; empty if nothing.
    #[must_use]
    pub fn checkpoint(&self) -> &[u8] {
        &self.granted.checkpoint
    }

    /// Waits until the claim is lost. After [`LossReason::NotRenewed`] it may come back, if nobody took it meanwhile;
    /// completing it tells.
    ///
    /// [`LossReason::NotRenewed`]: crate::LossReason::NotRenewed
    pub async fn lost(&self) -> Loss {
        match &self.kept {
            Some(kept) => kept.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the service says that the claim is lost: taken over, completed or taken away. Where the service cannot
    /// be heard this does not end, as the claim can still be completed while nobody took it.
    pub async fn lost_for_good(&self) -> Loss {
        match &self.kept {
            Some(kept) => kept.lost_for_good().await,
            None => std::future::pending().await,
        }
    }

    /// Saves how far the work has come, for the next attempt should this one fall silent. At most 64 KiB.
    ///
    /// # Errors
    ///
    /// Where it could not be answered in time, or is refused.
    pub async fn save_checkpoint(&self, checkpoint: Vec<u8>) -> Result<Result<(), Loss>, Failure> {
        let sequence = self.checkpoints.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = self.client.renew_claim(proto::RenewClaimRequest {
            tenant: self.message.tenant.clone(),
            scope: self.message.scope.clone(),
            key: self.message.key.clone(),
            claim_token: self.granted.claim_token.clone(),
            lease: self.message.lease,
            checkpoint: Some(checkpoint.into()),
            checkpoint_sequence: sequence,
        });
        Ok(match renewal_of(answer.await?)? {
            Renewal::Renewed { .. } => Ok(()),
            Renewal::Lost(loss) => Err(loss),
        })
    }

    /// Stores the result of the work; none stores that it is done. The response itself is kept for `response_retention`,
    /// where that is given and less than the key's retention.
    ///
    /// # Errors
    ///
    /// Where it could not be answered in time, or is refused: then the claim is still held and can be completed again, or
    /// abandoned. The lease goes on being renewed meanwhile.
    pub async fn complete(
        &mut self,
        response: Option<Response>,
        response_retention: Option<Duration>,
    ) -> Result<Result<(), Loss>, Failure> {
        use proto::complete_response::Outcome;
        let answer = self.client.complete(proto::CompleteRequest {
            tenant: self.message.tenant.clone(),
            scope: self.message.scope.clone(),
            key: self.message.key.clone(),
            claim_token: self.granted.claim_token.clone(),
            response: response.map(Into::into),
            retention: None,
            response_retention: response_retention.map(time::to_wire),
            receipt: self.granted.receipt.clone(),
        });
        let outcome = match answer.await?.outcome {
            Some(Outcome::Completed(_)) => Ok(()),
            Some(Outcome::Lost(lost)) => Err(lost.into()),
            None => return Err(Failure::unknown_outcome("Complete")),
        };
        self.settled();
        Ok(outcome)
    }

    /// Gives the claim up. With [`Effect::None`] the next claim may do the work; with [`Effect::Unknown`] it is as if the
    /// lease had ended now.
    ///
    /// # Errors
    ///
    /// Where it could not be answered in time, or is refused.
    pub async fn abandon(
        mut self,
        effect: Effect,
        reason: &str,
    ) -> Result<Result<(), Loss>, Failure> {
        use proto::abandon_response::Outcome;
        let answer = self.client.abandon(self.abandonment(effect, reason)).await;
        // Whatever became of it: this token is not to do the work any more.
        self.settled();
        match answer?.outcome {
            Some(Outcome::Abandoned(_)) => Ok(Ok(())),
            Some(Outcome::Lost(lost)) => Ok(Err(lost.into())),
            None => Err(Failure::unknown_outcome("Abandon")),
        }
    }

    /// Lets go of the claim without a word: it stands until its lease ends. For work that was done, and whose result could
    /// not be stored.
    pub fn leave(mut self) {
        self.settled();
    }

    fn abandonment(&self, effect: Effect, reason: &str) -> proto::AbandonRequest {
        let mut message = proto::AbandonRequest {
            tenant: self.message.tenant.clone(),
            scope: self.message.scope.clone(),
            key: self.message.key.clone(),
            claim_token: self.granted.claim_token.clone(),
            reason: reason.to_owned(),
            ..Default::default()
        };
        message.set_effect(match effect {
            Effect::None => AbandonEffect::None,
            Effect::Unknown => AbandonEffect::Unknown,
        });
        message
    }

    fn settled(&mut self) {
        self.is_settled = true;
        self.kept = None;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_settled {
            let message = self.abandonment(Effect::Unknown, "its holder gave up in mid-work");
            let abandoning = abandon(self.client.clone(), message);
            self.client.in_background(abandoning);
        }
    }
}

fn renewal_of(response: proto::RenewClaimResponse) -> Result<Renewal, Failure> {
    use proto::renew_claim_response::Outcome;
    let (renewed, lost) = match response.outcome {
        Some(Outcome::Renewed(renewed)) => (Some(renewed), None),
        Some(Outcome::Lost(lost)) => (None, Some(lost)),
        None => (None, None),
    };
    Renewal::of(renewed, lost).ok_or_else(|| Failure::unknown_outcome("RenewClaim"))
}
