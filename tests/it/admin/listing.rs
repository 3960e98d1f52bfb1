//! Listings: every record once, in pages that are bounded for the caller and for Redis.

use crate::support::calls::get_claim;
use crate::support::filling::{acquire_all, claim_all};
use crate::support::redis::RedisServer;
use crate::support::requests::{abandon, acquire, claim, complete};
use crate::support::service::{Admin, Service, patient};
use claimlock::rpc::proto::*;
use std::collections::BTreeSet;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

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
    let service = Service::with(&redis, patient()).await;
    claim_all(&service.coordination().await, names(0..3000)).await;
    let mut admin = service.admin().await;
    for (page_size, key_prefix) in [
        (0, ""),
        (999, ""),
        (1000, ""),
        (7, "key-01"),
        // Few among many.
        (1, "key-011"),
        (2, "key-0222"),
        (1000, "key-02999"),
        (1000, "none"),
    ] {
        let request = ListClaimsRequest {
            page_size,
            key_prefix: key_prefix.to_owned(),
            ..ListClaimsRequest::default()
        };
        let listed = all_pages(&mut admin, request, quietly).await;
        let expected: Vec<String> = names(0..3000)
            .filter(|key| key.starts_with(key_prefix))
            .collect();
        assert_eq!(
            keys_of(&listed),
            expected,
            "pages of {page_size} of {key_prefix:?}"
        );
    }
    assert!(redis.keys_without_expiry().await.is_empty());
}

#[tokio::test]
async fn no_claim_that_stands_throughout_is_missed_while_others_come_and_go() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, patient()).await;
    let client = service.coordination().await;
    // Those that stand have names on both sides of those that go.
    let stands = |n: &usize| n.is_multiple_of(10);
    claim_all(&client, names(0..2000)).await;
    let goes: Vec<usize> = (0..2000).filter(|n| !stands(n)).collect();
    let mut connection = redis.connect().await;
    let mut admin = service.admin().await;
    for page_size in [1, 40] {
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
                    unlink.arg(format!("cl:c:{{default//{key}}}"));
                }
                unlink.exec_async(&mut connection).await.expect("they go");
            } else if n < 300 {
                let coming = 10_000 * (n + 1);
                claim_all(&client, names(coming..coming + 2)).await;
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

/// The same while Redis moves its keys into a larger table, in which SCAN finds them in other places.
#[tokio::test]
async fn no_claim_is_missed_while_redis_grows() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, patient()).await;
    let client = service.coordination().await;
    claim_all(&client, names(0..300)).await;
    let request = ListClaimsRequest {
        page_size: 5,
        ..ListClaimsRequest::default()
    };
    let listed = all_pages(&mut service.admin().await, request, async |n| {
        if n < 20 {
            let coming = 1000 + 100 * n;
            claim_all(&client, names(coming..coming + 100)).await;
        }
    })
    .await;
    let listed: BTreeSet<&str> = keys_of(&listed).into_iter().collect();
    let missed: Vec<String> = names(0..300)
        .filter(|key| !listed.contains(key.as_str()))
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
}

#[tokio::test]
async fn a_listing_of_one_state_has_that_state_alone() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let mut client = service.coordination().await;
    let states = [
        ClaimState::InFlight,
        ClaimState::LeaseOver,
        ClaimState::Uncertain,
        ClaimState::Completed,
        ClaimState::Abandoned,
    ];
    for state in states {
        for n in 0..30 {
            let key = format!("{}-{n:02}", state.as_str_name());
            let policy = match state {
                ClaimState::Uncertain => LeaseOverPolicy::MarkUncertain,
                _ => LeaseOverPolicy::TakeOver,
            };
            let request = ClaimRequest {
                on_lease_over: policy.into(),
                ..claim(&key, "a")
            };
            client.claim(request).await.expect("claimed");
            if state == ClaimState::Completed {
                client
                    .complete(complete(&key, "a", b"x"))
                    .await
                    .expect("completed");
            }
            let effect = match state {
                ClaimState::Abandoned => AbandonEffect::None,
                ClaimState::LeaseOver | ClaimState::Uncertain => AbandonEffect::Unknown,
                _ => continue,
            };
            client
                .abandon(abandon(&key, "a", effect))
                .await
                .expect("abandoned");
        }
    }
    let mut admin = service.admin().await;
    for state in states {
        for page_size in [3, 1000] {
            let request = ListClaimsRequest {
                state: state.into(),
                page_size,
                ..ListClaimsRequest::default()
            };
            let listed = all_pages(&mut admin, request, quietly).await;
            assert!(listed.iter().all(|claim| claim.state() == state));
            let name = state.as_str_name();
            let expected: Vec<String> = (0..30).map(|n| format!("{name}-{n:02}")).collect();
            assert_eq!(keys_of(&listed), expected, "pages of {page_size}");
        }
    }
    let all = all_pages(&mut admin, ListClaimsRequest::default(), quietly).await;
    assert_eq!(all.len(), 150);
    // A line of a listing is what a look at the claim alone shows.
    for listed in all.into_iter().step_by(20) {
        let answer = admin
            .get_claim(get_claim(&listed.key))
            .await
            .expect("an answer");
        let seen = answer.into_inner().claim.expect("it is known");
        let same_moment = ClaimInfo {
            lease_left: seen.lease_left,
            retention_left: seen.retention_left,
            ..listed
        };
        assert_eq!(same_moment, seen);
    }
    assert!(redis.keys_without_expiry().await.is_empty());
}

