//! Models in Python and the memory of devices: input tensors, output tensors, and calls to other models with tensors on
//! devices (contract/python_backend.md sections 3 and 4; docs/gpu.md).

use serde_json::{Value, json};

use super::models;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const DEVICES: &str = "2;seed=21;delay-us=100";

/// A server on two simulated devices with the models that these tests need.
fn serve(python: &[&str]) -> Option<(Repository, Server)> {
    let interpreter = format!("--backend-config=python,interpreter={}", models::interpreter()?.display());
    let repository = models::repository(python);
    let affine = "backend: \"affine\"\n\
                  input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n\
                  output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n\
                  parameters { key: \"scale\" value { string_value: \"2\" } }\n\
                  parameters { key: \"bias\" value { string_value: \"1\" } }\n\
                  instance_group { kind: KIND_GPU count: 1 gpus: [ 0 ] }\n";
    repository.model("affine", affine);
    let identity = "backend: \"identity\"\n\
                    input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n\
                    output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n\
                    instance_group { kind: KIND_CPU }\n";
    repository.model("identity_fp32", identity);
    let flags = [interpreter.as_str()];
    let environment = [("NEREID_SIMULATED_GPUS", DEVICES)];
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
    Some((repository, server))
}

fn ask(peer: &mut Peer, model: &str, values: &[f32]) -> Value {
    let body = json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [values.len()], "data": values}]});
    let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn output(answer: &Value, name: &str) -> Value {
    let outputs = answer["outputs"].as_array().expect("outputs");
    outputs.iter().find(|output| output["name"] == name).expect("the output")["data"].clone()
}

/// JSON that a model has answered.
fn told(answer: &Value, name: &str) -> Value {
    let text = output(answer, name)[0].as_str().map(str::to_owned);
    serde_json::from_str(&text.expect("a text")).expect("JSON")
}

/// Stops the server; its devices had nothing to complain of.
fn stopped(server: Server) {
    let log = server.stop();
    assert!(!log.contains("simulated GPU: "), "{log}");
}

#[test]
fn what_a_model_makes_on_a_device_reaches_its_client() {
    let Some((_repository, server)) = serve(&["on_gpu"]) else { return };
    let mut peer = Peer::connect(server.http);
    // The longest one is not copied to the worker's pool, it has a handle of its own.
    for count in [1usize, 5, 3000, 0, 70_000] {
        let values: Vec<f32> = (0..count).map(|at| at as f32).collect();
        let answer = ask(&mut peer, "on_gpu", &values);
        let tens: Vec<f32> = values.iter().map(|value| value * 10.0).collect();
        assert_eq!(output(&answer, "OUT"), json!(tens));
        let facts = told(&answer, "FACTS");
        // What comes over the wire is on the host.
        assert_eq!((&facts["kind"], &facts["device"], &facts["is_cpu"]), (&json!("GPU"), &json!("1"), &json!(true)));
        assert_eq!(facts["made_is_cpu"], json!(count == 0));
    }
    stopped(server);
}

#[test]
fn tensors_on_devices_pass_between_models() {
    let Some((_repository, server)) = serve(&["on_gpu", "gpu_caller"]) else { return };
    let mut peer = Peer::connect(server.http);
    for (round, values) in [vec![1.0f32, 2.0, 3.0], (0..5000).map(|at| at as f32).collect()].into_iter().enumerate() {
        let answer = ask(&mut peer, "gpu_caller", &values);
        let doubled: Vec<f32> = values.iter().map(|value| 2.0 * value + 1.0).collect();
        assert_eq!(output(&answer, "OUT"), json!(doubled), "{round}");
        let seen = told(&answer, "SEEN");
        let again: Vec<f32> = doubled.iter().map(|value| 20.0 * value + 1.0).collect();
        // kDLCPU is 1, kDLCUDA 2.
        let (host, gpu_0, gpu_1) = (json!([1, 0]), json!([2, 0]), json!([2, 1]));
        assert_eq!((&seen["given"], &seen["doubled"], &seen["tens"]), (&host, &gpu_0, &gpu_1));
        assert_eq!(seen["on_host"], json!([host, again]));
        assert_eq!((&seen["on_0"], &seen["on_1"], &seen["echoed"]), (&gpu_0, &gpu_1, &gpu_1));
        assert_eq!(seen["nowhere"], host, "a device that there is not");
        let facts = &seen["facts"];
        assert_eq!((&facts["is_cpu"], &facts["lies_on"]), (&json!(false), &gpu_0));
        let refused = "TritonModelException: Tensor is stored in GPU and cannot be converted to NumPy.";
        assert_eq!(facts["as_numpy"], refused);
    }
    stopped(server);
}

