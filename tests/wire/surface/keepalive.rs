//! gRPC keepalive and the age of connections (contract/grpc.md section 7), as a scripted peer and grpcio see them.

use std::time::Duration;

use nereid_wire::inference::ServerLiveRequest;
use prost::Message;

use nereid_test_support::grpc::SERVICE;
use nereid_test_support::http2::{ACK, END_STREAM, Frame, PREFACE, RawPeer, error, frame, kind, settings};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::steadily::{Window, in_time};
use nereid_test_support::variant::{self, Variant, each, usual};

fn start(variant: Variant, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(variant, repository.path(), &[flags, &["--log-verbose=1"]].concat());
    (repository, server)
}

/// Connects without a look at what the server sends: the end of a short age may be part of it.
fn connect(server: &Server) -> RawPeer {
    let mut peer = RawPeer::connect(server.grpc);
    peer.send(PREFACE).send(&settings(&[]));
    peer
}

/// The next frame that is not about settings.
fn next(peer: &mut RawPeer) -> Frame {
    loop {
        let frame = peer.next().expect("the connection goes on");
        match frame.kind {
            kind::SETTINGS if !frame.has(ACK) => {
                peer.try_send(&self::frame(kind::SETTINGS, ACK, 0, b""));
            }
            kind::SETTINGS => {}
            _ => return frame,
        }
    }
}

fn ping(peer: &mut RawPeer) {
    peer.send(&frame(kind::PING, 0, 0, b"anyone??"));
}

/// Opens a stream that stays open: its request is not complete.
fn hold(peer: &mut RawPeer, stream: u32) {
    peer.open(stream, &format!("{SERVICE}ModelStreamInfer"));
}

/// A whole call.
fn call(peer: &mut RawPeer, stream: u32) {
    peer.open(stream, &format!("{SERVICE}ServerLive")).message(stream, &ServerLiveRequest {}.encode_to_vec());
    assert_eq!(peer.finish(stream).1, None);
}

#[test]
fn a_quiet_peer_is_pinged_and_closed_when_it_does_not_answer() {
    each(&variant::ALL, |variant| in_time(|window| pinged_and_closed(variant, window)));
}

fn pinged_and_closed(variant: Variant, window: &Window) {
    let flags = ["--grpc-keepalive-time=100", "--grpc-keepalive-timeout=2000"];
    let (_repository, server) = start(variant, &flags);
    let mut peer = RawPeer::greet(server.grpc, &[]);
    let mut idle = RawPeer::greet(server.grpc, &[]);
    // An answer to the ping that comes later than this, or is read later, may be too late.
    window.open(Duration::from_secs(2));
    hold(&mut peer, 1);
    // It answers one.
    let first = peer.expect(kind::PING);
    assert!(!first.has(ACK) && first.payload.len() == 8);
    peer.send(&frame(kind::PING, ACK, 0, &first.payload));
    peer.expect(kind::PING);
    window.close();
    // And not the second: that is the end.
    assert_eq!(peer.end(), None, "without a word, which nobody would hear");
    server.wait_for_log("its peer does not answer pings");
    // Who has no calls is not asked.
    call(&mut idle, 1);
    server.stop();
}

#[test]
fn connections_without_calls_are_pinged_where_that_is_permitted() {
    let flags = ["--grpc-keepalive-time=50", "--grpc-keepalive-permit-without-calls=true"];
    let (_repository, server) = start(usual(), &flags);
    let mut peer = RawPeer::greet(server.grpc, &[]);
    for round in 0..2 {
        let asked = peer.expect(kind::PING);
        peer.send(&frame(kind::PING, ACK, 0, &asked.payload));
        assert_eq!(asked.stream, 0, "{round}");
    }
    // Two without data are enough; a call allows two more. What comes before the call's end are its own frames.
    call(&mut peer, 1);
    let asked = peer.expect(kind::PING);
    peer.send(&frame(kind::PING, ACK, 0, &asked.payload));
    server.stop();
}

#[test]
fn any_number_of_pings_without_data_where_that_is_asked_for() {
    let flags = [
        "--grpc-keepalive-time=20",
        "--grpc-keepalive-permit-without-calls=true",
        "--grpc-http2-max-pings-without-data=0",
    ];
    let (_repository, server) = start(usual(), &flags);
    let mut peer = RawPeer::greet(server.grpc, &[]);
    for _ in 0..10 {
        let asked = peer.expect(kind::PING);
        peer.send(&frame(kind::PING, ACK, 0, &asked.payload));
    }
    server.stop();
}

#[test]
fn a_peer_that_pings_too_often_is_told_to_calm_down() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        let mut polite = RawPeer::greet(server.grpc, &[]);
        let mut peer = RawPeer::greet(server.grpc, &[]);
        hold(&mut peer, 1);
        // The first is free, two strikes are, the fourth is one too many.
        for _ in 0..4 {
            ping(&mut peer);
        }
        let mut answered = 0;
        let goodbye = loop {
            match peer.next() {
                Some(frame) if frame.kind == kind::PING => answered += u32::from(frame.has(ACK)),
                Some(frame) if frame.kind == kind::GOAWAY => break frame,
                Some(_) => {}
                None => panic!("no GOAWAY"),
            }
        };
        assert_eq!((goodbye.number(4), &goodbye.payload[8..]), (error::ENHANCE_YOUR_CALM, &b"too_many_pings"[..]));
        assert!(answered <= 4);
        assert_eq!(peer.end(), None, "and the connection ends");
        call(&mut polite, 1);
        server.stop();
    });
}

