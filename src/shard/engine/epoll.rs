//! The engine for hosts without io_uring: non-blocking sockets and one edge-triggered epoll.
//!
//! Each connection stores whether the kernel reported it readable and writable since the last EAGAIN. An operation runs
//! when it is requested and the socket is ready, so completions are the same as those of a ring. Listeners and the
//! wake-up are level-triggered: a burst of connections is taken over several turns.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use smallvec::SmallVec;

use super::chunk::{CHUNK_BYTES, Chunks};
use super::sending::Sending;
use super::{
    ACCEPT_RETRY_NS, EVENTS_PER_TURN, Engine, Event, Limits, Park, Receive, Received, Refused, ScatteredReceive,
    Waited, Waker, check_window, is_transient_accept_error, slot_mut, sys,
};
use crate::clock::Clock;
use nereid_memory::Key;
use nereid_memory::{BlockMut, Scatter, Slice};

/// Connections that one listener may bring in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Bytes that one connection may send in one turn before the others send.
const SEND_PER_TURN: usize = 1 << 20;
const BOTH_EDGES: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
/// Below the smallest key, whose generation is 1: epoll data of listeners is their id, and of the wake-up this.
const WAKE: u64 = u32::MAX as u64;

/// See the [module](self).
pub struct Epoll {
    epoll: OwnedFd,
    waker: Waker,
    clock: Rc<dyn Clock>,
    limits: Limits,
    chunks: Rc<Chunks>,
    connections: Vec<Option<Connection>>,
    listeners: Vec<Option<Listener>>,
    /// Connections with an operation that may be able to run, in the order in which they became so.
    runnable: VecDeque<Key>,
    /// The last turn has polled the kernel for readiness.
    has_polled: bool,
    /// Receives that found no free chunk.
    starved: VecDeque<Key>,
    closed: Vec<Event>,
    ready: Vec<libc::epoll_event>,
}

struct Connection {
    fd: OwnedFd,
    key: Key,
    receive: Option<Receive>,
    send: Option<Sending>,
    readable: bool,
    writable: bool,
    /// The peer has shut down its side, or the socket failed: a short receive does not mean that there is no more.
    ended: bool,
    queued: bool,
    /// Its receive is among the starved ones.
    starved: bool,
}

struct Listener {
    socket: OwnedFd,
    /// Out of descriptors or memory until then.
    retry_at_ns: Option<u64>,
}

impl Epoll {
    pub fn new(limits: Limits, clock: Rc<dyn Clock>, waker: Waker) -> io::Result<Epoll> {
        let epoll = sys::epoll_create()?;
        sys::set_nonblocking(waker.file().as_fd(), true)?;
        sys::epoll_add(epoll.as_fd(), waker.file().as_fd(), libc::EPOLLIN as u32, WAKE)?;
        Ok(Epoll {
            epoll,
            waker,
            clock,
            limits,
            chunks: Chunks::on_stack(limits.chunks)?,
            connections: Vec::new(),
            listeners: Vec::new(),
            runnable: VecDeque::new(),
            has_polled: false,
            starved: VecDeque::new(),
            closed: Vec::new(),
            ready: vec![libc::epoll_event { events: 0, u64: 0 }; 256],
        })
    }

    fn connection(&mut self, key: Key) -> Result<&mut Connection, Refused> {
        let slot = self.connections.get_mut(key.index()).and_then(Option::as_mut);
        slot.filter(|connection| connection.key == key).ok_or(Refused::Unknown)
    }

    fn start_receive(&mut self, key: Key, receive: Receive) -> Result<(), Refused> {
        let connection = self.connection(key)?;
        if connection.receive.is_some() {
            return Err(Refused::Busy);
        }
        connection.receive = Some(receive);
        self.queue(key);
        Ok(())
    }

    /// Puts the connection among the runnable ones if one of its operations may go on.
    fn queue(&mut self, key: Key) {
        let Ok(connection) = self.connection(key) else { return };
        let may_run = (connection.receive.is_some() && connection.readable && !connection.starved)
            || (connection.send.as_ref().is_some_and(|send| connection.writable || send.recalled));
        if may_run && !connection.queued {
            connection.queued = true;
            self.runnable.push_back(key);
        }
    }

    fn run(&mut self, key: Key, events: &mut Vec<Event>) {
        let chunks = Rc::clone(&self.chunks);
        let Ok(connection) = self.connection(key) else { return };
        connection.queued = false;
        if connection.readable
            && !connection.starved
            && let Some(receive) = connection.receive.take()
        {
            match connection.run_receive(receive, &chunks) {
                Step::Done(event) => events.push(event),
                Step::Waits => {}
                Step::Starved => {
                    connection.starved = true;
                    self.starved.push_back(key);
                }
            }
        }
        let Ok(connection) = self.connection(key) else { return };
        if let Some(sending) = connection.send.take()
            && let Some(event) = connection.run_send(sending)
        {
            events.push(event);
        }
        // A send that has used up its budget goes on in the next turn.
        self.queue(key);
    }

