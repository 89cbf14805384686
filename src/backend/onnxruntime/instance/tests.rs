//! Runs of small models (tests/fixtures/onnx) through the whole backend but its auto-completion.

use std::sync::Arc;

use super::*;
use crate::fixtures::{Answers, Draft, as_floats, floats};
use crate::onnxruntime::fixtures::{context, runtime};
use crate::onnxruntime::model::OnnxModel;
use crate::onnxruntime::settings::BackendSettings;
use nereid_model_config::ModelSpec;
use nereid_request::{Code, DataType};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_sequence_batching::{Control, ControlInput, State};
use nereid_wire::inference::{
    self as wire, ModelConfig, ModelInput, ModelOutput, ModelParameter, ModelSequenceBatching, ModelTensorReshape,
};

pub fn input(name: &str, datatype: DataType, dims: &[i64]) -> ModelInput {
    ModelInput { name: name.to_owned(), data_type: datatype as i32, dims: dims.to_vec(), ..ModelInput::default() }
}

pub fn output(name: &str, datatype: DataType, dims: &[i64]) -> ModelOutput {
    ModelOutput { name: name.to_owned(), data_type: datatype as i32, dims: dims.to_vec(), ..ModelOutput::default() }
}

pub fn config(file: &str, max_batch_size: i32, input: Vec<ModelInput>, output: Vec<ModelOutput>) -> ModelConfig {
    let default_model_filename = format!("{file}.onnx");
    ModelConfig {
        name: "m".to_owned(),
        max_batch_size,
        default_model_filename,
        input,
        output,
        ..ModelConfig::default()
    }
}

/// Configuration of the models with two inputs, their sum and their difference.
pub fn add_sub(file: &str, max_batch_size: i32, dims: &[i64], output_dims: &[i64]) -> ModelConfig {
    config(
        file,
        max_batch_size,
        vec![input("INPUT0", DataType::Fp32, dims), input("INPUT1", DataType::Fp32, dims)],
        vec![output("OUTPUT0", DataType::Fp32, output_dims), output("OUTPUT1", DataType::Fp32, output_dims)],
    )
}

pub struct Rig<I = OnnxInstance> {
    pub instance: I,
    pub answers: Arc<Answers>,
    pool: Pool,
}

impl Rig {
    /// `None`: there is no library, which was reported.
    pub fn new(config: ModelConfig) -> Option<Rig> {
        let runtime = runtime()?;
        let context = Arc::new(context("m", config.clone()));
        let backend = BackendSettings::parse(&context).unwrap();
        let model = OnnxModel::open(runtime, &backend, Arc::clone(&context)).unwrap();
        let spec = Arc::new(ModelSpec::new(config).unwrap());
        let pool = context.pool.clone();
        let instance = model.instance(InstanceContext::new("m_0", spec, context)).unwrap();
        Some(Rig::of(instance, pool))
    }
}

impl<I: Instance> Rig<I> {
    pub fn of(instance: I, pool: Pool) -> Rig<I> {
        Rig { instance, answers: Arc::default(), pool }
    }

    pub fn draft(&self, key: u64) -> Draft {
        Draft::new(&self.answers, key)
    }

    pub fn run(&mut self, requests: impl IntoIterator<Item = Box<Request>>) -> Vec<(u64, Result<Response, Status>)> {
        let mut payload = Payload::default();
        requests.into_iter().for_each(|request| payload.push(request));
        self.instance.execute(&mut payload).unwrap();
        assert!(payload.is_empty());
        self.answers.take()
    }

    pub fn run_one(&mut self, request: Box<Request>) -> Result<Response, Status> {
        let mut answers = self.run([request]);
        assert_eq!(answers.len(), 1);
        answers.remove(0).1
    }
}

macro_rules! rig {
    ($config:expr) => {
        match Rig::new($config) {
            Some(rig) => rig,
            None => return,
        }
    };
}

