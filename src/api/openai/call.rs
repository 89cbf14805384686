//! One call of OpenAI's interface on its way: what its models still have to do, and what of the answer is out.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use smallvec::SmallVec;

use super::awaiting::Awaited;
use super::cors::Origin;
use super::metrics::CallTimes;
use crate::api::calls::TimerPlace;
use crate::api::infer::AnswerForm;
use crate::api::send_window::SendWindow;
use crate::api::timing;
use crate::api::watch::{ArrivedHead, Watch};
use crate::repository::traffic::Chosen;
use nereid_memory::Gather;
use nereid_openai::answer::Answer;
use nereid_openai::date::http_date;
use nereid_openai::error::{Compat, Refusal};
use nereid_openai::form::ModelFacts;
use nereid_openai::plan::{Input, Plan};
use nereid_protocol::http1::{Response as HttpResponse, ResponseHead};
use nereid_protocol::service::{CallKey, HttpReply, Kept, Replies};
use nereid_request::{Credit, Response};
use nereid_scheduler::ServedModel;

/// Requests of one call that its model has at a time.
pub const REQUESTS_AT_ONCE: usize = 32;
/// As in the fields of answers.
pub const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// How a call is answered over HTTP.
pub struct HttpAnswer {
    pub call: CallKey,
    pub origin: Origin,
    /// Repeated in the answer.
    pub request_id: Option<String>,
    pub compat: Compat,
    head_sent: bool,
}

impl HttpAnswer {
    pub fn new(call: CallKey, origin: Origin, request_id: Option<String>, compat: Compat) -> HttpAnswer {
        HttpAnswer { call, origin, request_id, compat, head_sent: false }
    }

    /// The head of the answer has left, so that its status cannot change any more.
    pub fn has_begun(&self) -> bool {
        self.head_sent
    }

    pub fn head(&self, status: u16, content_type: impl Into<Cow<'static, str>>) -> ResponseHead {
        self.complete(ResponseHead::new(status).content_type(content_type))
    }

    /// An answer without a body.
    pub fn empty(&self, status: u16) -> HttpResponse {
        HttpResponse::new(self.complete(ResponseHead::new(status).content_type("")), Gather::new())
    }

    /// Adds what every answer has.
    fn complete(&self, head: ResponseHead) -> ResponseHead {
        let head = self.origin.add_to(head);
        let head = match &self.request_id {
            Some(id) => head.header("x-request-id", id.clone()),
            None => head,
        };
        match self.compat {
            Compat::OpenAi => head,
            Compat::Triton => head.header("date", http_date(now_s())).header("server", "uvicorn"),
        }
    }

    /// The whole answer.
    pub fn whole(&self, head: ResponseHead, body: Gather, replies: &mut Replies) {
        replies.push(self.call, HttpReply::Answer(HttpResponse::new(head, body)));
    }

    /// The same to a call that may be recorded, with the breakdown of its time if the client requested it.
    pub fn whole_of(&self, watch: Option<&Arc<Watch>>, head: ResponseHead, body: Gather, replies: &mut Replies) {
        let head = match watch.and_then(|watch| watch.breakdown()) {
            Some(text) => head.header(timing::ANSWER, text),
            None => head,
        };
        if let Some(watch) = watch {
            watch.leaves(self.call, replies);
        }
        self.whole(head, body, replies);
    }

    /// Some events of a stream.
    pub fn events(&mut self, events: Gather, replies: &mut Replies) {
        if !std::mem::replace(&mut self.head_sent, true) {
            replies.push(self.call, HttpReply::Head(self.head(200, EVENTS)));
        }
        if !events.is_empty() {
            replies.push(self.call, HttpReply::Chunk(events));
        }
    }
}

/// A response, or the news that a request ends without one.
pub struct Arrived {
    pub index: usize,
    pub response: Option<Response>,
    pub is_last: bool,
}

/// What its models do for a call.
pub struct Execution {
    pub model: Arc<ServedModel>,
    /// What a traffic rule has chosen for all requests of the call.
    pub chosen: Option<Chosen>,
    pub form: Rc<AnswerForm>,
    pub plan: Arc<Plan>,
    pub priority: Option<u64>,
    /// Requests that its model does not have yet, with their indices.
    pub pending: VecDeque<(u32, Vec<Input>)>,
    /// The works of those that it has.
    pub requests: SmallVec<[u64; 1]>,
    pub answer: Answer,
    /// Responses that are not begun.
    pub arrived: VecDeque<Arrived>,
    /// A response is begun: the credit that goes back once it is out.
    pub writing: Option<Option<Credit>>,
    /// Of an answer in one piece: what earlier turns have written of it.
    pub unsent: Gather,
    pub times: Option<CallTimes>,
    /// Records the call, as the observer of its first request.
    pub watch: Option<Arc<Watch>>,
    /// The adapter whose weights went along, which the model has if this succeeds.
    pub lora_sent: Option<(Arc<ModelFacts>, String)>,
}

impl Execution {
    /// Forgets what has not been written; the works of requests that are to be cancelled.
    pub fn drop_rest(&mut self) -> SmallVec<[u64; 1]> {
        self.pending.clear();
        self.arrived.clear();
        std::mem::take(&mut self.requests)
    }

    /// No response follows, and none is left.
    pub fn is_over(&self) -> bool {
        self.pending.is_empty() && self.requests.is_empty() && self.arrived.is_empty() && self.writing.is_none()
    }
}

/// One call.
pub struct OpenAiCall {
    pub http: HttpAnswer,
    /// The headers that traffic rules read.
    pub routing: Kept,
    pub send_window: SendWindow,
    /// None: the request is being prepared.
    pub execution: Option<Box<Execution>>,
    /// The rest was put off to a later turn.
    pub is_deferred: bool,
    /// What a trace of the call begins with, until its model is known.
    pub arrived: Option<Box<ArrivedHead>>,
    /// When events were sent last, and the time at which the shard looks whether that is too long ago.
    pub sent_ns: u64,
    pub began_ns: u64,
    /// Its model is being loaded.
    pub awaited: Option<Box<Awaited>>,
    /// Until when it waits for loads, if it has begun to.
    pub gives_up_at_ns: Option<u64>,
    /// When the shard looks at it again.
    pub timer: Option<TimerPlace>,
}

impl OpenAiCall {
    pub fn new(http: HttpAnswer, routing: Kept, now_ns: u64) -> OpenAiCall {
        let send_window = SendWindow::default();
        OpenAiCall {
            http,
            routing,
            send_window,
            execution: None,
            is_deferred: false,
            arrived: None,
            sent_ns: now_ns,
            began_ns: now_ns,
            timer: None,
            awaited: None,
            gives_up_at_ns: None,
        }
    }

    /// The works of its requests that a model has.
    pub fn requests(&self) -> impl Iterator<Item = u64> + use<> {
        let requests = self.execution.as_ref().map(|execution| execution.requests.clone());
        requests.into_iter().flatten()
    }
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A refusal as the body of an answer, with its content type.
pub fn refusal_body(refusal: &Refusal, compat: Compat) -> (String, &'static str) {
    let mut body = String::new();
    refusal.body(compat, &mut body);
    (body, refusal.content_type())
}
