//! A world to claim keys in, and answers that a test compares whole.

use super::calls::{get_claim, resolve_claim};
use super::failures::{Told, told};
use super::requests::{claim, proto_duration, renew_claim, told_millis};
use super::service::{Admin, Coordination, Service};
use super::timed::TimedRedis;
use claimlock::config::Settings;
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::{
    AbandonRequest, AbandonResponse, ClaimInfo, ClaimRequest, ClaimResponse, Claimed,
    CompleteRequest, CompleteResponse, InFlight, LeaseOverPolicy, LossReason, Lost,
    RenewClaimRequest, RenewClaimResponse, Renewed, Replay, ResolveClaimRequest,
    ResolveClaimResponse, StoredResponse, Uncertain, abandon_response, claim_request,
    claim_response, complete_response, renew_claim_response,
};
use std::time::Duration;
use tonic::Status;

/// The lease of a claim that names none.
pub const LEASE: Duration = Duration::from_secs(30);
/// The retention of a claim that names none.
pub const RETENTION: Duration = Duration::from_secs(24 * 3600);
/// How long tokens are remembered.
pub const MEMORY: Duration = Duration::from_secs(600);
/// The server's largest retention.
pub const LARGEST_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);

/// What a slow machine may take between a call and a look at what came of it.
const SLACK: Duration = Duration::from_secs(10);

pub fn lasting(duration: Duration) -> Option<prost_types::Duration> {
    proto_duration(duration)
}

/// A claim of something else: the same key with another request.
pub fn claim_with_body(key: &str, name: &str, body: &'static [u8]) -> ClaimRequest {
    ClaimRequest {
        request: Some(claim_request::Request::Body(body.into())),
        ..claim(key, name)
    }
}

pub fn strict_claim(key: &str, name: &str) -> ClaimRequest {
    ClaimRequest {
        on_lease_over: LeaseOverPolicy::MarkUncertain.into(),
        ..claim(key, name)
    }
}

pub fn save(key: &str, name: &str, checkpoint: &'static [u8], sequence: i64) -> RenewClaimRequest {
    RenewClaimRequest {
        checkpoint: Some(checkpoint.into()),
        checkpoint_sequence: sequence,
        ..renew_claim(key, name)
    }
}

/// What any of the four calls on a claim came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Claimed(Claimed),
    InFlight(InFlight),
    Replay(Replay),
    Mismatch {
        operation: String,
    },
    Uncertain(Uncertain),
    Renewed(Renewed),
    /// With the retention left, in milliseconds.
    Completed(u64),
    Abandoned,
    Lost(LossReason),
}

/// What a test says of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant<'a> {
    pub attempt: i64,
    pub already_held: bool,
    pub taken_over: bool,
    pub checkpoint: &'a [u8],
    pub lease: Duration,
}

/// The first grant of a key.
pub const FIRST: Grant<'_> = Grant {
    attempt: 1,
    already_held: false,
    taken_over: false,
    checkpoint: b"",
    lease: LEASE,
};

impl Answer {
    #[track_caller]
    pub fn expect_grant(self, expected: Grant<'_>) -> Claimed {
        let Self::Claimed(claimed) = self else {
            panic!("not a grant: {self:?}");
        };
        let got = Grant {
            attempt: claimed.attempt,
            already_held: claimed.already_held,
            taken_over: claimed.taken_over,
            checkpoint: &claimed.checkpoint,
            lease: expected.lease,
        };
        assert_eq!(got, expected);
        is_about(told_millis(claimed.lease_left), expected.lease);
        assert!((1..1 << 53).contains(&claimed.fencing_token), "{claimed:?}");
        assert!((1..=256).contains(&claimed.receipt.len()), "{claimed:?}");
        claimed
    }

    #[track_caller]
    pub fn expect_in_flight(self, attempt: i64, holder: &str, lease: Duration) -> InFlight {
        let Self::InFlight(in_flight) = self else {
            panic!("not in flight: {self:?}");
        };
        assert_eq!(
            (in_flight.attempt, in_flight.holder.as_str()),
            (attempt, holder)
        );
        is_about(told_millis(in_flight.lease_left), lease);
        let retry_after = told_millis(in_flight.retry_after);
        assert!((1..=1000).contains(&retry_after), "{in_flight:?}");
        assert!(in_flight.claimed_at.is_some(), "{in_flight:?}");
        in_flight
    }

    #[track_caller]
    pub fn expect_replay(
        self,
        response: Option<&StoredResponse>,
        attempt: i64,
        retention: Duration,
    ) -> Replay {
        let Self::Replay(replay) = self else {
            panic!("not a replay: {self:?}");
        };
        assert_eq!(
            (replay.response.as_ref(), replay.attempt),
            (response, attempt)
        );
        is_about(told_millis(replay.retention_left), retention);
        assert!(replay.completed_at.is_some(), "{replay:?}");
        replay
    }

    #[track_caller]
    pub fn expect_uncertain(self, attempt: i64, holder: &str, checkpoint: &[u8]) -> Uncertain {
        let Self::Uncertain(uncertain) = self else {
            panic!("not uncertain: {self:?}");
        };
        assert_eq!(
            (
                uncertain.attempt,
                uncertain.holder.as_str(),
                &uncertain.checkpoint[..]
            ),
            (attempt, holder, checkpoint)
        );
        assert!(uncertain.since.is_some(), "{uncertain:?}");
        uncertain
    }

    #[track_caller]
    pub fn expect_renewed(self, fencing_token: i64, lease: Duration) {
        let Self::Renewed(renewed) = self else {
            panic!("not renewed: {self:?}");
        };
        assert_eq!(renewed.fencing_token, fencing_token);
        is_about(told_millis(renewed.lease_left), lease);
    }

