//! An HTTP/1.1 connection.
//!
//! Answers may be sent in parts. Of those it is reported to the service how much the peer has made room for, as of gRPC
//! streams, because a model may wait for it.

use std::rc::Rc;

use smallvec::SmallVec;

use super::grpc::unsent_max;
use super::{Call, CallAddress, OUT_OF_TIME, PANICKED, ShardContext, call_mut, remove_call};
use nereid_clock::now_ns;
use nereid_memory::{BlockMut, CallLedger, Key, Pool, RefusalReason, Slab};
use nereid_mutants::{self as mutants, Mutant};
use nereid_protocol::http1::{self, Direct, ExchangeId, Exchanges, Intake, IntakeState, Response, ResponseHead};
use nereid_protocol::service::{CallKey, HttpReply, Service, Token};

pub(super) struct HttpWire {
    pub connection: http1::Connection,
    /// Unsent bytes beyond which answers behind others are not taken.
    unsent_max: usize,
    ledger: Rc<CallLedger>,
    /// Exchanges without an answer, oldest first.
    calls: SmallVec<[CallKey; 2]>,
    /// Those with an answer in parts that has begun.
    streamed: SmallVec<[Streamed; 1]>,
    /// Bytes that are with the engine.
    sending: usize,
    /// An answer broke off in its middle: the peer notices that only by the end of the connection.
    pub aborted: bool,
    /// Requests that were received.
    pub requests: u64,
    intake: IntakeState,
}

/// An answer that is sent in parts.
struct Streamed {
    call: CallKey,
    exchange: ExchangeId,
    /// A part came since the last report to the service that nothing is unsent.
    is_owed: bool,
    /// Unsent bytes, as they were last reported to the service.
    unsent: usize,
}

/// Answers of so many bytes are taken whatever waits before them.
const ALWAYS_BYTES: usize = 4096;

/// Takes the place of an answer that its peer leaves no room for.
fn no_room(pool: &Pool) -> Response {
    let head = ResponseHead::refused(RefusalReason::UnreadResponses).content_type("application/json");
    Response::error(pool, head, "too many bytes of answers wait for this client to read them")
}

/// The calls of a connection while its requests come in.
struct OpenCalls<'a> {
    key: Key,
    table: &'a mut Slab<Call>,
    ledger: &'a Rc<CallLedger>,
    calls: &'a mut SmallVec<[CallKey; 2]>,
    requests: &'a mut u64,
    /// Exchanges for which there was no room.
    refused: Vec<(ExchangeId, RefusalReason)>,
}

impl Exchanges for OpenCalls<'_> {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    #[inline]
    fn open(&mut self, exchange: ExchangeId) -> Option<CallKey> {
        *self.requests += 1;
        let opened = self.ledger.enter().and_then(|place| {
            let call = Call { connection: self.key, at: CallAddress::Http(exchange), token: None, timer: None, place };
            self.table.insert(call).map_err(|_| RefusalReason::Calls)
        });
        match opened {
            Ok(call) => {
                let call = CallKey(call.to_u64());
                self.calls.push(call);
                Some(call)
            }
            Err(reason) => {
                self.refused.push((exchange, reason));
                None
            }
        }
    }

    #[inline]
    fn began(&mut self, call: CallKey, token: Token) {
        if let Some(call) = Key::from_u64(call.0).and_then(|key| self.table.get_mut(key)) {
            call.token = Some(token);
        }
    }
}

impl HttpWire {
    pub fn new(connection: http1::Connection, pool: &Pool, ledger: Rc<CallLedger>, intake: IntakeState) -> HttpWire {
        HttpWire {
            connection,
            unsent_max: unsent_max(pool),
            ledger,
            calls: SmallVec::new(),
            streamed: SmallVec::new(),
            sending: 0,
            aborted: false,
            requests: 0,
            intake,
        }
    }

    pub fn receive<S: Service>(&mut self, key: Key, bytes: &[u8], shared: &mut ShardContext<S>) {
        self.with_intake(key, shared, |connection, intake| connection.receive(bytes, intake));
    }

    fn with_intake<S: Service>(
        &mut self,
        key: Key,
        shared: &mut ShardContext<S>,
        run: impl FnOnce(&mut http1::Connection, &mut Intake<'_, S, OpenCalls<'_>>),
    ) {
        let ShardContext { service, replies, calls: table, .. } = shared;
        let HttpWire { connection, intake: state, ledger, calls, requests, .. } = self;
        let mut exchanges = OpenCalls { key, table, ledger, calls, requests, refused: Vec::new() };
        run(connection, &mut Intake { state, service, replies, exchanges: &mut exchanges });
        for (exchange, reason) in exchanges.refused {
            let head = ResponseHead::refused(reason).content_type("application/json");
            let response = Response::error(&shared.pool, head, "too many requests wait for their answers");
            self.connection.respond(exchange, response);
        }
    }

    pub fn end_of_input<S: Service>(&mut self, key: Key, shared: &mut ShardContext<S>) {
        self.with_intake(key, shared, |connection, intake| connection.end_of_input(intake));
    }

    pub fn take_direct(&mut self) -> Option<(BlockMut, usize, usize)> {
        let Direct { block, at, len } = self.connection.take_direct()?;
        Some((block, at, len))
    }

    pub fn direct_received<S: Service>(
        &mut self,
        key: Key,
        block: BlockMut,
        at: usize,
        n: usize,
        shared: &mut ShardContext<S>,
    ) {
        self.with_intake(key, shared, |connection, intake| {
            connection.direct_received(Direct { block, at, len: n }, n, intake);
        });
    }

