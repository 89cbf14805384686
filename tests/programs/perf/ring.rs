//! Loads through the shared-memory ring: `nereid perf -i ipc -u <path>`.

use std::path::PathBuf;

use serde_json::Value;

use super::program::{Reports, measured, perf};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const REPEAT: &str = r#"backend: "repeat"
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
            { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
    instance_group [ { kind: KIND_CPU count: 1 } ] model_transaction_policy { decoupled: true }"#;

/// The path of the ring's socket, which is short wherever the build lies. The server removes it.
fn socket() -> PathBuf {
    std::env::temp_dir().join(format!("nereid-perf-ring-{}", std::process::id()))
}

#[test]
fn a_ring_is_loaded_like_any_other_protocol() {
    let repository = Repository::new();
    repository.identity("numbers", 0, &[Pair::new("INT32", "-1")]).model("repeat", REPEAT);
    let socket = socket();
    let flag = format!("--ipc-path={}", socket.display());
    let flags = [&*flag, "--ipc-ring-bytes=65536", "--ipc-connections=8", "--allow-client-shm=true"];
    let server = Server::start(usual(), repository.path(), &flags);
    server.wait_for_log("Started shared-memory rings");
    let (path, reports) = (socket.to_string_lossy().into_owned(), Reports::new());
    let json = reports.at("run.json");
    // Answers are compared; the longest request has several times the bytes of the ring.
    let values = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
    let tensor = |name: &str, count: usize| {
        format!("{{ \"{name}\": {{ \"content\": [{}], \"shape\": [{count}] }} }}", values(count))
    };
    let all = |name: &str| [1, 16, 100_000].map(|count| tensor(name, count)).join(",");
    let content = format!("{{ \"data\": [{}], \"validation_data\": [{}] }}", all("INPUT0"), all("OUTPUT0"));
    let input = reports.write("input.json", &content);
    let run = ["-m", "numbers", "-i", "ipc", "-u", &path, "--input-data", &input, "--json", &json];
    for (more, threads) in [
        (&["--concurrency-range=6"][..], 1),
        (&["--concurrency-range=6", "--threads=2", "--ipc-spin-us=50"], 2),
        (&["--request-rate-range=1000", "--io-engine=epoll"], 1),
        (&["--concurrency-range=6", "--shared-memory=arena"], 1),
        (&["--concurrency-range=2", "--shared-memory=system"], 1),
    ] {
        let output_bytes = ["--output-shared-memory-size=400000", "--request-count=120"];
        let outcome = measured(&[&run[..], &output_bytes, more].concat());
        assert!(outcome.stdout.contains("shared-memory ring, a call for each request"), "{}", outcome.stdout);
        let value: Value = serde_json::from_str(&reports.read("run.json")).expect("JSON");
        let point = &value["points"][0];
        assert_eq!((&point["completed"], &point["failed"]), (&120.into(), &0.into()), "{more:?}");
        assert_eq!(point["server"]["success"]["count"], 120, "{more:?}");
        assert_eq!((&value["plan"]["protocol"], &point["client"]["connections"]), (&"ipc".into(), &threads.into()));
        let used = point["client"]["threads"].as_array().expect("threads");
        assert!(used.len() == threads && used.iter().all(|thread| thread["cpu_us"].as_f64() > Some(0.0)), "{point}");
    }
    // What cannot be measured, and why.
    let nowhere = format!("{path}-nowhere");
    for (arguments, part) in [
        (["-m", "numbers", "-u", &nowhere], format!("unix:{nowhere}: No such file or directory")),
        (["-m", "absent", "-u", &path], "NOT_FOUND: Request for unknown model: 'absent'".to_owned()),
        (["-m", "repeat", "-u", &path], "a decoupled model answers on gRPC streams only".to_owned()),
        (["-m", "numbers", "-u", "localhost:8001"], "is not the path of the server's --ipc-path".to_owned()),
    ] {
        let shape = ["-i", "ipc", "--shape", "INPUT0:4", "--shape", "IN:1", "--shape", "DELAY:1"];
        let shape = if arguments[1] == "repeat" { [&shape[..2], &shape[4..]].concat() } else { shape[..4].to_vec() };
        let outcome = perf(&[&arguments[..], &shape[..]].concat());
        assert!(outcome.code == Some(99) && outcome.stderr.contains(&part), "{arguments:?}: {outcome:#?}");
    }
    // More rings than the server gives a client.
    let outcome = perf(&[&run[..], &["--connections=20", "--concurrency-range=20", "--request-count=20"]].concat());
    assert!(outcome.code == Some(99) && outcome.stderr.contains("as many as --ipc-connections allows"), "{outcome:#?}");
    server.stop();
}
