//! What a command prints: passed through as it comes, and kept up to a limit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cli::output::note;
use crate::cli::signals::Signals;

/// What a command left in a pipe is there when it has ended. What it started may hold the pipe open for ever: once the
/// command has ended, this long a silence is taken for the end.
const SILENCE: Duration = Duration::from_millis(200);
/// And what it started may go on printing for ever: it is waited for no longer than this, and what is more than a pipe
/// holds is taken for no longer.
const LONGEST_REST: Duration = Duration::from_secs(2);
const MOST_IN_A_PIPE: usize = 1024 * 1024;
/// After a signal, a reader that takes nothing gets so long.
const PATIENCE: Duration = Duration::from_secs(1);
const PIECE: usize = 64 * 1024;

/// What was printed, kept as far as the limit allows.
#[derive(Debug, Default)]
pub(super) struct Printed {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// More was printed than the limit; nothing is kept then.
    pub(super) is_too_much: bool,
}

/// Passes one stream through, and ends with what is kept of it.
type Copy = JoinHandle<Vec<u8>>;

/// Output that is being passed through.
pub(super) struct Captured {
    copies: Option<(Copy, Copy)>,
    watched: Watched,
    limit: usize,
    total: Arc<AtomicUsize>,
}

/// What a copy is told meanwhile.
#[derive(Clone, Default)]
struct Watched {
    /// The command has ended.
    ended: CancellationToken,
    /// Nobody waits for a reader any more.
    unread: CancellationToken,
}

impl Captured {
    pub(super) fn start(output: Option<(ChildStdout, ChildStderr)>, limit: usize) -> Self {
        let watched = Watched::default();
        let total = Arc::new(AtomicUsize::new(0));
        let copies = output.map(|(stdout, stderr)| {
            let copy = |from, to| pass_through(from, to, limit, total.clone(), watched.clone());
            (
                tokio::spawn(copy(
                    Box::new(stdout) as Source,
                    Box::new(tokio::io::stdout()) as Target,
                )),
                tokio::spawn(copy(Box::new(stderr), Box::new(tokio::io::stderr()))),
            )
        });
        Self {
            copies,
            watched,
            limit,
            total,
        }
    }

    /// Takes what is left after the command has ended. A signal has no command to go to any more, and is for a reader that
    /// takes nothing: it gets nothing more then.
    pub(super) async fn finish(self, signals: &mut Signals) -> Printed {
        self.watched.ended.cancel();
        let copies = async {
            match self.copies {
                Some((stdout, stderr)) => tokio::join!(stdout, stderr),
                None => (Ok(Vec::new()), Ok(Vec::new())),
            }
        };
        let give_up = async {
            signals.next().await;
            tokio::time::sleep(PATIENCE).await;
            self.watched.unread.cancel();
            std::future::pending().await
        };
        let (stdout, stderr) = tokio::select! {
            copies = copies => copies,
            never = give_up => never,
        };
        if self.total.load(Ordering::Relaxed) > self.limit {
            return Printed {
                is_too_much: true,
                ..Printed::default()
            };
        }
        Printed {
            stdout: stdout.unwrap_or_default(),
            stderr: stderr.unwrap_or_default(),
            is_too_much: false,
        }
    }
}

type Source = Box<dyn AsyncRead + Send + Unpin>;
type Target = Box<dyn AsyncWrite + Send + Unpin>;

async fn pass_through(
    mut from: Source,
    mut to: Target,
    limit: usize,
    total: Arc<AtomicUsize>,
    watched: Watched,
) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut piece = vec![0; PIECE];
    let mut is_read = true;
    let mut rest = None;
    loop {
        let read = from.read(&mut piece);
        let read = if watched.ended.is_cancelled() {
            rest.get_or_insert_with(Rest::new).next(read).await
        } else {
            tokio::select! {
                biased;
                read = read => read.ok(),
                () = watched.ended.cancelled() => continue,
            }
        };
        let Some(length @ 1..) = read else { break };
        let printed = &piece[..length];
        if is_read {
            // Where nobody reads it any more, the command goes on all the same: its result is to be stored.
            is_read = tokio::select! {
                is_written = write(&mut to, printed) => is_written,
                () = watched.unread.cancelled() => false,
            };
        }
        if total.fetch_add(length, Ordering::Relaxed) + length > limit {
            kept = Vec::new();
        } else {
            kept.extend_from_slice(printed);
        }
    }
    kept
}

async fn write(to: &mut Target, printed: &[u8]) -> bool {
    let written = async {
        to.write_all(printed).await?;
        to.flush().await
    };
    match written.await {
        Ok(()) => true,
        Err(error) => {
            // A reader that has seen enough, as `head` does, is no failure.
            if error.kind() != io::ErrorKind::BrokenPipe {
                note(format_args!(
                    "what the command prints cannot be passed on: {error}"
                ));
            }
            false
        }
    }
}

/// What is in a pipe after the command has ended: from then on by others too.
struct Rest {
    since: Instant,
    taken: usize,
    waited: Duration,
}

impl Rest {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            taken: 0,
            waited: Duration::ZERO,
        }
    }

    /// What is read next, as long as it can be what the command left.
    async fn next(&mut self, read: impl Future<Output = io::Result<usize>>) -> Option<usize> {
        let is_enough = self.taken > MOST_IN_A_PIPE && self.since.elapsed() > LONGEST_REST;
        if is_enough || self.waited > LONGEST_REST {
            return None;
        }
        let waits_since = Instant::now();
        let length = tokio::time::timeout(SILENCE, read).await.ok()?.ok()?;
        self.waited += waits_since.elapsed();
        self.taken += length;
        Some(length)
    }
}
