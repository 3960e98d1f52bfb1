//! A KeepAlive stream as a client has it.

use super::BOUND;
use super::channel::Channel;
use super::failures::told;
use super::requests::token;
use super::scripts::Scripts;
use super::service::Coordination;
use claimlock::rpc::proto::keep_alive_response::Outcome;
use claimlock::rpc::proto::lease_ref::Kind;
use claimlock::rpc::proto::{
    CallError, ClaimRef, KeepAliveRequest, KeepAliveResponse, LeaseRef, LockRef, LossReason,
    Renewed,
};
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// What a client may have under way.
const SENT_AT_ONCE: usize = 16;

/// An open stream; its client goes away with the value.
#[derive(Debug)]
pub struct Stream {
    requests: mpsc::Sender<KeepAliveRequest>,
    answers: Streaming<KeepAliveResponse>,
    last_id: i64,
}

impl Stream {
    pub async fn open(client: &Coordination) -> Self {
        let (requests, sent) = mpsc::channel(SENT_AT_ONCE);
        let answers = client
            .clone()
            .keep_alive(ReceiverStream::new(sent))
            .await
            .expect("a stream")
            .into_inner();
        Self {
            requests,
            answers,
            last_id: 0,
        }
    }

    /// Sends a request under the next number, which is returned.
    pub async fn send(&mut self, request: KeepAliveRequest) -> i64 {
        self.last_id += 1;
        let request_id = self.last_id;
        self.send_as_it_is(KeepAliveRequest {
            request_id,
            ..request
        })
        .await;
        request_id
    }

    pub async fn send_as_it_is(&self, request: KeepAliveRequest) {
        let sent = self.requests.send(request).await;
        sent.expect("the service reads");
    }

    /// What is told next; nothing where the stream ended well.
    pub async fn hear(&mut self) -> Result<Option<KeepAliveResponse>, Status> {
        tokio::time::timeout(BOUND, self.answers.message())
            .await
            .expect("the service says something")
    }

    pub async fn next(&mut self) -> KeepAliveResponse {
        let heard = self.hear().await.expect("the stream goes on");
        heard.expect("the stream goes on")
    }

    /// What a request is answered, which has to be what is told next.
    pub async fn ask(&mut self, request: KeepAliveRequest) -> Outcome {
        let lease_ref = request.lease_ref.clone();
        let request_id = self.send(request).await;
        let answer = self.next().await;
        assert_eq!(
            (answer.request_id, &answer.lease_ref),
            (request_id, &lease_ref),
            "{answer:?}"
        );
        answer.outcome.expect("an outcome")
    }

    /// The loss that is told next, unasked.
    pub async fn next_lost(&mut self) -> (LeaseRef, LossReason) {
        let told = self.next().await;
        assert_eq!(told.request_id, 0, "{told:?}");
        let reason = told.outcome.expect("an outcome").lost();
        (told.lease_ref.expect("a lease"), reason)
    }

    /// Sends no more. What is told up to the end, and how that came.
    pub async fn finish(self) -> (Vec<KeepAliveResponse>, Result<(), Status>) {
        let Self {
            requests,
            mut answers,
            ..
        } = self;
        drop(requests);
        hear_out(&mut answers).await
    }

    /// Sends no more either, but does not say so: it is the service that ends the stream, and says `draining` before. What it
    /// answered up to then.
    pub async fn drained(mut self) -> Vec<KeepAliveResponse> {
        let (mut heard, end) = hear_out(&mut self.answers).await;
        let last = heard.pop().expect("something is told");
        assert_eq!((last.request_id, &last.lease_ref), (0, &None));
        last.outcome.expect("an outcome").draining();
        let told = told(&end.expect_err("it does not end well"));
        assert_eq!(
            (told.code, told.reason.as_str()),
            (Code::Unavailable, "DRAINING")
        );
        assert!(told.retry_after.is_some(), "{told:?}");
        heard
    }
}

