//! The uploads of a gRPC client, in frames of any sizes: received many at once by a guess at their sizes, and as they
//! come.
//!
//! The input says which frames come, in what order and how large; some of their bytes are damaged. A transport that
//! receives into the memory of tensors, wherever the codec lets it and however little comes at once, has the same
//! messages, answers and errors as one that hands every byte to the codec.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use nereid_memory::{CallLedger, Pool, RefusalReason, Slice};
use nereid_protocol::grpc::{Exchanges, Intake, IntakeState, Limits, Message, Mode, ReaderPool, Window};
use nereid_protocol::http1;
use nereid_protocol::http2::{Config, Connection, ConnectionError, Headers, PREFACE, StreamId};
use nereid_protocol::service::{
    Arrived, CallKey, GrpcPlan, GrpcService, GrpcStatus, HttpService, Port, Replies, Service, Token,
};

use crate::http2::{WINDOW_UPDATE, frame, frames};
use crate::{Dice, Target, pool, split};

pub const TARGET: Target = Target {
    name: "uploads",
    run,
    runs: 500,
    words: &["\x00\x00", "\x08\x40", "\x09\x00", "\x0a\x00", "\x0c\x01", "\x0d\x00", "\x0e\x00", "\x0f\x10"],
    seeds,
};

/// Frames of one input.
const FRAMES_MAX: usize = 64;
/// Bytes that an ordinary receive brings.
const CHUNK_BYTES: usize = 16 * 1024;
/// Bytes of a small window.
const WINDOW: u32 = 160 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

fn run(data: &[u8]) -> bool {
    let (mut dice, script) = split(data);
    let mut bytes = session(script, &mut dice);
    if dice.one_in(3) {
        let at = dice.below(bytes.len());
        bytes[at] ^= 1 << dice.below(8);
    }
    let withholds = dice.one_in(4);
    // What is withheld is never given back here.
    let windows = if withholds { Config::default() } else { small_windows() };
    let plain = Outcome::of(&bytes, (windows, withholds), None);
    let scattered = Outcome::of(&bytes, (windows, withholds), Some(&mut dice));
    plain.compare(&scattered, u64::from(windows.connection_window / 2), data);
    !plain.messages.is_empty()
}

/// Windows that a few frames fill: bytes for which no credit is given are missed soon. Half of one holds any frame that
/// is taken, because it depends on the portions in which bytes come how much of the other half is open.
fn small_windows() -> Config {
    let (stream_window, connection_window, max_frame_size) = (WINDOW, WINDOW, WINDOW / 2);
    Config { stream_window, connection_window, max_frame_size, ..Config::default() }
}

/// What a client sends: a preface, and the frames of a script of two bytes each.
fn session(script: &[u8], dice: &mut Dice) -> Vec<u8> {
    let usual = *dice.pick(&[4096, 8192, 16_384, 16_384, 20_000]);
    let mut bytes = [PREFACE, &frame(4, 0, 0, b""), &frame(4, 1, 0, b"")].concat();
    let mut uploads: Vec<(u32, Vec<u8>)> = Vec::new();
    let (mut current, mut opened) = (0, 0);
    for step in script.as_chunks::<2>().0.iter().take(FRAMES_MAX) {
        let [kind, size] = *step;
        if uploads.is_empty() || (kind % 16 == 12 && uploads.len() < 3) {
            let stream = 2 * opened + 1;
            opened += 1;
            bytes.extend(head_of_call(stream));
            uploads.push((stream, message(dice)));
            current = uploads.len() - 1;
        } else if kind % 16 == 12 {
            current = usize::from(size) % uploads.len();
        }
        let (stream, rest) = &mut uploads[current];
        let (stream, mut ends) = (*stream, kind % 16 == 13);
        let payload = match kind % 16 {
            8 => usize::from(size) * 300,
            10 => {
                bytes.extend(frame(PING, 0, 0, b"12345678"));
                continue;
            }
            11 => {
                bytes.extend(frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1, size]));
                continue;
            }
            14 => {
                bytes.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
                rest.clear();
                0
            }
            15 => {
                bytes.extend(frame(0x42, size, stream, &vec![size; usize::from(size)]));
                continue;
            }
            _ => usual,
        };
        if kind % 16 != 14 {
            let portion: Vec<u8> = rest.drain(..payload.min(rest.len())).collect();
            ends |= rest.is_empty();
            let flags = if ends { END_STREAM } else { 0 };
            bytes.extend(match kind % 16 {
                9 => frame(DATA, flags | PADDED, stream, &[&[3][..], &portion, &[0; 3]].concat()),
                _ => frame(DATA, flags, stream, &portion),
            });
        }
        if ends || rest.is_empty() {
            uploads.remove(current);
            current = uploads.len().saturating_sub(1);
        }
    }
    bytes
}

