//! Packages of AOTInductor (contract/frameworks.md section 1a) in a whole server, with the library of PyTorch. These
//! tests need NEREID_TEST_LARGE_RUNTIMES=1, because the library is more than a gigabyte.

use std::path::Path;

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use crate::frameworks::shared_memory::Region;
use nereid_test_support::grpc::{Grpc, Status};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Repository, TYPES};
use nereid_test_support::server::Server;
use nereid_test_support::torch::Torch;
use nereid_test_support::variant::usual;

/// Writes a model of `package`.
fn model(repository: &Repository, torch: &Torch, name: &str, package: &str, config: &str) {
    let head = format!("name: \"{name}\" platform: \"torch_aoti\"\n");
    let file = std::fs::read(torch.packages.join(format!("{package}.pt2"))).expect("a package");
    repository.file(&format!("{name}/config.pbtxt"), head + config).file(&format!("{name}/1/model.pt2"), file);
}

fn tensor(kind: &str, name: &str, datatype: &str, dims: &str) -> String {
    format!("{kind} {{ name: \"{name}\" data_type: TYPE_{datatype} dims: [ {dims} ] }}\n")
}

/// Two inputs and their sum and difference, in rows of `dims`.
fn add(names: [&str; 4], dims: &str, more: &str) -> String {
    let tensors: String = names
        .iter()
        .zip(["input", "input", "output", "output"])
        .map(|(name, kind)| tensor(kind, name, "FP32", dims))
        .collect();
    format!("max_batch_size: 8 {tensors} {more} instance_group {{ kind: KIND_CPU count: 2 }}")
}

const BY_POSITION: [&str; 4] = ["INPUT__0", "INPUT__1", "OUTPUT__0", "OUTPUT__1"];
const BY_PLACE: [&str; 4] = ["ARGS[0]", "ARGS[1]", "RESULT[0]", "RESULT[1]"];
const MIXED: [&str; 4] = ["ARGS[0]", "INPUT__1", "OUTPUT__0", "RESULT[1]"];

fn message(model: &str, inputs: &[(&str, &str, Vec<i64>, Vec<u8>)]) -> ModelInferRequest {
    let described = |(name, datatype, shape, _): &(&str, &str, Vec<i64>, Vec<u8>)| InferInputTensor {
        name: (*name).to_owned(),
        datatype: (*datatype).to_owned(),
        shape: shape.clone(),
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: inputs.iter().map(described).collect(),
        raw_input_contents: inputs.iter().map(|(.., bytes)| Bytes::copy_from_slice(bytes)).collect(),
        ..ModelInferRequest::default()
    }
}

fn call(grpc: &mut Grpc, request: &ModelInferRequest) -> Result<ModelInferResponse, Status> {
    grpc.call("ModelInfer", request)
}

/// The bytes of the output `name`.
fn output<'a>(response: &'a ModelInferResponse, name: &str) -> &'a [u8] {
    let at = response.outputs.iter().position(|output| output.name == name);
    &response.raw_output_contents[at.unwrap_or_else(|| panic!("no output {name}: {:?}", response.outputs))]
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

fn numbers(data: &Value) -> Vec<f32> {
    data.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number") as f32).collect()
}

