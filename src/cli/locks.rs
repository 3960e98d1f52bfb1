//! `claimlock locks`: what operators see of locks, and do about them.

mod get;
mod ls;
mod release;

use std::process::ExitCode;

use claimlock_client::proto::{GetLockRequest, LockHolder, LockInfo, LockMode};
use claimlock_client::{Client, json};
use clap::{ArgMatches, Args, Subcommand};
use serde_json::Value;

use super::people::{text, told};
use super::table::{self, Table};
use super::{Error, exit};

const HELP: &str = "\
Examples:
  Who holds what, one of them in full, and an end to it:
    claimlock locks ls
    claimlock locks get nightly-report
    claimlock locks release nightly-report \\
      --reason 'node-a hangs in the kernel, rebooted'";

/// Look at locks, and take them away from holders that do not release them
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct LocksCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Ls(ls::Ls),
    Get(get::Get),
    Release(release::Release),
}

impl LocksCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        match self.what {
            What::Ls(ls) => ls.run(matches).await,
            What::Get(get) => get.run(matches).await,
            What::Release(release) => release.run(matches).await,
        }
    }
}

/// The lock as it is now.
async fn look(client: &Client, resource: &str) -> Result<LockInfo, Error> {
    let response = client
        .get_lock(GetLockRequest {
            resource: resource.to_owned(),
            ..Default::default()
        })
        .await?;
    response.lock.ok_or_else(|| Error::Outcome {
        code: exit::NOT_KNOWN,
        text: format!("the lock {resource:?} is free"),
    })
}

fn to_json(lock: &LockInfo) -> Value {
    json::to_value("LockInfo", lock)
}

fn mode(holder: &LockHolder) -> &'static str {
    match holder.mode() {
        LockMode::Unspecified => "unknown",
        LockMode::Exclusive => "exclusive",
        LockMode::Shared => "shared",
    }
}

/// Every field, for people: those of the lock, then its holders.
fn described(lock: &LockInfo) -> String {
    // Taken apart, so that a field that the contract gains is not forgotten here.
    let LockInfo {
        tenant,
        resource,
        holders,
        queue_length,
        fencing_token,
        free_in,
    } = lock;
    let mut described = table::pairs(&[
        ("tenant", text(tenant)),
        ("resource", text(resource)),
        ("fencing token", fencing_token.to_string()),
        ("waiting", queue_length.to_string()),
        ("free in", told(*free_in)),
        ("holders", holders.len().to_string()),
    ]);
    if !holders.is_empty() {
        let rows: Vec<_> = holders.iter().map(row).collect();
        let mut table = Table::new(vec!["FENCING TOKEN", "MODE", "HELD FOR", "LEASE", "HOLDER"]);
        described.push('\n');
        described.push_str(&table.page(&rows));
    }
    described
}

fn row(one: &LockHolder) -> Vec<String> {
    let LockHolder {
        holder,
        fencing_token,
        mode: _,
        held_for,
        lease_left,
    } = one;
    vec![
        fencing_token.to_string(),
        mode(one).to_owned(),
        told(*held_for),
        told(*lease_left),
        text(holder),
    ]
}
