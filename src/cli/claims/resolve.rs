//! `claimlock claims resolve`.

use std::process::ExitCode;

use claimlock_client::proto::resolve_claim_request::Resolution;
use claimlock_client::proto::{ClaimInfo, ClaimState, EraseResponse, Forget, ResolveClaimRequest};
use clap::{ArgMatches, Args};
use serde_json::json;

use super::super::ask::Ask;
use super::super::complete::{header, response};
use super::super::confirm::{Confirm, left};
use super::super::input::Input;
use super::super::output::{self, Format, OutputForPeople};
use super::super::people::told;
use super::super::table::{self, Table};
use super::super::{Error, exit};
use super::{Which, fields, state, to_json};

const HELP: &str = concat!(
    "\
Examples:
  The bank says that the card was charged, so later claims get this answer:
    claimlock claims resolve order-1001 --complete --status 201 \\
      --body answer.json --reason 'charged, see bank ref 88'

  It was not, so the next claim may do it:
    claimlock claims resolve order-1001 --forget \\
      --reason 'not charged, see bank ref 88'

  Without a terminal, the grant that was looked at:
    token=$(claimlock claims get order-1001 -o json | jq -r .fencingToken)
    claimlock claims resolve order-1001 --fencing-token \"$token\" --forget \\
      --reason 'not charged, see bank ref 88'

A claim with a live lease is left to its holder, and one that has moved on since it was looked at is left alone. The \
reason goes to the service's audit log. Prints what it was before and what it is after.

",
    exit::codes!(
        "
   0  resolved
  66  nothing is known of the key
  82  left as it is: it has moved on, its lease is live, there is no such thing
      to do, or you said no
"
    )
);

/// clap lets what conflicts stand in for what is required, so --status cannot require --complete.
const OTHER_THAN_COMPLETE: [&str; 2] = ["forget", "erase_response"];

/// Settle a claim whose holder no longer does
///
/// One that is uncertain, whose lease is over, that was given up, or that was completed with the wrong response.
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Resolve {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    how: How,

    /// Why, for the audit log; at most 1 KiB
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// The grant that is meant, as claims get shows it [default: the one that is there, after it was shown and confirmed]
    #[arg(long, value_name = "NUMBER")]
    fencing_token: Option<i64>,

    /// With --complete: the response's status, such as an HTTP status
    #[arg(long, value_name = "NUMBER", conflicts_with_all = OTHER_THAN_COMPLETE)]
    status: Option<i32>,

    /// With --complete: a header of the response; can be given more than once
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header, conflicts_with_all = OTHER_THAN_COMPLETE)]
    headers: Vec<(String, String)>,

    /// With --complete: the response's body; - for standard input
    #[arg(long, value_name = "PATH", conflicts_with_all = OTHER_THAN_COMPLETE)]
    body: Option<Input>,

    #[command(flatten)]
    confirm: Confirm,

    #[command(flatten)]
    output: OutputForPeople,

    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct How {
    /// The work was done: every later claim replays the response
    #[arg(long)]
    complete: bool,

    /// The work was not done: the next claim may do it, with any request
    #[arg(long)]
    forget: bool,

    /// Keep the key completed, and remove its response
    #[arg(long)]
    erase_response: bool,
}

impl How {
    fn question(&self) -> &'static str {
        match self {
            Self { complete: true, .. } => "Complete it?",
            Self { forget: true, .. } => "Forget it, so that the next claim does the work?",
            Self { .. } => "Erase its response?",
        }
    }
}

impl Resolve {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        if self.fencing_token.is_none() {
            self.confirm.is_possible()?;
        }
        let client = self.ask.client(matches)?;
        let resolution = match &self.how {
            How { complete: true, .. } => Resolution::Complete(
                response(self.status, self.headers, self.body.as_ref())?.unwrap_or_default(),
            ),
            How { forget: true, .. } => Resolution::Forget(Forget {}),
            How { .. } => Resolution::EraseResponse(EraseResponse {}),
        };
        let before = self.which.look(&client).await?;
        let fencing_token = match self.fencing_token {
            Some(token) => token,
            None => {
                if let Some(why) = why_left(Some(&before), before.fencing_token, &self.how) {
                    return Err(left(why));
                }
                let shown = table::pairs(&fields(&before));
                self.confirm.ask(&shown, self.how.question())?;
                before.fencing_token
            }
        };
        let answer = client
            .resolve_claim(ResolveClaimRequest {
                scope: self.which.scope,
                key: self.which.key,
                fencing_token,
                reason: self.reason,
                resolution: Some(resolution),
                ..Default::default()
            })
            .await?;
        let after = answer.claim.as_ref();
        match self.output.format {
            Format::Json => {
                let after = after.map(to_json);
                let answer = json!({"resolved": answer.resolved, "before": to_json(&before), "after": after});
                output::line(&answer.to_string())?;
            }
            Format::Table if answer.resolved => {
                output::write(changes(&before, after).as_bytes())?;
            }
            Format::Table => {}
        }
        if answer.resolved {
            return Ok(ExitCode::SUCCESS);
        }
        let why = why_left(after, fencing_token, &self.how);
        Err(left(why.unwrap_or_else(|| "left as it is".to_owned())))
    }
}

/// Why the service leaves a claim alone; none where it does not.
fn why_left(claim: Option<&ClaimInfo>, fencing_token: i64, how: &How) -> Option<String> {
    let Some(claim) = claim else {
        return Some(
            "left as it is: nothing is known of the key any more; it was forgotten, or ran out"
                .to_owned(),
        );
    };
    let why = if claim.fencing_token != fencing_token {
        format!(
            "it has moved on: it is now {}, with the fencing token {}",
            state(claim),
            claim.fencing_token
        )
    } else if claim.state() == ClaimState::InFlight {
        format!(
            "its lease is live for another {}, and only its holder may settle it",
            told(claim.lease_left)
        )
    } else if how.erase_response && claim.state() != ClaimState::Completed {
        format!("it is {}, so there is no response to erase", state(claim))
    } else {
        return None;
    };
    Some(format!("left as it is: {why}"))
}

/// What is different, and the state in any case.
fn changes(before: &ClaimInfo, after: Option<&ClaimInfo>) -> String {
    let Some(after) = after else {
        return format!(
            "before: {}, attempt {}, fencing token {}\nafter: nothing is known of the key\n",
            state(before),
            before.attempt,
            before.fencing_token
        );
    };
    let of_after = fields(after);
    let rows: Vec<_> = fields(before)
        .into_iter()
        .zip(of_after)
        .filter(|((name, before), (_, after))| *name == "state" || before != after)
        .map(|((name, before), (_, after))| vec![name.to_owned(), before, after])
        .collect();
    Table::new(vec!["RESOLVED", "BEFORE", "AFTER"]).page(&rows)
}
