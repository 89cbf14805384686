//! Socket ⇄ bytes: connections of one shard, their reads and sends, and which exchange an answer belongs to.
//!
//! A connection lives and dies on one shard. What its peer sends goes through a codec into the service; what the
//! service answers goes, by a generational call key, back into the codec and out in one gathered send per connection
//! and turn. A tensor that is long enough is received straight into its own buffer.

mod connection;
mod crowding;
mod grpc;
mod http;
mod ipc;
mod keepalive;
mod open_calls;
mod panics;
mod sends;
mod sent_callbacks;
mod shutdown;
mod timeouts;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::debug;

use connection::{ClosePhase, Connection, SendState, Wire};
use crowding::Crowding;
use ipc::PolledRings;
pub use ipc::{IpcCounts, IpcSettings, IpcUsers, RefusedClient};
pub use keepalive::Keepalive;
use keepalive::Pulse;
use nereid_memory::{CallLedger, CallPlace, Key, Peers, Pool, Slab, Slice};
use nereid_mutants::{self as mutants, Mutant};
use nereid_protocol::grpc::{Limits, ReaderPool, Window};
use nereid_protocol::http1::{self, ExchangeId, IntakeState};
use nereid_protocol::http2::{self, StreamId};
use nereid_protocol::service::{CallKey, Port, Replies, Service, Token};
use nereid_protocol::slow_peers::SlowPeers;
use nereid_queue::Actor;
use nereid_shard::engine::{Event, Received};
use nereid_shard::{Core, Handler, Load, LoadGuard, TimerKey, WithReplies};
use shutdown::ShutdownPhase;
use timeouts::{PieceLists, Round};
pub use tls::{Credentials, CredentialsError, Handshaken, Post, Run, Secure};
use tls::{Handshakes, TlsOutcome};

/// Connections of one shard.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Connections beyond those of a shard, for as long as it takes to close those that gave way to them.
const CLOSING_MAX: usize = 4096;
/// Exchanges of one shard that wait for an answer.
pub const WAITING_MAX: usize = 1 << 20;

/// The error for a request over which the server's code panicked.
const PANICKED: &str = "an internal error ended this request; the log of the server has it";

/// The error for a request that the server cannot finish before it ends.
const OUT_OF_TIME: &str = "the server exits before this request can be finished; send it to another server";

/// A listening socket: its port, and whether its connections use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    pub port: Port,
    pub tls: bool,
}

/// What other threads send to a shard about its connections.
pub enum Mail {
    /// A connection that another shard accepted.
    Accepted { fd: OwnedFd, listener: Listener, load_guard: LoadGuard },
    /// A TLS session is back from the control thread.
    Handshaken(Handshaken),
    /// The server ends soon: request clients to go elsewhere, and serve them until they do.
    Leave,
    /// The same for the clients that came after that; no more will come.
    LastCall,
    /// Take no new connections at these listening sockets: another process does.
    StopListening(Vec<usize>),
    /// Take no new connections, close idle ones, let the others finish.
    Drain,
    /// Answer every request that has no answer yet with an error.
    FailUnanswered,
    /// Close everything.
    Stop,
}

/// Calls of one shard beside those that its service takes requests for: probes, metrics, and refusals.
const CALLS_BESIDE: usize = 4096;

/// Hands a connection to another shard.
pub type HandOver = Arc<dyn Fn(OwnedFd, Listener, LoadGuard) + Send + Sync>;

/// What a shard reports to the rest of the server.
#[derive(Debug, Default)]
pub struct Gauges {
    pub http_connections: AtomicUsize,
    pub grpc_connections: AtomicUsize,
    pub in_flight: AtomicUsize,
    /// While draining: connections that are in the middle of something.
    pub busy: AtomicUsize,
    /// After the last call: gRPC connections with clients that may not have read yet that they should go elsewhere.
    pub unwarned: AtomicUsize,
}

impl Gauges {
    /// The count that a port's connections are part of; those of the metrics port are not counted.
    fn connections(&self, port: Port) -> Option<&AtomicUsize> {
        match port {
            Port::Http | Port::SageMaker | Port::Vertex | Port::OpenAi => Some(&self.http_connections),
            // The calls in shared-memory rings are calls of gRPC.
            Port::Grpc | Port::Ipc => Some(&self.grpc_connections),
            Port::Metrics => None,
        }
    }
}

