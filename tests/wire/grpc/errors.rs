//! The response to each bad message: code and text, letter for letter (contract/grpc.md section 4, contract/http.md
//! section 6).

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice::{
    self, BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param,
};
use nereid_wire::inference::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};

use super::message::{infer, numbers, output, parameters, raw, typed};
use nereid_test_support::grpc::{Grpc, Status, code};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

fn refused(grpc: &mut Grpc, request: &ModelInferRequest) -> Status {
    match grpc.call::<ModelInferResponse>("ModelInfer", request) {
        Err(status) => status,
        Ok(answer) => panic!("expected an error for {request:?}, got {answer:?}"),
    }
}

fn invalid(text: &str) -> Status {
    Status { code: code::INVALID_ARGUMENT, message: text.to_string() }
}

fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository.identity("three", 0, &[Pair::new("INT32", "2"), Pair::new("INT32", "2"), Pair::new("INT32", "2")]);
    repository.identity("batching", 4, &[Pair::new("INT32", "2")]);
    repository.identity("half", 0, &[Pair::new("FP16", "-1")]);
    repository.identity("text", 0, &[Pair::new("BYTES", "2")]);
    repository
}

#[test]
fn reserved_parameters_have_their_types() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let expected = |key: &str, kinds: &str| format!("invalid value type for '{key}' parameter, expected {kinds}.");
    let text = || StringParam("x".to_string());
    let reserved = "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys \
                    starting with 'triton_' are allowed: triton_enable_empty_final_response";
    let kinds = "int64_param, bool_param, or string_param";
    let cases: [(&str, ParameterChoice, String); 17] = [
        ("sequence_id", BoolParam(true), expected("sequence_id", "int64_param or string_param")),
        ("sequence_id", DoubleParam(1.0), expected("sequence_id", "int64_param or string_param")),
        ("sequence_start", Int64Param(1), expected("sequence_start", "bool_param")),
        ("sequence_end", text(), expected("sequence_end", "bool_param")),
        ("priority", Int64Param(-1), "invalid value for 'priority', expected value >= 0.".to_string()),
        ("priority", text(), expected("priority", "int64_param or uint64_param")),
        ("priority", BoolParam(true), expected("priority", "int64_param or uint64_param")),
        ("timeout", Uint64Param(1), expected("timeout", "int64_param")),
        ("timeout", text(), expected("timeout", "int64_param")),
        ("timeout", DoubleParam(1.0), expected("timeout", "int64_param")),
        (
            "triton_enable_empty_final_response",
            Int64Param(1),
            expected("triton_enable_empty_final_response", "bool_param"),
        ),
        ("triton_anything", BoolParam(true), reserved.to_string()),
        ("triton_", text(), reserved.to_string()),
        ("mine", Uint64Param(1), expected("mine", kinds)),
        ("", Uint64Param(1), expected("", kinds)),
        ("yours", Uint64Param(u64::MAX), expected("yours", kinds)),
        ("sequence_id", Uint64Param(1), expected("sequence_id", "int64_param or string_param")),
    ];
    for (key, choice, text) in cases {
        let what = format!("{key}: {choice:?}");
        let request = ModelInferRequest { parameters: parameters([(key, choice)]), ..numbers("plain", "", &[1]) };
        assert_eq!(refused(&mut grpc, &request), invalid(&text), "{what}");
    }
    let long = [("sequence_id", StringParam("x".repeat(129)))];
    let request = ModelInferRequest { parameters: parameters(long), ..numbers("plain", "", &[1]) };
    let text = "string correlation ID cannot be longer than 128 characters";
    assert_eq!(refused(&mut grpc, &request), Status { code: code::UNIMPLEMENTED, message: text.to_owned() });
    // An entry without a value.
    let mut request = numbers("plain", "", &[1]);
    request.parameters.insert("mine".to_string(), InferParameter::default());
    assert_eq!(refused(&mut grpc, &request), invalid(&expected("mine", kinds)));
    server.stop();
}

#[test]
fn tensor_data_stands_in_one_place_and_in_its_own_list() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let ints = InferTensorContents { int_contents: vec![1, 2], ..Default::default() };
        let floats = InferTensorContents { fp32_contents: vec![1.0], ..Default::default() };
        let both = InferTensorContents { int_contents: vec![1], uint_contents: vec![1], ..Default::default() };
        let of = |datatype: &str, contents: &InferTensorContents| ModelInferRequest {
            inputs: vec![typed("INPUT0", datatype, &[2], contents.clone())],
            ..infer("plain")
        };
        let in_both =
            ModelInferRequest { raw_input_contents: vec![Bytes::from_static(b"12345678")], ..of("INT32", &ints) };
        let text = "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'plain'";
        assert_eq!(refused(&mut grpc, &in_both), invalid(text));
        let text = "unexpected explicit tensor data for input tensor 'INPUT0' for model 'plain', binary data was already \
                    supplied.";
        assert_eq!(refused(&mut grpc, &of("INT32", &both)), invalid(text));
        for (contents, datatype, list) in [
            (&floats, "INT32", "FP32"),
            (&ints, "FP32", "INT32"),
            (&ints, "UINT32", "INT32"),
            (&ints, "INT64", "INT32"),
        ] {
            let text = format!(
                "unexpected explicit tensor data for input tensor 'INPUT0' for model 'plain' of type '{list}', expected \
                 datatype '{datatype}'"
            );
            assert_eq!(refused(&mut grpc, &of(datatype, contents)), invalid(&text));
        }
        let absent = ModelInferRequest { inputs: vec![raw("INPUT0", "INT32", &[1])], ..infer("plain") };
        let text = "unable to find data for input tensor 'INPUT0' for model 'plain' in request.";
        assert_eq!(refused(&mut grpc, &absent), invalid(text));
        let text = "unable to find data for input tensor 'INPUT1' for model 'three' in request.";
        let short = ModelInferRequest {
            inputs: vec![raw("INPUT0", "INT32", &[2]), raw("INPUT1", "INT32", &[2])],
            raw_input_contents: vec![Bytes::from_static(b"12345678")],
            ..infer("three")
        };
        assert_eq!(refused(&mut grpc, &short), invalid(text));
        server.stop();
    });
}