fn le(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn start(repository: &Path, torch: &Torch, flags: &[&str], environment: &[(&str, &str)]) -> Server {
    let library = torch.flag();
    let flags: Vec<&str> = flags.iter().copied().chain([library.as_str()]).collect();
    Server::start_in(usual(), repository, &flags, "/v2/health/ready", environment)
}

#[test]
fn every_kind_of_name_serves_http_and_grpc() {
    let Some(torch) = Torch::get() else { return };
    let repository = Repository::new();
    let kinds = [("by_position", BY_POSITION), ("by_place", BY_PLACE), ("mixed", MIXED)];
    for (name, names) in kinds {
        model(&repository, &torch, name, "add", &add(names, "16", ""));
    }
    let server = start(repository.path(), &torch, &[], &[]);
    let (mut http, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
    for (name, [a, b, sum, difference]) in kinds {
        for rows in [1, 4, 8] {
            let values: Vec<f32> = (0..rows * 16).map(|at| at as f32).collect();
            let shape = [rows as i64, 16];
            let expected = |add: f32| values.iter().map(|value| value + add).collect::<Vec<f32>>();
            let ones = vec![1.; values.len()];
            let input =
                |name: &str, data: &[f32]| json!({ "name": name, "datatype": "FP32", "shape": shape, "data": data });
            let body = json!({ "inputs": [input(a, &values), input(b, &ones)] }).to_string();
            let answer = http.post(&format!("/v2/models/{name}/infer"), &[], body.as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.text());
            let answer = answer.json();
            assert_eq!(answer["outputs"][0]["name"], sum);
            assert_eq!(numbers(&answer["outputs"][0]["data"]), expected(1.));
            assert_eq!(numbers(&answer["outputs"][1]["data"]), expected(-1.));
            let inputs = [(a, "FP32", shape.to_vec(), le(&values)), (b, "FP32", shape.to_vec(), le(&ones))];
            let response = call(&mut grpc, &message(name, &inputs)).expect("an answer");
            assert_eq!(floats(output(&response, sum)), expected(1.));
            assert_eq!(floats(output(&response, difference)), expected(-1.));
        }
        let rows = vec![16, 16];
        let inputs = [a, b].map(|name| (name, "FP32", rows.clone(), le(&[0.; 256])));
        let error = call(&mut grpc, &message(name, &inputs)).unwrap_err();
        assert!(error.message.contains("batch-size must be <= 8"), "{error:?}");
    }
    let log = server.stop();
    let warning = "Auto-complete configuration is not supported for Inductor models. Skipping auto-complete for model ";
    assert!(log.contains(warning) && log.contains("Model platform for 'mixed': 'torch_aoti'."), "{log}");
}

#[test]
fn every_type_in_batches_of_one_four_and_eight() {
    let Some(torch) = Torch::get() else { return };
    let types = ["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64"];
    let pair = |(at, name): (usize, &&str)| {
        tensor("input", &format!("INPUT__{at}"), name, "4") + &tensor("output", &format!("OUTPUT__{at}"), name, "4")
    };
    let tensors: String = types.iter().enumerate().map(pair).collect();
    let repository = Repository::new();
    model(&repository, &torch, "types", "types", &format!("max_batch_size: 8 {tensors}"));
    let server = start(repository.path(), &torch, &[], &[]);
    let mut grpc = Grpc::connect(server.grpc);
    for rows in [1, 4, 8] {
        let names: Vec<String> = (0..types.len()).map(|at| format!("INPUT__{at}")).collect();
        let inputs: Vec<_> = types
            .iter()
            .zip(&names)
            .map(|(datatype, name)| {
                let one = number(datatype, 1).repeat(4 * rows);
                (name.as_str(), *datatype, vec![rows as i64, 4], one)
            })
            .collect();
        let response = call(&mut grpc, &message("types", &inputs)).expect("an answer");
        for (at, datatype) in types.iter().enumerate() {
            let found = output(&response, &format!("OUTPUT__{at}"));
            // The model negates BOOL and doubles all others.
            let expected = if *datatype == "BOOL" { vec![0] } else { number(datatype, 2) };
            assert_eq!(found, expected.repeat(4 * rows), "{datatype} {rows}");
        }
    }
    server.stop();
}

/// The number 1 or 2 as an element of this type.
fn number(datatype: &str, number: u8) -> Vec<u8> {
    let is_two = number == 2;
    let size = TYPES.iter().find(|known| known.name == datatype).expect("a known type").size;
    match datatype {
        "FP16" => (if is_two { 0x4000u16 } else { 0x3c00 }).to_le_bytes().to_vec(),
        "BF16" => (if is_two { 0x4000u16 } else { 0x3f80 }).to_le_bytes().to_vec(),
        "FP32" => f32::from(number).to_le_bytes().to_vec(),
        "FP64" => f64::from(number).to_le_bytes().to_vec(),
        _ => {
            let mut bytes = vec![0; size];
            bytes[0] = number;
            bytes
        }
    }
}

#[test]
fn concurrent_requests_are_executed_together_and_get_their_own_rows() {
    let Some(torch) = Torch::get() else { return };
    let repository = Repository::new();
    let batching = "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 1000 }";
    model(&repository, &torch, "variable", "variable", &add(BY_POSITION, "-1", batching));
    // The batcher waits for the first eight requests.
    let server = start(repository.path(), &torch, &[], &[("TRITONSERVER_DELAY_SCHEDULER", "8")]);
    let (clients, each) = (20, 10);
    std::thread::scope(|scope| {
        for client in 0..clients {
            let address = server.grpc;
            scope.spawn(move || {
                let mut grpc = Grpc::connect(address);
                for at in 0..each {
                    let values: Vec<f32> = (0..7).map(|column| (client * 1000 + at * 10 + column) as f32).collect();
                    let ones = le(&[1.; 7]);
                    let inputs =
                        [("INPUT__0", "FP32", vec![1, 7], le(&values)), ("INPUT__1", "FP32", vec![1, 7], ones)];
                    let response = call(&mut grpc, &message("variable", &inputs)).expect("an answer");
                    let expected: Vec<f32> = values.iter().map(|value| value + 1.).collect();
                    assert_eq!(floats(output(&response, "OUTPUT__0")), expected);
                }
            });
        }
    });
    let mut http = Peer::connect(server.http);
    let stats = http.get("/v2/models/variable/stats").json()["model_stats"][0].clone();
    let requests = u64::try_from(clients * each).unwrap();
    assert_eq!(stats["inference_count"], json!(requests));
    assert!(stats["execution_count"].as_u64().unwrap() < requests, "{stats}");
    let mut grpc = Grpc::connect(server.grpc);
    let mut of_length = |length: usize| {
        let inputs = ["INPUT__0", "INPUT__1"].map(|name| (name, "FP32", vec![1, length as i64], le(&vec![2.; length])));
        let response = call(&mut grpc, &message("variable", &inputs));
        response.map(|response| floats(output(&response, "OUTPUT__0")))
    };
    for length in [2, 100] {
        assert_eq!(of_length(length), Ok(vec![4.; length]));
    }
    // Torch compiles a dynamic dimension for 2 and more.
    let error = of_length(1).unwrap_err();
    assert!(error.message.contains("execution failure: ") && error.message.contains(">= 2, but got: 1"), "{error:?}");
    server.stop();
}

/// The model adds up the values of a sequence in a state; OUTPUT 1 is the sum and the sequence's id.
fn sequence(names: [&str; 8]) -> String {
    let [value, start, ready, corrid, state, total, with_id, next] = names;
    format!(
        r#"max_batch_size: 8 {} {} {}
        sequence_batching {{
            max_sequence_idle_microseconds: 600000000
            direct {{ }}
            control_input {{ name: "{start}" control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} }}
            control_input {{ name: "{ready}" control {{ kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }} }}
            control_input {{ name: "{corrid}" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 }} }}
            state {{ input_name: "{state}" output_name: "{next}" data_type: TYPE_INT32 dims: [ 1 ]
                initial_state {{ name: "zeros" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }} }}
        }}"#,
        tensor("input", value, "INT32", "1"),
        tensor("output", total, "INT32", "1"),
        tensor("output", with_id, "INT32", "1"),
    )
}

