//! A gRPC client with one request at a time on a ModelStreamInfer call, whose answer is a fixed number of responses in
//! a fixed order.

use std::collections::VecDeque;

use nereid_memory::{Pool, Slice};
use nereid_protocol::http2::{Connection, ErrorCode, Handler, Headers, ResetCause, StreamId};

use super::answer::{Answer, Check};
use super::line::Peer;
use super::load::Tally;
use super::question::PREFIX_BYTES;
use super::unary::{call_head, end_of_call, moves_whole_tensors};

pub struct BurstPeer {
    connection: Connection,
    call: Option<StreamId>,
    half_closed: bool,
    messages: Messages,
    request: Slice,
    /// Of each response, in order.
    answers: Vec<Answer>,
    sent_ns: Option<u64>,
    /// Responses to the request in flight that have come.
    seen: usize,
    outcome: Result<(), String>,
    pieces: Vec<Slice>,
}

/// What has come on the call.
#[derive(Default)]
struct Messages {
    bytes: Vec<u8>,
    end: Option<Result<(), String>>,
}

impl BurstPeer {
    /// `checks` are of the responses' messages, in the order in which they come.
    pub fn new(request: Slice, checks: Vec<Check>) -> BurstPeer {
        BurstPeer {
            connection: Connection::client(moves_whole_tensors(), Pool::new(256 << 20)),
            call: None,
            half_closed: false,
            messages: Messages::default(),
            request,
            answers: checks.into_iter().map(Answer::new).collect(),
            sent_ns: None,
            seen: 0,
            outcome: Ok(()),
            pieces: Vec::new(),
        }
    }

    fn answered(&mut self, message: &[u8], now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        let sent_ns = self.sent_ns.ok_or("a response to no request")?;
        let answer = self.answers.get_mut(self.seen).ok_or("a response too many")?;
        answer.piece(message);
        let outcome = answer.end();
        if self.outcome.is_ok() {
            self.outcome = outcome;
        }
        self.seen += 1;
        if self.seen == self.answers.len() {
            (self.seen, self.sent_ns) = (0, None);
            tally.answered(sent_ns, now_ns, std::mem::replace(&mut self.outcome, Ok(())));
        }
        Ok(())
    }
}

impl Peer for BurstPeer {
    fn begin(&mut self, now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        if !self.connection.is_established() || self.half_closed || self.sent_ns.is_some() {
            return Ok(());
        }
        let call = match self.call {
            Some(call) => call,
            None => {
                let head = call_head(b"/inference.GRPCInferenceService/ModelStreamInfer");
                let call = self.connection.open(head, false).map_err(|error| format!("the stream: {error}"))?;
                *self.call.insert(call)
            }
        };
        self.half_closed = !tally.open;
        let message: &[u8] = if self.half_closed { &[] } else { &self.request };
        self.connection.send_bytes(call, message, self.half_closed).map_err(|error| format!("a request: {error}"))?;
        if !self.half_closed {
            self.sent_ns = Some(now_ns);
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &[u8], now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        self.connection.receive(bytes, &mut self.messages).map_err(|error| error.to_string())?;
        let received = std::mem::take(&mut self.messages.bytes);
        let mut rest = &received[..];
        while let Some((prefix, behind)) = rest.split_first_chunk::<PREFIX_BYTES>() {
            let [flag, a, b, c, d] = *prefix;
            if flag != 0 {
                return Err(format!("prefix {prefix:?}"));
            }
            let Some((message, behind)) = behind.split_at_checked(u32::from_be_bytes([a, b, c, d]) as usize) else {
                break;
            };
            self.answered(message, now_ns, tally)?;
            rest = behind;
        }
        let used = received.len() - rest.len();
        self.messages.bytes = received;
        self.messages.bytes.drain(..used);
        match &self.messages.end {
            Some(Err(error)) => Err(format!("the stream ended: {error}")),
            Some(Ok(())) if !self.half_closed => Err("the server ended the stream".to_owned()),
            _ => Ok(()),
        }
    }

    fn take_output(&mut self, into: &mut VecDeque<Slice>) {
        self.connection.output().take(usize::MAX, &mut self.pieces);
        into.extend(self.pieces.drain(..));
    }

    fn is_idle(&self) -> bool {
        self.sent_ns.is_none() && self.messages.end.is_some()
    }
}

impl Handler for Messages {
    fn headers(&mut self, _stream: StreamId, headers: &Headers, end_stream: bool) {
        if end_stream {
            self.end = Some(end_of_call(headers));
        } else if headers.status() != Some(b"200") {
            self.end = Some(Err("the head's status is not 200".to_owned()));
        }
    }

    fn data(&mut self, _stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        self.bytes.extend_from_slice(bytes);
        if end_stream {
            self.end = Some(Err("no status".to_owned()));
        }
        bytes.len()
    }

    fn trailers(&mut self, _stream: StreamId, headers: &Headers) {
        self.end = Some(end_of_call(headers));
    }

    fn reset(&mut self, _stream: StreamId, code: ErrorCode, _cause: ResetCause) {
        self.end.get_or_insert(Err(format!("reset: {code}")));
    }
}
