//! The service behind the connections, which `api` implements. The codecs of HTTP/1.1 and gRPC call their parts of it,
//! `net` the methods that concern neither alone.
//!
//! The calls are synchronous and bounded. An answer that has to wait comes later, as a reply to the same call key; the
//! service hands out a token for such work so that the transport can cancel it when no client waits for it.

mod grpc;
mod http;

use std::net::SocketAddr;

pub use grpc::{Arrived, GrpcPlan, GrpcReply, GrpcService, GrpcStatus, Kept, MetadataEntry, Recurring};
pub use http::{HttpReply, HttpService};

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
    /// OpenAI's interface.
    OpenAi,
    /// Shared-memory rings, in which gRPC calls come.
    Ipc,
}

/// A callback for when an answer is sent.
pub trait Sent: Send + std::fmt::Debug {
    /// The system has the last byte of the answer. Not called if the connection ends first.
    fn sent(self: Box<Self>, at_ns: u64);
}

/// What a call is answered.
#[derive(Debug)]
pub enum Reply {
    /// Comes right before the reply that it is about: the whole HTTP answer, its end, a message or the end of a call.
    SentCallback(Box<dyn Sent>),
    Http(HttpReply),
    Grpc(GrpcReply),
}

impl From<HttpReply> for Reply {
    #[inline]
    fn from(reply: HttpReply) -> Reply {
        Reply::Http(reply)
    }
}

impl From<GrpcReply> for Reply {
    #[inline]
    fn from(reply: GrpcReply) -> Reply {
        Reply::Grpc(reply)
    }
}

/// What the service cannot go on with, because its code panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Panicked {
    Call(CallKey),
    /// The call to which the service gave this token.
    Work(Token),
}

/// Where the service puts its replies; the transport empties it after every call.
#[derive(Debug, Default)]
pub struct Replies {
    replies: Vec<(CallKey, Reply)>,
    panicked: Vec<Panicked>,
}

impl Replies {
    #[inline]
    pub fn push(&mut self, call: CallKey, reply: impl Into<Reply>) {
        self.replies.push((call, reply.into()));
    }

    pub fn drain(&mut self) -> std::vec::Drain<'_, (CallKey, Reply)> {
        self.replies.drain(..)
    }

    /// The call ends with an error that the transport writes, behind the replies that it has got.
    #[cold]
    pub fn push_panicked(&mut self, panicked: Panicked) {
        self.panicked.push(panicked);
    }

    pub fn take_panicked(&mut self) -> Vec<Panicked> {
        std::mem::take(&mut self.panicked)
    }

    /// How much there is: see [`since`](Replies::since).
    #[inline]
    pub fn mark(&self) -> (usize, usize) {
        (self.replies.len(), self.panicked.len())
    }

    /// What has been pushed after this mark, which is of the same round.
    pub fn since(&self, (replies, panicked): (usize, usize)) -> (&[(CallKey, Reply)], &[Panicked]) {
        (self.replies.get(replies..).unwrap_or_default(), self.panicked.get(panicked..).unwrap_or_default())
    }

    /// The same, to be added to.
    pub fn since_mut(&mut self, (replies, panicked): (usize, usize)) -> (&mut [(CallKey, Reply)], &[Panicked]) {
        (self.replies.get_mut(replies..).unwrap_or_default(), self.panicked.get(panicked..).unwrap_or_default())
    }

    pub fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.panicked.is_empty()
    }
}

/// A shard's view of the server: what answers both protocols, and what concerns neither alone.
pub trait Service: HttpService + GrpcService {
    /// What comes next is from this peer; `None`: over a Unix socket.
    fn set_peer(&mut self, _peer: Option<SocketAddr>) {}

    /// Of the output of a stream or a streamed HTTP answer, the last `unsent` bytes are still here, framing included:
    /// the peer has not made room for them. Called when it changes.
    fn stream_unsent(&mut self, _stream: Token, _unsent: usize) {}

    /// A second has passed in which the stream had unsent bytes. This is reported of a streamed HTTP answer only when
    /// it is its turn on its connection.
    fn stream_waits(&mut self, _stream: Token, _replies: &mut Replies) {}

    /// No client waits for this work any more.
    fn cancelled(&mut self, token: Token);

    /// Requests that the service has accepted and not yet answered.
    fn in_flight(&self) -> usize;
}
