//! Ensembles: one request becomes requests to other models, whose outputs become each other's inputs
//! (contract/schedulers.md section 5).
//!
//! An ensemble has no instances. Its work for a request, the [run](run::Run), is done where the request is at home, or
//! by the worker that has answered a step: one thread at a time has the run, and gets what happens to it as events, so
//! that no thread waits for a lock or for a step. A shard executes steps itself as it would other requests, within a
//! budget for each turn ([`turn`]). Tensors are handed on by reference.

mod driver;
mod flow;
pub(crate) mod hand_over;
mod limiter;
mod plan;
mod run;
mod shapes;
pub mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::info;

use super::{Accepted, Next, PayloadSource, Purpose, Refused, Scheduler, Scheduling, WorkerInfo, stopping};
use nereid_model_config::ModelSpec;
use nereid_model_config::labels::Labels;
use nereid_observe::statistics::ModelStatistics;
use nereid_request::{Request, Status, Ticket, WakeUp};

use limiter::Limiter;
use plan::Plan;
use run::Run;

pub use hand_over::HandOver;
pub use plan::StepModel;

/// A version of a model that a step runs. It stays usable as long as it is referenced, also after an unload.
pub trait Composing: Send + Sync {
    fn spec(&self) -> &ModelSpec;

    /// Whether its inputs may lie on a device.
    fn takes_device_tensors(&self) -> bool {
        false
    }

    /// The class labels of an output, where it has a file of labels.
    fn labels(&self, _output: &str) -> Option<Arc<Labels>> {
        None
    }

    /// Checks the request and hands it to the model's scheduler.
    fn submit(&self, request: Box<Request>) -> Result<Accepted, Refused>;

    /// See [`Scheduler::may_run_here`].
    fn may_run_here(&self) -> bool {
        false
    }

    /// See [`Scheduler::cancel`].
    fn cancel(&self, ticket: &Ticket) -> WakeUp;

    /// See [`Scheduler::expire`].
    fn expire(&self, ticket: &Ticket) -> WakeUp;
}

/// The models that serve at the moment. Called on shards, so it does not block.
pub trait Models: Send + Sync {
    /// The version that a step names, if it is ready.
    fn find(&self, wanted: &StepModel) -> Result<Arc<dyn Composing>, Status>;
}

/// The labels of the outputs of an ensemble without label files of its own: those of the steps that make the outputs.
pub fn labels_of_steps(spec: &ModelSpec, models: &dyn Models) -> BTreeMap<String, Arc<Labels>> {
    let Ok(plan) = Plan::new(spec) else { return BTreeMap::new() };
    let of_step = |output: &plan::Output| {
        let step = plan.steps.get(plan.tensors.get(output.tensor)?.writer?)?;
        let (name, _) = step.outputs.iter().find(|(_, tensor)| *tensor == output.tensor)?;
        models.find(&step.model).ok()?.labels(&name.to_str_lossy())
    };
    let labelled = |output: &plan::Output| Some((output.name.to_string(), of_step(output)?));
    plan.outputs.iter().filter_map(labelled).collect()
}

/// The scheduler of an ensemble.
pub struct Ensemble(Arc<EnsembleInner>);

/// What all runs of an ensemble share.
struct EnsembleInner {
    plan: Plan,
    /// One for each step; none where the number of requests in flight is not limited.
    limiters: Vec<Option<Arc<Limiter>>>,
    models: Arc<dyn Models>,
    statistics: Arc<ModelStatistics>,
    is_stopped: AtomicBool,
}

/// The scheduler of an ensemble and, as every scheduler has one, a source of payloads, which is always empty.
pub(super) fn create(purpose: &Purpose, models: Option<&Arc<dyn Models>>) -> Result<Scheduling, Status> {
    let models = models.ok_or_else(|| Status::internal("ensembles need a repository to take their models from"))?;
    let ensemble = Ensemble::new(&purpose.spec, Arc::clone(models), Arc::clone(&purpose.statistics))?;
    Ok(Scheduling::new(ensemble))
}

impl Ensemble {
    pub fn new(
        spec: &ModelSpec,
        models: Arc<dyn Models>,
        statistics: Arc<ModelStatistics>,
    ) -> Result<Ensemble, Status> {
        let plan = Plan::new(spec)?;
        if plan.in_flight_max > 0 {
            let (name, max) = (&plan.name, plan.in_flight_max);
            info!("Ensemble model '{name}' configured with max_inflight_requests: {max}");
        }
        let limiters = plan.steps.iter().map(|_| Limiter::new(plan.in_flight_max)).collect();
        Ok(Ensemble(Arc::new(EnsembleInner { plan, limiters, models, statistics, is_stopped: AtomicBool::new(false) })))
    }
}

impl Scheduler for Ensemble {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        if self.0.is_stopped.load(Ordering::SeqCst) {
            let status = stopping().prefixed(&request.log_id());
            return Err(Refused { status, request });
        }
        // No request is queued here that could expire: an ensemble is executed at once, and its steps wait elsewhere.
        request.admission().take();
        let mut ticket = request.ticket();
        let run = Run::new(&self.0, request);
        ticket.state = Some(Arc::clone(&run) as Arc<_>);
        Ok(Accepted { wake_up: driver::start(run), ticket, expires_at_ns: None })
    }

    fn may_run_here(&self) -> bool {
        // Its steps decide.
        true
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        ticket.admission().cancel();
        let run = ticket.state.clone().and_then(|state| state.downcast::<Run>().ok());
        if let Some(run) = run {
            run.cancel();
        }
        WakeUp::needless()
    }

    fn expire(&self, _ticket: &Ticket) -> WakeUp {
        WakeUp::needless()
    }

    fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::SeqCst);
    }
}

impl PayloadSource for Ensemble {
    fn join(&self, info: WorkerInfo) -> Result<usize, Status> {
        Err(Status::internal(format!("an ensemble has no place for instance '{}'", info.name)))
    }

    fn poll(&self, _worker: usize, _now_ns: u64) -> Next {
        Next::Leave
    }

    fn dismiss(&self, _worker: usize) {}

    fn left(&self, _worker: usize) {}
}

#[cfg(test)]
mod tests;