/// A token carries names that were found; whoever may not read them must not get them by it.
#[tokio::test]
async fn a_token_of_one_listing_brings_nothing_into_another() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let mut client = service.coordination().await;
    for tenant in ["one", "other"] {
        for n in 0..40 {
            let request = ClaimRequest {
                tenant: tenant.to_owned(),
                ..claim(&format!("{tenant}-{n}"), "a")
            };
            client.claim(request).await.expect("claimed");
        }
    }
    let mut admin = service.admin().await;
    let mut request = ListClaimsRequest {
        tenant: "one".to_owned(),
        page_size: 1,
        ..ListClaimsRequest::default()
    };
    loop {
        let page = admin
            .list_claims(request.clone())
            .await
            .expect("a page")
            .into_inner();
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
        for (tenant, key_prefix) in [("other", ""), ("one", "none")] {
            let elsewhere = ListClaimsRequest {
                tenant: tenant.to_owned(),
                key_prefix: key_prefix.to_owned(),
                page_size: 1000,
                ..request.clone()
            };
            let page = admin
                .list_claims(elsewhere)
                .await
                .expect("a page")
                .into_inner();
            let fits = |c: &ClaimInfo| c.tenant == tenant && c.key.starts_with(key_prefix);
            assert!(
                page.claims.iter().all(fits),
                "{tenant} {key_prefix}: {page:?}"
            );
        }
    }
}

/// Keys of others, some of which look like ours.
async fn fill_with_others(redis: &RedisServer) {
    let mut connection = redis.connect().await;
    let mut pipeline = redis::pipe();
    for n in 0..5000 {
        pipeline.cmd("SET").arg(format!("session:{n}")).arg(n);
    }
    let lookalikes: [&[u8]; 17] = [
        b"cl:c:{}",
        b"cl:c:{default}",
        b"cl:c:{default/}",
        b"cl:c:{default/key}",
        b"cl:c:{default//}",
        b"cl:c:{default//key/more}",
        b"cl:c:{default//key-x}:r",
        b"cl:c:{default//key-x",
        b"cl:c:{no tenant//key}",
        b"cl:c:{//key}",
        b"cl:c:{default//key\xff}",
        b"cl:c:{default//key%FF}",
        b"cl:c:{default//key%0A}",
        b"cl:c:default//key",
        b"CL:C:{default//key}",
        b"cl:l:{default/}:e",
        b"cl:l:{default/\xff}:e",
    ];
    for key in lookalikes {
        pipeline.cmd("SET").arg(key).arg("mine");
    }
    pipeline
        .cmd("HSET")
        .arg("cl:l:{default/lock}:x")
        .arg("a")
        .arg("b");
    pipeline.cmd("RPUSH").arg("a list").arg("b");
    pipeline
        .exec_async(&mut connection)
        .await
        .expect("they are written");
}

#[tokio::test]
async fn keys_of_others_in_the_same_redis_are_passed_over() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, patient()).await;
    fill_with_others(&redis).await;
    let mut client = service.coordination().await;
    claim_all(&client, names(0..20)).await;
    client
        .acquire_lock(acquire("lock", "a"))
        .await
        .expect("acquired");
    let mut admin = service.admin().await;
    for page_size in [1, 50, 1000] {
        let request = ListClaimsRequest {
            page_size,
            all_tenants: true,
            ..ListClaimsRequest::default()
        };
        let listed = all_pages(&mut admin, request, quietly).await;
        assert_eq!(keys_of(&listed), names(0..20).collect::<Vec<_>>());
        let request = ListLocksRequest {
            page_size,
            all_tenants: true,
            ..ListLocksRequest::default()
        };
        assert_eq!(all_locks(&mut admin, request).await, ["lock"]);
    }
}

