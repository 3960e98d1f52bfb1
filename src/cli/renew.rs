//! `claimlock renew`.

use std::process::ExitCode;
use std::time::Duration;

use claimlock_client::proto::{
    RenewClaimRequest, RenewLockRequest, renew_claim_response, renew_lock_response,
};
use claimlock_client::{json, wire};
use clap::{ArgMatches, Args, Subcommand};

use super::ask::Ask;
use super::input::Input;
use super::output::{self, Output};
use super::{Error, exit};
use crate::config::any_duration;

const HELP: &str = concat!(
    "\
Examples:
  Five more minutes for a lock:
    claimlock renew lock backup --token \"$token\" --lease 5m

  Inside a command of claimlock once: how far it has come, for who takes over:
    claimlock renew claim \"$CLAIMLOCK_KEY\" --token \"$CLAIMLOCK_TOKEN\" \\
      --checkpoint progress.txt

Prints the RenewLockResponse or RenewClaimResponse of the wire contract. A lease never gets shorter.

",
    exit::codes!(
        "
   0  renewed
  76  lost: this token does not hold it any more
"
    )
);

/// Extend the lease on a claim or lock
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct RenewCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Claim(RenewClaim),
    Lock(RenewLock),
}

/// Extend the lease on a claim
#[derive(Args)]
#[command(after_help = HELP)]
struct RenewClaim {
    /// The idempotency key
    key: String,

    /// Whose key it is
    #[arg(long, value_name = "NAME", default_value = "")]
    scope: String,

    /// The token that holds it
    #[arg(long, value_name = "TOKEN")]
    token: String,

    /// The new lease, from now [default: the one that the claim was made with]
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    lease: Option<Duration>,

    /// How far the work has come, at most 64 KiB, for whoever takes over; - for standard input
    #[arg(long, value_name = "PATH")]
    checkpoint: Option<Input>,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    ask: Ask,
}

/// Extend the lease on a lock
#[derive(Args)]
#[command(after_help = HELP)]
struct RenewLock {
    /// What is locked
    name: String,

    /// The token that holds it
    #[arg(long, value_name = "TOKEN")]
    token: String,

    /// The new lease, from now [default: the one that the lock was acquired with]
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    lease: Option<Duration>,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    ask: Ask,
}

impl RenewCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        match self.what {
            What::Claim(claim) => claim.run(matches).await,
            What::Lock(lock) => lock.run(matches).await,
        }
    }
}

impl RenewClaim {
    async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        use renew_claim_response::Outcome;
        let client = self.ask.client(matches)?;
        let checkpoint = self.checkpoint.as_ref().map(Input::read).transpose()?;
        let response = client
            .renew_claim(RenewClaimRequest {
                scope: self.scope,
                key: self.key,
                claim_token: self.token,
                lease: self.lease.map(wire),
                checkpoint: checkpoint.map(Into::into),
                ..Default::default()
            })
            .await?;
        output::answer(
            self.output.format,
            &json::to_value("RenewClaimResponse", &response),
        )?;
        Ok(ExitCode::from(match response.outcome {
            Some(Outcome::Renewed(_)) => 0,
            Some(Outcome::Lost(_)) => exit::LOST,
            None => exit::DEFECT,
        }))
    }
}

impl RenewLock {
    async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        use renew_lock_response::Outcome;
        let client = self.ask.client(matches)?;
        let response = client
            .renew_lock(RenewLockRequest {
                resource: self.name,
                lock_token: self.token,
                lease: self.lease.map(wire),
                ..Default::default()
            })
            .await?;
        output::answer(
            self.output.format,
            &json::to_value("RenewLockResponse", &response),
        )?;
        Ok(ExitCode::from(match response.outcome {
            Some(Outcome::Renewed(_)) => 0,
            Some(Outcome::Lost(_)) => exit::LOST,
            None => exit::DEFECT,
        }))
    }
}
