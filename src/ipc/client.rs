//! A client of the ring that blocks its thread: for programs and tests, and as the model of clients elsewhere.
//!
//! A [`Client`] belongs to one thread at a time. Several calls may be open; what comes for them is returned by
//! [`Client::next`] in the order in which the server wrote it.

mod end;

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nereid_memory::Segment;
use nereid_queue::frames::Corrupt;

pub use end::ClientEnd;

use super::frame::{ServerFrame, Violation};
use super::layout::{LayoutError, ROUTES_MAX};

/// Bytes before every message: a flag, and its length (gRPC over HTTP/2).
const PREFIX_BYTES: usize = 5;
/// Polls between two reads of the clock.
const POLLS: u32 = 64;

/// Why a client cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the shared-memory ring's socket: {0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("the server refuses this client (status {code}): {text}")]
    Refused { code: u32, text: String },
    #[error("the server has closed the connection{0}")]
    Closed(String),
    #[error("the server leaves: it takes no new calls on this connection")]
    Leaving,
    #[error("a client defines at most {ROUTES_MAX} routes")]
    Routes,
    #[error("a route of {0} bytes does not fit the ring: give it less metadata")]
    Metadata(usize),
    #[error("a message of {0} bytes is too long: its length has 32 bits")]
    Message(usize),
    #[error("a call had no end in time")]
    TimedOut,
    #[error("what the server wrote cannot be: {0}")]
    Server(Violation),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// A method and its metadata, known to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route(u16);

/// How a call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientStatus {
    /// A gRPC status code; 0: OK.
    pub code: u32,
    pub text: String,
    /// Names and values in turn.
    pub trailers: Vec<Vec<u8>>,
}

impl ClientStatus {
    fn ok() -> ClientStatus {
        ClientStatus { code: 0, text: String::new(), trailers: Vec::new() }
    }
}

/// What comes for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// A response, without its prefix.
    Message { call: u32, message: Vec<u8> },
    /// Nothing follows for the call.
    End { call: u32, status: ClientStatus },
}

impl ClientEvent {
    fn call(&self) -> u32 {
        let (ClientEvent::Message { call, .. } | ClientEvent::End { call, .. }) = self;
        *call
    }
}

/// A call for which something may still come.
#[derive(Debug)]
struct OpenCall {
    /// Where its first frame ends in the ring.
    begun_at: u64,
    /// Bytes of a message that is not complete.
    partial: Vec<u8>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    end: ClientEnd,
    open: HashMap<u32, OpenCall>,
    events: VecDeque<ClientEvent>,
    frame: Vec<u8>,
    /// How long to poll before a sleep.
    spin: Duration,
    is_leaving: bool,
    is_closed: bool,
    farewell: String,
}

