//! Many that wait for one key.

use super::*;
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

const CALLERS: usize = 200;

/// As many calls as that, half of them at each service, and waiting.
async fn all_wait(desk: &Desk, key: &str) -> Vec<Waiting> {
    let waiting = (0..CALLERS)
        .map(|number| {
            let client = [&desk.one, &desk.other][number % 2];
            start(client, waiting_claim(key, &number.to_string()))
        })
        .collect();
    desk.waits(CALLERS).await;
    waiting
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_hundred_that_wait_one_gets_the_abandoned_claim_and_all_others_its_result() {
    let mut desk = Desk::start().await;
    claimed(desk.one.claim(claim("key", "a")).await);
    let mut waiting = all_wait(&desk, "key").await;
    let (claims, watches) = (desk.calls("claim").await, desk.calls("watch_claim").await);
    let since = Instant::now();
    abandoned(
        desk.one
            .abandon(abandon("key", "a", AbandonEffect::None))
            .await,
    );
    let (first, others) = {
        let (first, _, others) = futures_util::future::select_all(waiting.drain(..)).await;
        (first.expect("no panic").0, others)
    };
    let grant = claimed(first);
    assert_eq!((grant.attempt, grant.taken_over), (2, false));
    // The others are still in the dark, which costs each service a look now and then.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!others.iter().any(Waiting::is_finished));
    let asked = desk.calls("claim").await - claims;
    assert!(asked <= 4, "{asked} claims to give one away");
    let looks = desk.calls("watch_claim").await - watches;
    let seconds = since.elapsed().as_secs_f64();
    eprintln!("{asked} claims and {looks} looks in {seconds:.1} s");
    assert!(looks as f64 <= 4.0 * seconds + 4.0, "{looks} looks");

    let done = claimlock::rpc::proto::CompleteRequest {
        claim_token: grant.claim_token,
        ..complete("key", "", b"done")
    };
    completed(desk.one.complete(done).await);
    let since = Instant::now();
    for answer in join_all(others).await {
        let told = replay(answer.expect("no panic").0);
        assert_eq!(told.response, Some(response(b"done")));
    }
    eprintln!("all others had the result after {:?}", since.elapsed());
    let asked = desk.calls("claim").await - claims;
    assert!(asked <= CALLERS + 8, "{asked} claims for {CALLERS} callers");
    desk.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_wait_for_a_lease_to_end_each_gets_the_claim_once_if_each_abandons_it() {
    let desk = Desk::start().await;
    let mut one = desk.one.clone();
    let first = ClaimRequest {
        lease: millis(2000),
        ..claim("key", "a")
    };
    claimed(one.claim(first).await);
    let waiting = (0..40).map(async |number: usize| {
        let mut client = [&desk.one, &desk.other][number % 2].clone();
        let name = number.to_string();
        let grant = claimed(client.claim(waiting_claim("key", &name)).await);
        let give_up = abandon("key", &name, AbandonEffect::None);
        abandoned(client.abandon(give_up).await);
        grant.attempt
    });
    let mut attempts = join_all(waiting).await;
    attempts.sort_unstable();
    assert_eq!(attempts, (2..42).collect::<Vec<_>>());
    desk.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_that_wait_and_are_cancelled_at_any_moment_leave_nothing() {
    let desk = Desk::start().await;
    let lease = Duration::from_secs(3);
    let some_time = |at_most| Duration::from_micros(rand::random_range(0..at_most));
    // Somebody holds it again and again meanwhile, so that there is something to be granted.
    let mut one = desk.one.clone();
    let enough = CancellationToken::new();
    let until = enough.clone();
    let holding = tokio::spawn(async move {
        for number in 0.. {
            if until.is_cancelled() {
                break;
            }
            let name = format!("holder-{number}");
            let answer = one.claim(claim("key", &name)).await.expect("an answer");
            let is_held = matches!(answer.into_inner().outcome, Some(Outcome::Claimed(_)));
            tokio::time::sleep(Duration::from_millis(3)).await;
            if is_held {
                abandoned(
                    one.abandon(abandon("key", &name, AbandonEffect::None))
                        .await,
                );
            }
        }
    });
    let calls = (0..CALLERS).map(async |number| {
        let mut client = [&desk.one, &desk.other][number % 2].clone();
        let name = number.to_string();
        tokio::time::sleep(some_time(300_000)).await;
        let request = ClaimRequest {
            lease: proto_duration(lease),
            ..waiting_claim("key", &name)
        };
        let call = tokio::time::timeout(some_time(60_000), client.claim(request));
        match call.await {
            Ok(answer) => {
                claimed(answer);
                let give_up = abandon("key", &name, AbandonEffect::None);
                abandoned(client.abandon(give_up).await);
                false
            }
            Err(_) => true,
        }
    });
    let cancelled = join_all(calls).await;
    let cancelled = cancelled.into_iter().filter(|cancelled| *cancelled).count();
    enough.cancel();
    holding.await.expect("no panic");
    eprintln!("{cancelled} of {CALLERS} calls were cancelled");
    assert!(cancelled > 0);

    // An answer that was on its way counts as heard: then the lease bounds it.
    let since = Instant::now();
    desk.waits(0).await;
    let mut other = desk.other.clone();
    claimed(other.claim(waiting_claim("key", "next")).await);
    eprintln!("the next had it after {:?}", since.elapsed());
    completed(other.complete(complete("key", "next", b"done")).await);
    desk.ends().await;
}
