//! Plans on simulated devices, which do not order operations by themselves; the stand-in for TensorRT computes in their
//! streams.

use nereid_backend::fixtures::as_floats;
use nereid_model_config::normalize::PreferredGroup;
use nereid_request::{Code, Response};
use nereid_scheduler::More;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::model_optimization_policy::Cuda;
use nereid_wire::inference::{DataType as Type, ModelConfig, ModelInput, ModelOptimizationPolicy, ModelParameter};

use super::*;
use crate::fixtures::{ADD_SUB, Opened, error_of, library, on_gpus, open, open_with};

macro_rules! stand_in {
    ($major:expr) => {
        match library($major) {
            Some(library) => library,
            None => return,
        }
    };
}

fn request(opened: &Opened, key: u64, rows: u64) -> Box<Request> {
    let values: Vec<f32> = (0..rows * 4).map(|at| (key * 100 + at) as f32).collect();
    let shape = [rows as i64, 4];
    let draft = opened.draft(key).batch(rows).floats(0, &shape, &values);
    draft.floats(1, &shape, &vec![1.; values.len()]).outputs([1, 0])
}

fn check(answer: &Result<Response, Status>, key: u64, rows: u64) {
    let response = answer.as_ref().expect("a response");
    let values = |change: f32| (0..rows * 4).map(|at| (key * 100 + at) as f32 + change).collect::<Vec<f32>>();
    let of = |at: usize| (&response.outputs[at].shape[..], as_floats(&response.outputs[at].data));
    let shape = [rows as i64, 4];
    assert_eq!(
        (of(0), of(1)),
        ((&shape[..], values(-1.)), (&shape[..], values(1.))),
        "the outputs as they were asked for"
    );
}

#[test]
fn requests_are_joined_and_each_gets_its_rows() {
    for major in [10, 11] {
        let mut opened = open(stand_in!(major), "joined", ADD_SUB, ModelConfig::default()).unwrap();
        assert_eq!(opened.config.max_batch_size, 8);
        for round in 0..5 {
            let requests: Vec<_> = (0..3).map(|number| request(&opened, round * 10 + number, 1 + number)).collect();
            let answers = opened.execute(requests);
            (0..3).for_each(|number| check(&answers[number as usize], round * 10 + number, 1 + number));
        }
        let counted = opened.context.statistics.snapshot();
        assert_eq!((counted.execution_count, counted.inference_count), (5, 30));
    }
}

#[test]
fn batches_follow_each_other_on_the_device() {
    let mut opened = open(stand_in!(11), "pipelined", ADD_SUB, ModelConfig::default()).unwrap();
    let mut waiting: VecDeque<Payload> = (1..9u64)
        .map(|key| {
            let mut payload = Payload::default();
            payload.push(request(&opened, key, 1 + key % 3));
            payload
        })
        .collect();
    let waiting = std::sync::Mutex::new(std::mem::take(&mut waiting));
    let mut first = Payload::default();
    first.push(request(&opened, 0, 2));
    first = first.with_more(More::new(move || waiting.lock().unwrap().pop_front()));
    opened.instance.execute(&mut first).unwrap();
    let answers = opened.answers.take();
    assert_eq!(answers.len(), 9);
    for (key, answer) in &answers {
        check(answer, *key, if *key == 0 { 2 } else { 1 + key % 3 });
    }
    assert_eq!(opened.devices.simulated.violations(), Vec::<String>::new());
}

/// Two profiles: one for up to 2 rows, one for 3 to 8.
const TWO_PROFILES: &str = "nereid-plan 1\ninput IN 0 -1 -1\noutput OUT 0 -1 -1\n\
    bounds 0 IN 1 1 / 1 4 / 2 8\nbounds 1 IN 3 1 / 8 4 / 8 8\ncopy OUT IN\n";

