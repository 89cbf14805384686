//! Memory that a worker reads: inputs of its executions, and answers to the requests that it makes.
//!
//! Ranges are cut from segments. Arrays of the worker point into these, so they never move or shrink. A range is free
//! again when the worker has reported that no array refers to it and no slice of the server does. Sizes are rounded up
//! to classes, four to each power of two, and each class keeps its own free ranges. Only if that leaves no memory for
//! another class, ranges are joined again: segments without a held range are cut anew, or freed for a larger one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_memory::{Segment, Slice};
use nereid_request::Status;

/// Every range begins at a multiple of this.
const ALIGNMENT: usize = 64;
/// Ranges that a worker may hold at a time.
const RANGES_MAX: usize = 1 << 20;

/// A piece of a segment, as messages describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub key: u64,
    pub segment: u32,
    pub offset: u64,
    pub len: u64,
}

/// A range and where to write it.
pub type WritableRange = (Range, Arc<Segment>);

/// The bytes of a class that holds `len`.
fn class_bytes(len: usize) -> usize {
    let len = len.max(ALIGNMENT);
    let step = (len.next_power_of_two() / 8).max(ALIGNMENT);
    len.next_multiple_of(step)
}

/// Announces a new segment to the worker, and those that it may unmap.
pub trait Announce {
    fn announce(&self, number: u32, segment: &Segment, gone: &[u32]) -> std::io::Result<()>;
}

/// See the [module](self).
pub struct Inbound {
    state: Mutex<State>,
    /// The most bytes of all segments.
    limit: usize,
    first: usize,
    growth: usize,
}

#[derive(Default)]
struct State {
    segments: BTreeMap<u32, Piece>,
    bytes: usize,
    /// Free ranges by class: the segment, and the offset in it.
    free: BTreeMap<usize, Vec<(u32, usize)>>,
    held: HashMap<u64, Held>,
    next_key: u64,
}

struct Piece {
    memory: Arc<Segment>,
    /// The end of the cut part.
    cut: usize,
    /// The number of its held ranges.
    held: usize,
}

struct Held {
    segment: u32,
    offset: usize,
    len: usize,
    /// Whether the worker's arrays refer to it.
    by_worker: bool,
    /// The number of the server's slices of it.
    slices: usize,
}

/// The segment and offset of a range, and its class.
struct RangeLocation {
    segment: u32,
    offset: usize,
    class: usize,
}

impl State {
    /// A range of that class from the present segments.
    fn find(&mut self, class: usize) -> Option<RangeLocation> {
        if let Some((segment, offset)) = self.free.get_mut(&class).and_then(Vec::pop) {
            return Some(RangeLocation { segment, offset, class });
        }
        let fits = |piece: &Piece| piece.memory.len().saturating_sub(piece.cut) >= class;
        let (segment, piece) = self.segments.iter_mut().find(|(_, piece)| fits(piece))?;
        let offset = piece.cut;
        piece.cut += class;
        Some(RangeLocation { segment: *segment, offset, class })
    }

    /// Makes segments without held ranges whole again.
    fn join(&mut self) {
        let whole: Vec<u32> =
            self.segments.iter().filter(|(_, piece)| piece.held == 0).map(|(number, _)| *number).collect();
        self.free.values_mut().for_each(|places| places.retain(|(segment, _)| !whole.contains(segment)));
        self.segments.values_mut().filter(|piece| piece.held == 0).for_each(|piece| piece.cut = 0);
    }

    /// A free range of a larger class.
    fn find_larger(&mut self, class: usize) -> Option<RangeLocation> {
        let (class, places) = self.free.range_mut(class + 1..).find(|(_, places)| !places.is_empty())?;
        let (segment, offset) = places.pop()?;
        Some(RangeLocation { segment, offset, class: *class })
    }

    /// Removes segments without held ranges until `len` more bytes are within `limit`. `None`: they would not be.
    fn give_up(&mut self, len: usize, limit: usize) -> Option<Vec<u32>> {
        let (mut gone, mut bytes) = (Vec::new(), self.bytes);
        for (number, piece) in self.segments.iter().filter(|(_, piece)| piece.held == 0) {
            if bytes.saturating_add(len) <= limit {
                break;
            }
            bytes -= piece.memory.len();
            gone.push(*number);
        }
        if bytes.saturating_add(len) > limit {
            return None;
        }
        for number in &gone {
            self.segments.remove(number);
        }
        self.free.values_mut().for_each(|places| places.retain(|(segment, _)| !gone.contains(segment)));
        self.bytes = bytes;
        Some(gone)
    }
}

