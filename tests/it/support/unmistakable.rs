//! Names of keys, scopes, resources and tokens that can come from nowhere else, to be looked for where none may be.

use super::calls::{Clients, force_release, resolve_claim};
use super::requests::{
    abandon, acquire, claim, complete, millis, release, renew_claim, renew_lock,
};
use claimlock::rpc::proto::*;

pub const KEY: &str = "ZZkeyZZ";
pub const SCOPE: &str = "ZZscopeZZ";
pub const RESOURCE: &str = "ZZresourceZZ";
pub const TOKEN: &str = "ZZtokenZZ";
/// Is in each of these.
pub const MARK: &str = "ZZ";

/// Calls of each kind that end in each way, all of whose names are unmistakable.
pub async fn calls_of_each_kind(clients: &mut Clients) {
    let names = [
        format!("{TOKEN}-of-the-first"),
        format!("{TOKEN}-of-the-other"),
    ];
    let scope = SCOPE.to_owned();
    let client = &mut clients.coordination;
    for token in &names {
        let request = ClaimRequest {
            scope: scope.clone(),
            claim_token: token.clone(),
            ..claim(KEY, "")
        };
        client.claim(request.clone()).await.expect("an outcome");
        let other = ClaimRequest {
            operation: "another".to_owned(),
            ..request.clone()
        };
        client.claim(other).await.expect("a mismatch");
        let bad = ClaimRequest {
            lease: millis(0),
            on_lease_over: 99,
            ..request
        };
        client.claim(bad).await.expect_err("a bad lease");
        let renewal = RenewClaimRequest {
            scope: scope.clone(),
            claim_token: token.clone(),
            ..renew_claim(KEY, "")
        };
        client.renew_claim(renewal).await.expect("an outcome");
        let request = AcquireLockRequest {
            lock_token: token.clone(),
            ..acquire(RESOURCE, "")
        };
        client.acquire_lock(request).await.expect("an outcome");
        let renewal = RenewLockRequest {
            lock_token: token.clone(),
            ..renew_lock(RESOURCE, "")
        };
        client.renew_lock(renewal).await.expect("an outcome");
    }
    for token in &names {
        let completion = CompleteRequest {
            scope: scope.clone(),
            claim_token: token.clone(),
            ..complete(KEY, "", b"x")
        };
        client.complete(completion).await.expect("an outcome");
        let abandonment = AbandonRequest {
            scope: scope.clone(),
            claim_token: token.clone(),
            ..abandon(KEY, "", AbandonEffect::None)
        };
        client.abandon(abandonment).await.expect("an outcome");
        let release = ReleaseLockRequest {
            lock_token: token.clone(),
            ..release(RESOURCE, "")
        };
        client.release_lock(release).await.expect("an outcome");
    }
    let resolution = ResolveClaimRequest {
        scope,
        ..resolve_claim(KEY, 1)
    };
    clients
        .admin
        .resolve_claim(resolution)
        .await
        .expect("left alone");
    let release = force_release(RESOURCE);
    clients
        .admin
        .force_release_lock(release)
        .await
        .expect("an answer");
}
