//! Which of several faults is reported: the checks of an inference request have an order (contract/http.md sections 5
//! and 6).

use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// One input as JSON, with its shape and data.
fn input(name: &str, datatype: &str, shape: &str, data: &str) -> String {
    format!(r#"{{"name":"{name}","datatype":"{datatype}","shape":{shape},"data":{data}}}"#)
}

fn start() -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("one", 0, &[Pair::new("INT32", "2")]);
    repository.identity("pair", 4, &[Pair::new("INT32", "2"), Pair::new("BYTES", "2")]);
    let server = Server::start(usual(), repository.path(), &[]);
    (repository, server)
}

/// Each request has the reported fault and at least one fault of every later kind.
#[test]
fn the_first_fault_is_named() {
    let (_repository, server) = start();
    let bad = "{\"id\":7,";
    let unknown = "Request for unknown model: 'absent' is not found";
    let no_version = "failed to get model version from specified version string '99999999999999999999' (details: stol), \
                      version should be an integral value > 0";
    let length = [("Inference-Header-Content-Length", "1000")];
    let both = [("Content-Encoding", "br"), length[0]];
    for (method, path, headers, body, status, text) in [
        ("GET", "/v2/models/absent/versions/99999999999999999999/infer", &both[..], bad, 405, "Method Not Allowed"),
        ("POST", "/v2/models/absent/versions/99999999999999999999/infer", &both, bad, 400, no_version),
        ("POST", "/v2/models/absent/infer", &both, bad, 404, unknown),
        ("POST", "/v2/models/one/infer", &both, bad, 501, "Unsupported compression type"),
        (
            "POST",
            "/v2/models/one/infer",
            &length,
            bad,
            400,
            "inference header size should be in range (0, 8), got: 1000",
        ),
        (
            "POST",
            "/v2/models/one/infer",
            &[],
            bad,
            500,
            "failed to parse the request JSON buffer: Missing a name for object member. at 8",
        ),
    ] {
        let answer = Peer::connect(server.http).send(&request(method, path, headers, body.as_bytes())).answer();
        assert_eq!((answer.status, answer.error().as_str()), (status, text), "{method} {path} {headers:?}");
    }
    server.stop();
}

