//! The bell word of a shared-memory ring: a side that sleeps is woken for every event that it wants.

use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};

use super::super::bell::{FRAMES, ROOM, awake, is_due, want};
use super::*;

/// The socket of one side: bytes that wait in it, and its sleeping reader.
#[derive(Default)]
struct Socket {
    bytes: Mutex<usize>,
    readable: Condvar,
}

impl Socket {
    fn ring(&self) {
        *self.bytes.lock().unwrap() += 1;
        self.readable.notify_one();
    }

    fn wait(&self) {
        let mut bytes = self.bytes.lock().unwrap();
        while *bytes == 0 {
            bytes = self.readable.wait(bytes).unwrap();
        }
        *bytes = 0;
    }
}

/// One direction: the positions of a ring with room for one frame, the word and the socket of each side.
struct Ring {
    head: AtomicU64,
    tail: AtomicU64,
    consumer_word: AtomicU64,
    producer_word: AtomicU64,
    consumer_socket: Socket,
    producer_socket: Socket,
}

const FRAMES_SENT: u64 = 2;

/// Both sides sleep whenever they have nothing to do: the consumer for frames, the producer for room. The model ends
/// only if no wake-up is lost.
#[test]
fn no_side_sleeps_for_ever() {
    model(PREEMPTIONS, || {
        let ring = Arc::new(Ring {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            consumer_word: AtomicU64::new(0),
            producer_word: AtomicU64::new(0),
            consumer_socket: Socket::default(),
            producer_socket: Socket::default(),
        });
        let producer = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                let mut head = 0;
                while head < FRAMES_SENT {
                    if head - ring.tail.load(Ordering::Acquire) < 1 {
                        head += 1;
                        ring.head.store(head, Ordering::Release);
                        if is_due(&ring.consumer_word, FRAMES) {
                            ring.consumer_socket.ring();
                        }
                        continue;
                    }
                    want(&ring.producer_word, ROOM);
                    if head - ring.tail.load(Ordering::Acquire) == 1 {
                        ring.producer_socket.wait();
                    }
                    awake(&ring.producer_word);
                }
            }
        });
        let mut tail = 0;
        while tail < FRAMES_SENT {
            if ring.head.load(Ordering::Acquire) != tail {
                tail += 1;
                ring.tail.store(tail, Ordering::Release);
                if is_due(&ring.producer_word, ROOM) {
                    ring.producer_socket.ring();
                }
                continue;
            }
            want(&ring.consumer_word, FRAMES);
            if ring.head.load(Ordering::Acquire) == tail {
                ring.consumer_socket.wait();
            }
            awake(&ring.consumer_word);
        }
        producer.join().unwrap();
    });
}
