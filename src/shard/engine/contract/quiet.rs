//! Tests of sends whose success nothing waits for.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use super::super::*;
use super::rig::{HANG_NS, Make, Rig, bytes, rig};
use crate::clock::{Clock, Monotonic};

/// The end of a quiet send, which a turn that parks need not report.
fn sent(rig: &mut Rig, of: Key) -> (io::Result<usize>, Vec<Slice>) {
    let deadline = Monotonic.now_ns() + HANG_NS;
    while !rig.waiting.iter().any(|event| matches!(event, Event::Sent { key, .. } if *key == of)) {
        assert!(Monotonic.now_ns() < deadline, "it never comes; waiting: {:?}", rig.waiting);
        rig.turn(Park::Never);
    }
    rig.sent(of)
}

/// Many connections, so that the ring's queues overflow: each gets its bytes once and one event, in every round.
pub(super) fn a_quiet_send_reaches_its_peer_and_is_reported(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let mut peers: Vec<(Key, UnixStream)> = (0..30).map(|_| rig.unix_pair()).collect();
    for round in 0..5 {
        let message = |i: usize| bytes(1 + (i * 7919 + round * 104_729) % 9_000, i);
        for (i, (key, _)) in peers.iter().enumerate() {
            let whole = message(i);
            let (head, tail) = whole.split_at(whole.len() / 2);
            // One piece, or several.
            let pieces = if i % 2 == 0 { vec![rig.slice(&whole)] } else { vec![rig.slice(head), rig.slice(tail)] };
            rig.engine.send_quietly(*key, pieces).unwrap();
            assert!(matches!(rig.engine.send_quietly(*key, vec![Slice::from_static(b"x")]), Err(Refused::Busy)));
            assert!(matches!(rig.engine.send(*key, vec![Slice::from_static(b"x")]), Err(Refused::Busy)));
        }
        for (i, (key, peer)) in peers.iter_mut().enumerate() {
            let (result, pieces) = sent(&mut rig, *key);
            assert_eq!((result.unwrap(), pieces.len()), (message(i).len(), 0));
            let mut back = vec![0; message(i).len()];
            peer.read_exact(&mut back).unwrap();
            assert_eq!(back, message(i));
        }
        assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
        assert_eq!(rig.pool.bytes_in_use(), 0, "what was sent is let go");
    }
    let (key, _) = peers[0];
    assert!(matches!(rig.engine.send_quietly(key, vec![]), Err(Refused::Window)));
    peers.iter().for_each(|(key, _)| rig.close(*key));
}

