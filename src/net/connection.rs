//! One connection: its codec, and what it is doing with its socket.

mod state;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use nereid_memory::{BlockMut, CallLedger, Key, Pool, Scatter, ShareTally, Slice};
use nereid_mutants::{self as mutants, Mutant};
use nereid_protocol::grpc::Window;
use nereid_protocol::http1::IntakeState;
use nereid_protocol::http2::StreamId;
use nereid_protocol::service::{CallKey, Port, Reply, Service};
use nereid_protocol::slow_peers::SlowPeers;
use nereid_protocol::{http1, http2};
use nereid_shard::{LoadGuard, TimerKey};

use super::grpc::GrpcWire;
use super::http::HttpWire;
use super::ipc::IpcWire;
use super::keepalive::Pulse;
use super::sent_callbacks::SentCallbacks;
use super::timeouts::{LINGER_S, PartialSend, PieceLists};
use super::tls::Tls;
use super::{CallAddress, ShardContext};
use state::PeerProgress;
pub(super) use state::{ClosePhase, SendState};

/// Pieces of one gathered send; the system's limit is 1024.
const PIECES_MAX: usize = 256;
/// Bytes that one receive brings into the memory of a tensor: what a turn has time to copy into fresh pages.
const RECEIVED_AT_ONCE: usize = 1 << 20;
/// Unsent bytes of one connection that are not worth counting for its client.
const COUNTED_FROM: usize = 64 * 1024;

pub(super) enum Wire {
    Http(Box<HttpWire>),
    Grpc(Box<GrpcWire>),
    Ipc(Box<IpcWire>),
}

impl Wire {
    pub fn http1(connection: http1::Connection, pool: &Pool, ledger: Rc<CallLedger>, intake: IntakeState) -> Wire {
        Wire::Http(Box::new(HttpWire::new(connection, pool, ledger, intake)))
    }

    pub fn http2(connection: http2::Connection, pool: Pool, ledger: Rc<CallLedger>, pulse: Pulse) -> Wire {
        Wire::Grpc(Box::new(GrpcWire::new(connection, pool, ledger, pulse)))
    }

    /// See [`http1::Connection::rest`].
    fn rest(&mut self) {
        match self {
            Wire::Http(wire) => wire.connection.rest(),
            Wire::Grpc(wire) => wire.connection.rest(),
            // The rings are the client's memory, and a backlog that is empty keeps none.
            Wire::Ipc(_) => {}
        }
    }

    /// Bytes of answers that have not left for the engine.
    fn unsent(&self) -> usize {
        match self {
            Wire::Http(wire) => wire.connection.unsent(),
            Wire::Grpc(wire) => wire.connection.unsent_total(),
            Wire::Ipc(wire) => wire.unsent(),
        }
    }

    fn output_len(&mut self) -> usize {
        match self {
            Wire::Http(wire) => wire.connection.output().len(),
            Wire::Grpc(wire) => wire.connection.output().len(),
            // Answers are in the ring when they leave here.
            Wire::Ipc(_) => 0,
        }
    }

    /// Moves pieces from the output of the codec to `pieces`.
    fn take_pieces(&mut self, pieces: &mut Vec<Slice>) {
        let output = match self {
            Wire::Http(wire) => wire.connection.output(),
            Wire::Grpc(wire) => wire.connection.output(),
            Wire::Ipc(wire) => return wire.take_bell(pieces),
        };
        output.take(PIECES_MAX, pieces);
        if let Wire::Grpc(wire) = self {
            wire.give_credit();
        }
    }

    /// How many bytes of the output have to be taken until every answer of `at` is; `None`: some of it is not in the
    /// output yet.
    fn behind(&mut self, at: CallAddress) -> Option<usize> {
        match (self, at) {
            // Answers leave in order: what waits may be this answer, or one before it.
            (Wire::Http(wire), CallAddress::Http(_)) => {
                let (unsent, len) = (wire.connection.unsent(), wire.connection.output().len());
                (unsent == len).then_some(len)
            }
            (Wire::Grpc(wire), CallAddress::Grpc(id)) => {
                let len = wire.connection.output().len();
                (wire.connection.unsent(id) == 0).then_some(len)
            }
            _ => Some(0),
        }
    }
}

