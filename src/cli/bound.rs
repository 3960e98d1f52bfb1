//! `claimlock run-bound`, which is not for people: it becomes the command that `once` or `lock` runs, after it asked the
//! kernel to tell it to end when its parent is killed.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use super::command::CommandLine;
use super::exit;

/// What it is called by; no subcommand of those that are listed.
pub(super) const NAME: &str = "run-bound";

/// Become a command that ends with its parent
#[derive(Parser)]
pub(super) struct RunBound {
    /// Who started it
    #[arg(long)]
    parent: i32,

    /// Where to say why the command could not be run
    #[arg(long)]
    report: PathBuf,

    #[command(flatten)]
    command: CommandLine,
}

/// What [`RunBound`] is started by. The signal goes out when the thread that started it ends: the main thread, on which
/// subcommands run.
pub(super) fn command(argv: &[OsString], report: &Path) -> tokio::process::Command {
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
        .arg(report)
        .arg("--")
        .args(argv);
    command
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
        let argv = &self.command.argv;
        let error = std::process::Command::new(&argv[0]).args(&argv[1..]).exec();
        let errno = error.raw_os_error().unwrap_or(0);
        // The parent finds an exit code that could be the command's own where this fails too.
        let _ = fs::write(&self.report, errno.to_string());
        ExitCode::from(exit::CANNOT_RUN)
    }
}
