//! The Lua scripts: one atomic transition per file, put together with what they share.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script};
use std::sync::LazyLock;

/// What a call gets that is sent again because its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// What the first one got.
    Alike,
    /// Something else, from which nobody can tell what came of the first.
    Otherwise,
}

/// A script, with its text to load it by.
pub(super) struct Lua {
    /// Its place among all scripts.
    pub(super) number: usize,
    text: String,
    script: Script,
    pub(super) repeat: Repeat,
}

impl Lua {
    /// A shebang has to stay the very first line, so the shared parts go behind it.
    fn assemble(which: Which, shared: &[&str], body: &str, repeat: Repeat) -> Self {
        let (shebang, body) = match body.split_once('\n') {
            Some((first, rest)) if first.starts_with("#!") => (Some(first), rest),
            _ => (None, body),
        };
        let parts: Vec<&str> = shebang
            .into_iter()
            .chain(shared.iter().copied())
            .chain([body])
            .collect();
        let text = parts.join("\n");
        let script = Script::new(&text);
        Self {
            number: which as usize,
            text,
            script,
            repeat,
        }
    }

    /// A call of the script by its SHA, which loads it where Redis does not know it and repeats.
    pub(super) fn call(&self) -> redis::ScriptInvocation<'_> {
        self.script.prepare_invoke()
    }
}

/// What stands in front of each script of a family.
macro_rules! shared {
    (claim) => {
        &[
            include_str!("../../lua/shared/base.lua"),
            include_str!("../../lua/shared/claim.lua"),
        ]
    };
    (lock) => {
        &[
            include_str!("../../lua/shared/base.lua"),
            include_str!("../../lua/shared/lock.lua"),
            include_str!("../../lua/shared/queue.lua"),
        ]
    };
}

macro_rules! scripts {
    ($($name:ident: $family:ident / $file:literal, $repeat:ident;)*) => {
        #[derive(Clone, Copy)]
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "named as the statics are")]
        enum Which { $($name),* }

        /// The names of all scripts, each at its number.
        pub(super) const NAMES: &[&str] = &[$($file),*];

        $(pub(super) static $name: LazyLock<Lua> = LazyLock::new(|| {
            Lua::assemble(
                Which::$name,
                shared!($family),
                include_str!(concat!("../../lua/", $file, ".lua")),
                Repeat::$repeat,
            )
        });)*

        fn all() -> Vec<&'static Lua> {
            vec![$(&$name),*]
        }
    };
}

scripts! {
    CLAIM: claim / "claim", Alike;
    WATCH_CLAIM: claim / "watch_claim", Alike;
    RENEW_CLAIM: claim / "renew_claim", Alike;
    DETACH_CLAIM: claim / "detach_claim", Alike;
    END_CLAIM: claim / "end_claim", Alike;
    LOOK_AT_CLAIM: claim / "look_at_claim", Alike;
    COMPLETE: claim / "complete", Alike;
    ABANDON: claim / "abandon", Alike;
    UNDO_CLAIM: claim / "undo_claim", Alike;
    GET_CLAIM: claim / "get_claim", Alike;
    RESOLVE_CLAIM: claim / "resolve_claim", Otherwise;
    ACQUIRE_LOCK: lock / "acquire_lock", Alike;
    KEEP_WAITING: lock / "keep_waiting", Alike;
    RENEW_LOCK: lock / "renew_lock", Alike;
    DETACH_LOCK: lock / "detach_lock", Alike;
    END_LOCK: lock / "end_lock", Alike;
    LOOK_AT_LOCK: lock / "look_at_lock", Alike;
    RELEASE_LOCK: lock / "release_lock", Alike;
    UNDO_LOCK: lock / "undo_lock", Alike;
    GET_LOCK: lock / "get_lock", Alike;
    FORCE_RELEASE_LOCK: lock / "force_release_lock", Otherwise;
}

/// Loads every script, in one write.
pub(super) async fn load_all(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let mut pipeline = redis::pipe();
    for script in all() {
        pipeline
            .cmd("SCRIPT")
            .arg("LOAD")
            .arg(&script.text)
            .ignore();
    }
    pipeline.query_async(connection).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_in_the_folder_is_a_script_here() {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua"))
            .expect("the folder is in the repo")
            .filter_map(Result::ok)
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "lua"))
            .count();
        assert_eq!(files, all().len());
    }
}
