//! What an instance knows of its tensors before any request comes: names as C strings, types, fixed shapes.

use std::ffi::CString;

use super::element::ElementType;
use super::session::{Session, TensorInfo};
use crate::backend::reshape::OutputShape;
use crate::request::{DataType, Shape, Status, Text};

/// A tensor of the configuration, reduced to what execution needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredTensor {
    pub name: String,
    pub datatype: DataType,
    pub dims: Shape,
    /// `reshape { shape }`, if given; empty is a scalar per item.
    pub reshape: Option<Shape>,
    pub optional: bool,
}

/// How one input is fed.
#[derive(Debug)]
pub struct InputPlan {
    pub label: String,
    pub name: CString,
    pub element: ElementType,
    pub optional: bool,
    /// The model wants a scalar where the configuration can only say `[1]`.
    pub scalar: bool,
}

/// How one output is received.
#[derive(Debug)]
pub struct OutputPlan {
    pub name: CString,
    pub text: Text,
    pub element: ElementType,
    /// Dimensions without the batch, where the model fixes all of them: the block is then made before the run.
    pub fixed: Option<Shape>,
    scalar: bool,
    shape: OutputShape,
}

/// The tensors of one instance, in the order of the configuration.
#[derive(Debug)]
pub struct Plan {
    pub inputs: Vec<InputPlan>,
    pub outputs: Vec<OutputPlan>,
    pub batching: bool,
    pub max_batch_size: u64,
}

impl Plan {
    /// `session` has passed the checks of backends.md section 4 against the same configuration.
    pub fn new(
        session: &Session,
        inputs: &[ConfiguredTensor],
        outputs: &[ConfiguredTensor],
        max_batch_size: u64,
    ) -> Result<Plan, Status> {
        let batching = max_batch_size > 0;
        let inputs = inputs
            .iter()
            .map(|tensor| {
                let known = session.inputs.iter().chain(&session.initializers);
                let info = find(known, &tensor.name)?;
                Ok(InputPlan {
                    label: tensor.name.clone(),
                    name: c_name(&tensor.name)?,
                    element: tensor.datatype.into(),
                    optional: tensor.optional,
                    scalar: !batching && info.dims.is_empty(),
                })
            })
            .collect::<Result<_, Status>>()?;
        let outputs = outputs
            .iter()
            .map(|tensor| {
                let info = find(session.outputs.iter(), &tensor.name)?;
                // Strings have no fixed size, and the library does not write to an output that is an input by name.
                let is_input =
                    session.inputs.iter().chain(&session.initializers).any(|input| input.name == tensor.name);
                let bindable = tensor.datatype != DataType::Bytes && !is_input;
                Ok(OutputPlan {
                    name: c_name(&tensor.name)?,
                    text: Text::from(tensor.name.as_str()),
                    element: tensor.datatype.into(),
                    fixed: fixed_dims(info, batching).filter(|_| bindable),
                    scalar: !batching && info.dims.is_empty(),
                    shape: OutputShape { dims: tensor.dims.clone(), reshape: tensor.reshape.clone() },
                })
            })
            .collect::<Result<_, Status>>()?;
        Ok(Plan { inputs, outputs, batching, max_batch_size })
    }
}

impl OutputPlan {
    /// The shape that a client sees for `shape` of the model; a scalar has the configuration's dimensions.
    pub fn client_shape(&self, shape: &[i64], batching: bool) -> Shape {
        match self.scalar {
            true => self.shape.dims.clone(),
            false => self.shape.for_client(shape, batching),
        }
    }
}

/// Dimensions without the batch if none of them is variable.
fn fixed_dims(info: &TensorInfo, batching: bool) -> Option<Shape> {
    let items = info.dims.get(usize::from(batching)..)?;
    items.iter().all(|dim| *dim >= 0).then(|| Shape::from_slice(items))
}

fn find<'a>(mut tensors: impl Iterator<Item = &'a TensorInfo>, name: &str) -> Result<&'a TensorInfo, Status> {
    tensors
        .find(|tensor| tensor.name == name)
        .ok_or_else(|| Status::internal(format!("the model has no tensor '{name}'")))
}

fn c_name(name: &str) -> Result<CString, Status> {
    CString::new(name).map_err(|_| Status::invalid(format!("tensor name '{name}' contains a zero byte")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shapes_without_variables_are_fixed() {
        let info = |dims: &[i64]| TensorInfo {
            name: "x".to_owned(),
            onnx_type: "ONNX_TYPE_TENSOR",
            element: None,
            dims: Shape::from_slice(dims),
        };
        assert_eq!(fixed_dims(&info(&[-1, 4]), true).as_deref(), Some(&[4][..]));
        assert_eq!(fixed_dims(&info(&[-1, 4]), false), None);
        assert_eq!(fixed_dims(&info(&[-1]), true).as_deref(), Some(&[][..]));
        assert_eq!(fixed_dims(&info(&[]), false).as_deref(), Some(&[][..]));
        assert_eq!(fixed_dims(&info(&[]), true), None);
        assert_eq!(fixed_dims(&info(&[-1, -1]), true), None);
    }
}
