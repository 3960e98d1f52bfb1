//! Between the contract's messages and the domain's types.

pub(super) mod admin;
pub(super) mod claims;
pub(super) mod leases;
pub(super) mod locks;

use super::proto;
use crate::domain::duration::Timestamp;
use crate::domain::failure::{Refused, Violations};
use crate::domain::lease::{LossReason, RenewOutcome};
use crate::domain::limits::Limits;
use crate::domain::response::StoredResponse;
use std::time::Duration;

/// A duration that is set, as one that is zero or more.
pub(super) fn duration(duration: prost_types::Duration) -> Result<Duration, Refused> {
    let refused =
        || Refused::invalid("a duration must not be negative, and its nanos must be below 10^9");
    let seconds = u64::try_from(duration.seconds).map_err(|_| refused())?;
    match u32::try_from(duration.nanos) {
        Ok(nanos) if nanos < 1_000_000_000 => Ok(Duration::new(seconds, nanos)),
        _ => Err(refused()),
    }
}

/// A field that may be left unset.
fn optional<T>(
    field: Option<prost_types::Duration>,
    parse: impl FnOnce(Duration) -> Result<T, Refused>,
) -> Result<Option<T>, Refused> {
    field.map(|set| parse(duration(set)?)).transpose()
}

/// A field that is zero where it is left unset.
fn zero_if_unset<T>(
    field: Option<prost_types::Duration>,
    parse: impl FnOnce(Duration) -> Result<T, Refused>,
) -> Result<T, Refused> {
    parse(field.map_or(Ok(Duration::ZERO), duration)?)
}

/// What an enum's number means; a number that the contract does not know is refused.
fn known<E: TryFrom<i32>>(number: i32, what: &str) -> Result<E, Refused> {
    E::try_from(number).map_err(|_| Refused::invalid(format!("{what} has no value {number}")))
}

fn to_duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

fn to_timestamp(Timestamp(micros): Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: i32::try_from(micros.rem_euclid(1_000_000) * 1000).expect("below 10^9"),
    }
}

fn stored_response(
    bad: &mut Violations,
    field: &str,
    response: proto::StoredResponse,
    limits: &Limits,
) -> Option<StoredResponse> {
    let headers = response
        .headers
        .into_iter()
        .map(|h| (h.name, h.value.to_vec()));
    StoredResponse::parse(
        bad,
        field,
        response.status,
        headers.collect(),
        response.body.to_vec(),
        limits,
    )
}

fn to_stored_response(response: StoredResponse) -> proto::StoredResponse {
    let (status, headers, body) = response.into_parts();
    let headers = headers.into_iter().map(|(name, value)| proto::Header {
        name,
        value: value.into(),
    });
    proto::StoredResponse {
        status,
        headers: headers.collect(),
        body: body.into(),
    }
}

fn to_lost(reason: LossReason) -> proto::Lost {
    use proto::LossReason as Reason;
    let (reason, detail) = match reason {
        LossReason::NotFound => (
            Reason::NotFound,
            "nothing is known under this name and token",
        ),
        LossReason::TakenOver => (
            Reason::TakenOver,
            "somebody else holds it, or held it since",
        ),
        LossReason::Released => (
            Reason::Released,
            "it was released or abandoned with this token",
        ),
        LossReason::Forced => (Reason::Forced, "an operator took it away"),
        LossReason::Completed => (Reason::Completed, "the claim is completed"),
        LossReason::LeaseOver => (Reason::LeaseOver, "the lease on the lock ended"),
    };
    proto::Lost {
        reason: reason.into(),
        detail: detail.to_owned(),
    }
}

/// A renewal's answer, in whichever of the two messages.
fn renewed_or_lost<O>(
    outcome: RenewOutcome,
    renewed: impl FnOnce(proto::Renewed) -> O,
    lost: impl FnOnce(proto::Lost) -> O,
) -> Option<O> {
    Some(match outcome {
        RenewOutcome::Renewed {
            lease_left,
            fencing_token,
        } => renewed(proto::Renewed {
            lease_left: to_duration(lease_left),
            fencing_token,
        }),
        RenewOutcome::Lost(reason) => lost(to_lost(reason)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_duration_is_refused() {
        let of = |seconds, nanos| duration(prost_types::Duration { seconds, nanos });
        assert_eq!(of(1, 5), Ok(Duration::new(1, 5)));
        assert!(of(-1, 0).is_err());
        assert!(of(0, -1).is_err());
        assert!(of(0, 1_000_000_000).is_err());
    }

    #[test]
    fn a_timestamp_keeps_its_microseconds() {
        let timestamp = to_timestamp(Timestamp(1_764_513_600_123_456));
        assert_eq!(
            (timestamp.seconds, timestamp.nanos),
            (1_764_513_600, 123_456_000)
        );
    }
}
