//! The engine on io_uring: one system call a turn for everything that starts and everything that has completed.
//!
//! Per connection there is at most one receive and one send in the ring. An ordinary receive names no memory: the
//! kernel takes a chunk when bytes are there. A direct or scattered receive and a send own their memory until their
//! completion, so a connection that closes stays in its place, without events, until its last operation has come back.
//! `user_data` is the connection's key and the kind of operation, never a descriptor.
//!
//! A [quiet send](Engine::send_quietly) goes in with the call that waits, and has a completion only if it fails: so a
//! shard with one client makes one system call for each of its requests. While one whose end is
//! [awaited](Engine::await_sent) is open, no call waits. That a quiet send is over shows in that all completions are
//! out of the ring and none is its own; so each turn takes all of them out, and keeps those that it has no time for.

mod accept;
mod ring;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd};
use io_uring::{cqueue, opcode, squeue};

use super::sending::Sending;
use super::{
    EVENTS_PER_TURN, Engine, Event, Limits, Park, Receive, Received, Refused, ScatteredReceive, Waited, Waker,
    check_window, slot_mut, sys,
};
use crate::clock::Clock;
use accept::Listener;
use nereid_memory::Key;
use nereid_memory::{BlockMut, Scatter, Slice};
use ring::{CHUNK_GROUP, Completion, Ring, Wait};

pub use ring::Unavailable;
#[cfg(test)]
pub use ring::refusals::Refusals;

/// Poll the socket before trying to receive: cheaper where the last receive emptied it (`IORING_RECVSEND_POLL_FIRST`).
const POLL_FIRST: u16 = 1;
/// Most bytes of one receive or single-piece send; a completion counts them in 31 bits.
const TRANSFER_MAX: usize = 1 << 30;
/// Pieces of a send that goes without the completion of its success, its bytes, and those of the blocks that each piece
/// keeps: what a parked turn may keep of each connection.
const QUIET_PIECES_MAX: usize = 4;
const QUIET_BYTES_MAX: usize = 16 * 1024;
/// Nanoseconds that the kernel takes for a send, without its bytes: about twice what one over loopback takes.
const SEND_NS: u64 = 10_000;
/// Bytes that the kernel moves in a nanosecond, at least as a rule.
const BYTES_PER_NS: u64 = 2;
/// Milliseconds that a dropped engine gives the kernel to hand back its operations.
const DRAIN_MS: u64 = 1000;

/// See the [module](self).
pub struct Uring {
    ring: Ring,
    waker: Waker,
    clock: Rc<dyn Clock>,
    limits: Limits,
    /// Boxed: the ring has pointers into them.
    connections: Vec<Option<Box<Connection>>>,
    listeners: Vec<Option<Listener>>,
    /// Receives that found no free chunk.
    starved: VecDeque<Key>,
    /// Quiet sends, in the order in which they were pushed: their connections, and their numbers in the ring.
    quiet: VecDeque<(Key, u64)>,
    /// Of those, the ones whose end is awaited.
    awaited: usize,
    closed: Vec<Event>,
    batch: Vec<Completion>,
    /// Completions that are out of the ring and wait for a turn. There are no more than operations in flight and
    /// connections that the kernel has accepted.
    completed: VecDeque<Completion>,
    /// What the next call moves.
    transfers: Transfers,
    /// The ring reads the wake-up's counter into this.
    wake_count: Box<u64>,
    wake_armed: bool,
    /// Operations that the kernel has, of all kinds.
    in_flight: usize,
    generation: u32,
    stopping: bool,
}

struct Connection {
    fd: OwnedFd,
    key: Key,
    receive: Option<Receive>,
    /// The receive waits for a chunk and is not in the ring.
    starved: bool,
    /// The last receive left bytes in the socket.
    has_more: bool,
    send: Option<Sending>,
    /// The send in the ring if it is a quiet one.
    quiet: Option<QuietSend>,
    message: libc::msghdr,
    pieces: Vec<libc::iovec>,
    cancels: u32,
    closing: bool,
}

/// What one call of the kernel moves, beside waiting.
#[derive(Debug, Clone, Copy, Default)]
struct Transfers {
    sends: u64,
    bytes: u64,
}

