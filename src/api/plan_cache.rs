//! What a shard keeps of requests and answers, so that repeated ones are compared instead of read and written.
//!
//! Each shard has one [`PlanCache`]. It has the switch, drops what it kept when models change, and counts what was of
//! use. docs/design.md, "Repeated requests", lists the keys.

mod answer_key;
mod bounds;
pub mod grpc_answers;
pub mod grpc_requests;
pub mod http_answers;
pub mod http_plans;
pub mod json_request;
pub mod texts;

use std::rc::Rc;
use std::sync::Arc;

use super::calls::has_many_strings;
use super::coding::packing::Packing;
use super::infer::AnswerForm;
use grpc_answers::GrpcAnswers;
use grpc_requests::{GrpcRequests, Prototype, RequestKey};
use http_answers::HttpAnswers;
use http_plans::{HttpPlan, HttpPlans, JsonMatch};
use json_request::Bounds;
use nereid_memory::{Exhausted, Pool, Portions, Slice};
use nereid_observe::log::verbose;
use nereid_protocol::grpc::Outline;
use nereid_protocol::http1;
use nereid_protocol::service::GrpcPlan;
use nereid_request::{Request, SharedMemory};
use nereid_scheduler::ServedModel;
use texts::Texts;

/// See the [module](self).
pub(super) struct PlanCache {
    /// `--request-plan-cache`. Off: nothing is kept, and nothing is recognised.
    is_on: bool,
    /// Heads of HTTP requests, and their JSON.
    http_plans: HttpPlans,
    grpc_requests: GrpcRequests,
    http_answers: HttpAnswers,
    grpc_answers: GrpcAnswers,
    /// The answer form of the last request on the general path: that of the next one is often equal.
    last_form: Rc<AnswerForm>,
    /// Contents of small tensors of requests that were recognised.
    portions: Portions,
    /// JSON of answers.
    texts: Texts,
    hits: Hits,
}

/// Requests that the cache has recognised.
#[derive(Debug, Default)]
struct Hits {
    /// HTTP requests whose head had a plan.
    heads: u64,
    /// Those of them whose JSON was known too.
    json: u64,
    /// gRPC requests of a known form.
    messages: u64,
}

