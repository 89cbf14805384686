//! A stream of frames in memory that two processes share: one producer, one consumer, no lock.
//!
//! Positions count bytes from the beginning and never wrap; the place of a byte is its position modulo the capacity. A
//! frame lies in one piece: where the rest up to the end is too short, a mark stands there and the frame begins at the
//! front. The producer publishes its position after the frame, the consumer after it has copied the frame. Neither
//! trusts the other's position: an impossible one is an error, after which nothing is read any more.

use super::sync::{AtomicU64, Ordering};

/// Bytes before the payload: its length and its kind, four bytes each.
pub const HEAD: usize = 8;
/// Length that means: the next frame begins at the front.
const SKIP: u32 = u32::MAX;

/// The memory of one stream.
pub trait Memory {
    /// The producer's position.
    fn head(&self) -> &AtomicU64;

    /// The consumer's position.
    fn tail(&self) -> &AtomicU64;

    /// In bytes; a power of two, 64 at least.
    fn capacity(&self) -> usize;

    /// Copies `bytes` to offset `at`; the range lies inside.
    fn write(&self, at: usize, bytes: &[u8]);

    /// Appends a copy of the `len` bytes from offset `at` on; the range lies inside.
    fn read(&self, at: usize, len: usize, bytes: &mut Vec<u8>);
}

/// The other side has published an impossible position or written an impossible length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side's position in a stream of frames cannot be")]
pub struct Corrupt;

/// Largest payload of a stream of `capacity` bytes: half of it holds a frame wherever it begins.
pub const fn payload_max(capacity: usize) -> usize {
    capacity / 2 - HEAD
}

fn frame_len(payload: usize) -> usize {
    (HEAD + payload).next_multiple_of(8)
}

/// The only writer of a stream.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    head: u64,
}

impl<M: Memory> Producer<M> {
    pub fn new(memory: M) -> Producer<M> {
        let head = memory.head().load(Ordering::Relaxed);
        Producer { memory, head }
    }

    /// The memory that frames are written to, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Appends a frame. False if there is no room now; for a payload over [`payload_max`] there never is.
    pub fn push(&mut self, kind: u32, payload: &[u8]) -> Result<bool, Corrupt> {
        self.push_with(kind, payload.len(), |place| place.write(payload))
    }

    /// The same with a payload of `len` bytes that `fill` writes in parts. What it leaves out has any value.
    pub fn push_with(
        &mut self,
        kind: u32,
        len: usize,
        fill: impl FnOnce(&mut Payload<'_, M>),
    ) -> Result<bool, Corrupt> {
        let capacity = self.memory.capacity();
        if len > payload_max(capacity) {
            return Ok(false);
        }
        let tail = self.memory.tail().load(Ordering::Acquire);
        let used = self.head.checked_sub(tail).filter(|used| *used <= capacity as u64).ok_or(Corrupt)? as usize;
        let (at, frame) = ((self.head as usize) & (capacity - 1), frame_len(len));
        let to_end = capacity - at;
        let skipped = if frame > to_end { to_end } else { 0 };
        if used + skipped + frame > capacity {
            return Ok(false);
        }
        if skipped > 0 {
            self.memory.write(at, &SKIP.to_le_bytes());
        }
        let at = if skipped > 0 { 0 } else { at };
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(len as u32).to_le_bytes());
        head[4..].copy_from_slice(&kind.to_le_bytes());
        self.memory.write(at, &head);
        fill(&mut Payload { memory: &self.memory, at: at + HEAD, left: len });
        self.head += (skipped + frame) as u64;
        self.memory.head().store(self.head, Ordering::Release);
        Ok(true)
    }

    /// Where the next frame begins at the earliest: behind all that were written.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Whether the other side has taken everything before a position, as it says.
    pub fn is_taken(&self, position: u64) -> bool {
        self.memory.tail().load(Ordering::Acquire) >= position
    }

    /// Whether a payload of `len` bytes has room now.
    pub fn has_room(&self, len: usize) -> Result<bool, Corrupt> {
        let capacity = self.memory.capacity();
        let tail = self.memory.tail().load(Ordering::Acquire);
        let used = self.head.checked_sub(tail).filter(|used| *used <= capacity as u64).ok_or(Corrupt)? as usize;
        let (to_end, frame) = (capacity - ((self.head as usize) & (capacity - 1)), frame_len(len));
        let skipped = if frame > to_end { to_end } else { 0 };
        Ok(len <= payload_max(capacity) && used + skipped + frame <= capacity)
    }
}

