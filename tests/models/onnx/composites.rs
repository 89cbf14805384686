//! Outputs that are maps, sequences or optionals, over HTTP and gRPC.

use super::{fp32, infer, put, refusal, start};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::json;

const WITH_KEYS: &str = r#"
backend: "onnxruntime"
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "LABEL" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [ ] } }
output { name: "MAPS" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "MAPS.keys" data_type: TYPE_STRING dims: [ 3 ] }
"#;

#[test]
fn maps_are_matrices_in_metadata_and_in_answers() {
    let repository = Repository::new();
    put(&repository, "bare", "string_maps");
    put(&repository, "named", "string_maps");
    repository.file("named/config.pbtxt", WITH_KEYS);
    let Some(server) = start(&repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    // Nothing but a file: completed from it.
    let metadata = peer.get("/v2/models/bare").json();
    let outputs = json!([
        {"name": "LABEL", "datatype": "INT64", "shape": [-1, 1]},
        {"name": "MAPS", "datatype": "FP32", "shape": [-1, -1]}
    ]);
    assert_eq!(metadata["outputs"], outputs);
    let rows = json!([fp32("INPUT", &[2, 3], &[0.125, 0.75, 0.25, 6.0, 5.0, 4.0])]);
    let answer = infer(&mut peer, "bare", &rows, &[]);
    // The file's columns are those of pear, apple and fig.
    assert_eq!(answer["MAPS"]["shape"], json!([2, 3]));
    assert_eq!(answer["MAPS"]["data"], json!([0.75, 0.25, 0.125, 5.0, 4.0, 6.0]));
    assert_eq!(answer["LABEL"]["data"], json!([1, 0]));
    let answer = infer(&mut peer, "named", &rows, &["MAPS.keys"]);
    assert_eq!(answer["MAPS.keys"]["shape"], json!([2, 3]));
    assert_eq!(answer["MAPS.keys"]["data"], json!(["apple", "fig", "pear", "apple", "fig", "pear"]));
    // The same over gRPC.
    let tensor =
        InferInputTensor { name: "INPUT".into(), datatype: "FP32".into(), shape: vec![1, 3], ..Default::default() };
    let raw = [1f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
    let request = ModelInferRequest {
        model_name: "named".into(),
        inputs: vec![tensor],
        raw_input_contents: vec![raw.into()],
        ..Default::default()
    };
    let response: ModelInferResponse = Grpc::connect(server.grpc).call("ModelInfer", &request).expect("an answer");
    let at = |name: &str| response.outputs.iter().position(|output| output.name == name).expect("the output");
    let values = &response.raw_output_contents[at("MAPS")];
    assert_eq!(values[..], [2f32, 3.0, 1.0].map(f32::to_le_bytes).concat());
    let keys = [&b"\x05\0\0\0apple"[..], b"\x03\0\0\0fig", b"\x04\0\0\0pear"].concat();
    assert_eq!(response.raw_output_contents[at("MAPS.keys")][..], keys[..]);
    server.stop();
}

#[test]
fn sequences_are_stacked_and_optionals_may_be_left_out() {
    let repository = Repository::new();
    put(&repository, "split", "split");
    put(&repository, "optionals", "optionals");
    let Some(server) = start(&repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let inputs = |few: i64| {
        let words = json!({"name": "WORDS", "datatype": "BYTES", "shape": [2, 2], "data": ["a", "b", "c", "d"]});
        let short = fp32("SHORT", &[few, 2], &vec![9.0; few as usize * 2]);
        json!([fp32("INPUT", &[2, 2], &[1.0, 2.0, 3.0, 4.0]), short, words])
    };
    let answer = infer(&mut peer, "split", &inputs(1), &["ROWS", "LISTS"]);
    assert_eq!((&answer["ROWS"]["shape"], &answer["ROWS"]["data"]), (&json!([2, 2]), &json!([1.0, 2.0, 3.0, 4.0])));
    assert_eq!(answer["LISTS"]["data"], json!(["a", "b", "c", "d"]));
    let text = refusal(&mut peer, "split", &inputs(1), &["UNEQUAL"]);
    assert!(text.contains("whose tensors 0 and 1 differ in shape"), "{text}");
    let answer = infer(&mut peer, "split", &inputs(2), &["UNEQUAL"]);
    assert_eq!(answer["UNEQUAL"]["shape"], json!([2, 2, 2]));

    let other = fp32("OTHER", &[2], &[5.0, 6.0]);
    let answer = infer(&mut peer, "optionals", &json!([other]), &["HAS", "VALUE"]);
    assert_eq!((&answer["HAS"]["data"], &answer["VALUE"]["data"]), (&json!([false]), &json!([5.0, 6.0])));
    let answer = infer(&mut peer, "optionals", &json!([fp32("INPUT", &[2], &[1.0, 1.0]), other]), &["HAS"]);
    assert_eq!(answer["HAS"]["data"], json!([true]));
    let text = refusal(&mut peer, "optionals", &json!([other]), &["NOTHING"]);
    assert!(text.contains("output 'NOTHING' is optional"), "{text}");
    server.stop();
}
