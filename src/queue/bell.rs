//! The word by which one side of shared memory asks the other to wake it: of a shared-memory ring (docs/ipc.md,
//! "Bells"), or of the streams between the server and a Python process (`backend::python::link`).
//!
//! A side that is about to sleep writes the events that it waits for, then checks for work again. The other side makes
//! its event visible, then reads the word, and rings if the event is wanted. Both put a sequentially consistent fence
//! between their write and their read, as in [`Sleeper`](super::Sleeper), so that no wake-up is lost. The other side
//! may be a process that writes anything: a wrong word leads to a bell too many or too few, to nothing else.

use super::sync::{AtomicU64, Ordering, fence};

/// A frame was published.
pub const FRAMES: u64 = 1;
/// Room was made: a position of a reader has moved.
pub const ROOM: u64 = 2;

/// Called by the side that is about to sleep: it wants a bell for these events. It has to check for work after this.
#[inline]
pub fn want(word: &AtomicU64, events: u64) {
    word.store(events, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Called by the side that does not sleep any more.
#[inline]
pub fn awake(word: &AtomicU64) {
    word.store(0, Ordering::Relaxed);
}

/// Called by the other side after these events. True if it has to ring.
#[inline]
pub fn is_due(word: &AtomicU64, events: u64) -> bool {
    fence(Ordering::SeqCst);
    // The plain load keeps the line shared while the other side is awake.
    word.load(Ordering::Relaxed) & events != 0 && word.swap(0, Ordering::AcqRel) != 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_rung_once_and_for_wanted_events_only() {
        let word = AtomicU64::new(0);
        assert!(!is_due(&word, FRAMES | ROOM));
        want(&word, FRAMES);
        assert!(!is_due(&word, ROOM));
        assert!(is_due(&word, FRAMES | ROOM) && !is_due(&word, FRAMES));
        want(&word, FRAMES | ROOM);
        awake(&word);
        assert!(!is_due(&word, FRAMES));
        // Bits that mean nothing are no event.
        word.store(!FRAMES, Ordering::Relaxed);
        assert!(!is_due(&word, FRAMES) && is_due(&word, ROOM) && word.load(Ordering::Relaxed) == 0);
    }
}
