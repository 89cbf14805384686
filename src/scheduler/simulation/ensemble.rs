//! An ensemble of one step over the default scheduler: requests, wake-ups, cancellations and answers reach real workers
//! through it. The tensors of several steps are simulated beside the ensemble itself, without workers.

use super::*;
use crate::ensemble::{Composing, Ensemble, Models, StepModel};
use crate::{Direct, Purpose, Scheduler, Services};
use nereid_model_config::ModelSpec;
use nereid_observe::statistics::ModelStatistics;
use nereid_request::{DataType, InputTensor, RequestedOutput, Shape};

struct Through {
    /// `max_inflight_requests`.
    in_flight_max: usize,
    workers: usize,
    patience_once_in: u64,
}

/// The model of the step.
struct Step {
    spec: ModelSpec,
    scheduler: Arc<Direct>,
}

impl Composing for Step {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn submit(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        self.scheduler.enqueue(request)
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        self.scheduler.cancel(ticket)
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        self.scheduler.expire(ticket)
    }
}

struct Only(Arc<Step>);

impl Models for Only {
    fn find(&self, _wanted: &StepModel) -> Result<Arc<dyn Composing>, Status> {
        Ok(Arc::clone(&self.0) as Arc<dyn Composing>)
    }
}

/// Stops the model with the ensemble, so that its workers leave.
struct Both {
    ensemble: Ensemble,
    step: Arc<Direct>,
}

impl Scheduler for Both {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        self.ensemble.enqueue(request)
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        self.ensemble.cancel(ticket)
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        self.ensemble.expire(ticket)
    }

    fn stop(&self) {
        self.ensemble.stop();
        self.step.stop();
    }
}

fn spec(text: &str) -> ModelSpec {
    let document = nereid_model_config::parse("config.pbtxt", text.as_bytes()).unwrap();
    ModelSpec::new(nereid_model_config::from_dynamic(&document.message).unwrap()).unwrap()
}

impl Through {
    fn random(random: &mut Random) -> Through {
        Through {
            in_flight_max: random.below(4) as usize,
            workers: 1 + random.below(3) as usize,
            patience_once_in: random.one_of(&[0, 6]),
        }
    }
}

impl Rules for Through {
    type Facts = ();

    fn build(&mut self, _random: &mut Random) -> Scheduling {
        let tensor =
            |side: &str, name: &str| format!("{side} {{ name: \"{name}\" data_type: TYPE_UINT8 dims: [ -1 ] }} ");
        let io = |input: &str, output: &str| tensor("input", input) + &tensor("output", output);
        let step = "step { model_name: \"m\" model_version: -1 input_map { key: \"I\" value: \"X\" } \
                    output_map { key: \"O\" value: \"Y\" } }";
        let (max, outer) = (self.in_flight_max, io("X", "Y"));
        let text = format!(
            "name: \"e\" platform: \"ensemble\" {outer} ensemble_scheduling {{ max_inflight_requests: {max} {step} }}"
        );
        let statistics = Arc::<ModelStatistics>::default;
        let inner = spec(&format!("name: \"m\" {}", io("I", "O")));
        let direct = Arc::new(Direct::new(&Purpose::of(Arc::new(inner.clone())), &Services::default()));
        let models = Only(Arc::new(Step { spec: inner, scheduler: Arc::clone(&direct) }));
        let ensemble = Ensemble::new(&spec(&text), Arc::new(models), statistics()).unwrap();
        let both = Both { ensemble, step: Arc::clone(&direct) };
        Scheduling { scheduler: Arc::new(both), source: direct }
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn arrive(&mut self, _random: &mut Random, request: &mut Request) {
        let mut input = InputTensor::new(Text::from("X"), DataType::Uint8, Shape::from_slice(&[0]));
        input.model_shape = Shape::from_slice(&[0]);
        request.inputs.push(input);
        request.outputs.push(RequestedOutput { name: Text::from("Y"), index: 0 });
    }

    fn patience(&mut self, random: &mut Random) -> Option<u64> {
        let leaves = self.patience_once_in > 0 && random.once_in(self.patience_once_in);
        leaves.then(|| random.below(MS))
    }

    fn refused(&mut self, _facts: &(), status: &Status, _waiting: &Waiting<'_, ()>) -> Checked {
        Err(format!("an ensemble takes whatever comes: {status}"))
    }

    fn cut(
        &mut self,
        _now_ns: u64,
        _worker: usize,
        _taken: &[(&Request, Option<&Sent<()>>)],
        waiting: &Waiting<'_, ()>,
    ) -> Checked {
        match (self.in_flight_max, waiting.executing()) {
            (max, count) if max > 0 && count > max => Err(format!("{count} requests of the step are in flight")),
            _ => Ok(()),
        }
    }

    fn may_rest(&mut self, _now_ns: u64, idle: &[usize], waiting: &Waiting<'_, ()>) -> Checked {
        let in_flight = waiting.executing();
        let has_room = self.in_flight_max == 0 || in_flight < self.in_flight_max;
        match waiting.iter().next() {
            Some(sent) if has_room && !idle.is_empty() => {
                Err(format!("a worker sleeps beside request {}, {in_flight} are in flight", sent.key))
            }
            _ => Ok(()),
        }
    }

    fn answered(&mut self, key: u64, _sent: &Sent<()>, delivery: &Delivery) -> Checked {
        match delivery.response.as_ref().and_then(|response| response.error.as_ref()) {
            Some(status) if !status.message.starts_with("in ensemble 'e', ") => Err(format!("{key} met {status}")),
            _ => Ok(()),
        }
    }
}

const WEATHER: Weather = Weather { requests: 400, pause_ns: 200 * US, burst: 12, reload_every: 0, change_every: 20 };

#[test]
fn requests_get_through_an_ensemble() {
    play(200, WEATHER, Through::random);
}

#[test]
fn lost_wake_ups_and_leaked_places_are_noticed() {
    for mutant in [Mutant::LostWake, Mutant::SlotLeaked] {
        let failure = catches(mutant, 50, WEATHER, Through::random);
        let is_noticed = failure.as_ref().is_some_and(|failure| failure.contains("a worker sleeps beside"));
        assert!(is_noticed, "{mutant:?}: {failure:?}");
    }
}
