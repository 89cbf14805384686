//! Checks the tensors of a configuration against those of the model, and keeps which is which
//! (contract/frameworks.md section 1a).
//!
//! A package states neither types nor shapes, so those of the configuration are what requests are checked against.

use nereid_backend::rows::{self, BatchInputTensor};
use nereid_model_config::{ModelSpec, TensorSpec};
use nereid_request::{DataType, OutputShape, Shape, Status, Text};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_config::SchedulingChoice;

use super::names::TensorNames;
use crate::element::{config_name, dtype_of};

/// An input of the configuration, or one that the server adds.
#[derive(Debug)]
pub struct InputPlan {
    pub input: rows::Input,
    /// Among the inputs of the model.
    pub position: usize,
    pub dtype: i32,
}

/// A tensor that describes the batch.
#[derive(Debug)]
pub struct BatchInput {
    pub plan: BatchInputTensor,
    pub positions: Vec<usize>,
    pub dtype: i32,
}

/// The position of an output among those of the model, and torch's number of its type.
pub type OutputResult = (usize, i32);

type PlannedOutputs = (Vec<rows::Output>, Vec<OutputResult>);

/// The tensors of one instance.
#[derive(Debug)]
pub struct Plan {
    pub inputs: Vec<InputPlan>,
    pub batch_inputs: Vec<BatchInput>,
    pub outputs: Vec<rows::Output>,
    /// One for each output.
    pub results: Vec<OutputResult>,
    pub max_batch_size: u64,
    /// It batches, and each row of an input belongs to one row of the batch.
    pub has_equal_rows: bool,
}

impl Plan {
    pub fn new(instance: &str, spec: &ModelSpec, inputs: &TensorNames, outputs: &TensorNames) -> Result<Plan, Status> {
        let config = &spec.config;
        if let Some(output) = config.batch_output.first() {
            return Err(Status::internal(format!(
                "Output \"{}\" for model instance \"{instance}\" is split by batch_output, which platform torch_aoti \
                 does not support; remove batch_output from the configuration.",
                output.target_name.join(", ")
            )));
        }
        let targets: usize = config.batch_input.iter().map(|input| input.target_name.len()).sum();
        let expected = spec.inputs.len() + spec.hidden_inputs.len() + targets;
        if expected != inputs.len() {
            return Err(Status::internal(format!(
                "Failed to load model \"{instance}\" configuration expects {expected} inputs, but model expects {} \
                 inputs.",
                inputs.len()
            )));
        }
        let search = Search { instance, direction: "input", names: inputs };
        let mut planned = Vec::new();
        for (index, tensor) in spec.inputs.iter().chain(&spec.hidden_inputs).enumerate() {
            let is_hidden = index >= spec.inputs.len();
            let position = search.position(&tensor.name, is_hidden)?;
            let datatype = search.datatype(tensor)?;
            let is_ragged = config.input.get(index).is_some_and(|input| input.allow_ragged_batch);
            planned.push(InputPlan {
                input: rows::Input { name: tensor.name.clone(), index, datatype: datatype.0, is_ragged },
                position,
                dtype: datatype.1,
            });
        }
        let batch_inputs = batch_inputs(config, &search)?;
        check_distinct(instance, &planned, &batch_inputs)?;
        if spec.outputs.is_empty() {
            return Err(Status::internal(format!(
                "Configuration for model \"{instance}\" must define at least one output, none were specified."
            )));
        }
        let (outputs, results) = planned_outputs(spec, &Search { instance, direction: "output", names: outputs })?;
        let max_batch_size = u64::from(spec.max_batch_size);
        let is_described = planned.iter().any(|input| input.input.is_ragged) || !batch_inputs.is_empty();
        let has_equal_rows = max_batch_size > 0 && !is_described;
        Ok(Plan { inputs: planned, batch_inputs, outputs, results, max_batch_size, has_equal_rows })
    }
}

