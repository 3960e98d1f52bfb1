//! What an operator is told of a Redis that may forget, refuses, or is away.

use crate::support::answers::{assert_store_unavailable, claimed};
use crate::support::eventually;
use crate::support::program::Program;
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::requests::claim;
use crate::support::service::http_status;

/// What the program warns of on a server with these arguments, once it is ready.
async fn warned_of(appendonly: bool, args: &[&str]) -> Vec<String> {
    let redis = RedisServer::with(RedisOptions {
        appendonly,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        ..RedisOptions::default()
    })
    .await;
    let program = Program::serve(&redis.url(), &[]).await;
    program.is_ready().await;
    let log = eventually("the log to say that redis answers", async || {
        Some(program.log()).filter(|log| log.contains("redis answers"))
    })
    .await;
    log.lines()
        .filter(|line| line.contains("WARN"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn a_redis_that_may_evict_keys_is_warned_of() {
    let warnings = warned_of(true, &["--maxmemory-policy", "allkeys-lru"]).await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("may evict keys"), "{warnings:?}");
    assert!(warnings[0].contains("noeviction"), "{warnings:?}");
}

#[tokio::test]
async fn a_redis_that_persists_nothing_is_warned_of() {
    let warnings = warned_of(false, &[]).await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("persists nothing"), "{warnings:?}");
}

#[tokio::test]
async fn a_redis_that_persists_by_snapshots_alone_is_warned_of() {
    let warnings = warned_of(false, &["--save", "3600 1"]).await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("snapshots alone"), "{warnings:?}");
}

#[tokio::test]
async fn a_redis_whose_settings_cannot_be_read_is_served_with_a_warning() {
    let no_config = [
        "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-config",
    ];
    let warnings = warned_of(true, &no_config).await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("does not let CONFIG be read"),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn a_redis_that_keeps_everything_is_not_warned_of() {
    assert_eq!(warned_of(true, &[]).await, Vec::<String>::new());
}

/// Managed Redises give users like this one.
#[tokio::test]
async fn a_user_without_dangerous_commands_is_served() {
    let managed = [
        "--user",
        "default",
        "on",
        "nopass",
        "~*",
        "&*",
        "+@all",
        "-@dangerous",
    ];
    let warnings = warned_of(true, &managed).await;
    assert!(
        warnings.iter().any(|line| line.contains("version unknown")),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn a_redis_that_refuses_writes_makes_the_program_not_ready_until_it_takes_them() {
    let redis = RedisServer::start().await;
    let program = Program::serve(&redis.url(), &[]).await;
    program.is_ready().await;
    let mut connection = redis.connect().await;
    let mut set = async |replicas: &str| {
        let mut config = redis::cmd("CONFIG");
        config.arg("SET").arg("min-replicas-to-write").arg(replicas);
        let set = config.exec_async(&mut connection).await;
        set.expect("redis takes the setting");
    };
    set("1").await;
    let mut caller = program.coordination().await;
    let refused = caller.claim(claim("k", "a")).await;
    assert_store_unavailable(&refused.expect_err("redis refuses"));
    eventually("readiness to end", async || {
        (http_status(program.http, "/readyz").await == Some(503)).then_some(())
    })
    .await;
    set("0").await;
    program.is_ready().await;
    claimed(caller.claim(claim("k", "a")).await);
}

#[tokio::test]
async fn a_missing_or_wrong_password_is_told_once_and_not_once_for_each_script() {
    let redis = RedisServer::with(RedisOptions {
        tcp: true,
        ..RedisOptions::default()
    })
    .await;
    let mut config = redis::cmd("CONFIG");
    config.arg("SET").arg("requirepass").arg("right");
    let set = config.exec_async(&mut redis.connect().await).await;
    set.expect("redis takes the setting");

    let missing = redis.tcp_url();
    let wrong = missing.replace("redis://", "redis://:wrong@");
    for (url, cause) in [
        (missing, "Authentication required"),
        (wrong, "Password authentication failed"),
    ] {
        let program = Program::serve(&url, &[]).await;
        let line = eventually("the log to say why", async || {
            let log = program.log();
            let line = log
                .lines()
                .find(|line| line.contains("redis does not answer"))?;
            Some(line.to_owned())
        })
        .await;
        assert_eq!(line.matches(cause).count(), 1, "{line}");
    }
}

#[tokio::test]
async fn a_redis_that_is_away_at_the_start_is_named_with_the_reason() {
    let program = Program::serve("redis://127.0.0.1:1", &[]).await;
    eventually("the log to say why", async || {
        let log = program.log();
        let line = log
            .lines()
            .find(|line| line.contains("redis does not answer"))?;
        line.contains("refused").then_some(())
    })
    .await;
}
