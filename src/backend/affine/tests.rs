//! The same batches on the CPU and on devices that do not order operations by themselves.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;
use crate::fixtures::{Answers, Draft, as_floats, floats};
use crate::onnxruntime::fixtures::context;
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{Gpus, Settings};
use nereid_model_config::ModelSpec;
use nereid_request::{Code, DataType, Request};
use nereid_scheduler::{More, Payload};
use nereid_wire::inference::model_optimization_policy::Cuda;
use nereid_wire::inference::model_optimization_policy::cuda::{GraphSpec, graph_spec};
use nereid_wire::inference::{ModelConfig, ModelInput, ModelOptimizationPolicy, ModelOutput, ModelParameter};

/// `pairs` pairs of `dims`, y = 2 x + 1.
fn config(pairs: usize, dims: &[i64], max_batch_size: i32) -> ModelConfig {
    let mut config = ModelConfig { name: "m".to_owned(), max_batch_size, ..ModelConfig::default() };
    for at in 0..pairs {
        config.input.push(ModelInput {
            name: format!("INPUT{at}"),
            data_type: DataType::Fp32 as i32,
            dims: dims.to_vec(),
            ..ModelInput::default()
        });
        config.output.push(ModelOutput {
            name: format!("OUTPUT{at}"),
            data_type: DataType::Fp32 as i32,
            dims: dims.to_vec(),
            ..ModelOutput::default()
        });
    }
    for (key, value) in [("scale", "2"), ("bias", "1")] {
        config.parameters.insert(key.to_owned(), ModelParameter { string_value: value.to_owned() });
    }
    config
}

#[test]
fn configurations_are_refused_by_their_texts() {
    type Change = fn(&mut ModelConfig);
    let cases: [(Change, &str); 7] = [
        (|c| drop(c.output.pop()), "expected as many outputs as inputs, got 1 and 2"),
        (|c| (c.input, c.output) = (vec![], vec![]), "expected as many outputs as inputs, got 0 and 0"),
        (|c| c.input[1].name = "X".into(), "expected 'INPUT1', got 'X'"),
        (|c| c.output[0].name = "X".into(), "expected 'OUTPUT0', got 'X'"),
        (|c| c.input[0].data_type = DataType::Int32 as i32, "expected 'INPUT0' to have data type TYPE_FP32"),
        (|c| c.output[1].dims = vec![9], "expected 'INPUT1' and 'OUTPUT1' to have the same dims"),
        (
            |c| drop(c.parameters.insert("bias".into(), ModelParameter { string_value: "much".into() })),
            "parameter 'bias' is no number: 'much'",
        ),
    ];
    for (change, text) in cases {
        let mut config = config(2, &[4], 8);
        change(&mut config);
        let status = AffineModel::read(&context("m", config)).unwrap_err();
        assert_eq!((status.code, &*status.message), (Code::InvalidArg, text));
    }
    assert!(AffineModel::read(&context("m", config(2, &[4], 8))).is_ok());
}

fn batch(requests: impl IntoIterator<Item = Box<Request>>) -> Payload {
    let mut payload = Payload::default();
    requests.into_iter().for_each(|request| payload.push(request));
    payload
}

/// A request's key, and the numbers of each output or the text of its error.
type Answered = (u64, Result<Vec<Vec<f32>>, String>);

/// One instance, on the CPU or on device 0.
struct Rig {
    instance: Box<dyn Instance>,
    answers: Arc<Answers>,
    simulated: Option<Arc<Simulated>>,
}

impl Rig {
    fn new(config: ModelConfig, simulated: Option<Simulated>) -> Result<Rig, Status> {
        let mut model = context("m", config.clone());
        let simulated = simulated.map(Arc::new);
        if let Some(simulated) = &simulated {
            model.gpus = Gpus::with(simulated.clone(), &Settings { pinned_pool_bytes: 4 << 20, ..Settings::default() });
        }
        let model = Arc::new(model);
        let mut own = InstanceContext::new("m_0", Arc::new(ModelSpec::new(config).unwrap()), Arc::clone(&model));
        if simulated.is_some() {
            (own.kind, own.gpu) = (Kind::Gpu, model.gpus.get(0).cloned());
        }
        let instance = AffineBackend.create_model(model)?.create_instance(own)?;
        Ok(Rig { instance, answers: Arc::default(), simulated })
    }

