//! Every call that is served, to be made one by one or all at once.

use super::requests::{
    abandon, acquire, claim, complete, release, renew_claim, renew_lock, response,
};
use super::service::{Admin, Coordination, Service, channel, coordination};
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::{Request, Status};

/// Clients of both services, on connections of their own.
#[derive(Debug, Clone)]
pub struct Clients {
    pub coordination: Coordination,
    pub admin: Admin,
}

impl Clients {
    pub async fn of(service: &Service) -> Self {
        Self::at(service.grpc).await
    }

    pub async fn at(address: SocketAddr) -> Self {
        Self {
            coordination: coordination(address).await,
            admin: Admin::new(channel(address).await),
        }
    }
}

/// A request of the contract, with the call that takes it.
pub trait Call: Clone + Send + 'static {
    const METHOD: &'static str;

    /// Makes the call, with a deadline if one is given.
    fn call(
        self,
        clients: &mut Clients,
        timeout: Option<Duration>,
    ) -> impl Future<Output = Result<(), Status>> + Send;
}

macro_rules! calls {
    ($($request:ident: $client:ident.$method:ident, $name:literal;)*) => {
        $(impl Call for $request {
            const METHOD: &'static str = $name;

            async fn call(
                self,
                clients: &mut Clients,
                timeout: Option<Duration>,
            ) -> Result<(), Status> {
                let mut request = Request::new(self);
                if let Some(timeout) = timeout {
                    request.set_timeout(timeout);
                }
                clients.$client.$method(request).await.map(|_| ())
            }
        })*
    };
}

calls! {
    ClaimRequest: coordination.claim, "Claim";
    RenewClaimRequest: coordination.renew_claim, "RenewClaim";
    CompleteRequest: coordination.complete, "Complete";
    AbandonRequest: coordination.abandon, "Abandon";
    AcquireLockRequest: coordination.acquire_lock, "AcquireLock";
    RenewLockRequest: coordination.renew_lock, "RenewLock";
    ReleaseLockRequest: coordination.release_lock, "ReleaseLock";
    GetClaimRequest: admin.get_claim, "GetClaim";
    ListClaimsRequest: admin.list_claims, "ListClaims";
    ResolveClaimRequest: admin.resolve_claim, "ResolveClaim";
    GetLockRequest: admin.get_lock, "GetLock";
    ListLocksRequest: admin.list_locks, "ListLocks";
    ForceReleaseLockRequest: admin.force_release_lock, "ForceReleaseLock";
}

/// What [`each_call`] claims and acquires.
pub const KEY: &str = "key-of-a-test";
pub const RESOURCE: &str = "resource-of-a-test";

/// Makes one good call of each kind, all at once, on one key and one resource.
pub async fn each_call(
    clients: &Clients,
    timeout: Option<Duration>,
) -> BTreeMap<&'static str, Result<(), Status>> {
    let mut calls = JoinSet::new();
    let add = &mut calls;
    start(add, clients, timeout, claim(KEY, "a"));
    start(add, clients, timeout, renew_claim(KEY, "a"));
    start(add, clients, timeout, complete(KEY, "a", b"done"));
    start(
        add,
        clients,
        timeout,
        abandon(KEY, "a", AbandonEffect::None),
    );
    start(add, clients, timeout, acquire(RESOURCE, "a"));
    start(add, clients, timeout, renew_lock(RESOURCE, "a"));
    start(add, clients, timeout, release(RESOURCE, "a"));
    start(add, clients, timeout, get_claim(KEY));
    start(add, clients, timeout, ListClaimsRequest::default());
    start(add, clients, timeout, resolve_claim(KEY, 1));
    start(add, clients, timeout, get_lock(RESOURCE));
    start(add, clients, timeout, ListLocksRequest::default());
    start(add, clients, timeout, force_release(RESOURCE));
    let mut answers = BTreeMap::new();
    while let Some(answer) = calls.join_next().await {
        let (method, answer) = answer.expect("no call panics");
        answers.insert(method, answer);
    }
    assert_eq!(answers.len(), 13);
    answers
}

fn start<R: Call>(
    calls: &mut JoinSet<(&'static str, Result<(), Status>)>,
    clients: &Clients,
    timeout: Option<Duration>,
    request: R,
) {
    let mut clients = clients.clone();
    calls.spawn(async move { (R::METHOD, request.call(&mut clients, timeout).await) });
}

pub fn get_claim(key: &str) -> GetClaimRequest {
    GetClaimRequest {
        key: key.to_owned(),
        ..GetClaimRequest::default()
    }
}

pub fn get_lock(resource: &str) -> GetLockRequest {
    GetLockRequest {
        resource: resource.to_owned(),
        ..GetLockRequest::default()
    }
}

/// Completes a claim in an operator's name.
pub fn resolve_claim(key: &str, fencing_token: i64) -> ResolveClaimRequest {
    ResolveClaimRequest {
        key: key.to_owned(),
        fencing_token,
        reason: "a test".to_owned(),
        resolution: Some(Resolution::Complete(response(b"mended"))),
        ..ResolveClaimRequest::default()
    }
}

/// Takes a lock away from all that hold it.
pub fn force_release(resource: &str) -> ForceReleaseLockRequest {
    ForceReleaseLockRequest {
        resource: resource.to_owned(),
        reason: "a test".to_owned(),
        ..ForceReleaseLockRequest::default()
    }
}
