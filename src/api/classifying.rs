//! Outputs that clients want as classes: replaced as a response arrives, in steps where there are many elements.
//!
//! Responses to one request keep their order: those behind one that is being classified wait for it.

use std::collections::VecDeque;

use super::Api;
use super::calls::Work;
use super::infer::Classes;
use crate::memory::Pool;
use crate::protocol::service::Replies;
use crate::request::{Delivery, Status};

/// A response that takes longer than a turn may.
pub(super) struct Classifying {
    delivery: Delivery,
    classes: Classes,
    /// What came behind it for the same request.
    behind: VecDeque<Delivery>,
}

impl Api {
    /// Gives the delivery back as clients want it, unless that takes steps.
    #[inline]
    pub(super) fn classified(&mut self, key: u64, delivery: Delivery) -> Option<Delivery> {
        if !self.classifying.is_empty()
            && let Some(classifying) = self.classifying.get_mut(&key)
        {
            classifying.behind.push_back(delivery);
            return None;
        }
        match self.calls.work_mut(key) {
            Some(Work::Waiting(waiting)) if waiting.form.changes_outputs() => self.begin_classes(key, delivery),
            _ => Some(delivery),
        }
    }

    fn begin_classes(&mut self, key: u64, mut delivery: Delivery) -> Option<Delivery> {
        let Some(Work::Waiting(waiting)) = self.calls.work_mut(key) else {
            return Some(delivery);
        };
        let Some(response) = delivery.response.as_mut().filter(|response| response.error.is_none()) else {
            return Some(delivery);
        };
        match Classes::begin(response, &waiting.form, &waiting.model, &self.pool) {
            Ok(None) => {}
            Ok(Some(classes)) => {
                self.classifying.insert(key, Box::new(Classifying { delivery, classes, behind: VecDeque::new() }));
                self.to_classify.push_back(key);
                return None;
            }
            Err(status) => response.error = Some(status),
        }
        Some(delivery)
    }

    /// Does one step for the response that has waited longest for one.
    pub(super) fn classify_on(&mut self, replies: &mut Replies) {
        let Some(key) = self.to_classify.pop_front() else { return };
        let Some(mut classifying) = self.classifying.remove(&key) else { return };
        // A client that has left needs no classes.
        let is_wanted = matches!(self.calls.work_mut(key), Some(Work::Waiting(_)));
        if is_wanted && !classifying.step(&self.pool) {
            self.classifying.insert(key, classifying);
            self.to_classify.push_back(key);
            return;
        }
        let Classifying { delivery, behind, .. } = *classifying;
        self.deliver(key, delivery, replies);
        for delivery in behind {
            self.delivered_now(key, delivery, replies);
        }
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
