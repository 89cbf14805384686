//! The properties of an instance's tensors that do not depend on requests: names as C strings, types, fixed shapes.

use std::ffi::CString;

use smallvec::SmallVec;

use super::batch_input::BatchInputPlan;
use super::element::ElementType;
use super::session::{Session, TensorInfo};
use super::value_type::ValueKind;
use nereid_request::{DataType, OutputShape, Request, Shape, Status, Text};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_config::SchedulingChoice;

/// A tensor of the configuration, reduced to what execution needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredTensor {
    pub name: String,
    pub datatype: DataType,
    pub dims: Shape,
    /// `reshape { shape }`, if given; empty is a scalar per item.
    pub reshape: Option<Shape>,
    pub optional: bool,
    /// Requests of a batch are joined flat.
    pub ragged: bool,
}

/// How one input is passed to the model.
#[derive(Debug)]
pub struct InputPlan {
    pub label: String,
    pub name: CString,
    pub element: ElementType,
    pub optional: bool,
    /// Whether the model has a scalar where the configuration can only have `[1]`.
    pub scalar: bool,
    pub ragged: bool,
    /// Dimensions in the model.
    pub rank: usize,
}

impl InputPlan {
    /// Whether the input is passed on the host. The host reads shapes, counts and the like during a run, and only the
    /// host reads strings: from a device they would have to be copied back. The library copies to the device what a
    /// node there needs.
    pub fn stays_on_host(&self) -> bool {
        use DataType::{Bool, Bytes, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64};
        match self.element.datatype() {
            Bytes => true,
            Bool | Int8 | Int16 | Int32 | Int64 | Uint8 | Uint16 | Uint32 | Uint64 => self.rank <= 1,
            _ => false,
        }
    }
}

/// The end of the name of an output that gives the keys of a sequence of maps or of a map: `<output>.keys`.
pub const KEYS_SUFFIX: &str = ".keys";

/// The origin of an output's tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputSource {
    /// The tensor that the model computes.
    Tensor,
    /// A value of another kind that the model computes, converted.
    Converted(ValueKind),
    /// The keys of the maps of the output with this number.
    Keys(usize),
}

/// How one output is taken from the model.
#[derive(Debug)]
pub struct OutputPlan {
    /// The name in the model.
    pub name: CString,
    pub source: OutputSource,
    /// Dimensions in the model.
    pub rank: usize,
    pub text: Text,
    pub element: ElementType,
    /// Dimensions without the batch, where the model fixes all of them: the block is then made before the run.
    pub fixed: Option<Shape>,
    /// Whether it is a state for the sequence's next request.
    pub is_state: bool,
    /// How a flat output is split.
    pub scatter: Option<Scatter>,
    scalar: bool,
    shape: OutputShape,
}

/// BATCH_SCATTER_WITH_INPUT_SHAPE (contract/model_config.md section 7).
#[derive(Debug)]
pub struct Scatter {
    /// The input with the shape that determines each request's share.
    pub source: usize,
    batching: bool,
}

impl Scatter {
    /// The output's shape for a request whose source input has the shape `source`: variable dimensions are those of the
    /// source.
    pub fn shape(&self, plan: &OutputPlan, source: &[i64]) -> Result<Shape, Status> {
        let dims = plan.shape.reshape.as_ref().unwrap_or(&plan.shape.dims);
        let full = self.batching.then_some(-1).into_iter().chain(dims.iter().copied());
        let taken = full.enumerate().map(|(at, dim)| if dim == -1 { source.get(at).copied() } else { Some(dim) });
        taken.collect::<Option<Shape>>().ok_or_else(|| {
            Status::internal(format!("output '{}' has more dimensions than the input it is split by", plan.text))
        })
    }
}

/// The tensors of one instance, in the order of the configuration; inputs that the server adds follow.
#[derive(Debug)]
pub struct Plan {
    pub inputs: Vec<InputPlan>,
    pub outputs: Vec<OutputPlan>,
    pub batch_inputs: Vec<BatchInputPlan>,
    pub batching: bool,
    pub max_batch_size: u64,
}

