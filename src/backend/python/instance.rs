//! One instance: its worker, and the executions that it runs there.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tracing::{error, warn};

use super::answers::Answer;
use super::batch;
use super::health::Health;
use super::marshal::{Malformed, Value, Writer};
use super::message::{from_worker, to_worker};
use super::open::Returned;
use super::post::Post;
use super::worker::{Ended, Worker};
use crate::backend::{Instance, InstanceContext, Payload, Readiness};
use crate::observe::statistics::Execution;
use crate::request::{Request, Status, now_ns};

/// What a worker has to end its process, once it has been finalized.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// See the [module](self).
pub struct PythonInstance {
    context: InstanceContext,
    post: Arc<Post>,
    execute_limit: Option<Duration>,
    writer: Writer,
    payload: Vec<u8>,
}

type Requests = SmallVec<[Box<Request>; 4]>;

/// An execution under way.
struct Batch {
    tokens: Vec<u64>,
    rows: u64,
    execution: Execution,
}

impl PythonInstance {
    pub fn new(context: InstanceContext, post: Arc<Post>, execute_limit: Option<Duration>) -> PythonInstance {
        PythonInstance { context, post, execute_limit, writer: Writer::default(), payload: Vec::new() }
    }

    /// Runs a batch, and answers all of it that is not to be answered later.
    fn run(&mut self, worker: &Arc<Worker>, requests: Requests, batch: &mut Batch) {
        if let Err((status, requests)) = self.send(worker, requests, batch) {
            requests.into_iter().for_each(|request| self.context.fail(request, status.clone()));
            return;
        }
        batch.execution.compute_start_ns = now_ns();
        let outcome = self.receive(worker).and_then(|kind| {
            self.finish(worker, kind, batch).map_err(|malformed| {
                worker.kill(&format!("was ended because {malformed}"));
                self.failed(malformed)
            })
        });
        if let Err(status) = outcome {
            error!("{}", status.message);
            let positions: Vec<usize> = (0..batch.tokens.len()).collect();
            self.fail_batch(worker, &status.message, &positions, batch);
        }
    }

    /// `Failed to process …`, for failures that are not the model's.
    fn failed(&self, text: impl std::fmt::Display) -> Status {
        let name = &self.context.name;
        Status::internal(format!("Failed to process the request(s) for model instance '{name}', message: {text}"))
    }

    /// The memory that the larger inputs take. A worker that holds all there is gets a chance to give some back.
    fn reserve(&mut self, worker: &Arc<Worker>, len: usize) -> Result<Option<super::inbound::Taken>, Status> {
        if len == 0 {
            return Ok(None);
        }
        if let Some(taken) = worker.link.reserve(len)? {
            return Ok(Some(taken));
        }
        self.writer.clear();
        self.writer.tuple(1);
        let freed = batch::write_freed(&mut self.writer, &worker.link);
        let swept = worker.send(to_worker::SWEEP, self.writer.bytes());
        swept.map_err(|error| {
            worker.link.outbound.put_back_freed(freed);
            self.failed(error)
        })?;
        let served = worker.serve(&[from_worker::DONE], &mut self.payload, self.execute_limit);
        served.map_err(|ended| ended_with(worker, &ended))?;
        let released = Value::read(&self.payload).and_then(|value| {
            let [_, keys] = value.as_tuple()?;
            worker.release(keys)
        });
        released.map_err(|malformed| self.failed(malformed))?;
        match worker.link.reserve(len)? {
            Some(taken) => Ok(Some(taken)),
            None => Err(Status::unavailable(format!(
                "instance '{}' has no memory for {len} bytes of inputs: its model holds what it may have \
                 ('shm-max-byte-size')",
                self.context.name
            ))),
        }
    }

