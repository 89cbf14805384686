//! The thread of an instance: it confines itself, creates and warms its instances, executes payloads, and drops them.
//!
//! A worker takes a payload from its scheduler, runs it, and takes the next. It never parses or writes to a socket.
//! Whether a backend returns, fails, panics or does not answer, every request of the payload is answered once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use tracing::{error, info};

use super::borrow::WorkerInstances;
use super::cancelled;
use super::confinement::Confinement;
use super::device_inputs::land;
use super::groups::{InstanceKey, ThreadPlan};
use super::stall::Watched;
use super::warmup;
use crate::{Instance, InstanceContext, Model, StateLoss};
use nereid_clock::now_ns;
use nereid_gpu::Gpu;
use nereid_model_config::warmup::Sample;
use nereid_observe::log::verbose;
use nereid_observe::panics::ThreadKind;
use nereid_queue::Spin;
use nereid_request::Status;
use nereid_scheduler::ensemble::HandOver;
use nereid_scheduler::{
    Checks, Executions, More, Parker, Payload, PayloadSource, Readiness, RunToCompletion, WorkerInfo, next_payload,
};

/// The arguments of a worker's thread.
pub(super) struct Task {
    pub contexts: Vec<InstanceContext>,
    pub model: Arc<dyn Model>,
    /// The device of all its instances.
    pub gpu: Option<Gpu>,
    pub confinement: Confinement,
    pub warmup: Vec<Sample>,
    pub run_to_completion: RunToCompletion,
    pub spin: Spin,
    /// Holds the instances while they serve.
    pub borrowable: Arc<WorkerInstances>,
    /// The readiness checks of the model version.
    pub checks: Arc<Checks>,
}

/// A thread that creates and warms its instances, and then waits for its admission.
pub(super) struct Candidate {
    thread_plan: ThreadPlan,
    gpu: Option<Gpu>,
    borrowable: Arc<WorkerInstances>,
    thread: JoinHandle<()>,
    ready: Receiver<Result<Vec<Arc<dyn Readiness>>, Status>>,
    /// The outcome, once the thread has reported it, with the instances that report readiness.
    outcome: Option<Result<Vec<Arc<dyn Readiness>>, Status>>,
    spin: Spin,
    /// Of its instances.
    state_losses: Vec<StateLoss>,
    /// The source that losses of state are reported to.
    source: Weak<dyn PayloadSource>,
    /// Sends the thread its number in the payload source and its parker. When it is dropped, the thread ends.
    go: Sender<(usize, Parker)>,
}

/// A thread whose instances are ready.
pub(super) struct Worker {
    /// Of its instances.
    pub names: Vec<String>,
    pub key: InstanceKey,
    /// Whether it shares the thread of a device: then a change does not keep it.
    pub is_shared: bool,
    role: Role,
    /// See [`WorkerInstances::takes_device_tensors`].
    pub takes_device_tensors: bool,
    /// The instances that report readiness.
    pub readiness: Vec<Arc<dyn Readiness>>,
    /// The count of its executions.
    pub executions: Weak<dyn Executions>,
    /// The device of its instances.
    pub gpu: Option<Gpu>,
    pub thread: JoinHandle<()>,
}

enum Role {
    /// Its number in the payload source.
    Active(usize),
    /// A passive instance: kept until this is dropped, never executed.
    Passive { _stay: Sender<(usize, Parker)> },
}

