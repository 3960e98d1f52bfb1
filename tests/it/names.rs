//! No two names meet, whatever they are made of, and operators see each as it was given.

use crate::support::calls::{get_claim, get_lock};
use crate::support::redis::RedisServer;
use crate::support::requests::{acquire, claim, complete};
use crate::support::service::{Admin, Coordination, Service, patient};
use claimlock::rpc::proto::*;
use std::collections::BTreeMap;

/// Parts that could be mistaken for one another where they are put together or taken apart.
const AWKWARD: [&str; 34] = [
    "a", "b", "c", "a:b", "b:c", "a:b:c", "a/b", "b/c", "a/", "/a", "/", "//", "{", "}", "{a}",
    "}{", "a}:r", "}:h", "%", "%2F", "%2f", "%25", "\"", "'", "a'b\"c", "*", "?", "[a-z]", "\\",
    "\\*", " ", " a", "a ", "A",
];

fn texts(parts: &[&str]) -> Vec<String> {
    let mut texts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
    // Each of these takes three bytes in a key.
    texts.push("%".repeat(255));
    texts.push("%".repeat(254));
    texts
}

struct World {
    redis: RedisServer,
    _service: Service,
    client: Coordination,
    admin: Admin,
}

impl World {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let service = Service::with(&redis, patient()).await;
        Self {
            client: service.coordination().await,
            admin: service.admin().await,
            redis,
            _service: service,
        }
    }
}

/// Tenant, scope and key.
type Name = (String, String, String);

fn name_of(claim: &ClaimInfo) -> Name {
    (claim.tenant.clone(), claim.scope.clone(), claim.key.clone())
}

impl World {
    /// Claims a name and says who it was.
    async fn claim(&mut self, name: &Name, holder: &str) {
        let (tenant, scope, key) = name.clone();
        let request = ClaimRequest {
            tenant,
            scope,
            holder: holder.to_owned(),
            ..claim(&key, holder)
        };
        let answer = self
            .client
            .claim(request)
            .await
            .expect("an answer")
            .into_inner();
        let Some(claim_response::Outcome::Claimed(claimed)) = answer.outcome else {
            panic!("{name:?} meets another: {answer:?}");
        };
        let is = (claimed.attempt, claimed.already_held, claimed.taken_over);
        assert_eq!(is, (1, false, false), "{name:?} meets another");
    }

    async fn list(&mut self, request: ListClaimsRequest) -> BTreeMap<Name, String> {
        let mut listed = BTreeMap::new();
        let mut request = ListClaimsRequest {
            page_size: 100,
            ..request
        };
        loop {
            let page = self
                .admin
                .list_claims(request.clone())
                .await
                .expect("a page")
                .into_inner();
            for claim in page.claims {
                let twice = listed.insert(name_of(&claim), claim.holder);
                assert_eq!(twice, None);
            }
            if page.next_page_token.is_empty() {
                return listed;
            }
            request.page_token = page.next_page_token;
        }
    }
}

