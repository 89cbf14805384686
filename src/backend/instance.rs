//! Payload → execution: the instances of a model version and the threads that own them.
//!
//! An instance is created, warmed, executed and dropped on one thread. The thread is confined before the backend runs
//! on it, so that a runtime's memory and threads belong to the cores that the instance runs on. The instances of a
//! version may change while it serves (contract/schedulers.md section 10, "config only differs in instance_group"): new
//! ones are ready before old ones end.

mod borrow;
mod cancelled;
mod confinement;
mod device_inputs;
mod groups;
mod stall;
#[cfg(any(test, feature = "testing"))]
pub mod stepped;
mod warmup;
mod worker;

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, info};

use self::confinement::Confinement;
use self::groups::{InstanceSpec, ThreadPlan};
use self::worker::{Candidate, Task, Worker};
use crate::{Attributes, HostPolicies, InstanceContext, Model, ModelContext, StateLoss};
use nereid_model_config::ModelSpec;
use nereid_model_config::warmup::Sample;
use nereid_observe::log::verbose;
use nereid_request::Status;
use nereid_scheduler::{Checks, Parker, PayloadSource, RunToCompletion};

pub use self::confinement::{all_within, confined};
pub use self::stall::StallWatch;
pub use nereid_queue::Spin;

/// How often ending instances are polled: soon at first, because most requests are short.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The inputs from which the instances of one model version are made.
pub struct Plan {
    pub spec: Arc<ModelSpec>,
    pub model: Arc<dyn Model>,
    pub context: Arc<ModelContext>,
    /// The attributes of the backend.
    pub attributes: Attributes,
    pub policies: Arc<HostPolicies>,
    /// The cores of instances without cores in their host policy; empty: any.
    pub worker_cpus: Vec<usize>,
    /// Whether workers that run on these cores only may spin.
    pub spin: Spin,
    /// The warm-up samples that every instance runs before it takes work.
    pub warmup: Vec<Sample>,
    /// The rule for which instances shards may borrow.
    pub run_to_completion: RunToCompletion,
    /// The watch on stalls of the workers, if it is on.
    pub stalls: Option<Arc<StallWatch>>,
}

/// The instances of one model version and their threads.
pub struct Instances {
    source: Arc<dyn PayloadSource>,
    /// Held while instances are made; only other changes wait for it.
    change: Mutex<Change>,
    running: Mutex<Vec<Worker>>,
    checks: Arc<Checks>,
}

/// State that outlives one change.
#[derive(Default)]
struct Change {
    /// Instances created so far: the ordinal of the next one.
    created: usize,
    /// Threads that finish their last payloads.
    leaving: Vec<JoinHandle<()>>,
}

impl Instances {
    /// Creates and warms every instance on its own thread, and lets all take payloads once all are ready. On an error
    /// all are ended and the first error is returned.
    pub fn start(plan: &Plan, source: &Arc<dyn PayloadSource>) -> Result<Instances, Status> {
        let instances = Instances {
            source: Arc::clone(source),
            change: Mutex::default(),
            running: Mutex::default(),
            checks: Checks::new(&plan.context.name, plan.context.version),
        };
        let instance_specs = groups::instance_specs(&plan.spec);
        *lock(&instances.running) = instances.raise(plan, instance_specs, &mut lock(&instances.change).created)?;
        instances.renew_checks();
        Ok(instances)
    }

    /// The readiness checks of the instances.
    pub fn checks(&self) -> &Arc<Checks> {
        &self.checks
    }

    fn renew_checks(&self) {
        let running = lock(&self.running);
        let instances = running.iter().flat_map(|worker| worker.readiness.iter().cloned()).collect();
        let gpus = running.iter().filter_map(|worker| worker.gpu.clone()).collect();
        let working = running.iter().filter(|worker| worker.takes_work()).map(|worker| worker.gpu.clone()).collect();
        self.checks.set(instances, gpus, working);
        let active = running.iter().filter(|worker| worker.takes_work());
        let counted = active.map(|worker| (worker.names.join(", ").into(), worker.executions.clone()));
        self.checks.set_executions(counted.collect());
        let take_device_tensors = !running.is_empty() && running.iter().all(|worker| worker.takes_device_tensors);
        self.checks.set_on_devices(take_device_tensors);
    }