/// The search for tensors of the configuration among those of the model.
struct Search<'a> {
    instance: &'a str,
    direction: &'static str,
    names: &'a TensorNames,
}

impl Search<'_> {
    fn position(&self, name: &str, is_hidden: bool) -> Result<usize, Status> {
        let found = if is_hidden { self.names.position_of_hidden(name) } else { self.names.position(name) };
        found.ok_or_else(|| {
            let title = if self.direction == "input" { "Input" } else { "Output" };
            Status::internal(format!(
                "{title} \"{name}\" for model instance \"{}\" is not found in model {} map.",
                self.instance, self.direction
            ))
        })
    }

    /// The type of a tensor, and torch's number for it.
    fn datatype(&self, tensor: &TensorSpec) -> Result<(DataType, i32), Status> {
        let number = u32::try_from(tensor.wire_number()).ok();
        let datatype = number.and_then(DataType::from_number);
        datatype.and_then(|datatype| Some((datatype, dtype_of(datatype)?))).ok_or_else(|| {
            Status::internal(format!(
                "Unsupported datatype {} for {} \"{}\" for model instance \"{}\".",
                datatype.map_or("TYPE_INVALID", config_name),
                self.direction,
                tensor.name,
                self.instance
            ))
        })
    }
}

fn batch_inputs(config: &ModelConfig, search: &Search<'_>) -> Result<Vec<BatchInput>, Status> {
    let source_of = |name: &String| config.input.iter().position(|input| input.name == *name);
    let planned = config.batch_input.iter().map(|given| {
        let source = given.source_input.first().and_then(source_of).unwrap_or(usize::MAX);
        let plan = BatchInputTensor::new(given, source);
        let positions = plan.targets.iter().map(|target| search.position(target, false)).collect::<Result<_, _>>()?;
        let dtype = dtype_of(plan.datatype).ok_or_else(|| Status::internal("a batch input has no type"))?;
        Ok(BatchInput { plan, positions, dtype })
    });
    planned.collect()
}

/// Refuses two names for one input: another one would be without a tensor, because there are as many names as inputs.
fn check_distinct(instance: &str, inputs: &[InputPlan], batch_inputs: &[BatchInput]) -> Result<(), Status> {
    let named = inputs.iter().map(|input| (input.position, &input.input.name));
    let made = batch_inputs.iter().flat_map(|input| input.positions.iter().copied().zip(&input.plan.targets));
    let mut seen: Vec<(usize, &String)> = named.chain(made).collect();
    seen.sort_unstable();
    match seen.array_windows().find(|[(a, _), (b, _)]| a == b) {
        None => Ok(()),
        Some([(_, a), (_, b)]) => Err(Status::internal(format!(
            "Inputs \"{a}\" and \"{b}\" for model instance \"{instance}\" are the same input of the model; name each \
             input once."
        ))),
    }
}

fn planned_outputs(spec: &ModelSpec, search: &Search<'_>) -> Result<PlannedOutputs, Status> {
    let states = match &spec.config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(sequence)) => sequence.state.as_slice(),
        _ => &[],
    };
    let (mut outputs, mut results) = (Vec::new(), Vec::new());
    for (at, tensor) in spec.outputs.iter().chain(&spec.hidden_outputs).enumerate() {
        let is_state = states.iter().any(|state| state.output_name == tensor.name);
        let position = search.position(&tensor.name, is_state)?;
        let (datatype, dtype) = search.datatype(tensor)?;
        outputs.push(rows::Output {
            name: Text::from(tensor.name.as_str()),
            index: if at < spec.outputs.len() { at } else { usize::MAX },
            datatype,
            shape: OutputShape {
                dims: Shape::from_slice(&tensor.dims),
                reshape: tensor.reshape.as_deref().map(Shape::from_slice),
            },
            is_state,
        });
        results.push((position, dtype));
    }
    Ok((outputs, results))
}

#[cfg(test)]
mod tests;
