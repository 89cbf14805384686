//! Calls under way: requests between their arrival and their answer.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::checking::{Checking, has_many_strings};
use super::chunked_reply::ChunkedReply;
use super::copying::Copying;
use super::delays::{Late, PutOff};
use super::dialect::Dialect;
use super::infer::grpc_reply::{self, StreamedFrom};
use super::infer::{AnswerForm, Decode, Progress, http_reply};
use super::packing::Answer;
use super::reflection::Reflection;
use super::stream::Stream;
use super::unpacking::{PackedBody, PackedCall};
use super::watch::{grpc_ends, http_leaves};
use super::{Api, error};
use crate::memory::Key;
use crate::protocol::service::{CallKey, Replies, Reply, Token};
use crate::repository::ServedModel;
use crate::request::{Delivery, Home, Job, Request, Response, Status, Text, Ticket, WakeUp};
use crate::scheduler::{Accepted, Refused};

/// Long steps of decoding or encoding that are done at once before the rest is put off to a later turn.
pub(super) const LONG_STEPS_AT_ONCE: usize = 2;
/// JSON tokens, or elements of a tensor in JSON, that one step reads. With 4,096 the p99 of a client beside hostile
/// documents was half as high again, and large bodies took longer (benches/results/2026-11-hostile.md).
pub(super) const TOKENS_PER_STEP: usize = 1024;
/// Steps of any length, so that many small inputs make a turn no longer than few large ones.
pub(super) const STEPS_AT_ONCE: usize = 64;
/// Requests that expire, and jobs that are due, in one turn: as many as a shard fires timers.
const TIMED_AT_ONCE: usize = 256;

/// Where an answer goes.
#[derive(Debug, Clone, Copy)]
pub enum Peer {
    Http(CallKey),
    Grpc(CallKey),
    /// A request on a stream, by the stream's token.
    Stream(Token),
}

/// What a token stands for.
pub enum Work {
    /// The token is given out, the rest follows.
    Reserved,
    UnpackingBody(Box<PackedBody>),
    UnpackingCall(Box<PackedCall>),
    Decoding {
        call: CallKey,
        decoder: Box<dyn Decode>,
    },
    /// Some of its inputs are copied out of shared memory.
    Copying(Box<Copying>),
    /// Its strings are checked.
    Checking(Box<Checking>),
    /// It is handed to its model later.
    PutOff(Box<PutOff>),
    Waiting(Waiting),
    /// Nobody waits for the answer any more, but it is still to come.
    Left,
    Encoding {
        call: CallKey,
        encoder: Box<http_reply::Encoder>,
    },
    /// All responses are there, but the answer that they are parts of is not all written.
    ChunkedReply(Box<ChunkedReply>),
    Packing(Box<Answer>),
    Stream(Box<Stream>),
    Reflection(Box<Reflection>),
}

/// A request that its model has.
pub struct Waiting {
    pub peer: Peer,
    pub model: Arc<ServedModel>,
    /// Shared by requests that come again.
    pub form: Rc<AnswerForm>,
    /// An HTTP answer that is told in parts.
    pub chunked: Option<Box<ChunkedReply>>,
    /// As soon as the scheduler has given it.
    ticket: Option<Ticket>,
    /// When its time in the queue is up, if ever.
    expires_at_ns: Option<u64>,
    /// Of several, the first; of one, the one that came before the news that it was the last.
    response: Option<Response>,
    responses: usize,
    /// The response came with the news that it is the last one.
    is_final: bool,
}

impl Waiting {
    /// The id of the request.
    pub fn id(&self) -> Text {
        self.ticket.as_ref().map(|ticket| ticket.id.clone()).unwrap_or_default()
    }
}

/// Something to be done here at a certain time.
pub enum Timed {
    /// The time in the queue of the request with this token is up.
    Expiry(u64),
    Job(Box<dyn Job>),
}

