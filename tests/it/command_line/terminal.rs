//! What `claimlock` does on a terminal, by util-linux's `script`.

use crate::support::answers::{acquired, claimed};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::requests::{acquire, claim, millis, release};
use crate::support::shell::{Desk, Shell};
use claimlock::rpc::proto::ClaimRequest;
use claimlock::rpc::proto::GetLockRequest;
use std::fs;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// A session on a terminal of its own; what it prints goes into the file `screen`.
struct Session {
    child: Child,
}

impl Session {
    fn start(shell: &Shell, line: &str) -> Self {
        // Only to have its environment and folder.
        let like = shell.command("", &[]);
        let like = like.as_std();
        let mut command = Command::new("script");
        command
            .args(["--quiet", "--flush", "--return", "--command"])
            .arg(format!("exec {} {line}", env!("CARGO_BIN_EXE_claimlock")))
            .arg("screen")
            .env_clear()
            .envs(
                like.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .current_dir(like.get_current_dir().expect("it has one"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        Self {
            child: command.spawn().expect("script is installed"),
        }
    }

    async fn types(&mut self, keys: &[u8]) {
        let keyboard = self.child.stdin.as_mut().expect("it is piped");
        keyboard
            .write_all(keys)
            .await
            .expect("the terminal takes it");
    }

    async fn ends(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(crate::support::BOUND, self.child.wait());
        ended
            .await
            .expect("it ends")
            .expect("it can be waited for")
            .code()
    }
}

async fn shows(shell: &Shell, text: &str) {
    eventually(&format!("{text:?} on the screen"), async || {
        let screen = fs::read(shell.path("screen")).ok()?;
        String::from_utf8_lossy(&screen)
            .contains(text)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_command_reads_from_the_terminal_and_gets_ctrl_c_once() {
    for subcommand in ["lock", "once"] {
        let desk = Desk::start().await;
        let script = "trap 'echo INT >> got' INT; read line </dev/tty; echo \"read $line\" > read; \
                      while [ ! -e go ]; do sleep 0.05; done; exit 5";
        fs::write(desk.shell.path("job"), script).expect("the folder can be written to");
        let mut session = Session::start(&desk.shell, &format!("{subcommand} job -- sh job"));
        session.types(b"typed\n").await;
        assert_eq!(desk.shell.written("read").await, "read typed\n");
        session.types(b"\x03").await;
        assert_eq!(desk.shell.written("got").await, "INT\n");
        desk.shell.touch("go");
        assert_eq!(session.ends().await, Some(5), "{subcommand}");
        let got = fs::read_to_string(desk.shell.path("got")).expect("it was written");
        assert_eq!(got, "INT\n", "{subcommand}");
    }
}

#[tokio::test]
async fn what_is_waited_for_is_shown_on_a_terminal_alone() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    acquired(client.acquire_lock(acquire("nightly", "a")).await);
    let mut session = Session::start(&desk.shell, "lock nightly --wait 1h -- true");
    let elsewhere = desk.shell.start("lock nightly --wait 1h -- true", &[]);
    shows(&desk.shell, "nightly is held by holder a").await;
    client
        .release_lock(release("nightly", "a"))
        .await
        .expect("it is held");
    assert_eq!(session.ends().await, Some(0));
    let ran = elsewhere.ends().await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

#[tokio::test]
async fn an_operator_is_shown_what_a_change_is_about_and_asked() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    acquired(client.acquire_lock(acquire("nightly", "a")).await);
    for (answer, code, is_free) in [("\n", 82, false), ("n\n", 82, false), ("y\n", 0, true)] {
        let line = "locks release nightly --reason test";
        let mut session = Session::start(&desk.shell, line);
        shows(&desk.shell, "holder a").await;
        shows(&desk.shell, "[y/N]").await;
        session.types(answer.as_bytes()).await;
        assert_eq!(session.ends().await, Some(code), "{answer:?}");
        let shown = desk.shell.run("locks get nightly", &[]).await;
        assert_eq!(shown.code == 66, is_free, "{answer:?}: {shown:?}");
    }

    let request = ClaimRequest {
        lease: millis(1),
        ..claim("order-1", "a")
    };
    claimed(client.claim(request).await);
    let line = "claims resolve order-1 --forget --reason test";
    let mut session = Session::start(&desk.shell, line);
    shows(&desk.shell, "POST /v1/charges").await;
    shows(&desk.shell, "so that the next claim does the work? [y/N]").await;
    session.types(b"yes\n").await;
    assert_eq!(session.ends().await, Some(0));
    let forgotten = desk.shell.run("claims get order-1", &[]).await;
    assert_eq!(forgotten.code, 66, "{forgotten:?}");
}

#[tokio::test]
async fn a_lock_that_was_lost_on_a_terminal_keeps_its_delay_as_something_may_still_run() {
    let desk = Desk::start().await;
    let proxy = Proxy::start(Upstream::Tcp(desk.service.grpc));
    let shell = Shell::new(proxy.addr());
    let script =
        "trap 'trap - TERM' TERM; echo begun > begun; while [ ! -e go ]; do sleep 0.05; done";
    fs::write(shell.path("job"), script).expect("the folder can be written to");
    let line = "lock nightly --lease 500ms --lock-delay 60s --kill-after 1h -- sh job";
    let mut session = Session::start(&shell, line);
    shell.written("begun").await;
    proxy.set(Mode::Cut).await;
    shows(&shell, "ending the command").await;
    proxy.set(Mode::Pass).await;
    shell.touch("go");
    assert_eq!(session.ends().await, Some(76));
    let request = GetLockRequest {
        resource: "nightly".to_owned(),
        ..Default::default()
    };
    let answer = desk.service.admin().await.get_lock(request).await;
    let lock = answer.expect("the service answers").into_inner().lock;
    assert!(lock.is_some(), "it passed on at once");
}
