//! The response to each bad inference request: status and text, letter for letter (contract/http.md sections 2, 5, 6).

use nereid_test_support::http::{Peer, infer_with_tail, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// A request to `model` and its expected response. `text` ending in `…` is a prefix.
struct Bad {
    model: &'static str,
    json: &'static str,
    /// Binary data after the JSON; None sends no Inference-Header-Content-Length.
    tail: Option<&'static [u8]>,
    status: u16,
    text: &'static str,
}

const fn bad(model: &'static str, json: &'static str, status: u16, text: &'static str) -> Bad {
    Bad { model, json, tail: None, status, text }
}

const fn tailed(json: &'static str, tail: &'static [u8], status: u16, text: &'static str) -> Bad {
    Bad { model: "two", json, tail: Some(tail), status, text }
}

fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity("two", 0, &[Pair::new("INT32", "2"), Pair::new("FP32", "-1").optional()]);
    repository.identity("three", 0, &[Pair::new("INT32", "2"), Pair::new("INT32", "2"), Pair::new("INT32", "2")]);
    repository.identity("batching", 4, &[Pair::new("INT32", "2"), Pair::new("INT32", "2").optional()]);
    repository.identity("text", 0, &[Pair::new("BYTES", "-1")]);
    repository.identity("half", 0, &[Pair::new("FP16", "-1")]);
    repository.identity("flag", 0, &[Pair::new("BOOL", "-1")]);
    repository.identity("natural", 0, &[Pair::new("UINT32", "-1")]);
    repository.identity("wild", 0, &[Pair::new("INT8", "-1, -1")]);
    repository.identity("string", 0, &[Pair::new("BYTES", "2")]);
    repository
}

fn check(server: &Server, cases: &[Bad]) {
    let mut peer = Peer::connect(server.http);
    for case in cases {
        let path = format!("/v2/models/{}/infer", case.model);
        let bytes = match case.tail {
            Some(tail) => infer_with_tail(&path, case.json, tail),
            None => request("POST", &path, &[], case.json.as_bytes()),
        };
        let answer = peer.send(&bytes).answer();
        assert_eq!(answer.status, case.status, "{} {}: {}", case.model, case.json, answer.text());
        let text = answer.error();
        match case.text.strip_suffix('…') {
            Some(prefix) => assert!(text.starts_with(prefix), "{}: expected {prefix:?}, got {text:?}", case.json),
            None => assert_eq!(text, case.text, "{} {}", case.model, case.json),
        }
    }
}

/// The connection survives all of them: they share one.
#[test]
fn json_of_the_wrong_kind() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[]);
        check(
            &server,
            &[
                // An empty body without a length of its JSON is a raw request.
                bad(
                    "two",
                    "",
                    400,
                    "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs \
                     in 'two' model configuration",
                ),
                bad(
                    "two",
                    r#"{"parameters":[],"inputs":[]}"#,
                    500,
                    "failed to get request params.: attempt to get members for non-object",
                ),
                bad(
                    "two",
                    r#"{"inputs":[{}]}"#,
                    400,
                    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                     'shared_memory_region' in 'parameters'. But no field is set",
                ),
                bad(
                    "two",
                    r#"{"inputs":[],"outputs":[{"name":"OUTPUT0","parameters":{"classification":"x"}}]}"#,
                    500,
                    "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
                ),
                bad("two", " ", 500, "failed to parse the request JSON buffer: The document is empty. at 1"),
                bad("two", "{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
                bad(
                    "two",
                    "{} x",
                    500,
                    "failed to parse the request JSON buffer: The document root must not be followed by other values. at 3",
                ),
                bad("two", "{\"inputs\":[1,]}", 500, "failed to parse the request JSON buffer: Invalid value. at 13"),
                bad(
                    "two",
                    "{\"inputs\" []}",
                    500,
                    "failed to parse the request JSON buffer: Missing a colon after a name of object member. at 10",
                ),
                bad("two", "{\"id\":+NaN}", 500, "failed to parse the request JSON buffer: Invalid value. at 6"),
                bad(
                    "two",
                    r#"{"id":5,"inputs":[]}"#,
                    500,
                    "Unable to parse 'id': attempt to access JSON non-string as string",
                ),
                bad(
                    "two",
                    "{}",
                    500,
                    "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
                ),
                bad(
                    "two",
                    r#"{"inputs":{}}"#,
                    500,
                    "Unable to parse 'inputs': attempt to access JSON non-array as array",
                ),
                bad(
                    "two",
                    r#"{"inputs":[{"datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
                    500,
                    "Unable to parse 'name': attempt to access non-existing object member 'name'",
                ),
                bad(
                    "two",
                    r#"{"inputs":[{"name":7,"datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
                    500,
                    "Unable to parse 'name': attempt to access JSON non-string as string",
                ),
                bad(
                    "two",
                    r#"{"inputs":[{"name":"INPUT0","shape":[2],"data":[1,2]}]}"#,
                    500,
                    "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
                ),
                bad(
                    "two",
                    r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","data":[1,2]}]}"#,
                    500,
                    "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
                ),
                bad(
                    "two",
                    r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[-2],"data":[1,2]}]}"#,
                    500,
                    "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
                ),
                bad(
                    "two",
                    r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2.0],"data":[1,2]}]}"#,
                    500,
                    "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
                ),
                bad(
                    "two",
                    r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":2,"data":[1,2]}]}"#,
                    500,
                    "Unable to parse 'shape': attempt to access JSON non-array as array",
                ),
            ],
        );
        server.stop();
    });
}

