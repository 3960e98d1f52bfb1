//! A server full of claims or locks.

use super::requests::{acquire, claim};
use super::service::Coordination;
use futures_util::stream::{self, StreamExt as _};

/// How many calls a test has in flight when it fills a server.
const AT_ONCE: usize = 100;

/// Claims every key, with a token of the same name.
pub async fn claim_all(client: &Coordination, keys: impl IntoIterator<Item = String>) {
    let claiming = stream::iter(keys).for_each_concurrent(AT_ONCE, |key| {
        let mut client = client.clone();
        async move { drop(client.claim(claim(&key, "a")).await.expect("an answer")) }
    });
    claiming.await;
}

/// Acquires every resource, likewise.
pub async fn acquire_all(client: &Coordination, resources: impl IntoIterator<Item = String>) {
    let acquiring = stream::iter(resources).for_each_concurrent(AT_ONCE, |resource| {
        let mut client = client.clone();
        async move {
            drop(
                client
                    .acquire_lock(acquire(&resource, "a"))
                    .await
                    .expect("an answer"),
            )
        }
    });
    acquiring.await;
}
