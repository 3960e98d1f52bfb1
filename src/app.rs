//! Puts the service together: wire, health, serve, drain.

mod http;

use crate::config::{Fsync, Settings, SettingsError};
use crate::coordinator::Coordinator;
use crate::domain::duration::{Millis, Retention};
use crate::domain::limits::Limits;
use crate::metrics::{Metrics, TenantLimit};
use crate::rpc::{self, Ending, Health, ServeSettings};
use crate::store::embedded::{Embedded, EmbeddedError, EmbeddedSettings};
use crate::store::{BadUrl, Store, StoreSettings};
use crate::telemetry::Telemetry;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Why the service could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}: {source}: name another address with {flag}")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// The flag that names it.
        flag: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The embedded server cannot be started.
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// Settings that only show to be wrong when they are used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The Redis URL cannot be used.
    #[error("redis-url: {0}")]
    RedisUrl(#[from] BadUrl),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
}

/// What a message may hold beside the largest response: names, a request's body, the framing.
const MESSAGE_SLACK: usize = 4 * 1024 * 1024;
/// The part of what the delay leaves of the grace period that is kept when clean-ups have had their time, for the embedded
/// server; and the part of it by which the process is gone before the period ends, so that nobody kills it for being late.
const STOP_SHARE: u32 = 10;
const EXIT_SHARE: u32 = 20;
/// The part of the whole period that is left when the last spans have had their time.
const FLUSH_SHARE: u32 = 50;

/// Where the service listens.
#[derive(Debug)]
pub struct Listeners {
    /// For gRPC.
    pub grpc: TcpListener,
    /// For health and metrics over HTTP.
    pub http: TcpListener,
}

impl Listeners {
    /// Takes both ports; port 0 takes a free one.
    pub async fn bind(settings: &Settings) -> Result<Self, Error> {
        let bind = async |address: SocketAddr, flag| {
            TcpListener::bind(address)
                .await
                .map_err(|source| Error::Listen {
                    address,
                    flag,
                    source,
                })
        };
        Ok(Self {
            grpc: bind(settings.grpc_addr, "--grpc-addr").await?,
            http: bind(settings.http_addr, "--http-addr").await?,
        })
    }
}

/// Serves until SIGTERM or Ctrl-C. Says on the first line of standard output where it listens.
///
/// # Errors
///
/// When it cannot start.
pub async fn run_until_signalled(settings: Settings, telemetry: Telemetry) -> Result<(), Error> {
    let shutdown = CancellationToken::new();
    stop_on_signals(shutdown.clone())?;
    let listeners = Listeners::bind(&settings).await?;
    let grace = settings.drain_grace;
    let signalled = tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            shutdown.cancelled().await;
            Instant::now()
        }
    });
    run_announced(settings, listeners, shutdown, announce).await?;
    if let Ok(signalled) = signalled.await {
        telemetry
            .finish(signalled + grace - grace / FLUSH_SHARE)
            .await;
    }
    Ok(())
}

fn announce(listeners: &Listeners) {
    let address = |listener: &TcpListener| {
        listener
            .local_addr()
            .map_or_else(|_| "unknown".to_owned(), |address| address.to_string())
    };
    let line = format!(
        "claimlock serves gRPC on {} and HTTP on {}\n",
        address(&listeners.grpc),
        address(&listeners.http)
    );
    // Nobody may be reading it.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

fn stop_on_signals(shutdown: CancellationToken) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: draining"),
            _ = interrupt.recv() => tracing::info!("interrupted: draining"),
        }
        shutdown.cancel();
    });
    Ok(())
}

/// Serves on the listeners until `shutdown` is cancelled, then drains within the grace period.
///
/// # Errors
///
/// When it cannot start.
pub async fn run(
    settings: Settings,
    listeners: Listeners,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    run_announced(settings, listeners, shutdown, |_| ()).await
}

