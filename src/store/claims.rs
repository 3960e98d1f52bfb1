//! The transitions of a claim: what each script is given, and what its reply means.

use super::leases::{ASK_AGAIN_WITHIN, Asked, loss, optional, renewed};
use super::reply::{Fields, Reply, defect};
use super::{Store, keys, scripts};
use crate::domain::claim::{
    Abandon, AbandonEffect, AbandonOutcome, Claim, ClaimInfo, ClaimOutcome, ClaimState, Claimed,
    Complete, CompleteOutcome, InFlight, LeaseOverPolicy, RenewClaim, Replay, Resolution,
    ResolveClaim, Resolved, Uncertain,
};
use crate::domain::duration::{Millis, Retention, Timestamp};
use crate::domain::failure::Failure;
use crate::domain::lease::RenewOutcome;
use crate::domain::name::ClaimId;
use crate::domain::receipt::Receipt;
use crate::domain::response::{ResponseDigest, StoredResponse};
use crate::domain::token::{ClaimToken, Nonce};
use crate::trace::{self, Origin};
use std::time::{Duration, Instant};

impl Store {
    /// Claims a key; `nonce` names the call, for [`Store::undo_claim`]. With `told_of_end` this service is told when a claim
    /// in flight ends that is in the way.
    pub async fn claim(
        &self,
        claim: &Claim,
        nonce: &Nonce,
        told_of_end: bool,
        limit: Instant,
    ) -> Result<ClaimOutcome, Failure> {
        let mut reply = self
            .run(&scripts::CLAIM, &keys::claim(&claim.id), limit, |call| {
                call.arg(claim.token.as_str())
                    .arg(nonce.as_bytes())
                    .arg(claim.fingerprint.as_bytes())
                    .arg(claim.operation.as_str())
                    .arg(claim.holder.as_str())
                    .arg(claim.lease.millis().get())
                    .arg(claim.retention.millis().get())
                    .arg(policy_number(claim.on_lease_over))
                    .arg(self.settings.max_retention.millis().get())
                    .arg(trace::current_origin().as_bytes())
                    .arg(if told_of_end {
                        self.service.as_str()
                    } else {
                        ""
                    });
            })
            .await?;
        match reply.kind.as_str() {
            "claimed" => Ok(ClaimOutcome::Claimed(self.claimed(claim, &mut reply)?)),
            "in_flight" => Ok(ClaimOutcome::InFlight(in_flight(&mut reply)?)),
            "replay" => Ok(ClaimOutcome::Replay(replay(&mut reply)?)),
            "response_lost" => Err(Failure::ResponseLost),
            "mismatch" => Ok(ClaimOutcome::Mismatch {
                operation: reply.fields().text()?,
            }),
            "uncertain" => Ok(ClaimOutcome::Uncertain(uncertain(reply.fields())?)),
            "lost" => Ok(ClaimOutcome::Lost(loss(&mut reply)?)),
            _ => Err(reply.unknown()),
        }
    }

    fn claimed(&self, claim: &Claim, reply: &mut Reply) -> Result<Claimed, Failure> {
        let fields = reply.fields();
        let already_held = fields.flag()?;
        let fencing_token = fields.integer()?;
        let attempt = fields.integer()?;
        let lease_end = fields.integer()?;
        let taken_over = fields.flag()?;
        let checkpoint = fields.bytes()?;
        let expires_at = fields.integer()?;
        let retention_ms = u64::try_from(fields.integer()? / 1000).unwrap_or(0);
        self.clock.saw_fence(fencing_token);
        let receipt = Receipt {
            expires_at,
            fencing_token,
            attempt,
            retention: Retention::stored_within(
                Millis::new(retention_ms),
                self.settings.max_retention,
            ),
            fingerprint: claim.fingerprint.clone(),
        };
        Ok(Claimed {
            token: claim.token.clone(),
            fencing_token,
            attempt,
            lease_left: reply.left(lease_end),
            already_held,
            taken_over,
            checkpoint,
            receipt: receipt.issue(&claim.id, &claim.token),
        })
    }

    /// Looks whether a claim in flight still is, and has this service told when it ends. Returns when its lease is over at
    /// the latest, seen from now; none where it has ended.
    pub async fn watch_claim(
        &self,
        id: &ClaimId,
        limit: Instant,
    ) -> Result<Option<Duration>, Failure> {
        let mut reply = self
            .run(&scripts::WATCH_CLAIM, &keys::claim(id), limit, |call| {
                call.arg(self.service.as_str());
            })
            .await?;
        match reply.kind.as_str() {
            "in_flight" => {
                let lease_end = reply.fields().integer()?;
                Ok(Some(reply.wait(lease_end)))
            }
            "ended" => Ok(None),
            _ => Err(reply.unknown()),
        }
    }

