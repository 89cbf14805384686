//! The time limits of connections: peers that stop in the middle, answers that no peer takes, drains.
//!
//! One timer of the shard starts a round over its connections once a second while there are any, so that a request pays
//! nothing for it. A round is spread over turns. A send that holds a runtime's own memory has a timer of its own: after
//! 10 ms its rest is called back and copied, in portions, so that no model waits for a client (decision 6 of the
//! design).

use std::collections::VecDeque;

use nereid_memory::{Key, Pool, Slice};
use nereid_protocol::service::Service;
use nereid_shard::Core;

use super::connection::{ClosePhase, SecondOutcome, Wire};
use super::{Connection, Net, keepalive};

/// Token of the timer of the round. No call and no connection has this number.
pub(super) const ROUND: u64 = u64::MAX;
const ROUND_NS: u64 = 1_000_000_000;
/// Connections and streams that are checked in one turn.
const CHECKED_PER_TURN: usize = 256;

/// Seconds for which a connection that was closed from here still reads, so that the peer sees the last answer and not
/// a reset (RFC 9112, section 9.6).
pub(super) const LINGER_S: u32 = 10;

/// Marks the number of a connection among the tokens of timers: indices of calls and connections are smaller.
const CONNECTION_MARK: u64 = 1 << 31;
/// How long a send may hold memory that is not ours.
const FOREIGN_NS: u64 = 10_000_000;
/// Bytes of such memory that are copied in one turn: some 30 µs.
pub(super) const COPIED_PER_TURN: usize = 256 << 10;

/// The token of a connection's own timer.
pub(super) fn token_of(connection: Key) -> u64 {
    connection.to_u64() | CONNECTION_MARK
}

fn connection_of(token: u64) -> Option<Key> {
    Key::from_u64(token & !CONNECTION_MARK).filter(|_| token & CONNECTION_MARK != 0)
}

/// The walk over all connections, once a second.
#[derive(Debug, Default)]
pub(super) struct Round {
    is_timer_running: bool,
    /// Connections that this second's round has still to reach.
    left: Vec<Key>,
}

impl Round {
    #[inline]
    pub fn is_over(&self) -> bool {
        self.left.is_empty()
    }
}

/// Lists of pieces that were sent, for the next sends.
#[derive(Debug, Default)]
pub(super) struct PieceLists(Vec<Vec<Slice>>);

/// Lists that are kept, and the pieces that one of them has room for at most.
const LISTS_MAX: usize = 256;
const LIST_LENGTH_MAX: usize = 256;

impl PieceLists {
    /// An empty one.
    pub fn take(&mut self) -> Vec<Slice> {
        self.0.pop().unwrap_or_default()
    }

    pub fn keep(&mut self, mut list: Vec<Slice>) {
        list.clear();
        if self.0.len() < LISTS_MAX && (1..=LIST_LENGTH_MAX).contains(&list.capacity()) {
            self.0.push(list);
        }
    }
}

/// What a partial send left over: it is sent before anything else.
#[derive(Debug, Default)]
pub(super) struct PartialSend {
    /// May be sent.
    ready: Vec<Slice>,
    /// May hold foreign memory.
    uncopied: VecDeque<Slice>,
}

impl PartialSend {
    pub fn of(pieces: Vec<Slice>) -> PartialSend {
        PartialSend { ready: Vec::new(), uncopied: pieces.into() }
    }

    pub fn is_copied(&self) -> bool {
        self.uncopied.is_empty()
    }

    pub fn take(&mut self) -> Vec<Slice> {
        std::mem::take(&mut self.ready)
    }

    /// Copies a portion. An error: there is no memory for it.
    pub fn copy(&mut self, pool: &Pool) -> Result<(), nereid_memory::Exhausted> {
        copy_portion(&mut self.uncopied, &mut self.ready, pool, &mut { COPIED_PER_TURN })
    }
}

/// Moves pieces from one list to the end of the other; of foreign ones as many bytes as the budget has, which are
/// copied.
pub(super) fn copy_portion(
    from: &mut VecDeque<Slice>,
    to: &mut Vec<Slice>,
    pool: &Pool,
    budget: &mut usize,
) -> Result<(), nereid_memory::Exhausted> {
    while *budget > 0
        && let Some(mut piece) = from.pop_front()
    {
        if !piece.is_foreign() {
            to.push(piece);
            continue;
        }
        let n = piece.len().min(*budget);
        *budget -= n;
        let mut block = pool.get(n)?;
        piece.copy_to(0, &mut block);
        to.push(block.freeze());
        piece.advance(n);
        if !piece.is_empty() {
            from.push_front(piece);
        }
    }
    Ok(())
}