#[test]
fn a_batch_of_one_is_written_into_the_block_that_is_sent() {
    let mut rig = rig!(add_sub("add_sub", 8, &[4], &[4]));
    let request = rig.draft(1).batch(2).floats(0, &[2, 4], &[1., 2., 3., 4., 5., 6., 7., 8.]);
    let request = request.floats(1, &[2, 4], &[1.; 8]).outputs([1, 0]);
    let response = rig.run_one(request).unwrap();
    assert_eq!(response.id, *"r1");
    let [difference, sum] = &response.outputs[..] else { panic!("{:?}", response.outputs) };
    assert_eq!((&difference.name, difference.index, sum.index), (&"OUTPUT1".into(), 1, 0));
    assert_eq!((&difference.shape[..], difference.datatype), (&[2, 4][..], DataType::Fp32));
    assert_eq!(as_floats(&difference.data), [0., 1., 2., 3., 4., 5., 6., 7.]);
    assert_eq!(as_floats(&sum.data), [2., 3., 4., 5., 6., 7., 8., 9.]);
    // Only two blocks of the smallest size are in use, of the receiver's pool: inputs were not gathered, and outputs
    // not copied.
    assert_eq!((rig.answers.pool.bytes_in_use(), rig.pool.bytes_in_use()), (1024, 0));
    assert!(sum.data[0].is_aligned_to(nereid_memory::ALIGNMENT));
    drop(response);
    assert_eq!(rig.answers.pool.bytes_in_use(), 0);
    // An output that was not requested does not use the receiver's memory.
    let request = rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[1.; 4]).outputs([1]);
    let response = rig.run_one(request).unwrap();
    assert_eq!((rig.answers.pool.bytes_in_use(), rig.pool.bytes_in_use()), (512, 0));
    assert_eq!(as_floats(&response.outputs[0].data), [0.; 4]);
}

#[test]
fn requests_are_joined_and_cut_by_their_rows() {
    let mut rig = rig!(add_sub("add_sub", 8, &[4], &[4]));
    let first = rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[2.; 4]).outputs([0, 1]);
    // In pieces, one of them unaligned.
    let whole = floats(&[5., 6., 7., 8., 9., 10., 11., 12.]);
    let pieces = [whole.window(0..3), whole.window(3..17), whole.window(17..32)];
    let second = rig.draft(2).batch(2).input(0, DataType::Fp32, &[2, 4], &pieces);
    let second = second.floats(1, &[2, 4], &[1.; 8]).outputs([0]);
    let third = rig.draft(3).batch(1).floats(0, &[1, 4], &[0.; 4]).floats(1, &[1, 4], &[3.; 4]).outputs([]);
    let answers = rig.run([first, second, third]);
    assert_eq!(answers.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [1, 2, 3]);
    let responses: Vec<&Response> = answers.iter().map(|(_, answer)| answer.as_ref().unwrap()).collect();
    assert_eq!(as_floats(&responses[0].outputs[0].data), [3.; 4]);
    assert_eq!(as_floats(&responses[0].outputs[1].data), [-1.; 4]);
    assert_eq!(responses[1].outputs.len(), 1);
    assert_eq!(responses[1].outputs[0].shape[..], [2, 4]);
    assert_eq!(as_floats(&responses[1].outputs[0].data), [6., 7., 8., 9., 10., 11., 12., 13.]);
    assert!(responses[2].outputs.is_empty());
}

#[test]
fn too_large_a_batch_fails_all_its_requests() {
    let mut rig = rig!(add_sub("add_sub", 2, &[4], &[4]));
    let request =
        |key, rig: &Rig| rig.draft(key).batch(2).floats(0, &[2, 4], &[1.; 8]).floats(1, &[2, 4], &[1.; 8]).outputs([0]);
    let requests = [request(1, &rig), request(2, &rig)];
    for (_, answer) in rig.run(requests) {
        let error = answer.unwrap_err();
        assert_eq!((error.code, &*error.message), (Code::Internal, "batch size 4 for 'm', max allowed is 2"));
    }
    let mut rig = rig!(add_sub("fixed", 0, &[4], &[4]));
    let request = |key, rig: &Rig| rig.draft(key).floats(0, &[4], &[1.; 4]).floats(1, &[4], &[1.; 4]).outputs([0]);
    let requests = [request(1, &rig), request(2, &rig)];
    let answers = rig.run(requests);
    assert_eq!(answers.len(), 2);
    for (_, answer) in answers {
        assert_eq!(answer.unwrap_err().message, "batch size 2 for 'm', max allowed is 0");
    }
}

