//! Requests: formats, protocols, batches, shared memory, instances, wrong shapes.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Peer, infer_with_tail, request};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};

use super::{Models, PAIR, ask, infer, must_add, parameter, statistics, values};

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn every_format_adds_and_subtracts_over_http_and_grpc() {
    let Some(models) = Models::get() else { return };
    let batched = format!("max_batch_size: 8\n{PAIR}");
    models.add("plain", "add_sub", &batched).add("laid_out", "layout", "");
    let onnx = format!("{batched}default_model_filename: \"model.onnx\"\n");
    models.add_file("onnx", "add_sub.onnx", "model.onnx", &onnx);
    let tensorflow = format!("{batched}default_model_filename: \"model.saved_model\"\n");
    let file = "model.saved_model/saved_model.pb";
    models.add_file("tensorflow", "add_sub.saved_model/saved_model.pb", file, &tensorflow);
    for file in ["model.pdmodel", "model.tflite"] {
        let format = file.trim_start_matches("model.");
        let named = format!("{batched}default_model_filename: \"{file}\"\n");
        models.add_file(format, &format!("add_sub.{format}"), file, &named);
    }
    let [flag] = models.flags();
    each(&variant::ALL, |variant| {
        let server = Server::start(variant, models.repository.path(), &[&flag]);
        let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
        for model in ["plain", "laid_out", "onnx", "tensorflow", "pdmodel", "tflite"] {
            for rows in [1, 4, 2] {
                must_add(&mut peer, model, rows);
            }
            let tensor = |at: usize| InferInputTensor {
                name: format!("INPUT{at}"),
                datatype: "FP32".to_owned(),
                shape: vec![2, 16],
                ..Default::default()
            };
            let request = ModelInferRequest {
                model_name: model.to_owned(),
                inputs: vec![tensor(0), tensor(1)],
                raw_input_contents: vec![floats([3.; 32]).into(), floats([1.; 32]).into()],
                ..Default::default()
            };
            let response: ModelInferResponse = grpc.call("ModelInfer", &request).expect("a response");
            let sum = response.outputs.iter().position(|output| output.name == "OUTPUT0").expect("OUTPUT0");
            assert_eq!(response.raw_output_contents[sum], floats([4.; 32]), "{model}");
        }
        // Binary tensors.
        let input = |at: usize| {
            let parameters = json!({ "binary_data_size": 64 });
            json!({ "name": format!("INPUT{at}"), "datatype": "FP32", "shape": [1, 16], "parameters": parameters })
        };
        let head = json!({ "inputs": [input(0), input(1)], "parameters": { "binary_data_output": true } }).to_string();
        let tail = [floats([3.; 16]), floats([1.; 16])].concat();
        let answer = peer.send(&infer_with_tail("/v2/models/plain/infer", &head, &tail)).answer();
        assert_eq!(answer.split().1, [floats([4.; 16]), floats([2.; 16])].concat());
        server.stop();
    });
}

#[test]
fn concurrent_requests_are_joined_to_one_execution() {
    let Some(models) = Models::get() else { return };
    models.add("m", "add_sub", &format!("max_batch_size: 8\ndynamic_batching {{}}\n{PAIR}"));
    let [flag] = models.flags();
    let environment = [("TRITONSERVER_DELAY_SCHEDULER", "3")];
    let path = models.repository.path();
    let server = Server::start_in(usual(), path, &[&flag], "/v2/health/ready", &environment);
    let rows = [1usize, 3, 2];
    let mut peers: Vec<Peer> = rows
        .iter()
        .map(|rows| {
            let a: Vec<f32> = (0..rows * 16).map(|at| (at + 1000 * rows) as f32).collect();
            let mut peer = Peer::connect(server.http);
            peer.send(&request("POST", "/v2/models/m/infer", &[], ask(&[*rows, 16], [&a, &a]).as_bytes()));
            peer
        })
        .collect();
    for (peer, rows) in peers.iter_mut().zip(rows) {
        let expected: Vec<f64> = (0..rows * 16).map(|at| 2. * (at + 1000 * rows) as f64).collect();
        assert_eq!(values(&peer.answer(), 0), expected);
    }
    let statistics = statistics(&mut Peer::connect(server.http), "m");
    assert_eq!((&statistics["inference_count"], &statistics["execution_count"]), (&json!(6), &json!(1)));
    assert_eq!(statistics["batch_stats"][0]["batch_size"], 6);
    server.stop();
}

/// An object of system shared memory.
struct Object(PathBuf);

