//! The [`WriterSlot`] in which the calling thread counts.
//!
//! A thread that has a slot alone adds with a plain load and store; a locked instruction for each of a dozen counters
//! would cost more than the rest of the bookkeeping. Slots are handed on when their thread ends, so a server that
//! reloads models (and their workers) for weeks does not run out of them. Threads beyond these share the last slot and
//! add atomically.

use std::sync::atomic::{AtomicU64, Ordering};

/// Slots of one block of statistics; the last one is the shared one.
pub const SLOTS: usize = 64;
const SHARED: usize = SLOTS - 1;

/// Bit n: slot n has a living owner.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The index of a slot, valid on the thread that called [`WriterSlot::current`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterSlot(usize);

impl WriterSlot {
    /// The calling thread's slot. Taken at the first call, given back when the thread ends; a destructor that counts
    /// after that gets the shared one.
    pub fn current() -> WriterSlot {
        OWNED.try_with(|owned| owned.0).unwrap_or(WriterSlot(SHARED))
    }

    pub fn index(self) -> usize {
        self.0
    }

    /// True if no other thread writes to this slot while the thread lives.
    pub fn is_exclusive(self) -> bool {
        self.0 != SHARED
    }
}

thread_local! {
    static OWNED: Owned = Owned::claim(&TAKEN);
}

struct Owned(WriterSlot);

impl Owned {
    fn claim(taken: &AtomicU64) -> Owned {
        let mut seen = taken.load(Ordering::Relaxed);
        loop {
            let free = seen.trailing_ones() as usize;
            if free >= SHARED {
                return Owned(WriterSlot(SHARED));
            }
            // Acquire: the counts of the slot's former owner come before what this thread adds.
            match taken.compare_exchange_weak(seen, seen | 1 << free, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Owned(WriterSlot(free)),
                Err(now) => seen = now,
            }
        }
    }

    fn release(&self, taken: &AtomicU64) {
        if self.0.is_exclusive() {
            taken.fetch_and(!(1 << self.0.0), Ordering::Release);
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.release(&TAKEN);
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use super::*;

    #[test]
    fn slots_are_single_until_they_run_out_and_come_back() {
        let taken = AtomicU64::new(0);
        let claim = || ManuallyDrop::new(Owned::claim(&taken));
        let owners: Vec<_> = (0..SHARED).map(|_| claim()).collect();
        for (place, owner) in owners.iter().enumerate() {
            assert_eq!(owner.0.index(), place);
            assert!(owner.0.is_exclusive());
        }
        let late = claim();
        assert!(!late.0.is_exclusive());
        assert_eq!(late.0.index(), SHARED);
        late.release(&taken);
        assert_eq!(claim().0.index(), SHARED, "the shared slot frees nothing");
        owners[17].release(&taken);
        assert_eq!(claim().0.index(), 17);
    }

    #[test]
    fn a_thread_keeps_its_slot_and_two_threads_differ() {
        let mine = WriterSlot::current();
        assert_eq!(mine, WriterSlot::current());
        let other = std::thread::spawn(WriterSlot::current).join().unwrap();
        assert!(mine != other || !mine.is_exclusive());
    }
}
