//! Invalid HTTP/1.1 sent to a whole server: for each sequence of bytes the response, and the state of the connection
//! afterwards (contract/http.md sections 1 and 2; RFC 9112). Another client is served meanwhile.

use std::io::{Read, Write};

use serde_json::json;

use nereid_test_support::certificates::Certificates;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each, usual};

const INFER: &str = "/v2/models/plain/infer";
const BODY: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}"#;
/// Follows each row on the wire: where the connection is over, nobody may answer it.
const SMUGGLED: &str = "GET /v2/smuggled HTTP/1.1\r\nHost: t\r\n\r\n";

/// What is left of the connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    /// The next request is answered as usual.
    Kept,
    /// The server reads no more and closes.
    Closed,
}
use After::{Closed, Kept};

fn start(variant: Variant) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(variant, repository.path(), &[]);
    (repository, server)
}

/// A request to infer with these lines of its head, and a body.
fn post(lines: &str, body: &str) -> String {
    format!("POST {INFER} HTTP/1.1\r\nHost: t\r\n{lines}\r\n{body}")
}

fn chunked(body: &str) -> String {
    post("Transfer-Encoding: chunked\r\n", body)
}

/// `BODY` as one chunk, with these bytes behind its size.
fn one_chunk(extension: &str) -> String {
    chunked(&format!("{:x}{extension}\r\n{BODY}\r\n0\r\n\r\n", BODY.len()))
}

fn live(lines: &str) -> String {
    format!("GET /v2/health/live HTTP/1.1\r\nHost: t\r\n{lines}\r\n")
}

