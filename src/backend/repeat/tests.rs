//! The rules of the repeat backend, without a server.

use std::sync::Mutex;
use std::time::Instant;

use super::*;
use crate::onnxruntime::fixtures::context;
use nereid_memory::{BlockMut, Exhausted, Slice};
use nereid_model_config::ModelSpec;
use nereid_request::{Completion, Delivery, InputTensor, Shape, Sink};
use nereid_wire::inference::{ModelInput, ModelOutput};

fn config() -> ModelConfig {
    let input = |name: &str, datatype: DataType, dims: &[i64]| ModelInput {
        name: name.to_owned(),
        data_type: datatype as i32,
        dims: dims.to_vec(),
        ..ModelInput::default()
    };
    let output = |name: &str, datatype: DataType| ModelOutput {
        name: name.to_owned(),
        data_type: datatype as i32,
        dims: vec![1],
        ..ModelOutput::default()
    };
    let inputs = vec![
        input("IN", DataType::Int32, &[-1]),
        input("DELAY", DataType::Uint32, &[-1]),
        input("WAIT", DataType::Uint32, &[1]),
    ];
    let outputs = vec![output("OUT", DataType::Int32), output("IDX", DataType::Uint32)];
    ModelConfig { name: "m".to_owned(), input: inputs, output: outputs, ..ModelConfig::default() }
}

#[test]
fn configurations_are_refused_by_their_texts() {
    type Change = fn(&mut ModelConfig);
    let cases: [(Change, &str); 18] = [
        (|c| c.max_batch_size = 1, "repeat backend only supports models with max_batch_size == 0"),
        (
            |c| c.input[2].optional = true,
            "'optional' is set to true for input 'WAIT' while the backend model doesn't support optional input",
        ),
        (|c| drop(c.input.pop()), "expected 3 inputs, got 2"),
        (|c| drop(c.output.pop()), "expected 2 outputs, got 1"),
        (|c| c.input[0].name = "X".into(), "expected first input tensor name to be IN, got X"),
        (|c| c.input[1].name = "X".into(), "expected second input tensor name to be DELAY, got X"),
        (|c| c.input[2].name = "X".into(), "expected third input tensor name to be WAIT, got X"),
        (|c| c.output[0].name = "X".into(), "expected first output tensor name to be OUT, got X"),
        (|c| c.output[1].name = "X".into(), "expected second output tensor name to be IDX, got X"),
        (|c| c.input[0].dims = vec![1, 2], "expected IN shape to have one dimension, got [1,2]"),
        (|c| c.input[1].dims = vec![2], "expected IN and DELAY shape to match, got [-1] and [2]"),
        (|c| c.input[2].dims = vec![2], "expected WAIT shape to be [1], got [2]"),
        (|c| c.output[0].dims = vec![-1], "expected OUT shape to be [1], got [-1]"),
        (|c| c.output[1].dims = vec![3], "expected IDX shape to be [1], got [3]"),
        (|c| c.input[0].data_type = 9, "expected IN datatype to be INT32, got TYPE_INT64"),
        (|c| c.input[1].data_type = 8, "expected DELAY datatype to be UINT32, got TYPE_INT32"),
        (|c| c.output[0].data_type = 11, "expected OUT datatype to be INT32, got TYPE_FP32"),
        (|c| c.output[1].data_type = 8, "expected IDX datatype to be UINT32, got TYPE_INT32"),
    ];
    for (change, text) in cases {
        let mut config = config();
        change(&mut config);
        let status = check(&config).unwrap_err();
        assert_eq!((status.code, &*status.message), (nereid_request::Code::InvalidArg, text));
    }
    assert_eq!(check(&config()), Ok(()));
}

/// Value and index, or the text of an error; `None`: a bare end. And whether it is the last delivery.
type Seen = (Option<Result<(i32, u32), String>>, bool);

/// Keeps the deliveries.
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

impl Answers {
    fn seen(&self) -> Vec<Seen> {
        let number = |tensor: &nereid_request::OutputTensor| elements_of(&tensor.data);
        let of = |delivery: &Delivery| {
            let response = delivery.response.as_ref().map(|response| match &response.error {
                Some(status) => Err(status.message.to_string()),
                None => Ok((i32::from_le_bytes(number(&response.outputs[0])), {
                    assert_eq!(response.outputs[1].name, *"IDX");
                    u32::from_le_bytes(number(&response.outputs[1]))
                })),
            });
            (response, delivery.last)
        };
        self.0.lock().unwrap().iter().map(of).collect()
    }
}

