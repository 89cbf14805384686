//! The models under the simulation, their instances, and the workers that stand in for threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use nereid_backend::instance::stepped::SteppedWorker;
use nereid_backend::{Instance, InstanceContext, Mobility, ModelContext, fixtures, report_failure};
use nereid_clock::now_ns;
use nereid_memory::Pool;
use nereid_model_config::{ModelSpec, SupportedGpus, normalize};
use nereid_observe::statistics::{Execution, ModelStatistics};
use nereid_request::{
    DataType, Origin, OutputTensor, Request, Response, ResponseFactory, SEQUENCE_END, SEQUENCE_START, Shape, Status,
    Text, Waker,
};
use nereid_scheduler::ensemble::{Composing, Models, StepModel};
use nereid_scheduler::{Checks, Payload, PayloadSource, Purpose, RunToCompletion, Scheduling, ServedModel, Services};
use smallvec::SmallVec;
use tritonserver::repository::{ModelEntry, ModelId, ModelMap, VersionState};

use crate::ledger::{self, DECOUPLED, GRAPH, HERE, JOIN, Late, MODELS, SEQUENCE, element, offset};

pub struct Kind {
    pub name: &'static str,
    config: &'static str,
    pub workers: usize,
}

const ONE_STEP: &str = "input_map { key: \"INPUT0\" value: ";

