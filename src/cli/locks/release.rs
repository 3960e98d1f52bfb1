//! `claimlock locks release`.

use std::process::ExitCode;

use claimlock_client::proto::ForceReleaseLockRequest;
use clap::{ArgMatches, Args};
use serde_json::json;

use super::super::ask::Ask;
use super::super::confirm::{Confirm, left};
use super::super::output::{self, Format, OutputForPeople};
use super::super::{Error, exit};
use super::{described, look, to_json};

const HELP: &str = concat!(
    "\
Examples:
  A lock whose holder hangs and renews all the same; it is shown, you are asked:
    claimlock locks release nightly-report \\
      --reason 'node-a hangs in the kernel, rebooted'

  One of many holders, without a question:
    claimlock locks release transcode --fencing-token 1796058110114030 \\
      --reason 'worker 3 is gone'

What the holder does meanwhile is not stopped: only a check of the fencing token at the resource itself keeps it \
out, and the next token is higher than its own. A holder that ended needs no release: its lease runs out. The reason \
goes to the service's audit log.

",
    exit::codes!(
        "
   0  released
  66  the lock is free
  82  left as it is: nobody holds it with this fencing token, or you said no
"
    )
);

/// Take a lock away from its holders
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Release {
    /// What is locked
    name: String,

    /// Why, for the audit log; at most 1 KiB
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Only from this holder, as locks get shows it [default: from all, after they were shown and confirmed]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(1..))]
    fencing_token: Option<i64>,

    #[command(flatten)]
    confirm: Confirm,

    #[command(flatten)]
    output: OutputForPeople,

    #[command(flatten)]
    ask: Ask,
}

impl Release {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        if self.fencing_token.is_none() {
            self.confirm.is_possible()?;
        }
        let client = self.ask.client(matches)?;
        let before = look(&client, &self.name).await?;
        if self.fencing_token.is_none() {
            self.confirm
                .ask(&described(&before), "Take it away from all of them?")?;
        }
        let answer = client
            .force_release_lock(ForceReleaseLockRequest {
                resource: self.name,
                fencing_token: self.fencing_token.unwrap_or_default(),
                reason: self.reason,
                ..Default::default()
            })
            .await?;
        let released = answer.released_holders;
        match self.output.format {
            Format::Json => {
                let answer = json!({"releasedHolders": released, "before": to_json(&before)});
                output::line(&answer.to_string())?;
            }
            Format::Table if released == 1 => output::line("released 1 holder")?,
            Format::Table => output::line(&format!("released {released} holders"))?,
        }
        match self.fencing_token {
            Some(token) if released == 0 => Err(left(format!(
                "nobody holds it with the fencing token {token}; what such a holder left behind, by hold_at_least or \
                 lock_delay, has ended"
            ))),
            _ => Ok(ExitCode::SUCCESS),
        }
    }
}
