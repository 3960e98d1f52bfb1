//! What `claimlock once` does with output that is not taken, or that does not end.

use crate::support::shell::{Desk, Ran, is_gone, run};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

#[tokio::test]
async fn what_a_command_left_behind_is_not_waited_for_even_if_it_prints_for_ever() {
    let desk = Desk::start().await;
    let too_much =
        "claimlock: the command printed more than 1048576 bytes: stored without its output\n";
    for (key, printing, warning) in [
        ("slowly", "while :; do echo more; sleep 0.05; done", ""),
        ("quickly", "exec yes more", too_much),
    ] {
        let script = format!("sh -c '{printing}' & echo $! > left-{key} ");
        let line = format!("once {key} -- sh -c");
        let mut command =
            desk.shell
                .through("sh", &["-c", "exec \"$0\" \"$@\" > /dev/null"], &line);
        command.arg(script);
        let ran = run(command).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (0, warning), "{key}");
        let left = desk.shell.written(&format!("left-{key}")).await;
        let left = Pid::from_raw(left.trim().parse().expect("a process"));
        // Nobody reads what it prints any more, which ends it by itself.
        is_gone(left).await;
    }
}

#[tokio::test]
async fn a_signal_ends_a_run_whose_output_nobody_takes_and_its_result_is_stored() {
    let desk = Desk::start().await;
    // More than the pipe to the test holds, and no more than that to the program does.
    let script = ["head -c 120000 /dev/zero | tr '\\0' x; echo $$ > pid"];
    let mut going = desk.shell.start("once job -- sh -c", &script);
    let unread = going.take_stdout();
    let command = desk.shell.written("pid").await;
    is_gone(Pid::from_raw(command.trim().parse().expect("a process"))).await;
    // What waited for its end has seen it: the signal has nobody to go to.
    going.signal(Signal::SIGTERM);
    let ran = going.ends().await;
    assert_eq!(ran.code, 0, "{ran:?}");
    drop(unread);
    let again = desk.shell.run("once job -- sh -c", &script).await;
    assert_eq!((again.code, again.stdout.len()), (0, 120_000));
}

#[tokio::test]
async fn output_that_cannot_be_passed_on_is_told_and_stored() {
    let desk = Desk::start().await;
    let full = ["-c", "exec \"$0\" \"$@\" > /dev/full"];
    let command = desk.shell.through("sh", &full, "once job -- echo printed");
    let ran = run(command).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
    let again = desk.shell.run("once job -- echo printed", &[]).await;
    assert_eq!(again.stdout, "printed\n");
}

#[tokio::test]
async fn a_retention_of_the_output_that_the_service_refuses_does_not_cost_a_result() {
    let desk = Desk::start().await;
    let none = "once job --output-retention 0s -- touch ran";
    let ran = desk.shell.run(none, &[]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("--no-output"), "{ran:?}");
    assert!(!desk.shell.exists("ran"));

    // What is longer than the key's own is as long as the key's.
    let long = "once job --output-retention 1000000d -- echo done";
    for _ in 0..2 {
        assert_eq!(desk.shell.run(long, &[]).await, Ran::printing(0, "done\n"));
    }
}