impl Transfers {
    /// How long that takes at most, as a rule.
    fn most_ns(self) -> u64 {
        self.sends.saturating_mul(SEND_NS).saturating_add(self.bytes / BYTES_PER_NS)
    }
}

#[derive(Debug, Clone, Copy)]
struct QuietSend {
    /// Its number in the ring.
    number: u64,
    /// Something waits for its end.
    is_awaited: bool,
}

/// What an operation was, in the top four bits of its `user_data`; below are 28 bits of generation and the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationKind {
    Receive = 1,
    Send = 2,
    Cancel = 3,
    Accept = 4,
    CancelAccept = 5,
    Wake = 6,
    CancelWake = 7,
}

const GENERATION_MASK: u32 = 0x0fff_ffff;

fn user_data(kind: OperationKind, generation: u32, index: usize) -> u64 {
    (kind as u64) << 60 | u64::from(generation & GENERATION_MASK) << 32 | (index as u64 & u64::from(u32::MAX))
}

fn kind_of(user_data: u64) -> Option<OperationKind> {
    use OperationKind::*;
    [Receive, Send, Cancel, Accept, CancelAccept, Wake, CancelWake].into_iter().find(|k| *k as u64 == user_data >> 60)
}

impl Uring {
    /// The ring belongs to the calling thread, which must be the one that uses it.
    pub fn new(limits: Limits, clock: Rc<dyn Clock>, waker: Waker) -> Result<Uring, Unavailable> {
        // Older kernels do not wait for a non-blocking descriptor.
        sys::set_nonblocking(waker.file().as_fd(), false)?;
        let mut uring = Uring {
            ring: Ring::new(limits.chunks)?,
            waker,
            clock,
            limits,
            connections: Vec::new(),
            listeners: Vec::new(),
            starved: VecDeque::new(),
            quiet: VecDeque::new(),
            awaited: 0,
            closed: Vec::new(),
            batch: Vec::new(),
            completed: VecDeque::new(),
            transfers: Transfers::default(),
            wake_count: Box::new(0),
            wake_armed: false,
            in_flight: 0,
            generation: 0,
            stopping: false,
        };
        uring.arm_wake();
        Ok(uring)
    }

    /// An open connection.
    fn connection(&mut self, key: Key) -> Result<&mut Connection, Refused> {
        let slot = self.connections.get_mut(key.index()).and_then(Option::as_mut);
        slot.map(|slot| &mut **slot).filter(|it| it.key == key && !it.closing).ok_or(Refused::Unknown)
    }

    /// # Safety
    /// What the entry points to stays valid, and is used by no other code, until the completion was taken.
    unsafe fn push(&mut self, entry: squeue::Entry) {
        self.in_flight += 1;
        // SAFETY: what the entry names stays valid until its completion: this function requires it of its caller.
        unsafe { self.ring.push(entry) }
    }

    fn arm_wake(&mut self) {
        let at = (&raw mut *self.wake_count).cast::<u8>();
        let entry = opcode::Read::new(Fd(self.waker.file().as_raw_fd()), at, 8).build();
        self.wake_armed = true;
        // SAFETY: the counter is boxed and outlives the ring's operations (see `Drop`).
        unsafe { self.push(entry.user_data(user_data(OperationKind::Wake, 0, 0))) }
    }

    fn arm_receive(&mut self, key: Key) {
        let Ok(connection) = self.connection(key) else { return };
        let fd = Fd(connection.fd.as_raw_fd());
        let entry = match &mut connection.receive {
            None => return,
            Some(Receive::Chunk) => {
                let ioprio = if connection.has_more { 0 } else { POLL_FIRST };
                let receive = opcode::Recv::new(fd, std::ptr::null_mut(), 0).ioprio(ioprio).buf_group(CHUNK_GROUP);
                receive.build().flags(squeue::Flags::BUFFER_SELECT)
            }
            Some(Receive::Direct { block, at, len }) => {
                let window = block.get_mut(*at..at.saturating_add(*len)).unwrap_or_default();
                opcode::Recv::new(fd, window.as_mut_ptr(), window.len().min(TRANSFER_MAX) as u32).build()
            }
            Some(Receive::Scattered(receive)) => opcode::RecvMsg::new(fd, receive.message()).build(),
        };
        connection.starved = false;
        // SAFETY: a chunk is chosen by the kernel; a block, and the box with a header and its pieces, stay in
        // `connection.receive` until the completion.
        unsafe { self.push(entry.user_data(user_data(OperationKind::Receive, key.generation(), key.index()))) }
    }

