//! One client's shared-memory rings: the calls in them, and what waits for room (docs/ipc.md).
//!
//! The bytes of a call go through the intake that HTTP/2 uses, so that all that is behind it is the same. Everything
//! here runs on the shard that accepted the client. Frames are copied out of the shared memory before they are looked
//! at; a client that breaks the contract loses its connection, and no other client notices.

mod backlog;
mod rings;

use std::rc::Rc;
use std::time::Duration;

use super::grpc::unsent_max;
use super::open_calls::OpenCalls;
use super::{OUT_OF_TIME, PANICKED, ShardContext, call_mut, remove_call};
use backlog::{Backlog, Content, PART_BYTES, copy, part_max};
use nereid_ipc::{ClientFrame, DATA_HEAD, ROUTES_MAX, ServerEnd, Violation, encode, from_server};
use nereid_memory::regions::LentRegion;
use nereid_memory::{CallLedger, Exhausted, Gather, Key, Pool, REFUSED, RefusalReason, Slice};
use nereid_protocol::grpc::{Code, Intake, IntakeState, OpenCall, Refusal};
use nereid_protocol::http2::{Handler as _, Headers, IdHash, StreamId};
use nereid_protocol::service::{CallKey, GrpcReply, GrpcStatus, Service};
use nereid_protocol::slow_peers::SlowPeers;
use nereid_queue::frames::Corrupt;
pub use rings::{IpcCounts, IpcSettings, IpcUsers, RefusedClient};
pub(super) use rings::{PolledRings, RingState};

/// Frames and bytes that one turn takes from a ring.
const FRAMES_PER_TURN: usize = 256;
const BYTES_PER_TURN: usize = 1 << 20;
/// Answers that wait for room, or parts of them, beyond which no frame is taken.
const UNWRITTEN_MAX: usize = 1024;
/// Seconds for which a client may leave the request to leave unread, and after which a connection that ends is closed
/// whatever its client still sends.
const LEAVE_S: u32 = 2;
const FAREWELL_S: u32 = 5;
/// Metadata that has no meaning in a route: the frames say it, or nothing does.
const IGNORED: [&[u8]; 5] = [b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"te", b"content-type"];
/// The byte that wakes the client.
static BELL: [u8; 1] = [1];

/// See the [module](self).
pub(super) struct IpcWire {
    end: ServerEnd,
    intake: IntakeState,
    ledger: Rc<CallLedger>,
    /// Unsent bytes beyond which answers behind others are not taken.
    unsent_max: usize,
    routes: Vec<Option<Box<Headers>>>,
    /// Of the route that was defined last.
    identity: u64,
    /// Deadlines of new calls, for the shard's timers.
    pub deadlines: Vec<(CallKey, Duration)>,
    /// Pieces of an answer; scratch.
    pieces: Vec<Slice>,
    backlog: Backlog,
    /// Frames were left in the ring since the last second because too many answers wait.
    is_held_up: bool,
    /// Streams with many answers of which some bytes were unsent at the last report to the service.
    unsent: Vec<StreamId>,
    /// There is a new one.
    has_listed: bool,
    /// Calls whose requests come too slowly.
    late: Vec<StreamId>,
    /// The client was requested to leave; how many seconds ago the connection began to end.
    is_leaving: bool,
    drained_s: Option<u32>,
    pub state: RingState,
    pub failed: bool,
    /// Dropped last: the thread for that empties and unmaps the object.
    _lent: LentRegion,
}

impl IpcWire {
    pub fn new(end: ServerEnd, (pool, ledger): (Pool, Rc<CallLedger>), hash: IdHash, lent: LentRegion) -> IpcWire {
        IpcWire {
            end,
            unsent_max: unsent_max(&pool),
            intake: IntakeState::with_hash(pool, hash),
            ledger,
            routes: Vec::new(),
            identity: 0,
            deadlines: Vec::new(),
            pieces: Vec::new(),
            backlog: Backlog::new(hash),
            is_held_up: false,
            unsent: Vec::new(),
            has_listed: false,
            late: Vec::new(),
            is_leaving: false,
            drained_s: None,
            state: RingState::default(),
            failed: false,
            _lent: lent,
        }
    }

