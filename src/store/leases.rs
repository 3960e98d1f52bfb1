//! What the scripts of claims and those of locks are given and answer alike.

use super::reply::{Reply, defect};
use crate::domain::duration::Millis;
use crate::domain::failure::Failure;
use crate::domain::lease::{LossReason, RenewOutcome};
use std::time::Duration;

/// A caller that is told to ask again is told to do so within this time, since work may end before its lease.
pub(super) const ASK_AGAIN_WITHIN: Duration = Duration::from_secs(1);

/// An argument that is empty where the script is to use what it knows.
pub(super) fn optional(millis: Option<Millis>) -> String {
    millis.map_or_else(String::new, |millis| millis.get().to_string())
}

/// What a renewal came to.
pub(super) fn renewed(reply: &mut Reply) -> Result<RenewOutcome, Failure> {
    match reply.kind.as_str() {
        "renewed" => {
            let lease_end = reply.fields().integer()?;
            Ok(RenewOutcome::Renewed {
                lease_left: reply.left(lease_end),
                fencing_token: reply.fields().integer()?,
            })
        }
        "lost" => Ok(RenewOutcome::Lost(loss(reply)?)),
        _ => Err(reply.unknown()),
    }
}

/// Why the token does not hold what it names.
pub(super) fn loss(reply: &mut Reply) -> Result<LossReason, Failure> {
    match reply.fields().text()?.as_str() {
        "NOT_FOUND" => Ok(LossReason::NotFound),
        "TAKEN_OVER" => Ok(LossReason::TakenOver),
        "RELEASED" => Ok(LossReason::Released),
        "FORCED" => Ok(LossReason::Forced),
        "COMPLETED" => Ok(LossReason::Completed),
        "LEASE_OVER" => Ok(LossReason::LeaseOver),
        other => Err(defect(format!("a script lost for the reason {other}"))),
    }
}
