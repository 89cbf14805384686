//! One session and the payloads that it runs (contract/backends.md section 4, "Execution").
//!
//! A payload is checked request by request, joined on its first dimension, run once, and split by each request's rows.
//! An error of one request fails that request alone; an error of the run fails all.

use std::sync::Arc;

use smallvec::SmallVec;

use super::batch::{Failure, model_shape, too_large};
use super::binding::{BoundInput, BoundOutputs, Returns, contiguous};
use super::composite::{Converted, convert};
use super::options::RunOptions;
use super::plan::{OutputSource, Plan};
use super::result::ResultTensor;
use super::session::Session;
use super::strings::{Content, Strings};
use crate::rows::{Tensors, sort_as_named};
use crate::{Instance, InstanceContext, Mobility};
use nereid_clock::now_ns;
use nereid_memory::{Pool, Slice};
use nereid_observe::statistics::Execution;
use nereid_request::{OutputTensor, Request, Response, Status, element_count};
use nereid_scheduler::Payload;

type Requests = SmallVec<[Box<Request>; 4]>;

/// An instance of an ONNX model.
pub struct OnnxInstance {
    context: InstanceContext,
    plan: Plan,
    options: RunOptions,
    returns: Arc<Returns>,
    session: Arc<Session>,
    mobility: Mobility,
    strings: Strings,
    content: Content,
    /// The model gave another shape than it declares: its outputs are not bound any more.
    declares_wrongly: bool,
}

impl OnnxInstance {
    pub fn new(
        context: InstanceContext,
        session: Arc<Session>,
        options: RunOptions,
        plan: Plan,
        mobility: Mobility,
    ) -> OnnxInstance {
        OnnxInstance {
            context,
            plan,
            options,
            returns: Returns::new(Arc::clone(&session)),
            session,
            mobility,
            strings: Strings::default(),
            content: Content::default(),
            declares_wrongly: false,
        }
    }

