//! `claimlock health`.

use std::process::ExitCode;

use clap::{ArgMatches, Args};
use serde_json::json;

use super::ask::Ask;
use super::output::{self, Format, OutputForPeople};
use super::{Error, exit};

const HELP: &str = concat!(
    "\
Examples:
  In a container's health check:
    claimlock health --call-timeout 2s

",
    exit::codes!(
        "
   0  serving
"
    )
);

/// Say whether the service can answer calls now
///
/// Asks the gRPC health service, which says so while Redis answers and the service is not shutting down.
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct HealthCommand {
    #[command(flatten)]
    output: OutputForPeople,

    #[command(flatten)]
    ask: Ask,
}

impl HealthCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let health = self.ask.client(matches)?.health().await?;
        let status = if health.serving {
            "serving"
        } else {
            "not serving"
        };
        match self.output.format {
            Format::Json => {
                output::line(&json!({"status": status, "version": health.version}).to_string())?
            }
            Format::Table => output::line(&match health.version {
                Some(version) => format!("{status} (version {version})"),
                None => status.to_owned(),
            })?,
        }
        Ok(ExitCode::from(if health.serving {
            0
        } else {
            exit::UNAVAILABLE
        }))
    }
}
