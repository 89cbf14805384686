//! Answers that are told in parts over HTTP/1.1.

use std::io::{Read as _, Write as _};

use super::peers::{Socket, World, ok_text};
use super::*;
use nereid_memory::{BlockMut, Gather};
use nereid_protocol::http1::ResponseHead;
use nereid_protocol::service::HttpReply;

with_parking_shards! {
    parts_leave_as_they_come_and_keep_their_place_among_other_answers
    a_peer_that_leaves_in_the_middle_is_missed_at_once
    an_old_peer_gets_its_parts_up_to_the_end_of_the_connection
    a_peer_that_waits_for_much_is_missed_too
    the_service_learns_what_its_peer_takes
    an_answer_that_breaks_off_ends_the_connection_whatever_is_on_its_way
    what_a_peer_leaves_unread_is_bounded
    a_drain_waits_for_an_answer_that_has_begun
}

const REQUEST: &[u8] = b"POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\n";

/// Sends requests with the bodies `00`, `01`, … and says which calls they became.
fn ask(world: &mut World, peer: &mut Socket, count: usize) -> Vec<CallKey> {
    for n in 0..count {
        peer.write_all(&[REQUEST, format!("{n:02}").as_bytes()].concat()).unwrap();
    }
    world.turns(60);
    world.script.borrow().http.iter().map(|(call, _)| *call).collect()
}

fn head(status: u16) -> HttpReply {
    HttpReply::Head(ResponseHead::new(status).content_type("text/event-stream"))
}

fn chunk(world: &World, text: &[u8]) -> HttpReply {
    let mut data = Gather::new();
    data.put(&world.pool, text);
    HttpReply::Chunk(data)
}

/// More than a socket takes without a reader.
fn large() -> HttpReply {
    let mut data = Gather::new();
    data.push(&Pool::new(0), BlockMut::unpooled(4 << 20).freeze());
    HttpReply::Chunk(data)
}

#[test]
fn parts_leave_as_they_come_and_keep_their_place_among_other_answers() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let mut peer = world.connect(Port::Http);
        let calls = ask(&mut world, &mut peer, 4);
        let [first, second, third, fourth] = calls[..] else { panic!("{calls:?}") };
        // The second is begun and the third and fourth are answered before the first has said a word.
        for reply in [head(200), chunk(&world, b"b1")] {
            world.mail(second, reply);
        }
        world.mail(third, HttpReply::Answer(ok_text("c")));
        world.mail(fourth, head(200));
        world.mail(fourth, HttpReply::End);
        assert_eq!(world.read(&mut peer), "", "seed {seed}");
        for reply in [head(503), chunk(&world, b"a1")] {
            world.mail(first, reply);
        }
        let got = world.read(&mut peer);
        assert!(got.starts_with("HTTP/1.1 503") && got.ends_with("\r\n\r\n2\r\na1\r\n"), "seed {seed}: {got:?}");
        for reply in [chunk(&world, b""), chunk(&world, b"a22"), HttpReply::End] {
            world.mail(first, reply);
        }
        let got = world.read(&mut peer);
        assert!(got.starts_with("3\r\na22\r\n0\r\n\r\nHTTP/1.1 200"), "seed {seed}: {got:?}");
        assert!(got.ends_with("\r\n\r\n2\r\nb1\r\n"), "seed {seed}: {got:?}");
        world.mail(second, HttpReply::End);
        // Behind its end there is nobody.
        world.mail(second, chunk(&world, b"late"));
        let got = world.read(&mut peer);
        let [end, third, fourth] = got.split("HTTP/1.1 200").collect::<Vec<_>>()[..] else { panic!("{got:?}") };
        assert_eq!(end, "0\r\n\r\n", "seed {seed}");
        assert!(third.ends_with("\r\n\r\nc") && fourth.ends_with("\r\n\r\n0\r\n\r\n"), "seed {seed}: {got:?}");
        assert!(world.script.borrow().cancelled.is_empty());
        drop(peer);
        world.end();
    }
}

#[test]
fn a_peer_that_leaves_in_the_middle_is_missed_at_once() {
    let requests: &[&[u8]] = &[
        b"POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\n00",
        b"POST /wait HTTP/1.1\r\nConnection: close\r\nContent-Length: 2\r\n\r\n00",
        b"POST /wait HTTP/1.0\r\nContent-Length: 2\r\n\r\n00",
    ];
    for (seed, (request, begun)) in requests.iter().flat_map(|request| [(request, false), (request, true)]).enumerate()
    {
        let mut world = World::new(seed as u64);
        let mut peer = world.connect(Port::Http);
        peer.write_all(request).unwrap();
        world.turns(60);
        let call = world.script.borrow().http[0].0;
        if begun {
            for reply in [head(200), chunk(&world, b"x")] {
                world.mail(call, reply);
            }
            assert!(world.read(&mut peer).contains('x'));
        }
        assert!(world.script.borrow().cancelled.is_empty());
        drop(peer);
        world.turns(60);
        assert_eq!(world.script.borrow().cancelled, [Token(call.0)], "seed {seed}");
        world.end();
    }
}

#[test]
fn an_old_peer_gets_its_parts_up_to_the_end_of_the_connection() {
    let mut world = World::new(3);
    let mut peer = world.connect(Port::Http);
    peer.write_all(b"POST /wait HTTP/1.0\r\nContent-Length: 2\r\n\r\n00").unwrap();
    world.turns(60);
    let call = world.script.borrow().http[0].0;
    for reply in [head(200), chunk(&world, b"one"), chunk(&world, b"two"), HttpReply::End] {
        world.mail(call, reply);
    }
    let got = world.read(&mut peer);
    assert!(got.starts_with("HTTP/1.0 200") && got.ends_with("\r\n\r\nonetwo"), "{got:?}");
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0, "and then the end");
    drop(peer);
    world.end();
}