    /// A quiet send is tried once, when it is submitted, and has no completion if all bytes went. If it fails or comes
    /// short it has one, and the rest goes as a send that is not quiet.
    fn arm_send(&mut self, key: Key, is_quiet: bool) {
        let number = self.ring.pushed() + 1;
        let Ok(connection) = self.connection(key) else { return };
        let Some(sending) = &connection.send else { return };
        let fd = Fd(connection.fd.as_raw_fd());
        // MSG_WAITALL: the kernel goes on with a partial send by itself, or counts it as failed if it may not wait.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | if is_quiet { libc::MSG_DONTWAIT } else { 0 };
        let entry = match sending.single() {
            Some((at, len)) => opcode::Send::new(fd, at, len as u32).flags(flags).build(),
            None => {
                connection.pieces.clear();
                connection.pieces.extend(sending.io_vectors());
                connection.message.msg_iov = connection.pieces.as_mut_ptr();
                connection.message.msg_iovlen = connection.pieces.len() as _;
                opcode::SendMsg::new(fd, &raw const connection.message).flags(flags as u32).build()
            }
        };
        connection.quiet = is_quiet.then_some(QuietSend { number, is_awaited: false });
        let entry = if is_quiet { entry.flags(squeue::Flags::SKIP_SUCCESS) } else { entry };
        let bytes = sending.bytes_of_call() as u64;
        self.transfers.sends += 1;
        self.transfers.bytes = self.transfers.bytes.saturating_add(bytes);
        if is_quiet {
            self.quiet.push_back((key, number));
        }
        // SAFETY: the connection is boxed, and its header, pieces and slices are not touched until the completion, or
        // until `end_quiet_sends` finds that the kernel is done with them.
        unsafe { self.push(entry.user_data(user_data(OperationKind::Send, key.generation(), key.index()))) }
    }

    /// Cancels one operation by its name, under a name of its own.
    fn cancel(&mut self, target: u64, name: u64) {
        // SAFETY: no memory is involved.
        unsafe { self.push(opcode::AsyncCancel::new(target).build().user_data(name)) }
    }

    fn start_receive(&mut self, key: Key, receive: Receive) -> Result<(), Refused> {
        let connection = self.connection(key)?;
        if connection.receive.is_some() {
            return Err(Refused::Busy);
        }
        connection.receive = Some(receive);
        self.arm_receive(key);
        Ok(())
    }

    /// As many starved receives as there are chunks may try again.
    fn feed_starved(&mut self) {
        let mut free = self.ring.chunks().free();
        while free > 0
            && let Some(key) = self.starved.pop_front()
        {
            // It may have closed meanwhile.
            if self.connection(key).is_ok() {
                self.arm_receive(key);
                free -= 1;
            }
        }
    }

    /// Takes all completions out of the ring. Those of sends take effect now, because quiet sends that have none are
    /// over then; the others are kept. Returns how many bytes were received.
    fn read_completions(&mut self, now_ns: u64, events: &mut Vec<Event>) -> u64 {
        let mut batch = std::mem::take(&mut self.batch);
        self.ring.take(&mut batch);
        let mut received = 0_u64;
        for completion in batch.drain(..) {
            match kind_of(completion.user_data) {
                Some(OperationKind::Send) => self.complete(completion, now_ns, events),
                kind => {
                    let is_receive = kind == Some(OperationKind::Receive);
                    received += if is_receive { u64::try_from(completion.result).unwrap_or(0) } else { 0 };
                    self.completed.push_back(completion);
                }
            }
        }
        self.batch = batch;
        received
    }

