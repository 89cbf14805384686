//! The bell word of a shared-memory ring: a side that sleeps is woken for every event that it wants.

use loom::sync::atomic::{AtomicU64, fence};
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

/// The writer is a worker in Python (`backend/python/worker/nereid_python/wire.py`, `_Output.ring`), which has plain
/// loads and stores, and a fence: it writes 0 in place of an exchange, and may overwrite a later wish of the reader.
/// Nothing is lost by that, because it rings in any case.
#[test]
fn a_writer_without_exchanges_wakes_a_reader_that_sleeps() {
    model(PREEMPTIONS, || {
        let (head, word, socket) = (AtomicU64::new(0), AtomicU64::new(0), Socket::default());
        let shared = Arc::new((head, word, socket));
        let writer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (head, word, socket) = &*shared;
                for sent in 1..=FRAMES_SENT {
                    head.store(sent, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    if word.load(Ordering::Relaxed) != 0 {
                        word.store(0, Ordering::Relaxed);
                        socket.ring();
                    }
                }
            }
        });
        let (head, word, socket) = &*shared;
        let mut tail = 0;
        while tail < FRAMES_SENT {
            let seen = head.load(Ordering::Acquire);
            if seen != tail {
                tail = seen;
                continue;
            }
            want(word, FRAMES);
            if head.load(Ordering::Acquire) == tail {
                socket.wait();
            }
            awake(word);
        }
        writer.join().unwrap();
    });
}

/// One bell for several streams: an event loop of a worker, whose calls are answered by several threads of the server
/// (`backend/python/link.rs`, `Link::ring_for`; `nereid_python/calls.py`, `_LoopBell`). The loop asks for the bell
/// while its callback does not run.
#[test]
fn a_bell_of_several_streams_rings_for_each_of_them() {
    model(PREEMPTIONS, || {
        let answers = [AtomicU64::new(0), AtomicU64::new(0)];
        let shared = Arc::new((answers, AtomicU64::new(0), Socket::default()));
        want(&shared.1, FRAMES);
        let servers: Vec<_> = (0..2)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (answers, word, socket) = &*shared;
                    answers[number].store(1, Ordering::Release);
                    if is_due(word, FRAMES) {
                        socket.ring();
                    }
                })
            })
            .collect();
        let (answers, word, socket) = &*shared;
        let mut taken = [false; 2];
        while taken.contains(&false) {
            let mut take = || {
                let mut has_found = false;
                for (answer, is_taken) in answers.iter().zip(&mut taken) {
                    if !*is_taken && answer.load(Ordering::Acquire) == 1 {
                        (*is_taken, has_found) = (true, true);
                    }
                }
                has_found
            };
            socket.wait();
            take();
            loop {
                want(word, FRAMES);
                if !take() {
                    break;
                }
                awake(word);
            }
        }
        servers.into_iter().for_each(|server| server.join().unwrap());
    });
}

/// A reader that moves from one bell to another between two answers: the rest of a decoupled call, whose first answer
/// an event loop awaited, is waited for by a thread at the bell of the call's own slot (`backend/python/link.rs`,
/// `Link::ring_for`; `nereid_python/calls.py`, `Call::leave_loop`). The loop keeps asking for its own bell, which the
/// server may therefore ring for the second answer, in vain if the thread has found that by itself.
#[test]
fn a_reader_that_moves_to_its_own_bell_is_rung_for_there() {
    struct Slot {
        head: AtomicU64,
        /// 1: the bell of the loop is rung for its answers; 0: its own.
        rings: AtomicU64,
        words: [AtomicU64; 2],
        sockets: [Socket; 2],
    }
    model(PREEMPTIONS, || {
        let slot = Arc::new(Slot {
            head: AtomicU64::new(0),
            rings: AtomicU64::new(1),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            sockets: [Socket::default(), Socket::default()],
        });
        want(&slot.words[1], FRAMES);
        let server = thread::spawn({
            let slot = Arc::clone(&slot);
            move || {
                for sent in 1..=FRAMES_SENT {
                    slot.head.store(sent, Ordering::Release);
                    fence(Ordering::SeqCst);
                    let named = slot.rings.load(Ordering::Relaxed) as usize;
                    if is_due(&slot.words[named], FRAMES) {
                        slot.sockets[named].ring();
                    }
                }
            }
        });
        // The loop takes the first answer, and asks for its bell again.
        slot.sockets[1].wait();
        assert!(slot.head.load(Ordering::Acquire) >= 1);
        slot.rings.store(0, Ordering::Relaxed);
        want(&slot.words[1], FRAMES);
        // The thread.
        while slot.head.load(Ordering::Acquire) != FRAMES_SENT {
            want(&slot.words[0], FRAMES);
            if slot.head.load(Ordering::Acquire) != FRAMES_SENT {
                slot.sockets[0].wait();
            }
            awake(&slot.words[0]);
        }
        server.join().unwrap();
    });
}
