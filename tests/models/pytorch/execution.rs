//! Requests to TorchScript models: errors of their results, strings, sequences with states, batches, shared memory.

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse, SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryRegisterResponse,
};
use serde_json::json;

use super::{add, data, infer, library_flag, tensor};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{ALL, each, usual};

fn floats(values: &[f32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
}

fn message(model: &str, input: (&str, &str, &[i64]), raw: Bytes) -> ModelInferRequest {
    let (name, datatype, shape) = input;
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![InferInputTensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: shape.to_vec(),
            ..Default::default()
        }],
        raw_input_contents: vec![raw],
        ..Default::default()
    }
}

#[test]
fn results_that_the_configuration_does_not_expect_are_errors() {
    let Some(library) = library_flag() else { return };
    let repository = Repository::new();
    let input = tensor("input", "INPUT0", "TYPE_FP32", "-1, -1");
    let output = |name: &str, data_type| tensor("output", name, data_type, "-1, -1");
    add(&repository, "type", "identity", &(input.clone() + &output("OUTPUT__0", "TYPE_INT32")));
    add(&repository, "index", "identity", &(input.clone() + &output("OUTPUT__3", "TYPE_FP32")));
    add(&repository, "raising", "raising", &(input.clone() + &output("OUTPUT__0", "TYPE_FP32")));
    add(&repository, "list", "tensor_list", &(input + &output("OUTPUT__0", "TYPE_FP32")));
    let server = Server::start(usual(), repository.path(), &[&library]);
    for (model, status, text) in [
        ("type", 400, "configuration expects datatype TYPE_INT32 for output 'OUTPUT__0', model provides TYPE_FP32"),
        (
            "index",
            400,
            "The output OUTPUT__3 in the model configuration refers to an output index which doesn't exist. This model \
             has 1 outputs",
        ),
        ("raising", 500, "PyTorch execute failure: The following operation failed in the TorchScript interpreter."),
        ("list", 500, "PyTorch execute failure: output must be of type Tensor or List[str], received List[Tensor]"),
    ] {
        let input = json!([{ "name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2] }]);
        let answer = infer(&server, model, input);
        assert_eq!(answer.status, status, "{model}: {}", answer.text());
        assert!(answer.error().starts_with(text), "{model}: {}", answer.error());
    }
    server.stop();
}

/// Triton's test L0_nullchar_string.
#[test]
fn strings_with_zero_bytes_come_back_whole() {
    let Some(library) = library_flag() else { return };
    let repository = Repository::new();
    let config = tensor("input", "INPUT__0", "TYPE_STRING", "-1") + &tensor("output", "OUTPUT__0", "TYPE_STRING", "-1");
    add(&repository, "texts", "strings", &config);
    each(&ALL, |variant| {
        let server = Server::start(variant, repository.path(), &[&library]);
        let mut raw = Vec::new();
        for text in [&b"abc\0def"[..], b"\0", b""] {
            raw.extend_from_slice(&u32::try_from(text.len()).expect("short").to_le_bytes());
            raw.extend_from_slice(text);
        }
        let request = message("texts", ("INPUT__0", "BYTES", &[3]), raw.clone().into());
        let answer: ModelInferResponse = Grpc::connect(server.grpc).call("ModelInfer", &request).expect("an answer");
        assert_eq!(answer.outputs[0].shape, [3]);
        assert_eq!(answer.raw_output_contents[0], raw);
        server.stop();
    });
}

#[test]
fn sequences_keep_their_states_apart() {
    let Some(library) = library_flag() else { return };
    let repository = Repository::new();
    let batching = "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 4 } control_input { name: \
                    \"START__2\" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } state { \
                    input_name: \"STATE__1\" output_name: \"NEXT__1\" data_type: TYPE_FP32 dims: [ 1 ] } }";
    let config = tensor("input", "INPUT__0", "TYPE_FP32", "1") + &tensor("output", "TOTAL__0", "TYPE_FP32", "1");
    add(&repository, "sums", "accumulate", &(config + batching));
    let server = Server::start(usual(), repository.path(), &[&library]);
    let mut grpc = Grpc::connect(server.grpc);
    let mut send = |id: i64, value: f32, (is_first, is_last): (bool, bool)| {
        let mut request = message("sums", ("INPUT__0", "FP32", &[1, 1]), floats(&[value]));
        let flag = ParameterChoice::BoolParam;
        for (key, choice) in [
            ("sequence_id", ParameterChoice::Int64Param(id)),
            ("sequence_start", flag(is_first)),
            ("sequence_end", flag(is_last)),
        ] {
            request.parameters.insert(key.to_owned(), InferParameter { parameter_choice: Some(choice) });
        }
        let answer: ModelInferResponse = grpc.call("ModelInfer", &request).expect("an answer");
        answer.raw_output_contents[0].clone()
    };
    assert_eq!(send(1, 1., (true, false)), floats(&[1.]));
    assert_eq!(send(2, 10., (true, false)), floats(&[10.]));
    assert_eq!(send(1, 2., (false, false)), floats(&[3.]));
    assert_eq!(send(2, 20., (false, true)), floats(&[30.]));
    assert_eq!(send(1, 3., (false, true)), floats(&[6.]));
    server.stop();
}

#[test]
fn requests_that_wait_are_run_as_one_batch() {
    let Some(library) = library_flag() else { return };
    let repository = Repository::new();
    let config = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: \
                  3600000000 } ";
    let config = config.to_owned()
        + &tensor("input", "INPUT0", "TYPE_FP32", "16")
        + &tensor("output", "OUTPUT__0", "TYPE_FP32", "16");
    add(&repository, "linear", "linear", &config);
    let server = Server::start(usual(), repository.path(), &[&library]);
    std::thread::scope(|scope| {
        for value in 0..8u8 {
            let server = &server;
            scope.spawn(move || {
                let value = f32::from(value);
                let request = message("linear", ("INPUT0", "FP32", &[1, 16]), floats(&[value; 16]));
                let answer: ModelInferResponse =
                    Grpc::connect(server.grpc).call("ModelInfer", &request).expect("an answer");
                assert_eq!(answer.raw_output_contents[0], floats(&[value * 8. + 1.; 16]));
            });
        }
    });
    let statistics = nereid_test_support::http::Peer::connect(server.http).get("/v2/models/linear/stats").json();
    let model = &statistics["model_stats"][0];
    assert_eq!((model["inference_count"].as_u64(), model["execution_count"].as_u64()), (Some(8), Some(1)));
    server.stop();
}

#[test]
fn tensors_lie_in_the_shared_memory_of_clients() {
    let Some(library) = library_flag() else { return };
    let repository = Repository::new();
    let config = tensor("input", "INPUT0", "TYPE_FP32", "2") + &tensor("output", "OUTPUT__0", "TYPE_FP32", "2");
    add(&repository, "increment", "increment", &("max_batch_size: 2 ".to_owned() + &config));
    let server = Server::start(usual(), repository.path(), &["--allow-client-shm=true", &library]);
    let name = format!("nereid-test-pytorch-{}", std::process::id());
    let path = std::path::Path::new("/dev/shm").join(&name);
    let given = [floats(&[1., 2.]), floats(&[0., 0.])].concat();
    std::fs::write(&path, &given).expect("an object of shared memory");
    let mut grpc = Grpc::connect(server.grpc);
    let register = SystemSharedMemoryRegisterRequest {
        name: "region".to_owned(),
        key: format!("/{name}"),
        offset: 0,
        byte_size: 16,
    };
    let _: SystemSharedMemoryRegisterResponse = grpc.call("SystemSharedMemoryRegister", &register).expect("a region");
    let placed = |offset| {
        let number = |value| InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value)) };
        let region = InferParameter { parameter_choice: Some(ParameterChoice::StringParam("region".to_owned())) };
        let parameters = [
            ("shared_memory_region", region),
            ("shared_memory_byte_size", number(8)),
            ("shared_memory_offset", number(offset)),
        ];
        parameters.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
    };
    let mut request = message("increment", ("INPUT0", "FP32", &[1, 2]), Bytes::new());
    request.raw_input_contents.clear();
    request.inputs[0].parameters = placed(0);
    request.outputs = vec![InferRequestedOutputTensor { name: "OUTPUT__0".to_owned(), parameters: placed(8) }];
    let answer: Result<ModelInferResponse, _> = grpc.call("ModelInfer", &request);
    let found = std::fs::read(&path).expect("the object");
    std::fs::remove_file(&path).expect("remove the object");
    answer.expect("an answer");
    // The model writes to its input, but not to the client's.
    assert_eq!(found, [floats(&[1., 2.]), floats(&[2., 3.])].concat());
    let answer = infer(
        &server,
        "increment",
        json!([{ "name": "INPUT0", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4] }]),
    );
    assert_eq!(data(&answer, "OUTPUT__0"), json!([2., 3., 4., 5.]));
    server.stop();
}
