//! ModelStreamInfer: many requests on one call (contract/grpc.md section 5).
//!
//! Models with one response to a request answer in the order in which the requests were read. Decoupled ones answer as
//! they like, in between and as often as they want; what their client does not take holds them back by credits (see
//! `request`). Errors stay in band: a request that is refused or fails takes its place like any other.

mod packed;

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::calls::{Peer, Work};
use super::facts::ServerState;
use super::infer::grpc_reply::{self, StreamedFrom, Writer};
use super::infer::{AnswerForm, grpc_request};
use super::packing::Packing;
use super::plan_cache::grpc_requests::RequestKey;
use super::send_window::SendWindow;
use super::watch::{Arrival, Watch};
use super::{Api, error, reflection};
use nereid_memory::Gather;
use nereid_protocol::grpc::{Code, InferRequest, Message};
use nereid_protocol::service::{Arrived, CallKey, GrpcPlan, GrpcReply, GrpcStatus, Replies, Token};
use nereid_request::{Credit, Delivery, Request, Response, Status, Text};
use nereid_scheduler::ServedModel;
use packed::{Inbox, Outbox};

/// Requests of one stream whose answers are out at a time. Triton has no such bound; beyond it, the stream ends.
const IN_FLIGHT_MAX: usize = 16_384;
/// However few requests a shard takes, a stream may have so many of them.
const IN_FLIGHT_LEAST: usize = 64;
/// A stream may have one request in so many that its shard takes, so that it does not keep all others away.
const PART_OF_SHARD: usize = 8;

/// What a stream may have of the requests that its shard takes.
pub fn in_flight_max(waiting_max: usize) -> usize {
    (waiting_max / PART_OF_SHARD).clamp(IN_FLIGHT_LEAST, IN_FLIGHT_MAX)
}

/// One open stream.
pub struct Stream {
    call: CallKey,
    /// Requests in the order they were read, each with its answer once that is there.
    order: VecDeque<(u64, Option<Gather>)>,
    /// Who watches requests whose answers wait in that order.
    watches: HashMap<u64, Arc<Watch>>,
    /// Requests of decoupled models whose last response is still to come.
    unordered: HashSet<u64>,
    half_closed: bool,
    /// `triton_grpc_error`: a failed response is the end of the stream.
    error_ends: bool,
    pub send_window: SendWindow,
    /// How its requests come.
    plan: Arc<GrpcPlan>,
    /// What is packed.
    inbox: Inbox,
    outbox: Outbox,
    /// It is being seen to, now or in a later turn.
    is_driven: bool,
    /// The last request that was read is prepared in steps: those behind it wait.
    pub is_held: bool,
    in_flight_max: usize,
}

impl Stream {
    /// `waiting_max`: requests that the shard takes.
    pub fn new(
        call: CallKey,
        error_ends: bool,
        plan: GrpcPlan,
        packing: Option<Packing>,
        waiting_max: usize,
    ) -> Stream {
        Stream {
            in_flight_max: in_flight_max(waiting_max),
            call,
            order: VecDeque::new(),
            watches: HashMap::new(),
            unordered: HashSet::new(),
            half_closed: false,
            error_ends,
            send_window: SendWindow::default(),
            plan: Arc::new(plan),
            inbox: Inbox::default(),
            outbox: Outbox::new(packing),
            is_driven: false,
            is_held: false,
        }
    }

    /// The tokens of requests without their last answer.
    pub fn waiting(self) -> impl Iterator<Item = u64> {
        let ordered = self.order.into_iter().filter(|(_, answer)| answer.is_none()).map(|(key, _)| key);
        ordered.chain(self.unordered)
    }

    /// As many requests as may be are out.
    fn is_full(&self) -> bool {
        self.order.len() + self.unordered.len() + self.inbox.len() + self.outbox.len() >= self.in_flight_max
    }

    /// Whether a request could be handed to its model now.
    pub fn takes_at_once(&self) -> bool {
        self.inbox.is_empty() && !self.is_held && !self.is_full()
    }

