//! One call: its deadline, and its repeats with the same token.

use crate::failure::{Failure, FailureKind};
use crate::proto;
use crate::proto::admin_service_client::AdminServiceClient;
use crate::proto::coordination_service_client::CoordinationServiceClient;
use crate::{Client, time};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// The pause before the first repeat at most, which doubles with each, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// With less time than this a call is not tried again.
const SHORTEST_TRY: Duration = Duration::from_millis(20);
/// A message may be as large as the largest response that a service can be set to keep.
const MAX_MESSAGE: usize = 80 * 1024 * 1024;

/// What a service says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether it can answer calls now.
    pub serving: bool,
    /// Its version, where it tells.
    pub version: Option<String>,
}

/// Makes a call of each method: the message as it is, but for the tenant, which is the client's where none is named.
macro_rules! calls {
    ($($(#[$doc:meta])* $method:ident($request:ident) -> $response:ident at $service:ident $(+ $wait:ident)?;)+) => {
        impl Client {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                ///
                /// Where it could not be answered in time, or is refused.
                pub async fn $method(&self, mut request: proto::$request) -> Result<proto::$response, Failure> {
                    if request.tenant.is_empty() {
                        request.tenant.clone_from(&self.shared.tenant);
                    }
                    let waits = Duration::ZERO $(+ time::from_wire(request.$wait))?;
                    let limit = time::later(Instant::now(), self.call_timeout.saturating_add(waits));
                    self.call(limit, request, |channel, request| async move {
                        let mut stub = $service::new(channel)
                            .max_decoding_message_size(MAX_MESSAGE)
                            .max_encoding_message_size(MAX_MESSAGE);
                        stub.$method(request).await
                    })
                    .await
                }
            )+
        }
    };
}

calls! {
    /// Claims a key.
    claim(ClaimRequest) -> ClaimResponse at CoordinationServiceClient + wait;
    /// Extends the lease on a claim.
    renew_claim(RenewClaimRequest) -> RenewClaimResponse at CoordinationServiceClient;
    /// Stores the result of the work.
    complete(CompleteRequest) -> CompleteResponse at CoordinationServiceClient;
    /// Gives a claim up.
    abandon(AbandonRequest) -> AbandonResponse at CoordinationServiceClient;
    /// Acquires a lock.
    acquire_lock(AcquireLockRequest) -> AcquireLockResponse at CoordinationServiceClient + wait;
    /// Extends the lease on a lock.
    renew_lock(RenewLockRequest) -> RenewLockResponse at CoordinationServiceClient;
    /// Releases a lock.
    release_lock(ReleaseLockRequest) -> ReleaseLockResponse at CoordinationServiceClient;
    /// Shows a claim to an operator.
    get_claim(GetClaimRequest) -> GetClaimResponse at AdminServiceClient;
    /// Shows a page of claims to an operator.
    list_claims(ListClaimsRequest) -> ListClaimsResponse at AdminServiceClient;
    /// Settles a claim whose holder no longer does.
    resolve_claim(ResolveClaimRequest) -> ResolveClaimResponse at AdminServiceClient;
    /// Shows a lock to an operator.
    get_lock(GetLockRequest) -> GetLockResponse at AdminServiceClient;
    /// Shows a page of locks to an operator.
    list_locks(ListLocksRequest) -> ListLocksResponse at AdminServiceClient;
    /// Takes a lock away from its holders.
    force_release_lock(ForceReleaseLockRequest) -> ForceReleaseLockResponse at AdminServiceClient;
}

impl Client {
    pub(crate) async fn check_health(&self, limit: Instant) -> Result<Health, Failure> {
        let request = HealthCheckRequest::default();
        let response = self.call_once(limit, request, |channel, request| async move {
            HealthClient::new(channel).check(request).await
        });
        let response = response.await?;
        let version = response.metadata().get("claimlock-version");
        Ok(Health {
            version: version.and_then(|version| Some(version.to_str().ok()?.to_owned())),
            serving: response.into_inner().status() == ServingStatus::Serving,
        })
    }

    /// Calls until an answer comes or the limit is reached.
    async fn call<M: prost::Message + Clone, A, S>(
        &self,
        limit: Instant,
        message: M,
        send: impl Fn(Channel, Request<M>) -> S,
    ) -> Result<A, Failure>
    where
        S: Future<Output = Result<Response<A>, Status>>,
    {
        let size = message.encoded_len();
        if size > MAX_MESSAGE {
            return Err(Failure::too_large(size));
        }
        let mut pauses = Pauses::default();
        let mut earlier = None;
        loop {
            match self.call_once(limit, message.clone(), &send).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(failure) if failure.kind == FailureKind::Unavailable => {
                    let left = limit.saturating_duration_since(Instant::now());
                    let Some(pause) = pauses.next(failure.retry_after, left) else {
                        return Err(failure);
                    };
                    tracing::debug!(%failure, ?pause, "trying again");
                    earlier = Some(failure);
                    tokio::time::sleep(pause).await;
                }
                // Why the tries before failed says more than that the time is up.
                Err(failure) if failure.kind == FailureKind::DeadlineExceeded => {
                    return Err(earlier.unwrap_or(failure));
                }
                Err(mut failure) => {
                    failure.is_of_a_repeat = earlier.is_some();
                    return Err(failure);
                }
            }
        }
    }

    async fn call_once<M, A, S>(
        &self,
        limit: Instant,
        message: M,
        send: impl Fn(Channel, Request<M>) -> S,
    ) -> Result<Response<A>, Failure>
    where
        S: Future<Output = Result<Response<A>, Status>>,
    {
        let mut request = Request::new(message);
        request.set_timeout(limit.saturating_duration_since(Instant::now()));
        let metadata = request.metadata_mut();
        if let Some(authorization) = &self.shared.authorization {
            metadata.insert("authorization", authorization.clone());
        }
        if let Some(traceparent) = &self.shared.traceparent {
            metadata.insert("traceparent", traceparent.clone());
        }
        match tokio::time::timeout_at(limit.into(), send(self.channel(), request)).await {
            Ok(answer) => answer.map_err(|status| Failure::at(self.endpoint(), status)),
            Err(_) => Err(Failure::deadline_exceeded(self.endpoint())),
        }
    }
}

