//! `claimlock run-bound`, which is not for people: it becomes the command that `once` or `lock` runs, after it asked the
//! kernel to tell it to end when its parent is killed.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeWriter, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use clap::Parser;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::command::CommandLine;
use super::exit;

/// What it is called by; no subcommand of those that are listed.
pub(super) const NAME: &str = "run-bound";

/// The files that a process has open, by their numbers.
const OPEN_FILES: &str = if cfg!(target_os = "linux") {
    "/proc/self/fd"
} else {
    "/dev/fd"
};

/// Become a command that ends with its parent
#[derive(Parser)]
pub(super) struct RunBound {
    /// Who started it
    #[arg(long)]
    parent: i32,

    /// The open file in which to say why the command could not be run
    #[arg(long)]
    report: RawFd,

    #[command(flatten)]
    command: CommandLine,
}

/// What [`RunBound`] is started by. The signal goes out when the thread that started it ends: the main thread, on which
/// subcommands run.
pub(super) fn command(
    argv: &[OsString],
    report: &PipeWriter,
) -> io::Result<tokio::process::Command> {
    // It stays open in what is started, which closes it before it becomes the command.
    fcntl(report, FcntlArg::F_SETFD(FdFlag::empty()))?;
    // The program's file may have been replaced since it was started; this is the one that runs.
    let mut command = tokio::process::Command::new(if cfg!(target_os = "linux") {
        "/proc/self/exe".into()
    } else {
        std::env::current_exe().unwrap_or_else(|_| "claimlock".into())
    });
    command
        .arg0("claimlock")
        .arg(NAME)
        .arg("--parent")
        .arg(std::process::id().to_string())
        .arg("--report")
        .arg(report.as_raw_fd().to_string())
        .arg("--")
        .args(argv);
    Ok(command)
}

impl RunBound {
    pub(super) fn run(self) -> ExitCode {
        #[cfg(target_os = "linux")]
        {
            use nix::sys::prctl::set_pdeathsig;
            use nix::sys::signal::Signal;
            // A kernel that cannot do it leaves things as they are elsewhere.
            let _ = set_pdeathsig(Signal::SIGTERM);
        }
        // It may have been killed before the kernel was asked.
        if nix::unistd::getppid().as_raw() != self.parent {
            return exit::of_signal(nix::sys::signal::Signal::SIGTERM as i32);
        }
        let report = take_over(self.report);
        let argv = &self.command.argv;
        let error = std::process::Command::new(&argv[0]).args(&argv[1..]).exec();
        let errno = error.raw_os_error().unwrap_or(0);
        // The parent finds an exit code that could be the command's own where this fails too.
        let _ = report.and_then(|mut report| write!(report, "{errno}"));
        ExitCode::from(exit::CANNOT_RUN)
    }
}

/// An open file of the parent's, so that the command does not inherit it.
fn take_over(file: RawFd) -> io::Result<File> {
    let own = OpenOptions::new()
        .write(true)
        .open(format!("{OPEN_FILES}/{file}"));
    nix::unistd::close(file)?;
    own
}
