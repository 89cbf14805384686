//! Batches over simulated devices: clients of many kinds at a time, and each gets its own numbers (docs/gpu.md).

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::json;

use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Peer, infer_with_tail};
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{ALL, Variant, each, usual};

/// A model that computes 2 x + 1 on devices.
fn affine(repository: &Repository, name: &str, more: &str) {
    let config = format!(
        "backend: \"affine\" max_batch_size: 8\n\
         input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }}\n\
         output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }}\n\
         parameters {{ key: \"scale\" value {{ string_value: \"2\" }} }}\n\
         parameters {{ key: \"bias\" value {{ string_value: \"1\" }} }}\n{more}\n"
    );
    repository.model(name, &config);
}

fn start(variant: Variant, repository: &Repository, devices: &str, flags: &[&str]) -> Server {
    let environment = [("NEREID_SIMULATED_GPUS", devices)];
    Server::start_in(variant, repository.path(), flags, "/v2/health/ready", &environment)
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn doubled(values: &[f32]) -> Vec<u8> {
    bytes_of(&values.iter().map(|value| 2.0 * value + 1.0).collect::<Vec<f32>>())
}

/// Lengths from a few numbers, which are gathered, to more than what goes as it was received.
fn values(number: u64) -> Vec<f32> {
    let count = [1, 3, 50, 1_000, 40_000, 150_000][(number % 6) as usize];
    (0..count).map(|at| (number * 7 + at) as f32).collect()
}

fn ask_http(peer: &mut Peer, model: &str, values: &[f32]) -> Vec<u8> {
    let tail = bytes_of(values);
    let head = json!({
        "inputs": [{ "name": "INPUT0", "datatype": "FP32", "shape": [1, values.len()],
                     "parameters": { "binary_data_size": tail.len() } }],
        "outputs": [{ "name": "OUTPUT0", "parameters": { "binary_data": true } }],
    });
    peer.send(&infer_with_tail(&format!("/v2/models/{model}/infer"), &head.to_string(), &tail));
    let answer = peer.answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.split().1.to_vec()
}

fn ask_grpc(grpc: &mut Grpc, model: &str, values: &[f32]) -> Bytes {
    let request = ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, values.len() as i64],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![bytes_of(values).into()],
        ..ModelInferRequest::default()
    };
    let answer: ModelInferResponse = grpc.call("ModelInfer", &request).expect("an answer");
    answer.raw_output_contents.into_iter().next().expect("an output")
}

/// Stops the server and looks at what the devices had to complain of.
fn stopped(server: Server) {
    let log = server.stop();
    assert!(!log.contains("simulated GPU: "), "{log}");
}

