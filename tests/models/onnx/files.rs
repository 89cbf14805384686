//! Files of a model beside its graph: weights of their own, libraries of operators, names and directories.

use super::{fixture, fp32, infer, put, start};
use nereid_test_support::http::Peer;
use nereid_test_support::library;
use nereid_test_support::repository::Repository;
use serde_json::{Value, json};

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |chunk: &[u8]| {
        let number = chunk.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        let digit = |at: usize| match at <= chunk.len() {
            true => char::from(DIGITS[(number >> (18 - 6 * at)) as usize & 63]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

#[test]
fn weights_of_their_own_are_found_beside_the_model_wherever_it_lies() {
    let repository = Repository::new();
    put(&repository, "usual", "external");
    repository.file("usual/1/external.weights", fixture("external.weights"));
    repository.file("renamed/1/graph.onnx", fixture("external.onnx"));
    repository.file("renamed/1/external.weights", fixture("external.weights"));
    repository.file("renamed/config.pbtxt", "backend: \"onnxruntime\" default_model_filename: \"graph.onnx\"");
    repository.file("folder/1/model.onnx/model.onnx", fixture("external.onnx"));
    repository.file("folder/1/model.onnx/external.weights", fixture("external.weights"));
    let Some(server) = start(&repository, &["--model-control-mode=explicit", "--load-model=*"]) else { return };
    let mut peer = Peer::connect(server.http);
    let inputs = json!([fp32("INPUT", &[1, 4], &[1.0, 2.0, 3.0, 4.0])]);
    for model in ["usual", "renamed", "folder"] {
        let answer = infer(&mut peer, model, &inputs, &[]);
        assert_eq!(answer["OUTPUT"]["data"], json!([101.0, 202.0, 303.0, 404.0]), "{model}");
    }
    // Files that come with the request to load.
    let weights: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    let parameters = json!({
        "config": json!({"backend": "onnxruntime"}).to_string(),
        "file:1/model.onnx": base64(&fixture("external.onnx")),
        "file:1/external.weights": base64(&weights),
    });
    let body = json!({"parameters": parameters}).to_string();
    let loaded = peer.post("/v2/repository/models/usual/load", &[], body.as_bytes());
    assert_eq!(loaded.status, 200, "{}", loaded.text());
    let answer = infer(&mut peer, "usual", &inputs, &[]);
    assert_eq!(answer["OUTPUT"]["data"], json!([2.0, 4.0, 6.0, 8.0]));
    server.stop();
}

#[test]
fn operators_of_a_library_beside_the_model_are_used() {
    let Some(operators) = library::compiled("onnx_operator.c") else { return };
    let repository = Repository::new();
    put(&repository, "beside", "custom");
    let bytes = std::fs::read(&operators).expect("the library");
    repository.file("beside/1/triple.so", bytes);
    let config =
        |path: &str| format!("backend: \"onnxruntime\" model_operations {{ op_library_filename: \"{path}\" }}");
    repository.file("beside/config.pbtxt", config("triple.so"));
    put(&repository, "elsewhere", "custom");
    repository.file("elsewhere/config.pbtxt", config(&operators.to_string_lossy()));
    let Some(server) = start(&repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let inputs: Value = json!([fp32("INPUT", &[2, 4], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])]);
    for model in ["beside", "elsewhere"] {
        let answer = infer(&mut peer, model, &inputs, &[]);
        assert_eq!(answer["OUTPUT"]["data"], json!([0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0]), "{model}");
    }
    server.stop();
}
