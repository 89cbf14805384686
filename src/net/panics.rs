//! Containment of panics: what panics for one connection ends that connection, what panics in the service for one call
//! ends that call, and the shard goes on (docs/design.md, "Panics").
//!
//! The state of a connection whose code panicked is not used again: it is only dropped, and its calls are found in the
//! shard's table. What concerns no single connection is not contained; a panic there ends the shard, and the server.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tracing::warn;

use super::{Call, CallAddress, CallKey, Connection, Net, ShardContext, call_of, remove_call};
use nereid_memory::Key;
use nereid_protocol::service::{Panicked, Service};
use nereid_shard::Core;

/// Runs what concerns one connection or one call. `None`: it panicked.
pub(super) fn contained<R>(run: impl FnOnce() -> R) -> Option<R> {
    // What the closures leave behind is dropped by the caller, or consists of whole steps.
    catch_unwind(AssertUnwindSafe(run)).ok()
}

impl<S: Service> Net<S> {
    /// Runs what concerns one connection, which a panic ends.
    #[inline]
    pub(super) fn contain(&mut self, key: Key, run: impl FnOnce(&mut Net<S>)) {
        if contained(|| run(self)).is_none() {
            self.end_panicked(key);
        }
    }

    /// Runs what the engine reports of a connection that is not known before it is accepted.
    pub(super) fn contain_unnamed(&mut self, run: impl FnOnce(&mut Net<S>)) {
        if contained(|| run(self)).is_none() {
            warn!("a connection is not taken: the code for it panicked");
        }
    }

    /// Its calls are cancelled now, and the connection is closed when it is settled.
    #[cold]
    fn end_panicked(&mut self, key: Key) {
        warn!("a connection is closed: the code for it panicked");
        if let Some(connection) = self.connections.get_mut(key) {
            connection.has_panicked = true;
            connection.dirty = false;
        }
        abandon_by_table(key, &mut self.shared);
        self.touch(key);
    }

    /// Closes a connection without the use of its state.
    pub(super) fn close_panicked(&mut self, key: Key, core: &mut Core<u64>) {
        abandon_by_table(key, &mut self.shared);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let is_first = connection.phase.close();
        for timer in connection.take_timers() {
            core.timers.cancel(timer);
        }
        if is_first && core.engine.close(key).is_err() {
            self.closed(key);
        }
    }

    /// Ends the calls that the service cannot go on with.
    #[cold]
    pub(super) fn end_panicked_calls(&mut self, all: Vec<Panicked>) {
        for panicked in all {
            let call = match panicked {
                Panicked::Call(call) => Some(call),
                Panicked::Work(token) => {
                    let is_its = |(_, call): &(Key, &Call)| call.token == Some(token);
                    self.shared.calls.iter().find(is_its).map(|(key, _)| CallKey(key.to_u64()))
                }
            };
            let Some(call) = call else { continue };
            let Some(Call { connection: key, at, .. }) = call_of(&self.shared.calls, call) else { continue };
            let (key, at) = (*key, *at);
            self.contain(key, |net| {
                if let Some(connection) = net.connections.get_mut(key) {
                    connection.fail_call(call, at, &mut net.shared);
                    net.touch(key);
                }
            });
        }
    }
}

/// Cancels the calls of a connection that are in the shard's table.
fn abandon_by_table<S: Service>(key: Key, shared: &mut ShardContext<S>) {
    let of_connection = |(_, call): &(Key, &Call)| call.connection == key;
    let calls: Vec<_> = shared.calls.iter().filter(of_connection).map(|(call, _)| CallKey(call.to_u64())).collect();
    for call in calls {
        if let Some(token) = remove_call(shared, call).and_then(|call| call.token) {
            let _ = contained(|| shared.service.cancelled(token));
        }
    }
}

impl Connection {
    /// Ends a call with an error, because the service panicked over it.
    pub(super) fn fail_call<S: Service>(&mut self, call: CallKey, at: CallAddress, shared: &mut ShardContext<S>) {
        use super::connection::Wire;
        match (&mut self.wire, at) {
            (Wire::Http(wire), CallAddress::Http(exchange)) => wire.fail_call(call, exchange, shared),
            (Wire::Grpc(wire), CallAddress::Grpc(stream)) => wire.fail_call(call, stream, shared),
            (Wire::Ipc(wire), CallAddress::Grpc(stream)) => wire.fail_call(call, stream, shared),
            _ => {}
        }
    }
}