pub(super) struct Connection {
    pub(super) wire: Wire,
    pub port: Port,
    /// `None`: of a Unix socket.
    peer: Option<SocketAddr>,
    /// Its place in the shard's count.
    _load_guard: LoadGuard,
    /// On the list of connections to settle.
    pub dirty: bool,
    pub phase: ClosePhase,
    /// Its code panicked: its state is not used any more.
    pub has_panicked: bool,
    /// A receive is with the engine.
    pub receiving: bool,
    pub send: SendState,
    pub progress: PeerProgress,
    /// It came when hardly any descriptors were left: it has these seconds, and one request.
    pub brief_s: Option<u32>,
    /// Counts the answers that wait here against the memory that the connection may have.
    unsent: ShareTally,
    sent_callbacks: SentCallbacks<CallAddress>,
    /// Runs while a send holds memory that is not ours.
    pub timer: Option<TimerKey>,
    /// Between the socket and the codec, where the listener uses TLS.
    pub tls: Option<Box<Tls>>,
}

/// What a second has done to a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SecondOutcome {
    Fine,
    /// Its send may be stuck.
    Recall,
    /// Some of its streams go on too slowly.
    LateStreams,
    Close,
}

impl Connection {
    pub fn new(
        wire: Wire,
        (port, peer): (Port, Option<SocketAddr>),
        load_guard: LoadGuard,
        tls: Option<Tls>,
        unsent: ShareTally,
    ) -> Connection {
        Connection {
            wire,
            port,
            peer,
            _load_guard: load_guard,
            dirty: false,
            phase: ClosePhase::Open,
            has_panicked: false,
            receiving: false,
            send: SendState::Idle,
            progress: PeerProgress::default(),
            brief_s: None,
            unsent,
            sent_callbacks: SentCallbacks::default(),
            timer: None,
            tls: tls.map(Box::new),
        }
    }

    /// A send is over, or was called back with what the peer has not taken.
    pub fn sent(&mut self, taken: usize, pieces: Vec<Slice>, lists: &mut PieceLists) {
        self.progress.taken(taken);
        if !pieces.is_empty() {
            self.send = SendState::Returned(PartialSend::of(pieces));
            return;
        }
        self.send = SendState::Idle;
        lists.keep(pieces);
        if !self.sent_callbacks.is_empty() {
            self.sent_callbacks.sent();
        }
    }

    /// Copies a portion of what a recalled send brought back; true if there is more to copy.
    pub fn copy_partial_send(&mut self, pool: &Pool) -> bool {
        if self.phase == ClosePhase::Broken {
            return false;
        }
        let mut outcome = self.tls.as_mut().map_or(Ok(false), |tls| tls.copy_backlog(pool));
        if let (Ok(false), SendState::Returned(partial)) = (&outcome, &mut self.send)
            && !partial.is_copied()
        {
            outcome = partial.copy(pool).map(|()| !partial.is_copied());
        }
        outcome.unwrap_or_else(|_| {
            // Without memory for it the model's memory goes first, and the client that does not read with it.
            self.phase.fail();
            false
        })
    }

    /// Writes to a ring what waits for room in it; true if memory that is not ours is still to be copied.
    pub fn advance_ring(&mut self, pool: &Pool) -> bool {
        let Wire::Ipc(wire) = &mut self.wire else { return false };
        if !self.phase.may_send() {
            return false;
        }
        let copies_more = wire.advance(pool).unwrap_or_else(|_| {
            // As above, but what lies in the ring can still be read.
            wire.failed = true;
            false
        });
        if !self.sent_callbacks.is_empty() && !wire.failed {
            // An answer is sent when it is in the ring, whether or not its client hears the bell.
            self.sent_callbacks.leave(0, |at| match at {
                CallAddress::Grpc(id) => (wire.unsent_of(id) == 0).then_some(0),
                CallAddress::Http(_) => Some(0),
            });
            self.sent_callbacks.sent();
        }
        copies_more
    }

