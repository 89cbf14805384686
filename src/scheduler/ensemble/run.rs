//! One request of an ensemble, from its acceptance to its last response.
//!
//! Each thing that happens to it becomes an event in its inbox, be it from a worker that answers a step or from a
//! limiter that has room. The thread that puts in the first event has the run advanced: by a job that it posts to the
//! request's home, or by itself, if it is a worker that has answered a step (see [`hand_over`]). There the events are
//! handled one after the other, so that the state of a run has one user at a time.

mod answers;
mod destinations;
mod steps;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use smallvec::SmallVec;

use super::driver::Advance;
use super::flow::{Credits, Due, Flow, Sequence, Value};
use super::plan::Route;
use super::turn::{self, Place};
use super::{Composing, EnsembleInner, driver, hand_over};
use crate::mutants::{self, Mutant};
use nereid_memory::{BlockMut, Exhausted};
use nereid_request::shared::OutputDestination;
use nereid_request::{
    ByNumber, Delivery, Home, Job, OutputQuery, Request, ResponseFactory, Sink, Status, Ticket, TimeSums, Times,
};
use nereid_wire::inference::model_config::SchedulingChoice;

/// Requests to steps that one run has in flight at a time; further ones wait in the run.
const IN_FLIGHT_MAX: usize = 1024;
/// Responses of steps that wait in a run, for other tensors, for room in flight, or to be handled. A decoupled step
/// that is so far ahead of its readers ends the request.
const WAITING_MAX: usize = 16_384;
/// Responses of a decoupled step to one request that the ensemble's client has not received yet, at most. Where the
/// client may have fewer in flight, the same holds for the step.
const RESPONSES_MAX: u32 = 64;
/// Events that are handled before other jobs at the same home have their turn.
const EVENTS_AT_ONCE: usize = 64;

/// See the [module](self).
pub struct Run {
    me: Weak<Run>,
    shared: Arc<EnsembleInner>,
    request: Box<Request>,
    /// Ends the request; the run itself may have to wait for steps that are not released yet.
    responses: ResponseFactory,
    /// By step; none for those that are not needed. Kept to the end, so that an accepted request is finished with the
    /// models that it began with.
    models: Vec<Option<Arc<dyn Composing>>>,
    route: Route,
    /// The request must not overtake others, of its sequence or of its step in another ensemble: its steps keep to one
    /// way, from home to the workers.
    keeps_order: bool,
    times: Arc<Times>,
    /// The part of the times that was counted with the success.
    counted: Mutex<Option<TimeSums>>,
    inbox: Mutex<Inbox>,
    /// Used only by the thread that advances the run, so no thread waits for it.
    state: Mutex<RunState>,
}

/// Which thread handles the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Schedule {
    /// None: there are no events.
    Idle,
    /// A worker will, once it has returned from its execution, unless another event comes before that.
    Kept,
    /// A thread is scheduled to handle them, or handles them.
    Scheduled,
}

struct Inbox {
    events: VecDeque<Event>,
    schedule: Schedule,
    /// More events came than could be kept.
    is_overfull: bool,
}

#[derive(Debug)]
enum Event {
    Begin,
    Delivered {
        key: u64,
        delivery: Delivery,
    },
    Cancelled,
    /// The limiter of a step has room for the step that waits, or waited, under this key.
    Granted {
        key: u64,
        step: usize,
    },
    /// It has had no room for too long, and has left the queue.
    Overdue {
        key: u64,
    },
    /// The time of a step in its model's queue is up.
    Expired {
        key: u64,
    },
}

struct RunState {
    flow: Flow,
    /// Requests to steps that have not ended, by their keys.
    in_flight: BTreeMap<u64, InFlight>,
    /// Steps that wait for a limiter, by key.
    waiting_steps: BTreeMap<u64, WaitingStep>,
    /// Steps that wait for room in flight, or for the next turn of their shard.
    queued: VecDeque<(usize, Vec<Option<Value>>)>,
    /// The run goes on in the next turn of its shard.
    waits_for_turn: bool,
    /// Number of the next request to a step.
    next_number: u64,
    /// A model has accepted a request to a step.
    has_begun: bool,
    /// The first error; no step begins after it.
    error: Option<Status>,
    is_cancelled: bool,
    responses: u64,
    has_ended: bool,
    /// The reference of timers to the run, once there are any.
    timer_target: Option<Arc<TimerTarget>>,
}