fn step(grpc: &mut Grpc, model: &str, input: &str, id: i64, flags: (bool, bool), value: i32) -> ModelInferResponse {
    let mut request = message(model, &[(input, "INT32", vec![1, 1], value.to_le_bytes().to_vec())]);
    let parameters = [
        ("sequence_id", ParameterChoice::Int64Param(id)),
        ("sequence_start", ParameterChoice::BoolParam(flags.0)),
        ("sequence_end", ParameterChoice::BoolParam(flags.1)),
    ];
    for (key, choice) in parameters {
        request.parameters.insert(key.to_owned(), InferParameter { parameter_choice: Some(choice) });
    }
    call(grpc, &request).expect("an answer")
}

#[test]
fn eight_sequences_at_once_keep_their_states() {
    let Some(torch) = Torch::get() else { return };
    let repository = Repository::new();
    let by_position =
        ["INPUT__0", "START__1", "READY__2", "CORRID__3", "STATE__4", "OUTPUT__0", "OUTPUT__1", "NEXT_STATE__2"];
    let by_place = ["ARGS[0]", "ARGS[1]", "ARGS[2]", "ARGS[3]", "ARGS[4]", "RESULT[0]", "RESULT[1]", "RESULT[2]"];
    let models = [("by_position", by_position), ("by_place", by_place)];
    for (name, names) in models {
        model(&repository, &torch, name, "sequence", &sequence(names));
    }
    let server = start(repository.path(), &torch, &[], &[]);
    for (name, names) in models {
        // Interleaved: the steps of all sequences in turn.
        let mut grpc = Grpc::connect(server.grpc);
        for at in 0..5 {
            for id in 1..=8 {
                let value = i32::try_from(id).unwrap() * 10 + at;
                let response = step(&mut grpc, name, names[0], id, (at == 0, at == 4), value);
                let total: i32 = (0..=at).map(|at| i32::try_from(id).unwrap() * 10 + at).sum();
                let found = |name| i32::from_le_bytes(output(&response, name).try_into().expect("four bytes"));
                assert_eq!(found(names[5]), total, "{name}, sequence {id}, step {at}");
                assert_eq!(i64::from(found(names[6])), i64::from(total) + id);
            }
        }
        // At the same time, each of its own length.
        std::thread::scope(|scope| {
            for id in 11..=18 {
                let address = server.grpc;
                scope.spawn(move || {
                    let mut grpc = Grpc::connect(address);
                    let length = i32::try_from(id).unwrap() - 8;
                    for at in 0..length {
                        let response = step(&mut grpc, name, names[0], id, (at == 0, at + 1 == length), 1);
                        let total = i32::from_le_bytes(output(&response, names[5]).try_into().expect("four bytes"));
                        assert_eq!(total, at + 1, "{name}, sequence {id}");
                    }
                });
            }
        });
    }
    server.stop();
}

