//! Typed settings of `claimlock serve`, and of the subcommands that ask a service.
//!
//! Each setting is taken from the first source that gives it: its flag, its environment variable
//! (`CLAIMLOCK_` and the flag's name), the TOML file, its default. An empty variable counts as
//! not set.

mod client;
mod environment;
mod given;
mod resolve;
mod secret;
mod sources;
mod values;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args};

pub use client::{ClientArgs, ClientSettings};
pub use environment::{CLIENT_VARIABLES, PREFIX, Traces, Warning};
use given::{Given, GivenToClient, Text};
pub use secret::{RedisUrl, hide_passwords};
pub use values::{Fsync, LogFormat, LogLevel, any_duration, any_size};

/// What the service runs with.
///
/// [`Settings::default`] is what is in force when nothing is given at all.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where gRPC is served; port 0 takes a free one.
    pub grpc_addr: SocketAddr,
    /// Where health is served over HTTP; port 0 takes a free one.
    pub http_addr: SocketAddr,
    /// The Redis to use; none means the embedded server.
    pub redis_url: Option<RedisUrl>,
    /// Connections in the pool, 1 to 64.
    pub redis_connections: u32,
    /// How long a call may take to ask the store, 10 ms to 60 s.
    pub store_timeout: Duration,
    /// The folder of the embedded server as it was given; see [`Settings::data_folder`].
    pub data_dir: Option<PathBuf>,
    /// How often the embedded server writes to the disk.
    pub embedded_fsync: Fsync,
    /// The longest retention that a caller may ask for, 1 s to 10 years.
    pub max_retention: Duration,
    /// How long spent tokens and a lock's last fencing token are remembered, 1 s to 24 h.
    pub memory: Duration,
    /// The most bytes in the body of a stored response.
    pub max_response_body: usize,
    /// The most bytes in the headers of a stored response, names and values together.
    pub max_response_headers: usize,
    /// How long serving goes on after SIGTERM while health says otherwise.
    pub drain_delay: Duration,
    /// How long after SIGTERM the process ends at the latest; never less than the delay.
    pub drain_grace: Duration,
    /// About when a connection is ended, for its client to come back over another; none lets it last.
    pub max_connection_age: Option<Duration>,
    /// How many tenants the metrics tell apart, 0 to 1000.
    pub metrics_tenants: u32,
    /// What is logged, and how.
    pub log: LogSettings,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// What a line looks like.
    pub format: LogFormat,
    /// Which events are logged.
    pub level: LogLevel,
}

impl Settings {
    /// The folder of the embedded server: the one that was given, or `claimlock` in the user's
    /// data folder (`$XDG_DATA_HOME`, `~/.local/share`).
    ///
    /// # Errors
    ///
    /// When none was given and the user has no home folder. Only the embedded server needs one, so
    /// this is not asked before it does.
    pub fn data_folder(&self) -> Result<PathBuf, SettingsError> {
        self.data_dir
            .clone()
            .or_else(default_data_folder)
            .ok_or_else(|| {
                SettingsError::new(
                    "data-dir (from default): there is no home folder to put it in; \
                 give a folder with --data-dir, or a server with --redis-url",
                )
            })
    }
}

impl Default for Settings {
    fn default() -> Self {
        resolve::defaults()
    }
}

/// One line that says which setting is wrong, where it came from, and what to write instead.
///
/// No password gets into it, whatever it is made from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

impl SettingsError {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        // A line break can come in with a path, and would make two lines of one error.
        Self(hide_passwords(&text.as_ref().replace(['\n', '\r'], " ")))
    }
}

/// The source of a setting that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag on the command line.
    Flag,
    /// An environment variable.
    Environment,
    /// The settings file.
    File(PathBuf),
    /// Nobody gave it.
    Default,
}

impl Origin {
    /// One word for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File(_) => "file",
            Self::Default => "default",
        }
    }

    /// Where exactly the setting of this name was found.
    fn describe(&self, name: &str) -> String {
        match self {
            Self::Flag => format!("flag --{name}"),
            Self::Environment => format!("environment variable {}", variable(name)),
            Self::File(path) => format!("file {}", path.display()),
            Self::Default => "default".to_owned(),
        }
    }
}

/// A setting as it is in force, to be shown: secrets are hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// Its name, as in the file and as the flag.
    pub name: &'static str,
    /// Its value as it was written, or why there is none.
    pub value: Result<String, String>,
    /// Where it came from.
    pub origin: Origin,
}