    /// Takes the frames that are there, as many as a turn has time for; true if there was one.
    pub fn take_frames<S: Service>(&mut self, key: Key, shared: &mut ShardContext<S>) -> bool {
        let (mut frames, mut bytes) = (0, 0);
        self.failed |= self.end.is_lost();
        let mut frame = std::mem::take(&mut shared.ipc_frame);
        let mut violation = None;
        let is_ending = self.is_ending();
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
            withholds: false,
            is_overloaded: self.backlog.charged() >= self.unsent_max,
        };
        while !self.failed && frames < FRAMES_PER_TURN && bytes < BYTES_PER_TURN {
            if self.backlog.len() >= UNWRITTEN_MAX {
                self.is_held_up = true;
                break;
            }
            let read = match self.end.take(&mut frame) {
                Ok(None) => break,
                Ok(Some(kind)) => ClientFrame::read(kind, &frame),
                Err(Corrupt) => Err(Violation::Position),
            };
            (frames, bytes) = (frames + 1, bytes + frame.len());
            let taken = read.and_then(|frame| match frame {
                ClientFrame::Call { call, route, ends, timeout_ns, bytes } => {
                    let id = StreamId::of_call(call);
                    if call == 0 || intake.state.calls.contains_key(&id) {
                        return Err(Violation::Call);
                    }
                    let headers = self.routes.get(route).and_then(Option::as_ref).ok_or(Violation::Route)?;
                    if is_ending {
                        let status = GrpcStatus::refused(Code::Unavailable, RefusalReason::Exiting, OUT_OF_TIME);
                        intake.refused.push((id, Refusal::Grpc(status)));
                        return Ok(());
                    }
                    let deadline = (timeout_ns > 0).then(|| Duration::from_nanos(timeout_ns));
                    intake.begin(id, headers, deadline);
                    intake.data(id, bytes, ends);
                    Ok(())
                }
                ClientFrame::Data { call, ends, bytes } => {
                    let id = StreamId::of_call(call);
                    // Nothing is wrong with bytes for a call that is over: the client may not know it yet.
                    let Some(open) = intake.state.calls.get(&id) else { return Ok(()) };
                    if open.request_ended {
                        return Err(Violation::BehindEnd);
                    }
                    intake.data(id, bytes, ends);
                    Ok(())
                }
                ClientFrame::Cancel { call } => {
                    intake.drop_call(StreamId::of_call(call));
                    self.backlog.forget(call);
                    Ok(())
                }
                ClientFrame::Route { route, path, metadata } => {
                    self.identity += 1;
                    let headers = headers_of(self.identity, path, metadata)?;
                    if self.routes.len() <= route {
                        self.routes.resize_with((route + 1).min(ROUTES_MAX), || None);
                    }
                    *self.routes.get_mut(route).ok_or(Violation::Route)? = Some(Box::new(headers));
                    Ok(())
                }
            });
            if let Err(found) = taken {
                violation = Some(found);
                break;
            }
        }
        let refused = std::mem::take(&mut intake.refused);
        // Frames are small as a rule.
        frame.shrink_to(PART_BYTES);
        shared.ipc_frame = frame;
        for (id, refusal) in refused {
            let status = match refusal {
                Refusal::Grpc(status) => status,
                Refusal::Encoding(error) => GrpcStatus::new(Code::Unimplemented, error.to_string()),
                Refusal::Http(_) => GrpcStatus::new(Code::Internal, "the head of a call is none of gRPC"),
            };
            self.write_status(id.get(), &status);
        }
        if let Some(violation) = violation {
            self.fail(violation);
        }
        frames > 0
    }

    /// The shard is about to sleep: the client has to ring. False: there is something to do.
    fn park(&mut self) -> bool {
        let waiting = self.backlog.len();
        self.state.wants_room = waiting > 0;
        self.failed || self.end.park(waiting < UNWRITTEN_MAX, waiting > 0)
    }

    /// The client does not have to ring any more.
    fn unpark(&mut self) {
        self.state.wants_room = false;
        self.end.unpark();
    }

    /// The server ends, and the client may still read.
    pub fn keep_contents(&self) {
        self.end.keep_all();
    }

    /// It has to be polled because nothing else would: its client was not asked to ring when there is room, or the
    /// connection ends when its last frames are taken.
    pub fn needs_poll(&self) -> bool {
        let waits_for_room = !self.backlog.is_empty() && !self.state.wants_room;
        !self.state.is_polled && !self.failed && (waits_for_room || (self.is_ending() && self.end.has_frames()))
    }

    /// Ends the connection, and sends the reason to the client.
    #[cold]
    fn fail(&mut self, violation: Violation) {
        tracing::debug!("a shared-memory connection is closed: {violation}");
        let status = GrpcStatus::new(Code::InvalidArgument, violation.to_string());
        self.write_status(0, &status);
        self.failed = true;
    }

    fn write_status(&mut self, call: u32, status: &GrpcStatus) {
        status.refusal.inspect(|reason| reason.count());
        let more = status.trailers.iter().map(|(name, value)| (&**name, &**value));
        let reason = status.refusal.map(|reason| (REFUSED.as_bytes(), reason.name().as_bytes()));
        let pushback = status.refusal.and_then(RefusalReason::pushback_ms);
        let pushback = pushback.map(|value| (&b"grpc-retry-pushback-ms"[..], value.as_bytes()));
        let trailers = reason.into_iter().chain(pushback).chain(more);
        let most = self.end.status_max();
        let payload = encode::status(call, status.code as u32, &status.message, trailers, most);
        self.write_frame(call, from_server::STATUS, payload);
    }

    fn write_frame(&mut self, call: u32, kind: u32, payload: Vec<u8>) {
        let is_written = self.backlog.is_empty() && self.written(payload.len(), |end| end.push(kind, &payload));
        if !is_written {
            self.backlog.push(call, Content::Frame { kind, payload });
        }
    }

    /// Runs what writes so many bytes to the ring; false if there is no room.
    fn written(&mut self, bytes: usize, write: impl FnOnce(&mut ServerEnd) -> Result<bool, Corrupt>) -> bool {
        match write(&mut self.end) {
            Ok(is_written) => {
                self.backlog.note_written(if is_written { bytes } else { 0 });
                is_written
            }
            Err(Corrupt) => {
                self.failed = true;
                false
            }
        }
    }

    /// Writes bytes of the messages of a call, or keeps them until there is room.
    fn write_data(&mut self, call: u32, message: &mut Gather, ends: bool) {
        let len = message.len();
        let mut pieces = std::mem::take(&mut self.pieces);
        message.take(usize::MAX, &mut pieces);
        let is_written = self.backlog.is_empty()
            && len <= part_max(&self.end)
            && self.written(DATA_HEAD + len, |end| {
                end.push_data(call, ends, len, |to| pieces.iter().for_each(|one| copy(one, to)))
            });
        if is_written {
            pieces.clear();
        } else {
            self.backlog.push(call, Content::Data { pieces: pieces.drain(..).collect(), ends });
        }
        self.pieces = pieces;
    }

    /// Writes what waits, as far as there is room; copies a portion of memory that is not ours if that is due, and
    /// returns whether there is more to copy.
    pub fn advance(&mut self, pool: &Pool) -> Result<bool, Exhausted> {
        if self.backlog.write(&mut self.end) == Err(Corrupt) {
            self.failed = true;
        }
        self.backlog.copy(pool)
    }

    pub fn reply<S: Service>(&mut self, call: CallKey, id: StreamId, reply: GrpcReply, shared: &mut ShardContext<S>) {
        let reply = match reply {
            // One answer of any size may wait, but not one behind the other for a client that does not read.
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
        if self.failed {
            // Nothing follows the last frame, and what is over is not cancelled.
            if !matches!(reply, GrpcReply::Message(_)) && self.intake.calls.get(&id).is_some_and(|one| one.call == call)
            {
                self.end_call(call, id, shared);
            }
            return;
        }
        let Some(stream) = self.intake.calls.get_mut(&id).filter(|stream| stream.call == call) else { return };
        let reports_load = stream.plan.reports_load;
        if stream.plan.streaming && !std::mem::replace(&mut stream.is_listed, true) {
            self.unsent.push(id);
            self.has_listed = true;
        }
        match reply {
            GrpcReply::Message(mut message) => self.write_data(id.get(), &mut message, false),
            GrpcReply::End(mut status) => {
                if reports_load {
                    status.trailers.extend(shared.service.load_trailer());
                }
                self.end_call(call, id, shared);
                self.write_status(id.get(), &status);
            }
            GrpcReply::Answer(mut message) if reports_load => {
                self.write_data(id.get(), &mut message, false);
                let mut status = GrpcStatus::ok();
                status.trailers.extend(shared.service.load_trailer());
                self.end_call(call, id, shared);
                self.write_status(id.get(), &status);
            }
            GrpcReply::Answer(mut message) => {
                self.end_call(call, id, shared);
                self.write_data(id.get(), &mut message, true);
            }
        }
    }

    /// An answer of so many bytes can wait here for its client.
    fn has_room(&self, bytes: usize) -> bool {
        super::grpc::may_wait(self.backlog.charged(), bytes, self.unsent_max)
    }

    /// Forgets a call, whose work is over: there is nothing to cancel.
    fn end_call<S: Service>(&mut self, call: CallKey, id: StreamId, shared: &mut ShardContext<S>) {
        if let Some(stream) = self.intake.remove(id) {
            remove_call(shared, call);
            shared.readers.keep(stream);
        }
    }

    /// Cancels the work of the service for a call.
    fn cancel<S: Service>(&mut self, call: CallKey, shared: &mut ShardContext<S>) {
        if let Some(token) = call_mut(shared, call).and_then(|call| call.token.take()) {
            shared.service.cancelled(token);
        }
    }

    /// Ends a call whose deadline has passed.
    pub fn expired<S: Service>(&mut self, call: CallKey, id: StreamId, shared: &mut ShardContext<S>) {
        self.cancel(call, shared);
        let status = GrpcStatus::new(Code::DeadlineExceeded, "Deadline Exceeded");
        self.reply(call, id, GrpcReply::End(status), shared);
    }

    pub fn abandon<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        self.unsent.clear();
        self.backlog.clear();
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
            self.cancel(call, shared);
            let status = GrpcStatus::refused(Code::Unavailable, RefusalReason::Exiting, OUT_OF_TIME);
            self.reply(call, id, GrpcReply::End(status), shared);
        }
    }

    /// Ends a call with an error.
    pub fn fail_call<S: Service>(&mut self, call: CallKey, id: StreamId, shared: &mut ShardContext<S>) {
        self.cancel(call, shared);
        self.reply(call, id, GrpcReply::End(GrpcStatus::new(Code::Internal, PANICKED)), shared);
    }

    /// What goes through the socket: a byte if the client has to be woken.
    pub fn take_bell(&mut self, pieces: &mut Vec<Slice>) {
        if self.end.is_bell_due() {
            pieces.push(Slice::from_static(&BELL));
        }
    }

    /// Something waits for room.
    fn is_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Bytes that have found no room in the ring, with what it costs to keep them.
    pub fn unsent(&self) -> usize {
        self.backlog.charged()
    }

    /// Bytes of one call that have found no room.
    pub fn unsent_of(&self, id: StreamId) -> usize {
        self.backlog.bytes_of(id.get())
    }

    /// Reports to the service how much of its answers the client has made room for.
    pub fn report_unsent<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        // What is new on the list has just been given to the backlog, or found room.
        let has_changed = self.backlog.take_change();
        if self.unsent.is_empty() || !(has_changed || std::mem::take(&mut self.has_listed)) {
            return;
        }
        let mut listed = std::mem::take(&mut self.unsent);
        listed.retain(|id| {
            let unsent = self.backlog.bytes_of(id.get());
            let Some(stream) = self.intake.calls.get_mut(id) else { return false };
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
        self.unsent = listed;
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

    /// A second has passed. Returns whether the client leaves its ring full for too long, and whether there are calls
    /// whose requests come too slowly.
    pub fn second_passed(&mut self, limits: &SlowPeers) -> (bool, bool) {
        self.failed |= self.end.is_lost();
        if std::mem::take(&mut self.is_held_up) || self.backlog.len() >= UNWRITTEN_MAX {
            // Their bytes may lie in the ring.
            self.intake.calls.values_mut().for_each(OpenCall::pause);
        } else {
            let late = self.intake.calls.iter_mut().filter_map(|(id, call)| call.second_passed(limits).then_some(*id));
            self.late.extend(late);
        }
        if let Some(drained_s) = &mut self.drained_s {
            *drained_s = drained_s.saturating_add(1);
        }
        (self.backlog.second_passed(limits), !self.late.is_empty())
    }

    /// Ends the calls whose requests come too slowly.
    pub fn end_late_calls<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        for id in std::mem::take(&mut self.late) {
            let Some(call) = self.intake.calls.get(&id).map(|stream| stream.call) else { continue };
            self.cancel(call, shared);
            let status = GrpcStatus::new(Code::Cancelled, "the rest of the request did not come");
            self.reply(call, id, GrpcReply::End(status), shared);
        }
    }

    /// Memory that is not ours waits for room, and is not being copied.
    pub fn holds_foreign(&self) -> bool {
        self.backlog.holds_foreign()
    }

    /// Memory that is not ours has waited for long enough: it is to be copied.
    pub fn let_go(&mut self) {
        self.backlog.let_go();
    }

    pub fn calls_len(&self) -> usize {
        self.intake.calls.len()
    }

    pub fn is_busy(&self) -> bool {
        !self.backlog.is_empty() || self.intake.calls.values().any(|stream| !stream.plan.streaming)
    }

    /// Requests the client to go elsewhere; what it sends is served meanwhile.
    pub fn leave(&mut self) {
        if !std::mem::replace(&mut self.is_leaving, true) {
            self.write_frame(0, from_server::LEAVE, vec![0; 8]);
        }
    }

    /// Ends the connection when its calls are over.
    pub fn drain(&mut self) {
        self.leave();
        self.drained_s.get_or_insert(0);
    }

    /// The client has had its time to read that it should leave: calls that it begins now are refused.
    fn is_ending(&self) -> bool {
        self.drained_s.is_some_and(|drained_s| drained_s >= LEAVE_S)
    }

    pub fn should_close(&self) -> bool {
        let is_over = self.intake.calls.is_empty() && self.backlog.is_empty();
        // Calls that lie in the ring get their refusal.
        let may_close = !self.end.has_frames() || self.drained_s.is_some_and(|drained_s| drained_s >= FAREWELL_S);
        self.failed || (self.is_ending() && is_over && may_close)
    }
}

/// The head of the calls of a route.
fn headers_of(identity: u64, path: &[u8], strings: nereid_ipc::Strings<'_>) -> Result<Headers, Violation> {
    let strings = strings.collect::<Result<Vec<_>, _>>()?;
    let (pairs, []) = strings.as_chunks::<2>() else { return Err(Violation::Metadata) };
    let pairs = pairs.iter().map(|[name, value]| (*name, *value)).filter(|(name, _)| !IGNORED.contains(name));
    Headers::of_call(identity, path, pairs).ok_or(Violation::Metadata)
}
