//! Connections: keep-alive, pipelining, chunked bodies, `Expect`, every split of the bytes, and peers that get the
//! framing wrong (RFC 9112; contract/http.md section 2).

use std::io::Write;
use std::time::Duration;

use serde_json::json;

use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, Variant, each, usual};

const INFER: &str = "/v2/models/plain/infer";

fn start(variant: Variant) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(variant, repository.path(), &[]);
    (repository, server)
}

/// An inference request whose tensor is [number].
fn body(number: usize) -> String {
    format!(r#"{{"id":"{number}","inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[{number}]}}]}}"#)
}

#[test]
fn a_connection_serves_many_requests() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peer = Peer::connect(server.http);
        for number in 0..500 {
            let answer = peer.post(INFER, &[], body(number).as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["outputs"][0]["data"], json!([number]));
        }
        server.stop();
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peer = Peer::connect(server.http);
        // Fast and slow requests mixed: those without a model must not overtake the others.
        let mut bytes = Vec::new();
        for number in 0..200 {
            match number % 4 {
                0 => bytes.extend(request("GET", "/v2/health/live", &[], b"")),
                1 => bytes.extend(request("GET", "/nowhere", &[], b"")),
                _ => bytes.extend(request("POST", INFER, &[], body(number).as_bytes())),
            }
        }
        peer.send(&bytes);
        for number in 0..200 {
            let answer = peer.answer();
            match number % 4 {
                0 => assert_eq!((answer.status, answer.text()), (200, String::new()), "{number}"),
                1 => assert_eq!(answer.status, 404, "{number}"),
                _ => assert_eq!(answer.json()["id"], number.to_string(), "{number}"),
            }
        }
        server.stop();
    });
}

#[test]
fn chunked_bodies_are_put_together() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peer = Peer::connect(server.http);
        let whole = body(77);
        for size in [1, 2, 7, 1000] {
            let mut bytes =
                format!("POST {INFER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
            for piece in whole.as_bytes().chunks(size) {
                bytes.extend(format!("{:X};ext=1\r\n", piece.len()).bytes());
                bytes.extend_from_slice(piece);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\nTrailer: ignored\r\n\r\n");
            let answer = peer.send(&bytes).answer();
            assert_eq!(answer.status, 200, "chunks of {size}: {}", answer.text());
            assert_eq!(answer.json()["outputs"][0]["data"], json!([77]), "chunks of {size}");
        }
        assert_eq!(peer.get("/v2/health/live").status, 200);
        server.stop();
    });
}

#[test]
fn too_many_chunks_are_refused() {
    let (_repository, server) = start(usual());
    let mut peer = Peer::connect(server.http);
    peer.send(format!("POST {INFER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes());
    // The server may close the connection before it has read all of them.
    let _ = peer.try_send(&b"1\r\n \r\n".repeat(65_537));
    match peer.try_answer() {
        Ok(answer) => {
            let text =
                "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks.";
            assert_eq!((answer.status, answer.error().as_str()), (400, text));
        }
        Err(problem) => panic!("expected a 400, got {problem}"),
    }
    server.stop();
}

#[test]
fn expect_100_continue_is_honoured() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peer = Peer::connect(server.http);
        let body = body(5);
        let head = format!(
            "POST {INFER} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let interim = peer.send(head.as_bytes()).answer();
        assert_eq!(interim.status, 100, "{interim:?}");
        let answer = peer.send(body.as_bytes()).answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.stop();
    });
}

#[test]
fn who_wants_the_connection_closed_gets_it_closed() {
    let (_repository, server) = start(usual());
    for head in [
        "GET /v2/health/live HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
        "GET /v2/health/live HTTP/1.1\r\nHost: t\r\nConnection: foo, Close\r\n\r\n",
        "GET /v2/health/live HTTP/1.0\r\n\r\n",
    ] {
        let mut peer = Peer::connect(server.http);
        assert_eq!(peer.send(head.as_bytes()).answer().status, 200, "{head:?}");
        peer.expect_close();
    }
    // HTTP/1.0 with keep-alive: the connection stays open.
    let mut peer = Peer::connect(server.http);
    for _ in 0..2 {
        let head = "GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
        assert_eq!(peer.send(head.as_bytes()).answer().status, 200);
    }
    server.stop();
}

