//! `claimlock abandon`.

use std::process::ExitCode;

use claimlock_client::json;
use claimlock_client::proto::abandon_response::Outcome;
use claimlock_client::proto::{AbandonEffect, AbandonRequest};
use clap::{ArgMatches, Args, ValueEnum};

use super::ask::Ask;
use super::output::{self, Output};
use super::{Error, exit};

const HELP: &str = concat!(
    "\
Examples:
  The card was declined before anything was charged, so the next try may do it:
    claimlock abandon \"order-$ID\" --token \"$token\" --effect none \\
      --reason declined

  The connection broke half-way, and nobody knows:
    claimlock abandon \"order-$ID\" --token \"$token\" --effect unknown

Prints the AbandonResponse of the wire contract. A call that is repeated gets the same answer.

",
    exit::codes!(
        "
   0  abandoned
  76  lost: this token does not hold the claim
"
    )
);

/// Whether the work may have changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EffectArg {
    /// It changed nothing: the next claim may do it
    None,
    /// Nobody knows: as if the lease had ended now
    Unknown,
}

/// Give a claim up
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct AbandonCommand {
    /// The idempotency key
    key: String,

    /// Whose key it is
    #[arg(long, value_name = "NAME", default_value = "")]
    scope: String,

    /// The token that holds the claim
    #[arg(long, value_name = "TOKEN")]
    token: String,

    /// Whether the work may have changed anything
    #[arg(long, value_name = "EFFECT")]
    effect: EffectArg,

    /// Why, for operators to read; at most 1 KiB
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,

    /// With --effect none: keep fingerprint and checkpoint for the next claim
    #[arg(long)]
    keep_checkpoint: bool,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    ask: Ask,
}

impl AbandonCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.ask.client(matches)?;
        let mut request = AbandonRequest {
            scope: self.scope,
            key: self.key,
            claim_token: self.token,
            reason: self.reason,
            keep_checkpoint: self.keep_checkpoint,
            ..Default::default()
        };
        request.set_effect(match self.effect {
            EffectArg::None => AbandonEffect::None,
            EffectArg::Unknown => AbandonEffect::Unknown,
        });
        let response = client.abandon(request).await?;
        output::answer(
            self.output.format,
            &json::to_value("AbandonResponse", &response),
        )?;
        Ok(ExitCode::from(match response.outcome {
            Some(Outcome::Abandoned(_)) => 0,
            Some(Outcome::Lost(_)) => exit::LOST,
            None => exit::DEFECT,
        }))
    }
}
