//! Warm-up before a model is ready: the samples that instances get, failures of the load, and that no count includes
//! them (contract/schedulers.md section 9, contract/model_config.md section 6 row "warmup").

use std::time::Instant;

use serde_json::json;

use super::stages::{backend_flag, said};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::usual;

const IO: &str = "backend: \"stages\"\nmax_batch_size: 4\n\
                  input { name: \"A\" data_type: TYPE_INT32 dims: [ 2 ] }\n\
                  output { name: \"O\" data_type: TYPE_INT32 dims: [ 1 ] }\n";

fn sample(name: &str, batch_size: u32, more: &str, a: &str) -> String {
    format!(
        "model_warmup {{ name: \"{name}\" batch_size: {batch_size} {more}\n  inputs {{ key: \"A\" value {{ {a} }} }} }}\n"
    )
}

const FIXED: &str = "data_type: TYPE_INT32 dims: [ 2 ]";

#[test]
fn every_instance_runs_every_sample_and_nothing_is_counted() {
    let Some(backends) = backend_flag() else { return };
    let repository = Repository::new();
    let corrid = "inputs { key: \"CORRID\" value { data_type: TYPE_UINT64 dims: [ 1 ] zero_data: true } }";
    let samples = [
        sample("file", 3, "count: 2", &format!("{FIXED} input_data_file: \"a\"")),
        sample("skipped", 0, "count: 9", "dims: [ -1 ]"),
        sample("controlled", 1, corrid, &format!("{FIXED} zero_data: false")),
    ];
    let groups = "instance_group [ { count: 2 }, { count: 1 passive: true } ]\n";
    repository.model("m", &format!("{IO}{groups}{}", samples.concat()));
    repository.file("m/warmup/a", [1u8, 2, 3, 4, 5, 6, 7, 8, 9]);
    let server = Server::start(usual(), repository.path(), &[&backends, "--log-verbose=1"]);
    let mut peer = Peer::connect(server.http);
    let statistics = peer.get("/v2/models/m/stats").json()["model_stats"][0].clone();
    let none = json!({"count": 0, "ns": 0});
    assert_eq!(
        (&statistics["inference_count"], &statistics["execution_count"], &statistics["batch_stats"]),
        (&json!(0), &json!(0), &json!([]))
    );
    for kind in ["success", "fail", "queue", "compute_infer"] {
        assert_eq!(statistics["inference_stats"][kind], none, "{kind}");
    }
    let body = br#"{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[7,7]}]}"#;
    assert_eq!(peer.post("/v2/models/m/infer", &[], body).status, 200);
    // The library reports an execution after it has answered.
    let started = Instant::now();
    let mut counted = || peer.get("/v2/models/m/stats").json()["model_stats"][0]["execution_count"].clone();
    while counted() != 1 {
        assert!(started.elapsed() < PATIENCE, "what follows is counted: {}", counted());
    }
    server.wait_for_log("model 'm' instance m_0_1 is running warmup sample 'file' for iteration 2");
    let log = server.stop();
    let runs = said(&log, "run");
    let expected = |name: &str| {
        let file = format!("{name} requests 3 A rank 2 01020304");
        [file.clone(), file, format!("{name} requests 1 A rank 2 00000000 CORRID rank 2 00000000")]
    };
    let expected: Vec<String> = ["m_0_0", "m_0_1"].into_iter().flat_map(expected).collect();
    assert_eq!(runs[..6], expected, "on each in turn, and none on the passive one");
    assert!(runs[6].ends_with("requests 1 A rank 2 07000000"), "{runs:?}");
    assert_eq!(runs.len(), 7);
}

#[test]
fn a_sample_that_is_wrong_or_fails_ends_the_load() {
    let Some(backends) = backend_flag() else { return };
    let repository = Repository::new();
    let run = |what: &str| {
        let zero = sample("s", 2, "", &format!("{FIXED} zero_data: true"));
        format!("parameters {{ key: \"run\" value {{ string_value: \"{what}\" }} }}\n{zero}")
    };
    let of_file = |file: &str| sample("s", 1, "", &format!("{FIXED} input_data_file: \"{file}\""));
    let cases = [
        ("fails", run("fail"), "Invalid argument: failed to run warmup sample 's': cold; cold; "),
        ("refuses", run("refuse"), "Invalid argument: failed to run warmup sample 's': too cold; too cold; "),
        (
            "short",
            of_file("short"),
            "Invalid argument: [request id: <id_unknown>] warmup setting expects 8 bytes, but the data provided from \
             shortonly has 7 bytes",
        ),
        (
            "outside",
            of_file("../../short/warmup/short"),
            "Unsupported: warmup data file path '../../short/warmup/short' in model 'outside' is outside model directory",
        ),
        ("absent", of_file("absent"), "failed to open text file for read "),
        (
            "open",
            sample("s", 1, "", "data_type: TYPE_INT32 dims: [ -1 ] zero_data: true"),
            "Invalid argument: warmup setting expects all variable-size dimensions are specified for input 'A'",
        ),
        (
            "unset",
            sample("s", 1, "", FIXED),
            "Invalid argument: [request id: <id_unknown>] warmup setting expects input 'A' to have input_data_type set",
        ),
        (
            "shape",
            sample("s", 1, "", "data_type: TYPE_INT32 dims: [ 3 ] zero_data: true"),
            "Invalid argument: [request id: <id_unknown>] unexpected shape for input 'A' for model 'shape'",
        ),
    ];
    for (name, samples, _) in &cases {
        repository.model(name, &format!("{IO}instance_group [ {{ count: 1 }} ]\n{samples}"));
    }
    repository.file("short/warmup/short", [0u8; 7]);
    repository.identity("good", 0, &[Pair::new("INT32", "-1")]);
    let flags = [backends.as_str(), "--exit-on-error=false", "--strict-readiness=false"];
    let server = Server::start(usual(), repository.path(), &flags);
    let index = Peer::connect(server.http).post("/v2/repository/index", &[], b"").json();
    for (name, _, reason) in cases {
        let row = index.as_array().expect("rows").iter().find(|row| row["name"] == name).expect("a row");
        let said = row["reason"].as_str().unwrap_or_default();
        assert!(said.starts_with(reason) || name == "absent" && said.contains(reason), "{name}: {row}");
        assert_eq!(row["state"], "UNAVAILABLE", "{name}");
    }
    assert_eq!(Peer::connect(server.http).get("/v2/models/good/ready").status, 200);
    let log = server.stop();
    let ended = said(&log, "ended");
    assert!(ended.contains(&"fails_0_0 thread fails_0_0".to_owned()), "nothing is left behind: {ended:?}");
}

#[test]
fn a_native_backend_is_warmed_too() {
    let repository = Repository::new();
    let random = "inputs { key: \"INPUT0\" value { data_type: TYPE_FP32 dims: [ 5 ] random_data: true } }";
    let strings = "inputs { key: \"INPUT1\" value { data_type: TYPE_STRING dims: [ 2 ] random_data: true } }";
    let warmup = format!("model_warmup {{ name: \"s\" batch_size: 4 {random} {strings} }}");
    repository.identity_of("identity", "m", 4, &[Pair::new("FP32", "-1"), Pair::new("BYTES", "-1")], &warmup);
    let server = Server::start(usual(), repository.path(), &["--log-verbose=1"]);
    let statistics = Peer::connect(server.http).get("/v2/models/m/stats").json()["model_stats"][0].clone();
    assert_eq!((&statistics["inference_count"], &statistics["execution_count"]), (&json!(0), &json!(0)));
    server.wait_for_log("instance m_0_0 ran warm-up sample 's' in ");
    server.stop();
}
