//! Scripted peers: whole sessions in every split, both roles against each other, and everything a peer may do wrong.

mod play;
mod rest;

use self::play::play;
use super::*;
use nereid_memory::{Gather, Pool};

/// Notes what it is told. Targets that begin with `/reject` are refused at their head.
#[derive(Default)]
struct Recorder {
    events: Vec<String>,
    requests: Vec<(ExchangeId, String, Slice)>,
    align_at: usize,
}

impl Handler for Recorder {
    fn head(&mut self, exchange: ExchangeId, head: &Head) -> BodyPlan {
        self.events.push(format!(
            "head {} {} {} {:?}",
            exchange.0,
            head.method_name(),
            head.path(),
            head.body_length()
        ));
        if head.path().starts_with("/reject") {
            return BodyPlan::Reject(Response::error(&pool(), ResponseHead::new(403), "no"));
        }
        BodyPlan::Store { align_at: self.align_at }
    }

    fn request(&mut self, exchange: ExchangeId, head: &Head, body: Slice) {
        let shown = if body.len() > 100 {
            format!("{} bytes", body.len())
        } else {
            format!("{:?}", body.escape_ascii().to_string())
        };
        self.events.push(format!("request {} {} {shown}", exchange.0, head.path()));
        self.requests.push((exchange, head.path().to_owned(), body));
    }

    fn aborted(&mut self, exchange: ExchangeId) {
        self.events.push(format!("aborted {}", exchange.0));
    }
}

fn pool() -> Pool {
    Pool::new(64 << 20)
}

fn connection() -> Connection {
    Connection::new(Limits::default(), pool())
}

fn ok(body: &str) -> Response {
    Response::text(&pool(), ResponseHead::new(200), body.as_bytes())
}

fn gather(bytes: &[u8]) -> Gather {
    let mut gather = Gather::new();
    gather.put(&pool(), bytes);
    gather
}

fn sent(connection: &mut Connection) -> String {
    let bytes = connection.output().to_vec();
    connection.output().clear();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The status of the only answer to `input`, and whether the connection then closes.
fn status(input: &[u8]) -> (u16, bool) {
    let (_, output, close) = play(connection(), input, &[]);
    let (_, bytewise, _) = play(connection(), input, &(0..input.len()).collect::<Vec<_>>());
    assert_eq!(output, bytewise, "{}", input.escape_ascii());
    (output.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0), close)
}

const SESSION: &[u8] = b"\r\nGET /v2?x=1 HTTP/1.1\r\nHost: a\r\n\r\n\
    POST /a HTTP/1.1\r\ncontent-LENGTH: 5\r\n\r\nhello\
    POST /b HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n\r\n\
    POST /reject HTTP/1.1\r\nContent-Length: 3\r\n\r\nxyz\
    POST /c HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n!\
    GET /last HTTP/1.1\r\nConnection: x, Close\r\n\r\nGET /never HTTP/1.1\r\n\r\n";

#[test]
fn every_split_of_a_session_gives_the_same_events_and_answers() {
    let (events, output, close) = play(connection(), SESSION, &[]);
    let expected = [
        "head 0 GET /v2 Known(0)",
        "request 0 /v2 \"\"",
        "head 1 POST /a Known(5)",
        "request 1 /a \"hello\"",
        "head 2 POST /b Chunked",
        "request 2 /b \"abcde\"",
        "head 3 POST /reject Known(3)",
        "head 4 POST /c Known(1)",
        "request 4 /c \"!\"",
        "head 5 GET /last Known(0)",
        "request 5 /last \"\"",
    ];
    assert_eq!(events, expected);
    let plain = |status: &str, extra: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n{extra}\r\n{body}")
    };
    let answers = [
        plain("200 OK", "", "/v2 "),
        plain("200 OK", "", "/a hello"),
        plain("200 OK", "", "/b abcde"),
        plain("403 Forbidden", "", "{\"error\":\"no\"}"),
        "HTTP/1.1 100 Continue\r\n\r\n".to_owned() + &plain("200 OK", "", "/c !"),
        plain("200 OK", "Connection: close\r\n", "/last "),
    ];
    assert_eq!(output, answers.concat());
    assert!(close);
    for first in 0..=SESSION.len() {
        assert_eq!(play(connection(), SESSION, &[first]), (events.clone(), output.clone(), close), "cut at {first}");
        if first % 7 == 0 {
            for second in first..=SESSION.len() {
                assert_eq!(play(connection(), SESSION, &[first, second]), (events.clone(), output.clone(), close));
            }
        }
    }
    let each: Vec<_> = (0..SESSION.len()).collect();
    assert_eq!(play(connection(), SESSION, &each), (events, output, close));
}

#[test]
fn heads_are_read_as_they_were_sent() {
    struct Check(bool);
    impl Handler for Check {
        fn head(&mut self, _: ExchangeId, head: &Head) -> BodyPlan {
            assert_eq!((head.method(), head.path(), head.query()), (Method::Other, "/a%20b", Some("q?=1")));
            assert_eq!(head.method_name(), "BREW");
            assert_eq!(head.header("X-ONE"), Some(&b"first"[..]));
            assert_eq!(head.headers_named("x-one").collect::<Vec<_>>(), [&b"first"[..], b"second"]);
            let all: Vec<_> = head.headers().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
            assert_eq!(all[0], ("x-One".to_owned(), b"first".to_vec()));
            assert_eq!(all[2], ("EMPTY".to_owned(), Vec::new()));
            assert_eq!(all[3].1, b"\xff");
            assert_eq!(head.header("none"), None);
            self.0 = true;
            BodyPlan::Store { align_at: 0 }
        }
        fn request(&mut self, _: ExchangeId, _: &Head, _: Slice) {}
    }
    let mut check = Check(false);
    let text =
        b"BREW http://host:1/a%20b?q?=1 HTTP/1.1\r\nx-One:  first \r\nX-oNE: second\r\nEMPTY:\r\nB: \xff\r\n\r\n";
    connection().receive(text, &mut check);
    assert!(check.0);
    for (target, path) in [("http://h", "/"), ("HTTP://h?x", "/"), ("*", "*"), ("/", "/"), ("/http://x", "/http://x")] {
        let (events, ..) = play(connection(), format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes(), &[]);
        assert_eq!(events[0], format!("head 0 GET {path} Known(0)"));
    }
}

