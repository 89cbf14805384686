//! What a configuration asks of a forest: its tensors, held against the forest's own numbers.

use crate::forest::Header;
use crate::settings::Task;
use nereid_backend::rows;
use nereid_model_config::{ModelSpec, TensorSpec};
use nereid_request::{DataType, OutputShape, Shape, Status, Text, format_shape};

const INPUT: &str = "input__0";
const PREDICTION: &str = "output__0";
const SHAPLEY_VALUES: &str = "treeshap_output";

/// True if the configuration has an output for Shapley values.
pub fn has_shapley_values<'a>(outputs: impl IntoIterator<Item = &'a str>) -> bool {
    outputs.into_iter().any(|name| name == SHAPLEY_VALUES)
}

/// An output and the dimensions of one row of it.
#[derive(Debug, Clone)]
pub struct Planned {
    pub output: rows::Output,
    pub row: Shape,
    /// Values of a row.
    pub columns: usize,
}

impl Planned {
    /// The shape for `rows` rows.
    pub fn shape(&self, rows: usize) -> Shape {
        let rows = i64::try_from(rows).unwrap_or(i64::MAX);
        std::iter::once(rows).chain(self.row.iter().copied()).collect()
    }
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub input: rows::Input,
    /// Given with every execution if it is not the type that forests take.
    pub wrong_type: Option<Status>,
    pub prediction: Planned,
    pub shapley_values: Option<Planned>,
    pub task: Task,
    pub features: usize,
    pub classes: usize,
    pub max_batch_size: u64,
}

impl Plan {
    pub fn new(spec: &ModelSpec, header: &Header, task: Task) -> Result<Plan, Status> {
        let Header { features, classes, .. } = *header;
        let batches = spec.max_batch_size > 0;
        let (index, input) = find(&spec.inputs, INPUT)
            .ok_or_else(|| Status::invalid(format!("model '{}' must have the input '{INPUT}'", spec.name)))?;
        check_features(&spec.name, input, features, batches)?;
        if let Some(other) = spec.outputs.iter().find(|output| ![PREDICTION, SHAPLEY_VALUES].contains(&&*output.name)) {
            let text = format!(
                "model '{}' has the output '{}'; the outputs of fil are '{PREDICTION}' and '{SHAPLEY_VALUES}'",
                spec.name, other.name
            );
            return Err(Status::invalid(text));
        }
        let planned = |name| find(&spec.outputs, name).map(|found| plan_output(&spec.name, found)).transpose();
        let prediction = planned(PREDICTION)?
            .ok_or_else(|| Status::invalid(format!("model '{}' must have the output '{PREDICTION}'", spec.name)))?;
        let columns: &[usize] = match task {
            Task::Class { .. } => &[1],
            Task::Probabilities if classes == 1 => &[1, 2],
            Task::Regression | Task::Probabilities => &[classes],
        };
        check_columns(&spec.name, &prediction, columns)?;
        let shapley_values = planned(SHAPLEY_VALUES)?;
        if let Some(values) = &shapley_values {
            check_columns(&spec.name, values, &[classes.saturating_mul(features + 1)])?;
        }
        let datatype = datatype_of(input);
        let wrong_type = (datatype != Some(DataType::Fp32)).then(|| {
            let text = format!("incorrect type {} for input with required type FP32", input.datatype);
            Status::internal(text)
        });
        let input = rows::Input { name: INPUT.to_owned(), index, datatype: DataType::Fp32, is_ragged: false };
        let max_batch_size = spec.max_batch_size.into();
        Ok(Plan { input, wrong_type, prediction, shapley_values, task, features, classes, max_batch_size })
    }
}

fn find<'a>(tensors: &'a [TensorSpec], name: &str) -> Option<(usize, &'a TensorSpec)> {
    tensors.iter().enumerate().find(|(_, tensor)| tensor.name == name)
}

fn datatype_of(tensor: &TensorSpec) -> Option<DataType> {
    DataType::from_number(u32::try_from(tensor.wire_number()).ok()?)
}

/// The dimensions that the backend sees.
fn dims(tensor: &TensorSpec) -> &[i64] {
    tensor.reshape.as_deref().unwrap_or(&tensor.dims)
}

/// treelite reads as many values of a row as the forest has features, whatever the row's length.
fn check_features(model: &str, input: &TensorSpec, features: usize, batches: bool) -> Result<(), Status> {
    let dims = dims(input);
    let fits = match dims {
        [of_row] if batches => Some(of_row),
        [_, of_row] if !batches => Some(of_row),
        _ => None,
    };
    let rows = if batches { "" } else { "rows, " };
    match fits {
        Some(count) if *count == -1 || usize::try_from(*count) == Ok(features) => Ok(()),
        _ => Err(Status::invalid(format!(
            "model '{model}', tensor '{INPUT}': the configuration has the dimensions {}, but the forest has {features} \
             features and needs [{rows}{features}]",
            format_shape(dims)
        ))),
    }
}

/// Dimensions of an output: one for the rows in front, and every 1 removed (contract/frameworks.md section 4).
fn plan_output(model: &str, (index, tensor): (usize, &TensorSpec)) -> Result<Planned, Status> {
    let dims = dims(tensor);
    let of_row = dims.strip_prefix(&[-1]).unwrap_or(dims);
    if of_row.contains(&-1) {
        return Err(Status::internal("Backends with variable-shape outputs must request desired output shape"));
    }
    if datatype_of(tensor) != Some(DataType::Fp32) {
        let text = format!(
            "model '{model}', tensor '{}': the configuration has the type {}, but forests compute FP32",
            tensor.name, tensor.datatype
        );
        return Err(Status::invalid(text));
    }
    let row: Shape = of_row.iter().copied().filter(|dim| *dim != 1).collect();
    let columns = rows::elements(&row).unwrap_or(usize::MAX);
    let output = rows::Output {
        name: Text::from(tensor.name.as_str()),
        index,
        datatype: DataType::Fp32,
        shape: OutputShape { dims: Shape::from_slice(&tensor.dims), reshape: None },
        is_state: false,
    };
    Ok(Planned { output, row, columns })
}

fn check_columns(model: &str, planned: &Planned, possible: &[usize]) -> Result<(), Status> {
    if possible.contains(&planned.columns) {
        return Ok(());
    }
    let possible: Vec<String> = possible.iter().map(usize::to_string).collect();
    Err(Status::invalid(format!(
        "model '{model}', tensor '{}': the configuration has {} values for each row, but the forest computes {}",
        planned.output.name,
        planned.columns,
        possible.join(" or ")
    )))
}

#[cfg(test)]
mod tests;
