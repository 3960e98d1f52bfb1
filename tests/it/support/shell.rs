//! The program's other subcommands, as a shell runs them.

use super::program::{claimlock, path};
use super::redis::RedisServer;
use super::service::Service;
use super::{BOUND, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// How a run ended, and what it printed.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// A run that said nothing else.
    pub fn printing(code: i32, stdout: &str) -> Self {
        Self {
            code,
            stdout: stdout.to_owned(),
            stderr: String::new(),
        }
    }

    /// The answer, where it is JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

/// A folder to work in, and a service to ask.
#[derive(Debug)]
pub struct Shell {
    endpoint: String,
    home: TempDir,
}

impl Shell {
    pub fn new(grpc: SocketAddr) -> Self {
        Self {
            endpoint: format!("http://{grpc}"),
            home: TempDir::new().expect("a temporary folder"),
        }
    }

    /// A file or folder in the folder that commands run in.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A command line, split at spaces; what holds spaces itself comes in `last`.
    pub fn command(&self, line: &str, last: &[&str]) -> Command {
        let mut command = claimlock(&self.home);
        command
            .env("PATH", path())
            .env("CLAIMLOCK_ENDPOINT", &self.endpoint)
            .current_dir(self.home.path())
            .args(line.split_whitespace())
            .args(last);
        command
    }

    /// The same, started through another program, by which it is called with its whole path.
    pub fn through(&self, program: &str, arguments: &[&str], line: &str) -> Command {
        let command = self.command(line, &[]);
        let command = command.as_std();
        let variables = command.get_envs();
        let mut through = Command::new(program);
        through
            .args(arguments)
            .arg(command.get_program())
            .args(command.get_args())
            .env_clear()
            .envs(variables.filter_map(|(name, value)| Some((name, value?))))
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        through
    }

    /// Runs it to its end.
    pub async fn run(&self, line: &str, last: &[&str]) -> Ran {
        run(self.command(line, last)).await
    }

    /// Starts it, to be waited for by [`Going::ends`].
    pub fn start(&self, line: &str, last: &[&str]) -> Going {
        let mut command = self.command(line, last);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Going {
            child: command.spawn().expect("the program starts"),
        }
    }

    /// Waits until a command has written a file, and gives what it wrote.
    pub async fn written(&self, name: &str) -> String {
        let path = self.path(name);
        eventually(&format!("{name} to be written"), async || {
            let text = fs::read_to_string(&path).ok()?;
            text.ends_with('\n').then_some(text)
        })
        .await
    }

    /// Lets a command go on that waits for the file.
    pub fn touch(&self, name: &str) {
        fs::write(self.path(name), "").expect("the folder can be written to");
    }

    pub fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }
}

/// Runs a command to its end, within a bound.
pub async fn run(mut command: Command) -> Ran {
    let output = tokio::time::timeout(BOUND, command.output())
        .await
        .expect("the command ends")
        .expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// A run that is under way; killed with the value.
#[derive(Debug)]
pub struct Going {
    child: Child,
}

impl Going {
    pub fn pid(&self) -> Pid {
        let pid = self.child.id().expect("nobody has waited for it yet");
        Pid::from_raw(pid.try_into().expect("an i32"))
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it takes signals");
    }

    /// Its standard output, to be read as it comes.
    pub fn take_stdout(&mut self) -> tokio::process::ChildStdout {
        self.child.stdout.take().expect("nobody has taken it")
    }

    pub async fn ends(self) -> Ran {
        let output = tokio::time::timeout(BOUND, self.child.wait_with_output())
            .await
            .expect("the command ends")
            .expect("it can be waited for");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

/// Waits until a process is gone.
pub async fn is_gone(pid: Pid) {
    eventually(&format!("process {pid} to end"), async || {
        kill(pid, None).is_err().then_some(())
    })
    .await;
}

/// A service of the test's own, and a shell that asks it.
#[derive(Debug)]
pub struct Desk {
    pub redis: RedisServer,
    pub service: Service,
    pub shell: Shell,
}

impl Desk {
    pub async fn start() -> Self {
        let redis = RedisServer::start().await;
        let service = Service::start(&redis).await;
        Self {
            shell: Shell::new(service.grpc),
            redis,
            service,
        }
    }
}
