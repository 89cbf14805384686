//! The release of requests by backends: the slot goes on, or the request is queued again (contract/schedulers.md
//! section 3, "Iterative sequences").

use std::sync::Arc;

use super::tables::{Effects, Queued, Tables};
use super::{SequenceBatcher, SequenceBatcherInner};
use crate::mutants::{self, Mutant};
use nereid_memory::Key;
use nereid_request::{CorrelationId, ReleaseReport, Request, RequestEvents, Status};

impl RequestEvents for SequenceBatcherInner {
    /// The next request of the slot may go. An iterative sequence ends with the last release of its request, even with
    /// an id from the client, and the model gets no sign of that; its queued requests are executed before.
    fn released(&self, key: u64) {
        let now_ns = (self.clock)();
        self.with_tables(|tables, effects| {
            let Some(flight) = tables.land(key, now_ns, effects) else { return };
            let Some(sequence) = tables.resolve(flight.sequence) else { return };
            if self.rules.is_iterative && !mutants::is(Mutant::IterationGoesOn) {
                tables.finish(sequence, now_ns, effects);
            }
        });
    }

    fn reschedule(&self, key: u64, request: Box<Request>) -> Result<(), (Status, Box<Request>)> {
        if !self.rules.is_iterative {
            return Err((Status::invalid(NOT_ITERATIVE), self.kept(key, request)));
        }
        let now_ns = (self.clock)();
        let mut request = Some(request);
        let left_over = self.with_tables(|tables, effects| {
            let sequence = tables.flights.get(&key)?.sequence;
            let sequence = tables.continued(sequence, now_ns, effects)?;
            let mut again = request.take()?;
            // Controls and states are those of the execution that is over.
            let own = again.inputs.iter().take_while(|input| input.index < self.spec.inputs.len()).count();
            let left_over = (again.inputs.split_off(own), again.states.take());
            again.flags = 0;
            again.mark_queued(now_ns);
            again.admission().put_back();
            self.statistics.pending_added();
            tables.land(key, now_ns, effects);
            tables.push(sequence, Queued { request: again, is_again: true }, now_ns, effects);
            Some(left_over)
        });
        drop(left_over);
        match request {
            None => Ok(()),
            // Its sequence is over. The backend still has the request.
            Some(request) => Err((self.without_start(&request.correlation_id), self.kept(key, request))),
        }
    }
}

/// The text of `TRITONBACKEND_RequestRelease` for other models (contract/c_api.md section 5).
const NOT_ITERATIVE: &str = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not \
                             configured to handle such a flag.";

impl SequenceBatcherInner {
    /// The request as its backend had it: its release is still reported.
    fn kept(&self, key: u64, mut request: Box<Request>) -> Box<Request> {
        if let Some(owner) = self.this.upgrade() {
            request.release.report = Some(ReleaseReport::new(owner, key));
        }
        request
    }
}

impl SequenceBatcher {
    /// Makes `request` report its release.
    pub(super) fn keep(&self, request: &mut Request, flight: u64) {
        request.release.report = Some(ReleaseReport::new(Arc::clone(&self.shared) as Arc<dyn RequestEvents>, flight));
    }
}

impl Tables {
    /// A number for a sequence of one request: the next one that is not in use.
    pub fn new_id(&mut self) -> CorrelationId {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let id = CorrelationId::Number(self.last_id);
            if !self.ids.contains_key(&id) {
                return id;
            }
        }
    }

    /// A sequence that still takes requests without a start.
    fn continued(&mut self, key: Key, now_ns: u64, effects: &mut Effects) -> Option<Key> {
        let key = self.resolve(key)?;
        let sequence = self.sequences.get(key).filter(|sequence| sequence.is_mapped)?;
        let id = sequence.id.clone();
        self.find(&id, now_ns, effects).filter(|found| *found == key)
    }
}