    #[cfg(test)]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn fail_all(&self, requests: Requests, status: &Status) {
        for request in requests {
            self.context.fail(request, status.clone());
        }
    }

    /// Answers requests that cannot be run, and returns the others.
    fn admit(&self, requests: Requests) -> Requests {
        let mut admitted = Requests::new();
        for request in requests {
            match self.plan.check(&request) {
                Ok(()) => admitted.push(request),
                Err(status) => self.context.fail(request, status),
            }
        }
        admitted
    }

    fn run(&mut self, requests: &[Box<Request>], rows: u64) -> Result<(Vec<Response>, Execution), Failure> {
        let mut execution = Execution::default();
        let tensors = &Tensors::new(requests);
        let mut bound: SmallVec<[BoundInput; 4]> = SmallVec::new();
        let mut fed: SmallVec<[usize; 4]> = SmallVec::new();
        for index in 0..self.plan.inputs.len() {
            if let Some(input) = self.join(index, tensors, rows)? {
                bound.push(input);
                fed.push(index);
            }
        }
        let pool = &self.context.model.pool;
        self.plan.make_batch_inputs(tensors, self.session.runtime(), pool, &mut bound)?;
        let mut outputs = self.bind_outputs(requests, tensors, rows, self.declares_wrongly)?;
        let plan = &self.plan;
        let made = bound.get(fed.len()..).unwrap_or_default().iter().map(BoundInput::value);
        let named: SmallVec<[_; 8]> = fed
            .iter()
            .zip(&bound)
            .filter_map(|(&index, input)| Some((plan.inputs.get(index)?.name.as_c_str(), input.value())))
            .chain(plan.batch_inputs.iter().flat_map(|input| &input.names).map(|name| name.as_c_str()).zip(made))
            .collect();
        let names: SmallVec<[_; 8]> = plan.computed().map(|(_, output)| output.name.as_c_str()).collect();
        execution.compute_start_ns = now_ns();
        let mut ran = self.session.run(&self.options, &named, &names, outputs.values_mut());
        let mut declares_wrongly = self.declares_wrongly;
        if let Err(error) = &ran
            && outputs.has_bound()
            && is_shape_conflict(&error.text)
        {
            // The file declares a fixed shape and computes another: once more, into the library's own memory.
            outputs = self.bind_outputs(requests, tensors, rows, true)?;
            ran = self.session.run(&self.options, &named, &names, outputs.values_mut());
            declares_wrongly |= ran.is_ok();
        }
        execution.compute_end_ns = now_ns();
        self.declares_wrongly = declares_wrongly;
        ran?;
        drop((named, names));
        let results = self.results(&mut outputs, &bound, requests)?;
        Ok((self.hand_out(requests, tensors, &results)?, execution))
    }

    /// The outputs of a run, in the order of the configuration.
    fn results(
        &mut self,
        outputs: &mut BoundOutputs,
        inputs: &[BoundInput],
        requests: &[Box<Request>],
    ) -> Result<SmallVec<[ResultTensor; 4]>, Status> {
        let (content, pool) = (&mut self.content, &self.context.model.pool);
        let (mut results, mut keys) = (SmallVec::new(), SmallVec::new());
        for (at, (index, plan)) in self.plan.computed().enumerate() {
            let OutputSource::Converted(kind) = plan.source else {
                let produced = outputs.take(at, plan.element, inputs, &self.returns, pool)?;
                results.push(ResultTensor::new(produced, plan, content, pool)?);
                continue;
            };
            let converted = match self.plan.is_needed(index, requests) {
                true => convert(&outputs.take_value(at)?, kind, plan, content, pool)?,
                false => Converted::absent(),
            };
            results.push(converted.values);
            keys.extend(converted.keys.map(|keys| (index, keys)));
        }
        self.plan.insert_keys(&mut results, keys)?;
        Ok(results)
    }

    /// Makes the responses to `requests`; their states are updated after all responses are made.
    fn hand_out(
        &self,
        requests: &[Box<Request>],
        tensors: &Tensors<'_>,
        results: &[ResultTensor],
    ) -> Result<Vec<Response>, Status> {
        let mut first_row = 0;
        let mut scattered: SmallVec<[usize; 4]> = SmallVec::from_elem(0, results.len());
        let mut responses = Vec::with_capacity(requests.len());
        let mut updates = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            let rows = self.plan.batching.then_some((first_row, request.batch_size));
            first_row += self.plan.rows(request);
            let mut response = Response::new(request.id.clone());
            for (index, (plan, result)) in self.plan.outputs.iter().zip(results).enumerate() {
                let is_wanted = tensors.is_requested(number, index);
                let states = request.states.as_ref().filter(|_| plan.is_state);
                let (shape, data) = match (&plan.scatter, scattered.get_mut(index)) {
                    (Some(scatter), Some(from)) => {
                        let source = tensors.input(number, scatter.source).map(model_shape).unwrap_or_default();
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
                        on_device: None,
                    });
                }
            }
            sort_as_named(&mut response.outputs, request);
            responses.push(response);
        }
        for (states, plan, shape, data) in updates {
            states.update(&plan.text.to_str_lossy(), plan.element.datatype(), shape, data)?;
        }
        Ok(responses)
    }

    /// Input number `index` of all requests as one tensor; `None` if it is optional and absent.
    fn join(&mut self, index: usize, tensors: &Tensors<'_>, rows: u64) -> Result<Option<BoundInput>, Failure> {
        let context = &self.context.model;
        let (Some(plan), Some(shape)) =
            (self.plan.inputs.get(index), self.plan.joined_shape(index, tensors, rows, context)?)
        else {
            return Ok(None);
        };
        let runtime = self.session.runtime();
        let alignment = plan.element.datatype().byte_size();
        if alignment == 0 {
            return self.plan.join_strings(index, tensors, &shape, runtime, &mut self.strings).map(Some);
        }
        let pieces = tensors.inputs(index).flatten().flat_map(|tensor| tensor.data.iter());
        let bytes = contiguous(pieces, alignment, &context.pool)?;
        Ok(Some(BoundInput::over(runtime, bytes, &shape, plan.element)?))
    }

    /// Memory for outputs of a fixed size: the client's memory if one request has all rows and wants them there, else a
    /// block that the requests share.
    fn bind_outputs(
        &self,
        requests: &[Box<Request>],
        tensors: &Tensors<'_>,
        rows: u64,
        leave_open: bool,
    ) -> Result<BoundOutputs, Status> {
        let mut outputs = BoundOutputs::default();
        for (index, plan) in self.plan.computed() {
            let fixed = if leave_open { None } else { self.plan.fixed_output(index, rows, &self.context.model)? };
            let Some((shape, len)) = fixed else {
                outputs.leave_open();
                continue;
            };
            let block = match requests {
                [only] if tensors.is_requested(0, index) => only.allocate_output(&plan.text, len)?,
                _ => self.context.model.pool.get(len)?.into(),
            };
            outputs.bind(self.session.runtime(), block, &shape, plan.element)?;
        }
        Ok(outputs)
    }
}

impl Instance for OnnxInstance {
    fn mobility(&self) -> Mobility {
        self.mobility
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let exec_start_ns = now_ns();
        self.returns.drain();
        let requests = payload.take();
        let rows = requests.iter().map(|request| self.plan.rows(request)).fold(0, u64::saturating_add);
        if rows != 1 && rows > self.plan.max_batch_size {
            let status = too_large(&self.context.model, rows, self.plan.max_batch_size);
            self.fail_all(requests, &status);
            return Ok(());
        }
        let mut requests = self.admit(requests);
        // Each round but the last removes one request.
        while !requests.is_empty() {
            let rows = requests.iter().map(|request| self.plan.rows(request)).sum();
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

/// Bytes that may be kept for long: a piece of a run's output would keep all of it.
pub(super) fn copy(bytes: &Slice, pool: &Pool) -> Result<Slice, Status> {
    let mut block = pool.get(bytes.len())?;
    block.copy_from_slice(bytes);
    Ok(block.freeze())
}

/// True for the library's error about a passed output that does not have the computed shape.
pub(super) fn is_shape_conflict(error: &str) -> bool {
    error.contains("shape")
}

#[cfg(test)]
pub(super) mod tests;