/// What Redis is sent from now on, a command a line.
async fn monitor(redis: &RedisServer) -> impl AsyncFnOnce() -> Vec<String> {
    let stream = UnixStream::connect(redis.socket_path())
        .await
        .expect("a connection");
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    write.write_all(b"MONITOR\r\n").await.expect("it is taken");
    lines
        .next_line()
        .await
        .expect("an answer")
        .expect("it is taken");
    let mut connection = redis.connect().await;
    async move || {
        redis::cmd("PING")
            .arg("the end")
            .exec_async(&mut connection)
            .await
            .expect("PONG");
        let mut seen = Vec::new();
        while let Some(line) = lines.next_line().await.expect("it goes on") {
            if line.contains("the end") {
                break;
            }
            seen.push(line);
        }
        drop(write);
        seen
    }
}

#[tokio::test]
async fn redis_is_asked_for_a_bounded_step_at_a_time() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, patient()).await;
    fill_with_others(&redis).await;
    claim_all(&service.coordination().await, names(0..1500)).await;
    let mut admin = service.admin().await;
    let monitored = monitor(&redis).await;
    for (page_size, prefix) in [
        (1000, ""),
        (1, "key-00001"),
        (1000, "nothing"),
        (500, "key-01"),
    ] {
        let request = ListClaimsRequest {
            page_size,
            key_prefix: prefix.to_owned(),
            ..ListClaimsRequest::default()
        };
        all_pages(&mut admin, request, quietly).await;
        let request = ListLocksRequest {
            page_size,
            resource_prefix: prefix.to_owned(),
            ..ListLocksRequest::default()
        };
        all_locks(&mut admin, request).await;
    }
    let mut scans = 0;
    for line in monitored().await {
        // As in: 1764513600.123456 [0 unix:redis.sock] "SCAN" "0" "MATCH" "..." "COUNT" "10"
        let words: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        match words[0] {
            "SCAN" => {
                scans += 1;
                let count: u32 = words[words.len() - 1].parse().expect("a number");
                assert!((1..=1000).contains(&count), "{line}");
                assert_eq!(words[words.len() - 2], "COUNT", "{line}");
            }
            // The look at each record, within its script; the service's own looks at the clock.
            "EVALSHA" | "TIME" | "GET" | "ZCOUNT" | "CONFIG" | "INFO" => {}
            other => panic!("{other}: {line}"),
        }
    }
    assert!(scans > 8, "{scans}");
}

/// All pages of a listing of locks, in order of their names.
async fn all_locks(admin: &mut Admin, request: ListLocksRequest) -> Vec<String> {
    let mut listed = Vec::new();
    let mut request = request;
    loop {
        let page = admin
            .list_locks(request.clone())
            .await
            .expect("a page")
            .into_inner();
        let most = if request.page_size == 0 {
            50
        } else {
            request.page_size
        };
        assert!(page.locks.len() <= usize::try_from(most).expect("a size"));
        listed.extend(page.locks.into_iter().map(|lock| lock.resource));
        if page.next_page_token.is_empty() {
            listed.sort_unstable();
            return listed;
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test]
async fn every_lock_is_on_one_page_whatever_the_size_of_pages() {
    let redis = RedisServer::start().await;
    let service = Service::with(&redis, patient()).await;
    acquire_all(&service.coordination().await, names(0..1200)).await;
    let mut admin = service.admin().await;
    for (page_size, prefix) in [
        (0, ""),
        (7, ""),
        (999, ""),
        (1000, ""),
        (1, "key-011"),
        (1, "none"),
    ] {
        let request = ListLocksRequest {
            page_size,
            resource_prefix: prefix.to_owned(),
            ..ListLocksRequest::default()
        };
        let expected: Vec<String> = names(0..1200)
            .filter(|name| name.starts_with(prefix))
            .collect();
        assert_eq!(
            all_locks(&mut admin, request).await,
            expected,
            "pages of {page_size}"
        );
    }
    assert!(redis.keys_without_expiry().await.is_empty());
}