    pub fn reply<S: Service>(
        &mut self,
        call: CallKey,
        exchange: ExchangeId,
        reply: HttpReply,
        shared: &mut ShardContext<S>,
    ) {
        let exchange = match self.calls.last().filter(|_| mutants::is(Mutant::AnswersSwapped)) {
            Some(last) => match call_mut(shared, *last).map(|call| call.at) {
                Some(CallAddress::Http(newest)) => newest,
                _ => exchange,
            },
            None => exchange,
        };
        let bytes = match &reply {
            HttpReply::Answer(response) => response.body.len(),
            HttpReply::Plain(response) => response.body_len(),
            _ => 0,
        };
        let reply = if self.has_room(bytes) { reply } else { HttpReply::Answer(no_room(&shared.pool)) };
        match reply {
            HttpReply::Answer(response) => self.connection.respond(exchange, response),
            HttpReply::Plain(response) => self.connection.respond_plainly(exchange, response),
            HttpReply::Head(head) => {
                self.streamed.push(Streamed { call, exchange, is_owed: false, unsent: 0 });
                return self.connection.respond_chunked(exchange, head);
            }
            // One part of any size may be on its way, but not one behind the other to a peer that does not read.
            HttpReply::Chunk(_)
                if self.connection.unsent() >= self.unsent_max && self.connection.unsent_of(exchange) > 0 =>
            {
                if let Some(token) = call_mut(shared, call).and_then(|call| call.token.take()) {
                    shared.service.cancelled(token);
                }
                self.aborted = true;
            }
            HttpReply::Chunk(data) => {
                if let Some(streamed) = self.streamed.iter_mut().find(|streamed| streamed.call == call) {
                    streamed.is_owed = true;
                }
                return self.connection.chunk(exchange, data);
            }
            HttpReply::End => self.connection.finish(exchange),
            HttpReply::Abort => self.aborted = true,
        }
        remove_call(shared, call);
        self.calls.retain(|other| *other != call);
        self.streamed.retain(|streamed| streamed.call != call);
    }

    /// An answer of so many bytes can wait here for its peer, or for its turn.
    fn has_room(&self, bytes: usize) -> bool {
        bytes <= ALWAYS_BYTES || {
            let unsent = self.connection.unsent();
            unsent == 0 || unsent.saturating_add(bytes) <= self.unsent_max
        }
    }

    pub fn abandon<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        self.streamed.clear();
        if mutants::is(Mutant::CallsKept) {
            return self.calls.clear();
        }
        for call in self.calls.drain(..) {
            if let Some(token) = remove_call(shared, call).and_then(|call| call.token) {
                shared.service.cancelled(token);
            }
        }
    }

    /// Answers every request with an error, those that are half received included. An answer that has begun breaks off.
    pub fn fail_unanswered<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        if !self.streamed.is_empty() {
            self.aborted = true;
        }
        let unanswered: Vec<ExchangeId> = self
            .calls
            .iter()
            .filter_map(|call| match call_mut(shared, *call)?.at {
                CallAddress::Http(exchange) => Some(exchange),
                CallAddress::Grpc(_) => None,
            })
            .chain(self.connection.half_received())
            .collect();
        self.abandon(shared);
        for exchange in unanswered {
            let head = ResponseHead::refused(RefusalReason::Exiting).content_type("application/json");
            self.connection.respond(exchange, Response::error(&shared.pool, head, OUT_OF_TIME));
        }
    }

    /// Ends a call with an error; an answer that has begun breaks off.
    pub fn fail_call<S: Service>(&mut self, call: CallKey, exchange: ExchangeId, shared: &mut ShardContext<S>) {
        if self.streamed.iter().any(|streamed| streamed.call == call) {
            self.aborted = true;
        }
        if let Some(token) = call_mut(shared, call).and_then(|call| call.token.take()) {
            shared.service.cancelled(token);
        }
        let head = ResponseHead::new(500).content_type("application/json");
        let response = Response::error(&shared.pool, head, PANICKED);
        self.reply(call, exchange, HttpReply::Answer(response), shared);
    }

    /// So many bytes are with the engine now.
    pub fn set_sending(&mut self, bytes: impl FnOnce() -> usize) {
        if !self.streamed.is_empty() {
            self.sending = bytes();
        }
    }

    /// The service waits for what the peer takes of an answer.
    pub fn has_answers_in_parts(&self) -> bool {
        !self.streamed.is_empty()
    }

    /// Reports to the service how much of the answers in parts the peer has made room for.
    pub fn report_unsent<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        let HttpWire { connection, streamed, sending, .. } = self;
        for answer in streamed.iter_mut().filter(|answer| answer.is_owed) {
            let unsent = connection.unsent_of(answer.exchange);
            let unsent = if connection.is_oldest(answer.exchange) { unsent.saturating_add(*sending) } else { unsent };
            if unsent == 0 || unsent != answer.unsent {
                answer.unsent = unsent;
                if let Some(token) = call_mut(shared, answer.call).and_then(|call| call.token) {
                    shared.service.stream_unsent(token, unsent);
                }
            }
            answer.is_owed = unsent > 0;
        }
    }

    /// A second has passed in which answers had unsent bytes. Those behind another one wait for that one.
    pub fn report_waits<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        for answer in self.streamed.iter().filter(|answer| answer.is_owed) {
            if self.connection.is_oldest(answer.exchange)
                && let Some(token) = call_mut(shared, answer.call).and_then(|call| call.token)
            {
                shared.service.stream_waits(token, &mut shared.replies);
            }
        }
    }

    /// Only a read notices a peer that leaves while it waits for its answer.
    pub fn wants_read(&self) -> bool {
        self.connection.wants_read() || (!self.calls.is_empty() && self.connection.may_listen())
    }
}
