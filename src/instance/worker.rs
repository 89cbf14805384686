//! The thread of an instance: it is confined, creates, warms, works and drops.
//!
//! A worker asks its scheduler for a payload, runs it, and asks again. It never parses or writes to a socket, and
//! whatever a backend does, error, panic, silence, every request it was handed is answered once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tracing::{error, info};

use super::confinement::Confinement;
use super::groups::{Key, Share};
use super::warmup;
use super::{Lending, Loan, PayloadSource, Seat, next_payload};
use crate::backend::{Instance, InstanceContext, Model, Payload, Readiness};
use crate::model_config::warmup::Sample;
use crate::request::{Status, Waker};

/// What a thread is started for.
pub(super) struct Task {
    pub contexts: Vec<InstanceContext>,
    pub model: Arc<dyn Model>,
    pub confinement: Confinement,
    pub warmup: Vec<Sample>,
    pub lending: Lending,
    /// Has the instances while they work.
    pub loan: Arc<Loan>,
}

/// A thread that makes its instances ready, and then waits to be let in.
pub(super) struct Candidate {
    share: Share,
    loan: Arc<Loan>,
    thread: JoinHandle<()>,
    ready: Receiver<Result<Vec<Arc<dyn Readiness>>, Status>>,
    /// The outcome, once it is known, and who among the instances has a say in readiness.
    outcome: Option<Result<Vec<Arc<dyn Readiness>>, Status>>,
    /// Takes its number in the payload source. Dropped: the thread ends.
    go: Sender<usize>,
}

/// A thread whose instances are ready.
pub(super) struct Worker {
    /// Of its instances.
    pub names: Vec<String>,
    pub key: Key,
    /// One of a device's instances: not kept over a change.
    pub is_shared: bool,
    role: Role,
    /// Of its instances, those that have a say.
    pub readiness: Vec<Arc<dyn Readiness>>,
    pub thread: JoinHandle<()>,
}

enum Role {
    /// Its number in the payload source.
    Active(usize),
    /// Kept and nothing else, until this is dropped.
    Passive { _stay: Sender<usize> },
}

impl Candidate {
    pub fn start(share: Share, task: Task, source: &Arc<dyn PayloadSource>) -> Result<Candidate, Status> {
        let ((tell, ready), (go, number)) = (channel(), channel());
        let (source, loan) = (Arc::clone(source), Arc::clone(&task.loan));
        let name = share.thread_name.clone();
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || live(task, &tell, &number, &*source));
        let thread = thread
            .map_err(|error| Status::internal(format!("cannot start the thread '{name}' of an instance: {error}")))?;
        Ok(Candidate { share, loan, thread, ready, outcome: None, go })
    }

    /// Waits until the instances are created and warmed.
    pub fn wait(&mut self) -> Result<(), Status> {
        let ended = || Err(Status::internal(format!("the thread '{}' ended by itself", self.share.thread_name)));
        self.outcome
            .get_or_insert_with(|| self.ready.recv().unwrap_or_else(|_| ended()))
            .as_ref()
            .map(drop)
            .map_err(Status::clone)
    }

    /// Its number in `source`; `None` for one that takes no work.
    pub fn admit(&self, source: &dyn PayloadSource) -> Result<Option<usize>, Status> {
        if self.share.is_passive {
            return Ok(None);
        }
        let first = self.share.wishes.first();
        let seat = Seat {
            waker: Waker::Thread(self.thread.thread().clone()),
            name: first.map(|wish| wish.name.clone()).unwrap_or_default(),
            device: first.map_or(0, |wish| wish.key.device),
            rate_limiter: first.and_then(|wish| wish.key.rate_limiter().cloned()),
        };
        let number = source.join(seat)?;
        if self.loan.is_offered() {
            source.lend(number, Arc::clone(&self.loan));
        }
        Ok(Some(number))
    }

    /// Lets it work.
    pub fn engage(self, number: Option<usize>) -> Option<Worker> {
        let names = self.share.wishes.iter().map(|wish| wish.name.clone()).collect();
        let key = self.share.wishes.into_iter().next()?.key;
        let role = match number {
            Some(number) => {
                // It waits for exactly this.
                let _ = self.go.send(number);
                Role::Active(number)
            }
            None => Role::Passive { _stay: self.go },
        };
        let readiness = self.outcome.and_then(Result::ok).unwrap_or_default();
        Some(Worker { names, key, is_shared: self.share.is_device, role, readiness, thread: self.thread })
    }

    /// Sends it home.
    pub fn abandon(self) -> JoinHandle<()> {
        self.thread
    }
}

impl Worker {
    /// Lets it finish and go.
    pub fn dismiss(self, source: &dyn PayloadSource) -> JoinHandle<()> {
        if let Role::Active(number) = self.role {
            source.dismiss(number);
        }
        self.thread
    }
}

/// The whole life of the thread.
fn live(
    task: Task,
    tell: &Sender<Result<Vec<Arc<dyn Readiness>>, Status>>,
    number: &Receiver<usize>,
    source: &dyn PayloadSource,
) {
    let mut instances = Vec::with_capacity(task.contexts.len());
    let outcome = prepare(&task, &mut instances);
    let outcome = outcome.map(|()| instances.iter().filter_map(|instance| instance.readiness()).collect());
    let is_ready = outcome.is_ok();
    task.loan.open(instances.into_iter().zip(task.contexts).collect(), task.lending);
    let is_awaited = tell.send(outcome).is_ok();
    if is_ready
        && is_awaited
        && let Ok(number) = number.recv()
    {
        while let Some(payload) = next_payload(source, number) {
            task.loan.run(payload);
            source.executed(number);
        }
        source.left(number);
    }
    for (instance, context) in task.loan.close() {
        if catch_unwind(AssertUnwindSafe(|| drop(instance))).is_err() {
            error!("instance {} panicked while it was finalized", context.name);
        }
    }
}

fn prepare(task: &Task, instances: &mut Vec<Box<dyn Instance>>) -> Result<(), Status> {
    task.confinement.apply()?;
    for context in &task.contexts {
        let (name, model) = (&context.name, &context.spec.name);
        let create = AssertUnwindSafe(|| Arc::clone(&task.model).create_instance(context.clone()));
        let panicked = |_| Err(Status::internal(format!("instance '{name}' panicked while it was initialized")));
        let mut instance = catch_unwind(create).unwrap_or_else(panicked)?;
        info!("instance {name} of model '{model}' is initialized");
        let warmed = warmup::run(&mut *instance, context, &task.warmup);
        instances.push(instance);
        warmed?;
    }
    Ok(())
}

/// One execution; a panic is an error like others.
pub(super) fn execute(
    instance: &mut dyn Instance,
    context: &InstanceContext,
    payload: &mut Payload,
) -> Result<(), Status> {
    payload.requests().iter().for_each(|request| request.mark_taken());
    catch_unwind(AssertUnwindSafe(|| instance.execute(payload))).unwrap_or_else(|_| {
        error!("instance {} panicked while it executed; its requests are answered with an error", context.name);
        Err(Status::internal(format!("instance '{}' failed while it executed the request", context.name)))
    })
}
