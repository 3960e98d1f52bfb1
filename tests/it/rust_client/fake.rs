//! A service that answers what ours does not: the next version's, an older one's, or one that is broken.

use claimlock::rpc::proto::coordination_service_server::{
    CoordinationService, CoordinationServiceServer,
};
use claimlock::rpc::proto::keep_alive_response::Outcome as KeptAlive;
use claimlock::rpc::proto::{
    self, Renewed, acquire_lock_response, claim_response, renew_lock_response,
};
use claimlock_client::Client;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Request, Response, Status, Streaming};

type Answer<T> = Result<Response<T>, Status>;

/// What it answers, and does not.
#[derive(Clone, Copy)]
pub struct Ways {
    /// To a claim, by its number.
    pub to_claims: fn(usize) -> Result<Option<claim_response::Outcome>, Status>,
    /// Whether it grants and renews every lock.
    pub has_locks: bool,
    pub streams: Streams,
}

/// What it does with streams that keep leases alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    Unknown,
    /// It takes them, and says nothing.
    Silent,
    /// It takes them, and ends them.
    Ended,
    /// It takes them once something was sent, and answers.
    TakenLate,
    /// It refuses whatever is asked on them.
    Refusing,
    /// It says after each answer that it is about to end.
    Draining,
}

impl Default for Ways {
    fn default() -> Self {
        Self {
            to_claims: |_| Err(Status::unimplemented("it has none")),
            has_locks: false,
            streams: Streams::Unknown,
        }
    }
}

/// How often it was asked.
#[derive(Debug, Default)]
pub struct Counts {
    claims: AtomicUsize,
    abandoned: AtomicUsize,
    lock_renewals: AtomicUsize,
    streams: AtomicUsize,
}

impl Counts {
    pub fn abandoned(&self) -> usize {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// By calls of their own.
    pub fn lock_renewals(&self) -> usize {
        self.lock_renewals.load(Ordering::Relaxed)
    }

    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }
}

struct Fake {
    ways: Ways,
    counts: Arc<Counts>,
}

/// Starts one, which ends with the test's runtime.
pub async fn start(ways: Ways) -> (Client, Arc<Counts>) {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = listener.await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let counts = Arc::new(Counts::default());
    let fake = Fake {
        ways,
        counts: counts.clone(),
    };
    let server = tonic::transport::Server::builder()
        .add_service(CoordinationServiceServer::new(fake))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    (super::client(address), counts)
}

fn none<T>() -> Answer<T> {
    Err(Status::unimplemented("it has none"))
}

impl Fake {
    fn lock(&self) -> Result<(), Status> {
        match self.ways.has_locks {
            true => Ok(()),
            false => Err(Status::unimplemented("it has no locks")),
        }
    }

    fn told(streams: Streams, message: proto::KeepAliveRequest) -> Vec<proto::KeepAliveResponse> {
        let outcome = match streams {
            Streams::Refusing => KeptAlive::Error(proto::CallError {
                code: Code::PermissionDenied.into(),
                message: "not for you".to_owned(),
                reason: "TENANT_FORBIDDEN".to_owned(),
                retry_after: None,
            }),
            _ => KeptAlive::Renewed(Renewed {
                lease_left: message.lease,
                fencing_token: 1,
            }),
        };
        let mut told = vec![proto::KeepAliveResponse {
            request_id: message.request_id,
            lease_ref: message.lease_ref,
            outcome: Some(outcome),
        }];
        if streams == Streams::Draining {
            told.push(proto::KeepAliveResponse {
                outcome: Some(KeptAlive::Draining(proto::Draining {})),
                ..Default::default()
            });
        }
        told
    }
}

#[tonic::async_trait]
impl CoordinationService for Fake {
    async fn claim(&self, _: Request<proto::ClaimRequest>) -> Answer<proto::ClaimResponse> {
        let number = self.counts.claims.fetch_add(1, Ordering::Relaxed);
        let outcome = (self.ways.to_claims)(number)?;
        Ok(Response::new(proto::ClaimResponse { outcome }))
    }

    async fn renew_claim(
        &self,
        _: Request<proto::RenewClaimRequest>,
    ) -> Answer<proto::RenewClaimResponse> {
        none()
    }

    async fn complete(
        &self,
        _: Request<proto::CompleteRequest>,
    ) -> Answer<proto::CompleteResponse> {
        none()
    }

    async fn abandon(&self, _: Request<proto::AbandonRequest>) -> Answer<proto::AbandonResponse> {
        self.counts.abandoned.fetch_add(1, Ordering::Relaxed);
        none()
    }

    async fn acquire_lock(
        &self,
        request: Request<proto::AcquireLockRequest>,
    ) -> Answer<proto::AcquireLockResponse> {
        self.lock()?;
        let request = request.into_inner();
        let acquired = proto::LockAcquired {
            lock_token: request.lock_token,
            fencing_token: 1,
            lease_left: request.lease,
            ..Default::default()
        };
        Ok(Response::new(proto::AcquireLockResponse {
            outcome: Some(acquire_lock_response::Outcome::Acquired(acquired)),
        }))
    }

    async fn renew_lock(
        &self,
        request: Request<proto::RenewLockRequest>,
    ) -> Answer<proto::RenewLockResponse> {
        self.lock()?;
        self.counts.lock_renewals.fetch_add(1, Ordering::Relaxed);
        let renewed = Renewed {
            lease_left: request.into_inner().lease,
            fencing_token: 1,
        };
        Ok(Response::new(proto::RenewLockResponse {
            outcome: Some(renew_lock_response::Outcome::Renewed(renewed)),
        }))
    }

    async fn release_lock(
        &self,
        _: Request<proto::ReleaseLockRequest>,
    ) -> Answer<proto::ReleaseLockResponse> {
        none()
    }

    type KeepAliveStream =
        Pin<Box<dyn Stream<Item = Result<proto::KeepAliveResponse, Status>> + Send>>;

    async fn keep_alive(
        &self,
        request: Request<Streaming<proto::KeepAliveRequest>>,
    ) -> Answer<Self::KeepAliveStream> {
        self.counts.streams.fetch_add(1, Ordering::Relaxed);
        let mut messages = request.into_inner();
        let streams = self.ways.streams;
        Ok(Response::new(match streams {
            Streams::Unknown => return none(),
            Streams::Silent => Box::pin(tokio_stream::pending()),
            Streams::Ended => Box::pin(tokio_stream::empty()),
            Streams::TakenLate | Streams::Refusing | Streams::Draining => {
                let first = match streams {
                    Streams::TakenLate => messages.message().await?,
                    _ => None,
                };
                let messages = tokio_stream::iter(first.map(Ok)).chain(messages);
                let told = messages.map(move |message| match message {
                    Ok(message) => {
                        let told = Self::told(streams, message);
                        told.into_iter().map(Ok).collect()
                    }
                    Err(status) => vec![Err(status)],
                });
                Box::pin(futures_util::StreamExt::flat_map(told, tokio_stream::iter))
            }
        }))
    }

    type PipelineStream = tokio_stream::Empty<Result<proto::PipelineResponse, Status>>;

    async fn pipeline(
        &self,
        _: Request<Streaming<proto::PipelineRequest>>,
    ) -> Answer<Self::PipelineStream> {
        none()
    }
}