impl<S: Service> Net<S> {
    /// Starts the timer of the round, if it is not running.
    pub(super) fn go_round(&mut self, core: &mut Core<u64>) {
        if !self.round.is_timer_running {
            self.round.is_timer_running = core.timers.start(core.now_ns().saturating_add(ROUND_NS), ROUND).is_ok();
        }
    }

    /// Handles a timer that belongs to no call. False: it belongs to a call.
    pub(super) fn time_passed(&mut self, token: u64, core: &mut Core<u64>) -> bool {
        if token == ROUND {
            self.round.is_timer_running = false;
            if !self.connections.is_empty() {
                if self.round.is_over() {
                    self.round.left = self.connections.keys();
                }
                self.go_round(core);
            }
            return true;
        }
        if let Some(key) = keepalive::connection_of(token) {
            self.contain(key, |net| net.pulse(key, core));
            return true;
        }
        let Some(key) = connection_of(token) else { return false };
        if let Some(connection) = self.connections.get_mut(key).filter(|one| !one.has_panicked) {
            connection.timer = None;
            if let Wire::Ipc(wire) = &mut connection.wire {
                wire.let_go();
                self.touch(key);
            } else if let Some(tls) = &mut connection.tls {
                // What the engine has is encrypted, and ours.
                tls.let_go();
                self.touch(key);
            } else if connection.send.is_in_engine() && connection.phase != ClosePhase::Closing {
                // `Refused` would mean that its `Sent` is on the way.
                let _ = core.engine.recall(key);
            }
        }
        true
    }

    /// Checks the next connections of the round.
    pub(super) fn continue_round(&mut self, core: &mut Core<u64>) {
        let mut checked = 0;
        while checked < CHECKED_PER_TURN {
            let Some(key) = self.round.left.pop() else { return };
            checked += 1;
            self.contain(key, |net| checked += net.check(key, core));
        }
    }

    /// Checks a connection, and returns what that cost beyond the check of one without streams.
    fn check(&mut self, key: Key, core: &mut Core<u64>) -> usize {
        let is_fit = |one: &&mut Connection| one.phase != ClosePhase::Closing && !one.has_panicked;
        let Some(connection) = self.connections.get_mut(key).filter(is_fit) else { return 0 };
        let cost = connection.weight();
        connection.report_waits(&mut self.shared);
        if connection.lacks_pulse() {
            self.start_pulse(key, core);
        }
        let Some(connection) = self.connections.get_mut(key) else { return cost };
        let second = connection.second_passed(&self.slow_peers);
        match second {
            SecondOutcome::Fine => {}
            // It comes back with what the peer has taken, and goes out again.
            SecondOutcome::Recall => drop(core.engine.recall(key)),
            SecondOutcome::LateStreams => {
                connection.end_late_streams(key, &mut self.shared);
                self.route_replies();
            }
            SecondOutcome::Close if connection.end_slow_ring() => {
                tracing::debug!("a connection ends: the client of its ring has stopped, or is too slow");
            }
            SecondOutcome::Close => {
                tracing::debug!("a connection is closed: its peer has stopped, or is too slow");
                self.close(key, core);
                return cost;
            }
        }
        self.touch(key);
        self.route_replies();
        cost
    }

    /// The send of a connection holds memory that is not ours: its timer is started, which calls it back.
    pub(super) fn watch(&mut self, key: Key, core: &mut Core<u64>) {
        let until = core.now_ns().saturating_add(FOREIGN_NS);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.timer = core.timers.start(until, token_of(key)).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn tokens_of_connections_and_calls_are_told_apart() {
        let key = Key::from_u64(7 << 32 | 65_535).unwrap();
        assert_eq!(connection_of(token_of(key)), Some(key));
        assert_eq!(connection_of(Key::from_u64(7 << 32 | ((1 << 20) - 1)).unwrap().to_u64()), None);
    }

    #[test]
    fn what_comes_back_is_copied_in_portions_and_stays_the_same() {
        let pool = Pool::new(8 << 20);
        let bytes: Arc<Vec<u8>> = Arc::new((0..COPIED_PER_TURN * 2 + 5).map(|at| at as u8).collect());
        let own = Slice::copy_of(b"head");
        let foreign = Slice::foreign_vec(&bytes);
        let mut partial = PartialSend::of(vec![own.clone(), foreign, own]);
        let mut turns = 0;
        while !partial.is_copied() {
            partial.copy(&pool).unwrap();
            turns += 1;
        }
        assert_eq!(turns, 3);
        assert_eq!(Arc::strong_count(&bytes), 1, "the owner was let go");
        let sent: Vec<u8> = partial.take().iter().flat_map(|piece| piece.to_vec()).collect();
        assert_eq!(sent, [b"head", &bytes[..], b"head"].concat());
        assert!(PartialSend::of(vec![Slice::from_static(b"x")]).copy(&Pool::new(0)).is_ok(), "ours is not copied");
    }
}