    /// Changes the instances to those of the plan's groups. Instances that are equal but for the group's name and count
    /// are kept, with their old names; missing ones are created and warmed while the others serve; then superfluous
    /// ones finish their payloads and end, without a wait for them here. On an error the instances are unchanged.
    pub fn update(&self, plan: &Plan) -> Result<(), Status> {
        let mut change = lock(&self.change);
        reap(&mut change.leaving);
        let instance_specs = groups::instance_specs(&plan.spec);
        // Only a change writes the list, so positions stay valid while the lock is released.
        let kept = keep(&lock(&self.running), &instance_specs);
        for (instance_spec, _) in instance_specs.iter().zip(&kept).filter(|(_, kept)| kept.is_some()) {
            verbose!(
                2,
                "Re-using model instance named '{}' with device id '{}'",
                instance_spec.name,
                instance_spec.key.device
            );
        }
        let missing = instance_specs
            .into_iter()
            .zip(&kept)
            .filter(|(_, kept)| kept.is_none())
            .map(|(instance_spec, _)| instance_spec)
            .collect();
        let mut created = self.raise(plan, missing, &mut change.created)?.into_iter();
        let mut running = lock(&self.running);
        let mut old: Vec<Option<Worker>> = running.drain(..).map(Some).collect();
        running.extend(kept.into_iter().filter_map(|kept| match kept {
            Some(at) => old.get_mut(at).and_then(Option::take),
            None => created.next(),
        }));
        drop(running);
        self.renew_checks();
        change.leaving.extend(old.into_iter().flatten().map(|worker| worker.dismiss(&*self.source)));
        Ok(())
    }

