//! Requests with numbers as input and output, the simplest path through a worker.

use serde_json::json;

use super::models;
use nereid_test_support::http::{Peer, infer_with_tail};
use nereid_test_support::variant::{self, each};

#[test]
fn sums_and_differences_are_answered_over_json_and_binary() {
    each(&variant::ALL, |variant| {
        let repository = models::repository(&["sums"]);
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        let mut peer = Peer::connect(server.http);
        let body = r#"{"id":"7","inputs":[
            {"name":"INPUT0","datatype":"FP32","shape":[4],"data":[1,2,3,4]},
            {"name":"INPUT1","datatype":"FP32","shape":[4],"data":[10,20,30,40]}]}"#;
        let answer = peer.post("/v2/models/sums/infer", &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let (json, _) = answer.split();
        assert_eq!(json["id"], "7");
        assert_eq!(json["outputs"][0]["data"], json!([11.0, 22.0, 33.0, 44.0]));
        assert_eq!(json["outputs"][1]["data"], json!([-9.0, -18.0, -27.0, -36.0]));
        // Large enough to lie in shared memory.
        let (left, right) = ([1.5f32; 50_000], [0.25f32; 50_000]);
        let tail: Vec<u8> = left.iter().chain(&right).flat_map(|value| value.to_le_bytes()).collect();
        let head = r#"{"inputs":[
            {"name":"INPUT0","datatype":"FP32","shape":[50000],"parameters":{"binary_data_size":200000}},
            {"name":"INPUT1","datatype":"FP32","shape":[50000],"parameters":{"binary_data_size":200000}}],
            "parameters":{"binary_data_output":true}}"#;
        for _ in 0..50 {
            let answer = peer.send(&infer_with_tail("/v2/models/sums/infer", head, &tail)).answer();
            assert_eq!(answer.status, 200, "{}", answer.text());
            let (_, tail) = answer.split();
            assert_eq!(tail.len(), 400_000);
            assert!(tail[..200_000].chunks(4).all(|bytes| bytes == 1.75f32.to_le_bytes()));
            assert!(tail[200_000..].chunks(4).all(|bytes| bytes == 1.25f32.to_le_bytes()));
        }
    });
}
