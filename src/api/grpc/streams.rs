//! ModelStreamInfer: many requests on one call (contract/grpc.md section 5).
//!
//! Models with one response to a request answer in the order in which the requests were read. Decoupled ones answer as
//! they like, in between and as often as they want; what their client does not take holds them back by credits (see
//! `request`). Errors stay in band: a request that is refused or fails takes its place like any other.

mod packed;
pub mod stream;

use std::sync::Arc;

use super::reflection;
use crate::api::awaiting::ParkedCall;
use crate::api::calls::pending_submit::PendingSubmit;
use crate::api::calls::reply_to::ReplyTo;
use crate::api::calls::work::Work;
use crate::api::error;
use crate::api::facts::ServerState;
use crate::api::infer::grpc_reply::{self, StreamedFrom, Writer};
use crate::api::infer::grpc_request;
use crate::api::infer_context::{InferContext, kept_field};
use crate::api::load_reports::streams as load_streams;
use crate::api::plan_cache::grpc_requests::RequestKey;
use crate::api::steps::LONG_STEPS_AT_ONCE;
use crate::api::watch::Arrival;
use crate::repository::Choice;
use nereid_memory::Gather;
use nereid_observe::panics;
use nereid_protocol::grpc::{Code, Encoder, InferRequest, Message};
use nereid_protocol::service::{Arrived, GrpcPlan, GrpcReply, GrpcStatus, Replies, Token};
use nereid_request::{Delivery, RefusalReason, Response, Status, Text};
use packed::{Packed, Taken};

/// A request of a stream that never got to its model.
pub struct StreamRefusal<'a> {
    pub key: Token,
    pub id: &'a Text,
    pub status: &'a Status,
    /// Of its model.
    pub decoupled: bool,
}

/// The part of one shard's service that answers the requests of streams.
#[derive(Default)]
pub struct Streams {
    encoder: Encoder,
}

impl Streams {
    /// Ends the stream and everything on it.
    fn end(&mut self, context: &mut InferContext, token: Token, status: GrpcStatus, replies: &mut Replies) {
        let pool = context.pool.clone();
        let Some(stream) = context.calls.stream(token) else { return };
        let call = stream.call;
        stream.send_plain(&pool, replies);
        context.calls.cancel(token.0);
        replies.push(call, GrpcReply::End(status));
    }

    /// A message of the stream is complete.
    pub fn message(
        &mut self,
        context: &mut InferContext,
        token: Token,
        plan: &GrpcPlan,
        message: Message,
        arrived: Arrived<RequestKey>,
        replies: &mut Replies,
    ) {
        if plan.method == reflection::METHOD {
            return reflection::message(&mut context.calls, token, message, replies);
        }
        let Some(stream) = context.calls.stream(token) else { return };
        if stream.is_full() {
            let text = format!("more than {} requests of the stream wait for their answers", stream.in_flight_max);
            let status = Status::refused(RefusalReason::StreamCalls, text);
            return self.end(context, token, error::grpc_status(status), replies);
        }
        stream.answer_by_ns = arrived.deadline_ns.unwrap_or(0);
        let arrival = arrived.since_ns.map(Arrival::since);
        match message {
            Message::Infer(request) if stream.inbox.is_empty() && !stream.is_held => {
                self.take_request(context, (token, None), request, arrived.noted, arrival, replies)
            }
            message => {
                stream.inbox.push(message);
                // What is taken now may be another one, so it does not teach what was noted.
                self.drive_since(context, token, arrival, replies);
            }
        }
    }

    /// Takes the message that is next.
    fn take_message(
        &mut self,
        context: &mut InferContext,
        token: Token,
        message: Message,
        arrival: Option<Arrival>,
        replies: &mut Replies,
    ) {
        match message {
            Message::Infer(request) => {
                let is_timed = context.calls.stream(token).is_some_and(|stream| stream.plan.timed);
                let arrival = is_timed.then(|| arrival.unwrap_or_else(Arrival::now));
                self.take_request(context, (token, None), request, None, arrival, replies);
            }
            // What is unpacked for this method is a request for inference.
            Message::Collected(_) | Message::Compressed(..) => {
                self.end(context, token, GrpcStatus::new(Code::Internal, "Unable to parse request"), replies);
            }
        }
    }