    fn send(&mut self, worker: &Arc<Worker>, requests: Requests, batch: &mut Batch) -> Result<(), (Status, Requests)> {
        let taken = match batch::shared_len(&requests).and_then(|len| self.reserve(worker, len)) {
            Ok(taken) => taken,
            Err(status) => return Err((status, requests)),
        };
        let mut room = batch::room(&taken);
        let mut writer = std::mem::take(&mut self.writer);
        writer.clear();
        writer.tuple(2);
        let freed = batch::write_freed(&mut writer, &worker.link);
        writer.list(requests.len());
        let mut left = requests.into_iter();
        let mut outcome = Ok(());
        for request in left.by_ref() {
            let Some(token) = worker.open.reserve() else {
                let text = "too many requests wait for their last response";
                outcome = Err((Status::unavailable(text), Some(request)));
                break;
            };
            if let Err(status) = batch::write_request(&mut writer, &request, token, &mut room) {
                worker.open.forget(token);
                outcome = Err((self.failed(status.message), Some(request)));
                break;
            }
            worker.open.put(token, request);
            batch.tokens.push(token);
        }
        if outcome.is_ok() {
            let sent = worker.send(to_worker::BATCH, writer.bytes());
            outcome = sent.map_err(|error| (self.failed(error), None));
        }
        self.writer = writer;
        outcome.map_err(|(status, refused)| {
            worker.link.outbound.put_back_freed(freed);
            if let Some((range, _)) = &taken {
                worker.link.inbound.release(std::iter::once(range.key));
            }
            let added = std::mem::take(&mut batch.tokens).into_iter();
            let back = added.filter_map(|token| worker.open.returned(token, false));
            (status, back.map(|returned| returned.request).chain(refused).chain(left).collect())
        })
    }

    /// What became of the batch: the worker's message, or its end.
    fn receive(&mut self, worker: &Arc<Worker>) -> Result<u32, Status> {
        let awaited = [from_worker::DONE, from_worker::BATCH_FAILED];
        let served = worker.serve(&awaited, &mut self.payload, self.execute_limit);
        served.map_err(|ended| ended_with(worker, &ended))
    }

    fn finish(&mut self, worker: &Arc<Worker>, kind: u32, batch: &mut Batch) -> Result<(), Malformed> {
        let payload = std::mem::take(&mut self.payload);
        let value = Value::read(&payload)?;
        batch.execution.compute_end_ns = now_ns();
        match kind {
            from_worker::DONE => {
                let [results, released] = value.as_tuple()?;
                worker.release(released)?;
                self.answer(worker, results.as_sequence()?, batch)?;
            }
            _ => {
                let [text, failed, released] = value.as_tuple()?;
                worker.release(released)?;
                let failed = failed.as_sequence()?.iter().map(Value::as_int).collect::<Result<Vec<usize>, _>>()?;
                self.fail_batch(worker, &text.as_text()?, &failed, batch);
            }
        }
        self.payload = payload;
        Ok(())
    }