/// The pauses between repeats: random, so that callers who failed together do not come back together.
#[derive(Debug, Default)]
struct Pauses {
    repeats: u32,
}

impl Pauses {
    /// No shorter than what the service asked for. None where no time is left for another try; before that, what is left
    /// is halved at most, as it is worth trying to its end.
    fn next(&mut self, asked_for: Option<Duration>, left: Duration) -> Option<Duration> {
        let asked_for = asked_for.unwrap_or_default();
        let room = left.checked_sub(asked_for)?;
        if room < SHORTEST_TRY {
            return None;
        }
        let longest = FIRST_PAUSE
            .saturating_mul(1 << self.repeats.min(16))
            .min(LONGEST_PAUSE)
            .min(room / 2);
        self.repeats += 1;
        Some(asked_for + longest.mul_f64(rand::random()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_are_never_shorter_than_asked_for() {
        let mut pauses = Pauses::default();
        let asked_for = Duration::from_millis(500);
        for repeat in 0..40 {
            let pause = pauses.next(Some(asked_for), Duration::MAX);
            let pause = pause.expect("there is time");
            let longest = (FIRST_PAUSE * 2_u32.pow(repeat.min(10))).min(LONGEST_PAUSE);
            assert!(
                (asked_for..=asked_for + longest).contains(&pause),
                "{repeat}: {pause:?}"
            );
        }
    }
    #[test]
    fn a_call_is_tried_again_for_as_long_as_it_has_time_and_no_longer() {
        let mut pauses = Pauses::default();
        let mut left = Duration::from_secs(10);
        while let Some(pause) = pauses.next(None, left) {
            assert!(pause <= left / 2, "{pause:?} of {left:?}");
            left -= pause + Duration::from_micros(500);
        }
        assert!(left < SHORTEST_TRY, "{left:?} is left");
        let asked_for = Some(Duration::from_secs(5));
        assert_eq!(pauses.next(asked_for, Duration::from_secs(5)), None);
    }
}
