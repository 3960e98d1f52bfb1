//! `claimlock doctor`.

mod embedded;
mod service;
mod store;

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Args};
use serde_json::json;

use super::output::{self, Format, OutputForPeople};
use super::progress::Progress;
use super::{Error, ask, exit};
use crate::config::{AllSettingsArgs, Loaded, Settings};
use crate::store::doctor::examine;

const HELP: &str = concat!(
    "\
Examples:
  On the machine where the service runs, with the settings that it runs with:
    claimlock doctor --config /etc/claimlock.toml

  A Redis that is to be used, before anything uses it:
    claimlock doctor --redis-url redis://redis.example.com:6379

  In a pipeline, where a warning is a fault too:
    claimlock doctor --strict -o json |
      jq -r '.checks[] | select(.level != \"ok\") | .finding'

Looks at the store that claimlock serve would use with the same settings, and asks the service at --endpoint. To \
find out what it may do, it writes to the store: keys of its own, which are gone within seconds. Each line is ok, \
warn or FAIL, with what was found and what to do about it. No step waits for longer than --store-timeout, or a \
second, or --call-timeout.

",
    "\
Exit codes:
   0  nothing failed; with --strict: nothing is to be warned of either
  83  something failed, such as to reach the store or the service
   1  this program failed
   2  a flag, a setting or a value is wrong"
);

/// No question to the store is given less than this, so that a short timeout of the service's is no fault here.
const AT_LEAST: Duration = Duration::from_secs(1);

/// Look for what is wrong with the store and the service, and say what to do
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct Doctor {
    /// Take a warning for a failure
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    output: OutputForPeople,

    #[command(flatten)]
    settings: AllSettingsArgs,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Warn,
    Fail,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug)]
struct Check {
    check: &'static str,
    level: Level,
    finding: String,
    /// What to do; nothing where all is well.
    advice: Option<String>,
}

impl Check {
    fn ok(check: &'static str, finding: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Ok,
            finding: finding.into(),
            advice: None,
        }
    }

    fn warn(check: &'static str, finding: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            advice: Some(advice.into()),
            ..Self::ok(check, finding)
        }
    }

    fn fail(check: &'static str, finding: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            level: Level::Fail,
            ..Self::warn(check, finding, advice)
        }
    }

    fn lines(&self) -> String {
        let Self { check, finding, .. } = self;
        // A server's own words are in some of them.
        let finding = output::printable(finding);
        let mut lines = format!("{:<4}  {check}: {finding}\n", self.level.word());
        if let Some(advice) = &self.advice {
            lines.push_str(&format!("      -> {}\n", output::printable(advice)));
        }
        lines
    }
}

impl Doctor {
    pub(super) async fn run(self, matches: &ArgMatches) -> Result<ExitCode, Error> {
        let (loaded, of_client) = self.settings.load(matches)?;
        let endpoint = of_client.endpoint.clone();
        let client = ask::client(of_client)?;
        let looking = async {
            let progress = Progress::new();
            progress.waiting_for("looking at the store and the service".to_owned());
            tokio::join!(
                look_at_store(&loaded.settings),
                service::look(&client, &endpoint),
            )
        };
        let (of_store, of_service) = looking.await;
        let checks: Vec<_> = of_settings(&loaded)
            .into_iter()
            .chain(of_store)
            .chain(of_service)
            .collect();
        let worst = checks.iter().map(|check| check.level).max();
        let tolerated = if self.strict { Level::Ok } else { Level::Warn };
        let is_healthy = worst.is_none_or(|worst| worst <= tolerated);
        match self.output.format {
            Format::Json => output::line(&to_json(is_healthy, &checks).to_string())?,
            Format::Table => {
                let lines: String = checks.iter().map(Check::lines).collect();
                output::write(lines.as_bytes())?;
            }
        }
        Ok(ExitCode::from(if is_healthy { 0 } else { exit::FAULTY }))
    }
}

fn to_json(is_healthy: bool, checks: &[Check]) -> serde_json::Value {
    let checks: Vec<_> = checks
        .iter()
        .map(|check| {
            json!({
                "check": check.check,
                "level": check.level.word().to_lowercase(),
                "finding": check.finding,
                "advice": check.advice,
            })
        })
        .collect();
    json!({"healthy": is_healthy, "checks": checks})
}

/// What is odd about the settings themselves.
fn of_settings(loaded: &Loaded) -> Vec<Check> {
    let warnings = loaded.warnings.iter();
    warnings
        .map(|warning| Check::warn("settings", warning.variables.join(", "), warning.advice))
        .collect()
}

async fn look_at_store(settings: &Settings) -> Vec<Check> {
    let timeout = settings.store_timeout.max(AT_LEAST);
    let Some(url) = &settings.redis_url else {
        return embedded::look(settings, timeout).await;
    };
    if url.is_redacted() {
        return vec![Check::fail(
            "store",
            format!("the password in {url} is hidden, as claimlock config prints it"),
            "put in the real one, or name a file that holds the URL with --redis-url-file",
        )];
    }
    match examine(url.expose(), timeout).await {
        Ok(found) => store::checks(&found, &url.to_string()),
        Err(why) => vec![store::unreachable(&why, &url.to_string(), timeout)],
    }
}
