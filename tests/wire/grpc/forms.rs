//! Every datatype in raw and in typed contents; parameters, outputs and classification over gRPC
//! (contract/grpc.md section 4).

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferTensorContents, ModelInferRequest, ModelInferResponse};
use prost::Message;

use super::message::{infer, numbers, output, parameters, raw, typed};
use nereid_test_support::grpc::{Grpc, SERVICE, code, decode, frame_bytes};
use nereid_test_support::repository::{Pair, Repository, TYPES};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// Two elements of a datatype as bytes; BYTES in its length-prefixed form.
fn two_elements(datatype: &str, size: usize) -> Bytes {
    match datatype {
        "BOOL" => Bytes::from_static(&[1, 0]),
        "BYTES" => Bytes::from_static(b"\x03\0\0\0a\0b\0\0\0\0"),
        _ => (1..=2 * size as u8).map(|i| i.wrapping_mul(37)).collect(),
    }
}

/// The same two elements as typed contents; FP16 and BF16 have no list.
fn contents_of(datatype: &str, bytes: &Bytes) -> Option<InferTensorContents> {
    let mut contents = InferTensorContents::default();
    let numbers = |size: usize| -> Vec<u64> {
        let little = |chunk: &[u8]| chunk.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        bytes.chunks(size).map(little).collect()
    };
    match datatype {
        "BOOL" => contents.bool_contents = vec![true, false],
        "INT8" => contents.int_contents = numbers(1).iter().map(|&v| i32::from(v as i8)).collect(),
        "INT16" => contents.int_contents = numbers(2).iter().map(|&v| i32::from(v as i16)).collect(),
        "INT32" => contents.int_contents = numbers(4).iter().map(|&v| v as i32).collect(),
        "INT64" => contents.int64_contents = numbers(8).iter().map(|&v| v as i64).collect(),
        "UINT8" => contents.uint_contents = numbers(1).iter().map(|&v| v as u32).collect(),
        "UINT16" => contents.uint_contents = numbers(2).iter().map(|&v| v as u32).collect(),
        "UINT32" => contents.uint_contents = numbers(4).iter().map(|&v| v as u32).collect(),
        "UINT64" => contents.uint64_contents = numbers(8),
        "FP32" => contents.fp32_contents = numbers(4).iter().map(|&v| f32::from_bits(v as u32)).collect(),
        "FP64" => contents.fp64_contents = numbers(8).iter().map(|&v| f64::from_bits(v)).collect(),
        "BYTES" => contents.bytes_contents = vec![Bytes::from_static(b"a\0b"), Bytes::new()],
        _ => return None,
    }
    Some(contents)
}

/// The answer has this one output, raw, and `contents` is never used.
fn check(answer: &ModelInferResponse, datatype: &str, shape: &[i64], bytes: &Bytes, what: &str) {
    assert_eq!(answer.outputs.len(), 1, "{what}: {answer:?}");
    let tensor = &answer.outputs[0];
    assert_eq!((tensor.name.as_str(), tensor.datatype.as_str()), ("OUTPUT0", datatype), "{what}");
    assert_eq!(tensor.shape, shape, "{what}");
    assert!(tensor.contents.is_none() && tensor.parameters.is_empty(), "{what}: {tensor:?}");
    assert_eq!(answer.raw_output_contents, std::slice::from_ref(bytes), "{what}");
}

