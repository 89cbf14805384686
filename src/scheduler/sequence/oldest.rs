//! The oldest strategy: batches of the requests that wait longest, one of each sequence (contract/schedulers.md section
//! 3).
//!
//! The heads of an instance's slots are the queue of a batcher of its own, with the rules of the dynamic batcher
//! (section 2) for requests of one row: preferred sizes, a delay, an order of responses. A sequence's next request
//! enters when the previous one was released, so that its state is there before it is needed.

use super::instance_slots::InstanceSlots;
use super::tables::Tables;
use super::{InstanceDecision, SequenceBatcher, SlotTake};
use crate::Payload;
use nereid_wire::inference::model_sequence_batching::StrategyOldest;

/// When a batch goes, and how large it is.
pub(super) struct OldestRules {
    pub max_batch_size: usize,
    preferred: Vec<usize>,
    delay_ns: u64,
    pub preserves_order: bool,
}

impl OldestRules {
    pub fn new(config: &StrategyOldest, max_batch_size: u32) -> OldestRules {
        let mut preferred: Vec<usize> =
            config.preferred_batch_size.iter().filter_map(|&size| usize::try_from(size).ok()).collect();
        preferred.sort_unstable();
        OldestRules {
            max_batch_size: usize::try_from(max_batch_size).unwrap_or(usize::MAX).max(1),
            preferred,
            delay_ns: config.max_queue_delay_microseconds.saturating_mul(1_000),
            preserves_order: config.preserve_ordering,
        }
    }

    /// Decides on a queue of which `count` requests, `is_closed` to more, could be one batch, the oldest of which
    /// entered at `oldest_ns` (section 2, "Decision after the scan").
    fn decide(&self, count: usize, is_closed: bool, oldest_ns: u64, now_ns: u64) -> InstanceDecision {
        if count == 0 {
            return InstanceDecision::Nothing;
        }
        let until_ns = oldest_ns.saturating_add(self.delay_ns);
        let is_late = self.delay_ns > 0 && now_ns >= until_ns;
        let best = self.preferred.iter().rev().find(|&&size| size <= count);
        if let Some(&best) = best.filter(|_| !is_late) {
            return InstanceDecision::Cut(best);
        }
        let largest = self.preferred.last().copied().unwrap_or(0);
        if is_closed || self.delay_ns == 0 || is_late || largest > 0 && count >= largest {
            return InstanceDecision::Cut(count);
        }
        let next = self.preferred.iter().find(|&&size| size > count).copied();
        InstanceDecision::Wait { until_ns, count: next.unwrap_or(self.max_batch_size).max(count + 1) }
    }

    /// Whether requests of an instance go now. `is_closed`: no more will come. `is_compatible` compares a slot's
    /// request with the first one.
    pub fn look(
        &self,
        instance: &InstanceSlots,
        now_ns: u64,
        is_closed: bool,
        is_compatible: Option<&mut dyn FnMut(usize) -> bool>,
    ) -> InstanceDecision {
        let Some(oldest) = instance.heads.first() else { return InstanceDecision::Nothing };
        let most = instance.heads.len().min(self.max_batch_size);
        let is_compared = is_compatible.is_some();
        let count = match is_compatible {
            None => most,
            Some(fits) => instance.heads.iter().take(most).take_while(|head| fits(head.slot)).count(),
        };
        let is_closed = count == self.max_batch_size || count < most || is_closed;
        match self.decide(count, is_closed, oldest.entered_ns, now_ns) {
            // A request that differs closes the batch, so each has to be checked.
            InstanceDecision::Wait { until_ns, .. } if is_compared => {
                InstanceDecision::Wait { until_ns, count: count + 1 }
            }
            decision => decision,
        }
    }
}

impl SequenceBatcher {
    /// What an instance of the oldest strategy does now.
    pub(super) fn decide_oldest(
        &self,
        rules: &OldestRules,
        tables: &Tables,
        instance: &InstanceSlots,
        worker: usize,
        now_ns: u64,
    ) -> InstanceDecision {
        if !self.compatibility.is_needed() {
            return rules.look(instance, now_ns, tables.is_closed, None);
        }
        let mut fits = self.comparison();
        let mut is_compatible = |slot| tables.front(worker, slot).is_none_or(|(request, states)| fits(request, states));
        rules.look(instance, now_ns, tables.is_closed, Some(&mut is_compatible))
    }

    /// Up to `count` requests of an instance, the oldest first.
    pub(super) fn cut_oldest(&self, worker: usize, count: usize, preserves_order: bool, now_ns: u64) -> Payload {
        let mut payload = Payload::default();
        let mut fits = self.comparison();
        while payload.len() < count {
            let taken = self.with_tables(|tables, effects| {
                let slot = tables.instance(worker)?.heads.first()?.slot;
                Some(tables.take(worker, slot, now_ns, &mut fits, effects))
            });
            match taken {
                Some(SlotTake::BatchRow(mut row)) => {
                    let order = self.tables().instance(worker).map(|instance| instance.order.clone());
                    // A request that was executed before has its place already.
                    if let Some(order) = order.filter(|_| preserves_order && !row.queued.is_again) {
                        order.enter(&mut row.queued.request);
                    }
                    payload.push(self.complete(row));
                }
                // It was cancelled, and its sequence with it.
                Some(SlotTake::Nothing) => {}
                Some(SlotTake::Unlike) | None => break,
            }
        }
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_go_by_the_rules_of_the_dynamic_batcher() {
        let rules = |preferred: &[i32], delay: u64| {
            let config = StrategyOldest {
                preferred_batch_size: preferred.to_vec(),
                max_queue_delay_microseconds: delay,
                ..Default::default()
            };
            OldestRules::new(&config, 8)
        };
        let cut = InstanceDecision::Cut;
        let wait = |until_ns, count| InstanceDecision::Wait { until_ns, count };
        // Preferred sizes, delay in µs, requests, whether no more fit, their age in µs, the decision.
        for (preferred, delay, count, is_closed, age, expected) in [
            (&[8][..], 0, 0, false, 0, InstanceDecision::Nothing),
            (&[8], 0, 3, false, 0, cut(3)),
            (&[8], 0, 8, true, 0, cut(8)),
            (&[4, 2], 0, 7, false, 0, cut(4)),
            (&[4, 2], 0, 3, false, 0, cut(2)),
            (&[4], 100, 3, false, 99, wait(1_000_100_000, 4)),
            (&[4], 100, 3, false, 100, cut(3)),
            (&[4], 100, 5, false, 99, cut(4)),
            (&[4], 100, 5, false, 100, cut(5)),
            (&[4, 6], 100, 3, true, 0, cut(3)),
            (&[2, 6], 100, 1, false, 0, wait(1_000_100_000, 2)),
            (&[], 100, 3, false, 0, wait(1_000_100_000, 8)),
        ] {
            let now_ns = 1_000_000_000 + age * 1_000;
            let decision = rules(preferred, delay).decide(count, is_closed, 1_000_000_000, now_ns);
            assert_eq!(decision, expected, "{preferred:?} {delay} {count} {is_closed} {age}");
        }
    }
}
