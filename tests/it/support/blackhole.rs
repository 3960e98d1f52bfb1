//! A TCP proxy in front of a server, to stand for a network that fails.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

/// What the network does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Bytes go through.
    Pass,
    /// Bytes are held up, in both directions, and go through at the next [`Mode::Pass`]: a stalled
    /// network, whose bytes arrive late but arrive.
    Hold,
    /// Connections are taken and stay open, what is sent on them is lost, nothing is answered.
    BlackHole,
    /// Requests go through, the replies are held up until the next [`Mode::Pass`].
    HoldReplies,
    /// Requests go through, the replies are lost.
    SwallowReplies,
    /// Connections that are open lose all that is sent on them from now on, and stay open for ever; new ones pass.
    Strand,
    /// All connections are closed, and new ones refused.
    Cut,
}

/// What becomes of the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Through,
    HeldUp,
    Lost,
}

impl Mode {
    fn of_requests(self) -> Fate {
        match self {
            Self::Pass | Self::HoldReplies | Self::SwallowReplies | Self::Strand | Self::Cut => {
                Fate::Through
            }
            Self::Hold => Fate::HeldUp,
            Self::BlackHole => Fate::Lost,
        }
    }

    fn of_replies(self) -> Fate {
        match self {
            Self::Pass | Self::Strand | Self::Cut => Fate::Through,
            Self::Hold | Self::HoldReplies => Fate::HeldUp,
            Self::BlackHole | Self::SwallowReplies => Fate::Lost,
        }
    }
}

/// Where the proxy's connections lead.
#[derive(Debug, Clone)]
pub enum Upstream {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A running proxy; gone with the value, and its connections with it.
///
/// A connection that lost bytes is closed at the next [`Mode::Pass`], as no network loses bytes
/// from the middle of one: whoever went on reading would take one request's reply for another's.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    orders: mpsc::Sender<(Mode, oneshot::Sender<()>)>,
    task: JoinHandle<()>,
    passed: Passed,
    /// Bound but never listening: keeps the port ours while connections to it are refused.
    _port: TcpSocket,
}

