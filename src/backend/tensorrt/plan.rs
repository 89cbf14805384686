//! What is known of a model before requests come: which tensor is which, and how they are joined.

use nereid_backend::rows::{self, Tensors};
use nereid_model_config::ModelSpec;
use nereid_request::{DataType, OutputShape, Request, Shape, Status, Text, format_shape};
use nereid_wire::inference::model_config::SchedulingChoice;

use super::checks::Matched;

#[derive(Debug)]
pub struct InputPlan {
    pub name: String,
    /// Position in the configuration: that of the tensor in requests.
    pub index: usize,
    /// Position among the engine's inputs.
    pub tensor: usize,
    pub datatype: DataType,
}

#[derive(Debug)]
pub struct OutputPlan {
    pub name: Text,
    /// Position in the configuration. An output that only updates a state has none there: `usize::MAX`.
    pub index: usize,
    /// Position among the engine's outputs.
    pub tensor: usize,
    pub datatype: DataType,
    /// The shape that clients see.
    pub shape: OutputShape,
    pub is_state: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Plan {
    pub model: String,
    /// In the order of the configuration, all of the engine.
    pub inputs: Vec<InputPlan>,
    pub outputs: Vec<OutputPlan>,
    pub batching: bool,
    pub max_batch_size: u64,
}

/// The request at this index of its batch is at fault.
pub type Fault = (usize, Status);

impl Plan {
    pub fn new(spec: &ModelSpec, inputs: &[Matched<'_>], outputs: &[Matched<'_>]) -> Plan {
        let states = match &spec.config.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(sequence)) => sequence.state.as_slice(),
            _ => &[],
        };
        let input = |(index, matched): (usize, &Matched<'_>)| InputPlan {
            name: matched.spec.name.clone(),
            index,
            tensor: matched.tensor,
            datatype: matched.datatype,
        };
        let output = |(index, matched): (usize, &Matched<'_>)| OutputPlan {
            name: Text::from(matched.spec.name.as_str()),
            index: if index < spec.outputs.len() { index } else { usize::MAX },
            tensor: matched.tensor,
            datatype: matched.datatype,
            shape: OutputShape {
                dims: Shape::from_slice(&matched.spec.dims),
                reshape: matched.spec.reshape.as_deref().map(Shape::from_slice),
            },
            is_state: states.iter().any(|state| state.output_name == matched.spec.name),
        };
        Plan {
            model: spec.name.clone(),
            inputs: inputs.iter().enumerate().map(input).collect(),
            outputs: outputs.iter().enumerate().map(output).collect(),
            batching: spec.is_batching(),
            max_batch_size: spec.max_batch_size.into(),
        }
    }

    pub fn has_states(&self) -> bool {
        self.outputs.iter().any(|output| output.is_state)
    }

    /// The rows of a request.
    pub fn rows(&self, request: &Request) -> u64 {
        if self.batching { request.batch_size } else { 1 }
    }

    /// The shape of an input for all requests, and its bytes, which must be as many.
    pub fn joined(
        &self,
        input: &InputPlan,
        requests: &[Box<Request>],
        tensors: &Tensors<'_>,
    ) -> Result<(Shape, usize), Fault> {
        let mut joined: Option<Shape> = None;
        let mut rows = 0u64;
        for (at, (request, tensor)) in requests.iter().zip(tensors.inputs(input.index)).enumerate() {
            let missing = || (at, Status::internal(format!("failed to get input '{}'", input.name)));
            let tensor = tensor.ok_or_else(missing)?;
            let shape = rows::model_shape(tensor);
            let is_batch = || i64::try_from(request.batch_size).is_ok_and(|rows| shape.first() == Some(&rows));
            if self.batching && !is_batch() {
                let (shape, rows) = (format_shape(shape), request.batch_size);
                let text =
                    format!("input '{}' has the shape {shape}, but the request's batch size is {rows}", input.name);
                return Err((at, Status::internal(text)));
            }
            let first = usize::from(self.batching);
            if joined.as_ref().is_some_and(|joined| joined.get(first..) != shape.get(first..)) {
                let text = format!("requests of a batch differ in the shape of '{}'", input.name);
                return Err((at, Status::internal(text)));
            }
            let (found, expected) = (tensor.byte_size(), rows::byte_size(shape, input.datatype));
            if expected != Some(found) {
                let expected =
                    expected.map_or_else(|| "an impossible size".to_owned(), |expected| expected.to_string());
                return Err((
                    at,
                    Status::invalid(format!(
                        "input byte size mismatch for input '{}' for model '{}'. Expected {expected}, got {found}",
                        input.name, self.model
                    )),
                ));
            }
            rows = rows.saturating_add(request.batch_size);
            joined.get_or_insert_with(|| Shape::from_slice(shape));
        }
        let mut shape = joined.unwrap_or_default();
        let too_large = || (0, Status::internal(format!("input '{}' is too large for a batch", input.name)));
        if let Some(first) = shape.first_mut().filter(|_| self.batching) {
            *first = i64::try_from(rows).map_err(|_| too_large())?;
        }
        let len = rows::byte_size(&shape, input.datatype).ok_or_else(too_large)?;
        Ok((shape, len))
    }

    /// The part of an output that belongs to a request: its shape, and a range of elements. `None`: the output has too
    /// few rows.
    pub fn part(&self, shape: &[i64], first_row: u64, rows: u64) -> Option<(Shape, std::ops::Range<usize>)> {
        let all = rows::elements(shape)?;
        if !self.batching {
            return Some((Shape::from_slice(shape), 0..all));
        }
        let (count, items) = shape.split_first()?;
        let of_row = rows::elements(items)?;
        let end = first_row.checked_add(rows).filter(|end| i64::try_from(*end).is_ok_and(|end| end <= *count))?;
        let (start, end) = (usize::try_from(first_row).ok()?, usize::try_from(end).ok()?);
        let shape = std::iter::once(i64::try_from(rows).ok()?).chain(items.iter().copied()).collect();
        Some((shape, start.checked_mul(of_row)?..end.checked_mul(of_row)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(batching: bool) -> Plan {
        Plan { model: "m".to_owned(), inputs: Vec::new(), outputs: Vec::new(), batching, max_batch_size: 8 }
    }

    #[test]
    fn requests_get_their_rows() {
        assert_eq!(plan(true).part(&[5, 3], 2, 3), Some((Shape::from_slice(&[3, 3]), 6..15)));
        assert_eq!(plan(true).part(&[4, 3], 2, 3), None, "a row is missing");
        assert_eq!(plan(true).part(&[], 0, 1), None);
        assert_eq!(plan(false).part(&[5, 3], 0, 1), Some((Shape::from_slice(&[5, 3]), 0..15)));
        assert_eq!(plan(false).part(&[], 0, 1), Some((Shape::new(), 0..1)), "a scalar");
        assert_eq!(plan(true).part(&[i64::MAX, i64::MAX], 0, 1), None);
    }
}
