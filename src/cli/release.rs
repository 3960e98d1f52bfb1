//! `claimlock release`.

use std::process::ExitCode;

use claimlock_client::json;
use claimlock_client::proto::ReleaseLockRequest;
use claimlock_client::proto::release_lock_response::Outcome;
use clap::{ArgMatches, Args};

use super::ask::Ask;
use super::output::{self, Output};
use super::{Error, exit};

const HELP: &str = concat!(
    "\
Examples:
  A lock that claimlock acquire got with this token:
    claimlock release backup --token \"$token\"

Prints the ReleaseLockResponse of the wire contract. A call that is repeated gets the same answer. To take a lock \
away from another holder, see claimlock locks release.

",
    exit::codes!(
        "
   0  released
  76  lost: this token did not hold the lock; whoever holds it now keeps it
"
    )
);

/// Release a lock
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct ReleaseCommand {
    /// What is locked
    name: String,

    /// The token that holds it
    #[arg(long, value_name = "TOKEN")]
    token: String,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    ask: Ask,
}

impl ReleaseCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.ask.client(matches)?;
        let response = client
            .release_lock(ReleaseLockRequest {
                resource: self.name,
                lock_token: self.token,
                ..Default::default()
            })
            .await?;
        output::answer(
            self.output.format,
            &json::to_value("ReleaseLockResponse", &response),
        )?;
        Ok(ExitCode::from(match response.outcome {
            Some(Outcome::Released(_)) => 0,
            Some(Outcome::Lost(_)) => exit::LOST,
            None => exit::DEFECT,
        }))
    }
}
