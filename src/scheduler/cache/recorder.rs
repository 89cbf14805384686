//! Copies the response of a request that was not in the cache into the cache, on its way to the client.
//!
//! Only a single successful response is inserted. The recorder holds it back until no response can follow it; then it
//! inserts the response, counts it and sends it on, in this order, so that a client that has the response finds it
//! counted and cached.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::error;

use super::super::mutants::{self, Mutant};
use super::{COPIED_AT_ONCE, CachedModel, Entry, Inserted, Key, Lookup};
use nereid_clock::now_ns;
use nereid_memory::{BlockMut, Exhausted};
use nereid_request::{Completion, Delivery, Job, Response, Sink, Text};

pub struct Recorder {
    model: Arc<CachedModel>,
    home: Completion,
    /// Id of the request: a response may come without one.
    id: Text,
    is_counted: bool,
    key: Option<Key>,
    lookup_ns: u64,
    /// There was an entry, which did not answer the request.
    replaces: bool,
    held: Mutex<HeldResponse>,
}

/// The responses so far.
#[derive(Default)]
enum HeldResponse {
    #[default]
    Nothing,
    /// The first response. More may follow.
    One(Box<Response>),
    Several,
}

impl Recorder {
    pub fn new(model: Arc<CachedModel>, home: Completion, id: Text, is_counted: bool, lookup: &Lookup) -> Recorder {
        Recorder {
            model,
            home,
            id,
            is_counted,
            key: lookup.key,
            lookup_ns: lookup.duration_ns(),
            replaces: lookup.found.is_some(),
            held: Mutex::default(),
        }
    }

    /// Inserts the single response and sends it on; `is_apart`: its end came separately.
    fn conclude(&self, response: Response, is_apart: bool) {
        if response.error.is_some() && !mutants::is(Mutant::FailureCached) {
            return self.send(response, is_apart);
        }
        let byte_size: usize = response.outputs.iter().map(|output| output.byte_size()).sum();
        let store = &self.model.cache.store;
        if self.key.is_none() || store.is_unavailable() {
            self.count(0, Inserted::Refused);
            return self.send(response, is_apart);
        }
        if store.is_quick() && byte_size <= COPIED_AT_ONCE {
            self.keep(&response);
            return self.send(response, is_apart);
        }
        match self.model.cache.pool.reserve() {
            Some(reservation) => {
                let recorder = self.for_other_thread();
                let sent_ns = now_ns();
                reservation.fill(move || {
                    let is_late = now_ns().saturating_sub(sent_ns) > recorder.model.cache.store.wait_max_ns();
                    match is_late {
                        true => recorder.count(0, Inserted::Refused),
                        false => recorder.keep(&response),
                    }
                    recorder.send(response, is_apart);
                });
            }
            None => {
                self.count(0, Inserted::Refused);
                self.send(response, is_apart);
            }
        }
    }

    /// A copy of the recorder for another thread, to which no responses are delivered.
    fn for_other_thread(&self) -> Recorder {
        Recorder {
            model: Arc::clone(&self.model),
            home: self.home.clone(),
            id: self.id.clone(),
            is_counted: self.is_counted,
            key: self.key,
            lookup_ns: self.lookup_ns,
            replaces: self.replaces,
            held: Mutex::default(),
        }
    }

    fn keep(&self, response: &Response) {
        let Some(key) = self.key else { return };
        let started_ns = now_ns();
        let entry = Entry::of(response, key);
        let outcome = self.model.cache.store.insert(key, entry, self.replaces);
        if outcome == Inserted::Refused {
            let hash = key.hash;
            let request_id = &self.id;
            error!(
                %request_id,
                "Failed to insert key [{hash}] into response cache: it is too large, or the cache does not answer"
            );
        }
        self.count(now_ns().saturating_sub(started_ns), outcome);
    }

    /// A miss counts unless another request has inserted the answer meanwhile (contract/schedulers.md section 8).
    fn count(&self, insertion_ns: u64, outcome: Inserted) {
        if self.is_counted && outcome != Inserted::Present {
            self.model.statistics.cache_missed(self.lookup_ns.saturating_add(insertion_ns));
        }
    }

    fn send(&self, response: Response, is_apart: bool) {
        self.home.forward(Delivery { response: Some(response), last: !is_apart });
        if is_apart {
            self.home.forward(Delivery { response: None, last: true });
        }
    }
}

impl Sink for Recorder {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *held);
        match (before, delivery) {
            (HeldResponse::Nothing, Delivery { response: Some(response), last: false }) => {
                *held = HeldResponse::One(Box::new(response))
            }
            (HeldResponse::Nothing, Delivery { response: Some(response), last: true }) => {
                drop(held);
                self.conclude(response, false);
            }
            (HeldResponse::One(response), Delivery { response: None, last: true }) => {
                drop(held);
                self.conclude(*response, true);
            }
            (HeldResponse::One(response), Delivery { response: None, last: false }) => {
                *held = HeldResponse::One(response)
            }
            (HeldResponse::One(response), delivery) => {
                *held = HeldResponse::Several;
                drop(held);
                self.home.forward(Delivery { response: Some(*response), last: false });
                self.home.forward(delivery);
            }
            (before, delivery) => {
                *held = before;
                drop(held);
                self.home.forward(delivery);
            }
        }
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.home.allocate(byte_size)
    }

    fn at_home(&self, job: Box<dyn Job>) {
        self.home.at_home(job);
    }
}