/// The peer answers what it was sent: a turn that parks has submitted the send, and its report comes with the answer.
pub(super) fn a_quiet_send_alone_may_stay_unreported_while_a_turn_parks(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let (key, mut peer) = rig.unix_pair();
    let echo = std::thread::spawn(move || {
        let mut message = [0; 4];
        while peer.read_exact(&mut message).is_ok() {
            peer.write_all(&message).unwrap();
        }
    });
    for round in 0..200_u32 {
        let message = round.to_ne_bytes();
        let piece = rig.slice(&message);
        rig.engine.send_quietly(key, vec![piece]).unwrap();
        assert_eq!(rig.receive_exactly(key, 4), message);
        assert_eq!(sent(&mut rig, key).0.unwrap(), 4);
    }
    assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
    rig.close(key);
    echo.join().unwrap();
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

/// Something comes to depend on the ends of quiet sends, before or after a turn that may have started them.
pub(super) fn an_awaited_quiet_send_ends_a_park(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let mut peers: Vec<(Key, UnixStream)> = (0..10).map(|_| rig.unix_pair()).collect();
    for round in 0..20 {
        for (key, _) in &peers {
            let piece = rig.slice(b"last");
            rig.engine.send_quietly(*key, vec![piece]).unwrap();
        }
        if round % 2 == 0 {
            rig.turn(Park::Never);
        }
        for (key, _) in &peers {
            rig.engine.await_sent(*key);
            // Once is enough.
            rig.engine.await_sent(*key);
        }
        for (key, peer) in &mut peers {
            assert_eq!(rig.sent_before_the_end_of_a_park(*key).0.unwrap(), 4);
            peer.read_exact(&mut [0; 4]).unwrap();
        }
        assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
    }
    // Without a send, and of one that fails or is not quiet, there is nothing to await.
    let (key, peer) = peers.pop().unwrap();
    rig.engine.await_sent(key);
    let piece = rig.slice(b"plain");
    rig.engine.send(key, vec![piece]).unwrap();
    rig.engine.await_sent(key);
    assert_eq!(rig.sent_before_the_end_of_a_park(key).0.unwrap(), 5);
    drop(peer);
    let piece = rig.slice(b"too late");
    rig.engine.send_quietly(key, vec![piece]).unwrap();
    rig.engine.await_sent(key);
    assert!(rig.sent_before_the_end_of_a_park(key).0.is_err());
    rig.close(key);
    rig.engine.await_sent(key);
    for (key, _) in &peers {
        let piece = rig.slice(b"closed");
        rig.engine.send_quietly(*key, vec![piece]).unwrap();
        rig.engine.await_sent(*key);
        rig.close(*key);
    }
    // A turn waits again: nothing counts as awaited any more.
    let (key, mut peer) = rig.unix_pair();
    rig.engine.receive(key).unwrap();
    let later = std::thread::spawn(move || {
        peer.write_all(b"x").unwrap();
        peer
    });
    assert!(matches!(rig.received(key), Received::Chunk(_)));
    drop(later.join().unwrap());
    rig.close(key);
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

/// Receives are ready at all times, more than a turn reports. Sends end all the same, awaited or not, and no receive is
/// left out.
pub(super) fn sends_end_and_receives_go_on_while_more_is_ready_than_a_turn_reports(make: Make) {
    // Far more than any engine needs, whatever it refuses or holds back.
    const TURNS: usize = 5_000;
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let mut busy: HashMap<Key, UnixStream> = (0..8 * EVENTS_PER_TURN).map(|_| rig.unix_pair()).collect();
    let mut senders: Vec<(Key, UnixStream)> = (0..3 * EVENTS_PER_TURN).map(|_| rig.unix_pair()).collect();
    for (key, peer) in &mut busy {
        peer.write_all(b"x").unwrap();
        rig.engine.receive(*key).unwrap();
    }
    for is_awaited in [false, true, false] {
        for (key, _) in &senders {
            let piece = rig.slice(b"answer");
            rig.engine.send_quietly(*key, vec![piece]).unwrap();
            if is_awaited {
                rig.engine.await_sent(*key);
            }
        }
        let (mut sent, mut received) = (HashMap::new(), HashMap::new());
        for turn in 0.. {
            if sent.len() == senders.len() && received.len() == busy.len() {
                break;
            }
            assert!(turn < TURNS, "{} sends have ended, {} receives", sent.len(), received.len());
            rig.turn(Park::Never);
            for event in std::mem::take(&mut rig.waiting) {
                match event {
                    Event::Sent { key, result, .. } => {
                        assert_eq!(result.unwrap(), 6);
                        assert!(sent.insert(key, ()).is_none(), "it has ended once");
                    }
                    Event::Received { key, received: Received::Chunk(_) } => {
                        *received.entry(key).or_insert(0) += 1;
                        busy.get_mut(&key).unwrap().write_all(b"x").unwrap();
                        rig.engine.receive(key).unwrap();
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        for (_, peer) in &mut senders {
            peer.read_exact(&mut [0; 6]).unwrap();
        }
        assert_eq!(rig.pool.bytes_in_use(), 0, "what was sent is let go");
    }
    busy.keys().chain(senders.iter().map(|(key, _)| key)).for_each(|key| rig.close(*key));
}

/// A shard that asks does not declare itself asleep over them.
pub(super) fn events_that_wait_for_a_turn_are_known(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let mut peers: Vec<(Key, UnixStream)> = (0..4 * EVENTS_PER_TURN).map(|_| rig.unix_pair()).collect();
    for (key, peer) in &mut peers {
        peer.write_all(b"x").unwrap();
        rig.engine.receive(*key).unwrap();
    }
    let (deadline, mut are_known) = (Monotonic.now_ns() + HANG_NS, false);
    while rig.waiting.len() < peers.len() {
        assert!(Monotonic.now_ns() < deadline, "they never come: {:?}", rig.waiting);
        rig.turn(Park::Never);
        are_known |= rig.waiting.len() < peers.len() && rig.engine.has_events();
    }
    assert!(are_known);
    assert!(!rig.engine.has_events(), "nothing is left");
    rig.waiting.clear();
    peers.iter().for_each(|(key, _)| rig.close(*key));
}

/// The socket is full, or has room for a part: no byte is lost, sent twice or overtaken, and no turn sleeps through it.
pub(super) fn a_quiet_send_that_does_not_fit_goes_on_by_itself(make: Make) {
    const MESSAGE: usize = 10_000;
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    for is_recalled in [false, true] {
        let (key, mut peer) = rig.narrow_tcp_pair(100_000);
        let whole = bytes(MESSAGE * 2000, 7);
        let mut taken = 0;
        // Until one waits for the peer, which reads nothing yet.
        for message in whole.chunks(MESSAGE) {
            let (head, tail) = message.split_at(17);
            let pieces = vec![rig.slice(head), rig.slice(tail)];
            rig.engine.send_quietly(key, pieces).unwrap();
            (0..30).for_each(|_| rig.turn(Park::Never));
            let Some(Event::Sent { result, .. }) = rig.waiting.pop_front() else { break };
            assert_eq!(result.unwrap(), MESSAGE);
            taken += MESSAGE;
        }
        assert!(rig.waiting.is_empty() && taken < whole.len(), "{taken}");
        let mut rest = Vec::new();
        if is_recalled {
            rig.engine.recall(key).unwrap();
            let (result, pieces) = rig.sent(key);
            rest = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            assert_eq!(result.unwrap() + rest.len(), MESSAGE);
        }
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        if is_recalled {
            // The recall may have come too late.
            if !rest.is_empty() {
                rig.engine.send_quietly(key, vec![Slice::copy_of(&rest)]).unwrap();
                assert_eq!(sent(&mut rig, key).0.unwrap(), rest.len());
            }
        } else {
            assert_eq!(rig.sent(key).0.unwrap(), MESSAGE);
        }
        assert_eq!(rig.pool.bytes_in_use(), 0);
        rig.close(key);
        assert!(reader.join().unwrap() == whole[..taken + MESSAGE]);
    }
}

pub(super) fn a_quiet_send_to_a_reset_peer_fails(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let (key, peer) = rig.unix_pair();
    drop(peer);
    let piece = rig.slice(b"too late");
    rig.engine.send_quietly(key, vec![piece.clone(), piece]).unwrap();
    // The failure ends a park.
    let (result, pieces) = rig.sent(key);
    assert!(matches!(result.unwrap_err().kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset));
    assert!(pieces.is_empty());
    rig.close(key);
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

pub(super) fn a_close_behind_a_quiet_send_returns_its_memory(make: Make) {
    let Some(mut rig) = rig(make, Limits { connections: 1, ..Limits::default() }) else { return };
    for turns_before in 0..4 {
        for is_recalled in [false, true] {
            let (key, peer) = rig.unix_pair();
            rig.engine.receive(key).unwrap();
            let piece = rig.slice(b"goodbye");
            rig.engine.send_quietly(key, vec![piece]).unwrap();
            if is_recalled {
                // Refused where it is over.
                let _ = rig.engine.recall(key);
            }
            (0..turns_before).for_each(|_| rig.turn(Park::Never));
            rig.waiting.clear();
            rig.close(key);
            assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
            assert_eq!(rig.pool.bytes_in_use(), 0);
            drop(peer);
        }
    }
}