/// The payload of a frame that is being written.
#[derive(Debug)]
pub struct Payload<'a, M> {
    memory: &'a M,
    at: usize,
    left: usize,
}

impl<M: Memory> Payload<'_, M> {
    /// Writes the next bytes; those beyond the payload are left out.
    pub fn write(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(..self.left).unwrap_or(bytes);
        self.memory.write(self.at, bytes);
        self.at += bytes.len();
        self.left -= bytes.len();
    }
}

/// The only reader of a stream.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    tail: u64,
    head_bytes: Vec<u8>,
}

impl<M: Memory> Consumer<M> {
    pub fn new(memory: M) -> Consumer<M> {
        let tail = memory.tail().load(Ordering::Relaxed);
        Consumer { memory, tail, head_bytes: Vec::with_capacity(HEAD) }
    }

    /// True if a frame is there, or if the stream is corrupt.
    pub fn has_next(&self) -> bool {
        self.memory.head().load(Ordering::Acquire) != self.tail
    }

    /// Takes the next frame: its payload replaces the contents of `payload`, its kind is returned. `None` if there is
    /// none.
    pub fn pop(&mut self, payload: &mut Vec<u8>) -> Result<Option<u32>, Corrupt> {
        payload.clear();
        let capacity = self.memory.capacity();
        loop {
            let head = self.memory.head().load(Ordering::Acquire);
            let there = head.checked_sub(self.tail).filter(|there| *there <= capacity as u64).ok_or(Corrupt)? as usize;
            if there == 0 {
                return Ok(None);
            }
            let at = (self.tail as usize) & (capacity - 1);
            let to_end = capacity - at;
            self.head_bytes.clear();
            self.memory.read(at, HEAD.min(to_end), &mut self.head_bytes);
            let [len, kind] = *self.head_bytes.as_chunks::<4>().0 else { return Err(Corrupt) };
            let len = u32::from_le_bytes(len);
            if len == SKIP {
                // At the front a producer skips nothing. A worker that marks it again and again keeps nobody here.
                if to_end > there || at == 0 {
                    return Err(Corrupt);
                }
                self.tail += to_end as u64;
                self.memory.tail().store(self.tail, Ordering::Release);
                continue;
            }
            // No producer writes a longer one.
            if len as usize > payload_max(capacity) {
                return Err(Corrupt);
            }
            let frame = frame_len(len as usize);
            // Without memory for it this stream is given up, and not the process.
            if frame > there || frame > to_end || payload.try_reserve(len as usize).is_err() {
                return Err(Corrupt);
            }
            self.memory.read(at + HEAD, len as usize, payload);
            self.tail += frame as u64;
            self.memory.tail().store(self.tail, Ordering::Release);
            return Ok(Some(u32::from_le_bytes(kind)));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    struct Plain {
        head: AtomicU64,
        tail: AtomicU64,
        bytes: RefCell<Vec<u8>>,
    }

    impl Memory for Rc<Plain> {
        fn head(&self) -> &AtomicU64 {
            &self.head
        }

        fn tail(&self) -> &AtomicU64 {
            &self.tail
        }

        fn capacity(&self) -> usize {
            self.bytes.borrow().len()
        }

        fn write(&self, at: usize, bytes: &[u8]) {
            self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn read(&self, at: usize, len: usize, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(&self.bytes.borrow()[at..at + len]);
        }
    }

    fn stream(capacity: usize) -> (Rc<Plain>, Producer<Rc<Plain>>, Consumer<Rc<Plain>>) {
        let bytes = RefCell::new(vec![0; capacity]);
        let memory = Rc::new(Plain { head: AtomicU64::new(0), tail: AtomicU64::new(0), bytes });
        (Rc::clone(&memory), Producer::new(Rc::clone(&memory)), Consumer::new(memory))
    }

    #[test]
    fn frames_come_out_whole_and_in_order_around_the_end() {
        let (_, mut producer, mut consumer) = stream(128);
        let mut payload = Vec::new();
        let (mut sent, mut got) = (0u32, 0u32);
        // Lengths that meet the end of the memory in every way.
        while got < 2000 {
            while producer.push(sent, &vec![sent as u8; sent as usize % 57]).unwrap() {
                sent += 1;
            }
            for _ in 0..1 + got % 3 {
                let Some(kind) = consumer.pop(&mut payload).unwrap() else { break };
                assert_eq!((kind, payload.clone()), (got, vec![got as u8; got as usize % 57]));
                got += 1;
            }
        }
        assert!(!producer.push(0, &[0; 57]).unwrap(), "larger than any frame may be");
    }

    #[test]
    fn a_payload_in_parts_is_one_frame_and_goes_no_further() {
        let (memory, mut producer, mut consumer) = stream(64);
        assert!(producer.has_room(24).unwrap() && !producer.has_room(25).unwrap(), "the largest payload has 24 bytes");
        let filled =
            producer.push_with(9, 5, |place| [&b"ab"[..], b"", b"cdefgh"].iter().for_each(|part| place.write(part)));
        assert!(filled.unwrap() && memory.bytes.borrow()[HEAD + 5..16] == [0; 3], "nothing behind the payload");
        let mut payload = Vec::new();
        assert_eq!((consumer.pop(&mut payload), &payload[..]), (Ok(Some(9)), &b"abcde"[..]));
        assert!((0..3).all(|_| producer.push(1, &[7; 8]).unwrap()) && !producer.push(1, &[7; 16]).unwrap());
        assert!(producer.has_room(8).unwrap() && !producer.has_room(9).unwrap());
        let whole = producer.position();
        consumer.pop(&mut payload).unwrap();
        assert_eq!((producer.is_taken(whole - 32), producer.is_taken(whole - 31)), (true, false));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (memory, mut producer, mut consumer) = stream(64);
        assert!(producer.push(1, b"abc").unwrap());
        memory.bytes.borrow_mut()[0] = 20;
        assert_eq!(consumer.pop(&mut Vec::new()), Err(Corrupt), "longer than what was written");
        memory.bytes.borrow_mut()[0] = 25;
        memory.head.store(64, Ordering::Relaxed);
        assert_eq!(consumer.pop(&mut Vec::new()), Err(Corrupt), "longer than any frame may be");
        memory.head.store(16, Ordering::Relaxed);
        memory.bytes.borrow_mut()[..4].copy_from_slice(&SKIP.to_le_bytes());
        assert_eq!(consumer.pop(&mut Vec::new()), Err(Corrupt), "a mark in the middle of what was written");
        memory.head.store(64, Ordering::Relaxed);
        assert_eq!(consumer.pop(&mut Vec::new()), Err(Corrupt), "a mark at the front, which could be repeated");
        memory.head.store(1 << 40, Ordering::Relaxed);
        assert_eq!(consumer.pop(&mut Vec::new()), Err(Corrupt), "more than there is room for");
        memory.tail.store(17, Ordering::Relaxed);
        assert_eq!(producer.push(1, b""), Err(Corrupt), "read before it was written");
    }

    /// The other side writes arbitrary bytes anywhere: invalid frames are refused, and no byte outside is read (the
    /// memory of this test would panic).
    #[test]
    fn whatever_the_other_side_writes_is_read_or_refused() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let (mut read, mut refused) = (0, 0);
        let rounds = if cfg!(miri) { 100 } else { 20_000 };
        for _ in 0..rounds {
            let (memory, mut producer, mut consumer) = stream(64 << (next() % 3));
            let mut payload = Vec::new();
            for _ in 0..8 {
                let _ = producer.push(next() as u32, &vec![1; next() as usize % 40]);
                match next() % 8 {
                    0 => memory.head.store(next() % 300, Ordering::Relaxed),
                    1 => memory.head.store(next(), Ordering::Relaxed),
                    2 => memory.tail.store(next() % 300, Ordering::Relaxed),
                    3 | 4 => {
                        let mut bytes = memory.bytes.borrow_mut();
                        let at = (next() as usize % bytes.len()) & !3;
                        let word = [next() as u32 % 80, SKIP, next() as u32][next() as usize % 3];
                        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
                    }
                    _ => {}
                }
                match consumer.pop(&mut payload) {
                    Ok(Some(_)) => read += 1,
                    Ok(None) => {}
                    Err(Corrupt) => refused += 1,
                }
            }
        }
        assert!(read > rounds / 20 && refused > rounds / 20, "{read} frames read, {refused} refused");
    }
}
