//! The tensors of an instance: which argument each input is, which result each output is. The checks of the
//! configuration against the module are those of contract/frameworks.md section 1, in their order.

use super::naming::{InputNaming, check_states, control_argument, index_of, output_positions};
use crate::element::is_of_modules;
use crate::torch::{Argument, ArgumentKind};
use nereid_backend::rows::{BatchInputTensor, Input, Output, Scatter};
use nereid_model_config::{ModelSpec, TensorSpec, states};
use nereid_request::{DataType, OutputShape, Shape, Status, Text};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::{self as wire, ModelConfig, ModelSequenceBatching};

/// Where an input goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub name: String,
    /// The argument; of a model with one dictionary that one, and the name is the key.
    pub argument: usize,
}

#[derive(Debug)]
pub struct Plan {
    pub inputs: Vec<(Input, Target)>,
    pub batch_inputs: Vec<(BatchInputTensor, Vec<Target>)>,
    pub outputs: Vec<Output>,
    /// The position of each output in the result.
    pub positions: Vec<usize>,
    /// One for each output, with a value if it is split by the shapes of an input.
    pub scatters: Vec<Option<Scatter>>,
    pub max_batch_size: u64,
}

impl Plan {
    pub fn new(spec: &ModelSpec, arguments: &[Argument]) -> Result<Plan, Status> {
        let config = &spec.config;
        let mut plan = Plan {
            inputs: Vec::new(),
            batch_inputs: batch_inputs(config),
            outputs: Vec::new(),
            positions: Vec::new(),
            scatters: Vec::new(),
            max_batch_size: u64::from(spec.max_batch_size),
        };
        plan.add_controls(spec)?;
        let is_dictionary = matches!(arguments, [only] if only.kind == ArgumentKind::Dict);
        if !is_dictionary {
            check_arguments(arguments)?;
            let targets = plan.batch_inputs.iter().map(|(_, targets)| targets.len()).sum::<usize>();
            let expected = config.input.len() + targets + spec.hidden_inputs.len();
            if expected != arguments.len() {
                return Err(Status::invalid(format!(
                    "unable to load model '{}', configuration expects {expected} inputs, model provides {}",
                    spec.name,
                    arguments.len()
                )));
            }
        }
        check_count(config.input.len(), "input")?;
        plan.add_inputs(spec, arguments)?;
        if let Some(sequence) = sequence(config).filter(|sequence| !states(sequence).is_empty()) {
            check_state_names(config, sequence)?;
        }
        if is_dictionary {
            plan.targets_mut().for_each(|target| target.argument = 0);
        } else {
            plan.check_coverage(arguments, &spec.name)?;
        }
        plan.add_outputs(spec)?;
        Ok(plan)
    }

    /// Controls come first: their properties are checked before anything of the module.
    fn add_controls(&mut self, spec: &ModelSpec) -> Result<(), Status> {
        let controls = sequence(&spec.config).map_or(0, |sequence| sequence.control_input.len());
        for (at, tensor) in spec.hidden_inputs.iter().take(controls).enumerate() {
            let argument = control_argument(&tensor.name)?;
            let unsupported = || {
                let name = tensor.data_type.as_str_name();
                Status::internal(format!("input '{}' type '{name}' is not supported by PyTorch.", tensor.name))
            };
            let datatype =
                datatype(tensor.data_type).filter(|datatype| is_of_modules(*datatype)).ok_or_else(unsupported)?;
            self.push_input(spec.inputs.len() + at, tensor, datatype, argument);
        }
        Ok(())
    }

    fn push_input(&mut self, index: usize, tensor: &TensorSpec, datatype: DataType, argument: usize) {
        let name = tensor.name.clone();
        let input = Input { name: name.clone(), index, datatype, is_ragged: false };
        self.inputs.push((input, Target { name, argument }));
    }

