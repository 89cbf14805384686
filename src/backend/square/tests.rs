//! The rules of the square backend, without a server.

use std::sync::Mutex;

use super::*;
use crate::onnxruntime::fixtures::{context, with_parameters};
use nereid_memory::{BlockMut, Exhausted, Slice};
use nereid_model_config::ModelSpec;
use nereid_observe::statistics::ResponseTally;
use nereid_request::{Code, Completion, Delivery, InputTensor, Shape, Sink};
use nereid_wire::inference::{ModelInput, ModelOutput};

fn config(max_batch_size: i32) -> ModelConfig {
    let number = DataType::Int32 as i32;
    let input = ModelInput { name: "IN".into(), data_type: number, dims: vec![1], ..Default::default() };
    let output = ModelOutput { name: "OUT".into(), data_type: number, dims: vec![1], ..Default::default() };
    ModelConfig { name: "m".into(), max_batch_size, input: vec![input], output: vec![output], ..Default::default() }
}

#[test]
fn configurations_are_refused_by_their_texts() {
    type Change = fn(&mut ModelConfig);
    let cases: [(Change, &str); 9] = [
        (|c| c.input.clear(), "expected 1 input, got 0"),
        (|c| c.output.clear(), "expected 1 output, got 0"),
        (|c| c.input[0].name = "X".into(), "expected first input tensor name to be IN, got X"),
        (|c| c.output[0].name = "X".into(), "expected first output tensor name to be OUT, got X"),
        (|c| c.input[0].dims = vec![-1], "expected IN shape to be [1], got [-1]"),
        (|c| c.output[0].dims = vec![2, 2], "expected OUT shape to be [1], got [2,2]"),
        (|c| c.input[0].data_type = 11, "expected IN datatype to be INT32, got TYPE_FP32"),
        (|c| c.output[0].data_type = 13, "expected OUT datatype to be INT32, got TYPE_STRING"),
        (
            |c| c.input[0].optional = true,
            "'optional' is set to true for input 'IN' while the backend model doesn't support optional input",
        ),
    ];
    for (change, text) in cases {
        let mut config = config(0);
        change(&mut config);
        let status = check(&config).unwrap_err();
        assert_eq!((status.code, &*status.message), (Code::InvalidArg, text));
    }
    assert_eq!((check(&config(0)), check(&config(8))), (Ok(()), Ok(())));
}

#[test]
fn what_is_no_number_is_left_out() {
    let script = Script::read(&with_parameters(&[
        ("CUSTOM_INFER_DELAY_NS", "12"),
        ("CUSTOM_OUTPUT_DELAY_NS", "-1"),
        ("CUSTOM_CANCEL_DELAY_NS", "1e3"),
        ("CUSTOM_FAIL_COUNT", ""),
        ("CUSTOM_EMPTY_COUNT", "99999999999999999999999"),
    ]));
    assert_eq!(script, Script { infer_delay: Duration::from_nanos(12), ..Script::default() });
}

#[derive(Default)]
struct Answers(Mutex<Vec<Delivery>>);

impl Sink for Answers {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        self.0.lock().unwrap().push(delivery);
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

struct Rig {
    instance: Box<dyn Instance>,
    context: Arc<ModelContext>,
}

impl Rig {
    fn new(max_batch_size: i32, parameters: &[(&str, &str)]) -> Rig {
        let parameters = with_parameters(parameters).config.parameters;
        let config = ModelConfig { parameters, ..config(max_batch_size) };
        let context = Arc::new(context("m", config.clone()));
        let model = SquareBackend.create_model(Arc::clone(&context)).unwrap();
        let spec = Arc::new(ModelSpec::new(config).unwrap());
        let instance = model.create_instance(InstanceContext::new("m_0", spec, Arc::clone(&context))).unwrap();
        Rig { instance, context }
    }

    fn start(&mut self, values: &[i32], is_cancelled: bool) -> Arc<Answers> {
        let answers = Arc::new(Answers::default());
        let mut request = Box::new(Request::new(Completion::new(answers.clone(), 1)));
        let mut input = InputTensor::new(Text::from("IN"), DataType::Int32, Shape::from_slice(&[1]));
        input.data = values.iter().map(|value| Slice::copy_of(&value.to_le_bytes())).collect();
        request.inputs.push(input);
        if is_cancelled {
            request.admission().cancel();
        }
        let mut payload = Payload::default();
        payload.push(request);
        self.instance.execute(&mut payload).unwrap();
        answers
    }

