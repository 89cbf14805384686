//! Samples run on a simulated instance.

use std::sync::mpsc::channel;

use super::super::tests::model_context;
use super::*;
use nereid_model_config::ModelSpec;
use nereid_observe::statistics::Execution;
use nereid_request::Response;
use nereid_wire::inference::{DataType as WireType, ModelConfig, ModelInput, ModelOutput};

type Run = Box<dyn FnMut(&InstanceContext, &mut Payload) -> Result<(), Status> + Send>;

/// An instance with the behaviour that the test defines.
struct Pretended {
    context: InstanceContext,
    run: Run,
}

impl Instance for Pretended {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        (self.run)(&self.context, payload)
    }
}

/// Runs `samples` on a batching model with an input A of one number and an output O.
fn warmed(
    samples: &[Sample],
    run: impl FnMut(&InstanceContext, &mut Payload) -> Result<(), Status> + Send + 'static,
) -> (Result<(), Status>, InstanceContext) {
    let config = ModelConfig {
        name: "m".into(),
        max_batch_size: 2,
        input: vec![ModelInput {
            name: "A".into(),
            data_type: WireType::TypeInt32.into(),
            dims: vec![1],
            ..Default::default()
        }],
        output: vec![ModelOutput { name: "O".into(), ..Default::default() }],
        ..Default::default()
    };
    let model = model_context(&config);
    let context = InstanceContext::new("m_0", Arc::new(ModelSpec::new(config).unwrap()), model);
    let mut instance = Pretended { context: context.clone(), run: Box::new(run) };
    (super::run(&mut instance, &context, samples), context)
}

fn input(name: &str, index: Option<usize>, shape: &[i64], data: &[u8]) -> SampleInput {
    let data = Arc::new(data.to_vec());
    SampleInput { name: name.into(), data_type: WireType::TypeInt32, shape: shape.to_vec(), index, data }
}

fn sample(batch_size: u32, count: u32) -> Sample {
    let inputs = vec![input("A", Some(0), &[1, 1], &[1, 2, 3, 4])];
    Sample { name: "s".into(), batch_size, count, inputs, expected: Vec::new(), tolerance: 0.0 }
}

fn answer(payload: &mut Payload) -> Result<(), Status> {
    payload.take().into_iter().for_each(|request| request.finish(Response::default()));
    Ok(())
}

#[test]
fn every_execution_has_its_requests_of_batch_size_one() {
    let (tell, told) = channel();
    let (outcome, _) = warmed(&[sample(3, 2)], move |_, payload| {
        for request in payload.requests() {
            let input = request.input(b"A").unwrap();
            assert_eq!((request.batch_size, input.shape.as_slice()), (1, &[1, 1][..]));
            assert_eq!((&*input.data[0], input.index), (&[1, 2, 3, 4][..], 0));
            assert!(input.data[0].is_aligned_to(64));
            assert_eq!(request.outputs.len(), 1, "all outputs are wanted");
        }
        tell.send(payload.len()).unwrap();
        answer(payload)
    });
    assert_eq!(outcome, Ok(()));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [3, 3]);
}

#[test]
fn nothing_is_counted_and_afterwards_everything() {
    let execution = Execution { exec_start_ns: 1, compute_start_ns: 2, compute_end_ns: 3, exec_end_ns: 4 };
    let (outcome, context) = warmed(&[sample(2, 1)], move |context, payload| {
        context.report_batch(2, &execution);
        let mut requests = payload.take().into_iter();
        context.succeed(requests.next().unwrap(), Response::default(), &execution);
        context.fail(requests.next().unwrap(), Status::internal("no"));
        Ok(())
    });
    assert_eq!(outcome.unwrap_err().message, "failed to run warmup sample 's': no; ");
    let snapshot = context.model.statistics.snapshot();
    assert_eq!(format!("{snapshot:?}"), format!("{:?}", model_context(&ModelConfig::default()).statistics.snapshot()));
    context.report_batch(2, &execution);
    assert_eq!(context.model.statistics.snapshot().execution_count, 1);
}

