//! A connection that speaks HTTP/1.1.

use smallvec::SmallVec;

use super::{At, Call, Shared, call_mut, remove_call};
use crate::memory::{BlockMut, Key, Slice};
use crate::protocol::http1::{self, BodyPlan, Direct, ExchangeId, Head, Response, ResponseHead};
use crate::protocol::service::{CallKey, Port, Reply, Service};
use crate::request::now_ns;

pub(super) struct HttpWire {
    pub connection: http1::Connection,
    /// Exchanges without an answer, oldest first.
    calls: SmallVec<[CallKey; 2]>,
    /// When the request that is being received began to arrive; 0: nobody wants to know.
    since_ns: u64,
}

/// What the codec tells goes to the service; answers are collected there.
struct Handler<'a, S> {
    key: Key,
    port: Port,
    shared: &'a mut Shared<S>,
    calls: &'a mut SmallVec<[CallKey; 2]>,
    since_ns: &'a mut u64,
    /// Exchanges for which there was no room.
    refused: &'a mut Vec<ExchangeId>,
}

impl<S: Service> http1::Handler for Handler<'_, S> {
    fn head(&mut self, _exchange: ExchangeId, head: &Head) -> BodyPlan {
        *self.since_ns = if self.shared.service.is_timed(head) { now_ns() } else { 0 };
        self.shared.service.http_head(self.port, head)
    }

    fn request(&mut self, exchange: ExchangeId, head: &Head, body: Slice) {
        let call = Call { connection: self.key, at: At::Http(exchange), token: None, timer: None };
        let Ok(call) = self.shared.calls.insert(call) else {
            return self.refused.push(exchange);
        };
        let call = CallKey(call.to_u64());
        self.calls.push(call);
        match std::mem::take(self.since_ns) {
            0 => {}
            since_ns => self.shared.service.arrived(since_ns),
        }
        let token = self.shared.service.http(call, self.port, head, body, &mut self.shared.replies);
        if let Some(call) = call_mut(self.shared, call) {
            call.token = token;
        }
    }
}

impl HttpWire {
    pub fn new(connection: http1::Connection) -> HttpWire {
        HttpWire { connection, calls: SmallVec::new(), since_ns: 0 }
    }

    pub fn receive<S: Service>(&mut self, key: Key, port: Port, bytes: &[u8], shared: &mut Shared<S>) {
        self.with_handler(key, port, shared, |connection, handler| connection.receive(bytes, handler));
    }

    fn with_handler<S: Service>(
        &mut self,
        key: Key,
        port: Port,
        shared: &mut Shared<S>,
        run: impl FnOnce(&mut http1::Connection, &mut Handler<'_, S>),
    ) {
        let mut refused = Vec::new();
        run(
            &mut self.connection,
            &mut Handler {
                key,
                port,
                shared: &mut *shared,
                calls: &mut self.calls,
                since_ns: &mut self.since_ns,
                refused: &mut refused,
            },
        );
        for exchange in refused {
            let head = ResponseHead::new(503).content_type("application/json");
            let response = Response::error(&shared.pool, head, "too many requests wait for their answers");
            self.connection.respond(exchange, response);
        }
    }

    pub fn end_of_input<S: Service>(&mut self, key: Key, port: Port, shared: &mut Shared<S>) {
        self.with_handler(key, port, shared, |connection, handler| connection.end_of_input(handler));
    }

    pub fn take_direct(&mut self) -> Option<(BlockMut, usize, usize)> {
        let Direct { block, at, len } = self.connection.take_direct()?;
        Some((block, at, len))
    }

    pub fn direct_received<S: Service>(
        &mut self,
        key: Key,
        port: Port,
        block: BlockMut,
        at: usize,
        n: usize,
        shared: &mut Shared<S>,
    ) {
        self.with_handler(key, port, shared, |connection, handler| {
            connection.direct_received(Direct { block, at, len: n }, n, handler);
        });
    }

    pub fn reply<S: Service>(&mut self, call: CallKey, exchange: ExchangeId, reply: Reply, shared: &mut Shared<S>) {
        match reply {
            Reply::Http(response) => self.connection.respond(exchange, response),
            Reply::HttpHead(head) => return self.connection.respond_chunked(exchange, head),
            Reply::HttpChunk(data) => return self.connection.chunk(exchange, data),
            Reply::HttpEnd => self.connection.finish(exchange),
            Reply::GrpcMessage(_) | Reply::GrpcEnd(_) | Reply::Receipt(_) => return,
        }
        remove_call(shared, call);
        self.calls.retain(|other| *other != call);
    }

    pub fn abandon<S: Service>(&mut self, shared: &mut Shared<S>) {
        for call in self.calls.drain(..) {
            if let Some(token) = remove_call(shared, call).and_then(|call| call.token) {
                shared.service.cancelled(token);
            }
        }
    }
}
