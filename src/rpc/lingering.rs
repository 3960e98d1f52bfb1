//! A connection that is closed without losing what was said last.
//!
//! A system that closes a connection while bytes of the peer's are unread, or that gets more of them afterwards, resets it,
//! and the peer may lose what it has not read yet: the end of an answer, say, while its window updates come in. So the
//! peer's side is read until it closes too.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// A peer that keeps its side open for longer has had the time to read.
const AT_MOST: Duration = Duration::from_secs(1);

/// The stream of a connection, which is handed back when whoever serves it drops it.
#[derive(Debug)]
pub(super) struct Lingering {
    stream: Option<TcpStream>,
    back: Option<oneshot::Sender<TcpStream>>,
}

impl Lingering {
    /// And where it is handed back.
    pub(super) fn new(stream: TcpStream) -> (Self, oneshot::Receiver<TcpStream>) {
        let (back, left) = oneshot::channel();
        let lingering = Self {
            stream: Some(stream),
            back: Some(back),
        };
        (lingering, left)
    }

    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.stream.as_mut().expect("it is here until the drop"))
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            // Nobody has to wait for it.
            let _ = back.send(stream);
        }
    }
}

/// Waits until the peer has closed its side of a connection whose own side is closed.
pub(super) async fn linger(left: oneshot::Receiver<TcpStream>) {
    let read_to_the_end = async {
        let mut unread = [0; 4096];
        if let Ok(mut stream) = left.await {
            while let Ok(1..) = stream.read(&mut unread).await {}
        }
    };
    let _ = tokio::time::timeout(AT_MOST, read_to_the_end).await;
}

impl AsyncRead for Lingering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buf)
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream
            .as_ref()
            .is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
