//! Auto-completion: what an engine says is merged into its configuration (contract/frameworks.md section 2, "Loading").

use nereid_request::{DataType, Status};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::{DataType as Type, ModelConfig, ModelInput, ModelOutput, ModelTensorReshape};

use super::described::{Described, Tensor};
use super::settings::{NamedProfile, profiles};

/// Fills what the configuration leaves out.
pub fn complete(config: &mut ModelConfig, engine: &Described) -> Result<(), Status> {
    let profiles = all_profiles(config, engine)?;
    let supported = profiles.iter().map(|profile| engine.batch_size_max(profile.index)).max().unwrap_or(0);
    complete_batching(config, engine, supported)?;
    let batches = config.max_batch_size > 0;
    if config.input.is_empty() {
        let named = |tensor: &Tensor| ModelInput { name: tensor.name.clone(), ..Default::default() };
        config.input = engine.inputs.iter().filter(|tensor| !is_control(config, &tensor.name)).map(named).collect();
    }
    if config.output.is_empty() {
        let named = |tensor: &Tensor| ModelOutput { name: tensor.name.clone(), ..Default::default() };
        config.output = engine.outputs.iter().filter(|tensor| !is_state(config, &tensor.name)).map(named).collect();
    }
    for input in &mut config.input {
        let Some(tensor) = engine.input(&input.name) else { continue };
        let mut data_type = input.data_type();
        if fill(tensor, batches, &mut data_type, &mut input.dims) {
            input.reshape = Some(ModelTensorReshape::default());
        }
        input.set_data_type(data_type);
        fill_flags(tensor, &mut input.is_shape_tensor, &mut input.is_non_linear_format_io)?;
    }
    for output in &mut config.output {
        let Some(tensor) = engine.output(&output.name) else { continue };
        let mut data_type = output.data_type();
        if fill(tensor, batches, &mut data_type, &mut output.dims) {
            output.reshape = Some(ModelTensorReshape::default());
        }
        output.set_data_type(data_type);
        fill_flags(tensor, &mut output.is_shape_tensor, &mut output.is_non_linear_format_io)?;
    }
    Ok(())
}

/// The profiles of all groups.
fn all_profiles(config: &ModelConfig, engine: &Described) -> Result<Vec<NamedProfile>, Status> {
    let mut all = Vec::new();
    for group in &config.instance_group {
        all.extend(profiles(group).map_err(Status::internal)?);
    }
    if let Some(NamedProfile { name, .. }) = all.iter().find(|profile| profile.index >= engine.profiles.max(1)) {
        return Err(Status::internal(format!(
            "unable to autofill for '{}', configuration specified invalid profile {name} . Number of profiles \
             supported by TensorRT engine: {}",
            config.name, engine.profiles
        )));
    }
    if all.is_empty() {
        all.push(NamedProfile { name: "default".to_owned(), index: 0 });
    }
    Ok(all)
}

fn complete_batching(config: &mut ModelConfig, engine: &Described, supported: i64) -> Result<(), Status> {
    let name = config.name.clone();
    let hint = batch_hint(config, engine)?;
    if supported == 0 {
        return match hint {
            Some(true) => Err(Status::internal(format!(
                "autofill failed for model '{name}': model tensor shape configuration hints for dynamic batching but \
                 the underlying engine doesn't support batching."
            ))),
            _ if config.max_batch_size > 0 => Err(too_large(&name, config.max_batch_size, supported)),
            _ => Ok(()),
        };
    }
    if hint == Some(false) {
        tracing::warn!("The specified dimensions in model config for {name} hints that batching is unavailable");
        config.max_batch_size = 0;
        return Ok(());
    }
    match i64::from(config.max_batch_size) {
        0 => config.max_batch_size = i32::try_from(supported).unwrap_or(i32::MAX),
        given if given > supported => return Err(too_large(&name, config.max_batch_size, supported)),
        _ => {}
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(Default::default()));
    }
    Ok(())
}

fn too_large(name: &str, given: i32, supported: i64) -> Status {
    Status::internal(format!(
        "autofill failed for model '{name}': configuration specified max-batch {given} but TensorRT engine only \
         supports max-batch {supported}"
    ))
}

/// What the dims of the configuration say of a batch dimension: those of all tensors must agree.
fn batch_hint(config: &ModelConfig, engine: &Described) -> Result<Option<bool>, Status> {
    let inputs = config.input.iter().map(|input| (engine.input(&input.name), &input.dims, input.reshape.as_ref()));
    let outputs =
        config.output.iter().map(|output| (engine.output(&output.name), &output.dims, output.reshape.as_ref()));
    let mut hint = None;
    for (tensor, dims, reshape) in inputs.chain(outputs) {
        let Some(tensor) = tensor.filter(|tensor| !tensor.is_shape_tensor) else { continue };
        if dims.is_empty() && reshape.is_none() {
            continue;
        }
        let rank = reshape.map_or(dims.len(), |reshape| reshape.shape.len());
        let says = match tensor.shape.len().checked_sub(rank) {
            Some(0) => false,
            Some(1) => true,
            _ => continue,
        };
        if hint.is_some_and(|hint| hint != says) {
            return Err(Status::internal(format!(
                "unable to autofill for '{}', model tensor configurations are contradicting each other in terms of \
                 whether batching is supported",
                config.name
            )));
        }
        hint = Some(says);
    }
    Ok(hint)
}

/// True for a scalar: it has one value, and a configuration has no tensor without dimensions, so it is reshaped.
fn fill(tensor: &Tensor, batches: bool, data_type: &mut Type, dims: &mut Vec<i64>) -> bool {
    if *data_type == Type::TypeInvalid {
        *data_type = tensor.datatype.map_or(Type::TypeInvalid, type_of);
    }
    let is_open = dims.is_empty();
    if is_open {
        let skipped = usize::from(batches && !tensor.is_shape_tensor);
        *dims = tensor.shape.get(skipped..).unwrap_or_default().to_vec();
    }
    let is_scalar = is_open && dims.is_empty();
    if is_scalar {
        dims.push(1);
    }
    is_scalar
}

fn fill_flags(tensor: &Tensor, is_shape_tensor: &mut bool, is_non_linear: &mut bool) -> Result<(), Status> {
    let name = &tensor.name;
    if *is_shape_tensor && !tensor.is_shape_tensor {
        return Err(Status::internal(format!("'{name}' is incorrectly specified as a shape tensor.")));
    }
    if *is_non_linear && tensor.is_linear {
        return Err(Status::internal(format!(
            "'{name}' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true in the model \
             configuration."
        )));
    }
    *is_shape_tensor = tensor.is_shape_tensor;
    *is_non_linear = !tensor.is_linear;
    Ok(())
}

/// Whether the server itself adds an input of this name.
fn is_control(config: &ModelConfig, name: &str) -> bool {
    let Some(SchedulingChoice::SequenceBatching(sequence)) = &config.scheduling_choice else { return false };
    sequence.control_input.iter().any(|control| control.name == name)
        || sequence.state.iter().any(|state| state.input_name == name)
}

fn is_state(config: &ModelConfig, name: &str) -> bool {
    let Some(SchedulingChoice::SequenceBatching(sequence)) = &config.scheduling_choice else { return false };
    sequence.state.iter().any(|state| state.output_name == name)
}

fn type_of(datatype: DataType) -> Type {
    Type::try_from(datatype as i32).unwrap_or(Type::TypeInvalid)
}

#[cfg(test)]
mod tests;