/// An exchange that may still be answered.
struct Call {
    connection: Key,
    at: CallAddress,
    /// The service's work for it.
    token: Option<Token>,
    /// Its deadline.
    timer: Option<TimerKey>,
    #[expect(dead_code, reason = "dropped for its effect: the connection may have another call")]
    place: CallPlace,
}

#[derive(Clone, Copy)]
enum CallAddress {
    Http(ExchangeId),
    Grpc(StreamId),
}

/// What the pieces of a connection's handling share.
struct ShardContext<S> {
    service: S,
    calls: Slab<Call>,
    replies: Replies,
    pool: Pool,
    /// Of gRPC messages.
    readers: ReaderPool,
    /// The frame of a ring that is being read; scratch.
    ipc_frame: Vec<u8>,
    /// Deadlines of calls that are over.
    stopped_timers: Vec<TimerKey>,
}

/// The transport of one shard.
pub struct Net<S: Service> {
    shared: ShardContext<S>,
    connections: Slab<Connection>,
    due: DueConnections,
    shares: Shares,
    /// By the engine's number of each.
    listeners: Vec<Listener>,
    handshakes: Handshakes,
    /// `None`: no listener takes clients of shared-memory rings.
    ipc: Option<IpcSettings>,
    polled: PolledRings,
    wires: WireConfig,
    balance: ShardBalance,
    gauges: Arc<Gauges>,
    phase: ShutdownPhase,
    round: Round,
    /// Replies on their way to connections; scratch.
    routed: Replies,
    lists: PieceLists,
    slow_peers: SlowPeers,
    crowding: Crowding,
}

/// Connections with something to send, to read or to close: those with `dirty` set.
#[derive(Default)]
struct DueConnections {
    listed: Vec<Key>,
    /// Scratch for the list while it is worked through.
    spare: Vec<Key>,
}

/// What the codecs of new connections are made with.
struct WireConfig {
    http1: http1::Limits,
    http2: http2::Config,
    keepalive: Keepalive,
}

/// Spreads accepted connections over the shards.
struct ShardBalance {
    /// The number of this shard.
    shard: usize,
    loads: Load,
    hand_over: HandOver,
}

/// What of the server's memory its clients may have.
#[derive(Debug, Clone)]
pub struct Shares {
    /// Bytes of one connection.
    pub connection: usize,
    /// Calls of one connection, those on its streams included.
    pub connection_calls: usize,
    /// The clients of all shards, with the bytes and calls of each.
    pub clients: Arc<Peers>,
    /// Connections of one shard, [`CONNECTIONS_MAX`] at most.
    pub connections: usize,
    /// Exchanges of one shard that wait for an answer, and requests: [`WAITING_MAX`] of each at most.
    pub waiting: usize,
}

/// What a transport is made of.
pub struct Parts<S> {
    pub service: S,
    pub pool: Pool,
    pub shares: Shares,
    /// What a gRPC message may hold.
    pub grpc_limits: Limits,
    pub shard: usize,
    pub listeners: Vec<Listener>,
    /// `None`: no listener uses TLS.
    pub secure: Option<Secure>,
    pub keepalive: Keepalive,
    pub ipc: Option<IpcSettings>,
    pub slow_peers: SlowPeers,
    /// Heads that come again are recognised.
    pub recognises_heads: bool,
    pub loads: Load,
    pub hand_over: HandOver,
    pub gauges: Arc<Gauges>,
}

