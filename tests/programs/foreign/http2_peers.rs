//! Invalid HTTP/2 sent to a whole server: for each script the response, and the state of the connection afterwards (RFC
//! 9113). Another client is served meanwhile.

use std::time::Duration;

use nereid_wire::inference::{ServerLiveRequest, ServerLiveResponse};
use prost::Message;

use nereid_test_support::certificates::Certificates;
use nereid_test_support::grpc::SERVICE;
use nereid_test_support::http2::{
    ACK, END_HEADERS, END_STREAM, PREFACE, RawPeer, call_fields, error, fields, frame, kind, settings,
};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::steadily::in_time;
use nereid_test_support::variant::{self, Variant, each, usual};

fn start(variant: Variant, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(variant, repository.path(), flags);
    (repository, server)
}

fn live() -> String {
    format!("{SERVICE}ServerLive")
}

/// A whole call, answered as it should be.
fn call(peer: &mut RawPeer, stream: u32) {
    peer.open(stream, &live()).message(stream, &ServerLiveRequest {}.encode_to_vec());
    let (data, reset) = peer.finish(stream);
    assert_eq!(reset, None, "stream {stream}");
    assert!(ServerLiveResponse::decode(&data[5..]).expect("an answer").live);
}

/// How the server takes a script.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// GOAWAY with this code, and the end.
    GoAway(u32),
    /// Stream 1 is reset with this code; the connection goes on.
    Reset(u32),
    /// Nothing comes of it; the connection goes on.
    Fine,
}
use Outcome::{Fine, GoAway, Reset};

fn headers(flags: u8, stream: u32, block: &[u8]) -> Vec<u8> {
    frame(kind::HEADERS, flags, stream, block)
}

/// The head of a call whose request goes on.
fn open(stream: u32) -> Vec<u8> {
    headers(END_HEADERS, stream, &call_fields(&live()))
}

/// A call whose request has ended, without a message.
fn ended(stream: u32) -> Vec<u8> {
    headers(END_HEADERS | END_STREAM, stream, &call_fields(&live()))
}

fn with_field(name: &str, value: &str) -> Vec<u8> {
    [call_fields(&live()), fields(&[(name, value)])].concat()
}

fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