#[test]
fn a_peer_that_waits_for_much_is_missed_too() {
    let mut world = World::new(4);
    let mut peer = world.connect(Port::Http);
    let calls = ask(&mut world, &mut peer, 1);
    // More is unsent than lets new requests begin.
    for reply in [head(200), large(), large(), large()] {
        world.mail(calls[0], reply);
    }
    world.turns(60);
    assert!(world.script.borrow().cancelled.is_empty());
    drop(peer);
    world.turns(60);
    assert_eq!(world.script.borrow().cancelled, [Token(calls[0].0)]);
    world.end();
}

#[test]
fn the_service_learns_what_its_peer_takes() {
    for seed in 0..4 {
        let mut world = World::new(seed);
        let mut peer = world.connect(Port::Http);
        let calls = ask(&mut world, &mut peer, 2);
        let tokens = [Token(calls[0].0), Token(calls[1].0)];
        for reply in [head(200), large()] {
            world.mail(calls[0], reply);
        }
        for reply in [head(200), chunk(&world, b"behind")] {
            world.mail(calls[1], reply);
        }
        world.turns(60);
        // Nothing was read: most of it is still here, and the time of who waits behind it does not run.
        let last = |world: &World, token: Token| {
            world.script.borrow().unsent.iter().rev().find(|(of, _)| *of == token).map(|(_, unsent)| *unsent)
        };
        assert!(last(&world, tokens[0]).is_some_and(|unsent| unsent > 2 << 20), "seed {seed}");
        for _ in 0..3 {
            world.clock.advance(SECOND_NS);
            world.turns(60);
        }
        assert_eq!(world.script.borrow().waits, [tokens[0]; 3], "seed {seed}");
        // What a recalled send brings back shows what has been taken meanwhile.
        let before = last(&world, tokens[0]);
        let mut portion = vec![0; 64 << 10];
        while peer.read(&mut portion).is_ok() {}
        for _ in 0..6 {
            world.clock.advance(SECOND_NS);
            world.turns(60);
        }
        assert!(last(&world, tokens[0]) < before, "seed {seed}: {before:?} {:?}", last(&world, tokens[0]));
        world.read_bytes(&mut peer);
        assert_eq!(last(&world, tokens[0]), Some(0), "seed {seed}");
        let unsent = world.script.borrow().unsent.clone();
        let of_first: Vec<usize> = unsent.iter().filter(|one| one.0 == tokens[0]).map(|one| one.1).collect();
        assert!(of_first.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}: it learns of changes: {of_first:?}");
        let waits = world.script.borrow().waits.len();
        world.clock.advance(SECOND_NS);
        world.turns(60);
        assert_eq!(world.script.borrow().waits.len(), waits, "seed {seed}: everything is taken");
        world.mail(calls[0], HttpReply::End);
        assert!(world.read(&mut peer).contains("behind"));
        world.turns(60);
        assert_eq!(last(&world, tokens[1]), Some(0), "seed {seed}");
        world.mail(calls[1], HttpReply::End);
        drop(peer);
        world.end();
    }
}

#[test]
fn an_answer_that_breaks_off_ends_the_connection_whatever_is_on_its_way() {
    let mut world = World::new(5);
    let mut peer = world.connect(Port::Http);
    let calls = ask(&mut world, &mut peer, 2);
    for reply in [head(200), large()] {
        world.mail(calls[0], reply);
    }
    world.turns(60);
    world.mail(calls[0], HttpReply::Abort);
    world.turns(60);
    assert_eq!(world.shard.handler.connections.len(), 0);
    assert_eq!(world.script.borrow().cancelled, [Token(calls[1].0)], "the other one of its connection");
    let got = world.read_bytes(&mut peer);
    assert!(got.len() < 4 << 20 && !got.ends_with(b"0\r\n\r\n"));
    drop(peer);
    world.end();
}

#[test]
fn what_a_peer_leaves_unread_is_bounded() {
    let mut world = World::new(6);
    let mut peer = world.connect(Port::Http);
    let calls = ask(&mut world, &mut peer, 1);
    world.mail(calls[0], head(200));
    // Sixteen of them are half of the pool.
    let block = BlockMut::unpooled(8 << 20).freeze();
    for _ in 0..16 {
        let mut data = Gather::new();
        data.push(&world.pool, block.clone());
        world.mail(calls[0], HttpReply::Chunk(data));
    }
    world.turns(60);
    assert!(world.script.borrow().cancelled.is_empty());
    // What is with the engine does not count.
    for _ in 0..16 {
        let mut data = Gather::new();
        data.push(&world.pool, block.clone());
        world.mail(calls[0], HttpReply::Chunk(data));
    }
    world.turns(60);
    assert_eq!(world.script.borrow().cancelled, [Token(calls[0].0)]);
    assert_eq!(world.shard.handler.connections.len(), 0);
    drop((peer, block));
    world.end();
}

#[test]
fn a_drain_waits_for_an_answer_that_has_begun() {
    let mut world = World::new(7);
    let mut peer = world.connect(Port::Http);
    let calls = ask(&mut world, &mut peer, 1);
    for reply in [head(200), chunk(&world, b"a")] {
        world.mail(calls[0], reply);
    }
    world.drain();
    world.turns(60);
    assert_eq!(world.shard.handler.connections.len(), 1);
    for reply in [chunk(&world, b"b"), HttpReply::End] {
        world.mail(calls[0], reply);
    }
    let got = world.read(&mut peer);
    assert!(got.ends_with("1\r\na\r\n1\r\nb\r\n0\r\n\r\n"), "{got:?}");
    world.turns(60);
    assert_eq!(world.shard.handler.connections.len(), 0);
    drop(peer);
    world.end();
}
