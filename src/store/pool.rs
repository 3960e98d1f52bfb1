//! A small pool of multiplexed connections.
//!
//! A call takes a connection, clones it and gives the slot back at once, so that calls in flight share one write
//! and nobody waits for a slot. Nobody pings either: whoever finds a connection broken says so, and the pool
//! replaces it at the next checkout.

use super::clock::Clock;
use super::scripts;
use bb8_redis::bb8;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long one attempt to connect may take. Short, since a SYN that went into a black hole is only sent again
/// after a second.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The pool's own patience, which also bounds the pause between two attempts to connect: half of it.
const CHECKOUT_TIMEOUT: Duration = Duration::from_millis(400);

/// A connection, and whether somebody found it broken.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
}

impl Link {
    /// Has the pool replace the connection.
    pub(super) fn report_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

pub(super) struct Manager {
    client: redis::Client,
    clock: Arc<Clock>,
}

impl bb8::ManageConnection for Manager {
    type Connection = Link;
    type Error = RedisError;

    /// Connects, reads the clock and loads the scripts, so that the first call finds all of it there.
    async fn connect(&self) -> Result<Link, RedisError> {
        let connecting = async {
            // Calls have time limits of their own.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(CONNECT_TIMEOUT))
                .set_response_timeout(None);
            let mut connection = self
                .client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            scripts::load_all(&mut connection).await?;
            look_at_clock(&mut connection, &self.clock).await?;
            Ok(Link {
                connection,
                broken: Arc::new(AtomicBool::new(false)),
            })
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connecting)
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
pub(super) struct Pool(bb8::Pool<Manager>);

impl Pool {
    pub(super) fn new(client: redis::Client, clock: Arc<Clock>, connections: u32) -> Self {
        let pool = bb8::Pool::builder()
            .max_size(connections)
            .min_idle(connections)
            .test_on_check_out(true)
            .idle_timeout(None)
            .max_lifetime(None)
            .connection_timeout(CHECKOUT_TIMEOUT)
            .error_sink(Box::new(LogErrors))
            .build_unchecked(Manager { client, clock });
        Self(pool)
    }

    /// A connection, as soon as there is one; the last error where there is none until `limit`.
    pub(super) async fn link(&self, limit: Instant) -> Result<Link, String> {
        let mut last = "no connection in time".to_owned();
        while Instant::now() < limit {
            match tokio::time::timeout_at(limit.into(), self.0.get()).await {
                Ok(Ok(link)) => return Ok(link.clone()),
                Ok(Err(error)) => last = format!("no connection: {error}"),
                Err(_) => break,
            }
        }
        Err(last)
    }
}

#[derive(Clone, Debug)]
struct LogErrors;

impl bb8::ErrorSink<RedisError> for LogErrors {
    fn sink(&self, error: RedisError) {
        tracing::debug!(%error, "redis connection failed");
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}
