//! Warm-up: requests that an instance runs before it takes payloads, so that no client waits for slow first executions
//! (contract/schedulers.md section 9).
//!
//! The requests differ from those of clients in two ways: their responses are delivered here and dropped unless they
//! are errors, and they are not counted.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::worker::execute;
use crate::{Instance, InstanceContext, fail};
use nereid_clock::now_ns;
use nereid_memory::{BlockMut, Exhausted, Pool, Slice};
use nereid_model_config::datatype;
use nereid_model_config::warmup::{ExpectedOutput, Sample, SampleInput};
use nereid_observe::log::verbose;
use nereid_request::{
    Completion, DataType, Delivery, InputTensor, Origin, OutputTensor, Request, Shape, Sink, Status, Text, are_near,
};
use nereid_scheduler::Payload;
use nereid_scheduler::validate::{add_input, validate};

/// How often a missing response is logged.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs every sample. Returns when all are answered; a missing response blocks the load.
pub(super) fn run(instance: &mut dyn Instance, context: &InstanceContext, samples: &[Sample]) -> Result<(), Status> {
    context.is_warming.store(true, Ordering::Release);
    let outcome = samples.iter().try_for_each(|sample| run_sample(instance, context, sample, PATIENCE));
    context.is_warming.store(false, Ordering::Release);
    outcome
}

fn run_sample(
    instance: &mut dyn Instance,
    context: &InstanceContext,
    sample: &Sample,
    patience: Duration,
) -> Result<(), Status> {
    let started = Instant::now();
    // Made once for all requests, aligned as the inputs of requests are.
    let data: Vec<Slice> = sample.inputs.iter().map(|input| aligned(&input.data)).collect();
    for iteration in 1..=sample.count {
        let (model, name, sample_name) = (&context.model.name, &context.name, &sample.name);
        let what = format_args!("is running warmup sample '{sample_name}' for iteration {iteration}");
        verbose!(1, "model '{model}' instance {name} {what}");
        let answers = Arc::new(Answers::new(sample, context.model.pool.clone()));
        let mut payload = Payload::default();
        for number in 0..u64::from(sample.batch_size) {
            let request = Request::new(Completion::new(answers.clone(), number));
            match complete(request, context, &sample.inputs, &data) {
                Ok(request) => payload.push(request),
                Err(status) => {
                    payload.take().into_iter().for_each(Request::withdraw);
                    return Err(status);
                }
            }
        }
        let status = match execute(instance, context, &mut payload) {
            Ok(()) => Status::internal(format!("instance '{}' left the request unanswered", context.name)),
            Err(status) => status,
        };
        payload.take().into_iter().for_each(|request| fail(&context.statistics, request, status.clone()));
        let errors = answers.wait(&context.name, &sample.name, patience);
        if !errors.is_empty() {
            let text: String = errors.iter().map(|error| format!("{error}; ")).collect();
            return Err(Status::invalid(format!("failed to run warmup sample '{}': {text}", sample.name)));
        }
    }
    debug!("instance {} ran warm-up sample '{}' in {:?}", context.name, sample.name, started.elapsed());
    Ok(())
}

fn aligned(data: &[u8]) -> Slice {
    let mut block = BlockMut::unpooled(data.len());
    block.copy_from_slice(data);
    block.freeze()
}

/// A request of the sample, checked like a client's. Inputs that the model does not have skip the checks.
fn complete(
    mut request: Request,
    context: &InstanceContext,
    inputs: &[SampleInput],
    data: &[Slice],
) -> Result<Box<Request>, Status> {
    request.ingress.origin = Origin::WarmUp;
    request.stamps.received_ns = now_ns();
    request.stamps.started_ns = request.stamps.received_ns;
    request.stamps.queued_ns = request.stamps.received_ns;
    let own_count = context.spec.inputs.len();
    let is_own = |input: &SampleInput| input.index.is_some_and(|index| index < own_count);
    let (own, others): (Vec<_>, Vec<_>) = inputs.iter().zip(data).partition(|(input, _)| is_own(input));
    for (input, data) in own {
        let tensor = tensor(&request, input, data)?;
        add_input(&mut request, tensor)?;
    }
    validate(&mut request, &context.spec)?;
    for (input, data) in others {
        let tensor = tensor(&request, input, data)?;
        let index = input.index.unwrap_or(usize::MAX);
        let tensor = InputTensor { model_shape: tensor.shape.clone(), index, ..tensor };
        add_input(&mut request, tensor)?;
    }
    request.admission().take();
    Ok(Box::new(request))
}

