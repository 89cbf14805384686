//! An engine whose completions come late and out of order. If the shard parks, it withholds the ends of quiet sends
//! until something else ends the park, as io_uring does, and at times takes nothing of what was started for a turn.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nereid_memory::{BlockMut, Key, Scatter, Slice};
use nereid_shard::clock::{Clock, Manual};
use nereid_shard::engine::{Engine, Event, Park, Refused, Waited, Waker};

/// Turns for which an event is held back at most.
const TURNS_LATE: u64 = 4;
/// Of so many turns that may park one takes nothing.
const REFUSED_ONE_IN: u64 = 8;

/// Sends that were started, and quiet ones that were awaited later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sends {
    pub plain: usize,
    pub quiet: usize,
    pub awaited: usize,
}

/// What a test shares with its engine.
#[derive(Debug, Default)]
pub struct EngineState {
    pub sends: Cell<Sends>,
    /// Receives of several frames that were started.
    pub scattered: Cell<usize>,
    /// The last turn ended in a park that goes on until something happens.
    pub is_parked: Cell<bool>,
    /// Another thread has ended the park.
    pub is_woken: Cell<bool>,
    /// Nothing of what is started is taken.
    pub refuses: Cell<bool>,
}

pub struct Late<E> {
    inner: E,
    clock: Manual,
    state: Rc<EngineState>,
    random: u64,
    held: Vec<(u64, Event)>,
    /// Connections with a quiet send that is not awaited.
    quiet: Vec<Key>,
    /// Ends of such sends.
    withheld: Vec<Event>,
}

impl<E: Engine> Late<E> {
    pub fn new(inner: E, seed: u64, clock: Manual, state: Rc<EngineState>) -> Late<E> {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Late { inner, clock, state, random, held: Vec::new(), quiet: Vec::new(), withheld: Vec::new() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// True if the connection had a quiet send that was not awaited.
    fn end_quiet(&mut self, key: Key) -> bool {
        let at = self.quiet.iter().position(|quiet| *quiet == key);
        at.map(|at| self.quiet.swap_remove(at)).is_some()
    }

    /// Reports the end of the connection's quiet send in the next turn, if it was withheld.
    fn release(&mut self, key: Key) {
        let of_key = |event: &mut Event| matches!(event, Event::Sent { key: of, .. } if *of == key);
        self.held.extend(self.withheld.extract_if(.., of_key).map(|event| (0, event)));
    }

    fn collect(&mut self, withholds: bool) -> io::Result<()> {
        let mut fresh = Vec::new();
        self.inner.turn(Park::Never, &mut fresh)?;
        for event in fresh {
            if let Event::Sent { key, result, pieces } = &event {
                let is_quiet = self.end_quiet(*key) && result.is_ok() && pieces.is_empty();
                if is_quiet && withholds {
                    self.withheld.push(event);
                    continue;
                }
            }
            let late = self.below(TURNS_LATE);
            let at = self.below(self.held.len() as u64 + 1) as usize;
            self.held.insert(at, (late, event));
        }
        Ok(())
    }
}

impl<E: Engine> Engine for Late<E> {
    fn listen(&mut self, socket: OwnedFd, listener: usize) -> Result<(), Refused> {
        self.inner.listen(socket, listener)
    }

    fn stop_listening(&mut self, listener: usize) -> Result<(), Refused> {
        self.inner.stop_listening(listener)
    }

    fn register(&mut self, fd: OwnedFd, key: Key) -> Result<(), Refused> {
        self.inner.register(fd, key)
    }

    fn receive(&mut self, key: Key) -> Result<(), Refused> {
        self.inner.receive(key)
    }

    fn receive_direct(&mut self, key: Key, block: BlockMut, at: usize, len: usize) -> Result<(), Refused> {
        self.inner.receive_direct(key, block, at, len)
    }

    fn receive_scattered(&mut self, key: Key, scatter: Box<Scatter>) -> Result<(), Refused> {
        self.state.scattered.update(|count| count + 1);
        self.inner.receive_scattered(key, scatter)
    }

    fn send(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.state.sends.update(|sends| Sends { plain: sends.plain + 1, ..sends });
        self.inner.send(key, pieces)
    }

    fn send_quietly(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.state.sends.update(|sends| Sends { quiet: sends.quiet + 1, ..sends });
        self.inner.send_quietly(key, pieces)?;
        self.quiet.push(key);
        Ok(())
    }

    fn await_sent(&mut self, key: Key) {
        self.state.sends.update(|sends| Sends { awaited: sends.awaited + 1, ..sends });
        self.end_quiet(key);
        self.release(key);
    }

    fn recall(&mut self, key: Key) -> Result<(), Refused> {
        self.end_quiet(key);
        self.release(key);
        // Refused where the send has completed and was not told yet.
        self.inner.recall(key)
    }

    fn shutdown(&mut self, key: Key) -> Result<(), Refused> {
        self.inner.shutdown(key)
    }

    fn close(&mut self, key: Key) -> Result<(), Refused> {
        self.inner.close(key)?;
        self.end_quiet(key);
        let is_its = |event: &Event| match event {
            Event::Received { key: of, .. } | Event::Sent { key: of, .. } => *of == key,
            _ => false,
        };
        self.held.retain(|(_, event)| !is_its(event));
        self.withheld.retain(|event| !is_its(event));
        Ok(())
    }

    /// A park that nothing has ended yet returns at once; the next turn goes on with it.
    fn turn(&mut self, park: Park, events: &mut Vec<Event>) -> io::Result<Option<Waited>> {
        self.state.is_parked.set(false);
        if self.state.refuses.get() || park != Park::Never && self.below(REFUSED_ONE_IN) == 0 {
            return Ok(None);
        }
        let is_over = match park {
            Park::Never => true,
            Park::Until(at_ns) => at_ns <= self.clock.now_ns(),
            Park::Forever => false,
        };
        let is_over = self.state.is_woken.take() || is_over;
        let mut ready = Vec::new();
        loop {
            self.collect(park != Park::Never)?;
            for (late, event) in std::mem::take(&mut self.held) {
                match late.checked_sub(1) {
                    None => ready.push(event),
                    Some(late) => self.held.push((late, event)),
                }
            }
            // What is late has happened, and ends the park.
            if is_over || !ready.is_empty() || self.held.is_empty() {
                break;
            }
        }
        let parks = !is_over && ready.is_empty();
        self.state.is_parked.set(parks);
        if !parks {
            events.append(&mut self.withheld);
        }
        events.append(&mut ready);
        Ok(parks.then(Waited::default))
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}
