//! Tree models of XGBoost, LightGBM and scikit-learn in a whole server (contract/frameworks.md section 4): results over
//! HTTP, gRPC and shared memory, batches, instances, loads that fail, and a hundred loads.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::paths;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::tree_models;
use nereid_test_support::variant::{ALL, Variant, each, usual};

/// As much as an allocator may keep of a hundred loads.
const GROWTH_KIB: u64 = 8 << 10;

struct Models {
    repository: Repository,
    folder: PathBuf,
    flag: String,
    expected: Value,
}

impl Models {
    /// None, after a visible skip, if the packages are not available.
    fn new() -> Option<Models> {
        let folder = tree_models::made()?;
        let flag = tree_models::treelite_flag(&tree_models::python()?);
        let expected = std::fs::read(folder.join("expected.json")).expect("what the packages predict");
        let expected = serde_json::from_slice(&expected).expect("JSON");
        Some(Models { repository: Repository::new(), folder, flag, expected })
    }

    /// Adds a model with that file. `dims` are those of the output.
    fn add(&self, name: &str, file: &str, model_type: &str, classifier: bool, dims: &str, more: &str) -> &Models {
        let parameter =
            |key: &str, value: &str| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n");
        let config = format!(
            "backend: \"fil\"\nmax_batch_size: 64\ndefault_model_filename: \"{file}\"\n\
             input [ {{ name: \"input__0\" data_type: TYPE_FP32 dims: [ 4 ] }} ]\n\
             output [ {{ name: \"output__0\" data_type: TYPE_FP32 dims: [ {dims} ] }} ]\n{}{}{more}",
            parameter("model_type", model_type),
            parameter("is_classifier", if classifier { "true" } else { "false" }),
        );
        self.repository.model(name, &config);
        if let Ok(bytes) = std::fs::read(self.folder.join(file)) {
            self.repository.file(&format!("{name}/1/{file}"), bytes);
        }
        self
    }

    fn start(&self, variant: Variant, flags: &[&str]) -> Server {
        Server::start(variant, self.repository.path(), &[&[&*self.flag], flags].concat())
    }

    fn values(&self, name: &str, key: &str) -> Vec<f32> {
        let values = self.expected[name][key].as_array().unwrap_or_else(|| panic!("no {key} of {name}"));
        values.iter().map(|value| value.as_f64().map_or(f32::NAN, |value| value as f32)).collect()
    }
}

const PROBABILITIES: &str = "parameters { key: \"predict_proba\" value { string_value: \"true\" } }\n";

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

/// The request for rows in binary, which JSON cannot express: missing values are NaN.
fn body(rows: &[f32]) -> (String, Vec<u8>) {
    let tail = bytes_of(rows);
    let json = json!({
        "inputs": [{ "name": "input__0", "datatype": "FP32", "shape": [rows.len() / 4, 4],
            "parameters": { "binary_data_size": tail.len() } }],
        "outputs": [{ "name": "output__0", "parameters": { "binary_data": true } }],
    });
    (json.to_string(), tail)
}

fn send(peer: &mut Peer, model: &str, rows: &[f32]) {
    let (json, tail) = body(rows);
    let headers = [("Inference-Header-Content-Length", &*json.len().to_string())];
    let content = [json.as_bytes(), &tail].concat();
    peer.send(&request("POST", &format!("/v2/models/{model}/infer"), &headers, &content));
}

fn infer(peer: &mut Peer, model: &str, rows: &[f32]) -> (Value, Vec<f32>) {
    send(peer, model, rows);
    result(&peer.answer())
}

fn result(answer: &Answer) -> (Value, Vec<f32>) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (json, tail) = answer.split();
    (json["outputs"][0]["shape"].clone(), floats_of(tail))
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let is_near = |(found, expected): (&f32, &f32)| (found - expected).abs() <= 1e-6 * expected.abs().max(1.0);
    assert!(found.iter().zip(expected).all(is_near), "{what}: {found:?} instead of {expected:?}");
}

