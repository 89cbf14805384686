//! Outputs that are no tensors, converted to tensors: the sequences of maps in which classifiers give probabilities,
//! sequences of tensors, and optional tensors.
//!
//! A sequence of maps becomes a matrix: a row for each map, its columns in ascending order of the keys. That is only
//! right if all maps have the same keys, so other maps are an error. The keys themselves are an output of their own,
//! which a configuration may list.

use super::element::ElementType;
use super::plan::OutputPlan;
use super::result::ResultTensor;
use super::strings::Content;
use super::value::Value;
use super::value_type::ValueKind;
use nereid_memory::Pool;
use nereid_request::{Shape, Status, element_count};

/// An output of a run as tensors.
pub struct Converted {
    pub values: ResultTensor,
    /// The keys of each row, if maps were converted.
    pub keys: Option<ResultTensor>,
}

impl Converted {
    /// The result for an output that no request needs.
    pub fn absent() -> Converted {
        Converted { values: ResultTensor::absent(), keys: Some(ResultTensor::absent()) }
    }
}

/// Converts `value`, which is of the kind `kind`.
pub fn convert(
    value: &Value,
    kind: ValueKind,
    plan: &OutputPlan,
    content: &mut Content,
    pool: &Pool,
) -> Result<Converted, Status> {
    let (values, keys) = match kind {
        ValueKind::Optional if !value.is_present()? => (ResultTensor::absent(), None),
        ValueKind::Sequence => {
            let tensors: Vec<Value> = (0..value.count()?).map(|at| value.element(at)).collect::<Result<_, _>>()?;
            let shape = stacked_shape(&tensors, plan)?;
            (gather(&tensors, shape, plan.element, plan, content, pool)?, None)
        }
        ValueKind::Maps(key) => {
            let rows: Vec<Value> = (0..value.count()?).map(|at| value.element(at)).collect::<Result<_, _>>()?;
            let (values, keys) = matrix(&rows, key, plan, content, pool)?;
            (values, Some(keys))
        }
        ValueKind::Map(key) => {
            let (values, keys) = matrix(std::slice::from_ref(value), key, plan, content, pool)?;
            (values.without_first_dim(), Some(keys.without_first_dim()))
        }
        ValueKind::Optional | ValueKind::Tensor => {
            let shape = value.tensor_type()?.1;
            (gather(std::slice::from_ref(value), shape, plan.element, plan, content, pool)?, None)
        }
        ValueKind::Other(name) => {
            return Err(Status::internal(format!("output '{}' is an {name}, which has no tensor", plan.text)));
        }
    };
    Ok(Converted { values, keys })
}

/// The shape of a tensor with one more dimension in front.
fn stacked_shape(tensors: &[Value], plan: &OutputPlan) -> Result<Shape, Status> {
    let mut shape = Shape::from_slice(&[length(tensors.len(), plan)?]);
    let Some((first, others)) = tensors.split_first() else {
        // No tensor shows its dimensions.
        shape.resize(plan.rank.max(1), 0);
        return Ok(shape);
    };
    let (_, dims) = first.tensor_type()?;
    for (at, other) in others.iter().enumerate() {
        if other.tensor_type()?.1 != dims {
            return Err(Status::internal(format!(
                "output '{}' is a sequence whose tensors 0 and {} differ in shape, so that no tensor can hold it; let \
                 the model join them (ConcatFromSequence)",
                plan.text,
                at + 1
            )));
        }
    }
    shape.extend(dims);
    Ok(shape)
}

/// Values and keys of maps, a row for each map.
fn matrix(
    maps: &[Value],
    key: ElementType,
    plan: &OutputPlan,
    content: &mut Content,
    pool: &Pool,
) -> Result<(ResultTensor, ResultTensor), Status> {
    let mut keys: Vec<Value> = Vec::with_capacity(maps.len());
    let mut values: Vec<Value> = Vec::with_capacity(maps.len());
    let (mut first, mut next) = (Row::default(), Row::default());
    for (at, map) in maps.iter().enumerate() {
        let of_map = map.element(0)?;
        let row = if at == 0 { &mut first } else { &mut next };
        row.read(&of_map, key, plan)?;
        if at > 0 && next != first {
            return Err(Status::internal(format!(
                "output '{}' is a sequence whose maps 0 and {at} have different keys, so that no matrix can hold it; \
                 export the model with a tensor in its place (scikit-learn: options={{'zipmap': False}})",
                plan.text
            )));
        }
        keys.push(of_map);
        values.push(map.element(1)?);
    }
    let shape = Shape::from_slice(&[length(maps.len(), plan)?, length(first.columns, plan)?]);
    let values = gather(&values, shape.clone(), plan.element, plan, content, pool)?;
    let keys = gather(&keys, shape, key, plan, content, pool)?;
    Ok((values, keys))
}

/// The keys of a map, to be compared with those of the others.
#[derive(Default, PartialEq, Eq)]
struct Row {
    columns: usize,
    content: Content,
}

impl Row {
    fn read(&mut self, keys: &Value, element: ElementType, plan: &OutputPlan) -> Result<(), Status> {
        self.columns = count(&keys.tensor_type()?.1, plan)?;
        let Content { bytes, starts } = &mut self.content;
        match element.datatype().byte_size() {
            0 => keys.string_content(self.columns, bytes, starts)?,
            size => {
                bytes.resize(byte_size(self.columns, size, plan)?, 0);
                keys.copy_numbers(bytes)?;
            }
        }
        Ok(())
    }
}

/// The elements of all `tensors`, one behind the other, as one tensor of `shape`.
fn gather(
    tensors: &[Value],
    shape: Shape,
    element: ElementType,
    plan: &OutputPlan,
    content: &mut Content,
    pool: &Pool,
) -> Result<ResultTensor, Status> {
    let size = element.datatype().byte_size();
    let total = count(&shape, plan)?;
    if size == 0 {
        content.clear();
        let mut part = Content::default();
        for tensor in tensors {
            tensor.string_content(count(&tensor.tensor_type()?.1, plan)?, &mut part.bytes, &mut part.starts)?;
            content.append(&part);
        }
        if content.starts.len() != total {
            return Err(Status::internal(format!("output '{}' has another size than its shape", plan.text)));
        }
        return ResultTensor::of_strings(shape, content, plan, pool);
    }
    let mut block = pool.get(byte_size(total, size, plan)?)?;
    if total > 0 && !tensors.is_empty() {
        // Equal shares: what is left over would not be a whole tensor, and is refused by the copy.
        let share = block.len() / tensors.len();
        for (tensor, part) in tensors.iter().zip(block.chunks_mut(share.max(1))) {
            tensor.copy_numbers(part)?;
        }
    }
    Ok(ResultTensor::of_numbers(shape, block.freeze()))
}

fn count(shape: &[i64], plan: &OutputPlan) -> Result<usize, Status> {
    let count = element_count(shape).and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| too_large(plan))
}

fn byte_size(count: usize, size: usize, plan: &OutputPlan) -> Result<usize, Status> {
    count.checked_mul(size).ok_or_else(|| too_large(plan))
}

fn length(count: usize, plan: &OutputPlan) -> Result<i64, Status> {
    i64::try_from(count).map_err(|_| too_large(plan))
}

fn too_large(plan: &OutputPlan) -> Status {
    Status::internal(format!("output '{}' is too large", plan.text))
}

#[cfg(test)]
mod tests;
