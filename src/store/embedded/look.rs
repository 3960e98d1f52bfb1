//! Looks at a data folder and the server for it, and changes nothing: neither is made, locked or started.

use super::EmbeddedError;
use super::folder::{Socket, failed_at};
use super::server::find_program;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::process::Command;

use nix::unistd::{AccessFlags, access};

/// What was found of an embedded server.
#[derive(Debug)]
pub enum Found {
    /// One runs, at this URL. Its socket may be reached only for as long as the value lives.
    Running(Running),
    /// None runs: what one would be started from.
    NotRunning {
        /// The program, where one was found.
        program: Option<Program>,
        /// Whether its folder can be used.
        folder: FolderSeen,
    },
}

/// A server that takes connections.
#[derive(Debug)]
pub struct Running {
    socket: Socket,
}

impl Running {
    /// Its address, as the driver takes it.
    pub fn url(&self) -> String {
        self.socket.url()
    }
}

/// A server's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// `redis` or `valkey`, and its version; or what came of asking it.
    pub version: Result<(String, String), String>,
}

/// A data folder that no server runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderSeen {
    /// It can be used, and only its owner and group can read it.
    Usable,
    /// It can be used, and other users of the machine can read it.
    OpenToOthers,
    /// It is not there, and can be made.
    CanBeMade,
    /// It is not there, and cannot be made.
    CannotBeMade,
    /// This user may not write in it.
    NotWritable,
    /// There is something else in its place.
    NoFolder,
}

/// Looks for a server that runs in a folder, and for what one would be started from, on a search path written like
/// `PATH`. No question to either takes longer than this.
///
/// # Errors
///
/// Where the folder's socket cannot be reached on this system.
pub async fn look(
    data_dir: &Path,
    search_path: &OsStr,
    timeout: Duration,
) -> Result<Found, EmbeddedError> {
    if data_dir.is_dir() {
        let folder = fs::canonicalize(data_dir).map_err(failed_at(data_dir))?;
        let socket = Socket::in_folder(&folder)?;
        let connecting = UnixStream::connect(socket.to_connect());
        // One that takes no connection in time is there all the same.
        let is_there = match tokio::time::timeout(timeout, connecting).await {
            Ok(Ok(_)) | Err(_) => true,
            Ok(Err(error)) => !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ),
        };
        if is_there {
            return Ok(Found::Running(Running { socket }));
        }
    }
    let program = match find_program(search_path) {
        Some(path) => Some(Program {
            version: version(&path, timeout).await,
            path,
        }),
        None => None,
    };
    let folder = look_at_folder(data_dir);
    Ok(Found::NotRunning { program, folder })
}

fn look_at_folder(path: &Path) -> FolderSeen {
    let may_write = |path: &Path| access(path, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => FolderSeen::NoFolder,
        Ok(_) if !may_write(path) => FolderSeen::NotWritable,
        Ok(found) if found.permissions().mode() & 0o007 != 0 => FolderSeen::OpenToOthers,
        Ok(_) => FolderSeen::Usable,
        Err(_) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let nearest = path.ancestors().find(|folder| folder.exists());
            if nearest.is_some_and(|folder| folder.is_dir() && may_write(folder)) {
                FolderSeen::CanBeMade
            } else {
                FolderSeen::CannotBeMade
            }
        }
    }
}

/// What a server's program says of itself: `Redis server v=7.0.15 sha=…`.
async fn version(program: &Path, timeout: Duration) -> Result<(String, String), String> {
    let mut command = Command::new(program);
    command.arg("--version").kill_on_drop(true);
    let said = match tokio::time::timeout(timeout, command.output()).await {
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("it does not say its version in time".to_owned()),
    };
    parse_version(&said).ok_or_else(|| {
        let first = said.lines().next().unwrap_or_default();
        format!("it does not say its version, but {first:?}")
    })
}

fn parse_version(said: &str) -> Option<(String, String)> {
    let product = said.split_whitespace().next()?.to_lowercase();
    let version = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))?;
    Some((product, version.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_servers_say_their_version() {
        let said = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7";
        let redis = ("redis".to_owned(), "7.0.15".to_owned());
        assert_eq!(parse_version(said), Some(redis));
        let said = "Valkey server v=8.1.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1";
        let valkey = ("valkey".to_owned(), "8.1.1".to_owned());
        assert_eq!(parse_version(said), Some(valkey));
        assert_eq!(parse_version("command not found"), None);
    }
}
