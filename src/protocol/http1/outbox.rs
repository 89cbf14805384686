//! Answers in the order of their requests, whatever order they are given in.
//!
//! The oldest exchange writes into the connection's output, the others each into a list of their own that is moved
//! behind it when their turn comes (RFC 9112, section 9.3.2).

use std::collections::VecDeque;

use super::ExchangeId;
use super::head::Version;
use super::response::{Framing, PlainResponse, Response, ResponseHead};
use nereid_memory::{Gather, Pool, Slice};

/// Bodies up to this many bytes are copied behind their head, so that a small answer is one piece to send.
const COPY_BODY_UP_TO: usize = 4096;

pub(super) struct Outbox {
    pool: Pool,
    /// Oldest first.
    exchanges: VecDeque<Exchange>,
    /// Id of the oldest exchange.
    first: u64,
    output: Gather,
    /// An answer that ends the connection is written; nothing follows it.
    ended: bool,
    head: Vec<u8>,
    pieces: Vec<Slice>,
}

#[derive(Debug)]
struct Exchange {
    version: Version,
    keep_alive: bool,
    /// The answer is to a HEAD request and has no body.
    headless_body: bool,
    phase: Phase,
    /// What is written before the exchange is the oldest one.
    waiting: Gather,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Unanswered,
    Streaming { framing: Framing },
    Complete,
}

