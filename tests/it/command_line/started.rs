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
