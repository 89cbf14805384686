//! Probes are answered, and truthfully, while the server can do nothing else: at the bound of connections, and while
//! no instance of any model goes on. Each probe comes on a connection of its own.

use std::io::Write;
use std::net::TcpStream;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use nereid_test_support::grpc::{Grpc, SERVICE, code, decode, frame, frame_bytes};
use nereid_test_support::http::{Peer, infer_with_tail, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each};
use nereid_wire::health::{HealthCheckRequest, HealthCheckResponse};
use nereid_wire::inference::{ServerLiveRequest, ServerLiveResponse, ServerReadyRequest, ServerReadyResponse};

use crate::hostile::expect_descriptors;

/// The connections that a shard takes however small the budget is.
const PLACES: usize = 256;
/// An execution that takes longer than a test.
const SLOW: &str = "parameters { key: \"execute_delay_ms\" value { string_value: \"3600000\" } }";

/// What the probes report.
#[derive(Debug, PartialEq)]
struct Health {
    is_live: bool,
    is_ready: bool,
}

const WELL: Health = Health { is_live: true, is_ready: true };

/// Over HTTP, over gRPC, and the standard check of gRPC, which reports readiness. The page of metrics is one too.
fn probe(server: &Server) -> Health {
    let get = |path: &str| Peer::connect(server.http).get(path);
    let health =
        Health { is_live: get("/v2/health/live").status == 200, is_ready: get("/v2/health/ready").status == 200 };
    let live: ServerLiveResponse = Grpc::connect(server.grpc).call("ServerLive", &ServerLiveRequest {}).expect("live");
    let ready: ServerReadyResponse =
        Grpc::connect(server.grpc).call("ServerReady", &ServerReadyRequest {}).expect("ready");
    let check = frame(&HealthCheckRequest::default());
    let check = Grpc::connect(server.grpc).exchange("/grpc.health.v1.Health/Check", &[], &[check]);
    assert_eq!(check.status.code, code::OK, "{:?}", check.status);
    let check: HealthCheckResponse = decode(&check.messages[0]);
    assert_eq!((live.live, ready.ready, check.status == 1), (health.is_live, health.is_ready, health.is_ready));
    let page = Peer::connect(server.metrics).get("/metrics");
    assert!(page.status == 200 && page.text().contains("nereid_pool_bytes_in_use "), "{}", page.text());
    health
}

/// A packed message, for a call with this `grpc-encoding`.
fn packed(encoding: &str, plain: &[u8]) -> bytes::Bytes {
    let bytes = match encoding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(plain).and_then(|()| encoder.finish())
        }
        _ => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(plain).and_then(|()| encoder.finish())
        }
    };
    frame_bytes(1, &bytes.expect("a vector takes everything"))
}

/// The same probes from clients that accept packed answers over HTTP, and pack everything over gRPC.
fn probe_packed(server: &Server) -> Health {
    let accept = [("Accept-Encoding", "gzip, deflate")];
    let get = |path: &str| Peer::connect(server.http).send(&request("GET", path, &accept, b"")).answer().status;
    let health = Health { is_live: get("/v2/health/live") == 200, is_ready: get("/v2/health/ready") == 200 };
    for encoding in ["gzip", "deflate"] {
        let headers = [("grpc-encoding", encoding), ("grpc-accept-encoding", "gzip, deflate, identity")];
        let call = |path: &str| {
            let reply = Grpc::connect(server.grpc).exchange(path, &headers, &[packed(encoding, b"")]);
            assert_eq!(reply.status.code, code::OK, "{path} {encoding}: {:?}", reply.status);
            reply.messages.into_iter().next().expect("a message")
        };
        let live: ServerLiveResponse = decode(&call(&format!("{SERVICE}ServerLive")));
        let ready: ServerReadyResponse = decode(&call(&format!("{SERVICE}ServerReady")));
        let check: HealthCheckResponse = decode(&call("/grpc.health.v1.Health/Check"));
        assert_eq!((live.live, ready.ready, check.status == 1), (health.is_live, health.is_ready, health.is_ready));
    }
    let page = Peer::connect(server.metrics).send(&request("GET", "/metrics", &accept, b"")).answer();
    assert_eq!(page.status, 200, "{}", page.text());
    health
}

/// The models `held`, which has batches, and `free`, with further lines of configuration each.
fn start(variant: Variant, held: &str, free: &str, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity_of("identity", "held", 1024, &[Pair::new("INT32", "-1")], held);
    repository.identity_of("identity", "free", 0, &[Pair::new("INT32", "-1")], free);
    let flags: Vec<&str> = flags.iter().copied().chain(["--log-info=false"]).collect();
    let server = Server::start(variant, repository.path(), &flags);
    (repository, server)
}

