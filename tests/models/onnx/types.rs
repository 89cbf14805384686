//! Every element type passes through a model bit by bit, over HTTP and gRPC.

use super::{put, start};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Peer, infer_with_tail};
use nereid_test_support::repository::Repository;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

/// Names and bytes of an element.
const TYPES: [(&str, usize); 13] = [
    ("BOOL", 1),
    ("UINT8", 1),
    ("UINT16", 2),
    ("UINT32", 4),
    ("UINT64", 8),
    ("INT8", 1),
    ("INT16", 2),
    ("INT32", 4),
    ("INT64", 8),
    ("FP16", 2),
    ("FP32", 4),
    ("FP64", 8),
    ("BF16", 2),
];

/// Two elements of a type.
fn bytes_of(name: &str, size: usize) -> Vec<u8> {
    match name {
        "BOOL" => vec![1, 0],
        _ => (1..=2 * size as u8).collect(),
    }
}

#[test]
fn every_type_passes_over_http_and_grpc() {
    let repository = Repository::new();
    put(&repository, "types", "types");
    put(&repository, "strings", "strings");
    let Some(server) = start(&repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let inputs: Vec<Value> = TYPES
        .iter()
        .map(|(name, size)| {
            let parameters = json!({"binary_data_size": 2 * size});
            json!({"name": format!("IN_{name}"), "datatype": name, "shape": [2], "parameters": parameters})
        })
        .collect();
    let tail: Vec<u8> = TYPES.iter().flat_map(|(name, size)| bytes_of(name, *size)).collect();
    let body = json!({"inputs": inputs, "parameters": {"binary_data_output": true}}).to_string();
    peer.send(&infer_with_tail("/v2/models/types/infer", &body, &tail));
    let answer = peer.answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (json, mut rest) = answer.split();
    let outputs = json["outputs"].as_array().expect("outputs");
    assert_eq!(outputs.len(), TYPES.len());
    for output in outputs {
        let name = output["datatype"].as_str().expect("a datatype");
        let (_, size) = TYPES.iter().find(|(known, _)| *known == name).expect("a known datatype");
        assert_eq!(output["name"], format!("OUT_{name}"));
        let (bytes, more) = rest.split_at(2 * size);
        assert_eq!(bytes, bytes_of(name, *size), "{name}");
        rest = more;
    }
    assert!(rest.is_empty());

    let tensor = |name: &str| InferInputTensor {
        name: format!("IN_{name}"),
        datatype: name.to_owned(),
        shape: vec![2],
        ..Default::default()
    };
    let request = ModelInferRequest {
        model_name: "types".into(),
        inputs: TYPES.iter().map(|(name, _)| tensor(name)).collect(),
        raw_input_contents: TYPES.iter().map(|(name, size)| bytes_of(name, *size).into()).collect(),
        ..Default::default()
    };
    let response: ModelInferResponse = Grpc::connect(server.grpc).call("ModelInfer", &request).expect("an answer");
    assert_eq!(response.outputs.len(), TYPES.len());
    for (output, bytes) in response.outputs.iter().zip(&response.raw_output_contents) {
        let (_, size) = TYPES.iter().find(|(known, _)| *known == output.datatype).expect("a known datatype");
        assert_eq!(bytes[..], bytes_of(&output.datatype, *size), "{}", output.datatype);
    }

    let words = json!([{"name": "INPUT", "datatype": "BYTES", "shape": [1, 2], "data": ["h\u{e4}", ""]}]);
    let answer = super::infer(&mut peer, "strings", &words, &[]);
    assert_eq!(answer["OUTPUT"]["data"], json!(["h\u{e4}", ""]));
    server.stop();
}
