//! A lock that is lost while its command runs.

use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::metrics::on_streams;
use crate::support::requests::acquire;
use crate::support::shell::{Desk, Shell, is_gone};
use claimlock::rpc::proto::acquire_lock_response::Outcome;
use claimlock::rpc::proto::{AcquireLockResponse, ForceReleaseLockRequest};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::time::{Duration, Instant};

const WAITS: &str = "echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done";

async fn command_of(shell: &Shell) -> Pid {
    let pid = shell.written("pid").await;
    Pid::from_raw(pid.trim().parse().expect("a process"))
}

async fn force_release(desk: &Desk, resource: &str) {
    let request = ForceReleaseLockRequest {
        resource: resource.to_owned(),
        reason: "a test".to_owned(),
        ..Default::default()
    };
    let answer = desk.service.admin().await.force_release_lock(request).await;
    let released = answer.expect("the service answers").into_inner();
    assert_eq!(released.released_holders, 1);
}

#[tokio::test]
async fn a_command_whose_lock_an_operator_took_away_is_told_to_end() {
    let desk = Desk::start().await;
    let script = format!("trap 'echo told > told; exit 0' TERM; {WAITS}");
    let going = desk
        .shell
        .start("lock nightly --lease 1s -- sh -c", &[&script]);
    command_of(&desk.shell).await;
    force_release(&desk, "nightly").await;
    let ran = going.ends().await;
    assert_eq!(ran.code, 76, "{ran:?}");
    assert!(ran.stderr.contains("nightly was lost"), "{ran:?}");
    assert!(desk.shell.exists("told"));
}

#[tokio::test]
async fn a_command_that_does_not_end_when_told_is_killed_with_all_that_it_started() {
    let desk = Desk::start().await;
    // Both ignore SIGTERM, and the second outlives the first.
    let script = "trap '' TERM; (echo $$ > unused; sh -c 'echo $$ > grandchild; exec sleep 1000') & \
                  echo $$ > pid; sleep 1000";
    let line = "lock nightly --lease 1s --kill-after 200ms -- sh -c";
    let going = desk.shell.start(line, &[script]);
    let command = command_of(&desk.shell).await;
    let grandchild = desk.shell.written("grandchild").await;
    let grandchild = Pid::from_raw(grandchild.trim().parse().expect("a process"));
    force_release(&desk, "nightly").await;
    assert_eq!(going.ends().await.code, 76);
    is_gone(command).await;
    is_gone(grandchild).await;
}

#[tokio::test]
async fn what_a_command_left_behind_when_it_ended_as_told_is_killed_too() {
    let desk = Desk::start().await;
    let script = "sh -c 'trap \"\" TERM; echo $$ > left; while :; do sleep 0.05; done' & \
                  trap 'exit 0' TERM; echo $$ > pid; wait";
    let line = "lock nightly --lease 1s --kill-after 500ms -- sh -c";
    let going = desk.shell.start(line, &[script]);
    let command = command_of(&desk.shell).await;
    let left = desk.shell.written("left").await;
    force_release(&desk, "nightly").await;
    assert_eq!(going.ends().await.code, 76);
    is_gone(command).await;
    is_gone(Pid::from_raw(left.trim().parse().expect("a process"))).await;
}

#[tokio::test]
async fn a_command_is_ended_when_the_lease_ran_out_unheard_and_nobody_gets_in_before() {
    let desk = Desk::start().await;
    nobody_gets_in_before_the_command_ended(&desk, "--lease 500ms", 0).await;
}

#[tokio::test]
async fn a_command_is_ended_when_its_connection_broke_that_the_lock_ends_with_and_nobody_gets_in_before()
 {
    let desk = Desk::start().await;
    nobody_gets_in_before_the_command_ended(&desk, "--lease 1h --end-on-close", 1).await;
}

/// So many locks are to be on streams when the service cannot be heard any more.
async fn nobody_gets_in_before_the_command_ended(desk: &Desk, flags: &str, on_stream: usize) {
    let proxy = Proxy::start(Upstream::Tcp(desk.service.grpc));
    let shell = Shell::new(proxy.addr());
    // It takes a second to end.
    let script = format!("trap 'sleep 1; echo ended > ended; exit' TERM; {WAITS}");
    let going = shell.start(&format!("lock nightly {flags} -- sh -c"), &[&script]);
    command_of(&shell).await;
    if on_stream > 0 {
        on_streams(&desk.service, on_stream, 0).await;
    }
    proxy.set(Mode::BlackHole).await;
    let mut other = desk.service.coordination().await;
    let mut request = acquire("nightly", "other");
    request.lock_token.clear();
    eventually("the lock to be free for another", async || {
        let AcquireLockResponse { outcome } =
            other.acquire_lock(request.clone()).await.ok()?.into_inner();
        matches!(outcome, Some(Outcome::Acquired(_))).then_some(())
    })
    .await;
    assert!(
        shell.exists("ended"),
        "the lock passed on while the command still ran"
    );
    assert_eq!(going.ends().await.code, 76);
}

#[tokio::test]
async fn a_killed_program_takes_its_command_with_it() {
    let desk = Desk::start().await;
    let going = desk.shell.start("lock nightly -- sh -c", &[WAITS]);
    let command = command_of(&desk.shell).await;
    going.signal(Signal::SIGKILL);
    is_gone(command).await;
}

#[tokio::test]
async fn a_lock_that_ends_with_the_program_passes_on_after_its_delay_when_that_is_killed() {
    let desk = Desk::start().await;
    let line = "lock nightly --lease 1h --lock-delay 2s --end-on-close -- sh -c";
    let going = desk.shell.start(line, &[WAITS]);
    let command = command_of(&desk.shell).await;
    on_streams(&desk.service, 1, 0).await;
    let killed = Instant::now();
    going.signal(Signal::SIGKILL);
    is_gone(command).await;
    let next = desk.shell.run("lock nightly --wait 1h -- true", &[]).await;
    assert_eq!((next.code, next.stderr.as_str()), (0, ""));
    assert!(killed.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn a_lock_that_an_operator_took_away_is_known_to_be_lost_long_before_it_is_to_be_renewed() {
    let desk = Desk::start().await;
    let going = desk
        .shell
        .start("lock nightly --lease 1h -- sh -c", &[WAITS]);
    let command = command_of(&desk.shell).await;
    on_streams(&desk.service, 1, 0).await;
    force_release(&desk, "nightly").await;
    assert_eq!(going.ends().await.code, 76);
    is_gone(command).await;
}

#[tokio::test]
async fn a_stopped_command_ends_too_when_its_lock_is_lost() {
    let desk = Desk::start().await;
    let going = desk
        .shell
        .start("lock nightly --lease 1s --kill-after 1h -- sh -c", &[WAITS]);
    let command = command_of(&desk.shell).await;
    nix::sys::signal::kill(command, Signal::SIGSTOP).expect("it takes signals");
    force_release(&desk, "nightly").await;
    assert_eq!(going.ends().await.code, 76);
    is_gone(command).await;
}

#[tokio::test]
async fn a_lock_that_cannot_be_released_is_told_and_ends_with_its_lease() {
    let desk = Desk::start().await;
    let proxy = Proxy::start(Upstream::Tcp(desk.service.grpc));
    let shell = Shell::new(proxy.addr());
    let line = "lock nightly --lease 20s --call-timeout 300ms -- sh -c";
    let going = shell.start(line, &[WAITS]);
    command_of(&shell).await;
    proxy.set(Mode::Cut).await;
    let started = Instant::now();
    shell.touch("go");
    let ran = going.ends().await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("could not be released"), "{ran:?}");
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "it waited for the lease"
    );
}
