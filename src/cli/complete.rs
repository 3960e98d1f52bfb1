//! `claimlock complete`.

use std::process::ExitCode;
use std::time::Duration;

use claimlock_client::proto::complete_response::Outcome;
use claimlock_client::proto::{CompleteRequest, Header, StoredResponse};
use claimlock_client::{json, wire};
use clap::{ArgMatches, Args};

use super::ask::Ask;
use super::input::Input;
use super::output::{self, Output};
use super::{Error, exit};
use crate::config::any_duration;

const HELP: &str = concat!(
    "\
Examples:
  That the work is done:
    claimlock complete \"order-$ID\" --token \"$token\"

  With the response that later claims get:
    claimlock complete \"$KEY\" --token \"$token\" --status 201 \\
      --header 'content-type: application/json' --body answer.json

Prints the CompleteResponse of the wire contract. A call that is repeated changes nothing more.

",
    exit::codes!(
        "
   0  completed
  76  lost: this token does not hold the claim, and nothing was stored
"
    )
);

/// Store the result of a claim's work
///
/// Every later claim of the key gets it as a replay.
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct CompleteCommand {
    /// The idempotency key
    key: String,

    /// Whose key it is
    #[arg(long, value_name = "NAME", default_value = "")]
    scope: String,

    /// The token that holds the claim
    #[arg(long, value_name = "TOKEN")]
    token: String,

    /// The response's status, such as an HTTP status
    #[arg(long, value_name = "NUMBER")]
    status: Option<i32>,

    /// A header of the response; can be given more than once
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(String, String)>,

    /// The response's body; - for standard input
    #[arg(long, value_name = "PATH")]
    body: Option<Input>,

    /// How long the key is remembered from now [default: as the claim says]
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    retention: Option<Duration>,

    /// How long the response is kept, where that is less than the key [default: as long]
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    response_retention: Option<Duration>,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    ask: Ask,
}

/// A header as HTTP writes it.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("{text:?} is not a header; write it like 'name: value'"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// A response, if any part of one was given.
pub(super) fn response(
    status: Option<i32>,
    headers: Vec<(String, String)>,
    body: Option<&Input>,
) -> Result<Option<StoredResponse>, Error> {
    if status.is_none() && headers.is_empty() && body.is_none() {
        return Ok(None);
    }
    let headers = headers.into_iter().map(|(name, value)| Header {
        name,
        value: value.into_bytes().into(),
    });
    Ok(Some(StoredResponse {
        status: status.unwrap_or_default(),
        headers: headers.collect(),
        body: match body {
            Some(body) => body.read()?.into(),
            None => Default::default(),
        },
    }))
}

impl CompleteCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.ask.client(matches)?;
        let response = client
            .complete(CompleteRequest {
                scope: self.scope,
                key: self.key,
                claim_token: self.token,
                response: response(self.status, self.headers, self.body.as_ref())?,
                retention: self.retention.map(wire),
                response_retention: self.response_retention.map(wire),
                ..Default::default()
            })
            .await?;
        output::answer(
            self.output.format,
            &json::to_value("CompleteResponse", &response),
        )?;
        Ok(ExitCode::from(match response.outcome {
            Some(Outcome::Completed(_)) => 0,
            Some(Outcome::Lost(_)) => exit::LOST,
            None => exit::DEFECT,
        }))
    }
}
