//! The control thread: what could stall a shard runs here, one job after the other.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use tracing::warn;

/// Jobs that wait; beyond it they are refused, and whoever asked gets no answer in time.
const WAITING_MAX: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

pub struct ControlThread {
    jobs: SyncSender<Job>,
    thread: JoinHandle<()>,
}

impl ControlThread {
    pub fn start() -> std::io::Result<ControlThread> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING_MAX);
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            while let Ok(job) = waiting.recv() {
                job();
            }
        })?;
        Ok(ControlThread { jobs, thread })
    }

    /// How shards hand jobs over; never blocks.
    pub fn handle(&self) -> Arc<dyn Fn(Job) + Send + Sync> {
        let jobs = self.jobs.clone();
        Arc::new(move |job| match jobs.try_send(job) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => warn!("the control thread is busy: a job was dropped"),
        })
    }

    /// Ends the thread once all handles are gone.
    pub fn join(self) {
        drop(self.jobs);
        if self.thread.join().is_err() {
            warn!("the control thread ended by a panic");
        }
    }
}