    /// Takes back the grant that the call named `nonce` created, unless somebody has heard of it.
    pub async fn undo_claim(
        &self,
        id: &ClaimId,
        token: &ClaimToken,
        nonce: &Nonce,
        limit: Instant,
    ) -> Result<(), Failure> {
        let reply = self
            .run(&scripts::UNDO_CLAIM, &keys::claim(id), limit, |call| {
                call.arg(token.as_str()).arg(nonce.as_bytes());
            })
            .await?;
        match reply.kind.as_str() {
            "undone" | "kept" => Ok(()),
            _ => Err(reply.unknown()),
        }
    }

    /// Extends the lease on a claim, for a stream if one asked, and can save a checkpoint.
    pub async fn renew_claim(
        &self,
        renewal: &RenewClaim,
        asked: Option<Asked>,
        limit: Instant,
    ) -> Result<RenewOutcome, Failure> {
        let (owner, stamp) = self.owner(asked);
        let checkpoint = renewal.checkpoint.as_ref();
        let mut reply = self
            .run(
                &scripts::RENEW_CLAIM,
                &keys::claim(&renewal.id),
                limit,
                |call| {
                    call.arg(renewal.token.as_str())
                        .arg(optional(renewal.lease.map(|lease| lease.millis())))
                        .arg(u8::from(checkpoint.is_some()))
                        .arg(checkpoint.map_or(&[][..], |c| &c.bytes))
                        .arg(checkpoint.map_or(0, |c| c.sequence))
                        .arg(self.settings.max_retention.millis().get())
                        .arg(&owner)
                        .arg(stamp);
                },
            )
            .await?;
        renewed(&mut reply)
    }

    /// Stores the result of the work.
    pub async fn complete(
        &self,
        completion: &Complete,
        limit: Instant,
    ) -> Result<CompleteOutcome, Failure> {
        let response = StoredBytes::of(completion.response.as_ref())?;
        let mut reply = self
            .run(
                &scripts::COMPLETE,
                &keys::claim(&completion.id),
                limit,
                |call| {
                    call.arg(completion.token.as_str())
                        .arg(response.digest.as_bytes());
                    response.add_to(call);
                    call.arg(optional(completion.retention.map(Retention::millis)))
                        .arg(optional(
                            completion.response_retention.map(Retention::millis),
                        ))
                        .arg(u8::from(completion.receipt.is_some()));
                    if let Some(receipt) = &completion.receipt {
                        call.arg(receipt.expires_at)
                            .arg(receipt.fencing_token)
                            .arg(receipt.attempt)
                            .arg(receipt.retention.millis().get())
                            .arg(receipt.fingerprint.as_bytes());
                    }
                },
            )
            .await?;
        match reply.kind.as_str() {
            "completed" => {
                let expires_at = reply.fields().integer()?;
                Ok(CompleteOutcome::Completed {
                    retention_left: reply.left(expires_at),
                })
            }
            "lost" => Ok(CompleteOutcome::Lost(loss(&mut reply)?)),
            _ => Err(reply.unknown()),
        }
    }

    /// Gives a claim up.
    pub async fn abandon(
        &self,
        abandonment: &Abandon,
        limit: Instant,
    ) -> Result<AbandonOutcome, Failure> {
        let mut reply = self
            .run(
                &scripts::ABANDON,
                &keys::claim(&abandonment.id),
                limit,
                |call| {
                    call.arg(abandonment.token.as_str())
                        .arg(match abandonment.effect {
                            AbandonEffect::None => "NONE",
                            AbandonEffect::Unknown => "UNKNOWN",
                        })
                        .arg(u8::from(abandonment.keep_checkpoint))
                        .arg(abandonment.reason.as_str())
                        .arg(self.settings.max_retention.millis().get());
                },
            )
            .await?;
        match reply.kind.as_str() {
            "abandoned" => Ok(AbandonOutcome::Abandoned),
            "lost" => Ok(AbandonOutcome::Lost(loss(&mut reply)?)),
            _ => Err(reply.unknown()),
        }
    }

    /// What an operator sees of a key; `None` where it is not known.
    pub async fn get_claim(
        &self,
        id: &ClaimId,
        limit: Instant,
    ) -> Result<Option<ClaimInfo>, Failure> {
        let mut reply = self
            .run(&scripts::GET_CLAIM, &keys::claim(id), limit, |_| {})
            .await?;
        match reply.kind.as_str() {
            "claim" => claim_info(id, &mut reply),
            _ => Err(reply.unknown()),
        }
    }

