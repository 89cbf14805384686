//! The calls under way on one shard, by their tokens: what each of them has come to, what of that was put off to a
//! later turn, and what is to be done at a certain time.

mod checking;
pub mod classifying;
mod copying;
pub mod delays;
mod pack;
pub mod pending_submit;
pub mod reply_to;
mod submit;
pub mod work;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::awaiting::ParkedCall;
use super::containment::contained;
use super::grpc::reflection::stream::ReflectionStream;
use super::grpc::streams::stream::Stream;
use super::http::chunked_replies::chunked_reply::ChunkedReply;
use super::load_reports::streams::LoadStream;
use super::mail::{Mail, Post};
use super::openai::call::OpenAiCall;
use super::send_window::SendWindow;
use delays::{DelayedStep, Delays};
use nereid_clock::now_ns;
use nereid_memory::{Key, Pool, Slab};
use nereid_mutants::{self as mutants, Mutant};
use nereid_observe::log::verbose;
use nereid_protocol::service::Token;
use nereid_request::{Home, Job, RefusalReason, Request, Sink, Status, WakeUp};
use reply_to::ReplyTo;
use work::{Timed, Waiting, Work};

use nereid_scheduler::ModelBounds;
use nereid_scheduler::ensemble::turn;

pub use checking::has_many_strings;

/// Requests that expire, and jobs that are due, in one turn: as many as a shard fires timers.
const TIMED_AT_ONCE: usize = 256;

/// A time, whether it is another than that of an expiry, and a number: where what is to be done then lies.
pub type TimerPlace = (u64, bool, u64);

/// How much a shard takes.
#[derive(Debug, Clone, Copy)]
pub struct CallBounds {
    /// Requests and streams at a time.
    pub requests_max: usize,
    /// Requests of one model on all shards, and their inputs.
    pub of_model: ModelBounds,
}

/// The calls under way.
pub struct Calls {
    work: Slab<Work>,
    /// The token that was issued last.
    issued: Option<u64>,
    /// Who waits for the answer to the request that was taken out of its place last: if the code that writes it panics,
    /// nothing else knows.
    pub taken: Option<ReplyTo>,
    /// As many requests and streams at a time.
    pub requests_max: usize,
    /// What one model may have of the server.
    model_bounds: ModelBounds,
    /// Where models send answers to requests of this shard.
    sink: Arc<dyn Sink>,
    post: Post,
    pool: Pool,
    /// Responses that a decoupled model may be ahead of its client.
    responses_max: u32,
    /// Work that was put off to keep turns short.
    unfinished: VecDeque<u64>,
    /// Requests of ensembles that have executed enough steps for one turn.
    put_off: VecDeque<Box<dyn Job>>,
    in_flight: usize,
    /// Workers to wake before the turn ends.
    wake_ups: Vec<WakeUp>,
    /// What is to be done at a time of the monotonic clock; jobs behind expiries, each by its number.
    timed: BTreeMap<TimerPlace, Timed>,
    jobs_timed: u64,
    pub delays: Delays,
}

impl Home for Calls {
    fn wake(&mut self, wake_up: WakeUp) {
        if !wake_up.is_needless() {
            self.wake_ups.push(wake_up);
        }
    }

    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>) {
        self.time(at_ns, Timed::Job(job));
    }

    fn next_turn(&mut self, job: Box<dyn Job>) {
        self.put_off.push_back(job);
    }
}

impl Calls {
    /// For so many requests and streams at a time. `responses_max`: how many responses a decoupled model may be ahead
    /// of its client.
    pub fn new(bounds: CallBounds, responses_max: u32, sink: Arc<dyn Sink>, post: Post, pool: Pool) -> Calls {
        let CallBounds { requests_max, of_model } = bounds;
        Calls {
            work: Slab::new(requests_max),
            issued: None,
            taken: None,
            requests_max,
            model_bounds: of_model,
            sink,
            post,
            pool,
            responses_max,
            unfinished: VecDeque::new(),
            put_off: VecDeque::new(),
            in_flight: 0,
            wake_ups: Vec::new(),
            timed: BTreeMap::new(),
            jobs_timed: 0,
            delays: Delays::of_process(),
        }
    }

