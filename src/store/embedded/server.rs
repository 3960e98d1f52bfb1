//! The server as a process: found, started or taken over, watched and ended.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{self, Instant};

use super::EmbeddedError;
use super::folder::{Folder, failed_at, write_pid};

const LOG: &str = "redis.log";
const LARGEST_LOG: u64 = 1 << 20;
const LOG_TAIL: u64 = 2 << 10;
const LOG_TAIL_LINES: usize = 8;

const POLL: Duration = Duration::from_millis(10);
/// How long a server that was left running may take to answer before it is replaced. Loading a
/// file is answered too.
const TAKE_OVER: Duration = Duration::from_secs(3);
/// How long one question to a new server may take.
const FIRST_TRY: Duration = Duration::from_secs(1);
/// How long a server that does not answer may take to end in order.
const REPLACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to clear away what was killed.
const KILLED: Duration = Duration::from_secs(5);

/// The first server program on the search path: any Valkey before any Redis.
pub(super) fn find_program(search_path: &OsStr) -> Option<PathBuf> {
    let runs = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    ["valkey-server", "redis-server"].iter().find_map(|name| {
        env::split_paths(search_path)
            .map(|folder| folder.join(name))
            .find(runs)
    })
}

/// Everything that a server is started from, as often as need be.
#[derive(Debug)]
pub(super) struct Launcher {
    program: PathBuf,
    folder: Folder,
    appendfsync: &'static str,
}

/// A server that lives, or did until a moment ago.
#[derive(Debug)]
pub(super) enum Process {
    Started {
        child: Child,
        log: LogPart,
    },
    /// Not our child, so nothing but its socket tells of its end: `connection` is never used, only
    /// seen closed.
    TakenOver {
        pid: Pid,
        connection: UnixStream,
        log: LogPart,
        socket: PathBuf,
    },
}

/// What is known about a server's end.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) status: Option<ExitStatus>,
    pub(super) log_tail: String,
}

/// What a server that was left running had to say.
enum Answer {
    Ours,
    Foreign,
    Later(RedisError),
}

impl Launcher {
    pub(super) fn new(program: PathBuf, folder: Folder, fsync_always: bool) -> Self {
        Self {
            program,
            folder,
            appendfsync: if fsync_always { "always" } else { "everysec" },
        }
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.folder.path().join(LOG)
    }

    /// Takes over the server that lives in the folder, or starts one. Never leaves two of them on
    /// one folder, as each would write into the other's file.
    pub(super) async fn bring_up(&self) -> Result<Process, EmbeddedError> {
        let deadline = Instant::now() + TAKE_OVER;
        let socket = self.folder.socket_to_connect();
        loop {
            match UnixStream::connect(socket).await {
                Ok(connection) => match self.ask_whose(deadline).await {
                    Answer::Ours => return self.take_over(connection),
                    Answer::Foreign => {
                        return Err(EmbeddedError::ForeignServer {
                            path: socket.to_owned(),
                        });
                    }
                    Answer::Later(error) => {
                        tracing::debug!(%error, "the server in the data folder does not answer")
                    }
                },
                Err(error) if nobody_listens(&error) => {
                    // Held without a socket: by a server that has not got as far as to listen, or
                    // whose socket was removed, or by its child that has yet to notice that its
                    // parent was killed.
                    if let Some(lock) = self.folder.lock_for_server()? {
                        return self.spawn(lock);
                    }
                }
                // A full queue of a server that accepts nobody.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed_at(socket)(error)),
            }
            if Instant::now() >= deadline {
                return self.replace().await;
            }
            time::sleep(POLL).await;
        }
    }

    /// Returns when the server has loaded its data and answers.
    pub(super) async fn answers(&self) {
        loop {
            let answered: RedisResult<()> = async {
                let mut connection = self.connect(FIRST_TRY).await?;
                redis::cmd("PING").exec_async(&mut connection).await
            }
            .await;
            match answered {
                Ok(()) => return,
                // One that cannot read its file has often said that it is loading it.
                Err(error) if error.code().is_some_and(|code| code != "LOADING") => return,
                Err(_) => time::sleep(POLL).await,
            }
        }
    }

