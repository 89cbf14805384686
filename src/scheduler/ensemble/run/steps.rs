//! Requests to steps: when they are made, when they must wait, and how they are cancelled.

use std::sync::{Arc, Mutex};

use tracing::error;

use super::{Event, IN_FLIGHT_MAX, InFlight, RESPONSES_MAX, Run, RunState, TimerTarget, WaitingStep, lock};
use crate::ensemble::Composing;
use crate::ensemble::flow::{Credits, Sequence, Value, add_credits};
use crate::ensemble::limiter::{Limiter, STEP_WAIT_MAX_NS, Waiter};
use crate::ensemble::shapes::adapt;
use crate::ensemble::turn::{self, Place};
use crate::{Accepted, Refused};
use nereid_clock::now_ns;
use nereid_model_config::ModelSpec;
use nereid_request::{
    Completion, Home, InputPlacement, InputTensor, Observation, Request, SEQUENCE_START, Sink, Status,
};
use nereid_wire::inference::model_config::SchedulingChoice;

impl Run {
    /// Makes the request to a step that has its inputs, or queues it.
    pub(super) fn launch(
        self: &Arc<Self>,
        state: &mut RunState,
        step: usize,
        inputs: Vec<Option<Value>>,
        home: &mut dyn Home,
    ) {
        if state.error.is_some() {
            return;
        }
        if state.is_cancelled {
            state.error = Some(Status::cancelled(""));
            return;
        }
        if state.in_flight.len() >= IN_FLIGHT_MAX || !state.queued.is_empty() || self.is_put_off(step) {
            state.queued.push_back((step, inputs));
            return;
        }
        self.enter(state, step, inputs, home);
    }

    /// Makes the requests that waited until less was in flight, or for a turn.
    pub(super) fn launch_queued(self: &Arc<Self>, state: &mut RunState, home: &mut dyn Home) {
        while state.in_flight.len() < IN_FLIGHT_MAX && state.error.is_none() {
            let Some((step, _)) = state.queued.front() else { return };
            if self.is_put_off(*step) {
                state.waits_for_turn = true;
                return;
            }
            let Some((step, inputs)) = state.queued.pop_front() else { return };
            self.enter(state, step, inputs, home);
        }
    }

    /// Whether the request to a step waits for the next turn of this shard, which might execute it then. One that only
    /// workers execute gains nothing by that.
    fn is_put_off(&self, step: usize) -> bool {
        turn::place() == Place::Shard
            && turn::is_spent()
            && self.fits_here(step)
            && self.models[step].as_ref().is_some_and(|model| model.may_run_here())
    }

    /// Whether this thread may execute a step, as long as it has not executed too much. A decoupled one may have to
    /// wait for the readers of its responses, which only a worker can. One behind a decoupled step runs for several
    /// values, and a later one must not overtake one that a worker has taken, but not executed yet.
    fn fits_here(&self, step: usize) -> bool {
        let is_place = match turn::place() {
            Place::Shard => self.request.ingress.is_on_shard,
            Place::Worker => true,
            Place::Elsewhere => false,
        };
        let is_alone = !self.keeps_order && self.route.runs_once(step);
        is_place && is_alone && self.models[step].as_ref().is_some_and(|model| !model.spec().decoupled)
    }

    fn enter(self: &Arc<Self>, state: &mut RunState, step: usize, inputs: Vec<Option<Value>>, home: &mut dyn Home) {
        let key = self.key_of(state.next_number, step);
        state.next_number += 1;
        let Some(limiter) = self.limiter(step) else { return self.submit(state, key, step, &inputs, false, home) };
        match limiter.enter(self, key, home) {
            None => self.submit(state, key, step, &inputs, true, home),
            Some(place) => drop(state.waiting_steps.insert(key, WaitingStep { step, inputs, place })),
        }
    }

    fn limiter(&self, step: usize) -> Option<&Arc<Limiter>> {
        self.shared.limiters[step].as_ref()
    }

    /// Gives the room of a step back, and notifies the run that has it now.
    pub(super) fn leave(&self, step: usize) {
        if let Some(Waiter { run, key, .. }) = self.limiter(step).and_then(|limiter| limiter.leave()) {
            run.post(Event::Granted { key, step });
        }
    }

    /// The limiter counts the step that waited under `key`.
    pub(super) fn granted(self: &Arc<Self>, state: &mut RunState, key: u64, step: usize, home: &mut dyn Home) {
        match state.waiting_steps.remove(&key) {
            Some(WaitingStep { step, inputs, .. }) if state.error.is_none() && !state.is_cancelled => {
                self.submit(state, key, step, &inputs, true, home);
            }
            _ => self.leave(step),
        }
    }