#[test]
fn one_bad_request_does_not_fail_its_siblings() {
    let mut rig = rig!(add_sub("add_sub", 8, &[4], &[4]));
    let good = rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[2.; 4]).outputs([0]);
    let short = rig.draft(2).batch(1).floats(0, &[1, 4], &[1.; 3]).floats(1, &[1, 4], &[2.; 4]).outputs([0]);
    let rows = rig.draft(3).batch(2).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[2.; 4]).outputs([0]);
    let missing = rig.draft(4).batch(1).floats(0, &[1, 4], &[1.; 4]).outputs([0]);
    let unknown = rig.draft(5).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[2.; 4]).outputs([7]);
    let huge = rig.draft(6).batch(1).floats(0, &[1, i64::MAX], &[]).floats(1, &[1, 4], &[2.; 4]).outputs([0]);
    let mut answers = rig.run([good, short, rows, missing, unknown, huge]);
    answers.sort_by_key(|(key, _)| *key);
    let texts: Vec<String> = answers
        .into_iter()
        .map(|(_, answer)| {
            answer.map_or_else(|error| error.to_string(), |ok| format!("{:?}", as_floats(&ok.outputs[0].data)))
        })
        .collect();
    assert_eq!(texts[0], "[3.0, 3.0, 3.0, 3.0]");
    for (text, part) in texts[1..].iter().zip([
        "12 bytes, which do not fit its shape [1,4]",
        "batch size is 2",
        "failed to get input 'INPUT1'",
        "no output 'out'",
        "do not fit its shape [1,9223372036854775807]",
    ]) {
        assert!(text.starts_with("Internal: ") && text.contains(part), "{text}");
    }
}

