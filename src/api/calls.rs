//! Calls under way: requests between their arrival and their answer.

mod under_way;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::checking::has_many_strings;
use super::chunked_reply::ChunkedReply;
use super::delays::{Late, PutOff};
use super::dialect::Dialect;
use super::infer::grpc_reply::{self, StreamedFrom, Writer};
use super::infer::{AnswerForm, Decode, Progress, http_reply};
use super::packing::{Answer, pack};
use super::steps::{LONG_STEPS_AT_ONCE, STEPS_AT_ONCE};
use super::watch::{grpc_ends, http_leaves, watch_by_parameter};
use super::{Api, error};
use nereid_protocol::service::{CallKey, GrpcReply, HttpReply, Replies, Token};
use nereid_request::{Delivery, Home, Request, Response, Status};
use nereid_scheduler::{Accepted, Refused, ServedModel};
pub use under_way::{Calls, Peer, Timed, Waiting, Work};

impl Api {
    /// Decodes on, and submits when that is done.
    pub(super) fn decode(&mut self, key: u64, call: CallKey, mut decoder: Box<dyn Decode>, replies: &mut Replies) {
        let mut long_steps = 0;
        let dialect = decoder.dialect();
        for _ in 0..STEPS_AT_ONCE {
            match decoder.step(&self.pool, &self.facts.regions) {
                Ok(Progress::More { is_long }) => {
                    long_steps += usize::from(is_long);
                    if long_steps == LONG_STEPS_AT_ONCE {
                        break;
                    }
                }
                Ok(Progress::Ready) => {
                    let (model, request, form) = decoder.finish();
                    let peer = Peer::Http(call);
                    let form = self.plan_cache.share(form);
                    if let Err(status) = self.submit(Token(key), peer, model, request, form) {
                        self.refuse_http(key, call, dialect, &status, replies);
                    }
                    return;
                }
                Err(status) => {
                    decoder.finish().1.withdraw();
                    self.refuse_http(key, call, dialect, &status, replies);
                    return;
                }
            }
        }
        self.calls.put_off_work(key, Work::Decoding { call, decoder });
    }

    pub(super) fn refuse_http(
        &mut self,
        key: u64,
        call: CallKey,
        dialect: Dialect,
        status: &Status,
        replies: &mut Replies,
    ) {
        self.calls.end_work(key);
        replies.push(call, HttpReply::Answer(dialect.told(error::http_error(&self.pool, status, error::JSON))));
    }

    /// Checks a request and hands it to its model's scheduler. On refusal the token is still there.
    pub(super) fn submit(
        &mut self,
        token: Token,
        peer: Peer,
        model: Arc<ServedModel>,
        mut request: Box<Request>,
        mut form: Rc<AnswerForm>,
    ) -> Result<(), Status> {
        if form.wants_timing {
            let watch = &mut Rc::make_mut(&mut form).watch;
            watch_by_parameter(watch, matches!(peer, Peer::Http(_)), &mut request);
        }
        if let Err(exhausted) = request.hold_texts(&self.pool) {
            request.withdraw();
            return Err(exhausted.into());
        }
        if request.shared.is_some() {
            return self.submit_shared(token, PutOff { peer, model, request, form });
        }
        if !request.is_checked && has_many_strings(&request) {
            return self.submit_strings(token, PutOff { peer, model, request, form });
        }
        let by_ns = self.calls.delays.request_ns;
        if by_ns > 0 && !matches!(peer, Peer::Http(_)) {
            let put_off = PutOff { peer, model, request, form };
            if let Some(place) = self.calls.work_mut(token.0) {
                *place = Work::PutOff(Box::new(put_off));
            }
            self.calls.put_off(by_ns, Late::Submit { key: token.0 });
            return Ok(());
        }
        self.submit_now(token, peer, model, request, form)
    }

