//! The rig of the suite's tests: an engine, keys, peers, and waits for events of a kind.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use super::super::*;
use crate::clock::{Clock, Monotonic};
use nereid_memory::Pool;
use nereid_memory::Slab;
use nereid_test_support::skip::skip;

/// An engine under test, keys for it, and the events that the test has not taken yet.
pub(super) struct Rig {
    pub(super) engine: Box<dyn Engine>,
    pub(super) keys: Slab<()>,
    pub(super) waiting: VecDeque<Event>,
    pub(super) pool: Pool,
}

/// Longer than any test takes, on the slowest machine.
pub(super) const HANG_NS: u64 = 60_000_000_000;

impl Rig {
    pub(super) fn turn(&mut self, park: Park) {
        let mut events = Vec::new();
        self.engine.turn(park, &mut events).unwrap();
        self.waiting.extend(events);
    }

    /// The first event that `wanted` accepts; others keep waiting.
    pub(super) fn next<T>(&mut self, mut wanted: impl FnMut(Event) -> Result<T, Event>) -> T {
        let deadline = Monotonic.now_ns() + HANG_NS;
        loop {
            for _ in 0..self.waiting.len() {
                match wanted(self.waiting.pop_front().unwrap()) {
                    Ok(value) => return value,
                    Err(event) => self.waiting.push_back(event),
                }
            }
            assert!(Monotonic.now_ns() < deadline, "it never comes; waiting: {:?}", self.waiting);
            self.turn(Park::Until(deadline));
        }
    }

    pub(super) fn key(&mut self) -> Key {
        self.keys.insert(()).unwrap()
    }

    pub(super) fn register(&mut self, fd: impl Into<OwnedFd>) -> Key {
        let key = self.key();
        self.engine.register(fd.into(), key).unwrap();
        key
    }

    pub(super) fn unix_pair(&mut self) -> (Key, UnixStream) {
        let (mine, peer) = UnixStream::pair().unwrap();
        (self.register(mine), peer)
    }

    pub(super) fn tcp_pair(&mut self) -> (Key, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (self.register(listener.accept().unwrap().0), peer)
    }

    /// One whose socket and whose peer's hold so many bytes, or a few times as many, whatever the host's defaults are.
    pub(super) fn narrow_tcp_pair(&mut self, buffer_bytes: i32) -> (Key, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mine = listener.accept().unwrap().0;
        sys::set_option(mine.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, buffer_bytes).unwrap();
        sys::set_option(peer.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, buffer_bytes).unwrap();
        (self.register(mine), peer)
    }

    pub(super) fn received(&mut self, of: Key) -> Received {
        self.next(|event| match event {
            Event::Received { key, received } if key == of => Ok(received),
            other => Err(other),
        })
    }

    pub(super) fn sent(&mut self, of: Key) -> (io::Result<usize>, Vec<Slice>) {
        self.next(|event| match event {
            Event::Sent { key, result, pieces } if key == of => Ok((result, pieces)),
            other => Err(other),
        })
    }

    /// The same for an end that has to end a park: the time of the park must not.
    pub(super) fn sent_before_the_end_of_a_park(&mut self, of: Key) -> (io::Result<usize>, Vec<Slice>) {
        let deadline = Monotonic.now_ns() + HANG_NS;
        while !self.waiting.iter().any(|event| matches!(event, Event::Sent { key, .. } if *key == of)) {
            self.turn(Park::Until(deadline));
            assert!(Monotonic.now_ns() < deadline, "nothing ends the park; waiting: {:?}", self.waiting);
        }
        self.sent(of)
    }

    pub(super) fn closed(&mut self, of: Key) {
        self.next(|event| match event {
            Event::Closed { key } if key == of => Ok(()),
            other => Err(other),
        });
        self.keys.remove(of).unwrap();
    }

    pub(super) fn close(&mut self, key: Key) {
        self.engine.close(key).unwrap();
        self.closed(key);
    }

    /// Receives until `n` bytes are there.
    pub(super) fn receive_exactly(&mut self, key: Key, n: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < n {
            self.engine.receive(key).unwrap();
            match self.received(key) {
                Received::Chunk(chunk) => all.extend_from_slice(&chunk),
                other => panic!("{other:?} after {} bytes", all.len()),
            }
        }
        assert_eq!(all.len(), n);
        all
    }

    /// Has `n` chunks in hand at the same time: hangs if one was lost.
    pub(super) fn hold_chunks(&mut self, n: usize) {
        let mut held = Vec::new();
        for _ in 0..n {
            let (key, mut peer) = self.unix_pair();
            peer.write_all(b"x").unwrap();
            self.engine.receive(key).unwrap();
            held.push((key, self.received(key)));
        }
        for (key, received) in held {
            assert!(matches!(received, Received::Chunk(_)));
            self.close(key);
        }
    }

    pub(super) fn accepted(&mut self, of: usize) -> OwnedFd {
        self.next(|event| match event {
            Event::Accepted { listener, fd } if listener == of => Ok(fd),
            other => Err(other),
        })
    }

    pub(super) fn slice(&self, bytes: &[u8]) -> Slice {
        let mut block = self.pool.get(bytes.len()).unwrap();
        block.copy_from_slice(bytes);
        block.freeze()
    }

    pub(super) fn block(&self, len: usize) -> BlockMut {
        self.pool.get(len).unwrap()
    }
}

pub(super) fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

/// Fills the socket until the peer would have to read.
pub(super) fn more_than_fits() -> usize {
    16 << 20
}

pub(super) type Make = fn(Limits) -> Option<Box<dyn Engine>>;

pub(super) fn rig(make: Make, limits: Limits) -> Option<Rig> {
    let engine = make(limits)?;
    Some(Rig { engine, keys: Slab::new(limits.connections), waiting: VecDeque::new(), pool: Pool::new(1 << 30) })
}

pub(super) fn epoll(limits: Limits) -> Option<Box<dyn Engine>> {
    Some(Box::new(Epoll::new(limits, Rc::new(Monotonic), Waker::new().unwrap()).unwrap()))
}

/// None, after a visible skip, where the host refuses it.
fn uring_of_the_host(limits: Limits) -> Option<Uring> {
    Uring::new(limits, Rc::new(Monotonic), Waker::new().unwrap()).map_err(|reason| skip(&reason.to_string())).ok()
}

pub(super) fn uring(limits: Limits) -> Option<Box<dyn Engine>> {
    Some(Box::new(uring_of_the_host(limits)?))
}

/// The kernel refuses half of what is submitted.
pub(super) fn refused_uring(limits: Limits) -> Option<Box<dyn Engine>> {
    uring::Refusals::Half(17).during(|| super::rig::uring(limits))
}

/// The kernel takes no operation at all.
pub(super) fn dead_uring(limits: Limits) -> Option<Box<dyn Engine>> {
    uring::Refusals::All.during(|| super::rig::uring(limits))
}

pub(super) fn late_epoll(limits: Limits) -> Option<Box<dyn Engine>> {
    let inner = Epoll::new(limits, Rc::new(Monotonic), Waker::new().unwrap()).unwrap();
    Some(Box::new(Fake::new(inner, 7)))
}

pub(super) fn late_uring(limits: Limits) -> Option<Box<dyn Engine>> {
    Some(Box::new(Fake::new(uring_of_the_host(limits)?, 11)))
}
