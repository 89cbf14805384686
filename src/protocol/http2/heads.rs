//! HEADERS and CONTINUATION (RFC 9113 sections 6.2, 6.10 and 8): blocks are assembled, decoded and given their meaning.
//!
//! Every block is decoded, whatever becomes of its stream: the two HPACK tables must stay in step.

use super::control::OwnSettings;
use super::frame::{FrameHead, flag, kind, number};
use super::stream::{Gone, Receiving, Sending};
use super::{Config, Connection, ConnectionError, ErrorCode, Handler, Headers, ResetCause, Role, StreamId};
use crate::hpack;

/// Reads header blocks.
pub(super) struct HeaderReader {
    pub(super) decoder: hpack::Decoder,
    /// The block that is being assembled.
    pub(super) block: HeaderBlock,
    /// The list that was decoded last.
    headers: Headers,
}

impl HeaderReader {
    pub(super) fn new(config: &Config) -> HeaderReader {
        let mut decoder = hpack::Decoder::new();
        // Smaller limits hold from the acknowledgement on, larger ones may be used as soon as they are read.
        decoder.set_limit(hpack::DEFAULT_TABLE_SIZE.max(config.header_table_size as usize));
        let headers = Headers::new(config.max_header_list_size as usize, config.repeated_block_max);
        HeaderReader { decoder, block: HeaderBlock::default(), headers }
    }
}

/// A block that is spread over several frames.
#[derive(Default)]
pub(super) struct HeaderBlock {
    /// 0 unless CONTINUATION is due.
    stream: u32,
    end_stream: bool,
    /// The priority in front of the block made the stream depend on itself.
    self_dependent: bool,
    bytes: Vec<u8>,
    continuations: u32,
}

impl HeaderBlock {
    /// The rest of a block is due.
    pub(super) fn is_open(&self) -> bool {
        self.stream != 0
    }
}

/// What the block belongs to.
#[derive(Clone, Copy)]
struct Message {
    stream: u32,
    end_stream: bool,
    self_dependent: bool,
}

impl Connection {
    /// Nothing may come between the frames of a block, and a block has a bound.
    pub(super) fn check_continuation(&self, head: FrameHead) -> Result<(), ConnectionError> {
        let continues = head.kind == kind::CONTINUATION;
        if continues != (self.received.block.stream != 0) || (continues && head.stream != self.received.block.stream) {
            return Err(ConnectionError::protocol("CONTINUATION is missing or out of place"));
        }
        if continues || head.kind == kind::HEADERS {
            let all = self.received.block.bytes.len().saturating_add(head.length as usize);
            if all > self.config.header_block_max()
                || self.received.block.continuations >= self.config.continuations_max
            {
                return Err(ConnectionError::flood("a header block without end"));
            }
        }
        Ok(())
    }

    pub(super) fn handle_headers(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        let (fragment, dependency) = strip(head, payload)?;
        let message = Message {
            stream: head.stream,
            end_stream: head.has(flag::END_STREAM),
            self_dependent: dependency == Some(head.stream),
        };
        if head.has(flag::END_HEADERS) {
            return self.handle_block(message, fragment, handler);
        }
        self.received.block.stream = head.stream;
        self.received.block.end_stream = message.end_stream;
        self.received.block.self_dependent = message.self_dependent;
        self.received.block.continuations = 0;
        self.received.block.bytes.clear();
        self.received.block.bytes.extend_from_slice(fragment);
        Ok(())
    }