impl Drop for Object {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn inputs_and_outputs_in_shared_memory_are_used_in_place() {
    let Some(models) = Models::get() else { return };
    models.add("known", "add_sub", &format!("max_batch_size: 8\n{PAIR}"));
    let open = PAIR.replace("[ 16 ]", "[ -1, 16 ]");
    models.add("unknown", "add_sub", &format!("max_batch_size: 0\n{open}"));
    let [flag] = models.flags();
    let server = Server::start(usual(), models.repository.path(), &[&flag, "--allow-client-shm=true"]);
    let mut peer = Peer::connect(server.http);
    let object = Object(PathBuf::from(format!("/dev/shm/nereid-openvino-{}", std::process::id())));
    let (a, b) = (floats([5.; 32]), floats((0..32).map(|at| at as f32)));
    // Inputs at 0 and 128, outputs at 256 and, not aligned for their elements, at 385.
    fs::write(&object.0, [&a[..], &b, &[0; 264]].concat()).expect("an object in /dev/shm");
    let key = format!("/{}", object.0.file_name().expect("a name").to_string_lossy());
    let body = json!({ "key": key, "offset": 0, "byte_size": 520 }).to_string();
    let registered = peer.post("/v2/systemsharedmemory/region/r/register", &[], body.as_bytes());
    assert_eq!(registered.status, 200, "{}", registered.text());
    let place = |offset: usize| json!({ "shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": 128 });
    let input = |at: usize| json!({ "name": format!("INPUT{at}"), "datatype": "FP32", "shape": [2, 16], "parameters": place(128 * at) });
    let output = |at: usize, offset: usize| json!({ "name": format!("OUTPUT{at}"), "parameters": place(offset) });
    let body = json!({ "inputs": [input(0), input(1)], "outputs": [output(0, 256), output(1, 385)] }).to_string();
    for model in ["known", "unknown"] {
        let answer = infer(&mut peer, model, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let bytes = fs::read(&object.0).expect("the object");
        assert_eq!(bytes[256..384], floats((0..32).map(|at| 5. + at as f32)), "{model}");
        assert_eq!(bytes[385..513], floats((0..32).map(|at| 5. - at as f32)), "{model}");
        assert_eq!(bytes[..256], [&a[..], &b].concat(), "inputs stay as they are");
        fs::write(&object.0, [&a[..], &b, &[0; 264]].concat()).expect("an object in /dev/shm");
    }
    server.stop();
}

#[test]
fn instances_run_next_to_each_other() {
    let Some(models) = Models::get() else { return };
    let config = format!(
        "max_batch_size: 64\ninput {{ name: \"x\" data_type: TYPE_FP32 dims: [ 64 ] }}\n\
         output {{ name: \"y\" data_type: TYPE_FP32 dims: [ 64 ] }}\ninstance_group {{ kind: KIND_CPU count: 2 }}\n{}",
        parameter("NUM_STREAMS", "2")
    );
    models.add("deep", "deep", &config);
    let [flag] = models.flags();
    let server = Server::start(usual(), models.repository.path(), &[&flag]);
    let body = |rows: usize| {
        let data: Vec<f32> = (0..rows * 64).map(|at| (at % 13) as f32 / 13.).collect();
        json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [rows, 64], "data": data }] }).to_string()
    };
    // The first row is the same in every request.
    let expected = values(&infer(&mut Peer::connect(server.http), "deep", &body(1)), 0);
    assert!(expected.iter().any(|value| *value > 0.));
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (expected, body, http) = (&expected, &body, server.http);
            scope.spawn(move || {
                let mut peer = Peer::connect(http);
                for rows in 1..=16 {
                    let answer = values(&infer(&mut peer, "deep", &body(rows)), 0);
                    assert_eq!(answer.len(), rows * 64);
                    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4 * a.abs().max(1.);
                    assert!(answer.iter().zip(expected).all(close), "client {client}, {rows} rows");
                }
            });
        }
    });
    let statistics = statistics(&mut Peer::connect(server.http), "deep");
    assert_eq!(statistics["inference_count"], 1 + 4 * (1..=16).sum::<u64>());
    server.stop();
}

#[test]
fn requests_that_do_not_fit_fail_alone() {
    let Some(models) = Models::get() else { return };
    let open = PAIR.replace("[ 16 ]", "[ -1 ]");
    models.add("open", "open", &format!("max_batch_size: 8\n{open}"));
    // With one thread the library itself would not notice.
    let rows = PAIR.replace("[ 16 ]", "[ -1, 16 ]");
    models.add("single", "add_sub", &format!("{rows}{}", parameter("INFERENCE_NUM_THREADS", "1")));
    let [flag] = models.flags();
    let server = Server::start(usual(), models.repository.path(), &[&flag]);
    let mut peer = Peer::connect(server.http);
    let two = |shapes: [[usize; 2]; 2]| {
        let input = |at: usize| {
            let data = vec![1.; shapes[at].iter().product()];
            json!({ "name": format!("INPUT{at}"), "datatype": "FP32", "shape": shapes[at], "data": data })
        };
        json!({ "inputs": [input(0), input(1)] }).to_string()
    };
    for (model, good, bad) in
        [("open", [[2, 3], [2, 3]], [[1, 3], [1, 4]]), ("single", [[4, 16], [4, 16]], [[4, 16], [3, 16]])]
    {
        for _ in 0..3 {
            let answer = infer(&mut peer, model, &two(good));
            assert_eq!(values(&answer, 0), vec![2.; good[0].iter().product()], "{model}");
            let answer = infer(&mut peer, model, &two(bad));
            assert_eq!(answer.status, 500, "{model}");
            let text = answer.error();
            assert!(text.starts_with("openvino error in running inference - wait : "), "{model}: {text}");
        }
        let answer = infer(&mut peer, model, &ask(&[2, 8], [&[0.; 16], &[0.; 16]]));
        assert_eq!(answer.status, if model == "open" { 200 } else { 400 }, "{}", answer.text());
        let failed = &statistics(&mut peer, model)["inference_stats"]["fail"]["count"];
        assert!(failed.as_u64().is_some_and(|count| count >= 3), "{model}: {failed}");
    }
    assert_eq!(peer.get("/v2/health/ready").status, 200);
    server.stop();
}
