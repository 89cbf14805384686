//! Net over socket pairs, a scripted service, a clock that is moved by hand and an engine that is late and disorderly.

/// Runs scenarios once more with shards that park.
macro_rules! with_parking_shards {
    ($($scenario:ident)*) => {
        mod parking {
            $(#[test]
            fn $scenario() {
                crate::tests::peers::parking(super::$scenario);
            })*
        }
    };
}

mod keepalive;
mod late;
mod panics;
mod peers;
mod rings;
mod script;
mod sends;
mod streamed;
mod tls;
mod uploads;

use std::io::{Read as _, Write as _};

use super::*;
use nereid_protocol::grpc::Code;
use nereid_protocol::service::{GrpcReply, GrpcStatus, HttpReply, Reply};
use peers::{GrpcPeer, World, ok_text};

with_parking_shards! {
    pipelined_answers_leave_in_the_order_of_the_requests
    multiplexed_calls_are_answered_in_any_order
    a_peer_that_leaves_cancels_its_calls
    deadlines_cancel_and_stop_with_their_calls
    a_request_that_stops_half_way_is_given_up
    who_trickles_a_request_is_given_up_and_who_is_merely_slow_is_served
    who_takes_an_answer_in_drops_is_given_up
    a_stream_whose_window_stays_shut_is_given_up_and_its_neighbours_stay
    an_upload_that_was_held_back_goes_on_when_answers_have_left
    near_the_end_of_descriptors_connections_are_brief
    beyond_the_places_each_of_many_has_its_request
    a_slow_reader_does_not_hold_foreign_memory_nor_its_place_for_ever
    a_window_opens_however_much_waits_for_it
    the_end_of_a_call_fits_the_peers_limit
    the_last_answer_survives_what_the_peer_still_sends
    a_connection_lingers_for_ten_seconds_for_a_peer_that_does_not_end
    a_drain_ends_idle_connections_and_those_that_do_not_answer
    what_is_unanswered_when_the_time_is_over_is_refused
    a_connection_without_a_call_is_not_busy
    a_peer_that_pipelines_without_end_is_not_read_without_end
}

/// A second and what the wheel may round up.
const SECOND_NS: u64 = 1_001_000_000;

/// A byte in so many seconds will do.
fn patient(window_s: u32) -> SlowPeers {
    SlowPeers { window_s, rate_min: 0, request_s: 0 }
}

#[test]
fn pipelined_answers_leave_in_the_order_of_the_requests() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let mut peer = world.connect(Port::Http);
        let request = |n: usize| format!("POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\n{n:02}");
        peer.write_all((0..8).map(request).collect::<String>().as_bytes()).unwrap();
        world.turns(60);
        assert_eq!(world.script.borrow().http.len(), 8, "seed {seed}");
        for n in [5, 7, 0, 3, 1, 6, 4, 2] {
            let (call, body) = world.script.borrow().http[n].clone();
            world.mail(call, HttpReply::Answer(ok_text(&body)));
            world.turns(3);
        }
        world.turns(60);
        let got = world.read(&mut peer);
        let bodies: Vec<&str> = got.split("\r\n\r\n").skip(1).map(|rest| &rest[..2]).collect();
        assert_eq!(bodies, ["00", "01", "02", "03", "04", "05", "06", "07"], "seed {seed}");
        drop(peer);
        world.end();
    }
}

#[test]
fn multiplexed_calls_are_answered_in_any_order() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let mut peer = GrpcPeer::connect(&mut world);
        let streams: Vec<_> = (0..6).map(|_| peer.call(b"/unary", None)).collect();
        peer.run(&mut world, 60);
        let calls = world.script.borrow().unary.clone();
        assert_eq!(calls.len(), 6, "seed {seed}");
        for &call in calls.iter().rev() {
            let message = peers::framed(&world.pool, &call.0.to_be_bytes());
            if seed % 3 == 0 {
                world.mail(call, GrpcReply::Message(message));
                world.mail(call, GrpcReply::End(GrpcStatus::ok()));
            } else {
                world.mail(call, GrpcReply::Answer(message));
            }
            // Behind the end there is nobody.
            world.mail(call, GrpcReply::End(GrpcStatus::new(Code::Internal, "late")));
            peer.run(&mut world, 3);
        }
        peer.run(&mut world, 60);
        for (stream, call) in streams.iter().zip(&calls) {
            assert_eq!(peer.body(*stream)[5..], call.0.to_be_bytes(), "seed {seed}");
            assert_eq!(peer.status(*stream), Some(("0".to_owned(), String::new())), "seed {seed}");
        }
        drop(peer);
        world.end();
    }
}

