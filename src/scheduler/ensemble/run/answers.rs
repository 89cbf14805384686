//! The use of values: responses of the ensemble, its end, and its statistics.

use std::sync::{Arc, Weak};

use super::{Run, RunState, lock};
use crate::ensemble::flow::{Credits, Sequence, Value, add_credits};
use crate::ensemble::run::InFlight;
use crate::ensemble::shapes::adapt;
use nereid_clock::now_ns;
use nereid_observe::log::verbose;
use nereid_observe::statistics::{FailureReason, Sums};
use nereid_request::{
    CorrelationId, Credit, OutputTensor, Parameters, Response, SEQUENCE_END, SEQUENCE_START, Status, Text, TimeSums,
    Value as Parameter,
};

/// The same sums in the type of the statistics.
pub(super) fn counted(sums: &TimeSums) -> Sums {
    Sums {
        queue_ns: sums.queue_ns,
        compute_input_ns: sums.compute_input_ns,
        compute_infer_ns: sums.compute_infer_ns,
        compute_output_ns: sums.compute_output_ns,
    }
}

impl Run {
    /// The tensors that a response of a step makes. One that is not in the response counts as left out.
    pub(super) fn values_of(
        &self,
        one: &InFlight,
        response: &mut Response,
    ) -> Result<Vec<(usize, Option<Value>)>, Status> {
        let plan = &self.shared.plan;
        let is_batched = self.models[one.step].as_ref().is_some_and(|model| model.spec().is_batching());
        let (sequence, is_named) = sequence_of(response, &one.sequence)?;
        let mut credits = one.credits.clone();
        credits.extend(response.credit.take().map(Arc::new));
        let make = |(at, (name, tensor)): (usize, &(Text, usize))| {
            // The request to the step has named them in this order, and most responses keep it.
            let likely = response.outputs.get(at).filter(|output| output.name == *name);
            let output = likely.or_else(|| response.outputs.iter().find(|output| output.name == *name));
            if output.is_none() {
                verbose!(1, "Composing models did not output tensor {}", plan.tensors[*tensor].name);
            }
            let value = output.map(|output| Value {
                datatype: output.datatype,
                shape: output.shape.clone(),
                data: output.data.clone(),
                on_device: output.on_device.clone(),
                is_batched,
                sequence: Some(sequence.clone()),
                is_sequence_overridden: is_named || one.is_sequence_overridden,
                credits: credits.clone(),
            });
            (*tensor, value)
        };
        Ok(plan.steps[one.step].outputs.iter().enumerate().map(make).collect())
    }

    /// Sends a response of the ensemble.
    pub(super) fn respond(&self, state: &mut RunState, values: &[Option<Value>], last: bool) {
        let plan = &self.shared.plan;
        let mut response = Response::new(self.request.id.clone());
        let mut credits = Credits::new();
        for (&index, value) in self.route.outputs.iter().zip(values) {
            let Some(value) = value else { continue };
            let output = &plan.outputs[index];
            let made = adapt(&value.shape, value.is_batched, plan.is_batching, output.made_dims());
            response.outputs.push(OutputTensor {
                name: output.name.clone(),
                datatype: value.datatype,
                shape: output.shape.for_client(&made, plan.is_batching),
                data: value.data.clone(),
                index,
                on_device: value.on_device.clone(),
            });
            if let Some(sequence) = &value.sequence {
                push_sequence(&mut response.parameters, sequence);
            }
            add_credits(&mut credits, &value.credits);
        }
        // Where responses are not limited, no delivery is reported either.
        if self.request.limit_of_responses().is_some() {
            let bytes = response.outputs.iter().map(OutputTensor::byte_size).fold(0, usize::saturating_add);
            response.credit = Credit::passed_on(&credits, bytes);
        }
        state.responses += 1;
        if last {
            self.close(state);
            self.report_success();
        }
        self.responses.send(response, last);
    }

