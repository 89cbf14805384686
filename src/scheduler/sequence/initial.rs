//! The initial values of a sequence's implicit states, and their use as inputs (contract/schedulers.md section 3,
//! "Implicit state").

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use smallvec::smallvec;
use tracing::warn;

use nereid_memory::{BlockMut, Pool, Slice};
use nereid_model_config::{Instance, InstanceKind, ModelSpec, ignored_states, states};
use nereid_request::{
    Buffering, DataType, InputTensor, Request, Shape, StateTensor, States, Status, Text, element_count,
};
use nereid_wire::inference::ModelSequenceBatching;
use nereid_wire::inference::model_sequence_batching::State;
use nereid_wire::inference::model_sequence_batching::initial_state::StateData;

/// Directory of the data files, in the model's directory.
const DIRECTORY: &str = "initial_state";
/// Bytes that the initial states of a model may take together.
const BYTES_MAX: usize = 1 << 30;

/// The states that a sequence starts with.
pub(super) struct InitialStates {
    tensors: Vec<StateTensor>,
    shapes: Vec<Shape>,
    buffering: Vec<Buffering>,
    names: Vec<(Text, usize)>,
    pool: Pool,
    /// Why there are none although the configuration has some.
    fault: Option<String>,
}

impl InitialStates {
    /// Reads the data files. The configuration passed its checks, and so did the sizes of the files.
    pub fn new(
        spec: &ModelSpec,
        config: &ModelSequenceBatching,
        directory: &Path,
        pool: Pool,
    ) -> Result<InitialStates, Status> {
        let mut room = BYTES_MAX;
        ignored_states(config).iter().for_each(|ignored| warn!("{ignored}"));
        let used = states(config);
        let tensors: Vec<StateTensor> =
            used.iter().map(|state| tensor(spec, state, directory, &mut room)).collect::<Result<_, Status>>()?;
        let first = spec.inputs.len() + config.control_input.len();
        Ok(InitialStates {
            shapes: tensors.iter().map(|tensor| tensor.shape.clone()).collect(),
            tensors,
            buffering: used.iter().map(|state| buffering(state)).collect(),
            names: used.iter().enumerate().map(|(at, it)| (it.input_name.as_str().into(), first + at)).collect(),
            pool,
            fault: used.iter().find_map(|state| fault(state, spec)),
        })
    }

    /// New states for a sequence that starts. `None` where the model has no states, or cannot have them, which is
    /// logged.
    pub fn fresh(&self) -> Option<Arc<States>> {
        if let Some(fault) = &self.fault {
            tracing::error!("Failed to initialize sequence state: {fault}");
            return None;
        }
        (!self.tensors.is_empty()).then(|| self.states(self.tensors.clone()))
    }

    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// States for a request that fills a slot: of the types and sizes of `real`, and empty.
    pub fn dummies(&self, real: &States, zeros: &mut impl FnMut(usize) -> Slice) -> Arc<States> {
        let blank = |tensor: StateTensor| StateTensor { data: zeros(tensor.data.len()), ..tensor };
        self.states(real.tensors().into_iter().map(blank).collect())
    }

    /// Adds the present values as inputs, and lets the request's backend update them.
    pub fn add(&self, request: &mut Request, states: Arc<States>) {
        for (tensor, (name, index)) in states.tensors().into_iter().zip(&self.names) {
            request.inputs.push(InputTensor {
                model_shape: tensor.shape.clone(),
                data: smallvec![tensor.data],
                index: *index,
                ..InputTensor::new(name.clone(), tensor.datatype, tensor.shape)
            });
        }
        request.states = Some(states);
    }

    fn states(&self, tensors: Vec<StateTensor>) -> Arc<States> {
        Arc::new(States::new(tensors).with_buffers(Some(self.pool.clone()), self.buffering.clone()))
    }
}

/// Upstream's text at the start of every sequence of a model with states that it cannot have.
fn fault(state: &State, spec: &ModelSpec) -> Option<String> {
    let name = &state.input_name;
    if !state.use_growable_memory {
        return None;
    }
    let is_on_gpu = |instance: &Instance| matches!(instance.kind, InstanceKind::Gpu(_));
    match state.use_same_buffer_for_input_output {
        true if spec.instances.iter().all(is_on_gpu) => None,
        false => Some(format!(
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name '{name}'."
        )),
        true => Some(format!(
            "'use_growable_memory' can only work with KIND_GPU model instances right now. There are none for the state \
             input '{name}'."
        )),
    }
}

fn buffering(state: &State) -> Buffering {
    match (state.use_same_buffer_for_input_output, state.use_growable_memory) {
        (false, _) => Buffering::Apart,
        (true, false) => Buffering::Single,
        (true, true) => Buffering::Growing,
    }
}

