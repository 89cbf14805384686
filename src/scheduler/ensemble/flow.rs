//! The tensors of one request: the values that have arrived, the steps that have all their inputs, and the responses
//! that are complete.
//!
//! Every tensor numbers its values 0, 1, … in the order of their arrival. A step runs once for each number that all its
//! inputs have; a response is made of the values of one number. Values that can never be used are not kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::plan::{Plan, Route};
use crate::mutants::{self, Mutant};
use nereid_gpu::DeviceSlice;
use nereid_memory::Slice;
use nereid_request::{CorrelationId, Credit, DataType, Shape};

/// The sequence that a step's request belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sequence {
    pub id: CorrelationId,
    pub flags: u32,
}

/// A tensor on its way.
#[derive(Debug, Clone)]
pub struct Value {
    pub datatype: DataType,
    /// Full shape.
    pub shape: Shape,
    pub data: SmallVec<[Slice; 1]>,
    /// The elements, where they lie on a device: `data` is empty then.
    pub on_device: Option<Box<DeviceSlice>>,
    /// Whether its first dimension is the batch.
    pub is_batched: bool,
    /// Of the step that made it; none for an input of the ensemble.
    pub sequence: Option<Sequence>,
    /// A response named the sequence, and its readers take it over.
    pub is_sequence_overridden: bool,
    /// Of the decoupled steps that it was made from.
    pub credits: Credits,
}

/// What bounds how far decoupled steps may be ahead of the readers of the ensemble's responses.
pub type Credits = SmallVec<[Arc<Credit>; 1]>;

/// Adds those of `more` that are not there yet.
pub fn add_credits(credits: &mut Credits, more: &Credits) {
    for credit in more {
        if !credits.iter().any(|own| Arc::ptr_eq(own, credit)) {
            credits.push(Arc::clone(credit));
        }
    }
}

/// What an arrival has made possible.
#[derive(Debug)]
pub enum Due {
    /// A step has all its inputs, one for each of [`Step::inputs`](super::plan::Step::inputs); none: left out.
    Step { step: usize, inputs: Vec<Option<Value>> },
    /// A response is complete, with a value for each output of the route.
    Response { values: Vec<Option<Value>> },
}

#[derive(Debug, Default)]
struct Arrivals {
    /// How many values have arrived.
    count: u64,
    /// The values that a reader still needs.
    kept: BTreeMap<u64, KeptValue>,
}

#[derive(Debug)]
struct KeptValue {
    /// None: the tensor was left out.
    value: Option<Value>,
    /// How many readers still need it.
    left: usize,
}

/// What joins the values of more tensors counts those that have come, where the others look at each tensor.
const LOOKED_AT_MAX: usize = 8;

#[cfg(test)]
thread_local! {
    /// What tests have in place of [`LOOKED_AT_MAX`], so that small graphs count as well.
    static LOOKED_AT_MAX_OF_TEST: std::cell::Cell<usize> = const { std::cell::Cell::new(LOOKED_AT_MAX) };
}

/// Runs `test` with another [`LOOKED_AT_MAX`] for the requests that begin on this thread.
#[cfg(test)]
pub fn with_looked_at_max<R>(most: usize, test: impl FnOnce() -> R) -> R {
    let before = LOOKED_AT_MAX_OF_TEST.replace(most);
    let result = test();
    LOOKED_AT_MAX_OF_TEST.set(before);
    result
}

/// What joins the values of one number of several tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reader {
    Step(usize),
    Response,
}

#[derive(Debug)]
pub struct Flow {
    tensors: Vec<Arrivals>,
    kept: usize,
    looked_at_max: usize,
    /// Of readers of many tensors: how many of them have the value of a number.
    joined: BTreeMap<(Reader, u64), usize>,
}

impl Flow {
    pub fn new(plan: &Plan) -> Flow {
        let tensors = plan.tensors.iter().map(|_| Arrivals::default()).collect();
        #[cfg(not(test))]
        let looked_at_max = LOOKED_AT_MAX;
        #[cfg(test)]
        let looked_at_max = LOOKED_AT_MAX_OF_TEST.get();
        Flow { tensors, kept: 0, looked_at_max, joined: BTreeMap::new() }
    }

    /// The number of values that wait for others.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Takes the next value of a tensor, and adds what it makes possible to `due`.
    pub fn arrive(&mut self, plan: &Plan, route: &Route, tensor: usize, value: Option<Value>, due: &mut Vec<Due>) {
        let arrivals = &mut self.tensors[tensor];
        let number = arrivals.count;
        arrivals.count += 1;
        let is_answer = route.is_answer(tensor, number);
        let left = route.readers(plan, tensor, number).count() + usize::from(is_answer);
        if left == 0 {
            return;
        }
        arrivals.kept.insert(number, KeptValue { value, left });
        self.kept += 1;
        for step in route.readers(plan, tensor, number) {
            if self.completes(Reader::Step(step), &plan.steps[step].reads, number) {
                let inputs = plan.steps[step].inputs.iter().map(|(_, tensor)| self.value_of(*tensor, number)).collect();
                plan.steps[step].reads.iter().for_each(|tensor| self.let_go(*tensor, number));
                due.push(Due::Step { step, inputs });
            }
        }
        if is_answer && self.completes(Reader::Response, &route.wanted, number) {
            let outputs = route.outputs.iter().map(|output| plan.outputs[*output].tensor);
            let values = outputs.map(|tensor| self.value_of(tensor, number)).collect();
            route.wanted.iter().for_each(|tensor| self.let_go(*tensor, number));
            due.push(Due::Response { values });
        }
        // A value that waits for others releases its credits: the others may come only after its writer has gone on, or
        // never. The last one to arrive keeps its credits, and so does everything that is made of them all.
        let kept = self.tensors[tensor].kept.get_mut(&number);
        if let Some(value) = kept.and_then(|kept| kept.value.as_mut()) {
            value.credits.clear();
        }
    }

    /// A value of that number has come that the reader joins with those of its other `tensors`: whether it is the last.
    fn completes(&mut self, reader: Reader, tensors: &[usize], number: u64) -> bool {
        if tensors.len() <= self.looked_at_max {
            return tensors.iter().all(|tensor| self.tensors[*tensor].kept.contains_key(&number));
        }
        let count = self.joined.entry((reader, number)).or_default();
        *count += 1;
        let is_complete = *count >= tensors.len();
        if is_complete {
            self.joined.remove(&(reader, number));
        }
        is_complete
    }

    fn value_of(&self, tensor: usize, number: u64) -> Option<Value> {
        let kept = &self.tensors[tensor].kept;
        let kept = match mutants::is(Mutant::WrongIteration) {
            false => kept.get(&number),
            true => kept.values().next_back(),
        };
        kept?.value.clone()
    }

    fn let_go(&mut self, tensor: usize, number: u64) {
        let kept = &mut self.tensors[tensor].kept;
        let Some(one) = kept.get_mut(&number) else { return };
        one.left = one.left.saturating_sub(1);
        if one.left == 0 {
            kept.remove(&number);
            self.kept -= 1;
        }
    }

    /// Drops all values: none will be needed any more.
    pub fn clear(&mut self) {
        self.tensors.iter_mut().for_each(|arrivals| arrivals.kept.clear());
        self.joined.clear();
        self.kept = 0;
    }
}
