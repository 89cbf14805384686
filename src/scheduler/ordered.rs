//! Answers in the order in which requests were accepted: `preserve_ordering` (contract/schedulers.md section 2).
//!
//! It wraps another scheduler, and its link stands between each request and its home. A request takes its place before
//! the scheduler has it; an answer that comes before its turn is kept at its place. Errors, expired, cancelled and
//! cached answers have places like all others. The thread that delivers an answer passes on the due ones, one thread at
//! a time, and holds no lock meanwhile: an answer may end in code that calls back.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::mutants::{self, Mutant};
use super::{Accepted, Refused, Scheduler};
use nereid_memory::{BlockMut, Exhausted, Target};
use nereid_request::shared::OutputDestination;
use nereid_request::{Completion, Delivery, Job, OutputQuery, Request, Sink, Status, Ticket, WakeUp};

pub struct Ordered {
    inner: Arc<dyn Scheduler>,
    places: Arc<Places>,
}

/// One place for each unanswered request, and for those that have to wait for it.
#[derive(Default)]
struct Places {
    /// Locked for a few steps.
    row: Mutex<Row>,
}

#[derive(Default)]
struct Row {
    /// Number of the first place.
    first: u64,
    places: VecDeque<HeldAnswers>,
    /// A thread is passing answers on, and will check again.
    is_moving: bool,
}

#[derive(Default)]
struct HeldAnswers {
    /// Kept answers with their destination, while there are any.
    kept: Option<(Completion, SmallVec<[Delivery; 1]>)>,
    is_done: bool,
}

/// The link between a request and its home.
struct Link {
    home: Completion,
    places: Arc<Places>,
    number: u64,
}

impl Ordered {
    pub fn new(inner: Arc<dyn Scheduler>) -> Ordered {
        Ordered { inner, places: Arc::default() }
    }
}

impl Scheduler for Ordered {
    fn enqueue(&self, mut request: Box<Request>) -> Result<Accepted, Refused> {
        let number = self.places.take();
        let mut home = None;
        request.reroute(|present| {
            home = Some(present.clone());
            (Arc::new(Link { home: present, places: Arc::clone(&self.places), number }), 0)
        });
        self.inner.enqueue(request).map_err(|Refused { status, mut request }| {
            // The request goes back unchanged. Dropping the link frees its place.
            if let Some(home) = home {
                request.restore(home);
            }
            Refused { status, request }
        })
    }

    fn may_run_here(&self) -> bool {
        self.inner.may_run_here()
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        self.inner.cancel(ticket)
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        self.inner.expire(ticket)
    }

    fn stop(&self) {
        self.inner.stop();
    }

    fn close(&self) {
        self.inner.close();
    }

    fn unfinished(&self) -> usize {
        self.inner.unfinished()
    }
}

impl Places {
    fn row(&self) -> MutexGuard<'_, Row> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new last place and returns its number.
    fn take(&self) -> u64 {
        let mut row = self.row();
        row.places.push_back(HeldAnswers::default());
        row.first + (row.places.len() as u64 - 1)
    }

    fn bring(&self, number: u64, home: &Completion, delivery: Delivery) {
        if mutants::is(Mutant::OrderForgotten) {
            return home.forward(delivery);
        }
        let mut row = self.row();
        let Some(place) = row.place(number) else { return };
        place.is_done = delivery.last;
        place.kept.get_or_insert_with(|| (home.clone(), SmallVec::new())).1.push(delivery);
        self.move_on(row);
    }

    /// Marks a place for which no answer will come any more.
    fn vacate(&self, number: u64) {
        let mut row = self.row();
        if let Some(place) = row.place(number) {
            place.is_done = true;
            self.move_on(row);
        }
    }

    /// Passes on the due answers, unless another thread does.
    fn move_on<'a>(&'a self, mut row: MutexGuard<'a, Row>) {
        if std::mem::replace(&mut row.is_moving, true) {
            return;
        }
        while let Some((home, deliveries)) = row.due() {
            drop(row);
            deliveries.into_iter().for_each(|delivery| home.forward(delivery));
            // Also dropped without the lock: it may be the last reference to its request.
            drop(home);
            row = self.row();
        }
        row.is_moving = false;
    }
}

impl Row {
    /// The place with that number, unless it is done.
    fn place(&mut self, number: u64) -> Option<&mut HeldAnswers> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.places.get_mut(at).filter(|place| !place.is_done)
    }

    /// The answers that may be passed on now.
    fn due(&mut self) -> Option<(Completion, SmallVec<[Delivery; 1]>)> {
        loop {
            let place = self.places.front_mut()?;
            let kept = place.kept.take();
            if place.is_done {
                self.places.pop_front();
                self.first += 1;
            } else if kept.is_none() {
                return None;
            }
            if kept.is_some() {
                return kept;
            }
        }
    }
}

impl Sink for Link {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        self.places.bring(self.number, &self.home, delivery);
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

    fn preferred_place(
        &self,
        _key: u64,
        query: (Option<&CStr>, Option<usize>),
        place: nereid_request::Place,
    ) -> Result<nereid_request::Place, Status> {
        self.home.preferred_place(query, place)
    }

    fn at_home(&self, job: Box<dyn Job>) {
        self.home.at_home(job);
    }
}

/// Refused, withdrawn, or answered long ago: the others need not wait for it.
impl Drop for Link {
    fn drop(&mut self) {
        if !mutants::is(Mutant::RefusalKeepsPlace) {
            self.places.vacate(self.number);
        }
    }
}

#[cfg(test)]
mod tests;
