//! The client's end of its rings, without the socket: a [`Client`](super::Client) waits for it on its thread, a shard
//! of `nereid perf` polls it in its turns.
//!
//! Nothing here waits. What does not fit the ring now is refused with `false`, and the owner of the socket sends the
//! bells that are due.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use nereid_memory::Segment;
use nereid_queue::bell;
use nereid_queue::frames::{Consumer, Corrupt, Producer, payload_max};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{ClientError, Route};
use crate::frame::{CALL_HEAD, DATA_HEAD, encode, from_client};
use crate::layout::{
    EMPTIED_AT, HELLO_BYTES, Layout, LayoutError, MAGIC, ROUTES_MAX, Ring, VERSION, client_bell, server_bell,
};

/// Bytes of a text with which a server refuses a client.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;
/// Why what is in the rings cannot be read any more.
const EMPTIED: &str = ": it has taken its memory back, with what was not read in it";

/// See the [module](self).
#[derive(Debug)]
pub struct ClientEnd {
    segment: Arc<Segment>,
    layout: Layout,
    requests: Producer<Ring>,
    responses: Consumer<Ring>,
    routes: u16,
    last_call: u32,
    /// Events since the server's bell word was read.
    events: u64,
}

impl ClientEnd {
    /// Reads the server's greeting from a new connection to its `--ipc-path`.
    pub fn greet(socket: &mut UnixStream) -> Result<ClientEnd, ClientError> {
        let (hello, object) = greeting(socket)?;
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
        Ok(ClientEnd {
            requests: Producer::new(layout.request_ring(&segment)),
            responses: Consumer::new(layout.response_ring(&segment)),
            segment,
            layout,
            routes: 0,
            last_call: 0,
            events: 0,
        })
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

    /// A copy of bytes of the arena; `None`: they do not lie there, or the server has emptied it.
    pub fn read_arena(&self, at: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let fits = at.checked_add(len).is_some_and(|end| end <= self.layout.arena.1);
        let is_read = fits && self.segment.read(self.layout.arena.0 + at, len, &mut bytes);
        (is_read && !self.is_emptied()).then_some(bytes)
    }

    /// The object, for tests that write anything to it.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The server has ended the connection and emptied the rings and the arena. What was copied out of them before this
    /// returned false is what was written.
    pub fn is_emptied(&self) -> bool {
        fence(Ordering::Acquire);
        self.segment.word(EMPTIED_AT).load(Ordering::Relaxed) != 0
    }

    /// Where the ring of requests ends now.
    pub fn position(&self) -> u64 {
        self.requests.position()
    }

    /// Whether the server has taken every frame before a position.
    pub fn is_taken(&self, position: u64) -> bool {
        self.requests.is_taken(position)
    }

    /// Bytes of messages that the frame holds at most that begins a call, and one that goes on with it.
    pub fn call_max(&self) -> usize {
        payload_max(self.layout.requests.1) - CALL_HEAD
    }

    pub fn data_max(&self) -> usize {
        payload_max(self.layout.requests.1) - DATA_HEAD
    }

    /// Defines a method, such as `/inference.GRPCInferenceService/ModelInfer`, with metadata for its calls. `None`:
    /// there is no room now.
    pub fn define(&mut self, path: &str, metadata: &[(&[u8], &[u8])]) -> Result<Option<Route>, ClientError> {
        if usize::from(self.routes) >= ROUTES_MAX {
            return Err(ClientError::Routes);
        }
        let route = self.routes;
        let payload = encode::route(route, path.as_bytes(), metadata);
        if payload.len() > payload_max(self.layout.requests.1) {
            return Err(ClientError::Metadata(payload.len()));
        }
        let is_pushed = self.push(from_client::ROUTE, &payload, &[])?;
        self.routes += u16::from(is_pushed);
        Ok(is_pushed.then_some(Route(route)))
    }

    /// A number for the next call.
    pub fn new_call(&mut self) -> u32 {
        self.last_call = self.last_call.wrapping_add(1).max(1);
        self.last_call
    }

    /// Begins a call with the first bytes of its messages, at most [`ClientEnd::call_max`]. False: there is no room
    /// now.
    pub fn push_call(
        &mut self,
        call: u32,
        route: Route,
        ends: bool,
        timeout: Option<Duration>,
        parts: &[&[u8]],
    ) -> Result<bool, Corrupt> {
        let timeout_ns = timeout.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.push(from_client::CALL, &encode::call(call, route.0, ends, timeout_ns), parts)
    }

    /// More bytes of the messages of a call, at most [`ClientEnd::data_max`]. False: there is no room now.
    pub fn push_data(&mut self, call: u32, ends: bool, parts: &[&[u8]]) -> Result<bool, Corrupt> {
        self.push(from_client::DATA, &encode::data(call, ends), parts)
    }

    /// Cancels a call. False: there is no room now.
    pub fn push_cancel(&mut self, call: u32) -> Result<bool, Corrupt> {
        self.push(from_client::CANCEL, &encode::data(call, false), &[])
    }

    fn push(&mut self, kind: u32, head: &[u8], parts: &[&[u8]]) -> Result<bool, Corrupt> {
        let len = head.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        let is_pushed = self.requests.push_with(kind, len, |payload| {
            payload.write(head);
            parts.iter().for_each(|part| payload.write(part));
        })?;
        if is_pushed {
            self.events |= bell::FRAMES;
        }
        Ok(is_pushed)
    }

    /// Takes the next frame of the server: its payload replaces the contents of `payload`, its kind is returned.
    /// An error is the end: `payload` has no meaning then.
    pub fn take(&mut self, payload: &mut Vec<u8>) -> Result<Option<u32>, ClientError> {
        let kind = self.responses.pop(payload);
        // Looked at behind the copy, or zeros could pass for a frame or for some of its bytes.
        if kind != Ok(None) && self.is_emptied() {
            return Err(ClientError::Closed(EMPTIED.to_owned()));
        }
        let kind = kind?;
        if kind.is_some() {
            self.events |= bell::ROOM;
        }
        Ok(kind)
    }

    /// True if a frame is there.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.responses.has_next()
    }

    /// Whether the server has to be woken for what was done since the last call.
    #[inline]
    pub fn is_bell_due(&mut self) -> bool {
        let events = std::mem::take(&mut self.events);
        events != 0 && bell::is_due(server_bell(&self.segment), events)
    }

    /// The client is about to sleep: the server has to ring for a frame, and for room if `wants_room`. False: there is
    /// a frame, or room for the longest one, and the client is awake.
    pub fn park(&mut self, wants_room: bool) -> bool {
        let word = client_bell(&self.segment);
        bell::want(word, bell::FRAMES | if wants_room { bell::ROOM } else { 0 });
        let has_room = || self.requests.has_room(payload_max(self.layout.requests.1)).unwrap_or(true);
        if self.responses.has_next() || (wants_room && has_room()) {
            bell::awake(word);
            return false;
        }
        true
    }

    /// The client does not sleep any more.
    pub fn unpark(&mut self) {
        bell::awake(client_bell(&self.segment));
    }
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
