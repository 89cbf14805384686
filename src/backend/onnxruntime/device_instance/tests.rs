//! The same models on devices that do not order operations by themselves; the library computes on the host in their
//! place.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;
use crate::fixtures::{as_floats, floats};
use crate::onnxruntime::fixtures::{context, runtime};
use crate::onnxruntime::instance::tests::{Rig, add_sub, config, input, numbers, output, ragged, running_sum, strings};
use crate::onnxruntime::io_binding::tests::{library_that_records, taken};
use crate::onnxruntime::model::OnnxModel;
use crate::onnxruntime::runtime::Runtime;
use crate::onnxruntime::settings::BackendSettings;
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{DeviceSlice, DeviceTarget, Gpus, Settings};
use nereid_memory::Slice;
use nereid_model_config::ModelSpec;
use nereid_request::{Code, DataType, Response};
use nereid_scheduler::More;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::model_optimization_policy::ExecutionAccelerators;
use nereid_wire::inference::model_optimization_policy::execution_accelerators::Accelerator;
use nereid_wire::inference::{ModelConfig, ModelInstanceGroup, ModelOptimizationPolicy};

/// A rig on device 0 of two, and the devices.
struct Place {
    rig: Rig<DeviceInstance>,
    simulated: Arc<Simulated>,
    gpus: Arc<Gpus>,
}

impl Place {
    /// `None`: there is no library, which was reported.
    fn new(config: ModelConfig, seed: u64) -> Option<Place> {
        Some(Place::of(runtime()?, config, seed))
    }

    fn of(runtime: &'static Runtime, mut config: ModelConfig, seed: u64) -> Place {
        let mut group = ModelInstanceGroup { count: 1, gpus: vec![0], ..ModelInstanceGroup::default() };
        group.set_kind(Kind::Gpu);
        config.instance_group = vec![group];
        let simulated = Arc::new(Simulated::new(Spec { delay_us_max: 30, ..Spec::prompt(2, seed) }));
        let settings = Settings { pinned_pool_bytes: 4 << 20, ..Settings::default() };
        let mut context = context("m", config.clone());
        context.gpus = Gpus::with(simulated.clone(), &settings);
        let (gpus, context) = (Arc::clone(&context.gpus), Arc::new(context));
        let backend = BackendSettings::parse(&context).unwrap();
        let model = OnnxModel::open(runtime, &backend, Arc::clone(&context)).unwrap();
        let mut own = InstanceContext::new("m_0", Arc::new(ModelSpec::new(config).unwrap()), Arc::clone(&context));
        (own.kind, own.gpu) = (Kind::Gpu, gpus.get(0).cloned());
        let instance = model.device_instance(own).unwrap();
        Place { rig: Rig::of(instance, context.pool.clone()), simulated, gpus }
    }

    fn gpu(&self, ordinal: i32) -> &Gpu {
        self.gpus.get(ordinal).unwrap()
    }

    fn run_one(&mut self, request: Box<Request>) -> Result<Response, Status> {
        let answer = self.rig.run_one(request);
        self.check();
        answer
    }

    fn run(&mut self, requests: impl IntoIterator<Item = Box<Request>>) -> Vec<(u64, Result<Response, Status>)> {
        let mut answers = self.rig.run(requests);
        answers.sort_by_key(|(key, _)| *key);
        self.check();
        answers
    }

    fn check(&self) {
        assert_eq!(self.simulated.violations(), Vec::<String>::new());
    }

    fn fetched(&self, slice: &DeviceSlice) -> Vec<f32> {
        let mut bytes = vec![0; slice.len()];
        slice.gpu().fetch(slice, &mut bytes).unwrap();
        as_floats(&[Slice::copy_of(&bytes)])
    }
}

macro_rules! place {
    ($config:expr, $seed:expr) => {
        match Place::new($config, $seed) {
            Some(place) => place,
            None => return,
        }
    };
}

fn sums(response: &Response) -> Vec<Vec<f32>> {
    response.outputs.iter().map(|output| as_floats(&output.data)).collect()
}