/// All bytes of requests that have been handed to the server.
type Passed = Arc<Mutex<Vec<u8>>>;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Proxy {
    /// A proxy on a free port of 127.0.0.1, passing.
    pub fn start(upstream: Upstream) -> Self {
        let port = socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let addr = port.local_addr().expect("a bound address");
        let (orders, ordered) = mpsc::channel(1);
        let passed = Passed::default();
        let task = tokio::spawn(serve(addr, listen(addr), upstream, passed.clone(), ordered));
        Self {
            addr,
            orders,
            task,
            passed,
            _port: port,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The proxy's address, as the service and the driver take it.
    pub fn redis_url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// How many bytes of requests have been handed to the server so far.
    pub fn passed(&self) -> usize {
        self.passed_bytes().len()
    }

    /// Whether these bytes have been handed to the server since [`Proxy::passed`] told `since`; it may not have read
    /// them yet.
    pub fn has_passed(&self, needle: &[u8], since: usize) -> bool {
        self.passed_bytes()[since..]
            .windows(needle.len())
            .any(|window| window == needle)
    }

    fn passed_bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.passed
            .lock()
            .expect("nothing panics while it holds the bytes")
    }

    /// Changes what the network does, for open connections too. Holds from when this returns.
    pub async fn set(&self, mode: Mode) {
        let (done, is_done) = oneshot::channel();
        self.orders
            .send((mode, done))
            .await
            .expect("the proxy runs as long as its value");
        is_done.await.expect("the proxy runs as long as its value");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn socket(addr: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .set_reuseaddr(true)
        .expect("an option every system has");
    socket
        .set_reuseport(true)
        .expect("an option every system has");
    socket
        .bind(addr)
        .expect("a port that is free, or kept for us");
    socket
}

fn listen(addr: SocketAddr) -> TcpListener {
    socket(addr)
        .listen(1024)
        .expect("nobody else listens on the port kept for us")
}

async fn serve(
    addr: SocketAddr,
    first: TcpListener,
    upstream: Upstream,
    passed: Passed,
    mut orders: mpsc::Receiver<(Mode, oneshot::Sender<()>)>,
) {
    let mut listener = Some(first);
    let (mut mode, _) = watch::channel(Mode::Pass);
    let mut stranded = Vec::new();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => {
                let Some((next, done)) = order else { return };
                if next == Mode::Strand {
                    mode.send_replace(Mode::BlackHole);
                    stranded.push(std::mem::replace(&mut mode, watch::channel(next).0));
                }
                mode.send_replace(next);
                if next == Mode::Cut {
                    listener = None;
                    connections.shutdown().await;
                } else if listener.is_none() {
                    listener = Some(listen(addr));
                }
                // Whoever asked may be gone.
                let _ = done.send(());
            }
            Some(client) = accept(listener.as_ref()) => {
                let (upstream, passed) = (upstream.clone(), passed.clone());
                connections.spawn(relay(client, upstream, passed, mode.subscribe()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    Some(
        listener?
            .accept()
            .await
            .expect("the proxy's socket accepts")
            .0,
    )
}

async fn relay(
    client: TcpStream,
    upstream: Upstream,
    passed: Passed,
    mut mode: watch::Receiver<Mode>,
) {
    client
        .set_nodelay(true)
        .expect("an option every system has");
    let (mut from_client, to_client) = split(client);
    // Neither does the server learn of a connection that was opened into a hole, nor one that is
    // held.
    let first = *mode
        .wait_for(|mode| *mode != Mode::Hold)
        .await
        .expect("the proxy outlives its connections");
    if first == Mode::BlackHole {
        let mut leaves = mode.clone();
        tokio::select! {
            _ = leaves.wait_for(|mode| *mode == Mode::Pass) => {}
            () = swallow(&mut from_client) => {}
        }
        return;
    }
    let Some(server) = open(&upstream).await else {
        return;
    };
    let (from_server, to_server) = split(server);
    let note = |bytes: &[u8]| {
        let mut passed = passed
            .lock()
            .expect("nothing panics while it holds the bytes");
        passed.extend_from_slice(bytes);
    };
    tokio::select! {
        () = pump(from_client, to_server, mode.clone(), Mode::of_requests, note) => {}
        () = pump(from_server, to_client, mode, Mode::of_replies, |_| {}) => {}
    }
}

async fn open(upstream: &Upstream) -> Option<Box<dyn Stream>> {
    Some(match upstream {
        Upstream::Unix(path) => Box::new(UnixStream::connect(path).await.ok()?),
        Upstream::Tcp(addr) => Box::new(TcpStream::connect(addr).await.ok()?),
    })
}

/// Moves bytes in one direction; returns when the connection is to be closed.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut mode: watch::Receiver<Mode>,
    fate: impl Fn(Mode) -> Fate,
    passed: impl Fn(&[u8]),
) {
    let mut buffer = vec![0; 64 << 10];
    let mut lost = false;
    loop {
        let now = *mode.borrow_and_update();
        if lost && now == Mode::Pass {
            return;
        }
        let read = tokio::select! {
            biased;
            changed = mode.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            read = from.read(&mut buffer), if fate(now) != Fate::HeldUp => read,
        };
        let Ok(read @ 1..) = read else { return };
        // Once more, as the mode may have changed while the bytes were on their way.
        let Ok(now) = mode
            .wait_for(|mode| fate(*mode) != Fate::HeldUp)
            .await
            .map(|mode| *mode)
        else {
            return;
        };
        if fate(now) == Fate::Lost {
            lost = true;
        } else if to.write_all(&buffer[..read]).await.is_ok() {
            passed(&buffer[..read]);
        } else {
            return;
        }
    }
}

async fn swallow(from: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(1..) = from.read(&mut buffer).await {}
}
