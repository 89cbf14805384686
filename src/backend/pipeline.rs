//! The batches that an instance has under way on its device: one is copied in while the one before computes and the one
//! before that is copied out.
//!
//! The backend defines the batches and their results. The order, in which batches complete as they were launched, and
//! the thread's waiting are common to all backends and implemented here.

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use super::InstanceContext;
use nereid_clock::now_ns;
use nereid_gpu::{DriverError, Flight};
use nereid_observe::statistics::Execution;
use nereid_request::{Request, Status};
use nereid_scheduler::Payload;

/// Batches under way: one comes in, one computes, one goes out.
pub const UNDER_WAY_MAX: usize = 3;

/// Polls of a batch under way before the thread sleeps between polls.
const POLLS_AWAKE: u32 = 32;
/// A fifth of the fastest round trip of a batch over the device.
const NAP: Duration = Duration::from_micros(20);

/// Sleeps for [`NAP`]. The kernel may end a thread's sleep later by its timer slack, 50 µs unless the thread sets less.
fn nap() {
    const SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
    thread_local! {
        static HAS_SLACK: Cell<bool> = const { Cell::new(false) };
    }
    if !HAS_SLACK.replace(true) {
        // Some sandboxes refuse this; then naps are longer.
        let _ = rustix::thread::set_current_timer_slack(Some(SLACK_NS));
    }
    std::thread::sleep(NAP);
}

/// Requests that are computed together, with the data that their backend keeps for them meanwhile.
pub struct Batch<C> {
    pub flight: Flight,
    pub cargo: C,
    pub rows: u64,
    pub start_ns: u64,
    pub compute_start_ns: u64,
    compute_end_ns: Option<u64>,
}

impl<C> Batch<C> {
    pub fn new(flight: Flight, cargo: C, rows: u64, (start_ns, compute_start_ns): (u64, u64)) -> Batch<C> {
        Batch { flight, cargo, rows, start_ns, compute_start_ns, compute_end_ns: None }
    }

    /// The times of its execution, with the end at this moment.
    pub fn execution(&self) -> Execution {
        let end_ns = now_ns();
        Execution {
            exec_start_ns: self.start_ns,
            compute_start_ns: self.compute_start_ns,
            compute_end_ns: self.compute_end_ns.unwrap_or(end_ns),
            exec_end_ns: end_ns,
        }
    }
}

/// An instance that pipelines batches over a device.
pub trait Pipelined {
    type Cargo;

    fn context(&self) -> &InstanceContext;

    fn under_way(&mut self) -> &mut VecDeque<Batch<Self::Cargo>>;

    /// Launches the requests; those that cannot be launched are answered.
    fn launch(&mut self, payload: &mut Payload);

    /// Answers the requests of a completed batch.
    fn answer(&self, batch: Batch<Self::Cargo>);

    /// The requests of a batch, after the device failed while it was under way.
    fn requests(cargo: Self::Cargo) -> impl Iterator<Item = Box<Request>>;

    /// Answers the requests that were under way when the device failed.
    fn fail(&self, requests: impl Iterator<Item = Box<Request>>, error: &DriverError) {
        let context = self.context();
        let status = Status::from(error.clone());
        let gpu = context.gpu.as_ref().map(|gpu| format!(" on GPU {gpu}")).unwrap_or_default();
        let message = format!("instance '{}'{gpu}: {}", context.name, status.message);
        let status = Status { message: message.into(), ..status };
        requests.for_each(|request| context.fail(request, status.clone()));
    }

    /// Executes the payload, and further payloads while it is under way, at most `most` batches at once.
    fn execute_up_to(&mut self, most: usize, payload: &mut Payload) {
        self.launch(payload);
        let mut polls = 0u32;
        while !self.under_way().is_empty() {
            let next = if self.under_way().len() < most { payload.more() } else { None };
            if let Some(mut next) = next {
                self.launch(&mut next);
                polls = 0;
                continue;
            }
            if self.answer_oldest() {
                polls = 0;
                continue;
            }
            polls = polls.saturating_add(1);
            if self.context().spin.is_unbounded() {
                std::hint::spin_loop();
            } else if polls < POLLS_AWAKE {
                std::thread::yield_now();
            } else {
                nap();
            }
        }
    }

    /// Answers the oldest batch if it has completed; false: nothing has changed.
    fn answer_oldest(&mut self) -> bool {
        let under_way = self.under_way();
        for batch in under_way.iter_mut() {
            if batch.compute_end_ns.is_none() && batch.flight.is_computed().is_ok_and(|is_computed| is_computed) {
                batch.compute_end_ns = Some(now_ns());
            }
        }
        let Some(first) = under_way.front_mut() else { return false };
        let complete = match first.flight.is_complete() {
            Ok(false) => return false,
            complete => complete,
        };
        let Some(batch) = under_way.pop_front() else { return false };
        match complete {
            Ok(_) => self.answer(batch),
            Err(error) => {
                let Batch { flight, cargo, .. } = batch;
                // The flight uses the data of the cargo until it is dropped.
                drop(flight);
                self.fail(Self::requests(cargo), &error);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nap_is_not_made_longer_by_the_timer_slack() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                nap();
                assert_eq!(rustix::thread::current_timer_slack().unwrap(), 1_000);
            });
        });
    }
}
