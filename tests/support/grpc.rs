//! A gRPC peer that uses the crate h2 and the messages of proto/: returns headers, messages and trailers as they are
//! received.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use crate::server::PATIENCE;

/// One connection; calls run one after another, or in parallel as several open exchanges.
pub struct Grpc {
    runtime: Runtime,
    sender: h2::client::SendRequest<Bytes>,
    turns: Arc<Turns>,
}

/// The end of a call: `grpc-status` and the decoded `grpc-message`.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub code: u32,
    pub message: String,
}

/// The status codes that the contract uses (contract/grpc.md section 3).
pub mod code {
    pub const OK: u32 = 0;
    pub const CANCELLED: u32 = 1;
    pub const UNKNOWN: u32 = 2;
    pub const INVALID_ARGUMENT: u32 = 3;
    pub const NOT_FOUND: u32 = 5;
    pub const ALREADY_EXISTS: u32 = 6;
    pub const UNIMPLEMENTED: u32 = 12;
    pub const RESOURCE_EXHAUSTED: u32 = 8;
    pub const INTERNAL: u32 = 13;
    pub const UNAVAILABLE: u32 = 14;
}

/// A call in flight.
pub struct Exchange {
    send: h2::SendStream<Bytes>,
    response: Option<h2::client::ResponseFuture>,
    receive: Option<h2::RecvStream>,
    head: Option<(u16, HeaderMap)>,
    buffer: BytesMut,
    flags: Vec<u8>,
}

/// Everything that was received for a call.
#[derive(Debug)]
pub struct Reply {
    pub http_status: u16,
    pub headers: HeaderMap,
    pub messages: Vec<Bytes>,
    /// The trailers with the status, if they followed messages.
    pub trailers: HeaderMap,
    /// The compression flag of each message received so far: 1 means compressed.
    pub flags: Vec<u8>,
    pub status: Status,
}

pub const SERVICE: &str = "/inference.GRPCInferenceService/";

