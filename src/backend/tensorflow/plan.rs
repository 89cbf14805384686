//! How the tensors of one instance are passed to its session and taken from it.

use super::api::{Port, Session};
use super::element::number_of;
use super::saved_model::{ModelTensor, Signature};
use nereid_backend::InstanceContext;
use nereid_backend::rows::{BatchInputTensor, Input, Output, Scatter};
use nereid_model_config::TensorSpec;
use nereid_request::{DataType, OutputShape, Shape, Status, Text};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_config::SchedulingChoice;

/// An input that requests have.
pub struct InputPlan {
    pub input: Input,
    pub port: Port,
    /// TensorFlow's number of its type.
    pub element_type: i32,
    pub is_optional: bool,
    /// The model has a scalar where the configuration can only have `[1]`.
    pub is_scalar: bool,
}

/// An input that is made of the requests of a batch.
pub struct BatchInputPlan {
    pub tensor: BatchInputTensor,
    pub ports: Vec<Port>,
    pub element_type: i32,
}

/// The tensors of one instance, in the order of the configuration; those that the server adds follow.
pub struct Plan {
    pub inputs: Vec<InputPlan>,
    pub batch_inputs: Vec<BatchInputPlan>,
    pub outputs: Vec<Output>,
    /// One for each output.
    pub ports: Vec<Port>,
    pub scatters: Vec<Option<Scatter>>,
    pub max_batch_size: u64,
}

impl Plan {
    /// `signature` has passed the checks against the same configuration.
    pub fn new(session: &Session, signature: &Signature, context: &InstanceContext) -> Result<Plan, Status> {
        let (spec, config) = (&context.spec, &context.spec.config);
        let max_batch_size = u64::try_from(config.max_batch_size).unwrap_or(0);
        let all = || spec.inputs.iter().chain(&spec.hidden_inputs);
        let position = |name: &String| all().position(|input| input.name == *name).unwrap_or(usize::MAX);
        let source = |names: &[String]| names.first().map_or(usize::MAX, position);
        let inputs = all().enumerate().map(|(index, tensor)| {
            let is_ragged = config.input.get(index).is_some_and(|input| input.allow_ragged_batch);
            let (model, port) = found(session, &signature.inputs, &tensor.name)?;
            let datatype = datatype_of(tensor)?;
            Ok(InputPlan {
                input: Input { name: tensor.name.clone(), index, datatype, is_ragged },
                port,
                element_type: number(datatype, &tensor.name)?,
                is_optional: tensor.optional,
                is_scalar: max_batch_size == 0 && is_scalar(model) && tensor.reshape.is_none(),
            })
        });
        let batch_inputs = config.batch_input.iter().map(|given| {
            let tensor = BatchInputTensor::new(given, source(&given.source_input));
            let port = |name: &String| Ok(found(session, &signature.inputs, name)?.1);
            Ok(BatchInputPlan {
                ports: given.target_name.iter().map(port).collect::<Result<_, Status>>()?,
                element_type: number(tensor.datatype, &tensor.label)?,
                tensor,
            })
        });
        let states = states(config);
        let outputs = || spec.outputs.iter().chain(&spec.hidden_outputs);
        let scatter = |tensor: &TensorSpec| {
            let given = config.batch_output.iter().find(|output| output.target_name.contains(&tensor.name))?;
            Some(Scatter { source: source(&given.source_input) })
        };
        let port = |tensor: &TensorSpec| Ok(found(session, &signature.outputs, &tensor.name)?.1);
        let output = |(index, tensor): (usize, &TensorSpec)| {
            Ok(Output {
                name: Text::from(tensor.name.as_str()),
                index,
                datatype: datatype_of(tensor)?,
                shape: OutputShape {
                    dims: Shape::from_slice(&tensor.dims),
                    reshape: tensor.reshape.as_deref().map(Shape::from_slice),
                },
                is_state: states.contains(&tensor.name.as_str()),
            })
        };
        Ok(Plan {
            inputs: inputs.collect::<Result<_, Status>>()?,
            batch_inputs: batch_inputs.collect::<Result<_, Status>>()?,
            outputs: outputs().enumerate().map(output).collect::<Result<_, Status>>()?,
            ports: outputs().map(port).collect::<Result<_, Status>>()?,
            scatters: outputs().map(scatter).collect(),
            max_batch_size,
        })
    }
}

/// The names of outputs that update states.
fn states(config: &ModelConfig) -> Vec<&str> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(sequence)) => {
            sequence.state.iter().map(|state| state.output_name.as_str()).collect()
        }
        _ => Vec::new(),
    }
}

fn is_scalar(tensor: &ModelTensor) -> bool {
    tensor.dims.as_ref().is_some_and(Vec::is_empty)
}

fn found<'a>(session: &Session, tensors: &'a [ModelTensor], name: &str) -> Result<(&'a ModelTensor, Port), Status> {
    let tensor = tensors.iter().find(|tensor| tensor.name == name);
    let tensor = tensor.ok_or_else(|| Status::internal(format!("the model has no tensor '{name}'")))?;
    let port = session.port(&tensor.tensor).ok_or_else(|| {
        Status::internal(format!("tensor '{name}' is '{}' in the model, but its graph has none", tensor.tensor))
    })?;
    Ok((tensor, port))
}

fn datatype_of(tensor: &TensorSpec) -> Result<DataType, Status> {
    let number = u32::try_from(tensor.wire_number()).ok();
    number
        .and_then(DataType::from_number)
        .ok_or_else(|| Status::invalid(format!("tensor '{}' must specify 'data_type'", tensor.name)))
}

fn number(datatype: DataType, name: &str) -> Result<i32, Status> {
    number_of(datatype).ok_or_else(|| {
        Status::invalid(format!("TensorFlow has no type {} for tensor '{name}'", datatype.config_name()))
    })
}
