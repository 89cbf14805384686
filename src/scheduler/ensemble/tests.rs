//! The scheduler of ensembles over models that answer when the test makes them.

mod deadlines;
mod devices;
mod places;
mod rows;
mod simulation;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::validate::validate;
use nereid_clock::now_ns;
use nereid_memory::{BlockMut, Exhausted, Slice};
use nereid_model_config::{from_dynamic, parse};
use nereid_request::shared::OutputDestination;
use nereid_request::{
    Completion, DataType, Delivery, Home, InputTensor, Job, OutputQuery, OutputTensor, Response, Shape, Sink, Text,
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spec(text: &str) -> ModelSpec {
    ModelSpec::new(from_dynamic(&parse("c", text.as_bytes()).unwrap().message).unwrap()).unwrap()
}

/// Tensors of one kind: `I J?`, a question mark behind what is optional.
fn tensors(side: &str, names: &str, dims: &str) -> String {
    let tensor = |name: &str| {
        let optional = if name.ends_with('?') { "optional: true" } else { "" };
        let name = name.trim_end_matches('?');
        format!("{side} {{ name: \"{name}\" data_type: TYPE_UINT8 dims: [ {dims} ] {optional} }} ")
    };
    names.split_whitespace().map(tensor).collect()
}

fn model(name: &str, inputs: &str, outputs: &str, more: &str) -> ModelSpec {
    let (inputs, outputs) = (tensors("input", inputs, "-1"), tensors("output", outputs, "-1"));
    spec(&format!("name: \"{name}\" {inputs} {outputs} {more}"))
}

/// Steps are written as `model I=X J=A -> O=Y`.
fn ensemble(inputs: &str, outputs: &str, steps: &[&str], more: &str, scheduling: &str) -> ModelSpec {
    let step = |text: &&str| {
        let (model, maps) = text.split_once(' ').unwrap();
        let (reads, writes) = maps.split_once("->").unwrap();
        let map = |side: &str, pairs: &str| -> String {
            let pair = |pair: &str| {
                let (key, value) = pair.split_once('=').unwrap();
                format!("{side} {{ key: \"{key}\" value: \"{value}\" }} ")
            };
            pairs.split_whitespace().map(pair).collect()
        };
        let (reads, writes) = (map("input_map", reads), map("output_map", writes));
        format!("step {{ model_name: \"{model}\" model_version: -1 {reads} {writes} }} ")
    };
    let steps: String = steps.iter().map(step).collect();
    let (inputs, outputs) = (tensors("input", inputs, "-1"), tensors("output", outputs, "-1"));
    spec(&format!(
        "name: \"e\" platform: \"ensemble\" {inputs} {outputs} {more} ensemble_scheduling {{ {scheduling} {steps} }}"
    ))
}

/// A model that holds its requests until the test answers them.
struct Part {
    spec: ModelSpec,
    #[expect(clippy::vec_box, reason = "requests come and go in their boxes")]
    held: Mutex<Vec<Box<Request>>>,
    /// How often it was called, by the ids of the requests.
    calls: Mutex<BTreeMap<String, usize>>,
    refusal: Mutex<Option<Status>>,
    expires_at_ns: Mutex<Option<u64>>,
    takes_device_tensors: AtomicBool,
    /// It executes the requests that may run on the thread that submits them there.
    runs_here: AtomicBool,
    panics: AtomicBool,
    /// It answers at once, without an execution of this thread.
    is_quick: AtomicBool,
}

impl Composing for Part {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn takes_device_tensors(&self) -> bool {
        self.takes_device_tensors.load(Ordering::Relaxed)
    }

    fn may_run_here(&self) -> bool {
        self.runs_here.load(Ordering::Relaxed)
    }

    fn submit(&self, mut request: Box<Request>) -> Result<Accepted, Refused> {
        assert!(!self.panics.load(Ordering::Relaxed), "the model panics");
        if let Some(status) = lock(&self.refusal).clone() {
            return Err(Refused { status, request });
        }
        request.stamps.started_ns = now_ns();
        if let Err(status) = validate(&mut request, &self.spec) {
            return Err(Refused { status, request });
        }
        let mut ticket = request.ticket();
        *lock(&self.calls).entry(request.id.to_string()).or_default() += 1;
        if request.ingress.is_on_shard && self.runs_here.load(Ordering::Relaxed) {
            assert!(request.admission().take());
            request.finish(response_of(self, &request, ""));
            ticket.has_run_here = true;
            return Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: None });
        }
        if self.is_quick.load(Ordering::Relaxed) {
            assert!(request.admission().take());
            request.finish(response_of(self, &request, ""));
            return Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: None });
        }
        lock(&self.held).push(request);
        Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: *lock(&self.expires_at_ns) })
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().cancel() {
            ticket.fail(Status::cancelled(""));
        }
        WakeUp::needless()
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().expire() {
            ticket.fail(Status::unavailable("Request timeout expired"));
        }
        WakeUp::needless()
    }
}

