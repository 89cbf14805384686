//! Copies of requests for a shadow version: which requests get one, the thread that submits them, and the comparison of
//! the two answers.
//!
//! A copy shares the memory of the inputs with its request. It is made before the request is submitted, and waits until
//! the client's answer has been passed on. Then the thread `traffic-shadow` submits it, waits for the answer of the
//! shadow version and compares. There is one such thread for each rule with a shadow version; shards and workers only
//! send to it, and never wait. A copy has its place from the start to the answer of the shadow version, and a request
//! that finds no place has no copy: what a shadow version that is slow or stuck can hold is bounded.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;

use super::choice::{is_within, random};
use super::compare::difference;
use super::counts::{Count, Families, ShadowResult};
use super::rule::{Rule, ShadowRule};
use nereid_clock::now_ns;
use nereid_memory::{BlockMut, Exhausted, Pool};
use nereid_observe::log::verbose;
use nereid_request::{
    Completion, Delivery, Home, InputTensor, Job, OutputTensor, Parameters, Request, RequestedOutput, Shape, Sink,
    Status, Text, Ticket, WakeUp,
};
use nereid_scheduler::{Accepted, Refused, ServedModel};
use nereid_wire::inference::model_config::SchedulingChoice;

/// Copies of one model's requests at a time.
pub const SHADOWS_MAX: usize = 64;
/// Bytes of inputs and answers that these keep.
pub const SHADOW_BYTES_MAX: usize = 64 << 20;
/// How long a shadow version may take for an answer.
const ANSWER_WITHIN_NS: u64 = 10_000_000_000;
/// How often the thread looks for copies that have waited too long, while there are any.
const TICK: Duration = Duration::from_millis(100);

/// The copies of one rule, as shards and workers see them.
pub struct Shadow {
    rule: ShadowRule,
    shared: Arc<Shared>,
    /// The thread ends when no sender is left.
    sender: Sender<Message>,
}

struct Shared {
    model: String,
    tolerance: f64,
    counts: [Count; ShadowResult::ALL.len()],
    places: Arc<Places>,
    pool: Pool,
}

impl Shared {
    fn count(&self, result: ShadowResult) {
        if let Some(count) = self.counts.get(result as usize) {
            count.add_one();
        }
    }
}

/// How many copies there are, and the bytes that they keep.
#[derive(Default)]
struct Places {
    taken: AtomicUsize,
    bytes: AtomicUsize,
}

fn take(number: &AtomicUsize, more: usize, most: usize) -> bool {
    let grown = |present: usize| present.checked_add(more).filter(|sum| *sum <= most);
    number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
}

/// The place of one copy, which is free again when it is dropped.
struct Place {
    places: Arc<Places>,
    bytes: usize,
}

impl Place {
    fn take(places: &Arc<Places>, bytes: usize) -> Option<Place> {
        if !take(&places.taken, 1, SHADOWS_MAX) {
            return None;
        }
        let mut place = Place { places: Arc::clone(places), bytes: 0 };
        place.grow(bytes).then_some(place)
    }

