//! One infer request and the payloads that it runs (contract/frameworks.md section 3, "Execution").
//!
//! A payload is joined on its first dimension and run once. Outputs whose sizes are known are written to their final
//! memory; others, and small ones, lie in memory of the library, from which each request's rows are copied.

use std::sync::Arc;

use smallvec::SmallVec;

use nereid_backend::rows::{self, Batch, Bytes, Computed, Failure, Joined, Produced};
use nereid_backend::{Instance, InstanceContext, Mobility};
use nereid_clock::now_ns;
use nereid_memory::Target;
use nereid_observe::statistics::Execution;
use nereid_request::{DataType, Response, Shape, Status};
use nereid_scheduler::Payload;

use super::model::Prepared;
use super::plan::Rows;
use super::runtime::{COPIED_BYTES_MAX, HostInput, InferRequest, OpenVinoError, OutputMemory};

/// Memory for an output before the run.
struct Prepaid {
    datatype: DataType,
    shape: Shape,
    target: Target,
}

pub struct OpenVinoInstance {
    context: InstanceContext,
    state: Running,
}

/// What a run changes.
struct Running {
    prepared: Arc<Prepared>,
    request: InferRequest,
    /// The model made larger outputs than it declares: they get no memory before a run any more.
    declares_wrongly: bool,
}

impl OpenVinoInstance {
    pub fn new(context: InstanceContext, prepared: Arc<Prepared>) -> Result<OpenVinoInstance, Status> {
        let request = prepared.compiled.infer_request(&prepared.outputs)?;
        Ok(OpenVinoInstance { context, state: Running { prepared, request, declares_wrongly: false } })
    }
}

impl Running {
    fn run(&mut self, model: &str, batch: &Batch<'_>) -> Result<Computed, Failure> {
        let plan = &self.prepared.plan;
        let mut joined: SmallVec<[Joined; 4]> = SmallVec::new();
        for input in &plan.inputs {
            let one = match plan.rows {
                Rows::Exactly(rows) => batch.join_padded(&input.input, rows)?,
                Rows::Any | Rows::Unbatched => batch.join(&input.input)?,
            };
            input.check(model, &one.shape)?;
            joined.push(one);
        }
        let mut prepaid = self.allocate(batch)?;
        let mut execution = Execution { compute_start_ns: now_ns(), ..Execution::default() };
        let mut shapes = self.infer(&joined, &mut prepaid);
        if let Err(error) = &shapes
            && prepaid.iter().any(Option::is_some)
            && is_about_size(error)
        {
            // Once more, into memory that the library enlarges.
            prepaid.iter_mut().for_each(|one| *one = None);
            shapes = self.infer(&joined, &mut prepaid);
            self.declares_wrongly |= shapes.is_ok();
        }
        execution.compute_end_ns = now_ns();
        let answers = self.split(batch, &shapes?, prepaid)?;
        Ok((answers, execution))
    }

    /// Memory for the outputs of known sizes that a response contains, by their positions in the model.
    fn allocate(&self, batch: &Batch<'_>) -> Result<SmallVec<[Option<Prepaid>; 4]>, Status> {
        let plan = &self.prepared.plan;
        let mut prepaid: SmallVec<[Option<Prepaid>; 4]> = SmallVec::new();
        prepaid.resize_with(plan.port_count, || None);
        if self.declares_wrongly {
            return Ok(prepaid);
        }
        for planned in plan.outputs.iter().filter(|planned| batch.wants(&planned.output)) {
            let output = &planned.output;
            let Some(shape) = plan.output_shape(planned, batch.rows()) else { continue };
            let Some(len) = rows::byte_size(&shape, output.datatype) else { continue };
            // Copied from the library's memory with less effort than the library sets a tensor.
            if len <= COPIED_BYTES_MAX {
                continue;
            }
            let target = batch.allocate(output, len)?;
            // Memory that a client shares may begin anywhere; the library writes whole elements.
            let is_aligned = target.is_aligned_to(output.datatype.byte_size());
            if let Some(place) = prepaid.get_mut(planned.port)
                && is_aligned
            {
                *place = Some(Prepaid { datatype: output.datatype, shape, target });
            }
        }
        Ok(prepaid)
    }

    fn infer(
        &mut self,
        joined: &[Joined],
        prepaid: &mut [Option<Prepaid>],
    ) -> Result<SmallVec<[Shape; 4]>, OpenVinoError> {
        let inputs: SmallVec<[HostInput<'_>; 4]> = self
            .prepared
            .plan
            .inputs
            .iter()
            .zip(joined)
            .map(|(plan, one)| HostInput { datatype: plan.input.datatype, shape: &one.shape, bytes: &one.bytes })
            .collect();
        let mut outputs: SmallVec<[OutputMemory<'_>; 4]> = prepaid
            .iter_mut()
            .map(|one| match one {
                Some(Prepaid { datatype, shape, target }) => {
                    OutputMemory::Host { datatype: *datatype, shape, bytes: target }
                }
                None => OutputMemory::Own,
            })
            .collect();
        self.request.run(&inputs, &mut outputs)
    }

    fn split(
        &self,
        batch: &Batch<'_>,
        shapes: &[Shape],
        mut prepaid: SmallVec<[Option<Prepaid>; 4]>,
    ) -> Result<Vec<Result<Response, Status>>, Status> {
        let plan = &self.prepared.plan;
        let mut outputs: SmallVec<[rows::Output; 4]> = SmallVec::new();
        let mut produced: SmallVec<[Option<Produced<'_>>; 4]> = SmallVec::new();
        for planned in &plan.outputs {
            outputs.push(planned.output.clone());
            let shape = shapes.get(planned.port).filter(|_| batch.wants(&planned.output));
            let bytes = match (shape, prepaid.get_mut(planned.port).and_then(Option::take)) {
                (None, _) => None,
                (Some(_), Some(Prepaid { target, .. })) => Some(Bytes::Shared(target.freeze())),
                (Some(_), None) => Some(Bytes::Borrowed(self.request.own_output(planned.port)?)),
            };
            produced.push(shape.zip(bytes).map(|(shape, bytes)| Produced { shape: shape.clone(), bytes }));
        }
        batch.split(&outputs, &produced)
    }
}

/// True for the library's error about an output that does not fit the memory that it was given.
fn is_about_size(error: &OpenVinoError) -> bool {
    error.to_string().contains("set new shape")
}

impl Instance for OpenVinoInstance {
    /// On the CPU any thread may run it; but threads of the library take part, and the model may contain loops. A run
    /// on another device waits for that.
    fn mobility(&self) -> Mobility {
        if self.state.prepared.is_for_cpu { Mobility::FreeIfAsked } else { Mobility::Bound }
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let OpenVinoInstance { context, state } = self;
        let max_batch_size = state.prepared.plan.max_batch_size;
        rows::execute(context, payload, max_batch_size, |batch| state.run(&context.model.name, batch));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
