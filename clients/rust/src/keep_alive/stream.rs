//! The task that holds the stream: opens it, and again where it broke, and hands on what goes over it.

use super::leases::Leases;
use super::{Answer, Lease, Order};
use crate::call::{LONGEST_PAUSE, Pauses};
use crate::client::Shared;
use crate::failure::{Failure, FailureKind};
use crate::lease::Renewal;
use crate::proto::coordination_service_client::CoordinationServiceClient;
use crate::proto::keep_alive_response::Outcome;
use crate::proto::{KeepAliveRequest, KeepAliveResponse};
use crate::time::later;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// Orders, and messages, that are on their way.
const ON_THEIR_WAY: usize = 1024;
/// A stream counts as broken where something was not answered for so long. Leases do not wait for that.
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// A stream that has had no lease for so long is closed.
const CLOSED_AFTER: Duration = Duration::from_secs(30);
/// Where a stream cannot be had, as from a service that is older than this client, it is asked for again after this. So long,
/// too, is the longest pause after streams that were opened and on which nothing was heard.
const ASKED_FOR_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// A stream that fell silent is left open for so long, as its leases could end with it: meanwhile they go to the next.
const LEFT_OPEN_FOR: Duration = Duration::from_secs(3);

/// Holds the stream of a client.
pub(super) struct Keeper {
    channel: Channel,
    metadata: MetadataMap,
    orders: mpsc::Receiver<Order>,
    leases: Leases,
    /// How many streams there have been.
    number: u64,
    last_request_id: i64,
    /// Between streams, since one on which something was heard.
    pauses: Pauses,
    /// How many streams that is.
    unheard: u32,
}

impl Keeper {
    /// Starts the task, on the runtime of whoever renews first. It ends when nobody can give orders any more.
    pub(super) fn start(shared: &Shared) -> mpsc::Sender<Order> {
        let (give, orders) = mpsc::channel(ON_THEIR_WAY);
        let mut metadata = MetadataMap::new();
        shared.tell_who_asks(&mut metadata);
        let keeper = Self {
            channel: shared.channel(),
            metadata,
            orders,
            leases: Leases::default(),
            number: 0,
            last_request_id: 0,
            pauses: Pauses::default(),
            unheard: 0,
        };
        tokio::spawn(keeper.run());
        give
    }

    async fn run(mut self) {
        let mut first = None;
        loop {
            if self.leases.is_empty() {
                first = self.first_renewal().await;
                if first.is_none() {
                    return;
                }
            }
            self.number += 1;
            self.unheard += 1;
            let mut stream = self.open();
            let end = self.hold(&mut stream, first.take()).await;
            let Some(pause) = self.pause_after(&end, stream.state) else {
                return;
            };
            tracing::debug!(?end, ?pause, "a stream that kept leases alive is over");
            if end.may_end_leases(stream.state) {
                self.leases.sever(self.number);
            }
            match end {
                End::Silent => stream.leave_open(),
                _ => drop(stream),
            }
            if !self.turn_away_for(pause).await {
                return;
            }
        }
    }

    async fn first_renewal(&mut self) -> Option<Order> {
        loop {
            match self.orders.recv().await? {
                order @ Order::Renew(..) => return Some(order),
                Order::Detach(..) => {}
            }
        }
    }

    fn open(&self) -> Stream {
        let (outgoing, messages) = mpsc::channel(ON_THEIR_WAY);
        let mut stub = CoordinationServiceClient::new(self.channel.clone());
        let mut request = Request::new(ReceiverStream::new(messages));
        *request.metadata_mut() = self.metadata.clone();
        let opening = async move { Ok(stub.keep_alive(request).await?.into_inner()) };
        Stream {
            outgoing,
            incoming: Incoming::Opening(Box::pin(opening)),
            waiting: BTreeMap::new(),
            opened_at: Instant::now(),
            state: State::Opening,
        }
    }

