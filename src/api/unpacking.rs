//! Packed requests before they are read: inference over HTTP, and unary calls (contract/http.md section 5,
//! contract/grpc.md section 7).

use super::Api;
use super::calls::Work;
use super::error;
use super::grpc_service::UnaryCall;
use super::http_infer::Opening;
use super::steps::LONG_STEPS_AT_ONCE;
use super::watch::Arrival;
use nereid_memory::{Pool, Slice};
use nereid_protocol::compression::{Framing, InflateError, Joiner, Step, UnpackError, Unpacker};
use nereid_protocol::grpc::{MessageUnpacker, Unpacked};
use nereid_protocol::service::{CallKey, GrpcPlan, GrpcReply, GrpcStatus, HttpReply, Replies, Token};
use nereid_request::Status;

/// The body of an inference request, and what its head said.
pub struct PackedBody {
    call: CallKey,
    opening: Opening,
    /// Where its binary tail begins, if the head says so: that byte is to be aligned.
    align_at: usize,
    bytes_max: usize,
    stage: Stage,
}

enum Stage {
    Unpacking(Unpacker),
    Joining(Joiner),
    Done(Slice),
}

impl PackedBody {
    /// `bytes_max`: of the body, unpacked. Whether it is gzip or deflate the bytes say, not the header.
    pub fn new(call: CallKey, opening: Opening, body: Slice, bytes_max: usize) -> PackedBody {
        let align_at = opening.align_at();
        let unpacker = Unpacker::new([body], Framing::Any, bytes_max, align_at);
        PackedBody { call, opening, align_at, bytes_max, stage: Stage::Unpacking(unpacker) }
    }

    fn step(&mut self, pool: &Pool) -> Result<Step, UnpackError> {
        let (stage, step) = match std::mem::replace(&mut self.stage, Stage::Done(Slice::empty())) {
            Stage::Unpacking(mut unpacker) => match unpacker.step(pool)? {
                more @ Step::More { .. } => (Stage::Unpacking(unpacker), more),
                Step::Done => {
                    let joiner = Joiner::new(unpacker.finish(), self.align_at, pool)?;
                    (Stage::Joining(joiner), Step::More { is_long: false })
                }
            },
            Stage::Joining(mut joiner) => match joiner.step() {
                false => (Stage::Joining(joiner), Step::More { is_long: true }),
                true => (Stage::Done(joiner.finish()), Step::Done),
            },
            Stage::Done(body) => (Stage::Done(body), Step::Done),
        };
        self.stage = stage;
        Ok(step)
    }

    /// What its sender packed, once a step said that this is all.
    fn finish(self) -> (CallKey, Opening, Slice) {
        let body = match self.stage {
            Stage::Done(body) => body,
            Stage::Unpacking(_) | Stage::Joining(_) => Slice::empty(),
        };
        (self.call, self.opening, body)
    }

    fn refused(&self, error: UnpackError) -> Status {
        match error {
            UnpackError::Inflate(InflateError::TooLong { .. }) => Status::invalid(format!(
                "Decompressed data size exceeds the maximum allowed value of {} bytes. Use --http-max-input-size to \
                 increase the limit.",
                self.bytes_max
            )),
            UnpackError::Inflate(error) => Status::invalid(format!("failed to decompress the request body: {error}")),
            UnpackError::Exhausted(exhausted) => Status::from(exhausted),
        }
    }
}

/// The one message of a unary call.
pub(super) struct PackedCall {
    pub call: CallKey,
    pub plan: GrpcPlan,
    /// Until it is put off: then it arrives when it is unpacked.
    pub arrival: Option<Arrival>,
    pub message: MessageUnpacker,
}

impl Api {
    /// One step more of this turn, if it has room for one: it may be told of many small requests, and only some of them
    /// are unpacked at once.
    pub(super) fn may_unpack(&mut self) -> bool {
        let may = self.unpacking_left > 0;
        self.unpacking_left = self.unpacking_left.saturating_sub(1);
        may
    }

    /// Unpacks on; what does not fit into this turn is put off.
    pub(super) fn unpack_body(&mut self, key: u64, mut packed: Box<PackedBody>, replies: &mut Replies) {
        let mut long_steps = 0;
        while long_steps < LONG_STEPS_AT_ONCE && self.may_unpack() {
            match packed.step(&self.pool) {
                Ok(Step::More { is_long }) => long_steps += usize::from(is_long),
                Ok(Step::Done) => {
                    let (call, opening, body) = packed.finish();
                    return self.read_unpacked(Token(key), call, opening, body, replies);
                }
                Err(error) => {
                    self.calls.end_work(key);
                    // Not labelled, like all that is found before the body is parsed (contract/http.md section 1).
                    let reply = error::http_error(&self.pool, &packed.refused(error), None);
                    return replies.push(packed.call, HttpReply::Answer(reply));
                }
            }
        }
        self.calls.put_off_work(key, Work::UnpackingBody(packed));
    }

    /// The same for a call.
    pub(super) fn unpack_call(&mut self, key: u64, mut packed: Box<PackedCall>, replies: &mut Replies) {
        let mut long_steps = 0;
        while long_steps < LONG_STEPS_AT_ONCE && self.may_unpack() {
            match packed.message.step(&self.pool) {
                Ok(Unpacked::More { is_long }) => long_steps += usize::from(is_long),
                Ok(Unpacked::Message(message)) => {
                    let arrival = packed.plan.timed.then(|| packed.arrival.unwrap_or_else(Arrival::now));
                    let call = UnaryCall { call: packed.call, plan: &packed.plan, noted: None, arrival };
                    self.answer_unary(Some(Token(key)), call, message, replies);
                    return;
                }
                Err(error) => {
                    self.calls.end_work(key);
                    let status = GrpcStatus::new(error.code(), error.to_string());
                    return replies.push(packed.call, GrpcReply::End(status));
                }
            }
        }
        packed.arrival = None;
        self.calls.put_off_work(key, Work::UnpackingCall(packed));
    }
}
