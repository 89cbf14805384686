//! The workers' side: what an instance executes next, or until when it may sleep.

use super::{Batching, InstanceDecision, SequenceBatcher};
use crate::{Next, Payload, PayloadSource, WorkerInfo};
use nereid_request::Status;

/// Idle sequences that are ended in one go.
const REAPED_AT_ONCE: usize = 32;

enum WorkerStep {
    /// There may be more idle sequences to end.
    Again,
    Cut(usize),
    Sleep(Option<u64>),
    Leave,
}

impl PayloadSource for SequenceBatcher {
    fn join(&self, info: WorkerInfo) -> Result<usize, Status> {
        let gate = self.limiter.as_ref().map(|limiter| limiter.admit(&self.spec.name, &info)).transpose()?;
        let now_ns = (self.clock)();
        self.with_tables(|tables, effects| tables.join(&info, gate, now_ns, effects))
    }

    fn poll(&self, worker: usize, now_ns: u64) -> Next {
        loop {
            match self.step(worker, now_ns) {
                WorkerStep::Again => {}
                WorkerStep::Leave => {
                    self.leave_gate_if_waiting(worker);
                    return Next::Leave;
                }
                WorkerStep::Sleep(until_ns) => {
                    self.leave_gate_if_waiting(worker);
                    return Next::Sleep { until_ns };
                }
                WorkerStep::Cut(_) if !self.enter(worker) => {
                    let deadline_ns =
                        self.tables().instance(worker).and_then(|instance| instance.deadlines.first().copied());
                    return Next::Sleep { until_ns: deadline_ns.map(|(at_ns, _)| at_ns) };
                }
                WorkerStep::Cut(count) => {
                    let payload = self.cut(worker, count, now_ns);
                    if !payload.is_empty() {
                        self.begin_busy(worker, now_ns);
                        return Next::Execute(payload);
                    }
                    // All requests were cancelled meanwhile.
                    self.leave_gate(worker);
                }
            }
        }
    }

    fn executed(&self, worker: usize) {
        let gate = self.tables().instance(worker).and_then(|instance| {
            instance.is_at_gate = instance.gate.is_some();
            instance.gate.clone()
        });
        if let Some(gate) = gate {
            gate.executed();
        }
    }

    fn lost(&self, worker: usize) {
        let now_ns = (self.clock)();
        let count = self.with_tables(|tables, effects| tables.lost(worker, now_ns, effects));
        if count > 0 {
            let model = &self.spec.name;
            tracing::warn!("{count} sequences of model '{model}' are over: their instance has lost its state");
        }
    }

    fn dismiss(&self, worker: usize) {
        let now_ns = (self.clock)();
        self.with_tables(|tables, effects| tables.dismiss(worker, now_ns, effects));
    }

    fn left(&self, worker: usize) {
        let now_ns = (self.clock)();
        self.with_tables(|tables, effects| tables.leave(worker, now_ns, effects));
    }
}

impl SequenceBatcher {
    /// The next step of worker number `worker`.
    fn step(&self, worker: usize, now_ns: u64) -> WorkerStep {
        self.with_tables(|tables, effects| {
            let Some(instance) = tables.instance(worker) else { return WorkerStep::Leave };
            instance.wake_count = None;
            if let (Some(times), Some(since_ns)) = (&self.times, instance.busy_since_ns.take()) {
                times.executions.measured(now_ns.saturating_sub(since_ns));
            }
            tables.reap(worker, now_ns, REAPED_AT_ONCE, effects);
            let (is_held, may_leave) = (tables.hold.is_some(), tables.may_leave(worker));
            let decision = match tables.look(worker) {
                None => return WorkerStep::Leave,
                Some(_) if is_held => InstanceDecision::Nothing,
                Some(instance) => match &self.batching {
                    Batching::Direct(rules) => rules.decide(instance, now_ns),
                    Batching::Oldest(rules) => self.decide_oldest(rules, tables, instance, worker, now_ns),
                },
            };
            let Some(instance) = tables.instance(worker) else { return WorkerStep::Leave };
            let deadline_ns = instance.deadlines.first().map(|(at_ns, _)| *at_ns);
            if deadline_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                return WorkerStep::Again;
            }
            match decision {
                InstanceDecision::Cut(count) => WorkerStep::Cut(count),
                InstanceDecision::Nothing if may_leave => WorkerStep::Leave,
                InstanceDecision::Nothing => {
                    instance.wake_count = Some(if is_held { usize::MAX } else { 1 });
                    WorkerStep::Sleep(deadline_ns)
                }
                InstanceDecision::Wait { until_ns, count } => {
                    instance.wake_count = Some(count);
                    WorkerStep::Sleep(Some(deadline_ns.map_or(until_ns, |at_ns| at_ns.min(until_ns))))
                }
            }
        })
    }

    fn cut(&self, worker: usize, count: usize, now_ns: u64) -> Payload {
        match &self.batching {
            Batching::Direct(_) => self.cut_direct(worker, now_ns),
            Batching::Oldest(rules) => self.cut_oldest(worker, count, rules.preserves_order, now_ns),
        }
    }

    /// A worker executes from now on, where that is measured.
    fn begin_busy(&self, worker: usize, now_ns: u64) {
        if self.times.is_some()
            && let Some(instance) = self.tables().instance(worker)
        {
            instance.busy_since_ns = Some(now_ns);
        }
    }

    /// Enters the gate of a worker's instance; false if it has to wait for its resources.
    fn enter(&self, worker: usize) -> bool {
        let gate = self.tables().instance(worker).and_then(|instance| instance.gate.clone());
        let is_open = gate.is_none_or(|gate| gate.enter());
        if let Some(instance) = self.tables().instance(worker) {
            instance.is_at_gate = !is_open;
        }
        is_open
    }

    /// Gives back the resources, or the place in the queue for them.
    fn leave_gate(&self, worker: usize) {
        let gate = self.tables().instance(worker).and_then(|instance| {
            instance.is_at_gate = false;
            instance.gate.clone()
        });
        if let Some(gate) = gate {
            gate.leave();
        }
    }

    fn leave_gate_if_waiting(&self, worker: usize) {
        if self.tables().instance(worker).is_some_and(|instance| instance.is_at_gate) {
            self.leave_gate(worker);
        }
    }
}
