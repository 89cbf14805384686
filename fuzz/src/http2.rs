//! An HTTP/2 connection in both roles, whatever pieces its bytes come in.
//!
//! Bytes that are read whole, in pieces, straight into the memory of a body, and without recognising header blocks that
//! come again give the same events and the same frames; a connection that fails says so in its last frame, and what it
//! holds stays within its bounds.

use nereid_memory::Pool;
use nereid_protocol::http2::{
    Config, Connection, ConnectionError, ErrorCode, Handler, Headers, PREFACE, ResetCause, StreamId,
};

use crate::{Dice, Target, pool, split};

pub const TARGET: Target = Target {
    name: "http2",
    run,
    runs: 15_000,
    words: &[
        "\x00\x00\x06\x01\x05\x00\x00\x00\x01",
        "\x00\x00\x06\x01\x04\x00\x00\x00\x03",
        "\x00\x00\x05\x00\x00\x00\x00\x00\x01hello",
        "\x00\x00\x00\x00\x01\x00\x00\x00\x01",
        "\x00\x00\x00\x04\x01\x00\x00\x00\x00",
        "\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x01",
        "\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x40\x00",
        "\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08",
        "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
        "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        "\x00\x00\x01\x09\x04\x00\x00\x00\x01\x02",
        "\x00\x00\x05\x02\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00",
        "\x02\x06\x04\x01/",
        "\x40\x01a\x01b",
    ],
    seeds,
};

fn run(data: &[u8]) -> bool {
    let (mut dice, input) = split(data);
    let is_client = dice.one_in(3);
    let config = config(&mut dice);
    let whole = Outcome::of(is_client, config, &[input], false);
    let pieces = dice.cut(input);
    let cut = Outcome::of(is_client, config, &pieces, dice.one_in(2));
    whole.compare(&cut, input, "in pieces");
    let fresh = Outcome::of(is_client, Config { repeated_block_max: 0, ..config }, &[input], false);
    whole.compare(&fresh, input, "each header block decoded");
    whole.check(input);
    !whole.events.is_empty()
}

fn config(dice: &mut Dice) -> Config {
    if dice.one_in(3) {
        return Config::default();
    }
    Config {
        // No smaller one: when credit is given depends on the pieces that data comes in.
        stream_window: 65_535,
        max_concurrent_streams: *dice.pick(&[1, 2, 100]),
        max_header_list_size: *dice.pick(&[1024, 4096]),
        header_table_size: *dice.pick(&[0, 100, 4096]),
        continuations_max: *dice.pick(&[0, 2, 64]),
        abnormal_ends_max: *dice.pick(&[0, 3, 100]),
        idle_frames_max: *dice.pick(&[0, 5, 100]),
        control_unsent_max: *dice.pick(&[20, 500, 64 << 10]),
        ..Config::default()
    }
}

/// What came of an input.
struct Outcome {
    events: Vec<String>,
    output: Vec<u8>,
    result: Result<(), ConnectionError>,
    open: usize,
}

#[derive(Default)]
struct Recorder {
    events: Vec<String>,
    /// The body that is being received, as one event.
    body: Option<(u32, Vec<u8>)>,
}

impl Recorder {
    fn add(&mut self, event: String) {
        if let Some((stream, body)) = self.body.take() {
            self.events.push(format!("data {stream} {}", body.escape_ascii()));
        }
        self.events.push(event);
    }
}

fn fields(headers: &Headers) -> String {
    let pseudo = [headers.method(), headers.scheme(), headers.path(), headers.authority(), headers.status()];
    let pseudo = pseudo.map(|value| value.map(|value| value.escape_ascii().to_string()));
    let others: Vec<_> =
        headers.iter().map(|(name, value)| format!("{}={}", name.escape_ascii(), value.escape_ascii())).collect();
    format!("{pseudo:?} {others:?}")
}

impl Handler for Recorder {
    fn headers(&mut self, stream: StreamId, headers: &Headers, end_stream: bool) {
        self.add(format!("headers {} {} {end_stream}", stream.get(), fields(headers)));
    }