    /// Shapes of the good responses, texts of the others, and the statistics by index; all after the last thread.
    fn run(mut self, values: &[i32], is_cancelled: bool) -> (Vec<String>, Vec<(String, ResponseTally)>) {
        let answers = self.start(values, is_cancelled);
        let statistics = Arc::clone(&self.context.statistics);
        drop(self);
        let snapshot = statistics.snapshot();
        assert_eq!((snapshot.success.count, snapshot.fail.count, snapshot.execution_count), (0, 0, 0));
        let seen = answers.0.lock().unwrap();
        let (end, others) = seen.split_last().unwrap();
        assert!(end.last && others.iter().all(|delivery| !delivery.last));
        let show = |delivery: &Delivery| match &delivery.response {
            None => "end".to_owned(),
            Some(response) if response.error.is_some() => response.error.as_ref().unwrap().to_string(),
            Some(response) => {
                let output = &response.outputs[0];
                let bytes: Vec<u8> = output.data[0].to_vec();
                format!(
                    "{} {}",
                    nereid_request::format_shape(&output.shape),
                    i32::from_le_bytes(bytes.try_into().unwrap())
                )
            }
        };
        (seen.iter().map(show).collect(), snapshot.response_stats.into_iter().collect())
    }
}

#[test]
fn as_many_responses_as_the_input_says() {
    let (seen, statistics) = Rig::new(0, &[]).run(&[3], false);
    assert_eq!(seen, ["[1] 3", "[1] 3", "[1] 3", "end"]);
    let counts: Vec<_> = statistics.iter().map(|(key, tally)| (key.as_str(), tally.success.count)).collect();
    assert_eq!(counts, [("0", 1), ("1", 1), ("2", 1)]);
    assert_eq!(Rig::new(4, &[]).run(&[1], false).0, ["[1,1] 1", "end"]);
    assert_eq!(Rig::new(0, &[]).run(&[0], false).0, ["end"]);
    assert_eq!(Rig::new(0, &[]).run(&[-5], false).0, ["end"]);
    assert_eq!(Rig::new(4, &[]).run(&[1, 2], false).0, ["Invalid argument: unexpected shape for IN input"]);
}

#[test]
fn the_last_are_empty_and_those_before_fail() {
    let delays = [("CUSTOM_INFER_DELAY_NS", "1000000"), ("CUSTOM_OUTPUT_DELAY_NS", "2000000")];
    let counts = [("CUSTOM_FAIL_COUNT", "2"), ("CUSTOM_EMPTY_COUNT", "1")];
    let (seen, statistics) = Rig::new(0, &[&delays[..], &counts[..]].concat()).run(&[4], false);
    let failure = "Unknown: simulated failure";
    assert_eq!(seen, ["[1] 4", failure, failure, "end"]);
    let tallies: Vec<ResponseTally> = statistics.into_iter().map(|(_, tally)| tally).collect();
    assert_eq!(tallies.len(), 4);
    let counts = |tally: &ResponseTally| {
        [tally.success, tally.fail, tally.empty_response, tally.cancel, tally.compute_output].map(|tally| tally.count)
    };
    let seen: Vec<_> = tallies.iter().map(counts).collect();
    assert_eq!(seen, [[1, 0, 0, 0, 1], [0, 1, 0, 0, 1], [0, 1, 0, 0, 1], [0, 0, 1, 0, 0]]);
    assert!(tallies.iter().all(|tally| tally.compute_infer.ns >= 1_000_000));
    assert!(tallies[..3].iter().all(|tally| tally.compute_output.ns >= 2_000_000));
    // More failures and empty ones than there are responses.
    let (seen, _) = Rig::new(0, &[("CUSTOM_FAIL_COUNT", "9"), ("CUSTOM_EMPTY_COUNT", "1")]).run(&[2], false);
    assert_eq!(seen, [failure, "end"]);
}

#[test]
fn cancellation_ends_the_loop() {
    let (seen, statistics) = Rig::new(0, &[("CUSTOM_CANCEL_DELAY_NS", "3000000")]).run(&[5], true);
    assert_eq!(seen, ["end"]);
    let [(key, tally)] = &statistics[..] else { panic!("{statistics:?}") };
    assert_eq!((key.as_str(), tally.cancel.count, tally.compute_infer.count), ("0", 1, 0));
    assert!(tally.cancel.ns >= 3_000_000);
}
