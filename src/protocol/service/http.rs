//! What the service has to do with HTTP: requests in, answers out.

use super::{CallKey, Port, Replies, Token};
use crate::http1;
use nereid_memory::{Gather, Slice};

/// What an HTTP request is answered.
#[derive(Debug)]
pub enum HttpReply {
    /// The whole answer.
    Answer(http1::Response),
    /// The same, as most are.
    Plain(http1::PlainResponse),
    /// The head of an answer whose length is not known yet.
    Head(http1::ResponseHead),
    /// Some of its body.
    Chunk(Gather),
    /// The end of its body.
    End,
    /// The rest of its body does not come: the connection ends at once, which is how its peer notices it.
    Abort,
}

/// What answers HTTP requests.
pub trait HttpService {
    /// What follows from the heads of requests through that port, as long as the server runs.
    fn http_rules(&self, port: Port) -> http1::IntakeRules;

    /// The head of a request is complete that the rules do not let in by themselves. `Some`: it is refused, and its
    /// body is not stored.
    fn refuse_http(&mut self, port: Port, head: &http1::Head) -> Option<http1::Response>;

    /// Whether the time when it began to arrive is needed of every request.
    fn times_http(&self) -> bool {
        false
    }

    /// A whole request; `since_ns`: when it began to arrive, where that may be needed. Without a token the reply is
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
