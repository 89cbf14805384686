//! Memory that the server gives to a worker, which names ranges of it.
//!
//! A model of what the worker holds decides which names are of its memory; what it gets is never part of what it or a
//! slice of the server holds, and all of it stays within its bound.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_backend::python::fuzzing::{Announce, Inbound, Range};
use nereid_memory::{Segment, Slice};

use crate::{Dice, Target, split};

pub const TARGET: Target = Target {
    name: "worker_memory",
    run,
    runs: 4_000,
    words: &["\0\x10", "\x01\x40", "\x02\0", "\x03\0\0", "\x04"],
    seeds,
};

const LIMIT: usize = 64 * 1024;

/// Segments by number, as the worker sees them.
#[derive(Default)]
struct Announced(RefCell<BTreeMap<u32, usize>>);

impl Announce for Announced {
    fn announce(&self, number: u32, segment: &Segment, gone: &[u32]) -> std::io::Result<()> {
        let mut segments = self.0.borrow_mut();
        for number in gone {
            assert!(segments.remove(number).is_some(), "segment {number} was not there");
        }
        assert!(segments.insert(number, segment.len()).is_none(), "segment {number} is there already");
        let bytes: usize = segments.values().sum();
        assert!(bytes <= LIMIT, "{bytes} bytes");
        Ok(())
    }
}

struct Held {
    range: Range,
    memory: Arc<Segment>,
    /// What its bytes are.
    mark: u8,
}

/// A range that was released may still be referred to by slices.
struct Kept {
    slice: Slice,
    mark: u8,
}

fn run(data: &[u8]) -> bool {
    let (mut dice, mut steps) = split(data);
    let inbound = Arc::new(Inbound::new(4096, 4096, LIMIT));
    let announced = Announced::default();
    let (mut held, mut kept): (Vec<Held>, Vec<Kept>) = (Vec::new(), Vec::new());
    let (mut number, mut mark) = (0, 0u8);
    let mut is_used = false;
    while let [step, argument, rest @ ..] = steps {
        steps = rest;
        let argument = usize::from(*argument);
        match step % 6 {
            0 | 1 => {
                let len = argument << dice.below(if step % 6 == 0 { 4 } else { 10 });
                let next = || {
                    number += 1;
                    number
                };
                let taken = inbound.take(len, next, &announced).expect("memory of this machine");
                let Some((range, memory)) = taken else { continue };
                assert_eq!(range.len, len as u64);
                assert!(range.offset.is_multiple_of(64), "{range:?}");
                mark = mark.wrapping_add(1).max(1);
                assert!(memory.write(range.offset as usize, &vec![mark; len]), "{range:?} is outside of its segment");
                held.push(Held { range, memory, mark });
            }
            2 if !held.is_empty() => {
                let gone = held.swap_remove(argument % held.len());
                // A key that it never had, or gives back again, is none.
                inbound.release([gone.range.key, gone.range.key, u64::MAX].into_iter());
                assert!(inbound.slice(gone.range).is_none(), "{:?} was given back", gone.range);
            }
            3 | 4 if !held.is_empty() => {
                let held = &held[argument % held.len()];
                let named = lie(held.range, &mut dice);
                let slice = inbound.slice(named);
                let is_own = named.key == held.range.key && named.segment == held.range.segment;
                let end = named.offset.checked_add(named.len);
                let is_inside = named.offset >= held.range.offset
                    && end.is_some_and(|end| end <= held.range.offset + held.range.len);
                if is_own && is_inside {
                    let slice = slice.unwrap_or_else(|| panic!("{named:?} of {:?}", held.range));
                    assert_eq!(slice.len() as u64, named.len);
                    is_used = true;
                    kept.push(Kept { slice, mark: held.mark });
                } else if let Some(slice) = slice {
                    // Ranges are rounded up, and a key may be that of another one.
                    assert!(end.is_some_and(|end| end <= LIMIT as u64), "{named:?}");
                    assert!(named.offset >= held.range.offset || named.key != held.range.key, "{named:?}");
                    drop(slice);
                }
            }
            _ => drop((!kept.is_empty()).then(|| kept.swap_remove(argument % kept.len()))),
        }
        let mut bytes = Vec::new();
        for Held { range, memory, mark } in &held {
            bytes.clear();
            assert!(memory.read(range.offset as usize, range.len as usize, &mut bytes));
            assert!(bytes.iter().all(|byte| byte == mark), "{range:?} was given to another one");
        }
        for Kept { slice, mark } in &kept {
            assert!(slice.iter().all(|byte| byte == mark), "memory of a slice was given to another one");
        }
    }
    is_used
}

/// The range, or one that differs from it in a number or two.
fn lie(mut range: Range, dice: &mut Dice) -> Range {
    while dice.one_in(2) {
        let delta = *dice.pick(&[1, u64::MAX, 64, 63, 4096, 1 << 63, 16]);
        match dice.below(4) {
            0 => range.key = range.key.wrapping_add(delta),
            1 => range.segment = range.segment.wrapping_add(delta as u32),
            2 => range.offset = range.offset.wrapping_add(delta),
            _ => range.len = range.len.wrapping_sub(delta),
        }
    }
    range
}

fn seeds() -> Vec<Vec<u8>> {
    let seeds: [&[u8]; 4] = [
        b"\0\0\0\x01\0\x10\0\x20\x03\0\x02\0\x04\x01\x05\0\0\x30\x03\0\x03\x01\x02\0\x02\0",
        b"\0\0\0\x02\x01\xff\x01\xff\x01\xff\x01\xff\x03\0\x03\x01\x03\x02\x02\0\x02\0\x01\xf0\x01\xff\x01\xff\x05\0\x05\0",
        b"\0\0\0\x03\0\0\0\x01\0\x40\x03\0\x03\x01\x03\x02\x02\x01\x02\0\0\x41\x01\x80\x03\x01\x05\0",
        b"\0\0\0\x04\x01\x40\x02\0\x01\x80\x02\0\x01\xff\x02\0\x01\x20\x02\0\x01\xff\x03\0\x02\0\x01\xff\x01\xff\x01\xff",
    ];
    seeds.iter().map(|seed| seed.to_vec()).collect()
}