#[test]
fn configurations_and_files_that_cannot_be_served_say_why() {
    let Some(torch) = Torch::get() else { return };
    let repository = Repository::new();
    let names = ["INPUT__0", "START__1", "READY__2", "CORRID__3", "STATE__4", "OUTPUT__0", "OUTPUT__1", "NEXT__2"];
    let good = sequence(names);
    let only_strings = |from: &str, datatype: &str| {
        let at = good.find(from).expect("a part of the configuration");
        good[..at].to_owned() + &good[at..].replacen(datatype, "TYPE_STRING", 1)
    };
    let state = good[..good.find("state {").expect("a state")].to_owned()
        + &good[good.find("state {").expect("a state")..].replace("TYPE_INT32", "TYPE_STRING");
    let few = format!(
        "max_batch_size: 8 {} {}",
        tensor("input", "INPUT__0", "FP32", "16"),
        tensor("output", "OUTPUT__0", "FP32", "16")
    );
    let unknown = add(["INPUT__0", "INPUT__7", "OUTPUT__0", "OUTPUT__1"], "16", "")
        .replace("instance_group { kind: KIND_CPU count: 2 }", "");
    for (name, package, config, code, text) in [
        (
            "corrid",
            "sequence",
            only_strings("CONTROL_SEQUENCE_CORRID", "TYPE_INT64"),
            "Internal",
            "Unsupported datatype TYPE_STRING for input \"CORRID__3\" for model instance \"corrid_0\".",
        ),
        (
            "state",
            "sequence",
            state,
            "Internal",
            "Unsupported datatype TYPE_STRING for input \"STATE__4\" for model instance \"state_0\".",
        ),
        (
            "few",
            "add",
            few,
            "Internal",
            "Failed to load model \"few_0\" configuration expects 1 inputs, but model expects 2 inputs.",
        ),
        (
            "unknown",
            "add",
            unknown,
            "Internal",
            "Input \"INPUT__7\" for model instance \"unknown_0\" is not found in model input map.",
        ),
        (
            "exported",
            "exported",
            add(BY_POSITION, "16", "").replace("instance_group { kind: KIND_CPU count: 2 }", ""),
            "Internal",
            "it is an exported program that was not compiled; compile it with torch._inductor.aoti_compile_and_package",
        ),
    ] {
        model(&repository, &torch, name, package, &config);
        let server = start(repository.path(), &torch, &["--model-control-mode=explicit"], &[]);
        let answer = Peer::connect(server.http).post(&format!("/v2/repository/models/{name}/load"), &[], b"{}");
        let error = answer.error();
        let wrapper = format!(
            "load failed for model '{name}': version 1 is at UNAVAILABLE state: {code}: failed to create instance \
             \"{name}_0\" for inductor model \"{name}\": Failed to create ModelInstanceState for model \"{name}\": "
        );
        assert!(error.starts_with(&wrapper) && error.contains(text), "{name}: {error}");
        server.stop();
    }
    repository.file(
        "absent/config.pbtxt",
        format!("name: \"absent\" platform: \"torch_aoti\" {}", add(BY_POSITION, "16", "")),
    );
    repository.version("absent", "1");
    let server = start(repository.path(), &torch, &["--model-control-mode=explicit"], &[]);
    let error = Peer::connect(server.http).post("/v2/repository/models/absent/load", &[], b"{}").error();
    assert!(
        error.contains("PyTorch inductor model file \"") && error.contains("is unreachable or inaccessible."),
        "{error}"
    );
    server.stop();
}