#[test]
fn the_packages_models_answer_over_http_and_grpc_as_the_packages() {
    let Some(models) = Models::new() else { return };
    models
        .add("xgb", "xgb_number.json", "xgboost_json", false, "1", "")
        .add("probabilities", "xgb_three.ubj", "xgboost_ubj", true, "3", PROBABILITIES)
        .add("two", "xgb_two.model", "xgboost", true, "2", PROBABILITIES)
        .add("lgb", "lgb_number.txt", "lightgbm", false, "1", "")
        .add("skl", "skl_boosted_number.tl", "treelite_checkpoint", false, "1", "");
    each(&ALL, |variant| {
        let server = models.start(variant, &[]);
        let (mut http, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
        let two: Vec<f32> = models.values("xgb_two", "predict").iter().flat_map(|p| [1.0 - p, *p]).collect();
        for (model, rows, expected, shape) in [
            ("xgb", "rows", models.values("xgb_number", "predict"), json!([64])),
            ("probabilities", "rows", models.values("xgb_three", "predict"), json!([64, 3])),
            ("two", "rows", two, json!([64, 2])),
            ("lgb", "rows", models.values("lgb_number", "predict"), json!([64])),
            ("skl", "whole_rows", models.values("skl_boosted_number", "predict"), json!([64])),
        ] {
            let rows = models.values(rows, "input");
            let (found_shape, found) = infer(&mut http, model, &rows);
            assert_eq!(found_shape, shape, "{model}");
            assert_close(&found, &expected, model);
            let input = InferInputTensor {
                name: "input__0".into(),
                datatype: "FP32".into(),
                shape: vec![64, 4],
                ..Default::default()
            };
            let message = ModelInferRequest {
                model_name: model.to_owned(),
                inputs: vec![input],
                raw_input_contents: vec![Bytes::from(bytes_of(&rows))],
                ..Default::default()
            };
            let answer: ModelInferResponse = grpc.call("ModelInfer", &message).expect("an answer");
            assert_eq!(json!(answer.outputs[0].shape), shape, "{model}");
            assert_close(&floats_of(&answer.raw_output_contents[0]), &expected, model);
        }
        // Metadata have the configuration's dimensions, results lose every 1.
        let metadata = http.get("/v2/models/xgb").json();
        assert_eq!(metadata["outputs"][0]["shape"], json!([-1, 1]));
        let answer = http.post(
            "/v2/models/xgb/infer",
            &[],
            br#"{"inputs":[{"name":"input__0","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}"#,
        );
        assert_eq!(answer.status, 400);
        assert!(answer.error().contains("input__0"), "{}", answer.error());
    });
}

#[test]
fn rows_and_results_pass_through_shared_memory() {
    let Some(models) = Models::new() else { return };
    models.add("three", "xgb_three.json", "xgboost_json", true, "3", PROBABILITIES);
    let server = models.start(usual(), &["--allow-client-shm=true"]);
    let mut peer = Peer::connect(server.http);
    let rows = models.values("rows", "input");
    let name = format!("nereid-test-fil-{}", std::process::id());
    let path = Path::new("/dev/shm").join(&name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("an object");
    // The results begin at an address that is no multiple of 4.
    let (input_size, output_at, output_size) = (64 * 4 * 4, 64 * 4 * 4 + 1, 64 * 3 * 4);
    file.set_len(4096).expect("room for rows and results");
    file.write_all_at(&bytes_of(&rows), 0).expect("write to shared memory");
    let region = json!({ "key": format!("/{name}"), "offset": 0, "byte_size": 4096 }).to_string();
    let answer = peer.post("/v2/systemsharedmemory/region/r/register", &[], region.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    for output_at in [output_at, output_at + 3] {
        let place = |offset: usize, size: usize| json!({ "shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": size });
        let body = json!({
            "inputs": [{ "name": "input__0", "datatype": "FP32", "shape": [64, 4], "parameters": place(0, input_size) }],
            "outputs": [{ "name": "output__0", "parameters": place(output_at, output_size) }],
        });
        let answer = peer.post("/v2/models/three/infer", &[], body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut results = vec![0; output_size];
        file.read_exact_at(&mut results, output_at as u64).expect("read from shared memory");
        assert_close(&floats_of(&results), &models.values("xgb_three", "predict"), "shared memory");
    }
    std::fs::remove_file(path).expect("remove shared memory");
}

#[test]
fn batched_requests_and_several_instances_get_their_own_rows() {
    let Some(models) = Models::new() else { return };
    let batching = "dynamic_batching { preferred_batch_size: [ 64 ] max_queue_delay_microseconds: 3600000000 }\n";
    models.add("batched", "lgb_two.txt", "lightgbm", false, "1", batching);
    let instances = "instance_group [ { kind: KIND_CPU count: 3 } ]\n";
    models.add("several", "lgb_two.txt", "lightgbm", false, "1", instances);
    let server = models.start(usual(), &[]);
    let (rows, expected) = (models.values("rows", "input"), models.values("lgb_two", "predict"));
    // Only all 64 rows together leave the queue.
    let mut peers: Vec<Peer> = (0..16).map(|_| Peer::connect(server.http)).collect();
    for (peer, rows) in peers.iter_mut().zip(rows.chunks(16)) {
        send(peer, "batched", rows);
    }
    for (peer, expected) in peers.iter_mut().zip(expected.chunks(4)) {
        let (shape, found) = result(&peer.answer());
        assert_eq!(shape, json!([4]));
        assert_close(&found, expected, "batched");
    }
    let mut peer = Peer::connect(server.http);
    let statistics = peer.get("/v2/models/batched/stats").json()["model_stats"][0].clone();
    assert_eq!(statistics["inference_count"], json!(64));
    assert_eq!(statistics["execution_count"], json!(1));
    // A batch counts its requests here.
    assert_eq!(statistics["batch_stats"][0]["batch_size"], json!(16));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut peer = Peer::connect(server.http);
                for _ in 0..50 {
                    assert_close(&infer(&mut peer, "several", &rows).1, &expected, "several");
                }
            });
        }
    });
}

