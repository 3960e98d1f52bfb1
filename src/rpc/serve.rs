//! Takes connections, and ends them in order.
//!
//! tonic's own server waits for open streams without an end when it shuts down, and answers a passed deadline with
//! CANCELLED; so connections are accepted here.

use super::DESCRIPTOR_SET;
use super::admin::Admin;
use super::connection::connection;
use super::coordination::Coordination;
use super::ending::Ending;
use super::health::Health;
use super::layer::Calls;
use super::observe::Observer;
use super::proto::admin_service_server::AdminServiceServer;
use super::proto::coordination_service_server::CoordinationServiceServer;
use crate::coordinator::Coordinator;
use crate::metrics::Metrics;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

/// The address a call came from, in its extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Cancelled when a call's connection drains, in the call's extensions: whatever waits or stays open says so to its
/// caller then.
#[derive(Clone, Debug)]
pub(super) struct Draining(pub(super) CancellationToken);

/// How connections are treated.
#[derive(Clone, Copy, Debug)]
pub struct ServeSettings {
    /// Bytes of one message.
    pub max_message: usize,
    /// About when a connection is ended; none lets it last.
    pub max_connection_age: Option<Duration>,
    /// How long it may then still be open.
    pub drain_grace: Duration,
}

/// Pause after a connection could not be accepted, for want of file descriptors say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What reflection shows.
const REFLECTED: [&[u8]; 2] = [DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET];
/// All that is served.
const DESCRIPTOR_SETS: [&[u8]; 4] = [
    REFLECTED[0],
    REFLECTED[1],
    tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
];

/// Serves until it is told to end. Returns when no connection is left.
pub async fn serve(
    listener: TcpListener,
    coordinator: Coordinator,
    health: Health,
    metrics: Metrics,
    settings: ServeSettings,
    ending: Ending,
) {
    let calls = Calls {
        observer: Observer::new(&metrics, &DESCRIPTOR_SETS),
        service: routes(coordinator, &health, settings),
        ending: ending.clone(),
    };
    let connections = TaskTracker::new();
    accept_until(&ending.drain, listener, |stream, peer| {
        connections.spawn(connection(stream, peer, calls.clone(), settings));
    })
    .await;
    connections.close();
    connections.wait().await;
}

/// Takes connections until the drain, and then those that the system has already taken in the service's name: to close the
/// port would reset them, and their first calls with them.
async fn accept_until(
    drain: &CancellationToken,
    listener: TcpListener,
    mut take: impl FnMut(TcpStream, SocketAddr),
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => take(stream, peer),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Asked of the system itself, of which tokio hears later. The standard library's listener is as nonblocking.
    let Ok(listener) = listener.into_std() else {
        return;
    };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            take(stream, peer);
        }
    }
}

fn routes(coordinator: Coordinator, health: &Health, settings: ServeSettings) -> Routes {
    let reflection = || {
        REFLECTED.into_iter().fold(
            tonic_reflection::server::Builder::configure(),
            tonic_reflection::server::Builder::register_encoded_file_descriptor_set,
        )
    };
    let v1 = reflection().build_v1();
    let v1alpha = reflection().build_v1alpha();
    Routes::new(
        CoordinationServiceServer::new(Coordination(coordinator.clone()))
            .max_decoding_message_size(settings.max_message),
    )
    .add_service(
        AdminServiceServer::new(Admin(coordinator)).max_decoding_message_size(settings.max_message),
    )
    .add_service(health.service())
    .add_service(v1.expect("the descriptor set was made from this contract"))
    .add_service(v1alpha.expect("the descriptor set was made from this contract"))
    .prepare()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_that_came_before_the_drain_are_taken_before_the_port_closes() {
        const CONNECTIONS: usize = 20;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let connect = || std::net::TcpStream::connect(address);
        let connected: Vec<_> = (0..CONNECTIONS)
            .map(|_| connect().expect("it listens"))
            .collect();
        let drain = CancellationToken::new();
        drain.cancel();
        let mut taken = Vec::new();
        accept_until(&drain, listener, |_, peer| taken.push(peer)).await;
        let ours = connected.iter().map(|stream| stream.local_addr());
        let ours: Vec<_> = ours.map(|address| address.expect("connected")).collect();
        assert_eq!(taken, ours);
        connect().expect_err("the port is closed");
    }
}
