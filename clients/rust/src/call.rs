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
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The same for a call that waits: a place in a queue is kept for three seconds for the same token to come back to.
const LONGEST_PAUSE_OF_A_WAITER: Duration = Duration::from_millis(500);
/// A try that lasted for longer was on a connection over which the service answered pings.
const IS_FOUND_DEAD_WITHIN: Duration = Duration::from_secs(6);
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
                    let wait_less = |_request: &mut proto::$request, _left: Duration| {
                        $(_request.$wait = (!_left.is_zero()).then(|| time::to_wire(_left));)?
                    };
                    self.call(waits, request, wait_less, |channel, request| async move {
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

    /// Calls until an answer comes, or the service has not been heard of for as long as a call may take. A call that waits
    /// waits that much longer, and a repeat of it for as long as is left.
    async fn call<M: prost::Message + Clone, A, S>(
        &self,
        waits: Duration,
        mut message: M,
        wait_less: impl Fn(&mut M, Duration),
        send: impl Fn(Channel, Request<M>) -> S,
    ) -> Result<A, Failure>
    where
        S: Future<Output = Result<Response<A>, Status>>,
    {
        let size = message.encoded_len();
        if size > MAX_MESSAGE {
            return Err(Failure::too_large(size));
        }
        let waits_until = time::later(Instant::now(), waits);
        let limit = time::later(waits_until, self.call_timeout);
        let mut tries = Tries::new(self.call_timeout, limit, !waits.is_zero());
        let mut earlier = None;
        loop {
            let tried = Instant::now();
            match self.call_once(limit, message.clone(), &send).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(failure) if failure.kind == FailureKind::Unavailable => {
                    let Some(pause) = tries.pause(tried, Instant::now(), failure.retry_after)
                    else {
                        return Err(failure);
                    };
                    tracing::debug!(%failure, ?pause, "trying again");
                    earlier = Some(failure);
                    tokio::time::sleep(pause).await;
                    if !waits.is_zero() {
                        let left = waits_until.saturating_duration_since(Instant::now());
                        wait_less(&mut message, left);
                    }
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
        self.shared.tell_who_asks(request.metadata_mut());
        match tokio::time::timeout_at(limit.into(), send(self.shared.channel(), request)).await {
            Ok(answer) => answer.map_err(|status| Failure::at(self.endpoint(), status)),
            Err(_) => Err(Failure::deadline_exceeded(self.endpoint())),
        }
    }
}

/// How long a call is tried.
struct Tries {
    /// How long the service may not be heard of.
    call_timeout: Duration,
    /// Until when, whatever is heard.
    limit: Instant,
    waits: bool,
    heard: Instant,
    pauses: Pauses,
}

impl Tries {
    fn new(call_timeout: Duration, limit: Instant, waits: bool) -> Self {
        Self {
            call_timeout,
            limit,
            waits,
            heard: Instant::now(),
            pauses: Pauses::default(),
        }
    }

    /// The pause after a try that failed, if there is to be another.
    fn pause(
        &mut self,
        tried: Instant,
        now: Instant,
        asked_for: Option<Duration>,
    ) -> Option<Duration> {
        if self.waits && now - tried > IS_FOUND_DEAD_WITHIN {
            self.heard = now;
            self.pauses = Pauses::default();
        }
        let give_up = time::later(self.heard, self.call_timeout).min(self.limit);
        let left = give_up.saturating_duration_since(now);
        let longest = if self.waits {
            LONGEST_PAUSE_OF_A_WAITER
        } else {
            LONGEST_PAUSE
        };
        self.pauses.next(asked_for, left, longest)
    }
}

/// The pauses between repeats: random, so that callers who failed together do not come back together.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    repeats: u32,
}

impl Pauses {
    /// No shorter than what the service asked for. None where no time is left for another try; before that, what is left
    /// is halved at most, as it is worth trying to its end.
    pub(crate) fn next(
        &mut self,
        asked_for: Option<Duration>,
        left: Duration,
        longest: Duration,
    ) -> Option<Duration> {
        let asked_for = asked_for.unwrap_or_default();
        let room = left.checked_sub(asked_for)?;
        if room < SHORTEST_TRY {
            return None;
        }
        let longest = FIRST_PAUSE
            .saturating_mul(1 << self.repeats.min(16))
            .min(longest)
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
            let pause = pauses.next(Some(asked_for), Duration::MAX, LONGEST_PAUSE);
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
        while let Some(pause) = pauses.next(None, left, LONGEST_PAUSE) {
            assert!(pause <= left / 2, "{pause:?} of {left:?}");
            left -= pause + Duration::from_micros(500);
        }
        assert!(left < SHORTEST_TRY, "{left:?} is left");
        let asked_for = Some(Duration::from_secs(5));
        let next = pauses.next(asked_for, Duration::from_secs(5), LONGEST_PAUSE);
        assert_eq!(next, None);
    }

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// How long is tried where each try fails after `lasting`.
    fn tried_for(waits: Duration, lasting: Duration) -> Duration {
        let started = Instant::now();
        let mut tries = Tries::new(TIMEOUT, started + waits + TIMEOUT, !waits.is_zero());
        let mut now = started;
        loop {
            let tried = now;
            now += lasting;
            match tries.pause(tried, now, None) {
                Some(pause) => now += pause,
                None => return now - started,
            }
        }
    }

    #[test]
    fn a_service_that_is_away_is_told_after_the_calls_time_however_long_it_would_wait() {
        for waits in [Duration::ZERO, Duration::from_secs(3600)] {
            for lasting in [1, 1000, 4600] {
                let lasting = Duration::from_millis(lasting);
                let tried_for = tried_for(waits, lasting);
                let least = TIMEOUT - lasting - SHORTEST_TRY;
                assert!(
                    (least..=TIMEOUT + lasting).contains(&tried_for),
                    "{tried_for:?} of tries that lasted {lasting:?}"
                );
            }
        }
    }

    #[test]
    fn a_call_that_waits_is_asked_again_for_as_long_as_it_is_heard_of() {
        let minute = Duration::from_secs(60);
        assert_eq!(tried_for(Duration::ZERO, minute), minute);
        assert!(tried_for(10 * minute, minute) > 10 * minute);
    }

    #[test]
    fn a_waiter_comes_back_while_its_place_is_kept() {
        let started = Instant::now();
        let far = time::later(started, Duration::MAX);
        let mut tries = Tries::new(Duration::MAX, far, true);
        for _ in 0..40 {
            let pause = tries.pause(started, started, Some(Duration::from_millis(100)));
            let pause = pause.expect("there is time");
            assert!(pause <= Duration::from_millis(600), "{pause:?}");
        }
    }
}
