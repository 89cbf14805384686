//! Triton's own load client: a C++ program on libcurl and gRPC C++, which checks metadata, configuration, statistics
//! and metrics on its way and counts what was answered.

use std::path::Path;
use std::process::Output;

use serde_json::json;

use nereid_test_support::http::Peer;
use nereid_test_support::perf_analyzer::{command, program};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each, usual};

/// One run. Windows end with a number of requests; any deviation between windows will do, since this is no benchmark.
fn analyze(root: &Path, arguments: &[&str]) -> (Output, String) {
    let mut command = command(root);
    command.args(["-p", "100", "--measurement-mode=count_windows", "--measurement-request-count=30"]);
    let output = command.args(["-s", "100000", "--max-threads=2"]).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("perf_analyzer does not start: {error}"));
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    (output, text)
}

/// What the report must not say when all went well.
const TROUBLE: [&str; 5] = ["had error", "Failed", "failed", "error:", "Unable to init"];

/// The asynchronous HTTP client looks at the kind of each of libcurl's messages after it has given it back, and now and
/// then finds 0 or whatever else was written there; libcurl gives out one kind only.
const FREED: &str = "Unexpected error: received CURLMsg=";

fn must_succeed(root: &Path, arguments: &[&str], concurrencies: &[u32]) {
    let (output, text) = analyze(root, arguments);
    assert!(output.status.success(), "{arguments:?}: {}\n{text}", output.status);
    for line in text.lines().filter(|line| !line.contains(FREED)) {
        let trouble = TROUBLE.iter().find(|word| line.contains(**word));
        assert!(trouble.is_none(), "{arguments:?} says {trouble:?}:\n{text}");
    }
    for concurrency in concurrencies {
        assert!(text.contains(&format!("Concurrency: {concurrency}, throughput: ")), "{arguments:?}:\n{text}");
    }
}

fn start(variant: Variant) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("numbers", 8, &[Pair::new("INT32", "16"), Pair::new("FP32", "-1, 4")]);
    repository.identity("text", 8, &[Pair::new("BYTES", "4")]);
    repository.identity("large", 0, &[Pair::new("FP32", "400000")]);
    let server = Server::start(variant, repository.path(), &[]);
    (repository, server)
}

/// Nothing failed, and the model was really asked.
fn check_statistics(server: &Server, model: &str) {
    let stats = Peer::connect(server.http).get(&format!("/v2/models/{model}/stats")).json();
    let stats = &stats["model_stats"][0]["inference_stats"];
    assert_eq!(stats["fail"]["count"], json!(0), "{model}: {stats}");
    assert!(stats["success"]["count"].as_u64() >= Some(30), "{model}: {stats}");
}

#[test]
fn from_one_to_four_at_once() {
    let Some(root) = program() else { return };
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let (http, grpc) = (server.http.to_string(), server.grpc.to_string());
        let shared = ["-m", "numbers", "--shape", "INPUT1:3,4"];
        for more in [
            &["-i", "http", "-u", &http, "--concurrency-range=1:4:3"][..],
            &["-i", "grpc", "-u", &grpc, "--concurrency-range=1:4:3"],
        ] {
            must_succeed(root, &[&shared, more].concat(), &[1, 4]);
        }
        let streaming = ["-i", "grpc", "-u", &grpc, "--concurrency-range=4", "--async", "--streaming", "-b", "8"];
        must_succeed(root, &[&shared[..], &streaming].concat(), &[4]);
        check_statistics(&server, "numbers");
        server.stop();
    });
}

