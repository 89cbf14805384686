//! The stream of frames: no side reads bytes that are still written, or overwrites bytes that are still read, and no
//! frame is lost where the reader sleeps on a doorbell.

use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Condvar, Mutex};

use super::super::bell::{FRAMES as FRAMES_EVENT, awake, is_due, want};
use super::super::frames::{Consumer, Memory, Producer};
use super::*;

const CAPACITY: usize = 64;
const WORD: usize = 8;

/// Memory in words, each of which loom checks.
struct Stream {
    head: AtomicU64,
    tail: AtomicU64,
    words: Vec<UnsafeCell<[u8; WORD]>>,
}

// SAFETY: this is what the test proves; loom fails it where two threads access a word at a time.
unsafe impl Sync for Stream {}

impl Memory for Arc<Stream> {
    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (place, byte) in (at..).zip(bytes) {
            // SAFETY: loom fails the test unless the access is exclusive.
            self.words[place / WORD].with_mut(|word| unsafe { (*word)[place % WORD] = *byte });
        }
    }

    fn read(&self, at: usize, len: usize, bytes: &mut Vec<u8>) {
        for place in at..at + len {
            // SAFETY: loom fails the test if a thread writes meanwhile; other readers are allowed.
            bytes.push(self.words[place / WORD].with(|word| unsafe { (*word)[place % WORD] }));
        }
    }
}

fn stream() -> (Producer<Arc<Stream>>, Consumer<Arc<Stream>>) {
    let words = (0..CAPACITY / WORD).map(|_| UnsafeCell::new([0; WORD])).collect();
    let stream = Arc::new(Stream { head: AtomicU64::new(0), tail: AtomicU64::new(0), words });
    (Producer::new(Arc::clone(&stream)), Consumer::new(stream))
}

/// Frames of 24, 32, 24 and 16 bytes in 64: the third meets the end and begins at the front, if there is room by then.
const LENGTHS: [usize; 4] = [16, 24, 10, 3];

fn payload(number: usize) -> Vec<u8> {
    vec![number as u8 + 1; LENGTHS[number % LENGTHS.len()]]
}

#[test]
fn frames_are_read_whole_and_in_order_while_they_are_written() {
    model(PREEMPTIONS, || {
        let (mut producer, mut consumer) = stream();
        let writer = thread::spawn(move || {
            let mut number = 0;
            while number < LENGTHS.len() && producer.push(number as u32, &payload(number)).unwrap() {
                number += 1;
            }
            number
        });
        let (mut bytes, mut seen) = (Vec::new(), 0);
        for _ in 0..2 {
            if let Some(kind) = consumer.pop(&mut bytes).unwrap() {
                assert_eq!((kind as usize, &bytes), (seen, &payload(seen)));
                seen += 1;
            }
        }
        let written = writer.join().unwrap();
        while let Some(kind) = consumer.pop(&mut bytes).unwrap() {
            assert_eq!((kind as usize, &bytes), (seen, &payload(seen)));
            seen += 1;
        }
        // What does not fit is refused, not lost; two of them always fit.
        assert_eq!(seen, written);
        assert!(written >= 2);
    });
}

/// The eventfd: a counter of rings, and a read of it that waits.
#[derive(Default)]
struct Bell {
    count: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.count.lock().unwrap() += 1;
        self.rung.notify_one();
    }

    fn wait(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.rung.wait(count).unwrap();
        }
        *count = 0;
    }
}

/// A reader that asks for the bell and checks before it waits: loom reports a reader that sleeps for ever.
#[test]
fn a_bell_that_is_rung_for_a_sleeper_alone_wakes_a_reader_that_checked_before() {
    model(PREEMPTIONS, || {
        let (mut producer, mut consumer) = stream();
        let shared = Arc::new((AtomicU64::new(0), Bell::default()));
        let writer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (word, bell) = &*shared;
                for number in 0..2 {
                    assert!(producer.push(number as u32, &payload(number)).unwrap());
                    if is_due(word, FRAMES_EVENT) {
                        bell.ring();
                    }
                }
            }
        });
        let (word, bell) = &*shared;
        let (mut bytes, mut seen) = (Vec::new(), 0);
        while seen < 2 {
            match consumer.pop(&mut bytes).unwrap() {
                Some(kind) => {
                    assert_eq!((kind as usize, &bytes), (seen, &payload(seen)));
                    seen += 1;
                }
                None => {
                    want(word, FRAMES_EVENT);
                    if !consumer.has_next() {
                        bell.wait();
                    }
                    awake(word);
                }
            }
        }
        writer.join().unwrap();
    });
}

