//! What every subcommand that asks a service shares: reaching it, and naming who asks.

use std::time::Duration;

use claimlock_client::{Client, Settings};
use clap::{ArgMatches, Args};

use super::Error;
use crate::config::{ClientArgs, ClientSettings, SettingsError};

/// What is given back in the background gets this long when the program ends.
const FINISH: Duration = Duration::from_secs(3);

/// Where the service is and who asks.
#[derive(Args)]
pub(super) struct Ask {
    #[command(flatten)]
    service: ClientArgs,
}

impl Ask {
    /// A client as the flags, the environment and the file say. Connects at its first call.
    pub(super) fn client(&self, matches: &ArgMatches) -> Result<Client, Error> {
        client(self.service.load(matches)?)
    }

    /// The same for a call that names no tenant, or all of them, whatever the settings say.
    pub(super) fn client_of_no_tenant(&self, matches: &ArgMatches) -> Result<Client, Error> {
        client(ClientSettings {
            tenant: String::new(),
            ..self.service.load(matches)?
        })
    }
}

/// A client with these settings.
pub(super) fn client(settings: ClientSettings) -> Result<Client, Error> {
    let ClientSettings {
        endpoint,
        tenant,
        credential,
        ca_pem,
        identity_pem,
        call_timeout,
        traceparent,
    } = settings;
    Client::new(Settings {
        endpoint,
        tenant,
        credential,
        ca_pem,
        identity_pem,
        call_timeout,
        traceparent,
    })
    .map_err(|bad| Error::Settings(SettingsError::new(bad.to_string())))
}

/// Waits for what is given back in the background.
pub(super) async fn finish(client: &Client) {
    client.finish(FINISH).await;
}

/// This process, for people to read.
pub(super) fn default_holder() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    format!("{} pid {}", host.to_string_lossy(), std::process::id())
}
