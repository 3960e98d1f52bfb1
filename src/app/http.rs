//! Health over HTTP, for probes that speak no gRPC, and the metrics.

use crate::metrics::{self, Metrics};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What the pages are made of.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    /// Whether calls can be answered.
    pub(super) readiness: watch::Receiver<bool>,
    pub(super) metrics: Metrics,
}

/// Serves `/healthz`, which says that the process is alive, `/readyz`, which says whether calls can be answered, and
/// `/metrics`, until `stop` is cancelled.
pub(super) async fn serve(listener: TcpListener, pages: Pages, stop: CancellationToken) {
    let router = Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(text))
        .with_state(pages);
    tokio::select! {
        served = axum::serve(listener, router) => {
            if let Err(error) = served {
                tracing::error!(%error, "the HTTP port is no longer served");
            }
        }
        () = stop.cancelled() => {}
    }
}

async fn readyz(State(pages): State<Pages>) -> (StatusCode, &'static str) {
    if *pages.readiness.borrow() {
        (StatusCode::OK, "ready\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: redis does not answer, or the service is shutting down\n",
        )
    }
}

async fn text(State(pages): State<Pages>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, metrics::CONTENT_TYPE)],
        pages.metrics.text(),
    )
}
