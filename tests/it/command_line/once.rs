//! What `claimlock once` runs, stores and replays.

use crate::support::answers::{claimed, replay};
use crate::support::redis::RedisServer;
use crate::support::requests::{claim, complete};
use crate::support::service::Service;
use crate::support::shell::{Desk, Ran, Shell};
use claimlock::config::Settings;
use std::fs;
use tokio::io::{AsyncBufReadExt, BufReader};

/// Each run leaves a line, by which runs are counted.
const COUNTED: &str = "echo run >> runs; ";

fn runs(shell: &Shell) -> usize {
    let lines = fs::read_to_string(shell.path("runs")).unwrap_or_default();
    lines.lines().count()
}

fn counted(script: &str) -> String {
    format!("{COUNTED}{script}")
}

#[tokio::test]
async fn what_a_command_printed_is_replayed_to_the_byte_without_running_it_again() {
    let desk = Desk::start().await;
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    fs::write(desk.shell.path("bytes"), &bytes).expect("the folder can be written to");
    let script = counted("cat bytes; cat bytes bytes >&2");
    for _ in 0..3 {
        let mut command = desk.shell.command("once report -- sh -c", &[&script]);
        let output = command.output().await.expect("the program starts");
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(output.stdout, bytes);
        assert_eq!(output.stderr, [&bytes[..], &bytes].concat());
    }
    assert_eq!(runs(&desk.shell), 1);
    assert_eq!(desk.redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_command_that_failed_runs_again_and_is_told_that_the_first_may_have_had_an_effect() {
    let desk = Desk::start().await;
    let script =
        counted("echo $CLAIMLOCK_ATTEMPT $CLAIMLOCK_TAKEN_OVER; exit $((3 - CLAIMLOCK_ATTEMPT))");
    for (code, told) in [(2, "1 0\n"), (1, "2 1\n"), (0, "3 1\n"), (0, "3 1\n")] {
        let ran = desk.shell.run("once job -- sh -c", &[&script]).await;
        assert_eq!(ran, Ran::printing(code, told));
    }
    assert_eq!(runs(&desk.shell), 3);
}

#[tokio::test]
async fn a_failure_that_is_kept_is_replayed() {
    let desk = Desk::start().await;
    let script = counted("echo declined; exit 7");
    for _ in 0..2 {
        let ran = desk
            .shell
            .run("once job --keep-failure -- sh -c", &[&script])
            .await;
        assert_eq!(ran, Ran::printing(7, "declined\n"));
    }
    assert_eq!(runs(&desk.shell), 1);
}

#[tokio::test]
async fn a_command_that_could_not_be_started_had_no_effect() {
    let desk = Desk::start().await;
    fs::write(desk.shell.path("no-program"), "text").expect("the folder can be written to");
    let not_found = desk.shell.run("once job -- ./missing", &[]).await;
    assert_eq!(not_found.code, 127);
    assert_eq!(
        not_found.stderr,
        "claimlock: ./missing could not be started: No such file or directory\n"
    );
    let not_runnable = desk.shell.run("once job -- ./no-program", &[]).await;
    assert_eq!(not_runnable.code, 126);

    // Neither the arguments nor an effect are left of it.
    let told = ["echo $CLAIMLOCK_ATTEMPT $CLAIMLOCK_TAKEN_OVER"];
    let ran = desk.shell.run("once job -- sh -c", &told).await;
    assert_eq!(ran, Ran::printing(0, "3 0\n"));
}

#[tokio::test]
async fn a_command_that_must_not_run_on_a_guess_does_not_after_a_failure() {
    let desk = Desk::start().await;
    let script = counted("exit 1");
    let first = desk
        .shell
        .run("once payout --uncertain -- sh -c", &[&script])
        .await;
    assert_eq!(first, Ran::printing(1, ""));
    for flags in ["once payout --uncertain -- sh -c", "once payout -- sh -c"] {
        let again = desk.shell.run(flags, &[&script]).await;
        assert_eq!(again.code, 79, "{again:?}");
        assert!(
            again.stderr.contains("claimlock claims resolve"),
            "{again:?}"
        );
    }
    assert_eq!(runs(&desk.shell), 1);
}

#[tokio::test]
async fn other_arguments_under_the_same_key_are_a_mismatch_unless_they_are_ignored() {
    let desk = Desk::start().await;
    let ran = desk.shell.run("once job -- echo a b", &[]).await;
    assert_eq!(ran, Ran::printing(0, "a b\n"));
    for line in [
        "once job -- echo a c",
        "once job -- echo",
        "once job --ignore-arguments -- printf x",
    ] {
        let other = desk.shell.run(line, &[]).await;
        assert_eq!(other.code, 65, "{other:?}");
    }
    let joined = desk.shell.run("once job -- echo", &["a b"]).await;
    assert_eq!(joined.code, 65, "{joined:?}");

    for line in [
        "once loose --ignore-arguments -- echo a",
        "once loose --ignore-arguments -- echo b",
    ] {
        assert_eq!(desk.shell.run(line, &[]).await, Ran::printing(0, "a\n"));
    }
    let scoped = desk
        .shell
        .run("once job --scope other -- echo c", &[])
        .await;
    assert_eq!(scoped, Ran::printing(0, "c\n"));
}

#[tokio::test]
async fn a_second_run_while_the_first_goes_on_is_told_so_or_waits_and_replays() {
    let desk = Desk::start().await;
    let script = counted("echo begun > begun; while [ ! -e go ]; do sleep 0.05; done; echo done");
    let first = desk
        .shell
        .start("once job --holder node-a -- sh -c", &[&script]);
    desk.shell.written("begun").await;

    let second = desk.shell.run("once job -- sh -c", &[&script]).await;
    assert_eq!(second.code, 75);
    assert_eq!(
        second.stderr,
        "claimlock: job is running elsewhere (node-a)\n"
    );
    let other_code = desk.shell.run("once job -E 9 -- sh -c", &[&script]).await;
    assert_eq!(other_code.code, 9);

    let waiting = desk.shell.start("once job --wait 1h -- sh -c", &[&script]);
    desk.shell.touch("go");
    assert_eq!(first.ends().await, Ran::printing(0, "done\n"));
    assert_eq!(waiting.ends().await, Ran::printing(0, "done\n"));
    assert_eq!(runs(&desk.shell), 1);
}

#[tokio::test]
async fn output_over_the_limit_goes_through_and_only_the_exit_code_is_stored() {
    let desk = Desk::start().await;
    let script = counted("head -c 100001 /dev/zero | tr '\\0' x");
    let line = "once job --max-output 100KB -- sh -c";
    let first = desk.shell.run(line, &[&script]).await;
    assert_eq!((first.code, first.stdout.len()), (0, 100_001));
    assert_eq!(
        first.stderr,
        "claimlock: the command printed more than 100000 bytes: stored without its output\n"
    );
    let again = desk.shell.run(line, &[&script]).await;
    assert_eq!((again.code, again.stdout.len()), (0, 0));
    assert!(again.stderr.contains("was not stored"), "{again:?}");
    assert_eq!(runs(&desk.shell), 1);

    // Up to the limit all of it is kept.
    let fits = ["head -c 100000 /dev/zero | tr '\\0' x"];
    for _ in 0..2 {
        let ran = desk
            .shell
            .run("once fits --max-output 100KB -- sh -c", &fits)
            .await;
        assert_eq!(
            (ran.code, ran.stdout.len(), ran.stderr.as_str()),
            (0, 100_000, "")
        );
    }
}

#[tokio::test]
async fn output_that_the_service_takes_not_is_left_out_of_what_is_stored() {
    let redis = RedisServer::start().await;
    let settings = Settings {
        max_response_body: 1000,
        ..Settings::default()
    };
    let service = Service::with(&redis, settings).await;
    let shell = Shell::new(service.grpc);
    let script = counted("head -c 1001 /dev/zero | tr '\\0' x");
    let first = shell.run("once job -- sh -c", &[&script]).await;
    assert_eq!((first.code, first.stdout.len()), (0, 1001));
    assert!(first.stderr.contains("stored without it"), "{first:?}");
    assert_eq!(shell.run("once job -- sh -c", &[&script]).await.code, 0);
    assert_eq!(runs(&shell), 1);
}

#[tokio::test]
async fn what_is_printed_can_be_left_out_or_kept_for_less_time_than_the_key() {
    let desk = Desk::start().await;
    let secret = ["echo secret"];
    let private = "once private --no-output -- sh -c";
    assert_eq!(
        desk.shell.run(private, &secret).await,
        Ran::printing(0, "secret\n")
    );
    let again = desk.shell.run(private, &secret).await;
    assert_eq!((again.code, again.stdout.as_str()), (0, ""));

    let short = "once short --output-retention 1ms -- sh -c";
    assert_eq!(
        desk.shell.run(short, &secret).await,
        Ran::printing(0, "secret\n")
    );
    let again = desk.shell.run(short, &secret).await;
    assert_eq!((again.code, again.stdout.as_str()), (81, ""));
}

#[tokio::test]
async fn output_streams_through_as_it_comes() {
    let desk = Desk::start().await;
    let script = ["echo first; while [ ! -e go ]; do sleep 0.05; done; echo last"];
    let mut going = desk.shell.start("once job -- sh -c", &script);
    let mut lines = BufReader::new(going.take_stdout()).lines();
    let line = lines.next_line().await.expect("it prints UTF-8");
    assert_eq!(line.as_deref(), Some("first"));
    desk.shell.touch("go");
    let line = lines.next_line().await.expect("it prints UTF-8");
    assert_eq!(line.as_deref(), Some("last"));
    assert_eq!(going.ends().await.code, 0);
}

#[tokio::test]
async fn a_reader_that_goes_away_does_not_keep_the_result_from_being_stored() {
    let desk = Desk::start().await;
    let script = counted("while [ ! -e go ]; do sleep 0.05; done; seq 100000");
    let mut going = desk.shell.start("once job -- sh -c", &[&script]);
    drop(going.take_stdout());
    desk.shell.touch("go");
    assert_eq!(going.ends().await.code, 0);
    let again = desk.shell.run("once job -- sh -c", &[&script]).await;
    assert_eq!(again.stdout.lines().count(), 100_000);
    assert_eq!(runs(&desk.shell), 1);
}

#[tokio::test]
async fn a_command_that_leaves_something_behind_in_the_background_is_not_waited_for() {
    let desk = Desk::start().await;
    let script = ["sleep 1000 & echo $! > left; echo done"];
    let ran = desk.shell.run("once job -- sh -c", &script).await;
    assert_eq!(ran, Ran::printing(0, "done\n"));
    let left = desk.shell.written("left").await;
    let left = nix::unistd::Pid::from_raw(left.trim().parse().expect("a process"));
    nix::sys::signal::kill(left, nix::sys::signal::Signal::SIGKILL).expect("it is left alone");
}

#[tokio::test]
async fn a_command_reads_standard_input() {
    use tokio::io::AsyncWriteExt;
    let desk = Desk::start().await;
    let mut command = desk.shell.command("once job -- cat", &[]);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(b"read").await.expect("the command reads");
    drop(stdin);
    let output = child.wait_with_output().await.expect("it ends");
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), &b"read"[..])
    );
}

#[tokio::test]
async fn a_result_that_another_client_stored_is_printed_as_a_success() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    claimed(client.claim(claim("paid", "a")).await);
    let answer = client.complete(complete("paid", "a", b"receipt 7\n")).await;
    answer.expect("the claim is held");
    let line = "once paid --ignore-arguments --operation";
    let ran = desk
        .shell
        .run(line, &["POST /v1/charges", "--", "false"])
        .await;
    assert_eq!(ran, Ran::printing(0, "receipt 7\n"));

    // And the other way round: what once stored is a replay to any client.
    let ran = desk
        .shell
        .run(
            "once listed --ignore-arguments --operation list -- echo 1",
            &[],
        )
        .await;
    assert_eq!(ran, Ran::printing(0, "1\n"));
    let mut request = claim("listed", "b");
    request.operation = "list".to_owned();
    let response = replay(client.claim(request).await)
        .response
        .expect("it is kept");
    assert_eq!((response.status, &response.body[..]), (0, &b"1\n"[..]));
}
