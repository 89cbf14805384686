//! ModelInfer: each request is a call, and one connection carries many of them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::{Collected, EXPIRED, Flight, NotBegun, Outcomes, RequestSet, end_of_call, http2_config};
use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::http2::{Connection, ErrorCode, Handler, Headers, ResetCause, SendError, StreamId};

/// Memory for answers that is kept for the next ones.
const SPARE_MAX: usize = 64;

pub struct UnaryExchange {
    connection: Connection,
    request_set: Arc<RequestSet>,
    pool: Pool,
    calls: Calls,
    scratch: Vec<u8>,
    message: Gather,
}

struct Calls {
    open: HashMap<u32, Call, BuildHasherDefault<StreamHasher>>,
    over: bool,
    /// What came of a call that ended, with its flight.
    ended: Vec<(Flight, Result<(), String>)>,
    /// Where answers were kept that have been compared.
    spare: Vec<Vec<u8>>,
}

struct Call {
    stream: StreamId,
    flight: Flight,
    answer: Collected,
}

/// Numbers of streams are different enough as they are.
#[derive(Default)]
pub(super) struct StreamHasher(u64);

impl Hasher for StreamHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u32(&mut self, number: u32) {
        // The table uses the highest bits and the lowest ones.
        self.0 = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl UnaryExchange {
    pub fn new(request_set: Arc<RequestSet>, pool: Pool) -> UnaryExchange {
        UnaryExchange {
            connection: Connection::client(http2_config(), pool.clone()),
            request_set,
            pool,
            calls: Calls { open: HashMap::default(), over: false, ended: Vec::new(), spare: Vec::new() },
            scratch: Vec::new(),
            message: Gather::new(),
        }
    }

    pub fn begin(&mut self, flight: Flight) -> Result<(), NotBegun> {
        let Some(template) = self.request_set.templates.get(flight.template) else {
            return Err(NotBegun::Over(flight));
        };
        let stream = match self.connection.open(self.request_set.call(), false) {
            Ok(stream) => stream,
            // Without one open call there is nothing to wait for.
            Err(SendError::TooManyStreams) if !self.calls.open.is_empty() => return Err(NotBegun::Full(flight)),
            Err(_) => {
                self.calls.over = true;
                return Err(NotBegun::Over(flight));
            }
        };
        let tail = template.write(&flight.marks, &mut self.scratch);
        let sent = match tail {
            None => self.connection.send_bytes(stream, &self.scratch, true),
            Some(tail) => {
                self.message.put(&self.pool, &self.scratch);
                self.message.push(&self.pool, tail.clone());
                self.connection.send_data(stream, &mut self.message, true)
            }
        };
        if sent.is_err() {
            self.calls.over = true;
            return Err(NotBegun::Over(flight));
        }
        let spare = &mut self.calls.spare;
        let wanted = self.request_set.expectation(flight.template);
        let wanted = wanted.map(|wanted| (Arc::clone(wanted), spare.pop().unwrap_or_default()));
        self.calls.open.insert(stream.get(), Call { stream, flight, answer: Collected::new(wanted) });
        Ok(())
    }

    pub fn receive(&mut self, bytes: &[u8], now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        let outcome = self.connection.receive(bytes, &mut self.calls).map_err(|error| error.to_string());
        for (mut flight, outcome) in self.calls.ended.drain(..) {
            if outcome.is_ok() {
                outcomes.response(&mut flight, now_ns);
            }
            outcomes.finish(flight, now_ns, outcome);
        }
        outcome
    }

    pub fn take_output(&mut self, most: usize, into: &mut Vec<Slice>) {
        self.connection.output().take(most, into);
    }

    pub fn in_flight(&self) -> usize {
        self.calls.open.len()
    }

    pub fn is_over(&self) -> bool {
        self.calls.over
    }

    pub fn expire(&mut self, before_ns: u64, now_ns: u64, outcomes: &mut Outcomes) {
        let late = self.calls.open.values().filter(|call| call.flight.sent_ns < before_ns).map(|call| call.stream);
        for stream in late.collect::<Vec<StreamId>>() {
            self.connection.reset(stream, ErrorCode::CANCEL);
            if let Some(call) = self.calls.open.remove(&stream.get()) {
                outcomes.finish(call.flight, now_ns, Err(EXPIRED.to_owned()));
            }
        }
    }

    pub fn fail(&mut self, reason: &str, now_ns: u64, outcomes: &mut Outcomes) {
        self.calls.over = true;
        for (_, call) in self.calls.open.drain() {
            outcomes.finish(call.flight, now_ns, Err(reason.to_owned()));
        }
    }
}

impl Calls {
    fn end(&mut self, stream: StreamId, end: Result<(), String>) {
        let Some(call) = self.open.remove(&stream.get()) else { return };
        let outcome = end.and_then(|()| call.answer.check());
        self.ended.push((call.flight, outcome));
        if let Some(kept) = call.answer.into_spare()
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(kept);
        }
    }
}

impl Handler for Calls {
    fn headers(&mut self, stream: StreamId, headers: &Headers, end_stream: bool) {
        if end_stream || headers.status() != Some(b"200") {
            let end = end_of_call(headers).and_then(|()| Err("an answer without a message".to_owned()));
            self.end(stream, end);
        }
    }

    fn data(&mut self, stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        if let Some(call) = self.open.get_mut(&stream.get()) {
            call.answer.take(bytes);
        }
        if end_stream {
            self.end(stream, Err("an answer without a gRPC status".to_owned()));
        }
        bytes.len()
    }

    fn trailers(&mut self, stream: StreamId, headers: &Headers) {
        self.end(stream, end_of_call(headers));
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode, _cause: ResetCause) {
        self.end(stream, Err(format!("the call was reset: {code}")));
    }

    fn goaway(&mut self, _last_stream: u32, _code: ErrorCode, _debug: &[u8]) {
        self.over = true;
    }
}
