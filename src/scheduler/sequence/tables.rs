//! The live sequences and their slots: everything behind the model's one lock.
//!
//! A sequence has a generational key, so that a late call, a release, a timer, a cancellation, finds nothing instead of
//! another sequence in the same slot. Every call here does a bounded amount of work and returns the work to do without
//! the lock (`Effects`): nothing is answered, woken or dropped in here.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use super::instance_slots::{InstanceSlots, SequenceSlot, SlotHead, SlotPhase};
use super::{SequenceRules, Strategy};
use crate::mutants::{self, Mutant};
use nereid_memory::{Key, Slab};
use nereid_request::{CorrelationId, RefusalReason, Request, SEQUENCE_END, States, Status, WakeUp, Waker};

/// Sequences that a model may have at a time, most of them in the backlog.
const SEQUENCES_MAX: usize = u32::MAX as usize;
/// A sequence that waits in the backlog counts as recently checked: one that got a slot after its time is over keeps it
/// for this long (contract/schedulers.md section 3, "Idle and timeouts").
const BACKLOG_LOOK_NS: u64 = 50_000_000;

/// The tables of one model version.
pub(super) struct Tables {
    pub rules: SequenceRules,
    pub sequences: Slab<Sequence>,
    pub ids: HashMap<CorrelationId, Key>,
    /// Sequences without a slot, in the order of their first requests.
    pub backlog: BTreeMap<u64, Key>,
    /// For every instance its free slots, and the next one that could be made: `(slot, instance)`.
    pub free: BTreeSet<(usize, usize)>,
    pub instances: Vec<Option<InstanceSlots>>,
    /// Instances that take sequences.
    pub open_lines: usize,
    pub flights: HashMap<u64, ExecutingRequest>,
    serial: u64,
    /// The last id that the server chose.
    pub last_id: u64,
    pub is_stopped: bool,
    pub is_closed: bool,
    /// No request is executed before so many have come.
    pub hold: Option<StartDelay>,
    /// Requests that wait in slots, and in the backlog.
    pub in_slots: usize,
    in_backlog: usize,
}

/// `TRITONSERVER_DELAY_SCHEDULER` and `TRITONSERVER_BACKLOG_DELAY_SCHEDULER`.
#[derive(Debug, Clone, Copy)]
pub struct StartDelay {
    pub requests: usize,
    pub backlog: usize,
}

pub(super) struct Sequence {
    pub id: CorrelationId,
    /// Its id is mapped to it.
    pub is_mapped: bool,
    pub place: SequenceLocation,
    pub queue: VecDeque<Queued>,
    pub states: Option<Arc<States>>,
    /// When its last request came.
    pub touched_ns: u64,
    /// When it got its slot.
    placed_ns: u64,
    /// Its entry among the deadlines of its instance.
    deadline_ns: Option<u64>,
    /// It ends as soon as none of its requests waits.
    is_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SequenceLocation {
    Slot { instance: usize, slot: usize },
    Backlog(u64),
}

/// A queued request.
pub(super) struct Queued {
    pub request: Box<Request>,
    /// It was executed before.
    pub is_again: bool,
}

/// A request that its backend has.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExecutingRequest {
    instance: usize,
    birth: u64,
    slot: usize,
    pub sequence: Key,
}

/// Work to do without the lock.
#[derive(Default)]
pub(super) struct Effects {
    pub ended: Vec<(Sequence, EndCause)>,
    /// Queued requests that are refused while their sequences go on.
    pub refused: Vec<(Queued, EndCause)>,
    pub instances: Vec<InstanceSlots>,
    pub wakers: SmallVec<[Waker; 1]>,
    /// For how long the sequences that ended had their slots.
    pub tenures_ns: SmallVec<[u64; 1]>,
}

/// Why the queued requests of a sequence end with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndCause {
    /// No request is left.
    Over,
    Cancelled,
    Expired,
    /// There is no instance for it any more.
    Deserted,
    /// Its instance has lost its state.
    Lost,
}

impl Effects {
    pub fn wake_up(&mut self) -> WakeUp {
        let mut wakers = std::mem::take(&mut self.wakers);
        match wakers.len() {
            0 | 1 => WakeUp::of(wakers.pop()),
            _ => WakeUp::of(Some(Waker::new(move || wakers.iter().for_each(Waker::wake)))),
        }
    }
}

/// What [`Tables::take`] found in a slot.
pub(super) enum SlotTake {
    BatchRow(BatchRow),
    /// There is no request, or none any more.
    Nothing,
    /// Its request does not fit into the batch.
    Unlike,
}

/// A request on its way into a payload.
pub(super) struct BatchRow {
    pub queued: Queued,
    pub sequence: Key,
    pub states: Option<Arc<States>>,
    /// For the report of its release.
    pub flight: Option<u64>,
    pub entered_ns: u64,
}

