//! Looks at a Redis with the eyes of an operator: what it is, what it keeps, and whether it lets us do what we must.
//!
//! Says what was found, in types; what to think of it and what to do is for others to say. Every step is bounded, and what
//! is written for it is gone within seconds.

mod clock;
mod reach;
mod rights;
mod scripts;
mod server;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisError};
use std::time::{Duration, Instant};

pub use clock::ClockSeen;
pub use reach::Unreachable;
pub use rights::{Missing, Rights};
pub use scripts::Scripts;
pub use server::{Memory, Persistence, Role, Server, is_new_enough};

use super::watch::try_to_write;

/// What was found at a Redis that answers.
#[derive(Debug)]
pub struct Examination {
    /// How long it took to answer a PING.
    pub round_trip: Duration,
    /// What it is.
    pub server: Seen<Server>,
    /// What it keeps.
    pub persistence: Seen<Persistence>,
    /// How much it may hold, and what it does when it holds that.
    pub memory: Seen<Memory>,
    /// What time it has.
    pub clock: Seen<ClockSeen>,
    /// What its user may do.
    pub rights: Rights,
    /// Whether it takes a write.
    pub writes: Writes,
    /// Whether the scripts do what they should.
    pub scripts: Scripts,
}

/// What was seen, or why nothing was.
pub type Seen<T> = Result<T, Unseen>;

/// Why nothing was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// The user may not ask, or the server does not know the question; what it said.
    Refused(String),
    /// No answer came in time.
    NoAnswer,
}

/// Whether Redis takes a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writes {
    /// It does.
    Taken,
    /// Its memory is full.
    OutOfMemory,
    /// It cannot persist what it has, and so takes no more.
    CannotPersist,
    /// It is a replica.
    ReadOnly,
    /// It has fewer replicas than it wants.
    TooFewReplicas,
    /// The user may not write what the service writes; [`Examination::rights`] has more.
    Forbidden,
    /// Something else, in Redis's words.
    Otherwise(String),
    /// No answer came in time.
    NoAnswer,
}

/// Looks at the Redis at a URL, with no question taking longer than this.
///
/// # Errors
///
/// Where it cannot be asked anything, with the reason.
pub async fn examine(url: &str, timeout: Duration) -> Result<Examination, Unreachable> {
    let mut asked = Asked::connect(url, timeout).await?;
    let round_trip = asked.ping().await?;
    let server = server::look(&mut asked).await;
    let persistence = server::look_at_persistence(&mut asked).await;
    let memory = server::look_at_memory(&mut asked).await;
    let clock = clock::look(&mut asked).await;
    let rights = rights::look(&mut asked).await;
    let writes = look_at_writes(&mut asked).await;
    let scripts = if rights.missing.is_empty() && writes == Writes::Taken {
        scripts::run(url, timeout).await
    } else {
        Scripts::NotRun
    };
    Ok(Examination {
        round_trip,
        server,
        persistence,
        memory,
        clock,
        rights,
        writes,
        scripts,
    })
}

async fn look_at_writes(asked: &mut Asked) -> Writes {
    match asked.bounded(async |c| try_to_write(c).await).await {
        Ok(()) => Writes::Taken,
        Err(Trouble::NoAnswer) => Writes::NoAnswer,
        Err(Trouble::Error(error)) => match error.code() {
            Some("OOM") => Writes::OutOfMemory,
            Some("MISCONF") => Writes::CannotPersist,
            Some("READONLY") => Writes::ReadOnly,
            Some("NOREPLICAS") => Writes::TooFewReplicas,
            Some("NOPERM") => Writes::Forbidden,
            _ => Writes::Otherwise(error.to_string()),
        },
    }
}

const REFUSALS: [&str; 3] = ["NOPERM", "MISCONF", "MASTERDOWN"];

/// A connection that is asked one question after the other.
struct Asked {
    client: redis::Client,
    connection: MultiplexedConnection,
    timeout: Duration,
    user: String,
    /// An answer did not come in time: no other is waited for, so that many questions cost no more than one.
    is_silent: bool,
}

/// Why a question has no answer.
enum Trouble {
    Error(RedisError),
    NoAnswer,
}

impl From<Trouble> for Unseen {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Error(error) => Self::Refused(
                error
                    .detail()
                    .map_or_else(|| error.to_string(), str::to_owned),
            ),
            Trouble::NoAnswer => Self::NoAnswer,
        }
    }
}

impl Asked {
    async fn connect(url: &str, timeout: Duration) -> Result<Self, Unreachable> {
        let client = super::client(url).map_err(|bad| Unreachable::Otherwise(bad.to_string()))?;
        let user = client.get_connection_info().redis_settings().username();
        let user = user.unwrap_or("default").to_owned();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None);
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        match tokio::time::timeout(timeout, connecting).await {
            Ok(connected) => Ok(Self {
                connection: connected.map_err(|error| Unreachable::of(&error))?,
                client,
                timeout,
                user,
                is_silent: false,
            }),
            Err(_) => Err(Unreachable::NoAnswer),
        }
    }

    async fn ping(&mut self) -> Result<Duration, Unreachable> {
        let sent = Instant::now();
        match self.ask::<redis::Value>(&redis::cmd("PING")).await {
            Ok(_) => Ok(sent.elapsed()),
            // An answer all the same: to a user without the right to ask, or of a server that takes no writes, nor this.
            Err(Trouble::Error(error)) if REFUSALS.contains(&error.code().unwrap_or("")) => {
                Ok(sent.elapsed())
            }
            Err(Trouble::Error(error)) => Err(Unreachable::of(&error)),
            Err(Trouble::NoAnswer) => Err(Unreachable::NoAnswer),
        }
    }

    async fn ask<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, Trouble> {
        self.bounded(async |c| command.query_async(c).await).await
    }

    async fn bounded<T>(
        &mut self,
        asking: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, Trouble> {
        if self.is_silent {
            return Err(Trouble::NoAnswer);
        }
        match tokio::time::timeout(self.timeout, asking(&mut self.connection)).await {
            Ok(answer) => answer.map_err(Trouble::Error),
            Err(_) => {
                self.is_silent = true;
                Err(Trouble::NoAnswer)
            }
        }
    }
}
