//! Output windows with every kind of model: plug-ins and ONNX Runtime write to them directly, outputs of ensembles and
//! of the response cache are copied.

use super::*;
use nereid_test_support::backend;
use nereid_test_support::grpc::decode;
use nereid_test_support::python::Python;
use nereid_test_support::variant::{self, each, usual};

/// Sends `numbers` through a model by way of the region `r`, and returns what is in the window afterwards.
fn through(peer: &mut Peer, model: &str, object: &Object, count: usize) -> Vec<u8> {
    let size = 4 * count as u64;
    let values = input("INPUT0", "INT32", &[count as i64], ("r", 0, size));
    let answer = infer(peer, model, &[values], &[output("OUTPUT0", ("r", size, size))]);
    assert_eq!(answer.status, 200, "{model}: {}", answer.text());
    assert_eq!(answer.json()["outputs"], json!([{ "name": "OUTPUT0", "datatype": "INT32", "shape": [count] }]));
    object.read(size, size as usize)
}

/// Small, and larger than a shard copies itself.
const COUNTS: [usize; 2] = [16, 200_000];

#[test]
fn plug_ins_read_and_write_regions() {
    let Some(directory) = backend::directory() else { return };
    let repository = Repository::new();
    repository.identity_of("copycat", "foreign", 0, &[Pair::new("INT32", "-1")], "");
    repository.identity_of("copycat", "words", 0, &[Pair::new("BYTES", "-1")], "");
    let flag = format!("--backend-directory={}", directory.display());
    let server = Server::start(usual(), repository.path(), &[ALLOWED, &flag]);
    let mut peer = Peer::connect(server.http);
    for count in COUNTS {
        let numbers = int32s(0..count as i32);
        let object = Object::new(&[&numbers[..], &vec![0; numbers.len()]].concat());
        registered(&mut peer, "r", &object, 2 * numbers.len() as u64);
        assert!(through(&mut peer, "foreign", &object, count) == numbers);
        let values = || [input("INPUT0", "INT32", &[4], ("r", 0, 16))];
        let answer = infer(&mut peer, "foreign", &values(), &[]);
        assert_eq!(answer.json()["outputs"][0]["data"], json!([0, 1, 2, 3]));
        let answer = infer(&mut peer, "foreign", &values(), &[output("OUTPUT0", ("r", 64, 15))]);
        let text = "shared memory size specified with the request for output 'OUTPUT0' (15 bytes) should be at least 16 \
                    bytes to hold the results";
        assert_eq!((answer.status, answer.error().as_str()), (500, text));
        unregister(&mut peer, Some("r"));
    }
    let text = strings(&[b"some", b"words"]);
    let object = Object::new(&[&b"odd"[..], &text, &[0; 20]].concat());
    let size = text.len() as u64;
    registered(&mut peer, "r", &object, 3 + 2 * size);
    let words = input("INPUT0", "BYTES", &[2], ("r", 3, size));
    let answer = infer(&mut peer, "words", &[words], &[output("OUTPUT0", ("r", 3 + size, size))]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(object.read(3 + size, text.len()), text);
    unregister(&mut peer, Some("r"));
    assert_eq!(listed(&mut peer), [""; 0]);
    server.stop();
}

fn ensemble(name: &str, steps: &[&str]) -> String {
    let tensor = |side: &str, name: &str| format!("{side} {{ name: \"{name}\" data_type: TYPE_INT32 dims: [ -1 ] }}\n");
    let mut scheduling = String::new();
    for (at, model) in steps.iter().enumerate() {
        let from = if at == 0 { "INPUT0".to_owned() } else { format!("t{at}") };
        let to = if at + 1 == steps.len() { "OUTPUT0".to_owned() } else { format!("t{}", at + 1) };
        scheduling.push_str(&format!(
            "step {{ model_name: \"{model}\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{from}\" }} \
             output_map {{ key: \"OUTPUT0\" value: \"{to}\" }} }}\n"
        ));
    }
    let (input, output) = (tensor("input", "INPUT0"), tensor("output", "OUTPUT0"));
    format!("name: \"{name}\" platform: \"ensemble\" {input} {output} ensemble_scheduling {{ {scheduling} }}\n")
}

#[test]
fn the_outputs_of_ensembles_go_to_windows() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"1\" } }";
        repository.identity_of("identity", "late", 0, &[Pair::new("INT32", "-1")], delay);
        repository.model("quick", &ensemble("quick", &["plain", "plain"]));
        repository.model("mixed", &ensemble("mixed", &["plain", "late", "plain"]));
        let server = Server::start(variant, repository.path(), &[ALLOWED]);
        let mut peer = Peer::connect(server.http);
        for (count, model) in COUNTS.into_iter().flat_map(|count| [(count, "quick"), (count, "mixed")]) {
            let numbers = int32s(1..=count as i32);
            let object = Object::new(&[&numbers[..], &vec![0; numbers.len()]].concat());
            registered(&mut peer, "r", &object, 2 * numbers.len() as u64);
            assert!(through(&mut peer, model, &object, count) == numbers, "{model} {count}");
            let values = input("INPUT0", "INT32", &[2], ("r", 4, 8));
            let answer = infer(&mut peer, model, &[values], &[]);
            assert_eq!(answer.json()["outputs"][0]["data"], json!([2, 3]));
            // Until the last answer is out, and no longer.
            unregister(&mut peer, Some("r"));
            assert_eq!(listed(&mut peer), [""; 0]);
        }
        server.stop();
    });
}

