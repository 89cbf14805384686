//! What panics ends alone.

use std::io::{Read as _, Write as _};

use super::peers::{GrpcPeer, World, ok_text};
use super::*;
use nereid_protocol::http1::ResponseHead;
use nereid_protocol::service::{GrpcReply, GrpcStatus, HttpReply};

with_parking_shards! {
    a_panic_over_a_connection_ends_that_connection_alone
    a_panic_over_a_call_of_grpc_closes_its_connection_and_no_other
    a_panic_while_connections_are_settled_leaves_out_no_other
    a_call_that_the_service_lost_is_answered_and_its_connection_goes_on
}

const WAIT: &[u8] = b"POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\n42";

#[test]
fn a_panic_over_a_connection_ends_that_connection_alone() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let (mut other, mut peer) = (world.connect(Port::Http), world.connect(Port::Http));
        other.write_all(WAIT).unwrap();
        world.turns(60);
        peer.write_all(WAIT).unwrap();
        world.turns(60);
        peer.write_all(b"POST /panics HTTP/1.1\r\nContent-Length: 2\r\n\r\n42").unwrap();
        world.turns(60);
        let calls = world.script.borrow().http.clone();
        assert_eq!(world.script.borrow().cancelled, [Token(calls[1].0.0)], "seed {seed}");
        assert_eq!(world.shard.handler.connections.len(), 1, "seed {seed}");
        // Silence would be an error of another kind.
        let end = peer.read(&mut [0; 8]).or_else(|error| match error.kind() {
            std::io::ErrorKind::ConnectionReset => Ok(0),
            _ => Err(error),
        });
        assert_eq!(end.ok(), Some(0), "seed {seed}: it is closed");
        // What comes for the connection that is gone is dropped; the other one gets its answer.
        for (call, _) in &calls {
            world.mail(*call, HttpReply::Answer(ok_text("xx")));
        }
        assert!(world.read(&mut other).ends_with("\r\n\r\nxx"), "seed {seed}");
        drop((other, peer));
        world.end();
    }
}

#[test]
fn a_panic_over_a_call_of_grpc_closes_its_connection_and_no_other() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let (mut other, mut peer) = (GrpcPeer::connect(&mut world), GrpcPeer::connect(&mut world));
        let stream = other.call(b"/unary", None);
        other.run(&mut world, 60);
        peer.call(b"/unary", Some(b"100S"));
        peer.run(&mut world, 60);
        peer.call(b"/panics", None);
        peer.run(&mut world, 60);
        let calls = world.script.borrow().unary.clone();
        assert_eq!(world.script.borrow().cancelled, [Token(calls[1].0)], "seed {seed}");
        assert_eq!(world.shard.handler.connections.len(), 1, "seed {seed}");
        world.mail(calls[0], GrpcReply::End(GrpcStatus::ok()));
        other.run(&mut world, 60);
        assert_eq!(other.status(stream).unwrap().0, "0", "seed {seed}");
        drop((other, peer));
        world.end();
    }
}

/// The panic comes when the connection is settled, between two others of the same turn.
#[test]
fn a_panic_while_connections_are_settled_leaves_out_no_other() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let mut peers: Vec<_> = (0..3).map(|_| world.connect(Port::Http)).collect();
        for peer in &mut peers {
            peer.write_all(WAIT).unwrap();
            world.turns(60);
        }
        let calls = world.script.borrow().http.clone();
        world.script.borrow_mut().panics_over_unsent = true;
        // Only an answer in parts is reported to the service.
        world.mail(calls[1].0, HttpReply::Head(ResponseHead::new(200)));
        let mut part = nereid_memory::Gather::new();
        part.put(&world.pool, b"part");
        world.mail(calls[1].0, HttpReply::Chunk(part));
        for call in [&calls[0], &calls[2]] {
            world.mail(call.0, HttpReply::Answer(ok_text("xx")));
        }
        world.turns(60);
        for at in [0, 2] {
            assert!(world.read(&mut peers[at]).ends_with("\r\n\r\nxx"), "seed {seed}");
        }
        assert_eq!(world.script.borrow().cancelled, [Token(calls[1].0.0)], "seed {seed}");
        assert_eq!(world.shard.handler.connections.len(), 2, "seed {seed}");
        world.script.borrow_mut().panics_over_unsent = false;
        drop(peers);
        world.end();
    }
}

#[test]
fn a_call_that_the_service_lost_is_answered_and_its_connection_goes_on() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let mut peer = world.connect(Port::Http);
        peer.write_all(&[b"POST /lost HTTP/1.1\r\nContent-Length: 2\r\n\r\n42", WAIT].concat()).unwrap();
        world.turns(60);
        let call = world.script.borrow().http[0].0;
        world.mail(call, HttpReply::Answer(ok_text("xx")));
        let got = world.read(&mut peer);
        assert!(got.starts_with("HTTP/1.1 500") && got.contains(PANICKED), "seed {seed}: {got}");
        assert!(got.ends_with("\r\n\r\nxx"), "seed {seed}: {got}");
        assert!(world.script.borrow().cancelled.is_empty(), "there was no work");
        let mut grpc = GrpcPeer::connect(&mut world);
        let streams = [grpc.call(b"/unary", None), grpc.call(b"/unary", None)];
        grpc.run(&mut world, 60);
        let calls = world.script.borrow().unary.clone();
        world.script.borrow_mut().loses = Some(Token(calls[0].0));
        for call in &calls {
            world.mail(*call, GrpcReply::End(GrpcStatus::ok()));
        }
        grpc.run(&mut world, 60);
        assert_eq!(grpc.status(streams[0]), Some(("13".to_owned(), PANICKED.to_owned())), "seed {seed}");
        assert_eq!(grpc.status(streams[1]).unwrap().0, "0", "seed {seed}");
        assert_eq!(world.script.borrow().cancelled, [Token(calls[0].0)], "seed {seed}");
        drop((peer, grpc));
        world.end();
    }
}