#[test]
fn data_that_does_not_fit_its_type_or_shape() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let none = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                'shared_memory_region' in 'parameters'. But no field is set";
    let both = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'";
    check(
        &server,
        &[
            bad("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2]}]}"#, 400, none),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2],"parameters":{"binary_data_size":8}}]}"#,
                400,
                both,
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT31","shape":[2],"data":[1,2]}]}"#,
                400,
                "invalid datatype for input INPUT0",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2,3]}]}"#,
                500,
                "Unable to parse 'data': Shape does not match true shape of 'data' field",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1]}]}"#,
                500,
                "Failed to parse 'data' field: shape does not match true shape",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,"2"]}]}"#,
                500,
                "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2.0]}]}"#,
                500,
                "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"INPUT1","datatype":"FP32","shape":[1],"data":[true]}]}"#,
                500,
                "Unable to parse 'data': attempt to access JSON non-number as double",
            ),
            bad(
                "natural",
                r#"{"inputs":[{"name":"INPUT0","datatype":"UINT32","shape":[1],"data":[-1]}]}"#,
                500,
                "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer",
            ),
            bad(
                "flag",
                r#"{"inputs":[{"name":"INPUT0","datatype":"BOOL","shape":[1],"data":[1]}]}"#,
                500,
                "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
            ),
            bad(
                "text",
                r#"{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":[5]}]}"#,
                500,
                "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
            ),
            bad(
                "half",
                r#"{"inputs":[{"name":"INPUT0","datatype":"FP16","shape":[1],"data":[1.5]}]}"#,
                400,
                "receiving FP16 data via JSON is not supported. Please use the binary data format for input INPUT0",
            ),
            bad(
                "text",
                r#"{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[2],"data":["a"]}]}"#,
                400,
                "[request id: <id_unknown>] expected 2 string elements for inference input 'INPUT0' for model 'text', got 1",
            ),
            bad(
                "text",
                r#"{"id":"9","inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":["a","b"]}]}"#,
                400,
                "[request id: 9] unexpected number of string elements 2 for inference input 'INPUT0' for model 'text', expecting 1",
            ),
            bad(
                "wild",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT8","shape":[9223372036854775808,1],"data":[1]}]}"#,
                400,
                "invalid shape for input 'INPUT0': shape [9223372036854775808,1] contains one or more invalid dimensions",
            ),
            bad(
                "wild",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT8","shape":[4294967296,4294967296],"data":[1]}]}"#,
                400,
                "invalid shape for input 'INPUT0': shape [4294967296,4294967296] causes total element count to exceed maximum size of 9223372036854775807",
            ),
            tailed(
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}}]}"#,
                b"1234567",
                400,
                "unexpected size for input 'INPUT0', expecting 1 additional bytes for model 'two'",
            ),
            tailed(
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}}]}"#,
                b"123456789",
                400,
                "unexpected additional input data for model 'two'",
            ),
            tailed(
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":7}}]}"#,
                b"1234567",
                400,
                "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'two'. Expected 8, got 7",
            ),
        ],
    );
    server.stop();
}

#[test]
fn an_output_without_a_json_form() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let json = r#"{"inputs":[{"name":"INPUT0","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}]}"#;
    let answer = Peer::connect(server.http).send(&infer_with_tail("/v2/models/half/infer", json, b"ab")).answer();
    let text = "sending FP16 data via JSON is not supported. Please use the binary data format for output";
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.error().starts_with(text), "expected {text:?}, got {:?}", answer.error());
    server.stop();
}

