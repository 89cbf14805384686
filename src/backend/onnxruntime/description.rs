//! A model's own description, in the terms of its configuration.

use super::element::ElementType;
use super::plan::{ConfiguredTensor, KEYS_SUFFIX};
use super::session::{Session, TensorInfo};
use super::value_type::ValueKind;
use nereid_model_config::TensorSpec;
use nereid_model_config::complete::{Learned, LearnedKind, LearnedTensor};
use nereid_request::{DataType, Shape, Status};
use nereid_wire::inference::{self as wire, ModelConfig};

/// What auto-completion puts into a configuration.
pub fn learned(session: &Session) -> Learned {
    Learned {
        inputs: session.inputs.iter().map(learned_input).collect(),
        overridable: session.initializers.iter().map(learned_input).collect(),
        outputs: session.outputs.iter().map(learned_output).collect(),
    }
}

/// What `config` is checked against: an optional input is where the configuration says, and the keys of maps are
/// outputs too.
pub fn learned_for(session: &Session, config: &ModelConfig) -> Learned {
    let mut learned = learned(session);
    let is_left_out = |tensor: &LearnedTensor| {
        let is_optional = session.inputs.iter().any(|input| input.name == tensor.name && is_optional(input));
        is_optional && config.input.iter().any(|input| input.name == tensor.name && input.optional)
    };
    let (optional, required) = learned.inputs.into_iter().partition(is_left_out);
    learned.inputs = required;
    learned.overridable.extend::<Vec<_>>(optional);
    for output in &session.outputs {
        let (ValueKind::Maps(key) | ValueKind::Map(key)) = output.kind else { continue };
        let name = format!("{}{KEYS_SUFFIX}", output.name);
        if session.outputs.iter().all(|other| other.name != name) {
            let dims = output.dims.to_vec();
            learned.outputs.push(LearnedTensor { name, kind: LearnedKind::Tensor(wire_type(Some(key))), dims });
        }
    }
    learned
}

/// Whether a request may leave the input out although it has no initializer.
pub fn is_optional(input: &TensorInfo) -> bool {
    input.kind == ValueKind::Optional
}

/// The output, if there is one, that a batch cannot be split by.
pub fn output_for_whole_run(session: &Session) -> Option<&TensorInfo> {
    session.outputs.iter().find(|output| output.kind.is_for_whole_run())
}

/// Inputs that are no tensors are refused: nothing that a client sends is one.
fn learned_input(info: &TensorInfo) -> LearnedTensor {
    let kind = match info.kind {
        ValueKind::Tensor | ValueKind::Optional => LearnedKind::Tensor(wire_type(info.element)),
        other => LearnedKind::Other(other.onnx_name().to_owned()),
    };
    LearnedTensor { name: info.name.clone(), kind, dims: info.dims.to_vec() }
}

fn learned_output(info: &TensorInfo) -> LearnedTensor {
    let kind = match info.kind {
        ValueKind::Other(name) => LearnedKind::Other(name.to_owned()),
        _ => LearnedKind::Tensor(wire_type(info.element)),
    };
    LearnedTensor { name: info.name.clone(), kind, dims: info.dims.to_vec() }
}

/// The checks refuse a type that configurations have no name for.
fn wire_type(element: Option<ElementType>) -> wire::DataType {
    let known = element.and_then(|element| wire::DataType::try_from(element.datatype() as i32).ok());
    known.unwrap_or(wire::DataType::TypeInvalid)
}

/// Tensors of a configuration, as a plan needs them.
pub fn configured<'a>(tensors: impl Iterator<Item = &'a TensorSpec>) -> Result<Vec<ConfiguredTensor>, Status> {
    let tensor = |tensor: &TensorSpec| {
        let number = u32::try_from(tensor.wire_number()).ok();
        let datatype = number.and_then(DataType::from_number);
        Ok(ConfiguredTensor {
            name: tensor.name.clone(),
            datatype: datatype
                .ok_or_else(|| Status::invalid(format!("tensor '{}' must specify 'data_type'", tensor.name)))?,
            dims: Shape::from_slice(&tensor.dims),
            reshape: tensor.reshape.as_deref().map(Shape::from_slice),
            optional: tensor.optional,
            ragged: false,
        })
    };
    tensors.map(tensor).collect()
}
