//! The rules of the identity backend, without a server.

use super::model::Delays;
use super::*;
use crate::fixtures::{Answers, Draft, floats};
use crate::onnxruntime::fixtures::{context, with_parameters};
use nereid_model_config::ModelSpec;
use nereid_request::Code;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::{ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput, ModelTensorReshape};

fn input(name: &str, datatype: DataType, dims: &[i64]) -> ModelInput {
    ModelInput { name: name.to_owned(), data_type: datatype as i32, dims: dims.to_vec(), ..ModelInput::default() }
}

fn output(name: &str, datatype: DataType, dims: &[i64]) -> ModelOutput {
    ModelOutput { name: name.to_owned(), data_type: datatype as i32, dims: dims.to_vec(), ..ModelOutput::default() }
}

fn config(max_batch_size: i32, input: Vec<ModelInput>, output: Vec<ModelOutput>) -> ModelConfig {
    ModelConfig { max_batch_size, input, output, ..ModelConfig::default() }
}

fn pair(max_batch_size: i32, dims: &[i64]) -> ModelConfig {
    let inputs = vec![input("INPUT0", DataType::Fp32, dims)];
    config(max_batch_size, inputs, vec![output("OUTPUT0", DataType::Fp32, dims)])
}

fn open(context: &ModelContext) -> Result<IdentityModel, Status> {
    IdentityModel::open(context, |delay| panic!("nobody asked for a delay of {delay:?}"))
}

fn refusal(config: ModelConfig) -> String {
    let error = open(&context("m", config)).err().expect("a refusal");
    assert_eq!(error.code, Code::InvalidArg);
    error.message.into_owned()
}

struct Rig {
    instance: Box<dyn Instance>,
    answers: Arc<Answers>,
    context: Arc<ModelContext>,
}

impl Rig {
    fn new(config: ModelConfig) -> Rig {
        let context = Arc::new(context("m", config.clone()));
        let model = Arc::new(open(&context).unwrap());
        let spec = Arc::new(ModelSpec::new(config).unwrap());
        let instance = InstanceContext::new("m_0", spec, Arc::clone(&context));
        Rig { instance: model.create_instance(instance).unwrap(), answers: Arc::default(), context }
    }

    fn draft(&self, key: u64) -> Draft {
        Draft::new(&self.answers, key)
    }

    fn run(&mut self, requests: impl IntoIterator<Item = Box<Request>>) -> Vec<(u64, Result<Response, Status>)> {
        let mut payload = Payload::default();
        requests.into_iter().for_each(|request| payload.push(request));
        self.instance.execute(&mut payload).unwrap();
        assert!(payload.is_empty());
        self.answers.take()
    }
}

#[test]
fn configurations_are_refused_by_their_texts() {
    let fp32 = DataType::Fp32;
    assert_eq!(
        refusal(config(0, vec![input("INPUT0", fp32, &[1])], vec![])),
        "model configuration must have equal input/output pairs"
    );
    for name in ["IN0", "INPUT", "INPUTx", "INPUT-1", "INPUT0x", "INPUT99999999999999999999999", ""] {
        assert_eq!(
            refusal(config(0, vec![input(name, fp32, &[1])], vec![output("OUTPUT0", fp32, &[1])])),
            format!("expected input name to follow INPUT<index> pattern, got '{name}'")
        );
    }
    assert_eq!(
        refusal(config(0, vec![input("INPUT0", fp32, &[1])], vec![output("RESULT", fp32, &[1])])),
        "expected output name to follow OUTPUT<index> pattern, got 'RESULT'"
    );
    let indices = "expected input and output indices to match";
    assert_eq!(refusal(config(0, vec![input("INPUT0", fp32, &[1])], vec![output("OUTPUT1", fp32, &[1])])), indices);
    let twice = vec![input("INPUT1", fp32, &[1]), input("INPUT01", fp32, &[1])];
    let outputs = vec![output("OUTPUT1", fp32, &[1]), output("OUTPUT01", fp32, &[1])];
    assert_eq!(refusal(config(0, twice, outputs)), indices);
    assert_eq!(
        refusal(config(0, vec![input("INPUT0", fp32, &[1])], vec![output("OUTPUT0", DataType::Bytes, &[1])])),
        "expected input and output datatype to match, got TYPE_FP32 and TYPE_STRING"
    );
    assert_eq!(
        refusal(config(0, vec![input("INPUT0", fp32, &[-1, 16])], vec![output("OUTPUT0", fp32, &[16])])),
        "expected input and output shape to match, got [-1,16] and [16]"
    );
    let mut gpu = pair(0, &[1]);
    gpu.instance_group = vec![ModelInstanceGroup { kind: Kind::Gpu as i32, ..Default::default() }];
    assert_eq!(refusal(gpu), "'identity' backend only supports CPU instances");
}