#[test]
fn requests_that_do_not_fit_the_model() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    check(
        &server,
        &[
            bad("absent", r#"{"inputs":[]}"#, 404, "Request for unknown model: 'absent' is not found"),
            bad(
                "three",
                r#"{"inputs":[]}"#,
                400,
                "[request id: <id_unknown>] expected 3 inputs but got 0 inputs for model 'three'. Got input(s) [], but missing required input(s) ['INPUT0','INPUT1','INPUT2']. Please provide all required input(s).",
            ),
            bad(
                "three",
                r#"{"id":"x","inputs":[{"name":"INPUT1","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
                400,
                "[request id: x] expected 3 inputs but got 1 inputs for model 'three'. Got input(s) ['INPUT1'], but missing required input(s) ['INPUT0','INPUT2']. Please provide all required input(s).",
            ),
            bad(
                "two",
                r#"{"inputs":[]}"#,
                400,
                "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 0 inputs for model 'two'. Got input(s) [], but missing required input(s) ['INPUT0']. Please provide all required input(s).",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT9","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
                400,
                "unexpected inference input 'INPUT9' for model 'two'",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}],"outputs":[{"name":"OUTPUT9"}]}"#,
                400,
                "unexpected inference output 'OUTPUT9' for model 'two'",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
                400,
                "[request id: <id_unknown>] input 'INPUT0' already exists in request",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}],"outputs":[{"name":"OUTPUT0"},{"name":"OUTPUT0"}]}"#,
                400,
                "[request id: <id_unknown>] output 'OUTPUT0' already exists in request",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"UINT32","shape":[2],"data":[1,2]}]}"#,
                400,
                "[request id: <id_unknown>] inference input 'INPUT0' data-type is 'UINT32', but model 'two' expects 'INT32'",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[3],"data":[1,2,3]}]}"#,
                400,
                "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'two'. Expected [2], got [3]. ",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[1,2]}]}"#,
                400,
                "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'two'. Expected [2], got [1,2]. ",
            ),
            bad(
                "batching",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[5,2],"data":[1,2,3,4,5,6,7,8,9,10]}]}"#,
                400,
                "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'batching'",
            ),
            bad(
                "batching",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[],"data":[]}]}"#,
                400,
                "[request id: <id_unknown>] input 'INPUT0' has no shape but model requires batch dimension for 'batching'",
            ),
            bad(
                "batching",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[1,2]},{"name":"INPUT1","datatype":"INT32","shape":[2,2],"data":[1,2,3,4]}]}"#,
                400,
                "[request id: <id_unknown>] input 'INPUT…",
            ),
            bad(
                "batching",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,3],"data":[1,2,3]}]}"#,
                400,
                "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'batching'. Expected [-1,2], got [1,3]. …",
            ),
            bad(
                "two",
                r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}],"outputs":[{"name":"OUTPUT0","parameters":{"classification":-1}}]}"#,
                500,
                "…",
            ),
        ],
    );
    server.stop();
}

#[test]
fn strings_whose_lengths_lie() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let of = |size: usize| {
        format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"BYTES","shape":[2],"parameters":{{"binary_data_size":{size}}}}}]}}"#
        )
    };
    let mut peer = Peer::connect(server.http);
    let mut send = |tail: &[u8]| {
        let answer = peer.send(&infer_with_tail("/v2/models/string/infer", &of(tail.len()), tail)).answer();
        (answer.status, answer.text())
    };
    assert_eq!(send(b"\x01\0\0\0a\x02\0\0\0bc").0, 200);
    // The contract has no text for a string that ends early; the error must name the string.
    for (tail, text) in [
        (&b"\x01\0\0\0a\x02\0\0"[..], "incomplete string length indicator for inference input"),
        (b"\x01\0\0\0a\x02\0\0\0b", "string"),
        (b"\xff\xff\xff\xffa", "string"),
        (b"\x01\0\0\0a", "expected 2 string elements for inference input 'INPUT0' for model 'string', got 1"),
        (
            b"\x01\0\0\0a\0\0\0\0\0\0\0\0",
            "unexpected number of string elements 3 for inference input 'INPUT0' for model 'string', expecting 2",
        ),
    ] {
        let (status, body) = send(tail);
        assert!(status == 400 && body.contains(text), "{tail:?}: expected 400 {text:?}, got {status} {body}");
    }
    server.stop();
}