#[test]
fn in_every_form_of_http() {
    let Some(root) = program() else { return };
    let (_repository, server) = start(usual());
    let url = server.http.to_string();
    let numbers = ["-m", "numbers", "--shape", "INPUT1:3,4", "-i", "http", "-u", &url];
    let run = |more: &[&str], levels: &[u32]| must_succeed(root, &[&numbers, more].concat(), levels);
    run(&["--concurrency-range=3", "--async", "-b", "8"], &[3]);
    run(&["--input-tensor-format=json", "--output-tensor-format=json", "-b", "2"], &[1]);
    run(&["--input-tensor-format=binary", "--output-tensor-format=json", "-H", "x-mine: 1"], &[1]);
    check_statistics(&server, "numbers");
    must_succeed(root, &["-m", "text", "-i", "http", "-u", &url, "--string-length=300", "-b", "3"], &[1]);
    check_statistics(&server, "text");
    server.stop();
}

#[test]
fn in_every_form_of_grpc() {
    let Some(root) = program() else { return };
    let (_repository, server) = start(usual());
    let (url, metrics) = (server.grpc.to_string(), format!("http://{}/metrics", server.metrics));
    let numbers = ["-m", "numbers", "--shape", "INPUT1:3,4", "-i", "grpc", "-u", &url];
    let run = |more: &[&str], levels: &[u32]| must_succeed(root, &[&numbers, more].concat(), levels);
    run(&["--concurrency-range=3", "--async"], &[3]);
    run(&["--request-rate-range=200", "--collect-metrics", "--metrics-url", &metrics], &[]);
    check_statistics(&server, "numbers");
    must_succeed(root, &["-m", "text", "-i", "grpc", "-u", &url, "--string-length=300", "-b", "3"], &[1]);
    check_statistics(&server, "text");
    server.stop();
}

#[test]
fn with_tensors_of_megabytes() {
    let Some(root) = program() else { return };
    let (_repository, server) = start(usual());
    for (protocol, address) in [("http", server.http), ("grpc", server.grpc)] {
        let url = address.to_string();
        must_succeed(root, &["-m", "large", "-i", protocol, "-u", &url, "--concurrency-range=2"], &[2]);
    }
    check_statistics(&server, "large");
    server.stop();
}

/// The client makes, fills, registers and drops the regions by itself.
#[test]
fn with_tensors_in_shared_memory() {
    let Some(root) = program() else { return };
    let repository = Repository::new();
    repository.identity("numbers", 8, &[Pair::new("INT32", "16")]);
    let server = Server::start(usual(), repository.path(), &[]);
    // What the flag's absence means is refused, and named.
    let url = server.grpc.to_string();
    let arguments = ["-m", "numbers", "-i", "grpc", "-u", &url, "--shared-memory=system"];
    let (output, text) = analyze(root, &arguments);
    assert!(!output.status.success() && text.contains("Client shared memory is disabled."), "{text}");
    server.stop();
    let server = Server::start(usual(), repository.path(), &["--allow-client-shm=true"]);
    for (protocol, address) in [("http", server.http), ("grpc", server.grpc)] {
        let url = address.to_string();
        let arguments = ["-m", "numbers", "-i", protocol, "-u", &url, "--shared-memory=system", "-b", "4"];
        must_succeed(
            root,
            &[&arguments[..], &["--output-shared-memory-size=256", "--concurrency-range=2"]].concat(),
            &[2],
        );
    }
    check_statistics(&server, "numbers");
    let left = Peer::connect(server.http).get("/v2/systemsharedmemory/status");
    assert_eq!((left.status, left.json()), (200, json!([])), "it unregisters what it registered");
    server.stop();
}

#[test]
fn its_complaints_are_those_of_the_server() {
    let Some(root) = program() else { return };
    let (_repository, server) = start(usual());
    for (protocol, address) in [("http", server.http), ("grpc", server.grpc)] {
        let (output, text) = analyze(root, &["-m", "absent", "-i", protocol, "-u", &address.to_string()]);
        assert!(!output.status.success(), "{text}");
        let expected = "failed to get model metadata: Request for unknown model: 'absent' is not found";
        assert!(text.contains(expected), "{protocol}: {text}");
    }
    server.stop();
}
