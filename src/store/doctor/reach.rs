//! Why a Redis cannot be asked.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use std::error::Error;
use std::io;
use std::sync::Arc;

/// Why a Redis cannot be asked anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// Nobody listens there.
    Refused,
    /// The socket's file is not there.
    NoSocket,
    /// This user of the machine may not use the socket.
    SocketForbidden,
    /// The host's name has no address.
    UnknownHost,
    /// Nothing comes back.
    NoAnswer,
    /// The connection was closed before anything was answered.
    Closed,
    /// TLS failed, in its words.
    Tls(String),
    /// A password is wanted and none was given.
    PasswordWanted,
    /// The user's name or password is wrong.
    PasswordWrong,
    /// It is still loading its data.
    Loading,
    /// What answers is no Redis.
    NotRedis,
    /// Something else, in the driver's words.
    Otherwise(String),
}

impl Unreachable {
    pub(super) fn of(error: &RedisError) -> Self {
        match error.kind() {
            ErrorKind::AuthenticationFailed => return Self::PasswordWrong,
            ErrorKind::Server(ServerErrorKind::BusyLoading) => return Self::Loading,
            // The driver's words for it are for itself, on several lines.
            ErrorKind::Parse => return Self::NotRedis,
            _ => {}
        }
        match error.code() {
            Some("NOAUTH") => return Self::PasswordWanted,
            Some("WRONGPASS") => return Self::PasswordWrong,
            _ => {}
        }
        let text = error.to_string();
        let Some(error) = io_error(error) else {
            return Self::Otherwise(text);
        };
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::NotFound => Self::NoSocket,
            io::ErrorKind::PermissionDenied => Self::SocketForbidden,
            io::ErrorKind::TimedOut => Self::NoAnswer,
            _ if is_of_tls(error) => Self::Tls(text),
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Self::Closed,
            // The standard library has no kind for it.
            _ if text.contains("lookup address") => Self::UnknownHost,
            _ => Self::Otherwise(text),
        }
    }
}

fn io_error(error: &RedisError) -> Option<&io::Error> {
    let source = error.source()?;
    let shared = source.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    shared.downcast_ref()
}

fn is_of_tls(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.is::<rustls::Error>())
}
