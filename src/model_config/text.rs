//! Protobuf's text format, the language of `config.pbtxt`, to and from messages that have descriptors.
//!
//! Our own, because prost-reflect's parser does not accept `input [ { … } ]`, which half of all model repositories
//! contain, and drops the position of a value; an operator who reads "29:17" needs the file's name, and `explain` needs
//! the position of every value (contract/model_config.md section 3).

use std::collections::BTreeMap;

use prost_reflect::{DynamicMessage, MessageDescriptor};
use thiserror::Error;

mod escape;
mod lexer;
mod number;
mod parser;
mod printer;
mod suggest;
#[cfg(test)]
pub(super) mod tests;

/// Longest file in bytes that is parsed.
pub const MAX_FILE_BYTES: usize = 16 << 20;
/// Most values (fields and list elements) in one file: each of them is remembered with its place.
pub const MAX_VALUES: usize = 1 << 18;
/// Deepest nesting of messages.
pub const MAX_DEPTH: usize = 64;

/// Parses `input`, the contents of `file`, as a message of type `descriptor`. The first error counts.
///
/// `file` only names the input in errors.
pub fn parse(file: &str, input: &[u8], descriptor: &MessageDescriptor) -> Result<Document, ParseError> {
    let first = |errors: Vec<ParseError>| errors.into_iter().next();
    let unknown = || ParseError { file: file.to_owned(), line: 1, column: 1, message: "cannot be read".to_owned() };
    parse_all(file, input, descriptor).map_err(|errors| first(errors).unwrap_or_else(unknown))
}

/// The same with every error, in the order of the text; never none.
pub fn parse_all(file: &str, input: &[u8], descriptor: &MessageDescriptor) -> Result<Document, Vec<ParseError>> {
    parser::parse(file, input, descriptor)
}

/// Writes `message` in text format, two blanks for each level, fields in the order of their numbers, map entries in the
/// order of their keys; what [`parse`] reads back.
pub fn print(message: &DynamicMessage) -> String {
    printer::print(message)
}

/// Writes a float with the fewest digits that read back as the same value, in a form that [`parse`] accepts.
pub(super) use printer::push_f32;
/// Writes a value that is no message, no list and no map.
pub(super) use printer::push_scalar;
pub use suggest::suggestion;

/// The message of a file, and the position of each value.
#[derive(Debug, Clone)]
pub struct Document {
    pub message: DynamicMessage,
    pub positions: Positions,
}

/// A line and a column (in characters), both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

/// The position of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldPosition {
    /// The first letter of the field's name; of the value itself for an element of a `[ ]` list.
    pub field: Position,
    /// The first letter of the value: a brace for a message.
    pub value: Position,
}

/// The place of every value of a file by its path: `max_batch_size`, `input[0].dims[1]`,
/// `parameters["threads"].string_value`.
///
/// A repeated field also has its bare name (`input`), at its first occurrence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Positions {
    file: String,
    places: BTreeMap<String, FieldPosition>,
}

impl Positions {
    pub fn get(&self, path: &str) -> Option<FieldPosition> {
        self.places.get(path).copied()
    }

    /// The position of a value, or of the nearest value around it where the file does not set it.
    pub fn nearest(&self, path: &str) -> Option<FieldPosition> {
        let mut path = path;
        while !path.is_empty() {
            if let Some(place) = self.get(path) {
                return Some(place);
            }
            path = path.rfind(['.', '[']).and_then(|end| path.get(..end)).unwrap_or_default();
        }
        None
    }

    /// The name that the file was parsed under.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// All paths in byte order, with their places.
    pub fn iter(&self) -> impl Iterator<Item = (&str, FieldPosition)> {
        self.places.iter().map(|(path, place)| (path.as_str(), *place))
    }
}

/// Why a file is not a message, with the position.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct ParseError {
    pub file: String,
    pub line: u32,
    pub column: u32,
    pub message: String,
}

/// The path of an entry of a map field, with its key as the file would write it.
pub(super) fn entry_path(map: &str, key: &prost_reflect::MapKey) -> String {
    let mut path = format!("{map}[");
    printer::push_key(key, &mut path);
    path.push(']');
    path
}
