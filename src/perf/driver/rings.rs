//! A driver's rings of shared memory: they are polled in each turn, and the server rings while the thread sleeps.

use super::thread_clock::cpu_ns;
use super::{Connection, Driver, State};
use nereid_shard::Core;

/// Polls between two reads of the clock.
const POLLS: u32 = 32;

impl Driver {
    /// Takes what has come through rings, and returns the time behind it: that of the turn, where no ring has moved.
    pub(super) fn poll_rings(&mut self, core: &mut Core<()>) -> u64 {
        let mut now_ns = core.now_ns();
        if self.rings.is_empty() {
            return now_ns;
        }
        let mut rings = std::mem::take(&mut self.rings);
        rings.retain(|key| self.connections.contains(*key));
        for key in &rings {
            let Some(connection) = self.connections.get_mut(*key).filter(|connection| !connection.closing) else {
                continue;
            };
            connection.unpark();
            if !connection.has_work() {
                continue;
            }
            now_ns = core.clock().now_ns();
            let outcome = connection.poll(now_ns, &mut self.outcomes);
            let traffic = connection.take_traffic();
            self.totals.counts.bytes_sent += traffic.sent;
            self.totals.counts.bytes_received += traffic.received;
            self.settle(*key);
            match outcome {
                Ok(()) => self.touch(*key),
                Err(reason) => self.lose(*key, &reason, core),
            }
        }
        self.rings = rings;
        now_ns
    }

    /// The thread is about to sleep. False: a ring has something.
    pub(super) fn park_rings(&mut self) -> bool {
        if self.rings.is_empty() {
            return true;
        }
        if self.spins_until_frames() {
            return false;
        }
        let Driver { rings, connections, .. } = self;
        // One that does not sleep is polled in the next turn, which wakes the others.
        rings.iter().all(|key| connections.get_mut(*key).is_none_or(|one| one.closing || one.park()))
    }

    /// Polls for answers. Nothing is gained by that where none is due.
    fn spins_until_frames(&mut self) -> bool {
        let spin_ns = u64::try_from(self.settings.ring_spin.as_nanos()).unwrap_or(u64::MAX);
        if spin_ns == 0 || self.in_flight == 0 || matches!(self.state, State::Stopping { .. }) {
            return false;
        }
        let before_ns = cpu_ns();
        let deadline_ns = nereid_clock::now_ns().saturating_add(spin_ns);
        let until_ns = self.schedule_ns().map_or(deadline_ns, |due_ns| due_ns.min(deadline_ns));
        let mut found = self.finds_frames();
        while !found && nereid_clock::now_ns() < until_ns {
            found = self.finds_frames();
        }
        self.spun_ns += cpu_ns().saturating_sub(before_ns);
        found
    }

    /// Polls its rings some times.
    fn finds_frames(&self) -> bool {
        for _ in 0..POLLS {
            if self.rings.iter().any(|key| self.connections.get(*key).is_some_and(Connection::has_frames)) {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}