#[test]
fn fixed_models_answer_again_and_again() {
    let mut rig = rig!(add_sub("fixed", 0, &[4], &[4]));
    for round in 0..20 {
        let value = round as f32;
        let request = rig.draft(1).floats(0, &[4], &[value; 4]).floats(1, &[4], &[1.; 4]).outputs([0, 1]);
        let response = rig.run_one(request).unwrap();
        assert_eq!(as_floats(&response.outputs[0].data), [value + 1.; 4]);
        assert_eq!(response.outputs[1].shape[..], [4]);
    }
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

#[test]
fn unknown_sizes_stay_in_the_librarys_memory_and_go_back_to_it() {
    let mut rig = rig!(add_sub("dynamic", 0, &[-1, -1], &[-1, -1]));
    let mut kept = Vec::new();
    for (rows, columns) in [(1, 3), (2, 2), (3, 0), (5, 4)] {
        let len = (rows * columns) as usize;
        let request = rig.draft(1).floats(0, &[rows, columns], &vec![rows as f32; len]);
        let request = request.floats(1, &[rows, columns], &vec![1.; len]).outputs([0, 1]);
        let response = rig.run_one(request).unwrap();
        assert_eq!(response.outputs[0].shape[..], [rows, columns]);
        assert_eq!(rig.pool.bytes_in_use(), 0, "nothing was copied");
        kept.push(response);
    }
    let sums: Vec<Vec<f32>> = kept.iter().map(|response| as_floats(&response.outputs[0].data)).collect();
    assert_eq!(sums, [vec![2.; 3], vec![3.; 4], vec![], vec![6.; 20]]);
    let returns = Arc::downgrade(&rig.instance.returns);
    // Sent after the model was dropped: the bytes are still valid, and the session ends with the last of them.
    let last = kept.pop().unwrap();
    drop(kept);
    assert_eq!(returns.upgrade().unwrap().waiting(), 6, "values wait for the worker");
    drop(rig);
    assert_eq!(as_floats(&last.outputs[1].data), [4.; 20]);
    std::thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!(returns.strong_count(), 0);
}

#[test]
fn returned_values_are_released_before_the_next_run() {
    let mut rig = rig!(add_sub("dynamic", 0, &[-1, -1], &[-1, -1]));
    for _ in 0..3 {
        let request = rig.draft(1).floats(0, &[1, 2], &[1.; 2]).floats(1, &[1, 2], &[1.; 2]).outputs([0, 1]);
        drop(rig.run_one(request).unwrap());
        assert_eq!(rig.instance.returns.waiting(), 2);
    }
}

#[test]
fn a_model_that_declares_a_wrong_size_is_run_without_it() {
    let mut rig = rig!(add_sub("lying", 0, &[-1, -1], &[-1, 4]));
    for columns in [4, 2, 4] {
        let len = 2 * columns as usize;
        let request = rig.draft(1).floats(0, &[2, columns], &vec![1.; len]);
        // The first dimension varies, so nothing is fixed without batching; see below for the other case.
        let response = rig.run_one(request.floats(1, &[2, columns], &vec![1.; len]).outputs([0])).unwrap();
        assert_eq!(response.outputs[0].shape[..], [2, columns]);
    }
    let mut rig = rig!(add_sub("lying", 8, &[-1], &[4]));
    for (columns, wrong) in [(4, false), (2, true), (4, true), (3, true)] {
        let len = 2 * columns as usize;
        let request = rig.draft(1).batch(2).floats(0, &[2, columns], &vec![1.; len]);
        let response = rig.run_one(request.floats(1, &[2, columns], &vec![1.; len]).outputs([0])).unwrap();
        assert_eq!(response.outputs[0].shape[..], [2, columns]);
        assert_eq!(as_floats(&response.outputs[0].data), vec![2.; len]);
        assert_eq!(rig.instance.declares_wrongly, wrong);
    }
}

#[test]
fn an_error_of_the_library_keeps_its_code_and_text() {
    let inputs = vec![input("INPUT", DataType::Fp32, &[-1]), input("INDEX", DataType::Int64, &[-1])];
    let mut rig = rig!(config("gather", 0, inputs, vec![output("OUTPUT", DataType::Fp32, &[-1])]));
    let index = |value: i64| Slice::copy_of(&value.to_le_bytes());
    let request = rig.draft(1).floats(0, &[2], &[7., 8.]).input(1, DataType::Int64, &[1], &[index(9)]).outputs([0]);
    let error = rig.run_one(request).unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert!(error.message.starts_with("onnx runtime error 2: ") && error.message.contains("Gather"), "{error}");
    let request = rig.draft(1).floats(0, &[2], &[7., 8.]).input(1, DataType::Int64, &[1], &[index(1)]).outputs([0]);
    assert_eq!(as_floats(&rig.run_one(request).unwrap().outputs[0].data), [8.], "the instance goes on");
}

pub fn strings(elements: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for element in elements {
        bytes.extend_from_slice(&(element.len() as u32).to_le_bytes());
        bytes.extend_from_slice(element);
    }
    bytes
}

#[test]
fn strings_end_at_their_zero_and_are_cut_by_rows() {
    let inputs = vec![input("INPUT", DataType::Bytes, &[2])];
    let mut rig = rig!(config("strings", 4, inputs, vec![output("OUTPUT", DataType::Bytes, &[2])]));
    let first = Slice::copy_of(&strings(&[b"one", b"", b"tw\0o", b"\xff\xfe"]));
    let second = Slice::copy_of(&strings(&[b"last", b"x"]));
    let cut = [second.window(0..2), second.window(2..9), second.window(9..second.len())];
    let malformed = Slice::copy_of(&strings(&[b"last", b"x"])[..9]);
    let requests = [
        rig.draft(1).batch(2).input(0, DataType::Bytes, &[2, 2], &[first]).outputs([0]),
        rig.draft(2).batch(1).input(0, DataType::Bytes, &[1, 2], &cut).outputs([0]),
        rig.draft(3).batch(1).input(0, DataType::Bytes, &[1, 2], &[malformed]).outputs([0]),
    ];
    let mut answers = rig.run(requests);
    answers.sort_by_key(|(key, _)| *key);
    let error = answers.pop().unwrap().1.unwrap_err();
    assert_eq!(error.message, "buffer size for input 'INPUT' exceeds batch byte size 47");
    let data: Vec<Vec<u8>> = answers
        .iter()
        .map(|(_, answer)| answer.as_ref().unwrap().outputs[0].data.iter().flat_map(|piece| piece.to_vec()).collect())
        .collect();
    assert_eq!(data, [strings(&[b"one", b"", b"tw", b"\xff\xfe"]), strings(&[b"last", b"x"])]);
    let shapes: Vec<&[i64]> =
        answers.iter().map(|(_, answer)| &answer.as_ref().unwrap().outputs[0].shape[..]).collect();
    assert_eq!(shapes, [[2, 2], [1, 2]]);
}

#[test]
fn empty_batches_of_strings_and_numbers_work() {
    let mut rig = rig!(config(
        "strings",
        0,
        vec![input("INPUT", DataType::Bytes, &[-1, 2])],
        vec![output("OUTPUT", DataType::Bytes, &[-1, 2])]
    ));
    let response = rig.run_one(rig.draft(1).input(0, DataType::Bytes, &[0, 2], &[]).outputs([0])).unwrap();
    assert_eq!((&response.outputs[0].shape[..], response.outputs[0].byte_size()), (&[0, 2][..], 0));
    let mut rig = rig!(add_sub("add_sub", 8, &[4], &[4]));
    let request = rig.draft(1).batch(0).floats(0, &[0, 4], &[]).floats(1, &[0, 4], &[]).outputs([0]);
    let response = rig.run_one(request).unwrap();
    assert_eq!((&response.outputs[0].shape[..], response.outputs[0].byte_size()), (&[0, 4][..], 0));
}

#[test]
fn outputs_that_are_other_tensors_outlive_them() {
    let names = ["INPUT", "SAME_OPEN", "SAME_FIXED", "TWIN_FIXED", "TWIN_OPEN"];
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]] {
        let outputs = order.iter().map(|&at| output(names[at], DataType::Fp32, &[4])).collect();
        let mut rig = rig!(config("aliases", 8, vec![input("INPUT", DataType::Fp32, &[4])], outputs));
        let data = floats(&[-1., 2., -3., 4.]);
        let request = rig.draft(1).batch(1).input(0, DataType::Fp32, &[1, 4], std::slice::from_ref(&data));
        let mut response = rig.run_one(request.outputs(0..5)).unwrap();
        let values = |response: &Response| -> Vec<Vec<f32>> {
            response.outputs.iter().map(|output| as_floats(&output.data)).collect()
        };
        for output in &response.outputs {
            assert!(!output.data[0].same_memory(&data), "an input's bytes go away with its request");
        }
        // Each of them survives the others, the instance, and the reuse of freed memory.
        let all = values(&response);
        while response.outputs.len() > 1 {
            response.outputs.remove(0);
            rig.instance.returns.drain();
            let scribble = rig.pool.get(16).unwrap();
            let fill = |mut block: nereid_memory::BlockMut| block.fill(0xaa);
            fill(scribble);
            assert_eq!(values(&response), all[all.len() - response.outputs.len()..]);
        }
        let expected = |at: usize| if at < 3 { vec![-1., 2., -3., 4.] } else { vec![1., 2., 3., 4.] };
        assert_eq!(all, order.map(expected));
    }
}

