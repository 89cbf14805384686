//! HTTP/1.1 as a state machine: received bytes in, requests out; responses in, bytes to send out.
//!
//! [`Connection`] is the server's side and touches no socket. It owns what RFC 9112 requires of a connection (framing,
//! pipelining, persistence) and refuses what could be read in two ways; what a request means is the handler's matter.
//! In the server that is [`Intake`], which hands requests to the service. A body becomes one contiguous block in which
//! the byte that the handler names is 64-byte aligned, and large bodies can be received into that block directly.
//! [`ResponseParser`] and [`RequestHead`] are the client's side, for the load generator and for tests.

mod body;
mod chunked;
mod client;
mod connection;
mod head;
mod incoming;
mod intake;
mod outbox;
mod repeated;
mod response;

#[cfg(test)]
mod tests;

pub use client::{ClientError, RequestBody, RequestHead, ResponseParser, ResponseSink, put_chunk, put_last_chunk};
pub use connection::Connection;
pub use head::{BodyLength, Head, Method, Version};
pub use intake::{Exchanges, Intake, IntakeRules, IntakeState, JsonLength};
pub use response::{FieldValue, JSON_LENGTH, PlainResponse, Response, ResponseHead};

use nereid_memory::{BlockMut, Slice};

/// What a connection may take of its peer.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request line; beyond it 414.
    pub request_line: usize,
    /// Bytes of a request's head; beyond it 431.
    pub head: usize,
    /// Header fields of a request, at most [`Limits::MAX_HEADERS`]; beyond it 431.
    pub headers: usize,
    /// Bytes of a request's body; beyond it 413, or 400 where Triton's 32-bit length cannot hold it.
    pub body: usize,
    /// Non-empty chunks of a chunked body; beyond it 400 (contract/http.md section 2).
    pub chunks: usize,
    /// Bytes of the body of a refused request that are read and dropped to keep the connection.
    pub discard: usize,
    /// Requests that wait for their responses; beyond it nothing more is read.
    pub pipelined: usize,
    /// Bytes of responses that wait to be sent; beyond it no further request is read.
    pub unsent: usize,
    /// Bytes of a head that is recognised when it comes again; beyond it each is parsed.
    pub repeated_head: usize,
}

impl Limits {
    pub const MAX_HEADERS: usize = 128;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_line: 16 * 1024,
            head: 64 * 1024,
            headers: Limits::MAX_HEADERS,
            // Triton reads the length as an int32 (contract/http.md section 2).
            body: i32::MAX as usize,
            chunks: 65_536,
            discard: 256 * 1024,
            pipelined: 64,
            unsent: 4 << 20,
            repeated_head: 64 * 1024,
        }
    }
}

/// Names a request and its response on one connection; counts up from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeId(pub u64);

/// What a connection calls while it consumes bytes. Answers go to [`Connection::respond`] afterwards.
pub trait Handler {
    /// The head is complete; returns what becomes of the body.
    fn head(&mut self, exchange: ExchangeId, head: &Head) -> BodyPlan;

    /// Head and whole body. Follows every `head` whose plan was to store, unless `aborted` does or an answer came
    /// before the body was complete.
    fn request(&mut self, exchange: ExchangeId, head: &Head, body: Slice);

    /// No `request` will follow: the body was malformed, too long, or its peer went away. Where an answer is still
    /// possible, the connection has given it.
    fn aborted(&mut self, exchange: ExchangeId) {
        let _ = exchange;
    }
}

/// What becomes of a request's body.
#[derive(Debug)]
pub enum BodyPlan {
    /// Collect it into one block, in which the byte at `align_at` lies at a multiple of 64.
    Store { align_at: usize },
    /// Answer now. The body is read and dropped if it is short, else the connection ends with the answer.
    Reject(Response),
}

/// Part of a body that is still to be received, and the memory it belongs to: `block[at..at + len]`.
#[derive(Debug)]
pub struct Direct {
    pub block: BlockMut,
    pub at: usize,
    pub len: usize,
}
