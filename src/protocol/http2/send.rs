//! Heads, data and trailers → frames.
//!
//! Data waits in a queue per stream until the windows and the output have room; streams then take turns, a frame each.
//! Large slices are handed on by reference. Trailers that must wait behind data are encoded without the HPACK table,
//! because blocks that use it cannot be overtaken.

use super::frame::{FrameHead, HEAD_LEN, flag, kind};
use super::headers::FIELD_OVERHEAD;
use super::stream::{Finish, Receiving, Sending};
use super::{Connection, ConnectionState, Role, SendError, StreamId};
use crate::hpack::{CachedFields, Encoder};
use nereid_memory::{Gather, Slice};

/// DATA frames are no larger, whatever the peer accepts, so that streams can take turns.
const DATA_FRAME_MAX: u32 = 1 << 20;

/// Longer answers take turns with those of other streams.
const WHOLE_ANSWER_MAX: usize = 64 << 10;

/// What became of a stream's turn.
enum Turn {
    /// It has more to send.
    More,
    /// It waits for its own window.
    Blocked,
    /// It has nothing left.
    Done,
}

impl Connection {
    /// Client: opens a stream with a request's head, pseudo-headers first.
    pub fn open<'a, H>(&mut self, headers: H, end_stream: bool) -> Result<StreamId, SendError>
    where
        H: IntoIterator<Item = (&'a [u8], &'a [u8])> + Clone,
    {
        let id = self.next_stream;
        let over = self.state != ConnectionState::Open || self.peer_going_away;
        if self.role != Role::Client || over || id > super::frame::MAX_31 {
            return Err(SendError::GoingAway);
        }
        if self.streams.len() >= self.peer.max_concurrent_streams as usize {
            return Err(SendError::TooManyStreams);
        }
        self.check_size(headers.clone())?;
        self.next_stream += 2;
        self.counters.streams += 1;
        self.open_stream(id, Receiving::Head, if end_stream { Sending::Ended } else { Sending::Body });
        self.put_head(id, headers, end_stream);
        Ok(StreamId(id))
    }

    /// Sends a response's head (server), interim if its status is 1xx, or trailers (either role), which end the stream.
    /// Pseudo-headers come first; names are lower-case; values have no line breaks. A server that answers before the
    /// request's end follows up with [`Connection::reset`] and NO_ERROR if it does not want the rest.
    pub fn send_headers<'a, H>(&mut self, stream: StreamId, headers: H, end_stream: bool) -> Result<(), SendError>
    where
        H: IntoIterator<Item = (&'a [u8], &'a [u8])> + Clone,
    {
        let id = stream.0;
        let Some(stream) = self.streams.get(id) else { return Err(SendError::Closed) };
        let (sending, queued) = (stream.sending, stream.queued);
        match sending {
            Sending::Head => {
                let interim = is_interim(headers.clone());
                if interim && end_stream {
                    return Err(SendError::OutOfOrder);
                }
                self.check_size(headers.clone())?;
                self.put_head(id, headers, end_stream);
                if !interim {
                    self.set_sending(id, if end_stream { Sending::Ended } else { Sending::Body });
                }
            }
            Sending::Body if !end_stream => return Err(SendError::OutOfOrder),
            Sending::Body => {
                self.check_size(headers.clone())?;
                if queued == 0 {
                    self.put_head(id, headers, true);
                    self.set_sending(id, Sending::Ended);
                } else if let Some(stream) = self.streams.get_mut(id) {
                    Encoder::encode_stateless(headers, &mut stream.trailers);
                    stream.sending = Sending::Finishing(Finish::Trailers);
                }
            }
            Sending::Finishing(_) | Sending::Ended => return Err(SendError::Closed),
        }
        Ok(())
    }

