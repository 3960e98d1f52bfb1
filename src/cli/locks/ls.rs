//! `claimlock locks ls`.

use std::process::ExitCode;

use claimlock_client::proto::{ListLocksRequest, LockInfo};
use clap::{ArgMatches, Args};

use super::super::listing::{ListArgs, Listing, Page};
use super::super::people::{NONE, text, told};
use super::super::{Error, exit};
use super::{mode, to_json};

const HELP: &str = concat!(
    "\
Examples:
  Who holds what:
    claimlock locks ls

  The locks of one kind that are held by a node that is gone, for a program:
    claimlock locks ls --prefix 'disk-' -o json |
      jq -r 'select(.holders[]?.holder | startswith(\"node-b \")).resource'

They come in no order, and page by page: what is acquired or released meanwhile may be listed or not. Ten holders of \
each are looked at; claimlock locks get shows all. As JSON, each is one line, with the fields of LockInfo of the \
wire contract.

",
    exit::codes!(
        "
   0  listed, also where there are none
"
    )
);

/// List locks that are taken
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Ls {
    #[command(flatten)]
    list: ListArgs,
}

impl Ls {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.list.client(matches)?;
        let listing = Listing {
            format: self.list.output.format,
            limit: self.list.limit,
            what: "locks",
            header: vec![
                "RESOURCE", "TENANT", "MODE", "WAITING", "LEASE", "HELD FOR", "FREE IN", "HOLDER",
            ],
            row,
            json: to_json,
        };
        let page = async |page_size, page_token| {
            let request = ListLocksRequest {
                all_tenants: self.list.all_tenants,
                resource_prefix: self.list.prefix.clone(),
                page_size,
                page_token,
                ..Default::default()
            };
            let response = client.list_locks(request).await?;
            Ok(Page {
                items: response.locks,
                next: response.next_page_token,
            })
        };
        listing.print(page).await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Of a lock with more than one holder it tells the first, and how many others were looked at.
fn row(lock: &LockInfo) -> Vec<String> {
    let first = lock.holders.first();
    let none = || NONE.to_owned();
    let holder = first.map_or_else(none, |first| match lock.holders.len() - 1 {
        0 => text(&first.holder),
        others => format!("{} and {others} more", text(&first.holder)),
    });
    vec![
        text(&lock.resource),
        text(&lock.tenant),
        first.map_or(NONE, mode).to_owned(),
        lock.queue_length.to_string(),
        first.map_or_else(none, |first| told(first.lease_left)),
        first.map_or_else(none, |first| told(first.held_for)),
        told(lock.free_in),
        holder,
    ]
}
