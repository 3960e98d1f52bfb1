//! What is counted and measured, for Prometheus.
//!
//! No label is ever made of what a caller chose, but for the tenant, and that only by a setting with a bound: the number
//! of series does not grow with use. Every series that is known beforehand is there from the start, at zero, so that
//! the first of its kind is seen as a growth. Who records holds the series itself, not its labels: nothing is looked up
//! per call that does not have to be.

mod calls;
mod outcomes;

pub use calls::{CallMetrics, Code, MethodMetrics, MethodName};
pub use outcomes::TenantLimit;

use crate::domain::claim::ClaimOutcome;
use crate::domain::lease::{LeaseName, LossReason};
use crate::domain::lock::AcquireOutcome;
use crate::domain::name::Tenant;
use outcomes::Outcomes;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::time::Duration;

/// The labels of one series.
type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// What [`Metrics::text`] is, for a header.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Seconds that a call or a script takes: most well below a millisecond, none longer than the store's timeout for long.
const SHORT: [f64; 15] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
];
/// Seconds that a lock is waited for or held: up to a day.
const LONG: [f64; 15] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0,
    86_400.0,
];

/// All series of one service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    handled: Counters,
    handling: Histograms,
    outcomes: Outcomes,
    lock_wait: Histogram,
    lock_held: Histogram,
    lost: [Counter; LossReason::ALL.len()],
    store_duration: Histograms,
    store_up: Gauge,
    waiters: Gauge,
    lock_leases: Gauge,
    claim_leases: Gauge,
}

fn short() -> Histogram {
    Histogram::new(SHORT)
}

fn long() -> Histogram {
    Histogram::new(LONG)
}

impl Metrics {
    /// Those of a service of this version.
    pub fn new(version: &'static str, tenants: TenantLimit) -> Self {
        let mut registry = Registry::default();
        let at = &mut registry;

        let handled = Counters::default();
        at.register(
            "grpc_server_handled",
            "Calls that were answered, by the code of the answer",
            handled.clone(),
        );
        let handling = histograms(short);
        at.register_with_unit(
            "grpc_server_handling",
            "Time from a call's headers to the end of its answer",
            Unit::Seconds,
            handling.clone(),
        );
        let outcomes = Outcomes::register(at, tenants);
        let lock_wait = long();
        at.register_with_unit(
            "claimlock_lock_wait",
            "Time that it took to acquire a lock, of those that were acquired",
            Unit::Seconds,
            lock_wait.clone(),
        );
        let lock_held = long();
        at.register_with_unit(
            "claimlock_lock_held",
            "Time that a lock was held, known when it is released, taken away, or found to be over",
            Unit::Seconds,
            lock_held.clone(),
        );
        let lost = Counters::default();
        at.register(
            "claimlock_lease_lost",
            "Callers that were told that their token no longer holds the claim or lock",
            lost.clone(),
        );
        let lost = LossReason::ALL.map(|reason| {
            let labels = vec![("reason", reason.name().to_owned())];
            lost.get_or_create_owned(&labels)
        });
        let store_duration = histograms(short);
        at.register_with_unit(
            "claimlock_store_duration",
            "Time that Redis took to answer a script, or that was waited in vain",
            Unit::Seconds,
            store_duration.clone(),
        );
        let store_up = Gauge::default();
        at.register(
            "claimlock_store_up",
            "1 while Redis answers, as of the last look half a second ago at most",
            store_up.clone(),
        );
        let waiters = Gauge::default();
        at.register(
            "claimlock_waiters",
            "Calls that wait now: for their turn with a lock, or for a claim in flight to end",
            waiters.clone(),
        );
        let leases = Family::<Labels, Gauge>::default();
        at.register(
            "claimlock_leases",
            "Leases that streams keep alive now",
            leases.clone(),
        );
        let leases = |kind: &str| leases.get_or_create_owned(&vec![("kind", kind.to_owned())]);
        at.register(
            "claimlock_build",
            "What is running; always 1",
            Info::new(vec![("version", version)]),
        );

        Self(Arc::new(Inner {
            registry,
            handled,
            handling,
            outcomes,
            lock_wait,
            lock_held,
            lost,
            store_duration,
            store_up,
            waiters,
            lock_leases: leases("lock"),
            claim_leases: leases("claim"),
        }))
    }