impl Tables {
    pub fn new(rules: SequenceRules, hold: Option<StartDelay>) -> Tables {
        Tables {
            rules,
            sequences: Slab::new(SEQUENCES_MAX),
            ids: HashMap::new(),
            backlog: BTreeMap::new(),
            free: BTreeSet::new(),
            instances: Vec::new(),
            open_lines: 0,
            flights: HashMap::new(),
            serial: 0,
            last_id: 0,
            is_stopped: false,
            is_closed: false,
            hold,
            in_slots: 0,
            in_backlog: 0,
        }
    }

    pub fn instance(&mut self, number: usize) -> Option<&mut InstanceSlots> {
        self.instances.get_mut(number)?.as_mut()
    }

    pub fn look(&self, number: usize) -> Option<&InstanceSlots> {
        self.instances.get(number)?.as_ref()
    }

    pub fn has_open_lines(&self) -> bool {
        self.open_lines > 0
    }

    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// The sequence that a key refers to now, if any.
    pub fn resolve(&self, key: Key) -> Option<Key> {
        if mutants::is(Mutant::StaleSequence) {
            return self.sequences.keys().into_iter().find(|other| other.index() == key.index());
        }
        self.sequences.contains(key).then_some(key)
    }

    /// Begins a new sequence in the free slot of the lowest number, or at the end of the backlog
    /// (contract/schedulers.md section 3).
    pub fn begin(&mut self, id: CorrelationId, now_ns: u64, effects: &mut Effects) -> Result<Key, Status> {
        if self.free.is_empty() {
            // A sequence may have been idle for too long without a check.
            self.reap_all(now_ns, effects);
        }
        let order = self.next_serial();
        let sequence = Sequence {
            id: id.clone(),
            is_mapped: true,
            place: SequenceLocation::Backlog(order),
            queue: VecDeque::new(),
            states: None,
            touched_ns: now_ns,
            placed_ns: now_ns,
            deadline_ns: None,
            is_over: false,
        };
        let full = |_| Status::refused(RefusalReason::QueueFull, "too many sequences wait for the model");
        let key = self.sequences.insert(sequence).map_err(full)?;
        self.ids.insert(id, key);
        match self.take_free() {
            Some((instance, slot)) => self.place(key, instance, slot, now_ns, effects),
            None => drop(self.backlog.insert(order, key)),
        }
        Ok(key)
    }

    /// Queues one more request of a sequence. The last one removes its id.
    pub fn push(&mut self, key: Key, queued: Queued, now_ns: u64, effects: &mut Effects) {
        let is_last = queued.request.flags & SEQUENCE_END != 0;
        let Some(sequence) = self.sequences.get_mut(key) else { return };
        sequence.queue.push_back(queued);
        sequence.touched_ns = sequence.touched_ns.max(now_ns);
        match sequence.place {
            SequenceLocation::Slot { instance, slot } => {
                self.in_slots += 1;
                self.ready(instance, slot, now_ns, effects);
            }
            SequenceLocation::Backlog(_) => self.in_backlog += 1,
        }
        if is_last && !mutants::is(Mutant::ForgottenEnd) {
            self.unmap(key);
        }
        self.release_hold(effects);
    }

    /// Removes the sequence's id, so that it is not found by it any more. Its idleness does not matter then.
    pub fn unmap(&mut self, key: Key) {
        let Some(sequence) = self.sequences.get_mut(key) else { return };
        if std::mem::take(&mut sequence.is_mapped) && self.ids.get(&sequence.id) == Some(&key) {
            self.ids.remove(&sequence.id);
        }
        if let SequenceLocation::Slot { instance, .. } = sequence.place
            && let Some(deadline_ns) = sequence.deadline_ns.take()
            && let Some(instance) = self.instances.get_mut(instance).and_then(Option::as_mut)
        {
            instance.deadlines.remove(&(deadline_ns, key));
        }
    }

    /// The sequence with an id, unless it has been idle for too long.
    pub fn find(&mut self, id: &CorrelationId, now_ns: u64, effects: &mut Effects) -> Option<Key> {
        let key = *self.ids.get(id)?;
        if !self.is_idle(key, now_ns) {
            return Some(key);
        }
        self.finish(key, now_ns, effects);
        None
    }

    fn is_idle(&self, key: Key, now_ns: u64) -> bool {
        let Some(sequence) = self.sequences.get(key) else { return true };
        sequence.deadline_ns.is_some() && self.deadline(sequence) <= now_ns
    }

    /// When a sequence in a slot has been idle for too long.
    fn deadline(&self, sequence: &Sequence) -> u64 {
        let idle_ns = sequence.touched_ns.saturating_add(self.rules.idle_ns);
        // Placed later than it came: it was in the backlog.
        match sequence.placed_ns > sequence.touched_ns {
            true => idle_ns.max(sequence.placed_ns.saturating_add(BACKLOG_LOOK_NS)),
            false => idle_ns,
        }
    }

