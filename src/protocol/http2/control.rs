//! Frames about the connection itself: SETTINGS, PING, GOAWAY, RST_STREAM, WINDOW_UPDATE (RFC 9113 sections 6.4 to
//! 6.9).

use super::frame::{
    DEFAULT_WINDOW, FrameHead, MAX_31, MAX_MAX_FRAME_SIZE, MIN_MAX_FRAME_SIZE, flag, kind, number, setting,
};
use super::stream::{Gone, Receiving, Stream};
use super::{Connection, ConnectionError, ErrorCode, Handler, ResetCause, Role, StreamId};
use crate::hpack;

/// Comes back when everything that the peer sent before it read our first GOAWAY has arrived.
const SHUTDOWN_PING: [u8; 8] = *b"shutdown";

/// Streams that a client opens before it has read the server's limit. Formally there is none until then, but more would
/// mostly be refused; no server is advised to take fewer than this (section 6.5.2).
const STREAMS_BEFORE_SETTINGS: u32 = 100;

/// Streams whose windows are moved for what one frame without use costs.
const STREAMS_OF_IDLE_FRAME: usize = 16;

/// What a peer of HTTP/1.x, not HTTP/2, can read.
const HTTP1_ANSWER: &[u8] =
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// What the peer announced (section 6.5.2), or the defaults.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerSettings {
    /// They have come.
    pub(super) known: bool,
    pub(super) initial_window_size: u32,
    pub(super) max_frame_size: u32,
    pub(super) max_concurrent_streams: u32,
    pub(super) max_header_list_size: u32,
}

impl Default for PeerSettings {
    fn default() -> PeerSettings {
        PeerSettings {
            known: false,
            initial_window_size: DEFAULT_WINDOW,
            max_frame_size: MIN_MAX_FRAME_SIZE,
            max_concurrent_streams: STREAMS_BEFORE_SETTINGS,
            max_header_list_size: u32::MAX,
        }
    }
}

/// How far our own settings have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnSettings {
    Unsent,
    /// The peer may still act by the defaults.
    Sent,
    Acknowledged,
}

/// How far a connection is on its way to its end (section 6.8). It goes down this list, and may leave some out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Open,
    /// The peer was notified to open no more streams, with this reason; those on their way are still served.
    Warned(&'static str),
    /// Streams above this number are not served.
    Final(u32),
    /// Nothing more is read or served; what is in the output is still sent.
    Failed(ConnectionError),
}

impl ConnectionState {
    pub(super) fn ignores(self, id: u32) -> bool {
        matches!(self, ConnectionState::Final(last) if id > last)
    }
}

impl Connection {
    /// Asks the peer to prove that it is there; the handler gets the payload back.
    pub fn ping(&mut self, payload: [u8; 8]) {
        if self.failure().is_none() {
            let sent = &mut self.counters.pings_sent_since_data;
            *sent = sent.saturating_add(1);
            self.put_frame(FrameHead { length: 8, kind: kind::PING, flags: 0, stream: 0 }, &payload);
        }
    }

    /// Begins to shut down: open streams are served to their end, and so are those that the peer opens before it can
    /// know: it is warned first and gets the real limit one round trip later (section 6.8), also while no stream is
    /// open, because a request may be under way. A peer without a preface yet gets the limit at once. `reason` is the
    /// text of both messages; it may be empty.
    pub fn start_shutdown(&mut self, reason: &'static str) {
        if self.state != ConnectionState::Open {
            return;
        }
        self.state = ConnectionState::Warned(reason);
        if self.role == Role::Client || (self.streams.len() == 0 && !self.is_established()) {
            return self.finish_shutdown();
        }
        self.put_goaway(MAX_31, ErrorCode::NO_ERROR, reason.as_bytes());
        self.ping(SHUTDOWN_PING);
    }

    /// Takes no more streams from here on. Happens by itself one round trip after [`Connection::start_shutdown`]; to be
    /// called when a peer does not answer in time.
    pub fn finish_shutdown(&mut self) {
        let reason = match self.state {
            ConnectionState::Open => "",
            ConnectionState::Warned(reason) => reason,
            ConnectionState::Final(_) | ConnectionState::Failed(_) => return,
        };
        self.state = ConnectionState::Final(self.last_peer_stream);
        self.put_goaway(self.last_peer_stream, ErrorCode::NO_ERROR, reason.as_bytes());
    }

    /// The peer has been notified of the last stream that is served, or never will be.
    pub fn is_shut_down(&self) -> bool {
        matches!(self.state, ConnectionState::Final(_) | ConnectionState::Failed(_))
    }

