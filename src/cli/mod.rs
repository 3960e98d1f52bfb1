//! The command line: one file a subcommand.

mod config;
mod serve;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{SettingsError, hide_passwords};
use crate::{app, telemetry};

/// Idempotency keys and locks over gRPC, for services in any language.
#[derive(Parser)]
#[command(
    name = "claimlock",
    version,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    Serve(serve::Serve),
    Config(config::Config),
}

/// A command line that was understood.
pub struct Invocation {
    command: Subcommands,
    /// The subcommand's own matches: they tell which values came from the environment.
    matches: ArgMatches,
}

/// Reads a command line, and the environment where a flag is missing.
///
/// # Errors
///
/// When it is not understood, and when help or the version is asked for: [`Error::report`] prints
/// either.
pub fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Invocation, Error> {
    let mut matches = command().try_get_matches_from(line)?;
    let cli = Cli::from_arg_matches(&matches)?;
    let (_, matches) = matches
        .remove_subcommand()
        .expect("clap requires a subcommand");
    Ok(Invocation {
        command: cli.command,
        matches,
    })
}

fn command() -> clap::Command {
    // Help would print the variables' values, secrets among them.
    Cli::command().mut_subcommands(|one| one.mut_args(|arg| arg.hide_env_values(true)))
}

impl Invocation {
    /// Does what it asks for.
    ///
    /// # Errors
    ///
    /// Whatever the subcommand fails with.
    pub async fn run(self) -> Result<(), Error> {
        match self.command {
            Subcommands::Serve(serve) => serve.run(&self.matches).await,
            Subcommands::Config(config) => config.run(&self.matches),
        }
    }
}

/// Why the program ends before its time.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line was not understood, or asks for help or the version.
    #[error(transparent)]
    Line(#[from] clap::Error),
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The asynchronous runtime did not start.
    #[error("cannot start the threads that do the work: {0}")]
    Runtime(#[source] io::Error),
    /// Logging did not start.
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    /// Standard output does not take what is printed.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    /// The service failed.
    #[error(transparent)]
    App(#[from] app::Error),
}

impl Error {
    /// Prints it where it belongs, and gives the exit code: 2 for the command line and settings,
    /// 1 for failures, 0 for help.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        // Nothing is left to be told to when the streams themselves are closed.
        match self {
            Self::Line(error) => {
                let _ = print_line_error(error);
            }
            _ => {
                let _ = writeln!(io::stderr(), "claimlock: {self}");
            }
        }
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        match self {
            Self::Line(error) => u8::try_from(error.exit_code()).unwrap_or(2),
            Self::Settings(_) => 2,
            Self::Runtime(_) | Self::Telemetry(_) | Self::Output(_) | Self::App(_) => 1,
        }
    }
}

/// As clap prints it, but for passwords: it quotes what it does not understand.
fn print_line_error(error: &clap::Error) -> io::Result<()> {
    if !error.use_stderr() {
        return error.print();
    }
    let text = error.render();
    let text = if io::stderr().is_terminal() {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    io::stderr().write_all(hide_passwords(&text).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_the_command_line_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_setting_has_the_variable_that_its_flag_says() {
        for subcommand in ["serve", "config"] {
            let command = command();
            let subcommand = command
                .find_subcommand(subcommand)
                .expect("it is one of ours");
            for arg in subcommand
                .get_arguments()
                .filter(|arg| arg.get_id() != "help")
            {
                let flag = arg.get_long().expect("settings are flags");
                let variable = format!("CLAIMLOCK_{}", flag.replace('-', "_").to_uppercase());
                assert_eq!(arg.get_env(), Some(variable.as_ref()), "{flag}");
                assert!(arg.is_hide_env_values_set(), "{flag}");
            }
        }
    }

    #[test]
    fn help_and_version_are_no_failures() {
        for line in [["claimlock", "--version"], ["claimlock", "--help"]] {
            let error = parse(line.map(OsString::from))
                .err()
                .expect("there is nothing to run");
            assert_eq!(error.code(), 0);
        }
        let error = parse(["claimlock", "--nonsense"].map(OsString::from)).err();
        assert_eq!(error.expect("there is no such flag").code(), 2);
    }
}
