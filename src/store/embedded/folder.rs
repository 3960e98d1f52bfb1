//! The data folder: who may use it, and how the socket in it is reached.
//!
//! Two locks, both `flock`, which the kernel gives back however their holder ends:
//!
//! - `claimlock.lock` is held by the service, and refuses a second one. Its file is closed on exec,
//!   so the server does not keep it when the service dies.
//! - `server.lock` is held by the server, which is handed it as its standard input. Nothing else
//!   tells as surely whether a server lives in the folder: a socket file can be removed under a
//!   running server, a process id be another's by now.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;

use nix::unistd::Pid;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use super::EmbeddedError;

const SERVICE_LOCK: &str = "claimlock.lock";
const SERVER_LOCK: &str = "server.lock";
const SOCKET: &str = "redis.sock";

/// The shortest limit of a socket address in use is 104 bytes with the closing zero, and Redis cuts
/// a longer path off a byte early without a word.
const LONGEST_SOCKET_PATH: usize = 100;

const OUTSIDE_A_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A data folder that is this service's alone for as long as the value lives.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    socket: Socket,
    _lock: ServiceLock,
}

/// One socket under the two names by which server and service reach it.
#[derive(Debug)]
pub(super) struct Socket {
    to_listen: PathBuf,
    to_connect: PathBuf,
    /// Keeps the descriptor open that `to_connect` goes through.
    _folder: Option<File>,
}

/// Unlocks explicitly: a child that is forked at this moment for something else holds a copy of the
/// descriptor until its exec, and closing ours alone would leave the folder locked for that long.
#[derive(Debug)]
struct ServiceLock(File);

impl Drop for ServiceLock {
    fn drop(&mut self) {
        // The kernel does it anyway when the process ends.
        let _ = self.0.unlock();
    }
}

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Self, EmbeddedError> {
        let failed = failed_at(path);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(&failed)?;
        // The server tells its folder without symbolic links.
        let path = fs::canonicalize(path).map_err(&failed)?;
        let mode = fs::metadata(&path).map_err(&failed)?.permissions().mode();
        if mode & 0o007 != 0 {
            tracing::warn!(folder = %path.display(), "other users can read the data folder");
        }
        let lock = lock_for_service(&path)?;
        let socket = Socket::in_folder(&path)?;
        Ok(Self {
            path,
            socket,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn socket_to_listen(&self) -> &Path {
        &self.socket.to_listen
    }

    pub(super) fn socket_to_connect(&self) -> &Path {
        self.socket.to_connect()
    }

    pub(super) fn socket_url(&self) -> String {
        self.socket.url()
    }

    /// The lock that a new server is to hold, or `None` while a server holds it.
    pub(super) fn lock_for_server(&self) -> Result<Option<File>, EmbeddedError> {
        let path = self.path.join(SERVER_LOCK);
        try_lock(&path)
            .map(|(_, lock)| lock)
            .map_err(failed_at(&path))
    }

    /// The server that holds the lock, where that can be told for sure.
    ///
    /// The id in the file alone will not do: the server may be dead, its id another's, and the lock
    /// be held by a child that was rewriting the append-only file.
    pub(super) fn lock_holder(&self) -> Option<Pid> {
        let path = self.path.join(SERVER_LOCK);
        let pid = read_pid(&mut File::open(&path).ok()?)?;
        let standard_input = fs::read_link(format!("/proc/{pid}/fd/0")).ok()?;
        (standard_input == path).then_some(Pid::from_raw(pid))
    }
}

impl Socket {
    pub(super) fn to_connect(&self) -> &Path {
        &self.to_connect
    }

    pub(super) fn url(&self) -> String {
        let path = percent_encode(self.to_connect.as_os_str().as_bytes(), OUTSIDE_A_PATH);
        format!("unix://{path}")
    }

    pub(super) fn in_folder(folder: &Path) -> Result<Self, EmbeddedError> {
        let path = folder.join(SOCKET);
        if path.as_os_str().len() <= LONGEST_SOCKET_PATH {
            return Ok(Self {
                to_listen: path.clone(),
                to_connect: path,
                _folder: None,
            });
        }
        // The socket stays in the folder, where every later start finds it: the server works in the
        // folder and needs no more than the file's name, and we go through a descriptor of the
        // folder.
        let opened = File::open(folder).map_err(failed_at(folder))?;
        let shortcut = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        if !shortcut.exists() {
            return Err(EmbeddedError::PathTooLong {
                path: folder.to_owned(),
            });
        }
        Ok(Self {
            to_listen: PathBuf::from(SOCKET),
            to_connect: shortcut.join(SOCKET),
            _folder: Some(opened),
        })
    }
}

fn lock_for_service(folder: &Path) -> Result<ServiceLock, EmbeddedError> {
    let path = folder.join(SERVICE_LOCK);
    let failed = failed_at(&path);
    let (mut file, lock) = try_lock(&path).map_err(&failed)?;
    let Some(lock) = lock else {
        return Err(EmbeddedError::FolderInUse {
            path: folder.to_owned(),
            pid: read_pid(&mut file),
        });
    };
    let mut lock = ServiceLock(lock);
    write_pid(&mut lock.0, process::id()).map_err(&failed)?;
    Ok(lock)
}

/// The file itself, and once more as the lock if nobody else has it.
fn try_lock(path: &Path) -> io::Result<(File, Option<File>)> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let lock = match file.try_lock() {
        Ok(()) => Some(file.try_clone()?),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => return Err(error),
    };
    Ok((file, lock))
}

/// Writes a process id into a lock file, for the one who is refused.
pub(super) fn write_pid(file: &mut File, pid: u32) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{pid}")
}

fn read_pid(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

pub(super) fn failed_at(path: &Path) -> impl Fn(io::Error) -> EmbeddedError {
    move |source| EmbeddedError::Folder {
        path: path.to_owned(),
        source,
    }
}
