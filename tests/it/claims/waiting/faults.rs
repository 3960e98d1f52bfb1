//! What goes wrong while somebody waits: wake-ups that are lost, a Redis that is away, callers that go away.

use super::*;
use crate::support::redis::RedisOptions;

async fn command(redis: &RedisServer, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let done = command.exec_async(&mut redis.connect().await).await;
    done.expect("the command is answered");
}

/// Has Redis forget where somebody waits for the claims in flight.
async fn forget_who_waits(redis: &RedisServer) {
    let script = "for _, key in ipairs(redis.call('KEYS', 'cl:c:*')) do \
                    local r = cmsgpack.unpack(redis.call('GET', key)) \
                    r[34] = {} \
                    redis.call('SET', key, cmsgpack.pack(r), 'KEEPTTL') \
                  end";
    command(redis, &["EVAL", script, "0"]).await;
}

#[tokio::test]
async fn a_wake_up_that_is_lost_costs_about_a_second() {
    let mut desk = Desk::start().await;
    for number in 0..3 {
        let key = number.to_string();
        claimed(desk.one.claim(claim(&key, "a")).await);
        let waiting = desk.one_waits(waiting_claim(&key, "b")).await;
        command(&desk.redis, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        completed(desk.one.complete(complete(&key, "a", b"done")).await);
        replay(soon(waiting, Instant::now()).await);
    }
    desk.ends().await;
}

#[tokio::test]
async fn a_service_that_redis_does_not_know_to_wait_finds_out_by_itself() {
    let mut desk = Desk::start().await;
    claimed(desk.one.claim(claim("key", "a")).await);
    let waiting = desk.one_waits(waiting_claim("key", "b")).await;
    forget_who_waits(&desk.redis).await;
    abandoned(
        desk.one
            .abandon(abandon("key", "a", AbandonEffect::None))
            .await,
    );
    claimed(soon(waiting, Instant::now()).await);
    desk.ends().await;
}

#[tokio::test]
async fn a_key_that_is_deleted_by_hand_is_the_one_s_who_waits() {
    let mut desk = Desk::start().await;
    claimed(desk.one.claim(claim("key", "a")).await);
    let waiting = desk.one_waits(waiting_claim("key", "b")).await;
    command(&desk.redis, &["FLUSHALL"]).await;
    let grant = claimed(soon(waiting, Instant::now()).await);
    assert_eq!(grant.attempt, 1);
    desk.ends().await;
}

#[tokio::test]
async fn those_that_wait_go_on_waiting_while_redis_is_stopped_and_those_that_come_do_not() {
    let mut desk = Desk::start().await;
    claimed(desk.one.claim(claim("key", "a")).await);
    let waiting = desk.one_waits(waiting_claim("key", "b")).await;
    desk.redis.stop_process();
    let since = Instant::now();
    let refused = desk.other.claim(waiting_claim("key", "c")).await;
    let refused = told(&refused.expect_err("nobody answers"));
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::Unavailable, "STORE_UNAVAILABLE")
    );
    assert!(since.elapsed() < LONG / 4, "it waited for nothing known");
    tokio::time::sleep(Duration::from_secs(3).saturating_sub(since.elapsed())).await;
    assert!(!waiting.is_finished());
    desk.redis.resume_process();

    eventually("the claim to be completed", async || {
        let answer = desk.one.complete(complete("key", "a", b"done")).await;
        answer.ok()
    })
    .await;
    replay(soon(waiting, Instant::now()).await);
    desk.ends().await;
}

#[tokio::test]
async fn a_lease_that_ends_while_redis_is_stopped_is_taken_over_when_it_is_back() {
    let mut desk = Desk::start().await;
    let first = ClaimRequest {
        lease: millis(1200),
        ..claim("key", "a")
    };
    claimed(desk.one.claim(first).await);
    let waiting = desk.one_waits(waiting_claim("key", "b")).await;
    desk.redis.stop_process();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!waiting.is_finished());
    desk.redis.resume_process();
    let grant = claimed(soon(waiting, Instant::now()).await);
    assert_eq!((grant.attempt, grant.taken_over), (2, true));
    desk.ends().await;
}

