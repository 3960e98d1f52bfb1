//! What is told of a server of the service's own.

use std::time::Duration;

use super::{Check, store};
use crate::config::Settings;
use crate::store::doctor::{examine, is_new_enough};
use crate::store::embedded::look::{FolderSeen, Found, Program, look as look_at};

const CHECK: &str = "store";
const PROGRAM: &str = "program";
const FOLDER: &str = "data folder";

pub(super) async fn look(settings: &Settings, timeout: Duration) -> Vec<Check> {
    let data_dir = match settings.data_folder() {
        Ok(data_dir) => data_dir,
        Err(error) => {
            return vec![Check::fail(
                FOLDER,
                error.to_string(),
                "give a folder with --data-dir, or a server with --redis-url",
            )];
        }
    };
    let shown = data_dir.display().to_string();
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    match look_at(&data_dir, &search_path, timeout).await {
        Ok(Found::Running(running)) => {
            let place = format!("the service's own server in {shown}");
            match examine(&running.url(), timeout).await {
                Ok(found) => store::checks(&found, &place),
                Err(why) => vec![store::unreachable(&why, &place, timeout)],
            }
        }
        Ok(Found::NotRunning { program, folder }) => {
            let none = Check::warn(
                CHECK,
                format!("no server runs in {shown}; claimlock serve starts one"),
                "start claimlock serve, or name the Redis that it uses with --redis-url",
            );
            vec![
                none,
                of_program(program.as_ref()),
                of_folder(folder, &shown),
            ]
        }
        Err(error) => vec![Check::fail(
            FOLDER,
            error.to_string(),
            "name another folder with --data-dir",
        )],
    }
}

fn of_program(program: Option<&Program>) -> Check {
    const INSTALL: &str =
        "apt-get install redis-server (macOS: brew install redis, Fedora: dnf install valkey)";
    let Some(Program { path, version }) = program else {
        return Check::fail(
            PROGRAM,
            "neither valkey-server nor redis-server is on PATH",
            INSTALL,
        );
    };
    let path = path.display();
    match version {
        Ok((product, version)) => match is_new_enough(product, version) {
            Some(true) => Check::ok(PROGRAM, format!("{path} is {product} {version}")),
            Some(false) => Check::fail(
                PROGRAM,
                format!("{path} is {product} {version}: the scripts need Redis 7.0, or Valkey"),
                format!("put a newer one before it on PATH: {INSTALL}"),
            ),
            None => odd(format!("{path} says that it is {product} {version}")),
        },
        Err(problem) => odd(format!("{path}: {problem}")),
    }
}

fn odd(finding: String) -> Check {
    Check::warn(
        PROGRAM,
        finding,
        "make sure that it is Redis 7.0 or newer, or Valkey",
    )
}

fn of_folder(folder: FolderSeen, shown: &str) -> Check {
    match folder {
        FolderSeen::Usable => Check::ok(FOLDER, format!("{shown} can be used")),
        FolderSeen::CanBeMade => {
            Check::ok(FOLDER, format!("{shown} is not there yet, and can be made"))
        }
        FolderSeen::OpenToOthers => Check::warn(
            FOLDER,
            format!("other users can read {shown}, which holds keys, holders and responses"),
            format!("chmod 700 {shown}"),
        ),
        FolderSeen::CannotBeMade => Check::fail(
            FOLDER,
            format!("{shown} is not there, and this user cannot make it"),
            "make it for this user, or name another one with --data-dir",
        ),
        FolderSeen::NotWritable => Check::fail(
            FOLDER,
            format!("this user cannot write in {shown}"),
            format!(
                "chown it to the user of the service (chown -R USER {shown}), or name another one with --data-dir"
            ),
        ),
        FolderSeen::NoFolder => Check::fail(
            FOLDER,
            format!("{shown} is no folder"),
            "name another one with --data-dir",
        ),
    }
}