    fn on(config: ModelConfig, seed: Option<u64>) -> Rig {
        Rig::new(config, seed.map(|seed| Simulated::new(Spec { delay_us_max: 30, ..Spec::prompt(1, seed) }))).unwrap()
    }

    /// Executes the batches: the first is given, the others wait.
    fn run(&mut self, batches: Vec<Payload>) {
        let waiting = Arc::new(Mutex::new(VecDeque::from(batches)));
        let next = move || waiting.lock().unwrap().pop_front();
        let more = More::new(next.clone());
        // An instance on the CPU takes them one by one.
        while let Some(payload) = next() {
            self.instance.execute(&mut payload.with_more(more.clone())).unwrap();
        }
        if let Some(simulated) = &self.simulated {
            assert_eq!(simulated.violations(), Vec::<String>::new());
        }
    }

    /// The numbers of each answer's outputs, by the request's key; errors by their texts.
    fn answered(&self) -> Vec<Answered> {
        let numbers = |response: nereid_request::Response| {
            response.outputs.iter().map(|output| as_floats(&output.data)).collect()
        };
        let answers = self.answers.take().into_iter();
        let mut answers: Vec<_> = answers
            .map(|(key, answer)| (key, answer.map(numbers).map_err(|status| status.message.to_string())))
            .collect();
        answers.sort_by_key(|(key, _)| *key);
        answers
    }
}

const PLACES: [Option<u64>; 6] = [None, Some(1), Some(2), Some(3), Some(4), Some(5)];

#[test]
fn every_request_has_its_own_numbers_wherever_they_are_computed() {
    for place in PLACES {
        let mut rig = Rig::on(config(2, &[-1], 8), place);
        let mut expected = Vec::new();
        let mut batches = Vec::new();
        for at in 0..7u64 {
            let mut requests = Vec::new();
            for number in 0..=at % 3 {
                let key = at * 10 + number;
                let width = 3 + number as i64;
                let values: Vec<f32> = (0..width).map(|at| (key * 100) as f32 + at as f32).collect();
                let negative: Vec<f32> = values.iter().map(|value| -value).collect();
                let draft = Draft::new(&rig.answers, key);
                // The second request of a batch wants the outputs the other way round.
                let draft = draft.floats(0, &[1, width], &values).floats(1, &[1, width], &negative);
                let double = |values: &[f32]| values.iter().map(|value| 2.0 * value + 1.0).collect::<Vec<f32>>();
                let (first, second) = (double(&values), double(&negative));
                let (order, outputs) =
                    if number == 1 { ([1, 0], vec![second, first]) } else { ([0, 1], vec![first, second]) };
                requests.push(draft.outputs(order));
                expected.push((key, Ok(outputs)));
            }
            batches.push(batch(requests));
        }
        rig.run(batches);
        assert_eq!(rig.answered(), expected, "{place:?}");
    }
}

#[test]
fn pieces_may_cut_numbers_anywhere_and_tensors_may_be_empty() {
    for place in PLACES {
        let mut rig = Rig::on(config(1, &[-1], 8), place);
        let bytes = floats(&[1.0, 2.0, 3.0]);
        let pieces = [bytes.window(0..5), bytes.window(5..6), bytes.window(6..12)];
        let cut = Draft::new(&rig.answers, 1).input(0, DataType::Fp32, &[1, 3], &pieces).outputs([0]);
        let empty = Draft::new(&rig.answers, 2).floats(0, &[1, 0], &[]).outputs([0]);
        let alone = Draft::new(&rig.answers, 3).floats(0, &[1, 0], &[]).outputs([0]);
        rig.run(vec![batch([cut, empty]), batch([alone])]);
        let expected = [(1, Ok(vec![vec![3.0, 5.0, 7.0]])), (2, Ok(vec![vec![]])), (3, Ok(vec![vec![]]))];
        assert_eq!(rig.answered(), expected, "{place:?}");
    }
}

fn with_graphs(mut config: ModelConfig, specs: Vec<GraphSpec>) -> ModelConfig {
    let cuda = Cuda { graphs: true, graph_spec: specs, ..Cuda::default() };
    config.optimization = Some(ModelOptimizationPolicy { cuda: Some(cuda), ..ModelOptimizationPolicy::default() });
    config
}

