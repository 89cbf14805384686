//! The stream of frames between a worker and the server.
//!
//! With honest sides the frames that were accepted come out, whole and in order. Where the other side overwrites
//! positions and bytes at any moment, each call ends after a few reads, reads inside the memory, and takes a frame that
//! may be one, or reports that the stream is corrupt.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use nereid_queue::frames::{Consumer, Corrupt, HEAD, Memory, Producer, payload_max};

use crate::{Dice, Target, split};

pub const TARGET: Target =
    Target { name: "frames", run, runs: 60_000, words: &["\0\0\0\0", "\x01\x10\x02", "\x05\x00\x06\x00"], seeds };

/// Reads of the memory that one frame may take: two heads, of which one is the mark before the end, and the payload.
const READS_MAX: usize = 3;

/// One side's view of the memory.
#[derive(Clone)]
struct View(Rc<Shared>);

struct Shared {
    head: AtomicU64,
    tail: AtomicU64,
    bytes: RefCell<Vec<u8>>,
    reads: Cell<usize>,
    /// What the other side does while its memory is read.
    lies: RefCell<Option<Dice>>,
}

impl Shared {
    fn with_capacity(capacity: usize) -> View {
        View(Rc::new(Shared {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            bytes: RefCell::new(vec![0; capacity]),
            reads: Cell::new(0),
            lies: RefCell::new(None),
        }))
    }

    fn lie(&self) {
        let Some(dice) = &mut *self.lies.borrow_mut() else { return };
        let mut bytes = self.bytes.borrow_mut();
        let capacity = bytes.len();
        // Mostly positions that could be.
        let tail = self.tail.load(Ordering::Relaxed);
        match dice.below(8) {
            // As far as it may be behind the mark that is read now.
            6 | 7 => {
                let front = (tail / capacity as u64).wrapping_add(1).wrapping_mul(capacity as u64);
                self.head.store(front.wrapping_add(capacity as u64), Ordering::Relaxed);
            }
            0 => self.head.store(tail.wrapping_add(capacity as u64), Ordering::Relaxed),
            1 => self.head.store(tail.wrapping_add(dice.below(capacity + 1) as u64), Ordering::Relaxed),
            2 => self.head.store(dice.number(), Ordering::Relaxed),
            3 => bytes.fill(0xff),
            4 => {
                let at = dice.below(capacity) & !3;
                let word = *dice.pick(&[u32::MAX, 0, 1, 24, capacity as u32 / 2 - HEAD as u32, capacity as u32]);
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            _ => {}
        }
    }
}

impl Memory for View {
    fn head(&self) -> &AtomicU64 {
        &self.0.head
    }

    fn tail(&self) -> &AtomicU64 {
        &self.0.tail
    }

    fn capacity(&self) -> usize {
        self.0.bytes.borrow().len()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.0.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, at: usize, len: usize, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.0.bytes.borrow()[at..at + len]);
        self.0.reads.set(self.0.reads.get() + 1);
        self.0.lie();
    }
}

fn run(data: &[u8]) -> bool {
    let (mut dice, mut steps) = split(data);
    let capacity = *dice.pick(&[64, 128, 1024]);
    let memory = Shared::with_capacity(capacity);
    let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory.clone()));
    let memory = &memory.0;
    let mut sent = VecDeque::new();
    let (mut is_honest, mut received) = (true, 0);
    let mut payload = Vec::new();
    while let Some((&step, rest)) = steps.split_first() {
        steps = rest;
        match step % 8 {
            // A frame of the next bytes, one of any length, and the frames that are there.
            0..3 => {
                let (&len, behind) = steps.split_first().unwrap_or((&0, &[]));
                let (bytes, behind) = behind.split_at(behind.len().min(usize::from(len)));
                let kind = dice.number() as u32;
                let pushed = producer.push(kind, bytes);
                assert!(!is_honest || pushed.is_ok(), "an honest stream is corrupt");
                assert!(bytes.len() <= payload_max(capacity) || pushed != Ok(true), "{} bytes", bytes.len());
                if pushed == Ok(true) {
                    sent.push_back((kind, bytes.to_vec()));
                }
                steps = behind;
            }
            3 => {
                let bytes = vec![step; dice.below(payload_max(capacity) + 2)];
                if let Ok(true) = producer.push(7, &bytes) {
                    sent.push_back((7, bytes));
                }
            }
            4..7 => {
                memory.reads.set(0);
                let popped = consumer.pop(&mut payload);
                assert!(memory.reads.get() <= READS_MAX, "{} reads for one frame", memory.reads.get());
                match popped {
                    Ok(Some(kind)) => {
                        assert!(payload.len() <= capacity - HEAD, "{} bytes of {capacity}", payload.len());
                        received += 1;
                        if is_honest {
                            assert_eq!(Some((kind, payload.clone())), sent.pop_front());
                        }
                    }
                    Ok(None) => assert!(!is_honest || sent.is_empty(), "{} frames were lost", sent.len()),
                    Err(Corrupt) => assert!(!is_honest, "an honest stream is corrupt"),
                }
            }
            _ => {
                // From now on the other side does what it wants.
                is_honest = false;
                *memory.lies.borrow_mut() = Some(dice.clone());
                memory.lie();
                memory.tail.store(dice.number() >> dice.below(64), Ordering::Relaxed);
            }
        }
    }
    received > 0
}

fn seeds() -> Vec<Vec<u8>> {
    let seeds: [&[u8]; 5] = [
        b"\0\0\0\x01\0\x05hello\x04\x01\x03abc\x05\x06",
        b"\0\0\0\x02\0\x18aaaaaaaaaaaaaaaaaaaaaaaa\x04\0\x18bbbbbbbbbbbbbbbbbbbbbbbb\x04\0\x10cccccccccccccccc\x04\x04\x03\x03\x03\x04\x04\x04",
        b"\0\0\0\x03\x03\x04\x03\x04\x03\x04\x03\x04\x03\x04\x03\x04\x03\x04\x03\x04\x03\x04\x03\x04\x03\x04",
        b"\0\0\0\x04\0\x05hello\x07\x04\x04\x04\0\x02xy\x07\x04\x04",
        b"\0\0\0\x05\x07\x04\x07\x04\x07\x04\x03\x07\x04\x04\x04\x04",
    ];
    seeds.iter().map(|seed| seed.to_vec()).collect()
}