    /// The inputs of the configuration, then those of `batch_input`, then those of states.
    fn add_inputs(&mut self, spec: &ModelSpec, arguments: &[Argument]) -> Result<(), Status> {
        let (config, model) = (&spec.config, &spec.name);
        let names: Vec<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
        let allowed: Vec<&str> = arguments.iter().map(|argument| argument.name.as_str()).collect();
        let (naming, warning) = InputNaming::of(&names, &allowed, model);
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        let argument = |name: &str, position| {
            let none = || {
                let text = format!("input '{name}' is not an argument of the forward function of model '{model}'");
                Status::invalid(text)
            };
            // In a dictionary the name itself counts.
            match arguments {
                [only] if only.kind == ArgumentKind::Dict => Ok(0),
                _ => naming.argument(name, position, &allowed).ok_or_else(none),
            }
        };
        for (at, (tensor, given)) in spec.inputs.iter().zip(&config.input).enumerate() {
            let datatype = supported(tensor, "input", model)?;
            check_strings(tensor, datatype, "input", spec)?;
            self.push_input(at, tensor, datatype, argument(&tensor.name, at)?);
            if let Some((input, _)) = self.inputs.last_mut() {
                input.is_ragged = given.allow_ragged_batch;
            }
        }
        let described = self.batch_inputs.iter_mut().flat_map(|(_, targets)| targets);
        for (position, target) in (config.input.len()..).zip(described) {
            target.argument = argument(&target.name, position)?;
        }
        let controls = sequence(config).map_or(0, |sequence| sequence.control_input.len());
        for (at, tensor) in spec.hidden_inputs.iter().enumerate().skip(controls) {
            let datatype = supported(tensor, "input state", model)?;
            check_strings(tensor, datatype, "input", spec)?;
            // A name without an index is refused below.
            let argument = index_of(&tensor.name).unwrap_or(usize::MAX);
            self.push_input(spec.inputs.len() + at, tensor, datatype, argument);
        }
        Ok(())
    }

    fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let of_inputs = self.inputs.iter_mut().map(|(_, target)| target);
        of_inputs.chain(self.batch_inputs.iter_mut().flat_map(|(_, targets)| targets))
    }

    /// Each argument is given once: the library would read an argument that no input fills.
    fn check_coverage(&self, arguments: &[Argument], model: &str) -> Result<(), Status> {
        let mut given: Vec<Option<&str>> = vec![None; arguments.len()];
        let of_inputs = self.inputs.iter().map(|(_, target)| target);
        for Target { name, argument } in of_inputs.chain(self.batch_inputs.iter().flat_map(|(_, targets)| targets)) {
            let Some(place) = given.get_mut(*argument) else {
                return Err(Status::invalid(format!(
                    "input '{name}' of model '{model}' has the index {argument}, but the model has {} arguments",
                    arguments.len()
                )));
            };
            if let Some(first) = place.replace(name) {
                return Err(Status::invalid(format!(
                    "inputs '{first}' and '{name}' of model '{model}' are the same argument, number {argument}"
                )));
            }
        }
        Ok(())
    }

    fn add_outputs(&mut self, spec: &ModelSpec) -> Result<(), Status> {
        let (config, model) = (&spec.config, &spec.name);
        check_count(config.output.len(), "output")?;
        let names: Vec<&str> = config.output.iter().map(|output| output.name.as_str()).collect();
        let (positions, warning) = output_positions(&names, model);
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        let is_state = |name: &str| {
            sequence(config).is_some_and(|sequence| states(sequence).iter().any(|state| state.output_name == name))
        };
        let input_position = |name: &String| config.input.iter().position(|input| input.name == *name);
        for (index, (tensor, position)) in spec.outputs.iter().zip(positions).enumerate() {
            let datatype = supported(tensor, "output", model)?;
            check_strings(tensor, datatype, "output", spec)?;
            let given = config.batch_output.iter().find(|given| given.target_name.contains(&tensor.name));
            let source = given.map(|given| given.source_input.first().and_then(input_position).unwrap_or(usize::MAX));
            self.outputs.push(output(tensor, index, datatype, is_state(&tensor.name)));
            self.positions.push(position);
            self.scatters.push(source.filter(|_| datatype != DataType::Bytes).map(|source| Scatter { source }));
        }
        for tensor in &spec.hidden_outputs {
            let datatype = supported(tensor, "state", model)?;
            check_strings(tensor, datatype, "output", spec)?;
            let position = index_of(&tensor.name).unwrap_or(usize::MAX);
            self.outputs.push(output(tensor, usize::MAX, datatype, true));
            self.positions.push(position);
            self.scatters.push(None);
        }
        Ok(())
    }
}