    fn complete(&mut self, completion: Completion, now_ns: u64, events: &mut Vec<Event>) {
        let Completion { user_data, result, flags } = completion;
        let index = (user_data & u64::from(u32::MAX)) as usize;
        let generation = (user_data >> 32) as u32 & GENERATION_MASK;
        if !cqueue::more(flags) {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        let outcome = match u32::try_from(result) {
            Ok(n) => Ok(n as usize),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        match kind_of(user_data) {
            Some(OperationKind::Receive) => self.received(index, generation, outcome, flags, events),
            Some(OperationKind::Send) => self.sent(index, generation, outcome, events),
            Some(OperationKind::Cancel) => {
                if let Some(connection) = self.of(index, generation) {
                    connection.cancels = connection.cancels.saturating_sub(1);
                    self.finish(index);
                }
            }
            Some(OperationKind::Accept) => self.accepted(index, generation, outcome, flags, now_ns, events),
            Some(OperationKind::CancelAccept) => self.cancelled_accept(index, generation),
            Some(OperationKind::Wake) => {
                self.wake_armed = false;
                if !self.stopping {
                    events.push(Event::Woken);
                    self.arm_wake();
                }
            }
            Some(OperationKind::CancelWake) | None => {}
        }
    }

    /// The connection that an operation was started for, even if it is closing.
    fn of(&mut self, index: usize, generation: u32) -> Option<&mut Connection> {
        let slot = self.connections.get_mut(index)?.as_deref_mut();
        slot.filter(|connection| connection.key.generation() & GENERATION_MASK == generation)
    }

    fn received(
        &mut self,
        index: usize,
        generation: u32,
        outcome: io::Result<usize>,
        flags: u32,
        events: &mut Vec<Event>,
    ) {
        // First of all, because a chunk that the kernel took has to come back in every case.
        let chunk = cqueue::buffer_select(flags).map(|chunk| {
            // SAFETY: this completion reports that the kernel took the chunk, and is used once.
            unsafe { self.ring.chunks().taken(chunk, *outcome.as_ref().unwrap_or(&0)) }
        });
        let Some(connection) = self.of(index, generation) else { return };
        let Some(receive) = connection.receive.take() else { return };
        if connection.closing {
            return self.finish(index);
        }
        let key = connection.key;
        connection.has_more = cqueue::sock_nonempty(flags);
        let received = match (outcome, receive, chunk) {
            (Ok(0), ..) => Received::End,
            (Ok(_), Receive::Chunk, Some(chunk)) => Received::Chunk(chunk),
            (Ok(len), Receive::Direct { block, at, .. }, _) => Received::Direct { block, at, len },
            (Ok(len), Receive::Scattered(receive), _) => Received::Scattered { scatter: receive.into_scatter(), len },
            (Ok(_), Receive::Chunk, None) => Received::Failed(io::ErrorKind::InvalidData.into()),
            (Err(error), receive, _) => match error.raw_os_error() {
                Some(libc::ENOBUFS) if matches!(receive, Receive::Chunk) => {
                    connection.receive = Some(receive);
                    (connection.starved, connection.has_more) = (true, true);
                    return self.starved.push_back(key);
                }
                Some(libc::EAGAIN | libc::EINTR) => {
                    connection.receive = Some(receive);
                    return self.arm_receive(key);
                }
                _ => Received::Failed(error),
            },
        };
        events.push(Event::Received { key, received });
    }

    fn sent(&mut self, index: usize, generation: u32, outcome: io::Result<usize>, events: &mut Vec<Event>) {
        self.end_quiet(index, generation);
        let Some(connection) = self.of(index, generation) else { return };
        let Some(mut sending) = connection.send.take() else { return };
        if connection.closing {
            drop(sending);
            return self.finish(index);
        }
        let key = connection.key;
        let event = match outcome {
            Ok(0) => sending.into_event(key, Some(io::ErrorKind::WriteZero.into())),
            Ok(n) if sending.advance(n) || sending.recalled => sending.into_event(key, None),
            Err(error) if sending.recalled || !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
                sending.into_event(key, Some(error))
            }
            _ => {
                connection.send = Some(sending);
                return self.arm_send(key, false);
            }
        };
        events.push(event);
    }

    fn start_send(&mut self, key: Key, pieces: Vec<Slice>, may_be_quiet: bool) -> Result<(), Refused> {
        let skips_successes = self.ring.skips_successes();
        let connection = self.connection(key)?;
        if connection.send.is_some() {
            return Err(Refused::Busy);
        }
        let sending = Sending::new(pieces).ok_or(Refused::Window)?;
        let is_quiet = may_be_quiet && skips_successes && sending.is_small(QUIET_PIECES_MAX, QUIET_BYTES_MAX);
        connection.send = Some(sending);
        self.arm_send(key, is_quiet);
        Ok(())
    }

    /// The send of a connection is no quiet one any more.
    fn end_quiet(&mut self, index: usize, generation: u32) {
        let quiet = self.of(index, generation).and_then(|connection| connection.quiet.take());
        self.awaited -= usize::from(quiet.is_some_and(|quiet| quiet.is_awaited));
    }

    /// Ends the quiet sends that have sent everything. The kernel tries them when it takes them, and posts the
    /// completion of one that failed before the call returns that it took it in; so when all completions are out of the
    /// ring, and those of sends have taken effect, those that it has taken and that have none are over.
    fn end_quiet_sends(&mut self, events: &mut Vec<Event>) {
        if self.quiet.is_empty() || self.ring.has_unread_completions() {
            return;
        }
        let taken = self.ring.taken();
        while let Some((key, number)) = self.quiet.pop_front_if(|(_, number)| *number <= taken) {
            let (index, generation) = (key.index(), key.generation() & GENERATION_MASK);
            let is_it = |connection: &&mut Connection| connection.quiet.is_some_and(|quiet| quiet.number == number);
            if self.of(index, generation).filter(is_it).is_none() {
                continue;
            }
            self.end_quiet(index, generation);
            let Some(connection) = self.of(index, generation) else { continue };
            let (sending, is_closing) = (connection.send.take(), connection.closing);
            self.in_flight = self.in_flight.saturating_sub(1);
            match sending {
                Some(mut sending) if !is_closing => {
                    sending.complete();
                    events.push(sending.into_event(key, None));
                }
                _ => self.finish(index),
            }
        }
    }

    /// Lets go of a closing connection once the ring has none of its operations.
    fn finish(&mut self, index: usize) {
        let Some(slot) = self.connections.get_mut(index) else { return };
        if let Some(connection) = slot
            && connection.closing
            && !connection.is_in_flight()
        {
            let key = connection.key;
            *slot = None;
            self.closed.push(Event::Closed { key });
        }
    }
}

impl Connection {
    fn is_in_flight(&self) -> bool {
        self.receive.is_some() || self.send.is_some() || self.cancels > 0
    }
}

impl Engine for Uring {
    fn listen(&mut self, socket: OwnedFd, listener: usize) -> Result<(), Refused> {
        self.start_listening(socket, listener)
    }

