//! A connection that speaks gRPC over HTTP/2.
//!
//! Each stream is one call with a reader of its messages. Deadlines are kept by the caller's timers: an expired call
//! is answered here and its work cancelled.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::{At, Call, Shared, call_mut, remove_call};
use crate::memory::{BlockMut, Gather, Key};
use crate::protocol::grpc::{
    self, ACCEPTED_ENCODINGS, Code, Direct, Encoding, Limits, MessageReader, PREFIX_BYTES, UnknownEncoding,
    encode_message, is_grpc, parse_timeout,
};
use crate::protocol::http2::{self, ErrorCode, Headers, IdHash, Known, ResetCause, SendError, StreamId};
use crate::protocol::service::{CallKey, GrpcPlan, GrpcStatus, Reply, Service};
use crate::request::now_ns;

/// Readers kept for later calls.
const READERS_KEPT: usize = 256;
/// Unsent bytes of one connection beyond which its peer is given no credit for what it sends. Reading goes on: only
/// so can the peer open its own windows.
const UNSENT_MAX: usize = 64 << 20;
/// Unsent bytes of one connection, of either protocol, beyond which new calls are refused and streams that say more
/// are ended.
pub(super) const UNSENT_HARD_MAX: usize = 1 << 30;

pub(super) struct GrpcWire {
    pub connection: http2::Connection,
    streams: Streams,
    /// How the last call was taken.
    route: Option<Route>,
    /// Head and end of the answers that go well.
    head: Known,
    tail: Known,
    /// A direct window that is with the engine, and its stream.
    direct: Option<(StreamId, grpc::DirectTicket)>,
    /// Deadlines of new calls, for the shard's timers.
    pub deadlines: Vec<(CallKey, Duration)>,
    pub failed: bool,
    /// Bytes of requests for which some stream has not been given credit.
    withheld: usize,
    /// Streams with many answers of which some bytes were unsent when the service was last told.
    unsent: Vec<StreamId>,
    draining_s: u32,
    draining: bool,
}

type Streams = HashMap<StreamId, Stream, IdHash>;

/// What follows from the head of a call, for calls with the same head.
#[derive(Clone)]
struct Route {
    /// Of the headers.
    identity: u64,
    plan: Rc<GrpcPlan>,
    encoding: Encoding,
    deadline: Option<Duration>,
}

/// One call.
struct Stream {
    call: CallKey,
    plan: Rc<GrpcPlan>,
    reader: Box<MessageReader>,
    /// The client has sent everything.
    request_ended: bool,
    /// The one request of a unary call was handed over.
    has_request: bool,
    head_sent: bool,
    /// It is on the list of streams with unsent bytes.
    is_listed: bool,
    /// What the service was told last.
    unsent: usize,
    /// Bytes for which the peer was given no credit yet.
    withheld: usize,
    /// When its request, or the next one, began to arrive; only where somebody wants to know.
    since_ns: u64,
}

impl Stream {
    /// The peer owes the rest of a message.
    fn is_half_received(&self) -> bool {
        let missing = !self.plan.streaming && !self.has_request;
        self.withheld == 0 && !self.request_ended && (missing || self.reader.end_of_stream().is_err())
    }
}

/// What the codec tells, in turn with what it is to be told: answers cannot be given while it speaks.
struct Handler<'a, S> {
    key: Key,
    shared: &'a mut Shared<S>,
    streams: &'a mut Streams,
    route: &'a mut Option<Route>,
    deadlines: &'a mut Vec<(CallKey, Duration)>,
    refused: Vec<(StreamId, Refusal)>,
    /// Answers pile up: what arrives is taken without credit for more.
    withholds: bool,
    /// Answers have piled up beyond what is good for anybody.
    overloaded: bool,
    withheld: usize,
}