#[tokio::test]
async fn a_wait_that_is_over_while_redis_is_away_fails_as_any_call_does() {
    let mut desk = Desk::start().await;
    claimed(desk.one.claim(claim("key", "a")).await);
    let patient = ClaimRequest {
        wait: millis(1500),
        ..claim("key", "b")
    };
    let waiting = desk.one_waits(patient).await;
    desk.redis.stop_process();
    let (answer, _) = ended(waiting).await;
    let failed = told(&answer.expect_err("nobody answers"));
    assert_eq!(failed.reason, "STORE_UNAVAILABLE");
    desk.redis.resume_process();
    desk.ends().await;
}

#[tokio::test]
async fn a_restart_of_redis_with_its_data_or_without_is_waited_through() {
    for appendonly in [true, false] {
        let options = RedisOptions {
            appendonly,
            ..RedisOptions::default()
        };
        let mut desk = Desk::on(RedisServer::with(options).await).await;
        claimed(desk.one.claim(claim("key", "a")).await);
        let waiting = desk.one_waits(waiting_claim("key", "b")).await;
        desk.redis.restart().await;
        if appendonly {
            eventually("the claim to be completed", async || {
                let answer = desk.one.complete(complete("key", "a", b"done")).await;
                answer.ok()
            })
            .await;
            replay(soon(waiting, Instant::now()).await);
        } else {
            // Nobody holds it that Redis knows of.
            claimed(soon(waiting, Instant::now()).await);
        }
        desk.ends().await;
    }
}

#[tokio::test]
async fn a_call_that_waits_and_is_cancelled_leaves_the_claim_to_the_next() {
    let mut desk = Desk::start().await;
    claimed(desk.one.claim(claim("key", "a")).await);
    let gone = desk.one_waits(waiting_claim("key", "b")).await;
    let next = start(&desk.other, waiting_claim("key", "c"));
    desk.waits(2).await;
    gone.abort();
    desk.waits(1).await;
    abandoned(
        desk.one
            .abandon(abandon("key", "a", AbandonEffect::None))
            .await,
    );
    let grant = claimed(soon(next, Instant::now()).await);
    assert_eq!((grant.attempt, grant.taken_over), (2, false));
    desk.ends().await;
}

#[tokio::test]
async fn what_a_token_got_elsewhere_stands_when_its_broken_connection_is_noticed() {
    let redis = RedisServer::start().await;
    let to_redis = Proxy::start(Upstream::Unix(redis.socket_path()));
    let hurt = Service::at(&to_redis.redis_url(), Settings::default()).await;
    hurt.is_ready().await;
    let to_service = Proxy::start(Upstream::Tcp(hurt.grpc));
    let mut desk = Desk::on(redis).await;
    let waits_there = async || {
        eventually("it to wait there", async || {
            let waiting = Scrape::of(&hurt).await.value("claimlock_waiters");
            (waiting == 1.0).then_some(())
        })
        .await;
    };
    for is_redis_heard in [true, false] {
        let key = format!("heard-{is_redis_heard}");
        claimed(desk.one.claim(claim(&key, "a")).await);
        let broken = start(
            &coordination(to_service.addr()).await,
            waiting_claim(&key, "b"),
        );
        waits_there().await;
        to_service.set(Mode::BlackHole).await;
        if !is_redis_heard {
            to_redis.set(Mode::Hold).await;
        }
        let again = desk.one_waits(waiting_claim(&key, "b")).await;
        abandoned(
            desk.one
                .abandon(abandon(&key, "a", AbandonEffect::None))
                .await,
        );
        let grant = claimed(soon(again, Instant::now()).await);
        to_service.set(Mode::Cut).await;
        let _ = ended(broken).await;
        to_redis.set(Mode::Pass).await;
        to_service.set(Mode::Pass).await;
        eventually("the broken connection to be noticed", async || {
            let waiting = Scrape::of(&hurt).await.value("claimlock_waiters");
            (waiting == 0.0).then_some(())
        })
        .await;
        // Time for it to do harm.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let renewed = claim_renewed(desk.one.renew_claim(renew_claim(&key, "b")).await);
        assert_eq!(renewed.fencing_token, grant.fencing_token);
        in_flight(desk.other.claim(claim(&key, "c")).await);
    }
    desk.ends().await;
}