fn elements_of(data: &[Slice]) -> [u8; 4] {
    data.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>().try_into().unwrap()
}

fn tensor(index: usize, name: &str, datatype: DataType, values: &[u32]) -> InputTensor {
    let mut input = InputTensor::new(Text::from(name), datatype, Shape::from_slice(&[values.len() as i64]));
    input.model_shape = input.shape.clone();
    input.index = index;
    // In several pieces, as a plug-in or a client may pass it.
    input.data = values.iter().map(|value| Slice::copy_of(&value.to_le_bytes())).collect();
    input
}

struct Rig {
    instance: Box<dyn Instance>,
    context: Arc<ModelContext>,
}

impl Rig {
    fn new() -> Rig {
        let context = Arc::new(context("m", config()));
        let spec = Arc::new(ModelSpec::new(config()).unwrap());
        let model = RepeatBackend.create_model(Arc::clone(&context)).unwrap();
        let instance = InstanceContext::new("m_0", spec, Arc::clone(&context));
        Rig { instance: model.create_instance(instance).unwrap(), context }
    }

    fn run(&mut self, values: &[i32], delays: &[u32], wait: u32) -> Arc<Answers> {
        let answers = Arc::new(Answers::default());
        let mut request = Request::new(Completion::new(answers.clone(), 1));
        let values: Vec<u32> = values.iter().map(|value| *value as u32).collect();
        request.inputs = vec![
            tensor(IN, "IN", DataType::Int32, &values),
            tensor(DELAY, "DELAY", DataType::Uint32, delays),
            tensor(WAIT, "WAIT", DataType::Uint32, &[wait]),
        ];
        let mut payload = Payload::default();
        payload.push(Box::new(request));
        self.instance.execute(&mut payload).unwrap();
        answers
    }
}

#[test]
fn a_response_for_every_element_and_an_end_of_its_own() {
    let mut rig = Rig::new();
    let three = rig.run(&[4, -2, 0], &[1, 0, 2], 0);
    let none = rig.run(&[], &[], 0);
    let unequal = rig.run(&[1], &[2, 3], 5);
    let statistics = Arc::clone(&rig.context.statistics);
    drop(rig);
    let end = (None, true);
    let expected = [(4, 0), (-2, 1), (0, 2)].map(|pair| (Some(Ok(pair)), false));
    assert_eq!(three.seen(), [&expected[..], std::slice::from_ref(&end)].concat());
    assert_eq!(none.seen(), [end]);
    let text = "expected IN and DELAY shape to match, got [1] and [2]".to_owned();
    assert_eq!(unequal.seen(), [(Some(Err(text)), true)]);
    let snapshot = statistics.snapshot();
    assert_eq!((snapshot.success.count, snapshot.fail.count, snapshot.execution_count), (3, 0, 3));
    assert_eq!(snapshot.batch_stats.iter().map(|batch| batch.batch_size).collect::<Vec<_>>(), [1]);
    assert!(snapshot.compute_infer.ns >= 5_000_000, "the wait after an error as well");
    assert_eq!((snapshot.compute_input.ns, snapshot.compute_output.ns), (0, 0));
    assert!(snapshot.response_stats.is_empty());
}

#[test]
fn the_request_is_released_after_its_wait_and_answered_when_its_delays_are_over() {
    // On a busy machine a delay may be over before the test looks: then it is longer.
    assert!([500, 5_000, 50_000].into_iter().any(answers_late), "the instance was not free");
}

/// Whether the instance was free before the delay of its response was over.
fn answers_late(delay_ms: u32) -> bool {
    let mut rig = Rig::new();
    let before = Instant::now();
    let late = rig.run(&[1], &[delay_ms], 0);
    if !late.seen().is_empty() {
        return false;
    }
    let waited = Instant::now();
    let early = rig.run(&[2], &[0], 20);
    assert!(waited.elapsed() >= Duration::from_millis(20));
    drop(rig);
    assert!(before.elapsed() >= Duration::from_millis(delay_ms.into()), "the end did not wait for the response");
    assert_eq!(late.seen(), [(Some(Ok((1, 0))), false), (None, true)]);
    assert_eq!(early.seen(), [(Some(Ok((2, 0))), false), (None, true)]);
    true
}
