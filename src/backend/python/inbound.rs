//! Memory that a worker reads: inputs of its executions, and answers to the requests that it makes.
//!
//! Ranges are cut from segments that are only ever added, because arrays of the worker's point into them. A range goes
//! back when the worker says that none of its arrays refers to it and no slice of ours does. Sizes are rounded up to
//! classes, four to each power of two, and each class keeps its own free ranges: nothing is moved or joined.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::{Segment, Slice};
use crate::request::Status;

/// Every range begins at a multiple of this.
const ALIGNMENT: usize = 64;
/// Ranges that a worker may hold at a time.
const RANGES_MAX: usize = 1 << 20;

/// A piece of a segment, as messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub key: u64,
    pub segment: u32,
    pub offset: u64,
    pub len: u64,
}

/// A range and where to write it.
pub type Taken = (Range, Arc<Segment>);

/// The bytes of a class that holds `len`.
fn class_bytes(len: usize) -> usize {
    let len = len.max(ALIGNMENT);
    let step = (len.next_power_of_two() / 8).max(ALIGNMENT);
    len.next_multiple_of(step)
}

/// Tells the worker of a segment that is new.
pub trait Announce {
    fn announce(&self, number: u32, segment: &Segment) -> std::io::Result<()>;
}

/// See the [module](self).
pub struct Inbound {
    state: Mutex<State>,
    /// Bytes of all segments that there may be.
    limit: usize,
    first: usize,
    growth: usize,
}

#[derive(Default)]
struct State {
    segments: Vec<(u32, Arc<Segment>)>,
    bytes: usize,
    /// Where the last segment is cut next.
    cut: usize,
    free: HashMap<usize, Vec<(usize, usize)>>,
    held: HashMap<u64, Held>,
    next_key: u64,
}

struct Held {
    /// Index of the segment, and the range in it.
    segment: usize,
    offset: usize,
    len: usize,
    /// The worker's arrays refer to it.
    by_worker: bool,
    /// Slices of ours do.
    slices: usize,
}

impl Inbound {
    /// Its first segment has `first` bytes, later ones `growth` at least; all together `limit`.
    pub fn new(first: usize, growth: usize, limit: usize) -> Inbound {
        Inbound { state: Mutex::default(), limit, first: first.max(4096), growth: growth.max(4096) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range of `len` bytes for the worker, and where to write them. `number` is what a new segment shall be called;
    /// `None`: the worker holds as much as it may.
    pub fn take(
        &self,
        len: usize,
        number: impl FnOnce() -> u32,
        announce: &impl Announce,
    ) -> Result<Option<Taken>, Status> {
        let class = class_bytes(len);
        let mut state = self.lock();
        if state.held.len() >= RANGES_MAX {
            return Ok(None);
        }
        let place = match state.free.get_mut(&class).and_then(Vec::pop) {
            Some(place) => place,
            None => match self.cut(&mut state, class, number, announce)? {
                Some(place) => place,
                None => return Ok(None),
            },
        };
        let (segment, offset) = place;
        let key = state.next_key;
        state.next_key += 1;
        state.held.insert(key, Held { segment, offset, len: class, by_worker: true, slices: 0 });
        let (number, memory) = &state.segments[segment];
        let range = Range { key, segment: *number, offset: offset as u64, len: len as u64 };
        Ok(Some((range, Arc::clone(memory))))
    }

    fn cut(
        &self,
        state: &mut State,
        class: usize,
        number: impl FnOnce() -> u32,
        announce: &impl Announce,
    ) -> Result<Option<(usize, usize)>, Status> {
        let fits = state.segments.last().is_some_and(|(_, last)| last.len() - state.cut >= class);
        if !fits {
            // A share of what there is, so that segments stay few; the whole rest where that would be too much.
            let least = if state.segments.is_empty() { self.first } else { self.growth };
            let wanted = least.max(state.bytes / 2).min(self.limit.saturating_sub(state.bytes));
            let len = wanted.max(class).next_multiple_of(4096);
            if state.bytes.saturating_add(len) > self.limit {
                return Ok(None);
            }
            let no_memory = |error| Status::unavailable(format!("cannot share {len} bytes with a worker: {error}"));
            let segment = Segment::create(len).map_err(no_memory)?;
            let number = number();
            announce.announce(number, &segment).map_err(no_memory)?;
            // What was left of the one before is of use to smaller ranges.
            if let Some(last) = state.segments.len().checked_sub(1) {
                let (cut, end) = (state.cut, state.segments[last].1.len());
                spare(state, last, cut, end);
            }
            state.bytes += len;
            state.cut = 0;
            state.segments.push((number, Arc::new(segment)));
        }
        let place = (state.segments.len() - 1, state.cut);
        state.cut += class;
        Ok(Some(place))
    }

    /// The worker refers to these no more. What it never had is passed over.
    pub fn release(&self, keys: impl Iterator<Item = u64>) {
        let mut state = self.lock();
        for key in keys {
            if let Some(held) = state.held.get_mut(&key) {
                held.by_worker = false;
                settle(&mut state, key);
            }
        }
    }

    /// What the worker holds as a tensor's bytes: the range stays as long as a slice of it lives.
    pub fn slice(self: &Arc<Self>, range: Range) -> Option<Slice> {
        let mut state = self.lock();
        let held = state.held.get_mut(&range.key).filter(|held| held.by_worker)?;
        let (offset, len) = (usize::try_from(range.offset).ok()?, usize::try_from(range.len).ok()?);
        let is_inside = offset >= held.offset && offset.checked_add(len)? <= held.offset + held.len;
        let segment = held.segment;
        let (number, memory) = state.segments.get(segment)?;
        if !is_inside || *number != range.segment {
            return None;
        }
        let memory = Arc::clone(memory);
        state.held.get_mut(&range.key)?.slices += 1;
        drop(state);
        // Made after the count: it gives back what was counted.
        let hold = Hold { inbound: Arc::clone(self), key: range.key };
        memory.slice(offset, len, Arc::new(hold))
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }
}

/// Makes the rest of a segment free ranges of smaller classes.
fn spare(state: &mut State, segment: usize, mut at: usize, end: usize) {
    while end - at >= ALIGNMENT {
        // The largest power of two that fits is a class of its own.
        let len = 1 << (end - at).ilog2();
        state.free.entry(len).or_default().push((segment, at));
        at += len;
    }
}

fn settle(state: &mut State, key: u64) {
    if state.held.get(&key).is_some_and(|held| !held.by_worker && held.slices == 0)
        && let Some(held) = state.held.remove(&key)
    {
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
    use super::*;

    struct Told;

    impl Announce for Told {
        fn announce(&self, _number: u32, _segment: &Segment) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn take(inbound: &Inbound, len: usize) -> Option<Range> {
        inbound.take(len, || 7, &Told).unwrap().map(|(range, _)| range)
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
            Range { segment: 8, ..range },
            Range { key: 5, ..range },
        ] {
            assert!(inbound.slice(wrong).is_none(), "{wrong:?}");
        }
    }
}