    /// Settles a claim whose holder no longer does.
    pub async fn resolve_claim(
        &self,
        request: &ResolveClaim,
        limit: Instant,
    ) -> Result<Resolved, Failure> {
        let response = match &request.resolution {
            Resolution::Complete(response) => Some(response),
            Resolution::Forget | Resolution::EraseResponse => None,
        };
        let response = StoredBytes::of(response)?;
        let mut reply = self
            .run(
                &scripts::RESOLVE_CLAIM,
                &keys::claim(&request.id),
                limit,
                |call| {
                    call.arg(request.fencing_token)
                        .arg(request.resolution.name())
                        .arg(response.digest.as_bytes());
                    response.add_to(call);
                },
            )
            .await?;
        match reply.kind.as_str() {
            "resolved" => Ok(Resolved {
                resolved: true,
                before: claim_info(&request.id, &mut reply)?,
                after: claim_info(&request.id, &mut reply)?,
            }),
            "left" => {
                let info = claim_info(&request.id, &mut reply)?;
                Ok(Resolved {
                    resolved: false,
                    before: info.clone(),
                    after: info,
                })
            }
            _ => Err(reply.unknown()),
        }
    }
}

/// A response as the scripts take it.
struct StoredBytes {
    digest: ResponseDigest,
    response: Option<(Vec<u8>, i32, usize)>,
}

impl StoredBytes {
    fn of(response: Option<&StoredResponse>) -> Result<Self, Failure> {
        Ok(Self {
            digest: ResponseDigest::of(response),
            response: match response {
                Some(response) => {
                    let bytes = postcard::to_stdvec(response).map_err(defect)?;
                    Some((bytes, response.status(), response.body().len()))
                }
                None => None,
            },
        })
    }

    fn add_to(&self, call: &mut redis::ScriptInvocation<'_>) {
        match &self.response {
            Some((bytes, status, body_bytes)) => call
                .arg(1)
                .arg(bytes.as_slice())
                .arg(*status)
                .arg(*body_bytes),
            None => call.arg(0).arg("").arg(0).arg(0),
        };
    }
}

fn policy_number(policy: LeaseOverPolicy) -> u8 {
    match policy {
        LeaseOverPolicy::TakeOver => 1,
        LeaseOverPolicy::MarkUncertain => 2,
    }
}

fn in_flight(reply: &mut Reply) -> Result<InFlight, Failure> {
    let lease_end = reply.fields().integer()?;
    Ok(InFlight {
        retry_after: reply.wait(lease_end).min(ASK_AGAIN_WITHIN),
        lease_left: reply.left(lease_end),
        attempt: reply.fields().integer()?,
        claimed_at: Timestamp(reply.fields().integer()?),
        holder: reply.fields().text()?,
    })
}

fn replay(reply: &mut Reply) -> Result<Replay, Failure> {
    let has_response = reply.fields().flag()?;
    let bytes = reply.fields().bytes()?;
    let completed_at = Timestamp(reply.fields().integer()?);
    let expires_at = reply.fields().integer()?;
    Ok(Replay {
        response: match has_response {
            true => Some(postcard::from_bytes(&bytes).map_err(defect)?),
            false => None,
        },
        completed_at,
        retention_left: reply.left(expires_at),
        attempt: reply.fields().integer()?,
        origin: reply.fields().bytes()?,
    })
}

fn uncertain(fields: &mut Fields) -> Result<Uncertain, Failure> {
    Ok(Uncertain {
        since: Timestamp(fields.integer()?),
        attempt: fields.integer()?,
        checkpoint: fields.bytes()?,
        holder: fields.text()?,
    })
}

fn claim_info(id: &ClaimId, reply: &mut Reply) -> Result<Option<ClaimInfo>, Failure> {
    let mut fields = reply.fields().nested()?;
    let state = match fields.text()?.as_str() {
        "" => return Ok(None),
        "IN_FLIGHT" => ClaimState::InFlight,
        "LEASE_OVER" => ClaimState::LeaseOver,
        "UNCERTAIN" => ClaimState::Uncertain,
        "COMPLETED" => ClaimState::Completed,
        "ABANDONED" => ClaimState::Abandoned,
        other => return Err(defect(format!("a script described the state {other}"))),
    };
    let timestamp = |micros: i64| (micros > 0).then_some(Timestamp(micros));
    Ok(Some(ClaimInfo {
        id: id.clone(),
        state,
        operation: fields.text()?,
        attempt: fields.integer()?,
        fencing_token: fields.integer()?,
        holder: fields.text()?,
        on_lease_over: match fields.integer()? {
            2 => LeaseOverPolicy::MarkUncertain,
            _ => LeaseOverPolicy::TakeOver,
        },
        claimed_at: timestamp(fields.integer()?),
        renewed_at: timestamp(fields.integer()?),
        completed_at: timestamp(fields.integer()?),
        lease_left: timestamp(fields.integer()?).map(|Timestamp(lease_end)| reply.left(lease_end)),
        retention_left: reply.left(fields.integer()?),
        response_status: i32::try_from(fields.integer()?).map_err(defect)?,
        response_bytes: fields.integer()?,
        checkpoint_bytes: fields.integer()?,
        taken_over: fields.flag()?,
        abandon_reason: fields.text()?,
        trace_id: Origin::of_bytes(fields.bytes()?)
            .trace_id()
            .map(|id| id.to_string())
            .unwrap_or_default(),
    }))
}