    fn accept(&mut self, id: usize, now_ns: u64, events: &mut Vec<Event>) {
        let Some(listener) = self.listeners.get_mut(id).and_then(Option::as_mut) else { return };
        for _ in 0..ACCEPTS_PER_TURN {
            match sys::accept(listener.socket.as_fd()) {
                Ok(fd) => events.push(Event::Accepted { listener: id, fd }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_transient_accept_error(&error) => {}
                Err(error) => {
                    let retry_at_ns = now_ns.saturating_add(ACCEPT_RETRY_NS);
                    listener.retry_at_ns = Some(retry_at_ns);
                    // Without interest, the connections that wait do not make the loop spin.
                    let _ = sys::epoll_change(self.epoll.as_fd(), listener.socket.as_fd(), 0, id as u64);
                    return events.push(Event::AcceptFailed { listener: id, error, retry_at_ns });
                }
            }
        }
    }

    /// Listens again where a pause is over, and returns when the next one ends.
    fn resume_listeners(&mut self, now_ns: u64) -> Option<u64> {
        let mut next = None;
        for (id, listener) in self.listeners.iter_mut().enumerate() {
            let Some(listener) = listener else { continue };
            let Some(at) = listener.retry_at_ns else { continue };
            if at > now_ns {
                next = Some(next.map_or(at, |next: u64| next.min(at)));
                continue;
            }
            listener.retry_at_ns = None;
            let _ = sys::epoll_change(self.epoll.as_fd(), listener.socket.as_fd(), libc::EPOLLIN as u32, id as u64);
        }
        next
    }

    /// As many starved receives as there are chunks may try again.
    fn feed_starved(&mut self) {
        let mut free = self.chunks.free();
        while free > 0
            && let Some(key) = self.starved.pop_front()
        {
            // It may have closed meanwhile.
            if let Ok(connection) = self.connection(key) {
                connection.starved = false;
                self.queue(key);
                free -= 1;
            }
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, now_ns: u64, events: &mut Vec<Event>) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        let seen = match sys::epoll_wait(self.epoll.as_fd(), &mut ready, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            other => other,
        };
        for event in ready.iter().take(*seen.as_ref().unwrap_or(&0)) {
            let (flags, data) = (event.events as i32, event.u64);
            if data == WAKE {
                let mut count = [0; 8];
                let _ = io::Read::read(&mut self.waker.file(), &mut count);
                events.push(Event::Woken);
            } else if let Some(key) = Key::from_u64(data) {
                let Ok(connection) = self.connection(key) else { continue };
                let failed = flags & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
                connection.ended |= failed || flags & libc::EPOLLRDHUP != 0;
                connection.readable |= connection.ended || flags & libc::EPOLLIN != 0;
                connection.writable |= failed || flags & libc::EPOLLOUT != 0;
                self.queue(key);
            } else {
                self.accept(data as usize, now_ns, events);
            }
        }
        self.ready = ready;
        seen.map(drop)
    }
}

enum Step {
    Done(Event),
    /// Not readable (any more); the receive stays.
    Waits,
    /// No chunk is free; the receive stays.
    Starved,
}

impl Connection {
    fn run_receive(&mut self, receive: Receive, chunks: &Rc<Chunks>) -> Step {
        let key = self.key;
        // Bytes come with their memory, errors with the receive, which may be tried again.
        let outcome = match receive {
            Receive::Chunk => match chunks.fill(|bytes| receive_some(&self.fd, bytes)) {
                None => {
                    self.receive = Some(Receive::Chunk);
                    return Step::Starved;
                }
                Some(Ok(chunk)) => Ok((chunk.len(), CHUNK_BYTES, Received::Chunk(chunk))),
                Some(Err(error)) => Err((error, Receive::Chunk)),
            },
            Receive::Direct { mut block, at, len } => {
                let window = block.get_mut(at..at.saturating_add(len)).unwrap_or_default();
                match receive_some(&self.fd, window) {
                    Ok(n) => Ok((n, len, Received::Direct { block, at, len: n })),
                    Err(error) => Err((error, Receive::Direct { block, at, len })),
                }
            }
            Receive::Scattered(mut receive) => match receive_parts(&self.fd, &mut receive) {
                Ok(n) => {
                    let capacity = receive.capacity();
                    Ok((n, capacity, Received::Scattered { scatter: receive.into_scatter(), len: n }))
                }
                Err(error) => Err((error, Receive::Scattered(receive))),
            },
        };
        let received = match outcome {
            Ok((0, ..)) => Received::End,
            Ok((n, requested, received)) => {
                // Less than requested: the socket is empty, and an edge will report more (epoll(7)). A peer's end that
                // came with the bytes has had its edge already.
                self.readable = n == requested || self.ended;
                received
            }
            Err((error, receive)) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                self.receive = Some(receive);
                return Step::Waits;
            }
            Err((error, _)) => Received::Failed(error),
        };
        Step::Done(Event::Received { key, received })
    }