pub const KINDS: [Kind; MODELS] = [
    Kind { name: "direct", config: "", workers: 2 },
    Kind { name: "here", config: "", workers: 1 },
    Kind {
        name: "batched",
        config: "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 }",
        workers: 2,
    },
    Kind {
        name: "queued",
        config: "max_batch_size: 4 dynamic_batching { priority_levels: 3 default_priority_level: 2
                 default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 2000
                 allow_timeout_override: true max_queue_size: 16 } }",
        workers: 1,
    },
    Kind {
        name: "sequence",
        config: "max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: 5000000
                 control_input { name: \"START\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
                 control_input { name: \"READY\" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } } }",
        workers: 2,
    },
    Kind { name: "ensemble", config: "", workers: 0 },
    Kind { name: "decoupled", config: "model_transaction_policy { decoupled: true }", workers: 1 },
    Kind {
        name: "ordered",
        config: "max_batch_size: 4 dynamic_batching { preserve_ordering: true }",
        workers: 2,
    },
    Kind { name: "graph", config: "", workers: 0 },
    Kind {
        name: "join",
        config: "input { name: \"INPUT1\" data_type: TYPE_INT32 dims: [ -1 ] }",
        workers: 1,
    },
];

/// The map of models as ensembles read it.
#[derive(Default)]
pub struct Directory(RwLock<Option<Arc<ModelMap>>>);

impl Directory {
    pub fn set(&self, map: Option<Arc<ModelMap>>) {
        let before = std::mem::replace(&mut *self.0.write().expect("one thread"), map);
        drop(before);
    }
}

impl Models for Directory {
    fn find(&self, wanted: &StepModel) -> Result<Arc<dyn Composing>, Status> {
        let map = self.0.read().expect("one thread").clone();
        let map = map.ok_or_else(|| Status::unavailable("Server not ready"))?;
        map.composing(wanted).map(|served| Arc::clone(served) as Arc<dyn Composing>)
    }
}

/// The steps of a version of the ensemble of graphs.
fn graph_steps(version: i64) -> String {
    let models = ledger::with(|ledger| ledger.graph(version));
    let made = |at: usize| if at + 1 == models.len() { "OUTPUT0".to_owned() } else { format!("T{at}") };
    let is_diamond = models.contains(&JOIN);
    let step = |(at, model): (usize, &usize)| {
        let read = match at {
            0 => "INPUT0".to_owned(),
            1 if is_diamond => "INPUT0".to_owned(),
            2 if is_diamond => made(0),
            at => made(at - 1),
        };
        let other = if *model == JOIN { "input_map { key: \"INPUT1\" value: \"T1\" }" } else { "" };
        let (name, made) = (KINDS[*model].name, made(at));
        format!(
            "step {{ model_name: \"{name}\" model_version: -1 {ONE_STEP} \"{read}\" }} {other}
             output_map {{ key: \"OUTPUT0\" value: \"{made}\" }} }}"
        )
    };
    models.iter().enumerate().map(step).collect()
}

fn spec(kind: &Kind, version: i64) -> Arc<ModelSpec> {
    let dims = "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }
                output { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }";
    let text = match kind.name {
        "ensemble" => format!(
            "name: \"ensemble\" platform: \"ensemble\" max_batch_size: 8 {dims} ensemble_scheduling {{
             step {{ model_name: \"ordered\" model_version: -1 {ONE_STEP} \"INPUT0\" }}
                     output_map {{ key: \"OUTPUT0\" value: \"BETWEEN\" }} }}
             step {{ model_name: \"batched\" model_version: -1 {ONE_STEP} \"BETWEEN\" }}
                     output_map {{ key: \"OUTPUT0\" value: \"OUTPUT0\" }} }} }}"
        ),
        "graph" => {
            let steps = graph_steps(version);
            format!("name: \"graph\" platform: \"ensemble\" {dims} ensemble_scheduling {{ {steps} }}")
        }
        name => format!("name: \"{name}\" backend: \"identity\" {dims} {}", kind.config),
    };
    let document = nereid_model_config::parse(kind.name, text.as_bytes()).expect("a configuration");
    let mut config = nereid_model_config::from_dynamic(&document.message).expect("a configuration");
    normalize::fill_defaults(&mut config);
    normalize::instance_groups(&mut config, &[], &SupportedGpus::NoDriver);
    Arc::new(ModelSpec::new(config).expect("a configuration"))
}

/// What a worker is at.
pub enum Doing {
    Polling,
    Sleeping { until_ns: Option<u64> },
    Executing { payload: Payload, until_ns: u64 },
    Gone,
}

pub struct Worker {
    stepped: Option<SteppedWorker>,
    pub doing: Doing,
    pub woken: Arc<AtomicBool>,
}

/// One version of a model, from its load to its end.
pub struct Generation {
    pub model: usize,
    pub version: i64,
    pub served: Arc<ServedModel>,
    source: Arc<dyn PayloadSource>,
    context: Arc<ModelContext>,
    pub workers: Vec<Worker>,
    made: usize,
    pub is_retiring: bool,
    pub is_stopped: bool,
    /// Set when any worker of the run is woken.
    any_woken: Arc<AtomicBool>,
}

impl Generation {
    pub fn load(
        (model, version): (usize, i64),
        pool: &Pool,
        directory: &Arc<Directory>,
        any_woken: &Arc<AtomicBool>,
    ) -> Generation {
        let kind = &KINDS[model];
        let (spec, statistics) = (spec(kind, version), Arc::new(ModelStatistics::default()));
        let services = Services { models: Some(Arc::clone(directory) as Arc<_>), ..Services::default() };
        let purpose = Purpose {
            spec: Arc::clone(&spec),
            version,
            statistics: Arc::clone(&statistics),
            directory: Default::default(),
            pool: pool.clone(),
            strategy: None,
        };
        let Scheduling { scheduler, source } = nereid_scheduler::create(&purpose, &services).expect("a scheduler");
        let mut context = fixtures::context(kind.name, Default::default(), spec.config.clone());
        (context.version, context.statistics, context.pool) = (version, Arc::clone(&statistics), pool.clone());
        let served = Arc::new(ServedModel {
            name: kind.name.to_owned(),
            namespace: String::new(),
            version,
            spec,
            statistics,
            scheduler,
            checks: Checks::new(kind.name, version),
            labels: BTreeMap::new(),
            load_duration_secs: 0.0,
            provenance: None,
            pins: AtomicUsize::new(0),
            load: Arc::default(),
        });
        let mut generation = Generation {
            model,
            version,
            served,
            source,
            context: Arc::new(context),
            workers: Vec::new(),
            made: 0,
            is_retiring: false,
            is_stopped: false,
            any_woken: Arc::clone(any_woken),
        };
        (0..kind.workers).for_each(|_| generation.hire());
        generation
    }

    pub fn hire(&mut self) {
        let woken: Arc<AtomicBool> = Arc::default();
        let waker = Waker::new({
            let (woken, any_woken) = (Arc::clone(&woken), Arc::clone(&self.any_woken));
            move || {
                woken.store(true, Ordering::Relaxed);
                any_woken.store(true, Ordering::Relaxed);
            }
        });
        let name = format!("{}_{}", KINDS[self.model].name, self.made);
        self.made += 1;
        let context = InstanceContext::new(name, Arc::clone(&self.served.spec), Arc::clone(&self.context));
        let instance = SimulatedInstance {
            context: context.clone(),
            model: self.model,
            version: self.version,
            sums: BTreeMap::new(),
        };
        let members: Vec<(Box<dyn Instance>, InstanceContext)> = vec![(Box::new(instance), context)];
        let stepped = SteppedWorker::join(&self.source, members, RunToCompletion::Declared, waker);
        let stepped = Some(stepped.expect("a place for a worker"));
        self.workers.push(Worker { stepped, doing: Doing::Polling, woken });
    }

    /// Another worker takes the place of one.
    pub fn replace(&mut self, at: usize) {
        self.hire();
        if let Some(stepped) = self.workers.get(at).and_then(|worker| worker.stepped.as_ref()) {
            stepped.dismiss();
        }
    }

    /// Workers that have not left.
    pub fn staff(&self) -> usize {
        self.workers.iter().filter(|worker| worker.stepped.is_some()).count()
    }

    /// Polls for a worker, which executes nothing.
    pub fn poll(&mut self, at: usize, duration_ns: impl FnOnce() -> u64) {
        let Some(worker) = self.workers.get_mut(at) else { return };
        let Some(stepped) = &worker.stepped else { return };
        worker.woken.store(false, Ordering::Relaxed);
        let now_ns = now_ns();
        worker.doing = match stepped.poll(now_ns) {
            nereid_scheduler::Next::Sleep { until_ns } => {
                if until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
                    ledger::with(|ledger| ledger.violate("a worker sleeps until a time that is over".to_owned()));
                }
                Doing::Sleeping { until_ns }
            }
            nereid_scheduler::Next::Leave => {
                if let Some(stepped) = worker.stepped.take() {
                    stepped.leave();
                }
                Doing::Gone
            }
            nereid_scheduler::Next::Execute(payload) => Doing::Executing { payload, until_ns: now_ns + duration_ns() },
        };
    }

    /// Executes the payload of a worker.
    pub fn execute(&mut self, at: usize) {
        let Some(worker) = self.workers.get_mut(at) else { return };
        if let Doing::Executing { payload, .. } = std::mem::replace(&mut worker.doing, Doing::Polling)
            && let Some(stepped) = &worker.stepped
        {
            stepped.run(payload);
        }
    }

    pub fn stop(&mut self) {
        if !std::mem::replace(&mut self.is_stopped, true) {
            self.served.scheduler.stop();
            self.served.scheduler.close();
        }
    }

    /// Compares the statistics with what its instances did.
    pub fn check(&self) -> Result<(), String> {
        let statistics = self.served.statistics.snapshot();
        let tally = ledger::with(|ledger| *ledger.tally(self.model, self.version));
        let of = format!("{} version {}", KINDS[self.model].name, self.version);
        if statistics.pending != 0 {
            return Err(format!("{} requests of {of} are pending at its end", statistics.pending));
        }
        // What an ensemble executes, its steps count.
        let is_ensemble = KINDS[self.model].workers == 0;
        let counts = [
            ("successes", statistics.success.count, tally.successes),
            ("executions", statistics.execution_count, tally.executions),
            ("rows", statistics.inference_count, tally.rows),
        ];
        for (what, counted, real) in counts.into_iter().filter(|_| !is_ensemble) {
            if counted != real {
                return Err(format!("the statistics of {of} have {counted} {what}, and there were {real}"));
            }
        }
        Ok(())
    }
}

/// The map with these versions, of which a model has at most one.
pub fn map<'a>(serving: impl Iterator<Item = &'a Generation>) -> Arc<ModelMap> {
    let entry = |generation: &Generation| {
        let id = ModelId { name: KINDS[generation.model].name.to_owned(), namespace: String::new() };
        let state = VersionState::Ready(Arc::clone(&generation.served));
        (id, ModelEntry { versions: [(generation.version, state)].into(), ..ModelEntry::default() })
    };
    Arc::new(ModelMap::new(serving.map(entry).collect(), false))
}

/// An instance that adds a number to each element but the first, and at times does something worse.
struct SimulatedInstance {
    context: InstanceContext,
    model: usize,
    version: i64,
    /// The sums of the sequences that it has.
    sums: BTreeMap<String, i32>,
}

/// The elements of a request's first input.
fn elements(request: &Request) -> Vec<i32> {
    elements_of(request, 0)
}

fn elements_of(request: &Request, index: usize) -> Vec<i32> {
    let input = request.inputs.iter().find(|input| input.index == index);
    let bytes: Vec<u8> =
        input.into_iter().flat_map(|input| &input.data).flat_map(|piece| piece.iter().copied()).collect();
    bytes.chunks_exact(4).map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

fn tensor(values: &[i32], shape: Shape, responses: &Source<'_>) -> Result<OutputTensor, Status> {
    let mut block = match responses {
        Source::Request(request) => request.allocate_output(&Text::from("OUTPUT0"), 4 * values.len()),
        Source::Factory(factory) => factory.allocate_output(b"OUTPUT0", 4 * values.len()),
    }?;
    for (at, value) in values.iter().enumerate() {
        assert!(block.write(at * 4, &value.to_le_bytes()));
    }
    Ok(OutputTensor {
        name: Text::from("OUTPUT0"),
        datatype: DataType::Int32,
        shape,
        data: SmallVec::from_elem(block.freeze(), 1),
        index: 0,
        on_device: None,
    })
}

/// Where memory for an output comes from.
enum Source<'a> {
    Request(&'a Request),
    Factory(&'a ResponseFactory),
}

fn response(request: &Request, values: &[i32]) -> Result<Response, Status> {
    let shape = request.inputs.first().map(|input| input.shape.clone()).unwrap_or_default();
    let mut response = Response::new(request.id.clone());
    response.outputs.push(tensor(values, shape, &Source::Request(request))?);
    Ok(response)
}

fn execution() -> Execution {
    let now_ns = now_ns();
    Execution { exec_start_ns: now_ns, compute_start_ns: now_ns, compute_end_ns: now_ns, exec_end_ns: now_ns }
}

/// What becomes of one request.
enum Fate {
    Succeed,
    Fail,
    Later,
    Drop,
    Hold,
}

impl SimulatedInstance {
    /// Shards may execute it. It has no troubles, for it must not block.
    fn is_here(&self) -> bool {
        [HERE, JOIN].contains(&self.model)
    }

    fn number(values: &[i32]) -> u32 {
        values.first().map_or(0, |first| *first as u32)
    }

    /// Checks that each request is one that was sent, has come whole, and is executed for the first time.
    fn check(&self, payload: &Payload) {
        let rows_max = self.context.spec.config.max_batch_size.max(1) as usize;
        ledger::with(|ledger| {
            if payload.len() > rows_max {
                ledger.violate(format!("{} requests are executed in a batch of {rows_max}", payload.len()));
            }
            let clients = payload.requests().iter().filter(|request| request.ingress.origin == Origin::Client);
            for request in clients {
                let values = elements(request);
                let number = SimulatedInstance::number(&values);
                let is_whole = |(at, value): (usize, &i32)| *value == element(number, at);
                let Some(sent) = ledger.open.get_mut(&number) else { continue };
                if sent.model == self.model && !values.iter().enumerate().all(is_whole) {
                    let at = values.iter().enumerate().position(|one| !is_whole(one));
                    ledger.violate(format!("request {number} arrives with other elements at {at:?}"));
                } else if sent.model != GRAPH && sent.executed & 1 << self.model != 0 {
                    ledger.violate(format!("request {number} is executed twice by model {}", self.model));
                } else {
                    sent.executed |= 1 << self.model;
                }
            }
        });
    }

    fn excuse(&self, number: u32) {
        ledger::with(|ledger| {
            if let Some(sent) = ledger.open.get_mut(&number) {
                sent.excuse = Some("model");
            }
        });
    }

    fn fate(&self) -> Fate {
        ledger::with(|ledger| {
            let troubles = ledger.troubles;
            if self.is_here() {
                return Fate::Succeed;
            }
            let (fate, name) = if ledger.once_in(troubles.failure_once_in) {
                (Fate::Fail, "failed request")
            } else if ledger.once_in(troubles.late_once_in) {
                (Fate::Later, "answer after the execution")
            } else if ledger.once_in(troubles.drop_once_in) {
                (Fate::Drop, "request dropped by its model")
            } else if self.model != SEQUENCE && ledger.once_in(troubles.hold_once_in) {
                (Fate::Hold, "request held until its cancellation")
            } else {
                return Fate::Succeed;
            };
            ledger.faults.count(name);
            fate
        })
    }

    /// The answer's elements.
    fn compute(&mut self, request: &Request, values: &mut [i32]) -> Result<(), Status> {
        let offset = offset(self.model, self.version);
        if self.model == SEQUENCE {
            let id = request.correlation_id.to_string();
            let begins = request.flags & SEQUENCE_START != 0;
            let before = if begins { Some(0) } else { self.sums.get(&id).copied() };
            let Some(before) = before else {
                let text = format!("sequence {id} goes on where it never began");
                ledger::with(|ledger| ledger.violate(text));
                return Ok(());
            };
            let sum = before.wrapping_add(values.get(1).copied().unwrap_or(0));
            match request.flags & SEQUENCE_END != 0 {
                true => self.sums.remove(&id),
                false => self.sums.insert(id, sum),
            };
            if let Some(value) = values.get_mut(1) {
                *value = sum;
            }
        }
        values.iter_mut().skip(1).for_each(|value| *value = value.wrapping_add(offset));
        if self.model == JOIN {
            let number = SimulatedInstance::number(values);
            let others = elements_of(request, 1);
            // What both have been given is in the sum once.
            for (at, (value, other)) in values.iter_mut().zip(others).enumerate().skip(1) {
                *value = value.wrapping_add(other).wrapping_sub(element(number, at));
            }
        }
        Ok(())
    }

    fn run(&mut self, request: Box<Request>) {
        if request.ingress.origin != Origin::Client {
            return request.finish(Response::default());
        }
        let mut values = elements(&request);
        let number = SimulatedInstance::number(&values);
        if self.model == DECOUPLED {
            return self.stream(request, number);
        }
        let computed = self.compute(&request, &mut values);
        match self.fate() {
            Fate::Succeed => match computed.and_then(|()| response(&request, &values)) {
                Ok(response) => succeed(&self.context, request, response, number),
                Err(status) => self.context.fail(request, status),
            },
            Fate::Fail => {
                self.excuse(number);
                self.context.fail(request, Status::internal(format!("planned failure of {number}")));
            }
            Fate::Drop => {
                self.excuse(number);
                report_failure(&self.context.statistics, &request);
                drop(request);
            }
            Fate::Later => ledger::with(|ledger| {
                let at_ns = now_ns() + ledger.below(3_000_000);
                ledger.late.push((at_ns, Late::Answer { request, context: self.context.clone(), number }));
            }),
            Fate::Hold => ledger::with(|ledger| {
                let context = self.context.clone();
                let until_ns = now_ns() + 50_000_000 + ledger.below(200_000_000);
                ledger.late.push((now_ns() + 200_000, Late::Held { request, context, until_ns }));
            }),
        }
    }

    fn stream(&self, request: Box<Request>, number: u32) {
        let of = ledger::with(|ledger| ledger.open.get(&number).map_or(0, |sent| sent.responses));
        let responses = request.responses();
        count(self.model, self.version, request.batch_size, number);
        self.context.report_success(&request, &execution());
        let late = Late::Response {
            responses,
            id: request.id.clone(),
            number,
            at: 0,
            of,
            offset: offset(DECOUPLED, self.version),
        };
        ledger::with(|ledger| {
            let at_ns = now_ns() + ledger.below(200_000);
            ledger.late.push((at_ns, late));
        });
    }
}

fn count(model: usize, version: i64, rows: u64, number: u32) {
    ledger::with(|ledger| {
        let tally = ledger.tally(model, version);
        tally.successes += 1;
        tally.rows += rows;
        if let Some(sent) = ledger.open.get_mut(&number) {
            sent.has_succeeded |= sent.model == model;
            sent.path.push(model);
            sent.added = sent.added.wrapping_add(offset(model, version));
        }
    });
}

fn succeed(context: &InstanceContext, request: Box<Request>, response: Response, number: u32) {
    let model = KINDS.iter().position(|kind| kind.name == context.model.name).unwrap_or(0);
    count(model, context.model.version, request.batch_size, number);
    context.succeed(request, response, &execution());
}

/// Does what a model has put off.
pub fn go_on(late: Late) {
    match late {
        Late::Answer { request, context, number } => {
            let model = KINDS.iter().position(|kind| kind.name == context.model.name).unwrap_or(0);
            let mut values = elements(&request);
            let offset = offset(model, context.model.version);
            // A sequence's sum was computed in its turn, and is in the ledger.
            if model == SEQUENCE
                && let Some(value) = values.get_mut(1)
                && let Some(sum) = ledger::with(|ledger| ledger.open.get(&number).and_then(|sent| sent.sum))
            {
                *value = sum;
            }
            values.iter_mut().skip(1).for_each(|value| *value = value.wrapping_add(offset));
            match response(&request, &values) {
                Ok(response) => succeed(&context, request, response, number),
                Err(status) => context.fail(request, status),
            }
        }
        Late::Response { responses, id, number, at, of, offset } => {
            if at == of || responses.is_cancelled() {
                return responses.send_end();
            }
            let values: Vec<i32> = (0..3)
                .map(|place| match place {
                    0 => number as i32,
                    1 => element(number, 1) + offset + at as i32,
                    place => element(number, place) + offset,
                })
                .collect();
            let mut response = responses.begin(id.clone());
            match tensor(&values, Shape::from_slice(&[3]), &Source::Factory(&responses)) {
                Ok(output) => response.outputs.push(output),
                // A client takes an error for the end.
                Err(status) => return responses.send(Response::failed(id, status), true),
            }
            let is_last = at + 1 == of && ledger::with(|ledger| ledger.once_in(2));
            responses.send(response, is_last);
            if !is_last {
                ledger::with(|ledger| {
                    let at_ns = now_ns() + if ledger.once_in(3) { 0 } else { ledger.below(300_000) };
                    ledger.late.push((at_ns, Late::Response { responses, id, number, at: at + 1, of, offset }));
                });
            }
        }
        Late::Held { request, context, until_ns } => {
            let number = SimulatedInstance::number(&elements(&request));
            let is_cancelled = request.admission().is_cancelled();
            ledger::with(|ledger| ledger.check_held(number, is_cancelled));
            if is_cancelled {
                context.fail(request, Status::cancelled(""));
            } else if now_ns() >= until_ns {
                go_on(Late::Answer { request, context, number });
            } else {
                ledger::with(|ledger| {
                    ledger.late.push((now_ns() + 1_000_000, Late::Held { request, context, until_ns }))
                });
            }
        }
    }
}

impl Instance for SimulatedInstance {
    fn mobility(&self) -> Mobility {
        if self.is_here() { Mobility::Free } else { Mobility::Bound }
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        self.check(payload);
        let (fails, panics, dies) = ledger::with(|ledger| {
            let troubles = ledger.troubles;
            let fails = ledger.once_in(4 * troubles.failure_once_in);
            (fails, ledger.once_in(troubles.panic_once_in), ledger.once_in(2 * troubles.panic_once_in))
        });
        if (fails || panics || dies) && !self.is_here() {
            for request in payload.requests() {
                self.excuse(SimulatedInstance::number(&elements(request)));
            }
            let kind = if panics {
                "panic of a model"
            } else if dies {
                "death of a worker"
            } else {
                "failed execution"
            };
            ledger::with(|ledger| ledger.faults.count(kind));
            // Sequences of a failed request have an element that was never added.
            self.sums.clear();
            self.context.state_loss.report();
            if panics {
                std::panic::resume_unwind(Box::new("a model panics"));
            }
            return Err(Status::internal("planned failure of an execution"));
        }
        let is_real = payload.requests().iter().any(|request| request.ingress.origin == Origin::Client);
        let rows: u64 = payload.requests().iter().map(|request| request.batch_size).sum();
        for request in payload.take() {
            self.run(request);
        }
        if is_real {
            self.context.report_batch(rows, &execution());
            ledger::with(|ledger| ledger.tally(self.model, self.version).executions += 1);
        }
        Ok(())
    }
}