#[test]
fn every_datatype_raw_and_typed() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.every_datatype();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        for datatype in TYPES {
            let bytes = two_elements(datatype.name, datatype.size);
            let lower = datatype.name.to_lowercase();
            for (model, shape) in [(format!("identity_{lower}"), [1, 2]), (format!("batch_{lower}"), [2, 1])] {
                let request = ModelInferRequest {
                    inputs: vec![raw("INPUT0", datatype.name, &shape)],
                    raw_input_contents: vec![bytes.clone()],
                    ..infer(&model)
                };
                let answer = grpc.call("ModelInfer", &request).unwrap_or_else(|status| panic!("{model}: {status:?}"));
                check(&answer, datatype.name, &shape, &bytes, &model);
                assert_eq!((answer.model_name.as_str(), answer.model_version.as_str()), (model.as_str(), "1"));
                assert_eq!(answer.id, "");

                let Some(contents) = contents_of(datatype.name, &bytes) else { continue };
                let input = typed("INPUT0", datatype.name, &shape, contents);
                let request = ModelInferRequest { inputs: vec![input], ..infer(&model) };
                let answer = grpc.call("ModelInfer", &request).unwrap_or_else(|status| panic!("{model}: {status:?}"));
                check(&answer, datatype.name, &shape, &bytes, &format!("{model}, typed"));
            }
            // No elements: raw with an empty entry, and typed with an empty list.
            let empty = [0, 5];
            let model = format!("identity_{lower}");
            let request = ModelInferRequest {
                inputs: vec![raw("INPUT0", datatype.name, &empty)],
                raw_input_contents: vec![Bytes::new()],
                ..infer(&model)
            };
            let answer = grpc.call("ModelInfer", &request).unwrap_or_else(|status| panic!("{model}: {status:?}"));
            check(&answer, datatype.name, &empty, &Bytes::new(), &format!("{model}, empty"));
            let input = typed("INPUT0", datatype.name, &empty, InferTensorContents::default());
            let request = ModelInferRequest { inputs: vec![input], ..infer(&model) };
            let answer = grpc.call("ModelInfer", &request).unwrap_or_else(|status| panic!("{model}: {status:?}"));
            check(&answer, datatype.name, &empty, &Bytes::new(), &format!("{model}, empty and typed"));
        }
        server.stop();
    });
}

#[test]
fn small_integers_keep_their_low_bytes() {
    let repository = Repository::new();
    repository.every_datatype();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let contents = InferTensorContents { int_contents: vec![0x1_02, -1], ..Default::default() };
    let request =
        ModelInferRequest { inputs: vec![typed("INPUT0", "INT8", &[1, 2], contents)], ..infer("identity_int8") };
    let answer: ModelInferResponse = grpc.call("ModelInfer", &request).expect("an answer");
    assert_eq!(answer.raw_output_contents[0].as_ref(), [2, 255]);
    server.stop();
}

#[test]
fn ids_parameters_and_requested_outputs() {
    let repository = Repository::new();
    repository.identity("three", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1"), Pair::new("FP64", "1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let mut request = ModelInferRequest {
        id: "my id".into(),
        inputs: vec![raw("INPUT2", "FP64", &[1]), raw("INPUT0", "INT32", &[1]), raw("INPUT1", "BYTES", &[1])],
        // Entries follow the inputs of the request, not of the configuration; a surplus one is ignored.
        raw_input_contents: ["12345678", "abcd", "\x01\0\0\0x", "surplus"].map(Bytes::from).to_vec(),
        parameters: parameters([
            ("mine", ParameterChoice::StringParam("x".into())),
            ("number", ParameterChoice::Int64Param(5)),
            ("flag", ParameterChoice::BoolParam(true)),
            ("share", ParameterChoice::DoubleParam(0.5)),
            ("priority", ParameterChoice::Uint64Param(0)),
            ("timeout", ParameterChoice::Int64Param(0)),
            // Without a meaning on this port.
            ("binary_data_output", ParameterChoice::BoolParam(true)),
        ]),
        ..infer("three")
    };
    let answer: ModelInferResponse = grpc.call("ModelInfer", &request).expect("an answer");
    assert_eq!(answer.id, "my id");
    let expected = parameters([
        ("param0", ParameterChoice::StringParam("an example string parameter".into())),
        ("param1", ParameterChoice::Int64Param(42)),
        ("param2", ParameterChoice::BoolParam(false)),
        ("param3", ParameterChoice::DoubleParam(123.123)),
    ]);
    assert_eq!(answer.parameters, expected);
    let by_name = |answer: &ModelInferResponse, name: &str| {
        let index = answer.outputs.iter().position(|output| output.name == name);
        index.map(|index| answer.raw_output_contents[index].clone())
    };
    assert_eq!(by_name(&answer, "OUTPUT0").as_deref(), Some(&b"abcd"[..]));
    assert_eq!(by_name(&answer, "OUTPUT1").as_deref(), Some(&b"\x01\0\0\0x"[..]));
    assert_eq!(by_name(&answer, "OUTPUT2").as_deref(), Some(&b"12345678"[..]));

    request.outputs = vec![output("OUTPUT2")];
    let answer: ModelInferResponse = grpc.call("ModelInfer", &request).expect("an answer");
    assert_eq!((answer.outputs.len(), answer.raw_output_contents.len()), (1, 1));
    assert_eq!(by_name(&answer, "OUTPUT2").as_deref(), Some(&b"12345678"[..]));
    server.stop();
}

#[test]
fn classes_instead_of_a_tensor() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1").labels()]).file("plain/labels.txt", "a\nb\nc\n");
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let mut wanted = output("OUTPUT0");
    wanted.parameters = parameters([("classification", ParameterChoice::Int64Param(2))]);
    let request = ModelInferRequest { outputs: vec![wanted], ..numbers("plain", "", &[5, -1, 9]) };
    let answer: ModelInferResponse = grpc.call("ModelInfer", &request).expect("an answer");
    let expected = Bytes::from_static(b"\x05\x00\x00\x009:2:c\x05\x00\x00\x005:0:a");
    check(&answer, "BYTES", &[2], &expected, "classes");
    server.stop();
}

