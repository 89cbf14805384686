//! Loads and unloads: completed configurations, refusals, the missing runtime, memory.

use serde_json::{Value, json};

use nereid_test_support::http::Peer;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

use super::{Models, PAIR, must_add, parameter};

const EXPLICIT: [&str; 2] = ["--model-control-mode=explicit", "--strict-readiness=false"];

fn load(peer: &mut Peer, model: &str) -> Result<(), String> {
    let answer = peer.post(&format!("/v2/repository/models/{model}/load"), &[], b"{}");
    if answer.status == 200 { Ok(()) } else { Err(answer.error()) }
}

fn unload(peer: &mut Peer, model: &str) {
    assert_eq!(peer.post(&format!("/v2/repository/models/{model}/unload"), &[], b"{}").status, 200);
}

/// Waits until the model's resources are gone.
fn wait_for_unload(server: &Server, peer: &mut Peer, model: &str) {
    server.wait_until("the model is unloaded", || {
        let index = peer.post("/v2/repository/index", &[], b"{}").json();
        let entries = index.as_array().cloned().unwrap_or_default();
        entries.iter().any(|entry| entry["name"] == model && entry["state"] == "UNAVAILABLE")
    });
}

fn tensors(config: &Value, side: &str) -> Vec<Value> {
    let tensors = config[side].as_array().cloned().unwrap_or_default();
    tensors.iter().map(|tensor| json!([tensor["name"], tensor["data_type"], tensor["dims"]])).collect()
}

/// The cases of Triton's tests that load.
#[test]
fn configurations_are_completed_from_the_file() {
    let Some(models) = Models::get() else { return };
    let outputs = "output [ { name: \"OUTPUT0\" data_type: TYPE_INT8 dims: [ 16 ] label_filename: \"labels.txt\" },\n\
                   { name: \"OUTPUT1\" data_type: TYPE_INT8 dims: [ 16 ] } ]\n";
    models.add("no_config", "fixed", "").add("empty_config", "fixed", "");
    models.repository.file("empty_config/config.pbtxt", "");
    models.add("partial_config", "i8", "").add("dynamic_batch", "fixed_layout", "");
    models.repository.file("partial_config/config.pbtxt", format!("max_batch_size: 8\n{outputs}"));
    models.repository.file("partial_config/labels.txt", "a\nb\n");
    let [flag] = models.flags();
    let server = Server::start(usual(), models.repository.path(), &[&flag]);
    let mut peer = Peer::connect(server.http);
    for model in ["no_config", "empty_config", "dynamic_batch", "partial_config"] {
        let config = peer.get(&format!("/v2/models/{model}/config")).json();
        assert_eq!((&config["backend"], &config["default_model_filename"]), (&json!("openvino"), &json!("model.xml")));
        let group = &config["instance_group"][0];
        assert_eq!((&group["kind"], &group["count"]), (&json!("KIND_CPU"), &json!(1)), "{model}");
        let (batch, data_type, dims) = match model {
            "dynamic_batch" => (4, "TYPE_INT32", json!([4])),
            // All dimensions of the inputs are open in the completed list, because the file's batch is.
            "partial_config" => (8, "TYPE_INT8", json!([-1])),
            _ => (0, "TYPE_INT32", json!([1, 4])),
        };
        assert_eq!(config["max_batch_size"], batch, "{model}");
        let expected = |name: &str, dims: &Value| json!([name, data_type, dims]);
        let inputs = [expected("INPUT0", &dims), expected("INPUT1", &dims)];
        assert_eq!(tensors(&config, "input"), inputs, "{model}");
        let dims = if model == "partial_config" { json!([16]) } else { dims };
        assert_eq!(tensors(&config, "output"), [expected("OUTPUT0", &dims), expected("OUTPUT1", &dims)], "{model}");
        assert_eq!(config["dynamic_batching"].is_object(), model == "dynamic_batch", "{model}");
    }
    let preferred = &peer.get("/v2/models/dynamic_batch/config").json()["dynamic_batching"]["preferred_batch_size"];
    assert_eq!(preferred, &json!([4]));
    let log = server.stop();
    let text = "autofilled max_batch_size to 4 for model 'dynamic_batch' since batching is supported but no \
                max_batch_size is specified in model configuration.";
    assert!(log.contains(text), "{log}");
    let text =
        "model layout for model partial_config does not support batching while non-zero max_batch_size is specified";
    assert!(log.contains(text), "{log}");
    assert!(log.contains("skipping output model configuration auto-complete for 'partial_config': output already"));
}

