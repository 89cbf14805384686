//! What the service has to do with gRPC: calls and their messages in, messages and statuses out.

use std::rc::Rc;
use std::sync::Arc;

use super::{CallKey, Replies, Token};
use crate::grpc::{self, Code};
use crate::http2;
use nereid_memory::{CallLedger, Gather, RefusalReason};

/// What a gRPC call is answered.
#[derive(Debug)]
pub enum GrpcReply {
    /// One framed message; more may follow.
    Message(Gather),
    /// Trailers; nothing follows.
    End(GrpcStatus),
    /// The one framed message of a call that went well, and its end.
    Answer(Gather),
}

/// The end of a gRPC call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcStatus {
    pub code: Code,
    pub message: String,
    /// What the server lacked, if that is why the call ends.
    pub refusal: Option<RefusalReason>,
    /// Further metadata at the end of the call: names in lower case, and values.
    pub trailers: Kept,
}

impl GrpcStatus {
    pub fn new(code: Code, message: impl Into<String>) -> GrpcStatus {
        GrpcStatus { code, message: message.into(), refusal: None, trailers: Kept::new() }
    }

    /// The end of a call that the server lacks something for.
    pub fn refused(code: Code, reason: RefusalReason, message: impl Into<String>) -> GrpcStatus {
        GrpcStatus { refusal: Some(reason), ..GrpcStatus::new(code, message) }
    }

    pub fn ok() -> GrpcStatus {
        GrpcStatus::new(Code::Ok, "")
    }
}

/// Metadata of a call that the service gets again with its messages: names in lower case, and values.
pub type Kept = Vec<MetadataEntry>;

/// A name in lower case, and its value.
pub type MetadataEntry = (Box<[u8]>, Box<[u8]>);

/// How a gRPC method gets its request messages.
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
    /// What decides about the versions of models that requests go to.
    pub routing: Kept,
    /// The service's own number of the names that these are.
    pub routing_number: u64,
    /// How messages of the answer may be compressed: the head of the answer names the encoding, each message states
    /// whether it is compressed.
    pub response_encoding: grpc::Encoding,
    /// The end of the call has the service's load report, however it ends.
    pub reports_load: bool,
    /// What is recorded of a call whose message is kept.
    pub recorded: Kept,
    /// The service needs the times when its requests began to arrive.
    pub timed: bool,
    /// The service's own number of the rules that let the call in.
    pub access: u64,
    /// The name of the key by which they did.
    pub key: Option<Arc<str>>,
}

impl GrpcPlan {
    pub fn new(method: u8, mode: grpc::Mode) -> GrpcPlan {
        GrpcPlan {
            method,
            mode,
            streaming: false,
            kept: Kept::new(),
            watched: Kept::new(),
            routing: Kept::new(),
            routing_number: 0,
            response_encoding: grpc::Encoding::Identity,
            reports_load: false,
            recorded: Kept::new(),
            timed: false,
            access: 0,
            key: None,
        }
    }
}

/// What becomes of a request that was offered before it was read.
pub enum Recurring<N> {
    /// The service took it, because it has seen an equal one.
    Taken,
    /// It is to come as a message, with what the service has noted of it.
    Unknown(Option<N>),
}

/// What a message comes with beside its contents.
pub struct Arrived<N> {
    /// What the service noted when the same bytes were offered to it as a whole.
    pub noted: Option<N>,
    /// When it began to arrive, if its call is timed.
    pub since_ns: Option<u64>,
    /// When the client of its call stops waiting, if ever.
    pub deadline_ns: Option<u64>,
}

/// What answers gRPC calls.
pub trait GrpcService {
    /// What the service notes of a request that it does not take as it is, for when it comes as a message.
    type Noted;

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
        arrived: Arrived<Self::Noted>,
        replies: &mut Replies,
    ) -> Option<Token>;

    /// A request on a call that is here as a whole; `token` is that of the call, and of a unary call becomes it. At
    /// `deadline_ns` the client stops waiting.
    fn grpc_recurring(
        &mut self,
        _call: CallKey,
        _plan: &GrpcPlan,
        _token: &mut Option<Token>,
        _deadline_ns: Option<u64>,
        _message: &grpc::Outline<'_>,
        _replies: &mut Replies,
    ) -> Recurring<Self::Noted> {
        Recurring::Unknown(None)
    }

    /// A streaming call begins; the token stands for the stream, and each request on it is a call in `ledger`. `None`:
    /// there are too many.
    fn grpc_stream(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        headers: &http2::Headers,
        ledger: &Rc<CallLedger>,
    ) -> Option<Token>;

    /// The name and the value of the metadata that reports the load.
    fn load_trailer(&mut self) -> Option<MetadataEntry> {
        None
    }

    /// A request on a stream.
    fn grpc_stream_message(
        &mut self,
        stream: Token,
        plan: &GrpcPlan,
        message: grpc::Message,
        arrived: Arrived<Self::Noted>,
        replies: &mut Replies,
    );

    /// The client sends no more requests on the stream.
    fn grpc_stream_half_closed(&mut self, stream: Token, replies: &mut Replies);
}
