//! An engine whose completions come late and out of order.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nereid_memory::{BlockMut, Key, Slice};
use nereid_shard::engine::{Engine, Event, Park, Refused, Waker};

/// Turns for which an event is held back at most.
const TURNS_LATE: u64 = 4;

/// Sends that were started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sends {
    pub plain: usize,
    pub quiet: usize,
}

pub struct Late<E> {
    inner: E,
    sends: Rc<Cell<Sends>>,
    random: u64,
    held: Vec<(u64, Event)>,
}

impl<E: Engine> Late<E> {
    pub fn new(inner: E, seed: u64, sends: Rc<Cell<Sends>>) -> Late<E> {
        Late { inner, sends, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, held: Vec::new() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
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

    fn send(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.sends.update(|sends| Sends { plain: sends.plain + 1, ..sends });
        self.inner.send(key, pieces)
    }

    fn send_quietly(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.sends.update(|sends| Sends { quiet: sends.quiet + 1, ..sends });
        self.inner.send_quietly(key, pieces)
    }

    fn recall(&mut self, key: Key) -> Result<(), Refused> {
        // Refused where the send has completed and was not told yet.
        self.inner.recall(key)
    }

    fn shutdown(&mut self, key: Key) -> Result<(), Refused> {
        self.inner.shutdown(key)
    }

    fn close(&mut self, key: Key) -> Result<(), Refused> {
        self.inner.close(key)?;
        self.held.retain(
            |(_, event)| !matches!(event, Event::Received { key: of, .. } | Event::Sent { key: of, .. } if *of == key),
        );
        Ok(())
    }

    fn turn(&mut self, _park: Park, events: &mut Vec<Event>) -> io::Result<bool> {
        let mut fresh = Vec::new();
        self.inner.turn(Park::Never, &mut fresh)?;
        for event in fresh {
            let late = self.below(TURNS_LATE);
            let at = self.below(self.held.len() as u64 + 1) as usize;
            self.held.insert(at, (late, event));
        }
        for (late, event) in std::mem::take(&mut self.held) {
            match late.checked_sub(1) {
                None => events.push(event),
                Some(late) => self.held.push((late, event)),
            }
        }
        Ok(false)
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}
