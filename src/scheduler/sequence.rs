//! The sequence batcher: requests that belong together run on one instance, in their order
//! (contract/schedulers.md section 3).
//!
//! A sequence gets a slot of an instance for life, or waits in the backlog for one. Each instance's worker makes the
//! payloads of its own slots: row by row with the direct strategy, the oldest first with the other one. The live
//! sequences are in `tables`, behind one lock that is held briefly; slow or foreign code, answers, wake-ups, the
//! release of memory, runs without it.
//!
//! Idle sequences are ended by the threads that need to: a worker sleeps until the first of its own sequences has been
//! idle for too long, a request finds its own sequence idle by the clock, and a thread that finds no free slot checks
//! all instances before its request waits. So a sequence ends on time whether or not another request comes.

mod admission;
mod batch_compatibility;
mod controls;
mod direct;
mod initial;
mod instance_slots;
mod instances;
mod iterative;
mod oldest;
mod order;
mod payloads;
mod tables;

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use self::admission::SequenceTimes;
use self::batch_compatibility::BatchCompatibility;
use self::controls::Controls;
use self::direct::{DirectRules, Zeros};
use self::initial::InitialStates;
use self::oldest::OldestRules;
pub use self::tables::StartDelay;
use self::tables::{BatchRow, Effects, EndCause, Queued, SequenceLocation, SlotTake, Tables};
use super::mutants::{self, Mutant};
use super::{Accepted, Limiter, Purpose, Refused, Scheduler, Services, answer_cancelled, stopping};
use nereid_clock::now_ns;
use nereid_memory::Key;
use nereid_model_config::ModelSpec;
use nereid_observe::statistics::{FailureReason, ModelStatistics};
use nereid_request::{CorrelationId, RefusalReason, Request, SEQUENCE_START, States, Status, Ticket, WakeUp};
use nereid_wire::inference::ModelSequenceBatching;
use nereid_wire::inference::model_sequence_batching::{StrategyChoice, StrategyDirect};

/// Without `max_sequence_idle_microseconds`.
const IDLE_US: u64 = 1_000_000;

/// The sequence batcher of one model version.
pub struct SequenceBatcher {
    shared: Arc<SequenceBatcherInner>,
}

/// Shared with the releases of requests.
pub struct SequenceBatcherInner {
    this: Weak<SequenceBatcherInner>,
    tables: Mutex<Tables>,
    rules: SequenceRules,
    batching: Batching,
    spec: Arc<ModelSpec>,
    statistics: Arc<ModelStatistics>,
    limiter: Option<Arc<dyn Limiter>>,
    compatibility: BatchCompatibility,
    controls: Arc<Controls>,
    initial: Arc<InitialStates>,
    zeros: Arc<Zeros>,
    /// Requests that would be answered too late are refused.
    times: Option<SequenceTimes>,
    clock: fn() -> u64,
}

/// The settings that the tables follow.
#[derive(Debug, Clone, Copy)]
struct SequenceRules {
    strategy: Strategy,
    /// Slots of each instance.
    slots: usize,
    idle_ns: u64,
    is_iterative: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strategy {
    Direct,
    Oldest,
}

enum Batching {
    Direct(DirectRules),
    Oldest(OldestRules),
}

/// What an instance does with its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InstanceDecision {
    /// Up to so many requests go.
    Cut(usize),
    /// They wait for more, until this time or until there are so many.
    Wait { until_ns: u64, count: usize },
    /// There are no requests.
    Nothing,
}

impl SequenceRules {
    /// Whether the release of requests is reported.
    fn reports_release(&self) -> bool {
        self.strategy == Strategy::Oldest || self.is_iterative
    }
}

impl Deref for SequenceBatcher {
    type Target = SequenceBatcherInner;

    fn deref(&self) -> &SequenceBatcherInner {
        &self.shared
    }
}

impl SequenceBatcher {
    /// A batcher without workers: it accepts sequences once one has joined. Reads the files of initial states.
    pub fn new(
        purpose: &Purpose,
        services: &Services,
        config: &ModelSequenceBatching,
    ) -> Result<SequenceBatcher, Status> {
        let count = |name| std::env::var(name).ok().and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(0);
        let hold = StartDelay {
            requests: count("TRITONSERVER_DELAY_SCHEDULER"),
            backlog: count("TRITONSERVER_BACKLOG_DELAY_SCHEDULER"),
        };
        SequenceBatcher::with(purpose, services, config, hold, now_ns)
    }