#[test]
fn batches_follow_each_other_and_every_request_gets_its_own() {
    for seed in 1..6 {
        let mut place = place!(add_sub("add_sub", 8, &[4], &[4]), seed);
        let mut batches = VecDeque::new();
        for batch in 0..7u64 {
            let mut payload = Payload::default();
            for number in 0..=batch % 3 {
                let key = batch * 10 + number;
                let rows = 1 + (key % 2);
                let values: Vec<f32> = (0..rows * 4).map(|at| (key * 100 + at) as f32).collect();
                let shape = [rows as i64, 4];
                let draft = place.rig.draft(key).batch(rows).floats(0, &shape, &values);
                payload.push(draft.floats(1, &shape, &vec![1.; values.len()]).outputs([1, 0]));
            }
            batches.push_back(payload);
        }
        let mut first = batches.pop_front().unwrap();
        let waiting = Mutex::new(batches);
        first = first.with_more(More::new(move || waiting.lock().unwrap().pop_front()));
        place.rig.instance.execute(&mut first).unwrap();
        place.check();
        let answers = place.rig.answers.take();
        assert_eq!(answers.len(), 13);
        for (key, answer) in answers {
            let response = answer.unwrap();
            let count = (1 + (key % 2)) * 4;
            let base = (0..count).map(|at| (key * 100 + at) as f32);
            let expected: [Vec<f32>; 2] = [base.clone().map(|x| x - 1.).collect(), base.map(|x| x + 1.).collect()];
            assert_eq!(sums(&response), expected, "request {key}, seed {seed}");
            assert_eq!(response.outputs[0].shape[..], [1 + (key % 2) as i64, 4]);
        }
    }
}

#[test]
fn tensors_of_the_device_are_used_where_they_lie() {
    let mut place = place!(add_sub("add_sub", 8, &[4], &[4]), 3);
    let (a, b) = (floats(&[1., 2., 3., 4.]), floats(&[10., 20., 30., 40.]));
    // One input on this device, one on the other.
    let (here, there) = (place.gpu(0).put(&a).unwrap(), place.gpu(1).put(&b).unwrap());
    *place.rig.answers.destination.lock().unwrap() = OutputDestination::OnDevice;
    let draft = place.rig.draft(1).batch(1).on_device(0, DataType::Fp32, &[1, 4], &here);
    let request = draft.on_device(1, DataType::Fp32, &[1, 4], &there).outputs([0, 1]);
    let response = place.run_one(request).unwrap();
    let slices: Vec<&DeviceSlice> =
        response.outputs.iter().map(|output| output.on_device.as_deref().unwrap()).collect();
    assert!(slices.iter().all(|slice| slice.gpu().is_same(place.gpu(0))));
    assert!(response.outputs.iter().all(|output| output.data.is_empty()));
    assert_eq!(place.fetched(slices[0]), [11., 22., 33., 44.]);
    assert_eq!(place.fetched(slices[1]), [-9., -18., -27., -36.]);
    // The outputs become inputs.
    let draft = place.rig.draft(2).batch(1).on_device(0, DataType::Fp32, &[1, 4], slices[0]);
    let request = draft.on_device(1, DataType::Fp32, &[1, 4], slices[0]).outputs([0]);
    let response = place.run_one(request).unwrap();
    assert_eq!(place.fetched(response.outputs[0].on_device.as_deref().unwrap()), [22., 44., 66., 88.]);
}

/// Memory of a client.
fn target(gpu: &Gpu, len: usize) -> (DeviceTarget, DeviceSlice) {
    let slice = gpu.put(&vec![0xee; len]).unwrap();
    // Tests must not use `unsafe`: a region would do the same.
    (DeviceTarget::of_slice(&slice), slice)
}