/// Frames behind the handshake. A stream that is named is 1; what follows on the connection takes 101.
fn rows() -> Vec<(&'static str, Vec<u8>, Outcome)> {
    let split = {
        let block = call_fields(&live());
        let mut bytes = headers(0, 1, &block[..1]);
        let pieces: Vec<_> = block[1..].chunks(block.len() / 40 + 1).collect();
        for (number, piece) in pieces.iter().enumerate() {
            let last = number + 1 == pieces.len();
            bytes.extend(frame(kind::CONTINUATION, if last { END_HEADERS } else { 0 }, 1, piece));
        }
        bytes
    };
    let many = |one: &[u8], count: usize| one.repeat(count);
    let reset = |stream: u32| frame(kind::RST_STREAM, 0, stream, &error::CANCEL.to_be_bytes());
    let rapid: Vec<u8> = (0..6000).flat_map(|n| [open(2 * n + 1), reset(2 * n + 1)].concat()).collect();
    vec![
        // Order and numbers of frames.
        ("DATA on an idle stream", frame(kind::DATA, 0, 1, b"x"), GoAway(error::PROTOCOL_ERROR)),
        ("DATA without a stream", frame(kind::DATA, 0, 0, b"x"), GoAway(error::PROTOCOL_ERROR)),
        ("RST_STREAM on an idle stream", reset(1), GoAway(error::PROTOCOL_ERROR)),
        ("WINDOW_UPDATE on an idle stream", window_update(1, 1), GoAway(error::PROTOCOL_ERROR)),
        ("HEADERS on an even stream", open(2), GoAway(error::PROTOCOL_ERROR)),
        ("a number below the last", [open(5), open(3)].concat(), GoAway(error::PROTOCOL_ERROR)),
        ("CONTINUATION out of place", frame(kind::CONTINUATION, END_HEADERS, 1, b""), GoAway(error::PROTOCOL_ERROR)),
        (
            "a frame inside a header block",
            [headers(0, 1, &call_fields(&live())), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            GoAway(error::PROTOCOL_ERROR),
        ),
        ("PUSH_PROMISE", frame(kind::PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]), GoAway(error::PROTOCOL_ERROR)),
        ("a PING of seven bytes", frame(kind::PING, 0, 0, &[0; 7]), GoAway(error::FRAME_SIZE_ERROR)),
        ("a setting of five bytes", frame(kind::SETTINGS, 0, 0, &[0; 5]), GoAway(error::FRAME_SIZE_ERROR)),
        ("an acknowledgement that says more", frame(kind::SETTINGS, ACK, 0, &[0; 6]), GoAway(error::FRAME_SIZE_ERROR)),
        ("a frame beyond the limit", frame(kind::DATA, 0, 1, &vec![0; (1 << 20) + 1]), GoAway(error::FRAME_SIZE_ERROR)),
        ("more padding than frame", frame(kind::DATA, 8, 1, &[9, 0]), GoAway(error::PROTOCOL_ERROR)),
        // Windows.
        ("a connection's window of nothing", window_update(0, 0), GoAway(error::PROTOCOL_ERROR)),
        ("a connection's window overflows", window_update(0, 0x7fff_ffff), GoAway(error::FLOW_CONTROL_ERROR)),
        ("a window that is too large", settings(&[(4, 1 << 31)]), GoAway(error::FLOW_CONTROL_ERROR)),
        (
            "an initial window that overflows an open stream's",
            [open(1), window_update(1, 0x7fff_0000), settings(&[(4, 0x7fff_ffff)])].concat(),
            GoAway(error::FLOW_CONTROL_ERROR),
        ),
        ("a stream's window of nothing", [open(1), window_update(1, 0)].concat(), Reset(error::PROTOCOL_ERROR)),
        (
            "a stream's window overflows",
            [open(1), window_update(1, 0x7fff_ffff)].concat(),
            Reset(error::FLOW_CONTROL_ERROR),
        ),
        // Requests.
        ("capitals in a name", headers(END_HEADERS, 1, &with_field("Upper", "x")), Reset(error::PROTOCOL_ERROR)),
        (
            "a header of HTTP/1.1",
            headers(END_HEADERS, 1, &with_field("connection", "close")),
            Reset(error::PROTOCOL_ERROR),
        ),
        (
            "a pseudo-header behind others",
            headers(END_HEADERS, 1, &with_field(":path", "/x")),
            Reset(error::PROTOCOL_ERROR),
        ),
        (
            "a line break in a value",
            headers(END_HEADERS, 1, &with_field("x", "a\r\nb: c")),
            Reset(error::PROTOCOL_ERROR),
        ),
        (
            "no path",
            headers(END_HEADERS, 1, &fields(&[(":method", "POST"), (":scheme", "http")])),
            Reset(error::PROTOCOL_ERROR),
        ),
        (
            "more body than announced",
            [headers(END_HEADERS, 1, &with_field("content-length", "1")), frame(kind::DATA, 0, 1, b"xx")].concat(),
            Reset(error::PROTOCOL_ERROR),
        ),
        (
            "a stream that depends on itself",
            [open(1), frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0])].concat(),
            Reset(error::PROTOCOL_ERROR),
        ),
        // Header compression.
        ("an index that nobody filled", headers(END_HEADERS, 1, &[0xff, 0x80, 0x01]), GoAway(error::COMPRESSION_ERROR)),
        ("index 0", headers(END_HEADERS, 1, &[0x80]), GoAway(error::COMPRESSION_ERROR)),
        ("a number without end", headers(END_HEADERS, 1, &[0xff; 20]), GoAway(error::COMPRESSION_ERROR)),
        ("a table beyond its limit", headers(END_HEADERS, 1, &[0x3f, 0xe2, 0x1f]), GoAway(error::COMPRESSION_ERROR)),
        (
            "a string beyond its block",
            headers(END_HEADERS, 1, &[0, 1, b'a', 0x7f, 0xff, 0x7f]),
            GoAway(error::COMPRESSION_ERROR),
        ),
        // Floods.
        (
            "header blocks without end",
            [headers(0, 1, b""), many(&frame(kind::CONTINUATION, 0, 1, b""), 200)].concat(),
            GoAway(error::ENHANCE_YOUR_CALM),
        ),
        (
            "empty DATA",
            [open(1), many(&frame(kind::DATA, 0, 1, b""), 40_000)].concat(),
            GoAway(error::ENHANCE_YOUR_CALM),
        ),
        ("priorities", many(&frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 7]), 40_000), GoAway(error::ENHANCE_YOUR_CALM)),
        ("windows", [open(1), many(&window_update(1, 1), 40_000)].concat(), GoAway(error::ENHANCE_YOUR_CALM)),
        ("acknowledgements", many(&frame(kind::SETTINGS, ACK, 0, b""), 40_000), GoAway(error::ENHANCE_YOUR_CALM)),
        ("unknown frames", many(&frame(0x77, 0, 0, b"x"), 40_000), GoAway(error::ENHANCE_YOUR_CALM)),
        ("pings", many(&frame(kind::PING, 0, 0, &[0; 8]), 10_000), GoAway(error::ENHANCE_YOUR_CALM)),
        ("rapid resets", rapid, GoAway(error::ENHANCE_YOUR_CALM)),
        // What only looks like trouble.
        ("an unknown frame", frame(0x77, 0xff, 1, b"whatever"), Fine),
        ("priorities of streams to come", frame(kind::PRIORITY, 0, 9, &[0, 0, 0, 3, 7]), Fine),
        ("unknown settings", settings(&[(0x99, 7), (5, 16_384)]), Fine),
        ("a reset behind the end", [ended(1), reset(1)].concat(), Fine),
        ("a window behind the end", [open(1), reset(1), window_update(1, 5)].concat(), Fine),
        ("a goodbye", frame(kind::GOAWAY, 0, 0, &[0; 8]), Fine),
        ("a header block in many pieces", [split, reset(1)].concat(), Fine),
        ("a stream without a message", ended(1), Fine),
    ]
}

