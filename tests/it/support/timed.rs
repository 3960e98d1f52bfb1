//! A server on a clock that the test moves: time passes at once, and only where the test says so, so that no test waits
//! for a lease to end or fails because the machine was slow.

use super::redis::{RedisOptions, RedisServer};
use redis::aio::MultiplexedConnection;
use std::collections::BTreeMap;
use std::time::Duration;

/// A running server, and how far its clock is ahead of the machine's.
#[derive(Debug)]
pub struct TimedRedis {
    pub server: RedisServer,
    connection: MultiplexedConnection,
    ahead: Duration,
    stands_at: Option<Duration>,
}

impl TimedRedis {
    pub async fn start() -> Self {
        let options = RedisOptions {
            movable_clock: true,
            ..RedisOptions::default()
        };
        let server = RedisServer::with(options).await;
        Self {
            connection: server.connect().await,
            server,
            ahead: Duration::ZERO,
            stands_at: None,
        }
    }

    /// A connection beside the service's.
    pub fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// Lets time pass on the server's clock.
    pub fn pass(&mut self, time: Duration) {
        if let Some(stands_at) = self.stands_at {
            self.stop(stands_at + time);
            return;
        }
        self.ahead += time;
        self.server.set_clock_offset(self.ahead.as_secs_f64());
    }

    /// Stops the clock at this second of a day to come, to look at the very moment at which something ends.
    pub fn stop_at(&mut self, second: u32) {
        self.stop(Duration::from_secs(second.into()));
    }

    /// Has no time pass but what the test lets pass from now on, however long it takes.
    pub fn stand_still(&mut self) {
        self.stop(Duration::ZERO);
    }

    fn stop(&mut self, at: Duration) {
        self.server.stop_clock(at);
        self.stands_at = Some(at);
    }

    /// Microseconds since 1970 on the server's clock.
    pub async fn now(&self) -> i64 {
        let (seconds, micros): (i64, i64) = redis::cmd("TIME")
            .query_async(&mut self.connection())
            .await
            .expect("TIME is answered");
        seconds * 1_000_000 + micros
    }

    /// Loses everything, as a server without persistence does.
    pub async fn lose_everything(&self) {
        redis::cmd("FLUSHALL")
            .exec_async(&mut self.connection())
            .await
            .expect("FLUSHALL is answered");
    }

    /// Removes a key, as eviction does; false if there was none.
    pub async fn evict(&self, key: &str) -> bool {
        redis::cmd("DEL")
            .arg(key)
            .query_async(&mut self.connection())
            .await
            .expect("DEL is answered")
    }

    /// Every key with its value; panics over one that is no string, which no claim makes.
    pub async fn strings(&self) -> BTreeMap<String, Vec<u8>> {
        let mut connection = self.connection();
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query_async(&mut connection)
            .await
            .expect("KEYS is answered");
        let mut strings = BTreeMap::new();
        for key in keys {
            let value: Option<Vec<u8>> = redis::cmd("GET")
                .arg(&key)
                .query_async(&mut connection)
                .await
                .expect("the value is a string");
            // A key may have expired since it was listed.
            if let Some(value) = value {
                strings.insert(key, value);
            }
        }
        strings
    }

    /// The keys in whose value these bytes lie.
    pub async fn keys_with(&self, bytes: &[u8]) -> Vec<String> {
        let holds = |value: &[u8]| value.windows(bytes.len()).any(|window| window == bytes);
        let strings = self.strings().await;
        strings
            .into_iter()
            .filter(|(_, value)| holds(value))
            .map(|(key, _)| key)
            .collect()
    }
}