    /// Submits a request that equals an earlier one but for id and contents.
    pub fn submit(
        &mut self,
        context: &mut InferContext,
        token: Token,
        key: Token,
        pending: PendingSubmit,
        replies: &mut Replies,
    ) {
        let PendingSubmit { reply_to, model, request, form } = pending;
        let (id, decoupled) = (request.id.clone(), model.spec.decoupled);
        if let Some(stream) = context.calls.stream(token) {
            stream.expect(key, decoupled);
        }
        if let Err(status) = context.calls.submit(key, reply_to, model, request, form) {
            context.calls.end_work(key.0);
            let refusal = StreamRefusal { key, id: &id, status: &status, decoupled };
            self.refuse(context, token, refusal, replies);
        }
    }

    fn take_request(
        &mut self,
        context: &mut InferContext,
        (token, resumed): (Token, Option<Token>),
        message: Box<InferRequest>,
        noted: Option<RequestKey>,
        arrival: Option<Arrival>,
        replies: &mut Replies,
    ) {
        let issued = match resumed {
            Some(key) => Ok((key, context.calls.request_of(key))),
            None => context.calls.new_request(),
        };
        let Ok((key, mut request)) = issued else {
            let status = Status::refused(RefusalReason::Calls, "too many requests wait on this server");
            return self.end(context, token, error::grpc_status(status), replies);
        };
        let id = Text::from(message.id());
        if context.facts.state() == ServerState::Exiting {
            context.calls.give_up(key, request);
            return self.refuse(
                context,
                token,
                StreamRefusal { key, id: &id, status: &error::grpc_stopping(), decoupled: false },
                replies,
            );
        }
        let found = context.calls.stream(token).map(|stream| (Arc::clone(&stream.plan), stream.answer_by_ns));
        let Some((plan, answer_by_ns)) = found else { return };
        let (name, version) = (message.model_name().as_bytes(), message.model_version().as_bytes());
        let Choice { mut model, route } = match context.find(name, version, &|name| kept_field(&plan.routing, name)) {
            Ok(choice) => choice,
            // Whatever it would have been: it counts as one that answers once.
            Err(status) => {
                request.withdraw();
                let Err(status) = Streams::park(context, (token, key), message, status, arrival) else { return };
                context.calls.end_work(key.0);
                return self.refuse(
                    context,
                    token,
                    StreamRefusal { key, id: &id, status: &status, decoupled: false },
                    replies,
                );
            }
        };
        let decoupled = model.spec.decoupled;
        if let Some(stream) = context.calls.stream(token) {
            stream.expect(key, decoupled);
        }
        let (pool, regions) = (&context.pool, &context.facts.regions);
        let outcome = match grpc_request::read(&message, &model, &mut request, &plan.kept, pool, regions) {
            Ok(mut form) => {
                match route {
                    None => context.plan_cache.learn_grpc(noted, &plan, &model, &mut request, &form),
                    Some(route) => model = route.settle(&mut request, &model),
                }
                if plan.timed {
                    form.watch = context.watches.of_grpc(&model.name, &plan, arrival);
                    form.watch.as_ref().inspect(|watch| watch.attach(&mut request));
                }
                request.queueing.answer_by_ns = answer_by_ns;
                let form = context.plan_cache.share(form);
                context.calls.submit(key, ReplyTo::Stream(token), model, request, form)
            }
            Err(status) => {
                request.withdraw();
                Err(status)
            }
        };
        if let Err(status) = outcome {
            context.calls.end_work(key.0);
            self.refuse(context, token, StreamRefusal { key, id: &id, status: &status, decoupled }, replies);
        }
    }

    /// Has a request wait for the load of its model, and what follows on the stream for the request.
    #[cold]
    fn park(
        context: &mut InferContext,
        (token, key): (Token, Token),
        message: Box<InferRequest>,
        status: Status,
        arrival: Option<Arrival>,
    ) -> Result<(), Status> {
        if context.demand.is_none() {
            return Err(status);
        }
        let name: Box<[u8]> = message.model_name().as_bytes().into();
        let parked = || ParkedCall::Streamed { stream: token, message, arrival };
        context.await_model(Some(key), &name, status, parked)?;
        if let Some(stream) = context.calls.stream(token) {
            stream.is_held = true;
            // It has no place in the order yet; the stream does not end before it.
            stream.unordered.insert(key.0);
        }
        Ok(())
    }

    /// Begins a request once more whose model was loaded for it.
    pub fn resume(
        &mut self,
        context: &mut InferContext,
        (token, key): (Token, Token),
        message: Box<InferRequest>,
        arrival: Option<Arrival>,
        replies: &mut Replies,
    ) {
        let Some(stream) = context.calls.stream(token) else {
            context.calls.end_work(key.0);
            return;
        };
        stream.is_held = false;
        stream.unordered.remove(&key.0);
        self.take_request(context, (token, Some(key)), message, None, arrival, replies);
        // What follows in the stream is another request.
        context.resumed = None;
        self.drive(context, token, replies);
    }