    /// A request is handed to its model.
    fn expect(&mut self, key: Token, decoupled: bool) {
        match decoupled {
            true => drop(self.unordered.insert(key.0)),
            false => self.order.push_back((key.0, None)),
        }
    }

    fn say(&mut self, message: Gather, credit: Option<Credit>, replies: &mut Replies) {
        match self.outbox.is_packing() {
            true => self.outbox.push(message, credit),
            false => self.emit(message, credit, replies),
        }
    }

    fn emit(&mut self, message: Gather, credit: Option<Credit>, replies: &mut Replies) {
        self.send_window.say(message.len(), credit);
        replies.push(self.call, GrpcReply::Message(message));
    }

    /// Sends what is due: the answers at the front, and the end behind the last one.
    fn flush(&mut self, replies: &mut Replies) -> bool {
        while let Some((_, Some(_))) = self.order.front() {
            if let Some((key, Some(answer))) = self.order.pop_front() {
                if !self.watches.is_empty()
                    && let Some(watch) = self.watches.remove(&key)
                {
                    watch.leaves(self.call, replies);
                }
                self.say(answer, None, replies);
            }
        }
        let is_silent = self.inbox.is_empty() && self.outbox.is_empty();
        let over = self.half_closed && self.order.is_empty() && self.unordered.is_empty() && is_silent;
        if over {
            replies.push(self.call, GrpcReply::End(GrpcStatus::ok()));
        }
        over
    }
}

impl Api {
    /// Ends the stream and everything on it.
    fn end_stream(&mut self, token: Token, status: GrpcStatus, replies: &mut Replies) {
        let pool = self.pool.clone();
        let Some(stream) = self.calls.stream(token) else { return };
        let call = stream.call;
        stream.say_plain(&pool, replies);
        self.calls.cancel(token.0);
        replies.push(call, GrpcReply::End(status));
    }

    pub(super) fn stream_message(
        &mut self,
        token: Token,
        plan: &GrpcPlan,
        message: Message,
        arrived: Arrived<RequestKey>,
        replies: &mut Replies,
    ) {
        if plan.method == reflection::METHOD {
            return reflection::message(&mut self.calls, token, message, replies);
        }
        let Some(stream) = self.calls.stream(token) else { return };
        if stream.is_full() {
            let text = format!("more than {} requests of the stream wait for their answers", stream.in_flight_max);
            return self.end_stream(token, error::grpc_status(Status::unavailable(text)), replies);
        }
        let arrival = arrived.since_ns.map(Arrival::since);
        match message {
            Message::Infer(request) if stream.inbox.is_empty() && !stream.is_held => {
                self.take_request(token, &request, arrived.noted, arrival, replies)
            }
            message => {
                stream.inbox.push(message);
                // What is taken now may be another one, so it does not teach what was noted.
                self.drive_stream_since(token, arrival, replies);
            }
        }
    }

    /// Takes the message that is next.
    fn take_streamed(&mut self, token: Token, message: Message, arrival: Option<Arrival>, replies: &mut Replies) {
        match message {
            Message::Infer(request) => {
                let is_timed = self.calls.stream(token).is_some_and(|stream| stream.plan.timed);
                let arrival = is_timed.then(|| arrival.unwrap_or_else(Arrival::now));
                self.take_request(token, &request, None, arrival, replies);
            }
            // What is unpacked for this method is a request for inference.
            Message::Collected(_) | Message::Compressed(..) => {
                self.end_stream(token, GrpcStatus::new(Code::Internal, "Unable to parse request"), replies);
            }
        }
    }

    /// Hands on a request whose like has passed before.
    pub(super) fn submit_streamed(
        &mut self,
        token: Token,
        key: Token,
        model: Arc<ServedModel>,
        request: Box<Request>,
        form: Rc<AnswerForm>,
        replies: &mut Replies,
    ) {
        let (id, decoupled) = (request.id.clone(), model.spec.decoupled);
        if let Some(stream) = self.calls.stream(token) {
            stream.expect(key, decoupled);
        }
        if let Err(status) = self.submit(key, Peer::Stream(token), model, request, form) {
            self.calls.end_work(key.0);
            self.refuse_streamed(token, key, &id, &status, decoupled, replies);
        }
    }

