//! What surrounds every call: its deadline, its answer's way out, and codec failures put into words.

use super::deadline::CallerDeadline;
use super::ending::Ending;
use super::observe::{Observed, Observer, code};
use super::status;
use crate::coordinator::Grant;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Code, Status};
use tower::Service;

/// A grant that its caller has not heard of yet, in a response's extensions.
#[derive(Clone, Debug)]
pub(super) struct Unheard(Arc<Mutex<Option<Grant>>>);

impl Unheard {
    pub(super) fn new(grant: Grant) -> Self {
        Self(Arc::new(Mutex::new(Some(grant))))
    }

    fn take(&self) -> Option<Grant> {
        self.0
            .lock()
            .expect("nothing panics while it holds a grant")
            .take()
    }
}

/// In the extensions of a response whose stream ends by itself once its connection drains, and so is left alone until calls
/// have no more time.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndsItself;

/// Surrounds the service with what every call needs.
#[derive(Clone, Debug)]
pub(super) struct Calls<S> {
    pub(super) service: S,
    pub(super) observer: Observer,
    /// That of the connection: open streams end with the first step, calls in flight have no more time at the second.
    pub(super) ending: Ending,
}

impl<S, B> Service<Request<B>> for Calls<S>
where
    S: Service<Request<B>, Response = Response<tonic::body::Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<AnswerBody>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let observed = self.observer.begin(&request);
        let deadline = CallerDeadline::read(request.headers(), Instant::now());
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(deadline);
        }
        let answer = self.service.call(request);
        let ending = self.ending.clone();
        let call = observed.call().clone();
        Box::pin(call.scope(async move {
            let response = tokio::select! {
                biased;
                response = answer => response?,
                // The handler answers before this; a message that does not come to an end has nobody else to stop it.
                () = passed(deadline) => status::deadline_exceeded().into_http(),
                () = ending.hurry.cancelled() => status::draining().into_http(),
            };
            Ok(AnswerBody::wrap(in_our_words(response), ending, observed))
        }))
    }
}

async fn passed(deadline: Option<CallerDeadline>) {
    match deadline {
        Some(CallerDeadline(at)) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Our own failures have details. One without comes from the codec, and is told as the caller's mistake that it is.
fn in_our_words(response: Response<tonic::body::Body>) -> Response<tonic::body::Body> {
    let headers = response.headers();
    if code(headers).is_none() || headers.contains_key("grpc-status-details-bin") {
        return response;
    }
    match Status::from_header_map(headers).and_then(|status| status::of_codec(&status)) {
        Some(status) => status.into_http(),
        None => response,
    }
}

/// An answer's body, which knows when the answer has been handed to the transport, and ends an open stream when its
/// connection drains.
pub(super) struct AnswerBody {
    body: tonic::body::Body,
    observed: Observed,
    grant: Option<Grant>,
    message_taken: bool,
    to_end: Pin<Box<WaitForCancellationFutureOwned>>,
    is_over: bool,
}

impl AnswerBody {
    fn wrap(
        mut response: Response<tonic::body::Body>,
        ending: Ending,
        mut observed: Observed,
    ) -> Response<Self> {
        observed.saw(response.headers());
        let extensions = response.extensions_mut();
        let grant = extensions
            .remove::<Unheard>()
            .and_then(|unheard| unheard.take());
        let to_end = match extensions.remove::<EndsItself>() {
            Some(EndsItself) => ending.hurry,
            None => ending.drain,
        };
        response.map(|body| Self {
            body,
            observed,
            grant,
            message_taken: false,
            to_end: Box::pin(to_end.cancelled_owned()),
            is_over: false,
        })
    }

    fn is_heard(&mut self) {
        if let Some(grant) = self.grant.take() {
            grant.heard();
        }
    }
}

impl Body for AnswerBody {
    type Data = <tonic::body::Body as Body>::Data;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        // hyper takes the message before the caller's window has room for it, and drops it if the caller goes away
        // meanwhile. It has handed it on when it asks for what comes next.
        if self.message_taken {
            self.is_heard();
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        // A stream that has something to say may do so first.
        if frame.is_pending() && self.to_end.as_mut().poll(cx).is_ready() {
            self.is_over = true;
            let trailers = self.observed.call().during(status::draining_trailers);
            self.observed.answered(Code::Unavailable);
            return Poll::Ready(Some(Ok(trailers)));
        }
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            if let Some(trailers) = frame.trailers_ref() {
                self.observed.saw(trailers);
            }
            self.message_taken = true;
            if self.body.is_end_stream() {
                self.is_heard();
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metrics, TenantLimit};
    use prost::bytes::Bytes;
    use std::convert::Infallible;

    /// A stream that has nothing to say.
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Pending
        }
    }

    /// The codes with which such a stream has ended before the drain, at it, and when calls have no more time.
    async fn ended(extensions: http::Extensions) -> [Option<Code>; 3] {
        let ending = Ending::default();
        let service = tower::service_fn(move |_: Request<()>| {
            let mut response = Response::new(tonic::body::Body::new(Silent));
            *response.extensions_mut() = extensions.clone();
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let mut calls = Calls {
            service,
            observer: Observer::new(&Metrics::new("0", TenantLimit(0)), &[]),
            ending: ending.clone(),
        };
        let Ok(response) = calls.call(Request::new(())).await;
        let mut body = response.into_body();
        let mut codes = [None; 3];
        for (step, ended) in codes.iter_mut().enumerate() {
            match step {
                0 => {}
                1 => ending.drain.cancel(),
                _ => ending.hurry.cancel(),
            }
            let frame =
                std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await;
            if let Poll::Ready(Some(Ok(frame))) = frame {
                *ended = frame.trailers_ref().and_then(code);
            }
        }
        codes
    }

    #[tokio::test]
    async fn an_open_stream_ends_at_the_drain_and_one_that_ends_itself_has_time_to() {
        let unavailable = Some(Code::Unavailable);
        let ended_by_us = ended(http::Extensions::new()).await;
        assert_eq!(ended_by_us, [None, unavailable, None]);
        let mut extensions = http::Extensions::new();
        extensions.insert(EndsItself);
        assert_eq!(ended(extensions).await, [None, None, unavailable]);
    }
}
