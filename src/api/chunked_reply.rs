//! HTTP answers that leave response by response: events, and the one object of `generate`.
//!
//! The responses of a request wait here for their turn to be written, in bounded steps, and each leaves as one part of
//! the answer. What its client does not take holds a decoupled model back by credits, as on streams of gRPC. The status
//! is that of the first response, so the head leaves with it; what fails later says so in the body
//! (contract/http.md section 7, docs/streaming.md).

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::calls::{Calls, Work};
use super::generate::{load, reply};
use super::infer::{AnswerForm, Manner, http_reply};
use super::send_window::SendWindow;
use super::steps::{LONG_STEPS_AT_ONCE, STEPS_AT_ONCE};
use super::{error, events};
use nereid_memory::{Gather, Pool};
use nereid_observe::metrics::Registry;
use nereid_protocol::http1::ResponseHead;
use nereid_protocol::service::{CallKey, HttpReply, Replies, Token};
use nereid_request::{Credit, Delivery, Response, Status, Text, Value};
use nereid_scheduler::ServedModel;

/// Which responses are the last ones.
const FINAL: &str = "triton_final_response";

/// An answer whose responses leave one by one, each as a chunk.
pub struct ChunkedReply {
    call: CallKey,
    model: Arc<ServedModel>,
    form: Rc<AnswerForm>,
    /// Responses that nobody has begun to write.
    queue: VecDeque<Response>,
    /// The one that is being written.
    writing: Option<Writing>,
    /// The status of the first response, and of an answer of one part that part.
    first: Option<(u16, Gather)>,
    head_sent: bool,
    responses: u64,
    /// No response follows.
    over: bool,
    /// There is more to write, which was put off to a later turn.
    is_put_off: bool,
    pub send_window: SendWindow,
}

/// A response on its way to text.
struct Writing {
    encoder: Result<Encoder, Status>,
    credit: Option<Credit>,
}

enum Encoder {
    Whole(Box<http_reply::Encoder>),
    Generate(Box<reply::Encoder>),
}

impl Encoder {
    fn step(&mut self, pool: &Pool) -> Result<bool, Status> {
        match self {
            Encoder::Whole(encoder) => encoder.step(pool),
            Encoder::Generate(encoder) => encoder.step(pool),
        }
    }

    fn into_json(self) -> Gather {
        match self {
            Encoder::Whole(encoder) => encoder.into_json(),
            Encoder::Generate(encoder) => encoder.into_json(),
        }
    }
}

/// What a step came to.
enum Written {
    /// There is nothing to write.
    Nothing,
    /// It was as long as a step may be.
    Partly,
    /// A response, with its status and what is given back once it is out.
    Response(u16, Gather, Option<Credit>),
}

impl ChunkedReply {
    /// None for answers that are given in one piece.
    pub fn of(call: CallKey, model: &Arc<ServedModel>, form: &Rc<AnswerForm>) -> Option<Box<ChunkedReply>> {
        (form.manner != Manner::Whole).then(|| {
            Box::new(ChunkedReply {
                call,
                model: Arc::clone(model),
                form: Rc::clone(form),
                queue: VecDeque::new(),
                writing: None,
                first: None,
                head_sent: false,
                responses: 0,
                over: false,
                is_put_off: false,
                send_window: SendWindow::default(),
            })
        })
    }

    /// Each response is a part of its own.
    pub fn tells_each(&self) -> bool {
        match self.form.manner {
            Manner::GenerateEvents => true,
            // Who promises one response is held to it, as without events.
            Manner::Events => self.model.spec.decoupled,
            Manner::Generate | Manner::Whole => false,
        }
    }

    fn is_events(&self) -> bool {
        self.form.manner != Manner::Generate
    }

    /// Takes a response in, or the news that none follows. `id` is that of the request.
    fn take_in(&mut self, delivery: Delivery, id: Text) {
        let Delivery { response, last } = delivery;
        self.over |= last;
        let response = match response {
            None if last && self.tells_each() && self.form.empty_final_response => Some(Response::new(id)),
            Some(response) => {
                self.responses = self.responses.saturating_add(1);
                Some(response)
            }
            None => None,
        };
        let Some(mut response) = response else { return };
        if !self.tells_each() {
            if self.responses > 1 {
                return;
            }
            // It stays here, and another one may wait for its credit.
            response.credit = None;
        }
        if self.form.manner == Manner::Events && response.error.is_none() {
            response.parameters.push(FINAL.into(), Value::Bool(last || !self.tells_each()));
        }
        self.queue.push_back(response);
    }

    fn step(&mut self, pool: &Pool) -> Written {
        if self.writing.is_none()
            && let Some(response) = self.queue.pop_front()
        {
            self.writing = Some(self.begin(response, pool));
        }
        let Some(writing) = &mut self.writing else { return Written::Nothing };
        let outcome = match &mut writing.encoder {
            Ok(encoder) => encoder.step(pool),
            Err(status) => Err(status.clone()),
        };
        if let Ok(false) = outcome {
            return Written::Partly;
        }
        let Some(Writing { encoder, credit }) = self.writing.take() else { return Written::Nothing };
        match (outcome, encoder) {
            (Ok(_), Ok(encoder)) => Written::Response(200, encoder.into_json(), credit),
            (Err(status), _) | (Ok(_), Err(status)) => {
                Written::Response(error::http_status(status.code), error::json(pool, &status.message), credit)
            }
        }
    }

