//! `claimlock lock`.

use std::process::ExitCode;
use std::time::Duration;

use claimlock_client::proto::LockHeld;
use claimlock_client::{Acquisition, Client, HeldLock, Lock, Loss, Mode};
use clap::{ArgMatches, Args, ValueEnum};

use super::ask::{self, Ask};
use super::command::{self, CommandLine, Ended, OutputGoes, Running};
use super::output::{note, printable};
use super::progress::Progress;
use super::signals::Signals;
use super::{Error, exit};
use crate::config::any_duration;

const HELP: &str = concat!(
    "\
Examples:
  A nightly job that runs on one node; the others skip it:
    claimlock lock nightly --if-held=skip -- make-report

  The same where clocks differ by up to a minute, and the job takes a second:
    claimlock lock nightly-report --if-held=skip --hold-at-least 2m \\
      -- make-report

  Waiting for the lock, and telling the storage whose turn it is:
    claimlock lock disk-7 --wait 5m -- \\
      sh -c 'rewrite --fence \"$CLAIMLOCK_FENCING_TOKEN\" /mnt/7'

  At most three at once:
    claimlock lock transcode --shared --max-holders 3 --wait 1h -- \\
      transcode film.mkv

The command finds CLAIMLOCK_RESOURCE, CLAIMLOCK_FENCING_TOKEN and CLAIMLOCK_TOKEN in its environment. When the lock \
is lost it gets SIGTERM, and SIGKILL --kill-after later; so that nobody else gets in before that, the lock stays \
taken for --lock-delay after its lease ended. Only a check of the fencing token at the resource itself protects \
against a command that was paused for longer.

",
    exit::codes!(
        "
   *  that of the command; 128 + N where signal N ended it
  75  held by somebody else (-E sets another code; 0 with --if-held=skip)
  76  the lock was lost while the command ran
 126  the command could not be run
 127  the command was not found
"
    )
);

/// What to do where somebody else holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IfHeld {
    /// Fail, with the exit code of -E
    Fail,
    /// Run nothing, and end with 0
    Skip,
}

/// Run a command under a lock
///
/// Acquires the lock NAME, runs the command with the lock renewed all the while, and releases it.
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct LockCommand {
    /// What is locked, at most 255 printable ASCII characters
    name: String,

    #[command(flatten)]
    command: CommandLine,

    /// How long others wait if this node falls silent, from 1ms to 24h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = any_duration)]
    lease: Duration,

    /// How long to wait in turn for the lock; first come, first served
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = any_duration)]
    wait: Duration,

    /// Share it with others that share it
    #[arg(long)]
    shared: bool,

    /// How many may share it at once [default: any number]
    #[arg(long, value_name = "COUNT", requires = "shared")]
    max_holders: Option<i32>,

    /// How long the lock stays taken at least, so that a job that ends quickly does not run again on a node whose
    /// clock is behind
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    hold_at_least: Option<Duration>,

    /// How long nobody gets the lock after its lease ended without a release, at most 60s [default: as --kill-after, and
    /// 5s more with --end-on-close]
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    lock_delay: Option<Duration>,

    /// End the lock with the connection to the service, so that others need not wait for the lease when this program is
    /// killed; a connection that breaks while the command runs may cost it the lock
    #[arg(long)]
    end_on_close: bool,

    /// Who holds it, for operators to read [default: host and process]
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,

    /// What to do where somebody else holds the lock
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    if_held: IfHeld,

    /// The exit code where somebody else holds the lock
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::HELD)]
    conflict_exit_code: u8,

    /// How long the command has between SIGTERM and SIGKILL when the lock is lost
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = any_duration)]
    kill_after: Duration,

    #[command(flatten)]
    ask: Ask,
}

/// How long after a lock ended with the connection that may be known here at the latest.
const LOSS_IS_KNOWN_AFTER: Duration = Duration::from_secs(5);
/// The service takes no longer delay.
const LONGEST_LOCK_DELAY: Duration = Duration::from_secs(60);

