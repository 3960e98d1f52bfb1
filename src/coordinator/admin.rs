//! What operators see and do. Every change leaves a line in the audit log: who, what, why, before and after. So a
//! change runs to its end even where its operator goes away meanwhile.

use super::Coordinator;
use crate::domain::audit;
use crate::domain::claim::{ClaimInfo, ListClaims, ResolveClaim, Resolved};
use crate::domain::failure::Failure;
use crate::domain::lock::{ForceReleaseLock, ForceReleased, HolderInfo, ListLocks, LockInfo};
use crate::domain::name::{ClaimId, LockId};
use crate::domain::page::Page;
use crate::store::Store;
use std::time::Instant;

/// How many holders an audit line names; of the others it says how many.
const HOLDERS_WRITTEN: usize = 100;

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
    let (done, before, after) = match &result {
        Ok(resolved) => (
            if resolved.resolved { "yes" } else { "no" },
            resolved.before.as_ref(),
            resolved.after.as_ref(),
        ),
        Err(_) => ("unknown", None, None),
    };
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
        before = before.map(summary),
        after = after.map(summary),
        "an operator settled a claim"
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
    let (done, before) = match &result {
        Ok(released) => ("yes", Some(&released.ended)),
        Err(_) => ("unknown", None),
    };
    let holders = |ended: &Vec<HolderInfo>| {
        let written = &ended[..ended.len().min(HOLDERS_WRITTEN)];
        match ended.len() - written.len() {
            0 => format!("{written:?}"),
            others => format!("{written:?} and {others} others"),
        }
    };
    tracing::info!(
        target: audit::TARGET,
        who = operator.0,
        what = "force_release_lock",
        tenant = request.id.tenant.as_str(),
        resource = request.id.resource.as_str(),
        fencing_token = request.fencing_token,
        why = request.reason.as_str(),
        done,
        before = before.map(holders),
        after = result.as_ref().ok().map(|released| format!("released {} holders", released.released_holders)),
        "an operator took a lock away"
    );
    result
}

fn summary(claim: &ClaimInfo) -> String {
    format!(
        "state {:?}, attempt {}, fencing token {}, holder {:?}, operation {:?}, response status {} with {} bytes, taken over {}",
        claim.state,
        claim.attempt,
        claim.fencing_token,
        claim.holder,
        claim.operation,
        claim.response_status,
        claim.response_bytes,
        claim.taken_over,
    )
}