#[test]
fn a_peer_that_leaves_cancels_its_calls() {
    for (seed, port) in [(1, Port::Http), (2, Port::Grpc), (3, Port::Http), (4, Port::Grpc)] {
        let mut world = World::new(seed);
        let call = if port == Port::Http {
            let mut peer = world.connect(Port::Http);
            peer.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\n42").unwrap();
            world.turns(60);
            world.script.borrow().http[0].0
        } else {
            let mut peer = GrpcPeer::connect(&mut world);
            peer.call(b"/unary", Some(b"100S"));
            peer.run(&mut world, 60);
            world.script.borrow().unary[0]
        };
        world.turns(60);
        assert_eq!(world.script.borrow().cancelled, [Token(call.0)], "seed {seed}");
        assert_eq!(world.shard.handler.connections.len(), 0);
        let late: Reply = match port {
            Port::Http => HttpReply::Answer(ok_text("xx")).into(),
            _ => GrpcReply::End(GrpcStatus::ok()).into(),
        };
        world.mail(call, late);
        world.end();
    }
}

#[test]
fn deadlines_cancel_and_stop_with_their_calls() {
    let mut world = World::with_timers(7, 4);
    let mut peer = GrpcPeer::connect(&mut world);
    // More calls one after the other than there are timers.
    for _ in 0..20 {
        let stream = peer.call(b"/unary", Some(b"100S"));
        peer.run(&mut world, 60);
        let call = *world.script.borrow().unary.last().unwrap();
        world.mail(call, GrpcReply::End(GrpcStatus::ok()));
        peer.run(&mut world, 60);
        assert_eq!(peer.status(stream).unwrap().0, "0");
    }
    assert!(world.script.borrow().cancelled.is_empty());
    let stream = peer.call(b"/unary", Some(b"5S"));
    peer.run(&mut world, 60);
    for _ in 0..6 {
        world.clock.advance(SECOND_NS);
        peer.run(&mut world, 30);
    }
    assert_eq!(peer.status(stream), Some(("4".to_owned(), "Deadline Exceeded".to_owned())));
    assert_eq!(world.script.borrow().cancelled.len(), 1);
    drop(peer);
    world.end();
}

#[test]
fn a_request_that_stops_half_way_is_given_up() {
    let mut world = World::new(9);
    world.shard.handler.slow_peers = patient(3);
    let mut stopped = world.connect(Port::Http);
    stopped.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf").unwrap();
    let mut slow = world.connect(Port::Http);
    slow.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 100\r\n\r\n").unwrap();
    let mut idle = world.connect(Port::Http);
    idle.write_all(b"GET /now HTTP/1.1\r\n\r\n").unwrap();
    let silent = world.connect(Port::Grpc);
    let mut half = GrpcPeer::connect(&mut world);
    let stream = half.begin(b"/unary", None);
    half.send(stream, b"\0\0\0\0\x09half", false);
    half.run(&mut world, 60);
    assert_eq!(world.shard.handler.connections.len(), 5);
    for _ in 0..6 {
        slow.write_all(b".").unwrap();
        world.clock.advance(SECOND_NS);
        half.run(&mut world, 60);
    }
    assert_eq!(world.shard.handler.connections.len(), 3, "the slow, the idle and the one whose call was ended");
    assert_eq!(half.status(stream).unwrap().0, "1");
    assert!(world.read(&mut idle).starts_with("HTTP/1.1 200"));
    drop((stopped, slow, idle, silent, half));
    world.end();
}

