//! Callers that race for the same key or lock, also while Redis goes away and comes back.

use crate::support::answers::{
    abandoned, acquired, claimed, completed, held, in_flight, released, replay,
};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::redis::RedisServer;
use crate::support::requests::{
    abandon, acquire, claim, complete, millis, proto_duration, release, response, token,
};
use crate::support::service::{Fleet, Service, store_timeout};
use crate::support::{BOUND, eventually};
use claimlock::config::Settings;
use claimlock::rpc::proto::acquire_lock_response::Outcome as LockOutcome;
use claimlock::rpc::proto::claim_response::Outcome as ClaimOutcome;
use claimlock::rpc::proto::{
    AbandonEffect, ClaimResponse, Claimed, LockMode, LossReason, complete_response,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tonic::{Response, Status};

const CALLERS: usize = 200;

/// The one grant among answers to claims of one new key; all others were told of its holder.
#[track_caller]
fn the_one_grant(answers: Vec<Result<Response<ClaimResponse>, Status>>) -> Claimed {
    let mut grants = Vec::new();
    let mut told = Vec::new();
    for answer in answers {
        match answer.expect("an outcome").into_inner().outcome {
            Some(ClaimOutcome::Claimed(grant)) => grants.push(grant),
            Some(ClaimOutcome::InFlight(other)) => told.push(other),
            other => panic!("neither granted nor in flight: {other:?}"),
        }
    }
    let [grant] = grants.try_into().expect("one grant");
    assert!(!grant.already_held && !grant.taken_over, "{grant:?}");
    assert_eq!((grant.attempt, grant.checkpoint.len()), (1, 0));
    for other in told {
        assert_eq!(
            token(other.holder.strip_prefix("holder ").expect("a holder")),
            grant.claim_token
        );
        assert_eq!(other.attempt, 1);
    }
    grant
}

/// The name that a grant's token was made of.
fn name_of(grant: &Claimed) -> String {
    let name = grant.claim_token.strip_prefix(&token(""));
    name.expect("a token of these tests").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_hundred_claims_of_one_key_at_once_one_is_granted() {
    let redis = RedisServer::start().await;
    let fleet = Fleet::start(&redis, Settings::default()).await;
    for round in 0..5 {
        let key = format!("key-{round}");
        let answers = fleet
            .at_once(CALLERS, async |mut client, number| {
                client.claim(claim(&key, &number.to_string())).await
            })
            .await;
        assert_eq!(answers.len(), CALLERS);
        the_one_grant(answers);
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_hundred_claims_at_once_one_is_granted_though_redis_is_killed_meanwhile() {
    let mut redis = RedisServer::durable().await;
    let fleet = Fleet::start(&redis, store_timeout(Duration::from_secs(15))).await;
    // Killed before the first of them, among them, and after the last.
    for round in 0..8 {
        let key = format!("key-{round}");
        let claims = fleet.at_once(CALLERS, async |mut client, number| {
            client.claim(claim(&key, &number.to_string())).await
        });
        let restart = async {
            tokio::time::sleep(Duration::from_millis(round * 8)).await;
            redis.kill();
            redis.restart().await;
        };
        let (answers, ()) = tokio::join!(claims, restart);
        let grant = the_one_grant(answers);

        let name = name_of(&grant);
        let mut client = fleet.client(0);
        let repeat = claimed(client.claim(claim(&key, &name)).await);
        assert!(repeat.already_held);
        assert_eq!(
            (repeat.fencing_token, repeat.attempt),
            (grant.fencing_token, 1)
        );
        completed(client.complete(complete(&key, &name, b"done")).await);
        let told = replay(fleet.client(1).claim(claim(&key, "late")).await);
        assert_eq!(told.response, Some(response(b"done")));
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_reply_was_lost_with_its_connection_is_answered_as_the_new_grant_it_was() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(Upstream::Unix(redis.socket_path()));
    let service = Service::at(&proxy.redis_url(), store_timeout(BOUND)).await;
    service.is_ready().await;
    let mut client = service.coordination().await;
    let mut other = client.clone();

    proxy.set(Mode::HoldReplies).await;
    let ran = redis.calls("evalsha").await + 2;
    let cut = async {
        eventually("both calls to be run", async || {
            (redis.calls("evalsha").await == ran).then_some(())
        })
        .await;
        proxy.set(Mode::Cut).await;
        proxy.set(Mode::Pass).await;
    };
    let (grant, lock, ()) = tokio::join!(
        client.claim(claim("key", "a")),
        other.acquire_lock(acquire("lock", "a")),
        cut
    );

    let grant = claimed(grant);
    assert!(!grant.already_held);
    assert_eq!(grant.attempt, 1);
    assert!(!acquired(lock).already_held);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_caller_notices_that_redis_forgets_the_scripts() {
    let redis = RedisServer::start().await;
    let fleet = Fleet::start(&redis, store_timeout(BOUND)).await;
    let done = AtomicBool::new(false);
    let mut flusher = redis.connect().await;
    let flushing = async {
        let mut flushed = 0;
        while !done.load(Ordering::Relaxed) {
            redis::cmd("SCRIPT")
                .arg("FLUSH")
                .exec_async(&mut flusher)
                .await
                .expect("SCRIPT FLUSH is answered");
            flushed += 1;
        }
        flushed
    };
    let calling = async {
        for round in 0..3 {
            let key = format!("key-{round}");
            let answers = fleet
                .at_once(CALLERS, async |mut client, number| {
                    client.claim(claim(&key, &number.to_string())).await
                })
                .await;
            let name = name_of(&the_one_grant(answers));
            completed(
                fleet
                    .client(0)
                    .complete(complete(&key, &name, b"done"))
                    .await,
            );
            replay(fleet.client(1).claim(claim(&key, "late")).await);
            let locked = fleet
                .at_once(CALLERS, async |mut client, number| {
                    let lock = format!("lock-{round}-{number}");
                    acquired(client.acquire_lock(acquire(&lock, "a")).await);
                    released(client.release_lock(release(&lock, "a")).await);
                })
                .await;
            assert_eq!(locked.len(), CALLERS);
        }
        done.store(true, Ordering::Relaxed);
    };
    let (flushed, ()) = tokio::join!(flushing, calling);
    assert!(flushed > 0);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

/// How one of the racers ended.
enum Raced {
    Replayed(Vec<u8>),
    TookOver(Claimed, Vec<u8>),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_a_completion_was_answered_every_later_claim_is_a_replay() {
    const RACERS: usize = 100;
    let redis = RedisServer::start().await;
    let fleet = Fleet::start(&redis, Settings::default()).await;
    let mut in_time = 0;
    // Moved to where both outcomes come about, wherever that is on this machine.
    let mut pause = Duration::from_millis(80);
    for round in 0..20 {
        let key = format!("key-{round}");
        let mut first = claim(&key, "first");
        first.lease = millis(100);
        let granted = claimed(fleet.client(0).claim(first).await);

        let answered = Mutex::new(None);
        let finish = async {
            tokio::time::sleep(pause).await;
            let answer = fleet
                .client(1)
                .complete(complete(&key, "first", b"first"))
                .await;
            *answered.lock().expect("no panic") = Some(Instant::now());
            answer.expect("an outcome").into_inner().outcome
        };
        let race = fleet.at_once(RACERS, async |mut client, number| {
            loop {
                let asked = Instant::now();
                let answer = client.claim(claim(&key, &number.to_string())).await;
                let after_completion = answered
                    .lock()
                    .expect("no panic")
                    .is_some_and(|at| at < asked);
                match answer.expect("an outcome").into_inner().outcome {
                    Some(ClaimOutcome::Replay(told)) => {
                        return (
                            after_completion,
                            Raced::Replayed(told.response.expect("the response").body.into()),
                        );
                    }
                    Some(ClaimOutcome::Claimed(grant)) => {
                        let body = format!("racer {number}").into_bytes();
                        let done = complete(&key, &number.to_string(), &body);
                        completed(client.complete(done).await);
                        return (after_completion, Raced::TookOver(grant, body));
                    }
                    Some(ClaimOutcome::InFlight(_)) => {}
                    other => panic!("no such outcome can come: {other:?}"),
                }
            }
        });
        let (finished, raced) = tokio::join!(finish, race);

        let mut takeovers = Vec::new();
        let mut replayed = Vec::new();
        for (after_completion, raced) in raced {
            match raced {
                Raced::Replayed(body) => replayed.push(body),
                Raced::TookOver(grant, body) => takeovers.push((after_completion, grant, body)),
            }
        }
        let the_body = match finished {
            Some(complete_response::Outcome::Completed(_)) => {
                in_time += 1;
                pause += Duration::from_millis(5);
                assert!(
                    takeovers.is_empty(),
                    "granted beside a completion: {takeovers:?}"
                );
                b"first".to_vec()
            }
            Some(complete_response::Outcome::Lost(lost)) => {
                let [(_, grant, body)] = takeovers.try_into().expect("one took over");
                assert!([LossReason::TakenOver, LossReason::Completed].contains(&lost.reason()));
                assert!(grant.taken_over && !grant.already_held);
                assert_eq!(grant.attempt, 2);
                assert!(grant.fencing_token > granted.fencing_token);
                pause = pause.saturating_sub(Duration::from_millis(5));
                body
            }
            other => panic!("no such outcome can come: {other:?}"),
        };
        assert!(replayed.iter().all(|body| *body == the_body));
    }
    eprintln!("of 20 completions at the end of the lease {in_time} were in time");
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_hundred_acquisitions_of_a_lock_at_once_one_is_granted() {
    let redis = RedisServer::start().await;
    let fleet = Fleet::start(&redis, Settings::default()).await;
    for round in 0..5 {
        let lock = format!("lock-{round}");
        let answers = fleet
            .at_once(CALLERS, async |mut client, number| {
                client
                    .acquire_lock(acquire(&lock, &number.to_string()))
                    .await
            })
            .await;
        let mut grants = Vec::new();
        let mut refusals = Vec::new();
        for answer in answers {
            match answer.expect("an outcome").into_inner().outcome {
                Some(LockOutcome::Acquired(grant)) => grants.push(grant),
                Some(LockOutcome::Held(held)) => refusals.push(held),
                other => panic!("neither acquired nor held: {other:?}"),
            }
        }
        let [grant] = grants.try_into().expect("one grant");
        assert!(!grant.already_held);
        for refusal in refusals {
            let [holder] = &refusal.holders[..] else {
                panic!("one holder: {refusal:?}")
            };
            let name = holder.holder.strip_prefix("holder ").expect("a holder");
            assert_eq!(
                (token(name), holder.fencing_token),
                (grant.lock_token.clone(), grant.fencing_token)
            );
            assert_eq!(holder.mode(), LockMode::Exclusive);
        }
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

/// Those that hold a lock for certain: from after their acquisition was answered until before they release.
#[derive(Default)]
struct Holding(Mutex<Vec<(LockMode, i32)>>);

impl Holding {
    fn enter(&self, mode: LockMode, limit: i32) {
        let mut all = self.0.lock().expect("no panic");
        all.push((mode, limit));
        let exclusive = all.iter().any(|(mode, _)| *mode == LockMode::Exclusive);
        assert!(
            !exclusive || all.len() == 1,
            "an exclusive holder is alone: {all:?}"
        );
        let smallest = all
            .iter()
            .map(|(_, limit)| *limit)
            .filter(|limit| *limit > 0)
            .min();
        let count = i32::try_from(all.len()).expect("few");
        assert!(
            smallest.is_none_or(|limit| count <= limit),
            "over the limit: {all:?}"
        );
    }

    fn leave(&self, mode: LockMode, limit: i32) {
        let mut all = self.0.lock().expect("no panic");
        let at = all.iter().position(|holder| *holder == (mode, limit));
        all.swap_remove(at.expect("it entered"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_never_has_more_holders_than_the_smallest_limit_among_them() {
    const TURNS: usize = 15;
    type Limited = (LockMode, i32);
    let redis = RedisServer::start().await;
    let fleet = Fleet::start(&redis, Settings::default()).await;
    // One limit for all; a limit each; exclusive, unlimited and limited holders among one another, the first in the
    // majority and all of them few, or the shared ones keep the lock for ever.
    let exclusive = (LockMode::Exclusive, 0);
    let kinds: [(&str, usize, &[Limited]); 3] = [
        ("same", 50, &[(LockMode::Shared, 5)]),
        (
            "own",
            50,
            &[
                (LockMode::Shared, 2),
                (LockMode::Shared, 4),
                (LockMode::Shared, 9),
            ],
        ),
        (
            "mixed",
            8,
            &[
                exclusive,
                exclusive,
                exclusive,
                exclusive,
                (LockMode::Shared, 0),
                (LockMode::Shared, 3),
            ],
        ),
    ];
    for (lock, tasks, kinds) in kinds {
        let holding = Holding::default();
        let granted = fleet
            .at_once(tasks, async |mut client, number| {
                let mut granted = Vec::new();
                for turn in 0..TURNS * 50 / tasks {
                    let name = format!("{number}-{turn}");
                    let (mode, limit) = kinds[rand::random_range(0..kinds.len())];
                    let mut request = acquire(lock, &name);
                    request.set_mode(mode);
                    request.max_holders = limit;
                    let answer = client.acquire_lock(request).await;
                    match answer.expect("an outcome").into_inner().outcome {
                        Some(LockOutcome::Acquired(_)) => {
                            holding.enter(mode, limit);
                            granted.push(mode);
                            let pause = Duration::from_millis(rand::random_range(0..4));
                            tokio::time::sleep(pause).await;
                            holding.leave(mode, limit);
                            released(client.release_lock(release(lock, &name)).await);
                        }
                        Some(LockOutcome::Held(_)) => tokio::task::yield_now().await,
                        other => panic!("neither acquired nor held: {other:?}"),
                    }
                }
                granted
            })
            .await;
        let granted = granted.concat();
        let exclusive = granted
            .iter()
            .filter(|mode| **mode == LockMode::Exclusive)
            .count();
        let shared = granted.len() - exclusive;
        eprintln!("{lock}: {exclusive} exclusive and {shared} shared acquisitions");
        assert!(shared > 0);
        assert_eq!(exclusive > 0, lock == "mixed");
        acquired(fleet.client(0).acquire_lock(acquire(lock, "last")).await);
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fencing_tokens_grow_in_the_order_of_the_grants() {
    const TASKS: usize = 20;
    let redis = RedisServer::start().await;
    let fleet = Fleet::start(&redis, Settings::default()).await;
    // Whoever holds the lock, or the key, is alone with the list.
    let (of_lock, of_key) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    fleet
        .at_once(TASKS, async |mut client, number| {
            for turn in 0..30 {
                let name = format!("{number}-{turn}");
                let answer = client.acquire_lock(acquire("lock", &name)).await;
                match answer.expect("an outcome").into_inner().outcome {
                    Some(LockOutcome::Acquired(grant)) => {
                        of_lock.lock().expect("no panic").push(grant.fencing_token);
                        released(client.release_lock(release("lock", &name)).await);
                    }
                    Some(LockOutcome::Held(_)) => {}
                    other => panic!("neither acquired nor held: {other:?}"),
                }
                let answer = client.claim(claim("key", &name)).await;
                match answer.expect("an outcome").into_inner().outcome {
                    Some(ClaimOutcome::Claimed(grant)) => {
                        of_key.lock().expect("no panic").push(grant.fencing_token);
                        let give_up = abandon("key", &name, AbandonEffect::None);
                        abandoned(client.abandon(give_up).await);
                    }
                    Some(ClaimOutcome::InFlight(_)) => {}
                    other => panic!("neither claimed nor in flight: {other:?}"),
                }
            }
        })
        .await;
    for tokens in [of_lock, of_key] {
        let tokens = tokens.into_inner().expect("no panic");
        eprintln!("{} grants", tokens.len());
        assert!(tokens.len() > 10);
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        assert!(tokens.iter().all(|token| *token < 1 << 53));
    }
    // A repeat is the same grant, so it has the same token.
    let first = acquired(fleet.client(0).acquire_lock(acquire("lock", "a")).await);
    let again = acquired(fleet.client(1).acquire_lock(acquire("lock", "a")).await);
    assert_eq!(first.fencing_token, again.fencing_token);
    held(fleet.client(2).acquire_lock(acquire("lock", "b")).await);
    let mut long = claim("key", "a");
    long.lease = proto_duration(Duration::from_secs(60));
    let first = claimed(fleet.client(0).claim(long).await);
    let again = claimed(fleet.client(1).claim(claim("key", "a")).await);
    assert_eq!(first.fencing_token, again.fencing_token);
    in_flight(fleet.client(2).claim(claim("key", "b")).await);
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
}