    /// Sends all of `data`, which is empty afterwards even if the stream is closed. Bounded by the caller, who looks at
    /// [`Connection::unsent`].
    pub fn send_data(&mut self, stream: StreamId, data: &mut Gather, end_stream: bool) -> Result<(), SendError> {
        if !end_stream && self.send_at_once(stream.0, data) {
            return Ok(());
        }
        let mut pieces = std::mem::take(&mut self.pieces);
        data.take(usize::MAX, &mut pieces);
        let allowed = self.may_send_data(stream.0);
        if allowed.is_ok() {
            self.queue_pieces(stream.0, pieces.drain(..));
            self.queued_data(stream.0, end_stream);
        }
        pieces.clear();
        self.pieces = pieces;
        allowed
    }

    /// Answers a request as a whole where nothing stands in the way: a response's head, all of `data`, and trailers.
    /// False, with nothing sent, where something does: then the long way sends the same. Both lists hold what their
    /// places require, and the head is not interim.
    pub fn answer(
        &mut self,
        stream: StreamId,
        head: &mut CachedFields,
        data: &mut Gather,
        trailers: &mut CachedFields,
    ) -> bool {
        let (id, n) = (stream.0, data.len());
        let Some(stream) = self.streams.get(id) else { return false };
        let room = stream.send_window.min(self.windows.send).min(i64::from(self.peer.max_frame_size));
        let is_free = stream.sending == Sending::Head
            && stream.queued == 0
            && n <= WHOLE_ANSWER_MAX
            && n as i64 <= room
            && self.output.len() < self.config.output_target
            && self.turns.ready.is_empty()
            && head.size().max(trailers.size()) <= self.peer.max_header_list_size as usize;
        if !is_free {
            return false;
        }
        let frame = FrameHead { length: n as u32, kind: kind::DATA, flags: 0, stream: id };
        if let Some(stream) = self.streams.get_mut(id) {
            stream.send_window -= n as i64;
        }
        self.count_data(n);
        let max = self.peer.max_frame_size as usize;
        match (self.encoder.cached_block(head), self.encoder.cached_block(trailers)) {
            (Some(head), Some(trailers)) if head.len().max(trailers.len()) <= max => {
                let block_of = |block: &[u8], flags| {
                    let flags = flags | flag::END_HEADERS;
                    FrameHead { length: block.len() as u32, kind: kind::HEADERS, flags, stream: id }.bytes()
                };
                let (first, last) = (block_of(head, 0), block_of(trailers, flag::END_STREAM));
                self.output.put_all(&self.pool, &[&first, head, &frame.bytes()]);
                self.output.push_all(&self.pool, data);
                self.output.put_all(&self.pool, &[&last, trailers]);
            }
            _ => {
                self.put_cached(id, head, false);
                self.output.put(&self.pool, &frame.bytes());
                self.output.push_all(&self.pool, data);
                self.put_cached(id, trailers, true);
            }
        }
        self.set_sending(id, Sending::Ended);
        true
    }

    /// Sends data that fits into one frame and need not wait for anything; false if it has to take its turn.
    fn send_at_once(&mut self, id: u32, data: &mut Gather) -> bool {
        let n = data.len();
        let Some(stream) = self.streams.get_mut(id) else { return false };
        let room = stream.send_window.min(self.windows.send).min(i64::from(self.peer.max_frame_size));
        let is_free = stream.sending == Sending::Body
            && stream.queued == 0
            && n > 0
            && n <= WHOLE_ANSWER_MAX
            && n as i64 <= room
            && self.output.len() < self.config.output_target
            && self.turns.ready.is_empty();
        if !is_free {
            return false;
        }
        stream.send_window -= n as i64;
        let frame = FrameHead { length: n as u32, kind: kind::DATA, flags: 0, stream: id };
        self.count_data(n);
        self.output.put(&self.pool, &frame.bytes());
        self.output.push_all(&self.pool, data);
        true
    }

    /// Charges data to the connection's window, and notes that there was some.
    fn count_data(&mut self, len: usize) {
        self.windows.send -= len as i64;
        self.counters.pings_since_data = 0;
        self.counters.pings_sent_since_data = 0;
        self.allowances.idle_frames.earn(4 + (len / 256) as u32);
    }

