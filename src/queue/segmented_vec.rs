//! A vector that grows without moving its elements: the numbered places of the workers of a model version.
//!
//! A version has one worker or a thousand, and may get more while it runs. Places lie in segments, each twice the size
//! of the one before, so that a reader needs no lock and a small model pays for few.

use std::sync::OnceLock;

/// Places in the first segment.
const FIRST: usize = 4;
const SEGMENTS: usize = 11;

/// Places for a growing number of workers.
pub struct SegmentedVec<T> {
    segments: [OnceLock<Box<[T]>>; SEGMENTS],
}

impl<T: Default> SegmentedVec<T> {
    /// Most places that there can be.
    pub const MAX: usize = FIRST * ((1 << SEGMENTS) - 1);

    /// Makes sure that place number `index` is there; false if it is beyond the bound.
    pub fn provide(&self, index: usize) -> bool {
        let (segment, _) = locate(index);
        let Some(places) = self.segments.get(segment) else { return false };
        places.get_or_init(|| (0..FIRST << segment).map(|_| T::default()).collect());
        true
    }

    /// A place that was provided.
    pub fn get(&self, index: usize) -> Option<&T> {
        let (segment, offset) = locate(index);
        self.segments.get(segment)?.get()?.get(offset)
    }
}

impl<T> Default for SegmentedVec<T> {
    fn default() -> SegmentedVec<T> {
        SegmentedVec { segments: [const { OnceLock::new() }; SEGMENTS] }
    }
}

impl<T: Default> std::ops::Index<usize> for SegmentedVec<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        match self.get(index) {
            Some(place) => place,
            // Numbers of workers come from `provide` and never from outside.
            None => unreachable!("place {index} was not provided"),
        }
    }
}

/// Segment and offset of a place.
fn locate(index: usize) -> (usize, usize) {
    // The n-th segment begins at FIRST * (2^n - 1).
    let block = index / FIRST + 1;
    let segment = block.ilog2() as usize;
    (segment, index - FIRST * ((1 << segment) - 1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn places_are_distinct_and_stay() {
        /// All places; some segments of them where each step is interpreted.
        const PLACES: usize = if cfg!(miri) { 500 } else { SegmentedVec::<AtomicUsize>::MAX };
        let places = SegmentedVec::<AtomicUsize>::default();
        assert!(places.get(0).is_none(), "no place exists before it is provided");
        for index in 0..PLACES {
            assert!(places.provide(index));
            places[index].store(index + 1, Ordering::Relaxed);
        }
        for index in 0..PLACES {
            assert_eq!(places.get(index).map(|place| place.load(Ordering::Relaxed)), Some(index + 1));
        }
        assert!(!places.provide(SegmentedVec::<AtomicUsize>::MAX));
        assert!(places.get(SegmentedVec::<AtomicUsize>::MAX).is_none());
        assert!(!places.provide(usize::MAX - FIRST));
    }

    #[test]
    fn segments_follow_each_other() {
        assert_eq!([0, 3, 4, 11, 12, 27, 28].map(locate), [(0, 0), (0, 3), (1, 0), (1, 7), (2, 0), (2, 15), (3, 0)]);
    }
}