    /// Ends all sequences that have been idle for too long.
    pub fn reap_all(&mut self, now_ns: u64, effects: &mut Effects) {
        (0..self.instances.len()).for_each(|instance| self.reap(instance, now_ns, usize::MAX, effects));
    }

    /// Ends such sequences of an instance: checks up to `limit`.
    pub fn reap(&mut self, instance: usize, now_ns: u64, limit: usize, effects: &mut Effects) {
        for _ in 0..limit {
            let Some(place) = self.instance(instance) else { return };
            let Some(&(at_ns, key)) = place.deadlines.first().filter(|(at_ns, _)| *at_ns <= now_ns) else { return };
            place.deadlines.remove(&(at_ns, key));
            let Some(sequence) = self.sequences.get(key) else { continue };
            let deadline_ns = self.deadline(sequence);
            if deadline_ns > now_ns {
                // Requests came meanwhile.
                self.set_deadline(key, instance, deadline_ns);
                continue;
            }
            if let Some(sequence) = self.sequences.get_mut(key) {
                sequence.deadline_ns = None;
            }
            self.finish(key, now_ns, effects);
        }
    }

    fn set_deadline(&mut self, key: Key, instance: usize, at_ns: u64) {
        if let Some(sequence) = self.sequences.get_mut(key) {
            sequence.deadline_ns = Some(at_ns);
        }
        if let Some(instance) = self.instance(instance) {
            instance.deadlines.insert((at_ns, key));
        }
    }

    /// No more requests will come: the queued ones are executed, and then the sequence ends.
    pub fn finish(&mut self, key: Key, now_ns: u64, effects: &mut Effects) {
        self.unmap(key);
        let Some(sequence) = self.sequences.get_mut(key) else { return };
        sequence.is_over = true;
        if sequence.queue.is_empty() {
            self.end(key, EndCause::Over, now_ns, effects);
        }
    }

    /// Ends a sequence with its queued requests, and gives its slot to the next one.
    pub fn end(&mut self, key: Key, why: EndCause, now_ns: u64, effects: &mut Effects) {
        self.unmap(key);
        let Some(sequence) = self.sequences.remove(key) else { return };
        let waiting = sequence.queue.len();
        let (place, placed_ns) = (sequence.place, sequence.placed_ns);
        effects.ended.push((sequence, why));
        match place {
            SequenceLocation::Backlog(order) => {
                self.in_backlog = self.in_backlog.saturating_sub(waiting);
                self.backlog.remove(&order);
            }
            SequenceLocation::Slot { instance, slot } => {
                self.in_slots = self.in_slots.saturating_sub(waiting);
                effects.tenures_ns.push(now_ns.saturating_sub(placed_ns));
                self.vacate(instance, slot, now_ns, effects);
            }
        }
        if self.is_stopped {
            self.rouse_all(effects);
        }
    }

    fn vacate(&mut self, number: usize, slot: usize, now_ns: u64, effects: &mut Effects) {
        let Some(instance) = self.instance(number) else { return };
        instance.unset_ready(slot);
        if let Some(place) = instance.slots.get_mut(slot) {
            place.sequence = None;
        }
        instance.occupied = instance.occupied.saturating_sub(1);
        if instance.is_dismissed {
            effects.wakers.extend(instance.waker_if_asleep());
            return;
        }
        let next = match mutants::is(Mutant::BacklogOrder) {
            false => self.backlog.pop_first(),
            true => self.backlog.pop_last(),
        };
        match next {
            Some((_, key)) => self.place(key, number, slot, now_ns, effects),
            None => drop(self.free.insert((slot, number))),
        }
    }

    /// Puts a sequence, with its queued requests, into a slot, which it keeps.
    pub fn place(&mut self, key: Key, number: usize, slot: usize, now_ns: u64, effects: &mut Effects) {
        let Some(sequence) = self.sequences.get_mut(key) else { return };
        let waiting = sequence.queue.len();
        (self.in_backlog, self.in_slots) = (self.in_backlog.saturating_sub(waiting), self.in_slots + waiting);
        sequence.place = SequenceLocation::Slot { instance: number, slot };
        sequence.placed_ns = now_ns;
        if sequence.is_mapped {
            let deadline_ns = self.sequences.get(key).map(|sequence| self.deadline(sequence));
            self.set_deadline(key, number, deadline_ns.unwrap_or(now_ns));
        }
        if let Some(instance) = self.instance(number) {
            instance.occupied += 1;
            if let Some(place) = instance.slots.get_mut(slot) {
                place.sequence = Some(key);
            }
        }
        self.ready(number, slot, now_ns, effects);
    }

