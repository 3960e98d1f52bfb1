//! `claimlock completions`.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::{Error, output};

const HELP: &str = "\
Examples:
  bash, for one user:
    mkdir -p ~/.local/share/bash-completion/completions
    claimlock completions bash \\
      > ~/.local/share/bash-completion/completions/claimlock

  zsh, in a folder of $fpath:
    claimlock completions zsh > ~/.zfunc/_claimlock

  fish:
    claimlock completions fish > ~/.config/fish/completions/claimlock.fish";

/// Print a script that completes this program's command lines
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Completions {
    /// Which shell it is for
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self, mut program: clap::Command) -> Result<ExitCode, Error> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "claimlock", &mut script);
        output::write(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
