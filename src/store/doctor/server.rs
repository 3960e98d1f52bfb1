//! What a Redis is, and how it was set up to keep what it is given.

use super::super::watch::OLDEST_VERSION;
use super::{Asked, Seen, Trouble, Unseen};
use redis::Value;
use std::collections::HashMap;

/// What a Redis is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// `redis` or `valkey`, or what else it calls itself.
    pub product: String,
    /// Its own version.
    pub version: String,
    /// Its part among others.
    pub role: Role,
}

/// The part of a Redis among others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Primary,
    /// It copies another, at this address where it tells.
    Replica(Option<String>),
    /// One node of a cluster.
    Cluster,
    /// It watches others, and holds nothing.
    Sentinel,
}

impl Server {
    /// Whether the scripts can run on it; none where its version is no number.
    pub fn is_new_enough(&self) -> Option<bool> {
        is_new_enough(&self.product, &self.version)
    }
}

/// Whether the scripts can run on this version of `redis` or `valkey`; none where it is no number.
pub fn is_new_enough(product: &str, version: &str) -> Option<bool> {
    let major: u32 = version.split('.').next()?.parse().ok()?;
    // Valkey began as 7.2.
    Some(product == "valkey" || major >= OLDEST_VERSION)
}

pub(super) async fn look(asked: &mut Asked) -> Seen<Server> {
    let info = info(asked, "server").await;
    let told = match hello(asked).await {
        Ok(told) => told,
        Err(_) => info.as_ref().map_err(Clone::clone)?.clone(),
    };
    let of = |names: &[&str]| names.iter().find_map(|name| told.get(*name)).cloned();
    let product = match of(&["server", "server_name"]) {
        Some(product) => product,
        None => "redis".to_owned(),
    };
    let version = of(&["version", "valkey_version", "redis_version"]).unwrap_or_default();
    let mode = of(&["mode", "server_mode", "redis_mode"]);
    let replication = self::info(asked, "replication").await.unwrap_or_default();
    let role = of(&["role"]).or_else(|| replication.get("role").cloned());
    let role = match (mode.as_deref(), role.as_deref()) {
        (Some("sentinel"), _) => Role::Sentinel,
        (Some("cluster"), _) => Role::Cluster,
        (_, Some("slave" | "replica")) => Role::Replica(primary_of(&replication)),
        _ => Role::Primary,
    };
    Ok(Server {
        product,
        version,
        role,
    })
}

fn primary_of(replication: &HashMap<String, String>) -> Option<String> {
    let host = replication.get("master_host")?;
    Some(format!("{host}:{}", replication.get("master_port")?))
}

/// What it says of itself to every user; INFO is kept from many.
async fn hello(asked: &mut Asked) -> Result<HashMap<String, String>, Trouble> {
    let told: HashMap<String, Value> = asked.ask(&redis::cmd("HELLO")).await?;
    let text = |value: Value| redis::from_redis_value::<String>(value).ok();
    Ok(told
        .into_iter()
        .filter_map(|(name, value)| Some((name, text(value)?)))
        .collect())
}

/// What it keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Persistence {
    /// Whether it has an append-only file; none where that cannot be seen.
    pub appendonly: Option<bool>,
    /// When it writes that to the disk: `always`, `everysec` or `no`.
    pub appendfsync: Option<String>,
    /// When it takes snapshots; empty for never.
    pub save: Option<String>,
    /// What failed the last time it was tried: the append-only file, its rewrite, a snapshot.
    pub failing: Vec<&'static str>,
}

pub(super) async fn look_at_persistence(asked: &mut Asked) -> Seen<Persistence> {
    let info = info(asked, "persistence").await;
    let config = config(asked, &["appendonly", "appendfsync", "save"]).await;
    let unseen = seen_either(&info, &config);
    let (info, config) = (info.unwrap_or_default(), config.unwrap_or_default());
    let statuses = [
        ("aof_last_write_status", "the append-only file"),
        (
            "aof_last_bgrewrite_status",
            "the rewrite of the append-only file",
        ),
        ("rdb_last_bgsave_status", "a snapshot"),
    ];
    let failing = statuses
        .into_iter()
        .filter(|(name, _)| info.get(*name).is_some_and(|status| status != "ok"))
        .map(|(_, what)| what)
        .collect();
    let appendonly = config.get("appendonly").map(|value| value == "yes");
    let appendonly = appendonly.or_else(|| info.get("aof_enabled").map(|value| value == "1"));
    match unseen {
        Some(unseen) => Err(unseen),
        None => Ok(Persistence {
            appendonly,
            appendfsync: config.get("appendfsync").cloned(),
            save: config.get("save").cloned(),
            failing,
        }),
    }
}

/// How much it may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// `maxmemory-policy`.
    pub policy: Option<String>,
    /// Bytes in use.
    pub used: Option<u64>,
    /// Bytes that it may use; 0 for no limit of its own.
    pub limit: Option<u64>,
}

pub(super) async fn look_at_memory(asked: &mut Asked) -> Seen<Memory> {
    let info = info(asked, "memory").await;
    let config = config(asked, &["maxmemory", "maxmemory-policy"]).await;
    let unseen = seen_either(&info, &config);
    let (info, config) = (info.unwrap_or_default(), config.unwrap_or_default());
    let number = |text: &String| text.parse().ok();
    match unseen {
        Some(unseen) => Err(unseen),
        None => Ok(Memory {
            policy: config
                .get("maxmemory-policy")
                .or_else(|| info.get("maxmemory_policy"))
                .cloned(),
            used: info.get("used_memory").and_then(number),
            limit: config
                .get("maxmemory")
                .or_else(|| info.get("maxmemory"))
                .and_then(number),
        }),
    }
}

/// Why neither tells anything; none where one does.
fn seen_either(
    info: &Seen<HashMap<String, String>>,
    config: &Seen<HashMap<String, String>>,
) -> Option<Unseen> {
    match (info, config) {
        (Err(_), Err(unseen)) => Some(unseen.clone()),
        _ => None,
    }
}

async fn info(asked: &mut Asked, section: &str) -> Seen<HashMap<String, String>> {
    let mut info = redis::cmd("INFO");
    let text: String = asked.ask(info.arg(section)).await?;
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect())
}

async fn config(asked: &mut Asked, names: &[&str]) -> Seen<HashMap<String, String>> {
    let mut config = redis::cmd("CONFIG");
    config.arg("GET");
    for name in names {
        config.arg(name);
    }
    let settings: HashMap<String, String> = asked.ask(&config).await?;
    if settings.is_empty() {
        return Err(Unseen::Refused("CONFIG GET tells nothing".to_owned()));
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_new_enough_from_redis_7_and_in_every_valkey() {
        for (product, version, expected) in [
            ("redis", "6.2.14", Some(false)),
            ("redis", "7.0.0", Some(true)),
            ("redis", "10.0.1", Some(true)),
            ("valkey", "7.2.5", Some(true)),
            ("valkey", "8.1.0", Some(true)),
            ("redis", "255.255.255", Some(true)),
            ("redis", "", None),
            ("other", "unstable", None),
        ] {
            assert_eq!(
                is_new_enough(product, version),
                expected,
                "{product} {version}"
            );
        }
    }
}
