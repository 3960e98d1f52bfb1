//! The client: where the service is, and who asks.

use crate::keep_alive::KeepAlive;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio_util::task::TaskTracker;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

/// Together they find a service that is gone within five seconds.
const PING_EVERY: Duration = Duration::from_secs(3);
const PING_TIMEOUT: Duration = Duration::from_millis(1500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How the service is reached.
#[derive(Clone)]
pub struct Settings {
    /// `http://host:port`, or `https://` for TLS.
    pub endpoint: String,
    /// Whose names these are; empty for the credential's own, or `default`.
    pub tenant: String,
    /// A bearer token.
    pub credential: Option<String>,
    /// Certificate authorities in PEM, instead of the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// The client's certificate and its key in PEM, for mutual TLS.
    pub identity_pem: Option<(Vec<u8>, Vec<u8>)>,
    /// How long a call may take, beside what it waits for; and how long the service may not be heard of meanwhile.
    pub call_timeout: Duration,
    /// W3C `traceparent` sent along, so that the service's spans belong to the caller's trace.
    pub traceparent: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            endpoint: "http://127.0.0.1:7420".to_owned(),
            tenant: String::new(),
            credential: None,
            ca_pem: None,
            identity_pem: None,
            call_timeout: CALL_TIMEOUT,
            traceparent: None,
        }
    }
}

/// Settings that no connection can be made from.
#[derive(Debug, thiserror::Error)]
pub enum BadSettings {
    /// Not `http://host:port` or `https://host:port`.
    #[error("{0:?} is not an endpoint: write it like http://127.0.0.1:7420 or https://host:port")]
    Endpoint(String),
    /// A certificate, key or authority that cannot be read.
    #[error("the certificates cannot be used: {0}")]
    Tls(#[source] tonic::transport::Error),
    /// It has line breaks or other characters that cannot be sent.
    #[error("the {0} holds characters that cannot be sent")]
    Unsendable(&'static str),
}

/// Asks the service. Cheap to clone; connects at its first call.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) call_timeout: Duration,
}

pub(crate) struct Shared {
    endpoint: Endpoint,
    channel: OnceLock<Channel>,
    pub(crate) tenant: String,
    authorization: Option<MetadataValue<Ascii>>,
    traceparent: Option<MetadataValue<Ascii>>,
    pub(crate) keep_alive: KeepAlive,
    /// What is given back for callers that went away.
    pub(crate) background: TaskTracker,
}

impl Shared {
    pub(crate) fn channel(&self) -> Channel {
        let connect = || self.endpoint.connect_lazy();
        self.channel.get_or_init(connect).clone()
    }

    pub(crate) fn tell_who_asks(&self, metadata: &mut MetadataMap) {
        if let Some(authorization) = &self.authorization {
            metadata.insert("authorization", authorization.clone());
        }
        if let Some(traceparent) = &self.traceparent {
            metadata.insert("traceparent", traceparent.clone());
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.shared.endpoint.uri())
            .field("tenant", &self.shared.tenant)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client for an endpoint, with no credential.
    ///
    /// # Errors
    ///
    /// Where it is none.
    pub fn connect_lazily(endpoint: impl Into<String>) -> Result<Self, BadSettings> {
        Self::new(Settings {
            endpoint: endpoint.into(),
            ..Settings::default()
        })
    }

    /// A client with these settings.
    ///
    /// # Errors
    ///
    /// Where no connection can be made from them.
    pub fn new(settings: Settings) -> Result<Self, BadSettings> {
        let call_timeout = settings.call_timeout;
        Ok(Self {
            shared: Arc::new(Shared {
                endpoint: endpoint(&settings)?,
                channel: OnceLock::new(),
                authorization: authorization(settings.credential.as_deref())?,
                traceparent: sendable("traceparent", settings.traceparent)?,
                tenant: settings.tenant,
                keep_alive: KeepAlive::default(),
                background: TaskTracker::new(),
            }),
            call_timeout,
        })
    }

    /// The same client, whose calls may take this long.
    #[must_use]
    pub fn with_call_timeout(&self, call_timeout: Duration) -> Self {
        Self {
            shared: self.shared.clone(),
            call_timeout,
        }
    }

    /// Waits for what is given back in the background, no longer than this. For a process that is about to end.
    pub async fn finish(&self, limit: Duration) {
        let background = &self.shared.background;
        background.close();
        // What does not get through in time is bounded by its lease.
        let _ = tokio::time::timeout(limit, background.wait()).await;
        background.reopen();
    }

    /// The health of the service: whether it can answer calls now, and its version.
    ///
    /// # Errors
    ///
    /// Where it cannot be asked.
    pub async fn health(&self) -> Result<crate::call::Health, crate::Failure> {
        let limit = crate::time::later(Instant::now(), self.call_timeout);
        self.check_health(limit).await
    }

    pub(crate) fn endpoint(&self) -> &Uri {
        self.shared.endpoint.uri()
    }
}

fn endpoint(settings: &Settings) -> Result<Endpoint, BadSettings> {
    let bad = || BadSettings::Endpoint(settings.endpoint.clone());
    let endpoint = Endpoint::from_shared(settings.endpoint.clone()).map_err(|_| bad())?;
    let is_tls = match endpoint.uri().scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(bad()),
    };
    if endpoint.uri().host().is_none_or(str::is_empty) {
        return Err(bad());
    }
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .tcp_nodelay(true);
    if !is_tls {
        return Ok(endpoint);
    }
    let mut tls = match &settings.ca_pem {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = &settings.identity_pem {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    endpoint.tls_config(tls).map_err(BadSettings::Tls)
}

fn authorization(credential: Option<&str>) -> Result<Option<MetadataValue<Ascii>>, BadSettings> {
    let bearer = credential.map(|credential| format!("Bearer {credential}"));
    let mut value = sendable("credential", bearer)?;
    if let Some(value) = &mut value {
        value.set_sensitive(true);
    }
    Ok(value)
}

fn sendable(
    what: &'static str,
    text: Option<String>,
) -> Result<Option<MetadataValue<Ascii>>, BadSettings> {
    text.map(|text| text.parse().map_err(|_| BadSettings::Unsendable(what)))
        .transpose()
}
