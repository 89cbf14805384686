//! `identity`: each requested `OUTPUT<i>` is `INPUT<i>` (contract/backends.md section 1).
//!
//! Nothing is copied: a response's outputs are the request's own bytes, which live until the response is sent. It never
//! blocks unless its configuration makes it sleep, so it measures the cost of everything around a model.

mod model;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use self::model::{Activities, IdentityModel, TensorPair};
use super::{Attributes, Backend, Instance, InstanceContext, Mobility, Model, ModelContext};
use nereid_clock::now_ns;
use nereid_memory::Slice;
use nereid_observe::metrics::Counter;
use nereid_observe::statistics::Execution;
use nereid_request::{
    ByNumber, DataType, OutputTensor, Parameter, Parameters, Request, Response, Shape, Status, Text, Value,
    element_count,
};
use nereid_scheduler::Payload;

/// The backend; its models share nothing.
#[derive(Debug, Default)]
pub struct IdentityBackend;

impl Backend for IdentityBackend {
    fn name(&self) -> &str {
        "identity"
    }

    fn attributes(&self) -> Attributes {
        Attributes { parallel_instance_loading: true, ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        IdentityModel::check(context).map(|_| ())
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(IdentityModel::open(&context, std::thread::sleep)?))
    }
}

struct IdentityInstance {
    context: InstanceContext,
    /// By the numbers of their outputs.
    pairs: Arc<[TensorPair]>,
    batching: bool,
    delay: Duration,
    activities: Option<Activities>,
    input_bytes: Counter,
    parameters: Arc<[Parameter]>,
}

/// The parameters that every response carries.
fn example_parameters() -> Arc<[Parameter]> {
    [
        ("param0", Value::String(Text::from("an example string parameter"))),
        ("param1", Value::Int(42)),
        ("param2", Value::Bool(false)),
        ("param3", Value::Double(123.123)),
    ]
    .map(|(name, value)| Parameter { name: Text::from(name), value })
    .into()
}

/// The times of an execution that neither reads nor writes elements.
fn executed(start_ns: u64) -> Execution {
    let end_ns = now_ns();
    Execution { exec_start_ns: start_ns, compute_start_ns: start_ns, compute_end_ns: end_ns, exec_end_ns: end_ns }
}

impl IdentityInstance {
    /// Executes a payload of one request, with fewer moves of the response.
    fn execute_one(&self, request: Box<Request>, start_ns: u64) {
        let rows = self.rows(&request);
        let answer = self.answer(&request);
        let execution = executed(start_ns);
        self.context.report_batch(rows, &execution);
        match answer {
            Ok(response) => self.context.succeed(request, response, &execution),
            Err(status) => self.context.fail(request, status),
        }
    }

    /// The rows that a request adds to the batch.
    fn rows(&self, request: &Request) -> u64 {
        if self.batching { request.batch_size } else { 0 }
    }

    fn answer(&self, request: &Request) -> Result<Response, Status> {
        if let Some(activities) = &self.activities {
            activities.report(request);
        }
        let mut response = Response::new(request.id.clone());
        response.outputs.reserve(request.outputs.len());
        let inputs = ByNumber::new(&request.inputs);
        for requested in &request.outputs {
            let Some(pair) = self.pairs.get(requested.index) else {
                return Err(Status::internal(format!("the model has no output '{}'", requested.name)));
            };
            let (shape, data) = match inputs.get(pair.input_index) {
                Some(input) => {
                    self.input_bytes.increment(input.byte_size() as u64);
                    (pair.output_shape.for_client(&input.model_shape, self.batching), input.data.clone())
                }
                None if pair.optional => self.zeros(pair, request)?,
                None => return Err(Status::unsupported(format!("failed to get input '{}'", pair.input_name))),
            };
            request.check_output(&pair.output_name, data.iter().map(|piece| piece.len()).sum())?;
            response.outputs.push(OutputTensor {
                name: pair.output_name.clone(),
                datatype: pair.datatype,
                shape,
                data,
                index: pair.output_index,
                on_device: None,
            });
        }
        response.parameters = Parameters::common(&self.parameters);
        Ok(response)
    }

    /// Zero bytes in the configured shape, each variable dimension taken as 1. Strings are all empty.
    fn zeros(&self, pair: &TensorPair, request: &Request) -> Result<(Shape, SmallVec<[Slice; 1]>), Status> {
        let mut shape = Shape::new();
        if self.batching {
            shape.push(i64::try_from(request.batch_size).unwrap_or(i64::MAX));
        }
        shape.extend(pair.output_shape.dims.iter().map(|&dim| if dim == -1 { 1 } else { dim }));
        let size = match pair.datatype {
            // The length prefix of an empty string.
            DataType::Bytes => 4,
            fixed => fixed.byte_size(),
        };
        let count = element_count(&shape).and_then(|count| usize::try_from(count).ok());
        let len = count
            .and_then(|count| count.checked_mul(size))
            .ok_or_else(|| Status::invalid(format!("output '{}' would be larger than memory", pair.output_name)))?;
        let mut block = self.context.model.pool.get(len)?;
        block.fill(0);
        Ok((shape, SmallVec::from_elem(block.freeze(), 1)))
    }
}

impl Instance for IdentityInstance {
    /// It passes slices on without blocking, unless it has a delay or reports example activities, which sleep.
    fn mobility(&self) -> Mobility {
        if self.delay.is_zero() && self.activities.is_none() { Mobility::Free } else { Mobility::Bound }
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let start_ns = now_ns();
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        if let Some(request) = payload.take_only() {
            self.execute_one(request, start_ns);
            return Ok(());
        }
        let mut answered: SmallVec<[(Box<Request>, Response); 4]> = SmallVec::new();
        let mut rows = 0u64;
        let mut any = false;
        for request in payload.take() {
            any = true;
            rows = rows.saturating_add(self.rows(&request));
            match self.answer(&request) {
                Ok(response) => answered.push((request, response)),
                Err(status) => self.context.fail(request, status),
            }
        }
        let execution = executed(start_ns);
        if any {
            self.context.report_batch(rows, &execution);
        }
        // One by one: moving all of them at once would copy many bytes.
        for (request, response) in answered.drain(..) {
            self.context.succeed(request, response, &execution);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