    /// Waits until the instances that an update dismissed have ended, after their present executions; at most `within`
    /// for one that stalls.
    pub fn settle(&self, within: Duration) {
        let (until, mut pause) = (Instant::now() + within, FIRST_PAUSE);
        loop {
            {
                let mut change = lock(&self.change);
                reap(&mut change.leaving);
                if change.leaving.is_empty() || Instant::now() >= until {
                    return;
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Names of the instances, passive ones included.
    pub fn names(&self) -> Vec<String> {
        lock(&self.running).iter().flat_map(|worker| worker.names.iter().cloned()).collect()
    }

    /// Waits until every worker has reached the end of its source, which must have been stopped, and every instance has
    /// ended.
    pub fn join(&self) {
        let mut change = lock(&self.change);
        let workers = std::mem::take(&mut *lock(&self.running));
        let threads = workers.into_iter().map(|worker| worker.thread);
        for thread in threads.chain(std::mem::take(&mut change.leaving)) {
            end(thread);
        }
    }

    /// Makes the instances of `instance_specs` and lets them take payloads.
    fn raise(
        &self,
        plan: &Plan,
        instance_specs: Vec<InstanceSpec>,
        ordinal: &mut usize,
    ) -> Result<Vec<Worker>, Status> {
        let variable = std::env::var_os("TRITON_PARALLEL_INSTANCE_LOADING");
        if let Some(value) = variable.as_deref().filter(|value| !value.is_empty()) {
            let value = value.to_string_lossy();
            verbose!(1, "Using TRITON_PARALLEL_INSTANCE_LOADING environment variable override: {value}");
        }
        let in_parallel = loads_in_parallel(plan.attributes.parallel_instance_loading, variable.as_deref());
        let mut candidates = Vec::new();
        let mut outcome = Ok(());
        for thread_plan in groups::plan_threads(instance_specs, plan.attributes.execution_policy, &plan.spec) {
            outcome = self.prepare(plan, thread_plan, ordinal).and_then(|candidate| {
                candidates.push(candidate);
                match candidates.last_mut() {
                    Some(candidate) if !in_parallel => candidate.wait(),
                    _ => Ok(()),
                }
            });
            if outcome.is_err() {
                break;
            }
        }
        // Waits for all, so that no thread is left; the first error is returned.
        let others = candidates.iter_mut().map(Candidate::wait).fold(Ok(()), Result::and);
        match outcome.and(others).and_then(|()| self.admit(&candidates)) {
            Ok(places) => {
                let is_offered = |candidate: &Candidate| candidate.is_offered();
                if plan.run_to_completion == RunToCompletion::Measured
                    && !candidates.is_empty()
                    && !candidates.iter().any(is_offered)
                {
                    info!(
                        "--run-to-completion=measured does not act on model '{}': instances of backend '{}' execute \
                         on threads of their own only",
                        plan.context.name, plan.spec.config.backend
                    );
                }
                if let Some(stalls) = &plan.stalls {
                    let watched = candidates.iter().filter_map(Candidate::watched);
                    watched.for_each(|watched| stalls.follow(&self.checks, &plan.context, watched));
                }
                Ok(candidates.into_iter().zip(places).filter_map(|(one, place)| one.engage(place)).collect())
            }
            Err(status) => {
                candidates.into_iter().for_each(|candidate| end(candidate.abandon()));
                Err(status)
            }
        }
    }

    /// Starts the thread that creates and warms the instances of `thread_plan`.
    fn prepare(&self, plan: &Plan, thread_plan: ThreadPlan, ordinal: &mut usize) -> Result<Candidate, Status> {
        let policy = plan.policies.get(&thread_plan.policy);
        let gpu = thread_plan.gpu(&plan.context)?;
        let near = gpu.as_ref().and_then(|gpu| gpu.description().numa_node);
        let confinement = Confinement::of(&policy, &plan.worker_cpus, near)?;
        let statistics = match &gpu {
            Some(gpu) => plan.context.statistics.of_device(&gpu.description().uuid),
            None => Arc::clone(&plan.context.statistics),
        };
        let may_spin = plan.spin.is_on_shared_cores() || confinement.is_within(&plan.worker_cpus);
        let spin = if may_spin { plan.spin.clone() } else { Spin::default() };
        let first = *ordinal;
        *ordinal += thread_plan.instance_specs.len();
        let contexts = thread_plan.instance_specs.iter().zip(first..).map(|(instance_spec, ordinal)| InstanceContext {
            name: instance_spec.name.clone(),
            ordinal,
            kind: instance_spec.key.kind(),
            device: instance_spec.key.device,
            gpu: gpu.clone(),
            statistics: Arc::clone(&statistics),
            is_passive: thread_plan.is_passive,
            is_warming: Arc::default(),
            state_loss: StateLoss::default(),
            spin: spin.clone(),
            host_policy: Arc::clone(&policy),
            group: Arc::new(instance_spec.key.group().clone()),
            spec: Arc::clone(&plan.spec),
            model: Arc::clone(&plan.context),
        });
        let task = Task {
            contexts: contexts.collect(),
            model: Arc::clone(&plan.model),
            gpu,
            confinement,
            warmup: if thread_plan.is_passive { Vec::new() } else { plan.warmup.clone() },
            run_to_completion: plan.run_to_completion,
            spin: spin.clone(),
            borrowable: Arc::default(),
            checks: Arc::clone(&self.checks),
        };
        Candidate::start(thread_plan, task, &self.source)
    }

    /// Registers the candidates in the source: a number for each that will work. All or none.
    fn admit(&self, candidates: &[Candidate]) -> Result<Vec<Option<(usize, Parker)>>, Status> {
        let mut places = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            match candidate.admit(&*self.source) {
                Ok(place) => places.push(place),
                Err(status) => {
                    places.into_iter().flatten().for_each(|(number, _)| self.source.left(number));
                    return Err(status);
                }
            }
        }
        Ok(places)
    }
}

impl std::fmt::Debug for Instances {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Instances").field(&self.names()).finish()
    }
}

/// For each wanted instance the position of a running one that fits: one of the same name if there is one.
fn keep(running: &[Worker], instance_specs: &[InstanceSpec]) -> Vec<Option<usize>> {
    let mut is_free: Vec<bool> = running.iter().map(|worker| !worker.is_shared).collect();
    let fits = |instance_spec: &InstanceSpec, worker: &Worker| worker.key == instance_spec.key;
    let choose = |instance_spec: &InstanceSpec| {
        let free = || running.iter().enumerate().filter(|(at, worker)| is_free[*at] && fits(instance_spec, worker));
        let same = free().find(|(_, worker)| worker.names.first() == Some(&instance_spec.name));
        let at = same.or_else(|| free().next()).map(|(at, _)| at)?;
        is_free[at] = false;
        Some(at)
    };
    instance_specs.iter().map(choose).collect()
}

/// Whether instances of one model are created at the same time: the backend's attribute, unless the environment
/// variable overrides it (contract/cli.md section 4).
fn loads_in_parallel(attribute: bool, variable: Option<&OsStr>) -> bool {
    match variable {
        Some(value) if !value.is_empty() => value == "1",
        _ => attribute,
    }
}

/// Joins a thread that has been signalled to end.
fn end(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        error!("an instance worker ended by a panic");
    }
}

/// Removes the threads that have ended meanwhile.
fn reap(threads: &mut Vec<JoinHandle<()>>) {
    threads.extract_if(.., |thread| thread.is_finished()).for_each(end);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