#[test]
fn what_cannot_be_loaded_is_refused_and_the_server_goes_on() {
    let Some(models) = Models::get() else { return };
    let input =
        |name: &str, dims: &str| format!("input {{ name: \"{name}\" data_type: TYPE_INT32 dims: [ {dims} ] }}\n");
    let cases = [
        ("too_few_inputs", "fixed", input("INPUT0", "1, 4"), "configuration expects 1 inputs, model provides 2"),
        (
            "too_many_inputs",
            "fixed",
            ["INPUT0", "INPUT1", "INPUT2"].map(|name| input(name, "1, 4")).concat(),
            "configuration expects 3 inputs, model provides 2",
        ),
        (
            "unknown_input",
            "fixed",
            [input("INPUT0", "1, 4"), input("other", "1, 4")].concat(),
            "unexpected inference input 'other', allowed inputs are: INPUT0, INPUT1",
        ),
        (
            "unknown_output",
            "fixed",
            input("other", "1, 4").replace("input", "output"),
            "unexpected inference output 'other', allowed outputs are: OUTPUT0, OUTPUT1",
        ),
        (
            "bad_input_dims",
            "fixed",
            [input("INPUT0", "1, 4"), input("INPUT1", "1, 256")].concat(),
            "model 'bad_input_dims', tensor 'INPUT1': the model expects 2 dimensions (shape [1,4]) but the model \
             configuration specifies 2 dimensions (shape [1,256])",
        ),
        (
            "bad_output_dims",
            "fixed",
            input("OUTPUT0", "1, 128").replace("input", "output"),
            "model 'bad_output_dims', tensor 'OUTPUT0': the model expects 2 dimensions (shape [1,4]) but the model \
             configuration specifies 2 dimensions (shape [1,128])",
        ),
        ("no_weights", "no_weights", String::new(), "openvino error in reading model : "),
        ("short_weights", "short_weights", String::new(), "openvino error in reading model : "),
        ("cut", "cut", String::new(), "openvino error in reading model : "),
        ("garbage", "garbage", String::new(), "openvino error in reading model : "),
        ("empty", "empty", String::new(), "openvino error in reading model : "),
        ("unknown_operation", "unknown_operation", String::new(), "Frobnicate"),
        (
            "on_gpu",
            "add_sub",
            "instance_group { kind: KIND_MODEL }\n".to_owned(),
            "unable to load model 'on_gpu', Triton OpenVINO backend supports only Kind CPU and AUTO",
        ),
        (
            "bad_hint",
            "add_sub",
            parameter("PERFORMANCE_HINT", "Fast"),
            "expected the parameter 'PERFORMANCE_HINT' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast",
        ),
        ("absent", "nothing", "max_batch_size: 0\n".to_owned(), "unable to find '"),
        (
            "strings",
            "add_sub",
            format!("max_batch_size: 8\n{}", PAIR.replace("FP32", "STRING")),
            "unsupported datatype TYPE_STRING for input 'INPUT0' for model 'strings'",
        ),
    ];
    for (name, file, config, _) in &cases {
        models.add(name, file, config);
        if *name == "absent" {
            models.repository.version("absent", "1");
        }
    }
    models.add("good", "add_sub", &format!("max_batch_size: 8\n{PAIR}"));
    let [flag] = models.flags();
    let flags: Vec<&str> = EXPLICIT.into_iter().chain([flag.as_str()]).collect();
    let server = Server::start(usual(), models.repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    for (name, _, _, text) in &cases {
        let error = load(&mut peer, name).expect_err(name);
        assert!(
            error.starts_with(&format!("load failed for model '{name}': version 1 is at UNAVAILABLE state: "))
                || error.contains(name),
            "{error}"
        );
        assert!(error.contains(text), "{name}: {error}");
    }
    assert_eq!(load(&mut peer, "good"), Ok(()));
    must_add(&mut peer, "good", 5);
    server.stop();
}

#[test]
fn a_missing_runtime_is_named_with_the_command_that_installs_it() {
    let Some(models) = Models::get() else { return };
    models.add("m", "add_sub", &format!("max_batch_size: 8\n{PAIR}"));
    let empty = models.repository.path().join("nothing");
    let empty = empty.to_str().expect("a path of UTF-8");
    let environment =
        [("XDG_DATA_HOME", empty), ("VIRTUAL_ENV", empty), ("PATH", empty), ("NEREID_OPENVINO_LIBRARY", "")];
    let path = models.repository.path();
    let server = Server::start_in(usual(), path, &EXPLICIT, "/v2/health/live", &environment);
    let mut peer = Peer::connect(server.http);
    let error = load(&mut peer, "m").expect_err("no library");
    assert!(error.contains("OpenVINO is not available ("), "{error}");
    assert!(error.contains("Install it with: nereid runtime install openvino"), "{error}");
    server.stop();
}

/// The files of `nereid runtime install`, which have no plug-ins of Intel's GPUs and NPUs and none that joins requests.
#[test]
fn what_an_installed_library_leaves_out_is_an_error_that_says_so() {
    let Some(models) = Models::get() else { return };
    let config = |file: &str| format!("max_batch_size: 8\n{PAIR}default_model_filename: \"{file}\"\n");
    models.add_file("paddle", "add_sub.pdmodel", "model.pdmodel", &config("model.pdmodel"));
    models.add_file("lite", "add_sub.tflite", "model.tflite", &config("model.tflite"));
    let device = |name: &str| format!("max_batch_size: 8\n{PAIR}{}", parameter("TARGET_DEVICE", name));
    models.add("plain", "add_sub", &device("CPU")).add("auto", "add_sub", &device("AUTO"));
    models.add("gpu", "add_sub", &device("GPU")).add("joining", "add_sub", &device("BATCH:CPU(4)"));
    let out = ["gpu_plugin", "npu_plugin", "auto_batch", "pytorch", "jax", "gguf"];
    let installed = models.openvino.library_without(&out);
    let without_reader = models.openvino.library_without(&[&out[..], &["paddle"]].concat());
    let start = |library: &std::path::Path| {
        let library = format!("--backend-config=openvino,library={}", library.display());
        let flags: Vec<&str> = EXPLICIT.into_iter().chain([library.as_str()]).collect();
        Server::start(usual(), models.repository.path(), &flags)
    };
    let server = start(&installed);
    let mut peer = Peer::connect(server.http);
    for model in ["plain", "paddle", "lite", "auto"] {
        assert_eq!(load(&mut peer, model), Ok(()), "{model}");
        must_add(&mut peer, model, 3);
    }
    for (model, part) in [("gpu", "GPU"), ("joining", "BATCH")] {
        let error = load(&mut peer, model).expect_err(model);
        assert!(error.contains("openvino error in loading model : ") && error.contains(part), "{error}");
    }
    must_add(&mut peer, "plain", 5);
    server.stop();
    let server = start(&without_reader);
    let mut peer = Peer::connect(server.http);
    let error = load(&mut peer, "paddle").expect_err("no reader");
    assert!(error.contains("openvino error in reading model : ") && error.contains("pdmodel"), "{error}");
    assert!(error.contains("Available frontends: ") && !error.contains("paddle onnx"), "{error}");
    assert_eq!(load(&mut peer, "lite"), Ok(()));
    must_add(&mut peer, "lite", 2);
    server.stop();
}

#[test]
fn repeated_loads_do_not_keep_memory() {
    const WARM: usize = 10;
    const MORE: usize = 60;
    const GROWTH_KIB_MAX: u64 = 24 << 10;
    let Some(models) = Models::get() else { return };
    models.add("m", "deep", &format!("max_batch_size: 8\n{}", parameter("NUM_STREAMS", "1")));
    let [flag] = models.flags();
    let flags: Vec<&str> = EXPLICIT.into_iter().chain([flag.as_str()]).collect();
    let server = Server::start(usual(), models.repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    let data = vec![0.25; 64];
    let body = json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 64], "data": data }] }).to_string();
    let mut cycle = |times: usize| {
        for _ in 0..times {
            assert_eq!(load(&mut peer, "m"), Ok(()));
            assert_eq!(super::infer(&mut peer, "m", &body).status, 200);
            unload(&mut peer, "m");
            wait_for_unload(&server, &mut peer, "m");
        }
    };
    cycle(WARM);
    let (memory, threads, descriptors) = (server.resident_kib(), server.threads(), server.descriptors());
    cycle(MORE);
    // An instance's thread may end a moment after its model.
    server.wait_until("no more threads and descriptors are there", || {
        server.threads() <= threads + 2 && server.descriptors() <= descriptors + 2
    });
    let memory_after = server.resident_kib();
    assert!(memory_after < memory + GROWTH_KIB_MAX, "{memory} KiB, {MORE} loads later {memory_after} KiB");
    println!("{memory} KiB, then {memory_after} KiB; {threads} threads, then {}", server.threads());
    server.stop();
}