fn post(model: &str, shape: &str, bytes: usize) -> Vec<u8> {
    let json = format!(
        r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[{shape}],"parameters":{{"binary_data_size":{bytes}}}}}]}}"#,
    );
    infer_with_tail(&format!("/v2/models/{model}/infer"), &json, &vec![0; bytes])
}

/// Idle connections take all places on every port, and more wait for one.
#[test]
fn at_the_bound_of_connections() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, "", "", &["--request-memory-byte-size=12000000", "--io-cores=1"]);
        assert_eq!(probe(&server), WELL);
        let before = server.descriptors();
        let ports = [server.http, server.grpc, server.metrics];
        // As many more as may come at once.
        let held: Vec<_> = (0..PLACES + 120)
            .map(|at| TcpStream::connect(ports[at % 3]).expect("the system takes connections for the server"))
            .collect();
        // All places but those that are kept for short connections.
        server.wait_until("the places are taken", || server.descriptors() >= before + PLACES - 40);
        for _ in 0..5 {
            assert_eq!(probe(&server), WELL);
        }
        expect_descriptors(&server, before + PLACES);
        drop(held);
        expect_descriptors(&server, before);
        server.stop();
    });
}

/// The value of a series on the page of metrics.
fn metric(server: &Server, series: &str) -> u64 {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let value =
        page.lines().find_map(|line| line.strip_prefix(series)).and_then(|rest| rest.trim().parse::<f64>().ok());
    value.unwrap_or_else(|| panic!("no {series} in {page}")) as u64
}

/// Requests that wait for a model hold all memory there is for requests: not one of 16 bytes more is accepted.
#[test]
fn while_the_memory_of_requests_is_used_up() {
    // One client has all of it, so either bound may be met first.
    let refused = |server: &Server| {
        let of = |reason| metric(server, &format!("nereid_refused_requests_total{{reason=\"{reason}\"}}"));
        of("client_memory") + of("request_memory")
    };
    const BUDGET: usize = 20_000_000;
    let budget = format!("--request-memory-byte-size={BUDGET}");
    let shares = ["connection", "client", "model"].map(|whose| format!("--request-memory-{whose}-share=1"));
    let mut flags = vec![budget.as_str(), "--io-cores=1"];
    flags.extend(shares.iter().map(String::as_str));
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, "", SLOW, &flags);
        assert_eq!(probe(&server), WELL);
        let pending = || metric(&server, "nv_inference_pending_request_count{model=\"free\",version=\"1\"}");
        // One is executed, one waits behind it.
        let mut held: Vec<Peer> = (0..2).map(|_| Peer::connect(server.http)).collect();
        for peer in &mut held {
            peer.send(&post("free", "1", 4));
        }
        server.wait_until("one waits", || pending() == 1);
        let mut waiting = 1;
        for bytes in [4 << 20, 1 << 20, 256 << 10, 64 << 10, 16 << 10, 4 << 10, 1 << 10, 16] {
            let before = refused(&server);
            loop {
                let mut peer = Peer::connect(server.http);
                peer.try_send(&post("free", &(bytes / 4).to_string(), bytes));
                held.push(peer);
                let mut now = waiting;
                server.wait_until(
                    &format!("a request of {bytes} bytes is accepted or refused behind {waiting}"),
                    || {
                        now = pending();
                        now > waiting || refused(&server) > before
                    },
                );
                if now == waiting {
                    break;
                }
                waiting = now;
            }
        }
        let used = metric(&server, "nereid_pool_bytes_in_use ");
        assert!(used as usize > BUDGET / 10 * 9, "{used} bytes of {BUDGET}");
        for _ in 0..5 {
            assert_eq!(probe(&server), WELL);
            assert_eq!(probe_packed(&server), WELL);
        }
        // It is not stopped: that would wait for the executions.
    });
}

/// The instances of all models execute without an end, and more requests wait: the server is live, and not ready.
#[test]
fn while_all_instances_of_all_models_are_stuck() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, SLOW, SLOW, &["--stall-timeout=0.5"]);
        assert_eq!(probe(&server), WELL);
        let _held: Vec<Peer> = (0..40)
            .map(|at| {
                let mut peer = Peer::connect(server.http);
                peer.send(&if at % 2 == 0 { post("held", "1,1", 4) } else { post("free", "1", 4) });
                peer
            })
            .collect();
        server.wait_until("a model is not ready", || Peer::connect(server.http).get("/v2/health/ready").status == 400);
        for model in ["held", "free"] {
            let path = format!("/v2/models/{model}/ready");
            server.wait_until("the model is not ready", || Peer::connect(server.http).get(&path).status == 400);
        }
        for _ in 0..3 {
            assert_eq!(probe(&server), Health { is_live: true, is_ready: false });
            assert_eq!(probe_packed(&server), Health { is_live: true, is_ready: false });
        }
        // It is not stopped: that would wait for the executions.
    });
}
