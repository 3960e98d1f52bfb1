//! Looks at Redis at regular intervals: whether it answers, what time it has, and whether it may forget.

use super::{Store, keys, pool};
use crate::domain::failure::Cause;
use redis::aio::MultiplexedConnection;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Promise 7 of the README holds from the next look after Redis's clock was set back, so the looks are close together.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// `#!lua` and functions of newer scripts came with this version.
pub(super) const OLDEST_VERSION: u32 = 7;

impl Store {
    /// Says whether Redis answers, for as long as anybody listens. It is taken to be down until the first answer.
    pub fn watch(&self) -> watch::Receiver<bool> {
        let (up, receiver) = watch::channel(false);
        let store = self.clone();
        tokio::spawn(async move {
            let mut was_up = None;
            while !up.is_closed() {
                let looked = store.look(was_up == Some(true)).await;
                let is_up = Some(looked.is_ok());
                match looked {
                    Err(cause) if was_up != is_up => {
                        tracing::warn!(cause = cause.for_log(), "redis does not answer");
                    }
                    Ok(()) if was_up != is_up => tracing::info!("redis answers"),
                    Ok(()) | Err(_) => {}
                }
                was_up = is_up;
                store.metrics.store_is_up(is_up == Some(true));
                up.send_if_modified(|up| {
                    std::mem::replace(up, is_up == Some(true)) != (is_up == Some(true))
                });
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
            if self.refuses.load(Ordering::Relaxed) {
                try_to_write(&mut link.connection).await?;
                self.refuses.store(false, Ordering::Relaxed);
            }
            if !was_up {
                for warning in warnings(&mut link.connection).await? {
                    tracing::warn!("{warning}");
                }
            }
            Ok::<(), redis::RedisError>(())
        };
        let looked = match tokio::time::timeout_at(limit.into(), looking).await {
            Ok(looked) => looked.map_err(|error| {
                if error.is_io_error() {
                    link.report(&error);
                }
                Cause::new(error)
            }),
            Err(_) => Err(Cause::new("no answer in time")),
        };
        if looked.is_err() && !self.refuses.load(Ordering::Relaxed) {
            link.report_broken();
        }
        looked
    }
}

/// Writes a key that is gone in a moment: after a refusal only this tells whether calls can be answered again.
pub(super) async fn try_to_write(
    connection: &mut MultiplexedConnection,
) -> Result<(), redis::RedisError> {
    let mut set = redis::cmd("SET");
    set.arg(keys::PROBE).arg("").arg("PX").arg(1);
    set.exec_async(connection).await
}

/// What an operator should know about how this Redis is set up.
async fn warnings(
    connection: &mut MultiplexedConnection,
) -> Result<Vec<String>, redis::RedisError> {
    let mut warnings = Vec::new();
    let mut info = redis::cmd("INFO");
    let info: Option<String> = allowed(info.arg("server").query_async(connection).await)?;
    let version = info.as_deref().unwrap_or("").lines();
    let version = version
        .filter_map(|line| line.strip_prefix("redis_version:"))
        .next()
        .unwrap_or("unknown");
    let major: Option<u32> = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    if major.is_none_or(|major| major < OLDEST_VERSION) {
        warnings.push(format!(
            "redis has version {version}: claimlock needs Redis {OLDEST_VERSION}.0 or Valkey"
        ));
    }

    let mut config = redis::cmd("CONFIG");
    config
        .arg("GET")
        .arg("maxmemory-policy")
        .arg("save")
        .arg("appendonly");
    let config: Option<HashMap<String, String>> = allowed(config.query_async(connection).await)?;
    let Some(config) = config else {
        warnings.push(
            "redis does not let CONFIG be read: make sure that maxmemory-policy is noeviction and that it persists"
                .to_owned(),
        );
        return Ok(warnings);
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

/// What Redis answered; none where it would not, to a user without the right to ask say.
fn allowed<T>(answer: Result<T, redis::RedisError>) -> Result<Option<T>, redis::RedisError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_io_error() => Err(error),
        Err(_) => Ok(None),
    }
}