    /// The same, with its environment as parameters.
    pub(super) fn with(
        purpose: &Purpose,
        services: &Services,
        config: &ModelSequenceBatching,
        hold: StartDelay,
        clock: fn() -> u64,
    ) -> Result<SequenceBatcher, Status> {
        let spec = &purpose.spec;
        let rows = usize::try_from(spec.max_batch_size).unwrap_or(usize::MAX).max(1);
        let (strategy, slots, batching) = match &config.strategy_choice {
            Some(StrategyChoice::Oldest(oldest)) => {
                let candidates = usize::try_from(oldest.max_candidate_sequences).unwrap_or(0);
                let slots = if candidates == 0 { rows } else { candidates };
                (Strategy::Oldest, slots, Batching::Oldest(OldestRules::new(oldest, spec.max_batch_size)))
            }
            Some(StrategyChoice::Direct(direct)) => {
                (Strategy::Direct, rows, Batching::Direct(DirectRules::new(direct, rows)))
            }
            None => (Strategy::Direct, rows, Batching::Direct(DirectRules::new(&StrategyDirect::default(), rows))),
        };
        let idle_us = match config.max_sequence_idle_microseconds {
            0 => IDLE_US,
            given => given,
        };
        let idle_ns = idle_us.saturating_mul(1_000);
        let rules = SequenceRules { strategy, slots, idle_ns, is_iterative: config.iterative_sequence };
        let hold = Some(hold).filter(|hold| hold.requests > 0 || hold.backlog > 0);
        let initial = InitialStates::new(spec, config, &purpose.directory, purpose.pool.clone())?;
        let shared = Arc::new_cyclic(|this| SequenceBatcherInner {
            this: this.clone(),
            tables: Mutex::new(Tables::new(rules, hold)),
            rules,
            batching,
            spec: Arc::clone(spec),
            statistics: Arc::clone(&purpose.statistics),
            limiter: services.limiter.clone(),
            compatibility: BatchCompatibility::new(spec, config),
            controls: Arc::new(Controls::new(spec, config)),
            initial: Arc::new(initial),
            zeros: Arc::default(),
            times: services.admits_by_deadline(spec).then(SequenceTimes::new),
            clock,
        });
        Ok(SequenceBatcher { shared })
    }

    /// Adds the control inputs for the request's place in its sequence, and its states.
    fn complete(&self, row: BatchRow) -> Box<Request> {
        let BatchRow { queued: Queued { mut request, .. }, sequence, mut states, flight, entered_ns } = row;
        self.statistics.pending_removed();
        request.mark_queued(request.stamps.queued_ns.max(entered_ns));
        let is_start = request.flags & SEQUENCE_START != 0;
        if is_start && !(mutants::is(Mutant::StaleState) && states.is_some()) {
            states = self.initial.fresh();
            let fresh = states.clone();
            // The replaced value is dropped without the lock.
            let _replaced = self.with_tables(|tables, _| {
                let sequence = tables.sequences.get_mut(sequence)?;
                std::mem::replace(&mut sequence.states, fresh)
            });
        }
        self.controls.add(&mut request, true);
        if let Some(states) = states {
            self.initial.add(&mut request, states);
        }
        if let Some(flight) = flight {
            self.keep(&mut request, flight);
        }
        request
    }
}

impl SequenceBatcherInner {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the tables, and then its effects.
    fn with_tables<R>(&self, work: impl FnOnce(&mut Tables, &mut Effects) -> R) -> R {
        let (result, wake_up) = self.with_tables_for_wake_up(work);
        wake_up.now();
        result
    }

    /// The same; the wake-up is returned to the caller.
    fn with_tables_for_wake_up<R>(&self, work: impl FnOnce(&mut Tables, &mut Effects) -> R) -> (R, WakeUp) {
        let mut effects = Effects::default();
        let result = work(&mut self.tables(), &mut effects);
        if let Some(times) = &self.times {
            effects.tenures_ns.drain(..).for_each(|ns| times.tenures.measured(ns));
        }
        let wake_up = effects.wake_up();
        effects.ended.drain(..).for_each(|(sequence, why)| self.answer(sequence.queue, why));
        effects.refused.drain(..).for_each(|(queued, why)| self.answer([queued], why));
        (result, wake_up)
    }

