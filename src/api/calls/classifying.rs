//! Outputs that clients request as classes: replaced as a response arrives, in steps where there are many elements.
//!
//! Responses to one request keep their order: those behind one that is being classified wait for it.

use std::collections::{HashMap, VecDeque};

use super::Calls;
use super::work::{Waiting, Work};
use crate::api::infer::Classes;
use nereid_memory::Pool;
use nereid_request::{Delivery, Status};

/// A response that takes longer than a turn may.
struct Classifying {
    delivery: Delivery,
    classes: Classes,
    /// What came behind it for the same request.
    behind: VecDeque<Delivery>,
}

/// The responses of one shard that are classified in steps, by the keys of their requests.
#[derive(Default)]
pub struct Classifier {
    under_way: HashMap<u64, Box<Classifying>>,
    /// Their order.
    order: VecDeque<u64>,
}

impl Classifier {
    pub fn is_idle(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the delivery with its classes, unless that takes steps.
    #[inline]
    pub fn classified(&mut self, key: u64, delivery: Delivery, calls: &mut Calls, pool: &Pool) -> Option<Delivery> {
        if !self.under_way.is_empty()
            && let Some(classifying) = self.under_way.get_mut(&key)
        {
            classifying.behind.push_back(delivery);
            return None;
        }
        match calls.work_mut(key) {
            Some(Work::Waiting(waiting)) if waiting.form.changes_outputs() => self.begin(key, delivery, waiting, pool),
            _ => Some(delivery),
        }
    }

    fn begin(&mut self, key: u64, mut delivery: Delivery, waiting: &Waiting, pool: &Pool) -> Option<Delivery> {
        let Some(response) = delivery.response.as_mut().filter(|response| response.error.is_none()) else {
            return Some(delivery);
        };
        match Classes::begin(response, &waiting.form, &waiting.model, pool) {
            Ok(None) => {}
            Ok(Some(classes)) => {
                self.under_way.insert(key, Box::new(Classifying { delivery, classes, behind: VecDeque::new() }));
                self.order.push_back(key);
                return None;
            }
            Err(status) => response.error = Some(status),
        }
        Some(delivery)
    }

    /// The request whose response has the next step.
    pub fn next(&self) -> Option<u64> {
        self.order.front().copied()
    }

    /// Does one step for the response that has waited longest for one. If that was the last: what can go on its way
    /// now, and what came behind it for the same request.
    pub fn step(&mut self, calls: &mut Calls, pool: &Pool) -> Option<(u64, Delivery, VecDeque<Delivery>)> {
        let key = self.order.pop_front()?;
        let mut classifying = self.under_way.remove(&key)?;
        // A client that has left needs no classes.
        let is_wanted = matches!(calls.work_mut(key), Some(Work::Waiting(_)));
        if is_wanted && !classifying.step(pool) {
            self.under_way.insert(key, classifying);
            self.order.push_back(key);
            return None;
        }
        let Classifying { delivery, behind, .. } = *classifying;
        Some((key, delivery, behind))
    }
}

impl Classifying {
    /// True when the response can go on its way, with its classes or with an error.
    fn step(&mut self, pool: &Pool) -> bool {
        let Some(response) = &mut self.delivery.response else { return true };
        let outcome: Result<bool, Status> = self.classes.step(response, pool);
        outcome.unwrap_or_else(|status| {
            response.error = Some(status);
            true
        })
    }
}
