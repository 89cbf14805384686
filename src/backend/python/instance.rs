//! One instance: its worker, and the executions that it runs there.
//!
//! If requests wait and executions are short, a worker gets its next batches before it has answered the last one: it
//! reads them at once, and both processes sleep once for several batches. The batches are executed and answered in
//! their order; the next worker executes those that a dead one had not begun.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tracing::{error, warn};

use super::answers::Answer;
use super::batch::{self, BatchExports};
use super::health::Health;
use super::inbound::WritableRange;
use super::marshal::{Malformed, Value, Writer};
use super::message::{from_worker, to_worker};
use super::open_requests::ReturnedRequest;
use super::settings::Settings;
use super::worker::{Ended, Wait, Worker};
use super::worker_supervisor::WorkerSupervisor;
use crate::{Instance, InstanceContext};
use nereid_clock::now_ns;
use nereid_observe::statistics::Execution;
use nereid_queue::AdaptiveSpin;
use nereid_queue::waits::INSTANCES;
use nereid_request::{Grant, Origin, Request, SEQUENCE_START, Status};
use nereid_scheduler::{Payload, Readiness};
use nereid_wire::inference::model_config::SchedulingChoice;

/// See the [module](self).
pub struct PythonInstance {
    context: InstanceContext,
    supervisor: Arc<WorkerSupervisor>,
    execute_limit: Option<Duration>,
    /// The time limit for finalize and the end of the process together.
    end_limit: Duration,
    /// Whether inputs may stay on a device.
    takes_device_tensors: bool,
    writer: Writer,
    payload: Vec<u8>,
    /// The adaptive spin of waits for the worker.
    spin: AdaptiveSpin,
    /// The average time of an execution.
    execution_ns: u64,
    /// Whether the model has sequences, of which its worker may keep state.
    has_sequences: bool,
    /// The worker that executed last.
    last: Option<Weak<Worker>>,
}

type Requests = SmallVec<[Box<Request>; 4]>;

/// The most batches that a worker has at a time.
const IN_HAND_MAX: usize = 4;
/// Executions that take longer on average get no batch ahead: it could wait while another instance is free, and the
/// cost of a wake-up is small in comparison.
const SHORT_NS: u64 = 500_000;
/// The weight of the last execution in the average: one part in this many.
const WEIGHT: u64 = 8;
/// A worker does not ring for results while it has further batches: this is how long such results may lie unread.
const POLL_EVERY: Duration = Duration::from_micros(500);

/// Requests that are to be executed together.
struct PendingBatch {
    requests: Requests,
    rows: u64,
}

/// An execution under way.
struct Batch {
    tokens: Vec<u64>,
    rows: u64,
    execution: Execution,
    /// The resource grant of its first request, which the model's calls may use.
    grant: Option<Grant>,
}

/// Why a batch was not sent.
enum Unsent {
    Failed(Status, Requests),
    /// It has to wait until the worker has no batch in hand.
    Later(Requests),
}

