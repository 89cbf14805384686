//! Dispatches the messages of a worker other than results, by their kinds.

use std::sync::Arc;

use super::calls::{Caller, Calls};
use super::link::{LENT_AT_ONCE, Link};
use super::marshal::{Malformed, Value, Writer};
use super::senders;
use super::services::{self, Metrics, Models, Reply};
use super::worker::{MessageHandler, Worker};
use crate::ModelContext;
use nereid_observe::metrics::Registry;
use nereid_request::{Grant, Observer, Response};

/// Kinds of messages; `worker/nereid_python/kinds.py` has the same numbers, and the payload of each.
mod kinds {
    pub const LOG: u32 = 32;
    pub const METRIC_FAMILY: u32 = 33;
    pub const METRIC: u32 = 34;
    pub const METRIC_CHANGE: u32 = 35;
    pub const METRIC_VALUE: u32 = 36;
    pub const METRIC_DROPPED: u32 = 37;
    pub const FAMILY_DROPPED: u32 = 38;
    pub const MODEL_LOAD: u32 = 40;
    pub const MODEL_UNLOAD: u32 = 41;
    pub const MODEL_READY: u32 = 42;
    pub const CALL: u32 = 48;
    pub const CALL_CANCEL: u32 = 49;
    pub const CALL_TOOK: u32 = 50;
    pub const CALL_DROPPED: u32 = 51;
    pub const SEND: u32 = 56;
    pub const LENT: u32 = 57;
}

/// Serves one worker.
pub struct Dispatch {
    calls: Arc<Calls>,
    metrics: Metrics,
    models: Models,
}

impl Dispatch {
    pub fn new(context: &ModelContext) -> Dispatch {
        Dispatch {
            calls: Arc::new(Calls::new(context.host.clone(), context.pool.clone(), Arc::clone(&context.gpus))),
            metrics: Metrics::new(Registry::of_process()),
            models: Models::new(context.host.clone(), context.load.clone()),
        }
    }
}

impl Caller for Worker {
    fn link(&self) -> &Link {
        &self.link
    }

    fn kill(&self, reason: &str) {
        Worker::kill(self, reason);
    }

    fn observer(&self, token: u64) -> Option<Arc<dyn Observer>> {
        self.open.observer(token)
    }
}

impl MessageHandler for Dispatch {
    /// The first value of a message is the slot on which the worker waits for the answer, or None.
    fn handle(&self, worker: &Arc<Worker>, kind: u32, value: &Value<'_>) -> Result<(), Malformed> {
        let (slot, values) = value.as_sequence()?.split_first().ok_or(Malformed::Form)?;
        let slot: Option<u32> = slot.optional(Value::as_int)?;
        let asked = || slot.ok_or(Malformed::Form);
        match kind {
            kinds::SEND => senders::send(worker, slot, values),
            kinds::CALL => self.calls.begin(&(Arc::clone(worker) as Arc<dyn Caller>), values),
            kinds::CALL_CANCEL => self.calls.cancel(values),
            kinds::CALL_TOOK => self.calls.took(values),
            kinds::CALL_DROPPED => self.calls.drop_answers(values),
            kinds::LOG => services::log(values),
            kinds::METRIC_CHANGE => self.metrics.change(values),
            kinds::METRIC_DROPPED => self.metrics.drop_metric(values),
            kinds::FAMILY_DROPPED => self.metrics.drop_family(values),
            kinds::METRIC_FAMILY => {
                worker.answer(asked()?, self.metrics.add_family(values)?);
                Ok(())
            }
            kinds::METRIC => {
                worker.answer(asked()?, self.metrics.add_metric(values)?);
                Ok(())
            }
            kinds::METRIC_VALUE => {
                worker.answer(asked()?, self.metrics.value(values)?);
                Ok(())
            }
            kinds::LENT => {
                let mut writer = Writer::default();
                let freed = worker.link.imported.take_freed(LENT_AT_ONCE);
                writer.list(freed.len());
                freed.into_iter().for_each(|number| writer.int(number));
                worker.answer(asked()?, Ok(writer));
                Ok(())
            }
            kinds::MODEL_LOAD => self.models.load(&worker.link, values, reply(worker, asked()?)),
            kinds::MODEL_UNLOAD => self.models.unload(values, reply(worker, asked()?)),
            kinds::MODEL_READY => self.models.is_ready(values, reply(worker, asked()?)),
            kind => Err(Malformed::Kind(kind.try_into().unwrap_or(u8::MAX))),
        }
    }

    fn ended(&self, worker: &Arc<Worker>) {
        self.calls.end();
        self.metrics.end();
        // The instance answers the requests whose execution has not returned.
        worker.open.abandon(|address| Response::failed(address.id.clone(), worker.death_status()));
    }

    fn set_grant(&self, grant: Option<Grant>) {
        self.calls.set_grant(grant);
    }

    fn flush_responses(&self, worker: &Arc<Worker>) {
        senders::flush(worker);
    }
}

fn reply(worker: &Arc<Worker>, slot: u32) -> Reply {
    let worker = Arc::clone(worker);
    Box::new(move |answer| worker.answer(slot, answer))
}