#[test]
fn the_named_byte_of_a_body_is_aligned() {
    for len in [1usize, 200, 5000, 100_000] {
        for align_at in [0usize, 1, 63, 64, 65, 127, 150, 4999] {
            let body: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
            let mut chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            body.chunks(777).for_each(|chunk| put_chunk(&mut chunked, chunk));
            put_last_chunk(&mut chunked);
            let known = [format!("POST / HTTP/1.1\r\nContent-Length: {len}\r\n\r\n").as_bytes(), &body].concat();
            for input in [known, chunked] {
                let mut recorder = Recorder { align_at, ..Recorder::default() };
                let mut connection = connection();
                input.chunks(1000).for_each(|piece| connection.receive(piece, &mut recorder));
                let received = &recorder.requests[0].2;
                assert_eq!(**received, *body);
                if align_at < len {
                    assert!(received.window(align_at..len).is_aligned_to(64), "{align_at} of {len}");
                }
            }
        }
    }
}

#[test]
fn a_body_takes_memory_as_it_arrives() {
    let pool = pool();
    let mut connection = Connection::new(Limits::default(), pool.clone());
    let mut recorder = Recorder { align_at: 10, ..Recorder::default() };
    let body: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    connection.receive(b"POST /d HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n", &mut recorder);
    assert_eq!(pool.bytes_in_use(), nereid_memory::TRUSTED_BYTES, "its head says a lot");
    let mut come = 0;
    while come < body.len() {
        let mut direct = connection.take_direct().unwrap();
        let n = direct.len.min(200_000);
        direct.block[direct.at..][..n].copy_from_slice(&body[come..come + n]);
        come += n;
        connection.direct_received(direct, n, &mut recorder);
        // Pieces that come another way go to the same place.
        let more = 1000.min(body.len() - come);
        connection.receive(&body[come..come + more], &mut recorder);
        come += more;
        assert!(
            pool.bytes_in_use() <= (8 * come).max(nereid_memory::TRUSTED_BYTES),
            "{} of {come}",
            pool.bytes_in_use()
        );
    }
    assert_eq!(recorder.requests.len(), 1);
    assert!(recorder.requests[0].2[..] == body[..]);
}

/// After 65,536 chunks a request is refused, and its memory is free while its client stays.
#[test]
fn a_refused_body_lets_its_memory_go() {
    let pool = pool();
    let mut connection = Connection::new(Limits { chunks: 100, ..Limits::default() }, pool.clone());
    let mut recorder = Recorder::default();
    connection.receive(b"POST /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", &mut recorder);
    let chunk = [&b"2710\r\n"[..], &[b'x'; 10_000], b"\r\n"].concat();
    (0..100).for_each(|_| connection.receive(&chunk, &mut recorder));
    assert!(pool.bytes_in_use() >= 1_000_000);
    connection.receive(&chunk, &mut recorder);
    assert!(pool.bytes_in_use() <= 32 * 1024, "{} bytes", pool.bytes_in_use());
}

#[test]
fn large_bodies_are_received_where_they_stay() {
    let pool = pool();
    let mut connection = Connection::new(Limits::default(), pool.clone());
    let mut recorder = Recorder { align_at: 10, ..Recorder::default() };
    assert!(connection.take_direct().is_none());
    let body: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    // Memory that lies ready is taken for the whole.
    drop(pool.get(100_000));
    connection.receive(b"POST /d HTTP/1.1\r\nContent-Length: 100000\r\n\r\n", &mut recorder);
    connection.receive(&body[..10], &mut recorder);
    let mut direct = connection.take_direct().unwrap();
    assert!(connection.take_direct().is_none(), "it is out already");
    assert_eq!(direct.len, 99_990);
    let at = direct.block.as_ptr();
    assert!(direct.block[direct.at..].as_ptr().addr().is_multiple_of(64));
    direct.block[direct.at..][..50_000].copy_from_slice(&body[10..50_010]);
    connection.direct_received(direct, 50_000, &mut recorder);
    assert!(connection.is_receiving() && recorder.requests.is_empty());
    connection.receive(&body[50_010..60_000], &mut recorder);
    let mut direct = connection.take_direct().unwrap();
    assert_eq!((direct.len, direct.block.as_ptr()), (40_000, at));
    direct.block[direct.at..][..40_000].copy_from_slice(&body[60_000..]);
    // What should not come while the block is out is kept for later.
    connection.receive(b"GET /e HTTP/1.1\r\n\r\n", &mut recorder);
    connection.direct_received(direct, 40_000, &mut recorder);
    assert_eq!(recorder.requests.len(), 2);
    assert_eq!(*recorder.requests[0].2, *body);
    assert_eq!(recorder.requests[1].1, "/e");
    recorder.requests.clear();
    assert_eq!(pool.bytes_in_use(), 0);
    // A few missing bytes are not worth it.
    connection.receive(b"POST /d HTTP/1.1\r\nContent-Length: 4097\r\n\r\nxx", &mut recorder);
    assert!(connection.take_direct().is_none());
}

