//! What stands behind the wire: `api` implements it, `net` calls it.
//!
//! The calls are synchronous and bounded. An answer that has to wait comes later, as a reply to the same call key; the
//! service hands out a token for such work so that the transport can say that nobody waits any more.

use super::grpc::{self, Code};
use super::{http1, http2};
use nereid_memory::{Gather, Slice};

/// One exchange on a connection: an HTTP request or a gRPC call. Generational: a reply to a finished one is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallKey(pub u64);

/// Work of the service that outlives the call that began it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Which of the server's ports a request came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    Http,
    Grpc,
    Metrics,
    SageMaker,
    Vertex,
}

/// The end of a gRPC call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcStatus {
    pub code: Code,
    pub message: String,
    /// Further metadata at the end of the call: names in lower case, and values.
    pub trailers: Kept,
}

impl GrpcStatus {
    pub fn new(code: Code, message: impl Into<String>) -> GrpcStatus {
        GrpcStatus { code, message: message.into(), trailers: Kept::new() }
    }

    pub fn ok() -> GrpcStatus {
        GrpcStatus::new(Code::Ok, "")
    }
}

/// Wants to know when an answer is out.
pub trait Sent: Send + std::fmt::Debug {
    /// The system has the last byte of the answer. Not called if the connection ends first.
    fn sent(self: Box<Self>, at_ns: u64);
}

#[derive(Debug)]
pub enum Reply {
    /// Comes right before the reply that it is about: the whole HTTP answer, its end, a message or the end of a call.
    SentCallback(Box<dyn Sent>),
    Http(http1::Response),
    HttpPlain(http1::PlainResponse),
    /// The head of an HTTP answer whose length is not known yet.
    HttpHead(http1::ResponseHead),
    /// Some of its body.
    HttpChunk(Gather),
    /// The end of its body.
    HttpEnd,
    /// The rest of its body does not come: the connection ends at once, which is how its peer learns of it.
    HttpAbort,
    /// One framed message; more may follow.
    GrpcMessage(Gather),
    /// Trailers; nothing follows.
    GrpcEnd(GrpcStatus),
    /// The one framed message of a call that went well, and its end.
    GrpcAnswer(Gather),
}

/// Where the service puts what it has to say; the transport empties it after every call.
#[derive(Debug, Default)]
pub struct Replies(Vec<(CallKey, Reply)>);

impl Replies {
    pub fn push(&mut self, call: CallKey, reply: Reply) {
        self.0.push((call, reply));
    }

    pub fn drain(&mut self) -> std::vec::Drain<'_, (CallKey, Reply)> {
        self.0.drain(..)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Metadata of a call that the service wants to see again with its messages: names in lower case, and values.
pub type Kept = Vec<(Box<[u8]>, Box<[u8]>)>;

/// How a gRPC method wants its request messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcPlan {
    /// The service's own number of the method.
    pub method: u8,
    pub mode: grpc::Mode,
    /// Many requests on one call.
    pub streaming: bool,
    /// What becomes parameters of requests.
    pub kept: Kept,
    /// What the watching of requests needs.
    pub watched: Kept,
    /// How messages of the answer may be compressed: its head says so, each message whether it is.
    pub response_encoding: grpc::Encoding,
    /// The service wants to know when its requests began to arrive.
    pub timed: bool,
}

impl GrpcPlan {
    pub fn new(method: u8, mode: grpc::Mode) -> GrpcPlan {
        GrpcPlan {
            method,
            mode,
            streaming: false,
            kept: Kept::new(),
            watched: Kept::new(),
            response_encoding: grpc::Encoding::Identity,
            timed: false,
        }
    }
}

/// What answers HTTP requests.
pub trait HttpService {
    /// What follows from the heads of requests through that port, as long as the server runs.
    fn http_rules(&self, port: Port) -> http1::IntakeRules;

    /// The head of a request is complete that the rules do not let in by themselves. `Some`: it is refused, and its
    /// body is not stored.
    fn refuse_http(&mut self, port: Port, head: &http1::Head) -> Option<http1::Response>;

    /// Whether it is wanted of every request when it began to arrive.
    fn times_http(&self) -> bool {
        false
    }

    /// A whole request; `since_ns`: when it began to arrive, where that may be wanted. Without a token the reply is
    /// already there.
    fn http(
        &mut self,
        call: CallKey,
        port: Port,
        head: &http1::Head,
        body: Slice,
        since_ns: Option<u64>,
        replies: &mut Replies,
    ) -> Option<Token>;
}

/// A shard's view of the server.
pub trait Service: HttpService {
    /// What other threads post to this shard for the service.
    type Mail: Send + 'static;

    /// The gRPC request that is handed over next began to arrive at `since_ns`. Told only for timed ones.
    fn arrived(&mut self, _since_ns: u64) {}

    /// A gRPC call begins: its path is `/package.Service/Method`.
    fn grpc_plan(&mut self, headers: &http2::Headers) -> Result<GrpcPlan, GrpcStatus>;

    /// Whether a plan, made for headers with nothing that changes from call to call, still holds for equal ones.
    fn is_plan_current(&self, _plan: &GrpcPlan) -> bool {
        false
    }

    /// The one request of a unary call.
    fn grpc_unary(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        message: grpc::Message,
        replies: &mut Replies,
    ) -> Option<Token>;

    /// A request on a call that is here as a whole. True if the service takes it, because it knows its like; then a
    /// unary call has its token from now on. Else it comes as a message, right after this.
    fn grpc_recurring(
        &mut self,
        _call: CallKey,
        _plan: &GrpcPlan,
        _token: &mut Option<Token>,
        _message: &[u8],
        _replies: &mut Replies,
    ) -> bool {
        false
    }

    /// A streaming call begins; the token stands for the stream. `None`: there are too many.
    fn grpc_stream(&mut self, call: CallKey, plan: &GrpcPlan, headers: &http2::Headers) -> Option<Token>;

    /// A request on a stream.
    fn grpc_stream_message(&mut self, stream: Token, plan: &GrpcPlan, message: grpc::Message, replies: &mut Replies);

    /// The client sends no more requests on the stream.
    fn grpc_stream_half_closed(&mut self, stream: Token, replies: &mut Replies);

    /// Of what a stream or a streamed HTTP answer was given to say, the last `unsent` bytes are still here, framing
    /// included: the peer has not made room for them. Told when it changes.
    fn stream_unsent(&mut self, _stream: Token, _unsent: usize) {}

    /// A second has passed in which the stream had unsent bytes. A streamed HTTP answer is told so only when it is its
    /// turn on its connection.
    fn stream_waits(&mut self, _stream: Token, _replies: &mut Replies) {}

    /// Nobody waits for this work any more.
    fn cancelled(&mut self, token: Token);

    /// Something another thread posted.
    fn mail(&mut self, mail: Self::Mail, replies: &mut Replies);

    /// Called once a turn, after everything was told and before the shard may sleep: goes on with work that was put off
    /// to
    /// keep turns short, and wakes who has to be woken. True while there is more.
    fn work(&mut self, replies: &mut Replies) -> bool;

    /// What was told since [`work`](Service::work) left something to do.
    fn has_work(&self) -> bool {
        false
    }

    /// When the service next has something to do by itself, as a time of the monotonic clock.
    fn next_deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Does what is due. What comes of it is told by mail.
    fn on_time(&mut self, _now_ns: u64) {}

    /// Requests that the service has accepted and not yet answered.
    fn in_flight(&self) -> usize;
}
