//! Headers and metadata that become parameters (contract/http.md section 5, contract/grpc.md section 7).

use std::collections::BTreeMap;

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::grpc::{Grpc, SERVICE, code, decode, frame};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, run_to_end};
use nereid_test_support::variant::{self, each, usual};

/// A model that says what parameters it got; `None` without a C compiler.
fn repository() -> Option<(Repository, String)> {
    let directory = backend::directory()?;
    let repository = Repository::new();
    repository.identity_of("copycat", "echo", 0, &[Pair::new("INT32", "1")], "");
    Some((repository, format!("--backend-directory={}", directory.display())))
}

const INFER: &str = "/v2/models/echo/infer";

fn body(parameters: &Value) -> Vec<u8> {
    let inputs = json!([{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]);
    json!({"parameters": parameters, "inputs": inputs}).to_string().into_bytes()
}

/// The parameters that the model got, in their order.
fn echoed(answer: &Answer) -> Vec<(String, Value)> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    let parameters = json["parameters"].as_object().expect("parameters").clone();
    let echo = |(name, value): (String, Value)| Some((name.strip_prefix("echo_")?.to_owned(), value));
    parameters.into_iter().filter_map(echo).collect()
}

fn reserved(name: &str) -> String {
    format!("Header '{name}' is reserved for Triton usage and cannot be forwarded.")
}

#[test]
fn headers_become_parameters_as_they_are_spelt() {
    let Some((repository, flag)) = repository() else { return };
    each(&variant::ALL, |variant| {
        let flags = [&*flag, "--http-header-forward-pattern=^my-|key$"];
        let server = Server::start(variant, repository.path(), &flags);
        let mut peer = Peer::connect(server.http);
        let headers = [
            ("My-Tag", "a b"),
            ("OTHER-KEY", "x"),
            ("Not-Mine", "y"),
            ("my-tag2", ""),
            ("a-key-in-between", "z"),
            ("my-number", "7"),
        ];
        let text = |text: &str| Value::from(text);
        let forwarded = [("My-Tag", "a b"), ("OTHER-KEY", "x"), ("my-tag2", ""), ("my-number", "7")];
        let forwarded: BTreeMap<_, _> = forwarded.map(|(name, value)| (name.to_owned(), text(value))).into();
        let answer = peer.post(INFER, &headers, &body(&json!({"report": true})));
        assert_eq!(echoed(&answer).into_iter().collect::<BTreeMap<_, _>>(), forwarded);
        // The same with a body that is packed.
        let packed = {
            use std::io::Write;
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(&body(&json!({"report": true, "own": 3}))).expect("pack");
            encoder.finish().expect("pack")
        };
        let with_encoding: Vec<_> = headers.into_iter().chain([("Content-Encoding", "gzip")]).collect();
        let mut expected = forwarded.clone();
        expected.insert("own".into(), Value::from(3));
        let got = echoed(&peer.post(INFER, &with_encoding, &packed));
        assert_eq!(got.into_iter().collect::<BTreeMap<_, _>>(), expected);
        // And none without such headers.
        assert!(echoed(&peer.post(INFER, &[("X", "y")], &body(&json!({"report": true})))).is_empty());
        server.stop();
    });
}

#[test]
fn case_counts_where_the_pattern_says_so() {
    let Some((repository, flag)) = repository() else { return };
    let flags = [&*flag, "--http-header-forward-pattern=(?-i)^X-[a-z]+$"];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    let headers = [("X-small", "1"), ("x-small", "2"), ("X-Large", "3")];
    let got = echoed(&peer.post(INFER, &headers, &body(&json!({"report": true}))));
    assert_eq!(got, [("X-small".to_owned(), Value::from("1"))]);
    server.stop();
}

#[test]
fn reserved_headers_are_refused_after_the_body_was_read() {
    let Some((repository, flag)) = repository() else { return };
    let server = Server::start(usual(), repository.path(), &[&flag, "--http-header-forward-pattern=.*"]);
    let mut peer = Peer::connect(server.http);
    let good = body(&json!({"report": true}));
    for name in [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
        "triton_",
        "triton_enable_empty_final_response",
    ] {
        let answer = peer.post(INFER, &[(name, "1")], &good);
        assert_eq!((answer.status, answer.error()), (400, reserved(name)));
        assert_eq!(answer.header("content-type"), Some("application/json"), "{name}");
        // What is wrong with the body comes first; what the model thinks of the request comes later.
        let answer = peer.post(INFER, &[(name, "1")], b"{}");
        assert_eq!(answer.status, 500, "{name}: {}", answer.text());
    }
    let wrong = br#"{"inputs":[{"name":"INPUT0","datatype":"INT64","shape":[1],"data":[1]}]}"#;
    assert_eq!(peer.post(INFER, &[("timeout", "1")], wrong).error(), reserved("timeout"));
    // Case counts here; a header that matters to HTTP is forwarded like any other.
    let got = echoed(&peer.post(INFER, &[("Timeout", "1"), ("PRIORITY", "2")], &good));
    let got: BTreeMap<_, _> = got.into_iter().collect();
    assert_eq!((&got["Timeout"], &got["PRIORITY"], &got["Host"]), (&"1".into(), &"2".into(), &"test".into()));
    // Raw bodies have parameters, too.
    let raw = [("timeout", "1"), ("Inference-Header-Content-Length", "0")];
    assert_eq!(peer.post(INFER, &raw, &[1, 0, 0, 0]).error(), reserved("timeout"));
    // Other routes do not forward.
    assert_eq!(peer.post("/v2/repository/index", &[("timeout", "1")], b"").status, 200);
    server.stop();
}

