//! `claimlock man`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{Error, output};

const HELP: &str = "\
Examples:
  Look at one:
    claimlock man > claimlock.1 && man ./claimlock.1

  Install one for each subcommand:
    claimlock man --dir /usr/local/share/man/man1";

/// Print the manual page, or write one for each subcommand
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Man {
    /// A folder to write a page for each subcommand into
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self, program: clap::Command) -> Result<ExitCode, Error> {
        match self.dir {
            Some(dir) => {
                std::fs::create_dir_all(&dir)
                    .and_then(|()| clap_mangen::generate_to(program, &dir))
                    .map_err(|source| Error::Folder {
                        folder: dir,
                        source,
                    })?;
            }
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(program)
                    .render(&mut page)
                    .map_err(Error::Output)?;
                output::write(&page)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
