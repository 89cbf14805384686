//! Pings, strikes and ages on a Net: the wire of it. The rules themselves are tested beside them.

use super::super::*;
use super::peers::{GrpcPeer, World};
use nereid_protocol::grpc::Code;
use nereid_protocol::service::{GrpcReply, GrpcStatus};

with_parking_shards! {
    a_peer_that_answers_pings_stays_and_one_that_does_not_goes
    pings_without_data_are_bounded
    a_peer_that_pings_too_often_is_told_and_closed
    an_old_connection_finishes_its_calls_within_the_grace
    who_says_nothing_is_too_old_as_well
}

const MS: u64 = 1_000_000;

fn world(keepalive: Keepalive) -> World {
    World::of(3, 1000, keepalive, |_| None)
}

/// Lets time pass in small steps, in which the peer answers.
fn live(world: &mut World, peer: &mut GrpcPeer, ms: u64) {
    for _ in 0..ms / 10 {
        world.clock.advance(10 * MS);
        peer.run(world, 10);
    }
}

#[test]
fn a_peer_that_answers_pings_stays_and_one_that_does_not_goes() {
    let flags = Keepalive { time_ms: 50, timeout_ms: 30, pings_without_data_max: 0, ..Keepalive::default() };
    let mut world = world(flags);
    let mut peer = GrpcPeer::connect(&mut world);
    live(&mut world, &mut peer, 500);
    assert_eq!(peer.pings(), 0, "without calls nobody is pinged");
    let stream = peer.call(b"/unary", None);
    live(&mut world, &mut peer, 500);
    let pings = peer.pings();
    assert!((5..=10).contains(&pings), "{pings}");
    assert_eq!(world.shard.handler.connections.len(), 1);
    // It is not run any more: nobody answers.
    for _ in 0..20 {
        world.clock.advance(10 * MS);
        world.turns(10);
    }
    assert_eq!(world.shard.handler.connections.len(), 0);
    assert_eq!(world.script.borrow().cancelled.len(), 1, "its call is cancelled");
    assert_eq!(peer.status(stream), None);
    drop(peer);
    world.end();
}

#[test]
fn pings_without_data_are_bounded() {
    let flags = Keepalive { time_ms: 50, pings_without_data_max: 2, ..Keepalive::default() };
    let mut world = world(flags);
    let mut peer = GrpcPeer::connect(&mut world);
    let stream = peer.call(b"/unary", None);
    live(&mut world, &mut peer, 1000);
    assert_eq!(peer.pings(), 2);
    let call = world.script.borrow().unary[0];
    world.mail(call, GrpcReply::End(GrpcStatus::ok()));
    peer.run(&mut world, 30);
    assert_eq!(peer.status(stream).unwrap().0, "0");
    peer.call(b"/unary", None);
    live(&mut world, &mut peer, 1000);
    assert_eq!(peer.pings(), 4, "an answer allows two more");
    drop(peer);
    world.end();
}

#[test]
fn a_peer_that_pings_too_often_is_told_and_closed() {
    for (strikes, expected) in [(2, Some(4)), (5, Some(7)), (0, None)] {
        let flags = Keepalive { ping_strikes_max: strikes, ..Keepalive::default() };
        let mut world = world(flags);
        let mut peer = GrpcPeer::connect(&mut world);
        let closed = (1..=20).find(|_| {
            peer.ping();
            peer.run(&mut world, 30);
            peer.goaway().is_some()
        });
        assert_eq!(closed, expected, "{strikes} strikes");
        if expected.is_some() {
            let enhance_your_calm = http2::ErrorCode::ENHANCE_YOUR_CALM;
            assert_eq!(peer.goaway(), Some((enhance_your_calm, "too_many_pings".to_owned())));
            peer.run(&mut world, 30);
            assert_eq!(world.shard.handler.connections.len(), 0);
        }
        drop(peer);
        world.end();
    }
}

#[test]
fn an_old_connection_finishes_its_calls_within_the_grace() {
    for (grace_ms, answered) in [(0, true), (200, true), (200, false)] {
        let flags = Keepalive { age_max_ms: 300, age_grace_ms: grace_ms, ..Keepalive::default() };
        let mut world = world(flags);
        let mut peer = GrpcPeer::connect(&mut world);
        let stream = peer.call(b"/unary", None);
        live(&mut world, &mut peer, 250);
        assert_eq!(peer.goaway(), None);
        live(&mut world, &mut peer, 100);
        assert_eq!(peer.goaway(), Some((http2::ErrorCode::NO_ERROR, "max_age".to_owned())));
        assert_eq!(world.shard.handler.connections.len(), 1, "a call is open");
        if answered {
            let call = world.script.borrow().unary[0];
            world.mail(call, GrpcReply::End(GrpcStatus::new(Code::Ok, "")));
            peer.run(&mut world, 60);
            assert_eq!(peer.status(stream).unwrap().0, "0");
        } else {
            live(&mut world, &mut peer, 250);
            assert_eq!(world.script.borrow().cancelled.len(), 1);
        }
        peer.run(&mut world, 60);
        assert_eq!(world.shard.handler.connections.len(), 0, "grace of {grace_ms} ms, answered: {answered}");
        drop(peer);
        world.end();
    }
}

#[test]
fn who_says_nothing_is_too_old_as_well() {
    let mut world = world(Keepalive { age_max_ms: 300, ..Keepalive::default() });
    let silent = world.connect(Port::Grpc);
    world.clock.advance(400 * MS);
    world.turns(30);
    assert_eq!(world.shard.handler.connections.len(), 0);
    drop(silent);
    world.end();
}
