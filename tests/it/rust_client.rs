//! The Rust client on a real service, and on a network that fails.

mod ends;
mod fake;
mod holding;
mod in_turn;
mod strange;
mod strange_streams;
mod streams;
mod tokens;
mod waiting;

use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::redis::RedisServer;
use crate::support::service::Service;
use claimlock_client::proto::{
    ClaimInfo, ClaimRequest, ClaimState, GetClaimRequest, GetLockRequest, LockInfo, claim_response,
};
use claimlock_client::{
    Acquisition, Attempt, Client, Effect, FailureKind, Idempotency, IdempotentError, Lock,
    LockError, LossReason, Request, Response, Settings, WorkError,
};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A service, a network in front of it, a client on that, and one that is past it.
struct Desk {
    redis: RedisServer,
    service: Service,
    proxy: Proxy,
    client: Client,
    direct: Client,
}

fn client(address: SocketAddr) -> Client {
    Client::connect_lazily(format!("http://{address}")).expect("an endpoint")
}

impl Desk {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let service = Service::start(&redis).await;
        let proxy = Proxy::start(Upstream::Tcp(service.grpc));
        Self {
            client: client(proxy.addr()),
            direct: client(service.grpc),
            redis,
            service,
            proxy,
        }
    }

    async fn claim_info(&self, key: &str) -> Option<ClaimInfo> {
        let request = GetClaimRequest {
            key: key.to_owned(),
            ..Default::default()
        };
        self.direct
            .get_claim(request)
            .await
            .expect("the service answers")
            .claim
    }

    async fn lock_info(&self, resource: &str) -> Option<LockInfo> {
        let request = GetLockRequest {
            resource: resource.to_owned(),
            ..Default::default()
        };
        self.direct
            .get_lock(request)
            .await
            .expect("the service answers")
            .lock
    }

    async fn is_abandoned(&self, key: &str, expected: ClaimState) {
        eventually("the claim to be given up", async || {
            (self.claim_info(key).await?.state() == expected).then_some(())
        })
        .await;
    }

    async fn is_free(&self, resource: &str) {
        eventually("the lock to be free", async || {
            self.lock_info(resource).await.is_none().then_some(())
        })
        .await;
    }
}

async fn work(_: &claimlock_client::Claim) -> Result<Response, WorkError<Infallible>> {
    Ok(Response::new(201, b"done".to_vec()).header("content-type", "text/plain"))
}