#[test]
fn scalars_show_the_configured_dimensions() {
    let mut rig = rig!(add_sub("scalar", 0, &[1], &[1]));
    let response = rig.run_one(rig.draft(1).floats(0, &[1], &[2.]).floats(1, &[1], &[3.]).outputs([0])).unwrap();
    assert_eq!(response.outputs[0].shape[..], [1]);
    assert_eq!(as_floats(&response.outputs[0].data), [5.]);
}

#[test]
fn reshaped_outputs_show_the_configured_dimensions() {
    let mut config = add_sub("add_sub", 8, &[2, 2], &[2, 2]);
    for input in &mut config.input {
        input.reshape = Some(ModelTensorReshape { shape: vec![4] });
    }
    for output in &mut config.output {
        output.reshape = Some(ModelTensorReshape { shape: vec![4] });
    }
    let mut rig = rig!(config);
    // Validation has put the model's shape into the request.
    let request = rig.draft(1).batch(1).floats(0, &[1, 4], &[2.; 4]).floats(1, &[1, 4], &[3.; 4]).outputs([0]);
    assert_eq!(rig.run_one(request).unwrap().outputs[0].shape[..], [1, 2, 2]);
}

#[test]
fn optional_inputs_may_be_absent() {
    let mut bias = input("BIAS", DataType::Fp32, &[2]);
    bias.optional = true;
    let inputs = vec![input("INPUT", DataType::Fp32, &[2]), bias];
    let again = config("optional", 0, inputs.clone(), vec![output("OUTPUT", DataType::Fp32, &[2])]);
    let outputs = ["OUTPUT", "BIAS", "FOLDED"].map(|name| output(name, DataType::Fp32, &[2])).to_vec();
    let mut rig = rig!(config("optional", 0, inputs, outputs));
    let response = rig.run_one(rig.draft(1).floats(0, &[2], &[1., 2.]).outputs(0..3)).unwrap();
    let values: Vec<Vec<f32>> = response.outputs.iter().map(|output| as_floats(&output.data)).collect();
    // Outputs that are the initializer, and that were computed when the model was loaded.
    assert_eq!(values, [[11., 22.], [10., 20.], [3., 4.]]);
    drop(rig);
    assert_eq!(as_floats(&response.outputs[1].data), [10., 20.], "the session's memory lives as long as this");
    let mut rig = rig!(again);
    let request = rig.draft(2).floats(0, &[2], &[1., 2.]).floats(1, &[2], &[5., 5.]).outputs([0]);
    assert_eq!(as_floats(&rig.run_one(request).unwrap().outputs[0].data), [6., 7.]);
}

