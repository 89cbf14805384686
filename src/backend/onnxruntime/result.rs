//! The outputs of a run, cut into the parts of each request (contract/backends.md section 4; contract/model_config.md
//! section 7).

use std::ops::Range;

use super::binding::Produced;
use super::plan::OutputPlan;
use super::strings::{Content, EncodeError, Encoded};
use nereid_memory::{Pool, Slice};
use nereid_request::{Shape, Status, element_count, format_shape};

/// An output of a run, ready to be cut.
pub struct ResultTensor {
    shape: Shape,
    bytes: Bytes,
}

enum Bytes {
    Numbers(Slice),
    Strings(Encoded),
    Absent,
}

impl ResultTensor {
    pub fn new(
        produced: Produced,
        plan: &OutputPlan,
        content: &mut Content,
        pool: &Pool,
    ) -> Result<ResultTensor, Status> {
        match produced {
            Produced::Numbers { shape, bytes } => Ok(ResultTensor::of_numbers(shape, bytes)),
            Produced::Strings { shape, value } => {
                let count = element_count(&shape).and_then(|count| usize::try_from(count).ok());
                let count = count.ok_or_else(|| {
                    Status::internal(format!("output '{}' has the shape {}", plan.text, format_shape(&shape)))
                })?;
                value.string_content(count, &mut content.bytes, &mut content.starts)?;
                ResultTensor::of_strings(shape, content, plan, pool)
            }
        }
    }

    pub fn of_numbers(shape: Shape, bytes: Slice) -> ResultTensor {
        ResultTensor { shape, bytes: Bytes::Numbers(bytes) }
    }

    /// `content` has as many elements as `shape`.
    pub fn of_strings(shape: Shape, content: &Content, plan: &OutputPlan, pool: &Pool) -> Result<ResultTensor, Status> {
        let encoded = content.encode(pool).map_err(|error| match error {
            EncodeError::Exhausted(exhausted) => exhausted.into(),
            other => Status::internal(format!("output '{}': {other}", plan.text)),
        })?;
        Ok(ResultTensor { shape, bytes: Bytes::Strings(encoded) })
    }

    /// The result of a run that gave no value for an optional output: an error for the requests that want it.
    pub fn absent() -> ResultTensor {
        ResultTensor { shape: Shape::new(), bytes: Bytes::Absent }
    }

    /// The same elements without a first dimension of 1.
    pub fn without_first_dim(mut self) -> ResultTensor {
        if !self.shape.is_empty() {
            self.shape.remove(0);
        }
        self
    }

    /// Shape and bytes of `(first, count)` rows; of everything for a model without batching.
    pub fn cut(&self, plan: &OutputPlan, rows: Option<(u64, u64)>) -> Result<(Shape, Slice), Status> {
        self.require_presence(plan)?;
        let cut = || {
            let (shape, elements) = part(&self.shape, rows)?;
            Some((shape, self.bytes.window(elements.start, elements.end, plan)?))
        };
        cut().ok_or_else(|| too_few_rows(plan, &self.shape))
    }

    /// The next elements of a flat output, as many as `shape` says; `from` moves on.
    pub fn scatter(&self, plan: &OutputPlan, shape: Shape, from: &mut usize) -> Result<(Shape, Slice), Status> {
        self.require_presence(plan)?;
        let cut = || {
            let count = usize::try_from(element_count(&shape)?).ok()?;
            let to = from.checked_add(count)?;
            Some((self.bytes.window(*from, to, plan)?, to))
        };
        let (bytes, to) = cut().ok_or_else(|| too_few_elements(plan, &self.shape))?;
        *from = to;
        Ok((shape, bytes))
    }
}

impl ResultTensor {
    fn require_presence(&self, plan: &OutputPlan) -> Result<(), Status> {
        match self.bytes {
            Bytes::Absent => Err(Status::internal(format!(
                "output '{}' is optional, and the model gave no value for these inputs; request the other outputs only",
                plan.text
            ))),
            _ => Ok(()),
        }
    }
}

/// Shape and elements of `(first, count)` rows of a tensor; of everything for a model without batching.
pub fn part(shape: &[i64], rows: Option<(u64, u64)>) -> Option<(Shape, Range<usize>)> {
    let Some((first, count)) = rows else {
        let all = usize::try_from(element_count(shape)?).ok()?;
        return Some((Shape::from_slice(shape), 0..all));
    };
    let (total, item) = shape.split_first()?;
    let (first, count) = (usize::try_from(first).ok()?, usize::try_from(count).ok()?);
    let end = first.checked_add(count).filter(|end| usize::try_from(*total).is_ok_and(|total| *end <= total))?;
    let elements = usize::try_from(element_count(item)?).ok()?;
    let mut shape = Shape::from_slice(shape);
    *shape.first_mut()? = i64::try_from(count).ok()?;
    Some((shape, first.checked_mul(elements)?..end.checked_mul(elements)?))
}

pub fn too_few_rows(plan: &OutputPlan, shape: &[i64]) -> Status {
    let shape = format_shape(shape);
    Status::internal(format!("output '{}' of shape {shape} has fewer rows than its batch", plan.text))
}

pub fn too_few_elements(plan: &OutputPlan, shape: &[i64]) -> Status {
    let all = format_shape(shape);
    Status::internal(format!("output '{}' of shape {all} has fewer elements than its batch", plan.text))
}

impl Bytes {
    /// Elements `from..to`.
    fn window(&self, from: usize, to: usize, plan: &OutputPlan) -> Option<Slice> {
        match self {
            Bytes::Absent => None,
            Bytes::Strings(encoded) => encoded.window(from, to),
            Bytes::Numbers(bytes) => {
                let size = plan.element.datatype().byte_size();
                let range = from.checked_mul(size)?..to.checked_mul(size)?;
                (range.start <= range.end && range.end <= bytes.len()).then(|| bytes.window(range))
            }
        }
    }
}