impl<S: Service> Net<S> {
    pub fn new(parts: Parts<S>) -> Net<S> {
        let Parts { service, pool, shares, grpc_limits, shard, listeners, secure, .. } = parts;
        let Parts { keepalive, ipc, slow_peers, recognises_heads, loads, hand_over, gauges, .. } = parts;
        let (replies, connections_max) = (Replies::default(), shares.connections);
        let (mut http1, mut http2) = (http1::Limits::default(), http2::Config::default());
        if !recognises_heads {
            (http1.repeated_head, http2.repeated_block_max) = (0, 0);
        }
        Net {
            shared: ShardContext {
                service,
                // The service refuses inference first: health and metrics of a busy server are answered.
                calls: Slab::new(shares.waiting.saturating_add(CALLS_BESIDE)),
                replies,
                pool,
                readers: ReaderPool::new(grpc_limits),
                ipc_frame: Vec::new(),
                stopped_timers: Vec::new(),
            },
            connections: Slab::new(connections_max.saturating_add(CLOSING_MAX).min(CONNECTIONS_MAX)),
            due: DueConnections::default(),
            shares,
            listeners,
            handshakes: Handshakes::new(secure),
            ipc,
            polled: PolledRings::default(),
            wires: WireConfig { http1, http2, keepalive },
            balance: ShardBalance { shard, loads, hand_over },
            gauges,
            phase: ShutdownPhase::Serving,
            round: Round::default(),
            routed: Replies::default(),
            lists: PieceLists::default(),
            slow_peers,
            crowding: Crowding::new(connections_max),
        }
    }

    /// Takes a new connection, or hands it to a shard with fewer.
    fn accepted(&mut self, fd: OwnedFd, listener: Listener, core: &mut Core<u64>) {
        if self.phase.refuses(listener.port) {
            return;
        }
        let load_guard = self.balance.loads.enter();
        if load_guard.shard() != self.balance.shard {
            return (self.balance.hand_over)(fd, listener, load_guard);
        }
        self.adopt(fd, listener, load_guard, core);
    }

    fn adopt(&mut self, fd: OwnedFd, listener: Listener, load_guard: LoadGuard, core: &mut Core<u64>) {
        let port = listener.port;
        if self.phase.refuses(port) {
            return;
        }
        if port == Port::Ipc {
            return self.adopt_ipc(fd, listener, load_guard, core);
        }
        let (pool, ledger, peer) = self.shares_for(&fd);
        let tls = if listener.tls { self.handshakes.begin(port, &pool) } else { None };
        if listener.tls && tls.is_none() {
            // Never in plain text on a port with TLS.
            return;
        }
        let wire = match port {
            Port::Grpc | Port::Ipc => {
                let connection = http2::Connection::server(self.wires.http2, pool.clone());
                Wire::http2(connection, pool.clone(), ledger, Pulse::new(self.wires.keepalive, core.now_ns()))
            }
            Port::Http | Port::Metrics | Port::SageMaker | Port::Vertex | Port::OpenAi => {
                let intake = IntakeState::new(port, self.shared.service.http_rules(port));
                Wire::http1(http1::Connection::new(self.wires.http1.clone(), pool.clone()), &pool, ledger, intake)
            }
        };
        self.insert(fd, Connection::new(wire, (port, peer), load_guard, tls, pool.tally()), core);
    }

    fn insert(&mut self, fd: OwnedFd, mut connection: Connection, core: &mut Core<u64>) {
        let port = connection.port;
        if self.phase.is_leaving() {
            connection.leave();
        }
        let brief_limit = self.crowding.brief_limit(&fd, self.connections.len());
        connection.brief_s = brief_limit.map(|_| crowding::BRIEF_S);
        let Ok(key) = self.connections.insert(connection) else {
            return debug!("a connection is closed: there are {} already", self.connections.len());
        };
        if let Some(count) = self.gauges.connections(port) {
            count.fetch_add(1, Ordering::Release);
        }
        if let Err(refused) = core.engine.register(fd, key) {
            debug!("a connection is closed: {refused}");
            return self.closed(key);
        }
        if let Some(limit) = brief_limit {
            self.make_room(key, limit, core);
        }
        self.go_round(core);
        self.start_pulse(key, core);
        self.touch(key);
    }

    /// What a new connection may have of the server's memory and of the shard's calls, alone and with the others of its
    /// client, whose address is returned too.
    fn shares_for(&self, fd: &OwnedFd) -> (Pool, Rc<CallLedger>, Option<SocketAddr>) {
        let address = rustix::net::getpeername(fd.as_fd()).ok().flatten();
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        // A client of a Unix socket has no address.
        let client = address.map(|address| self.shares.clients.at(address.ip()));
        let ledger = CallLedger::new(self.shares.connection_calls, client.clone());
        (self.shared.pool.share(self.shares.connection, client), ledger, address)
    }

