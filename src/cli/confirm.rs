//! The question before a change that cannot be taken back.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;

use super::{Error, exit};
use crate::config::SettingsError;

/// How a change is confirmed that is made to whatever is there.
#[derive(Args)]
pub(super) struct Confirm {
    /// Do not ask whether this is what is meant; needed where there is no terminal to ask on
    #[arg(short, long)]
    yes: bool,
}

impl Confirm {
    /// Refuses at once where nobody can be asked.
    pub(super) fn is_possible(&self) -> Result<(), Error> {
        if self.yes || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Ok(());
        }
        Err(Error::Settings(SettingsError::new(
            "there is no terminal to ask on whether this is what is meant: name what was looked at with \
             --fencing-token, or take what is there with --yes",
        )))
    }

    /// Shows what it is about, and asks.
    pub(super) fn ask(&self, shown: &str, question: &str) -> Result<(), Error> {
        if self.yes {
            return Ok(());
        }
        let mut terminal = io::stderr().lock();
        let asked = write!(terminal, "{shown}{question} [y/N] ").and_then(|()| terminal.flush());
        drop(terminal);
        let mut answer = String::new();
        let answered = asked.and_then(|()| io::stdin().read_line(&mut answer));
        if answered.is_ok() && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
            return Ok(());
        }
        Err(left("nothing was changed"))
    }
}

/// An operator's change that was not made.
pub(super) fn left(why: impl Into<String>) -> Error {
    Error::Outcome {
        code: exit::LEFT,
        text: why.into(),
    }
}
