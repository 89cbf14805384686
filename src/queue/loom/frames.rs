//! The stream of frames: no side reads bytes that are still written, or overwrites bytes that are still read, and no
//! frame is lost where the reader sleeps on a doorbell.

use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};

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

/// The eventfd: a counter that is rung after every frame, and a read of it that waits.
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

/// A reader that checks before it waits, and rings that come before the check: loom reports a reader that sleeps for
/// ever.
#[test]
fn a_bell_after_every_frame_wakes_a_reader_that_checked_before() {
    model(PREEMPTIONS, || {
        let (mut producer, mut consumer) = stream();
        let bell = Arc::new(Bell::default());
        let writer = thread::spawn({
            let bell = Arc::clone(&bell);
            move || {
                for number in 0..2 {
                    assert!(producer.push(number as u32, &payload(number)).unwrap());
                    bell.ring();
                }
            }
        });
        let (mut bytes, mut seen) = (Vec::new(), 0);
        while seen < 2 {
            match consumer.pop(&mut bytes).unwrap() {
                Some(kind) => {
                    assert_eq!((kind as usize, &bytes), (seen, &payload(seen)));
                    seen += 1;
                }
                None => bell.wait(),
            }
        }
        writer.join().unwrap();
    });
}
