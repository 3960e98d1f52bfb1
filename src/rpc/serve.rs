//! Takes connections, and ends them in order.
//!
//! tonic's own server waits for open streams without an end when it shuts down, and answers a passed deadline with
//! CANCELLED; so connections are accepted here.

use super::DESCRIPTOR_SET;
use super::admin::Admin;
use super::coordination::Coordination;
use super::health::Health;
use super::layer::Calls;
use super::observe::Observer;
use super::proto::admin_service_server::AdminServiceServer;
use super::proto::coordination_service_server::CoordinationServiceServer;
use crate::coordinator::Coordinator;
use crate::metrics::Metrics;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tower::Service as _;

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
}

/// The three steps of ending in order, each a token that is cancelled.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// No more connections and calls; those in flight finish, and open streams are told that the service is shutting down.
    pub drain: CancellationToken,
    /// Calls that are still in flight are told so too.
    pub hurry: CancellationToken,
    /// What is still open is cut.
    pub cut: CancellationToken,
}

impl Ending {
    /// That of a part, which may also end by itself.
    fn of_part(&self) -> Self {
        Self {
            drain: self.drain.child_token(),
            hurry: self.hurry.child_token(),
            cut: self.cut.child_token(),
        }
    }
}

/// Together they find a peer that is gone within five seconds.
const PING_EVERY: Duration = Duration::from_secs(3);
const PING_TIMEOUT: Duration = Duration::from_millis(1500);
/// A connection that says nothing at all is closed after this.
const FIRST_BYTE_WITHIN: Duration = Duration::from_secs(10);
/// Calls in flight on one connection; as many may be cancelled at once before it is cut, with all other calls on it,
/// as one that only means harm. (Without being told, hyper cuts it at 20.)
const MAX_STREAMS: u32 = 1000;
const MAX_HEADER_BYTES: u32 = 32 * 1024;
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
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ending.drain.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let ending = ending.of_part();
                let cut = ending.cut.clone();
                let calls = Calls {
                    ending,
                    ..calls.clone()
                };
                let connection = connection(stream, peer, calls);
                connections.spawn(async move {
                    tokio::select! {
                        () = connection => {}
                        () = cut.cancelled() => tracing::debug!(%peer, "connection cut"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
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

async fn connection(stream: TcpStream, peer: SocketAddr, calls: Calls<Routes>) {
    let drain = calls.ending.drain.clone();
    // Answers are small, and somebody waits for each.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut first = [0];
    let first_byte = tokio::time::timeout(FIRST_BYTE_WITHIN, stream.peek(&mut first));
    let spoke = tokio::select! {
        first = first_byte => matches!(first, Ok(Ok(1..))),
        () = drain.cancelled() => false,
    };
    if !spoke {
        return;
    }

    let draining = Draining(drain.clone());
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let extensions = request.extensions_mut();
        extensions.insert(Peer(peer));
        extensions.insert(draining.clone());
        calls.clone().call(request)
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_STREAMS as usize)
        .max_header_list_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}
