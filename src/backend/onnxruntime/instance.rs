//! One session and the payloads it runs (backends.md section 4, "Execution").
//!
//! A payload is checked request by request, joined on its first dimension, run once, and cut by each request's rows.
//! Only what is wrong with one request fails that request alone; what happens in the run fails all.

use std::sync::Arc;

use smallvec::SmallVec;

use super::binding::{BoundInput, BoundOutputs, Returns, contiguous};
use super::options::RunOptions;
use super::plan::{InputPlan, Plan};
use super::result::ResultTensor;
use super::runtime::RuntimeError;
use super::session::Session;
use super::strings::{Content, Strings};
use super::value::Value;
use crate::backend::{Instance, InstanceContext, Mobility, Payload};
use crate::memory::{Pool, Slice};
use crate::observe::statistics::Execution;
use crate::request::{
    InputTensor, OutputTensor, Request, Response, Shape, Status, element_count, format_shape, now_ns,
};
use crate::wire::inference::model_instance_group::Kind;

type Requests = SmallVec<[Box<Request>; 4]>;

/// An instance of an ONNX model.
pub struct OnnxInstance {
    context: InstanceContext,
    plan: Plan,
    options: RunOptions,
    returns: Arc<Returns>,
    session: Arc<Session>,
    strings: Strings,
    content: Content,
    /// The model gave another shape than it declares: its outputs are not bound any more.
    declares_wrongly: bool,
}

impl OnnxInstance {
    pub fn new(context: InstanceContext, session: Session, options: RunOptions, plan: Plan) -> OnnxInstance {
        let session = Arc::new(session);
        OnnxInstance {
            context,
            plan,
            options,
            returns: Returns::new(Arc::clone(&session)),
            session,
            strings: Strings::default(),
            content: Content::default(),
            declares_wrongly: false,
        }
    }

    fn fail_all(&self, requests: Requests, status: &Status) {
        for request in requests {
            self.context.fail(request, status.clone());
        }
    }

    /// Rows that `request` has in the batch.
    fn rows(&self, request: &Request) -> u64 {
        if self.plan.batching { request.batch_size } else { 1 }
    }

    /// Answers requests that cannot be run, and returns the others.
    fn admit(&self, requests: Requests) -> Requests {
        let mut admitted = Requests::new();
        for request in requests {
            match self.check(&request) {
                Ok(()) => admitted.push(request),
                Err(status) => self.context.fail(request, status),
            }
        }
        admitted
    }

    /// The core has validated the request; a plug-in's or an ensemble's tensor may still be inconsistent, and then
    /// the library would read what is not there.
    fn check(&self, request: &Request) -> Result<(), Status> {
        for (index, plan) in self.plan.inputs.iter().enumerate() {
            let Some(input) = find(request, index) else {
                if plan.optional {
                    continue;
                }
                return Err(Status::internal(format!("failed to get input '{}'", plan.label)));
            };
            let rows = i64::try_from(request.batch_size).ok();
            if self.plan.batching && (rows.is_none() || model_shape(input).first().copied() != rows) {
                return Err(Status::internal(format!(
                    "input '{}' has the shape {}, but the request's batch size is {}",
                    plan.label,
                    format_shape(model_shape(input)),
                    request.batch_size
                )));
            }
            let size = plan.element.datatype().byte_size();
            let expected = element_count(model_shape(input))
                .and_then(|count| usize::try_from(count).ok())
                .and_then(|count| count.checked_mul(size.max(1)));
            if expected.is_none() || (size > 0 && expected != Some(input.byte_size())) {
                return Err(Status::internal(format!(
                    "input '{}' has {} bytes, which do not fit its shape {}",
                    plan.label,
                    input.byte_size(),
                    format_shape(model_shape(input))
                )));
            }
        }
        match request.outputs.iter().find(|output| self.plan.outputs.get(output.index).is_none()) {
            Some(output) => Err(Status::internal(format!("the model has no output '{}'", output.name))),
            None => Ok(()),
        }
    }

