//! A service that writes down what it is asked and answers when the test says so.

use std::cell::RefCell;
use std::rc::Rc;

use nereid_memory::{CallLedger, Pool, Slice};
use nereid_protocol::grpc::{Code, Message, Mode};
use nereid_protocol::http1::{Head, IntakeRules, JsonLength, Response, ResponseHead};
use nereid_protocol::http2;
use nereid_protocol::service::{
    Arrived, CallKey, GrpcPlan, GrpcService, GrpcStatus, HttpReply, HttpService, Panicked, Port, Replies, Reply,
    Service, Token,
};
use nereid_queue::Actor;

#[derive(Default)]
pub struct Script {
    pub http: Vec<(CallKey, String)>,
    pub unary: Vec<CallKey>,
    /// The raw contents of messages for inference.
    pub tensors: Vec<Vec<u8>>,
    pub cancelled: Vec<Token>,
    /// What is left unsent of answers that are told in parts.
    pub unsent: Vec<(Token, usize)>,
    /// Seconds in which they waited for their peer.
    pub waits: Vec<Token>,
    /// The work that it cannot go on with.
    pub loses: Option<Token>,
    /// Unsent bytes make it panic.
    pub panics_over_unsent: bool,
}

pub struct Scripted {
    pub script: Rc<RefCell<Script>>,
    pub pool: Pool,
}

impl HttpService for Scripted {
    fn http_rules(&self, _port: Port) -> IntakeRules {
        IntakeRules {
            json_length: JsonLength::Nowhere,
            unasked_bytes_max: u64::MAX,
            asks_always: true,
            timing_field: "x-timing",
        }
    }

    fn refuse_http(&mut self, _port: Port, head: &Head) -> Option<Response> {
        match head.path() {
            // Panics without the noise of a hook.
            "/panics" => std::panic::resume_unwind(Box::new(())),
            "/refused" => Some(Response::error(&self.pool, ResponseHead::new(400), "refused")),
            _ => None,
        }
    }

    fn http(
        &mut self,
        call: CallKey,
        _port: Port,
        head: &Head,
        body: Slice,
        _since_ns: Option<u64>,
        replies: &mut Replies,
    ) -> Option<Token> {
        if head.path() == "/now" {
            replies.push(call, HttpReply::Answer(Response::empty(200)));
            return None;
        }
        if head.path() == "/lost" {
            replies.push_panicked(Panicked::Call(call));
            return None;
        }
        self.script.borrow_mut().http.push((call, String::from_utf8_lossy(&body).into_owned()));
        Some(Token(call.0))
    }
}

impl GrpcService for Scripted {
    type Noted = ();

    fn grpc_plan(&mut self, headers: &http2::Headers) -> Result<GrpcPlan, GrpcStatus> {
        match headers.path() {
            Some(b"/panics") => std::panic::resume_unwind(Box::new(())),
            Some(b"/unary") => Ok(GrpcPlan::new(0, Mode::Collect)),
            Some(b"/infer") => Ok(GrpcPlan::new(0, Mode::Infer)),
            _ => Err(GrpcStatus::new(Code::Unimplemented, "")),
        }
    }

    fn grpc_unary(
        &mut self,
        call: CallKey,
        _: &GrpcPlan,
        message: Message,
        _: Arrived<()>,
        _: &mut Replies,
    ) -> Option<Token> {
        let mut script = self.script.borrow_mut();
        if let Message::Infer(request) = message {
            script.tensors.extend(request.raw.iter().map(|raw| raw.to_vec()));
        }
        script.unary.push(call);
        Some(Token(call.0))
    }

    fn grpc_stream(
        &mut self,
        call: CallKey,
        _plan: &GrpcPlan,
        _headers: &http2::Headers,
        _ledger: &Rc<CallLedger>,
    ) -> Option<Token> {
        Some(Token(call.0))
    }

    fn grpc_stream_message(&mut self, _: Token, _: &GrpcPlan, _message: Message, _: Arrived<()>, _: &mut Replies) {}

    fn grpc_stream_half_closed(&mut self, _stream: Token, _replies: &mut Replies) {}
}

impl Service for Scripted {
    fn stream_unsent(&mut self, stream: Token, unsent: usize) {
        if self.script.borrow().panics_over_unsent {
            std::panic::resume_unwind(Box::new(()));
        }
        self.script.borrow_mut().unsent.push((stream, unsent));
    }

    fn stream_waits(&mut self, stream: Token, _replies: &mut Replies) {
        self.script.borrow_mut().waits.push(stream);
    }

    fn cancelled(&mut self, token: Token) {
        self.script.borrow_mut().cancelled.push(token);
    }

    fn in_flight(&self) -> usize {
        0
    }
}

impl Actor for Scripted {
    type Mail = (CallKey, Reply);
    type Replies = Replies;

    fn mail(&mut self, (call, reply): (CallKey, Reply), replies: &mut Replies) {
        if self.script.borrow().loses == Some(Token(call.0)) {
            return replies.push_panicked(Panicked::Work(Token(call.0)));
        }
        replies.push(call, reply);
    }

    fn work(&mut self, _replies: &mut Replies) {}

    fn work_on(&mut self, _replies: &mut Replies) {}
}