    fn run_send(&mut self, mut sending: Sending) -> Option<Event> {
        let mut budget = SEND_PER_TURN;
        while self.writable && budget > 0 && !sending.recalled {
            let sent = {
                let pieces: SmallVec<[libc::iovec; 16]> = sending.io_vectors().collect();
                // SAFETY: the pieces are those of slices that `sending` holds.
                unsafe { sys::send(self.fd.as_fd(), &pieces) }
            };
            match sent {
                Ok(n) => {
                    budget = budget.saturating_sub(n.max(1));
                    if sending.advance(n) {
                        return Some(sending.into_event(self.key, None));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Some(sending.into_event(self.key, Some(error))),
            }
        }
        if sending.recalled {
            return Some(sending.into_event(self.key, None));
        }
        self.send = Some(sending);
        None
    }
}

fn receive_some(fd: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match sys::receive(fd.as_fd(), into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn receive_parts(fd: &OwnedFd, receive: &mut ScatteredReceive) -> io::Result<usize> {
    loop {
        // SAFETY: the header and what it names belong to `receive`, which is borrowed for the call.
        match unsafe { sys::receive_message(fd.as_fd(), receive.message()) } {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl Engine for Epoll {
    fn listen(&mut self, socket: OwnedFd, listener: usize) -> Result<(), Refused> {
        let slot = slot_mut(&mut self.listeners, listener, self.limits.listeners)?;
        if slot.is_some() {
            return Err(Refused::Occupied);
        }
        sys::set_nonblocking(socket.as_fd(), true)?;
        sys::epoll_add(self.epoll.as_fd(), socket.as_fd(), libc::EPOLLIN as u32, listener as u64)?;
        *slot = Some(Listener { socket, retry_at_ns: None });
        Ok(())
    }

    fn stop_listening(&mut self, listener: usize) -> Result<(), Refused> {
        let stopped = self.listeners.get_mut(listener).and_then(Option::take).ok_or(Refused::Unknown)?;
        // Closing is not enough where another process holds the same socket.
        let _ = sys::epoll_remove(self.epoll.as_fd(), stopped.socket.as_fd());
        self.closed.push(Event::ListenerClosed { listener });
        Ok(())
    }

    fn register(&mut self, fd: OwnedFd, key: Key) -> Result<(), Refused> {
        let slot = slot_mut(&mut self.connections, key.index(), self.limits.connections)?;
        if slot.is_some() {
            return Err(Refused::Occupied);
        }
        sys::set_nonblocking(fd.as_fd(), true)?;
        sys::epoll_add(self.epoll.as_fd(), fd.as_fd(), BOTH_EDGES, key.to_u64())?;
        // A fresh socket can usually be written to; the first edge reports whether it can be read.
        *slot = Some(Connection {
            fd,
            key,
            receive: None,
            send: None,
            readable: false,
            writable: true,
            ended: false,
            queued: false,
            starved: false,
        });
        Ok(())
    }

    fn receive(&mut self, key: Key) -> Result<(), Refused> {
        self.start_receive(key, Receive::Chunk)
    }

    fn receive_direct(&mut self, key: Key, block: BlockMut, at: usize, len: usize) -> Result<(), Refused> {
        check_window(&block, at, len)?;
        self.start_receive(key, Receive::Direct { block, at, len })
    }

    fn receive_scattered(&mut self, key: Key, scatter: Box<Scatter>) -> Result<(), Refused> {
        self.start_receive(key, Receive::Scattered(ScatteredReceive::new(scatter).ok_or(Refused::Window)?))
    }

    fn send(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        let connection = self.connection(key)?;
        if connection.send.is_some() {
            return Err(Refused::Busy);
        }
        connection.send = Some(Sending::new(pieces).ok_or(Refused::Window)?);
        self.queue(key);
        Ok(())
    }

    fn recall(&mut self, key: Key) -> Result<(), Refused> {
        let sending = self.connection(key)?.send.as_mut().ok_or(Refused::Unknown)?;
        sending.recalled = true;
        self.queue(key);
        Ok(())
    }

    fn shutdown(&mut self, key: Key) -> Result<(), Refused> {
        Ok(sys::shutdown(self.connection(key)?.fd.as_fd(), false)?)
    }

    fn close(&mut self, key: Key) -> Result<(), Refused> {
        self.connection(key)?;
        if let Some(slot) = self.connections.get_mut(key.index()) {
            *slot = None;
        }
        self.closed.push(Event::Closed { key });
        Ok(())
    }

    fn has_events(&mut self) -> bool {
        !self.runnable.is_empty() || !self.closed.is_empty()
    }

    fn turn(&mut self, park: Park, events: &mut Vec<Event>) -> io::Result<Option<Waited>> {
        let start = events.len();
        events.append(&mut self.closed);
        let now_ns = self.clock.now_ns();
        let resume_ns = self.resume_listeners(now_ns);
        self.feed_starved();
        let idle = self.runnable.is_empty() && events.len() == start;
        let wake_ns = match park {
            _ if !idle => Some(now_ns),
            Park::Never => Some(now_ns),
            Park::Until(at) => Some(resume_ns.map_or(at, |resume| resume.min(at))),
            Park::Forever => resume_ns,
        };
        let timeout = wake_ns.map(|at| Duration::from_nanos(at.saturating_sub(now_ns)));
        // An answer goes out without another poll of the kernel, which is a system call as the send is. No two turns in
        // a row go without a poll: a connection that is always runnable would starve the others.
        let skips = std::mem::take(&mut self.has_polled) && !self.runnable.is_empty();
        let waits = !skips && timeout.is_none_or(|timeout| !timeout.is_zero());
        if !skips {
            self.wait(timeout, now_ns, events)?;
            self.has_polled = true;
        }
        let waited = waits.then(|| Waited::exactly(self.clock.now_ns().saturating_sub(now_ns)));
        // Only those that are runnable now: what they cause runs in the next turn.
        for _ in 0..self.runnable.len() {
            if events.len() - start >= EVENTS_PER_TURN {
                break;
            }
            let Some(key) = self.runnable.pop_front() else { break };
            self.run(key, events);
        }
        Ok(waited)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::clock::Monotonic;

    /// Every edge finds the same starved receive: it must not be queued once more each time.
    #[test]
    fn a_peer_cannot_grow_the_starved_ones() {
        let limits = Limits { chunks: 1, ..Limits::default() };
        let mut engine = Epoll::new(limits, Rc::new(Monotonic), Waker::new().unwrap()).unwrap();
        let mut peers = Vec::new();
        for index in 0..3 {
            let (mine, mut peer) = UnixStream::pair().unwrap();
            let key = Key::from_u64(1 << 32 | index).unwrap();
            engine.register(mine.into(), key).unwrap();
            engine.receive(key).unwrap();
            peer.write_all(b"x").unwrap();
            peers.push(peer);
        }
        let mut events = Vec::new();
        while events.is_empty() {
            engine.turn(Park::Never, &mut events).unwrap();
        }
        for _ in 0..100 {
            peers.iter_mut().for_each(|peer| peer.write_all(b"y").unwrap());
            engine.turn(Park::Never, &mut events).unwrap();
        }
        assert_eq!((events.len(), engine.starved.len()), (1, 2));
    }

    #[test]
    fn a_busy_connection_does_not_starve_others() {
        let mut engine = Epoll::new(Limits::default(), Rc::new(Monotonic), Waker::new().unwrap()).unwrap();
        let [busy, quiet] = [0, 1].map(|index| Key::from_u64(1 << 32 | index).unwrap());
        let mut peers = [busy, quiet].map(|key| {
            let (mine, peer) = UnixStream::pair().unwrap();
            engine.register(mine.into(), key).unwrap();
            engine.receive(key).unwrap();
            peer
        });
        // Enough for the whole test: each turn receives a chunk of it.
        peers[0].set_nonblocking(true).unwrap();
        while peers[0].write(&[1; CHUNK_BYTES]).is_ok() {}
        let (mut turns, mut is_received) = (0, false);
        while !is_received {
            let mut events = Vec::new();
            engine.turn(Park::Never, &mut events).unwrap();
            for event in events {
                let Event::Received { key, received: Received::Chunk(_) } = event else { panic!("{event:?}") };
                is_received |= key == quiet;
                if key == busy {
                    engine.receive(busy).unwrap();
                }
            }
            turns += 1;
            if turns == 2 {
                peers[1].write_all(b"x").unwrap();
            }
            assert!(turns < 5, "two turns after its byte nothing was received");
        }
    }
}