    fn run(&mut self, requests: &[Box<Request>], rows: u64) -> Result<(Vec<Response>, Execution), Failure> {
        let mut execution = Execution::default();
        let mut bound: SmallVec<[BoundInput; 4]> = SmallVec::new();
        let mut fed: SmallVec<[usize; 4]> = SmallVec::new();
        for index in 0..self.plan.inputs.len() {
            if let Some(input) = self.join(index, requests, rows)? {
                bound.push(input);
                fed.push(index);
            }
        }
        self.make_batch_inputs(requests, &mut bound)?;
        let mut outputs = self.bind_outputs(requests, rows, self.declares_wrongly)?;
        let plan = &self.plan;
        let made = bound.get(fed.len()..).unwrap_or_default().iter().map(BoundInput::value);
        let named: SmallVec<[_; 8]> = fed
            .iter()
            .zip(&bound)
            .filter_map(|(&index, input)| Some((plan.inputs.get(index)?.name.as_c_str(), input.value())))
            .chain(plan.batch_inputs.iter().flat_map(|input| &input.names).map(|name| name.as_c_str()).zip(made))
            .collect();
        let names: SmallVec<[_; 8]> = plan.outputs.iter().map(|output| output.name.as_c_str()).collect();
        execution.compute_start_ns = now_ns();
        let mut ran = self.session.run(&self.options, &named, &names, outputs.values_mut());
        let mut declares_wrongly = self.declares_wrongly;
        if let Err(error) = &ran
            && outputs.has_bound()
            && is_shape_conflict(error)
        {
            // The file declares a fixed shape and computes another: once more, into the library's own memory.
            outputs = self.bind_outputs(requests, rows, true)?;
            ran = self.session.run(&self.options, &named, &names, outputs.values_mut());
            declares_wrongly |= ran.is_ok();
        }
        execution.compute_end_ns = now_ns();
        self.declares_wrongly = declares_wrongly;
        ran?;
        let mut results: SmallVec<[ResultTensor; 4]> = SmallVec::new();
        for (index, plan) in self.plan.outputs.iter().enumerate() {
            let pool = &self.context.model.pool;
            let produced = outputs.take(index, plan.element, &bound, &self.returns, pool)?;
            results.push(ResultTensor::new(produced, plan, &mut self.content, pool)?);
        }
        Ok((self.hand_out(requests, &results)?, execution))
    }

    /// Tells the model about the batch itself: adds a tensor to `bound` for every target, in the order of the plan.
    fn make_batch_inputs(
        &self,
        requests: &[Box<Request>],
        bound: &mut SmallVec<[BoundInput; 4]>,
    ) -> Result<(), Failure> {
        for plan in &self.plan.batch_inputs {
            let sources: Option<Vec<&[i64]>> =
                requests.iter().map(|request| Some(model_shape(find(request, plan.source)?))).collect();
            let sources = sources.ok_or_else(|| {
                Status::internal(format!("some request has no input that '{}' could tell of", plan.label))
            })?;
            let (shape, bytes) = plan.make(&sources, self.plan.batching, &self.context.model.pool)?;
            let runtime = self.session.runtime();
            for _ in &plan.names {
                bound.push(BoundInput::over(runtime, bytes.clone(), &shape, plan.element)?);
            }
        }
        Ok(())
    }

