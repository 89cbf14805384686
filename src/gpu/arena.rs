//! The [`Arena`]: offsets in one long range, taken and given back, for memory that is expensive to allocate.
//!
//! First fit over the free ranges by their offsets, neighbours merged when they are given back. It handles numbers only
//! and owns no memory.

use std::collections::BTreeMap;

/// Ranges begin at multiples of this: enough for any access of a device and for coalesced copies.
pub const GRANULE: usize = 256;

/// See the [module](self).
#[derive(Debug)]
pub struct Arena {
    len: usize,
    used: usize,
    /// Free ranges by offset; none touches another.
    free: BTreeMap<usize, usize>,
}

impl Arena {
    pub fn new(len: usize) -> Arena {
        let len = len - len % GRANULE;
        Arena { len, used: 0, free: (len > 0).then_some((0, len)).into_iter().collect() }
    }

    /// A range of `len` bytes or more; `None` if no such range is free.
    pub fn take(&mut self, len: usize) -> Option<usize> {
        let len = rounded(len)?;
        let (&at, &room) = self.free.iter().find(|(_, room)| **room >= len)?;
        self.free.remove(&at);
        if room > len {
            self.free.insert(at + len, room - len);
        }
        self.used += len;
        Some(at)
    }

    /// Gives back what was taken with this length.
    pub fn give(&mut self, at: usize, len: usize) {
        let Some(mut len) = rounded(len) else { return };
        debug_assert!(at + len <= self.len, "a range of this arena");
        self.used -= len;
        let mut at = at;
        if let Some(next) = self.free.remove(&(at + len)) {
            len += next;
        }
        if let Some((&before, &room)) = self.free.range(..at).next_back()
            && before + room == at
        {
            self.free.remove(&before);
            (at, len) = (before, room + len);
        }
        self.free.insert(at, len);
    }

    /// Bytes that are taken, rounded as they were taken.
    pub fn used(&self) -> usize {
        self.used
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

/// Whole granules, at least one. `None` beyond any memory.
fn rounded(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(GRANULE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_come_back_whole() {
        let mut arena = Arena::new(4 * GRANULE + 7);
        assert_eq!(arena.len(), 4 * GRANULE);
        let (a, b, c) = (arena.take(1).unwrap(), arena.take(GRANULE + 1).unwrap(), arena.take(0).unwrap());
        assert_eq!((a, b, c, arena.used()), (0, GRANULE, 3 * GRANULE, 4 * GRANULE));
        assert_eq!(arena.take(1), None);
        arena.give(a, 1);
        arena.give(c, 0);
        assert_eq!(arena.take(GRANULE + 1), None, "the free ranges do not touch");
        arena.give(b, GRANULE + 1);
        assert_eq!((arena.used(), arena.take(4 * GRANULE)), (0, Some(0)));
        assert_eq!((arena.take(usize::MAX), Arena::new(100).take(1)), (None, None));
    }

    #[test]
    fn ranges_taken_and_given_back_in_any_order_leaves_one_range() {
        let mut arena = Arena::new(1 << 20);
        let mut seed = 9u64;
        let mut out: Vec<(usize, usize)> = Vec::new();
        for _ in 0..5_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (seed >> 33) as usize;
            if !number.is_multiple_of(3) {
                let len = number % 9_000;
                if let Some(at) = arena.take(len) {
                    let end = at + len.max(1);
                    assert!(
                        out.iter().all(|&(other, len)| end <= other || other + len.max(1) <= at),
                        "overlap at {at}"
                    );
                    out.push((at, len));
                }
            } else if !out.is_empty() {
                let (at, len) = out.swap_remove(number % out.len());
                arena.give(at, len);
            }
        }
        out.into_iter().for_each(|(at, len)| arena.give(at, len));
        assert_eq!((arena.used(), arena.free.len()), (0, 1));
    }
}
