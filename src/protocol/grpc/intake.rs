//! From the calls of a connection to the service that answers them: heads and messages go from the codec of HTTP/2 to
//! the service, and the transport only opens a call for each.
//!
//! What follows from a head is kept for the next call with the same head. A message that is there as a whole is offered
//! to the service before it is read, which is how the service recognises requests that come again.

mod scattered;

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::{
    Code, Direct, Encoding, Limits, MessageReader, Mode, Outline, PREFIX_BYTES, UnknownEncoding, is_grpc, parse_timeout,
};
use crate::http2::{self, ErrorCode, Headers, IdHash, ResetCause, StreamId};
use crate::service::{Arrived, CallKey, GrpcPlan, GrpcReply, GrpcStatus, Recurring, Replies, Service, Token};
use crate::slow_peers::{Progress, SlowPeers};
use nereid_memory::{BlockMut, CallLedger, Pool, RefusalReason};

use scattered::{KeptInput, LentWindow};
pub use scattered::{SCATTERED_BYTES_MAX, Window};

/// Readers of one shard that are kept for later calls.
const READERS_KEPT: usize = 256;

pub type OpenCalls = HashMap<StreamId, OpenCall, IdHash>;

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
pub struct OpenCall {
    pub call: CallKey,
    pub plan: Rc<GrpcPlan>,
    reader: Box<MessageReader>,
    /// The client has sent everything.
    pub request_ended: bool,
    /// The one request of a unary call was handed over.
    has_request: bool,
    /// The head of the answer is sent.
    pub head_sent: bool,
    /// It is on the transport's list of streams with unsent bytes.
    pub is_listed: bool,
    /// Unsent bytes, as they were last reported to the service.
    pub unsent: usize,
    /// Bytes for which the peer was given no credit yet.
    pub withheld: usize,
    /// Bytes that came since the last second, and how the request goes on that is half received.
    arrived: u64,
    progress: Progress,
    /// When its client stops waiting, if ever.
    deadline_ns: Option<u64>,
    /// When its request, or the next one, began to arrive; only where the plan needs it.
    since_ns: u64,
}

impl OpenCall {
    /// The peer owes the rest of a message.
    fn is_half_received(&self) -> bool {
        let missing = !self.plan.streaming && !self.has_request;
        self.withheld == 0 && !self.request_ended && (missing || self.reader.end_of_stream().is_err())
    }

    /// The peer cannot send the rest of a message now.
    pub fn pause(&mut self) {
        self.arrived = 0;
        self.progress.restart();
    }

    /// A second has passed; true if the peer sends the rest of a message too slowly.
    pub fn second_passed(&mut self, limits: &SlowPeers) -> bool {
        let arrived = std::mem::take(&mut self.arrived);
        if !self.is_half_received() {
            self.progress.restart();
            return false;
        }
        self.progress.second_passed(limits, arrived)
    }
}

/// What a connection keeps of its calls.
pub struct IntakeState {
    pub calls: OpenCalls,
    /// Bytes of requests for which some call has not been given credit.
    pub withheld: usize,
    /// How the last call was taken.
    route: Option<Route>,
    /// The window that is with the engine.
    lent: Option<LentWindow>,
    /// What a receive brought in other places than was expected.
    kept: Option<KeptInput>,
    /// What the messages of the connection are charged to.
    pool: Pool,
}

impl IntakeState {
    pub fn new(pool: Pool) -> IntakeState {
        IntakeState::with_hash(pool, IdHash::default())
    }

    /// The same with a hash of its own for the numbers of calls.
    pub fn with_hash(pool: Pool, hash: IdHash) -> IntakeState {
        IntakeState { calls: OpenCalls::with_hasher(hash), withheld: 0, route: None, lent: None, kept: None, pool }
    }

    /// The memory of one tensor, if the next bytes of the stream belong there: block, offset, length.
    fn take_direct(&mut self, id: StreamId) -> Option<(BlockMut, usize, usize)> {
        let call = self.calls.get_mut(&id)?;
        let (block, at, len, ticket) = call.reader.take_direct()?.into_parts();
        self.lent = Some(LentWindow { id, ticket, beside: None });
        Some((block, at, len))
    }

