//! Listings: every record once, in pages that are bounded for the caller and for Redis.

use crate::support::redis::RedisServer;
use crate::support::requests::claim;
use crate::support::service::{Admin, Coordination, Service};
use claimlock::rpc::proto::*;
use std::collections::BTreeSet;
use tokio::task::JoinSet;

/// How many calls a test has in flight when it fills a server.
const AT_ONCE: usize = 100;

async fn claim_all(client: &Coordination, keys: impl IntoIterator<Item = String>) {
    let mut calls = JoinSet::new();
    for key in keys {
        let mut client = client.clone();
        calls.spawn(async move { client.claim(claim(&key, "a")).await.map(|_| ()) });
        if calls.len() == AT_ONCE {
            calls
                .join_next()
                .await
                .expect("a call")
                .expect("no panic")
                .expect("a claim");
        }
    }
    while let Some(call) = calls.join_next().await {
        call.expect("no panic").expect("a claim");
    }
}

fn names(keys: impl IntoIterator<Item = usize>) -> impl Iterator<Item = String> {
    keys.into_iter().map(|n| format!("key-{n:05}"))
}

/// All pages of a listing, held against what holds for every page; `between` runs after each.
async fn all_pages(
    admin: &mut Admin,
    request: ListClaimsRequest,
    mut between: impl AsyncFnMut(usize),
) -> Vec<ClaimInfo> {
    let most = match request.page_size {
        0 => 50,
        size => usize::try_from(size).expect("a size"),
    };
    let mut listed = Vec::new();
    let mut request = request;
    for n in 0.. {
        let page = admin
            .list_claims(request.clone())
            .await
            .expect("a page")
            .into_inner();
        assert!(page.claims.len() <= most, "{} of {most}", page.claims.len());
        let once: BTreeSet<_> = page
            .claims
            .iter()
            .map(|c| (&c.tenant, &c.scope, &c.key))
            .collect();
        assert_eq!(once.len(), page.claims.len(), "a claim twice on a page");
        listed.extend(page.claims);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
        between(n).await;
    }
    listed
}

async fn quietly(_: usize) {}

fn keys_of(claims: &[ClaimInfo]) -> Vec<&str> {
    let mut keys: Vec<&str> = claims.iter().map(|claim| claim.key.as_str()).collect();
    keys.sort_unstable();
    keys
}

#[tokio::test]
async fn every_claim_is_on_one_page_whatever_the_size_of_pages() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    claim_all(&service.coordination().await, names(0..3000)).await;
    let mut admin = service.admin().await;
    let expected: Vec<String> = names(0..3000).collect();
    for page_size in [0, 1, 2, 7, 100, 999, 1000] {
        let request = ListClaimsRequest {
            page_size,
            ..ListClaimsRequest::default()
        };
        let listed = all_pages(&mut admin, request, quietly).await;
        assert_eq!(keys_of(&listed), expected, "pages of {page_size}");
    }
    assert!(redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn no_claim_that_stands_throughout_is_missed_while_others_come_and_go() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let client = service.coordination().await;
    // Those that stand have names on both sides of those that go.
    let stands = |n: &usize| n % 10 == 0;
    claim_all(&client, names(0..2000)).await;
    let goes: Vec<usize> = (0..2000).filter(|n| !stands(n)).collect();
    let mut connection = redis.connect().await;
    let mut admin = service.admin().await;
    for page_size in [1, 3, 40] {
        claim_all(&client, names(goes.iter().copied())).await;
        let request = ListClaimsRequest {
            page_size,
            ..ListClaimsRequest::default()
        };
        let mut going = goes.chunks(10);
        let listed = all_pages(&mut admin, request, async |n| {
            if let Some(chunk) = going.next() {
                let mut unlink = redis::cmd("UNLINK");
                for key in names(chunk.iter().copied()) {
                    unlink.arg(format!("cl:c:{{default//{}}}", key));
                }
                unlink.exec_async(&mut connection).await.expect("they go");
            } else if n < 1000 {
                claim_all(&client, names([10_000 * (n + 1) + 1, 10_000 * (n + 1) + 2])).await;
            }
        })
        .await;
        let listed: BTreeSet<&str> = keys_of(&listed).into_iter().collect();
        let missed: Vec<String> = names((0..2000).filter(stands))
            .filter(|key| !listed.contains(key.as_str()))
            .collect();
        assert!(missed.is_empty(), "pages of {page_size} miss {missed:?}");
    }
}
