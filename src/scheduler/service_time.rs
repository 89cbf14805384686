//! How long the executions of a model take, and from that when a request that comes now would be answered, or whether
//! it would be too late (`--deadline-admission`).
//!
//! Workers measure, shards read: one number that is stored without a lock. Two workers that store at the same moment
//! may lose one of their measurements, which the next ones make up for.

use std::sync::atomic::{AtomicU64, Ordering};

use nereid_observe::statistics::ModelStatistics;
use nereid_request::{RefusalReason, Request, Status};

/// One part in so many of the mean is the last measurement.
const LAST_PART: u64 = 8;

/// One part in so many of an estimate is added to it: executions vary, and an answer has a way to go. Without that, all
/// that is accepted under overload would be answered at its deadline, half of it behind.
const ALLOWANCE_PART: u128 = 16;

/// The mean time of an execution, the latest ones weighing most.
#[derive(Debug)]
pub(super) struct ServiceTime {
    /// 0: nothing was measured.
    execution_ns: AtomicU64,
    /// Weight of the largest batch.
    batch_max: usize,
}

/// The expected course of a request, in nanoseconds from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected {
    pub start_ns: u64,
    pub end_ns: u64,
}

impl ServiceTime {
    pub fn new(batch_max: usize) -> ServiceTime {
        ServiceTime { execution_ns: AtomicU64::new(0), batch_max: batch_max.max(1) }
    }

    /// A worker was busy with one batch for so long.
    pub fn measured(&self, ns: u64) {
        let ns = ns.max(1);
        let mean = match self.execution_ns.load(Ordering::Relaxed) {
            0 => ns,
            mean if ns >= mean => mean.saturating_add((ns - mean).div_ceil(LAST_PART)),
            mean => mean - (mean - ns).div_ceil(LAST_PART),
        };
        self.execution_ns.store(mean, Ordering::Relaxed);
    }

    /// The course of a request behind `waiting` others, by weight, for `workers`. None where that is not known: nothing
    /// was measured, or nothing waits. Then the request is accepted, and measured: so a model that was slow for a while
    /// is found to be fast again.
    ///
    /// The batches in front are as large as they can be. Those that are being executed have just begun: when so many
    /// wait that only some are accepted, that is right after a batch was taken, because it made the room.
    pub fn expected(&self, waiting: usize, workers: usize) -> Option<Expected> {
        if waiting == 0 {
            return None;
        }
        self.after(((waiting / self.batch_max) as u64).saturating_add(1), workers)
    }

    /// The course of a request that starts after so many executions by `workers`. None before the first measurement.
    pub fn after(&self, executions: u64, workers: usize) -> Option<Expected> {
        let execution_ns = self.execution_ns.load(Ordering::Relaxed);
        if execution_ns == 0 {
            return None;
        }
        let start_ns = u128::from(execution_ns) * u128::from(executions) / u128::from(workers.max(1) as u64);
        let with_allowance = |ns: u128| u64::try_from(ns.saturating_add(ns / ALLOWANCE_PART)).unwrap_or(u64::MAX);
        let end_ns = start_ns.saturating_add(u128::from(execution_ns));
        Some(Expected { start_ns: with_allowance(start_ns), end_ns: with_allowance(end_ns) })
    }
}

