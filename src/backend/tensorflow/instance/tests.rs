//! Runs of small models (tests/fixtures/tensorflow) through the whole backend.

use super::*;
use crate::fixtures::{context, input, named, output, runtime, sequence};
use crate::model::TensorFlowModel;
use crate::settings::{BackendSettings, ModelSettings};
use nereid_backend::fixtures::{Answers, Draft, as_floats, floats};
use nereid_memory::Slice;
use nereid_model_config::ModelSpec;
use nereid_request::{Code, Request, Response, StateTensor, States};
use nereid_wire::inference::batch_input::Kind as BatchInputKind;
use nereid_wire::inference::{BatchInput, BatchOutput, ModelConfig, ModelTensorReshape};

struct Rig {
    instance: TensorFlowInstance,
    answers: Arc<Answers>,
}

impl Rig {
    /// `None`: the library is not wanted.
    fn new(config: ModelConfig) -> Option<Rig> {
        let runtime = runtime()?;
        let context = Arc::new(context(config));
        let (backend, settings) = (BackendSettings::parse(&context).unwrap(), ModelSettings::parse(&context).unwrap());
        let model = TensorFlowModel::open(runtime, backend, settings, Arc::clone(&context)).unwrap();
        let config = nereid_backend::Model::completed_config(&model).unwrap_or_else(|| context.config.clone());
        let spec = Arc::new(ModelSpec::new(config).unwrap());
        let instance = model.instance(InstanceContext::new("m_0", spec, context)).unwrap();
        Some(Rig { instance, answers: Arc::default() })
    }

    fn draft(&self, key: u64) -> Draft {
        Draft::new(&self.answers, key)
    }

