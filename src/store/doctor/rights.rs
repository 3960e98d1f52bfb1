//! What a user of Redis may do, found out by doing it.
//!
//! Redis looks at the user's rights before it looks at what a command is given. So what would write a hash or a sorted set
//! is given nonsense: an error about that is as good an answer as OK, and no key is ever there without an expiry.

use super::super::{keys, wakeups::ServiceId};
use super::scripts::{scratch_claim, scratch_lock};
use super::{Asked, Trouble};
use redis::{Cmd, RedisError};

/// What is written goes after this many milliseconds at the latest.
const GONE_AFTER: u64 = 5_000;

/// What a user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Whose rights they are.
    pub user: String,
    /// What is missing, each once.
    pub missing: Vec<Missing>,
}

/// A right that the service needs and does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// To call a command; with a bar before its subcommand, as ACL rules have it.
    Command(String),
    /// To use keys that begin with this.
    Keys(&'static str),
    /// To use channels that begin with this.
    Channels(&'static str),
}

impl Missing {
    /// The rule that gives it, as ACL SETUSER takes it.
    pub fn rule(&self) -> String {
        match self {
            Self::Command(command) => format!("+{command}"),
            Self::Keys(start) => format!("~{start}*"),
            Self::Channels(start) => format!("&{start}*"),
        }
    }
}

pub(super) async fn look(asked: &mut Asked) -> Rights {
    let mut missing = Vec::new();
    let mut note = |found: Option<Missing>| {
        if let Some(found) = found
            && !missing.contains(&found)
        {
            missing.push(found);
        }
    };
    let claim = keys::claim(&scratch_claim());
    let lock = keys::lock(&scratch_lock());
    for key in claim.iter().chain(&lock) {
        let mut set = redis::cmd("SET");
        set.arg(key).arg("").arg("PX").arg(GONE_AFTER);
        note(try_it(asked, "set", &set).await);
    }
    for (command, try_command) in commands(&claim, &lock) {
        note(try_it(asked, command, &try_command).await);
    }
    note(asked.may_subscribe().await);
    let mut probe = redis::cmd("SET");
    probe.arg(keys::PROBE).arg("").arg("PX").arg(1);
    note(try_it(asked, "set", &probe).await);
    let mut clean_up = redis::cmd("UNLINK");
    clean_up.arg(&claim).arg(&lock);
    note(try_it(asked, "unlink", &clean_up).await);
    Rights {
        user: asked.user.clone(),
        missing,
    }
}

/// Every command that the service and its scripts use, in a form that leaves nothing.
fn commands(claim: &[String], lock: &[String]) -> Vec<(&'static str, Cmd)> {
    let [record, response] = claim else {
        unreachable!("a claim has two keys")
    };
    let [holders, ends, ..] = lock else {
        unreachable!("a lock has more keys than that")
    };
    let command = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command
    };
    let nothing = "return 1";
    let channel = keys::channel(&ServiceId::new());
    vec![
        ("time", command(&["TIME"])),
        ("scan", command(&["SCAN", "0", "COUNT", "1"])),
        ("script|load", command(&["SCRIPT", "LOAD", nothing])),
        (
            "evalsha",
            command(&["EVALSHA", SHA_OF_NOTHING, "1", record]),
        ),
        ("get", command(&["GET", record])),
        ("get", command(&["GET", response])),
        (
            "hset",
            command(&["HSET", holders, "field", "value", "more"]),
        ),
        ("hget", command(&["HGET", holders, "field"])),
        ("hgetall", command(&["HGETALL", holders])),
        ("hlen", command(&["HLEN", holders])),
        ("hscan", command(&["HSCAN", holders, "0"])),
        ("hdel", command(&["HDEL", holders, "field"])),
        ("zadd", command(&["ZADD", ends, "no number", "member"])),
        ("zcount", command(&["ZCOUNT", ends, "-inf", "+inf"])),
        ("zmscore", command(&["ZMSCORE", ends, "member"])),
        ("zrange", command(&["ZRANGE", ends, "0", "0"])),
        ("zrangebyscore", command(&["ZRANGEBYSCORE", ends, "0", "1"])),
        ("zrevrange", command(&["ZREVRANGE", ends, "0", "0"])),
        (
            "zrevrangebyscore",
            command(&["ZREVRANGEBYSCORE", ends, "1", "0"]),
        ),
        ("zscore", command(&["ZSCORE", ends, "member"])),
        ("ping", command(&["PING"])),
        ("publish", command(&["PUBLISH", &channel, "nothing"])),
        ("zrem", command(&["ZREM", ends, "member"])),
        // In the past, which removes it.
        ("pexpireat", command(&["PEXPIREAT", holders, "1"])),
        ("pexpireat", command(&["PEXPIREAT", ends, "1"])),
    ]
}

impl Asked {
    /// Whether the user may listen to its own channel, which takes a connection for that alone.
    async fn may_subscribe(&self) -> Option<Missing> {
        let subscribing = async {
            let mut connection = self.client.get_async_pubsub().await?;
            connection.subscribe(keys::channel(&ServiceId::new())).await
        };
        match tokio::time::timeout(self.timeout, subscribing).await {
            Ok(Err(error)) => refused("subscribe", &error),
            _ => None,
        }
    }
}

/// Of `return 1`, which the command before loaded; where it was not, NOSCRIPT says that it may be called.
const SHA_OF_NOTHING: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// What the user has no right to; nothing where the command is done, or fails for another reason.
async fn try_it(asked: &mut Asked, name: &str, command: &Cmd) -> Option<Missing> {
    match asked.ask::<redis::Value>(command).await {
        Err(Trouble::Error(error)) => refused(name, &error),
        _ => None,
    }
}

/// What right an error says is missing.
fn refused(name: &str, error: &RedisError) -> Option<Missing> {
    if error.code() != Some("NOPERM") {
        return None;
    }
    // "… to access a key", "… one of the keys …", "… one of the channels …"; the other is "… to run the 'get' command".
    let detail = error.detail().unwrap_or("");
    Some(if detail.contains("to run the") {
        Missing::Command(name.to_owned())
    } else if detail.contains("channel") {
        Missing::Channels(keys::CHANNEL)
    } else if detail.contains("key") {
        Missing::Keys(keys::START)
    } else {
        Missing::Command(name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    fn called_in(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("the folder is in the repo") {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                called_in(&path, found);
                continue;
            }
            let script = fs::read_to_string(path).expect("a script");
            for call in script.split("call('").skip(1) {
                let (name, _) = call.split_once('\'').expect("a name ends");
                found.insert(name.to_lowercase());
            }
        }
    }

    #[test]
    fn every_command_that_a_script_calls_is_tried() {
        let mut called = BTreeSet::new();
        called_in(
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")),
            &mut called,
        );
        assert!(called.contains("zadd"), "{called:?}");
        let tried = commands(&keys::claim(&scratch_claim()), &keys::lock(&scratch_lock()));
        let tried = tried.into_iter().map(|(name, _)| name.to_owned());
        let tried: BTreeSet<_> = tried.chain(["set", "unlink"].map(str::to_owned)).collect();
        let forgotten: Vec<_> = called.difference(&tried).collect();
        assert!(forgotten.is_empty(), "{forgotten:?}");
    }
}
