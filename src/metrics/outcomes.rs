//! What came of claims and acquisitions, of all tenants together or of each of the first few.

use super::{Counters, Labels};
use crate::domain::claim::ClaimOutcome;
use crate::domain::lock::AcquireOutcome;
use crate::domain::name::Tenant;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// How many tenants are told apart at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantLimit(pub usize);

impl TenantLimit {
    /// Tenants are not told apart.
    pub fn none() -> Self {
        Self(0)
    }
}

/// Stands for every tenant that came when the limit was reached.
const OTHER: &str = "other";

#[derive(Debug)]
pub(super) struct Outcomes {
    claims: Counters,
    acquisitions: Counters,
    /// Of all tenants that are not told apart.
    rest: OfTenant,
    limit: TenantLimit,
    /// By name; never more than the limit.
    tenants: RwLock<HashMap<String, Arc<OfTenant>>>,
}

#[derive(Debug)]
struct OfTenant {
    claims: [Counter; ClaimOutcome::NAMES.len()],
    acquisitions: [Counter; AcquireOutcome::NAMES.len()],
}

impl Outcomes {
    pub(super) fn register(registry: &mut Registry, limit: TenantLimit) -> Self {
        let claims = Counters::default();
        registry.register(
            "claimlock_claims",
            "Claims that got an outcome",
            claims.clone(),
        );
        let acquisitions = Counters::default();
        registry.register(
            "claimlock_lock_acquire",
            "Acquisitions of locks that got an outcome",
            acquisitions.clone(),
        );
        let tenant = (limit.0 > 0).then_some(OTHER);
        Self {
            rest: OfTenant::new(&claims, &acquisitions, tenant),
            claims,
            acquisitions,
            limit,
            tenants: RwLock::default(),
        }
    }

    pub(super) fn claim(&self, tenant: &Tenant, outcome: &ClaimOutcome) {
        self.of(tenant, |of| of.claims[outcome.number()].inc());
    }

    pub(super) fn acquire(&self, tenant: &Tenant, outcome: &AcquireOutcome) {
        self.of(tenant, |of| of.acquisitions[outcome.number()].inc());
    }

    fn of(&self, tenant: &Tenant, count: impl Fn(&OfTenant) -> u64) {
        let tenant = tenant.as_str();
        if self.limit.0 == 0 || tenant == OTHER {
            count(&self.rest);
            return;
        }
        {
            let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(of) = tenants.get(tenant) {
                count(of);
                return;
            }
            if tenants.len() >= self.limit.0 {
                count(&self.rest);
                return;
            }
        }
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        // Others may have come in between.
        if tenants.len() >= self.limit.0 && !tenants.contains_key(tenant) {
            count(&self.rest);
            return;
        }
        let of = tenants.entry(tenant.to_owned()).or_insert_with(|| {
            Arc::new(OfTenant::new(
                &self.claims,
                &self.acquisitions,
                Some(tenant),
            ))
        });
        count(of);
    }
}

impl OfTenant {
    fn new(claims: &Counters, acquisitions: &Counters, tenant: Option<&str>) -> Self {
        let labels = |outcome: &str| -> Labels {
            let outcome = ("outcome", outcome.to_owned());
            let tenant = tenant.map(|tenant| ("tenant", tenant.to_owned()));
            [outcome].into_iter().chain(tenant).collect()
        };
        Self {
            claims: ClaimOutcome::NAMES.map(|name| claims.get_or_create_owned(&labels(name))),
            acquisitions: AcquireOutcome::NAMES
                .map(|name| acquisitions.get_or_create_owned(&labels(name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lease::LossReason;

    fn counted(limit: usize, tenants: &[&str]) -> Vec<String> {
        let mut registry = Registry::default();
        let outcomes = Outcomes::register(&mut registry, TenantLimit(limit));
        for tenant in tenants {
            let tenant = Tenant::parse((*tenant).to_owned()).expect("a tenant");
            outcomes.claim(&tenant, &ClaimOutcome::Lost(LossReason::Forced));
        }
        let mut text = String::new();
        prometheus_client::encoding::prometheus_text::encode(&mut text, &registry)
            .expect("a string takes it");
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| line.starts_with("claimlock_claims_total{outcome=\"lost\""))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn tenants_are_not_told_apart_unless_asked_for() {
        assert_eq!(
            counted(0, &["a", "b", "other"]),
            ["claimlock_claims_total{outcome=\"lost\"} 3"]
        );
    }

    #[test]
    fn the_first_tenants_are_told_apart_and_all_others_are_one() {
        assert_eq!(
            counted(2, &["a", "other", "b", "c", "a", "d"]),
            [
                "claimlock_claims_total{outcome=\"lost\",tenant=\"a\"} 2",
                "claimlock_claims_total{outcome=\"lost\",tenant=\"b\"} 1",
                "claimlock_claims_total{outcome=\"lost\",tenant=\"other\"} 3",
            ]
        );
    }
}
