//! `claimlock acquire`.

use std::process::ExitCode;
use std::time::Duration;

use claimlock_client::proto::acquire_lock_response::Outcome;
use claimlock_client::proto::{AcquireLockRequest, LockMode};
use claimlock_client::{json, wire};
use clap::{ArgMatches, Args};

use super::ask::{self, Ask};
use super::output::{self, Output};
use super::{Error, exit};
use crate::config::any_duration;

const HELP: &str = concat!(
    "\
Examples:
  A lock for as long as a script runs, ten minutes at most:
    token=$(uuidgen)
    claimlock acquire backup --token \"$token\" --lease 10m || exit
    trap 'claimlock release backup --token \"$token\"' EXIT

Prints the AcquireLockResponse of the wire contract. For a command to be run under a lock that is renewed, see \
claimlock lock.

",
    exit::codes!(
        "
   0  acquired
  75  held by somebody else
  76  lost: the token is spent
"
    )
);

/// Acquire a lock
///
/// It stands for its lease, until it is released, and can be renewed.
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct AcquireCommand {
    /// What is locked, at most 255 printable ASCII characters
    name: String,

    /// The token of this acquisition, 16 to 64 of [A-Za-z0-9_-]; a call that is repeated with it gets the same answer
    /// [default: a random one, which is in the answer]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,

    /// Who asks, for operators to read [default: host and process]
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,

    /// How long the lock stands without a renewal, from 1ms to 24h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = any_duration)]
    lease: Duration,

    /// How long to wait in turn, at most 1h; the same token asked again within 3s keeps its place
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    wait: Option<Duration>,

    /// Share it with others that share it
    #[arg(long)]
    shared: bool,

    /// How many may share it at once [default: any number]
    #[arg(long, value_name = "COUNT", requires = "shared")]
    max_holders: Option<i32>,

    /// How long the lock stays taken at least, even if released sooner
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    hold_at_least: Option<Duration>,

    /// How long nobody gets the lock after its lease ended without a release, at most 60s
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    lock_delay: Option<Duration>,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    ask: Ask,
}

impl AcquireCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.ask.client(matches)?;
        let mut request = AcquireLockRequest {
            resource: self.name,
            lock_token: self.token.unwrap_or_else(claimlock_client::new_token),
            holder: self.holder.unwrap_or_else(ask::default_holder),
            lease: Some(wire(self.lease)),
            wait: self.wait.map(wire),
            max_holders: self.max_holders.unwrap_or_default(),
            hold_at_least: self.hold_at_least.map(wire),
            lock_delay: self.lock_delay.map(wire),
            ..Default::default()
        };
        if self.shared {
            request.set_mode(LockMode::Shared);
        }
        let response = client.acquire_lock(request).await?;
        output::answer(
            self.output.format,
            &json::to_value("AcquireLockResponse", &response),
        )?;
        Ok(ExitCode::from(match response.outcome {
            Some(Outcome::Acquired(_)) => 0,
            Some(Outcome::Held(_)) => exit::HELD,
            Some(Outcome::Lost(_)) => exit::LOST,
            None => exit::DEFECT,
        }))
    }
}
