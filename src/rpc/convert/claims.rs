//! Claims.

use super::{
    known, optional, proto, renewed_or_lost, stored_response, to_duration, to_lost,
    to_stored_response, to_timestamp, zero_if_unset,
};
use crate::domain::claim::{
    Abandon, AbandonEffect, AbandonOutcome, Checkpoint, Claim, ClaimOutcome, Complete,
    CompleteOutcome, LeaseOverPolicy, RenewClaim,
};
use crate::domain::duration::{ClaimLease, ClaimWait, Retention};
use crate::domain::failure::{Failure, Refused, Violations};
use crate::domain::fingerprint::{Content, Fingerprint};
use crate::domain::lease::RenewOutcome;
use crate::domain::limits::{Limits, MAX_CHECKPOINT};
use crate::domain::name::{
    AbandonReason, ClaimId, Holder, IdempotencyKey, Operation, Scope, Tenant,
};
use crate::domain::receipt::Receipt;
use crate::domain::token::ClaimToken;

pub(super) fn claim_id(
    bad: &mut Violations,
    tenant: String,
    scope: String,
    key: String,
) -> Option<ClaimId> {
    let tenant = bad.check("tenant", Tenant::or_default(tenant));
    let scope = bad.check("scope", Scope::parse(scope));
    let key = bad.check("key", IdempotencyKey::parse(key));
    Some(ClaimId {
        tenant: tenant?,
        scope: scope?,
        key: key?,
    })
}

pub(in crate::rpc) fn claim(
    request: proto::ClaimRequest,
    limits: &Limits,
) -> Result<Claim, Failure> {
    let mut bad = Violations::default();
    let id = claim_id(&mut bad, request.tenant, request.scope, request.key);
    let token = bad.check("claim_token", ClaimToken::or_new(request.claim_token));
    let operation = bad.check("operation", Operation::parse(request.operation));
    let fingerprint = {
        use proto::claim_request::Request;
        let content = match &request.request {
            None => Content::None,
            Some(Request::Fingerprint(digest)) => Content::Digest(digest),
            Some(Request::Body(body)) => Content::Raw(body),
            Some(Request::JsonBody(body)) => Content::Json(body),
        };
        // Beside a bad operation a bad digest is named as well.
        let operation = operation.clone().unwrap_or_else(Operation::unnamed);
        bad.check("fingerprint", Fingerprint::of(&operation, content))
    };
    let holder = bad.check("holder", Holder::parse(request.holder));
    let lease = bad.check("lease", optional(request.lease, ClaimLease::parse));
    let retention = bad.check("retention", retention(request.retention, limits));
    let wait = bad.check("wait", zero_if_unset(request.wait, ClaimWait::parse));
    let policy = bad.check("on_lease_over", policy(request.on_lease_over));
    let parts = || {
        Some(Claim {
            id: id?,
            token: token?,
            operation: operation?,
            fingerprint: fingerprint?,
            holder: holder?,
            lease: lease?.unwrap_or_default(),
            retention: retention?
                .unwrap_or_else(|| Retention::default_within(limits.max_retention)),
            on_lease_over: policy?,
            wait: wait?,
        })
    };
    bad.finish(parts())
}

fn retention(
    field: Option<prost_types::Duration>,
    limits: &Limits,
) -> Result<Option<Retention>, Refused> {
    optional(field, |duration| {
        Retention::parse(duration, limits.max_retention)
    })
}

fn policy(number: i32) -> Result<LeaseOverPolicy, Refused> {
    use proto::LeaseOverPolicy as Policy;
    Ok(match known(number, "on_lease_over")? {
        Policy::Unspecified | Policy::TakeOver => LeaseOverPolicy::TakeOver,
        Policy::MarkUncertain => LeaseOverPolicy::MarkUncertain,
    })
}

pub(in crate::rpc) fn claim_response(outcome: ClaimOutcome) -> proto::ClaimResponse {
    use proto::claim_response::Outcome;
    let outcome = match outcome {
        ClaimOutcome::Claimed(claimed) => Outcome::Claimed(proto::Claimed {
            claim_token: claimed.token.as_str().to_owned(),
            fencing_token: claimed.fencing_token,
            attempt: claimed.attempt,
            lease_left: to_duration(claimed.lease_left),
            already_held: claimed.already_held,
            taken_over: claimed.taken_over,
            checkpoint: claimed.checkpoint.into(),
            receipt: claimed.receipt.into(),
        }),
        ClaimOutcome::InFlight(in_flight) => Outcome::InFlight(proto::InFlight {
            retry_after: to_duration(in_flight.retry_after),
            lease_left: to_duration(in_flight.lease_left),
            attempt: in_flight.attempt,
            claimed_at: Some(to_timestamp(in_flight.claimed_at)),
            holder: in_flight.holder,
        }),
        ClaimOutcome::Replay(replay) => Outcome::Replay(proto::Replay {
            response: replay.response.map(to_stored_response),
            completed_at: Some(to_timestamp(replay.completed_at)),
            retention_left: to_duration(replay.retention_left),
            attempt: replay.attempt,
        }),
        ClaimOutcome::Mismatch { operation } => Outcome::Mismatch(proto::Mismatch { operation }),
        ClaimOutcome::Uncertain(uncertain) => Outcome::Uncertain(proto::Uncertain {
            since: Some(to_timestamp(uncertain.since)),
            attempt: uncertain.attempt,
            checkpoint: uncertain.checkpoint.into(),
            holder: uncertain.holder,
        }),
        ClaimOutcome::Lost(reason) => Outcome::Lost(to_lost(reason)),
    };
    proto::ClaimResponse {
        outcome: Some(outcome),
    }
}

