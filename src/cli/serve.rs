//! `claimlock serve`.

use std::process::ExitCode;

use clap::{ArgMatches, Args};

use super::Error;
use crate::config::{SettingsArgs, SettingsError};
use crate::{app, telemetry};

const EXAMPLES: &str = "\
Each setting is taken from the first that gives it: its flag, its variable, the file, its default. An empty variable \
counts as not set. `claimlock config` prints what is in force.

Examples:
  With a server of its own, which keeps its files in the user's data folder:
    claimlock serve

  On a Redis of yours, open to other machines:
    claimlock serve --redis-url redis://redis.example.com:6379 \\
        --grpc-addr 0.0.0.0:7420 --http-addr 0.0.0.0:7421

  In a container, with the URL and its password in a mounted secret:
    CLAIMLOCK_GRPC_ADDR=0.0.0.0:7420 CLAIMLOCK_HTTP_ADDR=0.0.0.0:7421 \\
        CLAIMLOCK_REDIS_URL_FILE=/run/secrets/redis-url \\
        claimlock serve --log-format json

  With a file, started from what is in force now:
    claimlock config > claimlock.toml
    claimlock serve --config claimlock.toml";

/// Serve claims and locks until SIGTERM or Ctrl-C.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Serve {
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Serve {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let loaded = self.settings.load(matches)?;
        let url = loaded.settings.redis_url.as_ref();
        if let Some(url) = url.filter(|url| url.is_redacted()) {
            return Err(Error::Settings(SettingsError::new(format!(
                "redis-url: the password in {url} is hidden, as claimlock config prints it; put in \
                 the real one, or name a file that holds the URL with redis-url-file"
            ))));
        }
        let telemetry = telemetry::start(&loaded.settings.log, loaded.traces.as_ref())?;
        for warning in &loaded.warnings {
            tracing::warn!(
                variables = warning.variables.join(" "),
                "{}",
                warning.advice
            );
        }
        app::run_until_signalled(loaded.settings, telemetry).await?;
        Ok(ExitCode::SUCCESS)
    }
}
