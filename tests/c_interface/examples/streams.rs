//! The decoupled examples over streams of gRPC.

use std::path::Path;

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelStreamInferResponse};
use serde_json::{Value, json};

use super::built::{backends, models};
use super::servers::{Asked, everywhere};
use nereid_test_support::grpc::{Exchange, Grpc, SERVICE, code, decode};

fn flag(directory: &Path) -> String {
    format!("--backend-directory={}", directory.display())
}

/// A request with one-dimensional inputs of 32 bits.
pub fn vectors(model: &str, id: &str, inputs: &[(&str, &str, &[i32])]) -> ModelInferRequest {
    let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into();
    let flag = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    ModelInferRequest {
        model_name: model.into(),
        id: id.into(),
        // The end is a message of its own.
        parameters: [("triton_enable_empty_final_response".to_owned(), flag)].into(),
        inputs: inputs
            .iter()
            .map(|(name, datatype, values)| InferInputTensor {
                name: (*name).into(),
                datatype: (*datatype).into(),
                shape: vec![values.len() as i64],
                ..Default::default()
            })
            .collect(),
        raw_input_contents: inputs.iter().map(|(_, _, values)| bytes(values)).collect(),
        ..Default::default()
    }
}

/// What came for a request: the first number of each output, "end", or the text of an error.
pub fn read(message: &Bytes) -> Value {
    let message: ModelStreamInferResponse = decode(message);
    if !message.error_message.is_empty() {
        return json!(message.error_message);
    }
    let inner = message.infer_response.unwrap_or_default();
    let first = |bytes: &Bytes| i32::from_le_bytes(bytes[..4].try_into().expect("a number"));
    let values: Vec<i32> = inner.raw_output_contents.iter().map(first).collect();
    if values.is_empty() { json!("end") } else { json!(values) }
}

pub fn open(grpc: &mut Grpc) -> Exchange {
    grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[])
}

/// The messages of a stream that carries one request.
pub fn all_of(asked: &Asked<'_>, request: &ModelInferRequest) -> Vec<Value> {
    let mut grpc = Grpc::connect(asked.server.grpc);
    let mut exchange = open(&mut grpc);
    grpc.send(&mut exchange, request);
    grpc.half_close(&mut exchange);
    let reply = grpc.finish(exchange);
    assert_eq!(reply.status.code, code::OK, "{:?}", reply.status);
    reply.messages.iter().map(read).collect()
}

fn repeats(values: &[i32], delays: &[i32], wait_ms: i32) -> ModelInferRequest {
    vectors("repeats", "r", &[("IN", "INT32", values), ("DELAY", "UINT32", delays), ("WAIT", "UINT32", &[wait_ms])])
}

#[test]
fn repeats_come_before_and_after_the_release() {
    let Some(directory) = backends() else { return };
    everywhere(models().path(), &[&flag(&directory)], |asked| {
        for (delays, wait_ms) in [([0, 0, 0], 0), ([0, 20, 20], 5), ([0, 0, 0], 30)] {
            let answers = all_of(asked, &repeats(&[7, -8, 9], &delays, wait_ms));
            assert_eq!(answers, [json!([7, 0]), json!([-8, 1]), json!([9, 2]), json!("end")]);
        }
        assert_eq!(all_of(asked, &repeats(&[], &[], 0)), [json!("end")]);
        let refused = all_of(asked, &repeats(&[1, 2], &[0], 0));
        let text = refused[0].as_str().unwrap_or_default();
        assert!(text.contains("expected IN and DELAY shape to match, got [2] and [1]"), "{refused:?}");
        let found = asked.statistics_until("repeats", |found| found["inference_stats"]["success"]["count"] == 4);
        assert_eq!(found["inference_stats"]["fail"]["count"], 1, "{found}");
        assert_eq!((&found["inference_count"], &found["execution_count"]), (&json!(4), &json!(4)), "{found}");
    });
}

#[test]
fn squares_are_counted_response_by_response() {
    let Some(directory) = backends() else { return };
    everywhere(models().path(), &[&flag(&directory)], |asked| {
        for count in [0, 1, 3, -5] {
            let mut expected = vec![json!([count]); usize::try_from(count).unwrap_or(0)];
            expected.push(json!("end"));
            assert_eq!(all_of(asked, &vectors("squares", "s", &[("IN", "INT32", &[count])])), expected);
        }
        let told = |found: &Value, index: &str| found["response_stats"][index]["success"]["count"].clone();
        let found = asked.statistics_until("squares", |found| told(found, "2") == 1);
        // Both requests with responses had a first one.
        assert_eq!(
            (told(&found, "0"), told(&found, "1"), told(&found, "2")),
            (json!(2), json!(1), json!(1)),
            "{found}"
        );
        assert_eq!(found["response_stats"]["3"], Value::Null, "{found}");
        assert_eq!(found["inference_stats"]["success"]["count"], 0, "{found}");
    });
}

#[test]
fn who_leaves_ends_the_work_for_him() {
    let Some(directory) = backends() else { return };
    let directory = flag(&directory);
    let flags = [&*directory, "--model-control-mode=explicit", "--load-model=repeats", "--load-model=squares"];
    everywhere(models().path(), &flags, |asked| {
        // At their pace, more responses than anybody waits for.
        let (values, delays) = (vec![7; 10_000], vec![100; 10_000]);
        let mut grpc = Grpc::connect(asked.server.grpc);
        let mut exchange = open(&mut grpc);
        grpc.send(&mut exchange, &repeats(&values, &delays, 0));
        assert_eq!(read(&grpc.next(&mut exchange).expect("a response")), json!([7, 0]));
        grpc.cancel(exchange);
        // A model is unloaded when its last request has ended.
        let unloaded = asked.peer().post("/v2/repository/models/repeats/unload", &[], b"{}");
        assert_eq!(unloaded.status, 200, "{}", unloaded.text());
        asked.server.wait_for_log("successfully unloaded 'repeats' version 1");

        // As fast as the model can, which is only for ours: the official server queues responses without a bound, and
        // where it cannot keep up with the model it does not get to the cancellation behind them.
        if !asked.is_ours {
            return;
        }
        let mut grpc = Grpc::connect(asked.server.grpc);
        let mut exchange = open(&mut grpc);
        grpc.send(&mut exchange, &vectors("squares", "s", &[("IN", "INT32", &[i32::MAX])]));
        assert_eq!(read(&grpc.next(&mut exchange).expect("a response")), json!([i32::MAX]));
        grpc.cancel(exchange);
        let cancelled = |found: &Value| {
            let responses = found["response_stats"].as_object().cloned().unwrap_or_default();
            responses.values().any(|response| response["cancel"]["count"] == 1)
        };
        asked.statistics_until("squares", cancelled);
    });
}