/// Peers that send a byte now and then stay as long as they like without a minimum rate, and go with one; peers that
/// keep to the rate stay.
#[test]
fn who_trickles_a_request_is_given_up_and_who_is_merely_slow_is_served() {
    let mut world = World::new(12);
    world.shard.handler.slow_peers = SlowPeers { window_s: 4, rate_min: 10, request_s: 20 };
    let mut head = world.connect(Port::Http);
    let mut body = world.connect(Port::Http);
    body.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 10000\r\n\r\n").unwrap();
    let mut honest = world.connect(Port::Http);
    honest.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 120\r\n\r\n").unwrap();
    let mut endless = world.connect(Port::Http);
    endless.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 10000\r\n\r\n").unwrap();
    let mut often = world.connect(Port::Http);
    let mut calls = GrpcPeer::connect(&mut world);
    let [trickled, steady] = [0, 1].map(|_| calls.begin(b"/unary", None));
    calls.send(trickled, b"\0\0\0\x01\0", false);
    calls.send(steady, b"\0\0\0\0\x78", false);
    calls.run(&mut world, 60);
    let mut ended = Vec::new();
    for second in 1..=24 {
        let _ = head.write_all(b"G");
        let _ = body.write_all(b".");
        if second <= 8 {
            honest.write_all(b"0123456789abcde").unwrap();
            calls.send(steady, b"0123456789abcde", second == 8);
        }
        let _ = endless.write_all(b"0123456789abcdef");
        // Short requests, in the middle of one whenever somebody looks.
        often.write_all(if second == 1 { b"GET /now" } else { b" HTTP/1.1\r\n\r\nGET /now" }).unwrap();
        if calls.status(trickled).is_none() {
            calls.send(trickled, b".", false);
        }
        world.clock.advance(SECOND_NS);
        calls.run(&mut world, 60);
        ended.push(world.shard.handler.connections.len());
    }
    assert_eq!(ended[2], 6, "a window is not over");
    // The head of a request counts for its first window.
    assert_eq!(ended[8], 4, "head and body that trickle are gone: {ended:?}");
    assert_eq!(ended[23], 3, "a request takes no longer than any may: {ended:?}");
    assert_eq!(calls.status(trickled).unwrap().0, "1");
    assert_eq!(world.script.borrow().unary.len(), 1, "the slow call came through");
    assert_eq!(world.script.borrow().http.iter().filter(|(_, body)| body.len() == 120).count(), 1);
    assert!(world.read(&mut often).matches("HTTP/1.1 200").count() > 20);
    drop((head, body, honest, endless, often, calls));
    world.end();
}

/// The same for answers, over a socket that is read slowly and over a window that opens slowly.
#[test]
fn who_takes_an_answer_in_drops_is_given_up() {
    for rate_min in [0, 100_000] {
        let mut world = World::new(13);
        world.shard.handler.slow_peers = SlowPeers { window_s: 3, rate_min, request_s: 0 };
        let mut peer = world.connect(Port::Http);
        peer.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 0\r\n\r\n").unwrap();
        world.turns(60);
        let call = world.script.borrow().http[0].0;
        let (response, _owner) = peers::foreign_response(&world.pool, 3 << 20);
        world.mail(call, HttpReply::Answer(response));
        world.turns(60);
        for _ in 0..12 {
            let mut drops = [0; 65_536];
            let _ = peer.read(&mut drops);
            world.clock.advance(SECOND_NS);
            world.turns(60);
        }
        let expected = usize::from(rate_min == 0);
        assert_eq!(world.shard.handler.connections.len(), expected, "{rate_min} bytes a second");
        drop(peer);
        world.end();
    }
}

#[test]
fn a_stream_whose_window_stays_shut_is_given_up_and_its_neighbours_stay() {
    let mut world = World::new(14);
    world.shard.handler.slow_peers = SlowPeers { window_s: 3, rate_min: 10, request_s: 0 };
    let mut peer = GrpcPeer::with_window(&mut world, 64 << 20);
    let [shut, open] = [0, 1].map(|_| peer.call(b"/unary", None));
    peer.run(&mut world, 60);
    let calls = world.script.borrow().unary.clone();
    // More than the window of a stream: the peer gives no credit for the first.
    peer.withhold(shut);
    for &call in &calls {
        let mut message = nereid_memory::Gather::new();
        message.push(&world.pool, nereid_memory::BlockMut::unpooled(8 << 20).freeze());
        world.mail(call, GrpcReply::Answer(message));
    }
    for _ in 0..8 {
        peer.run(&mut world, 400);
        world.clock.advance(SECOND_NS);
    }
    peer.run(&mut world, 400);
    assert!(peer.is_reset(shut), "its answer waits for ever");
    assert_eq!(peer.status(open).map(|status| status.0), Some("0".to_owned()));
    assert_eq!(world.shard.handler.connections.len(), 1);
    drop(peer);
    world.end();
}