impl Grpc {
    pub fn connect(address: SocketAddr) -> Grpc {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let turns = Arc::new(Turns::default());
        let sender = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.unwrap_or_else(|error| panic!("{address}: {error}"));
            stream.set_nodelay(true).expect("TCP_NODELAY");
            let mut builder = h2::client::Builder::new();
            builder.initial_window_size(8 << 20).initial_connection_window_size(16 << 20).max_frame_size(1 << 20);
            let stream = Counted { stream, turns: turns.clone() };
            let (sender, connection) = builder.handshake::<_, Bytes>(stream).await.expect("the HTTP/2 handshake");
            tokio::spawn(async move {
                // The end of the connection is reported by the exchanges that it interrupts.
                let _ = connection.await;
            });
            sender
        });
        Grpc { runtime, sender, turns }
    }

    /// Whether the server has sent GOAWAY.
    pub fn is_sent_away(&mut self) -> bool {
        self.flush();
        let sender = &mut self.sender;
        self.runtime.block_on(patiently(poll_fn(|context| sender.poll_ready(context)))).is_err()
    }

    /// A unary call of the inference service.
    pub fn call<Answer: Message + Default>(&mut self, rpc: &str, request: &impl Message) -> Result<Answer, Status> {
        let reply = self.exchange(&format!("{SERVICE}{rpc}"), &[], &[frame(request)]);
        assert_eq!(reply.http_status, 200, "{rpc}: HTTP status");
        if reply.status.code != code::OK {
            assert!(reply.messages.is_empty(), "{rpc}: {:?} came with a message", reply.status);
            return Err(reply.status);
        }
        assert_eq!(reply.messages.len(), 1, "{rpc}: messages of a unary call");
        Ok(decode(&reply.messages[0]))
    }

    /// The same; `None` if the server has closed the connection (GOAWAY) without having seen the request, which a
    /// client sends again on another one.
    pub fn call_unless_sent_away<Answer: Message + Default>(
        &mut self,
        rpc: &str,
        request: &impl Message,
    ) -> Option<Result<Answer, Status>> {
        let is_unseen = |error: &h2::Error| error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        let mut exchange = match self.try_open(&format!("{SERVICE}{rpc}"), &[]) {
            Ok(exchange) => exchange,
            Err(error) if is_unseen(&error) => return None,
            Err(error) => panic!("open a stream: {error}"),
        };
        self.send(&mut exchange, request);
        self.half_close(&mut exchange);
        let response = exchange.response.take().expect("it was just opened");
        match self.runtime.block_on(patiently(response)) {
            Ok(response) => exchange.begin(response),
            Err(error) if is_unseen(&error) => return None,
            Err(error) => panic!("no response: {error}"),
        }
        let reply = self.finish(exchange);
        Some(match reply.status.code {
            code::OK => Ok(decode(&reply.messages[0])),
            _ => Err(reply.status),
        })
    }

    /// Sends the pieces unchanged (gRPC frames, or invalid ones of a broken client) and reads to the end.
    pub fn exchange(&mut self, path: &str, headers: &[(&str, &str)], pieces: &[Bytes]) -> Reply {
        let mut exchange = self.open(path, headers);
        for piece in pieces {
            self.send_bytes(&mut exchange, piece.clone());
        }
        self.half_close(&mut exchange);
        self.finish(exchange)
    }

    /// Opens a call without sending a message.
    pub fn open(&mut self, path: &str, headers: &[(&str, &str)]) -> Exchange {
        self.try_open(path, headers).unwrap_or_else(|error| panic!("open a stream: {error}"))
    }

    fn try_open(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<Exchange, h2::Error> {
        let mut request = Request::post(format!("http://test{path}"));
        let mut plain = true;
        for (name, value) in headers {
            plain &= !name.eq_ignore_ascii_case("content-type");
            request = request.header(*name, *value);
        }
        if plain {
            request = request.header("content-type", "application/grpc");
        }
        let request = request.header("te", "trailers").body(()).expect("a request");
        let sender = &mut self.sender;
        let (response, send) = self.runtime.block_on(patiently(async {
            poll_fn(|context| sender.poll_ready(context)).await?;
            sender.send_request(request, false)
        }))?;
        Ok(Exchange {
            send,
            response: Some(response),
            receive: None,
            head: None,
            buffer: BytesMut::new(),
            flags: Vec::new(),
        })
    }

    pub fn send(&mut self, exchange: &mut Exchange, message: &impl Message) {
        self.send_bytes(exchange, frame(message));
    }

    pub fn send_bytes(&mut self, exchange: &mut Exchange, bytes: Bytes) {
        let _entered = self.runtime.enter();
        // Fails only if the server has already ended the call; the reply then shows that.
        let _ = exchange.send.send_data(bytes, false);
    }

    pub fn half_close(&mut self, exchange: &mut Exchange) {
        let _entered = self.runtime.enter();
        let _ = exchange.send.send_data(Bytes::new(), true);
    }

    /// Lets the connection write the queued data of calls; otherwise the first read of a reply would do that.
    ///
    /// While much arrives, a connection may use up all of a turn by reading, and write nothing: it then gets more
    /// turns, until it has written or has nothing to do. One flush may be of what was queued earlier, hence two.
    pub fn flush(&mut self) {
        let turns = &self.turns;
        let (before, mut idle, mut given) = (turns.flushes.load(Ordering::Relaxed), 0, 0);
        let is_written = || turns.flushes.load(Ordering::Relaxed) >= before + 2;
        self.runtime.block_on(patiently(async {
            while given < 16 || (idle < 16 && !is_written()) {
                let reads = turns.reads.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                idle = if turns.reads.load(Ordering::Relaxed) == reads { idle + 1 } else { 0 };
                given += 1;
            }
        }));
    }

    /// Cancels the call (RST_STREAM with CANCEL).
    pub fn cancel(&mut self, mut exchange: Exchange) {
        exchange.send.send_reset(h2::Reason::CANCEL);
        self.flush();
    }

    /// The next message, or None at the end of the messages.
    pub fn next(&mut self, exchange: &mut Exchange) -> Option<Bytes> {
        self.runtime.block_on(patiently(exchange.next_message()))
    }

    /// Reads the remaining messages and the status.
    pub fn finish(&mut self, mut exchange: Exchange) -> Reply {
        self.runtime.block_on(patiently(async {
            let mut messages = Vec::new();
            while let Some(message) = exchange.next_message().await {
                messages.push(message);
            }
            assert!(exchange.buffer.is_empty(), "the stream ends within a message: {:?}", exchange.buffer);
            let (http_status, headers) = exchange.head.clone().unwrap_or_default();
            let trailers = match &mut exchange.receive {
                Some(receive) => receive.trailers().await.unwrap_or_else(|error| panic!("trailers: {error}")),
                None => None,
            };
            // A call without messages may carry its status in the head ("Trailers-Only").
            let status = Status::of(trailers.as_ref().unwrap_or(&headers));
            let trailers = trailers.unwrap_or_default();
            Reply { http_status, headers, messages, trailers, flags: exchange.flags, status }
        }))
    }
}