#[test]
fn what_is_not_wrong_is_accepted() {
    assert!(open(&context("m", ModelConfig::default())).is_ok(), "nothing to infer, but loaded");
    let mut reshaped =
        config(8, vec![input("INPUT7", DataType::Fp32, &[2, 2])], vec![output("OUTPUT7", DataType::Fp32, &[4])]);
    reshaped.input[0].reshape = Some(ModelTensorReshape { shape: vec![4] });
    reshaped.instance_group = vec![
        ModelInstanceGroup { kind: Kind::Cpu as i32, ..Default::default() },
        ModelInstanceGroup { kind: Kind::Auto as i32, ..Default::default() },
    ];
    assert!(open(&context("m", reshaped)).is_ok());
}

#[test]
fn delays_grow_with_the_order_of_creation() {
    let delays = |parameters: &[(&str, &str)]| Delays::parse(&with_parameters(parameters)).unwrap();
    let of = |delays: Delays| [0, 1, 2, 3].map(|ordinal| delays.of_instance(ordinal).as_millis());
    assert_eq!(of(delays(&[])), [0; 4]);
    assert_eq!(of(delays(&[("execute_delay_ms", "5")])), [5; 4]);
    let both = [("execute_delay_ms", "5"), ("instance_wise_delay_multiplier", "3")];
    assert_eq!(of(delays(&both)), [5, 15, 30, 45]);
    assert_eq!(of(delays(&[("instance_wise_delay_multiplier", "oops")])), [0; 4], "read only with the delay");
    let far = [("execute_delay_ms", "18446744073709551615"), ("instance_wise_delay_multiplier", "9")];
    assert_eq!(of(delays(&far)), [86_400_000; 4]);
}

#[test]
fn values_that_are_not_numbers_fail_the_load() {
    for (key, value) in [
        ("execute_delay_ms", "fast"),
        ("execute_delay_ms", ""),
        ("execute_delay_ms", "-1"),
        ("creation_delay_sec", "1.5"),
        ("creation_delay_sec", "99999999999999999999999"),
    ] {
        let error = open(&with_parameters(&[(key, value)])).err().unwrap();
        assert_eq!(error.message, format!("parameter '{key}' must be a non-negative integer, got '{value}'"));
    }
    let pair = [("execute_delay_ms", "1"), ("instance_wise_delay_multiplier", "x")];
    assert!(open(&with_parameters(&pair)).is_err());
    let traced = ("enable_custom_tracing", "true");
    assert!(open(&with_parameters(&[traced])).is_ok());
    for (settings, text) in [
        (
            &[traced, ("nested_span_count", "x")][..],
            "parameter 'nested_span_count' must be a non-negative integer, got 'x'",
        ),
        (&[traced, ("nested_span_count", "1001")], "parameter 'nested_span_count' must be at most 1000, got '1001'"),
        (
            &[traced, ("nested_span_count", "2"), ("single_activity_frequency", "0")],
            "parameter 'single_activity_frequency' must be positive, got '0'",
        ),
    ] {
        assert_eq!(open(&with_parameters(settings)).err().unwrap().message, text);
    }
    assert!(open(&with_parameters(&[traced, ("single_activity_frequency", "x")])).is_ok(), "nobody reads it");
    assert!(open(&with_parameters(&[("enable_custom_tracing", "TRUE"), ("nested_span_count", "x")])).is_ok());
}

#[test]
fn creation_sleeps_after_the_checks() {
    let mut slept = Vec::new();
    let good = with_parameters(&[("creation_delay_sec", "3")]);
    assert!(IdentityModel::open(&good, |delay| slept.push(delay)).is_ok());
    let mut bad = with_parameters(&[("creation_delay_sec", "3")]);
    bad.config.input.push(input("INPUT0", DataType::Fp32, &[1]));
    assert!(IdentityModel::open(&bad, |delay| slept.push(delay)).is_err());
    assert_eq!(slept, [Duration::from_secs(3)]);
}

#[test]
fn outputs_are_the_bytes_of_the_inputs() {
    let inputs = vec![input("INPUT1", DataType::Fp32, &[-1]), input("INPUT0", DataType::Bytes, &[-1])];
    let outputs = vec![output("OUTPUT0", DataType::Bytes, &[-1]), output("OUTPUT1", DataType::Fp32, &[-1])];
    let mut rig = Rig::new(config(4, inputs, outputs));
    let numbers = floats(&[1., 2., 3., 4.]);
    let pieces = [numbers.window(0..5), numbers.window(5..16)];
    let strings = Slice::copy_of(&[1, 0, 0, 0, 7, 0, 0, 0, 0]);
    let request = rig.draft(9).batch(2).input(0, DataType::Fp32, &[2, 2], &pieces);
    let request = request.input(1, DataType::Bytes, &[2, 1], std::slice::from_ref(&strings));
    let mut answers = rig.run([request.outputs([1, 0])]);
    let (key, response) = answers.remove(0);
    let response = response.unwrap();
    assert_eq!((key, &response.id), (9, &Text::from("r9")));
    let [second, first] = &response.outputs[..] else { panic!("{:?}", response.outputs) };
    assert_eq!((&second.name, second.index, second.datatype), (&Text::from("OUTPUT1"), 1, DataType::Fp32));
    assert_eq!(second.shape[..], [2, 2]);
    assert!(second.data.iter().zip(&pieces).all(|(out, given)| out.same_memory(given)), "nothing is copied");
    assert_eq!((&first.name, first.index, &first.shape[..]), (&Text::from("OUTPUT0"), 0, &[2, 1][..]));
    assert!(first.data[0].same_memory(&strings));
    let parameters: Vec<String> =
        response.parameters.iter().map(|parameter| format!("{}={:?}", parameter.name, parameter.value)).collect();
    assert_eq!(
        parameters,
        [
            r#"param0=String("an example string parameter")"#,
            "param1=Int(42)",
            "param2=Bool(false)",
            "param3=Double(123.123)"
        ]
    );
}

