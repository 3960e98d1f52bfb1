//! Signals sent to `claimlock once` and `claimlock lock`.

use crate::support::answers::{acquired, claimed};
use crate::support::eventually;
use crate::support::requests::{acquire, claim};
use crate::support::shell::{Desk, Ran};
use claimlock::rpc::proto::{ClaimInfo, ClaimState, GetClaimRequest};
use nix::sys::signal::Signal;

const SAYS: &str = "trap 'echo INT; exit 4' INT; trap 'echo USR1 >> got' USR1; \
                    echo begun > begun; while :; do sleep 0.05; done";

async fn claim_info(desk: &Desk, key: &str) -> Option<ClaimInfo> {
    let request = GetClaimRequest {
        key: key.to_owned(),
        ..Default::default()
    };
    let answer = desk.service.admin().await.get_claim(request).await;
    answer.expect("the service answers").into_inner().claim
}

#[tokio::test]
async fn a_signal_reaches_the_command_which_decides_what_becomes_of_it() {
    for subcommand in ["once job -- sh -c", "lock job -- sh -c"] {
        let desk = Desk::start().await;
        let going = desk.shell.start(subcommand, &[SAYS]);
        desk.shell.written("begun").await;
        going.signal(Signal::SIGUSR1);
        desk.shell.written("got").await;
        going.signal(Signal::SIGINT);
        // The signal goes to all that the command started too, and the shell remarks upon it.
        let ran = going.ends().await;
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (4, "INT\n"),
            "{subcommand}"
        );
    }
}

#[tokio::test]
async fn a_command_that_a_signal_ended_may_have_had_an_effect() {
    let desk = Desk::start().await;
    let going = desk
        .shell
        .start("once job -- sh -c", &["echo $$ > pid; exec sleep 1000"]);
    desk.shell.written("pid").await;
    going.signal(Signal::SIGTERM);
    assert_eq!(going.ends().await, Ran::printing(143, ""));
    let claim = claim_info(&desk, "job").await.expect("it is remembered");
    assert_eq!(claim.state(), ClaimState::LeaseOver);
    assert_eq!(claim.abandon_reason, "the command was ended by signal 15");
}

#[tokio::test]
async fn a_signal_while_it_waits_ends_the_program_and_leaves_nothing_behind() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    acquired(client.acquire_lock(acquire("nightly", "a")).await);
    claimed(client.claim(claim("job", "a")).await);
    let operation = "--operation";
    let lock = desk.shell.start("lock nightly --wait 1h -- touch ran", &[]);
    let once = ["POST /v1/charges", "--", "touch", "ran"];
    let once = desk.shell.start(
        &format!("once job --ignore-arguments --wait 1h {operation}"),
        &once,
    );
    for going in [lock, once] {
        eventually("it to take signals", async || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", going.pid())).ok()?;
            let caught = status
                .lines()
                .find_map(|line| line.strip_prefix("SigCgt:\t"))?;
            let caught = u64::from_str_radix(caught, 16).ok()?;
            (caught & (1 << (Signal::SIGTERM as u64 - 1)) != 0).then_some(())
        })
        .await;
        going.signal(Signal::SIGTERM);
        assert_eq!(going.ends().await, Ran::printing(143, ""));
    }
    assert!(!desk.shell.exists("ran"));
    let claim = claim_info(&desk, "job").await.expect("a holds it");
    assert_eq!(
        (claim.state(), claim.holder.as_str()),
        (ClaimState::InFlight, "holder a")
    );
}