    pub(super) fn go_on_without(self: &Arc<Self>, state: &mut RunState, key: u64, home: &mut dyn Home) {
        let Some(WaitingStep { step, inputs, .. }) = state.waiting_steps.remove(&key) else { return };
        let (name, max) = (&self.shared.plan.name, self.shared.plan.in_flight_max);
        let in_flight = self.limiter(step).map_or(max, |limiter| limiter.in_flight());
        let request_id = &self.request.id;
        error!(
            %request_id,
            "[Internal Error] Ensemble '{name}' unable to schedule step {step} (inflight: {in_flight} >= limit: {max}) \
             for {} seconds. Proceeding to avoid deadlock.",
            STEP_WAIT_MAX_NS / 1_000_000_000
        );
        self.submit(state, key, step, &inputs, false, home);
    }

    fn submit(
        self: &Arc<Self>,
        state: &mut RunState,
        key: u64,
        step: usize,
        inputs: &[Option<Value>],
        has_room: bool,
        home: &mut dyn Home,
    ) {
        // Every step of the route has its model, or the run would have an error.
        let Some(model) = self.models[step].clone() else { return };
        let (sequence, is_sequence_overridden) = self.sequence_of(&*model, inputs);
        let mut credits = Credits::new();
        inputs.iter().flatten().for_each(|value| add_credits(&mut credits, &value.credits));
        // Before anything of the model runs: if that panics, the room is given back with what is in flight.
        let one =
            InFlight { step, ticket: None, sequence: sequence.clone(), is_sequence_overridden, credits, has_room };
        state.in_flight.insert(key, one);
        let mut request = self.request_to(step, &*model, key, inputs, sequence);
        request.ingress.continues_sequence = self.continues_sequence(state, &request);
        let fits_here = self.fits_here(step) && !turn::is_spent();
        request.ingress.is_on_shard = fits_here;
        request.ingress.keeps_order = self.keeps_order || !self.route.runs_once(step);
        let began_ns = request.stamps.received_ns;
        match model.submit(request) {
            Ok(Accepted { wake_up, ticket, expires_at_ns }) => {
                state.has_begun = true;
                home.wake(wake_up);
                if ticket.has_run_here {
                    turn::executed(now_ns().saturating_sub(began_ns));
                }
                if let Some(one) = state.in_flight.get_mut(&key) {
                    one.ticket = Some(ticket);
                }
                if let Some(at_ns) = expires_at_ns {
                    let timer_target = state
                        .timer_target
                        .get_or_insert_with(|| Arc::new(TimerTarget(Mutex::new(Arc::downgrade(self)))));
                    let timer_target = Arc::clone(timer_target);
                    let expired = move |_: &mut dyn Home| {
                        let run = lock(&timer_target.0).upgrade();
                        if let Some(run) = run {
                            run.post(Event::Expired { key });
                        }
                    };
                    home.run_at(at_ns, Box::new(expired));
                }
            }
            Err(Refused { status, request }) => {
                request.withdraw();
                state.in_flight.remove(&key);
                state.error.get_or_insert(status);
                if has_room {
                    self.leave(step);
                }
            }
        }
    }

    /// Whether the client's sequence would suffer if `request` to a step were refused: models may have executed other
    /// requests of it, of this request of the ensemble or of one before it, and a repetition would reach them twice.
    fn continues_sequence(&self, state: &RunState, request: &Request) -> bool {
        let ours = &self.request;
        let is_in_sequence = ours.correlation_id.is_in_sequence() || request.correlation_id.is_in_sequence();
        let has_begun = state.has_begun || ours.flags & SEQUENCE_START == 0;
        ours.ingress.continues_sequence || is_in_sequence && has_begun
    }

    /// The sequence that the request to a step names, and whether its inputs do so in place of the client's request
    /// (contract/schedulers.md section 5, "passed on").
    fn sequence_of(&self, model: &dyn Composing, inputs: &[Option<Value>]) -> (Sequence, bool) {
        let ours = &self.request;
        let named = inputs.iter().flatten().filter(|value| value.is_sequence_overridden);
        let mut named = named.filter_map(|value| value.sequence.as_ref());
        let Some(first) = named.next() else {
            return (Sequence { id: ours.correlation_id.clone(), flags: ours.flags }, false);
        };
        if named.any(|other| other != first) {
            let (log_id, model, Sequence { id, flags }) = (ours.log_id(), &model.spec().name, first);
            error!(
                "{log_id}Different set of response parameters are set for '{model}'. Parameter correlation ID {id}, \
                 flags {flags} is used."
            );
        }
        (first.clone(), true)
    }

