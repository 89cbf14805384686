//! One server replaces another: after SIGTERM the old one serves for `--drain-delay`, is not ready, and tells its
//! clients to connect elsewhere. No request is lost.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use nereid_wire::inference::{
    ModelInferResponse, ServerLiveRequest, ServerLiveResponse, ServerReadyRequest, ServerReadyResponse,
};
use serde_json::json;

use crate::process::one_number::{BODY, message};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each};

const PATH: &str = "/v2/models/plain/infer";

fn plain_repository() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

/// Asks, and asserts the answer. Says whether the connection can be used again.
fn infer(peer: &mut Peer) -> bool {
    let answer = peer.post(PATH, &[], BODY);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["outputs"][0]["data"], json!([8]));
    !answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
}

fn infer_grpc(grpc: &mut Grpc) {
    let answer: ModelInferResponse =
        grpc.call("ModelInfer", &message("plain")).unwrap_or_else(|status| panic!("{status:?}"));
    assert_eq!(answer.raw_output_contents[0].as_ref(), [9, 0, 0, 0]);
}

#[test]
fn a_server_that_leaves_serves_everything_and_is_not_ready() {
    each(&variant::ALL, |variant| {
        let repository = plain_repository();
        // A second signal ends the delay.
        let flags = ["--drain-delay=1000", "--exit-timeout-secs=3000"];
        let server = Server::start(variant, repository.path(), &flags);
        let mut idle = Peer::connect(server.http);
        assert!(infer(&mut idle), "nobody is sent away yet");
        let mut grpc = Grpc::connect(server.grpc);
        infer_grpc(&mut grpc);
        server.terminate();
        server.wait_until("clients of gRPC are sent away", || grpc.is_sent_away());
        for (path, status) in [("/v2/health/ready", 400), ("/v2/health/live", 200), ("/v2/models/plain/ready", 200)] {
            let answer = Peer::connect(server.http).get(path);
            assert_eq!(answer.status, status, "{path}");
            assert!(answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")), "{path}");
        }
        assert!(!infer(&mut idle), "a connection that was idle is served, and its client asked to go");
        idle.expect_close();
        let mut late = Grpc::connect(server.grpc);
        infer_grpc(&mut late);
        let ready: ServerReadyResponse = late.call("ServerReady", &ServerReadyRequest {}).expect("ServerReady");
        let live: ServerLiveResponse = late.call("ServerLive", &ServerLiveRequest {}).expect("ServerLive");
        assert_eq!((ready.ready, live.live), (false, true));
        assert!(!late.is_sent_away(), "who has just come would come back at once");
        server.terminate();
        server.wait_until("the last client of gRPC is sent away", || late.is_sent_away());
        drop((grpc, late));
        let (status, log) = server.wait();
        assert_eq!(status.code(), Some(0), "{log}");
    });
}

/// What all clients share.
struct Load {
    http: SocketAddr,
    grpc: SocketAddr,
    is_over: AtomicBool,
    /// Answers so far, of each client.
    answers: Vec<AtomicUsize>,
}

/// How a client behaves.
#[derive(Clone, Copy)]
enum Kind {
    /// Keeps its connection as long as it may.
    KeepAlive,
    /// A connection for each request.
    Once,
    Grpc,
}

const CLIENTS: [(Kind, usize); 3] = [(Kind::KeepAlive, 16), (Kind::Once, 4), (Kind::Grpc, 4)];

impl Load {
    fn run(&self, client: usize, kind: Kind, begin: &Barrier) {
        let (mut peer, mut grpc) = (None, None);
        begin.wait();
        while !self.is_over.load(Ordering::Acquire) {
            match kind {
                Kind::KeepAlive => {
                    if !infer(peer.get_or_insert_with(|| Peer::connect(self.http))) {
                        peer = None;
                    }
                }
                Kind::Once => drop(infer(&mut Peer::connect(self.http))),
                Kind::Grpc => {
                    let connection = grpc.get_or_insert_with(|| Grpc::connect(self.grpc));
                    match connection.is_sent_away() {
                        true => grpc = None,
                        false => infer_grpc(connection),
                    }
                }
            }
            self.answers[client].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits until every client has had `more` further answers, or one of them has failed.
    fn wait_for_answers(&self, more: usize, threads: &[std::thread::JoinHandle<()>], server: &Server) {
        let counts = || self.answers.iter().map(|count| count.load(Ordering::Acquire));
        let until: Vec<usize> = counts().map(|count| count + more).collect();
        server.wait_until("every client is answered", || {
            counts().zip(&until).all(|(count, until)| count >= *until)
                || threads.iter().any(std::thread::JoinHandle::is_finished)
        });
    }
}

#[test]
fn rolling_over_a_shared_port_loses_nothing() {
    each(&variant::ALL, |variant| {
        let repository = plain_repository();
        let flags = ["--reuse-http-port=true", "--reuse-grpc-port=true", "--drain-delay=0.3"];
        let old = Server::start(variant, repository.path(), &flags);
        let count = CLIENTS.iter().map(|(_, count)| count).sum();
        let load = Arc::new(Load {
            http: old.http,
            grpc: old.grpc,
            is_over: AtomicBool::new(false),
            answers: (0..count).map(|_| AtomicUsize::new(0)).collect(),
        });
        let begin = Arc::new(Barrier::new(count));
        let kinds = CLIENTS.into_iter().flat_map(|(kind, count)| std::iter::repeat_n(kind, count));
        let start = |(client, kind)| {
            let (load, begin) = (Arc::clone(&load), Arc::clone(&begin));
            std::thread::spawn(move || load.run(client, kind, &begin))
        };
        let threads: Vec<_> = kinds.enumerate().map(start).collect();
        load.wait_for_answers(2, &threads, &old);
        let ports = [format!("--http-port={}", old.http.port()), format!("--grpc-port={}", old.grpc.port())];
        let flags: Vec<&str> = flags.into_iter().chain(ports.iter().map(String::as_str)).collect();
        let new = Server::start_saying(variant, repository.path(), &flags, "Started Metrics Service at ");
        old.terminate();
        let (status, log) = old.wait();
        load.wait_for_answers(2, &threads, &new);
        load.is_over.store(true, Ordering::Release);
        for thread in threads {
            thread.join().unwrap_or_else(|_| panic!("a client has lost a request; the log of the old server:\n{log}"));
        }
        assert_eq!(status.code(), Some(0), "{log}");
        new.stop();
    });
}
