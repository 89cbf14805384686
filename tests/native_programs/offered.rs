//! Everything that is offered to backends, called by a C backend inside the server (tests/backends/offered.c).

use std::path::Path;

use super::program::{declared, told};
use crate::support::backend::compiled;
use crate::support::http::Peer;
use crate::support::repository::Repository;
use crate::support::server::Server;
use crate::support::variant::usual;

const PLAIN: &str = r#"
backend: "offered"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [
  { kind: KIND_CPU count: 1 profile: [ "wide" ] secondary_devices [ { kind: KIND_NVDLA device_id: 2 } ] }
]
"#;

const SUMS: &str = r#"
backend: "offered"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  state [ { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ 1 ] } ]
}
instance_group [ { kind: KIND_CPU count: 1 } ]
"#;

#[test]
fn a_backend_calls_all_that_it_is_offered() {
    let Some(backends) = compiled("offered.c") else { return };
    let repository = Repository::new();
    repository.model("plain", PLAIN).model("sums", SUMS);
    let trace = repository.path().join("trace.json");
    let flags = [
        format!("--backend-directory={}", backends.display()),
        "--backend-config=offered,colour=green".to_owned(),
        "--trace-config=level=TIMESTAMPS".to_owned(),
        "--trace-config=rate=1".to_owned(),
        format!("--trace-config=triton,file={}", trace.display()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start(usual(), repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    let mut ask = |model: &str, id: &str, parameters: &str, datatype: &str| {
        let body = format!(
            r#"{{"id":"{id}","parameters":{{{parameters}}},"inputs":[{{"name":"INPUT0","datatype":"{datatype}",
            "shape":[1],"data":[7]}}],"outputs":[{{"name":"OUTPUT0"}}]}}"#
        );
        let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["outputs"][0]["data"][0], 7, "{}", answer.text());
    };
    let more = r#""sequence_id":7,"colour":"red","timeout":5000000"#;
    ask("plain", "number", more, "FP32");
    ask("plain", "text", r#""sequence_id":"seven","colour":"red","timeout":5000000"#, "FP32");
    ask("sums", "sum", r#""sequence_id":1,"sequence_start":true,"sequence_end":true"#, "INT32");
    let log = server.stop();

    let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/backends/offered.c"));
    let (declared, told) = (declared(&source.expect("the source")), told(&log));
    let missing: Vec<_> = declared.difference(&told).collect();
    assert!(missing.is_empty(), "the backend did not get to check {missing:?}");
}