    fn stop_listening(&mut self, listener: usize) -> Result<(), Refused> {
        self.end_listening(listener)
    }

    fn register(&mut self, fd: OwnedFd, key: Key) -> Result<(), Refused> {
        let slot = slot_mut(&mut self.connections, key.index(), self.limits.connections)?;
        if slot.is_some() {
            return Err(Refused::Occupied);
        }
        // A non-blocking socket would make the ring answer EAGAIN instead of waiting.
        sys::set_nonblocking(fd.as_fd(), false)?;
        *slot = Some(Box::new(Connection {
            fd,
            key,
            receive: None,
            starved: false,
            has_more: true,
            send: None,
            quiet: None,
            // SAFETY: all-zero is a valid message header.
            message: unsafe { std::mem::zeroed() },
            pieces: Vec::new(),
            cancels: 0,
            closing: false,
        }));
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
        self.start_send(key, pieces, false)
    }

    fn send_quietly(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.start_send(key, pieces, true)
    }

    fn await_sent(&mut self, key: Key) {
        if let Ok(Connection { quiet: Some(quiet), .. }) = self.connection(key)
            && !std::mem::replace(&mut quiet.is_awaited, true)
        {
            self.awaited += 1;
        }
    }

    fn recall(&mut self, key: Key) -> Result<(), Refused> {
        let connection = self.connection(key)?;
        let sending = connection.send.as_mut().ok_or(Refused::Unknown)?;
        if !sending.recalled {
            sending.recalled = true;
            connection.cancels += 1;
            let name = |kind| user_data(kind, key.generation(), key.index());
            self.cancel(name(OperationKind::Send), name(OperationKind::Cancel));
        }
        Ok(())
    }

