//! The state of the batcher's calls to a custom strategy: the requests that it has included in the growing batch
//! (contract/c_api.md section 5, "Batch strategy library").
//!
//! Each scan goes over the waiting requests from the front. The strategy is called once for each request of a batch:
//! those that it has included stay so until the batch is cut, or until the requests in front have changed; then the
//! batch begins anew.

use std::sync::Arc;

use crate::BatchStrategy;
use nereid_request::Request;

pub(super) struct Consultation {
    strategy: Arc<dyn BatchStrategy>,
    /// Addresses of the requests in the batch; only compared.
    included: Vec<usize>,
    is_begun: bool,
    /// A request was removed that may be among them.
    is_stale: bool,
}

/// What to do with the request that a scan has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inclusion {
    In,
    /// The batch is closed before it.
    Closed,
    /// The batch that was begun is not made of the requests in front: the scan starts over with a new one.
    Anew,
}

impl Consultation {
    pub fn new(strategy: Arc<dyn BatchStrategy>) -> Consultation {
        Consultation { strategy, included: Vec::new(), is_begun: false, is_stale: false }
    }

    /// A request was taken out or moved, so its address is no longer valid.
    pub fn forget(&mut self) {
        self.is_stale = true;
    }

    /// Whether `request`, number `at` of the scan, belongs to the batch of those in front of it.
    pub fn judge(&mut self, at: usize, request: &Request) -> Inclusion {
        let address = std::ptr::from_ref(request).addr();
        if self.is_stale && self.is_begun {
            self.end();
            return if at == 0 { self.call_strategy(address, request) } else { Inclusion::Anew };
        }
        self.is_stale = false;
        match self.included.get(at) {
            Some(known) if *known == address => Inclusion::In,
            Some(_) => {
                self.end();
                if at == 0 { self.call_strategy(address, request) } else { Inclusion::Anew }
            }
            None => self.call_strategy(address, request),
        }
    }

    fn call_strategy(&mut self, address: usize, request: &Request) -> Inclusion {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.strategy.begin();
        }
        match self.strategy.includes(request) {
            true => {
                self.included.push(address);
                Inclusion::In
            }
            false => Inclusion::Closed,
        }
    }

    /// The batch is cut or given up.
    pub fn end(&mut self) {
        self.included.clear();
        self.is_stale = false;
        if std::mem::take(&mut self.is_begun) {
            self.strategy.end();
        }
    }
}
