//! Joining and leaving of instances while sequences live (contract/schedulers.md section 10, "config only differs in
//! instance_group").

use std::collections::BTreeSet;
use std::sync::Arc;

use super::instance_slots::{InstanceSlots, SequenceSlot};
use super::tables::{Effects, EndCause, Queued, Tables};
use crate::{Gate, WorkerInfo};
use nereid_memory::Key;
use nereid_request::{SEQUENCE_START, Status};

/// Most workers of one model at a time.
const LINES_MAX: usize = 4096;

impl Tables {
    /// Adds an instance, which takes the sequences that wait in the backlog.
    pub fn join(
        &mut self,
        info: &WorkerInfo,
        gate: Option<Arc<dyn Gate>>,
        now_ns: u64,
        effects: &mut Effects,
    ) -> Result<usize, Status> {
        let number = self.instances.iter().position(Option::is_none).unwrap_or(self.instances.len());
        if number >= LINES_MAX {
            let text = format!("one model version cannot have more than {LINES_MAX} workers at a time");
            return Err(Status::invalid(text));
        }
        let instance = InstanceSlots {
            birth: self.next_serial(),
            waker: info.waker.clone(),
            gate,
            slots: Vec::new(),
            occupied: 0,
            heads: BTreeSet::new(),
            ready: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            is_dismissed: false,
            wake_count: None,
            is_at_gate: false,
            order: Arc::default(),
            busy_since_ns: None,
        };
        match self.instances.get_mut(number) {
            Some(place) => *place = Some(instance),
            None => self.instances.push(Some(instance)),
        }
        self.open_lines += 1;
        self.free.insert((0, number));
        while !self.backlog.is_empty()
            && let Some((instance, slot)) = self.take_free()
            && let Some((_, key)) = self.backlog.pop_first()
        {
            self.place(key, instance, slot, now_ns, effects);
        }
        Ok(number)
    }

    /// An instance gets no more sequences; those that it has stay to their end.
    pub fn dismiss(&mut self, number: usize, now_ns: u64, effects: &mut Effects) {
        let Some(instance) = self.instance(number) else { return };
        effects.wakers.extend(instance.waker_if_asleep());
        if std::mem::replace(&mut instance.is_dismissed, true) {
            return;
        }
        let slots = instance.slots.len();
        for slot in 0..=slots {
            self.free.remove(&(slot, number));
        }
        self.open_lines = self.open_lines.saturating_sub(1);
        if self.open_lines == 0 {
            while let Some((_, key)) = self.backlog.pop_first() {
                self.end(key, EndCause::Deserted, now_ns, effects);
            }
        }
    }

    /// Removes an instance, and with it the sequences that it still had.
    pub fn leave(&mut self, number: usize, now_ns: u64, effects: &mut Effects) {
        self.dismiss(number, now_ns, effects);
        let Some(instance) = self.instance(number) else { return };
        let sequences: Vec<Key> = instance.slots.iter().filter_map(|slot| slot.sequence).collect();
        sequences.into_iter().for_each(|key| self.end(key, EndCause::Deserted, now_ns, effects));
        effects.instances.extend(self.instances.get_mut(number).and_then(Option::take));
    }

    /// An instance has lost the state of its sequences: they are over, except those with another start queued. Returns
    /// how many had begun.
    pub fn lost(&mut self, number: usize, now_ns: u64, effects: &mut Effects) -> usize {
        let Some(instance) = self.instance(number) else { return 0 };
        let slots: Vec<(usize, Key)> =
            instance.slots.iter().enumerate().filter_map(|(slot, place)| Some((slot, place.sequence?))).collect();
        slots.into_iter().filter(|(slot, key)| self.interrupt(*key, number, *slot, now_ns, effects)).count()
    }

    /// Ends a sequence in a slot, or its queued requests up to its next start. False: it has not begun.
    fn interrupt(&mut self, key: Key, number: usize, slot: usize, now_ns: u64, effects: &mut Effects) -> bool {
        let Some(sequence) = self.sequences.get_mut(key) else { return false };
        let is_start = |queued: &Queued| queued.request.flags & SEQUENCE_START != 0;
        let start = match sequence.queue.iter().position(is_start) {
            None => {
                self.end(key, EndCause::Lost, now_ns, effects);
                return true;
            }
            Some(0) => return false,
            Some(start) => start,
        };
        effects.refused.extend(sequence.queue.drain(..start).map(|queued| (queued, EndCause::Lost)));
        self.in_slots = self.in_slots.saturating_sub(start);
        if let Some(instance) = self.instance(number) {
            instance.unset_ready(slot);
        }
        self.ready(number, slot, now_ns, effects);
        true
    }

    /// True if no request will come to an instance any more.
    pub fn may_leave(&self, number: usize) -> bool {
        let Some(Some(instance)) = self.instances.get(number) else { return true };
        instance.occupied == 0 && (instance.is_dismissed || self.is_stopped && self.backlog.is_empty())
    }

    pub fn rouse_all(&mut self, effects: &mut Effects) {
        effects.wakers.extend(self.instances.iter_mut().flatten().filter_map(InstanceSlots::waker_if_asleep));
    }

    /// The free slot of the lowest number over all instances, made if it did not exist yet: its instance and its
    /// number.
    pub fn take_free(&mut self) -> Option<(usize, usize)> {
        let (slot, number) = self.free.pop_first()?;
        let limit = self.rules.slots;
        let instance = self.instance(number)?;
        if slot == instance.slots.len() {
            instance.slots.push(SequenceSlot::default());
            if slot + 1 < limit {
                self.free.insert((slot + 1, number));
            }
        }
        Some((number, slot))
    }
}
