//! What the token of a call stands for, from its arrival to its answer.

use std::rc::Rc;
use std::sync::Arc;

use super::checking::Checking;
use super::copying::Copying;
use super::pending_submit::PendingSubmit;
use super::reply_to::ReplyTo;
use crate::api::awaiting::AwaitingModel;
use crate::api::coding::packing::Answer;
use crate::api::coding::unpacking::{PackedBody, PackedCall};
use crate::api::grpc::reflection::stream::ReflectionStream;
use crate::api::grpc::streams::stream::Stream;
use crate::api::http::chunked_replies::chunked_reply::ChunkedReply;
use crate::api::infer::{AnswerForm, Decode, http_reply};
use crate::api::load_reports::streams::LoadStream;
use crate::api::openai::call::OpenAiCall;
use nereid_memory::CallPlace;
use nereid_protocol::service::CallKey;
use nereid_request::{Job, Response, Text, Ticket};
use nereid_scheduler::{ModelPlace, ServedModel};

/// What a token stands for.
pub enum Work {
    /// The token is issued, the rest follows.
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
    Delayed(Box<PendingSubmit>),
    Waiting(Waiting),
    /// Its model is being loaded.
    AwaitingModel(Box<AwaitingModel>),
    /// The client has left; the answer is still to come, and holds its places until then.
    Left(#[expect(dead_code, reason = "dropped for its effect")] Option<Places>),
    Encoding {
        call: CallKey,
        encoder: Box<http_reply::Encoder>,
    },
    /// All responses are there, but the answer that they are parts of is not all written.
    ChunkedReply(Box<ChunkedReply>),
    Packing(Box<Answer>),
    Stream(Box<Stream>),
    Reflection(Box<ReflectionStream>),
    LoadStream(Box<LoadStream>),
    /// A call of OpenAI's interface; its requests have works of their own.
    OpenAi(Box<OpenAiCall>),
}

/// What a request takes of the parts that its model and its client may have.
#[expect(dead_code, reason = "dropped for its effect")]
pub struct Places {
    pub model: ModelPlace,
    /// On a stream; other calls have their place where they are received.
    pub call: Option<CallPlace>,
}

/// A request that its model has.
pub struct Waiting {
    pub reply_to: ReplyTo,
    pub model: Arc<ServedModel>,
    /// Shared by requests that come again.
    pub form: Rc<AnswerForm>,
    /// An HTTP answer that leaves response by response.
    pub chunked: Option<Box<ChunkedReply>>,
    pub places: Option<Places>,
    /// As soon as the scheduler has given it.
    pub ticket: Option<Ticket>,
    /// When its time in the queue is up, if ever.
    pub expires_at_ns: Option<u64>,
    /// Of several, the first; of one, the one that came before the news that it was the last.
    pub response: Option<Response>,
    pub responses: usize,
    /// The response came with the news that it is the last one.
    pub is_final: bool,
}

impl Waiting {
    pub fn new(
        reply_to: ReplyTo,
        model: Arc<ServedModel>,
        form: Rc<AnswerForm>,
        chunked: Option<Box<ChunkedReply>>,
        places: Places,
    ) -> Waiting {
        Waiting {
            reply_to,
            model,
            form,
            chunked,
            places: Some(places),
            ticket: None,
            expires_at_ns: None,
            response: None,
            responses: 0,
            is_final: false,
        }
    }

    /// The id of the request.
    pub fn id(&self) -> Text {
        self.ticket.as_ref().map(|ticket| ticket.id.clone()).unwrap_or_default()
    }
}

/// Something to be done here at a certain time.
pub enum Timed {
    /// The time in the queue of the request with this token is up.
    Expiry(u64),
    /// The work with this token goes on.
    Revisit(u64),
    Job(Box<dyn Job>),
}