fn asked(id: &str) -> ModelInferRequest {
    let report = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    ModelInferRequest {
        model_name: "echo".into(),
        id: id.into(),
        parameters: [("report".to_owned(), report)].into(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".into(),
            datatype: "INT32".into(),
            shape: vec![1],
            ..Default::default()
        }],
        raw_input_contents: vec![Bytes::from_static(&[1, 0, 0, 0])],
        ..Default::default()
    }
}

fn echoed_to_grpc(answer: &ModelInferResponse) -> BTreeMap<String, String> {
    let text = |value: &InferParameter| match &value.parameter_choice {
        Some(ParameterChoice::StringParam(text)) => text.clone(),
        other => panic!("{other:?}"),
    };
    let parameters = answer.parameters.iter();
    parameters.filter_map(|(name, value)| Some((name.strip_prefix("echo_")?.to_owned(), text(value)))).collect()
}

#[test]
fn metadata_becomes_parameters_of_unary_calls_and_of_each_request_of_a_stream() {
    let Some((repository, flag)) = repository() else { return };
    each(&variant::ALL, |variant| {
        let server = Server::start(variant, repository.path(), &[&flag, "--grpc-header-forward-pattern=MY-|te$"]);
        let mut grpc = Grpc::connect(server.grpc);
        // What belongs to gRPC itself (`te`) is no application's.
        let headers = [("my-tag", "a"), ("x-my-tag", "b"), ("other", "c"), ("my-bytes-bin", "aGVsbG8")];
        let expected = [("my-tag", "a"), ("x-my-tag", "b"), ("my-bytes-bin", "hello")];
        let expected: BTreeMap<_, _> = expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let reply = grpc.exchange(&format!("{SERVICE}ModelInfer"), &headers, &[frame(&asked("1"))]);
        assert_eq!(reply.status.code, code::OK, "{:?}", reply.status);
        assert_eq!(echoed_to_grpc(&decode(&reply.messages[0])), expected);
        let pieces = [frame(&asked("1")), frame(&asked("2"))];
        let reply = grpc.exchange(&format!("{SERVICE}ModelStreamInfer"), &headers, &pieces);
        assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 2), "{:?}", reply.status);
        for message in &reply.messages {
            let answer: ModelStreamInferResponse = decode(message);
            let mut got = echoed_to_grpc(&answer.infer_response.expect("a response"));
            got.retain(|name, _| !name.starts_with("triton_"));
            assert_eq!(got, expected);
        }
        let reply = grpc.exchange(&format!("{SERVICE}ModelInfer"), &[], &[frame(&asked("1"))]);
        assert!(echoed_to_grpc(&decode(&reply.messages[0])).is_empty());
        server.stop();
    });
}

#[test]
fn reserved_metadata_is_refused_between_outputs_and_data() {
    let Some((repository, flag)) = repository() else { return };
    let server = Server::start(usual(), repository.path(), &[&flag, "--grpc-header-forward-pattern=timeout|triton_x"]);
    let mut grpc = Grpc::connect(server.grpc);
    let path = format!("{SERVICE}ModelInfer");
    for name in ["timeout", "triton_x"] {
        let headers = [(name, "1")];
        let reply = grpc.exchange(&path, &headers, &[frame(&asked("1"))]);
        assert_eq!((reply.status.code, reply.status.message), (code::INVALID_ARGUMENT, reserved(name)));
        // Without data it would be refused for that.
        let mut request = asked("1");
        request.raw_input_contents.clear();
        assert_eq!(grpc.exchange(&path, &headers, &[frame(&request)]).status.message, reserved(name));
        let wrong = InferParameter { parameter_choice: Some(ParameterChoice::StringParam("x".into())) };
        request.parameters.insert("timeout".into(), wrong);
        let text = "invalid value type for 'timeout' parameter, expected int64_param.";
        assert_eq!(grpc.exchange(&path, &headers, &[frame(&request)]).status.message, text);
        // On a stream the error is that of the request.
        let reply = grpc.exchange(&format!("{SERVICE}ModelStreamInfer"), &headers, &[frame(&asked("9"))]);
        assert_eq!(reply.status.code, code::OK);
        let answer: ModelStreamInferResponse = decode(&reply.messages[0]);
        assert_eq!((answer.error_message, answer.infer_response.expect("an id").id), (reserved(name), "9".into()));
    }
    server.stop();
}

#[test]
fn a_pattern_that_is_none_ends_the_start() {
    for flag in ["http-header-forward-pattern", "grpc-header-forward-pattern"] {
        let (status, _, stderr) = run_to_end(&["--model-repository=/nowhere", &format!("--{flag}=(unclosed")]);
        assert_eq!(status.code(), Some(1));
        let text = format!("Bad option: \"--{flag}\".\ninvalid pattern for --{flag}: unclosed group\n");
        assert!(stderr.starts_with(&text), "{stderr}");
    }
}