    #[track_caller]
    pub fn expect_completed(self, retention: Duration) {
        let Self::Completed(left) = self else {
            panic!("not completed: {self:?}");
        };
        is_about(left, retention);
    }

    #[track_caller]
    pub fn expect_mismatch(self, operation: &str) {
        let operation = operation.to_owned();
        assert_eq!(self, Self::Mismatch { operation });
    }
}

/// Whether a time left, told in milliseconds, is what began a moment ago as `expected`: never more.
#[track_caller]
pub fn is_about(told_millis: u64, expected: Duration) {
    let told = Duration::from_millis(told_millis);
    let least = expected.saturating_sub(SLACK);
    assert!(
        (least..=expected).contains(&told),
        "{told:?} is not about {expected:?}"
    );
}

/// Microseconds since 1970 in a told time.
pub fn micros(timestamp: Option<prost_types::Timestamp>) -> i64 {
    let timestamp = timestamp.expect("the answer tells a time");
    timestamp.seconds * 1_000_000 + i64::from(timestamp.nanos) / 1000
}

/// Why a token lost; what people read is there too.
pub fn reason(lost: &Lost) -> LossReason {
    assert!(!lost.detail.is_empty(), "{lost:?}");
    lost.reason()
}

impl From<ClaimResponse> for Answer {
    fn from(response: ClaimResponse) -> Self {
        use claim_response::Outcome;
        match response.outcome.expect("an outcome") {
            Outcome::Claimed(claimed) => Self::Claimed(claimed),
            Outcome::InFlight(in_flight) => Self::InFlight(in_flight),
            Outcome::Replay(replay) => Self::Replay(replay),
            Outcome::Mismatch(mismatch) => Self::Mismatch {
                operation: mismatch.operation,
            },
            Outcome::Uncertain(uncertain) => Self::Uncertain(uncertain),
            Outcome::Lost(lost) => Self::Lost(reason(&lost)),
        }
    }
}

impl From<RenewClaimResponse> for Answer {
    fn from(response: RenewClaimResponse) -> Self {
        use renew_claim_response::Outcome;
        match response.outcome.expect("an outcome") {
            Outcome::Renewed(renewed) => Self::Renewed(renewed),
            Outcome::Lost(lost) => Self::Lost(reason(&lost)),
        }
    }
}

impl From<CompleteResponse> for Answer {
    fn from(response: CompleteResponse) -> Self {
        use complete_response::Outcome;
        match response.outcome.expect("an outcome") {
            Outcome::Completed(completed) => Self::Completed(told_millis(completed.retention_left)),
            Outcome::Lost(lost) => Self::Lost(reason(&lost)),
        }
    }
}

impl From<AbandonResponse> for Answer {
    fn from(response: AbandonResponse) -> Self {
        use abandon_response::Outcome;
        match response.outcome.expect("an outcome") {
            Outcome::Abandoned(_) => Self::Abandoned,
            Outcome::Lost(lost) => Self::Lost(reason(&lost)),
        }
    }
}

/// One of the four calls on a claim.
pub trait ClaimCall {
    async fn send(self, client: Coordination) -> Result<Answer, Status>;
}

macro_rules! calls {
    ($($request:ty: $method:ident),*) => {
        $(impl ClaimCall for $request {
            async fn send(self, mut client: Coordination) -> Result<Answer, Status> {
                Ok(client.$method(self).await?.into_inner().into())
            }
        })*
    };
}

calls!(ClaimRequest: claim, RenewClaimRequest: renew_claim, CompleteRequest: complete, AbandonRequest: abandon);

/// A server on a clock of the test's, and a service on it.
#[derive(Debug)]
pub struct World {
    pub redis: TimedRedis,
    coordination: Coordination,
    admin: Admin,
    _service: Service,
}

impl World {
    pub async fn start() -> Self {
        Self::with(Settings::default()).await
    }

    pub async fn with(settings: Settings) -> Self {
        let redis = TimedRedis::start().await;
        let service = Service::with(&redis.server, settings).await;
        Self {
            coordination: service.coordination().await,
            admin: service.admin().await,
            redis,
            _service: service,
        }
    }

    /// What a call came to.
    pub async fn ask(&self, call: impl ClaimCall) -> Answer {
        call.send(self.coordination.clone())
            .await
            .expect("the call is answered")
    }

    /// How a call failed.
    pub async fn failure(&self, call: impl ClaimCall) -> Told {
        let answer = call.send(self.coordination.clone()).await;
        told(&answer.expect_err("the call fails"))
    }

    /// Lets time pass on Redis's clock.
    pub fn pass(&mut self, time: Duration) {
        self.redis.pass(time);
    }

    /// What an operator sees of a key.
    pub async fn look(&self, key: &str) -> Option<ClaimInfo> {
        let answer = self.admin.clone().get_claim(get_claim(key)).await;
        answer.expect("the call is answered").into_inner().claim
    }

    /// Settles a claim, as an operator does who looked at the grant of this fencing token.
    pub async fn resolve(
        &self,
        key: &str,
        fencing_token: i64,
        resolution: Resolution,
    ) -> ResolveClaimResponse {
        let request = ResolveClaimRequest {
            resolution: Some(resolution),
            ..resolve_claim(key, fencing_token)
        };
        let answer = self.admin.clone().resolve_claim(request).await;
        answer.expect("the call is answered").into_inner()
    }

    /// Ends the test: nothing it did may stay in Redis for ever.
    pub async fn end(self) {
        let forever = self.redis.server.keys_without_expiry().await;
        assert!(forever.is_empty(), "without an expiry: {forever:?}");
    }
}
