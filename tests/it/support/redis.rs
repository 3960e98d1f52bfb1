//! A real Redis server of a test's own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use super::eventually;

const SCAN_PAGE: usize = 1000;

/// How to start a [`RedisServer`]; the default keeps nothing on disk and listens on its socket
/// alone.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    /// Keep an append-only file, so that a restart finds the data again.
    pub appendonly: bool,
    /// Listen on a free port of 127.0.0.1 too.
    pub tcp: bool,
    /// The same with TLS; `args` name the certificates.
    pub tls: bool,
    /// Run on a clock that [`RedisServer::set_clock_offset`] moves.
    pub movable_clock: bool,
    /// More of the server's own arguments, as in `["--maxmemory", "10mb"]`.
    pub args: Vec<String>,
}

/// A server in a temporary folder; ended with the value.
#[derive(Debug)]
pub struct RedisServer {
    options: RedisOptions,
    port: u16,
    folder: TempDir,
    child: Child,
}

/// Everything in a server: per key what DUMP gives, and when it expires (PEXPIRETIME, −1 for
/// never).
pub type Dump = BTreeMap<Vec<u8>, (Vec<u8>, i64)>;

impl RedisServer {
    /// A server as [`RedisOptions::default`] has it, ready to answer.
    pub async fn start() -> Self {
        Self::with(RedisOptions::default()).await
    }

    /// One that keeps all it has answered, whatever becomes of it.
    pub async fn durable() -> Self {
        Self::with(RedisOptions {
            appendonly: true,
            args: vec!["--appendfsync".to_owned(), "always".to_owned()],
            ..RedisOptions::default()
        })
        .await
    }

    /// A server with options, ready to answer.
    pub async fn with(options: RedisOptions) -> Self {
        // The port is free when it is asked for, but nothing keeps it for us until the server has
        // it.
        for _ in 0..10 {
            let folder = tempfile::Builder::new()
                .prefix("redis-")
                .tempdir()
                .expect("a temporary folder");
            let listens = options.tcp || options.tls;
            let port = if listens { free_port() } else { 0 };
            write_clock(folder.path(), &offset(0.0));
            let child = spawn(&options, port, folder.path());
            let mut server = Self {
                options: options.clone(),
                port,
                folder,
                child,
            };
            if server.answers_at_last().await {
                return server;
            }
            let log = server.log();
            assert!(
                log.contains("in use"),
                "the server ended at its start:\n{log}"
            );
        }
        panic!("no free port in ten tries");
    }