impl Candidate {
    pub fn start(thread_plan: ThreadPlan, task: Task, source: &Arc<dyn PayloadSource>) -> Result<Candidate, Status> {
        let ((tell, ready), (go, place)) = (channel(), channel());
        let (source, borrowable, spin) = (Arc::clone(source), Arc::clone(&task.borrowable), task.spin.clone());
        let gpu = task.gpu.clone();
        let state_losses = task.contexts.iter().map(|context| context.state_loss.clone()).collect();
        let weak = Arc::downgrade(&source);
        let name = thread_plan.thread_name.clone();
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || live(task, &tell, &place, &source));
        let thread = thread
            .map_err(|error| Status::internal(format!("cannot start the thread '{name}' of an instance: {error}")))?;
        Ok(Candidate {
            thread_plan,
            gpu,
            borrowable,
            thread,
            ready,
            outcome: None,
            spin,
            state_losses,
            source: weak,
            go,
        })
    }

    /// Waits until the instances are created and warmed.
    pub fn wait(&mut self) -> Result<(), Status> {
        let ended = || Err(Status::internal(format!("the thread '{}' ended by itself", self.thread_plan.thread_name)));
        self.outcome
            .get_or_insert_with(|| self.ready.recv().unwrap_or_else(|_| ended()))
            .as_ref()
            .map(drop)
            .map_err(Status::clone)
    }

    /// Joins `source`: returns its number there and its parker; `None` for a passive instance.
    pub fn admit(&self, source: &dyn PayloadSource) -> Result<Option<(usize, Parker)>, Status> {
        if self.thread_plan.is_passive {
            return Ok(None);
        }
        let first = self.thread_plan.instance_specs.first();
        let parker = Parker::new(self.thread.thread().clone(), self.spin.clone());
        let info = WorkerInfo {
            waker: parker.waker(),
            name: first.map(|spec| spec.name.clone()).unwrap_or_default(),
            device: first.map_or(0, |spec| spec.key.device),
            rate_limiter: first.and_then(|spec| spec.key.rate_limiter().cloned()),
        };
        let number = source.join(info)?;
        if self.borrowable.is_offered() {
            source.lend(number, self.borrowable.clone());
        }
        Ok(Some((number, parker)))
    }

    /// Whether shards may borrow its instances, now or later.
    pub fn is_offered(&self) -> bool {
        self.borrowable.is_offered()
    }

    /// The parts of it that the stall watch reads.
    pub fn watched(&self) -> Option<Watched> {
        if self.thread_plan.is_passive {
            return None;
        }
        let names: Vec<&str> = self.thread_plan.instance_specs.iter().map(|spec| spec.name.as_str()).collect();
        let readiness = self.outcome.as_ref().and_then(|outcome| outcome.as_ref().ok());
        let readiness = readiness.into_iter().flatten().map(Arc::downgrade).collect();
        Some(Watched { name: names.join("', '"), pulse: Arc::downgrade(self.borrowable.pulse()), readiness })
    }

    /// Starts its service.
    pub fn engage(self, place: Option<(usize, Parker)>) -> Option<Worker> {
        let names = self.thread_plan.instance_specs.iter().map(|spec| spec.name.clone()).collect();
        let key = self.thread_plan.instance_specs.into_iter().next()?.key;
        let role = match place {
            Some((number, parker)) => {
                for loss in self.state_losses {
                    let source = self.source.clone();
                    loss.connect(move || source.upgrade().into_iter().for_each(|source| source.lost(number)));
                }
                // The thread blocks on this receive.
                let _ = self.go.send((number, parker));
                Role::Active(number)
            }
            None => Role::Passive { _stay: self.go },
        };
        let readiness = self.outcome.and_then(Result::ok).unwrap_or_default();
        let (is_shared, takes_device_tensors) = (self.thread_plan.is_device, self.borrowable.takes_device_tensors());
        let pulse = Arc::downgrade(self.borrowable.pulse());
        let (gpu, thread) = (self.gpu, self.thread);
        Some(Worker { names, key, is_shared, role, takes_device_tensors, readiness, executions: pulse, gpu, thread })
    }

    /// Ends the thread before its admission.
    pub fn abandon(self) -> JoinHandle<()> {
        self.thread
    }
}

impl Worker {
    /// False for a passive instance.
    pub fn takes_work(&self) -> bool {
        matches!(self.role, Role::Active(_))
    }

    /// Ends it after its present payload.
    pub fn dismiss(self, source: &dyn PayloadSource) -> JoinHandle<()> {
        if let Role::Active(number) = self.role {
            source.dismiss(number);
        }
        self.thread
    }
}

/// The body of the thread.
fn live(
    task: Task,
    tell: &Sender<Result<Vec<Arc<dyn Readiness>>, Status>>,
    place: &Receiver<(usize, Parker)>,
    source: &Arc<dyn PayloadSource>,
) {
    ThreadKind::Instance.set();
    let mut instances = Vec::with_capacity(task.contexts.len());
    let outcome = prepare(&task, &mut instances);
    let outcome = outcome.map(|()| instances.iter().filter_map(|instance| instance.readiness()).collect());
    let is_ready = outcome.is_ok();
    let first = task.contexts.first().cloned();
    let name = first.as_ref().map(|context| context.name.clone()).unwrap_or_default();
    task.borrowable.open(instances.into_iter().zip(task.contexts).collect(), task.run_to_completion);
    let is_awaited = tell.send(outcome).is_ok();
    if is_ready
        && is_awaited
        && let Ok((number, mut parker)) = place.recv()
    {
        let more = More::new({
            let source = Arc::clone(source);
            let borrowable = Arc::clone(&task.borrowable);
            move || {
                let payload = prepared(&borrowable, first.as_ref()?, || source.ahead(number, now_ns()));
                payload.inspect(|_| borrowable.pulse().goes_on())
            }
        });
        // If other workers can take payloads, a worker with a lost device must not take them only to fail them.
        let is_superseded = || task.gpu.as_ref().is_some_and(|gpu| task.checks.is_superseded(gpu));
        loop {
            let next = AssertUnwindSafe(|| next_payload(&**source, number, &mut parker, is_superseded));
            let Ok(next) = catch_unwind(next) else {
                lose(&name, &task.checks, &**source, number);
                break;
            };
            let Some(payload) = next else { break };
            let _core = task.spin.work();
            let hand_over = HandOver::of(&payload, task.borrowable.answer_last());
            task.borrowable.run(payload.with_more(more.clone()));
            source.executed(number);
            hand_over.finish();
        }
        source.left(number);
    }
    for (instance, context) in task.borrowable.close() {
        if catch_unwind(AssertUnwindSafe(|| drop(instance))).is_err() {
            error!("instance {} panicked while it was finalized", context.name);
        }
    }
}