    /// Ends the connection of a client that is too slow, which may still read what lies in its ring: nothing else is
    /// kept for it. False: it is no ring, or ends already.
    pub fn end_slow_ring(&mut self) -> bool {
        let Wire::Ipc(wire) = &mut self.wire else { return false };
        if self.phase != ClosePhase::Open || self.brief_s.is_some() || std::mem::replace(&mut wire.failed, true) {
            return false;
        }
        // The engine may have a bell that nobody hears: it is called back.
        self.progress = PeerProgress::default();
        true
    }

    /// The server ends: what lies in a ring stays there for its client.
    pub fn keep_ring_contents(&self) {
        if let Wire::Ipc(wire) = &self.wire {
            wire.keep_contents();
        }
    }

    /// A ring that is not polled, and has to be.
    pub fn needs_poll(&self) -> bool {
        matches!(&self.wire, Wire::Ipc(wire) if self.phase == ClosePhase::Open && wire.needs_poll())
    }

    /// A second has passed, in which the peer may have had its turn.
    pub fn second_passed(&mut self, limits: &SlowPeers) -> SecondOutcome {
        let moved = self.progress.end_second();
        if self.progress.has_come_to_rest() {
            // Most connections of a server are at rest, and there may be many.
            self.wire.rest();
        }
        if let Some(is_over) = self.phase.second_passed() {
            return if is_over { SecondOutcome::Close } else { SecondOutcome::Fine };
        }
        if let Some(left_s) = &mut self.brief_s {
            *left_s = left_s.saturating_sub(1);
            if *left_s == 0 {
                return SecondOutcome::Close;
            }
        }
        if self.tls.as_mut().is_some_and(|tls| tls.second_passed()) {
            return SecondOutcome::Close;
        }
        let (mut owes, number, late_streams) = match &mut self.wire {
            Wire::Http(wire) => (wire.connection.is_receiving(), wire.requests, false),
            Wire::Grpc(wire) => wire.second_passed(limits),
            Wire::Ipc(wire) => match wire.second_passed(limits) {
                (true, _) => return SecondOutcome::Close,
                (false, late_calls) => (false, 0, late_calls),
            },
        };
        owes |= self.tls.as_ref().is_some_and(|tls| tls.is_half_received());
        if self.progress.is_request_late(owes.then_some(number), limits, moved) {
            return SecondOutcome::Close;
        }
        // The last frames for a peer that broke a rule are not worth a long wait.
        let limits = match &self.wire {
            Wire::Grpc(wire) if wire.failed => SlowPeers { window_s: limits.window_s.min(LINGER_S), ..*limits },
            Wire::Ipc(wire) if wire.failed => SlowPeers { window_s: limits.window_s.min(LINGER_S), ..*limits },
            _ => *limits,
        };
        if self.progress.is_response_late(self.send.is_in_engine(), &limits, moved) {
            return SecondOutcome::Close;
        }
        match late_streams {
            true => SecondOutcome::LateStreams,
            false if self.progress.is_send_stuck() => SecondOutcome::Recall,
            false => SecondOutcome::Fine,
        }
    }

    /// Ends the calls whose requests come too slowly, or whose answers are taken too slowly.
    pub fn end_late_streams<S: Service>(&mut self, key: Key, shared: &mut ShardContext<S>) {
        match &mut self.wire {
            Wire::Http(_) => {}
            Wire::Grpc(wire) => wire.end_late_streams(key, shared),
            Wire::Ipc(wire) => wire.end_late_calls(shared),
        }
    }

    /// What a check of the connection costs, in streams.
    pub fn weight(&self) -> usize {
        match &self.wire {
            Wire::Http(_) => 1,
            Wire::Grpc(wire) => 1 + wire.streams_len(),
            Wire::Ipc(wire) => 1 + wire.calls_len(),
        }
    }

    /// A request has come from beginning to end.
    pub fn has_requested(&self) -> bool {
        match &self.wire {
            Wire::Http(wire) => wire.requests > 0,
            Wire::Grpc(wire) => wire.streams_len() > 0,
            Wire::Ipc(wire) => wire.calls_len() > 0,
        }
    }