impl Expected {
    /// Refuses a request that would be answered, or started, too late, unless it continues a sequence in an ensemble. A
    /// model that answers once does so at the end; a decoupled one may answer as soon as it starts.
    pub fn check(&self, request: &Request, is_decoupled: bool, statistics: &ModelStatistics) -> Result<(), Status> {
        if request.ingress.continues_sequence {
            return Ok(());
        }
        let queueing = &request.queueing;
        let left_ns = match queueing.answer_by_ns {
            0 => u64::MAX,
            by_ns => by_ns.saturating_sub(request.stamps.queued_ns),
        };
        let wait_max_ns = match queueing.timeout_us {
            0 => u64::MAX,
            timeout_us => timeout_us.saturating_mul(1000),
        };
        let answer_ns = if is_decoupled { self.start_ns } else { self.end_ns };
        let text = if answer_ns > left_ns {
            format!("the answer is expected in {} us, after the deadline of the request", answer_ns / 1000)
        } else if self.start_ns > wait_max_ns {
            format!("the execution is expected to start in {} us, after the request's timeout", self.start_ns / 1000)
        } else {
            return Ok(());
        };
        if request.is_counted() {
            statistics.refused(RefusalReason::Deadline);
        }
        Err(Status::refused(RefusalReason::Deadline, text).prefixed(&request.log_id()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use nereid_memory::{BlockMut, Exhausted};
    use nereid_request::{Completion, Delivery, Sink};

    const MS: u64 = 1_000_000;

    struct Nowhere;

    impl Sink for Nowhere {
        fn deliver(&self, _key: u64, _delivery: Delivery) {}

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    fn measured(batch_max: usize, ns: u64) -> ServiceTime {
        let time = ServiceTime::new(batch_max);
        time.measured(ns);
        time
    }

    fn expected(time: &ServiceTime, waiting: usize, workers: usize) -> (u64, u64) {
        let Expected { start_ns, end_ns } = time.expected(waiting, workers).unwrap();
        (start_ns, end_ns)
    }

    #[test]
    fn nothing_is_expected_before_a_measurement_nor_where_nothing_waits() {
        assert_eq!(ServiceTime::new(1).expected(1_000_000, 1), None);
        assert_eq!(measured(1, 10 * MS).expected(0, 1), None);
        assert!(measured(1, 0).expected(1, 1).is_some(), "an execution of no time is a measurement");
    }

    #[test]
    fn a_request_starts_behind_the_full_batches_in_front_and_one_execution() {
        // 16 of 16 parts, and the allowance.
        let single = measured(1, 16 * MS);
        assert_eq!(expected(&single, 1, 1), (2 * 17 * MS, 3 * 17 * MS));
        assert_eq!(expected(&single, 9, 1), (10 * 17 * MS, 11 * 17 * MS));
        assert_eq!(expected(&single, 9, 2), (5 * 17 * MS, 6 * 17 * MS), "two instances are twice as fast");
        assert_eq!(expected(&single, 9, 0), expected(&single, 9, 1), "all workers leave");
        let batching = measured(8, 16 * MS);
        for waiting in [1, 7] {
            assert_eq!(expected(&batching, waiting, 1), (17 * MS, 2 * 17 * MS), "it is in the next batch");
        }
        assert_eq!(expected(&batching, 8, 1), (2 * 17 * MS, 3 * 17 * MS));
        assert_eq!(expected(&measured(0, 16 * MS), 1, 1), expected(&single, 1, 1), "a batch has one row at least");
    }

    #[test]
    fn a_deadline_and_a_timeout_may_be_met_exactly() {
        let expected = Expected { start_ns: 2_000, end_ns: 3_000 };
        let check = |answer_by_ns: u64, timeout_us: u64, is_decoupled: bool| {
            let mut request = Box::new(Request::new(Completion::new(Arc::new(Nowhere), 0)));
            request.stamps.queued_ns = 10_000;
            request.queueing.answer_by_ns = answer_by_ns;
            request.queueing.timeout_us = timeout_us;
            let statistics = ModelStatistics::default();
            let outcome = expected.check(&request, is_decoupled, &statistics);
            let refused = statistics.snapshot().refused.iter().sum::<u64>();
            assert_eq!(refused, u64::from(outcome.is_err()), "what is refused is counted");
            request.withdraw();
            outcome.map_err(|status| status.message.to_string()).err()
        };
        let late = |us: u64| {
            let text = "after the deadline of the request";
            Some(format!("[request id: <id_unknown>] the answer is expected in {us} us, {text}"))
        };
        for (answer_by_ns, timeout_us, is_decoupled, refusal) in [
            (0, 0, false, None),
            (13_000, 2, false, None),
            (12_999, 0, false, late(3)),
            (9_000, 0, false, late(3)),
            (12_000, 0, true, None),
            (11_999, 0, true, late(2)),
        ] {
            assert_eq!(check(answer_by_ns, timeout_us, is_decoupled), refusal, "{answer_by_ns} {timeout_us}");
        }
        let started = check(13_000, 1, false).unwrap();
        let text = "the execution is expected to start in 2 us, after the request's timeout";
        assert!(started.ends_with(text), "{started}");
    }

    #[test]
    fn no_number_is_too_large() {
        let slow = measured(1, u64::MAX);
        assert_eq!(expected(&slow, usize::MAX, 1), (u64::MAX, u64::MAX));
        slow.measured(u64::MAX);
        assert_eq!(slow.execution_ns.load(Ordering::Relaxed), u64::MAX);
    }

    #[test]
    fn the_mean_follows_the_measurements_up_and_down() {
        let time = measured(1, 80);
        time.measured(160);
        assert_eq!(time.execution_ns.load(Ordering::Relaxed), 90);
        time.measured(10);
        assert_eq!(time.execution_ns.load(Ordering::Relaxed), 80);
        for fast_or_slow in [1, 1_000_000] {
            (0..200).for_each(|_| time.measured(fast_or_slow));
            assert_eq!(time.execution_ns.load(Ordering::Relaxed), fast_or_slow, "it gets there");
        }
    }
}