    fn informational(&mut self, stream: StreamId, headers: &Headers) {
        self.add(format!("informational {} {}", stream.get(), fields(headers)));
    }

    fn data(&mut self, stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        assert!(end_stream || !bytes.is_empty(), "data without bytes");
        match &mut self.body {
            Some((other, body)) if *other == stream.get() => body.extend_from_slice(bytes),
            _ if !bytes.is_empty() => {
                if let Some((stream, body)) = self.body.replace((stream.get(), bytes.to_vec())) {
                    self.events.push(format!("data {stream} {}", body.escape_ascii()));
                }
            }
            _ => {}
        }
        if end_stream {
            self.add(format!("end {}", stream.get()));
        }
        bytes.len()
    }

    fn trailers(&mut self, stream: StreamId, headers: &Headers) {
        self.add(format!("trailers {} {}", stream.get(), fields(headers)));
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode, cause: ResetCause) {
        self.add(format!("reset {} {code} {cause:?}", stream.get()));
    }

    fn goaway(&mut self, last_stream: u32, code: ErrorCode, debug: &[u8]) {
        self.add(format!("goaway {last_stream} {code} {}", debug.escape_ascii()));
    }

    fn pong(&mut self, payload: [u8; 8]) {
        self.add(format!("pong {payload:?}"));
    }
}

const CALL: [(&[u8], &[u8]); 4] =
    [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/m"), (b":authority", b"host")];

impl Outcome {
    fn of(is_client: bool, config: Config, pieces: &[&[u8]], takes_direct: bool) -> Outcome {
        let pool = pool();
        let mut connection = match is_client {
            true => Connection::client(config, pool),
            false => Connection::server(config, pool),
        };
        if is_client {
            for _ in 0..3 {
                // Beyond what the peer allows, and before it has said so, none is refused.
                let _ = connection.open(CALL, true);
            }
        }
        let mut recorder = Recorder::default();
        let mut result = Ok(());
        'all: for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let direct = if takes_direct { connection.direct() } else { None };
                let now = direct.map_or(rest.len(), |(_, n)| n.min(rest.len()));
                let (front, behind) = rest.split_at(now);
                result = match direct {
                    Some((stream, _)) if now > 0 => {
                        // The bytes are where the caller wants them; it hands them to the stream itself.
                        match &mut recorder.body {
                            Some((other, body)) if *other == stream.get() => body.extend_from_slice(front),
                            _ => {
                                let previous = recorder.body.replace((stream.get(), front.to_vec()));
                                if let Some((stream, body)) = previous {
                                    recorder.events.push(format!("data {stream} {}", body.escape_ascii()));
                                }
                            }
                        }
                        let received = connection.direct_received(now, &mut recorder);
                        connection.consumed(stream, now);
                        received
                    }
                    _ => connection.receive(rest, &mut recorder),
                };
                rest = if direct.is_some() && now > 0 { behind } else { &[] };
                if result.is_err() {
                    break 'all;
                }
            }
        }
        if let Some((stream, body)) = recorder.body.take() {
            recorder.events.push(format!("data {stream} {}", body.escape_ascii()));
        }
        let mut output = Vec::new();
        while !connection.output().is_empty() {
            output.extend_from_slice(&connection.output().to_vec());
            connection.output().clear();
        }
        let Recorder { events, .. } = recorder;
        Outcome { events, output, result, open: connection.open_streams() }
    }

    fn compare(&self, other: &Outcome, input: &[u8], how: &str) {
        let input = input.escape_ascii();
        assert_eq!(self.events, other.events, "{how}: {input}");
        assert_eq!(self.result, other.result, "{how}: {input}");
        assert_eq!(self.open, other.open, "{how}: {input}");
        // Credit may be given in other portions.
        let frames = |outcome: &Outcome| {
            let mut frames = frames(&outcome.output);
            frames.retain(|(kind, ..)| *kind != WINDOW_UPDATE);
            frames
        };
        assert_eq!(frames(self), frames(other), "{how}: {input}");
    }

    /// What is sent is whole frames, and a connection that fails says why.
    fn check(&self, input: &[u8]) {
        assert!(self.open <= 103, "{} streams", self.open);
        let frames = frames(&self.output);
        if let Err(ConnectionError::Violation { code, .. }) = &self.result {
            let (kind, _, payload) = frames.last().expect("a last frame");
            let sent = payload.get(4..8);
            assert!(
                *kind == GOAWAY && sent == Some(&code.0.to_be_bytes()),
                "{:?}: {}",
                self.result,
                input.escape_ascii()
            );
        }
    }
}

