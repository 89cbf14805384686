//! HTTP/2 (RFC 9113) without a socket: received bytes go in, events and bytes to send come out.
//!
//! One [`Connection`] serves either role, so the load generator and the tests use the same code as the server.
//! Everything a peer can make grow has a bound in [`Config`], and nothing is allocated per request once the connection
//! is warm. Flow-control credit follows what the caller takes, not what arrives: a stream whose bytes pile up behind a
//! busy model is not offered more, and a body that goes straight into its final buffer is offered more as it lands
//! there.
//!
//! The files follow the path of a frame: `receive` cuts the input into frames, `heads`, `data` and `control` give them
//! their meaning, `send` makes frames of our own; `stream`, `headers`, `flow_control` and `budget` hold the state.
//! `prediction` says which frames are likely to come next.

mod budget;
mod config;
mod control;
mod data;
mod error;
mod flow_control;
mod frame;
mod headers;
mod heads;
mod prediction;
mod receive;
mod send;
mod stream;

pub use config::Config;
pub use error::{ConnectionError, SendError};
pub use frame::ErrorCode;
pub use headers::Headers;
pub use prediction::PredictedFrames;
pub use stream::IdHash;

pub use crate::hpack::CachedFields;

use std::collections::VecDeque;

use crate::hpack;
use crate::slow_peers::SlowPeers;
use budget::Allowances;
use control::{ConnectionState, OwnSettings, PeerSettings};
use flow_control::ConnectionWindows;
use heads::HeaderReader;
use nereid_memory::{Gather, Pool, Slice};
use receive::Parser;
use stream::{Gone, Streams};

/// What a client sends first (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream's number on its connection; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u32);

impl StreamId {
    /// The number of a call that came another way than HTTP/2.
    pub fn of_call(number: u32) -> StreamId {
        StreamId(number)
    }

    pub fn get(self) -> u32 {
        self.0
    }
}

/// Receives a connection's events, in the order of the bytes that caused them.
pub trait Handler {
    /// A request's head (server) or a response's (client).
    fn headers(&mut self, stream: StreamId, headers: &Headers, end_stream: bool);

    /// Client: a response with a status of 1xx, before the real one.
    fn informational(&mut self, _stream: StreamId, _headers: &Headers) {}

    /// A piece of the body; empty only if the stream ends with it. Returns how many of the bytes are done with, so that
    /// the peer may send as many again; the caller gives credit for the rest later, by [`Connection::consumed`].
    fn data(&mut self, stream: StreamId, bytes: &[u8], end_stream: bool) -> usize;

    /// Trailers; they end the stream.
    fn trailers(&mut self, stream: StreamId, headers: &Headers);

    /// The stream is gone in both directions, unsent bytes included. Not called for streams that the caller reset, nor
    /// when the connection as a whole fails.
    fn reset(&mut self, stream: StreamId, code: ErrorCode, cause: ResetCause);

    /// The peer is shutting down. Client: later streams were reset with [`ResetCause::GoingAway`]: it has not seen
    /// them.
    fn goaway(&mut self, _last_stream: u32, _code: ErrorCode, _debug: &[u8]) {}

    /// The answer to [`Connection::ping`].
    fn pong(&mut self, _payload: [u8; 8]) {}
}

/// Why a stream was reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetCause {
    Peer,
    /// The peer broke a rule on this stream, and was sent the reset.
    Violation(&'static str),
    GoingAway,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

/// Counts since the connection began, for policies that need a clock and for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub streams: u64,
    pub pings_received: u64,
    /// PINGs since the last HEADERS or DATA in either direction: what gRPC's ping strikes count.
    pub pings_since_data: u32,
    /// PINGs of ours since we last sent HEADERS or DATA.
    pub pings_sent_since_data: u32,
    pub resets_received: u64,
    pub streams_refused: u64,
    /// Receives that brought other frames than [`Connection::predicted`] had announced.
    pub mispredictions: u64,
}

/// The order in which streams send their data.
#[derive(Default)]
struct Turns {
    /// Streams with data to send and a window to send it in.
    ready: VecDeque<u32>,
    /// Bytes in the queues of all streams.
    queued: usize,
}

/// One HTTP/2 connection.
pub struct Connection {
    role: Role,
    config: Config,
    pool: Pool,
    output: Gather,
    parser: Parser,
    encoder: hpack::Encoder,
    received: HeaderReader,
    streams: Streams,
    turns: Turns,
    peer: PeerSettings,
    windows: ConnectionWindows,
    own_settings: OwnSettings,
    /// Server: the highest stream that the peer opened.
    last_peer_stream: u32,
    /// Client: the number of the next stream.
    next_stream: u32,
    state: ConnectionState,
    /// Client: the peer announced that it takes no streams any more.
    peer_going_away: bool,
    allowances: Allowances,
    counters: Counters,
    scratch: Vec<u8>,
    pieces: Vec<Slice>,
}

