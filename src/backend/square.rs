//! `square`: one request yields as many responses as its input says (contract/backends.md section 3).
//!
//! Each request is answered by a thread of its own and released at once. Statistics are reported for each response, and
//! nothing else is counted.

use std::sync::Arc;
use std::time::Duration;

use super::responders::Responders;
use super::vectors::{Declared, demand, demand_all, elements, input, single};
use super::{Backend, Instance, InstanceContext, Model, ModelContext};
use nereid_clock::now_ns;
use nereid_observe::statistics::{ResponseOutcome, ResponseTimes};
use nereid_request::{DataType, Request, Response, ResponseFactory, Status, Text};
use nereid_scheduler::Payload;
use nereid_wire::inference::ModelConfig;

/// The backend; its models share nothing.
#[derive(Debug, Default)]
pub struct SquareBackend;

impl Backend for SquareBackend {
    fn name(&self) -> &str {
        "square"
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        check(&context.config)
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        check(&context.config)?;
        Ok(Arc::new(SquareModel { script: Script::read(&context) }))
    }
}

struct SquareModel {
    script: Script,
}

impl Model for SquareModel {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(SquareInstance { responders: Responders::new(&context.name), script: self.script, context }))
    }
}

fn check(config: &ModelConfig) -> Result<(), Status> {
    demand_all(&config.input)?;
    demand(config.input.len() == 1, || format!("expected 1 input, got {}", config.input.len()))?;
    demand(config.output.len() == 1, || format!("expected 1 output, got {}", config.output.len()))?;
    let ([given], [made]) = (&config.input[..], &config.output[..]) else { return Ok(()) };
    let given = Declared { name: &given.name, data_type: given.data_type, dims: &given.dims };
    let made = Declared { name: &made.name, data_type: made.data_type, dims: &made.dims };
    given.check_name("IN", "first input")?;
    made.check_name("OUT", "first output")?;
    given.check_single()?;
    made.check_single()?;
    given.check_type(DataType::Int32)?;
    made.check_type(DataType::Int32)
}

/// The parameters of the model: delays and failures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Script {
    infer_delay: Duration,
    output_delay: Duration,
    cancel_delay: Duration,
    fail_count: u64,
    empty_count: u64,
}

impl Script {
    fn read(context: &ModelContext) -> Script {
        let number = |key: &str| {
            let Some(text) = context.parameter(key) else { return 0 };
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits).unwrap_or_else(|| {
                tracing::error!("model '{}': parameter '{key}' is no number: '{text}'", context.name);
                0
            })
        };
        Script {
            infer_delay: Duration::from_nanos(number("CUSTOM_INFER_DELAY_NS")),
            output_delay: Duration::from_nanos(number("CUSTOM_OUTPUT_DELAY_NS")),
            cancel_delay: Duration::from_nanos(number("CUSTOM_CANCEL_DELAY_NS")),
            fail_count: number("CUSTOM_FAIL_COUNT"),
            empty_count: number("CUSTOM_EMPTY_COUNT"),
        }
    }
}

struct SquareInstance {
    /// Declared first, dropped first: what still answers ends before the instance does.
    responders: Responders,
    script: Script,
    context: InstanceContext,
}

/// The work of one thread.
struct Task {
    id: Text,
    responses: ResponseFactory,
    value: i32,
    shape: &'static [i64],
    script: Script,
    context: InstanceContext,
    is_counted: bool,
}

impl Task {
    fn report(&self, outcome: ResponseOutcome, times: ResponseTimes) {
        let index = self.responses.next_report();
        if self.is_counted {
            self.context.model.statistics.response_made(index, outcome, &times);
        }
    }

    fn run(self) {
        let count = u64::try_from(self.value).unwrap_or(0);
        let sent = count.saturating_sub(self.script.empty_count);
        let good = sent.saturating_sub(self.script.fail_count);
        for index in 0..count {
            let start_ns = now_ns();
            if self.responses.is_cancelled() {
                sleep(self.script.cancel_delay);
                let times = ResponseTimes { start_ns, output_start_ns: None, end_ns: now_ns() };
                self.report(ResponseOutcome::Cancelled, times);
                break;
            }
            sleep(self.script.infer_delay);
            if index >= sent {
                let times = ResponseTimes { start_ns, output_start_ns: None, end_ns: now_ns() };
                self.report(ResponseOutcome::Sent, times);
                continue;
            }
            self.respond(start_ns, index >= good);
        }
        self.responses.send_end();
    }

    fn respond(&self, start_ns: u64, fails: bool) {
        let output_start_ns = Some(now_ns());
        let value = self.value.to_le_bytes();
        let output = single(&self.responses, (0, "OUT"), DataType::Int32, self.shape, value);
        sleep(self.script.output_delay);
        let response = match output {
            _ if fails => Response::failed(self.id.clone(), Status::unknown("simulated failure")),
            Ok(output) => {
                let mut response = Response::new(self.id.clone());
                response.outputs.push(output);
                response
            }
            Err(status) => Response::failed(self.id.clone(), status),
        };
        let outcome = if response.error.is_some() { ResponseOutcome::Failed } else { ResponseOutcome::Sent };
        // Reported before the send, so that a receiver of the response also sees it counted.
        self.report(outcome, ResponseTimes { start_ns, output_start_ns, end_ns: now_ns() });
        self.responses.send(response, false);
    }
}

fn sleep(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

impl SquareInstance {
    fn task(&self, request: &Request) -> Result<Task, Status> {
        let [value] = elements(input(request, 0, "IN")?)[..] else {
            return Err(Status::invalid("unexpected shape for IN input"));
        };
        Ok(Task {
            id: request.id.clone(),
            responses: request.responses(),
            value: i32::from_le_bytes(value),
            shape: if self.context.spec.max_batch_size > 0 { &[1, 1] } else { &[1] },
            script: self.script,
            context: self.context.clone(),
            is_counted: request.is_counted(),
        })
    }
}

impl Instance for SquareInstance {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        // All are released together, once every thread runs.
        let requests = payload.take();
        for request in &requests {
            let started = self.task(request).and_then(|task| self.responders.start(move || task.run()));
            if let Err(status) = started {
                request.fail(status);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
