//! Goes on with requests that were submitted late: with their streams, or with the answers of those that are refused.

use super::calls::pending_submit::Prepared;
use super::calls::reply_to::ReplyTo;
use super::error;
use super::grpc::streams::{StreamRefusal, Streams};
use super::http;
use super::infer_context::InferContext;
use super::openai;
use nereid_protocol::service::{GrpcReply, Replies, Token};
use nereid_request::Status;

/// Goes on with the stream of a request that was submitted; answers one that was refused.
pub fn end_preparing(
    context: &mut InferContext,
    streams: &mut Streams,
    key: u64,
    prepared: &Prepared,
    outcome: Result<(), Status>,
    replies: &mut Replies,
) {
    let Prepared { reply_to, dialect, id, decoupled } = prepared;
    match (*reply_to, outcome) {
        (ReplyTo::Stream(stream), Ok(())) => streams.drive(context, stream, replies),
        (_, Ok(())) => {}
        (ReplyTo::Http(call), Err(status)) => http::decode::refuse(context, key, call, *dialect, &status, replies),
        (ReplyTo::Grpc(call), Err(status)) => {
            context.calls.end_work(key);
            replies.push(call, GrpcReply::End(error::grpc_status(status)));
        }
        (ReplyTo::OpenAi(token, _), Err(status)) => {
            context.calls.end_work(key);
            openai::answering::not_submitted(context, token, key, &status, replies);
        }
        (ReplyTo::Stream(stream), Err(status)) => {
            context.calls.end_work(key);
            let refusal = StreamRefusal { key: Token(key), id, status: &status, decoupled: *decoupled };
            streams.refuse(context, stream, refusal, replies);
        }
    }
}