#[test]
fn the_profile_is_the_one_that_admits_the_batch() {
    let config = ModelConfig { instance_group: on_gpus(&[0], &["0", "1"]), ..Default::default() };
    let mut opened = open(stand_in!(10), "profiles", TWO_PROFILES, config).unwrap();
    assert_eq!((opened.config.max_batch_size, &opened.config.input[0].dims[..]), (8, &[-1][..]));
    let one = |opened: &Opened, rows: u64, columns: usize| {
        let values = vec![2.5; rows as usize * columns];
        opened.draft(1).batch(rows).floats(0, &[rows as i64, columns as i64], &values).outputs([0])
    };
    for (rows, columns) in [(1, 4), (2, 8), (3, 1), (8, 8)] {
        let answers = opened.execute([one(&opened, rows, columns)]);
        let response = answers[0].as_ref().unwrap();
        assert_eq!(&response.outputs[0].shape[..], [rows as i64, columns as i64]);
        assert_eq!(as_floats(&response.outputs[0].data), vec![2.5; rows as usize * columns]);
    }
    let text = "request specifies invalid shape for input 'IN' for m_0_0. Error details: model expected the shape of \
                dimension 1 to be between 1 and 8 but received 9";
    let refused = opened.execute([one(&opened, 1, 9)]).remove(0).unwrap_err();
    assert_eq!((refused.code, &*refused.message), (Code::InvalidArg, text));
    assert!(opened.execute([one(&opened, 1, 8)])[0].is_ok(), "the next one is served");
}

#[test]
fn cuda_graphs_compute_the_same_and_log_their_capture() {
    let cuda = Some(Cuda { graphs: true, ..Default::default() });
    let optimization = Some(ModelOptimizationPolicy { cuda, ..Default::default() });
    let config = ModelConfig { optimization, max_batch_size: 4, ..Default::default() };
    // Without auto-completion the configuration names its tensors.
    let tensor = |name: &str| ModelInput {
        name: name.to_owned(),
        data_type: Type::TypeFp32.into(),
        dims: vec![4],
        ..Default::default()
    };
    let config = ModelConfig { input: vec![tensor("IN0"), tensor("IN1")], ..config };
    let mut opened = open(stand_in!(11), "graphs", ADD_SUB, config).unwrap();
    let before = opened.devices.simulated.counts();
    for key in 0..6 {
        let rows = 1 + key % 4;
        check(&opened.execute([request(&opened, key, rows)])[0], key, rows);
    }
    let after = opened.devices.simulated.counts();
    assert_eq!(
        (after.graphs - before.graphs, after.kernels),
        (6, before.kernels),
        "all of them were launched as graphs"
    );
    let mut joined: Vec<_> = (0..2).map(|key| request(&opened, key, 2)).collect();
    check(&opened.execute(joined.drain(..))[1], 1, 2);
}

const RESHAPE: &str = "nereid-plan 1\ninput IN 0 8\ninput SHAPE 8 2\noutput OUT 0 -1 -1\noutput SIZES 8 1\n\
    shape SHAPE\nshape SIZES\nbounds 0 IN 8 / 8 / 8\nbounds 0 SHAPE 2 / 2 / 2\nvalues 0 SHAPE 1 1 / 2 4 / 8 8\n\
    reshape OUT IN SHAPE\nshapeof SIZES IN\n";

#[test]
fn shape_tensors_are_read_and_written_on_the_host() {
    for major in [10, 11] {
        let mut opened = open(stand_in!(major), "shapes", RESHAPE, ModelConfig::default()).unwrap();
        assert!(opened.config.input[1].is_shape_tensor && opened.config.max_batch_size == 0);
        let one = |opened: &Opened, shape: [i64; 2]| {
            let values: Vec<f32> = (0..8).map(|at| at as f32).collect();
            let bytes: Vec<u8> = shape.iter().flat_map(|size| size.to_le_bytes()).collect();
            let draft = opened.draft(1).batch(1).floats(0, &[8], &values);
            draft.input(1, DataType::Int64, &[2], &[Slice::copy_of(&bytes)]).outputs([0, 1])
        };
        let answers = opened.execute([one(&opened, [2, 4])]);
        let response = answers[0].as_ref().unwrap();
        assert_eq!((&response.outputs[0].shape[..], response.outputs[0].data[0].len()), (&[2, 4][..], 32));
        assert_eq!(&response.outputs[1].data[0][..], 8i64.to_le_bytes());
        let text = "The shape value at index 1 is expected to be in range from 1 to 8, Got: 9";
        assert_eq!(error_of(opened.execute([one(&opened, [1, 9])]).remove(0)), text);
    }
}