fn tensor(spec: &ModelSpec, state: &State, directory: &Path, room: &mut usize) -> Result<StateTensor, Status> {
    let name = &state.input_name;
    let wrong = |what: &str| Status::invalid(format!("state input '{name}' of model '{}' {what}", spec.name));
    let datatype = u32::try_from(i32::from(state.data_type())).ok().and_then(DataType::from_number);
    let datatype = datatype.ok_or_else(|| wrong("has no data type"))?;
    let initial = state.initial_state.first();
    // An initial state fixes the dimensions that the configuration leaves open.
    let dims = initial.map_or(&state.dims, |initial| &initial.dims);
    let batch = spec.is_batching().then_some(1);
    let shape: Shape = batch.into_iter().chain(dims.iter().map(|&dim| if dim < 0 { 1 } else { dim })).collect();
    let count = element_count(&shape).and_then(|count| usize::try_from(count).ok());
    // An empty string is only its length.
    let element = if datatype == DataType::Bytes { size_of::<u32>() } else { datatype.byte_size() };
    let byte_size = count.and_then(|count| count.checked_mul(element)).filter(|&size| size <= *room);
    let byte_size = byte_size.ok_or_else(|| wrong(&format!("takes the initial states beyond {BYTES_MAX} bytes")))?;
    let data = match initial.and_then(|initial| initial.state_data.as_ref()) {
        Some(StateData::DataFile(file)) => {
            let limit = if datatype == DataType::Bytes { *room } else { byte_size };
            let data = read(&directory.join(DIRECTORY).join(file), limit)?;
            if datatype == DataType::Bytes && string_count(&data) != count {
                return Err(wrong(&format!("needs {} strings, which '{file}' does not hold", count.unwrap_or(0))));
            }
            if datatype != DataType::Bytes && data.len() < byte_size {
                return Err(Status::invalid(format!(
                    "initial_state setting expects {byte_size} bytes, but the data provided from {file}only has {} \
                     bytes.",
                    data.len()
                )));
            }
            let mut block = BlockMut::try_unpooled(data.len())?;
            block.copy_from_slice(&data);
            block
        }
        // Fresh blocks are zero.
        _ => BlockMut::try_unpooled(byte_size)?,
    };
    *room = room.saturating_sub(data.len());
    Ok(StateTensor {
        input_name: name.clone(),
        output_name: state.output_name.clone(),
        datatype,
        shape,
        data: data.freeze(),
    })
}

/// Reads at most `limit` bytes of a file.
fn read(path: &Path, limit: usize) -> Result<Vec<u8>, Status> {
    let cannot = |error: &dyn std::fmt::Display| {
        Status::internal(format!("failed to open text file for read {}: {error}", path.display()))
    };
    // Opening anything but a regular file, a pipe perhaps, could block for ever.
    if !std::fs::metadata(path).map_err(|error| cannot(&error))?.is_file() {
        return Err(cannot(&"not a file"));
    }
    let mut data = Vec::new();
    let file = File::open(path).map_err(|error| cannot(&error))?;
    file.take(limit as u64).read_to_end(&mut data).map_err(|error| cannot(&error))?;
    Ok(data)
}

