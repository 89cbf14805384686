//! Responses of a server that is stopping (contract/http.md sections 2 and 3) to requests whose heads arrived before
//! the signal and whose bodies arrive after it.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::{self, each};

const EXITING: &str = "Server exiting";
const NOT_READY: &str = "Server not ready";
const INFER: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[8]}]}"#;

/// When the port refuses connections the server is exiting on every shard.
fn wait_for_closed_door(server: &Server) {
    let started = Instant::now();
    while TcpStream::connect(server.http).is_ok() {
        assert!(started.elapsed() < PATIENCE, "the port stays open:\n{}", server.log());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn management_is_refused_and_inference_goes_on() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let flags = ["--exit-timeout-secs=100", "--model-control-mode=explicit", "--load-model=plain"];
        let server = Server::start(variant, repository.path(), &flags);
        let expected = [
            ("GET", "/v2/health/live", " ", 503, EXITING),
            ("GET", "/v2/health/ready", " ", 503, EXITING),
            ("GET", "/v2/models/plain/ready", " ", 503, NOT_READY),
            ("GET", "/v2/models/absent/versions/1/ready", " ", 400, "Model version not ready"),
            ("GET", "/v2/models/plain", " ", 503, NOT_READY),
            ("GET", "/v2/models/plain/versions/1", " ", 503, NOT_READY),
            ("GET", "/v2/models/absent", " ", 503, NOT_READY),
            ("GET", "/v2/models/plain/stats", " ", 503, NOT_READY),
            ("GET", "/v2/models/stats", " ", 503, NOT_READY),
            ("POST", "/v2/repository/index", "{}", 503, NOT_READY),
            ("POST", "/v2/repository/models/plain/load", "{}", 503, NOT_READY),
            ("POST", "/v2/repository/models/plain/unload", "{}", 503, NOT_READY),
            // Requests that need no model manager, and inference with its lookup.
            ("GET", "/v2", " ", 200, ""),
            ("GET", "/v2/logging", " ", 200, ""),
            ("GET", "/v2/models/plain/config", " ", 200, ""),
            ("POST", "/v2/models/plain/infer", INFER, 200, ""),
            ("POST", "/v2/models/absent/infer", INFER, 404, "Request for unknown model: 'absent' is not found"),
            ("GET", "/v2/nowhere", " ", 404, "Not Found"),
        ];
        // Connections without a request, on every shard: each shard closes its own when it learns of the end.
        let mut idle: Vec<Peer> = (0..16).map(|_| Peer::connect(server.http)).collect();
        idle.iter_mut().for_each(|peer| assert_eq!(peer.get("/v2/health/live").status, 200));
        let mut peers: Vec<Peer> = Vec::new();
        for (method, path, body, ..) in expected {
            let mut peer = Peer::connect(server.http);
            let length = body.len();
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
            );
            // The interim response shows that the head was read: this request is in flight.
            assert_eq!(peer.send(head.as_bytes()).answer().status, 100, "{method} {path}");
            peers.push(peer);
        }
        server.terminate();
        wait_for_closed_door(&server);
        // The first shard closes the port for all; the others may learn of the end later.
        idle.iter_mut().for_each(Peer::expect_close);
        for (peer, (method, path, body, status, text)) in peers.iter_mut().zip(expected) {
            peer.send(body.as_bytes());
            let answer = peer.try_answer().unwrap_or_else(|problem| panic!("{method} {path}: {problem}"));
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
            if !text.is_empty() {
                assert_eq!(answer.error(), text, "{method} {path}");
            }
            assert!(answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")), "{path}");
            peer.expect_close();
        }
        let (status, log) = server.wait();
        assert_eq!(status.code(), Some(0), "{log}");
    });
}
