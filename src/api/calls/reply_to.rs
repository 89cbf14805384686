//! Where the answer to a request goes.

use nereid_protocol::service::{CallKey, Token};

/// The call or the stream that gets the answer.
#[derive(Debug, Clone, Copy)]
pub enum ReplyTo {
    Http(CallKey),
    Grpc(CallKey),
    /// A request on a stream, by the stream's token.
    Stream(Token),
    /// A request that is a part of a call of OpenAI's interface: the token of the call, and which part.
    OpenAi(Token, u32),
}