    /// A token whose work follows, if there is room for one.
    pub fn reserve(&mut self) -> Option<Token> {
        self.issued = self.work.insert(Work::Reserved).ok().map(Key::to_u64);
        self.issued.map(Token)
    }

    /// There is no place for another request.
    pub fn is_full(&self) -> bool {
        self.work.len() >= self.work.limit()
    }

    /// Stores work and issues its token.
    pub fn new_work(&mut self, work: Work) -> Result<Token, Status> {
        let full = |_| Status::refused(RefusalReason::Calls, "too many requests wait on this server");
        let key = self.work.insert(work).map_err(full)?.to_u64();
        self.issued = Some(key);
        Ok(Token(key))
    }

    pub fn take_issued(&mut self) -> Option<u64> {
        self.issued.take()
    }

    pub fn work_mut(&mut self, key: u64) -> Option<&mut Work> {
        self.work.get_mut(Key::from_u64(key)?)
    }

    pub fn end_work(&mut self, key: u64) -> Option<Work> {
        self.work.remove(Key::from_u64(key)?)
    }

    /// Issues a token and a request whose responses carry it.
    pub fn new_request(&mut self) -> Result<(Token, Box<Request>), Status> {
        let token = self.new_work(Work::Reserved)?;
        Ok((token, self.request_of(token)))
    }

    /// A request whose responses carry a token that was issued before.
    pub fn request_of(&self, token: Token) -> Box<Request> {
        let mut request = Request::recycled(Arc::clone(&self.sink), token.0);
        request.ingress.is_on_shard = true;
        request
    }

    /// Ends the work of a request that was not submitted.
    pub fn give_up(&mut self, token: Token, request: Box<Request>) {
        request.withdraw();
        self.end_work(token.0);
    }

    fn time(&mut self, at_ns: u64, timed: Timed) -> TimerPlace {
        let place = match &timed {
            Timed::Expiry(key) => (at_ns, false, *key),
            Timed::Job(_) | Timed::Revisit(_) => {
                self.jobs_timed += 1;
                (at_ns, true, self.jobs_timed)
            }
        };
        self.timed.insert(place, timed);
        place
    }

    fn forget_expiry(&mut self, key: u64, expires_at_ns: Option<u64>) {
        if let Some(at_ns) = expires_at_ns {
            self.timed.remove(&(at_ns, false, key));
        }
    }

    /// What was to be done then is not done.
    pub fn forget_time(&mut self, place: &TimerPlace) {
        self.timed.remove(place);
    }

    /// Posts to this shard.
    pub fn post(&self) -> Post {
        Arc::clone(&self.post)
    }

    /// Does what is due, at most as much as a turn has time for; the next turn does the rest.
    pub fn on_time(&mut self, now_ns: u64) {
        for _ in 0..TIMED_AT_ONCE {
            let Some(entry) = self.timed.first_entry().filter(|entry| entry.key().0 <= now_ns) else { return };
            match entry.remove() {
                // A job that panics is dropped, and with it its request, which then has an error for an answer.
                Timed::Job(job) => drop(contained(|| job.run(self))),
                Timed::Expiry(key) => self.expire(key),
                Timed::Revisit(key) => self.revisit(key),
            }
        }
    }

    fn expire(&mut self, key: u64) {
        let Some(Work::Waiting(waiting)) = self.work_mut(key) else { return };
        waiting.expires_at_ns = None;
        if let Some(ticket) = &waiting.ticket {
            let wake_up = waiting.model.scheduler.expire(ticket);
            self.wake(wake_up);
        }
    }

    pub fn delay(&mut self, by_ns: u64, step: DelayedStep) {
        let post = Arc::clone(&self.post);
        let job = move |_: &mut dyn Home| post(Mail::Delayed(step));
        self.time(now_ns().saturating_add(by_ns), Timed::Job(Box::new(job)));
    }

