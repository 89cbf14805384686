//! Load reports in band, in the heads of HTTP answers and at the ends of gRPC calls, and their values (contract/http.md
//! section 7, contract/scale_out.md section 6).
//!
//! `custom_metrics` tests what `generate` reports as Triton does, with a backend that has the metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nereid_wire::inference::{ModelInferRequest, ServerLiveRequest};
use nereid_wire::xds::data::orca::v3::OrcaLoadReport;
use prost::Message;
use serde_json::Value;

use super::super::grpc::message::numbers;
use nereid_test_support::backend;
use nereid_test_support::gate::{self, Gate};
use nereid_test_support::grpc::{Grpc, SERVICE, code, frame};
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

const ASKS: &str = "Endpoint-Load-Metrics-Format";
const FIELD: &str = "endpoint-load-metrics";
const TRAILER: &str = "endpoint-load-metrics-bin";
const INFER: &[u8] = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
/// What every report has.
const NAMES: [&str; 6] = [
    "application_utilization",
    "cpu_utilization",
    "mem_utilization",
    "rps_fractional",
    "eps",
    "named_metrics.queue_depth",
];

fn plain() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

/// The names and values of a report, in whatever form.
fn values(report: &str) -> BTreeMap<String, f64> {
    let (form, rest) = report.split_once(' ').expect("a prefix");
    match form {
        "JSON" => {
            let json: serde_json::Map<String, Value> = serde_json::from_str(rest).expect("an object");
            let named = json["named_metrics"].as_object().expect("an object").clone();
            let named = named.into_iter().map(|(name, value)| (format!("named_metrics.{name}"), value));
            let all = json.into_iter().filter(|(name, _)| name != "named_metrics").chain(named);
            all.map(|(name, value)| (name, value.as_f64().expect("a number"))).collect()
        }
        "TEXT" => {
            let pairs = rest.split(", ").map(|pair| pair.split_once('=').expect("a pair"));
            pairs.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
        }
        "BIN" => of_message(rest.as_bytes()),
        other => panic!("{other}: {report}"),
    }
}

