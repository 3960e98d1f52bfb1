//! `claimlock once` when something ends that should not: the program, the claim, the service.

use crate::support::answers::claimed;
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::requests::claim;
use crate::support::shell::{Desk, Ran, Shell, is_gone};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::fs;
use std::time::Duration;

/// Says who it is and waits to be let go.
const WAITS: &str = "echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done; echo done";

async fn command_of(shell: &Shell) -> Pid {
    let pid = shell.written("pid").await;
    Pid::from_raw(pid.trim().parse().expect("a process"))
}

#[tokio::test]
async fn a_claim_outlives_its_lease_for_as_long_as_the_command_runs() {
    let desk = Desk::start().await;
    let going = desk.shell.start("once job --lease 1s -- sh -c", &[WAITS]);
    command_of(&desk.shell).await;
    // More than two leases, each long enough for a busy machine to renew it in time.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(desk.shell.run("once job -- sh -c", &[WAITS]).await.code, 75);
    desk.shell.touch("go");
    assert_eq!(going.ends().await, Ran::printing(0, "done\n"));
    let again = desk.shell.run("once job -- sh -c", &[WAITS]).await;
    assert_eq!(again, Ran::printing(0, "done\n"));
}

#[tokio::test]
async fn a_killed_run_takes_its_command_with_it_and_is_taken_over_after_its_lease() {
    let desk = Desk::start().await;
    let going = desk.shell.start(
        "once job --lease 300ms --ignore-arguments -- sh -c",
        &[WAITS],
    );
    let command = command_of(&desk.shell).await;
    going.signal(Signal::SIGKILL);
    is_gone(command).await;
    let told = ["echo $CLAIMLOCK_ATTEMPT $CLAIMLOCK_TAKEN_OVER"];
    let taken_over = desk
        .shell
        .run("once job --wait 20s --ignore-arguments -- sh -c", &told)
        .await;
    assert_eq!(taken_over, Ran::printing(0, "2 1\n"));
}

#[tokio::test]
async fn a_killed_run_that_must_not_be_repeated_on_a_guess_is_uncertain_after_its_lease() {
    let desk = Desk::start().await;
    let line = "once payout --uncertain --lease 200ms -- sh -c";
    let going = desk.shell.start(line, &[WAITS]);
    command_of(&desk.shell).await;
    going.signal(Signal::SIGKILL);
    let code = eventually("the lease to end", async || {
        let ran = desk.shell.run(line, &[WAITS]).await;
        (ran.code != 75).then_some(ran.code)
    });
    assert_eq!(code.await, 79);
}

#[tokio::test]
async fn a_run_that_was_paused_past_its_lease_and_taken_over_ends_its_command() {
    let desk = Desk::start().await;
    let going = desk
        .shell
        .start("once job --lease 200ms -- sh -c", &[WAITS]);
    let command = command_of(&desk.shell).await;
    going.signal(Signal::SIGSTOP);
    let mut other = desk.service.coordination().await;
    let mut request = claim("job", "other");
    request.operation = "sh".to_owned();
    let argv: Vec<u8> = ["sh", "-c", WAITS]
        .map(|argument| [argument.as_bytes(), b"\0"].concat())
        .concat();
    request.request = Some(claimlock::rpc::proto::claim_request::Request::Body(
        argv.into(),
    ));
    let taken_over = eventually("the lease to end", async || {
        let answer = other.claim(request.clone()).await.ok()?.into_inner();
        match answer.outcome? {
            claimlock::rpc::proto::claim_response::Outcome::Claimed(claimed) => Some(claimed),
            _ => None,
        }
    });
    assert!(taken_over.await.taken_over);
    going.signal(Signal::SIGCONT);
    let ran = going.ends().await;
    assert_eq!((ran.code, ran.stdout.as_str()), (76, ""), "{ran:?}");
    is_gone(command).await;
    // The one that took it over has it still.
    assert_eq!(desk.shell.run("once job -- sh -c", &[WAITS]).await.code, 75);
}

#[tokio::test]
async fn a_service_that_is_away_for_longer_than_the_lease_does_not_end_the_command() {
    let desk = Desk::start().await;
    let proxy = Proxy::start(Upstream::Tcp(desk.service.grpc));
    let shell = Shell::new(proxy.addr());
    let going = shell.start("once job --lease 300ms -- sh -c", &[WAITS]);
    command_of(&shell).await;
    proxy.set(Mode::Cut).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    proxy.set(Mode::Pass).await;
    shell.touch("go");
    assert_eq!(going.ends().await, Ran::printing(0, "done\n"));
    assert_eq!(
        shell.run("once job -- sh -c", &[WAITS]).await,
        Ran::printing(0, "done\n")
    );
}