    /// Tools count these lines: one for each call and each stream whose client has given up.
    pub fn log_cancellation(&mut self, key: u64) {
        let handler = match self.work_mut(key) {
            Some(Work::Waiting(waiting)) if matches!(waiting.reply_to, ReplyTo::Grpc(_)) => "ModelInferHandler",
            Some(Work::Delayed(pending)) if matches!(pending.reply_to, ReplyTo::Grpc(_)) => "ModelInferHandler",
            Some(Work::Copying(copying)) if matches!(copying.reply_to(), ReplyTo::Grpc(_)) => "ModelInferHandler",
            Some(Work::Checking(checking)) if matches!(checking.reply_to(), ReplyTo::Grpc(_)) => "ModelInferHandler",
            Some(Work::UnpackingCall(_)) => "ModelInferHandler",
            Some(Work::AwaitingModel(awaiting)) if matches!(awaiting.call, ParkedCall::Grpc(_)) => "ModelInferHandler",
            Some(Work::Stream(_)) => "ModelStreamInferHandler",
            _ => return,
        };
        verbose!(
            1,
            "Cancellation notification received for {handler}, rpc_ok=1, context {key} step ISSUED, state {key} step \
             ISSUED"
        );
    }

    /// True of work for a gRPC client that is on its way.
    pub fn is_grpc(&mut self, key: u64) -> bool {
        match self.work_mut(key) {
            Some(Work::Waiting(waiting)) => !matches!(waiting.reply_to, ReplyTo::Http(_) | ReplyTo::OpenAi(..)),
            Some(Work::Stream(_)) => true,
            _ => false,
        }
    }

    /// Takes the request away: its last answer is there.
    pub fn end_waiting(&mut self, key: u64) -> Option<Waiting> {
        match self.end_work(key) {
            Some(Work::Waiting(waiting)) => {
                self.taken = Some(waiting.reply_to);
                self.count_out(key, &waiting);
                Some(waiting)
            }
            _ => None,
        }
    }

    /// The request's last answer is there.
    pub fn count_out(&mut self, key: u64, waiting: &Waiting) {
        if !mutants::is(Mutant::InFlightKept) {
            self.in_flight -= 1;
        }
        self.forget_expiry(key, waiting.expires_at_ns);
    }

    /// The client has left: ends the work.
    pub fn cancel(&mut self, key: u64) {
        match self.end_work_or_leave(key) {
            None
            | Some(Work::Reserved | Work::Left(_) | Work::Encoding { .. } | Work::Packing(_) | Work::ChunkedReply(_)) =>
                {}
            Some(Work::UnpackingBody(_) | Work::UnpackingCall(_) | Work::Reflection(_) | Work::LoadStream(_)) => {}
            Some(Work::AwaitingModel(awaiting)) => self.forget_time(&awaiting.timer),
            Some(Work::Decoding { decoder, .. }) => decoder.finish().1.withdraw(),
            Some(Work::Delayed(pending)) => pending.request.withdraw(),
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
            Some(Work::OpenAi(call)) => {
                if let Some(place) = call.timer {
                    self.timed.remove(&place);
                }
                call.requests().for_each(|key| self.cancel(key));
            }
        }
    }

    /// Takes work away; in the place of a request that its model has, a mark stays until its answer comes.
    fn end_work_or_leave(&mut self, key: u64) -> Option<Work> {
        match self.work_mut(key)? {
            Work::Waiting(waiting) => {
                let left = Work::Left(waiting.places.take());
                self.work_mut(key).map(|place| std::mem::replace(place, left))
            }
            _ => self.end_work(key),
        }
    }

    /// Goes on with it in a later turn, unless it was given up.
    pub fn defer(&mut self, key: u64, work: Work) {
        if let Some(place) = self.work_mut(key) {
            *place = work;
            self.unfinished.push_back(key);
        }
    }

    /// Has work that lies in its place gone on with in a later turn.
    pub fn revisit(&mut self, key: u64) {
        self.unfinished.push_back(key);
    }

    /// The same at a time of the monotonic clock.
    pub fn revisit_at(&mut self, at_ns: u64, key: u64) {
        self.time_revisit(at_ns, key);
    }

    /// The same; the place is for [`Calls::forget_time`].
    pub fn time_revisit(&mut self, at_ns: u64, key: u64) -> TimerPlace {
        self.time(at_ns, Timed::Revisit(key))
    }

