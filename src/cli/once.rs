//! `claimlock once`.

mod output;
mod stored;

use std::process::ExitCode;
use std::time::Duration;

use claimlock_client::proto::{InFlight, Mismatch, Replay, Uncertain};
use claimlock_client::{Attempt, Claim, Client, Effect, Policy, Request};
use clap::{ArgMatches, Args};

use super::ask::{self, Ask};
use super::command::{self, CommandLine, Ended, OutputGoes, Running};
use super::output::{note, printable};
use super::progress::Progress;
use super::signals::Signals;
use super::{Error, exit};
use crate::config::{any_duration, any_size};
use output::Captured;
use stored::Stored;

const HELP: &str = concat!(
    "\
Examples:
  A report that is made once a day, on whichever node cron starts it first:
    claimlock once \"report-$(date +%F)\" -- make-report --mail

  A payment that must not be sent again on a guess when a node dies half-way:
    claimlock once \"payout-$ID\" --uncertain -- send-payout \"$ID\"

  A deployment step that every pod tries, and that all wait for:
    claimlock once \"migrate-$VERSION\" --wait 10m -- ./migrate.sh

The command finds CLAIMLOCK_KEY, CLAIMLOCK_ATTEMPT (1 for the first), CLAIMLOCK_TAKEN_OVER (1 where an earlier run \
may have had an effect, else 0), CLAIMLOCK_FENCING_TOKEN and CLAIMLOCK_TOKEN in its environment.

A command that ends with 0 is done: its exit code and what it printed are stored, and the next time printed again \
without running it. One that ends otherwise is run again the next time. What it prints goes through as it comes, and \
is stored when it ends.

",
    exit::codes!(
        "
   *  that of the command, also when it is replayed; 128 + N where signal N
      ended it
  65  the key was used for another command, or for other arguments
  74  the command was run, and its result could not be stored
  75  it is running elsewhere (-E sets another code)
  76  the claim was lost while the command ran, to an operator or to another run
  79  an earlier run fell silent and may have had an effect: see claimlock
      claims resolve --help
  81  it was done, and its exit code is not kept
 126  the command could not be run
 127  the command was not found
"
    )
);

/// Run a command once, and replay its result the next time
///
/// Claims KEY, runs the command with the claim renewed all the while, and stores its exit code and output.
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Once {
    /// What is done once, at most 255 printable ASCII characters
    key: String,

    #[command(flatten)]
    command: CommandLine,

    /// Whose key it is: keys of different scopes never meet
    #[arg(long, value_name = "NAME", default_value = "")]
    scope: String,

    /// What the key is used for, for operators to read; another one is a mismatch [default: the command's name]
    #[arg(long, value_name = "TEXT")]
    operation: Option<String>,

    /// Take the same key with other arguments for the same
    #[arg(long)]
    ignore_arguments: bool,

    /// Who runs it, for operators to read [default: host and process]
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,

    /// How long others wait if this node falls silent, from 1ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = any_duration)]
    lease: Duration,

    /// How long the key is remembered
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = any_duration)]
    retention: Duration,

    /// How long to wait where it is running elsewhere
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = any_duration)]
    wait: Duration,

    /// Where a run falls silent, or fails, let nobody run it again before an operator says so
    #[arg(long)]
    uncertain: bool,

    /// Store a failure as the result too, instead of running the command again the next time
    #[arg(long)]
    keep_failure: bool,

    /// Do not store what the command prints, only its exit code
    #[arg(long)]
    no_output: bool,

    /// How much of what the command prints is stored at most; more is passed through and not stored
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = any_size)]
    max_output: usize,

    /// How long what it prints is kept, where that is less than the key [default: as long]
    #[arg(long, value_name = "DURATION", value_parser = output_retention)]
    output_retention: Option<Duration>,

    /// The exit code where it is running elsewhere
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::HELD)]
    conflict_exit_code: u8,

    /// How long the command has between SIGTERM and SIGKILL when the claim is lost
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = any_duration)]
    kill_after: Duration,

    #[command(flatten)]
    ask: Ask,
}

