//! What is told of a service that was asked for its health.

use std::error::Error;
use std::io;
use std::time::Instant;

use claimlock_client::{Client, Failure, FailureKind, Health};

use super::Check;

const CHECK: &str = "service";
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) async fn look(client: &Client, endpoint: &str) -> Vec<Check> {
    let sent = Instant::now();
    match client.health().await {
        Ok(health) => {
            let took = sent.elapsed().as_secs_f64() * 1000.0;
            vec![
                Check::ok(
                    CHECK,
                    format!("{endpoint} answers in {took:.1} ms, the connection included"),
                ),
                of_health(&health),
                of_version(health.version.as_deref()),
            ]
        }
        Err(failure) => vec![unreachable(&failure, endpoint)],
    }
}

fn of_health(health: &Health) -> Check {
    const CHECK: &str = "health";
    if health.serving {
        return Check::ok(CHECK, "serving");
    }
    Check::fail(
        CHECK,
        "not serving: it cannot ask its store, or is shutting down",
        "mend what is wrong with the store; the service's log says \"redis does not answer\" and why",
    )
}

fn of_version(version: Option<&str>) -> Check {
    const CHECK: &str = "service version";
    match version {
        Some(VERSION) => Check::ok(CHECK, format!("{VERSION}, as this program")),
        Some(other) => Check::warn(
            CHECK,
            format!("{} of the service, {VERSION} of this program", other),
            "use the same version of both, or look at the changelog for what differs",
        ),
        None => Check::warn(
            CHECK,
            "the service does not tell",
            "make sure that it is Claimlock of this version, and that no proxy takes the metadata claimlock-version away",
        ),
    }
}

fn unreachable(failure: &Failure, endpoint: &str) -> Check {
    let words = &failure.message;
    let (finding, advice) = match Cause::of(failure) {
        Cause::Refused => (
            format!("nobody listens: {endpoint} refuses the connection"),
            "start it (claimlock serve), or name the right one with --endpoint; it listens on 127.0.0.1 alone unless \
             --grpc-addr says otherwise",
        ),
        Cause::UnknownHost => (
            format!("the host's name has no address: {endpoint}"),
            "mend the name in --endpoint, or the DNS (getent hosts NAME)",
        ),
        Cause::NoAnswer => (
            format!("no answer in time: {endpoint}"),
            "look for a firewall between here and there, and whether the service hangs; where it is just far away, set a \
             longer --call-timeout",
        ),
        Cause::Tls => (
            format!("TLS fails: {words}: {endpoint}"),
            "name the authority that vouches for it with --ca-file, and use the name that its certificate is for; where it \
             speaks no TLS write http://",
        ),
        Cause::NotGrpc => (
            format!("what answers does not speak gRPC ({words}): {endpoint}"),
            "name the port for gRPC (7420, not 7421); where it speaks TLS write https://; a proxy between must pass HTTP/2 on",
        ),
        Cause::Closed => (
            format!("closes the connection before it answers: {endpoint}"),
            "where it speaks TLS write https://; name the port for gRPC (7420, not 7421); a service that shuts down says so \
             in its log",
        ),
        Cause::NotClaimlock => (
            format!("what answers knows no health checks: {endpoint}"),
            "mend host and port in --endpoint: this is some other gRPC service",
        ),
        Cause::NotAllowed => (
            format!("does not let this credential ask ({words}): {endpoint}"),
            "mend --credential-file, or CLAIMLOCK_CREDENTIAL",
        ),
        Cause::Otherwise => (
            format!("cannot be asked ({words}): {endpoint}"),
            "look at the service's log",
        ),
    };
    Check::fail(CHECK, finding, advice)
}

/// Why a service cannot be asked.
enum Cause {
    Refused,
    UnknownHost,
    NoAnswer,
    Tls,
    NotGrpc,
    /// What does not speak HTTP/2 may hang up before or while it is greeted, and so may what shuts down.
    Closed,
    NotClaimlock,
    NotAllowed,
    Otherwise,
}

impl Cause {
    fn of(failure: &Failure) -> Self {
        let words = &failure.message;
        match failure.kind {
            // As gRPC says it of a 404.
            FailureKind::NotGrpc => return Self::NotGrpc,
            FailureKind::Unimplemented => return Self::NotClaimlock,
            FailureKind::DeadlineExceeded => return Self::NoAnswer,
            FailureKind::Unauthenticated | FailureKind::Forbidden | FailureKind::Quota => {
                return Self::NotAllowed;
            }
            _ => {}
        }
        let mut cause = failure.source();
        while let Some(error) = cause {
            if let Some(cause) = Self::of_io(error) {
                return cause;
            }
            cause = error.source();
        }
        // None has a type that can be seen from here.
        if words.contains("lookup address") {
            Self::UnknownHost
        } else if words.contains("http2")
            || words.contains("h2 protocol")
            || words.contains("HTTP status")
        {
            Self::NotGrpc
        } else if words.contains("connection closed") {
            Self::Closed
        } else {
            Self::Otherwise
        }
    }

    fn of_io(error: &(dyn Error + 'static)) -> Option<Self> {
        if error.is::<rustls::Error>() {
            return Some(Self::Tls);
        }
        let error = error.downcast_ref::<io::Error>()?;
        if error
            .get_ref()
            .is_some_and(|inner| inner.is::<rustls::Error>())
        {
            return Some(Self::Tls);
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Some(Self::Refused),
            io::ErrorKind::TimedOut => Some(Self::NoAnswer),
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected
            | io::ErrorKind::UnexpectedEof => Some(Self::Closed),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_service_of_another_version_is_warned_of() {
        assert_eq!(of_version(Some(VERSION)).level, Level::Ok);
        let other = of_version(Some("0.0.9"));
        assert_eq!(other.level, Level::Warn);
        assert!(other.finding.contains("0.0.9"), "{other:?}");
        assert!(other.advice.is_some(), "{other:?}");
    }
}