    /// The request to a step.
    fn request_to(
        self: &Arc<Self>,
        step: usize,
        model: &dyn Composing,
        key: u64,
        inputs: &[Option<Value>],
        sequence: Sequence,
    ) -> Box<Request> {
        let ours = &self.request;
        let spec = model.spec();
        let plan = &self.shared.plan.steps[step];
        let sink = Arc::clone(self) as Arc<dyn Sink>;
        let mut request = match turn::place() {
            Place::Shard => Request::recycled(sink, key),
            Place::Worker | Place::Elsewhere => Box::new(Request::new(Completion::new(sink, key))),
        };
        for ((name, _), value) in plan.inputs.iter().zip(inputs) {
            let Some(value) = value else { continue };
            let config = std::str::from_utf8(name.as_bytes()).ok().and_then(|name| spec.input_index(name));
            let dims = config.and_then(|index| spec.inputs.get(index)).map_or(&[][..], |input| &input.dims);
            let shape = adapt(&value.shape, value.is_batched, spec.is_batching(), dims);
            let mut input = InputTensor::new(name.clone(), value.datatype, shape);
            input.data = value.data.clone();
            input.placement = value.on_device.as_ref().map(|slice| {
                Box::new(InputPlacement { on_device: Some((**slice).clone()), ..InputPlacement::default() })
            });
            request.inputs.push(input);
        }
        let outputs =
            plan.outputs.iter().map(|(name, _)| nereid_request::RequestedOutput { name: name.clone(), index: 0 });
        request.outputs.extend(outputs);
        request.id = ours.id.clone();
        request.parameters = ours.parameters.clone();
        request.correlation_id = sequence.id;
        request.flags = sequence.flags;
        request.queueing = ours.queueing;
        request.ingress.origin = ours.ingress.origin;
        request.stamps.received_ns = now_ns();
        request.links.times = Some(Arc::clone(&self.times));
        request.observer = ours.observer.as_ref().and_then(|observer| observer.child()).map(Observation::new);
        if self.may_hold_back(step, spec) {
            request.limit_responses(RESPONSES_MAX.min(ours.limit_of_responses().unwrap_or(u32::MAX)));
        }
        request
    }

    /// Whether a step may wait for those after it. Not if they could wait for it in turn: for an instance of the same
    /// model, which may be hidden in another ensemble, or for resources that it keeps while it is executed. Then the
    /// bound on values that wait in the run applies alone.
    fn may_hold_back(&self, step: usize, spec: &ModelSpec) -> bool {
        let keeps_resources = spec.config.instance_group.iter().any(|group| {
            let limiter = group.rate_limiter.as_ref();
            limiter.is_some_and(|limiter| !limiter.resources.is_empty())
        });
        let is_ensemble =
            |spec: &ModelSpec| matches!(spec.config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
        let meets =
            |other: &ModelSpec| other.decoupled && (other.name == spec.name || is_ensemble(other) || is_ensemble(spec));
        let mut others = self.models.iter().enumerate().filter(|(at, _)| *at != step);
        spec.decoupled && !keeps_resources && !others.any(|(_, other)| other.as_ref().is_some_and(|o| meets(o.spec())))
    }

    /// The request was cancelled: cancels the steps in flight, and begins no others.
    pub(super) fn cancelled(&self, state: &mut RunState, home: &mut dyn Home) {
        state.is_cancelled = true;
        self.cancel_steps(state, home);
        let has_waiting = !state.waiting_steps.is_empty() || !state.queued.is_empty();
        if !state.has_ended && has_waiting {
            state.error.get_or_insert(Status::cancelled(""));
        }
    }

    pub(super) fn cancel_steps(&self, state: &RunState, home: &mut dyn Home) {
        for one in state.in_flight.values() {
            if let (Some(ticket), Some(model)) = (&one.ticket, &self.models[one.step]) {
                home.wake(model.cancel(ticket));
            }
        }
    }

    pub(super) fn expired(&self, state: &RunState, key: u64, home: &mut dyn Home) {
        if let Some(one) = state.in_flight.get(&key)
            && let (Some(ticket), Some(model)) = (&one.ticket, &self.models[one.step])
        {
            home.wake(model.expire(ticket));
        }
    }

    /// After an error no step begins. One that has its room already gives it back when it handles that event.
    pub(super) fn forget_waiting(&self, state: &mut RunState) {
        state.flow.clear();
        state.queued.clear();
        for WaitingStep { step, place, .. } in std::mem::take(&mut state.waiting_steps).into_values() {
            drop(self.limiter(step).and_then(|limiter| limiter.withdraw(place)));
        }
    }
}
