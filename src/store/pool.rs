//! A small pool of multiplexed connections.
//!
//! A call takes a connection, clones it and gives the slot back at once, so that calls in flight share one write
//! and nobody waits for a slot. Nobody pings either: whoever finds a connection broken says so, and the pool
//! replaces it, and all that are as old, at the next checkout.

use super::clock::Clock;
use super::{StoreSettings, scripts};
use bb8_redis::bb8;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long one attempt to connect may take, or half the store's time where that is more. Short, since a SYN that went into a
/// black hole is only sent again after a second.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The pool's own patience, which also bounds the pause between two attempts to connect: half of it.
const CHECKOUT_TIMEOUT: Duration = Duration::from_millis(400);

/// A connection, and the generation that it belongs to.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    generation: u64,
    current: Arc<AtomicU64>,
    dead: CancellationToken,
}

impl Link {
    /// Has the pool replace the connection, and all that are as old: what broke this one, a restart of Redis say, is likely to
    /// have broken those that nobody is using as well.
    pub(super) fn report_broken(&self) {
        // Where it fails somebody reported it before.
        let _ = self.current.compare_exchange(
            self.generation,
            self.generation + 1,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// The same for an error on it. Where that says that the connection is no more, whoever waits for an answer on it waits
    /// no longer.
    pub(super) fn report(&self, error: &RedisError) {
        self.report_broken();
        if error.is_io_error() {
            self.dead.cancel();
        }
    }

    /// Waits until somebody found out that no answer will come on this connection. The driver tells most of those that wait
    /// on one that broke, but not whoever sent just then: its call stays in a queue that nobody reads any more.
    pub(super) async fn died(&self) -> RedisError {
        self.dead.cancelled().await;
        RedisError::from((redis::ErrorKind::Io, "the connection broke"))
    }

    fn is_broken(&self) -> bool {
        self.generation != self.current.load(Ordering::Relaxed)
    }
}

pub(super) struct Manager {
    client: redis::Client,
    clock: Arc<Clock>,
    connect_timeout: Duration,
    generation: Arc<AtomicU64>,
}

impl bb8::ManageConnection for Manager {
    type Connection = Link;
    type Error = RedisError;

    /// Connects, reads the clock and loads the scripts, so that the first call finds all of it there.
    async fn connect(&self) -> Result<Link, RedisError> {
        let generation = self.generation.load(Ordering::Relaxed);
        let connecting = async {
            // Calls have time limits of their own.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.connect_timeout))
                .set_response_timeout(None);
            let mut connection = self
                .client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            // A refusal for want of a password, say, comes once then, not once for each script.
            look_at_clock(&mut connection, &self.clock).await?;
            scripts::load_all(&mut connection).await?;
            Ok(Link {
                connection,
                generation,
                current: self.generation.clone(),
                dead: CancellationToken::new(),
            })
        };
        tokio::time::timeout(self.connect_timeout, connecting)
            .await
            .unwrap_or_else(|_| Err(no_answer()))
    }

    async fn is_valid(&self, link: &mut Link) -> Result<(), RedisError> {
        if link.is_broken() {
            Err(no_answer())
        } else {
            Ok(())
        }
    }

    fn has_broken(&self, link: &mut Link) -> bool {
        link.is_broken()
    }
}

fn no_answer() -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "no answer in time"))
}

/// Reads Redis's clock.
pub(super) async fn look_at_clock(
    connection: &mut MultiplexedConnection,
    clock: &Clock,
) -> Result<(), RedisError> {
    let sent = Instant::now();
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(connection).await?;
    let now = seconds * 1_000_000 + micros;
    clock.observe(sent, Instant::now(), now);
    Ok(())
}

#[derive(Clone)]
pub(super) struct Pool {
    pool: bb8::Pool<Manager>,
    last_error: LastError,
}

impl Pool {
    pub(super) fn new(client: redis::Client, clock: Arc<Clock>, settings: &StoreSettings) -> Self {
        let last_error = LastError::default();
        let pool = bb8::Pool::builder()
            .max_size(settings.connections)
            .min_idle(settings.connections)
            .test_on_check_out(true)
            .idle_timeout(None)
            .max_lifetime(None)
            .connection_timeout(CHECKOUT_TIMEOUT)
            .error_sink(Box::new(last_error.clone()))
            .build_unchecked(Manager {
                client,
                clock,
                connect_timeout: CONNECT_TIMEOUT.max(settings.timeout / 2),
                generation: Arc::default(),
            });
        Self { pool, last_error }
    }

    /// A connection, as soon as there is one; why there is none where there is not until `limit`.
    pub(super) async fn link(&self, limit: Instant) -> Result<Link, String> {
        while Instant::now() < limit {
            match tokio::time::timeout_at(limit.into(), self.pool.get()).await {
                Ok(Ok(link)) => return Ok(link.clone()),
                Ok(Err(_)) => {}
                Err(_) => break,
            }
        }
        Err(format!("no connection in time: {}", self.last_error.text()))
    }
}

/// What went wrong with the last connection: the pool itself only says that there is none.
#[derive(Clone, Debug, Default)]
struct LastError(Arc<Mutex<Option<String>>>);

impl LastError {
    fn text(&self) -> String {
        let last = self.0.lock().expect("nothing panics while it holds a text");
        last.clone().unwrap_or_else(|| "no answer yet".to_owned())
    }
}

impl bb8::ErrorSink<RedisError> for LastError {
    fn sink(&self, error: RedisError) {
        tracing::debug!(%error, "redis connection failed");
        *self.0.lock().expect("nothing panics while it holds a text") = Some(error.to_string());
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}