/// The side in Python: its accesses to positions are plain loads and stores, and `IS_FENCED` places the fence between
/// these and its accesses to bytes, as `backend/python/worker/nereid_python/wire.py` does. Frames have 16 bytes.
struct Unordered<const IS_FENCED: bool> {
    stream: Arc<Stream>,
    position: u64,
}

const FRAME: usize = 16;

impl<const IS_FENCED: bool> Unordered<IS_FENCED> {
    fn new(stream: &Arc<Stream>) -> Unordered<IS_FENCED> {
        Unordered { stream: Arc::clone(stream), position: 0 }
    }

    fn fence() {
        if IS_FENCED {
            fence(Ordering::SeqCst);
        }
    }

    fn place(&self) -> usize {
        self.position as usize % CAPACITY
    }

    /// `_Output.push`, which is only called where there may be room.
    fn push(&mut self, kind: u32) -> bool {
        if self.position - self.stream.tail.load(Ordering::Relaxed) > (CAPACITY - FRAME) as u64 {
            return false;
        }
        Self::fence();
        let payload = [kind as u8; FRAME - 8];
        let head = [(payload.len() as u32).to_le_bytes(), kind.to_le_bytes()].concat();
        self.stream.write(self.place(), &[&head[..], &payload].concat());
        Self::fence();
        self.position += FRAME as u64;
        self.stream.head.store(self.position, Ordering::Relaxed);
        true
    }

    /// `Link.receive` without its sleep.
    fn pop(&mut self) -> Option<u32> {
        if self.stream.head.load(Ordering::Relaxed) == self.position {
            return None;
        }
        Self::fence();
        let mut bytes = Vec::new();
        self.stream.read(self.place(), FRAME, &mut bytes);
        let kind = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        assert!(bytes[8..].iter().all(|byte| *byte == kind as u8), "{bytes:?}");
        Self::fence();
        self.position += FRAME as u64;
        self.stream.tail.store(self.position, Ordering::Relaxed);
        Some(kind)
    }
}

/// Frames that meet the end of the memory: one more than it holds.
const FRAMES: u32 = (CAPACITY / FRAME) as u32 + 1;

/// The server writes, the worker reads without a bell.
fn worker_reads<const IS_FENCED: bool>() {
    let (mut producer, _) = stream();
    let mut worker = Unordered::<IS_FENCED>::new(producer.memory());
    let server = thread::spawn(move || {
        let mut sent = 0;
        while sent < FRAMES && producer.push(sent, &[sent as u8; FRAME - 8]).unwrap() {
            sent += 1;
        }
        sent
    });
    let mut seen = 0;
    for _ in 0..2 {
        if let Some(kind) = worker.pop() {
            assert_eq!(kind, seen);
            seen += 1;
        }
    }
    let sent = server.join().unwrap();
    while let Some(kind) = worker.pop() {
        assert_eq!(kind, seen);
        seen += 1;
    }
    assert_eq!(seen, sent);
}

/// The worker writes, the server reads without a bell.
fn worker_writes<const IS_FENCED: bool>() {
    let (producer, mut consumer) = stream();
    let mut worker = Unordered::<IS_FENCED>::new(producer.memory());
    let process = thread::spawn(move || {
        let mut sent = 0;
        while sent < FRAMES && worker.push(sent) {
            sent += 1;
        }
        sent
    });
    let (mut bytes, mut seen) = (Vec::new(), 0);
    for _ in 0..2 {
        if let Some(kind) = consumer.pop(&mut bytes).unwrap() {
            assert_eq!((kind, &bytes[..]), (seen, &[seen as u8; FRAME - 8][..]));
            seen += 1;
        }
    }
    let sent = process.join().unwrap();
    while let Some(kind) = consumer.pop(&mut bytes).unwrap() {
        assert_eq!(kind, seen);
        seen += 1;
    }
    assert_eq!(seen, sent);
}

#[test]
fn a_worker_with_fences_reads_frames_without_a_bell() {
    model(PREEMPTIONS, worker_reads::<true>);
}

#[test]
fn a_worker_with_fences_writes_frames_that_are_read_without_a_bell() {
    model(PREEMPTIONS, worker_writes::<true>);
}

/// The models above can fail: loom finds the access to bytes that are still written.
#[test]
fn without_fences_a_worker_and_the_server_touch_the_same_bytes() {
    for run in [worker_reads::<false>, worker_writes::<false>] {
        let outcome = std::panic::catch_unwind(|| model(PREEMPTIONS, run));
        assert!(outcome.is_err(), "a fence is missing, and nothing is found");
    }
}