    /// Answers the requests that waited in a sequence when it ended.
    fn answer(&self, queue: impl IntoIterator<Item = Queued>, why: EndCause) {
        for Queued { request, .. } in queue {
            // One that was cancelled before has its answer.
            if !request.admission().take() {
                continue;
            }
            self.statistics.pending_removed();
            let (status, reason) = match why {
                EndCause::Cancelled => (Status::cancelled(""), FailureReason::Canceled),
                EndCause::Expired => (Status::unavailable(EXPIRED), FailureReason::Rejected),
                EndCause::Lost => (Status::sequence_lost().prefixed(&request.log_id()), FailureReason::Other),
                EndCause::Over | EndCause::Deserted => (
                    Status::refused(RefusalReason::ModelUnavailable, DESERTED).prefixed(&request.log_id()),
                    FailureReason::Other,
                ),
            };
            if request.is_counted() {
                self.statistics.request_failed(request.stamps.started_ns, (self.clock)(), reason);
            }
            request.fail(status);
        }
    }

    /// Returns a function that compares requests of a batch with the first one that it was called for.
    fn comparison(&self) -> impl FnMut(&Request, Option<&States>) -> bool + '_ {
        let mut first = None;
        move |request, states| {
            if !self.compatibility.is_needed() {
                return true;
            }
            let states = states.filter(|_| request.flags & SEQUENCE_START == 0);
            let pattern = self.compatibility.pattern(request, states, self.initial.shapes());
            *first.get_or_insert_with(|| pattern.clone()) == pattern
        }
    }

    fn without_start(&self, id: &CorrelationId) -> Status {
        Status::invalid(format!(
            "inference request for sequence {id} to model '{}' must specify the START flag on the first request of the \
             sequence",
            self.spec.name
        ))
    }

    /// The sequence of a request that was just handed in, and whether the request starts it.
    fn sequence_of(
        &self,
        request: &mut Request,
        tables: &mut Tables,
        now_ns: u64,
        effects: &mut Effects,
    ) -> Result<(Key, bool), Status> {
        let is_generated = !request.correlation_id.is_in_sequence();
        let is_start = is_generated || request.flags & SEQUENCE_START != 0;
        if is_start && tables.is_stopped {
            return Err(stopping());
        }
        if !is_generated && let Some(key) = tables.find(&request.correlation_id, now_ns, effects) {
            self.check_next(request, tables, key, now_ns)?;
            return Ok((key, false));
        }
        if !is_start {
            return Err(self.without_start(&request.correlation_id));
        }
        if !tables.has_open_lines() {
            let text = "all instances of the model are passive and take no requests";
            return Err(Status::refused(RefusalReason::ModelUnavailable, text).prefixed(&request.log_id()));
        }
        self.check_first(request, tables, now_ns, effects)?;
        if is_generated {
            request.correlation_id = tables.new_id();
            request.flags |= SEQUENCE_START;
        }
        tables.begin(request.correlation_id.clone(), now_ns, effects).map(|key| (key, true))
    }
}

/// The error of a sequence that waited in the backlog for too long.
const EXPIRED: &str = "timeout of the corresponding sequence has been expired";
const DESERTED: &str = "the last instance of the model left before it took the request";

