//! What the command that `once` and `lock` run is started with, and what it takes to start it.

use crate::support::shell::{Desk, Ran, Shell, run};
use std::process::Stdio;
use tokio::process::Command;

/// The program as it is started by something that has it ignore signals.
fn ignoring(signals: &str, shell: &Shell, line: &str) -> Command {
    shell.through("env", &[&format!("--ignore-signal={signals}")], line)
}

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
        let mut bare = Command::new("sh");
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
    for (subcommand, flags) in [("once", "--ignore-arguments"), ("lock", "")] {
        let line = format!("{subcommand} job {flags} -- sh -c");
        let mut command = ignoring("CHLD", &desk.shell, &line);
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

#[tokio::test]
async fn a_command_ignores_what_nohup_had_the_program_ignore() {
    let desk = Desk::start().await;
    for subcommand in ["once", "lock"] {
        let line = format!("{subcommand} job -- sh -c");
        let mut command = ignoring("HUP,INT", &desk.shell, &line);
        command.arg("kill -HUP $$; kill -HUP $PPID; kill -INT $$; echo done");
        assert_eq!(run(command).await, Ran::printing(0, "done\n"));
    }
}