    /// A peer that is still sending would lose the last answer to a reset if the socket were closed at once; and a
    /// client loses what it has not read in its ring.
    pub fn may_linger(&self) -> bool {
        let has_answer = matches!(self.wire, Wire::Http(_) | Wire::Ipc(_));
        let has_answer = has_answer || self.tls.as_ref().is_some_and(|tls| tls.has_failed());
        has_answer && matches!(self.phase, ClosePhase::Open | ClosePhase::Lingering { .. })
    }

    /// Feeds received bytes; without any, what the codec kept back.
    pub fn receive<S: Service>(&mut self, key: Key, bytes: &[u8], shared: &mut ShardContext<S>) {
        shared.service.set_peer(self.peer);
        match &mut self.wire {
            Wire::Http(wire) => wire.receive(key, bytes, shared),
            Wire::Grpc(wire) => wire.receive(key, bytes, shared),
            // The client has rung.
            Wire::Ipc(wire) => drop(wire.take_frames(key, shared)),
        }
    }

    /// Where the next bytes belong, if that is one tensor's own memory.
    pub fn take_window(&mut self) -> Option<Window> {
        let window = match &mut self.wire {
            Wire::Http(wire) => wire.take_direct().map(|(block, at, len)| Window::Block { block, at, len }),
            Wire::Grpc(wire) => wire.take_window(),
            Wire::Ipc(_) => None,
        };
        match window? {
            Window::Block { block, at, len } => {
                let at = if mutants::is(Mutant::DirectMisplaced) { 0 } else { at };
                Some(Window::Block { block, at, len: len.min(RECEIVED_AT_ONCE) })
            }
            frames => Some(frames),
        }
    }

    pub fn scattered_received<S: Service>(
        &mut self,
        key: Key,
        scatter: Box<Scatter>,
        n: usize,
        shared: &mut ShardContext<S>,
    ) {
        shared.service.set_peer(self.peer);
        if let Wire::Grpc(wire) = &mut self.wire {
            wire.scattered_received(key, scatter, n, shared);
        }
    }

    pub fn direct_received<S: Service>(
        &mut self,
        key: Key,
        block: BlockMut,
        at: usize,
        n: usize,
        shared: &mut ShardContext<S>,
    ) {
        shared.service.set_peer(self.peer);
        match &mut self.wire {
            Wire::Http(wire) => wire.direct_received(key, block, at, n, shared),
            Wire::Grpc(wire) => wire.direct_received(key, block, n, shared),
            Wire::Ipc(_) => {}
        }
    }

    /// The peer closed its side, or the connection broke: requests without an answer are cancelled.
    pub fn peer_left<S: Service>(&mut self, key: Key, shared: &mut ShardContext<S>) {
        self.phase.end_input();
        shared.service.set_peer(self.peer);
        match &mut self.wire {
            Wire::Http(wire) => wire.end_of_input(key, shared),
            Wire::Grpc(wire) => wire.end_of_input(),
            Wire::Ipc(_) => {}
        }
        self.abandon(shared);
    }