    /// The address of the socket, as the service and the driver take it.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket_path().display())
    }

    /// The address of the TCP port.
    pub fn tcp_url(&self) -> String {
        format!("redis://{}", self.tcp_addr())
    }

    /// The address of the TLS port.
    pub fn tls_url(&self) -> String {
        assert!(self.options.tls, "the server was started without `tls`");
        format!("rediss://127.0.0.1:{}", self.port)
    }

    /// The TCP port; panics if none was asked for.
    pub fn tcp_addr(&self) -> SocketAddr {
        assert!(self.options.tcp, "the server was started without `tcp`");
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub fn socket_path(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(
            self.child
                .id()
                .try_into()
                .expect("the kernel's ids are positive i32"),
        )
    }

    /// What the server has logged since it was started first.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A connection that waits for its answers as long as a test may take.
    pub async fn connect(&self) -> MultiplexedConnection {
        connect(&self.url())
            .await
            .expect("the server takes connections")
    }

    /// SIGSTOP: connections are taken by the kernel, and nothing is answered.
    pub fn stop_process(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// SIGCONT: goes on, with all that was sent in between.
    pub fn resume_process(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// SIGKILL, and returns when the process is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("our own child can be killed");
        self.child.wait().expect("our own child can be waited for");
    }

    /// Starts the server again after [`RedisServer::kill`] or its own end, with the same folder,
    /// socket and port.
    pub async fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.options, self.port, self.folder.path());
        assert!(
            self.answers_at_last().await,
            "the server ended at its restart:\n{}",
            self.log()
        );
    }

    /// Sets the server's clock off from the machine's by so many seconds, at once.
    pub fn set_clock_offset(&self, seconds: f64) {
        assert!(
            self.options.movable_clock,
            "the server was started without `movable_clock`"
        );
        write_clock(self.folder.path(), &offset(seconds));
    }

    /// Stops the server's clock so long into a day to come, at once.
    pub fn stop_clock(&self, into_the_day: Duration) {
        assert!(
            self.options.movable_clock,
            "the server was started without `movable_clock`"
        );
        let seconds = into_the_day.as_secs();
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let micros = into_the_day.subsec_micros();
        let time = format!("2100-01-01 {hour:02}:{minute:02}:{second:02}.{micros:06}");
        write_clock(self.folder.path(), &time);
    }

    /// The keys that would stay for ever. There must never be any.
    pub async fn keys_without_expiry(&self) -> Vec<String> {
        let mut connection = self.connect().await;
        let keys = all_keys(&mut connection).await;
        let expiries: Vec<i64> = for_each_key(&mut connection, "PTTL", &keys).await;
        keys.iter()
            .zip(expiries)
            .filter(|(_, expiry)| *expiry == -1)
            .map(|(key, _)| String::from_utf8_lossy(key).into_owned())
            .collect()
    }

    /// Everything in the server, to find out whether anything changed.
    pub async fn dump(&self) -> Dump {
        let mut connection = self.connect().await;
        let keys = all_keys(&mut connection).await;
        let values: Vec<Option<Vec<u8>>> = for_each_key(&mut connection, "DUMP", &keys).await;
        let expiries: Vec<i64> = for_each_key(&mut connection, "PEXPIRETIME", &keys).await;
        keys.into_iter()
            .zip(values)
            .zip(expiries)
            // A key that expired since the SCAN is not there.
            .filter_map(|((key, value), expiry)| Some((key, (value?, expiry))))
            .collect()
    }

    /// What is in its append-only files.
    pub fn append_only_file(&self) -> Vec<u8> {
        let folder = self.folder.path().join("appendonlydir");
        let files = fs::read_dir(folder).expect("it keeps a file");
        files
            .flat_map(|file| fs::read(file.expect("it can be listed").path()).unwrap_or_default())
            .collect()
    }

    /// Rewrites them without what is no longer needed, and returns when the old ones are gone.
    pub async fn rewrite_append_only_file(&self) {
        let mut connection = self.connect().await;
        let asked = redis::cmd("BGREWRITEAOF").exec_async(&mut connection).await;
        asked.expect("BGREWRITEAOF is answered");
        eventually("the file to be rewritten", async || {
            let info: String = redis::cmd("INFO")
                .arg("persistence")
                .query_async(&mut connection)
                .await
                .expect("INFO is answered");
            let is_over = info.contains("aof_rewrite_in_progress:0\r")
                && info.contains("aof_rewrite_scheduled:0\r")
                && info.contains("aof_rewrites:1\r");
            let files = fs::read_dir(self.folder.path().join("appendonlydir"));
            // The new base and file, and the list of both.
            (is_over && files.expect("it keeps files").count() == 3).then_some(())
        })
        .await;
    }

    /// How often a command was called since the server was started last; a script counts as `evalsha`.
    pub async fn calls(&self, command: &str) -> u64 {
        let mut connection = self.connect().await;
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut connection)
            .await
            .expect("INFO is answered");
        let start = format!("cmdstat_{command}:calls=");
        info.lines()
            .find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("our own child takes signals");
    }

    /// Whether the server answers PING; false if it ended.
    async fn answers_at_last(&mut self) -> bool {
        let url = self.url();
        eventually("the server's first answer", async || {
            if self
                .child
                .try_wait()
                .expect("our own child can be waited for")
                .is_some()
            {
                return Some(false);
            }
            let mut connection = connect(&url).await.ok()?;
            redis::cmd("PING").exec_async(&mut connection).await.ok()?;
            Some(true)
        })
        .await
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // SIGKILL ends a stopped process too. A child that ended already is no failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to any server of a test's, the embedded one too.
pub async fn connect(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_response_timeout(Some(super::BOUND));
    redis::Client::open(url)?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

fn spawn(options: &RedisOptions, port: u16, folder: &Path) -> Child {
    let log = File::options()
        .append(true)
        .create(true)
        .open(folder.join("log"))
        .expect("a log file");
    let port_text = port.to_string();
    let mut command = Command::new("redis-server");
    command
        .args(["--port", if options.tls { "0" } else { &port_text }])
        .args(["--tls-port", if options.tls { &port_text } else { "0" }])
        .args(["--bind", "127.0.0.1"])
        .args([
            "--unixsocket",
            "redis.sock",
            "--unixsocketperm",
            "700",
            "--save",
            "",
        ])
        .args([
            "--appendonly",
            if options.appendonly { "yes" } else { "no" },
        ])
        .arg("--dir")
        .arg(folder)
        .args(&options.args)
        .stdin(Stdio::null())
        .stderr(log.try_clone().expect("a log file"))
        .stdout(log);
    if options.movable_clock {
        command.envs(clock_environment(folder));
    }
    command.spawn().expect("redis-server is on PATH")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound address").port()
}

fn clock_environment(folder: &Path) -> [(&'static str, String); 5] {
    // Redis brings jemalloc, which asks for the time before libfaketime is ready for it, and dies
    // of the answer. With the C library right behind libfaketime, malloc is the C library's again.
    let preload = format!("{} libc.so.6", libfaketime().display());
    [
        ("LD_PRELOAD", preload),
        (
            "FAKETIME_TIMESTAMP_FILE",
            clock_file(folder).display().to_string(),
        ),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        // Timers must go on when the clock is set back. The name differs between versions.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// The variant for programs with threads, which Redis is: the other one reads the clock's file
/// unguarded.
fn libfaketime() -> PathBuf {
    let fixed = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let by_architecture = fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    fixed
        .into_iter()
        .chain(by_architecture)
        .map(|folder| folder.join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
        .expect("libfaketime is installed (apt-get install libfaketime)")
}

fn clock_file(folder: &Path) -> PathBuf {
    folder.join("clock")
}

/// A number without a sign would end the process.
fn offset(seconds: f64) -> String {
    format!("{seconds:+.3}")
}

fn write_clock(folder: &Path, time: &str) {
    // libfaketime ends the process over a half-written file.
    let next = folder.join("clock.next");
    fs::write(&next, format!("{time}\n")).expect("the clock's file can be written");
    fs::rename(&next, clock_file(folder)).expect("the clock's file can be replaced");
}

async fn all_keys(connection: &mut MultiplexedConnection) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let (next, page): (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("COUNT")
            .arg(SCAN_PAGE)
            .query_async(connection)
            .await
            .expect("SCAN is answered");
        keys.extend(page);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    // SCAN may repeat a key.
    keys.sort_unstable();
    keys.dedup();
    keys
}

async fn for_each_key<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &str,
    keys: &[Vec<u8>],
) -> Vec<T> {
    let mut answers = Vec::with_capacity(keys.len());
    for page in keys.chunks(SCAN_PAGE) {
        let mut pipeline = redis::pipe();
        for key in page {
            pipeline.cmd(command).arg(key);
        }
        let page: Vec<T> = pipeline
            .query_async(connection)
            .await
            .expect("a read command is answered");
        answers.extend(page);
    }
    answers
}