impl PlanCache {
    pub fn new(is_on: bool) -> PlanCache {
        PlanCache {
            is_on,
            http_plans: HttpPlans::default(),
            grpc_requests: GrpcRequests::default(),
            http_answers: HttpAnswers::default(),
            grpc_answers: GrpcAnswers::default(),
            last_form: Rc::default(),
            portions: Portions::default(),
            texts: Texts::default(),
            hits: Hits::default(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Models came or went: all that is kept of requests and answers is forgotten. A head that was marked before has no
    /// plan any more, because no two plans have the same number.
    pub fn models_changed(&mut self) {
        self.http_plans.forget();
        self.grpc_requests.forget();
        self.http_answers.forget();
        self.grpc_answers.forget();
    }

    /// Other keys are valid: a head that was let in may be refused now.
    pub fn access_changed(&mut self) {
        self.http_plans.forget();
    }

    /// The form as requests share it.
    pub fn share(&mut self, form: AnswerForm) -> Rc<AnswerForm> {
        if self.is_on { form.shared(&mut self.last_form) } else { Rc::new(form) }
    }

    /// `None` if the cache is off, as below.
    pub fn grpc_requests(&mut self) -> Option<&mut GrpcRequests> {
        self.is_on.then_some(&mut self.grpc_requests)
    }

    /// Remembers a request that comes again and again, if this is one: then its head was noted.
    pub fn learn_grpc(
        &mut self,
        noted: Option<RequestKey>,
        plan: &GrpcPlan,
        model: &Arc<ServedModel>,
        request: &mut Request,
        form: &AnswerForm,
    ) {
        let Some(head) = noted else { return };
        let Some(requests) = self.grpc_requests() else { return };
        // A request that fails here fails again where its error is reported.
        let is_plain = !plan.timed && plan.kept.is_empty() && request.shared.is_none() && !has_many_strings(request);
        if is_plain && model.check(request).is_ok() {
            request.ingress.is_checked = true;
            requests.learn(head, model, request, form);
        }
    }

    /// The plan of the head, if it has one: what it asks for in its other fields is nothing that a plan does not know.
    pub fn http_plan(&self, head: &http1::Head) -> Option<&HttpPlan> {
        self.http_plans.of_head(head)
    }

    /// Makes a plan for heads like this one, if it is one that can be recognised.
    pub fn plan_http(&mut self, head: &http1::Head, model: &Arc<ServedModel>, packing: Option<Packing>) {
        if self.is_on && head.is_recognisable() && self.http_plan(head).is_none() {
            self.http_plans.plan(head, model, packing);
        }
    }

    /// Takes out the plan of the head, to be [put back](PlanCache::put_back_http_plan). A head without a mark gets one
    /// if another connection had one like it.
    #[inline]
    pub fn take_http_plan(&mut self, head: &http1::Head) -> Option<Box<HttpPlan>> {
        self.http_plans.take(head.mark()).or_else(|| self.look_for_http_plan(head))
    }

    fn look_for_http_plan(&mut self, head: &http1::Head) -> Option<Box<HttpPlan>> {
        let may_have_one = self.is_on && head.method() == http1::Method::Post && head.is_recognisable();
        if may_have_one { self.http_plans.take_unmarked(head) } else { None }
    }

    #[inline]
    pub fn put_back_http_plan(&mut self, head: &http1::Head, plan: Box<HttpPlan>) {
        self.http_plans.put_back(head, plan);
    }

    /// As [HttpPlans::match_json].
    #[inline]
    pub fn match_json<'a>(&mut self, plan: &mut HttpPlan, text: &'a [u8], bounds: Bounds<'_>) -> Option<JsonMatch<'a>> {
        self.http_plans.match_json(plan, text, bounds)
    }

    /// As [HttpPlans::fill_http].
    #[inline]
    pub fn fill_http(
        &mut self,
        plan: &mut HttpPlan,
        json: JsonMatch<'_>,
        request: &mut Request,
        tail: &Slice,
        pool: &Pool,
        regions: &SharedMemory,
    ) -> Option<Rc<AnswerForm>> {
        let is_known = json.is_known;
        let form = self.http_plans.fill_http(plan, json, request, tail, (&mut self.portions, pool), regions)?;
        self.hits.heads += 1;
        self.hits.json += u64::from(is_known);
        Some(form)
    }

    /// Makes `request` what the head of the prototype and the contents say, which [fit](Prototype::fits).
    pub fn fill_grpc(
        &mut self,
        prototype: &Prototype,
        request: &mut Request,
        outline: &Outline<'_>,
        pool: &Pool,
    ) -> Result<(), Exhausted> {
        prototype.fill(request, outline, &mut self.portions, pool)?;
        self.hits.messages += 1;
        Ok(())
    }

    /// The JSON of earlier answers, and the memory that new JSON is written in.
    pub fn http_answers(&mut self) -> Option<(&mut HttpAnswers, &mut Texts)> {
        self.is_on.then_some((&mut self.http_answers, &mut self.texts))
    }

    pub fn grpc_answers(&mut self) -> Option<&mut GrpcAnswers> {
        self.is_on.then_some(&mut self.grpc_answers)
    }
}

impl Drop for PlanCache {
    /// Logs how often the cache was of use, which tests read.
    fn drop(&mut self) {
        if self.is_on {
            let Hits { heads, json, messages } = self.hits;
            let (http_answers, grpc_answers) = (self.http_answers.hits, self.grpc_answers.hits);
            verbose!(
                1,
                "request plan cache of a shard: {heads} HTTP heads, {json} JSON texts, {messages} gRPC messages, \
                 {http_answers} HTTP answers, {grpc_answers} gRPC answers"
            );
        }
    }
}
