//! Answers as tests expect them: the fields of the outcome that was to come, or a failure that shows what came.

use claimlock::rpc::proto::{
    AbandonResponse, Abandoned, AcquireLockResponse, ClaimResponse, Claimed, CompleteResponse,
    Completed, InFlight, LockAcquired, LockHeld, Mismatch, ReleaseLockResponse, Released,
    RenewClaimResponse, RenewLockResponse, Renewed, Replay, abandon_response,
    acquire_lock_response, claim_response, complete_response, release_lock_response,
    renew_claim_response, renew_lock_response,
};
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

/// What a call comes to.
pub type Answer<T> = Result<Response<T>, Status>;

macro_rules! expected {
    ($($name:ident: $response:ty, $outcome:path => $fields:ty;)*) => {$(
        #[track_caller]
        pub fn $name(answer: Answer<$response>) -> $fields {
            match answer.map(|answer| answer.into_inner().outcome) {
                Ok(Some($outcome(fields))) => fields,
                other => panic!("not {} but {other:?}", stringify!($name)),
            }
        }
    )*};
}

expected! {
    claimed: ClaimResponse, claim_response::Outcome::Claimed => Claimed;
    in_flight: ClaimResponse, claim_response::Outcome::InFlight => InFlight;
    replay: ClaimResponse, claim_response::Outcome::Replay => Replay;
    mismatch: ClaimResponse, claim_response::Outcome::Mismatch => Mismatch;
    claim_renewed: RenewClaimResponse, renew_claim_response::Outcome::Renewed => Renewed;
    completed: CompleteResponse, complete_response::Outcome::Completed => Completed;
    abandoned: AbandonResponse, abandon_response::Outcome::Abandoned => Abandoned;
    acquired: AcquireLockResponse, acquire_lock_response::Outcome::Acquired => LockAcquired;
    held: AcquireLockResponse, acquire_lock_response::Outcome::Held => LockHeld;
    lock_renewed: RenewLockResponse, renew_lock_response::Outcome::Renewed => Renewed;
    released: ReleaseLockResponse, release_lock_response::Outcome::Released => Released;
}

/// Fails unless this is what callers get while the store cannot be asked.
#[track_caller]
pub fn assert_store_unavailable(status: &Status) {
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let details = status.get_error_details();
    let info = details.error_info().expect("an ErrorInfo");
    assert_eq!(
        (info.reason.as_str(), info.domain.as_str()),
        ("STORE_UNAVAILABLE", "claimlock")
    );
    let retry = details.retry_info().expect("a RetryInfo");
    assert!(retry.retry_delay.is_some_and(|delay| !delay.is_zero()));
}
