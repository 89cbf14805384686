//! A gRPC connection over HTTP/2.
//!
//! Its calls and their messages go from the codec to the service ([`Intake`]). Deadlines are kept by the caller's
//! timers: an expired call is answered here and its work cancelled.

use std::rc::Rc;
use std::time::Duration;

use super::keepalive::Pulse;
use super::open_calls::OpenCalls;
use super::{OUT_OF_TIME, PANICKED, ShardContext, call_mut, remove_call};
use nereid_memory::{BlockMut, CallLedger, Gather, Key, Pool, REFUSED, RefusalReason, Scatter};
use nereid_protocol::grpc::{
    ACCEPTED_ENCODINGS, Code, Encoding, Intake, IntakeState, Refusal, UnknownEncoding, Window, encode_message,
};
use nereid_protocol::http2::{self, CachedFields, ErrorCode, SendError, StreamId};
use nereid_protocol::service::{CallKey, GrpcReply, GrpcStatus, Service};
use nereid_protocol::slow_peers::SlowPeers;

/// Unsent bytes of one connection beyond which its peer is given no credit for what it sends. Reading goes on: only
/// so can the peer open its own windows.
const UNSENT_MAX: usize = 64 << 20;
/// Unsent bytes of one connection, of either protocol, beyond which new calls are refused and answers behind others
/// are not taken: never more than this.
const UNSENT_HARD_MAX: usize = 1 << 30;

/// Unsent bytes that any connection may have.
const ALWAYS_BYTES: usize = 64 * 1024;

/// The same for a connection that may have so much of the server's memory: half of that.
pub(super) fn unsent_max(pool: &Pool) -> usize {
    (pool.share_bytes() / 2).min(UNSENT_HARD_MAX)
}

/// Whether an answer may wait behind so many unsent bytes.
pub(super) fn may_wait(unsent: usize, bytes: usize, unsent_max: usize) -> bool {
    unsent == 0 || unsent.saturating_add(bytes) <= unsent_max.max(ALWAYS_BYTES)
}

pub(super) struct GrpcWire {
    pub connection: http2::Connection,
    /// See [`unsent_max`].
    unsent_max: usize,
    ledger: Rc<CallLedger>,
    intake: IntakeState,
    /// Head and end of the answers that go well.
    head: CachedFields,
    tail: CachedFields,
    /// Deadlines of new calls, for the shard's timers.
    pub deadlines: Vec<(CallKey, Duration)>,
    pub failed: bool,
    /// Streams with many answers of which some bytes were unsent at the last report to the service.
    unsent: Vec<StreamId>,
    /// Streams whose requests come too slowly, and those whose answers are taken too slowly.
    late: Vec<StreamId>,
    unread: Vec<StreamId>,
    /// Seconds since it drains.
    drained_s: Option<u32>,
    /// Its pings and its age.
    pub pulse: Pulse,
}

impl GrpcWire {
    pub fn new(connection: http2::Connection, pool: Pool, ledger: Rc<CallLedger>, pulse: Pulse) -> GrpcWire {
        GrpcWire {
            connection,
            unsent_max: unsent_max(&pool),
            ledger,
            intake: IntakeState::new(pool),
            head: CachedFields::new(&HEAD),
            tail: CachedFields::new(&TAIL),
            deadlines: Vec::new(),
            failed: false,
            unsent: Vec::new(),
            late: Vec::new(),
            unread: Vec::new(),
            drained_s: None,
            pulse,
        }
    }

