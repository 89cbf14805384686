//! Answers inference calls over HTTP with the responses of their models.

use std::rc::Rc;
use std::sync::Arc;

use crate::api::calls::work::Work;
use crate::api::coding::packing::Answer;
use crate::api::error;
use crate::api::infer::{AnswerForm, http_reply};
use crate::api::infer_context::InferContext;
use crate::api::steps::LONG_STEPS_AT_ONCE;
use crate::api::watch::http_leaves;
use nereid_protocol::service::{CallKey, HttpReply, Replies};
use nereid_request::Response;
use nereid_scheduler::ServedModel;

/// Answers a call with the one response of its model.
pub fn answer(
    context: &mut InferContext,
    call: CallKey,
    mut response: Response,
    model: &Arc<ServedModel>,
    form: Rc<AnswerForm>,
    replies: &mut Replies,
) {
    if response.error.is_none()
        && let Some(kept) = context.plan_cache.http_answers()
        && let Some(reply) = http_reply::write_plainly(&mut response, model, &form, kept, &context.pool)
    {
        replies.push(call, HttpReply::Plain(reply));
        return response.retire();
    }
    let dialect = form.dialect;
    let encoder = match response.error.take() {
        // Errors after the submission to a model are not labelled as JSON, here and below (contract/http.md section 1).
        Some(status) => {
            form.watch.as_ref().inspect(|watch| watch.leaves(call, replies));
            return replies
                .push(call, HttpReply::Answer(dialect.adapt_error(error::http_error(&context.pool, &status, None))));
        }
        None => http_reply::Encoder::new(response, model, form, &context.pool),
    };
    match encoder {
        Ok(encoder) => encode(context, None, call, Box::new(encoder), replies),
        Err(status) => {
            replies.push(call, HttpReply::Answer(dialect.adapt_error(error::http_error(&context.pool, &status, None))));
        }
    }
}

/// Encodes the next steps of an answer; what does not fit into this turn is put off.
pub fn encode(
    context: &mut InferContext,
    key: Option<u64>,
    call: CallKey,
    mut encoder: Box<http_reply::Encoder>,
    replies: &mut Replies,
) {
    let dialect = encoder.dialect();
    for _ in 0..LONG_STEPS_AT_ONCE {
        let watch = encoder.watch();
        let reply = match encoder.step(&context.pool) {
            Ok(false) => continue,
            Ok(true) => {
                let packing = encoder.packing();
                let mut reply = encoder.finish();
                http_leaves(watch.as_ref(), call, &mut reply, replies);
                if let Some(packing) = packing {
                    return context.calls.pack(key, Box::new(Answer::http(call, reply, packing)), replies);
                }
                reply
            }
            Err(status) => {
                let mut reply = dialect.adapt_error(error::http_error(&context.pool, &status, None));
                http_leaves(watch.as_ref(), call, &mut reply, replies);
                reply
            }
        };
        if let Some(key) = key {
            context.calls.end_work(key);
        }
        return replies.push(call, HttpReply::Answer(reply));
    }
    let work = Work::Encoding { call, encoder };
    match key {
        Some(key) => context.calls.defer(key, work),
        None => match context.calls.new_work(work) {
            Ok(token) => context.calls.revisit(token.0),
            Err(status) => {
                let reply = error::http_error(&context.pool, &status, None);
                replies.push(call, HttpReply::Answer(dialect.adapt_error(reply)));
            }
        },
    }
}