    /// The responses to `requests`; their states are updated once all of them are made.
    fn hand_out(&self, requests: &[Box<Request>], results: &[ResultTensor]) -> Result<Vec<Response>, Status> {
        let mut first_row = 0;
        let mut scattered: SmallVec<[usize; 4]> = SmallVec::from_elem(0, results.len());
        let mut responses = Vec::with_capacity(requests.len());
        let mut updates = Vec::new();
        for request in requests {
            let rows = self.plan.batching.then_some((first_row, request.batch_size));
            first_row += self.rows(request);
            let mut response = Response::new(request.id.clone());
            for (index, (plan, result)) in self.plan.outputs.iter().zip(results).enumerate() {
                let is_wanted = request.outputs.iter().any(|output| output.index == index);
                let states = request.states.as_ref().filter(|_| plan.is_state);
                let (shape, data) = match (&plan.scatter, scattered.get_mut(index)) {
                    (Some(scatter), Some(from)) => {
                        let source = find(request, scatter.source).map(model_shape).unwrap_or_default();
                        let shape = scatter.shape(plan, source)?;
                        if !is_wanted && states.is_none() {
                            let skipped = element_count(&shape).and_then(|count| usize::try_from(count).ok());
                            *from = from.saturating_add(skipped.unwrap_or(0));
                            continue;
                        }
                        result.scatter(plan, shape, from)?
                    }
                    _ if is_wanted || states.is_some() => result.cut(plan, rows)?,
                    _ => continue,
                };
                if let Some(states) = states {
                    updates.push((states, plan, shape.clone(), copy(&data, &self.context.model.pool)?));
                }
                if is_wanted {
                    response.outputs.push(OutputTensor {
                        name: plan.text.clone(),
                        datatype: plan.element.datatype(),
                        shape: plan.client_shape(&shape, self.plan.batching),
                        data: SmallVec::from_elem(data, 1),
                        index,
                    });
                }
            }
            // As the request names them.
            let place = |index| request.outputs.iter().position(|output| output.index == index);
            response.outputs.sort_by_key(|output| place(output.index));
            responses.push(response);
        }
        for (states, plan, shape, data) in updates {
            states.update(&plan.text.to_str_lossy(), plan.element.datatype(), shape, data)?;
        }
        Ok(responses)
    }

    /// Input number `index` of all requests as one tensor; `None` if it is optional and absent.
    fn join(&mut self, index: usize, requests: &[Box<Request>], rows: u64) -> Result<Option<BoundInput>, Failure> {
        let Some(plan) = self.plan.inputs.get(index) else { return Ok(None) };
        let given = requests.iter().filter_map(|request| find(request, index)).count();
        let Some(first) = requests.first().and_then(|request| find(request, index)).filter(|_| given > 0) else {
            return match given {
                0 => Ok(None),
                _ => Err(mixed(plan).into()),
            };
        };
        if given != requests.len() {
            return Err(mixed(plan).into());
        }
        let tensors = || requests.iter().filter_map(|request| find(request, index));
        let mut shape = Shape::from_slice(model_shape(first));
        if plan.ragged {
            // One behind the other, whatever their shapes.
            let mut counts = tensors().map(|tensor| element_count(model_shape(tensor)));
            let total = counts.try_fold(0i64, |sum, count| sum.checked_add(count?));
            let too_many = || Status::internal(format!("input '{}' has too many elements", plan.label));
            shape.clear();
            shape.push(total.ok_or_else(too_many)?);
        } else if self.plan.batching {
            if tensors().any(|tensor| model_shape(tensor).get(1..) != model_shape(first).get(1..)) {
                let text = format!("requests of a batch differ in the shape of '{}'", plan.label);
                return Err(Status::internal(text).into());
            }
            if let Some(batch) = shape.first_mut() {
                *batch = i64::try_from(rows).map_err(|_| too_large(&self.context, rows, self.plan.max_batch_size))?;
            }
        } else if plan.scalar {
            shape.clear();
        }
        let runtime = self.session.runtime();
        if plan.element.datatype().byte_size() > 0 {
            let alignment = plan.element.datatype().byte_size();
            let pieces = tensors().flat_map(|tensor| tensor.data.iter());
            let bytes = contiguous(pieces, alignment, &self.context.model.pool)?;
            return Ok(Some(BoundInput::over(runtime, bytes, &shape, plan.element)?));
        }
        self.strings.clear();
        let total: usize = tensors().map(InputTensor::byte_size).sum();
        for (at, tensor) in tensors().enumerate() {
            let count = element_count(model_shape(tensor)).and_then(|count| usize::try_from(count).ok());
            count.and_then(|count| self.strings.append(&tensor.data, count).ok()).ok_or_else(|| {
                let text = format!("buffer size for input '{}' exceeds batch byte size {total}", plan.label);
                Failure::One(at, Status::internal(text))
            })?;
        }
        Ok(Some(BoundInput::owned(Value::strings(runtime, &shape, &self.strings.as_c_strs())?)))
    }

