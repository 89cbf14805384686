//! A worker without a thread, for simulations: its caller decides when it polls, when it executes and when it ends.

use std::sync::Arc;

use super::borrow::WorkerInstances;
use crate::{Instance, InstanceContext};
use nereid_request::{Status, Waker};
use nereid_scheduler::ensemble::HandOver;
use nereid_scheduler::{Next, Payload, PayloadSource, RunToCompletion, WorkerInfo};

/// One worker and its instances. What a thread would do in a loop, its methods do one by one.
pub struct SteppedWorker {
    source: Arc<dyn PayloadSource>,
    instances: Arc<WorkerInstances>,
    number: usize,
}

impl SteppedWorker {
    /// Joins `source` with ready instances; shards may borrow them as `run_to_completion` allows.
    pub fn join(
        source: &Arc<dyn PayloadSource>,
        members: Vec<(Box<dyn Instance>, InstanceContext)>,
        run_to_completion: RunToCompletion,
        waker: Waker,
    ) -> Result<SteppedWorker, Status> {
        let name = members.first().map(|(_, context)| context.name.clone()).unwrap_or_default();
        let losses: Vec<_> = members.iter().map(|(_, context)| context.state_loss.clone()).collect();
        let instances = Arc::new(WorkerInstances::default());
        instances.open(members, run_to_completion);
        let number = source.join(WorkerInfo { waker, name, device: 0, rate_limiter: None })?;
        if instances.is_offered() {
            source.lend(number, instances.clone());
        }
        for loss in losses {
            let source = Arc::downgrade(source);
            loss.connect(move || source.upgrade().into_iter().for_each(|source| source.lost(number)));
        }
        Ok(SteppedWorker { source: Arc::clone(source), instances, number })
    }

    pub fn poll(&self, now_ns: u64) -> Next {
        self.source.poll(self.number, now_ns)
    }

    /// Executes a payload that a poll brought.
    pub fn run(&self, payload: Payload) {
        let hand_over = HandOver::of(&payload, self.instances.answer_last());
        self.instances.run(payload);
        self.source.executed(self.number);
        hand_over.finish();
    }

    /// Its next poll ends it, once its payload is executed.
    pub fn dismiss(&self) {
        self.source.dismiss(self.number);
    }

    /// The poll has told it to leave.
    pub fn leave(self) {
        self.source.left(self.number);
        drop(self.instances.close());
    }
}