/// What a timer refers to instead of a whole run, which may be over long before.
struct TimerTarget(Mutex<Weak<Run>>);

struct InFlight {
    step: usize,
    /// Set as soon as the step's scheduler has returned it.
    ticket: Option<Ticket>,
    sequence: Sequence,
    is_sequence_overridden: bool,
    /// Of the values that it was made from; its outputs get them too.
    credits: Credits,
    /// The limiter counts it.
    has_room: bool,
}

struct WaitingStep {
    step: usize,
    inputs: Vec<Option<Value>>,
    place: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run {
    /// The models are chosen now; if one of them is not ready, the run fails when it is first advanced.
    pub(super) fn new(shared: &Arc<EnsembleInner>, request: Box<Request>) -> Arc<Run> {
        let plan = &shared.plan;
        let mut route = plan.route(&request);
        let mut models: Vec<Option<Arc<dyn Composing>>> = Vec::with_capacity(plan.steps.len());
        let mut error = None;
        for (step, is_needed) in plan.steps.iter().zip(&route.is_needed) {
            let found = is_needed.then(|| shared.models.find(&step.model)).transpose();
            models.push(found.unwrap_or_else(|status| {
                error.get_or_insert(status);
                None
            }));
        }
        let is_decoupled = |step: usize| models[step].as_ref().is_some_and(|model| model.spec().decoupled);
        route.follow(plan, is_decoupled);
        let state = RunState {
            flow: Flow::new(plan),
            in_flight: BTreeMap::new(),
            waiting_steps: BTreeMap::new(),
            queued: VecDeque::new(),
            waits_for_turn: false,
            next_number: 0,
            has_begun: false,
            error,
            is_cancelled: false,
            responses: 0,
            has_ended: false,
            timer_target: None,
        };
        let batches_sequences = |model: &Arc<dyn Composing>| {
            matches!(model.spec().config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)))
        };
        let keeps_order = request.ingress.keeps_order
            || request.correlation_id.is_in_sequence()
            || models.iter().flatten().any(batches_sequences);
        let (events, schedule) = (VecDeque::from([Event::Begin]), Schedule::Scheduled);
        let inbox = Inbox { events, schedule, is_overfull: false };
        Arc::new_cyclic(|me| Run {
            me: Weak::clone(me),
            shared: Arc::clone(shared),
            responses: request.responses(),
            request,
            models,
            route,
            keeps_order,
            times: Arc::default(),
            counted: Mutex::default(),
            inbox: Mutex::new(inbox),
            state: Mutex::new(state),
        })
    }

    pub(super) fn at_home(&self, job: Box<dyn Job>) {
        self.request.at_home(job);
    }

    /// The request was cancelled.
    pub(super) fn cancel(&self) {
        self.post(Event::Cancelled);
    }

    /// The step under `key` has waited too long, and its limiter does not count it.
    pub(super) fn overdue(&self, key: u64) {
        self.post(Event::Overdue { key });
    }

    fn post(&self, event: Event) {
        self.post_from(event, |_| None);
    }

    /// `take`: called if the run is idle; what the calling thread will do with it, if it does not go home.
    fn post_from(&self, event: Event, take: impl FnOnce(&Arc<Run>) -> Option<Schedule>) {
        let goes_home = {
            let mut inbox = lock(&self.inbox);
            let event = match event {
                Event::Delivered { key, delivery } if inbox.events.len() >= WAITING_MAX => {
                    inbox.is_overfull = true;
                    // The end of a step must not be lost.
                    let bare = Delivery { response: None, last: true };
                    delivery.last.then_some(Event::Delivered { key, delivery: bare })
                }
                event => Some(event),
            };
            inbox.events.extend(event);
            if inbox.events.is_empty() || inbox.schedule == Schedule::Scheduled {
                return;
            }
            let Some(me) = self.me.upgrade() else { return };
            let taken = if inbox.schedule == Schedule::Idle { take(&me) } else { None };
            inbox.schedule = taken.unwrap_or(Schedule::Scheduled);
            taken.is_none().then_some(me)
        };
        if let Some(me) = goes_home {
            me.go_home();
        }
    }

    /// Has the run, which is scheduled, advanced where its request is at home.
    pub(super) fn go_home(self: Arc<Self>) {
        let me = Arc::clone(&self);
        self.at_home(Box::new(Advance(me)));
    }

    /// A worker takes the run that it has kept; false if it has gone home meanwhile.
    pub(super) fn claim(&self) -> bool {
        let mut inbox = lock(&self.inbox);
        let is_kept = inbox.schedule == Schedule::Kept;
        if is_kept {
            inbox.schedule = Schedule::Scheduled;
        }
        is_kept
    }

    /// What the calling thread does with the run, which was idle, because of this answer of a step.
    fn taken_by_answer(me: &Arc<Run>, step: usize, is_whole: bool) -> Option<Schedule> {
        if me.keeps_order {
            return None;
        }
        if turn::place() != Place::Elsewhere && driver::is_next(me) {
            return Some(Schedule::Scheduled);
        }
        let is_followed = me.shared.plan.steps.get(step).is_some_and(|step| step.is_followed);
        let is_decoupled = || me.models[step].as_ref().is_none_or(|model| model.spec().decoupled);
        (is_whole && is_followed && !is_decoupled() && hand_over::keep(me)).then_some(Schedule::Kept)
    }

    /// Handles events. Runs on one thread at a time: on the one that was scheduled.
    pub(super) fn advance(self: &Arc<Self>, home: &mut dyn Home) {
        let mut state = lock(&self.state);
        let mut resumes = std::mem::take(&mut state.waits_for_turn);
        for _ in 0..EVENTS_AT_ONCE {
            let (event, is_overfull) = {
                let mut inbox = lock(&self.inbox);
                let event = inbox.events.pop_front();
                if event.is_none() && !resumes {
                    // First: the thread that has the run next may be a shard, which must not wait for this one.
                    drop(state);
                    inbox.schedule = Schedule::Idle;
                    return;
                }
                (event, inbox.is_overfull)
            };
            if is_overfull {
                self.overflow(&mut state, home);
            }
            match event {
                Some(event) => self.handle(&mut state, event, home),
                None => {
                    resumes = false;
                    self.settle(&mut state, Vec::new(), home);
                }
            }
            if state.waits_for_turn {
                drop(state);
                return home.next_turn(Box::new(Advance(Arc::clone(self))));
            }
        }
        state.waits_for_turn = resumes;
        drop(state);
        Arc::clone(self).go_home();
    }

    /// Advancing the run has panicked: ends it with an error, and gives back what it holds.
    pub(super) fn abandon(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let in_flight = std::mem::take(&mut state.in_flight);
        in_flight.values().filter(|one| one.has_room).for_each(|one| self.leave(one.step));
        self.forget_waiting(&mut state);
        if !state.has_ended {
            state.error.get_or_insert_with(|| Status::internal("the ensemble failed while it handled the request"));
            self.end(&mut state);
        }
        drop(state);
        // Answers of its steps may still come, and rooms that limiters have given it.
        Arc::clone(self).go_home();
        // Last, because the models are not ours: one that panics must not prevent anything else.
        for one in in_flight.into_values() {
            if let (Some(ticket), Some(model)) = (&one.ticket, &self.models[one.step]) {
                model.cancel(ticket).now();
            }
        }
    }

    fn handle(self: &Arc<Self>, state: &mut RunState, event: Event, home: &mut dyn Home) {
        let mut due = Vec::new();
        match event {
            Event::Begin => self.begin(state, &mut due),
            Event::Delivered { key, delivery } => self.delivered(state, key, delivery, &mut due),
            Event::Cancelled => self.cancelled(state, home),
            Event::Granted { key, step } => self.granted(state, key, step, home),
            Event::Overdue { key } => self.go_on_without(state, key, home),
            Event::Expired { key } => self.expired(state, key, home),
        }
        self.settle(state, due, home);
    }

    /// The ensemble's inputs are the first tensors that arrive.
    fn begin(&self, state: &mut RunState, due: &mut Vec<Due>) {
        let plan = &self.shared.plan;
        if state.error.is_some() {
            return;
        }
        let inputs = ByNumber::new(&self.request.inputs);
        for (index, &tensor) in plan.inputs.iter().enumerate() {
            let given = inputs.get(index);
            let value = given.map(|input| Value {
                datatype: input.datatype,
                shape: input.model_shape.clone(),
                data: input.data.clone(),
                on_device: input.on_device().cloned().map(Box::new),
                is_batched: plan.is_batching,
                sequence: None,
                is_sequence_overridden: false,
                credits: Credits::new(),
            });
            state.flow.arrive(plan, &self.route, tensor, value, due);
        }
    }

    /// Handles an answer of a step.
    fn delivered(&self, state: &mut RunState, key: u64, delivery: Delivery, due: &mut Vec<Due>) {
        let Some(one) = state.in_flight.get(&key) else { return };
        let step = one.step;
        if let Some(mut response) = delivery.response {
            match response.error.take() {
                Some(error) => {
                    if mutants::is(Mutant::ErrorForgotten) {
                        let outputs = &self.shared.plan.steps[step].outputs;
                        outputs.iter().for_each(|(_, tensor)| {
                            state.flow.arrive(&self.shared.plan, &self.route, *tensor, None, due);
                        });
                    } else {
                        state.error.get_or_insert(error);
                    }
                }
                None if state.error.is_none() && !state.has_ended => match self.values_of(one, &mut response) {
                    Ok(values) => {
                        for (tensor, value) in values {
                            state.flow.arrive(&self.shared.plan, &self.route, tensor, value, due);
                        }
                    }
                    Err(status) => state.error = Some(status),
                },
                None => {}
            }
            response.retire();
        }
        if delivery.last {
            let is_failed = state.error.is_some();
            if let Some(one) = state.in_flight.remove(&key) {
                if one.has_room && !(is_failed && mutants::is(Mutant::SlotLeaked)) {
                    self.leave(step);
                }
                one.ticket.into_iter().for_each(Ticket::retire);
            }
        }
    }

    /// Begins the steps that have become possible, sends complete responses, and ends the run when nothing is left.
    fn settle(self: &Arc<Self>, state: &mut RunState, due: Vec<Due>, home: &mut dyn Home) {
        if state.has_ended {
            return;
        }
        let mut complete: SmallVec<[Vec<Option<Value>>; 1]> = SmallVec::new();
        for due in due {
            match due {
                Due::Step { step, inputs } => self.launch(state, step, inputs, home),
                Due::Response { values } => complete.push(values),
            }
        }
        self.launch_queued(state, home);
        if state.flow.kept() + state.queued.len() + state.waiting_steps.len() > WAITING_MAX {
            self.overflow(state, home);
        }
        if state.error.is_some() {
            self.forget_waiting(state);
            complete.clear();
        }
        let is_over = state.in_flight.is_empty() && state.waiting_steps.is_empty() && state.queued.is_empty();
        let last = complete.pop();
        for values in complete {
            self.respond(state, &values, false);
        }
        if let Some(values) = last {
            self.respond(state, &values, is_over);
        } else if is_over {
            self.end(state);
        }
    }

    /// A decoupled step is too far ahead of its readers.
    fn overflow(&self, state: &mut RunState, home: &mut dyn Home) {
        if state.error.is_none() {
            let text = format!("more than {WAITING_MAX} responses of composing models wait for the steps after them");
            state.error = Some(Status::unavailable(text));
            self.cancel_steps(state, home);
        }
    }
}

impl Sink for Run {
    fn deliver(&self, key: u64, delivery: Delivery) {
        let response = delivery.response.as_ref();
        let is_whole = delivery.last && response.is_some_and(|response| response.error.is_none());
        let step = self.step_of(key);
        self.post_from(Event::Delivered { key, delivery }, |me| Run::taken_by_answer(me, step, is_whole));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.request.allocate(byte_size)
    }

    fn destination(&self, key: u64, query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        Ok(self.step_destination(self.step_of(key), query))
    }

    fn at_home(&self, job: Box<dyn Job>) {
        self.request.at_home(job);
    }
}

impl Drop for Run {
    /// Backends may report the times of a request after they answered it; by now all have.
    fn drop(&mut self) {
        let counted = self.counted.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(counted) = counted {
            let sums = self.times.sums();
            let late = sums.since(&counted);
            if late != TimeSums::default() {
                self.shared.statistics.composed_late(&answers::counted(&late));
                if let Some(times) = &self.request.links.times {
                    times.add(&late);
                }
            }
            self.shared.statistics.composed_ended(&answers::counted(&sums));
        }
    }
}