    fn run(&mut self, requests: impl IntoIterator<Item = Box<Request>>) -> Vec<Result<Response, Status>> {
        let mut payload = Payload::default();
        requests.into_iter().for_each(|request| payload.push(request));
        self.instance.execute(&mut payload).unwrap();
        assert!(payload.is_empty());
        let mut answers = self.answers.take();
        answers.sort_by_key(|(key, _)| *key);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    fn run_one(&mut self, request: Box<Request>) -> Result<Response, Status> {
        self.run([request]).remove(0)
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

fn wire(elements: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for element in elements {
        bytes.extend_from_slice(&u32::try_from(element.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(element);
    }
    bytes
}

fn numbers(values: &[i32]) -> Slice {
    Slice::copy_of(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

/// Name, shape and bytes of each output.
fn outputs(response: &Response) -> Vec<(String, Vec<i64>, Vec<u8>)> {
    let one = |output: &nereid_request::OutputTensor| {
        let bytes = output.data.iter().flat_map(|piece| piece.iter().copied()).collect();
        (output.name.to_str_lossy().into_owned(), output.shape.to_vec(), bytes)
    };
    response.outputs.iter().map(one).collect()
}

/// How often this thread has waited.
fn waits() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn with_one_thread_between_operations_the_instance_s_thread_computes_itself() {
    const RUNS: u64 = 500;
    let mut config = named("add_sub.savedmodel");
    let one = nereid_wire::inference::ModelParameter { string_value: "1".to_owned() };
    config.parameters.insert("TF_NUM_INTER_THREADS".to_owned(), one);
    let mut rig = rig!(config);
    let mut run = || {
        let request = rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[2.; 4]).outputs([0]);
        assert_eq!(as_floats(&rig.run_one(request).unwrap().outputs[0].data), [3., 3., 3., 30.]);
    };
    run();
    let before = waits();
    (0..RUNS).for_each(|_| run());
    // A lock of the library may be taken now and then; a run in another thread is a wait each time.
    let waits = waits() - before;
    assert!(waits < RUNS / 4, "{waits} waits in {RUNS} runs");
}

#[test]
fn requests_are_joined_and_split_by_their_rows() {
    let mut rig = rig!(named("add_sub.savedmodel"));
    let first = rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[2.; 4]).outputs([1, 0]);
    // In pieces, one of them unaligned.
    let whole = floats(&[5., 6., 7., 8., 9., 10., 11., 12.]);
    let pieces = [whole.window(0..3), whole.window(3..17), whole.window(17..32)];
    let second = rig.draft(2).batch(2).input(0, DataType::Fp32, &[2, 4], &pieces);
    let second = second.floats(1, &[2, 4], &[1.; 8]).outputs([0]);
    let answers = rig.run([first, second]);
    let first = &answers[0].as_ref().unwrap().outputs;
    assert_eq!((&first[0].name, as_floats(&first[0].data)), (&"OUTPUT1".into(), vec![-1.; 4]));
    assert_eq!(as_floats(&first[1].data), [3., 3., 3., 30.], "the variable scales the last column");
    let second = &answers[1].as_ref().unwrap().outputs;
    assert_eq!((second.len(), &second[0].shape[..]), (1, &[2, 4][..]));
    assert_eq!(as_floats(&second[0].data), [6., 7., 8., 90., 10., 11., 12., 130.]);
    let statistics = rig.instance.context.statistics.snapshot();
    assert_eq!((statistics.execution_count, statistics.inference_count), (1, 3));
}

#[test]
fn memory_of_requests_is_fed_as_it_is_and_given_back() {
    let mut rig = rig!(named("dynamic.savedmodel"));
    let aligned = rig.answers.pool.get(16).unwrap().freeze();
    for data in [aligned, floats(&[1.; 5]).window(4..20)] {
        let request = rig.draft(1).batch(1).input(0, DataType::Fp32, &[1, 2, 2], &[data]).outputs([0, 1]);
        assert!(rig.run_one(request).is_ok());
    }
    assert_eq!((rig.answers.pool.bytes_in_use(), rig.instance.context.model.pool.bytes_in_use()), (0, 0));
}

#[test]
fn shapes_may_differ_from_request_to_request() {
    let mut rig = rig!(named("dynamic.savedmodel"));
    for shape in [[1, 1, 3], [2, 3, 1], [1, 0, 5], [4, 2, 2]] {
        let count = shape.iter().product::<i64>() as usize;
        let request = rig.draft(1).batch(shape[0] as u64).floats(0, &shape, &vec![1.; count]).outputs([0, 1]);
        let response = rig.run_one(request).unwrap();
        let sum = shape[1] as f32 * shape[2] as f32;
        assert_eq!(as_floats(&response.outputs[0].data), vec![sum; shape[0] as usize], "{shape:?}");
        // The signature's rank is 1, so that clients see `[1]` for each row.
        assert_eq!(response.outputs[0].shape[..], [shape[0], 1]);
        assert_eq!((&response.outputs[1].shape[..], response.outputs[1].data[0].len()), (&shape[..], count * 4));
    }
}

#[test]
fn strings_of_any_rank_keep_their_bytes() {
    let mut rig = rig!(named("strings.savedmodel"));
    let long = [b'x'; 100];
    let (first, second): ([&[u8]; 2], [&[u8]; 4]) = ([b"a\0b", b""], [&long, b"\xff\xfe", b"c", b"d\0"]);
    let bytes = |elements: &[&[u8]]| [Slice::copy_of(&wire(elements))];
    let requests = [
        rig.draft(1).batch(1).input(0, DataType::Bytes, &[1, 2], &bytes(&first)).outputs([2, 1, 3, 0]),
        rig.draft(2).batch(2).input(0, DataType::Bytes, &[2, 2], &bytes(&second)).outputs([2]),
        rig.draft(3).batch(1).input(0, DataType::Bytes, &[1, 2], &[Slice::copy_of(&[9, 0, 0, 0, 1])]).outputs([2]),
    ];
    let answers = rig.run(requests);
    let names: Vec<String> = rig.instance.plan.outputs.iter().map(|output| output.name.to_str_lossy().into()).collect();
    assert_eq!(names, ["FIRST", "LENGTH", "SAME", "UPPER"]);
    let got = outputs(answers[0].as_ref().unwrap());
    assert_eq!(got[0], ("SAME".to_owned(), vec![1, 2], wire(&first)));
    assert_eq!(got[1], ("LENGTH".to_owned(), vec![1, 2], numbers(&[3, 0]).to_vec()));
    assert_eq!(got[2], ("UPPER".to_owned(), vec![1, 2], wire(&[b"A\0B", b""])));
    assert_eq!(got[3], ("FIRST".to_owned(), vec![1, 1], wire(&[b"a\0b!"])));
    assert_eq!(outputs(answers[1].as_ref().unwrap())[0], ("SAME".to_owned(), vec![2, 2], wire(&second)));
    let error = answers[2].as_ref().unwrap_err();
    let text =
        "incomplete string data for inference input 'TEXT', expecting string of length 9 but only 1 bytes available";
    assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
    let empty = rig.draft(1).batch(1).input(0, DataType::Bytes, &[1, 0], &[]).outputs([2]);
    assert_eq!(outputs(&rig.run_one(empty).unwrap())[0], ("SAME".to_owned(), vec![1, 0], vec![]));
}

#[test]
fn every_type_goes_in_and_out() {
    let mut rig = rig!(named("types.savedmodel"));
    let inputs: Vec<_> = rig.instance.plan.inputs.iter().map(|plan| plan.input.clone()).collect();
    assert_eq!(inputs.len(), 13);
    let mut draft = rig.draft(1).batch(2);
    let mut expected = Vec::new();
    for input in &inputs {
        let bytes = match input.datatype {
            DataType::Bytes => wire(&[b"one", b"", b"t\0w", b"\xff"]),
            other => (0..4 * other.byte_size()).map(|at| (at % 2) as u8).collect(),
        };
        draft = draft.input(input.index, input.datatype, &[2, 2], &[Slice::copy_of(&bytes)]);
        expected.push((input.name.replace("IN_", "OUT_"), vec![2, 2], bytes));
    }
    let all = 0..rig.instance.plan.outputs.len();
    assert_eq!(outputs(&rig.run_one(draft.outputs(all)).unwrap()), expected);
}

#[test]
fn only_requested_outputs_are_computed() {
    let mut config = named("fixed.savedmodel");
    config.output = vec![output("DIVIDED", DataType::Int32, &[1]), output("TWICE", DataType::Fp32, &[4])];
    let mut rig = rig!(config);
    // The division by zero fails, unless it is not computed.
    let request =
        |rig: &Rig, outputs: &[usize]| rig.draft(1).floats(0, &[4], &[0., 1., 2., 3.]).outputs(outputs.iter().copied());
    let one = request(&rig, &[1]);
    assert_eq!(as_floats(&rig.run_one(one).unwrap().outputs[0].data), [0., 2., 4., 6.]);
    let both = request(&rig, &[0, 1]);
    let error = rig.run_one(both).unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert!(error.message.contains("ivision by zero"), "{}", error.message);
    let none = request(&rig, &[]);
    assert!(rig.run_one(none).unwrap().outputs.is_empty());
    // A scalar result has the dimensions of the configuration.
    let divided = rig.draft(1).floats(0, &[4], &[2., 1., 1., 1.]).outputs([0]);
    assert_eq!(outputs(&rig.run_one(divided).unwrap())[0], ("DIVIDED".to_owned(), vec![1], numbers(&[4]).to_vec()));
}

#[test]
fn scalars_and_unknown_ranks_take_what_the_configuration_says() {
    let mut config = named("scalar.savedmodel");
    config.input = vec![input("VALUE", DataType::Fp32, &[1]), input("FACTOR", DataType::Fp32, &[-1])];
    config.output = vec![output("TWICE", DataType::Fp32, &[1]), output("PRODUCT", DataType::Fp32, &[-1])];
    let mut rig = rig!(config);
    let scalars: Vec<bool> = rig.instance.plan.inputs.iter().map(|input| input.is_scalar).collect();
    assert_eq!(scalars, [true, false]);
    let request = rig.draft(1).floats(0, &[1], &[4.]).floats(1, &[3], &[1., 2., 3.]).outputs([0, 1]);
    let response = rig.run_one(request).unwrap();
    assert_eq!((&response.outputs[0].shape[..], as_floats(&response.outputs[0].data)), (&[1][..], vec![8.]));
    assert_eq!((&response.outputs[1].shape[..], as_floats(&response.outputs[1].data)), (&[3][..], vec![3., 6., 9.]));
    // A model of unknown rank batches if the configuration says so.
    let mut config = named("unranked.savedmodel");
    config.max_batch_size = 4;
    config.input = vec![ModelInputWithReshape::of("VALUE", &[2, 2], &[4])];
    config.output = vec![output("TWICE", DataType::Fp32, &[4])];
    let mut rig = rig!(config);
    let request = rig.draft(1).batch(2).floats(0, &[2, 4], &[1.; 8]).outputs([0]);
    assert_eq!(rig.run_one(request).unwrap().outputs[0].shape[..], [2, 4]);
}

struct ModelInputWithReshape;

impl ModelInputWithReshape {
    fn of(name: &str, dims: &[i64], shape: &[i64]) -> nereid_wire::inference::ModelInput {
        let reshape = Some(ModelTensorReshape { shape: shape.to_vec() });
        nereid_wire::inference::ModelInput { reshape, ..input(name, DataType::Fp32, dims) }
    }
}

#[test]
fn controls_and_states_are_inputs_and_outputs_of_the_model() {
    let mut config = named("sequence.savedmodel");
    let mut choice = sequence(&["START"], &[("BEFORE", "AFTER")]);
    if let nereid_wire::inference::model_config::SchedulingChoice::SequenceBatching(sequence) = &mut choice {
        use nereid_wire::inference::model_sequence_batching::control::Kind as ControlKind;
        use nereid_wire::inference::model_sequence_batching::{Control, ControlInput};
        let mut add = |name: &str, control: Control| {
            sequence.control_input.push(ControlInput { name: name.to_owned(), control: vec![control] });
        };
        let kind = |kind: ControlKind| kind.into();
        add(
            "READY",
            Control {
                kind: kind(ControlKind::ControlSequenceReady),
                fp32_false_true: vec![0., 1.],
                ..Default::default()
            },
        );
        add(
            "END",
            Control {
                kind: kind(ControlKind::ControlSequenceEnd),
                bool_false_true: vec![false, true],
                ..Default::default()
            },
        );
        let data_type = DataType::Uint64 as i32;
        add("CORRID", Control { kind: kind(ControlKind::ControlSequenceCorrid), data_type, ..Default::default() });
    }
    config.scheduling_choice = Some(choice);
    let mut rig = rig!(config);
    let names: Vec<&str> = rig.instance.plan.inputs.iter().map(|plan| plan.input.name.as_str()).collect();
    assert_eq!(names, ["VALUE", "START", "READY", "END", "CORRID", "BEFORE"]);
    let zero = StateTensor {
        input_name: "BEFORE".to_owned(),
        output_name: "AFTER".to_owned(),
        datatype: DataType::Int32,
        shape: Shape::from_slice(&[1, 1]),
        data: numbers(&[0]),
    };
    let states = Arc::new(States::new(vec![zero]));
    for (value, start, expected) in [(5, 1, 5), (7, 0, 12), (1, 0, 13), (2, 1, 2)] {
        let before = states.tensors()[0].data.clone();
        let draft = rig.draft(1).batch(1).input(0, DataType::Int32, &[1, 1], &[numbers(&[value])]);
        let draft = draft.input(1, DataType::Int32, &[1, 1], &[numbers(&[start])]).floats(2, &[1, 1], &[1.]);
        let draft = draft.input(3, DataType::Bool, &[1, 1], &[Slice::copy_of(&[0])]);
        let draft = draft.input(4, DataType::Uint64, &[1, 1], &[Slice::copy_of(&77u64.to_le_bytes())]);
        let mut request = draft.input(5, DataType::Int32, &[1, 1], &[before]).outputs([1, 2]);
        request.states = Some(states.clone());
        let got = outputs(&rig.run_one(request).unwrap());
        assert_eq!(got[0].2, 77u64.to_le_bytes(), "{}", got[0].0);
        assert_eq!(got[1].2, numbers(&[expected]).to_vec(), "{}", got[1].0);
        assert_eq!(states.tensors()[0].data[..], numbers(&[expected])[..]);
    }
}

#[test]
fn ragged_requests_are_flat_and_described() {
    let mut config = named("ragged.savedmodel");
    config.max_batch_size = 8;
    let flat = nereid_wire::inference::ModelInput { allow_ragged_batch: true, ..input("VALUE", DataType::Fp32, &[-1]) };
    config.input = vec![flat];
    config.output = vec![output("SUM", DataType::Fp32, &[1]), output("TWICE", DataType::Fp32, &[-1])];
    let mut counts =
        BatchInput { target_name: vec!["COUNTS".into()], source_input: vec!["VALUE".into()], ..Default::default() };
    counts.data_type = DataType::Fp32 as i32;
    counts.set_kind(BatchInputKind::BatchElementCount);
    config.batch_input = vec![counts];
    config.batch_output = vec![BatchOutput {
        target_name: vec!["TWICE".into()],
        source_input: vec!["VALUE".into()],
        ..Default::default()
    }];
    let mut rig = rig!(config);
    let ragged = |rig: &Rig, key, values: &[f32]| {
        rig.draft(key).batch(1).floats(0, &[1, values.len() as i64], values).outputs([0, 1])
    };
    let requests = [ragged(&rig, 1, &[1., 2., 3.]), ragged(&rig, 2, &[10.]), ragged(&rig, 3, &[4., 5.])];
    let answers = rig.run(requests);
    let got: Vec<(Vec<f32>, Vec<f32>)> = answers
        .iter()
        .map(|answer| {
            let outputs = &answer.as_ref().unwrap().outputs;
            (as_floats(&outputs[0].data), as_floats(&outputs[1].data))
        })
        .collect();
    assert_eq!(got, [(vec![6.], vec![2., 4., 6.]), (vec![10.], vec![20.]), (vec![9.], vec![8., 10.])]);
    assert_eq!(answers[0].as_ref().unwrap().outputs[1].shape[..], [1, 3]);
}

#[test]
fn what_the_library_does_not_take_is_an_error_of_the_request() {
    let mut config = named("unranked.savedmodel");
    config.input = vec![input("VALUE", DataType::Fp32, &[1; 255])];
    config.output = vec![output("TWICE", DataType::Fp32, &[1; 255])];
    let mut rig = rig!(config);
    let request = rig.draft(1).floats(0, &[1; 255], &[1.]).outputs([0]);
    let error = rig.run_one(request).unwrap_err();
    assert!(error.message.starts_with("TensorFlow has no tensor of shape [1,1,"), "{}", error.message);
    // Dimensions that overflow beside a zero.
    let request = rig.draft(1).floats(0, &[1 << 40, 1 << 40, 0], &[]).outputs([0]);
    let error = rig.run_one(request).unwrap_err();
    assert!(!error.message.is_empty());
    let mut rig = rig!(named("add_sub.savedmodel"));
    let wrong = rig.draft(1).batch(1).floats(0, &[1, 3], &[1.; 3]).floats(1, &[1, 4], &[1.; 4]).outputs([0]);
    let error = rig.run_one(wrong).unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert!(error.message.contains("shape"), "the library's own text: {}", error.message);
    let good = rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[1.; 4]).outputs([1]);
    assert!(rig.run_one(good).is_ok(), "the session goes on");
}
