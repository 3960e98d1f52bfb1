//! The embedded default, as the program has it: what was claimed survives whatever is killed.

use crate::support::answers::{claimed, completed, replay};
use crate::support::data_folder::{DataFolder, is_gone, server_pid_at};
use crate::support::program::{Program, claimlock, path};
use crate::support::requests::{claim, complete, response};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Output;
use tempfile::TempDir;

async fn start(folder: &DataFolder) -> Program {
    let program = Program::serve_embedded(&folder.path).await;
    program.is_ready().await;
    program
}

async fn server_of(folder: &DataFolder) -> Pid {
    server_pid_at(&format!("unix://{}", folder.socket().display())).await
}

async fn do_the_work(program: &Program, key: &str) {
    let mut caller = program.coordination().await;
    claimed(caller.claim(claim(key, "a")).await);
    completed(caller.complete(complete(key, "a", b"done")).await);
}

async fn replays(program: &Program, key: &str) {
    let replayed = replay(program.coordination().await.claim(claim(key, "b")).await);
    assert_eq!(replayed.response, Some(response(b"done")));
}

#[tokio::test]
async fn claims_survive_the_kill_of_the_program_and_the_server_is_taken_over() {
    let folder = DataFolder::new();
    let mut program = start(&folder).await;
    do_the_work(&program, "k").await;
    let server = server_of(&folder).await;

    program.signal(Signal::SIGKILL);
    program.ends().await;
    let mut program = start(&folder).await;

    assert_eq!(server_of(&folder).await, server);
    replays(&program, "k").await;
    program.signal(Signal::SIGTERM);
    assert_eq!(program.ends().await.code(), Some(0));
    is_gone(server).await;
}

#[tokio::test]
async fn claims_survive_the_kill_of_both_processes() {
    let folder = DataFolder::new();
    let mut program = start(&folder).await;
    do_the_work(&program, "k").await;
    let server = server_of(&folder).await;

    program.signal(Signal::SIGKILL);
    kill(server, Signal::SIGKILL).expect("our own server takes signals");
    program.ends().await;
    is_gone(server).await;

    replays(&start(&folder).await, "k").await;
}

#[tokio::test]
async fn calls_go_on_after_the_server_alone_was_killed() {
    let folder = DataFolder::new();
    let program = start(&folder).await;
    do_the_work(&program, "k").await;

    let server = server_of(&folder).await;
    kill(server, Signal::SIGKILL).expect("our own server takes signals");
    is_gone(server).await;

    program.is_ready().await;
    replays(&program, "k").await;
}

#[tokio::test]
async fn a_folder_that_another_program_uses_is_refused() {
    let folder = DataFolder::new();
    let _first = start(&folder).await;

    let second = serve_to_its_end(&folder, &path()).await;

    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).expect("it prints UTF-8");
    assert!(
        said.contains("is used by another claimlock") && said.contains("--data-dir"),
        "{said}"
    );
}

#[tokio::test]
async fn without_a_server_to_start_one_sentence_says_what_to_install() {
    let folder = DataFolder::new();

    let output = serve_to_its_end(&folder, "/nowhere").await;

    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).expect("it prints UTF-8");
    let line = said.lines().last().expect("it says why");
    assert!(line.contains("apt-get install redis-server"), "{said}");
}

/// Whoever waits for the line with the addresses takes the service to be there.
#[tokio::test]
async fn a_start_that_fails_prints_no_address() {
    let folder = DataFolder::new();
    let _first = start(&folder).await;
    let free = DataFolder::new();
    for (folder, path) in [(&folder, path().as_str()), (&free, "/nowhere")] {
        let output = serve_to_its_end(folder, path).await;
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
}

async fn serve_to_its_end(folder: &DataFolder, path: &str) -> Output {
    let home = TempDir::new().expect("a temporary folder");
    let command = claimlock(&home)
        .env("PATH", path)
        .args([
            "serve",
            "--grpc-addr",
            "127.0.0.1:0",
            "--http-addr",
            "127.0.0.1:0",
        ])
        .arg("--data-dir")
        .arg(&folder.path)
        .output();
    command.await.expect("the program runs")
}
