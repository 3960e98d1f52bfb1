//! The store of a service that was given none: a Redis or Valkey server of its own, in a folder of
//! its own.
//!
//! The server outlives a service that was killed, because what it holds must. So a start first
//! looks for a server that was left running in the folder and takes it over; only where there is
//! certainly none is a new one started. What makes that certain is a lock that the server itself
//! holds for as long as it lives (see `folder`).

mod folder;
pub mod look;
mod server;

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time;

use folder::Folder;
use server::{Ending, Launcher, Process};

/// How long `start` waits for the server to answer. One that cannot run ends within milliseconds;
/// one that has much to load takes longer, and the pool waits for it.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A server that ran for this long before it ended is not in a loop of failing starts.
const STEADY: Duration = Duration::from_secs(10);

/// What the embedded server needs to know.
#[derive(Debug, Clone)]
pub struct EmbeddedSettings {
    /// Where the server keeps its append-only file, its socket and its log. Created with mode 0700
    /// if absent.
    pub data_dir: PathBuf,
    /// Sync the append-only file before every answer, instead of once a second. Without, a crash of the
    /// machine loses the last second or two; so does the server's own death while a slow disk is
    /// still at the sync before, since the server answers meanwhile what it has not written yet.
    pub fsync_always: bool,
}

/// Why there is no embedded server.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// Neither `valkey-server` nor `redis-server` was found.
    #[error(
        "neither valkey-server nor redis-server is on PATH: install one with \
         `apt-get install redis-server` (macOS: `brew install redis`, Fedora: `dnf install valkey`), \
         or name a running one with --redis-url"
    )]
    NoServerProgram,
    /// The data folder, or a file in it, cannot be made, read or written.
    #[error("cannot use the data folder {}: {source}", path.display())]
    Folder {
        /// The folder or the file in it.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another service holds the folder.
    #[error(
        "the data folder {} is used by another claimlock{}: stop that one, or name another folder \
         with --data-dir",
        path.display(),
        of_process(*pid)
    )]
    FolderInUse {
        /// The folder.
        path: PathBuf,
        /// The other service, where it left its process id.
        pid: Option<i32>,
    },
    /// The socket's path does not fit into a socket address, and this system has no other way to
    /// reach it.
    #[error(
        "the path of the data folder {} is too long for a Unix socket: name a shorter one \
         with --data-dir",
        path.display()
    )]
    PathTooLong {
        /// The folder.
        path: PathBuf,
    },
    /// Something that is not this folder's server answers on its socket.
    #[error("{} is the socket of a server that does not keep its data there", path.display())]
    ForeignServer {
        /// The socket.
        path: PathBuf,
    },
    /// A server was left running in the folder, does not answer, and could not be ended.
    #[error(
        "a server that was left running in {} does not answer: end it{} and start again",
        path.display(),
        of_process(*pid)
    )]
    Unreachable {
        /// The folder.
        path: PathBuf,
        /// The server, where its process id is known.
        pid: Option<i32>,
    },
    /// The server's program could not be run.
    #[error("cannot run {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The server ended before it answered.
    #[error(
        "the embedded server ended at its start{}; the end of {}:\n{log_tail}",
        with_status(*status),
        log.display()
    )]
    Ended {
        /// How it ended, where known.
        status: Option<ExitStatus>,
        /// The server's log.
        log: PathBuf,
        /// The last lines of the log that this server wrote.
        log_tail: String,
    },
}

fn of_process(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (process {pid})"))
        .unwrap_or_default()
}

fn with_status(status: Option<ExitStatus>) -> String {
    status
        .map(|status| format!(" ({status})"))
        .unwrap_or_default()
}

/// A running server and the task that keeps it running.
///
/// Dropped without [`Embedded::stop`], it leaves the server running, as a service does that is
/// killed: the next start on the folder takes it over.
#[derive(Debug)]
pub struct Embedded {
    url: String,
    socket: PathBuf,
    stop: oneshot::Sender<Duration>,
    watch: JoinHandle<()>,
}

impl Embedded {
    /// Starts a server found on `PATH`, or takes over the one that was left running in the folder,
    /// and starts it again from then on whenever it dies.
    ///
    /// Returns when the server answers, or after two seconds if it is still loading by then. A
    /// server that ends before is an error that shows what it logged.
    pub async fn start(settings: EmbeddedSettings) -> Result<Self, EmbeddedError> {
        Self::start_from(settings, &env::var_os("PATH").unwrap_or_default()).await
    }

    /// [`Embedded::start`] with folders to search in place of `PATH`, written like it.
    pub async fn start_from(
        settings: EmbeddedSettings,
        search_path: &OsStr,
    ) -> Result<Self, EmbeddedError> {
        let program = server::find_program(search_path).ok_or(EmbeddedError::NoServerProgram)?;
        let folder = Folder::open(&settings.data_dir)?;
        let url = folder.socket_url();
        let socket = folder.socket_to_connect().to_owned();
        let launcher = Launcher::new(program, folder, settings.fsync_always);

        let mut process = launcher.bring_up().await?;
        tokio::select! {
            ending = process.ended() => {
                let Ending { status, log_tail } = ending;
                return Err(EmbeddedError::Ended { status, log: launcher.log_path(), log_tail });
            }
            answered = time::timeout(FIRST_ANSWER, launcher.answers()) => {
                if answered.is_err() {
                    tracing::warn!("the embedded server does not answer yet, or is still loading");
                }
            }
        }
        let (stop, stopped) = oneshot::channel();
        let watch = tokio::spawn(watch(launcher, process, stopped));
        Ok(Self {
            url,
            socket,
            stop,
            watch,
        })
    }

    /// The server's address in the form that the Redis driver takes for Unix sockets.
    pub fn redis_url(&self) -> String {
        self.url.clone()
    }

    /// The server's socket, as this process can connect to it.
    pub fn socket_path(&self) -> &Path {
        &self.socket
    }

    /// Ends the server in order, so that it syncs its file; kills it if that takes longer than
    /// `within`.
    ///
    /// Killing can lose what was answered for while a slow disk was at a sync; see
    /// [`EmbeddedSettings::fsync_always`].
    pub async fn stop(self, within: Duration) {
        // A watch that is gone has nothing left to stop; joining it tells why.
        let _ = self.stop.send(within);
        if let Err(error) = self.watch.await {
            tracing::error!(%error, "the embedded server's watch failed");
        }
    }
}

/// Starts the server again whenever it ends, until it is told to stop it. Where the teller is
/// dropped without a word, the server is left running.
async fn watch(launcher: Launcher, mut process: Process, mut stop: oneshot::Receiver<Duration>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let since = Instant::now();
        let ending = tokio::select! {
            ending = process.ended() => ending,
            within = &mut stop => {
                if let Ok(within) = within {
                    process.terminate(within).await;
                }
                return;
            }
        };
        if since.elapsed() > STEADY {
            pause = FIRST_PAUSE;
        }
        tracing::error!(
            status = ending.status.map(tracing::field::display),
            log_tail = ending.log_tail,
            "the embedded server ended, starting it again"
        );
        process = loop {
            tokio::select! {
                () = time::sleep(pause) => {}
                _ = &mut stop => return,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            // Spawning is the last thing that bring_up does, so a stop never drops it with a server
            // just started.
            tokio::select! {
                started = launcher.bring_up() => match started {
                    Ok(process) => break process,
                    Err(error) => tracing::error!(%error, "cannot start the embedded server"),
                },
                _ = &mut stop => return,
            }
        };
    }
}