#[test]
fn requests_that_do_not_fit_the_model() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let prefix = "[request id: 7] ";
    let sized = |model: &str, datatype: &str, shape: &[i64], bytes: usize| ModelInferRequest {
        id: "7".into(),
        inputs: vec![raw("INPUT0", datatype, shape)],
        raw_input_contents: vec![Bytes::from(vec![0; bytes])],
        ..infer(model)
    };
    let renamed =
        |name: &str| ModelInferRequest { inputs: vec![raw(name, "INT32", &[1])], ..sized("plain", "INT32", &[1], 4) };
    let doubled = ModelInferRequest {
        inputs: vec![raw("INPUT0", "INT32", &[2]), raw("INPUT0", "INT32", &[2])],
        raw_input_contents: vec![Bytes::from(vec![0; 8]), Bytes::from(vec![0; 8])],
        ..infer("three")
    };
    let asking = |name: &str, count: usize| ModelInferRequest {
        outputs: vec![output(name); count],
        ..numbers("plain", "7", &[1])
    };
    for (request, code, text) in [
        (numbers("absent", "7", &[1]), code::NOT_FOUND, "Request for unknown model: 'absent' is not found".to_string()),
        (
            renamed("INPUT5"),
            code::INVALID_ARGUMENT,
            "unexpected inference input 'INPUT5' for model 'plain'".to_string(),
        ),
        (
            asking("OUTPUT5", 1),
            code::INVALID_ARGUMENT,
            "unexpected inference output 'OUTPUT5' for model 'plain'".to_string(),
        ),
        (asking("OUTPUT0", 2), code::INVALID_ARGUMENT, format!("{prefix}output 'OUTPUT0' already exists in request")),
        (
            doubled,
            code::INVALID_ARGUMENT,
            "[request id: <id_unknown>] input 'INPUT0' already exists in request".to_string(),
        ),
        (
            sized("plain", "FP32", &[1], 4),
            code::INVALID_ARGUMENT,
            format!("{prefix}inference input 'INPUT0' data-type is 'FP32', but model 'plain' expects 'INT32'"),
        ),
        (
            sized("plain", "INT32", &[2], 7),
            code::INVALID_ARGUMENT,
            format!("{prefix}input byte size mismatch for input 'INPUT0' for model 'plain'. Expected 8, got 7"),
        ),
        (
            sized("plain", "INT32", &[1, 2], 8),
            code::INVALID_ARGUMENT,
            format!("{prefix}unexpected shape for input 'INPUT0' for model 'plain'. Expected [-1], got [1,2]. "),
        ),
        (
            sized("plain", "INT32", &[-1], 4),
            code::INVALID_ARGUMENT,
            format!("{prefix}All input dimensions should be specified for input 'INPUT0' for model 'plain', got [-1]"),
        ),
        (
            sized("batching", "INT32", &[5, 2], 40),
            code::INVALID_ARGUMENT,
            format!("{prefix}inference request batch-size must be <= 4 for 'batching'"),
        ),
        (
            sized("batching", "INT32", &[], 0),
            code::INVALID_ARGUMENT,
            format!("{prefix}input 'INPUT0' has no shape but model requires batch dimension for 'batching'"),
        ),
    ] {
        assert_eq!(refused(&mut grpc, &request), Status { code, message: text }, "{request:?}");
    }
    // The connection is as good as new.
    let answer: ModelInferResponse = grpc.call("ModelInfer", &numbers("plain", "8", &[1])).expect("an answer");
    assert_eq!(answer.id, "8");
    server.stop();
}

#[test]
fn classification_parameters() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    for (choice, text) in [
        (BoolParam(true), "invalid value type for 'classification' parameter, expected int64_param"),
        (Int64Param(0), "invalid value for 'classification' parameter, expected >= 0"),
        (Int64Param(-1), "invalid value for 'classification' parameter, expected >= 0"),
    ] {
        let mut wanted = output("OUTPUT0");
        wanted.parameters = parameters([("classification", choice)]);
        let request = ModelInferRequest { outputs: vec![wanted], ..numbers("plain", "", &[1]) };
        assert_eq!(refused(&mut grpc, &request), invalid(text));
    }
    server.stop();
}
