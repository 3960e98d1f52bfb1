//! The scripts of claims, called without the service: each return that a script's header documents, and that it returns
//! nothing else; how it is told apart from the others; and what undoing a grant leaves.

mod abandon;
mod boundaries;
mod claim;
mod complete;
mod operators;
mod renew_claim;
mod streams;
mod undo_claim;
mod waiting;

use crate::support::redis::RedisServer;
use crate::support::scripts::{Reply, Scripts, assemble};
use crate::support::service::Service;

const CLAIM_SCRIPTS: [&str; 11] = [
    "claim",
    "watch_claim",
    "renew_claim",
    "detach_claim",
    "end_claim",
    "look_at_claim",
    "complete",
    "abandon",
    "undo_claim",
    "get_claim",
    "resolve_claim",
];

/// Thirty days, in milliseconds.
const LARGEST_RETENTION: i64 = 30 * 24 * 3600 * 1000;
const HOUR: i64 = 3600 * 1000;

async fn claim_scripts() -> Scripts {
    Scripts::start("claim", |name| {
        vec![format!("{{{name}}}"), format!("{{{name}}}:r")]
    })
    .await
}

/// What `claim` takes; a lease of a minute and a retention of an hour.
#[derive(Clone, Copy, Debug)]
struct Claim {
    token: &'static str,
    nonce: &'static str,
    fingerprint: &'static str,
    holder: &'static str,
    lease: i64,
    retention: i64,
    policy: i64,
    /// Where the call waits; empty where it does not.
    service: &'static str,
}

impl Claim {
    fn by(token: &'static str) -> Self {
        Self {
            token,
            nonce: "nonce",
            fingerprint: "print",
            holder: "holder",
            lease: 60_000,
            retention: HOUR,
            policy: 1,
            service: "",
        }
    }

    fn arguments(self) -> Vec<String> {
        let Self {
            token,
            nonce,
            fingerprint,
            holder,
            lease,
            retention,
            policy,
            service,
        } = self;
        [
            token.to_owned(),
            nonce.to_owned(),
            fingerprint.to_owned(),
            "operation".to_owned(),
            holder.to_owned(),
            lease.to_string(),
            retention.to_string(),
            policy.to_string(),
            LARGEST_RETENTION.to_string(),
            "trace".to_owned(),
            service.to_owned(),
        ]
        .to_vec()
    }
}

fn arguments<const N: usize>(values: [&str; N]) -> Vec<String> {
    values.map(str::to_owned).to_vec()
}

fn renewal(token: &str) -> Vec<String> {
    renewal_by("", 0, token)
}

/// By a stream that asked at this moment.
fn renewal_by(stream: &str, stamp: i64, token: &str) -> Vec<String> {
    let (most, stamp) = (LARGEST_RETENTION.to_string(), stamp.to_string());
    arguments([token, "", "0", "", "0", &most, stream, &stamp])
}

fn checkpoint(token: &str, checkpoint: &str) -> Vec<String> {
    arguments([
        token,
        "",
        "1",
        checkpoint,
        "0",
        &LARGEST_RETENTION.to_string(),
        "",
        "0",
    ])
}

/// With a response, whose digest is made of it; the claim's retention and no other.
fn completion(token: &str, response: &str) -> Vec<String> {
    let size = response.len().to_string();
    arguments([
        token,
        &format!("digest of {response}"),
        "1",
        response,
        "201",
        &size,
        "",
        "",
        "0",
    ])
}

fn abandonment(token: &str, effect: &str) -> Vec<String> {
    arguments([token, effect, "0", "reason", &LARGEST_RETENTION.to_string()])
}

fn resolution(fence: i64, how: &str) -> Vec<String> {
    arguments([
        &fence.to_string(),
        how,
        "digest of mended",
        "1",
        "mended",
        "500",
        "6",
    ])
}

/// The end of a lease, a fencing token or the like, as it stands in a reply.
fn number(reply: &Reply, field: usize) -> i64 {
    reply.fields[field].parse().expect("a number")
}

/// Grants the key and says under which fencing token.
async fn granted(scripts: &mut Scripts, name: &str, claim: Claim) -> i64 {
    let reply = scripts.run("claim", name, &claim.arguments()).await;
    assert_eq!(reply.row()[..2], ["claimed", "0"], "{reply:?}");
    number(&reply, 1)
}

#[tokio::test]
async fn the_scripts_under_test_are_those_that_the_service_loads() {
    let redis = RedisServer::start().await;
    let _service = Service::start(&redis).await;
    for script in CLAIM_SCRIPTS {
        let text = assemble("claim", script);
        let known: Vec<bool> = redis::cmd("SCRIPT")
            .arg("EXISTS")
            .arg(redis::Script::new(&text).get_hash())
            .query_async(&mut redis.connect().await)
            .await
            .expect("SCRIPT EXISTS is answered");
        assert_eq!(known, [true], "{script}");
    }
}