#[test]
fn files_and_settings_that_cannot_be_served_fail_their_load_alone() {
    let Some(models) = Models::new() else { return };
    models
        .add("good", "xgb_two.json", "xgboost_json", true, "1", "")
        .add("absent", "nothing.json", "xgboost_json", true, "1", "")
        .add("garbage", "garbage.json", "xgboost_json", true, "1", "")
        .add("cut", "cut.tl", "treelite_checkpoint", true, "1", "")
        .add("wide", "xgb_two.json", "xgboost_json", true, "2", "")
        .add("unknown", "xgb_two.json", "catboost", true, "1", "");
    models.repository.version("absent", "1").file("garbage/1/garbage.json", "hello");
    let whole = std::fs::read(models.folder.join("skl_two.tl")).expect("a checkpoint");
    models.repository.file("cut/1/cut.tl", &whole[..whole.len() / 2]);
    let server = models.start(usual(), &["--model-control-mode=explicit", "--load-model=good"]);
    let mut peer = Peer::connect(server.http);
    for (model, text) in [
        ("absent", "UNAVAILABLE state: Unknown: ["),
        ("absent", "Check failed: std::filesystem::exists(path): Path \""),
        ("garbage", "Provided JSON could not be parsed as XGBoost model. Parsing error at offset "),
        ("cut", "Invalid argument: the model file ends too early: "),
        ("wide", "the configuration has 2 values for each row, but the forest computes 1"),
        ("unknown", "Unsupported: catboost not recognized as a valid serialization format."),
    ] {
        let answer = peer.post(&format!("/v2/repository/models/{model}/load"), &[], b"");
        assert_ne!(answer.status, 200, "{model}");
        assert!(answer.error().contains(text), "{model}: {}", answer.error());
    }
    let expected = models.values("xgb_two", "predict");
    let classes: Vec<f32> = expected.iter().map(|p| if *p > 0.5 { 1.0 } else { 0.0 }).collect();
    assert_eq!(infer(&mut peer, "good", &models.values("rows", "input")).1, classes);
}

#[test]
fn the_library_is_found_where_it_is_installed_and_in_a_python_environment() {
    let (Some(models), Some(python)) = (Models::new(), tree_models::python()) else { return };
    models.add("m", "xgb_number.ubj", "xgboost_ubj", false, "1", "");
    let (rows, expected) = (models.values("rows", "input"), models.values("xgb_number", "predict"));
    let data = paths::temporary().join(format!("fil-data-{}", std::process::id()));
    let empty = data.join("empty");
    let mut install = Command::new(paths::server());
    let output = install.args(["runtime", "install", "fil"]).env("XDG_DATA_HOME", &data).output().expect("an end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let environment = python.interpreter().ancestors().nth(2).expect("bin/python of an environment").to_owned();
    for (data, environment, found) in
        [(&data, Path::new(""), data.join("nereid/runtimes/fil/4.8.1")), (&empty, &environment, python.packages())]
    {
        let text = |path: &Path| path.to_str().expect("the path of the target directory is text").to_owned();
        let variables = [("XDG_DATA_HOME", &*text(data)), ("VIRTUAL_ENV", &*text(environment))];
        let server = Server::start_in(usual(), models.repository.path(), &[], "/v2/health/ready", &variables);
        server.wait_for_log(&format!("treelite 4.8.1 from {}", found.join("treelite/lib/libtreelite.so").display()));
        assert_close(&infer(&mut Peer::connect(server.http), "m", &rows).1, &expected, "m");
    }
    std::fs::remove_dir_all(data).expect("remove what was installed");
}

#[test]
fn a_hundred_loads_leave_nothing_behind() {
    let Some(models) = Models::new() else { return };
    models.add("m", "skl_three.tl", "treelite_checkpoint", true, "3", PROBABILITIES);
    let server = models.start(usual(), &["--model-control-mode=explicit", "--load-model=m"]);
    let mut peer = Peer::connect(server.http);
    let (rows, expected) = (models.values("whole_rows", "input"), models.values("skl_three", "proba"));
    let mut resident = Vec::new();
    for round in 0..120 {
        assert_close(&infer(&mut peer, "m", &rows).1, &expected, "skl_three");
        for action in ["unload", "load"] {
            let answer = peer.post(&format!("/v2/repository/models/m/{action}"), &[], b"");
            assert_eq!(answer.status, 200, "{action}: {}", answer.text());
        }
        if round >= 20 {
            resident.push(server.resident_kib());
        }
    }
    let (first, last) = (resident[0], resident[resident.len() - 1]);
    assert!(last <= first + GROWTH_KIB, "the server grew from {first} to {last} KiB in a hundred loads");
}