#[test]
fn large_tensors_arrive_unchanged() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("two", 0, &[Pair::new("UINT8", "-1"), Pair::new("FP32", "-1")]);
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        for (odd, even) in [(1, 4), (16_383, 16_384), (602_113, 602_112), (9_000_001, 25_000_000usize)] {
            let tensor = |size: usize, key: usize| -> Bytes { (0..size).map(|i| (i ^ (i >> 9) ^ key) as u8).collect() };
            let request = ModelInferRequest {
                inputs: vec![raw("INPUT0", "UINT8", &[odd as i64]), raw("INPUT1", "FP32", &[even as i64 / 4])],
                raw_input_contents: vec![tensor(odd, 1), tensor(even, 2)],
                ..infer("two")
            };
            for _ in 0..2 {
                let answer: ModelInferResponse =
                    grpc.call("ModelInfer", &request).unwrap_or_else(|status| panic!("{odd} + {even}: {status:?}"));
                assert!(answer.raw_output_contents == request.raw_input_contents, "{odd} + {even} bytes changed");
            }
        }
        server.stop();
    });
}

/// A data type may stand behind the elements that it is of; where they are many, it must not.
#[test]
fn elements_may_come_before_their_type() {
    let repository = Repository::new();
    repository.identity("narrow", 0, &[Pair::new("INT8", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let mut ask = |values: Vec<i32>| {
        let count = values.len() as i64;
        let contents = InferTensorContents { int_contents: values, ..Default::default() };
        // Two messages behind each other are one with the fields of both.
        let elements = InferInputTensor { contents: Some(contents), ..Default::default() };
        let (name, datatype, shape) = ("INPUT0".into(), "INT8".into(), vec![count]);
        let described = InferInputTensor { name, datatype, shape, ..Default::default() };
        let input = [elements.encode_to_vec(), described.encode_to_vec()].concat();
        let mut message = ModelInferRequest { model_name: "narrow".into(), ..Default::default() }.encode_to_vec();
        prost::encoding::encode_key(5, prost::encoding::WireType::LengthDelimited, &mut message);
        prost::encoding::encode_varint(input.len() as u64, &mut message);
        message.extend(input);
        grpc.exchange(&format!("{SERVICE}ModelInfer"), &[], &[frame_bytes(0, &message)])
    };
    let reply = ask(vec![1, -2, 300]);
    assert_eq!(reply.status.code, code::OK, "{:?}", reply.status);
    let answer: ModelInferResponse = decode(&reply.messages[0]);
    assert_eq!(answer.raw_output_contents[0].as_ref(), [1, 254, 44]);
    let status = ask(vec![1; 70_000]).status;
    let text = "the datatype of input tensor 'INPUT0' for model 'narrow' must stand before its contents in the message";
    assert_eq!((status.code, status.message.as_str()), (code::INVALID_ARGUMENT, text));
    server.stop();
}
