//! A client of the ring that blocks its thread: for tests, for `nereid perf`, and as the model of clients elsewhere.
//!
//! A [`Client`] belongs to one thread at a time. Several calls may be open; what comes for them is returned by
//! [`Client::next`] in the order in which the server wrote it.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nereid_memory::Segment;
use nereid_queue::bell;
use nereid_queue::frames::{Consumer, Corrupt, Producer, payload_max};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::frame::{DATA_HEAD, ServerFrame, Violation, encode, from_client};
use super::layout::{HELLO_BYTES, Layout, LayoutError, MAGIC, ROUTES_MAX, Ring, VERSION, client_bell, server_bell};

/// Bytes before every message: a flag, and its length (gRPC over HTTP/2).
const PREFIX_BYTES: usize = 5;
/// Bytes of a text with which a server refuses a client.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;
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

/// See the [module](self).
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    segment: Arc<Segment>,
    layout: Layout,
    requests: Producer<Ring>,
    responses: Consumer<Ring>,
    routes: u16,
    last_call: u32,
    /// Bytes of messages that are not complete.
    partial: HashMap<u32, Vec<u8>>,
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
        let mut socket = UnixStream::connect(path)?;
        let (hello, object) = greeting(&mut socket)?;
        let number =
            |at: usize| hello.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes);
        if !hello.starts_with(&MAGIC) {
            return Err(LayoutError::Magic.into());
        }
        if number(8) != VERSION {
            return Err(LayoutError::Version(number(8)).into());
        }
        let size = hello.get(16..24).and_then(|all| all.try_into().ok()).map_or(0, u64::from_le_bytes);
        if number(12) != 0 {
            let mut text = Vec::new();
            socket.take(size.min(REFUSAL_BYTES_MAX)).read_to_end(&mut text)?;
            return Err(ClientError::Refused { code: number(12), text: String::from_utf8_lossy(&text).into_owned() });
        }
        let size = usize::try_from(size).map_err(|_| LayoutError::Parts)?;
        let object = object.ok_or_else(|| ClientError::Closed(": it sent no memory object".to_owned()))?;
        let segment = Arc::new(Segment::open(object, size)?);
        let layout = Layout::read(&segment)?;
        Ok(Client {
            requests: Producer::new(layout.request_ring(&segment)),
            responses: Consumer::new(layout.response_ring(&segment)),
            socket,
            segment,
            layout,
            routes: 0,
            last_call: 0,
            partial: HashMap::new(),
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
        (&self.layout.name, self.layout.arena.1)
    }

    /// Writes to the arena; false if the bytes do not fit there.
    #[must_use]
    pub fn write_arena(&self, at: usize, bytes: &[u8]) -> bool {
        let fits = at.checked_add(bytes.len()).is_some_and(|end| end <= self.layout.arena.1);
        fits && self.segment.write(self.layout.arena.0 + at, bytes)
    }

    /// A copy of bytes of the arena; `None`: they do not lie there.
    pub fn read_arena(&self, at: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let fits = at.checked_add(len).is_some_and(|end| end <= self.layout.arena.1);
        (fits && self.segment.read(self.layout.arena.0 + at, len, &mut bytes)).then_some(bytes)
    }

    /// The object, for tests that write anything to it.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Defines a method, such as `/inference.GRPCInferenceService/ModelInfer`, with metadata for its calls.
    pub fn route(&mut self, path: &str, metadata: &[(&[u8], &[u8])]) -> Result<Route, ClientError> {
        if usize::from(self.routes) >= ROUTES_MAX {
            return Err(ClientError::Routes);
        }
        let route = self.routes;
        self.push(from_client::ROUTE, &encode::route(route, path.as_bytes(), metadata), &[])?;
        self.routes += 1;
        Ok(Route(route))
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
        self.last_call = self.last_call.wrapping_add(1).max(1);
        let (call, prefix) = (self.last_call, prefix(message));
        let timeout_ns = timeout.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
        let most = payload_max(self.layout.requests.1);
        let first = message.len().min(most - encode::call(0, 0, false, 0).len() - PREFIX_BYTES);
        let (first, rest) = message.split_at(first);
        let head = encode::call(call, route.0, ends && rest.is_empty(), timeout_ns);
        self.push(from_client::CALL, &head, &[&prefix, first])?;
        self.go_on(call, rest, ends)?;
        Ok(call)
    }

    /// Sends another message of a call.
    pub fn send(&mut self, call: u32, message: &[u8], ends: bool) -> Result<(), ClientError> {
        let prefix = prefix(message);
        self.push(from_client::DATA, &encode::data(call, false), &[&prefix])?;
        match message.is_empty() {
            true if ends => self.finish(call),
            true => Ok(()),
            false => self.go_on(call, message, ends),
        }
    }

    /// Sends no more messages of a call.
    pub fn finish(&mut self, call: u32) -> Result<(), ClientError> {
        self.push(from_client::DATA, &encode::data(call, true), &[])
    }

    fn go_on(&mut self, call: u32, mut rest: &[u8], ends: bool) -> Result<(), ClientError> {
        let most = payload_max(self.layout.requests.1) - DATA_HEAD;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(most));
            self.push(from_client::DATA, &encode::data(call, ends && behind.is_empty()), &[part])?;
            rest = behind;
        }
        Ok(())
    }

    /// Waits no longer for a call. Responses that are under way may still come.
    pub fn cancel(&mut self, call: u32) -> Result<(), ClientError> {
        self.partial.remove(&call);
        self.push(from_client::CANCEL, &encode::data(call, false), &[])
    }

    /// A unary call: its response, or its status.
    pub fn call(&mut self, route: Route, message: &[u8]) -> Result<Result<Vec<u8>, ClientStatus>, ClientError> {
        let this = self.begin(route, message, true, None)?;
        let mut response = None;
        loop {
            match self.next(None)? {
                Some(ClientEvent::Message { call, message }) if call == this => response = Some(message),
                Some(ClientEvent::End { call, status }) if call == this => {
                    return Ok(if status.code == 0 { Ok(response.unwrap_or_default()) } else { Err(status) });
                }
                // Of a call that was cancelled.
                _ => {}
            }
        }
    }

    /// What comes next; `None`: the time is over.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<ClientEvent>, ClientError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            self.read_frames()?;
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.is_closed {
                return Err(ClientError::Closed(std::mem::take(&mut self.farewell)));
            }
            if self.spins_until_frames() {
                continue;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let has_frames = |client: &Client| client.responses.has_next();
            self.sleep(bell::FRAMES, left, has_frames)?;
        }
    }

    /// Writes a frame, and waits for room if there is none.
    fn push(&mut self, kind: u32, head: &[u8], parts: &[&[u8]]) -> Result<(), ClientError> {
        let len = head.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        loop {
            let is_pushed = self.requests.push_with(kind, len, |payload| {
                payload.write(head);
                parts.iter().for_each(|part| payload.write(part));
            })?;
            if is_pushed {
                if bell::is_due(server_bell(&self.segment), bell::FRAMES) {
                    self.ring()?;
                }
                return Ok(());
            }
            if len > payload_max(self.layout.requests.1) {
                return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
            }
            // The server may wait for room itself.
            self.read_frames()?;
            if self.is_closed {
                return Err(ClientError::Closed(std::mem::take(&mut self.farewell)));
            }
            let can_go_on =
                |client: &Client| client.responses.has_next() || client.requests.has_room(len).unwrap_or(true);
            self.sleep(bell::FRAMES | bell::ROOM, None, can_go_on)?;
        }
    }

    /// Wakes the server without a cause, for tests.
    pub fn ring_bell(&mut self) -> Result<(), ClientError> {
        self.ring()
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

    fn spins_until_frames(&self) -> bool {
        if self.spin.is_zero() {
            return false;
        }
        let until = Instant::now() + self.spin;
        loop {
            for _ in 0..POLLS {
                if self.responses.has_next() {
                    return true;
                }
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    /// Sleeps until the server rings, or the time is over.
    fn sleep(
        &mut self,
        events: u64,
        timeout: Option<Duration>,
        is_over: impl Fn(&Client) -> bool,
    ) -> Result<(), ClientError> {
        let word: &AtomicU64 = client_bell(&self.segment);
        bell::want(word, events);
        if !is_over(self) {
            self.socket.set_read_timeout(timeout.filter(|time| !time.is_zero()))?;
            match self.socket.read(&mut [0; 64]) {
                Ok(0) => self.is_closed = true,
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionReset => self.is_closed = true,
                    _ => return Err(error.into()),
                },
            }
        }
        bell::awake(client_bell(&self.segment));
        Ok(())
    }

    fn read_frames(&mut self) -> Result<(), ClientError> {
        let mut frame = std::mem::take(&mut self.frame);
        let mut has_read = false;
        while let Some(kind) = self.responses.pop(&mut frame)? {
            has_read = true;
            self.take_frame(ServerFrame::read(kind, &frame).map_err(ClientError::Server)?)?;
        }
        self.frame = frame;
        if has_read && bell::is_due(server_bell(&self.segment), bell::ROOM) {
            self.ring()?;
        }
        Ok(())
    }

    fn take_frame(&mut self, frame: ServerFrame<'_>) -> Result<(), ClientError> {
        match frame {
            ServerFrame::Data { call, ends, bytes } => {
                match whole(bytes) {
                    // As most responses are.
                    Some(message) if !self.partial.contains_key(&call) => {
                        self.events.push_back(ClientEvent::Message { call, message: message.to_vec() });
                    }
                    _ => self.take_part(call, bytes),
                }
                if ends {
                    self.partial.remove(&call);
                    self.events.push_back(ClientEvent::End { call, status: ClientStatus::ok() });
                }
            }
            ServerFrame::Status { call: 0, text, .. } => {
                self.farewell = format!(": {}", String::from_utf8_lossy(text));
                self.is_closed = true;
            }
            ServerFrame::Status { call, code, text, trailers } => {
                self.partial.remove(&call);
                let trailers = trailers.map(|string| string.map(<[u8]>::to_vec)).collect::<Result<_, _>>();
                let text = String::from_utf8_lossy(text).into_owned();
                let status = ClientStatus { code, text, trailers: trailers.map_err(ClientError::Server)? };
                self.events.push_back(ClientEvent::End { call, status });
            }
            ServerFrame::Leave => self.is_leaving = true,
        }
        Ok(())
    }

    fn take_part(&mut self, call: u32, bytes: &[u8]) {
        let partial = self.partial.entry(call).or_default();
        partial.extend_from_slice(bytes);
        while let Some(len) = message_len(partial).filter(|len| partial.len() >= *len) {
            let message = partial.get(PREFIX_BYTES..len).unwrap_or_default().to_vec();
            partial.drain(..len);
            self.events.push_back(ClientEvent::Message { call, message });
        }
        if partial.is_empty() {
            self.partial.remove(&call);
        }
    }
}

/// The prefix of a message.
fn prefix(message: &[u8]) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [0, a, b, c, d]
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

/// The greeting of the server, and the descriptor that comes with it.
fn greeting(socket: &mut UnixStream) -> Result<(Vec<u8>, Option<OwnedFd>), ClientError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut hello = [0; HELLO_BYTES];
    let received = loop {
        match recvmsg(&*socket, &mut [IoSliceMut::new(&mut hello)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.map_err(io::Error::from)?.bytes,
        }
    };
    let mut object = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            object = descriptors.last().or(object);
        }
    }
    let rest = hello.get_mut(received..).unwrap_or_default();
    socket.read_exact(rest)?;
    Ok((hello.to_vec(), object))
}
