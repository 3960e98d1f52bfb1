//! What scripts tell a service, heard in its place.

use super::redis::RedisServer;
use futures_util::StreamExt as _;
use redis::aio::{MultiplexedConnection, PubSub};

/// Listens to one service's channel.
pub struct Channel {
    name: String,
    messages: PubSub,
    speaker: MultiplexedConnection,
}

/// Marks how far the messages are to be read.
const SO_FAR: &str = "so far";

impl Channel {
    pub async fn of(service: &str, redis: &RedisServer) -> Self {
        let name = format!("cl:w:{service}");
        let client = redis::Client::open(redis.url()).expect("a test's own URL");
        let mut messages = client
            .get_async_pubsub()
            .await
            .expect("the server takes connections");
        messages
            .subscribe(&name)
            .await
            .expect("SUBSCRIBE is answered");
        Self {
            name,
            messages,
            speaker: redis.connect().await,
        }
    }

    /// What was told since the last look.
    pub async fn heard(&mut self) -> Vec<String> {
        redis::cmd("PUBLISH")
            .arg(&self.name)
            .arg(SO_FAR)
            .exec_async(&mut self.speaker)
            .await
            .expect("PUBLISH is answered");
        let mut heard = Vec::new();
        let mut messages = self.messages.on_message();
        loop {
            let message = messages.next().await.expect("the connection stands");
            let message: String = message.get_payload().expect("a text");
            if message == SO_FAR {
                return heard;
            }
            heard.push(message);
        }
    }
}
