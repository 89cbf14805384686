//! gRPC over whatever carries its bytes: message framing, inference messages, status and metadata values.
//!
//! Requests for inference are scanned as they arrive, so that tensors land where they will be used: large ones are
//! received straight into a block of their own, small ones are copied to aligned places (a window on a gRPC frame
//! starts at any byte, which is undefined behaviour for `&[f32]` and a trap for C++ backends). All other messages are
//! collected whole and decoded by prost. Only the intake uses HTTP/2.

mod arena;
mod count;
mod encode;
mod error;
mod intake;
mod metadata;
mod outline;
mod pack;
mod reader;
mod request;
mod scan;
mod status;
mod unpack;
mod varint;

pub use count::count_fields;
pub use encode::{
    Encoder, FINAL, InferRequestParts, InferResponse, InputTensor, OutputTensor, RequestedOutput, ResponseHead,
    TooLarge, decode,
};
pub use error::{Bound, Malformed, ReadError};
pub use intake::{Exchanges, Intake, IntakeState, OpenCall, ReaderPool, Refusal, SCATTERED_BYTES_MAX, Window};
pub use metadata::{ACCEPTED_ENCODINGS, Encoding, TimeoutError, UnknownEncoding, is_grpc, parse_timeout};
pub use outline::Outline;
pub use pack::MessagePacker;
pub use reader::{Message, MessageReader, Mode};
pub use request::{
    Contents, INT_BYTES, InferRequest, Input, InputRef, List, Output, OutputRef, Param, Parameters, Str, Value,
};
pub use scan::{Direct, DirectTicket, InferScanner, Limits};
pub use status::{Code, decode_message, encode_message};
pub use unpack::{MessageUnpacker, Unpacked, unpack_short};

/// Bytes before every message: a flag: whether it is compressed, and its length in four big-endian bytes.
pub const PREFIX_BYTES: usize = 5;

/// Names, parameters and shapes of one message, in bytes: what one step of a shard has time to copy. Triton has no such
/// bound.
pub const TEXT_BYTES_MAX: usize = 8 << 20;

/// The longest message that either side may send (contract/grpc.md section 7).
pub const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;
