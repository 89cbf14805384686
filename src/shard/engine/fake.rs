//! An engine that is late and disorderly, for tests: another engine, whose events it holds back and shuffles.
//!
//! It varies everything that the contract leaves open: events of different connections change places, a connection's
//! sends and receives too, completions come turns after they happened, accepted connections wait. The same seed gives
//! the same disorder, so over sockets whose other end is in the same thread a run can be repeated. With a [`Manual`]
//! clock a parked turn moves the clock instead of waiting.

use std::io;
use std::os::fd::OwnedFd;

use super::{Engine, Event, Park, Received, Refused, Waited, Waker};
use crate::clock::{Clock, Manual};
use nereid_memory::Key;
use nereid_memory::{BlockMut, Scatter, Slice};

/// Turns that an event is held back at most.
const TURNS_LATE: u64 = 4;

/// What is done to the next operation of a kind on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The next receive fails with this `errno`, although bytes may have come.
    Receive(i32),
    /// The next send reports this `errno`, although the peer may have the bytes.
    Send(i32),
}

/// See the [module](self).
pub struct Fake<E> {
    inner: E,
    clock: Option<Manual>,
    random: u64,
    /// Events and the number of turns that they still wait.
    held: Vec<(u64, Event)>,
    faults: Vec<(Key, Fault)>,
    fresh: Vec<Event>,
}

impl<E: Engine> Fake<E> {
    pub fn new(inner: E, seed: u64) -> Fake<E> {
        // A xorshift generator must not start at zero.
        Fake { inner, clock: None, random: seed | 1 << 63, held: Vec::new(), faults: Vec::new(), fresh: Vec::new() }
    }

    /// Parked turns advance this clock, which must be the one of the inner engine, instead of waiting for a time.
    pub fn with_clock(self, clock: Manual) -> Fake<E> {
        Fake { clock: Some(clock), ..self }
    }

    /// Makes the next operation of that kind on `key` fail.
    pub fn inject(&mut self, key: Key, fault: Fault) {
        self.faults.push((key, fault));
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Replaces the outcome of an event that a fault was injected for.
    fn spoil(&mut self, event: Event) -> Event {
        let hit = |fault: &(Key, Fault)| match (&event, fault) {
            (Event::Received { key, .. }, (of, Fault::Receive(_))) => key == of,
            (Event::Sent { key, .. }, (of, Fault::Send(_))) => key == of,
            _ => false,
        };
        let Some(at) = self.faults.iter().position(hit) else { return event };
        match (event, self.faults.swap_remove(at).1) {
            (Event::Received { key, .. }, Fault::Receive(code)) => {
                Event::Received { key, received: Received::Failed(io::Error::from_raw_os_error(code)) }
            }
            (Event::Sent { key, mut pieces, .. }, Fault::Send(code)) => {
                pieces.clear();
                Event::Sent { key, result: Err(io::Error::from_raw_os_error(code)), pieces }
            }
            (event, _) => event,
        }
    }

    /// Runs a turn of the inner engine and puts what it brings among the held events.
    fn collect(&mut self, park: Park) -> io::Result<Option<Waited>> {
        let mut fresh = std::mem::take(&mut self.fresh);
        let outcome = self.inner.turn(park, &mut fresh);
        for event in fresh.drain(..) {
            let event = self.spoil(event);
            let late = match event {
                // The last of its listener: those that were accepted before it come first.
                Event::ListenerClosed { .. } => TURNS_LATE,
                _ => self.random(TURNS_LATE),
            };
            self.held.push((late, event));
        }
        self.fresh = fresh;
        outcome
    }
}

fn key_of(event: &Event) -> Option<Key> {
    match event {
        Event::Received { key, .. } | Event::Sent { key, .. } | Event::Closed { key } => Some(*key),
        _ => None,
    }
}

impl<E: Engine> Engine for Fake<E> {
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
        self.refuse_if(key, |event| matches!(event, Event::Received { .. }))?;
        self.inner.receive(key)
    }

    fn receive_direct(&mut self, key: Key, block: BlockMut, at: usize, len: usize) -> Result<(), Refused> {
        self.refuse_if(key, |event| matches!(event, Event::Received { .. }))?;
        self.inner.receive_direct(key, block, at, len)
    }

    fn receive_scattered(&mut self, key: Key, scatter: Box<Scatter>) -> Result<(), Refused> {
        self.refuse_if(key, |event| matches!(event, Event::Received { .. }))?;
        self.inner.receive_scattered(key, scatter)
    }

    fn send(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.refuse_if(key, |event| matches!(event, Event::Sent { .. }))?;
        self.inner.send(key, pieces)
    }

    fn send_quietly(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.refuse_if(key, |event| matches!(event, Event::Sent { .. }))?;
        self.inner.send_quietly(key, pieces)
    }

    fn await_sent(&mut self, key: Key) {
        self.inner.await_sent(key);
    }

    fn recall(&mut self, key: Key) -> Result<(), Refused> {
        // Done, but not reported yet: the caller cannot know.
        match self.refuse_if(key, |event| matches!(event, Event::Sent { .. })) {
            Err(_) => Ok(()),
            Ok(()) => self.inner.recall(key),
        }
    }

    fn shutdown(&mut self, key: Key) -> Result<(), Refused> {
        self.inner.shutdown(key)
    }

    fn close(&mut self, key: Key) -> Result<(), Refused> {
        self.inner.close(key)?;
        self.held.retain(|(_, event)| key_of(event) != Some(key));
        self.faults.retain(|(of, _)| *of != key);
        Ok(())
    }