    /// The last stream is over and everything is sent: the socket may be closed.
    pub fn is_drained(&self) -> bool {
        let is_over = match self.state {
            ConnectionState::Open | ConnectionState::Warned(_) => false,
            ConnectionState::Final(_) => self.streams.len() == 0,
            ConnectionState::Failed(_) => true,
        };
        is_over && self.output.is_empty()
    }

    /// Why the connection ends at once, if it does.
    pub(super) fn failure(&self) -> Option<ConnectionError> {
        match self.state {
            ConnectionState::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Ends the connection at once for a reason outside the codec, such as a ping policy.
    pub fn abort(&mut self, code: ErrorCode, debug: &'static str) {
        if self.failure().is_none() {
            self.end(ConnectionError::Aborted(code), code, debug);
        }
    }

    /// Says goodbye for a mistake of the peer.
    pub(super) fn fail(&mut self, error: ConnectionError) {
        match error {
            ConnectionError::Violation { code, why } => self.end(error, code, why),
            ConnectionError::Http1 => {
                self.state = ConnectionState::Failed(error);
                self.output.put(&self.pool, HTTP1_ANSWER);
            }
            _ => self.state = ConnectionState::Failed(error),
        }
    }

    fn end(&mut self, error: ConnectionError, code: ErrorCode, debug: &'static str) {
        let last = match self.state {
            ConnectionState::Final(last) => last,
            _ => self.last_peer_stream,
        };
        self.put_goaway(last, code, debug.as_bytes());
        self.state = ConnectionState::Failed(error);
        // Whatever memory waits to be sent is let go at once.
        self.streams = super::Streams::new();
        self.turns.ready.clear();
        self.turns.queued = 0;
    }

    fn put_goaway(&mut self, last_stream: u32, code: ErrorCode, debug: &[u8]) {
        // A client whose preface has not come yet is to read SETTINGS before anything else (section 3.4).
        self.greet();
        let mut payload = std::mem::take(&mut self.scratch);
        payload.clear();
        payload.extend_from_slice(&last_stream.to_be_bytes());
        payload.extend_from_slice(&code.0.to_be_bytes());
        payload.extend_from_slice(debug);
        let head = FrameHead { length: payload.len() as u32, kind: kind::GOAWAY, flags: 0, stream: 0 };
        self.put_frame(head, &payload);
        self.scratch = payload;
    }

    /// Sends our SETTINGS, unless they have been sent.
    pub(super) fn greet(&mut self) {
        if self.own_settings == OwnSettings::Unsent {
            self.own_settings = OwnSettings::Sent;
            self.send_settings();
        }
    }

    /// Our SETTINGS, and the rest of the connection's window, which settings do not cover (section 6.9.2).
    fn send_settings(&mut self) {
        let config = self.config;
        let mut settings = vec![
            (setting::INITIAL_WINDOW_SIZE, config.stream_window),
            (setting::MAX_FRAME_SIZE, config.max_frame_size),
            (setting::MAX_HEADER_LIST_SIZE, config.max_header_list_size),
        ];
        match self.role {
            Role::Server => settings.push((setting::MAX_CONCURRENT_STREAMS, config.max_concurrent_streams)),
            Role::Client => settings.push((setting::ENABLE_PUSH, 0)),
        }
        if config.header_table_size as usize != hpack::DEFAULT_TABLE_SIZE {
            settings.push((setting::HEADER_TABLE_SIZE, config.header_table_size));
        }
        let mut payload = Vec::new();
        for (id, value) in settings {
            payload.extend_from_slice(&id.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        let head = FrameHead { length: payload.len() as u32, kind: kind::SETTINGS, flags: 0, stream: 0 };
        self.put_frame(head, &payload);
        let more = config.connection_window - DEFAULT_WINDOW;
        if more > 0 {
            let head = FrameHead { length: 4, kind: kind::WINDOW_UPDATE, flags: 0, stream: 0 };
            self.put_frame(head, &more.to_be_bytes());
        }
    }

    /// What a new stream may receive. A peer that has not acknowledged our settings may use the default window.
    pub(super) fn initial_receive_window(&self) -> i64 {
        let ours = self.config.stream_window;
        i64::from(if self.own_settings == OwnSettings::Acknowledged { ours } else { ours.max(DEFAULT_WINDOW) })
    }

    pub(super) fn handle_settings(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        _handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        if head.has(flag::ACK) {
            return match payload.is_empty() {
                true => self.handle_settings_ack(),
                false => Err(ConnectionError::frame_size("an acknowledgement of SETTINGS is empty")),
            };
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(ConnectionError::frame_size("a setting has six bytes"));
        }
        if !self.peer.known {
            self.peer.known = true;
            self.peer.max_concurrent_streams = u32::MAX;
        }
        let mut initial_window_size = self.peer.initial_window_size;
        for [i0, i1, v0, v1, v2, v3] in settings {
            let value = u32::from_be_bytes([*v0, *v1, *v2, *v3]);
            match u16::from_be_bytes([*i0, *i1]) {
                setting::HEADER_TABLE_SIZE => self.encoder.set_peer_limit(value as usize),
                setting::ENABLE_PUSH if value > 1 || (value == 1 && self.role == Role::Client) => {
                    return Err(ConnectionError::protocol("SETTINGS_ENABLE_PUSH is out of range"));
                }
                setting::MAX_CONCURRENT_STREAMS => self.peer.max_concurrent_streams = value,
                setting::INITIAL_WINDOW_SIZE if value > MAX_31 => {
                    return Err(ConnectionError::flow_control("SETTINGS_INITIAL_WINDOW_SIZE is out of range"));
                }
                setting::INITIAL_WINDOW_SIZE => initial_window_size = value,
                setting::MAX_FRAME_SIZE if !(MIN_MAX_FRAME_SIZE..=MAX_MAX_FRAME_SIZE).contains(&value) => {
                    return Err(ConnectionError::protocol("SETTINGS_MAX_FRAME_SIZE is out of range"));
                }
                setting::MAX_FRAME_SIZE => self.peer.max_frame_size = value,
                setting::MAX_HEADER_LIST_SIZE => self.peer.max_header_list_size = value,
                _ => {}
            }
        }
        self.move_send_windows(initial_window_size)?;
        self.put_frame(FrameHead { length: 0, kind: kind::SETTINGS, flags: flag::ACK, stream: 0 }, b"");
        self.count_reply(super::frame::HEAD_LEN)
    }

    /// A new initial window moves the windows of all open streams, even below zero (section 6.9.2). Once for a frame,
    /// however often it sets the value.
    fn move_send_windows(&mut self, initial: u32) -> Result<(), ConnectionError> {
        let by = i64::from(initial) - i64::from(self.peer.initial_window_size);
        self.peer.initial_window_size = initial;
        if by == 0 {
            return Ok(());
        }
        // A few bytes have all streams walked over: many such frames are a flood.
        for _ in 0..self.streams.len() / STREAMS_OF_IDLE_FRAME {
            self.spend_idle_frame()?;
        }
        for stream in self.streams.iter_mut() {
            stream.send_window += by;
            if stream.send_window > i64::from(MAX_31) {
                return Err(ConnectionError::flow_control("a new initial window overflows a stream's window"));
            }
            if becomes_ready(stream) {
                self.turns.ready.push_back(stream.id);
            }
        }
        Ok(())
    }

    fn handle_settings_ack(&mut self) -> Result<(), ConnectionError> {
        if self.own_settings == OwnSettings::Acknowledged {
            return self.spend_idle_frame();
        }
        self.own_settings = OwnSettings::Acknowledged;
        self.received.decoder.set_limit(self.config.header_table_size as usize);
        let too_much = i64::from(DEFAULT_WINDOW) - i64::from(self.config.stream_window);
        if too_much > 0 {
            self.streams.iter_mut().for_each(|stream| stream.receive_window -= too_much);
        }
        Ok(())
    }

    pub(super) fn handle_ping(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        let Some(payload) = payload.first_chunk::<8>() else { return Ok(()) };
        if !head.has(flag::ACK) {
            self.counters.pings_received += 1;
            let since = &mut self.counters.pings_since_data;
            *since = since.saturating_add(1);
            self.put_frame(FrameHead { length: 8, kind: kind::PING, flags: flag::ACK, stream: 0 }, payload);
            return self.count_reply(super::frame::HEAD_LEN + 8);
        }
        self.spend_idle_frame()?;
        if *payload == SHUTDOWN_PING && matches!(self.state, ConnectionState::Warned(_)) {
            self.finish_shutdown();
        } else {
            handler.pong(*payload);
        }
        Ok(())
    }

    pub(super) fn handle_goaway(&mut self, payload: &[u8], handler: &mut impl Handler) -> Result<(), ConnectionError> {
        self.spend_idle_frame()?;
        let Some((last, rest)) = payload.split_first_chunk::<4>() else { return Ok(()) };
        let Some((code, debug)) = rest.split_first_chunk::<4>() else { return Ok(()) };
        let last = u32::from_be_bytes(*last) & MAX_31;
        self.peer_going_away = true;
        handler.goaway(last, ErrorCode(u32::from_be_bytes(*code)), debug);
        if self.role == Role::Client {
            let mut unseen: Vec<u32> =
                self.streams.iter_mut().map(|stream| stream.id).filter(|id| *id > last).collect();
            unseen.sort_unstable();
            for id in unseen {
                self.remove_stream(id, Gone::ResetByUs);
                handler.reset(StreamId(id), ErrorCode::REFUSED_STREAM, ResetCause::GoingAway);
            }
        }
        Ok(())
    }

    pub(super) fn handle_reset(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        let id = head.stream;
        if self.is_idle(id) {
            return Err(ConnectionError::protocol("RST_STREAM on a stream that nobody opened"));
        }
        self.counters.resets_received += 1;
        if self.streams.get(id).is_none() {
            return self.spend_idle_frame();
        }
        // Opening and resetting streams costs a client nothing and a server work (CVE-2023-44487).
        if self.role == Role::Server && !self.allowances.abnormal_ends.spend() {
            return Err(ConnectionError::flood("too many streams were opened and reset"));
        }
        self.remove_stream(id, Gone::ResetByPeer);
        handler.reset(StreamId(id), ErrorCode(number(payload).unwrap_or_default()), ResetCause::Peer);
        Ok(())
    }

    pub(super) fn handle_window_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        self.spend_idle_frame()?;
        let increment = number(payload).unwrap_or_default() & MAX_31;
        if head.stream == 0 {
            return self.windows.widen(increment);
        }
        if self.is_idle(head.stream) {
            return Err(ConnectionError::protocol("WINDOW_UPDATE on a stream that nobody opened"));
        }
        // The stream may have ended meanwhile (section 6.9).
        let Some(stream) = self.streams.get_mut(head.stream) else { return Ok(()) };
        if increment == 0 {
            let why = "a WINDOW_UPDATE of nothing";
            return self.stream_error(head.stream, ErrorCode::PROTOCOL_ERROR, why, handler);
        }
        stream.send_window += i64::from(increment);
        if stream.send_window > i64::from(MAX_31) {
            let why = "the stream's window overflows";
            return self.stream_error(head.stream, ErrorCode::FLOW_CONTROL_ERROR, why, handler);
        }
        if becomes_ready(stream) {
            self.turns.ready.push_back(head.stream);
        }
        Ok(())
    }

    /// Ends a stream in both directions, and drops what it has not sent. The handler gets no more calls for it.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        let Some(open) = self.streams.get(stream.0) else { return };
        let gone = if open.receiving == Receiving::Ended { Gone::Ended } else { Gone::ResetByUs };
        self.remove_stream(stream.0, gone);
        self.put_reset(stream.0, code);
    }

    fn put_reset(&mut self, id: u32, code: ErrorCode) {
        let head = FrameHead { length: 4, kind: kind::RST_STREAM, flags: 0, stream: id };
        self.put_frame(head, &code.0.to_be_bytes());
    }

    /// A RST_STREAM that the peer caused.
    pub(super) fn reply_reset(&mut self, id: u32, code: ErrorCode) -> Result<(), ConnectionError> {
        self.put_reset(id, code);
        self.count_reply(super::frame::HEAD_LEN + 4)
    }

    /// Counts bytes that a peer makes us send, and that pile up if it does not read.
    pub(super) fn count_reply(&mut self, bytes: usize) -> Result<(), ConnectionError> {
        self.allowances.replies_unsent += bytes;
        match self.allowances.replies_unsent > self.config.control_unsent_max {
            true => Err(ConnectionError::flood("too many frames that want a reply")),
            false => Ok(()),
        }
    }

    /// Replies that are not in the output any more do not count.
    pub(super) fn note_sent_replies(&mut self) {
        self.allowances.replies_unsent = self.allowances.replies_unsent.min(self.output.len());
    }

    /// Counts a frame that moves nothing forward.
    pub(super) fn spend_idle_frame(&mut self) -> Result<(), ConnectionError> {
        match self.allowances.idle_frames.spend() {
            true => Ok(()),
            false => Err(ConnectionError::flood("too many frames that mean nothing")),
        }
    }
}

/// Marks a stream that can send again; true if it has to be put into the list.
fn becomes_ready(stream: &mut Stream) -> bool {
    let becomes = !stream.ready && stream.queued > 0 && stream.send_window > 0;
    stream.ready |= becomes;
    becomes
}