#[test]
fn outputs_whose_size_depends_on_data_are_allocated_when_it_is_known() {
    let plan = "nereid-plan 1\ninput IN 0 6\noutput OUT 0 -1\nnonzero OUT IN\n";
    let mut opened = open(stand_in!(11), "nonzero", plan, ModelConfig::default()).unwrap();
    for (values, kept) in [([1., 0., 2., 0., 0., 3.], vec![1., 2., 3.]), ([0.; 6], vec![]), ([5.; 6], vec![5.; 6])] {
        let answers = opened.execute([opened.draft(1).batch(1).floats(0, &[6], &values).outputs([0])]);
        let response = answers[0].as_ref().unwrap();
        assert_eq!(
            (&response.outputs[0].shape[..], as_floats(&response.outputs[0].data)),
            (&[kept.len() as i64][..], kept)
        );
    }
}

#[test]
fn tensors_on_the_device_are_used_there() {
    let mut opened = open(stand_in!(11), "device", ADD_SUB, ModelConfig::default()).unwrap();
    let gpu = opened.devices.gpus.get(0).cloned().unwrap();
    let put =
        |values: [f32; 4]| gpu.put(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let (a, b) = (put([1., 2., 3., 4.]), put([10.; 4]));
    *opened.answers.destination.lock().unwrap() = OutputDestination::OnDevice;
    let draft = opened.draft(1).batch(1).on_device(0, DataType::Fp32, &[1, 4], &a);
    let answers = opened.execute([draft.on_device(1, DataType::Fp32, &[1, 4], &b).outputs([0])]);
    let slice = answers[0].as_ref().unwrap().outputs[0].on_device.clone().expect("it stays on the device");
    let mut bytes = vec![0; slice.len()];
    gpu.fetch(&slice, &mut bytes).unwrap();
    assert_eq!(as_floats(&[Slice::copy_of(&bytes)]), [11., 12., 13., 14.]);
}

#[test]
fn a_request_that_does_not_fit_fails_alone() {
    let mut opened = open(stand_in!(10), "alone", ADD_SUB, ModelConfig::default()).unwrap();
    let short = opened.draft(1).batch(1).floats(0, &[1, 4], &[1.; 3]).floats(1, &[1, 4], &[1.; 4]).outputs([0]);
    let missing = opened.draft(2).batch(1).floats(0, &[1, 4], &[1.; 4]).outputs([0]);
    let answers = opened.execute([request(&opened, 0, 1), short, missing]);
    check(&answers[0], 0, 1);
    let text = "input byte size mismatch for input 'IN0' for model 'm'. Expected 16, got 12";
    assert_eq!(answers[1].as_ref().unwrap_err().message, text);
    assert_eq!(answers[2].as_ref().unwrap_err().message, "failed to get input 'IN1'");
    let many = opened.execute([request(&opened, 1, 9)]).remove(0);
    assert_eq!(error_of(many), "batch size 9 for 'm_0_0', max allowed is 8");
}

#[test]
fn an_execution_that_the_library_refuses_fails_its_requests() {
    let plan = format!("{ADD_SUB}fail IExecutionContext::enqueueV3: Error Code 1: Myelin\n");
    let mut opened = open(stand_in!(11), "refused", &plan, ModelConfig::default()).unwrap();
    let answers = opened.execute([request(&opened, 0, 1), request(&opened, 1, 1)]);
    for answer in answers {
        assert_eq!(error_of(answer), "unable to enqueue for inference m_0_0");
    }
}

#[test]
fn loads_fail_with_the_text_of_the_library() {
    for major in [10, 11] {
        let library = stand_in!(major);
        let refused = |case: &str, plan: &str, config: ModelConfig| error_of(open(library, case, plan, config));
        let text = "unable to create TensorRT engine: IRuntime::deserializeCudaEngine: Error Code 1: Serialization \
                    (Magic tag does not match)";
        let broken = refused("broken", "junk", ModelConfig::default());
        assert!(broken.starts_with("unable to load plan file to auto complete config: "), "{broken}");
        assert!(broken.ends_with(text), "{broken}");
        let uncompleted = open_with(library, "uncompleted", "junk", ModelConfig::default(), |context| {
            context.auto_complete = false;
            context.config.input =
                vec![ModelInput { name: "IN".to_owned(), data_type: 11, dims: vec![1], ..Default::default() }];
        });
        assert_eq!(error_of(uncompleted), text);
        let compatible = ADD_SUB.replace("nereid-plan 1", "nereid-plan 2");
        let text = "Cannot deserialize engine with lean runtime";
        assert!(refused("compatible", &compatible, ModelConfig::default()).contains(text));
        let allowed = open_with(library, "allowed", &compatible, ModelConfig::default(), |context| {
            context.settings = vec![("version-compatible".to_owned(), "true".to_owned())];
        });
        assert!(allowed.is_ok());
    }
}

#[test]
fn a_plan_that_is_missing_is_named() {
    let library = stand_in!(11);
    let named = |name: &str| ModelConfig { default_model_filename: name.to_owned(), ..Default::default() };
    let text = error_of(open(library, "missing", ADD_SUB, named("other.plan")));
    assert!(text.starts_with("unable to find '") && text.ends_with("other.plan' for model instance 'm'"), "{text}");
    let text = "default_model_filename '../model.plan' of model 'm' is outside its version directory";
    assert_eq!(error_of(open(library, "outside", ADD_SUB, named("../model.plan"))), text);
    let by_capability =
        ModelConfig { cc_model_filenames: [("8.0".to_owned(), "model.plan".to_owned())].into(), ..named("other.plan") };
    assert!(open(library, "capability", ADD_SUB, by_capability).is_ok());
}

#[test]
fn configurations_that_do_not_fit_are_refused() {
    let library = stand_in!(11);
    let tensor = |name: &str, data_type: Type, dims: &[i64]| ModelInput {
        name: name.to_owned(),
        data_type: data_type.into(),
        dims: dims.to_vec(),
        ..Default::default()
    };
    let pair = |first: ModelInput| vec![first, tensor("IN1", Type::TypeFp32, &[4])];
    let cases: [(&str, ModelConfig, &str); 9] = [
        (
            "unknown",
            ModelConfig { input: pair(tensor("X", Type::TypeFp32, &[4])), ..Default::default() },
            "unexpected inference input 'X', allowed inputs are: IN0, IN1",
        ),
        (
            "many",
            ModelConfig {
                input: [pair(tensor("IN0", Type::TypeFp32, &[4])), vec![tensor("X", Type::TypeFp32, &[4])]].concat(),
                ..Default::default()
            },
            "unable to load model 'm', configuration expects 3 inputs, model provides at most 2",
        ),
        (
            "few",
            ModelConfig { input: vec![tensor("IN0", Type::TypeFp32, &[4])], ..Default::default() },
            "failed to specify the dimensions of all input tensors or values of all input shape tensors",
        ),
        (
            "type",
            ModelConfig { input: pair(tensor("IN0", Type::TypeInt32, &[4])), ..Default::default() },
            "unexpected datatype TYPE_FP32 for inference input 'IN0', expecting TYPE_INT32 for m_0_0",
        ),
        (
            "unsupported",
            ModelConfig { input: pair(tensor("IN0", Type::TypeFp64, &[4])), ..Default::default() },
            "unsupported datatype TYPE_FP64 for input 'IN0' for model 'm'",
        ),
        (
            "dims",
            ModelConfig { input: pair(tensor("IN0", Type::TypeFp32, &[5])), ..Default::default() },
            "model 'm', tensor 'IN0': the model expects 2 dimensions (shape [-1,4]) but the model configuration \
             specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit \
             tensor shape, making complete shape [-1,5])",
        ),
        (
            "strategy",
            ModelConfig {
                parameters: [(
                    "execution_context_allocation_strategy".to_owned(),
                    ModelParameter { string_value: "LAZY".to_owned() },
                )]
                .into(),
                ..Default::default()
            },
            "Invalid value for 'execution_context_allocation_strategy': 'LAZY' for model instance 'm_0_0'. Supported \
             values are 'STATIC' and 'ON_PROFILE_CHANGE'.",
        ),
        (
            "devices",
            ModelConfig {
                parameters: [("enable_multi_device".to_owned(), ModelParameter { string_value: "true".to_owned() })]
                    .into(),
                ..Default::default()
            },
            "unable to load model 'm', this server does not run TensorRT engines on several devices: remove the \
             parameter 'enable_multi_device'",
        ),
        (
            "ragged",
            ModelConfig {
                input: pair(ModelInput { allow_ragged_batch: true, ..tensor("IN0", Type::TypeFp32, &[4]) }),
                ..Default::default()
            },
            "unable to load model 'm', the tensorrt backend does not support ragged input 'IN0'",
        ),
    ];
    for (case, config, text) in cases {
        assert_eq!(error_of(open(library, case, ADD_SUB, config)), text, "{case}");
    }
    let wide = ModelConfig { input: vec![tensor("IN", Type::TypeFp32, &[9])], ..Default::default() };
    let text = "model configuration specified invalid shape for input 'IN' for model m. Error details: model expected \
                the shape of dimension 1 to be between 1 and 8 but received 9";
    assert_eq!(error_of(open(library, "wide", TWO_PROFILES, wide)), text);
    let formatted = format!("{ADD_SUB}format IN0 3\n");
    assert!(error_of(open(library, "format", &formatted, ModelConfig::default())).contains("is not linear"));
}

#[test]
fn only_gpus_run_plans() {
    let library = stand_in!(10);
    let without =
        open_with(library, "without", ADD_SUB, ModelConfig::default(), |context| context.gpus = Arc::default());
    let text = error_of(without);
    let expected = "unable to load model 'm', TensorRT backend supports only GPU device: this host has no driver for \
                    NVIDIA GPUs (TensorRT 10.16.1 is in ";
    assert!(text.starts_with(expected), "{text}");
    let error = crate::checks::check_kind("m", Kind::Cpu, None).unwrap_err();
    let text = "unable to load model 'm', TensorRT backend supports only GPU device";
    assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
    use nereid_backend::Backend;
    let preferred = crate::TensorRtBackend.attributes().preferred_groups;
    assert_eq!(preferred, [PreferredGroup::new(Kind::Gpu, 1)]);
}

#[test]
fn states_are_read_out_before_the_next_request() {
    use nereid_request::{StateTensor, States};
    use nereid_wire::inference::ModelSequenceBatching;
    use nereid_wire::inference::model_config::SchedulingChoice;
    use nereid_wire::inference::model_sequence_batching::State;
    let plan = "nereid-plan 1\ninput IN 0 -1 1\ninput STATE 0 -1 1\noutput OUT 0 -1 1\noutput NEXT 0 -1 1\n\
                bounds 0 IN 1 1 / 1 1 / 4 1\nbounds 0 STATE 1 1 / 1 1 / 4 1\nadd OUT IN STATE\nadd NEXT IN STATE\n";
    let state = State {
        input_name: "STATE".to_owned(),
        output_name: "NEXT".to_owned(),
        data_type: Type::TypeFp32.into(),
        dims: vec![1],
        ..Default::default()
    };
    let sequence = ModelSequenceBatching { state: vec![state], ..Default::default() };
    let config = ModelConfig {
        max_batch_size: 4,
        scheduling_choice: Some(SchedulingChoice::SequenceBatching(sequence)),
        ..Default::default()
    };
    let mut opened = open(stand_in!(11), "states", plan, config).unwrap();
    let names: Vec<&str> = opened.config.input.iter().map(|input| input.name.as_str()).collect();
    assert_eq!((names, opened.config.output.len()), (vec!["IN"], 1), "the server adds the state");
    let states = Arc::new(States::new(vec![StateTensor {
        input_name: "STATE".into(),
        output_name: "NEXT".into(),
        datatype: DataType::Fp32,
        shape: Shape::from_slice(&[1, 1]),
        data: nereid_backend::fixtures::floats(&[10.]),
    }]));
    for (value, expected) in [(1., 11.), (2., 13.), (4., 17.)] {
        let present = states.tensors()[0].data.clone();
        let draft = opened.draft(1).batch(1).floats(0, &[1, 1], &[value]);
        let mut request = draft.input(1, DataType::Fp32, &[1, 1], &[present]).outputs([0]);
        request.states = Some(Arc::clone(&states));
        let answers = opened.execute([request]);
        assert_eq!(as_floats(&answers[0].as_ref().unwrap().outputs[0].data), [expected]);
        assert_eq!(as_floats(&[states.tensors()[0].data.clone()]), [expected]);
    }
}

#[test]
fn a_lost_device_fails_its_requests() {
    let mut opened = open(stand_in!(11), "lost", ADD_SUB, ModelConfig::default()).unwrap();
    opened.devices.simulated.fail_after(1, 700);
    let mut payload = Payload::default();
    payload.push(request(&opened, 0, 1));
    opened.instance.execute(&mut payload).unwrap();
    let text = error_of(opened.answers.take().remove(0).1);
    assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
    assert!(opened.devices.gpus.get(0).unwrap().failure().is_some());
}