#[test]
fn every_type_passes_bit_by_bit() {
    let types: Vec<DataType> = DataType::ALL.into_iter().filter(|datatype| *datatype != DataType::Bytes).collect();
    let inputs = types.iter().map(|datatype| input(&format!("IN_{datatype}"), *datatype, &[2])).collect();
    let outputs = types.iter().map(|datatype| output(&format!("OUT_{datatype}"), *datatype, &[2])).collect();
    let mut rig = rig!(config("types", 0, inputs, outputs));
    let bytes: Vec<Slice> = types
        .iter()
        .map(|datatype| match datatype {
            DataType::Bool => Slice::copy_of(&[1, 0]),
            other => Slice::copy_of(&(1..=2 * other.byte_size() as u8).collect::<Vec<u8>>()),
        })
        .collect();
    let mut draft = rig.draft(1);
    for (index, (datatype, data)) in types.iter().zip(&bytes).enumerate() {
        draft = draft.input(index, *datatype, &[2], std::slice::from_ref(data));
    }
    let response = rig.run_one(draft.outputs(0..types.len())).unwrap();
    for ((output, datatype), data) in response.outputs.iter().zip(&types).zip(&bytes) {
        assert_eq!((output.datatype, &*output.data[0]), (*datatype, &**data));
    }
}

#[test]
fn a_full_pool_is_an_answer() {
    let mut rig = rig!(add_sub("add_sub", 8, &[4], &[4]));
    let home = rig.answers.clone();
    let all: Vec<_> = std::iter::from_fn(|| home.pool.get(1 << 20).ok()).collect();
    let request = rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[1.; 4]).outputs([0]);
    assert_eq!(rig.run_one(request).unwrap_err().code, Code::Unavailable);
    drop(all);
    let request = rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[1.; 4]).outputs([0]);
    assert!(rig.run_one(request).is_ok());
}