/// While a connection has too much that its peer does not take, uploads get no credit; afterwards they do, and end.
#[test]
fn an_upload_that_was_held_back_goes_on_when_answers_have_left() {
    let mut world = World::new(21);
    let mut peer = GrpcPeer::with_window(&mut world, 64 << 20);
    let answered = peer.call(b"/unary", None);
    peer.run(&mut world, 60);
    let call = world.script.borrow().unary[0];
    peer.withhold(answered);
    let mut message = nereid_memory::Gather::new();
    message.push(&world.pool, nereid_memory::BlockMut::unpooled((64 << 20) + (2 << 20)).freeze());
    world.mail(call, GrpcReply::Answer(message));
    peer.run(&mut world, 400);
    let uploads = [0, 1].map(|_| peer.begin(b"/unary", None));
    let len = 12 << 20;
    let mut bytes = vec![7; 5 + len];
    bytes[..5].copy_from_slice(&[0, 0, 0xc0, 0, 0]);
    for upload in uploads {
        peer.send(upload, &bytes, true);
    }
    peer.run(&mut world, 2000);
    assert_eq!(world.script.borrow().unary.len(), 1, "neither has arrived");
    let held = uploads.map(|upload| peer.unsent(upload));
    assert!(held.iter().all(|&left| left > 0), "{held:?} bytes wait for credit");
    // That answers of other calls leave gives them no credit.
    for _ in 0..4 {
        let refused = peer.call(b"/nothing", None);
        peer.run(&mut world, 200);
        assert_eq!(peer.status(refused).unwrap().0, "12");
    }
    assert_eq!(uploads.map(|upload| peer.unsent(upload)), held);
    peer.give_room(answered);
    for _ in 0..40 {
        peer.run(&mut world, 200);
    }
    assert_eq!(uploads.map(|upload| peer.unsent(upload)), [0, 0]);
    assert_eq!(world.script.borrow().unary.len(), 3, "both have arrived");
    assert_eq!(peer.status(answered).map(|status| status.0), Some("0".to_owned()));
    drop(peer);
    world.end();
}

/// The last places are for brief connections: one request, a few seconds, and the oldest gives way.
#[test]
fn near_the_end_of_descriptors_connections_are_brief() {
    let mut world = World::new(15);
    world.shard.handler.crowding.keep_from(0);
    let mut asked = world.connect(Port::Http);
    asked.write_all(b"GET /now HTTP/1.1\r\n\r\n").unwrap();
    assert!(world.read(&mut asked).starts_with("HTTP/1.1 200"));
    world.turns(20);
    asked.shutdown(std::net::Shutdown::Both).unwrap();
    world.turns(20);
    assert_eq!(world.shard.handler.connections.len(), 0, "one request each");
    let idle: Vec<_> = (0..40).map(|_| world.connect(Port::Http)).collect();
    world.turns(60);
    let left = world.shard.handler.connections.len();
    assert!((17..=32).contains(&left), "{left} idle ones hold the places, which have not had their time");
    world.clock.advance(crowding::BRIEF_LEAST_NS);
    let next = world.connect(Port::Http);
    world.turns(60);
    let left = world.shard.handler.connections.len();
    assert!((1..=16).contains(&left), "{left} idle ones hold the places");
    let mut last = world.connect(Port::Http);
    last.write_all(b"GET /now HTTP/1.1\r\n\r\n").unwrap();
    assert!(world.read(&mut last).starts_with("HTTP/1.1 200"), "a new one is answered all the same");
    for _ in 0..8 {
        world.clock.advance(SECOND_NS);
        world.turns(60);
    }
    drop(last);
    world.turns(60);
    assert_eq!(world.shard.handler.connections.len(), 0, "their seconds are over");
    drop((asked, idle, next));
    world.end();
}

/// Clients that come at once beyond the places are answered, as long as they are not too many.
#[test]
fn beyond_the_places_each_of_many_has_its_request() {
    let mut world = World::new(16);
    world.shard.handler.crowding = crowding::Crowding::new(0);
    let mut peers: Vec<_> = (0..200)
        .map(|_| {
            let mut peer = world.connect(Port::Http);
            peer.write_all(b"GET /now HTTP/1.1\r\n\r\n").unwrap();
            peer
        })
        .collect();
    for peer in &mut peers {
        assert!(world.read(peer).starts_with("HTTP/1.1 200"));
    }
    drop(peers);
    world.turns(60);
    assert_eq!(world.shard.handler.connections.len(), 0, "one request each");
    world.end();
}