    pub(super) fn submit_now(
        &mut self,
        token: Token,
        peer: Peer,
        model: Arc<ServedModel>,
        request: Box<Request>,
        form: Rc<AnswerForm>,
    ) -> Result<(), Status> {
        let chunked = match peer {
            Peer::Http(call) => ChunkedReply::of(call, &model, &form),
            Peer::Grpc(_) | Peer::Stream(_) => None,
        };
        if chunked.is_some() || (matches!(peer, Peer::Stream(_)) && model.spec.decoupled) {
            request.limit_responses(self.facts.settings.grpc_responses_max);
        }
        let waiting = Waiting::new(peer, model, form, chunked);
        let Some(place) = self.calls.work_mut(token.0) else {
            request.withdraw();
            return Err(Status::internal("the request has no place to wait for its answer"));
        };
        // Before the scheduler has it: the answer may be in the mailbox when it returns.
        *place = Work::Waiting(waiting);
        let Work::Waiting(waiting) = place else { return Ok(()) };
        match waiting.model.submit(request) {
            Ok(Accepted { wake_up, ticket, expires_at_ns }) => {
                (waiting.ticket, waiting.expires_at_ns) = (Some(ticket), expires_at_ns);
                self.calls.wake(wake_up);
                self.calls.count_in();
                if let Some(at_ns) = expires_at_ns {
                    self.calls.time(at_ns, Timed::Expiry(token.0));
                }
                Ok(())
            }
            Err(Refused { status, request }) => {
                request.withdraw();
                *place = Work::Reserved;
                Err(status)
            }
        }
    }

    #[inline]
    pub(super) fn delivered(&mut self, key: u64, delivery: Delivery, replies: &mut Replies) {
        let by_ns = self.calls.delays.response_ns;
        if by_ns > 0 && self.calls.is_grpc(key) {
            return self.calls.put_off(by_ns, Late::Delivered { key, delivery: Box::new(delivery) });
        }
        self.delivered_now(key, delivery, replies);
    }

    #[inline]
    pub(super) fn delivered_now(&mut self, key: u64, delivery: Delivery, replies: &mut Replies) {
        if let Some(delivery) = self.classifier.classified(key, delivery, &mut self.calls, &self.pool) {
            self.deliver(key, delivery, replies);
        }
    }

    /// Does one step for the response that has waited longest for its classes.
    pub(super) fn classify_on(&mut self, replies: &mut Replies) {
        let Some((key, delivery, behind)) = self.classifier.step(&mut self.calls, &self.pool) else { return };
        self.deliver(key, delivery, replies);
        for delivery in behind {
            self.delivered_now(key, delivery, replies);
        }
    }

