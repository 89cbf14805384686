//! The link between a request that a rule has chosen a version for and its home: it sees the answer pass.
//!
//! Only requests that decide about a roll-back, or that have a copy for the shadow version, have one. It runs on the
//! thread that delivers the answer, a worker or a shard, and passes the answer on before anything else happens.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Traffic;
use super::shadow::{Draft, ReadyCopy};
use nereid_clock::now_ns;
use nereid_memory::{BlockMut, Exhausted, Target};
use nereid_request::shared::OutputDestination;
use nereid_request::{Code, Completion, Delivery, Job, OutputQuery, Place, Request, Sink, Status};

/// See the [module](self).
pub struct Link {
    home: Completion,
    traffic: Arc<Traffic>,
    version: i64,
    began_ns: u64,
    /// The answer is counted for a roll-back, or need not be.
    is_counted: AtomicBool,
    /// The time until the first response; 0 before it.
    first_ns: AtomicU64,
    /// The copy, until the first response. Locked for one exchange.
    draft: Mutex<Option<Draft>>,
}

impl Link {
    /// Puts a link between the request and its home.
    pub fn attach(request: &mut Request, traffic: &Arc<Traffic>, version: i64, is_watched: bool, draft: Option<Draft>) {
        request.reroute(|home| {
            let link = Link {
                home,
                traffic: Arc::clone(traffic),
                version,
                began_ns: now_ns(),
                is_counted: AtomicBool::new(!is_watched),
                first_ns: AtomicU64::new(0),
                draft: Mutex::new(draft),
            };
            (Arc::new(link), 0)
        });
    }

    /// The copy with the answer that passes, if there is one.
    fn copy(&self, delivery: &Delivery) -> Option<ReadyCopy> {
        let shadow = self.traffic.shadow.as_ref()?;
        let draft = self.draft.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        match delivery.response.as_ref().filter(|response| response.error.is_none()) {
            Some(response) => shadow.complete(draft, &response.outputs),
            None => {
                shadow.skip();
                None
            }
        }
    }

    /// Counts a request once: at its first error, else at its end, with the time until its first response.
    fn count(&self, delivery: &Delivery) {
        let error = delivery.response.as_ref().and_then(|response| response.error.as_ref());
        let now_ns = now_ns();
        let took_ns = now_ns.saturating_sub(self.began_ns).max(1);
        let first = self.first_ns.compare_exchange(0, took_ns, Ordering::Relaxed, Ordering::Relaxed);
        let took_ns = first.err().unwrap_or(took_ns);
        if (error.is_none() && !delivery.last) || self.is_counted.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_error = match error {
            // The client's request was wrong, or the server lacked something: that says nothing of the version.
            Some(status) if status.code == Code::InvalidArg || status.refusal.is_some() => return,
            // The client left, perhaps because it had waited for too long.
            Some(status) if status.code == Code::Cancelled && !self.traffic.is_slow(took_ns) => return,
            Some(status) => status.code != Code::Cancelled,
            None => false,
        };
        self.traffic.answered(self.version, is_error, took_ns, now_ns);
    }
}

impl Sink for Link {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        let copy = self.copy(&delivery);
        self.count(&delivery);
        self.home.forward(delivery);
        if let (Some(copy), Some(shadow)) = (copy, &self.traffic.shadow) {
            shadow.send(copy);
        }
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.home.allocate(byte_size)
    }

    fn allocate_output(&self, _key: u64, query: &OutputQuery<'_>) -> Result<Option<Target>, Status> {
        self.home.allocate_in_place(query)
    }

    fn destination(&self, _key: u64, query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        self.home.receiver_destination(query)
    }

    fn begin(&self, _key: u64) -> bool {
        self.home.begin()
    }

    fn preferred_place(&self, _key: u64, query: (Option<&CStr>, Option<usize>), place: Place) -> Result<Place, Status> {
        self.home.preferred_place(query, place)
    }

    fn at_home(&self, job: Box<dyn Job>) {
        self.home.at_home(job);
    }
}
