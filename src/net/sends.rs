//! The one send of a connection that is with the engine, and whether the shard has to wake for its end.
//!
//! A shard that sleeps does not wake for the end of a quiet send, so nothing may depend on that. Whether something does
//! is decided here only: before the send, and again whenever the connection is settled while the engine has the send,
//! because later answers, the end of the connection or that of the server can come to depend on it. Everything that
//! changes a connection puts it on the list of those to settle, and a phase of the server puts all of them there.

use nereid_memory::{Key, Slice};
use nereid_mutants::{self as mutants, Mutant};
use nereid_protocol::service::Service;
use nereid_shard::Core;

use super::Net;
use super::connection::{Connection, SendState};
use super::shutdown::ShutdownPhase;

/// Whether something happens when the send of a connection is over.
fn awaits_sent(phase: ShutdownPhase, connection: &Connection) -> bool {
    phase != ShutdownPhase::Serving || connection.awaits_sent()
}

impl<S: Service> Net<S> {
    /// Starts the next send of a connection that has none with the engine, if it has output.
    pub(super) fn start_send(&mut self, key: Key, core: &mut Core<u64>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let pieces = connection.take_output(&self.shared.pool, &mut self.lists);
        connection.report_unsent(&mut self.shared);
        if pieces.is_empty() {
            return self.lists.keep(pieces);
        }
        let is_foreign = pieces.iter().any(Slice::is_foreign) || connection.holds_foreign();
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        let is_quiet = !is_foreign && !awaits_sent(self.phase, connection);
        let started = match is_quiet {
            true => core.engine.send_quietly(key, pieces),
            false => core.engine.send(key, pieces),
        };
        match started {
            Ok(()) => connection.send = SendState::InEngine { bytes, is_quiet },
            Err(_) => connection.phase.fail(),
        }
        if is_foreign && connection.timer.is_none() {
            self.watch(key, core);
        }
    }

    /// The connection was settled: if its quiet send is awaited by now, the engine reports its end.
    pub(super) fn await_sent(&mut self, key: Key, core: &mut Core<u64>) {
        let phase = self.phase;
        if let Some(connection) = self.connections.get_mut(key)
            && connection.send.is_quiet()
            && !connection.has_panicked
            && !mutants::is(Mutant::QuietSendForgotten)
            && awaits_sent(phase, connection)
        {
            connection.send.await_end();
            core.engine.await_sent(key);
        }
    }

    /// The server enters the next phase of its end, on which it depends whether the ends of sends are awaited.
    pub(super) fn enter_phase(&mut self, phase: ShutdownPhase) {
        self.phase = phase;
        for key in self.connections.keys() {
            if self.connections.get(key).is_some_and(|connection| connection.send.is_quiet()) {
                self.touch(key);
            }
        }
    }

    /// Connections that wait for the end of a send for which the engine does not wake the shard: none, when it sleeps.
    #[cfg(any(test, feature = "testing"))]
    pub fn forgotten_sends(&self) -> usize {
        let is_forgotten = |connection: &Connection| {
            let is_open = connection.phase != super::connection::ClosePhase::Closing && !connection.has_panicked;
            is_open && connection.send.is_quiet() && awaits_sent(self.phase, connection)
        };
        self.connections.iter().filter(|(_, connection)| is_forgotten(connection)).count()
    }
}