impl Part {
    /// The request that has waited longest, unless it was answered meanwhile.
    fn take(&self) -> Option<Box<Request>> {
        self.take_at(0)
    }

    fn take_at(&self, at: usize) -> Option<Box<Request>> {
        let mut held = lock(&self.held);
        (at < held.len()).then(|| held.remove(at)).filter(|request| request.admission().take())
    }
}

/// All requested outputs: `<model>.<output><mark>(<inputs>)`.
fn response_of(part: &Part, request: &Request, mark: &str) -> Response {
    let mut response = Response::new(request.id.clone());
    for output in &request.outputs {
        let mut named: Vec<_> = request.inputs.iter().collect();
        named.sort_by_key(|input| input.index);
        let inputs: Vec<_> = named.iter().map(|input| text_of(&input.data)).collect();
        let text = format!("{}.{}{mark}({})", part.spec.name, output.name, inputs.join(","));
        response.outputs.push(output_tensor(&output.name, &text, part.spec.is_batching()));
    }
    response
}

fn output_tensor(name: &Text, text: &str, is_batched: bool) -> OutputTensor {
    let shape = is_batched.then_some(1).into_iter().chain([text.len() as i64]).collect();
    let data = [Slice::copy_of(text.as_bytes())].into_iter().collect();
    OutputTensor { name: name.clone(), datatype: DataType::Uint8, shape, data, index: 0, on_device: None }
}

fn text_of(pieces: &[Slice]) -> String {
    String::from_utf8(pieces.iter().flat_map(|piece| piece.to_vec()).collect()).unwrap()
}

/// The models of a test.
#[derive(Default)]
struct Kitchen(Mutex<BTreeMap<String, Arc<Part>>>);

impl Kitchen {
    fn add(&self, spec: ModelSpec) -> Arc<Part> {
        let part = Arc::new(Part {
            held: Mutex::default(),
            calls: Mutex::default(),
            refusal: Mutex::default(),
            expires_at_ns: Mutex::default(),
            takes_device_tensors: AtomicBool::default(),
            runs_here: AtomicBool::default(),
            panics: AtomicBool::default(),
            is_quick: AtomicBool::default(),
            spec,
        });
        lock(&self.0).insert(part.spec.name.clone(), Arc::clone(&part));
        part
    }

    fn parts(&self) -> Vec<Arc<Part>> {
        lock(&self.0).values().cloned().collect()
    }
}

impl Models for Kitchen {
    fn find(&self, wanted: &StepModel) -> Result<Arc<dyn Composing>, Status> {
        match lock(&self.0).get(&wanted.name) {
            Some(part) => Ok(Arc::clone(part) as Arc<dyn Composing>),
            None => Err(Status::not_found(format!("Request for unknown model: '{}' is not found", wanted.name))),
        }
    }
}

/// Receives the answers; and, where requests are at home here, their jobs.
#[derive(Default)]
struct Client {
    is_home: bool,
    jobs: Mutex<VecDeque<Box<dyn Job>>>,
    timed: Mutex<Vec<(u64, Box<dyn Job>)>>,
    /// What waits for the next turn.
    put_off: Mutex<VecDeque<Box<dyn Job>>>,
    answers: Mutex<BTreeMap<u64, Vec<Delivery>>>,
    /// Where it requests its outputs.
    destination: Mutex<OutputDestination>,
}

impl Sink for Client {
    fn deliver(&self, key: u64, delivery: Delivery) {
        lock(&self.answers).entry(key).or_default().push(delivery);
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }

    fn destination(&self, _key: u64, _query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        Ok(lock(&self.destination).clone())
    }

    fn at_home(&self, job: Box<dyn Job>) {
        match self.is_home {
            true => lock(&self.jobs).push_back(job),
            false => job.run(&mut &*self),
        }
    }
}

impl Home for &Client {
    fn wake(&mut self, wake_up: WakeUp) {
        wake_up.now();
    }

    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>) {
        if self.is_home {
            lock(&self.timed).push((at_ns, job));
        }
    }

    fn next_turn(&mut self, job: Box<dyn Job>) {
        lock(&self.put_off).push_back(job);
    }
}