#[tokio::test]
async fn a_result_whose_storing_is_not_answered_is_stored_once_the_service_is_back() {
    let desk = Desk::start().await;
    let proxy = Proxy::start(Upstream::Tcp(desk.service.grpc));
    let shell = Shell::new(proxy.addr());
    let going = shell.start("once job -- sh -c", &[WAITS]);
    command_of(&shell).await;
    let since = proxy.passed();
    proxy.set(Mode::SwallowReplies).await;
    shell.touch("go");
    eventually("the completion to be on its way", async || {
        proxy
            .has_passed(b"vnd.claimlock.command-output", since)
            .then_some(())
    })
    .await;
    proxy.set(Mode::Cut).await;
    proxy.set(Mode::Pass).await;
    assert_eq!(going.ends().await, Ran::printing(0, "done\n"));
    assert_eq!(
        shell.run("once job -- sh -c", &[WAITS]).await,
        Ran::printing(0, "done\n")
    );
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_is_told_apart_and_not_run_again_at_once() {
    let desk = Desk::start().await;
    let proxy = Proxy::start(Upstream::Tcp(desk.service.grpc));
    let shell = Shell::new(proxy.addr());
    let going = shell.start("once job --call-timeout 500ms -- sh -c", &[WAITS]);
    command_of(&shell).await;
    proxy.set(Mode::Cut).await;
    shell.touch("go");
    let ran = going.ends().await;
    assert_eq!((ran.code, ran.stdout.as_str()), (74, "done\n"), "{ran:?}");
    assert!(ran.stderr.contains("its result is not stored"), "{ran:?}");
    proxy.set(Mode::Pass).await;
    assert_eq!(shell.run("once job -- sh -c", &[WAITS]).await.code, 75);
}

#[tokio::test]
async fn a_command_is_not_run_where_the_service_cannot_be_asked() {
    let desk = Desk::start().await;
    let proxy = Proxy::start(Upstream::Tcp(desk.service.grpc));
    let shell = Shell::new(proxy.addr());
    proxy.set(Mode::Cut).await;
    let ran = shell
        .run("once job --call-timeout 300ms -- touch", &["ran"])
        .await;
    assert_eq!((ran.code, ran.stdout.as_str()), (69, ""), "{ran:?}");
    assert!(ran.stderr.contains("onnection refused"), "{ran:?}");
    assert!(!fs::exists(shell.path("ran")).expect("a path"));

    proxy.set(Mode::BlackHole).await;
    let ran = shell
        .run("lock job --call-timeout 300ms -- touch", &["ran"])
        .await;
    assert_eq!((ran.code, ran.stdout.as_str()), (69, ""), "{ran:?}");
    assert!(!fs::exists(shell.path("ran")).expect("a path"));
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_asked_for_again_and_is_the_same() {
    let desk = Desk::start().await;
    let proxy = Proxy::start(Upstream::Tcp(desk.service.grpc));
    let shell = Shell::new(proxy.addr());
    proxy.set(Mode::SwallowReplies).await;
    let going = shell.start(
        "once job -- sh -c",
        &["echo $CLAIMLOCK_ATTEMPT $CLAIMLOCK_TAKEN_OVER"],
    );
    let mut admin = desk.service.admin().await;
    eventually("the claim to be granted", async || {
        let request = claimlock::rpc::proto::GetClaimRequest {
            key: "job".to_owned(),
            ..Default::default()
        };
        admin.get_claim(request).await.ok()?.into_inner().claim
    })
    .await;
    proxy.set(Mode::Cut).await;
    proxy.set(Mode::Pass).await;
    let ran = going.ends().await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    // The service took the unheard grant back, or was asked again before it did.
    assert!(["1 0\n", "2 0\n"].contains(&ran.stdout.as_str()), "{ran:?}");
}

#[tokio::test]
async fn whoever_holds_a_claim_through_another_client_is_not_run_over() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    claimed(client.claim(claim("job", "a")).await);
    let line = "once job --ignore-arguments --operation";
    let ran = desk
        .shell
        .run(line, &["POST /v1/charges", "--", "touch", "ran"])
        .await;
    assert_eq!(ran.code, 75);
    assert_eq!(
        ran.stderr,
        "claimlock: job is running elsewhere (holder a)\n"
    );
    assert!(!desk.shell.exists("ran"));
}

#[tokio::test]
async fn a_grant_whose_answer_never_came_is_given_back_before_the_program_ends() {
    let desk = Desk::start().await;
    let proxy = Proxy::start(Upstream::Tcp(desk.service.grpc));
    let away = Shell::new(proxy.addr());
    proxy.set(Mode::SwallowReplies).await;
    for subcommand in ["once", "lock"] {
        let line = format!("{subcommand} job --lease 1h --call-timeout 500ms -- touch ran");
        assert_eq!(away.run(&line, &[]).await.code, 69);
        assert!(!away.exists("ran"));
        // What was sent last may still be under way to the service.
        eventually("the key and the lock to be free", async || {
            let line = format!("{subcommand} job -- touch ran");
            (desk.shell.run(&line, &[]).await.code == 0).then_some(())
        })
        .await;
    }
}