    fn has_events(&mut self) -> bool {
        !self.held.is_empty() || self.inner.has_events()
    }

    fn turn(&mut self, park: Park, events: &mut Vec<Event>) -> io::Result<Option<Waited>> {
        let waited = match (park, &self.clock) {
            _ if !self.held.is_empty() => self.collect(Park::Never)?,
            (Park::Until(at_ns), Some(clock)) => {
                let clock = clock.clone();
                self.collect(Park::Never)?;
                self.held.is_empty().then(|| {
                    let before_ns = clock.now_ns();
                    clock.advance_to(at_ns);
                    Waited::exactly(clock.now_ns().saturating_sub(before_ns))
                })
            }
            _ => self.collect(park)?,
        };
        let start = events.len();
        for (late, event) in std::mem::take(&mut self.held) {
            match late {
                0 => events.push(event),
                _ => self.held.push((late - 1, event)),
            }
        }
        // Of one connection no two events of the same kind are ever held, and nothing comes with or after its `Closed`,
        // so any order is one that the contract allows.
        for at in (start + 1..events.len()).rev() {
            let other = start + self.random((at - start) as u64 + 1) as usize;
            events.swap(at, other);
        }
        // Except that a listener's end is its end.
        events[start..].sort_by_key(|event| matches!(event, Event::ListenerClosed { .. }));
        Ok(waited)
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}

impl<E> Fake<E> {
    /// An operation whose completion was not delivered is still in flight for the caller.
    fn refuse_if(&self, key: Key, kind: impl Fn(&Event) -> bool) -> Result<(), Refused> {
        let in_flight = self.held.iter().any(|(_, event)| key_of(event) == Some(key) && kind(event));
        if in_flight { Err(Refused::Busy) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    use super::*;
    use crate::engine::{Epoll, Limits};

    fn fake(seed: u64, clock: &Manual) -> Fake<Epoll> {
        let epoll = Epoll::new(Limits::default(), Rc::new(clock.clone()), Waker::new().unwrap()).unwrap();
        Fake::new(epoll, seed).with_clock(clock.clone())
    }

    fn key(index: u64) -> Key {
        Key::from_u64(1 << 32 | index).unwrap()
    }

    /// The order in which ten connections' bytes are reported, and the number of turns that it took.
    fn run(seed: u64) -> (Vec<usize>, usize) {
        let mut fake = fake(seed, &Manual::new(0));
        let mut peers = Vec::new();
        for index in 0..10 {
            let (mine, mut peer) = UnixStream::pair().unwrap();
            fake.register(mine.into(), key(index)).unwrap();
            fake.receive(key(index)).unwrap();
            peer.write_all(b"x").unwrap();
            peers.push(peer);
        }
        let (mut order, mut turns) = (Vec::new(), 0);
        while order.len() < 10 {
            let mut events = Vec::new();
            fake.turn(Park::Never, &mut events).unwrap();
            order.extend(events.iter().filter_map(key_of).map(Key::index));
            turns += 1;
        }
        (order, turns)
    }

    #[test]
    fn the_same_seed_gives_the_same_disorder() {
        assert_eq!(run(5), run(5));
        let all: std::collections::HashSet<_> = (0..20).map(run).collect();
        assert!(all.len() > 15, "other seeds give another one");
        assert!(all.iter().all(|(order, _)| order.iter().sum::<usize>() == 45));
        assert!(all.iter().any(|(_, turns)| *turns > 2) && all.iter().all(|(_, turns)| *turns <= 10));
    }

    #[test]
    fn faults_hit_the_next_operation_of_their_kind_once() {
        let mut fake = fake(1, &Manual::new(0));
        let (mine, mut peer) = UnixStream::pair().unwrap();
        fake.register(mine.into(), key(0)).unwrap();
        fake.inject(key(0), Fault::Receive(libc::ECONNRESET));
        fake.inject(key(0), Fault::Send(libc::EPIPE));
        let mut events = Vec::new();
        for failing in [true, false] {
            peer.write_all(b"x").unwrap();
            fake.receive(key(0)).unwrap();
            fake.send(key(0), vec![Slice::from_static(b"y")]).unwrap();
            while events.len() < 2 {
                fake.turn(Park::Never, &mut events).unwrap();
            }
            for event in events.drain(..) {
                let failed = match event {
                    Event::Received { received: Received::Failed(error), .. } => error.raw_os_error(),
                    Event::Received { received: Received::Chunk(_), .. } => None,
                    Event::Sent { result, .. } => result.err().and_then(|error| error.raw_os_error()),
                    other => panic!("{other:?}"),
                };
                assert_eq!(failed.is_some(), failing, "{failed:?}");
                assert!(failed.is_none_or(|code| [libc::ECONNRESET, libc::EPIPE].contains(&code)));
            }
        }
    }

    #[test]
    fn a_park_moves_the_clock_and_does_not_wait() {
        let clock = Manual::new(10);
        let mut fake = fake(1, &clock);
        let mut events = Vec::new();
        fake.turn(Park::Until(u64::MAX / 2), &mut events).unwrap();
        assert_eq!((clock.now_ns(), events.len()), (u64::MAX / 2, 0));
        // With something to report, time stands still.
        let (mine, mut peer) = UnixStream::pair().unwrap();
        fake.register(mine.into(), key(0)).unwrap();
        fake.receive(key(0)).unwrap();
        peer.write_all(b"x").unwrap();
        while events.is_empty() {
            fake.turn(Park::Until(u64::MAX), &mut events).unwrap();
        }
        assert_eq!(clock.now_ns(), u64::MAX / 2);
    }
}