/// Err says what came instead.
fn judge(peer: &mut RawPeer, bytes: &[u8], outcome: Outcome) -> Result<(), String> {
    peer.try_send(bytes);
    match outcome {
        GoAway(code) => match peer.end() {
            Some((got, _)) if got == code => return Ok(()),
            other => return Err(format!("{other:?}")),
        },
        Reset(code) => loop {
            let frame = peer.next().ok_or("the end")?;
            match frame.kind {
                kind::RST_STREAM if frame.number(0) == code && frame.stream == 1 => break,
                kind::RST_STREAM | kind::GOAWAY => return Err(format!("{frame:?}")),
                _ => {}
            }
        },
        Fine => {}
    }
    // The connection goes on.
    peer.open(101, &live()).message(101, &ServerLiveRequest {}.encode_to_vec());
    loop {
        let frame = peer.next().ok_or("the end before the next call's answer")?;
        match frame.kind {
            kind::GOAWAY => return Err(format!("{frame:?}")),
            kind::RST_STREAM if frame.stream == 101 => return Err(format!("{frame:?}")),
            kind::HEADERS if frame.stream == 101 && frame.has(END_STREAM) => return Ok(()),
            _ => {}
        }
    }
}

#[test]
fn every_script_has_its_answer_and_leaves_the_connection_in_its_state() {
    each(&variant::ALL, |variant| {
        // Pings have a policy of their own, which is not the point here but where it is.
        let (_repository, server) = start(variant, &[]);
        let mut polite = RawPeer::greet(server.grpc, &[]);
        let mut wrong = Vec::new();
        for (number, (name, bytes, outcome)) in rows().into_iter().enumerate() {
            let mut peer = RawPeer::greet(server.grpc, &[]);
            if let Err(got) = judge(&mut peer, &bytes, outcome) {
                wrong.push(format!("{name}: expected {outcome:?}, got {got}"));
            }
            call(&mut polite, 2 * number as u32 + 1);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        server.stop();
    });
}

#[test]
fn who_begins_with_something_else() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        let mut polite = RawPeer::greet(server.grpc, &[]);
        let version = "HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        for (number, (bytes, answer)) in [
            (&b"GET / HTTP/1.1\r\nHost: t\r\n\r\n"[..], version),
            (b"POST / HTTP/1.1\r\nHost: t\r\n\r\n", version),
            (b"PRI * HTTP/1.1\r\n\r\n", version),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01", ""),
            (b"\0\0\0\x04\0\0\0\0\0", ""),
            (b"SSH-2.0-x\r\n", version),
        ]
        .into_iter()
        .enumerate()
        {
            let mut peer = RawPeer::connect(server.grpc);
            peer.try_send(bytes);
            let got = String::from_utf8_lossy(&peer.raw_end()).into_owned();
            assert_eq!(got, answer, "{:?}", String::from_utf8_lossy(bytes));
            call(&mut polite, 2 * number as u32 + 1);
        }
        // The preface, and no settings behind it.
        let mut peer = RawPeer::connect(server.grpc);
        peer.send(PREFACE).send(&frame(kind::PING, 0, 0, &[0; 8]));
        assert_eq!(peer.end().map(|(code, _)| code), Some(error::PROTOCOL_ERROR));
        // The preface in two pieces, long apart as the server sees it.
        let mut peer = RawPeer::connect(server.grpc);
        peer.send(&PREFACE[..10]);
        call(&mut polite, 101);
        peer.send(&PREFACE[10..]).send(&settings(&[]));
        peer.expect(kind::SETTINGS);
        call(&mut peer, 1);
        server.stop();
    });
}

