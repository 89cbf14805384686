//! Answers unary inference calls over gRPC with the responses of their models.

use std::sync::Arc;

use crate::api::coding::packing::Answer;
use crate::api::error;
use crate::api::infer::AnswerForm;
use crate::api::infer::grpc_reply::{self, Writer};
use crate::api::infer_context::InferContext;
use crate::api::watch::grpc_ends;
use nereid_protocol::grpc::Encoder;
use nereid_protocol::service::{CallKey, GrpcReply, Replies};
use nereid_request::Response;
use nereid_scheduler::ServedModel;

/// The part of one shard's service that writes such answers.
#[derive(Default)]
pub struct UnaryAnswers {
    encoder: Encoder,
}

impl UnaryAnswers {
    /// Answers a call with the one response of its model.
    #[inline]
    pub fn answer(
        &mut self,
        context: &mut InferContext,
        call: CallKey,
        mut response: Response,
        model: &Arc<ServedModel>,
        form: &AnswerForm,
        replies: &mut Replies,
    ) {
        let watch = form.watch.as_ref();
        let encoded = match response.error.take() {
            Some(status) => Err(status),
            None => grpc_reply::unary(
                &mut Writer { encoder: &mut self.encoder, answers: context.plan_cache.grpc_answers() },
                &response,
                model,
                &context.pool,
            ),
        };
        response.retire();
        match encoded {
            Ok(message) => {
                if watch.is_none() && form.packing.is_none() {
                    return replies.push(call, GrpcReply::Answer(message));
                }
                let status = grpc_ends(watch);
                if let Some(packing) = form.packing {
                    watch.inspect(|watch| watch.leaves(call, replies));
                    return context.calls.pack(None, Box::new(Answer::grpc(call, message, packing, status)), replies);
                }
                replies.push(call, GrpcReply::Message(message));
                watch.inspect(|watch| watch.leaves(call, replies));
                replies.push(call, GrpcReply::End(status));
            }
            Err(status) => {
                watch.inspect(|watch| watch.leaves(call, replies));
                replies.push(call, GrpcReply::End(error::grpc_status(status)));
            }
        }
    }
}