enum Refusal {
    /// No gRPC at all: a plain HTTP status.
    Http(&'static [u8]),
    Grpc(GrpcStatus),
    /// Messages that nobody here can unpack; the answer says which would do.
    Encoding(UnknownEncoding),
}

impl<S: Service> Handler<'_, S> {
    /// What follows from the head of a call.
    fn route(&mut self, headers: &Headers) -> Result<Route, Refusal> {
        if let Some(route) = self.route
            && route.identity == headers.identity()
            && self.shared.service.is_plan_current(&route.plan)
        {
            return Ok(route.clone());
        }
        if headers.method() != Some(b"POST") {
            return Err(Refusal::Http(b"405"));
        }
        if !headers.get(b"content-type").is_some_and(is_grpc) {
            return Err(Refusal::Http(b"415"));
        }
        let plan = self.shared.service.grpc_plan(headers).map_err(Refusal::Grpc)?;
        self.check_load()?;
        let mut encoding = Encoding::Identity;
        if let Some(name) = headers.get(b"grpc-encoding") {
            encoding = Encoding::parse(name).map_err(Refusal::Encoding)?;
        }
        let deadline = match headers.get(b"grpc-timeout") {
            None => None,
            Some(value) => Some(
                parse_timeout(value)
                    .map_err(|error| Refusal::Grpc(GrpcStatus::new(Code::InvalidArgument, error.to_string())))?,
            ),
        };
        let route = Route { identity: headers.identity(), plan: Rc::new(plan), encoding, deadline };
        *self.route = Some(route.clone());
        Ok(route)
    }

    fn check_load(&self) -> Result<(), Refusal> {
        if !self.overloaded {
            return Ok(());
        }
        let text = "too many bytes of answers wait for this client to read them";
        Err(Refusal::Grpc(GrpcStatus::new(Code::ResourceExhausted, text)))
    }

    fn accept(&mut self, stream: StreamId, headers: &Headers) -> Result<Stream, Refusal> {
        let Route { plan, encoding, deadline, .. } = self.route(headers)?;
        self.check_load()?;
        let call = Call { connection: self.key, at: At::Grpc(stream), token: None, timer: None };
        let Ok(call) = self.shared.calls.insert(call) else {
            return Err(Refusal::Grpc(GrpcStatus::new(
                Code::ResourceExhausted,
                "too many calls wait for their answers",
            )));
        };
        let call = CallKey(call.to_u64());
        if plan.streaming {
            let token = self.shared.service.grpc_stream(call, &plan, headers);
            if let Some(call) = call_mut(self.shared, call) {
                call.token = token;
            }
        }
        if let Some(deadline) = deadline {
            self.deadlines.push((call, deadline));
        }
        let mut reader =
            self.shared.readers.pop().unwrap_or_else(|| {
                Box::new(MessageReader::new(self.shared.pool.clone(), Limits::default(), plan.mode))
            });
        reader.reset(plan.mode, encoding);
        Ok(Stream {
            call,
            since_ns: if plan.timed { now_ns() } else { 0 },
            plan,
            reader,
            request_ended: false,
            has_request: false,
            head_sent: false,
            withheld: 0,
            is_listed: false,
            unsent: 0,
        })
    }

    /// Offers a message that is here as a whole to the service; how many bytes were taken, if it takes it.
    fn take_recurring(&mut self, id: StreamId, bytes: &[u8]) -> Option<usize> {
        let stream = self.streams.get_mut(&id)?;
        let message = stream.reader.whole_message(bytes)?;
        if stream.plan.timed || stream.has_request {
            return None;
        }
        let shared = &mut *self.shared;
        let call = call_mut(shared, stream.call)?;
        let mut token = call.token;
        if !shared.service.grpc_recurring(stream.call, &stream.plan, &mut token, message, &mut shared.replies) {
            return None;
        }
        if !stream.plan.streaming {
            stream.has_request = true;
            call_mut(shared, stream.call)?.token = token;
        }
        Some(message.len() + PREFIX_BYTES)
    }

    /// Takes messages that are complete, and the end of the request where it has come.
    fn advance(&mut self, id: StreamId, end_stream: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        while let Some(message) = stream.reader.next_message() {
            let (shared, call) = (&mut *self.shared, stream.call);
            if stream.plan.timed {
                shared.service.arrived(stream.since_ns);
                stream.since_ns = now_ns();
            }
            if stream.plan.streaming {
                let token = call_mut(shared, call).and_then(|call| call.token);
                if let Some(token) = token {
                    shared.service.grpc_stream_message(token, &stream.plan, message, &mut shared.replies);
                }
            } else if std::mem::replace(&mut stream.has_request, true) {
                let status = GrpcStatus::new(Code::Internal, "a unary call carries one message");
                return self.fail(id, status);
            } else {
                let token = shared.service.grpc_unary(call, &stream.plan, message, &mut shared.replies);
                if let Some(call) = call_mut(shared, call) {
                    call.token = token;
                }
            }
        }
        if end_stream {
            self.end_of_request(id);
        }
    }

