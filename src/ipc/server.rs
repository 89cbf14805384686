//! The server's end of one client's rings, which a shard polls.
//!
//! Nothing here trusts the client: positions are checked where they are read ([`Corrupt`]), frames are copied out, and
//! the server's own facts about the layout are not read from the object.

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nereid_memory::Segment;
use nereid_queue::bell;
use nereid_queue::frames::{Consumer, Corrupt, Payload, Producer, payload_max};

use super::frame::{DATA_HEAD, encode, from_server};
use super::layout::{
    EMPTIED_AT, HEADER_BYTES, HELLO_BYTES, Layout, MAGIC, Ring, Sizes, VERSION, client_bell, server_bell,
};

/// The server's greeting on the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello(pub Vec<u8>);

impl Hello {
    fn new(code: u32, number: u64) -> Hello {
        let mut bytes = Vec::with_capacity(HELLO_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&code.to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        Hello(bytes)
    }

    /// The client is refused with a gRPC status code and a text.
    pub fn refusal(code: u32, text: &str) -> Hello {
        let mut hello = Hello::new(code, text.len() as u64);
        hello.0.extend_from_slice(text.as_bytes());
        hello
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct ServerEnd {
    requests: Consumer<Ring>,
    responses: Producer<Ring>,
    segment: Arc<Segment>,
    layout: Layout,
    /// Events since the client's bell word was read.
    events: u64,
}

impl ServerEnd {
    /// A new object, with the only descriptor of it, for the client, which is to ring for its first frame. `name`: of
    /// the arena, in requests. `place` is dropped when nothing of the server holds the object any more. Everything but
    /// its header is emptied then, unless the server ends: the header shows that, and how far the server has read.
    pub fn create(sizes: Sizes, name: &[u8], place: Box<dyn Any + Send + Sync>) -> io::Result<(ServerEnd, OwnedFd)> {
        let layout = Layout::new(sizes, name).ok_or(io::ErrorKind::InvalidInput)?;
        let (segment, object) = Segment::for_guest(layout.size, (HEADER_BYTES, EMPTIED_AT), place)?;
        let segment = Arc::new(segment);
        if !layout.write(&segment) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        bell::want(server_bell(&segment), bell::FRAMES);
        let end = ServerEnd {
            requests: Consumer::new(layout.request_ring(&segment)),
            responses: Producer::new(layout.response_ring(&segment)),
            segment,
            layout,
            events: 0,
        };
        Ok((end, object))
    }

    /// The greeting, which goes with the object's descriptor.
    pub fn hello(&self) -> Hello {
        Hello::new(0, self.layout.size as u64)
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Memory of the object is missing: what is written here does not reach the client any more.
    pub fn is_lost(&self) -> bool {
        self.segment.is_lost()
    }

    /// The client may read its ring after the server has ended.
    pub fn keep_all(&self) {
        self.segment.keep_all();
    }

    /// A frame of the client waits.
    pub fn has_frames(&self) -> bool {
        self.requests.has_next()
    }

    /// Offset and size.
    pub fn arena(&self) -> (usize, usize) {
        self.layout.arena
    }

    /// Takes the next frame of the client: its payload replaces the contents of `payload`, its kind is returned.
    #[inline]
    pub fn take(&mut self, payload: &mut Vec<u8>) -> Result<Option<u32>, Corrupt> {
        let kind = self.requests.pop(payload)?;
        if kind.is_some() {
            self.events |= bell::ROOM;
        }
        Ok(kind)
    }

    /// Bytes of messages that one frame holds at most.
    pub fn data_max(&self) -> usize {
        payload_max(self.layout.responses.1) - DATA_HEAD
    }

    /// Bytes of the payload of a status at most.
    pub fn status_max(&self) -> usize {
        payload_max(self.layout.responses.1)
    }

    /// Appends `len` bytes of the messages of a call, which `fill` writes. False: there is no room now.
    #[inline]
    pub fn push_data(
        &mut self,
        call: u32,
        ends: bool,
        len: usize,
        fill: impl FnOnce(&mut Payload<'_, Ring>),
    ) -> Result<bool, Corrupt> {
        let head = encode::data(call, ends);
        let is_pushed = self.responses.push_with(from_server::DATA, DATA_HEAD + len, |payload| {
            payload.write(&head);
            fill(payload);
        })?;
        Ok(self.note_pushed(is_pushed))
    }

    /// Appends a frame of another kind. False: there is no room now.
    pub fn push(&mut self, kind: u32, payload: &[u8]) -> Result<bool, Corrupt> {
        let is_pushed = self.responses.push(kind, payload)?;
        Ok(self.note_pushed(is_pushed))
    }

    fn note_pushed(&mut self, is_pushed: bool) -> bool {
        if is_pushed {
            self.events |= bell::FRAMES;
        }
        is_pushed
    }

    /// Whether the client has to be woken for what was done since the last call.
    #[inline]
    pub fn is_bell_due(&mut self) -> bool {
        let events = std::mem::take(&mut self.events);
        events != 0 && bell::is_due(client_bell(&self.segment), events)
    }

    /// The server is about to sleep: the client has to ring for a frame if `wants_frames`, for room if `wants_room`.
    /// False: there is a frame already, or there is room for a whole frame, and the server is awake.
    pub fn park(&mut self, wants_frames: bool, wants_room: bool) -> bool {
        let word = server_bell(&self.segment);
        let event = |wants: bool, event: u64| if wants { event } else { 0 };
        bell::want(word, event(wants_frames, bell::FRAMES) | event(wants_room, bell::ROOM));
        let has_room = || self.responses.has_room(self.data_max() + DATA_HEAD).unwrap_or(true);
        if (wants_frames && self.requests.has_next()) || (wants_room && has_room()) {
            bell::awake(word);
            return false;
        }
        true
    }

    /// The server does not sleep any more.
    pub fn unpark(&mut self) {
        bell::awake(server_bell(&self.segment));
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::RING_BYTES_MIN;
    use super::*;
    use crate::{ClientFrame, from_client};

    fn end() -> (ServerEnd, Producer<Ring>, Consumer<Ring>) {
        let sizes = Sizes { ring_bytes: RING_BYTES_MIN, arena_bytes: 4096 };
        let (end, _) = ServerEnd::create(sizes, b"nereid-ipc/1", Box::new(())).unwrap();
        let (requests, responses) = (end.layout.request_ring(&end.segment), end.layout.response_ring(&end.segment));
        (end, Producer::new(requests), Consumer::new(responses))
    }

    #[test]
    fn it_sleeps_only_where_nothing_is_to_do() {
        let (mut end, mut client, mut reader) = end();
        assert_eq!(
            server_bell(&end.segment).load(std::sync::atomic::Ordering::Relaxed),
            bell::FRAMES,
            "asleep at first"
        );
        assert!(end.park(true, false) && bell::is_due(server_bell(&end.segment), bell::FRAMES));
        assert!(client.push(from_client::DATA, &encode::data(3, true)).unwrap());
        assert!(!end.park(true, false) && !bell::is_due(server_bell(&end.segment), bell::FRAMES), "it is awake");
        let mut payload = Vec::new();
        assert_eq!(end.take(&mut payload), Ok(Some(from_client::DATA)));
        let frame = ClientFrame::read(from_client::DATA, &payload);
        assert_eq!(frame, Ok(ClientFrame::Data { call: 3, ends: true, bytes: b"" }));
        let largest = vec![7; end.data_max()];
        let mut push = || end.push_data(3, false, largest.len(), |payload| payload.write(&largest)).unwrap();
        assert!(push() && push() && !push(), "two of the largest fit");
        assert!(end.park(true, true) && !end.push(from_server::LEAVE, &[0; 8]).unwrap());
        reader.pop(&mut payload).unwrap();
        assert!(!end.park(true, true), "there is room");
    }

    #[test]
    fn the_client_is_woken_for_what_it_wants() {
        let (mut end, mut client, _) = end();
        assert!(end.push(from_server::LEAVE, &[0; 8]).unwrap() && !end.is_bell_due(), "it does not sleep");
        bell::want(client_bell(&end.segment), bell::ROOM);
        assert!(end.push(from_server::LEAVE, &[0; 8]).unwrap() && !end.is_bell_due());
        assert!(client.push(from_client::CANCEL, &[0; 8]).unwrap());
        end.take(&mut Vec::new()).unwrap();
        assert!(end.is_bell_due() && !end.is_bell_due(), "once");
    }

    /// A client that writes random words anywhere: frames are read or refused, and nothing is written outside the
    /// rings.
    #[test]
    fn a_client_that_writes_anything_is_refused() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..if cfg!(miri) { 10 } else { 400 } {
            let (mut end, mut client, _) = end();
            let mut payload = Vec::new();
            for _ in 0..40 {
                let bytes = vec![next() as u8; next() as usize % 200];
                let _ = client.push(next() as u32 % 6, &bytes);
                if next() % 4 == 0 {
                    let words = [512, 640, 768, 896, 1024, 1152, 4096, 4096 + next() as usize % 4096];
                    let value = [next() % 4096, next(), u64::from(u32::MAX), 0][next() as usize % 4];
                    let at = words[next() as usize % words.len()] & !7;
                    assert!(end.segment.write(at, &value.to_le_bytes()));
                }
                match end.take(&mut payload) {
                    Ok(None) => {}
                    Ok(Some(kind)) => match ClientFrame::read(kind, &payload) {
                        Ok(ClientFrame::Route { metadata, .. }) => taken += metadata.count(),
                        Ok(_) => taken += 1,
                        Err(_) => refused += 1,
                    },
                    Err(Corrupt) => refused += 1,
                }
                let _ = end.push_data(1, false, 100, |payload| payload.write(&[1; 100]));
                let _ = (end.is_bell_due(), end.park(next() % 4 != 0, next() % 2 == 0));
            }
        }
        assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
    }
}