    /// Answers a request that never got to its model.
    pub fn refuse(
        &mut self,
        context: &mut InferContext,
        token: Token,
        refusal: StreamRefusal<'_>,
        replies: &mut Replies,
    ) {
        let StreamRefusal { key, id, status, decoupled } = refusal;
        let answer = grpc_reply::refused(&mut self.encoder, id, status, &context.pool);
        if !decoupled {
            return self.place(context, token, key.0, answer, replies);
        }
        if let Some(stream) = context.calls.stream(token) {
            stream.send(answer, None, replies);
        }
        self.end_request(context, token, key.0, replies);
        self.drive(context, token, replies);
    }

    /// The one answer of a model that answers once.
    pub fn answer(
        &mut self,
        context: &mut InferContext,
        token: Token,
        key: u64,
        response: &mut Response,
        from: &StreamedFrom<'_>,
        replies: &mut Replies,
    ) {
        let answer = self.encode(context, response, from);
        match fatal_status(context, token, response) {
            Some(status) => self.end(context, token, status, replies),
            None => {
                if let (Some(watch), Some(stream)) = (from.watch, context.calls.stream(token)) {
                    stream.watches.insert(key, Arc::clone(watch));
                }
                self.place(context, token, key, answer, replies);
            }
        }
    }

    /// One of the answers of a decoupled model, or its end.
    pub fn delivered(
        &mut self,
        context: &mut InferContext,
        token: Token,
        key: u64,
        delivery: Delivery,
        replies: &mut Replies,
    ) {
        let Some(place @ Work::Waiting(_)) = context.calls.work_mut(key) else { return };
        let Work::Waiting(waiting) = std::mem::replace(place, Work::Reserved) else { return };
        context.calls.taken = Some(waiting.reply_to);
        panics::fault_point("answer", || waiting.id().as_bytes().to_vec());
        let from = StreamedFrom::new(&waiting.model, &waiting.form, delivery.last);
        let watch = waiting.form.watch.clone();
        let mut fatal = None;
        let message = match delivery.response {
            Some(mut response) => {
                if response.error.is_some() {
                    response.id = waiting.id();
                }
                let credit = response.credit.take();
                let message = self.encode(context, &mut response, &from);
                fatal = fatal_status(context, token, &response);
                response.retire();
                Some((message, credit))
            }
            None if delivery.last && waiting.form.empty_final_response => {
                let message = grpc_reply::without_outputs(&mut self.encoder, None, &waiting.id(), &from, &context.pool);
                message.ok().map(|message| (message, None))
            }
            None => None,
        };
        if let Some(place) = context.calls.work_mut(key) {
            *place = Work::Waiting(waiting);
        }
        if delivery.last {
            context.calls.end_waiting(key);
        }
        if let Some(status) = fatal {
            return self.end(context, token, status, replies);
        }
        if let (Some(stream), Some((message, credit))) = (context.calls.stream(token), message) {
            if let Some(watch) = watch {
                watch.leaves(stream.call, replies);
            }
            stream.send(message, credit, replies);
        }
        if delivery.last {
            self.end_request(context, token, key, replies);
        }
        self.drive(context, token, replies);
    }

    /// Frames an answer. One that cannot be framed becomes an error.
    fn encode(&mut self, context: &mut InferContext, response: &mut Response, from: &StreamedFrom<'_>) -> Gather {
        let mut writer = Writer { encoder: &mut self.encoder, answers: context.plan_cache.grpc_answers() };
        let mut streamed = grpc_reply::streamed(&mut writer, response, from, &context.pool);
        if let Err(status) = &streamed {
            response.error = Some(status.clone());
            streamed = grpc_reply::streamed(&mut writer, response, from, &context.pool);
        }
        // Only a text longer than a message may be gets here.
        streamed.unwrap_or_else(|status| grpc_reply::refused(writer.encoder, &response.id, &status, &context.pool))
    }

    /// Puts an answer into its place in the order; one that has none takes it at the end.
    fn place(&mut self, context: &mut InferContext, token: Token, key: u64, answer: Gather, replies: &mut Replies) {
        let Some(stream) = context.calls.stream(token) else { return };
        match stream.order.iter_mut().find(|(waiting, _)| *waiting == key) {
            Some(place) => place.1 = Some(answer),
            None => stream.order.push_back((key, Some(answer))),
        }
        match stream.flush(replies) {
            true => drop(context.calls.end_work(token.0)),
            false => self.drive(context, token, replies),
        }
    }