#[test]
fn outputs_go_where_their_client_wants_them() {
    for (device, name, dims) in [(0, "fixed", &[4][..]), (1, "fixed", &[4]), (0, "dynamic", &[-1, -1])] {
        let mut place = place!(add_sub(name, 0, dims, dims), 5);
        let shape: &[i64] = if name == "fixed" { &[4] } else { &[2, 2] };
        let (wanted, slice) = target(place.gpu(device), 24);
        *place.rig.answers.destination.lock().unwrap() = OutputDestination::At(wanted);
        let draft = place.rig.draft(1).floats(0, shape, &[1., 2., 3., 4.]);
        let response = place.run_one(draft.floats(1, shape, &[1.; 4]).outputs([0])).unwrap();
        let output = &response.outputs[0];
        assert!(output.on_device.as_ref().unwrap().same_memory(&slice.window(0..16)), "{name} on {device}");
        assert_eq!(place.fetched(&slice.window(0..16)), [2., 3., 4., 5.]);
        let mut rest = [0; 8];
        place.gpu(device).fetch(&slice.window(16..24), &mut rest).unwrap();
        assert_eq!(rest, [0xee; 8]);
    }
}

/// A configuration that enables graphs.
fn recorded(mut config: ModelConfig) -> ModelConfig {
    let parameters = [("enable_cuda_graph".to_owned(), "1".to_owned())].into_iter().collect();
    let accelerator = Accelerator { name: "cuda".to_owned(), parameters };
    let accelerators =
        ExecutionAccelerators { gpu_execution_accelerator: vec![accelerator], ..ExecutionAccelerators::default() };
    config.optimization =
        Some(ModelOptimizationPolicy { execution_accelerators: Some(accelerators), ..Default::default() });
    config
}

#[test]
fn recorded_batches_have_buffers_that_stay() {
    let mut place = place!(recorded(add_sub("add_sub", 8, &[4], &[4])), 11);
    let mut seen = Vec::new();
    for round in 0..6u64 {
        let rows = 1 + round % 2;
        let values: Vec<f32> = (0..rows * 4).map(|at| (round * 10 + at) as f32).collect();
        let shape = [rows as i64, 4];
        let draft = place.rig.draft(round).batch(rows).floats(0, &shape, &values);
        let response = place.run_one(draft.floats(1, &shape, &vec![1.; values.len()]).outputs([0])).unwrap();
        assert_eq!(sums(&response), [values.iter().map(|value| value + 1.).collect::<Vec<f32>>()]);
        let recordings = place.rig.instance.running.recordings.as_ref().unwrap();
        let addresses = |at: usize| {
            let one = recordings.get(at)?;
            Some(one.inputs.iter().chain(&one.outputs).map(|buffer| buffer.address()).collect::<Vec<_>>())
        };
        seen.push([addresses(0), addresses(1), addresses(2)]);
    }
    let [one, two, none] = &seen[5];
    assert!(one.is_some() && two.is_some() && none.is_none() && one != two);
    assert!(seen[1..].iter().all(|then| then == &seen[5]));
    // An output that stays on the device cannot be part of a graph; clients' memory is copied to.
    let (wanted, slice) = target(place.gpu(1), 16);
    for destination in [OutputDestination::OnDevice, OutputDestination::At(wanted)] {
        *place.rig.answers.destination.lock().unwrap() = destination;
        let draft = place.rig.draft(9).batch(1).floats(0, &[1, 4], &[5.; 4]).floats(1, &[1, 4], &[1.; 4]);
        let response = place.run_one(draft.outputs([1])).unwrap();
        assert_eq!(place.fetched(response.outputs[0].on_device.as_deref().unwrap()), [4.; 4]);
    }
    assert_eq!(place.fetched(&slice), [4.; 4]);
}

#[test]
fn sizes_that_the_model_finds_out_are_taken_over() {
    let mut place = place!(add_sub("dynamic", 0, &[-1, -1], &[-1, -1]), 2);
    for (rows, columns) in [(1, 3), (2, 2), (3, 0), (5, 4)] {
        let len = (rows * columns) as usize;
        let draft = place.rig.draft(1).floats(0, &[rows, columns], &vec![rows as f32; len]);
        let response = place.run_one(draft.floats(1, &[rows, columns], &vec![1.; len]).outputs([0, 1])).unwrap();
        assert_eq!(response.outputs[0].shape[..], [rows, columns]);
        assert_eq!(sums(&response), [vec![rows as f32 + 1.; len], vec![rows as f32 - 1.; len]]);
    }
}