    fn end_of_request(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.request_ended = true;
        if let Err(error) = stream.reader.end_of_stream() {
            return self.fail(id, GrpcStatus::new(error.code(), error.to_string()));
        }
        if stream.plan.streaming {
            let token = call_mut(self.shared, stream.call).and_then(|call| call.token);
            if let Some(token) = token {
                self.shared.service.grpc_stream_half_closed(token, &mut self.shared.replies);
            }
        } else if !stream.has_request {
            self.fail(id, GrpcStatus::new(Code::Internal, "the call ended without a message"));
        }
    }

    /// Ends a call whose request cannot be taken.
    fn fail(&mut self, id: StreamId, status: GrpcStatus) {
        if let Some(stream) = self.streams.get(&id)
            && let Some(call) = call_mut(self.shared, stream.call)
        {
            if let Some(token) = call.token.take() {
                self.shared.service.cancelled(token);
            }
            self.shared.replies.push(stream.call, Reply::GrpcEnd(status));
        }
    }
}

impl<S: Service> http2::Handler for Handler<'_, S> {
    fn headers(&mut self, id: StreamId, headers: &Headers, end_stream: bool) {
        match self.accept(id, headers) {
            Ok(stream) => {
                self.streams.insert(id, stream);
                if end_stream {
                    self.end_of_request(id);
                }
            }
            Err(refusal) => self.refused.push((id, refusal)),
        }
    }

    fn data(&mut self, id: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Some(n) = self.take_recurring(id, rest) {
                rest = rest.get(n..).unwrap_or_default();
                continue;
            }
            let Some(stream) = self.streams.get_mut(&id) else { return bytes.len() };
            match stream.reader.feed(rest) {
                // Nothing is taken while a message waits: it is handed over, and the reader goes on.
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(error) => {
                    self.fail(id, GrpcStatus::new(error.code(), error.to_string()));
                    return bytes.len();
                }
            }
            self.advance(id, false);
        }
        if end_stream {
            self.advance(id, true);
        }
        match self.streams.get_mut(&id) {
            Some(stream) if self.withholds && !end_stream => {
                stream.withheld += bytes.len();
                self.withheld += bytes.len();
                0
            }
            _ => bytes.len(),
        }
    }

    fn trailers(&mut self, id: StreamId, _headers: &Headers) {
        self.advance(id, true);
    }

    fn reset(&mut self, id: StreamId, _code: ErrorCode, _cause: ResetCause) {
        if let Some(stream) = self.streams.remove(&id) {
            self.withheld -= stream.withheld;
            give_up(stream, self.shared);
        }
    }
}

/// Nobody waits for the call any more.
fn give_up<S: Service>(stream: Stream, shared: &mut Shared<S>) {
    if let Some(token) = remove_call(shared, stream.call).and_then(|call| call.token) {
        shared.service.cancelled(token);
    }
    keep_reader(stream, shared);
}

/// Keeps what the next call can use.
fn keep_reader<S: Service>(stream: Stream, shared: &mut Shared<S>) {
    if shared.readers.len() < READERS_KEPT {
        let mut reader = stream.reader;
        reader.reset(stream.plan.mode, Encoding::Identity);
        shared.readers.push(reader);
    }
}

impl GrpcWire {
    pub fn new(connection: http2::Connection) -> GrpcWire {
        GrpcWire {
            connection,
            streams: Streams::default(),
            route: None,
            head: Known::new(&HEAD),
            tail: Known::new(&TAIL),
            direct: None,
            deadlines: Vec::new(),
            failed: false,
            withheld: 0,
            unsent: Vec::new(),
            draining_s: 0,
            draining: false,
        }
    }

