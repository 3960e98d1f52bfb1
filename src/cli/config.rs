//! `claimlock config`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{ArgMatches, Args};

use super::{Error, output};
use crate::config::{InForce, SettingsArgs};

/// Long values push their own comment aside, not everyone's.
const WIDEST_COLUMN: usize = 48;

const EXAMPLES: &str = "\
Examples:
  What would be in force with this variable, and where each setting comes from:
    CLAIMLOCK_STORE_TIMEOUT=500ms claimlock config

  Check a file; the exit code is 2 where a setting is wrong:
    claimlock config --config claimlock.toml > /dev/null";

/// Print the settings of claimlock serve that are in force, as a file for --config, with passwords hidden
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Config {
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Config {
    pub(super) fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let loaded = self.settings.load(matches)?;
        for warning in &loaded.warnings {
            output::note(format_args!("warning: {warning}"));
        }
        output::write(document(&loaded.in_force).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A file for `--config`, each setting with its source beside it.
fn document(settings: &[InForce]) -> String {
    let lines: Vec<_> = settings.iter().map(InForce::to_string).collect();
    let widths = lines.iter().map(|line| line.chars().count());
    let column = widths
        .filter(|width| *width <= WIDEST_COLUMN)
        .max()
        .unwrap_or(0);

    let mut document =
        String::from("# Claimlock's settings in force; a password is shown as ***\n\n");
    for (line, setting) in lines.iter().zip(settings) {
        let _ = writeln!(
            document,
            "{line:<column$}  # from {}",
            setting.origin.word()
        );
    }
    document
}