/// The same of the message in base64.
fn of_message(base64: &[u8]) -> BTreeMap<String, f64> {
    let message = OrcaLoadReport::decode(&*STANDARD.decode(base64).expect("base64")).expect("a message");
    let own = [
        ("application_utilization", message.application_utilization),
        ("cpu_utilization", message.cpu_utilization),
        ("mem_utilization", message.mem_utilization),
        ("rps_fractional", message.rps_fractional),
        ("eps", message.eps),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    let named = message.named_metrics.into_iter().map(|(name, value)| (format!("named_metrics.{name}"), value));
    own.into_iter().chain(named).collect()
}

fn check(report: &str, what: &str) {
    check_values(&values(report), what);
}

fn check_values(values: &BTreeMap<String, f64>, what: &str) {
    let mut names = NAMES.to_vec();
    names.sort_unstable();
    assert_eq!(values.keys().map(String::as_str).collect::<Vec<_>>(), names, "{what}");
    assert!(values.values().all(|value| value.is_finite() && *value >= 0.0), "{what}: {values:?}");
    let memory = values["mem_utilization"];
    assert!(memory > 0.0 && memory <= 1.0, "{what}: {memory}");
}

fn field(answer: &Answer) -> Option<&str> {
    answer.header(FIELD)
}

#[test]
fn every_route_of_inference_reports_in_the_format_that_is_asked_for() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        for (format, prefix) in [("json", "JSON {"), ("text", "TEXT "), ("bin", "BIN ")] {
            // A head that comes again is recognised.
            for round in 0..3 {
                let answer = peer.post("/v2/models/plain/infer", &[(ASKS, format)], INFER);
                let what = format!("{format} {round}");
                let report = field(&answer).unwrap_or_else(|| panic!("{what}"));
                assert!(answer.status == 200 && report.starts_with(prefix), "{what}: {report}");
                check(report, &what);
                assert_eq!(answer.json()["outputs"][0]["data"][0], 1, "{what}");
            }
        }
        for (path, headers, body, status) in [
            ("/v2/models/plain/generate", &[(ASKS, "bin")][..], &br#"{"INPUT0":1}"#[..], 200),
            ("/v2/models/plain/generate_stream", &[(ASKS, "bin")], br#"{"INPUT0":1}"#, 200),
            ("/v2/models/plain/infer", &[(ASKS, "json"), ("Accept", "text/event-stream")], INFER, 200),
            ("/v2/models/plain/infer", &[(ASKS, "json"), ("Accept-Encoding", "gzip")], INFER, 200),
            ("/v2/models/plain/versions/1/infer", &[(ASKS, "text"), (ASKS, "json")], INFER, 200),
            // Errors are answers of a server with a load, too.
            ("/v2/models/none/infer", &[(ASKS, "json")], INFER, 404),
            ("/v2/models/plain/infer", &[(ASKS, "json")], b"{", 500),
            ("/v2/models/plain/infer", &[(ASKS, "json")], br#"{"inputs":[]}"#, 400),
        ] {
            let answer = peer.send(&request("POST", path, headers, body)).answer();
            assert_eq!(answer.status, status, "{path} {headers:?}: {}", answer.text());
            check(field(&answer).unwrap_or_else(|| panic!("{path} {headers:?}")), path);
            if headers.len() == 2 && headers[1].0 == ASKS {
                assert!(field(&answer).is_some_and(|report| report.starts_with("TEXT ")), "the first field counts");
            }
        }
        // Nobody else has one.
        assert_eq!(field(&peer.post("/v2/models/plain/infer", &[], INFER)), None);
        for format in ["xml", "JSON", "", "json,text"] {
            assert_eq!(field(&peer.post("/v2/models/plain/infer", &[(ASKS, format)], INFER)), None, "{format}");
        }
        let live = peer.send(&request("GET", "/v2/health/live", &[(ASKS, "json")], b"")).answer();
        assert_eq!((live.status, field(&live)), (200, None));
        server.stop();
    });
}

#[test]
fn the_flag_decides_who_gets_a_report() {
    for (flag, headers, http, grpc) in [
        ("--orca=off", &[(ASKS, "json")][..], false, false),
        ("--orca=always", &[], true, true),
        ("--orca=always", &[(ASKS, "text")], true, true),
        ("--orca=on-request", &[], false, false),
    ] {
        let repository = plain();
        let server = Server::start(usual(), repository.path(), &[flag]);
        let (mut peer, mut calls) = (Peer::connect(server.http), Grpc::connect(server.grpc));
        for path in ["infer", "generate", "generate_stream"] {
            let body: &[u8] = if path == "infer" { INFER } else { br#"{"INPUT0":1}"# };
            // The third request goes the way of those that are recognised.
            for _ in 0..3 {
                let answer = peer.post(&format!("/v2/models/plain/{path}"), headers, body);
                assert_eq!((answer.status, field(&answer).is_some()), (200, http), "{flag} {path} {headers:?}");
                field(&answer).into_iter().for_each(|report| check(report, flag));
            }
        }
        for _ in 0..3 {
            let message = frame(&numbers("plain", "1", &[7]));
            let reply = calls.exchange(&format!("{SERVICE}ModelInfer"), headers, &[message]);
            assert_eq!(
                (reply.status.code, reply.trailers.contains_key(TRAILER)),
                (code::OK, grpc),
                "{flag} {headers:?}"
            );
        }
        server.stop();
    }
}

#[test]
fn grpc_calls_end_with_a_report() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let asks = [(ASKS, "bin")];
        let message = |model: &str| frame(&numbers(model, "1", &[7]));
        for rpc in ["ModelInfer", "ModelInfer", "ModelInfer", "ModelStreamInfer"] {
            let reply = grpc.exchange(&format!("{SERVICE}{rpc}"), &asks, &[message("plain")]);
            assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 1), "{rpc}: {:?}", reply.status);
            check_values(&of_message(reply.trailers[TRAILER].as_bytes()), rpc);
            assert!(!reply.headers.contains_key(TRAILER), "{rpc}");
        }
        // Of a failed call the end is the head.
        let reply = grpc.exchange(&format!("{SERVICE}ModelInfer"), &asks, &[message("none")]);
        assert_eq!(reply.status.code, code::NOT_FOUND);
        check_values(&of_message(reply.headers[TRAILER].as_bytes()), "an error");
        // Whatever is asked for is metadata in binary; what is no format is none.
        for (format, has_report) in [("json", true), ("text", true), ("xml", false), ("", false)] {
            let reply = grpc.exchange(&format!("{SERVICE}ModelInfer"), &[(ASKS, format)], &[message("plain")]);
            assert_eq!((reply.status.code, reply.trailers.contains_key(TRAILER)), (code::OK, has_report), "{format}");
        }
        let live = grpc.exchange(&format!("{SERVICE}ServerLive"), &asks, &[frame(&ServerLiveRequest {})]);
        assert!(live.status.code == code::OK && !live.trailers.contains_key(TRAILER));
        server.stop();
    });
}

/// Values of one report that is asked for on a route that no instance executes for.
fn reported_together<const N: usize>(server: &Server, names: [&str; N]) -> [f64; N] {
    let answer = Peer::connect(server.http).post("/v2/models/none/infer", &[(ASKS, "json")], b"");
    let values = values(field(&answer).expect("a report"));
    names.map(|name| values.get(name).copied().unwrap_or_else(|| panic!("no {name}")))
}

