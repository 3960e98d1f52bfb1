//! The program itself, as a process of its own.

use super::service::{Coordination, channel, coordination, http_status};
use super::{BOUND, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tonic::transport::Channel;

/// A running `claimlock serve`; killed with the value.
#[derive(Debug)]
pub struct Program {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    child: Child,
    home: TempDir,
    /// Kept open: a program whose output nobody takes is another test.
    _stdout: BufReader<ChildStdout>,
}

/// The file that is run.
pub const FILE: &str = env!("CARGO_BIN_EXE_claimlock");

/// `claimlock` with nothing of the caller's environment.
pub fn claimlock(home: &TempDir) -> Command {
    let mut command = Command::new(FILE);
    command
        .env_clear()
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Where the program finds a server of its own.
#[expect(
    clippy::disallowed_methods,
    reason = "PATH is no setting: the test's own is handed on"
)]
pub fn path() -> String {
    std::env::var("PATH").expect("a test has a PATH")
}

impl Program {
    /// `claimlock serve` on a Redis and on free ports, with more flags; it listens when this returns.
    pub async fn serve(redis_url: &str, flags: &[&str]) -> Self {
        Self::serve_on("127.0.0.1:0", redis_url, flags).await
    }

    /// The same with an address for gRPC.
    pub async fn serve_on(grpc_addr: &str, redis_url: &str, flags: &[&str]) -> Self {
        let addresses = ["--grpc-addr", grpc_addr, "--http-addr", "127.0.0.1:0"];
        let url = ["--redis-url", redis_url];
        Self::start(&[], &[&url[..], &addresses, flags].concat()).await
    }

    /// The same with more variables.
    pub async fn serve_with(variables: &[(&str, String)], redis_url: &str, flags: &[&str]) -> Self {
        let variables = variables
            .iter()
            .map(|(name, value)| (*name, Path::new(value)));
        let variables: Vec<_> = variables.collect();
        let addresses = ["--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"];
        let url = ["--redis-url", redis_url];
        Self::start(&variables, &[&url[..], &addresses, flags].concat()).await
    }

    /// `claimlock serve` on a server of its own, which keeps its files in a folder.
    pub async fn serve_embedded(data_dir: &Path) -> Self {
        let data_dir = data_dir.to_str().expect("a test's folder is UTF-8");
        let addresses = ["--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"];
        Self::start(&[], &[&addresses[..], &["--data-dir", data_dir]].concat()).await
    }

    /// `claimlock serve` on a Redis behind TLS, with the authorities that it trusts.
    pub async fn serve_trusting(authorities: &Path, redis_url: &str) -> Self {
        let addresses = ["--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"];
        let flags = [&addresses[..], &["--redis-url", redis_url]].concat();
        Self::start(&[("SSL_CERT_FILE", authorities)], &flags).await
    }

    async fn start(environment: &[(&str, &Path)], flags: &[&str]) -> Self {
        let home = TempDir::new().expect("a temporary folder");
        let log = fs::File::create(home.path().join("log")).expect("a log file");
        let mut child = claimlock(&home)
            .env("PATH", path())
            .envs(environment.iter().copied())
            .arg("serve")
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program starts");

        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        tokio::time::timeout(BOUND, stdout.read_line(&mut line))
            .await
            .expect("the program says where it listens")
            .expect("it prints UTF-8");
        let addresses = line
            .strip_prefix("claimlock serves gRPC on ")
            .and_then(|line| line.trim_end().split_once(" and HTTP on "));
        let (grpc, http) = addresses.unwrap_or_else(|| panic!("the first line was {line:?}"));
        Self {
            grpc: grpc.parse().expect("an address"),
            http: http.parse().expect("an address"),
            child,
            home,
            _stdout: stdout,
        }
    }

    /// Waits until the program says that it is ready.
    pub async fn is_ready(&self) {
        eventually("the program to be ready", async || {
            (http_status(self.http, "/readyz").await? == 200).then_some(())
        })
        .await;
    }

    /// A new connection to it.
    pub async fn channel(&self) -> Channel {
        channel(self.grpc).await
    }

    pub async fn coordination(&self) -> Coordination {
        coordination(self.grpc).await
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("nobody has waited for it yet");
        kill(Pid::from_raw(pid.try_into().expect("an i32")), signal).expect("it takes signals");
    }

    /// Waits for its end.
    pub async fn ends(&mut self) -> ExitStatus {
        tokio::time::timeout(BOUND, self.child.wait())
            .await
            .unwrap_or_else(|_| panic!("it does not end; its log:\n{}", self.log()))
            .expect("our own child can be waited for")
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }
}
