//! The suite that every engine passes: tests of the contract over real sockets.
//!
//! Each test runs on epoll, on io_uring (with tiny queues that overflow, and with a kernel that refuses half of what is
//! submitted) and on the fake around both. Only `refused` measures time; a broken promise shows as a wrong value or as
//! a hang, which [`rig::Rig::next`] turns into a failure, and so does [`rig::Rig::sent_before_the_end_of_a_park`].

mod alone;
mod quiet;
mod refused;
mod rig;
mod scattered;

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::clock::{Clock, Monotonic};
use quiet::*;
use rig::*;
use scattered::*;

macro_rules! contract {
    ($($test:ident)*) => {
        contract!(@engine epoll $($test)*);
        contract!(@engine uring $($test)*);
        contract!(@engine refused_uring $($test)*);
        contract!(@engine late_epoll $($test)*);
        contract!(@engine late_uring $($test)*);
    };
    (@engine $engine:ident $($test:ident)*) => {
        mod $engine {
            $(#[test]
            fn $test() {
                super::$test(super::$engine);
            })*
        }
    };
}

contract! {
    many_connections_echo
    a_long_gather_reaches_a_slow_reader
    a_quiet_send_reaches_its_peer_and_is_reported
    a_quiet_send_alone_may_stay_unreported_while_a_turn_parks
    an_awaited_quiet_send_ends_a_park
    sends_end_and_receives_go_on_while_more_is_ready_than_a_turn_reports
    events_that_wait_for_a_turn_are_known
    a_quiet_send_that_does_not_fit_goes_on_by_itself
    a_quiet_send_to_a_reset_peer_fails
    a_close_behind_a_quiet_send_returns_its_memory
    closing_ends_what_is_in_flight
    a_dropped_engine_returns_all_memory
    direct_receives_land_in_their_window
    scattered_receives_land_in_their_parts
    a_scattered_receive_waits_for_its_bytes_and_for_its_close
    a_reset_is_an_error_and_no_signal
    either_side_may_close_half
    a_burst_of_connections_is_accepted
    listening_ends
    unix_listeners_are_accepted_from
    a_parked_turn_is_woken
    receives_wait_for_chunks
    a_starved_connection_may_close
    a_recalled_send_returns_its_rest
    what_the_contract_forbids_is_refused
    a_park_ends
    keys_are_never_confused
}

fn many_connections_echo(make: Make) {
    const CONNECTIONS: usize = 100;
    let Some(mut rig) = rig(make, Limits { chunks: 16, ..Limits::default() }) else { return };
    let mut peers: Vec<(Key, UnixStream)> = (0..CONNECTIONS).map(|_| rig.unix_pair()).collect();
    for round in 0..5 {
        let message = |i: usize| bytes(1 + (i * 7919 + round * 104_729) % 30_000, i);
        let mut left: HashMap<Key, (usize, Vec<u8>)> = HashMap::new();
        for (i, (key, peer)) in peers.iter_mut().enumerate() {
            peer.write_all(&message(i)).unwrap();
            left.insert(*key, (message(i).len(), Vec::new()));
            rig.engine.receive(*key).unwrap();
        }
        // Each connection collects its message and sends it back.
        let mut to_send = CONNECTIONS;
        while to_send > 0 {
            let (key, received) = rig.next(|event| match event {
                Event::Received { key, received } => Ok((key, received)),
                other => Err(other),
            });
            let Received::Chunk(chunk) = received else { panic!("{received:?}") };
            let (whole, so_far) = left.get_mut(&key).unwrap();
            so_far.extend_from_slice(&chunk);
            drop(chunk);
            if so_far.len() < *whole {
                rig.engine.receive(key).unwrap();
                continue;
            }
            to_send -= 1;
            let (head, tail) = so_far.split_at(so_far.len() / 2);
            let pieces = vec![rig.slice(head), Slice::empty(), rig.slice(tail)];
            rig.engine.send(key, pieces).unwrap();
        }
        for (i, (key, peer)) in peers.iter_mut().enumerate() {
            let (result, pieces) = rig.sent(*key);
            assert_eq!((result.unwrap(), pieces.len()), (message(i).len(), 0));
            let mut back = vec![0; message(i).len()];
            peer.read_exact(&mut back).unwrap();
            assert_eq!(back, message(i));
        }
        assert_eq!(rig.pool.bytes_in_use(), 0, "what was sent is let go");
    }
    for (key, _) in &peers {
        rig.close(*key);
    }
    assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
}

