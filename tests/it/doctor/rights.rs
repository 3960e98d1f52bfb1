//! A user of Redis that lacks a right.

use super::{Healthy, diagnose, redis_with};
use crate::support::calls::{Clients, each_call};
use crate::support::redis::RedisServer;
use crate::support::service::Service;
use claimlock::config::Settings;
use tonic::Code;

/// A server with a user of these rights, and the URL that the user connects by.
async fn with_user(rules: &[&str]) -> (RedisServer, String) {
    let user = ["--user", "worker", "on", ">secret"];
    let redis = redis_with(&[&user[..], rules].concat()).await;
    let url = format!("{}?user=worker&pass=secret", redis.url());
    (redis, url)
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_and_its_rule_mends_it() {
    let pair = Healthy::start().await;
    for (rules, missing) in [
        (&["~cl:*", "+@all", "-zadd"][..], "+zadd"),
        (&["~cl:*", "+@all", "-evalsha"], "+evalsha"),
        (&["~cl:*", "+@all", "-script"], "+script|load"),
        (&["~cl:*", "+@all", "-scan"], "+scan"),
        (&["~cl:*", "+@all", "-time"], "+time"),
        (&["~cl:*", "+@all", "-@write"], "+set"),
        (&["~app:*", "+@all"], "~cl:*"),
        (
            &["~app:*", "+@all", "-hset", "-pexpireat"],
            "~cl:* +hset +pexpireat",
        ),
        (&["%R~cl:*", "+@all"], "~cl:*"),
        (&["~cl:*", "+@all", "resetchannels"], "&cl:w:*"),
        (&["~cl:*", "+@all", "-publish"], "+publish"),
        (&["~cl:*", "+@all", "-subscribe"], "+subscribe"),
    ] {
        // Redis gives a new user no channel; these have all but where they lose them again.
        let (redis, url) = with_user(&[&["&*"][..], rules].concat()).await;
        let found = diagnose(&pair.shell, &url).await;
        let lacks = format!("the user worker lacks {missing}");
        let advice = format!("ACL SETUSER worker {missing}");
        found.says("rights", "fail", &lacks, &advice);
        found.says("scripts", "warn", "not run", "mend that");

        // The advice, taken by its word.
        let said = found.checks().find(|check| check["check"] == "rights");
        let said = said.expect("it was looked at")["advice"]
            .as_str()
            .expect("a text");
        let rules = said
            .strip_prefix("redis-cli ACL SETUSER worker ")
            .expect("a command");
        let (rules, _) = rules
            .split_once(", and where")
            .expect("and what to do then");
        let mut set = redis::cmd("ACL");
        set.arg("SETUSER")
            .arg("worker")
            .arg(rules.split(' ').collect::<Vec<_>>());
        set.exec_async(&mut redis.connect().await)
            .await
            .expect("redis takes the rules");
        let mended = diagnose(&pair.shell, &url).await;
        mended.says(
            "rights",
            "ok",
            "the user worker may do all that is needed",
            "",
        );
        mended.says("scripts", "ok", "all load", "");
        assert!(redis.keys_without_expiry().await.is_empty(), "{rules}");
        assert_eq!(redis.dump().await.len(), 0, "{rules}");
    }
}

/// The rules that the documentation gives.
fn documented_rules() -> Vec<&'static str> {
    let text = include_str!("../../../docs/operating.md");
    let (_, rules) = text
        .split_once("ACL SETUSER claimlock on >PASSWORD ")
        .expect("they are in the documentation");
    let (rules, _) = rules.split_once("```").expect("they end");
    rules.split_whitespace().collect()
}

#[tokio::test]
async fn the_rights_in_the_documentation_are_enough_for_the_service_and_the_doctor() {
    let pair = Healthy::start().await;
    let (_redis, url) = with_user(&documented_rules()).await;
    let service = Service::at(&url, Settings::default()).await;
    service.is_ready().await;
    for answer in each_call(&Clients::of(&service).await, None).await {
        // As they come in no order, some are refused; but Redis refuses none.
        let unavailable = answer
            .1
            .is_err_and(|status| status.code() == Code::Unavailable);
        assert!(!unavailable, "{}", answer.0);
    }
    let found = diagnose(&pair.shell, &url).await;
    found.says("rights", "ok", "all that is needed", "");
    found.says("scripts", "ok", "all load", "");
    // The service warns of as much.
    found.says("persistence", "warn", "cannot look", "appendonly is yes");
    found.says("eviction", "warn", "cannot look", "noeviction");
    assert_eq!(found.ran.code, 0, "{found:?}");
}

#[tokio::test]
async fn a_store_that_does_not_let_itself_be_looked_at_is_no_fault() {
    let pair = Healthy::start().await;
    // Managed Redises give users like these.
    for rules in [
        &["~*", "+@all", "-config"][..],
        &["~*", "+@all", "-@dangerous"],
    ] {
        let (_redis, url) = with_user(&[&["&*"][..], rules].concat()).await;
        let found = diagnose(&pair.shell, &url).await;
        found.says("version", "ok", "Redis 7", "");
        found.says("role", "ok", "primary", "");
        assert_eq!(found.ran.code, 0, "{found:?}");
        assert!(
            found.faults().iter().all(|(_, level)| *level == "warn"),
            "{found:?}"
        );
        assert_eq!(
            found.faults().is_empty(),
            rules.contains(&"-config"),
            "{found:?}"
        );
    }
}
