//! How many requests use a region, and whether it was unregistered meanwhile: one word for both.

use std::sync::atomic::{AtomicUsize, Ordering};

const MARKED: usize = 1;
const ONE_USE: usize = 2;

/// When a region that is unregistered goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unregistered {
    /// At once; also if no such region was registered.
    Now,
    /// Requests use it: it goes with the last of them.
    WithLastUse,
}

/// The state word of a region.
#[derive(Debug, Default)]
pub struct Uses(AtomicUsize);

impl Uses {
    /// Adds a use. False if the region was unregistered and its last use has ended.
    pub fn begin(&self) -> bool {
        let more = |state: usize| (state != MARKED).then(|| state.checked_add(ONE_USE)).flatten();
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Ends a use. True if it was the last one of an unregistered region.
    pub fn end(&self) -> bool {
        self.0.fetch_sub(ONE_USE, Ordering::AcqRel) == ONE_USE | MARKED
    }

    /// Marks the region as unregistered. True if it has no uses.
    pub fn mark(&self) -> bool {
        self.0.fetch_or(MARKED, Ordering::AcqRel) < ONE_USE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_use_of_a_marked_region_is_its_end() {
        let uses = Uses::default();
        assert!(uses.begin() && uses.begin());
        assert!(!uses.mark(), "it is used");
        assert!(uses.begin(), "and may be used by others until then");
        assert_eq!((uses.end(), uses.end(), uses.end()), (false, false, true));
        assert!(!uses.begin());
        let unused = Uses::default();
        assert!(unused.begin() && !unused.end() && unused.mark() && !unused.begin());
    }
}