#[test]
fn an_answer_may_overtake_a_body_that_is_received_directly() {
    for drained in [false, true] {
        let mut connection = connection();
        let mut recorder = Recorder::default();
        connection.receive(b"POST /d HTTP/1.1\r\nContent-Length: 10000\r\n\r\n", &mut recorder);
        let direct = connection.take_direct().unwrap();
        if drained {
            connection.close_after_responses();
        }
        connection.respond(ExchangeId(0), ok("early"));
        connection.direct_received(direct, 10_000, &mut recorder);
        connection.receive(b"GET /next HTTP/1.1\r\n\r\n", &mut recorder);
        assert_eq!(recorder.requests.len(), usize::from(!drained));
        assert_eq!(sent(&mut connection).contains("Connection: close"), drained);
        assert_eq!(connection.should_close(), drained);
    }
    // Where more is missing than is worth reading, the answer ends the connection.
    let mut connection = connection();
    let mut recorder = Recorder::default();
    connection.receive(b"POST /d HTTP/1.1\r\nContent-Length: 10000000\r\n\r\nx", &mut recorder);
    connection.respond(ExchangeId(0), ok("early"));
    assert!(sent(&mut connection).contains("Connection: close"));
    assert!(connection.should_close() && !connection.wants_read());
}

#[test]
fn a_peer_that_waits_is_told_to_go_on_unless_it_is_refused() {
    let head = |line: &str, extra: &str| format!("POST {line}\r\nExpect: 100-continue\r\n{extra}\r\n");
    let cases = [
        ("/ HTTP/1.1", "Content-Length: 1\r\n", "HTTP/1.1 100 Continue\r\n\r\n", false),
        ("/ HTTP/1.1", "Transfer-Encoding: chunked\r\n", "HTTP/1.1 100 Continue\r\n\r\n", false),
        ("/ HTTP/1.0", "Content-Length: 1\r\n", "", false),
        ("/reject HTTP/1.1", "Content-Length: 1\r\n", "HTTP/1.1 403 Forbidden", true),
        ("/ HTTP/1.1", "Content-Length: 3000000000\r\n", "HTTP/1.1 400 Bad Request", true),
    ];
    for (line, extra, expected, close) in cases {
        let (_, output, closes) = play(connection(), head(line, extra).as_bytes(), &[]);
        assert!(output.starts_with(expected) && output.is_empty() == expected.is_empty(), "{line}: {output}");
        assert_eq!(closes, close);
    }
    let (_, output, _) = play(connection(), head("/ HTTP/1.1", "Content-Length: 0\r\n").as_bytes(), &[]);
    assert!(output.starts_with("HTTP/1.1 200"));
    // The interim answer waits for the answers before it.
    let mut connection = connection();
    let mut recorder = Recorder::default();
    connection.receive(b"GET /a HTTP/1.1\r\n\r\n", &mut recorder);
    connection.receive(head("/b HTTP/1.1", "Content-Length: 1\r\n").as_bytes(), &mut recorder);
    assert_eq!(sent(&mut connection), "");
    connection.respond(ExchangeId(0), ok("a"));
    assert!(sent(&mut connection).ends_with("\r\n\r\naHTTP/1.1 100 Continue\r\n\r\n"));
}