#[test]
fn answers_of_the_cache_go_to_windows_and_are_not_what_clients_wrote_there() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let cached = "response_cache { enable: true }";
        repository.identity_of("identity", "cached", 0, &[Pair::new("INT32", "-1")], cached);
        let server = Server::start(variant, repository.path(), &[ALLOWED, "--cache-config=local,size=16777216"]);
        let mut peer = Peer::connect(server.http);
        let hits = |peer: &mut Peer| {
            let stats = peer.get("/v2/models/cached/stats").json();
            stats["model_stats"][0]["inference_stats"]["cache_hit"]["count"].as_u64().expect("a count")
        };
        for (round, count) in COUNTS.into_iter().enumerate() {
            let numbers = int32s(7..7 + count as i32);
            let object = Object::new(&[&numbers[..], &vec![0; numbers.len()]].concat());
            registered(&mut peer, "r", &object, 2 * numbers.len() as u64);
            assert!(through(&mut peer, "cached", &object, count) == numbers);
            assert_eq!(hits(&mut peer), round as u64);
            // The cache has what the model made.
            object.write(numbers.len() as u64, &vec![0xee; numbers.len()]);
            assert!(through(&mut peer, "cached", &object, count) == numbers);
            assert_eq!(hits(&mut peer), round as u64 + 1);
            unregister(&mut peer, Some("r"));
            assert_eq!(listed(&mut peer), [""; 0]);
        }
        server.stop();
    });
}

/// Each response of a decoupled model overwrites the one before it.
#[test]
fn responses_of_a_stream_go_to_windows() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let tensor = |side: &str, name: &str, kind: &str, dims: &str| {
            format!("{side} {{ name: \"{name}\" data_type: TYPE_{kind} dims: [ {dims} ] }}\n")
        };
        let tensors = [
            tensor("input", "IN", "INT32", "-1"),
            tensor("input", "DELAY", "UINT32", "-1"),
            tensor("input", "WAIT", "UINT32", "1"),
            tensor("output", "OUT", "INT32", "1"),
            tensor("output", "IDX", "UINT32", "1"),
        ];
        let policy = "model_transaction_policy { decoupled: true }";
        repository.model("repeat", &format!("backend: \"repeat\" {} {policy}\n", tensors.concat()));
        let server = Server::start(variant, repository.path(), &[ALLOWED]);
        let mut peer = Peer::connect(server.http);
        let object = Object::new(&[&int32s([5, 6, 7, 0, 0, 0, 0])[..], &[0xee; 12]].concat());
        registered(&mut peer, "r", &object, 40);
        let mut grpc = Grpc::connect(server.grpc);
        let request = ModelInferRequest {
            model_name: "repeat".into(),
            inputs: vec![
                grpc_input("IN", "INT32", &[3], grpc_place(("r", 0, 12))),
                grpc_input("DELAY", "UINT32", &[3], grpc_place(("r", 12, 12))),
                grpc_input("WAIT", "UINT32", &[1], grpc_place(("r", 24, 4))),
            ],
            outputs: vec![grpc_output("OUT", grpc_place(("r", 28, 4))), grpc_output("IDX", Parameters::new())],
            ..Default::default()
        };
        let mut stream = grpc.open("/inference.GRPCInferenceService/ModelStreamInfer", &[]);
        grpc.send(&mut stream, &request);
        for index in 0..3u32 {
            let answer: ModelStreamInferResponse = decode(&grpc.next(&mut stream).expect("an answer"));
            assert_eq!(answer.error_message, "");
            let contents = answer.infer_response.expect("a response").raw_output_contents;
            assert_eq!(contents, [&b""[..], &index.to_le_bytes()]);
        }
        grpc.half_close(&mut stream);
        grpc.finish(stream);
        assert_eq!(object.read(28, 8), [&int32s([7])[..], &[0xee; 4]].concat());
        unregister(&mut peer, None);
        assert_eq!(listed(&mut peer), [""; 0]);
        server.stop();
    });
}

#[test]
fn onnx_models_write_to_windows() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.example("simple");
    let server = Server::start(usual(), repository.path(), &[ALLOWED, &python.onnxruntime_flag()]);
    let mut peer = Peer::connect(server.http);
    let (first, second) = (int32s(0..32), int32s((0..32).map(|number| number * 10)));
    let object = Object::new(&[&first[..], &second, &[0xee; 300]].concat());
    registered(&mut peer, "r", &object, 556);
    // Aligned and odd places, one window larger than it has to be.
    for (sum, difference) in [(256, 384), (257, 386)] {
        let inputs =
            [input("INPUT0", "INT32", &[2, 16], ("r", 0, 128)), input("INPUT1", "INT32", &[2, 16], ("r", 128, 128))];
        let outputs = [output("OUTPUT1", ("r", difference, 128)), output("OUTPUT0", ("r", sum, 129))];
        object.write(256, &[0xee; 300]);
        let answer = infer(&mut peer, "simple", &inputs, &outputs);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(object.read(sum, 128), int32s((0..32).map(|number| number * 11)));
        assert_eq!(object.read(difference, 128), int32s((0..32).map(|number| number * -9)));
        let answer = infer(&mut peer, "simple", &inputs, &outputs[..1]);
        assert_eq!(answer.json()["outputs"].as_array().map(Vec::len), Some(1));
    }
    let inputs = [input("INPUT0", "INT32", &[1, 16], ("r", 0, 64)), input("INPUT1", "INT32", &[1, 16], ("r", 128, 64))];
    let answer = infer(&mut peer, "simple", &inputs, &[output("OUTPUT0", ("r", 256, 63))]);
    let text = "shared memory size specified with the request for output 'OUTPUT0' (63 bytes) should be at least 64 bytes \
                to hold the results";
    assert_eq!((answer.status, answer.error().as_str()), (500, text));
    server.stop();
}
