//! Faults of the service.

use super::{Healthy, diagnose, diagnose_with};
use crate::support::certificates::{TlsDoor, certificates};
use crate::support::eventually;
use crate::support::service::{Service, http_status};
use crate::support::shell::Shell;
use claimlock::config::Settings;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

#[tokio::test]
async fn a_service_that_is_away_is_told_apart_by_why() {
    let pair = Healthy::start().await;
    let url = pair.redis.url();
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a free port");
    let silent = silent.local_addr().expect("a bound address");
    let certificates = certificates();
    let tls = TlsDoor::open(certificates.path(), pair.service.grpc, false).await;
    for (endpoint, finding, advice) in [
        (
            "http://127.0.0.1:1".to_owned(),
            "nobody listens",
            "claimlock serve",
        ),
        (
            "http://no-such-host.invalid:7420".to_owned(),
            "name has no address",
            "DNS",
        ),
        (
            format!("http://{silent}"),
            "no answer in time",
            "--call-timeout",
        ),
        (
            format!("http://{}", pair.service.http),
            "does not speak gRPC",
            "7420, not 7421",
        ),
        (format!("http://{}", tls.address), "", "https://"),
        (
            format!("https://{}", pair.service.grpc),
            "TLS fails",
            "write http://",
        ),
        (format!("https://{}", tls.address), "TLS fails", "--ca-file"),
    ] {
        let start = Instant::now();
        let flags = [
            "--redis-url",
            &url,
            "--call-timeout",
            "1s",
            "--endpoint",
            &endpoint,
        ];
        let found = diagnose_with(&pair.shell, &flags).await;
        found.says("service", "fail", finding, advice);
        assert_eq!(found.faults(), [("service", "fail")], "{endpoint}");
        assert!(
            start.elapsed() < Duration::from_secs(15),
            "{:?}",
            start.elapsed()
        );
    }
    let trusted = format!("https://{}", tls.address);
    let authority = certificates.path().join("ca.pem");
    let authority = authority.to_str().expect("a test's path is UTF-8");
    let flags = [
        "--redis-url",
        &url,
        "--ca-file",
        authority,
        "--endpoint",
        &trusted,
    ];
    assert_eq!(diagnose_with(&pair.shell, &flags).await.faults(), []);
}

#[tokio::test]
async fn a_service_that_cannot_answer_calls_is_a_fault() {
    let pair = Healthy::start().await;
    let service = Service::at("redis://127.0.0.1:1", Settings::default()).await;
    eventually("the service to say that it is not ready", async || {
        (http_status(service.http, "/readyz").await? == 503).then_some(())
    })
    .await;
    let found = diagnose(&Shell::new(service.grpc), &pair.redis.url()).await;
    found.says(
        "health",
        "fail",
        "not serving",
        "mend what is wrong with the store",
    );
    found.says("service version", "ok", env!("CARGO_PKG_VERSION"), "");
    assert_eq!(found.faults(), [("health", "fail")]);
}

#[tokio::test]
async fn a_service_that_does_not_tell_its_version_is_warned_of() {
    let pair = Healthy::start().await;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a free port");
    let address: SocketAddr = listener.local_addr().expect("a bound address");
    let other = tonic::transport::Server::builder()
        .add_service(health)
        .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener));
    let other = tokio::spawn(other);
    let found = diagnose(&Shell::new(address), &pair.redis.url()).await;
    found.says("health", "ok", "serving", "");
    found.says(
        "service version",
        "warn",
        "does not tell",
        "claimlock-version",
    );
    assert_eq!((found.faults().len(), found.ran.code), (1, 0));
    other.abort();
}

#[tokio::test]
async fn the_service_tells_its_version_with_its_health() {
    let pair = Healthy::start().await;
    let ran = pair.shell.run("health", &[]).await;
    let expected = format!("serving (version {})\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(ran.stdout, expected);
}
