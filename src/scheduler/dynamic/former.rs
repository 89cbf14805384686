//! Forms batches: the scan over the waiting requests, and the decision after it (contract/schedulers.md section 2,
//! "Forming").

use std::sync::Arc;

use super::consultation::{Consultation, Inclusion};
use super::equality::Equality;
use super::levels::Levels;
use super::policy::Policies;
use super::queues::{Entry, Position, Queues};
use crate::{
    BatchStrategy, Payload,
    batch_queue::{Arrivals, PayloadFormer, PayloadStatus},
    mutants::{self, Mutant},
};
use nereid_model_config::ModelSpec;
use nereid_request::Request;
use nereid_wire::inference::ModelDynamicBatching;
use nereid_wire::inference::model_queue_policy::TimeoutAction;

pub(super) struct Batches {
    queues: Queues,
    sizes: Sizes,
    delay_ns: u64,
    equality: Equality,
    policies: Arc<Policies>,
    levels: Arc<Levels>,
    /// No batch is formed before so many requests wait for the first time (TRITONSERVER_DELAY_SCHEDULER).
    delayed_until: usize,
    /// How many entries the last check put into the batch.
    chosen: usize,
    /// Present where the model has a custom strategy.
    consultation: Option<Consultation>,
}

/// Batch sizes, in rows.
#[derive(Debug, Clone)]
struct Sizes {
    max: usize,
    /// Ascending.
    preferred: Vec<usize>,
    largest_preferred: usize,
}

/// Result of a scan, in rows and entries from the front.
#[derive(Debug, Default)]
struct Scan {
    rows: usize,
    entries: usize,
    /// Entries up to the largest preferred size that was met, or to the point after which all would be exceeded.
    best: Option<usize>,
    /// The batch can grow no more.
    is_closed: bool,
    oldest_ns: Option<u64>,
    closest_deadline_ns: Option<u64>,
}

/// The outcome of a decision.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// The first so many entries are the batch.
    Send(usize),
    /// Check again when so many rows wait, or at that time.
    Wait { rows: usize, until_ns: Option<u64> },
}

impl Sizes {
    fn new(config: &ModelDynamicBatching, spec: &ModelSpec) -> Sizes {
        // Without a batch dimension every request is a batch of its own.
        let max = usize::try_from(spec.max_batch_size).unwrap_or(usize::MAX).max(1);
        let given = config.preferred_batch_size.iter();
        let mut preferred: Vec<usize> = given.filter_map(|&size| usize::try_from(size).ok()).collect();
        preferred.sort_unstable();
        preferred.dedup();
        let largest_preferred = preferred.last().copied().unwrap_or(max);
        Sizes { max, preferred, largest_preferred }
    }

    fn is_preferred(&self, rows: usize) -> bool {
        let rows = if mutants::is(Mutant::PreferredOffByOne) { rows + 1 } else { rows };
        self.preferred.binary_search(&rows).is_ok()
    }

    /// The next size at which a wake-up is useful.
    fn next(&self, rows: usize) -> usize {
        let at = self.preferred.partition_point(|&size| size <= rows);
        self.preferred.get(at).copied().unwrap_or(self.max)
    }
}

impl Batches {
    pub fn new(
        config: &ModelDynamicBatching,
        spec: &ModelSpec,
        policies: Arc<Policies>,
        levels: Arc<Levels>,
        delayed_until: usize,
    ) -> Batches {
        Batches {
            queues: Queues::default(),
            sizes: Sizes::new(config, spec),
            delay_ns: config.max_queue_delay_microseconds.saturating_mul(1_000),
            equality: Equality::of(spec),
            policies,
            levels,
            delayed_until,
            chosen: 0,
            consultation: None,
        }
    }

    /// The same, with calls to a strategy for each request.
    pub fn consulting(self, strategy: Option<Arc<dyn BatchStrategy>>) -> Batches {
        Batches { consultation: strategy.map(Consultation::new), ..self }
    }

    /// A waiting request was taken out or moved.
    fn disturb(&mut self) {
        if let Some(consultation) = &mut self.consultation {
            consultation.forget();
        }
    }

    fn drain(&mut self, arrivals: &mut Arrivals<'_>) {
        while let Some(request) = arrivals.pop() {
            let deadline_ns = self.policies.of(request.queueing.priority).deadline_ns(&request);
            self.queues.push(Entry { rows: Batches::weight(&request), deadline_ns, request });
        }
    }

