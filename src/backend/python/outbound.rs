//! Memory that a worker writes: its outputs, which are sent to the network without a copy.
//!
//! The worker requests segments and cuts them itself. A range that a message names belongs to the server from then on,
//! until the last slice of it is dropped; the next message to the worker lists the ranges that it may use again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_memory::{Segment, Slice};
use nereid_request::Status;

/// An address in messages is one number: the segment above these bits, the offset below.
const OFFSET_BITS: u32 = 40;
/// The smallest range that a worker cuts.
const PLACE_BYTES_MIN: usize = 64;

/// See the [module](self).
pub struct Outbound {
    state: Mutex<State>,
    limit: usize,
    first: usize,
    growth: usize,
}

struct Piece {
    memory: Arc<Segment>,
    /// The number of the server's slices of it.
    held: usize,
}

#[derive(Default)]
struct State {
    segments: HashMap<u32, Piece>,
    bytes: usize,
    /// Addresses of ranges that the worker may use again.
    freed: Vec<u64>,
}

/// The sizes for a new segment.
#[derive(PartialEq, Eq)]
struct Growth {
    /// Segments that the worker gives up for it.
    gone: Vec<u32>,
    /// Bytes of the segments that stay.
    bytes: usize,
    /// Bytes of the new segment.
    len: usize,
}

impl Growth {
    fn refused(&self, why: &dyn std::fmt::Display) -> Status {
        let asked = self.bytes.saturating_add(self.len);
        Status::internal(format!("Failed to increase the shared memory pool size to {asked} bytes: {why}"))
    }
}

impl State {
    /// Bounded by the number of possible ranges: a hostile worker may name one again and again.
    fn give_back(&mut self, place: u64) {
        if self.freed.len() < self.bytes / PLACE_BYTES_MIN {
            self.freed.push(place);
        }
    }
}