fn a_long_gather_reaches_a_slow_reader(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let (key, mut peer) = rig.tcp_pair();
    // More pieces than one call takes, and many times what the socket's buffers hold.
    let whole = bytes(more_than_fits(), 3);
    let pieces: Vec<Slice> = whole.chunks(20_011).map(|piece| rig.slice(piece)).collect();
    assert!(pieces.len() > 600);
    rig.engine.send(key, pieces).unwrap();
    let reader = std::thread::spawn(move || {
        let (mut all, mut some) = (Vec::new(), vec![0; 70_001]);
        loop {
            match peer.read(&mut some).unwrap() {
                0 => return all,
                n => all.extend_from_slice(&some[..n]),
            }
            std::thread::yield_now();
        }
    });
    let (result, pieces) = rig.sent(key);
    assert_eq!((result.unwrap(), pieces.len()), (whole.len(), 0));
    assert_eq!(rig.pool.bytes_in_use(), 0);
    rig.close(key);
    assert!(reader.join().unwrap() == whole);
}

fn closing_ends_what_is_in_flight(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    for turns_before in 0..4 {
        for received_too in [false, true] {
            let (key, mut peer) = rig.tcp_pair();
            let block = rig.block(100_000);
            rig.engine.receive_direct(key, block, 0, 100_000).unwrap();
            let large = rig.slice(&bytes(more_than_fits(), 0));
            rig.engine.send(key, vec![large.clone(), large]).unwrap();
            (0..turns_before).for_each(|_| rig.turn(Park::Never));
            if received_too {
                // Something is there at the very moment of the close.
                peer.write_all(b"too late").unwrap();
            }
            // What was delivered before the close is delivered.
            rig.waiting.clear();
            rig.engine.close(key).unwrap();
            assert!(matches!(rig.engine.receive(key), Err(Refused::Unknown)), "a closing key is unknown");
            // A new block must not be the memory that the operation still has.
            let mut other = rig.block(100_000);
            other.fill(0xee);
            rig.closed(key);
            assert!(other.iter().all(|byte| *byte == 0xee), "a late completion wrote to memory of others");
            drop(other);
            assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
            assert_eq!(rig.pool.bytes_in_use(), 0, "all memory is back when the connection is closed");
            // The place is used again, and gets no event of its predecessor.
            let (next, mut next_peer) = rig.unix_pair();
            assert_eq!(next.index(), key.index());
            next_peer.write_all(b"new").unwrap();
            assert_eq!(rig.receive_exactly(next, 3), b"new");
            rig.close(next);
            let mut rest = Vec::new();
            let _ = peer.read_to_end(&mut rest);
        }
    }
    assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
}

fn a_dropped_engine_returns_all_memory(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let mut peers = Vec::new();
    for _ in 0..20 {
        let (key, peer) = rig.tcp_pair();
        let (block, large) = (rig.block(50_000), rig.slice(&bytes(more_than_fits() / 4, 0)));
        rig.engine.receive_direct(key, block, 10, 20).unwrap();
        rig.engine.send(key, vec![large]).unwrap();
        peers.push(peer);
    }
    for _ in 0..5 {
        let (key, peer) = rig.tcp_pair();
        start_scattered(&mut rig, key);
        peers.push(peer);
    }
    rig.engine.listen(TcpListener::bind("127.0.0.1:0").unwrap().into(), 0).unwrap();
    rig.turn(Park::Never);
    rig.turn(Park::Never);
    assert!(rig.pool.bytes_in_use() > 0);
    let Rig { engine, pool, waiting, .. } = rig;
    drop((engine, waiting));
    assert_eq!(pool.bytes_in_use(), 0);
    for mut peer in peers {
        // The sockets are closed too: with bytes that were never read, or after what was sent.
        let mut rest = Vec::new();
        let _ = peer.read_to_end(&mut rest);
    }
}

