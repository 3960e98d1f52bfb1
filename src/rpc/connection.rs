//! One connection, from its first byte to its end in order.

use super::ending::Ending;
use super::layer::Calls;
use super::lingering::{Lingering, linger};
use super::serve::{Draining, Peer, ServeSettings};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tower::Service as _;

/// Together they find a peer that is gone within five seconds.
const PING_EVERY: Duration = Duration::from_secs(3);
const PING_TIMEOUT: Duration = Duration::from_millis(1500);
/// A connection that says nothing at all is closed after this.
const FIRST_BYTE_WITHIN: Duration = Duration::from_secs(10);
/// The same at the drain: what it says first may be on its way.
const FIRST_BYTE_AT_DRAIN_WITHIN: Duration = Duration::from_millis(250);
/// Calls in flight on one connection; as many may be cancelled at once before it is cut, with all other calls on it,
/// as one that only means harm. (Without being told, hyper cuts it at 20.)
const MAX_STREAMS: u32 = 1000;
const MAX_HEADER_BYTES: u32 = 32 * 1024;
/// What of one call, and of all on a connection, may lie unread. A KeepAlive stream sends many small messages, and leaves them
/// to lie while those before are asked. h2 takes too many of them on a connection for an attack, and cuts it with all calls on
/// it: each that is shorter than 256 bytes is charged with what it lacks, to half of the connection's window. So that window is
/// many times the other one, which a stream of the shortest messages that have a meaning, of some 35 bytes, is to fill unpunished.
const CALL_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// By how much of it an age may be missed either way: connections that began together, after a restart say, are not to end
/// together.
const AGE_JITTER: f64 = 0.1;

/// Serves a connection until its peer or the service ends it, or its age does.
pub(super) async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    calls: Calls<Routes>,
    settings: ServeSettings,
) {
    let ending = calls.ending.of_part();
    let calls = Calls {
        ending: ending.clone(),
        ..calls
    };
    tokio::select! {
        () = served(stream, peer, calls) => {}
        () = ending.cut.cancelled() => tracing::debug!(%peer, "connection cut"),
        () = ended_at_its_age(peer, settings, ending.clone()) => {}
    }
}

/// Ends a connection when it has reached its age, as the service's own end would. Its client comes back over another.
async fn ended_at_its_age(peer: SocketAddr, settings: ServeSettings, ending: Ending) {
    let Some(age) = settings.max_connection_age else {
        return std::future::pending().await;
    };
    tokio::time::sleep(jittered(age)).await;
    tracing::debug!(%peer, "connection has reached its age");
    let late = || tracing::debug!(%peer, "calls did not finish within the grace period");
    ending.within(settings.drain_grace, late).await;
    tracing::debug!(%peer, "connection cut");
}

fn jittered(age: Duration) -> Duration {
    age.mul_f64(rand::random_range(1.0 - AGE_JITTER..=1.0 + AGE_JITTER))
}

async fn served(stream: TcpStream, peer: SocketAddr, calls: Calls<Routes>) {
    let drain = calls.ending.drain.clone();
    // Answers are small, and somebody waits for each.
    if stream.set_nodelay(true).is_err() || !speaks(&stream, &drain).await {
        return;
    }
    let draining = Draining(drain.clone());
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let extensions = request.extensions_mut();
        extensions.insert(Peer(peer));
        extensions.insert(draining.clone());
        calls.clone().call(request)
    });
    let (stream, left) = Lingering::new(stream);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_STREAMS as usize)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(CALL_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = Box::pin(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    drop(connection);
    match ended {
        Ok(()) => linger(left).await,
        Err(error) => tracing::debug!(%peer, %error, "connection ended"),
    }
}

/// Waits for the first byte of a connection.
async fn speaks(stream: &TcpStream, drain: &CancellationToken) -> bool {
    let mut first = [0];
    let first_byte = tokio::time::timeout(FIRST_BYTE_WITHIN, stream.peek(&mut first));
    let too_late = async {
        drain.cancelled().await;
        tokio::time::sleep(FIRST_BYTE_AT_DRAIN_WITHIN).await;
    };
    tokio::select! {
        first = first_byte => matches!(first, Ok(Ok(1..))),
        () = too_late => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn connections_that_began_together_do_not_end_together() {
        let age = Duration::from_secs(100);
        let ages: HashSet<Duration> = (0..1000).map(|_| jittered(age)).collect();
        assert!(ages.len() > 990, "only {} ages", ages.len());
        let range = Duration::from_secs(90)..=Duration::from_secs(110);
        assert!(ages.iter().all(|age| range.contains(age)), "{ages:?}");
        let (least, most) = (ages.iter().min(), ages.iter().max());
        assert!(
            least < Some(&Duration::from_secs(92)) && most > Some(&Duration::from_secs(108)),
            "{least:?} to {most:?}"
        );
    }
}