const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;

/// Kind, stream and payload of all frames. Damage to the preface is answered in HTTP/1.1.
pub(crate) fn frames(output: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut rest = output.strip_prefix(PREFACE).unwrap_or(output);
    let mut frames = Vec::new();
    if rest.starts_with(b"HTTP/1.1") {
        return frames;
    }
    while let Some((head, behind)) = rest.split_first_chunk::<9>() {
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        assert!(len <= behind.len(), "half a frame: {}", output.escape_ascii());
        let (payload, behind) = behind.split_at(len);
        frames.push((head[3], stream, payload.to_vec()));
        rest = behind;
    }
    assert!(rest.is_empty(), "half a head: {}", output.escape_ascii());
    frames
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u32).to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let pool = Pool::new(1 << 20);
    // What our own client sends: two calls of one form, and a body.
    let mut client = Connection::client(Config::default(), pool);
    for _ in 0..3 {
        let stream = client.open(CALL, false).expect("the first streams");
        client.send_bytes(stream, b"\0\0\0\0\x05hello", true).expect("an open stream");
    }
    client.ping(*b"12345678");
    let calls = client.output().to_vec();
    let request = [0x83, 0x86, 0x04, 2, b'/', b'a'];
    let hello = [PREFACE, &frame(4, 0, 0, &[0, 4, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0]), &frame(4, 1, 0, b"")].concat();
    let session = [
        hello.clone(),
        frame(8, 0, 0, &[0, 1, 0, 0]),
        frame(1, 4, 1, &request),
        frame(0, 0, 1, b"first"),
        frame(1, 0x1 | 0x8 | 0x20, 3, b"\x01\0\0\0\0\x10\x83\x86\0"),
        frame(9, 0, 3, &[0x04]),
        frame(9, 4, 3, &[2, b'/', b'b']),
        frame(6, 0, 0, b"12345678"),
        frame(0, 8, 1, b"\x03second\0\0\0"),
        frame(0x42, 0xff, 77, b"unknown"),
        frame(2, 0, 9, &[0; 5]),
        frame(1, 4, 5, &request),
        frame(3, 0, 5, &[0, 0, 0, 8]),
        frame(1, 5, 1, &[0, 1, b't', 1, b'v']),
        frame(0, 0, 5, b"late"),
        frame(7, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2, b'b', b'y', b'e']),
    ]
    .concat();
    let repeated: Vec<u8> = [hello]
        .into_iter()
        .chain((0..8).map(|n| [frame(1, 4, 2 * n + 1, &request), frame(0, 1, 2 * n + 1, &[7; 200])].concat()))
        .collect::<Vec<_>>()
        .concat();
    let answers = [
        frame(4, 0, 0, &[0, 5, 0, 0, 0x4e, 0x20]),
        frame(4, 1, 0, b""),
        frame(1, 4, 1, &[0x08, 3, b'1', b'0', b'0']),
        frame(1, 4, 1, &[0x88, 0x5f, 1, b'x']),
        frame(0, 8, 1, b"\x02one\0\0"),
        frame(1, 5, 3, &[0x8d, 0xbe]),
        frame(1, 5, 1, &[0x40, 1, b's', 1, b'0']),
        frame(3, 0, 5, &[0, 0, 0, 7]),
        frame(7, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]),
    ]
    .concat();
    let mut seeds = Vec::new();
    for bytes in [calls, session, repeated, answers] {
        // Both roles, and several bounds.
        seeds.extend((0u32..4).map(|number| [&number.to_be_bytes()[..], &bytes].concat()));
    }
    seeds
}