    /// Hands on what goes over a stream, until it is over.
    async fn hold(&mut self, stream: &mut Stream, first: Option<Order>) -> End {
        if let Some(order) = first {
            self.send(stream, order);
        }
        let mut empty_since = Instant::now();
        loop {
            if !self.leases.is_empty() {
                empty_since = Instant::now();
            }
            let silent_at = stream.silent_at();
            let has_room = stream.outgoing.capacity() > 0;
            tokio::select! {
                heard = stream.incoming.next() => match heard {
                    Ok(Heard::Opened) => {
                        stream.state = State::Opened;
                        self.leases.move_to(self.number);
                    }
                    Ok(Heard::Message(message)) => if self.hear(stream, message) {
                        return End::Draining;
                    },
                    Ok(Heard::End) => return End::Closed,
                    Err(status) => return End::Failed(status.into()),
                },
                is_open = takes_more(&stream.outgoing), if !has_room => if !is_open {
                    return End::Closed;
                },
                order = self.orders.recv(), if has_room => match order {
                    Some(order) => self.send(stream, order),
                    None => return End::Unwanted,
                },
                () = sleep_until(silent_at) => return End::Silent,
                () = sleep_until(Some(empty_since + CLOSED_AFTER)), if self.leases.is_empty() => {
                    return End::Idle;
                }
            }
        }
    }

    /// Sends what an order asks for. There is room for it.
    fn send(&mut self, stream: &mut Stream, order: Order) {
        let (lease, asked) = match order {
            // Whoever asked has found another way, or does not want it any more.
            Order::Renew(_, answer) if answer.is_closed() => return,
            Order::Renew(lease, _) if lease.is_given_up.load(Ordering::Relaxed) => return,
            Order::Renew(lease, answer) => {
                // Some services take a stream when something is sent on it. Where none was taken, nobody waits for it.
                let goes_there = stream.state != State::Opening || self.unheard == 1;
                self.leases.put(&lease, goes_there.then_some(self.number));
                if !goes_there {
                    return;
                }
                (lease, Asked::Renewal(answer))
            }
            Order::Detach(lease, done) => {
                if !self.leases.take(&lease, self.number) {
                    return;
                }
                (lease, Asked::Detachment(done))
            }
        };
        self.last_request_id += 1;
        let detach = matches!(asked, Asked::Detachment(_));
        let message = KeepAliveRequest {
            request_id: self.last_request_id,
            lease_ref: Some(lease.reference()),
            lease: lease.lease.filter(|_| !detach),
            end_on_close: lease.end_on_close.is_some() && !detach,
            detach,
        };
        // It is gone where nothing goes over the stream any more, which is heard next.
        if stream.outgoing.try_send(message).is_ok() {
            let waiting = Waiting {
                sent: Instant::now(),
                lease,
                asked,
            };
            stream.waiting.insert(self.last_request_id, waiting);
        }
    }

    /// Hands on what the service says. Returns whether it is about to end.
    fn hear(&mut self, stream: &mut Stream, message: KeepAliveResponse) -> bool {
        if matches!(message.outcome, Some(Outcome::Draining(_))) {
            return true;
        }
        stream.state = State::Heard;
        self.pauses = Pauses::default();
        self.unheard = 0;
        let waiting = stream.waiting.remove(&message.request_id);
        match (waiting, message.outcome) {
            (Some(waiting), outcome) => match waiting.asked {
                Asked::Renewal(answer) => {
                    let outcome = self.answer(&waiting.lease, outcome);
                    // It may have found another way meanwhile.
                    let _ = answer.send(outcome);
                }
                Asked::Detachment(done) => drop(done),
            },
            (None, Some(Outcome::Lost(lost))) => {
                if let Some(kind) = message.lease_ref.and_then(|lease_ref| lease_ref.kind) {
                    self.leases.lost(&kind, &lost.into());
                }
            }
            (None, _) => {}
        }
        false
    }

    fn answer(&mut self, lease: &Lease, outcome: Option<Outcome>) -> Answer {
        match outcome {
            Some(Outcome::Renewed(renewed)) => {
                lease.is_severed.store(false, Ordering::Relaxed);
                Ok(Renewal::Renewed {
                    lease_left: crate::time::from_wire(renewed.lease_left),
                })
            }
            Some(Outcome::Lost(lost)) => {
                let loss = lost.into();
                self.leases.lost(&lease.kind, &loss);
                Ok(Renewal::Lost(loss))
            }
            Some(Outcome::Unavailable(unavailable)) => Err(unavailable.into()),
            Some(Outcome::Error(error)) => Err(error.into()),
            Some(Outcome::Draining(_)) | None => Err(Failure::unknown_outcome("KeepAlive")),
        }
    }