    /// Takes a call away.
    pub fn remove(&mut self, id: StreamId) -> Option<OpenCall> {
        let call = self.calls.remove(&id)?;
        self.withheld -= call.withheld;
        Some(call)
    }
}

/// Readers of messages that wait for the next call of a shard.
pub struct ReaderPool {
    limits: Limits,
    #[expect(clippy::vec_box, reason = "a call holds its reader in a box, and the box itself is to be used again")]
    spare: Vec<Box<MessageReader>>,
}

impl ReaderPool {
    /// `limits`: what a message may hold.
    pub fn new(limits: Limits) -> ReaderPool {
        ReaderPool { limits, spare: Vec::new() }
    }

    #[inline]
    fn take(&mut self, pool: &Pool, mode: Mode, encoding: Encoding) -> Box<MessageReader> {
        let mut reader =
            self.spare.pop().unwrap_or_else(|| Box::new(MessageReader::new(pool.clone(), self.limits, mode)));
        reader.reset(mode, encoding);
        reader.set_pool(pool);
        reader
    }

    /// Keeps what the next call can use of a call that is over.
    #[inline]
    pub fn keep(&mut self, call: OpenCall) {
        if self.spare.len() < READERS_KEPT {
            let mut reader = call.reader;
            reader.reset(call.plan.mode, Encoding::Identity);
            self.spare.push(reader);
        }
    }

    pub fn clear(&mut self) {
        self.spare.clear();
    }
}

/// The transport's table of calls that wait for their answers.
pub trait Exchanges {
    fn now_ns(&self) -> u64;

    /// A call begins, if there is room for it.
    fn open(&mut self, stream: StreamId, deadline: Option<Duration>) -> Result<CallKey, RefusalReason>;

    /// The calls of the connection, to which those on its streams belong.
    fn ledger(&self) -> &Rc<CallLedger>;

    /// The service's work for a call. `None`: the call is over.
    fn work(&mut self, call: CallKey) -> Option<&mut Option<Token>>;

    /// Ends a call; returns the service's work for it.
    fn close(&mut self, call: CallKey) -> Option<Token>;
}

/// Why a call is refused before its messages.
pub enum Refusal {
    /// No gRPC at all: a plain HTTP status.
    Http(&'static [u8]),
    Grpc(GrpcStatus),
    /// Messages that nothing here can unpack; the answer lists the encodings that would do.
    Encoding(UnknownEncoding),
}

/// Hands the calls of a connection to the service.
pub struct Intake<'a, S, E> {
    pub state: &'a mut IntakeState,
    pub service: &'a mut S,
    pub replies: &'a mut Replies,
    pub readers: &'a mut ReaderPool,
    pub exchanges: E,
    /// The transport answers these once the codec is done: it can send nothing while the codec runs.
    pub refused: Vec<(StreamId, Refusal)>,
    /// Too many answers wait for the peer: what arrives is taken without credit for more.
    pub withholds: bool,
    /// So many answers wait for the peer that new calls are refused.
    pub is_overloaded: bool,
}

