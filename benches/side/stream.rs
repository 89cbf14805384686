//! A gRPC client with all its requests on one ModelStreamInfer call.

use std::collections::VecDeque;

use nereid_memory::{Pool, Slice};
use nereid_protocol::grpc::PREFIX_BYTES;
use nereid_protocol::http2::{Connection, ErrorCode, Handler, Headers, ResetCause, StreamId};

use super::answer::Answer;
use super::line::Peer;
use super::load::Tally;
use super::tensor::Tensor;
use super::unary::{call_head, end_of_call, moves_whole_tensors};

pub struct StreamPeer {
    connection: Connection,
    call: Option<StreamId>,
    half_closed: bool,
    messages: Messages,
    slots: Vec<Slot>,
    /// Slots with a request in flight, the oldest first.
    pending: VecDeque<usize>,
    pieces: Vec<Slice>,
}

struct Slot {
    request: Slice,
    answer: Answer,
    sent_ns: u64,
    in_flight: bool,
}

/// What has come on the call.
#[derive(Default)]
struct Messages {
    bytes: Vec<u8>,
    end: Option<Result<(), String>>,
}

impl StreamPeer {
    pub fn new(tensors: Vec<Tensor>) -> StreamPeer {
        let slot = |tensor: Tensor| Slot {
            request: tensor.grpc_request(""),
            answer: Answer::new(Box::new(move |message| tensor.check_streamed(message))),
            sent_ns: 0,
            in_flight: false,
        };
        StreamPeer {
            connection: Connection::client(moves_whole_tensors(), Pool::new(256 << 20)),
            call: None,
            half_closed: false,
            messages: Messages::default(),
            slots: tensors.into_iter().map(slot).collect(),
            pending: VecDeque::new(),
            pieces: Vec::new(),
        }
    }

    /// Takes one message. Answers usually come in the order of their requests; one that does not match may be another
    /// slot's.
    fn answered(&mut self, message: &[u8], now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        let is_next = |&&at: &&usize| self.slots[at].answer.is(message);
        let place = if self.pending.front().filter(is_next).is_some() {
            0
        } else {
            self.pending.iter().position(|&at| self.slots[at].answer.is(message)).unwrap_or(0)
        };
        let at = self.pending.remove(place).ok_or("an answer to no request")?;
        let slot = &mut self.slots[at];
        slot.in_flight = false;
        slot.answer.piece(message);
        let outcome = slot.answer.end();
        tally.answered(slot.sent_ns, now_ns, outcome);
        Ok(())
    }
}

impl Peer for StreamPeer {
    fn begin(&mut self, now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        if !self.connection.is_established() || self.half_closed {
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
        if !tally.open {
            if self.pending.is_empty() {
                self.half_closed = true;
                self.connection.send_bytes(call, &[], true).map_err(|error| error.to_string())?;
            }
            return Ok(());
        }
        if self.pending.len() == self.slots.len() {
            return Ok(());
        }
        for (at, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| !slot.in_flight) {
            self.connection.send_bytes(call, &slot.request, false).map_err(|error| format!("a request: {error}"))?;
            (slot.in_flight, slot.sent_ns) = (true, now_ns);
            self.pending.push_back(at);
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
        self.pending.is_empty() && self.messages.end.is_some()
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