    /// Puts the connection on the list of those that are settled before the turn ends.
    fn touch(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && !std::mem::replace(&mut connection.dirty, true)
        {
            self.due.listed.push(key);
        }
    }

    fn received(&mut self, key: Key, received: Received, now_ns: u64) {
        let Some(connection) = self.connections.get_mut(key).filter(|one| !one.has_panicked) else { return };
        connection.receiving = false;
        connection.progress.received(match &received {
            Received::Chunk(bytes) => bytes.len(),
            Received::Direct { len, .. } | Received::Scattered { len, .. } => *len,
            Received::End | Received::Failed(_) => 0,
        });
        let mut ends_session = false;
        match received {
            Received::Chunk(_) | Received::Direct { .. } | Received::Scattered { .. }
                if connection.phase.drops_input() => {}
            Received::Chunk(bytes) if connection.tls.is_none() => connection.receive(key, &bytes, &mut self.shared),
            Received::Chunk(bytes) => match connection.receive_tls(key, &bytes, &mut self.shared) {
                TlsOutcome::Nothing | TlsOutcome::Failed => {}
                TlsOutcome::Handshake(handshake) => self.hand_out(key, handshake),
                TlsOutcome::Closed => ends_session = true,
            },
            Received::Direct { block, at, len } => connection.direct_received(key, block, at, len, &mut self.shared),
            Received::Scattered { scatter, len } => connection.scattered_received(key, scatter, len, &mut self.shared),
            Received::End | Received::Failed(_) => connection.peer_left(key, &mut self.shared),
        }
        if let Some(connection) = self.connections.get_mut(key) {
            connection.note_received(now_ns);
            if connection.brief_s.is_some() && connection.has_requested() {
                connection.drain();
            }
        }
        self.poll_from_now(key);
        self.route_replies();
        if ends_session {
            self.end_of_session(key);
        }
        self.touch(key);
    }

    /// Passes replies to the exchanges that they belong to; a reply to an exchange that is over is dropped.
    fn route_replies(&mut self) {
        // A reply can complete work that leads to further replies.
        while !self.shared.replies.is_empty() {
            let mut replies = std::mem::take(&mut self.routed);
            std::mem::swap(&mut replies, &mut self.shared.replies);
            for (call, reply) in replies.drain() {
                let Some(Call { connection: key, at, .. }) = call_of(&self.shared.calls, call) else { continue };
                let (key, at) = (*key, *at);
                self.contain(key, |net| {
                    let Some(connection) = net.connections.get_mut(key) else { return };
                    connection.reply(call, at, reply, &mut net.shared);
                    net.touch(key);
                });
            }
            let panicked = replies.take_panicked();
            self.routed = replies;
            if !panicked.is_empty() {
                self.end_panicked_calls(panicked);
            }
        }
    }