fn reported(server: &Server, name: &str) -> f64 {
    let [value] = reported_together(server, [name]);
    value
}

fn slow(ms: u64) -> Repository {
    let repository = Repository::new();
    let delay = format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{ms}\" }} }}");
    repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], &delay);
    repository
}

/// An instance that executes for about half of the time is seen as such, in between 0 and 1, and an idle one as idle.
#[test]
fn the_part_of_the_time_that_an_instance_executes_is_reported() {
    // Long beside what a busy machine puts between two executions: that is no part of the half.
    let repository = slow(400);
    let server = Server::start(usual(), repository.path(), &[]);
    let utilization = || reported(&server, "application_utilization");
    assert!(utilization() < 0.05, "nothing was executed");
    let over = Arc::new(AtomicBool::new(false));
    let (is_over, address) = (Arc::clone(&over), server.http);
    let client = std::thread::spawn(move || {
        let mut peer = Peer::connect(address);
        while !is_over.load(Ordering::Relaxed) {
            let began = std::time::Instant::now();
            assert_eq!(peer.post("/v2/models/slow/infer", &[], INFER).status, 200);
            std::thread::sleep(began.elapsed());
        }
    });
    server.wait_until("half of the time is reported", || (0.4..=0.6).contains(&utilization()));
    // However fast the client is: requests a second, of which each executes for 400 ms, are part of this second.
    server.wait_until("requests are counted", || {
        let [part, rate] = reported_together(&server, ["application_utilization", "rps_fractional"]);
        (0.4..=0.6).contains(&part) && (0.35..=0.6).contains(&(part / rate))
    });
    over.store(true, Ordering::Relaxed);
    client.join().expect("the client");
    server.wait_until("the instance is idle", || utilization() < 0.05);
    server.wait_until("no request ends", || reported(&server, "rps_fractional") == 0.0);
    server.stop();
}

/// Requests that wait behind one that executes: 1, and how many there are for each instance.
#[test]
fn a_queue_is_reported() {
    let (repository, gate) = (Repository::new(), Gate::new());
    repository.identity_of(gate::BACKEND, "slow", 0, &[Pair::new("INT32", "-1")], &gate.of_executions());
    let Some(backends) = backend::directory_flag() else { return };
    let server = Server::start(usual(), repository.path(), &[&backends]);
    let mut grpc = Grpc::connect(server.grpc);
    let open = |grpc: &mut Grpc, request: &ModelInferRequest| {
        let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
        grpc.send(&mut exchange, request);
        grpc.half_close(&mut exchange);
        exchange
    };
    let request = numbers("slow", "1", &[1]);
    let waiting: Vec<_> = (0..6).map(|_| open(&mut grpc, &request)).collect();
    grpc.flush();
    server.wait_until("the queue is reported", || {
        let depth = reported(&server, "named_metrics.queue_depth");
        depth >= 3.0 && reported(&server, "application_utilization") >= 3.0
    });
    waiting.into_iter().for_each(|exchange| grpc.cancel(exchange));
    server.wait_until("the queue is empty", || reported(&server, "named_metrics.queue_depth") == 0.0);
    gate.open();
    server.stop();
}

/// Failed requests are errors, and make no instance busy.
#[test]
fn errors_are_counted() {
    let (repository, gate) = (Repository::new(), Gate::new());
    let queue = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }";
    let limited = format!("{}{queue}", gate.of_executions());
    repository.identity_of(gate::BACKEND, "full", 1, &[Pair::new("INT32", "1")], &limited);
    let Some(backends) = backend::directory_flag() else { return };
    let server = Server::start(usual(), repository.path(), &[&backends]);
    reported(&server, "eps");
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[1]}]}"#;
    let send = || {
        let mut peer = Peer::connect(server.http);
        peer.send(&request("POST", "/v2/models/full/infer", &[], body));
        peer
    };
    let mut executes = send();
    gate.wait_until_held(&server, "full");
    let mut waits = send();
    server.wait_until("one waits", || reported(&server, "named_metrics.queue_depth") == 1.0);
    // There is no room for any more.
    server.wait_until("errors are reported", || {
        assert_eq!(send().answer().status, 503);
        reported(&server, "eps") > 0.0
    });
    gate.open();
    assert_eq!([executes.answer().status, waits.answer().status], [200, 200]);
    server.stop();
}

