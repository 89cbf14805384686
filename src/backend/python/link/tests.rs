//! Bells: they are rung for readers that sleep, once for a burst, whatever a worker writes to the bell words.

use super::*;
use crate::python::message::{INPUT_BELL, SLOT_BELL, SLOT_RINGS};
use crate::python::process::wait_readable;

const BOUNDS: Bounds = Bounds { first_bytes: 4096, growth_bytes: 4096, max_bytes: 1 << 20 };

/// The link, and the worker's end of its socket, which has to stay open.
fn link() -> (Link, OwnedFd) {
    Link::new(BOUNDS, 0, false, Default::default()).unwrap()
}

/// How often it was rung since the last call.
fn rings(bell: &Bell) -> u64 {
    let mut count = [0; 8];
    if wait_readable(&[bell.as_fd()], Some(0)).unwrap() == [true] {
        rustix::io::read(bell, &mut count).unwrap();
    }
    u64::from_ne_bytes(count)
}

/// The worker's end of one of its streams to the server.
fn stream(link: &Link, words: usize, number: usize) -> Producer<StreamLocation> {
    Producer::new(StreamLocation {
        segment: Arc::clone(&link.control),
        words,
        at: message::STREAMS + number * message::STREAM_BYTES,
        capacity: message::STREAM_BYTES,
    })
}

#[test]
fn a_worker_that_is_awake_is_not_rung_for_and_one_that_sleeps_once() {
    let (link, _socket) = link();
    let send = || {
        link.push(200, b"message").unwrap();
        link.ring();
    };
    (0..5).for_each(|_| send());
    assert_eq!(rings(&link.input_bell), 0);
    bell::want(link.control.word(INPUT_BELL), bell::FRAMES);
    (0..5).for_each(|_| send());
    assert_eq!(rings(&link.input_bell), 1);
    // One that always asks for it gets one for each message, and no more.
    (0..5).for_each(|_| {
        bell::want(link.control.word(INPUT_BELL), u64::MAX);
        send();
    });
    assert_eq!(rings(&link.input_bell), 5);
}

#[test]
fn a_thread_of_the_server_sleeps_only_where_no_message_is() {
    let (link, _socket) = link();
    let bell_word = |at: usize| link.control.word(at).load(Ordering::Relaxed);
    assert!(link.park() && link.park_aside());
    assert_eq!((bell_word(message::OUTPUT_BELL), bell_word(message::ASIDE_BELL)), (bell::FRAMES, bell::FRAMES));
    link.unpark();
    assert_eq!((bell_word(message::OUTPUT_BELL), bell_word(message::ASIDE_BELL)), (0, bell::FRAMES));
    link.unpark_aside();
    assert_eq!(bell_word(message::ASIDE_BELL), 0);
    assert!(stream(&link, message::OUTPUT_WORDS, 1).push(104, b"result").unwrap());
    assert!(!link.park() && link.park_aside());
    assert!(stream(&link, message::ASIDE_WORDS, 2).push(32, b"message").unwrap());
    assert!(!link.park_aside());
    assert_eq!(link.receive(&mut Vec::new()), Ok(Some(104)));
    assert!(link.park());
}

#[test]
fn an_answer_rings_where_the_worker_waits_for_it() {
    let (link, _socket) = link();
    (0..2).for_each(|_| link.add_slots().unwrap());
    let banks = lock(&link.banks).clone();
    let answer = |slot: u32| link.answer(slot, message::ANSWER, b"answer").unwrap();
    let heard = || -> Vec<(usize, u64)> {
        let bells = banks.iter().flat_map(|bank| &bank.bells).map(rings).enumerate();
        bells.filter(|(_, count)| *count > 0).collect()
    };
    answer(3);
    assert_eq!(heard(), [], "its reader is awake");
    bell::want(banks[0].word(3, SLOT_BELL), bell::FRAMES);
    (0..3).for_each(|_| answer(3));
    assert_eq!(heard(), [(3, 1)]);
    // An event loop waits at slot 3 for slots 5 and 70. A word of their own has no meaning then.
    for (bank, number) in [(0, 5), (1, 6)] {
        banks[bank].word(number, SLOT_RINGS).store(3 + 1, Ordering::Relaxed);
        bell::want(banks[bank].word(number, SLOT_BELL), bell::FRAMES);
    }
    bell::want(banks[0].word(3, SLOT_BELL), bell::FRAMES);
    [5, 70, 5, 70].into_iter().for_each(answer);
    assert_eq!(heard(), [(3, 1)]);
    bell::want(banks[0].word(3, SLOT_BELL), bell::FRAMES);
    answer(70);
    assert_eq!(heard(), [(3, 1)]);
}

#[test]
fn a_worker_that_names_no_slot_is_not_woken() {
    let (link, _socket) = link();
    link.add_slots().unwrap();
    let bank = Arc::clone(&lock(&link.banks)[0]);
    bell::want(bank.word(0, SLOT_BELL), bell::FRAMES);
    for named in [message::SLOTS_PER_BANK as u64 + 1, 1 << 32, u64::MAX] {
        bank.word(0, SLOT_RINGS).store(named, Ordering::Relaxed);
        assert!(link.answer(0, message::ANSWER, b"answer").is_ok());
    }
    assert_eq!(bank.bells.iter().map(rings).sum::<u64>(), 0);
    bank.word(0, SLOT_RINGS).store(0, Ordering::Relaxed);
    assert!(link.answer(0, message::ANSWER, b"answer").is_ok());
    assert_eq!(rings(&bank.bells[0]), 1);
}
