//! Plans of TensorRT in a whole server (contract/frameworks.md section 2): on simulated GPUs with a stand-in for the
//! library, and with NVIDIA's lean runtime on a host without a GPU.

use std::path::PathBuf;

use serde_json::json;

use nereid_test_support::backend::compiled_as;
use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const ADD_SUB: &str = "nereid-plan 1\n\
    input IN0 0 -1 4\ninput IN1 0 -1 4\noutput SUM 0 -1 4\noutput DIFF 0 -1 4\n\
    bounds 0 IN0 1 4 / 4 4 / 8 4\nbounds 0 IN1 1 4 / 4 4 / 8 4\n\
    add SUM IN0 IN1\nsub DIFF IN0 IN1\n";

const DEVICES: [(&str, &str); 1] = [("NEREID_SIMULATED_GPUS", "2;seed=11;delay-us=40")];

/// The stand-in of version 11.
fn stand_in() -> Option<PathBuf> {
    Some(compiled_as("nvinfer.cc", &["server/libnvinfer.so.11"])?.join("server/libnvinfer.so.11"))
}

fn load(peer: &mut Peer, model: &str) -> Result<(), String> {
    let answer = peer.post(&format!("/v2/repository/models/{model}/load"), &[], b"{}");
    if answer.status == 200 { Ok(()) } else { Err(answer.error()) }
}

#[test]
fn a_plan_without_a_configuration_is_served_on_every_gpu() {
    let Some(library) = stand_in() else { return };
    let repository = Repository::new();
    repository.file("plan/1/model.plan", ADD_SUB);
    let graphs = "platform: \"tensorrt_plan\" max_batch_size: 4 optimization { cuda { graphs: true } }\n";
    repository.file("graphs/1/model.plan", ADD_SUB).file("graphs/config.pbtxt", graphs);
    let flag = format!("--backend-config=tensorrt,library={}", library.display());
    let server =
        Server::start_in(usual(), repository.path(), &[&flag, "--log-verbose=1"], "/v2/health/ready", &DEVICES);
    let mut peer = Peer::connect(server.http);
    let config = peer.get("/v2/models/plan/config").json();
    assert_eq!((&config["backend"], &config["platform"]), (&json!("tensorrt"), &json!("tensorrt_plan")));
    assert_eq!((&config["max_batch_size"], &config["instance_group"][0]["gpus"]), (&json!(8), &json!([0, 1])));
    for model in ["plan", "graphs"] {
        for rows in 1..5 {
            let values: Vec<f32> = (0..rows * 4).map(|at| at as f32).collect();
            let tensor = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [rows, 4], "data": values});
            let body = json!({"inputs": [tensor("IN0"), tensor("IN1")]}).to_string();
            let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.error());
            let outputs = answer.json()["outputs"].clone();
            let doubled: Vec<f32> = values.iter().map(|value| value * 2.).collect();
            assert_eq!((&outputs[0]["name"], &outputs[0]["data"]), (&json!("SUM"), &json!(doubled)));
            assert_eq!(outputs[1]["data"], json!(vec![0f32; rows * 4]));
        }
    }
    server.wait_for_log("captured CUDA graph for graphs_0");
    server.wait_for_log("is launching CUDA graph for graphs_0");
    let counted = peer.get("/v2/models/plan/stats").json()["model_stats"][0]["inference_count"].clone();
    assert_eq!(counted, json!(10));
}

#[test]
fn a_plan_that_cannot_be_read_is_an_error_of_its_load_alone() {
    let Some(library) = stand_in() else { return };
    let repository = Repository::new();
    repository.file("broken/1/model.plan", "junk").file("whole/1/model.plan", ADD_SUB);
    let flag = format!("--backend-config=tensorrt,library={}", library.display());
    let flags = [flag.as_str(), "--model-control-mode=explicit"];
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/live", &DEVICES);
    let mut peer = Peer::connect(server.http);
    let text = load(&mut peer, "broken").unwrap_err();
    let expected = "unable to create TensorRT engine: IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Magic \
                    tag does not match)";
    assert!(text.contains(expected), "{text}");
    assert_eq!(load(&mut peer, "whole"), Ok(()));
}

/// NVIDIA's library on a host without a GPU: it is found and opened, and the error shows its version.
#[test]
fn the_lean_runtime_is_found_where_there_is_no_gpu() {
    let Some(python) = Python::with("tensorrt_lean.txt") else { return };
    let repository = Repository::new();
    repository.file("plan/1/model.plan", "junk").file("plan/config.pbtxt", "backend: \"tensorrt\"\n");
    let flag = format!("--backend-config=tensorrt,library={}", python.packages().join("tensorrt_lean_libs").display());
    let flags = [flag.as_str(), "--model-control-mode=explicit"];
    let server =
        Server::start_in(usual(), repository.path(), &flags, "/v2/health/live", &[("TRITON_SERVER_CPU_ONLY", "1")]);
    let text = load(&mut Peer::connect(server.http), "plan").unwrap_err();
    let expected = "unable to load model 'plan', TensorRT backend supports only GPU device: this host has no driver for \
                    NVIDIA GPUs (TensorRT 11.4.0 is in ";
    assert!(text.contains(expected), "{text}");
}
