//! A Redis behind TLS, by `rediss://`.

use crate::support::answers::{claimed, in_flight};
use crate::support::certificates::certificates;
use crate::support::eventually;
use crate::support::program::Program;
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::requests::claim;
use tempfile::TempDir;

pub async fn redis_with_tls(certificates: &TempDir) -> RedisServer {
    let file = |name: &str| certificates.path().join(name).display().to_string();
    let args = [
        "--tls-cert-file",
        &file("server.pem"),
        "--tls-key-file",
        &file("server.key"),
        "--tls-ca-cert-file",
        &file("ca.pem"),
        "--tls-auth-clients",
        "no",
    ];
    let args = args.map(str::to_owned).to_vec();
    RedisServer::with(RedisOptions {
        tls: true,
        args,
        ..RedisOptions::default()
    })
    .await
}

#[tokio::test]
async fn claims_are_served_from_a_redis_behind_tls() {
    let certificates = certificates();
    let redis = redis_with_tls(&certificates).await;
    let authorities = certificates.path().join("ca.pem");
    let program = Program::serve_trusting(&authorities, &redis.tls_url()).await;
    program.is_ready().await;
    let mut caller = program.coordination().await;
    claimed(caller.claim(claim("k", "a")).await);
    in_flight(caller.claim(claim("k", "b")).await);
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused_and_the_log_says_so() {
    let (theirs, others) = (certificates(), certificates());
    let redis = redis_with_tls(&theirs).await;
    let authorities = others.path().join("ca.pem");
    let program = Program::serve_trusting(&authorities, &redis.tls_url()).await;
    eventually("the log to say why", async || {
        program.log().contains("certificate").then_some(())
    })
    .await;
}
