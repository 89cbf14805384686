//! Joins requests to one batch: checks that they fit together, joins their inputs, and makes the inputs that describe
//! the batch (contract/backends.md section 4, "Execution").

use smallvec::SmallVec;

use super::binding::BoundInput;
use super::plan::{InputPlan, Plan};
use super::runtime::Runtime;
use super::strings::Strings;
use super::value::Value;
use crate::ModelContext;
use crate::rows::Tensors;
use nereid_memory::Pool;
use nereid_request::{ByNumber, InputTensor, Request, Shape, Status, element_count, format_shape};

/// Why a batch was not computed, and which requests fail.
#[derive(Debug)]
pub enum Failure {
    All(Status),
    /// The request at this index is at fault; the others can be run without it.
    One(usize, Status),
}

impl<E: Into<Status>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::All(error.into())
    }
}

impl Plan {
    /// Rows that `request` has in the batch.
    pub fn rows(&self, request: &Request) -> u64 {
        if self.batching { request.batch_size } else { 1 }
    }

    /// Checks a request for consistency. The core has validated it, but a tensor of a plug-in or an ensemble may still
    /// be inconsistent, and the library would read beyond its end.
    pub fn check(&self, request: &Request) -> Result<(), Status> {
        let inputs = ByNumber::new(&request.inputs);
        for (index, plan) in self.inputs.iter().enumerate() {
            let Some(input) = inputs.get(index) else {
                if plan.optional {
                    continue;
                }
                return Err(Status::internal(format!("failed to get input '{}'", plan.label)));
            };
            let rows = i64::try_from(request.batch_size).ok();
            if self.batching && (rows.is_none() || model_shape(input).first().copied() != rows) {
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
        match request.outputs.iter().find(|output| self.outputs.get(output.index).is_none()) {
            Some(output) => Err(Status::internal(format!("the model has no output '{}'", output.name))),
            None => Ok(()),
        }
    }

    /// The shape of the joined tensor of input number `index` of all requests; `None` if the input is optional and
    /// absent.
    pub fn joined_shape(
        &self,
        index: usize,
        tensors: &Tensors<'_>,
        rows: u64,
        context: &ModelContext,
    ) -> Result<Option<Shape>, Failure> {
        let Some(plan) = self.inputs.get(index) else { return Ok(None) };
        let given = tensors.inputs(index).flatten().count();
        let Some(first) = tensors.input(0, index).filter(|_| given > 0) else {
            return match given {
                0 => Ok(None),
                _ => Err(mixed(plan).into()),
            };
        };
        if given != tensors.len() {
            return Err(mixed(plan).into());
        }
        let tensors = || tensors.inputs(index).flatten();
        let mut shape = Shape::from_slice(model_shape(first));
        if plan.ragged {
            // Flat, one behind the other, with any shapes.
            let mut counts = tensors().map(|tensor| element_count(model_shape(tensor)));
            let total = counts.try_fold(0i64, |sum, count| sum.checked_add(count?));
            let too_many = || Status::internal(format!("input '{}' has too many elements", plan.label));
            shape.clear();
            shape.push(total.ok_or_else(too_many)?);
        } else if self.batching {
            if tensors().any(|tensor| model_shape(tensor).get(1..) != model_shape(first).get(1..)) {
                let text = format!("requests of a batch differ in the shape of '{}'", plan.label);
                return Err(Status::internal(text).into());
            }
            if let Some(batch) = shape.first_mut() {
                *batch = i64::try_from(rows).map_err(|_| too_large(context, rows, self.max_batch_size))?;
            }
        } else if plan.scalar {
            shape.clear();
        }
        Ok(Some(shape))
    }

    /// The strings of input number `index` of all requests.
    pub fn join_strings(
        &self,
        index: usize,
        tensors: &Tensors<'_>,
        shape: &[i64],
        runtime: &'static Runtime,
        strings: &mut Strings,
    ) -> Result<BoundInput, Failure> {
        let tensors = || tensors.inputs(index).flatten();
        let label = self.inputs.get(index).map_or("", |plan| &plan.label);
        strings.clear();
        let total: usize = tensors().map(InputTensor::byte_size).sum();
        for (at, tensor) in tensors().enumerate() {
            let count = element_count(model_shape(tensor)).and_then(|count| usize::try_from(count).ok());
            count.and_then(|count| strings.append(&tensor.data, count).ok()).ok_or_else(|| {
                let text = format!("buffer size for input '{label}' exceeds batch byte size {total}");
                Failure::One(at, Status::internal(text))
            })?;
        }
        Ok(BoundInput::owned(Value::strings(runtime, shape, &strings.as_c_strs())?))
    }

    /// Makes the inputs that describe the batch: adds a tensor to `bound` for every target, in the order of the plan.
    pub fn make_batch_inputs(
        &self,
        tensors: &Tensors<'_>,
        runtime: &'static Runtime,
        pool: &Pool,
        bound: &mut SmallVec<[BoundInput; 4]>,
    ) -> Result<(), Failure> {
        for plan in &self.batch_inputs {
            let sources: Option<Vec<&[i64]>> =
                tensors.inputs(plan.tensor.source).map(|source| source.map(model_shape)).collect();
            let sources = sources.ok_or_else(|| {
                Status::internal(format!("some request has no input that '{}' could tell of", plan.tensor.label))
            })?;
            let (shape, bytes) = plan.tensor.make(&sources, self.batching, pool)?;
            for _ in &plan.names {
                bound.push(BoundInput::over(runtime, bytes.clone(), &shape, plan.element)?);
            }
        }
        Ok(())
    }

    /// The shape and the number of bytes of output number `index` of a batch, if the model fixes them.
    pub fn fixed_output(
        &self,
        index: usize,
        rows: u64,
        context: &ModelContext,
    ) -> Result<Option<(Shape, usize)>, Status> {
        let Some(plan) = self.outputs.get(index) else { return Ok(None) };
        let Some(fixed) = plan.fixed.as_ref() else { return Ok(None) };
        let mut shape = Shape::new();
        if self.batching {
            shape.push(i64::try_from(rows).map_err(|_| too_large(context, rows, self.max_batch_size))?);
        }
        shape.extend_from_slice(fixed);
        let count = element_count(&shape).and_then(|count| usize::try_from(count).ok());
        let len = count.and_then(|count| count.checked_mul(plan.element.datatype().byte_size()));
        let len = len.ok_or_else(|| {
            Status::internal(format!("output '{}' of shape {} is too large", plan.text, format_shape(&shape)))
        })?;
        Ok(Some((shape, len)))
    }
}

/// The shape for the model. Inputs that the server adds to requests have no separate one: they were not reshaped.
pub fn model_shape(input: &InputTensor) -> &[i64] {
    if input.model_shape.is_empty() { &input.shape } else { &input.model_shape }
}

fn mixed(plan: &InputPlan) -> Status {
    Status::internal(format!("some requests of a batch have the optional input '{}' and some have not", plan.label))
}

pub fn too_large(context: &ModelContext, rows: u64, max: u64) -> Status {
    Status::internal(format!("batch size {rows} for '{}', max allowed is {max}", context.name))
}