impl Inbound {
    /// Its first segment has `first` bytes, later ones `growth` at least; all together `limit`.
    pub fn new(first: usize, growth: usize, limit: usize) -> Inbound {
        Inbound { state: Mutex::default(), limit, first: first.max(4096), growth: growth.max(4096) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a range of `len` bytes for the worker, and the segment to write them to. `number` is that of a new
    /// segment, if one is needed. `None`: the worker holds as much as it may.
    pub fn take(
        &self,
        len: usize,
        number: impl FnOnce() -> u32,
        announce: &impl Announce,
    ) -> Result<Option<WritableRange>, Status> {
        // Rounding the length up to pages must not overflow.
        if len > self.limit {
            return Ok(None);
        }
        let class = class_bytes(len);
        let mut state = self.lock();
        if state.held.len() >= RANGES_MAX {
            return Ok(None);
        }
        let place = match state.find(class) {
            Some(place) => place,
            None => {
                self.grow(&mut state, class, number, announce)?;
                let found = state.find(class).or_else(|| state.find_larger(class));
                let Some(place) = found else { return Ok(None) };
                place
            }
        };
        let RangeLocation { segment, offset, class } = place;
        let Some(piece) = state.segments.get_mut(&segment) else { return Ok(None) };
        piece.held += 1;
        let memory = Arc::clone(&piece.memory);
        let key = state.next_key;
        state.next_key += 1;
        state.held.insert(key, Held { segment, offset, len: class, by_worker: true, slices: 0 });
        Ok(Some((Range { key, segment, offset: offset as u64, len: len as u64 }, memory)))
    }

    /// Adds a segment for a range of that class, if the limit allows it.
    fn grow(
        &self,
        state: &mut State,
        class: usize,
        number: impl FnOnce() -> u32,
        announce: &impl Announce,
    ) -> Result<(), Status> {
        // In proportion to the present bytes, so that segments stay few; the whole rest if that would exceed the limit.
        let least = if state.segments.is_empty() { self.first } else { self.growth };
        let wanted = least.max(state.bytes / 2).min(self.limit.saturating_sub(state.bytes));
        let mut len = wanted.max(class).next_multiple_of(4096);
        let mut gone = Vec::new();
        if state.bytes.saturating_add(len) > self.limit {
            state.join();
            let fits = |piece: &Piece| piece.memory.len().saturating_sub(piece.cut) >= class;
            if state.segments.values().any(fits) {
                return Ok(());
            }
            len = class.next_multiple_of(4096);
            match state.give_up(len, self.limit) {
                Some(numbers) => gone = numbers,
                None => return Ok(()),
            }
        }
        let no_memory = |error| Status::unavailable(format!("cannot share {len} bytes with a worker: {error}"));
        let segment = Segment::create(len).map_err(no_memory)?;
        let number = number();
        announce.announce(number, &segment, &gone).map_err(no_memory)?;
        state.bytes += len;
        state.segments.insert(number, Piece { memory: Arc::new(segment), cut: 0, held: 0 });
        Ok(())
    }

    /// Releases ranges that the worker no longer refers to. Keys that it never had are ignored.
    pub fn release(&self, keys: impl Iterator<Item = u64>) {
        let mut state = self.lock();
        for key in keys {
            if let Some(held) = state.held.get_mut(&key) {
                held.by_worker = false;
                settle(&mut state, key);
            }
        }
    }

    /// A slice of a range that the worker holds: the range is kept as long as a slice of it lives.
    pub fn slice(self: &Arc<Self>, range: Range) -> Option<Slice> {
        let mut state = self.lock();
        let held = state.held.get_mut(&range.key).filter(|held| held.by_worker)?;
        let (offset, len) = (usize::try_from(range.offset).ok()?, usize::try_from(range.len).ok()?);
        let is_inside = offset >= held.offset && offset.checked_add(len)? <= held.offset + held.len;
        if !is_inside || held.segment != range.segment {
            return None;
        }
        let memory = Arc::clone(&state.segments.get(&range.segment)?.memory);
        state.held.get_mut(&range.key)?.slices += 1;
        drop(state);
        // Made after the increment, which its drop reverses.
        let hold = Hold { inbound: Arc::clone(self), key: range.key };
        memory.slice(offset, len, Arc::new(hold))
    }

    /// Bytes of all segments.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }
}

fn settle(state: &mut State, key: u64) {
    if state.held.get(&key).is_some_and(|held| !held.by_worker && held.slices == 0)
        && let Some(held) = state.held.remove(&key)
    {
        if let Some(piece) = state.segments.get_mut(&held.segment) {
            piece.held = piece.held.saturating_sub(1);
        }
        state.free.entry(held.len).or_default().push((held.segment, held.offset));
    }
}

/// One slice of a range.
struct Hold {
    inbound: Arc<Inbound>,
    key: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.inbound.lock();
        if let Some(held) = state.held.get_mut(&self.key) {
            held.slices = held.slices.saturating_sub(1);
            settle(&mut state, self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Numbers of new segments, each with those that are removed.
    #[derive(Default)]
    struct Announcements(RefCell<Vec<(u32, Vec<u32>)>>);

    impl Announce for Announcements {
        fn announce(&self, number: u32, _segment: &Segment, gone: &[u32]) -> std::io::Result<()> {
            self.0.borrow_mut().push((number, gone.to_vec()));
            Ok(())
        }
    }

    fn take(inbound: &Inbound, len: usize) -> Option<Range> {
        take_announced(inbound, len, &Announcements::default())
    }

    fn take_announced(inbound: &Inbound, len: usize, announced: &Announcements) -> Option<Range> {
        static NUMBER: AtomicU32 = AtomicU32::new(7);
        let number = || NUMBER.fetch_add(1, Ordering::Relaxed);
        inbound.take(len, number, announced).unwrap().map(|(range, _)| range)
    }

    #[test]
    fn classes_waste_a_quarter_at_most() {
        for len in [1, 64, 65, 1000, 4097, 602_112, 1 << 20, (1 << 20) + 1] {
            let class = class_bytes(len);
            assert!(class >= len && class <= (len.max(256) * 5).div_ceil(4) && class.is_multiple_of(64), "{len}");
            assert_eq!(class_bytes(class), class, "a class is its own");
        }
    }

    #[test]
    fn a_range_is_used_again_once_nobody_holds_it() {
        let inbound = Arc::new(Inbound::new(4096, 4096, 8192));
        let first = take(&inbound, 3000).unwrap();
        let second = take(&inbound, 3000).unwrap();
        assert!(take(&inbound, 3000).is_none(), "that is all there may be");
        let slice = inbound.slice(Range { offset: second.offset + 8, len: 16, ..second }).unwrap();
        inbound.release([first.key, second.key, 99].into_iter());
        let again = take(&inbound, 2900).unwrap();
        assert_eq!((again.segment, again.offset), (first.segment, first.offset));
        assert!(take(&inbound, 3000).is_none(), "a slice keeps the other one");
        assert!(inbound.slice(second).is_none(), "the worker has given it back");
        drop(slice);
        assert!(take(&inbound, 3000).is_some());
        assert_eq!(inbound.bytes(), 8192);
    }

    #[test]
    fn what_lies_outside_is_no_slice() {
        let inbound = Arc::new(Inbound::new(4096, 4096, 8192));
        let range = take(&inbound, 128).unwrap();
        for wrong in [
            Range { len: 129, ..range },
            Range { offset: range.offset + 1, ..range },
            Range { offset: u64::MAX, ..range },
            Range { segment: range.segment + 1, ..range },
            Range { key: 5, ..range },
        ] {
            assert!(inbound.slice(wrong).is_none(), "{wrong:?}");
        }
    }

    /// A model that gets one size after the other must not run out of memory because of earlier sizes.
    #[test]
    fn what_other_sizes_took_is_joined_again() {
        const MIB: usize = 1 << 20;
        let inbound = Arc::new(Inbound::new(MIB, MIB, 8 * MIB));
        for round in 0..3 {
            for len in [64, 5000, 300_000, 700_000, 2 * MIB, 3 * MIB, 5 * MIB, 7 * MIB, MIB, 8 * MIB] {
                let range = take(&inbound, len).unwrap_or_else(|| panic!("round {round}: no {len} bytes"));
                assert!(inbound.bytes() <= 8 * MIB);
                inbound.release([range.key].into_iter());
            }
        }
        assert!(take(&inbound, 8 * MIB + 1).is_none() && take(&inbound, usize::MAX).is_none());
    }

    #[test]
    fn what_is_held_stays_where_it_is() {
        const MIB: usize = 1 << 20;
        let (inbound, announced) = (Arc::new(Inbound::new(MIB, MIB, 4 * MIB)), Announcements::default());
        let kept = take_announced(&inbound, 100, &announced).unwrap();
        let other = take_announced(&inbound, 2 * MIB, &announced).unwrap();
        assert_ne!(kept.segment, other.segment);
        assert!(take_announced(&inbound, 3 * MIB, &announced).is_none(), "the other one is held too");
        inbound.release([other.key].into_iter());
        let third = take_announced(&inbound, 3 * MIB, &announced).unwrap();
        assert_eq!(announced.0.borrow().last(), Some(&(third.segment, vec![other.segment])));
        assert!(inbound.slice(kept).is_some() && inbound.bytes() == 4 * MIB);
        inbound.release([kept.key, third.key].into_iter());
        assert!(take_announced(&inbound, 4 * MIB, &announced).is_some());
    }

    #[test]
    fn a_larger_range_serves_where_there_is_no_other() {
        let inbound = Arc::new(Inbound::new(4096, 4096, 4096));
        let (large, small) = (take(&inbound, 3072).unwrap(), take(&inbound, 1024).unwrap());
        inbound.release([large.key].into_iter());
        let inside = take(&inbound, 2000).unwrap();
        assert_eq!((inside.segment, inside.offset), (large.segment, large.offset));
        assert!(inbound.slice(small).is_some());
        inbound.release([inside.key].into_iter());
        assert!(take(&inbound, 3072).is_some(), "it goes back as what it was");
    }
}
