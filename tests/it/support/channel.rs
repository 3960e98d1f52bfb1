//! What scripts tell services, heard on a connection of a test's own.

use super::BOUND;
use super::redis::RedisServer;
use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubStream};

const START: &str = "cl:w:";
/// No script names a service like this.
const END: &str = "end of what a test looks at";

/// Hears what is told to any service from its start on.
pub struct Channel(PubSubStream);

/// A message: for which service, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub service: String,
    pub message: Vec<u8>,
}

impl Channel {
    pub async fn listen(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).expect("a test's own URL");
        let mut connection = client.get_async_pubsub().await.expect("it is taken");
        let subscribed = connection.psubscribe(format!("{START}*")).await;
        subscribed.expect("anybody may listen");
        Self(connection.into_on_message())
    }

    /// What scripts on this connection told since they were asked for last.
    pub async fn told(&mut self, mut connection: MultiplexedConnection) -> Vec<Told> {
        let () = redis::cmd("PUBLISH")
            .arg(format!("{START}{END}"))
            .arg("")
            .query_async(&mut connection)
            .await
            .expect("anybody may publish");
        let mut told = Vec::new();
        loop {
            let message = tokio::time::timeout(BOUND, self.0.next())
                .await
                .expect("the end is told")
                .expect("the connection stays open");
            let service = message.get_channel_name().strip_prefix(START);
            let service = service.expect("nothing else was subscribed to").to_owned();
            if service == END {
                return told;
            }
            let message = message.get_payload_bytes().to_vec();
            told.push(Told { service, message });
        }
    }
}
