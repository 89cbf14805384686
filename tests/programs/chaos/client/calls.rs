//! Requests over gRPC: unary calls, streams of several requests and several answers, sequences on a stream, and calls
//! that the client cancels.

use std::collections::HashMap;

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

use super::grpc::{Call, Channel, decode};
use super::vectors::{Part, Vector};
use super::{Broken, Outcome, Shared};
use crate::chaos::judge::{IN_STREAM, Refusal};
use nereid_test_support::random::Random;

const UNARY: [&str; 7] = ["plain", "batched", "echo", "chain", "generation", "flipping", "slow"];
const STREAMED: [&str; 6] = ["plain", "batched", "echo", "burst", "repeat", "generation"];
const CALLS_PER_CHANNEL: usize = 300;
const REQUESTS_PER_STREAM: usize = 8;

/// Runs `work` on channels, each for a while.
fn on_channels(shared: &Shared, what: &str, mut work: impl FnMut(&mut Channel) -> Result<(), Broken>) {
    while !shared.is_over() {
        let run = || -> Result<(), Broken> {
            let mut channel = Channel::connect(shared)?;
            for _ in 0..CALLS_PER_CHANNEL {
                work(&mut channel)?;
                if shared.is_over() {
                    break;
                }
                shared.pause();
            }
            Ok(())
        };
        let mut run = run;
        if let Err(broken) = run() {
            return shared.breaks(what, broken);
        }
    }
}

pub fn run_unary(shared: &Shared, mut random: Random) {
    on_channels(shared, "gRPC", |channel| {
        let model = UNARY[random.below(UNARY.len())];
        let vector = Vector::new(shared, model, &mut random);
        shared.asks(model);
        let outcome = match channel.call(&vector.message(None))? {
            Ok(bytes) => Ok(vector.check_message(shared, &decode::<ModelInferResponse>(bytes)?, &vector.values)),
            Err(refusal) => Err(refusal),
        };
        shared.ends(model, outcome);
        Ok(())
    });
}

/// A request on a stream, and how many of its responses have come.
struct Open {
    vector: Vector,
    seen: usize,
    /// One of the responses was an error; more may follow.
    failed: Option<Refusal>,
}

impl Open {
    fn message(&self) -> ModelInferRequest {
        if self.vector.model != "repeat" {
            return self.vector.message(None);
        }
        let tensor = |name: &str, datatype: &str, len: usize| InferInputTensor {
            name: name.into(),
            datatype: datatype.into(),
            shape: vec![len as i64],
            ..Default::default()
        };
        let len = self.vector.values.len();
        let choice = ParameterChoice::BoolParam(true);
        ModelInferRequest {
            model_name: "repeat".into(),
            id: self.vector.id.clone(),
            inputs: vec![tensor("IN", "INT32", len), tensor("DELAY", "UINT32", len), tensor("WAIT", "UINT32", 1)],
            raw_input_contents: vec![self.vector.bytes(), vec![0; 4 * len].into(), Bytes::from_static(&[0; 4])],
            parameters: [(
                "triton_enable_empty_final_response".to_owned(),
                InferParameter { parameter_choice: Some(choice) },
            )]
            .into(),
            ..Default::default()
        }
    }

    fn is_decoupled(&self) -> bool {
        matches!(self.vector.model, "burst" | "repeat")
    }

    /// Takes a response; `Some` if it ends the request.
    fn take(&mut self, shared: &Shared, answer: &ModelInferResponse) -> Option<Outcome<Result<(), String>>> {
        if !self.is_decoupled() {
            return Some(Ok(self.vector.check_message(shared, answer, &self.vector.values)));
        }
        let is_final = answer.parameters.get("triton_final_response").and_then(|value| value.parameter_choice.as_ref());
        let is_final = matches!(is_final, Some(ParameterChoice::BoolParam(true)));
        let is_end = answer.outputs.is_empty() && is_final;
        if let Some(refusal) = &self.failed {
            return is_end.then(|| Err(refusal.clone()));
        }
        if is_end {
            let all = self.vector.values.len();
            return Some(Ok(if self.seen == all { Ok(()) } else { Err(format!("{} of {all} responses", self.seen)) }));
        }
        let first = answer.raw_output_contents.first().map(|bytes| bytes.to_vec()).unwrap_or_default();
        let expected = self.vector.values.get(self.seen).map(|value| value.to_le_bytes().to_vec());
        if answer.model_name != self.vector.model || expected != Some(first) {
            return Some(Ok(Err(format!("response {} of {} is another's", self.seen, self.vector.id))));
        }
        self.seen += 1;
        None
    }
}