impl Once {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.ask.client(matches)?;
        // From now on, as one that came between the claim and the command would leave the claim behind.
        let mut signals = Signals::listen().map_err(Error::Signals)?;
        let code = tokio::select! {
            attempt = self.attempt(&client) => match attempt {
                Ok(Attempt::Claimed(claim)) => self.do_it(claim, &mut signals).await,
                Ok(Attempt::Replay(replay)) => replay_it(replay),
                Ok(refused) => self.refused(&refused),
                // What may have been granted is given back.
                Err(failure) => Err(failure),
            },
            received = signals.next() => Ok(received.exit_code()),
        };
        ask::finish(&client).await;
        code
    }

    async fn attempt(&self, client: &Client) -> Result<Attempt, Error> {
        let operation = self.operation.clone();
        let mut request = Request::new(&self.key)
            .scope(&self.scope)
            .operation(operation.unwrap_or_else(|| self.command.name()))
            .holder(self.holder.clone().unwrap_or_else(ask::default_holder))
            .lease(self.lease)
            .retention(self.retention)
            .wait(self.wait);
        if self.uncertain {
            request = request.on_lease_over(Policy::MarkUncertain);
        }
        if !self.ignore_arguments {
            request = request.body(self.arguments());
        }
        let progress = Progress::new();
        let attempt = client.begin_with(&request, |in_flight| {
            progress.waiting_for(format!("waiting: {}", runs(&self.key, in_flight)));
        });
        Ok(attempt.await?)
    }

    /// Each ends with a zero byte, which none can hold: so "a b" and "a" "b" differ.
    fn arguments(&self) -> Vec<u8> {
        use std::os::unix::ffi::OsStrExt as _;
        let argv = self.command.argv.iter();
        argv.flat_map(|argument| [argument.as_bytes(), b"\0"].concat())
            .collect()
    }

    async fn do_it(&self, claim: Claim, signals: &mut Signals) -> Result<ExitCode, Error> {
        let variables = [
            ("CLAIMLOCK_KEY", self.key.clone()),
            ("CLAIMLOCK_ATTEMPT", claim.attempt().to_string()),
            (
                "CLAIMLOCK_TAKEN_OVER",
                u8::from(claim.taken_over()).to_string(),
            ),
            ("CLAIMLOCK_FENCING_TOKEN", claim.fencing_token().to_string()),
            ("CLAIMLOCK_TOKEN", claim.token().to_owned()),
        ];
        let started = Running::start(&self.command, &variables, OutputGoes::Here);
        let mut running = match started {
            Ok(running) => running,
            Err(error) => return Ok(self.give_up(claim, &Ended::NotStarted(error)).await),
        };
        let limit = if self.no_output { 0 } else { self.max_output };
        let captured = Captured::start(running.take_output(), limit);
        let lost = claim.lost_for_good();
        let (ended, loss) = running.supervise(signals, lost, self.kill_after).await;
        let captured = captured.finish(signals).await;
        if loss.is_some() {
            return Ok(ExitCode::from(exit::LOST));
        }
        let done = match &ended {
            Ended::NotStarted(_) | Ended::Unseen(_) => false,
            Ended::With(status) => status.success() || self.keep_failure,
        };
        if !done {
            return Ok(self.give_up(claim, &ended).await);
        }
        if captured.is_too_much && !self.no_output {
            note(format_args!(
                "the command printed more than {} bytes: stored without its output",
                self.max_output
            ));
        }
        let stored = Stored::new(ended.exit_code(), captured, self.no_output);
        self.store(claim, stored).await?;
        Ok(command::code(&ended))
    }

    async fn store(&self, mut claim: Claim, stored: Stored) -> Result<(), Error> {
        let without_output = stored.without_output();
        // One that is longer than the key's says nothing, and may be longer than the service takes.
        let kept_for = self.output_retention.map(|kept| kept.min(self.retention));
        let mut stores = claim.complete(Some(stored.into_response()), kept_for).await;
        if stores
            .as_ref()
            .is_err_and(|failure| failure.reason == "TOO_LARGE")
        {
            note("the service takes no output of this size: stored without it");
            let response = without_output.into_response();
            stores = claim.complete(Some(response), kept_for).await;
        }
        match stores {
            Ok(Ok(())) => Ok(()),
            Ok(Err(loss)) => Err(Error::Outcome {
                code: exit::LOST,
                text: format!("the command was run, but its claim was lost meanwhile: {loss}"),
            }),
            Err(failure) => {
                claim.leave();
                Err(Error::Outcome {
                    code: exit::NOT_RECORDED,
                    text: format!("the command was run, but its result is not stored: {failure}"),
                })
            }
        }
    }

    /// The command had no success: the next run may try, as the policy of the claim says where this one may have had an
    /// effect.
    async fn give_up(&self, claim: Claim, ended: &Ended) -> ExitCode {
        let effect = match ended {
            Ended::NotStarted(_) => {
                note(ended.told_of(&self.command));
                Effect::None
            }
            Ended::Unseen(_) => {
                note(ended.told_of(&self.command));
                Effect::Unknown
            }
            Ended::With(_) => Effect::Unknown,
        };
        let abandoned = claim.abandon(effect, &ended.reason()).await;
        if let Err(failure) = abandoned {
            note(format_args!(
                "the claim could not be given up, and stands until its lease ends: {failure}"
            ));
        }
        command::code(ended)
    }

    fn refused(&self, refused: &Attempt) -> Result<ExitCode, Error> {
        let key = &self.key;
        let (code, text) = match refused {
            Attempt::InFlight(in_flight) => (self.conflict_exit_code, runs(key, in_flight)),
            Attempt::Mismatch(Mismatch { operation }) => (
                exit::MISMATCH,
                format!(
                    "{key} was first used for another command or other arguments ({})",
                    printable(operation)
                ),
            ),
            Attempt::Uncertain(Uncertain {
                holder, attempt, ..
            }) => (
                exit::UNCERTAIN,
                format!(
                    "{key} is uncertain: attempt {attempt} by {holder:?} fell silent or failed, and may have had \
                     an effect; settle it with claimlock claims resolve"
                ),
            ),
            Attempt::Lost(loss) => (exit::LOST, format!("{key} could not be claimed: {loss}")),
            Attempt::Claimed(_) | Attempt::Replay(_) => (exit::DEFECT, String::new()),
        };
        Err(Error::Outcome { code, text })
    }
}

/// The service takes none that is shorter, and would say so when the command has been run.
fn output_retention(text: &str) -> Result<Duration, String> {
    match any_duration(text)? {
        kept if kept < Duration::from_millis(1) => Err(format!(
            "{text:?} is less than 1ms; --no-output stores no output at all"
        )),
        kept => Ok(kept),
    }
}

fn runs(key: &str, in_flight: &InFlight) -> String {
    match printable(&in_flight.holder).as_str() {
        "" => format!("{key} is running elsewhere"),
        holder => format!("{key} is running elsewhere ({holder})"),
    }
}

fn replay_it(replay: Replay) -> Result<ExitCode, Error> {
    let Some(response) = replay.response else {
        return Err(Error::Outcome {
            code: exit::RESPONSE_GONE,
            text: "it was done before, and its exit code and output are not kept".to_owned(),
        });
    };
    Stored::from_response(response.into()).replay()
}
