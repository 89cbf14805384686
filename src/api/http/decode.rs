//! Decodes the bodies of inference requests over HTTP, in steps.

use super::dialect::Dialect;
use crate::api::calls::reply_to::ReplyTo;
use crate::api::calls::work::Work;
use crate::api::error;
use crate::api::infer::{Decode, Progress};
use crate::api::infer_context::InferContext;
use crate::api::steps::{LONG_STEPS_AT_ONCE, STEPS_AT_ONCE};
use nereid_protocol::service::{CallKey, HttpReply, Replies, Token};
use nereid_request::Status;

/// Decodes the next steps, and submits the request after the last one.
pub fn decode(
    context: &mut InferContext,
    key: u64,
    call: CallKey,
    mut decoder: Box<dyn Decode>,
    replies: &mut Replies,
) {
    let (mut long_steps, mut short_steps) = (0, 0);
    let dialect = decoder.dialect();
    while short_steps < STEPS_AT_ONCE {
        match decoder.step(&context.pool, &context.facts.regions) {
            Ok(Progress::More { is_long, steps }) => {
                short_steps += steps.max(1);
                long_steps += usize::from(is_long);
                if long_steps == LONG_STEPS_AT_ONCE {
                    break;
                }
            }
            Ok(Progress::Ready) => {
                let (model, request, form) = decoder.finish();
                let reply_to = ReplyTo::Http(call);
                let form = context.plan_cache.share(form);
                if let Err(status) = context.calls.submit(Token(key), reply_to, model, request, form) {
                    refuse(context, key, call, dialect, &status, replies);
                }
                return;
            }
            Err(status) => {
                decoder.finish().1.withdraw();
                refuse(context, key, call, dialect, &status, replies);
                return;
            }
        }
    }
    context.calls.defer(key, Work::Decoding { call, decoder });
}

/// Answers a request that is not submitted, and ends its work.
pub fn refuse(
    context: &mut InferContext,
    key: u64,
    call: CallKey,
    dialect: Dialect,
    status: &Status,
    replies: &mut Replies,
) {
    context.calls.end_work(key);
    replies.push(call, HttpReply::Answer(dialect.adapt_error(error::http_error(&context.pool, status, error::JSON))));
}
