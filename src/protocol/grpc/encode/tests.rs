//! What is written must decode with prost to what was meant, and large tensors must not move.

use std::collections::BTreeMap;

use super::*;
use crate::grpc::{Limits, MessageReader, Mode};
use nereid_memory::BlockMut;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::model_infer_response::InferOutputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

const VALUES: [(&str, Value<'static>); 9] = [
    ("", Value::Bool(true)),
    ("double", Value::Double(-0.5)),
    ("empty", Value::String("")),
    ("false", Value::Bool(false)),
    ("negative", Value::Int64(-1)),
    ("string", Value::String("größe")),
    ("unset", Value::Unset),
    ("unsigned", Value::Uint64(u64::MAX)),
    ("zero", Value::Int64(0)),
];

fn map(values: &[(&str, Value<'_>)]) -> BTreeMap<String, InferParameter> {
    let choice = |value| match value {
        Value::Unset => None,
        Value::Bool(value) => Some(ParameterChoice::BoolParam(value)),
        Value::Int64(value) => Some(ParameterChoice::Int64Param(value)),
        Value::String(value) => Some(ParameterChoice::StringParam(value.into())),
        Value::Double(value) => Some(ParameterChoice::DoubleParam(value)),
        Value::Uint64(value) => Some(ParameterChoice::Uint64Param(value)),
    };
    values.iter().map(|&(key, value)| (key.into(), InferParameter { parameter_choice: choice(value) })).collect()
}

/// Takes the one message out of `gather`, and its prefix apart.
fn message(gather: &mut Gather) -> Vec<u8> {
    assert_eq!(gather.len(), gather.to_vec().len());
    let bytes = gather.to_vec();
    gather.clear();
    assert_eq!(bytes[0], 0);
    assert_eq!(u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - 5);
    bytes[5..].to_vec()
}

fn slices() -> Vec<Slice> {
    [0usize, 1, 127, 128, 1023, 1024, 1025, 40_000]
        .into_iter()
        .map(|n| Slice::copy_of(&(0..n).map(|at| (at + n) as u8).collect::<Vec<_>>()))
        .collect()
}

const SHAPES: [&[i64]; 4] = [&[], &[1], &[-1, 0, i64::MAX, i64::MIN], &[127, 128, 16_384]];

#[test]
fn responses_decode_to_what_was_meant() {
    let (pool, slices) = (Pool::new(1 << 26), slices());
    let (mut encoder, mut gather) = (Encoder::new(), Gather::new());
    // Every count of parameters and outputs, to move every length across the sizes of its varint.
    for count in 0..=slices.len() {
        for name in ["", "m", &"long ".repeat(40)] {
            let outputs: Vec<OutputTensor> = slices[..count]
                .iter()
                .enumerate()
                .map(|(at, data)| OutputTensor { name, datatype: "FP32", shape: SHAPES[at % SHAPES.len()], data })
                .collect();
            let parameters = &VALUES[..count];
            let expected = ModelInferResponse {
                model_name: name.into(),
                model_version: "1".into(),
                id: "".into(),
                parameters: map(parameters),
                outputs: outputs
                    .iter()
                    .map(|output| InferOutputTensor {
                        name: name.into(),
                        datatype: "FP32".into(),
                        shape: output.shape.into(),
                        ..Default::default()
                    })
                    .collect(),
                raw_output_contents: outputs.iter().map(|output| Bytes::copy_from_slice(output.data)).collect(),
            };
            let response = InferResponse {
                model_name: name,
                model_version: "1",
                id: "",
                parameters: parameters.iter().copied(),
                outputs: outputs.iter().copied(),
            };
            encoder.infer_response(&response, &pool, &mut gather).unwrap();
            assert_eq!(ModelInferResponse::decode(&*message(&mut gather)), Ok(expected.clone()));
            for error_message in ["", "it failed"] {
                encoder.stream_response(error_message, &response, &pool, &mut gather).unwrap();
                let expected = ModelStreamInferResponse {
                    error_message: error_message.into(),
                    infer_response: Some(expected.clone()),
                };
                assert_eq!(ModelStreamInferResponse::decode(&*message(&mut gather)), Ok(expected));
            }
        }
    }
}

#[test]
fn large_tensors_are_not_copied() {
    let (pool, slices) = (Pool::new(1 << 26), slices());
    let mut gather = Gather::new();
    let outputs = slices.iter().map(|data| OutputTensor { name: "o", datatype: "UINT8", shape: &[1], data });
    let parameters = std::iter::empty();
    let response = InferResponse { model_name: "m", model_version: "1", id: "7", parameters, outputs };
    Encoder::new().infer_response(&response, &pool, &mut gather).unwrap();
    let mut pieces = Vec::new();
    gather.take(usize::MAX, &mut pieces);
    for slice in &slices {
        let shared = pieces.iter().any(|piece| piece.same_memory(slice));
        assert_eq!(shared, slice.len() >= COPY_BELOW, "{} bytes", slice.len());
    }
}

#[test]
fn messages_follow_each_other() {
    let pool = Pool::new(1 << 20);
    let (mut encoder, mut gather) = (Encoder::new(), Gather::new());
    let names = ["first", "", "third"];
    for name in names {
        let message = ModelInferResponse { model_name: name.into(), ..Default::default() };
        encoder.message(&message, &pool, &mut gather).unwrap();
    }
    let bytes = gather.to_vec();
    let mut reader = MessageReader::new(pool, Limits::default(), Mode::Collect);
    let mut rest = &bytes[..];
    for name in names {
        let taken = reader.feed(rest).unwrap();
        rest = &rest[taken..];
        let Some(crate::grpc::Message::Collected(slice)) = reader.next_message() else { panic!() };
        assert_eq!(decode::<ModelInferResponse>(slice).unwrap().model_name, name);
    }
    assert!(rest.is_empty());
}

#[test]
fn decoded_tensors_lie_in_the_message() {
    let raw = Bytes::from(vec![5; 3000]);
    let slice =
        Slice::copy_of(&ModelInferResponse { raw_output_contents: vec![raw], ..Default::default() }.encode_to_vec());
    let message: ModelInferResponse = decode(slice.clone()).unwrap();
    assert!(slice.as_ptr_range().contains(&message.raw_output_contents[0].as_ptr()));
    assert!(decode::<ModelInferResponse>(Slice::from_static(b"\x0a\x05")).is_err());
}

#[test]
fn requests_decode_to_what_was_meant() {
    let (pool, slices) = (Pool::new(1 << 26), slices());
    let (mut encoder, mut gather) = (Encoder::new(), Gather::new());
    for count in 0..=slices.len() {
        let inputs: Vec<InputTensor> = slices[..count]
            .iter()
            .enumerate()
            .map(|(at, data)| InputTensor {
                name: "i",
                datatype: "INT8",
                shape: SHAPES[at % SHAPES.len()],
                parameters: &VALUES[..at],
                data: (at % 3 != 1).then_some(data),
            })
            .collect();
        let outputs: Vec<RequestedOutput> =
            (0..count).map(|at| RequestedOutput { name: "o", parameters: &VALUES[at..] }).collect();
        let expected = ModelInferRequest {
            model_name: "m".into(),
            model_version: "".into(),
            id: "id".into(),
            parameters: map(&VALUES[..count]),
            inputs: inputs
                .iter()
                .map(|input| InferInputTensor {
                    name: "i".into(),
                    datatype: "INT8".into(),
                    shape: input.shape.into(),
                    parameters: map(input.parameters),
                    contents: None,
                })
                .collect(),
            outputs: outputs
                .iter()
                .map(|output| InferRequestedOutputTensor { name: "o".into(), parameters: map(output.parameters) })
                .collect(),
            raw_input_contents: inputs.iter().filter_map(|input| Some(Bytes::copy_from_slice(input.data?))).collect(),
        };
        let request = InferRequestParts {
            model_name: "m",
            model_version: "",
            id: "id",
            parameters: VALUES[..count].iter().copied(),
            inputs: inputs.iter().copied(),
            outputs: outputs.iter().copied(),
        };
        encoder.infer_request(&request, &pool, &mut gather).unwrap();
        assert_eq!(ModelInferRequest::decode(&*message(&mut gather)), Ok(expected));
    }
}

#[test]
fn the_limit_of_grpc_is_kept_to_the_byte() {
    let pool = Pool::new(1 << 20);
    let (mut encoder, mut gather) = (Encoder::new(), Gather::new());
    let block = BlockMut::unpooled(64 << 20).freeze();
    let mut encode = |last: usize| {
        let rest = block.window(0..last);
        let data = std::iter::repeat_n(&block, 31).chain([&rest]);
        let outputs = data.map(|data| OutputTensor { name: "", datatype: "", shape: &[], data });
        let parameters = std::iter::empty();
        let response = InferResponse { model_name: "", model_version: "", id: "", parameters, outputs };
        let result = encoder.infer_response(&response, &pool, &mut gather);
        (result, gather.len())
    };
    // Besides its tensor, an output takes 2 bytes for itself, 1 for the tensor's key and 4 for its length.
    let last = MESSAGE_BYTES_MAX - 31 * (64 << 20) - 32 * 7;
    let (result, len) = encode(last + 1);
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), "Response has byte size 2147483648 which exceeds gRPC's byte size limit 2147483647.");
    assert_eq!((TooLarge::CODE, len), (Code::InvalidArgument, 0), "nothing is written of what cannot be sent");
    assert_eq!(encode(last), (Ok(()), MESSAGE_BYTES_MAX + PREFIX_BYTES));
}