    /// Memory for outputs whose size is known: where they end up if one request has all rows and wants them, else a
    /// block that the requests share.
    fn bind_outputs(&self, requests: &[Box<Request>], rows: u64, leave_open: bool) -> Result<BoundOutputs, Status> {
        let mut outputs = BoundOutputs::default();
        for (index, plan) in self.plan.outputs.iter().enumerate() {
            let Some(fixed) = plan.fixed.as_ref().filter(|_| !leave_open) else {
                outputs.leave_open();
                continue;
            };
            let mut shape = Shape::new();
            if self.plan.batching {
                shape.push(i64::try_from(rows).map_err(|_| too_large(&self.context, rows, self.plan.max_batch_size))?);
            }
            shape.extend_from_slice(fixed);
            let count = element_count(&shape).and_then(|count| usize::try_from(count).ok());
            let len = count.and_then(|count| count.checked_mul(plan.element.datatype().byte_size()));
            let len = len.ok_or_else(|| {
                Status::internal(format!("output '{}' of shape {} is too large", plan.text, format_shape(&shape)))
            })?;
            let block = match requests {
                [only] if only.outputs.iter().any(|output| output.index == index) => {
                    only.allocate_output(&plan.text, len)?
                }
                _ => self.context.model.pool.get(len)?.into(),
            };
            outputs.bind(self.session.runtime(), block, &shape, plan.element)?;
        }
        Ok(outputs)
    }
}

impl Instance for OnnxInstance {
    /// A session may be run by any thread; how long it takes is the model's affair.
    fn mobility(&self) -> Mobility {
        if self.context.kind == Kind::Cpu { Mobility::FreeIfShort } else { Mobility::Bound }
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let exec_start_ns = now_ns();
        self.returns.drain();
        let requests = payload.take();
        let rows = requests.iter().map(|request| self.rows(request)).fold(0, u64::saturating_add);
        if rows != 1 && rows > self.plan.max_batch_size {
            let status = too_large(&self.context, rows, self.plan.max_batch_size);
            self.fail_all(requests, &status);
            return Ok(());
        }
        let mut requests = self.admit(requests);
        // Each round but the last takes one request away.
        while !requests.is_empty() {
            let rows = requests.iter().map(|request| self.rows(request)).sum();
            match self.run(&requests, rows) {
                Ok((responses, mut execution)) => {
                    execution.exec_start_ns = exec_start_ns;
                    execution.exec_end_ns = now_ns();
                    self.context.report_batch(rows, &execution);
                    for (request, response) in requests.drain(..).zip(responses) {
                        self.context.succeed(request, response, &execution);
                    }
                }
                Err(Failure::One(at, status)) if at < requests.len() => self.context.fail(requests.remove(at), status),
                Err(Failure::One(_, status) | Failure::All(status)) => {
                    self.fail_all(std::mem::take(&mut requests), &status);
                }
            }
        }
        self.strings.clear();
        self.content.clear();
        Ok(())
    }
}

/// Who is to blame when nothing was computed.
enum Failure {
    All(Status),
    /// The request at this place; the others can be run without it.
    One(usize, Status),
}

impl<E: Into<Status>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::All(error.into())
    }
}

fn find(request: &Request, index: usize) -> Option<&InputTensor> {
    request.inputs.iter().find(|input| input.index == index)
}

/// What the server itself adds to requests, nobody has reshaped.
fn model_shape(input: &InputTensor) -> &[i64] {
    if input.model_shape.is_empty() { &input.shape } else { &input.model_shape }
}

/// Bytes that may be kept for long: a piece of a run's output would keep all of it.
fn copy(bytes: &Slice, pool: &Pool) -> Result<Slice, Status> {
    let mut block = pool.get(bytes.len())?;
    block.copy_from_slice(bytes);
    Ok(block.freeze())
}

fn mixed(plan: &InputPlan) -> Status {
    Status::internal(format!("some requests of a batch have the optional input '{}' and some have not", plan.label))
}

fn too_large(context: &InstanceContext, rows: u64, max: u64) -> Status {
    Status::internal(format!("batch size {rows} for '{}', max allowed is {max}", context.model.name))
}

/// True for the library's complaint about a given output that does not have the computed shape.
fn is_shape_conflict(error: &RuntimeError) -> bool {
    error.text.contains("shape")
}

#[cfg(test)]
mod tests;
