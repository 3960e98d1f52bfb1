//! `claimlock doctor` on real servers, with a fault in each.

mod embedded;
mod rights;
mod service;
mod store;

use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::service::Service;
use crate::support::shell::{Ran, Shell};
use serde_json::Value;

/// A server that nothing is wrong with, but for what these arguments do.
async fn redis_with(args: &[&str]) -> RedisServer {
    RedisServer::with(RedisOptions {
        appendonly: true,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        ..RedisOptions::default()
    })
    .await
}

/// What the doctor said.
#[derive(Debug)]
struct Diagnosis {
    ran: Ran,
    said: Value,
}

/// What it says of a store and the service that the shell asks.
async fn diagnose(shell: &Shell, redis_url: &str) -> Diagnosis {
    diagnose_with(shell, &["--redis-url", redis_url]).await
}

async fn diagnose_with(shell: &Shell, flags: &[&str]) -> Diagnosis {
    let ran = shell.run("doctor -o json", flags).await;
    let said = ran.json();
    assert_eq!(said["healthy"], ran.code == 0, "{ran:?}");
    assert!([0, 83].contains(&ran.code), "{ran:?}");
    assert_eq!(ran.stderr, "", "{ran:?}");
    Diagnosis { ran, said }
}

impl Diagnosis {
    fn checks(&self) -> impl Iterator<Item = &Value> {
        self.said["checks"].as_array().expect("a list").iter()
    }

    /// What is at fault, each with its level.
    fn faults(&self) -> Vec<(&str, &str)> {
        self.checks()
            .filter(|check| check["level"] != "ok")
            .map(|check| {
                assert!(check["advice"].is_string(), "no advice: {check}");
                let word = |name: &str| check[name].as_str().expect("a word");
                (word("check"), word("level"))
            })
            .collect()
    }

    /// Of one check: the level, and texts that finding and advice must have.
    #[track_caller]
    fn says(&self, check: &str, level: &str, finding: &str, advice: &str) -> &Self {
        let is_it = |said: &&Value| {
            let has = |name: &str, text: &str| said[name].as_str().unwrap_or("").contains(text);
            said["check"] == check
                && said["level"] == level
                && has("finding", finding)
                && has("advice", advice)
        };
        assert!(
            self.checks().any(|said| is_it(&said)),
            "no {level} of {check} with {finding:?} and {advice:?}: {:#}",
            self.said
        );
        self
    }
}

/// A shell that asks a service on a Redis that nothing is wrong with.
struct Healthy {
    redis: RedisServer,
    service: Service,
    shell: Shell,
}

impl Healthy {
    async fn start() -> Self {
        let redis = redis_with(&[]).await;
        let service = Service::start(&redis).await;
        Self {
            shell: Shell::new(service.grpc),
            redis,
            service,
        }
    }
}
