//! What a worker asks for beside its executions, by the kind of its message.

use std::sync::Arc;

use super::marshal::{Malformed, Value};
use super::senders;
use super::worker::{Attendant, Worker};
use crate::backend::ModelContext;
use crate::request::{Response, Status};

/// Kinds of messages; `worker/nereid_python/kinds.py` has the same numbers, and what each carries.
mod kinds {
    pub const SEND: u32 = 56;
}

/// Serves the workers of one model.
pub struct Desk {
    pub context: Arc<ModelContext>,
}

impl Attendant for Desk {
    /// The first value of a message is the slot where its answer is waited for, or None.
    fn attend(&self, worker: &Arc<Worker>, kind: u32, value: &Value<'_>) -> Result<(), Malformed> {
        let (slot, values) = value.as_sequence()?.split_first().ok_or(Malformed::Form)?;
        let slot = slot.optional(Value::as_int)?;
        match kind {
            kinds::SEND => senders::send(worker, slot, values),
            kind => Err(Malformed::Kind(kind.try_into().unwrap_or(u8::MAX))),
        }
    }

    fn ended(&self, worker: &Arc<Worker>) {
        // Requests whose execution has not returned are their instance's to answer.
        for address in worker.open.abandoned() {
            let name = &worker.name;
            let text = format!("Stub process '{name}' is not healthy: it {}", worker.ending());
            address.responses.send(Response::failed(address.id.clone(), Status::internal(text)), true);
        }
    }
}
