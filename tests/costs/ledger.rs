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
    /// Bytes given to memcpy and memmove; like the next, counted on x86-64 only (copying.rs).
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    CopiedBytes,
    /// Calls of these for [`MIDDLING`] many bytes.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    MiddlingCopy,
}

pub const EVENTS: usize = 5;

/// A tensor that is copied rather than carried is told from the structures that are moved about by its size.
pub const MIDDLING: std::ops::RangeInclusive<usize> = 900..=4096;

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
    LEDGER[at].thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
    &LEDGER[at]
}

/// Every row that is in use: the thread's number and its counts.
pub fn rows() -> impl Iterator<Item = (i32, [u64; EVENTS])> {
    LEDGER.iter().take(TAKEN.load(Ordering::Acquire)).map(|row| {
        let counts = std::array::from_fn(|at| row.counts[at].load(Ordering::Acquire));
        (row.thread.load(Ordering::Acquire), counts)
    })
}