/// Number of strings in a tensor's bytes; `None` where they are not well formed.
fn string_count(mut bytes: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        bytes = rest.get(usize::try_from(u32::from_le_bytes(*length)).ok()?..)?;
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Folder, model, request};
    use super::*;

    fn states(batching: u32, state: &str, directory: &Path) -> Result<InitialStates, Status> {
        let (spec, config) = model(&format!(
            "max_batch_size: {batching} sequence_batching {{ control_input {{ name: \"C\" control {{ kind: \
             CONTROL_SEQUENCE_START bool_false_true: [ false, true ] }} }} state {{ input_name: \"I\" output_name: \
             \"O\" {state} }} }}"
        ));
        InitialStates::new(&spec, &config, directory, Pool::new(1 << 20))
    }

    fn fresh(batching: u32, state: &str, directory: &Path) -> StateTensor {
        states(batching, state, directory).unwrap().fresh().unwrap().tensors().remove(0)
    }

    #[test]
    fn a_sequence_starts_with_zeros_or_with_a_file() {
        let folder = Folder::new("initial_states");
        folder.write("initial_state/numbers", &[7; 9]);
        folder.write("initial_state/texts", b"\x02\0\0\0hi\0\0\0\0");
        let path = folder.path();
        for (batching, state, dims, bytes) in [
            (0, "data_type: TYPE_INT32 dims: [ 2, -1 ]", &[2, 1][..], &[0; 8][..]),
            (3, "data_type: TYPE_INT8 dims: [ 2 ]", &[1, 2], &[0; 2]),
            (0, "data_type: TYPE_STRING dims: [ -1 ]", &[1], &[0; 4]),
            (0, "data_type: TYPE_INT8 dims: [ 0 ]", &[0], &[]),
            (
                0,
                "data_type: TYPE_INT8 dims: [ -1 ] initial_state { data_type: TYPE_INT8 dims: 3 zero_data: true name: \
                 \"i\" }",
                &[3],
                &[0; 3],
            ),
            (
                2,
                "data_type: TYPE_INT16 dims: [ 4 ] initial_state { data_type: TYPE_INT16 dims: 4 data_file: \
                 \"numbers\" name: \"i\" }",
                &[1, 4],
                &[7; 8],
            ),
            (
                0,
                "data_type: TYPE_STRING dims: [ 2 ] initial_state { data_type: TYPE_STRING dims: 2 data_file: \
                 \"texts\" name: \"i\" }",
                &[2],
                b"\x02\0\0\0hi\0\0\0\0",
            ),
        ] {
            let tensor = fresh(batching, state, path);
            assert_eq!((&tensor.shape[..], &tensor.data[..]), (dims, bytes), "{state}");
        }
    }

    #[test]
    fn files_that_do_not_fit_fail_the_load() {
        let folder = Folder::new("initial_states_wrong");
        folder.write("initial_state/texts", b"\x02\0\0\0hi\0\0");
        folder.write("initial_state/short", b"123");
        let state = |kind: &str, file: &str| {
            format!(
                "data_type: {kind} dims: [ 1 ] initial_state {{ data_type: {kind} dims: 1 data_file: \"{file}\" name: \
                 \"i\" }}"
            )
        };
        let error = |kind: &str, file: &str| states(0, &state(kind, file), folder.path()).err().unwrap().message;
        assert_eq!(
            error("TYPE_INT32", "short"),
            "initial_state setting expects 4 bytes, but the data provided from shortonly has 3 bytes."
        );
        assert_eq!(
            error("TYPE_STRING", "texts"),
            "state input 'I' of model 'm' needs 1 strings, which 'texts' does not hold"
        );
        let absent = folder.path().join("initial_state/absent");
        assert!(
            error("TYPE_INT8", "absent")
                .starts_with(&format!("failed to open text file for read {}: ", absent.display()))
        );
        let large = states(0, "data_type: TYPE_INT8 dims: [ 2000000000 ]", folder.path()).err().unwrap().message;
        assert_eq!(large, "state input 'I' of model 'm' takes the initial states beyond 1073741824 bytes");
    }

    #[test]
    fn states_are_inputs_behind_the_controls() {
        let states = states(0, "data_type: TYPE_INT8 dims: [ 2 ]", Path::new("")).unwrap();
        let mut request = request(1);
        let count = request.inputs.len();
        let own = states.fresh().unwrap();
        own.update("O", DataType::Int8, Shape::from_slice(&[3]), Slice::copy_of(b"abc")).unwrap();
        let dummy = states.dummies(&own, &mut |size| Slice::copy_of(&vec![0; size]));
        states.add(&mut request, own);
        let input = &request.inputs[count];
        assert_eq!((input.name.to_string().as_str(), input.index), ("I", 2), "one input, one control");
        assert_eq!((&input.shape[..], &input.data[0][..]), (&[3][..], &b"abc"[..]));
        let dummy = dummy.tensors().remove(0);
        assert_eq!((&dummy.shape[..], &dummy.data[..]), (&[3][..], &[0; 3][..]));
    }

    #[test]
    fn memory_cannot_grow_without_a_gpu() {
        for (more, text) in [
            (
                "",
                "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'I'.",
            ),
            ("use_same_buffer_for_input_output: true", "'use_growable_memory' can only work with KIND_GPU"),
        ] {
            let state = format!("data_type: TYPE_INT8 dims: [ 2 ] use_growable_memory: true {more}");
            let states = states(0, &state, Path::new("")).unwrap();
            assert!(states.fresh().is_none());
            assert!(states.fault.as_deref().unwrap().starts_with(text), "{:?}", states.fault);
        }
    }

    #[test]
    fn memory_grows_where_all_instances_are_on_gpus() {
        let state = "data_type: TYPE_INT8 dims: [ 2 ] use_growable_memory: true use_same_buffer_for_input_output: true";
        let of = |groups: &str| {
            let (spec, config) = model(&format!(
                "{groups} sequence_batching {{ state {{ input_name: \"I\" output_name: \"O\" {state} }} }}"
            ));
            InitialStates::new(&spec, &config, Path::new(""), Pool::new(1 << 20)).unwrap().fresh()
        };
        let gpu = "instance_group { kind: KIND_GPU gpus: 0 }";
        assert!(of(&format!("{gpu} instance_group {{ kind: KIND_CPU }}")).is_none(), "one is on the host");
        let states = of(gpu).expect("all are on a device");
        assert!(states.handle("O", DataType::Int8, Shape::from_slice(&[4])).is_ok());
    }
}
