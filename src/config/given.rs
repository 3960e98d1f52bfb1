//! The one definition of the settings: it is the flags, the variables and the names in the file.

use std::fmt;

use clap::Args;
use serde::Deserialize;
use serde::de::{self, Visitor};

/// The text of a setting as it was given, whichever source it came from.
///
/// Nothing is parsed here, so that what is wrong with a value can be said with its source, and so
/// that no parser shows a secret. It has no `Debug` for the same reason.
#[derive(Clone)]
pub(super) struct Text(pub(super) String);

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

/// Takes every plain value: one of the wrong kind is refused later, with the setting's name.
struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a number")
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Text, E> {
        Ok(Text(value.to_owned()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Text, E> {
        Ok(Text(value.to_string()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Text, E> {
        Ok(Text(value.to_string()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Text, E> {
        Ok(Text(value.to_string()))
    }
}

/// The settings that a source can give, in the order in which they are listed.
///
/// These comments are the help, and so state what a user has to know: range, unit and default.
#[derive(Args, Deserialize, Default)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Given {
    /// Where gRPC calls are answered; port 0 takes a free one [default: 127.0.0.1:7420]
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "CLAIMLOCK_GRPC_ADDR",
        help_heading = "Addresses"
    )]
    pub(super) grpc_addr: Option<Text>,

    /// Where health checks and metrics are answered over HTTP; port 0 takes a free one [default:
    /// 127.0.0.1:7421]
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "CLAIMLOCK_HTTP_ADDR",
        help_heading = "Addresses"
    )]
    pub(super) http_addr: Option<Text>,

    /// The Redis or Valkey that keeps all state: redis://HOST:PORT, rediss:// for TLS, or unix:
    /// and the path of a socket. A password in it is never shown [default: none, the service
    /// starts a server of its own]
    #[arg(
        long,
        value_name = "URL",
        env = "CLAIMLOCK_REDIS_URL",
        help_heading = "Store"
    )]
    pub(super) redis_url: Option<Text>,

    /// A file that holds the redis-url, such as a mounted secret; only one of the two can be given
    /// [default: none]
    #[arg(
        long,
        value_name = "PATH",
        env = "CLAIMLOCK_REDIS_URL_FILE",
        help_heading = "Store"
    )]
    pub(super) redis_url_file: Option<Text>,

    /// Connections to Redis, shared by all calls in flight, from 1 to 64 [default: 4]
    #[arg(
        long,
        value_name = "COUNT",
        env = "CLAIMLOCK_REDIS_CONNECTIONS",
        help_heading = "Store"
    )]
    pub(super) redis_connections: Option<Text>,

    /// How long a call waits for Redis before it fails as UNAVAILABLE, from 10ms to 60s [default:
    /// 1s]
    #[arg(
        long,
        value_name = "DURATION",
        env = "CLAIMLOCK_STORE_TIMEOUT",
        help_heading = "Store"
    )]
    pub(super) store_timeout: Option<Text>,

    /// Where the service's own server keeps its files [default: claimlock in $XDG_DATA_HOME, else
    /// in ~/.local/share]
    #[arg(
        long,
        value_name = "PATH",
        env = "CLAIMLOCK_DATA_DIR",
        help_heading = "Store"
    )]
    pub(super) data_dir: Option<Text>,

    /// When the service's own server writes to the disk: everysec, which can lose up to two seconds
    /// if the machine crashes, or if the server is killed while the disk is slow; or always, which
    /// loses nothing that was answered for and is slower [default: everysec]
    #[arg(
        long,
        value_name = "WHEN",
        env = "CLAIMLOCK_EMBEDDED_FSYNC",
        help_heading = "Store"
    )]
    pub(super) embedded_fsync: Option<Text>,

    /// The longest that a caller may have a key remembered, from 1s to 10y [default: 30d]
    #[arg(
        long,
        value_name = "DURATION",
        env = "CLAIMLOCK_MAX_RETENTION",
        help_heading = "Limits"
    )]
    pub(super) max_retention: Option<Text>,

    /// How long spent tokens, and the last fencing token of a lock, are remembered, from 1s to 24h
    /// [default: 10m]
    #[arg(
        long,
        value_name = "DURATION",
        env = "CLAIMLOCK_MEMORY",
        help_heading = "Limits"
    )]
    pub(super) memory: Option<Text>,

    /// The largest body of a stored response, in bytes or with KiB or MiB, from 0 to 64MiB
    /// [default: 1MiB]
    #[arg(
        long,
        value_name = "SIZE",
        env = "CLAIMLOCK_MAX_RESPONSE_BODY",
        help_heading = "Limits"
    )]
    pub(super) max_response_body: Option<Text>,

    /// The largest headers of a stored response, names and values together, from 0 to 1MiB
    /// [default: 32KiB]
    #[arg(
        long,
        value_name = "SIZE",
        env = "CLAIMLOCK_MAX_RESPONSE_HEADERS",
        help_heading = "Limits"
    )]
    pub(super) max_response_headers: Option<Text>,

    /// How long serving goes on after SIGTERM, with health saying otherwise, so that load
    /// balancers notice; from 0s to the drain-grace [default: 0s]
    #[arg(
        long,
        value_name = "DURATION",
        env = "CLAIMLOCK_DRAIN_DELAY",
        help_heading = "Shutdown"
    )]
    pub(super) drain_delay: Option<Text>,

    /// How long after SIGTERM the process ends at the latest, the drain-delay included, from 0s to
    /// 1h [default: 10s]
    #[arg(
        long,
        value_name = "DURATION",
        env = "CLAIMLOCK_DRAIN_GRACE",
        help_heading = "Shutdown"
    )]
    pub(super) drain_grace: Option<Text>,

    /// About when a connection is ended as at a shutdown, so that its client comes back over another one,
    /// to new services too: from 1s to 30d, up to a tenth more or less; 0s is never [default: 0s]
    #[arg(
        long,
        value_name = "DURATION",
        env = "CLAIMLOCK_MAX_CONNECTION_AGE",
        help_heading = "Connections"
    )]
    pub(super) max_connection_age: Option<Text>,

    /// How many tenants the metrics tell apart, from 0 to 1000; all others are one, named other.
    /// With 0 no metric has a tenant [default: 0]
    #[arg(
        long,
        value_name = "COUNT",
        env = "CLAIMLOCK_METRICS_TENANTS",
        help_heading = "Metrics"
    )]
    pub(super) metrics_tenants: Option<Text>,

    /// What a log line on standard error looks like: text or json [default: text]
    #[arg(
        long,
        value_name = "FORMAT",
        env = "CLAIMLOCK_LOG_FORMAT",
        help_heading = "Logs"
    )]
    pub(super) log_format: Option<Text>,

    /// What is logged: off, error, warn, info, debug or trace, and TARGET=LEVEL for single
    /// targets, such as info,claimlock=debug. Operators' acts are logged whatever this says
    /// [default: info]
    #[arg(
        long,
        value_name = "LEVEL",
        env = "CLAIMLOCK_LOG_LEVEL",
        help_heading = "Logs"
    )]
    pub(super) log_level: Option<Text>,

    /// What the subcommands that ask a service read; in the file alone, as a table.
    #[arg(skip)]
    pub(super) client: Option<GivenToClient>,
}