#[test]
fn pings_between_calls_are_no_strikes_and_limits_can_be_moved() {
    let (_repository, server) = start(usual(), &[]);
    let mut peer = RawPeer::greet(server.grpc, &[]);
    for round in 0..10 {
        ping(&mut peer);
        assert!(peer.expect(kind::PING).has(ACK));
        call(&mut peer, 2 * round + 1);
    }
    server.stop();
    for flag in ["--grpc-http2-max-ping-strikes=0", "--grpc-http2-min-recv-ping-interval-without-data=0"] {
        let (_repository, server) = start(usual(), &[flag]);
        let mut peer = RawPeer::greet(server.grpc, &[]);
        hold(&mut peer, 1);
        for _ in 0..50 {
            ping(&mut peer);
            assert!(peer.expect(kind::PING).has(ACK), "{flag}");
        }
        server.stop();
    }
}

#[test]
fn an_old_connection_is_wound_down() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &["--grpc-max-connection-age=1000"]);
        let mut peer = connect(&server);
        peer.open(1, &format!("{SERVICE}ServerLive")).message(1, &ServerLiveRequest {}.encode_to_vec());
        hold(&mut peer, 3);
        // Whichever comes first: on a slow machine the age is there before the answer to the first call.
        let (mut first, mut asked, mut is_answered) = (None, None, false);
        while first.is_none() || asked.is_none() || !is_answered {
            let frame = next(&mut peer);
            match frame.kind {
                kind::GOAWAY => first = Some(frame),
                kind::PING => asked = Some(frame),
                kind::HEADERS => is_answered |= frame.stream == 1 && frame.has(END_STREAM),
                _ => {}
            }
        }
        let (first, asked) = first.zip(asked).expect("both have come");
        assert_eq!((first.number(4), &first.payload[8..]), (error::NO_ERROR, &b"max_age"[..]));
        assert_eq!(first.number(0), 0x7fff_ffff, "what is on its way is still taken");
        // A call that was on its way.
        call(&mut peer, 5);
        peer.send(&frame(kind::PING, ACK, 0, &asked.payload));
        let last = peer.expect(kind::GOAWAY);
        assert_eq!((last.number(0), last.number(4)), (5, error::NO_ERROR));
        // Without a grace the stream goes on for as long as it likes.
        peer.send(&frame(kind::DATA, END_STREAM, 3, b""));
        assert_eq!(peer.finish(3).1, None);
        assert_eq!(peer.end(), None, "then the connection ends");
        server.stop();
    });
}

#[test]
fn the_grace_of_an_old_connection_ends() {
    let flags = ["--grpc-max-connection-age=3000", "--grpc-max-connection-age-grace=1000"];
    let (_repository, server) = start(usual(), &flags);
    let mut peer = connect(&server);
    hold(&mut peer, 1);
    let first = loop {
        let frame = next(&mut peer);
        if frame.kind == kind::GOAWAY {
            break frame;
        }
    };
    assert_eq!(first.number(4), error::NO_ERROR);
    let (code, text) = peer.end().expect("another GOAWAY");
    assert_eq!((code, text.as_str()), (error::NO_ERROR, "max_age"));
    server.wait_for_log("its calls have had their time");
    server.stop();
}

#[test]
fn grpcio_lives_with_all_of_it() {
    let Some(python) = Python::get() else { return };
    // Its own keepalive, as often as this server permits it.
    let flags = ["--grpc-http2-min-recv-ping-interval-without-data=10", "--grpc-keepalive-permit-without-calls=true"];
    let (_repository, server) = start(usual(), &flags);
    let target = server.grpc.to_string();
    let keepalive = [
        "--option=grpc.keepalive_time_ms=100",
        "--option=grpc.keepalive_permit_without_calls=1",
        "--option=grpc.http2.max_pings_without_data=0",
    ];
    let calls = ["--target", &target, "--calls", "2", "--apart-ms", "6000"];
    python.run("channel.py", &[&calls[..], &keepalive].concat());
    let log = server.stop();
    assert!(!log.contains("its peer pings too often"), "{log}");
    // More often than a server permits by default: it is told, connects again, and its calls pass.
    let (_repository, server) = start(usual(), &[]);
    let target = server.grpc.to_string();
    // It leaves a second between two pings, whatever it is told, and more on a busy machine.
    let calls = ["--target", &target, "--calls", "2", "--apart-ms", "8000"];
    server.wait_until("it is told", || {
        python.run("channel.py", &[&calls[..], &keepalive].concat());
        server.log().contains("its peer pings too often")
    });
    server.stop();
    // It answers pings, and goes along with the end of connections.
    let flags = [
        "--grpc-keepalive-time=50",
        "--grpc-keepalive-timeout=20000",
        "--grpc-keepalive-permit-without-calls=true",
        "--grpc-max-connection-age=300",
        "--grpc-max-connection-age-grace=20000",
    ];
    let (_repository, server) = start(usual(), &flags);
    let target = server.grpc.to_string();
    python.run("channel.py", &["--target", &target, "--calls", "20", "--apart-ms", "50"]);
    server.wait_for_log("a gRPC connection winds down: it is too old");
    let log = server.stop();
    assert!(!log.contains("does not answer pings"), "{log}");
}
