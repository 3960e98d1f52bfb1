//! Typed settings of the subcommands that ask a service.
//!
//! Each is taken from the first source that gives it: its flag, its environment variable, the table `[client]` of the
//! TOML file, its default.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgMatches, Args};

use super::SettingsError;
use super::given::{GivenToClient, Text};
use super::sources::{Sources, given_on, read_file, read_secret, wrong};
use super::values::duration;

/// Certificates or a key, as a file holds them.
pub type Pem = Vec<u8>;

/// How a service is reached, and who asks.
#[derive(Clone)]
pub struct ClientSettings {
    /// `http://` or `https://`, host and port.
    pub endpoint: String,
    /// Empty for the credential's own.
    pub tenant: String,
    /// A bearer token.
    pub credential: Option<String>,
    /// Certificate authorities in PEM.
    pub ca_pem: Option<Pem>,
    /// Certificate and key in PEM.
    pub identity_pem: Option<(Pem, Pem)>,
    /// How long to try, beside what is waited for.
    pub call_timeout: Duration,
    /// The trace that the caller is in, from the variable `TRACEPARENT`.
    pub traceparent: Option<String>,
}

impl fmt::Debug for ClientSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSettings")
            .field("endpoint", &self.endpoint)
            .field("tenant", &self.tenant)
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

/// The flags and variables of these settings, for each subcommand that asks a service.
#[derive(Args)]
pub struct ClientArgs {
    /// A TOML file whose table `[client]` has any of these settings, each under its flag's name
    /// without the leading dashes: endpoint = "http://claimlock:7420" [default: none]
    #[arg(
        long,
        value_name = "PATH",
        env = "CLAIMLOCK_CONFIG",
        help_heading = "Service"
    )]
    config: Option<Text>,

    #[command(flatten)]
    given: GivenToClient,
}

impl ClientArgs {
    /// Puts the settings together from all sources; `matches` tells flags from variables.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or a setting in force is not valid.
    pub fn load(&self, matches: &ArgMatches) -> Result<ClientSettings, SettingsError> {
        load(self.config.as_ref(), &self.given, matches)
    }
}

/// Puts together what the command line, the environment and the file say.
pub(super) fn load(
    config: Option<&Text>,
    given: &GivenToClient,
    matches: &ArgMatches,
) -> Result<ClientSettings, SettingsError> {
    let file = match given_on(matches, "config", config) {
        Some((path, origin)) => {
            let (path, given) = read_file(&path, &origin)?;
            Some((path, given.client.unwrap_or_default()))
        }
        None => None,
    };
    settle(&mut Sources {
        line: Some((given, matches)),
        file,
        in_force: Vec::new(),
    })
}

type From<'a> = Sources<'a, GivenToClient>;

fn settle(from: &mut From<'_>) -> Result<ClientSettings, SettingsError> {
    let text = |text: &str| Ok(text.to_owned());
    Ok(ClientSettings {
        endpoint: from.one("endpoint", |g| &g.endpoint, "http://127.0.0.1:7420", text)?,
        tenant: from
            .find("tenant", |g| &g.tenant)?
            .map_or_else(String::new, |(tenant, _)| tenant),
        credential: credential(from)?,
        ca_pem: file(from, "ca-file", |g| &g.ca_file)?,
        identity_pem: identity(from)?,
        call_timeout: from.one(
            "call-timeout",
            |g| &g.call_timeout,
            "10s",
            duration("10ms", "10m"),
        )?,
        // A shell in a traced build or job has it; see OpenTelemetry's "environment variables as context propagation
        // carriers". What is no header is left out, as a trace is no reason to fail.
        traceparent: std::env::var_os("TRACEPARENT")
            .and_then(|text| text.into_string().ok())
            .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())),
    })
}

fn credential(from: &From<'_>) -> Result<Option<String>, SettingsError> {
    const NAME: &str = "credential";
    const FILE: &str = "credential-file";

    let itself = from.find(NAME, |g| &g.credential)?;
    let file = from.find(FILE, |g| &g.credential_file)?;
    match (itself, file) {
        (Some((_, itself)), Some((_, file))) => Err(SettingsError::new(format!(
            "{NAME} (from {}) and {FILE} (from {}) are both given; leave one of them out",
            itself.describe(NAME),
            file.describe(FILE),
        ))),
        (Some((credential, _)), None) => Ok(Some(credential)),
        (None, Some((path, origin))) => read_secret(Path::new(&path))
            .map(Some)
            .map_err(|problem| wrong(FILE, &origin.describe(FILE), &problem)),
        (None, None) => Ok(None),
    }
}

fn identity(from: &From<'_>) -> Result<Option<(Pem, Pem)>, SettingsError> {
    let certificate = file(from, "client-cert-file", |g| &g.client_cert_file)?;
    let key = file(from, "client-key-file", |g| &g.client_key_file)?;
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        _ => Err(SettingsError::new(
            "client-cert-file and client-key-file: one is given without the other",
        )),
    }
}

fn file(
    from: &From<'_>,
    name: &str,
    field: super::sources::Field<GivenToClient>,
) -> Result<Option<Pem>, SettingsError> {
    let Some((path, origin)) = from.find(name, field)? else {
        return Ok(None);
    };
    let path = PathBuf::from(path);
    let read = std::fs::read(&path).map_err(|error| {
        let problem = format!("cannot read {}: {error}", path.display());
        wrong(name, &origin.describe(name), &problem)
    })?;
    Ok(Some(read))
}