#[test]
fn every_split_of_a_request_is_the_same_request() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peer = Peer::connect(server.http);
        let bytes = request("POST", INFER, &[("X-Mine", "1")], body(9).as_bytes());
        for at in 1..bytes.len() {
            let (first, second) = bytes.split_at(at);
            let answer = peer.send(first).send(second).answer();
            assert_eq!(answer.status, 200, "split at {at}: {}", answer.text());
            assert_eq!(answer.json()["outputs"][0]["data"], json!([9]), "split at {at}");
        }
        for &byte in &bytes {
            peer.send(&[byte]);
        }
        assert_eq!(peer.answer().json()["outputs"][0]["data"], json!([9]), "byte by byte");
        server.stop();
    });
}

#[test]
fn what_is_no_http_is_refused_and_closed() {
    let (_repository, server) = start(usual());
    for (bytes, status) in [
        (&b"NONSENSE\r\n\r\n"[..], 400),
        (b"GET /v2 HTTP/1.1\r\nHost: t\r\nbroken header\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: t\r\n bad: folding\r\n\r\n", 400),
        (b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\nHost: u\r\n\r\n", 400),
        (b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\nX: y\r\nHost: t\r\n\r\n", 400),
        (
            b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
            400,
        ),
        (b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
        (b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ] {
        let mut peer = Peer::connect(server.http);
        peer.try_send(bytes);
        let what = String::from_utf8_lossy(bytes);
        let answer = peer.try_answer().unwrap_or_else(|problem| panic!("{what:?}: {problem}"));
        assert_eq!(answer.status, status, "{what:?}: {}", answer.text());
        peer.expect_close();
    }
    assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 200);
    server.stop();
}

/// Hand-written clients omit this header, and Triton serves them.
#[test]
fn a_request_without_a_host_is_served() {
    let (_repository, server) = start(usual());
    for version in ["1.0", "1.1"] {
        let mut peer = Peer::connect(server.http);
        let answer = peer.send(format!("GET /v2/health/live HTTP/{version}\r\n\r\n").as_bytes()).answer();
        assert_eq!(answer.status, 200, "HTTP/{version}");
    }
    server.stop();
}

/// As in Triton the chunks determine the body. Bytes that would be a second request by the length alone are never read
/// as one.
#[test]
fn chunks_overrule_a_length_and_end_the_connection() {
    let (_repository, server) = start(usual());
    let body = body(77);
    let chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for length in ["3", "999999", "x"] {
        let fields = [format!("Content-Length: {length}"), "Transfer-Encoding: chunked".to_owned()];
        for fields in [fields.join("\r\n"), fields.iter().rev().cloned().collect::<Vec<_>>().join("\r\n")] {
            let mut peer = Peer::connect(server.http);
            let smuggled = "GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n";
            peer.send(format!("POST {INFER} HTTP/1.1\r\nHost: t\r\n{fields}\r\n\r\n{chunks}{smuggled}").as_bytes());
            let answer = peer.answer();
            assert_eq!(answer.status, 200, "{fields}: {}", answer.text());
            assert_eq!(answer.json()["outputs"][0]["data"], json!([77]), "{fields}");
            assert_eq!(answer.header("connection"), Some("close"), "{fields}");
            peer.expect_close();
        }
    }
    server.stop();
}

/// A chunk that is too large is refused by its announced size, before its bytes arrive.
#[test]
fn a_chunk_over_the_limit_is_refused_at_once() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    for (size, status) in [("ffffffffffff\r\n", 413), ("fffffffffffffff", 413), ("10000000000000000\r\n", 413)] {
        let mut peer = Peer::connect(server.http);
        let head = format!("POST {INFER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
        let answer = peer.send(format!("{head}2\r\n{{ \r\n{size}").as_bytes()).answer();
        assert_eq!(answer.status, status, "{size:?}: {}", answer.text());
        peer.expect_close();
    }
    server.stop();
}

/// A refusal for a temporary reason, by a handler or by the model, contains the time after which to retry.
#[test]
fn what_is_unavailable_says_when_to_come_again() {
    let (_repository, server) = start(usual());
    let mut peer = Peer::connect(server.http);
    let answer = peer.post("/v2/repository/models/plain/load", &[], b"");
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
    for path in ["/v2/health/ready", "/v2/models/absent"] {
        assert_eq!(peer.get(path).header("retry-after"), None, "{path}");
    }
    server.stop();
}

#[test]
fn heads_are_bounded() {
    let (_repository, server) = start(usual());
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(200_000));
    let wide = format!("GET /v2 HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", "b".repeat(200_000));
    let many = format!("GET /v2 HTTP/1.1\r\nHost: t\r\n{}\r\n", "X: y\r\n".repeat(5_000));
    for (bytes, statuses) in [(long_path, [414, 431]), (wide, [431, 431]), (many, [431, 431])] {
        let mut peer = Peer::connect(server.http);
        let _ = peer.try_send(bytes.as_bytes());
        // If bytes were left unread, a reset may overtake the response; if there is a response, it must be the right
        // one.
        if let Ok(answer) = peer.try_answer() {
            assert!(statuses.contains(&answer.status), "{}… got {}", &bytes[..20], answer.status);
        }
    }
    // If the request ends right after the bound, no bytes are left unread.
    let beyond = 64 * 1024 + 1;
    let path = format!("GET /{}", "a".repeat(beyond - 5));
    let field = "GET /v2 HTTP/1.1\r\nHost: t\r\nX: ";
    let wide = format!("{field}{}", "b".repeat(beyond - field.len()));
    let many = format!("GET /v2 HTTP/1.1\r\nHost: t\r\n{}\r\n", "X: y\r\n".repeat(128));
    for (bytes, statuses) in [(path, [414, 431]), (wide, [431, 431]), (many, [431, 431])] {
        let mut peer = Peer::connect(server.http);
        peer.send(bytes.as_bytes());
        let answer = peer.answer();
        assert!(statuses.contains(&answer.status), "{}… got {}", &bytes[..20], answer.status);
    }
    let mut peer = Peer::connect(server.http);
    let fits = format!("GET /v2/health/live HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", "b".repeat(8_000));
    assert_eq!(peer.send(fits.as_bytes()).answer().status, 200);
    server.stop();
}

#[test]
fn many_connections_are_served_at_once() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peers: Vec<Peer> = (0..300).map(|_| Peer::connect(server.http)).collect();
        for round in 0..3 {
            for (number, peer) in peers.iter_mut().enumerate() {
                peer.send(&request("POST", INFER, &[], body(number * 3 + round).as_bytes()));
            }
            for (number, peer) in peers.iter_mut().enumerate() {
                assert_eq!(peer.answer().json()["outputs"][0]["data"], json!([number * 3 + round]));
            }
        }
        drop(peers);
        server.stop();
    });
}

