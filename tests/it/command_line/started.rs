//! What the command that `once` and `lock` run is started with, and what it takes to start it.

use crate::support::shell::{Desk, Ran, run};
use std::process::Stdio;

#[tokio::test]
async fn a_command_is_run_where_no_temporary_file_can_be_made() {
    let desk = Desk::start().await;
    for subcommand in ["once", "lock"] {
        let mut command = desk
            .shell
            .command(&format!("{subcommand} job -- echo done"), &[]);
        command.env("TMPDIR", "/nonexistent");
        assert_eq!(run(command).await, Ran::printing(0, "done\n"));
    }
}

#[tokio::test]
async fn a_command_inherits_no_file_but_the_standard_ones() {
    let desk = Desk::start().await;
    for subcommand in ["once", "lock"] {
        let script = ["for fd in /proc/self/fd/*; do [ -e $fd ] && echo ${fd##*/}; done; :"];
        let line = format!("{subcommand} job -- sh -c");
        // What the test itself has left open is no matter: compare with a command that is not run by the program.
        let mut bare = tokio::process::Command::new("sh");
        bare.args(["-c", script[0]]).stdin(Stdio::null());
        let bare = run(bare).await;
        assert!(bare.stdout.contains("0\n1\n"), "{bare:?}");
        assert_eq!(desk.shell.run(&line, &script).await, bare, "{subcommand}");
    }
}

#[tokio::test]
async fn a_command_that_was_run_is_not_taken_for_one_that_was_not_where_ends_of_children_are_ignored()
 {
    let desk = Desk::start().await;
    let program = env!("CARGO_BIN_EXE_claimlock");
    let ignoring = |line: &str| {
        let like = desk.shell.command("", &[]);
        let mut command = tokio::process::Command::new("env");
        command
            .arg("--ignore-signal=CHLD")
            .arg(program)
            .args(line.split_whitespace())
            .envs(like.as_std().get_envs().filter_map(|(n, v)| Some((n, v?))))
            .stdin(Stdio::null());
        command
    };
    for (subcommand, flags) in [("once", "--ignore-arguments"), ("lock", "")] {
        let mut command = ignoring(&format!("{subcommand} job {flags} -- sh -c"));
        command.arg("echo ran; exit 3");
        assert_eq!(run(command).await, Ran::printing(3, "ran\n"));
    }
    // It may have had an effect.
    let told = ["echo $CLAIMLOCK_ATTEMPT $CLAIMLOCK_TAKEN_OVER"];
    let again = desk
        .shell
        .run("once job --ignore-arguments -- sh -c", &told);
    assert_eq!(again.await, Ran::printing(0, "2 1\n"));
}