impl Outbound {
    /// Its first segment has `first` bytes, later ones `growth` at least; all together `limit`.
    pub fn new(first: usize, growth: usize, limit: usize) -> Outbound {
        Outbound { state: Mutex::default(), limit, first: first.max(4096), growth: growth.max(4096) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment of at least `len` bytes for the worker, which gives up the segments in `gone`.
    pub fn grow(&self, number: u32, len: usize, gone: &[u32]) -> Result<Arc<Segment>, Status> {
        self.grow_with(number, len, gone, Segment::create)
    }

    /// The same with the function that makes the segment by system calls, which run without the lock: shards take it.
    fn grow_with(
        &self,
        number: u32,
        len: usize,
        gone: &[u32],
        create: impl Fn(usize) -> std::io::Result<Segment>,
    ) -> Result<Arc<Segment>, Status> {
        loop {
            let growth = self.growth(&self.lock(), len, gone)?;
            let segment = Arc::new(create(growth.len).map_err(|error| growth.refused(&error))?);
            let mut state = self.lock();
            if self.growth(&state, len, gone)? != growth {
                // Another segment was added, or one is read again, since this one was made.
                continue;
            }
            // Not before: without memory the state must not change.
            let replaced: Vec<_> = growth.gone.iter().map(|number| state.segments.remove(number)).collect();
            let is_gone = |place: &u64| growth.gone.iter().any(|number| place >> OFFSET_BITS == u64::from(*number));
            state.freed.retain(|place| !is_gone(place));
            state.bytes = growth.bytes + growth.len;
            let before = state.segments.insert(number, Piece { memory: Arc::clone(&segment), held: 0 });
            drop(state);
            // They are unmapped here.
            drop((replaced, before));
            return Ok(segment);
        }
    }

    /// How the worker's memory would grow now by a segment of at least `len` bytes.
    fn growth(&self, state: &State, len: usize, gone: &[u32]) -> Result<Growth, Status> {
        // The worker must not give up a segment that is still read; a correct one does not.
        let held = |number: &&u32| state.segments.get(number).is_some_and(|piece| piece.held == 0);
        let mut gone: Vec<u32> = gone.iter().filter(held).copied().collect();
        gone.sort_unstable();
        gone.dedup();
        let given_up = gone.iter().filter_map(|number| state.segments.get(number)).map(|piece| piece.memory.len());
        let bytes = state.bytes.saturating_sub(given_up.sum());
        let limit = self.limit;
        // In proportion to the present bytes, so that segments stay few; the whole rest if that would exceed the limit.
        let least = if state.segments.is_empty() { self.first } else { self.growth };
        let wanted = least.max(bytes / 2).min(limit.saturating_sub(bytes));
        let len = wanted.max(len).checked_next_multiple_of(4096).filter(|len| *len < 1 << OFFSET_BITS);
        let limit_text = format!("a worker may have {limit} bytes ('shm-max-byte-size')");
        let growth = Growth { gone, bytes, len: len.unwrap_or(usize::MAX) };
        match len.filter(|len| bytes.saturating_add(*len) <= limit) {
            Some(_) => Ok(growth),
            None => Err(growth.refused(&limit_text)),
        }
    }

    /// The bytes of a range that the worker passed on; it gets the range back after the last slice is dropped.
    pub fn slice(self: &Arc<Self>, number: u32, offset: u64, len: u64) -> Option<Slice> {
        let mut state = self.lock();
        let piece = state.segments.get_mut(&number)?;
        piece.held += 1;
        let memory = Arc::clone(&piece.memory);
        drop(state);
        // Made after the increment, which its drop reverses.
        let hold = Arc::new(Hold { outbound: Arc::clone(self), number, place: place(number, offset) });
        memory.slice(usize::try_from(offset).ok()?, usize::try_from(len).ok()?, hold)
    }

    /// Appends a copy of a range that the worker passed on, and gives the range back at once. False: there is no such
    /// range.
    pub fn read(&self, number: u32, offset: u64, len: u64, bytes: &mut Vec<u8>) -> bool {
        let memory = self.lock().segments.get(&number).map(|piece| Arc::clone(&piece.memory));
        let (Some(memory), Ok(at), Ok(len)) = (memory, usize::try_from(offset), usize::try_from(len)) else {
            return false;
        };
        let is_there = memory.read(at, len, bytes);
        self.lock().give_back(place(number, offset));
        is_there
    }

    /// The addresses of ranges that the worker may use again, for the next message.
    pub fn take_freed(&self, most: usize) -> Vec<u64> {
        let mut state = self.lock();
        let kept = state.freed.len().saturating_sub(most);
        state.freed.split_off(kept)
    }

    /// Puts back the addresses of a message that was not sent.
    pub fn put_back_freed(&self, places: Vec<u64>) {
        self.lock().freed.extend(places);
    }

    /// Bytes of all segments.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }
}

fn place(number: u32, offset: u64) -> u64 {
    (u64::from(number) << OFFSET_BITS) | offset
}

/// One range that the server holds.
struct Hold {
    outbound: Arc<Outbound>,
    number: u32,
    place: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.outbound.lock();
        if let Some(piece) = state.segments.get_mut(&self.number) {
            piece.held = piece.held.saturating_sub(1);
        }
        state.give_back(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_goes_back_after_its_last_slice() {
        let outbound = Arc::new(Outbound::new(4096, 4096, 16384));
        let segment = outbound.grow(3, 5000, &[]).unwrap();
        assert_eq!((segment.len(), outbound.bytes()), (8192, 8192));
        assert!(segment.write(64, b"abc"));
        let slice = outbound.slice(3, 64, 3).unwrap();
        let copy = slice.clone();
        drop(slice);
        assert!(outbound.take_freed(9).is_empty());
        assert_eq!(&*copy, b"abc");
        drop(copy);
        let mut bytes = Vec::new();
        assert!(outbound.read(3, 64, 2, &mut bytes) && bytes == b"ab");
        assert_eq!(outbound.take_freed(1).len(), 1);
        assert_eq!(outbound.take_freed(9), [(3 << 40) | 64]);
        assert!(outbound.take_freed(9).is_empty());
    }

    #[test]
    fn what_is_not_there_is_no_slice_and_bounds_hold() {
        let outbound = Arc::new(Outbound::new(4096, 4096, 8192));
        outbound.grow(1, 0, &[]).unwrap();
        assert!(outbound.slice(2, 0, 1).is_none() && outbound.slice(1, 4000, 97).is_none());
        assert!(outbound.slice(1, u64::MAX, 2).is_none() && !outbound.read(1, 4096, 1, &mut Vec::new()));
        let error = outbound.grow(2, 4097, &[]).unwrap_err();
        assert!(error.message.starts_with("Failed to increase the shared memory pool size to 12288 bytes"), "{error}");
        assert!(outbound.grow(2, usize::MAX, &[]).is_err());
    }

    #[test]
    fn a_place_that_is_named_without_end_takes_no_more_memory() {
        let outbound = Arc::new(Outbound::new(4096, 4096, 8192));
        outbound.grow(1, 0, &[]).unwrap();
        for _ in 0..1000 {
            assert!(outbound.slice(1, 0, 1).is_some() && outbound.read(1, 0, 1, &mut Vec::new()));
        }
        assert_eq!(outbound.take_freed(9999).len(), 4096 / PLACE_BYTES_MIN);
    }

    #[test]
    fn a_segment_is_made_without_the_lock_and_for_what_there_is_then() {
        let outbound = Arc::new(Outbound::new(4096, 4096, 16384));
        outbound.grow(1, 4096, &[]).unwrap();
        outbound.grow(2, 4096, &[]).unwrap();
        let made = std::cell::RefCell::new(Vec::new());
        let read = std::cell::OnceCell::new();
        let create = |len| {
            assert!(outbound.state.try_lock().is_ok(), "a shard would wait for the system");
            made.borrow_mut().push(len);
            read.get_or_init(|| outbound.slice(1, 0, 8).unwrap());
            Segment::create(len)
        };
        let error = outbound.grow_with(3, 12288, &[1], create).unwrap_err();
        assert!(error.message.contains("to 20480 bytes"), "the first one is read meanwhile: {error}");
        outbound.grow_with(3, 8192, &[1, 2], create).unwrap();
        assert_eq!((&*made.borrow(), outbound.bytes()), (&vec![12288, 8192], 12288));
        let grown = std::cell::OnceCell::new();
        let create = |len| {
            grown.get_or_init(|| outbound.grow(4, 0, &[]).unwrap());
            Segment::create(len)
        };
        let error = outbound.grow_with(5, 4096, &[], create).unwrap_err();
        assert!(error.message.contains("to 20480 bytes"), "another one took the rest meanwhile: {error}");
        assert_eq!(outbound.bytes(), 16384);
    }

    #[test]
    fn a_segment_goes_for_another_one_unless_it_is_read() {
        let outbound = Arc::new(Outbound::new(4096, 4096, 8192));
        outbound.grow(1, 4096, &[]).unwrap();
        outbound.grow(2, 4096, &[]).unwrap();
        let read = outbound.slice(1, 0, 8).unwrap();
        assert!(outbound.grow(3, 8192, &[1, 2, 9]).is_err(), "the first one is read");
        assert_eq!(outbound.bytes(), 8192, "and nothing has changed");
        outbound.grow(3, 4096, &[2, 2]).unwrap();
        assert!(outbound.slice(2, 0, 8).is_none() && outbound.bytes() == 8192);
        drop(read);
        outbound.grow(3, 8192, &[1, 3]).unwrap();
        assert!(outbound.take_freed(9).is_empty(), "what lay there is no place any more");
        outbound.put_back_freed(vec![(3 << 40) | 64]);
        assert_eq!(outbound.take_freed(9), [(3 << 40) | 64]);
    }
}
