//! Client of Claimlock: *has this request been done already?* and *may I work on this alone?*
//!
//! ```no_run
//! use claimlock_client::{Client, Idempotency, Request, Response, WorkError};
//!
//! # async fn charge() -> Result<Vec<u8>, std::io::Error> { Ok(Vec::new()) }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect_lazily("http://127.0.0.1:7420")?;
//!
//! let request = Request::new("order-1001")
//!     .operation("POST /v1/charges")
//!     .json(br#"{"amount": 100}"#.to_vec());
//! let answer = client
//!     .idempotent(&request, async |_claim| {
//!         let body = charge().await.map_err(WorkError::unknown_effect)?;
//!         Ok(Response::new(201, body))
//!     })
//!     .await?;
//! match answer {
//!     Idempotency::Done { response, replayed } => println!("{replayed}: {response:?}"),
//!     refused => println!("not done here: {refused:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What every call here does:
//!
//! - it has a deadline, told to the service too;
//! - UNAVAILABLE, and a connection that broke, is tried again within that deadline, with the same token, after a jittered
//!   pause that is no shorter than the service asked for; nothing else is tried again;
//! - one that waits is tried again for as long as its wait lasts, but no longer than the service is heard of;
//! - a claim or lock whose caller gives up, by dropping a future or a guard, is given back in the background. A process
//!   that is about to end calls [`Client::finish`] to wait for that.
//!
//! The leases of what it holds are renewed over one stream for it and all its clones, and by calls where that is down.
//!
//! A [`Client`] is cheap to clone, connects at its first call, and belongs to the tokio runtime of that call.

mod asking;
mod call;
mod claim;
mod client;
mod failure;
mod idempotent;
#[cfg(feature = "json")]
pub mod json;
mod keep_alive;
mod lease;
mod lock;
mod request;
mod time;

pub use call::Health;
pub use claim::{Attempt, Claim};
pub use client::{BadSettings, Client, Settings};
pub use failure::{Failure, FailureKind};
pub use idempotent::{Effect, Idempotency, IdempotentError, WorkError};
pub use lease::{Loss, LossReason};
pub use lock::{Acquisition, HeldLock, Lock, LockError, Mode};
pub use request::{Policy, Request, Response};
pub use time::to_wire as wire;

/// A token that nobody else has: one for each execution, to be repeated on every retry of a call.
#[must_use]
pub fn new_token() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The messages of the wire contract `claimlock.v1`, generated, and its bare stubs.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    include!("generated/claimlock.v1.rs");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_send(_: impl Send) {}

    #[tokio::test]
    async fn every_future_can_be_spawned() {
        let client = Client::connect_lazily("http://127.0.0.1:9").expect("an endpoint");
        let request = Request::new("key");
        let text = String::from("borrowed");
        is_send(client.idempotent(&request, async |claim| {
            tokio::task::yield_now().await;
            Ok::<_, WorkError<()>>(Response::new(200, format!("{text} {}", claim.attempt())))
        }));
        is_send(client.with_lock(&Lock::new("resource"), async |lock| {
            tokio::task::yield_now().await;
            (text.len(), lock.fencing_token())
        }));
        is_send(client.health());
    }
}