impl Home for Api {
    fn wake(&mut self, wake_up: WakeUp) {
        if !wake_up.is_needless() {
            self.wake_ups.push(wake_up);
        }
    }

    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>) {
        self.time(at_ns, Timed::Job(job));
    }
}

impl Api {
    /// Stores work and gives out its token.
    pub(super) fn new_work(&mut self, work: Work) -> Result<Token, Status> {
        let full = |_| Status::unavailable("too many requests wait on this server");
        self.work.insert(work).map(|key| Token(key.to_u64())).map_err(full)
    }

    pub(super) fn work_mut(&mut self, key: u64) -> Option<&mut Work> {
        self.work.get_mut(Key::from_u64(key)?)
    }

    pub(super) fn end_work(&mut self, key: u64) -> Option<Work> {
        self.work.remove(Key::from_u64(key)?)
    }

    /// Gives out a token and a request that answers to it.
    pub(super) fn new_request(&mut self) -> Result<(Token, Box<Request>), Status> {
        let token = self.new_work(Work::Reserved)?;
        Ok((token, self.request_of(token)))
    }

    /// A request that answers to a token which was given out before.
    pub(super) fn request_of(&self, token: Token) -> Box<Request> {
        let mut request = Request::recycled(Arc::clone(&self.sink), token.0);
        request.is_on_shard = true;
        request
    }

