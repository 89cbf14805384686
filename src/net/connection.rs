//! One connection: its codec, and what it is doing with its socket.

use std::time::Duration;

use crate::memory::{BlockMut, Key, Slice};
use crate::protocol::http2::StreamId;
use crate::protocol::service::{CallKey, Port, Reply, Service};
use crate::protocol::{http1, http2};
use crate::shard::Seat;

use super::grpc::GrpcWire;
use super::http::HttpWire;
use super::{At, Shared};

/// Pieces of one gathered send; the system's limit is 1024.
const PIECES_MAX: usize = 256;
/// Unsent bytes of one connection beyond which nothing more is read from it.
const UNSENT_MAX: usize = 64 << 20;

pub(super) enum Wire {
    Http(Box<HttpWire>),
    Grpc(Box<GrpcWire>),
}

impl Wire {
    pub fn http1(connection: http1::Connection) -> Wire {
        Wire::Http(Box::new(HttpWire::new(connection)))
    }

    pub fn http2(connection: http2::Connection) -> Wire {
        Wire::Grpc(Box::new(GrpcWire::new(connection)))
    }
}

pub(super) struct Connection {
    wire: Wire,
    port: Port,
    /// Its place in the shard's count.
    _seat: Seat,
    /// On the list of connections to settle.
    pub dirty: bool,
    /// A receive is with the engine.
    pub receiving: bool,
    /// A send is with the engine.
    pub sending: bool,
    /// The engine was told to close it.
    pub closing: bool,
    /// Nothing can be sent any more.
    pub broken: bool,
    /// The peer has sent its last byte.
    ended: bool,
}

impl Connection {
    pub fn new(wire: Wire, port: Port, seat: Seat) -> Connection {
        Connection {
            wire,
            port,
            _seat: seat,
            dirty: false,
            receiving: false,
            sending: false,
            closing: false,
            broken: false,
            ended: false,
        }
    }

    /// Feeds received bytes; without any, what the codec kept back.
    pub fn receive<S: Service>(&mut self, key: Key, bytes: &[u8], shared: &mut Shared<S>) {
        match &mut self.wire {
            Wire::Http(wire) => wire.receive(key, self.port, bytes, shared),
            Wire::Grpc(wire) => wire.receive(key, bytes, shared),
        }
    }

    /// Where the next bytes belong, if that is one tensor's own memory: block, offset, length.
    pub fn take_direct<S: Service>(&mut self, _shared: &mut Shared<S>) -> Option<(BlockMut, usize, usize)> {
        match &mut self.wire {
            Wire::Http(wire) => wire.take_direct(),
            Wire::Grpc(wire) => wire.take_direct(),
        }
    }

    pub fn direct_received<S: Service>(
        &mut self,
        key: Key,
        block: BlockMut,
        at: usize,
        n: usize,
        shared: &mut Shared<S>,
    ) {
        match &mut self.wire {
            Wire::Http(wire) => wire.direct_received(key, self.port, block, at, n, shared),
            Wire::Grpc(wire) => wire.direct_received(key, block, n, shared),
        }
    }

    /// The peer closed its side, or the connection broke: nobody waits for what is not answered yet.
    pub fn peer_left<S: Service>(&mut self, key: Key, shared: &mut Shared<S>) {
        self.ended = true;
        match &mut self.wire {
            Wire::Http(wire) => wire.end_of_input(key, self.port, shared),
            Wire::Grpc(_) => {}
        }
        self.abandon(shared);
    }

    /// Gives up every exchange that has no answer yet.
    pub fn abandon<S: Service>(&mut self, shared: &mut Shared<S>) {
        match &mut self.wire {
            Wire::Http(wire) => wire.abandon(shared),
            Wire::Grpc(wire) => wire.abandon(shared),
        }
    }

    pub fn reply<S: Service>(&mut self, call: CallKey, at: At, reply: Reply, shared: &mut Shared<S>) {
        match (&mut self.wire, at) {
            (Wire::Http(wire), At::Http(exchange)) => wire.reply(call, exchange, reply, shared),
            (Wire::Grpc(wire), At::Grpc(stream)) => wire.reply(call, stream, reply, shared),
            _ => {}
        }
    }

    pub fn take_output(&mut self) -> Vec<Slice> {
        let mut pieces = Vec::new();
        if !self.broken {
            let output = match &mut self.wire {
                Wire::Http(wire) => wire.connection.output(),
                Wire::Grpc(wire) => wire.connection.output(),
            };
            output.take(PIECES_MAX, &mut pieces);
        }
        pieces
    }

    pub fn has_input(&self) -> bool {
        match &self.wire {
            Wire::Http(wire) => wire.connection.has_input(),
            Wire::Grpc(_) => false,
        }
    }

    pub fn wants_read(&self) -> bool {
        if self.ended || self.broken {
            return false;
        }
        match &self.wire {
            Wire::Http(wire) => wire.connection.wants_read(),
            Wire::Grpc(wire) => !wire.failed && wire.connection.unsent_total() < UNSENT_MAX,
        }
    }

    /// Everything is said and done.
    pub fn should_close(&self) -> bool {
        if self.broken {
            return true;
        }
        match &self.wire {
            Wire::Http(wire) => self.ended || wire.connection.should_close(),
            Wire::Grpc(wire) => self.ended || wire.failed || wire.connection.is_drained(),
        }
    }

    /// Ends a call whose deadline has passed.
    pub fn expired<S: Service>(&mut self, call: CallKey, stream: StreamId, shared: &mut Shared<S>) {
        if let Wire::Grpc(wire) = &mut self.wire {
            wire.expired(call, stream, shared);
        }
    }

    /// Deadlines of calls that began since the last time.
    pub fn take_deadlines(&mut self) -> Vec<(CallKey, Duration)> {
        match &mut self.wire {
            Wire::Http(_) => Vec::new(),
            Wire::Grpc(wire) => std::mem::take(&mut wire.deadlines),
        }
    }

    /// In the middle of something that is worth waiting for.
    pub fn is_busy(&self) -> bool {
        match &self.wire {
            Wire::Http(wire) => !wire.connection.is_idle(),
            Wire::Grpc(wire) => wire.has_unary_calls() || wire.connection.unsent_total() > 0,
        }
    }

    /// Lets the connection end when what it has begun is done.
    pub fn drain(&mut self) {
        match &mut self.wire {
            Wire::Http(wire) => wire.connection.close_after_responses(),
            Wire::Grpc(wire) => wire.drain(),
        }
    }
}