impl<S: Service, E: Exchanges> Intake<'_, S, E> {
    /// What follows from the head of a call.
    fn route(&mut self, headers: &Headers) -> Result<Route, Refusal> {
        if let Some(route) = &self.state.route
            && route.identity == headers.identity()
            && self.service.is_plan_current(&route.plan)
        {
            return Ok(route.clone());
        }
        if headers.method() != Some(b"POST") {
            return Err(Refusal::Http(b"405"));
        }
        if !headers.get(b"content-type").is_some_and(is_grpc) {
            return Err(Refusal::Http(b"415"));
        }
        let plan = self.service.grpc_plan(headers).map_err(Refusal::Grpc)?;
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
        self.state.route = Some(route.clone());
        Ok(route)
    }

    fn check_load(&self) -> Result<(), Refusal> {
        if !self.is_overloaded {
            return Ok(());
        }
        let text = "too many bytes of answers wait for this client to read them";
        let status = GrpcStatus::refused(Code::ResourceExhausted, RefusalReason::UnreadResponses, text);
        Err(Refusal::Grpc(status))
    }

    /// `deadline`: of the call, if it is not among the headers.
    fn accept(&mut self, stream: StreamId, headers: &Headers, deadline: Option<Duration>) -> Result<OpenCall, Refusal> {
        let Route { plan, encoding, deadline: announced, .. } = self.route(headers)?;
        let deadline = deadline.or(announced);
        self.check_load()?;
        let call = self.exchanges.open(stream, deadline).map_err(|reason| {
            let text = "too many calls wait for their answers";
            Refusal::Grpc(GrpcStatus::refused(Code::ResourceExhausted, reason, text))
        })?;
        if plan.streaming {
            let Some(token) = self.service.grpc_stream(call, &plan, headers, self.exchanges.ledger()) else {
                // Without work nothing would ever answer the call.
                self.exchanges.close(call);
                let (reason, text) = (RefusalReason::Calls, "too many streams wait on this server");
                return Err(Refusal::Grpc(GrpcStatus::refused(Code::ResourceExhausted, reason, text)));
            };
            if let Some(work) = self.exchanges.work(call) {
                *work = Some(token);
            }
        }
        Ok(OpenCall {
            call,
            since_ns: if plan.timed { self.exchanges.now_ns() } else { 0 },
            deadline_ns: deadline.map(|deadline| {
                let ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
                self.exchanges.now_ns().saturating_add(ns)
            }),
            reader: self.readers.take(&self.state.pool, plan.mode, encoding),
            plan,
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

    /// Offers a message that is there as a whole to the service; returns how many bytes were taken, or what the service
    /// has noted of it if it does not take it.
    fn offer_recurring(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, Option<S::Noted>> {
        let open = self.state.calls.get_mut(&id).ok_or(None)?;
        let message = open.reader.whole_message(bytes).ok_or(None)?;
        if open.plan.timed || open.has_request || !open.plan.kept.is_empty() {
            return Err(None);
        }
        let outline = Outline::of(message).ok_or(None)?;
        let work = self.exchanges.work(open.call).ok_or(None)?;
        match self.service.grpc_recurring(open.call, &open.plan, work, open.deadline_ns, &outline, self.replies) {
            Recurring::Unknown(noted) => return Err(noted),
            Recurring::Taken => {}
        }
        open.has_request = !open.plan.streaming;
        Ok(message.len() + PREFIX_BYTES)
    }

    /// Takes messages that are complete, and the end of the request where it has come; `noted` is what the service has
    /// noted of the first message.
    fn advance(&mut self, id: StreamId, noted: &mut Option<S::Noted>, end_stream: bool) {
        let Some(open) = self.state.calls.get_mut(&id) else { return };
        while let Some(message) = open.reader.next_message() {
            open.progress.restart();
            let call = open.call;
            let since_ns = open.plan.timed.then(|| std::mem::replace(&mut open.since_ns, self.exchanges.now_ns()));
            let arrived = Arrived { noted: noted.take(), since_ns, deadline_ns: open.deadline_ns };
            if open.plan.streaming {
                if let Some(token) = self.exchanges.work(call).and_then(|work| *work) {
                    self.service.grpc_stream_message(token, &open.plan, message, arrived, self.replies);
                }
            } else if std::mem::replace(&mut open.has_request, true) {
                let status = GrpcStatus::new(Code::Internal, "a unary call carries one message");
                return self.fail(id, status);
            } else {
                let token = self.service.grpc_unary(call, &open.plan, message, arrived, self.replies);
                if let Some(work) = self.exchanges.work(call) {
                    *work = token;
                }
            }
        }
        if end_stream {
            self.end_of_request(id);
        }
    }

    fn end_of_request(&mut self, id: StreamId) {
        let Some(open) = self.state.calls.get_mut(&id) else { return };
        open.request_ended = true;
        if let Err(error) = open.reader.end_of_stream() {
            return self.fail(id, error.into());
        }
        if open.plan.streaming {
            if let Some(token) = self.exchanges.work(open.call).and_then(|work| *work) {
                self.service.grpc_stream_half_closed(token, self.replies);
            }
        } else if !open.has_request {
            self.fail(id, GrpcStatus::new(Code::Internal, "the call ended without a message"));
        }
    }

    /// A call begins that came another way than HTTP/2, with its deadline.
    pub fn begin(&mut self, id: StreamId, headers: &Headers, deadline: Option<Duration>) {
        match self.accept(id, headers, deadline) {
            Ok(open) => drop(self.state.calls.insert(id, open)),
            Err(refusal) => self.refused.push((id, refusal)),
        }
    }

    /// Ends a call of which the request cannot be taken.
    pub fn fail(&mut self, id: StreamId, status: GrpcStatus) {
        if let Some(open) = self.state.calls.get(&id)
            && let Some(work) = self.exchanges.work(open.call)
        {
            if let Some(token) = work.take() {
                self.service.cancelled(token);
            }
            self.replies.push(open.call, GrpcReply::End(status));
        }
    }

    /// Drops a call that the peer has cancelled, or to which nothing more is sent.
    pub fn drop_call(&mut self, id: StreamId) {
        if let Some(open) = self.state.remove(id) {
            if let Some(token) = self.exchanges.close(open.call) {
                self.service.cancelled(token);
            }
            self.readers.keep(open);
        }
    }

    /// Takes back a window that [`IntakeState::take_direct`] gave, with `n` received bytes.
    pub fn direct_received(
        &mut self,
        connection: &mut http2::Connection,
        block: BlockMut,
        n: usize,
    ) -> Result<(), http2::ConnectionError> {
        let Some(LentWindow { id, ticket, .. }) = self.state.lent.take() else { return Ok(()) };
        if let Some(open) = self.state.calls.get_mut(&id) {
            open.arrived += n as u64;
            open.reader.direct_received(Direct::from_parts(block, ticket), n);
        }
        self.advance(id, &mut None, false);
        let outcome = connection.direct_received(n, self);
        self.give_credit(connection, id, n);
        outcome
    }
}

impl<S: Service, E: Exchanges> http2::Handler for Intake<'_, S, E> {
    fn headers(&mut self, id: StreamId, headers: &Headers, end_stream: bool) {
        match self.accept(id, headers, None) {
            Ok(open) => {
                self.state.calls.insert(id, open);
                if end_stream {
                    self.end_of_request(id);
                }
            }
            Err(refusal) => self.refused.push((id, refusal)),
        }
    }

    fn data(&mut self, id: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        if let Some(open) = self.state.calls.get_mut(&id) {
            open.arrived += bytes.len() as u64;
        }
        let (mut rest, mut noted) = (bytes, None);
        while !rest.is_empty() {
            match self.offer_recurring(id, rest) {
                Ok(n) => {
                    rest = rest.get(n..).unwrap_or_default();
                    continue;
                }
                // Until the message comes, which may take several rounds.
                Err(of_message) => noted = of_message.or(noted),
            }
            let Some(open) = self.state.calls.get_mut(&id) else { return bytes.len() };
            match open.reader.feed(rest) {
                // No path is known that brings bytes here while the transport has the memory that they belong to. The
                // call ends then, because the reader would take none of them for ever.
                Ok(0) if !open.reader.is_ready() => {
                    self.fail(id, GrpcStatus::new(Code::Internal, "the rest of the request came in the wrong place"));
                    return bytes.len();
                }
                // Nothing is taken while a message waits: it is handed over, and the reader goes on.
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(error) => {
                    self.fail(id, error.into());
                    return bytes.len();
                }
            }
            self.advance(id, &mut noted, false);
        }
        if end_stream {
            self.advance(id, &mut None, true);
        }
        match self.state.calls.get_mut(&id) {
            Some(open) if self.withholds && !end_stream => {
                open.withheld += bytes.len();
                self.state.withheld += bytes.len();
                0
            }
            _ => bytes.len(),
        }
    }

    fn trailers(&mut self, id: StreamId, _headers: &Headers) {
        self.advance(id, &mut None, true);
    }

    fn reset(&mut self, id: StreamId, _code: ErrorCode, _cause: ResetCause) {
        self.drop_call(id);
    }
}

#[cfg(test)]
mod tests;