#[test]
fn persistence_follows_version_and_connection_header() {
    let cases = [
        ("1.1", "", false, ""),
        ("1.1", "Connection: keep-alive\r\n", false, ""),
        ("1.1", "Connection: close\r\n", true, "Connection: close\r\n"),
        ("1.1", "Connection: foo\r\nConnection: bar ,CLOSE\r\n", true, "Connection: close\r\n"),
        ("1.1", "Connection: keep-alive, close\r\n", true, "Connection: close\r\n"),
        ("1.0", "", true, "Connection: close\r\n"),
        ("1.0", "Connection: Keep-Alive\r\n", false, "Connection: keep-alive\r\n"),
        ("1.0", "Connection: keep-alive, close\r\n", true, "Connection: close\r\n"),
        ("1.0", "Connection: closed\r\n", true, "Connection: close\r\n"),
        ("1.1", "Connection: closed\r\n", false, ""),
    ];
    for (version, header, close, answer) in cases {
        let input = format!("GET / HTTP/{version}\r\n{header}\r\n");
        let (_, output, closes) = play(connection(), input.as_bytes(), &[]);
        assert_eq!(closes, close, "{input}");
        let expected =
            format!("HTTP/{version} 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n{answer}\r\n/ ");
        assert_eq!(output, expected);
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let heads = [
        ("POST / HTTP/1.0\r\nContent-Length: 3\r\nTransfer-Encoding: chunked", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nHost: b", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nhost: a", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 03", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 3, 3", 400),
        ("POST / HTTP/1.1\r\nContent-Length: +3", 400),
        ("POST / HTTP/1.1\r\nContent-Length: -3", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 0x3", 400),
        ("POST / HTTP/1.1\r\nContent-Length:", 400),
        ("POST / HTTP/1.1\r\nContent-Length : 3", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding : chunked", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, gzip", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding:", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", 501),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked", 501),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked", 400),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
        ("POST / HTTP/1.1\r\nX: a\r\n b: c", 400),
        ("POST / HTTP/1.1\r\nX: a\rb", 400),
        ("POST / HTTP/1.1\r\nX: a\0b", 400),
        ("POST / HTTP/1.1\r\n: x", 400),
        ("POST / HTTP/1.1\r\nno colon", 400),
        ("POST  / HTTP/1.1", 400),
        ("POST / HTTP/2.0", 505),
        ("PRI * HTTP/2.0", 505),
        ("POST /a b HTTP/1.1", 400),
        ("POST /", 400),
        ("\x16\x03\x01", 400),
    ];
    for (head, expected) in heads {
        let input = format!("{head}\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n");
        assert_eq!(status(input.as_bytes()), (expected, true), "{head}");
    }
    assert_eq!(status(b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx"), (200, false));
    let (events, output, _) = play(connection(), b"POST / HTTP/1.1\r\nContent-Length: x1\r\n\r\n", &[]);
    assert_eq!(events, ["head 0 POST / Unparsable", "aborted 0"]);
    assert!(output.ends_with("\r\n\r\n{\"error\":\"Unable to parse Content-Length, got: x1\"}"), "{output}");
    // A malformed body ends the connection as well.
    assert_eq!(status(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n"), (400, true));
    assert_eq!(status(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), (400, true));
}

/// A reader that went by the length would take what follows for another request.
#[test]
fn chunks_overrule_a_length_and_nothing_is_read_behind_them() {
    for lengths in ["Content-Length: 3\r\n", "Content-Length: 999\r\n", "Content-Length: x\r\n"] {
        for fields in
            [format!("{lengths}Transfer-Encoding: chunked\r\n"), format!("Transfer-Encoding: chunked\r\n{lengths}")]
        {
            let request = format!("POST /a HTTP/1.1\r\n{fields}\r\n5\r\nhello\r\n0\r\n\r\n");
            let input = format!("{request}GET /smuggled HTTP/1.1\r\n\r\n{request}");
            for cuts in [vec![], (0..input.len()).collect::<Vec<_>>()] {
                let (events, output, close) = play(connection(), input.as_bytes(), &cuts);
                assert_eq!(events, ["head 0 POST /a Chunked", "request 0 /a \"hello\""], "{fields}");
                assert!(output.starts_with("HTTP/1.1 200") && output.ends_with("\r\n\r\n/a hello"), "{output}");
                assert!(output.contains("\r\nConnection: close\r\n") && close, "{output}");
            }
        }
    }
}

#[test]
fn every_bound_has_an_answer() {
    let limits = Limits { request_line: 100, head: 300, headers: 5, body: 50, ..Limits::default() };
    let status = |input: &str| {
        let cuts: Vec<_> = (0..input.len()).collect();
        let whole = play(Connection::new(limits.clone(), pool()), input.as_bytes(), &[]);
        assert_eq!(whole, play(Connection::new(limits.clone(), pool()), input.as_bytes(), &cuts));
        (whole.1.get(9..12).unwrap_or_default().to_owned(), whole.2)
    };
    let answer = |code: &str, close| (code.to_owned(), close);
    let line = |len: usize| format!("GET /{} HTTP/1.1", "x".repeat(len - 14));
    assert_eq!(status(&(line(99) + "\r\n\r\n")), answer("200", false));
    assert_eq!(status(&(line(100) + "\r\n\r\n")), answer("414", true));
    assert_eq!(status(&"x".repeat(101)), answer("414", true));
    assert_eq!(status(&"x".repeat(100)), answer("", false));
    let head = |len: usize| format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(len - 23));
    assert_eq!(status(&head(300)), answer("200", false));
    assert_eq!(status(&head(301)), answer("431", true));
    assert_eq!(status(&format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(290))), answer("431", true));
    let fields = |n: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(n));
    assert_eq!(status(&fields(5)), answer("200", false));
    assert_eq!(status(&fields(6)), answer("431", true));
    let body = |n: usize| format!("POST / HTTP/1.1\r\nContent-Length: {n}\r\n\r\n{}", "x".repeat(n));
    assert_eq!(status(&body(50)), answer("200", false));
    assert_eq!(status(&body(51)), answer("413", false));
    let chunked = |n: usize| {
        let chunk = format!("a\r\n{}\r\n", "x".repeat(10));
        format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n", chunk.repeat(n))
    };
    assert_eq!(status(&chunked(5)), answer("200", false));
    assert_eq!(status(&chunked(6)), answer("413", true));
    // By what is announced, before it comes: one digit more decides it.
    let announced = |size: &str| {
        let begun = chunked(4);
        format!("{}{size}", begun.strip_suffix("0\r\n\r\n").expect("the last chunk"))
    };
    assert_eq!(status(&announced("a\r\n")), answer("", false));
    assert_eq!(status(&announced("b")), answer("413", true));
    assert_eq!(status(&announced("b\r\nx")), answer("413", true));
    assert_eq!(status(&announced("fffffffffffffff")), answer("413", true));
    assert_eq!(status(&"\r\n".repeat(33)), answer("400", true));
    assert_eq!(status(&("\r\n".repeat(32) + "GET / HTTP/1.1\r\n\r\n")), answer("200", false));
}

#[test]
fn lengths_beyond_thirty_two_bits_have_their_own_text() {
    for length in ["2147483648", "99999999999999999999999999"] {
        let input = format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\nx");
        let (_, output, close) = play(connection(), input.as_bytes(), &[]);
        let text = "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: ";
        assert!(output.ends_with(&format!("{{\"error\":\"{text}{length}\"}}")), "{output}");
        assert!(output.starts_with("HTTP/1.1 400") && close);
    }
}

#[test]
fn too_many_chunks_are_refused_with_tritons_text() {
    let mut input = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    (0..65_536).for_each(|_| put_chunk(&mut input, b"x"));
    let fits = [&input[..], b"0\r\n\r\n"].concat();
    let (events, ..) = play(connection(), &fits, &[]);
    assert_eq!(events[1], "request 0 / 65536 bytes");
    put_chunk(&mut input, b"x");
    put_last_chunk(&mut input);
    let (events, output, close) = play(connection(), &input, &[1000]);
    assert_eq!(events[1], "aborted 0");
    let text = "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks.";
    assert!(output.ends_with(&format!("{{\"error\":\"{text}\"}}")));
    assert!(output.starts_with("HTTP/1.1 400") && output.contains("Connection: close") && close);
}

#[test]
fn a_refused_body_is_dropped_if_it_is_short() {
    let limits = Limits { discard: 100, ..Limits::default() };
    let play = |input: &str| play(Connection::new(limits.clone(), pool()), input.as_bytes(), &[]);
    let known = |n: usize| format!("POST /reject HTTP/1.1\r\nContent-Length: {n}\r\n\r\n{}", "x".repeat(n));
    let next = "GET /next HTTP/1.1\r\n\r\n";
    let (events, output, close) = play(&(known(100) + next));
    assert!(output.contains("/next") && !close);
    assert_eq!(events.len(), 3);
    let (events, output, close) = play(&(known(101) + next));
    assert!(output.contains("Connection: close") && !output.contains("/next") && close);
    assert_eq!(events.len(), 1);
    let chunked = |n: usize| {
        format!("POST /reject HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{n:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(n))
    };
    assert!(play(&(chunked(100) + next)).1.contains("/next"));
    let (_, output, close) = play(&(chunked(101) + next));
    assert!(output.contains("403") && !output.contains("413") && !output.contains("/next") && close);
}

#[test]
fn a_full_pool_answers_503() {
    let small = Pool::new(8192);
    let mut recorder = Recorder::default();
    let mut first = Connection::new(Limits::default(), small.clone());
    first.receive(b"POST / HTTP/1.1\r\nContent-Length: 10000\r\n\r\n", &mut recorder);
    let output = sent(&mut first);
    let head = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nnereid-refused: request_memory\r\n\
                Content-Type: application/json\r\n";
    assert!(output.starts_with(head), "{output}");
    assert!(output.contains("{\"error\":\"10000 bytes were asked for"));
    assert_eq!(recorder.events[1], "aborted 0");
    let mut second = Connection::new(Limits::default(), small.clone());
    second.receive(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2710\r\n", &mut recorder);
    second.receive(&[b'x'; 10_000], &mut recorder);
    assert!(sent(&mut second).starts_with("HTTP/1.1 503"));
    assert!(second.should_close());
    assert!(recorder.requests.is_empty());
    drop((first, second));
    assert_eq!(small.bytes_in_use(), 0);
}

#[test]
fn answers_leave_in_the_order_of_their_requests() {
    let mut connection = connection();
    let mut recorder = Recorder::default();
    for _ in 0..4 {
        connection.receive(b"GET / HTTP/1.1\r\n\r\n", &mut recorder);
    }
    let body = |output: &str| output.split("\r\n\r\n").last().unwrap_or_default().to_owned();
    connection.respond(ExchangeId(2), ok("two"));
    connection.respond_chunked(ExchangeId(1), ResponseHead::new(200).content_type("text/event-stream"));
    connection.chunk(ExchangeId(1), gather(b"one"));
    assert_eq!(sent(&mut connection), "");
    assert!(connection.unsent() > 0 && connection.in_flight() == 4);
    connection.respond(ExchangeId(0), ok("zero"));
    connection.respond(ExchangeId(0), ok("again"));
    let output = sent(&mut connection);
    assert!(output.contains(
        "\r\n\r\nzeroHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    ));
    assert!(output.ends_with("3\r\none\r\n"), "{output}");
    connection.chunk(ExchangeId(1), Gather::new());
    connection.chunk(ExchangeId(1), gather(&[b'x'; 5000]));
    let output = sent(&mut connection);
    assert!(output.starts_with("1388\r\nxxx") && output.ends_with("x\r\n") && output.len() == 5008);
    connection.finish(ExchangeId(1));
    connection.finish(ExchangeId(1));
    connection.chunk(ExchangeId(1), gather(b"late"));
    let output = sent(&mut connection);
    assert!(output.starts_with("0\r\n\r\nHTTP/1.1 200 OK"), "{output}");
    assert_eq!(body(&output), "two");
    connection.respond(ExchangeId(9), ok("unknown"));
    assert_eq!(sent(&mut connection), "");
    connection.respond(ExchangeId(3), ok("three"));
    assert_eq!(body(&sent(&mut connection)), "three");
    assert!(connection.is_idle() && !connection.should_close());
}

#[test]
fn large_bodies_leave_without_a_copy() {
    let mut connection = connection();
    connection.receive(b"GET / HTTP/1.1\r\n\r\n", &mut Recorder::default());
    let large = Slice::copy_of(&[7; 100_000]);
    let mut body = Gather::new();
    body.push(&pool(), large.clone());
    connection.respond(ExchangeId(0), Response::new(ResponseHead::new(200), body));
    let mut pieces = Vec::new();
    connection.output().take(9, &mut pieces);
    assert_eq!(pieces.len(), 2);
    assert!(pieces[1].same_memory(&large));
}

#[test]
fn old_peers_get_streams_up_to_the_end() {
    let mut connection = connection();
    let mut recorder = Recorder::default();
    let request = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    connection.receive(&request.repeat(2), &mut recorder);
    connection.respond_chunked(ExchangeId(0), ResponseHead::new(200));
    connection.chunk(ExchangeId(0), gather(b"abc"));
    connection.respond(ExchangeId(1), ok("never"));
    assert!(!connection.should_close());
    connection.finish(ExchangeId(0));
    let output = sent(&mut connection);
    assert_eq!(output, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nabc");
    assert!(connection.should_close());
}

#[test]
fn some_answers_have_no_body() {
    let mut connection = connection();
    connection
        .receive(b"HEAD / HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", &mut Recorder::default());
    connection.respond(ExchangeId(0), ok("12345"));
    assert_eq!(sent(&mut connection), "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n");
    connection.respond_chunked(ExchangeId(1), ResponseHead::new(200));
    connection.chunk(ExchangeId(1), gather(b"x"));
    connection.finish(ExchangeId(1));
    assert!(sent(&mut connection).ends_with("chunked\r\n\r\n"));
    connection.respond(ExchangeId(2), Response::new(ResponseHead::new(204), gather(b"x")));
    assert_eq!(sent(&mut connection), "HTTP/1.1 204 No Content\r\nContent-Type: text/plain\r\n\r\n");
}

#[test]
fn heads_of_answers_cannot_be_split_by_their_values() {
    let mut connection = connection();
    connection.receive(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", &mut Recorder::default());
    let head = ResponseHead::new(7).header("A\r\n", "b\r\nc: d\0".to_owned()).header("N", 12);
    connection.respond(ExchangeId(0), Response::new(head.content_type("x/y"), Gather::new()));
    let expected = "HTTP/1.1 500 Internal Server Error\r\nA  : b  c: d \r\nN: 12\r\nContent-Type: x/y\r\n\
        Content-Length: 0\r\n\r\n";
    assert_eq!(sent(&mut connection), expected);
    let json = ResponseHead::new(200).content_type("application/json");
    connection.respond(ExchangeId(1), Response::text(&pool(), json, b"{}"));
    let expected = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(sent(&mut connection), expected);
}

#[test]
fn reading_stops_at_the_bounds_and_goes_on_behind_them() {
    let limits = Limits { pipelined: 3, unsent: 1000, ..Limits::default() };
    let mut connection = Connection::new(limits, pool());
    let mut recorder = Recorder::default();
    connection.receive(&b"GET / HTTP/1.1\r\n\r\n".repeat(5), &mut recorder);
    assert_eq!(recorder.requests.len(), 3);
    assert!(!connection.wants_read() && !connection.has_input());
    assert!(!connection.is_receiving(), "the peer is not to blame");
    connection.respond(ExchangeId(1), ok("1"));
    assert!(!connection.has_input());
    connection.respond(ExchangeId(0), ok("0"));
    assert!(connection.has_input() && connection.wants_read());
    connection.receive(&[], &mut recorder);
    assert_eq!(recorder.requests.len(), 5);
    assert!(!connection.has_input());
    (2..5).for_each(|id| connection.respond(ExchangeId(id), ok(&"x".repeat(400))));
    assert!(!connection.wants_read(), "too much is unsent");
    connection.receive(b"GET / HTTP/1.1\r\n\r\n", &mut recorder);
    assert_eq!(recorder.requests.len(), 5);
    sent(&mut connection);
    assert!(connection.has_input());
    connection.receive(&[], &mut recorder);
    assert_eq!(recorder.requests.len(), 6);
    // An owner that reads on regardless is stopped before the memory is gone.
    connection.receive(&b"GET / HTTP/1.1\r\n\r\n".repeat(2), &mut recorder);
    connection.receive(&[b'x'; 80_000], &mut recorder);
    assert!(!connection.wants_read());
    (5..8).for_each(|id| connection.respond(ExchangeId(id), ok("")));
    sent(&mut connection);
    assert!(connection.should_close());
}

#[test]
fn a_draining_connection_answers_what_was_asked() {
    let mut recorder = Recorder::default();
    let mut idle = connection();
    assert!(idle.is_idle() && !idle.should_close());
    idle.close_after_responses();
    assert!(idle.should_close());

    let mut busy = connection();
    busy.receive(
        b"GET /0 HTTP/1.1\r\n\r\nGET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.1\r\nContent-Length: 2\r\n\r\nx",
        &mut recorder,
    );
    busy.close_after_responses();
    assert!(!busy.should_close());
    busy.respond(ExchangeId(0), ok("0"));
    assert!(!sent(&mut busy).contains("close"));
    busy.receive(b"yGET /3 HTTP/1.1\r\n\r\n", &mut recorder);
    assert_eq!(recorder.requests.len(), 3, "nothing new is begun");
    busy.respond(ExchangeId(2), ok("2"));
    busy.respond(ExchangeId(1), ok("1"));
    let output = sent(&mut busy);
    assert_eq!(output.matches("Connection: close").count(), 1);
    assert!(output.ends_with("Connection: close\r\n\r\n2"), "{output}");
    assert!(busy.should_close());

    // A request that has begun to arrive is still served, and told that it was the last.
    let mut late = connection();
    late.receive(b"GET /", &mut recorder);
    late.close_after_responses();
    assert!(!late.should_close() && late.is_receiving());
    late.receive(b" HTTP/1.1\r\n\r\n", &mut recorder);
    late.respond(ExchangeId(0), ok("last"));
    assert!(sent(&mut late).contains("Connection: close"));
    assert!(late.should_close());
}

#[test]
fn a_peer_that_ends_sending_gets_what_it_asked_for() {
    let limits = Limits { pipelined: 2, ..Limits::default() };
    let mut connection = Connection::new(limits, pool());
    let mut recorder = Recorder::default();
    connection.receive(&b"GET / HTTP/1.1\r\n\r\n".repeat(3), &mut recorder);
    connection.end_of_input(&mut recorder);
    assert!(!connection.wants_read() && !connection.should_close());
    (0..2).for_each(|id| connection.respond(ExchangeId(id), ok("")));
    assert!(connection.has_input() && !connection.wants_read());
    connection.receive(&[], &mut recorder);
    assert_eq!(recorder.requests.len(), 3);
    connection.respond(ExchangeId(2), ok("third"));
    assert!(sent(&mut connection).ends_with("third"));
    assert!(connection.should_close());

    for half in ["GET / HT", "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc"] {
        let mut recorder = Recorder::default();
        let mut connection = self::connection();
        connection.receive(half.as_bytes(), &mut recorder);
        connection.end_of_input(&mut recorder);
        assert!(connection.should_close() && sent(&mut connection).is_empty());
        assert_eq!(recorder.events.len(), if half.starts_with("POST") { 2 } else { 0 });
    }
}

/// A small generator of pseudo-random numbers; tests repeat exactly.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn mutated_sessions_never_panic_and_splits_do_not_matter() {
    let alphabet = b"\r\n :,;0159afGPx\0\xff/?%-";
    let mut random = Random(0x0123_4567_89AB_CDEF);
    for round in 0..10_000 {
        let mut input = SESSION.to_vec();
        for _ in 0..=random.below(5) {
            let at = random.below(input.len());
            let byte = alphabet[random.below(alphabet.len())];
            match random.below(4) {
                0 => input[at] = byte,
                1 => input.insert(at, byte),
                2 => input.truncate(at.max(1)),
                _ => drop(input.remove(at)),
            }
            if input.is_empty() {
                input.push(byte);
            }
        }
        let whole = play(connection(), &input, &[]);
        let cut = random.below(input.len());
        assert_eq!(play(connection(), &input, &[cut]), whole, "round {round}: {}", input.escape_ascii());
    }
}

#[derive(Default, Debug, PartialEq, Clone)]
struct Responses {
    current: Vec<u8>,
    done: Vec<(u16, Vec<u8>, bool)>,
    status: u16,
}

impl ResponseSink for Responses {
    fn head(&mut self, status: u16, headers: &[(&str, &[u8])]) {
        assert_eq!(headers[0].0, "Content-Type");
        self.status = status;
    }
    fn body(&mut self, bytes: &[u8]) {
        self.current.extend_from_slice(bytes);
    }
    fn done(&mut self, keep_alive: bool) {
        self.done.push((self.status, std::mem::take(&mut self.current), keep_alive));
    }
}

#[test]
fn both_roles_understand_each_other() {
    let heads = [
        RequestHead { method: "GET", target: "/g", host: "h", headers: &[("A", "b")], body: RequestBody::None },
        RequestHead { method: "HEAD", target: "/h", host: "h", headers: &[], body: RequestBody::None },
        RequestHead { method: "POST", target: "/l", host: "h", headers: &[], body: RequestBody::Length(5) },
        RequestHead {
            method: "POST",
            target: "/c",
            host: "h",
            headers: &[("Expect", "100-continue")],
            body: RequestBody::Chunked,
        },
        RequestHead {
            method: "GET",
            target: "/e",
            host: "h",
            headers: &[("Connection", "close")],
            body: RequestBody::None,
        },
    ];
    let mut input = Vec::new();
    for head in &heads {
        head.encode(&mut input);
        match head.body {
            RequestBody::None => {}
            RequestBody::Length(_) => input.extend_from_slice(b"hello"),
            RequestBody::Chunked => {
                put_chunk(&mut input, b"0123456789abcdefg");
                put_chunk(&mut input, b"");
                put_chunk(&mut input, b"!");
                put_last_chunk(&mut input);
            }
        }
    }
    let mut server = connection();
    let mut recorder = Recorder::default();
    server.receive(&input, &mut recorder);
    for (exchange, path, body) in recorder.requests {
        let text = [path.as_bytes(), b":", &body].concat();
        if path == "/l" {
            server.respond_chunked(exchange, ResponseHead::new(500));
            text.chunks(3).for_each(|piece| server.chunk(exchange, gather(piece)));
            server.finish(exchange);
        } else {
            server.respond(exchange, Response::text(&pool(), ResponseHead::new(200), &text));
        }
    }
    let output = sent(&mut server);
    let expected = [
        (200, b"/g:".to_vec(), true),
        (200, Vec::new(), true),
        (500, b"/l:hello".to_vec(), true),
        (200, b"/c:0123456789abcdefg!".to_vec(), true),
        (200, b"/e:".to_vec(), false),
    ];
    for cut in 0..=output.len() {
        let mut client = ResponseParser::default();
        let mut responses = Responses::default();
        heads.iter().for_each(|head| client.sent(head.method == "HEAD"));
        client.receive(&output.as_bytes()[..cut], &mut responses).unwrap();
        assert_eq!(client.outstanding(), heads.len() - responses.done.len(), "cut at {cut}");
        client.receive(&output.as_bytes()[cut..], &mut responses).unwrap();
        assert_eq!(responses.done, expected, "cut at {cut}");
        assert_eq!(client.end(&mut responses), Ok(()));
    }
}

#[test]
fn the_client_knows_a_bad_response() {
    let receive = |text: &str| {
        let mut client = ResponseParser::default();
        let mut responses = Responses::default();
        client.sent(false);
        client.receive(text.as_bytes(), &mut responses)?;
        client.end(&mut responses).map(|()| responses.done)
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: a\r\n";
    assert_eq!(receive(&format!("{head}\r\nuntil the end")), Ok(vec![(200, b"until the end".to_vec(), false)]));
    assert_eq!(receive(&format!("{head}Content-Length: 3\r\n\r\nab")), Err(ClientError::CutOff));
    assert_eq!(receive(&format!("{head}Content-Length: x\r\n\r\nab")), Err(ClientError::Malformed));
    assert_eq!(receive(&format!("{head}Transfer-Encoding: chunked\r\n\r\nq")), Err(ClientError::Chunks));
    assert_eq!(receive(&format!("{head}Content-Length: 0\r\n\r\n{head}\r\n")), Err(ClientError::Unasked));
    assert_eq!(receive("nonsense\r\n\r\n"), Err(ClientError::Malformed));
    assert_eq!(receive(""), Err(ClientError::CutOff));
    assert_eq!(receive(&"x".repeat(70_000)), Err(ClientError::HeadTooLong { limit: 65_536 }));
    let old = "HTTP/1.0 204 No Content\r\nContent-Type: a\r\nConnection: keep-alive\r\n\r\n";
    assert_eq!(receive(old), Ok(vec![(204, Vec::new(), true)]));
}

#[test]
fn plain_answers_leave_as_if_they_were_ordinary_ones() {
    let long = Slice::copy_of(&[b'l'; 10_000]);
    let tails: [&[Slice]; 3] = [&[], &[Slice::from_static(b"tensor")], &[long.clone(), Slice::from_static(b"x")]];
    for (tail, request) in tails.iter().flat_map(|tail| {
        let requests = [
            "POST /x HTTP/1.1\r\n\r\n",
            "POST /x HTTP/1.1\r\nConnection: close\r\n\r\n",
            "POST /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            "HEAD /x HTTP/1.1\r\n\r\n",
        ];
        requests.map(|request| (tail, request))
    }) {
        let plain = || PlainResponse {
            tail: tail.iter().cloned().collect(),
            json: Slice::from_static(b"{\"a\":1}"),
            is_binary: !tail.is_empty(),
        };
        let answered = |is_plain: bool| {
            let mut connection = connection();
            let mut recorder = Recorder::default();
            connection.receive(format!("GET / HTTP/1.1\r\n\r\n{request}").as_bytes(), &mut recorder);
            for exchange in [ExchangeId(1), ExchangeId(0), ExchangeId(1)] {
                match is_plain {
                    true => connection.respond_plainly(exchange, plain()),
                    false => connection.respond(exchange, plain().into_response(&pool())),
                }
            }
            (sent(&mut connection), connection.should_close())
        };
        assert_eq!(answered(true), answered(false), "{request}");
    }
    let mut connection = connection();
    connection.receive(b"POST / HTTP/1.1\r\n\r\n", &mut Recorder::default());
    let json = Slice::from_static(b"{}");
    let tail = smallvec::smallvec![long.clone()];
    connection.respond_plainly(ExchangeId(0), PlainResponse { tail, json, is_binary: true });
    let mut pieces = Vec::new();
    connection.output().take(8, &mut pieces);
    assert!(pieces.iter().any(|piece| piece.same_memory(&long)), "large tensors are not copied");
}

#[test]
fn heads_that_come_again_are_the_same_requests() {
    let head = |json: usize, body: usize| {
        format!(
            "POST /m HTTP/1.1\r\nHost: h\r\nInference-Header-Content-Length: {json}\r\nContent-Length: {body}\r\n\r\n"
        )
    };
    let mut input = Vec::new();
    for body in [0, 5, 5, 9, 10, 123, 7, 0, 0] {
        input.extend_from_slice(head(body / 2, body).as_bytes());
        input.extend(std::iter::repeat_n(b'x', body));
    }
    input
        .extend_from_slice(b"\r\n\r\nGET /other HTTP/1.1\r\nHost: h\r\n\r\n\r\nGET /other HTTP/1.1\r\nHost: h\r\n\r\n");
    input.extend_from_slice(head(1, 2).replace("/m", "/n").as_bytes());
    input.extend_from_slice(b"ab");
    let whole = play(connection(), &input, &[]);
    assert_eq!(whole.0.len(), play(connection(), &input, &[input.len() / 2]).0.len());
    for cut in 0..input.len() {
        assert_eq!(play(connection(), &input, &[cut]), whole, "cut at {cut}");
    }
    let bytewise: Vec<usize> = (0..input.len()).collect();
    assert_eq!(play(connection(), &input, &bytewise), whole, "byte by byte, where no head is recognised");
    // Empty lines before a head are counted as ever.
    let mut many = head(1, 0).into_bytes();
    many.extend_from_slice(&b"\r\n".repeat(40));
    many.extend_from_slice(head(1, 0).as_bytes());
    assert_eq!(status_of_last(&many), 400);
}

/// Of a session's last answer.
fn status_of_last(input: &[u8]) -> u16 {
    let mut connection = connection();
    let mut recorder = Recorder::default();
    connection.receive(input, &mut recorder);
    (0..recorder.requests.len()).for_each(|id| connection.respond(ExchangeId(id as u64), ok("")));
    let output = sent(&mut connection);
    let last = output.rsplit("HTTP/1.1 ").next().unwrap_or_default();
    last.get(..3).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// As in the registry of status codes (RFC 9110 section 15, RFC 6585), which HTTP/1.1 clients print.
#[test]
fn reason_phrases_are_those_of_the_registry() {
    let registered = [
        (100, "Continue"),
        (200, "OK"),
        (201, "Created"),
        (202, "Accepted"),
        (204, "No Content"),
        (304, "Not Modified"),
        (400, "Bad Request"),
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "Not Found"),
        (405, "Method Not Allowed"),
        (408, "Request Timeout"),
        (409, "Conflict"),
        (413, "Content Too Large"),
        (414, "URI Too Long"),
        (415, "Unsupported Media Type"),
        (422, "Unprocessable Content"),
        (429, "Too Many Requests"),
        (431, "Request Header Fields Too Large"),
        (500, "Internal Server Error"),
        (501, "Not Implemented"),
        (502, "Bad Gateway"),
        (503, "Service Unavailable"),
        (504, "Gateway Timeout"),
        (505, "HTTP Version Not Supported"),
        (507, "Insufficient Storage"),
        (299, "Unknown"),
    ];
    for (status, reason) in registered {
        let mut connection = connection();
        connection.receive(b"GET / HTTP/1.1\r\n\r\n", &mut Recorder::default());
        connection.respond(ExchangeId(0), Response::empty(status));
        let written = connection.output().to_vec();
        let expected = format!("HTTP/1.1 {status} {reason}\r\n");
        assert!(written.starts_with(expected.as_bytes()), "{}", written.escape_ascii());
    }
}
