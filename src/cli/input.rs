//! Bytes from a file or standard input.

use std::convert::Infallible;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::str::FromStr;

use super::Error;
use crate::config::SettingsError;

/// Where to read from.
#[derive(Clone, Debug)]
pub(super) enum Input {
    Standard,
    File(PathBuf),
}

impl FromStr for Input {
    type Err = Infallible;

    fn from_str(path: &str) -> Result<Self, Infallible> {
        Ok(match path {
            "-" => Self::Standard,
            path => Self::File(path.into()),
        })
    }
}

impl Input {
    pub(super) fn read(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let (read, name) = match self {
            Self::Standard => (
                io::stdin().read_to_end(&mut bytes).map(|_| bytes),
                "standard input".to_owned(),
            ),
            Self::File(path) => (std::fs::read(path), path.display().to_string()),
        };
        read.map_err(|error| {
            Error::Settings(SettingsError::new(format!("cannot read {name}: {error}")))
        })
    }
}
