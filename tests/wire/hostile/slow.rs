//! Slow peers, and peers that use up all descriptors.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::hostile::{assert_healthy, expect_descriptors, http2_session};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, binary};
use nereid_test_support::variant::usual;

/// Sends `front`, then a byte now and then, until the server ends the connection; says what it answered.
fn trickle(address: std::net::SocketAddr, front: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a read timeout");
    stream.write_all(front).expect("send");
    let started = Instant::now();
    let (mut answer, mut portion) = (Vec::new(), [0; 4096]);
    loop {
        assert!(started.elapsed() < PATIENCE, "a peer that trickles stays for ever: {:?}", front.escape_ascii());
        let gone = stream.write_all(b"x").is_err();
        match stream.read(&mut portion) {
            Ok(0) => return answer,
            Ok(n) => answer.extend_from_slice(&portion[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) && !gone => {}
            Err(_) => return answer,
        }
    }
}

#[test]
fn peers_that_trickle_are_given_up() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    // What trickles here moves some 50 bytes a second. Others, which a busy machine delays, need not be as quick.
    let flags = ["--slow-peer-secs=5", "--slow-peer-min-rate=2000", "--log-info=false"];
    let server = Server::start(usual(), repository.path(), &flags);
    let session = http2_session(&[0; 4000]);
    let cases: [(std::net::SocketAddr, &[u8]); 4] = [
        (server.http, b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nX-Long: "),
        (server.http, b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n{"),
        // In the middle of the preface, and of the headers.
        (server.grpc, b"PRI"),
        (server.grpc, session.get(..50).expect("a session")),
    ];
    let answers: Vec<_> = std::thread::scope(|scope| {
        let peers: Vec<_> = cases.iter().map(|(address, front)| scope.spawn(|| trickle(*address, front))).collect();
        peers.into_iter().map(|peer| peer.join().expect("a peer")).collect()
    });
    assert!(answers.iter().all(|answer| !answer.starts_with(b"HTTP/1.1 2")), "{answers:?}");
    assert_healthy(&server);
    server.stop();
}

/// All descriptors are taken by connections that say nothing: whoever asks now is answered all the same.
#[test]
fn health_answers_when_descriptors_run_out() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    let program = binary().into_string().expect("the binary's path is UTF-8");
    let words = ["sh", "-c", "ulimit -n 200; exec \"$0\" \"$@\"", &program].map(str::to_owned);
    let flags = ["--log-info=false"];
    let started = Instant::now();
    let server = Server::start_under(&words, usual(), repository.path(), &flags, "/v2/health/ready");
    let descriptors = server.descriptors();
    let idle: Vec<_> = (0..400).map(|_| TcpStream::connect(server.http).expect("a connection")).collect();
    for _ in 0..5 {
        assert_eq!(Peer::connect(server.http).get("/v2/health/ready").status, 200);
    }
    drop(idle);
    // Until then each connection has one request only.
    expect_descriptors(&server, descriptors);
    assert_healthy(&server);
    let log = server.stop();
    // Once in ten seconds, of each thread that accepts.
    let most = 3 * (1 + started.elapsed().as_secs() as usize / 10);
    assert!(log.matches("cannot accept a connection").count() <= most, "{log}");
}