/// Bytes, status, what is left; a part of the error text where there is one.
fn rows() -> Vec<(String, u16, After, &'static str)> {
    let length = BODY.len();
    let plain = |head: &str| (head.to_owned(), 400, Closed, "malformed HTTP request");
    let mut rows = vec![
        // Heads.
        plain(&live("X: a\r\n folded\r\n")),
        plain(&live("X: a\r\n\tfolded\r\n")),
        plain("GET /v2/health/live HTTP/1.1\r\n Host: t\r\n\r\n"),
        plain(&live("X : a\r\n")),
        plain(&live("X: a\0b\r\n")),
        plain(&live("X\0: a\r\n")),
        plain(&live("X: a\rb\r\n")),
        plain(&live("no colon\r\n")),
        plain(&live(": no name\r\n")),
        plain("GET /v2/health\0/live HTTP/1.1\r\nHost: t\r\n\r\n"),
        plain("GET  /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"),
        plain("GET /v2/health/live\r\n\r\n"),
        plain("\x16\x03\x01\x02\0\r\n\r\n"),
        ("GET /v2/health/live HTTP/2.0\r\nHost: t\r\n\r\n".into(), 505, Closed, "unsupported HTTP version"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 505, Closed, "unsupported HTTP version"),
        // Lengths.
        (post(&format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"), BODY), 200, Kept, ""),
        (
            post(&format!("Content-Length: {length}\r\nContent-Length: 1\r\n"), BODY),
            400,
            Closed,
            "conflicting Content-Length",
        ),
        (post(&format!("Content-Length: {length}, {length}\r\n"), BODY), 400, Closed, "Content-Length"),
        (post(&format!("Content-Length: +{length}\r\n"), BODY), 400, Closed, "Content-Length"),
        (post(&format!("Content-Length: -{length}\r\n"), BODY), 400, Closed, "Content-Length"),
        (post(&format!("Content-Length: 0x{length:x}\r\n"), BODY), 400, Closed, "Content-Length"),
        (post("Content-Length: \r\n", BODY), 400, Closed, "Content-Length"),
        (
            post("Content-Length: 2147483648\r\n", ""),
            400,
            Closed,
            "Unable to parse Content-Length, value is out of range",
        ),
        (post("Content-Length: 99999999999999999999\r\n", ""), 400, Closed, "Content-Length"),
        (
            post(&format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"), "0\r\n\r\n"),
            200,
            Closed,
            "\"outputs\"",
        ),
        (post("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", "0\r\n\r\n"), 200, Closed, "\"outputs\""),
        // Codings.
        (post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 400, Closed, "must end with one 'chunked'"),
        (post("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"), 400, Closed, "must end with one 'chunked'"),
        (post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501, Closed, "unsupported Transfer-Encoding"),
        (post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 501, Closed, "unsupported Transfer-Encoding"),
        (
            format!("POST {INFER} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            400,
            Closed,
            "Transfer-Encoding needs HTTP/1.1",
        ),
        // Persistence.
        (live(""), 200, Kept, ""),
        (live("Connection: close\r\n"), 200, Closed, ""),
        ("GET /v2/health/live HTTP/1.0\r\n\r\n".into(), 200, Closed, ""),
        ("GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".into(), 200, Kept, ""),
        (format!("\r\n\r\n{}", live("")), 200, Kept, ""),
        (live("Content-Length: 5\r\n") + "12345", 200, Kept, ""),
        ("GET /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\n12345".into(), 404, Kept, "Not Found"),
        (
            format!("POST {INFER} HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: {length}\r\n\r\n{BODY}"),
            200,
            Kept,
            "",
        ),
    ];
    // Chunks.
    for extension in ["", ";a", ";a=b", "; a = \"b\"", ";"] {
        rows.push((one_chunk(extension), 200, Kept, ""));
    }
    let long = one_chunk(&format!(";{}", "x".repeat(20_000)));
    rows.push((long, 400, Closed, "extensions or trailers of a chunked body exceed"));
    let trailers = format!("{length:x}\r\n{BODY}\r\n0\r\n{}\r\n", "T: x\r\n".repeat(5000));
    rows.push((chunked(&trailers), 400, Closed, "extensions or trailers of a chunked body exceed"));
    rows.push((chunked(&format!("{length:x}\r\n{BODY}\r\n0\r\nTrailer: x\r\n\r\n")), 200, Kept, ""));
    for size in ["zz", "", "-1", "+5", "0x5", " 5", "5\0"] {
        rows.push((chunked(&format!("{size}\r\n12345\r\n0\r\n\r\n")), 400, Closed, "malformed chunked body"));
    }
    // More than there is room for, in a number and beyond every number.
    for size in ["ffffffffff", "ffffffffffffffff1"] {
        rows.push((chunked(&format!("{size}\r\n12345\r\n0\r\n\r\n")), 413, Closed, "request body exceeds the maximum"));
    }
    for body in ["5\r\n123456\r\n0\r\n\r\n", "5\r\n12345\n\n0\r\n\r\n", "5\r\r12345\r\n0\r\n\r\n"] {
        rows.push((chunked(body), 400, Closed, "malformed chunked body"));
    }
    rows
}

/// Answers the row's request and says what is left of the connection; Err where either is not as it should be.
fn judge(server: &Server, bytes: &str, status: u16, after: After, error: &str) -> Result<(), String> {
    let mut peer = Peer::connect(server.http);
    let _ = peer.try_send(bytes.as_bytes());
    // What a second hand might take for another request.
    let _ = peer.try_send(SMUGGLED.as_bytes());
    let answer = peer.try_answer()?;
    if answer.status != status {
        return Err(format!("{} {}", answer.status, answer.text()));
    }
    if !error.is_empty() && !answer.text().contains(error) {
        return Err(answer.text());
    }
    match after {
        Kept => {
            let smuggled = peer.try_answer()?;
            let next = peer.get("/v2/health/live");
            match (smuggled.status, next.status) {
                (404, 200) => Ok(()),
                statuses => Err(format!("then {statuses:?}")),
            }
        }
        Closed => match peer.try_answer() {
            Err(problem) if problem.contains("the connection ended after \"\"") => Ok(()),
            Err(problem) => Err(format!("then {problem}")),
            Ok(second) => Err(format!("then {} {}", second.status, second.text())),
        },
    }
}

#[test]
fn every_form_has_its_answer_and_leaves_the_connection_in_its_state() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut polite = Peer::connect(server.http);
        let mut wrong = Vec::new();
        for (bytes, status, after, error) in rows() {
            if let Err(got) = judge(&server, &bytes, status, after, error) {
                let shown: String = bytes.chars().take(300).collect();
                wrong.push(format!("{shown:?}: expected {status} {error:?} {after:?}, got {got}"));
            }
            let answer = polite.post(INFER, &[], BODY.as_bytes());
            assert_eq!(answer.json()["outputs"][0]["data"], json!([7]), "the other client, beside {bytes:?}");
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        server.stop();
    });
}

#[test]
fn a_malformed_request_ends_a_pipeline_behind_what_was_asked_before() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peer = Peer::connect(server.http);
        let good = post(&format!("Content-Length: {}\r\n", BODY.len()), BODY);
        peer.try_send([good.as_str(), good.as_str(), &live("X : a\r\n"), good.as_str()].concat().as_bytes());
        for _ in 0..2 {
            assert_eq!(peer.answer().json()["outputs"][0]["data"], json!([7]));
        }
        let last = peer.answer();
        assert_eq!((last.status, last.error().as_str()), (400, "malformed HTTP request"));
        assert_eq!(last.header("connection"), Some("close"));
        peer.expect_close();
        server.stop();
    });
}