#[test]
fn a_slow_reader_does_not_hold_foreign_memory_nor_its_place_for_ever() {
    for seed in 0..4 {
        let mut world = World::new(seed);
        let mut peer = world.connect(Port::Http);
        peer.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 0\r\n\r\n").unwrap();
        world.turns(60);
        let call = world.script.borrow().http[0].0;
        let (response, owner) = peers::foreign_response(&world.pool, 3 << 20);
        world.mail(call, HttpReply::Answer(response));
        world.turns(60);
        assert!(Arc::strong_count(&owner) > 1, "it is on its way");
        world.clock.advance(11_000_000);
        world.turns(200);
        assert_eq!(Arc::strong_count(&owner), 1, "seed {seed}: the model has its memory back");
        if seed % 2 == 0 {
            let got = world.read_bytes(&mut peer);
            assert!(got.ends_with(&owner[..]), "seed {seed}: {} bytes", got.len());
        } else {
            world.shard.handler.slow_peers = patient(3);
            for _ in 0..8 {
                world.clock.advance(SECOND_NS);
                world.turns(60);
            }
            assert_eq!(world.shard.handler.connections.len(), 0, "a peer that takes nothing is given up");
        }
        drop(peer);
        world.end();
    }
}

#[test]
fn a_window_opens_however_much_waits_for_it() {
    // Longer than any window, and than what is left of one after short answers.
    for (answers, len) in [(1, (64 << 20) + 12_345), (40, 60_000)] {
        let mut world = World::new(11);
        let mut peer = GrpcPeer::connect(&mut world);
        let streams: Vec<_> = (0..answers).map(|_| peer.call(b"/unary", None)).collect();
        for _ in 0..answers {
            peer.run(&mut world, 60);
        }
        let calls = world.script.borrow().unary.clone();
        assert_eq!(calls.len(), answers);
        for (at, &call) in calls.iter().enumerate() {
            let mut message = nereid_memory::Gather::new();
            message.push(&world.pool, nereid_memory::BlockMut::unpooled(len).freeze());
            if at % 2 == 0 {
                world.mail(call, GrpcReply::Message(message));
                world.mail(call, GrpcReply::End(GrpcStatus::ok()));
            } else {
                world.mail(call, GrpcReply::Answer(message));
            }
        }
        for _ in 0..4000 {
            peer.run(&mut world, 20);
            if streams.iter().all(|&stream| peer.status(stream).is_some()) {
                break;
            }
        }
        for stream in streams {
            assert_eq!(peer.body(stream).len(), len);
            assert_eq!(peer.status(stream).unwrap().0, "0");
        }
        drop(peer);
        world.end();
    }
}

#[test]
fn the_end_of_a_call_fits_the_peers_limit() {
    let mut world = World::new(12);
    let mut peer = GrpcPeer::connect(&mut world);
    let stream = peer.call(b"/unary", None);
    peer.run(&mut world, 60);
    let call = world.script.borrow().unary[0];
    world.mail(call, GrpcReply::End(GrpcStatus::new(Code::NotFound, "é".repeat(5000))));
    peer.run(&mut world, 60);
    let (status, message) = peer.status(stream).expect("the call ends");
    assert_eq!(status, "5");
    assert!(message.len() > 500 && message.len() < 1024 && message.ends_with("%A9"), "{message}");
    drop(peer);
    world.end();
}

#[test]
fn the_last_answer_survives_what_the_peer_still_sends() {
    let mut world = World::new(13);
    let mut peer = world.connect(Port::Http);
    peer.write_all(b"POST /refused HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n").unwrap();
    world.turns(60);
    for _ in 0..60 {
        // Whoever sends does not read meanwhile.
        assert!(peer.write_all(&[b'x'; 50_000]).is_ok());
        world.turns(30);
    }
    assert!(world.read(&mut peer).starts_with("HTTP/1.1 400"));
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0, "and then the end");
    drop(peer);
    world.end();
}

#[test]
fn a_connection_lingers_for_ten_seconds_for_a_peer_that_does_not_end() {
    let mut world = World::new(17);
    let mut peer = world.connect(Port::Http);
    peer.write_all(b"POST /refused HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n").unwrap();
    assert!(world.read(&mut peer).starts_with("HTTP/1.1 400"));
    // The first of the connection's seconds may have begun before the response.
    for second in 1..=11 {
        world.clock.advance(SECOND_NS);
        world.turns(60);
        let open = world.shard.handler.connections.len();
        let expected = if second < 10 { 1 } else { 0 };
        assert!(open == expected || second == 10, "{open} connections after {second} s");
        // What it still sends does not prolong that.
        let _ = peer.write_all(b"more");
    }
    drop(peer);
    world.end();
}