fn direct_receives_land_in_their_window(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let (key, mut peer) = rig.unix_pair();
    peer.write_all(b"0123456789").unwrap();
    let mut block = rig.block(100);
    block.fill(b'.');
    rig.engine.receive_direct(key, block, 3, 4).unwrap();
    let Received::Direct { block, at, len } = rig.received(key) else { panic!() };
    assert_eq!((at, len, &block[..9]), (3, 4, &b"...0123.."[..]), "not one byte more than asked for");
    rig.engine.receive_direct(key, block, 50, 50).unwrap();
    let Received::Direct { block, at, len } = rig.received(key) else { panic!() };
    assert_eq!((at, len, &block[50..57]), (50, 6, &b"456789."[..]));
    assert_eq!(&block[..9], b"...0123..", "what lies before stays");
    drop(block);
    // A large body in many pieces, with ordinary receives before and behind it.
    let body = bytes(600_000, 9);
    let writer = std::thread::spawn({
        let body = body.clone();
        move || {
            peer.write_all(b"head").unwrap();
            peer.write_all(&body).unwrap();
            peer.write_all(b"tail").unwrap();
        }
    });
    rig.engine.receive(key).unwrap();
    let Received::Chunk(head) = rig.received(key) else { panic!() };
    assert_eq!(&head[..4], b"head");
    let mut block = rig.block(600_000);
    let mut at = head.len() - 4;
    block[..at].copy_from_slice(&head[4..]);
    while at < 600_000 {
        rig.engine.receive_direct(key, block, at, 600_000 - at).unwrap();
        let Received::Direct { block: back, at: from, len } = rig.received(key) else { panic!() };
        assert_eq!(from, at);
        (block, at) = (back, at + len);
    }
    assert!(*block == *body);
    assert_eq!(rig.receive_exactly(key, 4), b"tail");
    writer.join().unwrap();
    rig.engine.receive_direct(key, block, 0, 1).unwrap();
    assert!(matches!(rig.received(key), Received::End), "the writer is gone");
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

fn a_reset_is_an_error_and_no_signal(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let (key, peer) = rig.tcp_pair();
    rig.engine.receive(key).unwrap();
    rig.turn(Park::Never);
    // SO_LINGER with a time of zero: closing resets (socket(7)).
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let at = (&raw const linger).cast();
    // SAFETY: the option's value lives for the call.
    let set = unsafe {
        libc::setsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, size_of_val(&linger) as u32)
    };
    assert_eq!(set, 0);
    drop(peer);
    match rig.received(key) {
        Received::Failed(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        other => panic!("{other:?}"),
    }
    let piece = rig.slice(b"too late");
    rig.engine.send(key, vec![piece.clone(), piece]).unwrap();
    let (result, pieces) = rig.sent(key);
    assert!(matches!(result.unwrap_err().kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset));
    assert!(pieces.is_empty());
    rig.close(key);
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

fn either_side_may_close_half(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let (key, mut peer) = rig.tcp_pair();
    peer.write_all(b"last words").unwrap();
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rig.receive_exactly(key, 10), b"last words");
    for _ in 0..2 {
        rig.engine.receive(key).unwrap();
        assert!(matches!(rig.received(key), Received::End), "and so it stays");
    }
    rig.engine.send(key, vec![Slice::from_static(b"answer")]).unwrap();
    assert_eq!(rig.sent(key).0.unwrap(), 6);
    rig.engine.shutdown(key).unwrap();
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"answer");
    rig.close(key);
    // The other way round: this side ends first, and still receives from the peer.
    let (key, mut peer) = rig.tcp_pair();
    rig.engine.receive(key).unwrap();
    rig.turn(Park::Never);
    rig.engine.shutdown(key).unwrap();
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
    peer.write_all(b"goodbye").unwrap();
    let Received::Chunk(chunk) = rig.received(key) else { panic!() };
    assert_eq!(&*chunk, b"goodbye");
}

fn a_burst_of_connections_is_accepted(make: Make) {
    const BURST: usize = 300;
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let listener = crate::listener::tcp(&"127.0.0.1:0".parse().unwrap(), false).unwrap();
    let address = listener.local_addr().unwrap();
    rig.engine.listen(listener.into(), 5).unwrap();
    let peers: Vec<TcpStream> = (0..BURST).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut by_port: HashMap<u16, Key> = HashMap::new();
    for _ in 0..BURST {
        let stream: TcpStream = rig.accepted(5).into();
        // SAFETY: reads the descriptor's flags; no pointers are involved.
        let flags = unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        assert!(stream.nodelay().unwrap());
        let port = stream.peer_addr().unwrap().port();
        by_port.insert(port, rig.register(stream));
    }
    for (i, mut peer) in peers.into_iter().enumerate().step_by(17) {
        let key = by_port[&peer.local_addr().unwrap().port()];
        peer.write_all(&bytes(40, i)).unwrap();
        assert_eq!(rig.receive_exactly(key, 40), bytes(40, i));
    }
}