#[test]
fn many_clients_get_their_own_numbers() {
    each(&ALL, |variant| {
        let repository = Repository::new();
        affine(&repository, "one", "instance_group { kind: KIND_GPU count: 1 gpus: [ 0 ] } dynamic_batching { }");
        affine(&repository, "more", "instance_group { kind: KIND_GPU count: 2 } dynamic_batching { }");
        let server = start(variant, &repository, "2;seed=11;delay-us=200", &[]);
        let asked = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for client in 0..8u64 {
                let (server, asked) = (&server, &asked);
                scope.spawn(move || {
                    let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
                    for round in 0..30u64 {
                        let values = values(client * 31 + round);
                        let model = if round % 2 == 0 { "one" } else { "more" };
                        let answer = match client % 2 {
                            0 => ask_http(&mut peer, model, &values),
                            _ => ask_grpc(&mut grpc, model, &values).to_vec(),
                        };
                        assert!(answer == doubled(&values), "client {client}, round {round}, {model}");
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(asked.load(Ordering::Relaxed), 240);
        server.wait_for_log("CUDA memory pool is created on device 0 with size 67108864");
        stopped(server);
    });
}

#[test]
fn recorded_launches_answer_alike() {
    let repository = Repository::new();
    let graphs = "instance_group { kind: KIND_GPU } dynamic_batching { }\n\
                  optimization { cuda { graphs: true graph_spec { batch_size: 8 graph_lower_bound { batch_size: 1 }\n\
                  input { key: \"INPUT0\" value { dim: [ 64 ] } } } } }";
    affine(&repository, "recorded", graphs);
    let server = start(usual(), &repository, "1;seed=5", &[]);
    std::thread::scope(|scope| {
        for client in 0..4u64 {
            let server = &server;
            scope.spawn(move || {
                let mut peer = Peer::connect(server.http);
                for round in 0..40u64 {
                    // Now and then of another shape, for which nothing was recorded.
                    let count = if round % 5 == 4 { 65 } else { 64 };
                    let values: Vec<f32> = (0..count).map(|at| (client * 1000 + round * 10 + at) as f32).collect();
                    assert!(ask_http(&mut peer, "recorded", &values) == doubled(&values), "{client} {round}");
                }
            });
        }
    });
    stopped(server);
}

#[test]
fn a_small_device_answers_in_parts_or_says_that_it_is_full() {
    let repository = Repository::new();
    affine(&repository, "small", "instance_group { kind: KIND_GPU }");
    // Room for the numbers of one request, not of both sides of a large one.
    let server = start(usual(), &repository, "1;memory=1048576", &["--cuda-memory-pool-byte-size=0:524288"]);
    let mut peer = Peer::connect(server.http);
    let small: Vec<f32> = (0..1000).map(|at| at as f32).collect();
    assert!(ask_http(&mut peer, "small", &small) == doubled(&small));
    let large = bytes_of(&vec![1.0; 200_000]);
    let head = json!({ "inputs": [{ "name": "INPUT0", "datatype": "FP32", "shape": [1, 200_000],
                                     "parameters": { "binary_data_size": large.len() } }] });
    peer.send(&infer_with_tail("/v2/models/small/infer", &head.to_string(), &large));
    let refused = peer.answer();
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.error().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{}", refused.error());
    assert!(ask_http(&mut peer, "small", &small) == doubled(&small), "what fits is still computed");
    stopped(server);
}

#[test]
fn many_clients_of_an_onnx_model_get_their_own_numbers() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.file("sums/1/model.onnx", include_bytes!("../../fixtures/onnx/add_sub.onnx"));
    let more = "instance_group { kind: KIND_GPU count: 2 } dynamic_batching { }";
    repository.model("sums", &format!("backend: \"onnxruntime\" max_batch_size: 8 {more}"));
    let server = start(usual(), &repository, "2;seed=3;delay-us=200", &[&python.onnxruntime_flag()]);
    std::thread::scope(|scope| {
        for client in 0..8u32 {
            let server = &server;
            scope.spawn(move || {
                let mut peer = Peer::connect(server.http);
                for round in 0..40u32 {
                    let rows = 1 + (client + round) % 3;
                    let values: Vec<f32> = (0..rows * 4).map(|at| (client * 1000 + round * 12 + at) as f32).collect();
                    let tails = bytes_of(&[values.clone(), vec![1.0; values.len()]].concat());
                    let input = |name: &str| {
                        json!({ "name": name, "datatype": "FP32", "shape": [rows, 4],
                                "parameters": { "binary_data_size": tails.len() / 2 } })
                    };
                    let output = |name: &str| json!({ "name": name, "parameters": { "binary_data": true } });
                    let head = json!({ "inputs": [input("INPUT0"), input("INPUT1")],
                                       "outputs": [output("OUTPUT1"), output("OUTPUT0")] });
                    peer.send(&infer_with_tail("/v2/models/sums/infer", &head.to_string(), &tails));
                    let answer = peer.answer();
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    let [less, more] = [-1.0, 1.0].map(|step| values.iter().map(move |value| value + step));
                    let expected = bytes_of(&less.chain(more).collect::<Vec<f32>>());
                    assert!(answer.split().1 == expected, "client {client}, round {round}");
                }
            });
        }
    });
    stopped(server);
}