    /// Reads, sends or closes, as the state of the connection requires.
    fn settle(&mut self, key: Key, core: &mut Core<u64>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.dirty = false;
        if connection.phase == ClosePhase::Closing {
            return;
        }
        if connection.has_panicked {
            return self.close_panicked(key, core);
        }
        if connection.is_aborted() {
            return self.close(key, core);
        }
        for (call, deadline) in connection.take_deadlines() {
            if mutants::is(Mutant::DeadlineForgotten) {
                continue;
            }
            // A call can be over in the turn in which it began.
            let Some(call_mut) = call_mut(&mut self.shared, call) else { continue };
            let deadline_ns = core.now_ns().saturating_add(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
            match core.timers.start(deadline_ns, call.0) {
                Ok(timer) => call_mut.timer = Some(timer),
                Err(refused) => debug!("a call goes without its deadline: {refused}"),
            }
        }
        if connection.copy_partial_send(&self.shared.pool) {
            self.touch(key);
            return;
        }
        // What waits for room in a ring does not wait for the bell that is on its way to its client.
        let is_ring = matches!(connection.wire, Wire::Ipc(_));
        let copies_more = is_ring && connection.advance_ring(&self.shared.pool);
        if is_ring && connection.phase.may_send() && connection.should_close() {
            // Its models are let go now, whatever its socket does, and nothing is written behind its last frame.
            connection.abandon(&mut self.shared);
        }
        if !connection.send.is_in_engine() {
            self.start_send(key, core);
        } else if is_ring {
            connection.report_unsent(&mut self.shared);
        }
        if is_ring {
            self.keep_ring(key, copies_more, core);
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.count_unsent();
        if connection.should_close() && !connection.send.is_in_engine() {
            if connection.queue_close_notify() {
                return self.touch(key);
            }
            let lingers = connection.may_linger() && !self.phase.is_draining();
            if !lingers || (!connection.phase.is_lingering() && core.engine.shutdown(key).is_err()) {
                return self.close(key, core);
            }
            connection.phase.linger();
            if !connection.receiving {
                connection.receiving = core.engine.receive(key).is_ok();
                if !connection.receiving {
                    self.close(key, core);
                }
            }
            return;
        }
        if connection.has_input() {
            connection.receive(key, &[], &mut self.shared);
            // Among kept bytes may be pings, which are counted when they are read.
            connection.note_received(core.now_ns());
            self.route_replies();
            self.touch(key);
            return;
        }
        if !connection.receiving && connection.wants_read() {
            let window = if connection.tls.is_some() { None } else { connection.take_window() };
            let started = match window {
                Some(Window::Block { block, at, len }) => core.engine.receive_direct(key, block, at, len),
                Some(Window::Frames(scatter)) => core.engine.receive_scattered(key, scatter),
                None => core.engine.receive(key),
            };
            connection.receiving = started.is_ok();
            if started.is_err() {
                connection.phase.fail();
            }
        }
    }

    /// A send is over.
    fn sent(&mut self, key: Key, result: io::Result<usize>, pieces: Vec<Slice>, core: &mut Core<u64>) {
        let Some(connection) = self.connections.get_mut(key).filter(|one| !one.has_panicked) else { return };
        if !connection.holds_foreign()
            && let Some(timer) = connection.timer.take()
        {
            core.timers.cancel(timer);
        }
        match result {
            Ok(taken) => connection.sent(taken, pieces, &mut self.lists),
            Err(error) => {
                debug!("connection: cannot send: {error}");
                connection.send = SendState::Idle;
                connection.peer_left(key, &mut self.shared);
                connection.phase.fail();
            }
        }
        self.touch(key);
    }

    fn close(&mut self, key: Key, core: &mut Core<u64>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.has_panicked {
            return self.close_panicked(key, core);
        }
        if connection.phase.close() {
            connection.abandon(&mut self.shared);
            for timer in connection.take_timers() {
                core.timers.cancel(timer);
            }
            if core.engine.close(key).is_err() {
                self.closed(key);
            }
        }
    }

    fn closed(&mut self, key: Key) {
        if let Some(mut connection) = self.connections.remove(key) {
            if !connection.has_panicked {
                connection.abandon(&mut self.shared);
            }
            if self.phase.is_draining() {
                connection.keep_ring_contents();
            }
            if let Some(count) = self.gauges.connections(connection.port)
                && !mutants::is(Mutant::ConnectionCounted)
            {
                count.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Connections and calls that are not over.
    #[cfg(any(test, feature = "testing"))]
    pub fn remaining(&self) -> (usize, usize) {
        (self.connections.len(), self.shared.calls.len())
    }
}

impl<S: Service + Actor<Replies = Replies>> Handler for Net<S> {
    type Mail = Mail;
    /// The key of a call, the marked key of a connection, or [`timeouts::ROUND`].
    type Timer = u64;
    type Actor = S;

    #[inline]
    fn actor(&mut self) -> Option<WithReplies<'_, S>> {
        Some((&mut self.shared.service, &mut self.shared.replies))
    }

    fn mail(&mut self, mail: Mail, core: &mut Core<u64>) {
        // Earlier replies of the service go out first.
        self.route_replies();
        match mail {
            Mail::Accepted { fd, listener, load_guard } => {
                self.contain_unnamed(|net| net.adopt(fd, listener, load_guard, core));
            }
            Mail::Handshaken(handshaken) => {
                self.contain(handshaken.connection(), |net| net.handshaken(handshaken));
            }
            Mail::Leave | Mail::LastCall => self.leave(),
            Mail::StopListening(listeners) => self.stop_listening(&listeners, core),
            Mail::Drain => self.drain(core),
            Mail::FailUnanswered => self.fail_unanswered(),
            Mail::Stop => self.stop(core),
        }
    }

    fn event(&mut self, event: Event, core: &mut Core<u64>) {
        match event {
            Event::Accepted { listener, fd } => {
                if let Some(listener) = self.listeners.get(listener).copied() {
                    self.contain_unnamed(|net| net.accepted(fd, listener, core));
                }
            }
            Event::Received { key, received } => {
                self.contain(key, |net| net.received(key, received, core.now_ns()));
            }
            Event::Sent { key, result, pieces } => self.contain(key, |net| net.sent(key, result, pieces, core)),
            Event::Closed { key } => self.closed(key),
            Event::AcceptFailed { error, .. } => self.crowding.report(&error, core.now_ns()),
            Event::ListenerClosed { .. } | Event::Woken => {}
        }
    }

    fn timer(&mut self, token: u64, core: &mut Core<u64>) {
        if self.time_passed(token, core) {
            return;
        }
        let call = CallKey(token);
        let Some(Call { connection: key, at: CallAddress::Grpc(stream), .. }) = call_of(&self.shared.calls, call)
        else {
            return;
        };
        let (key, stream) = (*key, *stream);
        self.contain(key, |net| {
            if let Some(connection) = net.connections.get_mut(key) {
                connection.expired(call, stream, &mut net.shared);
                net.route_replies();
                net.touch(key);
            }
        });
    }

    fn flush(&mut self, core: &mut Core<u64>) {
        // Of this turn's mail and work.
        self.route_replies();
        self.poll_rings();
        self.route_replies();
        // A connection can become due again while it is settled; it has its turn in the next round then.
        let mut due = std::mem::take(&mut self.due.spare);
        std::mem::swap(&mut due, &mut self.due.listed);
        for key in due.drain(..) {
            self.contain(key, |net| {
                net.settle(key, core);
                net.await_sent(key, core);
            });
        }
        self.due.spare = due;
        self.continue_round(core);
        for timer in self.shared.stopped_timers.drain(..) {
            core.timers.cancel(timer);
        }
        self.gauges.in_flight.store(self.shared.service.in_flight(), Ordering::Release);
        self.phase.report(&self.connections, &self.gauges);
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.shared.service.next_deadline_ns()
    }

    fn on_time(&mut self, core: &mut Core<u64>) {
        self.shared.service.on_time(core.now_ns());
    }

    fn prepare_park(&mut self) -> bool {
        self.park_rings()
    }

    fn has_work(&self) -> bool {
        let has_replies = !self.shared.replies.is_empty();
        let is_due = !self.due.listed.is_empty() || !self.round.is_over() || self.polled.have_moved;
        has_replies || is_due || self.shared.service.has_work()
    }

    fn stopped(&self) -> bool {
        self.phase == ShutdownPhase::Stopped && self.connections.is_empty()
    }
}

/// The exchange of a call that is not over.
fn call_mut<S>(shared: &mut ShardContext<S>, call: CallKey) -> Option<&mut Call> {
    shared.calls.get_mut(Key::from_u64(call.0)?)
}

fn remove_call<S>(shared: &mut ShardContext<S>, call: CallKey) -> Option<Call> {
    let call = shared.calls.remove(Key::from_u64(call.0)?)?;
    if !mutants::is(Mutant::DeadlineKept) {
        shared.stopped_timers.extend(call.timer);
    }
    Some(call)
}

fn call_of(calls: &Slab<Call>, call: CallKey) -> Option<&Call> {
    calls.get(Key::from_u64(call.0)?)
}

#[cfg(test)]
mod tests;
