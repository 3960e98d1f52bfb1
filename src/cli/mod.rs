//! The command line: one file a subcommand.

mod abandon;
mod acquire;
mod ask;
mod bound;
mod claim;
mod claims;
mod command;
mod complete;
mod completions;
mod config;
mod confirm;
mod doctor;
mod exit;
mod health;
mod input;
mod listing;
mod lock;
mod locks;
mod man;
mod once;
mod output;
mod people;
mod progress;
mod release;
mod renew;
mod serve;
mod signals;
mod table;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use claimlock_client::Failure;

use crate::config::{SettingsError, hide_passwords};
use crate::{app, telemetry};

const HELP: &str = "\
Run a service with claimlock serve. The others ask one, at http://127.0.0.1:7420 unless --endpoint, \
CLAIMLOCK_ENDPOINT or endpoint in the table [client] of a --config file says otherwise. Each has examples, and its \
exit codes, in its own --help.";

/// Idempotency keys and locks over gRPC, for services in any language.
#[derive(Parser)]
#[command(
    name = "claimlock",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    Serve(serve::Serve),
    Config(config::Config),
    Once(once::Once),
    Lock(lock::LockCommand),
    Claim(claim::ClaimCommand),
    Complete(complete::CompleteCommand),
    Abandon(abandon::AbandonCommand),
    Acquire(acquire::AcquireCommand),
    Renew(renew::RenewCommand),
    Release(release::ReleaseCommand),
    Claims(claims::ClaimsCommand),
    Locks(locks::LocksCommand),
    Health(health::HealthCommand),
    Doctor(Box<doctor::Doctor>),
    Completions(completions::Completions),
    Man(man::Man),
}

/// A command line that was understood.
pub struct Invocation(Understood);

enum Understood {
    /// What people call.
    Subcommand(Box<Chosen>),
    /// What this program calls itself by.
    Bound(bound::RunBound),
}

struct Chosen {
    command: Subcommands,
    /// The innermost subcommand's own matches: they tell which values came from the environment.
    matches: ArgMatches,
}

/// Reads a command line, and the environment where a flag is missing.
///
/// # Errors
///
/// When it is not understood, and when help or the version is asked for: [`Error::report`] prints
/// either.
pub fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Invocation, Error> {
    let line: Vec<_> = line.into_iter().collect();
    if line.get(1).is_some_and(|first| first == bound::NAME) {
        let bound = bound::RunBound::try_parse_from(&line[1..])?;
        return Ok(Invocation(Understood::Bound(bound)));
    }
    let mut matches = command().try_get_matches_from(line)?;
    let cli = Cli::from_arg_matches(&matches)?;
    while let Some((_, inner)) = matches.remove_subcommand() {
        matches = inner;
    }
    Ok(Invocation(Understood::Subcommand(Box::new(Chosen {
        command: cli.command,
        matches,
    }))))
}

fn command() -> clap::Command {
    // Help would print the variables' values, secrets among them.
    hide_values(Cli::command())
}

fn hide_values(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| arg.hide_env_values(true))
        .mut_subcommands(hide_values)
}

