//! The classification extension: the k largest values of an output, with their labels (contract/http.md section 5).

use serde_json::{Value, json};

use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

struct Case {
    model: &'static str,
    datatype: &'static str,
    shape: Value,
    data: Value,
    k: u64,
    answer: (Value, Value),
}

#[test]
fn the_largest_values_come_with_their_labels() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("FP32", "-1").labels()]).file("plain/labels.txt", "ant\nbee\n\ncow");
    repository.identity("batching", 4, &[Pair::new("INT32", "3").labels()]).file("batching/labels.txt", "x\ny\nz\n");
    repository.identity("unlabelled", 0, &[Pair::new("UINT8", "-1")]);
    repository.identity("matrix", 2, &[Pair::new("FP64", "2, 2")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let cases = [
        Case {
            model: "plain",
            datatype: "FP32",
            shape: json!([5]),
            data: json!([0.5, 2.25, -1.0, 2.0, 0.125]),
            k: 3,
            // The last line has no line end and is still a label; the fifth class has no label.
            answer: (json!([3]), json!(["2.250000:1:bee", "2.000000:3:cow", "0.500000:0:ant"])),
        },
        Case {
            model: "plain",
            datatype: "FP32",
            shape: json!([5]),
            data: json!([0, 0, 7, 0, 9]),
            k: 2,
            // Class 2 has an empty line for a label, class 4 has none.
            answer: (json!([2]), json!(["9.000000:4", "7.000000:2"])),
        },
        Case {
            model: "plain",
            datatype: "FP32",
            shape: json!([2]),
            data: json!([1, 2]),
            k: 100,
            answer: (json!([2]), json!(["2.000000:1:bee", "1.000000:0:ant"])),
        },
        Case {
            model: "batching",
            datatype: "INT32",
            shape: json!([2, 3]),
            data: json!([1, 3, 2, -5, -7, -6]),
            k: 2,
            answer: (json!([2, 2]), json!(["3:1:y", "2:2:z", "-5:0:x", "-6:2:z"])),
        },
        Case {
            model: "unlabelled",
            datatype: "UINT8",
            shape: json!([3]),
            data: json!([7, 255, 0]),
            k: 1,
            answer: (json!([1]), json!(["255:1"])),
        },
        Case {
            model: "matrix",
            datatype: "FP64",
            shape: json!([1, 2, 2]),
            data: json!([1, 2, 3, 0.5]),
            k: 3,
            answer: (json!([1, 3]), json!(["3.000000:2", "2.000000:1", "1.000000:0"])),
        },
    ];
    for Case { model, datatype, shape, data, k, answer } in cases {
        let body = json!({
            "inputs": [{"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data}],
            "outputs": [{"name": "OUTPUT0", "parameters": {"classification": k}}],
        });
        let got = peer.post(&format!("/v2/models/{model}/infer"), &[], body.to_string().as_bytes());
        assert_eq!(got.status, 200, "{model}: {}", got.text());
        let output = &got.json()["outputs"][0];
        assert_eq!(output["datatype"], "BYTES", "{model}");
        assert_eq!((&output["shape"], &output["data"]), (&answer.0, &answer.1), "{model}, k = {k}");
    }

    // k = 0 requests no classification: the tensor itself is returned.
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[2],"data":[4,5]}],
                    "outputs":[{"name":"OUTPUT0","parameters":{"classification":0}}]}"#;
    let plain = peer.post("/v2/models/unlabelled/infer", &[], body).json();
    assert_eq!(plain["outputs"][0]["data"], json!([4, 5]));
    // Classes as binary: length-prefixed strings.
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[2],"data":[4,5]}],
                    "outputs":[{"name":"OUTPUT0","parameters":{"classification":1,"binary_data":true}}]}"#;
    let answer = peer.post("/v2/models/unlabelled/infer", &[], body);
    assert_eq!(answer.split().1, b"\x03\0\0\x005:1");
    server.stop();
}

#[test]
fn what_has_no_order_has_no_classes() {
    let repository = Repository::new();
    repository.every_datatype();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for (datatype, data) in [("BOOL", json!([true])), ("BYTES", json!(["a"]))] {
        let body = json!({
            "inputs": [{"name": "INPUT0", "datatype": datatype, "shape": [1, 1], "data": data}],
            "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}],
        });
        let path = format!("/v2/models/identity_{}/infer", datatype.to_lowercase());
        let answer = peer.post(&path, &[], body.to_string().as_bytes());
        let text = format!("class result not available for output due to unsupported type '{datatype}'");
        assert_eq!((answer.status, answer.error()), (400, text));
    }
    server.stop();
}
