//! A request with a lookup on another thread, and its state meanwhile.
//!
//! One of the cache's threads does the lookup. It answers a hit itself; otherwise the request continues at its home, as
//! if it had just arrived: its expiry is a timer there, and a cancellation there is passed on to the scheduler that has
//! it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::cache_pool::JobReservation;
use super::{CachedModel, InFlightGuard, Lookup};
use crate::{Accepted, Refused};
use nereid_clock::now_ns;
use nereid_request::{Home, Request, Ticket, WakeUp};

/// State of the lookup, held by the ticket of the request.
pub struct AsyncLookup {
    model: Arc<CachedModel>,
    stage: Mutex<LookupStage>,
}

enum LookupStage {
    Looking,
    /// The scheduler's `enqueue` is running.
    Passing {
        is_cancelled: bool,
    },
    /// The scheduler's own ticket.
    Passed(Arc<Ticket>),
    Over,
}

/// Hands a request to a thread of the cache.
pub fn send(
    model: &Arc<CachedModel>,
    request: Box<Request>,
    reservation: JobReservation,
    guard: InFlightGuard,
) -> Accepted {
    let async_lookup = Arc::new(AsyncLookup { model: Arc::clone(model), stage: Mutex::new(LookupStage::Looking) });
    let mut ticket = request.ticket();
    ticket.state = Some(async_lookup.clone());
    model.statistics.pending_added();
    let sent_ns = now_ns();
    reservation.fill(move || async_lookup.run(request, guard, sent_ns));
    Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: None }
}

impl AsyncLookup {
    pub fn of(ticket: &Ticket) -> Option<&AsyncLookup> {
        ticket.state.as_ref()?.downcast_ref()
    }

    /// Does the lookup, on a thread of the cache.
    fn run(self: Arc<AsyncLookup>, mut request: Box<Request>, guard: InFlightGuard, sent_ns: u64) {
        let model = &self.model;
        let waited_ns = now_ns().saturating_sub(sent_ns);
        let is_wanted = !request.admission().is_cancelled();
        let is_searched =
            is_wanted && waited_ns <= model.cache.store.wait_max_ns() && !model.cache.store.is_unavailable();
        let lookup = if is_searched { model.look_up(&mut request) } else { Lookup::none() };
        match lookup.found.as_ref().filter(|entry| entry.answers(&request)) {
            Some(entry) => {
                let mut stage = self.stage();
                if matches!(*stage, LookupStage::Looking) {
                    *stage = LookupStage::Over;
                    drop(stage);
                    model.statistics.pending_removed();
                    model.answer(request, entry, &lookup);
                }
            }
            None => {
                let completion = request.completion();
                completion.at_home(Box::new(move |home: &mut dyn Home| self.pass_on(request, &lookup, guard, home)));
            }
        }
    }

    /// Passes the request to the scheduler behind the cache, at the request's home.
    fn pass_on(
        self: Arc<AsyncLookup>,
        mut request: Box<Request>,
        lookup: &Lookup,
        guard: InFlightGuard,
        home: &mut dyn Home,
    ) {
        {
            let mut stage = self.stage();
            match *stage {
                LookupStage::Looking => *stage = LookupStage::Passing { is_cancelled: false },
                // The thread that cancelled it has answered it.
                LookupStage::Passing { .. } | LookupStage::Passed(_) | LookupStage::Over => return,
            }
        }
        let model = &self.model;
        model.statistics.pending_removed();
        // The present, as schedulers require it.
        request.mark_queued(now_ns());
        model.record(&mut request, lookup);
        let outcome = model.inner.enqueue(request);
        drop(guard);
        let Accepted { wake_up, ticket, expires_at_ns } = match outcome {
            Ok(accepted) => accepted,
            Err(Refused { status, request }) => {
                *self.stage() = LookupStage::Over;
                return request.fail(status);
            }
        };
        home.wake(wake_up);
        let ticket = Arc::new(ticket);
        let before = std::mem::replace(&mut *self.stage(), LookupStage::Passed(Arc::clone(&ticket)));
        if matches!(before, LookupStage::Passing { is_cancelled: true }) {
            home.wake(model.inner.cancel(&ticket));
        }
        if let Some(at_ns) = expires_at_ns {
            // A timer cannot be cancelled, so it must not keep a lookup that is over.
            let async_lookup: Weak<AsyncLookup> = Arc::downgrade(&self);
            let expire = move |home: &mut dyn Home| {
                if let Some(async_lookup) = async_lookup.upgrade() {
                    home.wake(async_lookup.expire());
                }
            };
            home.run_at(at_ns, Box::new(expire));
        }
    }

    /// Cancels the request; calls `answer` if no scheduler has it.
    pub fn cancel(&self, ticket: &Ticket, answer: impl FnOnce()) -> WakeUp {
        let mut stage = self.stage();
        match &mut *stage {
            LookupStage::Looking => {
                *stage = LookupStage::Over;
                drop(stage);
                if ticket.admission().cancel() {
                    answer();
                }
            }
            LookupStage::Passing { is_cancelled } => *is_cancelled = true,
            LookupStage::Passed(passed) => {
                let passed = Arc::clone(passed);
                drop(stage);
                return self.model.inner.cancel(&passed);
            }
            // Its backend can see the cancellation.
            LookupStage::Over => drop(ticket.admission().cancel()),
        }
        WakeUp::needless()
    }

    pub fn expire(&self) -> WakeUp {
        let passed = match &*self.stage() {
            LookupStage::Passed(ticket) => Arc::clone(ticket),
            LookupStage::Looking | LookupStage::Passing { .. } | LookupStage::Over => return WakeUp::needless(),
        };
        self.model.inner.expire(&passed)
    }

    fn stage(&self) -> MutexGuard<'_, LookupStage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
