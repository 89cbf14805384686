//! Auto-completion of SavedModels by their signature (contract/frameworks.md section 5, "auto-complete").
//!
//! Pure functions of the configuration and of the signature.

use std::collections::BTreeSet;

use super::element::{configured, from_number, name_of_unsupported};
use super::saved_model::{ModelTensor, Signature};
use nereid_request::Status;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::{DataType, ModelConfig, ModelInput, ModelOutput, ModelTensorReshape};

/// Fills what the configuration leaves out. Returns a warning for the log.
///
/// On an error, the configuration may be changed in part.
pub fn complete(
    config: &mut ModelConfig,
    signature: &Signature,
    default_max_batch_size: i32,
) -> Result<Option<String>, Status> {
    let batching = supports_batching(config, signature)?;
    let mut warning = None;
    if config.max_batch_size == 0 {
        config.max_batch_size = if batching { default_max_batch_size.max(0) } else { 0 };
        // Triton's spelling.
        warning = batching.then(|| {
            format!(
                "autofilled max_batch_size to {} for model '{}' since batching is supporrted but no max_batch_size is \
                 specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max \
                 batch size",
                config.max_batch_size, config.name
            )
        });
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(Default::default()));
    }
    fill(config, signature)?;
    Ok(warning)
}

/// Whether the model can batch: every input and output of a known rank above 0 has an open first dimension, and the
/// dimensions in the configuration leave it out.
fn supports_batching(config: &ModelConfig, signature: &Signature) -> Result<bool, Status> {
    let name = &config.name;
    let mut ranked = signature.inputs.iter().chain(&signature.outputs).filter_map(ModelTensor::ranked).peekable();
    let has_ranks = ranked.peek().is_some();
    let is_open = ranked.all(|dims| dims.first() == Some(&-1));
    if config.max_batch_size > 0 {
        return match is_open {
            true => Ok(true),
            false => Err(Status::internal(format!(
                "unable to autofill for '{name}', configuration specified max-batch {} but model signature does not \
                 support batching",
                config.max_batch_size
            ))),
        };
    }
    // A signature without any rank says nothing about batching.
    if !is_open || !has_ranks {
        return Ok(false);
    }
    let inputs = config.input.iter().map(|input| (&input.name, &input.dims, &input.reshape, &signature.inputs));
    let outputs = config.output.iter().map(|output| (&output.name, &output.dims, &output.reshape, &signature.outputs));
    let hints = inputs.chain(outputs).filter_map(|(name, dims, reshape, tensors)| {
        let dims = reshape.as_ref().map_or(dims, |reshape| &reshape.shape);
        let rank = tensors.iter().find(|tensor| tensor.name == *name)?.ranked()?.len();
        (!dims.is_empty()).then_some(rank == dims.len() + 1)
    });
    let hints: BTreeSet<bool> = hints.collect();
    match hints.len() {
        0 => Ok(true),
        1 => Ok(hints.contains(&true)),
        _ => Err(Status::internal(format!(
            "unable to autofill for '{name}', model tensor configurations are contradicting each other in terms of \
             whether batching is supported"
        ))),
    }
}

/// Fills the empty lists, and what given entries leave out.
fn fill(config: &mut ModelConfig, signature: &Signature) -> Result<(), Status> {
    let (model, batching) = (config.name.clone(), config.max_batch_size > 0);
    let added = added_inputs(config);
    let no_output = added_outputs(config);
    if config.input.is_empty() {
        let given = signature.inputs.iter().filter(|tensor| !added.contains(&tensor.name));
        config.input = given.map(|tensor| ModelInput { name: tensor.name.clone(), ..Default::default() }).collect();
    }
    if config.output.is_empty() {
        let given = signature.outputs.iter().filter(|tensor| !no_output.contains(&tensor.name));
        config.output = given.map(|tensor| ModelOutput { name: tensor.name.clone(), ..Default::default() }).collect();
    }
    for input in &mut config.input {
        if let Some(tensor) = signature.inputs.iter().find(|tensor| tensor.name == input.name) {
            let (data_type, shape) = (&mut input.data_type, (&mut input.dims, &mut input.reshape));
            fill_tensor(&model, "input", tensor, batching, data_type, shape)?;
        }
    }
    for output in &mut config.output {
        if let Some(tensor) = signature.outputs.iter().find(|tensor| tensor.name == output.name) {
            let (data_type, shape) = (&mut output.data_type, (&mut output.dims, &mut output.reshape));
            fill_tensor(&model, "output", tensor, batching, data_type, shape)?;
        }
    }
    Ok(())
}

fn fill_tensor(
    model: &str,
    what: &str,
    tensor: &ModelTensor,
    batching: bool,
    data_type: &mut i32,
    (dims, reshape): (&mut Vec<i64>, &mut Option<ModelTensorReshape>),
) -> Result<(), Status> {
    supported(model, what, tensor)?;
    if *data_type == DataType::TypeInvalid as i32 {
        *data_type = configured(tensor.element_type).into();
    }
    if !dims.is_empty() {
        return Ok(());
    }
    let Some(shape) = tensor.ranked() else {
        return Err(Status::invalid(format!(
            "Unable to autofill for '{model}': the rank of model tensor '{}' is 0 and dimensions are not defined",
            tensor.name
        )));
    };
    let items = shape.get(usize::from(batching)..).unwrap_or_default();
    match items.is_empty() {
        // The dimensions of a configuration cannot be empty.
        true => {
            dims.push(1);
            reshape.get_or_insert_default();
        }
        false => dims.extend_from_slice(items),
    }
    Ok(())
}

/// Refuses a tensor that configurations cannot describe.
pub fn supported(model: &str, what: &str, tensor: &ModelTensor) -> Result<(), Status> {
    let name = &tensor.name;
    if tensor.tensor.is_empty() {
        let text = format!("{what} '{name}' of model '{model}' is not a dense tensor, which is not supported");
        return Err(Status::unsupported(text));
    }
    match from_number(tensor.element_type) {
        Some(_) => Ok(()),
        None => Err(Status::internal(format!(
            "unable to process {what} '{name}' for '{model}', unsupported datatype '{}'",
            name_of_unsupported(tensor.element_type)
        ))),
    }
}

/// Inputs of the model that clients do not send: those that the sequence batcher and `batch_input` add.
fn added_inputs(config: &ModelConfig) -> BTreeSet<String> {
    let described = config.batch_input.iter().flat_map(|input| input.target_name.iter().cloned());
    let sequence = match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(sequence)) => Some(sequence),
        _ => None,
    };
    let controls = sequence.into_iter().flat_map(|sequence| &sequence.control_input).map(|input| input.name.clone());
    let states = sequence.into_iter().flat_map(|sequence| &sequence.state).map(|state| state.input_name.clone());
    described.chain(controls).chain(states).collect()
}

/// Outputs of the model that update states: a client sees one only if the configuration lists it.
fn added_outputs(config: &ModelConfig) -> BTreeSet<String> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(sequence)) => {
            sequence.state.iter().map(|state| state.output_name.clone()).collect()
        }
        _ => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests;
