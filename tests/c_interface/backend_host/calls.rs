//! Every function that the server provides to backends, called from a backend (tests/backends/calls.c), once with
//! success and once with an error.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::json;

use nereid_test_support::backend;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// The functions of section 5 that a library exports, and the server does not offer.
const EXPORTED: [&str; 14] = [
    "Initialize",
    "Finalize",
    "ModelInitialize",
    "ModelFinalize",
    "ModelInstanceInitialize",
    "ModelInstanceFinalize",
    "ModelInstanceExecute",
    "ModelInstanceReady",
    "GetBackendAttribute",
    "ModelBatcherInitialize",
    "ModelBatcherFinalize",
    "ModelBatchIncludeRequest",
    "ModelBatchInitialize",
    "ModelBatchFinalize",
];

/// The names of all functions that the header offers to backends.
fn offered() -> BTreeSet<String> {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/triton/core/tritonserver.h");
    let text = std::fs::read_to_string(header).expect("the header");
    let mut names = BTreeSet::new();
    for (at, prefix) in text.match_indices("TRITONBACKEND_") {
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        if rest[end..].starts_with('(') && !EXPORTED.contains(&&rest[..end]) {
            names.insert(format!("TRITONBACKEND_{}", &rest[..end]));
        }
    }
    names
}

const TENSORS: &str = r#"
    input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }"#;

fn repository() -> Repository {
    let repository = Repository::new();
    let plain = format!(
        r#"name: "plain" backend: "tensorrt" platform: "tensorrt_plan" runtime: "libtriton_tensorrt.so" {TENSORS}
        instance_group {{
            kind: KIND_CPU count: 1 profile: [ "0", "3" ] host_policy: "special" secondary_devices {{ device_id: 5 }}
        }}"#
    );
    repository.model("plain", &plain);
    let stateful = format!(
        r#"name: "stateful" backend: "calls" max_batch_size: 1 {TENSORS}
        sequence_batching {{
            state {{ input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ 1 ] }}
        }}"#
    );
    repository.model("stateful", &stateful);
    repository
}

#[test]
fn every_function_succeeds_and_fails_as_it_should() {
    if let Some(log) = call_all(&[], &[]) {
        assert!(log.contains("calls.c: completes 1"), "{log}");
    }
}

#[test]
fn backends_learn_that_configurations_are_not_completed() {
    if let Some(log) = call_all(&[], &["--disable-auto-complete-config"]) {
        assert!(log.contains("calls.c: completes 0") && !log.contains("calls.c: completes 1"), "{log}");
    }
}

#[test]
fn they_do_the_same_where_handles_are_checked() {
    if let Some(log) = call_all(&[("NEREID_CHECK_HANDLES", "1")], &[]) {
        assert!(log.contains("at the end of backend 'calls' all handles were given back"), "{log}");
    }
}

/// The server's log; None, after a visible skip, without a compiler.
fn call_all(environment: &[(&str, &str)], more: &[&str]) -> Option<String> {
    let libraries = ["calls/libtriton_calls.so", "tensorrt/libtriton_tensorrt.so"];
    let directory = backend::compiled_as("calls.c", &libraries)?;
    let repository = repository();
    let flags = [
        &*format!("--backend-directory={}", directory.display()),
        "--host-policy=special,cpu-cores=0-4095",
        "--min-supported-compute-capability=7.5",
        "--backend-config=default-max-batch-size=16",
    ];
    let flags = [&flags, more].concat();
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", environment);
    let mut peer = Peer::connect(server.http);
    let input = r#"{"name":"INPUT0","datatype":"INT32","shape":[SHAPE],"data":[5,-7]}"#;
    let parameters = [
        ("plain", "2", r#"{"word":"said","timeout":60000000}"#),
        ("stateful", "1,2", r#"{"sequence_id":"a sequence","sequence_start":true,"sequence_end":true}"#),
    ];
    for (model, shape, parameters) in parameters {
        let input = input.replace("SHAPE", shape);
        let body = format!(r#"{{"id":"r 1","parameters":{parameters},"inputs":[{input}]}}"#);
        let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        let answer = answer.json();
        assert_eq!(answer["outputs"][0]["data"], json!([11, 12]), "{answer}");
        for (key, value) in [("s", json!("text")), ("i", json!(-3)), ("b", json!(true)), ("d", json!(0.5))] {
            assert_eq!(answer["parameters"][key], value, "{answer}");
        }
    }
    let log = server.stop();
    // The table of the start shows what the backend found in its configuration.
    let row = log.lines().find(|line| line.starts_with("| calls ")).unwrap_or_default();
    assert!(row.contains(r#"{"cmdline":{"#) && row.contains(r#""default-max-batch-size":"16""#), "{log}");
    assert!(row.contains(r#""min-compute-capability":"7.500000""#) && row.contains("libtriton_calls.so"), "{row}");
    let offered = offered();
    assert_eq!(offered.len(), 91, "contract/c_api.md section 5");
    for sign in ["+ ", "- "] {
        let told: BTreeSet<&str> = log.lines().filter_map(|line| line.strip_prefix(sign)).collect();
        let missing: Vec<_> = offered.iter().filter(|name| !told.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "{sign}{missing:?} was never seen");
    }
    Some(log)
}
