//! treelite's C interface: the library, and forests that it has read.
//!
//! These files and no others of the crate contain `unsafe`. Their functions check what the interface leaves to its
//! caller: lengths, alignments, types of fields.

mod handle;
mod library;
mod predictor;

pub use handle::Handle;
pub use library::{Content, Format, Inspected, Library, TreeliteError, inspect, load};
pub use predictor::Predictor;
