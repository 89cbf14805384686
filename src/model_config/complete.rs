//! Auto-completion: what a backend learned from the model's own file is merged into the configuration, and the
//! configuration is checked against it (contract/backends.md section 4, "Auto-complete" and "Checks at instance
//! creation").
//!
//! Pure functions of the configuration and of [`Learned`], so that they can be tested without a runtime.

use super::Error;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::{DataType, ModelConfig, ModelInput, ModelOutput, ModelTensorReshape};

mod checks;

pub use checks::check_instance;

/// The `max_batch_size` of auto-completion, unless `--backend-config=default-max-batch-size` sets another one.
pub const DEFAULT_MAX_BATCH_SIZE: i32 = 4;

/// A model as its file describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Learned {
    /// Inputs without an initializer.
    pub inputs: Vec<LearnedTensor>,
    /// Inputs with an initializer that a request may override.
    pub overridable: Vec<LearnedTensor>,
    pub outputs: Vec<LearnedTensor>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedTensor {
    pub name: String,
    pub kind: LearnedKind,
    /// The whole shape, batch dimension included; -1 for open and symbolic dimensions; empty for a scalar.
    pub dims: Vec<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LearnedKind {
    /// TYPE_INVALID for an element type without a name in a configuration.
    Tensor(DataType),
    /// A sequence, a map, an optional: the runtime's name of it, `ONNX_TYPE_SEQUENCE`.
    Other(String),
}

/// The result of completion, for the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Completion {
    /// Everything was specified already; the configuration is unchanged.
    pub skipped: Option<String>,
    pub warning: Option<String>,
}

impl Learned {
    /// Does every tensor have an open first dimension, so that it can be the batch?
    pub fn batching_possible(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).all(|tensor| tensor.dims.first() == Some(&-1))
    }
}

/// Fills what the configuration leaves out. Normalisation's rules 2 to 5 must run again afterwards.
///
/// On an error, the configuration is unchanged.
pub fn complete(config: &mut ModelConfig, learned: &Learned, default_max_batch_size: i32) -> Result<Completion, Error> {
    let model = config.name.clone();
    let mut completion = Completion::default();
    if (!config.input.is_empty() || !config.batch_input.is_empty()) && !config.output.is_empty() {
        completion.skipped = Some(format!(
            "skipping model configuration auto-complete for '{model}': inputs and outputs already specified"
        ));
        return Ok(completion);
    }
    let possible = learned.batching_possible();
    if !possible && config.max_batch_size > 0 {
        return Err(Error::invalid(format!(
            "autofill failed for model '{model}': model does not support batching while non-zero max_batch_size is \
             specified"
        )));
    }
    let fill_inputs = config.input.is_empty();
    let fill_outputs = config.output.is_empty();
    let filled_inputs = learned.inputs.iter().filter(|_| fill_inputs);
    for tensor in filled_inputs.chain(learned.outputs.iter().filter(|_| fill_outputs)) {
        checks::tensor_type(tensor)?;
    }
    if possible && config.max_batch_size == 0 && default_max_batch_size > 0 {
        config.max_batch_size = default_max_batch_size;
        completion.warning = Some(format!(
            "autofilled max_batch_size to {default_max_batch_size} for model '{model}' since batching is supported \
             but no max_batch_size is specified in model configuration. Must specify max_batch_size to utilize \
             autofill with a larger max batch size"
        ));
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(Default::default()));
    }
    let batching = config.max_batch_size > 0;
    if fill_inputs {
        config.input = learned.inputs.iter().map(|tensor| as_input(tensor, batching)).collect();
    }
    if fill_outputs {
        config.output = learned.outputs.iter().map(|tensor| as_output(tensor, batching)).collect();
    }
    Ok(completion)
}

/// Dims and reshape of a completed tensor. What is left of a scalar becomes `[1]`, because a configuration's dims
/// cannot be empty; with batching the backend still sees the scalar.
fn shape(tensor: &LearnedTensor, batching: bool) -> (Vec<i64>, Option<ModelTensorReshape>) {
    let dims = tensor.dims.get(usize::from(batching)..).unwrap_or_default();
    if dims.is_empty() {
        return (vec![1], batching.then(ModelTensorReshape::default));
    }
    (dims.to_vec(), None)
}

fn data_type(tensor: &LearnedTensor) -> DataType {
    match tensor.kind {
        LearnedKind::Tensor(data_type) => data_type,
        LearnedKind::Other(_) => DataType::TypeInvalid,
    }
}

fn as_input(tensor: &LearnedTensor, batching: bool) -> ModelInput {
    let (dims, reshape) = shape(tensor, batching);
    ModelInput { name: tensor.name.clone(), data_type: data_type(tensor).into(), dims, reshape, ..Default::default() }
}

fn as_output(tensor: &LearnedTensor, batching: bool) -> ModelOutput {
    let (dims, reshape) = shape(tensor, batching);
    ModelOutput { name: tensor.name.clone(), data_type: data_type(tensor).into(), dims, reshape, ..Default::default() }
}

#[cfg(test)]
mod tests;