#[test]
fn error_responses_end_it_with_all_their_texts() {
    let (tell, told) = channel();
    let (outcome, _) = warmed(&[sample(3, 5), sample(1, 1)], move |_, payload| {
        tell.send(()).unwrap();
        for (number, request) in payload.take().into_iter().enumerate() {
            match number {
                1 => request.finish(Response::default()),
                _ => request.fail(Status::unavailable(format!("reason {number}"))),
            }
        }
        Ok(())
    });
    assert_eq!(outcome, Err(Status::invalid("failed to run warmup sample 's': reason 0; reason 2; ")));
    assert_eq!(told.try_iter().count(), 1, "nothing runs after it");
}

#[test]
fn an_execution_that_fails_answers_each_request() {
    let (outcome, context) = warmed(&[sample(2, 1)], |_, _| Err(Status::internal("broken")));
    assert_eq!(outcome, Err(Status::invalid("failed to run warmup sample 's': broken; broken; ")));
    assert_eq!(context.model.statistics.snapshot().fail.count, 0);
    let (outcome, _) = warmed(&[sample(1, 1)], |_, _| panic!("on purpose"));
    let text = "failed to run warmup sample 's': instance 'm_0' failed while it executed the request; ";
    assert_eq!(outcome, Err(Status::invalid(text)));
    let (outcome, _) = warmed(&[sample(1, 1)], |_, _| Ok(()));
    let text = "failed to run warmup sample 's': instance 'm_0' left the request unanswered; ";
    assert_eq!(outcome, Err(Status::invalid(text)));
}

#[test]
fn a_late_answer_is_waited_for() {
    let (hand_over, late) = channel();
    let answering = std::thread::spawn(move || {
        let requests: smallvec::SmallVec<[Box<Request>; 4]> = late.recv().unwrap();
        for request in requests {
            let responses = request.responses();
            drop(request);
            // Some responses, and then the final flag without a response.
            responses.send(Response::default(), false);
            responses.send(Response::default(), false);
            responses.send_end();
        }
    });
    let (outcome, _) = warmed(&[sample(2, 1)], move |_, payload| {
        hand_over.send(payload.take()).unwrap();
        Ok(())
    });
    assert_eq!(outcome, Ok(()));
    answering.join().unwrap();
}

#[test]
fn a_missing_end_holds_it_up_and_is_said() {
    let answers = Arc::new(Answers::new(&sample(1, 1), Pool::new(0)));
    let waiting = std::thread::spawn({
        let answers = Arc::clone(&answers);
        move || answers.wait("m_0", "s", Duration::from_millis(1))
    });
    let request = Request::new(Completion::new(answers, 0));
    request.responses().send(Response::failed(Text::default(), Status::internal("half way")), false);
    assert!(!waiting.is_finished(), "an error is not yet the end");
    drop(request);
    assert_eq!(waiting.join().unwrap(), ["half way"], "the first error of each request");
}

#[test]
fn what_is_no_input_of_the_model_is_passed_through() {
    let mut controlled = sample(1, 1);
    controlled.inputs.push(input("START", None, &[1], &[9, 0, 0, 0]));
    let (outcome, _) = warmed(&[controlled], |_, payload| {
        let request = &payload.requests()[0];
        let start = request.input(b"START").unwrap();
        assert_eq!(
            (&start.shape[..], &start.model_shape[..], &*start.data[0]),
            (&[1][..], &[1][..], &[9, 0, 0, 0][..])
        );
        answer(payload)
    });
    assert_eq!(outcome, Ok(()));
}

#[test]
fn a_sample_that_no_client_could_send_is_refused() {
    let run = |change: fn(&mut Sample)| {
        let mut sample = sample(1, 1);
        change(&mut sample);
        warmed(&[sample], |_, _| panic!("it must not run")).0.unwrap_err()
    };
    let missing = run(|sample| sample.inputs.clear());
    assert!(missing.message.starts_with("[request id: <id_unknown>] expected 1 inputs but got 0 inputs"), "{missing}");
    let shape = run(|sample| sample.inputs[0].shape = vec![1, 2]);
    assert!(shape.message.contains("[1,2]"), "{shape}");
    let data_type = run(|sample| sample.inputs[0].data_type = WireType::TypeInvalid);
    let text = "[request id: <id_unknown>] warmup setting expects input 'A' to have data_type set";
    assert_eq!(data_type, Status::invalid(text));
}