impl Invocation {
    /// Does what it asks for.
    ///
    /// # Errors
    ///
    /// Whatever the subcommand fails with.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let chosen = match self.0 {
            Understood::Subcommand(chosen) => chosen,
            Understood::Bound(command) => return Ok(command.run()),
        };
        let matches = &chosen.matches;
        match chosen.command {
            Subcommands::Serve(serve) => serve.run(matches).await,
            Subcommands::Config(config) => config.run(matches),
            Subcommands::Once(once) => once.run(matches).await,
            Subcommands::Lock(lock) => lock.run(matches).await,
            Subcommands::Claim(claim) => claim.run(matches).await,
            Subcommands::Complete(complete) => complete.run(matches).await,
            Subcommands::Abandon(abandon) => abandon.run(matches).await,
            Subcommands::Acquire(acquire) => acquire.run(matches).await,
            Subcommands::Renew(renew) => renew.run(matches).await,
            Subcommands::Release(release) => release.run(matches).await,
            Subcommands::Claims(claims) => claims.run(matches).await,
            Subcommands::Locks(locks) => locks.run(matches).await,
            Subcommands::Health(health) => health.run(matches).await,
            Subcommands::Doctor(doctor) => doctor.run(matches).await,
            Subcommands::Completions(completions) => completions.run(command()),
            Subcommands::Man(man) => man.run(command()),
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
    /// A folder does not take what is to be written there.
    #[error("cannot write to {}: {source}", .folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The service failed.
    #[error(transparent)]
    App(#[from] app::Error),
    /// Signals cannot be taken.
    #[error("cannot wait for signals: {0}")]
    Signals(#[source] io::Error),
    /// A call to a service failed.
    #[error("{0}")]
    Service(#[source] Box<Failure>),
    /// Nothing failed, but it came out otherwise than was asked for.
    #[error("{text}")]
    Outcome {
        /// The exit code.
        code: u8,
        /// What it came to.
        text: String,
    },
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Service(Box::new(failure))
    }
}

impl Error {
    /// Prints it where it belongs, and gives the exit code: 2 for the command line and settings,
    /// 1 for failures of this program, 0 for help, and those that the help of a subcommand lists.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        // Nothing is left to be told to when the streams themselves are closed.
        match self {
            Self::Line(error) => {
                let _ = print_line_error(error);
            }
            _ => {
                output::note(self);
            }
        }
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        match self {
            Self::Line(error) => u8::try_from(error.exit_code()).unwrap_or(2),
            Self::Settings(_) => exit::USAGE,
            Self::Service(failure) => exit::of_failure(failure),
            Self::Outcome { code, .. } => *code,
            Self::Runtime(_)
            | Self::Telemetry(_)
            | Self::Output(_)
            | Self::Folder { .. }
            | Self::Signals(_)
            | Self::App(_) => 1,
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

    /// The flags of a subcommand that are no settings: they are for this one run.
    const OF_ONE_RUN: [&str; 3] = ["help", "output", "strict"];

    #[test]
    fn every_setting_has_the_variable_that_its_flag_says() {
        for subcommand in ["serve", "config", "doctor", "health"] {
            let command = command();
            let subcommand = command
                .find_subcommand(subcommand)
                .expect("it is one of ours");
            let settings = subcommand
                .get_arguments()
                .map(|arg| (arg, arg.get_long().expect("settings are flags")))
                .filter(|(_, flag)| !OF_ONE_RUN.contains(flag));
            for (arg, flag) in settings {
                let variable = format!("CLAIMLOCK_{}", flag.replace('-', "_").to_uppercase());
                assert_eq!(arg.get_env(), Some(variable.as_ref()), "{flag}");
                assert!(arg.is_hide_env_values_set(), "{flag}");
            }
        }
    }

    /// What a help text says below the flags, of every subcommand.
    fn texts_below_the_flags(command: &clap::Command, into: &mut Vec<(String, String)>) {
        let text = command.get_after_help().map(ToString::to_string);
        into.push((command.get_name().to_owned(), text.unwrap_or_default()));
        for inner in command.get_subcommands() {
            texts_below_the_flags(inner, into);
        }
    }

    #[test]
    fn examples_can_be_copied_from_a_terminal_of_80_columns() {
        let mut texts = Vec::new();
        texts_below_the_flags(&command(), &mut texts);
        for (name, text) in &texts {
            for line in text.lines().filter(|line| line.starts_with(' ')) {
                // A longer one is broken by the help, in the middle of a command.
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
            // A paragraph is one line: the help breaks it, and a break of ours would come on top.
            let lines: Vec<_> = text.lines().collect();
            for pair in lines.windows(2) {
                let starts = |line: &str| line.starts_with(|first: char| !first.is_whitespace());
                assert!(!(starts(pair[0]) && starts(pair[1])), "{name}: {pair:?}");
            }
        }
        let without_examples = texts
            .iter()
            .filter(|(_, text)| !text.contains("Examples:\n"));
        let names: Vec<_> = without_examples.map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["claimlock"]);
    }

    #[test]
    fn exit_codes_stand_in_a_column() {
        let mut texts = Vec::new();
        texts_below_the_flags(&command(), &mut texts);
        let lists = texts.iter().filter_map(|(name, text)| {
            let (_, codes) = text.split_once("Exit codes:\n")?;
            Some((name, codes))
        });
        let mut seen = 0;
        for (name, codes) in lists {
            seen += 1;
            for line in codes.lines() {
                let (code, rest) = line.split_at(4);
                let code = code.trim_start();
                let is_code = code == "*" || code.is_empty() || code.parse::<u8>().is_ok();
                assert!(is_code && rest.starts_with("  "), "{name}: {line:?}");
            }
        }
        assert!(seen > 10, "{seen}");
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