#[test]
fn answers_wait_for_windows_and_pings_do_not() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        let mut peer = RawPeer::greet(server.grpc, &[(4, 0)]);
        let mut polite = RawPeer::greet(server.grpc, &[]);
        peer.open(1, &live()).message(1, &ServerLiveRequest {}.encode_to_vec());
        assert!(!peer.expect(kind::HEADERS).has(END_STREAM), "the head needs no window");
        peer.send(&frame(kind::PING, 0, 0, b"are you?"));
        let next = peer.next().expect("an answer");
        assert_eq!((next.kind, next.flags, &next.payload[..]), (kind::PING, ACK, &b"are you?"[..]), "and no DATA");
        call(&mut polite, 1);
        // Byte by byte, by both kinds of credit.
        let mut data = Vec::new();
        peer.send(&settings(&[(4, 1)]));
        while data.len() < 3 {
            data.extend(peer.expect(kind::DATA).payload);
            peer.send(&window_update(1, 1));
        }
        peer.send(&settings(&[(4, 1000)]));
        data.extend(peer.finish(1).0);
        assert!(ServerLiveResponse::decode(&data[5..]).expect("an answer").live);
        // A peer that never opens its window is only forgotten when it leaves.
        peer.send(&settings(&[(4, 0)])).open(3, &live()).message(3, &ServerLiveRequest {}.encode_to_vec());
        peer.expect(kind::HEADERS);
        drop(peer);
        call(&mut polite, 3);
        server.stop();
    });
}

/// Frames that want a reply, from a peer that reads none of them: its connection ends, and nothing piles up.
#[test]
fn replies_that_nobody_reads_end_the_connection() {
    each(&variant::ALL[..2], |variant| {
        let (_repository, server) = start(variant, &["--grpc-http2-max-ping-strikes=0"]);
        let mut polite = RawPeer::greet(server.grpc, &[]);
        let before = server.resident_kib();
        for (number, one) in [settings(&[(0x99, 7)]), frame(kind::PING, 0, 0, &[0; 8])].into_iter().enumerate() {
            let mut peer = RawPeer::greet(server.grpc, &[]);
            let portion = one.repeat(4000);
            // What the sockets hold is the system's; behind it the server waits for nobody.
            let taken = (0..4000).take_while(|_| peer.try_send(&portion)).count();
            assert!(taken < 4000, "{} bytes were taken", taken * portion.len());
            call(&mut polite, 2 * number as u32 + 1);
        }
        let after = server.resident_kib();
        assert!(after < before + 64 * 1024, "{before} KiB before, {after} KiB after");
        server.stop();
    });
}

