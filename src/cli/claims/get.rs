//! `claimlock claims get`.

use std::process::ExitCode;

use clap::{ArgMatches, Args};

use super::super::ask::Ask;
use super::super::output::{self, Format, OutputForPeople};
use super::super::{Error, exit, table};
use super::{Which, fields, to_json};

const HELP: &str = concat!(
    "\
Examples:
  All there is to know of a key:
    claimlock claims get order-1001

  Whether a key is done, for a script:
    claimlock claims get order-1001 -o json |
      jq -e '.state == \"CLAIM_STATE_COMPLETED\"'

Nothing is shown of the request, the response and the checkpoint but their sizes. As JSON, it is the ClaimInfo of \
the wire contract.

",
    exit::codes!(
        "
   0  shown
  66  nothing is known of the key
"
    )
);

/// Show a claim
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Get {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    output: OutputForPeople,

    #[command(flatten)]
    ask: Ask,
}

impl Get {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.ask.client(matches)?;
        let claim = self.which.look(&client).await?;
        match self.output.format {
            Format::Json => output::line(&to_json(&claim).to_string())?,
            Format::Table => output::write(table::pairs(&fields(&claim)).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