    /// Passes on what goes out as it is.
    #[inline]
    pub(super) fn deliver(&mut self, key: u64, delivery: Delivery, replies: &mut Replies) {
        let waiting = match self.calls.work_mut(key) {
            Some(Work::Waiting(waiting)) => waiting,
            Some(Work::Left) if delivery.last => {
                self.calls.end_work(key);
                let is_answer = delivery.response.is_some_and(|response| response.error.is_none());
                self.facts.stale_deliveries.fetch_add(u64::from(is_answer), Ordering::Relaxed);
                return;
            }
            _ => return,
        };
        if let (Some(watch), Some(response)) = (&waiting.form.watch, &delivery.response) {
            watch.answered(response);
        }
        if waiting.chunked.is_some() {
            return self.chunked_replies.delivered(&mut self.calls, key, delivery, replies);
        }
        if let Peer::Stream(stream) = waiting.peer
            && waiting.model.spec.decoupled
        {
            return self.delivered_to_stream(stream, key, delivery, replies);
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
        let Some(waiting) = self.calls.end_waiting(key) else { return };
        let id = waiting.id();
        let Waiting { peer, model, form, ticket, response: first, responses, mut is_final, .. } = waiting;
        let mut response = match (responses, delivery.response, first) {
            (1, Some(only), _) => only,
            (1, None, Some(only)) => only,
            // A stream gets the first one, whatever follows.
            (2.., _, Some(first)) if matches!(peer, Peer::Stream(_)) => {
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
        match peer {
            Peer::Http(call) => self.answer_http(call, response, &model, form, replies),
            Peer::Grpc(call) => self.answer_grpc(call, response, &model, &form, replies),
            Peer::Stream(stream) => {
                if response.error.is_some() {
                    response.id = id;
                }
                self.answer_stream(stream, key, &mut response, &StreamedFrom::new(&model, &form, is_final), replies);
                response.retire();
            }
        }
    }

    fn answer_grpc(
        &mut self,
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
                &mut Writer { encoder: &mut self.grpc_encoder, answers: self.plan_cache.grpc_answers() },
                &response,
                model,
                &self.pool,
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
                    return pack(
                        &mut self.calls,
                        &self.pool,
                        None,
                        Box::new(Answer::grpc(call, message, packing, status)),
                        replies,
                    );
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

    fn answer_http(
        &mut self,
        call: CallKey,
        mut response: Response,
        model: &Arc<ServedModel>,
        form: Rc<AnswerForm>,
        replies: &mut Replies,
    ) {
        if response.error.is_none()
            && let Some(kept) = self.plan_cache.http_answers()
            && let Some(reply) = http_reply::write_plainly(&mut response, model, &form, kept, &self.pool)
        {
            replies.push(call, HttpReply::Plain(reply));
            return response.retire();
        }
        let dialect = form.dialect;
        let encoder = match response.error.take() {
            // What goes wrong once a model has been asked is not labelled as JSON, here and below
            // (contract/http.md section 1).
            Some(status) => {
                form.watch.as_ref().inspect(|watch| watch.leaves(call, replies));
                return replies
                    .push(call, HttpReply::Answer(dialect.told(error::http_error(&self.pool, &status, None))));
            }
            None => http_reply::Encoder::new(response, model, form, &self.pool),
        };
        match encoder {
            Ok(encoder) => self.encode(None, call, Box::new(encoder), replies),
            Err(status) => {
                replies.push(call, HttpReply::Answer(dialect.told(error::http_error(&self.pool, &status, None))));
            }
        }
    }

    /// Encodes on; what does not fit into this turn is put off.
    fn encode(
        &mut self,
        key: Option<u64>,
        call: CallKey,
        mut encoder: Box<http_reply::Encoder>,
        replies: &mut Replies,
    ) {
        let dialect = encoder.dialect();
        for _ in 0..LONG_STEPS_AT_ONCE {
            let watch = encoder.watch();
            let reply = match encoder.step(&self.pool) {
                Ok(false) => continue,
                Ok(true) => {
                    let packing = encoder.packing();
                    let mut reply = encoder.finish();
                    http_leaves(watch.as_ref(), call, &mut reply, replies);
                    if let Some(packing) = packing {
                        return pack(
                            &mut self.calls,
                            &self.pool,
                            key,
                            Box::new(Answer::http(call, reply, packing)),
                            replies,
                        );
                    }
                    reply
                }
                Err(status) => {
                    let mut reply = dialect.told(error::http_error(&self.pool, &status, None));
                    http_leaves(watch.as_ref(), call, &mut reply, replies);
                    reply
                }
            };
            if let Some(key) = key {
                self.calls.end_work(key);
            }
            return replies.push(call, HttpReply::Answer(reply));
        }
        let work = Work::Encoding { call, encoder };
        match key {
            Some(key) => self.calls.put_off_work(key, work),
            None => match self.calls.new_work(work) {
                Ok(token) => self.calls.come_back_to(token.0),
                Err(status) => {
                    let reply = error::http_error(&self.pool, &status, None);
                    replies.push(call, HttpReply::Answer(dialect.told(reply)));
                }
            },
        }
    }

    /// Does one portion of the work that was put off.
    pub(super) fn go_on(&mut self, replies: &mut Replies) {
        let Some(key) = self.calls.next_unfinished() else { return };
        let Some(place) = self.calls.work_mut(key) else { return };
        if matches!(place, Work::Waiting(_) | Work::ChunkedReply(_)) {
            return self.chunked_replies.go_on(&mut self.calls, key, replies);
        }
        match std::mem::replace(place, Work::Reserved) {
            Work::Decoding { call, decoder } => self.decode(key, call, decoder, replies),
            Work::Encoding { call, encoder } => self.encode(Some(key), call, encoder, replies),
            Work::Copying(copying) => self.copy_on(key, copying, replies),
            Work::Checking(checking) => self.check_on(key, checking, replies),
            Work::Reflection(reflection) => self.reflector.go_on(&mut self.calls, key, reflection, replies),
            Work::UnpackingBody(packed) => self.unpack_body(key, packed, replies),
            Work::UnpackingCall(packed) => self.unpack_call(key, packed, replies),
            Work::Packing(answer) => pack(&mut self.calls, &self.pool, Some(key), answer, replies),
            stream @ Work::Stream(_) => {
                *place = stream;
                self.go_on_with_stream(Token(key), None, replies);
            }
            other => *place = other,
        }
    }
}
