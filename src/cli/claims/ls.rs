//! `claimlock claims ls`.

use std::process::ExitCode;

use claimlock_client::proto::{ClaimInfo, ClaimState, ListClaimsRequest};
use clap::{ArgMatches, Args};

use super::super::listing::{ListArgs, Listing, Page};
use super::super::people::{age, text, told};
use super::super::{Error, exit};
use super::{StateArg, state, to_json};

const HELP: &str = concat!(
    "\
Examples:
  What waits for somebody to decide:
    claimlock claims ls --state uncertain --all-tenants

  The keys of one customer, for a program:
    claimlock claims ls --prefix 'customer-7/' -o json | jq -r .key

They come in no order, and page by page: what is claimed or forgotten meanwhile may be listed or not. As JSON, each \
is one line, with the fields of ClaimInfo of the wire contract.

",
    exit::codes!(
        "
   0  listed, also where there are none
"
    )
);

/// List claims
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Ls {
    /// Only those in this state
    #[arg(long, value_name = "STATE")]
    state: Option<StateArg>,

    #[command(flatten)]
    list: ListArgs,
}

impl Ls {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.list.client(matches)?;
        let state = self.state.map_or(ClaimState::Unspecified, Into::into);
        let listing = Listing {
            format: self.list.output.format,
            limit: self.list.limit,
            what: "claims",
            header: vec![
                "KEY", "SCOPE", "TENANT", "STATE", "ATTEMPT", "LEASE", "AGE", "HOLDER",
            ],
            row,
            json: to_json,
        };
        let page = async |page_size, page_token| {
            let request = ListClaimsRequest {
                all_tenants: self.list.all_tenants,
                key_prefix: self.list.prefix.clone(),
                state: state.into(),
                page_size,
                page_token,
                ..Default::default()
            };
            let response = client.list_claims(request).await?;
            Ok(Page {
                items: response.claims,
                next: response.next_page_token,
            })
        };
        listing.print(page).await?;
        Ok(ExitCode::SUCCESS)
    }
}

fn row(claim: &ClaimInfo) -> Vec<String> {
    vec![
        text(&claim.key),
        text(&claim.scope),
        text(&claim.tenant),
        state(claim).to_owned(),
        claim.attempt.to_string(),
        told(claim.lease_left),
        age(claim.claimed_at),
        text(&claim.holder),
    ]
}
