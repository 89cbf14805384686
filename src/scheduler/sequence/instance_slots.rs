//! One instance of the model in the tables: its slots, and those that have a request to execute.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::order::Order;
use crate::Gate;
use nereid_memory::Key;
use nereid_request::Waker;

/// An instance of the model, with its slots.
pub(super) struct InstanceSlots {
    /// Distinguishes it from earlier instances of the same number.
    pub birth: u64,
    pub waker: Waker,
    pub gate: Option<Arc<dyn Gate>>,
    /// Made as they are needed, up to the model's number.
    pub slots: Vec<SequenceSlot>,
    /// Number of slots with a sequence.
    pub occupied: usize,
    /// Slots with a request that may be executed, the one that waits longest first.
    pub heads: BTreeSet<SlotHead>,
    /// The same slots by their numbers.
    pub ready: BTreeSet<usize>,
    /// When its sequences have been idle for too long, or have to be checked again.
    pub deadlines: BTreeSet<(u64, Key)>,
    /// Takes no more sequences.
    pub is_dismissed: bool,
    /// Its worker sleeps, to be woken once so many requests may be executed.
    pub wake_count: Option<usize>,
    /// Queued for its resources.
    pub is_at_gate: bool,
    /// `preserve_ordering`.
    pub order: Arc<Order>,
    /// Since when its worker executes; only where executions are measured.
    pub busy_since_ns: Option<u64>,
}

/// A slot whose next request may be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotHead {
    /// When the request entered the batcher.
    pub entered_ns: u64,
    /// Order of entry.
    pub serial: u64,
    pub slot: usize,
}

/// A slot of an instance, with a sequence or free.
#[derive(Debug, Default)]
pub(super) struct SequenceSlot {
    pub sequence: Option<Key>,
    pub phase: SlotPhase,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SlotPhase {
    /// It has no request to execute.
    #[default]
    Idle,
    Ready(SlotHead),
    /// Its backend has a request of it, and the next one waits for its release (oldest strategy).
    Flying(u64),
}

impl InstanceSlots {
    /// A slot's next request may be executed.
    pub fn set_ready(&mut self, head: SlotHead) {
        if let Some(slot) = self.slots.get_mut(head.slot) {
            slot.phase = SlotPhase::Ready(head);
            self.heads.insert(head);
            self.ready.insert(head.slot);
        }
    }

    /// The slot's request was taken, or is not to be executed after all.
    pub fn unset_ready(&mut self, slot: usize) -> Option<SlotHead> {
        let place = self.slots.get_mut(slot)?;
        let SlotPhase::Ready(head) = place.phase else { return None };
        place.phase = SlotPhase::Idle;
        self.heads.remove(&head);
        self.ready.remove(&slot);
        Some(head)
    }

    /// The waker of the instance's worker, if it sleeps and has enough to do now.
    pub fn waker_if_due(&mut self) -> Option<Waker> {
        match self.wake_count {
            Some(count) if self.heads.len() >= count => self.waker_if_asleep(),
            _ => None,
        }
    }

    /// The waker of the instance's worker, if it sleeps.
    pub fn waker_if_asleep(&mut self) -> Option<Waker> {
        self.wake_count.take().map(|_| self.waker.clone())
    }
}
