//! Tests of io_uring alone: with a kernel that takes no operation, and of the order of its events.

use std::io::{Read, Write};
use std::time::Duration;

use super::super::*;
use super::rig::{HANG_NS, Make, dead_uring, rig, uring};
use crate::clock::{Clock, Monotonic};

/// A turn that cannot submit neither returns at once nor waits for what it has not submitted: here the read of the
/// wake-up is refused for ever, so that a turn that parks for ever would never end.
#[test]
fn a_turn_without_submissions_waits_for_a_moment() {
    let Some(mut rig) = rig(dead_uring as Make, Limits::default()) else { return };
    const TURNS: u32 = 20;
    let before_ns = Monotonic.now_ns();
    (0..TURNS).for_each(|_| rig.turn(Park::Forever));
    let waited = Duration::from_nanos(Monotonic.now_ns() - before_ns);
    assert!(waited >= Duration::from_millis(1) * TURNS, "{TURNS} turns in {waited:?}");
    rig.turn(Park::Never);
    assert!(rig.waiting.is_empty());
}

/// More operations than the queue takes lie behind it when the kernel begins to take some again. Only the last one of
/// them can complete, so a turn that waits before it has submitted them all waits for ever.
#[test]
fn what_lies_behind_the_queue_is_submitted_before_a_turn_waits() {
    const CONNECTIONS: usize = 50;
    // Each receive is tried when it is started, so that all of them are refused.
    let refusals = crate::engine::uring::Refusals::First(2 * CONNECTIONS as u32);
    let Some(mut rig) = refusals.during(|| rig(uring as Make, Limits::default())) else { return };
    let mut open: Vec<_> = (0..CONNECTIONS).map(|_| rig.unix_pair()).collect();
    open.iter().for_each(|(key, _)| rig.engine.receive(*key).unwrap());
    let (last, peer) = open.last_mut().unwrap();
    peer.write_all(b"x").unwrap();
    assert!(matches!(rig.received(*last), Received::Chunk(_)));
    open.iter().for_each(|(key, _)| rig.close(*key));
}

/// The kernel has not taken a quiet send when something comes to depend on its end: the turn that starts it after all
/// does not sleep over it.
#[test]
fn a_quiet_send_that_was_left_in_the_queue_can_be_awaited() {
    let refusals = crate::engine::uring::Refusals::First(1);
    let Some(mut rig) = refusals.during(|| rig(uring as Make, Limits::default())) else { return };
    let (key, _peer) = rig.unix_pair();
    let piece = rig.slice(b"late");
    rig.engine.send_quietly(key, vec![piece]).unwrap();
    rig.turn(Park::Never);
    assert!(rig.waiting.is_empty(), "it is not started: {:?}", rig.waiting);
    rig.engine.await_sent(key);
    assert_eq!(rig.sent_before_the_end_of_a_park(key).0.unwrap(), 4);
    rig.close(key);
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

/// A turn that cannot start an awaited quiet send does not return at once: the shard would spin.
#[test]
fn an_awaited_quiet_send_that_is_refused_is_tried_again_after_a_moment() {
    let Some(mut rig) = rig(dead_uring as Make, Limits::default()) else { return };
    const TURNS: u32 = 20;
    let (key, _peer) = rig.unix_pair();
    rig.engine.send_quietly(key, vec![Slice::from_static(b"never")]).unwrap();
    rig.engine.await_sent(key);
    let before_ns = Monotonic.now_ns();
    (0..TURNS).for_each(|_| rig.turn(Park::Forever));
    let waited = Duration::from_nanos(Monotonic.now_ns() - before_ns);
    assert!(waited >= Duration::from_millis(1) * TURNS, "{TURNS} turns in {waited:?}");
}

/// Nothing wakes for the end of a quiet send. The tests of the contract would pass over an engine that reports it at
/// once, and so waits for each answer in a call of its own.
#[test]
fn the_end_of_a_quiet_send_does_not_end_a_park() {
    let Some(mut rig) = rig(uring as Make, Limits::default()) else { return };
    let (key, mut peer) = rig.unix_pair();
    for _ in 0..5 {
        let piece = rig.slice(b"answer");
        rig.engine.send_quietly(key, vec![piece]).unwrap();
        let began_ns = Monotonic.now_ns();
        while rig.waiting.is_empty() {
            rig.turn(Park::Until(began_ns + 20_000_000));
        }
        assert!(Monotonic.now_ns() >= began_ns + 10_000_000, "{:?}", rig.waiting);
        assert_eq!(rig.sent(key).0.unwrap(), 6);
        peer.read_exact(&mut [0; 6]).unwrap();
    }
    rig.close(key);
}

/// The time of a send is not taken for that of a wait, however the kernel did both.
#[test]
fn a_call_that_sends_reports_less_of_a_wait_than_it_took() {
    let Some(mut rig) = rig(uring as Make, Limits::default()) else { return };
    let (key, _peer) = rig.unix_pair();
    let mut wait = |sends: bool| {
        loop {
            if sends {
                rig.engine.send_quietly(key, vec![Slice::from_static(b"answer")]).unwrap();
            }
            let mut events = Vec::new();
            // Where this thread loses its core for so long, the time is over before the turn.
            let until_ns = Monotonic.now_ns() + 5_000_000;
            if let Some(waited) = rig.engine.turn(Park::Until(until_ns), &mut events).unwrap() {
                return waited;
            }
        }
    };
    for _ in 0..3 {
        let waited = wait(false);
        assert_eq!(waited.least_ns, waited.most_ns, "it has only waited");
        let waited = wait(true);
        assert!(waited.least_ns < waited.most_ns, "{waited:?}");
    }
}

/// What a quiet send has kept is free before the next requests are read.
#[test]
fn the_ends_of_quiet_sends_come_first() {
    let Some(mut rig) = rig(uring as Make, Limits::default()) else { return };
    let (key, mut peer) = rig.unix_pair();
    for _ in 0..20 {
        peer.write_all(b"next").unwrap();
        rig.engine.receive(key).unwrap();
        let piece = rig.slice(b"answer");
        rig.engine.send_quietly(key, vec![piece]).unwrap();
        let mut events = Vec::new();
        while !events.iter().any(|event| matches!(event, Event::Received { .. })) {
            rig.engine.turn(Park::Until(Monotonic.now_ns() + HANG_NS), &mut events).unwrap();
        }
        assert!(matches!(events[0], Event::Sent { .. }), "{events:?}");
    }
    rig.close(key);
}

/// A small piece of a large block would keep all of it while the shard sleeps, so its end is reported.
#[test]
fn a_send_that_keeps_much_memory_is_not_quiet() {
    let Some(mut rig) = rig(uring as Make, Limits::default()) else { return };
    let (key, _peer) = rig.unix_pair();
    let large = rig.slice(&[7; 100_000]);
    rig.engine.send_quietly(key, vec![large.window(0..10)]).unwrap();
    assert_eq!(rig.sent_before_the_end_of_a_park(key).0.unwrap(), 10);
    rig.close(key);
}
