//! What operators see and do. Every change leaves a line in the audit log: who, what, why, before and after. So a
//! change runs to its end even where its operator goes away meanwhile.

use super::Coordinator;
use crate::domain::audit;
use crate::domain::claim::{ClaimInfo, ListClaims, ResolveClaim, Resolved};
use crate::domain::failure::Failure;
use crate::domain::lock::{ForceReleaseLock, ForceReleased, ListLocks, LockInfo};
use crate::domain::name::{ClaimId, LockId};
use crate::domain::page::Page;
use crate::store::Store;
use crate::trace;
use std::time::Instant;

/// Who makes a change, as far as the transport can tell.
#[derive(Clone, Debug)]
pub struct Operator(pub String);

impl Coordinator {
    /// A claim, if the key is known.
    pub async fn get_claim(
        &self,
        id: ClaimId,
        limit: Instant,
    ) -> Result<Option<ClaimInfo>, Failure> {
        self.store.get_claim(&id, limit).await
    }

    /// A page of claims.
    pub async fn list_claims(
        &self,
        list: ListClaims,
        limit: Instant,
    ) -> Result<Page<ClaimInfo>, Failure> {
        self.store.list_claims(&list, limit).await
    }

    /// Settles a claim whose holder no longer does.
    pub async fn resolve_claim(
        &self,
        operator: Operator,
        request: ResolveClaim,
        limit: Instant,
    ) -> Result<Resolved, Failure> {
        let resolving = resolve_claim(self.store.clone(), operator, request, limit);
        self.cleanups.run_to_end(resolving).await
    }

    /// A lock, unless it is free.
    pub async fn get_lock(&self, id: LockId, limit: Instant) -> Result<Option<LockInfo>, Failure> {
        self.store.get_lock(&id, limit).await
    }

    /// A page of locks that are taken.
    pub async fn list_locks(
        &self,
        list: ListLocks,
        limit: Instant,
    ) -> Result<Page<LockInfo>, Failure> {
        self.store.list_locks(&list, limit).await
    }

    /// Takes a lock away from its holders.
    pub async fn force_release_lock(
        &self,
        operator: Operator,
        request: ForceReleaseLock,
        limit: Instant,
    ) -> Result<ForceReleased, Failure> {
        let releasing = force_release_lock(self.store.clone(), operator, request, limit);
        self.cleanups.run_to_end(releasing).await
    }
}

async fn resolve_claim(
    store: Store,
    operator: Operator,
    request: ResolveClaim,
    limit: Instant,
) -> Result<Resolved, Failure> {
    let result = store.resolve_claim(&request, limit).await;
    let (done, message) = match &result {
        Ok(Resolved { resolved: true, .. }) => ("yes", "an operator settled a claim"),
        Ok(_) => (
            "no",
            "an operator tried to settle a claim, which was left as it is",
        ),
        Err(_) => (
            "unknown",
            "an operator tried to settle a claim, and nobody knows what came of it",
        ),
    };
    let told = result.as_ref().ok();
    tracing::info!(
        target: audit::TARGET,
        who = operator.0,
        what = "resolve_claim",
        resolution = request.resolution.name(),
        tenant = request.id.tenant.as_str(),
        scope = request.id.scope.as_str(),
        key = request.id.key.as_str(),
        fencing_token = request.fencing_token,
        why = request.reason.as_str(),
        done,
        before = told.map(|resolved| audit::claim(resolved.before.as_ref())),
        after = told.map(|resolved| audit::claim(resolved.after.as_ref())),
        trace_id = trace::current_id(),
        "{message}"
    );
    result
}

async fn force_release_lock(
    store: Store,
    operator: Operator,
    request: ForceReleaseLock,
    limit: Instant,
) -> Result<ForceReleased, Failure> {
    let result = store.force_release_lock(&request, limit).await;
    let (done, message) = match &result {
        Ok(released) if !released.ended.is_empty() => ("yes", "an operator took a lock away"),
        Ok(_) => (
            "no",
            "an operator tried to take a lock away, and there was no such holder",
        ),
        Err(_) => (
            "unknown",
            "an operator tried to take a lock away, and nobody knows what came of it",
        ),
    };
    let told = result.as_ref().ok();
    tracing::info!(
        target: audit::TARGET,
        who = operator.0,
        what = "force_release_lock",
        tenant = request.id.tenant.as_str(),
        resource = request.id.resource.as_str(),
        fencing_token = request.fencing_token,
        why = request.reason.as_str(),
        done,
        before = told.map(|released| audit::holders(&released.ended)),
        after = told.map(|released| format!("released_holders={}", released.released_holders)),
        trace_id = trace::current_id(),
        "{message}"
    );
    result
}
