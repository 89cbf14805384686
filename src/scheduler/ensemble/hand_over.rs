//! A worker that answers a step continues the run itself, where the steps behind need only that answer.
//!
//! It does so once its execution has returned: the backend may hold locks while it answers, and the instance is free
//! then, also for the next step. Until then the run is *kept*: the worker will advance it, unless another event takes
//! it home first. Answers of several requests to one execution go home at once, because one must not wait for the
//! others; so do answers of instances that may have more to do behind their answer.

use std::cell::RefCell;
use std::sync::Arc;

use super::driver;
use super::run::Run;
use super::turn::counts;
use crate::Payload;
use crate::mutants::{self, Mutant};

/// What a worker keeps during an execution.
enum Slot {
    /// It keeps nothing now.
    Closed,
    Free,
    Kept(Arc<Run>),
}

thread_local! {
    static SLOT: RefCell<Slot> = const { RefCell::new(Slot::Closed) };
}

fn close() -> Option<Arc<Run>> {
    match SLOT.replace(Slot::Closed) {
        Slot::Kept(run) => Some(run),
        Slot::Closed | Slot::Free => None,
    }
}

/// From before an execution of a worker until behind it. Dropped early, it sends home what was kept.
#[must_use]
pub struct HandOver(());

impl HandOver {
    /// `answers_last`: the instance returns from its execution as soon as it has answered.
    pub fn of(payload: &Payload, answers_last: bool) -> HandOver {
        SLOT.set(if answers_last && payload.len() == 1 { Slot::Free } else { Slot::Closed });
        HandOver(())
    }

    /// The execution has returned, and the instance is free: continues the run that was kept.
    pub fn finish(self) {
        if let Some(run) = close()
            && run.claim()
            && !mutants::is(Mutant::HandOverForgotten)
        {
            counts::add(|counts| counts.handed_over += 1);
            driver::go_on(run);
        }
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        send_home();
    }
}

/// Keeps the run until the calling worker has returned from its execution; false if it does not keep any now.
pub(super) fn keep(run: &Arc<Run>) -> bool {
    SLOT.with_borrow_mut(|slot| {
        let is_free = matches!(slot, Slot::Free);
        if is_free {
            *slot = Slot::Kept(Arc::clone(run));
        }
        is_free
    })
}

/// The calling thread will not return soon from its execution, if it is in one.
pub(crate) fn send_home() {
    if let Some(run) = close()
        && run.claim()
    {
        run.go_home();
    }
}