#[test]
fn a_drain_ends_idle_connections_and_those_that_do_not_answer() {
    let mut world = World::new(14);
    let idle = world.connect(Port::Http);
    let mut peer = GrpcPeer::connect(&mut world);
    let stream = peer.call(b"/unary", None);
    peer.run(&mut world, 60);
    world.drain();
    // It does not answer the ping: it is not run.
    for _ in 0..4 {
        world.clock.advance(SECOND_NS);
        world.turns(30);
    }
    let call = world.script.borrow().unary[0];
    world.mail(call, GrpcReply::End(GrpcStatus::ok()));
    world.turns(60);
    assert_eq!(world.shard.handler.connections.len(), 0);
    let _ = (idle, stream);
    world.end();
}

/// What a server has no time for is answered with the reason, half received requests included.
#[test]
fn what_is_unanswered_when_the_time_is_over_is_refused() {
    let mut world = World::new(22);
    let mut waiting = world.connect(Port::Http);
    waiting.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\n42").unwrap();
    let mut half = world.connect(Port::Http);
    half.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\n4").unwrap();
    let mut peer = GrpcPeer::connect(&mut world);
    let stream = peer.call(b"/unary", None);
    peer.run(&mut world, 60);
    let calls = [world.script.borrow().http[0].0, world.script.borrow().unary[0]];
    world.fail_unanswered();
    peer.run(&mut world, 60);
    for client in [&mut waiting, &mut half] {
        let got = world.read(client);
        assert!(got.starts_with("HTTP/1.1 503") && got.contains(OUT_OF_TIME), "{got}");
    }
    assert_eq!(peer.status(stream), Some(("14".to_owned(), OUT_OF_TIME.to_owned())));
    let mut cancelled = world.script.borrow().cancelled.clone();
    cancelled.sort_by_key(|token| token.0);
    let mut expected = calls.map(|call| Token(call.0));
    expected.sort_by_key(|token| token.0);
    assert_eq!(cancelled, expected, "the service works for nobody");
    drop((waiting, half, peer));
    world.end();
}

/// A drain waits for calls and answers, not for connections that are merely open.
#[test]
fn a_connection_without_a_call_is_not_busy() {
    let mut world = World::new(23);
    let mut peer = GrpcPeer::connect(&mut world);
    let busy = |world: &mut World| {
        world.clock.advance(SECOND_NS);
        world.turns(20);
        world.shard.handler.connections.iter().filter(|(_, connection)| connection.is_busy()).count()
    };
    assert_eq!(busy(&mut world), 0, "nothing was asked");
    let stream = peer.call(b"/unary", None);
    peer.run(&mut world, 60);
    assert_eq!(busy(&mut world), 1, "a call waits for its answer");
    let call = world.script.borrow().unary[0];
    world.mail(call, GrpcReply::End(GrpcStatus::ok()));
    peer.run(&mut world, 60);
    assert_eq!(peer.status(stream).unwrap().0, "0");
    assert_eq!(busy(&mut world), 0, "it is answered");
    drop(peer);
    world.end();
}

/// What waits behind a request without an answer stays with its peer, but for a little.
#[test]
fn a_peer_that_pipelines_without_end_is_not_read_without_end() {
    let mut world = World::new(24);
    let mut peer = world.connect(Port::Http);
    peer.write_all(b"POST /wait HTTP/1.1\r\nContent-Length: 0\r\n\r\n").unwrap();
    world.turns(60);
    let request = b"POST /wait HTTP/1.1\r\nContent-Length: 0\r\n\r\n".repeat(1000);
    let (mut taken, mut dry) = (0, 0);
    while dry < 60 && taken < 32 << 20 {
        // Where the last write ended does not matter: nothing of it is to be read.
        match peer.write(&request[taken % request.len()..]) {
            Ok(n) => (taken, dry) = (taken + n, 0),
            Err(_) => dry += 1,
        }
        world.turns(1);
    }
    assert!(taken < 4 << 20, "{taken} bytes were read of a peer whose first request waits");
    drop(peer);
    world.turns(60);
    drop(world);
}
