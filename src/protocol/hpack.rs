//! HPACK (RFC 7541): header lists as HTTP/2 compresses them, in both directions.
//!
//! The decoder hands every field to a sink and owns nothing but the dynamic table and two scratch strings, so that a
//! connection decides what is stored and what is only counted. Both directions allocate nothing once they are warm.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod static_table;
mod table;

pub use decoder::{Decoder, Field, Sink};
pub use encoder::{CachedFields, Encoder};

/// The table size in bytes that both ends assume until SETTINGS change it (RFC 9113 section 6.5.2).
pub const DEFAULT_TABLE_SIZE: usize = 4096;

/// Why a header block cannot be decoded. Each of these is a connection error COMPRESSION_ERROR (RFC 9113 section 4.3),
/// because the two tables may no longer agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("header block ends inside a field")]
    Truncated,
    #[error("integer in header block is too large")]
    IntegerOverflow,
    #[error("header block names an index that is in neither table")]
    UnknownIndex,
    #[error("string in header block is not a valid Huffman code")]
    Huffman,
    #[error("table size update exceeds the announced limit")]
    TableSize,
    #[error("table size update is missing or stands behind a field")]
    TableSizePlace,
}