impl fmt::Display for InForce {
    /// A line of TOML, a comment where there is no value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Ok(value) => write!(f, "{} = {}", self.name, toml_literal(value)),
            Err(reason) => write!(f, "# {}: {reason}", self.name),
        }
    }
}

/// A whole number stays one; everything else is a string.
fn toml_literal(text: &str) -> toml::Value {
    match text.parse::<i64>() {
        Ok(number) if number.to_string() == text => toml::Value::Integer(number),
        _ => toml::Value::String(text.to_owned()),
    }
}

/// The settings, and what there is to tell about them.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What is in force.
    pub settings: Settings,
    /// The same to be shown, in the order of the help.
    pub in_force: Vec<InForce>,
    /// Where traces are exported to, if they are.
    pub traces: Option<Traces>,
    /// To be logged once logging has started.
    pub warnings: Vec<Warning>,
}

/// The flags and variables of the settings, for each subcommand that takes them.
#[derive(Args)]
pub struct SettingsArgs {
    /// A TOML file with any of the settings below, each under its flag's name without the leading
    /// dashes: grpc-addr = "0.0.0.0:7420". Paths in it count from the working directory
    /// [default: none]
    #[arg(
        long,
        value_name = "PATH",
        env = "CLAIMLOCK_CONFIG",
        help_heading = "File"
    )]
    config: Option<Text>,

    #[command(flatten)]
    given: Given,
}

impl SettingsArgs {
    /// Puts the settings together from all sources; `matches` tells flags from variables.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or a setting in force is not valid.
    pub fn load(&self, matches: &ArgMatches) -> Result<Loaded, SettingsError> {
        resolve::load(self.config.as_ref(), &self.given, matches)
    }
}

/// The flags and variables of the service and of its clients, for a subcommand that looks at a service from both
/// sides: one file has both, as the service has it.
#[derive(Args)]
pub struct AllSettingsArgs {
    /// A TOML file with any of the settings of claimlock serve, each under its flag's name without the leading
    /// dashes, and with those of its clients in the table `[client]` [default: none]
    #[arg(
        long,
        value_name = "PATH",
        env = "CLAIMLOCK_CONFIG",
        help_heading = "File"
    )]
    config: Option<Text>,

    #[command(flatten)]
    given: Given,

    #[command(flatten)]
    given_to_client: GivenToClient,
}

impl AllSettingsArgs {
    /// Puts the settings of both together from all sources; `matches` tells flags from variables.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or a setting in force is not valid.
    pub fn load(&self, matches: &ArgMatches) -> Result<(Loaded, ClientSettings), SettingsError> {
        let config = self.config.as_ref();
        Ok((
            resolve::load(config, &self.given, matches)?,
            client::load(config, &self.given_to_client, matches)?,
        ))
    }
}

fn default_data_folder() -> Option<PathBuf> {
    use etcetera::BaseStrategy;

    let folders = etcetera::choose_base_strategy().ok()?;
    Some(folders.data_dir().join("claimlock"))
}

/// The environment variable of a setting.
fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('-', "_").to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_can_be_printed_shows_the_password() {
        let url = "redis://user:tr0ub4dor@localhost";
        let settings = Settings {
            redis_url: Some(RedisUrl::parse(url).expect("it is a valid URL")),
            ..Settings::default()
        };
        let error = SettingsError::new(format!("data-dir: no folder {url}"));
        for text in [
            format!("{settings:?}"),
            format!("{error:?}"),
            error.to_string(),
        ] {
            assert!(text.contains("redis://user:***@localhost"), "{text}");
            assert!(!text.contains("tr0ub4dor"), "{text}");
        }
    }

    #[test]
    fn a_data_dir_that_is_given_is_taken_as_it_is() {
        let settings = Settings {
            data_dir: Some("relative/folder".into()),
            ..Settings::default()
        };
        assert_eq!(settings.data_folder(), Ok("relative/folder".into()));
    }

    #[test]
    fn an_error_is_one_line() {
        let error = SettingsError::new("cannot read a\nb");
        assert_eq!(error.to_string(), "cannot read a b");
    }

    #[test]
    fn only_what_reads_as_the_same_number_is_printed_as_one() {
        for (text, literal) in [
            ("4", "4"),
            ("007", "\"007\""),
            ("1MiB", "\"1MiB\""),
            ("+4", "\"+4\""),
        ] {
            assert_eq!(toml_literal(text).to_string(), literal);
        }
    }
}