fn listening_ends(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    rig.engine.listen(listener.into(), 1).unwrap();
    let second = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(matches!(rig.engine.listen(second.into(), 1), Err(Refused::Occupied)));
    let _first = TcpStream::connect(address).unwrap();
    rig.accepted(1);
    rig.engine.stop_listening(1).unwrap();
    rig.next(|event| match event {
        Event::ListenerClosed { listener: 1 } => Ok(()),
        other => Err(other),
    });
    assert!(matches!(rig.engine.stop_listening(1), Err(Refused::Unknown)));
    // A process that another test starts holds a copy of the listener until it runs its program.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(300);
    let refused = loop {
        match TcpStream::connect(address) {
            Ok(taken) => assert!(std::time::Instant::now() < until, "the port still listens: {taken:?}"),
            // Asked once: from now on another test may get the port.
            Err(error) => break error.kind(),
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    assert_eq!(refused, ErrorKind::ConnectionRefused);
    let again = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = again.local_addr().unwrap();
    rig.engine.listen(again.into(), 1).unwrap();
    let _second = TcpStream::connect(address).unwrap();
    rig.accepted(1);
    // Stopped before the engine has begun to accept.
    rig.engine.listen(TcpListener::bind("127.0.0.1:0").unwrap().into(), 2).unwrap();
    rig.engine.stop_listening(2).unwrap();
    rig.next(|event| match event {
        Event::ListenerClosed { listener: 2 } => Ok(()),
        other => Err(other),
    });
}

fn unix_listeners_are_accepted_from(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let name = format!("nereid-contract-{}-{:?}", std::process::id(), std::thread::current().id());
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name).unwrap();
    let listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    rig.engine.listen(listener.into(), 0).unwrap();
    let mut peer = UnixStream::connect_addr(&address).unwrap();
    let fd = rig.accepted(0);
    let key = rig.register(fd);
    peer.write_all(b"hello").unwrap();
    assert_eq!(rig.receive_exactly(key, 5), b"hello");
}

fn a_parked_turn_is_woken(make: Make) {
    const ROUNDS: u64 = 20_000;
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let sleeper = Arc::new(nereid_queue::Sleeper::new(rig.engine.waker()));
    let work = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let order = std::sync::atomic::Ordering::Relaxed;
    let producer = std::thread::spawn({
        let (sleeper, work) = (Arc::clone(&sleeper), Arc::clone(&work));
        move || {
            for _ in 0..ROUNDS {
                work.fetch_add(1, order);
                sleeper.notify();
            }
        }
    });
    let mut seen = 0;
    while seen < ROUNDS {
        // A wake-up that is lost leaves this parked for ever, with the work done and not seen.
        let deadline = Monotonic.now_ns() + HANG_NS;
        sleeper.sleep(|| work.load(order) != seen, || rig.turn(Park::Until(deadline)));
        assert!(Monotonic.now_ns() < deadline, "a wake-up was lost");
        seen = work.load(order);
        rig.waiting.retain(|event| !matches!(event, Event::Woken));
    }
    producer.join().unwrap();
    assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
    // The same without a check whether it sleeps, several times.
    for _ in 0..3 {
        rig.engine.waker().wake();
        rig.next(|event| if matches!(event, Event::Woken) { Ok(()) } else { Err(event) });
    }
}

fn receives_wait_for_chunks(make: Make) {
    const CONNECTIONS: usize = 50;
    let Some(mut rig) = rig(make, Limits { chunks: 4, ..Limits::default() }) else { return };
    let mut peers: Vec<(Key, UnixStream)> = (0..CONNECTIONS).map(|_| rig.unix_pair()).collect();
    for (i, (key, peer)) in peers.iter_mut().enumerate() {
        peer.write_all(&bytes(100, i)).unwrap();
        rig.engine.receive(*key).unwrap();
    }
    // Hold every chunk that comes, until no more do.
    let mut seen = HashMap::new();
    let mut held = VecDeque::new();
    while seen.len() < CONNECTIONS {
        if held.len() == 4 {
            (0..10).for_each(|_| rig.turn(Park::Never));
            assert!(rig.waiting.is_empty(), "there are only four chunks: {:?}", rig.waiting);
            // One back: exactly one more comes.
            drop(held.pop_front());
        }
        let (key, received) = rig.next(|event| match event {
            Event::Received { key, received } => Ok((key, received)),
            other => Err(other),
        });
        let Received::Chunk(chunk) = received else { panic!("{received:?}") };
        assert!(seen.insert(key, chunk.to_vec()).is_none());
        held.push_back(chunk);
    }
    for (i, (key, _)) in peers.iter().enumerate() {
        assert_eq!(seen[key], bytes(100, i));
    }
}

fn a_starved_connection_may_close(make: Make) {
    let Some(mut rig) = rig(make, Limits { chunks: 1, ..Limits::default() }) else { return };
    let mut peers: Vec<(Key, UnixStream)> = (0..3).map(|_| rig.unix_pair()).collect();
    for (key, peer) in &mut peers {
        peer.write_all(b"x").unwrap();
        rig.engine.receive(*key).unwrap();
    }
    let (first, received) = rig.next(|event| match event {
        Event::Received { key, received } => Ok((key, received)),
        other => Err(other),
    });
    (0..10).for_each(|_| rig.turn(Park::Never));
    assert!(rig.waiting.is_empty());
    let others: Vec<Key> = peers.iter().map(|(key, _)| *key).filter(|key| *key != first).collect();
    assert!(matches!(rig.engine.receive(others[0]), Err(Refused::Busy)), "waiting for a chunk is in flight");
    rig.close(others[0]);
    drop(received);
    assert!(matches!(rig.received(others[1]), Received::Chunk(_)));
}

fn a_recalled_send_returns_its_rest(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    for turns_before in [0, 1, 5] {
        let (key, mut peer) = rig.tcp_pair();
        let whole = bytes(more_than_fits(), 5);
        assert!(matches!(rig.engine.recall(key), Err(Refused::Unknown)), "nothing is in flight");
        let pieces = whole.chunks(1 << 18).map(|piece| rig.slice(piece)).collect();
        rig.engine.send(key, pieces).unwrap();
        (0..turns_before).for_each(|_| rig.turn(Park::Never));
        rig.engine.recall(key).unwrap();
        let (result, pieces) = rig.sent(key);
        let sent = result.unwrap();
        let rest: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        assert!(sent < whole.len(), "the peer has not read anything");
        assert!(rest == whole[sent..], "not a byte is lost or sent twice");
        // The rest goes on from somewhere else.
        drop(pieces);
        assert_eq!(rig.pool.bytes_in_use(), 0);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        rig.engine.send(key, vec![Slice::copy_of(&rest)]).unwrap();
        assert_eq!(rig.sent(key).0.unwrap(), rest.len());
        rig.close(key);
        assert!(reader.join().unwrap() == whole);
    }
}

fn what_the_contract_forbids_is_refused(make: Make) {
    let Some(mut rig) = rig(make, Limits { connections: 2, listeners: 1, ..Limits::default() }) else { return };
    let (key, peer) = rig.tcp_pair();
    let stranger = Key::from_u64(key.to_u64() + (1 << 32)).unwrap();
    let piece = || vec![Slice::from_static(b"x")];
    assert!(matches!(rig.engine.register(UnixStream::pair().unwrap().0.into(), key), Err(Refused::Occupied)));
    assert!(matches!(rig.engine.receive(stranger), Err(Refused::Unknown)));
    assert!(matches!(rig.engine.send(stranger, piece()), Err(Refused::Unknown)));
    assert!(matches!(rig.engine.recall(stranger), Err(Refused::Unknown)));
    assert!(matches!(rig.engine.shutdown(stranger), Err(Refused::Unknown)));
    assert!(matches!(rig.engine.close(stranger), Err(Refused::Unknown)));
    assert!(matches!(rig.engine.send(key, vec![]), Err(Refused::Window)));
    for (at, len) in [(0, 0), (0, 11), (10, 1), (usize::MAX, 2)] {
        let block = rig.block(10);
        assert!(matches!(rig.engine.receive_direct(key, block, at, len), Err(Refused::Window)), "{at} {len}");
    }
    assert_eq!(rig.pool.bytes_in_use(), 0);
    rig.engine.receive(key).unwrap();
    assert!(matches!(rig.engine.receive(key), Err(Refused::Busy)));
    let block = rig.block(10);
    assert!(matches!(rig.engine.receive_direct(key, block, 0, 10), Err(Refused::Busy)));
    let large = rig.slice(&bytes(more_than_fits(), 0));
    rig.engine.send(key, vec![large]).unwrap();
    assert!(matches!(rig.engine.send(key, piece()), Err(Refused::Busy)));
    let far = Key::from_u64(1 << 32 | 2).unwrap();
    let refused = rig.engine.register(UnixStream::pair().unwrap().0.into(), far);
    assert!(matches!(refused, Err(Refused::Full { limit: 2 })));
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(matches!(rig.engine.listen(socket.into(), 1), Err(Refused::Full { limit: 1 })));
    assert!(matches!(rig.engine.stop_listening(0), Err(Refused::Unknown)));
    rig.engine.close(key).unwrap();
    assert!(matches!(rig.engine.close(key), Err(Refused::Unknown)));
    rig.closed(key);
    drop(peer);
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

fn a_park_ends(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let (key, _peer) = rig.unix_pair();
    rig.engine.receive(key).unwrap();
    // In the past, now, and a little ahead: none of them hangs, and nothing has happened.
    for at in [0, Monotonic.now_ns(), Monotonic.now_ns() + 3_000_000] {
        while Monotonic.now_ns() < at {
            rig.turn(Park::Until(at));
        }
        rig.turn(Park::Until(at));
    }
    rig.turn(Park::Never);
    assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
}

/// Connections come and go in the same places at random; every byte belongs to the connection that it was sent to.
fn keys_are_never_confused(make: Make) {
    let Some(mut rig) = rig(make, Limits { connections: 8, chunks: 4, ..Limits::default() }) else { return };
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut open: Vec<(Key, UnixStream, bool)> = Vec::new();
    for _ in 0..3000 {
        if rig.keys.len() < 8 && random(3) == 0 {
            let (key, peer) = rig.unix_pair();
            open.push((key, peer, false));
        } else if !open.is_empty() {
            let nth = random(open.len());
            let (key, peer, receiving) = &mut open[nth];
            match random(4) {
                0 => peer.write_all(&key.to_u64().to_ne_bytes()).unwrap(),
                1 if !*receiving => {
                    *receiving = true;
                    match random(2) {
                        0 => rig.engine.receive(*key).unwrap(),
                        _ => {
                            let block = rig.pool.get(8).unwrap();
                            rig.engine.receive_direct(*key, block, 0, 8).unwrap();
                        }
                    }
                }
                2 => {
                    let (key, ..) = open.swap_remove(nth);
                    rig.waiting.retain(|event| !matches!(event, Event::Received { key: of, .. } if *of == key));
                    rig.engine.close(key).unwrap();
                }
                _ => rig.turn(Park::Never),
            }
        }
        while let Some(event) = rig.waiting.pop_front() {
            match event {
                Event::Closed { key } => assert!(rig.keys.remove(key).is_some(), "closed once"),
                Event::Received { key, received } => {
                    let bytes = match &received {
                        Received::Chunk(chunk) => chunk.to_vec(),
                        Received::Direct { block, at, len } => block[*at..at + len].to_vec(),
                        Received::Scattered { scatter, len } => scatter.copy(0, *len).unwrap(),
                        other => panic!("{other:?}"),
                    };
                    let (.., receiving) = open.iter_mut().find(|(of, ..)| *of == key).expect("an open connection");
                    *receiving = false;
                    assert!(bytes.chunks(8).all(|number| number == key.to_u64().to_ne_bytes()));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    for (key, ..) in open {
        rig.close(key);
    }
    while !rig.keys.is_empty() {
        let key = rig.next(|event| match event {
            Event::Closed { key } => Ok(key),
            other => Err(other),
        });
        rig.keys.remove(key).unwrap();
    }
    assert_eq!(rig.pool.bytes_in_use(), 0);
    rig.hold_chunks(4);
}