#[test]
fn what_a_model_lends_comes_back_to_it() {
    let Some((_repository, server)) = serve(&["on_gpu", "gpu_caller"]) else { return };
    std::thread::scope(|scope| {
        for client in 0..3u16 {
            let server = &server;
            scope.spawn(move || {
                let mut peer = Peer::connect(server.http);
                for round in 0..25u16 {
                    let values: Vec<f32> = (0..=client * 400 + round).map(f32::from).collect();
                    let doubled: Vec<f32> = values.iter().map(|value| 2.0 * value + 1.0).collect();
                    assert_eq!(output(&ask(&mut peer, "gpu_caller", &values), "OUT"), json!(doubled));
                }
            });
        }
    });
    // The worker hears of it as soon as nobody reads the tensor; a look asks for one tensor more.
    let mut peer = Peer::connect(server.http);
    let alive = || told(&ask(&mut peer, "on_gpu", &[1.0]), "FACTS")["alive"].as_u64().expect("a number");
    let settled = std::iter::repeat_with(alive).take(2000).any(|alive| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        alive == 0
    });
    assert!(settled, "tensors that nobody reads stay");
    stopped(server);
}

/// Responses of a decoupled model from two of its threads: to a client, and to a model that has them on the device.
#[test]
fn what_a_decoupled_model_makes_on_a_device_is_sent_one_after_the_other() {
    let Some((_repository, server)) = serve(&["on_gpu", "gpu_stream", "gpu_reader"]) else { return };
    let mut peer = Peer::connect(server.http);
    for count in [1u16, 7, 4000] {
        let values: Vec<f32> = (1..=count).map(f32::from).collect();
        let times = |factor: f32, more: f32| values.iter().map(|value| value * factor + more).collect::<Vec<f32>>();
        let body = json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [count], "data": values}]});
        let accepts = [("Accept", "text/event-stream")];
        let answer = peer.post("/v2/models/gpu_stream/infer", &accepts, body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let text = answer.text();
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = events.map(|event| serde_json::from_str::<Value>(event).expect("JSON"));
        let sent: Vec<Value> = events.map(|event| output(&event, "OUT")).collect();
        assert_eq!(sent, (1..=6u8).map(|time| json!(times(time.into(), 0.0))).collect::<Vec<Value>>(), "{count}");
        let answer = ask(&mut peer, "gpu_reader", &values);
        assert_eq!(output(&answer, "OUT"), json!(times(12.0, 1.0)), "{count}");
        assert_eq!(told(&answer, "SEEN"), json!(vec![[2, 1]; 6]), "{count}");
    }
    stopped(server);
}

#[test]
fn inputs_are_on_the_host_unless_the_model_says_otherwise() {
    let interpreter = models::interpreter();
    if interpreter.is_none() {
        return;
    }
    let Some((repository, server)) = serve(&["on_gpu", "gpu_caller"]) else { return };
    drop(server);
    let config = std::fs::read_to_string(repository.path().join("on_gpu/config.pbtxt")).expect("a configuration");
    let (config, _) = config.split_once("parameters").expect("parameters");
    repository.file("on_gpu/config.pbtxt", config.as_bytes());
    let interpreter = format!("--backend-config=python,interpreter={}", interpreter.unwrap_or_default().display());
    let environment = [("NEREID_SIMULATED_GPUS", DEVICES)];
    let server =
        Server::start_in(usual(), repository.path(), &[interpreter.as_str()], "/v2/health/ready", &environment);
    let mut peer = Peer::connect(server.http);
    let seen = told(&ask(&mut peer, "gpu_caller", &[1.0, 2.0]), "SEEN");
    assert_eq!((&seen["doubled"], &seen["facts"]["is_cpu"]), (&json!([2, 0]), &json!(true)));
    stopped(server);
}