    /// Updates the instance of a slot that has a request that may be executed.
    pub fn ready(&mut self, number: usize, slot: usize, now_ns: u64, effects: &mut Effects) {
        let serial = self.next_serial();
        let is_held = self.hold.is_some();
        let is_oldest = self.rules.strategy == Strategy::Oldest;
        let Some(instance) = self.instances.get_mut(number).and_then(Option::as_mut) else { return };
        let Some(SequenceSlot { sequence: Some(key), phase: SlotPhase::Idle }) = instance.slots.get(slot) else {
            return;
        };
        let Some(sequence) = self.sequences.get(*key) else { return };
        let Some(first) = sequence.queue.front() else { return };
        // With the oldest strategy it enters its batcher now; a slot of the direct one has had it since it came.
        let entered_ns = match is_oldest {
            true => now_ns.max(instance.heads.last().map_or(0, |head| head.entered_ns)),
            false => first.request.stamps.queued_ns.max(sequence.placed_ns),
        };
        instance.set_ready(SlotHead { entered_ns, serial, slot });
        if !is_held {
            effects.wakers.extend(instance.waker_if_due());
        }
    }

    /// Takes the next request of a slot for a payload. `fits` returns whether it may be in one batch with the others.
    pub fn take(
        &mut self,
        number: usize,
        slot: usize,
        now_ns: u64,
        fits: &mut dyn FnMut(&Request, Option<&States>) -> bool,
        effects: &mut Effects,
    ) -> SlotTake {
        let Some(instance) = self.instances.get_mut(number).and_then(Option::as_mut) else { return SlotTake::Nothing };
        let Some(SequenceSlot { sequence: Some(key), phase: SlotPhase::Ready(_) }) = instance.slots.get(slot) else {
            return SlotTake::Nothing;
        };
        let (key, birth) = (*key, instance.birth);
        let Some(sequence) = self.sequences.get_mut(key) else { return SlotTake::Nothing };
        let Some(first) = sequence.queue.front() else { return SlotTake::Nothing };
        if first.request.admission().is_cancelled() {
            self.end(key, EndCause::Cancelled, now_ns, effects);
            return SlotTake::Nothing;
        }
        if !fits(&first.request, sequence.states.as_deref()) {
            return SlotTake::Unlike;
        }
        let Some(queued) = sequence.queue.pop_front() else { return SlotTake::Nothing };
        let head = instance.unset_ready(slot);
        self.in_slots = self.in_slots.saturating_sub(1);
        queued.request.admission().take();
        let states = sequence.states.clone();
        let is_ended = queued.request.flags & SEQUENCE_END != 0 || sequence.is_over && sequence.queue.is_empty();
        let flight = self.rules.reports_release().then(|| {
            self.serial += 1;
            self.flights.insert(self.serial, ExecutingRequest { instance: number, birth, slot, sequence: key });
            self.serial
        });
        if self.rules.strategy == Strategy::Oldest
            && let Some(serial) = flight
            && let Some(place) = self.instance(number).and_then(|instance| instance.slots.get_mut(slot))
        {
            place.phase = SlotPhase::Flying(serial);
        }
        match is_ended {
            true => self.end(key, EndCause::Over, now_ns, effects),
            false => self.ready(number, slot, now_ns, effects),
        }
        let entered_ns = head.map_or(now_ns, |head| head.entered_ns);
        SlotTake::BatchRow(BatchRow { queued, sequence: key, states, flight, entered_ns })
    }

    /// A backend released a request: its slot may go on. `None` for a request that is not (or no longer) registered.
    pub fn land(&mut self, serial: u64, now_ns: u64, effects: &mut Effects) -> Option<ExecutingRequest> {
        let flight = self.flights.remove(&serial)?;
        let instance = self.instance(flight.instance).filter(|instance| instance.birth == flight.birth);
        if let Some(slot) = instance.and_then(|instance| instance.slots.get_mut(flight.slot))
            && slot.phase == SlotPhase::Flying(serial)
        {
            slot.phase = SlotPhase::Idle;
            self.ready(flight.instance, flight.slot, now_ns, effects);
        }
        Some(flight)
    }

    /// What a batch is compared with: the first request that it could have.
    pub fn front(&self, number: usize, slot: usize) -> Option<(&Request, Option<&States>)> {
        let instance = self.instances.get(number)?.as_ref()?;
        let sequence = self.sequences.get(instance.slots.get(slot)?.sequence?)?;
        Some((&sequence.queue.front()?.request, sequence.states.as_deref()))
    }

    /// Lets executions begin once enough requests have come.
    pub fn release_hold(&mut self, effects: &mut Effects) {
        let Some(hold) = self.hold else { return };
        if self.is_stopped || self.in_slots >= hold.requests && self.in_backlog >= hold.backlog {
            self.hold = None;
            self.rouse_all(effects);
        }
    }
}
