//! What is asked to be done once, and its result.

use crate::proto::claim_request::Request as Fingerprint;
use crate::{proto, time};
use std::time::Duration;

/// What becomes of a claim whose holder fell silent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The next claim gets the work, told that it was taken over.
    #[default]
    TakeOver,
    /// The next claim is told that it is uncertain, until somebody resolves it.
    MarkUncertain,
}

/// A request that is to be done once.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Request {
    pub(crate) message: proto::ClaimRequest,
    pub(crate) wait: Duration,
    pub(crate) end_on_close: bool,
}

impl Request {
    /// By its idempotency key.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            message: proto::ClaimRequest {
                key: key.into(),
                ..Default::default()
            },
            wait: Duration::ZERO,
            end_on_close: false,
        }
    }

    /// Whose key it is: keys of different scopes never meet.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.message.scope = scope.into();
        self
    }

    /// What the key is used for, such as `POST /v1/charges`; the same key on another operation is a mismatch.
    pub fn operation(mut self, operation: impl Into<String>) -> Self {
        self.message.operation = operation.into();
        self
    }

    /// What was asked for; the same key with other bytes is a mismatch.
    pub fn body(mut self, body: Vec<u8>) -> Self {
        self.message.request = Some(Fingerprint::Body(body.into()));
        self
    }

    /// What was asked for in JSON, where key order and white space do not matter.
    pub fn json(mut self, body: Vec<u8>) -> Self {
        self.message.request = Some(Fingerprint::JsonBody(body.into()));
        self
    }

    /// A digest of what was asked for, 1 to 64 bytes.
    pub fn fingerprint(mut self, digest: Vec<u8>) -> Self {
        self.message.request = Some(Fingerprint::Fingerprint(digest.into()));
        self
    }

    /// The token of this execution; a random one unless it is given. Whoever asks with the same one has the same claim: it
    /// is for one execution alone. A claim that was granted to it unheard is not given back, and is there to be asked for
    /// again.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.message.claim_token = token.into();
        self
    }

    /// Who is asking, for people to read.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.message.holder = holder.into();
        self
    }

    /// How long the claim stands if this process falls silent; renewed at each third of it. 30 s unless set.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.message.lease = Some(time::to_wire(lease));
        self
    }

    /// How long the key is remembered; 24 h unless set.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.message.retention = Some(time::to_wire(retention));
        self
    }

    /// How long to wait for a claim in flight to end.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Whether the claim's lease ends with the connection to the service, where that breaks before the claim is settled: so
    /// it passes on as [`Request::on_lease_over`] says soon when this process is killed, and not when its lease ends. Off
    /// unless set, as a connection may also break under a process that goes on, whose work may then be done twice.
    pub fn end_on_close(mut self, end_on_close: bool) -> Self {
        self.end_on_close = end_on_close;
        self
    }

    /// What becomes of the claim if its lease ends before it is completed.
    pub fn on_lease_over(mut self, policy: Policy) -> Self {
        self.message.set_on_lease_over(match policy {
            Policy::TakeOver => proto::LeaseOverPolicy::TakeOver,
            Policy::MarkUncertain => proto::LeaseOverPolicy::MarkUncertain,
        });
        self
    }
}

/// A result worth replaying.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// An HTTP status, or 0.
    pub status: i32,
    /// In order; a name may come more than once.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Any bytes.
    pub body: Vec<u8>,
}

impl Response {
    /// Without headers.
    #[must_use]
    pub fn new(status: i32, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl From<Response> for proto::StoredResponse {
    fn from(response: Response) -> Self {
        let headers = response.headers.into_iter();
        Self {
            status: response.status,
            headers: headers
                .map(|(name, value)| proto::Header {
                    name,
                    value: value.into(),
                })
                .collect(),
            body: response.body.into(),
        }
    }
}

impl From<proto::StoredResponse> for Response {
    fn from(response: proto::StoredResponse) -> Self {
        let headers = response.headers.into_iter();
        Self {
            status: response.status,
            headers: headers
                .map(|header| (header.name, header.value.into()))
                .collect(),
            body: response.body.into(),
        }
    }
}