    async fn connect(&self, within: Duration) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(Some(within));
        redis::Client::open(self.folder.socket_url())?
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// Asks the server on the socket whether this folder is its own, and makes it keep its data as
    /// we were told to: it may have been started with other settings.
    async fn ask_whose(&self, deadline: Instant) -> Answer {
        let asked: RedisResult<bool> = async {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut connection = self.connect(left).await?;
            let wished = [
                ("appendonly", "yes"),
                ("appendfsync", self.appendfsync),
                ("maxmemory-policy", "noeviction"),
            ];
            // In one go, as a server that is loading answers only now and then.
            let mut questions = redis::pipe();
            for name in iter::once("dir").chain(wished.map(|(name, _)| name)) {
                questions.cmd("CONFIG").arg("GET").arg(name);
            }
            let answers: Vec<(String, Vec<u8>)> = questions.query_async(&mut connection).await?;
            let [(_, folder), current @ ..] = &answers[..] else {
                return Ok(false);
            };
            if folder != self.folder.path().as_os_str().as_bytes() {
                return Ok(false);
            }
            for ((name, value), (_, current)) in wished.iter().zip(current) {
                // While it is loading it refuses some of these even where they change nothing.
                if current != value.as_bytes() {
                    let mut change = redis::cmd("CONFIG");
                    change
                        .arg("SET")
                        .arg(name)
                        .arg(value)
                        .exec_async(&mut connection)
                        .await?;
                }
            }
            Ok(true)
        }
        .await;
        match asked {
            Ok(true) => Answer::Ours,
            Ok(false) => Answer::Foreign,
            Err(error) => Answer::Later(error),
        }
    }

    fn take_over(&self, connection: UnixStream) -> Result<Process, EmbeddedError> {
        let socket = self.folder.socket_to_connect();
        let Some(pid) = peer(&connection) else {
            return Err(EmbeddedError::ForeignServer {
                path: socket.to_owned(),
            });
        };
        let folder = self.folder.path().display();
        tracing::info!(%pid, %folder, "took over the server that was left running");
        Ok(Process::TakenOver {
            pid,
            connection,
            log: LogPart::from_now_on(&self.log_path()),
            socket: socket.to_owned(),
        })
    }

    /// Ends the server that holds the folder but does not answer, and starts another.
    async fn replace(&self) -> Result<Process, EmbeddedError> {
        let holder = self.folder.lock_holder();
        if let Some(pid) = holder {
            tracing::warn!(%pid, "the server that was left running does not answer, replacing it");
            for (signal, bound) in [(Signal::SIGTERM, REPLACE), (Signal::SIGKILL, KILLED)] {
                send(pid, signal);
                let deadline = Instant::now() + bound;
                while Instant::now() < deadline {
                    if let Some(lock) = self.folder.lock_for_server()? {
                        return self.spawn(lock);
                    }
                    time::sleep(POLL).await;
                }
            }
        }
        Err(EmbeddedError::Unreachable {
            path: self.folder.path().to_owned(),
            pid: holder.map(Pid::as_raw),
        })
    }

    fn spawn(&self, lock: File) -> Result<Process, EmbeddedError> {
        let log_path = self.log_path();
        let (output, log) = LogPart::begin(&log_path).map_err(failed_at(&log_path))?;
        let mut record = lock.try_clone().map_err(failed_at(self.folder.path()))?;
        let errors = output.try_clone().map_err(failed_at(&log_path))?;
        let child = Command::new(&self.program)
            .args(self.arguments())
            .stdin(Stdio::from(lock))
            .stdout(Stdio::from(output))
            .stderr(Stdio::from(errors))
            // Ctrl-C in a terminal reaches every process of the group: the service ends the server
            // when it is through.
            .process_group(0)
            .spawn()
            .map_err(|source| EmbeddedError::Spawn {
                program: self.program.clone(),
                source,
            })?;
        if let Some(pid) = child.id() {
            // Only the replacement of a server that hangs needs it.
            if let Err(error) = write_pid(&mut record, pid) {
                tracing::warn!(%error, "cannot note the embedded server's process id");
            }
            tracing::info!(
                pid,
                program = %self.program.display(),
                folder = %self.folder.path().display(),
                "started the embedded server"
            );
        }
        Ok(Process::Started { child, log })
    }