    /// How long to do without a stream. Nothing where nobody wants one any more.
    fn pause_after(&mut self, end: &End, state: State) -> Option<Duration> {
        let longest = match state {
            State::Opened => ASKED_FOR_AGAIN_AFTER,
            State::Opening | State::Heard => LONGEST_PAUSE,
        };
        let cannot_be_had = match end {
            End::Unwanted => return None,
            End::Idle => return Some(Duration::ZERO),
            _ if state == State::Heard => false,
            End::Draining | End::Closed => false,
            End::Silent => true,
            End::Failed(failure) => failure.kind != FailureKind::Unavailable,
        };
        if cannot_be_had {
            self.unheard = 0;
            return Some(ASKED_FOR_AGAIN_AFTER.mul_f64(rand::random_range(0.5..=1.0)));
        }
        self.pauses.next(None, Duration::MAX, longest)
    }

    /// While there is no stream, whoever asks is told so. Returns whether anybody can still ask.
    async fn turn_away_for(&mut self, pause: Duration) -> bool {
        let until = later(Instant::now(), pause);
        loop {
            tokio::select! {
                () = sleep_until(Some(until)) => return true,
                order = self.orders.recv() => match order {
                    Some(Order::Renew(lease, _)) => {
                        if !lease.is_given_up.load(Ordering::Relaxed) {
                            self.leases.put(&lease, None);
                        }
                    }
                    Some(Order::Detach(lease, _)) => {
                        self.leases.take(&lease, self.number);
                    }
                    None => return false,
                },
            }
        }
    }
}

/// How a stream came to its end.
#[derive(Debug)]
enum End {
    /// The service, or the connection, is about to end. Its leases stand.
    Draining,
    /// By the service, without a word.
    Closed,
    Failed(Failure),
    /// Something was not answered for too long.
    Silent,
    /// There is no lease any more.
    Idle,
    /// Nor is there a client.
    Unwanted,
}

impl End {
    /// Whether leases that are to end with the stream may have done so.
    fn may_end_leases(&self, state: State) -> bool {
        match self {
            Self::Draining => false,
            // It was refused. Where the connection broke nobody knows whether it was taken.
            Self::Failed(failure) if state == State::Opening => {
                failure.kind == FailureKind::Unavailable
            }
            Self::Closed | Self::Failed(_) | Self::Silent | Self::Idle | Self::Unwanted => true,
        }
    }
}

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    /// The service took it.
    Opened,
    /// And has said something on it.
    Heard,
}

/// One stream.
struct Stream {
    outgoing: mpsc::Sender<KeepAliveRequest>,
    incoming: Incoming,
    /// What is not answered yet; the first one has waited longest.
    waiting: BTreeMap<i64, Waiting>,
    opened_at: Instant,
    state: State,
}

struct Waiting {
    sent: Instant,
    lease: Arc<Lease>,
    asked: Asked,
}

enum Asked {
    Renewal(oneshot::Sender<Answer>),
    Detachment(Option<oneshot::Sender<()>>),
}

impl Stream {
    /// When it counts as silent.
    fn silent_at(&self) -> Option<Instant> {
        let since = match self.waiting.first_key_value() {
            Some((_, waiting)) => waiting.sent,
            None if self.state == State::Opening => self.opened_at,
            None => return None,
        };
        Some(later(since, SILENT_AFTER))
    }

    /// Goes on being open for a while, unheard. Whoever waits for an answer is told that there will be none.
    fn leave_open(self) {
        let Self {
            outgoing, incoming, ..
        } = self;
        tokio::spawn(async move {
            tokio::time::sleep(LEFT_OPEN_FOR).await;
            drop((outgoing, incoming));
        });
    }
}

enum Incoming {
    Opening(Pin<Box<dyn Future<Output = Result<Streaming<KeepAliveResponse>, Status>> + Send>>),
    Open(Box<Streaming<KeepAliveResponse>>),
}

enum Heard {
    Opened,
    Message(KeepAliveResponse),
    End,
}

impl Incoming {
    /// What is heard next. Safe to drop and to ask again.
    async fn next(&mut self) -> Result<Heard, Status> {
        match self {
            Self::Opening(opening) => {
                *self = Self::Open(Box::new(opening.await?));
                Ok(Heard::Opened)
            }
            Self::Open(open) => Ok(open.message().await?.map_or(Heard::End, Heard::Message)),
        }
    }
}

/// Waits until there is room for a message. Says that there will be none where nobody takes them any more.
async fn takes_more(outgoing: &mpsc::Sender<KeepAliveRequest>) -> bool {
    outgoing.reserve().await.is_ok()
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
