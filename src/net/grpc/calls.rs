//! The calls of a connection: what the codec tells of them, and how they are taken.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::super::{At, Call, Shared, call_mut, remove_call};
use nereid_clock::now_ns;
use nereid_memory::{Key, Pool};
use nereid_protocol::grpc::{Code, Encoding, MessageReader, PREFIX_BYTES, UnknownEncoding, is_grpc, parse_timeout};
use nereid_protocol::http2::{self, ErrorCode, Headers, IdHash, ResetCause, StreamId};
use nereid_protocol::service::{Arrived, CallKey, GrpcPlan, GrpcReply, GrpcStatus, Recurring, Service};
use nereid_protocol::slow_peers::Progress;

/// Readers kept for later calls.
const READERS_KEPT: usize = 256;

pub(super) type Streams = HashMap<StreamId, Stream, IdHash>;

/// What follows from the head of a call, for calls with the same head.
#[derive(Clone)]
pub(super) struct Route {
    /// Of the headers.
    identity: u64,
    plan: Rc<GrpcPlan>,
    encoding: Encoding,
    deadline: Option<Duration>,
}

/// One call.
pub(super) struct Stream {
    pub(super) call: CallKey,
    pub(super) plan: Rc<GrpcPlan>,
    pub(super) reader: Box<MessageReader>,
    /// The client has sent everything.
    pub(super) request_ended: bool,
    /// The one request of a unary call was handed over.
    pub(super) has_request: bool,
    pub(super) head_sent: bool,
    /// It is on the list of streams with unsent bytes.
    pub(super) is_listed: bool,
    /// What the service was told last.
    pub(super) unsent: usize,
    /// Bytes for which the peer was given no credit yet.
    pub(super) withheld: usize,
    /// Bytes that came since the last second, and how the request goes on that is half received.
    pub(super) arrived: u64,
    pub(super) progress: Progress,
    /// When its request, or the next one, began to arrive; only where somebody wants to know.
    pub(super) since_ns: u64,
}

impl Stream {
    /// The peer owes the rest of a message.
    pub(super) fn is_half_received(&self) -> bool {
        let missing = !self.plan.streaming && !self.has_request;
        self.withheld == 0 && !self.request_ended && (missing || self.reader.end_of_stream().is_err())
    }
}

/// What the codec tells, in turn with what it is to be told: answers cannot be given while it speaks.
pub(super) struct Handler<'a, S> {
    pub(super) key: Key,
    pub(super) shared: &'a mut Shared<S>,
    pub(super) streams: &'a mut Streams,
    pub(super) route: &'a mut Option<Route>,
    pub(super) deadlines: &'a mut Vec<(CallKey, Duration)>,
    pub(super) refused: Vec<(StreamId, Refusal)>,
    /// Answers pile up: what arrives is taken without credit for more.
    pub(super) withholds: bool,
    /// Answers have piled up beyond what is good for anybody.
    pub(super) overloaded: bool,
    pub(super) withheld: usize,
    /// What the messages of the connection are charged to.
    pub(super) pool: &'a Pool,
}

pub(super) enum Refusal {
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
        let mut reader = self
            .shared
            .readers
            .pop()
            .unwrap_or_else(|| Box::new(MessageReader::new(self.pool.clone(), self.shared.grpc_limits, plan.mode)));
        reader.reset(plan.mode, encoding);
        reader.set_pool(self.pool);
        Ok(Stream {
            call,
            since_ns: if plan.timed { now_ns() } else { 0 },
            plan,
            reader,
            request_ended: false,
            has_request: false,
            head_sent: false,
            withheld: 0,
            arrived: 0,
            progress: Progress::default(),
            is_listed: false,
            unsent: 0,
        })
    }

    /// Offers a message that is here as a whole to the service; how many bytes were taken, or what the service has
    /// noted of it if it does not take it.
    fn take_recurring(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, Option<S::Noted>> {
        let stream = self.streams.get_mut(&id).ok_or(None)?;
        let message = stream.reader.whole_message(bytes).ok_or(None)?;
        if stream.plan.timed || stream.has_request {
            return Err(None);
        }
        let shared = &mut *self.shared;
        let mut token = call_mut(shared, stream.call).ok_or(None)?.token;
        match shared.service.grpc_recurring(stream.call, &stream.plan, &mut token, message, &mut shared.replies) {
            Recurring::Unknown(noted) => return Err(noted),
            Recurring::Taken => {}
        }
        if !stream.plan.streaming {
            stream.has_request = true;
            if let Some(call) = call_mut(shared, stream.call) {
                call.token = token;
            }
        }
        Ok(message.len() + PREFIX_BYTES)
    }

    /// Takes messages that are complete, and the end of the request where it has come; `noted` is what the service has
    /// noted of the first message.
    pub(super) fn advance(&mut self, id: StreamId, noted: &mut Option<S::Noted>, end_stream: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        while let Some(message) = stream.reader.next_message() {
            stream.progress.restart();
            let (shared, call) = (&mut *self.shared, stream.call);
            let since_ns = stream.plan.timed.then(|| std::mem::replace(&mut stream.since_ns, now_ns()));
            let arrived = Arrived { noted: noted.take(), since_ns };
            if stream.plan.streaming {
                let token = call_mut(shared, call).and_then(|call| call.token);
                if let Some(token) = token {
                    shared.service.grpc_stream_message(token, &stream.plan, message, arrived, &mut shared.replies);
                }
            } else if std::mem::replace(&mut stream.has_request, true) {
                let status = GrpcStatus::new(Code::Internal, "a unary call carries one message");
                return self.fail(id, status);
            } else {
                let token = shared.service.grpc_unary(call, &stream.plan, message, arrived, &mut shared.replies);
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
    pub(super) fn fail(&mut self, id: StreamId, status: GrpcStatus) {
        if let Some(stream) = self.streams.get(&id)
            && let Some(call) = call_mut(self.shared, stream.call)
        {
            if let Some(token) = call.token.take() {
                self.shared.service.cancelled(token);
            }
            self.shared.replies.push(stream.call, GrpcReply::End(status));
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
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.arrived += bytes.len() as u64;
        }
        let (mut rest, mut noted) = (bytes, None);
        while !rest.is_empty() {
            match self.take_recurring(id, rest) {
                Ok(n) => {
                    rest = rest.get(n..).unwrap_or_default();
                    continue;
                }
                // Until the message comes, which may take several rounds.
                Err(of_message) => noted = of_message.or(noted),
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
            self.advance(id, &mut noted, false);
        }
        if end_stream {
            self.advance(id, &mut None, true);
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
        self.advance(id, &mut None, true);
    }

    fn reset(&mut self, id: StreamId, _code: ErrorCode, _cause: ResetCause) {
        if let Some(stream) = self.streams.remove(&id) {
            self.withheld -= stream.withheld;
            give_up(stream, self.shared);
        }
    }
}

/// Nobody waits for the call any more.
pub(super) fn give_up<S: Service>(stream: Stream, shared: &mut Shared<S>) {
    if let Some(token) = remove_call(shared, stream.call).and_then(|call| call.token) {
        shared.service.cancelled(token);
    }
    keep_reader(stream, shared);
}

/// Keeps what the next call can use.
pub(super) fn keep_reader<S: Service>(stream: Stream, shared: &mut Shared<S>) {
    if shared.readers.len() < READERS_KEPT {
        let mut reader = stream.reader;
        reader.reset(stream.plan.mode, Encoding::Identity);
        shared.readers.push(reader);
    }
}
