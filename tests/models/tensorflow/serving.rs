//! Requests over HTTP and gRPC: signatures, batches, strings, open shapes, graphs, and inputs that do not fit.

use serde_json::json;

use super::stand::{EXPLICIT, Models, floats, outputs, strings};
use crate::frameworks::shared_memory::Region;
use nereid_test_support::grpc::code;

const ONE_INSTANCE: &str = "max_batch_size: 4 dynamic_batching {} instance_group { kind: KIND_CPU count: 1 }";

#[test]
fn a_saved_model_without_a_configuration_is_served() {
    let Some(models) = Models::new() else { return };
    models.add("add_sub", "add_sub.savedmodel", "");
    let mut stand = models.serve(&[]);
    stand.server.wait_until("ready", || stand.http.get("/v2/health/ready").status == 200);
    let config = stand.config("add_sub");
    assert_eq!((&config["backend"], &config["platform"]), (&json!("tensorflow"), &json!("tensorflow_savedmodel")));
    assert_eq!((&config["max_batch_size"], &config["instance_group"][0]["count"]), (&json!(4), &json!(2)));
    assert_eq!(config["dynamic_batching"]["preferred_batch_size"], json!([4]));
    let metadata = stand.http.get("/v2/models/add_sub").json();
    assert_eq!(metadata["inputs"][0], json!({ "name": "INPUT0", "datatype": "FP32", "shape": [-1, 4] }));
    let inputs = json!([
        { "name": "INPUT0", "datatype": "FP32", "shape": [2, 4], "data": [1, 2, 3, 4, 5, 6, 7, 8] },
        { "name": "INPUT1", "datatype": "FP32", "shape": [2, 4], "data": [1, 1, 1, 1, 1, 1, 1, 1] },
    ]);
    let answer = stand.infer("add_sub", inputs, &["OUTPUT1", "OUTPUT0"]);
    let difference = json!([0., 1., 2., 3., 4., 5., 6., 7.]);
    let sum = json!([2., 3., 4., 50., 6., 7., 8., 90.]);
    let expected = [("OUTPUT1".to_owned(), json!([2, 4]), difference), ("OUTPUT0".to_owned(), json!([2, 4]), sum)];
    assert_eq!(outputs(&answer), expected);
    let row = |values: &[f32]| floats(values);
    let inputs =
        [("INPUT0", "FP32", &[1i64, 4][..], row(&[1., 2., 3., 4.])), ("INPUT1", "FP32", &[1, 4][..], row(&[0.5; 4]))];
    let response = stand.call("add_sub", &inputs, &["OUTPUT0"]).expect("an answer");
    assert_eq!((response.outputs.len(), &response.outputs[0].shape[..]), (1, &[1, 4][..]));
    assert_eq!(response.raw_output_contents[0][..], row(&[1.5, 2.5, 3.5, 45.])[..]);
}

#[test]
fn signatures_and_graphs_are_chosen_by_parameters() {
    let Some(models) = Models::new() else { return };
    let parameter =
        |key: &str, value: &str| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n");
    models.add("double", "signatures.savedmodel", &parameter("TF_SIGNATURE_DEF", "double"));
    models.add("triple", "signatures.savedmodel", &parameter("TF_SIGNATURE_DEF", "triple"));
    models.add("half", "signatures.savedmodel", &parameter("TF_GRAPH_TAG", "half"));
    let mut stand = models.serve(&[EXPLICIT]);
    for (model, data, expected) in [
        ("double", json!([1, 2]), json!([2.0, 4.0])),
        ("triple", json!([1, 2]), json!([3.0, 6.0])),
        ("half", json!([2, 4, 6]), json!([1.0, 2.0, 3.0])),
    ] {
        stand.must_load(model);
        let shape = [1, data.as_array().expect("data").len()];
        let inputs = json!([{ "name": "VALUE", "datatype": "FP32", "shape": shape, "data": data }]);
        let answer = stand.infer(model, inputs, &["RESULT"]);
        assert_eq!(outputs(&answer)[0].2, expected, "{model}");
    }
}