#[tokio::test]
async fn no_two_claims_meet_and_each_is_seen_under_its_own_name() {
    let mut world = World::start().await;
    let mut names = BTreeMap::new();
    let mut scopes = texts(&AWKWARD);
    scopes.push(String::new());
    for scope in &scopes {
        for key in texts(&AWKWARD) {
            let name = ("default".to_owned(), scope.clone(), key);
            let holder = format!("holder-{}", names.len());
            world.claim(&name, &holder).await;
            names.insert(name, holder);
        }
    }

    for (name, holder) in &names {
        let (_, scope, key) = name.clone();
        let request = GetClaimRequest {
            scope,
            ..get_claim(&key)
        };
        let found = world
            .admin
            .get_claim(request)
            .await
            .expect("an answer")
            .into_inner();
        let found = found
            .claim
            .unwrap_or_else(|| panic!("{name:?} is not seen"));
        assert_eq!((&name_of(&found), &found.holder), (name, holder));
    }

    assert_eq!(world.list(ListClaimsRequest::default()).await, names);
    for prefix in texts(&AWKWARD) {
        let expected: BTreeMap<Name, String> = names
            .iter()
            .filter(|((_, _, key), _)| key.starts_with(&prefix))
            .map(|(name, holder)| (name.clone(), holder.clone()))
            .collect();
        let request = ListClaimsRequest {
            key_prefix: prefix.clone(),
            ..ListClaimsRequest::default()
        };
        let listed = world.list(request).await;
        assert!(listed == expected, "{prefix:?}: {:?}", listed.keys());
    }
    assert!(world.redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn no_two_tenants_meet_and_each_sees_its_own() {
    let mut world = World::start().await;
    let tenants = [
        "a", "A", "a.b", "a-b", "a_b", ".", "..", "-", "_", "b", "default", "a.b.c",
    ];
    let mut names = BTreeMap::new();
    for tenant in tenants {
        for scope in ["", "b", "b.c", ".b", "a"] {
            for key in ["c", "b.c", "a", "b/c"] {
                let name = (tenant.to_owned(), scope.to_owned(), key.to_owned());
                let holder = format!("holder-{}", names.len());
                world.claim(&name, &holder).await;
                names.insert(name, holder);
            }
        }
    }
    for tenant in tenants {
        let expected: BTreeMap<Name, String> = names
            .iter()
            .filter(|((of, _, _), _)| of == tenant)
            .map(|(name, holder)| (name.clone(), holder.clone()))
            .collect();
        let request = ListClaimsRequest {
            tenant: tenant.to_owned(),
            ..ListClaimsRequest::default()
        };
        assert_eq!(world.list(request).await, expected, "{tenant}");
    }
    let request = ListClaimsRequest {
        all_tenants: true,
        ..ListClaimsRequest::default()
    };
    assert_eq!(world.list(request).await, names);
}

#[tokio::test]
async fn a_request_without_a_tenant_is_the_default_tenants() {
    let mut world = World::start().await;
    let unnamed = (String::new(), String::new(), "k".to_owned());
    world.claim(&unnamed, "holder-one").await;
    let request = ClaimRequest {
        tenant: "default".to_owned(),
        ..claim("k", "holder-one")
    };
    let answer = world
        .client
        .claim(request)
        .await
        .expect("an answer")
        .into_inner();
    let Some(claim_response::Outcome::Claimed(claimed)) = answer.outcome else {
        panic!("{answer:?}");
    };
    assert!(claimed.already_held);
    for tenant in ["", "default"] {
        let request = GetClaimRequest {
            tenant: tenant.to_owned(),
            ..get_claim("k")
        };
        let found = world
            .admin
            .get_claim(request)
            .await
            .expect("an answer")
            .into_inner();
        assert_eq!(found.claim.expect("it is there").tenant, "default");
    }

    world
        .client
        .acquire_lock(acquire("r", "a"))
        .await
        .expect("acquired");
    for tenant in ["", "default"] {
        let request = GetLockRequest {
            tenant: tenant.to_owned(),
            ..get_lock("r")
        };
        let found = world
            .admin
            .get_lock(request)
            .await
            .expect("an answer")
            .into_inner();
        assert_eq!(found.lock.expect("it is there").tenant, "default");
        let request = ListLocksRequest {
            tenant: tenant.to_owned(),
            ..ListLocksRequest::default()
        };
        let listed = world
            .admin
            .list_locks(request)
            .await
            .expect("a page")
            .into_inner();
        assert_eq!(listed.locks.len(), 1, "{tenant:?}");
    }
}

/// Tenant and resource.
type LockName = (String, String);

async fn list_locks(admin: &mut Admin, request: ListLocksRequest) -> BTreeMap<LockName, String> {
    let mut listed = BTreeMap::new();
    let mut request = request;
    loop {
        let page = admin
            .list_locks(request.clone())
            .await
            .expect("a page")
            .into_inner();
        for lock in page.locks {
            let [holder] = lock.holders.as_slice() else {
                panic!("{lock:?} has one holder");
            };
            let twice = listed.insert((lock.tenant, lock.resource), holder.holder.clone());
            assert_eq!(twice, None);
        }
        if page.next_page_token.is_empty() {
            return listed;
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test]
async fn no_two_locks_meet_and_each_is_seen_under_its_own_name() {
    let mut world = World::start().await;
    let mut names = BTreeMap::new();
    for tenant in ["default", "a", "a.b", "a-b", "A"] {
        for resource in texts(&AWKWARD) {
            let holder = format!("holder-{}", names.len());
            let request = AcquireLockRequest {
                tenant: tenant.to_owned(),
                holder: holder.clone(),
                ..acquire(&resource, &holder)
            };
            let answer = world
                .client
                .acquire_lock(request)
                .await
                .expect("an answer")
                .into_inner();
            let Some(acquire_lock_response::Outcome::Acquired(acquired)) = answer.outcome else {
                panic!("{tenant} and {resource:?} meet another: {answer:?}");
            };
            assert!(!acquired.already_held);
            names.insert((tenant.to_owned(), resource), holder);
        }
    }
    for ((tenant, resource), holder) in &names {
        let request = GetLockRequest {
            tenant: tenant.clone(),
            ..get_lock(resource)
        };
        let found = world
            .admin
            .get_lock(request)
            .await
            .expect("an answer")
            .into_inner();
        let lock = found
            .lock
            .unwrap_or_else(|| panic!("{tenant} {resource:?} is not seen"));
        assert_eq!((&lock.tenant, &lock.resource), (tenant, resource));
        assert_eq!(&lock.holders[0].holder, holder);
    }

    let everything = ListLocksRequest {
        all_tenants: true,
        ..ListLocksRequest::default()
    };
    assert_eq!(
        list_locks(&mut world.admin, everything.clone()).await,
        names
    );
    for prefix in texts(&AWKWARD) {
        let expected: BTreeMap<LockName, String> = names
            .iter()
            .filter(|((_, resource), _)| resource.starts_with(&prefix))
            .map(|(name, holder)| (name.clone(), holder.clone()))
            .collect();
        let request = ListLocksRequest {
            resource_prefix: prefix.clone(),
            ..everything.clone()
        };
        let listed = list_locks(&mut world.admin, request).await;
        assert!(listed == expected, "{prefix:?}: {:?}", listed.keys());
    }
    assert!(world.redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn a_key_and_a_resource_of_one_name_do_not_meet() {
    let mut world = World::start().await;
    for name in AWKWARD {
        world
            .claim(
                &(String::new(), String::new(), name.to_owned()),
                "holder-one",
            )
            .await;
        let answer = world
            .client
            .acquire_lock(acquire(name, "a"))
            .await
            .expect("an answer");
        let outcome = answer.into_inner().outcome;
        assert!(
            matches!(outcome, Some(acquire_lock_response::Outcome::Acquired(_))),
            "{name:?}: {outcome:?}"
        );
    }
}

/// A response may lie under a key of its own, which must be no other claim's.
#[tokio::test]
async fn no_claim_meets_the_response_of_another() {
    let mut world = World::start().await;
    let names = ["x", "x}:r", "x:r", "x%7D:r", "x}"];
    let claimed = |name: &str| (String::new(), String::new(), name.to_owned());
    for name in names {
        world.claim(&claimed(name), "holder-one").await;
        let request = CompleteRequest {
            response_retention: crate::support::requests::millis(60_000),
            ..complete(name, "holder-one", name.as_bytes())
        };
        world.client.complete(request).await.expect("completed");
    }
    for name in names {
        let answer = world
            .client
            .claim(claim(name, "b"))
            .await
            .expect("an answer")
            .into_inner();
        let Some(claim_response::Outcome::Replay(replay)) = answer.outcome else {
            panic!("{name}: {answer:?}");
        };
        assert_eq!(replay.response.expect("it is kept").body, name.as_bytes());
    }
    assert!(world.redis.keys_without_expiry().await.is_empty());
}