    /// Takes a token back whose request never went anywhere.
    pub(super) fn give_up(&mut self, token: Token, request: Box<Request>) {
        request.withdraw();
        self.end_work(token.0);
    }

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
        if let Some(place) = self.work_mut(key) {
            *place = Work::Decoding { call, decoder };
            self.unfinished.push_back(key);
        }
    }

    pub(super) fn refuse_http(
        &mut self,
        key: u64,
        call: CallKey,
        dialect: Dialect,
        status: &Status,
        replies: &mut Replies,
    ) {
        self.end_work(key);
        replies.push(call, Reply::Http(dialect.told(error::http_error(&self.pool, status, error::JSON))));
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
            Api::watch_by_parameter(watch, matches!(peer, Peer::Http(_)), &mut request);
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
        let by_ns = self.delays.request_ns;
        if by_ns > 0 && !matches!(peer, Peer::Http(_)) {
            let put_off = PutOff { peer, model, request, form };
            if let Some(place) = self.work_mut(token.0) {
                *place = Work::PutOff(Box::new(put_off));
            }
            self.put_off(by_ns, Late::Submit { key: token.0 });
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
        let waiting = Waiting {
            peer,
            model,
            form,
            chunked,
            ticket: None,
            expires_at_ns: None,
            response: None,
            responses: 0,
            is_final: false,
        };
        let Some(place) = self.work_mut(token.0) else {
            request.withdraw();
            return Err(Status::internal("the request has no place to wait for its answer"));
        };
        // Before the scheduler has it: the answer may be in the mailbox when it returns.
        *place = Work::Waiting(waiting);
        let Work::Waiting(waiting) = place else { return Ok(()) };
        match waiting.model.submit(request) {
            Ok(Accepted { wake_up, ticket, expires_at_ns }) => {
                (waiting.ticket, waiting.expires_at_ns) = (Some(ticket), expires_at_ns);
                self.wake(wake_up);
                self.in_flight += 1;
                if let Some(at_ns) = expires_at_ns {
                    self.time(at_ns, Timed::Expiry(token.0));
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

    pub(super) fn time(&mut self, at_ns: u64, timed: Timed) {
        let place = match &timed {
            Timed::Expiry(key) => (at_ns, false, *key),
            Timed::Job(_) => {
                self.jobs_timed += 1;
                (at_ns, true, self.jobs_timed)
            }
        };
        self.timed.insert(place, timed);
    }

    fn forget_expiry(&mut self, key: u64, expires_at_ns: Option<u64>) {
        if let Some(at_ns) = expires_at_ns {
            self.timed.remove(&(at_ns, false, key));
        }
    }

    /// Does what is due, or so much of it that a turn has time for; the shard comes back at once for the rest.
    pub(super) fn on_time(&mut self, now_ns: u64) {
        for _ in 0..TIMED_AT_ONCE {
            let Some(entry) = self.timed.first_entry().filter(|entry| entry.key().0 <= now_ns) else { return };
            match entry.remove() {
                Timed::Job(job) => job.run(self),
                Timed::Expiry(key) => {
                    let Some(Work::Waiting(waiting)) = self.work_mut(key) else { continue };
                    waiting.expires_at_ns = None;
                    let wake_up = match &waiting.ticket {
                        Some(ticket) => waiting.model.scheduler.expire(ticket),
                        None => continue,
                    };
                    self.wake(wake_up);
                }
            }
        }
    }

    #[inline]
    pub(super) fn delivered(&mut self, key: u64, delivery: Delivery, replies: &mut Replies) {
        let by_ns = self.delays.response_ns;
        if by_ns > 0 && self.is_grpc(key) {
            return self.put_off(by_ns, Late::Delivered { key, delivery: Box::new(delivery) });
        }
        self.delivered_now(key, delivery, replies);
    }

    #[inline]
    pub(super) fn delivered_now(&mut self, key: u64, delivery: Delivery, replies: &mut Replies) {
        if let Some(delivery) = self.classified(key, delivery) {
            self.deliver(key, delivery, replies);
        }
    }

    /// Passes on what goes out as it is.
    #[inline]
    pub(super) fn deliver(&mut self, key: u64, delivery: Delivery, replies: &mut Replies) {
        let waiting = match self.work_mut(key) {
            Some(Work::Waiting(waiting)) => waiting,
            Some(Work::Left) if delivery.last => {
                self.end_work(key);
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
            return self.delivered_to_chunked(key, delivery, replies);
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
        let Some(waiting) = self.end_waiting(key) else { return };
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

    /// Takes the request away: its last answer is there.
    pub(super) fn end_waiting(&mut self, key: u64) -> Option<Waiting> {
        match self.end_work(key) {
            Some(Work::Waiting(waiting)) => {
                self.count_out(key, &waiting);
                Some(waiting)
            }
            _ => None,
        }
    }

    /// The request's last answer is there.
    pub(super) fn count_out(&mut self, key: u64, waiting: &Waiting) {
        self.in_flight -= 1;
        self.forget_expiry(key, waiting.expires_at_ns);
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
            None => grpc_reply::unary(&mut self.writer, &response, model, &self.pool),
        };
        response.retire();
        match encoded {
            Ok(message) => {
                if watch.is_none() && form.packing.is_none() {
                    return replies.push(call, Reply::GrpcAnswer(message));
                }
                let status = grpc_ends(watch);
                if let Some(packing) = form.packing {
                    watch.inspect(|watch| watch.leaves(call, replies));
                    return self.pack(None, Box::new(Answer::grpc(call, message, packing, status)), replies);
                }
                replies.push(call, Reply::GrpcMessage(message));
                watch.inspect(|watch| watch.leaves(call, replies));
                replies.push(call, Reply::GrpcEnd(status));
            }
            Err(status) => {
                watch.inspect(|watch| watch.leaves(call, replies));
                replies.push(call, Reply::GrpcEnd(error::grpc_status(status)));
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
            && self.plan_cache.is_on
            && let Some(reply) = http_reply::write_plainly(
                &mut response,
                model,
                &form,
                (&mut self.templates, &mut self.texts),
                &self.pool,
            )
        {
            replies.push(call, Reply::HttpPlain(reply));
            return response.retire();
        }
        let dialect = form.dialect;
        let encoder = match response.error.take() {
            // What goes wrong once a model has been asked is not labelled as JSON, here and below
            // (contract/http.md section 1).
            Some(status) => {
                form.watch.as_ref().inspect(|watch| watch.leaves(call, replies));
                return replies.push(call, Reply::Http(dialect.told(error::http_error(&self.pool, &status, None))));
            }
            None => http_reply::Encoder::new(response, model, form, &self.pool),
        };
        match encoder {
            Ok(encoder) => self.encode(None, call, Box::new(encoder), replies),
            Err(status) => {
                replies.push(call, Reply::Http(dialect.told(error::http_error(&self.pool, &status, None))));
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
                        return self.pack(key, Box::new(Answer::http(call, reply, packing)), replies);
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
                self.end_work(key);
            }
            return replies.push(call, Reply::Http(reply));
        }
        let work = Work::Encoding { call, encoder };
        let key = match key {
            Some(key) => {
                if let Some(place) = self.work_mut(key) {
                    *place = work;
                }
                key
            }
            None => match self.new_work(work) {
                Ok(token) => token.0,
                Err(status) => {
                    let reply = error::http_error(&self.pool, &status, None);
                    return replies.push(call, Reply::Http(dialect.told(reply)));
                }
            },
        };
        self.unfinished.push_back(key);
    }

    /// Does one portion of the work that was put off.
    pub(super) fn go_on(&mut self, replies: &mut Replies) {
        let Some(key) = self.unfinished.pop_front() else { return };
        let Some(place) = self.work_mut(key) else { return };
        if matches!(place, Work::Waiting(_) | Work::ChunkedReply(_)) {
            return self.tell_on(key, replies);
        }
        match std::mem::replace(place, Work::Reserved) {
            Work::Decoding { call, decoder } => self.decode(key, call, decoder, replies),
            Work::Encoding { call, encoder } => self.encode(Some(key), call, encoder, replies),
            Work::Copying(copying) => self.copy_on(key, copying, replies),
            Work::Checking(checking) => self.check_on(key, checking, replies),
            Work::Reflection(reflection) => self.reflect(key, reflection, replies),
            Work::UnpackingBody(packed) => self.unpack_body(key, packed, replies),
            Work::UnpackingCall(packed) => self.unpack_call(key, packed, replies),
            Work::Packing(answer) => self.pack(Some(key), answer, replies),
            stream @ Work::Stream(_) => {
                *place = stream;
                self.go_on_with_stream(Token(key), replies);
            }
            other => *place = other,
        }
    }

    /// Nobody waits for this any more.
    pub(super) fn cancel(&mut self, key: u64) {
        match self.end_work_or_leave(key) {
            None
            | Some(Work::Reserved | Work::Left | Work::Encoding { .. } | Work::Packing(_) | Work::ChunkedReply(_)) => {}
            Some(Work::UnpackingBody(_) | Work::UnpackingCall(_) | Work::Reflection(_)) => {}
            Some(Work::Decoding { decoder, .. }) => decoder.finish().1.withdraw(),
            Some(Work::PutOff(put_off)) => put_off.request.withdraw(),
            Some(Work::Copying(copying)) => copying.withdraw(),
            Some(Work::Checking(checking)) => checking.withdraw(),
            Some(Work::Waiting(waiting)) => {
                self.in_flight -= 1;
                self.forget_expiry(key, waiting.expires_at_ns);
                if let Some(ticket) = &waiting.ticket {
                    let wake_up = waiting.model.scheduler.cancel(ticket);
                    self.wake(wake_up);
                }
            }
            Some(Work::Stream(stream)) => stream.waiting().for_each(|key| self.cancel(key)),
        }
    }

    /// Takes work away; in the place of a request that its model has, a mark stays until its answer comes.
    fn end_work_or_leave(&mut self, key: u64) -> Option<Work> {
        match self.work_mut(key)? {
            place @ Work::Waiting(_) => Some(std::mem::replace(place, Work::Left)),
            _ => self.end_work(key),
        }
    }
}
