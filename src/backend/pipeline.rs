//! The batches that an instance has under way on its device: the next one comes in while one computes and the last one
//! goes out.
//!
//! Which batches these are and what becomes of them is a backend's own; that they land in the order in which they were
//! sent, and how the thread waits for them, is the same for all.

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use super::InstanceContext;
use crate::scheduler::Payload;
use nereid_clock::now_ns;
use nereid_gpu::{DriverError, Flight};
use nereid_observe::statistics::Execution;
use nereid_request::{Request, Status};

/// Batches under way: one comes in, one computes, one goes out.
pub const UNDER_WAY_MAX: usize = 3;

/// Looks at a batch that is under way before the thread sleeps between them.
const LOOKS_AWAKE: u32 = 32;
/// A fifth of what a batch takes on the fastest way there and back.
const NAP: Duration = Duration::from_micros(20);

/// Sleeps for [`NAP`]. The kernel may end a thread's sleep later by its timer slack, 50 µs unless the thread sets less.
fn nap() {
    const SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
    thread_local! {
        static HAS_SLACK: Cell<bool> = const { Cell::new(false) };
    }
    if !HAS_SLACK.replace(true) {
        // Refused by some sandboxes; then naps are longer.
        let _ = rustix::thread::set_current_timer_slack(Some(SLACK_NS));
    }
    std::thread::sleep(NAP);
}

/// Requests that are computed together, and what their backend keeps of them meanwhile.
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

    /// The times of its execution, which ends now.
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

/// An instance that works on a device this way.
pub trait Pipelined {
    type Cargo;

    fn context(&self) -> &InstanceContext;

    fn under_way(&mut self) -> &mut VecDeque<Batch<Self::Cargo>>;

    /// Sends the requests on their way; what cannot go is answered.
    fn launch(&mut self, payload: &mut Payload);

    /// A batch is back.
    fn answer(&self, batch: Batch<Self::Cargo>);

    /// The device failed while the batch was under way: these are its requests.
    fn requests(cargo: Self::Cargo) -> impl Iterator<Item = Box<Request>>;

    /// Answers what an error of the device left.
    fn fail(&self, requests: impl Iterator<Item = Box<Request>>, error: &DriverError) {
        let context = self.context();
        let status = Status::from(error.clone());
        let gpu = context.gpu.as_ref().map(|gpu| format!(" on GPU {gpu}")).unwrap_or_default();
        let message = format!("instance '{}'{gpu}: {}", context.name, status.message);
        let status = Status { message: message.into(), ..status };
        requests.for_each(|request| context.fail(request, status.clone()));
    }

    /// Executes the payload, and what follows it while it is under way, at most `most` batches at once.
    fn execute_up_to(&mut self, most: usize, payload: &mut Payload) {
        self.launch(payload);
        let mut looks = 0u32;
        while !self.under_way().is_empty() {
            let next = if self.under_way().len() < most { payload.more() } else { None };
            if let Some(mut next) = next {
                self.launch(&mut next);
                looks = 0;
                continue;
            }
            if self.attend() {
                looks = 0;
                continue;
            }
            looks = looks.saturating_add(1);
            if self.context().spin.is_allowed() {
                std::hint::spin_loop();
            } else if looks < LOOKS_AWAKE {
                std::thread::yield_now();
            } else {
                nap();
            }
        }
    }

    /// Looks after what is under way; false: nothing has changed.
    fn attend(&mut self) -> bool {
        let under_way = self.under_way();
        for batch in under_way.iter_mut() {
            if batch.compute_end_ns.is_none() && batch.flight.is_computed().is_ok_and(|is_computed| is_computed) {
                batch.compute_end_ns = Some(now_ns());
            }
        }
        let Some(first) = under_way.front_mut() else { return false };
        let landed = match first.flight.has_landed() {
            Ok(false) => return false,
            landed => landed,
        };
        let Some(batch) = under_way.pop_front() else { return false };
        match landed {
            Ok(_) => self.answer(batch),
            Err(error) => {
                let Batch { flight, cargo, .. } = batch;
                // It uses what the cargo holds until it is gone.
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
