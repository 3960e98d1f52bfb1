//! `claimlock locks get`.

use std::process::ExitCode;

use clap::{ArgMatches, Args};

use super::super::ask::Ask;
use super::super::output::{self, Format, OutputForPeople};
use super::super::{Error, exit};
use super::{described, look, to_json};

const HELP: &str = concat!(
    "\
Examples:
  Who holds a lock, since when, and for how much longer:
    claimlock locks get nightly-report

As JSON, it is the LockInfo of the wire contract.

",
    exit::codes!(
        "
   0  shown
  66  the lock is free
"
    )
);

/// Show a lock and its holders
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Get {
    /// What is locked
    name: String,

    #[command(flatten)]
    output: OutputForPeople,

    #[command(flatten)]
    ask: Ask,
}

impl Get {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.ask.client(matches)?;
        let lock = look(&client, &self.name).await?;
        match self.output.format {
            Format::Json => output::line(&to_json(&lock).to_string())?,
            Format::Table => output::write(described(&lock).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
