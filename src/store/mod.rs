//! Redis: keys, scripts, replies, pool, clock and the embedded server. The only place for `redis` and `bb8`.

mod claims;
mod clock;
pub mod doctor;
pub mod embedded;
mod keys;
mod leases;
mod locks;
mod pool;
mod reply;
mod scan;
mod scripts;
mod wakeups;
mod watch;

use crate::domain::duration::{Millis, Retention};
use crate::domain::failure::{Cause, Failure};
use crate::metrics::{Metrics, ScriptMetrics};
use crate::trace::{self, Database};
use clock::Clock;
pub use leases::{Asked, Standing};
pub use locks::{Attempt, InQueue, Patience, Turns, Waiter};
use pool::{Link, Pool};
use redis::{ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};
use reply::Reply;
use scripts::{Lua, Repeat};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wakeups::ServiceId;
pub use wakeups::WakeUp;

/// How a store is reached and what it remembers.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// How many multiplexed connections to hold.
    pub connections: u32,
    /// How long a call may take.
    pub timeout: Duration,
    /// How long spent tokens, and the last fencing token of a lock, are remembered.
    pub memory: Millis,
    /// The longest that a key is remembered.
    pub max_retention: Retention,
}

/// A URL that no connection can be made from.
#[derive(Debug, thiserror::Error)]
#[error("not a Redis URL: use redis://, rediss:// or unix: and no unknown parts")]
pub struct BadUrl;

/// All state, in one Redis. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    client: redis::Client,
    pool: Pool,
    /// Names this process to scripts, which wake it by it.
    service: ServiceId,
    clock: Arc<Clock>,
    database: Arc<Database>,
    settings: StoreSettings,
    metrics: Metrics,
    /// Each at its script's number.
    script_metrics: Arc<[ScriptMetrics]>,
    /// Redis answered, but would not take a call: its memory is full, say.
    refuses: Arc<AtomicBool>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Pause before a call that Redis was not ready for is sent again.
const NOT_READY_PAUSE: Duration = Duration::from_millis(10);
/// When it may be worth asking again after the store could not be asked.
const RETRY_AFTER: Duration = Duration::from_millis(500);

impl Store {
    /// A store at a URL: `redis://`, `rediss://` or `unix:`. Connects in the background.
    pub fn open(url: &str, settings: StoreSettings, metrics: Metrics) -> Result<Self, BadUrl> {
        let client = client(url)?;
        let clock = Arc::new(Clock::new());
        let database = Arc::new(database(&client));
        Ok(Self {
            database,
            pool: Pool::new(client.clone(), clock.clone(), &settings),
            client,
            service: ServiceId::new(),
            clock,
            settings,
            script_metrics: metrics.scripts(scripts::NAMES.iter().copied()).into(),
            metrics,
            refuses: Arc::default(),
        })
    }

    /// How long a call may take.
    pub fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// The highest fencing token that this service has seen; a receipt cannot name a much higher one. Waits for the
    /// first connection, before which nothing is known.
    pub async fn highest_fencing_token(&self, limit: Instant) -> Result<i64, Failure> {
        self.pool.link(limit).await.map_err(unavailable)?;
        let now = self.clock.not_after(Instant::now());
        Ok(self.clock.highest_fence().max(now))
    }

