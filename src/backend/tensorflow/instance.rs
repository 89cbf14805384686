//! One instance: the payloads that it runs in its session (contract/frameworks.md section 5, "execution").

use std::sync::Arc;

use smallvec::SmallVec;

use super::api::{Port, Runtime, Session, Tensor, TensorFlowError};
use super::element::from_number;
use super::plan::{InputPlan, Plan};
use nereid_backend::rows::{self, Batch, Bytes, Computed, Copied, EncodedStrings, Failure, Output, Produced, elements};
use nereid_backend::{Instance, InstanceContext, Mobility};
use nereid_clock::now_ns;
use nereid_memory::Pool;
use nereid_observe::statistics::Execution;
use nereid_request::{DataType, Shape, Status, format_shape};
use nereid_scheduler::Payload;
use nereid_wire::inference::model_instance_group::Kind;

/// An instance of a TensorFlow model. Instances may share its session.
pub struct TensorFlowInstance {
    context: InstanceContext,
    session: Arc<Session>,
    plan: Plan,
    /// Serialised `RunOptions`.
    options: Vec<u8>,
}

impl TensorFlowInstance {
    pub fn new(context: InstanceContext, session: Arc<Session>, plan: Plan, options: Vec<u8>) -> TensorFlowInstance {
        TensorFlowInstance { context, session, plan, options }
    }

    #[cfg(test)]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Instance for TensorFlowInstance {
    /// Any thread may run a session; but the library's threads take part, and its graph may contain loops.
    fn mobility(&self) -> Mobility {
        if self.context.kind == Kind::Cpu { Mobility::FreeIfAsked } else { Mobility::Bound }
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let (plan, pool) = (&self.plan, &self.context.model.pool);
        let compute = |feeds: &[(Port, Tensor)], ports: &[Port]| self.session.run(&self.options, feeds, ports);
        let runtime = self.session.runtime();
        rows::execute(&self.context, payload, plan.max_batch_size, |batch| run(runtime, compute, plan, pool, batch));
        Ok(())
    }
}

fn run(
    runtime: &'static Runtime,
    compute: impl FnOnce(&[(Port, Tensor)], &[Port]) -> Result<Vec<Tensor>, TensorFlowError>,
    plan: &Plan,
    pool: &Pool,
    batch: &Batch<'_>,
) -> Result<Computed, Failure> {
    let feeds = feeds(runtime, plan, batch, pool)?;
    // Only what some request wants is computed.
    let wanted: SmallVec<[usize; 8]> =
        plan.outputs.iter().enumerate().filter(|(_, output)| batch.wants(output)).map(|(at, _)| at).collect();
    let ports: SmallVec<[Port; 8]> = wanted.iter().filter_map(|at| plan.ports.get(*at).copied()).collect();
    let mut execution = Execution { compute_start_ns: now_ns(), ..Execution::default() };
    // The library refuses a run that computes nothing.
    let results = if ports.is_empty() { Vec::new() } else { compute(&feeds, &ports)? };
    execution.compute_end_ns = now_ns();
    let results: SmallVec<[(usize, Tensor); 8]> = wanted.into_iter().zip(results).collect();
    let mut strings: SmallVec<[Option<EncodedStrings>; 8]> = SmallVec::new();
    for (at, tensor) in &results {
        let output = plan.outputs.get(*at);
        strings.push(output.map_or(Ok(None), |output| encoded(output, tensor, pool))?);
    }
    let mut produced: SmallVec<[Option<Produced<'_>>; 8]> = plan.outputs.iter().map(|_| None).collect();
    for ((at, tensor), strings) in results.iter().zip(&strings) {
        if let (Some(place), Some(output)) = (produced.get_mut(*at), plan.outputs.get(*at)) {
            let bytes = strings.as_ref().map_or_else(|| Bytes::Borrowed(tensor.bytes()), Bytes::Strings);
            *place = Some(Produced { shape: shape_of(output, tensor, plan.max_batch_size > 0), bytes });
        }
    }
    Ok((batch.split_scattered(&plan.outputs, &produced, &plan.scatters)?, execution))
}

/// The tensors of all inputs.
fn feeds(
    runtime: &'static Runtime,
    plan: &Plan,
    batch: &Batch<'_>,
    pool: &Pool,
) -> Result<SmallVec<[(Port, Tensor); 8]>, Failure> {
    let mut feeds = SmallVec::new();
    for input in &plan.inputs {
        let is_given = !input.is_optional || batch.inputs(input.input.index).any(|tensor| tensor.is_some());
        if is_given {
            feeds.push((input.port, feed(runtime, input, batch, pool)?));
        }
    }
    for described in &plan.batch_inputs {
        let (shape, bytes) = described.tensor.make_for(batch)?;
        for port in &described.ports {
            let size = described.tensor.datatype.byte_size();
            feeds.push((*port, Tensor::over(runtime, bytes.clone(), &shape, described.element_type, size)?));
        }
    }
    Ok(feeds)
}

fn feed(runtime: &'static Runtime, plan: &InputPlan, batch: &Batch<'_>, pool: &Pool) -> Result<Tensor, Failure> {
    let (input, number) = (&plan.input, plan.element_type);
    let shape_of =
        |shape: &Shape, count: usize| if plan.is_scalar && count == 1 { Shape::new() } else { shape.clone() };
    if input.datatype == DataType::Bytes {
        let joined = batch.join_strings(input)?;
        return Ok(Tensor::strings(runtime, &shape_of(&joined.shape, joined.len()), number, joined.iter())?);
    }
    let joined = batch.join(input)?;
    let shape = shape_of(&joined.shape, joined.elements);
    // A graph may keep its input in a variable, and the memory of a client has other contents by then. The library
    // writes to no memory but its own, so other inputs are not copied.
    let bytes = match joined.bytes.is_foreign() {
        true => Copied::of(joined.shape, &joined.bytes, pool)?.bytes.freeze(),
        false => joined.bytes,
    };
    Ok(Tensor::over(runtime, bytes, &shape, number, input.datatype.byte_size())?)
}

/// The strings of a result in wire form; `None` for numbers. A result must have the type of the configuration.
fn encoded(output: &Output, tensor: &Tensor, pool: &Pool) -> Result<Option<EncodedStrings>, Status> {
    let name = output.name.to_str_lossy();
    let found = from_number(tensor.element_type());
    if found != Some(output.datatype) {
        let found = found.map_or_else(
            || format!("TensorFlow's type {}", tensor.element_type()),
            |found| found.config_name().to_owned(),
        );
        let expected = output.datatype.config_name();
        return Err(Status::internal(format!("output '{name}' has {found}, but the configuration says {expected}")));
    }
    if output.datatype != DataType::Bytes {
        return Ok(None);
    }
    let shape = tensor.shape();
    let count = elements(&shape);
    let count =
        count.ok_or_else(|| Status::internal(format!("output '{name}' has the shape {}", format_shape(&shape))))?;
    EncodedStrings::encode(tensor.string_elements(count)?, &name, pool).map(Some)
}

/// The result's shape; a scalar has the dimensions of the configuration, which cannot be empty.
fn shape_of(output: &Output, tensor: &Tensor, batching: bool) -> Shape {
    let shape = tensor.shape();
    let is_scalar = shape.is_empty() && !batching && output.shape.reshape.is_none();
    match is_scalar && output.shape.dims.iter().all(|dim| matches!(dim, 1 | -1)) {
        true => Shape::from_elem(1, output.shape.dims.len()),
        false => shape,
    }
}

#[cfg(test)]
mod tests;
