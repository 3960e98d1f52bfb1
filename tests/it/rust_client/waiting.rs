//! How the client waits: in the service, for as long as its caller wants to.

use super::Desk;
use crate::support::eventually;
use crate::support::metrics::{Scrape, handled};
use claimlock_client::{Attempt, Claim, Client, Effect, Request};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

type Beginning = JoinHandle<Result<Attempt, claimlock_client::Failure>>;

async fn held(client: &Client) -> Claim {
    match client
        .begin(&Request::new("order-1").holder("worker-1"))
        .await
    {
        Ok(Attempt::Claimed(claim)) => claim,
        other => panic!("not granted: {other:?}"),
    }
}

/// Asks for the same, and says what it is told to wait for.
fn begin(client: &Client, wait: Duration) -> (Beginning, mpsc::Receiver<String>) {
    let client = client.clone();
    let (tells, told) = mpsc::channel(100);
    let beginning = tokio::spawn(async move {
        let request = Request::new("order-1").wait(wait);
        client
            .begin_with(&request, |in_flight| {
                let _ = tells.try_send(in_flight.holder.clone());
            })
            .await
    });
    (beginning, told)
}

impl Desk {
    async fn somebody_waits(&self) {
        eventually("it to wait in the service", async || {
            let waiting = Scrape::of(&self.service).await.value("claimlock_waiters");
            (waiting == 1.0).then_some(())
        })
        .await;
    }

    async fn claims_asked_for(&self) -> f64 {
        let answered = handled("CoordinationService", "Claim", "OK");
        Scrape::of(&self.service).await.value(&answered)
    }
}

#[tokio::test]
async fn one_who_waits_is_told_at_once_what_for_and_gets_the_claim_without_asking_again_and_again()
{
    let desk = Desk::start().await;
    let claim = held(&desk.client).await;
    let asked = desk.claims_asked_for().await;
    let (beginning, mut told) = begin(&desk.client, Duration::from_secs(3600));
    assert_eq!(told.recv().await.as_deref(), Some("worker-1"));
    desk.somebody_waits().await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(!beginning.is_finished());

    let abandoned = claim.abandon(Effect::None, "a test").await;
    assert!(matches!(abandoned, Ok(Ok(()))), "{abandoned:?}");
    let since = Instant::now();
    let attempt = beginning.await.expect("it does not panic");
    assert!(matches!(attempt, Ok(Attempt::Claimed(_))), "{attempt:?}");
    let took = since.elapsed();
    assert!(took < Duration::from_millis(500), "{took:?}");
    // Once to hear what there is to wait for, and once to wait.
    assert_eq!(desk.claims_asked_for().await - asked, 2.0);
}

#[tokio::test]
async fn one_who_waited_for_as_long_as_it_wanted_to_is_told_who_has_it() {
    let desk = Desk::start().await;
    let _claim = held(&desk.client).await;
    let since = Instant::now();
    let (beginning, _told) = begin(&desk.client, Duration::from_millis(1200));
    let attempt = beginning.await.expect("it does not panic");
    let Ok(Attempt::InFlight(in_flight)) = attempt else {
        panic!("not in flight: {attempt:?}");
    };
    assert_eq!(in_flight.holder, "worker-1");
    assert!(since.elapsed() >= Duration::from_millis(1150));
}

#[tokio::test]
async fn one_who_waits_goes_on_with_the_same_token_where_its_service_drained() {
    let desk = Desk::start().await;
    let claim = held(&desk.direct).await;
    let (beginning, _told) = begin(&desk.client, Duration::from_secs(3600));
    desk.somebody_waits().await;
    let Desk {
        redis,
        service,
        proxy: _proxy,
        client: _client,
        direct,
    } = desk;
    let address = service.grpc;
    service.stop().await.expect("it ends well");
    let _next = crate::support::service::Service::on(
        address,
        &redis,
        claimlock::config::Settings::default(),
    )
    .await;
    let abandoned = claim.abandon(Effect::None, "a test").await;
    assert!(matches!(abandoned, Ok(Ok(()))), "{abandoned:?}");
    let attempt = beginning.await.expect("it does not panic");
    assert!(matches!(attempt, Ok(Attempt::Claimed(_))), "{attempt:?}");
    drop(direct);
}
