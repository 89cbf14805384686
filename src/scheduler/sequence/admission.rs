//! Refusal of requests of sequences that would be answered too late (`--deadline-admission`): on the thread that hands
//! a request in, before the tables change.
//!
//! A refused request never was in its sequence: the sequence keeps its slot, its state and its queued requests, and its
//! client may send the request again. Three kinds of requests are not refused, because what was begun would suffer: the
//! last one of a sequence, of which the execution frees the slot; those of a sequence in the backlog behind its first
//! one, for which the time-out of the backlog applies; and, by models of every kind ([`Expected::check`]), steps of
//! ensembles that continue a sequence, because the models of other steps may have executed theirs.

use super::instance_slots::{InstanceSlots, SlotPhase};
use super::tables::{Effects, Sequence, SequenceLocation, Tables};
use super::{Batching, SequenceBatcherInner};
use crate::service_time::{Expected, ServiceTime};
use nereid_memory::Key;
use nereid_request::{Request, SEQUENCE_END, Status};

/// What is measured of a model with sequences.
pub(super) struct SequenceTimes {
    /// Executions of one batch by one instance.
    pub executions: ServiceTime,
    /// From the moment in which a sequence gets a slot to the one in which the slot is free again.
    pub tenures: ServiceTime,
}

impl SequenceTimes {
    pub fn new() -> SequenceTimes {
        SequenceTimes { executions: ServiceTime::new(1), tenures: ServiceTime::new(1) }
    }
}

impl SequenceBatcherInner {
    /// Checks the first request of a new sequence.
    pub(super) fn check_first(
        &self,
        request: &Request,
        tables: &mut Tables,
        now_ns: u64,
        effects: &mut Effects,
    ) -> Result<(), Status> {
        let Some(times) = &self.times else { return Ok(()) };
        if tables.free.is_empty() {
            // A sequence may have been idle for too long without a check.
            tables.reap_all(now_ns, effects);
        }
        let expected = match tables.free.first() {
            Some(&(_, number)) => tables.look(number).and_then(|instance| self.in_slot(times, instance, None)),
            None => times.in_backlog(tables),
        };
        self.check(request, expected)
    }

    /// Checks one more request of a sequence.
    pub(super) fn check_next(
        &self,
        request: &Request,
        tables: &mut Tables,
        key: Key,
        now_ns: u64,
    ) -> Result<(), Status> {
        let Some(times) = &self.times else { return Ok(()) };
        if request.flags & SEQUENCE_END != 0 {
            return Ok(());
        }
        let Some(sequence) = tables.sequences.get(key) else { return Ok(()) };
        let SequenceLocation::Slot { instance, slot } = sequence.place else { return Ok(()) };
        let expected = tables.look(instance).and_then(|it| self.in_slot(times, it, Some((sequence, slot))));
        let outcome = self.check(request, expected);
        if outcome.is_err()
            && let Some(sequence) = tables.sequences.get_mut(key)
        {
            // Its client is there: idleness begins anew.
            sequence.touched_ns = sequence.touched_ns.max(now_ns);
        }
        outcome
    }

    fn check(&self, request: &Request, expected: Option<Expected>) -> Result<(), Status> {
        match expected {
            None => Ok(()),
            Some(expected) => expected.check(request, self.spec.decoupled, &self.statistics),
        }
    }

    /// The course of a request in a slot of `instance`, behind the requests of its sequence there. None where nothing
    /// waits for the instance.
    fn in_slot(
        &self,
        times: &SequenceTimes,
        instance: &InstanceSlots,
        own: Option<(&Sequence, usize)>,
    ) -> Option<Expected> {
        if instance.heads.is_empty() && own.is_none_or(|(sequence, _)| sequence.queue.is_empty()) {
            return None;
        }
        let (own_waiting, own_ready) = own.map_or((0, 0), |(sequence, slot)| {
            let is_ready = instance.slots.get(slot).is_some_and(|slot| matches!(slot.phase, SlotPhase::Ready(_)));
            (sequence.queue.len(), usize::from(is_ready))
        });
        // Each request of the sequence has an execution of its own: those that wait, and this one.
        let own_executions = (own_waiting as u64).saturating_add(1);
        let executions = match &self.batching {
            // Every execution takes one request of each slot.
            Batching::Direct(_) => own_executions,
            // Each of them enters the queue behind one request of each other sequence that waits there.
            Batching::Oldest(rules) => {
                let others = instance.heads.len().saturating_sub(own_ready);
                own_executions.saturating_mul((others / rules.max_batch_size) as u64 + 1)
            }
        };
        times.executions.after(executions, 1)
    }
}

impl SequenceTimes {
    /// The course of the first request of a sequence at the end of the backlog, which gets a slot when as many
    /// sequences have left theirs as wait in front of it. None where none waits there.
    fn in_backlog(&self, tables: &Tables) -> Option<Expected> {
        let slots = tables.open_lines.saturating_mul(tables.rules.slots);
        let start_ns = self.tenures.expected(tables.backlog.len(), slots)?.start_ns;
        // It is executed with the next batch.
        let next = self.executions.after(1, 1)?;
        Some(Expected { start_ns, end_ns: start_ns.saturating_add(next.start_ns) })
    }
}
