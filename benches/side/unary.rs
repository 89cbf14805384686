//! A gRPC client on one connection: a fixed number of calls of one kind at a time, ModelInfer by default.

use std::collections::VecDeque;

use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::http2::{Config, Connection, ErrorCode, Handler, Headers, ResetCause, StreamId};

use super::answer::{Answer, Check};
use super::line::Peer;
use super::load::Tally;
use super::request::Request;

/// Shorter messages are cheaper to copy into the output than to gather.
const COPY_BELOW: usize = 4096;

pub struct UnaryPeer {
    connection: Connection,
    path: &'static [u8],
    pool: Pool,
    calls: Calls,
    pieces: Vec<Slice>,
}

struct Calls {
    slots: Vec<Slot>,
    in_flight: usize,
    /// Slots whose answer is complete, with its result.
    finished: Vec<(usize, Result<(), String>)>,
}

struct Slot {
    request: Request,
    answer: Answer,
    stream: Option<StreamId>,
    sent_ns: u64,
    head_is_good: bool,
}

/// The head of every call, as gRPC's own clients send it.
pub fn call_head(path: &'static [u8]) -> [(&'static [u8], &'static [u8]); 8] {
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"127.0.0.1"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"nereid-bench"),
        (b"grpc-accept-encoding", b"identity, deflate, gzip"),
    ]
}

/// Whether a call ended well, by its last header list.
pub fn end_of_call(headers: &Headers) -> Result<(), String> {
    match headers.get(b"grpc-status") {
        Some(b"0") => Ok(()),
        status => {
            let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or(b"missing")).into_owned();
            Err(format!("grpc-status {}: {}", text(status), text(headers.get(b"grpc-message"))))
        }
    }
}

pub fn moves_whole_tensors() -> Config {
    Config { stream_window: 16 << 20, connection_window: 64 << 20, ..Config::default() }
}

impl UnaryPeer {
    /// Makes a slot for each request and the check of its answer, which is a framed message.
    pub fn new(requests: Vec<(Slice, Check)>) -> UnaryPeer {
        UnaryPeer::calling(b"/inference.GRPCInferenceService/ModelInfer", requests)
    }

    /// The same for another RPC.
    pub fn calling<R: Into<Request>>(path: &'static [u8], requests: Vec<(R, Check)>) -> UnaryPeer {
        let pool = Pool::new(256 << 20);
        let slot = |(request, check): (R, Check)| {
            let request: Request = request.into();
            let answer = Answer::to(&request, check);
            Slot { request, answer, stream: None, sent_ns: 0, head_is_good: false }
        };
        let slots: Vec<Slot> = requests.into_iter().map(slot).collect();
        UnaryPeer {
            connection: Connection::client(moves_whole_tensors(), pool.clone()),
            path,
            pool,
            calls: Calls { slots, in_flight: 0, finished: Vec::new() },
            pieces: Vec::new(),
        }
    }
}

impl Peer for UnaryPeer {
    fn begin(&mut self, now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        if !tally.open || !self.connection.is_established() || self.calls.in_flight == self.calls.slots.len() {
            return Ok(());
        }
        for slot in self.calls.slots.iter_mut().filter(|slot| slot.stream.is_none()) {
            let head = call_head(self.path);
            let stream = self.connection.open(head, false).map_err(|error| format!("a new call: {error}"))?;
            let request = slot.request.next();
            let sent = if request.len() < COPY_BELOW {
                self.connection.send_bytes(stream, &request, true)
            } else {
                let mut message = Gather::new();
                message.push(&self.pool, request);
                self.connection.send_data(stream, &mut message, true)
            };
            sent.map_err(|error| format!("a request: {error}"))?;
            (slot.stream, slot.sent_ns) = (Some(stream), now_ns);
            self.calls.in_flight += 1;
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &[u8], now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        self.connection.receive(bytes, &mut self.calls).map_err(|error| error.to_string())?;
        for (at, outcome) in self.calls.finished.drain(..) {
            tally.answered(self.calls.slots[at].sent_ns, now_ns, outcome);
            self.calls.in_flight -= 1;
        }
        Ok(())
    }

    fn take_output(&mut self, into: &mut VecDeque<Slice>) {
        self.connection.output().take(usize::MAX, &mut self.pieces);
        into.extend(self.pieces.drain(..));
    }

    fn is_idle(&self) -> bool {
        self.calls.in_flight == 0
    }
}

impl Calls {
    fn at(&self, stream: StreamId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.stream == Some(stream))
    }

    fn finish(&mut self, stream: StreamId, end: Result<(), String>) {
        let Some(at) = self.at(stream) else { return };
        let slot = &mut self.slots[at];
        slot.stream = None;
        let outcome = match end {
            Ok(()) if !slot.head_is_good => Err("an answer without a good head".to_owned()),
            Ok(()) => slot.answer.end(),
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            slot.answer.give_up();
        }
        slot.head_is_good = false;
        self.finished.push((at, outcome));
    }
}

impl Handler for Calls {
    fn headers(&mut self, stream: StreamId, headers: &Headers, end_stream: bool) {
        let good =
            headers.status() == Some(b"200") && headers.get(b"content-type").is_some_and(|t| t == b"application/grpc");
        if let Some(at) = self.at(stream) {
            self.slots[at].head_is_good = good;
        }
        if end_stream {
            self.finish(stream, end_of_call(headers).and_then(|()| Err("an answer without a message".to_owned())));
        }
    }

    fn data(&mut self, stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        if let Some(at) = self.at(stream) {
            self.slots[at].answer.piece(bytes);
        }
        if end_stream {
            self.finish(stream, Err("an answer without a status".to_owned()));
        }
        bytes.len()
    }

    fn trailers(&mut self, stream: StreamId, headers: &Headers) {
        self.finish(stream, end_of_call(headers));
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode, _cause: ResetCause) {
        self.finish(stream, Err(format!("the call was reset: {code}")));
    }
}
