//! Socket ⇄ bytes: connections of one shard, their reads and sends, and which exchange an answer belongs to.
//!
//! A connection lives and dies on one shard. What its peer sends goes through a codec into the service; what the
//! service answers goes, by a generational call key, back into the codec and out in one gathered send per connection
//! and turn. A tensor that is long enough is received straight into its own buffer.

mod connection;
mod grpc;
mod http;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tracing::debug;

use crate::memory::{Key, Pool, Slab};
use crate::protocol::grpc::MessageReader;
use crate::protocol::http1::{self, ExchangeId};
use crate::protocol::http2::{self, StreamId};
use crate::protocol::service::{CallKey, Port, Replies, Reply, Service, Token};
use crate::shard::engine::{Event, Received};
use crate::shard::{Core, Handler, Load};
use connection::{Connection, Wire};

/// What a shard is told from outside.
pub enum Mail<M> {
    /// A connection that another shard accepted.
    Accepted { fd: OwnedFd, port: Port },
    /// For the service.
    Service(M),
    /// Take no new connections, close idle ones, let the others finish.
    Drain,
    /// Close everything.
    Stop,
}

/// Hands a connection to another shard.
pub type HandOver = Arc<dyn Fn(usize, OwnedFd, Port) + Send + Sync>;

/// What a shard shows to the rest of the server.
#[derive(Debug, Default)]
pub struct Gauges {
    pub connections: AtomicUsize,
    pub in_flight: AtomicUsize,
    pub is_stopped: AtomicBool,
}

/// An exchange that may still be answered.
struct Call {
    connection: Key,
    at: At,
    /// The service's work for it.
    token: Option<Token>,
}

#[derive(Clone, Copy)]
enum At {
    Http(ExchangeId),
    Grpc(StreamId),
}

/// What the pieces of a connection's handling share.
struct Shared<S> {
    service: S,
    calls: Slab<Call>,
    replies: Replies,
    pool: Pool,
    /// Readers of gRPC messages that wait for their next call.
    readers: Vec<MessageReader>,
}

/// The transport of one shard.
pub struct Net<S: Service> {
    shared: Shared<S>,
    connections: Slab<Connection>,
    /// Connections with something to send, to read or to close.
    dirty: Vec<Key>,
    /// Port of each listener of the engine.
    listeners: Vec<Port>,
    shard: usize,
    loads: Arc<Load>,
    hand_over: HandOver,
    gauges: Arc<Gauges>,
    http2: http2::Config,
    http1: http1::Limits,
    draining: bool,
    stopped: bool,
    unfinished: bool,
}

/// What a transport is made of.
pub struct Parts<S> {
    pub service: S,
    pub pool: Pool,
    pub shard: usize,
    pub listeners: Vec<Port>,
    pub loads: Arc<Load>,
    pub hand_over: HandOver,
    pub gauges: Arc<Gauges>,
}

impl<S: Service> Net<S> {
    pub fn new(parts: Parts<S>) -> Net<S> {
        let Parts { service, pool, shard, listeners, loads, hand_over, gauges } = parts;
        let replies = Replies::default();
        Net {
            shared: Shared { service, calls: Slab::new(), replies, pool, readers: Vec::new() },
            connections: Slab::new(),
            dirty: Vec::new(),
            listeners,
            shard,
            loads,
            hand_over,
            gauges,
            http2: http2::Config::default(),
            http1: http1::Limits::default(),
            draining: false,
            stopped: false,
            unfinished: false,
        }
    }

    /// Takes a new connection, or hands it to a shard with fewer.
    fn accepted(&mut self, fd: OwnedFd, port: Port, core: &mut Core<'_>) {
        if self.draining {
            return;
        }
        let shard = self.loads.least_loaded();
        if shard != self.shard {
            return (self.hand_over)(shard, fd, port);
        }
        self.adopt(fd, port, core);
    }

    fn adopt(&mut self, fd: OwnedFd, port: Port, core: &mut Core<'_>) {
        if self.draining {
            return self.loads.removed(self.shard);
        }
        let wire = match port {
            Port::Grpc => Wire::http2(http2::Connection::server(self.http2, self.shared.pool.clone())),
            Port::Http | Port::Metrics => {
                Wire::http1(http1::Connection::new(self.http1.clone(), self.shared.pool.clone()))
            }
        };
        let key = self.connections.insert(Connection::new(wire, port));
        self.gauges.connections.store(self.connections.len(), Ordering::Release);
        core.engine.register(fd, key);
        self.touch(key);
    }