#[test]
fn parameters_that_are_refused() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let inputs = r#""inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]"#;
    let reserved = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.";
    let kind = "parameter 'mine' has invalid type. It should be either 'int', 'bool', or 'string'.";
    let mut peer = Peer::connect(server.http);
    for (parameters, status, text) in [
        (r#"{"triton_anything":1}"#, 400, reserved),
        (r#"{"mine":null}"#, 400, kind),
        (r#"{"mine":[1]}"#, 400, kind),
        (r#"{"mine":{}}"#, 400, kind),
        (r#"{"sequence_id":-1}"#, 500, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
        (r#"{"sequence_id":1.5}"#, 500, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
        (
            &format!(r#"{{"sequence_id":"{}"}}"#, "x".repeat(129)),
            501,
            "string correlation ID cannot be longer than 128 characters",
        ),
        (
            r#"{"sequence_start":1}"#,
            500,
            "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
        ),
        (
            r#"{"priority":"high"}"#,
            500,
            "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            r#"{"timeout":-5}"#,
            500,
            "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            r#"{"binary_data_output":"yes"}"#,
            500,
            "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
        ),
    ] {
        let body = format!("{{\"parameters\":{parameters},{inputs}}}");
        let answer = peer.post("/v2/models/two/infer", &[], body.as_bytes());
        assert_eq!((answer.status, answer.error().as_str()), (status, text), "{parameters}");
    }
    for parameters in [r#"{"mine":1,"yours":true,"a":"b","c":1.5,"d":18446744073709551615}"#, "{}"] {
        let body = format!("{{\"parameters\":{parameters},{inputs}}}");
        let answer = peer.post("/v2/models/two/infer", &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{parameters}: {}", answer.text());
    }
    server.stop();
}

#[test]
fn the_length_of_the_json_is_checked() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#;
    let size = body.len();
    let mut peer = Peer::connect(server.http);
    let header = "Inference-Header-Content-Length";
    let exact = size.to_string();
    assert_eq!(peer.post("/v2/models/two/infer", &[(header, &exact)], body).status, 200);
    for (value, text) in [
        (format!("{}", size + 1), format!("inference header size should be in range (0, {size}), got: {}", size + 1)),
        ("-1".to_string(), format!("inference header size should be in range (0, {size}), got: -1")),
        ("many".to_string(), "Unable to parse Inference-Header-Content-Length, got: many".to_string()),
        (
            "2147483648".to_string(),
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: \
             2147483648"
                .to_string(),
        ),
    ] {
        let answer = peer.post("/v2/models/two/infer", &[(header, &value)], body);
        assert_eq!((answer.status, answer.error()), (400, text), "{value}");
    }
    server.stop();
}

#[test]
fn raw_requests_that_cannot_be_deduced() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let raw = [("Inference-Header-Content-Length", "0")];
    for (model, text) in [
        (
            "three",
            "Raw request must only have 1 input (found 1) to be deduced but got 3 inputs in 'three' model configuration",
        ),
        (
            "wild",
            "The shape of the raw input 'INPUT0' can not be deduced because there are more than one variable-sized dimension",
        ),
        ("string", "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]"),
    ] {
        let answer = peer.post(&format!("/v2/models/{model}/infer"), &raw, b"12345678");
        let expected = format!("[request id: <id_unknown>] {text}");
        assert_eq!((answer.status, answer.error()), (400, expected), "{model}");
    }
    server.stop();
}

#[test]
fn input_bounds_hold_and_name_their_flag() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &["--http-max-input-size=1000"]);
    let advice = "Use --http-max-input-size to increase the limit.";
    let mut peer = Peer::connect(server.http);

    let wide = format!("{{\"inputs\":[],\"id\":\"{}\"}}", "x".repeat(1000));
    let answer = peer.post("/v2/models/two/infer", &[], wide.as_bytes());
    let text = format!(
        "request JSON size of {} bytes exceeds the maximum allowed input size of 1000 bytes. {advice}",
        wide.len()
    );
    assert_eq!((answer.status, answer.error()), (400, text));

    let mut peer = Peer::connect(server.http);
    let answer = peer.post("/v2/models/natural/infer", &[("Inference-Header-Content-Length", "0")], &[0; 1004]);
    let text = format!(
        "Raw input has a byte_size (1004 bytes) that exceeds the maximum allowed value of 1000 bytes. {advice}"
    );
    assert_eq!((answer.status, answer.error()), (400, text));

    // 251 numbers are within the bound on JSON as text, but not as a tensor.
    let mut peer = Peer::connect(server.http);
    let data = vec!["7"; 251].join(",");
    let body = format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"UINT32","shape":[251],"data":[{data}]}}]}}"#);
    let answer = peer.post("/v2/models/natural/infer", &[], body.as_bytes());
    let text = format!(
        "JSON input 'INPUT0' has a byte_size (1004 bytes) that exceeds the maximum allowed value of 1000 bytes. {advice}"
    );
    assert_eq!((answer.status, answer.error()), (400, text));

    // Binary data after the JSON is not bounded by the flag.
    let tail = vec![1u8; 40_000];
    let json = r#"{"inputs":[{"name":"INPUT0","datatype":"UINT32","shape":[10000],"parameters":{"binary_data_size":40000}}],"parameters":{"binary_data_output":true}}"#;
    let answer = Peer::connect(server.http).send(&infer_with_tail("/v2/models/natural/infer", json, &tail)).answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.split().1, tail);
    server.stop();
}
