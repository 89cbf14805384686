//! Probes are answered, and truthfully, while the server can do nothing else: at the bound of connections, with all
//! memory for requests used, and while no instance of any model goes on. Each probe comes on a connection of its own.

use std::net::TcpStream;

use nereid_test_support::grpc::{Grpc, SERVICE, code, decode, frame};
use nereid_test_support::http::{Peer, infer_with_tail};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each};
use nereid_wire::health::{HealthCheckRequest, HealthCheckResponse};
use nereid_wire::inference::{
    ModelInferRequest, ServerLiveRequest, ServerLiveResponse, ServerReadyRequest, ServerReadyResponse,
};

use crate::hostile::{expect_descriptors, message};

/// Bytes for requests.
const BUDGET: usize = 12_000_000;
/// The connections that a shard with this budget takes, which is the least.
const PLACES: usize = 256;
/// An execution that takes longer than a test.
const SLOW: &str = "parameters { key: \"execute_delay_ms\" value { string_value: \"3600000\" } }";

const IN_USE: &str = "nereid_pool_bytes_in_use";
pub(super) const PENDING: &str = "nv_inference_pending_request_count{model=\"held\",version=\"1\"}";
/// A connection whose share is all of the budget reaches that bound first.
const REFUSED: &str = "nereid_refused_requests_total{reason=\"connection_memory\"}";

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
    assert!(page.status == 200 && page.text().contains(IN_USE), "{}", page.text());
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

/// A number on the page of metrics.
pub(super) fn metric(server: &Server, sample: &str) -> u64 {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let line = page.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')));
    let number = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("no {sample} in {page}"));
    number.parse::<f64>().unwrap_or_else(|error| panic!("{number}: {error}")) as u64
}

pub(super) fn post(model: &str, shape: &str, bytes: usize) -> Vec<u8> {
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
        let held: Vec<_> = (0..3 * PLACES)
            .map(|at| TcpStream::connect(ports[at % 3]).expect("the system takes connections for the server"))
            .collect();
        for _ in 0..5 {
            assert_eq!(probe(&server), WELL);
        }
        // All places but those that are kept for such connections.
        expect_descriptors(&server, before + PLACES);
        assert!(server.descriptors() >= before + PLACES - 40, "{} of {PLACES}", server.descriptors() - before);
        drop(held);
        expect_descriptors(&server, before);
        server.stop();
    });
}

/// Requests that wait have all memory: not even the smallest one more fits.
#[test]
fn with_all_memory_of_requests_used() {
    each(&variant::ALL, |variant| {
        let waits = "dynamic_batching { preferred_batch_size: [ 1024 ] max_queue_delay_microseconds: 600000000 }";
        let budget = format!("--request-memory-byte-size={BUDGET}");
        let flags = [
            budget.as_str(),
            "--io-cores=1",
            "--request-memory-connection-share=1",
            "--request-memory-client-share=1",
            "--request-memory-model-share=1",
            "--request-count-connection-share=1",
            "--request-count-client-share=1",
            "--request-count-model-share=1",
        ];
        let (_repository, server) = start(variant, waits, "", &flags);
        let mut grpc = Grpc::connect(server.grpc);
        let mut held = Vec::new();
        // Of each size as many as fit.
        let mut count: i64 = 512 << 10;
        while count > 0 {
            let mut message = ModelInferRequest { model_name: "held".into(), ..message(count) };
            message.inputs[0].shape = vec![1, count];
            let (pending, refused) = (metric(&server, PENDING), metric(&server, REFUSED));
            let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
            grpc.send(&mut exchange, &message);
            grpc.half_close(&mut exchange);
            let mut is_refused = false;
            server.wait_until("the request waits or is refused", || {
                grpc.flush();
                is_refused = metric(&server, REFUSED) > refused;
                is_refused || metric(&server, PENDING) > pending
            });
            match is_refused {
                true => count /= 2,
                false => held.push(exchange),
            }
        }
        let used = metric(&server, IN_USE);
        assert!(used > BUDGET as u64 * 99 / 100, "{used} bytes of {BUDGET} in {} requests", held.len());
        for _ in 0..3 {
            assert_eq!(probe(&server), WELL);
        }
        let refused = Peer::connect(server.http).send(&post("free", "1", 4)).answer();
        assert_eq!(refused.header("nereid-refused"), Some("request_memory"), "{}", refused.text());
        drop((held, grpc));
        server.wait_until("the memory is free", || metric(&server, IN_USE) < 1 << 20);
        assert_eq!(Peer::connect(server.http).send(&post("free", "1", 4)).answer().status, 200);
        server.stop();
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
        }
        // It is not stopped: that would wait for the executions.
    });
}