/// The scheduler has panicked on this thread. Its bookkeeping for this worker is not used again: the worker leaves, and
/// the version is not ready. The requests go to the other workers; without any they are refused.
fn lose(name: &str, checks: &Checks, source: &dyn PayloadSource, number: usize) {
    let why = format!("instance '{name}' has ended because the scheduler panicked; load the model again");
    error!("{why}");
    checks.lose_worker(why);
    source.dismiss(number);
}

/// The next payload that has requests left after cancelled ones and those with unreadable inputs are removed.
fn prepared(
    borrowable: &WorkerInstances,
    context: &InstanceContext,
    next: impl Fn() -> Option<Payload>,
) -> Option<Payload> {
    loop {
        let mut payload = next()?;
        // A panic over one payload must not end the thread, which others wait for.
        if catch_unwind(AssertUnwindSafe(|| prepare_payload(&mut payload, borrowable, context))).is_err() {
            error!("instance {} panicked over its inputs; its requests are answered with an error", context.name);
            let status = failed_while(context, "prepared the request");
            payload.take().into_iter().for_each(|request| context.fail(request, status.clone()));
        }
        if !payload.is_empty() {
            return Some(payload);
        }
    }
}

/// Removes the requests from a payload that need no execution.
fn prepare_payload(payload: &mut Payload, borrowable: &WorkerInstances, context: &InstanceContext) {
    if context.model.gpus.is_supported() {
        if let Err(status) = check_alive(context) {
            return payload.take().into_iter().for_each(|request| context.fail(request, status.clone()));
        }
        land(payload, context, borrowable.takes_device_tensors());
    }
    cancelled::leave_out(payload, context);
}

fn failed_while(context: &InstanceContext, doing: &str) -> Status {
    Status::internal(format!("instance '{}' failed while it {doing}", context.name))
}

fn prepare(task: &Task, instances: &mut Vec<Box<dyn Instance>>) -> Result<(), Status> {
    task.confinement.apply()?;
    if let Some(gpu) = &task.gpu {
        gpu.enter().map_err(|error| Status::internal(format!("GPU {gpu} cannot be entered: {error}")))?;
    }
    for context in &task.contexts {
        check_device(context)?;
        let (name, model) = (&context.name, &context.spec.name);
        let create = AssertUnwindSafe(|| Arc::clone(&task.model).create_instance(context.clone()));
        let panicked = |_| Err(Status::internal(format!("instance '{name}' panicked while it was initialized")));
        let mut instance = catch_unwind(create).unwrap_or_else(panicked)?;
        info!("instance {name} of model '{model}' is initialized");
        verbose!(1, "Created model instance named '{name}' with device id '{}'", context.device);
        let warmed = warmup::run(&mut *instance, context, &task.warmup);
        instances.push(instance);
        warmed?;
    }
    Ok(())
}

/// Checks that the device has memory for one more instance. (contract/schedulers.md section 10, "GPU limit")
fn check_device(context: &InstanceContext) -> Result<(), Status> {
    check_alive(context)?;
    let (Some(gpu), name) = (&context.gpu, &context.name) else { return Ok(()) };
    let unknown = |error| Status::internal(format!("the free memory of GPU {gpu} is not known: {error}"));
    match gpu.is_over_load_limit().map_err(unknown)? {
        false => Ok(()),
        true => Err(Status::unavailable(format!(
            "can not create model '{name}': memory limit set for GPU {gpu} has exceeded, model loading is rejected."
        ))),
    }
}

/// Fails if the device is broken for good.
pub(super) fn check_alive(context: &InstanceContext) -> Result<(), Status> {
    let Some(gpu) = &context.gpu else { return Ok(()) };
    gpu.failure().map_or(Ok(()), |failure| {
        let text = format!("instance '{}' is on GPU {gpu}, which is lost to the server: {failure}", context.name);
        Err(Status::unavailable(text))
    })
}

/// Runs one execution. A panic counts as an error; on a device that is broken for good the payload fails without an
/// execution.
pub(super) fn execute(
    instance: &mut dyn Instance,
    context: &InstanceContext,
    payload: &mut Payload,
) -> Result<(), Status> {
    payload.requests().iter().for_each(|request| request.mark_taken());
    check_alive(context)?;
    catch_unwind(AssertUnwindSafe(|| instance.execute(payload))).unwrap_or_else(|_| {
        error!("instance {} panicked while it executed; its requests are answered with an error", context.name);
        Err(failed_while(context, "executed the request"))
    })
}
