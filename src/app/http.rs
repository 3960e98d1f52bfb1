//! Health over HTTP, for probes that speak no gRPC.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Serves `/healthz`, which says that the process is alive, and `/readyz`, which says whether calls can be answered,
/// until `stop` is cancelled.
pub(super) async fn serve(
    listener: TcpListener,
    ready: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    let router = Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .with_state(ready);
    tokio::select! {
        served = axum::serve(listener, router) => {
            if let Err(error) = served {
                tracing::error!(%error, "the HTTP port is no longer served");
            }
        }
        () = stop.cancelled() => {}
    }
}

async fn readyz(State(ready): State<watch::Receiver<bool>>) -> (StatusCode, &'static str) {
    if *ready.borrow() {
        (StatusCode::OK, "ready\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: redis does not answer, or the service is shutting down\n",
        )
    }
}
