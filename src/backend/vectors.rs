//! Tensors of a few 32-bit numbers, as the example backends `repeat` and `square` use them, and the checks of their
//! configurations.

use smallvec::smallvec;

use nereid_memory::{Slice, SliceReader, Target};
use nereid_request::{
    DataType, InputTensor, OutputTensor, Request, ResponseFactory, Shape, Status, Text, format_shape, numbered,
};
use nereid_wire::inference::ModelInput;

/// One tensor of a configuration, input or output.
pub struct Declared<'a> {
    pub name: &'a str,
    pub data_type: i32,
    pub dims: &'a [i64],
}

impl Declared<'_> {
    /// `place` is the position in words: `first input`.
    pub fn check_name(&self, expected: &str, place: &str) -> Result<(), Status> {
        demand(self.name == expected, || format!("expected {place} tensor name to be {expected}, got {}", self.name))
    }

    pub fn check_single(&self) -> Result<(), Status> {
        demand(self.dims == [1], || format!("expected {} shape to be [1], got {}", self.name, format_shape(self.dims)))
    }

    pub fn check_type(&self, expected: DataType) -> Result<(), Status> {
        let found = u32::try_from(self.data_type).ok().and_then(DataType::from_number);
        demand(found == Some(expected), || {
            let found = found.map_or("TYPE_INVALID", DataType::config_name);
            format!("expected {} datatype to be {}, got {found}", self.name, expected.name())
        })
    }
}

/// Returns INVALID_ARG with a text unless `holds`.
pub fn demand(holds: bool, text: impl FnOnce() -> String) -> Result<(), Status> {
    if holds { Ok(()) } else { Err(Status::invalid(text())) }
}

/// Refuses inputs that a request may leave out: for backends that need every input.
pub fn demand_all(inputs: &[ModelInput]) -> Result<(), Status> {
    inputs.iter().try_for_each(|input| {
        demand(!input.optional, || {
            format!(
                "'optional' is set to true for input '{}' while the backend model doesn't support optional input",
                input.name
            )
        })
    })
}

/// The input at `index` of the configuration.
pub fn input<'a>(request: &'a Request, index: usize, name: &str) -> Result<&'a InputTensor, Status> {
    let found = numbered(&request.inputs, index);
    found.ok_or_else(|| Status::internal(format!("failed to get input '{name}'")))
}

/// The elements of an input of 4-byte elements, which may lie in several pieces.
pub fn elements(input: &InputTensor) -> Vec<[u8; 4]> {
    let mut elements = vec![[0; 4]; input.byte_size() / 4];
    SliceReader::new(&input.data).read(elements.as_flattened_mut());
    elements
}

/// An output with one element.
pub fn single(
    responses: &ResponseFactory,
    (index, name): (usize, &'static str),
    datatype: DataType,
    shape: &[i64],
    value: [u8; 4],
) -> Result<OutputTensor, Status> {
    let mut block: Target = responses.allocate_output(name.as_bytes(), value.len())?;
    if !block.write(0, &value) {
        return Err(Status::internal(format!("output '{name}' got no room for its element")));
    }
    let data: Slice = block.freeze();
    let shape = Shape::from_slice(shape);
    Ok(OutputTensor { name: Text::from(name), datatype, shape, data: smallvec![data], index, on_device: None })
}