impl PythonInstance {
    pub fn new(context: InstanceContext, supervisor: Arc<WorkerSupervisor>, settings: &Settings) -> PythonInstance {
        PythonInstance {
            has_sequences: matches!(context.spec.config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))),
            last: None,
            spin: AdaptiveSpin::new(context.spin.clone(), &INSTANCES),
            takes_device_tensors: !settings.force_cpu_only_inputs,
            execute_limit: settings.execute_timeout,
            end_limit: settings.end_timeout(),
            context,
            supervisor,
            writer: Writer::default(),
            payload: Vec::new(),
            // At first executions do not count as short.
            execution_ns: SHORT_NS,
        }
    }

    /// Lets `worker` execute the batches in `left`, and further ones meanwhile. If it dies, the batches that it had not
    /// begun are put back.
    fn run(&mut self, worker: &Arc<Worker>, left: &mut VecDeque<PendingBatch>, payload: &Payload, exec_start_ns: u64) {
        let mut in_hand: VecDeque<Batch> = VecDeque::new();
        let mut began_ns = exec_start_ns;
        loop {
            self.fill(worker, left, &mut in_hand, payload, began_ns);
            let Some(mut batch) = in_hand.pop_front() else {
                // Either no batch is left, or the worker takes no more.
                return;
            };
            let is_first = began_ns == exec_start_ns;
            // A batch that was sent ahead had its inputs before its turn. Any other batch has the time of its send: by
            // now the worker may have executed some of it.
            began_ns = match batch.execution.compute_start_ns {
                0 => now_ns(),
                sent_ns => sent_ns,
            };
            batch.execution.exec_start_ns = if is_first { exec_start_ns } else { began_ns };
            batch.execution.compute_start_ns = began_ns;
            let is_answered = self.conclude(worker, &mut batch, !in_hand.is_empty());
            self.record_time(now_ns().saturating_sub(began_ns));
            // A worker that has answered begins its next batch at once. If it is dead by now, it died in that batch,
            // which is not executed again.
            if !is_answered && !worker.is_fit() {
                for batch in in_hand.into_iter().rev() {
                    left.push_front(take_back(worker, batch));
                }
                return;
            }
        }
    }

    /// Sends as many batches as the worker may have at a time.
    fn fill(
        &mut self,
        worker: &Arc<Worker>,
        left: &mut VecDeque<PendingBatch>,
        in_hand: &mut VecDeque<Batch>,
        payload: &Payload,
        exec_start_ns: u64,
    ) {
        let before = in_hand.len();
        let most = if self.execution_ns < SHORT_NS { IN_HAND_MAX } else { 1 };
        while in_hand.len() < most && worker.is_fit() {
            let Some(entry) = left.pop_front().or_else(|| self.more(payload)) else { break };
            let rows = entry.rows;
            match self.send(worker, entry, in_hand.is_empty()) {
                Ok(mut batch) => {
                    batch.execution.exec_start_ns = exec_start_ns;
                    in_hand.push_back(batch);
                }
                Err(Unsent::Later(requests)) => {
                    left.push_front(PendingBatch { requests, rows });
                    break;
                }
                Err(Unsent::Failed(status, requests)) => self.fail_all(requests, &status),
            }
        }
        if in_hand.len() > before {
            worker.link.ring();
        }
    }

    /// The next batch that waits for this instance, if any.
    fn more(&self, payload: &Payload) -> Option<PendingBatch> {
        loop {
            // If all requests of a payload are refused, the next one is tried.
            if let Some(entry) = self.accept_requests(payload.more()?.take()) {
                return Some(entry);
            }
        }
    }

    /// Waits for the result of a batch, and answers its requests but those that are answered later. False if the worker
    /// sent no result.
    fn conclude(&mut self, worker: &Arc<Worker>, batch: &mut Batch, has_more: bool) -> bool {
        let lends = batch.grant.is_some();
        if lends {
            worker.set_grant(batch.grant.take());
        }
        let outcome = self.receive(worker, has_more).and_then(|kind| {
            self.finish(worker, kind, batch).map_err(|malformed| {
                worker.kill(&format!("was ended because {malformed}"));
                self.failed(malformed)
            })
        });
        if let Err(status) = &outcome {
            error!("{}", status.message);
            let positions: Vec<usize> = (0..batch.tokens.len()).collect();
            self.fail_batch(worker, &status.message, &positions, batch);
        }
        if lends {
            worker.set_grant(None);
        }
        outcome.is_ok()
    }

    fn record_time(&mut self, execution_ns: u64) {
        let execution_ns = execution_ns.min(SHORT_NS.saturating_mul(WEIGHT));
        self.execution_ns = self.execution_ns - self.execution_ns / WEIGHT + execution_ns / WEIGHT;
    }

    fn fail_all(&self, requests: Requests, status: &Status) {
        requests.into_iter().for_each(|request| self.context.fail(request, status.clone()));
    }

    /// `Failed to process …`, for failures outside the model's code.
    fn failed(&self, text: impl std::fmt::Display) -> Status {
        let name = &self.context.name;
        Status::internal(format!("Failed to process the request(s) for model instance '{name}', message: {text}"))
    }

    /// Reserves the memory for the larger inputs; the outer `None`: there is none now. A worker that holds all of it
    /// may release some, once it `is_idle`.
    fn reserve(
        &mut self,
        worker: &Arc<Worker>,
        len: usize,
        is_idle: bool,
    ) -> Result<Option<Option<WritableRange>>, Status> {
        if len == 0 {
            return Ok(Some(None));
        }
        if let Some(taken) = worker.link.reserve(len)? {
            return Ok(Some(Some(taken)));
        }
        if !is_idle {
            return Ok(None);
        }
        self.writer.clear();
        self.writer.tuple(1);
        let freed = batch::write_freed(&mut self.writer, &worker.link);
        let swept = worker.send(to_worker::SWEEP, self.writer.bytes());
        swept.map_err(|error| {
            worker.link.outbound.put_back_freed(freed);
            self.failed(error)
        })?;
        let served = worker.serve(&[from_worker::DONE], &mut self.payload, Wait::within(self.execute_limit));
        served.map_err(|ended| ended_with(worker, &ended))?;
        let released = Value::read(&self.payload).and_then(|value| {
            let [_, keys] = value.as_tuple()?;
            worker.release(keys)
        });
        released.map_err(|malformed| self.failed(malformed))?;
        match worker.link.reserve(len)? {
            Some(taken) => Ok(Some(Some(taken))),
            None => Err(Status::unavailable(format!(
                "instance '{}' has no memory for {len} bytes of inputs: its model holds what it may have \
                 ('shm-max-byte-size')",
                self.context.name
            ))),
        }
    }

    /// Passes a batch to the worker; the caller wakes it afterwards.
    fn send(&mut self, worker: &Arc<Worker>, entry: PendingBatch, is_idle: bool) -> Result<Batch, Unsent> {
        let PendingBatch { mut requests, rows } = entry;
        let grant = requests.first().and_then(|request| request.links.grant.clone());
        if grant.is_some() && !is_idle {
            return Err(Unsent::Later(requests));
        }
        let mut exports = BatchExports::default();
        let lent = exports.begin(&mut requests, &worker.link).map_err(|status| self.failed(status.message));
        let taken = lent.and_then(|()| batch::shared_len(&requests)).and_then(|len| self.reserve(worker, len, is_idle));
        let taken = match taken {
            Ok(Some(taken)) => taken,
            unsent => {
                exports.revoke(&worker.link);
                return Err(match unsent {
                    Err(status) => Unsent::Failed(status, requests),
                    Ok(_) => Unsent::Later(requests),
                });
            }
        };
        let mut batch =
            Batch { tokens: Vec::with_capacity(requests.len()), rows, execution: Execution::default(), grant };
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
            if let Err(status) = batch::write_request(&mut writer, &request, token, &mut room, &mut exports) {
                worker.open.forget(token);
                outcome = Err((self.failed(status.message), Some(request)));
                break;
            }
            worker.open.put(token, request);
            batch.tokens.push(token);
        }
        let mut has_room = true;
        if outcome.is_ok() {
            if is_idle {
                batch.execution.compute_start_ns = now_ns();
            }
            let sent = match is_idle {
                true => worker.push(to_worker::BATCH, writer.bytes()),
                false => worker.push_behind(to_worker::BATCH, writer.bytes()).map(|sent| has_room = sent),
            };
            outcome = sent.map_err(|error| (self.failed(error), None));
        }
        self.writer = writer;
        if outcome.is_ok() && has_room {
            return Ok(batch);
        }
        exports.revoke(&worker.link);
        worker.link.outbound.put_back_freed(freed);
        if let Some((range, _)) = &taken {
            worker.link.inbound.release(std::iter::once(range.key));
        }
        let back = take_back(worker, batch).requests.into_iter();
        match outcome {
            Ok(()) => Err(Unsent::Later(back.collect())),
            Err((status, refused)) => Err(Unsent::Failed(status, back.chain(refused).chain(left).collect())),
        }
    }

    /// Receives the result of a batch: the worker's message, or its end.
    fn receive(&mut self, worker: &Arc<Worker>, has_more: bool) -> Result<u32, Status> {
        let awaited = [from_worker::DONE, from_worker::BATCH_FAILED];
        let poll_every = has_more.then_some(POLL_EVERY);
        let wait = Wait { limit: self.execute_limit, poll_every, spin: Some(&mut self.spin) };
        let served = worker.serve(&awaited, &mut self.payload, wait);
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

    /// One result for each request: a response, None if its sender answers, or True if it is to be executed once more.
    fn answer(&mut self, worker: &Arc<Worker>, results: &[Value<'_>], batch: &mut Batch) -> Result<(), Malformed> {
        if results.len() != batch.tokens.len() {
            return Err(Malformed::Form);
        }
        let mut answered = Vec::with_capacity(results.len());
        // An error of one result fails that request alone.
        let mut outcome = Ok(());
        for (token, result) in std::mem::take(&mut batch.tokens).into_iter().zip(results) {
            let stays = matches!(result, Value::None);
            let Some(returned) = worker.open.returned(token, stays) else { continue };
            let ReturnedRequest { request, is_closed, is_lost } = returned;
            match result {
                Value::None if is_lost => self.context.fail(request, worker.death_status()),
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

    /// Answers the requests at these positions with `text` and counts all as failed. The last responses of the others
    /// have arrived, or are in flight from another thread of the worker.
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
                self.context.fail(returned.request, worker.death_status());
                continue;
            }
            match fails && !returned.is_closed {
                true => self.context.fail(returned.request, Status::internal(text.to_owned())),
                false => crate::report_failure(&self.context.statistics, &returned.request),
            }
        }
    }

    /// Fails batches with requests that continue sequences of an earlier worker: they left their queue before its death
    /// ended those. It fails such a batch as a whole, because models may identify a sequence by its index in the batch.
    fn refuse_orphans(&mut self, worker: &Arc<Worker>, left: &mut VecDeque<PendingBatch>) {
        let current = Arc::downgrade(worker);
        let last = self.last.replace(current.clone());
        if last.is_none_or(|last| last.ptr_eq(&current)) {
            return;
        }
        let goes_on = |request: &Request| request.ingress.origin != Origin::Null && request.flags & SEQUENCE_START == 0;
        for entry in std::mem::take(left) {
            match entry.requests.iter().any(|request| goes_on(request)) {
                true => self.fail_all(entry.requests, &Status::sequence_lost()),
                false => left.push_back(entry),
            }
        }
    }

    /// Fails the requests that cannot be sent to a worker; returns the others, if any.
    fn accept_requests(&self, requests: Requests) -> Option<PendingBatch> {
        let present = |request: Box<Request>| match batch::refusal(&request) {
            None => Some(request),
            Some(status) => {
                self.context.fail(request, self.failed(status.message));
                None
            }
        };
        let requests: Requests = requests.into_iter().filter_map(present).collect();
        let rows = requests.iter().map(|request| request.batch_size).fold(0, u64::saturating_add);
        let most = u64::from(self.context.spec.max_batch_size);
        if most > 0 && rows > most {
            let name = &self.context.spec.name;
            let text = format!("batch size {rows} for '{name}', max allowed is {most}");
            self.fail_all(requests, &Status::internal(text));
            return None;
        }
        (!requests.is_empty()).then_some(PendingBatch { requests, rows })
    }
}

/// Takes back the requests of a batch that was not executed.
fn take_back(worker: &Worker, batch: Batch) -> PendingBatch {
    let returned = batch.tokens.into_iter().filter_map(|token| worker.open.returned(token, false));
    PendingBatch { requests: returned.map(|returned| returned.request).collect(), rows: batch.rows }
}

impl Instance for PythonInstance {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let mut exec_start_ns = now_ns();
        let mut left: VecDeque<PendingBatch> = self.accept_requests(payload.take()).into_iter().collect();
        while !left.is_empty() {
            let worker = match self.supervisor.worker() {
                Ok(worker) => worker,
                Err(status) => {
                    left.into_iter().for_each(|entry| self.fail_all(entry.requests, &status));
                    self.supervisor.hold_back();
                    return Ok(());
                }
            };
            if self.has_sequences {
                self.refuse_orphans(&worker, &mut left);
            }
            self.run(&worker, &mut left, payload, exec_start_ns);
            exec_start_ns = now_ns();
            if !worker.is_fit() {
                // The dead worker's memory is freed now.
                drop(worker);
                if left.is_empty() {
                    self.supervisor.hold_back();
                }
            }
        }
        Ok(())
    }

    fn takes_device_tensors(&self) -> bool {
        self.takes_device_tensors
    }

    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        Some(Health::of(&self.supervisor))
    }
}

