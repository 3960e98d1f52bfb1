//! The service itself, in the test's own process, over real TCP.

use super::eventually;
use super::redis::RedisServer;
use claimlock::app::{self, Listeners};
use claimlock::config::{RedisUrl, Settings};
use claimlock::rpc::proto::admin_service_client::AdminServiceClient;
use claimlock::rpc::proto::coordination_service_client::CoordinationServiceClient;
use futures_util::future::join_all;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

pub type Coordination = CoordinationServiceClient<Channel>;
pub type Admin = AdminServiceClient<Channel>;

/// Settings for large messages, which take their time on a busy machine.
pub fn patient() -> Settings {
    Settings {
        store_timeout: super::BOUND,
        ..Settings::default()
    }
}

/// A running service; stopped with the value.
#[derive(Debug)]
pub struct Service {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), app::Error>>,
}

impl Service {
    /// On a server of the test's, ready to answer.
    pub async fn start(redis: &RedisServer) -> Self {
        Self::with(redis, Settings::default()).await
    }

    /// The same with other settings.
    pub async fn with(redis: &RedisServer, settings: Settings) -> Self {
        let service = Self::at(&redis.url(), settings).await;
        service.is_ready().await;
        service
    }

    /// On an address that another service has left.
    pub async fn on(grpc: SocketAddr, redis: &RedisServer, settings: Settings) -> Self {
        let service = Self::listening(grpc, &redis.url(), settings).await;
        service.is_ready().await;
        service
    }

    /// At any URL, whether or not a server answers there.
    pub async fn at(redis_url: &str, settings: Settings) -> Self {
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::listening(any_port, redis_url, settings).await
    }

    async fn listening(grpc: SocketAddr, redis_url: &str, settings: Settings) -> Self {
        let settings = Settings {
            grpc_addr: grpc,
            http_addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            redis_url: Some(RedisUrl::parse(redis_url).expect("a test's own URL")),
            ..settings
        };
        let listeners = Listeners::bind(&settings).await.expect("free ports");
        let address =
            |listener: &tokio::net::TcpListener| listener.local_addr().expect("a bound address");
        let (grpc, http) = (address(&listeners.grpc), address(&listeners.http));
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(app::run(settings, listeners, shutdown.clone()));
        Self {
            grpc,
            http,
            shutdown,
            running,
        }
    }

    /// Waits until the service says that it is ready.
    pub async fn is_ready(&self) {
        eventually("the service to be ready", async || {
            (http_status(self.http, "/readyz").await? == 200).then_some(())
        })
        .await;
    }

    /// A new connection to it.
    pub async fn channel(&self) -> Channel {
        channel(self.grpc).await
    }

    pub async fn coordination(&self) -> Coordination {
        coordination(self.grpc).await
    }

    pub async fn admin(&self) -> Admin {
        AdminServiceClient::new(self.channel().await)
    }

    /// Drains it and returns how it ended.
    pub async fn stop(mut self) -> Result<(), app::Error> {
        self.shutdown.cancel();
        (&mut self.running)
            .await
            .expect("the service does not panic")
    }
}

/// Services on one Redis, with connections to each.
#[derive(Debug)]
pub struct Fleet {
    pub services: Vec<Service>,
    clients: Vec<Coordination>,
}

impl Fleet {
    /// Two services with four connections to each.
    pub async fn start(redis: &RedisServer, settings: Settings) -> Self {
        let mut fleet = Self {
            services: Vec::new(),
            clients: Vec::new(),
        };
        for _ in 0..2 {
            let service = Service::with(redis, settings.clone()).await;
            for _ in 0..4 {
                fleet.clients.push(service.coordination().await);
            }
            fleet.services.push(service);
        }
        fleet
    }

    /// One of the connections; neighbours in number have different ones.
    pub fn client(&self, number: usize) -> Coordination {
        self.clients[number % self.clients.len()].clone()
    }

    /// What so many callers get at once, each by its number.
    pub async fn at_once<T>(
        &self,
        callers: usize,
        call: impl AsyncFn(Coordination, usize) -> T,
    ) -> Vec<T> {
        join_all((0..callers).map(|number| call(self.client(number), number))).await
    }
}

/// A new connection to a service.
pub async fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}"))
        .expect("an address")
        .connect()
        .await
        .expect("the service takes connections")
}

pub async fn coordination(address: SocketAddr) -> Coordination {
    CoordinationServiceClient::new(channel(address).await)
        .max_decoding_message_size(16 * 1024 * 1024)
}

/// What gRPC health says of a service by its name.
pub async fn health(channel: &Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    HealthClient::new(channel.clone())
        .check(request)
        .await
        .expect("health is told whatever else happens")
        .into_inner()
        .status()
}

/// The defaults, with another time for the store.
pub fn store_timeout(timeout: Duration) -> Settings {
    Settings {
        store_timeout: timeout,
        ..Settings::default()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// The status that a path of the HTTP port answers with; `None` where nobody answers.
pub async fn http_status(address: SocketAddr, path: &str) -> Option<u16> {
    let answer = http_get(address, path).await?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// The whole answer of a path of the HTTP port, with its headers.
pub async fn http_get(address: SocketAddr, path: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}