#[test]
fn a_head_request_gets_no_body() {
    let (_repository, server) = start(usual());
    let mut peer = Peer::connect(server.http);
    peer.send(b"HEAD /nowhere HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    let answer = peer.try_answer();
    // The reader above relies on Content-Length; a response to HEAD has one, but the connection ends right after the
    // head.
    match answer {
        Err(problem) => assert!(problem.contains("the connection ended after \"\""), "{problem}"),
        Ok(answer) => assert!(answer.body.is_empty(), "a body for HEAD: {:?}", answer.text()),
    }
    server.stop();
}

/// What a signal, or the end of an io_uring, interrupts is neither an answer nor the end of a connection.
#[test]
fn a_peer_that_is_interrupted_waits_on() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = std::thread::spawn(move || {
        let (mut taken, _) = listener.accept().expect("a connection");
        std::thread::sleep(Duration::from_millis(200));
        taken.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("send");
        std::thread::sleep(Duration::from_millis(200));
    });
    let mut peer = Peer::connect(address);
    for step in ["an answer", "the end"] {
        if !variant::interrupt_next_wait() {
            skip("this host refuses io_uring");
            break;
        }
        match step {
            "an answer" => assert_eq!(peer.answer().status, 200),
            _ => peer.expect_close(),
        }
    }
    server.join().expect("the server");
}