fn output(tensor: &TensorSpec, index: usize, datatype: DataType, is_state: bool) -> Output {
    let reshape = tensor.reshape.as_deref().map(Shape::from_slice);
    let shape = OutputShape { dims: Shape::from_slice(&tensor.dims), reshape };
    Output { name: Text::from(tensor.name.as_str()), index, datatype, shape, is_state }
}

fn sequence(config: &ModelConfig) -> Option<&ModelSequenceBatching> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(sequence)) => Some(sequence),
        _ => None,
    }
}

fn batch_inputs(config: &ModelConfig) -> Vec<(BatchInputTensor, Vec<Target>)> {
    let position = |name: &String| config.input.iter().position(|input| input.name == *name);
    let planned = config.batch_input.iter().map(|given| {
        let source = given.source_input.first().and_then(position);
        let plan = BatchInputTensor::new(given, source.unwrap_or(usize::MAX));
        let targets =
            given.target_name.iter().map(|name| Target { name: name.clone(), argument: usize::MAX }).collect();
        (plan, targets)
    });
    planned.collect()
}

/// A single dictionary is the caller's to accept.
fn check_arguments(arguments: &[Argument]) -> Result<(), Status> {
    if arguments.iter().skip(1).any(|argument| argument.kind == ArgumentKind::Dict) {
        return Err(Status::internal(
            "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is \
             supported.",
        ));
    }
    match arguments.iter().find(|argument| !matches!(argument.kind, ArgumentKind::Tensor | ArgumentKind::List)) {
        None => Ok(()),
        Some(odd) => Err(Status::internal(format!(
            "An input of type '{}' was detected in the model. Only a single input of type Dict(str, Tensor) or \
             input(s) of type Tensor are supported.",
            odd.type_name
        ))),
    }
}

fn check_count(count: usize, what: &str) -> Result<(), Status> {
    match count {
        0 => {
            Err(Status::internal(format!("model configuration must contain at least one {what}, none were specified.")))
        }
        _ => Ok(()),
    }
}

fn datatype(given: wire::DataType) -> Option<DataType> {
    u32::try_from(given as i32).ok().and_then(DataType::from_number)
}

/// The type of a tensor, if the library has it; strings are lists there.
fn supported(tensor: &TensorSpec, what: &str, model: &str) -> Result<DataType, Status> {
    let found = datatype(tensor.data_type).filter(|datatype| is_of_modules(*datatype) || *datatype == DataType::Bytes);
    found.ok_or_else(|| {
        let (datatype, name) = (tensor.data_type.as_str_name(), &tensor.name);
        Status::internal(format!("unsupported datatype {datatype} for {what} '{name}' for model '{model}'"))
    })
}

/// A list has one dimension.
fn check_strings(tensor: &TensorSpec, datatype: DataType, what: &str, spec: &ModelSpec) -> Result<(), Status> {
    let dims = tensor.reshape.as_ref().unwrap_or(&tensor.dims);
    if datatype == DataType::Bytes && dims.len() + usize::from(spec.max_batch_size > 0) > 1 {
        return Err(Status::internal(format!(
            "Triton only supports 1 dimensional List of String as {what} for '{}' for model '{}'",
            tensor.name, spec.name
        )));
    }
    Ok(())
}

fn check_state_names(config: &ModelConfig, sequence: &ModelSequenceBatching) -> Result<(), Status> {
    let inputs = config.input.iter().map(|input| input.name.as_str());
    let tensors: Vec<&str> = inputs.chain(config.output.iter().map(|output| output.name.as_str())).collect();
    let used = states(sequence);
    let names = used.iter().flat_map(|state| [state.input_name.as_str(), state.output_name.as_str()]);
    check_states(&tensors, &names.collect::<Vec<&str>>(), &config.name)
}

#[cfg(test)]
mod tests;