    /// Gives up every exchange that has no answer yet.
    pub fn abandon<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        match &mut self.wire {
            Wire::Http(wire) => wire.abandon(shared),
            Wire::Grpc(wire) => wire.abandon(shared),
            Wire::Ipc(wire) => {
                wire.abandon(shared);
                // What they wait for is not sent.
                self.sent_callbacks = SentCallbacks::default();
            }
        }
    }

    pub fn reply<S: Service>(&mut self, call: CallKey, at: CallAddress, reply: Reply, shared: &mut ShardContext<S>) {
        match (&mut self.wire, at, reply) {
            (Wire::Http(wire), CallAddress::Http(exchange), Reply::Http(reply)) => {
                wire.reply(call, exchange, reply, shared)
            }
            (Wire::Grpc(wire), CallAddress::Grpc(stream), Reply::Grpc(reply)) => {
                wire.reply(call, stream, reply, shared)
            }
            (Wire::Ipc(wire), CallAddress::Grpc(stream), Reply::Grpc(reply)) => wire.reply(call, stream, reply, shared),
            (_, at, Reply::SentCallback(callback)) => self.sent_callbacks.add(at, callback),
            // A service answers a call in the protocol that it came in.
            _ => {}
        }
    }

    pub fn take_output(&mut self, pool: &Pool, lists: &mut PieceLists) -> Vec<Slice> {
        if self.phase == ClosePhase::Broken {
            return Vec::new();
        }
        if matches!(&self.wire, Wire::Ipc(wire) if wire.failed || self.phase.is_lingering()) {
            // The end of our side is what wakes its client. A bell behind it would be an error, and end the farewell.
            drop(self.send.take_returned());
            return Vec::new();
        }
        let mut pieces = self.send.take_returned();
        if pieces.is_empty() {
            pieces = lists.take();
            // Those of a ring have their time in `advance_ring`.
            let has_callbacks = !self.sent_callbacks.is_empty() && !matches!(self.wire, Wire::Ipc(_));
            let before = if has_callbacks { self.wire.output_len() } else { 0 };
            match &mut self.tls {
                None => self.wire.take_pieces(&mut pieces),
                Some(tls) => {
                    let sealed = tls.seal(pool, &mut pieces, |pieces| self.wire.take_pieces(pieces));
                    if sealed.is_err() {
                        self.phase.fail();
                    }
                }
            }
            if has_callbacks {
                // Of plain bytes: those of TLS are more.
                let taken = before.saturating_sub(self.wire.output_len());
                let wire = &mut self.wire;
                self.sent_callbacks.leave(taken, |at| wire.behind(at));
            }
        }
        if let Wire::Http(wire) = &mut self.wire {
            wire.set_sending(|| pieces.iter().map(|piece| piece.len()).sum());
        }
        pieces
    }

    /// Whether something happens when the send that was taken last is over: more is sent, the connection ends, a
    /// callback or the service is waiting. Without that the shard need not wake for it.
    pub fn awaits_sent(&self) -> bool {
        let is_awaited = match &self.wire {
            Wire::Http(wire) => wire.has_answers_in_parts(),
            Wire::Grpc(_) => false,
            Wire::Ipc(_) => true,
        };
        is_awaited
            || self.phase != ClosePhase::Open
            || !self.sent_callbacks.is_empty()
            || self.wire.unsent() > 0
            || self.tls.as_ref().is_some_and(|tls| !tls.is_flushed())
            || self.should_close()
    }

    /// Notifies a TLS peer that nothing follows; true if bytes have to be sent for that.
    pub fn queue_close_notify(&mut self) -> bool {
        self.phase.may_send() && self.tls.as_mut().is_some_and(|tls| tls.queue_close_notify())
    }

    /// Memory that is not ours waits for its turn to be encrypted, or for room in a ring.
    pub fn holds_foreign(&self) -> bool {
        if let Wire::Ipc(wire) = &self.wire {
            return wire.holds_foreign();
        }
        self.tls.as_ref().is_some_and(|tls| tls.holds_foreign())
    }

    /// Reports to the service what the peer has made room for.
    pub fn report_unsent<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        match &mut self.wire {
            Wire::Http(wire) => wire.report_unsent(shared),
            Wire::Grpc(wire) => wire.report_unsent(shared),
            Wire::Ipc(wire) => wire.report_unsent(shared),
        }
    }

    /// Reports to the service that a second has passed for answers that the peer makes no room for.
    pub fn report_waits<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        match &mut self.wire {
            Wire::Http(wire) => wire.report_waits(shared),
            Wire::Grpc(wire) => wire.report_waits(shared),
            Wire::Ipc(wire) => wire.report_waits(shared),
        }
    }

    pub fn has_input(&self) -> bool {
        match &self.wire {
            Wire::Http(wire) => wire.connection.has_input(),
            Wire::Grpc(wire) => wire.has_input(),
            Wire::Ipc(_) => false,
        }
    }

    pub fn wants_read(&self) -> bool {
        if self.phase != ClosePhase::Open || self.tls.as_ref().is_some_and(|tls| !tls.wants_read()) {
            return false;
        }
        match &self.wire {
            Wire::Http(wire) => wire.wants_read(),
            // Always: the frames that open the windows for answers have to be read.
            Wire::Grpc(wire) => !wire.failed,
            // Always: its bytes are the bell, its end is that of the client.
            Wire::Ipc(wire) => !wire.failed,
        }
    }

    /// Counts what waits for the peer to take it, if that is worth counting.
    pub fn count_unsent(&mut self) {
        let unsent = self.send.bytes().saturating_add(self.wire.unsent());
        let unsent = if unsent < COUNTED_FROM { 0 } else { unsent };
        if unsent != self.unsent.bytes() {
            self.unsent.set(unsent);
        }
    }

    /// The connection ends at once, without what is in its output.
    pub fn is_aborted(&self) -> bool {
        matches!(&self.wire, Wire::Http(wire) if wire.aborted)
    }

    /// No more is read or sent, apart from what is with the engine.
    pub fn should_close(&self) -> bool {
        if !self.phase.may_send() {
            return true;
        }
        if let Some(tls) = &self.tls {
            if !tls.is_flushed() {
                return false;
            }
            if tls.has_failed() {
                return true;
            }
        }
        self.phase == ClosePhase::PeerEnded
            || match &self.wire {
                Wire::Http(wire) => wire.connection.should_close(),
                Wire::Grpc(wire) => wire.failed || wire.connection.is_drained(),
                Wire::Ipc(wire) => wire.should_close(),
            }
    }

    /// Ends a call whose deadline has passed.
    pub fn expired<S: Service>(&mut self, call: CallKey, stream: StreamId, shared: &mut ShardContext<S>) {
        match &mut self.wire {
            Wire::Http(_) => {}
            Wire::Grpc(wire) => wire.expired(call, stream, shared),
            Wire::Ipc(wire) => wire.expired(call, stream, shared),
        }
    }

    /// Deadlines of calls that began since the last time.
    pub fn take_deadlines(&mut self) -> Vec<(CallKey, Duration)> {
        match &mut self.wire {
            Wire::Http(_) => Vec::new(),
            Wire::Grpc(wire) => std::mem::take(&mut wire.deadlines),
            Wire::Ipc(wire) => std::mem::take(&mut wire.deadlines),
        }
    }

    /// In the middle of something that is worth waiting for.
    pub fn is_busy(&self) -> bool {
        if self.phase.drops_input() {
            return false;
        }
        if self.tls.as_ref().is_some_and(|tls| !tls.is_flushed()) {
            return true;
        }
        match &self.wire {
            Wire::Http(wire) => !wire.connection.is_idle(),
            Wire::Grpc(wire) => wire.has_unary_calls() || wire.connection.unsent_total() > 0,
            Wire::Ipc(wire) => wire.is_busy(),
        }
    }

    /// Requests the client to go elsewhere; its requests are served meanwhile. A gRPC client that has just come is
    /// notified when this is called again, or it would come back at once.
    pub fn leave(&mut self) {
        match &mut self.wire {
            Wire::Http(wire) => wire.connection.close_after_next_response(),
            Wire::Grpc(wire) if wire.connection.is_established() => wire.drain(""),
            Wire::Grpc(_) => {}
            Wire::Ipc(wire) => wire.leave(),
        }
    }

    /// A gRPC client may send another request because it has not read yet that it should go elsewhere.
    pub fn may_be_unwarned(&self) -> bool {
        matches!(&self.wire, Wire::Grpc(wire) if !wire.connection.is_shut_down())
    }

    /// Answers what is not answered yet with an error.
    pub fn fail_unanswered<S: Service>(&mut self, shared: &mut ShardContext<S>) {
        match &mut self.wire {
            Wire::Http(wire) => wire.fail_unanswered(shared),
            Wire::Grpc(wire) => wire.fail_unanswered(shared),
            Wire::Ipc(wire) => wire.fail_unanswered(shared),
        }
    }

    /// Lets the connection end when what it has begun is done.
    pub fn drain(&mut self) {
        // There is no request yet.
        if self.tls.as_ref().is_some_and(|tls| !tls.is_open() && !tls.has_failed()) {
            self.phase.fail();
        }
        match &mut self.wire {
            Wire::Http(wire) => wire.connection.close_after_responses(),
            Wire::Grpc(wire) => wire.drain(""),
            Wire::Ipc(wire) => wire.drain(),
        }
    }
}