    /// Runs a script until it answers or the limit has passed. It is sent more than once where a connection broke, unless a
    /// repeat would get another answer, or where Redis was not ready.
    async fn run(
        &self,
        script: &Lua,
        keys: &[String],
        limit: Instant,
        arguments: impl Fn(&mut redis::ScriptInvocation<'_>),
    ) -> Result<Reply, Failure> {
        // A refusal's own time says more of Redis's clock than the shared estimate, which other replies move.
        let mut corrected = None;
        loop {
            let link = self.pool.link(limit).await.map_err(unavailable)?;
            let mut connection = link.connection.clone();
            let mut call = script.call();
            call.key(keys)
                .arg(corrected.unwrap_or_else(|| self.clock.not_after(limit)))
                .arg(self.clock.highest_fence())
                .arg(self.settings.memory.get());
            arguments(&mut call);

            let sent = Instant::now();
            let sending = trace::sending(&self.database, scripts::NAMES[script.number]);
            let answer = async {
                tokio::select! {
                    biased;
                    answer = call.invoke_async(&mut connection) => answer,
                    error = link.died() => Err(error),
                }
            };
            let answer = tokio::time::timeout_at(limit.into(), answer).await;
            self.script_metrics[script.number].took(sent.elapsed());
            let Ok(answer) = answer else {
                sending.failed(None, "timeout");
                // A caller with a short deadline says nothing about the connection.
                if sent.elapsed() >= self.settings.timeout / 2 {
                    link.report_broken();
                }
                return Err(unavailable("no answer in time"));
            };
            match answer {
                Ok(value) => {
                    drop(sending);
                    let reply = Reply::parse(value)?;
                    let received = Instant::now();
                    self.clock.observe(sent, received, reply.now);
                    if reply.kind != "late" {
                        return Ok(reply);
                    }
                    // Redis's clock had been set forward, or the call lay about: then the limit ends this.
                    corrected = Some(clock::after(reply.now, received, limit));
                }
                Err(error) => {
                    sending.failed(error.code(), "connection_broken");
                    drop(sending);
                    let lost_for_good = script.repeat == Repeat::Otherwise;
                    if lost_for_good && matches!(advice(&error), Advice::Reconnect) {
                        link.report(&error);
                        return Err(unavailable(&error));
                    }
                    self.recover(&error, &link).await?;
                }
            }
        }
    }

    /// Gets ready to send again what failed, or gives up.
    async fn recover(&self, error: &RedisError, link: &Link) -> Result<(), Failure> {
        match advice(error) {
            Advice::Reconnect => link.report(error),
            Advice::WaitAndRepeat => tokio::time::sleep(NOT_READY_PAUSE).await,
            Advice::GiveUp => {
                self.refuses.store(true, Ordering::Relaxed);
                return Err(unavailable(error));
            }
            Advice::Defect => return Err(Failure::Defect(Cause::new(error))),
        }
        Ok(())
    }
}

/// What is told of the server in traces: never its credentials.
fn database(client: &redis::Client) -> Database {
    let info = client.get_connection_info();
    let (address, port) = match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            (host.clone(), Some(*port))
        }
        ConnectionAddr::Unix(path) => (path.display().to_string(), None),
        _ => ("unknown".to_owned(), None),
    };
    Database {
        address,
        port,
        namespace: info.redis_settings().db().to_string(),
    }
}

fn client(url: &str) -> Result<redis::Client, BadUrl> {
    // For rediss://. It fails where one is installed already, which will do as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    redis::Client::open(url).map_err(|_| BadUrl)
}

enum Advice {
    /// The connection broke, or leads to the wrong server.
    Reconnect,
    /// Redis is loading, failing over, busy with somebody's script, or forgot ours again just after it was loaded.
    WaitAndRepeat,
    /// Redis will not take the call: it is out of memory, may not write, or refuses us.
    GiveUp,
    /// A script failed, or the key holds what is not ours.
    Defect,
}

fn advice(error: &RedisError) -> Advice {
    match error.kind() {
        ErrorKind::Io => Advice::Reconnect,
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::NoScript,
        ) => Advice::WaitAndRepeat,
        ErrorKind::Server(ServerErrorKind::ReadOnly) => Advice::Reconnect,
        ErrorKind::Server(ServerErrorKind::ResponseError) => Advice::Defect,
        _ if error.is_unrecoverable_error() => Advice::Reconnect,
        _ => match error.code() {
            Some("BUSY") => Advice::WaitAndRepeat,
            Some("WRONGTYPE") => Advice::Defect,
            _ => Advice::GiveUp,
        },
    }
}

fn unavailable(cause: impl fmt::Display) -> Failure {
    Failure::StoreUnavailable {
        retry_after: RETRY_AFTER,
        cause: Cause::new(cause),
    }
}
