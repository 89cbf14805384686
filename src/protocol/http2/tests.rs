//! Scripted peers, foreign peers, cut and damaged input.

mod accounts;
mod cuts;
mod flow;
mod foreign;
mod limits;
mod rules;

use super::frame::{FrameHead, flag, kind, setting};
use super::*;

pub(super) fn pool() -> Pool {
    Pool::new(1 << 30)
}

/// An event, owned. Adjacent pieces of one body are one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    Headers { stream: StreamId, fields: Vec<(String, String)>, end: bool },
    Informational { stream: StreamId, status: String },
    Data { stream: StreamId, bytes: Vec<u8>, end: bool },
    Trailers { stream: StreamId, fields: Vec<(String, String)> },
    Reset { stream: StreamId, code: ErrorCode, by_peer: bool },
    Goaway { last: u32, code: ErrorCode },
    Pong([u8; 8]),
}

/// Writes down what happens.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) events: Vec<Event>,
    /// Leave credit to the test.
    pub(super) hold: bool,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn owned(headers: &Headers) -> Vec<(String, String)> {
    let pseudo = [
        (":method", headers.method()),
        (":scheme", headers.scheme()),
        (":path", headers.path()),
        (":authority", headers.authority()),
        (":status", headers.status()),
    ];
    let pseudo = pseudo.into_iter().filter_map(|(name, value)| Some((name.to_string(), text(value?))));
    pseudo.chain(headers.iter().map(|(name, value)| (text(name), text(value)))).collect()
}

impl Handler for Recorder {
    fn headers(&mut self, stream: StreamId, headers: &Headers, end: bool) {
        self.events.push(Event::Headers { stream, fields: owned(headers), end });
    }

    fn informational(&mut self, stream: StreamId, headers: &Headers) {
        let status = text(headers.status().unwrap());
        self.events.push(Event::Informational { stream, status });
    }

    fn data(&mut self, stream: StreamId, bytes: &[u8], end: bool) -> usize {
        assert!(end || !bytes.is_empty());
        let taken = if self.hold { 0 } else { bytes.len() };
        if let Some(Event::Data { stream: before, bytes: all, end: ended @ false }) = self.events.last_mut()
            && *before == stream
        {
            all.extend_from_slice(bytes);
            *ended = end;
        } else {
            self.events.push(Event::Data { stream, bytes: bytes.to_vec(), end });
        }
        taken
    }

    fn trailers(&mut self, stream: StreamId, headers: &Headers) {
        self.events.push(Event::Trailers { stream, fields: owned(headers) });
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode, cause: ResetCause) {
        self.events.push(Event::Reset { stream, code, by_peer: cause == ResetCause::Peer });
    }

    fn goaway(&mut self, last: u32, code: ErrorCode, _debug: &[u8]) {
        self.events.push(Event::Goaway { last, code });
    }