/// The same, and calls `announce` once nothing can fail any more: whoever reads an address shall find a service there.
async fn run_announced(
    settings: Settings,
    listeners: Listeners,
    shutdown: CancellationToken,
    announce: impl FnOnce(&Listeners),
) -> Result<(), Error> {
    let Some(url) = &settings.redis_url else {
        let embedded = Embedded::start(EmbeddedSettings {
            data_dir: settings.data_folder()?,
            fsync_always: settings.embedded_fsync == Fsync::Always,
        })
        .await?;
        let end = serve(
            &settings,
            &embedded.redis_url(),
            listeners,
            shutdown,
            announce,
        )
        .await?;
        embedded
            .stop(end.saturating_duration_since(Instant::now()))
            .await;
        return Ok(());
    };
    serve(&settings, url.expose(), listeners, shutdown, announce).await?;
    Ok(())
}

/// Serves until `shutdown` is cancelled and drains; returns by when the rest must be done.
async fn serve(
    settings: &Settings,
    redis_url: &str,
    listeners: Listeners,
    shutdown: CancellationToken,
    announce: impl FnOnce(&Listeners),
) -> Result<Instant, Error> {
    let metrics = Metrics::new(
        env!("CARGO_PKG_VERSION"),
        TenantLimit(settings.metrics_tenants as usize),
    );
    let max_retention = Retention::largest(Millis::rounded_up(settings.max_retention));
    let store = Store::open(
        redis_url,
        StoreSettings {
            connections: settings.redis_connections,
            timeout: settings.store_timeout,
            memory: Millis::rounded_up(settings.memory),
            max_retention,
        },
        metrics.clone(),
    )?;
    let store_up = store.watch();
    let coordinator = Coordinator::new(
        store,
        Limits {
            max_retention,
            max_response_body: settings.max_response_body,
            max_response_headers: settings.max_response_headers,
        },
        metrics.clone(),
    );

    announce(&listeners);
    let health = Health::new().await;
    let (ready, readiness) = watch::channel(false);
    let ending = Ending::default();
    let pages = http::Pages {
        readiness,
        metrics: metrics.clone(),
    };
    tokio::spawn(http::serve(listeners.http, pages, ending.cut.clone()));
    let serve_settings = ServeSettings {
        max_message: settings.max_response_body + settings.max_response_headers + MESSAGE_SLACK,
        max_connection_age: settings.max_connection_age,
        drain_grace: settings.drain_grace,
    };
    let mut grpc = tokio::spawn(rpc::serve(
        listeners.grpc,
        coordinator.clone(),
        health.clone(),
        metrics,
        serve_settings,
        ending.clone(),
    ));

    follow_store(store_up, &health, &ready, &shutdown).await;

    let end = Instant::now() + settings.drain_grace;
    set_ready(&health, &ready, false).await;
    // Load balancers get this long to notice; calls are served all the while.
    tokio::time::sleep(settings.drain_delay).await;
    let left = end.saturating_duration_since(Instant::now());
    let late = || tracing::warn!("calls did not finish within the grace period: telling them so");
    tokio::select! {
        _ = &mut grpc => {}
        () = ending.within(left, late) => {
            // It ends at once now.
            let _ = grpc.await;
        }
    }
    coordinator.finish_cleanups(end - left / STOP_SHARE).await;
    ending.cut.cancel();
    tracing::info!("stopped");
    Ok(end - left / EXIT_SHARE)
}

/// Keeps health in step with the store, until the service is to shut down.
async fn follow_store(
    mut store_up: watch::Receiver<bool>,
    health: &Health,
    ready: &watch::Sender<bool>,
    shutdown: &CancellationToken,
) {
    loop {
        let up = *store_up.borrow_and_update();
        set_ready(health, ready, up).await;
        tokio::select! {
            changed = store_up.changed() => {
                if changed.is_err() {
                    // The watch ends with the store alone.
                    return shutdown.cancelled().await;
                }
            }
            () = shutdown.cancelled() => return,
        }
    }
}

async fn set_ready(health: &Health, ready: &watch::Sender<bool>, up: bool) {
    health.set_ready(up).await;
    ready.send_replace(up);
}
