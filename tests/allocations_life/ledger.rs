//! The counts: a row for each thread, written by that thread, readable by any other without its help.
//!
//! Nothing here allocates, because the allocator itself calls it.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Threads beyond these share the last row.
pub const ROWS: usize = 256;

/// What is counted, in the order of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Allocation,
    Reallocation,
    Free,
    /// Bytes given to memcpy and memmove.
    CopiedBytes,
}

pub const EVENTS: usize = 4;

struct Row {
    thread: AtomicI32,
    counts: [AtomicU64; EVENTS],
}

static LEDGER: [Row; ROWS] =
    [const { Row { thread: AtomicI32::new(0), counts: [const { AtomicU64::new(0) }; EVENTS] } }; ROWS];
static TAKEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The row of this thread; none yet.
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

pub fn note(event: Event, amount: u64) {
    if let Some(count) = mine().counts.get(event as usize) {
        count.fetch_add(amount, Ordering::Relaxed);
    }
}

fn mine() -> &'static Row {
    let at = MINE.get();
    if at < ROWS {
        return &LEDGER[at];
    }
    let at = TAKEN.fetch_add(1, Ordering::Relaxed).min(ROWS - 1);
    MINE.set(at);
    // SAFETY: asks for a number and touches no memory.
    LEDGER[at].thread.store(unsafe { libc::gettid() }, Ordering::Release);
    &LEDGER[at]
}

/// Every row that is in use: the thread's number and its counts.
pub fn rows() -> impl Iterator<Item = (i32, [u64; EVENTS])> {
    LEDGER.iter().take(TAKEN.load(Ordering::Acquire)).map(|row| {
        let counts = std::array::from_fn(|at| row.counts[at].load(Ordering::Acquire));
        (row.thread.load(Ordering::Acquire), counts)
    })
}