    pub(super) fn handle_continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        self.received.block.bytes.extend_from_slice(payload);
        self.received.block.continuations += 1;
        if !head.has(flag::END_HEADERS) {
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.received.block.bytes);
        let message = Message {
            stream: self.received.block.stream,
            end_stream: self.received.block.end_stream,
            self_dependent: self.received.block.self_dependent,
        };
        self.received.block.stream = 0;
        let handled = self.handle_block(message, &bytes, handler);
        bytes.clear();
        bytes.shrink_to(16 << 10);
        self.received.block.bytes = bytes;
        self.received.block.continuations = 0;
        handled
    }

    fn handle_block(
        &mut self,
        message: Message,
        block: &[u8],
        handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        if let Err(error) = self.received.headers.decode(&mut self.received.decoder, block) {
            return Err(compression(error));
        }
        if self.received.headers.is_too_large() {
            self.received.decoder.shrink();
        }
        self.counters.pings_since_data = 0;
        match (self.streams.get(message.stream).map(|stream| stream.receiving), self.role) {
            (Some(Receiving::Body), _) => self.handle_trailers(message, handler),
            (Some(Receiving::Head), _) => self.handle_response(message, handler),
            (Some(Receiving::Ended), _) => {
                self.stream_error(message.stream, ErrorCode::STREAM_CLOSED, "HEADERS behind the end", handler)
            }
            (None, Role::Server) if message.stream > self.last_peer_stream => self.handle_request(message, handler),
            (None, _) => self.handle_late_headers(message),
        }
    }

    /// HEADERS that open a stream.
    fn handle_request(&mut self, message: Message, handler: &mut impl Handler) -> Result<(), ConnectionError> {
        let id = message.stream;
        if id.is_multiple_of(2) {
            return Err(ConnectionError::protocol("a client opened a stream with an even number"));
        }
        self.last_peer_stream = id;
        if self.state.ignores(id) {
            self.streams.remember(id, Gone::ResetByUs);
            return Ok(());
        }
        self.counters.streams += 1;
        if self.streams.len() >= self.config.max_concurrent_streams as usize {
            return self.refuse(message);
        }
        if self.received.headers.is_too_large() {
            return self.answer_too_large(message);
        }
        let fault = match self.received.headers.check_request() {
            Err(why) => Some(why),
            Ok(()) if message.self_dependent => Some("a stream depends on itself"),
            Ok(()) if message.end_stream && self.received.headers.content_length().is_some_and(|length| length > 0) => {
                Some("a body is shorter than content-length")
            }
            Ok(()) => None,
        };
        if fault.is_some() {
            return self.reject(message, ErrorCode::PROTOCOL_ERROR);
        }
        let receiving = if message.end_stream { Receiving::Ended } else { Receiving::Body };
        self.open_stream(id, receiving, Sending::Head);
        if let Some(stream) = self.streams.get_mut(id) {
            stream.content_left = self.received.headers.content_length();
        }
        self.allowances.idle_frames.earn(4);
        handler.headers(StreamId(id), &self.received.headers, message.end_stream);
        Ok(())
    }

    pub(super) fn open_stream(&mut self, id: u32, receiving: Receiving, sending: Sending) {
        let receive_window = self.initial_receive_window();
        let send_window = i64::from(self.peer.initial_window_size);
        let stream = self.streams.insert(id);
        stream.receiving = receiving;
        stream.sending = sending;
        stream.send_window = send_window;
        stream.receive_window = receive_window;
    }

    /// Client: HEADERS before any DATA of the response.
    fn handle_response(&mut self, message: Message, handler: &mut impl Handler) -> Result<(), ConnectionError> {
        let id = message.stream;
        if self.received.headers.is_too_large() {
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, "a header list is too large", handler);
        }
        let status = match self.received.headers.check_response() {
            Ok(status) => status,
            Err(why) => return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, why, handler),
        };
        if message.self_dependent {
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, "a stream depends on itself", handler);
        }
        if status < 200 {
            if message.end_stream {
                return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, "an interim response ends", handler);
            }
            self.spend_idle_frame()?;
            handler.informational(StreamId(id), &self.received.headers);
            return Ok(());
        }
        if let Some(stream) = self.streams.get_mut(id) {
            // Without a body, content-length may describe what HEAD or 304 left out (RFC 9110 section 8.6).
            stream.content_left = if message.end_stream { None } else { self.received.headers.content_length() };
            stream.receiving = if message.end_stream { Receiving::Ended } else { Receiving::Body };
        }
        self.allowances.idle_frames.earn(4);
        handler.headers(StreamId(id), &self.received.headers, message.end_stream);
        self.remove_if_over(id);
        Ok(())
    }

    fn handle_trailers(&mut self, message: Message, handler: &mut impl Handler) -> Result<(), ConnectionError> {
        let id = message.stream;
        let missing = self.streams.get(id).and_then(|stream| stream.content_left).is_some_and(|left| left > 0);
        let fault = match self.received.headers.check_trailers() {
            _ if !message.end_stream => Some("trailers do not end their stream"),
            _ if self.received.headers.is_too_large() => Some("trailers are too large"),
            _ if message.self_dependent => Some("a stream depends on itself"),
            Err(why) => Some(why),
            Ok(()) if missing => Some("a body is shorter than content-length"),
            Ok(()) => None,
        };
        if let Some(why) = fault {
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, why, handler);
        }
        if let Some(stream) = self.streams.get_mut(id) {
            stream.receiving = Receiving::Ended;
        }
        self.allowances.idle_frames.earn(4);
        handler.trailers(StreamId(id), &self.received.headers);
        self.remove_if_over(id);
        Ok(())
    }

    /// HEADERS on a stream that is not open any more, or never was.
    fn handle_late_headers(&mut self, message: Message) -> Result<(), ConnectionError> {
        if self.is_idle(message.stream) {
            return Err(ConnectionError::protocol("HEADERS on a stream that nobody opened"));
        }
        match self.streams.gone(message.stream) {
            // They crossed our reset (section 5.1).
            Gone::ResetByUs => self.spend_idle_frame(),
            Gone::ResetByPeer => {
                self.spend_idle_frame()?;
                self.reply_reset(message.stream, ErrorCode::STREAM_CLOSED)
            }
            Gone::Ended => Err(ConnectionError::closed("HEADERS on a stream that both sides ended")),
            // Numbers must ascend (section 5.1.1); an old stream cannot be distinguished from one that was skipped.
            Gone::Forgotten => Err(ConnectionError::protocol("HEADERS with a number below the last")),
        }
    }

    /// True if the stream was never opened by the side that opens streams of that parity.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        match self.role {
            Role::Server => id.is_multiple_of(2) || id > self.last_peer_stream,
            Role::Client => id.is_multiple_of(2) || id >= self.next_stream,
        }
    }

    /// Section 5.1.2. Before it has read our limit, a peer may exceed it in good faith.
    fn refuse(&mut self, message: Message) -> Result<(), ConnectionError> {
        self.counters.streams_refused += 1;
        if self.own_settings == OwnSettings::Acknowledged && !self.allowances.abnormal_ends.spend() {
            return Err(ConnectionError::flood("too many refused streams"));
        }
        if !message.end_stream {
            self.streams.remember(message.stream, Gone::ResetByUs);
        }
        self.reply_reset(message.stream, ErrorCode::REFUSED_STREAM)
    }

    /// Resets a stream that the handler never saw.
    fn reject(&mut self, message: Message, code: ErrorCode) -> Result<(), ConnectionError> {
        if !self.allowances.abnormal_ends.spend() {
            return Err(ConnectionError::flood("too many malformed requests"));
        }
        self.streams.remember(message.stream, Gone::ResetByUs);
        self.reply_reset(message.stream, code)
    }

    /// Answers 431 in place of whoever would have served the request (section 10.5.1).
    fn answer_too_large(&mut self, message: Message) -> Result<(), ConnectionError> {
        if !self.allowances.abnormal_ends.spend() {
            return Err(ConnectionError::flood("too many header lists that are too large"));
        }
        let before = self.output.len();
        self.put_head(message.stream, [(&b":status"[..], &b"431"[..])], true);
        self.count_reply(self.output.len().saturating_sub(before))?;
        self.streams.remember(message.stream, Gone::ResetByUs);
        match message.end_stream {
            true => Ok(()),
            // Asks for the rest of the body not to be sent (section 8.1).
            false => self.reply_reset(message.stream, ErrorCode::NO_ERROR),
        }
    }

    pub(super) fn handle_priority(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        self.spend_idle_frame()?;
        match number(payload).map(|dependency| dependency & super::frame::MAX_31) {
            Some(dependency) if dependency == head.stream => {
                self.stream_error(head.stream, ErrorCode::PROTOCOL_ERROR, "a stream depends on itself", handler)
            }
            _ => Ok(()),
        }
    }

    /// Resets a stream for a mistake of the peer, and notifies the handler if it has the stream.
    pub(super) fn stream_error(
        &mut self,
        id: u32,
        code: ErrorCode,
        why: &'static str,
        handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        if self.is_idle(id) {
            return Err(ConnectionError::Violation { code, why });
        }
        if self.streams.get(id).is_none() {
            self.spend_idle_frame()?;
            return self.reply_reset(id, code);
        }
        if !self.allowances.abnormal_ends.spend() {
            return Err(ConnectionError::flood("too many stream errors"));
        }
        self.remove_stream(id, Gone::ResetByUs);
        self.reply_reset(id, code)?;
        handler.reset(StreamId(id), code, ResetCause::Violation(why));
        Ok(())
    }
}