    /// Puts a short block, perhaps from memory, into a frame of its own.
    fn put_cached(&mut self, id: u32, cached: &mut CachedFields, end_stream: bool) {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        frame.extend_from_slice(&[0; HEAD_LEN]);
        self.encoder.encode_cached(cached, &mut frame);
        self.counters.pings_since_data = 0;
        self.counters.pings_sent_since_data = 0;
        self.put_block(id, &mut frame, end_stream);
        self.scratch = frame;
    }

    fn queue_pieces(&mut self, id: u32, pieces: impl Iterator<Item = Slice>) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            stream.queued += piece.len();
            self.turns.queued += piece.len();
            stream.queue.push_back(piece);
        }
    }

    /// Sends a copy of `bytes`: the cheapest way for a small message, which goes straight into the output.
    pub fn send_bytes(&mut self, stream: StreamId, bytes: &[u8], end_stream: bool) -> Result<(), SendError> {
        let id = stream.0;
        self.may_send_data(id)?;
        let Some(stream) = self.streams.get_mut(id) else { return Err(SendError::Closed) };
        let room =
            stream.send_window.min(self.windows.send).min(i64::from(self.peer.max_frame_size.min(DATA_FRAME_MAX)));
        let at_once =
            stream.queued == 0 && self.turns.ready.is_empty() && self.output.len() < self.config.output_target;
        if at_once && !bytes.is_empty() && i64::try_from(bytes.len()).is_ok_and(|len| len <= room) {
            stream.send_window -= bytes.len() as i64;
            self.put_data_head(id, bytes.len(), end_stream);
            self.output.put(&self.pool, bytes);
            if end_stream {
                self.set_sending(id, Sending::Ended);
            }
            return Ok(());
        }
        let mut block = self.pool.get_anyway(bytes.len());
        block.copy_from_slice(bytes);
        self.queue_pieces(id, std::iter::once(block.freeze()));
        self.queued_data(id, end_stream);
        Ok(())
    }

    fn may_send_data(&self, id: u32) -> Result<(), SendError> {
        match self.streams.get(id).map(|stream| stream.sending) {
            Some(Sending::Body) => Ok(()),
            Some(Sending::Head) => Err(SendError::OutOfOrder),
            _ => Err(SendError::Closed),
        }
    }

    /// Something may have come into a stream's queue, and the end behind it.
    fn queued_data(&mut self, id: u32, end_stream: bool) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        if stream.queued == 0 {
            if end_stream {
                self.put_data_head(id, 0, true);
                self.set_sending(id, Sending::Ended);
            }
            return;
        }
        if end_stream {
            stream.sending = Sending::Finishing(Finish::Data);
        }
        if !stream.ready && stream.send_window > 0 {
            stream.ready = true;
            self.turns.ready.push_back(id);
        }
        self.fill_output();
    }

    /// Lets streams take turns while the output and the connection's window have room.
    pub(super) fn fill_output(&mut self) {
        while self.output.len() < self.config.output_target && self.windows.send > 0 {
            let Some(id) = self.turns.ready.pop_front() else { return };
            match self.send_frame(id) {
                Turn::More => self.turns.ready.push_back(id),
                Turn::Blocked | Turn::Done => {}
            }
        }
    }

    /// Sends one DATA frame of a stream that stands in no list.
    fn send_frame(&mut self, id: u32) -> Turn {
        let Some(stream) = self.streams.get_mut(id) else { return Turn::Done };
        let room =
            stream.send_window.min(self.windows.send).min(i64::from(self.peer.max_frame_size.min(DATA_FRAME_MAX)));
        let n = stream.queued.min(usize::try_from(room).unwrap_or(0));
        if n == 0 {
            stream.ready = false;
            return Turn::Blocked;
        }
        stream.send_window -= n as i64;
        stream.queued -= n;
        stream.left += n as u64;
        self.turns.queued -= n;
        let last = stream.queued == 0;
        let (blocked, sending) = (stream.send_window <= 0, stream.sending);
        stream.ready = !last && !blocked;
        self.put_data_head(id, n, last && sending == Sending::Finishing(Finish::Data));
        self.move_queued(id, n);
        match (last, sending) {
            (true, Sending::Finishing(Finish::Data)) => self.set_sending(id, Sending::Ended),
            (true, Sending::Finishing(Finish::Trailers)) => {
                self.put_waiting_trailers(id);
                self.set_sending(id, Sending::Ended);
            }
            _ => {}
        }
        match (last, blocked) {
            (true, _) => Turn::Done,
            (_, true) => Turn::Blocked,
            _ => Turn::More,
        }
    }

    /// Moves the first `n` bytes of a stream's queue to the output.
    fn move_queued(&mut self, id: u32, mut n: usize) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        while n > 0 {
            let Some(mut piece) = stream.queue.pop_front() else { return };
            if piece.len() > n {
                self.output.push(&self.pool, piece.window(0..n));
                piece.advance(n);
                stream.queue.push_front(piece);
                return;
            }
            n -= piece.len();
            self.output.push(&self.pool, piece);
        }
    }

    fn put_data_head(&mut self, id: u32, len: usize, end_stream: bool) {
        self.count_data(len);
        let flags = if end_stream { flag::END_STREAM } else { 0 };
        self.put_frame(FrameHead { length: len as u32, kind: kind::DATA, flags, stream: id }, b"");
    }

    fn set_sending(&mut self, id: u32, sending: Sending) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.sending = sending;
        }
        if sending == Sending::Ended {
            self.remove_if_over(id);
        }
    }

    /// The peer's SETTINGS_MAX_HEADER_LIST_SIZE.
    fn check_size<'a>(&self, headers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<(), SendError> {
        let limit = self.peer.max_header_list_size;
        if limit == u32::MAX {
            return Ok(());
        }
        let size = headers.into_iter().map(|(name, value)| name.len() + value.len() + FIELD_OVERHEAD).sum();
        let limit = limit as usize;
        if size > limit { Err(SendError::HeaderListTooLarge { size, limit }) } else { Ok(()) }
    }

    /// Encodes a head and puts it into the output.
    pub(super) fn put_head<'a>(
        &mut self,
        id: u32,
        headers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        end_stream: bool,
    ) {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        frame.resize(HEAD_LEN, 0);
        self.encoder.encode(headers, &mut frame);
        self.counters.pings_since_data = 0;
        self.counters.pings_sent_since_data = 0;
        self.put_block(id, &mut frame, end_stream);
        self.scratch = frame;
    }

    fn put_waiting_trailers(&mut self, id: u32) {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        frame.resize(HEAD_LEN, 0);
        self.encoder.begin(&mut frame);
        if let Some(stream) = self.streams.get(id) {
            frame.extend_from_slice(&stream.trailers);
        }
        self.put_block(id, &mut frame, true);
        self.scratch = frame;
    }

    /// Puts a block, which stands behind room for a frame's head, into as many frames as the peer's limit requires.
    fn put_block(&mut self, id: u32, frame: &mut Vec<u8>, end_stream: bool) {
        let max = self.peer.max_frame_size as usize;
        let first = (frame.len() - HEAD_LEN).min(max);
        let end = HEAD_LEN + first;
        let whole = end == frame.len();
        let flags = if end_stream { flag::END_STREAM } else { 0 } | if whole { flag::END_HEADERS } else { 0 };
        let head = FrameHead { length: first as u32, kind: kind::HEADERS, flags, stream: id };
        frame[..HEAD_LEN].copy_from_slice(&head.bytes());
        self.output.put(&self.pool, &frame[..end]);
        if whole {
            return;
        }
        let mut rest = frame[end..].chunks(max).peekable();
        while let Some(fragment) = rest.next() {
            let flags = if rest.peek().is_none() { flag::END_HEADERS } else { 0 };
            let head = FrameHead { length: fragment.len() as u32, kind: kind::CONTINUATION, flags, stream: id };
            self.put_frame(head, fragment);
        }
        frame.truncate(HEAD_LEN);
        frame.shrink_to(16 << 10);
    }

    pub(super) fn put_frame(&mut self, head: FrameHead, payload: &[u8]) {
        self.output.put(&self.pool, &head.bytes());
        self.output.put(&self.pool, payload);
    }
}

fn is_interim<'a>(headers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> bool {
    matches!(headers.into_iter().next(), Some((b":status", [b'1', _, _])))
}