    fn with_intake<S: Service, R>(
        &mut self,
        key: Key,
        shared: &mut ShardContext<S>,
        run: impl FnOnce(&mut http2::Connection, &mut Intake<'_, S, OpenCalls<'_>>) -> R,
    ) -> R {
        let unsent = self.connection.unsent_total();
        let ShardContext { service, replies, calls, readers, stopped_timers, .. } = shared;
        let mut intake = Intake {
            state: &mut self.intake,
            service,
            replies,
            readers,
            exchanges: OpenCalls {
                key,
                table: calls,
                ledger: &self.ledger,
                deadlines: &mut self.deadlines,
                stopped_timers,
            },
            refused: Vec::new(),
            withholds: unsent >= UNSENT_MAX,
            is_overloaded: unsent >= self.unsent_max,
        };
        let outcome = run(&mut self.connection, &mut intake);
        for (id, refusal) in intake.refused {
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
        if self.intake.withheld == 0 || self.connection.unsent_total() >= UNSENT_MAX {
            return;
        }
        self.intake.withheld = 0;
        for (id, stream) in &mut self.intake.calls {
            match std::mem::take(&mut stream.withheld) {
                0 => {}
                n => self.connection.consumed(*id, n),
            }
        }
    }

    /// Reports to the service how much of its answers the peer has made room for.
    pub fn report_unsent<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        let GrpcWire { connection, intake, unsent: listed, .. } = self;
        listed.retain(|id| {
            let Some(stream) = intake.calls.get_mut(id) else { return false };
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
    pub fn report_waits<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        for id in &self.unsent {
            let call = self.intake.calls.get(id).map(|stream| stream.call);
            let token = call.and_then(|call| call_mut(shared, call)).and_then(|call| call.token);
            if let Some(token) = token {
                shared.service.stream_waits(token, &mut shared.replies);
            }
        }
    }

    /// A second has passed. Returns whether the peer owes the rest of a frame, or an answer without which memory of a
    /// call that is over stays with the engine, the number of that frame, and whether there are streams that are too
    /// slow.
    pub fn second_passed(&mut self, limits: &SlowPeers) -> (bool, u64, bool) {
        self.connection.tick(1);
        if let Some(drained_s) = &mut self.drained_s {
            *drained_s = drained_s.saturating_add(1);
            if *drained_s >= DRAIN_PING_S {
                self.connection.finish_shutdown();
            }
        }
        let late = self.intake.calls.iter_mut().filter_map(|(id, call)| call.second_passed(limits).then_some(*id));
        self.late.extend(late);
        self.unread = self.connection.slow_streams(&limits.without_total());
        let (frames, is_half_received) = self.connection.frames();
        let owes = is_half_received || !self.connection.is_established() || self.intake.lends_to_past_call();
        (owes, frames, !self.late.is_empty() || !self.unread.is_empty())
    }

    pub fn streams_len(&self) -> usize {
        self.intake.calls.len()
    }

    pub fn end_late_streams<S: Service>(&mut self, key: Key, shared: &mut ShardContext<S>) {
        let (late, unread) = (std::mem::take(&mut self.late), std::mem::take(&mut self.unread));
        self.with_intake(key, shared, |connection, intake| {
            for id in late {
                intake.fail(id, GrpcStatus::new(Code::Cancelled, "the rest of the request did not come"));
            }
            for id in unread {
                intake.drop_call(id);
                connection.reset(id, ErrorCode::CANCEL);
                intake.state.recall_window(id, connection);
            }
        });
    }

    /// Feeds received bytes; without any, what was kept of those that came before.
    pub fn receive<S: Service>(&mut self, key: Key, bytes: &[u8], shared: &mut ShardContext<S>) {
        let outcome = self.with_intake(key, shared, |connection, intake| match bytes {
            [] => intake.read_kept(connection),
            bytes => connection.receive(bytes, intake),
        });
        self.failed |= outcome.is_err();
    }

    /// The peer sends no more.
    pub fn end_of_input(&mut self) {
        self.intake.forget_input();
    }

    /// Received bytes are still to be read.
    pub fn has_input(&self) -> bool {
        !self.failed && self.intake.has_input()
    }

    /// If the next bytes of the connection are the bytes of one tensor: its own memory.
    pub fn take_window(&mut self) -> Option<Window> {
        self.intake.take_window(&self.connection)
    }

    pub fn direct_received<S: Service>(&mut self, key: Key, block: BlockMut, n: usize, shared: &mut ShardContext<S>) {
        let outcome = self.with_intake(key, shared, |connection, intake| intake.direct_received(connection, block, n));
        self.failed |= outcome.is_err();
    }

    pub fn scattered_received<S: Service>(
        &mut self,
        key: Key,
        scatter: Box<Scatter>,
        n: usize,
        shared: &mut ShardContext<S>,
    ) {
        let outcome =
            self.with_intake(key, shared, |connection, intake| intake.scattered_received(connection, scatter, n));
        self.failed |= outcome.is_err();
    }

    pub fn reply<S: Service>(&mut self, call: CallKey, id: StreamId, reply: GrpcReply, shared: &mut ShardContext<S>) {
        let reply = match reply {
            // One answer of any size may be on its way, but not one behind the other to a peer that does not read.
            GrpcReply::Message(ref message) | GrpcReply::Answer(ref message) if !self.has_room(message.len()) => {
                let text = "too many bytes of answers wait for this client to read them";
                if let Some(token) = call_mut(shared, call).and_then(|call| call.token.take()) {
                    shared.service.cancelled(token);
                }
                let reason = RefusalReason::UnreadResponses;
                GrpcReply::End(GrpcStatus::refused(Code::ResourceExhausted, reason, text))
            }
            reply => reply,
        };
        let Some(stream) = self.intake.calls.get_mut(&id).filter(|stream| stream.call == call) else { return };
        if stream.plan.streaming && !std::mem::replace(&mut stream.is_listed, true) {
            self.unsent.push(id);
        }
        match reply {
            GrpcReply::Message(mut message) => self.send_message(id, &mut message),
            GrpcReply::End(mut status) => {
                if stream.plan.reports_load {
                    status.trailers.extend(shared.service.load_trailer());
                }
                self.end(call, id, &status, shared);
            }
            GrpcReply::Answer(mut message) => {
                let reports_load = stream.plan.reports_load;
                let is_plain = !stream.head_sent
                    && stream.request_ended
                    && stream.withheld == 0
                    && !reports_load
                    && stream.plan.response_encoding == Encoding::Identity;
                if is_plain && self.connection.answer(id, &mut self.head, &mut message, &mut self.tail) {
                    if let Some(stream) = self.intake.remove(id) {
                        remove_call(shared, call);
                        shared.readers.keep(stream);
                    }
                    return;
                }
                self.send_message(id, &mut message);
                let mut status = GrpcStatus::ok();
                if reports_load {
                    status.trailers.extend(shared.service.load_trailer());
                }
                self.end(call, id, &status, shared);
            }
        }
    }

    /// An answer of so many bytes can wait here for its peer.
    fn has_room(&self, bytes: usize) -> bool {
        may_wait(self.connection.unsent_total(), bytes, self.unsent_max)
    }

    fn send_message(&mut self, id: StreamId, message: &mut Gather) {
        let Some(stream) = self.intake.calls.get_mut(&id) else { return };
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
    fn end<S: Service>(&mut self, call: CallKey, id: StreamId, status: &GrpcStatus, shared: &mut ShardContext<S>) {
        let Some(stream) = self.intake.remove(id) else { return };
        let (request_ended, head_sent) = (stream.request_ended, stream.head_sent);
        remove_call(shared, call);
        if stream.withheld > 0 {
            self.connection.consumed(id, stream.withheld);
        }
        shared.readers.keep(stream);
        self.send_end(id, status, if head_sent { &[] } else { &HEAD });
        if !request_ended && self.connection.unsent(id) == 0 {
            // The rest of the request is of no use (RFC 9113 section 8.1).
            self.connection.reset(id, ErrorCode::NO_ERROR);
        }
        self.intake.recall_window(id, &mut self.connection);
    }

    /// `head`: what goes before the status, unless it was sent.
    fn send_end(&mut self, id: StreamId, status: &GrpcStatus, head: &[(&[u8], &[u8])]) {
        let mut message = Vec::new();
        encode_message(&status.message, &mut message);
        status.refusal.inspect(|reason| reason.count());
        if let Err(SendError::HeaderListTooLarge { size, limit }) = self.put_end(id, status, &message, head) {
            // A text may contain a name of any length that the client sent; half of it is better than none.
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
        let reason = status.refusal.map(|reason| (REFUSED.as_bytes(), reason.name().as_bytes()));
        let pushback = status.refusal.and_then(RefusalReason::pushback_ms);
        let pushback = pushback.map(|value| (RETRY_PUSHBACK, value.as_bytes()));
        let fields = head.iter().chain(tail).copied().chain(more).chain(reason).chain(pushback);
        self.connection.send_headers(id, fields, true)
    }

    /// An answer to something that is not gRPC.
    fn end_plain(&mut self, id: StreamId, status: &[u8]) {
        let _ = self.connection.send_headers(id, [(&b":status"[..], status)], true);
        if self.connection.is_open(id) {
            self.connection.reset(id, ErrorCode::NO_ERROR);
        }
    }

    /// Ends a call whose deadline has passed.
    pub fn expired<S: Service>(&mut self, call: CallKey, id: StreamId, shared: &mut ShardContext<S>) {
        if let Some(token) = call_mut(shared, call).and_then(|call| call.token.take()) {
            shared.service.cancelled(token);
        }
        let status = GrpcStatus::new(Code::DeadlineExceeded, "Deadline Exceeded");
        self.reply(call, id, GrpcReply::End(status), shared);
    }

    pub fn abandon<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        self.intake.withheld = 0;
        self.unsent.clear();
        for (_, stream) in self.intake.calls.drain() {
            if let Some(token) = remove_call(shared, stream.call).and_then(|call| call.token) {
                shared.service.cancelled(token);
            }
            shared.readers.keep(stream);
        }
    }

    /// Ends every call with an error.
    pub fn fail_unanswered<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        let calls: Vec<(StreamId, CallKey)> = self.intake.calls.iter().map(|(id, stream)| (*id, stream.call)).collect();
        for (id, call) in calls {
            if let Some(token) = call_mut(shared, call).and_then(|call| call.token.take()) {
                shared.service.cancelled(token);
            }
            let status = GrpcStatus::refused(Code::Unavailable, RefusalReason::Exiting, OUT_OF_TIME);
            self.reply(call, id, GrpcReply::End(status), shared);
        }
    }

    /// Ends a call with an error.
    pub fn fail_call<S: Service>(&mut self, call: CallKey, id: StreamId, shared: &mut ShardContext<S>) {
        if let Some(token) = call_mut(shared, call).and_then(|call| call.token.take()) {
            shared.service.cancelled(token);
        }
        self.reply(call, id, GrpcReply::End(GrpcStatus::new(Code::Internal, PANICKED)), shared);
    }

    pub fn has_unary_calls(&self) -> bool {
        self.intake.calls.values().any(|stream| !stream.plan.streaming)
    }

    /// Ends the connection when its calls are over. A reason that is not empty is sent to the client.
    pub fn drain(&mut self, reason: &'static str) {
        self.drained_s.get_or_insert(0);
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

/// The metadata by which a server delays the retries of a client (gRFC A6).
const RETRY_PUSHBACK: &[u8] = b"grpc-retry-pushback-ms";

/// The head of every gRPC answer.
static HEAD: [(&[u8], &[u8]); 2] = [(b":status", b"200"), (b"content-type", b"application/grpc")];

/// The end of every gRPC answer that goes well.
static TAIL: [(&[u8], &[u8]); 1] = [(b"grpc-status", b"0")];

#[cfg(test)]
mod tests {
    use super::{may_wait, shorten};

    #[test]
    fn a_shortened_text_ends_with_a_whole_escape() {
        for (excess, expected) in [(0, "ab%20%41"), (1, "ab%20"), (2, "ab%20"), (3, "ab%20"), (4, "ab"), (9, "")] {
            let mut message = b"ab%20%41".to_vec();
            shorten(&mut message, excess);
            assert_eq!(message, expected.as_bytes(), "{excess}");
        }
    }

    #[test]
    fn an_answer_waits_up_to_the_bound_or_alone() {
        for (unsent_max, bound) in [(0, 65_536), (65_535, 65_536), (100_000, 100_000)] {
            assert!(may_wait(1, bound - 1, unsent_max), "{unsent_max}");
            assert!(!may_wait(1, bound, unsent_max), "{unsent_max}");
            assert!(may_wait(0, bound + 1, unsent_max), "one of any size");
        }
    }
}