#[test]
fn a_model_that_declares_a_wrong_size_is_run_without_it() {
    let mut place = place!(add_sub("lying", 8, &[-1], &[4]), 4);
    for (columns, wrong) in [(4, false), (2, true), (4, true), (3, true)] {
        let len = 2 * columns as usize;
        let draft = place.rig.draft(1).batch(2).floats(0, &[2, columns], &vec![1.; len]);
        let response = place.run_one(draft.floats(1, &[2, columns], &vec![1.; len]).outputs([0])).unwrap();
        assert_eq!((&response.outputs[0].shape[..], sums(&response)), (&[2, columns][..], vec![vec![2.; len]]));
        assert_eq!(place.rig.instance.declares_wrongly, wrong);
    }
}

#[test]
fn what_the_host_reads_stays_there() {
    let inputs = vec![input("INPUT", DataType::Fp32, &[-1]), input("INDEX", DataType::Int64, &[-1])];
    let mut place = place!(config("gather", 0, inputs, vec![output("OUTPUT", DataType::Fp32, &[-1])]), 6);
    assert_eq!(
        place.rig.instance.plan.inputs.iter().map(|input| input.stays_on_host()).collect::<Vec<_>>(),
        [false, true]
    );
    // Even if it lies on a device.
    for (index, expected) in [(1i64, Ok(vec![8.])), (9, Err("Gather")), (0, Ok(vec![7.]))] {
        let index = place.gpu(0).put(&index.to_le_bytes()).unwrap();
        let draft = place.rig.draft(1).floats(0, &[2], &[7., 8.]);
        let answer = place.run_one(draft.on_device(1, DataType::Int64, &[1], &index).outputs([0]));
        match expected {
            Ok(values) => assert_eq!(sums(&answer.unwrap()), [values]),
            Err(part) => {
                let error = answer.unwrap_err();
                assert!(error.message.starts_with("onnx runtime error 2: ") && error.message.contains(part), "{error}");
            }
        }
    }
}

/// The library copies inputs of the host to the device when they are bound, on a stream of its own: a run begins after
/// these copies.
#[test]
fn a_run_begins_when_what_was_bound_has_arrived() {
    let Some((runtime, _reading)) = library_that_records() else { return };
    let inputs = vec![input("INPUT", DataType::Fp32, &[-1]), input("INDEX", DataType::Int64, &[-1])];
    let config = config("gather", 0, inputs, vec![output("OUTPUT", DataType::Fp32, &[-1])]);
    let mut place = Place::of(runtime, config, 6);
    taken();
    for at in 0..3i64 {
        let index = place.gpu(0).put(&(at % 2).to_le_bytes()).unwrap();
        let draft = place.rig.draft(1).floats(0, &[2], &[7., 8.]);
        let answer = place.run_one(draft.on_device(1, DataType::Int64, &[1], &index).outputs([0]));
        assert_eq!(sums(&answer.unwrap()), [vec![7. + (at % 2) as f32]]);
        assert_eq!(taken(), ["bind", "bind", "synchronize", "run"]);
    }
}

/// A wait for the whole device would also wait for other models, and break a recording of one.
#[test]
fn a_run_whose_inputs_are_on_the_device_waits_for_nothing_else() {
    let Some((runtime, _reading)) = library_that_records() else { return };
    let mut place = Place::of(runtime, add_sub("add_sub", 8, &[4], &[4]), 8);
    taken();
    for _ in 0..3 {
        let draft = place.rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[2.; 4]);
        place.run_one(draft.outputs([0, 1])).unwrap();
        assert_eq!(taken(), ["bind", "bind", "run"]);
    }
}

