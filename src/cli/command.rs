//! The command that `once` and `lock` run.
//!
//! Where there is a terminal the command stays in its foreground group, so that it can read from it, and so that Ctrl-C
//! and Ctrl-Z reach it as if it ran alone; what the terminal sends is not passed on a second time. Without a terminal, as
//! in cron and in a container, it gets a group of its own, so that signals reach all that it starts.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, PipeReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use claimlock_client::Loss;
use clap::Args;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::signal::unix::{SignalKind, signal};

use super::exit;
use super::output::{note, printable};
use super::signals::{Received, Signals};

/// How often it is looked whether what a command left behind has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What is written as longer is for ever, and must not be too long for the clock.
const LONGEST_KILL_AFTER: Duration = Duration::from_secs(365 * 24 * 3600);

/// What to run.
#[derive(Args)]
pub(super) struct CommandLine {
    /// The command and its arguments, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(super) argv: Vec<OsString>,
}

impl CommandLine {
    /// The program's own name, without its folder.
    pub(super) fn name(&self) -> String {
        let program = std::path::Path::new(&self.argv[0]);
        let name = program.file_name().unwrap_or(OsStr::new("command"));
        name.to_string_lossy().into_owned()
    }
}

/// Whether the command's output is read here, or goes where this program's goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputGoes {
    Here,
    Through,
}

/// How a command ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// By itself or by a signal.
    With(ExitStatus),
    /// It was never run.
    NotStarted(io::Error),
    /// It was run, and how it ended cannot be found out.
    Unseen(io::Error),
}

impl Ended {
    /// What a shell would make of it.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::With(status) => match (status.code(), status.signal()) {
                (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
                (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
                (None, None) => exit::DEFECT,
            },
            Self::NotStarted(error) if error.kind() == io::ErrorKind::NotFound => exit::NOT_FOUND,
            Self::NotStarted(_) => exit::CANNOT_RUN,
            Self::Unseen(_) => exit::DEFECT,
        }
    }

    /// For whoever ran it: `line` is known to nobody else.
    pub(super) fn told_of(&self, line: &CommandLine) -> String {
        match self {
            Self::NotStarted(error) => {
                let program = line.argv[0].to_string_lossy();
                format!(
                    "{} could not be started: {}",
                    printable(&program),
                    plain(error)
                )
            }
            Self::With(_) | Self::Unseen(_) => self.reason(),
        }
    }

    /// For the log and the operator.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::With(status) => match status.signal() {
                Some(signal) => format!("the command was ended by signal {signal}"),
                None => format!("the command ended with exit code {}", self.exit_code()),
            },
            Self::NotStarted(error) => {
                format!("the command could not be started: {}", plain(error))
            }
            Self::Unseen(error) => {
                format!(
                    "how the command ended cannot be found out: {}",
                    plain(error)
                )
            }
        }
    }
}

/// A command that runs.
pub(super) struct Running {
    child: Child,
    pid: Pid,
    has_own_group: bool,
    /// Why it could not be run, if it could not.
    report: PipeReader,
}

impl Running {
    /// Starts a command with more variables.
    ///
    /// It is started through this program itself ([`super::bound`]), so that it is told to end when this program is
    /// killed, and cannot go on without its lock.
    pub(super) fn start(
        line: &CommandLine,
        variables: &[(&str, String)],
        output: OutputGoes,
    ) -> io::Result<Self> {
        let (report, reported) = io::pipe()?;
        let mut command = super::bound::command(&line.argv, &reported)?;
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        if output == OutputGoes::Here {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let has_own_group = !has_terminal();
        if has_own_group {
            command.process_group(0);
        }
        // Whoever started this program may have it ignore the ends of its children, which nobody is told of then.
        let _ends = signal(SignalKind::child())?;
        let child = command.spawn().map_err(not_this_program)?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok());
        Ok(Self {
            pid: Pid::from_raw(pid.expect("nobody has waited for it yet")),
            child,
            has_own_group,
            report,
        })
    }

    /// What it prints, where that is read here.
    pub(super) fn take_output(&mut self) -> Option<(ChildStdout, ChildStderr)> {
        self.child.stdout.take().zip(self.child.stderr.take())
    }

    /// Waits for its end, passes signals on, and ends it when `lost` says that it must not go on. Returns that loss too.
    pub(super) async fn supervise(
        &mut self,
        signals: &mut Signals,
        lost: impl Future<Output = Loss>,
        kill_after: Duration,
    ) -> (Ended, Option<Loss>) {
        let mut lost = std::pin::pin!(lost);
        loop {
            tokio::select! {
                biased;
                ended = self.child.wait() => return (self.ended(ended), None),
                loss = &mut lost => {
                    note(format_args!("{loss}; ending the command"));
                    let ended = self.end(kill_after).await;
                    return (ended, Some(loss));
                }
                received = signals.next() => self.pass_on(received),
            }
        }
    }

    /// Whether something that it started may outlive its end.
    pub(super) fn may_leave_something(&self) -> bool {
        !self.has_own_group
    }

    fn pass_on(&self, received: Received) {
        if received.from_terminal && !self.has_own_group {
            return;
        }
        if let Ok(signal) = Signal::try_from(received.signal) {
            self.send(signal);
        }
    }

    /// A command that has ended in the meantime takes no signal; its end is seen next.
    fn send(&self, signal: impl Into<Option<Signal>>) -> bool {
        let sent = if self.has_own_group {
            killpg(self.pid, signal)
        } else {
            kill(self.pid, signal)
        };
        sent.is_ok()
    }

    /// SIGTERM, and SIGKILL for what is still there after a while.
    async fn end(&mut self, kill_after: Duration) -> Ended {
        self.send(Signal::SIGTERM);
        // It may have been stopped, and would not see the signal.
        self.send(Signal::SIGCONT);
        let deadline = Instant::now() + kill_after.min(LONGEST_KILL_AFTER);
        let ended = tokio::time::timeout_at(deadline.into(), self.child.wait()).await;
        let ended = match ended {
            Ok(ended) => ended,
            Err(_) => {
                note("the command did not end: killing it");
                self.send(Signal::SIGKILL);
                self.child.wait().await
            }
        };
        if self.has_own_group {
            self.end_the_rest(deadline).await;
        }
        self.ended(ended)
    }

    /// What the command started may outlive it.
    async fn end_the_rest(&self, deadline: Instant) {
        while self.send(None) {
            if Instant::now() >= deadline {
                self.send(Signal::SIGKILL);
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn ended(&mut self, status: io::Result<ExitStatus>) -> Ended {
        let status = match status {
            Ok(status) => status,
            Err(error) => return Ended::Unseen(error),
        };
        // Nobody has the other end any more: closed before the command was run, or when that failed.
        let mut report = String::new();
        let _ = self.report.read_to_string(&mut report);
        match report.trim().parse() {
            Ok(errno) => Ended::NotStarted(io::Error::from_raw_os_error(errno)),
            Err(_) => Ended::With(status),
        }
    }
}

/// That this program cannot be started anew, as without /proc, is not that the command was not found.
fn not_this_program(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("this program's own file is not to be found"),
        _ => error,
    }
}

/// Without the "(os error 2)" at its end.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// The exit code of a program that ran a command.
pub(super) fn code(ended: &Ended) -> ExitCode {
    ExitCode::from(ended.exit_code())
}

fn has_terminal() -> bool {
    fs::File::open("/dev/tty").is_ok()
}
