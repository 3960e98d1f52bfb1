//! `claimlock claims`: what operators see of claims, and do about them.

mod get;
mod ls;
mod resolve;

use std::process::ExitCode;

use claimlock_client::proto::{ClaimInfo, ClaimState, GetClaimRequest, LeaseOverPolicy};
use claimlock_client::{Client, json};
use clap::{ArgMatches, Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::people::{moment, text, told};
use super::{Error, exit};

const HELP: &str = "\
Examples:
  What waits for somebody to decide, one in full, and the decision:
    claimlock claims ls --state uncertain
    claimlock claims get order-1001
    claimlock claims resolve order-1001 --forget \\
      --reason 'not charged, see bank ref 88'";

/// Look at claims, and settle those whose holders no longer do
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct ClaimsCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Ls(ls::Ls),
    Get(get::Get),
    Resolve(Box<resolve::Resolve>),
}

impl ClaimsCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        match self.what {
            What::Ls(ls) => ls.run(matches).await,
            What::Get(get) => get.run(matches).await,
            What::Resolve(resolve) => resolve.run(matches).await,
        }
    }
}

/// The states of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StateArg {
    /// A lease is live
    InFlight,
    /// The lease ended; the next claim takes over
    LeaseOver,
    /// The lease ended, and the next claim gets nothing until the claim is resolved
    Uncertain,
    /// The work is done
    Completed,
    /// It was given up without an effect
    Abandoned,
}

impl From<StateArg> for ClaimState {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::InFlight => Self::InFlight,
            StateArg::LeaseOver => Self::LeaseOver,
            StateArg::Uncertain => Self::Uncertain,
            StateArg::Completed => Self::Completed,
            StateArg::Abandoned => Self::Abandoned,
        }
    }
}

/// Which claim.
#[derive(Args)]
struct Which {
    /// The idempotency key
    key: String,

    /// Whose key it is
    #[arg(long, value_name = "NAME", default_value = "")]
    scope: String,
}

impl Which {
    /// The claim as it is now.
    async fn look(&self, client: &Client) -> Result<ClaimInfo, Error> {
        let response = client
            .get_claim(GetClaimRequest {
                scope: self.scope.clone(),
                key: self.key.clone(),
                ..Default::default()
            })
            .await?;
        response.claim.ok_or_else(|| Error::Outcome {
            code: exit::NOT_KNOWN,
            text: format!("nothing is known of the key {:?}", self.key),
        })
    }
}

/// The word that `--state` takes.
fn state(claim: &ClaimInfo) -> &'static str {
    match claim.state() {
        ClaimState::Unspecified => "unknown",
        ClaimState::InFlight => "in-flight",
        ClaimState::LeaseOver => "lease-over",
        ClaimState::Uncertain => "uncertain",
        ClaimState::Completed => "completed",
        ClaimState::Abandoned => "abandoned",
    }
}

fn to_json(claim: &ClaimInfo) -> Value {
    json::to_value("ClaimInfo", claim)
}

/// Every field, for people.
fn fields(claim: &ClaimInfo) -> Vec<(&'static str, String)> {
    // Taken apart, so that a field that the contract gains is not forgotten here.
    let ClaimInfo {
        tenant,
        scope,
        key,
        operation,
        state: _,
        attempt,
        fencing_token,
        holder,
        on_lease_over: _,
        claimed_at,
        renewed_at,
        completed_at,
        lease_left,
        retention_left,
        response_status,
        response_bytes,
        checkpoint_bytes,
        taken_over,
        abandon_reason,
        trace_id,
    } = claim;
    vec![
        ("tenant", text(tenant)),
        ("scope", text(scope)),
        ("key", text(key)),
        ("operation", text(operation)),
        ("state", state(claim).to_owned()),
        ("attempt", attempt.to_string()),
        ("fencing token", fencing_token.to_string()),
        ("holder", text(holder)),
        ("on lease over", policy(claim).to_owned()),
        ("claimed at", moment(*claimed_at)),
        ("renewed at", moment(*renewed_at)),
        ("completed at", moment(*completed_at)),
        ("lease left", told(*lease_left)),
        ("retention left", told(*retention_left)),
        ("response status", response_status.to_string()),
        ("response bytes", response_bytes.to_string()),
        ("checkpoint bytes", checkpoint_bytes.to_string()),
        ("taken over", yes_or_no(*taken_over).to_owned()),
        ("abandon reason", text(abandon_reason)),
        ("trace id", text(trace_id)),
    ]
}

fn policy(claim: &ClaimInfo) -> &'static str {
    match claim.on_lease_over() {
        LeaseOverPolicy::Unspecified => "unknown",
        LeaseOverPolicy::TakeOver => "take over",
        LeaseOverPolicy::MarkUncertain => "mark uncertain",
    }
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}