    /// Ends the run: no step is in flight, and none will begin.
    pub(super) fn end(&self, state: &mut RunState) {
        self.close(state);
        let prefix = format!("in ensemble '{}', ", self.shared.plan.name);
        let failure = match state.error.take() {
            Some(status) => Some(status),
            None if state.responses == 0 && !self.shared.plan.is_decoupled => {
                let text =
                    "unexpected deadlock, at least one output is not set while no more ensemble steps can be made";
                Some(Status::invalid(text).prefixed(&self.request.log_id()))
            }
            None => None,
        };
        match failure {
            Some(status) => {
                if self.request.is_counted() {
                    let started_ns = self.request.stamps.started_ns;
                    self.shared.statistics.request_failed(started_ns, now_ns(), FailureReason::Other);
                }
                let status = status.prefixed(&prefix);
                self.responses.send(Response::failed(self.request.id.clone(), status), true);
            }
            None => {
                self.report_success();
                self.responses.send_end();
            }
        }
    }

    fn close(&self, state: &mut RunState) {
        state.has_ended = true;
        // Steps may be released late; the values that they were made from need not wait for that.
        state.flow.clear();
        if let Some(timer_target) = state.timer_target.take() {
            *lock(&timer_target.0) = Weak::new();
        }
    }

    /// Counted before the last response is sent, so that a client that has it also sees it counted.
    fn report_success(&self) {
        if !self.request.is_counted() {
            return;
        }
        let sums = self.times.sums();
        *lock(&self.counted) = Some(sums);
        let duration_ns = now_ns().saturating_sub(self.request.stamps.started_ns);
        self.shared.statistics.composed_succeeded(duration_ns, self.request.batch_size, &counted(&sums));
        if let Some(times) = &self.request.links.times {
            times.add(&sums);
        }
    }
}

/// The sequence that a response names, else that of its request; and whether it named one. Flags that such a response
/// does not name are off.
fn sequence_of(response: &Response, request: &Sequence) -> Result<(Sequence, bool), Status> {
    let mut named = Sequence { id: request.id.clone(), flags: 0 };
    let mut is_named = false;
    for parameter in response.parameters.iter() {
        let name = parameter.name.as_bytes();
        match (name, &parameter.value) {
            (b"sequence_id", Parameter::Int(id)) => {
                named.id = if *id == 0 { CorrelationId::None } else { CorrelationId::Number(*id as u64) };
            }
            (b"sequence_id", Parameter::String(id)) => {
                named.id = if id.is_empty() { CorrelationId::None } else { CorrelationId::Text(id.clone()) };
            }
            (b"sequence_id", _) => {
                let text = "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or \
                            TRITONSERVER_PARAMETER_STRING";
                return Err(Status::invalid(text));
            }
            (b"sequence_start" | b"sequence_end", Parameter::Bool(on)) => {
                let flag = if name == b"sequence_start" { SEQUENCE_START } else { SEQUENCE_END };
                named.flags |= if *on { flag } else { 0 };
            }
            (b"sequence_start" | b"sequence_end", _) => {
                let name = &parameter.name;
                let text = format!("expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL");
                return Err(Status::invalid(text));
            }
            _ => continue,
        }
        is_named = true;
    }
    Ok((if is_named { named } else { request.clone() }, is_named))
}

/// contract/schedulers.md section 5, "response parameters".
fn push_sequence(parameters: &mut Parameters, sequence: &Sequence) {
    let id = match &sequence.id {
        CorrelationId::None => Parameter::Int(0),
        // A number beyond the signed ones keeps its bits.
        CorrelationId::Number(number) => Parameter::Int(*number as i64),
        CorrelationId::Text(text) => Parameter::String(text.clone()),
    };
    parameters.push(Text::from("sequence_id"), id);
    parameters.push(Text::from("sequence_start"), Parameter::Bool(sequence.flags & SEQUENCE_START != 0));
    parameters.push(Text::from("sequence_end"), Parameter::Bool(sequence.flags & SEQUENCE_END != 0));
}