fn compression(error: crate::hpack::Error) -> ConnectionError {
    use crate::hpack::Error;
    let why = match error {
        Error::Truncated => "header block ends inside a field",
        Error::IntegerOverflow => "integer in header block is too large",
        Error::UnknownIndex => "header block names an unknown index",
        Error::Huffman => "string in header block is not a valid Huffman code",
        Error::TableSize => "table size update exceeds the announced limit",
        Error::TableSizePlace => "table size update is missing or out of place",
    };
    ConnectionError::Violation { code: ErrorCode::COMPRESSION_ERROR, why }
}

/// The fragment of a HEADERS frame without padding and priority, and the stream that it depends on.
fn strip(head: FrameHead, mut payload: &[u8]) -> Result<(&[u8], Option<u32>), ConnectionError> {
    let mut padding = 0;
    if head.has(flag::PADDED) {
        let Some((first, rest)) = payload.split_first() else {
            return Err(ConnectionError::frame_size("HEADERS without its pad length"));
        };
        (padding, payload) = (usize::from(*first), rest);
    }
    let mut dependency = None;
    if head.has(flag::PRIORITY) {
        let (Some(first), Some(rest)) = (number(payload), payload.get(5..)) else {
            return Err(ConnectionError::frame_size("HEADERS without its priority"));
        };
        dependency = Some(first & super::frame::MAX_31);
        payload = rest;
    }
    let Some(end) = payload.len().checked_sub(padding) else {
        return Err(ConnectionError::protocol("padding is longer than HEADERS"));
    };
    Ok((payload.get(..end).unwrap_or_default(), dependency))
}