    fn take_request(
        &mut self,
        token: Token,
        message: &InferRequest,
        noted: Option<RequestKey>,
        arrival: Option<Arrival>,
        replies: &mut Replies,
    ) {
        let Ok((key, mut request)) = self.calls.new_request() else {
            let status = Status::unavailable("too many requests wait on this server");
            return self.end_stream(token, error::grpc_status(status), replies);
        };
        let id = Text::from(message.id());
        if self.facts.state() == ServerState::Exiting {
            self.calls.give_up(key, request);
            return self.refuse_streamed(token, key, &id, &super::grpc_service::stopping(), false, replies);
        }
        let model = match self.find(message.model_name().as_bytes(), message.model_version().as_bytes()) {
            Ok(model) => model,
            // Whatever it would have been: it counts as one that answers once.
            Err(status) => {
                self.calls.give_up(key, request);
                return self.refuse_streamed(token, key, &id, &status, false, replies);
            }
        };
        let decoupled = model.spec.decoupled;
        if let Some(stream) = self.calls.stream(token) {
            stream.expect(key, decoupled);
        }
        let found = self.calls.stream(token).map(|stream| Arc::clone(&stream.plan));
        let Some(plan) = found else { return };
        let (pool, regions) = (&self.pool, &self.facts.regions);
        let outcome = match grpc_request::read(message, &model, &mut request, &plan.kept, pool, regions) {
            Ok(mut form) => {
                self.learn(noted, &plan, &model, &mut request, &form);
                if plan.timed {
                    form.watch = self.watches.of_grpc(&model.name, &plan, arrival);
                    form.watch.as_ref().inspect(|watch| watch.attach(&mut request));
                }
                let form = self.plan_cache.share(form);
                self.submit(key, Peer::Stream(token), model, request, form)
            }
            Err(status) => {
                request.withdraw();
                Err(status)
            }
        };
        if let Err(status) = outcome {
            self.calls.end_work(key.0);
            self.refuse_streamed(token, key, &id, &status, decoupled, replies);
        }
    }

    /// Answers a request that never got to its model.
    pub(super) fn refuse_streamed(
        &mut self,
        token: Token,
        key: Token,
        id: &Text,
        error: &Status,
        decoupled: bool,
        replies: &mut Replies,
    ) {
        let answer = grpc_reply::refused(&mut self.grpc_encoder, id, error, &self.pool);
        if !decoupled {
            return self.place(token, key.0, answer, replies);
        }
        if let Some(stream) = self.calls.stream(token) {
            stream.say(answer, None, replies);
        }
        self.end_streamed(token, key.0, replies);
        self.drive_stream(token, replies);
    }

    /// The one answer of a model that answers once.
    pub(super) fn answer_stream(
        &mut self,
        token: Token,
        key: u64,
        response: &mut Response,
        from: &StreamedFrom<'_>,
        replies: &mut Replies,
    ) {
        let answer = self.encode_streamed(response, from);
        match self.fatal(token, response) {
            Some(status) => self.end_stream(token, status, replies),
            None => {
                if let (Some(watch), Some(stream)) = (from.watch, self.calls.stream(token)) {
                    stream.watches.insert(key, Arc::clone(watch));
                }
                self.place(token, key, answer, replies);
            }
        }
    }