#[test]
fn without_metrics_there_is_no_report_and_an_error_in_the_log() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let missing = "load cannot be reported: not all of the metrics 'nv_trt_llm_kv_cache_block_metrics' are there";
    for (action, format, text) in [
        ("generate", "json", missing),
        ("generate_stream", "text", missing),
        ("generate", "xml", "'endpoint-load-metrics-format: xml': load is reported as 'json', 'text' or 'bin'"),
        (
            "generate_stream",
            "JSON",
            "'endpoint-load-metrics-format: JSON': load is reported as 'json', 'text' or 'bin'",
        ),
    ] {
        let logged = |server: &Server| server.log().matches(text).count();
        let before = logged(&server);
        let path = format!("/v2/models/plain/{action}");
        let answer = peer.send(&request("POST", &path, &[(ASKS, format)], br#"{"INPUT0":1}"#)).answer();
        assert_eq!((answer.status, answer.header("endpoint-load-metrics")), (200, None), "{action} {format}");
        let started = std::time::Instant::now();
        while logged(&server) == before {
            assert!(started.elapsed() < nereid_test_support::server::PATIENCE, "{action} {format}: {}", server.log());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    // Who does not ask is not told, and other routes have reports without these metrics.
    let before = server.log();
    peer.post("/v2/models/plain/generate", &[], br#"{"INPUT0":1}"#);
    assert_eq!(peer.post("/v2/models/plain/infer", &[(ASKS, "json")], INFER).status, 200);
    assert_eq!(
        server.stop().matches("load cannot be reported").count(),
        before.matches("load cannot be reported").count()
    );
}

/// The parsers of three stages of Envoy, and gRPC's own client in band and out of band.
#[test]
fn balancers_read_the_reports() {
    let Some(python) = Python::get() else { return };
    let repository = plain();
    let server = Server::start(usual(), repository.path(), &[]);
    let http = format!("http://{}", server.http);
    assert!(python.run("orca.py", &["dialects", "--http", &http]).contains("ok"));
    assert!(python.run("orca.py", &["bands", "--grpc", &server.grpc.to_string()]).contains("ok"));
    server.stop();
}

/// Keeps one instance executing, and a request waiting.
struct Load {
    is_over: Arc<AtomicBool>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn on(server: &Server) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let clients = (0..3).map(|_| {
            let (is_over, address) = (Arc::clone(&is_over), server.http);
            std::thread::spawn(move || {
                let mut peer = Peer::connect(address);
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(peer.post("/v2/models/slow/infer", &[], INFER).status, 200);
                }
            })
        });
        Load { clients: clients.collect(), is_over }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("a client"));
    }
}

/// gRPC's weighted_round_robin gives the busy one of two servers fewer calls, whichever way it has the reports; without
/// reports both get as many.
#[test]
fn a_weighted_balancer_prefers_the_server_with_less_load() {
    let Some(python) = Python::get() else { return };
    let start = |flag: &str| {
        let repository = Repository::new();
        for (name, ms) in [("plain", 2), ("slow", 200)] {
            let delay = format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{ms}\" }} }}");
            repository.identity_of("identity", name, 0, &[Pair::new("INT32", "-1")], &delay);
        }
        let server = Server::start(usual(), repository.path(), &[flag]);
        (repository, server)
    };
    for (flag, options, is_weighted) in [
        ("--orca=on-request", &[][..], true),
        ("--orca=on-request", &["--out-of-band"], true),
        ("--orca=always", &[], true),
        ("--orca=off", &[], false),
    ] {
        // On a busy machine a client makes few calls, and learns late of the loads: then it has more time.
        let is_as_wanted = [8, 40, 200].into_iter().any(|seconds| {
            let ((_first, free), (_second, busy)) = (start(flag), start(flag));
            let load = Load::on(&busy);
            let (one, other) = (free.grpc.to_string(), busy.grpc.to_string());
            let seconds = format!("--seconds={seconds}");
            let arguments = [&["balance", &seconds, "--grpc", &one, &other][..], options].concat();
            python.run("orca.py", &arguments);
            load.end();
            let counts = [&free, &busy].map(|server| {
                let statistics = Peer::connect(server.http).get("/v2/models/plain/stats").json();
                statistics["model_stats"][0]["inference_count"].as_f64().expect("a number")
            });
            free.stop();
            busy.stop();
            let share = counts[1] / (counts[0] + counts[1]);
            println!("{flag} {options:?}: {share:.3} of {counts:?} for the busy server in {seconds}");
            let is_as_wanted = if is_weighted { share < 0.4 } else { (0.4..=0.6).contains(&share) };
            counts[0] + counts[1] > 100.0 && is_as_wanted
        });
        assert!(is_as_wanted, "{flag} {options:?}: the busy server gets another share of the calls");
    }
}
