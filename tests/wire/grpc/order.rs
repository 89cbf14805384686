//! Which of several faults of a message is reported (contract/grpc.md section 4, "Order"), on a stream as in a unary
//! call.

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice::{BoolParam, Int64Param, Uint64Param};
use nereid_wire::inference::{InferTensorContents, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

use super::message::{infer, output, parameters, raw, typed};
use nereid_test_support::grpc::{Grpc, SERVICE, Status, code, decode};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

#[test]
fn the_first_fault_is_named() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "2"), Pair::new("FP32", "2")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let ints = |values: &[i32]| InferTensorContents { int_contents: values.to_vec(), ..Default::default() };
    let mut classes = output("OUTPUT0");
    classes.parameters = parameters([("classification", BoolParam(true))]);

    // Every fault at once, and then one less from case to case.
    let mut request = ModelInferRequest {
        model_name: "absent".into(),
        model_version: "x".into(),
        id: "7".into(),
        parameters: parameters([("mine", Uint64Param(1))]),
        inputs: vec![typed("INPUT0", "FP32", &[3], ints(&[1, 2])), typed("INPUT0", "FP32", &[3], ints(&[1]))],
        outputs: vec![classes.clone(), classes],
        raw_input_contents: vec![Bytes::from_static(b"1234")],
    };
    let mut check = |request: &ModelInferRequest, code: u32, text: &str| {
        let status = grpc.call::<ModelInferResponse>("ModelInfer", request).expect_err(text);
        assert_eq!(status, Status { code, message: text.to_string() });
        let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
        grpc.send(&mut stream, request);
        grpc.half_close(&mut stream);
        let reply = grpc.finish(stream);
        assert_eq!((reply.status.code, reply.messages.len()), (0, 1), "{text}");
        let response: ModelStreamInferResponse = decode(&reply.messages[0]);
        assert_eq!(response.error_message, text);
        assert_eq!(response.infer_response.unwrap_or_default().id, "7", "{text}");
    };
    let text = "failed to get model version from specified version string 'x' (details: stol), version should be an \
                integral value > 0";
    check(&request, code::INVALID_ARGUMENT, text);
    request.model_version = String::new();
    check(&request, code::NOT_FOUND, "Request for unknown model: 'absent' is not found");
    request.model_name = "plain".into();
    let text = "invalid value type for 'mine' parameter, expected int64_param, bool_param, or string_param.";
    check(&request, code::INVALID_ARGUMENT, text);
    request.parameters = parameters([("mine", Int64Param(1))]);
    check(&request, code::INVALID_ARGUMENT, "[request id: 7] input 'INPUT0' already exists in request");
    request.inputs[1].name = "INPUT1".into();
    check(&request, code::INVALID_ARGUMENT, "[request id: 7] output 'OUTPUT0' already exists in request");
    request.outputs[1].name = "NONE".into();
    let text = "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'plain'";
    check(&request, code::INVALID_ARGUMENT, text);
    request.raw_input_contents.clear();
    let text = "unexpected explicit tensor data for input tensor 'INPUT0' for model 'plain' of type 'INT32', expected \
                datatype 'FP32'";
    check(&request, code::INVALID_ARGUMENT, text);
    request.inputs[0] = typed("INPUT0", "INT32", &[3], ints(&[1, 2]));
    let text = "unexpected explicit tensor data for input tensor 'INPUT1' for model 'plain' of type 'INT32', expected \
                datatype 'FP32'";
    check(&request, code::INVALID_ARGUMENT, text);
    request.inputs[1] = raw("INPUT1", "INT32", &[3]);
    let text = "unable to find data for input tensor 'INPUT1' for model 'plain' in request.";
    check(&request, code::INVALID_ARGUMENT, text);
    // How outputs are wanted is read behind the tensors.
    request.inputs[1] = typed("INPUT1", "INT32", &[3], ints(&[1]));
    let text = "invalid value type for 'classification' parameter, expected int64_param";
    check(&request, code::INVALID_ARGUMENT, text);
    request.outputs[0].parameters.clear();
    check(&request, code::INVALID_ARGUMENT, text);
    request.outputs[1].parameters.clear();
    // Only now comes what the core looks at: outputs, inputs, and of each its type, its shape and its size.
    check(&request, code::INVALID_ARGUMENT, "unexpected inference output 'NONE' for model 'plain'");
    request.outputs.pop();
    let text = "[request id: 7] unexpected shape for input 'INPUT0' for model 'plain'. Expected [2], got [3]. ";
    check(&request, code::INVALID_ARGUMENT, text);
    request.inputs[0].shape = vec![2];
    let text = "[request id: 7] inference input 'INPUT1' data-type is 'INT32', but model 'plain' expects 'FP32'";
    check(&request, code::INVALID_ARGUMENT, text);
    let floats = InferTensorContents { fp32_contents: vec![1.0], ..Default::default() };
    request.inputs[1] = typed("INPUT1", "FP32", &[2], floats);
    let text = "[request id: 7] input byte size mismatch for input 'INPUT1' for model 'plain'. Expected 8, got 4";
    check(&request, code::INVALID_ARGUMENT, text);
    request.inputs.pop();
    let text = "[request id: 7] expected 2 inputs but got 1 inputs for model 'plain'. Got input(s) ['INPUT0'], but missing \
                required input(s) ['INPUT1']. Please provide all required input(s).";
    check(&request, code::INVALID_ARGUMENT, text);
    server.stop();
}

/// What is left open (-1) is named where the walk over a shape reaches it; a size that does not match ends the walk.
#[test]
fn sizes_below_zero() {
    let repository = Repository::new();
    repository.identity("fixed", 0, &[Pair::new("INT32", "2, 3")]);
    repository.identity("open", 0, &[Pair::new("INT32", "-1, 3")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let open = |model: &str, shape: &str| {
        format!("All input dimensions should be specified for input 'INPUT0' for model '{model}', got {shape}")
    };
    let unexpected = |model: &str, expected: &str, shape: &str| {
        format!("unexpected shape for input 'INPUT0' for model '{model}'. Expected {expected}, got {shape}. ")
    };
    for (model, shape, text) in [
        ("fixed", [-1, 3], open("fixed", "[-1,3]")),
        ("fixed", [2, -1], open("fixed", "[2,-1]")),
        ("fixed", [5, -1], unexpected("fixed", "[2,3]", "[5,-1]")),
        ("fixed", [-2, 3], unexpected("fixed", "[2,3]", "[-2,3]")),
        ("fixed", [-2, -1], unexpected("fixed", "[2,3]", "[-2,-1]")),
        ("open", [-1, 4], open("open", "[-1,4]")),
        ("open", [4, -1], open("open", "[4,-1]")),
        ("open", [4, -2], unexpected("open", "[-1,3]", "[4,-2]")),
        ("open", [i64::MIN, 3], open("open", "[-9223372036854775808,3]")),
    ] {
        let request = ModelInferRequest {
            inputs: vec![raw("INPUT0", "INT32", &shape)],
            raw_input_contents: vec![Bytes::from_static(b"")],
            ..infer(model)
        };
        let status = grpc.call::<ModelInferResponse>("ModelInfer", &request).expect_err("a shape below zero");
        let message = format!("[request id: <id_unknown>] {text}");
        assert_eq!(status, Status { code: code::INVALID_ARGUMENT, message }, "{model} {shape:?}");
    }
    server.stop();
}
