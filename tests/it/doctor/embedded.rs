//! A service with a server of its own.

use super::{Healthy, diagnose_with};
use crate::support::data_folder::DataFolder;
use crate::support::program::Program;
use crate::support::shell::{Shell, run};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

fn folder_flag(folder: &DataFolder) -> [&str; 2] {
    [
        "--data-dir",
        folder.path.to_str().expect("a test's path is UTF-8"),
    ]
}

#[tokio::test]
async fn the_server_that_the_service_runs_is_looked_at() {
    for name in ["data", &"so/long/".repeat(20)] {
        let folder = DataFolder::below(name);
        let program = Program::serve_embedded(&folder.path).await;
        program.is_ready().await;
        let found = diagnose_with(&Shell::new(program.grpc), &folder_flag(&folder)).await;
        found.says("store", "ok", "the service's own server in", "");
        found.says("scripts", "ok", "all load", "");
        assert_eq!(found.faults(), []);
    }
}

#[tokio::test]
async fn where_no_server_runs_it_is_said_whether_one_could_and_nothing_is_made() {
    let pair = Healthy::start().await;
    let folder = DataFolder::new();
    let found = diagnose_with(&pair.shell, &folder_flag(&folder)).await;
    found.says(
        "store",
        "warn",
        "no server runs in",
        "start claimlock serve",
    );
    found.says("program", "ok", "-server is ", "");
    found.says("data folder", "ok", "can be made", "");
    assert_eq!(found.faults(), [("store", "warn")]);
    assert!(!folder.path.exists(), "{:?}", folder.path);

    fs::create_dir(&folder.path).expect("it can be made");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&folder.path, open).expect("it is ours");
    let found = diagnose_with(&pair.shell, &folder_flag(&folder)).await;
    found.says("data folder", "warn", "other users can read", "chmod 700");
    assert_eq!(fs::read_dir(&folder.path).expect("a folder").count(), 0);

    let file = pair.shell.path("file");
    fs::write(&file, "").expect("it can be written");
    let file = file.to_str().expect("a test's path is UTF-8");
    let found = diagnose_with(&pair.shell, &["--data-dir", file]).await;
    found.says("data folder", "fail", "is no folder", "--data-dir");
}

#[tokio::test]
async fn a_machine_without_a_server_to_start_or_with_an_old_one_is_a_fault() {
    let pair = Healthy::start().await;
    let folder = DataFolder::new();
    let programs = pair.shell.path("bin");
    fs::create_dir(&programs).expect("it can be made");
    let diagnose = async || {
        let mut command = pair.shell.command("doctor -o json", &folder_flag(&folder));
        command.env("PATH", &programs);
        run(command).await
    };
    let none = diagnose().await;
    assert_eq!(none.code, 83, "{none:?}");
    assert_eq!(
        none.json()["checks"][1]["advice"]
            .as_str()
            .map(|advice| &advice[..7]),
        Some("apt-get")
    );

    let server = programs.join("redis-server");
    for (says, code, finding) in [
        (
            "Redis server v=6.2.14 sha=00000000:0",
            83,
            "redis 6.2.14: the scripts need Redis 7.0",
        ),
        ("Redis server v=7.4.1 sha=00000000:0", 0, "redis 7.4.1"),
        (
            "something",
            0,
            "it does not say its version, but \"something\"",
        ),
    ] {
        fs::write(&server, format!("#!/bin/sh\necho '{says}'\n")).expect("it can be written");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&server, executable).expect("it is ours");
        let ran = diagnose().await;
        assert_eq!(ran.code, code, "{ran:?}");
        let said = ran.json()["checks"][1]["finding"]
            .to_string()
            .replace("\\\"", "\"");
        assert!(said.contains(finding), "{ran:?}");
    }
}
