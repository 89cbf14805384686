//! Modules run by the PyTorch of this host; without one, nothing runs (`crate::fixtures::pytorch`).

use std::sync::Arc;
use std::time::Instant;

use crate::fixtures::{Rig, config, folder, pytorch, tensor};
use crate::torch::{ArgumentKind, Input, InputData, Module, Options, Output, Shim};
use nereid_backend::fixtures::{as_floats, context, floats};
use nereid_backend::{InstanceContext, Model};
use nereid_memory::Slice;
use nereid_model_config::ModelSpec;
use nereid_request::{DataType, Response, Shape, StateTensor, States, Status};
use nereid_test_support::own_process::is_own_process;
use nereid_wire::inference::model_instance_group::Kind;

use super::TorchScriptModel;

const OPTIONS: Options = Options {
    is_optimized: true,
    is_inference: true,
    has_cudnn: true,
    returns_memory: false,
    tensor_fuser: None,
    jit_profiling: None,
    jit_executor: None,
};

fn module(shim: &'static Shim, file: &str) -> Module {
    let bytes = std::fs::read(folder().join(format!("{file}.pt"))).unwrap();
    Module::load(shim, &bytes, Some(c"cpu"), true).unwrap()
}

fn pair(inputs: [&str; 2], outputs: [&str; 2], rest: &str) -> String {
    let of = |what: &str, names: [&str; 2]| names.map(|name| tensor(what, name, "TYPE_FP32", "2")).concat();
    of("input", inputs) + &of("output", outputs) + rest
}

fn outputs(response: &Result<Response, Status>) -> Vec<(Vec<i64>, Vec<f32>)> {
    let response = response.as_ref().unwrap();
    response.outputs.iter().map(|output| (output.shape.to_vec(), as_floats(&output.data))).collect()
}

