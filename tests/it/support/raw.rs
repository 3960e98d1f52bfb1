//! Calls as bytes, for what no client library sends. No timer of the client's ends them.

use super::service::Service;
use http::{Request, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use prost::bytes::Bytes;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Status;

/// One HTTP/2 connection.
#[derive(Debug, Clone)]
pub struct Raw(SendRequest<Sent>);

/// What comes after the headers of a call.
#[derive(Debug)]
pub struct Sent {
    chunks: VecDeque<Vec<u8>>,
    ends: bool,
}

impl Sent {
    /// These bytes, and the end of the stream.
    pub fn all(bytes: Vec<u8>) -> Self {
        Self {
            chunks: VecDeque::from([bytes]),
            ends: true,
        }
    }

    /// The same in a frame for each of these.
    pub fn in_frames(chunks: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self {
            chunks: chunks.into_iter().collect(),
            ends: true,
        }
    }

    /// Nothing but the end of the stream.
    pub fn nothing() -> Self {
        Self {
            chunks: VecDeque::new(),
            ends: true,
        }
    }

    /// These bytes, and no end of the stream.
    pub fn without_end(bytes: Vec<u8>) -> Self {
        Self {
            ends: false,
            ..Self::all(bytes)
        }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.chunks.pop_front() {
            Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk.into())))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// A message as it goes over the wire: uncompressed, its length, its bytes.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("no test sends 4 GiB");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// The same of a message of the contract's.
pub fn framed_message(message: &impl Message) -> Vec<u8> {
    framed(&message.encode_to_vec())
}

impl Raw {
    pub async fn to(service: &Service) -> Self {
        Self::at(service.grpc).await
    }

    pub async fn at(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address)
            .await
            .expect("the service takes connections");
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("the service speaks HTTP/2");
        tokio::spawn(connection);
        Self(sender)
    }

    /// Calls a method of the CoordinationService; its status in the end, with the code OK if it succeeded.
    pub async fn call(&self, method: &str, headers: &[(&str, &str)], sent: Sent) -> Status {
        self.call_path(
            &format!("/claimlock.v1.CoordinationService/{method}"),
            headers,
            sent,
        )
        .await
    }

    /// The same with a whole path.
    pub async fn call_path(&self, path: &str, headers: &[(&str, &str)], sent: Sent) -> Status {
        let mut request = Request::post(format!("http://test{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(sent).expect("a request");
        let mut sender = self.0.clone();
        sender.ready().await.expect("the connection stands");
        let response = sender.send_request(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        match Status::from_header_map(response.headers()) {
            Some(status) => status,
            None => status_in_trailers(response.into_body()).await,
        }
    }
}

async fn status_in_trailers(mut body: Incoming) -> Status {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))
            .await
            .expect("an answer ends with trailers")
            .expect("an answer arrives");
        if let Some(trailers) = frame.trailers_ref() {
            return Status::from_header_map(trailers).expect("trailers have a status");
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("short");
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// What a client says first.
pub fn greeting() -> Vec<u8> {
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(0x4, 0, 0, &[]),
    ]
    .concat()
}

/// Reads frames, and answers pings, until the service has closed its side.
pub async fn answer_pings(stream: &mut TcpStream) -> io::Result<()> {
    const PING: u8 = 0x6;
    loop {
        let mut header = [0; 9];
        match stream.read_exact(&mut header).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let [high, middle, low, kind, flags, ..] = header;
        let length = u32::from_be_bytes([0, high, middle, low]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await?;
        if (kind, flags) == (PING, 0) {
            stream.write_all(&frame(PING, 0x1, 0, &payload)).await?;
        }
    }
}

/// A request to Claim whose message never comes to its end, up to the first byte of it.
pub fn half_a_request() -> Vec<u8> {
    // HPACK (RFC 7541): indexed fields, then literal ones that are not indexed.
    let path = b"/claimlock.v1.CoordinationService/Claim";
    let mut headers = vec![0x83, 0x86];
    headers.extend([0x01, 9]);
    headers.extend(b"localhost");
    headers.extend([0x04, u8::try_from(path.len()).expect("short")]);
    headers.extend(path);
    headers.extend([0x0f, 0x10, 16]);
    headers.extend(b"application/grpc");
    headers.extend([0x00, 2]);
    headers.extend(b"te");
    headers.push(8);
    headers.extend(b"trailers");
    [
        greeting(),
        frame(0x1, 0x4, 1, &headers),
        frame(0x0, 0, 1, &[0]),
    ]
    .concat()
}