    /// One result for each request: a response, None where its sender answers, or True where it is to be executed once
    /// more.
    fn answer(&mut self, worker: &Arc<Worker>, results: &[Value<'_>], batch: &mut Batch) -> Result<(), Malformed> {
        if results.len() != batch.tokens.len() {
            return Err(Malformed::Form);
        }
        let mut answered = Vec::with_capacity(results.len());
        // What is wrong with one result is wrong with that one.
        let mut outcome = Ok(());
        for (token, result) in std::mem::take(&mut batch.tokens).into_iter().zip(results) {
            let stays = matches!(result, Value::None);
            let Some(returned) = worker.open.returned(token, stays) else { continue };
            let Returned { request, is_closed, is_lost } = returned;
            match result {
                Value::None if is_lost => self.context.fail(request, worker.epitaph()),
                Value::None => answered.push((request, None)),
                Value::Bool(true) if is_closed => answered.push((request, None)),
                Value::Bool(true) => {
                    // Each of its executions is counted.
                    batch.execution.exec_end_ns = now_ns();
                    self.context.report_success(&request, &batch.execution);
                    if let Err((status, request)) = request.reschedule() {
                        self.context.fail(request, self.failed(status.message));
                    }
                }
                result => {
                    match Answer::read(result).and_then(|answer| answer.into_response_to(&worker.link, &request)) {
                        Ok(response) => answered.push((request, Some(response))),
                        Err(malformed) => {
                            self.context.fail(request, self.failed(malformed));
                            outcome = Err(malformed);
                        }
                    }
                }
            }
        }
        batch.execution.exec_end_ns = now_ns();
        self.context.report_batch(batch.rows, &batch.execution);
        for (request, response) in answered {
            self.context.report_success(&request, &batch.execution);
            if let Some(response) = response {
                request.finish(response);
            }
        }
        outcome
    }

    /// The requests at these positions are answered with `text`, all of them are counted as failed. The last responses
    /// of the others have come, or are on their way from another thread of the worker.
    fn fail_batch(&self, worker: &Worker, text: &str, failed: &[usize], batch: &mut Batch) {
        // The execution itself is counted (section 6, "statistics").
        let execution = &mut batch.execution;
        execution.exec_end_ns = now_ns();
        if execution.compute_end_ns == 0 {
            execution.compute_end_ns = execution.exec_end_ns;
        }
        self.context.report_batch(batch.rows, execution);
        for (at, token) in std::mem::take(&mut batch.tokens).into_iter().enumerate() {
            let fails = failed.contains(&at);
            let Some(returned) = worker.open.returned(token, !fails) else { continue };
            if returned.is_lost {
                self.context.fail(returned.request, worker.epitaph());
                continue;
            }
            match fails && !returned.is_closed {
                true => self.context.fail(returned.request, Status::internal(text.to_owned())),
                false => crate::backend::report_failure(&self.context.model.statistics, &returned.request),
            }
        }
    }

    /// Fails the requests that cannot be told to a worker; the others.
    fn presentable(&self, requests: Requests) -> Requests {
        let present = |request: Box<Request>| match batch::refusal(&request) {
            None => Some(request),
            Some(status) => {
                self.context.fail(request, self.failed(status.message));
                None
            }
        };
        requests.into_iter().filter_map(present).collect()
    }
}

impl Instance for PythonInstance {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let exec_start_ns = now_ns();
        let requests = self.presentable(payload.take());
        if requests.is_empty() {
            return Ok(());
        }
        let rows = requests.iter().map(|request| request.batch_size).fold(0, u64::saturating_add);
        let most = u64::from(self.context.spec.max_batch_size);
        let fail_all = |requests: Requests, status: Status| {
            requests.into_iter().for_each(|request| self.context.fail(request, status.clone()));
        };
        if most > 0 && rows > most {
            let name = &self.context.spec.name;
            fail_all(requests, Status::internal(format!("batch size {rows} for '{name}', max allowed is {most}")));
            return Ok(());
        }
        let worker = match self.post.worker() {
            Ok(worker) => worker,
            Err(status) => {
                fail_all(requests, status);
                self.post.hold_back();
                return Ok(());
            }
        };
        let grant = requests.first().and_then(|request| request.grant.clone());
        let lends = grant.is_some();
        if lends {
            worker.lend(grant);
        }
        let execution = Execution { exec_start_ns, ..Execution::default() };
        let mut batch = Batch { tokens: Vec::with_capacity(requests.len()), rows, execution };
        self.run(&worker, requests, &mut batch);
        if lends {
            worker.lend(None);
        }
        if !worker.is_fit() {
            // Its memory is not held back.
            drop(worker);
            self.post.hold_back();
        }
        Ok(())
    }

    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        Some(Health::of(&self.post))
    }
}

impl Drop for PythonInstance {
    fn drop(&mut self) {
        let Some(worker) = self.post.close() else { return };
        let (name, model) = (&self.context.name, &self.context.spec.name);
        self.writer.clear();
        self.writer.tuple(0);
        if worker.send(to_worker::FINALIZE, self.writer.bytes()).is_ok() {
            // As long as that takes: a server that is to exit has a time limit of its own.
            match worker.serve(&[from_worker::FINALIZED], &mut self.payload, None) {
                Ok(_) => {
                    if let Err(Ended::Late(_)) = worker.serve(&[], &mut self.payload, Some(EXIT_LIMIT)) {
                        warn!("the process of model '{model}', instance '{name}' did not end after its finalize()");
                    }
                }
                Err(_) => {
                    let how = worker.ending();
                    warn!("the process of model '{model}', instance '{name}' {how} before it was finalized");
                }
            }
        }
        worker.join();
    }
}

/// What a batch is told whose worker does not say what became of it.
fn ended_with(worker: &Worker, ended: &Ended) -> Status {
    debug_assert!(!worker.is_fit(), "{ended:?}");
    worker.epitaph()
}