#[test]
fn the_json_is_read_from_id_to_outputs() {
    let (_repository, server) = start();
    let mut peer = Peer::connect(server.http);
    let good = input("INPUT0", "INT32", "[2]", "[1,2]");
    let wrong_data = input("INPUT0", "INT32", "[2]", "[1,true]");
    let wrong_type = input("INPUT0", "FP32", "[3]", "[1,2,3]");
    let twice = format!("{good},{good}");
    // The members are in another order than that of the checks.
    let of = |outputs: &str, inputs: &str, parameters: &str, id: &str| {
        format!(r#"{{"outputs":{outputs},"inputs":{inputs},"parameters":{parameters},"id":{id}}}"#)
    };
    let integer = "attempt to access JSON non-signed-integer as signed-integer";
    for (body, status, text) in [
        (of("7", "7", "7", "7"), 500, "Unable to parse 'id': attempt to access JSON non-string as string".to_string()),
        (of("7", "7", "7", "\"\""), 500, "failed to get request params.: attempt to get members for non-object".into()),
        (
            of("7", "7", r#"{"b":1,"triton_x":1,"a":null}"#, "\"\""),
            400,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.".into(),
        ),
        (
            of("7", "7", r#"{"b":1,"a":null,"triton_x":1}"#, "\"\""),
            400,
            "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.".into(),
        ),
        (of("7", "7", "{}", "\"\""), 500, "Unable to parse 'inputs': attempt to access JSON non-array as array".into()),
        (of("7", &format!("[{wrong_data}]"), "{}", "\"\""), 500, format!("Unable to parse 'data': {integer}")),
        (
            of("7", &format!("[{good}]"), "{}", "\"\""),
            500,
            "Unable to parse 'outputs': attempt to access JSON non-array as array".into(),
        ),
        // A duplicate name is an error when it is added, before the data of the second input and the outputs are
        // checked.
        (
            of("7", &format!("[{good},{wrong_data}]"), "{}", "\"x\""),
            400,
            "[request id: x] input 'INPUT0' already exists in request".into(),
        ),
        // After the JSON the binary data is checked, then the core's rules: outputs before inputs.
        (
            of(r#"[{"name":"NONE"}]"#, &format!("[{wrong_type}]"), "{}", "\"x\""),
            400,
            "unexpected inference output 'NONE' for model 'one'".into(),
        ),
        (
            of(r#"[{"name":"OUTPUT0"}]"#, &format!("[{wrong_type}]"), "{}", "\"x\""),
            400,
            "[request id: x] inference input 'INPUT0' data-type is 'FP32', but model 'one' expects 'INT32'".into(),
        ),
        (
            of(r#"[{"name":"NONE"}]"#, &format!("[{twice}]"), "{}", "\"x\""),
            400,
            "[request id: x] input 'INPUT0' already exists in request".into(),
        ),
    ] {
        let answer = peer.post("/v2/models/one/infer", &[], body.as_bytes());
        assert_eq!((answer.status, answer.error()), (status, text), "{body}");
    }
    server.stop();
}

/// Of one input: one source of data, then name, datatype, shape, then the data.
#[test]
fn an_input_is_read_from_its_source_to_its_data() {
    let (_repository, server) = start();
    let mut peer = Peer::connect(server.http);
    let rule = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                'shared_memory_region' in 'parameters'. But ";
    let member =
        |name: &str| format!("Unable to parse '{name}': attempt to access non-existing object member '{name}'");
    for (input, status, text) in [
        ("{}", 400, format!("{rule}no field is set")),
        (
            r#"{"data":[],"parameters":{"binary_data_size":1,"shared_memory_region":"r"}}"#,
            400,
            format!("{rule}set 'data' 'binary_data_size' 'shared_memory_region'"),
        ),
        (
            r#"{"data":[],"parameters":{"shared_memory_region":"r"}}"#,
            400,
            format!("{rule}set 'data' 'shared_memory_region'"),
        ),
        (
            r#"{"parameters":{"shared_memory_region":"r","binary_data_size":1}}"#,
            400,
            format!("{rule}set 'binary_data_size' 'shared_memory_region'"),
        ),
        (r#"{"data":7}"#, 500, member("name")),
        (r#"{"data":7,"name":"INPUT0"}"#, 500, member("datatype")),
        (r#"{"data":7,"name":"INPUT0","datatype":"NONE"}"#, 500, member("shape")),
        (
            r#"{"data":7,"name":"INPUT0","datatype":"NONE","shape":[1]}"#,
            400,
            "invalid datatype for input INPUT0".into(),
        ),
        (
            r#"{"data":7,"name":"INPUT0","datatype":"INT32","shape":[1]}"#,
            500,
            "Unable to parse 'data': attempt to access JSON non-array as array".into(),
        ),
    ] {
        let body = format!(r#"{{"inputs":[{input}]}}"#);
        let answer = peer.post("/v2/models/one/infer", &[], body.as_bytes());
        assert_eq!((answer.status, answer.error()), (status, text), "{body}");
    }
    server.stop();
}

/// The core's own order: number of inputs, names, empty shapes, batch sizes, then input by input.
#[test]
fn the_core_checks_the_whole_before_the_parts() {
    let (_repository, server) = start();
    let mut peer = Peer::connect(server.http);
    let texts = |count: usize| format!("[{}]", vec!["\"s\""; count].join(","));
    let id = "[request id: <id_unknown>] ";
    for (first, second, text) in [
        // One input is missing, and the other wrong in every way.
        (
            input("INPUT9", "FP32", "[9,9]", &format!("[{}]", vec!["1"; 81].join(","))),
            String::new(),
            format!(
                "{id}expected 2 inputs but got 1 inputs for model 'pair'. Got input(s) ['INPUT9'], but missing required \
                 input(s) ['INPUT0','INPUT1']. Please provide all required input(s)."
            ),
        ),
        (
            input("INPUT9", "FP32", "[]", "[]"),
            input("INPUT1", "BYTES", "[]", "[]"),
            "unexpected inference input 'INPUT9' for model 'pair'".to_string(),
        ),
        (
            input("INPUT0", "INT32", "[1,2]", "[1,2]"),
            input("INPUT1", "BYTES", "[2,2]", &texts(4)),
            format!("{id}input 'INPUT1' batch size does not match other inputs for 'pair'"),
        ),
        (
            input("INPUT0", "FP32", "[5,3]", &format!("[{}]", vec!["1"; 15].join(","))),
            input("INPUT1", "BYTES", "[5,2]", &texts(10)),
            format!("{id}inference request batch-size must be <= 4 for 'pair'"),
        ),
        (
            input("INPUT0", "FP32", "[1,3]", "[1,2,3]"),
            input("INPUT1", "BYTES", "[1,2]", &texts(1)),
            format!("{id}inference input 'INPUT0' data-type is 'FP32', but model 'pair' expects 'INT32'"),
        ),
        (
            input("INPUT0", "INT32", "[1,2]", "[1,2]"),
            input("INPUT1", "BYTES", "[1,2]", &texts(1)),
            format!("{id}expected 2 string elements for inference input 'INPUT1' for model 'pair', got 1"),
        ),
    ] {
        let separator = if second.is_empty() { "" } else { "," };
        let body = format!(r#"{{"inputs":[{first}{separator}{second}]}}"#);
        let answer = peer.post("/v2/models/pair/infer", &[], body.as_bytes());
        assert_eq!((answer.status, answer.error()), (400, text), "{body}");
    }
    server.stop();
}