    /// One of the answers of a decoupled model, or its end.
    pub(super) fn delivered_to_stream(&mut self, token: Token, key: u64, delivery: Delivery, replies: &mut Replies) {
        let Some(place @ Work::Waiting(_)) = self.calls.work_mut(key) else { return };
        let Work::Waiting(waiting) = std::mem::replace(place, Work::Reserved) else { return };
        let from = StreamedFrom::new(&waiting.model, &waiting.form, delivery.last);
        let watch = waiting.form.watch.clone();
        let mut fatal = None;
        let message = match delivery.response {
            Some(mut response) => {
                if response.error.is_some() {
                    response.id = waiting.id();
                }
                let credit = response.credit.take();
                let message = self.encode_streamed(&mut response, &from);
                fatal = self.fatal(token, &response);
                response.retire();
                Some((message, credit))
            }
            None if delivery.last && waiting.form.empty_final_response => {
                let message = grpc_reply::without_outputs(&mut self.grpc_encoder, "", &waiting.id(), &from, &self.pool);
                message.ok().map(|message| (message, None))
            }
            None => None,
        };
        if let Some(place) = self.calls.work_mut(key) {
            *place = Work::Waiting(waiting);
        }
        if delivery.last {
            self.calls.end_waiting(key);
        }
        if let Some(status) = fatal {
            return self.end_stream(token, status, replies);
        }
        if let (Some(stream), Some((message, credit))) = (self.calls.stream(token), message) {
            if let Some(watch) = watch {
                watch.leaves(stream.call, replies);
            }
            stream.say(message, credit, replies);
        }
        if delivery.last {
            self.end_streamed(token, key, replies);
        }
        self.drive_stream(token, replies);
    }

    /// How the whole stream ends if `response` is an error and its client wants that.
    fn fatal(&mut self, token: Token, response: &Response) -> Option<GrpcStatus> {
        let status = response.error.as_ref()?;
        self.calls.stream(token).filter(|stream| stream.error_ends)?;
        Some(error::grpc_status(status.clone()))
    }

    /// Frames an answer. One that cannot be framed becomes an error.
    fn encode_streamed(&mut self, response: &mut Response, from: &StreamedFrom<'_>) -> Gather {
        let mut writer = Writer { encoder: &mut self.grpc_encoder, answers: self.plan_cache.grpc_answers() };
        let mut streamed = grpc_reply::streamed(&mut writer, response, from, &self.pool);
        if let Err(status) = &streamed {
            response.error = Some(status.clone());
            streamed = grpc_reply::streamed(&mut writer, response, from, &self.pool);
        }
        // Only a text longer than a message may be gets here.
        streamed.unwrap_or_else(|status| grpc_reply::refused(writer.encoder, &response.id, &status, &self.pool))
    }

    /// Puts an answer into its place in the order; one that has none takes it at the end.
    fn place(&mut self, token: Token, key: u64, answer: Gather, replies: &mut Replies) {
        let Some(stream) = self.calls.stream(token) else { return };
        match stream.order.iter_mut().find(|(waiting, _)| *waiting == key) {
            Some(place) => place.1 = Some(answer),
            None => stream.order.push_back((key, Some(answer))),
        }
        match stream.flush(replies) {
            true => drop(self.calls.end_work(token.0)),
            false => self.drive_stream(token, replies),
        }
    }

    /// A request of a decoupled model has had its last answer.
    fn end_streamed(&mut self, token: Token, key: u64, replies: &mut Replies) {
        let Some(stream) = self.calls.stream(token) else { return };
        stream.unordered.remove(&key);
        if stream.flush(replies) {
            self.calls.end_work(token.0);
        }
    }

    pub(super) fn stream_half_closed(&mut self, token: Token, replies: &mut Replies) {
        let Some(stream) = self.calls.stream(token) else { return reflection::half_closed(&mut self.calls, token) };
        stream.half_closed = true;
        if stream.flush(replies) {
            self.calls.end_work(token.0);
        }
    }

    /// A second has passed in which the peer had not taken everything.
    pub(super) fn stream_waits(&mut self, token: Token, replies: &mut Replies) {
        if self.calls.stream(token).is_some_and(|stream| stream.send_window.is_stuck()) {
            tracing::info!("a stream is ended: its client does not read");
            let text = "the client does not read the responses of the stream";
            self.end_stream(token, GrpcStatus::new(Code::ResourceExhausted, text), replies);
        }
    }
}