    fn with_handler<S: Service, R>(
        &mut self,
        key: Key,
        shared: &mut Shared<S>,
        run: impl FnOnce(&mut http2::Connection, &mut Handler<'_, S>) -> R,
    ) -> R {
        let unsent = self.connection.unsent_total();
        let mut handler = Handler {
            key,
            shared,
            streams: &mut self.streams,
            route: &mut self.route,
            deadlines: &mut self.deadlines,
            refused: Vec::new(),
            withholds: unsent >= UNSENT_MAX,
            overloaded: unsent >= UNSENT_HARD_MAX,
            withheld: self.withheld,
        };
        let outcome = run(&mut self.connection, &mut handler);
        self.withheld = handler.withheld;
        for (id, refusal) in handler.refused {
            match refusal {
                Refusal::Http(status) => self.end_plain(id, status),
                Refusal::Grpc(status) => self.refuse(id, &status, &HEAD),
                Refusal::Encoding(error) => {
                    let accepted = (&b"grpc-accept-encoding"[..], ACCEPTED_ENCODINGS.as_bytes());
                    let head: Vec<_> = HEAD.into_iter().chain([accepted]).collect();
                    self.refuse(id, &GrpcStatus::new(UnknownEncoding::CODE, error.to_string()), &head);
                }
            }
        }
        outcome
    }

    /// Answers a call before its request is there.
    fn refuse(&mut self, id: StreamId, status: &GrpcStatus, head: &[(&[u8], &[u8])]) {
        self.send_end(id, status, head);
        if self.connection.is_open(id) {
            // The request is of no use (RFC 9113 section 8.1).
            self.connection.reset(id, ErrorCode::NO_ERROR);
        }
    }

    /// Gives the credit that was held back, once answers have left.
    pub fn give_credit(&mut self) {
        if self.withheld == 0 || self.connection.unsent_total() >= UNSENT_MAX {
            return;
        }
        self.withheld = 0;
        for (id, stream) in &mut self.streams {
            match std::mem::take(&mut stream.withheld) {
                0 => {}
                n => self.connection.consumed(*id, n),
            }
        }
    }

    /// Tells the service how much of its answers the peer has made room for.
    pub fn tell_unsent<S: Service>(&mut self, shared: &mut Shared<S>) {
        let GrpcWire { connection, streams, unsent: listed, .. } = self;
        listed.retain(|id| {
            let Some(stream) = streams.get_mut(id) else { return false };
            let unsent = connection.unsent(*id);
            if unsent == 0 || unsent != stream.unsent {
                stream.unsent = unsent;
                let token = call_mut(shared, stream.call).and_then(|call| call.token);
                if let Some(token) = token {
                    shared.service.stream_unsent(token, unsent);
                }
            }
            stream.is_listed = unsent > 0;
            stream.is_listed
        });
    }

    /// A second has passed in which the listed streams had unsent bytes.
    pub fn tell_waits<S: Service>(&mut self, shared: &mut Shared<S>) {
        for id in &self.unsent {
            let call = self.streams.get(id).map(|stream| stream.call);
            let token = call.and_then(|call| call_mut(shared, call)).and_then(|call| call.token);
            if let Some(token) = token {
                shared.service.stream_waits(token, &mut shared.replies);
            }
        }
    }

    /// A second has passed. Does the peer owe the rest of something, and has it said hello?
    pub fn second_passed(&mut self) -> (bool, bool) {
        self.connection.tick(1);
        if self.draining {
            self.draining_s = self.draining_s.saturating_add(1);
            if self.draining_s >= DRAIN_PING_S {
                self.connection.finish_shutdown();
            }
        }
        let established = self.connection.is_established();
        (!established || self.streams.values().any(Stream::is_half_received), established)
    }

    pub fn give_up_half_received<S: Service>(&mut self, key: Key, shared: &mut Shared<S>) {
        let late = self.streams.iter().filter(|(_, stream)| stream.is_half_received()).map(|(id, _)| *id);
        let late: Vec<StreamId> = late.collect();
        self.with_handler(key, shared, |_, handler| {
            for id in late {
                handler.fail(id, GrpcStatus::new(Code::Cancelled, "the rest of the request did not come"));
            }
        });
    }

    pub fn receive<S: Service>(&mut self, key: Key, bytes: &[u8], shared: &mut Shared<S>) {
        let outcome = self.with_handler(key, shared, |connection, handler| connection.receive(bytes, handler));
        self.failed |= outcome.is_err();
    }

    /// If the next bytes of the connection are the bytes of one tensor: its own memory.
    pub fn take_direct(&mut self) -> Option<(BlockMut, usize, usize)> {
        let (id, frame_left) = self.connection.direct()?;
        let stream = self.streams.get_mut(&id)?;
        let (block, at, len, ticket) = stream.reader.take_direct()?.into_parts();
        self.direct = Some((id, ticket));
        Some((block, at, len.min(frame_left)))
    }

    pub fn direct_received<S: Service>(&mut self, key: Key, block: BlockMut, n: usize, shared: &mut Shared<S>) {
        let Some((id, ticket)) = self.direct.take() else { return };
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.reader.direct_received(Direct::from_parts(block, ticket), n);
        }
        let outcome = self.with_handler(key, shared, |connection, handler| {
            handler.advance(id, false);
            let outcome = connection.direct_received(n, handler);
            match handler.streams.get_mut(&id) {
                Some(stream) if handler.withholds => {
                    stream.withheld += n;
                    handler.withheld += n;
                }
                _ => connection.consumed(id, n),
            }
            outcome
        });
        self.failed |= outcome.is_err();
    }