impl Plan {
    /// `session` has passed the checks of contract/backends.md section 4 against the same configuration.
    pub fn new(
        session: &Session,
        inputs: &[ConfiguredTensor],
        outputs: &[ConfiguredTensor],
        config: &ModelConfig,
    ) -> Result<Plan, Status> {
        let max_batch_size = u64::try_from(config.max_batch_size).unwrap_or(0);
        let batching = max_batch_size > 0;
        let position = |name: &String| inputs.iter().position(|input| input.name == *name);
        let batch_inputs = config
            .batch_input
            .iter()
            .map(|given| {
                let source = given.source_input.first().and_then(position);
                BatchInputPlan::new(given, source.unwrap_or(usize::MAX))
            })
            .collect::<Result<_, Status>>()?;
        let scatter = |name: &String| {
            let given = config.batch_output.iter().find(|output| output.target_name.contains(name))?;
            let source = given.source_input.first().and_then(position).unwrap_or(usize::MAX);
            Some(Scatter { source, batching })
        };
        let states = match &config.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(sequence)) => sequence.state.as_slice(),
            _ => &[],
        };
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
                    ragged: tensor.ragged,
                    rank: info.dims.len(),
                })
            })
            .collect::<Result<_, Status>>()?;
        let names = outputs;
        let outputs = outputs
            .iter()
            .map(|tensor| {
                let (info, source) = source_of(session, names, &tensor.name)?;
                // Strings have no fixed size, and the library does not write to an output that is an input by name.
                let is_input =
                    session.inputs.iter().chain(&session.initializers).any(|input| input.name == tensor.name);
                let is_tensor = source == OutputSource::Tensor;
                let bindable = is_tensor && tensor.datatype != DataType::Bytes && !is_input;
                Ok(OutputPlan {
                    name: c_name(&info.name)?,
                    source,
                    rank: info.dims.len(),
                    text: Text::from(tensor.name.as_str()),
                    element: tensor.datatype.into(),
                    fixed: fixed_dims(info, batching).filter(|_| bindable && scatter(&tensor.name).is_none()),
                    is_state: states.iter().any(|state| state.output_name == tensor.name),
                    scatter: scatter(&tensor.name),
                    scalar: !batching && is_tensor && info.dims.is_empty(),
                    shape: OutputShape { dims: tensor.dims.clone(), reshape: tensor.reshape.clone() },
                })
            })
            .collect::<Result<_, Status>>()?;
        Ok(Plan { inputs, outputs, batch_inputs, batching, max_batch_size })
    }

    /// The outputs that a run computes, with their numbers: all but keys, which come with their maps.
    pub fn computed(&self) -> impl Iterator<Item = (usize, &OutputPlan)> {
        self.outputs.iter().enumerate().filter(|(_, output)| !matches!(output.source, OutputSource::Keys(_)))
    }

    /// Whether a request, or the sequence of one, needs output number `index` or its keys. Others are not converted, so
    /// that they cannot fail a request.
    pub fn is_needed(&self, index: usize, requests: &[Box<Request>]) -> bool {
        let of = |index: usize| self.outputs.get(index);
        let gives =
            |wanted: usize| wanted == index || of(wanted).is_some_and(|plan| plan.source == OutputSource::Keys(index));
        of(index).is_some_and(|plan| plan.is_state)
            || requests.iter().flat_map(|request| &request.outputs).any(|output| gives(output.index))
    }

    /// Adds the keys of maps, each with the number of its maps, to the `results` of the computed outputs, so that all
    /// are in the order of the configuration.
    pub fn insert_keys<T>(
        &self,
        results: &mut SmallVec<[T; 4]>,
        mut keys: SmallVec<[(usize, T); 1]>,
    ) -> Result<(), Status> {
        for (index, output) in self.outputs.iter().enumerate() {
            let OutputSource::Keys(of) = output.source else { continue };
            let at = keys.iter().position(|(maps, _)| *maps == of).filter(|_| index <= results.len());
            results.insert(index, keys.swap_remove(at.ok_or_else(|| output.not_computed())?).1);
        }
        Ok(())
    }
}

impl OutputPlan {
    /// Whether the library leaves the output on the host even where it computes on a device.
    pub fn stays_on_host(&self) -> bool {
        self.source != OutputSource::Tensor || self.element.datatype() == DataType::Bytes
    }

    pub fn not_computed(&self) -> Status {
        Status::internal(format!("output '{}' was not computed", self.text))
    }

    /// The shape that a client gets for `shape` of the model; a scalar has the configuration's dimensions.
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

/// The output of the model from which the output `name` of the configuration is taken, and how.
fn source_of<'a>(
    session: &'a Session,
    configured: &[ConfiguredTensor],
    name: &str,
) -> Result<(&'a TensorInfo, OutputSource), Status> {
    let Some(maps) = maps_of_keys(session, name) else {
        let info = find(session.outputs.iter(), name)?;
        return match info.kind {
            ValueKind::Tensor => Ok((info, OutputSource::Tensor)),
            other => Ok((info, OutputSource::Converted(other))),
        };
    };
    let at = configured.iter().position(|tensor| tensor.name == maps.name).ok_or_else(|| {
        let maps = &maps.name;
        Status::invalid(format!("output '{name}' gives the keys of output '{maps}'; add '{maps}' to the configuration"))
    })?;
    Ok((maps, OutputSource::Keys(at)))
}

/// The maps of which the output `name` gives the keys, unless the model itself has an output of that name.
fn maps_of_keys<'a>(session: &'a Session, name: &str) -> Option<&'a TensorInfo> {
    if session.outputs.iter().any(|output| output.name == name) {
        return None;
    }
    let maps = name.strip_suffix(KEYS_SUFFIX)?;
    let is_map = |output: &&TensorInfo| matches!(output.kind, ValueKind::Maps(_) | ValueKind::Map(_));
    session.outputs.iter().filter(is_map).find(|output| output.name == maps)
}

fn find<'a>(mut tensors: impl Iterator<Item = &'a TensorInfo>, name: &str) -> Result<&'a TensorInfo, Status> {
    tensors
        .find(|tensor| tensor.name == name)
        .ok_or_else(|| Status::internal(format!("the model has no tensor '{name}'")))
}

pub(super) fn c_name(name: &str) -> Result<CString, Status> {
    CString::new(name).map_err(|_| Status::invalid(format!("tensor name '{name}' contains a zero byte")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shapes_without_variables_are_fixed() {
        let info = |dims: &[i64]| TensorInfo {
            name: "x".to_owned(),
            kind: ValueKind::Tensor,
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