#[test]
fn requests_of_several_clients_are_one_batch() {
    let Some(models) = Models::new() else { return };
    models.add("add_sub", "add_sub.savedmodel", ONE_INSTANCE);
    // The batcher waits until two requests are queued.
    let mut stand = models.serve_in(&[EXPLICIT], &[("TRITONSERVER_DELAY_SCHEDULER", "2")]);
    stand.must_load("add_sub");
    let grpc = stand.server.grpc;
    let inputs = |value: f32| {
        [("INPUT0", "FP32", &[1i64, 4][..], floats(&[value; 4])), ("INPUT1", "FP32", &[1, 4][..], floats(&[1.; 4]))]
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut grpc = nereid_test_support::grpc::Grpc::connect(grpc);
            let inputs = inputs(20.);
            let tensor = |(name, datatype, shape, _): &(&str, &str, &[i64], Vec<u8>)| {
                nereid_wire::inference::model_infer_request::InferInputTensor {
                    name: (*name).to_owned(),
                    datatype: (*datatype).to_owned(),
                    shape: shape.to_vec(),
                    ..Default::default()
                }
            };
            let request = nereid_wire::inference::ModelInferRequest {
                model_name: "add_sub".to_owned(),
                inputs: inputs.iter().map(tensor).collect(),
                raw_input_contents: inputs.iter().map(|(.., data)| data.clone().into()).collect(),
                ..Default::default()
            };
            grpc.call::<nereid_wire::inference::ModelInferResponse>("ModelInfer", &request)
        });
        let first = stand.call("add_sub", &inputs(10.), &["OUTPUT1"]).expect("the first answer");
        assert_eq!(first.raw_output_contents[0][..], floats(&[9.; 4])[..]);
        let second = second.join().expect("no panic").expect("the second answer");
        assert_eq!(second.raw_output_contents.len(), 2, "all outputs if none is named");
        assert_eq!(second.raw_output_contents[1][..], floats(&[19.; 4])[..]);
    });
    let statistics = stand.http.get("/v2/models/add_sub/stats").json();
    let statistics = &statistics["model_stats"][0];
    assert_eq!((&statistics["execution_count"], &statistics["inference_count"]), (&json!(1), &json!(2)));
}

#[test]
fn strings_pass_with_all_their_bytes() {
    let Some(models) = Models::new() else { return };
    models.add("strings", "strings.savedmodel", "");
    let mut stand = models.serve(&[EXPLICIT]);
    stand.must_load("strings");
    let inputs = json!([{ "name": "TEXT", "datatype": "BYTES", "shape": [2, 2], "data": ["ab", "", "c", "ü"] }]);
    let answer = stand.infer("strings", inputs, &["UPPER", "FIRST"]);
    let got = outputs(&answer);
    assert_eq!(got[0], ("UPPER".to_owned(), json!([2, 2]), json!(["AB", "", "C", "ü"])));
    assert_eq!(got[1], ("FIRST".to_owned(), json!([2, 1]), json!(["ab!", "c!"])));
    let long = [b'z'; 300];
    let elements: [&[u8]; 2] = [b"a\0b\0", &long];
    let response = stand.call("strings", &[("TEXT", "BYTES", &[1, 2], strings(&elements))], &["SAME", "LENGTH"]);
    let response = response.expect("an answer");
    assert_eq!(response.raw_output_contents[0][..], strings(&elements)[..]);
    let lengths: Vec<u8> = [4i32, 300].iter().flat_map(|len| len.to_le_bytes()).collect();
    assert_eq!(response.raw_output_contents[1][..], lengths[..]);
    // A malformed tensor fails alone.
    let broken = stand.call("strings", &[("TEXT", "BYTES", &[1, 2], vec![9, 0, 0, 0])], &["SAME"]);
    assert_eq!(broken.expect_err("a malformed tensor").code, code::INVALID_ARGUMENT);
}