impl Client {
    /// Connects to the path that `--ipc-path` names.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        Client::over(UnixStream::connect(path)?)
    }

    /// Takes a connection to that path. A read timeout of the socket limits the wait for the greeting alone.
    pub fn over(mut socket: UnixStream) -> Result<Client, ClientError> {
        let end = ClientEnd::greet(&mut socket)?;
        Ok(Client {
            socket,
            end,
            open: HashMap::new(),
            events: VecDeque::new(),
            frame: Vec::new(),
            spin: Duration::ZERO,
            is_leaving: false,
            is_closed: false,
            farewell: String::new(),
        })
    }

    /// Polls for so long before each sleep.
    pub fn spin_for(&mut self, time: Duration) {
        self.spin = time;
    }

    /// The name of the arena in requests, and its bytes.
    pub fn arena(&self) -> (&[u8], usize) {
        self.end.arena()
    }

    /// Writes to the arena; false if the bytes do not fit there.
    #[must_use]
    pub fn write_arena(&self, at: usize, bytes: &[u8]) -> bool {
        self.end.write_arena(at, bytes)
    }

    /// A copy of bytes of the arena; `None`: they do not lie there, or the server has emptied it.
    pub fn read_arena(&self, at: usize, len: usize) -> Option<Vec<u8>> {
        self.end.read_arena(at, len)
    }

    /// The object, for tests that write anything to it.
    pub fn segment(&self) -> &Arc<Segment> {
        self.end.segment()
    }

    /// Defines a method, such as `/inference.GRPCInferenceService/ModelInfer`, with metadata for its calls.
    pub fn route(&mut self, path: &str, metadata: &[(&[u8], &[u8])]) -> Result<Route, ClientError> {
        self.when_room(|end| end.define(path, metadata))
    }

    /// Begins a call with its first message; `ends`: it is the only one. Returns the number of the call.
    pub fn begin(
        &mut self,
        route: Route,
        message: &[u8],
        ends: bool,
        timeout: Option<Duration>,
    ) -> Result<u32, ClientError> {
        if self.is_leaving {
            return Err(ClientError::Leaving);
        }
        let prefix = prefix(message.len())?;
        let mut call = self.end.new_call();
        while self.open.contains_key(&call) {
            call = self.end.new_call();
        }
        let (first, rest) = message.split_at(message.len().min(self.end.call_max() - PREFIX_BYTES));
        let ends_here = ends && rest.is_empty();
        self.when_room(|end| Ok(end.push_call(call, route, ends_here, timeout, &[&prefix, first])?.then_some(())))?;
        self.open.insert(call, OpenCall { begun_at: self.end.position(), partial: Vec::new() });
        self.go_on(call, rest, ends)?;
        Ok(call)
    }

    /// Sends another message of a call.
    pub fn send(&mut self, call: u32, message: &[u8], ends: bool) -> Result<(), ClientError> {
        let prefix = prefix(message.len())?;
        let ends_here = ends && message.is_empty();
        self.when_room(|end| Ok(end.push_data(call, ends_here, &[&prefix])?.then_some(())))?;
        self.go_on(call, message, ends)
    }

    /// Sends no more messages of a call.
    pub fn finish(&mut self, call: u32) -> Result<(), ClientError> {
        self.when_room(|end| Ok(end.push_data(call, true, &[])?.then_some(())))
    }

    fn go_on(&mut self, call: u32, mut rest: &[u8], ends: bool) -> Result<(), ClientError> {
        let most = self.end.data_max();
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(most));
            let ends_here = ends && behind.is_empty();
            self.when_room(|end| Ok(end.push_data(call, ends_here, &[part])?.then_some(())))?;
            rest = behind;
        }
        Ok(())
    }

    /// Waits no longer for a call: nothing of it is returned any more.
    pub fn cancel(&mut self, call: u32) -> Result<(), ClientError> {
        self.open.remove(&call);
        self.events.retain(|event| event.call() != call);
        self.when_room(|end| Ok(end.push_cancel(call)?.then_some(())))
    }

    /// Whether the server has taken a call from the ring, or all of it is over. A call that it has not taken when the
    /// connection has ended has not run: it can be repeated elsewhere.
    pub fn is_taken(&self, call: u32) -> bool {
        self.open.get(&call).is_none_or(|open| self.end.is_taken(open.begun_at))
    }

    /// A unary call: its response, or its status.
    pub fn call(&mut self, route: Route, message: &[u8]) -> Result<Result<Vec<u8>, ClientStatus>, ClientError> {
        self.call_within(route, message, None)
    }

    /// The same; a call without an end within `patience` is cancelled, and an error.
    pub fn call_within(
        &mut self,
        route: Route,
        message: &[u8],
        patience: Option<Duration>,
    ) -> Result<Result<Vec<u8>, ClientStatus>, ClientError> {
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        let this = self.begin(route, message, true, None)?;
        let mut response = None;
        loop {
            match self.next(until.map(|until| until.saturating_duration_since(Instant::now())))? {
                Some(ClientEvent::Message { call, message }) if call == this => response = Some(message),
                Some(ClientEvent::End { call, status }) if call == this => {
                    return Ok(if status.code == 0 { Ok(response.unwrap_or_default()) } else { Err(status) });
                }
                // Of another call.
                Some(_) => {}
                None => {
                    self.cancel(this)?;
                    return Err(ClientError::TimedOut);
                }
            }
        }
    }

    /// What comes next; `None`: the time is over.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<ClientEvent>, ClientError> {
        // A time beyond those of the clock is none.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            self.read_frames()?;
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.is_closed {
                return Err(ClientError::Closed(std::mem::take(&mut self.farewell)));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if !self.spins_until_frames(left) {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                self.sleep(false, left)?;
            }
        }
    }

    /// Writes frames, and waits for room while there is none.
    fn when_room<T>(
        &mut self,
        mut push: impl FnMut(&mut ClientEnd) -> Result<Option<T>, ClientError>,
    ) -> Result<T, ClientError> {
        loop {
            if let Some(pushed) = push(&mut self.end)? {
                self.ring_if_due()?;
                return Ok(pushed);
            }
            // The server may wait for room itself.
            self.read_frames()?;
            if self.is_closed {
                return Err(ClientError::Closed(std::mem::take(&mut self.farewell)));
            }
            self.sleep(true, None)?;
        }
    }

    /// Wakes the server without a cause, for tests.
    pub fn ring_bell(&mut self) -> Result<(), ClientError> {
        self.ring()
    }

    fn ring_if_due(&mut self) -> Result<(), ClientError> {
        if self.end.is_bell_due() { self.ring() } else { Ok(()) }
    }

    fn ring(&mut self) -> Result<(), ClientError> {
        match self.socket.write(&[1]) {
            Ok(_) => Ok(()),
            // What the server wrote before it closed the connection is still to be read.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                self.is_closed = true;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn spins_until_frames(&self, left: Option<Duration>) -> bool {
        let spin = left.map_or(self.spin, |left| left.min(self.spin));
        if spin.is_zero() {
            return false;
        }
        let began = Instant::now();
        loop {
            for _ in 0..POLLS {
                if self.end.has_next() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if began.elapsed() >= spin {
                return false;
            }
        }
    }

    /// Sleeps until the server rings, or the time is over.
    fn sleep(&mut self, wants_room: bool, timeout: Option<Duration>) -> Result<(), ClientError> {
        if timeout == Some(Duration::ZERO) || !self.end.park(wants_room) {
            return Ok(());
        }
        self.socket.set_read_timeout(timeout)?;
        let outcome = self.socket.read(&mut [0; 64]);
        self.end.unpark();
        match outcome {
            Ok(0) => self.is_closed = true,
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                io::ErrorKind::ConnectionReset => self.is_closed = true,
                _ => return Err(error.into()),
            },
        }
        Ok(())
    }

    fn read_frames(&mut self) -> Result<(), ClientError> {
        let mut frame = std::mem::take(&mut self.frame);
        let outcome = loop {
            match self.end.take(&mut frame) {
                Ok(None) => break Ok(()),
                Ok(Some(kind)) => {
                    let taken = ServerFrame::read(kind, &frame).map_err(ClientError::Server);
                    if let Err(error) = taken.and_then(|taken| self.take_frame(taken)) {
                        break Err(error);
                    }
                }
                // What was read before is whole.
                Err(ClientError::Closed(text)) => {
                    self.is_closed = true;
                    if self.farewell.is_empty() {
                        self.farewell = text;
                    }
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        self.frame = frame;
        outcome?;
        self.ring_if_due()
    }

    fn take_frame(&mut self, frame: ServerFrame<'_>) -> Result<(), ClientError> {
        match frame {
            ServerFrame::Data { call, ends, bytes } => {
                // It was under way when the call was cancelled.
                let Some(open) = self.open.get_mut(&call) else { return Ok(()) };
                let mut give = |message: Vec<u8>| self.events.push_back(ClientEvent::Message { call, message });
                match whole(bytes) {
                    // As most responses are.
                    Some(message) if open.partial.is_empty() => give(message.to_vec()),
                    _ => take_part(&mut open.partial, bytes, give),
                }
                if ends {
                    self.open.remove(&call);
                    self.events.push_back(ClientEvent::End { call, status: ClientStatus::ok() });
                }
            }
            ServerFrame::Status { call: 0, text, .. } => {
                self.farewell = format!(": {}", String::from_utf8_lossy(text));
                self.is_closed = true;
            }
            ServerFrame::Status { call, code, text, trailers } => {
                if self.open.remove(&call).is_none() {
                    return Ok(());
                }
                let trailers = trailers.map(|string| string.map(<[u8]>::to_vec)).collect::<Result<_, _>>();
                let text = String::from_utf8_lossy(text).into_owned();
                let status = ClientStatus { code, text, trailers: trailers.map_err(ClientError::Server)? };
                self.events.push_back(ClientEvent::End { call, status });
            }
            ServerFrame::Leave => self.is_leaving = true,
        }
        Ok(())
    }
}

/// Adds bytes to those of messages that are not complete, and gives those that are now.
fn take_part(partial: &mut Vec<u8>, bytes: &[u8], mut give: impl FnMut(Vec<u8>)) {
    partial.extend_from_slice(bytes);
    while let Some(len) = message_len(partial).filter(|len| partial.len() >= *len) {
        let message = partial.get(PREFIX_BYTES..len).unwrap_or_default().to_vec();
        partial.drain(..len);
        give(message);
    }
    if partial.is_empty() {
        *partial = Vec::new();
    }
}

/// The prefix of a message of `len` bytes.
fn prefix(len: usize) -> Result<[u8; PREFIX_BYTES], ClientError> {
    let [a, b, c, d] = u32::try_from(len).map_err(|_| ClientError::Message(len))?.to_be_bytes();
    Ok([0, a, b, c, d])
}

/// Bytes of the first message with its prefix, if the prefix is there.
fn message_len(bytes: &[u8]) -> Option<usize> {
    let [_, a, b, c, d] = *bytes.first_chunk::<PREFIX_BYTES>()?;
    Some(PREFIX_BYTES + u32::from_be_bytes([a, b, c, d]) as usize)
}

/// The message, if the bytes are one message.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    (message_len(bytes)? == bytes.len()).then(|| bytes.get(PREFIX_BYTES..)).flatten()
}

#[cfg(test)]
mod tests;
