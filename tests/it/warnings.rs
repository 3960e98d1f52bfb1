//! What an operator is told at the start of a Redis that may forget.

use crate::support::eventually;
use crate::support::program::Program;
use crate::support::redis::{RedisOptions, RedisServer};

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
