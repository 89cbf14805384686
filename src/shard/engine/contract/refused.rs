//! Tests of io_uring with a kernel that takes no operation.

use std::io::Write;
use std::time::Duration;

use super::super::*;
use super::rig::{Make, dead_uring, rig, uring};
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