#[tokio::test]
async fn work_is_done_once_and_its_result_replayed() {
    let desk = Desk::start().await;
    let done = AtomicUsize::new(0);
    let request = Request::new("order-1")
        .operation("POST /v1/charges")
        .body(b"100".to_vec());
    for replayed in [false, true] {
        let answer = desk.client.idempotent(&request, async |claim| {
            done.fetch_add(1, Ordering::Relaxed);
            work(claim).await
        });
        let response =
            Some(Response::new(201, b"done".to_vec()).header("content-type", "text/plain"));
        let expected = Idempotency::Done { response, replayed };
        assert_eq!(answer.await.expect("the service answers"), expected);
    }
    assert_eq!(done.load(Ordering::Relaxed), 1);
    let other = Request::new("order-1")
        .operation("POST /v1/charges")
        .body(b"200".to_vec());
    let answer = desk.client.idempotent(&other, work).await;
    assert_eq!(answer.expect("the service answers"), Idempotency::Mismatch);
    assert_eq!(desk.redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn of_many_who_ask_at_once_one_does_the_work_and_those_who_wait_get_its_result() {
    let desk = Desk::start().await;
    let done = Arc::new(AtomicUsize::new(0));
    let callers = (0..20).map(|_| {
        let (client, done) = (desk.client.clone(), done.clone());
        tokio::spawn(async move {
            let request = Request::new("order-1").wait(Duration::from_secs(20));
            let answer = client.idempotent(&request, async |claim| {
                done.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
                work(claim).await
            });
            matches!(
                answer.await,
                Ok(Idempotency::Done {
                    response: Some(_),
                    ..
                })
            )
        })
    });
    for caller in futures_util::future::join_all(callers).await {
        assert!(caller.expect("it does not panic"));
    }
    assert_eq!(done.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn work_that_failed_is_done_again_and_told_whether_it_may_have_had_an_effect() {
    let desk = Desk::start().await;
    let request = Request::new("order-1");
    for (effect, taken_over) in [
        (Effect::None, false),
        (Effect::Unknown, false),
        (Effect::None, true),
    ] {
        let answer = desk.client.idempotent(&request, async |claim| {
            assert_eq!(claim.taken_over(), taken_over);
            Err(match effect {
                Effect::None => WorkError::no_effect("declined"),
                Effect::Unknown => WorkError::unknown_effect("timed out"),
            })
        });
        let error = answer.await.expect_err("the work fails");
        assert!(matches!(error, IdempotentError::Work(_)), "{error:?}");
    }
    let attempt = desk
        .client
        .begin(&request)
        .await
        .expect("the service answers");
    let Attempt::Claimed(claim) = attempt else {
        panic!("{attempt:?}");
    };
    assert_eq!((claim.attempt(), claim.taken_over()), (4, true));
}

#[tokio::test]
async fn a_caller_that_gives_up_in_mid_work_gives_its_claim_up_with_an_unknown_effect() {
    let desk = Desk::start().await;
    let request = Request::new("order-1");
    let begun = tokio::sync::Notify::new();
    let answer = desk.client.idempotent(&request, async |_| {
        begun.notify_one();
        std::future::pending::<Result<Response, WorkError<()>>>().await
    });
    tokio::select! {
        answer = answer => panic!("{answer:?}"),
        () = begun.notified() => {}
    }
    desk.is_abandoned("order-1", ClaimState::LeaseOver).await;
}

#[tokio::test]
async fn a_caller_that_gives_up_before_it_is_answered_leaves_the_key_free() {
    let desk = Desk::start().await;
    desk.proxy.set(Mode::SwallowReplies).await;
    let request = Request::new("order-1");
    tokio::select! {
        answer = desk.client.begin(&request) => panic!("{answer:?}"),
        () = eventually("the claim to be granted", async || {
            desk.claim_info("order-1").await.map(|_| ())
        }) => {}
    }
    desk.proxy.set(Mode::Cut).await;
    desk.proxy.set(Mode::Pass).await;
    eventually("the claim to be free", async || {
        let mut free = Request::new("order-1").token("probe-0123456789");
        free = free.lease(Duration::from_millis(1));
        let probed = desk.direct.begin(&free).await;
        matches!(probed, Ok(Attempt::Claimed(claim)) if !claim.taken_over()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_repeated_with_the_same_token() {
    let desk = Desk::start().await;
    desk.proxy.set(Mode::SwallowReplies).await;
    let call = desk.client.claim(ClaimRequest {
        key: "order-1".to_owned(),
        claim_token: "worker-1-attempt-1".to_owned(),
        ..Default::default()
    });
    let (answer, ()) = tokio::join!(call, async {
        eventually("the claim to be granted", async || {
            desk.claim_info("order-1").await.map(|_| ())
        })
        .await;
        desk.proxy.set(Mode::Cut).await;
        // Refused for a while, too.
        tokio::time::sleep(Duration::from_millis(200)).await;
        desk.proxy.set(Mode::Pass).await;
    });
    match answer.expect("it gets through at last").outcome {
        Some(claim_response::Outcome::Claimed(claimed)) => {
            assert_eq!(claimed.claim_token, "worker-1-attempt-1");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_call_that_is_refused_is_not_repeated() {
    let desk = Desk::start().await;
    let since = desk.redis.calls("evalsha").await;
    let failure = desk.client.claim(ClaimRequest::default()).await;
    let failure = failure.expect_err("a claim needs a key");
    assert_eq!(
        (failure.kind, failure.reason.as_str()),
        (FailureKind::Invalid, "INVALID_FIELD")
    );
    assert!(failure.nothing_happened());
    assert_eq!(desk.redis.calls("evalsha").await, since);
}

#[tokio::test]
async fn a_service_that_is_away_fails_within_the_calls_time_and_not_before() {
    let desk = Desk::start().await;
    let client = desk.client.with_call_timeout(Duration::from_millis(400));
    for (mode, kinds) in [
        (Mode::Cut, [FailureKind::Unavailable].as_slice()),
        (
            Mode::BlackHole,
            &[FailureKind::DeadlineExceeded, FailureKind::Unavailable],
        ),
    ] {
        desk.proxy.set(mode).await;
        let asked = std::time::Instant::now();
        let failure = client.begin(&Request::new("order-1")).await;
        let failure = failure.expect_err("nobody answers");
        assert!(kinds.contains(&failure.kind), "{failure:?}");
        assert!(!failure.nothing_happened());
        assert!(
            asked.elapsed() >= Duration::from_millis(350),
            "it tried again: {failure:?}"
        );
        client.finish(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn redis_away_is_told_as_unavailable_and_waited_out() {
    let mut desk = Desk::start().await;
    desk.redis.kill();
    let request = Request::new("order-1");
    let (attempt, ()) = tokio::join!(desk.client.begin(&request), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        desk.redis.restart().await;
    });
    assert!(matches!(attempt, Ok(Attempt::Claimed(_))), "{attempt:?}");
}

#[tokio::test]
async fn a_claim_is_renewed_for_as_long_as_it_is_held_and_no_longer() {
    let desk = Desk::start().await;
    let request = Request::new("order-1").lease(Duration::from_millis(200));
    let attempt = desk
        .client
        .begin(&request)
        .await
        .expect("the service answers");
    let Attempt::Claimed(mut claim) = attempt else {
        panic!("{attempt:?}");
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(matches!(
        desk.direct.begin(&request).await,
        Ok(Attempt::InFlight(_))
    ));
    let saved = claim.save_checkpoint(b"half".to_vec()).await;
    assert_eq!(saved.expect("the service answers"), Ok(()));
    let completed = claim.complete(None, None).await;
    assert_eq!(completed.expect("the service answers"), Ok(()));
    // It is settled: dropping it gives nothing up.
    drop(claim);
    desk.client.finish(Duration::from_secs(5)).await;
    let info = desk.claim_info("order-1").await.expect("it is remembered");
    assert_eq!(info.state(), ClaimState::Completed);
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_comes_back_with_the_error_and_the_claim_stands() {
    let desk = Desk::start().await;
    let client = desk.client.with_call_timeout(Duration::from_millis(300));
    let request = Request::new("order-1");
    let answer = client.idempotent(&request, async |claim| {
        desk.proxy.set(Mode::Cut).await;
        work(claim).await
    });
    match answer.await {
        Err(IdempotentError::NotStored { response, .. }) => assert_eq!(response.body, b"done"),
        other => panic!("{other:?}"),
    }
    let info = desk.claim_info("order-1").await.expect("it is held");
    assert_eq!(info.state(), ClaimState::InFlight);
}

#[tokio::test]
async fn work_under_a_lock_has_a_fencing_token_and_leaves_the_lock_free() {
    let desk = Desk::start().await;
    let mut last = 0;
    let lock = Lock::new("disk");
    for _ in 0..3 {
        let fencing_token = desk.client.with_lock(&lock, async |lock| {
            assert!(desk.lock_info("disk").await.is_some());
            lock.fencing_token()
        });
        let fencing_token = fencing_token.await.expect("the lock is free");
        assert!(fencing_token > last);
        last = fencing_token;
        assert_eq!(desk.lock_info("disk").await, None);
    }
}

#[tokio::test]
async fn work_under_a_lock_that_somebody_else_holds_is_not_started() {
    let desk = Desk::start().await;
    let held = desk.direct.acquire(&Lock::new("disk").holder("a")).await;
    assert!(matches!(held, Ok(Acquisition::Acquired(_))));
    let lock = Lock::new("disk");
    let refused = desk.client.with_lock(&lock, async |_| panic!("it is held"));
    match refused.await {
        Err(LockError::Held(held)) => assert_eq!(held.holders[0].holder, "a"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn work_whose_lock_was_lost_is_dropped_where_it_stands() {
    let desk = Desk::start().await;
    let lock = Lock::new("disk").lease(Duration::from_millis(300));
    let went_on = AtomicUsize::new(0);
    let lost = desk.client.with_lock(&lock, async |_| {
        desk.proxy.set(Mode::BlackHole).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        went_on.store(1, Ordering::Relaxed);
    });
    match lost.await {
        Err(LockError::Lost(loss)) => assert_eq!(loss.reason, LossReason::NotRenewed),
        other => panic!("{other:?}"),
    }
    assert_eq!(went_on.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_lock_that_is_dropped_is_released() {
    let desk = Desk::start().await;
    let held = desk.client.acquire(&Lock::new("disk")).await;
    assert!(matches!(held, Ok(Acquisition::Acquired(_))));
    drop(held);
    desk.is_free("disk").await;
}

#[tokio::test]
async fn a_lock_that_was_granted_unheard_is_given_back() {
    let desk = Desk::start().await;
    desk.proxy.set(Mode::SwallowReplies).await;
    let lock = Lock::new("disk");
    tokio::select! {
        answer = desk.client.acquire(&lock) => panic!("{answer:?}"),
        () = eventually("the lock to be granted", async || {
            desk.lock_info("disk").await.map(|_| ())
        }) => {}
    }
    desk.proxy.set(Mode::Cut).await;
    desk.proxy.set(Mode::Pass).await;
    desk.is_free("disk").await;
}

#[tokio::test]
async fn a_drained_service_is_left_for_the_next_without_a_failure() {
    let redis = RedisServer::start().await;
    let first = Service::start(&redis).await;
    let proxy = Proxy::start(Upstream::Tcp(first.grpc));
    let client = client(proxy.addr());
    let held = client
        .acquire(&Lock::new("disk").lease(Duration::from_secs(3)))
        .await;
    let Ok(Acquisition::Acquired(held)) = held else {
        panic!("{held:?}");
    };
    let address = first.grpc;
    first.stop().await.expect("it drains");
    let settings = claimlock::config::Settings::default();
    let second = Service::on(address, &redis, settings).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(held.loss(), None);
    let released = held.release().await.expect("the second service answers");
    assert_eq!(released, Ok(Duration::ZERO));
    drop(second);
}

#[tokio::test]
async fn health_says_whether_calls_can_be_answered() {
    let mut desk = Desk::start().await;
    assert!(
        desk.client
            .health()
            .await
            .expect("the service answers")
            .serving
    );
    desk.redis.kill();
    eventually("the service to notice", async || {
        (!desk.client.health().await.ok()?.serving).then_some(())
    })
    .await;
    assert!(desk.service.grpc.port() != 0);
}

#[tokio::test]
async fn a_tenant_of_the_client_counts_where_a_call_names_none() {
    let desk = Desk::start().await;
    let settings = Settings {
        endpoint: format!("http://{}", desk.service.grpc),
        tenant: "shop".to_owned(),
        ..Settings::default()
    };
    let shop = Client::new(settings).expect("an endpoint");
    assert!(matches!(
        shop.begin(&Request::new("order-1")).await,
        Ok(Attempt::Claimed(_))
    ));
    let found = async |tenant: &str| {
        let request = GetClaimRequest {
            tenant: tenant.to_owned(),
            key: "order-1".to_owned(),
            ..Default::default()
        };
        desk.direct
            .get_claim(request)
            .await
            .expect("the service answers")
            .claim
            .is_some()
    };
    assert!(found("shop").await);
    assert!(!found("").await);
}
