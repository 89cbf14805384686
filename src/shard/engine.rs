//! The I/O engine of a shard, which moves bytes between sockets and memory: one contract, three engines.
//!
//! [`Uring`] is the usual one, [`Epoll`] serves kernels and containers that refuse io_uring, and [`Fake`] makes either
//! of them late and disorderly for tests. All three pass one suite (`engine/contract.rs`).
//!
//! # The contract
//!
//! An engine belongs to one thread. Operations are requested with the methods of [`Engine`] and take effect in the next
//! [`turn`](Engine::turn), which also brings what has completed since. Memory that is given to an operation belongs to
//! the operation until its completion: `receive_direct` gives its block back with the event, `receive_scattered` its
//! windows, `send` holds its slices.
//!
//! | call | allowed | answered by |
//! |---|---|---|
//! | `listen` | listener id unused | any number of `Accepted` and `AcceptFailed` |
//! | `stop_listening` | listening | the last `Accepted`s, then one `ListenerClosed`; then the id may be reused |
//! | `register` | key unused | nothing; on failure the descriptor is closed |
//! | `receive`, `receive_direct`, `receive_scattered` | no receive in flight | one `Received` |
//! | `send` | no send in flight | one `Sent` for the whole gather |
//! | `send_quietly` | no send in flight | the same; but its success alone need not end a parked turn |
//! | `await_sent` | always | nothing; a quiet send in flight is from then on like one of `send` |
//! | `recall` | send in flight | that send's `Sent` as soon as the engine can |
//! | `shutdown` | registered, not closing | nothing |
//! | `close` | registered, not closing | one `Closed`, at zero operations in flight; then the key may be reused |
//!
//! Any other call is refused with a [`Refused`], and memory that came with the call is dropped. After `close(key)` the
//! engine reports only `Closed` for that key: it drops late completions and returns their memory. After `Received` with
//! `End` or `Failed` the connection may still send; the caller decides when to close.
//!
//! # Bounds
//!
//! [`Limits`] sets how many connections may be registered and how many 16 KiB chunks exist for [`Engine::receive`].
//! When all chunks are out, receives wait their turn and start as chunks come back (a dropped [`Chunk`] is back): no
//! receive fails, and only the slowest holders of chunks delay others. An acceptor that is out of descriptors or memory
//! reports it and tries again after [`ACCEPT_RETRY_NS`], without spinning. A turn delivers a bounded number of events;
//! the rest waits for the next turn. Ends of sends and connections may come on top: at most one each for a connection.

#![allow(unsafe_code)]

mod chunk;
mod epoll;
mod fake;
pub(super) mod host;
mod scattered;
mod sending;
pub(super) mod sys;
mod uring;

#[cfg(test)]
mod contract;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nereid_memory::Key;
use nereid_memory::{BlockMut, Scatter, Slice};
use nereid_queue::Wake;

#[cfg(any(test, feature = "testing"))]
pub use chunk::ReceiveChunks;
pub use chunk::{CHUNK_BYTES, Chunk};
pub use epoll::Epoll;
pub use fake::{Fake, Fault};
pub use uring::{Unavailable, Uring};

use scattered::ScatteredReceive;

/// Nanoseconds after which an acceptor that ran out of descriptors or memory tries again.
pub const ACCEPT_RETRY_NS: u64 = 50_000_000;
/// Events that one turn delivers at most, plus at most one for each connection that closes or whose send ends.
#[cfg(not(test))]
pub const EVENTS_PER_TURN: usize = 512;
/// The same, of which tests have more at nearly all times.
#[cfg(test)]
pub const EVENTS_PER_TURN: usize = 4;

/// Moves bytes. The [module](self) states which call is allowed when.
pub trait Engine {
    /// Accepts connections on `socket` and reports them under the id `listener`.
    fn listen(&mut self, socket: OwnedFd, listener: usize) -> Result<(), Refused>;

    fn stop_listening(&mut self, listener: usize) -> Result<(), Refused>;

    /// Takes over a connected stream socket under a key that the caller chose.
    fn register(&mut self, fd: OwnedFd, key: Key) -> Result<(), Refused>;

    /// Receives some bytes, at least one, into memory of the engine.
    fn receive(&mut self, key: Key) -> Result<(), Refused>;

    /// Receives some bytes, at least one and at most `len`, into `block[at..at + len]`.
    fn receive_direct(&mut self, key: Key, block: BlockMut, at: usize, len: usize) -> Result<(), Refused>;

    /// Receives some bytes, at least one, into the parts of `scatter`, in their order.
    fn receive_scattered(&mut self, key: Key, scatter: Box<Scatter>) -> Result<(), Refused>;

    /// Sends all bytes of `pieces`, in order. The engine continues partial sends by itself.
    fn send(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused>;

    /// The same for a send whose success nothing waits for: a turn that parks may report it when another event has
    /// ended the park. A failure, and what the peer does not take, are dealt with as those of `send`.
    fn send_quietly(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.send(key, pieces)
    }

    /// Something waits for the end of a quiet send after all: it is reported as soon as that of `send` would be.
    /// Without effect where none is in flight.
    fn await_sent(&mut self, _key: Key) {}

    /// Ends a send that the peer does not take: `Sent` brings back what is left, so that its memory can be dropped.
    fn recall(&mut self, key: Key) -> Result<(), Refused>;

    /// Ends sending, which the peer sees as the end of the stream. Receiving goes on.
    fn shutdown(&mut self, key: Key) -> Result<(), Refused>;

    /// Cancels what is in flight and closes the socket.
    fn close(&mut self, key: Key) -> Result<(), Refused>;

    /// True if the next turn will not wait, because it has something to read already. False may mean that only a system
    /// call can say.
    fn has_events(&mut self) -> bool {
        false
    }

    /// Starts the requested operations, waits as long as `park` allows if there is no event to report, and appends the
    /// events. `None` if it was not ready to wait. An error is the engine's own and final.
    fn turn(&mut self, park: Park, events: &mut Vec<Event>) -> io::Result<Option<Waited>>;

    /// Ends a parked turn from any thread; reported as `Woken`.
    fn waker(&self) -> Waker;
}

/// How long a turn may wait for something to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Park {
    Never,
    /// Until this time of the engine's clock.
    Until(u64),
    Forever,
}