#[test]
fn settings_reach_the_library() {
    let mut given = add_sub("add_sub", 8, &[4], &[4]);
    for (key, value) in [
        ("execution_mode", "1"),
        ("intra_op_thread_count", "1"),
        ("inter_op_thread_count", "1"),
        ("enable_mem_arena", "false"),
        ("enable_mem_pattern", "false"),
        ("session.use_device_allocator_for_initializers", "1"),
        ("memory.enable_memory_arena_shrinkage", "cpu:0"),
    ] {
        given.parameters.insert(key.to_owned(), ModelParameter { string_value: value.to_owned() });
    }
    // The library refuses to shrink an arena that is switched off: both settings took effect.
    let mut rig = rig!(given.clone());
    let request =
        |rig: &Rig| rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[1.; 4]).outputs([0]);
    let refused = request(&rig);
    let error = rig.run_one(refused).unwrap_err();
    assert!(error.message.starts_with("onnx runtime error ") && error.message.contains("arena"), "{error}");
    given.parameters.remove("enable_mem_arena");
    let mut rig = rig!(given);
    let accepted = request(&rig);
    assert_eq!(as_floats(&rig.run_one(accepted).unwrap().outputs[0].data), [2.; 4]);
}

/// A number of 4 bytes in each element.
pub fn numbers(data: &[Slice]) -> Vec<i32> {
    let bytes: Vec<u8> = data.iter().flat_map(|piece| piece.iter().copied()).collect();
    bytes.as_chunks::<4>().0.iter().map(|four| i32::from_le_bytes(*four)).collect()
}

pub fn ragged() -> ModelConfig {
    use nereid_wire::inference::batch_input::Kind;
    let batch_input = |name: &str, kind, datatype| {
        let mut given = wire::BatchInput {
            target_name: vec![name.to_owned()],
            data_type: datatype as i32,
            source_input: vec!["RAGGED".to_owned()],
            ..Default::default()
        };
        given.set_kind(kind);
        given
    };
    let ragged = ModelInput { allow_ragged_batch: true, ..input("RAGGED", DataType::Fp32, &[-1]) };
    let outputs = vec![
        output("DOUBLED", DataType::Fp32, &[-1]),
        output("SEEN_COUNTS", DataType::Int32, &[1]),
        output("SEEN_STARTS", DataType::Fp32, &[1]),
        output("SEEN_SHAPES", DataType::Int32, &[1]),
    ];
    ModelConfig {
        batch_input: vec![
            batch_input("COUNTS", Kind::BatchElementCount, DataType::Int32),
            batch_input("STARTS", Kind::BatchAccumulatedElementCountWithZero, DataType::Fp32),
            batch_input("SHAPES", Kind::BatchItemShape, DataType::Int32),
        ],
        batch_output: vec![wire::BatchOutput {
            target_name: vec!["DOUBLED".into(), "SEEN_COUNTS".into(), "SEEN_STARTS".into()],
            source_input: vec!["RAGGED".into()],
            ..Default::default()
        }],
        ..config("ragged", 8, vec![ragged], outputs)
    }
}

#[test]
fn ragged_requests_are_joined_flat_and_split_by_their_shapes() {
    let mut rig = rig!(ragged());
    let first = rig.draft(1).batch(1).floats(0, &[1, 3], &[1., 2., 3.]).outputs([0, 3]);
    // Requests no split output: its share is skipped.
    let second = rig.draft(2).batch(2).floats(0, &[2, 1], &[4., 5.]).outputs([3]);
    let third = rig.draft(3).batch(1).floats(0, &[1, 2], &[6., 7.]).outputs([0]);
    let answers = rig.run([first, second, third]);
    let responses: Vec<&Response> = answers.iter().map(|(_, answer)| answer.as_ref().unwrap()).collect();
    let doubled = &responses[0].outputs[0];
    assert_eq!((&doubled.shape[..], as_floats(&doubled.data)), (&[1, 3][..], vec![2., 4., 6.]));
    assert_eq!(numbers(&responses[0].outputs[1].data), [3], "the shape of one item");
    assert_eq!(numbers(&responses[1].outputs[0].data), [1, 1]);
    let doubled = &responses[2].outputs[0];
    assert_eq!((&doubled.shape[..], as_floats(&doubled.data)), (&[1, 2][..], vec![12., 14.]));
}