fn wire(elements: &[&[u8]]) -> Slice {
    let mut bytes = Vec::new();
    for element in elements {
        bytes.extend_from_slice(&u32::try_from(element.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(element);
    }
    Slice::copy_of(&bytes)
}

fn bytes_of(data: &[Slice]) -> Vec<u8> {
    data.iter().flat_map(|piece| piece.iter().copied()).collect()
}

#[test]
fn sums_and_differences_are_in_the_outputs_that_the_names_say() {
    let Some((_, shim)) = pytorch() else { return };
    for (names, results) in [
        (["INPUT0", "INPUT1"], ["OUTPUT__0", "OUTPUT__1"]),
        (["INPUT1", "INPUT0"], ["OUTPUT__1", "OUTPUT__0"]),
        (["X__1", "Y__0"], ["SUM", "DIFFERENCE"]),
    ] {
        let mut rig = Rig::open(shim, "add_sub", &pair(names, results, "max_batch_size: 4")).unwrap();
        let (first, second) = ([1., 2.], [10., 20.]);
        // What the configuration calls its first input may be the second argument.
        let is_crossed = names[0].ends_with('1');
        let (a, b) = if is_crossed { (second, first) } else { (first, second) };
        let request = rig.draft(1).batch(1).floats(0, &[1, 2], &a).floats(1, &[1, 2], &b).outputs([0, 1]);
        let found = outputs(&rig.run([request])[0]);
        let (sum, difference) = ((vec![1, 2], vec![11., 22.]), (vec![1, 2], vec![-9., -18.]));
        let expected = if results[0].ends_with("__1") { [difference, sum] } else { [sum, difference] };
        assert_eq!(found, expected, "{names:?} {results:?}");
    }
}

#[test]
fn requests_are_joined_and_each_gets_its_rows() {
    let Some((_, shim)) = pytorch() else { return };
    let text = pair(["INPUT0", "INPUT1"], ["OUT__0", "OUT__1"], "max_batch_size: 4");
    let mut rig = Rig::open(shim, "add_sub", &text).unwrap();
    let one = rig.draft(1).batch(1).floats(0, &[1, 2], &[1., 2.]).floats(1, &[1, 2], &[1., 1.]).outputs([0]);
    let two = rig.draft(2).batch(2).floats(0, &[2, 2], &[3., 4., 5., 6.]).floats(1, &[2, 2], &[1.; 4]).outputs([1]);
    let without = rig.draft(3).batch(1).floats(0, &[1, 2], &[7., 8.]).outputs([0]);
    let answers = rig.run([one, two, without]);
    assert_eq!(outputs(&answers[0]), [(vec![1, 2], vec![2., 3.])]);
    assert_eq!(outputs(&answers[1]), [(vec![2, 2], vec![2., 3., 4., 5.])]);
    let error = answers[2].as_ref().unwrap_err();
    assert_eq!(error.message, "failed to get input 'INPUT1'", "a request without an input fails alone");
    let statistics = rig.model.statistics.snapshot();
    assert_eq!((statistics.execution_count, statistics.success.count), (1, 2));
}

#[test]
fn a_dictionary_gets_the_inputs_by_their_names() {
    let Some((_, shim)) = pytorch() else { return };
    let mut rig = Rig::open(shim, "dictionary", &pair(["B", "A"], ["OUT__0", "OUT__1"], "")).unwrap();
    let request = rig.draft(1).floats(0, &[2], &[1., 2.]).floats(1, &[2], &[10., 20.]).outputs([0, 1]);
    assert_eq!(outputs(&rig.run([request])[0]), [(vec![2], vec![11., 22.]), (vec![2], vec![9., 18.])]);
}

#[test]
fn strings_keep_their_zero_bytes_and_go_to_their_own_requests() {
    let Some((_, shim)) = pytorch() else { return };
    let text =
        |what| format!("{what} {{ name: \"TEXT\" data_type: TYPE_STRING dims: [ 1 ] reshape {{ shape: [ ] }} }} ");
    let lengths = tensor("output", "LENGTH", "TYPE_INT64", "1");
    let mut rig =
        Rig::open(shim, "lengths", &(text("input") + &text("output") + &lengths + "max_batch_size: 4")).unwrap();
    let draft = |rig: &Rig, key, shape: &[i64], elements: &[&[u8]]| {
        rig.draft(key).batch(shape[0] as u64).input(0, DataType::Bytes, shape, &[wire(elements)]).outputs([0, 1])
    };
    let requests = [
        draft(&rig, 1, &[1], &[b"a\0b"]),
        draft(&rig, 2, &[2], &[b"", b"xyz\0"]),
        draft(&rig, 3, &[1], &[b"one", b"too many"]),
    ];
    let answers = rig.run(requests);
    let first = &answers[0].as_ref().unwrap().outputs;
    assert_eq!((&first[0].shape[..], bytes_of(&first[0].data)), (&[1, 1][..], wire(&[b"a\0b!"]).to_vec()));
    let second = &answers[1].as_ref().unwrap().outputs;
    assert_eq!((&second[0].shape[..], bytes_of(&second[0].data)), (&[2, 1][..], wire(&[b"!", b"xyz\0!"]).to_vec()));
    assert_eq!(bytes_of(&second[1].data), [0i64.to_le_bytes(), 4i64.to_le_bytes()].concat());
    let text = "unexpected number of string elements 2 for inference input 'TEXT', expecting 1";
    assert_eq!(answers[2].as_ref().unwrap_err(), &Status::invalid(text));
    // Without batching the list has its own length.
    let plain = tensor("input", "TEXT", "TYPE_STRING", "-1") + &tensor("output", "OUT", "TYPE_STRING", "-1");
    let mut rig = Rig::open(shim, "strings", &plain).unwrap();
    let request = rig.draft(1).input(0, DataType::Bytes, &[2], &[wire(&[b"\0", b"second"])]).outputs([0]);
    let answer = &rig.run([request])[0];
    let output = &answer.as_ref().unwrap().outputs[0];
    assert_eq!((&output.shape[..], bytes_of(&output.data)), (&[2][..], wire(&[b"\0", b"second"]).to_vec()));
}

#[test]
fn states_are_updated_and_controls_are_passed() {
    let Some((_, shim)) = pytorch() else { return };
    let batching = "max_batch_size: 4 sequence_batching { control_input { name: \"START__2\" control { kind: \
                    CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } state { input_name: \"STATE__1\" output_name: \
                    \"NEXT__1\" data_type: TYPE_FP32 dims: [ 1 ] } }";
    let text = tensor("input", "INPUT__0", "TYPE_FP32", "1") + &tensor("output", "TOTAL__0", "TYPE_FP32", "1");
    let mut rig = Rig::open(shim, "accumulate", &(text + batching)).unwrap();
    let states: Vec<Arc<States>> = [10., 20.]
        .iter()
        .map(|present| {
            Arc::new(States::new(vec![StateTensor {
                input_name: "STATE__1".into(),
                output_name: "NEXT__1".into(),
                datatype: DataType::Fp32,
                shape: Shape::from_slice(&[1, 1]),
                data: floats(&[*present]),
            }]))
        })
        .collect();
    let requests: Vec<_> = [0., 1.]
        .iter()
        .enumerate()
        .map(|(at, start)| {
            let present = states[at].tensors()[0].data.clone();
            let draft = rig.draft(at as u64).batch(1).floats(0, &[1, 1], &[5.]).floats(1, &[1, 1], &[*start]);
            let mut request = draft.input(2, DataType::Fp32, &[1, 1], &[present]).outputs([0]);
            request.states = Some(Arc::clone(&states[at]));
            request
        })
        .collect();
    let answers = rig.run(requests);
    assert_eq!(outputs(&answers[0]), [(vec![1, 1], vec![15.])]);
    assert_eq!(outputs(&answers[1]), [(vec![1, 1], vec![5.])], "the sequence starts");
    let next: Vec<Vec<f32>> = states.iter().map(|states| as_floats(&[states.tensors()[0].data.clone()])).collect();
    assert_eq!(next, [[15.], [5.]]);
}

#[test]
fn ragged_inputs_and_batch_inputs_describe_the_batch_and_batch_outputs_split_it() {
    let Some((_, shim)) = pytorch() else { return };
    let text = "max_batch_size: 4 input { name: \"VALUES\" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: \
                true } batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: \"ENDS\" data_type: TYPE_FP32 \
                source_input: \"VALUES\" } output { name: \"SUM\" data_type: TYPE_FP32 dims: [ 1 ] } output { name: \
                \"COPY\" data_type: TYPE_FP32 dims: [ -1 ] } batch_output { target_name: \"COPY\" kind: \
                BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \"VALUES\" }";
    let mut rig = Rig::open(shim, "ragged", text).unwrap();
    let one = rig.draft(1).batch(1).floats(0, &[1, 3], &[1., 2., 3.]).outputs([0, 1]);
    let two = rig.draft(2).batch(1).floats(0, &[1, 1], &[7.]).outputs([0, 1]);
    let answers = rig.run([one, two]);
    assert_eq!(outputs(&answers[0]), [(vec![1, 1], vec![6.]), (vec![1, 3], vec![1., 2., 3.])]);
    assert_eq!(outputs(&answers[1]), [(vec![1, 1], vec![7.]), (vec![1, 1], vec![7.])]);
}

/// The error of one request to the model of `file` with one input of two floats and this output.
fn execution_error(shim: &'static Shim, file: &str, output: &str) -> Status {
    let mut rig = Rig::open(shim, file, &(tensor("input", "INPUT0", "TYPE_FP32", "-1, -1") + output)).unwrap();
    let request = rig.draft(1).floats(0, &[1, 2], &[1., 2.]).outputs([0]);
    rig.run([request]).remove(0).unwrap_err()
}

#[test]
fn results_that_no_output_can_be_are_errors_of_the_execution() {
    let Some((_, shim)) = pytorch() else { return };
    let output = tensor("output", "OUT__0", "TYPE_FP32", "-1, -1");
    let failure = |text: &str| Status::internal(format!("PyTorch execute failure: {text}"));
    assert_eq!(
        execution_error(shim, "number", &output),
        failure(
            "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a \
             List / Dictionary of Tensors or a Scalar"
        )
    );
    let text = "output must be of type Tensor or List[str], received List[Tensor]";
    assert_eq!(execution_error(shim, "tensor_list", &output), failure(text));
    let text = "output at index 1 must be of type Tensor or List[str], received List[int]";
    assert_eq!(execution_error(shim, "tuple_with_list", &output), failure(text));
    let text = execution_error(shim, "raising", &output).message.into_owned();
    let start = "PyTorch execute failure: The following operation failed in the TorchScript interpreter.\nTraceback";
    assert!(text.starts_with(start) && text.contains("the model refuses"), "{text}");
    assert_eq!(
        execution_error(shim, "scalar", &output),
        Status::invalid("output 'OUT__0' is a scalar which is not supported.")
    );
    let types = "configuration expects datatype TYPE_INT32 for output 'OUT__0', model provides TYPE_FP32";
    let other = tensor("output", "OUT__0", "TYPE_INT32", "-1, -1");
    assert_eq!(execution_error(shim, "identity", &other), Status::invalid(types));
    let types = "configuration expects datatype TYPE_FP32 for output 'OUT__0', model provides TYPE_<invalid>";
    assert_eq!(execution_error(shim, "half_precision", &output), Status::invalid(types));
    let text = "The output OUT__3 in the model configuration refers to an output index which doesn't exist. This model \
                has 1 outputs";
    let beyond = tensor("output", "OUT__3", "TYPE_FP32", "-1, -1");
    assert_eq!(execution_error(shim, "identity", &beyond), Status::invalid(text));
}

#[test]
fn files_that_are_no_modules_are_refused() {
    let Some((_, shim)) = pytorch() else { return };
    let error = Module::load(shim, &[b'x'; 64], Some(c"cpu"), true).unwrap_err();
    let text = "PytorchStreamReader failed reading zip archive: failed finding central directory";
    assert!(error.starts_with(text), "{error}");
    let whole = std::fs::read(folder().join("add_sub.pt")).unwrap();
    for len in [0, 1, whole.len() / 2, whole.len() - 1] {
        assert!(Module::load(shim, &whole[..len], Some(c"cpu"), true).is_err(), "{len} bytes");
    }
    let error = Rig::open(shim, "two_dictionaries", &pair(["A", "B"], ["C", "D"], "")).err().unwrap();
    assert!(error.message.starts_with("Multiple inputs of kind DictType were detected."), "{error}");
    let error = Rig::open(shim, "absent", &pair(["A", "B"], ["C", "D"], "")).err().unwrap();
    let path = folder().join("absent.pt");
    let text = format!("unable to find '{}' for model instance 'm'", path.display());
    assert_eq!(error, Status::unavailable(text));
}

#[test]
fn an_input_that_the_model_changes_or_keeps_is_a_copy() {
    let Some((_, shim)) = pytorch() else { return };
    let text = tensor("input", "INPUT0", "TYPE_FP32", "1, 2") + &tensor("output", "OUT", "TYPE_FP32", "1, 2");
    let mut rig = Rig::open(shim, "increment", &text).unwrap();
    let given = floats(&[1., 2.]);
    let request = rig.draft(1).input(0, DataType::Fp32, &[1, 2], std::slice::from_ref(&given)).outputs([0]);
    assert_eq!(outputs(&rig.run([request])[0]), [(vec![1, 2], vec![2., 3.])]);
    assert_eq!(as_floats(&[given]), [1., 2.], "the memory of the request is not written to");
    let mut rig = Rig::open(shim, "delayed", &text).unwrap();
    let mut last = vec![0., 0.];
    for value in [1., 2., 3.] {
        let request = rig.draft(1).floats(0, &[1, 2], &[value; 2]).outputs([0]);
        let answer = outputs(&rig.run([request])[0]);
        assert_eq!(answer, [(vec![1, 2], last)], "the memory of the request before is not read");
        last = vec![value; 2];
    }
}

#[test]
fn outputs_are_contiguous_and_may_be_empty() {
    let Some((_, shim)) = pytorch() else { return };
    let text = tensor("input", "INPUT0", "TYPE_FP32", "-1, -1") + &tensor("output", "OUT", "TYPE_FP32", "-1, -1");
    let mut rig = Rig::open(shim, "transposed", &text).unwrap();
    let request = rig.draft(1).floats(0, &[2, 3], &[1., 2., 3., 4., 5., 6.]).outputs([0]);
    let empty = rig.draft(2).floats(0, &[0, 3], &[]).outputs([0]);
    assert_eq!(outputs(&rig.run([request])[0]), [(vec![3, 2], vec![1., 4., 2., 5., 3., 6.])]);
    assert_eq!(outputs(&rig.run([empty])[0]), [(vec![3, 0], vec![])]);
}

#[test]
fn a_tensor_that_does_not_fit_its_shape_does_not_reach_the_library() {
    let Some((_, shim)) = pytorch() else { return };
    let module = module(shim, "identity");
    assert_eq!(module.arguments()[0].kind, ArgumentKind::Tensor);
    let bytes = Slice::copy_of(&[0; 8]);
    let run = |shape: &[i64], datatype| {
        let data = InputData::Tensor { datatype, shape, bytes: &bytes };
        module.run(None, &OPTIONS, &[Input { argument: 0, key: "", data }]).map(|run| run.len())
    };
    assert_eq!(run(&[8], DataType::Uint8), Ok(1));
    for (shape, datatype) in [
        (&[9][..], DataType::Uint8),
        (&[-8], DataType::Uint8),
        (&[i64::MAX, 4], DataType::Int64),
        (&[4], DataType::Uint16),
        (&[4], DataType::Bf16),
    ] {
        assert!(run(shape, datatype).is_err(), "{shape:?} {datatype}");
    }
    let data = InputData::Tensor { datatype: DataType::Uint8, shape: &[8], bytes: &bytes };
    assert!(module.run(None, &OPTIONS, &[Input { argument: 1, key: "", data }]).is_err(), "there is one argument");
    assert!(module.run(None, &OPTIONS, &[]).is_err(), "its argument is missing");
}

#[test]
fn instances_of_one_placement_share_a_module_if_that_is_asked_for() {
    let Some((torch, shim)) = pytorch() else { return };
    for (sharing, modules) in [("true", 2), ("false", 3)] {
        let shared = format!("parameters {{ key: \"ENABLE_WEIGHT_SHARING\" value {{ string_value: \"{sharing}\" }} }}");
        let config = config("add_sub", &pair(["INPUT0", "INPUT1"], ["A", "B"], &shared));
        let model = Arc::new(context("m", folder(), config.clone()));
        let spec = Arc::new(ModelSpec::new(config).unwrap());
        let opened = Arc::new(TorchScriptModel::open(Arc::clone(&model), torch, shim).unwrap());
        let instance = |kind| InstanceContext { kind, ..InstanceContext::new("m_0", spec.clone(), model.clone()) };
        let found: Vec<Arc<Module>> =
            [Kind::Cpu, Kind::Cpu, Kind::Model].map(|kind| opened.module(&instance(kind)).unwrap()).into();
        assert_eq!(Arc::ptr_eq(&found[0], &found[1]), sharing == "true");
        let mut different: Vec<*const Module> = found.iter().map(Arc::as_ptr).collect();
        different.dedup();
        assert_eq!(different.len(), modules);
        let error = opened.create_instance(instance(Kind::Gpu)).err().unwrap();
        let expected = "instance 'm_0' is for a GPU, and PyTorch ";
        let is_named = error.message.starts_with(expected) && error.message.ends_with(", or use KIND_CPU");
        assert!(is_named, "{error}");
    }
}

/// The library starts these threads once in a process, so this test has its own. It also covers the counts of models.
#[test]
fn operations_side_by_side_have_as_many_threads_as_there_are_cores_for_workers() {
    if !is_own_process(
        "torchscript::tests::operations_side_by_side_have_as_many_threads_as_there_are_cores_for_workers",
    ) {
        return;
    }
    let Some((_, shim)) = pytorch() else { return };
    let cores = 3 + usize::try_from(shim.inter_op_threads()).unwrap();
    let text = tensor("input", "INPUT0", "TYPE_FP32", "2") + &tensor("output", "OUT", "TYPE_FP32", "2");
    let mut rig = Rig::open_with_cores(shim, "forks", &text, cores).unwrap();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let mut run = || {
        let request = rig.draft(1).floats(0, &[2], &[1., 2.]).outputs([0]);
        assert_eq!(outputs(&rig.run([request])[0]), [(vec![2], vec![4., 8.])]);
    };
    run();
    assert_eq!(usize::try_from(shim.inter_op_threads()), Ok(cores));
    assert_eq!(threads(), before + cores, "the library has started them");
    // Too late for a model that gives a count.
    let late = text.clone() + "parameters { key: \"INTER_OP_THREAD_COUNT\" value { string_value: \"2\" } }";
    Rig::open_with_cores(shim, "forks", &late, cores).unwrap();
    run();
    assert_eq!(threads(), before + cores);
}

/// Prints the time of a run of a small module: bare, and through joining and splitting.
#[test]
fn the_costs_of_a_run_are_printed() {
    let Some((torch, shim)) = pytorch() else { return };
    const RUNS: u32 = 20_000;
    let (module, values) = (module(shim, "linear"), floats(&[1.; 32]));
    let bare = || {
        let data = InputData::Tensor { datatype: DataType::Fp32, shape: &[2, 16], bytes: &values };
        let run = module.run(None, &OPTIONS, &[Input { argument: 0, key: "", data }]).unwrap();
        assert!(matches!(run.output(0), Some(Output::Tensor { shape: [2, 16], .. })));
    };
    let text = tensor("input", "INPUT0", "TYPE_FP32", "16") + &tensor("output", "OUT", "TYPE_FP32", "16");
    let mut rig = Rig::open(shim, "linear", &(text + "max_batch_size: 2")).unwrap();
    let mut whole = || {
        let request = rig.draft(1).batch(2).input(0, DataType::Fp32, &[2, 16], std::slice::from_ref(&values));
        assert_eq!(outputs(&rig.run([request.outputs([0])])[0])[0].1, [9.; 32]);
    };
    let microseconds = |run: &mut dyn FnMut()| {
        (0..100).for_each(|_| run());
        let started = Instant::now();
        (0..RUNS).for_each(|_| run());
        started.elapsed().as_secs_f64() * 1e6 / f64::from(RUNS)
    };
    let (bare, whole) = (microseconds(&mut { bare }), microseconds(&mut whole));
    eprintln!("PyTorch {}: {bare:.2} us a run of the module, {whole:.2} us with a request", torch.version());
}
