//! How a worker waits for its next payload: it spins briefly where that pays, and then sleeps.

use std::sync::Arc;
use std::thread::Thread;
use std::time::Duration;

use super::{Next, Payload, PayloadSource};
use nereid_clock::now_ns;
use nereid_queue::waits::INSTANCES;
use nereid_queue::{AdaptiveSpin, Spin, WakeFlag};
use nereid_request::Waker;

/// Waits for a worker, with the state of its adaptive spin.
#[derive(Debug)]
pub struct Parker {
    flag: Arc<WakeFlag<Thread>>,
    spin: AdaptiveSpin,
}

impl Parker {
    /// For `thread`, the thread that waits.
    pub fn new(thread: Thread, spin: Spin) -> Parker {
        Parker { flag: Arc::new(WakeFlag::new(thread)), spin: AdaptiveSpin::new(spin, &INSTANCES) }
    }

    /// Ends a wait, this one or the next.
    #[inline]
    pub fn waker(&self) -> Waker {
        let flag = Arc::clone(&self.flag);
        Waker::new(move || {
            if flag.call() {
                INSTANCES.count_wake_up();
            }
        })
    }

    /// Waits until it is woken, or until that time.
    #[inline]
    fn until(&mut self, until_ns: Option<u64>) {
        let began_ns = now_ns();
        self.spin.spin_until(until_ns, now_ns, || self.flag.is_called());
        let mut has_slept = false;
        self.flag.wait(|| {
            let has_parked = park(until_ns);
            has_slept |= has_parked;
            has_parked
        });
        if has_slept {
            self.spin.waits().count_sleep();
        }
        self.spin.record_wait(now_ns().saturating_sub(began_ns), has_slept);
    }
}

/// Blocks worker number `worker`, on its thread, until there is a payload for it; `None` when there will be no further
/// payload. The worker joined with the waker of its `parker`, and takes no payload once it is superseded.
pub fn next_payload(
    source: &dyn PayloadSource,
    worker: usize,
    parker: &mut Parker,
    is_superseded: impl Fn() -> bool,
) -> Option<Payload> {
    loop {
        if is_superseded() {
            source.dismiss(worker);
        }
        match source.poll(worker, now_ns()) {
            Next::Execute(payload) => return Some(payload),
            Next::Leave => return None,
            Next::Sleep { until_ns } => parker.until(until_ns),
        }
    }
}

/// Sleeps, perhaps not for long enough; false if the time was over before that.
#[inline]
fn park(until_ns: Option<u64>) -> bool {
    match until_ns.map(|until_ns| until_ns.saturating_sub(now_ns())) {
        None => std::thread::park(),
        Some(0) => return false,
        Some(left_ns) => std::thread::park_timeout(Duration::from_nanos(left_ns)),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_by_a_call_or_by_its_time() {
        for spin in [Spin::default(), Spin::new(Spin::BUDGET_NS, 1)] {
            let mut parker = Parker::new(std::thread::current(), spin);
            parker.waker().wake();
            parker.until(None);
            parker.until(Some(0));
            let until_ns = now_ns() + 1_000_000;
            parker.until(Some(until_ns));
            assert!(now_ns() >= until_ns);
            let (asks, asked) = std::sync::mpsc::channel::<()>();
            let waker = parker.waker();
            let other = std::thread::spawn(move || asked.iter().for_each(|()| waker.wake()));
            for _ in 0..2_000 {
                asks.send(()).unwrap();
                // Hangs if a call is lost.
                parker.until(None);
            }
            drop(asks);
            other.join().unwrap();
        }
    }
}
