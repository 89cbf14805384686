//! Whether a shard keeps what follows from requests and answers, and how often that was of use.

pub mod grpc_answers;
pub mod grpc_requests;
pub mod http_answers;
pub(super) mod http_plans;
pub mod json_request;
pub mod texts;

use std::rc::Rc;

use super::infer::AnswerForm;
use nereid_observe::log::verbose;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct PlanCache {
    /// `--request-plan-cache`. Off: nothing is kept, and nothing is recognised.
    pub is_on: bool,
    pub hits: Hits,
    /// How the last request is answered that came the general way: the next one often says the same.
    last_form: Rc<AnswerForm>,
}

/// Requests and answers that the cache has shortened.
#[derive(Debug, Default)]
pub(super) struct Hits {
    /// HTTP requests whose head had a plan.
    pub heads: u64,
    /// Those of them whose JSON was known too.
    pub json: u64,
    /// gRPC requests of a known form.
    pub messages: u64,
}

impl PlanCache {
    pub fn new(is_on: bool) -> PlanCache {
        PlanCache { is_on, hits: Hits::default(), last_form: Rc::default() }
    }

    /// The form as requests share it.
    pub fn share(&mut self, form: AnswerForm) -> Rc<AnswerForm> {
        if self.is_on { form.shared(&mut self.last_form) } else { Rc::new(form) }
    }

    /// Says in the log how often the cache was of use, which tests look for.
    pub fn report(&self, http_answers: u64, grpc_answers: u64) {
        if self.is_on {
            let Hits { heads, json, messages } = self.hits;
            verbose!(
                1,
                "request plan cache of a shard: {heads} HTTP heads, {json} JSON texts, {messages} gRPC messages, \
                 {http_answers} HTTP answers, {grpc_answers} gRPC answers"
            );
        }
    }
}