    /// Everything in the text format 0.0.4, which every scraper reads.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(64 * 1024);
        match prometheus_text::encode(&mut text, &self.0.registry) {
            Ok(()) => text,
            Err(error) => unreachable!("a string takes whatever is written to it: {error}"),
        }
    }

    /// Those of the gRPC methods that are served.
    pub fn calls(&self, methods: impl IntoIterator<Item = MethodName>) -> CallMetrics {
        CallMetrics::new(&self.0.handled, &self.0.handling, methods)
    }

    /// One for each script by its name, in the same order.
    pub fn scripts(&self, names: impl IntoIterator<Item = &'static str>) -> Vec<ScriptMetrics> {
        let one = |name: &str| {
            let labels = vec![("script", name.to_owned())];
            ScriptMetrics(self.0.store_duration.get_or_create_owned(&labels))
        };
        names.into_iter().map(one).collect()
    }

    /// Counts what came of a Claim.
    pub fn claim(&self, tenant: &Tenant, outcome: &ClaimOutcome) {
        self.0.outcomes.claim(tenant, outcome);
        if let ClaimOutcome::Lost(reason) = outcome {
            self.lost(*reason);
        }
    }

    /// Counts what came of an AcquireLock that began `waited` ago.
    pub fn acquire_lock(&self, tenant: &Tenant, outcome: &AcquireOutcome, waited: Duration) {
        self.0.outcomes.acquire(tenant, outcome);
        match outcome {
            AcquireOutcome::Acquired(acquired) if !acquired.already_held => {
                self.0.lock_wait.observe(waited.as_secs_f64());
            }
            AcquireOutcome::Lost(reason) => self.lost(*reason),
            AcquireOutcome::Acquired(_) | AcquireOutcome::Held(_) => {}
        }
    }

    /// Counts a loss that a caller was told of.
    pub fn lost(&self, reason: LossReason) {
        self.0.lost[reason as usize].inc();
    }

    /// Records how long a lock was held that is held no more.
    pub fn lock_held(&self, held: Duration) {
        self.0.lock_held.observe(held.as_secs_f64());
    }

    /// A call waits, until the answer is dropped.
    pub fn waiter(&self) -> Counted {
        Counted::in_gauge(&self.0.waiters)
    }

    /// A stream keeps a lease alive, until the answer is dropped.
    pub fn lease(&self, lease: &LeaseName) -> Counted {
        Counted::in_gauge(match lease {
            LeaseName::Lock(..) => &self.0.lock_leases,
            LeaseName::Claim(..) => &self.0.claim_leases,
        })
    }

    /// Says whether Redis answers.
    pub fn store_is_up(&self, up: bool) {
        self.0.store_up.set(i64::from(up));
    }
}

/// One of those that a gauge counts now, until it is dropped.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    fn in_gauge(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Measures one script.
#[derive(Clone, Debug)]
pub struct ScriptMetrics(Histogram);

impl ScriptMetrics {
    /// Records one call of it.
    pub fn took(&self, time: Duration) {
        self.0.observe(time.as_secs_f64());
    }
}

fn histograms(one: fn() -> Histogram) -> Histograms {
    Histograms::new_with_constructor(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_counted_under_its_own_reason() {
        let metrics = Metrics::new("1.2.3", TenantLimit::none());
        for (times, reason) in LossReason::ALL.into_iter().enumerate() {
            for _ in 0..times {
                metrics.lost(reason);
            }
        }
        let text = metrics.text();
        for (times, reason) in LossReason::ALL.into_iter().enumerate() {
            let line = format!(
                "claimlock_lease_lost_total{{reason=\"{}\"}} {times}\n",
                reason.name()
            );
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(
            text.contains("claimlock_build_info{version=\"1.2.3\"} 1\n"),
            "{text}"
        );
    }
}