    fn begin(&self, mut response: Response, pool: &Pool) -> Writing {
        let credit = response.credit.take();
        let encoder = match response.error.take() {
            Some(status) => Err(status),
            None if self.form.manner == Manner::Events => {
                http_reply::Encoder::new(response, &self.model, Rc::clone(&self.form), pool)
                    .map(Box::new)
                    .map(Encoder::Whole)
            }
            None => reply::Encoder::new(response, &self.model).map(Box::new).map(Encoder::Generate),
        };
        Writing { encoder, credit }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.writing.is_none()
    }

    /// What an answer of one part is in the end.
    fn only_part(&mut self, pool: &Pool) -> (u16, Gather) {
        match (self.first.take(), self.form.manner) {
            (Some(first), _) if self.responses == 1 => first,
            (first, Manner::Generate) => {
                let text = "generate expects model to produce exactly 1 response, use generate stream for model that \
                            generates various number of responses";
                (first.map_or(200, |(status, _)| status), error::json(pool, text))
            }
            _ => (500, error::json(pool, &format!("expected a single response, got {}", self.responses))),
        }
    }
}

/// The part of one shard's service that writes such answers.
pub(super) struct ChunkedReplies {
    pub pool: Pool,
    /// Metrics of backends, some of which answers report.
    pub metrics: Arc<Registry>,
}

impl ChunkedReplies {
    /// A second has passed in which the peer had not taken everything.
    pub fn waits(calls: &mut Calls, token: Token, replies: &mut Replies) {
        let Some(chunked) = calls.chunked(token) else { return };
        let call = chunked.call;
        if chunked.send_window.is_stuck() {
            tracing::info!("a connection is closed: its client does not read the responses");
            calls.cancel(token.0);
            replies.push(call, HttpReply::Abort);
        }
    }

    /// A response to a request whose answer is told in parts, or its end.
    pub fn delivered(&self, calls: &mut Calls, key: u64, delivery: Delivery, replies: &mut Replies) {
        let last = delivery.last;
        let Some(Work::Waiting(waiting)) = calls.work_mut(key) else { return };
        let id = waiting.id();
        let Some(chunked) = &mut waiting.chunked else { return };
        chunked.take_in(delivery, id);
        if last {
            ChunkedReplies::end(calls, key);
        }
        self.tell(calls, key, replies);
    }

    /// The last response is there: what remains is to be written, under the same token.
    fn end(calls: &mut Calls, key: u64) {
        let Some(place @ Work::Waiting(_)) = calls.work_mut(key) else { return };
        let Work::Waiting(mut waiting) = std::mem::replace(place, Work::Reserved) else { return };
        if let (Some(chunked), Some(place)) = (waiting.chunked.take(), calls.work_mut(key)) {
            *place = Work::ChunkedReply(chunked);
        }
        calls.count_out(key, &waiting);
    }

    /// Writes on; what does not fit into this turn is put off.
    fn tell(&self, calls: &mut Calls, key: u64, replies: &mut Replies) {
        let mut long_steps = 0;
        for _ in 0..STEPS_AT_ONCE {
            let Some(chunked) = calls.chunked(Token(key)) else { return };
            match chunked.step(&self.pool) {
                Written::Nothing => break,
                Written::Partly => {
                    long_steps += 1;
                    if long_steps == LONG_STEPS_AT_ONCE {
                        break;
                    }
                }
                Written::Response(status, json, credit) => self.say(calls, key, status, json, credit, replies),
            }
        }
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        if !chunked.is_idle() {
            if !std::mem::replace(&mut chunked.is_put_off, true) {
                calls.come_back_to(key);
            }
            return;
        }
        if chunked.over {
            self.finish(calls, key, replies);
        }
    }

    /// Goes on with an answer that was put off.
    pub fn go_on(&self, calls: &mut Calls, key: u64, replies: &mut Replies) {
        if let Some(chunked) = calls.chunked(Token(key)) {
            chunked.is_put_off = false;
            self.tell(calls, key, replies);
        }
    }

    /// One response is written.
    fn say(
        &self,
        calls: &mut Calls,
        key: u64,
        status: u16,
        json: Gather,
        credit: Option<Credit>,
        replies: &mut Replies,
    ) {
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        if !chunked.tells_each() {
            chunked.first.get_or_insert((status, json));
            return;
        }
        self.send_head(calls, key, status, replies);
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        let event = events::framed(json, &self.pool);
        chunked.send_window.say(event.len(), credit);
        replies.push(chunked.call, HttpReply::Chunk(event));
    }

    /// Everything is written.
    fn finish(&self, calls: &mut Calls, key: u64, replies: &mut Replies) {
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        let (call, watch) = (chunked.call, Rc::make_mut(&mut chunked.form).watch.take());
        let part = (!chunked.tells_each()).then(|| {
            let (status, json) = chunked.only_part(&self.pool);
            (status, if chunked.is_events() { events::framed(json, &self.pool) } else { json })
        });
        self.send_head(calls, key, part.as_ref().map_or(200, |(status, _)| *status), replies);
        if let Some((_, part)) = part {
            replies.push(call, HttpReply::Chunk(part));
        }
        if let Some(watch) = watch {
            watch.leaves(call, replies);
        }
        replies.push(call, HttpReply::End);
        calls.end_work(key);
    }

    /// The head of the answer, if it is not out.
    fn send_head(&self, calls: &mut Calls, key: u64, status: u16, replies: &mut Replies) {
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        if std::mem::replace(&mut chunked.head_sent, true) {
            return;
        }
        let (call, format) = (chunked.call, chunked.form.load_report);
        let content_type = if chunked.is_events() { events::CONTENT_TYPE } else { "application/json" };
        let mut head = ResponseHead::new(status).content_type(content_type);
        if let Some(report) = format.and_then(|format| load::report(&self.metrics, format)) {
            head = head.header(load::FIELD, report);
        }
        replies.push(call, HttpReply::Head(head));
    }
}
