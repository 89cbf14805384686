//! One server replaces another. After SIGTERM the old one serves for `--drain-delay`, is not ready, and tells its
//! clients to connect elsewhere; with `--take-over` the new one gets its sockets; a service manager keeps the sockets
//! open between the two. No request is lost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

use nereid_wire::inference::{
    ModelInferResponse, ServerLiveRequest, ServerLiveResponse, ServerReadyRequest, ServerReadyResponse,
};
use serde_json::json;

use crate::process::one_number::{BODY, message};
use nereid_test_support::grpc::{Grpc, Status};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, run_to_end};
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
    check_grpc(grpc.call("ModelInfer", &message("plain")));
}

fn check_grpc(answer: Result<ModelInferResponse, Status>) {
    let answer = answer.unwrap_or_else(|status| panic!("{status:?}"));
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
        // With the second call the server has the acknowledgement of its settings: who has just come is not sent away.
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
                    match connection.call_unless_sent_away("ModelInfer", &message("plain")) {
                        Some(answer) => check_grpc(answer),
                        None => grpc = None,
                    }
                }
            }
            self.answers[client].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Starts all clients, and waits until each has had two answers.
    fn start(server: &Server) -> (Arc<Load>, Vec<JoinHandle<()>>) {
        let count = CLIENTS.iter().map(|(_, count)| count).sum();
        let load = Arc::new(Load {
            http: server.http,
            grpc: server.grpc,
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
        load.wait_for_answers(2, &threads, server);
        (load, threads)
    }

    /// Ends the clients; fails if one of them has lost a request.
    fn finish(&self, threads: Vec<JoinHandle<()>>, log: &str) {
        self.is_over.store(true, Ordering::Release);
        for thread in threads {
            thread.join().unwrap_or_else(|_| panic!("a client has lost a request; the log of the old server:\n{log}"));
        }
    }

    /// Waits until every client has had `more` further answers, or one of them has failed.
    fn wait_for_answers(&self, more: usize, threads: &[JoinHandle<()>], server: &Server) {
        let counts = || self.answers.iter().map(|count| count.load(Ordering::Acquire));
        let until: Vec<usize> = counts().map(|count| count + more).collect();
        server.wait_until("every client is answered", || {
            counts().zip(&until).all(|(count, until)| count >= *until) || threads.iter().any(JoinHandle::is_finished)
        });
    }
}

#[test]
fn rolling_over_a_shared_port_loses_nothing() {
    each(&variant::ALL, |variant| {
        let repository = plain_repository();
        // A client that is not run between connecting and asking loses nothing within the delay.
        let flags = ["--reuse-http-port=true", "--reuse-grpc-port=true", "--drain-delay=10"];
        let old = Server::start(variant, repository.path(), &flags);
        let (load, threads) = Load::start(&old);
        let ports = [format!("--http-port={}", old.http.port()), format!("--grpc-port={}", old.grpc.port())];
        let flags: Vec<&str> = flags.into_iter().chain(ports.iter().map(String::as_str)).collect();
        let new = Server::start_saying(variant, repository.path(), &flags, "Started Metrics Service at ");
        old.terminate();
        let (status, log) = old.wait();
        load.wait_for_answers(2, &threads, &new);
        load.finish(threads, &log);
        assert_eq!(status.code(), Some(0), "{log}");
        // The second signal ends the delay.
        new.terminate();
        new.stop();
    });
}

/// How often one server replaces the other.
const TAKEOVERS: &str = "NEREID_TEST_TAKEOVERS";

#[test]
fn taking_over_loses_nothing() {
    let takeovers = std::env::var(TAKEOVERS).map_or(3, |count| count.parse().expect("a number"));
    each(&variant::ALL, |variant| {
        let repository = plain_repository();
        let [exchange, unix] = ["take-over", "http"].map(|name| repository.path().with_extension(name));
        let flags = [
            format!("--take-over={}", exchange.display()),
            format!("--http-unix-socket={}", unix.display()),
            "--exit-timeout-secs=60".to_owned(),
            // It ends when its clients have gone; this is for one that is not run for long between two requests.
            "--drain-delay=30".to_owned(),
        ];
        let first: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut old = Server::start(variant, repository.path(), &first);
        let (load, threads) = Load::start(&old);
        let ports = [
            format!("--http-port={}", load.http.port()),
            format!("--grpc-port={}", load.grpc.port()),
            format!("--metrics-port={}", old.metrics.port()),
        ];
        let metrics = old.metrics;
        let flags: Vec<&str> = flags.iter().chain(&ports).map(String::as_str).collect();
        let mut logs = String::new();
        for _ in 0..takeovers {
            let new = Server::start_saying(variant, repository.path(), &flags, "Took over from the server at ");
            let (status, log) = old.wait();
            assert_eq!(status.code(), Some(0), "{log}");
            assert!(log.contains("answers new connections"), "{log}");
            load.wait_for_answers(2, &threads, &new);
            logs = log;
            old = new;
        }
        load.finish(threads, &logs);
        // The path is the last server's, and so are the metrics: those before have left nothing open.
        let mut stream = UnixStream::connect(&unix).expect("the Unix socket");
        stream.write_all(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(Peer::connect(metrics).get("/metrics").status, 200);
        // The second signal ends the delay.
        old.terminate();
        old.stop();
        assert!(!exchange.exists() && !unix.exists(), "the last server removes the files");
    });
}

#[test]
fn a_server_that_does_not_start_takes_nothing_over() {
    each(&variant::ALL, |variant| {
        let repository = plain_repository();
        let exchange = repository.path().with_extension("take-over");
        let flag = format!("--take-over={}", exchange.display());
        let old = Server::start(variant, repository.path(), &[&flag]);
        let mut peer = Peer::connect(old.http);
        let broken = Repository::new();
        broken.model("broken", "backend: \"nothing\"");
        let start = |repository: &Path, engine: &str| {
            let repository = format!("--model-repository={}", repository.display());
            let ports = [("http", old.http), ("grpc", old.grpc), ("metrics", old.metrics)].map(|(service, address)| {
                [format!("--{service}-address=127.0.0.1"), format!("--{service}-port={}", address.port())]
            });
            let engine = format!("--io-engine={engine}");
            let words = [&flag, &repository, &engine].into_iter().chain(ports.iter().flatten());
            let (status, out, err) = run_to_end(&words.map(String::as_str).collect::<Vec<_>>());
            assert_ne!(status.code(), Some(0), "{out}{err}");
            format!("{out}{err}")
        };
        let said = start(broken.path(), variant.io_engine);
        assert!(said.contains("failed to load all models"), "{said}");
        old.wait_for_log("another server was to take over, and did not");
        let other = if variant.io_engine == "epoll" { "io_uring" } else { "epoll" };
        if other == "epoll" || variant::io_uring_works() {
            let said = start(repository.path(), other);
            let expected = format!("start with --io-engine={}", variant.io_engine);
            assert!(said.contains(&expected), "{expected:?}: {said}");
        }
        assert!(infer(&mut peer), "nobody is sent away");
        assert!(exchange.exists());
        // The next one does take over.
        let port = format!("--http-port={}", old.http.port());
        let http = old.http;
        let new = Server::start_saying(variant, repository.path(), &[&flag, &port], "Took over from the server at ");
        old.wait_until("its client is asked to go", || !infer(&mut peer));
        drop(peer);
        let (status, log) = old.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        infer(&mut Peer::connect(http));
        new.stop();
    });
}

#[test]
fn a_supervisor_learns_which_process_has_taken_over() {
    let repository = plain_repository();
    let [exchange, supervisor] = ["take-over", "notify"].map(|name| repository.path().with_extension(name));
    let told = UnixDatagram::bind(&supervisor).expect("a socket of the supervisor");
    told.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let next = || {
        let mut text = [0; 64];
        let len = loop {
            match told.recv(&mut text) {
                // A signal for another test of this process.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.expect("a message"),
            }
        };
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    let flag = format!("--take-over={}", exchange.display());
    let flags = [flag.as_str(), "--drain-delay=0"];
    let place = supervisor.display().to_string();
    let start = || {
        let environment = [("NOTIFY_SOCKET", place.as_str())];
        Server::start_in(variant::usual(), repository.path(), &flags, "/v2/health/ready", &environment)
    };
    let old = start();
    assert_eq!(next(), "READY=1", "the first one is the service's process already");
    // It has other ports, and replaces the old one all the same.
    let new = start();
    assert_eq!([next(), next()], [format!("MAINPID={}", new.pid()), "READY=1".to_owned()]);
    let (status, log) = old.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    new.stop();
    assert_eq!(next(), "STOPPING=1", "the one that was replaced has not said so");
}

/// Sends a request that ends its connection; the result waits for the answer.
fn asked(mut stream: impl Read + Write) -> impl FnMut() {
    let request = b"GET /v2/models/plain/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("a request");
    move || {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn connections_wait_in_a_socket_of_the_service_manager() {
    each(&variant::ALL, |variant| {
        let repository = plain_repository();
        let http = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = http.local_addr().expect("its address");
        let ask = || {
            let stream = TcpStream::connect(address).expect("nobody is refused");
            stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
            asked(stream)
        };
        for _ in 0..2 {
            // Before the server exists, and between two of them.
            let mut early = ask();
            let server = Server::start_activated(&http, variant, repository.path(), &[], "/v2/health/ready");
            early();
            ask()();
            let log = server.stop();
            assert!(log.contains(&format!("Started HTTPService at 127.0.0.1:{}", address.port())), "{log}");
        }
    });
}

/// Also where another server has taken it over meanwhile: its file stays, and clients find the next server.
#[test]
fn a_socket_of_the_service_manager_stays_its_own_after_a_take_over() {
    let repository = plain_repository();
    let [exchange, path] = ["take-over", "http"].map(|name| repository.path().with_extension(name));
    let listener = UnixListener::bind(&path).expect("a socket of the service manager");
    let own = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let (exchange, socket) = (own("take-over", &exchange), own("http-unix-socket", &path));
    let flags = [exchange.as_str(), socket.as_str(), "--drain-delay=0"];
    let variant = variant::usual();
    let ask = || {
        let stream = UnixStream::connect(&path).expect("nobody is refused");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        asked(stream)
    };
    let activated = || {
        let socket = listener.try_clone().expect("another descriptor of the listener");
        Server::launch_activated(socket.into(), variant, repository.path(), &flags)
    };
    let first = activated();
    first.wait_for_log("Started HTTPService at unix:");
    ask()();
    let second = Server::start_saying(variant, repository.path(), &flags, "Took over from the server at ");
    let (status, log) = first.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    ask()();
    second.stop();
    assert!(path.exists(), "the file is the service manager's");
    let mut early = ask();
    let third = activated();
    early();
    third.stop();
    assert!(path.exists());
}