    /// Goes over the waiting requests until the batch is full, and takes out those that the policies remove.
    fn scan(&mut self, arrivals: &mut Arrivals<'_>, now_ns: u64) -> Scan {
        let mut scan = Scan::default();
        let Some(start) = self.queues.first() else { return scan };
        let (mut position, mut first) = (start, None);
        while let Some(entry) = self.queues.settle(&mut position) {
            if !entry.request.admission().is_queued() && !mutants::is(Mutant::TombstoneCounted) {
                if let Some(Entry { request, rows, .. }) = self.queues.remove(position) {
                    arrivals.bury(request, rows);
                }
                self.disturb();
                continue;
            }
            // A request has expired when the present is strictly later.
            if entry.deadline_ns.is_some_and(|deadline_ns| now_ns > deadline_ns) {
                match self.policies.of(entry.request.queueing.priority).action {
                    TimeoutAction::Delay => self.queues.delay(position),
                    TimeoutAction::Reject => self.reject(arrivals, position),
                }
                self.disturb();
                continue;
            }
            let rows = scan.rows.saturating_add(entry.rows);
            if let Some(first) = first {
                if rows > self.sizes.largest_preferred && scan.best.is_none() {
                    scan.best = Some(scan.entries);
                }
                let is_too_large = rows > self.sizes.max && !mutants::is(Mutant::MaxBatchIgnored);
                if is_too_large || !self.fits(first, &entry.request) {
                    scan.is_closed = true;
                    break;
                }
            }
            if let Some(consultation) = &mut self.consultation {
                match consultation.judge(scan.entries, &entry.request) {
                    Inclusion::In => {}
                    Inclusion::Anew => {
                        (scan, position, first) = (Scan::default(), start, None);
                        continue;
                    }
                    // A request that the strategy includes in no batch goes by itself: otherwise it would never be
                    // answered.
                    Inclusion::Closed => {
                        scan.is_closed = true;
                        if first.is_some() {
                            break;
                        }
                    }
                }
            }
            let queued_ns = entry.request.stamps.queued_ns;
            scan.oldest_ns = Some(scan.oldest_ns.map_or(queued_ns, |oldest_ns| oldest_ns.min(queued_ns)));
            scan.closest_deadline_ns = scan.closest_deadline_ns.into_iter().chain(entry.deadline_ns).min();
            first = first.or(Some(position));
            (scan.rows, scan.entries) = (rows, scan.entries + 1);
            if self.sizes.is_preferred(rows) {
                scan.best = Some(scan.entries);
            }
            if scan.is_closed {
                break;
            }
            position = position.next();
        }
        scan
    }

    fn fits(&self, first: Position, request: &Request) -> bool {
        self.equality.is_given()
            || self.queues.get(first).is_none_or(|first| self.equality.holds(&first.request, request))
    }

    /// Rejects the request at `position`, which waited for too long. Its home has a timer for that, but it may fire
    /// later.
    fn reject(&mut self, arrivals: &mut Arrivals<'_>, position: Position) {
        let Some(Entry { request, rows, .. }) = self.queues.remove(position) else { return };
        if !request.admission().expire() {
            return arrivals.bury(request, rows);
        }
        self.levels.leave(request.queueing.priority, self.policies.of(request.queueing.priority));
        arrivals.expire(request, rows);
    }

    /// The decision after a scan, row by row of the specification's list.
    fn decide(&self, scan: &Scan, now_ns: u64, is_draining: bool) -> Decision {
        let Some(oldest_ns) = scan.oldest_ns else { return Decision::Wait { rows: 1, until_ns: None } };
        let is_late = self.delay_ns > 0 && now_ns.saturating_sub(oldest_ns) >= self.delay_ns;
        match scan.best {
            Some(best) if !is_late => return Decision::Send(best),
            _ => {}
        }
        let can_grow = !is_draining && !scan.is_closed && scan.rows < self.sizes.largest_preferred;
        if !can_grow || is_late || self.delay_ns == 0 {
            return Decision::Send(scan.entries);
        }
        let until_ns = Some(oldest_ns.saturating_add(self.delay_ns));
        let until_ns = until_ns.into_iter().chain(scan.closest_deadline_ns.map(|at_ns| at_ns.saturating_add(1))).min();
        Decision::Wait {
            // Where a request may end a batch by its shape or by the model's own rule, each one has to be checked.
            rows: if self.equality.is_given() && self.consultation.is_none() {
                self.sizes.next(scan.rows)
            } else {
                scan.rows + 1
            },
            until_ns: until_ns.filter(|_| !mutants::is(Mutant::DelayForgotten)),
        }
    }
}

impl PayloadFormer for Batches {
    fn weight(request: &Request) -> usize {
        usize::try_from(request.batch_size).unwrap_or(usize::MAX).max(1)
    }

    fn check(&mut self, arrivals: &mut Arrivals<'_>, now_ns: u64, is_draining: bool) -> PayloadStatus {
        self.drain(arrivals);
        if self.queues.count < self.delayed_until && !is_draining {
            let (drained, missing) = (self.queues.rows, self.delayed_until - self.queues.count);
            // Each of the missing requests has one row at least.
            return PayloadStatus::Wait { drained, wake_at: drained.saturating_add(missing), until_ns: None };
        }
        self.delayed_until = 0;
        let scan = self.scan(arrivals, now_ns);
        self.queues.tidy();
        match self.decide(&scan, now_ns, is_draining) {
            Decision::Send(entries) => {
                self.chosen = entries;
                PayloadStatus::Ready
            }
            Decision::Wait { rows, until_ns } => {
                PayloadStatus::Wait { drained: self.queues.rows, wake_at: rows, until_ns }
            }
        }
    }

    fn cut(&mut self, arrivals: &mut Arrivals<'_>) -> Payload {
        let mut payload = Payload::default();
        for _ in 0..std::mem::take(&mut self.chosen) {
            let Some(Entry { request, rows, .. }) = self.queues.pop() else { break };
            let level = request.queueing.priority;
            if arrivals.take(request, rows, &mut payload) && !mutants::is(Mutant::PlaceKept) {
                self.levels.leave(level, self.policies.of(level));
            }
        }
        if let Some(consultation) = &mut self.consultation {
            consultation.end();
        }
        payload
    }

    fn sweep(&mut self, arrivals: &mut Arrivals<'_>) {
        self.drain(arrivals);
        // The strategy itself is not called here: this may be a shard.
        self.disturb();
        for Entry { request, rows, .. } in self.queues.extract(|entry| entry.request.admission().is_queued()) {
            arrivals.bury(request, rows);
        }
    }
}
