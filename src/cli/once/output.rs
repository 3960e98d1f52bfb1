//! What a command prints: passed through as it comes, and kept up to a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What a command left in a pipe is there when it has ended. What it started may hold the pipe open for ever: once the
/// command has ended, this long a silence is taken for the end.
const SILENCE: Duration = Duration::from_millis(200);
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
    ended: CancellationToken,
    limit: usize,
    total: Arc<AtomicUsize>,
}

impl Captured {
    pub(super) fn start(output: Option<(ChildStdout, ChildStderr)>, limit: usize) -> Self {
        let ended = CancellationToken::new();
        let total = Arc::new(AtomicUsize::new(0));
        let copies = output.map(|(stdout, stderr)| {
            let copy = |from, to| pass_through(from, to, limit, total.clone(), ended.clone());
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
            ended,
            limit,
            total,
        }
    }

    /// Takes what is left after the command has ended.
    pub(super) async fn finish(self) -> Printed {
        self.ended.cancel();
        let (stdout, stderr) = match self.copies {
            Some((stdout, stderr)) => tokio::join!(stdout, stderr),
            None => (Ok(Vec::new()), Ok(Vec::new())),
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
    ended: CancellationToken,
) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut piece = vec![0; PIECE];
    let mut is_read = true;
    loop {
        let read = from.read(&mut piece);
        let read = if ended.is_cancelled() {
            let Ok(read) = tokio::time::timeout(SILENCE, read).await else {
                break;
            };
            read
        } else {
            tokio::select! {
                biased;
                read = read => read,
                () = ended.cancelled() => continue,
            }
        };
        let Ok(length @ 1..) = read else { break };
        let printed = &piece[..length];
        if is_read {
            // Where nobody reads it any more, the command goes on all the same: its result is to be stored.
            let written = to.write_all(printed).await;
            is_read = written.is_ok() && to.flush().await.is_ok();
        }
        if total.fetch_add(length, Ordering::Relaxed) + length > limit {
            kept = Vec::new();
        } else {
            kept.extend_from_slice(printed);
        }
    }
    kept
}