fn tensor(request: &Request, input: &SampleInput, data: &Slice) -> Result<InputTensor, Status> {
    let name = datatype::protocol_name(input.data_type);
    let data_type = DataType::from_name(name.as_bytes()).ok_or_else(|| {
        let text = format!("warmup setting expects input '{}' to have data_type set", input.name);
        Status::invalid(text).prefixed(&request.log_id())
    })?;
    let mut tensor = InputTensor::new(Text::from(&*input.name), data_type, Shape::from_slice(&input.shape));
    tensor.data.push(data.clone());
    Ok(tensor)
}

/// The receiver of the responses of one execution.
struct Answers {
    state: Mutex<State>,
    changed: Condvar,
    pool: Pool,
    /// Outputs that each request must be answered with, and how far numbers may be from them.
    expected: Vec<ExpectedOutput>,
    tolerance: f64,
}

struct State {
    /// Requests without a final response.
    open: usize,
    /// The first error of each request.
    errors: Vec<Option<String>>,
    /// Whether the first answer of each request was there.
    answered: Vec<bool>,
}

/// How an answer differs from what is expected of it: the first output that does.
fn difference(expected: &[ExpectedOutput], given: &[OutputTensor], tolerance: f64) -> Option<String> {
    expected.iter().find_map(|ExpectedOutput { name, file, data }| {
        let Some(output) = given.iter().find(|output| output.name.as_bytes() == name.as_bytes()) else {
            return Some(format!("output '{name}' is missing, and '{file}' is there"));
        };
        if output.on_device.is_some() {
            return Some(format!("output '{name}' is on a device, where it cannot be compared with '{file}'"));
        }
        let bytes: Vec<u8> = output.data.iter().flat_map(|piece| piece.iter().copied()).collect();
        if bytes.len() != data.len() {
            return Some(format!("output '{name}' has {} bytes, and '{file}' has {}", bytes.len(), data.len()));
        }
        let at = bytes.iter().zip(&**data).position(|(given, expected)| given != expected)?;
        let is_near = tolerance > 0.0 && are_near(output.datatype, data, &bytes, tolerance);
        (!is_near).then(|| format!("output '{name}' differs from '{file}' at byte {at} of {}", data.len()))
    })
}

impl Answers {
    fn new(sample: &Sample, pool: Pool) -> Answers {
        let requests = sample.batch_size as usize;
        let state = State { open: requests, errors: vec![None; requests], answered: vec![false; requests] };
        let (expected, tolerance) = (sample.expected.clone(), sample.tolerance);
        Answers { state: Mutex::new(state), changed: Condvar::new(), pool, expected, tolerance }
    }

    /// The error of an answer, or what is wrong with it.
    fn complaint(&self, state: &mut State, key: usize, delivery: Delivery) -> Option<String> {
        let has_answered = state.answered.get_mut(key)?;
        match delivery.response {
            Some(mut response) => {
                if let Some(status) = response.error.take() {
                    return Some(status.message.into_owned());
                }
                match std::mem::replace(has_answered, true) {
                    true => None,
                    false => difference(&self.expected, &response.outputs, self.tolerance),
                }
            }
            None if delivery.last && !*has_answered && !self.expected.is_empty() => {
                Some("it has no answer to compare with what is expected".to_owned())
            }
            None => None,
        }
    }

    /// Waits for the end of every request; returns the errors, in the order of the requests.
    fn wait(&self, instance: &str, sample: &str, patience: Duration) -> Vec<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.open > 0 {
            let waited = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() && state.open > 0 {
                let open = state.open;
                warn!(
                    "instance {instance} waits for the final response to {open} requests of warm-up sample '{sample}'"
                );
            }
        }
        state.errors.iter_mut().filter_map(Option::take).collect()
    }
}

impl Sink for Answers {
    fn deliver(&self, key: u64, delivery: Delivery) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, is_last) = (usize::try_from(key).unwrap_or(usize::MAX), delivery.last);
        if let Some(complaint) = self.complaint(&mut state, key, delivery)
            && let Some(error) = state.errors.get_mut(key)
        {
            error.get_or_insert(complaint);
        }
        if is_last {
            state.open = state.open.saturating_sub(1);
            self.changed.notify_all();
        }
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.pool.get(byte_size)
    }
}

#[cfg(test)]
mod tests;