/// How long a turn was ready to wait, in nanoseconds; it may have taken no time. The call that waits may also move
/// bytes, and the kernel does not say how much of its time that took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waited {
    /// Without the time that moving the bytes may have taken.
    pub least_ns: u64,
    /// With it.
    pub most_ns: u64,
}

impl Waited {
    /// In a call that has only waited.
    pub fn exactly(ns: u64) -> Waited {
        Waited { least_ns: ns, most_ns: ns }
    }
}

/// What a turn brings.
#[derive(Debug)]
pub enum Event {
    Accepted {
        listener: usize,
        fd: OwnedFd,
    },
    /// No connection could be accepted; the engine tries again by itself at `retry_at_ns`.
    AcceptFailed {
        listener: usize,
        error: io::Error,
        retry_at_ns: u64,
    },
    ListenerClosed {
        listener: usize,
    },
    Received {
        key: Key,
        received: Received,
    },
    /// `result` counts the bytes that the kernel took. `pieces` is empty, for reuse, unless the send was recalled: then
    /// it is what was not taken.
    Sent {
        key: Key,
        result: io::Result<usize>,
        pieces: Vec<Slice>,
    },
    Closed {
        key: Key,
    },
    /// A thread used the [`Waker`]. Several wake-ups may come as one.
    Woken,
}

/// The outcome of one receive.
#[derive(Debug)]
pub enum Received {
    /// Bytes in the engine's memory, which takes it back when the chunk is dropped.
    Chunk(Chunk),
    /// Bytes in the caller's block, at `at..at + len`.
    Direct { block: BlockMut, at: usize, len: usize },
    /// The first `len` bytes of the caller's parts.
    Scattered { scatter: Box<Scatter>, len: usize },
    /// The peer sends no more. The memory of a direct or scattered receive is gone.
    End,
    /// For example `ConnectionReset`. The memory of a direct or scattered receive is gone.
    Failed(io::Error),
}

/// A call that the contract does not allow in this state, or that the system refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the key or listener is not registered, or is closing")]
    Unknown,
    #[error("the key or listener is already registered")]
    Occupied,
    #[error("such an operation is in flight already")]
    Busy,
    #[error("there is nothing to transfer, or the window does not lie in the block")]
    Window,
    #[error("at most {limit} connections can be registered")]
    Full { limit: usize },
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Sizes of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections that may be registered; keys must have smaller indices.
    pub connections: usize,
    /// Chunks of [`CHUNK_BYTES`] for ordinary receives. Rounded up to a power of two, at most 32768.
    pub chunks: usize,
    /// Listeners that may be registered; ids must be smaller.
    pub listeners: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 65_536, chunks: 256, listeners: 64 }
    }
}

/// Ends the parked turn of one engine: an eventfd. Clones wake the same engine.
#[derive(Debug, Clone)]
pub struct Waker(Arc<std::fs::File>);

impl Waker {
    pub fn new() -> io::Result<Waker> {
        Ok(Waker(Arc::new(sys::eventfd()?.into())))
    }

    fn file(&self) -> &std::fs::File {
        &self.0
    }

    /// The number of wake-ups since the last call.
    #[cfg(test)]
    pub fn count(&self) -> u64 {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut count = [0; 8];
        match poll(&mut [PollFd::new(self.file(), PollFlags::IN)], Some(&at_once)) {
            Ok(1) => io::Read::read(&mut self.file(), &mut count).map_or(0, |_| u64::from_ne_bytes(count)),
            _ => 0,
        }
    }
}

impl Wake for Waker {
    fn wake(&self) {
        // Fails or waits only with a full counter, after 2⁶⁴ − 2 wake-ups that were not read.
        let _ = io::Write::write(&mut self.file(), &1u64.to_ne_bytes());
    }
}

/// A receive in flight, and the memory that belongs to it.
enum Receive {
    Chunk,
    Direct { block: BlockMut, at: usize, len: usize },
    Scattered(Box<ScatteredReceive>),
}

/// Errors of accept that concern one connection, or none: the next accept may succeed (accept(2)).
fn is_transient_accept_error(error: &io::Error) -> bool {
    !matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EBADF | libc::EINVAL | libc::ENOTSOCK)
    )
}

/// A window that holds at least one byte of the block.
fn check_window(block: &BlockMut, at: usize, len: usize) -> Result<(), Refused> {
    let fits = len > 0 && at.checked_add(len).is_some_and(|end| end <= block.len());
    fits.then_some(()).ok_or(Refused::Window)
}

/// `table[index]` for growing tables whose indices are bounded by `limit`.
fn slot_mut<T>(table: &mut Vec<Option<T>>, index: usize, limit: usize) -> Result<&mut Option<T>, Refused> {
    if index >= limit {
        return Err(Refused::Full { limit });
    }
    if index >= table.len() {
        table.resize_with(index + 1, || None);
    }
    Ok(&mut table[index])
}
