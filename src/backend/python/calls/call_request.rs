//! A worker's call of another model, read from its message and turned into a request.

use std::borrow::Cow;

use super::super::answers::read_parameters;
use super::super::link::Link;
use super::super::marshal::{Malformed, Value};
use super::super::tensors::ReceivedTensor;
use nereid_memory::Pool;
use nereid_request::{CorrelationId, InputTensor, Request, Status, Text};
use nereid_scheduler::validate::{add_input, add_output};

/// (call, slot, model, version, id, correlation, flags, timeout, parameters, requested outputs, inputs, trace,
/// decoupled, preferred memory).
pub struct CallRequest<'a> {
    pub number: u64,
    pub slot: u32,
    pub model: Text,
    pub version: i64,
    pub is_decoupled: bool,
    /// The token of the parent request, for the trace.
    pub trace: Option<u64>,
    /// The preferred place of outputs: the number of a type of memory, and the number of a device.
    pub preferred: Option<(u32, i64)>,
    /// Values from the model, which may be out of range.
    id: Cow<'a, str>,
    correlation: &'a Value<'a>,
    flags: &'a Value<'a>,
    timeout: &'a Value<'a>,
    parameters: &'a Value<'a>,
    outputs: &'a [Value<'a>],
    inputs: &'a [Value<'a>],
}

impl<'a> CallRequest<'a> {
    pub fn read(values: &'a [Value<'a>]) -> Result<CallRequest<'a>, Malformed> {
        let [
            number,
            slot,
            model,
            version,
            id,
            correlation,
            flags,
            timeout,
            parameters,
            outputs,
            inputs,
            trace,
            decoupled,
            preferred,
        ] = values
        else {
            return Err(Malformed::Form);
        };
        Ok(CallRequest {
            number: number.as_int()?,
            slot: slot.as_int()?,
            model: Text::from(&*model.as_text()?),
            version: version.as_int()?,
            is_decoupled: decoupled.as_bool()?,
            trace: trace.optional(Value::as_int)?,
            preferred: preferred.optional(|preferred| {
                let [memory_type, device] = preferred.as_tuple()?;
                Ok((memory_type.as_int()?, device.as_int()?))
            })?,
            id: id.as_text()?,
            correlation,
            flags,
            timeout,
            parameters,
            outputs: outputs.as_sequence()?,
            inputs: inputs.as_sequence()?,
        })
    }

    /// The inputs. Each is read, also after an error, so that the memory of all is released.
    pub fn inputs(&self, link: &Link, pool: &Pool) -> Result<Vec<InputTensor>, Status> {
        let input = |value: &'a Value<'a>| {
            let received = ReceivedTensor::read(value).map_err(|malformed| Status::internal(malformed.to_string()))?;
            let (name, datatype, shape) = (received.name.clone(), received.datatype, received.shape.clone());
            let mut tensor = InputTensor::new(name, datatype, shape);
            match received.on_device(link)? {
                Some(slice) => tensor.placement.get_or_insert_default().on_device = Some(slice),
                None => tensor.data.push(received.elements(link, |len| Ok(pool.get(len)?.into()))?),
            }
            Ok(tensor)
        };
        let inputs: Vec<Result<InputTensor, Status>> = self.inputs.iter().map(input).collect();
        inputs.into_iter().collect()
    }

    /// Fills `request` with the call.
    pub fn fill(&self, request: &mut Request, inputs: Result<Vec<InputTensor>, Status>) -> Result<(), Status> {
        let out_of_range = |what: &'static str| move |_| Status::invalid(format!("the {what} is out of range"));
        request.id = Text::from(&*self.id);
        request.flags = self.flags.as_int().map_err(out_of_range("value of the request's flags"))?;
        request.queueing.timeout_us = self.timeout.as_int().map_err(out_of_range("request's timeout"))?;
        request.correlation_id = match self.correlation {
            Value::Int(0) => CorrelationId::None,
            Value::Int(_) => {
                CorrelationId::Number(self.correlation.as_int().map_err(out_of_range("request's correlation id"))?)
            }
            text => {
                CorrelationId::Text(Text::from(&*text.as_text().map_err(out_of_range("request's correlation id"))?))
            }
        };
        request.parameters = read_parameters(self.parameters).map_err(out_of_range("value of a parameter"))?;
        for input in inputs? {
            add_input(request, input)?;
        }
        for name in self.outputs {
            let name = Text::from(&*name.as_text().map_err(out_of_range("name of an output"))?);
            // Models treat them as a set.
            if !request.outputs.iter().any(|output| output.name == name) {
                add_output(request, name)?;
            }
        }
        Ok(())
    }
}

/// The error of a failed call, as its model gets it. The code is kept where a retry may help.
pub fn failed(model: &Text, status: Status) -> Status {
    let text = format!("Model {model} - Error when running inference: {}", status.message);
    match status.code {
        code @ (nereid_request::Code::Unavailable | nereid_request::Code::Cancelled) => {
            Status { code, refusal: None, message: text.into() }
        }
        _ => Status::internal(text),
    }
}

pub fn callee_is_decoupled(model: &Text) -> Status {
    Status::internal(format!(
        "Model {model} is using the decoupled. The current BLS request call doesn't support models using the decoupled \
         transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled \
         models.'"
    ))
}