impl Exchange {
    fn begin(&mut self, response: http::Response<h2::RecvStream>) {
        let (head, body) = response.into_parts();
        self.head = Some((head.status.as_u16(), head.headers));
        self.receive = Some(body);
    }

    async fn next_message(&mut self) -> Option<Bytes> {
        if let Some(response) = self.response.take() {
            let response = response.await.unwrap_or_else(|error| panic!("no response: {error}"));
            self.begin(response);
        }
        let receive = self.receive.as_mut()?;
        loop {
            if let Some((flag, message)) = take_frame(&mut self.buffer) {
                let names = self.head.as_ref().is_some_and(|(_, headers)| headers.contains_key("grpc-encoding"));
                assert!(flag == 0 || (flag == 1 && names), "a compressed message that nobody asked for");
                self.flags.push(flag);
                return Some(message);
            }
            let data = receive.data().await?.unwrap_or_else(|error| panic!("the response breaks off: {error}"));
            let _ = receive.flow_control().release_capacity(data.len());
            self.buffer.extend_from_slice(&data);
        }
    }
}

impl Status {
    fn of(headers: &HeaderMap) -> Status {
        let code = headers.get("grpc-status").and_then(|value| value.to_str().ok()?.parse().ok());
        let code = code.unwrap_or_else(|| panic!("no grpc-status in {headers:?}"));
        let message = headers.get("grpc-message").map(|value| percent_decode(value.as_bytes())).unwrap_or_default();
        Status { code, message }
    }
}

/// How often a connection has tried to read, and has written all that it had.
#[derive(Default)]
struct Turns {
    reads: AtomicU64,
    flushes: AtomicU64,
}

/// A socket that counts the turns of its connection.
struct Counted {
    stream: TcpStream,
    turns: Arc<Turns>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.turns.reads.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.turns.flushes.fetch_add(1, Ordering::Relaxed);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

async fn patiently<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("the server keeps the call waiting")
}

/// A message with the prefix of gRPC: not compressed, length in big-endian.
pub fn frame(message: &impl Message) -> Bytes {
    frame_bytes(0, &message.encode_to_vec())
}

pub fn frame_bytes(flag: u8, message: &[u8]) -> Bytes {
    let mut framed = vec![flag];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    framed.into()
}

pub fn decode<M: Message + Default>(bytes: &Bytes) -> M {
    M::decode(bytes.clone()).unwrap_or_else(|error| panic!("{error}: {bytes:?}"))
}

fn take_frame(buffer: &mut BytesMut) -> Option<(u8, Bytes)> {
    let prefix = buffer.get(..5)?;
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    let flag = prefix[0];
    if buffer.len() < 5 + length {
        return None;
    }
    buffer.advance(5);
    Some((flag, buffer.split_to(length).freeze()))
}

fn percent_decode(text: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let hex = if first == b'%' { after.get(..2) } else { None };
        let value = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match value {
            Some(value) => {
                decoded.push(value);
                rest = &after[2..];
            }
            None => {
                decoded.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