impl LockCommand {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let client = self.ask.client(matches)?;
        // From now on, as one that came between the lock and the command would leave the lock behind.
        let mut signals = Signals::listen().map_err(Error::Signals)?;
        let code = tokio::select! {
            acquisition = self.acquire(&client) => match acquisition {
                Ok(Acquisition::Acquired(held)) => self.run_under(held, &mut signals).await,
                Ok(Acquisition::Held(by)) => self.held(&by),
                Ok(Acquisition::Lost(loss)) => Err(Error::Outcome {
                    code: exit::LOST,
                    text: format!("{} could not be locked: {loss}", self.name),
                }),
                // What may have been granted is given back.
                Err(failure) => Err(failure),
            },
            received = signals.next() => Ok(received.exit_code()),
        };
        ask::finish(&client).await;
        code
    }

    async fn acquire(&self, client: &Client) -> Result<Acquisition, Error> {
        let holder = self.holder.clone();
        let lock_delay = self.lock_delay.unwrap_or_else(|| {
            let known_after = if self.end_on_close {
                LOSS_IS_KNOWN_AFTER
            } else {
                Duration::ZERO
            };
            let delay = self.kill_after.saturating_add(known_after);
            delay.min(LONGEST_LOCK_DELAY)
        });
        let mut lock = Lock::new(&self.name)
            .holder(holder.unwrap_or_else(ask::default_holder))
            .lease(self.lease)
            .wait(self.wait)
            .end_on_close(self.end_on_close);
        if !lock_delay.is_zero() {
            lock = lock.lock_delay(lock_delay);
        }
        if self.shared {
            lock = lock.mode(Mode::Shared);
        }
        if let Some(max_holders) = self.max_holders {
            lock = lock.max_holders(max_holders);
        }
        if let Some(hold_at_least) = self.hold_at_least {
            lock = lock.hold_at_least(hold_at_least);
        }
        let progress = Progress::new();
        let acquisition = client.acquire_with(&lock, |held| {
            progress.waiting_for(format!("waiting: {}", held_by(&self.name, held)));
        });
        Ok(acquisition.await?)
    }

    async fn run_under(&self, held: HeldLock, signals: &mut Signals) -> Result<ExitCode, Error> {
        let variables = [
            ("CLAIMLOCK_RESOURCE", self.name.clone()),
            ("CLAIMLOCK_FENCING_TOKEN", held.fencing_token().to_string()),
            ("CLAIMLOCK_TOKEN", held.token().to_owned()),
        ];
        let started = Running::start(&self.command, &variables, OutputGoes::Through);
        let (ended, loss) = match started {
            Ok(mut running) => {
                let lost = held.lost();
                let (ended, loss) = running.supervise(signals, lost, self.kill_after).await;
                if let Some(loss) = loss.as_ref().filter(|_| running.may_leave_something()) {
                    // A release would end the delay that gives what is left the time to end.
                    held.leave();
                    return Err(self.lost(loss));
                }
                (ended, loss)
            }
            Err(error) => (Ended::NotStarted(error), None),
        };
        if matches!(ended, Ended::NotStarted(_) | Ended::Unseen(_)) {
            note(ended.told_of(&self.command));
        }
        // It may have been lost in the same moment in which the command ended.
        let loss = loss.or_else(|| held.loss());
        let loss = match held.release().await {
            Ok(released) => loss.or(released.err()),
            Err(failure) => {
                note(format_args!(
                    "the lock could not be released, and stays taken until its lease ends: {failure}"
                ));
                loss
            }
        };
        match loss {
            None => Ok(command::code(&ended)),
            Some(loss) => Err(self.lost(&loss)),
        }
    }

    fn lost(&self, loss: &Loss) -> Error {
        Error::Outcome {
            code: exit::LOST,
            text: format!("{} was lost while the command ran: {loss}", self.name),
        }
    }

    fn held(&self, by: &LockHeld) -> Result<ExitCode, Error> {
        match self.if_held {
            IfHeld::Skip => Ok(ExitCode::SUCCESS),
            IfHeld::Fail => Err(Error::Outcome {
                code: self.conflict_exit_code,
                text: held_by(&self.name, by),
            }),
        }
    }
}

fn held_by(name: &str, held: &LockHeld) -> String {
    let holders: Vec<_> = held
        .holders
        .iter()
        .map(|holder| printable(&holder.holder))
        .filter(|holder| !holder.is_empty())
        .collect();
    match (held.holders.is_empty(), holders.is_empty()) {
        (true, _) => format!("{name} stays taken for a while after its last holder"),
        (false, true) => format!("{name} is held by somebody else"),
        (false, false) => format!("{name} is held by {}", holders.join(", ")),
    }
}