/// The model adds its second input to the first one in place, and doubles the second one in place. Inputs and outputs
/// are in memory that the test shares with the server, and begin at multiples of 64, so nothing else copies them.
#[test]
fn a_package_that_writes_to_its_inputs_leaves_the_memory_of_requests_alone() {
    let Some(torch) = Torch::get() else { return };
    let repository = Repository::new();
    let groups = add(BY_POSITION, "16", "");
    model(&repository, &torch, "increment", "increment", &groups);
    let server = start(repository.path(), &torch, &["--allow-client-shm=true"], &[]);
    let mut http = Peer::connect(server.http);
    for rows in [1, 4] {
        let (count, size) = (rows * 16, rows * 64);
        let values: Vec<f32> = (0..2 * count).map(|at| at as f32).collect();
        // Two inputs, and place for two outputs behind them.
        let region = Region::new(&[le(&values), vec![0; 2 * size]].concat());
        region.register(&mut http, "r", 4 * size);
        let tensor = |name: &str, at: usize| {
            let place = json!({ "shared_memory_region": "r", "shared_memory_offset": at * size,
                "shared_memory_byte_size": size });
            json!({ "name": name, "datatype": "FP32", "shape": [rows, 16], "parameters": place })
        };
        let output = |name: &str, at: usize| {
            json!({ "name": name, "parameters": { "shared_memory_region": "r", "shared_memory_offset": at * size,
                "shared_memory_byte_size": size } })
        };
        // The second time both inputs are the same bytes.
        for second in [1, 0] {
            let inputs = [tensor("INPUT__0", 0), tensor("INPUT__1", second)];
            let body = json!({ "inputs": inputs, "outputs": [output("OUTPUT__0", 2), output("OUTPUT__1", 3)] });
            let answer = http.post("/v2/models/increment/infer", &[], body.to_string().as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(floats(&region.read(0, 2 * size)), values, "{rows} rows: the inputs have changed");
            let (a, b) = (&values[..count], &values[second * count..(second + 1) * count]);
            let sums: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
            let twice: Vec<f32> = b.iter().map(|b| b * 2.).collect();
            assert_eq!(floats(&region.read(2 * size as u64, 2 * size)), [sums, twice].concat(), "{rows} rows");
        }
        assert_eq!(http.post("/v2/systemsharedmemory/region/r/unregister", &[], b"").status, 200);
    }
    server.stop();
}

#[test]
fn ragged_inputs_are_joined_and_batch_inputs_describe_them() {
    let Some(torch) = Torch::get() else { return };
    let repository = Repository::new();
    let described = |kind: &str, target: &str, datatype: &str| {
        format!(
            "batch_input {{ kind: {kind} target_name: \"{target}\" data_type: TYPE_{datatype} \
             source_input: \"INPUT__0\" }}\n"
        )
    };
    let tensors = [
        "input { name: \"INPUT__0\" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }\n".to_owned(),
        described("BATCH_ACCUMULATED_ELEMENT_COUNT", "INPUT__1", "INT32"),
        described("BATCH_ELEMENT_COUNT", "ARGS[2]", "FP32"),
        tensor("output", "OUTPUT__0", "FP32", "1"),
        tensor("output", "OUTPUT__1", "FP32", "1"),
    ];
    let config = format!("max_batch_size: 8 {} dynamic_batching {{ }}", tensors.concat());
    model(&repository, &torch, "ragged", "ragged", &config);
    let scattered = "batch_output { target_name: \"OUTPUT__1\" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \
                     \"INPUT__0\" }";
    model(&repository, &torch, "scattered", "ragged", &(config + scattered));
    let flags = ["--exit-on-error=false", "--strict-readiness=false"];
    // The batcher waits for the first three requests.
    let server = start(repository.path(), &torch, &flags, &[("TRITONSERVER_DELAY_SCHEDULER", "3")]);
    std::thread::scope(|scope| {
        for length in [2usize, 7, 3] {
            let address = server.grpc;
            scope.spawn(move || {
                let values: Vec<f32> = (0..length).map(|at| (length * 100 + at) as f32).collect();
                let request = message("ragged", &[("INPUT__0", "FP32", vec![1, length as i64], le(&values))]);
                let response = call(&mut Grpc::connect(address), &request).expect("an answer");
                assert_eq!(floats(output(&response, "OUTPUT__0")), [values.iter().sum::<f32>()]);
                assert_eq!(floats(output(&response, "OUTPUT__1")), [length as f32 * 10.]);
            });
        }
    });
    let mut http = Peer::connect(server.http);
    let stats = http.get("/v2/models/ragged/stats").json()["model_stats"][0].clone();
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(3), &json!(1)));
    let index = http.post("/v2/repository/index", &[], b"{}").json();
    let row = index.as_array().expect("an index").iter().find(|row| row["name"] == "scattered").expect("a row");
    let reason = row["reason"].as_str().expect("a reason");
    assert!(reason.contains("is split by batch_output, which platform torch_aoti does not support"), "{reason}");
    server.stop();
}