    /// The same for a call of OpenAI's interface, which has one such time.
    pub fn time_openai(&mut self, at_ns: u64, token: Token) {
        let place = self.time(at_ns, Timed::Revisit(token.0));
        let before = self.openai(token).map(|call| call.timer.replace(place));
        if let Some(Some(before)) = before {
            self.timed.remove(&before);
        }
    }

    /// Ends such a call, and its time.
    pub fn end_openai(&mut self, token: Token) {
        if let Some(Work::OpenAi(call)) = self.end_work(token.0)
            && let Some(place) = call.timer
        {
            self.timed.remove(&place);
        }
    }

    /// What was put off longest.
    pub fn next_unfinished(&mut self) -> Option<u64> {
        self.unfinished.pop_front()
    }

    pub fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty() || !self.put_off.is_empty()
    }

    /// A turn begins: ensembles go on that have executed enough in an earlier one.
    #[inline]
    pub fn begin_turn(&mut self) {
        turn::begin_turn();
        if !self.put_off.is_empty() {
            self.go_on_with_ensembles();
        }
    }

    fn go_on_with_ensembles(&mut self) {
        let mut jobs = std::mem::take(&mut self.put_off);
        while !turn::is_spent()
            && let Some(job) = jobs.pop_front()
        {
            let _ = contained(|| job.run(self));
        }
        // Those that had no turn come before those that wait for one more.
        jobs.append(&mut self.put_off);
        self.put_off = jobs;
    }

    /// A request has been handed to its model.
    fn count_in(&mut self) {
        self.in_flight += 1;
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn wake_all(&mut self) {
        if mutants::is(Mutant::WakesForgotten) {
            return self.wake_ups.clear();
        }
        self.wake_ups.drain(..).for_each(WakeUp::now);
    }

    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.timed.first_key_value().map(|((at_ns, ..), _)| *at_ns)
    }

    pub fn stream(&mut self, token: Token) -> Option<&mut Stream> {
        match self.work_mut(token.0) {
            Some(Work::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    pub fn reflection(&mut self, token: Token) -> Option<&mut ReflectionStream> {
        match self.work_mut(token.0) {
            Some(Work::Reflection(reflection)) => Some(reflection),
            _ => None,
        }
    }

    pub fn load_stream(&mut self, token: Token) -> Option<&mut LoadStream> {
        match self.work_mut(token.0) {
            Some(Work::LoadStream(stream)) => Some(stream),
            _ => None,
        }
    }

    /// The answer behind a token, if it is one that leaves response by response.
    pub fn chunked(&mut self, token: Token) -> Option<&mut ChunkedReply> {
        match self.work_mut(token.0) {
            Some(Work::Waiting(waiting)) => waiting.chunked.as_deref_mut(),
            Some(Work::ChunkedReply(chunked)) => Some(chunked),
            _ => None,
        }
    }

    /// The call of OpenAI's interface behind a token.
    pub fn openai(&mut self, token: Token) -> Option<&mut OpenAiCall> {
        match self.work_mut(token.0) {
            Some(Work::OpenAi(call)) => Some(call),
            _ => None,
        }
    }

    /// The send window behind a token, over either protocol.
    pub fn send_window(&mut self, token: Token) -> Option<&mut SendWindow> {
        match self.work_mut(token.0) {
            Some(Work::Stream(stream)) => Some(&mut stream.send_window),
            Some(Work::Waiting(waiting)) => waiting.chunked.as_deref_mut().map(|chunked| &mut chunked.send_window),
            Some(Work::ChunkedReply(chunked)) => Some(&mut chunked.send_window),
            Some(Work::OpenAi(call)) => Some(&mut call.send_window),
            _ => None,
        }
    }

    /// Keeps what follows on the request's stream back, or no longer.
    fn hold_stream(&mut self, reply_to: ReplyTo, is_held: bool) {
        if let ReplyTo::Stream(token) = reply_to
            && let Some(stream) = self.stream(token)
        {
            stream.is_held = is_held;
        }
    }

    /// Defers work on a request, and holds what follows on its stream back.
    fn prepare(&mut self, token: Token, reply_to: ReplyTo, work: Work) {
        let Some(place) = self.work_mut(token.0) else { return };
        *place = work;
        self.unfinished.push_back(token.0);
        self.hold_stream(reply_to, true);
    }
}