impl Client {
    fn at_home() -> Arc<Client> {
        Arc::new(Client { is_home: true, ..Client::default() })
    }

    /// One job; false if there is none.
    fn work(&self) -> bool {
        let job = lock(&self.jobs).pop_front();
        let is_some = job.is_some();
        if let Some(job) = job {
            job.run(&mut &*self);
        }
        is_some
    }

    fn work_all(&self) {
        while self.work() {}
    }

    /// A turn of the shard that this is; false if there was nothing to do.
    fn turn(&self) -> bool {
        turn::begin_turn();
        let put_off = std::mem::take(&mut *lock(&self.put_off));
        let has_work = !put_off.is_empty() || !lock(&self.jobs).is_empty();
        put_off.into_iter().for_each(|job| job.run(&mut &*self));
        self.work_all();
        has_work
    }

    /// The answers so far: each response as `out=text out=text`, `!error`, `.` after the last, `-` for none.
    fn answered(&self, key: u64) -> String {
        let answers = lock(&self.answers);
        let show = |delivery: &Delivery| {
            let mut text = match &delivery.response {
                None => "-".to_owned(),
                Some(response) => match &response.error {
                    Some(status) => format!("!{}", status.message),
                    None => {
                        let outputs = response.outputs.iter();
                        let outputs = outputs.map(|output| format!("{}={}", output.name, text_of(&output.data)));
                        outputs.collect::<Vec<_>>().join(" ")
                    }
                },
            };
            text.push_str(if delivery.last { "." } else { "" });
            text
        };
        answers.get(&key).into_iter().flatten().map(show).collect::<Vec<_>>().join("; ")
    }
}

/// A request with the given inputs, `X=text`; its answers go to `client` under the key.
fn request_to(spec: &ModelSpec, client: &Arc<Client>, key: u64, inputs: &[(&str, &str)]) -> Box<Request> {
    let mut request = Box::new(Request::new(Completion::new(Arc::clone(client) as Arc<dyn Sink>, key)));
    for (name, text) in inputs {
        let shape = spec.is_batching().then_some(1).into_iter().chain([text.len() as i64]);
        let mut input = InputTensor::new(Text::from(*name), DataType::Uint8, shape.collect::<Shape>());
        input.data.push(Slice::copy_of(text.as_bytes()));
        request.inputs.push(input);
    }
    request.stamps.started_ns = now_ns();
    request
}

/// An ensemble and what its tests need.
struct Bench {
    ensemble: Ensemble,
    spec: ModelSpec,
    kitchen: Arc<Kitchen>,
    client: Arc<Client>,
    statistics: Arc<ModelStatistics>,
}

impl Bench {
    fn new(spec: ModelSpec, parts: Vec<ModelSpec>) -> Bench {
        let kitchen = Arc::new(Kitchen::default());
        parts.into_iter().for_each(|spec| drop(kitchen.add(spec)));
        let statistics: Arc<ModelStatistics> = Arc::default();
        let models = Arc::clone(&kitchen) as Arc<dyn Models>;
        let ensemble = Ensemble::new(&spec, models, Arc::clone(&statistics)).unwrap();
        Bench { ensemble, spec, kitchen, client: Client::at_home(), statistics }
    }

    fn part(&self, name: &str) -> Arc<Part> {
        Arc::clone(&lock(&self.kitchen.0)[name])
    }

    fn send(&self, key: u64, inputs: &[(&str, &str)]) -> Ticket {
        self.hand_in(request_to(&self.spec, &self.client, key, inputs))
    }

    fn hand_in(&self, mut request: Box<Request>) -> Ticket {
        validate(&mut request, &self.spec).unwrap();
        request.stamps.queued_ns = now_ns();
        let accepted = self.ensemble.enqueue(request).unwrap();
        accepted.wake_up.now();
        accepted.ticket
    }

    /// Makes the part answer its oldest request, and the ensemble continue.
    fn answer(&self, part: &str) {
        let part = self.part(part);
        let request = part.take().expect("a request waits");
        request.finish(response_of(&part, &request, ""));
        drop(request);
        self.client.work_all();
    }

    fn answered(&self, key: u64) -> String {
        self.client.answered(key)
    }

    fn waiting(&self, part: &str) -> usize {
        lock(&self.part(part).held).len()
    }

    /// Runs that are still referenced.
    fn runs(&self) -> usize {
        Arc::strong_count(&self.ensemble.0) - 1
    }
}
