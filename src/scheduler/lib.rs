//! Request → payload: requests are refused on the caller's thread, batches are pulled by idle workers.
//!
//! A model version takes requests as a [`ServedModel`], which checks each of them and hands it to its scheduler. There
//! is no scheduler thread. A request waits in an inbox until a free worker cuts it into a payload; see `direct` for how
//! the right to cut passes between workers.

mod batch_queue;
mod batch_strategy;
pub mod cache;
mod direct;
mod dynamic;
pub mod ensemble;
mod first_response;
mod gate;
mod model_load;
pub mod mutants;
pub mod next_step;
mod ordered;
mod park;
mod payload;
mod payload_source;
mod rate_limiter;
mod readiness;
mod sequence;
mod served_model;
mod service_time;
#[cfg(test)]
mod simulation;
pub mod validate;

use std::path::PathBuf;
use std::sync::Arc;

use nereid_clock::now_ns;
use nereid_memory::Pool;
use nereid_model_config::ModelSpec;
use nereid_observe::statistics::{FailureReason, ModelStatistics};
use nereid_request::{RefusalReason, Request, Status, Ticket, WakeUp};
use nereid_wire::inference::model_config::SchedulingChoice;

pub use batch_strategy::BatchStrategy;
pub use cache::{Cache, Cached};
pub use direct::Direct;
pub use dynamic::Dynamic;
use first_response::FirstResponseTimes;
pub use gate::{Gate, Limiter, Registration};
pub use model_load::{ModelBounds, ModelLoad, ModelPlace, input_bytes};
use ordered::Ordered;
pub use park::{Parker, next_payload};
pub use payload::{More, Payload};
pub use payload_source::{Borrowable, Next, PayloadSource, RunToCompletion, WorkerInfo};
pub use rate_limiter::RateLimiter;
pub use readiness::{
    Checks, Executions, Readiness, Verdict, VerdictCallback, WorkerExecutions, query_all, wait_for_all,
};
pub use sequence::SequenceBatcher;
pub use served_model::ServedModel;

pub use nereid_model_config::validate::ResourceLimit;

/// A request that was not accepted, with the reason. It goes back to its caller, unanswered and uncounted.
#[derive(Debug)]
pub struct Refused {
    pub status: Status,
    pub request: Box<Request>,
}

/// An accepted request: what its home has to do for it, and what it keeps.
#[derive(Debug)]
#[must_use]
pub struct Accepted {
    /// To be performed before the caller sleeps.
    pub wake_up: WakeUp,
    /// The answer may be on its way already.
    pub ticket: Ticket,
    /// When to call [`expire`](Scheduler::expire) for the request.
    pub expires_at_ns: Option<u64>,
}

/// Accepts validated requests of one model version.
pub trait Scheduler: Send + Sync {
    /// Accepts the request or returns at once why not. Never blocks. `queued_ns` of the request's stamps is the
    /// present.
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused>;

    /// Whether shards may execute requests themselves, now or later. The instances of some models are never lent.
    fn may_run_here(&self) -> bool {
        false
    }

    /// Cancels the request: no client waits for it any more. If it is still queued, it is answered and counted as
    /// cancelled; otherwise its executor can see the cancellation.
    fn cancel(&self, ticket: &Ticket) -> WakeUp;

    /// Ends a request that has timed out. If it is still queued, it is answered and counted as rejected.
    fn expire(&self, ticket: &Ticket) -> WakeUp;

    /// Refuses all requests from now on. Accepted requests are still executed; workers end after them.
    fn stop(&self);

    /// Called after [`stop`](Scheduler::stop) when no caller refers to the version any more: work that waits for
    /// further requests ends.
    fn close(&self) {}

    /// The number of begun sequences that wait for further requests, which are accepted also after
    /// [`stop`](Scheduler::stop).
    fn unfinished(&self) -> usize {
        0
    }
}

/// Services that the schedulers of all models share.
#[derive(Clone, Default)]
pub struct Services {
    /// `--rate-limit=execution_count`.
    pub limiter: Option<Arc<dyn Limiter>>,
    /// `--run-to-completion`.
    pub run_to_completion: RunToCompletion,
    /// A dynamic batcher forms no batch before so many requests wait for the first time; 0: at once. For tests
    /// (TRITONSERVER_DELAY_SCHEDULER).
    pub delayed_until: usize,
    /// `--deadline-admission`, where a model does not set its own.
    pub deadline_admission: bool,
    /// `--cache-config`.
    pub cache: Option<Arc<Cache>>,
    /// Where ensembles find the models of their steps; none if there are no ensembles.
    pub models: Option<Arc<dyn ensemble::Models>>,
}

