//! The texts of contract/http.md section 6 that no other test covers, and the limits of section 5's rules about sizes.

use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const ID: &str = "[request id: <id_unknown>] ";

fn start() -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("two", 0, &[Pair::new("INT32", "2"), Pair::new("FP32", "-1").optional()]);
    repository.identity("both", 0, &[Pair::new("INT32", "1"), Pair::new("INT32", "1")]);
    repository.identity("batching", 4, &[Pair::new("INT32", "2, -1"), Pair::new("INT32", "2").optional()]);
    repository.identity("wild", 0, &[Pair::new("INT64", "-1, -1")]);
    repository.identity("text", 0, &[Pair::new("BYTES", "-1")]);
    repository.identity("classes", 2, &[Pair::new("UINT8", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    (repository, server)
}

#[test]
fn texts_of_the_core() {
    let (_repository, server) = start();
    let mut peer = Peer::connect(server.http);
    let note = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended \
                to each input shape. If you want to specify the full shape including the batch dim in your input dims \
                config, try setting max_batch_size to zero. See the model configuration docs for more info on \
                max_batch_size.";
    let one = |name: &str| format!(r#"{{"name":"{name}","datatype":"INT32","shape":[1],"data":[1]}}"#);
    let all = |names: &[&str]| names.iter().map(|name| one(name)).collect::<Vec<_>>().join(",");
    for (model, inputs, text) in [
        (
            "both",
            all(&["INPUT0", "INPUT1", "INPUT2"]),
            "expected 2 inputs but got 3 inputs for model 'both'. Got input(s) ['INPUT0','INPUT1','INPUT2'], but missing \
             required input(s) ]. Please provide all required input(s)."
                .to_string(),
        ),
        (
            "both",
            all(&["INPUT7", "INPUT1", "INPUT2"]),
            "expected 2 inputs but got 3 inputs for model 'both'. Got input(s) ['INPUT7','INPUT1','INPUT2'], but missing \
             required input(s) ['INPUT0']. Please provide all required input(s)."
                .to_string(),
        ),
        (
            "two",
            all(&["INPUT0", "INPUT1", "INPUT2"]),
            "expected number of inputs between 1 and 2 but got 3 inputs for model 'two'. Got input(s) \
             ['INPUT0','INPUT1','INPUT2'], but missing required input(s) ]. Please provide all required input(s)."
                .to_string(),
        ),
        (
            "batching",
            r#"{"name":"INPUT0","datatype":"INT32","shape":[1,3,1],"data":[1,2,3]}"#.to_string(),
            format!("unexpected shape for input 'INPUT0' for model 'batching'. Expected [-1,2,-1], got [1,3,1]. {note}"),
        ),
        (
            "batching",
            r#"{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}"#.to_string(),
            format!("unexpected shape for input 'INPUT0' for model 'batching'. Expected [-1,2,-1], got [2]. {note}"),
        ),
        (
            "batching",
            r#"{"name":"INPUT0","datatype":"INT32","shape":[1,2,1],"data":[1,2]},{"name":"INPUT1","datatype":"INT32","shape":[3,2],"data":[1,2,3,4,5,6]}"#
                .to_string(),
            "input 'INPUT1' batch size does not match other inputs for 'batching'".to_string(),
        ),
        (
            "text",
            r#"{"name":"INPUT0","datatype":"BYTES","shape":[3],"data":["a","b"]}"#.to_string(),
            "expected 3 string elements for inference input 'INPUT0' for model 'text', got 2".to_string(),
        ),
        (
            "text",
            r#"{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":["a","b"]}"#.to_string(),
            "unexpected number of string elements 2 for inference input 'INPUT0' for model 'text', expecting 1"
                .to_string(),
        ),
    ] {
        let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], format!(r#"{{"inputs":[{inputs}]}}"#).as_bytes());
        assert_eq!((answer.status, answer.error()), (400, format!("{ID}{text}")), "{model} {inputs}");
    }
    server.stop();
}

#[test]
fn sizes_that_no_memory_has() {
    let (_repository, server) = start();
    let mut peer = Peer::connect(server.http);
    let most = "9223372036854775807";
    for (shape, text) in [
        (
            "[9223372036854775808,1]",
            "invalid shape for input 'INPUT0': shape [9223372036854775808,1] contains one or more invalid dimensions"
                .to_string(),
        ),
        (
            "[4,18446744073709551615]",
            "invalid shape for input 'INPUT0': shape [4,18446744073709551615] contains one or more invalid dimensions"
                .to_string(),
        ),
        (
            "[9223372036854775807,2]",
            format!(
                "invalid shape for input 'INPUT0': shape [9223372036854775807,2] causes total element count to exceed \
                 maximum size of {most}"
            ),
        ),
        (
            "[4611686018427387904,1]",
            format!(
                "byte size overflow for input 'INPUT0': element count (4611686018427387904) * data type size (8) exceeds \
                 maximum allowed size ({most})"
            ),
        ),
        (
            "[1152921504606846975,1]",
            "JSON input 'INPUT0' has a byte_size (9223372036854775800 bytes) that exceeds the maximum allowed value of \
             67108864 bytes. Use --http-max-input-size to increase the limit."
                .to_string(),
        ),
    ] {
        let body = format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT64","shape":{shape},"data":[1]}}]}}"#);
        let answer = peer.post("/v2/models/wild/infer", &[], body.as_bytes());
        assert_eq!((answer.status, answer.error()), (400, text), "{shape}");
    }
    // A number beyond 64 bits is a double, not an unsigned integer.
    for shape in ["[18446744073709551616]", "[1e2]", "[1.0]", "[-1]", "[null]", "[[1]]"] {
        let body = format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT64","shape":{shape},"data":[1]}}]}}"#);
        let answer = peer.post("/v2/models/wild/infer", &[], body.as_bytes());
        let text = "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer";
        assert_eq!((answer.status, answer.error().as_str()), (500, text), "{shape}");
    }
    server.stop();
}

#[test]
fn data_of_no_elements_is_not_looked_at() {
    let (_repository, server) = start();
    let mut peer = Peer::connect(server.http);
    for data in ["[]", "[1,2,3]", "\"x\"", "null", "{\"a\":[]}", "[[[[]]]]"] {
        let body = format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT64","shape":[3,0],"data":{data}}}]}}"#);
        let answer = peer.post("/v2/models/wild/infer", &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{data}: {}", answer.text());
        assert_eq!(answer.json()["outputs"][0]["shape"], serde_json::json!([3, 0]), "{data}");
    }
    // The empty shape has no elements here either; the core then reports the missing dimensions.
    let body = r#"{"inputs":[{"name":"INPUT0","datatype":"INT64","shape":[],"data":["ignored"]}]}"#;
    let answer = peer.post("/v2/models/wild/infer", &[], body.as_bytes());
    let text = format!("{ID}unexpected shape for input 'INPUT0' for model 'wild'. Expected [-1,-1], got []. ");
    assert_eq!((answer.status, answer.error()), (400, text));
    server.stop();
}

/// A million elements of one item can be sorted, one more cannot.
#[test]
fn too_many_classes() {
    let (_repository, server) = start();
    let mut peer = Peer::connect(server.http);
    for (rows, elements, fits) in [(1, 1_000_001, false), (2, 1_000_000, true)] {
        let json = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"UINT8","shape":[{rows},{elements}],"parameters":{{"binary_data_size":{}}}}}],
                "outputs":[{{"name":"OUTPUT0","parameters":{{"classification":1}}}}]}}"#,
            rows * elements
        );
        let mut tail = vec![0u8; rows * elements];
        tail[elements - 1] = 9;
        let answer =
            peer.send(&nereid_test_support::http::infer_with_tail("/v2/models/classes/infer", &json, &tail)).answer();
        if fits {
            assert_eq!(answer.json()["outputs"][0]["data"][0], format!("9:{}", elements - 1), "{}", answer.text());
        } else {
            let text = "classification output tensor too large";
            assert_eq!((answer.status, answer.error().as_str()), (400, text));
        }
    }
    server.stop();
}