#[test]
fn the_batch_is_told_of_by_requests_and_an_output_that_is_too_short_fails_all() {
    let mut rig = rig!(ragged());
    // One request of one row: as many counts as rows, one start more.
    let request = rig.draft(1).batch(1).floats(0, &[1, 2], &[1., 2.]).outputs([1, 2]);
    let response = rig.run_one(request).unwrap();
    assert_eq!(numbers(&response.outputs[0].data), [2]);
    assert_eq!(as_floats(&response.outputs[1].data), [0.]);
    // Dimensions of one element each: two requests of two rows need four counts, and there are two.
    let drafts = [1, 2].map(|key| rig.draft(key).batch(2).floats(0, &[2, 1], &[1., 2.]).outputs([1]));
    for (key, answer) in rig.run(drafts) {
        let status = answer.unwrap_err();
        let text = "output 'SEEN_COUNTS' of shape [2] has fewer elements than its batch";
        assert_eq!((status.code, &*status.message), (Code::Internal, text), "{key}");
    }
}

/// A control, and a state that is summed up.
pub fn running_sum() -> ModelConfig {
    let sequence = ModelSequenceBatching {
        control_input: vec![ControlInput {
            name: "KEEP".into(),
            control: vec![Control { fp32_false_true: vec![1., 0.], ..Default::default() }],
        }],
        state: vec![State {
            input_name: "STATE".into(),
            output_name: "NEXT".into(),
            data_type: DataType::Fp32 as i32,
            dims: vec![1],
            ..Default::default()
        }],
        ..Default::default()
    };
    ModelConfig {
        scheduling_choice: Some(SchedulingChoice::SequenceBatching(sequence)),
        ..config(
            "running_sum",
            4,
            vec![input("INPUT", DataType::Fp32, &[1])],
            vec![output("OUTPUT", DataType::Fp32, &[1])],
        )
    }
}

#[test]
fn controls_and_states_are_fed_and_states_are_read_out() {
    use nereid_request::{Origin, StateTensor, States};
    let mut rig = rig!(running_sum());
    let states: Vec<Arc<States>> = [10., 20., 30.]
        .iter()
        .map(|present: &f32| {
            Arc::new(States::new(vec![StateTensor {
                input_name: "STATE".into(),
                output_name: "NEXT".into(),
                datatype: DataType::Fp32,
                shape: nereid_request::Shape::from_slice(&[1, 1]),
                data: floats(&[*present]),
            }]))
        })
        .collect();
    let keep = [1., 0., 1.];
    let requests: Vec<Box<Request>> = (0..3)
        .map(|at| {
            let present = states[at].tensors()[0].data.clone();
            let draft = rig.draft(at as u64).batch(1).floats(0, &[1, 1], &[at as f32 + 1.]);
            let draft = draft.floats(1, &[1, 1], &[keep[at]]).input(2, DataType::Fp32, &[1, 1], &[present]);
            // The last one fills a slot that no sequence needs.
            let mut request = draft.outputs(if at == 2 { vec![] } else { vec![0] });
            request.states = Some(Arc::clone(&states[at]));
            if at == 2 {
                request.ingress.origin = Origin::Null;
            }
            request
        })
        .collect();
    let answers = rig.run(requests);
    let seen: Vec<Vec<f32>> = answers
        .iter()
        .map(|(_, answer)| answer.as_ref().unwrap().outputs.iter().flat_map(|output| as_floats(&output.data)).collect())
        .collect();
    assert_eq!(seen, [vec![11.], vec![2.], vec![]]);
    let next: Vec<Vec<f32>> = states.iter().map(|states| as_floats(&[states.tensors()[0].data.clone()])).collect();
    assert_eq!(next, [[11.], [2.], [33.]]);
    let snapshot = rig.instance.context.model.statistics.snapshot();
    assert_eq!(
        (snapshot.success.count, snapshot.batch_stats[0].batch_size),
        (2, 3),
        "null requests count in the batch"
    );
}