/// The settings of the subcommands that ask a service, in the order in which they are listed.
#[derive(Args, Deserialize, Default)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct GivenToClient {
    /// Where the service is: http://HOST:PORT, or https:// for TLS [default: http://127.0.0.1:7420]
    #[arg(
        long,
        value_name = "URL",
        env = "CLAIMLOCK_ENDPOINT",
        help_heading = "Service"
    )]
    pub(super) endpoint: Option<Text>,

    /// Whose keys and locks they are [default: the credential's own, else "default"]
    #[arg(
        long,
        value_name = "NAME",
        env = "CLAIMLOCK_TENANT",
        help_heading = "Service"
    )]
    pub(super) tenant: Option<Text>,

    // A flag's value can be seen by every user of the machine, so it is not listed.
    /// A bearer token that says who asks
    #[arg(
        long,
        value_name = "TOKEN",
        env = "CLAIMLOCK_CREDENTIAL",
        help_heading = "Service",
        hide = true
    )]
    pub(super) credential: Option<Text>,

    /// A file that holds a bearer token, which says who asks; CLAIMLOCK_CREDENTIAL holds the token
    /// itself, and only one of the two can be given [default: none]
    #[arg(
        long,
        value_name = "PATH",
        env = "CLAIMLOCK_CREDENTIAL_FILE",
        help_heading = "Service"
    )]
    pub(super) credential_file: Option<Text>,

    /// The certificate authorities that vouch for the service, in PEM [default: the system's]
    #[arg(
        long,
        value_name = "PATH",
        env = "CLAIMLOCK_CA_FILE",
        help_heading = "Service"
    )]
    pub(super) ca_file: Option<Text>,

    /// The client's own certificate, in PEM, for mutual TLS [default: none]
    #[arg(
        long,
        value_name = "PATH",
        env = "CLAIMLOCK_CLIENT_CERT_FILE",
        help_heading = "Service"
    )]
    pub(super) client_cert_file: Option<Text>,

    /// The key of that certificate, in PEM [default: none]
    #[arg(
        long,
        value_name = "PATH",
        env = "CLAIMLOCK_CLIENT_KEY_FILE",
        help_heading = "Service"
    )]
    pub(super) client_key_file: Option<Text>,

    /// How long to try to reach the service, beside what is waited for, from 10ms to 10m [default:
    /// 10s]
    #[arg(
        long,
        value_name = "DURATION",
        env = "CLAIMLOCK_CALL_TIMEOUT",
        help_heading = "Service"
    )]
    pub(super) call_timeout: Option<Text>,
}
