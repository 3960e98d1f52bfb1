//! KeepAlive: messages are taken as they come, each is asked by itself, and its answer is handed on as soon as it is there.
//!
//! A message is taken only once there is room for its answer. So a client that does not read is not read from either, and no
//! stream takes more memory than its answers in flight and the leases on it.

use super::convert::leases as convert;
use super::observe::log_failure;
use super::proto::keep_alive_response::Outcome;
use super::proto::{KeepAliveRequest, KeepAliveResponse, LeaseRef};
use super::status;
use crate::coordinator::{Coordinator, LeaseStream};
use crate::domain::failure::Failure;
use crate::domain::lease::RenewOutcome;
use crate::trace::{self, Call};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

/// Messages that are asked, and answers that are not yet handed on, of one stream.
const IN_FLIGHT: usize = 1000;
const METHOD: &str = "claimlock.v1.CoordinationService/KeepAlive";

type Answer = Result<KeepAliveResponse, Status>;
type Answers = mpsc::Sender<Answer>;
/// What is told on a stream.
pub(super) type Told = ReceiverStream<Answer>;

/// Serves a stream until its client ends it or goes away, or until it drains. It goes on for a moment after that: what is in
/// flight has to be heard of before it is known what there is to clean up.
pub(super) fn serve(
    coordinator: &Coordinator,
    messages: Streaming<KeepAliveRequest>,
    drain: CancellationToken,
) -> Told {
    let (answers, told) = mpsc::channel(IN_FLIGHT);
    let conversation = Conversation {
        leases: coordinator.open_stream(),
        timeout: coordinator.call_timeout(),
        call: Call::current(),
        answers,
        in_flight: FuturesUnordered::new(),
    };
    tokio::spawn(trace::carried(conversation.hold(messages, drain)));
    ReceiverStream::new(told)
}

/// How a stream came to its end.
enum End {
    /// Its client ended it, or went away.
    Closed,
    /// A message could not be read.
    Broken(Status),
    /// The service, or the connection, is about to end.
    Drained,
}

struct Conversation {
    leases: LeaseStream,
    timeout: Duration,
    call: Option<Call>,
    answers: Answers,
    in_flight: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Conversation {
    async fn hold(mut self, mut messages: Streaming<KeepAliveRequest>, drain: CancellationToken) {
        tokio::select! {
            () = self.leases.ready(Instant::now() + self.timeout) => {}
            () = drain.cancelled() => {}
        }
        let end = self.take_messages(&mut messages, &drain).await;
        while self.in_flight.next().await.is_some() {}
        let Self {
            leases, answers, ..
        } = self;
        // Whoever is told something here may have gone away.
        match end {
            End::Closed => leases.end(),
            End::Broken(status) => {
                leases.end();
                let _ = answers.send(Err(status)).await;
            }
            End::Drained => {
                drop(leases);
                let _ = answers.send(Ok(convert::draining())).await;
                let _ = answers.send(Err(status::draining())).await;
            }
        }
    }

    async fn take_messages(
        &mut self,
        messages: &mut Streaming<KeepAliveRequest>,
        drain: &CancellationToken,
    ) -> End {
        let mut room = None;
        loop {
            let has_room = room.is_some();
            tokio::select! {
                biased;
                () = drain.cancelled() => return End::Drained,
                () = self.answers.closed() => return End::Closed,
                Some(()) = self.in_flight.next() => {}
                permit = self.answers.clone().reserve_owned(), if !has_room => match permit {
                    Ok(permit) => room = Some(permit),
                    Err(_) => return End::Closed,
                },
                (name, reason) = self.leases.lost(), if has_room => if let Some(room) = room.take() {
                    room.send(Ok(convert::lost(name, reason)));
                },
                message = messages.message(), if has_room => match message {
                    Ok(Some(message)) => if let Some(room) = room.take() {
                        self.take(message, room);
                    },
                    Ok(None) => return End::Closed,
                    Err(status) => return match status::of_codec(&status) {
                        Some(status) => End::Broken(status),
                        None => End::Closed,
                    },
                },
            }
        }
    }

    fn take(&mut self, message: KeepAliveRequest, room: OwnedPermit<Answer>) {
        let request_id = message.request_id;
        let (lease_ref, message) = convert::keep_alive(message);
        // Many messages make one call, whose notes they must not be.
        let part = self.call.as_ref().map(Call::part);
        let tell = move |part: Option<&Call>, result| {
            let answer = || answer(request_id, lease_ref, result);
            room.send(Ok(match part {
                Some(part) => part.during(answer),
                None => answer(),
            }));
        };
        match message {
            Ok(message) => {
                let asked = self.leases.take(message, Instant::now() + self.timeout);
                self.in_flight.push(Box::pin(async move {
                    let result = match part.clone() {
                        Some(part) => part.scope(asked).await,
                        None => asked.await,
                    };
                    tell(part.as_ref(), result);
                }));
            }
            Err(failure) => tell(part.as_ref(), Err(failure)),
        }
    }
}

fn answer(
    request_id: i64,
    lease_ref: Option<LeaseRef>,
    result: Result<RenewOutcome, Failure>,
) -> KeepAliveResponse {
    let failure = match result {
        Ok(outcome) => return convert::kept_alive(request_id, lease_ref, outcome),
        Err(failure) => failure,
    };
    let away = match &failure {
        Failure::StoreUnavailable { retry_after, .. } => Some(*retry_after),
        _ => None,
    };
    let status = status::from_failure(failure);
    if let Some(part) = Call::current() {
        log_failure(METHOD, &part, status.code());
    }
    KeepAliveResponse {
        request_id,
        lease_ref,
        outcome: Some(match away {
            Some(retry_after) => convert::unavailable(retry_after),
            None => Outcome::Error(status::call_error(&status)),
        }),
    }
}
