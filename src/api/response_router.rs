//! Routes the responses of models to the calls that wait for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::calls::classifying::Classifier;
use super::calls::delays::DelayedStep;
use super::calls::reply_to::ReplyTo;
use super::calls::work::{Waiting, Work};
use super::containment::contained;
use super::grpc::answer::UnaryAnswers;
use super::grpc::streams::Streams;
use super::http;
use super::http::chunked_replies::ChunkedReplies;
use super::infer::grpc_reply::StreamedFrom;
use super::infer_context::InferContext;
use super::openai;
use nereid_memory::Pool;
use nereid_observe::metrics::Registry;
use nereid_observe::panics;
use nereid_protocol::service::Replies;
use nereid_request::{Delivery, Response, Status, local_delivery};

/// The part of one shard's service that gets the responses of models.
pub struct ResponseRouter {
    classifier: Classifier,
    chunked_replies: ChunkedReplies,
    unary_answers: UnaryAnswers,
    /// Empty between turns: takes the answers to what this shard executes itself.
    local: Vec<(u64, Delivery)>,
}

impl ResponseRouter {
    /// `metrics`: of backends, some of which answers report.
    pub fn new(pool: Pool, metrics: Arc<Registry>) -> ResponseRouter {
        ResponseRouter {
            classifier: Classifier::default(),
            chunked_replies: ChunkedReplies { pool, metrics },
            unary_answers: UnaryAnswers::default(),
            local: Vec::new(),
        }
    }

    /// Whether no response is being classified.
    pub fn is_idle(&self) -> bool {
        self.classifier.is_idle()
    }

    /// Delivers the responses to requests that this shard has executed itself.
    #[inline]
    pub fn deliver_local(&mut self, context: &mut InferContext, streams: &mut Streams, replies: &mut Replies) {
        // No more than this turn's requests have brought.
        let mut answers = std::mem::take(&mut self.local);
        local_delivery::swap_answers(&mut answers);
        for (key, delivery) in answers.drain(..) {
            self.delivered(context, streams, key, delivery, replies);
        }
        self.local = answers;
    }

    /// Writes on at an answer that leaves response by response.
    pub fn write_on(&mut self, context: &mut InferContext, key: u64, replies: &mut Replies) {
        self.chunked_replies.go_on(&mut context.calls, key, replies);
    }

    /// A response, or the news that it was the last one. A panic ends the request that it is for.
    #[inline]
    pub fn delivered(
        &mut self,
        context: &mut InferContext,
        streams: &mut Streams,
        key: u64,
        delivery: Delivery,
        replies: &mut Replies,
    ) {
        let is_last = delivery.last;
        context.calls.taken = None;
        let done = contained(|| {
            let by_ns = context.calls.delays.response_ns;
            if by_ns > 0 && context.calls.is_grpc(key) {
                return context.calls.delay(by_ns, DelayedStep::Delivered { key, delivery: Box::new(delivery) });
            }
            self.delivered_now(context, streams, key, delivery, replies);
        });
        if done.is_none() {
            let waited_for = context.calls.waited_for(key);
            context.calls.abandon(key, is_last);
            waited_for.into_iter().for_each(|one| replies.push_panicked(one));
        }
    }

    #[inline]
    pub fn delivered_now(
        &mut self,
        context: &mut InferContext,
        streams: &mut Streams,
        key: u64,
        delivery: Delivery,
        replies: &mut Replies,
    ) {
        if let Some(delivery) = self.classifier.classified(key, delivery, &mut context.calls, &context.pool) {
            self.deliver(context, streams, key, delivery, replies);
        }
    }

    /// Does one step for the response that has waited longest for its classes.
    pub fn classify_on(&mut self, context: &mut InferContext, streams: &mut Streams, replies: &mut Replies) {
        let Some(key) = self.classifier.next() else { return };
        let waits_for = context.calls.waits_for(key);
        if contained(|| self.classify_next(context, streams, replies)).is_none() {
            // The response is gone, and with it what came behind it: nothing more is known of this request.
            context.calls.abandon(key, true);
            waits_for.into_iter().for_each(|one| replies.push_panicked(one));
        }
    }

    fn classify_next(&mut self, context: &mut InferContext, streams: &mut Streams, replies: &mut Replies) {
        let Some((key, delivery, behind)) = self.classifier.step(&mut context.calls, &context.pool) else { return };
        self.deliver(context, streams, key, delivery, replies);
        for delivery in behind {
            self.delivered_now(context, streams, key, delivery, replies);
        }
    }

    /// Passes on what goes out as it is.
    #[inline]
    fn deliver(
        &mut self,
        context: &mut InferContext,
        streams: &mut Streams,
        key: u64,
        delivery: Delivery,
        replies: &mut Replies,
    ) {
        let waiting = match context.calls.work_mut(key) {
            Some(Work::Waiting(waiting)) => waiting,
            Some(Work::Left(_)) if delivery.last => {
                context.calls.end_work(key);
                let is_answer = delivery.response.is_some_and(|response| response.error.is_none());
                context.facts.stale_deliveries.fetch_add(u64::from(is_answer), Ordering::Relaxed);
                return;
            }
            _ => return,
        };
        panics::fault_point("deliver", || waiting.id().as_bytes().to_vec());
        if let (Some(watch), Some(response)) = (&waiting.form.watch, &delivery.response) {
            watch.answered(response);
        }
        if waiting.chunked.is_some() {
            return self.chunked_replies.delivered(&mut context.calls, key, delivery, replies);
        }
        if let ReplyTo::OpenAi(token, index) = waiting.reply_to {
            return openai::answering::delivered(context, (token, index), key, delivery, replies);
        }
        if let ReplyTo::Stream(stream) = waiting.reply_to
            && waiting.model.spec.decoupled
        {
            return streams.delivered(context, stream, key, delivery, replies);
        }
        if delivery.response.is_some() {
            waiting.responses += 1;
            waiting.is_final = delivery.last;
        }
        if !delivery.last {
            if let Some(response) = delivery.response {
                waiting.response.get_or_insert(response);
            }
            return;
        }
        let Some(waiting) = context.calls.end_waiting(key) else { return };
        let id = waiting.id();
        panics::fault_point("answer", || id.as_bytes().to_vec());
        let Waiting { reply_to, model, form, ticket, response: first, responses, mut is_final, .. } = waiting;
        let mut response = match (responses, delivery.response, first) {
            (1, Some(only), _) => only,
            (1, None, Some(only)) => only,
            // A stream gets the first one, whatever follows.
            (2.., _, Some(first)) if matches!(reply_to, ReplyTo::Stream(_)) => {
                is_final = false;
                first
            }
            _ => {
                is_final = true;
                let status = Status::internal(format!("expected a single response, got {responses}"));
                Response::failed(id.clone(), status)
            }
        };
        if let Some(ticket) = ticket {
            ticket.retire();
        }
        match reply_to {
            // Its responses went there one by one.
            ReplyTo::OpenAi(..) => {}
            ReplyTo::Http(call) => http::answer::answer(context, call, response, &model, form, replies),
            ReplyTo::Grpc(call) => self.unary_answers.answer(context, call, response, &model, &form, replies),
            ReplyTo::Stream(stream) => {
                if response.error.is_some() {
                    response.id = id;
                }
                let from = StreamedFrom::new(&model, &form, is_final);
                streams.answer(context, stream, key, &mut response, &from, replies);
                response.retire();
            }
        }
    }
}