/// A stream whose requests are all sent at once; every one of them gets all of its responses, or a refusal.
fn stream(shared: &Shared, channel: &mut Channel, random: &mut Random) -> Result<(), Broken> {
    let count = 1 + random.below(REQUESTS_PER_STREAM);
    let requests: Vec<Open> = (0..count)
        .map(|_| {
            let model = STREAMED[random.below(STREAMED.len())];
            let len = random.below(12) + usize::from(!matches!(model, "burst" | "repeat"));
            Open { vector: Vector::of_len(shared, model, random, len), seen: 0, failed: None }
        })
        .collect();
    let messages: Vec<ModelInferRequest> = requests.iter().map(Open::message).collect();
    requests.iter().for_each(|request| shared.asks(request.vector.model));
    let mut call = channel.open("ModelStreamInfer")?;
    channel.send(&mut call, &messages, true);
    let mut open: HashMap<String, Open> =
        requests.into_iter().map(|request| (request.vector.id.clone(), request)).collect();
    while let Some(bytes) = channel.next(&mut call)? {
        let ModelStreamInferResponse { error_message, infer_response } = decode(bytes)?;
        let answer = infer_response.unwrap_or_default();
        let Some(mut request) = open.remove(&answer.id) else {
            shared.is_wrong(format!("a stream has a response for {:?}: {error_message:?}", answer.id));
            continue;
        };
        let refusal = Refusal { code: IN_STREAM, text: error_message };
        let end = match (refusal.text.is_empty(), request.is_decoupled()) {
            (true, _) => request.take(shared, &answer),
            (false, false) => Some(Err(refusal)),
            (false, true) => {
                request.failed = Some(refusal);
                None
            }
        };
        match end {
            Some(end) => {
                shared.ends(request.vector.model, end);
            }
            None => {
                open.insert(request.vector.id.clone(), request);
            }
        }
    }
    let status = channel.status(&mut call)?;
    for request in open.into_values() {
        match (&status, request.failed) {
            (Err(refusal), _) => {
                shared.ends(request.vector.model, Err(refusal.clone()));
            }
            (Ok(()), Some(refusal)) => {
                shared.ends(request.vector.model, Err(refusal));
            }
            (Ok(()), None) => shared.is_wrong(format!("a stream ends without the answer of {}", request.vector.id)),
        }
    }
    Ok(())
}

pub fn run_streams(shared: &Shared, mut random: Random) {
    on_channels(shared, "a stream of gRPC", |channel| stream(shared, channel, &mut random));
}

/// One sequence on one stream, a request after the answer of the one before.
fn sequence(shared: &Shared, channel: &mut Channel, random: &mut Random) -> Result<(), Broken> {
    let sequence = (random.next() >> 2) | 1;
    let (len, parts) = (1 + random.below(4), 2 + random.below(12));
    let mut sums = vec![0i32; len];
    let mut call = channel.open("ModelStreamInfer")?;
    for at in 0..parts {
        let vector = Vector::of_len(shared, "sums", random, len);
        sums.iter_mut().zip(&vector.values).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
        let part = Part { sequence, is_start: at == 0, is_end: at + 1 == parts };
        shared.asks("sums");
        channel.send(&mut call, &[vector.message(Some(part))], false);
        let outcome = match channel.next(&mut call)? {
            None => Err(end_of(channel, &mut call)?),
            Some(bytes) => {
                let ModelStreamInferResponse { error_message, infer_response } = decode(bytes)?;
                let answer = infer_response.unwrap_or_default();
                match error_message.is_empty() {
                    true => Ok(vector.check_message(shared, &answer, &sums)),
                    false => Err(Refusal { code: IN_STREAM, text: error_message }),
                }
            }
        };
        if !shared.ends("sums", outcome) {
            break;
        }
    }
    channel.send(&mut call, &[], true);
    while channel.next(&mut call)?.is_some() {}
    Ok(())
}

fn end_of(channel: &mut Channel, call: &mut Call) -> Result<Refusal, Broken> {
    match channel.status(call)? {
        Err(refusal) => Ok(refusal),
        Ok(()) => Err(Broken("the stream ends before its answer".to_owned())),
    }
}

pub fn run_sequences(shared: &Shared, mut random: Random) {
    on_channels(shared, "a sequence over gRPC", |channel| sequence(shared, channel, &mut random));
}

/// Calls and streams that are reset at once, or after their first response.
pub fn run_cancelling(shared: &Shared, mut random: Random) {
    on_channels(shared, "gRPC with cancellations", |channel| {
        let model = ["slow", "burst", "repeat", "echo"][random.below(4)];
        let len = if matches!(model, "burst" | "repeat") { 200 } else { 4 };
        let request = Open { vector: Vector::of_len(shared, model, &mut random, len), seen: 0, failed: None };
        shared.asks(model);
        let is_unary = !request.is_decoupled();
        let mut call = channel.open(if is_unary { "ModelInfer" } else { "ModelStreamInfer" })?;
        channel.send(&mut call, &[request.message()], is_unary);
        if !is_unary && random.below(2) == 0 {
            channel.next(&mut call)?;
        }
        channel.cancel(call);
        shared.leaves(model);
        shared.injects("calls cancelled");
        Ok(())
    });
}
