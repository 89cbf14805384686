//! Packed requests before they are read: inference over HTTP, and unary calls (contract/http.md section 5,
//! contract/grpc.md section 7).

use crate::api::http::opening::Opening;
use crate::api::watch::Arrival;
use nereid_memory::{Pool, Slice};
use nereid_protocol::compression::{Framing, InflateError, Joiner, Step, UnpackError, Unpacker};
use nereid_protocol::grpc::MessageUnpacker;
use nereid_protocol::service::{CallKey, GrpcPlan};
use nereid_request::Status;

/// The body of an inference request, and its head.
pub struct PackedBody {
    pub call: CallKey,
    opening: Opening,
    /// Where its binary tail begins, if the head states it: that byte is to be aligned.
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
    /// `bytes_max`: of the body, unpacked. Its bytes decide whether it is gzip or deflate, not the header.
    pub fn new(call: CallKey, opening: Opening, body: Slice, bytes_max: usize) -> PackedBody {
        let align_at = opening.align_at();
        let unpacker = Unpacker::new([body], Framing::Any, bytes_max, align_at);
        PackedBody { call, opening, align_at, bytes_max, stage: Stage::Unpacking(unpacker) }
    }

    pub fn step(&mut self, pool: &Pool) -> Result<Step, UnpackError> {
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

    /// The unpacked body, once a step has returned `Done`.
    pub fn finish(self) -> (CallKey, Opening, Slice) {
        let body = match self.stage {
            Stage::Done(body) => body,
            Stage::Unpacking(_) | Stage::Joining(_) => Slice::empty(),
        };
        (self.call, self.opening, body)
    }

    pub fn refused(&self, error: UnpackError) -> Status {
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
pub struct PackedCall {
    pub call: CallKey,
    pub plan: GrpcPlan,
    /// Until it is put off: then it arrives when it is unpacked.
    pub arrival: Option<Arrival>,
    pub deadline_ns: Option<u64>,
    pub message: MessageUnpacker,
}
