//! A waiter that goes away at a chosen moment.

use super::{LOCK, looks_at, stand, waits};
use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::metrics::Scrape;
use crate::support::redis::RedisServer;
use crate::support::requests::token;
use crate::support::service::{
    Admin, Coordination, Service, channel, coordination, health, store_timeout,
};
use crate::support::{BOUND, eventually};
use claimlock::config::Settings;
use tonic::transport::Channel;

/// How a caller goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Cancels,
    IsCutOff,
}

/// What it is when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The call that is to stand in the queue lies in the socket of a Redis that is stopped.
    NotInQueue,
    /// It stands in the queue, and its service does not know.
    InQueue,
    /// It was granted the lock, and its service does not know.
    Granted,
}

/// A service whose connections to Redis and to its callers can be hurt, and one that has none of this trouble.
pub struct Hurt {
    pub redis: RedisServer,
    to_redis: Proxy,
    to_service: Proxy,
    service: Service,
    pub other: Service,
    pub admin: Admin,
    pub elsewhere: Coordination,
}

impl Hurt {
    pub async fn start() -> Self {
        let redis = RedisServer::start().await;
        let to_redis = Proxy::start(Upstream::Unix(redis.socket_path()));
        let settings = Settings {
            redis_connections: 1,
            ..store_timeout(BOUND)
        };
        let service = Service::at(&to_redis.redis_url(), settings).await;
        service.is_ready().await;
        let other = Service::start(&redis).await;
        Self {
            to_service: Proxy::start(Upstream::Tcp(service.grpc)),
            admin: other.admin().await,
            elsewhere: other.coordination().await,
            redis,
            to_redis,
            service,
            other,
        }
    }

    async fn holder(&mut self) -> Option<String> {
        let info = looks_at(&mut self.admin, LOCK).await?;
        Some(info.holders.into_iter().next()?.holder)
    }

    /// Has "gone" wait for the lock, and go away at a moment at which its service can do nothing about it yet.
    pub async fn goes_away(&mut self, moment: Moment, way: Way) {
        let mut client = coordination(self.to_service.addr()).await;
        let since = self.to_redis.passed();
        if moment == Moment::NotInQueue {
            self.redis.stop_process();
        }
        if moment == Moment::InQueue {
            self.to_redis.set(Mode::HoldReplies).await;
        }
        let call = tokio::spawn(async move { client.acquire_lock(waits(LOCK, "gone")).await });
        match moment {
            Moment::NotInQueue => {
                eventually("the call to be in the socket", async || {
                    let its_token = token("gone");
                    self.to_redis
                        .has_passed(its_token.as_bytes(), since)
                        .then_some(())
                })
                .await;
            }
            Moment::InQueue => stand(&mut self.admin, LOCK, 1).await,
            Moment::Granted => {
                stand(&mut self.admin, LOCK, 1).await;
                has_noticed(&self.service.channel().await).await;
                self.to_redis.set(Mode::HoldReplies).await;
                // It tries when the lease of the holder ends.
                eventually("it to be granted the lock", async || {
                    (self.holder().await.as_deref() == Some("holder gone")).then_some(())
                })
                .await;
            }
        }
        match way {
            Way::Cancels => call.abort(),
            Way::IsCutOff => self.to_service.set(Mode::Cut).await,
        }
        let _ = call.await;
        self.to_service.set(Mode::Pass).await;
        has_noticed(&channel(self.to_service.addr()).await).await;
    }

    /// Lets its service go on; returns when that has cleaned up.
    pub async fn lets_go(&mut self, moment: Moment) {
        match moment {
            Moment::NotInQueue => self.redis.resume_process(),
            Moment::InQueue | Moment::Granted => self.to_redis.set(Mode::Pass).await,
        }
        eventually("the clean-up", async || {
            let scrape = Scrape::of(&self.service).await;
            let undone =
                scrape.value("claimlock_store_duration_seconds_count{script=\"undo_lock\"}");
            (undone >= 1.0).then_some(())
        })
        .await;
    }
}

/// Gives a service time to notice what its callers did before: they share one thread with the network between them.
pub async fn has_noticed(channel: &Channel) {
    for _ in 0..10 {
        health(channel, "liveness").await;
    }
}