pub(in crate::rpc) fn renew_claim(
    request: proto::RenewClaimRequest,
) -> Result<RenewClaim, Failure> {
    let mut bad = Violations::default();
    let id = claim_id(&mut bad, request.tenant, request.scope, request.key);
    let token = bad.check("claim_token", ClaimToken::parse(request.claim_token));
    let lease = bad.check("lease", optional(request.lease, ClaimLease::parse));
    let checkpoint = bad.check(
        "checkpoint",
        match request.checkpoint {
            Some(bytes) if bytes.len() > MAX_CHECKPOINT => Err(Refused::too_large(format!(
                "checkpoint must be at most {MAX_CHECKPOINT} bytes"
            ))),
            checkpoint => Ok(checkpoint),
        },
    );
    let sequence = bad.check(
        "checkpoint_sequence",
        u64::try_from(request.checkpoint_sequence)
            .ok()
            .filter(|sequence| *sequence < 1 << 53)
            .ok_or_else(|| Refused::invalid("checkpoint_sequence must be 0 to 2^53 - 1")),
    );
    let parts = || {
        let (checkpoint, sequence) = (checkpoint?, sequence?);
        Some(RenewClaim {
            id: id?,
            token: token?,
            lease: lease?,
            checkpoint: checkpoint.map(|bytes| Checkpoint {
                bytes: bytes.to_vec(),
                sequence,
            }),
        })
    };
    bad.finish(parts())
}

pub(in crate::rpc) fn renew_response(outcome: RenewOutcome) -> proto::RenewClaimResponse {
    use proto::renew_claim_response::Outcome;
    proto::RenewClaimResponse {
        outcome: renewed_or_lost(outcome, Outcome::Renewed, Outcome::Lost),
    }
}

pub(in crate::rpc) fn complete(
    request: proto::CompleteRequest,
    limits: &Limits,
) -> Result<Complete, Failure> {
    let mut bad = Violations::default();
    let id = claim_id(&mut bad, request.tenant, request.scope, request.key);
    let token = bad.check("claim_token", ClaimToken::parse(request.claim_token));
    let response = match request.response {
        Some(response) => stored_response(&mut bad, "response", response, limits).map(Some),
        None => Some(None),
    };
    let retention = bad.check("retention", retention(request.retention, limits));
    let response_retention = bad.check(
        "response_retention",
        optional(request.response_retention, |duration| {
            Retention::parse_of_response(duration, limits.max_retention)
        }),
    );
    let receipt = match (&id, &token) {
        (Some(id), Some(token)) => {
            bad.check("receipt", receipt(&request.receipt, id, token, limits))
        }
        // It is held against both.
        _ => None,
    };
    let parts = || {
        Some(Complete {
            id: id?,
            token: token?,
            response: response?,
            retention: retention?,
            response_retention: response_retention?,
            receipt: receipt?,
        })
    };
    bad.finish(parts())
}

fn receipt(
    bytes: &[u8],
    id: &ClaimId,
    token: &ClaimToken,
    limits: &Limits,
) -> Result<Option<Receipt>, Refused> {
    if bytes.is_empty() {
        return Ok(None);
    }
    Receipt::parse(bytes, id, token, limits.max_retention).map(Some)
}

pub(in crate::rpc) fn complete_response(outcome: CompleteOutcome) -> proto::CompleteResponse {
    use proto::complete_response::Outcome;
    proto::CompleteResponse {
        outcome: Some(match outcome {
            CompleteOutcome::Completed { retention_left } => Outcome::Completed(proto::Completed {
                retention_left: to_duration(retention_left),
            }),
            CompleteOutcome::Lost(reason) => Outcome::Lost(to_lost(reason)),
        }),
    }
}

pub(in crate::rpc) fn abandon(request: proto::AbandonRequest) -> Result<Abandon, Failure> {
    let mut bad = Violations::default();
    let id = claim_id(&mut bad, request.tenant, request.scope, request.key);
    let token = bad.check("claim_token", ClaimToken::parse(request.claim_token));
    let effect = bad.check("effect", effect(request.effect));
    let reason = bad.check("reason", AbandonReason::parse(request.reason));
    let parts = || {
        Some(Abandon {
            id: id?,
            token: token?,
            effect: effect?,
            keep_checkpoint: request.keep_checkpoint,
            reason: reason?,
        })
    };
    bad.finish(parts())
}

fn effect(number: i32) -> Result<AbandonEffect, Refused> {
    use proto::AbandonEffect as Effect;
    Ok(match known(number, "effect")? {
        Effect::Unspecified | Effect::None => AbandonEffect::None,
        Effect::Unknown => AbandonEffect::Unknown,
    })
}

pub(in crate::rpc) fn abandon_response(outcome: AbandonOutcome) -> proto::AbandonResponse {
    use proto::abandon_response::Outcome;
    proto::AbandonResponse {
        outcome: Some(match outcome {
            AbandonOutcome::Abandoned => Outcome::Abandoned(proto::Abandoned {}),
            AbandonOutcome::Lost(reason) => Outcome::Lost(to_lost(reason)),
        }),
    }
}