fn rows(rig: &Rig, key: u64, rows: u64) -> Box<Request> {
    let values: Vec<f32> = (0..rows * 2).map(|at| (key + at) as f32).collect();
    Draft::new(&rig.answers, key).batch(rows).floats(0, &[rows as i64, 2], &values).outputs([0])
}

#[test]
fn recorded_launches_serve_the_batches_they_are_meant_for() {
    let bound = |batch_size| Some(graph_spec::LowerBound { batch_size, ..graph_spec::LowerBound::default() });
    let spec = |batch_size, graph_lower_bound| GraphSpec { batch_size, graph_lower_bound, ..GraphSpec::default() };
    // Sizes of batches, and how many of them are launched as recorded.
    let cases: [(Vec<GraphSpec>, &[u64], u64); 4] = [
        (vec![], &[1, 8, 4], 2),
        (vec![spec(4, None)], &[4, 3, 4], 2),
        (vec![spec(8, bound(3)), spec(2, None)], &[2, 3, 1, 8], 3),
        (vec![spec(1, None)], &[8], 0),
    ];
    for (number, (specs, sizes, recorded)) in cases.into_iter().enumerate() {
        let mut rig = Rig::on(with_graphs(config(1, &[2], 8), specs), Some(7));
        for (at, size) in sizes.iter().enumerate() {
            // One after the other: a bucket that is in use serves no other batch.
            let request = rows(&rig, at as u64 * 100, *size);
            rig.run(vec![batch([request])]);
        }
        for (at, (size, (key, answer))) in sizes.iter().zip(rig.answered()).enumerate() {
            let expected: Vec<f32> = (0..size * 2).map(|at| 2.0 * (key + at) as f32 + 1.0).collect();
            assert_eq!(answer, Ok(vec![expected]), "case {number}, batch {at}");
        }
        assert_eq!(rig.simulated.as_ref().unwrap().counts().graphs, recorded, "case {number}");
    }
}

#[test]
fn what_cannot_be_recorded_fails_the_load_by_its_text() {
    let spec = |batch_size| GraphSpec { batch_size, ..GraphSpec::default() };
    let simulated = || Some(Simulated::new(Spec::prompt(1, 1)));
    let refused = |config| Rig::new(config, simulated()).err().map(|status| status.message.to_string());
    let variable = refused(with_graphs(config(1, &[-1], 8), vec![spec(2)])).unwrap();
    assert_eq!(variable, "graph_spec of model 'm' needs the shape of input 'INPUT0', whose dims are variable");
    let beyond = refused(with_graphs(config(1, &[2], 8), vec![spec(9)])).unwrap();
    assert_eq!(beyond, "graph_spec of model 'm' has batch_size 9, beyond max_batch_size 8");
    let shape = graph_spec::Shape { dim: vec![2] };
    let said = GraphSpec { batch_size: 2, input: [("INPUT0".to_owned(), shape)].into(), ..GraphSpec::default() };
    assert_eq!(refused(with_graphs(config(1, &[-1], 8), vec![said])), None);
}

#[test]
fn a_lost_device_fails_its_requests_and_says_so() {
    let mut rig = Rig::on(config(1, &[2], 8), Some(9));
    rig.run(vec![batch([rows(&rig, 1, 1)])]);
    rig.simulated.as_ref().unwrap().fail_after(1, 700);
    let batches = (2..6).map(|key| batch([rows(&rig, key, 1)])).collect();
    rig.run(batches);
    let answers = rig.answered();
    assert_eq!(answers.len(), 5, "every request is answered");
    assert_eq!(answers[0].1, Ok(vec![vec![3.0, 5.0]]));
    for (key, answer) in &answers[1..] {
        let text = answer.as_ref().unwrap_err();
        assert!(text.starts_with("instance 'm_0' on GPU 0: ") && text.contains("(700)"), "{key}: {text}");
    }
}

#[test]
fn an_instance_for_a_device_needs_one() {
    let config = config(1, &[2], 8);
    let model = Arc::new(context("m", config.clone()));
    let mut own = InstanceContext::new("m_0", Arc::new(ModelSpec::new(config).unwrap()), Arc::clone(&model));
    (own.kind, own.device) = (Kind::Gpu, 3);
    let refused = AffineBackend.create_model(model).unwrap().create_instance(own).err().unwrap();
    assert_eq!(refused.message, "instance 'm_0' has no GPU 3");
}