/// A header of 4 KB that is kept in the table, and then named thousands of times: megabytes out of a few kilobytes.
#[test]
fn a_header_bomb_is_refused_without_being_built() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        let before = server.resident_kib();
        let mut peers: Vec<RawPeer> = (0..20).map(|_| RawPeer::greet(server.grpc, &[])).collect();
        // Literal with incremental indexing (RFC 7541 section 6.2.1), 3900 bytes.
        let mut block = call_fields(&live());
        block.extend([0x40, 1, b'x', 0x7f]);
        block.extend([0xbd, 0x1d]);
        block.extend([b'y'; 3900]);
        block.extend([0x80 | 62; 12_000]);
        for peer in &mut peers {
            peer.send(&headers(END_HEADERS, 1, &block));
        }
        for peer in &mut peers {
            // The list is too large; the tables are still in step, and so the connection goes on.
            let head = peer.expect(kind::HEADERS);
            assert!(head.has(END_STREAM) && head.stream == 1);
            call(peer, 3);
        }
        let after = server.resident_kib();
        assert!(after < before + 64 * 1024, "{before} KiB before, {after} KiB after 20 times 47 MB");
        server.stop();
    });
}

#[test]
fn calls_survive_goodbyes_that_cross_them() {
    each(&variant::ALL, |variant| {
        in_time(|window| {
            let (_repository, server) = start(variant, &[]);
            // The client says goodbye in the middle of its call.
            let mut peer = RawPeer::greet(server.grpc, &[]);
            peer.open(1, &live()).send(&frame(kind::GOAWAY, 0, 0, &[0; 8]));
            peer.message(1, &ServerLiveRequest {}.encode_to_vec());
            assert_eq!(peer.finish(1).1, None);
            // The server does, while a call is open and another is on its way.
            let mut busy = RawPeer::greet(server.grpc, &[]);
            busy.open(1, &live()).send(&frame(kind::PING, 0, 0, b"in order"));
            busy.expect(kind::PING);
            // The server waits no longer for the client's answer to its ping.
            window.open(Duration::from_secs(2));
            server.terminate();
            let warning = busy.expect(kind::GOAWAY);
            assert_eq!((warning.number(0), warning.number(4)), (0x7fff_ffff, error::NO_ERROR));
            let asked = busy.expect(kind::PING);
            busy.message(1, &ServerLiveRequest {}.encode_to_vec());
            busy.open(3, &live()).message(3, &ServerLiveRequest {}.encode_to_vec());
            let mut ended = 0;
            let mut last = None;
            while ended < 2 {
                let frame = busy.next().expect("both calls are answered");
                ended += u32::from(frame.kind == kind::HEADERS && frame.has(END_STREAM));
                last = Some(frame).filter(|frame| frame.kind == kind::GOAWAY).or(last);
                assert!(last.is_none(), "not before its ping is answered, or seconds have passed: {last:?}");
            }
            window.close();
            busy.try_send(&frame(kind::PING, ACK, 0, &asked.payload));
            assert_eq!(busy.end().map(|(code, _)| code), Some(error::NO_ERROR));
            let (status, log) = server.wait();
            assert_eq!(status.code(), Some(0), "{log}");
        });
    });
}

/// The same scripts out of a TLS session: a few of each outcome.
#[test]
fn scripts_over_tls() {
    let Some(files) = Certificates::make() else { return };
    let flags = files.server_flags("grpc");
    let words: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (_repository, server) = start(usual(), &words);
    let mut polite = RawPeer::over(files.connect(server.grpc, &["h2"]));
    polite.shake_hands(&[]);
    let mut seen = 0;
    for (name, bytes, outcome) in rows().into_iter().filter(|(_, bytes, _)| bytes.len() < 10_000) {
        let mut peer = RawPeer::over(files.connect(server.grpc, &["h2"]));
        peer.shake_hands(&[]);
        judge(&mut peer, &bytes, outcome).unwrap_or_else(|got| panic!("{name}: expected {outcome:?}, got {got}"));
        seen += 1;
        call(&mut polite, 2 * seen + 1);
    }
    assert!(seen > 30);
    server.stop();
}