    /// All settings go on the command line, so that no configuration file of the machine is read.
    fn arguments(&self) -> Vec<OsString> {
        let folder = self.folder.path();
        let settings: [(&str, &OsStr); 12] = [
            ("--port", "0".as_ref()),
            ("--unixsocket", self.folder.socket_to_listen().as_ref()),
            ("--unixsocketperm", "700".as_ref()),
            ("--dir", folder.as_ref()),
            ("--daemonize", "no".as_ref()),
            ("--appendonly", "yes".as_ref()),
            ("--appendfsync", self.appendfsync.as_ref()),
            // What a killed server wrote half is not worth refusing the start for: it was not
            // answered for.
            ("--aof-load-truncated", "yes".as_ref()),
            ("--save", "".as_ref()),
            ("--maxmemory-policy", "noeviction".as_ref()),
            ("--pidfile", "redis.pid".as_ref()),
            ("--logfile", "".as_ref()),
        ];
        settings
            .iter()
            .flat_map(|(name, value)| [OsString::from(name), value.to_os_string()])
            .collect()
    }
}

impl Process {
    /// Returns when the server is gone. Can be dropped and called again.
    pub(super) async fn ended(&mut self) -> Ending {
        match self {
            Self::Started { child, log } => {
                let status = child.wait().await.ok();
                Ending {
                    status,
                    log_tail: log.tail(),
                }
            }
            Self::TakenOver {
                pid,
                connection,
                log,
                socket,
            } => {
                loop {
                    closed(connection).await;
                    // An operator can close a connection too: what tells is that nobody takes a new
                    // one.
                    match UnixStream::connect(&*socket).await {
                        Ok(again) => {
                            *pid = peer(&again).unwrap_or(*pid);
                            *connection = again;
                        }
                        Err(error) if nobody_listens(&error) => break,
                        Err(_) => time::sleep(POLL).await,
                    }
                }
                Ending {
                    status: None,
                    log_tail: log.tail(),
                }
            }
        }
    }

    /// Ends the server: in order if it does so within the bound, by force if not.
    pub(super) async fn terminate(mut self, within: Duration) {
        let Some(pid) = self.pid() else { return };
        send(pid, Signal::SIGTERM);
        if time::timeout(within, self.ended()).await.is_ok() {
            tracing::info!(%pid, "stopped the embedded server");
            return;
        }
        tracing::warn!(%pid, "the embedded server did not stop in time, killing it");
        send(pid, Signal::SIGKILL);
        if time::timeout(KILLED, self.ended()).await.is_err() {
            tracing::error!(%pid, "the embedded server could not be killed");
        }
    }

    /// `None` once the server's end has been seen.
    fn pid(&self) -> Option<Pid> {
        match self {
            Self::Started { child, .. } => child
                .id()
                .map(|id| Pid::from_raw(id.try_into().expect("the kernel's ids are positive i32"))),
            Self::TakenOver { pid, .. } => Some(*pid),
        }
    }
}

/// The part of the server's log that one server wrote.
#[derive(Debug)]
pub(super) struct LogPart {
    path: PathBuf,
    start: u64,
}

impl LogPart {
    /// Opens the log for a new server. One that grew large is put aside first, as a server that
    /// fails again and again would fill the disk.
    fn begin(path: &Path) -> io::Result<(File, Self)> {
        if fs::metadata(path).is_ok_and(|log| log.len() > LARGEST_LOG) {
            fs::rename(path, path.with_extension("log.old"))?;
        }
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        Ok((file, Self::from_now_on(path)))
    }

    fn from_now_on(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            start: fs::metadata(path).map_or(0, |log| log.len()),
        }
    }

    fn tail(&self) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut text = Vec::new();
            let mut log = File::open(&self.path)?;
            let end = log.metadata()?.len();
            log.seek(SeekFrom::Start(
                self.start.max(end.saturating_sub(LOG_TAIL)),
            ))?;
            log.take(LOG_TAIL).read_to_end(&mut text)?;
            Ok(text)
        };
        match read() {
            Ok(text) => last_lines(&String::from_utf8_lossy(&text)),
            Err(error) => format!("(cannot be read: {error})"),
        }
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

/// The process at the other end, unless it is one of another namespace: that could be neither
/// watched nor ended.
fn peer(connection: &UnixStream) -> Option<Pid> {
    let pid = connection.peer_cred().ok()?.pid()?;
    (pid > 0).then_some(Pid::from_raw(pid))
}

async fn closed(connection: &UnixStream) {
    while connection.readable().await.is_ok() {
        match connection.try_read(&mut [0; 64]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

fn nobody_listens(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn send(pid: Pid, signal: Signal) {
    // It may be gone already, which is what the callers look for next.
    if let Err(error) = kill(pid, signal) {
        tracing::debug!(%pid, %signal, %error, "the embedded server took no signal");
    }
}
