//! JSON as Triton reads and writes it: a resumable reader, a light index of a document, tensors to and from arrays, a
//! writer.
//!
//! The dialect is RFC 8259 plus `NaN`, `Inf` and `Infinity` (contract/http.md section 2); bytes of strings pass through
//! unchecked. Nothing here recurses, so nesting costs a bit a level, and everything whose length a peer chooses can
//! stop after a number of steps and go on later, because a shard's turn has a budget. Numbers of a tensor never
//! become nodes of a tree: the index keeps the byte range of their array, and [`NumbersReader`] parses that range
//! straight into the tensor's buffer.

mod array_writer;
mod cursor;
mod document;
mod double;
mod number;
mod numbers;
mod reader;
mod strings;
mod syntax;
mod text;
mod value;
mod walk;
mod writer;

#[cfg(test)]
mod tests;

pub use array_writer::{ArrayWriter, MalformedTensor};
pub use cursor::Cursor;
pub use document::{Builder, Document, DocumentError, RawMembers, ValueIndex};
pub use double::DoubleText;
pub use number::Number;
pub use numbers::NumbersReader;
pub use reader::{Reader, Token};
pub use strings::StringsReader;
pub use syntax::{Reason, SyntaxError};
pub use value::{AccessError, Elements, Kind, Member, Members, Paused, Value};
pub use walk::TensorError;
pub use writer::{GatherSink, Sink, Writer};

/// Bytes of text that one step reads at most, however few tokens they are: blanks and long strings take time too.
const STEP_BYTES: usize = 16 << 10;

/// What the elements of a numeric tensor are; strings have [`StringsReader`] and [`ArrayWriter::strings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

impl Element {
    /// Bytes of one element in a tensor's buffer.
    pub const fn byte_size(self) -> usize {
        match self {
            Element::Bool | Element::U8 | Element::I8 => 1,
            Element::U16 | Element::I16 => 2,
            Element::U32 | Element::I32 | Element::F32 => 4,
            Element::U64 | Element::I64 | Element::F64 => 8,
        }
    }
}