impl Scheduler for SequenceBatcher {
    fn enqueue(&self, mut request: Box<Request>) -> Result<Accepted, Refused> {
        let model = &self.spec.name;
        let refusal = if request.batch_size > 1 {
            Some("must specify batch-size 1 due to requirements of sequence batcher")
        } else if !request.correlation_id.is_in_sequence() && !self.rules.is_iterative {
            Some("must specify a non-zero or non-empty correlation ID")
        } else {
            None
        };
        if let Some(text) = refusal {
            let status = Status::invalid(format!("inference request to model '{model}' {text}"));
            return Err(Refused { status, request });
        }
        let (now_ns, timeout_us) = (request.stamps.queued_ns, request.queueing.timeout_us);
        let mut restarted = None;
        let (outcome, wake_up) = self.with_tables_for_wake_up(|tables, effects| {
            let (key, is_new) = match self.sequence_of(&mut request, tables, now_ns, effects) {
                Ok(found) => found,
                Err(status) => return Err(Refused { status, request }),
            };
            if !is_new && request.flags & SEQUENCE_START != 0 {
                restarted = Some((request.correlation_id.clone(), request.id.clone()));
            }
            let mut ticket = request.ticket();
            ticket.tag = key.to_u64();
            self.statistics.pending_added();
            tables.push(key, Queued { request, is_again: false }, now_ns, effects);
            let waits = tables.sequences.get(key).is_some_and(|it| matches!(it.place, SequenceLocation::Backlog(_)));
            Ok((ticket, waits))
        });
        if let Some((id, request_id)) = restarted {
            tracing::warn!(
                %request_id,
                "sequence {id} for model '{model}' has a conflict. The previous sequence did not end before this \
                 sequence start. Previous sequence will be terminated early."
            );
        }
        match outcome {
            Ok((ticket, waits)) => {
                let expires = waits && timeout_us > 0;
                let expires_at_ns = expires.then(|| now_ns.saturating_add(timeout_us.saturating_mul(1_000)));
                Ok(Accepted { wake_up, ticket, expires_at_ns })
            }
            Err(refused) => {
                // Sequences that were found to be over may have made room for others.
                wake_up.now();
                Err(refused)
            }
        }
    }

    /// Cancelling the first request of a sequence cancels the others too, and so does any one in the backlog; in a slot
    /// one that is not the first is answered now and ends its sequence when its turn comes.
    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        let now_ns = (self.clock)();
        let (is_mine, wake_up) = self.with_tables_for_wake_up(|tables, effects| {
            if !ticket.admission().cancel() {
                return false;
            }
            let Some(key) = Key::from_u64(ticket.tag).and_then(|key| tables.resolve(key)) else { return true };
            let Some(sequence) = tables.sequences.get(key) else { return true };
            let is_first = |queued: &Queued| std::ptr::eq(&**queued.request.admission(), ticket.admission());
            if matches!(sequence.place, SequenceLocation::Backlog(_)) || sequence.queue.front().is_some_and(is_first) {
                tables.end(key, EndCause::Cancelled, now_ns, effects);
            }
            true
        });
        if is_mine {
            self.statistics.pending_removed();
            answer_cancelled(ticket, &self.statistics);
        }
        wake_up
    }

    /// A sequence with a time-out in the backlog is answered as a whole.
    fn expire(&self, ticket: &Ticket) -> WakeUp {
        let now_ns = (self.clock)();
        let (_, wake_up) = self.with_tables_for_wake_up(|tables, effects| {
            let waits = |tables: &Tables| {
                let key = Key::from_u64(ticket.tag).and_then(|key| tables.resolve(key))?;
                matches!(tables.sequences.get(key)?.place, SequenceLocation::Backlog(_)).then_some(key)
            };
            if waits(tables).is_some() {
                // There may have been a slot for it for a while.
                tables.reap_all(now_ns, effects);
            }
            if let Some(key) = waits(tables) {
                tables.end(key, EndCause::Expired, now_ns, effects);
            }
        });
        wake_up
    }

    /// Sequences that have begun go on until their end.
    fn stop(&self) {
        self.with_tables(|tables, effects| {
            tables.is_stopped = true;
            tables.release_hold(effects);
            tables.rouse_all(effects);
        });
    }

    fn close(&self) {
        let now_ns = (self.clock)();
        let keys = self.with_tables(|tables, _| {
            tables.is_closed = true;
            tables.sequences.keys()
        });
        for key in keys {
            self.with_tables(|tables, effects| tables.finish(key, now_ns, effects));
        }
        self.with_tables(|tables, effects| tables.rouse_all(effects));
    }

    /// Sequences that clients may still continue.
    fn unfinished(&self) -> usize {
        let now_ns = (self.clock)();
        self.with_tables(|tables, effects| {
            tables.reap_all(now_ns, effects);
            tables.sequences.len()
        })
    }
}

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod tests;
