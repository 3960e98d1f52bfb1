//! Looks at Redis at regular intervals: whether it answers, what time it has, and whether it may forget.

use super::{Store, pool};
use crate::domain::failure::Cause;
use redis::aio::MultiplexedConnection;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Promise 7 holds from the next look after Redis's clock was set back, so the looks are close together.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// `#!lua` and functions of newer scripts came with this version.
const OLDEST_VERSION: u32 = 7;

impl Store {
    /// Says whether Redis answers, for as long as anybody listens. It is taken to be down until the first answer.
    pub fn watch(&self) -> watch::Receiver<bool> {
        let (up, receiver) = watch::channel(false);
        let store = self.clone();
        tokio::spawn(async move {
            while !up.is_closed() {
                let was_up = *up.borrow();
                let looked = store.look(was_up).await;
                let changed = up
                    .send_if_modified(|up| std::mem::replace(up, looked.is_ok()) != looked.is_ok());
                match looked {
                    Ok(()) if changed => tracing::info!("redis answers"),
                    Err(cause) if changed => {
                        tracing::warn!(cause = cause.for_log(), "redis does not answer")
                    }
                    Ok(()) | Err(_) => {}
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        receiver
    }

    async fn look(&self, was_up: bool) -> Result<(), Cause> {
        let limit = Instant::now() + self.timeout();
        let mut link = self.pool.link(limit).await.map_err(Cause::new)?;
        let looking = async {
            pool::look_at_clock(&mut link.connection, &self.clock).await?;
            if !was_up {
                for warning in warnings(&mut link.connection).await? {
                    tracing::warn!("{warning}");
                }
            }
            Ok::<(), redis::RedisError>(())
        };
        let looked = match tokio::time::timeout_at(limit.into(), looking).await {
            Ok(looked) => looked.map_err(Cause::new),
            Err(_) => Err(Cause::new("no answer in time")),
        };
        if looked.is_err() {
            link.report_broken();
        }
        looked
    }
}

/// What an operator should know about how this Redis is set up.
async fn warnings(
    connection: &mut MultiplexedConnection,
) -> Result<Vec<String>, redis::RedisError> {
    let mut warnings = Vec::new();
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query_async(connection)
        .await?;
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .unwrap_or("");
    let major: Option<u32> = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    if major.is_none_or(|major| major < OLDEST_VERSION) {
        warnings.push(format!(
            "redis has version {version:?}: claimlock needs Redis {OLDEST_VERSION}.0 or Valkey"
        ));
    }

    let mut config = redis::cmd("CONFIG");
    config
        .arg("GET")
        .arg("maxmemory-policy")
        .arg("save")
        .arg("appendonly");
    let config: HashMap<String, String> = match config.query_async(connection).await {
        Ok(config) => config,
        Err(error) if error.is_io_error() => return Err(error),
        Err(_) => {
            warnings.push(
                "redis does not let CONFIG be read: make sure that maxmemory-policy is noeviction and that it persists"
                    .to_owned(),
            );
            return Ok(warnings);
        }
    };
    let setting = |name: &str| config.get(name).map_or("", String::as_str);
    let policy = setting("maxmemory-policy");
    if policy != "noeviction" {
        warnings.push(format!(
            "redis may evict keys (maxmemory-policy {policy}): an evicted claim is done again; set it to noeviction"
        ));
    }
    if setting("appendonly") != "yes" {
        let save = setting("save");
        warnings.push(if save.is_empty() {
            "redis persists nothing: a restart forgets every claim and lock; set appendonly to yes".to_owned()
        } else {
            format!("redis persists by snapshots alone (save {save}): a crash forgets what came after the last; set appendonly to yes")
        });
    }
    Ok(warnings)
}
