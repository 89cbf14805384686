//! Payload → execution: the worker threads that own backend instances.
//!
//! A worker asks its scheduler for a payload, runs it, and asks again. It never parses or writes to a socket, and
//! whatever a backend does, error, panic, silence, every request it was handed is answered once.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};
use tracing::{error, warn};

use crate::backend::{Instance, InstanceContext, fail};
use crate::request::Status;

pub use crate::backend::Payload;

/// Where a worker gets its work: a scheduler.
pub trait PayloadSource: Send + Sync {
    /// Blocks worker number `worker` until there is a payload for it; `None` when there will be none any more.
    fn next_payload(&self, worker: usize) -> Option<Payload>;

    /// Called once by each worker, on its own thread, before it asks for anything.
    fn joined(&self, worker: usize);
}

/// The running workers of one model version.
#[derive(Debug)]
pub struct Workers {
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts a thread for every instance. `cpus` confines them; empty leaves them where the process may run.
    pub fn spawn(
        instances: Vec<(InstanceContext, Box<dyn Instance>)>,
        source: &Arc<dyn PayloadSource>,
        cpus: &[usize],
    ) -> io::Result<Workers> {
        let mut threads = Vec::with_capacity(instances.len());
        for (worker, (context, instance)) in instances.into_iter().enumerate() {
            let (source, cpus) = (Arc::clone(source), cpus.to_vec());
            let name: String = context.name.chars().take(15).collect();
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                confine(&cpus, &context.name);
                source.joined(worker);
                run(worker, &context, instance, &*source);
            })?;
            threads.push(thread);
        }
        Ok(Workers { threads })
    }

    /// Waits until every worker has seen the end of its source and has dropped its instance.
    pub fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                error!("an instance worker ended by a panic");
            }
        }
    }
}

fn confine(cpus: &[usize], name: &str) {
    if cpus.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    if let Err(error) = sched_setaffinity(None, &set) {
        warn!("instance {name}: cannot be confined to its CPUs: {error}");
    }
}

fn run(worker: usize, context: &InstanceContext, mut instance: Box<dyn Instance>, source: &dyn PayloadSource) {
    while let Some(mut payload) = source.next_payload(worker) {
        let outcome = catch_unwind(AssertUnwindSafe(|| instance.execute(&mut payload)));
        let status = match outcome {
            Ok(Ok(())) => Status::internal(format!("instance '{}' left the request unanswered", context.name)),
            Ok(Err(status)) => status,
            Err(_) => {
                error!("instance {} panicked while it executed; its requests are answered with an error", context.name);
                Status::internal(format!("instance '{}' failed while it executed the request", context.name))
            }
        };
        for request in payload.take() {
            fail(&context.model.statistics, request, status.clone());
        }
    }
}
