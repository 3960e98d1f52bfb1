//! A line on the terminal while something is waited for; nothing where there is none.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

/// What is waited for, and for how long it has been. Gone with the value.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new() -> Self {
        if !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {msg}; waited {elapsed}");
        bar.set_style(style.expect("the template is well-formed"));
        Self(bar)
    }

    /// Shows what is waited for.
    pub(super) fn waiting_for(&self, what: String) {
        self.0.set_message(what);
        self.0.enable_steady_tick(TICK);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