impl Outbox {
    pub fn new(pool: Pool) -> Outbox {
        Outbox {
            pool,
            exchanges: VecDeque::new(),
            first: 0,
            output: Gather::new(),
            ended: false,
            head: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// Gives back what is kept for the next answers.
    pub fn rest(&mut self) {
        self.output.rest();
        (self.head, self.pieces) = (Vec::new(), Vec::new());
        if self.exchanges.is_empty() {
            self.exchanges = VecDeque::new();
        }
    }

    pub fn open(&mut self, version: Version, keep_alive: bool, is_head: bool) -> ExchangeId {
        let id = ExchangeId(self.first + self.exchanges.len() as u64);
        let waiting = Gather::new();
        let phase = Phase::Unanswered;
        self.exchanges.push_back(Exchange { version, keep_alive, headless_body: is_head, phase, waiting });
        id
    }

    pub fn len(&self) -> usize {
        self.exchanges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.exchanges.is_empty()
    }

    pub fn ended(&self) -> bool {
        self.ended
    }

    pub fn output(&mut self) -> &mut Gather {
        &mut self.output
    }

    /// Bytes of answers that are not yet handed to the sender.
    pub fn unsent(&self) -> usize {
        self.output.len() + self.exchanges.iter().map(|exchange| exchange.waiting.len()).sum::<usize>()
    }

    /// Bytes that are not yet handed to the sender and end with the last one of this answer; those of answers before it
    /// on their way may be among them.
    pub fn unsent_of(&self, id: ExchangeId) -> usize {
        match self.position(id) {
            Some(0) => self.output.len(),
            Some(at) => self.exchanges.get(at).map_or(0, |exchange| exchange.waiting.len()),
            None => 0,
        }
    }

    /// It is this exchange's turn to be answered.
    pub fn is_oldest(&self, id: ExchangeId) -> bool {
        self.position(id) == Some(0)
    }

    pub fn is_unanswered(&self, id: ExchangeId) -> bool {
        self.position(id).and_then(|at| self.exchanges.get(at)).is_some_and(|e| e.phase == Phase::Unanswered)
    }

    pub fn is_last(&self, id: ExchangeId) -> bool {
        self.position(id).is_some_and(|at| at + 1 == self.exchanges.len())
    }

    /// Makes the exchange's answer the last one of the connection.
    pub fn end_after(&mut self, id: ExchangeId) {
        if let Some(exchange) = self.position(id).and_then(|at| self.exchanges.get_mut(at)) {
            exchange.keep_alive = false;
        }
    }

    /// Drops an exchange that will get no answer, and all behind it.
    pub fn abandon(&mut self, id: ExchangeId) {
        if let Some(at) = self.position(id) {
            self.exchanges.truncate(at);
        }
    }

    /// Writes `100 Continue` if the exchange has no answer yet.
    pub fn go_on(&mut self, id: ExchangeId) {
        if self.is_unanswered(id) {
            self.put(id, b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    pub fn respond(&mut self, id: ExchangeId, mut response: Response) {
        let framing = Framing::Length(response.body.len());
        let Some(body_allowed) = self.begin(id, &response.head, framing) else { return };
        if body_allowed {
            self.append(id, &mut response.body);
        }
        self.complete(id);
    }

    pub fn respond_chunked(&mut self, id: ExchangeId, head: &ResponseHead) {
        let Some(exchange) = self.position(id).and_then(|at| self.exchanges.get_mut(at)) else { return };
        let framing = match exchange.version {
            Version::Http11 => Framing::Chunked,
            Version::Http10 => {
                exchange.keep_alive = false;
                Framing::Close
            }
        };
        let Some(body_allowed) = self.begin(id, head, framing) else { return };
        let framing = if body_allowed { framing } else { Framing::Length(0) };
        if let Some(exchange) = self.position(id).and_then(|at| self.exchanges.get_mut(at)) {
            exchange.phase = Phase::Streaming { framing };
        }
    }

    pub fn chunk(&mut self, id: ExchangeId, mut data: Gather) {
        match self.phase(id) {
            Some(Phase::Streaming { framing: Framing::Chunked }) if !data.is_empty() => {
                let mut line = std::mem::take(&mut self.head);
                line.clear();
                put_hex(&mut line, data.len());
                self.put(id, &line);
                self.head = line;
                self.append(id, &mut data);
                self.put(id, b"\r\n");
            }
            Some(Phase::Streaming { framing: Framing::Close }) => self.append(id, &mut data),
            _ => {}
        }
    }

    pub fn finish(&mut self, id: ExchangeId) {
        let Some(Phase::Streaming { framing }) = self.phase(id) else { return };
        if framing == Framing::Chunked {
            self.put(id, b"0\r\n\r\n");
        }
        self.complete(id);
    }

    /// Answers as [`respond`](Outbox::respond) does.
    pub fn respond_plainly(&mut self, id: ExchangeId, response: PlainResponse) {
        let Some(exchange) = self.position(id).and_then(|at| self.exchanges.get(at)) else { return };
        let is_plain = exchange.version == Version::Http11 && exchange.keep_alive && !exchange.headless_body;
        if !is_plain {
            let response = response.into_response(&self.pool);
            return self.respond(id, response);
        }
        if exchange.phase != Phase::Unanswered {
            return;
        }
        let mut text = std::mem::take(&mut self.head);
        text.clear();
        response.encode_head(&mut text);
        let copies = response.body_len() <= COPY_BODY_UP_TO;
        if copies {
            text.extend_from_slice(&response.json);
            response.tail.iter().for_each(|piece| text.extend_from_slice(piece));
        }
        self.put(id, &text);
        self.head = text;
        if !copies {
            self.push(id, response.json);
            response.tail.into_iter().for_each(|piece| self.push(id, piece));
        }
        self.complete(id);
    }

    fn push(&mut self, id: ExchangeId, piece: Slice) {
        match self.position(id) {
            Some(0) => self.output.push(&self.pool, piece),
            Some(at) => {
                if let Some(exchange) = self.exchanges.get_mut(at) {
                    exchange.waiting.push(&self.pool, piece);
                }
            }
            None => {}
        }
    }

    fn position(&self, id: ExchangeId) -> Option<usize> {
        let at = usize::try_from(id.0.checked_sub(self.first)?).ok()?;
        (at < self.exchanges.len()).then_some(at)
    }

    fn phase(&self, id: ExchangeId) -> Option<Phase> {
        self.exchanges.get(self.position(id)?).map(|exchange| exchange.phase)
    }

    /// Writes the head of an unanswered exchange; returns whether a body may follow. `None` if there is none to answer.
    fn begin(&mut self, id: ExchangeId, head: &ResponseHead, framing: Framing) -> Option<bool> {
        let exchange = self.exchanges.get(self.position(id)?).filter(|e| e.phase == Phase::Unanswered)?;
        let body_allowed = head.has_body() && !exchange.headless_body;
        let mut text = std::mem::take(&mut self.head);
        text.clear();
        head.encode(exchange.version, exchange.keep_alive, framing, &mut text);
        self.put(id, &text);
        self.head = text;
        Some(body_allowed)
    }

    fn put(&mut self, id: ExchangeId, bytes: &[u8]) {
        match self.position(id) {
            Some(0) => self.output.put(&self.pool, bytes),
            Some(at) => {
                if let Some(exchange) = self.exchanges.get_mut(at) {
                    exchange.waiting.put(&self.pool, bytes);
                }
            }
            None => {}
        }
    }

    fn append(&mut self, id: ExchangeId, data: &mut Gather) {
        let Some(at) = self.position(id) else { return };
        let into = match self.exchanges.get_mut(at) {
            Some(exchange) if at > 0 => &mut exchange.waiting,
            _ => &mut self.output,
        };
        if data.len() > COPY_BODY_UP_TO {
            return into.append(data);
        }
        data.take(usize::MAX, &mut self.pieces);
        for piece in self.pieces.drain(..) {
            into.push(&self.pool, piece);
        }
    }

    fn complete(&mut self, id: ExchangeId) {
        if let Some(exchange) = self.position(id).and_then(|at| self.exchanges.get_mut(at)) {
            exchange.phase = Phase::Complete;
        }
        while self.exchanges.front().is_some_and(|oldest| oldest.phase == Phase::Complete) {
            let ends = self.exchanges.pop_front().is_some_and(|oldest| !oldest.keep_alive);
            self.first += 1;
            if ends {
                // Requests behind the last answer get none.
                self.ended = true;
                self.first += self.exchanges.len() as u64;
                self.exchanges.clear();
            }
            if let Some(next) = self.exchanges.front_mut() {
                self.output.append(&mut next.waiting);
            }
        }
    }
}

fn put_hex(out: &mut Vec<u8>, value: usize) {
    let digits = (usize::BITS - value.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[value >> (digit * 4) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}