    /// Something about the connection may have to be done before the turn ends.
    fn touch(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && !std::mem::replace(&mut connection.dirty, true)
        {
            self.dirty.push(key);
        }
    }

    fn received(&mut self, key: Key, received: Received) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.receiving = false;
        match received {
            Received::Chunk(bytes) => connection.receive(key, &bytes, &mut self.shared),
            Received::Direct { block, at, n } => connection.direct_received(key, block, at, n, &mut self.shared),
            Received::Closed | Received::Failed(_) => connection.peer_left(key, &mut self.shared),
        }
        self.route_replies();
        self.touch(key);
    }

    /// Gives answers to the exchanges they belong to; those whose exchange is over are dropped.
    fn route_replies(&mut self) {
        // A reply can complete work that leads to further replies.
        while !self.shared.replies.is_empty() {
            let replies: Vec<(CallKey, Reply)> = self.shared.replies.drain().collect();
            for (call, reply) in replies {
                let Some(Call { connection: key, at, .. }) = self.shared.calls.get(call.0) else { continue };
                let (key, at) = (*key, *at);
                let Some(connection) = self.connections.get_mut(key) else { continue };
                connection.reply(call, at, reply, &mut self.shared);
                self.touch(key);
            }
        }
    }

    /// Reads, sends or closes, whatever the connection is due for.
    fn settle(&mut self, key: Key, core: &mut Core<'_>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.dirty = false;
        if connection.closing {
            return;
        }
        if !connection.sending {
            let pieces = connection.take_output();
            if !pieces.is_empty() {
                connection.sending = true;
                core.engine.send(key, pieces);
            }
        }
        if connection.should_close() && !connection.sending {
            return self.close(key, core);
        }
        if connection.has_input() {
            connection.receive(key, &[], &mut self.shared);
            self.route_replies();
            self.touch(key);
            return;
        }
        if !connection.receiving && connection.wants_read() {
            connection.receiving = true;
            match connection.take_direct(&mut self.shared) {
                Some((block, at, len)) => core.engine.receive_direct(key, block, at, len),
                None => core.engine.receive(key),
            }
        }
    }

    fn close(&mut self, key: Key, core: &mut Core<'_>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !std::mem::replace(&mut connection.closing, true) {
            connection.abandon(&mut self.shared);
            core.engine.close(key);
        }
    }

    fn closed(&mut self, key: Key) {
        if let Some(mut connection) = self.connections.remove(key) {
            connection.abandon(&mut self.shared);
            self.loads.removed(self.shard);
            self.gauges.connections.store(self.connections.len(), Ordering::Release);
        }
    }

    fn drain(&mut self, core: &mut Core<'_>) {
        self.draining = true;
        for listener in 0..self.listeners.len() {
            core.engine.stop_listening(listener);
        }
        for key in self.connections.keys() {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.drain();
            }
            self.touch(key);
        }
    }
}

impl<S: Service> Handler for Net<S> {
    type Mail = Mail<S::Mail>;

    fn mail(&mut self, mail: Mail<S::Mail>, core: &mut Core<'_>) {
        match mail {
            Mail::Accepted { fd, port } => self.adopt(fd, port, core),
            Mail::Service(mail) => {
                self.shared.service.mail(mail, &mut self.shared.replies);
                self.route_replies();
            }
            Mail::Drain => self.drain(core),
            Mail::Stop => {
                self.drain(core);
                self.stopped = true;
                for key in self.connections.keys() {
                    self.close(key, core);
                }
            }
        }
    }

    fn event(&mut self, event: Event, core: &mut Core<'_>) {
        match event {
            Event::Accepted { listener, fd } => {
                if let Some(port) = self.listeners.get(listener).copied() {
                    self.accepted(fd, port, core);
                }
            }
            Event::Received { key, bytes } => self.received(key, bytes),
            Event::Sent { key, result } => {
                let Some(connection) = self.connections.get_mut(key) else { return };
                connection.sending = false;
                if let Err(error) = result {
                    debug!("connection: cannot send: {error}");
                    connection.peer_left(key, &mut self.shared);
                    connection.broken = true;
                }
                self.touch(key);
            }
            Event::Closed { key } => self.closed(key),
        }
    }
}