/// Meanwhile no other thread uses the library on a device; a replay disturbs nobody.
#[test]
fn a_run_is_recorded_alone() {
    let Some((runtime, _reading)) = library_that_records() else { return };
    let mut place = Place::of(runtime, recorded(add_sub("add_sub", 8, &[4], &[4])), 9);
    taken();
    for (rows, expected) in [(1, "run alone"), (1, "run"), (2, "run alone"), (2, "run"), (1, "run")] {
        let values = vec![1.; rows * 4];
        let shape = [rows as i64, 4];
        let draft = place.rig.draft(1).batch(rows as u64).floats(0, &shape, &values).floats(1, &shape, &values);
        place.run_one(draft.outputs([0, 1])).unwrap();
        assert_eq!(taken().last().map(String::as_str), Some(expected), "{rows}");
    }
}

#[test]
fn strings_are_read_and_cut_on_the_host() {
    let inputs = vec![input("INPUT", DataType::Bytes, &[2])];
    let mut place = place!(config("strings", 4, inputs, vec![output("OUTPUT", DataType::Bytes, &[2])]), 7);
    let first = Slice::copy_of(&strings(&[b"one", b"", b"two", b"\xff"]));
    let malformed = Slice::copy_of(&strings(&[b"last", b"x"])[..9]);
    let device = place.gpu(1).put(&strings(&[b"last", b"x"])).unwrap();
    let requests = vec![
        place.rig.draft(1).batch(2).input(0, DataType::Bytes, &[2, 2], &[first]).outputs([0]),
        place.rig.draft(2).batch(1).on_device(0, DataType::Bytes, &[1, 2], &device).outputs([0]),
        place.rig.draft(3).batch(1).input(0, DataType::Bytes, &[1, 2], &[malformed]).outputs([0]),
    ];
    let mut answers = place.run(requests);
    let error = answers.pop().unwrap().1.unwrap_err();
    assert!(error.message.starts_with("buffer size for input 'INPUT' exceeds batch byte size "), "{error}");
    let data: Vec<Vec<u8>> = answers
        .iter()
        .map(|(_, answer)| answer.as_ref().unwrap().outputs[0].data.iter().flat_map(|piece| piece.to_vec()).collect())
        .collect();
    assert_eq!(data, [strings(&[b"one", b"", b"two", b"\xff"]), strings(&[b"last", b"x"])]);
}

#[test]
fn ragged_requests_are_joined_flat_and_split_by_their_shapes() {
    let mut place = place!(ragged(), 8);
    let first = place.rig.draft(1).batch(1).floats(0, &[1, 3], &[1., 2., 3.]).outputs([0, 3]);
    let second = place.rig.draft(2).batch(2).floats(0, &[2, 1], &[4., 5.]).outputs([3]);
    let third = place.rig.draft(3).batch(1).floats(0, &[1, 2], &[6., 7.]).outputs([0]);
    let answers = place.run(vec![first, second, third]);
    let responses: Vec<&Response> = answers.iter().map(|(_, answer)| answer.as_ref().unwrap()).collect();
    let doubled = &responses[0].outputs[0];
    assert_eq!((&doubled.shape[..], as_floats(&doubled.data)), (&[1, 3][..], vec![2., 4., 6.]));
    assert_eq!(numbers(&responses[0].outputs[1].data), [3]);
    assert_eq!(numbers(&responses[1].outputs[0].data), [1, 1]);
    assert_eq!(as_floats(&responses[2].outputs[0].data), [12., 14.]);
    let drafts = [1, 2].map(|key| place.rig.draft(key).batch(2).floats(0, &[2, 1], &[1., 2.]).outputs([1]));
    for (_, answer) in place.run(drafts) {
        let text = "output 'SEEN_COUNTS' of shape [2] has fewer elements than its batch";
        assert_eq!(answer.unwrap_err().message, text);
    }
}