impl Drop for PythonInstance {
    fn drop(&mut self) {
        let Some(worker) = self.supervisor.close() else { return };
        let (name, model) = (&self.context.name, &self.context.spec.name);
        self.writer.clear();
        self.writer.tuple(0);
        let ends = Instant::now() + self.end_limit;
        let limit = Some(self.end_limit);
        if worker.send(to_worker::FINALIZE, self.writer.bytes()).is_ok() {
            match worker.serve(&[from_worker::FINALIZED], &mut self.payload, Wait::within(limit)) {
                Ok(_) => {
                    let left = Some(ends.saturating_duration_since(Instant::now()));
                    if let Err(Ended::Late(_)) = worker.serve(&[], &mut self.payload, Wait::within(left)) {
                        warn!("the process of model '{model}', instance '{name}' did not end after its finalize()");
                    }
                }
                Err(Ended::Late(limit)) => {
                    let secs = limit.as_secs_f64();
                    warn!(
                        "the process of model '{model}', instance '{name}' was ended because its finalize() took more \
                         than {secs} s ('stub-timeout-seconds')"
                    );
                }
                Err(Ended::Died(how)) => {
                    warn!("the process of model '{model}', instance '{name}' {how} before it was finalized");
                }
            }
        }
        worker.join();
    }
}

/// The error of a batch whose worker sent no result.
fn ended_with(worker: &Worker, ended: &Ended) -> Status {
    debug_assert!(!worker.is_fit(), "{ended:?}");
    worker.death_status()
}
