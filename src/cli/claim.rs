//! `claimlock claim`.

use std::process::ExitCode;
use std::time::Duration;

use claimlock_client::proto::claim_request::Request as Fingerprint;
use claimlock_client::proto::claim_response::Outcome;
use claimlock_client::proto::{ClaimRequest, LeaseOverPolicy};
use claimlock_client::{json, wire};
use clap::{ArgMatches, Args};

use super::ask::{self, Ask};
use super::input::Input;
use super::output::{self, Output};
use super::{Error, exit};
use crate::config::any_duration;

const HELP: &str = concat!(
    "\
Examples:
  A script that does its work once, and may be killed anywhere:
    token=$(uuidgen)
    claimlock claim \"order-$ID\" --token \"$token\" && charge &&
      claimlock complete \"order-$ID\" --token \"$token\"

  With the request's body, so that the same key with another body is told:
    claimlock claim \"$KEY\" --token \"$token\" --operation 'POST /v1/charges' \\
      --json-body request.json

Prints the ClaimResponse of the wire contract. For a command to be run once, see claimlock once.

",
    exit::codes!(
        "
   0  claimed: the work is yours. All else is not
  65  mismatch: the key was used for another request
  75  in flight: somebody else does it
  76  lost: the token is spent
  79  uncertain: somebody fell silent who may have done it
  80  replay: it is done, and the response is in the answer
"
    )
);

/// Claim a key
///
/// The claim stands for its lease, until it is completed or abandoned, and can be renewed.
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct ClaimCommand {
    /// The idempotency key, at most 255 printable ASCII characters
    key: String,

    /// Whose key it is: keys of different scopes never meet
    #[arg(long, value_name = "NAME", default_value = "")]
    scope: String,

    /// The token of this execution, 16 to 64 of [A-Za-z0-9_-]; a call that is repeated with it gets the same answer
    /// [default: a random one, which is in the answer]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,

    /// What the key is used for; another one is a mismatch
    #[arg(long, value_name = "TEXT", default_value = "")]
    operation: String,

    /// The request, which the service keeps a hash of; - for standard input
    #[arg(long, value_name = "PATH", group = "request")]
    body: Option<Input>,

    /// The request in JSON, where key order and white space do not matter; - for standard input
    #[arg(long, value_name = "PATH", group = "request")]
    json_body: Option<Input>,

    /// Who asks, for operators to read [default: host and process]
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,

    /// How long the claim stands without a renewal, from 1ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = any_duration)]
    lease: Duration,

    /// How long the key is remembered
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = any_duration)]
    retention: Duration,

    /// How long to wait for a claim in flight to end, at most 60s
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    wait: Option<Duration>,

    /// If the lease ends before it is completed, let nobody have it before an operator says so
    #[arg(long)]
    uncertain: bool,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    ask: Ask,
}

impl ClaimCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.ask.client(matches)?;
        let request = match (&self.body, &self.json_body) {
            (Some(body), _) => Some(Fingerprint::Body(body.read()?.into())),
            (None, Some(json)) => Some(Fingerprint::JsonBody(json.read()?.into())),
            (None, None) => None,
        };
        let mut request = ClaimRequest {
            scope: self.scope,
            key: self.key,
            operation: self.operation,
            claim_token: self.token.unwrap_or_else(claimlock_client::new_token),
            holder: self.holder.unwrap_or_else(ask::default_holder),
            lease: Some(wire(self.lease)),
            retention: Some(wire(self.retention)),
            wait: self.wait.map(wire),
            request,
            ..Default::default()
        };
        if self.uncertain {
            request.set_on_lease_over(LeaseOverPolicy::MarkUncertain);
        }
        let response = client.claim(request).await?;
        output::answer(
            self.output.format,
            &json::to_value("ClaimResponse", &response),
        )?;
        Ok(ExitCode::from(match response.outcome {
            Some(Outcome::Claimed(_)) => 0,
            Some(Outcome::InFlight(_)) => exit::HELD,
            Some(Outcome::Replay(_)) => exit::DONE_BEFORE,
            Some(Outcome::Mismatch(_)) => exit::MISMATCH,
            Some(Outcome::Uncertain(_)) => exit::UNCERTAIN,
            Some(Outcome::Lost(_)) => exit::LOST,
            None => exit::DEFECT,
        }))
    }
}
