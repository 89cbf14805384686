//! Removes cancelled requests right before a backend gets its batch.
//!
//! A request that is cancelled in a queue is answered at that moment. One that a worker has taken may still wait for
//! the instance, or for the copy of its inputs from a device, and a caller inside the process may have cancelled it
//! before it was submitted.

use crate::InstanceContext;
use nereid_clock::now_ns;
use nereid_observe::statistics::FailureReason;
use nereid_request::{Request, Status};
use nereid_scheduler::Payload;
use nereid_wire::inference::model_config::SchedulingChoice;

/// Answers and counts the cancelled requests of `payload`, and leaves the others in it; true if there were any. Not
/// for models with sequences: there a row of the batch belongs to a sequence, and its batcher ends the sequences of
/// cancelled requests.
pub(super) fn leave_out(payload: &mut Payload, context: &InstanceContext) -> bool {
    let is_cancelled = |request: &Request| request.admission().is_cancelled();
    if !payload.requests().iter().any(|request| is_cancelled(request)) {
        return false;
    }
    if matches!(context.spec.config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))) {
        return false;
    }
    for request in payload.take() {
        if !is_cancelled(&request) {
            payload.push(request);
            continue;
        }
        if request.is_counted() {
            let started_ns = request.stamps.started_ns;
            context.statistics.request_failed(started_ns, now_ns(), FailureReason::Canceled);
        }
        request.fail(Status::cancelled(""));
    }
    true
}