    /// A request of a decoupled model has had its last answer.
    fn end_request(&mut self, context: &mut InferContext, token: Token, key: u64, replies: &mut Replies) {
        let Some(stream) = context.calls.stream(token) else { return };
        stream.unordered.remove(&key);
        if stream.flush(replies) {
            context.calls.end_work(token.0);
        }
    }

    /// No request follows.
    pub fn half_closed(context: &mut InferContext, token: Token, replies: &mut Replies) {
        let Some(stream) = context.calls.stream(token) else {
            load_streams::half_closed(&mut context.calls, token, replies);
            return reflection::half_closed(&mut context.calls, token);
        };
        stream.half_closed = true;
        if stream.flush(replies) {
            context.calls.end_work(token.0);
        }
    }

    /// A second has passed in which the peer had not taken everything.
    pub fn waits(&mut self, context: &mut InferContext, token: Token, replies: &mut Replies) {
        if context.calls.stream(token).is_some_and(|stream| stream.send_window.is_stuck()) {
            tracing::info!("a stream is ended: its client does not read");
            let text = "the client does not read the responses of the stream";
            let status = GrpcStatus::refused(Code::ResourceExhausted, RefusalReason::UnreadResponses, text);
            self.end(context, token, status, replies);
        }
    }

    /// Starts to pack and unpack what waits on the stream, unless that has begun.
    pub fn drive(&mut self, context: &mut InferContext, token: Token, replies: &mut Replies) {
        self.drive_since(context, token, None, replies);
    }

    /// The same when a message has come. The one that is taken next keeps its arrival; others arrive when they are
    /// unpacked.
    fn drive_since(
        &mut self,
        context: &mut InferContext,
        token: Token,
        arrival: Option<Arrival>,
        replies: &mut Replies,
    ) {
        let Some(stream) = context.calls.stream(token) else { return };
        if stream.has_packed() && !std::mem::replace(&mut stream.is_driven, true) {
            self.go_on(context, token, arrival, replies);
        }
    }

    /// Packs and unpacks a portion of what waits on the stream.
    pub fn go_on(&mut self, context: &mut InferContext, token: Token, arrival: Option<Arrival>, replies: &mut Replies) {
        if !self.unpack(context, token, arrival, replies) {
            return;
        }
        Streams::pack(context, token, replies);
        let Some(stream) = context.calls.stream(token) else { return };
        if stream.flush(replies) {
            context.calls.end_work(token.0);
        } else if stream.has_packed() {
            context.calls.revisit(token.0);
        } else {
            stream.is_driven = false;
        }
    }

    /// False if that was the end of the stream.
    fn unpack(
        &mut self,
        context: &mut InferContext,
        token: Token,
        mut arrival: Option<Arrival>,
        replies: &mut Replies,
    ) -> bool {
        let mut long_steps = 0;
        while long_steps < LONG_STEPS_AT_ONCE {
            let pool = context.pool.clone();
            let Some(stream) = context.calls.stream(token) else { return false };
            if stream.inbox.is_empty() || stream.is_held || !context.packing_budget.take_step() {
                return true;
            }
            let Some(stream) = context.calls.stream(token) else { return false };
            match stream.inbox.step(&pool) {
                Ok(Taken::Nothing) => return true,
                Ok(Taken::More { is_long }) => long_steps += usize::from(is_long),
                Ok(Taken::Message(message)) => self.take_message(context, token, message, arrival.take(), replies),
                Err(error) => {
                    self.end(context, token, error.into(), replies);
                    return false;
                }
            }
        }
        true
    }

    fn pack(context: &mut InferContext, token: Token, replies: &mut Replies) {
        let mut steps = 0;
        while steps < LONG_STEPS_AT_ONCE {
            let pool = context.pool.clone();
            let Some(stream) = context.calls.stream(token) else { return };
            if stream.outbox.is_overfull() {
                return stream.send_plain(&pool, replies);
            }
            if stream.outbox.is_empty() || !context.packing_budget.take_step() {
                return;
            }
            let Some(stream) = context.calls.stream(token) else { return };
            match stream.outbox.step(&pool) {
                Packed::Nothing => return,
                Packed::More => steps += 1,
                Packed::Message(message, credit) => stream.emit(message, credit, replies),
            }
        }
    }
}

/// The end of the whole stream, if `response` is an error and the client has set `triton_grpc_error`.
fn fatal_status(context: &mut InferContext, token: Token, response: &Response) -> Option<GrpcStatus> {
    let status = response.error.as_ref()?;
    context.calls.stream(token).filter(|stream| stream.error_ends)?;
    Some(error::grpc_status(status.clone()))
}