#[test]
fn absent_inputs_are_zeros_if_optional_and_errors_if_not() {
    let mut optional = input("INPUT0", DataType::Int32, &[-1, 3]);
    optional.optional = true;
    let mut text = input("INPUT1", DataType::Bytes, &[2]);
    text.optional = true;
    let inputs = vec![optional, text, input("INPUT2", DataType::Int32, &[1])];
    let outputs = vec![
        output("OUTPUT0", DataType::Int32, &[-1, 3]),
        output("OUTPUT1", DataType::Bytes, &[2]),
        output("OUTPUT2", DataType::Int32, &[1]),
    ];
    let mut rig = Rig::new(config(4, inputs, outputs));
    // Blocks of the pool come with what was in them.
    rig.context.pool.get(512).unwrap().fill(0xff);
    let given = Slice::copy_of(&[1; 8]);
    let present = rig.draft(1).batch(2).input(2, DataType::Int32, &[2, 1], std::slice::from_ref(&given));
    let requests = [present.outputs(0..3), rig.draft(2).batch(1).outputs([2]), rig.draft(3).batch(1).outputs([0])];
    let mut answers = rig.run(requests);
    assert_eq!(answers[0].0, 2, "an error leaves at once, the others after the last was processed");
    answers.sort_by_key(|(key, _)| *key);
    let [(_, first), (_, second), (_, third)] = &answers[..] else { panic!() };
    let first = first.as_ref().unwrap();
    assert_eq!((&first.outputs[0].shape[..], &*first.outputs[0].data[0]), (&[2, 1, 3][..], &[0; 24][..]));
    assert_eq!((&first.outputs[1].shape[..], &*first.outputs[1].data[0]), (&[2, 2][..], &[0; 16][..]));
    let error = second.as_ref().unwrap_err();
    assert_eq!((error.code, &*error.message), (Code::Unsupported, "failed to get input 'INPUT2'"));
    assert_eq!(third.as_ref().unwrap().outputs[0].shape[..], [1, 1, 3]);
}

#[test]
fn reshapes_are_undone() {
    let mut given = pair(8, &[2, 2]);
    given.input[0].reshape = Some(ModelTensorReshape { shape: vec![4] });
    given.output[0].reshape = Some(ModelTensorReshape { shape: vec![4] });
    let mut rig = Rig::new(given);
    let request = rig.draft(1).batch(3).floats(0, &[3, 4], &[1.; 12]).outputs([0]);
    assert_eq!(rig.run([request]).remove(0).1.unwrap().outputs[0].shape[..], [3, 2, 2]);
}

#[test]
fn requests_are_counted() {
    let mut rig = Rig::new(pair(8, &[2]));
    let requests = [
        rig.draft(1).batch(3).floats(0, &[3, 2], &[1.; 6]).outputs([0]),
        rig.draft(2).batch(2).floats(0, &[2, 2], &[1.; 4]).outputs([]),
        rig.draft(3).batch(1).outputs([0]),
    ];
    assert_eq!(rig.run(requests).len(), 3);
    let seen = rig.context.statistics.snapshot();
    assert_eq!((seen.success.count, seen.fail.count, seen.inference_count, seen.execution_count), (2, 1, 5, 1));
    assert_eq!(seen.batch_stats.iter().map(|batch| batch.batch_size).collect::<Vec<_>>(), [6]);
    let mut rig = Rig::new(pair(0, &[2]));
    let request = rig.draft(1).floats(0, &[2], &[1.; 2]).outputs([0]);
    rig.run([request]);
    let seen = rig.context.statistics.snapshot();
    assert_eq!((seen.inference_count, seen.execution_count), (1, 1));
    assert_eq!(seen.batch_stats.iter().map(|batch| batch.batch_size).collect::<Vec<_>>(), [0]);
}

#[test]
fn input_bytes_are_counted_for_each_copied_output() {
    let mut rig = Rig::new(pair(8, &[2]));
    let family = rig
        .context
        .metrics
        .counter_family("input_byte_size_counter", "Cumulative input byte size of all requests received by the model");
    let counter = family.unwrap().counter(&[("model", "m"), ("version", "1")]).unwrap();
    assert_eq!(counter.value(), 0.0);
    let asked = rig.draft(1).batch(3).floats(0, &[3, 2], &[1.; 6]).outputs([0]);
    let not_asked = rig.draft(2).batch(3).floats(0, &[3, 2], &[1.; 6]).outputs([]);
    rig.run([asked, not_asked]);
    assert_eq!(counter.value(), 24.0);
}