    pub fn reply<S: Service>(&mut self, call: CallKey, id: StreamId, reply: Reply, shared: &mut Shared<S>) {
        let reply = match reply {
            // One answer of any size may be on its way, but not one behind the other to a peer that does not read.
            Reply::GrpcMessage(_) | Reply::GrpcAnswer(_)
                if self.connection.unsent_total() >= UNSENT_HARD_MAX && self.connection.unsent(id) > 0 =>
            {
                let text = "too many bytes of answers wait for this client to read them";
                if let Some(token) = call_mut(shared, call).and_then(|call| call.token.take()) {
                    shared.service.cancelled(token);
                }
                Reply::GrpcEnd(GrpcStatus::new(Code::ResourceExhausted, text))
            }
            reply => reply,
        };
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.call == call) else { return };
        if stream.plan.streaming && !std::mem::replace(&mut stream.is_listed, true) {
            self.unsent.push(id);
        }
        match reply {
            Reply::GrpcMessage(mut message) => self.send_message(id, &mut message),
            Reply::GrpcEnd(status) => self.end(call, id, &status, shared),
            Reply::GrpcAnswer(mut message) => {
                let is_plain = !stream.head_sent
                    && stream.request_ended
                    && stream.withheld == 0
                    && stream.plan.response_encoding == Encoding::Identity;
                if is_plain && self.connection.answer(id, &mut self.head, &mut message, &mut self.tail) {
                    if let Some(stream) = self.streams.remove(&id) {
                        remove_call(shared, call);
                        keep_reader(stream, shared);
                    }
                    return;
                }
                self.send_message(id, &mut message);
                self.end(call, id, &GrpcStatus::ok(), shared);
            }
            Reply::Http(_)
            | Reply::HttpPlain(_)
            | Reply::HttpHead(_)
            | Reply::HttpChunk(_)
            | Reply::HttpEnd
            | Reply::HttpAbort
            | Reply::Receipt(_) => {}
        }
    }

    fn send_message(&mut self, id: StreamId, message: &mut Gather) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !std::mem::replace(&mut stream.head_sent, true) {
            let encoding = stream.plan.response_encoding;
            let packed = [HEAD[0], HEAD[1], (&b"grpc-encoding"[..], encoding.header().as_bytes())];
            let head = if encoding == Encoding::Identity { &HEAD[..] } else { &packed };
            let _ = self.connection.send_headers(id, head.iter().copied(), false);
        }
        // A stream that is gone drops what it is given.
        let _ = self.connection.send_data(id, message, false);
    }

    /// Ends a call, whose work is over: there is nothing to cancel.
    fn end<S: Service>(&mut self, call: CallKey, id: StreamId, status: &GrpcStatus, shared: &mut Shared<S>) {
        let Some(stream) = self.streams.remove(&id) else { return };
        let (request_ended, head_sent) = (stream.request_ended, stream.head_sent);
        self.withheld -= stream.withheld;
        remove_call(shared, call);
        if stream.withheld > 0 {
            self.connection.consumed(id, stream.withheld);
        }
        keep_reader(stream, shared);
        self.send_end(id, status, if head_sent { &[] } else { &HEAD });
        if !request_ended && self.connection.unsent(id) == 0 {
            // The rest of the request is of no use (RFC 9113 section 8.1).
            self.connection.reset(id, ErrorCode::NO_ERROR);
        }
    }

    /// `head`: what goes before the status, unless it was sent.
    fn send_end(&mut self, id: StreamId, status: &GrpcStatus, head: &[(&[u8], &[u8])]) {
        let mut message = Vec::new();
        encode_message(&status.message, &mut message);
        if let Err(SendError::HeaderListTooLarge { size, limit }) = self.put_end(id, status, &message, head) {
            // A text may be as long as a name that the client sent; half of it is better than none.
            shorten(&mut message, size.saturating_sub(limit));
            if self.put_end(id, status, &message, head).is_err() {
                self.connection.reset(id, ErrorCode::INTERNAL_ERROR);
            }
        }
    }

    fn put_end(
        &mut self,
        id: StreamId,
        status: &GrpcStatus,
        message: &[u8],
        head: &[(&[u8], &[u8])],
    ) -> Result<(), SendError> {
        let tail = [(&b"grpc-status"[..], status.code.header().as_bytes()), (&b"grpc-message"[..], message)];
        let tail = &tail[..if message.is_empty() { 1 } else { 2 }];
        let more = status.trailers.iter().map(|(name, value)| (&**name, &**value));
        self.connection.send_headers(id, head.iter().chain(tail).copied().chain(more), true)
    }

    /// An answer to something that is not gRPC.
    fn end_plain(&mut self, id: StreamId, status: &[u8]) {
        let _ = self.connection.send_headers(id, [(&b":status"[..], status)], true);
        if self.connection.is_open(id) {
            self.connection.reset(id, ErrorCode::NO_ERROR);
        }
    }

    /// Ends a call whose deadline has passed.
    pub fn expired<S: Service>(&mut self, call: CallKey, id: StreamId, shared: &mut Shared<S>) {
        if let Some(token) = call_mut(shared, call).and_then(|call| call.token.take()) {
            shared.service.cancelled(token);
        }
        let status = GrpcStatus::new(Code::DeadlineExceeded, "Deadline Exceeded");
        self.reply(call, id, Reply::GrpcEnd(status), shared);
    }

    pub fn abandon<S: Service>(&mut self, shared: &mut Shared<S>) {
        self.withheld = 0;
        self.unsent.clear();
        for (_, stream) in self.streams.drain() {
            give_up(stream, shared);
        }
    }

    pub fn has_unary_calls(&self) -> bool {
        self.streams.values().any(|stream| !stream.plan.streaming)
    }

    /// Ends the connection when its calls are over; the client is told the reason, if there is one.
    pub fn drain(&mut self, reason: &'static str) {
        self.draining = true;
        self.connection.start_shutdown(reason);
    }
}

/// Cuts `excess` bytes from the end of a percent-encoded text, and what that leaves of an escape.
fn shorten(message: &mut Vec<u8>, excess: usize) {
    message.truncate(message.len().saturating_sub(excess));
    if let Some(at) = message.iter().rposition(|byte| *byte == b'%').filter(|at| at + 3 > message.len()) {
        message.truncate(at);
    }
}

/// Seconds for which a peer may leave the ping of a drain unanswered.
const DRAIN_PING_S: u32 = 2;

/// The head of every gRPC answer.
static HEAD: [(&[u8], &[u8]); 2] = [(b":status", b"200"), (b"content-type", b"application/grpc")];

/// The end of every gRPC answer that goes well.
static TAIL: [(&[u8], &[u8]); 1] = [(b"grpc-status", b"0")];

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn a_shortened_text_ends_with_a_whole_escape() {
        for (excess, expected) in [(0, "ab%20%41"), (1, "ab%20"), (2, "ab%20"), (3, "ab%20"), (4, "ab"), (9, "")] {
            let mut message = b"ab%20%41".to_vec();
            shorten(&mut message, excess);
            assert_eq!(message, expected.as_bytes(), "{excess}");
        }
    }
}