impl Connection {
    /// The server's side. It sends nothing before the client's preface has come.
    pub fn server(config: Config, pool: Pool) -> Connection {
        Connection::new(Role::Server, config, pool)
    }

    /// The client's side; preface and settings are in its output.
    pub fn client(config: Config, pool: Pool) -> Connection {
        let mut connection = Connection::new(Role::Client, config, pool);
        connection.output.put(&connection.pool, PREFACE);
        connection.greet();
        connection
    }

    fn new(role: Role, config: Config, pool: Pool) -> Connection {
        let config = config.in_range();
        Connection {
            role,
            config,
            pool,
            output: Gather::new(),
            parser: Parser::new(role),
            encoder: hpack::Encoder::new(),
            received: HeaderReader::new(&config),
            streams: Streams::new(),
            turns: Turns::default(),
            peer: PeerSettings::default(),
            windows: ConnectionWindows::new(config.connection_window),
            own_settings: OwnSettings::Unsent,
            last_peer_stream: 0,
            next_stream: 1,
            state: ConnectionState::Open,
            peer_going_away: false,
            allowances: Allowances::new(&config),
            counters: Counters::default(),
            scratch: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// What is to be sent. As much of the streams' data as the windows and [`Config::output_target`] allow is moved
    /// there first, so an empty output means that there is nothing to do until something is received or sent.
    pub fn output(&mut self) -> &mut Gather {
        self.fill_output();
        &mut self.output
    }

    /// Nothing has come or gone for a while: gives back the memory that is kept for what comes next.
    pub fn rest(&mut self) {
        self.output.rest();
        (self.scratch, self.pieces) = (Vec::new(), Vec::new());
        if self.turns.ready.is_empty() {
            self.turns.ready = VecDeque::new();
        }
    }

    /// Bytes of a stream's data that are not yet in the output.
    pub fn unsent(&self, stream: StreamId) -> usize {
        self.streams.get(stream.0).map_or(0, |stream| stream.queued)
    }

    /// Bytes that wait in all, output included.
    pub fn unsent_total(&self) -> usize {
        self.turns.queued + self.output.len()
    }

    /// Streams that are open in one direction at least.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    pub fn is_open(&self, stream: StreamId) -> bool {
        self.streams.get(stream.0).is_some()
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The peer's settings have come and it has acknowledged ours.
    pub fn is_established(&self) -> bool {
        self.own_settings == OwnSettings::Acknowledged && self.peer.known
    }

    /// To be called now and then with the whole seconds that have passed: the allowances for abnormal ends and idle
    /// frames recover. Without it they recover by useful work only.
    pub fn tick(&mut self, seconds: u32) {
        self.allowances.abnormal_ends.earn(self.config.abnormal_ends_per_s.saturating_mul(seconds));
        self.allowances.idle_frames.earn(self.config.idle_frames_per_s.saturating_mul(seconds));
    }

    /// A second has passed: the streams that have waited too long for the peer to make room for them.
    pub fn slow_streams(&mut self, limits: &SlowPeers) -> Vec<StreamId> {
        let mut slow = Vec::new();
        if self.turns.queued == 0 {
            return slow;
        }
        for stream in self.streams.iter_mut() {
            let left = std::mem::take(&mut stream.left);
            if stream.queued == 0 {
                stream.progress.restart();
            } else if stream.progress.second_passed(limits, left) {
                slow.push(StreamId(stream.id));
            }
        }
        slow
    }

    /// Frames that have begun, and whether the last one is half received.
    pub fn frames(&self) -> (u64, bool) {
        let (frames, is_half_received) = self.parser.frames();
        (frames, is_half_received || self.received.block.is_open())
    }

    /// Takes a stream out, with what it has not sent, and gives its untaken bytes back to the connection's window.
    fn remove_stream(&mut self, id: u32, gone: Gone) {
        let Some(stream) = self.streams.get(id) else { return };
        let (queued, ready, untaken) = (stream.queued, stream.ready, stream.untaken);
        self.turns.queued -= queued;
        if ready {
            self.turns.ready.retain(|other| *other != id);
        }
        self.streams.remove(id, gone);
        self.credit_connection(untaken);
    }

    /// Removes the stream if both sides have ended it.
    fn remove_if_over(&mut self, id: u32) {
        if self.streams.get(id).is_some_and(|stream| stream.is_over()) {
            self.remove_stream(id, Gone::Ended);
            self.allowances.abnormal_ends.earn(1);
        }
    }
}

#[cfg(test)]
mod tests;
