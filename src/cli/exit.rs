//! The exit codes. Those of sysexits.h where one fits, so that a script can tell "held by somebody else" from "the
//! command failed".

use std::process::ExitCode;

use claimlock_client::{Failure, FailureKind};

/// The command line, a setting, or a value that the service refuses.
pub(super) const USAGE: u8 = 2;
/// The key was used for another request.
pub(super) const MISMATCH: u8 = 65;
/// What was asked for is not there: the key is not known, the lock is free.
pub(super) const NOT_KNOWN: u8 = 66;
/// The service, or its store, could not be asked in time.
pub(super) const UNAVAILABLE: u8 = 69;
/// A defect, or an answer that is not understood.
pub(super) const DEFECT: u8 = 70;
/// The work was done, and could not be recorded.
pub(super) const NOT_RECORDED: u8 = 74;
/// Somebody else holds it: later it may work.
pub(super) const HELD: u8 = 75;
/// The claim or lock was lost.
pub(super) const LOST: u8 = 76;
/// The credential is missing, wrong, or not for this; or a quota is used up.
pub(super) const NOT_ALLOWED: u8 = 77;
/// It may have been done or not: an operator decides.
pub(super) const UNCERTAIN: u8 = 79;
/// It has been done already.
pub(super) const DONE_BEFORE: u8 = 80;
/// It has been done, and its response is no longer kept.
pub(super) const RESPONSE_GONE: u8 = 81;
/// An operator's change was not made: what it was meant for has moved on.
pub(super) const LEFT: u8 = 82;
/// Something is set up or runs otherwise than it should.
pub(super) const FAULTY: u8 = 83;
/// The command could not be run, or was not found: as a shell says it.
pub(super) const CANNOT_RUN: u8 = 126;
pub(super) const NOT_FOUND: u8 = 127;

/// What a shell makes of a command that a signal ended.
pub(super) fn of_signal(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}

/// That of a call that failed.
pub(super) fn of_failure(failure: &Failure) -> u8 {
    match failure.kind {
        FailureKind::Invalid => USAGE,
        FailureKind::Unauthenticated | FailureKind::Forbidden | FailureKind::Quota => NOT_ALLOWED,
        FailureKind::Unavailable | FailureKind::DeadlineExceeded | FailureKind::NotGrpc => {
            UNAVAILABLE
        }
        FailureKind::ResponseLost => RESPONSE_GONE,
        FailureKind::Unimplemented | FailureKind::Defect => DEFECT,
    }
}

/// The part of a help text that lists exit codes: those of the subcommand, each on a line of its own after a line break,
/// then those of all that call a service.
macro_rules! codes {
    ($own:literal) => {
        concat!(
            "Exit codes:",
            $own,
            "  69  the service, or its store, could not be asked in time\n",
            "  77  the credential is missing, wrong or not for this, or a quota is used up\n",
            "   1  this program failed\n",
            "   2  a flag, a setting or a value is wrong\n",
            "  70  a defect",
        )
    };
}
pub(super) use codes;