/// Loads and unloads, with requests between them, keep neither descriptors nor memory.
#[test]
fn a_model_that_is_loaded_often_leaves_nothing_behind() {
    let Some(torch) = Torch::get() else { return };
    let repository = Repository::new();
    model(&repository, &torch, "often", "add", &add(BY_POSITION, "16", ""));
    let server = start(repository.path(), &torch, &["--model-control-mode=explicit"], &[]);
    let mut http = Peer::connect(server.http);
    let mut round = || {
        let answer = http.post("/v2/repository/models/often/load", &[], b"{}");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let input = |name: &str| json!({ "name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.; 16] });
        let body = json!({ "inputs": [input("INPUT__0"), input("INPUT__1")] }).to_string();
        let answer: Value = http.post("/v2/models/often/infer", &[], body.as_bytes()).json();
        assert_eq!(numbers(&answer["outputs"][0]["data"]), [2.; 16]);
        assert_eq!(http.post("/v2/repository/models/often/unload", &[], b"{}").status, 200);
        let index = |http: &mut Peer| http.post("/v2/repository/index", &[], b"{}").json();
        server.wait_until("the model is unloaded", || index(&mut http)[0]["state"] != "READY");
    };
    (0..10).for_each(|_| round());
    let (descriptors, resident_kib) = (server.descriptors(), server.resident_kib());
    (0..100).for_each(|_| round());
    // The last model's may go a moment after it.
    server.wait_until("no descriptors are left", || server.descriptors() <= descriptors + 4);
    let resident_after_kib = server.resident_kib();
    assert!(resident_after_kib < resident_kib + 16 * 1024, "{resident_kib} KiB became {resident_after_kib} KiB");
    server.stop();
}
