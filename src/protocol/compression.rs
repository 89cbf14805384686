//! Packed bodies and messages: deflate in the framing of gzip (RFC 1952) or of zlib (RFC 1950), in bounded steps.
//!
//! How long the work on packed bytes takes is not known until it is done: a kilobyte may become a megabyte. So nothing
//! here runs to the end by itself. Every part reads a few kilobytes, writes a few kilobytes, and returns whether it
//! wants to go on; what comes out is bounded before it is stored.

mod deflate;
mod inflate;
mod unpack;

#[cfg(test)]
mod tests;

pub use deflate::{Level, Outcome, Packer};
pub use inflate::{Framing, InflateError, Inflater, Progress};
pub use unpack::{Joiner, Step, UnpackError, Unpacker};

/// Bytes that one step writes, at most: well below 100 µs of inflating.
pub const STEP_BYTES: usize = 16 * 1024;

/// How deflated bytes are framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Gzip,
    /// What HTTP and gRPC call `deflate`: the framing of zlib.
    Deflate,
}

impl Format {
    /// As Content-Encoding and grpc-encoding name it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Gzip => "gzip",
            Format::Deflate => "deflate",
        }
    }
}
