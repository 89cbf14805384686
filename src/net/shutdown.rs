//! How the connections of a shard end with the server.

use std::sync::atomic::Ordering;

use super::connection::Connection;
use super::{Gauges, Net, ShardContext};
use nereid_memory::Slab;
use nereid_protocol::service::{Port, Service};
use nereid_shard::Core;

/// How far the server is on its way to its end. It goes down this list, and may leave some out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShutdownPhase {
    Serving,
    /// Clients are served, and requested to go elsewhere.
    Leaving,
    /// Only the metrics port takes connections; the others end as soon as they are idle. `after_leaving`: behind
    /// [`ShutdownPhase::Leaving`].
    Draining {
        after_leaving: bool,
    },
    /// Every connection is closed.
    Stopped,
}

impl ShutdownPhase {
    /// Clients are requested to go elsewhere, those of the metrics port included if they come only now.
    pub fn is_leaving(self) -> bool {
        matches!(self, ShutdownPhase::Leaving | ShutdownPhase::Draining { after_leaving: true })
    }

    /// Connections end when they are idle.
    pub fn is_draining(self) -> bool {
        matches!(self, ShutdownPhase::Draining { .. } | ShutdownPhase::Stopped)
    }

    /// Whether a port takes no connections. Metrics are served to the end (contract/cli.md section 7).
    pub fn refuses(self, port: Port) -> bool {
        match self {
            ShutdownPhase::Serving | ShutdownPhase::Leaving => false,
            ShutdownPhase::Draining { .. } => port != Port::Metrics,
            ShutdownPhase::Stopped => true,
        }
    }

    fn leave(self) -> ShutdownPhase {
        match self {
            ShutdownPhase::Serving | ShutdownPhase::Leaving => ShutdownPhase::Leaving,
            ShutdownPhase::Draining { .. } => ShutdownPhase::Draining { after_leaving: true },
            ShutdownPhase::Stopped => ShutdownPhase::Stopped,
        }
    }

    fn drain(self) -> ShutdownPhase {
        match self {
            ShutdownPhase::Serving => ShutdownPhase::Draining { after_leaving: false },
            ShutdownPhase::Leaving => ShutdownPhase::Draining { after_leaving: true },
            phase @ (ShutdownPhase::Draining { .. } | ShutdownPhase::Stopped) => phase,
        }
    }

    /// Reports to the rest of the server what keeps this shard from the end of the phase.
    pub fn report(self, connections: &Slab<Connection>, gauges: &Gauges) {
        if self.is_draining() {
            let is_busy = |connection: &Connection| connection.port != Port::Metrics && connection.is_busy();
            let busy = connections.iter().filter(|(_, connection)| is_busy(connection)).count();
            gauges.busy.store(busy, Ordering::Release);
        }
        if self.is_leaving() {
            let unwarned = connections.iter().filter(|(_, connection)| connection.may_be_unwarned()).count();
            gauges.unwarned.store(unwarned, Ordering::Release);
        }
    }
}

impl<S: Service> Net<S> {
    /// Requests the clients of all ports but that of the metrics to go elsewhere.
    pub(super) fn leave(&mut self) {
        self.enter_phase(self.phase.leave());
        self.for_each(|port| port != Port::Metrics, |connection, _| connection.leave());
    }

    /// Answers every request that has no answer yet with an error.
    pub(super) fn fail_unanswered(&mut self) {
        self.for_each(|port| port != Port::Metrics, |connection, shared| connection.fail_unanswered(shared));
    }

    /// Leaves further connections at these listening sockets to another process. Those that the engine has accepted
    /// already are served.
    pub(super) fn stop_listening(&mut self, listeners: &[usize], core: &mut Core<u64>) {
        for &listener in listeners {
            let _ = core.engine.stop_listening(listener);
        }
    }

    /// Takes no new connections, and ends those that are idle.
    pub(super) fn drain(&mut self, core: &mut Core<u64>) {
        self.enter_phase(self.phase.drain());
        self.end_listeners(core);
    }

    /// Closes everything.
    pub(super) fn stop(&mut self, core: &mut Core<u64>) {
        self.enter_phase(ShutdownPhase::Stopped);
        self.end_listeners(core);
        for key in self.connections.keys() {
            self.close(key, core);
        }
    }

    fn end_listeners(&mut self, core: &mut Core<u64>) {
        let phase = self.phase;
        for (number, listener) in self.listeners.iter().enumerate() {
            if phase.refuses(listener.port) {
                // A listener of another shard is not ours to stop.
                let _ = core.engine.stop_listening(number);
            }
        }
        self.for_each(|port| phase.refuses(port), |connection, _| connection.drain());
    }

    /// Changes the connections of some ports, which are settled afterwards.
    fn for_each(
        &mut self,
        is_meant: impl Fn(Port) -> bool,
        mut change: impl FnMut(&mut Connection, &mut ShardContext<S>),
    ) {
        for key in self.connections.keys() {
            if let Some(connection) =
                self.connections.get_mut(key).filter(|one| is_meant(one.port) && !one.has_panicked)
            {
                change(connection, &mut self.shared);
                self.touch(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ShutdownPhase::{Draining, Leaving, Serving, Stopped};
    use super::*;

    #[test]
    fn the_server_goes_only_towards_its_end() {
        let (early, late) = (Draining { after_leaving: false }, Draining { after_leaving: true });
        for (from, left, drained) in
            [(Serving, Leaving, early), (Leaving, Leaving, late), (early, late, early), (late, late, late)]
        {
            assert_eq!((from.leave(), from.drain()), (left, drained), "{from:?}");
        }
        assert_eq!((Stopped.leave(), Stopped.drain()), (Stopped, Stopped));
    }

    #[test]
    fn metrics_are_served_to_the_end() {
        let draining = Draining { after_leaving: false };
        let refused = |port| [Serving, Leaving, draining, Stopped].map(|phase| phase.refuses(port));
        assert_eq!(refused(Port::Metrics), [false, false, false, true]);
        assert_eq!(refused(Port::Http), [false, false, true, true]);
    }
}
