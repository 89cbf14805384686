//! The direct strategy: a slot is a row of the batch for as long as its sequence lives
//! (contract/schedulers.md section 3).
//!
//! A model that keeps the state of a sequence by its row must find every sequence in its own row. So rows without a
//! request are filled with null requests, which look like the others, are marked as not ready, and have no client.

use std::sync::{Arc, Mutex, PoisonError};

use super::instance_slots::InstanceSlots;
use super::{InstanceDecision, SequenceBatcher, SlotTake};
use crate::{
    Payload,
    mutants::{self, Mutant},
};
use nereid_memory::{BlockMut, Exhausted, Slice};
use nereid_request::{Completion, Delivery, InputTensor, Origin, Request, Sink, element_count};
use nereid_wire::inference::model_sequence_batching::StrategyDirect;

/// Slots that are read in one go.
const SLOTS_AT_ONCE: usize = 32;

/// When a batch goes.
pub(super) struct DirectRules {
    delay_ns: u64,
    utilization: f32,
    slots: usize,
}

impl DirectRules {
    pub fn new(config: &StrategyDirect, slots: usize) -> DirectRules {
        DirectRules {
            delay_ns: config.max_queue_delay_microseconds.saturating_mul(1_000),
            utilization: config.minimum_slot_utilization,
            slots,
        }
    }

    /// Whether the requests of an instance go now.
    pub fn decide(&self, instance: &InstanceSlots, now_ns: u64) -> InstanceDecision {
        let Some(oldest) = instance.heads.first() else { return InstanceDecision::Nothing };
        // Later than the delay, not at its end.
        let until_ns = oldest.entered_ns.saturating_add(self.delay_ns).saturating_add(1);
        let enough = (f64::from(self.utilization) * self.slots as f64).ceil();
        let is_filled = instance.heads.len() as f64 / self.slots as f64 >= f64::from(self.utilization);
        if self.delay_ns == 0 || self.utilization == 0.0 || is_filled || now_ns >= until_ns {
            return InstanceDecision::Cut(self.slots);
        }
        InstanceDecision::Wait { until_ns, count: (enough as usize).max(instance.heads.len() + 1) }
    }
}

/// Discards the answers of null requests.
struct DiscardingSink;

impl Sink for DiscardingSink {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

/// Zero bytes, as many as were ever needed: all null requests share them.
#[derive(Default)]
pub(super) struct Zeros(Mutex<Slice>);

impl Zeros {
    fn get(&self, byte_size: usize) -> Result<Slice, Exhausted> {
        let mut zeros = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if zeros.len() < byte_size {
            let mut block = BlockMut::try_unpooled(byte_size)?;
            block.fill(0);
            *zeros = block.freeze();
        }
        Ok(zeros.window(0..byte_size))
    }
}

impl SequenceBatcher {
    /// The payload of an instance: the rows of all slots up to the highest one with a request.
    pub(super) fn cut_direct(&self, worker: usize, now_ns: u64) -> Payload {
        let highest = self.tables().instance(worker).and_then(|instance| instance.ready.last().copied());
        let Some(highest) = highest else { return Payload::default() };
        let mut rows: Vec<Option<Box<Request>>> = Vec::with_capacity(highest + 1);
        let mut fits = self.comparison();
        for first in (0..=highest).step_by(SLOTS_AT_ONCE) {
            let slots = first..=highest.min(first + SLOTS_AT_ONCE - 1);
            let taken: Vec<SlotTake> = self.with_tables(|tables, effects| {
                slots.map(|slot| tables.take(worker, slot, now_ns, &mut fits, effects)).collect()
            });
            rows.extend(taken.into_iter().map(|taken| match taken {
                SlotTake::BatchRow(row) => Some(self.complete(row)),
                SlotTake::Nothing | SlotTake::Unlike => None,
            }));
        }
        let mut payload = Payload::default();
        // A copy of the first request; without requests there is none.
        let null = match rows.iter().flatten().next().map(|real| self.null_maker(real)) {
            None => return payload,
            Some(Ok(null)) => null,
            Some(Err(exhausted)) => {
                rows.into_iter().flatten().for_each(|request| request.fail(exhausted.into()));
                return payload;
            }
        };
        for row in rows {
            match row {
                Some(request) => payload.push(request),
                None if mutants::is(Mutant::MissingNullRow) => {}
                None => payload.push(null()),
            }
        }
        payload
    }

    /// Makes requests that have the form of `real` and carry no data (contract/schedulers.md section 3, "Direct
    /// strategy").
    fn null_maker(&self, real: &Request) -> Result<impl Fn() -> Box<Request> + use<>, Exhausted> {
        let zeros = Arc::clone(&self.zeros);
        let own = real.inputs.iter().filter(|input| input.index < self.spec.inputs.len());
        let inputs: Vec<InputTensor> = own
            .map(|input| {
                let mut input = input.clone();
                let is_shape = self.spec.config.input.get(input.index).is_some_and(|config| config.is_shape_tensor);
                if !is_shape {
                    let count = element_count(&input.shape).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
                    // Empty strings are only their lengths.
                    let size = input.datatype.byte_size();
                    let byte_size = if size == 0 { count.saturating_mul(4) } else { input.byte_size() };
                    input.data = smallvec::smallvec![zeros.get(byte_size)?];
                    input.placement = None;
                }
                Ok(input)
            })
            .collect::<Result<_, Exhausted>>()?;
        let states = real.states.clone();
        // As many as the states need later.
        let state_bytes = states.iter().flat_map(|states| states.tensors()).map(|state| state.data.len()).max();
        let state_zeros = zeros.get(state_bytes.unwrap_or(0))?;
        let (stamps, batch_size) = (real.stamps, real.batch_size);
        let (controls, initial) = (Arc::clone(&self.controls), Arc::clone(&self.initial));
        Ok(move || {
            let mut request = Box::new(Request::new(Completion::new(Arc::new(DiscardingSink), 0)));
            request.ingress.origin = Origin::Null;
            request.inputs = inputs.clone();
            (request.stamps, request.batch_size) = (stamps, batch_size);
            controls.add(&mut request, false);
            if let Some(states) = &states {
                let dummies = initial.dummies(states, &mut |len| state_zeros.window(0..len.min(state_zeros.len())));
                initial.add(&mut request, dummies);
            }
            request.admission().take();
            request
        })
    }
}