/// POST of gRPC to /infer, without a change of the table of HPACK.
fn head_of_call(stream: u32) -> Vec<u8> {
    let path = b"\x04\x06/infer";
    let content_type = b"\x0f\x10\x10application/grpc";
    frame(HEADERS, END_HEADERS, stream, &[&[0x83, 0x86][..], path, content_type].concat())
}

/// A framed message with raw contents of sizes that are worth a block of their own, or not.
fn message(dice: &mut Dice) -> Vec<u8> {
    let mut body = b"\x0a\x01m\x1a\x03new".to_vec();
    for _ in 0..1 + dice.below(3) {
        let largest = *dice.pick(&[100, 30_000, 200_000, 700_000]);
        let (len, seed) = (1 + dice.below(largest), dice.number());
        body.push(0x3a);
        let mut rest = len;
        while rest >= 0x80 {
            body.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        body.push(rest as u8);
        body.extend((0..len as u64).map(|at| (at.wrapping_mul(seed | 1) >> 5) as u8));
    }
    [&[0][..], &(body.len() as u32).to_be_bytes(), &body].concat()
}

/// Notes its messages.
#[derive(Default)]
struct Recorder {
    messages: Vec<(u64, Vec<Vec<u8>>)>,
    cancelled: Vec<u64>,
}

impl HttpService for Recorder {
    fn http_rules(&self, _: Port) -> http1::IntakeRules {
        let json_length = http1::JsonLength::Nowhere;
        http1::IntakeRules { json_length, unasked_bytes_max: 0, asks_always: false, timing_field: "" }
    }

    fn refuse_http(&mut self, _: Port, _: &http1::Head) -> Option<http1::Response> {
        None
    }

    fn http(
        &mut self,
        _: CallKey,
        _: Port,
        _: &http1::Head,
        _: Slice,
        _: Option<u64>,
        _: &mut Replies,
    ) -> Option<Token> {
        None
    }
}

impl GrpcService for Recorder {
    type Noted = ();

    fn grpc_plan(&mut self, _: &Headers) -> Result<GrpcPlan, GrpcStatus> {
        Ok(GrpcPlan::new(0, Mode::Infer))
    }

    fn grpc_unary(
        &mut self,
        call: CallKey,
        _: &GrpcPlan,
        message: Message,
        _: Arrived<()>,
        _: &mut Replies,
    ) -> Option<Token> {
        let Message::Infer(request) = message else { panic!("a message that was not scanned") };
        self.messages.push((call.0, request.raw.iter().map(|raw| raw.to_vec()).collect()));
        Some(Token(call.0))
    }

    fn grpc_stream(&mut self, _: CallKey, _: &GrpcPlan, _: &Headers, _: &Rc<CallLedger>) -> Option<Token> {
        None
    }

    fn grpc_stream_message(&mut self, _: Token, _: &GrpcPlan, _: Message, _: Arrived<()>, _: &mut Replies) {}

    fn grpc_stream_half_closed(&mut self, _: Token, _: &mut Replies) {}
}

impl Service for Recorder {
    fn cancelled(&mut self, token: Token) {
        self.cancelled.push(token.0);
    }

    fn in_flight(&self) -> usize {
        0
    }
}

/// The work of each open call, by the number of its stream.
struct Table {
    works: HashMap<u64, Option<Token>>,
    ledger: Rc<CallLedger>,
}

impl Exchanges for &mut Table {
    fn now_ns(&self) -> u64 {
        7
    }

    fn open(&mut self, stream: StreamId, _: Option<Duration>) -> Result<CallKey, RefusalReason> {
        self.works.insert(u64::from(stream.get()), None);
        Ok(CallKey(u64::from(stream.get())))
    }

    fn ledger(&self) -> &Rc<CallLedger> {
        &self.ledger
    }

    fn work(&mut self, call: CallKey) -> Option<&mut Option<Token>> {
        self.works.get_mut(&call.0)
    }

    fn close(&mut self, call: CallKey) -> Option<Token> {
        self.works.remove(&call.0).flatten()
    }
}

/// One end of a connection.
struct Server {
    connection: Connection,
    state: IntakeState,
    service: Recorder,
    replies: Replies,
    readers: ReaderPool,
    table: Table,
    withholds: bool,
    refused: usize,
    output: Vec<u8>,
}

impl Server {
    fn new(pool: Pool, config: Config, withholds: bool) -> Server {
        Server {
            connection: Connection::server(config, pool.clone()),
            state: IntakeState::new(pool),
            service: Recorder::default(),
            replies: Replies::default(),
            readers: ReaderPool::new(Limits::default()),
            table: Table { works: HashMap::new(), ledger: CallLedger::new(usize::MAX, None) },
            withholds,
            refused: 0,
            output: Vec::new(),
        }
    }

    /// What is to be sent leaves.
    fn send(&mut self) {
        while !self.connection.output().is_empty() {
            self.output.extend_from_slice(&self.connection.output().to_vec());
            self.connection.output().clear();
        }
    }

    fn with_intake(
        &mut self,
        run: impl FnOnce(&mut Connection, &mut Intake<'_, Recorder, &mut Table>) -> Result<(), ConnectionError>,
    ) -> Result<(), ConnectionError> {
        let mut intake = Intake {
            state: &mut self.state,
            service: &mut self.service,
            replies: &mut self.replies,
            readers: &mut self.readers,
            exchanges: &mut self.table,
            refused: Vec::new(),
            withholds: self.withholds,
            is_overloaded: false,
        };
        let outcome = run(&mut self.connection, &mut intake);
        self.refused += intake.refused.len();
        outcome
    }

    /// Receives some of `bytes`, at most `most`, and returns how many.
    fn receive(&mut self, bytes: &[u8], most: usize, takes_windows: bool) -> (usize, Result<(), ConnectionError>) {
        let window = if takes_windows { self.state.take_window(&self.connection) } else { None };
        match window {
            None => {
                let n = most.min(CHUNK_BYTES);
                (n, self.with_intake(|connection, intake| connection.receive(&bytes[..n], intake)))
            }
            Some(Window::Block { mut block, at, len }) => {
                let n = most.min(len);
                block[at..at + n].copy_from_slice(&bytes[..n]);
                (n, self.with_intake(|connection, intake| intake.direct_received(connection, block, n)))
            }
            Some(Window::Frames(mut scatter)) => {
                let n = scatter.fill(&bytes[..most]);
                (n, self.with_intake(|connection, intake| intake.scattered_received(connection, scatter, n)))
            }
        }
    }
}

/// What came of the bytes of a connection.
#[derive(Debug, PartialEq)]
struct Outcome {
    messages: Vec<(u64, Vec<Vec<u8>>)>,
    cancelled: Vec<u64>,
    /// The first answer to each call that failed: it fails again with each further piece, until its transport ends it.
    failed: Vec<(u64, String)>,
    refused: usize,
    open: usize,
    result: Result<(), ConnectionError>,
    /// Frames that are sent, but for credit.
    sent: Vec<(u8, u32, Vec<u8>)>,
    /// Bytes of credit for the connection. They may be given in other portions: less than half a window is held back.
    credit: u64,
}

impl Outcome {
    /// With `dice` received through windows.
    fn of(bytes: &[u8], (windows, withholds): (Config, bool), mut dice: Option<&mut Dice>) -> Outcome {
        let mut server = Server::new(pool(), windows, withholds);
        let (mut rest, mut result) = (bytes, Ok(()));
        let longest = dice.as_mut().map_or(usize::MAX, |dice| *dice.pick(&[7, 500, 9000, 70_000, usize::MAX]));
        while !rest.is_empty() && result.is_ok() {
            // Byte by byte only now and then.
            let cuts = dice.as_deref_mut().and_then(|dice| dice.one_in(2).then_some(dice));
            let most = cuts.map_or(rest.len(), |dice| 1 + dice.below(longest.min(rest.len())));
            let taken;
            (taken, result) = server.receive(rest, most, dice.is_some());
            rest = &rest[taken..];
            server.send();
            while result.is_ok() && server.state.has_input() {
                result = server.with_intake(|connection, intake| intake.read_kept(connection));
                server.send();
            }
        }
        let mut failed: Vec<(u64, String)> = Vec::new();
        for (call, reply) in server.replies.drain() {
            if failed.iter().all(|(other, _)| *other != call.0) {
                failed.push((call.0, format!("{reply:?}")));
            }
        }
        let mut sent = frames(&server.output);
        let increments = sent.iter().filter(|(kind, stream, _)| (*kind, *stream) == (WINDOW_UPDATE, 0));
        let credit = increments.filter_map(|(.., payload)| payload.first_chunk::<4>());
        let credit: u64 = credit.map(|increment| u64::from(u32::from_be_bytes(*increment))).sum();
        sent.retain(|(kind, ..)| *kind != WINDOW_UPDATE);
        Outcome {
            messages: std::mem::take(&mut server.service.messages),
            cancelled: std::mem::take(&mut server.service.cancelled),
            failed,
            refused: server.refused,
            open: server.connection.open_streams(),
            result,
            sent,
            credit,
        }
    }

    /// `held_max`: bytes of credit that either may hold back.
    fn compare(&self, other: &Outcome, held_max: u64, input: &[u8]) {
        let input = input.escape_ascii();
        assert!(self.messages == other.messages, "other messages: {input}");
        let others = |outcome: &Outcome| {
            let Outcome { cancelled, failed, refused, open, result, sent, .. } = outcome;
            format!("{cancelled:?} {failed:?} {refused} {open} {result:?} {sent:?}")
        };
        assert_eq!(others(self), others(other), "{input}");
        let apart = self.credit.abs_diff(other.credit);
        assert!(apart <= held_max, "{} and {} bytes of credit: {input}", self.credit, other.credit);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let usual = [0, 0].repeat(40);
    let scripts: [Vec<u8>; 6] = [
        usual.clone(),
        [&usual[..20], &[10, 0], &usual[..20], &[11, 1], &usual].concat(),
        [&usual[..10], &[8, 20], &usual[..10], &[8, 200], &usual].concat(),
        [&[0, 0, 12, 0, 0, 0, 12, 0][..], &[12, 1, 12, 0].repeat(20)].concat(),
        [&usual[..12], &[13, 0], &usual[..12], &[14, 0], &usual].concat(),
        [&usual[..12], &[9, 0], &usual[..8], &[15, 30], &usual].concat(),
    ];
    let numbered = scripts.iter().zip(0u32..).flat_map(|(script, number)| {
        [number, number + 100, number + 200].map(|number| [&number.to_be_bytes()[..], script].concat())
    });
    numbered.collect()
}
