//! Makes what came of each call seen: the one place that counts outcomes and logs refusals.

use crate::domain::claim::{AbandonOutcome, ClaimOutcome, CompleteOutcome};
use crate::domain::failure::Failure;
use crate::domain::lease::{LeaseName, LossReason, RenewOutcome};
use crate::domain::lock::{AcquireOutcome, ReleaseOutcome};
use crate::domain::name::{ClaimId, LockId, Tenant};
use crate::metrics::Metrics;
use crate::trace::{self, REFUSALS};
use sha2::{Digest, Sha256};
use std::fmt;
use std::time::Instant;
use tracing::Level;

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject<'a> {
    Claim(&'a ClaimId),
    Lock(&'a LockId),
}

impl<'a> Subject<'a> {
    pub(super) fn of(lease: &'a LeaseName) -> Self {
        match lease {
            LeaseName::Lock(id, _) => Self::Lock(id),
            LeaseName::Claim(id, _) => Self::Claim(id),
        }
    }

    fn tenant(&self) -> &Tenant {
        match self {
            Self::Claim(id) => &id.tenant,
            Self::Lock(id) => &id.tenant,
        }
    }
}

/// The first eight bytes of the SHA-256 of the name, its parts divided by NUL: logs must not hold what callers name their
/// keys and resources by, and still tell which lines belong together.
impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = match self {
            Self::Claim(id) => [id.tenant.as_str(), id.scope.as_str(), id.key.as_str()].join("\0"),
            Self::Lock(id) => [id.tenant.as_str(), id.resource.as_str()].join("\0"),
        };
        let digest = Sha256::digest(parts);
        digest[..8]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Whether a call got what it asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Got {
    It,
    /// Others have it.
    Refused,
    /// Its token has it no more.
    Lost(LossReason),
}

/// An outcome as it is counted and told.
pub(super) trait Outcome {
    /// Its word.
    fn name(&self) -> &'static str;

    fn got(&self) -> Got;

    /// Counts it; the call began at `started`.
    fn count(&self, metrics: &Metrics, tenant: &Tenant, started: Instant);
}

impl Outcome for ClaimOutcome {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn got(&self) -> Got {
        match self {
            Self::Claimed(_) | Self::Replay(_) => Got::It,
            Self::InFlight(_) | Self::Mismatch { .. } | Self::Uncertain(_) => Got::Refused,
            Self::Lost(reason) => Got::Lost(*reason),
        }
    }

    fn count(&self, metrics: &Metrics, tenant: &Tenant, _: Instant) {
        metrics.claim(tenant, self);
    }
}

impl Outcome for AcquireOutcome {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn got(&self) -> Got {
        match self {
            Self::Acquired(_) => Got::It,
            Self::Held(_) => Got::Refused,
            Self::Lost(reason) => Got::Lost(*reason),
        }
    }

    fn count(&self, metrics: &Metrics, tenant: &Tenant, started: Instant) {
        metrics.acquire_lock(tenant, self, started.elapsed());
    }
}

/// Those that either do what they are for, or are lost.
macro_rules! done_or_lost {
    ($($outcome:ident: $done:literal;)*) => {
        $(impl Outcome for $outcome {
            fn name(&self) -> &'static str {
                match self {
                    Self::Lost(_) => "lost",
                    _ => $done,
                }
            }

            fn got(&self) -> Got {
                match self {
                    Self::Lost(reason) => Got::Lost(*reason),
                    _ => Got::It,
                }
            }

            fn count(&self, metrics: &Metrics, _: &Tenant, _: Instant) {
                if let Self::Lost(reason) = self {
                    metrics.lost(*reason);
                }
            }
        })*
    };
}

done_or_lost! {
    RenewOutcome: "renewed";
    CompleteOutcome: "completed";
    AbandonOutcome: "abandoned";
    ReleaseOutcome: "released";
}

/// Reports what comes of one call.
#[derive(Debug)]
pub(super) struct Report<'a> {
    metrics: &'a Metrics,
    /// The verb.
    call: &'static str,
    subject: Subject<'a>,
    started: Instant,
}

impl<'a> Report<'a> {
    pub(super) fn begin(metrics: &'a Metrics, call: &'static str, subject: Subject<'a>) -> Self {
        Self {
            metrics,
            call,
            subject,
            started: Instant::now(),
        }
    }

    /// The call came to its end. What failed is logged where its caller is told of it, and is told here what it was about.
    pub(super) fn end<O: Outcome>(self, result: Result<&O, &Failure>) {
        match result {
            Ok(outcome) => {
                outcome.count(self.metrics, self.subject.tenant(), self.started);
                trace::note_outcome(outcome.name());
                self.log(outcome);
            }
            Err(_) if tracing::enabled!(target: REFUSALS, Level::WARN) => {
                trace::note_subject(|| self.subject.to_string());
            }
            Err(_) => {}
        }
    }

    fn log(&self, outcome: &impl Outcome) {
        let reason = match outcome.got() {
            Got::It => return,
            Got::Refused => None,
            Got::Lost(reason) => Some(reason.name()),
        };
        tracing::info!(
            target: REFUSALS,
            call = self.call,
            outcome = outcome.name(),
            reason,
            tenant = self.subject.tenant().as_str(),
            subject = %self.subject,
            trace_id = trace::current_id(),
            "not granted"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::name::{IdempotencyKey, Resource, Scope};

    /// printf '%s\0%s\0%s' default payments order-1001 | sha256sum | cut -c 1-16
    #[test]
    fn an_operator_can_work_out_the_hash_of_a_name() {
        let tenant = Tenant::parse("default".to_owned()).expect("a tenant");
        let claim = ClaimId {
            tenant: tenant.clone(),
            scope: Scope::parse("payments".to_owned()).expect("a scope"),
            key: IdempotencyKey::parse("order-1001".to_owned()).expect("a key"),
        };
        assert_eq!(Subject::Claim(&claim).to_string(), "fad0165191c5a664");
        let lock = LockId {
            tenant,
            resource: Resource::parse("nightly-report".to_owned()).expect("a resource"),
        };
        assert_eq!(Subject::Lock(&lock).to_string(), "ee93c1370bfd030d");
    }
}