    fn pong(&mut self, payload: [u8; 8]) {
        self.events.push(Event::Pong(payload));
    }
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = FrameHead { length: payload.len() as u32, kind, flags, stream }.bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

pub(super) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in values {
        payload.extend(id.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    frame(kind::SETTINGS, 0, 0, &payload)
}

/// POST http /a, without authority: all from the static table but the path.
pub(super) const REQUEST: &[u8] = &[0x83, 0x86, 0x04, 2, b'/', b'a'];

pub(super) fn request(stream: u32, end: bool) -> Vec<u8> {
    let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
    frame(kind::HEADERS, flags, stream, REQUEST)
}

/// A scripted peer's other side: a connection that has been greeted, and what it recorded.
pub(super) struct Script {
    pub(super) connection: Connection,
    pub(super) recorder: Recorder,
}

impl Script {
    /// A server whose client said hello and acknowledged its settings.
    pub(super) fn server(config: Config) -> Script {
        let mut script = Script { connection: Connection::server(config, pool()), recorder: Recorder::default() };
        let hello = [PREFACE, &settings(&[]), &frame(kind::SETTINGS, flag::ACK, 0, b"")].concat();
        script.feed(&hello).unwrap();
        script.sent();
        script
    }

    /// A client whose server said hello and acknowledged its settings.
    pub(super) fn client(config: Config) -> Script {
        let mut script = Script { connection: Connection::client(config, pool()), recorder: Recorder::default() };
        script.feed(&[settings(&[]), frame(kind::SETTINGS, flag::ACK, 0, b"")].concat()).unwrap();
        script.sent();
        script
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.connection.receive(bytes, &mut self.recorder)
    }

    /// Frames that the connection wants to send.
    pub(super) fn sent(&mut self) -> Vec<(FrameHead, Vec<u8>)> {
        frames(&take(&mut self.connection))
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.recorder.events)
    }

    /// Feeds bytes that must end the connection and checks what is said about it.
    #[track_caller]
    pub(super) fn fails(&mut self, bytes: &[u8], code: ErrorCode) {
        match self.feed(bytes) {
            Err(ConnectionError::Violation { code: found, .. }) => assert_eq!(found, code),
            other => panic!("{code} was expected, not {other:?}"),
        }
        let (head, payload) = self.sent().pop().unwrap();
        assert_eq!((head.kind, &payload[4..8]), (kind::GOAWAY, &code.0.to_be_bytes()[..]));
        assert!(self.feed(b"more").is_err(), "a failed connection stays failed");
    }

    /// Feeds bytes that must reset a stream but leave the connection alone.
    #[track_caller]
    pub(super) fn resets(&mut self, bytes: &[u8], stream: u32, code: ErrorCode) {
        self.feed(bytes).unwrap();
        let sent = self.sent();
        let wanted = (FrameHead { length: 4, kind: kind::RST_STREAM, flags: 0, stream }, code.0.to_be_bytes().to_vec());
        assert!(sent.contains(&wanted), "{code} on {stream} was expected, not {sent:?}");
        assert!(!self.connection.is_open(StreamId(stream)));
    }
}

pub(super) fn take(connection: &mut Connection) -> Vec<u8> {
    let mut all = Vec::new();
    while !connection.output().is_empty() {
        all.extend(connection.output().to_vec());
        connection.output().clear();
    }
    all
}

/// Cuts bytes into frames, a client's preface left out.
#[track_caller]
pub(super) fn frames(bytes: &[u8]) -> Vec<(FrameHead, Vec<u8>)> {
    let mut bytes = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let head = FrameHead::parse(*head);
        let (payload, rest) = rest.split_at(head.length as usize);
        all.push((head, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "half a frame");
    all
}

pub(super) const HEAD: [(&[u8], &[u8]); 2] = [(b":status", b"200"), (b"content-type", b"application/grpc")];
pub(super) const TRAILERS: [(&[u8], &[u8]); 1] = [(b"grpc-status", b"0")];
pub(super) const CALL: [(&[u8], &[u8]); 5] =
    [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/m"), (b":authority", b"host"), (b"te", b"trailers")];

#[test]
fn our_client_and_our_server_understand_each_other() {
    let mut client =
        Script { connection: Connection::client(Config::default(), pool()), recorder: Recorder::default() };
    let mut server =
        Script { connection: Connection::server(Config::default(), pool()), recorder: Recorder::default() };
    let exchange = |client: &mut Script, server: &mut Script| {
        for _ in 0..4 {
            let bytes = take(&mut client.connection);
            server.feed(&bytes).unwrap();
            let bytes = take(&mut server.connection);
            client.feed(&bytes).unwrap();
        }
    };
    for round in 0..3u32 {
        let call = client.connection.open(CALL, false).unwrap();
        assert_eq!(call.get(), round * 2 + 1);
        client.connection.send_bytes(call, b"ping", true).unwrap();
        exchange(&mut client, &mut server);
        let events = server.events();
        assert_eq!(events.len(), 2, "{events:?}");
        assert_eq!(events[1], Event::Data { stream: call, bytes: b"ping".to_vec(), end: true });
        server.connection.send_headers(call, HEAD, false).unwrap();
        server.connection.send_bytes(call, b"pong", false).unwrap();
        server.connection.send_headers(call, TRAILERS, true).unwrap();
        exchange(&mut client, &mut server);
        let events = client.events();
        assert_eq!(events.len(), 3, "{events:?}");
        assert_eq!(events[1], Event::Data { stream: call, bytes: b"pong".to_vec(), end: false });
        assert_eq!((client.connection.open_streams(), server.connection.open_streams()), (0, 0));
    }
    assert!(client.connection.is_established() && server.connection.is_established());
    client.connection.ping(*b"12345678");
    exchange(&mut client, &mut server);
    assert_eq!(client.events(), [Event::Pong(*b"12345678")]);
    assert_eq!(server.connection.counters().pings_received, 1);
}