#[test]
fn open_dimensions_take_any_size_and_wrong_inputs_are_refused() {
    let Some(models) = Models::new() else { return };
    models.add("dynamic", "dynamic.savedmodel", "").add("add_sub", "add_sub.savedmodel", "");
    let mut stand = models.serve(&[EXPLICIT]);
    stand.must_load("dynamic");
    for shape in [[1, 2, 3], [3, 1, 1], [2, 4, 1]] {
        let count: i64 = shape.iter().product();
        let inputs = [("VALUE", "FP32", &shape[..], floats(&vec![1.; count as usize]))];
        let response = stand.call("dynamic", &inputs, &["TWICE", "SUM"]).expect("an answer");
        assert_eq!(response.outputs[0].shape, shape);
        let sums = floats(&vec![(shape[1] * shape[2]) as f32; shape[0] as usize]);
        assert_eq!(response.raw_output_contents[1][..], sums[..], "{shape:?}");
    }
    stand.must_load("add_sub");
    let input = |name: &str, datatype: &str, shape: [i64; 2]| {
        let data = vec![1; (shape[0] * shape[1]) as usize];
        json!({ "name": name, "datatype": datatype, "shape": shape, "data": data })
    };
    let second = || input("INPUT1", "FP32", [1, 4]);
    for (inputs, part) in [
        (json!([input("INPUT0", "FP32", [1, 3]), second()]), "unexpected shape for input 'INPUT0'"),
        (json!([input("INPUT0", "INT32", [1, 4]), second()]), "data-type"),
        (json!([second()]), "expected 2 inputs but got 1 inputs"),
        (json!([input("OTHER", "FP32", [1, 4]), second()]), "OTHER"),
        (json!([input("INPUT0", "FP32", [5, 4]), input("INPUT1", "FP32", [5, 4])]), "batch-size must be <= 4"),
    ] {
        let answer = stand.infer("add_sub", inputs, &["OUTPUT0"]);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.error().contains(part), "{part}: {}", answer.error());
    }
    let good = stand.infer("add_sub", json!([input("INPUT0", "FP32", [1, 4]), second()]), &["OUTPUT1"]);
    assert_eq!(outputs(&good)[0].2, json!([0.0, 0.0, 0.0, 0.0]));
}