    fn shutdown(&mut self, key: Key) -> Result<(), Refused> {
        Ok(sys::shutdown(self.connection(key)?.fd.as_fd(), false)?)
    }

    fn close(&mut self, key: Key) -> Result<(), Refused> {
        let connection = self.connection(key)?;
        connection.closing = true;
        if connection.starved {
            connection.receive = None;
        }
        if connection.is_in_flight() {
            // Both, because an operation that is just being tried again may escape a cancellation.
            let _ = sys::shutdown(connection.fd.as_fd(), true);
            connection.cancels += 1;
            let all = CancelBuilder::fd(Fd(connection.fd.as_raw_fd())).all();
            let name = user_data(OperationKind::Cancel, key.generation(), key.index());
            // SAFETY: no memory is involved; the descriptor stays open until the completion.
            unsafe { self.push(opcode::AsyncCancel2::new(all).build().user_data(name)) }
        }
        self.finish(key.index());
        Ok(())
    }

    fn has_events(&mut self) -> bool {
        !self.closed.is_empty() || !self.completed.is_empty() || self.ring.has_news()
    }

    fn turn(&mut self, park: Park, events: &mut Vec<Event>) -> io::Result<Option<Waited>> {
        let now_ns = self.clock.now_ns();
        let resume_ns = self.resume_listeners(now_ns);
        self.feed_starved();
        let wake_ns = match park {
            _ if self.has_events() => Some(now_ns),
            Park::Never => Some(now_ns),
            Park::Until(at) => Some(resume_ns.map_or(at, |resume| resume.min(at))),
            Park::Forever => resume_ns,
        };
        let wait = match wake_ns {
            None => Wait::Forever,
            Some(at) if at <= now_ns => Wait::No,
            Some(at) => Wait::AtMost(Duration::from_nanos(at - now_ns)),
        };
        // A quiet send has no completion that would end a wait. It is over when the call that took it returns.
        let has_waited = match self.awaited {
            0 => self.ring.enter(wait)?,
            _ => self.ring.submit(wait)?,
        };
        let most_ns = has_waited.then(|| self.clock.now_ns().saturating_sub(now_ns));
        let mut transfers = std::mem::take(&mut self.transfers);
        transfers.bytes = transfers.bytes.saturating_add(self.read_completions(now_ns, events));
        // Sends end first, so that their memory and their connections are free for what the other events lead to.
        self.end_quiet_sends(events);
        for _ in 0..EVENTS_PER_TURN {
            let Some(completion) = self.completed.pop_front() else { break };
            self.complete(completion, now_ns, events);
        }
        events.append(&mut self.closed);
        Ok(most_ns.map(|most_ns| Waited { least_ns: most_ns.saturating_sub(transfers.most_ns()), most_ns }))
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// The kernel may still write to memory that it was given. So everything is called back first, and what does not come
/// back in time is left to it for ever.
impl Drop for Uring {
    fn drop(&mut self) {
        self.stopping = true;
        let keys: Vec<Key> = self.connections.iter().flatten().map(|connection| connection.key).collect();
        for key in keys {
            let _ = self.close(key);
        }
        for id in 0..self.listeners.len() {
            let _ = self.stop_listening(id);
        }
        if self.wake_armed {
            self.cancel(user_data(OperationKind::Wake, 0, 0), user_data(OperationKind::CancelWake, 0, 0));
        }
        let mut events = Vec::new();
        for _ in 0..DRAIN_MS {
            if self.in_flight == 0 {
                return;
            }
            if self.ring.enter(Wait::AtMost(Duration::from_millis(1))).is_err() {
                break;
            }
            self.read_completions(0, &mut events);
            self.end_quiet_sends(&mut events);
            while let Some(completion) = self.completed.pop_front() {
                self.complete(completion, 0, &mut events);
            }
            events.clear();
        }
        if self.in_flight > 0 {
            self.ring.leak_memory();
            std::mem::forget(std::mem::take(&mut self.connections));
            std::mem::forget(std::mem::take(&mut self.wake_count));
        }
    }
}
