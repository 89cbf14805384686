//! ModelStreamInfer: many requests on one call, answered in the order they were read (grpc.md section 5).
//!
//! Errors stay in band: a request that is refused or fails takes its place in the order like any other.

use std::collections::VecDeque;
use std::sync::Arc;

use super::infer::{grpc_reply, grpc_request};
use super::waiting::{Peer, Work};
use super::{Api, ServerState, error};
use crate::memory::Gather;
use crate::protocol::grpc::Message;
use crate::protocol::service::{CallKey, GrpcStatus, Replies, Reply, Token};
use crate::repository::ServedModel;
use crate::request::{Response, Status, Text};

/// Requests of one stream whose answers are out at a time. Triton has no such bound; beyond it, the stream ends.
const IN_FLIGHT_MAX: usize = 16_384;

/// One open stream.
pub struct Stream {
    call: CallKey,
    /// Requests in the order they were read, each with its answer once that is there.
    order: VecDeque<(u64, Option<Gather>)>,
    half_closed: bool,
}

impl Stream {
    pub fn new(call: CallKey) -> Stream {
        Stream { call, order: VecDeque::new(), half_closed: false }
    }

    /// The tokens of requests without an answer.
    pub fn waiting(self) -> impl Iterator<Item = u64> {
        self.order.into_iter().filter(|(_, answer)| answer.is_none()).map(|(key, _)| key)
    }

    /// Sends what is due: the answers at the front, and the end behind the last one.
    fn flush(&mut self, replies: &mut Replies) -> bool {
        while let Some((_, Some(_))) = self.order.front() {
            if let Some((_, Some(answer))) = self.order.pop_front() {
                replies.push(self.call, Reply::GrpcMessage(answer));
            }
        }
        let over = self.half_closed && self.order.is_empty();
        if over {
            replies.push(self.call, Reply::GrpcEnd(GrpcStatus::ok()));
        }
        over
    }
}

impl Api {
    fn stream(&mut self, stream: Token) -> Option<&mut Stream> {
        match self.work_mut(stream.0) {
            Some(Work::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    pub(super) fn stream_message(&mut self, token: Token, message: Message, replies: &mut Replies) {
        let Some(stream) = self.stream(token) else { return };
        let call = stream.call;
        if stream.order.len() >= IN_FLIGHT_MAX {
            let text = format!("more than {IN_FLIGHT_MAX} requests of the stream wait for their answers");
            self.cancel(token.0);
            return replies.push(call, Reply::GrpcEnd(error::grpc_status(Status::unavailable(text))));
        }
        let Ok((key, mut request)) = self.new_request() else {
            self.cancel(token.0);
            let status = Status::unavailable("too many requests wait on this server");
            return replies.push(call, Reply::GrpcEnd(error::grpc_status(status)));
        };
        if let Some(stream) = self.stream(token) {
            stream.order.push_back((key.0, None));
        }
        let Message::Infer(message) = message else {
            self.give_up(key, request);
            let error = Status::unsupported("compressed messages are not supported by this version of Nereid");
            return self.refuse_streamed(token, key, &Text::default(), &error, replies);
        };
        if self.facts.state() == ServerState::Exiting {
            self.give_up(key, request);
            let id = Text::from(message.id());
            return self.refuse_streamed(token, key, &id, &super::grpc_service::stopping(), replies);
        }
        let id = Text::from(message.id());
        let read = self.find(message.model_name().as_bytes(), message.model_version().as_bytes()).and_then(|model| {
            let options = grpc_request::read(&message, &model, &mut request, &self.pool)?;
            Ok((model, options))
        });
        let outcome = match read {
            Ok((model, options)) => self.submit(key, Peer::Stream(token), &model, request, options.form),
            Err(status) => {
                request.withdraw();
                Err(status)
            }
        };
        if let Err(status) = outcome {
            self.end_work(key.0);
            self.refuse_streamed(token, key, &id, &status, replies);
        }
    }

    fn refuse_streamed(&mut self, token: Token, key: Token, id: &Text, error: &Status, replies: &mut Replies) {
        let answer = grpc_reply::refused(&mut self.encoder, id, error, &self.pool);
        self.place(token, key.0, answer, replies);
    }

    pub(super) fn answer_stream(
        &mut self,
        token: Token,
        key: u64,
        response: &Response,
        model: &Arc<ServedModel>,
        replies: &mut Replies,
    ) {
        let streamed = grpc_reply::streamed(&mut self.encoder, response, model, true, &self.pool);
        let answer =
            streamed.unwrap_or_else(|status| grpc_reply::refused(&mut self.encoder, &response.id, &status, &self.pool));
        self.place(token, key, answer, replies);
    }

    /// Puts an answer into its place in the order.
    fn place(&mut self, token: Token, key: u64, answer: Gather, replies: &mut Replies) {
        let Some(stream) = self.stream(token) else { return };
        if let Some(place) = stream.order.iter_mut().find(|(waiting, _)| *waiting == key) {
            place.1 = Some(answer);
        }
        if stream.flush(replies) {
            self.end_work(token.0);
        }
    }

    pub(super) fn stream_half_closed(&mut self, token: Token, replies: &mut Replies) {
        let Some(stream) = self.stream(token) else { return };
        stream.half_closed = true;
        if stream.flush(replies) {
            self.end_work(token.0);
        }
    }
}