#[test]
fn states_are_read_out_before_the_next_request() {
    use nereid_request::{StateTensor, States};
    let mut place = place!(running_sum(), 9);
    *place.rig.answers.destination.lock().unwrap() = OutputDestination::OnDevice;
    let states = Arc::new(States::new(vec![StateTensor {
        input_name: "STATE".into(),
        output_name: "NEXT".into(),
        datatype: DataType::Fp32,
        shape: Shape::from_slice(&[1, 1]),
        data: floats(&[10.]),
    }]));
    for expected in [13f32, 16.] {
        let present = states.tensors()[0].data.clone();
        let draft = place.rig.draft(1).batch(1).floats(0, &[1, 1], &[3.]).floats(1, &[1, 1], &[1.]);
        let mut request = draft.input(2, DataType::Fp32, &[1, 1], &[present]).outputs([0]);
        request.states = Some(Arc::clone(&states));
        let response = place.run_one(request).unwrap();
        assert_eq!(place.fetched(response.outputs[0].on_device.as_deref().unwrap()), [expected]);
        assert_eq!(as_floats(&[states.tensors()[0].data.clone()]), [expected]);
    }
}

#[test]
fn bad_requests_and_batches_are_answered_as_on_the_host() {
    let mut place = place!(add_sub("add_sub", 2, &[4], &[4]), 1);
    let good = place.rig.draft(1).batch(1).floats(0, &[1, 4], &[1.; 4]).floats(1, &[1, 4], &[2.; 4]).outputs([0]);
    let short = place.rig.draft(2).batch(1).floats(0, &[1, 4], &[1.; 3]).floats(1, &[1, 4], &[2.; 4]).outputs([0]);
    let answers = place.run(vec![good, short]);
    assert_eq!(sums(answers[0].1.as_ref().unwrap()), [[3.; 4]]);
    assert!(answers[1].1.as_ref().unwrap_err().message.contains("12 bytes, which do not fit its shape [1,4]"));
    let many = place.rig.draft(1).batch(3).floats(0, &[3, 4], &[1.; 12]).floats(1, &[3, 4], &[1.; 12]).outputs([0]);
    let error = place.run_one(many).unwrap_err();
    assert_eq!((error.code, &*error.message), (Code::Internal, "batch size 3 for 'm', max allowed is 2"));
}

#[test]
fn an_error_of_the_device_is_known_by_the_librarys_words() {
    let text = "onnx runtime error 1: /onnxruntime/cuda_call.cc:129 CUDA failure 700: an illegal memory access was \
                encountered ; GPU=0 ; hostname=x ; file=y ; line=1 ;";
    let error = device_error(text).unwrap();
    assert_eq!((error.code, &*error.text, error.is_sticky()), (700, "an illegal memory access was encountered", true));
    assert!(!device_error("CUDA failure 2: out of memory ; GPU=0").unwrap().is_sticky());
    assert_eq!(device_error("onnx runtime error 2: CUDA failure x"), None);
    assert_eq!(device_error("Gather: index out of range"), None);
}

#[test]
fn maps_are_read_on_the_host() {
    let outputs = vec![output("MAPS", DataType::Fp32, &[3]), output("MAPS.keys", DataType::Int64, &[3])];
    let given = config("maps", 4, vec![input("INPUT", DataType::Fp32, &[3])], outputs);
    let mut place = place!(given, 7);
    let first = place.rig.draft(1).batch(1).floats(0, &[1, 3], &[1., 2., 3.]).outputs([0, 1]);
    let second = place.rig.draft(2).batch(2).floats(0, &[2, 3], &[4., 5., 6., 7., 8., 9.]).outputs([0]);
    let answers = place.run([first, second]);
    let responses: Vec<&Response> = answers.iter().map(|(_, answer)| answer.as_ref().unwrap()).collect();
    let [values, keys] = &responses[0].outputs[..] else { panic!("{:?}", responses[0]) };
    assert_eq!((&values.shape[..], as_floats(&values.data)), (&[1, 3][..], vec![2., 3., 1.]));
    let keys: Vec<u8> = keys.data.iter().flat_map(|piece| piece.to_vec()).collect();
    assert_eq!(keys, [10i64, 20, 30].map(i64::to_le_bytes).concat());
    assert_eq!(as_floats(&responses[1].outputs[0].data), [5., 6., 4., 8., 9., 7.]);
    place.check();
}