    fn grow(&mut self, bytes: usize) -> bool {
        let is_taken = take(&self.places.bytes, bytes, SHADOW_BYTES_MAX);
        self.bytes += if is_taken { bytes } else { 0 };
        is_taken
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.places.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A copy whose request has no answer yet.
pub struct Draft {
    place: Place,
    served: Weak<ServedModel>,
    id: Text,
    inputs: Vec<InputTensor>,
    outputs: Vec<RequestedOutput>,
    parameters: Parameters,
}

/// A copy with the answer that the client gets.
pub struct ReadyCopy {
    draft: Draft,
    expected: SmallVec<[OutputTensor; 2]>,
}

enum Message {
    /// With the way to the thread for the answer. The thread itself has none, so that it ends with the rule.
    Copy(Box<ReadyCopy>, Sender<Message>),
    Answered {
        key: u64,
        delivery: Delivery,
    },
    /// Work of a request that is at home on the thread.
    Job(Box<dyn Job>),
}

impl Shadow {
    /// Starts the thread. `model`: the name of the model.
    pub fn start(model: &str, rule: &Rule, families: &Families, pool: &Pool) -> Result<Option<Shadow>, Status> {
        let Some(shadow) = rule.shadow else { return Ok(None) };
        let version = shadow.version.to_string();
        let shared = Arc::new(Shared {
            model: model.to_owned(),
            tolerance: rule.tolerance,
            counts: ShadowResult::ALL.map(|result| families.shadows(model, &version, result)),
            places: Arc::default(),
            pool: pool.clone(),
        });
        let (sender, receiver) = channel();
        let worker =
            Worker { shared: Arc::clone(&shared), pending: HashMap::new(), issued: 0, timed: Timed::default() };
        let run = move || worker.run(&receiver);
        let cannot = |error| Status::unavailable(format!("cannot start a thread for shadow requests: {error}"));
        std::thread::Builder::new().name("traffic-shadow".to_owned()).spawn(run).map_err(cannot)?;
        Ok(Some(Shadow { rule: shadow, shared, sender }))
    }

    pub fn rule(&self) -> ShadowRule {
        self.rule
    }

    /// How often each result was.
    pub fn counts(&self) -> impl Iterator<Item = (ShadowResult, u64)> {
        ShadowResult::ALL.into_iter().zip(self.shared.counts.iter().map(Count::get))
    }

    /// Copies that are under way.
    pub fn in_flight(&self) -> usize {
        self.shared.places.taken.load(Ordering::Relaxed)
    }

    /// A copy of the request, if it is its turn and there is a place. `served`: the shadow version, if it is ready.
    pub fn draft(&self, request: &Request, served: Option<&Arc<ServedModel>>) -> Option<Draft> {
        if !is_within(random(), self.rule.share) {
            return None;
        }
        // Inputs that a client may still change, or that lie on a device, are not kept; nor is there anything to
        // compare with answers in several parts. A copy of some requests of a sequence would confuse the version's
        // sequences.
        let is_fit = request.shared.is_none()
            && !request.correlation_id.is_in_sequence()
            && request.inputs.iter().all(|input| input.placement.is_none());
        let Some(served) = served.filter(|served| is_fit && !served.spec.decoupled) else {
            self.shared.count(ShadowResult::Skipped);
            return None;
        };
        let bytes = request.inputs.iter().map(InputTensor::byte_size).fold(0, usize::saturating_add);
        let Some(place) = Place::take(&self.shared.places, bytes) else {
            self.shared.count(ShadowResult::Busy);
            return None;
        };
        let copied = |input: &InputTensor| {
            let shape = Shape::from_slice(&input.shape);
            let mut copy = InputTensor::new(input.name.clone(), input.datatype, shape);
            copy.data.clone_from(&input.data);
            copy
        };
        Some(Draft {
            place,
            served: Arc::downgrade(served),
            id: request.id.clone(),
            inputs: request.inputs.iter().map(copied).collect(),
            outputs: request.outputs.clone(),
            parameters: request.parameters.clone(),
        })
    }

    /// The copy with the client's answer, which is about to be passed on.
    pub fn complete(&self, mut draft: Draft, outputs: &SmallVec<[OutputTensor; 2]>) -> Option<ReadyCopy> {
        let bytes = outputs.iter().map(OutputTensor::byte_size).fold(0, usize::saturating_add);
        if outputs.iter().any(|output| output.on_device.is_some()) {
            self.skip();
            return None;
        }
        if !draft.place.grow(bytes) {
            self.shared.count(ShadowResult::Busy);
            return None;
        }
        Some(ReadyCopy { draft, expected: outputs.clone() })
    }

    /// A request has no answer that a copy could be compared with.
    pub fn skip(&self) {
        self.shared.count(ShadowResult::Skipped);
    }

    /// Has a copy submitted.
    pub fn send(&self, copy: ReadyCopy) {
        if self.sender.send(Message::Copy(Box::new(copy), self.sender.clone())).is_err() {
            self.shared.count(ShadowResult::Error);
        }
    }
}

/// Where a copy is answered: the thread.
struct ShadowSink {
    sender: Sender<Message>,
    pool: Pool,
}

impl Sink for ShadowSink {
    fn deliver(&self, key: u64, delivery: Delivery) {
        // Without the thread nothing waits for the answer.
        let _ = self.sender.send(Message::Answered { key, delivery });
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.pool.get(byte_size)
    }

    fn at_home(&self, job: Box<dyn Job>) {
        let _ = self.sender.send(Message::Job(job));
    }
}

/// Keeps the shadow version without being a request that the server's end waits for.
struct Pin(Arc<ServedModel>);

impl Pin {
    fn of(served: Arc<ServedModel>) -> Pin {
        served.pins.fetch_add(1, Ordering::SeqCst);
        Pin(served)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A copy that the shadow version has.
struct Pending {
    pin: Pin,
    ticket: Ticket,
    /// When the scheduler wants to be told that its time in the queue is over.
    expires_at_ns: Option<u64>,
    submitted_ns: u64,
    /// What it is compared with; none: it is counted already.
    expected: Option<SmallVec<[OutputTensor; 2]>>,
    #[expect(dead_code, reason = "dropped for its effect")]
    place: Place,
}

/// The state of the thread.
struct Worker {
    shared: Arc<Shared>,
    pending: HashMap<u64, Pending>,
    issued: u64,
    timed: Timed,
}

/// The thread as the home of the copies.
#[derive(Default)]
struct Timed(Vec<(u64, Box<dyn Job>)>);

impl Home for Timed {
    fn wake(&mut self, wake_up: WakeUp) {
        wake_up.now();
    }

    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>) {
        self.0.push((at_ns, job));
    }
}

impl Worker {
    fn run(mut self, receiver: &Receiver<Message>) {
        loop {
            let is_idle = self.pending.is_empty() && self.timed.0.is_empty();
            let message = match is_idle {
                true => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => receiver.recv_timeout(TICK),
            };
            match message {
                Ok(message) => {
                    // A panic costs one copy.
                    let _ = catch_unwind(AssertUnwindSafe(|| self.take(message)));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.check_times(now_ns());
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Copy(copy, sender) => self.submit(*copy, sender),
            Message::Answered { key, delivery } => self.answered(key, delivery),
            Message::Job(job) => job.run(&mut self.timed),
        }
    }

    fn submit(&mut self, copy: ReadyCopy, sender: Sender<Message>) {
        let ReadyCopy { draft, expected } = copy;
        let Draft { place, served, id, inputs, outputs, parameters } = draft;
        let Some(served) = served.upgrade() else { return self.shared.count(ShadowResult::Skipped) };
        self.issued += 1;
        let key = self.issued;
        let sink = Arc::new(ShadowSink { sender, pool: self.shared.pool.clone() });
        let mut request = Box::new(Request::new(Completion::new(sink, key)));
        request.id = id;
        request.inputs = inputs;
        request.outputs = outputs;
        request.parameters = parameters;
        request.queueing.priority = lowest_priority(&served);
        request.stamps.received_ns = now_ns();
        let pin = Pin::of(served);
        match pin.0.submit(request) {
            Ok(Accepted { wake_up, ticket, expires_at_ns }) => {
                wake_up.now();
                let (submitted_ns, expected) = (now_ns(), Some(expected));
                // Its answer is a message, which is read later.
                self.pending.insert(key, Pending { pin, ticket, expires_at_ns, submitted_ns, expected, place });
            }
            Err(Refused { status, request }) => {
                request.withdraw();
                self.log(&status.message);
                self.shared.count(ShadowResult::Error);
            }
        }
    }

    fn answered(&mut self, key: u64, delivery: Delivery) {
        let Some(pending) = self.pending.get_mut(&key) else { return };
        if let (Some(response), Some(expected)) = (delivery.response, pending.expected.take()) {
            let result = match &response.error {
                Some(status) => {
                    self.log(&status.message);
                    ShadowResult::Error
                }
                None => match difference(&expected, &response.outputs, self.shared.tolerance) {
                    None => ShadowResult::Equal,
                    Some(difference) => {
                        self.log(&difference);
                        ShadowResult::Different
                    }
                },
            };
            self.shared.count(result);
        }
        if delivery.last
            && let Some(Pending { ticket, expected, .. }) = self.pending.remove(&key)
        {
            if expected.is_some() {
                self.log("it ended without an answer");
                self.shared.count(ShadowResult::Error);
            }
            ticket.retire();
        }
    }

    fn log(&self, what: &str) {
        verbose!(1, "the shadow of a request to model '{}': {what}", self.shared.model);
    }

    /// Runs jobs that are due, and gives up copies that have waited too long. These keep their places until the version
    /// answers, so that no more of them come to it than it may have.
    fn check_times(&mut self, now_ns: u64) {
        let mut at = 0;
        while let Some((due_ns, _)) = self.timed.0.get(at) {
            if *due_ns <= now_ns {
                let (_, job) = self.timed.0.swap_remove(at);
                let _ = catch_unwind(AssertUnwindSafe(|| job.run(&mut self.timed)));
            } else {
                at += 1;
            }
        }
        for pending in self.pending.values_mut() {
            let scheduler = &pending.pin.0.scheduler;
            if pending.expires_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                pending.expires_at_ns = None;
                scheduler.expire(&pending.ticket).now();
            }
            if pending.expected.is_some() && pending.submitted_ns.saturating_add(ANSWER_WITHIN_NS) <= now_ns {
                pending.expected = None;
                self.shared.count(ShadowResult::Timeout);
                scheduler.cancel(&pending.ticket).now();
            }
        }
    }
}

/// The level behind all others, where the version has levels.
fn lowest_priority(served: &ServedModel) -> u64 {
    match &served.spec.config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => batching.priority_levels,
        _ => 0,
    }
}
