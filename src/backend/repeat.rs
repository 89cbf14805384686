//! `repeat`: one request yields as many responses as its input has elements (contract/backends.md section 2).
//!
//! Each request is answered by a thread of its own, so that responses may come before and after the request's release,
//! which is when the instance is free again.

use std::sync::Arc;
use std::time::Duration;

use super::responders::Responders;
use super::vectors::{Declared, demand, demand_all, elements, input, single};
use super::{Backend, Instance, InstanceContext, Model, ModelContext};
use nereid_clock::now_ns;
use nereid_observe::statistics::Execution;
use nereid_request::{DataType, Request, Response, ResponseFactory, Status, Text, format_shape};
use nereid_scheduler::Payload;
use nereid_wire::inference::ModelConfig;

/// The backend; its models share nothing.
#[derive(Debug, Default)]
pub struct RepeatBackend;

impl Backend for RepeatBackend {
    fn name(&self) -> &str {
        "repeat"
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        check(&context.config)
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        check(&context.config)?;
        Ok(Arc::new(RepeatModel))
    }
}

struct RepeatModel;

impl Model for RepeatModel {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(RepeatInstance { responders: Responders::new(&context.name), context }))
    }
}

/// Positions in the configuration, which the checks enforce.
const IN: usize = 0;
const DELAY: usize = 1;
const WAIT: usize = 2;

fn check(config: &ModelConfig) -> Result<(), Status> {
    demand_all(&config.input)?;
    demand(config.max_batch_size == 0, || "repeat backend only supports models with max_batch_size == 0".to_owned())?;
    let (inputs, outputs) = (&config.input, &config.output);
    demand(inputs.len() == 3, || format!("expected 3 inputs, got {}", inputs.len()))?;
    demand(outputs.len() == 2, || format!("expected 2 outputs, got {}", outputs.len()))?;
    let inputs: Vec<Declared<'_>> = inputs
        .iter()
        .map(|input| Declared { name: &input.name, data_type: input.data_type, dims: &input.dims })
        .collect();
    let outputs: Vec<Declared<'_>> = outputs
        .iter()
        .map(|output| Declared { name: &output.name, data_type: output.data_type, dims: &output.dims })
        .collect();
    let ([values, delays, wait], [out, idx]) = (&inputs[..], &outputs[..]) else { return Ok(()) };
    values.check_name("IN", "first input")?;
    delays.check_name("DELAY", "second input")?;
    wait.check_name("WAIT", "third input")?;
    out.check_name("OUT", "first output")?;
    idx.check_name("IDX", "second output")?;
    let shown = format_shape(values.dims);
    demand(values.dims.len() == 1, || format!("expected IN shape to have one dimension, got {shown}"))?;
    same_shape(values.dims, delays.dims)?;
    wait.check_single()?;
    out.check_single()?;
    idx.check_single()?;
    values.check_type(DataType::Int32)?;
    delays.check_type(DataType::Uint32)?;
    wait.check_type(DataType::Uint32)?;
    out.check_type(DataType::Int32)?;
    idx.check_type(DataType::Uint32)
}

fn same_shape(values: &[i64], delays: &[i64]) -> Result<(), Status> {
    demand(values == delays, || {
        format!("expected IN and DELAY shape to match, got {} and {}", format_shape(values), format_shape(delays))
    })
}

struct RepeatInstance {
    /// Declared first, dropped first: the responding threads end before the instance does.
    responders: Responders,
    context: InstanceContext,
}

/// The work of one thread.
struct Task {
    id: Text,
    responses: ResponseFactory,
    /// Value and delay in ms of each response.
    steps: Vec<([u8; 4], u32)>,
}

impl Task {
    fn read(request: &Request) -> Result<Task, Status> {
        let (values, delays) = (input(request, IN, "IN")?, input(request, DELAY, "DELAY")?);
        same_shape(&values.model_shape, &delays.model_shape)?;
        let delays = elements(delays).into_iter().map(u32::from_le_bytes);
        let steps = elements(values).into_iter().zip(delays).collect();
        Ok(Task { id: request.id.clone(), responses: request.responses(), steps })
    }

    fn run(self) {
        for (index, (value, delay_ms)) in self.steps.iter().enumerate() {
            sleep_ms(*delay_ms);
            let response = self.response(index as u32, *value);
            // After a failure the next response may get memory again.
            let response = response.unwrap_or_else(|status| Response::failed(self.id.clone(), status));
            self.responses.send(response, false);
        }
        self.responses.send_end();
    }

    fn response(&self, index: u32, value: [u8; 4]) -> Result<Response, Status> {
        let mut response = Response::new(self.id.clone());
        response.outputs.push(single(&self.responses, (0, "OUT"), DataType::Int32, &[1], value)?);
        response.outputs.push(single(&self.responses, (1, "IDX"), DataType::Uint32, &[1], index.to_le_bytes())?);
        Ok(response)
    }
}

fn sleep_ms(ms: u32) {
    if ms > 0 {
        std::thread::sleep(Duration::from_millis(u64::from(ms)));
    }
}

fn wait_ms(request: &Request) -> u32 {
    let wait = input(request, WAIT, "WAIT").ok().map(elements);
    wait.and_then(|wait| wait.first().copied()).map_or(0, u32::from_le_bytes)
}

impl Instance for RepeatInstance {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        for request in payload.take() {
            let start_ns = now_ns();
            let started = Task::read(&request).and_then(|task| self.responders.start(move || task.run()));
            if let Err(status) = started {
                request.fail(status);
            }
            sleep_ms(wait_ms(&request));
            let end_ns = now_ns();
            let execution = Execution {
                exec_start_ns: start_ns,
                compute_start_ns: start_ns,
                compute_end_ns: end_ns,
                exec_end_ns: end_ns,
            };
            self.context.report_success(&request, &execution);
            self.context.report_batch(1, &execution);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
