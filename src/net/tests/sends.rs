//! Quiet sends: which are, and what happens when something comes to depend on the end of one that is under way.

use std::io::Write as _;

use super::late::Sends;
use super::peers::{Socket, World, ok_text, parking};
use super::*;
use nereid_protocol::http1::ResponseHead;
use nereid_protocol::service::HttpReply;

with_parking_shards! {
    only_a_send_that_nothing_waits_for_is_quiet
    requests_beyond_those_that_a_connection_may_have_are_answered_too
}

/// A shard does not wake for the end of a quiet send, so nothing may depend on it.
#[test]
fn only_a_send_that_nothing_waits_for_is_quiet() {
    let (plain, quiet) = (Sends { plain: 1, ..Sends::default() }, Sends { quiet: 1, ..Sends::default() });
    for (head, drains, expected) in [("", false, quiet), ("Connection: close\r\n", false, plain), ("", true, plain)] {
        let mut world = World::new(3);
        let mut peer: Socket = world.connect(Port::Http);
        let request = format!("POST /wait HTTP/1.1\r\n{head}Content-Length: 2\r\n\r\n42");
        peer.write_all(request.as_bytes()).unwrap();
        world.turns(60);
        if drains {
            world.drain();
        }
        let call = world.script.borrow().http[0].0;
        world.mail(call, HttpReply::Answer(ok_text("ok")));
        assert!(world.read(&mut peer).ends_with("ok"));
        assert_eq!(world.engine.sends.get(), expected, "{head:?}, {drains}");
        drop(peer);
        world.end();
    }
}

/// More come at once than may wait for answers: the rest is taken as answers leave.
#[test]
fn requests_beyond_those_that_a_connection_may_have_are_answered_too() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let mut peer = world.connect(Port::Http);
        peer.write_all("GET /now HTTP/1.1\r\n\r\n".repeat(300).as_bytes()).unwrap();
        assert_eq!(world.read(&mut peer).matches("HTTP/1.1 200").count(), 300, "seed {seed}");
        drop(peer);
        world.end();
    }
}

/// The tests above would pass over an engine that reports each end at once.
#[test]
fn a_shard_that_parks_does_not_wake_for_the_end_of_a_quiet_send() {
    parking(|| {
        let mut world = World::new(5);
        let mut peer = world.connect(Port::Http);
        for _ in 0..5 {
            peer.write_all(b"GET /now HTTP/1.1\r\n\r\n").unwrap();
            assert!(world.read(&mut peer).starts_with("HTTP/1.1 200"));
            world.turns(60);
            world.park();
            assert!(world.shard.handler.connections.iter().all(|(_, connection)| connection.send.is_quiet()));
        }
        assert_eq!(world.engine.sends.get(), Sends { quiet: 5, ..Sends::default() });
        drop(peer);
        world.end();
    });
}

/// What happens to a connection with two requests of which the first is answered.
type Change = fn(&mut World, CallKey);

/// The engine has the send, and has not started it, when something comes to depend on its end.
#[test]
fn the_end_of_a_quiet_send_is_awaited_from_when_something_waits_for_it() {
    let changes: [(&str, Port, Change); 7] = [
        ("another answer", Port::Http, |world, call| world.mail(call, HttpReply::Answer(ok_text("second")))),
        ("the head of an answer in parts", Port::Http, |world, call| {
            world.mail(call, HttpReply::Head(ResponseHead::new(200)));
        }),
        ("an error", Port::Http, |world, _| world.fail_unanswered()),
        ("a request to leave", Port::Http, |world, _| world.tell(Mail::Leave)),
        ("a drain", Port::Http, |world, _| world.drain()),
        // These do not change a connection of this port.
        ("a request to leave", Port::Metrics, |world, _| world.tell(Mail::Leave)),
        ("a drain", Port::Metrics, |world, _| world.drain()),
    ];
    for (what, port, change) in changes {
        for seed in 0..10 {
            answered_and_changed(seed, what, port, change);
        }
    }
}

fn answered_and_changed(seed: u64, what: &str, port: Port, change: Change) {
    let mut world = World::parking(seed);
    let mut peer = world.connect(port);
    peer.write_all("POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\n42".repeat(2).as_bytes()).unwrap();
    world.turns(60);
    let calls = world.script.borrow().http.clone();
    world.engine.refuses.set(true);
    world.mail(calls[0].0, HttpReply::Answer(ok_text("first")));
    assert_eq!(world.engine.sends.get(), Sends { quiet: 1, ..Sends::default() }, "{what}, seed {seed}");
    change(&mut world, calls[1].0);
    assert_eq!(world.engine.sends.get(), Sends { quiet: 1, awaited: 1, ..Sends::default() }, "{what}, seed {seed}");
    world.engine.refuses.set(false);
    world.turns(60);
    let got = world.read(&mut peer);
    assert!(got.contains("first"), "{what}, seed {seed}: {got:?}");
    let is_awaited = |connection: &Connection| connection.send.is_in_engine() && !connection.send.is_quiet();
    assert!(!world.shard.handler.connections.iter().any(|(_, connection)| is_awaited(connection)), "{what}: {got:?}");
    drop(peer);
    world.end();
}