async fn hear_out(
    answers: &mut Streaming<KeepAliveResponse>,
) -> (Vec<KeepAliveResponse>, Result<(), Status>) {
    let mut heard = Vec::new();
    let rest = async {
        while let Some(answer) = answers.message().await? {
            heard.push(answer);
        }
        Ok(())
    };
    let end = tokio::time::timeout(BOUND, rest).await;
    (heard, end.expect("the stream ends"))
}

/// Sends that many renewals of a lease, and reads no answer for as long as the value is kept.
pub async fn never_reads(
    client: &Coordination,
    lease: &LeaseRef,
    renewals: i64,
) -> Streaming<KeepAliveResponse> {
    let messages = tokio_stream::iter(1..=renewals).map({
        let lease = lease.clone();
        move |request_id| KeepAliveRequest {
            request_id,
            ..keep_until_close(&lease)
        }
    });
    let unread = client.clone().keep_alive(messages).await;
    unread.expect("a stream").into_inner()
}

/// What an outcome has to be.
pub trait Expect {
    fn renewed(self) -> Renewed;
    fn lost(self) -> LossReason;
    fn error(self) -> CallError;
    fn draining(self);
}

impl Expect for Outcome {
    #[track_caller]
    fn renewed(self) -> Renewed {
        match self {
            Self::Renewed(renewed) => renewed,
            other => panic!("not renewed: {other:?}"),
        }
    }

    #[track_caller]
    fn lost(self) -> LossReason {
        match self {
            Self::Lost(lost) => {
                assert!(!lost.detail.is_empty(), "{lost:?}");
                lost.reason()
            }
            other => panic!("not lost: {other:?}"),
        }
    }

    #[track_caller]
    fn error(self) -> CallError {
        match self {
            Self::Error(error) => error,
            other => panic!("no error: {other:?}"),
        }
    }

    #[track_caller]
    fn draining(self) {
        assert!(matches!(self, Self::Draining(_)), "{self:?}");
    }
}

pub fn lock_ref(resource: &str, name: &str) -> LeaseRef {
    LeaseRef {
        tenant: "default".to_owned(),
        kind: Some(Kind::Lock(LockRef {
            resource: resource.to_owned(),
            lock_token: token(name),
        })),
    }
}

pub fn claim_ref(key: &str, name: &str) -> LeaseRef {
    LeaseRef {
        tenant: "default".to_owned(),
        kind: Some(Kind::Claim(ClaimRef {
            scope: String::new(),
            key: key.to_owned(),
            claim_token: token(name),
        })),
    }
}

/// Renews a lease for as long as it was made with.
pub fn keep(lease: &LeaseRef) -> KeepAliveRequest {
    KeepAliveRequest {
        lease_ref: Some(lease.clone()),
        ..KeepAliveRequest::default()
    }
}

/// The same of one that is to end with the stream.
pub fn keep_until_close(lease: &LeaseRef) -> KeepAliveRequest {
    KeepAliveRequest {
        end_on_close: true,
        ..keep(lease)
    }
}

pub fn detach(lease: &LeaseRef) -> KeepAliveRequest {
    KeepAliveRequest {
        detach: true,
        ..keep(lease)
    }
}

/// What scripts tell one service.
pub struct Heard {
    service: &'static str,
    channel: Channel,
    connection: MultiplexedConnection,
}

impl Heard {
    pub async fn by(service: &'static str, scripts: &Scripts) -> Self {
        Self {
            service,
            channel: Channel::listen(&scripts.redis.server).await,
            connection: scripts.redis.connection(),
        }
    }

    /// Since the last look.
    pub async fn so_far(&mut self) -> Vec<String> {
        let told = self.channel.told(self.connection.clone()).await;
        let told = told.into_iter().filter(|told| told.service == self.service);
        told.map(|told| String::from_utf8(told.message).expect("words"))
            .collect()
    }
}