impl Services {
    /// Whether a model refuses requests that it cannot answer in time: its parameter `deadline_admission`, else the
    /// flag.
    fn admits_by_deadline(&self, spec: &ModelSpec) -> bool {
        match spec.config.parameters.get(DEADLINE_ADMISSION).map(|parameter| parameter.string_value.as_str()) {
            Some("on") => true,
            Some("off") => false,
            _ => self.deadline_admission,
        }
    }
}

/// The parameter of a model's configuration that takes the place of `--deadline-admission`.
const DEADLINE_ADMISSION: &str = "deadline_admission";

/// The model version that a scheduler is made for.
pub struct Purpose {
    pub spec: Arc<ModelSpec>,
    pub version: i64,
    pub statistics: Arc<ModelStatistics>,
    /// The model's directory, where some schedulers have files.
    pub directory: PathBuf,
    pub pool: Pool,
    /// The model's custom batching rules, applied beside those of the dynamic batcher.
    pub strategy: Option<Arc<dyn BatchStrategy>>,
}

#[cfg(test)]
impl Purpose {
    /// Version 1 of a model without files.
    fn of(spec: Arc<ModelSpec>) -> Purpose {
        let directory = PathBuf::new();
        Purpose { spec, version: 1, statistics: Arc::default(), directory, pool: Pool::new(1 << 24), strategy: None }
    }
}

/// The two sides of a scheduler: one takes requests in, from the other workers take payloads.
pub struct Scheduling {
    pub scheduler: Arc<dyn Scheduler>,
    pub source: Arc<dyn PayloadSource>,
}

impl Scheduling {
    fn new<S: Scheduler + PayloadSource + 'static>(scheduler: S) -> Scheduling {
        let scheduler = Arc::new(scheduler);
        Scheduling { source: scheduler.clone(), scheduler }
    }

    /// Makes answers leave in the order in which their requests were accepted.
    fn ordered(self) -> Scheduling {
        Scheduling { scheduler: Arc::new(Ordered::new(self.scheduler)), source: self.source }
    }
}

/// The scheduler that the configuration selects (contract/schedulers.md section 1).
pub fn create(purpose: &Purpose, services: &Services) -> Result<Scheduling, Status> {
    let plain = match &purpose.spec.config.scheduling_choice {
        None => Scheduling::new(Direct::new(purpose, services)),
        Some(SchedulingChoice::DynamicBatching(config)) => Scheduling::new(Dynamic::new(config, purpose, services)),
        Some(SchedulingChoice::SequenceBatching(config)) => {
            Scheduling::new(SequenceBatcher::new(purpose, services, config)?)
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) => ensemble::create(purpose, services.models.as_ref())?,
    };
    let Scheduling { scheduler, source } = plain;
    let cached = Scheduling { scheduler: Cached::around(scheduler, purpose, services.cache.as_ref()), source };
    // Outside the cache, so that cached answers keep their place too.
    let complete = if preserves_ordering(&purpose.spec) { cached.ordered() } else { cached };
    Ok(Scheduling {
        scheduler: FirstResponseTimes::around(complete.scheduler, &purpose.statistics),
        source: complete.source,
    })
}

fn preserves_ordering(spec: &ModelSpec) -> bool {
    match &spec.config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(config)) => config.preserve_ordering,
        _ => false,
    }
}

/// The number of requests in TRITONSERVER_DELAY_SCHEDULER, parsed as C's atoi does.
pub fn delayed_until(variable: Option<&std::ffi::OsStr>) -> usize {
    let text = variable.map(std::ffi::OsStr::to_string_lossy).unwrap_or_default();
    let digits = text.trim_start().trim_start_matches('+');
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

/// Refusal of a scheduler that was stopped.
const STOPPING: &str = "Server is stopping, scheduler for model has stopped accepting new inference requests";

/// The refusal of a request that a scheduler gets after it was stopped.
fn stopping() -> Status {
    Status::refused(RefusalReason::ModelUnavailable, STOPPING)
}

/// Answers a request that was taken out of its queue because it was cancelled.
fn answer_cancelled(ticket: &Ticket, statistics: &ModelStatistics) {
    if ticket.is_counted {
        statistics.request_failed(ticket.started_ns, now_ns(), FailureReason::Canceled);
    }
    ticket.fail(Status::cancelled(""));
}

/// Answers a request of which the time in the queue ran out.
fn answer_expired(ticket: &Ticket, statistics: &ModelStatistics, text: &'static str) {
    if ticket.is_counted {
        statistics.request_failed(ticket.started_ns, now_ns(), FailureReason::Rejected);
    }
    ticket.fail(Status::refused(RefusalReason::QueueTimeout, text));
}