#[test]
fn as_many_chunks_as_are_allowed_and_one_more() {
    let (_repository, server) = start(usual());
    let mut polite = Peer::connect(server.http);
    for (count, status) in [(65_536, 200), (65_537, 400)] {
        let mut peer = Peer::connect(server.http);
        peer.send(chunked("").as_bytes());
        // Blanks behind the document belong to it.
        let mut chunks: String = BODY.chars().map(|c| format!("1\r\n{c}\r\n")).collect();
        chunks.push_str(&"1\r\n \r\n".repeat(count - BODY.len()));
        let _ = peer.try_send(chunks.as_bytes());
        assert_eq!(polite.get("/v2/health/live").status, 200);
        let _ = peer.try_send(b"0\r\n\r\n");
        let answer = peer.try_answer().unwrap_or_else(|problem| panic!("{count} chunks: {problem}"));
        assert_eq!(answer.status, status, "{count} chunks: {}", answer.text());
        if status == 200 {
            assert_eq!(peer.get("/v2/health/live").status, 200, "the connection is kept");
        } else {
            let text =
                "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks.";
            assert_eq!(answer.error(), text);
            assert_eq!(answer.header("connection"), Some("close"));
            peer.expect_close();
        }
    }
    server.stop();
}

#[test]
fn who_waits_for_100_continue() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peer = Peer::connect(server.http);
        let length = BODY.len();
        for _ in 0..2 {
            peer.send(post(&format!("Expect: 100-continue\r\nContent-Length: {length}\r\n"), "").as_bytes());
            assert_eq!(peer.answer().status, 100);
            assert_eq!(peer.send(BODY.as_bytes()).answer().status, 200);
        }
        // The body is there already: whether it is told to go on or not, it is answered once.
        peer.send(post(&format!("Expect: 100-continue\r\nContent-Length: {length}\r\n"), BODY).as_bytes());
        let mut answer = peer.answer();
        if answer.status == 100 {
            answer = peer.answer();
        }
        assert_eq!(answer.status, 200);
        // One that is refused is not told to go on, and the connection ends: its body may follow or not.
        peer.send(post("Expect: 100-continue\r\nContent-Length: 2147483648\r\n", "").as_bytes());
        assert_eq!(peer.answer().status, 400);
        peer.expect_close();
        // HTTP/1.0 knows no interim answers (RFC 9110 section 10.1.1).
        let mut old = Peer::connect(server.http);
        let head = format!("POST {INFER} HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n");
        assert_eq!(old.send(head.as_bytes()).send(BODY.as_bytes()).answer().status, 200);
        server.stop();
    });
}

#[test]
fn who_stops_half_way_gets_no_answer_and_disturbs_nobody() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut polite = Peer::connect(server.http);
        let whole = post(&format!("Content-Length: {}\r\n", BODY.len()), BODY);
        for at in [1, 20, whole.len() - BODY.len(), whole.len() - 1] {
            let mut peer = Peer::connect(server.http);
            peer.send(&whole.as_bytes()[..at]).finish();
            peer.expect_close();
            assert_eq!(polite.get("/v2/health/live").status, 200);
        }
        server.stop();
    });
}

/// The same answers come out of a TLS session.
#[test]
fn malformed_requests_over_tls() {
    let Some(files) = Certificates::make() else { return };
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let flags = files.server_flags("http");
    let words: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start_saying(usual(), repository.path(), &words, "Started HTTPService at ");
    let mut seen = 0;
    for (bytes, status, after, error) in rows().into_iter().filter(|(_, _, after, _)| *after == Closed) {
        let mut peer = files.connect(server.http, &["http/1.1"]);
        let _ = peer.write_all(bytes.as_bytes()).and_then(|()| peer.write_all(SMUGGLED.as_bytes()));
        let mut answer = Vec::new();
        // An end without close_notify would be an error.
        peer.read_to_end(&mut answer).unwrap_or_else(|problem| panic!("{bytes:?} {after:?}: {problem}"));
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let line = answer.lines().next().unwrap_or_default();
        assert!(line.starts_with("HTTP/1.") && line[8..].starts_with(&format!(" {status} ")), "{bytes:?}: {answer}");
        let answers = answer.split("\r\n").filter(|line| line.starts_with("HTTP/1.")).count();
        assert_eq!(answers, 1, "{bytes:?}: one answer only: {answer}");
        assert!(answer.contains(error), "{bytes:?}: {answer}");
        seen += 1;
    }
    assert!(seen > 30);
    server.stop();
}