#[test]
fn graphs_are_served_and_initialised() {
    let Some(models) = Models::new() else { return };
    let tensors = |inputs: &[&str], outputs: &[&str], dims: i64| {
        let all = inputs.iter().map(|name| ("input", name)).chain(outputs.iter().map(|name| ("output", name)));
        let all =
            all.map(|(side, name)| format!("{side} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ {dims} ] }}\n"));
        all.collect::<String>()
    };
    let add_sub = tensors(&["INPUT0", "INPUT1"], &["OUTPUT0"], 4);
    models.add("add_sub", "add_sub.graphdef", &format!("max_batch_size: 8\n{add_sub}"));
    let init = r#"parameters { key: "TF_INIT_OPS_FILE" value { string_value: "init.json" } }"#;
    let initialized = tensors(&["VALUE"], &["RESULT"], 1);
    models.add("initialized", "initialized.graphdef", &format!("max_batch_size: 8\n{initialized}{init}"));
    models.add("uninitialized", "initialized.graphdef", &format!("max_batch_size: 8\n{initialized}"));
    models.repository.file("initialized/init.json", r#"{ "init_ops": ["init_weight", "init_bias"] }"#);
    let mut stand = models.serve(&[EXPLICIT]);
    stand.must_load("add_sub");
    let config = stand.config("add_sub");
    assert_eq!((&config["backend"], &config["platform"]), (&json!("tensorflow"), &json!("tensorflow_graphdef")));
    let inputs =
        [("INPUT0", "FP32", &[1i64, 4][..], floats(&[2.; 4])), ("INPUT1", "FP32", &[1, 4][..], floats(&[1.; 4]))];
    let response = stand.call("add_sub", &inputs, &[]).expect("an answer");
    assert_eq!(response.raw_output_contents[0][..], floats(&[3.; 4])[..]);
    stand.must_load("initialized");
    let value = || json!([{ "name": "VALUE", "datatype": "FP32", "shape": [2, 1], "data": [1, 2] }]);
    let answer = stand.infer("initialized", value(), &["RESULT"]);
    assert_eq!(outputs(&answer)[0].2, json!([7.0, 12.0]), "both instances' sessions are initialised");
    stand.must_load("uninitialized");
    let answer = stand.infer("uninitialized", value(), &["RESULT"]);
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(answer.error().contains("weight") || answer.error().contains("bias"), "{}", answer.error());
}

#[test]
fn two_instances_run_side_by_side() {
    let Some(models) = Models::new() else { return };
    for (name, count) in [("apart", 1), ("shared", 2)] {
        let share = format!("parameters {{ key: \"MAX_SESSION_SHARE_COUNT\" value {{ string_value: \"{count}\" }} }}");
        let config = format!("max_batch_size: 4 instance_group {{ kind: KIND_CPU count: 2 }} {share}");
        models.add(name, "add_sub.savedmodel", &config);
    }
    let mut stand = models.serve(&[EXPLICIT]);
    for model in ["apart", "shared"] {
        stand.must_load(model);
        std::thread::scope(|scope| {
            let clients = (0..4).map(|client| {
                let address = stand.server.http;
                scope.spawn(move || {
                    let mut http = nereid_test_support::http::Peer::connect(address);
                    for round in 0..50 {
                        let value = client * 100 + round;
                        let input = |name: &str, value: i32| {
                            let data = [value; 4];
                            json!({ "name": name, "datatype": "FP32", "shape": [1, 4], "data": data })
                        };
                        let body = json!({ "inputs": [input("INPUT0", value), input("INPUT1", 1)] }).to_string();
                        let answer = http.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
                        let difference = outputs(&answer).into_iter().find(|output| output.0 == "OUTPUT1");
                        let expected = f64::from(value - 1);
                        assert_eq!(difference.expect("OUTPUT1").2, json!(vec![expected; 4]));
                    }
                })
            });
            clients.collect::<Vec<_>>().into_iter().for_each(|client| client.join().expect("a client"));
        });
        let statistics = stand.http.get(&format!("/v2/models/{model}/stats")).json();
        assert_eq!(statistics["model_stats"][0]["inference_count"], json!(200));
    }
}

/// The graph keeps its input in a variable. The input lies in memory that the client writes again after the request.
#[test]
fn a_variable_keeps_what_a_client_had_in_shared_memory() {
    let Some(models) = Models::new() else { return };
    let tensor = |kind: &str, name: &str| format!("{kind} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ 4 ] }}\n");
    let tensors = tensor("input", "INPUT") + &tensor("output", "STORED") + &tensor("output", "READ");
    let head = "platform: \"tensorflow_graphdef\" instance_group { kind: KIND_CPU count: 1 }\n";
    models.add("kept", "kept.graphdef", &(head.to_owned() + &tensors));
    let mut stand = models.serve(&["--allow-client-shm=true"]);
    stand.server.wait_until("ready", || stand.http.get("/v2/health/ready").status == 200);
    let region = Region::new(&floats(&[1., 2., 3., 4.]));
    region.register(&mut stand.http, "r", 16);
    let place = json!({ "shared_memory_region": "r", "shared_memory_byte_size": 16 });
    let inputs = json!([{ "name": "INPUT", "datatype": "FP32", "shape": [4], "parameters": place }]);
    let stored = json!([1., 2., 3., 4.]);
    assert_eq!(outputs(&stand.infer("kept", inputs.clone(), &["STORED"]))[0].2, stored);
    region.write(&floats(&[5., 6., 7., 8.]));
    assert_eq!(outputs(&stand.infer("kept", inputs, &["READ"]))[0].2, stored, "the variable has changed");
}
