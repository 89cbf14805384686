//! Why a message could not be read, with the code and text that the peer gets.

use super::Code;
use crate::service::GrpcStatus;
use nereid_memory::{Exhausted, RefusalReason};

/// What ends a call, or a stream, whose bytes cannot be taken. `Display` is the text of `grpc-message`, as gRPC's own
/// server library words it; the source contains what exactly was wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("Bad GRPC frame type {0:#04x}")]
    FrameType(u8),
    /// The compressed flag is set on a call that named no encoding (gRPC "Compression", error case 1 of its test list).
    #[error("Unexpected error decompressing data for algorithm identity")]
    NotCompressed,
    /// What the call's encoding cannot have made, or the half of it.
    #[error("Unexpected error decompressing data for algorithm {0}")]
    Packed(&'static str),
    #[error("Received message larger than max ({bytes} vs. {bytes_max})")]
    TooLarge { bytes: usize, bytes_max: usize },
    #[error("Decompressed message larger than max ({bytes_max})")]
    UnpackedTooLarge { bytes_max: usize },
    /// A few bytes that became too many for this server.
    #[error("Decompressed message too large: {0}")]
    UnpackedExhausted(Exhausted),
    #[error("Unable to parse request")]
    Malformed(#[from] Malformed),
    #[error("Truncated message")]
    Truncated,
    #[error("request has more than {max} {bound}")]
    Bound { bound: Bound, max: usize },
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

impl ReadError {
    /// What the server lacks, if a smaller or a later request can succeed.
    fn refusal(&self) -> Option<RefusalReason> {
        match self {
            ReadError::Exhausted(exhausted) | ReadError::UnpackedExhausted(exhausted) => Some(exhausted.reason()),
            _ => None,
        }
    }

    /// The value of `grpc-status`.
    pub fn code(&self) -> Code {
        match self {
            ReadError::FrameType(_)
            | ReadError::NotCompressed
            | ReadError::Packed(_)
            | ReadError::Malformed(_)
            | ReadError::Truncated => Code::Internal,
            ReadError::TooLarge { .. }
            | ReadError::UnpackedTooLarge { .. }
            | ReadError::UnpackedExhausted(_)
            | ReadError::Bound { .. }
            | ReadError::Exhausted(_) => Code::ResourceExhausted,
        }
    }
}

/// Ends a call.
impl From<ReadError> for GrpcStatus {
    fn from(error: ReadError) -> GrpcStatus {
        GrpcStatus { refusal: error.refusal(), ..GrpcStatus::new(error.code(), error.to_string()) }
    }
}

/// What a request may hold only so many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Bound {
    #[error("inputs, outputs, parameters and raw contents together")]
    Items,
    #[error("bytes of names, parameters and shapes")]
    TextBytes,
}

/// How bytes fail to be the protobuf message that they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a varint is longer than 64 bits")]
    Varint,
    #[error("field number 0, or a key above 32 bits")]
    Key,
    #[error("wire type {0} does not exist or does not fit the field")]
    WireType(u8),
    #[error("a value reaches beyond the message that holds it")]
    Overrun,
    #[error("a group ends that was not begun")]
    GroupEnd,
    #[error("messages or groups are nested more than {0} deep")]
    Depth(usize),
    #[error("a string is not UTF-8")]
    Utf8,
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn texts_and_codes() {
        let cases = [
            (ReadError::FrameType(2), Code::Internal, "Bad GRPC frame type 0x02"),
            (ReadError::FrameType(0xfe), Code::Internal, "Bad GRPC frame type 0xfe"),
            (
                ReadError::TooLarge { bytes: 2_147_483_648, bytes_max: 2_147_483_647 },
                Code::ResourceExhausted,
                "Received message larger than max (2147483648 vs. 2147483647)",
            ),
            (ReadError::Malformed(Malformed::Utf8), Code::Internal, "Unable to parse request"),
            (ReadError::Truncated, Code::Internal, "Truncated message"),
            (ReadError::Packed("gzip"), Code::Internal, "Unexpected error decompressing data for algorithm gzip"),
            (
                ReadError::UnpackedTooLarge { bytes_max: 7 },
                Code::ResourceExhausted,
                "Decompressed message larger than max (7)",
            ),
        ];
        for (error, code, text) in cases {
            assert_eq!((error.code(), error.to_string().as_str()), (code, text));
        }
        let full =
            ReadError::Exhausted(Exhausted { requested: 1, left: 0, limit: 0, bound: nereid_memory::Bound::Server });
        assert_eq!(full.code(), Code::ResourceExhausted);
        let source = ReadError::Malformed(Malformed::Utf8);
        assert_eq!(source.source().unwrap().to_string(), "a string is not UTF-8");
    }
}
